"""The settings of fine-tuning: a suite of tasks with a recipe each, the checkpoint and the seeds."""

import dataclasses
import itertools
import math
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

from ag_jax.attention.config import GuidanceConfig
from ag_jax.data import local
from ag_jax.data.tasks.custom import CustomTask
from ag_jax.data.tasks.rows import SHORTEST
from ag_jax.models.config import DType, Implementation, Pooling, Remat
from ag_jax.objectives.adversarial.config import AdversarialConfig
from ag_jax.training.config import Decay, MeshConfig


@dataclasses.dataclass(frozen=True)
class SweepConfig:
    """Values to try for further settings of a recipe, beside its learning rates and batch sizes.

    Every combination is a point of the sweep. Values that are listed here take the place of the recipe's setting of the
    same name, and stand in the names of the directories of trials. An empty list leaves the setting to the recipe. A
    flag without a value empties a list, such as `--config.tasks.rte.sweep.dropout=`.

    dropout: dropout rates of embeddings and layer outputs to try, instead of the recipe's own.
    attention_dropout: dropout rates of attention probabilities to try, instead of the recipe's own.
    head_dropout: dropout rates of the task's head to try, instead of the recipe's own.
    weight_decay: coefficients of weight decay to try, instead of the recipe's own.
    warmup_steps: numbers of warm-up steps to try, instead of the recipe's own or a fraction of the steps.
    """

    # Trials run in the order of these fields, the last of which changes first. Trials that differ in the warm-up alone
    # share a compiled program, of which only a few are kept.
    dropout: tuple[Annotated[float, Ge(0), Lt(1)], ...] = ()
    attention_dropout: tuple[Annotated[float, Ge(0), Lt(1)], ...] = ()
    head_dropout: tuple[Annotated[float, Ge(0), Lt(1)], ...] = ()
    weight_decay: tuple[Annotated[float, Ge(0)], ...] = ()
    warmup_steps: tuple[Annotated[int, Ge(0)], ...] = ()

    @property
    def values(self) -> dict[str, tuple[float, ...]]:
        """The values to try for each swept setting: {name: values}."""
        return {field.name: values for field in dataclasses.fields(self) if (values := getattr(self, field.name))}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Settings of training on one task, and values to try for some of them; every combination is a point of a sweep.

    batch_sizes: batch sizes of the sweep, in examples.
    learning_rates: peak learning rates of the sweep.
    sweep: values of further settings that are tried.
    epochs: most passes over the training examples.
    epochs_factor: train for so many times `epochs`; an arm that trains longer sets it, so that a flag for `epochs`
        scales all arms.
    scored_epoch: `best` evaluates after each epoch, and the epoch with the best evaluation counts; `last` evaluates
        once, after the last epoch, so that no epoch is chosen on the examples that give the score.
    patience: epochs without a better evaluation after which training stops; None trains all epochs.
    warmup_fraction: share of the steps in which the learning rate rises to its peak.
    warmup_steps: number of these steps, instead of `warmup_fraction`; None takes the fraction.
    decay: `linear` lowers the learning rate to 0 at the last step, `constant` keeps it.
    weight_decay: coefficient of weight decay, on matrices only.
    beta1: decay rate of the gradient's running mean.
    beta2: decay rate of the squared gradient's running mean.
    epsilon: added to the denominator of an update.
    clip_norm: largest global norm of the gradient; None does not clip it.
    max_length: most tokens of a sequence; longer ones are cut as the task's protocol says, and counted.
    dropout: dropout rate of embeddings and layer outputs; None takes the checkpoint's.
    attention_dropout: dropout rate of attention probabilities; None takes the checkpoint's.
    head_dropout: dropout rate of the task's head; None takes that of the encoder's layers, or the one that an imported
        model states. The heads for phrases (`ranking` of WNLI and WSC) have no dropout; those for spans, such as
        SQuAD's, have one only in models with the layers of ModernBERT. In transformers, multiple choice (RoBERTa and
        ELECTRA) and tagging (DeBERTa) have other rates.
    pooling: what a head for texts reads, the hidden state of the `first` token or the `mean` over all tokens; None
        takes what an imported ModernBERT states, and otherwise the first token. Of models with `mean`, only those of
        ModernBERT can be exported.
    microbatches: parts that a batch is computed in, one after the other, to save memory.
    train_examples: train on so many examples, drawn by a hash of `subset_seed` and their position in the split, so
        that all seeds, points and arms have the same; with `folds` these are divided into folds. None takes all.
    validation_examples: choose by so many validation examples, drawn in the same way; None takes all.
    subset_seed: seed of the subsets of examples.
    metric: metric by which epochs and points are chosen, one of the task's, or the import path `module.function` of a
        custom one; None takes the task's primary metric.
    ranking: rank candidates as RoBERTa does: in QNLI sentences for a question; in WNLI and WSC phrases for a pronoun,
        by the checkpoint's head for masked words.
    answerability: train a classifier of whether a question has an answer beside the span, and let the classifier decide
        (RoBERTa); for tasks with questions that have none, such as squad2.
    first_question: read only the first question of a dialogue (DREAM), as the code of adversarial self-attention does.
    skip_malformed: leave malformed rows out and count them, instead of rejecting the file.
    initial_task: another task of the suite, from whose best weights with the same seed this one starts, such as mnli;
        None starts from the checkpoint.
    folds: cross-validation with so many folds and a single point, for tasks without splits; None uses the task's
        splits.
    legacy_eval: choose by test data where released code did (`Task.legacy`); such numbers estimate nothing.
    adversarial: the attack that the model is trained against.
    custom: the files and columns of a task that is not in the catalogue.
    """

    batch_sizes: tuple[Annotated[int, Ge(1), Le(1048576)], ...] = (32,)
    learning_rates: tuple[Annotated[float, Ge(1e-12)], ...] = (2e-5,)
    sweep: SweepConfig = SweepConfig()
    epochs: Annotated[int, Ge(1), Le(1000000)] = 3
    epochs_factor: Annotated[int, Ge(1), Le(1000)] = 1
    scored_epoch: Literal["best", "last"] = "best"
    patience: Annotated[int, Ge(1)] | None = None
    warmup_fraction: Annotated[float, Ge(0), Lt(1)] = 0.06
    warmup_steps: Annotated[int, Ge(0)] | None = None
    decay: Decay = "linear"
    weight_decay: Annotated[float, Ge(0)] = 0.01
    beta1: Annotated[float, Ge(0), Lt(1)] = 0.9
    beta2: Annotated[float, Ge(0), Lt(1)] = 0.999
    epsilon: Annotated[float, Gt(0)] = 1e-8
    clip_norm: Annotated[float, Gt(0)] | None = 1.0
    max_length: Annotated[int, Ge(SHORTEST), Le(1048576)] = 128
    dropout: Annotated[float, Ge(0), Lt(1)] | None = None
    attention_dropout: Annotated[float, Ge(0), Lt(1)] | None = None
    head_dropout: Annotated[float, Ge(0), Lt(1)] | None = None
    pooling: Pooling | None = None
    microbatches: Annotated[int, Ge(1), Le(1048576)] = 1
    train_examples: Annotated[int, Ge(1)] | None = None
    validation_examples: Annotated[int, Ge(1)] | None = None
    subset_seed: Annotated[int, Ge(0)] = 0
    metric: str | None = None
    ranking: bool = False
    answerability: bool = False
    first_question: bool = False
    skip_malformed: bool = False
    initial_task: str | None = None
    folds: Annotated[int, Ge(3), Le(1000)] | None = None  # one to train on, one to choose by, one to test
    legacy_eval: bool = False
    adversarial: AdversarialConfig = AdversarialConfig()
    custom: CustomTask = CustomTask()

    def __post_init__(self):
        self._check_sweep()
        if self.scored_epoch == "last" and self.patience:
            raise ValueError(
                f"patience must be none with scored_epoch=last, got {self.patience}: without evaluations in between "
                "nothing says when to stop"
            )
        if self.folds and len(self.points) > 1:
            raise ValueError(
                f"with folds, a recipe must have a single point (a value of each setting that is tried), got "
                f"{len(self.points)} points, of which the best would be chosen on examples that other folds test; "
                "give one learning rate, one batch size, and at most one value of each setting in sweep"
            )
        if self.folds and self.validation_examples:
            raise ValueError(
                f"validation_examples must be none with folds, got {self.validation_examples} with "
                f"folds={self.folds}: with folds, the validation split is a whole fold; set train_examples to make "
                "all folds smaller"
            )

    def _check_sweep(self) -> None:
        for name in ("batch_sizes", "learning_rates"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{name} must be one or more numbers without repetition, got {values}")
        for name, values in {
            "learning_rates": self.learning_rates,
            **{f"sweep.{name}": values for name, values in self.sweep.values.items()},
        }.items():
            if len(set(map(in_name, values))) < len(values):
                raise ValueError(
                    f"{name} must differ in their first six digits, which name the directories of trials, got "
                    f"{values}: leave one of them out"
                )
        for batch_size in self.batch_sizes:
            if self.microbatches and batch_size % self.microbatches:
                raise ValueError(
                    f"batch_sizes must be multiples of microbatches={self.microbatches}, got {self.batch_sizes}"
                )

    @property
    def total_epochs(self) -> int:
        """The maximum number of epochs of a trial, `epochs` times `epochs_factor`; `patience` may end it earlier."""
        return self.epochs * self.epochs_factor

    def warmup_of(self, steps: int) -> int:
        """Return the number of warm-up steps of a trial that has `steps` training steps.

        Raises ValueError if the learning rate would not reach its peak.
        """
        if self.warmup_steps is None:  # the rate is 0 in the first step of a warm-up, so a trial of one step has none
            return min(math.ceil(self.warmup_fraction * steps), steps - 1)
        if self.warmup_steps >= steps:
            setting, remedy = "warmup_steps", "lower it, or set it to none to use warmup_fraction"
            if self.sweep.warmup_steps:
                setting, remedy = "sweep.warmup_steps", "leave this value out of the sweep"
            raise ValueError(
                f"{setting}={self.warmup_steps} must be fewer than the {steps} steps of a trial, or the learning "
                f"rate never reaches its peak: {remedy}"
            )
        return self.warmup_steps

    @property
    def points(self) -> tuple[tuple[float, int, dict[str, Any]], ...]:
        """(learning rate, batch size, {other swept setting: value}) of every point of the sweep."""
        swept = self.sweep.values
        return tuple(
            (rate, batch_size, dict(zip(swept, values, strict=True)))
            for batch_size in self.batch_sizes
            for values in itertools.product(*swept.values())
            for rate in self.learning_rates
        )

    @property
    def in_effect(self) -> "Recipe":
        """This recipe with all settings that have no effect reset to their defaults.

        These are settings of an attack that is not used, and those in whose place `sweep` has values.
        """
        unused: dict[str, Any] = {name: getattr(Recipe(), name) for name in self.sweep.values}
        return dataclasses.replace(self, **unused, adversarial=self.adversarial.in_effect)


def point_settings(learning_rate: float, batch_size: int, swept: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a point of a sweep, {name: value}, as `result.json` and `report.json` store them.

    swept: values of the settings in the recipe's `sweep`; if there are none, the key is left out.
    """
    return {"learning_rate": learning_rate, "batch_size": batch_size, **({"swept": swept} if swept else {})}


