"""The reversal of gradients, the threshold, and one layer's attack against numpy; what masked and kept units learn."""

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special as functions

from ag_jax.attention.adversary import Adversary, initial_offset, reverse_gradient, straight_through
from ag_jax.attention.attack import MaskPolicy
from ag_jax.attention.config import DisentangledConfig
from ag_jax.attention.multihead import MultiHeadAttention
from tests import reference

X = np.array([[1.5, -2.0, 0.25], [3.0, 0.0, -1.0]], np.float32)
LENGTHS = [[7], [3, 4], [2], []]
LENGTH, HEADS, WIDTH = 9, 3, 12


def scanned(x, scale):
    return jax.lax.scan(lambda carry, row: (carry, reverse_gradient(row, scale)), 0, x)[1]


WAYS = {
    "plain": reverse_gradient,
    "vmap over scales": lambda x, scale: jax.vmap(reverse_gradient)(x, jnp.full(len(x), scale)),
    "remat in scan in jit": jax.jit(jax.checkpoint(scanned)),
}


@pytest.mark.parametrize("way", WAYS)
def test_reversal(way):
    """The gradient is 2 x times -scale; a traced scale gets none, types stay, and two reversals are none."""
    reverse = WAYS[way]

    @jax.jit
    def results(x, scale):
        def loss(x, scale):
            return jnp.square(reverse(x, scale)).sum()

        narrow = jax.grad(lambda x: reverse(x, scale).sum().astype(jnp.float32))(x.astype(jnp.bfloat16))
        twice = jax.grad(lambda x: reverse(reverse(x, 2.0), 3.0).sum())(x)
        return reverse(x, scale), *jax.grad(loss, argnums=(0, 1))(x, scale), narrow, twice

    for scale in (0.0, 2.5):
        value, of_x, of_scale, narrow, twice = results(X, np.float32(scale))
        np.testing.assert_array_equal(value, X)
        np.testing.assert_allclose(of_x, -scale * 2 * X, rtol=1e-6)
        assert of_scale == 0 and narrow.dtype == jnp.bfloat16
        np.testing.assert_array_equal(twice, np.full_like(X, 6.0))


def test_threshold():
    s = np.float32([*np.linspace(-30, 30, 61), 1e-30, -1e-30, 1e5, -1e5])
    found, gradient = jax.jit(lambda s: (straight_through(s), jax.grad(lambda s: straight_through(s).sum())(s)))(s)
    np.testing.assert_array_equal(found, s > 0)  # to the bit: C would make much of a rest
    y = functions.expit(np.float64(s))
    np.testing.assert_allclose(gradient, y * (1 - y), atol=1e-7)


@pytest.fixture(scope="module")
def layer():
    """Input, texts and parameters of an adversary."""
    rng = np.random.default_rng(0)
    _, segments_BL = reference.packed(LENGTHS, LENGTH)
    hidden_BLD = jnp.asarray(rng.standard_normal((4, LENGTH, WIDTH)), jnp.float32)

    def linear():
        drawn = {"kernel": rng.standard_normal((WIDTH, WIDTH)) / 3, "bias": rng.standard_normal(WIDTH)}
        return {name: jnp.asarray(value, jnp.float32) for name, value in drawn.items()}

    return hidden_BLD, jnp.asarray(segments_BL), linear(), linear()


def scores(layer, heads=1, offset=0.0):
    """s of the layer in numpy, `BHQK`; it is kept where it is above 0."""
    hidden, _, query, key = (jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), of) for of in layer)
    q, k = (reference.linear(hidden, of).reshape(4, LENGTH, heads, -1).swapaxes(1, 2) for of in (query, key))
    return q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]) + offset


def visible(segment_ids):
    segment_ids = np.asarray(segment_ids)
    return (segment_ids[:, :, None] == segment_ids[:, None, :]) & (segment_ids > 0)[:, :, None]


def inside(segment_ids):
    return visible(segment_ids)[:, None]


@jax.jit
def masks_of(adversary, hidden, visible):
    """Return the masks of an adversary, and its scores."""
    return adversary(hidden, visible, None, None), adversary.scores(hidden)


