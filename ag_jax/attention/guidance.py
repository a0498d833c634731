"""Attention guidance: which heads follow which pattern, and the loss that pulls them towards it.

The distance of an attention row H to its target row P is, by `guidance.loss`,

    squared         ||H - P||^2 = ||H||^2 - 2 <H, P> + ||P||^2      (Deshpande & Narasimhan 2020, equations 2 to 4)
    cross_entropy   KL(P || H)  = -<P, log H> + <P, log P>

Both need two numbers of the row: the `overlap` <H, P>, which is also the attention mass on a single column, and ||H||^2
or -<P, log H>. The rest comes from the target alone. Attention computes the two numbers (`statistics`), everything else
is done on them, so no target matrix is ever built.

Shape letters: N layers, B batch, H guided heads, Q query position, K key position, L length.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import flax.struct
import jax
import jax.numpy as jnp
from jax import Array

from ag_jax.attention import patterns, segments
from ag_jax.attention.assignment import layer_numbers
from ag_jax.attention.config import GuidanceConfig, GuidanceLoss
from ag_jax.attention.patterns import Columns, Pointer, Target
from ag_jax.attention.visibility import EVERYTHING, Band, band_of, visible_in_text, visible_targets, visible_tokens

Schedule = Callable[[Array], Array]


@dataclasses.dataclass(frozen=True)
class LayerGroup:
    """Guided layers of an encoder that have the same attention window, or none, so that queries see the same keys.

    layers: their numbers, from 0.
    rows: their places among the layers whose statistics the encoder returns.
    band: of the keys that a query sees.
    """

    layers: tuple[int, ...]
    rows: tuple[int, ...]
    band: Band


def guided_layers(config: GuidanceConfig, is_local: Sequence[bool], window: int | None) -> tuple[LayerGroup, ...]:
    """Return an encoder's guided layers in at most two groups: those that see all tokens, and those with a window.

    is_local: for each layer of the encoder, whether its attention is limited to a window.
    window: number of tokens of the window.
    Raises ValueError if `config.layers` is malformed, or names no layer of the encoder.
    """
    numbers = layer_numbers(config, is_local)
    kinds = sorted({is_local[layer] for layer in numbers})
    returned = [layer for layer, kind in enumerate(is_local) if kind in kinds]
    groups = []
    for kind in kinds:
        layers = tuple(layer for layer in numbers if is_local[layer] == kind)
        band = band_of(causal=False, window=window) if kind else EVERYTHING
        groups.append(LayerGroup(layers, tuple(map(returned.index, layers)), band))
    return tuple(groups)


def coefficient_schedule(config: GuidanceConfig, total_steps: int) -> Schedule:
    """Return the function from a step t to alpha, the coefficient of the guidance, for a run of T = `total_steps`.

    hold_then_linear: alpha_0 for S steps, then alpha_0 * (T - t) / (T - S), 0 from T on; S = min(hold_steps, T/5), so
    that short runs reach 0 too. linear: S = 0 (equation 4). constant: alpha_0 throughout.
    """
    if config.schedule == "constant":
        return lambda step: jnp.full(jnp.shape(step), config.alpha, jnp.float32)
    hold = min(config.hold_steps, total_steps // 5) if config.schedule == "hold_then_linear" else 0

    def schedule(step: Array) -> Array:
        remaining = (total_steps - step) / max(total_steps - hold, 1)
        return config.alpha * jnp.clip(remaining, 0.0, 1.0).astype(jnp.float32)

    return schedule


@flax.struct.dataclass
class Guides:
    """Target matrices of the guided heads of a layer, which are its first heads.

    Heads 0 to counts[0] - 1 follow targets[0], the next counts[1] heads targets[1], and so on.

    after_dropout: guide the probabilities after dropout instead of the softmax itself.
    loss: the distance for which statistics are computed.
    kinds: whether layers have a window (True) or not (False), of the layers whose statistics are computed.
    """

    targets: tuple[Target, ...]
    counts: tuple[int, ...] = flax.struct.field(pytree_node=False)
    after_dropout: bool = flax.struct.field(pytree_node=False, default=False)
    loss: GuidanceLoss = flax.struct.field(pytree_node=False, default="squared")
    kinds: tuple[bool, ...] = flax.struct.field(pytree_node=False, default=(False, True))


@flax.struct.dataclass
class AttentionStatistics:
    """The two statistics of guidance of each query's attention row H and target row P, both float32.

    With attention probabilities H, target P, query p and keys q:

    distance_BHQ: the part of the distance that depends on H alone, ||H||^2 = sum_q H[p, q]^2, or with
        `loss=cross_entropy` -<P, log H> = -sum_q P[p, q] log H[p, q].
    overlap_BHQ: <H, P> = sum_q H[p, q] P[p, q]; without a gradient with `loss=cross_entropy`.
    """

    distance_BHQ: Array
    overlap_BHQ: Array


def off_diagonal(matrix_BHQK: Array, offset: int) -> Array:
    """Return the entries [p, p + offset] of each matrix as `BHQ`, zero where there is no column p + offset.

    In the flattened matrix the entries lie K + 1 apart, so this is a strided slice and its gradient a padding: no
    gather, no scatter, no mask of the matrix's size.
    """
    *leading, queries, keys = matrix_BHQK.shape
    start, stop = max(0, -offset), min(queries, keys - offset)
    if stop <= start:
        return jnp.zeros((*leading, queries), matrix_BHQK.dtype)
    flat = matrix_BHQK.reshape(*leading, queries * keys)
    first = start * keys + start + offset
    last = first + (stop - start - 1) * (keys + 1)
    entries = jax.lax.slice_in_dim(flat, first, last + 1, keys + 1, axis=-1)
    return jnp.pad(entries, [(0, 0)] * len(leading) + [(start, queries - stop)])


def overlap(
    target: Target,
    overlap_BHQ: Array,
    query_segments_BQ: Array,
    key_segments_BK: Array,
    band: Band = EVERYTHING,
    total_BHQ: Array | float = 1.0,
) -> Array:
    """Return <H, P> for each query, `BHQ`: the dot product of its rows of attention weights H and target P.

    Rows without a column of P, such as the last row of [Next], have a target that is uniform over the n keys that the
    query sees, so that <H, P> is sum(H) / n; <H, P> is 0 for queries that see no key.

    overlap_BHQ: for `Pointer` H at the row's column, for `Columns` the sum of H P without a band, and inside a band the
        sum of H over the columns, which have equal weights there.
    total_BHQ: sum(H) of each row.
    """
    segment_ids = query_segments_BQ, key_segments_BK
    if isinstance(target, Columns) and band.is_everything:
        return overlap_BHQ
    if isinstance(target, Columns):
        columns_BQ = visible_targets(target.weights_BK, *segment_ids, band)
        overlap_BHQ = overlap_BHQ / jnp.maximum(columns_BQ, 1)[:, None, :]
        inside_BQ = columns_BQ > 0
    else:
        inside_BQ = patterns.has_target(target, *segment_ids, band)
    tokens_B1Q = visible_tokens(*segment_ids, band)[:, None, :]
    outside_BHQ = total_BHQ / jnp.maximum(tokens_B1Q, 1).astype(jnp.float32)
    if query_segments_BQ is not key_segments_BK:
        outside_BHQ = jnp.where(tokens_B1Q > 0, outside_BHQ, 0.0)
    return jnp.where(inside_BQ[:, None, :], overlap_BHQ, outside_BHQ)


@jax.custom_vjp
def cross_entropy(scores_BHQK: Array, H_BHQK: Array, P_BQK: Array) -> Array:
    """Return -<P, log H> of each row, `BHQ`, with H = softmax(scores); rows without a target, P = 0, get 0.

    The gradient by the scores is H - P in rows with a target, and 0 in others; it needs no array beside H and P.

    scores_BHQK: finite; `MASKED_SCORE` where a key is not seen.
    """
    # Not the sum of exponentials once more: the largest element of H is exp(highest - log_sum), and never underflows.
    largest_BHQ = jnp.maximum(H_BHQK.max(-1), jnp.finfo(H_BHQK.dtype).tiny)
    log_sums_BHQ = scores_BHQK.max(-1) - jnp.log(largest_BHQ)
    cross_entropy_BHQ = log_sums_BHQ - jnp.einsum("bhqk,bqk->bhq", scores_BHQK, P_BQK)
    return jnp.where((P_BQK > 0).any(-1)[:, None], cross_entropy_BHQ, 0.0)


def _cross_entropy_forward(scores_BHQK: Array, H_BHQK: Array, P_BQK: Array):
    return cross_entropy(scores_BHQK, H_BHQK, P_BQK), (H_BHQK, P_BQK)


def _cross_entropy_backward(residuals: tuple[Array, Array], gradient_BHQ: Array):
    H_BHQK, P_BQK = residuals
    has_target_BQK = (P_BQK > 0).any(-1, keepdims=True)
    errors_BHQK = jnp.where(has_target_BQK[:, None], H_BHQK - P_BQK[:, None], 0.0)
    return gradient_BHQ[..., None] * errors_BHQK, None, None


cross_entropy.defvjp(_cross_entropy_forward, _cross_entropy_backward)


def statistics(
    probabilities_BHQK: Array,
    guides: Guides,
    query_segments_BQ: Array,
    key_segments_BK: Array | None = None,
    band: Band = EVERYTHING,
    scores_BHQK: Array | None = None,
) -> AttentionStatistics:
    """Return the statistics of guided heads, the plain formulation that every kernel has to equal.

    probabilities_BHQK: attention weights H.
    key_segments_BK: None for self-attention.
    band: in which keys are seen.
    scores_BHQK: of which H is the softmax; for `guides.loss=cross_entropy`.
    """
    guided, overlaps, distances, head = sum(guides.counts), [], [], 0
    segment_ids = query_segments_BQ, query_segments_BQ if key_segments_BK is None else key_segments_BK
    is_squared = guides.loss == "squared"
    if not is_squared:
        probabilities_BHQK = jax.lax.stop_gradient(probabilities_BHQK)

    # Without the checkpoint, the backward pass would store a copy of the guided heads beside the probabilities
    # themselves.
    @functools.partial(jax.checkpoint, prevent_cse=False)
    def sum_of_squares(H_BHQK: Array) -> Array:
        return jnp.square(H_BHQK[:, :guided].astype(jnp.float32)).sum(-1)

    for target, count in zip(guides.targets, guides.counts, strict=True):
        heads = slice(head, head + count)
        head += count
        rows_BHQK = probabilities_BHQK[:, heads].astype(jnp.float32)
        total_BHQ = rows_BHQK.sum(-1) if guides.after_dropout else 1.0
        if isinstance(target, Columns):
            is_column_BK = (target.weights_BK > 0).astype(jnp.float32)
            weights_BK = target.weights_BK if band.is_everything else is_column_BK
            overlap_BHQ = jnp.einsum("bhqk,bk->bhq", rows_BHQK, weights_BK)
        elif target.offset is not None:
            overlap_BHQ = off_diagonal(rows_BHQK, target.offset)
        else:
            column_BQ = patterns.seen(target, *segment_ids, band)
            is_column_BQK = column_BQ[:, :, None] == jnp.arange(rows_BHQK.shape[-1])[None, None, :]
            overlap_BHQ = jnp.where(is_column_BQK[:, None], rows_BHQK, 0.0).sum(-1)
        overlaps.append(overlap(target, overlap_BHQ, *segment_ids, band, total_BHQ))
        if scores_BHQK is not None and not is_squared:
            P_BQK = patterns.dense(target, query_segments_BQ, key_segments_BK, band, boundary="zero")
            distances.append(cross_entropy(scores_BHQK[:, heads], rows_BHQK, P_BQK))
    distance_BHQ = sum_of_squares(probabilities_BHQK) if is_squared else jnp.concatenate(distances, axis=1)
    return AttentionStatistics(distance_BHQ, jnp.concatenate(overlaps, axis=1))


def bias(guides: Guides, segments_BL: Array, heads: int, scale: Array) -> Array:
    """Return the score bias `BHQK` of `guidance.mode=bias`: scale times target P for guided heads, 0 for the others.

    Unlike the guidance loss, this bias costs an array of the size of the scores. Rows without a target column get 0.
    """
    rows = []
    for target, count in zip(guides.targets, guides.counts, strict=True):
        has_target_BQ = patterns.has_target(target, segments_BL)
        P_BQK = patterns.dense(target, segments_BL, boundary="zero") * has_target_BQ[:, :, None]
        rows.append(jnp.repeat(P_BQK[:, None], count, axis=1))
    guided_BHQK = scale * jnp.concatenate(rows, axis=1)
    free = heads - sum(guides.counts)
    return jnp.pad(guided_BHQK, [(0, 0), (0, free), (0, 0), (0, 0)])


def _sum_over_seen(values_BK: Array, query_segments_BQ: Array, key_segments_BK: Array) -> Array:
    """Return the sum of numbers of keys over the keys of each query's text, `BQ`."""
    if query_segments_BQ is key_segments_BK:
        return segments.totals(values_BK, query_segments_BQ)
    seen_BQK = visible_in_text(query_segments_BQ, key_segments_BK)
    return jnp.where(seen_BQK, values_BK[:, None, :], 0.0).sum(-1)


