"""Settings of decoding: the search, its scores, and the limits of the output's length."""

import dataclasses
import fractions
import re
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le

LARGEST_FACTOR, LARGEST_CONSTANT = 1000, 2**16  # keep all lengths of sources below 2**16 tokens in 32 bits
_LENGTH = re.compile(r"(?P<factor>[0-9]+(\.[0-9]+)?)x(\+(?P<added>[0-9]+))?|(?P<constant>[0-9]+)")


@dataclasses.dataclass(frozen=True)
class LinearLength:
    """A number of tokens as a linear function of the source's length x: floor(factor * x) + constant.

    factor: an exact fraction, so that 1.15 times 20 tokens are 23, not 22.
    constant: tokens that do not depend on the source.
    """

    factor: fractions.Fraction
    constant: int

    def __call__(self, source_lengths: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the number of tokens for each of these source lengths, int32."""
        # As Python's integers, because the numerator of a factor with many digits overflows 64 bits.
        source = np.asarray(source_lengths, np.int64).astype(object)
        return (source * self.factor.numerator // self.factor.denominator + self.constant).astype(np.int32)


def parse_length(text: str, setting: str) -> LinearLength:
    """Return the function that a text such as `1.0x+50`, `1.5x` or `50` describes, with x the source's length.

    setting: name of the setting, for the error message.

    Raises ValueError if the text has another form or its numbers are too large.
    """
    match = _LENGTH.fullmatch(text)
    if not match:
        raise ValueError(
            f"{setting} must be a number of tokens such as '50', or a function of the number x of the source's tokens "
            f"such as '1.5x' or '1.0x+50', without spaces or signs; got {text!r}"
        )
    factor = fractions.Fraction(match["factor"] or 0)
    constant = int(match["constant"] or match["added"] or 0)
    if factor > LARGEST_FACTOR or constant > LARGEST_CONSTANT:
        raise ValueError(
            f"{setting} must have a factor of at most {LARGEST_FACTOR} and a constant of at most {LARGEST_CONSTANT}, "
            f"got {text!r}"
        )
    return LinearLength(factor, constant)


@dataclasses.dataclass(frozen=True)
class DecodingConfig:
    """Settings of the beam search that finds translations, and limits of the translations' length.

    Greedy search, which appends the most probable token until that is the end token, is `beam_size=1, stop=full,
    ends=first`, whatever the normalization.

    Lengths count the end token but not the start token. `min_length` and `max_length` are functions of the number x of
    the source's tokens without its end token: `50`, `1.5x` or `1.0x+50`, rounded down.

    beam_size: number of live hypotheses (unfinished translations) that are extended in each step, and of the
        translations that are returned for a sentence.
    normalization: what log-probabilities are divided by to compare ended hypotheses of different lengths l, with
        a = `length_penalty`: ((5 + l) / 6)^a (`gnmt`, Wu et al. 2016), l^a (`power`; fairseq and transformers have it),
        or nothing (`none`).
    length_penalty: exponent a of the normalization; larger values favour longer translations.
    stop: end the search of a sentence when no further hypothesis can be better than the worst of `beam_size` ended ones
        (`bound`), or as soon as `beam_size` hypotheses have ended (`full`).
    ends: which hypotheses may end in a step: `all` of its 2 * `beam_size` best extensions, or only those that are among
        the `first` `beam_size`, as in fairseq and transformers.
    min_length: smallest number of tokens of a translation, the end token included: a number such as `5`, or a function
        of the number x of the source's tokens, such as `0.5x`.
    max_length: largest number of tokens of a translation, in the same form, such as `50`, `1.5x` or `1.0x+50`; a longer
        one is cut off.
    """

    beam_size: Annotated[int, Ge(1), Le(1024)] = 4
    normalization: Literal["gnmt", "power", "none"] = "gnmt"
    length_penalty: Annotated[float, Ge(0), Le(5)] = 0.6  # bounded: float32 holds 65536^5
    stop: Literal["bound", "full"] = "bound"
    ends: Literal["all", "first"] = "all"
    min_length: str = "0"
    max_length: str = "1.0x+50"

    def __post_init__(self):
        shortest = parse_length(self.min_length, "decoding.min_length")
        longest = parse_length(self.max_length, "decoding.max_length")
        if longest([1]) < 1:
            raise ValueError(
                "decoding.max_length must be at least 1 for a source of one token, because the end token counts, got "
                f"{self.max_length!r}; add a constant, as in '0.5x+50'"
            )
        # If the factors are in order, floor(longest.factor * x) - floor(shortest.factor * x) is smallest at x = 1.
        if shortest.factor > longest.factor or shortest([1]) > longest([1]):
            raise ValueError(
                "decoding.min_length must be at most decoding.max_length for sources of any length, got "
                f"min_length={self.min_length!r} and max_length={self.max_length!r}; lower min_length or raise "
                "max_length"
            )
        if self.normalization == "none" and self.length_penalty != DecodingConfig.length_penalty:
            raise ValueError(
                "decoding.length_penalty applies only to decoding.normalization=gnmt and power, got "
                f"{self.length_penalty} with normalization=none: leave it at {DecodingConfig.length_penalty}"
            )

    def length_limits(self, source_lengths: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the minimum and the maximum output lengths, int32, for sources of these lengths.

        source_lengths: numbers of tokens, at least 1, without the end token.
        """
        shortest = parse_length(self.min_length, "decoding.min_length")
        longest = parse_length(self.max_length, "decoding.max_length")
        return shortest(source_lengths), longest(source_lengths)
