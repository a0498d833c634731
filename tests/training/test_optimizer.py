"""AdamW, StableAdamW, Lion and Muon against plain numpy ones, schedules, clipping, and what decays."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ag_jax import config_reader
from ag_jax.training.optimizer import OptimizerConfig, decays, learning_rate_schedule, make_optimizer, matrix_axes
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
        ({"warmup_steps": 2, "decay": "cosine"}, {0: 0, 1: 0.5, 2: 1, 4: 0.5 + 0.125**0.5, 6: 0.5, 10: 0, 12: 0}),
        ({"warmup_steps": 1, "decay": "one_minus_sqrt"}, {1: 1, 2: 2 / 3, 5: 1 / 3, 10: 0, 11: 0}),
        ({"warmup_steps": 2, "decay_steps": 4}, {1: 0.5, 2: 1, 5: 1, 6: 1, 7: 0.75, 8: 0.5, 9: 0.25, 10: 0}),
        ({"warmup_steps": 2, "decay_steps": 4, "decay": "one_minus_sqrt"}, {2: 1, 6: 1, 7: 0.5, 10: 0}),
        ({"warmup_steps": 2, "decay_steps": 4, "final_share": 0.2}, {1: 0.5, 6: 1, 8: 0.6, 10: 0.2, 99: 0.2}),
        ({"decay": "cosine", "final_share": 0.1}, {0: 1, 5: 0.55, 10: 0.1, 11: 0.1}),
        ({"warmup_steps": 8, "decay_steps": 4}, {8: 1, 9: 0.5, 10: 0}),  # warm-up comes first
    ],
)
def test_learning_rate(settings, expected):
    schedule = learning_rate_schedule(OptimizerConfig(learning_rate=0.2, **settings), 10)
    np.testing.assert_allclose([schedule(step) for step in expected], 0.2 * np.array([*expected.values()]), atol=3e-8)


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


LAYERS = {
    "attention": {
        "query": {"kernel": (3, 8, 2, 3), "bias": (3, 2, 3)},
        "output": {"kernel": (3, 2, 3, 8), "bias": (3, 8)},
    },
    "feedforward_in": {"kernel": (3, 8, 10), "bias": (3, 10)},
}
SHAPES = {
    "encoder": {"layers": LAYERS, "embeddings": {"word": {"embedding": (11, 8)}}},
    "word_head": {"dense": {"kernel": (8, 8), "bias": (8,)}},
}


def drawn(seed, scale=1.0):
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda shape: scale * rng.standard_normal(shape).astype(np.float32),
        SHAPES,
        is_leaf=lambda of: type(of) is tuple,
    )


def named(tree):
    """{path: (is a matrix of a stack of layers, array with one axis 0 for each tensor)}"""
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        found[name] = np.asarray(leaf, np.float64) if "/layers/" in name else np.asarray(leaf, np.float64)[None]
    return found


def trained(config, gradients, steps=9):
    """The parameters after some updates by the real optimizer, and by which they started."""
    optimizer, start = make_optimizer(config, steps), drawn(99, 0.5)
    state, params, update = optimizer.init(start), start, jax.jit(optimizer.update)
    for gradient in gradients:
        updates, state = update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    return named(start), named(params)


def test_stable_adamw_layer_by_layer():
    """Wortsman et al. 2023, algorithm 2, for every tensor of one layer, with one of a surprisingly large gradient."""
    config = OptimizerConfig(
        clip_updates=True, clip_norm=None, learning_rate=0.1, decay="constant", weight_decay=0.2, beta2=0.99
    )
    gradients = [drawn(0, 0.01), drawn(1, 0.01)]
    gradients[1]["encoder"]["layers"]["feedforward_in"]["kernel"][1] *= 50
    start, found = trained(config, gradients)
    divisors = []
    for name, value in start.items():
        for layer in range(len(value)):
            theta, first, second = value[layer], 0.0, 0.0
            for step, gradient in enumerate(gradients, 1):
                g = named(gradient)[name][layer]
                first, second = 0.9 * first + 0.1 * g, 0.99 * second + 0.01 * g**2
                m, v = first / (1 - 0.9**step), second / (1 - 0.99**step)
                rms = np.sqrt((g**2 / np.maximum(v, 1e-16)).mean())
                divisors.append(max(1, rms))
                decay = 0.2 * theta if name.endswith(("kernel", "embedding")) else 0.0
                theta = theta - 0.1 / divisors[-1] * (m / (np.sqrt(v) + 1e-8) + decay)
            np.testing.assert_allclose(found[name][layer], theta, atol=3e-6, err_msg=name)
    assert max(divisors) > 1.3  # the large gradient was held back, and that of its layer alone
    assert sum(divisor > 1.3 for divisor in divisors) == 1


def test_lion():
    """Chen et al. 2023, algorithm 2."""
    config = OptimizerConfig(
        kind="lion", beta2=0.99, clip_norm=None, learning_rate=0.01, decay="constant", weight_decay=0.3
    )
    gradients = [drawn(seed) for seed in range(3)]
    start, found = trained(config, gradients)
    for name, theta in start.items():
        momentum = 0.0
        for gradient in gradients:
            g = named(gradient)[name]
            decay = 0.3 * theta if name.endswith(("kernel", "embedding")) else 0.0
            theta = theta - 0.01 * (np.sign(0.9 * momentum + 0.1 * g) + decay)
            momentum = 0.99 * momentum + 0.01 * g
        np.testing.assert_allclose(found[name], theta, atol=1e-6, err_msg=name)


def as_matrix(name, layer):
    """The matrix that a row of features is multiplied with in a layer: inputs x outputs."""
    return layer.reshape(-1, layer.shape[-1]) if name.endswith("output/kernel") else layer.reshape(layer.shape[0], -1)


def newton_schulz(matrix):
    """Five steps of X <- a X + b (X X^T) X + c (X X^T)^2 X, from X / |X| (Jordan et al. 2024)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix / np.linalg.norm(matrix)
    for _ in range(5):
        square = x @ x.T
        x = a * x + b * square @ x + c * square @ square @ x
    return x


