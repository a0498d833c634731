"""Checkpoints that are what they were when they were written, or are not used."""

import contextlib
import dataclasses
import logging
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint import checkpoint_managers

from ag_jax.attention.dropout import element_index
from ag_jax.training import hosts
from ag_jax.training.state import TrainState

Tree = Any


def _digest(leaf: jax.Array) -> jax.Array:
    bits = jax.lax.bitcast_convert_type(leaf, {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[leaf.dtype.itemsize])
    odd = 2 * element_index(bits.shape) + 1
    return (bits.astype(jnp.uint32) * odd).sum(dtype=jnp.uint32)


@jax.jit
def _digests(leaves: list[jax.Array]) -> list[jax.Array]:
    return [_digest(leaf) for leaf in leaves]


def fingerprint(tree: Tree) -> list[int]:
    """One number for every array of a tree: sum_i bits_i (2 i + 1) mod 2^32.

    A product of integers modulo 2^32 with an odd number is a bijection, so any change of one element changes the sum; and
    the sum does not depend on how the array is split over devices.
    """
    return [int(value) for value in jax.device_get(_digests(jax.tree.leaves(tree)))]


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A restored state with the `progress` that was saved beside it."""

    state: TrainState
    progress: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run, in a directory with one folder for each step (Orbax).

    All hosts write them together, each its part. Each reads on its own, as a file may be damaged for one host alone, and what
    they found is compared before any of it is used. With `read_only` no host needs another, but for `restore`.

    The newest `keep_last` stay, and besides them every one at a multiple of `keep_every` (0: none) and at `milestones`.
    """

    def __init__(
        self,
        directory: epath.Path,
        *,
        keep_last: int = 1,
        keep_every: int = 0,
        milestones: tuple[int, ...] = (),
        read_only: bool = False,
    ):
        policy = checkpoint_managers.preservation_policy
        kept = [policy.LatestN(keep_last), policy.CustomSteps(list(milestones))]
        if keep_every:
            kept.append(policy.EveryNSteps(keep_every))
        self._directory, self._read_only = directory, read_only
        # Orbax raises its failures here; its own log of them, with tracebacks, would come on top.
        logging.getLogger("absl").setLevel(logging.CRITICAL)
        self._policy = policy.AnyPreservationPolicy(kept)
        self._manager = self._open(alone=read_only)

    def _open(self, *, alone: bool) -> ocp.CheckpointManager:
        """A manager of all hosts, or one to read with that has nothing to do with the other hosts."""
        together = ocp.options.MultiprocessingOptions()
        if alone and hosts.count() > 1:
            me = jax.process_index()
            together = ocp.options.MultiprocessingOptions(
                primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"host{me}"
            )
        options = ocp.CheckpointManagerOptions(
            preservation_policy=self._policy, read_only=alone, create=not alone, multiprocessing_options=together
        )
        handlers = {
            "state": ocp.StandardCheckpointHandler(multiprocessing_options=together),
            "progress": ocp.JsonCheckpointHandler(multiprocessing_options=together),
        }
        return ocp.CheckpointManager(self._directory, options=options, item_handlers=handlers)

    @contextlib.contextmanager
    def _reader(self) -> Iterator[ocp.CheckpointManager]:
        if self._read_only or hosts.count() == 1:
            yield self._manager
            return
        reader = self._open(alone=True)
        try:
            yield reader
        finally:
            reader.close()

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, in order."""
        return sorted(self._manager.all_steps())

    def save(self, state: TrainState, progress: dict[str, Any]) -> None:
        """Write a state and its progress (anything JSON can hold), in the background; errors surface at `wait` or `save`."""
        progress = progress | {"fingerprint": fingerprint(state)}
        items = ocp.args.Composite(state=ocp.args.StandardSave(state), progress=ocp.args.JsonSave(progress))
        with self._explained():
            self._manager.save(int(state.step), args=items, force=True)

    def wait(self) -> None:
        """Return when everything is on disk."""
        with self._explained():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Finish writing and let go of the directory."""
        with self._explained():
            self._manager.close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            whole = ", ".join(map(str, sorted(self._manager.all_steps(read=True)))) or "none"
            raise OSError(
                f"cannot write a checkpoint to {self._directory}: {str(error).strip().splitlines()[0]}\n"
                f"Whole are those of the steps: {whole}. Free some disk space and run the same command again"
            ) from error

    def restore(self, step: int, like: TrainState) -> Checkpoint:
        """The checkpoint of `step`, with the shapes and shardings of `like`; called by all hosts.

        Raises ValueError if its arrays have other shapes, CorruptCheckpointError if it is damaged, on all hosts alike.
        """
        problem = None
        try:
            state, progress = self._read(step, like)
        except CorruptCheckpointError as error:
            problem = error.reason
        problems = [found for found in hosts.exchange(f"checkpoint {step}", problem) if found]
        if problems:
            raise CorruptCheckpointError(step, problems[0])
        if fingerprint(state) != progress.pop("fingerprint"):
            raise CorruptCheckpointError(step, "the arrays differ from those that were saved")
        return Checkpoint(state, progress)

    def _read(self, step: int, like: TrainState) -> tuple[TrainState, dict[str, Any]]:
        with self._reader() as reader:
            try:
                saved = dict(reader.item_metadata(step)["state"])
                saved["params"], saved["opt_state"]
            except Exception as error:
                raise CorruptCheckpointError(step, error) from error
            _check_shapes(saved, like, self._directory / str(step))
            try:
                items = ocp.args.Composite(state=ocp.args.StandardRestore(like), progress=ocp.args.JsonRestore())
                restored = reader.restore(step, args=items)
                progress = dict(restored["progress"])
                progress["fingerprint"]
                return restored["state"], progress
            except Exception as error:
                raise CorruptCheckpointError(step, error) from error

    def restore_params(self, step: int) -> Tree:
        """The parameters of `step` alone, on this machine's default device, whatever they were trained on."""
        try:
            saved = self._manager.item_metadata(step)["state"]
            place = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
            like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), dict(saved))
            items = ocp.args.Composite(state=ocp.args.StandardRestore(like))
            return self._manager.restore(step, args=items)["state"]["params"]
        except Exception as error:
            raise CorruptCheckpointError(step, error) from error

    def restore_latest(self, like: TrainState) -> Checkpoint | None:
        """The newest undamaged checkpoint, or None if there is none at all.

        A damaged one is named on standard error and moved to `corrupt_checkpoints` beside the directory.
        """
        for step in reversed(hosts.from_first("the checkpoints", self.steps)):
            try:
                return self.restore(step, like)
            except CorruptCheckpointError as error:
                aside = self._set_aside(step)
                if hosts.is_first():
                    print(f"warning: {error}; moved to {aside}, going on with the one before it", file=sys.stderr)
        return None

    def _set_aside(self, step: int) -> epath.Path:
        aside = self._directory.parent / "corrupt_checkpoints" / str(step)

        def move() -> None:
            aside.parent.mkdir(parents=True, exist_ok=True)
            if aside.exists():
                aside.rmtree()
            (self._directory / str(step)).rename(aside)

        self._manager.close()
        hosts.from_first("a damaged checkpoint", move)
        self._manager = self._open(alone=False)
        return aside


