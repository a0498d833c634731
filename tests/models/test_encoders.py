"""What must hold of every encoder, asked of each by name: a new one is a line in `tiny.ENCODERS`."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ag_jax.attention import guidance
from ag_jax.attention.kernels import reference as fused_reference
from ag_jax.attention.kernels.dispatch import Fused
from ag_jax.attention.kernels.tpu import attention as tpu
from ag_jax.attention.visibility import band_of
from ag_jax.models.encoder import Encoder, Ports
from ag_jax.models.masked_lm import PretrainingModel
from tests import reference, tiny
from tests.cases import some

ALL = tiny.ENCODERS | tiny.ABLATIONS
ROWS = [0, 1, 2, 4, 5]  # those with texts
ASSIGNMENT = (("next", 1), ("first", 2))
# To differentiate costs most to compile; these have every part between them.
DIFFERENTIATED = some(
    ["roberta", "electra", "deberta_v1", "deberta_v2", "no_c2p", "modernbert", "neobert"],
    "deberta_v1",
    "modernbert",
    "neobert",
)
# Those whose parts others have between them.
CONTAINED = ("bert", "electra", "deberta_v3", "no_emd", "no_p2c", "no_emd_c2p")
DROPOUT = {"dropout": 0.2, "attention_dropout": 0.2}


@dataclasses.dataclass
class Case:
    """One encoder, its parameters, and what it says and shows of a batch."""

    name: str
    model: PretrainingModel
    params: Any
    run: Any
    found: Any


@pytest.fixture(scope="module")
def batch():
    return tiny.mixed_batch()


@pytest.fixture(scope="module", params=some(ALL, *(name for name in ALL if name not in CONTAINED)))
def case(request, batch):
    model = tiny.model(**ALL[request.param])
    params = tiny.params(model, batch)

    @jax.jit
    def run(params, batch):
        ports = Ports(guides=tiny.guides(batch, ASSIGNMENT))
        wanted = ["intermediates", "statistics"]
        return model.apply({"params": params}, batch, ports=ports, deterministic=True, mutable=wanted)

    return Case(request.param, model, params, run, run(params, batch))


@pytest.fixture(scope="module")
def expected(case, batch):
    """Word logits, next-sentence logits and attention of the numpy model."""
    return reference.predict(tiny.float64(case.params), batch, case.model.config)


def weights_of(found):
    return np.asarray(found[1]["intermediates"]["encoder"]["layers"]["attention"]["attention_weights"][0])


def test_equals_numpy(case, batch, expected):
    words, following, weights = expected
    layers = case.model.config.layers
    assert weights_of(case.found).shape == (layers, 6, 3, 11, 11)  # NBHQK
    # What keys and queries of an empty row get is nobody's business.
    np.testing.assert_allclose(weights_of(case.found)[:, ROWS], weights[:, ROWS], atol=2e-6)
    np.testing.assert_allclose(case.found[0].words_BMV[ROWS,], words[ROWS,], rtol=1e-5, atol=2e-5)
    np.testing.assert_allclose(case.found[0].next_B2[ROWS,], following[ROWS,], rtol=1e-5, atol=2e-5)
    assert weights.max() > 0.8 and np.abs(words).max() > 1, "the comparison would be weak on even attention"


def test_hidden_states_beside_a_mask_decoder_are_those_of_the_ordinary_last_layer(batch):
    model = tiny.model(**ALL["deberta_v2"])
    params = tiny.params(model, batch)["encoder"]
    encode = jax.jit(lambda params: Encoder(model.config).apply({"params": params}, batch, deterministic=True))
    hidden, decoded, _ = reference.encode_and_decode(tiny.float64(params), batch, model.config)
    present = batch["segment_ids"] > 0
    np.testing.assert_allclose(encode(params)[present], hidden[present], rtol=1e-5, atol=2e-5)
    assert np.abs(decoded - hidden)[present].max() > 0.1


def test_padding_changes_nothing(case, batch):
    """Neither what it holds, nor where it is, nor which texts lie behind it."""
    texts = batch["segment_ids"] > 0
    changed = {**batch, "tokens": np.where(texts, batch["tokens"], 17).astype(np.int32)}
    changed["token_type_ids"] = np.where(texts, batch["token_type_ids"], 1).astype(np.int32)
    after = case.run(case.params, changed)
    together_BQK = batch["segment_ids"][:, :, None] == batch["segment_ids"][:, None, :]
    together_NBHQK = np.broadcast_to((together_BQK & texts[:, :, None])[:, None], weights_of(after).shape)
    np.testing.assert_array_equal(weights_of(case.found)[together_NBHQK], weights_of(after)[together_NBHQK])
    used = batch["masked_weights"] > 0
    words_BMV = np.asarray(case.found[0].words_BMV)
    np.testing.assert_array_equal(words_BMV[used], after[0].words_BMV[used])

    alone, behind, right = (weights_of(case.found)[:, row] for row in (1, 4, 5))
    np.testing.assert_allclose(behind[:, :, 3:10, 3:10], alone[:, :, :7, :7], atol=2e-6)
    np.testing.assert_allclose(right[:, :, 4:, 4:], alone[:, :, :7, :7], atol=2e-6)
    assert used[1].any()
    for row in (4, 5):
        np.testing.assert_allclose(words_BMV[row][used[1]], words_BMV[1][used[1]], rtol=1e-5, atol=2e-5)


def test_statistics_are_those_of_the_weights(case, batch):
    found = case.found[1]["statistics"]["encoder"]["layers"]["attention"]["guided_heads"][0]
    assert found.sum_of_squares_BHQ.shape == (case.model.config.layers, 6, 3, 11)  # NBHQ
    guides, segments_BL = tiny.guides(batch, ASSIGNMENT), jnp.asarray(batch["segment_ids"])
    for layer, weights_BHQK in enumerate(weights_of(case.found)):
        config = case.model.config
        is_local = config.layer_kinds[layer % len(config.layer_kinds)]
        band = band_of(causal=False, window=config.window if is_local else None)
        wanted = guidance.statistics(jnp.asarray(weights_BHQK), guides, segments_BL, band=band)
        np.testing.assert_allclose(found.sum_of_squares_BHQ[layer], wanted.sum_of_squares_BHQ, rtol=1e-6)
        np.testing.assert_allclose(found.overlap_BHQ[layer], wanted.overlap_BHQ, rtol=1e-6, atol=1e-8)


@functools.cache
def slope_of(name, remat="none", scan_layers=True):
    """Parameters of an encoder, a loss with dropout and guidance in it, and the loss and gradient there."""
    batch = tiny.mixed_batch()
    model = tiny.model(**ALL[name] | DROPOUT, remat=remat, scan_layers=scan_layers)
    objective, params = tiny.guided(model), tiny.params(model, batch)

    @jax.jit
    @jax.value_and_grad
    def loss(params):
        outcome = tiny.evaluate(objective, params, batch, {"dropout": jax.random.key(1)}, jnp.int32(0))
        return sum(outcome.totals.values())

    return params, loss, loss(params)


def is_unseen(name, relative):
    """Parameters that add one number to all scores of a row, which softmax does not see:
    biases of keys, without p2c.
    """
    if "['relative_key']['bias']" in name:
        return True
    return "['key']['bias']" in name and "p2c" not in relative.terms


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_the_gradient_reaches_every_parameter_and_an_empty_row_brings_no_nan(name):
    _, _, (loss, gradient) = slope_of(name)
    assert np.isfinite(loss)
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
        of = jax.tree_util.keystr(path)
        assert np.isfinite(leaf).all(), of
        unseen = is_unseen(of, tiny.config(**ALL[name]).relative)
        assert np.abs(leaf).max() > (0 if unseen else 1e-6), of


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_the_gradient_is_the_slope(name):
    params, loss, (_, gradient) = slope_of(name)
    rng = np.random.default_rng(3)
    # With the signs of the gradient, so that its parts add up to a slope far above the rounding of the loss.
    direction = jax.tree.map(
        lambda leaf: jnp.sign(leaf) * jnp.asarray(np.abs(rng.standard_normal(leaf.shape)), jnp.float32), gradient
    )
    ahead, behind = (
        loss(jax.tree.map(lambda leaf, way, step=step: leaf + step * way, params, direction))[0]
        for step in (1e-4, -1e-4)
    )
    slope = sum(jax.tree.leaves(jax.tree.map(lambda one, other: (one * other).sum(), gradient, direction)))
    np.testing.assert_allclose((ahead - behind) / 2e-4, slope, rtol=2e-2)


@pytest.mark.parametrize(
    ("name", "remat", "scan_layers"),
    some(
        [
            ("roberta", "layer", True),
            ("roberta", "dots", False),
            ("modernbert", "dots", False),
            ("deberta_v2", "dots", True),
            ("deberta_v2", "none", False),
        ],
        ("modernbert", "dots", False),
    ),
)
def test_recomputation_and_the_loop_over_layers_change_nothing(name, remat, scan_layers):
    """Without the loop, too, parameters have an axis over the layers, and the same elements are dropped."""
    params, loss_fn, (loss, found) = slope_of(name, remat, scan_layers)
    plain_params, _, (plain_loss, plain) = slope_of(name)
    jax.tree.map(np.testing.assert_array_equal, params, plain_params)
    np.testing.assert_allclose(loss, plain_loss, rtol=1e-6)
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(plain))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6 * largest)
    program = str(jax.make_jaxpr(loss_fn)(params))
    # Recomputation of attention alone, which the reference always has, has no policy.
    assert ("policy=<function" in program) == (remat != "none")
    config = tiny.config(**ALL[name])
    groups = config.layers // len(config.layer_kinds)
    assert (f"unroll={groups}" in program) == (not scan_layers)


@pytest.mark.parametrize("name", some(["deberta_v1", "modernbert"], "modernbert"))
def test_a_kernel_gives_the_same_loss_and_gradient(batch, name):
    """Scores of distances reach a kernel as a bias of full size, with dropout, guidance and the mask decoder; windows
    are known to the kernel.
    """
    settings = {
        "deberta_v1": tiny.DEBERTA_V1 | {"layers": 1, "mask_decoder_passes": 1},
        "modernbert": tiny.MODERNBERT | {"layers": 2},
    }
    config = tiny.config(**settings[name] | {"attention_dropout": 0.2})
    params = tiny.params(PretrainingModel(config, next_sentence=True), batch)

    def slope(attend):
        objective = tiny.guided(PretrainingModel(config, next_sentence=True, attend=attend))

        @jax.jit
        @jax.value_and_grad
        def loss(params):
            outcome = tiny.evaluate(objective, params, batch, {"dropout": jax.random.key(1)}, jnp.int32(0))
            return sum(outcome.totals.values())

        return loss(params)

    plain_loss, plain = slope(fused_reference.attend)
    loss, found = slope(Fused(functools.partial(tpu.attend, interpret=True)))
    np.testing.assert_allclose(loss, plain_loss, rtol=1e-5)
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(plain))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5 * largest)


@pytest.mark.parametrize("name", some(["roberta", "deberta_v1", "deberta_v2"], "deberta_v2"))
def test_bfloat16_is_close_and_keeps_what_must_be_exact(batch, name):
    model = tiny.model(dtype="bfloat16", **ALL[name])
    params = tiny.params(model, batch)
    words, _, weights = reference.predict(tiny.float64(params), batch, model.config)
    wanted = ["intermediates", "statistics"]
    found = jax.jit(
        lambda params: model.apply(
            {"params": params}, batch, ports=tiny.ports(batch), deterministic=True, mutable=wanted
        )
    )(params)
    said, sown = found
    assert {leaf.dtype for leaf in jax.tree.leaves((said.words_BMV, said.next_B2, said.bias_V, sown))} == {
        jnp.dtype("float32")
    }
    assert said.hidden_BMD.dtype == said.embedding_VD.dtype == jnp.bfloat16
    error = np.abs(said.words_BMV - words)[ROWS,].max() / np.abs(words).max()
    assert 1e-5 < error < 0.05
    assert np.abs(weights_of(found) - weights)[:, ROWS].max() < 0.05
    np.testing.assert_allclose(weights_of(found).sum(-1), 1, rtol=1e-5)


@pytest.mark.parametrize("name", some(["roberta", "deberta_v2", "modernbert"], "deberta_v2", "modernbert"))
def test_program_does_not_grow_with_depth(batch, name):
    def lines(layers):
        model = tiny.model(**ALL[name] | {"layers": layers})
        objective, params = tiny.guided(model), jax.eval_shape(lambda: tiny.params(model, batch))

        def loss(params):
            return sum(tiny.evaluate(objective, params, batch, None, jnp.int32(0)).totals.values())

        return jax.jit(jax.grad(loss)).lower(params).as_text().count("\n")

    assert lines(2) == lines(8)
