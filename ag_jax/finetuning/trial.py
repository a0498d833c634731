"""One trial: a task, a learning rate, a batch size and a seed, trained epoch by epoch and judged after each.

Every epoch is a function of (trial, number), and a checkpoint holds what the epochs before it left. So a trial that is killed
and started again ends as if nothing had happened.
"""

import dataclasses
import json
import math
import time
from typing import Any

import jax
import numpy as np
from etils import epath

from ag_jax.attention.adversary import separated
from ag_jax.data.json_files import check_fields, read_json
from ag_jax.data.tasks import buckets
from ag_jax.data.tasks.task import Task
from ag_jax.distributed import hosts, storage
from ag_jax.finetuning import predicting, program
from ag_jax.finetuning.config import FinetuningConfig, Recipe
from ag_jax.finetuning.encoded import Encoded, TaskData
from ag_jax.finetuning.predicting import Predicted
from ag_jax.interop import finetuned
from ag_jax.interop.finetuned import FineTuned, Head
from ag_jax.interop.opening import Pretrained
from ag_jax.models.config import EncoderConfig
from ag_jax.pretraining import build
from ag_jax.training import metrics as metric_sums
from ag_jax.training import sharding
from ag_jax.training.checkpoint import ASIDE, Checkpoints, steps_in
from ag_jax.training.loop import NonFiniteError
from ag_jax.training.metrics import MetricWriter, Sums
from ag_jax.training.optimizer import OptimizerConfig, learning_rate_schedule
from ag_jax.training.progress import ProgressLine
from ag_jax.training.state import TrainState, with_params
from ag_jax.training.stopping import Interrupted, StopSignal

LOG_EVERY = 50  # steps
CHECKPOINTS, RESULT = "checkpoints", "result.json"


@dataclasses.dataclass(frozen=True)
class Trial:
    """One point of a task's sweep with one seed, and with one fold of its cross-validation if it has one."""

    task: str
    recipe: Recipe
    learning_rate: float
    batch_size: int
    seed: int
    fold: int | None = None

    @property
    def name(self) -> str:
        """Of its directory, below that of the task."""
        fold = "" if self.fold is None else f"-fold{self.fold}"
        return f"lr{self.learning_rate:g}-bs{self.batch_size}-seed{self.seed}{fold}"


def encoder_config(opened: Pretrained, config: FinetuningConfig, recipe: Recipe) -> EncoderConfig:
    """The checkpoint's encoder with the settings that fine-tuning may change."""
    changed = {name: getattr(config, name) for name in ("dtype", "remat", "attention")}
    changed |= {name: getattr(recipe, name) for name in ("dropout", "attention_dropout")}
    given = {name: value for name, value in changed.items() if value is not None}
    return dataclasses.replace(opened.config, **given)


def make_head(task: Task, style: str, max_length: int) -> Head:
    """The head of a task."""
    low, high = task.span
    return Head(task.name, task.kind, tuple(task.labels), style, low, high, max_length, task.answerable)


def make_plan(trial: Trial, config: FinetuningConfig, opened: Pretrained, data: TaskData) -> program.Plan:
    """What the compiled steps of a trial depend on: the same for all its seeds and learning rates."""
    recipe = trial.recipe
    steps = recipe.total_epochs * buckets.steps(len(data.train.features), trial.batch_size)
    return program.Plan(
        config=encoder_config(opened, config, recipe),
        head=make_head(data.task, opened.style, recipe.max_length),
        optimizer=OptimizerConfig(
            learning_rate=1.0,
            warmup_steps=math.ceil(recipe.warmup_fraction * steps),
            decay=recipe.decay,
            beta1=recipe.beta1,
            beta2=recipe.beta2,
            epsilon=recipe.epsilon,
            weight_decay=recipe.weight_decay,
            clip_norm=recipe.clip_norm,
        ),
        steps=steps,
        batch_size=trial.batch_size,
        microbatches=recipe.microbatches,
        guidance=config.guidance,
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
) -> dict[str, Any]:
    """Train, or go on with, a trial; returns what it writes to `result.json` last of all, whose presence means done.

    Beside it: metrics.jsonl, predictions_SPLIT.jsonl for every split with the best epoch's weights, and with `keep` these
    weights (`ag_jax.interop.finetuned`). Raises NonFiniteError; or Interrupted after a signal, with all whole epochs saved.
    """
    directory = storage.directory(directory)
    if (directory / RESULT).exists():
        tidy(directory, keep)
        return read_result(directory)
    if hosts.count() > 1:
        raise ValueError(
            "fine-tuning runs on one host: start the command on one machine, with as many devices as it has"
        )
    if not len(data.train.features):
        raise ValueError(
            f"task {trial.task} has nothing to learn from: {data.train.examples.source} gave no usable example"
        )
    directory.mkdir(parents=True, exist_ok=True)
    return _Running(trial, config, opened, data, directory, keep).run()


def is_begun(directory: epath.Path) -> bool:
    """Whether a trial's directory holds something worth keeping: a result, or the checkpoint of an epoch."""
    return (directory / RESULT).exists() or any(steps_in(directory / name) for name in (CHECKPOINTS, ASIDE))


