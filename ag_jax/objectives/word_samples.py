"""Samples from the predictions of a masked-language head, without the scores of all words in memory at once.

Shape letters: B batch, M masked positions of a row, D width, V vocabulary.
"""

import jax
import jax.numpy as jnp
from jax import Array

from ag_jax.attention import dropout
from ag_jax.models.masked_lm import word_scores
from ag_jax.objectives.predictions import WordDistributions
from ag_jax.objectives.word_loss import over_chunks


def gumbel(key: Array, shape: tuple[int, ...]) -> Array:
    """Return Gumbel noise -log(-log(1 - u)), float32, for u uniform in (0, 1).

    As for the masks of dropout, u is a hash of each element's index. Computed from 1 - u, because samples are decided
    by the largest noises: these come from small u, which float32 resolves, whereas numbers just below 1 are sparse and
    round to 1, whose noise is infinite.
    """
    return -jnp.log(-jnp.log1p(-dropout.uniform(key, shape)))


def sample_words(words: WordDistributions, key: Array) -> Array:
    """Sample a token id for each masked position, int32 `BM`, from the distribution that `words` has for it.

    The sample is the argmax of scores plus Gumbel noise. Temperature 1, as Clark et al. 2020 (section 2) sample. No
    gradient flows back. A few positions at a time.
    """
    hidden_BMD, embedding_VD, bias_V = jax.lax.stop_gradient((words.hidden_BMD, words.embedding_VD, words.bias_V))

    def draw(number: Array, chunk: tuple[Array]) -> tuple[Array, Array]:
        (hidden,) = chunk
        scores = word_scores(hidden, embedding_VD, bias_V)
        noise = gumbel(jax.random.fold_in(key, number), scores.shape)
        return number + 1, jnp.argmax(scores + noise, axis=-1).astype(jnp.int32)

    return over_chunks(draw, jnp.int32(0), (hidden_BMD,))[1]
