"""Grids of the GPU kernels: how a call of attention is cut into programs and blocks.

Shape letters: B batch, Q query position, K key position, H head, W width of a head, T blocks that are held, S blocks
that are streamed, C a pair, N scalars.
"""

import dataclasses
import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from ag_jax.attention.kernels.gpu.tile import Ref, power_of_two
from ag_jax.attention.kernels.interface import KernelConfig
from ag_jax.attention.visibility import Band

# Axes of all arrays that a kernel reads or writes. Loads of Q, K and W are masked at their ends, the other axes are
# read whole.
LETTERS = {
    **dict.fromkeys(("query", "g_output", "output", "g_query"), "BQHW"),
    **dict.fromkeys(("key", "value", "g_key", "g_value"), "BKHW"),
    **dict.fromkeys(("log_sums", "delta", "squares", "score_sums", "overlap"), "BHQ"),
    **dict.fromkeys(("columns", "g_squares", "g_score_sums", "g_overlap"), "BHQ"),
    **dict.fromkeys(("bias", "g_bias"), "BHQK"),
    "weights": "BHK",
    "query_segments": "BQ",
    "key_segments": "BK",
    "visits": "BTC",
    "scalars": "N",
}


CAPABILITY, WIDEST = 8.0, 256  # the oldest GPU and the widest head that the kernels were compiled for


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Block sizes and Triton settings of a GPU kernel: a held block stays in fast memory, streamed ones pass through.

    held: number of queries (or keys) in the block that stays in the fast memory of a Triton program.
    streamed: number of keys (or queries) in each of the blocks that pass through.
    warps: number of warps of a program.
    stages: number of loads in flight.
    """

    held: int
    streamed: int
    warps: int
    stages: int

    def fit(self, held_length: int, streamed_length: int) -> "Blocks":
        """Return these settings with blocks no larger than the two lengths, rounded up to powers of two.

        held_length, streamed_length: numbers of queries and keys, or of keys and queries, in the order of the fields.

        Warps are in proportion to `held`, the size of the block that stays in fast memory.
        """
        held = min(self.held, power_of_two(held_length))
        streamed = min(self.streamed, power_of_two(streamed_length))
        return dataclasses.replace(self, held=held, streamed=streamed, warps=max(1, self.warps * held // self.held))


@dataclasses.dataclass(frozen=True)
class KernelBlocks:
    """Block sizes of the four GPU kernels: forward, dQ, dK with dV, and dbias.

    forward: of the kernel for output and guidance statistics, which holds queries.
    query: of the kernel for dQ, which holds queries.
    key: of the kernel for dK and dV, which holds keys.
    bias: of the kernel for dbias, with a block of queries as `held` and a block of keys as `streamed`.
    """

    forward: Blocks
    query: Blocks
    key: Blocks
    bias: Blocks


def choose_blocks(config: KernelConfig, itemsize: int) -> KernelBlocks:
    """Return block sizes with which two programs fit on a multiprocessor, or one if a head's vector exceeds 256 bytes.

    itemsize: bytes of an element of `query`, of which a head has `config.width` for each position.
    """
    # Two programs, so that one multiplies matrices while the other does not. Blocks of 128 queries read keys and values
    # half as often as those of 64, but have too many numbers in registers if there are statistics or dropout. Wide rows
    # need smaller blocks.
    row = power_of_two(config.width) * itemsize
    if row > 256:
        wide = Blocks(64, 32, 8, 1)
        return KernelBlocks(wide, wide, wide, wide)
    if row > 128:
        narrow = Blocks(64, 32, 4, 2)
        return KernelBlocks(Blocks(64, 64, 4, 2), narrow, narrow, narrow)
    small, large = Blocks(64, 64, 4, 2), Blocks(128, 64, 8, 3)
    of_queries = small if config.guided or config.rate else large
    return KernelBlocks(of_queries, of_queries, small, small)


def unsupported_reason(device: jax.Device, head_width: int) -> str | None:
    """Return the reason why the kernels cannot run on this GPU with such heads, or None if they can."""
    capability = str(getattr(device, "compute_capability", ""))
    if not re.fullmatch(r"\d+\.\d+", capability) or float(capability) < CAPABILITY:
        return (
            f"the kernels are for NVIDIA GPUs of compute capability {CAPABILITY} and up, not {capability or 'others'}"
        )
    return f"heads of width {head_width} are wider than the {WIDEST} that fit" if head_width > WIDEST else None


@dataclasses.dataclass(frozen=True)
class Call:
    """Static parameters that the forward and backward kernels of one call of attention share.

    config: what the kernels are compiled for.
    examples: size of the batch on this device.
    kernel_blocks: block sizes of each kernel.
    """

    config: KernelConfig
    examples: int
    kernel_blocks: KernelBlocks

    def run(
        self,
        name: str,
        kernel: Callable[[dict[str, Ref], dict[str, Ref]], None],
        blocks: Blocks,
        grid: tuple[int, int, int],
        operands: dict[str, Array],
        results: dict[str, jax.ShapeDtypeStruct],
    ) -> list[Array]:
        """Run `kernel` at every step of the grid, and return the output arrays.

        kernel: called with references to all operands and results, each to the whole array.
        """
        config, longest = self.config, max(blocks.held, blocks.streamed)
        # Triton takes arrays whose sizes are powers of two, or multiples of blocks that are; what lies beyond is never
        # touched.
        bounded = {
            "Q": -(-config.queries // longest) * longest,
            "K": -(-config.keys // longest) * longest,
            "W": power_of_two(config.width),
        }

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
            interpret=config.interpret,
            name=name,
        )(*operands.values())

    def rows(self, length: int, dtype: jnp.dtype) -> jax.ShapeDtypeStruct:
        """Return the shape `BLHW` and dtype of a result with a vector for each of `length` positions and each head."""
        return jax.ShapeDtypeStruct((self.examples, length, self.config.heads, self.config.width), dtype)

    def vectors(self) -> jax.ShapeDtypeStruct:
        """Return the shape `BHQ` and dtype of a float32 result with a number for each query of each head."""
        return jax.ShapeDtypeStruct((self.examples, self.config.heads, self.config.queries), jnp.float32)


def visits(held_segments: Array, streamed_segments: Array, blocks: Blocks, band: Band) -> Array:
    """Return the range of blocks to stream past each block that is held: (first, one after the last).

    An int32 array of shape (batch, held blocks, 2). The range has all blocks that may be seen from the held block, or
    may see it.

    band: of streamed positions around a held one.

    A block counts as if it had all segment ids from its smallest to its largest, with padding after all others. So no
    block is visited in vain where documents are in order with padding behind them; other orders are only slower.
    """

    def ends(segments: Array, size: int) -> tuple[Array, Array]:
        length, order = segments.shape[1], jnp.where(segments > 0, segments, jnp.iinfo(jnp.int32).max)
        in_blocks = jnp.pad(order, ((0, 0), (0, -length % size)), mode="edge").reshape(-1, -(-length // size), size)
        return in_blocks.min(-1), in_blocks.max(-1)

    # Two blocks may meet if their ranges of segment ids overlap: exact comparisons would need an array of Q x K.
    held_low, held_high = ends(held_segments, blocks.held)
    low, high = ends(streamed_segments, blocks.streamed)
    meet_BTS = (held_low[:, :, None] <= high[:, None, :]) & (low[:, None, :] <= held_high[:, :, None])
    if not band.is_everything:
        held_T1, streamed_1S = jnp.arange(meet_BTS.shape[1])[:, None], jnp.arange(meet_BTS.shape[2])[None, :]
        corners = (held_T1 * blocks.held, blocks.held, streamed_1S * blocks.streamed, blocks.streamed)
        meet_BTS &= band.meets(*corners)[None]
    first, last = jnp.argmax(meet_BTS, -1), meet_BTS.shape[-1] - jnp.argmax(meet_BTS[..., ::-1], -1)
    # Without any block to stream, argmax gives 0 for both ends, so `last` would count all blocks.
    return jnp.stack([first, jnp.where(meet_BTS.any(-1), last, first)], -1).astype(jnp.int32)
