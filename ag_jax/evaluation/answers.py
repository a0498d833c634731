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
BEST = 20  # answers that are kept for an ensemble
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


@dataclasses.dataclass(frozen=True)
class Candidates:
    """The best answers in a context with their scores, the best one first, and the score of there being none."""

    answers: tuple[tuple[str, float], ...]
    none: float

    @property
    def text(self) -> str:
        """The best answer; "" if the context has no text."""
        return self.answers[0][0] if self.answers else ""

    def or_none(self, threshold: float = 0.0) -> str:
        """The answer, or "" where having none is more than the threshold better."""
        return "" if not self.answers or self.none - self.answers[0][1] > threshold else self.text

    def probabilities(self) -> dict[str | None, float]:
        """softmax of the scores, those of equal texts added up; None stands for no answer."""
        scores = np.array([self.none, *(score for _, score in self.answers)])
        shares = np.exp(scores - scores.max())
        found: dict[str | None, float] = {None: 0.0}
        for text, share in zip((None, *(text for text, _ in self.answers)), shares / shares.sum(), strict=True):
            found[text] = found.get(text, 0.0) + float(share)
        return found


def average(of_models: Sequence[Candidates]) -> Candidates:
    """The candidates of an ensemble: their scores are the logarithms of mean probabilities.

    A model knows only its best `BEST` answers; to others it gives 0.
    """
    shares = [one.probabilities() for one in of_models]
    texts = dict.fromkeys(text for one in of_models for text, _ in one.answers)
    means = {text: np.mean([share.get(text, 0.0) for share in shares]) for text in (None, *texts)}
    logs = {text: float(np.log(max(mean, np.finfo(np.float64).tiny))) for text, mean in means.items()}
    none = logs.pop(None)
    return Candidates(tuple(sorted(logs.items(), key=lambda pair: -pair[1])[:BEST]), none)


def choose(context: str, windows: Sequence[tuple[np.ndarray, np.ndarray]], longest: int = LONGEST) -> Candidates:
    """The best spans of all windows, each its logits [L, 2] or longer, and its `Features.characters` [L, 3].

    A span begins in the window in which its first token has the most context. The score of no answer is start_0 + end_0 in the
    window where this is lowest: no window has it (run_squad.py).
    """
    found: list[tuple[float, int, int]] = []
    none = np.inf
    for logits_L2, characters_L3 in windows:
        length = len(characters_L3)
        start_L, end_L = np.asarray(logits_L2, np.float64)[:length].T
        none = min(none, start_L[0] + end_L[0])
        holds = characters_L3[:, 1] > characters_L3[:, 0]
        start_L = np.where(holds & (characters_L3[:, 2] > 0), start_L, -np.inf)
        end_L = np.where(holds, end_L, -np.inf)
        # scores_LE[l, e] is that of the span from token l to l + e.
        ends_LE = np.lib.stride_tricks.sliding_window_view(
            np.pad(end_L, (0, longest - 1), constant_values=-np.inf), longest
        )
        scores = (start_L[:, None] + ends_LE).ravel()
        top = np.argsort(-scores, kind="stable")[:BEST]
        for score, (first, extra) in zip(scores[top], (divmod(int(place), longest) for place in top), strict=True):
            if np.isfinite(score):
                found.append((float(score), int(characters_L3[first, 0]), int(characters_L3[first + extra, 1])))
    found = sorted(found, key=lambda candidate: -candidate[0])[:BEST]
    return Candidates(tuple((context[begin:end], score) for score, begin, end in found), float(none))


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
