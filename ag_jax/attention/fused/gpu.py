"""Guided attention as GPU kernels (Pallas, Triton): no array of L x L elements is written but the gradient of a bias.

Each program of the forward kernel holds a block of queries and streams the keys past it, with the running softmax of
Milakov & Gimelshein (2018), in which the two statistics follow their rows' largest score m as well:

    a = exp(m_old - m_new):   squares <- a^2 squares + sum e^2,   overlap <- a overlap + sum e P,   e = exp(s - m_new).

It keeps each row's m + log(sum e), from which the backward kernels make any element of H again (Dao 2023): one holds queries
for dQ, one holds keys for dK and dV. Each result has one program that writes it, so that two runs agree to the last bit.

Shape letters: B batch, L length, Q query position, K key position, H head, V width of a head, N = H * V all heads' width.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from ag_jax.attention.fused.contract import Shape
from ag_jax.attention.fused.gpu_tiles import LOG2_E, Head, Ref, Tile, power_of_two, product

Array = jax.Array

# Axes of all that a kernel reads or writes: L and V are bounded, T counts the program's blocks and C is a pair.
LETTERS = {
    **dict.fromkeys(("query", "key", "value", "g_output", "output", "g_query", "g_key", "g_value"), "BLHV"),
    **dict.fromkeys(("log_sums", "delta", "squares", "overlap", "g_squares", "g_overlap", "weights"), "BHL"),
    **dict.fromkeys(("bias", "g_bias"), "BHLL"),
    "sequences": "BL",
    "visits": "BTC",
    "shifts": "H",
    "numbers": "N",
}


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
        return dataclasses.replace(self, held=held, streamed=streamed, warps=min(self.warps, held // 16))


@dataclasses.dataclass(frozen=True)
class Plan:
    """The blocks of all four kernels; `bias` holds queries."""

    forward: Blocks
    query: Blocks
    key: Blocks
    bias: Blocks


def choose_plan(width: int, itemsize: int) -> Plan:
    """What fits into registers and shared memory of a multiprocessor, by the bytes of a row of a head."""
    if power_of_two(width) * itemsize <= 128:
        return Plan(Blocks(128, 64, 8, 3), Blocks(128, 64, 8, 2), Blocks(128, 64, 8, 2), Blocks(64, 64, 4, 2))
    if power_of_two(width) * itemsize <= 256:
        return Plan(Blocks(128, 64, 8, 2), Blocks(64, 64, 4, 2), Blocks(64, 64, 4, 2), Blocks(64, 64, 4, 1))
    return Plan(*[Blocks(64, 32, 4, 1)] * 4)


@dataclasses.dataclass(frozen=True)
class Call:
    """What all kernels of a call are compiled for. `interpret` runs them as plain JAX, for tests on a CPU."""

    shape: Shape
    examples: int
    width: int
    plan: Plan
    interpret: bool

    def run(
        self,
        name: str,
        kernel: Callable[[Head, dict[str, Ref]], None],
        blocks: Blocks,
        grid: tuple[int, int, int],
        operands: dict[str, Array],
        results: dict[str, jax.ShapeDtypeStruct],
    ) -> list[Array]:
        """`kernel(refs, results)` for every step of the grid, on references to whole arrays; returns the results."""
        longest = max(blocks.held, blocks.streamed)
        bounded = {"L": -(-self.shape.length // longest) * longest, "V": power_of_two(self.width)}

        def whole(name: str, array: Array | jax.ShapeDtypeStruct) -> pl.BlockSpec:
            window = tuple(bounded.get(letter, size) for letter, size in zip(LETTERS[name], array.shape, strict=True))
            return pl.BlockSpec(window, lambda *_: (0,) * len(window))

        def body(*refs: Ref) -> None:
            kernel(dict(zip(operands, refs)), dict(zip(results, refs[len(operands) :])))

        return pl.pallas_call(
            body,
            grid=grid,
            in_specs=[whole(*item) for item in operands.items()],
            out_specs=[whole(*item) for item in results.items()],
            out_shape=list(results.values()),
            compiler_params=triton.CompilerParams(num_warps=blocks.warps, num_stages=blocks.stages),
            interpret=self.interpret,
            name=name,
        )(*operands.values())

    def rows(self, dtype: jnp.dtype) -> jax.ShapeDtypeStruct:
        """A result that lies like `query`."""
        return jax.ShapeDtypeStruct((self.examples, self.shape.length, self.shape.heads, self.width), dtype)

    def vectors(self) -> jax.ShapeDtypeStruct:
        """A number for each query of each head."""
        return jax.ShapeDtypeStruct((self.examples, self.shape.heads, self.shape.length), jnp.float32)


def visits(sequences_BL: Array, blocks: Blocks) -> Array:
    """`BTC` int32: first and last + 1 of the streamed blocks that held block t may have a sequence in common with.

    A block is taken for all numbers from its smallest to its largest: documents of a row and its padding are skipped where
    they lie one after the other, and a row in another order is only slower.
    """
    length = sequences_BL.shape[1]

    def ends(size: int) -> tuple[Array, Array]:
        in_blocks = jnp.pad(sequences_BL, ((0, 0), (0, -length % size)), mode="edge").reshape(-1, -(-length // size), size)
        return in_blocks.min(-1), in_blocks.max(-1)

    (held_from, held_to), (from_, to) = ends(blocks.held), ends(blocks.streamed)
    meet_BTS = (held_from[:, :, None] <= to[:, None, :]) & (from_[:, None, :] <= held_to[:, :, None])
    last = meet_BTS.shape[-1] - jnp.argmax(meet_BTS[..., ::-1], -1)
    return jnp.stack([jnp.argmax(meet_BTS, -1), last], -1).astype(jnp.int32)


def _of_block(call: Call, refs: dict[str, Ref], blocks: Blocks) -> tuple[Head, Array, Array, Array]:
    """The program's head, the first row that it holds, and the first and last + 1 block that it streams."""
    block, head, example = (pl.program_id(axis) for axis in range(3))
    streamed = refs["visits"][example, block, 0], refs["visits"][example, block, 1]
    return Head(call.shape, call.width, refs, example, head), block * blocks.held, *streamed


