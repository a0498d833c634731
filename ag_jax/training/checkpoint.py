"""Checkpoints with checksums: a damaged one is detected when it is read, and never used.

A checkpoint is a folder of Orbax with all that training needs to go on, or a file of the weights alone (`weights`).
"""

import contextlib
import dataclasses
import inspect
import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint import checkpoint_managers
from orbax.checkpoint._src.path import gcs_utils

from ag_jax.distributed import hosts, storage
from ag_jax.training import damage, metrics, weights
from ag_jax.training.damage import CorruptCheckpointError
from ag_jax.training.fingerprint import changed, fingerprint, of_json, paths
from ag_jax.training.state import TrainState

Tree = Any
FINGERPRINT = "fingerprint"  # key in a checkpoint's progress: {path: checksum} of its arrays
ASIDE = "corrupt_checkpoints"  # directory of damaged checkpoints, beside that of the checkpoints
_DESCRIPTION = "_CHECKPOINT_METADATA"  # Orbax's metadata file in the folder of each checkpoint
PROGRESS = "progress"  # key in the fingerprint: the checksum of the rest of the progress


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Restored training state, with the progress of the training loop that was saved next to the state.

    state: the training state.
    progress: what else the loop needs to resume, such as metric sums and evaluations, as `Progress.to_json` returns it.
    """

    state: TrainState
    progress: dict[str, Any]


class _Newest:
    """Orbax policy that keeps `count` checkpoints: the newest, then the newest at multiples of `every`, then others.

    Without this order, the checkpoint of an interruption would push out one of those that an uninterrupted run keeps.

    count: number of checkpoints that are kept, at most.
    """

    def __init__(self, count: int, every: int):
        self.count, self.every = count, every

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Return, for each checkpoint, whether this policy keeps it."""
        del context
        newest = max((checkpoint.step for checkpoint in checkpoints), default=None)

        def rank(step: int) -> tuple[bool, bool, int]:
            return step == newest, step % self.every == 0, step

        steps = sorted((checkpoint.step for checkpoint in checkpoints), key=rank)[-self.count :]
        return [checkpoint.step in steps for checkpoint in checkpoints]


