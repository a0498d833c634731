"""Extractive question answering: choose answer spans from logits, and score them as SQuAD's official scripts do.

The score of the span from token i to token j of a window is the sum of logits start_i + end_j.
Shape letters: L length, E offset of a span's last token from its first.
"""

import collections
import dataclasses
import re
import string
from collections.abc import Sequence
from typing import Any

import numpy as np

LONGEST = 30  # the most tokens of an answer
BEST = 20  # the number of candidate answers saved for ensembles
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


@dataclasses.dataclass(frozen=True)
class Candidates:
    """The best answers to a question in its context with their scores, and the score of "no answer".

    answers: (text, score) of the best answers, best first.
    none: the score of "no answer".
    """

    answers: tuple[tuple[str, float], ...]
    none: float

    @property
    def text(self) -> str:
        """The text of the best answer; "" if there are no answers."""
        return self.answers[0][0] if self.answers else ""

    @property
    def best_score(self) -> float:
        """The score of the best answer; 0 if there are no answers."""
        return self.answers[0][1] if self.answers else 0.0

    def best_or_empty(self, threshold: float = 0.0) -> str:
        """Return the best answer, or "" if "no answer" scores higher by more than the threshold."""
        return "" if not self.answers or self.none - self.best_score > threshold else self.text

    def probabilities(self) -> dict[str | None, float]:
        """Return {answer text: probability by a softmax over the scores}; the key None stands for "no answer".

        Probabilities of equal texts are added up.
        """
        scores = np.array([self.none, *(score for _, score in self.answers)])
        shares = np.exp(scores - scores.max())
        result: dict[str | None, float] = {None: 0.0}
        for text, share in zip((None, *(text for text, _ in self.answers)), shares / shares.sum(), strict=True):
            result[text] = result.get(text, 0.0) + float(share)
        return result


def average(of_models: Sequence[Candidates]) -> Candidates:
    """Return an ensemble's candidate answers, scored by the logarithm of the models' mean probabilities.

    An answer that is not among the best `BEST` of a model has probability 0 there.
    """
    shares = [candidates.probabilities() for candidates in of_models]
    texts = dict.fromkeys(text for candidates in of_models for text, _ in candidates.answers)
    means = {text: np.mean([share.get(text, 0.0) for share in shares]) for text in (None, *texts)}
    logs: dict[Any, float] = {text: float(np.log(max(mean, np.finfo(np.float64).tiny))) for text, mean in means.items()}
    none = logs.pop(None)
    return Candidates(tuple(sorted(logs.items(), key=lambda pair: -pair[1])[:BEST]), none)


def average_classified(of_models: Sequence[Candidates]) -> Candidates:
    """Return an ensemble's candidate answers and score of "no answer", for models with a classifier for the latter.

    The logit of "no answer" is its score less that of the best answer, and is kept apart from the answers, which have
    probabilities of their own. The ensemble's logit is that of the mean probability of "no answer"; so the ensemble
    gives no answer exactly where that exceeds 1/2, however much the models disagree about the answer.
    """
    answering = [dataclasses.replace(candidates, none=-np.inf) for candidates in of_models if candidates.answers]
    answers = average(answering).answers if answering else ()
    logits = np.array([candidates.none - candidates.best_score for candidates in of_models])
    # log(p / (1 - p)) for the mean p of the probabilities 1 / (1 + exp(-logit)), without a rounded p.
    logit = np.logaddexp.reduce(-np.logaddexp(0, -logits)) - np.logaddexp.reduce(-np.logaddexp(0, logits))
    return Candidates(answers, (answers[0][1] if answers else 0.0) + float(logit))


