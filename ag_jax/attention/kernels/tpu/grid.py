"""Grids of the TPU kernels: how a call of attention is cut into grid steps and blocks.

Shape letters: B batch, K keys of a block, Q queries of a block, H head, W width of a head, A = H * W width of all
heads.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ag_jax.attention.kernels.interface import KernelConfig
from ag_jax.attention.kernels.tpu.tile import Operands, Tile, cost
from ag_jax.attention.visibility import Band

BLOCK = 512  # rows and columns of the largest tile
_LANES = 128
_SUBLANES = 8
_VMEM = 64 * 2**20
_OF_KEYS = ("key", "value", "key_segments", "weights")  # operands with an entry for each key; but for the bias, others
# have one for each query


def head_group(heads: int, head_width: int) -> int:
    """Return the number of heads in a grid step: the fewest whose total width is a multiple of 128 lanes.

    The number divides `heads`; if none fits, it is `heads`.
    """
    fitting = (group for group in range(1, heads) if heads % group == 0 and group * head_width % _LANES == 0)
    return next(fitting, heads)


def lane_width(heads: int, head_width: int, length: int) -> int:
    """Return the number of lanes for a head: `head_width`, padded if sequences are long and a grid step's heads wide.

    The width is padded to 8, 16, 32, 64 or a multiple of 128 lanes if the sequence is longer than `BLOCK` and the heads
    of a grid step (`head_group`) would together take more than 128 lanes without padding.
    """
    # A row of several blocks has the dQ of its whole group of heads in on-chip memory, of which a TPU v4 has 16 MiB.
    if length <= BLOCK or head_group(heads, head_width) * head_width <= _LANES:
        return head_width
    return next((width for width in (8, 16, 32, 64) if width >= head_width), -(-head_width // _LANES) * _LANES)


def block_length(length: int) -> int:
    """Return the number of positions in a block: `length` if it is at most `BLOCK`, else a multiple of 128.

    The multiple is the smallest that needs no more blocks than blocks of `BLOCK` positions would.
    """
    if length <= BLOCK:
        return length
    blocks = -(-length // BLOCK)
    return -(-length // (blocks * _LANES)) * _LANES


def unsupported_reason(device_kind: str, heads: int, head_width: int, length: int, itemsize: int) -> str | None:
    """Return the reason why the kernels cannot run on this chip with such heads and sequences, or None if they can.

    heads: number of heads on a device.
    itemsize: bytes of an element of queries and their gradients.
    """
    if device_kind.startswith(("TPU v2", "TPU v3")):
        return f"the kernels are for TPU v4 and later, not {device_kind}: it multiplies no bfloat16 tiles"
    memory = 16 * 2**20 if device_kind.startswith("TPU v4") else _VMEM
    # A long row has its dQ for the heads of a grid step in on-chip memory: float32, and two copies on its way out. It
    # may take half of that memory.
    width = lane_width(heads, head_width, length)
    lanes = -(-head_group(heads, width) * width // _LANES) * _LANES
    longest = memory // 2 // (lanes * (4 + 2 * itemsize))
    if length > longest:
        return f"rows of {length} tokens are longer than the {longest} whose gradient fits on the chip"
    return None


class GridStep(NamedTuple):
    """Indices of the example, group of heads, block of queries and block of keys that a grid step works on.

    is_visible: False for a step that computes nothing: the band hides its tile, or it has no block of its own.
    """

    example: Array
    group: Array
    query_block: Array
    key_block: Array
    is_visible: Array | bool = True


@dataclasses.dataclass(frozen=True)
class Side:
    """Queries or keys of a sequence: `length` positions, padded and cut into whole blocks of `block` positions."""

    length: int

    @property
    def block(self) -> int:
        """Number of positions (of queries or keys) in a block."""
        return max(_SUBLANES, block_length(self.length))  # Mosaic does not multiply with a single row of bfloat16

    @property
    def blocks(self) -> int:
        """Number of blocks into which the queries (or the keys) are cut."""
        return -(-self.length // self.block)

    @property
    def padded(self) -> int:
        """Number of positions (of queries or keys) in all blocks, with padding."""
        return self.block * self.blocks


def _streamed(band: Band, held_block: Array, held: Side, streamed: Side, step: Array) -> tuple[Array, Array | bool]:
    """Return (index of the block of keys or queries that a grid step loads, whether it has a visible pair).

    It has one if `band`, the limits of causal and windowed attention, allows any query-key pair of the held and the
    loaded block. Beyond the last block there is none.

    held_block: index of the block of queries (or keys) that stays on the chip while `step` counts up.
    held, streamed: the side of which a block stays, and the side of which blocks pass through.
    band: of streamed positions around a held one.
    """
    if band.is_everything:
        return step, True
    first, last = band.block_range(held_block, held.block, streamed.block, streamed.blocks)
    block = jnp.minimum(first + step, last)
    meet = band.meets(held_block * held.block, held.block, block * streamed.block, streamed.block)
    # A step after the last visible block gets that block again: nothing is copied from memory, because it is there
    # already.
    return block, (first + step <= last) & meet


@dataclasses.dataclass(frozen=True)
class Grid:
    """The grid of one call of attention, on arrays of the shape `(examples, padded queries or keys, heads * width)`.

    config: what the kernels are compiled for.
    examples: size of the batch on this device.
    width: number of lanes for a head.
    range_of_groups: the groups of heads that the grid covers; None for all. The arrays are those of all heads.
    """

    config: KernelConfig
    examples: int
    width: int
    range_of_groups: range | None = None

    @property
    def group(self) -> int:
        """Number of heads in a grid step."""
        return head_group(self.config.heads, self.width)

    @property
    def covered(self) -> range:
        """The groups of heads that the grid covers; each grid step works on one group."""
        return range(self.config.heads // self.group) if self.range_of_groups is None else self.range_of_groups

    @property
    def groups(self) -> int:
        """Number of groups of heads that the grid covers."""
        return len(self.covered)

    @property
    def parts(self) -> tuple["Grid", ...]:
        """This grid split in two: groups of heads with a guided head, and the other groups, without guidance.

        If all groups or none have a guided head, this grid alone.

        By the compiler's estimate for a TPU v5e, statistics of guidance add 17 % to the time of the forward kernel with
        dropout and 23 % without, and 11 % and 15 % to that of the backward kernel.
        """
        guided = -(-self.config.guided_heads // self.group)
        if guided in (0, self.groups):
            return (self,)
        without = dataclasses.replace(self.config, guided_heads=0)
        return (
            dataclasses.replace(self, range_of_groups=range(guided)),
            dataclasses.replace(self, config=without, range_of_groups=range(guided, self.groups)),
        )

    @property
    def queries(self) -> Side:
        """The blocks into which the queries are cut."""
        return Side(self.config.queries)

    @property
    def keys(self) -> Side:
        """The blocks into which the keys are cut."""
        return Side(self.config.keys)

    @property
    def is_whole(self) -> bool:
        """Whether one tile holds all queries and keys of a head."""
        return self.queries.blocks == self.keys.blocks == 1

    @property
    def key_steps(self) -> int:
        """Grid steps per block of queries: an upper bound on the number of blocks of keys that these queries see."""
        return self.config.band.most_blocks(self.queries.block, self.keys.block, self.keys.blocks)

    @property
    def query_steps(self) -> int:
        """Grid steps per block of keys: an upper bound on the number of blocks of queries that see these keys."""
        return self.config.band.reversed.most_blocks(self.keys.block, self.queries.block, self.queries.blocks)

    @property
    def pairs(self) -> int:
        """Number of query-key pairs of one example and head in the tiles that are computed, for the cost estimate."""
        queries, keys, band = self.queries, self.keys, self.config.band
        if band.is_everything:
            return queries.padded * keys.padded
        corners = itertools.product(range(0, queries.padded, queries.block), range(0, keys.padded, keys.block))
        visible = sum(bool(band.meets(query, queries.block, key, keys.block)) for query, key in corners)
        return visible * queries.block * keys.block

    def by_query(self, example: Array, group: Array, query_block: Array, step: Array) -> GridStep:
        """Return a grid step's indices in kernels that hold a block of queries in VMEM and load blocks of keys in turn.

        Only blocks with a key that one of the queries may see are loaded.
        """
        key_block, is_visible = _streamed(self.config.band, query_block, self.queries, self.keys, step)
        return GridStep(example, group + self.covered.start, query_block, key_block, is_visible)

    def by_key(self, example: Array, group: Array, key_block: Array, step: Array) -> GridStep:
        """Return a grid step's indices in kernels that hold a block of keys in VMEM and load blocks of queries in turn.

        Only blocks with a query that may see one of the keys are loaded.
        """
        query_block, is_visible = _streamed(self.config.band.reversed, key_block, self.keys, self.queries, step)
        return GridStep(example, group + self.covered.start, query_block, key_block, is_visible)

    def spec(
        self, shape: tuple[int, ...], axes: tuple[int | None, ...], step_at: Callable[..., GridStep]
    ) -> pl.BlockSpec:
        """Return the `BlockSpec` of an array of which each grid step reads or writes one block, of the size `shape`.

        axes: for each axis of the array, which entry of `GridStep` is its block index; None for block 0.
        step_at: maps the indices of a grid step to its `GridStep`.
        """

        def index(*grid) -> tuple:
            place = step_at(*grid[:4])
            return tuple(0 if axis is None else place[axis] for axis in axes)

        return pl.BlockSpec(shape, index)

    def specs(self, step_at: Callable[..., GridStep], bias: Array | None = None) -> dict[str, pl.BlockSpec]:
        """Return {operand: `BlockSpec`}: for each array that the kernels take, the block that a grid step reads.

        step_at: maps the indices of a grid step to its `GridStep`.
        bias: the bias of the scores; without one, there is no operand `bias`.
        """
        queries = self.spec((1, self.queries.block, self.group * self.width), (0, 2, 1), step_at)
        keys = self.spec((1, self.keys.block, self.group * self.width), (0, 3, 1), step_at)
        query_row = self.spec((1, self.group, 1, self.queries.block), (0, 1, None, 2), step_at)
        specs = {
            "query": queries,
            "key": keys,
            "value": keys,
            "query_segments": self.spec((1, 1, self.queries.block), (0, None, 2), step_at),
            "key_segments": self.spec((1, 1, self.keys.block), (0, None, 3), step_at),
            "weights": self.spec((1, self.group, 1, self.keys.block), (0, 1, None, 3), step_at),
            "g_output": queries,
            **dict.fromkeys(("columns", "log_sums", "delta"), query_row),
            **dict.fromkeys(("g_squares", "g_overlap", "g_log_sums", "g_score_sums"), query_row),
        }
        if bias is not None:
            example, head = (None if size == 1 else axis for axis, size in enumerate(bias.shape[:2]))
            group = 1 if head is None else self.group
            specs["bias"] = self.spec((1, group, self.keys.block, self.queries.block), (example, head, 3, 2), step_at)
        return specs

    def moved_bytes(
        self, operands: dict[str, Array], results: list[jax.ShapeDtypeStruct], streamed: tuple[str, ...]
    ) -> float:
        """Return about how many bytes a kernel reads and writes, for the cost estimate.

        Each array counts once, and blocks of `streamed` sides once for every held block that they meet. With a band,
        fewer are read, because neighbouring steps may share a block. Not counted: segment ids and a shared bias that
        are read again for other heads. Of a grid that covers some of the heads, the same share of all arrays counts.

        streamed: sides (`queries`, `keys`) of which blocks pass through while a block of the other side is held: each
            of their blocks is read again for every block that is held and that it meets.
        """
        tiles = self.pairs / (self.queries.block * self.keys.block)  # for each example and head
        total = float(sum(math.prod(result.shape) * result.dtype.itemsize for result in results))
        for name, operand in operands.items():
            side = "keys" if name in _OF_KEYS else "queries"
            blocks = getattr(self, side).blocks
            # A single block stays where it is, and a tile of the bias belongs to one pair of blocks.
            times = tiles / blocks if name != "bias" and side in streamed and blocks > 1 else 1.0
            total += times * operand.size * operand.dtype.itemsize
        return total * self.groups * self.group / self.config.heads

    def run(
        self,
        name: str,
        kernel: Callable[[Tile, tuple, tuple], None],
        step_at: Callable[..., GridStep],
        steps: tuple[int, ...],
        operands: dict[str, Array | None],
        scalars: Array,
        results: list[tuple[jax.ShapeDtypeStruct, pl.BlockSpec]],
        scratch: list,
        products: int,
        streamed: tuple[str, ...],
        into: Sequence[Array | None] = (),
    ) -> list[Array]:
        """Run `kernel(tile, results, scratch)` on the tile of every grid step, and return the output arrays.

        step_at: maps the indices of a grid step to its `GridStep`.
        scalars: those of `KernelConfig.keep`.
        products: matrix products of Q x K x A, for the estimated cost.
        streamed: sides whose blocks are read several times, see `moved_bytes`.
        into: for the first results, the array to which this grid's blocks are written, from a grid that covers other
            heads; None for a new array, whose other blocks are undefined.
        """
        arrays = {key: operand for key, operand in operands.items() if operand is not None}
        specs, shapes = self.specs(step_at, operands.get("bias")), [shape for shape, _ in results]
        targets = {place: array for place, array in enumerate(into) if array is not None}
        first = 1 + len(arrays)  # index of the first target among the inputs

        def body(scalars, *refs):
            blocks, refs = Operands(**dict(zip(arrays, refs, strict=False))), refs[len(arrays) + len(targets) :]
            example, group, query, key, is_visible = step_at(*(pl.program_id(axis) for axis in range(4)))
            corner = (example, group * self.group, query * self.queries.block, key * self.keys.block)
            tile = Tile(self.config, corner, query, self.width, scalars, blocks, is_visible)
            kernel(tile, refs[: len(results)], refs[len(results) :])

        return pl.pallas_call(
            body,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=1,
                grid=steps,
                in_specs=[*(specs[key] for key in arrays), *(pl.BlockSpec(memory_space=pl.ANY) for _ in targets)],
                out_specs=[spec for _, spec in results],
                scratch_shapes=scratch,
            ),
            out_shape=shapes,
            input_output_aliases={first + index: place for index, place in enumerate(targets)},
            # Steps along the last two axes share results or scratch memory, so they must run in order.
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "parallel", "arbitrary", "arbitrary"), vmem_limit_bytes=_VMEM
            ),
            cost_estimate=cost(
                self.examples * self.groups * self.group * self.pairs,
                self.width,
                products,
                self.moved_bytes(arrays, shapes, streamed),
            ),
            interpret=self.config.interpret,
            name=name,
        )(scalars, *arrays.values(), *targets.values())
