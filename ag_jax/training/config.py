"""How long and how a run is trained, and what it leaves behind."""

import dataclasses
from typing import Annotated, ClassVar


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """Length of a training run, its batches, and when it logs, evaluates and saves.

    steps: optimizer updates.
    batch_size: sequences of an update.
    microbatches: parts that a batch is computed in, one after the other, to save memory.
    log_every: steps between two rows of metrics.
    evaluate_every: steps between two evaluations on held-out text; None evaluates only at the end.
    checkpoint_every: steps between two checkpoints.
    keep_last: number of the newest checkpoints that are kept.
    keep_every: keep the checkpoints of all multiples of so many steps, too; None keeps no others.
    milestones: fractions of the run at which checkpoints are kept, too.
    step_timeout: seconds without progress after which the program ends and says where it hung; None waits without end.
    initial_weights: directory of a run whose newest parameters this run starts from; None for randomly initialised
        ones.
    tensorboard: write TensorBoard events, too.
    wandb: project at Weights & Biases that metrics are sent to; None sends nothing.
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
