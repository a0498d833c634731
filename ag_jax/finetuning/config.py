"""What is fine-tuned, on what, how often, and by which recipe."""

import dataclasses
import math

from ag_jax.attention.guidance import GuidanceConfig
from ag_jax.data.tasks.rows import SHORTEST
from ag_jax.models.config import DTYPES, IMPLEMENTATIONS, REMATS
from ag_jax.objectives.adversarial.config import AdversarialConfig
from ag_jax.training.optimizer import DECAYS
from ag_jax.training.sharding import MeshConfig

KEPT = ("none", "best")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How one task is trained; every pair of a batch size and a learning rate is a point of its sweep.

    epochs: the most there are, evaluated after each; patience: epochs without a better one after which it stops, 0 for never.
    epochs_factor: train for so many times `epochs`; an arm that trains longer sets it, so that a flag for `epochs` scales all arms.
    warmup_fraction: of the steps; decay: `linear` to 0 or `constant`; clip_norm: 0 for none; weight_decay: on matrices alone.
    max_length: tokens of a row; what is longer is cut as the task's protocol says, and counted.
    dropout, attention_dropout: -1 for those of the checkpoint; microbatches: parts that a batch is computed in.
    train_examples, validation_examples: so many of the split, 0 for all, drawn by a hash of `subset_seed` and the example, so that
        all seeds, points and arms have the same; with folds the former are what is cut into them.
    metric: what epochs and points are chosen by, one of the task's metrics; "" for its own.
    ranking: QNLI as pairs to be ranked (RoBERTa); first_question: of a dialogue of DREAM alone, as the code of ASA does it.
    skip_malformed: leave malformed rows out and count them, instead of refusing the file.
    initial_task: another task of the suite, from whose best weights with the same seed this one starts, such as mnli.
    folds: cross-validation in so many parts, with a single point, for tasks without splits; 0 for none.
    legacy_eval: choose on test data where released code did (`Task.legacy`); such numbers are no estimate of anything.
    adversarial: the attack that it is trained against.
    """

    batch_sizes: tuple[int, ...] = (32,)
    learning_rates: tuple[float, ...] = (2e-5,)
    epochs: int = 3
    epochs_factor: int = 1
    patience: int = 0
    warmup_fraction: float = 0.06
    decay: str = "linear"
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    clip_norm: float = 1.0
    max_length: int = 128
    dropout: float = -1.0
    attention_dropout: float = -1.0
    microbatches: int = 1
    train_examples: int = 0
    validation_examples: int = 0
    subset_seed: int = 0
    metric: str = ""
    ranking: bool = False
    first_question: bool = False
    skip_malformed: bool = False
    initial_task: str = ""
    folds: int = 0
    legacy_eval: bool = False
    adversarial: AdversarialConfig = AdversarialConfig()

    def __post_init__(self):
        self._check_sweep()
        for name, least in (("epochs", 1), ("epochs_factor", 1), ("max_length", SHORTEST), ("microbatches", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        for name in ("patience", "train_examples", "validation_examples"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if not 0 <= self.subset_seed < 2**31:
            raise ValueError(f"subset_seed must be an integer in 0..{2**31 - 1}, got {self.subset_seed}")
        for name in ("weight_decay", "clip_norm"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a finite number of at least 0, got {getattr(self, name)}")
        for name in ("warmup_fraction", "beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}")
        for name in ("dropout", "attention_dropout"):
            if getattr(self, name) != -1 and not 0 <= getattr(self, name) < 1:
                raise ValueError(
                    f"{name} must be in [0, 1), or -1 for that of the checkpoint, got {getattr(self, name)}"
                )
        if not 0 < self.epsilon < math.inf:
            raise ValueError(f"epsilon must be above 0, got {self.epsilon}")
        if self.decay not in DECAYS:
            raise ValueError(f"decay must be one of {', '.join(DECAYS)}, got {self.decay!r}")
        if self.folds < 0 or self.folds in (1, 2):
            raise ValueError(
                f"folds must be at least 3 (to train, to choose, to test), or 0 for none, got {self.folds}"
            )
        if self.folds and len(self.points) > 1:
            raise ValueError(
                f"folds go with one learning rate and one batch size, got {len(self.points)} points: the best of several would "
                "be chosen on examples that other folds test"
            )
        if self.folds and self.validation_examples:
            raise ValueError(
                f"validation_examples must be 0 with folds, got {self.validation_examples} with folds={self.folds}: what chooses is "
                "a whole fold of the train split; train_examples makes all folds smaller"
            )

    def _check_sweep(self) -> None:
        for name in ("batch_sizes", "learning_rates"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{name} must be different numbers, at least one, got {values}")
        for batch_size in self.batch_sizes:
            if batch_size < 1 or batch_size % max(self.microbatches, 1):
                raise ValueError(
                    f"batch_sizes must be at least 1 and multiples of microbatches={self.microbatches}, got {self.batch_sizes}"
                )
        if not all(0 < rate < math.inf for rate in self.learning_rates):
            raise ValueError(f"learning_rates must be above 0, got {self.learning_rates}")

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

    checkpoint: a run directory, or a directory of Hugging Face; step: of a run's checkpoint, -1 for the newest.
    fresh: keep its architecture and tokenizer, but start from random weights.
    data: a directory with the tasks' files, "" for TensorFlow Datasets.
    seeds: every point of every sweep is trained once with each.
    arms: values of the config file's `arm` argument for `compare`, comma-separated, the baseline first.
    keep: weights of each task's and seed's best trial (`best`), or of none.
    dtype, remat, attention: as in the model's settings; "" for those of the checkpoint.
    guidance: of attention, while fine-tuning.
    """

    title: str = "Fine-tuning"
    checkpoint: str = ""
    step: int = -1
    fresh: bool = False
    data: str = ""
    tasks: dict[str, Recipe] = dataclasses.field(default_factory=dict)
    seeds: tuple[int, ...] = (0,)
    arms: str = ""
    keep: str = "none"
    dtype: str = ""
    remat: str = ""
    attention: str = ""
    guidance: GuidanceConfig = GuidanceConfig()
    mesh: MeshConfig = MeshConfig()

    def __post_init__(self):
        if not self.tasks:
            raise ValueError(
                "tasks must name at least one task, such as config.tasks.sst2 = configuration.default(Recipe)"
            )
        if not self.checkpoint:
            raise ValueError(
                "checkpoint must be a run directory or a Hugging Face directory, got none: FILE.py:checkpoint=DIR"
            )
        if self.step < -1:
            raise ValueError(f"step must be that of a checkpoint, or -1 for the newest, got {self.step}")
        if (
            not self.seeds
            or len(set(self.seeds)) < len(self.seeds)
            or not all(0 <= seed < 2**31 for seed in self.seeds)
        ):
            raise ValueError(f"seeds must be different integers in 0..{2**31 - 1}, at least one, got {self.seeds}")
        for name, choices in (
            ("keep", KEPT),
            ("dtype", ("", *DTYPES)),
            ("remat", ("", *REMATS)),
            ("attention", ("", *IMPLEMENTATIONS)),
        ):
            if getattr(self, name) not in choices:
                shown = ", ".join(choice or '""' for choice in choices)
                raise ValueError(f"{name} must be one of {shown}, got {getattr(self, name)!r}")
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