def _square_norm(target: Target, query_segments_BQ: Array, key_segments_BK: Array, band: Band, boundary: str) -> Array:
    """Return ||P||^2 for each query, `BQ`: the squared norm of the query's row of the target matrix P."""
    segment_ids = query_segments_BQ, key_segments_BK
    if isinstance(target, Columns) and band.is_everything:
        return _sum_over_seen(jnp.square(target.weights_BK), *segment_ids)
    uniform_BQ = 1.0 / jnp.maximum(visible_tokens(*segment_ids, band), 1).astype(jnp.float32)
    if isinstance(target, Columns):
        columns_BQ = visible_targets(target.weights_BK, *segment_ids, band)
        return jnp.where(columns_BQ > 0, 1.0 / jnp.maximum(columns_BQ, 1), uniform_BQ)
    outside_BQ = uniform_BQ if boundary == "uniform" else jnp.zeros_like(uniform_BQ)
    return jnp.where(patterns.has_target(target, *segment_ids, band), 1.0, outside_BQ)


def _entropy(target: Target, query_segments_BQ: Array, key_segments_BK: Array, band: Band) -> Array | float:
    """Return -<P, log P>, the entropy of each query's row of P, `BQ`; queries without a target get any number."""
    if isinstance(target, Pointer):
        return 0.0
    segment_ids = query_segments_BQ, key_segments_BK
    if band.is_everything:
        return _sum_over_seen(-jax.scipy.special.xlogy(target.weights_BK, target.weights_BK), *segment_ids)
    return jnp.log(jnp.maximum(visible_targets(target.weights_BK, *segment_ids, band), 1))


