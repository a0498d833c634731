"""Ports, dropout, memory, birth and GELU of an encoder; what must hold of every encoder is in `test_encoders.py`."""

import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from ag_jax.attention.attack import AttentionMask
from ag_jax.attention.kernels import reference as kernel
from ag_jax.attention.multihead import MultiHeadAttention
from ag_jax.models import layers
from ag_jax.models.encoder import Encoder, Ports
from ag_jax.models.layers import gelu
from ag_jax.models.masked_lm import PretrainingModel
from tests import reference, tiny


@pytest.fixture(scope="module")
def batch():
    return tiny.batch()


@pytest.fixture(scope="module")
def params(batch):
    return tiny.params(tiny.model(), batch)


@jax.jit
def run(params, batch, ports):
    """Return predictions and sown values of the model."""
    wanted = ["intermediates", "statistics"]
    return tiny.model().apply({"params": params}, batch, ports=ports, deterministic=True, mutable=wanted)


def weights_of(sown):
    return np.asarray(sown["intermediates"]["encoder"]["layers"]["attention"]["attention_weights"][0])


def statistics_of(sown):
    return sown["statistics"]["encoder"]["layers"]["attention"]["guided_heads"][0]


@pytest.mark.parametrize("shape", [(4, 3, 11, 11), (1, 3, 1, 11)])
def test_ports_add_to_word_vectors_and_to_the_scores_of_every_layer(params, batch, shape):
    rng = np.random.default_rng(0)
    bias, delta = (of.astype(np.float32) for of in (2 * rng.standard_normal(shape), rng.standard_normal((4, 11, 12))))
    predictions, sown = run(params, batch, Ports(embedding_delta=delta, attention_bias=bias))
    words, _, weights = reference.predict(tiny.float64(params), batch, tiny.CONFIG, bias_BHQK=bias, delta=delta)
    # The empty row is left out: what its keys get there is nobody's business.
    np.testing.assert_allclose(weights_of(sown)[:, :3], weights[:, :3], atol=2e-6)
    np.testing.assert_allclose(predictions.words_BMV[:3], words[:3], rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("after_dropout", [False, True])
def test_statistics_under_dropout(params, batch, after_dropout):
    """Statistics before dropout, and after it, where rows no longer sum to 1.

    A call draws what it drew before with the key, and layers draw apart.
    """
    model = tiny.model(attention_dropout=0.4)
    params = jax.tree.map(np.asarray, params)
    params["encoder"]["layers"] = jax.tree.map(lambda leaf: np.stack([leaf[0]] * 2), params["encoder"]["layers"])

    @jax.jit
    def sown(key):
        ports = tiny.ports(batch, assignment=(("first", 3),), after_dropout=after_dropout)
        wanted = {"rngs": {"dropout": key}, "mutable": ["intermediates", "statistics"]}
        return model.apply({"params": params}, batch, ports=ports, deterministic=False, **wanted)[1]

    found = sown(jax.random.key(0))
    weights_NBHQK, statistics = weights_of(found), statistics_of(found)
    np.testing.assert_allclose(weights_NBHQK.sum(-1), 1, rtol=1e-6)
    present_B = batch["segment_ids"].any(-1)
    plain = np.square(weights_NBHQK).sum(-1)[:, present_B]
    squares = np.asarray(statistics.distance_BHQ)[:, present_B]
    first, on_first = np.asarray(statistics.overlap_BHQ)[:, :3], weights_NBHQK[:, :3, :, :, 0]
    if not after_dropout:
        np.testing.assert_allclose(squares, plain, rtol=1e-6)
        np.testing.assert_allclose(first, on_first, rtol=1e-6)
        return
    assert np.abs(squares - plain).max() > 0.1
    scaled = np.isclose(first, on_first / 0.6, rtol=1e-5)
    assert (scaled | (first == 0)).all() and 0.4 < scaled.mean() < 0.8
    again, other = (np.asarray(statistics_of(sown(jax.random.key(seed))).overlap_BHQ)[:, :3] for seed in (0, 1))
    np.testing.assert_array_equal(first, again)
    assert ((first == 0) != (other == 0)).any() and ((first[0] == 0) != (first[1] == 0)).any()


def test_statistics_after_dropout_are_of_the_mask_that_mixes(params, batch):
    """If the values' kernel is 0 and their biases are one-hot, the output of a head is the sum of its thinned row."""
    one = jax.tree.map(lambda leaf: np.asarray(leaf)[0], params["encoder"]["layers"]["attention"])
    one["value"] = {"kernel": np.zeros((12, 3, 4), np.float32), "bias": np.ones((3, 4), np.float32)}
    # Column h of the output adds up head h.
    summing = np.eye(3, 12, dtype=np.float32)[:, None] * np.ones((1, 4, 1), np.float32) / 4
    one["output"] = {"kernel": summing, "bias": np.zeros(12, np.float32)}
    module = MultiHeadAttention(3, 12, 0.4, jnp.dtype("float32"), jax.nn.initializers.zeros)
    hidden = np.random.default_rng(0).standard_normal((4, 11, 12)).astype(np.float32)
    segments_BL = batch["segment_ids"]

    @jax.jit
    def mixed(key):
        guides = tiny.guides(batch, (("next", 3),), after_dropout=True)
        settings = {"guides": guides, "deterministic": False, "rngs": {"dropout": key}, "mutable": ["statistics"]}
        return module.apply({"params": one}, hidden, hidden, segments_BL, segments_BL, **settings)

    output, sown = mixed(jax.random.key(1))
    found = sown["statistics"]["guided_heads"][0]
    # The last row of Next overlaps with 1/n everywhere: sum(H)/n, and the sum of H is the output.
    for row, n in enumerate(tiny.LENGTHS[:3]):
        overlap_H = np.asarray(found.overlap_BHQ)[row, :, n - 1]
        np.testing.assert_allclose(overlap_H * n, np.asarray(output)[row, n - 1, :3], rtol=1e-5)


def test_a_float32_delta_leaves_the_layers_in_the_type_of_the_model(batch):
    """Without LayerNorm behind the embeddings, too, where it would widen the sum of residuals."""
    model = tiny.model(embedding_norm=False, dtype="bfloat16")
    params = jax.eval_shape(lambda: tiny.params(model, batch))
    delta = Ports(embedding_delta=jnp.zeros((4, 11, 12), jnp.float32))
    run = lambda params, ports: model.apply({"params": params}, batch, ports=ports, deterministic=True)  # noqa: E731
    types = [jax.tree.map(lambda of: of.dtype, jax.eval_shape(run, params, ports)) for ports in (Ports(), delta)]
    assert types[0] == types[1]


def test_no_array_of_batch_times_length_times_vocabulary():
    B, L, M, V = 3, 31, 4, 1009
    model, batch = tiny.model(vocabulary_size=V, max_length=L), tiny.batch((31, 20, 9), L, M, V)
    params = jax.eval_shape(lambda: tiny.params(model, batch))
    objective = tiny.guided(model)

    def loss(params, batch):
        return sum(tiny.evaluate(objective, params, batch, None, jnp.int32(0)).totals.values())

    text = jax.jit(jax.grad(loss)).lower(params, batch).compile().as_text()
    shapes = set(re.findall(r"\b[a-z]+\d+\[([\d,]+)\]", text))
    sizes = {int(np.prod([int(size) for size in shape.split(",")])) for shape in shapes}
    assert B * M * V in sizes, "the logits at the masked positions are not where this test looks for them"
    assert max(sizes) < B * L * V


def test_layers_differ_at_birth(batch):
    params = nn.unbox(jax.jit(lambda: tiny.model().init(jax.random.key(0), batch, deterministic=True))())["params"]
    kernel = np.asarray(params["encoder"]["layers"]["attention"]["query"]["kernel"])
    assert kernel.shape == (2, 12, 3, 4) and not np.isclose(kernel[0], kernel[1]).any()
    table = np.asarray(params["encoder"]["embeddings"]["word"]["embedding"])
    for values in (kernel, table):
        assert abs(values.std() / 0.02 - 1) < 4 / np.sqrt(2 * values.size)
    assert params["encoder"]["embeddings"]["position"]["embedding"].shape == (13 + 2, 12)
    assert "next_head" in params and "kernel" not in params["word_head"], "the output layer is tied to the input"


def test_encoder_alone_and_model_without_next_sentence(params, batch):
    """With a mask decoder, the encoder's hidden states are those of the ordinary last layer."""
    config = tiny.config(**tiny.ENCODERS["deberta_v2"])
    of_encoder = tiny.params(PretrainingModel(config), batch)["encoder"]
    hidden = tiny.apply(Encoder(config), of_encoder, batch)
    expected, decoded, _ = reference.encode_and_decode(tiny.float64(of_encoder), batch, config)
    present = batch["segment_ids"] > 0
    np.testing.assert_allclose(hidden[present], expected[present], rtol=1e-5, atol=2e-5)
    assert np.abs(decoded - expected)[present].max() > 0.1
    without = {"params": {name: params[name] for name in ("encoder", "word_head")}}
    shapes = jax.eval_shape(lambda: PretrainingModel(tiny.CONFIG).apply(without, batch, deterministic=True))
    assert shapes.next_B2 is None and shapes.hidden_BMD.shape == (4, 5, 12) and shapes.embedding_VD.shape == (37, 12)


X = np.linspace(-12, 12, 4001)


def test_gelu_and_its_derivatives_of_both_modes_and_of_second_order():
    @jax.jit
    def derivatives(x):
        slope = jax.grad(gelu)
        pushed = jax.jvp(gelu, (x,), (jnp.full_like(x, 3.0),))[1]
        return gelu(x), jax.vmap(slope)(x), pushed, jax.vmap(jax.grad(slope))(x)

    value, slope, pushed, curvature = derivatives(np.float32(X))
    np.testing.assert_allclose(value, X * stats.norm.cdf(X), rtol=2e-6, atol=1e-6)
    first, second = stats.norm.cdf(X) + X * stats.norm.pdf(X), (2 - X**2) * stats.norm.pdf(X)
    np.testing.assert_allclose(slope, first, atol=1e-6)
    np.testing.assert_allclose(pushed, 3 * first, atol=3e-6)
    np.testing.assert_allclose(curvature, second, atol=2e-6)
    # In bfloat16 it is rounded, but does not cancel.
    x = X.astype(jnp.bfloat16)
    value, slope, *_ = derivatives(x)
    exact = np.float64(x) * stats.norm.cdf(np.float64(x))
    assert value.dtype == slope.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.float64(value), exact, rtol=2**-7, atol=2e-6)


