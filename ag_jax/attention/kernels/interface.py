"""The interface of attention implementations, and what their kernels share.

    H = softmax(Q K^T / sqrt(W) + bias) over the keys that a query sees, 0 elsewhere and where it sees none
    O = (H * M) V, with M = 1 / (1 - rate) for elements that dropout keeps, 0 for the others

A query sees the keys of its own segment inside a band around its position (`attention.visibility`). A kernel knows a
guidance target P as one column for each query and one weight for each key of a head, of which 0 is left where a query
does not see the key,

    P[p, k] = 1 if k == columns_BHQ[p] else weights_BHK[k],

so a target needs memory of length Q + K, never Q x K. Of each row of H, of P and of the scores S that H is the softmax
of, a kernel returns these sums over the visible keys (`STATISTICS`), by `guidance.loss`:

    squared         squares = sum_k H^2,   overlap = sum_k H P
    cross_entropy   log_sums = log(sum_k exp(S)),   score_sums = sum_k S P,   overlap = sum_k H P, without a gradient

The gradient (reference section 13.1), with M as above and g for the gradient by a sum, is

    squared         dH = M * (dO V^T) + 2 g_squares H + g_overlap P,   dS = H * (dH - rowsum(dH * H))
    cross_entropy   dH = M * (dO V^T),   dS = H * (dH - rowsum(dH * H) + g_log_sums) + g_score_sums P

    dQ = dS K / sqrt(W),   dK = dS^T Q / sqrt(W),   dV = (H * M)^T dO,   dbias = dS.

Shape letters: B batch, Q query position, K key position, H head, W width of a head, A = H * W width of all heads.
"""

import abc
import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import jax.numpy as jnp
from jax import Array

from ag_jax.attention import dropout, guidance, patterns
from ag_jax.attention.config import GuidanceLoss
from ag_jax.attention.guidance import AttentionStatistics, Guides
from ag_jax.attention.patterns import Columns, Pointer, Target
from ag_jax.attention.visibility import Band, band_of, visible_targets

Mixed = tuple[Array, AttentionStatistics | None]

# Score of a key that must not be seen. Finite, so that differences of masked scores are numbers; a power of 2, so that
# times a scale it is exact, and a fused product-sum that takes away the rounded product leaves 0.
MASKED_SCORE = -(2.0**99)
# `jax.checkpoint` policies know the residuals of attention by this name.
RESIDUALS = "attention"
# The sums that a kernel returns for each row of a guided head, in this order.
STATISTICS: dict[GuidanceLoss, tuple[str, ...]] = {
    "squared": ("squares", "overlap"),
    "cross_entropy": ("log_sums", "score_sums", "overlap"),
}


class AttentionInputs(NamedTuple):
    """The checked arguments of a call of attention, see `Attend.__call__`; `band` stands for `causal` and `window`."""

    query_BQHW: Array
    key_BKHW: Array
    value_BKHW: Array
    query_segments_BQ: Array
    key_segments_BK: Array
    band: Band
    bias: Array | None
    guides: Guides | None
    rate: float
    key: Array | None


class Attend(abc.ABC):
    """An implementation of attention: calling it checks the arguments and then runs the subclass's `compute`."""

    def __call__(
        self,
        query_BQHW: Array,
        key_BKHW: Array,
        value_BKHW: Array,
        query_segments_BQ: Array,
        key_segments_BK: Array,
        *,
        causal: bool = False,
        window: int | None = None,
        bias: Array | None = None,
        guides: Guides | None = None,
        rate: float = 0.0,
        key: Array | None = None,
    ) -> Mixed:
        """Return (output `BQHW`, statistics of guidance for the heads of `guides` or None without guides).

        query_BQHW, key_BKHW, value_BKHW: in the precision of the computation; scores and softmax are float32. Queries
            and keys may differ in length.
        query_segments_BQ, key_segments_BK: int32 segment ids; a query sees keys of the same id, and padding has id 0. A
            query without any visible key gets output 0 and statistics 0. In self-attention pass the same array twice:
            then every query is known to see itself, and rows without visible keys cost nothing.
        causal: position q sees keys k <= q, both counted from 0, whatever the two lengths are.
        window: position q sees keys with abs(q - k) <= window // 2; None for no window.
        bias: None, or `(B or 1, H or 1, Q or 1, K)`, added to the scores; differentiated.
        guides: patterns of the first heads. The offset of a `Pointer`, if it has one, must be inside the band;
            `Columns` has a weight for each key. With `causal` or `window`, a query's target is uniform over the target
            columns that it sees.
        rate, key: of dropout on H; rate 0 needs no key. What is dropped depends on the key and an element's index only,
            so all implementations drop the same elements.

        Raises ValueError for arrays that do not go together, and for guides that cannot be followed.
        """
        band = band_of(causal, window)
        arrays = (query_BQHW, key_BKHW, value_BKHW, query_segments_BQ, key_segments_BK)
        _check_shapes(*arrays)
        if guides is not None:
            _check_guides(guides, band)
        return self.compute(AttentionInputs(*arrays, band, bias, guides, rate, key))

    @abc.abstractmethod
    def compute(self, inputs: AttentionInputs) -> Mixed:
        """Return (attention output `BQHW`, guidance statistics or None) for arguments checked by `__call__`."""


