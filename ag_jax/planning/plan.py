"""Plan a run on a TPU slice: its memory, bounds and a forecast of its time, by compiling its step; nothing is run."""

import concurrent.futures
import contextlib
import dataclasses
import math
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, cast

import jax
from jax.sharding import Mesh

from ag_jax.data.text.corruption import max_masked
from ag_jax.models import flops
from ag_jax.planning import search
from ag_jax.planning.compilation import Compiled, TooLarge, compile_step, vocabulary
from ag_jax.planning.forecast import Forecast, forecast
from ag_jax.planning.roofline import Roofline, roofline
from ag_jax.planning.topology import Topology, versions
from ag_jax.pretraining import branch, build, workloads
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.training import sharding

_LARGEST_SPLIT = 64  # the largest suggested factor of the number of microbatches
REMIND_EVERY = 15.0  # seconds between two lines about a compilation that is still running


@dataclasses.dataclass(frozen=True)
class Attempt:
    """A config that was compiled for a slice, and whether its step fits into memory.

    settings: what differs from the planned config, by the names that flags have.
    config: the config that was compiled, `settings` included.
    """

    settings: dict[str, Any]
    config: ExperimentConfig
    outcome: Compiled | TooLarge

    @property
    def fits(self) -> bool:
        """Whether the step fits into the memory of one device."""
        return isinstance(self.outcome, Compiled)

    @property
    def compiled(self) -> Compiled:
        """The compiled step, with its memory and costs; only for a step that fits."""
        return cast(Compiled, self.outcome)


@dataclasses.dataclass(frozen=True)
class Speed:
    """Speed of the whole slice if a step takes `seconds`, for sequences without padding.

    seconds: of a step.
    tokens_per_second: of the whole slice; for translation, tokens of both sides.
    mfu: model FLOPs utilisation.
    run_seconds, chip_hours: for all steps of the run, without those before `training.branch_from`. None if the text
        decides their number (`training.words`), because a plan does not read it.
    """

    seconds: float
    tokens_per_second: float
    mfu: float
    run_seconds: float | None
    chip_hours: float | None


@dataclasses.dataclass(frozen=True)
class Estimates:
    """Estimates of how long a compiled step takes on a TPU slice.

    task: FLOPs of a step on the whole slice with the expected number of masked positions, from which MFU is computed;
        at the last of the masking rates.
    computed: FLOPs of a step on the whole slice with every slot for masked positions, as a program computes it.
    roofline: lower bounds of the step's time on one device.
    bound: the highest speed that these lower bounds allow, if all steps are like this one.
    parts: forecast of the step's time on one device from the compiler's estimates; a text says why there is none.
    forecast: speed by this forecast; None without one.
    """

    task: flops.Flops
    computed: flops.Flops
    roofline: Roofline
    bound: Speed
    parts: Forecast | str
    forecast: Speed | None


@dataclasses.dataclass(frozen=True)
class Plan:
    """Result of planning a config for a TPU slice: whether it fits, what to change if not, and the largest batch.

    mesh: axis sizes by name.
    own: the config as it is.
    suggestion: a change of settings with which it fits; None if it fits already, or no change was found.
    largest: the largest batch that fits; None if not even one row does, or `searched` is false.
    searched: whether the largest batch was searched for.
    versions: of the programs that compiled the steps, by name.
    """

    topology: Topology
    mesh: dict[str, int]
    own: Attempt
    suggestion: Attempt | None
    largest: Attempt | None
    searched: bool
    versions: dict[str, str]

    @property
    def chosen(self) -> Attempt | None:
        """The compiled config for which the plan reports bounds and a forecast of time; None if no config fits.

        This is the config as it is if it fits, or else the suggestion, or else the config with the largest batch.
        """
        return next(
            (attempt for attempt in (self.own, self.suggestion, self.largest) if attempt and attempt.fits), None
        )


