"""Guided attention as GPU kernels (Pallas, Triton): no array of Q x K elements is written but the gradient of a bias.

Each program of the forward kernel *holds* a block of queries, which stays in fast memory, and *streams* the keys:
blocks of keys pass through one after the other. It keeps the running softmax of Milakov & Gimelshein (2018), in which
statistics of guidance follow their rows' largest score m as well:

    a = exp(m_old - m_new):   squares <- a^2 squares + sum e^2,   overlap <- a overlap + sum e P,   e = exp(s - m_new).

It saves each row's m + log(sum e), from which the backward kernels recompute any element of H (Dao 2023): one holds
queries for dQ, one holds keys for dK and dV. Each result has one program that writes it, so that two runs agree to the
last bit. Programs stream only the blocks that their own may see: of the same documents, and inside the band of visible
keys.

For NVIDIA GPUs of compute capability 8.0 or more, rows of any length, and heads of a width up to 256; where shared
memory is small (100 KiB, as an L4 has), up to 128.

Shape letters: B batch, Q query position, K key position, H head, W width of a head, A = H * W width of all heads.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl

from ag_jax.attention.kernels.gpu.grid import LETTERS, Blocks, Call, KernelBlocks, choose_blocks, visits
from ag_jax.attention.kernels.gpu.tile import HeadRefs, Ref, ScoreTile, exponential, power_of_two, product, score_scale
from ag_jax.attention.kernels.interface import MASKED_SCORE, RESIDUALS, STATISTICS, KernelConfig, KernelInputs


def _program_place(call: Call, refs: dict[str, Ref], blocks: Blocks) -> tuple[HeadRefs, Array, Array, Array]:
    """Return a Triton program's (head, first query or key position, first streamed block, block after the last)."""
    block, head, example = (pl.program_id(axis) for axis in range(3))
    streamed = refs["visits"][example, block, 0], refs["visits"][example, block, 1]
    return HeadRefs(call.config, refs, example, head), block * blocks.held, *streamed


def _forward_kernel(call: Call, blocks: Blocks, refs: dict[str, Ref], results: dict[str, Ref]) -> None:
    """Write output, log-sum-exps (to the base 2) and guidance statistics of a block of queries to `results`."""
    head, held, first, last = _program_place(call, refs, blocks)
    queries, config, scale = head.queries(held, blocks.held), call.config, score_scale(call.config)

    def step(block: Array, carry: tuple) -> tuple:
        largest, total, mixed, *sums = carry
        tile = ScoreTile(head, queries, head.keys(block * blocks.streamed, blocks.streamed), queries_first=True)
        scores_QK = tile.scores()
        highest = jnp.maximum(largest, jnp.max(scores_QK, axis=1))
        shrink = jnp.exp2(scale * (largest - highest))
        exponentials_QK = exponential(config, scores_QK, (scale * highest)[:, None])
        total = shrink * total + jnp.sum(exponentials_QK, axis=1)
        if config.guided:
            P_QK = tile.target()
            if config.is_cross_entropy:
                of_row = sums[0] + jnp.sum(scores_QK * P_QK, axis=1)
            else:
                of_row = shrink * shrink * sums[0] + jnp.sum(exponentials_QK * exponentials_QK, axis=1)
            sums = [of_row, shrink * sums[1] + jnp.sum(exponentials_QK * P_QK, axis=1)]
        if config.rate:
            exponentials_QK = jnp.where(tile.keep(), exponentials_QK, 0.0)
        value = tile.keys.value
        mixed = shrink[:, None] * mixed + product(exponentials_QK.astype(value.dtype), value, 1, 0)
        return highest, total, mixed, *sums

    zero = jnp.zeros((blocks.held,), jnp.float32)
    mixed = jnp.zeros((blocks.held, power_of_two(call.config.width)), jnp.float32)
    start = (jnp.full_like(zero, -jnp.inf), zero, mixed, *([zero] * (2 * config.guided)))
    largest, total, mixed, *sums = jax.lax.fori_loop(first, last, step, start)
    # Rows without visible keys: everything is 0 here, and H = 2^(MASKED_SCORE - 0) = 0 in the backward pass.
    sees_keys = largest > MASKED_SCORE
    inverse = jnp.where(sees_keys, 1.0 / total, 0.0)
    head.store_query_vectors(results["output"], held, mixed * (inverse * config.dropout_scale)[:, None])
    log_sums = jnp.where(sees_keys, scale * largest + math.log2(math.e) * jnp.log(total), 0.0)
    head.store_query_numbers(results["log_sums"], held, log_sums)
    if config.is_cross_entropy:
        head.store_query_numbers(results["score_sums"], held, sums[0] * config.width**-0.5)
    elif config.guided:
        head.store_query_numbers(results["squares"], held, sums[0] * inverse * inverse)
    if config.guided:
        head.store_query_numbers(results["overlap"], held, sums[1] * inverse)


