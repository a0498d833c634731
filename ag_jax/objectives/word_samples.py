"""Words drawn from what a masked-language head predicts, without the scores of all words ever being in memory.

Shape letters: B batch, M masked positions of a row, D width, V vocabulary.
"""

import jax
import jax.numpy as jnp

from ag_jax.attention import dropout
from ag_jax.models.masked_lm import Predictions, word_scores
from ag_jax.objectives.word_loss import in_chunks

Array = jax.Array


def gumbel(key: Array, shape: tuple[int, ...]) -> Array:
    """-log(-log(1 - u)) for u uniform in (0, 1), float32: a hash of each element's index, as the masks of dropout are.

    From 1 - u, for a sample is decided by the largest noises: those come of small u, which float32 tells apart, where numbers just
    below 1 are few and round to 1, whose noise is infinite.
    """
    return -jnp.log(-jnp.log1p(-dropout.uniform(key, shape)))


def sample_words(predictions: Predictions, key: Array) -> Array:
    """A word for each slot, int32 `BM`, with probability softmax(h E^T + b): argmax of scores and Gumbel noise.

    Temperature 1, as Clark et al. 2020 (section 2) sample. No gradient flows back. A few positions at a time.
    """
    hidden_BMD, embedding_VD, bias_V = jax.lax.stop_gradient(
        (predictions.hidden_BMD, predictions.embedding_VD, predictions.bias_V)
    )

    def draw(number: Array, hidden: Array) -> tuple[Array, Array]:
        scores = word_scores(hidden, embedding_VD, bias_V)
        noise = gumbel(jax.random.fold_in(key, number), scores.shape)
        return number + 1, jnp.argmax(scores + noise, axis=-1).astype(jnp.int32)

    drawn = jax.lax.scan(draw, jnp.int32(0), in_chunks(hidden_BMD))[1]
    batch, positions = hidden_BMD.shape[:2]
    return drawn.swapaxes(0, 1).reshape(batch, -1)[:, :positions]