def _forward_kernel(call: Call, blocks: Blocks, refs: dict[str, Ref], results: dict[str, Ref]) -> None:
    head, held, first, last = _of_block(call, refs, blocks)
    queries = head.queries(held, blocks.held)

    def step(block: Array, carry: tuple) -> tuple:
        largest, total, mixed, *sums = carry
        tile = Tile(head, queries, head.keys(block * blocks.streamed, blocks.streamed), queries_first=True)
        scores_QK = tile.scores()
        highest = jnp.maximum(largest, jnp.max(scores_QK, axis=1))
        shrink, exponentials_QK = jnp.exp2(largest - highest), jnp.exp2(scores_QK - highest[:, None])
        total = shrink * total + jnp.sum(exponentials_QK, axis=1)
        if call.shape.guided:
            squares = shrink * shrink * sums[0] + jnp.sum(exponentials_QK * exponentials_QK, axis=1)
            sums = (squares, shrink * sums[1] + jnp.sum(exponentials_QK * tile.target(), axis=1))
        if call.shape.rate:
            exponentials_QK = exponentials_QK * tile.multiplier()
        value = tile.keys.value
        mixed = shrink[:, None] * mixed + product(exponentials_QK.astype(value.dtype), value, 1, 0)
        return highest, total, mixed, *sums

    zero = jnp.zeros((blocks.held,), jnp.float32)
    mixed = jnp.zeros((blocks.held, power_of_two(call.width)), jnp.float32)
    start = (jnp.full_like(zero, -jnp.inf), zero, mixed, *([zero] * (2 * call.shape.guided)))
    largest, total, mixed, *sums = jax.lax.fori_loop(first, last, step, start)
    inverse = 1.0 / total
    head.store_rows(results["output"], held, mixed * inverse[:, None])
    head.store_vector(results["log_sums"], held, largest + LOG2_E * jnp.log(total))
    if call.shape.guided:
        head.store_vector(results["squares"], held, sums[0] * inverse * inverse)
        head.store_vector(results["overlap"], held, sums[1] * inverse)


