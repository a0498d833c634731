"""Impossible encoders are refused with a message that helps."""

import pytest

from ag_jax import config_reader
from ag_jax.attention.disentangled import DisentangledConfig
from ag_jax.attention.fixed import FixedConfig
from ag_jax.models.config import DecoderConfig, EncoderConfig


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"layers": 0}, "model.layers must be at least 1 and at most 1000, got 0"),
        ({"heads": 0}, "model.heads must be at least 1 .*, got 0"),
        ({"width": -1}, "model.width must be at least 1 .*, got -1"),
        ({"token_types": -1}, "model.token_types must be at least 0 .*, got -1"),
        ({"mask_decoder_passes": -1}, "model.mask_decoder_passes must be at least 0 and at most 100, got -1"),
        (
            {"absolute_positions": "output"},
            "model.absolute_positions must be one of input, decoder, none, got 'output'",
        ),
        (
            {"absolute_positions": "decoder"},
            "absolute_positions=decoder does not go with model.mask_decoder_passes=0",
        ),
        (
            {"mask_decoder_passes": 2},
            "absolute_positions=input does not go with model.mask_decoder_passes=2: set",
        ),
        ({"absolute_positions": "none"}, "without any order of its words: set model.relative.terms"),
        ({"convolution": 4}, "model.convolution must be an odd number, or none, got 4"),
        ({"convolution": -3}, "model.convolution must be at least 1 .*, or none, got -3"),
        ({"convolution_activation": "relu"}, "model.convolution_activation must be one of tanh, gelu, got 'relu'"),
        ({"vocabulary_size": 0}, "model.vocabulary_size must be at least 1 .*, or none, got 0"),
        ({"position_offset": -2}, "model.position_offset must be at least 0 .*, got -2"),
        ({"width": 768, "heads": 11}, "model.heads must divide model.width=768, got 11"),
        ({"dropout": 1.0}, r"model.dropout must be at least 0 and below 1, got 1.0"),
        ({"attention_dropout": -0.1}, r"model.attention_dropout must be at least 0 and below 1, got -0.1"),
        ({"layer_norm_epsilon": 0.0}, "model.layer_norm_epsilon must be above 0, got 0.0"),
        ({"initializer_range": float("nan")}, "model.initializer_range must be a finite number, got nan"),
        ({"dtype": "float16"}, "model.dtype must be one of float32, bfloat16, got 'float16'"),
        (
            {"positions": "sinusoidal", "width": 15, "heads": 3},
            "has a sine for every cosine: .* must be even, got 15 and",
        ),
        ({"positions": "sinusoidal", "embedding_width": 7}, "must be even, got 768 and 7"),
        ({"norm_position": "pre", "convolution": 3}, "model.norm_position=pre cannot be combined with model.mask_dec"),
        (
            {"norm_position": "pre", "mask_decoder_passes": 1, "absolute_positions": "decoder"},
            "model.norm_position=pre cannot be combined with",
        ),
        (
            {"fixed_attention": FixedConfig((0,)), "relative": DisentangledConfig("c2p")},
            "model.fixed_attention.offsets replaces the scores to which model.relative.terms would be added",
        ),
        ({"norm": "rms"}, "model.norm=rms has no biases and no convolution: set model.norm_biases=False"),
        ({"norm_biases": False, "convolution": 3}, "model.norm_biases=False cannot be combined with model.convolution"),
        ({"first_norm": False}, "model.first_norm=False leaves out the first LayerNorm of model.norm_position=pre"),
        (
            {"query_key_norm": True, "relative": DisentangledConfig("c2p")},
            "model.query_key_norm normalises queries and keys, which",
        ),
        (
            {"positions": "rotary", "relative": DisentangledConfig("c2p")},
            "model.positions=rotary cannot be combined with model.relative.terms",
        ),
        (
            {"positions": "rotary", "absolute_positions": "decoder", "mask_decoder_passes": 1},
            "model.positions=rotary cannot be combined with",
        ),
        ({"positions": "rotary", "width": 15, "heads": 3}, "model.width / model.heads, must be even, got 5"),
        ({"rotary_base": 1.0}, "model.rotary_base must be above 1, got 1.0"),
        ({"rotary_base_local": 10.0}, "model.rotary_base_local needs model.positions=rotary"),
        (
            {"positions": "rotary", "rotary_base_local": 10.0},
            "are about layers with a window: set model.window, such as 128",
        ),
        ({"global_every": 3}, "are about layers with a window: set model.window, such as 128"),
        ({"window": 128}, "model.window=128 with model.global_every=1 gives no layer a window: set"),
        (
            {"window": 128, "global_every": None, "relative": DisentangledConfig("c2p")},
            "model.window cannot be combined with model.relative.terms",
        ),
        (
            {"window": 128, "global_every": 3, "absolute_positions": "decoder", "mask_decoder_passes": 2},
            "or model.mask_decoder_passes: set only one of them",
        ),
        ({"activation": "tanh"}, "model.activation must be one of gelu, relu, silu, got 'tanh'"),
        ({"remat": "all"}, "model.remat must be one of none, layer, dots, got 'all'"),
    ],
)
def test_impossible_settings(setting, message):
    with pytest.raises(ValueError, match=message):
        config_reader.check(EncoderConfig(**setting), "model")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"terms": "c2p,p2p"}, "model.relative.terms must be some of c2p, p2c, each once.*got 'c2p,p2p'"),
        ({"terms": "c2p,c2p"}, "each once, with a comma between, got 'c2p,c2p'"),
        ({"span": 0}, "model.relative.span must be at least 1 and at most 1048576, got 0"),
        ({"buckets": 5}, "model.relative.buckets must be even and below model.relative.span=512, or none, got 5"),
        ({"buckets": 512}, "model.relative.buckets must be even and below model.relative.span=512, or none, got 512"),
        ({"buckets": -2}, "model.relative.buckets must be at least 1 .*, or none, got -2"),
        ({"index": "mine"}, "model.relative.index must be one of code, paper, got 'mine'"),
    ],
)
def test_impossible_relative_positions(setting, message):
    with pytest.raises(ValueError, match=message):
        config_reader.check(DisentangledConfig(**setting), "model.relative")


def test_impossible_decoders():
    with pytest.raises(ValueError, match="decoder.start must be one of zero, begin, got 'bos'"):
        config_reader.check(DecoderConfig(start="bos"), "decoder")


@pytest.mark.parametrize(
    ("settings", "kinds", "local"),
    [
        ({}, (False,), (False,) * 5),
        ({"window": 8, "global_every": None}, (True,), (True,) * 5),
        ({"window": 8, "global_every": 3}, (False, True, True), (False, True, True, False, True)),
        ({"window": 8, "global_every": 9}, (False, True, True, True, True), (False, True, True, True, True)),
        ({"window": 8, "global_every": 2, "layers": 1}, (False,), (False,)),
    ],
)
def test_which_layers_have_a_window(settings, kinds, local):
    config = EncoderConfig(**{"layers": 5} | settings)
    assert config.layer_kinds == kinds and config.local_layers == local
