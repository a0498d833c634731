"""Guided attention as TPU kernels (Pallas, Mosaic): HBM holds no array of Q x K elements but a bias and its gradient.

Up to 512 queries and keys are one tile a head, whose backward kernel recomputes the softmax and needs nothing from the
forward one but its inputs. Longer sides are cut into blocks of keys and queries, with the running softmax of Milakov &
Gimelshein (2018) over the blocks of keys; statistics of guidance follow their rows' largest score m:

    a = exp(m_old - m_new):   squares <- a^2 squares + sum e^2,   overlap <- a overlap + sum e P,   e = exp(s - m_new).

Of causal attention and windows, only the blocks are computed that the band of visible keys meets, in all passes.

Shape letters: B batch, Q query position, K key position, H head, W width of a head, A = H * W width of all heads.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ag_jax.attention.kernels.interface import RESIDUALS, STATISTICS, KernelConfig, KernelInputs
from ag_jax.attention.kernels.tpu.grid import Grid, GridStep, lane_width
from ag_jax.attention.kernels.tpu.tile import Tile, has_keys, product, softmax

_GRADIENTS = ("g_squares", "g_overlap", "g_log_sums", "g_score_sums")  # by the statistics of guidance
_OF_GUIDANCE = ("columns", "weights", *_GRADIENTS)  # operands that groups of heads without a guided head do not read


def _forward_whole(tile: Tile, results: tuple, _) -> None:
    """Write output and guidance statistics to `results`, for heads whose queries and keys all fit into one tile."""
    output, *rows = results
    for head in range(output.shape[2] // tile.width):
        scores_KQ = tile.scores(head)
        H_KQ, log_sums_1Q = softmax(scores_KQ)
        if tile.config.guided:
            P_KQ = tile.target(head)
            if tile.config.is_cross_entropy:
                rows[0][0, head] = log_sums_1Q
                rows[1][0, head] = jnp.sum(scores_KQ * P_KQ, axis=0, keepdims=True)
            else:
                rows[0][0, head] = jnp.sum(H_KQ * H_KQ, axis=0, keepdims=True)
            rows[-1][0, head] = jnp.sum(H_KQ * P_KQ, axis=0, keepdims=True)
        if tile.config.rate:
            H_KQ = H_KQ * tile.multiplier(head)
        value = tile.of(tile.operands.value, head)
        output[0, :, tile.lanes(head)] = product(H_KQ.astype(value.dtype), value, 0, 0).astype(output.dtype)


def _forward_blocks(grid: Grid, tile: Tile, results: tuple, scratch: tuple) -> None:
    """Write output and guidance statistics of a block of queries, held in VMEM while blocks of keys pass through.

    The sums so far are kept in `scratch`, relative to the largest score so far.
    """
    output, log_sums, *rows = results
    mixed, largest, total, *sums = scratch
    step = pl.program_id(3)

    @pl.when(step == 0)
    def _clear():
        largest[...] = jnp.full(largest.shape, -jnp.inf, jnp.float32)
        for ref in (mixed, total, *sums):
            ref[...] = jnp.zeros(ref.shape, jnp.float32)

    @_if_visible(tile)
    def _add():
        for head in range(output.shape[2] // tile.width):
            # Until a row meets its first visible key, masked scores count as equal ones. The first visible score makes
            # `shrink` 0, which removes them.
            scores_KQ = tile.scores(head)
            highest = jnp.maximum(largest[head], jnp.max(scores_KQ, axis=0, keepdims=True))
            shrink = jnp.exp(largest[head] - highest)
            largest[head] = highest
            exponentials_KQ = jnp.exp(scores_KQ - highest)
            total[head] = shrink * total[head] + jnp.sum(exponentials_KQ, axis=0, keepdims=True)
            if tile.config.guided:
                P_KQ = tile.target(head)
                if tile.config.is_cross_entropy:
                    sums[0][head] += jnp.sum(scores_KQ * P_KQ, axis=0, keepdims=True)
                else:
                    squares = exponentials_KQ * exponentials_KQ
                    sums[0][head] = shrink * shrink * sums[0][head] + jnp.sum(squares, axis=0, keepdims=True)
                overlap = exponentials_KQ * P_KQ
                sums[1][head] = shrink * sums[1][head] + jnp.sum(overlap, axis=0, keepdims=True)
            if tile.config.rate:
                exponentials_KQ = exponentials_KQ * tile.multiplier(head)
            value = tile.of(tile.operands.value, head)
            mixed[head] = shrink * mixed[head] + product(value, exponentials_KQ.astype(value.dtype), 0, 0)

    @pl.when(step == grid.key_steps - 1)
    def _write():
        for head in range(output.shape[2] // tile.width):
            # Rows without visible keys: everything is 0 here, and H = exp(MASKED_SCORE - 0) = 0 in the backward pass.
            sees_keys = has_keys(largest[head])
            inverse = jnp.where(sees_keys, 1.0 / total[head], 0.0)
            output[0, :, tile.lanes(head)] = jnp.transpose(mixed[head] * inverse, (1, 0)).astype(output.dtype)
            log_sums[0, head] = jnp.where(sees_keys, largest[head] + jnp.log(total[head]), 0.0)
            if tile.config.guided:
                of_row = sums[0][head]
                rows[0][0, head] = of_row if tile.config.is_cross_entropy else of_row * inverse * inverse
                rows[1][0, head] = sums[1][head] * inverse


def _if_visible(tile: Tile):
    """Return a decorator that runs a function only in grid steps whose tile may have a visible query-key pair.

    Without causal or windowed attention, the function is called without a check at run time.
    """
    return (lambda function: function()) if tile.is_visible is True else pl.when(tile.is_visible)


def _backward_whole(tile: Tile, results: tuple, _) -> None:
    """Write dQ, dK and dV to `results`, for heads whose queries and keys all fit into one tile."""
    for head in range(results[0].shape[2] // tile.width):
        for result, gradient in zip(results, _products(tile, head), strict=True):
            result[0, :, tile.lanes(head)] = gradient.astype(result.dtype)


def _products(tile: Tile, head: int) -> tuple[Array, Array, Array]:
    """Return the parts of dQ, dK and dV that come from one tile of a head."""
    dS_KQ, dropped_KQ = tile.gradient(head)
    query, key, g_output = (
        tile.of(ref, head) for ref in (tile.operands.query, tile.operands.key, tile.operands.g_output)
    )
    dS_KQ, scale = dS_KQ.astype(query.dtype), tile.config.width**-0.5
    g_value = product(dropped_KQ.astype(g_output.dtype), g_output, 1, 0)
    return product(dS_KQ, key, 0, 0) * scale, product(dS_KQ, query, 1, 0) * scale, g_value


def _backward_blocks(grid: Grid, tile: Tile, results: tuple, scratch: tuple) -> None:
    """Write dQ, dK and dV to `results`: for each block of keys, a loop over the blocks of queries that see it."""
    key_block, step = pl.program_id(2), pl.program_id(3)
    g_query, g_key, g_value = results
    all_queries, this_key, this_value = scratch

    # dK and dV are summed for the block of keys that is held. dQ is summed for the whole row, because every block of
    # keys adds to it, and blocks of queries that no key is seen by must be written as well.
    @pl.when((key_block == 0) & (step == 0))
    def _clear_queries():
        for block in range(grid.queries.blocks):
            all_queries[block] = jnp.zeros(all_queries.shape[1:], jnp.float32)

    @pl.when(step == 0)
    def _clear_keys():
        this_key[...] = jnp.zeros(this_key.shape, jnp.float32)
        this_value[...] = jnp.zeros(this_value.shape, jnp.float32)

    @_if_visible(tile)
    def _add():
        for head in range(this_key.shape[1] // tile.width):
            lanes = tile.lanes(head)
            dQ, dK, dV = _products(tile, head)
            all_queries[tile.query_block, :, lanes] += dQ
            this_key[:, lanes] += dK
            this_value[:, lanes] += dV

    @pl.when(step == grid.query_steps - 1)
    def _write_keys():
        g_key[0] = this_key[...].astype(g_key.dtype)
        g_value[0] = this_value[...].astype(g_value.dtype)

    @pl.when((key_block == grid.keys.blocks - 1) & (step == grid.query_steps - 1))
    def _write_queries():
        for block in range(grid.queries.blocks):
            rows = slice(block * grid.queries.block, (block + 1) * grid.queries.block)
            g_query[0, rows, :] = all_queries[block].astype(g_query.dtype)


def _bias_gradient(shared: int, tile: Tile, results: tuple, _) -> None:
    """Write dbias, the score bias's gradient, to `results`, summed over the examples and heads that share a bias.

    The innermost `shared` axes of the grid are the axes of the sum, so that the steps of a sum follow one another.
    """
    (g_bias,) = results
    first = jnp.bool_(True)
    for axis in range(4 - shared, 4):
        first = jnp.logical_and(first, pl.program_id(axis) == 0)

    @pl.when(first)
    def _clear():
        g_bias[...] = jnp.zeros(g_bias.shape, jnp.float32)

    @_if_visible(tile)
    def _add():
        for head in range(tile.operands.query.shape[2] // tile.width):
            dS_KQ, _ = tile.gradient(head)
            g_bias[0, head if g_bias.shape[1] > 1 else 0] += dS_KQ


def _operands(inputs: KernelInputs) -> dict[str, Array | None]:
    """Return {name: array or None} that all kernels read, with an axis of size 1 where the grid's blocks need one."""

    def rows(array: Array | None) -> Array | None:
        return None if array is None else array[:, :, None, :]

    return {
        "query": inputs.query_BQA,
        "key": inputs.key_BKA,
        "value": inputs.value_BKA,
        "query_segments": inputs.query_segments_BQ[:, None, :],
        "key_segments": inputs.key_segments_BK[:, None, :],
        "bias": inputs.bias,
        "columns": rows(inputs.columns_BHQ),
        "weights": rows(inputs.weights_BHK),
    }


