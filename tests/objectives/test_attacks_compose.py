"""Attacks computed again and on meshes, an adversary's optimizer, and masks that nobody learns."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ag_jax.attention.attack import MaskPolicy
from ag_jax.attention.kernels import reference as plain
from ag_jax.attention.kernels.dispatch import Fused
from ag_jax.attention.kernels.tpu import attention as tpu
from ag_jax.attention.segments import same_segment_mask
from ag_jax.models.masked_lm import PretrainingModel
from ag_jax.objectives.adversarial import wrap as adversarial
from ag_jax.objectives.adversarial.config import AdversarialConfig
from ag_jax.objectives.adversarial.masking import LargestMasks, RandomMasks, Trace
from ag_jax.objectives.masked_lm import Pretraining
from ag_jax.training import sharding
from ag_jax.training.config import MeshConfig, OptimizerConfig
from ag_jax.training.hyperparameters import Hyperparameters
from ag_jax.training.optimizer import AdversaryOptimizer, make_optimizer
from ag_jax.training.program import make_program
from ag_jax.training.sharding import make_mesh
from tests import reference, tiny
from tests.objectives import perturbed
from tests.objectives.perturbed import RNGS, STEP, attacked, params_of, same_text, symmetric

LENGTHS = (11, 7, 5, 0, 9, 4, 11, 2)


def test_recomputed_and_by_the_kernel_it_is_the_same():
    """Random masks, which the backward pass must draw again as they were; they mask their share."""
    found, batch = {}, tiny.task_batch("classification")
    kernel = Fused(functools.partial(tpu.attend, interpret=True))
    for remat, attend in (("layer", kernel), ("none", plain.attend)):
        model = tiny.task_model("classification", remat=remat).clone(attend=attend)
        objective = attacked(tiny.supervised(model), "bernoulli", share=0.4)
        found[remat] = perturbed.trained(objective, params_of(objective, batch), batch)
    np.testing.assert_allclose(found["layer"][0], found["none"][0], rtol=3e-6)
    perturbed.close(found["layer"][2], found["none"][2], rtol=1e-5, atol=1e-5)
    number, count = found["layer"][1]["masked"]
    np.testing.assert_allclose(number / count, 0.4, atol=0.04)
    assert set(objective.coefficients(STEP)) == {"task", "masking"} and found["layer"][1]["masking_loss"][0] > 1e-3


def test_a_mesh_trains_the_same(eight_devices):
    """Two steps with an adversary that has its own optimizer; `training/test_step.py` has dropout and guidance."""
    model = PretrainingModel(tiny.config(layers=1, heads=4, width=16))
    objective = attacked(Pretraining(model), shape=model.config, tau=0.1)
    own = AdversaryOptimizer(OptimizerConfig(learning_rate=2e-2, epsilon=1e-3))
    optimizer = make_optimizer(OptimizerConfig(learning_rate=1e-2, weight_decay=0.1, epsilon=1e-3), 10, own)
    params = jax.tree.map(np.asarray, params_of(objective, tiny.batch()))
    batches = [tiny.batch(LENGTHS, seed=seed) for seed in range(2)]

    def init(key):
        beside = adversarial.init(AdversarialConfig("asa"), model.config, jax.random.key(4))
        return model.init(key, tiny.batch(), deterministic=True)["params"] | beside

    def run(shape):
        mesh = make_mesh(MeshConfig(*shape), eight_devices[: int(np.prod(shape))])
        program = make_program(lambda _: objective, lambda _: optimizer, init, mesh)
        state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), program.abstract).replace(params=params)
        state, losses = jax.device_put(state, program.shardings), []
        for batch in batches:
            placed = sharding.place_batch(batch, mesh)
            state, metrics = program.train_step(state, placed, jax.random.key(1), Hyperparameters())
            losses.append(float(metrics["loss"][0]))
        return state, losses, metrics, program.shardings

    alone, spread = run((1, 1, 1)), run((1, 2, 2))
    np.testing.assert_allclose(spread[1], alone[1], rtol=5e-6)
    perturbed.close(spread[0].params, alone[0].params, rtol=1e-4, atol=1e-4)
    for key in ("masked", "masked/layers", "kept_units", "asa_loss", "adversary_gradient_norm", "gradient_norm"):
        np.testing.assert_allclose(spread[2][key][0], alone[2][key][0], rtol=5e-5, err_msg=key)
    assert alone[2]["adversary_gradient_norm"][0] > 0
    for leaf, wanted in zip(jax.tree.leaves(spread[0]), jax.tree.leaves(spread[3]), strict=True):
        assert leaf.sharding.is_equivalent_to(wanted, leaf.ndim)
    kernel = spread[0].params["adversary"]["query"]["kernel"]
    assert kernel.shape == (1, 16, 16) and kernel.addressable_shards[0].data.size == kernel.size // 4


def test_the_adversarys_optimizer_is_one_of_its_own_and_begins_with_the_attack():
    """Clipped by its own norm, with its own rate and decay, warmed up from the attack on as in a run of the steps left.

    Neither decay nor the zeros of a delay's gradients leave a trace; the model's part is what it would be alone.
    """
    params = {"encoder": {"kernel": jnp.ones((2, 3))}, "adversary": {"query": {"kernel": jnp.ones((2, 2))}}}
    own = OptimizerConfig(learning_rate=0.3, warmup_steps=2, weight_decay=0.5, epsilon=10.0)
    model = OptimizerConfig(learning_rate=0.01)
    both = make_optimizer(model, 9, AdversaryOptimizer(own, delay=4))
    alone = {"encoder": make_optimizer(model, 9), "adversary": make_optimizer(own, 5)}
    state, states = both.init(params), {part: of.init(params[part]) for part, of in alone.items()}

    @jax.jit
    def updates(gradient, state, states):
        expected = {part: of.update(gradient[part], states[part], params[part]) for part, of in alone.items()}
        return both.update(gradient, state, params), expected

    for step in range(8):
        factor = 0.0 if step < 4 else 1e4 + step
        gradient = {"encoder": {"kernel": np.full((2, 3), 0.1 + step, np.float32)}}
        gradient["adversary"] = {"query": {"kernel": np.full((2, 2), factor, np.float32)}}
        (found, state), separate = updates(gradient, state, states)
        expected = {"adversary": {"query": {"kernel": np.zeros((2, 2))}}}
        for part in alone if step >= 4 else ["encoder"]:
            expected[part], states[part] = separate[part]
        jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert np.abs(found["adversary"]["query"]["kernel"]).max() > 1e-3


@functools.partial(jax.jit, static_argnums=0)
def in_layers(masks, shares, segment_ids, scores):
    """Return the counts of each layer, and which units `NBQK` are kept."""
    visible_BQK, attack = same_segment_mask(segment_ids), masks(shares, MaskPolicy())

    def one(layer, key):
        found = layer(jnp.zeros((*segment_ids.shape, 4)), visible_BQK, lambda: scores, key)
        return found.counts, (found.bias_BHQK == 0)[:, 0]

    return jax.vmap(one)(attack, jax.random.split(jax.random.key(3), len(shares)))


def test_random_masks():
    _, segment_ids = reference.packed([[40], [23, 17], [5]], 40)
    units, kept = in_layers(RandomMasks, jnp.array([0.05, 0.3]), segment_ids, 0.0)
    np.testing.assert_allclose(1 - units.kept_B.sum(1) / units.all_B.sum(1), [0.05, 0.3], atol=0.02)
    assert units.all_B.tolist() == [[1600, 23**2 + 17**2, 25]] * 2
    assert abs(np.corrcoef(np.ravel(kept[0, 0]), np.ravel(kept[1, 0]))[0, 1]) < 0.1, "layers draw apart"


def largest(weights_K, seen, share):
    """The keys of largest weight among those that are seen, as many as the share of these, halves rounded up."""
    return seen[np.argsort(-weights_K[seen])][: int(np.floor(share * len(seen) + 0.5))]


def test_largest_masks():
    """In every row the ones that are attended to most, of its own text."""
    _, segment_ids = reference.packed([[11], [6, 5], []], 11)
    weights = reference.random_attention(segment_ids, 1, 1)[0][:, 0]
    units, kept = in_layers(LargestMasks, jnp.array([0.3, 0.5]), segment_ids, jnp.asarray(weights, jnp.float32))
    for layer, share in enumerate((0.3, 0.5)):
        masked = 0
        for row, query in np.argwhere(segment_ids > 0):
            most = largest(weights[row, query], reference.text_of(segment_ids[row], query), share)
            np.testing.assert_array_equal(np.flatnonzero(~np.asarray(kept[layer, row, query])), np.sort(most))
            masked += len(most)
        assert units.all_B[layer].sum() - units.kept_B[layer].sum() == masked


@pytest.mark.parametrize("name", ["deberta_v1", "windowed"])
def test_magnitude_looks_at_the_layers_own_attention(name):
    """Averaged over the heads, under the masks of the layers below; the mask decoder has the mask of the last layer.

    In layers with a window, the share is one of the keys in the window.
    """
    batch, model = tiny.mixed_batch(), tiny.model(**(tiny.ENCODERS | tiny.ABLATIONS)[name])
    objective = attacked(Pretraining(model), "magnitude", shape=model.config, share=0.25)
    params, config = params_of(objective, batch), model.config
    outcome = tiny.evaluated(objective, params, batch, RNGS, STEP)
    exact, masks = tiny.float64(params), {}

    def keep(index, x_BLD):
        if index not in masks:
            of = exact["encoder"]
            table = of["relative"]["embedding"] if "relative" in of else None
            layer = reference.take_layer(of["layers"], index)["attention"]
            settings = {"table_RD": table, "relative": config.relative, "window": config.window}
            _, weights = reference.attention(x_BLD, layer, batch["segment_ids"], **settings)
            masks[index] = np.ones((6, 1, 11, 11))
            for row, query in np.argwhere(batch["segment_ids"] > 0):
                text = reference.text_of(batch["segment_ids"][row], query)
                seen = text if config.window is None else text[np.abs(text - query) <= config.window // 2]
                masks[index][row, 0, query, largest(weights[row, :, query].mean(0), seen, 0.25)] = 0
        return masks[index]

    clean, other = (reference.predict(exact, batch, config, keep=mask)[0] for mask in (None, keep))
    expected = (symmetric(clean, other) * batch["masked_weights"]).sum()
    np.testing.assert_allclose(outcome.totals["masking"], expected, rtol=1e-3)
    seen = np.abs(np.subtract.outer(range(11), range(11))) <= (config.window or 22) // 2
    count = config.layers * (same_text(batch["segment_ids"]) & seen).sum()
    assert outcome.metrics["masked"] == (sum((mask == 0).sum() for mask in masks.values()), count)
    assert set(outcome.totals) == {"mlm", "nsp", "masking", "masking_nsp"} and "masking_loss" in outcome.metrics


def test_scheduled_masks_follow_the_trace():
    trace = Trace((0.5, 1.0), ((0.2, 0.6), (0.4, 0.0)))
    objective = attacked(Pretraining(tiny.model()), "scheduled", recorded=trace, trace="runs/asa")
    found = jax.vmap(lambda step: objective.attacker({}, {}, step).share_N)(jnp.array([0, 5, 7.5, 10, 12]))
    np.testing.assert_allclose(found, [(0.2, 0.6), (0.2, 0.6), (0.3, 0.3), (0.4, 0.0), (0.4, 0.0)], atol=1e-6)
