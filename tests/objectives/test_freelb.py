"""FreeLB: against the released programs in numpy, and a plain loop with an encoder."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ag_jax.attention import dropout
from ag_jax.models.encoder import Ports
from ag_jax.objectives.adversarial.config import FreeLBConfig
from ag_jax.objectives.adversarial.freelb import FreeLB
from ag_jax.objectives.base import loss_factors
from tests import reference, tiny
from tests.objectives import perturbed

INITIAL = jax.random.fold_in(perturbed.KEY, 0xF1EE)


def row_norms(values):
    return np.sqrt((np.asarray(values, np.float64) ** 2).sum((1, 2)))


def numbers_at(delta, batch, w):
    """Loss of the task, of both terms, and gradients of w and the vectors, of `perturbed.Linear` in float64."""
    is_token = batch["segment_ids"][:, :, None] > 0
    sums = np.where(is_token, batch["vectors"] + delta, 0.0).sum(1)
    residual, size = batch["weights"] * (sums @ w - batch["labels"]), sums @ w
    slope_of_y = 2 * residual / 3 + 0.5 * 2 * size / 7
    task = (residual**2).sum() / 3
    by_vectors = np.where(is_token, slope_of_y[:, None, None] * w, 0.0)
    return task, task + 0.5 * (size**2).sum() / 7, slope_of_y @ sums, by_vectors


def moved_up(delta, slope, config):
    """`delta` after a step of ascent of length `step_size` for each row, cut to `max_norm`."""
    moved = np.zeros_like(delta)
    for row in range(len(delta)):
        length = max(np.sqrt((slope[row] ** 2).sum()), 1e-10)
        moved[row] = delta[row] + config.step_size / length * slope[row]
        norm = np.sqrt((moved[row] ** 2).sum())
        if config.max_norm and norm > config.max_norm:
            moved[row] *= config.max_norm / norm
    return moved


def released_program(first, config, numbers):
    """Means over passes of what `numbers` returns at the perturbations of the authors' programs, and these.

    `freelb_train_step` of fairseq has a pass, then `steps` times an ascent and a pass; run_glue_freelb.py has `steps`
    passes, and an ascent after each but the last. The last of the numbers is the slope to ascend.
    """
    delta, found, deltas = np.asarray(first, np.float64), [], []
    for number in range(config.steps + (config.count == "fairseq")):
        if number:
            delta = moved_up(delta, found[-1][-1], config)
        deltas.append(delta)
        found.append(numbers(delta))
    means = jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *(of[:-1] for of in found))
    return means, deltas


@pytest.mark.parametrize(
    ("count", "init_magnitude", "max_norm"),
    [("fairseq", 1.0, 0.8), ("fairseq", 0.0, 0.5), ("huggingface", 1.0, 0.8), ("huggingface", 0.0, None)],
)
def test_the_released_programs(count, init_magnitude, max_norm):
    """Loss of two terms, gradient and perturbations, for a linear model; an evaluation is not attacked."""
    config = FreeLBConfig(steps=3, count=count, step_size=0.3, init_magnitude=init_magnitude, max_norm=max_norm)
    batch, w = perturbed.linear_batch(), np.asarray(perturbed.W["w"], np.float64)
    inner = perturbed.Linear(has_size=True)
    attacked = FreeLB(perturbed.Seen(inner), config, 3)
    first = attacked.init(INITIAL, jnp.asarray(batch["segment_ids"]))
    assert bool(first.any()) == bool(init_magnitude)
    wanted, deltas = released_program(first, config, lambda delta: numbers_at(delta, batch, w))
    lengths = row_norms(deltas[-1])[:3]
    assert not max_norm or max_norm in [pytest.approx(length) for length in lengths], "some text reaches the ball"
    loss, metrics, gradient = perturbed.trained(attacked, perturbed.W, batch)
    np.testing.assert_allclose(metrics["task_loss"], (3 * wanted[0], 3), rtol=1e-5)
    np.testing.assert_allclose(loss, wanted[1], rtol=1e-5)
    np.testing.assert_allclose(gradient["w"], wanted[2], rtol=1e-5)
    np.testing.assert_allclose(metrics["delta"][0], np.mean(deltas, 0), atol=1e-6)
    np.testing.assert_allclose(metrics["delta_norm"], (lengths.sum(), 3), rtol=1e-5)
    perturbed.evaluated_as_without(FreeLB(inner, config, 3), perturbed.W, batch)


def test_an_encoder_is_trained_in_parts_as_by_a_plain_loop():
    """The model is guided, and every candidate is a row of the encoder."""
    model, batch = tiny.task_model("choice", layers=1), tiny.task_batch("choice")
    inner = tiny.guided(model, objective=tiny.supervised)
    params, config = tiny.params(model, batch), FreeLBConfig(steps=2, step_size=0.5, init_magnitude=0.0, max_norm=0.7)
    segments_BL = batch["segment_ids"].reshape(-1, tiny.LENGTH)

    @jax.jit
    def slopes(params, delta):
        def loss(params, delta):
            totals = tiny.evaluate(inner, params, batch, None, perturbed.STEP, Ports(embedding_delta=delta)).totals
            factors = loss_factors(inner, batch, perturbed.STEP)
            return sum(factors[term] * totals[term] for term in ("task", "ag"))

        return jax.value_and_grad(loss, (0, 1))(params, delta)

    def numbers(delta):
        value, (gradient, slope) = slopes(params, np.float32(delta))
        return (
            value,
            jax.tree.map(np.asarray, gradient),
            np.where(segments_BL[:, :, None] > 0, np.asarray(slope, np.float64), 0),
        )

    (value, gradient), deltas = released_program(np.zeros((*segments_BL.shape, 12)), config, numbers)
    loss, metrics, found = perturbed.trained(FreeLB(inner, config, 12), params, batch, microbatches=2)
    np.testing.assert_allclose(loss, value, rtol=1e-5)
    perturbed.close(found, gradient)
    lengths = row_norms(deltas[-1])
    np.testing.assert_allclose(metrics["delta_norm"], (lengths.sum(), (lengths > 0).sum()), rtol=1e-4)


@pytest.mark.parametrize("max_norm", [0.5, None])
def test_each_text_begins_and_moves_on_its_own(max_norm):
    """Includes packed rows: uniform in a box whose corners have the initial length, then along its own slope."""
    config = FreeLBConfig(init_magnitude=0.4, step_size=0.45, max_norm=max_norm)
    attacked, segments_BL = FreeLB(perturbed.Linear(), config, 5), tiny.mixed_batch()["segment_ids"]
    first = np.asarray(attacked.init(perturbed.KEY, jnp.asarray(segments_BL)))
    uniform = np.asarray(dropout.uniform(perturbed.KEY, first.shape))
    slope = np.asarray(jax.random.normal(perturbed.KEY, first.shape))
    moved = np.asarray(attacked.update(first, slope, jnp.asarray(segments_BL)))
    wanted, cut = np.zeros((2, *first.shape)), []
    for row, of_row in enumerate(segments_BL):
        for text in reference.texts(of_row):
            wanted[0, row, text] = 0.4 / np.sqrt(len(text) * 5) * (2 * uniform[row, text] - 1)
            step = slope[row, text] * 0.45 / np.linalg.norm(slope[row, text])
            length = np.linalg.norm(wanted[0, row, text] + step)
            cut.append(length > 0.5)
            wanted[1, row, text] = (wanted[0, row, text] + step) * min(1, (max_norm or 9) / length)
    np.testing.assert_allclose([first, moved], wanted, rtol=1e-5, atol=1e-7)
    assert any(cut) and not all(cut)
    assert not np.asarray(attacked.update(0 * first, 0 * slope, jnp.asarray(segments_BL))).any()


def test_dropout_is_the_same_in_all_passes_or_not_but_samples_are():
    for kind in ("shared", "independent"):
        config = FreeLBConfig(steps=3, step_size=0.0, init_magnitude=0.0, dropout=kind)
        _, metrics, _ = perturbed.trained(
            FreeLB(perturbed.Seen(perturbed.Linear()), config, 3), perturbed.W, perturbed.linear_batch()
        )
        keys = [perturbed.KEY] * 3
        if kind == "independent":
            keys[1:] = [jax.random.fold_in(perturbed.KEY, 0xF100 + number) for number in (1, 2)]
        drawn = np.mean([jax.random.normal(key) for key in keys]), jax.random.normal(perturbed.KEY)
        np.testing.assert_allclose(metrics["drawn"][0], drawn, rtol=1e-5)
