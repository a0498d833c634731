"""ModernBERT's config.json, new and old, and its tensors; tests/parity compares the models."""

import dataclasses

import numpy as np
import pytest

from ag_jax.interop import names
from ag_jax.interop.modernbert import MODERNBERT, misfits
from ag_jax.interop.settings import Settings
from ag_jax.models.config import EncoderConfig
from ag_jax.recipes import pretraining
from tests import tiny

# As published with ModernBERT-base, for transformers 4.
PUBLISHED = {
    "architectures": ["ModernBertForMaskedLM"],
    **dict.fromkeys(("attention_bias", "classifier_bias", "mlp_bias", "norm_bias"), False),
    **dict.fromkeys(("attention_dropout", "embedding_dropout", "mlp_dropout"), 0.0),
    **dict.fromkeys(("classifier_activation", "hidden_activation"), "gelu"),
    "decoder_bias": True,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "hidden_size": 768,
    "initializer_cutoff_factor": 2.0,
    "initializer_range": 0.02,
    "intermediate_size": 1152,
    "local_attention": 128,
    "local_rope_theta": 10000.0,
    "max_position_embeddings": 8192,
    "norm_eps": 1e-05,
    "num_attention_heads": 12,
    "num_hidden_layers": 22,
    "tie_word_embeddings": True,
    "vocab_size": 50368,
}


def read(values):
    settings = Settings(values)
    fields = MODERNBERT.read(settings, ())
    assert not settings.problems, settings.problems
    return EncoderConfig(**fields)


def test_the_published_config_is_the_preset():
    preset = EncoderConfig(
        **pretraining.ENCODERS["modernbert_base"], vocabulary_size=50368, dropout=0.0, attention_dropout=0.0
    )
    assert read(PUBLISHED) == preset
    assert read(MODERNBERT.write(preset, 0)) == preset


@pytest.mark.parametrize(("value", "base"), [("missing", 10_000.0), (None, 7.0), (5.0, 5.0), (7.0, 7.0)])
def test_the_base_of_layers_with_a_window(value, base):
    """Null is the base of the other layers; a missing key is 10,000."""
    values = PUBLISHED | {"global_rope_theta": 7.0, "local_rope_theta": value}
    if value == "missing":
        del values["local_rope_theta"]
    found = read(values)
    assert found.rotary_base == 7.0 and (found.rotary_base_local or found.rotary_base) == base


@pytest.mark.parametrize(
    ("layers", "settings", "types"),
    [
        (3, {"window": 6, "global_every": 2}, "fsf"),
        (3, {"window": 6, "global_every": 3, "rotary_base_local": 7.0}, "fss"),
        (3, {"window": 6, "global_every": None}, "sss"),
        (3, {}, "fff"),
        (1, {}, "f"),
    ],
)
def test_layers_with_and_without_windows(layers, settings, types):
    config = tiny.config(**tiny.ROTARY | {"first_norm": False, "gated": True, "position_offset": 0} | settings)
    config = dataclasses.replace(config, layers=layers, initializer="scaled", norm_biases=True)
    written = MODERNBERT.write(config, 0)
    assert [kind[0] for kind in written["layer_types"]] == list(types)
    found = read(written)
    assert found == dataclasses.replace(config, remat=found.remat) and not misfits(config)


@pytest.mark.parametrize(
    "changed",
    [
        {"layer_types": ["full_attention", "full_attention", "sliding_attention"], "num_hidden_layers": 3},
        {"layer_types": ["full_attention"] * 21},
        {"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 4.0}}},
        {"rope_parameters": {"sliding_attention": {"type": "linear", "factor": 2.0}}},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"classifier_bias": True},
        {"classifier_activation": "relu"},
        {"initializer_cutoff_factor": 3.0},
        {"sparse_prediction": True},
        {"quantization_config": {}, "hidden_activation": "gelu_new"},
        {"decoder_bias": False},
        {"tie_word_embeddings": False},
        {"global_rope_theta": "large"},
        {"num_hidden_layers": None},
        {"embedding_dropout": 0.1},
    ],
)
def test_what_is_not_supported_is_named(changed):
    settings = Settings(PUBLISHED | changed)
    MODERNBERT.read(settings, ())
    assert len(settings.problems) == 1 and any(key in settings.problems[0] for key in changed)


