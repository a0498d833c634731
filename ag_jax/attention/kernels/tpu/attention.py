"""Guided attention as TPU kernels (Pallas, Mosaic): no array of L x L elements leaves the chip's own memory.

Rows of up to 512 tokens are one tile a head, whose backward kernel makes the softmax again and needs nothing from the
forward one but its inputs. Longer rows are cut into blocks of keys and queries, with the running softmax of Milakov &
Gimelshein (2018) over the blocks of keys, in which the two statistics follow their rows' largest score m as well:

    a = exp(m_old - m_new):   squares <- a^2 squares + sum e^2,   overlap <- a overlap + sum e P,   e = exp(s - m_new).

Shape letters: B batch, L length, Q query position, K key position, H head, V width of a head, N = H * V all heads' width.
"""

import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ag_jax.attention.kernels.interface import KEPT, Shape
from ag_jax.attention.kernels.tpu.grid import Grid, block_length, lane_width
from ag_jax.attention.kernels.tpu.tile import Tile, product

Array = jax.Array


def _forward_whole(tile: Tile, results: tuple, _) -> None:
    """A head's whole matrix at once."""
    output, *rows = results
    for head in range(output.shape[2] // tile.width):
        H_KQ = tile.probabilities(head)
        if tile.shape.guided:
            rows[0][0, head] = jnp.sum(H_KQ * H_KQ, axis=0, keepdims=True)
            rows[1][0, head] = jnp.sum(H_KQ * tile.target(head), axis=0, keepdims=True)
        if tile.shape.rate:
            H_KQ = H_KQ * tile.multiplier(head)
        value = tile.of(tile.operands.value, head)
        output[0, :, tile.lanes(head)] = product(H_KQ.astype(value.dtype), value, 0, 0).astype(output.dtype)


def _forward_blocks(blocks: int, tile: Tile, results: tuple, scratch: tuple) -> None:
    """One block of keys after the other; what is summed so far is kept in `scratch`, relative to the largest score."""
    output, log_sums, *rows = results
    mixed, largest, total, *sums = scratch
    block = pl.program_id(3)

    @pl.when(block == 0)
    def _clear():
        largest[...] = jnp.full(largest.shape, -jnp.inf, jnp.float32)
        for kept in (mixed, total, *sums):
            kept[...] = jnp.zeros(kept.shape, jnp.float32)

    for head in range(output.shape[2] // tile.width):
        scores_KQ = tile.scores(head)
        highest = jnp.maximum(largest[head], jnp.max(scores_KQ, axis=0, keepdims=True))
        shrink = jnp.exp(largest[head] - highest)
        largest[head] = highest
        exponentials_KQ = jnp.exp(scores_KQ - highest)
        total[head] = shrink * total[head] + jnp.sum(exponentials_KQ, axis=0, keepdims=True)
        if tile.shape.guided:
            squares, overlap = exponentials_KQ * exponentials_KQ, exponentials_KQ * tile.target(head)
            sums[0][head] = shrink * shrink * sums[0][head] + jnp.sum(squares, axis=0, keepdims=True)
            sums[1][head] = shrink * sums[1][head] + jnp.sum(overlap, axis=0, keepdims=True)
        if tile.shape.rate:
            exponentials_KQ = exponentials_KQ * tile.multiplier(head)
        value = tile.of(tile.operands.value, head)
        mixed[head] = shrink * mixed[head] + product(value, exponentials_KQ.astype(value.dtype), 0, 0)

        @pl.when(block == blocks - 1)
        def _write(head=head):
            inverse = 1.0 / total[head]
            output[0, :, tile.lanes(head)] = jnp.transpose(mixed[head] * inverse, (1, 0)).astype(output.dtype)
            log_sums[0, head] = largest[head] + jnp.log(total[head])
            if tile.shape.guided:
                rows[0][0, head] = sums[0][head] * inverse * inverse
                rows[1][0, head] = sums[1][head] * inverse


def _backward_whole(tile: Tile, results: tuple, _) -> None:
    for head in range(results[0].shape[2] // tile.width):
        for result, gradient in zip(results, _products(tile, head), strict=True):
            result[0, :, tile.lanes(head)] = gradient.astype(result.dtype)


def _products(tile: Tile, head: int) -> tuple[Array, Array, Array]:
    """dQ, dK and dV of a tile."""
    dS_KQ, thinned_KQ = tile.gradient(head)
    query, key, g_output = (
        tile.of(ref, head) for ref in (tile.operands.query, tile.operands.key, tile.operands.g_output)
    )
    dS_KQ, scale = dS_KQ.astype(query.dtype), tile.shape.width**-0.5
    g_value = product(thinned_KQ.astype(g_output.dtype), g_output, 1, 0)
    return product(dS_KQ, key, 0, 0) * scale, product(dS_KQ, query, 1, 0) * scale, g_value


def _backward_blocks(blocks: int, tile: Tile, results: tuple, scratch: tuple) -> None:
    """For each block of keys all blocks of queries. dQ gathers in `scratch` for the whole row, dK and dV for the block."""
    of_keys, of_queries = pl.program_id(2), pl.program_id(3)
    g_query, g_key, g_value = results
    all_queries, this_key, this_value = scratch

    @pl.when(of_queries == 0)
    def _clear_keys():
        this_key[...] = jnp.zeros(this_key.shape, jnp.float32)
        this_value[...] = jnp.zeros(this_value.shape, jnp.float32)

    @pl.when(of_keys == 0)
    def _clear_queries():
        all_queries[of_queries] = jnp.zeros(all_queries.shape[1:], jnp.float32)

    for head in range(this_key.shape[1] // tile.width):
        lanes = tile.lanes(head)
        dQ, dK, dV = _products(tile, head)
        all_queries[of_queries, :, lanes] += dQ
        this_key[:, lanes] += dK
        this_value[:, lanes] += dV

    @pl.when(of_queries == blocks - 1)
    def _write_keys():
        g_key[0] = this_key[...].astype(g_key.dtype)
        g_value[0] = this_value[...].astype(g_value.dtype)

    @pl.when(of_keys == blocks - 1)
    def _write_queries():
        block = this_key.shape[0]
        g_query[0, pl.ds(of_queries * block, block), :] = all_queries[of_queries].astype(g_query.dtype)


def _bias_gradient(shared: int, tile: Tile, results: tuple, _) -> None:
    """dbias, summed over the `shared` innermost axes of the grid (examples, heads), whose steps follow one another."""
    (g_bias,) = results
    first = jnp.bool_(True)
    for axis in range(4 - shared, 4):
        first = jnp.logical_and(first, pl.program_id(axis) == 0)

    @pl.when(first)
    def _clear():
        g_bias[...] = jnp.zeros(g_bias.shape, jnp.float32)

    for head in range(tile.operands.query.shape[2] // tile.width):
        dS_KQ, _ = tile.gradient(head)
        g_bias[0, head if g_bias.shape[1] > 1 else 0] += dS_KQ


def _operands(
    query: Array, key: Array, value: Array, sequences: Array, bias: Array | None, weights: Array | None
) -> dict:
    """What all kernels read, as the grid's specs lay it out."""
    return {
        "query": query,
        "key": key,
        "value": value,
        "query_sequences": sequences[:, None, :],
        "key_sequences": sequences[:, None, :],
        "bias": bias,
        "weights": None if weights is None else weights[:, :, None, :],
    }


def _by_query(*step) -> tuple:
    return step


def _by_key(example, group, keys, queries) -> tuple:
    return example, group, queries, keys


def _forward(grid: Grid, arrays: tuple, scalars: tuple) -> tuple[Array, Array | None, list[Array]]:
    """Output, the rows' logarithmic sums if there are several blocks, and the statistics; rows are `(B, H, 1, L)`."""
    operands, shape = _operands(*arrays), grid.shape
    specs = grid.specs(_by_query)
    row = (jax.ShapeDtypeStruct((grid.examples, shape.heads, 1, grid.length), jnp.float32), specs["delta"])
    output = (jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype), specs["query"])
    statistics = [row, row] if shape.guided else []
    steps = (grid.examples, grid.groups, grid.blocks, grid.blocks)
    if grid.blocks == 1:
        mixed, *rows = grid.run(
            "attention", _forward_whole, _by_query, steps, operands, scalars, [output, *statistics], [], 2
        )
        return mixed, None, rows
    row_scratch = pltpu.VMEM((grid.group, 1, grid.block), jnp.float32)
    scratch = [pltpu.VMEM((grid.group, grid.width, grid.block), jnp.float32), row_scratch, row_scratch]
    scratch += [row_scratch] * len(statistics)
    kernel = functools.partial(_forward_blocks, grid.blocks)
    mixed, log_sums, *rows = grid.run(
        "attention", kernel, _by_query, steps, operands, scalars, [output, row, *statistics], scratch, 2
    )
    return mixed, log_sums, rows


def _backward(grid: Grid, operands: dict, scalars: tuple) -> list[Array]:
    """dQ, dK, dV."""
    specs, like = grid.specs(_by_key), jax.ShapeDtypeStruct(operands["query"].shape, operands["query"].dtype)
    steps = (grid.examples, grid.groups, grid.blocks, grid.blocks)
    results = [(like, specs["query"]), (like, specs["key"]), (like, specs["key"])]
    if grid.blocks == 1:
        return grid.run("attention_gradient", _backward_whole, _by_key, steps, operands, scalars, results, [], 5)
    widths = grid.group * grid.width
    results[0] = (like, grid.spec((1, grid.length, widths), (0, None, 1), _by_key))
    scratch = [pltpu.VMEM((grid.blocks, grid.block, widths), jnp.float32)]
    scratch += [pltpu.VMEM((grid.block, widths), jnp.float32)] * 2
    kernel = functools.partial(_backward_blocks, grid.blocks)
    return grid.run("attention_gradient", kernel, _by_key, steps, operands, scalars, results, scratch, 5)


def _backward_bias(grid: Grid, operands: dict, scalars: tuple) -> Array:
    """dbias. A kernel of its own: nobody pays for it, by its absence from the compiled program, unless bias is learnt."""
    bias = operands["bias"]
    is_shared = {0: bias.shape[0] == 1, 1: bias.shape[1] == 1}
    order = [2, 3, *sorted((0, 1), key=is_shared.get)]  # axes of a place along the grid, what is shared innermost
    sizes = (grid.examples, grid.groups, grid.blocks, grid.blocks)

    def at(*step) -> tuple:
        return tuple(step[order.index(axis)] for axis in range(4))

    result = (jax.ShapeDtypeStruct(bias.shape, jnp.float32), grid.specs(at, bias)["bias"])
    kernel = functools.partial(_bias_gradient, sum(is_shared.values()))
    steps = tuple(sizes[axis] for axis in order)
    (gradient,) = grid.run("attention_bias_gradient", kernel, at, steps, operands, scalars, [result], [], 2)
    return gradient.astype(bias.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(grid: Grid, arrays: tuple, scalars: tuple) -> tuple[Array, list[Array]]:
    mixed, _, rows = _forward(grid, arrays, scalars)
    return mixed, rows


def _attention_forward(grid: Grid, arrays: tuple, scalars: tuple):
    mixed, log_sums, rows = _forward(grid, arrays, scalars)
    kept = None if log_sums is None else checkpoint_name((mixed, log_sums, rows), KEPT)
    return (mixed, rows), (arrays, scalars, kept)


def _attention_backward(grid: Grid, residuals: tuple, cotangents: tuple):
    arrays, scalars, kept = residuals
    g_output, g_rows = cotangents
    operands = _operands(*arrays) | {"g_output": g_output.astype(arrays[0].dtype)}
    operands |= dict(zip(("g_squares", "g_overlap"), g_rows, strict=False))
    if kept is not None:
        mixed, operands["log_sums"], rows = kept
        by_head = (
            (g_output.astype(jnp.float32) * mixed).reshape(grid.examples, grid.length, grid.shape.heads, -1).sum(-1)
        )
        operands["delta"] = by_head.transpose(0, 2, 1)[:, :, None, :]
        for factor, statistic, g_row in zip((2.0, 1.0), rows, g_rows, strict=False):
            operands["delta"] += factor * statistic * g_row
    g_bias = None if arrays[4] is None else _backward_bias(grid, operands, scalars)
    return (*_backward(grid, operands, scalars), None, g_bias, None), None


_attention.defvjp(_attention_forward, _attention_backward)


def attend(
    shape: Shape,
    query_BLN: Array,
    key_BLN: Array,
    value_BLN: Array,
    sequences_BL: Array,
    bias: Array | None,
    shifts_H: Array,
    weights_BHK: Array | None,
    numbers: Array,
    *,
    interpret: bool = False,
) -> tuple[Array, Array | None, Array | None]:
    """Output `BLN`, and of all heads `sum_of_squares_BHQ` and `overlap_BHQ` if `shape.guided` (`contract.Kernel`)."""
    examples, length, _ = query_BLN.shape
    extra, width = -length % block_length(length), lane_width(shape.heads, shape.width, length)

    def padded(array: Array | None, *axes: int, value: int = 0) -> Array | None:
        if array is None or not extra:
            return array
        widths = [(0, extra) if axis in axes else (0, 0) for axis in range(array.ndim)]
        return jnp.pad(array, widths, constant_values=value)

    def heads_resized(array: Array, old: int, new: int) -> Array:
        if old == new:
            return array
        by_head = array.reshape(*array.shape[:2], shape.heads, old)[..., :new]
        by_head = jnp.pad(by_head, [(0, 0)] * 3 + [(0, max(new - old, 0))])
        return by_head.reshape(*array.shape[:2], shape.heads * new)

    grid = Grid(shape, examples, length + extra, width, interpret)
    bias_KQ = None if bias is None else padded(bias.swapaxes(2, 3), 2, 3)
    rows = (padded(heads_resized(array, shape.width, width), 1) for array in (query_BLN, key_BLN, value_BLN))
    arrays = (*rows, padded(sequences_BL, 1, value=-1), bias_KQ, padded(weights_BHK, 2))
    mixed_BLN, statistics = _attention(grid, arrays, (shifts_H, numbers))
    squares, overlap = (row[:, :, 0, :length] for row in statistics) if shape.guided else (None, None)
    return heads_resized(mixed_BLN[:, :length], width, shape.width), squares, overlap
