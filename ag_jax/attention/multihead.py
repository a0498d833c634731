"""Multi-head self-attention that can be looked at, guided and attacked.

Shape letters: B batch, L length, Q query position, K key position, H head, D width of the model, V width of a head,
R rows of the table of relative embeddings, M places that ask where not all do.
"""

import functools
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from ag_jax.attention import adversary, disentangled, guidance
from ag_jax.attention.disentangled import DisentangledConfig
from ag_jax.attention.kernels import reference
from ag_jax.attention.kernels.interface import KEPT, Attend

Array = jax.Array

# Products of any precision whose sums are handed on in float32.
_dot_float32 = functools.partial(jax.lax.dot_general, preferred_element_type=jnp.float32)


@flax.struct.dataclass
class Asking:
    """Queries of some positions alone: what asks, `query_BMD`, and where in its row it stands, `places_BM`."""

    query_BMD: Array
    places_BM: Array


class LayerKey(nn.Module):
    """A random key of the layer, drawn beside those of its dropout, which stay what they are."""

    @nn.compact
    def __call__(self) -> Array:
        return self.make_rng("dropout")


class MultiHeadAttention(nn.Module):
    """Self-attention: O = softmax(Q K^T / sqrt(d) + bias) V for each head, then a projection back to the width.

    With `relative.terms`, scores are those of `attention.disentangled`.

    Sows, for whoever asks for the collection with `mutable=`:
      `intermediates/attention_weights`: probabilities `BHQK`, float32, before dropout: exact in whatever precision and
          mode the model computes, and whatever implementation `attend` is;
      `statistics/guided_heads`: the `AttentionStatistics` of the guided heads, if `guides` are given;
      `attack/units`: the `Units` that an attack kept, if there is one.
    """

    heads: int
    width: int
    dropout: float
    dtype: Any
    kernel_init: nn.initializers.Initializer
    attend: Attend = reference.attend
    relative: DisentangledConfig = DisentangledConfig()

    @nn.compact
    def __call__(
        self,
        hidden_BLD: Array,
        sequences_BL: Array,
        guides: guidance.Guides | None,
        attention_bias: Array | None,
        deterministic: bool,
        *,
        asking: Asking | None = None,
        relative_RD: Array | None = None,
        attack: adversary.Attack | None = None,
    ) -> Array:
        """Mix `hidden_BLD` within each text. `attention_bias` broadcasts to `BHQK` and is added to the scores.

        asking: what asks, if it is not `hidden_BLD` itself; the answer is `BMD` then, in plain XLA, and nothing is sown.
        relative_RD: embeddings of distances, for `relative.terms`; attack: of this layer.
        """
        query = self._projection("query", dot_general=_dot_float32 if self.relative.terms else None)
        key_bias = self.relative.key_bias
        key, value = self._projection("key", use_bias=key_bias), self._projection("value")
        query_BQHV = query(hidden_BLD if asking is None else asking.query_BMD)
        key_BLHV, value_BLHV = key(hidden_BLD), value(hidden_BLD)
        projected = None
        if self.relative.terms:
            of_terms = {"c2p": key, "p2c": query}
            if not self.relative.shared:
                of_terms = {
                    "c2p": self._projection("relative_key", use_bias=key_bias),
                    "p2c": self._projection("relative_query"),
                }
            projected = self._project_distances(of_terms, relative_RD, hidden_BLD.shape[1])

        def scored(query_BQHV: Array, places_BM: Array | None) -> tuple[Array, Array | None]:
            return self._with_distances(query_BQHV, key_BLHV, attention_bias, projected, places_BM)

        places_BM = None if asking is None else asking.places_BM
        scored_BQHV, bias = scored(query_BQHV, places_BM)
        if attack is not None:

            def weights() -> Array:
                own_BLHV, own_bias = scored(query(hidden_BLD), None) if asking is not None else (scored_BQHV, bias)
                return reference.probabilities(own_BLHV, key_BLHV, sequences_BL, own_bias).mean(1)

            layer_key = None if deterministic else LayerKey(name="attack_key")()
            attacked = attack(hidden_BLD, sequences_BL, weights, layer_key)
            if asking is None:
                self.sow("attack", "units", attacked.units)
            scored_BQHV, bias = _under(attacked, scored_BQHV, bias, places_BM)

        thinning = self._thinning(deterministic)
        if asking is None:
            mixed_BQHV = self._mix(scored_BQHV, key_BLHV, value_BLHV, sequences_BL, guides, bias, thinning)
        else:
            mixed_BQHV = _answered(scored_BQHV, key_BLHV, value_BLHV, sequences_BL, places_BM, bias, thinning)
        return nn.DenseGeneral(
            self.width,
            axis=(-2, -1),
            dtype=self.dtype,
            kernel_init=nn.with_logical_partitioning(self.kernel_init, ("heads", "head_width", "embed")),
            bias_init=nn.with_logical_partitioning(nn.initializers.zeros, ("embed",)),
            name="output",
        )(mixed_BQHV)

    def _projection(self, name: str, **settings) -> nn.DenseGeneral:
        return nn.DenseGeneral(
            (self.heads, self.width // self.heads),
            dtype=self.dtype,
            kernel_init=nn.with_logical_partitioning(self.kernel_init, ("embed", "heads", "head_width")),
            bias_init=nn.with_logical_partitioning(nn.initializers.zeros, ("heads", "head_width")),
            name=name,
            **settings,
        )

    def _with_distances(
        self,
        query_BQHV: Array,
        key_BLHV: Array,
        bias: Array | None,
        projected: dict[str, tuple[Array, np.ndarray]] | None,
        places_BM: Array | None,
    ) -> tuple[Array, Array | None]:
        """Queries, and what is added to their products with the keys: the bias, and with `projected` distances those."""
        if places_BM is not None and bias is not None:
            bias = disentangled.at_places(bias, places_BM)
        if projected is None:
            return query_BQHV, bias
        relative_BHQK = disentangled.relative_scores(
            self.relative, query_BQHV.astype(self.dtype), key_BLHV, projected, places_BM
        )
        # Scaled in float32: what has been rounded already would be rounded once more.
        query_BQHV = (query_BQHV * self.relative.content_scale).astype(self.dtype)
        return query_BQHV, relative_BHQK if bias is None else relative_BHQK + bias

    def _project_distances(
        self, of_terms: dict[str, nn.DenseGeneral], relative_RD: Array, length: int
    ) -> dict[str, tuple[Array, np.ndarray]]:
        """Only rows that texts of this length meet, once a layer and not once an example."""
        projected = {}
        for term in self.relative.names:
            needed, places_S = disentangled.layout(self.relative, term, length)
            projected[term] = of_terms[term](relative_RD[needed]).astype(self.dtype), places_S
        return projected

    def _thinning(self, deterministic: bool) -> dict[str, Any]:
        """Rate and key of dropout on the probabilities."""
        thins = self.dropout > 0.0 and not deterministic
        return {"rate": self.dropout, "key": self.make_rng("dropout")} if thins else {"rate": 0.0, "key": None}

    def _mix(self, query_BLHV, key_BLHV, value_BLHV, sequences_BL, guides, attention_bias, thinning) -> Array:
        """What the heads mix of the values; sows what is asked for."""
        options = {"guides": guides if self.is_mutable_collection("statistics") else None, **thinning}
        if self.is_mutable_collection("intermediates"):
            weights_BHQK = reference.probabilities(query_BLHV, key_BLHV, sequences_BL, attention_bias)
            self.sow("intermediates", "attention_weights", weights_BHQK)
            mixed_BLHV, statistics = reference.mix(weights_BHQK, value_BLHV, sequences_BL, **options)
        else:
            mixed_BLHV, statistics = self.attend(
                query_BLHV, key_BLHV, value_BLHV, sequences_BL, bias=attention_bias, **options
            )
        # Kept where a remat policy drops what is cheap to make again: attention is not.
        mixed_BLHV, statistics = checkpoint_name((mixed_BLHV, statistics), KEPT)
        if statistics is not None:
            self.sow("statistics", "guided_heads", statistics)
        return mixed_BLHV


def _answered(query_BMHV, key_BLHV, value_BLHV, sequences_BL, places_BM, bias, thinning) -> Array:
    """What the heads mix of the values for the queries of some places."""
    asking_BM = jnp.take_along_axis(sequences_BL, places_BM, axis=1)
    weights_BHMK = reference.probabilities(query_BMHV, key_BLHV, sequences_BL, bias, asking_BM)
    mixed_BMHV, _ = reference.mix(weights_BHMK, value_BLHV, sequences_BL, **thinning)
    return checkpoint_name(mixed_BMHV, KEPT)


def _under(
    attacked: adversary.Attacked, query_BQHV: Array, bias: Array | None, places_BM: Array | None
) -> tuple[Array, Array]:
    """Queries and bias under attack; of some places, if there are any."""
    bias_BHQK, erased_BHQ = attacked.bias_BHQK, attacked.erased_BHQ
    if places_BM is not None:
        bias_BHQK = disentangled.at_places(bias_BHQK, places_BM)
    if erased_BHQ is not None:
        erased_BHQ1 = erased_BHQ[..., None]
        if places_BM is not None:
            erased_BHQ1 = disentangled.at_places(erased_BHQ1, places_BM)
        query_BQHV = jnp.where(erased_BHQ1.swapaxes(1, 2), 0, query_BQHV)
        bias = None if bias is None else jnp.where(erased_BHQ1, 0.0, bias)
    return query_BQHV, bias_BHQK if bias is None else bias_BHQK + bias
