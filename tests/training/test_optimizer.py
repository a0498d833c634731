"""AdamW against a plain numpy one, its schedule, its clipping, and what decays."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ag_jax import config_reader
from ag_jax.training.optimizer import OptimizerConfig, decays, learning_rate_schedule, make_optimizer
from tests import tiny


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"warmup_steps": 4}, {0: 0, 1: 0.25, 2: 0.5, 4: 1, 7: 0.5, 9: 1 / 6, 10: 0, 11: 0}),
        ({"warmup_steps": 0}, {0: 1, 5: 0.5, 9: 0.1, 10: 0}),
        ({"warmup_steps": 4, "decay": "constant"}, {0: 0, 2: 0.5, 4: 1, 7: 1, 100: 1}),
        ({"warmup_steps": 0, "decay": "constant"}, {0: 1, 100: 1}),
        ({"warmup_steps": 4, "decay": "inverse_sqrt"}, {0: 0, 1: 0.25, 3: 0.75, 4: 1, 9: 2 / 3, 16: 0.5, 400: 0.1}),
        ({"warmup_steps": 0, "decay": "inverse_sqrt"}, {0: 1, 1: 1, 4: 0.5, 100: 0.1}),
    ],
)
def test_learning_rate(settings, expected):
    schedule = learning_rate_schedule(OptimizerConfig(learning_rate=0.2, **settings), 10)
    np.testing.assert_allclose([schedule(step) for step in expected], 0.2 * np.array([*expected.values()]), atol=1e-8)


@pytest.mark.parametrize(("width", "warmup"), [(512, 4000), (128, 7)])
def test_inverse_square_root_is_the_schedule_of_vaswani(width, warmup):
    """width^-0.5 min(t^-0.5, t warmup^-1.5), with the peak (width warmup)^-0.5 (Vaswani et al. 2017, equation 3)."""
    config = OptimizerConfig(learning_rate=(width * warmup) ** -0.5, warmup_steps=warmup, decay="inverse_sqrt")
    steps = [1, warmup // 2, warmup, warmup + 1, 4 * warmup, 100 * warmup]
    expected = [width**-0.5 * min(t**-0.5, t * warmup**-1.5) for t in steps]
    schedule = learning_rate_schedule(config, 10)  # whatever the number of steps
    # The rise is computed as a fall from its end, in float32.
    np.testing.assert_allclose([schedule(jnp.int32(step)) for step in steps], expected, rtol=1e-4)


def test_only_kernels_and_embeddings_decay():
    model = tiny.model()
    params = tiny.params(model, tiny.batch())
    decayed = {jax.tree_util.keystr(path): flag for path, flag in jax.tree_util.tree_leaves_with_path(decays(params))}
    leaves = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    assert decayed.keys() == leaves.keys() and len(leaves) > 20
    for name, flag in decayed.items():
        # Matrices by their shape; the layer axis, and the head axis of a bias, are not dimensions of a matrix.
        rank = leaves[name].ndim - ("['layers']" in name)
        is_matrix = rank >= 2 and not name.endswith("['bias']")
        assert flag == is_matrix, name
    assert not decayed["['word_head']['bias']"]
    assert not decayed["['encoder']['layers']['attention_norm']['scale']"]
    assert decayed["['encoder']['embeddings']['word']['embedding']"]


PARAMS = {
    "one": {"kernel": np.array([[0.5, -1.0], [2.0, 0.1]]), "bias": np.array([0.3, -0.2])},
    "norm": {"scale": np.array([1.0, 1.1])},
}


def numpy_adamw(config, total_steps, gradients):
    """Loshchilov & Hutter 2019, algorithm 2, leaf by leaf, after clipping by the global norm."""
    params = jax.tree.map(np.copy, PARAMS)
    names = [("one", "kernel"), ("one", "bias"), ("norm", "scale")]
    first = dict.fromkeys(names, 0.0)
    second = dict.fromkeys(names, 0.0)
    for index, gradient in enumerate(gradients):
        norm = np.sqrt(sum((gradient[a][b] ** 2).sum() for a, b in names))
        factor = min(1.0, config.clip_norm / norm) if config.clip_norm else 1.0
        if index < config.warmup_steps:
            rate = config.learning_rate * index / config.warmup_steps
        elif config.decay == "inverse_sqrt":
            rate = config.learning_rate * np.sqrt(config.warmup_steps / index)
        elif config.decay == "linear":
            rate = config.learning_rate * (total_steps - index) / (total_steps - config.warmup_steps)
        else:
            rate = config.learning_rate
        for name in names:
            g, p = gradient[name[0]][name[1]] * factor, params[name[0]][name[1]]
            first[name] = config.beta1 * first[name] + (1 - config.beta1) * g
            second[name] = config.beta2 * second[name] + (1 - config.beta2) * g**2
            unbiased = first[name] / (1 - config.beta1 ** (index + 1))
            scale = np.sqrt(second[name] / (1 - config.beta2 ** (index + 1))) + config.epsilon
            decay = config.weight_decay * p if name[1] == "kernel" else 0.0
            params[name[0]][name[1]] = p - rate * (unbiased / scale + decay)
    return params


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"weight_decay": 0.1, "clip_norm": 0.5},
        {"weight_decay": 0.1, "warmup_steps": 2, "beta1": 0.8, "beta2": 0.98, "epsilon": 1e-2},
        {"clip_norm": None, "decay": "constant"},
        {"warmup_steps": 1, "decay": "inverse_sqrt"},
    ],
)
def test_three_steps_equal_numpy(settings):
    config = OptimizerConfig(learning_rate=0.05, **settings)
    rng = np.random.default_rng(0)
    draws = [jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape), PARAMS) for _ in range(3)]
    gradients = [optax.tree.scale(scale, draw) for scale, draw in zip((0.1, 3.0, 1.0), draws, strict=True)]
    optimizer = make_optimizer(config, 7)
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), PARAMS)
    state = optimizer.init(params)
    update = jax.jit(optimizer.update)
    for gradient in gradients:
        updates, state = update(jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), gradient), state, params)
        params = optax.apply_updates(params, updates)
    expected = numpy_adamw(config, 7, gradients)
    for one, other in zip(jax.tree.leaves(params), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-6)  # of updates of 0.05


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"learning_rate": 0.0}, "optimizer.learning_rate must be above 0, got 0.0"),
        ({"learning_rate": float("nan")}, "optimizer.learning_rate must be a finite number, got nan"),
        ({"epsilon": -1.0}, "optimizer.epsilon must be above 0, got -1.0"),
        ({"warmup_steps": -1}, "optimizer.warmup_steps must be at least 0, got -1"),
        ({"clip_norm": float("inf")}, "optimizer.clip_norm must be a finite number, got inf"),
        ({"weight_decay": -0.1}, "optimizer.weight_decay must be at least 0, got -0.1"),
        ({"beta1": 1.0}, r"optimizer.beta1 must be at least 0 and below 1, got 1.0"),
        ({"beta2": -0.1}, r"optimizer.beta2 must be at least 0 and below 1, got -0.1"),
        ({"decay": "cosine"}, "optimizer.decay must be one of linear, constant, inverse_sqrt, got 'cosine'"),
    ],
)
def test_impossible_settings(setting, message):
    with pytest.raises(ValueError, match=message):
        config_reader.check(OptimizerConfig(**setting), "optimizer")