def _query_kernel(call: Call, blocks: Blocks, refs: dict[str, Ref], results: dict[str, Ref]) -> None:
    """Write dQ, the gradient of the loss by a block of queries, to `results`."""
    head, held, first, last = _program_place(call, refs, blocks)
    queries = head.queries(held, blocks.held)

    def step(block: Array, g_query: Array) -> Array:
        keys = head.keys(block * blocks.streamed, blocks.streamed)
        dS_QK, _ = ScoreTile(head, queries, keys, queries_first=True).gradient()
        return g_query + product(dS_QK.astype(keys.key.dtype), keys.key, 1, 0)

    start = jnp.zeros((blocks.held, power_of_two(call.config.width)), jnp.float32)
    g_query = jax.lax.fori_loop(first, last, step, start)
    head.store_query_vectors(results["g_query"], held, g_query * (call.config.dropout_scale * call.config.width**-0.5))


def _key_kernel(call: Call, blocks: Blocks, refs: dict[str, Ref], results: dict[str, Ref]) -> None:
    """Write dK and dV, the gradients of the loss by a block of keys and by their values, to `results`."""
    head, held, first, last = _program_place(call, refs, blocks)
    keys = head.keys(held, blocks.held)

    def step(block: Array, carry: tuple) -> tuple:
        g_key, g_value = carry
        queries = head.queries(block * blocks.streamed, blocks.streamed)
        dS_KQ, dropped_KQ = ScoreTile(head, queries, keys, queries_first=False).gradient()
        g_value += product(dropped_KQ.astype(queries.g_output.dtype), queries.g_output, 1, 0)
        return g_key + product(dS_KQ.astype(queries.query.dtype), queries.query, 1, 0), g_value

    start = jnp.zeros((blocks.held, power_of_two(call.config.width)), jnp.float32)
    g_key, g_value = jax.lax.fori_loop(first, last, step, (start, start))
    head.store_key_vectors(results["g_key"], held, g_key * (call.config.dropout_scale * call.config.width**-0.5))
    head.store_key_vectors(results["g_value"], held, g_value * call.config.dropout_scale)


def _bias_kernel(call: Call, blocks: Blocks, refs: dict[str, Ref], results: dict[str, Ref]) -> None:
    """Write a block of dbias, the score bias's gradient, to `results`, summed over examples and heads that share it."""
    keys_block, queries_block, place = (pl.program_id(axis) for axis in range(3))
    first_query, first_key = queries_block * blocks.held, keys_block * blocks.streamed
    examples, heads = results["g_bias"].shape[:2]
    sharing_examples, sharing_heads = call.examples // examples, call.config.heads // heads
    # Blocks outside the band are not summed, but written: their gradient is 0.
    count = sharing_examples * sharing_heads
    if not call.config.band.is_everything:
        meet = call.config.band.meets(first_query, blocks.held, first_key, blocks.streamed)
        count = jnp.where(meet, jnp.int32(count), jnp.int32(0))

    def head_of(index: Array) -> HeadRefs:
        example = jax.lax.div(place, heads) + jax.lax.div(index, sharing_heads)
        return HeadRefs(call.config, refs, example, jax.lax.rem(place, heads) + jax.lax.rem(index, sharing_heads))

    def step(index: Array, sum_QK: Array) -> Array:
        head = head_of(index)
        queries, keys = head.queries(first_query, blocks.held), head.keys(first_key, blocks.streamed)
        return sum_QK + ScoreTile(head, queries, keys, queries_first=True).gradient()[0]

    start = jnp.zeros((blocks.held, blocks.streamed), jnp.float32)
    sum_QK = jax.lax.fori_loop(jnp.int32(0), count, step, start)
    head_of(jnp.int32(0)).store_matrix(results["g_bias"], first_query, first_key, sum_QK * call.config.dropout_scale)


def _split_heads(call: Call, operands: dict[str, Array | None]) -> dict[str, Array]:
    """Return the operands that are not None; those with one axis A = H x W for all heads become `BQHW` or `BKHW`."""
    by_head = (call.config.heads, call.config.width)
    return {
        name: array.reshape(*array.shape[:2], *by_head) if LETTERS[name] in ("BQHW", "BKHW") else array
        for name, array in operands.items()
        if array is not None
    }


def _over_blocks(
    call: Call, name: str, kernel: Callable, blocks: Blocks, holds_keys: bool, operands: dict, results: dict
) -> list[Array]:
    """Run a kernel with a Triton program for each head and block of queries (or of keys); return the output arrays.

    holds_keys: whether the programs are for blocks of keys.
    """
    config, segments = call.config, (operands["query_segments"], operands["key_segments"])
    lengths, band = (config.queries, config.keys), config.band
    if holds_keys:
        lengths, segments, band = lengths[::-1], segments[::-1], band.reversed
    blocks = blocks.fit(*lengths)
    operands = operands | {"visits": visits(*segments, blocks, band)}
    grid = (pl.cdiv(lengths[0], blocks.held), config.heads, call.examples)
    return call.run(name, functools.partial(kernel, call, blocks), blocks, grid, operands, results)