def choose(context: str, windows: Sequence[tuple[np.ndarray, np.ndarray]], longest: int = LONGEST) -> Candidates:
    """Return the answer spans with the highest scores over all windows of a context, and the score of "no answer".

    windows: (logits, characters) of each window: logits [L, 2] or padded beyond L, and `Features.characters` [L, 3].
    longest: the most tokens of an answer; longer spans are left out.
    A span is scored only in the window in which its first token has the most context, so that it is scored once. The
    score of "no answer" is the minimum over windows of start_0 + end_0, because it requires that no window has an
    answer (run_squad.py).
    """
    spans: list[tuple[float, int, int]] = []
    none = np.inf
    for logits_L2, characters_L3 in windows:
        length = len(characters_L3)
        start_L, end_L = np.asarray(logits_L2, np.float64)[:length].T
        none = min(none, start_L[0] + end_L[0])
        holds = characters_L3[:, 1] > characters_L3[:, 0]
        start_L = np.where(holds & (characters_L3[:, 2] > 0), start_L, -np.inf)
        end_L = np.where(holds, end_L, -np.inf)
        # ends_LE[l, e] is the end logit of token l + e; -inf behind the last token.
        ends_LE = np.lib.stride_tricks.sliding_window_view(
            np.pad(end_L, (0, longest - 1), constant_values=-np.inf), longest
        )
        scores = (start_L[:, None] + ends_LE).ravel()
        top = np.argsort(-scores, kind="stable")[:BEST]
        for score, (first, extra) in zip(scores[top], (divmod(int(place), longest) for place in top), strict=True):
            if np.isfinite(score):
                spans.append((float(score), int(characters_L3[first, 0]), int(characters_L3[first + extra, 1])))
    spans = sorted(spans, key=lambda candidate: -candidate[0])[:BEST]
    return Candidates(tuple((context[begin:end], score) for score, begin, end in spans), float(none))


def tuned(answered: Sequence[float], refused: Sequence[float], scores: Sequence[float]) -> tuple[float, float]:
    """Return (best mean score over all thresholds of "no answer", the lowest threshold that gives it).

    answered: for each question, the score (such as F1) of its best answer.
    refused: the score if no answer is given: 1 for a question without an answer, else 0.
    scores: how far "no answer" scores above the best answer; no answer is given where this is above the threshold.

    The search is that of SQuAD 2.0's official script, except that questions with equal scores are never separated,
    because no threshold does so, and that the threshold below all scores is a number just below the lowest one, not 0.
    """
    order = np.argsort(scores, kind="stable")
    sorted_N = np.asarray(scores, np.float64)[order]
    gains_N = (np.asarray(answered, np.float64) - np.asarray(refused, np.float64))[order]
    # The best of: refuse all questions, or answer those up to question n. Only the last of equal scores may be n.
    totals_N = np.cumsum(gains_N)[np.append(sorted_N[1:] > sorted_N[:-1], True)]
    thresholds_N = np.unique(sorted_N)
    best = int(np.argmax(totals_N))
    if totals_N[best] <= 0:
        return float(np.mean(refused)), float(np.nextafter(sorted_N[0], -np.inf))
    return float(np.mean(refused) + totals_N[best] / len(order)), float(thresholds_N[best])


def normalized(answer: str) -> str:
    """Return an answer in lower case, without punctuation and articles (a, an, the), with single spaces."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """Return 1 if the prediction equals a right answer after normalization of both, else 0.

    Without answers, it is 1 if the prediction is empty.
    """
    return float(any(normalized(prediction) == answer for answer in _normalized_answers(answers)))


def f1(prediction: str, answers: Sequence[str]) -> float:
    """Return the F1 of words between the prediction and the right answer that matches it best.

    Repeated words are counted. Without answers, 1 if the prediction is empty, else 0.
    """
    return max(_overlap(normalized(prediction).split(), answer.split()) for answer in _normalized_answers(answers))


def _normalized_answers(answers: Sequence[str]) -> list[str]:
    # As in the script of SQuAD 2.0, answers that are empty after normalisation are ignored. The script of SQuAD 1.1,
    # where such answers hardly occur, would give them F1 0.
    return [answer for answer in map(normalized, answers) if answer] or [""]


def _overlap(predicted: list[str], answer: list[str]) -> float:
    if not predicted or not answer:
        return float(predicted == answer)
    same = sum((collections.Counter(predicted) & collections.Counter(answer)).values())
    return 2 * same / (len(predicted) + len(answer))
