"""What is fine-tuned, on what, how often, and by which recipe."""

import dataclasses
from typing import Annotated, ClassVar, Literal

from ag_jax.attention.guidance import GuidanceConfig
from ag_jax.data.tasks.rows import SHORTEST
from ag_jax.models.config import DType, Implementation, Remat
from ag_jax.objectives.adversarial.config import AdversarialConfig
from ag_jax.training.optimizer import Decay
from ag_jax.training.sharding import MeshConfig


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How one task is trained; every pair of a batch size and a learning rate is a point of its sweep.

    epochs: the most there are, evaluated after each; patience: epochs without a better one after which it stops, None for never.
    epochs_factor: train for so many times `epochs`; an arm that trains longer sets it, so that a flag for `epochs` scales all arms.
    warmup_fraction: of the steps; decay: `linear` to 0 or `constant`; clip_norm: None for none; weight_decay: on matrices alone.
    max_length: tokens of a row; what is longer is cut as the task's protocol says, and counted.
    dropout, attention_dropout: None for those of the checkpoint; microbatches: parts that a batch is computed in.
    train_examples, validation_examples: so many of the split, None for all, drawn by a hash of `subset_seed` and the example, so that
        all seeds, points and arms have the same; with folds the former are what is cut into them.
    metric: what epochs and points are chosen by, one of the task's metrics; None for its own.
    ranking: QNLI as pairs to be ranked (RoBERTa); first_question: of a dialogue of DREAM alone, as the code of ASA does it.
    skip_malformed: leave malformed rows out and count them, instead of refusing the file.
    initial_task: another task of the suite, from whose best weights with the same seed this one starts, such as mnli.
    folds: cross-validation in so many parts, with a single point, for tasks without splits; None for none.
    legacy_eval: choose on test data where released code did (`Task.legacy`); such numbers are no estimate of anything.
    adversarial: the attack that it is trained against.
    """

    batch_sizes: tuple[Annotated[int, ">= 1"], ...] = (32,)
    learning_rates: tuple[Annotated[float, "> 0"], ...] = (2e-5,)
    epochs: Annotated[int, ">= 1"] = 3
    epochs_factor: Annotated[int, ">= 1"] = 1
    patience: Annotated[int, ">= 1"] | None = None
    warmup_fraction: Annotated[float, ">= 0", "< 1"] = 0.06
    decay: Decay = "linear"
    weight_decay: Annotated[float, ">= 0"] = 0.01
    beta1: Annotated[float, ">= 0", "< 1"] = 0.9
    beta2: Annotated[float, ">= 0", "< 1"] = 0.999
    epsilon: Annotated[float, "> 0"] = 1e-8
    clip_norm: Annotated[float, "> 0"] | None = 1.0
    max_length: Annotated[int, f">= {SHORTEST}"] = 128
    dropout: Annotated[float, ">= 0", "< 1"] | None = None
    attention_dropout: Annotated[float, ">= 0", "< 1"] | None = None
    microbatches: Annotated[int, ">= 1"] = 1
    train_examples: Annotated[int, ">= 1"] | None = None
    validation_examples: Annotated[int, ">= 1"] | None = None
    subset_seed: Annotated[int, ">= 0"] = 0
    metric: str | None = None
    ranking: bool = False
    first_question: bool = False
    skip_malformed: bool = False
    initial_task: str | None = None
    folds: Annotated[int, ">= 3"] | None = None  # one to train on, one to choose by, one to test
    legacy_eval: bool = False
    adversarial: AdversarialConfig = AdversarialConfig()

    EARLIER_NONE: ClassVar = {
        "patience": 0,
        "clip_norm": 0.0,
        "dropout": -1.0,
        "attention_dropout": -1.0,
        "train_examples": 0,
        "validation_examples": 0,
        "metric": "",
        "initial_task": "",
        "folds": 0,
    }

    def __post_init__(self):
        self._check_sweep()
        if self.folds and len(self.points) > 1:
            raise ValueError(
                f"folds go with one learning rate and one batch size, got {len(self.points)} points: the best of several would "
                "be chosen on examples that other folds test"
            )
        if self.folds and self.validation_examples:
            raise ValueError(
                f"validation_examples must be none with folds, got {self.validation_examples} with folds={self.folds}: what chooses is "
                "a whole fold of the train split; train_examples makes all folds smaller"
            )

    def _check_sweep(self) -> None:
        for name in ("batch_sizes", "learning_rates"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{name} must be different numbers, at least one, got {values}")
        for batch_size in self.batch_sizes:
            if self.microbatches and batch_size % self.microbatches:
                raise ValueError(
                    f"batch_sizes must be multiples of microbatches={self.microbatches}, got {self.batch_sizes}"
                )

    @property
    def total_epochs(self) -> int:
        """The most epochs of a trial: `epochs` times `epochs_factor`."""
        return self.epochs * self.epochs_factor

    @property
    def points(self) -> tuple[tuple[float, int], ...]:
        """(learning rate, batch size) of every point of the sweep."""
        return tuple((rate, batch_size) for batch_size in self.batch_sizes for rate in self.learning_rates)


@dataclasses.dataclass(frozen=True)
class FinetuningConfig:
    """A suite: one checkpoint, its tasks each with a recipe, and seeds.

    checkpoint: a run directory, or a directory of Hugging Face; step: of a run's checkpoint, None for the newest.
    fresh: keep its architecture and tokenizer, but start from random weights.
    data: a directory with the tasks' files, None for TensorFlow Datasets.
    seeds: every point of every sweep is trained once with each.
    arms: values of the config file's `arm` argument for `compare`, comma-separated, the baseline first.
    keep: weights of each task's and seed's best trial (`best`), or of none.
    dtype, remat, attention: as in the model's settings; None for those of the checkpoint.
    guidance: of attention, while fine-tuning.
    checkpoint_every: steps between two checkpoints of a trial, from which it resumes; at most those of an epoch.
    step_timeout, tensorboard, wandb: as in the settings of training.
    """

    title: str = "Fine-tuning"
    checkpoint: str | None = None
    step: Annotated[int, ">= 0"] | None = None
    fresh: bool = False
    data: str | None = None
    tasks: dict[str, Recipe] = dataclasses.field(default_factory=dict)
    seeds: tuple[Annotated[int, ">= 0"], ...] = (0,)
    arms: str | None = None
    keep: Literal["none", "best"] = "none"
    dtype: DType | None = None
    remat: Remat | None = None
    attention: Implementation | None = None
    guidance: GuidanceConfig = GuidanceConfig()
    mesh: MeshConfig = MeshConfig()
    checkpoint_every: Annotated[int, ">= 1"] = 1_000
    step_timeout: Annotated[int, ">= 1"] | None = 1800
    tensorboard: bool = True
    wandb: str | None = None

    EARLIER_NONE: ClassVar = {
        "checkpoint": "",
        "step": -1,
        "data": "",
        "arms": "",
        "dtype": "",
        "remat": "",
        "attention": "",
    }

    def __post_init__(self):
        if not self.tasks:
            raise ValueError(
                "tasks must name at least one task, such as config.tasks.sst2 = config_reader.default(Recipe)"
            )
        if not self.checkpoint:
            raise ValueError(
                "checkpoint must be a run directory or a Hugging Face directory, got none: FILE.py:checkpoint=DIR"
            )
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds must be different integers, at least one, got {self.seeds}")
        self._check_tasks()

    def _check_tasks(self) -> None:
        for name, recipe in self.tasks.items():
            first, path = recipe.initial_task, f"tasks.{name}.initial_task"
            if first and first not in self.tasks:
                raise ValueError(f"{path} must be another task of the suite ({', '.join(self.tasks)}), got {first!r}")
            if first and (first == name or self.tasks[first].initial_task):
                raise ValueError(f"{path} must be a task that starts from the checkpoint itself, got {first!r}")
            if first and (self.tasks[first].folds or recipe.folds):
                raise ValueError(f"{path} must not be between tasks with folds, got {first!r}")

    @property
    def in_effect(self) -> "FinetuningConfig":
        """The same suite, with the settings of guidance and attacks that are not read at their defaults."""
        tasks = {
            name: dataclasses.replace(recipe, adversarial=recipe.adversarial.in_effect)
            for name, recipe in self.tasks.items()
        }
        return dataclasses.replace(self, tasks=tasks, guidance=self.guidance.in_effect)

    @property
    def ordered_tasks(self) -> tuple[str, ...]:
        """The tasks in the order in which they can be trained: those that others start from before these."""
        return tuple(sorted(self.tasks, key=lambda name: bool(self.tasks[name].initial_task)))

    def keeps_weights(self, task: str) -> bool:
        """Whether the best weights of a task are kept: if all are, or if another task starts from them."""
        return self.keep == "best" or any(recipe.initial_task == task for recipe in self.tasks.values())
