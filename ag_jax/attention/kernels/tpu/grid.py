"""How a call of attention is cut into the grid steps of a TPU kernel.

Shape letters: B batch, L length, K keys of a block, Q queries of a block, H head, V width of a head, N = H * V.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ag_jax.attention.kernels.interface import Shape
from ag_jax.attention.kernels.tpu.tile import Operands, Tile, cost

Array = jax.Array
Place = tuple[Any, Any, Any, Any]  # example, group of heads, block of queries, block of keys

BLOCK = 512  # rows and columns of the largest tile
_LANES = 128
_VMEM = 64 * 2**20


def head_group(heads: int, head_width: int) -> int:
    """Heads of a grid step: the fewest that divide `heads` and fill whole lanes together, or else all."""
    fitting = (group for group in range(1, heads) if heads % group == 0 and group * head_width % _LANES == 0)
    return next(fitting, heads)


def lane_width(heads: int, head_width: int, length: int) -> int:
    """Lanes that a head takes: its width, or the next that lets few heads fill whole lanes where rows are long.

    A row of several blocks has the dQ of its whole group of heads in on-chip memory, of which a TPU v4 has 16 MiB.
    """
    if length <= BLOCK or head_group(heads, head_width) * head_width <= _LANES:
        return head_width
    return next((width for width in (8, 16, 32, 64) if width >= head_width), -(-head_width // _LANES) * _LANES)


def block_length(length: int) -> int:
    """Rows of a block: all of them up to `BLOCK`, beyond that the multiple of 128 that needs the least padding."""
    if length <= BLOCK:
        return length
    blocks = -(-length // BLOCK)
    return -(-length // (blocks * _LANES)) * _LANES


def refuses(device_kind: str, head_width: int, length: int) -> str | None:
    """Why the kernels cannot run on a chip, or None if they can.

    A long row has its dQ in on-chip memory: float32, and two copies on its way out. It may take half of that memory.
    """
    if device_kind.startswith(("TPU v2", "TPU v3")):
        return f"the kernels are for TPU v4 and later, not {device_kind}: it multiplies no bfloat16 tiles"
    memory = 16 * 2**20 if device_kind.startswith("TPU v4") else _VMEM
    longest = memory // 2 // (max(_LANES, head_width) * 8)
    if length > longest:
        return f"rows of {length} tokens are longer than the {longest} whose gradient fits on the chip"
    return None


@dataclasses.dataclass(frozen=True)
class Grid:
    """The grid of a call whose arrays are `(examples, length, heads * width)`, with `length` in whole blocks.

    `interpret` runs kernels as plain JAX, for tests on a CPU.
    """

    shape: Shape
    examples: int
    length: int
    width: int
    interpret: bool

    @property
    def group(self) -> int:
        """Heads of a grid step."""
        return head_group(self.shape.heads, self.width)

    @property
    def block(self) -> int:
        """Rows of a block."""
        return block_length(self.length)

    @property
    def blocks(self) -> int:
        """Blocks of a row."""
        return self.length // self.block

    @property
    def groups(self) -> int:
        """Groups of heads."""
        return self.shape.heads // self.group

    def spec(self, shape: tuple[int, ...], axes: tuple[int | None, ...], at: Callable[..., Place]) -> pl.BlockSpec:
        """Blocks of a `shape`; each of its axes lies where the grid step is on that axis of a `Place`, or at 0."""

        def index(*grid) -> tuple:
            place = at(*grid[:4])
            return tuple(0 if axis is None else place[axis] for axis in axes)

        return pl.BlockSpec(shape, index)

    def specs(self, at: Callable[..., Place], bias: Array | None = None) -> dict[str, pl.BlockSpec]:
        """The block of every operand that a grid step reads, or of a result that lies like it."""
        queries = self.spec((1, self.block, self.group * self.width), (0, 2, 1), at)
        keys = self.spec((1, self.block, self.group * self.width), (0, 3, 1), at)
        query_row = self.spec((1, self.group, 1, self.block), (0, 1, None, 2), at)
        specs = {
            "query": queries,
            "key": keys,
            "value": keys,
            "query_sequences": self.spec((1, 1, self.block), (0, None, 2), at),
            "key_sequences": self.spec((1, 1, self.block), (0, None, 3), at),
            "weights": self.spec((1, self.group, 1, self.block), (0, 1, None, 3), at),
            "g_output": queries,
            **dict.fromkeys(("g_squares", "g_overlap", "log_sums", "delta"), query_row),
        }
        if bias is not None:
            example, head = (None if size == 1 else axis for axis, size in enumerate(bias.shape[:2]))
            group = 1 if head is None else self.group
            specs["bias"] = self.spec((1, group, self.block, self.block), (example, head, 3, 2), at)
        return specs

    def run(
        self,
        name: str,
        kernel: Callable[[Tile, tuple, tuple], None],
        at: Callable[..., Place],
        steps: tuple[int, int, int, int],
        operands: dict[str, Array | None],
        scalars: tuple[Array, Array],
        results: list[tuple[jax.ShapeDtypeStruct, pl.BlockSpec]],
        scratch: list,
        products: int,
    ) -> list[Array]:
        """`kernel(tile, results, scratch)` on the tile of every grid step; `at(*step)` is where the step is.

        scalars: the shifts of the heads, and those of `Shape.keep`; products: matrix products of L x L x N, for the cost.
        """
        given = {key: operand for key, operand in operands.items() if operand is not None}
        specs, shapes = self.specs(at, operands.get("bias")), [shape for shape, _ in results]

        def body(shifts, numbers, *refs):
            blocks, refs = Operands(**dict(zip(given, refs, strict=False))), refs[len(given) :]
            example, group, query, key = at(*(pl.program_id(axis) for axis in range(4)))
            corner = (example, group * self.group, query * self.block, key * self.block)
            tile = Tile(self.shape, corner, self.width, shifts, numbers, blocks)
            kernel(tile, refs[: len(results)], refs[len(results) :])

        return pl.pallas_call(
            body,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=2,
                grid=steps,
                in_specs=[specs[key] for key in given],
                out_specs=[spec for _, spec in results],
                scratch_shapes=scratch,
            ),
            out_shape=shapes,
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "parallel", "arbitrary", "arbitrary"), vmem_limit_bytes=_VMEM
            ),
            cost_estimate=cost(self.shape, list(given.values()), shapes, products),
            interpret=self.interpret,
            name=name,
        )(*scalars, *given.values())
