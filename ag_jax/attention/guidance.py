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
from collections.abc import Callable, Sequence
from typing import Annotated, Literal

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ag_jax.attention import patterns, segments
from ag_jax.attention.patterns import Columns, Shift, Target
from ag_jax.attention.visibility import EVERYTHING, Band, band_of, visible_in_text, visible_targets, visible_tokens

Schedule = Callable[[Array], Array]
Reduction = Literal["type_mean", "head_mean", "frobenius"]
Boundary = Literal["uniform", "zero", "ignore"]
Absent = Literal["uniform", "ignore"]
Probabilities = Literal["before_dropout", "after_dropout"]


@dataclasses.dataclass(frozen=True)
class GuidanceConfig:
    """Settings of attention guidance, with the defaults of the released code where the paper differs.

    mode: `loss` adds alpha(step) * L_AG to the objective, `bias` adds alpha(step) * P to the guided heads' scores,
        `none` is no guidance.
    fraction: lambda, the share of the heads of every layer that is guided: one Next, one Prev, the rest First.
    heads: counts of heads for each pattern instead of `fraction`, from head 0 on, such as
        next:1,prev:1,first:2,period:2. Patterns are next, prev, first, delim, period, same, and custom ones, named as
        `module.function`.
    layers: layers of the encoder whose heads are guided: `all`, `global` or `local` ones (without or with
        `model.window`), or numbers from 0 with commas, such as 0-5,8.
    decoder_heads: counts of heads for each pattern in a decoder's self-attention, such as prev:1; none for no guidance
        of these heads.
    cross_heads: counts of heads for each pattern in a decoder's attention to the source, such as first:1,diagonal:1,
        where `diagonal` is the token at the same place of the source, in proportion to the lengths of both texts; none
        for no guidance of these heads.
    alpha: coefficient of the guidance at the first step; `schedule` says how it falls.
    alpha_rule: `value` takes `alpha`. `auto` takes the power of ten that brings alpha * L_AG nearest to the model's own
        loss, both of the first batch before the first step (in pre-training, with mode `loss`).
    schedule: `hold_then_linear` keeps alpha for `hold_steps` and then lowers it to 0 at the last step, `linear` lowers
        it from the start, `constant` keeps it.
    hold_steps: steps for which `hold_then_linear` keeps alpha.
    reduction: how the n x n errors of a text become one number: the mean over the heads of each pattern, summed over
        patterns (`type_mean`); the mean over all guided heads (`head_mean`); or the plain sum (`frobenius`, the paper's
        equations 2 and 3).
    boundary: target of the first or last token of a text, which has no previous or next token: `uniform`, `zero`, or
        `ignore` its row.
    absent: target of a pattern whose token is not in the text, such as a period, or which a decoder has not read yet:
        `uniform`, or `ignore` the rows without this token.
    probabilities: guide the softmax itself (`before_dropout`, the paper) or what dropout leaves of it (`after_dropout`,
        the code).
    """

    mode: Literal["none", "loss", "bias"] = "none"
    fraction: Annotated[float, "> 0", "<= 1"] = 0.5
    heads: str | None = None
    layers: str = "all"
    decoder_heads: str | None = None
    cross_heads: str | None = None
    alpha: Annotated[float, ">= 0"] = 10.0
    alpha_rule: Literal["value", "auto"] = "value"
    schedule: Literal["hold_then_linear", "linear", "constant"] = "hold_then_linear"
    hold_steps: Annotated[int, ">= 0"] = 20_000
    reduction: Reduction = "type_mean"
    boundary: Boundary = "uniform"
    absent: Absent = "uniform"
    probabilities: Probabilities = "before_dropout"

    @property
    def in_effect(self) -> "GuidanceConfig":
        """These settings, with every setting that has no effect at its default.

        Without effect are all settings if `mode` is `none`, and `alpha` if the rule `auto` chooses it.
        """
        if self.mode == "none":
            return GuidanceConfig()
        return dataclasses.replace(self, alpha=GuidanceConfig.alpha) if self.alpha_rule == "auto" else self


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
                f"Next and one for Prev; use a fraction of at least {math.ceil(1500 / heads) / 1000}"
            )
        return tuple(item for item in (("next", 1), ("prev", 1), ("first", guided - 2)) if item[1])
    return _parse_heads("guidance.heads", config.heads, heads)