@pytest.mark.parametrize(("heads", "offset", "strength"), [(HEADS, 0.0, 1e4), (1, 0.7, 5.0)])
def test_one_layer_equals_numpy(layer, heads, offset, strength):
    """Several masks come from two projections, one mask of many tokens from the product of both kernels."""
    hidden, segment_ids, query, keys = layer
    adversary, s = Adversary(query, keys, MaskPolicy(strength), heads, offset), scores(layer, heads, offset)
    found, raw = masks_of(adversary, hidden, visible(segment_ids))
    m = (s > 0).astype(float)
    np.testing.assert_allclose(raw, s, rtol=1e-4, atol=1e-5)
    real = np.broadcast_to(inside(layer[1]), m.shape)
    assert found.bias_BHQK.shape == m.shape and found.bias_BHQK.dtype == jnp.float32
    np.testing.assert_array_equal(np.asarray(found.bias_BHQK)[real], (-strength * (1 - m))[real])
    assert 0.2 < m[real].mean() < 0.8
    np.testing.assert_allclose(found.counts.kept_B, (m * real).sum((1, 2, 3)) / heads, rtol=1e-6)
    np.testing.assert_array_equal(found.counts.all_B, [49, 9 + 16, 4, 0])
    empty = ((m * real).sum(-1) == 0) & (np.asarray(layer[1]) > 0)[:, None]
    np.testing.assert_array_equal(found.zeroed_BHQ, empty)


def attention(relative=False):
    config = DisentangledConfig(terms="c2p,p2c", span=4) if relative else DisentangledConfig()
    init = jax.nn.initializers.normal(0.5)
    return MultiHeadAttention(HEADS, WIDTH, 0.0, jnp.float32, init, relative=config)


@flax.struct.dataclass
class Fixed:
    """An attack that has its mask already, and its slope at hand."""

    keep_BHQK: jax.Array

    def __call__(self, hidden_BLD, visible_BQK, scores, key):
        return MaskPolicy().mask(self.keep_BHQK, visible_BQK)


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "disentangled"])
def attended(request, layer):
    """(attack, bias, input) -> output and probabilities of an attention layer."""
    module, hidden = attention(request.param), layer[0]
    rows = jnp.asarray(np.random.default_rng(5).standard_normal((8, WIDTH)), jnp.float32)
    table = {"relative_RD": rows} if request.param else {}
    sides = (hidden, hidden, layer[1], layer[1])
    params = jax.jit(lambda: module.init(jax.random.key(0), *sides, **table, deterministic=True)["params"])()

    @jax.jit
    def run(attack, bias=None, hidden=hidden):
        settings = {"attack": attack, "bias": bias, "deterministic": True, "mutable": ["intermediates", "attack"]}
        sides = (hidden, hidden, layer[1], layer[1])
        out, sown = module.apply({"params": params}, *sides, **settings, **table)
        return out, sown["intermediates"]["attention_weights"][0], sown.get("attack")

    return run


def test_masked_units_get_nothing_and_empty_rows_spread_over_their_text(layer, attended):
    """Holds beside a bias of another kind, too; nothing reaches padding or another text."""
    keep = np.ones((4, 1, LENGTH, LENGTH), np.float32)
    keep[:, :, 1], keep[:, :, 0, 2] = 0, 0
    bias = np.float32(np.random.default_rng(2).standard_normal((1, HEADS, 1, LENGTH)))
    for given in (None, bias):
        _, plain, nothing = jax.tree.map(np.asarray, attended(None, given))
        _, weights, sown = jax.tree.map(np.asarray, attended(Fixed(keep), given))
        real = np.broadcast_to(inside(layer[1]), weights.shape)
        for row, texts in enumerate(LENGTHS):
            if texts:
                np.testing.assert_allclose(weights[row, :, 1, : texts[0]], 1 / texts[0], rtol=1e-6)
                np.testing.assert_array_equal(weights[row, :, 1, texts[0] :], 0)
        assert (weights[0, :, 0, 2] == 0).all()
        np.testing.assert_allclose(weights[0, :, 3:6], plain[0, :, 3:6], rtol=2e-6)
        np.testing.assert_allclose(weights[:3].sum(-1), 1, rtol=1e-5)
        assert not weights[:3][~real[:3] & (np.asarray(layer[1]) > 0)[:3, None, :, None]].any()
        assert nothing is None and sown["counts"][0].kept_B[0] == 49 - 7 - 1


def slope(layer, attended, keep):
    """Check the gradients that reach kept and masked units from a loss of the output."""
    direction = jnp.asarray(np.random.default_rng(3).standard_normal((4, LENGTH, WIDTH)), jnp.float32)
    direction = jnp.where((layer[1] > 0)[..., None], direction, 0)

    def loss(keep):
        return (attended(Fixed(keep))[0] * direction).sum()

    return np.asarray(jax.jit(jax.grad(loss))(jnp.asarray(keep, jnp.float32)))