def read_result(directory: epath.Path) -> dict[str, Any]:
    """The `result.json` of a trial that is done. Raises ValueError, which names the file, if it is damaged."""
    path = directory / RESULT
    result = read_json(path, dict, {"task": str, "learning_rate": float, "batch_size": int, "seed": int})
    if "failed" not in result:
        counts = dict.fromkeys(("best_epoch", "truncated", "cut_words", "lost", "skipped"), int)
        check_fields(path, result, {"metrics": dict, "epochs": list, "examples": dict, "seconds": float, **counts})
        check_fields(path, result["metrics"], dict.fromkeys(result["metrics"], float))
        check_fields(path, result["examples"], dict.fromkeys(("train", "validation"), int))
    return result


def write_failure(trial: Trial, directory: epath.Path, message: str) -> None:
    """End a trial that cannot go on: a `result.json` with `failed` instead of metrics. Its checkpoints go."""
    point = {"learning_rate": trial.learning_rate, "batch_size": trial.batch_size, "seed": trial.seed}
    result = {"task": trial.task, **point, **({} if trial.fold is None else {"fold": trial.fold}), "failed": message}
    storage.write_whole(directory / RESULT, json.dumps(result, indent=2) + "\n")
    tidy(directory, keep=False)


def tidy(directory: epath.Path, keep: bool) -> None:
    """Remove what a trial that is done needs no more, checkpoints last: a kill in between is made good by the next call."""
    if (directory / CHECKPOINTS).exists():
        if not keep and (directory / finetuned.FOLDER).exists():
            (directory / finetuned.FOLDER).rmtree()
        (directory / CHECKPOINTS).rmtree()


@dataclasses.dataclass
class _Progress:
    """What a checkpoint holds besides the state: a row for each epoch that is done, and which was the best."""

    epochs: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    best_epoch: int = 0  # counted from 1