@dataclasses.dataclass(frozen=True)
class Assignment:
    """The pattern towards which guidance pulls each head of each layer of a model; free heads have none.

    counts: patterns, each with the number of heads that it guides in every guided layer: the first pattern guides head
        0 and the heads after it, the next pattern the heads that follow, and so on. Empty if no head is guided.
    layers: numbers of the guided layers, from 0; None for all layers.
    """

    counts: tuple[tuple[str, int], ...] = ()
    layers: tuple[int, ...] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the patterns, in the order of the heads that they guide."""
        return tuple(name for name, _ in self.counts)

    @property
    def is_usable(self) -> bool:
        """Whether every pattern is built in, or custom and allowed to be imported (`imported`)."""
        return all(map(patterns.is_usable, self.names))

    @property
    def where(self) -> str:
        """The guided layers in words, counted from 1, such as `layers 1-6, 9`; empty for all layers."""
        if self.layers is None:
            return ""
        runs = self.runs(max(self.layers) + 1)
        numbers = [str(run.stop) if len(run) == 1 else f"{run.start + 1}-{run.stop}" for run in runs]
        return f"layer{'s' * (len(self.layers) > 1)} {', '.join(numbers)}"

    def runs(self, layers: int) -> list[range]:
        """Return the guided layers of a model with `layers` layers, as ranges of consecutive layers."""
        runs: list[range] = []
        for layer in range(layers) if self.layers is None else self.layers:
            if runs and runs[-1].stop == layer:
                runs[-1] = range(runs[-1].start, layer + 1)
            else:
                runs.append(range(layer, layer + 1))
        return runs

    def of_layer(self, heads: int) -> tuple[str | None, ...]:
        """Return the pattern that guides each head of a guided layer, None for free heads.

        Raises ValueError if more than `heads` heads are guided.
        """
        names = [name for name, count in self.counts for _ in range(count)]
        if len(names) > heads:
            raise ValueError(f"the assignment {self.counts} guides {len(names)} heads, but a layer has only {heads}")
        return (*names, *[None] * (heads - len(names)))

    def patterns(self, layers: int, heads: int) -> np.ndarray:
        """Return the pattern that guides each head, None for free heads, as an array of objects `NH` (layer, head).

        Raises ValueError if a guided layer, or a guided head, is not among the model's.
        """
        if self.layers is not None and not set(self.layers) <= set(range(layers)):
            raise ValueError(f"the assignment guides {self.where}, but the model has only {layers} layers")
        names_NH = np.full((layers, heads), None, object)
        for run in self.runs(layers):
            names_NH[run.start : run.stop] = self.of_layer(heads)
        return names_NH

    def is_guided(self, layers: int, heads: int) -> np.ndarray:
        """Return booleans `NH` (layer, head): whether guidance pulls each head towards a pattern."""
        return np.vectorize(lambda name: name is not None, otypes=[bool])(self.patterns(layers, heads))


def assign_encoder_heads(config: GuidanceConfig, heads: int, is_local: Sequence[bool]) -> Assignment:
    """Return which heads of which layers of an encoder are guided by which pattern.

    In a guided layer (`guided_layers`), they are the heads of `assign_heads`.

    is_local: for each layer of the encoder, whether its attention is limited to a window.

    Raises ValueError as `assign_heads` and `guided_layers` do.
    """
    if config.mode == "none":
        return Assignment()
    layers = None if config.layers == "all" else tuple(_layer_numbers(config, is_local))
    return Assignment(assign_heads(config, heads), layers)


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
    numbers = _layer_numbers(config, is_local)
    kinds = sorted({is_local[layer] for layer in numbers})
    returned = [layer for layer, kind in enumerate(is_local) if kind in kinds]
    groups = []
    for kind in kinds:
        layers = tuple(layer for layer in numbers if is_local[layer] == kind)
        band = band_of(causal=False, window=window) if kind else EVERYTHING
        groups.append(LayerGroup(layers, tuple(map(returned.index, layers)), band))
    return tuple(groups)


def _layer_numbers(config: GuidanceConfig, is_local: Sequence[bool]) -> list[int]:
    """Return the numbers, from 0, of the guided layers that `config.layers` names, in ascending order."""
    kinds = {"all": (False, True), "global": (False,), "local": (True,)}
    if config.layers not in kinds:
        return _read_layers(config.layers, len(is_local))
    numbers = [layer for layer, kind in enumerate(is_local) if kind in kinds[config.layers]]
    if not numbers:
        raise ValueError(
            f"guidance.layers={config.layers}: no layer of the model is {config.layers}, see model.window and "
            "model.global_every"
        )
    return numbers


def _read_layers(text: str, layers: int) -> list[int]:
    """Return the sorted layer numbers in a text such as `0-5,8`, for an encoder with `layers` layers."""
    numbers: set[int] = set()
    for item in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", item)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if not first <= last < layers:
            raise ValueError(
                f"guidance.layers must be all, global, local, or layers from 0 to {layers - 1} with commas, such as "
                f"0-{layers - 1}; got {item!r} in {text!r}"
            )
        numbers.update(range(first, last + 1))
    return sorted(numbers)


def assign_decoder_heads(config: GuidanceConfig, heads: int) -> tuple[tuple[str, int], ...]:
    """Return (pattern, number of heads guided by it in every layer) for each pattern of decoder self-attention.

    Raises ValueError for the pattern `next`, and for malformed counts.
    """
    if config.mode == "none" or not config.decoder_heads:
        return ()
    assignment = _parse_heads("guidance.decoder_heads", config.decoder_heads, heads)
    if "next" in dict(assignment):
        raise ValueError(
            f"guidance.decoder_heads={config.decoder_heads!r}: next looks at a token that the decoder has not written "
            "yet; use prev, same or first"
        )
    return assignment


def assign_cross_heads(config: GuidanceConfig, heads: int) -> tuple[tuple[str, int], ...]:
    """Return (pattern, number of heads guided by it in every layer) for each pattern of decoder cross-attention.

    Raises ValueError for patterns of neighbours, such as `next`, and for malformed counts.
    """
    if config.mode == "none" or not config.cross_heads:
        return ()
    assignment = _parse_heads("guidance.cross_heads", config.cross_heads, heads, ("diagonal",))
    if neighbours := [name for name, _ in assignment if name in ("next", "prev", "same")]:
        raise ValueError(
            f"guidance.cross_heads={config.cross_heads!r}: {neighbours[0]} points at a neighbour in the same text, "
            "which attention to the source does not have; use first, delim, period or diagonal"
        )
    return assignment


def _parse_heads(setting: str, text: str, heads: int, more: tuple[str, ...] = ()) -> tuple[tuple[str, int], ...]:
    """Return ((pattern, number of heads), ...) of a setting such as `next:1,prev:1`, after a check that it is valid.

    setting: name of the setting, for messages.
    more: names of patterns that `patterns.check_name` does not know.
    """
    assignment = read_heads(setting, text)
    for name, _ in assignment:
        if name not in more:
            patterns.check_name(name)
    guided = sum(count for _, count in assignment)
    if guided > heads:
        raise ValueError(f"{setting}={text!r} guides {guided} heads, but a layer has only {heads}")
    if len({name for name, _ in assignment}) < len(assignment):
        raise ValueError(f"{setting}={text!r} names a pattern twice: give each pattern one count")
    return assignment


def not_allowed(config: GuidanceConfig) -> list[str]:
    """Return the names of custom patterns in `config` whose code must not be imported without `--trust_code`.

    Nothing is imported here.
    """
    counts = (config.heads, config.decoder_heads, config.cross_heads) if config.mode != "none" else ()
    names = [name for text in counts if text for name, _ in read_heads("guidance", text)]
    return [name for name in names if not patterns.is_usable(name)]


def read_heads(setting: str, text: str) -> tuple[tuple[str, int], ...]:
    """Return ((pattern, count), ...) from a text such as `next:1,prev:1`, without a check that the patterns exist.

    A model that was trained with a custom pattern can thus be used where the pattern's module is not installed.

    setting: name of the setting, for messages.
    """
    assignment = []
    for item in text.split(","):
        name, _, count = item.strip().rpartition(":")
        if not name or not re.fullmatch("0*[1-9][0-9]{0,8}", count):
            raise ValueError(
                f"{setting} is a list of pattern:count with counts of at least 1, such as "
                f"'next:1,prev:1,first:4'; got {item!r} in {text!r}"
            )
        assignment.append((name, int(count)))
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
    """Target matrices of the guided heads of a layer, which are its first heads.

    Heads 0 to counts[0] - 1 follow targets[0], the next counts[1] heads targets[1], and so on.

    after_dropout: guide the probabilities after dropout instead of the softmax itself.
    kinds: whether layers have a window (True) or not (False), of the layers whose statistics are computed.
    """

    targets: tuple[Target, ...]
    counts: tuple[int, ...] = flax.struct.field(pytree_node=False)
    after_dropout: bool = flax.struct.field(pytree_node=False, default=False)
    kinds: tuple[bool, ...] = flax.struct.field(pytree_node=False, default=(False, True))


@flax.struct.dataclass
class AttentionStatistics:
    """The two statistics of guidance, ||H||^2 and <H, P>, of each query's attention row H and target row P.

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


