"""Guesses of a model: texts with their probabilities, the most probable first."""

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Guess:
    """A predicted word, class, tag, candidate or answer with its probability.

    text: the word, which may be a piece of a word, or the name of the class or tag, the candidate or the answer.
    score: probability, from 0 to 1.
    """

    text: str
    score: float


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the softmax of logits over their last axis, in float64."""
    weights = np.exp(np.asarray(logits, np.float64) - np.max(logits, axis=-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Return the sigmoid of each logit, in float64."""
    return np.exp(-np.logaddexp(0, -np.asarray(logits, np.float64)))


def best_guesses(texts: Sequence[str], logits: np.ndarray, top_k: int | None) -> list[Guess]:
    """Return the `top_k` most probable texts as `Guess`es, or all with None, the most probable first.

    logits: a logit for each text.
    """
    return most_probable(texts, softmax(logits), top_k)


def most_probable(texts: Sequence[str], scores: np.ndarray, top_k: int | None) -> list[Guess]:
    """Return the `top_k` texts with the highest scores as `Guess`es, or all with None, the highest first."""
    return [Guess(texts[index], float(scores[index])) for index in np.argsort(-scores, kind="stable")[:top_k]]


def one_or_best(texts: Sequence[str], logits: np.ndarray, top_k: int | None) -> Guess | list[Guess]:
    """Return the most probable text as a `Guess` if `top_k` is 1, otherwise the list that `best_guesses` returns."""
    guesses = best_guesses(texts, logits, top_k)
    return guesses[0] if top_k == 1 else guesses
