"""SMART and SiFT: by hand, and against a plain loop with an encoder."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special as functions

from ag_jax.models.encoder import Ports
from ag_jax.objectives.adversarial.config import SiftConfig, SmartConfig
from ag_jax.objectives.adversarial.sift import Normalized, sift
from ag_jax.objectives.adversarial.smart import MtDnnPerturbation, SmartPerturbation, smart, stable_kl
from ag_jax.objectives.adversarial.smoothness import symmetric_kl
from ag_jax.objectives.masked_lm import Pretraining
from ag_jax.objectives.predictions import Categorical, PredictionWeights, Values, YesNo
from tests import reference, tiny
from tests.objectives import perturbed

NOISE_KEY = jax.random.fold_in(perturbed.KEY, 0x5317)
LARGE = SmartConfig(alpha=2.0, noise=0.05, step_size=0.3, epsilon=0.2, dropout="shared")
COMPAT = dataclasses.replace(LARGE, mtdnn_compat=True)
SIFT = SiftConfig(weight=4.0, noise=0.1, step_size=0.3, dropout="shared")
SEGMENTS = tiny.mixed_batch()["segment_ids"]
VALID = SEGMENTS > 0


def by_hand(attacked):
    """A batch, w, which vectors are tokens, the first perturbation, and what training finds."""
    batch, w = perturbed.linear_batch(), np.asarray(perturbed.W["w"], np.float64)
    delta = np.asarray(attacked.perturbation.init(NOISE_KEY, jnp.asarray(batch["segment_ids"])), np.float64)
    if attacked.inner.is_yes_or_no:
        batch["labels"] = np.array([1, 0, 1, 0], np.float32)
    found = perturbed.trained(attacked, perturbed.W, batch), perturbed.trained(attacked.inner, perturbed.W, batch)
    return batch, w, batch["segment_ids"][:, :, None], delta, *found


def test_smart_by_hand():
    """y = w . sum (x + d), R = (w . sum d)^2: every step is along sign(w . sum d) w / max |w|, cut at epsilon."""
    attacked = smart(perturbed.Linear(), dataclasses.replace(LARGE, steps=2), 3)
    batch, w, valid, delta, (loss, metrics, gradient), plain = by_hand(attacked)
    for _ in range(2):
        sign = np.sign(delta.sum(1) @ w)[:, None, None]
        delta = np.clip(delta + 0.3 * sign * (w / np.abs(w).max())[None, None], -0.2, 0.2) * valid
    delta[3] = 0  # it weighs nothing
    moved = delta.sum(1) @ w
    np.testing.assert_allclose(metrics["smart_loss"], ((moved**2).sum(), 3), rtol=1e-5)
    np.testing.assert_allclose(loss, plain[0] + 2 * (moved**2).sum() / 3, rtol=1e-5)
    of_w = (2 * moved[:, None] * delta.sum(1)).sum(0) / 3
    np.testing.assert_allclose(gradient["w"], plain[2]["w"] + 2 * of_w, rtol=1e-5)
    lengths = np.sqrt((delta[:3] ** 2).sum((1, 2)))
    np.testing.assert_allclose(metrics["delta_norm"], (lengths.sum(), 3), rtol=1e-5)
    perturbed.evaluated_as_without(attacked, perturbed.W, batch)


def test_smart_as_released_by_hand():
    """Two classes, where the gradient of `stable_kl` is 2 q (1 - q) (logit(q) - logit(p) of both classes) w."""
    attacked = smart(perturbed.Linear(is_yes_or_no=True), COMPAT, 3)
    batch, w, valid, delta, (loss, metrics, gradient), plain = by_hand(attacked)
    y = (batch["vectors"] * valid).sum(1) @ w
    other = y + delta.sum(1) @ w
    q = functions.expit(other)
    slope = 2 * q * (1 - q) * 2 * (other - y) * batch["weights"]
    delta = (delta + 0.3 * slope[:, None, None] * w) * valid
    delta = delta / (np.abs(delta).max(-1, keepdims=True) + 1e-6)
    p, q = functions.expit(y), functions.expit(y + delta.sum(1) @ w)
    value = (batch["weights"] * (p - q) * (functions.logit(p) - functions.logit(q))).sum() / 3
    np.testing.assert_allclose(metrics["smart_loss"][0] / 3, value, rtol=1e-3)
    np.testing.assert_allclose(loss, plain[0] + 2 * value, rtol=1e-3)
    # Targets are fixed: each pass learns the other's answer.
    sums = (batch["vectors"] * valid).sum(1)
    of_w = (batch["weights"] * (p - q)) @ sums + (batch["weights"] * (q - p)) @ (sums + delta.sum(1))
    np.testing.assert_allclose(gradient["w"], plain[2]["w"] + 2 * of_w / 3, rtol=2e-3)


def test_sift_by_hand():
    """The model is y = w . sum of normalised x: only the clean pass would teach embeddings, and R is (w . sum d)^2."""
    batch, w, valid, delta, (loss, metrics, gradient), _ = by_hand(sift(perturbed.Linear(), SIFT, 3))
    x = batch["vectors"].astype(np.float64)
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-7) * valid
    slope = 2 * (delta.sum(1) @ w * batch["weights"])[:, None, None] * w * valid
    delta = delta + 0.3 * slope / (np.abs(slope).max(-1, keepdims=True) + 1e-6)
    residual, moved = (x.sum(1) @ w - batch["labels"]) * batch["weights"], delta.sum(1) @ w * batch["weights"]
    np.testing.assert_allclose(metrics["sift_loss"][0], (moved**2).sum(), rtol=1e-4)
    np.testing.assert_allclose(loss, ((residual**2).sum() + 4 * (moved**2).sum()) / 3, rtol=1e-4)
    of_w = (2 * residual[:, None] * x.sum(1) + 8 * moved[:, None] * delta.sum(1)).sum(0) / 3
    np.testing.assert_allclose(gradient["w"], of_w, rtol=1e-4)


@pytest.mark.parametrize("dropout", ["shared", "independent"])
def test_dropout_is_shared_or_not(dropout):
    """With a negligible perturbation, passes differ only by dropout; the last of three has key 2."""
    config = SmartConfig(steps=2, noise=0.0, step_size=1e-6, epsilon=1e-6, dropout=dropout)
    attacked = smart(perturbed.Noisy(perturbed.Linear()), config, 3)
    batch, w = perturbed.linear_batch(), np.asarray(perturbed.W["w"])
    metrics = perturbed.trained(attacked, perturbed.W, batch)[1]
    last = perturbed.KEY if dropout == "shared" else jax.random.fold_in(perturbed.KEY, 0x5A00 + 2)
    apart = perturbed.noise_of(last) - perturbed.noise_of(perturbed.KEY)
    expected = (((apart * batch["segment_ids"][:, :, None]).sum(1) @ w) ** 2).sum()
    np.testing.assert_allclose(metrics["smart_loss"][0], expected, rtol=1e-4, atol=1e-9)


def test_an_encoder_is_trained_as_by_a_plain_loop():
    """Masked words and next sentences, without stopped gradients; then the sum of all losses."""
    objective, batch = Pretraining(tiny.model(layers=1)), tiny.mixed_batch()
    params, attacked = perturbed.params_of(objective, batch), smart(objective, COMPAT, 12)
    perturbation, weights = attacked.perturbation, objective.prediction_weights(batch)
    assert set(jax.eval_shape(attacked.normalizers, batch)) == {"mlm", "nsp", "smart", "smart_nsp"}
    is_token = jnp.asarray(VALID)[:, :, None]

    def passes(params, delta):
        outcome = tiny.evaluate(objective, params, batch, None, perturbed.STEP)
        ports = Ports(embedding_delta=delta)
        other = objective.predict(params, outcome.outputs.encoder_batch, None, perturbed.STEP, ports)
        return outcome, outcome.outputs.predictions, other.predictions

    def sought(params, delta):
        _, clean, other = passes(params, delta)
        fixed = jax.lax.stop_gradient(clean)
        return sum(perturbation.objective(fixed[name], other[name], weights[name]) for name in weights)

    def loss(params, delta):
        outcome, clean, other = passes(params, delta)
        divisors = objective.normalizers(batch)
        value = sum(total / divisors[term] for term, total in outcome.totals.items())
        for name, of in weights.items():
            value += 2.0 * symmetric_kl(clean[name], other[name], of, "targets") / of.elements.sum()
        return value

    @jax.jit
    def plainly(params):
        delta = perturbation.init(NOISE_KEY, jnp.asarray(SEGMENTS))
        slope = jnp.where(is_token, jax.grad(sought, argnums=(0, 1))(params, delta)[1], 0)
        delta = jnp.where(is_token, perturbation.update(delta, slope, jnp.asarray(SEGMENTS)), 0)
        return *jax.value_and_grad(loss)(params, jax.lax.stop_gradient(delta)), delta

    value, gradient, delta = plainly(params)
    found, metrics, found_gradient = perturbed.trained(attacked, params, batch)
    np.testing.assert_allclose(found, value, rtol=1e-4)
    perturbed.close(found_gradient, gradient, rtol=2e-3, atol=1e-4)
    lengths = [np.linalg.norm(delta[row, text]) for row in range(6) for text in reference.texts(SEGMENTS[row])]
    np.testing.assert_allclose(metrics["delta_norm"], (np.sum(lengths), 6), rtol=1e-3)


@pytest.mark.parametrize("normalize", ["text", "token"])
def test_where_smart_goes(normalize):
    """Along the slope divided by the largest component of its text or token, and not out of the box."""
    config = SmartConfig(noise=0.2, step_size=0.5, epsilon=0.6, normalize=normalize)
    box, slope = SmartPerturbation(config, 5), np.asarray(jax.random.normal(perturbed.KEY, (6, 11, 5)))
    slope = slope * VALID[:, :, None]
    first = np.asarray(box.init(NOISE_KEY, jnp.asarray(SEGMENTS)))
    assert not first[~VALID].any() and 0.16 < first[VALID].std() < 0.24
    largest = np.ones((6, 11, 1))
    for row in range(6):
        for text in reference.texts(SEGMENTS[row]):
            most = np.abs(slope[row, text]).max(1, keepdims=True)
            largest[row, text] = most.max() if normalize == "text" else most
    wanted = np.clip(first + 0.5 * slope / largest, -0.6, 0.6)
    assert (np.abs(wanted) == 0.6).any()
    np.testing.assert_allclose(box.update(first, slope, jnp.asarray(SEGMENTS)), wanted, atol=1e-6)
    assert not np.asarray(box.update(0 * first, 0 * slope, jnp.asarray(SEGMENTS))).any()
    released = MtDnnPerturbation(SmartConfig(mtdnn_compat=True, step_size=2e-6, noise=1e-6), 5)
    first, moved = 1e-5 * first, 1e-5 * first + 2e-6 * slope
    wanted = moved / (np.abs(moved).max(-1, keepdims=True) + 1e-6)  # felt beside so small numbers
    np.testing.assert_allclose(released.update(first, slope, jnp.asarray(SEGMENTS)), wanted, atol=1e-5)
    assert SmartConfig().length_of_step == 1e-3 and SmartConfig(mtdnn_compat=True).length_of_step == 1e-5


def test_where_sift_goes():
    perturbation = sift(perturbed.Linear(), SIFT, 5).perturbation
    first = np.asarray(perturbation.init(perturbed.KEY, jnp.asarray(SEGMENTS)))
    assert not first[~VALID].any() and np.abs(first).max() == np.float32(0.2) and 0.07 < first[VALID].std() < 0.1
    slope = 1e-5 * np.asarray(jax.random.normal(perturbed.KEY, first.shape))
    wanted = first + 0.3 * slope / (np.abs(slope).max(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(perturbation.update(first, slope, SEGMENTS), wanted, atol=1e-6)
    for broken in (np.nan, np.inf):
        slope[0, 0, 0] = broken
        np.testing.assert_array_equal(perturbation.update(first, slope, SEGMENTS), first)


def test_sift_trains_an_encoder():
    """The loss is that of the pass with normalised embeddings, with the divergence of the perturbed pass; all learn."""
    objective, batch = tiny.supervised(tiny.task_model("classification", layers=1)), tiny.task_batch("classification")
    attacked, params = sift(objective, SIFT, 12), tiny.params(objective.model, batch)
    loss, metrics, gradient = perturbed.trained(attacked, params, batch)
    ports = attacked.perturbation.clean(Ports())
    clean = tiny.evaluated(objective, params, batch, None, perturbed.STEP, ports).totals["task"]
    np.testing.assert_allclose(metrics["task_loss"], (clean, 7), rtol=1e-5)
    np.testing.assert_allclose(loss, (clean + 4 * metrics["sift_loss"][0]) / 7, rtol=1e-5)
    assert metrics["sift_loss"][0] > 1e-3 and 0.1 < metrics["delta_norm"][0] / 7 < 5
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    assert all(np.asarray(leaf).any() for leaf in jax.tree.leaves(gradient["encoder"]["layers"]["feedforward_in"]))


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_normalised_embeddings(norm):
    """Against numpy, down to small variances; without a gradient beside a perturbation.

    Before the norm of embeddings, normalising changes nothing but by that norm's epsilon.
    """
    scales = np.array([2.0, 1e-3, 3e-4])[:, None, None]
    summed = scales * (3 + np.random.default_rng(0).standard_normal((3, 5, 7)))
    unit = norm == "rms"
    centred = summed if unit else summed - summed.mean(-1, keepdims=True)
    squares = (centred**2).sum(-1, keepdims=True) / (1 if unit else 7)
    expected, ones = centred / np.sqrt(squares + 1e-7), np.ones((3, 5, 7), np.float32)

    @jax.jit
    def results(summed):
        def of(delta):
            normalized = Normalized(delta, unit)
            return normalized(summed), jax.grad(lambda x: (normalized(x) ** 3).sum())(summed)

        return of(None), of(ones)

    (plain, slope), (moved, nothing) = results(np.float32(summed))
    np.testing.assert_allclose(plain, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(moved, expected + 1, rtol=1e-4, atol=1e-4)
    assert np.any(slope) and not np.any(nothing)
    model = tiny.task_model("classification", norm=norm, norm_biases=not unit, layer_norm_epsilon=1e-12)
    objective, batch = tiny.supervised(model), tiny.task_batch("classification")
    attacked = sift(objective, dataclasses.replace(SIFT, normalize="unit" if unit else "layer_norm"), 12)
    params = tiny.params(model, batch)
    both = (Ports(), attacked.perturbation.clean(Ports()))
    plain, found = (tiny.evaluated(objective, params, batch, None, perturbed.STEP, ports).outputs for ports in both)
    found, plain = found.predictions["task"].logits, plain.predictions["task"].logits
    np.testing.assert_allclose(found, plain, rtol=1e-4, atol=1e-5)
    assert np.any(found != plain)


def test_divergences():
    rng = np.random.default_rng(0)
    p, q = (rng.standard_normal((2, 5), np.float32) for _ in range(2))
    certain = np.float32([[10, 0]]), np.float32([[0, 1]])  # where what is added to denominators is felt
    weights, stops = PredictionWeights(np.float32([1, 2])), {"none": True, "targets": True, "clean": False}
    seek = sift(perturbed.Linear(), SIFT, 3).perturbation.objective

    @jax.jit
    def results(p, q, certain):
        a, b = p[:, 0], q[:, 0]
        of_values = [
            jax.value_and_grad(lambda a, stop=stop: symmetric_kl(Values(a), Values(b), weights, stop))(a)
            for stop in stops
        ]
        stacked = [jnp.stack([of, 0 * of], -1) for of in (a, b)]
        stable = [stable_kl(*pair, of) for pair, of in (((p, q), weights.elements), (certain, np.ones(1, np.float32)))]
        yes = MtDnnPerturbation(COMPAT, 5).objective(YesNo(a), YesNo(b), weights), stable_kl(*stacked, weights.elements)
        sought = jax.grad(lambda q: seek(Categorical(p), Categorical(q), weights))(q)
        return symmetric_kl(Categorical(p), Categorical(q), weights, "none"), of_values, stable, yes, sought

    of_classes, of_values, stable, yes, sought = results(p, q, certain)
    of_p, of_q = (functions.softmax(np.float64(logits), axis=-1) for logits in (p, q))
    both = (functions.rel_entr(of_p, of_q) + functions.rel_entr(of_q, of_p)).sum(-1)
    np.testing.assert_allclose(of_classes, both @ [1, 2], rtol=1e-5)
    apart = p[:, 0] - q[:, 0]
    for (value, slope), learns in zip(of_values, stops.values(), strict=True):
        np.testing.assert_allclose(value, apart**2 @ [1, 2], rtol=1e-5)
        np.testing.assert_allclose(slope, 2 * apart * [1, 2] if learns else 0, rtol=1e-5)
    logits = [functions.logit(of) for of in (of_p, of_q)]
    np.testing.assert_allclose(stable[0], (2 * of_q * (logits[1] - logits[0])).sum(-1) @ [1, 2], rtol=1e-3)
    one, other = (functions.softmax(np.float64(of), axis=-1) for of in certain)
    logits = [-np.log(1 / (of + 1e-6) - 1 + 1e-6) for of in (one, other)]
    np.testing.assert_allclose(stable[1], (2 * other * (logits[1] - logits[0])).sum(), rtol=1e-3)
    np.testing.assert_allclose(*yes, rtol=1e-6)
    # What SiFT seeks is KL(p || q), whose gradient by q's logits is softmax(q) - softmax(p).
    np.testing.assert_allclose(sought, (of_q - of_p) * [[1], [2]], atol=1e-6)
