"""Maps that are stored in a page come back within the error of their precision."""

import numpy as np
import pytest

from ag_jax.viewer import encode
from ag_jax.viewer.encode import COARSE, FULL, PICTURE
from tests.viewer import views
from tests.viewer.decoding import decode_map


@pytest.fixture(scope="module", params=[1, 7, 64])
def maps(request):
    length = request.param
    found = views.attention(queries=length + 1, keys=length, sharpness=1.5)
    return [*found.reshape(-1, length + 1, length), np.eye(length + 1, length, dtype=np.float32)]


def test_levels_are_square_roots_by_columns(maps):
    """Each byte, one at a time."""
    for weights in maps:
        data = encode.encode_map(weights, FULL)
        queries, keys = weights.shape
        assert len(data) == queries * keys
        for q in range(queries):
            for k in range(keys):
                assert abs(data[k * queries + q] - 255 * float(weights[q, k]) ** 0.5) <= 0.5 + 1e-4


def test_large_weights_of_pictures_are_right_to_two_thousandths(maps):
    for weights in maps:
        data = encode.encode_map(weights, PICTURE)
        found = decode_map(data, *weights.shape, PICTURE, sums_to_one=False)
        large = weights > 0.0145  # certainly of level 4 or above
        assert large.any() and np.abs(found - weights)[large].max() <= 0.00203
        assert np.abs(found - weights).max() <= 0.0105
        assert len(data) - weights.size == -(-(encode.levels(weights, PICTURE) >= 4).sum() // 2)


def test_rows_of_pictures_sum_to_one_again_within_their_levels(maps):
    """A shade is scaled, but stays a weight that is stored as the same level; refined weights stay as they are."""
    for weights in [one for one in maps if np.allclose(one.sum(-1), 1)]:
        data = encode.encode_map(weights, PICTURE)
        plain = decode_map(data, *weights.shape, PICTURE, sums_to_one=False)
        found = decode_map(data, *weights.shape, PICTURE)
        refined = encode.levels(weights, PICTURE) >= 4
        np.testing.assert_array_equal(found[refined], plain[refined])
        assert np.abs(31 * np.sqrt(found) - encode.levels(weights, PICTURE))[~refined].max(initial=0) <= 0.5 + 1e-9
        assert np.abs(found.sum(-1) - 1).max() <= np.abs(plain.sum(-1) - 1).max() + 1e-9
        assert found.max() <= 1


def test_even_attention_keeps_its_mass():
    """Weights that are too small for the additional bits are scaled to the mass of their row."""
    weights = np.full((4, 512), 1 / 512, np.float32)
    found = decode_map(encode.encode_map(weights, PICTURE), 4, 512, PICTURE)
    np.testing.assert_allclose(found, weights, rtol=1e-5)
    found = decode_map(encode.encode_map(weights, FULL), 4, 512, FULL)
    np.testing.assert_allclose(found, weights, rtol=0.05)


def test_a_small_weight_beside_a_large_one_stays():
    weights = np.array([[0.997, 0.002, 0.001]], np.float32)
    found = decode_map(encode.encode_map(weights, FULL), 1, 3, FULL)
    np.testing.assert_allclose(found, weights, atol=0.004)
    assert found[0, 1] == pytest.approx(0.002, rel=0.1)


@pytest.mark.parametrize("wrong", [np.nan, -0.1, 1.1])
def test_weights_that_are_no_shares_are_refused(wrong):
    weights = np.full((3, 3), 1 / 3, np.float32)
    weights[1, 2] = wrong
    with pytest.raises(ValueError, match="attention weights must be numbers from 0 to 1"):
        encode.encode_map(weights, FULL)


@pytest.mark.parametrize(("queries", "keys", "size"), [(1, 1, 1), (64, 64, 1), (65, 64, 2), (20, 200, 4)])
def test_the_overview_has_the_largest_weight_of_each_block(queries, keys, size):
    weights = views.attention(1, 2, queries, keys)
    assert encode.block(queries, keys) == size
    data = encode.overview(encode.coarse(weights))
    high, wide = -(-queries // size), -(-keys // size)
    assert len(data) == 2 * high * wide and max(high, wide) <= 64
    for head in range(2):
        for q in range(high):
            for k in range(wide):
                block = weights[0, head, q * size : (q + 1) * size, k * size : (k + 1) * size]
                level = data[head * high * wide + k * high + q]
                assert abs(level - (COARSE.levels - 1) * float(block.max()) ** 0.5) <= 0.5 + 1e-4


def test_masked_cells_are_bits_by_columns():
    flags = np.random.default_rng(0).random((5, 7)) < 0.5
    data = encode.bits(flags)
    for at in range(35):
        assert (data[at // 8] >> (7 - at % 8)) & 1 == flags[at % 5, at // 5]
