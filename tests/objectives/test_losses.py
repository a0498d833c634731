"""Cross-entropy as sums, against scipy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from scipy import special as functions

from ag_jax.objectives.losses import cross_entropy


@pytest.fixture(scope="module")
def example():
    rng = np.random.default_rng(0)
    logits = 3 * rng.standard_normal((3, 5, 7)).astype(np.float32)
    labels = rng.integers(0, 7, (3, 5)).astype(np.int32)
    labels[0] = logits[0].argmax(-1)  # so that some predictions are right
    weights = np.array([[1, 1, 1, 1, 1], [1, 0.5, 0, 0, 0], [0, 0, 0, 0, 0]], np.float32)
    return logits, labels, weights


def test_equals_scipy(example):
    logits, labels, weights = example
    loss, correct = jax.jit(cross_entropy)(logits, labels, weights)
    logs = functions.log_softmax(logits.astype(np.float64), axis=-1)
    expected = sum(-weights[i, j] * logs[i, j, labels[i, j]] for i in range(3) for j in range(5))
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    right = sum(weights[i, j] * (logits[i, j].argmax() == labels[i, j]) for i in range(3) for j in range(5))
    assert float(correct) == right >= 5


def test_by_hand():
    # Probabilities 3/4 and 1/4; then even ones over four classes.
    loss, correct = cross_entropy(
        jnp.log(jnp.array([[3.0, 1.0], [1.0, 3.0]])), jnp.array([0, 0]), jnp.array([1.0, 2.0])
    )
    np.testing.assert_allclose(loss, -np.log(0.75) - 2 * np.log(0.25), rtol=1e-6)
    assert float(correct) == 1
    np.testing.assert_allclose(cross_entropy(jnp.zeros((1, 4)), jnp.array([2]), jnp.ones(1))[0], np.log(4), rtol=1e-6)


def test_of_equal_logits_the_first_is_predicted_and_nan_is_never_right():
    logits = np.array([[1, 2, 2], [1, 2, 2], [0, 0, 0], [0, 0, 0], [1, np.nan, 2], [1, np.nan, 2], [np.nan] * 3])
    labels = np.array([1, 2, 0, 1, 2, 1, 0])
    right = [
        float(cross_entropy(jnp.asarray(row[None], jnp.float32), jnp.asarray([label]), jnp.ones(1))[1])
        for row, label in zip(logits, labels, strict=True)
    ]
    assert right == [1, 0, 1, 0, 0, 0, 0]


def test_certainty_costs_nothing():
    loss, correct = cross_entropy(jnp.array([[0.0, 200.0, 0.0]]), jnp.array([1]), jnp.ones(1))
    assert float(loss) == 0 and float(correct) == 1


def test_weight_zero_is_the_same_as_not_there(example):
    logits, labels, weights = example
    kept = weights > 0
    together = cross_entropy(*(jnp.asarray(field) for field in example))
    apart = cross_entropy(jnp.asarray(logits[kept]), jnp.asarray(labels[kept]), jnp.asarray(weights[kept]))
    np.testing.assert_allclose(together, apart, rtol=1e-6)
    changed = np.where(kept[..., None], logits, 1e4).astype(np.float32)
    np.testing.assert_array_equal(
        cross_entropy(jnp.asarray(changed), jnp.asarray(labels), jnp.asarray(weights)), together
    )


def test_rows_of_weight_zero_have_no_gradient(example):
    logits, labels, weights = example
    gradient = jax.grad(lambda logits: cross_entropy(logits, jnp.asarray(labels), jnp.asarray(weights))[0])(
        jnp.asarray(logits)
    )
    expected = (functions.softmax(logits, axis=-1) - np.eye(7)[labels]) * weights[..., None]
    np.testing.assert_allclose(gradient, expected, atol=1e-6)
    assert not np.asarray(gradient)[weights == 0].any()


def test_large_logits_stay_finite():
    logits = jnp.array([[1e4, -1e4, 0.0]])
    np.testing.assert_allclose(cross_entropy(logits, jnp.array([1]), jnp.ones(1))[0], 2e4, rtol=1e-6)


def test_gradient_against_finite_differences(example):
    logits, labels, weights = (jnp.asarray(field) for field in example)
    loss = jax.jit(lambda logits: cross_entropy(logits, labels, weights)[0])
    check_grads(loss, (logits / 3,), order=1, modes=["rev"], eps=1e-2, rtol=1e-3)