@pytest.mark.parametrize(
    "changed",
    [
        {"positions": "learned", "rotary_base_local": None},
        {"first_norm": True},
        {"norm_position": "post", "first_norm": True},
        {"norm": "rms"},
        {"gated": False},
        {"query_key_norm": True},
        {"token_types": 1},
        {"embedding_norm": False},
        {"embedding_scale": True},
        {"embedding_width": 7},
    ],
)
def test_other_encoders_do_not_fit(changed):
    config = tiny.config(**tiny.MODERNBERT)
    reasons = misfits(dataclasses.replace(config, **changed))
    named = [name for name in changed if name != "rotary_base_local"]
    assert not misfits(config) and len(reasons) == len(named)
    assert all(f"model.{name}" in " ".join(reasons) for name in named)


class Stored:
    """Tensors, as `names.load` reads them."""

    file = staticmethod(str)

    def __init__(self, read):
        self.read = read


def test_a_single_layer_has_no_tensor_for_the_norm_that_it_does_not_use():
    shapes = {"encoder/layers/attention_norm/scale": (1, 6), "encoder/final_norm/scale": (6,)}
    wanted = names.stored_tensors(MODERNBERT.names, shapes)
    assert [stored.theirs for stored in wanted] == ["model.final_norm.weight"]
    found = names.load(wanted, Stored(lambda name: np.zeros(6)), shapes)
    np.testing.assert_array_equal(found["encoder/layers/attention_norm/scale"], np.ones((1, 6)))


@pytest.mark.parametrize("with_biases", [False, True])
def test_tensors_hold_what_transformers_reads_from_them(with_biases):
    """[query; key; value] and [activated; gate], row by row; there is no LayerNorm before the first attention."""
    biases = dict.fromkeys(("attention_biases", "feedforward_biases", "norm_biases"), with_biases)
    params = names.flat(tiny.params(tiny.model(**tiny.MODERNBERT | biases), tiny.batch()))
    params = {path: np.asarray(leaf) for path, leaf in params.items() if not path.startswith("next_head")}
    shapes = {path: leaf.shape for path, leaf in params.items()}
    wanted = names.stored_tensors(MODERNBERT.names, shapes)
    tensors = names.store(wanted, params, np.dtype(np.float32))
    x, of_layer, layer = np.linspace(-1, 1, 12, dtype=np.float32), "encoder/layers/{}", 2
    queries_keys_values = np.split(tensors[f"model.layers.{layer}.attn.Wqkv.weight"] @ x, 3)
    for name, found in zip(("query", "key", "value"), queries_keys_values, strict=True):
        expected = np.einsum("d,dhw->hw", x, params[of_layer.format(f"attention/{name}/kernel")][layer])
        np.testing.assert_allclose(found.reshape(3, 4), expected, rtol=1e-4, atol=1e-6)
    inner = np.split(tensors[f"model.layers.{layer}.mlp.Wi.weight"] @ x, 2)
    for name, found in zip(("feedforward_in", "feedforward_gate"), inner, strict=True):
        np.testing.assert_allclose(found, x @ params[of_layer.format(f"{name}/kernel")][layer], rtol=1e-4, atol=1e-6)
    assert ("model.layers.0.attn_norm.weight" in tensors, "model.layers.1.attn_norm.weight" in tensors) == (False, True)
    assert ("model.layers.0.attn.Wqkv.bias" in tensors) == ("model.layers.1.attn_norm.bias" in tensors) == with_biases
    again = names.load(wanted, Stored(tensors.__getitem__), shapes)
    assert again.keys() == params.keys()
    for path, leaf in params.items():
        unused = slice(1, None) if path.startswith("encoder/layers/attention_norm/") else slice(None)
        np.testing.assert_array_equal(again[path][unused], leaf[unused], err_msg=path)
    np.testing.assert_array_equal(again["encoder/layers/attention_norm/scale"][0], 1)