def overlap(
    target: Target,
    overlap_BHQ: Array,
    query_segments_BQ: Array,
    key_segments_BK: Array,
    band: Band = EVERYTHING,
    total_BHQ: Array | float = 1.0,
) -> Array:
    """Return <H, P> for each query, `BHQ`: the dot product of its rows of attention weights H and target P.

    Rows without a column of P, such as the last row of `Shift(1)`, have a target that is uniform over the n keys that
    the query sees, so that <H, P> is sum(H) / n; <H, P> is 0 for queries that see no key.

    overlap_BHQ: for `Shift` and `Entries` H at the row's column, for `Columns` the sum of H P without a band, and
        inside a band the sum of H over the columns, which have equal weights there.
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


def statistics(
    probabilities_BHQK: Array,
    guides: Guides,
    query_segments_BQ: Array,
    key_segments_BK: Array | None = None,
    band: Band = EVERYTHING,
) -> AttentionStatistics:
    """Return the guidance statistics ||H||^2 and <H, P> of guided heads, with attention weights H and target P.

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
        total_BHQ = rows_BHQK.sum(-1) if guides.after_dropout else 1.0
        if isinstance(target, Shift):
            overlap_BHQ = off_diagonal(rows_BHQK, target.offset)
        elif isinstance(target, Columns):
            is_column_BK = (target.weights_BK > 0).astype(jnp.float32)
            weights_BK = target.weights_BK if band.is_everything else is_column_BK
            overlap_BHQ = jnp.einsum("bhqk,bk->bhq", rows_BHQK, weights_BK)
        else:
            column_BQ = jnp.maximum(target.column_BQ, 0)
            overlap_BHQ = jnp.take_along_axis(rows_BHQK, column_BQ[:, None, :, None], axis=-1)[..., 0]
        overlaps.append(overlap(target, overlap_BHQ, query_segments_BQ, key_segments_BK, band, total_BHQ))
    return AttentionStatistics(sum_of_squares(probabilities_BHQK), jnp.concatenate(overlaps, axis=1))


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


