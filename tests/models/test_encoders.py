"""What must hold of every encoder, asked of each by name: a new one is a line in `tiny.ENCODERS`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ag_jax.attention.kernels import reference as fused_reference
from ag_jax.attention.kernels.dispatch import Fused
from ag_jax.attention.kernels.tpu import attention as tpu
from ag_jax.models.encoder import Ports
from ag_jax.models.masked_lm import PretrainingModel
from tests import reference, tiny
from tests.cases import some

ALL = tiny.ENCODERS | tiny.ABLATIONS
ROWS = [0, 1, 2, 4, 5]  # those with texts
ASSIGNMENT = (("next", 1), ("first", 2))
# Those that have every part between them.
USUAL = ("deberta_v1", "deberta_v2", "modernbert", "one_layer", "neobert", "biased_input")
# To differentiate costs most to compile; these have every part between them.
DIFFERENTIATED = some(
    ["deberta_v1", "deberta_v2", "no_c2p", "modernbert", "neobert"], "deberta_v1", "modernbert", "neobert"
)
DROPOUT = {"dropout": 0.2, "attention_dropout": 0.2}
# Settings of encoders that are differentiated: one pass and complete groups of layers, which compile faster; windows.
CHANGED = {
    "deberta_v1": {"mask_decoder_passes": 1},
    "modernbert": {"layers": 4},
    "neobert": {"window": 4, "global_every": None},
}


@pytest.fixture(scope="module")
def batch():
    return tiny.mixed_batch()


@pytest.fixture(scope="module", params=some(ALL, *USUAL))
def case(request, batch):
    """One encoder's config, parameters, a function of these and a batch, and what it says and shows of a batch."""
    model = tiny.model(**ALL[request.param])
    params = tiny.params(model, batch)

    @jax.jit
    def run(params, batch):
        ports = Ports(guides=tiny.guides(batch, ASSIGNMENT))
        wanted = ["intermediates", "statistics"]
        return model.apply({"params": params}, batch, ports=ports, deterministic=True, mutable=wanted)

    return model.config, params, run, run(params, batch)


def weights_of(found):
    return np.asarray(found[1]["intermediates"]["encoder"]["layers"]["attention"]["attention_weights"][0])


def test_equals_numpy(case, batch):
    """Words, next sentences, attention of all layers, and the statistics of guided heads."""
    config, params, _, found = case
    words, following, weights = reference.predict(tiny.float64(params), batch, config)
    assert weights_of(found).shape == (config.layers, 6, 3, 11, 11)  # NBHQK
    # What keys and queries of an empty row get is nobody's business.
    np.testing.assert_allclose(weights_of(found)[:, ROWS], weights[:, ROWS], atol=2e-6)
    np.testing.assert_allclose(found[0].words_BMV[ROWS,], words[ROWS,], rtol=1e-5, atol=2e-5)
    np.testing.assert_allclose(found[0].next_B2[ROWS,], following[ROWS,], rtol=1e-5, atol=2e-5)
    assert weights.max() > 0.8 and np.abs(words).max() > 1, "the comparison would be weak on even attention"
    statistics = found[1]["statistics"]["encoder"]["layers"]["attention"]["guided_heads"][0]
    exact = np.float64(weights_of(found))
    np.testing.assert_allclose(statistics.distance_BHQ[:, ROWS], (exact**2).sum(-1)[:, ROWS], rtol=1e-5)
    if config.window is None:  # of windows: `tests/objectives/test_guided_layers.py`
        for row, query in np.argwhere(batch["segment_ids"] > 0):
            for head, name in enumerate(("next", "first", "first")):
                P_K = reference.dense_pattern(name, batch["tokens"][row], batch["segment_ids"][row])[query]
                overlap = exact[:, row, head, query] @ P_K
                np.testing.assert_allclose(statistics.overlap_BHQ[:, row, head, query], overlap, rtol=1e-5, atol=1e-7)


def test_padding_changes_nothing(case, batch):
    """Neither what it holds, nor where it is, nor which texts lie behind it."""
    texts = batch["segment_ids"] > 0
    changed = {**batch, "tokens": np.where(texts, batch["tokens"], 17).astype(np.int32)}
    changed["token_type_ids"] = np.where(texts, batch["token_type_ids"], 1).astype(np.int32)
    _, params, run, found = case
    after = run(params, changed)
    together_BQK = batch["segment_ids"][:, :, None] == batch["segment_ids"][:, None, :]
    together_NBHQK = np.broadcast_to((together_BQK & texts[:, :, None])[:, None], weights_of(after).shape)
    np.testing.assert_array_equal(weights_of(found)[together_NBHQK], weights_of(after)[together_NBHQK])
    used = batch["masked_weights"] > 0
    words_BMV = np.asarray(found[0].words_BMV)
    np.testing.assert_array_equal(words_BMV[used], after[0].words_BMV[used])

    alone, behind, right = (weights_of(found)[:, row] for row in (1, 4, 5))
    np.testing.assert_allclose(behind[:, :, 3:10, 3:10], alone[:, :, :7, :7], atol=2e-6)
    np.testing.assert_allclose(right[:, :, 4:, 4:], alone[:, :, :7, :7], atol=2e-6)
    assert used[1].any()
    for row in (4, 5):
        np.testing.assert_allclose(words_BMV[row][used[1]], words_BMV[1][used[1]], rtol=1e-5, atol=2e-5)


