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

from ag_jax.attention import disentangled, guidance
from ag_jax.attention.disentangled import DisentangledConfig
from ag_jax.attention.fused import reference
from ag_jax.attention.fused.contract import KEPT, Attend

Array = jax.Array

# Products of any precision whose sums are handed on in float32.
_dot_float32 = functools.partial(jax.lax.dot_general, preferred_element_type=jnp.float32)


@flax.struct.dataclass
class Asking:
    """Queries of some positions alone: what asks, `query_BMD`, and where in its row it stands, `places_BM`."""

    query_BMD: Array
    places_BM: Array


class MultiHeadAttention(nn.Module):
    """Self-attention: O = softmax(Q K^T / sqrt(d) + bias) V for each head, then a projection back to the width.

    With `relative.terms`, scores are those of `attention.disentangled`.

    Sows, for whoever asks for the collection with `mutable=`:
      `intermediates/attention_weights`: probabilities `BHQK`, float32, before dropout: exact in whatever precision and
          mode the model computes, and whatever implementation `attend` is;
      `statistics/guided_heads`: the `AttentionStatistics` of the guided heads, if `guides` are given.
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
    ) -> Array:
        """Mix `hidden_BLD` within each text. `attention_bias` broadcasts to `BHQK` and is added to the scores.

        asking: what asks, if it is not `hidden_BLD` itself; the answer is `BMD` then, in plain XLA, and nothing is sown.
        relative_RD: embeddings of distances, for `relative.terms`.
        """
        key_bias = self.relative.key_bias
        query = self._projection("query", dot_general=_dot_float32 if self.relative.terms else None)
        key, value = self._projection("key", use_bias=key_bias), self._projection("value")
        places_BM = None if asking is None else asking.places_BM
        query_BQHV = query(hidden_BLD if asking is None else asking.query_BMD)
        key_BLHV, value_BLHV = key(hidden_BLD), value(hidden_BLD)
        if asking is not None and attention_bias is not None:
            attention_bias = disentangled.at_places(attention_bias, places_BM)
        if self.relative.terms:
            if not self.relative.shared:
                key = self._projection("relative_key", use_bias=key_bias)
                query = self._projection("relative_query")
            of_terms = {"c2p": key, "p2c": query}
            projected = self._project_distances(of_terms, relative_RD, hidden_BLD.shape[1])
            relative_BHQK = disentangled.relative_scores(
                self.relative, query_BQHV.astype(self.dtype), key_BLHV, projected, places_BM
            )
            attention_bias = relative_BHQK if attention_bias is None else relative_BHQK + attention_bias
            # Scaled in float32: what has been rounded already would be rounded once more.
            query_BQHV = (query_BQHV * self.relative.content_scale).astype(self.dtype)

        thinning = self._thinning(deterministic)
        if asking is None:
            mixed_BQHV = self._mix(query_BQHV, key_BLHV, value_BLHV, sequences_BL, guides, attention_bias, thinning)
        else:
            asking_BM = jnp.take_along_axis(sequences_BL, places_BM, axis=1)
            weights_BHMK = reference.probabilities(query_BQHV, key_BLHV, sequences_BL, attention_bias, asking_BM)
            mixed_BQHV, _ = reference.mix(weights_BHMK, value_BLHV, sequences_BL, **thinning)
            mixed_BQHV = checkpoint_name(mixed_BQHV, KEPT)
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
