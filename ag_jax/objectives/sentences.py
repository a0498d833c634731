"""Predictions at the first positions of texts, which stand for the whole texts.

Shape letters: B batch, L length, D width, T texts of a row, M masked positions.
"""

import dataclasses

import jax.numpy as jnp
from jax import Array

from ag_jax.attention import segments
from ag_jax.models.encoder import Batch
from ag_jax.objectives.config import SentenceTerm
from ag_jax.objectives.predictions import Categorical, Prediction, PredictionWeights, Values


@dataclasses.dataclass(frozen=True)
class Sentences:
    """Settings of the output `sentence`, read at each text's first position to compare a clean with an attacked pass.

    It has no labels and no loss of its own. For the sentence-level term of Wu et al. 2022, equation 10.

    of: `head`: the output of the pre-training head; `softmax`: the hidden state as the logits of a distribution;
        `squares`: the hidden state itself, compared by squared error; `none`: no prediction. The paper does not say
        which.
    texts: the largest number of texts of a row that have this prediction; 1 unless texts are packed.
    """

    of: SentenceTerm = "none"
    texts: int = 1

    @property
    def prediction_names(self) -> tuple[str, ...]:
        """Names of the predictions for whole texts that this object adds to an objective: `sentence`, or none."""
        return () if self.of == "none" else ("sentence",)

    def first_positions(self, batch: Batch) -> tuple[Array, Array]:
        """Return the first position of each text in each row, and weights of 1 for texts and 0 for padding, both `BT`.

        A row of fewer than T texts is filled up with other positions, which have 0 instead of 1.
        """
        firsts_BL = segments.is_first(batch["segment_ids"])
        # False sorts before true, and a stable sort keeps the order of equals: the first positions come first.
        positions_BT = jnp.argsort(jnp.logical_not(firsts_BL), axis=1, stable=True)[:, : self.texts]
        return positions_BT, jnp.take_along_axis(firsts_BL, positions_BT, axis=1).astype(jnp.float32)

    def prediction_weights(self, batch: Batch) -> dict[str, PredictionWeights]:
        """Return {"sentence": weights of texts} to compare a clean and an attacked pass; {} if this output is disabled.

        The weight is 1 for each text, and 0 for the other positions that fill a row up.
        """
        return {} if self.of == "none" else {"sentence": PredictionWeights(self.first_positions(batch)[1])}

    def hidden(self, encoded_BLD: Array, batch: Batch) -> Prediction:
        """Return the hidden states at the first token of each text, by which a clean and an attacked pass are compared.

        With the setting `of=softmax`, they are treated as the logits of a distribution; otherwise as vectors.
        """
        positions_BT, _ = self.first_positions(batch)
        first_BTD = jnp.take_along_axis(encoded_BLD, positions_BT[:, :, None], axis=1).astype(jnp.float32)
        return Categorical(first_BTD) if self.of == "softmax" else Values(first_BTD)