@functools.cache
def slope_of(name, remat="none", scan_layers=True, attend=fused_reference.attend):
    """Parameters of an encoder, a loss with dropout and guidance in it, and the loss and gradient there."""
    batch = tiny.mixed_batch()
    config = tiny.config(**ALL[name] | CHANGED.get(name, {}) | DROPOUT, remat=remat, scan_layers=scan_layers)
    model = PretrainingModel(config, next_sentence=True, attend=attend)
    objective, params = tiny.guided(model), jax.tree.map(np.asarray, tiny.params(model, batch))

    @jax.jit
    @jax.value_and_grad
    def loss(params):
        outcome = tiny.evaluate(objective, params, batch, {"dropout": jax.random.key(1)}, jnp.int32(0))
        return sum(outcome.totals.values())

    return params, loss, jax.tree.map(np.asarray, loss(params))


def check_same_slope(slope, other, rtol, atol):
    """Compare losses and gradients, these up to a part of the largest number of all leaves."""
    (loss, gradient), (other_loss, other_gradient) = slope, other
    np.testing.assert_allclose(loss, other_loss, rtol=rtol)
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(other_gradient))
    for one, of_other in zip(jax.tree.leaves(gradient), jax.tree.leaves(other_gradient), strict=True):
        np.testing.assert_allclose(one, of_other, rtol=10 * rtol, atol=atol * largest)


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_the_gradient_reaches_every_parameter_and_is_the_slope(name):
    """And an empty row brings no NaN."""
    params, loss, (value, gradient) = slope_of(name)
    assert np.isfinite(value)
    relative = tiny.config(**ALL[name]).relative
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
        of = jax.tree_util.keystr(path)
        assert np.isfinite(leaf).all(), of
        # Biases of keys without p2c add one number to all scores of a row, which softmax does not see.
        unseen = "['relative_key']['bias']" in of or ("['key']['bias']" in of and "p2c" not in relative.terms)
        assert np.abs(leaf).max() > (0 if unseen else 1e-6), of
    rng = np.random.default_rng(3)
    # With the signs of the gradient, so that its parts add up to a slope far above the rounding of the loss.
    way = jax.tree.map(lambda of: np.sign(of) * np.abs(rng.standard_normal(of.shape)).astype(np.float32), gradient)
    ends = [loss(jax.tree.map(lambda leaf, to, size=size: leaf + size * to, params, way))[0] for size in (1e-4, -1e-4)]
    slope = sum(np.vdot(*leaves) for leaves in zip(*map(jax.tree.leaves, (gradient, way)), strict=True))
    np.testing.assert_allclose((ends[0] - ends[1]) / 2e-4, slope, rtol=2e-2)


@pytest.mark.parametrize(
    ("name", "remat", "scan_layers"),
    some(
        [
            ("modernbert", "layer", True),
            ("modernbert", "dots", False),
            ("deberta_v1", "dots", True),
            ("deberta_v1", "none", False),
            ("neobert", "dots", False),
        ],
        ("neobert", "dots", False),
    ),
)
def test_recomputation_and_the_loop_over_layers_change_nothing(name, remat, scan_layers):
    """Without the loop, too, parameters have an axis over the layers, and the same elements are dropped."""
    params, loss, slope = slope_of(name, remat, scan_layers)
    plain_params, _, plain = slope_of(name)
    jax.tree.map(np.testing.assert_array_equal, params, plain_params)
    check_same_slope(slope, plain, 1e-6, 1e-6)
    program = str(jax.make_jaxpr(loss)(params))
    # Recomputation of attention alone, which the reference always has, has no policy.
    assert ("policy=<function" in program) == (remat != "none")
    assert ("unroll=2" in program) == (not scan_layers)


@pytest.mark.parametrize("name", some(["deberta_v1", "modernbert", "neobert"], "neobert"))
def test_a_kernel_gives_the_same_loss_and_gradient(name):
    """Scores of distances reach a kernel as a bias of full size, with dropout, guidance and the mask decoder; windows
    are known to the kernel.
    """
    *_, slope = slope_of(name, attend=Fused(functools.partial(tpu.attend, interpret=True)))
    *_, plain = slope_of(name)
    check_same_slope(slope, plain, 1e-5, 1e-5)


@pytest.mark.parametrize("name", some(["roberta", "deberta_v1", "deberta_v2"], "deberta_v2"))
def test_bfloat16_is_close_and_keeps_what_must_be_exact(batch, name):
    model = tiny.model(dtype="bfloat16", **ALL[name])
    params = tiny.params(model, batch)
    words, _, weights = reference.predict(tiny.float64(params), batch, model.config)
    settings = {"deterministic": True, "mutable": ["intermediates", "statistics"]}
    found = jax.jit(lambda params: model.apply({"params": params}, batch, ports=tiny.ports(batch), **settings))(params)
    said, sown = found
    exact = jax.tree.leaves((said.words_BMV, said.next_B2, said.bias_V, sown))
    assert {leaf.dtype for leaf in exact} == {jnp.dtype("float32")}
    assert said.hidden_BMD.dtype == said.embedding_VD.dtype == jnp.bfloat16
    assert 1e-5 < np.abs(said.words_BMV - words)[ROWS,].max() / np.abs(words).max() < 0.05
    assert np.abs(weights_of(found) - weights)[:, ROWS].max() < 0.05
    np.testing.assert_allclose(weights_of(found).sum(-1), 1, rtol=1e-5)
