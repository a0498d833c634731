"""What a config needs and can reach on a TPU slice, from compiling its training step for it; nothing is run or read."""

import concurrent.futures
import contextlib
import dataclasses
import math
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax
from jax.sharding import Mesh

from ag_jax.data.text.corruption import max_masked
from ag_jax.models import flops
from ag_jax.planning import search
from ag_jax.planning.compilation import Compiled, TooLarge, compile_step, vocabulary
from ag_jax.planning.roofline import Roofline, roofline
from ag_jax.planning.topology import Topology, versions
from ag_jax.pretraining import build, workloads
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.training import sharding

_LARGEST_SPLIT = 64  # microbatches that are suggested, at most
REMIND_EVERY = 15.0  # seconds between two lines about a compilation that is still running


@dataclasses.dataclass(frozen=True)
class Trial:
    """One compilation. settings: what differs from the config, as one would write it on the command line."""

    settings: dict[str, Any]
    config: ExperimentConfig
    outcome: Compiled | TooLarge

    @property
    def fits(self) -> bool:
        """Whether a device's memory holds it."""
        return isinstance(self.outcome, Compiled)


@dataclasses.dataclass(frozen=True)
class Bounds:
    """What a compiled step cannot beat on the slice, for rows without padding.

    task: FLOPs of a step that the task asks for, with the expected number of masked positions: those of MFU.
    computed: the same with every slot for masked positions, as a program computes it; both of the whole slice.
    """

    task: flops.Flops
    computed: flops.Flops
    roofline: Roofline
    tokens_per_second: float
    mfu: float
    run_seconds: float
    chip_hours: float


@dataclasses.dataclass(frozen=True)
class Plan:
    """The config as it is; if it does not fit, a change with which it does; and the largest batch, if it was searched.

    versions: of the programs that compiled the steps, by name.
    """

    topology: Topology
    mesh: dict[str, int]
    own: Trial
    suggestion: Trial | None
    largest: Trial | None
    searched: bool
    versions: dict[str, str]

    @property
    def chosen(self) -> Trial | None:
        """What the bounds are of: the config itself, or else what was found in its place."""
        return next((trial for trial in (self.own, self.suggestion, self.largest) if trial and trial.fits), None)


def make_plan(config: ExperimentConfig, topology: Topology, search_batch: bool = True) -> Plan:
    """Compile, and search for what fits. Raises ValueError if mesh, batch or topology cannot be."""
    jax.config.update("jax_platforms", "cpu")  # this process computes nothing that deserves a device
    planner = _Planner(config, topology)
    own = planner.trial({})
    # Both may take minutes, and a compilation uses one core.
    with concurrent.futures.ThreadPoolExecutor() as threads:
        suggestion = None if own.fits else threads.submit(planner.suggestion, own)
        largest = threads.submit(planner.largest, own) if search_batch else None
        found = [future and future.result() for future in (suggestion, largest)]
    return Plan(topology, dict(planner.mesh.shape), own, *found, searched=search_batch, versions=versions())


def bounds(config: ExperimentConfig, topology: Topology, step: Compiled) -> Bounds:
    """Bounds of a step that was compiled for this config and slice."""
    data, rows, length = config.data, config.training.batch_size, config.data.sequence_length
    words = vocabulary(config)
    task, computed = (
        workloads.workload_of(config).flops(config, words, predicted)
        for predicted in (data.masking.rate * length, max_masked(data.masking, length))
    )
    device = topology.chip.per_device()
    # A kernel without a declared cost is missing from the program's own count.
    products = max(step.costs.flops, computed.total / topology.devices)
    limits = roofline(device, flops=products, hbm_bytes=step.costs.hbm_bytes, sent_bytes=step.costs.sent)
    run_seconds = limits.seconds * config.training.steps
    return Bounds(
        task=task,
        computed=computed,
        roofline=limits,
        tokens_per_second=rows * length / limits.seconds,
        mfu=flops.mfu(task.total, limits.seconds, topology.devices, device.flops),
        run_seconds=run_seconds,
        chip_hours=run_seconds / 3600 * topology.chips,
    )


def with_settings(config: ExperimentConfig, settings: dict[str, Any]) -> ExperimentConfig:
    """The config with some `section.key` changed, and checked again."""
    for name, value in settings.items():
        section, key = name.split(".")
        changed = dataclasses.replace(getattr(config, section), **{key: value})
        config = dataclasses.replace(config, **{section: changed})
    return config


@contextlib.contextmanager
def _reported(what: str) -> Iterator[None]:
    """Print what is being done, every `REMIND_EVERY` seconds how long it has taken so far, and in the end how long it took."""
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
        say("took")
    finally:
        done.set()
        reminder.join()


class _Planner:
    """One config on one slice. `rows` are those of one device in one microbatch."""

    def __init__(self, config: ExperimentConfig, topology: Topology):
        self.config, self.topology = config, topology
        self.devices = topology.compile_only_devices()
        self.mesh = sharding.make_mesh(config.mesh, self.devices)
        self.parts = self.mesh.shape["data"] * self.mesh.shape["fsdp"]
        self.rows = config.training.batch_size // config.training.microbatches // self.parts

    def trial(self, settings: dict[str, Any]) -> Trial:
        config = with_settings(self.config, settings)
        named = ", ".join(f"{name}={value}" for name, value in settings.items()) or "the config as it is"
        with _reported(f"compiling for {self.topology.name}: {named}"):
            return Trial(settings, config, compile_step(config, self.topology, self.devices))

    def state_bytes(self) -> float:
        """Of parameters and optimizer on one device: what a step of no rows would need."""
        return _state_bytes(self.config, self.mesh)

    def largest(self, own: Trial) -> Trial | None:
        """The largest batch that fits with all other settings as they are."""
        unit = self.parts * self.config.training.microbatches
        trials = {self.rows: own}

        def probe(rows: int) -> Compiled | TooLarge:
            trials[rows] = self.trial({"training.batch_size": rows * unit})
            return trials[rows].outcome

        available = own.outcome.available if not own.fits else self.topology.chip.per_device().usable_bytes
        rows, _ = search.largest(probe, {self.rows: own.outcome}, self.state_bytes(), available)
        return trials.get(rows)

    def suggestion(self, own: Trial) -> Trial | None:
        """The first change of settings that fits; the batch stays what it is. None if no candidate does."""
        for settings in self.candidates(own):
            found = self.trial(settings)
            if found.fits:
                return found
        return None

    def candidates(self, own: Trial) -> Iterator[dict[str, Any]]:
        """From what costs least: microbatches (the very same gradient), rematerialisation, parameters split over devices."""
        fixed, microbatches = self.state_bytes(), self.config.training.microbatches
        fitting = search.predicted({self.rows: own.outcome}, fixed, own.outcome.available)
        splits = [
            split for split in range(2, _LARGEST_SPLIT + 1) if self.rows % split == 0 and self.rows // split <= fitting
        ]
        for split in splits[:2]:
            yield {"training.microbatches": microbatches * split}
        for remat in {"none": ("dots", "layer"), "dots": ("layer",), "layer": ()}[self.config.model.remat]:
            yield {"model.remat": remat}
        if self.mesh.shape["data"] > 1:
            split = splits[-1] if splits else self.rows
            fsdp = {"mesh.data": 1, "mesh.fsdp": self.parts}
            yield {"training.microbatches": microbatches * split, "model.remat": "layer", **fsdp}


def _state_bytes(config: ExperimentConfig, mesh: Mesh) -> float:
    leaves = jax.tree.leaves(build.make_program(config, vocabulary(config), mesh).abstract)
    return float(sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves))
