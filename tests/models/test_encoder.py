"""Ports, dropout, memory and birth of an encoder; what must hold of every encoder is in `test_encoders.py`."""

import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ag_jax.attention.multihead import MultiHeadAttention
from ag_jax.models.encoder import Encoder, Ports
from ag_jax.models.masked_lm import PretrainingModel
from tests import reference, tiny


@pytest.fixture(scope="module")
def model():
    return tiny.model()


@pytest.fixture(scope="module")
def batch():
    return tiny.batch()


@pytest.fixture(scope="module")
def params(model, batch):
    return tiny.params(model, batch)


@pytest.fixture(scope="module")
def apply(model):
    """The model with everything that it can sow."""

    @jax.jit
    def run(params, batch, ports=Ports()):
        wanted = ["intermediates", "statistics"]
        predictions, sown = model.apply({"params": params}, batch, ports=ports, deterministic=True, mutable=wanted)
        return predictions, sown

    return run


def weights_of(sown):
    return sown["intermediates"]["encoder"]["layers"]["attention"]["attention_weights"][0]


def statistics_of(sown):
    return sown["statistics"]["encoder"]["layers"]["attention"]["guided_heads"][0]


def test_rows_sum_to_one_and_padding_is_seen_by_padding_alone(apply, params, batch):
    weights_NBHQK = np.asarray(weights_of(apply(params, batch)[1]))
    segments_BL = batch["segment_ids"]
    np.testing.assert_allclose(weights_NBHQK.sum(-1), 1, rtol=1e-6)
    together_BQK = segments_BL[:, :, None] == segments_BL[:, None, :]
    np.testing.assert_array_equal(weights_NBHQK > 0, np.broadcast_to(together_BQK[:, None], weights_NBHQK.shape))


@pytest.mark.parametrize("after_dropout", [False, True])
def test_statistics_under_dropout(params, batch, after_dropout):
    """Of the softmax itself, or of what dropout leaves of it: then rows no longer sum to 1."""
    model = tiny.model(attention_dropout=0.4)
    ports = tiny.ports(batch, assignment=(("first", 3),), after_dropout=after_dropout)

    @jax.jit
    def run(key):
        wanted = ["intermediates", "statistics"]
        return model.apply(
            {"params": params}, batch, ports=ports, deterministic=False, rngs={"dropout": key}, mutable=wanted
        )

    _, sown = run(jax.random.key(0))
    weights_NBHQK, found = np.asarray(weights_of(sown)), statistics_of(sown)
    np.testing.assert_allclose(weights_NBHQK.sum(-1), 1, rtol=1e-6)
    present_B = batch["segment_ids"].any(-1)
    plain = np.square(weights_NBHQK).sum(-1)[:, present_B]
    squares = np.asarray(found.sum_of_squares_BHQ)[:, present_B]
    first, on_first = np.asarray(found.overlap_BHQ)[:, :3], weights_NBHQK[:, :3, :, :, 0]
    if after_dropout:
        assert np.abs(squares - plain).max() > 0.1
        scaled = np.isclose(first, on_first / 0.6, rtol=1e-5)
        assert (scaled | (first == 0)).all() and 0.4 < scaled.mean() < 0.8
    else:
        np.testing.assert_allclose(squares, plain, rtol=1e-6)
        np.testing.assert_allclose(first, on_first, rtol=1e-6)