def test_muon_layer_by_layer():
    """Momentum with Nesterov's look-ahead, an orthogonal update of every layer's matrix with the size of AdamW's, and
    decay; all other parameters have AdamW.
    """
    settings = {"clip_norm": None, "learning_rate": 0.1, "decay": "constant", "weight_decay": 0.2}
    config = OptimizerConfig(kind="muon", **settings)
    gradients = [drawn(seed) for seed in range(2)]
    start, found = trained(config, gradients)
    _, of_adamw = trained(OptimizerConfig(**settings), gradients)
    matrices = {name for name in start if "/layers/" in name and name.endswith("kernel")}
    assert len(matrices) == 3
    for name in start.keys() - matrices:
        np.testing.assert_array_equal(found[name], of_adamw[name], err_msg=name)
    for name in matrices:
        for layer in range(3):
            theta, momentum = start[name][layer], 0.0
            for step, gradient in enumerate(gradients, 1):
                g = named(gradient)[name][layer]
                momentum = 0.95 * momentum + 0.05 * g
                ahead = 0.95 * momentum / (1 - 0.95 ** (step + 1)) + 0.05 * g / (1 - 0.95**step)
                matrix = as_matrix(name, ahead)
                update = newton_schulz(matrix)
                singular = np.linalg.svd(update, compute_uv=False)
                assert singular.min() > 0.5 and singular.max() < 1.5
                size = 0.2 * np.sqrt(max(matrix.shape))
                theta = theta - 0.1 * (size * update.reshape(theta.shape) + 0.2 * theta)
            np.testing.assert_allclose(found[name][layer], theta, atol=2e-4, err_msg=name)


def test_muon_layers_do_not_depend_on_one_another():
    config = OptimizerConfig(kind="muon", clip_norm=None)
    one, other = drawn(0), drawn(0)
    for leaf in jax.tree.leaves(other["encoder"]["layers"]):
        leaf[1] *= -3
    (_, first), (_, second) = trained(config, [one]), trained(config, [other])
    for name, value in first.items():
        same = np.isclose(value, second[name], atol=1e-7).reshape(len(value), -1).all(1)
        assert same.all() or (same[0] and same[2] and not same[1]), name


@pytest.mark.parametrize("name", tiny.ENCODERS)
def test_muon_takes_the_kernels_of_layers_of_every_family(name):
    model = tiny.model(**tiny.ENCODERS[name])
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), tiny.batch(), deterministic=True)["params"])
    matrices = 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(nn.unbox(shapes)):
        keys, axes = [key.key for key in path], matrix_axes(path, leaf)
        is_matrix = keys[:2] == ["encoder", "layers"] and keys[-1] == "kernel"
        assert (axes is not None) == is_matrix, keys
        if is_matrix:
            sides = [tuple(np.atleast_1d(side)) for side in axes]
            assert sorted(sum(sides, ())) == list(range(1, leaf.ndim)), keys  # the layer is no axis of the matrix
            rows, columns = (np.prod([leaf.shape[axis] for axis in side]) for side in sides)
            width, inner = model.config.width, leaf.shape[-1] if "feedforward" in keys[2] else model.config.width
            assert {rows, columns} <= {width, inner, leaf.shape[1]}, keys
            matrices += 1
    assert matrices >= 6


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"learning_rate": 0.0}, "optimizer.learning_rate must be at least 1e-12, got 0.0"),
        ({"learning_rate": float("nan")}, "optimizer.learning_rate must be a finite number, got nan"),
        ({"epsilon": -1.0}, "optimizer.epsilon must be above 0, got -1.0"),
        ({"warmup_steps": -1}, "optimizer.warmup_steps must be at least 0, got -1"),
        ({"clip_norm": float("inf")}, "optimizer.clip_norm must be a finite number, or none, got inf"),
        ({"weight_decay": -0.1}, "optimizer.weight_decay must be at least 0, got -0.1"),
        ({"beta1": 1.0}, r"optimizer.beta1 must be at least 0 and below 1, got 1.0"),
        ({"beta2": -0.1}, r"optimizer.beta2 must be at least 0 and below 1, got -0.1"),
        ({"decay": "step"}, "optimizer.decay must be one of linear, cosine, one_minus_sqrt, inverse_sqrt, constant, "),
        ({"kind": "adam"}, "optimizer.kind must be one of adamw, lion, muon, got 'adam'"),
    ],
)
def test_impossible_settings(setting, message):
    with pytest.raises(ValueError, match=message):
        config_reader.check(OptimizerConfig(**setting), "optimizer")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"decay": "constant", "decay_steps": 5}, "optimizer.decay_steps=5 is of a learning rate that falls"),
        ({"decay": "inverse_sqrt", "final_share": 0.1}, "optimizer.final_share=0.1 is of a learning rate that falls"),
        ({"kind": "lion", "clip_updates": True}, "which optimizer.kind=lion lacks"),
    ],
)
def test_settings_that_contradict_each_other(settings, message):
    with pytest.raises(ValueError, match=message):
        OptimizerConfig(**settings)