def _of_part(part: Grid, operands: dict) -> dict:
    """Return the operands for one of `Grid.parts`, which covers some groups of heads.

    Those of guidance are only of the heads whose statistics the part computes.
    """
    if part.config.guided:  # it covers the first heads
        heads = part.groups * part.group
        return operands | {name: operands[name][:, :heads] for name in ("columns", "weights")}
    return {name: array for name, array in operands.items() if name not in _OF_GUIDANCE}


def _forward(grid: Grid, inputs: KernelInputs) -> tuple[Array, Array | None, list[Array]]:
    """Return (output, log-sum-exps of the scores or None for a single block, list of the guidance statistics).

    The list has the sums of `interface.STATISTICS`, and is empty without guidance. Arrays with one number for each
    query have the shape `(B, H, 1, Q)`; the statistics are of the groups of heads that have a guided head.
    """
    by_head = (grid.examples, grid.config.heads, 1, grid.queries.padded)
    outputs: list[Array] = []
    statistics: list[Array] = []
    for part in grid.parts:
        specs, row_spec = part.specs(part.by_query), part.specs(part.by_query)["delta"]
        results = [(jax.ShapeDtypeStruct(inputs.query_BQA.shape, inputs.query_BQA.dtype), specs["query"])]
        kernel, scratch = _forward_whole, []
        if not grid.is_whole:  # one tile has all scores of a head, so its backward pass needs no log-sum-exps
            results.append((jax.ShapeDtypeStruct(by_head, jnp.float32), row_spec))
            row_scratch = pltpu.VMEM((grid.group, 1, grid.queries.block), jnp.float32)
            scratch = [pltpu.VMEM((grid.group, grid.width, grid.queries.block), jnp.float32)]
            scratch += [row_scratch] * (4 if part.config.guided else 2)
            kernel = functools.partial(_forward_blocks, part)
        count = len(results)
        if part.config.guided:
            of_part = (grid.examples, part.groups * grid.group, 1, grid.queries.padded)
            # Of several blocks, the log-sum-exps of all heads are there already.
            sums = [name for name in STATISTICS[part.config.loss] if grid.is_whole or name != "log_sums"]
            results += [(jax.ShapeDtypeStruct(of_part, jnp.float32), row_spec)] * len(sums)
        arrays = part.run(
            "attention",
            kernel,
            part.by_query,
            (grid.examples, part.groups, grid.queries.blocks, grid.key_steps),
            _of_part(part, _operands(inputs)),
            inputs.scalars,
            results,
            scratch,
            products=2,
            streamed=("keys",),
            into=outputs,
        )
        outputs, statistics = arrays[:count], [*statistics, *arrays[count:]]
    if grid.is_whole:
        return outputs[0], None, statistics
    mixed, log_sums = outputs
    if grid.config.is_cross_entropy:
        statistics = [log_sums[:, : statistics[0].shape[1]], *statistics]
    return mixed, log_sums, statistics


