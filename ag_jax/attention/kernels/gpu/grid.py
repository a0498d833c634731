"""How a call of attention is cut into the programs of GPU kernels.

Shape letters: B batch, L length, H head, V width of a head, T blocks of a row, S blocks that are streamed, C a pair.
"""

import dataclasses
import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from ag_jax.attention.kernels.gpu.tile import Kind, Ref, power_of_two

Array = jax.Array

# Axes of all that a kernel reads or writes: what it loads of L and V has their bounds, the other axes are read whole.
LETTERS = {
    **dict.fromkeys(("query", "key", "value", "g_output", "output", "g_query", "g_key", "g_value"), "BLHV"),
    **dict.fromkeys(("log_sums", "delta", "squares", "overlap", "g_squares", "g_overlap", "weights"), "BHL"),
    **dict.fromkeys(("bias", "g_bias"), "BHLL"),
    "sequences": "BL",
    "visits": "BTC",
    "shifts": "H",
    "numbers": "N",
}


CAPABILITY, WIDEST = 8.0, 256  # the oldest GPU and the widest head that the kernels were compiled for


@dataclasses.dataclass(frozen=True)
class Blocks:
    """How one kernel cuts its work: rows that a program holds, rows that it streams at a time, warps, loads in flight."""

    held: int
    streamed: int
    warps: int
    stages: int

    def fit(self, length: int) -> "Blocks":
        """No larger than a row of that length needs."""
        held, streamed = (min(size, power_of_two(length)) for size in (self.held, self.streamed))
        return dataclasses.replace(self, held=held, streamed=streamed, warps=max(1, self.warps * held // self.held))


@dataclasses.dataclass(frozen=True)
class Plan:
    """The blocks of all four kernels; `bias` holds queries."""

    forward: Blocks
    query: Blocks
    key: Blocks
    bias: Blocks


def choose_plan(kind: Kind, itemsize: int) -> Plan:
    """What leaves room for two programs on a multiprocessor, so that one multiplies matrices while another does not.

    Blocks of 128 queries read keys and values half as often as those of 64, but have too many numbers in registers if there
    are statistics or dropout. Wide rows need smaller blocks; the widest leave room for one program. itemsize: bytes of an
    element of `query`.
    """
    row = power_of_two(kind.shape.width) * itemsize
    if row > 256:
        wide = Blocks(64, 32, 8, 1)
        return Plan(wide, wide, wide, wide)
    if row > 128:
        narrow = Blocks(64, 32, 4, 2)
        return Plan(Blocks(64, 64, 4, 2), narrow, narrow, narrow)
    small, large = Blocks(64, 64, 4, 2), Blocks(128, 64, 8, 3)
    of_queries = small if kind.shape.guided or kind.shape.rate else large
    return Plan(of_queries, of_queries, small, small)


def refuses(device: jax.Device, head_width: int) -> str | None:
    """Why the kernels cannot run on a GPU, or None if they can."""
    capability = str(getattr(device, "compute_capability", ""))
    if not re.fullmatch(r"\d+\.\d+", capability) or float(capability) < CAPABILITY:
        return (
            f"the kernels are for NVIDIA GPUs of compute capability {CAPABILITY} and up, not {capability or 'others'}"
        )
    return f"heads of width {head_width} are wider than the {WIDEST} that fit" if head_width > WIDEST else None


@dataclasses.dataclass(frozen=True)
class Call:
    """What all kernels of a call are compiled for."""

    kind: Kind
    examples: int
    plan: Plan

    def run(
        self,
        name: str,
        kernel: Callable[[dict[str, Ref], dict[str, Ref]], None],
        blocks: Blocks,
        grid: tuple[int, int, int],
        operands: dict[str, Array],
        results: dict[str, jax.ShapeDtypeStruct],
    ) -> list[Array]:
        """`kernel(refs, results)` for every step of the grid, on references to whole arrays; returns the results."""
        longest = max(blocks.held, blocks.streamed)
        bounded = {"L": -(-self.kind.shape.length // longest) * longest, "V": power_of_two(self.kind.shape.width)}

        def whole(name: str, array: Array | jax.ShapeDtypeStruct) -> pl.BlockSpec:
            window = tuple(bounded.get(letter, size) for letter, size in zip(LETTERS[name], array.shape, strict=True))
            return pl.BlockSpec(window, lambda *_: (0,) * len(window))

        def body(*refs: Ref) -> None:
            kernel(dict(zip(operands, refs, strict=False)), dict(zip(results, refs[len(operands) :], strict=False)))

        return pl.pallas_call(
            body,
            grid=grid,
            in_specs=[whole(*item) for item in operands.items()],
            out_specs=[whole(*item) for item in results.items()],
            out_shape=list(results.values()),
            compiler_params=triton.CompilerParams(num_warps=blocks.warps, num_stages=blocks.stages),
            interpret=self.kind.interpret,
            name=name,
        )(*operands.values())

    def rows(self, dtype: jnp.dtype) -> jax.ShapeDtypeStruct:
        """A result that lies like `query`."""
        shape = self.kind.shape
        return jax.ShapeDtypeStruct((self.examples, shape.length, shape.heads, self.kind.shape.width), dtype)

    def vectors(self) -> jax.ShapeDtypeStruct:
        """A number for each query of each head."""
        return jax.ShapeDtypeStruct((self.examples, self.kind.shape.heads, self.kind.shape.length), jnp.float32)


def visits(sequences_BL: Array, blocks: Blocks) -> Array:
    """`BTC` int32: first and last + 1 of the streamed blocks that held block t may have a sequence in common with.

    A block is taken for all numbers from its smallest to its largest, with padding after all others. So nothing is visited
    in vain where documents lie in order and padding behind them, and rows in another order are only slower.
    """
    length, order_BL = sequences_BL.shape[1], jnp.where(sequences_BL > 0, sequences_BL, jnp.iinfo(jnp.int32).max)

    def ends(size: int) -> tuple[Array, Array]:
        in_blocks = jnp.pad(order_BL, ((0, 0), (0, -length % size)), mode="edge").reshape(-1, -(-length // size), size)
        return in_blocks.min(-1), in_blocks.max(-1)

    (held_from, held_to), (from_, to) = ends(blocks.held), ends(blocks.streamed)
    meet_BTS = (held_from[:, :, None] <= to[:, None, :]) & (from_[:, None, :] <= held_to[:, :, None])
    last = meet_BTS.shape[-1] - jnp.argmax(meet_BTS[..., ::-1], -1)
    return jnp.stack([jnp.argmax(meet_BTS, -1), last], -1).astype(jnp.int32)
