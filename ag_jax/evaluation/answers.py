"""Answers that are a part of a text: choosing them from logits, and scoring them as SQuAD's official scripts do.

A window's logits give the score start_i + end_j of the span from token i to token j. Shape letters: L length.
"""

import collections
import dataclasses
import re
import string
from collections.abc import Sequence

import numpy as np

LONGEST = 30  # tokens of an answer
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


@dataclasses.dataclass(frozen=True)
class Chosen:
    """The best answer in a context, and how much more likely it is that there is none: the difference of their scores."""

    text: str
    none: float

    def or_none(self, threshold: float = 0.0) -> str:
        """The answer, or "" where having none is more than the threshold better."""
        return "" if self.none > threshold else self.text


def choose(context: str, windows: Sequence[tuple[np.ndarray, np.ndarray]], longest: int = LONGEST) -> Chosen:
    """The best span of all windows, each its logits [L, 2] or longer, and its `Features.characters` [L, 3].

    A span begins in the window in which its first token has the most context. The score of no answer is start_0 + end_0 in the
    window where this is lowest: no window has it (run_squad.py). "" if no token stands for a character.
    """
    best, text = -np.inf, ""
    none = np.inf
    for logits_L2, characters_L3 in windows:
        length = len(characters_L3)
        start_L, end_L = np.asarray(logits_L2, np.float64)[:length].T
        none = min(none, start_L[0] + end_L[0])
        holds = characters_L3[:, 1] > characters_L3[:, 0]
        start_L = np.where(holds & (characters_L3[:, 2] > 0), start_L, -np.inf)
        end_L = np.where(holds, end_L, -np.inf)
        for extra in range(min(longest, length)):
            score = start_L[: length - extra] + end_L[extra:]
            first = int(np.argmax(score))
            if score[first] > best:
                best = score[first]
                text = context[characters_L3[first, 0] : characters_L3[first + extra, 1]]
    return Chosen(text, float(none - best))


def normalized(answer: str) -> str:
    """Lower case, without punctuation and without a, an, the; one space between words."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """1 if the prediction is one of the answers, else 0; without answers, if it is empty."""
    return float(any(normalized(prediction) == answer for answer in _wanted(answers)))


def f1(prediction: str, answers: Sequence[str]) -> float:
    """F1 of the words, repeated ones counted, with the answer for which it is highest; without answers, 1 if it is empty."""
    return max(_overlap(normalized(prediction).split(), answer.split()) for answer in _wanted(answers))


def _wanted(answers: Sequence[str]) -> list[str]:
    # As in the script of SQuAD 2.0, an answer of which nothing is left is none. That of 1.1, where there is hardly such an
    # answer, would give it F1 0.
    return [answer for answer in map(normalized, answers) if answer] or [""]


def _overlap(predicted: list[str], wanted: list[str]) -> float:
    if not predicted or not wanted:
        return float(predicted == wanted)
    same = sum((collections.Counter(predicted) & collections.Counter(wanted)).values())
    return 2 * same / (len(predicted) + len(wanted))