def in_name(value: float) -> str:
    """Format the value of a swept setting for a trial's directory name: floats with up to six significant digits."""
    return str(value) if isinstance(value, int) else f"{value:g}"


@dataclasses.dataclass(frozen=True)
class FinetuningConfig:
    """Settings of a suite: the checkpoint to fine-tune, its tasks with a recipe each, and the seeds.

    title: title of the report.
    checkpoint: run directory or Hugging Face directory of the model to fine-tune.
    step: step of a run's checkpoint; None takes the newest.
    fresh: use only architecture and tokenizer of the checkpoint, with randomly initialised weights.
    data: folder with the tasks' files; None reads TensorFlow Datasets.
    tasks: a recipe for each task, such as tasks.sst2.epochs.
    seeds: seeds that every point of every sweep is trained with.
    arms: values of the config file's argument `arm` with commas, for `ag-jax compare`, the baseline first.
    keep: keep the weights of each task's and seed's best trial so far (`best`), or none.
    dtype: type of the computation; None takes the checkpoint's.
    remat: what the backward pass recomputes, as `model.remat` in pre-training; None takes the checkpoint's.
    attention: implementation of attention, as `model.attention` in pre-training; None takes the checkpoint's.
    guidance: guidance of attention while fine-tuning.
    checkpoint_every: steps between two checkpoints of a trial, from which it resumes; at most those of an epoch.
    step_timeout: seconds without progress after which the program ends and says where it hung; None waits without end.
    tensorboard: write TensorBoard events, too.
    wandb: project at Weights & Biases that metrics are sent to; None sends nothing.
    """

    title: str = "Fine-tuning"
    checkpoint: str | None = None
    step: Annotated[int, Ge(0)] | None = None
    fresh: bool = False
    data: str | None = None
    tasks: dict[str, Recipe] = dataclasses.field(default_factory=dict)
    seeds: tuple[Annotated[int, Ge(0)], ...] = (0,)
    arms: str | None = None
    keep: Literal["none", "best"] = "none"
    dtype: DType | None = None
    remat: Remat | None = None
    attention: Implementation | None = None
    guidance: GuidanceConfig = GuidanceConfig()
    mesh: MeshConfig = MeshConfig()
    checkpoint_every: Annotated[int, Ge(1)] = 1_000
    step_timeout: Annotated[int, Ge(1)] | None = 1800
    tensorboard: bool = True
    wandb: str | None = None

    def __post_init__(self):
        if not self.tasks:
            raise ValueError("tasks must name at least one task, such as config.tasks.sst2 = schema.default(Recipe)")
        if not self.checkpoint:
            raise ValueError(
                "checkpoint must be a run directory or a Hugging Face directory, got none; name one behind the config "
                "file, as in --config=FILE.py:checkpoint=CHECKPOINT"
            )
        local.check("data", self.data)
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds must be one or more integers without repetition, got {self.seeds}")
        if self.guidance.alpha_rule != "value":
            raise ValueError(
                f"guidance.alpha_rule={self.guidance.alpha_rule} is for pre-training only: set guidance.alpha instead"
            )
        self._check_bias()
        if settings := [name for name in ("decoder_heads", "cross_heads") if getattr(self.guidance, name)]:
            raise ValueError(
                f"guidance.{settings[0]} is for models with a decoder, which are not fine-tuned: remove it"
            )
        self._check_tasks()

    def _check_bias(self) -> None:
        """Raise ValueError if a model is scored before the attention bias of `guidance.mode=bias` has decayed to 0.

        The pattern is added to attention scores in training only, so scores are of the model that was trained where
        nothing is added any more: after the last step, with a schedule that ends at 0.
        """
        if self.guidance.mode != "bias":
            return
        if self.guidance.schedule == "constant":
            raise ValueError(
                "guidance.mode=bias adds the pattern to attention scores in training only: with "
                "guidance.schedule=constant the model that is scored and saved would attend differently than the one "
                "that was trained. Set guidance.schedule=linear or hold_then_linear, which end at 0"
            )
        if early := [name for name, recipe in self.tasks.items() if recipe.scored_epoch != "last"]:
            raise ValueError(
                "guidance.mode=bias adds the pattern to attention scores in training only, and only after the last "
                f"step nothing is added any more: set tasks.{early[0]}.scored_epoch=last, because in earlier epochs "
                "the model that is scored attends differently than the one that is trained"
            )

    def _check_tasks(self) -> None:
        for name, recipe in self.tasks.items():
            first, path = recipe.initial_task, f"tasks.{name}.initial_task"
            if first and first not in self.tasks:
                raise ValueError(f"{path} must be another task of the suite ({', '.join(self.tasks)}), got {first!r}")
            if first and (first == name or self.tasks[first].initial_task):
                raise ValueError(f"{path} must be a task that starts from the checkpoint itself, got {first!r}")
            if first and (self.tasks[first].folds or recipe.folds):
                raise ValueError(
                    f"{path} must be none if {name} or {first} has folds, got {first!r}: set it to none, or remove "
                    "the folds"
                )

    @property
    def in_effect(self) -> "FinetuningConfig":
        """This config with all settings of guidance and of recipes that have no effect reset to their defaults."""
        tasks = {name: recipe.in_effect for name, recipe in self.tasks.items()}
        return dataclasses.replace(self, tasks=tasks, guidance=self.guidance.in_effect)

    @property
    def ordered_tasks(self) -> tuple[str, ...]:
        """Names of the tasks in the order of training: a task comes before the tasks that start from its weights."""
        return tuple(sorted(self.tasks, key=lambda name: bool(self.tasks[name].initial_task)))

    def keeps_weights(self, task: str) -> bool:
        """Return whether the best weights of a task are saved: with `keep=best`, or if another task needs them."""
        return self.keep == "best" or any(recipe.initial_task == task for recipe in self.tasks.values())