def test_statistics_after_dropout_are_of_the_mask_that_mixes(params, batch):
    """With the values' kernel at 0 and one-hot biases the output of a head is the sum of its thinned row."""
    one = jax.tree.map(lambda leaf: leaf[0], params["encoder"]["layers"]["attention"])
    one["value"] = {"kernel": jnp.zeros((12, 3, 4)), "bias": jnp.ones((3, 4))}
    # Column h of the output adds up head h.
    one["output"] = {
        "kernel": jnp.stack([jnp.eye(3, 12, k=0)[h] for h in range(3)])[:, None, :] * jnp.ones((1, 4, 1)) / 4,
        "bias": jnp.zeros(12),
    }
    module = MultiHeadAttention(3, 12, 0.4, jnp.dtype("float32"), jax.nn.initializers.zeros)
    hidden = jnp.asarray(np.random.default_rng(0).standard_normal((4, 11, 12)), jnp.float32)
    guides = tiny.guides(batch, (("next", 3),), after_dropout=True)
    segments_BL = jnp.asarray(batch["segment_ids"])

    @jax.jit
    def run(key):
        settings = {"guides": guides, "deterministic": False, "rngs": {"dropout": key}, "mutable": ["statistics"]}
        return module.apply({"params": one}, hidden, hidden, segments_BL, segments_BL, **settings)

    output, sown = run(jax.random.key(1))
    found = sown["statistics"]["guided_heads"][0]
    # The last row of Next overlaps with 1/n everywhere: sum(H)/n, and the sum of H is the output.
    for row, n in enumerate(tiny.LENGTHS[:3]):
        np.testing.assert_allclose(found.overlap_BHQ[row, :, n - 1] * n, output[row, n - 1, :3], rtol=1e-5)


def test_nothing_is_sown_that_nobody_asked_for(model, params, batch):
    def run(mutable, ports=Ports()):
        shapes = jax.eval_shape(
            lambda: model.apply({"params": params}, batch, ports=ports, deterministic=True, mutable=mutable)
        )
        return set(shapes[1])

    ports = tiny.ports(batch)
    assert run([]) == run([], ports) == set()
    assert run(["statistics"]) == set()
    assert run(["statistics"], ports) == {"statistics"}
    assert run(["intermediates"], ports) == {"intermediates"}
    assert run(["intermediates", "statistics"], ports) == {"intermediates", "statistics"}


def test_embedding_delta_is_added_to_the_word_vectors(apply, params, batch):
    delta = np.random.default_rng(0).standard_normal((4, 11, 12)).astype(np.float32)
    predictions, _ = apply(params, batch, Ports(embedding_delta=jnp.asarray(delta)))
    words, *_ = reference.predict(tiny.float64(params), batch, tiny.CONFIG, delta=delta)
    np.testing.assert_allclose(predictions.words_BMV, words, rtol=1e-5, atol=1e-5)


def test_a_float32_delta_leaves_the_layers_in_the_type_of_the_model(batch):
    """Without LayerNorm behind the embeddings, too, where it would widen the sum of residuals."""
    model = tiny.model(embedding_norm=False, dtype="bfloat16")
    params = tiny.params(model, batch)
    delta = Ports(embedding_delta=jnp.zeros((4, 11, 12), jnp.float32))
    traced = [
        jax.eval_shape(lambda ports: model.apply({"params": params}, batch, ports=ports, deterministic=True), ports)
        for ports in (Ports(), delta)
    ]
    assert jax.tree.map(lambda leaf: leaf.dtype, traced[0]) == jax.tree.map(lambda leaf: leaf.dtype, traced[1])


@pytest.mark.parametrize("shape", [(4, 3, 11, 11), (4, 1, 11, 11), (1, 3, 1, 11)])
def test_attention_bias_is_added_to_the_scores_of_every_layer(apply, params, batch, shape):
    bias = 2 * np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    predictions, sown = apply(params, batch, Ports(attention_bias=jnp.asarray(bias)))
    words, _, weights = reference.predict(tiny.float64(params), batch, tiny.CONFIG, bias_BHQK=bias)
    # The empty row is left out: what its keys get there is nobody's business.
    np.testing.assert_allclose(weights_of(sown)[:, :3], weights[:, :3], atol=2e-6)
    np.testing.assert_allclose(predictions.words_BMV[:3], words[:3], rtol=1e-5, atol=2e-5)


def test_ports_can_be_differentiated(model, params, batch):
    def loss(ports):
        return model.apply({"params": params}, batch, ports=ports, deterministic=True).words_BMV[0, 0].sum()

    ports = Ports(embedding_delta=jnp.zeros((4, 11, 12)), attention_bias=jnp.zeros((4, 1, 11, 11)))
    gradient = jax.jit(jax.grad(loss))(ports)
    for leaf in (gradient.embedding_delta, gradient.attention_bias):
        assert np.abs(leaf[0]).max() > 1e-6, "the perturbed example answers"
        assert not np.asarray(leaf[1:]).any(), "the other examples do not"