def make_plan(config: ExperimentConfig, topology: Topology, search_batch: bool = True) -> Plan:
    """Compile the training step of a config for a slice; search for settings that fit, and for the largest batch.

    From then on, this process computes on its CPU and asks libtpu for the schedules of kernels.

    search_batch: whether to search for the largest batch.

    Raises ValueError if mesh, batch or topology are impossible.
    """
    jax.config.update("jax_platforms", "cpu")  # this process computes nothing that deserves a device
    planner = _Planner(config, topology)
    own = planner.attempt({})
    # Both may take minutes, and a compilation uses one core.
    with concurrent.futures.ThreadPoolExecutor() as threads:
        suggestion = None if own.fits else threads.submit(planner.suggestion, own)
        largest = threads.submit(planner.largest, own) if search_batch else None
    return Plan(
        topology,
        dict(planner.mesh.shape),
        own,
        suggestion.result() if suggestion else None,
        largest.result() if largest else None,
        searched=search_batch,
        versions=versions(),
    )


def estimates(config: ExperimentConfig, topology: Topology, step: Compiled) -> Estimates:
    """Return bounds and a forecast of the time of `step`, which must have been compiled for this config and slice."""
    data, rows, length = config.data, config.training.batch_size, config.data.sequence_length
    words = vocabulary(config)
    task, computed = (
        workloads.workload_of(config).flops(config, words, predicted)
        for predicted in (data.masking.rate * length, max_masked(data.masking, length))
    )
    device = topology.chip.per_device()
    # Kernels without a declared cost are missing from the program's own count, so the model's count is a minimum.
    products = max(step.costs.flops, computed.total / topology.devices)
    limits = roofline(
        device,
        flops=products,
        hbm_bytes=step.costs.hbm_bytes,
        sent_bytes=step.costs.sent,
        network_bytes=step.costs.sent_between_slices,
    )
    parts = forecast(step, device, limits)

    rows_of_run = _rows_of_run(config)

    def speed(seconds: float) -> Speed:
        """Return the speed of the slice and the time of the run if a step takes `seconds`."""
        # Smaller batches of earlier steps count by their rows.
        run_seconds = None if rows_of_run is None else seconds * rows_of_run / rows
        return Speed(
            seconds=seconds,
            tokens_per_second=rows * length * (2 if config.translates else 1) / seconds,  # of both sides
            mfu=flops.mfu(task.total, seconds, topology.devices, device.flops),
            run_seconds=run_seconds,
            chip_hours=None if run_seconds is None else run_seconds / 3600 * topology.chips,
        )

    return Estimates(
        task=task,
        computed=computed,
        roofline=limits,
        bound=speed(limits.seconds),
        parts=parts,
        # Estimates of the compiler may be below what memory or links allow.
        forecast=speed(max(parts.seconds, limits.seconds)) if isinstance(parts, Forecast) else None,
    )


def _rows_of_run(config: ExperimentConfig) -> int | None:
    """Return the number of rows that a run trains on; None if a number of words (`training.words`) ends the run."""
    if config.training.words is not None:
        return None
    begins = branch.source(config)[1] if config.training.branch_from else 0
    return config.batch_sizes.before(config.training.steps) - config.batch_sizes.before(begins)


def with_settings(config: ExperimentConfig, settings: dict[str, Any]) -> ExperimentConfig:
    """Return the config with some settings, named `section.key`, changed; ValueError if they contradict others."""
    sections: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        section, key = name.split(".")
        sections.setdefault(section, {})[key] = value
    changed = {name: dataclasses.replace(getattr(config, name), **values) for name, values in sections.items()}
    return dataclasses.replace(config, **changed)