def _backward(grid: Grid, operands: dict, scalars: Array) -> list[Array]:
    """Run the backward kernel and return dQ, dK and dV."""
    like_query, like_key = (
        jax.ShapeDtypeStruct(operands[name].shape, operands[name].dtype) for name in ("query", "key")
    )
    gradients: list[Array] = []
    for part in grid.parts:
        specs = part.specs(part.by_key)
        results = [(like_query, specs["query"]), (like_key, specs["key"]), (like_key, specs["key"])]
        kernel, scratch = _backward_whole, []
        if not grid.is_whole:
            # The block of dQ is the whole row of a group of heads: it leaves the chip once, after the last block of
            # keys.
            widths = grid.group * grid.width
            results[0] = (like_query, part.spec((1, grid.queries.padded, widths), (0, None, 1), part.by_key))
            scratch = [pltpu.VMEM((grid.queries.blocks, grid.queries.block, widths), jnp.float32)]
            scratch += [pltpu.VMEM((grid.keys.block, widths), jnp.float32)] * 2
            kernel = functools.partial(_backward_blocks, part)
        gradients = part.run(
            "attention_gradient",
            kernel,
            part.by_key,
            (grid.examples, part.groups, grid.keys.blocks, grid.query_steps),
            _of_part(part, operands),
            scalars,
            results,
            scratch,
            products=5,
            streamed=("queries",),
            into=gradients,
        )
    return gradients


