"""The loss of guessing without looking at the context: the plateau that training stands on before it learns to attend.

Shape letters: V vocabulary.
"""

from typing import Any

import numpy as np

from ag_jax.data.text import pipeline
from ag_jax.data.text.unigram import Unigram

UNIGRAM_SAMPLE = 10_000_000  # tokens that are counted for the unigram loss


def unigram_loss(rows: Any) -> float:
    """Entropy in nats of the training tokens' frequencies: the masked-word loss of guessing by frequency."""
    tokens = rows.tokens[:UNIGRAM_SAMPLE]
    frequency_V = np.bincount(tokens) / len(tokens)
    frequency_V = frequency_V[frequency_V > 0]
    return float(-(frequency_V * np.log(frequency_V)).sum())


def binary_entropy(share: np.ndarray | float) -> np.ndarray | float:
    """-s log s - (1 - s) log(1 - s) in nats; 0 for s = 0 and 1. At 0.15 it is 0.423."""
    share = np.asarray(share, np.float64)
    inside = np.where((share > 0) & (share < 1), share, 0.5)
    return np.where(inside == share, -inside * np.log(inside) - (1 - inside) * np.log(1 - inside), 0.0)


def replaced_tokens_loss(frequencies_V: np.ndarray, rate: float, words_share: float) -> float:
    """Detection loss of the best guess from a token alone, if `rate` of the words were replaced by unigram draws.

    Drawn and original words are equally frequent, so a word v that is seen was replaced by another one with probability
    rate (1 - q(v)), whatever it is; other tokens never are. So the loss is s * sum_v q(v) entropy(rate (1 - q(v))), with the
    share s of words among the judged tokens. It is nearly the prior's entropy, 0.423 at 15 %.
    """
    return float(words_share * (frequencies_V * binary_entropy(rate * (1 - frequencies_V))).sum())


def replaced_tokens_loss_of(corpus: pipeline.Corpus, rate: float, ignored: list[int]) -> float:
    """Return `replaced_tokens_loss` of a corpus, if tokens with the ids `ignored` are not judged.

    Beside an `mlm` generator, whose samples get better, it is a rough upper bound.
    """
    words = Unigram.of(corpus.train, corpus.tokenizer)
    tokens = corpus.train.counts(corpus.tokenizer.vocabulary_size)
    share = words.counts_V.sum() / (tokens.sum() - tokens[ignored].sum())
    return replaced_tokens_loss(words.frequencies_V, rate, float(share))