def test_an_attack_on_some_queries_reads_the_weights_of_all_positions_with_their_bias():
    """As the mask decoder asks with `mode=bias`: the queries are two of the source's five positions."""
    rng = np.random.default_rng(0)
    source_BKD = rng.standard_normal((1, 5, tiny.CONFIG.width)).astype(np.float32)
    bias_BHLL = 3 * rng.standard_normal((1, tiny.CONFIG.heads, 5, 5)).astype(np.float32)
    segments_BK, positions_BQ, read = np.ones((1, 5), np.int32), np.array([[1, 3]]), []
    module = layers.attention(tiny.CONFIG, kernel.attend)

    def attack(hidden_BLD, visible_BQK, probabilities, key):
        read.append(probabilities())
        return AttentionMask(jnp.zeros((1, 1, 5, 5)), counts=jnp.zeros(2))

    @jax.jit
    def both():
        params = module.init(jax.random.key(0), *[source_BKD] * 2, *[segments_BK] * 2, deterministic=True)

        def call(query_BQD, segments_BQ, bias, **more):
            settings = {"bias": bias, "attack": attack, "deterministic": True}
            return module.apply(params, query_BQD, source_BKD, segments_BQ, segments_BK, **settings, **more)

        whole = call(source_BKD, segments_BK, bias_BHLL)
        part = call(source_BKD[:, [1, 3]], segments_BK[:, :2], bias_BHLL, positions_BQ=positions_BQ)
        return whole, part, read

    whole, part, of_both = both()
    np.testing.assert_allclose(*of_both, rtol=1e-6)
    np.testing.assert_allclose(part, np.asarray(whole)[:, [1, 3]], rtol=1e-5, atol=1e-6)


def test_scaled_initial_weights_are_cut_off_at_two_deviations_and_smaller_in_the_last_layers(batch):
    """The last linear layers of attention and feed-forward part are scaled by 1 / sqrt(2 layers)."""
    model = tiny.model(**tiny.MODERNBERT)
    init = jax.jit(lambda: nn.unbox(model.init(jax.random.key(0), batch, deterministic=True))["params"]["encoder"])
    for path, leaf in jax.tree_util.tree_leaves_with_path(init()["layers"]):
        if path[-1].key == "kernel":
            is_last = path[-2].key in ("output", "feedforward_out")
            bound = 2 * tiny.CONFIG.initializer_range / (np.sqrt(2 * 5) if is_last else 1)
            assert 0.98 < np.abs(leaf).max() / bound <= 1, path
