"""Settings of training: the optimizer, the mesh of devices, and the loop with its logs and checkpoints."""

import dataclasses
from typing import Annotated, Literal, get_args

from annotated_types import Ge, Gt, Le, Lt

Decay = Literal["linear", "cosine", "one_minus_sqrt", "inverse_sqrt", "constant"]
_WITHOUT_FALL = ("constant", "inverse_sqrt")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """Settings of the optimizer and its schedule; the defaults are those of the code released with Attention Guidance.

    The default of `clip_norm` is from this code, too.

    kind: `adamw`; `lion` (Chen et al. 2023), whose published `beta2` is 0.99, with learning rates 3 to 10 times lower
        than AdamW's; or `muon` (Jordan et al. 2024), which makes the updates of the layers' matrices orthogonal, and
        scales them to the size that AdamW's have late in training (Liu et al. 2025). Embeddings, output heads, biases
        and norms then have AdamW.
    learning_rate: peak learning rate, reached after `warmup_steps`.
    warmup_steps: number of steps in which the learning rate rises from 0 to its peak.
    decay: how the learning rate falls from its peak to the last step: `linear`, `cosine` or `one_minus_sqrt` (1 -
        sqrt(x), where x is the share of the fall's steps that are done); `constant` leaves it at the peak;
        `inverse_sqrt` makes it peak * sqrt(max(warmup_steps, 1) / step), which with the peak (width *
        warmup_steps)^-0.5 is the schedule of Vaswani et al. 2017, equation 3.
    decay_steps: number of the last steps in which the learning rate falls; before them it stays at its peak (schedule
        warm-up-stable-decay). None lets it fall from the end of warm-up on.
    final_share: learning rate at the end of the fall, as a share of the peak.
    beta1: decay rate of the gradient's running mean.
    beta2: decay rate of the squared gradient's running mean; of `lion`, decay rate of its only running mean.
    epsilon: added to the denominator of an update.
    weight_decay: each step subtracts learning rate * weight_decay * weight from matrices; never from biases or
        LayerNorm.
    clip_norm: maximum global norm of the gradient; None does not clip it.
    muon_attention_scale: with `muon`, factor of the updates of the kernels of queries and keys. Early in training
        AdamW's updates of these are several times as large as Muon's, and heads need that to learn to attend to
        neighbours by learned positions.
    clip_updates: divide the update of a parameter by the root mean square of gradient / sqrt(second moment) where this
        is above 1 (StableAdamW of Wortsman et al. 2023), for parameters that have AdamW; goes well with clip_norm=none.
    """

    kind: Literal["adamw", "lion", "muon"] = "adamw"
    learning_rate: Annotated[float, Ge(1e-12)] = 1e-4  # less changes no float32 parameter
    warmup_steps: Annotated[int, Ge(0)] = 0
    decay: Decay = "linear"
    decay_steps: Annotated[int, Ge(1)] | None = None
    final_share: Annotated[float, Ge(0), Le(1)] = 0.0
    beta1: Annotated[float, Ge(0), Lt(1)] = 0.9
    beta2: Annotated[float, Ge(0), Lt(1)] = 0.999
    epsilon: Annotated[float, Gt(0)] = 1e-8
    weight_decay: Annotated[float, Ge(0)] = 0.0
    clip_norm: Annotated[float, Gt(0)] | None = 1.0
    muon_attention_scale: Annotated[float, Gt(0)] = 1.0
    clip_updates: bool = False

    def __post_init__(self):
        if self.decay in _WITHOUT_FALL:
            falls = [decay for decay in get_args(Decay) if decay not in _WITHOUT_FALL]
            for name in ("decay_steps", "final_share"):
                if (value := getattr(self, name)) != getattr(OptimizerConfig, name):
                    raise ValueError(
                        f"optimizer.{name}={value} is of a learning rate that falls to the last step, got "
                        f"optimizer.decay={self.decay}: choose {', '.join(falls)}, or leave {name} out"
                    )
        if self.clip_updates and self.kind == "lion":
            raise ValueError(
                "optimizer.clip_updates=True divides by a second moment, which optimizer.kind=lion lacks: set it to "
                "False, or choose adamw or muon"
            )


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Number of devices along each axis of the mesh.

    data: number of devices over which the batch is split, with replicated parameters; None takes all devices that the
        other axes leave.
    fsdp: number of devices over which the batch is split, and the parameters along the width.
    tensor: number of devices over which heads, feed-forward features and the vocabulary are split.
    """

    data: Annotated[int, Ge(1), Le(1048576)] | None = None
    fsdp: Annotated[int, Ge(1), Le(1048576)] = 1
    tensor: Annotated[int, Ge(1), Le(1048576)] = 1


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """Length of a training run, its batches, and when it logs, evaluates and saves.

    steps: number of optimizer updates.
    words: most words of the training text that the run sees, each repetition counted; when the run begins, `steps` is
        set to the number of updates that see no more. None trains the given `steps`.
    max_epochs: a run is rejected with an error if it would see more words than this many times `data.max_words`, or
        without it, than this many times the training text. None sets no limit.
    time_limit: seconds of training over all restarts, with compilation and without evaluations, after which the run
        ends before its last step; its schedules stay those of all steps. Those before `branch_from` do not count. None
        trains all steps.
    batch_size: number of sequences in an update.
    earlier_batch_sizes: numbers of sequences in earlier updates, before `batch_size`, such as 16,32 (batch-size
        warm-up). The step is compiled once for each. Learning rate and other schedules are over steps, as always.
    earlier_batch_sizes_until: for each of `earlier_batch_sizes`, the step at which the next begins, such as 400,1200.
    microbatches: number of parts in which a batch is computed, one after the other, to save memory; smaller batches
        have fewer parts, of as many sequences or, if the batch is smaller than a part, one.
    log_every: steps between two rows of metrics.
    evaluate_every: steps between two evaluations on held-out text; None evaluates only at the end.
    checkpoint_every: steps between two checkpoints.
    keep_last: number of the newest checkpoints that are kept, those at multiples of `checkpoint_every` before others,
        such as that of an interruption.
    keep_best: whether a checkpoint is also saved after each evaluation that is the best so far, by `best_metric`, and
        the newest of these is kept. Evaluations before `branch_from` do not count.
    patience: number of evaluations in a row without a better `best_metric` after which the run ends before its last
        step; its schedules stay those of all steps. Those before `branch_from` do not count, but their best value is
        still the one to be beaten. None trains all steps.
    best_metric: metric of the evaluations by which they are compared, such as mlm_accuracy; lower is better for losses
        and nll, higher for others. None takes the loss by which the run is summarised.
    keep_every: checkpoints at multiples of this many steps are kept, too; None keeps no others.
    milestones: fractions of the run at which checkpoints are saved and kept, too.
    milestone_words: numbers of words seen, ascending and each repetition counted, at which checkpoints are saved and
        kept, too: after the last update that sees no more words. `ag-jax export --milestones` writes them all.
    step_timeout: seconds without progress after which the program reports where it hangs and ends; None waits forever.
    initial_weights: directory of a run whose newest parameters this run starts from; its model may have another rotary
        base. None starts from randomly initialised parameters.
    branch_from: directory of a run and the step of one of its checkpoints, as in runs/stable:50000, from which this run
        goes on with everything: optimizer, steps and text so far. Only length and schedule of the learning rate
        (`optimizer.decay`, `decay_steps`, `final_share`) may be others than there. None starts a run of its own.
    profile: first and last of the steps that the profiler traces, such as 20,24, into the run directory; empty for no
        trace.
    tensorboard: whether metrics are also written as TensorBoard events.
    wandb: Weights & Biases project to which metrics are sent; None sends nothing.
    """

    steps: Annotated[int, Ge(1)] = 100_000
    words: Annotated[int, Ge(1)] | None = None
    max_epochs: Annotated[float, Gt(0)] | None = None
    time_limit: Annotated[int, Ge(1)] | None = None
    batch_size: Annotated[int, Ge(1), Le(1048576)] = 84
    earlier_batch_sizes: tuple[Annotated[int, Ge(1), Le(1048576)], ...] = ()
    earlier_batch_sizes_until: tuple[Annotated[int, Ge(1)], ...] = ()
    microbatches: Annotated[int, Ge(1), Le(1048576)] = 1
    log_every: Annotated[int, Ge(1)] = 100
    evaluate_every: Annotated[int, Ge(1)] | None = 5_000
    checkpoint_every: Annotated[int, Ge(1)] = 1_000
    keep_last: Annotated[int, Ge(1), Le(1000000)] = 2
    keep_best: bool = False
    patience: Annotated[int, Ge(1)] | None = None
    best_metric: str | None = None
    keep_every: Annotated[int, Ge(1)] | None = None
    milestones: tuple[Annotated[float, Ge(0), Le(1)], ...] = (0.0, 0.1, 1.0)
    milestone_words: tuple[Annotated[int, Ge(1)], ...] = ()
    step_timeout: Annotated[int, Ge(1)] | None = 1800
    initial_weights: str | None = None
    branch_from: str | None = None
    profile: tuple[Annotated[int, Ge(1)], ...] = ()
    tensorboard: bool = True
    wandb: str | None = None

    def __post_init__(self):
        if self.microbatches and self.batch_size % self.microbatches:
            raise ValueError(
                f"training.microbatches={self.microbatches} must divide training.batch_size={self.batch_size}"
            )
        self._check_batch_sizes()
        self._check_patience()
        self._check_words()
        if self.profile and not (len(self.profile) == 2 and self.profile[0] <= self.profile[1] <= self.steps):
            raise ValueError(
                f"training.profile={','.join(map(str, self.profile))} must be the first and the last step of a trace, "
                f"such as 20,24, of at most training.steps={self.steps} steps; leave it empty for no trace"
            )

    def _check_batch_sizes(self) -> None:
        """Raise ValueError if `earlier_batch_sizes` do not fit their last steps, or the size of a microbatch."""
        sizes, until = self.earlier_batch_sizes, self.earlier_batch_sizes_until
        if len(sizes) != len(until) or list(until) != sorted(set(until)) or (until and until[-1] >= self.steps):
            raise ValueError(
                f"training.earlier_batch_sizes_until={','.join(map(str, until))} must be ascending steps below "
                f"training.steps={self.steps}, one for each of training.earlier_batch_sizes={','.join(map(str, sizes))}"
            )
        part = self.batch_size // self.microbatches
        if wrong := [size for size in sizes if size > part and size % part]:
            raise ValueError(
                f"training.earlier_batch_sizes has {wrong[0]}, which is neither a multiple of the {part} sequences of "
                "a microbatch (training.batch_size / training.microbatches) nor smaller: choose one of the two"
            )

    def _check_patience(self) -> None:
        """Raise ValueError if `patience` counts evaluations that are not made."""
        if self.patience is not None and self.evaluate_every is None:
            raise ValueError(
                f"training.patience={self.patience} counts evaluations, but training.evaluate_every=none evaluates "
                "only at the end: set evaluate_every, or patience=none"
            )

    def _check_words(self) -> None:
        """Raise ValueError if `milestone_words` are not ascending, or exceed `words`, the run's length in words."""
        milestones = self.milestone_words
        if tuple(sorted(set(milestones))) != milestones:
            raise ValueError(
                f"training.milestone_words={','.join(map(str, milestones))} must be ascending and without repetition"
            )
        if self.words is not None and milestones and milestones[-1] > self.words:
            raise ValueError(
                f"training.milestone_words has {milestones[-1]:,}, but the run ends at training.words={self.words:,}: "
                "leave it out, or raise training.words"
            )

    def evaluations_from(self, step: int) -> int:
        """Return how many evaluations are done after `step` or later, including the one after the last step.

        step: number of a step, counted from 1.
        """
        every = self.evaluate_every or self.steps
        return -(-self.steps // every) - (step - 1) // every

    def is_evaluation_step(self, step: int) -> bool:
        """Return whether the model is evaluated after a step."""
        return step == self.steps or bool(self.evaluate_every and step and step % self.evaluate_every == 0)

    def milestone_steps(self) -> tuple[int, ...]:
        """Return the steps at the fractions `milestones` of the run, whose checkpoints are never deleted."""
        return tuple(sorted({round(fraction * self.steps) for fraction in self.milestones}))