def _backward_bias(call: Call, operands: dict[str, Array]) -> Array:
    """Return dbias, the score bias's gradient, by a separate kernel that compiled programs omit if dbias is unused."""
    bias, queries, keys = operands["bias"], call.config.queries, call.config.keys
    blocks = call.kernel_blocks.bias.fit(queries, keys)
    grid = (pl.cdiv(keys, blocks.streamed), pl.cdiv(queries, blocks.held), bias.shape[0] * bias.shape[1])
    result = {"g_bias": jax.ShapeDtypeStruct(bias.shape, jnp.float32)}
    kernel = functools.partial(_bias_kernel, call, blocks)
    (gradient,) = call.run("attention_bias_gradient", kernel, blocks, grid, operands, result)
    return gradient.astype(bias.dtype)


def _operands(call: Call, inputs: KernelInputs) -> dict[str, Array]:
    """Return {name: kernel input}, with queries, keys and values `BLA`, where A = H x W, reshaped to `BLHW`.

    The names are those of `grid.LETTERS`.
    """
    names = ("query", "key", "value", "query_segments", "key_segments", "bias", "columns", "weights", "scalars")
    operands = dict(zip(names, inputs, strict=True))
    return _split_heads(call, operands if call.config.rate else operands | {"scalars": None})


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(call: Call, inputs: KernelInputs) -> tuple[Array, list[Array]]:
    """Return (output `BQA` with A = H x W, the sums of `interface.STATISTICS`, each `BHQ`, or [] without guidance)."""
    return _attention_forward(call, inputs)[0]


def _attention_forward(call: Call, inputs: KernelInputs):
    query_BQA = inputs.query_BQA
    results = {"output": call.rows(call.config.queries, query_BQA.dtype), "log_sums": call.vectors()}
    if call.config.guided:
        results |= {name: call.vectors() for name in STATISTICS[call.config.loss]}
    operands = _operands(call, inputs)
    output, log_sums, *statistics = _over_blocks(
        call, "attention", _forward_kernel, call.kernel_blocks.forward, False, operands, results
    )
    if call.config.is_cross_entropy:
        statistics = [math.log(2.0) * log_sums, *statistics]
    output = output.reshape(query_BQA.shape)
    output, log_sums, statistics = checkpoint_name((output, log_sums, statistics), RESIDUALS)
    return (output, statistics), (inputs, output, log_sums, statistics)


def _attention_backward(call: Call, residuals: tuple, cotangents: tuple):
    inputs, output, log_sums, statistics = residuals
    g_output, g_statistics = cotangents
    config, dtype = call.config, inputs.query_BQA.dtype
    # delta = rowsum(dH * H) = rowsum(dO * O) + 2 g_ss sum_of_squares + g_ov overlap, without any tile.
    products = (g_output.astype(jnp.float32) * output).reshape(*output.shape[:2], config.heads, -1)
    delta = products.sum(-1).swapaxes(1, 2)
    if config.is_cross_entropy:
        g_log_sums, g_score_sums, _ = g_statistics
        rows = {"delta": delta - g_log_sums, "g_score_sums": g_score_sums}
    else:
        for factor, statistic, g_statistic in zip((2.0, 1.0), statistics, g_statistics, strict=False):
            delta += factor * statistic * g_statistic
        rows = dict(zip(("delta", "g_squares", "g_overlap"), (delta, *g_statistics), strict=False))
    of_queries = {"g_output": g_output.astype(dtype), "log_sums": log_sums}
    # Dropout's factor: instead of storing g_output / (1 - rate), these rows are multiplied by the inverse.
    of_queries |= {name: (1.0 - config.rate) * row for name, row in rows.items()}
    operands = _operands(call, inputs) | _split_heads(call, of_queries)
    like_query, like_key = call.rows(config.queries, dtype), call.rows(config.keys, dtype)
    g_query = {"g_query": like_query}
    blocks = call.kernel_blocks
    gradients = _over_blocks(call, "attention_query_gradient", _query_kernel, blocks.query, False, operands, g_query)
    of_keys = {"g_key": like_key, "g_value": like_key}
    gradients += _over_blocks(call, "attention_key_gradient", _key_kernel, blocks.key, True, operands, of_keys)
    query, key, value = (gradient.reshape(array.shape) for gradient, array in zip(gradients, inputs[:3], strict=True))
    g_bias = None if inputs.bias is None else _backward_bias(call, operands)
    return (KernelInputs(query, key, value, None, None, g_bias, None, None, None),)


_attention.defvjp(_attention_forward, _attention_backward)


def attend(
    config: KernelConfig, inputs: KernelInputs, *, kernel_blocks: KernelBlocks | None = None, interpret: bool = False
) -> tuple[Array, tuple[Array, ...]]:
    """Run attention on one GPU; return (output `BQA` with A = H x W, the sums of `interface.STATISTICS`, each `BHQ`).

    There are no sums if `config.guided` is false. Implements `interface.Kernel`.

    kernel_blocks: blocks to use instead of those of `choose_blocks`.
    interpret: as in `KernelConfig`.
    """
    config = dataclasses.replace(config, interpret=config.interpret or interpret)
    call = Call(
        config, inputs.query_BQA.shape[0], kernel_blocks or choose_blocks(config, inputs.query_BQA.dtype.itemsize)
    )
    output_BQA, statistics = _attention(call, inputs)
    return output_BQA, tuple(statistics)
