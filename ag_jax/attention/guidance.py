"""Attention guidance: which heads follow which pattern, and the loss that pulls them towards it.

Deshpande & Narasimhan 2020, equations 2 to 4. The squared distance of an attention row H to its target row P,

    ||H - P||^2 = ||H||^2 - 2 <H, P> + ||P||^2,

needs two numbers of the row, `sum_of_squares` and `overlap`; ||P||^2 comes from the target alone. Attention computes
the two (`statistics`), everything else is done on them, so no target matrix is ever built.

Shape letters: N layers, B batch, H guided heads, Q query position, K key position, L length.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable
from typing import Annotated, ClassVar, Literal

import flax.struct
import jax
import jax.numpy as jnp
from jax import Array

from ag_jax.attention import patterns, segments
from ag_jax.attention.patterns import Columns, Shift, Target
from ag_jax.attention.visibility import EVERYTHING, Band, visible_targets, visible_tokens

Schedule = Callable[[Array], Array]
Reduction = Literal["type_mean", "head_mean", "frobenius"]
Boundary = Literal["uniform", "zero", "ignore"]
Absent = Literal["uniform", "ignore"]
Probabilities = Literal["before_dropout", "after_dropout"]


@dataclasses.dataclass(frozen=True)
class GuidanceConfig:
    """Guidance of attention towards patterns. Where paper and released code differ, the defaults follow the code.

    mode: `loss` adds alpha(step) * L_AG to the objective, `bias` adds alpha(step) * P to the guided heads' scores,
        `none` is no guidance.
    fraction: lambda, the share of the heads of every layer that is guided: one Next, one Prev, the rest First.
    heads: counts of heads for each pattern instead of `fraction`, from head 0 on, such as
        next:1,prev:1,first:2,period:2.
    alpha: coefficient of the guidance at the first step; `schedule` says how it falls.
    schedule: `hold_then_linear` keeps alpha for `hold_steps` and then lowers it to 0 at the last step, `linear` lowers
        it from the start, `constant` keeps it.
    hold_steps: steps for which `hold_then_linear` keeps alpha.
    reduction: how the n x n errors of a text become one number: the mean over the heads of each pattern, summed over
        patterns (`type_mean`); the mean over all guided heads (`head_mean`); or the plain sum (`frobenius`, the paper's
        equations 2 and 3).
    boundary: target of the first or last token of a text, which has no previous or next token: `uniform`, `zero`, or
        `ignore` its row.
    absent: target of a pattern whose token is not in the text, such as a period: `uniform`, or `ignore` the text.
    probabilities: guide the softmax itself (`before_dropout`, the paper) or what dropout leaves of it (`after_dropout`,
        the code).
    """

    mode: Literal["none", "loss", "bias"] = "none"
    fraction: Annotated[float, "> 0", "<= 1"] = 0.5
    heads: str | None = None
    alpha: Annotated[float, ">= 0"] = 10.0
    schedule: Literal["hold_then_linear", "linear", "constant"] = "hold_then_linear"
    hold_steps: Annotated[int, ">= 0"] = 20_000
    reduction: Reduction = "type_mean"
    boundary: Boundary = "uniform"
    absent: Absent = "uniform"
    probabilities: Probabilities = "before_dropout"

    EARLIER_NONE: ClassVar = {"heads": ""}

    @property
    def in_effect(self) -> "GuidanceConfig":
        """These settings, or all defaults if `mode` is `none`, where no other setting has an effect."""
        return GuidanceConfig() if self.mode == "none" else self


def assign_heads(config: GuidanceConfig, heads: int) -> tuple[tuple[str, int], ...]:
    """Return (pattern, number of heads that it guides in every layer) for each pattern, in the order of the heads.

    The remaining heads are free.

    By lambda: one Next, one Prev and lambda * h - 2 First, lambda * h rounded half up (paper, section 5.3).
    Raises ValueError if lambda * h < 2, or if the explicit counts are malformed or exceed `heads`.
    """
    if config.mode == "none":
        return ()
    if not config.heads:
        # Not `round`, which rounds a half to the even number.
        guided = math.floor(config.fraction * heads + 0.5)
        if guided < 2:
            # The smallest fraction that rounds to two heads is 1.5 / heads, here rounded up to three decimals.
            raise ValueError(
                f"guidance.fraction={config.fraction} of {heads} heads guides {guided}: at least 2 are needed, one for "
                f"Next and one for Prev. Use a fraction of at least {math.ceil(1500 / heads) / 1000}, or name the "
                "counts in guidance.heads"
            )
        return tuple(item for item in (("next", 1), ("prev", 1), ("first", guided - 2)) if item[1])
    assignment = []
    for item in config.heads.split(","):
        name, _, count = item.strip().rpartition(":")
        if not name or not re.fullmatch("0*[1-9][0-9]{0,8}", count):
            raise ValueError(
                "guidance.heads is a list of pattern:count with counts of at least 1, such as "
                f"'next:1,prev:1,first:4'; got {item!r} in {config.heads!r}"
            )
        patterns.find_pattern(name)  # raises ValueError for unknown patterns
        assignment.append((name, int(count)))
    guided = sum(count for _, count in assignment)
    if guided > heads:
        raise ValueError(f"guidance.heads={config.heads!r} guides {guided} heads, but a layer has only {heads}")
    if len({name for name, _ in assignment}) < len(assignment):
        raise ValueError(f"guidance.heads={config.heads!r} names a pattern twice: give each pattern one count")
    return tuple(assignment)


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
    """Targets of the patterns that the guided heads of a layer follow; the guided heads are the first heads.

    Heads 0 to counts[0] - 1 follow targets[0], the next counts[1] heads targets[1], and so on.

    after_dropout: guide the probabilities after dropout instead of the softmax itself.
    """

    targets: tuple[Target, ...]
    counts: tuple[int, ...] = flax.struct.field(pytree_node=False)
    after_dropout: bool = flax.struct.field(pytree_node=False, default=False)


@flax.struct.dataclass
class AttentionStatistics:
    """The two statistics of guidance, ||H||^2 and <H, P>, for each query of the guided heads.

    With attention probabilities H, target P, query p and keys q:

    sum_of_squares_BHQ: ||H||^2 = sum_q H[p, q]^2.
    overlap_BHQ: <H, P> = sum_q H[p, q] P[p, q].
    """

    sum_of_squares_BHQ: Array
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


def with_boundary(
    target: Shift,
    overlap_BHQ: Array,
    query_segments_BQ: Array,
    key_segments_BK: Array,
    band: Band = EVERYTHING,
    total_BHQ: Array | float = 1.0,
) -> Array:
    """Return <H, P>, with attention probabilities H and target P, for each query: `overlap_BHQ`, or the mean of H over
    the keys that the query sees if the query's text has no key at `target.offset`.

    Queries at the boundary of a text have no key at `target.offset`. Their target is uniform over the n keys that the
    query sees, so that <H, P> is sum(H) / n; <H, P> is 0 for queries that see no key.

    overlap_BHQ: H at the key p + offset of each query p.
    total_BHQ: sum(H) of each row.
    """
    tokens_B1Q = visible_tokens(query_segments_BQ, key_segments_BK, band)[:, None, :]
    outside_BHQ = total_BHQ / jnp.maximum(tokens_B1Q, 1).astype(jnp.float32)
    if query_segments_BQ is not key_segments_BK:
        outside_BHQ = jnp.where(tokens_B1Q > 0, outside_BHQ, 0.0)
    inside_B1Q = patterns.has_target(target, query_segments_BQ, key_segments_BK)[:, None, :]
    return jnp.where(inside_B1Q, overlap_BHQ, outside_BHQ)


def statistics(
    probabilities_BHQK: Array,
    guides: Guides,
    query_segments_BQ: Array,
    key_segments_BK: Array | None = None,
    band: Band = EVERYTHING,
) -> AttentionStatistics:
    """Return the two statistics of guidance, ||H||^2 and <H, P>, of the guided heads, from attention probabilities H.

    They are float32. The plain formulation that every kernel has to equal.

    key_segments_BK: None for self-attention.
    band: in which keys are seen.
    """
    guided, overlaps, head = sum(guides.counts), [], 0
    key_segments_BK = query_segments_BQ if key_segments_BK is None else key_segments_BK

    # Without the checkpoint, the backward pass would store a copy of the guided heads beside the probabilities
    # themselves.
    @functools.partial(jax.checkpoint, prevent_cse=False)
    def sum_of_squares(H_BHQK: Array) -> Array:
        return jnp.square(H_BHQK[:, :guided].astype(jnp.float32)).sum(-1)

    for target, count in zip(guides.targets, guides.counts, strict=True):
        rows_BHQK = probabilities_BHQK[:, head : head + count].astype(jnp.float32)
        head += count
        if isinstance(target, Shift):
            total_BHQ = rows_BHQK.sum(-1) if guides.after_dropout else 1.0
            overlap_BHQ = off_diagonal(rows_BHQK, target.offset)
            segment_ids = query_segments_BQ, key_segments_BK
            overlaps.append(with_boundary(target, overlap_BHQ, *segment_ids, band, total_BHQ))
        elif band.is_everything:
            overlaps.append(jnp.einsum("bhqk,bk->bhq", rows_BHQK, target.weights_BK))
        else:
            seen_BQ = visible_targets(target.weights_BK, query_segments_BQ, key_segments_BK, band)
            covered_BHQ = jnp.einsum("bhqk,bk->bhq", rows_BHQK, (target.weights_BK > 0).astype(jnp.float32))
            overlaps.append(covered_BHQ / jnp.maximum(seen_BQ, 1)[:, None, :])
    return AttentionStatistics(sum_of_squares(probabilities_BHQK), jnp.concatenate(overlaps, axis=1))


def bias(guides: Guides, segments_BL: Array, heads: int, scale: Array) -> Array:
    """Return the bias `BHQK` that `mode=bias` adds to the scores: scale * P for guided heads, 0 for the others.

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