class _BestStep:
    """Orbax policy that keeps the checkpoint of one chosen step, such as the step of the best evaluation.

    step: the step; None keeps none.
    """

    def __init__(self) -> None:
        self.step: int | None = None

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Return, for each checkpoint, whether it belongs to the chosen step."""
        del context
        return [checkpoint.step == self.step for checkpoint in checkpoints]


class Checkpoints:
    """Checkpoints of one run, in a directory with one folder for each step (Orbax).

    All hosts write a checkpoint together, each its part. Each host reads independently, because a file may be damaged
    for only one host, and the hosts exchange their findings before any of them uses the result.

    keep_last: number of the newest checkpoints that are kept.
    checkpoint_every: of the checkpoints before the newest, those at multiples of this many steps are kept first.
    keep_every: checkpoints at multiples of this many steps are kept, too; None keeps no others.
    milestones: steps whose checkpoints are kept, too.
    read_only: write nothing; then only `restore` needs the other hosts.
    """

    def __init__(
        self,
        directory: epath.Path,
        *,
        keep_last: int = 1,
        checkpoint_every: int = 1,
        keep_every: int | None = None,
        milestones: tuple[int, ...] = (),
        read_only: bool = False,
    ):
        policy = checkpoint_managers.preservation_policy
        self._best = _BestStep()
        policies = [_Newest(keep_last, checkpoint_every), policy.CustomSteps(list(milestones)), self._best]
        if keep_every:
            policies.append(policy.EveryNSteps(keep_every))
        self._directory, self._read_only = storage.directory(directory), read_only
        _silence_orbax()
        if storage.is_remote(self._directory):
            _adapt_orbax()
        self._policy = policy.AnyPreservationPolicy(policies)
        self._manager = self._open(alone=read_only)

    def _open(self, *, alone: bool) -> ocp.CheckpointManager:
        """Open an Orbax manager that all hosts share or, if `alone`, a read-only manager that needs no other host.

        Raises ValueError if Orbax's description of a checkpoint is damaged.
        """
        together = ocp.options.MultiprocessingOptions()
        if alone and hosts.count() > 1:
            me = jax.process_index()
            together = ocp.options.MultiprocessingOptions(
                primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"host{me}"
            )
        options = ocp.CheckpointManagerOptions(
            preservation_policy=self._policy, read_only=alone, create=not alone, multiprocessing_options=together
        )
        handlers = ocp.handlers.DefaultCheckpointHandlerRegistry()
        state = ocp.StandardCheckpointHandler(multiprocessing_options=together)
        progress = ocp.JsonCheckpointHandler(multiprocessing_options=together)
        for arguments in (ocp.args.StandardSave, ocp.args.StandardRestore):
            handlers.add("state", arguments, state)
        for arguments in (ocp.args.JsonSave, ocp.args.JsonRestore):
            handlers.add("progress", arguments, progress)
        try:
            return ocp.CheckpointManager(self._directory, options=options, handler_registry=handlers)
        except OSError:  # missing permissions or too many open files do not mean damage
            raise
        # Orbax checks the values of its metadata one by one, with many types of errors.
        except Exception as error:
            raise ValueError(
                f"{self._directory}: the description of a checkpoint is damaged ({error}). "
                f"Move the folder of {self._suspects()} "
                "away and run the same command again, which then resumes from the checkpoint before it"
            ) from error

    def _suspects(self) -> str:
        """Return the names of the checkpoints' metadata files that may be damaged, joined for an error message.

        These are the files that are not valid JSON, or all files if every file is valid JSON.
        """
        steps = [step for step in steps_in(self._directory) if not self.has_weights_alone(step)]
        files = [self._directory / str(step) / _DESCRIPTION for step in steps]
        broken = []
        for file in files:
            try:
                json.loads(file.read_text())
            except (ValueError, OSError, RecursionError):
                broken.append(file)
        return " or ".join(str(file.relative_to(self._directory)) for file in broken or files)

    @contextlib.contextmanager
    def _reader(self) -> Iterator[ocp.CheckpointManager]:
        """Context manager that yields an Orbax manager with which this host reads independently of the others."""
        if self._read_only or hosts.count() == 1:
            yield self._manager
            return
        reader = self._open(alone=True)
        try:
            yield reader
        finally:
            reader.close()

    def steps(self) -> list[int]:
        """Return the training steps that have a checkpoint, in ascending order."""
        return sorted({*self._manager.all_steps(), *weights.steps_in(self._directory)})

    def has_weights_alone(self, step: int) -> bool:
        """Return whether a checkpoint is a file of weights, without what training needs to go on."""
        return weights.file_of(self._directory, step).exists()

    def keep_best(self, step: int | None) -> None:
        """Protect the checkpoint of `step` from deletion, instead of the previous call's step; None protects none."""
        self._best.step = step

    def save(self, state: TrainState, progress: dict[str, Any]) -> float:
        """Save the training state and the loop's progress in the background; `wait` or the next `save` raises errors.

        Returns the seconds that it waited for the save before to end. Raises OSError with advice if a checkpoint cannot
        be written.
        """
        began = time.perf_counter()
        self.wait()
        waited = time.perf_counter() - began
        progress = progress | {FINGERPRINT: fingerprint(state) | {PROGRESS: of_json(progress)}}
        items = ocp.args.Composite(state=ocp.args.StandardSave(state), progress=ocp.args.JsonSave(progress))
        with self._explained():
            self._manager.save(int(state.step), args=items, force=True)
        return waited

    def wait(self) -> None:
        """Wait until every saved checkpoint is on disk."""
        with self._explained():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Wait until every saved checkpoint is on disk, and close the checkpoint manager."""
        with self._explained():
            self._manager.close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Context manager that turns any error while a checkpoint is written into an OSError with advice.

        On a disk, it also lists the complete checkpoints.
        """
        try:
            yield
        except Exception as error:
            if storage.is_remote(self._directory):  # which may fail again, so nothing is read there
                failure = damage.store_failure(error)
                raise type(failure)(
                    f"cannot write a checkpoint to {self._directory}: {failure}. Complete checkpoints are not "
                    "affected: run the same command again, which resumes from the newest"
                ) from error
            whole = ", ".join(map(str, sorted(self._manager.all_steps(read=True)))) or "none"
            advice = "Free some disk space" if damage.is_full(error) else "Remove the cause"
            raise OSError(
                f"cannot write a checkpoint to {self._directory}: {damage.cause_of(error)}\n"
                f"Complete checkpoints are those of the steps: {whole}. {advice} and run the same command again"
            ) from error

    def restore(self, step: int, like: TrainState) -> Checkpoint:
        """Read the checkpoint of `step` with the shapes and shardings of `like`; every host must call it.

        Raises ValueError if its arrays have other shapes or it has the weights alone, CorruptCheckpointError if it is
        damaged, and OSError if something else prevents reading it, on all hosts alike.
        """
        problem = None
        try:
            state, progress, written = self._read(step, like)
        except (CorruptCheckpointError, OSError) as error:
            problem = {
                "is_damaged": isinstance(error, CorruptCheckpointError),
                "is_unavailable": isinstance(error, storage.StoreUnavailableError),
                "reason": error.reason if isinstance(error, CorruptCheckpointError) else str(error),
            }
        problems = [failure for failure in hosts.exchange(f"checkpoint {step}", problem) if failure]
        # OSErrors first: while one host cannot read the checkpoint, none may treat it as damaged and move it away.
        for failure in sorted(problems, key=lambda failure: failure["is_damaged"]):
            if failure["is_damaged"]:
                raise CorruptCheckpointError(step, failure["reason"])
            raise (storage.StoreUnavailableError if failure["is_unavailable"] else OSError)(failure["reason"])
        _check(step, paths(state), written)
        return Checkpoint(state, progress)

    def _read(self, step: int, like: TrainState) -> tuple[TrainState, dict[str, Any], dict[str, int]]:
        """Return (state, progress, stored fingerprint) of a checkpoint, after a check of the parameters' shapes."""
        if self.has_weights_alone(step):
            raise ValueError(
                f"{weights.file_of(self._directory, step)} has weights without the optimizer's state, so that training "
                f"cannot go on from there: begin another run, with training.initial_weights={self._directory.parent}"
            )
        with self._reader() as reader:
            with self._judged(step):
                saved = dict(reader.item_metadata(step)["state"])
                saved["params"], saved["opt_state"]
            _check_shapes(saved, like, self._directory / str(step))
            with self._judged(step):
                return self._load(reader, step, like)

    def _load(
        self, reader: ocp.CheckpointManager, step: int, like: Tree
    ) -> tuple[Tree, dict[str, Any], dict[str, int]]:
        """Return (state, progress, stored fingerprint) of a checkpoint, of which only the progress is verified.

        The progress is compared with its stored checksum; comparing the arrays with the fingerprint, which has a
        checksum of each, is left to the caller.
        """
        items = ocp.args.Composite(state=ocp.args.StandardRestore(like), progress=ocp.args.JsonRestore())
        restored = reader.restore(step, args=items)
        return restored["state"], *_split(step, restored["progress"])

    @contextlib.contextmanager
    def _judged(self, step: int) -> Iterator[None]:
        """Context manager that turns any error while a checkpoint is read into one that says whether it is damaged.

        Raises CorruptCheckpointError for damage, FileNotFoundError if there is no such checkpoint, and OSError
        otherwise.
        """
        try:
            yield
        except CorruptCheckpointError:
            raise
        except Exception as error:
            folder = self._directory / str(step)
            if not folder.exists():
                steps = ", ".join(map(str, self.steps())) or "none"
                message = f"{self._directory} has no checkpoint of step {step}; it has: {steps}"
                raise FileNotFoundError(message) from error
            raise damage.judge(step, folder, error) from error

    def restore_progress(self, step: int) -> dict[str, Any]:
        """Return the training loop's progress that is saved in the checkpoint of `step`.

        Raises CorruptCheckpointError if it differs from what was saved, and OSError if something else prevents reading.
        """
        if self.has_weights_alone(step):
            return weights.read(weights.file_of(self._directory, step))[1]
        with self._judged(step):
            restored = self._manager.restore(step, args=ocp.args.Composite(progress=ocp.args.JsonRestore()))
            return _split(step, restored["progress"])[0]

    def restore_params(self, step: int) -> Tree:
        """Return the parameters in the checkpoint of `step`, on this process's first device.

        They may have been trained on any devices. The rest of the state is read into the memory of the host, because it
        may not fit on the device.

        Raises CorruptCheckpointError if they differ from those that were saved, and OSError if something else prevents
        reading them.
        """
        if self.has_weights_alone(step):
            params, _ = weights.read(weights.file_of(self._directory, step))
            return jax.device_put(params, jax.local_devices()[0])
        with self._judged(step):
            saved = dict(self._manager.item_metadata(step)["state"])
            place = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
            like = {name: jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), of) for name, of in saved.items()}
            like["params"] = jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), saved["params"]
            )
            state, _, written = self._load(self._manager, step, like)
            params = state["params"]
        written = {path: number for path, number in written.items() if path.startswith("params/")}
        _check(step, paths({"params": params}), written)
        return params

    def restore_latest(self, like: TrainState) -> Checkpoint | None:
        """Read the newest undamaged checkpoint, or return None if there is no checkpoint; every host must call it.

        Newer, damaged checkpoints are named on standard error and moved to `corrupt_checkpoints` beside the directory.
        Raises ValueError, and moves nothing, if all checkpoints are damaged.
        """
        # Damaged checkpoints are moved only once an undamaged one is found, so nothing changes if all are damaged.
        damaged: list[CorruptCheckpointError] = []
        for step in reversed(hosts.from_first("the checkpoints", self.steps)):
            try:
                checkpoint = self.restore(step, like)
            except CorruptCheckpointError as error:
                damaged.append(error)
                continue
            for moved in damaged:
                aside = self._set_aside(moved.step)
                if hosts.is_first():
                    print(f"warning: {moved}; moved to {aside}, resuming from step {step}", file=sys.stderr)
            return checkpoint
        if damaged:
            reasons = "".join(f"  {error}\n" for error in damaged)
            raise ValueError(
                f"all checkpoints of {self._directory.parent} are damaged, so training cannot be resumed:\n{reasons}"
                f"Nothing was changed. To start anew, rename or delete {self._directory.parent}, or choose another "
                "directory"
            )
        return None

    def _set_aside(self, step: int) -> epath.Path:
        """Move a damaged checkpoint to the folder `ASIDE`, replacing an older one of its step; return its new path."""
        aside = self._directory.parent / ASIDE / str(step)

        def move() -> None:
            aside.parent.mkdir(parents=True, exist_ok=True)
            if aside.exists():
                aside.rmtree()
            (self._directory / str(step)).rename(aside)

        self._manager.close()
        hosts.from_first("a damaged checkpoint", move)
        self._manager = self._open(alone=False)
        return aside