def test_two_calls_draw_the_same_dropout_and_two_layers_do_not(params, batch):
    model = tiny.model(attention_dropout=0.5, dropout=0.0)
    same_layer = jax.tree.map(lambda leaf: leaf, params)
    same_layer["encoder"]["layers"] = jax.tree.map(
        lambda leaf: jnp.stack([leaf[0], leaf[0]]), params["encoder"]["layers"]
    )

    @jax.jit
    def overlaps(key):
        guides = tiny.guides(batch, (("first", 3),), after_dropout=True)
        _, sown = model.apply(
            {"params": same_layer},
            batch,
            ports=Ports(guides=guides),
            deterministic=False,
            rngs={"dropout": key},
            mutable=["statistics"],
        )
        return statistics_of(sown).overlap_BHQ

    one = np.asarray(overlaps(jax.random.key(0)))
    np.testing.assert_array_equal(one, overlaps(jax.random.key(0)))
    assert ((one == 0) != (overlaps(jax.random.key(1)) == 0)).any()
    assert ((one[0] == 0) != (one[1] == 0)).any()


def array_sizes(text):
    """Numbers of elements of the arrays that a compiled program mentions."""
    return {
        int(np.prod([int(size) for size in shape.split(",")])) for shape in re.findall(r"\b[a-z]+\d+\[([\d,]+)\]", text)
    }


def test_no_array_of_batch_times_length_times_vocabulary():
    B, L, M, V = 3, 31, 4, 1009
    model = tiny.model(vocabulary_size=V, max_length=L)
    batch = tiny.batch((31, 20, 9), L, M, V)
    params = jax.eval_shape(lambda: tiny.params(model, batch))
    objective = tiny.guided(model)

    def loss(params, batch):
        return sum(
            tiny.evaluate(objective, params, batch, {"dropout": jax.random.key(0)}, jnp.int32(0)).totals.values()
        )

    sizes = array_sizes(jax.jit(jax.grad(loss)).lower(params, batch).compile().as_text())
    assert B * M * V in sizes, "the logits at the masked positions are not where this test looks for them"
    assert max(sizes) < B * L * V


def test_layers_differ_at_birth(model, batch):
    params = nn.unbox(jax.jit(lambda: model.init(jax.random.key(0), batch, deterministic=True))())["params"]
    kernel = np.asarray(params["encoder"]["layers"]["attention"]["query"]["kernel"])
    assert kernel.shape == (2, 12, 3, 4)
    assert not np.isclose(kernel[0], kernel[1]).any()
    table = np.asarray(params["encoder"]["embeddings"]["word"]["embedding"])
    for values in (kernel, table):
        assert abs(values.std() / 0.02 - 1) < 4 / np.sqrt(2 * values.size)
    assert params["encoder"]["embeddings"]["position"]["embedding"].shape == (13 + 2, 12)
    assert "next_head" in params and "kernel" not in params["word_head"], "the output layer is tied to the input"


def test_encoder_alone_and_model_without_next_sentence(params, batch):
    encode = jax.jit(lambda params: Encoder(tiny.CONFIG).apply({"params": params}, batch, deterministic=True))
    hidden = encode(params["encoder"])
    expected, _ = reference.encode(tiny.float64(params["encoder"]), batch, tiny.CONFIG)
    np.testing.assert_allclose(hidden, expected, rtol=1e-5, atol=1e-5)
    without = {"params": {name: params[name] for name in ("encoder", "word_head")}}
    shapes = jax.eval_shape(lambda: PretrainingModel(tiny.CONFIG).apply(without, batch, deterministic=True))
    assert shapes.next_B2 is None and shapes.hidden_BMD.shape == (4, 5, 12) and shapes.embedding_VD.shape == (37, 12)