def _check_shapes(query: Array, key: Array, value: Array, query_segments: Array, key_segments: Array) -> None:
    batch, queries, *heads = query.shape
    shapes = {
        "key": (key, (batch, key.shape[1], *heads)),
        "value": (value, (batch, key.shape[1], *heads)),
        "query segments": (query_segments, (batch, queries)),
        "key segments": (key_segments, (batch, key.shape[1])),
    }
    for name, (array, shape) in shapes.items():
        if array.shape != shape:
            raise ValueError(f"attention of queries {query.shape}: {name} must have shape {shape}, got {array.shape}")


def _check_guides(guides: Guides, band: Band) -> None:
    for target in guides.targets:
        if isinstance(target, Pointer) and target.offset is not None and not band.contains(0, target.offset):
            raise ValueError(
                f"the neighbours at {target.offset:+d} are keys that causal or windowed attention hides from their "
                "queries; use another pattern for these heads"
            )


class KernelInputs(NamedTuple):
    """The arrays that a kernel reads, with the widths of all heads on one axis.

    bias: `(B or 1, H or 1, Q, K)`, or None.
    columns_BHQ, weights_BHK: the targets P of all heads, see `target`; None unless `KernelConfig.guided`.
    scalars: four int32, see `KernelConfig.keep`.
    """

    query_BQA: Array
    key_BKA: Array
    value_BKA: Array
    query_segments_BQ: Array
    key_segments_BK: Array
    bias: Array | None
    columns_BHQ: Array | None
    weights_BHK: Array | None
    scalars: Array


