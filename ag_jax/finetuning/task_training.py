"""Training of one trial of fine-tuning, and the files in the trial's directory."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
from etils import epath

from ag_jax.attention.adversary import split_params
from ag_jax.attention.assignment import Assignment, assign_encoder_heads
from ag_jax.attention.config import GuidanceConfig
from ag_jax.data.tasks import buckets
from ag_jax.data.tasks.task import Task, number_of_texts
from ag_jax.distributed import hosts
from ag_jax.evaluation import metrics
from ag_jax.finetuning import predicting, program
from ag_jax.finetuning.config import FinetuningConfig, Recipe
from ag_jax.finetuning.encoded import Encoded, TaskData
from ag_jax.finetuning.predicting import Predicted
from ag_jax.finetuning.program import ProgramSpec
from ag_jax.finetuning.trial import Trial, facts_of
from ag_jax.grid import store
from ag_jax.grid.cells import Artifact, Result
from ag_jax.interop import finetuned
from ag_jax.interop.finetuned import FineTuned, Head
from ag_jax.interop.opening import Pretrained
from ag_jax.models.config import EncoderConfig, Pooling
from ag_jax.pretraining import build
from ag_jax.settings import schema
from ag_jax.training import sharding
from ag_jax.training.checkpoint import Checkpoint
from ag_jax.training.config import OptimizerConfig, TrainingConfig
from ag_jax.training.criterion import Criterion, Evaluation
from ag_jax.training.hyperparameters import Hyperparameters
from ag_jax.training.journal import NonFiniteError
from ag_jax.training.optimizer import learning_rate_schedule
from ag_jax.training.state import TrainState, with_params
from ag_jax.training.train import train
from ag_jax.training.trainee import Beat, HostBatch, Metrics, Outcome, Progress
from ag_jax.training.wandb_run import Labels

LOG_EVERY = 50  # steps


def encoder_config(opened: Pretrained, config: FinetuningConfig, recipe: Recipe) -> EncoderConfig:
    """Return the config of the checkpoint's encoder, changed by the settings of the suite and of the task's recipe."""
    changed = {name: getattr(config, name) for name in ("dtype", "remat", "attention")}
    changed |= {name: getattr(recipe, name) for name in ("dropout", "attention_dropout")}
    settings = {name: value for name, value in changed.items() if value is not None}
    # A loop over the layers whatever the checkpoint's setting is: a step is compiled for each length of rows.
    return dataclasses.replace(opened.config, **settings, scan_layers=True)


def make_head(
    task: Task,
    style: str,
    max_length: int,
    dropout: float | None = None,
    texts: int | None = None,
    pooling: Pooling = "first",
) -> Head:
    """Return the settings of a task's head, such as kind of task, labels, dropout and longest sequence in tokens.

    style: a key of `models.heads.STYLES`, which the checkpoint's family decides.
    max_length: the most tokens of a sequence.
    dropout: dropout rate of the head; None takes that of the encoder.
    texts: the number of texts of every example, see `Head`.
    pooling: what a head for texts reads, see `Head`.
    """
    low, high = task.span  # of a regression's labels
    return Head(
        task.name,
        task.kind,
        tuple(task.labels),
        style,
        low,
        high,
        max_length,
        task.answerable,
        dropout,
        texts,
        pooling,
        task.label_type,
    )


def trained_length(opened: Pretrained, recipe: Recipe) -> int:
    """Return the number of tokens of the longest text that an encoder is trained on, before the trial or in it."""
    return min(max(opened.length, recipe.max_length), opened.config.max_length)


def trained_assignment(opened: Pretrained, guidance: GuidanceConfig) -> Assignment:
    """Return which patterns guide which heads: in the trial or, if it has no guidance, in the training of `opened`."""
    if guidance.mode == "none":
        return opened.assignment
    return assign_encoder_heads(guidance, opened.config.heads, opened.config.local_layers)


def steps_of(trial: Trial, rows: int) -> int:
    """Return the number of steps of all planned epochs of a trial with `rows` training rows (tokenised sequences).

    The schedule of the learning rate is over these, because it cannot know whether `patience` ends a trial sooner.
    """
    return trial.recipe.total_epochs * buckets.steps(rows, trial.batch_size)


def planned_steps(trial: Trial, data: TaskData) -> int:
    """Return the number of steps of all planned epochs of a trial on its tokenised training examples."""
    return steps_of(trial, len(data.train.features))


def optimizer_config(trial: Trial, data: TaskData) -> OptimizerConfig:
    """Return the settings of a trial's optimizer."""
    recipe = trial.recipe
    return OptimizerConfig(
        learning_rate=trial.learning_rate,
        warmup_steps=recipe.warmup_of(planned_steps(trial, data)),
        decay=recipe.decay,
        beta1=recipe.beta1,
        beta2=recipe.beta2,
        epsilon=recipe.epsilon,
        weight_decay=recipe.weight_decay,
        clip_norm=recipe.clip_norm,
    )


