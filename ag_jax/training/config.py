"""Settings of the training loop: length, batches, logging, evaluations and checkpoints."""

import dataclasses
from typing import Annotated, ClassVar


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """Length of a training run, its batches, and when it logs, evaluates and saves.

    steps: number of optimizer updates.
    time_limit: seconds of training over all restarts, with compilation and without evaluations, after which the run
        ends before its last step; its schedules stay those of all steps. None trains all steps.
    batch_size: number of sequences in an update.
    microbatches: number of parts in which a batch is computed, one after the other, to save memory.
    log_every: steps between two rows of metrics.
    evaluate_every: steps between two evaluations on held-out text; None evaluates only at the end.
    checkpoint_every: steps between two checkpoints.
    keep_last: number of the newest checkpoints that are kept.
    keep_every: checkpoints at multiples of this many steps are kept, too; None keeps no others.
    milestones: fractions of the run at which checkpoints are saved and kept, too.
    step_timeout: seconds without progress after which the program reports where it hangs and ends; None waits forever.
    initial_weights: directory of a run whose newest parameters this run starts from; None starts from randomly
        initialised parameters.
    tensorboard: whether metrics are also written as TensorBoard events.
    wandb: Weights & Biases project to which metrics are sent; None sends nothing.
    """

    steps: Annotated[int, ">= 1"] = 100_000
    time_limit: Annotated[int, ">= 1"] | None = None
    batch_size: Annotated[int, ">= 1"] = 84
    microbatches: Annotated[int, ">= 1"] = 1
    log_every: Annotated[int, ">= 1"] = 100
    evaluate_every: Annotated[int, ">= 1"] | None = 5_000
    checkpoint_every: Annotated[int, ">= 1"] = 1_000
    keep_last: Annotated[int, ">= 1"] = 2
    keep_every: Annotated[int, ">= 1"] | None = None
    milestones: tuple[Annotated[float, ">= 0", "<= 1"], ...] = (0.0, 0.1, 1.0)
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
        """Return the steps at the fractions `milestones`, whose checkpoints are never deleted."""
        return tuple(sorted({round(fraction * self.steps) for fraction in self.milestones}))
