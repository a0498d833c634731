"""How long and how a run is trained, and what it leaves behind."""

import dataclasses
from typing import Annotated, ClassVar


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """How long and how a run is trained.

    steps: optimizer updates; batch_size: rows of an update; microbatches: parts that it is computed in, one by one.
    log_every, evaluate_every, checkpoint_every: in steps; evaluate_every=None evaluates only at the end.
    keep_last: how many of the newest checkpoints stay; keep_every: also those of every so many steps, None for none.
    milestones: fractions of the run at which checkpoints stay, too.
    step_timeout: seconds without progress after which the program ends and says where it hung; None for never.
    initial_weights: directory of a run whose newest parameters this run starts from; None for randomly initialised ones.
    tensorboard: whether metrics go to TensorBoard, too; wandb: the Weights & Biases project that they go to, None for none.
    """

    steps: Annotated[int, ">= 1"] = 100_000
    batch_size: Annotated[int, ">= 1"] = 84
    microbatches: Annotated[int, ">= 1"] = 1
    log_every: Annotated[int, ">= 1"] = 100
    evaluate_every: Annotated[int, ">= 1"] | None = 5_000
    checkpoint_every: Annotated[int, ">= 1"] = 1_000
    keep_last: Annotated[int, ">= 1"] = 2
    keep_every: Annotated[int, ">= 1"] | None = None
    milestones: tuple[Annotated[float, ">= 0", "<= 1"], ...] = (0.0, 0.01, 1.0)
    step_timeout: Annotated[int, ">= 1"] | None = 1800
    initial_weights: str | None = None
    tensorboard: bool = True
    wandb: str | None = None

    EARLIER_NONE: ClassVar = {
        "evaluate_every": 0,
        "keep_every": 0,
        "step_timeout": 0,
        "initial_weights": "",
        "wandb": "",
    }

    def __post_init__(self):
        if self.microbatches and self.batch_size % self.microbatches:
            raise ValueError(
                f"training.microbatches={self.microbatches} must divide training.batch_size={self.batch_size}"
            )

    def milestone_steps(self) -> tuple[int, ...]:
        """The steps whose checkpoints stay for good."""
        return tuple(sorted({round(fraction * self.steps) for fraction in self.milestones}))
