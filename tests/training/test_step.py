"""One step of training: parts that add up to the whole, and the same result on any mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ag_jax.objectives.base import Objective, Outputs
from ag_jax.training import sharding
from ag_jax.training.hyperparameters import Hyperparameters
from ag_jax.training.optimizer import OptimizerConfig, make_optimizer
from ag_jax.training.program import make_program
from ag_jax.training.sharding import MeshConfig, make_mesh
from ag_jax.training.state import TrainState
from ag_jax.training.step import (
    loss_and_gradient,
    split_microbatches,
    train_step,
)
from tests import tiny
from tests.cases import some

LENGTHS = (11, 7, 5, 0, 9, 4, 11, 2)
ASSIGNMENT = (("next", 1), ("period", 1), ("first", 1))


@pytest.fixture(scope="module")
def batch():
    """Masked positions from none to five a row, one row empty."""
    return tiny.batch(LENGTHS)


@pytest.fixture(scope="module")
def still():
    """A guided objective with NSP and without dropout, and parameters for it."""
    model = tiny.model(heads=4, width=16)
    return tiny.guided(model, ASSIGNMENT), tiny.params(model, tiny.batch())


def test_microbatches_take_every_nth_row():
    split = split_microbatches({"tokens": jnp.arange(12).reshape(6, 2), "labels": jnp.arange(6)}, 3)
    np.testing.assert_array_equal(split["labels"], [[0, 3], [1, 4], [2, 5]])
    np.testing.assert_array_equal(split["tokens"][1], [[2, 3], [8, 9]])


@pytest.fixture(scope="module")
def by_parts(still, batch):
    objective, params = still

    def run(microbatches):
        def compute(params, batch, key, step):
            return loss_and_gradient(params, batch, key, step, objective=objective, microbatches=microbatches)

        return jax.jit(compute)(params, batch, jax.random.key(0), jnp.int32(5))

    return {microbatches: run(microbatches) for microbatches in (1, 2, 4)}


def difference(one, other):
    """Relative distance of two trees as one vector, computed in float64."""
    a, b = (np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tiny.float64(tree))]) for tree in (one, other))
    return np.linalg.norm(a - b) / np.linalg.norm(b)


@pytest.mark.parametrize("microbatches", [2, 4])
def test_accumulation_is_exact(by_parts, microbatches):
    (loss, metrics, gradient), (whole_loss, whole_metrics, whole_gradient) = by_parts[microbatches], by_parts[1]
    np.testing.assert_allclose(loss, whole_loss, rtol=1e-6)
    assert difference(gradient, whole_gradient) <= 1e-6
    assert set(metrics) == set(whole_metrics)
    for name, (total, weight) in metrics.items():
        np.testing.assert_allclose(total, whole_metrics[name][0], rtol=2e-6, err_msg=name)
        np.testing.assert_array_equal(weight, whole_metrics[name][1], err_msg=name)


def test_loss_is_the_sum_of_coefficient_times_total_over_weight(batch, by_parts):
    loss, metrics, _ = by_parts[1]
    mean = {name: total / weight for name, (total, weight) in metrics.items() if np.ndim(total) == 0}
    alpha = 3 * 5 / 8  # at step 5 of 10, of which 2 are held
    assert {float(metrics[name][1]) for name in ("ag_loss", "nsp_loss")} == {7.0}
    assert float(metrics["mlm_loss"][1]) == batch["masked_weights"].sum()
    np.testing.assert_allclose(loss, mean["mlm_loss"] + mean["nsp_loss"] + alpha * mean["ag_loss"], rtol=1e-6)
    assert alpha * mean["ag_loss"] > 0.01 * loss


class Draws(Objective):
    """An objective whose metric has a number drawn with its key for dropout, in the place of its part of the batch."""

    def normalizers(self, batch):
        return {"task": batch["weights"].sum()}

    def coefficients(self, step):
        return {"task": jnp.float32(1)}

    def forward(self, params, batch, rngs, step, ports):
        drawn = batch["part"].mean(0) * jax.random.uniform(rngs["dropout"])
        return Outputs({"task": params * 0}, batch, metrics={"drawn": (drawn, jnp.float32(1))})

    def terms(self, outputs, batch):
        return {"task": outputs.predictions["task"]}, outputs.metrics


def test_every_microbatch_has_dropout_of_its_own():
    batch = {"part": np.tile(np.eye(4, dtype=np.float32), (2, 1)), "weights": np.ones(8, np.float32)}

    def drawn(key, microbatches=4):
        found = loss_and_gradient(
            jnp.float32(1), batch, key, jnp.int32(5), objective=Draws(), microbatches=microbatches
        )
        return np.asarray(found[1]["drawn"][0])

    one, other = drawn(jax.random.key(0)), drawn(jax.random.key(1))
    assert len({*one.tolist(), *other.tolist()}) == 8 and (one > 0).all()
    assert len(set(drawn(jax.random.key(0), microbatches=1).tolist())) == 1, "one part has one key"


def test_parts_really_are_uneven(batch):
    """Otherwise the tests above could not tell a mean of means from the mean."""
    weights = split_microbatches({"masked_weights": jnp.asarray(batch["masked_weights"])}, 4)["masked_weights"]
    counts = np.asarray(weights).sum((1, 2))
    assert counts.max() >= 3 * max(counts.min(), 1)


def test_state_after_a_step(still, batch):
    objective, params = still
    optimizer = make_optimizer(OptimizerConfig(learning_rate=0.01, clip_norm=None), 10)
    state = TrainState(jnp.int32(3), params, optimizer.init(params))
    key = jax.random.key(1)
    step = jax.jit(lambda state, batch, key: train_step(state, batch, key, objective=objective, optimizer=optimizer))
    after, metrics = step(state, batch, key)
    assert int(after.step) == 4
    assert {"loss", "gradient_norm", "tokens"} <= set(metrics)
    assert metrics["tokens"] == (sum(LENGTHS), 1)
    # The first update of Adam is the learning rate towards lower loss, wherever the gradient is not tiny.
    moved = jax.tree.map(lambda new, old: np.abs(np.asarray(new - old)), after.params, params)
    largest = max(leaf.max() for leaf in jax.tree.leaves(moved))
    np.testing.assert_allclose(largest, 0.01, rtol=1e-3)
    _, later = step(after, batch, key)
    assert float(later["loss"][0]) < float(metrics["loss"][0])


MESHES = {"one": None, "8x1x1": (8, 1, 1), "2x4x1": (2, 4, 1), "2x2x2": (2, 2, 2)}


@pytest.fixture(scope="module")
def trained(eight_devices):
    """Runs three steps of two microbatches with dropout, guidance and NSP on a mesh; remembers what came of it."""
    model = tiny.model(heads=4, width=16, dropout=0.1, attention_dropout=0.2)
    objective = tiny.guided(model, ASSIGNMENT, probabilities="after_dropout")
    optimizer = make_optimizer(OptimizerConfig(learning_rate=1e-2, weight_decay=0.1, epsilon=1e-3), 10)
    example = tiny.batch()
    batches = [tiny.batch(2 * LENGTHS, seed=seed) for seed in range(3)]
    done = {}

    def init(key):
        return model.init(key, example, deterministic=True)["params"]

    def run(name):
        if name not in done:
            shape = MESHES[name] or (1, 1, 1)
            mesh = make_mesh(MeshConfig(*shape), eight_devices[: int(np.prod(shape))])
            program = make_program(lambda _: objective, lambda _: optimizer, init, mesh, 4)
            step, (state, losses) = program.train_step, (program.create(jax.random.key(0)), [])
            for batch in batches:
                before = state
                state, metrics = step(state, sharding.place_batch(batch, mesh), jax.random.key(1), Hyperparameters())
                losses.append(float(metrics["loss"][0]))
            done[name] = {
                "before": before,
                "state": state,
                "losses": losses,
                "metrics": metrics,
                "step": step,
                "program": program,
                "shardings": program.shardings,
                "mesh": mesh,
                "objective": objective,
                "batch": batches[-1],
            }
        return done[name]

    return run


@pytest.mark.parametrize("name", some(["8x1x1", "2x4x1", "2x2x2"], "2x2x2"))
def test_every_mesh_trains_the_same(trained, name):
    """With dropout on. The 37 words of the vocabulary do not divide by the tensor axis of 2."""
    alone, spread = trained("one"), trained(name)
    np.testing.assert_allclose(spread["losses"], alone["losses"], rtol=2e-6)
    assert difference(spread["state"].params, alone["state"].params) < 1e-5
    for key, (total, weight) in alone["metrics"].items():
        np.testing.assert_allclose(spread["metrics"][key][0], total, rtol=2e-5, err_msg=key)
        np.testing.assert_allclose(spread["metrics"][key][1], weight, rtol=1e-6, err_msg=key)


def test_parameters_stay_split(trained):
    run = trained("2x2x2")
    leaves = jax.tree.leaves(run["state"])
    for leaf, wanted in zip(leaves, jax.tree.leaves(run["shardings"]), strict=True):
        assert leaf.sharding.is_equivalent_to(wanted, leaf.ndim)
    held = sum(leaf.addressable_shards[0].data.size for leaf in leaves)
    assert held < 0.45 * sum(leaf.size for leaf in leaves)
    assert run["metrics"]["loss"][0].sharding.is_fully_replicated


def test_training_lowers_the_loss_and_moves_everything(trained):
    run = trained("one")
    assert len(set(run["losses"])) == 3
    for path, leaf in jax.tree_util.tree_leaves_with_path(run["state"].params):
        name = jax.tree_util.keystr(path)
        if name.endswith("['bias']"):  # born as 0; only the keys' one has no gradient
            assert np.asarray(leaf).any() or "['key']" in name, name


@pytest.mark.parametrize("name", ["one", "2x2x2"])
def test_old_state_is_donated(trained, name):
    run = trained(name)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(run["before"]))


@pytest.mark.parametrize("name", ["one", "2x2x2"])
def test_compiled_once_for_all_steps(trained, name):
    assert trained(name)["step"]._cache_size() == 1


def test_dropout_follows_the_step_and_the_key(trained):
    """The same state and batch: another step or another run's key gives another loss; the same ones give the same."""
    run = trained("one")
    optimizer = make_optimizer(OptimizerConfig(), 10)

    @jax.jit
    def loss(step, key):
        params = run["state"].params
        state = TrainState(step, params, optimizer.init(params))
        return train_step(state, run["batch"], key, objective=run["objective"], optimizer=optimizer)[1]["mlm_loss"][0]

    values = [float(loss(jnp.int32(step), jax.random.key(seed))) for step, seed in ((0, 0), (0, 0), (1, 0), (0, 1))]
    assert values[0] == values[1] and len(set(values)) == 3


def test_evaluation_has_no_dropout_and_no_update(trained):
    run = trained("2x2x2")
    evaluate = run["program"].evaluation_step
    placed = sharding.place_batch(run["batch"], run["mesh"])
    metrics = evaluate(run["state"].params, placed, jnp.int32(3), Hyperparameters())
    again = evaluate(run["state"].params, placed, jnp.int32(3), Hyperparameters())
    np.testing.assert_array_equal(jax.tree.leaves(metrics["mlm_loss"]), jax.tree.leaves(again["mlm_loss"]))
    still = tiny.guided(tiny.model(heads=4, width=16), ASSIGNMENT)
    expected = jax.jit(lambda params, batch: tiny.evaluate(still, params, batch, None, jnp.int32(3)).metrics)(
        jax.device_get(run["state"].params), run["batch"]
    )
    for name, pair in expected.items():
        np.testing.assert_allclose(metrics[name][0], pair[0], rtol=2e-5, err_msg=name)
        np.testing.assert_allclose(metrics[name][1], pair[1], rtol=1e-6, err_msg=name)