def steps_in(directory: epath.Path) -> list[int]:
    """Return the steps that have a folder or a file of weights in a directory of checkpoints, also damaged ones."""
    if not directory.exists():
        return []
    names = {path.name.removesuffix(weights.SUFFIX) for path in directory.iterdir()}
    return sorted(int(name) for name in names if name.isdigit())


def saved_metrics(workdir: epath.Path) -> list[dict[str, Any]]:
    """Return the rows of a run's `metrics.jsonl`, after a check against the checksum in its newest checkpoint.

    Raises FileNotFoundError if there is no such file, and ValueError if its rows were changed or removed. A run without
    checkpoints is read as it is.
    """
    if steps := steps_in(workdir / "checkpoints"):
        with contextlib.closing(Checkpoints(workdir / "checkpoints", read_only=True)) as checkpoints:
            metrics.check_rows(workdir, checkpoints.restore_progress(steps[-1])["rows"])
    return metrics.read_metrics(workdir)


def _adapt_orbax() -> None:
    """Give TensorStore a time limit for requests, and keep Orbax from asking whether a bucket has folders.

    TensorStore, which must not have been used before, otherwise waits for an answer without a limit. It repeats a
    request that was not answered as one that failed. To ask about folders, Orbax would need the permission to describe
    the bucket, in addition to those of the role Storage Object Admin. If the bucket has them, empty folders stay behind
    deleted checkpoints.
    """
    gcs_utils.is_hierarchical_namespace_enabled = lambda path: False  # there is no public setting
    os.environ |= {  # TensorStore reads them once
        "TENSORSTORE_CURL_CONNECT_TIMEOUT_SECONDS": "60",
        "TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS": "60",
        "TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES": "1",
    }


