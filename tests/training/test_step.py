"""One step of training: parts that add up to the whole, and the same result on any mesh."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ag_jax.objectives.base import Objective, Outputs
from ag_jax.training import sharding
from ag_jax.training.hyperparameters import Hyperparameters
from ag_jax.training.optimizer import OptimizerConfig, make_optimizer
from ag_jax.training.program import make_program
from ag_jax.training.sharding import MeshConfig, make_mesh
from ag_jax.training.state import TrainState
from ag_jax.training.step import gradient_norms, loss_and_gradient, split_microbatches, train_step
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

    return {microbatches: run(microbatches) for microbatches in (1, 4)}


def difference(one, other):
    """Relative distance of two trees as one vector, computed in float64."""
    a, b = (np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tiny.float64(tree))]) for tree in (one, other))
    return np.linalg.norm(a - b) / np.linalg.norm(b)


def test_accumulation_is_exact(batch, by_parts):
    """However uneven the parts are."""
    weights = split_microbatches({"masked_weights": jnp.asarray(batch["masked_weights"])}, 4)["masked_weights"]
    counts = np.asarray(weights).sum((1, 2))
    assert counts.max() >= 3 * max(counts.min(), 1), "a mean of means would be the mean"
    (loss, metrics, gradient), (whole_loss, whole_metrics, whole_gradient) = by_parts[4], by_parts[1]
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


class Linear(Objective):
    """The squared error of x w + b, with a coefficient that rises with the step."""

    def normalizers(self, batch):
        return {"task": batch["weights"].sum()}

    def coefficients(self, step):
        return {"task": 2.0 + step}

    def forward(self, params, batch, rngs, step, ports):
        return Outputs({"task": batch["x"] @ params["kernel"] + params["bias"]}, batch)

    def terms(self, outputs, batch):
        total = (batch["weights"] * (outputs.predictions["task"] - batch["y"]) ** 2).sum()
        return {"task": total}, {"task_loss": (total, batch["weights"].sum())}


def test_a_step_against_numpy():
    """Four rows in two parts, with a momentum in the optimizer's state; the tokens are those of source and target."""
    rng = np.random.default_rng(0)
    x, y, weights = rng.standard_normal((4, 3)), rng.standard_normal(4), np.array([1.0, 0.0, 2.0, 0.5])
    w, b, momentum = rng.standard_normal(3), 0.3, 0.0
    fields = {
        "x": x,
        "y": y,
        "weights": weights,
        "segment_ids": np.eye(4, 5) * 3,
        "target_segment_ids": np.ones((4, 2)),
    }
    batch = {name: jnp.asarray(field, jnp.float32) for name, field in fields.items()}
    optimizer = optax.sgd(0.1, momentum=0.9)
    params = {"kernel": jnp.asarray(w, jnp.float32), "bias": jnp.float32(b)}
    state = TrainState(jnp.int32(3), params, optimizer.init(params))
    step = functools.partial(train_step, objective=Linear(), optimizer=optimizer, microbatches=2)
    for number in (3, 4):
        state, metrics = jax.jit(step)(state, batch, jax.random.key(1))
        error = x @ w + b - y
        total = (weights * error**2).sum()
        gradient = np.append(2 * (weights * error) @ x, 2 * (weights * error).sum()) * (2 + number) / 3.5
        momentum = 0.9 * momentum + gradient
        w, b = w - 0.1 * momentum[:3], b - 0.1 * momentum[3]
        expected = {"loss": ((2 + number) * total / 3.5, 1), "task_loss": (total, 3.5), "tokens": (4 + 8, 1)}
        expected["gradient_norm"] = (np.linalg.norm(gradient), 1)
        assert metrics.keys() == expected.keys()
        for name, pair in expected.items():
            np.testing.assert_allclose(metrics[name], pair, rtol=2e-6, err_msg=name)
    assert int(state.step) == 5
    np.testing.assert_allclose(np.append(state.params["kernel"], state.params["bias"]), np.append(w, b), rtol=2e-6)


def test_the_norm_of_an_adversary_is_a_metric_of_its_own():
    found = gradient_norms({"encoder": jnp.array([3.0, 4.0]), "adversary": jnp.array([5.0, 12.0])})
    assert {name: float(norm) for name, norm in found.items()} == {"gradient_norm": 5, "adversary_gradient_norm": 13}


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
                "program": program,
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
    for leaf, wanted in zip(leaves, jax.tree.leaves(run["program"].shardings), strict=True):
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
def test_compiled_once_for_all_steps_which_take_the_memory_of_the_state_before(trained, name):
    run = trained(name)
    assert run["program"].train_step._cache_size() == 1
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(run["before"]))


def test_dropout_follows_the_step_and_the_key(trained):
    """The same state and batch: another step or another run's key gives another loss; the same ones give the same."""
    run = trained("one")

    def loss(step, seed):
        state = run["program"].create(jax.random.key(0)).replace(step=jnp.int32(step))
        metrics = run["program"].train_step(state, run["batch"], jax.random.key(seed), Hyperparameters())[1]
        return float(metrics["mlm_loss"][0])

    values = [loss(step, seed) for step, seed in ((0, 0), (0, 0), (1, 0), (0, 1))]
    assert values[0] == values[1] and len(set(values)) == 3


def test_evaluation_has_no_dropout_and_no_update(trained):
    run = trained("2x2x2")
    evaluate = run["program"].evaluation_step
    placed = sharding.place_batch(run["batch"], run["program"].mesh)
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
