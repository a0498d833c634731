"""The loss of the best guess without context: the plateau at which training stalls before the model learns to attend.

Shape letters: V vocabulary.
"""

from typing import Any

import numpy as np

from ag_jax.data.corpus import Corpus
from ag_jax.data.text import mixture
from ag_jax.data.text.unigram import Unigram

UNIGRAM_SAMPLE = 10_000_000  # tokens that are counted for the unigram loss


def unigram_loss(rows: Any) -> float:
    """Return the entropy of the training tokens' frequencies in nats: the masked-word loss of guessing by frequency."""
    tokens = mixture.sample(rows, UNIGRAM_SAMPLE)
    frequency_V = np.bincount(tokens) / len(tokens)
    frequency_V = frequency_V[frequency_V > 0]
    return float(-(frequency_V * np.log(frequency_V)).sum())


def binary_entropy(share: np.ndarray | float) -> np.ndarray | float:
    """Return the entropy of a binary variable in nats, -s log s - (1 - s) log(1 - s); 0 for s = 0 and 1.

    For s = 0.15 it is 0.423.
    """
    share = np.asarray(share, np.float64)
    inside = np.where((share > 0) & (share < 1), share, 0.5)
    return np.where(inside == share, -inside * np.log(inside) - (1 - inside) * np.log(1 - inside), 0.0)


def replaced_tokens_loss(frequencies_V: np.ndarray, rate: float, words_share: float) -> float:
    """Return the loss, in nats per token, of the best replaced-token detector that sees each word without its context.

    The words that replace others are drawn by frequency.

    frequencies_V: q(v), the frequency of each word.
    rate: the share of words that is replaced.
    words_share: s, the share of words among the tokens that count in the loss.

    Drawn and original words are equally frequent, so an observed word v replaced another word with probability
    rate (1 - q(v)), in any context; other tokens are never replaced. So the loss is
    s * sum_v q(v) entropy(rate (1 - q(v))). It is nearly the prior's entropy, 0.423 at 15 %.
    """
    return float(words_share * (frequencies_V * binary_entropy(rate * (1 - frequencies_V))).sum())


def replaced_tokens_loss_of(corpus: Corpus, rate: float, ignored: list[int]) -> float:
    """Return the loss on a corpus, in nats per token, of the best replaced-token detector that sees no context.

    `replaced_tokens_loss` computes it from the frequencies of the corpus.

    rate: the share of words that is replaced.
    ignored: ids of the tokens that the loss leaves out.

    With an `mlm` generator, whose samples improve during training, it is only a rough upper bound.
    """
    words = Unigram.of(corpus.train, corpus.tokenizer)
    tokens = corpus.train.counts(corpus.tokenizer.vocabulary_size)
    share = words.counts_V.sum() / (tokens.sum() - tokens[ignored].sum())
    return replaced_tokens_loss(words.frequencies_V, rate, float(share))
