"""Impossible encoders and searches are refused by the name of a setting; windows, sizes and limits of lengths."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest

from ag_jax.attention.config import DisentangledConfig, FixedConfig
from ag_jax.models import config as module
from ag_jax.models import decoding_config
from ag_jax.models.config import EncoderConfig
from ag_jax.models.decoding_config import DecodingConfig
from ag_jax.settings import schema

C2P, FIXED = {"relative": DisentangledConfig("c2p")}, {"fixed_attention": FixedConfig((0,))}
DECODER = {"absolute_positions": "decoder", "mask_decoder_passes": 2}
ROTARY, WINDOW, PRE = {"positions": "rotary"}, {"window": 128, "global_every": 3}, {"norm_position": "pre"}
REFUSED = [
    ({"absolute_positions": "decoder"}, "mask_decoder_passes=0"),
    ({"mask_decoder_passes": 2}, "absolute_positions=input"),
    ({"absolute_positions": "none"}, "model.relative.terms"),
    ({"convolution": 4}, "model.convolution"),
    ({"width": 768, "heads": 11}, "model.heads"),
    ({"positions": "sinusoidal", "width": 15, "heads": 3}, "even, got 15"),
    ({"positions": "sinusoidal", "embedding_width": 7}, "768 and 7"),
    (PRE | {"convolution": 3}, "norm_position=pre"),
    (PRE | DECODER, "norm_position=pre"),
    (FIXED | C2P, "fixed_attention.offsets"),
    ({"norm": "rms"}, "norm_biases=False"),
    ({"norm": "rms", "norm_biases": False, "convolution": 3}, "convolution"),
    ({"norm_biases": False, "convolution": 3}, "model.convolution"),
    ({"first_norm": False}, "first_norm=False"),
    ({"query_key_norm": True} | C2P, "query_key_norm"),
    ({"query_key_norm": True} | FIXED, "query_key_norm"),
    (ROTARY | C2P, "positions=rotary"),
    (ROTARY | FIXED, "positions=rotary"),
    (ROTARY | DECODER, "positions=rotary"),
    (ROTARY | {"width": 15, "heads": 3}, "even, got 5"),
    ({"rotary_base_local": 10.0}, "rotary_base_local"),
    (ROTARY | {"rotary_base_local": 10.0}, "model.window"),
    ({"global_every": 3}, "model.window"),
    ({"window": 128}, "global_every=1"),
    (WINDOW | C2P, "model.window"),
    (WINDOW | FIXED, "model.window"),
    (WINDOW | {"convolution": 3}, "model.window"),
    (WINDOW | DECODER, "model.window"),
    ({"remat": "all"}, "model.remat"),
]


@pytest.mark.parametrize(("setting", "named"), REFUSED)
def test_impossible_settings(setting, named):
    with pytest.raises(ValueError, match=named):
        schema.check(EncoderConfig(**setting), "model")


def test_impossible_relative_positions():
    for setting in ({"terms": "c2p,p2p"}, {"terms": "c2p,c2p"}, {"buckets": 5}, {"buckets": 512}):
        with pytest.raises(ValueError, match=f"model.relative.{next(iter(setting))}"):
            schema.check(DisentangledConfig(**setting), "model.relative")


def test_the_largest_model(monkeypatch):
    """Counted by hand: attention and feed-forward of encoder and decoder, and rows of all tables at the wider width."""
    relative = DisentangledConfig("c2p", span=6)
    settings = {"layers": 2, "width": 12, "heads": 3, "feedforward": 22, "vocabulary_size": 37, "max_length": 13}
    for more, decoder_layers, count in (
        ({}, 0, 2 * (4 * 144 + 2 * 12 * 22) + (37 + 13) * 12),
        ({"gated": True, "embedding_width": 20}, 0, 2 * (4 * 144 + 3 * 12 * 22) + (37 + 13) * 20),
        ({"relative": relative, "feedforward": None}, 0, 2 * (4 * 144 + 2 * 12 * 48) + (37 + 13 + 12) * 12),
        ({}, 3, 2 * (4 * 144 + 2 * 12 * 22) + 3 * (8 * 144 + 2 * 12 * 22) + (37 + 13) * 12),
    ):
        config = EncoderConfig(**settings | more)
        monkeypatch.setattr(module, "MOST_PARAMETERS", count)
        config.check_size(decoder_layers)
        monkeypatch.setattr(module, "MOST_PARAMETERS", count - 1)
        with pytest.raises(ValueError, match="parameters"):
            config.check_size(decoder_layers)
        if not decoder_layers:
            with pytest.raises(ValueError, match="parameters"):
                dataclasses.replace(config)
        monkeypatch.undo()


@pytest.mark.parametrize(
    ("settings", "kinds", "local"),
    [
        ({}, (False,), (False,) * 5),
        ({"window": 8, "global_every": None}, (True,), (True,) * 5),
        ({"window": 8, "global_every": 3}, (False, True, True), (False, True, True, False, True)),
        ({"window": 8, "global_every": 9}, (False, True, True, True, True), (False, True, True, True, True)),
        ({"window": 8, "global_every": 2, "layers": 1}, (False,), (False,)),
        ({"window": 8, "global_every": None, "layers": 1}, (True,), (True,)),
    ],
)
def test_which_layers_have_a_window(settings, kinds, local):
    config = EncoderConfig(**{"layers": 5} | settings)
    assert config.layer_kinds == kinds and config.local_layers == local
    assert config.windows == tuple(8 if is_local else None for is_local in local)


@pytest.mark.parametrize(
    ("text", "factor", "constant"),
    [
        ("50", 0, 50),
        ("1.5x", Fraction(3, 2), 0),
        ("0.75x+3", Fraction(3, 4), 3),
        ("1000x+65536", 1000, 65536),
        ("1.15x", Fraction(23, 20), 0),  # in floating point, 1.15 * 20 is 22.999999999999996
        (f"1.{'3' * 19}x", Fraction(int("1" + "3" * 19), 10**19), 0),  # in 64 bits, 9 tokens would be a negative number
    ],
)
def test_lengths_as_text(text, factor, constant):
    """Exact, and rounded down."""
    length, sources = decoding_config.parse_length(text, "decoding.max_length"), [1, 3, 4, 9, 20, 101]
    assert (length.factor, length.constant) == (factor, constant) and length(sources).dtype == np.int32
    np.testing.assert_array_equal(length(sources), [math.floor(factor * x) + constant for x in sources])


MALFORMED = "1.0x-2|1.0x + 50|x|x+50|50+1.0x|+50|-5|1.5|1.5x+0.5|1e2x|x1|.5x|1.x||1.0x+|٣|5\n|50 tokens|1.0x+50x"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        *(({name: text}, f"decoding.{name}") for text in MALFORMED.split("|") for name in ("max_length", "min_length")),
        ({"max_length": "1001x"}, "1001x"),
        ({"max_length": "1.0x+65537"}, "65537"),
        ({"max_length": "0.9x"}, "decoding.max_length"),
        ({"min_length": "1.1x", "max_length": "1.0x+50"}, "'1.1x'"),
        ({"min_length": "2", "max_length": "1.5x"}, "'2'"),
        ({"normalization": "none", "length_penalty": 1.0}, "length_penalty"),
    ],
)
def test_impossible_searches_are_refused(settings, named):
    with pytest.raises(ValueError, match=named):
        DecodingConfig(**settings)


def test_limits_of_lengths():
    shortest, longest = DecodingConfig(min_length="0.5x", max_length="1.5x+2").length_limits([1, 4, 7])
    np.testing.assert_array_equal([shortest, longest], [[0, 2, 3], [3, 8, 12]])
    DecodingConfig(min_length="1.0x+1", max_length="1.0x+1"), DecodingConfig(min_length="0.9x+1", max_length="1.0x")
    shortest, longest = DecodingConfig().length_limits([1, 12])
    np.testing.assert_array_equal([shortest, longest], [[0, 0], [51, 62]])
