"""One step of training: parts that add up to the whole, and the same result on any mesh."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ag_jax.models.masked_lm import PretrainingModel
from ag_jax.objectives.base import Objective, Outputs, Terms
from ag_jax.training import sharding
from ag_jax.training.config import MeshConfig, OptimizerConfig
from ag_jax.training.hyperparameters import Hyperparameters
from ag_jax.training.optimizer import make_optimizer
from ag_jax.training.program import make_program
from ag_jax.training.sharding import make_mesh
from ag_jax.training.state import TrainState
from ag_jax.training.step import gradient_norms, split_microbatches, train_step
from tests import tiny
from tests.cases import some

LENGTHS = (11, 7, 5, 0, 9, 4, 11, 2)
ASSIGNMENT = (("next", 1), ("period", 1), ("first", 1))


def test_microbatches_take_every_nth_row():
    split = split_microbatches({"tokens": jnp.arange(12).reshape(6, 2), "labels": jnp.arange(6)}, 3)
    np.testing.assert_array_equal(split["labels"], [[0, 3], [1, 4], [2, 5]])
    np.testing.assert_array_equal(split["tokens"][1], [[2, 3], [8, 9]])


class Linear(Objective):
    """The weighted squared error of x w + b and, for each row, its mean square; and a number drawn for dropout."""

    def normalizers(self, batch):
        return {"task": batch["weights"].sum(), "size": jnp.float32(len(batch["x"]))}

    def coefficients(self, step):
        return {"task": 2.0 + step, "size": jnp.float32(0.5)}

    def forward(self, params, batch, rngs, step, ports):
        drawn = jax.random.uniform(rngs["dropout"]), jnp.float32(1)
        return Outputs({"task": batch["x"] @ params["kernel"] + params["bias"]}, batch, metrics={"drawn": drawn})

    def terms(self, outputs, batch):
        found = outputs.predictions["task"]
        total = (batch["weights"] * (found - batch["y"]) ** 2).sum()
        metrics = {"task_loss": (total, batch["weights"].sum())} | outputs.metrics
        return Terms({"task": total, "size": (found**2).sum()}, metrics)


@pytest.mark.parametrize("parts", [1, 2])
def test_steps_against_numpy(parts):
    """Four rows with uneven weights, and a momentum in the optimizer's state.

    Each part has dropout of its own, by a key of the run and the step; the tokens are those of source and target.
    """
    rng = np.random.default_rng(0)
    x, y, weights = rng.standard_normal((4, 3)), rng.standard_normal(4), np.array([1.0, 0.0, 2.0, 0.5])
    w, b, momentum, key = rng.standard_normal(3), 0.3, 0.0, jax.random.key(1)
    ids = {"segment_ids": np.eye(4, 5) * 3, "target_segment_ids": np.ones((4, 2))}
    batch = jax.tree.map(lambda field: jnp.asarray(field, jnp.float32), {"x": x, "y": y, "weights": weights, **ids})
    optimizer = optax.sgd(0.1, momentum=0.9)
    params = {"kernel": jnp.asarray(w, jnp.float32), "bias": jnp.float32(b)}
    state = TrainState(jnp.int32(3), params, optimizer.init(params))
    step = jax.jit(functools.partial(train_step, objective=Linear(), optimizer=optimizer, microbatches=parts))
    for number in (3, 4):
        state, metrics = step(state, batch, key)
        error, factor, of_step = x @ w + b - y, (2 + number) / 3.5, jax.random.fold_in(key, number)
        total, size = (weights * error**2).sum(), ((x @ w + b) ** 2).sum()
        keys = [of_step] if parts == 1 else jax.random.split(of_step, parts)
        slopes = 2 * (factor * weights * error + 0.5 / 4 * (x @ w + b))
        gradient = np.append(slopes @ x, slopes.sum())
        momentum = 0.9 * momentum + gradient
        w, b = w - 0.1 * momentum[:3], b - 0.1 * momentum[3]
        expected = {
            "loss": (factor * total + 0.5 / 4 * size, 1),
            "task_loss": (total, 3.5),
            "tokens": (4 + 8, 1),
            "gradient_norm": (np.linalg.norm(gradient), 1),
            "drawn": (sum(float(jax.random.uniform(one)) for one in keys), parts),
        }
        assert metrics.keys() == expected.keys()
        for name, pair in expected.items():
            np.testing.assert_allclose(metrics[name], pair, rtol=3e-6, err_msg=name)
    assert int(state.step) == 5
    np.testing.assert_allclose(np.append(state.params["kernel"], state.params["bias"]), np.append(w, b), rtol=3e-6)


def test_the_norm_of_an_adversary_is_a_metric_of_its_own():
    found = gradient_norms({"encoder": jnp.array([3.0, 4.0]), "adversary": jnp.array([5.0, 12.0])})
    assert {name: float(norm) for name, norm in found.items()} == {"gradient_norm": 5, "adversary_gradient_norm": 13}


def model_of(**dropout):
    return PretrainingModel(tiny.config(heads=4, width=16, attention_biases=False, **dropout), next_sentence=False)


@pytest.fixture(scope="module")
def trained(eight_devices):
    """Runs three steps of four microbatches with dropout and guidance on a mesh; remembers what came of it."""
    model = model_of(dropout=0.1, attention_dropout=0.2)
    objective = tiny.guided(model, ASSIGNMENT, probabilities="after_dropout")
    optimizer = make_optimizer(OptimizerConfig(learning_rate=1e-2, weight_decay=0.1, epsilon=1e-3), 10)
    batches = [tiny.batch(2 * LENGTHS, seed=seed) for seed in range(3)]

    def init(key):
        return model.init(key, tiny.batch(), deterministic=True)["params"]

    @functools.cache
    def run(*shape):
        mesh = make_mesh(MeshConfig(*shape), eight_devices[: int(np.prod(shape))])
        program = make_program(lambda _: objective, lambda _: optimizer, init, mesh, 4)
        state, losses = program.create(jax.random.key(0)), []
        for batch in batches:
            before, placed = state, sharding.place_batch(batch, mesh)
            state, metrics = program.train_step(state, placed, jax.random.key(1), Hyperparameters())
            losses.append(float(metrics["loss"][0]))
        return types.SimpleNamespace(
            before=before, state=state, losses=losses, metrics=metrics, program=program, batch=batches[-1]
        )

    return run


def difference(one, other):
    """Relative distance of two trees as one vector, computed in float64."""
    a, b = (np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tiny.float64(tree))]) for tree in (one, other))
    return np.linalg.norm(a - b) / np.linalg.norm(b)


@pytest.mark.parametrize("shape", some([((8, 1, 1),), ((2, 4, 1),), ((2, 2, 2),)], ((2, 2, 2),)))
def test_every_mesh_trains_the_same(trained, shape):
    """With dropout on. The 37 words of the vocabulary do not divide by the tensor axis of 2."""
    alone, spread = trained(1, 1, 1), trained(*shape)
    np.testing.assert_allclose(spread.losses, alone.losses, rtol=2e-6)
    assert difference(spread.state.params, alone.state.params) < 1e-5
    for key, (total, weight) in alone.metrics.items():
        np.testing.assert_allclose(spread.metrics[key][0], total, rtol=2e-5, err_msg=key)
        np.testing.assert_allclose(spread.metrics[key][1], weight, rtol=1e-6, err_msg=key)


def test_parameters_stay_split(trained):
    run = trained(2, 2, 2)
    leaves = jax.tree.leaves(run.state)
    for leaf, wanted in zip(leaves, jax.tree.leaves(run.program.shardings), strict=True):
        assert leaf.sharding.is_equivalent_to(wanted, leaf.ndim)
    held = sum(leaf.addressable_shards[0].data.size for leaf in leaves)
    assert held < 0.45 * sum(leaf.size for leaf in leaves)
    assert run.metrics["loss"][0].sharding.is_fully_replicated


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 2, 2)])
def test_a_program_is_compiled_once_and_moves_everything(trained, shape):
    """And takes the memory of the state before."""
    run = trained(*shape)
    assert run.program.train_step._cache_size() == 1 and len(set(run.losses)) == 3
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(run.before))
    for path, leaf in jax.tree_util.tree_leaves_with_path(run.state.params):
        name = jax.tree_util.keystr(path)
        if name.endswith("['bias']"):  # 0 at the beginning
            assert np.asarray(leaf).any(), name


def test_evaluation_has_no_dropout_and_no_update(trained):
    run = trained(2, 2, 2)
    placed = sharding.place_batch(run.batch, run.program.mesh)
    metrics = run.program.evaluation_step(run.state.params, placed, jnp.int32(3), Hyperparameters())
    still = tiny.guided(model_of(), ASSIGNMENT)
    expected = jax.jit(lambda params, batch: tiny.evaluate(still, params, batch, None, jnp.int32(3)).metrics)(
        jax.device_get(run.state.params), run.batch
    )
    for name, pair in expected.items():
        np.testing.assert_allclose(metrics[name][0], pair[0], rtol=2e-5, err_msg=name)
        np.testing.assert_allclose(metrics[name][1], pair[1], rtol=1e-6, err_msg=name)