def _backward_bias(grid: Grid, operands: dict, scalars: Array) -> Array:
    """Return dbias, the score bias's gradient, by a separate kernel that compiled programs omit if dbias is unused."""
    bias = operands["bias"]
    for name in _GRADIENTS:
        if name in operands:  # 0 for the groups of heads without a guided head: this kernel does not leave them out
            others = grid.config.heads - operands[name].shape[1]
            operands = operands | {name: jnp.pad(operands[name], [(0, 0), (0, others), (0, 0), (0, 0)])}
    is_shared = {0: bias.shape[0] == 1, 1: bias.shape[1] == 1}
    # Axes of a place along the grid. The shared ones are innermost, so that the sum over them stays in one block on the
    # chip.
    order = [2, 3, *sorted((0, 1), key=is_shared.get)]
    sizes = (grid.examples, grid.groups, grid.queries.blocks, grid.keys.blocks)
    band, queries, keys = grid.config.band, grid.queries, grid.keys

    def step_at(*step) -> GridStep:
        example, group, query, key = (step[order.index(axis)] for axis in range(4))
        # Blocks outside the band are not skipped by the grid: their gradient, 0, must be written.
        meet = band.meets(query * queries.block, queries.block, key * keys.block, keys.block)
        return GridStep(example, group, query, key, meet)

    result = (jax.ShapeDtypeStruct(bias.shape, jnp.float32), grid.specs(step_at, bias)["bias"])
    kernel = functools.partial(_bias_gradient, sum(is_shared.values()))
    steps = tuple(sizes[axis] for axis in order)
    (gradient,) = grid.run(
        "attention_bias_gradient", kernel, step_at, steps, operands, scalars, [result], [], 2, ("queries", "keys")
    )
    return gradient.astype(bias.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(grid: Grid, inputs: KernelInputs) -> tuple[Array, list[Array]]:
    """Return (output, the sums of `interface.STATISTICS` or [] without guidance) for inputs padded to whole blocks.

    The bias is transposed to `BHKQ`.
    """
    mixed, _, rows = _forward(grid, inputs)
    return mixed, rows


def _attention_forward(grid: Grid, inputs: KernelInputs):
    mixed, log_sums, rows = _forward(grid, inputs)
    # One tile a head: its backward kernel recomputes the softmax from the inputs. Several: it needs the rows'
    # log-sum-exps.
    saved = None if log_sums is None else checkpoint_name((mixed, log_sums, rows), RESIDUALS)
    return (mixed, rows), (inputs, saved)


def _attention_backward(grid: Grid, residuals: tuple, cotangents: tuple):
    inputs, saved = residuals
    g_output, g_rows = cotangents
    operands = _operands(inputs) | {"g_output": g_output.astype(inputs.query_BQA.dtype)}
    # <H, P> has no gradient beside the cross-entropy.
    names = ("g_log_sums", "g_score_sums") if grid.config.is_cross_entropy else ("g_squares", "g_overlap")
    operands |= dict(zip(names, g_rows, strict=False))
    if saved is not None:
        # delta = rowsum(dH * H) = rowsum(dO * O) + 2 g_ss sum_of_squares + g_ov overlap, without any tile.
        mixed, operands["log_sums"], rows = saved
        by_head = (g_output.astype(jnp.float32) * mixed).reshape(
            grid.examples, grid.queries.padded, grid.config.heads, -1
        )
        operands["delta"] = by_head.sum(-1).transpose(0, 2, 1)[:, :, None, :]
        if grid.config.is_cross_entropy:
            terms = [-operands.pop("g_log_sums")]
        else:
            terms = [factor * row * g_row for factor, row, g_row in zip((2.0, 1.0), rows, g_rows, strict=False)]
        for term in terms:
            operands["delta"] = operands["delta"].at[:, : term.shape[1]].add(term)
    g_bias = None if inputs.bias is None else _backward_bias(grid, operands, inputs.scalars)
    query, key, value = _backward(grid, operands, inputs.scalars)
    return (KernelInputs(query, key, value, None, None, g_bias, None, None, None),)


_attention.defvjp(_attention_forward, _attention_backward)


def attend(config: KernelConfig, inputs: KernelInputs, *, interpret: bool = False) -> tuple[Array, tuple[Array, ...]]:
    """Run attention on one TPU; return (output `BQA` with A = H x W, the sums of `interface.STATISTICS`, each `BHQ`).

    There are no sums if `config.guided` is false. Implements `interface.Kernel`.

    interpret: as in `KernelConfig`.
    """
    config = dataclasses.replace(config, interpret=config.interpret or interpret)
    width = lane_width(config.heads, config.width, max(config.queries, config.keys))
    grid = Grid(config, inputs.query_BQA.shape[0], width)
    extra = {"queries": grid.queries.padded - config.queries, "keys": grid.keys.padded - config.keys}

    def padded(array: Array | None, axes: dict[int, str], value: int = 0) -> Array | None:
        if array is None or not any(extra[side] for side in axes.values()):
            return array
        widths = [(0, extra[axes[axis]] if axis in axes else 0) for axis in range(array.ndim)]
        return jnp.pad(array, widths, constant_values=value)

    def heads_resized(array: Array, old: int, new: int) -> Array:
        if old == new:
            return array
        by_head = array.reshape(*array.shape[:2], config.heads, old)[..., :new]
        by_head = jnp.pad(by_head, [(0, 0)] * 3 + [(0, max(new - old, 0))])
        return by_head.reshape(*array.shape[:2], config.heads * new)

    # Padding of blocks has the segment -1 on both sides, which no token has.
    query, key, value = (
        padded(heads_resized(array, config.width, width), {1: side})
        for array, side in zip(inputs[:3], ("queries", "keys", "keys"), strict=True)
    )
    bias_KQ = None if inputs.bias is None else padded(inputs.bias.swapaxes(2, 3), {2: "keys", 3: "queries"})
    mixed_BQA, statistics = _attention(
        grid,
        KernelInputs(
            query,
            key,
            value,
            padded(inputs.query_segments_BQ, {1: "queries"}, value=-1),
            padded(inputs.key_segments_BK, {1: "keys"}, value=-1),
            bias_KQ,
            padded(inputs.columns_BHQ, {2: "queries"}, value=-1),
            padded(inputs.weights_BHK, {2: "keys"}),
            inputs.scalars,
        ),
    )
    sums = tuple(row[:, :, 0, : config.queries] for row in statistics)
    return heads_resized(mixed_BQA[:, : config.queries], width, config.width), sums
