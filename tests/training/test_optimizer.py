"""AdamW, StableAdamW, Lion and Muon against plain numpy ones, schedules, clipping, and what decays."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ag_jax.settings import schema
from ag_jax.training.config import OptimizerConfig
from ag_jax.training.optimizer import decays, learning_rate_schedule, make_optimizer, matrix_axes
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
    found = jax.jit(schedule)(jnp.array([*expected]))
    np.testing.assert_allclose(found, 0.2 * np.array([*expected.values()]), atol=3e-8)


def test_inverse_square_root_is_the_schedule_of_vaswani():
    """width^-0.5 min(t^-0.5, t warmup^-1.5), with the peak (width warmup)^-0.5 (Vaswani et al. 2017, equation 3)."""
    width, warmup = 128, 7
    config = OptimizerConfig(learning_rate=(width * warmup) ** -0.5, warmup_steps=warmup, decay="inverse_sqrt")
    steps = [1, warmup // 2, warmup, warmup + 1, 4 * warmup, 100 * warmup]
    expected = [width**-0.5 * min(t**-0.5, t * warmup**-1.5) for t in steps]
    schedule = learning_rate_schedule(config, 10)  # whatever the number of steps
    np.testing.assert_allclose(jax.jit(schedule)(jnp.array(steps)), expected, rtol=1e-4)


def test_only_kernels_and_embeddings_decay():
    model, batch = tiny.model(), tiny.batch()
    params = nn.unbox(jax.eval_shape(lambda: model.init(jax.random.key(0), batch, deterministic=True)["params"]))
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


LAYERS = {
    "attention": {
        "query": {"kernel": (3, 8, 2, 3), "bias": (3, 2, 3)},
        "output": {"kernel": (3, 2, 3, 8), "bias": (3, 8)},
    },
    "feedforward_in": {"kernel": (3, 8, 10), "bias": (3, 10)},
}
SHAPES = {
    "encoder": {"layers": LAYERS, "embeddings": {"norm": {"scale": (8,)}, "word": {"embedding": (11, 8)}}},
    "word_head": {"dense": {"kernel": (8, 8), "bias": (8,)}},
}


def drawn(seed, scale=1.0):
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda shape: scale * rng.standard_normal(shape).astype(np.float32),
        SHAPES,
        is_leaf=lambda of: type(of) is tuple,
    )


def tensors(tree):
    """{path: array in float64, whose axis 0 has one tensor for each layer}"""
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name, leaf = jax.tree_util.keystr(path, simple=True, separator="/"), np.asarray(leaf, np.float64)
        found[name] = leaf if "/layers/" in name else leaf[None]
    return found


def newton_schulz(matrix):
    """Five steps of X <- a X + b (X X^T) X + c (X X^T)^2 X, from X / |X| (Jordan et al. 2024)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix / np.linalg.norm(matrix)
    for _ in range(5):
        square = x @ x.T
        x = a * x + b * square @ x + c * square @ square @ x
    singular = np.linalg.svd(x, compute_uv=False)
    assert singular.min() > 0.5 and singular.max() < 1.5
    return x


