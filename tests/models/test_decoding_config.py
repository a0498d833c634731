"""Settings of decoding: lengths as functions of the source's length, and values that are rejected."""

import math
from fractions import Fraction

import numpy as np
import pytest

from ag_jax import config_reader
from ag_jax.models import decoding_config
from ag_jax.models.decoding_config import DecodingConfig


@pytest.mark.parametrize(
    ("text", "factor", "constant"),
    [
        ("50", Fraction(0), 50),
        ("0", Fraction(0), 0),
        ("1.5x", Fraction(3, 2), 0),
        ("2x", Fraction(2), 0),
        ("1.0x+50", Fraction(1), 50),
        ("0.75x+3", Fraction(3, 4), 3),
        ("1000x+65536", Fraction(1000), 65536),
    ],
)
def test_lengths_as_text(text, factor, constant):
    length = decoding_config.parse_length(text, "decoding.max_length")
    assert (length.factor, length.constant) == (factor, constant)
    lengths = length([1, 3, 4, 101])
    assert lengths.dtype == np.int32
    np.testing.assert_array_equal(lengths, [math.floor(factor * x) + constant for x in (1, 3, 4, 101)])


def test_lengths_are_exact_and_rounded_down():
    """In floating point, 1.15 * 20 is 22.999999999999996."""
    np.testing.assert_array_equal(decoding_config.parse_length("1.15x", "")([20, 19, 21]), [23, 21, 24])


@pytest.mark.parametrize("digits", [3, 17, 18, 19, 30])
def test_factors_may_have_many_digits(digits):
    """In 64 bits, 1.333333333333333333 * 9 tokens would be a negative number."""
    longest = DecodingConfig(max_length=f"1.{'3' * digits}x").length_limits([1, 9, 20, 1000])[1]
    np.testing.assert_array_equal(longest, [1, 11, 26, 1333])
    assert longest.dtype == np.int32


MALFORMED = (
    "1.0x-2",
    "1.0x + 50",
    "x",
    "x+50",
    "50+1.0x",
    "+50",
    "-5",
    "1.5",
    "1.5x+0.5",
    "1e2x",
    "x1",
    ".5x",
    "1.x",
    "",
)


@pytest.mark.parametrize("text", [*MALFORMED, "1.0x+", "٣", "5\n", "50 tokens", "1.0x+50x"])
def test_malformed_lengths_are_rejected_with_the_form(text):
    with pytest.raises(ValueError, match="decoding.max_length must be a number of tokens such as '50'.*'1.0x.50'.*got"):
        DecodingConfig(max_length=text)
    with pytest.raises(ValueError, match="decoding.min_length must be a number of tokens such as '50'.*'1.0x.50'.*got"):
        DecodingConfig(min_length=text)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beam_size": 0}, "decoding.beam_size must be at least 1"),
        ({"length_penalty": -0.1}, "decoding.length_penalty must be at least 0 and at most 5, got -0.1"),
        ({"normalization": "gmt"}, "gnmt, power.*got 'gmt'"),
        ({"stop": "never"}, "decoding.stop .*bound, full"),
        ({"ends": "any"}, "decoding.ends .*all, first"),
        ({"max_length": "1001x"}, "at most 1000 and a constant of at most 65536, got '1001x'"),
        ({"max_length": "1.0x+65537"}, "at most 1000 and a constant of at most 65536, got '1.0x.65537'"),
        ({"max_length": "0"}, "decoding.max_length must be at least 1 for a source of one token.*got '0'"),
        ({"max_length": "0.9x"}, "decoding.max_length must be at least 1 for a source of one token.*got '0.9x'"),
        ({"min_length": "51", "max_length": "50"}, "min_length must be at most.*'51' and max_length='50'"),
        ({"min_length": "1.1x", "max_length": "1.0x+50"}, "min_length must be at most .*'1.1x' and"),
        ({"min_length": "2", "max_length": "1.5x"}, "min_length must be at most .*'2' and"),
        ({"normalization": "none", "length_penalty": 1.0}, "applies only to .*gnmt and power, got 1.0 with"),
    ],
)
def test_impossible_settings_are_rejected(settings, message):
    with pytest.raises(ValueError, match=message):
        config_reader.check(DecodingConfig(**settings), "decoding")


def test_limits_of_lengths():
    config = DecodingConfig(min_length="0.5x", max_length="1.5x+2")
    shortest, longest = config.length_limits([1, 4, 7])
    np.testing.assert_array_equal(shortest, [0, 2, 3])
    np.testing.assert_array_equal(longest, [3, 8, 12])
    shortest, longest = DecodingConfig().length_limits([1, 12])
    np.testing.assert_array_equal([shortest, longest], [[0, 0], [51, 62]])


def test_accepted_limits_are_in_order_for_all_sources():
    """The check looks at sources of one token and at the factors only."""
    texts = [f"{factor}x+{constant}" for factor in ("0", "0.3", "0.9", "1.0", "1.1", "1.95") for constant in (0, 1, 2)]
    sources, accepted = np.arange(1, 300), 0
    for shortest in texts:
        for longest in texts:
            limits = [decoding_config.parse_length(text, "")(sources) for text in (shortest, longest)]
            try:
                DecodingConfig(min_length=shortest, max_length=longest)
            except ValueError:
                assert (limits[0] > limits[1]).any() or (limits[1] < 1).any(), (shortest, longest)
            else:
                accepted += 1
                assert (limits[0] <= limits[1]).all() and (limits[1] >= 1).all(), (shortest, longest)
    assert accepted > 50
