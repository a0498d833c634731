"""Multi-head attention that can be inspected, guided and attacked.

Without relative positions, guidance and attacks, all of it is

    query_BQHW, key_BKHW, value_BKHW = project(query_BQD), project(source_BKD), project(source_BKD)
    scores_BHQK = jnp.einsum("bqhw,bkhw->bhqk", query_BQHW, key_BKHW) / jnp.sqrt(W)
    visible_BQK = query_segments_BQ[:, :, None] == key_segments_BK[:, None, :]
    weights_BHQK = jax.nn.softmax(jnp.where(visible_BQK[:, None], scores_BHQK, MASKED_SCORE))
    mixed_BQHW = jnp.einsum("bhqk,bkhw->bqhw", dropout(weights_BHQK), value_BKHW)
    return jnp.einsum("bqhw,hwd->bqd", mixed_BQHW, output_HWD) + bias_D

of which `Attend` computes the middle four lines.

Shape letters: B batch, L length, Q query position, K key position, H head, D width of the model, W width of a head,
R rows of the table of relative embeddings, S distances, J beams, T tokens of a beam.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from ag_jax.attention import disentangled, fixed, guidance, rotary
from ag_jax.attention.attack import Attack, AttentionMask
from ag_jax.attention.config import DisentangledConfig, FixedConfig
from ag_jax.attention.disentangled import rows_at
from ag_jax.attention.kernels import reference
from ag_jax.attention.kernels.interface import MASKED_SCORE, RESIDUALS, Attend
from ag_jax.attention.linear import Linear
from ag_jax.attention.visibility import Band, band_of, visible_in_text

# Products of any precision whose sums are handed on in float32.
_dot_float32 = functools.partial(jax.lax.dot_general, preferred_element_type=jnp.float32)


class LayerKey(nn.Module):
    """Module that returns the PRNG key from which the attack on one layer's attention draws random numbers.

    It is drawn in a submodule, so that the keys of the layer's dropout are the same with and without an attack.
    """

    @nn.compact
    def __call__(self) -> Array:
        return self.make_rng("dropout")


@flax.struct.dataclass
class KeysAndValues:
    """Keys and values of all heads, projected from the tokens of a source, for decoding.

    Decoding multiplies few queries with them, again in each step. The order of the axes is that of the second matrix of
    these products, so that nothing is transposed.

    key_BHWK: None in fixed attention, which compares no keys.
    """

    key_BHWK: Array | None
    value_BHKW: Array


class Projected(NamedTuple):
    """Queries, keys and values of all heads, and the projected embeddings of relative positions.

    distances: for each term of relative positions, such as `c2p`, the projected rows of the table of embeddings, `RHW`
        (row, head, width of a head), and for each distance the index of its row.
    """

    query_BQHW: Array
    key_BKHW: Array
    value_BKHW: Array
    distances: dict[str, tuple[Array, np.ndarray]]


class MultiHeadAttention(nn.Module):
    """Multi-head attention: softmax(Q K^T / sqrt(W) + bias) V for each head of the width W, then a projection.

    The projection is of all heads, back to the width of the model. With `relative.terms`, scores are those of
    `attention.disentangled`. With `fixed.offsets`, the weights are those of `attention.fixed`, and there are no queries
    and keys.

    Sows, if the caller names the collection in `mutable=`:
      `intermediates/attention_weights`: probabilities `BHQK`, float32, before dropout: exact in whatever precision and
          mode the model computes, and whatever implementation `attend` is;
      `statistics/guided_heads`: the `AttentionStatistics` of the guided heads, if `guides` are given;
      `attack/counts`: the `MaskCounts` of an attack, if there is one;
      `intermediates/masked`: which units the attack masked, `BHQK`, where H is 1 if all heads share the mask.

    kernel_init: initializer of the projections to queries, keys and values.
    output_init: initializer of the projection of all heads; None takes `kernel_init`.
    biases: whether the projections have biases.
    head_norm: called with a name, returns a module that normalises queries or keys over the width of a head; None does
        not normalise them.
    """

    heads: int
    width: int
    dropout: float
    dtype: Any
    kernel_init: nn.initializers.Initializer
    attend: Attend = reference.attend
    relative: DisentangledConfig = DisentangledConfig()
    fixed: FixedConfig = FixedConfig()
    biases: bool = True
    output_init: nn.initializers.Initializer | None = None
    head_norm: Callable[[str | None], nn.Module] | None = None

    def setup(self):
        if not self.fixed.offsets:
            # Queries of disentangled attention are scaled once more before they are rounded (`_query_and_bias`).
            self.query = self._projection(dot_general=_dot_float32 if self.relative.terms else jax.lax.dot_general)
            self.key = self._projection(use_bias=self.biases and self.relative.key_bias)
        self.value = self._projection()
        if self.relative.terms and not self.relative.shared:
            self.relative_key = self._projection(use_bias=self.biases and self.relative.key_bias)
            self.relative_query = self._projection()
        if self.head_norm is not None:
            self.query_norm, self.key_norm = self.head_norm(None), self.head_norm(None)
        self.attack_key = LayerKey()
        output_init = self.output_init or self.kernel_init
        self.output = Linear(
            (self.width,), ("heads", "head_width", "embed"), self.dtype, output_init, use_bias=self.biases
        )

    def __call__(
        self,
        query_BQD: Array,
        source_BKD: Array,
        query_segments_BQ: Array,
        key_segments_BK: Array,
        *,
        causal: bool = False,
        window: int | None = None,
        bias: Array | None = None,
        guides: guidance.Guides | None = None,
        positions_BQ: Array | None = None,
        relative_RD: Array | None = None,
        rotation: rotary.Rotation | None = None,
        attack: Attack | None = None,
        head_mask_H: Array | None = None,
        deterministic: bool,
    ) -> Array:
        """Return the output of queries' attention to a source, `BQD` (batch, query, width of the model).

        For self-attention, pass the same tokens and segments twice.

        query_segments_BQ, key_segments_BK, causal, window, guides: as in `Attend`.
        bias: broadcasts to `BHQK`; added to the scores. With `positions_BQ`, it has a row for each position of the
            source.
        positions_BQ: position of each query in the source, for self-attention of some of its positions; None if the
            queries are all positions of the source, in order, or of another text.
        relative_RD: embeddings of R distances, for `relative.terms`.
        rotation: of queries and keys, for rotary positions of self-attention.
        attack: the attack on the attention of the source to itself; each query gets the row of its position.
        head_mask_H: factor of each head's output: 1 keeps the output, 0 zeroes it. What is sown does not depend on it.
        """
        if self.fixed.offsets:
            mixed_BQHW = self._fixed_head_outputs(source_BKD, key_segments_BK, causal)
            return self.output(_masked_heads(mixed_BQHW, head_mask_H))
        projected = self._project(query_BQD, source_BKD, relative_RD, rotation)
        bias_BHQK = None if bias is None else rows_at(bias, positions_BQ)
        query_BQHW, bias_BHQK = self._query_and_bias(projected, projected.query_BQHW, bias_BHQK, positions_BQ)
        if attack is not None:
            band = band_of(causal, window)
            # An attack that needs no attention weights does not compute them.
            weights = functools.partial(
                self._mean_weights, projected, source_BKD, key_segments_BK, bias, band, rotation, positions_BQ
            )
            visible_BKK = visible_in_text(key_segments_BK, key_segments_BK, band)
            mask = attack(source_BKD, visible_BKK, weights, None if deterministic else self.attack_key())
            self.sow("attack", "counts", mask.counts)
            masked_BHKK = (mask.bias_BHQK < 0) & visible_BKK[:, None]
            self.sow("intermediates", "masked", rows_at(masked_BHKK, positions_BQ))
            query_BQHW, bias_BHQK = _add_mask(mask, query_BQHW, bias_BHQK, positions_BQ)
        mixed_BQHW = self._head_outputs(
            (query_BQHW, projected.key_BKHW, projected.value_BKHW, query_segments_BQ, key_segments_BK),
            {"causal": causal, "window": window, "bias": bias_BHQK, "guides": guides},
            deterministic,
        )
        return self.output(_masked_heads(mixed_BQHW, head_mask_H))

    def keys_and_values(self, source_BKD: Array) -> KeysAndValues:
        """Return the projected keys and values of a source, for decoding, which reads them again for each new token."""
        key_BHWK = None if self.fixed.offsets else self.key(source_BKD).transpose(0, 2, 3, 1)
        return KeysAndValues(key_BHWK, self.value(source_BKD).swapaxes(1, 2))

    def at_step(
        self, tokens_BJD: Array, cache: KeysAndValues, visible_BJK: Array, index: Array
    ) -> tuple[Array, KeysAndValues]:
        """Return (self-attention output `BJD` of a new token in each of J beams, cache with its keys and values added).

        tokens_BJD: the tokens' vectors.
        cache: keys and values of the tokens before, of all beams, in K places: that of beam j at the position t is in
            place t * J + j, until beams are replaced by others. There is room for all tokens that will be decoded.
        visible_BJK: whether the place holds a token of the beam's text, the new one included.
        index: position of the new tokens, the same for all beams.

        Returns the output of attention, `BJD`, and `cache` with the keys and values of the new tokens added.
        """
        beams = tokens_BJD.shape[1]
        new = self.keys_and_values(tokens_BJD)
        add = functools.partial(jax.lax.dynamic_update_slice_in_dim, start_index=index * beams)
        key_BHWK = None if self.fixed.offsets else add(cache.key_BHWK, new.key_BHWK, axis=3)
        cache = KeysAndValues(key_BHWK, add(cache.value_BHKW, new.value_BHKW, axis=2))
        if not self.fixed.offsets:
            return self.read(tokens_BJD, cache, visible_BJK), cache
        weights_HT = fixed.row(self.fixed, self.heads, index, visible_BJK.shape[-1] // beams)
        weights_HK = jnp.repeat(weights_HT, beams, axis=-1)
        weights_BHJK = jnp.where(visible_BJK[:, None], weights_HK[None, :, None], 0.0)
        return self._cached_output(weights_BHJK, cache), cache

    def read(self, query_BQD: Array, source: KeysAndValues, visible_BQK: Array) -> Array:
        """Return the output of queries' attention to a source with cached keys and values, `BQD`; without dropout.

        visible_BQK: whether the query sees the key; broadcasts along Q. Each query must see a key.
        """
        query_BHQW = self.query(query_BQD).swapaxes(1, 2)
        scores_BHQK = jnp.einsum("bhqw,bhwk->bhqk", query_BHQW, source.key_BHWK, preferred_element_type=jnp.float32)
        scores_BHQK = scores_BHQK / math.sqrt(query_BHQW.shape[-1])
        return self._cached_output(jax.nn.softmax(jnp.where(visible_BQK[:, None], scores_BHQK, MASKED_SCORE)), source)

    def _cached_output(self, weights_BHQK: Array, source: KeysAndValues) -> Array:
        """Return the values mixed by attention weights, projected to the model's width, `BQD`."""
        narrow_BHQK = weights_BHQK.astype(source.value_BHKW.dtype)
        # Transposed afterwards: "->bqhw" would make the values the first matrix, which takes 20 times as long on a CPU.
        mixed_BHQW = jnp.einsum("bhqk,bhkw->bhqw", narrow_BHQK, source.value_BHKW)
        return self.output(mixed_BHQW.swapaxes(1, 2))

    def _fixed_head_outputs(self, source_BKD: Array, segments_BK: Array, causal: bool) -> Array:
        """Return the values mixed by hard-coded weights, `BKHW`; sow the weights if `intermediates` are asked for."""
        if self.is_mutable_collection("intermediates"):
            weights_BHQK = fixed.dense(self.fixed, self.heads, segments_BK, causal)
            self.sow("intermediates", "attention_weights", weights_BHQK)
        return fixed.mix(self.fixed, self.value(source_BKD), segments_BK, causal)

    def _query(self, query_BQD: Array, rotation: rotary.Rotation | None) -> Array:
        """Return all heads' projected queries, `BQHW`, after `head_norm` and rotation, either of which may be None."""
        query_BQHW = _as_residual(self.query(query_BQD))
        if self.head_norm is not None:
            query_BQHW = self.query_norm(query_BQHW)
        return query_BQHW if rotation is None else rotary.rotate(query_BQHW, rotation)

    def _key(self, source_BKD: Array, rotation: rotary.Rotation | None) -> Array:
        """Return all heads' projected keys, `BKHW`, after `head_norm` and rotation, either of which may be None."""
        key_BKHW = _as_residual(self.key(source_BKD))
        if self.head_norm is not None:
            key_BKHW = self.key_norm(key_BKHW)
        return key_BKHW if rotation is None else rotary.rotate(key_BKHW, rotation)

    def _project(
        self,
        query_BQD: Array,
        source_BKD: Array,
        relative_RD: Array | None,
        rotation: rotary.Rotation | None,
    ) -> Projected:
        """Return all heads' queries, projected from `query_BQD`, and keys and values, projected from `source_BKD`.

        With relative positions, also projected embeddings of distances from `relative_RD`, a table with R rows.
        """
        # Saved with their biases, so that the backward pass does not add them again.
        tokens = self._query(query_BQD, rotation), self._key(source_BKD, rotation), _as_residual(self.value(source_BKD))
        projections = {"c2p": self.key, "p2c": self.query}
        if self.relative.terms and not self.relative.shared:
            projections = {"c2p": self.relative_key, "p2c": self.relative_query}
        distances = {}
        for term in self.relative.names:
            # Only rows that texts of this length meet, once a layer and not once an example.
            rows, layout_S = disentangled.layout(self.relative, term, source_BKD.shape[1])
            distances[term] = projections[term](relative_RD[rows]).astype(self.dtype), layout_S
        return Projected(*tokens, distances)

    def _projection(self, **settings) -> Linear:
        features, names = (self.heads, self.width // self.heads), ("embed", "heads", "head_width")
        return Linear(features, names, self.dtype, self.kernel_init, **({"use_bias": self.biases} | settings))

    def _query_and_bias(
        self, projected: Projected, query_BQHW: Array, bias: Array | None, positions_BQ: Array | None
    ) -> tuple[Array, Array | None]:
        """Return (query, score bias) from which a kernel computes scores that include the relative positions.

        A kernel computes the scores Q K^T / sqrt(W) + bias, where W is the width of a head. With relative positions,
        their scores are added to the bias, and the query is scaled by `content_scale`.

        projected: gives the keys and the embeddings of distances.
        query_BQHW: the queries, which may be of other tokens than those in `projected`.
        """
        if not self.relative.terms:
            return query_BQHW, bias
        relative_BHQK = disentangled.relative_scores(
            self.relative, query_BQHW.astype(self.dtype), projected.key_BKHW, projected.distances, positions_BQ
        )
        # Scaled in float32: a query that has been rounded already would be rounded once more.
        query_BQHW = (query_BQHW * self.relative.content_scale).astype(self.dtype)
        return query_BQHW, relative_BHQK if bias is None else relative_BHQK + bias

    def _mean_weights(
        self,
        projected: Projected,
        source_BKD: Array,
        segments_BK: Array,
        bias: Array | None,
        band: Band,
        rotation: rotary.Rotation | None,
        positions_BQ: Array | None,
    ) -> Array:
        """Return the mean over heads of the attention weights within a source, without an attack, `BKK`."""
        query_BKHW = projected.query_BQHW if positions_BQ is None else self._query(source_BKD, rotation)
        query_BKHW, bias_BHKK = self._query_and_bias(projected, query_BKHW, bias, None)
        return reference.probabilities(query_BKHW, projected.key_BKHW, segments_BK, segments_BK, bias_BHKK, band).mean(
            1
        )

    def _head_outputs(self, arrays: tuple[Array, ...], options: dict[str, Any], deterministic: bool) -> Array:
        """Return each head's values mixed by attention weights, `BQHW` (batch, query, head, width of a head).

        arrays, options: positional and keyword arguments of `attend`.

        Sows the collections `intermediates` and `statistics` if the caller asked for them.
        """
        if not self.is_mutable_collection("statistics"):
            options["guides"] = None
        if self.dropout > 0.0 and not deterministic:
            options |= {"rate": self.dropout, "key": self.make_rng("dropout")}
        attend = self.attend
        if self.is_mutable_collection("intermediates"):
            # Kernels keep no probabilities. The reference has them, and equals every kernel.
            attend = reference.Reference(functools.partial(self.sow, "intermediates", "attention_weights"))
        mixed_BQHW, statistics = attend(*arrays, **options)
        # Kept where a remat policy drops results that are cheap to recompute: those of attention are not.
        mixed_BQHW, statistics = _as_residual(mixed_BQHW), checkpoint_name(statistics, RESIDUALS)
        if statistics is not None:
            self.sow("statistics", "guided_heads", statistics)
        return mixed_BQHW


def _as_residual(array_BQHW: Array) -> Array:
    """Return the array, which the remat policy `dots` saves for the backward pass with heads and widths on one axis.

    On a TPU, the array would be copied to another layout if it was saved with the two axes (head, width of a head),
    which takes time with the reference, too.
    """
    flat_BQA = array_BQHW.reshape(*array_BQHW.shape[:2], -1)
    return checkpoint_name(flat_BQA, RESIDUALS).reshape(array_BQHW.shape)


def _masked_heads(mixed_BQHW: Array, head_mask_H: Array | None) -> Array:
    """Return the outputs of all heads, each multiplied by its factor in `head_mask_H`; None changes nothing."""
    if head_mask_H is None:
        return mixed_BQHW
    return mixed_BQHW * head_mask_H.astype(mixed_BQHW.dtype)[None, None, :, None]


def _add_mask(
    mask: AttentionMask, query_BQHW: Array, bias_BHQK: Array | None, positions_BQ: Array | None
) -> tuple[Array, Array]:
    """Return (query vectors, score bias) of attacked attention: the attack's mask is added to the bias.

    If the attack masks all keys of a query, the query vector and its bias are set to 0 before, so that the query
    attends to all keys evenly.
    """
    mask_BHQK = rows_at(mask.bias_BHQK, positions_BQ)
    if mask.zeroed_BHQ is not None:
        zeroed_BHQ1 = rows_at(mask.zeroed_BHQ[..., None], positions_BQ)
        query_BQHW = jnp.where(zeroed_BHQ1.swapaxes(1, 2), 0, query_BQHW)
        bias_BHQK = None if bias_BHQK is None else jnp.where(zeroed_BHQ1, 0.0, bias_BHQK)
    return query_BQHW, mask_BHQK if bias_BHQK is None else mask_BHQK + bias_BHQK