def guidance_loss(
    statistics_NBHQ: AttentionStatistics,
    guides: Guides,
    segments_BQ: Array,
    config: GuidanceConfig,
    key_segments_BK: Array | None = None,
    band: Band = EVERYTHING,
) -> tuple[Array, list[tuple[Array, Array]]]:
    """Return the guidance loss summed over texts, and (sum, count) of the attention mass on each pattern's target.

    The mass of a pattern is a pair of a sum and a count, whose quotient is the mean.

    key_segments_BK: segment ids of the keys, for attention to another text; None for self-attention.
    band: in which keys are seen, such as `band_of(causal=True, window=None)` in a decoder.

    For the mean loss, divide by the number of texts. With e[k, t, j, p] the distance of H to P in layer k, text t, head
    j, row p, one text has

        type_mean   sum_k sum_types  1/(heads of the type * d)  sum_j sum_p e     (released code)
        head_mean   sum_k sum_types  1/(guided heads * d)       sum_j sum_p e
        frobenius   sum_k                                       sum_j sum_p e     (equations 2 and 3)

    where d = n_t^2 for `loss=squared`, with n_t the tokens of t. In attention to another text, n_t^2 is the product of
    the numbers of tokens of both texts. For `loss=cross_entropy`, d is the number of rows of the text that have a
    target of the type; other rows never count.

    Padding, and pairs of tokens of different texts, do not count. The loss is zero if and only if every guided head
    equals its target.

    The mass of a target that is uniform over its columns is sum_q H[p, q] [P[p, q] > 0] = <H, P> / ||P||^2; it is
    averaged over the heads and over the rows that have a target column: sum / count, both of shape N (layers).
    """
    key_segments_BK = segments_BQ if key_segments_BK is None else key_segments_BK
    segment_ids = segments_BQ, key_segments_BK
    keys_BQ = jnp.maximum(visible_tokens(*segment_ids), 1)
    pairs_BQ = (jnp.maximum(segments.sizes(segments_BQ), 1) * keys_BQ).astype(jnp.float32)
    total, masses, head = jnp.float32(0), [], 0
    for target, count in zip(guides.targets, guides.counts, strict=True):
        square_BQ = _square_norm(target, *segment_ids, band, config.boundary)
        has_target_BQ = patterns.has_target(target, *segment_ids, band)
        overlap_NBHQ = statistics_NBHQ.overlap_BHQ[:, :, head : head + count]
        distance_NBHQ = statistics_NBHQ.distance_BHQ[:, :, head : head + count]
        head += count

        if guides.loss == "cross_entropy":
            rows_BQ, entropy_BQ = has_target_BQ, jnp.broadcast_to(_entropy(target, *segment_ids, band), pairs_BQ.shape)
            errors_NBHQ = distance_NBHQ - entropy_BQ[None, :, None, :]
            divisor_BQ = jnp.maximum(segments.totals(rows_BQ.astype(jnp.float32), segments_BQ), 1.0)
        else:
            divisor_BQ = pairs_BQ
            if isinstance(target, Columns):
                is_left_out, is_zero_outside = config.absent == "ignore", False
            else:
                # The statistics take rows without a column as uniform; with `zero`, P = 0 there and nothing overlaps.
                is_left_out = target.missing == "ignore" or config.boundary == "ignore"
                is_zero_outside = config.boundary == "zero"
            rows_BQ = has_target_BQ if is_left_out else segments_BQ > 0
            overlaps_BQ = has_target_BQ if is_zero_outside else jnp.ones_like(has_target_BQ)
            # ||H - P||^2, expanded.
            errors_NBHQ = distance_NBHQ - 2.0 * overlap_NBHQ * overlaps_BQ[None, :, None, :]
            errors_NBHQ = errors_NBHQ + square_BQ[None, :, None, :]
        errors_BQ = jnp.where(rows_BQ[None, :, None, :], errors_NBHQ, 0.0).sum((0, 2))
        if config.reduction != "frobenius":
            heads = count if config.reduction == "type_mean" else sum(guides.counts)
            errors_BQ = errors_BQ / (heads * divisor_BQ)
        total += errors_BQ.sum()

        # Rows without a target may have ||P||^2 = 0; they are left out below.
        covered_NBHQ = overlap_NBHQ / jnp.maximum(square_BQ, 1e-9)[None, :, None, :]
        mass_NBHQ = jnp.where(has_target_BQ[None, :, None, :], covered_NBHQ, 0.0)
        weight = count * has_target_BQ.sum().astype(jnp.float32)
        masses.append((mass_NBHQ.sum((1, 2, 3)), jnp.full(mass_NBHQ.shape[:1], weight)))
    return total, masses