def _silence_orbax() -> None:
    """Silence the messages that Orbax logs about failed reads and writes, which it also raises as exceptions.

    Otherwise there would be a message for every read or write that Orbax then abandons.
    """
    # asyncio logs "exception was never retrieved" for reads and writes in the background.
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", r"coroutine '\w*Handler\.\w+' was never awaited", RuntimeWarning)
    previous = sys.unraisablehook
    if getattr(previous, "__module__", None) == __name__:
        return

    def report(unraisable: Any) -> None:
        error, source = unraisable.exc_value, unraisable.object
        abandoned = isinstance(error, RuntimeError) and str(error) == "Event loop is closed"
        if not abandoned and not (inspect.iscoroutine(source) and "orbax" in source.cr_code.co_filename):
            previous(unraisable)

    sys.unraisablehook = report


def _split(step: int, stored: dict[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
    """Return (progress, fingerprint of the arrays) from what a checkpoint stores beside its arrays, verified.

    Raises CorruptCheckpointError if the progress differs from its checksum, or the fingerprint is missing.
    """
    progress = dict(stored)
    written = progress.pop(FINGERPRINT, None)
    if not isinstance(written, dict):
        raise CorruptCheckpointError(step, "its fingerprint is missing")
    if written.pop(PROGRESS, None) != of_json(progress):
        raise CorruptCheckpointError(step, "the progress differs from what was saved")
    return progress, written


def _check(step: int, arrays: dict[str, jax.Array], written: dict[str, int]) -> None:
    """Raise CorruptCheckpointError if arrays differ from the fingerprint that was stored with them."""
    if different := changed(arrays, written):
        raise CorruptCheckpointError(
            step, f"{len(different)} of {len(arrays)} arrays differ from those that were saved, such as {different[0]}"
        )


def _check_shapes(saved: Tree, like: TrainState, where: epath.Path) -> None:
    """Raise ValueError, with a list, if a checkpoint's parameters have other names or shapes than those of `like`."""

    def shapes(tree: Tree) -> dict[str, tuple[int, ...]]:
        leaves = paths(tree).items()
        return {path: tuple(leaf.shape) for path, leaf in leaves if path.startswith("params/")}

    stored, expected = shapes(saved), shapes(like)
    different = [
        f"  {name}: checkpoint {stored.get(name, 'none')}, config {expected.get(name, 'none')}"
        for name in sorted(stored | expected)
        if stored.get(name) != expected.get(name)
    ]
    if different:
        raise ValueError(
            f"the checkpoint {where} is of another model:\n" + "\n".join(different[:10]) + "\n"
            f"({len(different)} of {len(stored | expected)} parameters differ; "
            "use the config that the run was started with, or another workdir)"
        )
