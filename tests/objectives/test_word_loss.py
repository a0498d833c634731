"""The loss of the masked words by parts, against the scores of all words at all positions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ag_jax.models.masked_lm import word_scores
from ag_jax.objectives import word_loss as module
from ag_jax.objectives.losses import cross_entropy
from ag_jax.objectives.word_loss import word_loss
from tests.cases import some


def example(batch=3, positions=7, width=5, words=41, dtype="float32"):
    rng = np.random.default_rng(0)
    hidden = jnp.asarray(rng.standard_normal((batch, positions, width)), dtype)
    embedding = jnp.asarray(rng.standard_normal((words, width)), dtype)
    bias = jnp.asarray(rng.standard_normal(words), jnp.float32)
    labels = jnp.asarray(rng.integers(0, words, (batch, positions)), jnp.int32)
    weights = jnp.asarray(rng.random((batch, positions)) < 0.7, jnp.float32) * 1.5
    labels = labels.at[0, 0].set(jnp.argmax(word_scores(hidden, embedding, bias)[0, 0]))  # one that is right
    return (hidden, embedding, bias), (labels, weights.at[0, 0].set(2.0))


def whole(hidden, embedding, bias, labels, weights, smoothing=0.0):
    """Loss with the smoothed distribution written out, right predictions, and the plain cross entropy."""
    scores = word_scores(hidden, embedding, bias)
    entropy, correct = cross_entropy(scores, labels, weights)
    wanted = (1 - smoothing) * jax.nn.one_hot(labels, scores.shape[-1]) + smoothing / scores.shape[-1]
    return -(weights * (wanted * jax.nn.log_softmax(scores)).sum(-1)).sum(), correct, entropy


@pytest.mark.parametrize(
    ("group_rows", "smoothing", "together"),
    some(
        [(*of, together) for of in [(1, 0.0), (1, 0.3), (2, 0.0), (8, 0.0)] for together in (1, 2, 3, 7, 100)],
        (1, 0.0, 1),
        (1, 0.3, 7),
        (2, 0.0, 100),
        (8, 0.0, 3),
    ),
)  # of six rows
def test_equals_the_whole_whatever_the_part(monkeypatch, together, group_rows, smoothing):
    monkeypatch.setattr(module, "POSITIONS", together)
    word_loss = functools.partial(module.word_loss, group_rows=group_rows, smoothing=smoothing)
    whole = functools.partial(globals()["whole"], smoothing=smoothing)
    learnt, (labels, weights) = example(batch=6)
    given = labels, weights.at[2:5].set(0.0)  # rows without masked words
    for loss in (lambda *arrays: word_loss(*arrays, *given), jax.jit(lambda *arrays: word_loss(*arrays, *given))):
        np.testing.assert_allclose(loss(*learnt), whole(*learnt, *given), rtol=1e-6)
        assert float(loss(*learnt)[1]) >= 2.0

    def scaled(loss):
        return jax.grad(lambda *arrays: 3.0 * loss(*arrays, *given)[0] ** 2, argnums=(0, 1, 2))(*learnt)

    for found, expected in zip(scaled(word_loss), scaled(whole), strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-6 * float(jnp.abs(expected).max()))


def test_slots_without_a_masked_word_cost_nothing_in_groups():
    """Chunks of them are skipped: hidden states that would give NaN there change nothing."""
    (hidden, *learnt), (labels, _) = example(batch=16, positions=11)
    used = np.zeros((16, 11), bool)
    used[::8, 3:9] = used[5, 0] = True  # 7 of 88 slots in the first group, 6 in the second
    given = labels, jnp.asarray(used, jnp.float32)

    def results(hidden):
        return jax.value_and_grad(lambda hidden: word_loss(hidden, *learnt, *given, 8)[0])(hidden)

    loss, slope = results(hidden)
    order = np.argsort(~used.reshape(2, 88), axis=1, kind="stable")
    skipped = np.zeros((2, 88), bool)
    np.put_along_axis(skipped, order[:, 16:], True, axis=1)  # all but each group's first chunk
    other_loss, other_slope = results(jnp.where(skipped.reshape(16, 11, 1), jnp.nan, hidden))
    assert float(other_loss) == float(loss)
    np.testing.assert_array_equal(other_slope, slope)
    assert not np.asarray(slope)[~used].any() and np.asarray(slope)[used].all()


def test_evaluation_makes_no_gradient(monkeypatch):
    learnt, given = example()
    text = str(jax.make_jaxpr(lambda *arrays: word_loss(*arrays, *given))(*learnt))
    assert text.count("dot_general") == 1


def test_bfloat16_gradients_have_the_types_of_their_arrays():
    learnt, given = example(dtype="bfloat16")
    gradients = jax.grad(lambda *arrays: word_loss(*arrays, *given)[0], argnums=(0, 1, 2))(*learnt)
    exact = jax.grad(lambda *arrays: whole(*arrays, *given)[0], argnums=(0, 1, 2))(
        *(array.astype(jnp.float32) for array in learnt)
    )
    for array, gradient, expected in zip(learnt, gradients, exact, strict=True):
        assert gradient.dtype == array.dtype
        np.testing.assert_allclose(gradient.astype(jnp.float32), expected, atol=0.02 * float(jnp.abs(expected).max()))


def test_scores_of_all_positions_are_never_in_memory(monkeypatch):
    learnt, given = example(batch=8, positions=64, width=16, words=4096)
    sizes = {}
    for positions in (4, 64):
        monkeypatch.setattr(module, "POSITIONS", positions)
        step = jax.jit(jax.value_and_grad(lambda *arrays: word_loss(*arrays, *given)[0], argnums=(0, 1, 2)))
        sizes[positions] = step.lower(*learnt).compile().memory_analysis().temp_size_in_bytes
    scores = 8 * 64 * 4096 * 4
    assert sizes[64] > scores > 3 * sizes[4]


def test_devices_exchange_the_gradient_of_the_words_once(eight_devices):
    """Not once for every part."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,), devices=eight_devices)
    learnt, given = example(batch=16, positions=96)
    rows, everywhere = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    places = (rows, everywhere, everywhere, rows, rows)
    gradient = jax.jit(jax.grad(lambda *arrays: word_loss(*arrays)[0], argnums=(0, 1, 2)), in_shardings=places)
    arrays = [jax.device_put(array, place) for array, place in zip((*learnt, *given), places, strict=True)]
    expected = jax.grad(lambda *arrays: whole(*arrays)[0], argnums=(0, 1, 2))(*learnt, *given)
    for found, wanted in zip(gradient(*arrays), expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=2e-6 * float(jnp.abs(wanted).max()))