def _square_norm(target: Target, segments_BL: Array, boundary: str) -> Array:
    """Return ||P||^2 for each query `BQ`: the squared norm of the query's row of the target."""
    if isinstance(target, Shift):
        tokens_BQ = jnp.maximum(segments.sizes(segments_BL), 1).astype(jnp.float32)
        outside = 1.0 / tokens_BQ if boundary == "uniform" else 0.0
        return jnp.where(patterns.has_target(target, segments_BL), 1.0, outside)
    return segments.totals(jnp.square(target.weights_BK), segments_BL)


def guidance_loss(
    statistics_NBHQ: AttentionStatistics, guides: Guides, segments_BL: Array, config: GuidanceConfig
) -> tuple[Array, list[tuple[Array, Array]]]:
    """Return the guidance loss L_AG, summed over texts, and for each pattern the sum of attention masses and their
    number, from which a mean is taken.

    For the mean loss, divide by the number of texts. With e[k, t, j, p] = ||H - P||^2 of layer k, text t, head j, row
    p, and n_t the tokens of t, one text has

        type_mean   sum_k sum_types  1/(heads of the type * n_t^2)  sum_j sum_p e     (released code)
        head_mean   sum_k            1/(guided heads * n_t^2)       sum_j sum_p e
        frobenius   sum_k                                           sum_j sum_p e     (equations 2 and 3)

    Padding, and pairs of tokens of different texts, do not count. The loss is zero if and only if every guided head
    equals its target.

    The mass of a target that is uniform over its columns is sum_q H[p, q] [P[p, q] > 0] = <H, P> / ||P||^2; it is
    averaged over the heads and over the rows that have a target column: sum / number, both of shape N (layers).
    """
    squared_sizes_BQ = jnp.square(jnp.maximum(segments.sizes(segments_BL), 1)).astype(jnp.float32)
    total, masses, head = jnp.float32(0), [], 0
    for target, count in zip(guides.targets, guides.counts, strict=True):
        square_BQ = _square_norm(target, segments_BL, config.boundary)
        has_target_BQ = patterns.has_target(target, segments_BL)
        overlap_NBHQ = statistics_NBHQ.overlap_BHQ[:, :, head : head + count]
        squares_NBHQ = statistics_NBHQ.sum_of_squares_BHQ[:, :, head : head + count]
        head += count

        dropped = config.absent if isinstance(target, Columns) else config.boundary
        rows_BQ = has_target_BQ if dropped == "ignore" else segments_BL > 0
        # The statistics take a `Shift`'s boundary rows as uniform; with `zero`, P = 0 there and nothing overlaps.
        is_zero_outside = isinstance(target, Shift) and config.boundary == "zero"
        overlaps_BQ = has_target_BQ if is_zero_outside else jnp.ones_like(has_target_BQ)
        # ||H - P||^2, expanded.
        errors_NBHQ = squares_NBHQ - 2.0 * overlap_NBHQ * overlaps_BQ[None, :, None, :] + square_BQ[None, :, None, :]
        errors_BQ = jnp.where(rows_BQ[None, :, None, :], errors_NBHQ, 0.0).sum((0, 2))
        if config.reduction != "frobenius":
            heads = count if config.reduction == "type_mean" else sum(guides.counts)
            errors_BQ = errors_BQ / (heads * squared_sizes_BQ)
        total += errors_BQ.sum()

        # Rows without a target may have ||P||^2 = 0; they are left out below.
        covered_NBHQ = overlap_NBHQ / jnp.maximum(square_BQ, 1e-9)[None, :, None, :]
        mass_NBHQ = jnp.where(has_target_BQ[None, :, None, :], covered_NBHQ, 0.0)
        weight = count * has_target_BQ.sum().astype(jnp.float32)
        masses.append((mass_NBHQ.sum((1, 2, 3)), jnp.full(mass_NBHQ.shape[:1], weight)))
    return total, masses
