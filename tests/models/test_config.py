"""Impossible encoders are refused with a message that helps."""

import pytest

from ag_jax.models.config import EncoderConfig


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"layers": 0}, "model.layers must be at least 1, got 0"),
        ({"heads": 0}, "model.heads must be at least 1, got 0"),
        ({"width": -1}, "model.width must be at least 1, got -1"),
        ({"segments": 0}, "model.segments must be at least 1, got 0"),
        ({"vocabulary_size": -1}, "model.vocabulary_size must be at least 0, got -1"),
        ({"position_offset": -2}, "model.position_offset must be at least 0, got -2"),
        ({"width": 768, "heads": 11}, r"model.heads must divide model.width=768, got 11; .*\[6, 8, 12\]"),
        ({"dropout": 1.0}, r"model.dropout must be in \[0, 1\), got 1.0"),
        ({"attention_dropout": -0.1}, r"model.attention_dropout must be in \[0, 1\), got -0.1"),
        ({"layer_norm_epsilon": 0.0}, "model.layer_norm_epsilon must be above 0, got 0.0"),
        ({"initializer_range": float("nan")}, "model.initializer_range must be above 0, got nan"),
        ({"dtype": "float16"}, "model.dtype must be one of float32, bfloat16, got 'float16'"),
        ({"remat": "all"}, "model.remat must be one of none, layer, dots, got 'all'"),
    ],
)
def test_impossible_settings(setting, message):
    with pytest.raises(ValueError, match=message):
        EncoderConfig(**setting)
