"""Distances, their buckets and rows, and the reshape that moves them into place."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ag_jax.attention import disentangled
from ag_jax.attention.config import DisentangledConfig
from ag_jax.training import sharding
from ag_jax.training.config import MeshConfig
from ag_jax.training.sharding import make_mesh
from tests import reference, tiny
from tests.cases import pairwise


def test_buckets_of_the_released_models():
    """Values of the released code for (256, 512); for distances beyond 511, those of Hugging Face."""
    distances = np.array([0, 1, -1, 127, 128, 129, 130, 511, -128, -129, -511])
    expected = [0, 1, -1, 127, 128, 129, 130, 255, -128, -129, -255]
    np.testing.assert_array_equal(disentangled.log_buckets(distances, 256, 512), expected)
    found = disentangled.log_buckets(np.arange(-511, 512), 256, 512)
    assert (np.diff(found) >= 0).all() and set(found) == set(range(-255, 256))
    config = DisentangledConfig(terms="c2p", buckets=256)
    np.testing.assert_array_equal(
        disentangled.rows(config, np.array([-9999, -511, 0, 511, 9999])), [0, 1, 256, 511, 511]
    )


@pytest.mark.parametrize(("buckets", "span"), [(256, 512), (32, 128), (6, 9), (4, 5), (64, 4096), (2, 3)])
def test_rows_equal_a_second_formulation(buckets, span):
    config = DisentangledConfig(terms="c2p", buckets=buckets, span=span)
    distances = np.arange(-2 * span, 2 * span + 1)
    expected = [reference.distance_row(int(distance), span, buckets) for distance in distances]
    # Where float32 rounds to the other side of a border, it is by one bucket; within the span it does not happen here.
    found = disentangled.rows(config, distances)
    np.testing.assert_array_equal(found[np.abs(distances) < span], np.array(expected)[np.abs(distances) < span])
    assert np.abs(found - expected).max() <= 1


def test_clipped_rows_are_the_paper_s_three_cases():
    """Equation 3: 0 if i - j <= -k, 2 k - 1 if i - j >= k, else i - j + k."""
    found = disentangled.rows(DisentangledConfig(terms="c2p", span=3), np.arange(-5, 6))
    np.testing.assert_array_equal(found, [0, 0, 0, 1, 2, 3, 4, 5, 5, 5, 5])


@pytest.mark.parametrize(
    ("terms", "settings", "index"),
    pairwise(["c2p", "p2c", "c2p,p2c"], [{"span": 3}, {"span": 50}, {"span": 7, "buckets": 4}], ["code", "paper"]),
)
def test_scores_equal_pair_by_pair(terms, settings, index):
    """All queries, and some in another order; p2c reads the row of i - j, as the released code, or of j - i."""
    config = DisentangledConfig(terms=terms, index=index, **settings)
    rng = np.random.default_rng(1)
    B, L, H, W = 2, 11, 3, 5
    query, key = rng.standard_normal((2, B, L, H, W))
    tables = dict(zip(("c2p", "p2c"), rng.standard_normal((2, 2 * config.half, H, W)), strict=True))
    projected = {}
    for term in config.names:
        needed, places_S = disentangled.layout(config, term, L)
        projected[term] = jnp.asarray(tables[term][needed], jnp.float32), places_S
    positions_BQ = np.array([[7, 0, 10, 3], [1, 1, 9, 8]])

    @jax.jit
    def both(query, key):
        some = jnp.take_along_axis(query, positions_BQ[..., None, None], axis=1)
        return (
            disentangled.relative_scores(config, query, key, projected),
            disentangled.relative_scores(config, some, key, projected, jnp.asarray(positions_BQ)),
        )

    found, of_some = both(*(jnp.asarray(array, jnp.float32) for array in (query, key)))
    expected = np.zeros((B, H, L, L))
    for i in range(L):
        for j in range(L):
            row = reference.distance_row(i - j, config.span, config.buckets)
            other = reference.distance_row(j - i if index == "paper" else i - j, config.span, config.buckets)
            if "c2p" in terms:
                expected[:, :, i, j] += np.einsum("bhw,hw->bh", query[:, i], tables["c2p"][row])
            if "p2c" in terms:
                expected[:, :, i, j] += np.einsum("bhw,hw->bh", key[:, j], tables["p2c"][other])
    expected /= np.sqrt(W * (1 + len(config.names)))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    expected = np.take_along_axis(expected, positions_BQ[:, None, :, None], axis=2)
    np.testing.assert_allclose(of_some, expected, rtol=1e-5, atol=1e-5)


def test_only_rows_that_are_met_are_projected():
    needed, places_S = disentangled.layout(DisentangledConfig(terms="c2p", span=512), "c2p", 64)
    assert (needed.start, needed.stop) == (512 - 63, 512 + 64) and places_S.min() == 0 and places_S.max() == 126


def test_a_sharded_deberta_is_the_same(eight_devices):
    """Heads, features and width split over devices: tables of distances, convolution and mask decoder too."""
    settings = tiny.ENCODERS["deberta_v2"] | {"layers": 1, "heads": 4, "width": 16}
    model, batch = tiny.model(**settings), tiny.batch((11, 7, 3, 5, 11, 2, 9, 4))
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2), eight_devices)
    boxed = jax.eval_shape(lambda: model.init(jax.random.key(0), batch, deterministic=True))["params"]
    shardings, params = sharding.parameter_shardings(boxed, mesh), tiny.params(model, batch)
    encoder = shardings["encoder"]
    assert encoder["relative"]["embedding"].spec == jax.sharding.PartitionSpec(None, "fsdp")
    assert encoder["convolution"]["kernel"].spec == jax.sharding.PartitionSpec(None, "fsdp", None)
    split = tiny.apply(model, jax.device_put(params, shardings), sharding.place_batch(batch, mesh)).words_BMV
    words, *_ = reference.predict(tiny.float64(params), batch, model.config)
    np.testing.assert_allclose(split, words, rtol=1e-5, atol=1e-5)
