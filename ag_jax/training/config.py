"""How long and how a run is trained, and what it leaves behind."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """How long and how a run is trained.

    steps: optimizer updates; batch_size: rows of an update; microbatches: parts that it is computed in, one by one.
    log_every, evaluate_every, checkpoint_every: in steps; evaluate_every=0 evaluates at the end alone.
    keep_last, keep_every, milestones: which checkpoints stay; milestones are fractions of the run.
    step_timeout: seconds without progress after which the program ends, with a word on where it hung; 0 for never.
    initial_weights: directory of a run whose newest parameters this one starts from; "" for fresh ones.
    tensorboard, wandb: where metrics go besides metrics.jsonl; wandb is the name of a project, empty for none.
    """

    steps: int = 100_000
    batch_size: int = 84
    microbatches: int = 1
    log_every: int = 100
    evaluate_every: int = 5_000
    checkpoint_every: int = 1_000
    keep_last: int = 2
    keep_every: int = 0
    milestones: tuple[float, ...] = (0.0, 0.01, 1.0)
    step_timeout: int = 1800
    initial_weights: str = ""
    tensorboard: bool = True
    wandb: str = ""

    def __post_init__(self):
        for name in ("steps", "batch_size", "microbatches", "log_every", "checkpoint_every", "keep_last"):
            if getattr(self, name) < 1:
                raise ValueError(f"training.{name} must be at least 1, got {getattr(self, name)}")
        for name in ("evaluate_every", "keep_every", "step_timeout"):
            if getattr(self, name) < 0:
                raise ValueError(f"training.{name} must be at least 0, got {getattr(self, name)}")
        if self.batch_size % self.microbatches:
            raise ValueError(
                f"training.microbatches={self.microbatches} must divide training.batch_size={self.batch_size}"
            )
        if not all(0.0 <= fraction <= 1.0 for fraction in self.milestones):
            raise ValueError(f"training.milestones are fractions of the run in [0, 1], got {self.milestones}")

    def milestone_steps(self) -> tuple[int, ...]:
        """The steps whose checkpoints stay for good."""
        return tuple(sorted({round(fraction * self.steps) for fraction in self.milestones}))
