"""Guided attention as GPU kernels (Pallas, Triton): no array of L x L elements is written but the gradient of a bias.

Each program of the forward kernel holds a block of queries and streams the keys past it, with the running softmax of
Milakov & Gimelshein (2018), in which the two statistics follow their rows' largest score m as well:

    a = exp(m_old - m_new):   squares <- a^2 squares + sum e^2,   overlap <- a overlap + sum e P,   e = exp(s - m_new).

It keeps each row's m + log(sum e), from which the backward kernels make any element of H again (Dao 2023): one holds queries
for dQ, one holds keys for dK and dV. Each result has one program that writes it, so that two runs agree to the last bit.

For NVIDIA GPUs of compute capability 8.0 or more, rows of any length, and heads of a width up to 256; where shared memory is
small (100 KiB, as an L4 has), up to 128.

Shape letters: B batch, L length, Q query position, K key position, H head, V width of a head, N = H * V all heads' width.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl

from ag_jax.attention.kernels.gpu.grid import LETTERS, Blocks, Call, Plan, choose_plan, visits
from ag_jax.attention.kernels.gpu.tile import Head, Kind, Ref, Tile, power_of_two, product
from ag_jax.attention.kernels.interface import KEPT, Shape

Array = jax.Array


def _of_block(call: Call, refs: dict[str, Ref], blocks: Blocks) -> tuple[Head, Array, Array, Array]:
    """The program's head, the first row that it holds, and the first and last + 1 block that it streams."""
    block, head, example = (pl.program_id(axis) for axis in range(3))
    streamed = refs["visits"][example, block, 0], refs["visits"][example, block, 1]
    return Head(call.kind, refs, example, head), block * blocks.held, *streamed


def _forward_kernel(call: Call, blocks: Blocks, refs: dict[str, Ref], results: dict[str, Ref]) -> None:
    head, held, first, last = _of_block(call, refs, blocks)
    queries, shape, scale = head.queries(held, blocks.held), call.kind.shape, call.kind.scale

    def step(block: Array, carry: tuple) -> tuple:
        largest, total, mixed, *sums = carry
        tile = Tile(head, queries, head.keys(block * blocks.streamed, blocks.streamed), queries_first=True)
        scores_QK = tile.scores()
        highest = jnp.maximum(largest, jnp.max(scores_QK, axis=1))
        shrink = jnp.exp2(scale * (largest - highest))
        exponentials_QK = call.kind.exponential(scores_QK, (scale * highest)[:, None])
        total = shrink * total + jnp.sum(exponentials_QK, axis=1)
        if shape.guided:
            squares = shrink * shrink * sums[0] + jnp.sum(exponentials_QK * exponentials_QK, axis=1)
            sums = (squares, shrink * sums[1] + jnp.sum(exponentials_QK * tile.target(), axis=1))
        if shape.rate:
            exponentials_QK = jnp.where(tile.keep(), exponentials_QK, 0.0)
        value = tile.keys.value
        mixed = shrink[:, None] * mixed + product(exponentials_QK.astype(value.dtype), value, 1, 0)
        return highest, total, mixed, *sums

    zero = jnp.zeros((blocks.held,), jnp.float32)
    mixed = jnp.zeros((blocks.held, power_of_two(call.kind.shape.width)), jnp.float32)
    start = (jnp.full_like(zero, -jnp.inf), zero, mixed, *([zero] * (2 * shape.guided)))
    largest, total, mixed, *sums = jax.lax.fori_loop(first, last, step, start)
    inverse = 1.0 / total
    head.store_rows(results["output"], held, mixed * (inverse * call.kind.restored)[:, None])
    head.store_vector(results["log_sums"], held, scale * largest + math.log2(math.e) * jnp.log(total))
    if shape.guided:
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

    start = jnp.zeros((blocks.held, power_of_two(call.kind.shape.width)), jnp.float32)
    g_query = jax.lax.fori_loop(first, last, step, start)
    head.store_rows(results["g_query"], held, g_query * (call.kind.restored * call.kind.shape.width**-0.5))


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

    start = jnp.zeros((blocks.held, power_of_two(call.kind.shape.width)), jnp.float32)
    g_key, g_value = jax.lax.fori_loop(first, last, step, (start, start))
    head.store_rows(results["g_key"], held, g_key * (call.kind.restored * call.kind.shape.width**-0.5))
    head.store_rows(results["g_value"], held, g_value * call.kind.restored)


