"""FreeLB: against the released programs and a plain loop with two backward passes, in parts,
around everything, at its price.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ag_jax import config_reader
from ag_jax.models.encoder import Ports
from ag_jax.objectives.adversarial.config import AdversarialConfig, FreeLBConfig
from ag_jax.objectives.adversarial.freelb import FreeLB
from ag_jax.objectives.guided import Guided
from tests import tiny
from tests.cases import some
from tests.objectives import perturbed

STILL = FreeLBConfig(step_size=0.0, init_magnitude=0.0)
WIDTH = tiny.CONFIG.width


def row_norms(values):
    return np.sqrt((np.asarray(values, np.float64) ** 2).sum((1, 2)))


def numbers_at(delta, batch, w):
    """Loss, gradient of w and gradient of the vectors of `perturbed.Linear` in float64, at vectors moved by `delta`."""
    is_token = batch["segment_ids"][:, :, None] > 0
    sums = np.where(is_token, batch["vectors"] + delta, 0.0).sum(1)
    residual, count = batch["weights"] * (sums @ w - batch["labels"]), batch["weights"].sum()
    by_vectors = np.where(is_token, 2 * residual[:, None, None] * w / count, 0.0)
    return (residual**2).sum() / count, 2 * residual @ sums / count, by_vectors


def moved_up(delta, slope, config):
    """`delta` after a step of ascent of length `step_size` for each row, cut to `max_norm`."""
    moved = np.zeros_like(delta)
    for row in range(len(delta)):
        length = max(np.sqrt((slope[row] ** 2).sum()), 1e-10)
        moved[row] = delta[row] + config.step_size / length * slope[row]
        norm = np.sqrt((moved[row] ** 2).sum())
        if 0 < config.max_norm < norm:
            moved[row] *= config.max_norm / norm
    return moved


def fairseq_program(first, batch, w, config):
    """`freelb_train_step` of fairseq's sentence_prediction task: a pass, then `adv_steps` times an ascent and a pass.

    The first pass is at the drawn perturbation if `rand_init_mag` is above 0, otherwise at the words themselves, whose
    gradient is then that of the perturbation. Every loss is divided by 1 + adv_steps, and gradients add up.
    """
    delta = first if config.init_magnitude > 0 else np.zeros_like(first)
    share, deltas = 1 / (1 + config.steps), [delta]
    loss, gradient, slope = numbers_at(delta, batch, w)
    loss, gradient = share * loss, share * gradient
    for _ in range(config.steps):
        delta = moved_up(delta, slope, config)
        deltas.append(delta)
        of_pass, by_w, slope = numbers_at(delta, batch, w)
        loss, gradient = loss + share * of_pass, gradient + share * by_w
    return loss, gradient, deltas


def huggingface_program(first, batch, w, config):
    """The training loop of run_glue_freelb.py: `adv_steps` passes, and an ascent after each but the last."""
    delta = first if config.init_magnitude > 0 else np.zeros_like(first)
    loss, gradient, deltas = 0.0, 0.0, []
    for number in range(config.steps):
        of_pass, by_w, slope = numbers_at(delta, batch, w)
        loss, gradient = loss + of_pass / config.steps, gradient + by_w / config.steps
        deltas.append(delta)
        if number == config.steps - 1:
            break
        delta = moved_up(delta, slope, config)
    return loss, gradient, deltas


@pytest.mark.parametrize(
    ("count", "init_magnitude", "max_norm"),
    [
        ("fairseq", 1.0, 0.0),
        ("fairseq", 1.0, 0.8),
        ("fairseq", 0.0, 0.0),
        ("fairseq", 0.0, 0.5),
        ("huggingface", 1.0, 0.8),
        ("huggingface", 0.0, 0.0),
    ],
)
def test_the_released_programs(count, init_magnitude, max_norm):
    """Loss, gradient and perturbations are those of the authors' two programs, written out
    in numpy for a linear model.
    """
    config = FreeLBConfig(steps=3, count=count, step_size=0.3, init_magnitude=init_magnitude, max_norm=max_norm)
    batch, w = perturbed.linear_batch(), np.asarray(perturbed.W["w"], np.float64)
    attacked = FreeLB(perturbed.Seen(perturbed.Linear()), config, 3)
    first = np.asarray(
        attacked.init(jax.random.fold_in(perturbed.KEY, 0xF1EE), jnp.asarray(batch["segment_ids"])), np.float64
    )
    assert bool(first.any()) == bool(init_magnitude)
    program = {"fairseq": fairseq_program, "huggingface": huggingface_program}[count]
    wanted_loss, wanted_gradient, deltas = program(first, batch, w, config)
    lengths = [row_norms(delta)[:3] for delta in deltas]
    if not init_magnitude:  # a linear model has the same slope everywhere
        grown = [0.0, 0.3, 0.6, 0.9] if count == "fairseq" else [0.0, 0.3, 0.6]
        np.testing.assert_allclose(lengths, np.repeat(np.minimum(grown, max_norm or 1)[:, None], 3, 1), atol=1e-12)
    elif max_norm:
        assert max_norm in [pytest.approx(length) for length in lengths[-1]], "some text reaches the ball"
    loss, metrics, gradient = perturbed.trained(attacked, perturbed.W, batch)
    np.testing.assert_allclose(loss, wanted_loss, rtol=1e-5)
    np.testing.assert_allclose(gradient["w"], wanted_gradient, rtol=1e-5)
    np.testing.assert_allclose(metrics["delta"][0], np.mean(deltas, 0), atol=1e-6)
    np.testing.assert_allclose(metrics["task_loss"][0] / metrics["task_loss"][1], wanted_loss, rtol=1e-5)
    np.testing.assert_allclose(metrics["delta_norm"][0] / metrics["delta_norm"][1], lengths[-1].mean(), rtol=1e-5)


def plain_loop(objective, config, width, params, batch, first):
    """Two backward passes for each pass, and norms row by row in float64: for batches of one text a row."""
    weights, coefficients = objective.normalizers(batch), objective.coefficients(perturbed.STEP)

    @jax.jit
    def loss(params, delta):
        outcome = tiny.evaluate(
            objective, params, batch, {"dropout": perturbed.KEY}, perturbed.STEP, Ports(embedding_delta=delta)
        )
        return sum(coefficients[term] / jnp.maximum(weights[term], 1) * outcome.totals[term] for term in weights)

    of_params, of_delta = jax.jit(jax.grad(loss)), jax.jit(jax.grad(loss, argnums=1))
    values, gradients, deltas = [], [], []
    delta = np.asarray(first, np.float64)
    for _ in range(config.steps + 1 if config.count == "fairseq" else config.steps):
        values.append(loss(params, jnp.float32(delta)))
        gradients.append(of_params(params, jnp.float32(delta)))
        deltas.append(delta)
        slope = np.asarray(of_delta(params, jnp.float32(delta)), np.float64)
        valid = batch["segment_ids"].reshape(-1, tiny.LENGTH)[:, :, None] > 0
        slope = np.where(valid, slope, 0)
        length = row_norms(slope)[:, None, None]
        delta = delta + config.step_size * np.divide(slope, length, out=0 * slope, where=length > 1e-12)
        norm = row_norms(delta)[:, None, None]
        if config.max_norm:
            delta = np.where(norm > config.max_norm, delta * config.max_norm / np.maximum(norm, 1e-30), delta)
    mean = jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *gradients)
    return np.mean(values), mean, np.mean(deltas, 0), row_norms(deltas[-1])


@pytest.mark.parametrize(
    ("name", "steps", "count"),
    some(
        [
            ("guided", 2, "huggingface"),
            ("choice", 3, "huggingface"),
            ("guided", 1, "fairseq"),
            ("tagging", 2, "fairseq"),
        ],
        ("choice", 3, "huggingface"),
    ),
)
def test_the_same_as_two_backward_passes(name, steps, count):
    objective, batch = perturbed.CASES[name]
    config = FreeLBConfig(steps=steps, count=count, step_size=0.4, init_magnitude=0.7, max_norm=0.8)
    params = perturbed.params_of(objective, batch)
    attacked = FreeLB(perturbed.Seen(objective), config, WIDTH)
    segment_ids = jnp.asarray(batch["segment_ids"]).reshape(-1, tiny.LENGTH)
    first = attacked.init(jax.random.fold_in(perturbed.KEY, 0xF1EE), segment_ids)
    value, gradient, delta, last = plain_loop(objective, config, WIDTH, params, batch, first)
    loss, metrics, found = perturbed.trained(attacked, params, batch)
    np.testing.assert_allclose(loss, value, rtol=1e-5)
    np.testing.assert_allclose(metrics["delta"][0], delta, atol=2e-5)
    np.testing.assert_allclose(metrics["delta_norm"][0] / metrics["delta_norm"][1], last[last > 0].mean(), rtol=1e-4)
    assert last.max() < 0.8 + 1e-5 and (steps == 1 or last.max() > 0.6)
    perturbed.close(found, gradient)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["regression", "choice", "tagging", "guided", "generator", "nsp", "bias"])
def test_nothing_moved_is_plain_training(name):
    """Whatever the objective; the last of three passes is as good as their mean."""
    objective, batch = perturbed.CASES[name]
    params, (loss, metrics, gradient) = perturbed.plain(name)
    attacked = FreeLB(objective, dataclasses.replace(STILL, steps=2, dropout="independent"), WIDTH)
    again, more, found = perturbed.trained(attacked, params, batch)
    np.testing.assert_allclose(again, loss, rtol=1e-5)
    perturbed.close(found, gradient)
    assert more.pop("delta_norm")[0] == 0
    perturbed.close(more, metrics)
    assert (attacked.primary_metric, attacked.prediction_names) == (
        objective.primary_metric,
        objective.prediction_names,
    )


@pytest.mark.parametrize("name", some(["span", "bias", "mlm", "generator"], "span"))
def test_an_attack_hurts(name):
    objective, batch = perturbed.CASES[name]
    params, (loss, _, _) = perturbed.plain(name)
    config = FreeLBConfig(steps=2, step_size=0.5, init_magnitude=0.0, max_norm=None)
    assert perturbed.trained(FreeLB(objective, config, WIDTH), params, batch)[0] > loss + 1e-4 * abs(loss)


def test_an_evaluation_is_not_attacked():
    objective, batch = perturbed.CASES["classification"]
    params = perturbed.params_of(objective, batch)
    attacked = FreeLB(objective, FreeLBConfig(init_magnitude=1.0), WIDTH)
    found = tiny.evaluate(attacked, params, batch, None, perturbed.STEP)
    assert found.totals["task"] == tiny.evaluate(objective, params, batch, None, perturbed.STEP).totals["task"]
    assert "delta_norm" not in found.metrics


@pytest.mark.parametrize("name", some(["guided", "nsp", "unigram", "tagging"], "guided"))
def test_parts_are_exact(name):
    """Of any number of terms, as the factors of the whole batch reach every part; starting points are drawn in each."""
    objective, batch = perturbed.CASES[name]
    batch = {field: values[: len(values) // 2 * 2] for field, values in batch.items()}
    params = perturbed.params_of(objective, batch)
    attacked = FreeLB(objective, FreeLBConfig(steps=3, step_size=0.5, init_magnitude=0.0, max_norm=0.7), WIDTH)
    whole, parts = (perturbed.trained(attacked, params, batch, microbatches) for microbatches in (1, 2))
    np.testing.assert_allclose(parts[0], whole[0], rtol=1e-5)
    perturbed.close(parts[2], whole[2])


def test_each_text_of_a_row_is_perturbed_as_if_alone():
    """Rows 1, 2, 4 and 5: texts of 7 and of 3, both behind each other, and the 7 at the right."""
    objective, batch = perturbed.CASES["mlm"]
    params = perturbed.params_of(objective, batch)
    attacked = FreeLB(
        perturbed.Seen(objective), FreeLBConfig(steps=2, step_size=0.3, init_magnitude=0.0, max_norm=None), WIDTH
    )
    delta = 2 * np.asarray(
        perturbed.trained(attacked, params, batch)[1]["delta"][0]
    )  # the mean of nothing and the second
    assert not delta[batch["segment_ids"] == 0].any()
    np.testing.assert_allclose(row_norms(delta)[[1, 5]], 0.3, rtol=1e-5)
    np.testing.assert_allclose(delta[4, 3:10], delta[1, :7], atol=1e-5)
    np.testing.assert_allclose(delta[5, 4:], delta[1, :7], atol=1e-5)


def test_where_it_begins_and_how_far_it_gets():
    attacked = FreeLB(perturbed.Linear(), FreeLBConfig(init_magnitude=0.4, step_size=2.0, max_norm=0.5), 5)
    segment_ids = jnp.asarray(tiny.mixed_batch()["segment_ids"])
    first = attacked.init(perturbed.KEY, segment_ids)
    valid = np.asarray(segment_ids) > 0
    assert not np.asarray(first)[~valid].any()
    lengths = row_norms(first)
    assert lengths[[0, 1, 2, 5]].max() <= 0.4 and (lengths[[0, 1, 2, 5]] > 0.1).all()
    np.testing.assert_array_less(np.abs(first[1]), 0.4 / np.sqrt(7 * 5) + 1e-7)
    assert (
        np.abs(first[1]).max() > 0.3 / np.sqrt(7 * 5)
        and np.asarray(first)[valid].min() < 0 < np.asarray(first)[valid].max()
    )
    slope = jax.random.normal(perturbed.KEY, first.shape)
    moved = np.asarray(attacked.update(first, slope, segment_ids))
    np.testing.assert_allclose(row_norms(moved)[[0, 1, 2, 5]], 0.5, rtol=1e-5)
    np.testing.assert_allclose([row_norms(moved[4:5, :3]), row_norms(moved[4:5, 3:])], 0.5, rtol=1e-5)
    assert not moved[~valid].any() and not np.asarray(attacked.update(0 * first, 0 * slope, segment_ids)).any()


def test_dropout_is_the_same_in_all_passes_or_not():
    model = tiny.task_model("classification", dropout=0.3)
    batch = tiny.task_batch("classification")
    params = tiny.params(model, batch)
    plain = perturbed.trained(tiny.supervised(model), params, batch)[0]
    for shared, dropout in ((True, "shared"), (False, "independent")):
        attacked = FreeLB(tiny.supervised(model), dataclasses.replace(STILL, steps=2, dropout=dropout), WIDTH)
        assert bool(abs(perturbed.trained(attacked, params, batch)[0] - plain) < 1e-5) == shared


@pytest.mark.parametrize(
    ("guided", "steps", "count", "passes"),
    some(
        [(False, 1, "huggingface", 1), (True, 2, "huggingface", 2), (False, 2, "fairseq", 3)],
        (False, 2, "fairseq", 3),
    ),
)
def test_a_step_costs_as_many_passes(guided, steps, count, passes):
    objective = tiny.supervised(tiny.task_model("classification", width=48, heads=3, feedforward=192, remat="none"))
    if guided:
        objective = tiny.guided(objective.model, objective=tiny.supervised)
        assert isinstance(objective, Guided)
    batch = tiny.task_batch("classification")
    params = perturbed.params_of(objective, batch)
    attacked = FreeLB(objective, FreeLBConfig(steps=steps, count=count), 48)
    price = perturbed.flops(attacked, params, batch) / perturbed.flops(objective, params, batch)
    assert passes * 0.9 < price < passes * 1.1, price


@pytest.mark.parametrize(
    ("name", "value", "range"),
    [
        ("steps", 0, "at least 1"),
        ("count", "paper", "huggingface, fairseq"),
        ("step_size", -0.1, "at least 0"),
        ("init_magnitude", float("inf"), "finite"),
        ("max_norm", 0.0, "above 0, or none"),
        ("begin_step", -1, "at least 0"),
        ("dropout", "none", "independent, shared"),
    ],
)
def test_what_cannot_be_is_refused(name, value, range):
    with pytest.raises(ValueError, match=f"adversarial.freelb.{name} must be .*{range}"):
        config_reader.check(AdversarialConfig(freelb=FreeLBConfig(**{name: value})), "adversarial")