def make_spec(trial: Trial, config: FinetuningConfig, opened: Pretrained, data: TaskData) -> ProgramSpec:
    """Return the settings that the compiled training steps of a trial depend on.

    They are equal for trials that differ only in seed and hyperparameters, so that these share one program.
    """
    recipe, any_values = trial.recipe, Hyperparameters()
    dropout = opened.origin.head_dropout if recipe.head_dropout is None else recipe.head_dropout
    texts = number_of_texts(data.train.examples)
    return ProgramSpec(
        config=encoder_config(opened, config, recipe),
        head=make_head(
            data.task, opened.style, recipe.max_length, dropout, texts, recipe.pooling or opened.origin.pooling
        ),
        optimizer=any_values.in_optimizer(optimizer_config(trial, data)),
        steps=planned_steps(trial, data),
        batch_size=trial.batch_size,
        microbatches=recipe.microbatches,
        guidance=any_values.in_guidance(config.guidance),
        adversarial=recipe.adversarial,
        special=build.special_tokens(opened.tokenizer),
        mesh=config.mesh,
    )


def run_trial(
    trial: Trial,
    config: FinetuningConfig,
    opened: Pretrained,
    data: TaskData,
    directory: epath.Path,
    keep: bool = False,
    labels: Labels = Labels(),
) -> Result:
    """Train or resume a trial, and return its result, with the predictions of every split by the best epoch's weights.

    The directory also gets metrics.jsonl and checkpoints, and with `keep` the weights of the best epoch
    (`ag_jax.interop.finetuned`).

    directory: the directory of the trial, which exists.
    labels: labels of the trial's run at Weights & Biases.

    Raises NonFiniteError, or Interrupted after a signal, each with everything so far saved.
    """
    if not len(data.train.features):
        raise ValueError(
            f"task {trial.task} has nothing to learn from: expected at least one training example (for a question, "
            f"with the answer in the text), got none from {data.train.examples.source}; give a file with such examples"
        )
    if not metrics.are_known(data.validation.examples):
        raise ValueError(
            f"the validation split of {trial.task} has no labels to choose an epoch by: expected at least one example, "
            "and a label for every example"
        )
    hosts.agree("what a trial starts from", {"sha256": opened.digest})
    labels = dataclasses.replace(labels, tags=(*labels.tags, trial.task, f"seed{trial.seed}"))
    result = train(TaskTraining(trial, config, opened, data, directory, keep), directory, labels=labels)
    hosts.exchange("the end of a trial", None)  # host 0 will delete the checkpoints, which all have now closed
    return result