@dataclasses.dataclass(frozen=True)
class KernelConfig:
    """Static settings that a kernel is compiled for, besides the shapes of its arrays.

    heads: number of heads on this device.
    all_heads: number of heads of the layer, over all devices.
    width: width of a head, before a kernel pads it.
    queries, keys: lengths of the two sides, before a kernel pads them.
    rate: dropout rate.
    guided_heads: how many of this device's heads, from its first on, may be guided; 0 without guidance. The statistics
        of other heads are not needed.
    band: of visible keys; a kernel skips blocks outside of it.
    loss: which statistics a guided kernel computes.
    interpret: run the kernel as plain JAX, for tests on a CPU.
    """

    heads: int
    all_heads: int
    width: int
    queries: int
    keys: int
    rate: float
    guided_heads: int
    band: Band = Band()
    loss: GuidanceLoss = "squared"
    interpret: bool = False

    @property
    def guided(self) -> bool:
        """Whether any head of this device may be guided."""
        return self.guided_heads > 0

    @property
    def is_cross_entropy(self) -> bool:
        """Whether heads may be guided with `guidance.loss=cross_entropy`."""
        return self.guided and self.loss == "cross_entropy"

    @property
    def dropout_scale(self) -> float:
        """Factor by which elements that dropout keeps are multiplied: 1 / (1 - rate)."""
        return 1.0 / (1.0 - self.rate)

    def keep(self, scalars: Array | Sequence[Array], example: Array, head: Array, query: Array, key: Array) -> Array:
        """Return whether dropout keeps the element at each query and key position; `scalars` holds the seeds.

        scalars: int32; the two seeds' bits, the number of this device's first example, and of its first head.
        example, head: indices within this device.
        query, key: positions, which broadcast.
        """
        bits = dropout.bits_of_elements(*self.hashes(scalars, example, head, query, key))
        return dropout.keep_half(bits, ((head + scalars[3]) & 1) == 1, self.rate)

    def hashes(
        self, scalars: Array | Sequence[Array], example: Array, head: Array, query: Array, key: Array
    ) -> tuple[Array, Array]:
        """Return (hashes of rows, hashes of columns) of attention matrices, from which dropout's bits are mixed."""
        # Signed and unsigned integers multiply and add to the same bits.
        pair = (example + scalars[2]) * -(-self.all_heads // 2) + ((head + scalars[3]) >> 1)
        row = (pair * self.queries + query).astype(jnp.uint32)
        seeds = (scalars[0].astype(jnp.uint32), scalars[1].astype(jnp.uint32))
        return dropout.hashes_of_rows(seeds, row), dropout.hashes_of_columns(seeds, key.astype(jnp.uint32))


class Kernel(Protocol):
    """A function that computes attention on one device; `dispatch.Fused` runs it on all devices.

    Returns the output `BQA` and the sums of `STATISTICS`, each `BHQ` in float32, of all heads or of the first ones, at
    least `guided_heads`; no sums without guidance. Differentiable in query, key, value and bias only.
    """

    def __call__(self, config: KernelConfig, inputs: KernelInputs) -> tuple[Array, tuple[Array, ...]]: ...


def target(column: Array, weights: Array, key: Array) -> Array:
    """Return a head's target P: 1 where the key is the query's column, else the key's weight; the arrays broadcast."""
    return jnp.where(key == column, 1.0, weights)


def sparse_targets(inputs: AttentionInputs) -> tuple[Array, Array]:
    """Return each head's guidance target P in compact form: (columns `BHQ` int32, column weights `BHK` float32).

    They are arguments of the function `target`.

    A head with a `Pointer` has weights 0, a head with `Columns` the column -1, which no key has, and a head without
    guidance both, so that P = 0. Inside a band, columns have weights 0 and 1: how many of them a row sees is known
    outside the kernel (`guided_statistics`).
    """
    guides, (batch, keys, heads, _) = inputs.guides, inputs.key_BKHW.shape
    columns, weights = [], []
    for matrix, count in zip(guides.targets, guides.counts, strict=True):
        if isinstance(matrix, Columns):
            weights_BK = matrix.weights_BK
            column_BQ = jnp.full(inputs.query_segments_BQ.shape, -1, jnp.int32)
            if not inputs.band.is_everything:
                weights_BK = (weights_BK > 0).astype(jnp.float32)
        else:
            column_BQ = patterns.seen(matrix, inputs.query_segments_BQ, inputs.key_segments_BK, inputs.band)
            weights_BK = jnp.zeros((batch, keys), jnp.float32)
        columns += [column_BQ] * count
        weights += [weights_BK] * count
    free = [(0, 0), (0, heads - sum(guides.counts)), (0, 0)]
    return jnp.pad(jnp.stack(columns, axis=1), free, constant_values=-1), jnp.pad(jnp.stack(weights, axis=1), free)


def guided_statistics(sums: tuple[Array, ...], inputs: AttentionInputs) -> AttentionStatistics:
    """Return the guidance statistics of the guided heads, from the sums `BHQ` of a kernel (`STATISTICS`).

    The columns that a query sees inside a band get equal weights, which sum to 1. Queries without a column have a
    uniform target in <H, P>, and the cross-entropy 0.
    """
    overlaps, distances, head = [], [], 0
    *others, overlap_BHQ = sums
    for matrix, count in zip(inputs.guides.targets, inputs.guides.counts, strict=True):
        heads = slice(head, head + count)
        head += count
        # H sums to 1 in rows that see anything.
        segments = (inputs.query_segments_BQ, inputs.key_segments_BK)
        overlaps.append(guidance.overlap(matrix, overlap_BHQ[:, heads], *segments, inputs.band))
        if inputs.guides.loss == "cross_entropy":
            log_sums_BhQ, score_sums_BhQ = (each[:, heads] for each in others)
            total_B1Q = _target_sums(matrix, inputs)[:, None, :]
            distances.append(jnp.where(total_B1Q > 0, log_sums_BhQ - score_sums_BhQ / jnp.maximum(total_B1Q, 1), 0.0))
    distance_BHQ = jnp.concatenate(distances, axis=1) if distances else others[0][:, :head]
    return AttentionStatistics(distance_BHQ, jnp.concatenate(overlaps, axis=1))


def _target_sums(matrix: Target, inputs: AttentionInputs) -> Array:
    """Return the sum of each query's row of `sparse_targets`, int32 `BQ`: inside a band, how many columns it sees."""
    if isinstance(matrix, Pointer):
        has_column_BQ = patterns.seen(matrix, inputs.query_segments_BQ, inputs.key_segments_BK, inputs.band) >= 0
        return has_column_BQ.astype(jnp.int32)
    if inputs.band.is_everything:
        return (inputs.query_segments_BQ > 0).astype(jnp.int32)
    return visible_targets(matrix.weights_BK, inputs.query_segments_BQ, inputs.key_segments_BK, inputs.band)
