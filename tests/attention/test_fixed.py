"""Hard-coded Gaussian weights against loops in numpy's float64, as matrices, as single rows, and as a band."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ag_jax.attention import fixed
from ag_jax.attention.config import FixedConfig
from ag_jax.attention.multihead import MultiHeadAttention
from ag_jax.settings import schema
from tests import reference
from tests.cases import some

LENGTH, HEADS, WIDTH = 29, 3, 5
TEXTS = [[29], [11, 1, 8], [3, 17], [0]]
SEGMENTS_BL = reference.packed(TEXTS, LENGTH)[1]
CONFIGS = {
    "encoder": FixedConfig((-1, 1)),
    "decoder": FixedConfig((-1, 0), normalized=True),
    "wide": FixedConfig((2, -3, 0), deviation=2.5),
    "narrow": FixedConfig((1,), deviation=0.3, normalized=True),
    "far": FixedConfig((-7, 7), deviation=0.5, normalized=True),  # rows near the borders have nothing within reach
    "beyond": FixedConfig((40,)),
}


def weights(config, segments_BL, causal, heads=HEADS):
    """H cell by cell: 1 / (sigma sqrt(2 pi)) exp(-((q - p - a) / sigma)^2 / 2), of keys of the same text."""
    found = np.zeros((len(segments_BL), heads, segments_BL.shape[1], segments_BL.shape[1]))
    for b, h, p, q in np.ndindex(found.shape):
        offset = config.offsets[h % len(config.offsets)]
        scaled = (q - p - offset) / config.deviation
        seen = segments_BL[b, p] == segments_BL[b, q] > 0 and not (causal and q > p)
        if seen and abs(scaled) <= 5:
            found[b, h, p, q] = np.exp(-(scaled**2) / 2) / (config.deviation * np.sqrt(2 * np.pi))
    if config.normalized:
        sums = found.sum(-1, keepdims=True)
        found = np.divide(found, sums, out=found, where=sums > 0)
    return found


@pytest.mark.parametrize(
    ("name", "causal"),
    some(
        itertools.product(CONFIGS, [False, True]),
        *(
            ("encoder", False),
            ("decoder", True),
            ("wide", False),
            ("wide", True),
            ("narrow", False),
            ("far", True),
            ("beyond", False),
        ),
    ),
)
def test_matrix_and_band_equal_loops(name, causal):
    config = CONFIGS[name]
    expected = weights(config, SEGMENTS_BL, causal)
    value = np.random.default_rng(0).standard_normal((len(TEXTS), LENGTH, HEADS, WIDTH)).astype(np.float32)

    @jax.jit
    def both(value, ids):
        return fixed.dense(config, HEADS, ids, causal), fixed.mix(config, value, ids, causal)

    found, mixed = both(value, SEGMENTS_BL)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(mixed, np.einsum("bhqk,bkhw->bqhw", expected, value), atol=1e-6)
    assert expected.any() == (name != "beyond")


@pytest.mark.parametrize("name", CONFIGS)
def test_a_row_is_that_of_the_causal_matrix(name):
    config, length, queries = CONFIGS[name], 17, np.array([0, 1, 8, 16])
    whole_HQK = weights(config, np.ones((1, length), int), causal=True)[0]
    found = jax.jit(jax.vmap(lambda query: fixed.row(config, HEADS, query, length)))(queries)
    np.testing.assert_allclose(found, whole_HQK[:, queries].swapaxes(0, 1), atol=1e-6)


def test_sums_of_rows_are_the_published_ones():
    """Inside a text 1; in a decoder .941 around the previous token and .699 around the present one."""

    @jax.jit
    def sums(ids):
        configs = (FixedConfig((-1, 1)), False), (FixedConfig((-1, 0)), True)
        return [fixed.dense(config, 2, ids, causal).sum(-1)[0] for config, causal in configs]

    both, decoder = map(np.asarray, sums(np.ones((1, LENGTH), np.int32)))
    np.testing.assert_allclose(both[:, 8:-8], 1, atol=1e-6)
    np.testing.assert_allclose((both[0, 0], both[1, -1]), 0.301, atol=5e-4)
    np.testing.assert_allclose(decoder[0, 8:], 0.941, atol=5e-4)
    np.testing.assert_allclose(decoder[1, 8:], 0.699, atol=5e-4)


def test_the_module_has_neither_queries_nor_keys():
    """Its output is the projected mixture of the values, and it sows the weights that it used."""
    config = CONFIGS["encoder"]
    module = MultiHeadAttention(
        HEADS, 15, 0.5, jnp.dtype("float32"), jax.nn.initializers.normal(1.0), fixed=config, biases=False
    )
    hidden = np.random.default_rng(1).standard_normal((len(TEXTS), LENGTH, 15)).astype(np.float32)

    @jax.jit
    def run(hidden, ids):
        arguments = (hidden, hidden, ids, ids)
        params = module.init(jax.random.key(0), *arguments, deterministic=True)["params"]
        # Dropout of attention has no effect, so no random key is asked for.
        output, sown = module.apply({"params": params}, *arguments, deterministic=False, mutable=["intermediates"])
        return jax.tree.map(lambda leaf: leaf, params), output, sown

    params, output, sown = run(hidden, jnp.asarray(SEGMENTS_BL))
    params = {name: {key: leaf.value for key, leaf in part.items()} for name, part in params.items()}
    assert {name: set(part) for name, part in params.items()} == {"value": {"kernel"}, "output": {"kernel"}}
    expected = weights(config, SEGMENTS_BL, causal=False)
    np.testing.assert_allclose(sown["intermediates"]["attention_weights"][0], expected, atol=1e-6)
    value = np.einsum("bld,dhw->bhlw", hidden, params["value"]["kernel"])
    mixed = np.einsum("bhqw,hwd->bqd", expected @ value, params["output"]["kernel"])
    np.testing.assert_allclose(output, mixed, atol=2e-5)


@pytest.mark.parametrize("setting", [{"offsets": (0, 65)}, {"deviation": 0.0}, {"deviation": 17.0}])
def test_impossible_settings(setting):
    with pytest.raises(ValueError, match=f"model.fixed_attention.{next(iter(setting))} "):
        schema.check(FixedConfig(**setting), "model.fixed_attention")