class TaskTraining:
    """Fine-tuning of a checkpoint on a task, as `training.train` trains it (see `Trainee`).

    It is evaluated on the validation split after each epoch, or with `scored_epoch=last` only after the last.

    trial: the task with a point of its sweep and a seed.
    suite: the config of the suite.
    opened: the checkpoint that is fine-tuned.
    data: the task's tokenised splits.
    directory: the directory of the trial.
    keep: whether the weights of the best epoch are kept.
    """

    def __init__(
        self,
        trial: Trial,
        suite: FinetuningConfig,
        opened: Pretrained,
        data: TaskData,
        directory: epath.Path,
        keep: bool,
    ):
        self.trial, self.opened, self.data, self.directory, self.keep = trial, opened, data, directory, keep
        self.name = f"{trial.task} {trial.name}"
        self.settings = schema.to_dict(suite) | {"task": trial.task, "recipe": schema.to_dict(trial.recipe)}
        self.settings |= {name: getattr(trial, name) for name in ("learning_rate", "batch_size", "seed", "fold")}
        del self.settings["tasks"]
        self.identity = {"start_sha256": opened.digest}
        self.spec = make_spec(trial, suite, opened, data)
        self.program, _, self._predict_batch = program.compiled(self.spec)
        self._rows = sharding.process_rows(self.program.mesh, trial.batch_size)
        self._init_key, self.key = jax.random.split(jax.random.key(trial.seed))
        optimizer = optimizer_config(trial, data)
        self.hyperparameters = Hyperparameters.of(optimizer, suite.guidance)
        self._schedule = learning_rate_schedule(optimizer, self.spec.steps)
        self.steps_of_epoch = self.spec.steps // trial.recipe.total_epochs
        self.criterion = Criterion(data.task.metric, is_lower_better=False, patience=trial.recipe.patience)
        self.milestones: tuple[int, ...] = ()
        self.evaluation_batches: int | None = None
        is_last_scored = trial.recipe.scored_epoch == "last"
        self.config = TrainingConfig(
            steps=self.spec.steps,
            batch_size=trial.batch_size,
            microbatches=trial.recipe.microbatches,
            log_every=min(LOG_EVERY, self.steps_of_epoch),
            evaluate_every=None if is_last_scored else self.steps_of_epoch,
            checkpoint_every=min(suite.checkpoint_every, self.steps_of_epoch),
            keep_last=1,
            keep_best=not is_last_scored,
            milestones=(),
            step_timeout=suite.step_timeout,
            tensorboard=suite.tensorboard,
            wandb=suite.wandb,
        )

    def init(self) -> TrainState:
        """Return the state at step 0: the checkpoint's parameters, and new ones for a new head."""
        return with_params(self.program.create(self._init_key), self.opened.params, self.program.shardings)

    def start(self, like: TrainState) -> Checkpoint | None:
        """Return None: a trial begins with `init`."""
        del like
        return None

    def check(self, progress: Progress) -> None:
        """Raise ValueError if a checkpoint's training started from other weights than the trial would start from."""
        if progress.start_sha256 != self.opened.digest:
            raise ValueError(
                f"{self.directory} cannot be resumed: it started from other weights or settings, another tokenizer, "
                "or another pooling or dropout rate of the head than it would start from now, "
                f"{self.opened.description}. Delete {self.directory} to train this trial from the beginning"
            )

    def batches(self, start: int, stop: int) -> Iterator[HostBatch]:
        """Yield the training batches after step `start` up to step `stop`, which depend on seed and step alone."""
        trial, features, size = self.trial, self.data.train.features, self.steps_of_epoch
        for epoch in range(start // size, -(-stop // size)):
            planned = buckets.plan(
                features,
                trial.batch_size,
                trial.recipe.max_length,
                seed=trial.seed,
                epoch=epoch,
                shuffle=True,
            )
            for planned_batch in planned[max(start - epoch * size, 0) : stop - epoch * size]:
                yield self._rows_of_host(buckets.make_batch(features, planned_batch, trial.batch_size))

    def _rows_of_host(self, batch: HostBatch) -> HostBatch:
        """Return the rows of a batch that this host feeds to its devices."""
        return {name: field[self._rows] for name, field in batch.items() if name != "rows"}

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of the update after `step` steps."""
        return float(self._schedule(step))

    def evaluate(self, params: Any, step: int, beat: Beat) -> Metrics:
        """Return the metrics of the validation split."""
        del step
        return self._predict(params, "validation", self.data.validation, beat).metrics or {}

    def _predict(self, params: Any, split: str, encoded: Encoded, beat: Beat) -> Predicted:
        def predict(batch: HostBatch) -> jax.Array:
            beat()
            return self._predict_batch(params, sharding.place_batch(self._rows_of_host(batch), self.program.mesh))

        recipe = self.trial.recipe
        logits = predicting.logits_of(predict, encoded.features, self.trial.batch_size, recipe.max_length)
        return predicting.predicted(self.data.task.of_split(split), encoded, logits)

    def describe(self, evaluation: Evaluation) -> str:
        """Return the progress line of an epoch: its number, the validation metric and the training loss."""
        metric, epoch = self.criterion.metric, evaluation.step // self.steps_of_epoch
        return f"epoch {epoch}: {metric} {evaluation.values[metric]:.4f}, train loss {evaluation.train_loss:.4f}"

    def utilisation(self, start: int, stop: int, seconds: float) -> float | None:
        """Return None: the FLOPs of a batch depend on the lengths of its examples."""
        del start, stop, seconds
        return None

    def remedy(self, checkpoint: str) -> str:
        """Return advice for a loss that is not finite, without the checkpoint: those of a failed trial are deleted."""
        del checkpoint
        return (
            f"The learning rate is {self.trial.learning_rate:g}: lower tasks.{self.trial.task}.learning_rates, or set "
            "clip_norm or a longer warmup_fraction"
        )

    def finish(self, outcome: Outcome, beat: Beat) -> Result:
        """Predict all splits but the training one with the best epoch's weights; return the result of the trial.

        Writes `predictions_SPLIT.jsonl` and, if they are kept, the weights. With `scored_epoch=last`, the last epoch is
        the best, as the only one that is evaluated.

        Raises NonFiniteError if the metric is finite after no epoch.
        """
        trial, data, history, best = self.trial, self.data, outcome.progress.history, outcome.best
        if best is None:
            raise NonFiniteError(f"{data.task.metric} of the development set is a finite number after no epoch")
        params = outcome.best_params()
        if self.keep:
            self._save_weights(params)
        others: dict[str, dict[str, float]] = {}
        artifacts: dict[str, Artifact] = {}
        for name, encoded in {"validation": data.validation, **data.others}.items():
            if len(encoded.examples):
                predicted = self._predict(params, name, encoded, beat)
                if hosts.is_first():
                    artifacts[name] = store.write_text(self.directory, f"predictions_{name}.jsonl", predicted.lines)
                others |= {name: predicted.metrics} if predicted.metrics and name != "validation" else {}
        splits = {"train": data.train, "validation": data.validation, **data.others}
        counts = {
            name: sum(getattr(split.features, name) for split in splits.values())
            for name in ("truncated", "cut_words", "lost")
        }
        epochs = [
            {
                "epoch": evaluation.step // self.steps_of_epoch,
                "train_loss": evaluation.train_loss,
                "seconds": evaluation.seconds,
                "metrics": evaluation.values,
            }
            for evaluation in history
        ]
        facts = {
            **facts_of(trial),
            "start": self.opened.description,
            "steps": history[-1].step,
            "planned_steps": self.spec.steps,
            "epochs": epochs,
            "best_epoch": best.step // self.steps_of_epoch,
            "metrics": best.values,
            "others": others,
            **counts,
            "skipped": sum(split.examples.skipped for split in splits.values()),
            "examples": {name: len(split.examples) for name, split in splits.items()},
            "seconds": sum(evaluation.seconds for evaluation in history),
        }
        return Result(facts, artifacts)

    def _save_weights(self, params: Any) -> None:
        """Save the fine-tuned model, with what opens it again, in the trial's directory."""
        opened = self.opened
        params, adversary = split_params(sharding.to_host(params, self.program.mesh))
        if hosts.is_first():
            guided = trained_assignment(opened, self.spec.guidance)
            rest = params, opened.origin, adversary, trained_length(opened, self.trial.recipe), guided
            tuned = FineTuned(self.spec.head, self.spec.config, opened.tokenizer, *rest)
            finetuned.save(tuned, self.directory / finetuned.FOLDER)