class _Running:
    """A trial on its way."""

    def __init__(
        self,
        trial: Trial,
        config: FinetuningConfig,
        opened: Pretrained,
        data: TaskData,
        directory: epath.Path,
        keep: bool,
    ):
        self.trial, self.opened, self.data, self.directory, self.keep = trial, opened, data, directory, keep
        self.plan = make_plan(trial, config, opened, data)
        self.program = program.compiled(self.plan)
        self.schedule = learning_rate_schedule(self.plan.optimizer, self.plan.steps)
        self.init_key, self.key = jax.random.split(jax.random.key(trial.seed))
        self.progress = _Progress()
        self.steps_of_epoch = self.plan.steps // trial.recipe.total_epochs

    def run(self) -> dict[str, Any]:
        checkpoints = Checkpoints(self.directory / CHECKPOINTS)
        state = self._start(checkpoints)
        done = len(self.progress.epochs)
        self.writer = MetricWriter(self.directory, int(state.step), tensorboard=False)
        name = f"{self.trial.task} {self.trial.name}"
        self.line = ProgressLine(name, int(state.step), self.plan.steps, self.program.objective.headline.metric)
        try:
            with StopSignal() as stop:
                while not self._is_over():
                    state = self._epoch(state, done, stop)
                    done += 1
                    if not self._is_over():
                        checkpoints.save(state, dataclasses.asdict(self.progress))
                self._predict_others(state)
        finally:
            self.line.close()
            self.writer.close()
            checkpoints.close()
        result = self._result()
        storage.write_whole(self.directory / RESULT, json.dumps(result, indent=2) + "\n")
        tidy(self.directory, self.keep)
        return result

    def _start(self, checkpoints: Checkpoints) -> TrainState:
        found = checkpoints.restore_latest(self.program.abstract)
        if found is not None:
            self.progress = _Progress(**found.progress)
            return found.state
        state = self.program.create(self.init_key, np.float32(self.trial.learning_rate))
        return with_params(state, self.opened.params, self.program.shardings)

    def _is_over(self) -> bool:
        """Whether all epochs are done, or as many as `patience` without a better one."""
        done, recipe = len(self.progress.epochs), self.trial.recipe
        if done >= recipe.total_epochs:
            return True
        return recipe.patience is not None and recipe.patience <= done - self.progress.best_epoch

    def _epoch(self, state: TrainState, epoch: int, stop: StopSignal) -> TrainState:
        """Train one epoch, then measure."""
        began, trial = time.perf_counter(), self.trial
        self.sums: Sums = {}
        self.clock, pending = began, []
        batches = buckets.batches(
            self.data.train.features,
            trial.batch_size,
            max_length=trial.recipe.max_length,
            seed=trial.seed,
            epoch=epoch,
            shuffle=True,
        )
        last = (epoch + 1) * self.steps_of_epoch
        for step, batch in enumerate(batches, epoch * self.steps_of_epoch + 1):
            batch.pop("rows")
            state, metrics = self.program.step(state, sharding.place_batch(batch, self.program.mesh), self.key)
            pending.append(metrics)
            if len(pending) == LOG_EVERY or step == last:
                self._log(step, pending)
                pending = []
            if stopped := stop.reached():
                raise Interrupted(
                    f"{stopped}: stopped in epoch {epoch + 1} of {trial.task}; all whole epochs are saved"
                )
        trained = time.perf_counter() - began
        found = self._predict(state.params, self.data.validation)
        if found.metrics is None:
            raise ValueError(f"the validation split of {trial.task} has no labels to choose an epoch by")
        losses = metric_sums.divide(self.sums)
        row = {"epoch": epoch + 1, "train_loss": losses["task_loss"], "seconds": trained, "metrics": found.metrics}
        self.progress.epochs.append(row)
        metric = self.data.task.metric
        self.writer.write({"step": last, "split": "validation", **found.metrics})
        self.line.say(f"epoch {epoch + 1}: {metric} {found.metrics[metric]:.4f}, train loss {row['train_loss']:.4f}")
        if not self.progress.best_epoch or found.metrics[metric] > self._best()["metrics"][metric]:
            self.progress.best_epoch = epoch + 1
            self._keep(state, found)
        return state

    def _best(self) -> dict[str, Any]:
        return self.progress.epochs[self.progress.best_epoch - 1]

    def _log(self, step: int, pending: list[Any]) -> None:
        """Bring the steps' metrics from the device and write a row. Raises NonFiniteError."""
        sums: Sums = {}
        for at, values in enumerate(jax.device_get(pending), step - len(pending) + 1):
            if bad := metric_sums.not_finite(values):
                raise NonFiniteError(
                    f"{bad[0]} of {self.trial.task} is not finite at step {at} with the learning rate {self.trial.learning_rate:g}. "
                    f"Lower tasks.{self.trial.task}.learning_rates, or set clip_norm or a longer warmup_fraction"
                )
            sums = metric_sums.add(sums, values)
        self.sums = metric_sums.add(self.sums, sums)
        now, values = time.perf_counter(), metric_sums.divide(sums)
        seconds, values["tokens"] = now - self.clock, sums["tokens"][0]
        self.clock = now
        row = {
            "step": step,
            "split": "train",
            "learning_rate": self.trial.learning_rate * float(self.schedule(step - 1)),
            **values,
            "seconds": seconds,
            "tokens_per_second": values["tokens"] / seconds,
        }
        self.writer.write(row)
        self.line.update(row, seconds / len(pending) * (self.plan.steps - step))

    def _predict(self, params: Any, encoded: Encoded) -> Predicted:
        def predict(batch: dict[str, np.ndarray]) -> jax.Array:
            return self.program.predict(params, sharding.place_batch(batch, self.program.mesh))

        recipe = self.trial.recipe
        logits = predicting.logits_of(predict, encoded.features, self.trial.batch_size, recipe.max_length)
        return predicting.predicted(self.data.task, encoded, logits)

    def _keep(self, state: TrainState, found: Predicted) -> None:
        """What the best epoch so far leaves: its predictions, and its weights if they will be wanted."""
        storage.write_whole(self.directory / "predictions_validation.jsonl", found.lines)
        if self.keep or (self.data.others and self.trial.recipe.total_epochs > 1):
            params, beside = separated(state.params)
            tuned = FineTuned(
                self.plan.head, self.plan.config, self.opened.tokenizer, params, self.opened.origin, beside
            )
            finetuned.save(tuned, self.directory / finetuned.FOLDER)

    def _predict_others(self, state: TrainState) -> None:
        """Splits that choose nothing, with the best epoch's weights; their metrics where labels are known."""
        folder, params, self.others = self.directory / finetuned.FOLDER, state.params, {}
        if self.data.others and self.progress.best_epoch < len(self.progress.epochs):
            params = with_params(state, finetuned.load(folder).params, self.program.shardings).params
        for name, encoded in self.data.others.items():
            if len(encoded.examples):
                found = self._predict(params, encoded)
                storage.write_whole(self.directory / f"predictions_{name}.jsonl", found.lines)
                self.others |= {name: found.metrics} if found.metrics else {}

    def _result(self) -> dict[str, Any]:
        trial, data, epochs = self.trial, self.data, self.progress.epochs
        splits = {"train": data.train, "validation": data.validation, **data.others}
        counted = ("truncated", "cut_words", "lost")
        counts = {name: sum(getattr(split.features, name) for split in splits.values()) for name in counted}
        return {
            "task": trial.task,
            "seed": trial.seed,
            "learning_rate": trial.learning_rate,
            "batch_size": trial.batch_size,
            **({} if trial.fold is None else {"fold": trial.fold}),
            "start": self.opened.description,
            "steps": self.steps_of_epoch * len(epochs),
            "planned_steps": self.plan.steps,
            "epochs": epochs,
            "best_epoch": self.progress.best_epoch,
            "metrics": self._best()["metrics"],
            "others": self.others,
            **counts,
            "skipped": sum(split.examples.skipped for split in splits.values()),
            "examples": {name: len(split.examples) for name, split in splits.items()},
            "seconds": sum(row["seconds"] for row in epochs),
        }