def _square_norm(target: Target, query_segments_BQ: Array, key_segments_BK: Array, band: Band, boundary: str) -> Array:
    """Return ||P||^2 for each query, `BQ`: the squared norm of the query's row of the target matrix P."""
    segment_ids = query_segments_BQ, key_segments_BK
    if isinstance(target, Columns) and band.is_everything:
        squares_BK = jnp.square(target.weights_BK)
        if query_segments_BQ is key_segments_BK:
            return segments.totals(squares_BK, query_segments_BQ)
        seen_BQK = visible_in_text(*segment_ids)
        return jnp.where(seen_BQK, squares_BK[:, None, :], 0.0).sum(-1)
    uniform_BQ = 1.0 / jnp.maximum(visible_tokens(*segment_ids, band), 1).astype(jnp.float32)
    if isinstance(target, Columns):
        columns_BQ = visible_targets(target.weights_BK, *segment_ids, band)
        return jnp.where(columns_BQ > 0, 1.0 / jnp.maximum(columns_BQ, 1), uniform_BQ)
    outside_BQ = uniform_BQ if boundary == "uniform" else jnp.zeros_like(uniform_BQ)
    return jnp.where(patterns.has_target(target, *segment_ids, band), 1.0, outside_BQ)


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

    For the mean loss, divide by the number of texts. With e[k, t, j, p] = ||H - P||^2 of layer k, text t, head j, row
    p, and n_t the tokens of t, one text has

        type_mean   sum_k sum_types  1/(heads of the type * n_t^2)  sum_j sum_p e     (released code)
        head_mean   sum_k            1/(guided heads * n_t^2)       sum_j sum_p e
        frobenius   sum_k                                           sum_j sum_p e     (equations 2 and 3)

    In attention to another text, n_t^2 is the product of the numbers of tokens of both texts.

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
        squares_NBHQ = statistics_NBHQ.sum_of_squares_BHQ[:, :, head : head + count]
        head += count

        dropped = config.absent if isinstance(target, Columns) else config.boundary
        rows_BQ = has_target_BQ if dropped == "ignore" else segments_BQ > 0
        # The statistics take a `Shift`'s boundary rows as uniform; with `zero`, P = 0 there and nothing overlaps.
        is_zero_outside = not isinstance(target, Columns) and config.boundary == "zero"
        overlaps_BQ = has_target_BQ if is_zero_outside else jnp.ones_like(has_target_BQ)
        # ||H - P||^2, expanded.
        errors_NBHQ = squares_NBHQ - 2.0 * overlap_NBHQ * overlaps_BQ[None, :, None, :] + square_BQ[None, :, None, :]
        errors_BQ = jnp.where(rows_BQ[None, :, None, :], errors_NBHQ, 0.0).sum((0, 2))
        if config.reduction != "frobenius":
            heads = count if config.reduction == "type_mean" else sum(guides.counts)
            errors_BQ = errors_BQ / (heads * pairs_BQ)
        total += errors_BQ.sum()

        # Rows without a target may have ||P||^2 = 0; they are left out below.
        covered_NBHQ = overlap_NBHQ / jnp.maximum(square_BQ, 1e-9)[None, :, None, :]
        mass_NBHQ = jnp.where(has_target_BQ[None, :, None, :], covered_NBHQ, 0.0)
        weight = count * has_target_BQ.sum().astype(jnp.float32)
        masses.append((mass_NBHQ.sum((1, 2, 3)), jnp.full(mass_NBHQ.shape[:1], weight)))
    return total, masses