def _query_kernel(call: Call, blocks: Blocks, refs: dict[str, Ref], results: dict[str, Ref]) -> None:
    """dQ."""
    head, held, first, last = _of_block(call, refs, blocks)
    queries = head.queries(held, blocks.held)

    def step(block: Array, g_query: Array) -> Array:
        keys = head.keys(block * blocks.streamed, blocks.streamed)
        dS_QK, _ = Tile(head, queries, keys, queries_first=True).gradient()
        return g_query + product(dS_QK.astype(keys.key.dtype), keys.key, 1, 0)

    start = jnp.zeros((blocks.held, power_of_two(call.width)), jnp.float32)
    g_query = jax.lax.fori_loop(first, last, step, start)
    head.store_rows(results["g_query"], held, g_query * call.width**-0.5)


def _key_kernel(call: Call, blocks: Blocks, refs: dict[str, Ref], results: dict[str, Ref]) -> None:
    """dK and dV."""
    head, held, first, last = _of_block(call, refs, blocks)
    keys = head.keys(held, blocks.held)

    def step(block: Array, carry: tuple) -> tuple:
        g_key, g_value = carry
        queries = head.queries(block * blocks.streamed, blocks.streamed)
        dS_KQ, thinned_KQ = Tile(head, queries, keys, queries_first=False).gradient()
        g_value += product(thinned_KQ.astype(queries.g_output.dtype), queries.g_output, 1, 0)
        return g_key + product(dS_KQ.astype(queries.query.dtype), queries.query, 1, 0), g_value

    start = jnp.zeros((blocks.held, power_of_two(call.width)), jnp.float32)
    g_key, g_value = jax.lax.fori_loop(first, last, step, (start, start))
    head.store_rows(results["g_key"], held, g_key * call.width**-0.5)
    head.store_rows(results["g_value"], held, g_value)


def _bias_kernel(call: Call, blocks: Blocks, refs: dict[str, Ref], results: dict[str, Ref]) -> None:
    """dbias where a block of queries and one of keys meet, summed over the examples and heads that share it."""
    keys_block, queries_block, place = (pl.program_id(axis) for axis in range(3))
    first_query, first_key = queries_block * blocks.held, keys_block * blocks.streamed
    examples, heads = results["g_bias"].shape[:2]
    sharing_examples, sharing_heads = call.examples // examples, call.shape.heads // heads

    def head_of(index: Array) -> Head:
        example = jax.lax.div(place, heads) + jax.lax.div(index, sharing_heads)
        return Head(call.shape, call.width, refs, example, jax.lax.rem(place, heads) + jax.lax.rem(index, sharing_heads))

    def step(index: Array, sum_QK: Array) -> Array:
        head = head_of(index)
        queries, keys = head.queries(first_query, blocks.held), head.keys(first_key, blocks.streamed)
        return sum_QK + Tile(head, queries, keys, queries_first=True).gradient()[0]

    start = jnp.zeros((blocks.held, blocks.streamed), jnp.float32)
    sum_QK = jax.lax.fori_loop(0, sharing_examples * sharing_heads, step, start)
    head_of(jnp.int32(0)).store_matrix(results["g_bias"], first_query, first_key, sum_QK)


def _given(call: Call, operands: dict[str, Array | None]) -> dict[str, Array]:
    """The operands that there are, with the heads of rows apart."""
    apart = (call.examples, call.shape.length, call.shape.heads, call.width)
    given = {name: array for name, array in operands.items() if array is not None}
    return {name: array.reshape(apart) if LETTERS[name] == "BLHV" else array for name, array in given.items()}


def _over_rows(call: Call, name: str, kernel: Callable, blocks: Blocks, operands: dict, results: dict) -> list[Array]:
    """Run a kernel of which each program holds one block of rows of one head."""
    blocks = blocks.fit(call.shape.length)
    operands = operands | {"visits": visits(operands["sequences"], blocks)}
    grid = (pl.cdiv(call.shape.length, blocks.held), call.shape.heads, call.examples)
    return call.run(name, functools.partial(kernel, call, blocks), blocks, grid, operands, results)


