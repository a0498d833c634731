"""The first positions of texts, where encoders keep what they know of a text as a whole.

Shape letters: B batch, L length, D width, T texts of a row, M masked positions.
"""

import dataclasses
from typing import Literal

import jax.numpy as jnp
from jax import Array

from ag_jax.attention import segments
from ag_jax.models.encoder import Batch
from ag_jax.objectives.predictions import Categorical, Counts, Prediction, Values

SentenceTerm = Literal["head", "softmax", "squares", "none"]


@dataclasses.dataclass(frozen=True)
class Sentences:
    """A prediction at the first position of each text, for the sentence-level term of Wu et al. 2022, equation 10.

    of: `head`: the output of the pre-training head; `softmax`: the hidden state as the logits of a distribution;
        `squares`: the hidden state itself, compared by squared error; `none`: no prediction. The paper does not say
        which.
    texts: the largest number of texts of a row that have one; 1 unless texts are packed.
    """

    of: SentenceTerm = "none"
    texts: int = 1

    @property
    def prediction_names(self) -> tuple[str, ...]:
        """The name of the prediction, if there is one."""
        return () if self.of == "none" else ("sentence",)

    def places(self, batch: Batch) -> tuple[Array, Array]:
        """First positions `BT` in the order of the row, and 1.0 for each that a text begins at, else 0.0."""
        firsts_BL = segments.is_first(batch["sequences"])
        places_BT = jnp.argsort(jnp.logical_not(firsts_BL), axis=1, stable=True)[:, : self.texts]
        return places_BT, jnp.take_along_axis(firsts_BL, places_BT, axis=1).astype(jnp.float32)

    def counts(self, batch: Batch) -> dict[str, Counts]:
        """The weight 1 for every text."""
        return {} if self.of == "none" else {"sentence": Counts(self.places(batch)[1])}

    def hidden(self, encoded_BLD: Array, batch: Batch) -> Prediction:
        """The hidden states at the first positions, `BTD`, as a prediction."""
        places_BT, _ = self.places(batch)
        first_BTD = jnp.take_along_axis(encoded_BLD, places_BT[:, :, None], axis=1).astype(jnp.float32)
        return Categorical(first_BTD) if self.of == "softmax" else Values(first_BTD)