def by_hand(config, total_steps, name, layer, start, gradients):
    """One tensor after some updates.

    AdamW and StableAdamW are algorithms 2 of Loshchilov & Hutter 2019 and of Wortsman et al. 2023, and Lion is that of
    Chen et al. 2023; Muon has momentum with Nesterov's look-ahead, and an orthogonal update of AdamW's size.
    """
    theta, first, second = start[name][layer], 0.0, 0.0
    for index, gradient in enumerate(gradients):
        norm = np.sqrt(sum((one**2).sum() for one in gradient.values()))
        g = gradient[name][layer] * (min(1.0, config.clip_norm / norm) if config.clip_norm else 1.0)
        share = {
            "linear": (total_steps - index) / (total_steps - config.warmup_steps),
            "inverse_sqrt": np.sqrt(max(config.warmup_steps, 1) / max(index, 1)),
            "constant": 1.0,
        }[config.decay]
        share = index / config.warmup_steps if index < config.warmup_steps else share
        decay = config.weight_decay * theta if name.endswith(("kernel", "embedding")) else 0.0
        beta1, beta2, divisor = config.beta1, config.beta2, 1.0
        if config.kind == "lion":
            update = np.sign(beta1 * first + (1 - beta1) * g)
            first = beta2 * first + (1 - beta2) * g
        elif config.kind == "muon" and "/layers/" in name and name.endswith("kernel"):
            first = 0.95 * first + 0.05 * g
            ahead = 0.95 * first / (1 - 0.95 ** (index + 2)) + 0.05 * g / (1 - 0.95 ** (index + 1))
            # The matrix that a row of features is multiplied with: inputs x outputs.
            shape = (-1, g.shape[-1]) if name.endswith("output/kernel") else (g.shape[0], -1)
            matrix = ahead.reshape(shape)
            update = 0.2 * np.sqrt(max(matrix.shape)) * newton_schulz(matrix).reshape(theta.shape)
            update *= config.muon_attention_scale if "/query/" in name or "/key/" in name else 1
        else:
            first, second = beta1 * first + (1 - beta1) * g, beta2 * second + (1 - beta2) * g**2
            m, v = first / (1 - beta1 ** (index + 1)), second / (1 - beta2 ** (index + 1))
            update = m / (np.sqrt(v) + config.epsilon)
            if config.clip_updates:
                divisor = max(1.0, np.sqrt((g**2 / np.maximum(v, config.epsilon**2)).mean()))
        theta = theta - config.learning_rate * share * (update + decay) / divisor
    return theta


@pytest.mark.parametrize(
    ("settings", "tolerance"),
    [
        ({}, 2e-6),
        ({"weight_decay": 0.1, "clip_norm": 0.5}, 2e-6),
        ({"weight_decay": 0.1, "warmup_steps": 2, "beta1": 0.8, "beta2": 0.98, "epsilon": 1e-2}, 2e-6),
        ({"clip_norm": None, "decay": "constant"}, 2e-6),
        ({"warmup_steps": 1, "decay": "inverse_sqrt"}, 2e-6),
        ({"clip_updates": True, "clip_norm": None, "weight_decay": 0.2, "beta2": 0.99}, 3e-6),
        ({"kind": "lion", "beta2": 0.99, "clip_norm": None, "weight_decay": 0.3}, 1e-6),
        ({"kind": "muon", "clip_norm": None, "weight_decay": 0.2, "muon_attention_scale": 3.0}, 2e-4),
    ],
)
def test_three_steps_equal_numpy(settings, tolerance):
    config, start = OptimizerConfig(learning_rate=0.05, **settings), drawn(99, 0.5)
    gradients = [drawn(0, 0.1), drawn(1, 3.0), drawn(2, 1.0)]
    optimizer = make_optimizer(config, 7)
    state, params = optimizer.init(start), start

    @jax.jit
    def step(params, gradient, state):
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    for gradient in gradients:
        params, state = step(params, gradient, state)
    start, of_steps = tensors(start), [tensors(gradient) for gradient in gradients]
    for name, found in tensors(params).items():
        for layer, theta in enumerate(found):
            expected = by_hand(config, 7, name, layer, start, of_steps)
            np.testing.assert_allclose(theta, expected, rtol=0, atol=tolerance, err_msg=name)


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
    ("settings", "named"),
    [
        ({"learning_rate": 0.0}, "optimizer.learning_rate .* 0.0"),
        ({"epsilon": -1.0}, "optimizer.epsilon"),
        ({"beta1": 1.0}, "optimizer.beta1"),
        ({"decay": "constant", "decay_steps": 5}, "optimizer.decay_steps=5"),
        ({"decay": "inverse_sqrt", "final_share": 0.1}, "optimizer.final_share=0.1"),
        ({"kind": "lion", "clip_updates": True}, "optimizer.kind=lion"),
    ],
)
def test_impossible_settings(settings, named):
    with pytest.raises(ValueError, match=named):
        schema.check(OptimizerConfig(**settings), "optimizer")