def _backward_bias(call: Call, operands: dict[str, Array]) -> Array:
    """dbias. A kernel of its own: nobody pays for it, by its absence from the compiled program, unless bias is learnt."""
    bias, blocks = operands["bias"], call.plan.bias.fit(call.shape.length)
    grid = (*(pl.cdiv(call.shape.length, size) for size in (blocks.streamed, blocks.held)), bias.shape[0] * bias.shape[1])
    result = {"g_bias": jax.ShapeDtypeStruct(bias.shape, jnp.float32)}
    kernel = functools.partial(_bias_kernel, call, blocks)
    (gradient,) = call.run("attention_bias_gradient", kernel, blocks, grid, operands, result)
    return gradient.astype(bias.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(call: Call, operands: dict[str, Array | None]) -> tuple[Array, list[Array]]:
    """Output `BLN` and the statistics."""
    return _attention_forward(call, operands)[0]


def _attention_forward(call: Call, operands: dict[str, Array | None]):
    query = operands["query"]
    results = {"output": call.rows(query.dtype), "log_sums": call.vectors()}
    if call.shape.guided:
        results |= {"squares": call.vectors(), "overlap": call.vectors()}
    given = _given(call, operands)
    output, log_sums, *statistics = _over_rows(call, "attention", _forward_kernel, call.plan.forward, given, results)
    output = output.reshape(query.shape)
    return (output, statistics), (operands, output, log_sums, statistics)


def _attention_backward(call: Call, residuals: tuple, cotangents: tuple):
    operands, output, log_sums, statistics = residuals
    g_output, g_statistics = cotangents
    dtype = operands["query"].dtype
    by_head = (g_output.astype(jnp.float32) * output).reshape(*output.shape[:2], call.shape.heads, call.width).sum(-1)
    delta = by_head.swapaxes(1, 2)
    for factor, statistic, g_statistic in zip((2.0, 1.0), statistics, g_statistics):
        delta += factor * statistic * g_statistic
    known = operands | {"g_output": g_output.astype(dtype), "log_sums": log_sums, "delta": delta}
    given = _given(call, known | dict(zip(("g_squares", "g_overlap"), g_statistics)))

    gradients = dict.fromkeys(operands)
    rows = {name: call.rows(dtype) for name in ("g_query", "g_key", "g_value")}
    of_query, of_keys = {"g_query": rows.pop("g_query")}, rows
    found = _over_rows(call, "attention_query_gradient", _query_kernel, call.plan.query, given, of_query)
    found += _over_rows(call, "attention_key_gradient", _key_kernel, call.plan.key, given, of_keys)
    for name, gradient in zip(("query", "key", "value"), found, strict=True):
        gradients[name] = gradient.reshape(output.shape)
    if operands["bias"] is not None:
        gradients["bias"] = _backward_bias(call, given)
    return (gradients,)


_attention.defvjp(_attention_forward, _attention_backward)


def attend(
    shape: Shape,
    query_BLN: Array,
    key_BLN: Array,
    value_BLN: Array,
    sequences_BL: Array,
    bias: Array | None,
    shifts_H: Array | None,
    weights_BHK: Array | None,
    numbers: Array,
    *,
    plan: Plan | None = None,
    interpret: bool = False,
) -> tuple[Array, Array | None, Array | None]:
    """Output `BLN`, and of all heads `sum_of_squares_BHQ` and `overlap_BHQ` if `shape.guided` (`contract.Kernel`).

    plan: of blocks, otherwise than `choose_plan` has it.
    """
    width = query_BLN.shape[2] // shape.heads
    call = Call(
        shape, query_BLN.shape[0], width, plan or choose_plan(width, query_BLN.dtype.itemsize), interpret
    )
    operands = {
        "query": query_BLN,
        "key": key_BLN,
        "value": value_BLN,
        "sequences": sequences_BL,
        "bias": bias,
        "shifts": shifts_H,
        "weights": weights_BHK,
        "numbers": numbers if shape.rate else None,
    }
    output_BLN, statistics = _attention(call, operands)
    return output_BLN, *(statistics or (None, None))