class CorruptCheckpointError(Exception):
    """A checkpoint that cannot be read, or whose content is not what was written."""

    def __init__(self, step: int, reason: Any):
        self.reason = str(reason).strip().split("\n")[0][:200] or type(reason).__name__
        super().__init__(f"the checkpoint of step {step} is damaged ({self.reason})")


def _check_shapes(saved: Tree, like: TrainState, where: epath.Path) -> None:
    def shapes(tree: Tree) -> dict[str, tuple[int, ...]]:
        leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda node: hasattr(node, "shape"))
        paths = (("/".join(_name(key) for key in path), leaf) for path, leaf in leaves)
        return {path: tuple(leaf.shape) for path, leaf in paths if path.startswith("params/")}

    found, expected = shapes(saved), shapes(like)
    different = [
        f"  {name}: checkpoint {found.get(name, 'none')}, config {expected.get(name, 'none')}"
        for name in sorted(found | expected)
        if found.get(name) != expected.get(name)
    ]
    if different:
        raise ValueError(
            f"the checkpoint {where} is of another model:\n" + "\n".join(different[:10]) + "\n"
            f"({len(different)} of {len(found | expected)} parameters differ; use the config that the run was started with, "
            "or another workdir)"
        )


def _name(key: Any) -> str:
    return str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key))))