@contextlib.contextmanager
def _reported(what: str) -> Iterator[None]:
    """Report the work of the code inside, described by `what`, to stderr.

    There is a line when the work begins, one every `REMIND_EVERY` seconds with the time so far, and one when it ends.
    """
    began, done = time.monotonic(), threading.Event()

    def remind() -> None:
        while not done.wait(REMIND_EVERY):
            say("...")

    def say(state: str) -> None:
        print(f"{what} {state} {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)

    print(f"{what} ...", file=sys.stderr, flush=True)
    reminder = threading.Thread(target=remind, name="plan", daemon=True)
    reminder.start()
    try:
        yield
    finally:
        done.set()
        reminder.join()
    say("took")  # only now, so that no reminder follows it


class _Planner:
    """Planner that compiles a config for a TPU slice, as it is and changed, and searches for changes that fit.

    parts: number of devices among which the rows of a batch are divided.
    rows: number of rows that a device has in a microbatch.
    """

    def __init__(self, config: ExperimentConfig, topology: Topology):
        self.config, self.topology = config, topology
        self.devices = topology.compile_only_devices()
        self.mesh = sharding.make_mesh(config.mesh, self.devices)
        self.parts = self.mesh.shape["data"] * self.mesh.shape["fsdp"]
        self.rows = config.training.batch_size // config.training.microbatches // self.parts

    def attempt(self, settings: dict[str, Any]) -> Attempt:
        """Compile the step of the config with `settings`, by `section.key`, changed; print the compile time to stderr.

        Returns the changed config with the compiled step, or with the memory error if the step does not fit.
        """
        config = with_settings(self.config, settings)
        changes = ", ".join(f"{name}={value}" for name, value in settings.items()) or "the config as it is"
        with _reported(f"compiling for {self.topology.name}: {changes}"):
            return Attempt(settings, config, compile_step(config, self.topology, self.devices))

    def state_bytes(self) -> float:
        """Return the bytes of the training state on one device: about what a step with an empty batch would need."""
        return _state_bytes(self.config, self.mesh)

    def largest(self, own: Attempt) -> Attempt | None:
        """Return the config compiled with the largest batch that fits, None if none does; `own` is compiled unchanged.

        Nothing else is changed, except that a batch size other than the config's is that of all steps: the sizes of
        earlier steps would not be whole numbers of its microbatches.
        """
        unit = self.parts * self.config.training.microbatches
        attempts = {self.rows: own}
        constant: dict[str, Any] = {}
        if self.config.training.earlier_batch_sizes:
            constant = {"training.earlier_batch_sizes": (), "training.earlier_batch_sizes_until": ()}

        def probe(rows: int) -> Compiled | TooLarge:
            attempts[rows] = self.attempt({"training.batch_size": rows * unit, **constant})
            return attempts[rows].outcome

        available = (
            own.outcome.available if isinstance(own.outcome, TooLarge) else self.topology.chip.per_device().usable_bytes
        )
        rows, _ = search.largest(probe, {self.rows: own.outcome}, self.state_bytes(), available)
        return attempts.get(rows)

    def suggestion(self, own: Attempt) -> Attempt | None:
        """Return the first of the changed configs (`candidates`) whose step fits into memory; None if no step fits."""
        for settings in self.candidates(own):
            attempt = self.attempt(settings)
            if attempt.fits:
                return attempt
        return None

    def _divides(self, split: int) -> bool:
        """Return whether `split` divides a microbatch into parts whose size divides each larger earlier batch size."""
        part = self.rows * self.parts // split
        earlier = self.config.training.earlier_batch_sizes
        return self.rows % split == 0 and all(size <= part or size % part == 0 for size in earlier)

    def candidates(self, own: Attempt) -> Iterator[dict[str, Any]]:
        """Yield changes of settings, {section.key: value}, that save memory, from the least to the greatest slowdown.

        From the least to the most: microbatches (the gradient is exactly the same), rematerialisation, and parameters
        split over devices.
        """
        fixed, microbatches = self.state_bytes(), self.config.training.microbatches
        fitting = search.predicted({self.rows: own.outcome}, fixed, cast(TooLarge, own.outcome).available)
        splits = [
            split for split in range(2, _LARGEST_SPLIT + 1) if self._divides(split) and self.rows // split <= fitting
        ]
        for split in splits[:2]:  # a second one, in case the prediction was too high
            yield {"training.microbatches": microbatches * split}
        for remat in {"none": ("dots", "layer"), "dots": ("layer",), "layer": ()}[self.config.model.remat]:
            yield {"model.remat": remat}
        if self.mesh.shape["data"] > 1:
            split = splits[-1] if splits else self.rows
            fsdp = {"mesh.data": 1, "mesh.fsdp": self.parts}
            yield {"training.microbatches": microbatches * split, "model.remat": "layer", **fsdp}


def _state_bytes(config: ExperimentConfig, mesh: Mesh) -> float:
    """Return the bytes of the training state on one device of a mesh."""
    leaves = jax.tree.leaves(build.make_program(config, vocabulary(config), mesh).abstract)
    return float(sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves))
