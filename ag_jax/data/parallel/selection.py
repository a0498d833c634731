"""Choose which pairs of a parallel corpus are for training, which for validation, and which are left out.

Without a `validation_source`, the share `validation_fraction` of the pairs is held out for validation, by a hash of the
source text: translations of the same text are never in both parts, and a pair stays in its part if others are added.

Of both parts, pairs are left out that

    without text         have no word on one side or on both
    of unequal lengths   have more than `max_words_ratio` times as many words on one side as on the other
    too long             have a side of more than `max_tokens` tokens

Words are what spaces separate. A pair to which several reasons apply counts for the first one. Test sets
(`pairs.read_test_set`) keep all pairs.
"""

import zlib
from collections.abc import Iterator
from typing import NamedTuple

from ag_jax.data.config import DataConfig
from ag_jax.data.parallel import pairs
from ag_jax.data.parallel.pairs import Pair

WITHOUT_TEXT, UNEQUAL, TOO_LONG = REASONS = ("without text", "of unequal lengths", "too long")


class Selected(NamedTuple):
    """A pair of texts with its split and, if it is left out, the reason.

    pair: the pair.
    split: `train` or `validation`.
    left_out: why the pair is left out; empty if it is used.
    """

    pair: Pair
    split: str
    left_out: str


def select(config: DataConfig) -> Iterator[Selected]:
    """Yield each pair of the corpus with its split, `train` or `validation`, and the reason if it is left out.

    The pairs come in the order of the files, those of validation files last. Pairs that are too long in tokens
    are not recognised yet.
    """
    validation = pairs.validation(config)
    for pair in pairs.training(config):
        is_held_out = validation is None and _is_held_out(pair, config.validation_fraction)
        yield Selected(pair, "validation" if is_held_out else "train", _left_out(pair, config.max_words_ratio))
    for pair in validation or ():
        yield Selected(pair, "validation", _left_out(pair, config.max_words_ratio))


def max_tokens(config: DataConfig) -> int:
    """Return the most tokens that a source or a target text may have, including the end token."""
    return config.max_tokens or config.sequence_length


def _is_held_out(pair: Pair, fraction: float) -> bool:
    return zlib.crc32(pair.source.encode()) < fraction * 2**32


def _left_out(pair: Pair, max_words_ratio: float | None) -> str:
    fewer, more = sorted(len(side.split()) for side in pair)
    if not fewer:
        return WITHOUT_TEXT
    if max_words_ratio is not None and more > max_words_ratio * fewer:
        return UNEQUAL
    return ""