def test_masked_units_learn_nothing_and_kept_ones_c_times_as_much(layer, attended):
    """Oracle: zero for what is masked, C p (dP - sum p dP) for what is kept, by finite differences of a small C."""
    keep = (scores(layer) > 0).astype(np.float32)
    keep[:, 0, np.arange(LENGTH), np.arange(LENGTH)] = 1  # no row is empty
    gradient = slope(layer, attended, keep)
    assert (gradient[keep == 0] == 0).all()
    real = np.broadcast_to(inside(layer[1]), keep.shape) & (keep == 1)
    assert not gradient[~real].any() and np.count_nonzero(gradient[real]) > 0.7 * real.sum()
    # To keep a unit with 1 + e/C instead of 1 adds e to its score.
    direction = np.random.default_rng(3).standard_normal((4, LENGTH, WIDTH)) * (np.asarray(layer[1]) > 0)[..., None]
    where = [index for index in np.argwhere(real) if abs(gradient[tuple(index)]) > 0.3 * np.abs(gradient).max()][:5]
    for index in where:
        values = []
        for step in (1e-2, -1e-2):
            moved = keep.copy()
            bias = np.zeros((4, 1, LENGTH, LENGTH), np.float32)
            bias[tuple(index)] = step
            values.append(
                (np.asarray(attended(Fixed(jnp.asarray(moved)), jnp.asarray(bias))[0], np.float64) * direction).sum()
            )
        np.testing.assert_allclose(gradient[tuple(index)], 1e4 * (values[0] - values[1]) / 2e-2, rtol=2e-2)


def test_empty_rows_do_not_move_the_encoder(attended, layer):
    """Where everything in a row is masked, its queries and keys cannot change the attention and get no gradient."""

    def loss(hidden, keep):
        _, weights, _ = attended(Fixed(keep), hidden=hidden)
        return (weights[0] * jnp.arange(LENGTH)[None, None, :])[:, :7].sum()  # the rows of its text

    gradient, nothing = jax.jit(jax.grad(loss)), jnp.zeros((4, 1, LENGTH, LENGTH))
    assert not np.asarray(gradient(layer[0], nothing)).any()
    assert np.asarray(gradient(layer[0], nothing + 1)).any()


@pytest.mark.parametrize("heads", [1, HEADS])
def test_the_adversary_ascends_and_its_input_learns_nothing(layer, heads):
    """The gradient is that of the sigmoid in the place of the threshold, reversed."""
    hidden, segment_ids, *learnt = layer
    slopes = jnp.asarray(np.random.default_rng(4).standard_normal((4, heads, LENGTH, LENGTH)), jnp.float32)

    def loss(params, hidden):
        found = Adversary(*params, MaskPolicy(), heads)(hidden, visible(segment_ids), None, None)
        return (found.bias_BHQK * slopes).sum() / 1e4 + found.counts.kept_B.sum()

    def soft(params):
        q, k = (hidden @ of["kernel"] + of["bias"][None, None, :] for of in params)
        q, k = (of.reshape(4, LENGTH, heads, -1).swapaxes(1, 2) for of in (q, k))
        m = jax.nn.sigmoid(q @ k.swapaxes(-1, -2) / np.sqrt(WIDTH / heads))
        return ((m - 1) * slopes).sum() + jnp.where(inside(segment_ids), m, 0).sum() / heads

    gradients = jax.jit(lambda learnt: (jax.grad(loss, argnums=(0, 1))(learnt, hidden), jax.grad(soft)(learnt)))
    (found, of_hidden), expected = gradients(tuple(learnt))
    assert not np.asarray(of_hidden).any()
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, -other, rtol=1e-3, atol=1e-5 * float(jnp.abs(other).max()))


def test_about_half_is_kept_at_first():
    """Wide layers, as they are born: scores are normal with a deviation of 0.02^2 times the width."""
    width, length = 768, 64
    rng, is_visible = np.random.default_rng(0), np.ones((2, length, length), bool)
    hidden, *kernels = (rng.standard_normal(shape, np.float32) for shape in ((2, length, width), *[(width, width)] * 2))
    linear = [{"kernel": np.float32(0.02) * kernel, "bias": np.zeros(width, np.float32)} for kernel in kernels]
    for share, heads in ((None, 1), (0.9, 1), (0.7, 12)):
        adversary = Adversary(*linear, MaskPolicy(), heads, initial_offset(share, width, 0.02))
        found, scores = masks_of(adversary, hidden, is_visible)
        np.testing.assert_allclose(found.counts.kept_B / found.counts.all_B, share or 0.5, atol=0.03)
        assert heads > 1 or np.std(scores) == pytest.approx(0.31, abs=0.02)
