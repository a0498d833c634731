"""Cross entropy as sums against scipy, and of predicted words by parts against the scores of all words in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special as functions

from ag_jax.objectives import word_loss as module
from ag_jax.objectives.losses import cross_entropy, first_largest
from ag_jax.objectives.word_loss import word_loss
from tests.cases import some


def example(batch=6, positions=7, dtype="float32"):
    rng = np.random.default_rng(0)
    hidden, embedding = (jnp.asarray(rng.standard_normal(of), dtype) for of in ((batch, positions, 5), (41, 5)))
    bias, labels = rng.standard_normal(41).astype(np.float32), rng.integers(0, 41, (batch, positions)).astype(np.int32)
    weights = np.float32(rng.random((batch, positions)) < 0.7) * 1.5
    labels[0, 0] = (np.float32(hidden[0, 0]) @ np.float32(embedding).T + bias).argmax()  # one that is right
    weights[0, 0], weights[2:5] = 2.0, 0.0  # and rows without masked words
    return (hidden, embedding, bias), (labels, weights)


def whole(hidden, embedding, bias, labels, weights, smoothing=0.0):
    """Sums (loss with the smoothed distribution, right predictions, plain cross entropy), and gradients of the loss."""
    hidden, embedding, bias = (np.asarray(array, np.float64) for array in (hidden, embedding, bias))
    scores = hidden @ embedding.T + bias
    logs, plain = functions.log_softmax(scores, axis=-1), np.eye(41)[labels]
    wanted = (1 - smoothing) * plain + smoothing / 41
    slope = weights[..., None] * (np.exp(logs) - wanted)
    sums = [-(weights * (of * logs).sum(-1)).sum() for of in (wanted, plain)]
    gradients = slope @ embedding, np.einsum("bmv,bmd->vd", slope, hidden), slope.sum((0, 1))
    return (sums[0], (weights * (scores.argmax(-1) == labels)).sum(), sums[1]), gradients


@pytest.mark.parametrize(
    ("group_rows", "smoothing", "together"),
    some(
        [(*of, together) for of in [(1, 0.0), (1, 0.3), (2, 0.0), (8, 0.3)] for together in (1, 3, 7, 100)],
        (1, 0.0, 1),
        (1, 0.3, 100),
        (2, 0.0, 7),
        (8, 0.3, 3),
    ),
)
def test_equals_the_whole_whatever_the_part(monkeypatch, together, group_rows, smoothing):
    monkeypatch.setattr(module, "POSITIONS", together)
    learnt, given = example()
    sums, gradients = whole(*learnt, *given, smoothing)
    arguments = *given, group_rows, smoothing, group_rows != 2  # with the predicted words in three of four cases

    @jax.jit
    def run(*learnt):
        def loss(*learnt):
            found = word_loss(*learnt, *arguments)
            return 3.0 * found[0] ** 2, found

        return jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(*learnt), word_loss(*learnt, *arguments)

    ((_, (*found, words)), slopes), (*evaluated, again) = run(*learnt)
    np.testing.assert_allclose([found, evaluated], [sums, sums], rtol=1e-6)
    if group_rows == 2:
        assert words is again is None
    else:
        hidden, embedding, bias = map(np.asarray, learnt)
        used = given[1] > 0
        expected = (hidden @ embedding.T + bias).argmax(-1)[used]
        np.testing.assert_array_equal([words[used], again[used]], [expected, expected])
    assert sums[1] >= 2.0
    for one, other in zip(slopes, gradients, strict=True):
        expected = 6 * sums[0] * other
        np.testing.assert_allclose(one, expected, atol=2e-6 * np.abs(expected).max())


def test_slots_without_a_masked_word_cost_nothing_in_groups():
    """Chunks of them are skipped: hidden states that would give NaN there change nothing."""
    (hidden, *learnt), (labels, _) = example(batch=16, positions=11)
    used = np.zeros((16, 11), bool)
    used[::8, 3:9] = used[5, 0] = True  # 7 of 88 slots in the first group, 6 in the second
    given = labels, used.astype(np.float32)
    results = jax.jit(jax.value_and_grad(lambda hidden: word_loss(hidden, *learnt, *given, 8)[0]))
    loss, slope = results(hidden)
    order = np.argsort(~used.reshape(2, 88), axis=1, kind="stable")
    skipped = np.zeros((2, 88), bool)
    np.put_along_axis(skipped, order[:, 16:], True, axis=1)  # all but each group's first chunk
    other_loss, other_slope = results(jnp.where(skipped.reshape(16, 11, 1), jnp.nan, hidden))
    assert float(other_loss) == float(loss)
    np.testing.assert_array_equal(other_slope, slope)
    np.testing.assert_allclose(slope, whole(hidden, *learnt, *given)[1][0], atol=1e-5)


def test_rows_of_a_group():
    """The largest power of two of rows whose slots are at most 96."""
    assert [module.rows_per_group(slots) for slots in (1, 5, 12, 13, 48, 49, 96, 97, 500)] == [
        64,
        16,
        8,
        4,
        2,
        1,
        1,
        1,
        1,
    ]


def test_bfloat16_gradients_have_the_types_of_their_arrays():
    learnt, given = example(dtype="bfloat16")
    gradients = jax.jit(jax.grad(lambda *arrays: word_loss(*arrays, *given)[0], argnums=(0, 1, 2)))(*learnt)
    for array, gradient, expected in zip(learnt, gradients, whole(*learnt, *given)[1], strict=True):
        assert gradient.dtype == array.dtype
        np.testing.assert_allclose(gradient.astype(jnp.float32), expected, atol=0.02 * np.abs(expected).max())


def test_cross_entropy_equals_scipy():
    """Loss, right predictions and gradient; what weighs nothing may be anything, and large logits stay finite."""
    rng = np.random.default_rng(0)
    logits = 3 * rng.standard_normal((3, 5, 7)).astype(np.float32)
    labels = rng.integers(0, 7, (3, 5)).astype(np.int32)
    labels[0] = logits[0].argmax(-1)  # so that some predictions are right
    logits[1, 1, :2] = 1e4, -1e4
    weights = np.array([[1, 1, 1, 2, 1], [1, 0.5, 0, 0, 0], [0, 0, 0, 0, 0]], np.float32)
    logs = functions.log_softmax(logits.astype(np.float64), axis=-1)
    expected = sum(-weights[i, j] * logs[i, j, labels[i, j]] for i in range(3) for j in range(5))
    right = sum(weights[i, j] * (logits[i, j].argmax() == labels[i, j]) for i in range(3) for j in range(5))
    slope = (functions.softmax(logits, axis=-1) - np.eye(7)[labels]) * weights[..., None]
    logits[weights == 0] = 1e4
    (loss, correct), gradient = jax.jit(jax.value_and_grad(cross_entropy, has_aux=True))(logits, labels, weights)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    assert float(correct) == right >= 6
    np.testing.assert_allclose(gradient, slope, atol=1e-6)


def test_of_equal_logits_the_first_is_predicted_and_nan_is_never_right():
    logits = [[1, 2, 2], [1, 2, 2], [0, 0, 0], [0, 0, 0], [1, np.nan, 2], [1, np.nan, 2], [np.nan] * 3, [0, 200, 0]]
    arrays = jnp.array(logits, jnp.float32), jnp.array([1, 2, 0, 1, 2, 1, 0, 1]), jnp.ones(8)
    run = jax.jit(lambda *arrays: (*jax.vmap(cross_entropy)(*arrays), first_largest(arrays[0])))
    losses, right, words = run(*arrays)
    assert right.tolist() == [1, 0, 1, 0, 0, 0, 0, 1] and words.tolist() == [1, 1, 0, 0, 3, 3, 3, 1]
    np.testing.assert_allclose(np.asarray(losses)[[2, 7]], [np.log(3), 0], rtol=1e-6)
    assert cross_entropy(jnp.ones((1, 3)), jnp.array([-1]), jnp.ones(1))[1] == 0
