"""Baselines of the coreference probe: rules that choose an antecedent in a window without reading attention.

Each rule scores an anaphor 1 if the mention that it chooses is an antecedent, and 0 otherwise. In the shapes, M is a
mention as an anaphor, and C is a mention as a candidate.

    nearest            the nearest mention
    same head          the nearest one with the same head word, otherwise the nearest one
    sieves             the nearest one with the same text; otherwise with the same head word; otherwise one that agrees
                       in number, gender and person; otherwise the nearest one: Lee et al. (2011) as simplified by
                       Clark et al. (2019, section 5.2)

Distances are those between head words. Of two mentions with the same head word in the text, such as "the king of
France" in "the king of France, who fled", the longer one is chosen; of two equally far on both sides, the one before.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from ag_jax.data.probes.rules import Features, agree

NAMES = ("nearest", "same head", "sieves")


@dataclasses.dataclass(frozen=True)
class Mentions:
    """The mentions of a window in reading order, with their head words, texts and agreement features.

    heads: index of each head word, `(M,)` integers.
    texts: the words of each mention, in lower case.
    words: each head word, in lower case.
    features: what must agree.
    """

    heads: np.ndarray
    texts: Sequence[str]
    words: Sequence[str]
    features: Sequence[Features]


def scores(mentions: Mentions, is_candidate_MC: np.ndarray, is_antecedent_MC: np.ndarray) -> dict[str, np.ndarray]:
    """Return {baseline: scores `(M,)`}, 1 where the mention that it chooses for M is an antecedent, otherwise 0.

    The baselines are those in `NAMES`. A mention without candidates scores 0.

    is_candidate_MC: whether a mention may be an antecedent by its place.
    is_antecedent_MC: whether it is one; antecedents are candidates.
    """
    texts, words = _are_equal(mentions.texts), _are_equal(mentions.words)
    agreeing = _agreeing(mentions.features)
    everything = np.ones_like(is_candidate_MC)
    order_MC = _nearness(mentions.heads)
    sieves = {"nearest": [everything], "same head": [words, everything]}
    sieves["sieves"] = [texts, words, agreeing, everything]
    result = {}
    for name, steps in sieves.items():
        choice_M = _choice([is_candidate_MC & sieve_MC for sieve_MC in steps], order_MC)
        result[name] = is_antecedent_MC[np.arange(len(choice_M)), choice_M].astype(np.float64)
    return result


def _nearness(heads: np.ndarray) -> np.ndarray:
    """Return integers `(M, C)`, distinct within a row, that are larger the nearer the head word of C is to that of M.

    Of equally near mentions the first in reading order has the largest number.
    """
    count = len(heads)
    distance_MC = np.abs(heads[:, None] - heads[None, :])
    return -(distance_MC * count + np.arange(count)[None, :])


def _choice(steps: Sequence[np.ndarray], order_MC: np.ndarray) -> np.ndarray:
    """Return `(M,)`: for each mention the nearest of the candidates that pass the first sieve that any of them passes.

    steps: the sieves (filters), each a boolean array `(M, C)`: whether candidate C passes for mention M.
    order_MC: see `_nearness`.
    """
    lowest = order_MC.min(initial=0) - 1
    choice_M = np.zeros(len(order_MC), np.int64)
    is_open_M = np.ones(len(order_MC), bool)
    for passes_MC in steps:
        takes_M = is_open_M & passes_MC.any(1)
        nearest_M = np.where(passes_MC, order_MC, lowest).argmax(1) if len(order_MC) else choice_M
        choice_M = np.where(takes_M, nearest_M, choice_M)
        is_open_M &= ~takes_M
    return choice_M


def _are_equal(texts: Sequence[str]) -> np.ndarray:
    """Return a boolean matrix: whether text i equals text j."""
    numbers: dict[str, int] = {}
    codes = np.asarray([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)
    return codes[:, None] == codes[None, :]


def _agreeing(features: Sequence[Features]) -> np.ndarray:
    """Return a boolean matrix: whether mentions i and j agree in number, gender and person.

    Only the few distinct features are compared.
    """
    different = list(dict.fromkeys(features))
    table = np.asarray([[agree(one, other) for other in different] for one in different], bool)
    table = table.reshape(len(different), len(different))
    codes = np.asarray([different.index(mention_features) for mention_features in features], np.int64)
    return table[codes[:, None], codes[None, :]]