def _bias_kernel(call: Call, blocks: Blocks, refs: dict[str, Ref], results: dict[str, Ref]) -> None:
    """dbias where a block of queries and one of keys meet, summed over the examples and heads that share it."""
    keys_block, queries_block, place = (pl.program_id(axis) for axis in range(3))
    first_query, first_key = queries_block * blocks.held, keys_block * blocks.streamed
    examples, heads = results["g_bias"].shape[:2]
    sharing_examples, sharing_heads = call.examples // examples, call.kind.shape.heads // heads

    def head_of(index: Array) -> Head:
        example = jax.lax.div(place, heads) + jax.lax.div(index, sharing_heads)
        return Head(call.kind, refs, example, jax.lax.rem(place, heads) + jax.lax.rem(index, sharing_heads))

    def step(index: Array, sum_QK: Array) -> Array:
        head = head_of(index)
        queries, keys = head.queries(first_query, blocks.held), head.keys(first_key, blocks.streamed)
        return sum_QK + Tile(head, queries, keys, queries_first=True).gradient()[0]

    start = jnp.zeros((blocks.held, blocks.streamed), jnp.float32)
    sum_QK = jax.lax.fori_loop(0, sharing_examples * sharing_heads, step, start)
    head_of(jnp.int32(0)).store_matrix(results["g_bias"], first_query, first_key, sum_QK * call.kind.restored)


def _given(call: Call, operands: dict[str, Array | None]) -> dict[str, Array]:
    """The operands that there are, with the heads of rows apart."""
    apart = (call.examples, call.kind.shape.length, call.kind.shape.heads, call.kind.shape.width)
    given = {name: array for name, array in operands.items() if array is not None}
    return {name: array.reshape(apart) if LETTERS[name] == "BLHV" else array for name, array in given.items()}


def _over_rows(call: Call, name: str, kernel: Callable, blocks: Blocks, operands: dict, results: dict) -> list[Array]:
    """Run a kernel of which each program holds one block of rows of one head."""
    shape, blocks = call.kind.shape, blocks.fit(call.kind.shape.length)
    operands = operands | {"visits": visits(operands["sequences"], blocks)}
    grid = (pl.cdiv(shape.length, blocks.held), shape.heads, call.examples)
    return call.run(name, functools.partial(kernel, call, blocks), blocks, grid, operands, results)


def _backward_bias(call: Call, operands: dict[str, Array]) -> Array:
    """dbias. A kernel of its own: nobody pays for it, by its absence from the compiled program, unless bias is learnt."""
    bias, length = operands["bias"], call.kind.shape.length
    blocks = call.plan.bias.fit(length)
    grid = (pl.cdiv(length, blocks.streamed), pl.cdiv(length, blocks.held), bias.shape[0] * bias.shape[1])
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
    if call.kind.shape.guided:
        results |= {"squares": call.vectors(), "overlap": call.vectors()}
    given = _given(call, operands)
    output, log_sums, *statistics = _over_rows(call, "attention", _forward_kernel, call.plan.forward, given, results)
    output = output.reshape(query.shape)
    output, log_sums, statistics = checkpoint_name((output, log_sums, statistics), KEPT)
    return (output, statistics), (operands, output, log_sums, statistics)


def _attention_backward(call: Call, residuals: tuple, cotangents: tuple):
    operands, output, log_sums, statistics = residuals
    g_output, g_statistics = cotangents
    shape, dtype = call.kind.shape, operands["query"].dtype
    products = (g_output.astype(jnp.float32) * output).reshape(*output.shape[:2], shape.heads, -1)
    delta = products.sum(-1).swapaxes(1, 2)
    for factor, statistic, g_statistic in zip((2.0, 1.0), statistics, g_statistics, strict=False):
        delta += factor * statistic * g_statistic
    # Dropout's factor: rather than an array of its own for g_output / (1 - rate), some rows take its inverse here.
    vectors = [(1.0 - shape.rate) * vector for vector in (delta, *g_statistics)]
    known = operands | {"g_output": g_output.astype(dtype), "log_sums": log_sums}
    given = _given(call, known | dict(zip(("delta", "g_squares", "g_overlap"), vectors, strict=False)))
    row = call.rows(dtype)
    rows = _over_rows(call, "attention_query_gradient", _query_kernel, call.plan.query, given, {"g_query": row})
    of_keys = {"g_key": row, "g_value": row}
    rows += _over_rows(call, "attention_key_gradient", _key_kernel, call.plan.key, given, of_keys)
    gradients = dict.fromkeys(operands) | {
        name: gradient.reshape(output.shape) for name, gradient in zip(("query", "key", "value"), rows, strict=True)
    }
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

    plan: of blocks, otherwise than `choose_plan` has it. Heads of a width above 256 do not fit (`gpu_grid.refuses`).
    """
    kind = Kind(shape, interpret)
    call = Call(kind, query_BLN.shape[0], plan or choose_plan(kind, query_BLN.dtype.itemsize))
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
