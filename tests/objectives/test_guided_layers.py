"""Guidance of some layers, and of layers with a window: against loops over layers, heads, queries and keys."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ag_jax.attention.guidance import GuidanceConfig, guided_layers
from ag_jax.objectives.adversarial.config import AdversarialConfig
from ag_jax.objectives.masked_lm import Pretraining
from ag_jax.pretraining import build
from tests import reference, tiny

HEADS = "next:1,first:2"
WINDOWED, PLAIN = tiny.MODERNBERT | {"layers": 3}, {"layers": 3}  # the middle one of the windowed layers has a window


def expected(weights_NBHQK, batch, config, layers, absent):
    """Return L_AG, summed over texts, and the mass on the target of each pattern in each layer, by its definition."""
    total, masses = 0.0, {name: np.full((config.layers, 2), 0.0) for name in ("next", "first")}
    segments_BL = batch["segment_ids"]
    for layer in layers:
        reach = config.window // 2 if config.local_layers[layer] else 99
        for name, heads in (("next", [0]), ("first", [1, 2])):
            for b, q in np.argwhere(segments_BL > 0):
                text = reference.text_of(segments_BL[b], q)
                seen = [k for k in text if abs(k - q) <= reach]
                wanted = [k for k in ([q + 1] if name == "next" else [text[0]]) if k in seen]
                P = np.zeros(len(segments_BL[b]))
                P[wanted or seen] = 1 / len(wanted or seen)
                for head in heads:
                    H = weights_NBHQK[layer, b, head, q]
                    if wanted or name == "next" or absent == "uniform":
                        total += ((H - P) ** 2).sum() / (len(heads) * len(text) ** 2)
                    if wanted:
                        masses[name][layer] += H[wanted].sum(), 1
    return total, masses


@functools.cache
def case(is_windowed):
    """Return a model, its batch and parameters, and the attention of all layers."""
    model, batch = tiny.model(**(WINDOWED if is_windowed else PLAIN)), tiny.mixed_batch()
    params = tiny.params(model, batch)
    run = jax.jit(lambda params: model.apply({"params": params}, batch, deterministic=True, mutable=["intermediates"]))
    weights = run(params)[1]["intermediates"]["encoder"]["layers"]["attention"]["attention_weights"][0]
    return model, batch, params, np.asarray(weights, np.float64)


def guided(model, **settings):
    config = GuidanceConfig("loss", heads=HEADS, **settings)
    return build.guided_and_attacked(
        Pretraining(model), config, AdversarialConfig(), model.config, tiny.SPECIAL, steps=10
    )


@pytest.mark.parametrize(
    ("is_windowed", "settings", "layers"),
    [
        pytest.param(False, {"layers": "1"}, [1], marks=pytest.mark.exhaustive),
        (False, {"layers": "0,2"}, [0, 2]),
        pytest.param(True, {"layers": "all", "absent": "ignore"}, [0, 1, 2], marks=pytest.mark.exhaustive),
        (True, {"layers": "global"}, [0, 2]),
        (True, {"layers": "local", "absent": "ignore"}, [1]),
        (True, {"layers": "1-2", "absent": "ignore"}, [1, 2]),
    ],
)
def test_the_loss_and_the_masses_are_those_of_the_guided_layers(is_windowed, settings, layers):
    model, batch, params, weights = case(is_windowed)
    objective = guided(model, **settings)
    found = jax.jit(lambda params: tiny.evaluate(objective, params, batch, None, jnp.int32(0)))(params)
    loss, masses = expected(weights, batch, model.config, layers, settings.get("absent", "uniform"))
    np.testing.assert_allclose(found.totals["ag"], loss, rtol=1e-5)
    for name, rows in masses.items():
        np.testing.assert_allclose(np.stack(found.metrics[f"mass/{name}"], 1), rows, rtol=1e-5, atol=1e-6)


def test_patterns_of_columns_in_windows_need_a_rule():
    model, batch, params, _ = case(True)
    with pytest.raises(ValueError, match="pattern first looks for tokens that are outside the window.*absent=ignore"):
        tiny.evaluate(guided(model), params, batch, None, jnp.int32(0))


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ("3", "layers from 0 to 2 with commas, such as 0-2; got '3' in '3'"),
        ("2-1", "got '2-1'"),
        ("first", "guidance.layers must be all, global, local"),
        ("0,,1", "got ''"),
        ("local", "no layer of the model is local"),
    ],
)
def test_impossible_layers(layers, message):
    with pytest.raises(ValueError, match=message):
        guided_layers(GuidanceConfig("loss", layers=layers), (False,) * 3, None)
