"""SMART and SiFT: by hand, against plain loops, around every objective, in parts, at their price."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special as functions

from ag_jax import config_reader
from ag_jax.models.encoder import Ports
from ag_jax.objectives.adversarial import wrap as adversarial
from ag_jax.objectives.adversarial.config import AdversarialConfig, SiftConfig, SmartConfig
from ag_jax.objectives.adversarial.sift import Normalized, sift
from ag_jax.objectives.adversarial.smart import MtDnnPerturbation, SmartPerturbation, smart, stable_kl
from ag_jax.objectives.adversarial.smoothness import symmetric_kl
from ag_jax.objectives.predictions import Categorical, PredictionWeights, Values, YesNo
from tests import tiny
from tests.cases import some
from tests.objectives import perturbed

WIDTH = tiny.CONFIG.width
NOISE_KEY = jax.random.fold_in(perturbed.KEY, 0x5317)
LARGE = SmartConfig(alpha=2.0, noise=0.05, step_size=0.3, epsilon=0.2, dropout="shared")
ATTACKS = {
    "smart": lambda inner, width=WIDTH, **settings: smart(inner, dataclasses.replace(LARGE, **settings), width),
    "compat": lambda inner, width=WIDTH, **settings: smart(
        inner, dataclasses.replace(LARGE, mtdnn_compat=True, **settings), width
    ),
    "sift": lambda inner, width=WIDTH, **settings: sift(
        inner, dataclasses.replace(SiftConfig(noise=0.1, step_size=0.3, dropout="shared"), **settings), width
    ),
}
MIXED = jnp.asarray(tiny.mixed_batch()["segment_ids"])
VALID = np.asarray(MIXED) > 0


def test_smart_by_hand():
    """y = w . sum (x + d), R = (w . sum d)^2: every step is along sign(w . sum d) w / max |w|, cut at epsilon."""
    batch, w = perturbed.linear_batch(), np.asarray(perturbed.W["w"], np.float64)
    attacked = smart(perturbed.Linear(), dataclasses.replace(LARGE, steps=2), 3)
    segment_ids = jnp.asarray(batch["segment_ids"])
    delta = np.asarray(attacked.perturbation.init(NOISE_KEY, segment_ids), np.float64)
    assert not delta[batch["segment_ids"] == 0].any() and delta.any()
    for _ in range(2):
        sign = np.sign(delta.sum(1) @ w)[:, None, None]
        delta = np.clip(delta + 0.3 * sign * (w / np.abs(w).max())[None, None], -0.2, 0.2)
        delta[batch["segment_ids"] == 0] = 0
    delta[3] = 0  # it weighs nothing
    moved = delta.sum(1) @ w
    value = (moved**2).sum() / 3
    inner = perturbed.trained(perturbed.Linear(), perturbed.W, batch)
    loss, metrics, gradient = perturbed.trained(attacked, perturbed.W, batch)
    np.testing.assert_allclose(loss, inner[0] + 2 * value, rtol=1e-5)
    np.testing.assert_allclose(metrics["smart_loss"][0] / 3, value, rtol=1e-5)
    of_w = (2 * moved[:, None] * delta.sum(1)).sum(0) / 3
    np.testing.assert_allclose(gradient["w"], inner[2]["w"] + 2 * of_w, rtol=1e-5)
    lengths = np.sqrt((delta[:3] ** 2).sum((1, 2)))
    np.testing.assert_allclose(metrics["delta_norm"][0] / metrics["delta_norm"][1], lengths.mean(), rtol=1e-5)


def test_smart_as_released_by_hand():
    """Two classes, where the gradient of `stable_kl` is 2 q (1 - q) (logit(q) - logit(p) of both classes) w."""
    batch, w = perturbed.linear_batch(), np.asarray(perturbed.W["w"], np.float64)
    batch["labels"] = np.array([1, 0, 1, 0], np.float32)
    inner = perturbed.Linear(is_yes_or_no=True)
    attacked = smart(inner, dataclasses.replace(LARGE, mtdnn_compat=True), 3)
    delta = np.asarray(attacked.perturbation.init(NOISE_KEY, jnp.asarray(batch["segment_ids"])), np.float64)
    valid = batch["segment_ids"][:, :, None]
    y = (batch["vectors"] * valid).sum(1) @ w
    other = y + delta.sum(1) @ w
    q = functions.expit(other)
    slope = 2 * q * (1 - q) * 2 * (other - y) * batch["weights"]
    delta = (delta + 0.3 * slope[:, None, None] * w) * valid
    delta = delta / (np.abs(delta).max(-1, keepdims=True) + 1e-6)
    p, q = functions.expit(y), functions.expit(y + delta.sum(1) @ w)
    value = (batch["weights"] * (p - q) * (functions.logit(p) - functions.logit(q))).sum() / 3
    loss, metrics, gradient = perturbed.trained(attacked, perturbed.W, batch)
    plain = perturbed.trained(inner, perturbed.W, batch)
    np.testing.assert_allclose(metrics["smart_loss"][0] / 3, value, rtol=1e-3)
    np.testing.assert_allclose(loss, plain[0] + 2 * value, rtol=1e-3)
    # Targets are fixed: each pass learns the other's answer.
    sums = (batch["vectors"] * valid).sum(1)
    of_w = (batch["weights"] * (p - q)) @ sums + (batch["weights"] * (q - p)) @ (sums + delta.sum(1))
    np.testing.assert_allclose(gradient["w"], plain[2]["w"] + 2 * of_w / 3, rtol=2e-3)


def test_sift_by_hand():
    """Of y = w . sum of normalised x: only the clean pass would teach embeddings, and R is (w . sum d)^2."""
    batch, w = perturbed.linear_batch(), np.asarray(perturbed.W["w"], np.float64)
    attacked = ATTACKS["sift"](perturbed.Linear(), 3, weight=4.0)
    valid, x = batch["segment_ids"][:, :, None], batch["vectors"].astype(np.float64)
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-7) * valid
    delta = np.asarray(attacked.perturbation.init(NOISE_KEY, jnp.asarray(batch["segment_ids"])), np.float64)
    slope = 2 * (delta.sum(1) @ w * batch["weights"])[:, None, None] * w * valid
    delta = delta + 0.3 * slope / (np.abs(slope).max(-1, keepdims=True) + 1e-6)
    residual, moved = (x.sum(1) @ w - batch["labels"]) * batch["weights"], delta.sum(1) @ w * batch["weights"]
    loss, metrics, gradient = perturbed.trained(attacked, perturbed.W, batch)
    np.testing.assert_allclose(metrics["sift_loss"][0], (moved**2).sum(), rtol=1e-4)
    np.testing.assert_allclose(loss, ((residual**2).sum() + 4 * (moved**2).sum()) / 3, rtol=1e-4)
    of_w = (2 * residual[:, None] * x.sum(1) + 8 * moved[:, None] * delta.sum(1)).sum(0) / 3
    np.testing.assert_allclose(gradient["w"], of_w, rtol=1e-4)


# Numbers, classes of tags, words and yes or no, beside guidance of both modes.
FORMS = [(name, "smart") for name in ("regression", "tagging", "bias", "generator")]
OTHERS = [("choice", "compat"), ("nsp", "compat"), ("regression", "sift")]
MORE = [(name, "smart") for name in ("ranking", "nsp")]


@pytest.mark.parametrize(("name", "attack"), some(FORMS + OTHERS + MORE, ("nsp", "compat")))
def test_the_same_as_a_plain_loop(name, attack):
    """Around any objective: noise moved along gradients that differentiate everything, then the sum of both losses."""
    (objective, batch), params = perturbed.CASES[name], perturbed.plain(name)[0]
    attacked = ATTACKS[attack](objective, **({} if attack == "sift" else {"steps": 2}))
    perturbation, weights = attacked.perturbation, objective.prediction_weights(batch)
    rngs, segment_ids = {"dropout": perturbed.KEY}, jnp.asarray(batch["segment_ids"]).reshape(-1, tiny.LENGTH)
    assert set(attacked.normalizers(batch)) == set(objective.normalizers(batch)) | {
        attacked.term if name == "task" else f"{attacked.term}_{name}" for name in objective.prediction_names
    }

    def passes(params, delta):
        outcome = tiny.evaluate(objective, params, batch, rngs, perturbed.STEP, perturbation.clean(Ports()))
        ports = perturbation.perturbed(Ports(), delta)
        other = objective.predict(params, outcome.outputs.encoder_batch, rngs, perturbed.STEP, ports)
        return outcome, outcome.outputs.predictions, other.predictions

    def sought(params, delta):
        _, clean, other = passes(params, delta)
        fixed = jax.lax.stop_gradient(clean)
        return sum(perturbation.objective(fixed[name], other[name], weights[name]) for name in weights)

    def loss(params, delta):
        outcome, clean, other = passes(params, delta)
        divisors, coefficients = objective.normalizers(batch), objective.coefficients(perturbed.STEP)
        value = sum(
            coefficients[term] * total / jnp.maximum(divisors[term], 1) for term, total in outcome.totals.items()
        )
        for name, of in weights.items():
            total = symmetric_kl(clean[name], other[name], of, attacked.stop_gradient)
            value += attacked.coefficient * total / of.elements.sum()
        return value

    @jax.jit
    def plainly(params):
        delta = perturbation.init(NOISE_KEY, segment_ids)
        for _ in range(attacked.steps):
            slope = jnp.where(segment_ids[:, :, None] > 0, jax.grad(sought, argnums=(0, 1))(params, delta)[1], 0)
            delta = jnp.where(segment_ids[:, :, None] > 0, perturbation.update(delta, slope, segment_ids), 0)
        return *jax.value_and_grad(loss)(params, jax.lax.stop_gradient(delta)), delta

    value, gradient, delta = plainly(params)
    found, metrics, found_gradient = perturbed.trained(attacked, params, batch)
    np.testing.assert_allclose(found, value, rtol=1e-4)
    np.testing.assert_allclose(
        metrics["delta_norm"][0], metrics["delta_norm"][1] * mean_length(delta, segment_ids), rtol=1e-3
    )
    perturbed.close(found_gradient, gradient, rtol=2e-3, atol=1e-4)
    assert attack != "smart" or found > perturbed.plain(name)[1][0] + 1e-6


def mean_length(delta, segment_ids):
    """Of the texts of all rows, one after another."""
    lengths = [
        np.sqrt((np.asarray(row)[of == text] ** 2).sum())
        for row, of in zip(delta, np.asarray(segment_ids), strict=True)
        for text in range(1, of.max() + 1)
    ]
    return np.mean(lengths)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "attack"),
    [("guided", "smart"), ("nsp", "sift"), ("tagging", "compat")],
)
def test_parts_are_exact(name, attack):
    """From the same perturbation, which else is drawn anew in every part."""
    objective, batch = perturbed.CASES[name]
    params = perturbed.params_of(objective, batch)
    attacked = ATTACKS[attack](objective)
    attacked = dataclasses.replace(attacked, perturbation=Constant(attacked.perturbation))
    whole, parts = (perturbed.trained(attacked, params, batch, microbatches) for microbatches in (1, 2))
    np.testing.assert_allclose(parts[0], whole[0], rtol=1e-5)
    perturbed.close(parts[2], whole[2], rtol=1e-3, atol=1e-4)


@dataclasses.dataclass(frozen=True)
class Constant:
    """A perturbation that begins at the same place in every part of a batch."""

    inner: object

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def init(self, key, segment_ids):
        return jnp.where(segment_ids[:, :, None] > 0, 0.05 * jnp.cos(jnp.arange(self.inner.width)), 0.0)


def test_where_smart_goes():
    """Not out of the ball, but by the released code, where the largest component of every token is 1 (less 1e-6)."""
    slope = jax.random.normal(perturbed.KEY, (*MIXED.shape, 5)) * jnp.where(MIXED > 0, 1.0, 0.0)[:, :, None]
    ball = SmartPerturbation(SmartConfig(), 5)
    first = ball.init(perturbed.KEY, MIXED)
    assert not np.asarray(first)[~VALID].any()
    np.testing.assert_allclose(np.std(np.asarray(first)[VALID]), 1e-5, rtol=0.2)
    moved = np.asarray(ball.update(first, slope, MIXED))
    assert np.abs(moved).max() <= np.float32(1e-5) and (np.abs(moved[VALID]).max(-1) > 0.999e-5).all()
    far = SmartConfig(step_size=0.5, epsilon=10.0)
    for normalize, largest in (("text", [np.abs(moved[row]).max() for row in range(6)]), ("token", None)):
        gone = np.abs(
            SmartPerturbation(dataclasses.replace(far, normalize=normalize), 5).update(0 * first, slope, MIXED)
        )
        if largest is None:
            np.testing.assert_allclose(gone[VALID].max(-1), 0.5, rtol=1e-6)
        else:
            np.testing.assert_allclose([gone[row].max() for row in (0, 1, 2, 5)], 0.5, rtol=1e-6)
            np.testing.assert_allclose([gone[4, :3].max(), gone[4, 3:].max()], 0.5, rtol=1e-6)
            assert gone[0].max(-1).min() < 0.45
    assert not np.asarray(ball.update(0 * first, 0 * slope, MIXED)).any()
    released = np.abs(MtDnnPerturbation(SmartConfig(mtdnn_compat=True, step_size=1e-3), 5).update(first, slope, MIXED))
    np.testing.assert_allclose(released[VALID].max(-1), 1, atol=0.02)
    assert released.max() <= 1 and not released[~VALID].any()


def test_where_sift_goes():
    perturbation = ATTACKS["sift"](perturbed.Linear(), 5, noise=0.1, step_size=0.3).perturbation
    first = np.asarray(perturbation.init(perturbed.KEY, MIXED))
    assert not first[~VALID].any() and np.abs(first).max() == np.float32(0.2) and 0.07 < first[VALID].std() < 0.1
    slope = jax.random.normal(perturbed.KEY, first.shape)
    moved = np.asarray(perturbation.update(first, slope, MIXED)) - first
    np.testing.assert_allclose(np.abs(moved).max(-1), 0.3, rtol=1e-4)
    for broken in (jnp.nan, jnp.inf):
        np.testing.assert_array_equal(perturbation.update(first, slope.at[0, 0, 0].set(broken), MIXED), first)


@pytest.mark.parametrize(("unit", "norm"), [(False, "layer"), (True, "layer"), (True, "rms")])
def test_normalised_embeddings(unit, norm):
    """Before the norm of embeddings, normalising changes nothing but by that norm's epsilon, and of embeddings that are
    normalised and perturbed, nothing is learned.
    """
    summed = 3 + 2 * jax.random.normal(perturbed.KEY, (2, 5, 7))
    x = np.asarray(Normalized(None, unit)(summed), np.float64)
    if unit:
        np.testing.assert_allclose((x**2).sum(-1), 1, rtol=1e-5)
    else:
        np.testing.assert_allclose(x.mean(-1), 0, atol=1e-6)
        np.testing.assert_allclose(x.std(-1), 1, rtol=1e-5)
    delta = jnp.ones_like(summed)
    np.testing.assert_allclose(Normalized(delta, unit)(summed), x + 1, rtol=1e-5)
    assert not np.any(jax.grad(lambda summed: (Normalized(delta, unit)(summed) ** 3).sum())(summed))
    assert np.any(jax.grad(lambda summed: (Normalized(None, unit)(summed) ** 3).sum())(summed))
    model = tiny.task_model("classification", norm=norm, norm_biases=norm == "layer", layer_norm_epsilon=1e-12)
    batch = tiny.task_batch("classification")
    params = tiny.params(model, batch)
    plain = model.apply({"params": params}, batch, deterministic=True)
    ports = Ports(on_embeddings=Normalized(None, unit))
    np.testing.assert_allclose(
        model.apply({"params": params}, batch, ports=ports, deterministic=True), plain, rtol=1e-4, atol=1e-5
    )


def test_no_perturbation_is_no_loss_and_no_gradient():
    objective, batch = perturbed.CASES["classification"]
    params, plain = perturbed.plain("classification")
    attacked = ATTACKS["smart"](
        objective, noise=0.0, step_size=1e-9
    )  # a larger step would follow rounding errors, as the divergence is flat
    loss, metrics, _ = perturbed.trained(attacked, params, batch)
    assert abs(metrics["smart_loss"][0]) < 1e-5 and metrics["delta_norm"][0] < 1
    np.testing.assert_allclose(loss, plain[0], rtol=1e-5)
    found = tiny.evaluate(ATTACKS["sift"](objective), params, batch, None, perturbed.STEP)
    assert (
        found.totals == tiny.evaluate(objective, params, batch, None, perturbed.STEP).totals
        and "sift_loss" not in found.metrics
    )


def test_dropout_is_shared_or_not():
    """Without noise to speak of, passes differ by dropout or not at all."""
    objective = tiny.supervised(tiny.task_model("classification", dropout=0.3))
    batch = tiny.task_batch("classification")
    params = perturbed.params_of(objective, batch)
    for dropout, same in (("shared", True), ("independent", False)):
        attacked = smart(objective, SmartConfig(noise=1e-7, step_size=1e-7, epsilon=1e-7, dropout=dropout), WIDTH)
        assert bool(perturbed.trained(attacked, params, batch)[1]["smart_loss"][0] < 1e-4) == same


def test_symmetric_kl():
    rng = np.random.default_rng(0)
    p, q = (jnp.asarray(rng.standard_normal((2, 5)), jnp.float32) for _ in range(2))
    weights = PredictionWeights(jnp.array([1.0, 2.0]))
    of_p, of_q = (functions.softmax(np.asarray(logits, np.float64), axis=-1) for logits in (p, q))
    both = (functions.rel_entr(of_p, of_q) + functions.rel_entr(of_q, of_p)).sum(-1)
    np.testing.assert_allclose(symmetric_kl(Categorical(p), Categorical(q), weights, "none"), both @ [1, 2], rtol=1e-5)
    numbers = [Values(of[:, 0]) for of in (p, q)]
    wanted = (p[:, 0] - q[:, 0]) ** 2 @ np.array([1, 2])
    for stop, learns in (("none", True), ("targets", True), ("clean", False)):
        value, slope = jax.value_and_grad(lambda a, stop=stop: symmetric_kl(Values(a), numbers[1], weights, stop))(
            p[:, 0]
        )
        np.testing.assert_allclose(value, wanted, rtol=1e-5)
        np.testing.assert_allclose(slope, 2 * (p[:, 0] - q[:, 0]) * np.array([1, 2]) if learns else 0, rtol=1e-5)
    found = stable_kl(p, q, weights.elements)
    logits = [functions.logit(of) for of in (of_p, of_q)]
    np.testing.assert_allclose(found, (2 * of_q * (logits[1] - logits[0])).sum(-1) @ [1, 2], rtol=1e-3)

    def seek(b):
        perturbation = ATTACKS["sift"](perturbed.Linear()).perturbation
        return perturbation.objective(Categorical(p), Categorical(b), weights)

    fixed = jax.nn.softmax(p), jnp.array([[1.0], [2.0]])  # of KL(p || q) by q's logits: softmax(q) - softmax(p)
    np.testing.assert_allclose(jax.grad(seek)(q), (jax.nn.softmax(q) - fixed[0]) * fixed[1], atol=1e-6)
    yes = MtDnnPerturbation(SmartConfig(mtdnn_compat=True), 5).objective(YesNo(p[:, 0]), YesNo(q[:, 0]), weights)
    stacked = [jnp.stack([of[:, 0], 0 * of[:, 0]], -1) for of in (p, q)]
    np.testing.assert_allclose(yes, stable_kl(*stacked, weights.elements), rtol=1e-6)


@pytest.mark.parametrize(("attack", "steps"), some([("smart", 1), ("smart", 2), ("sift", 1)], ("smart", 2)))
def test_noise_costs_no_gradient_of_parameters(attack, steps):
    """A pass is one part forward and two backward: two passes, and for each step of the noise
    one of each. But for attention.
    """
    settings = {"width": 96, "heads": 3, "feedforward": 384, "remat": "none"}
    objective = tiny.supervised(tiny.task_model("classification", **settings))
    batch = tiny.task_batch("classification")
    params = perturbed.params_of(objective, batch)
    attacked = ATTACKS[attack](objective, 96, **({"steps": steps} if attack == "smart" else {}))
    price = perturbed.flops(attacked, params, batch) / perturbed.flops(objective, params, batch)
    assert 0.9 < price / ((6 + 2 * steps) / 3) < 1.1, price


@pytest.mark.parametrize(
    ("kind", "name", "value", "range"),
    [
        (SmartConfig, "steps", 0, "at least 1"),
        (SmartConfig, "alpha", -1.0, "at least 0"),
        (SmartConfig, "noise", -1e-5, "at least 0"),
        (SmartConfig, "step_size", float("inf"), "finite"),
        (SmartConfig, "epsilon", 0.0, "above 0"),
        (SmartConfig, "normalize", "row", "text, token"),
        (SmartConfig, "dropout", "same", "independent, shared"),
        (SiftConfig, "weight", -1.0, "at least 0"),
        (SiftConfig, "noise", float("nan"), "finite"),
        (SiftConfig, "step_size", -1.0, "at least 0"),
        (SiftConfig, "normalize", "none", "layer_norm, unit"),
        (SiftConfig, "dropout", "none", "independent, shared"),
    ],
)
def test_what_cannot_be_is_refused(kind, name, value, range):
    section = {SmartConfig: "smart", SiftConfig: "sift"}[kind]
    with pytest.raises(ValueError, match=f"adversarial.{section}.{name} must be .*{range}"):
        config_reader.check(AdversarialConfig(**{section: kind(**{name: value})}), "adversarial")


def test_sift_with_rms_norm_is_refused_unless_it_subtracts_no_mean():
    context = adversarial.AttackContext(tiny.config(norm="rms", norm_biases=False), 10)
    with pytest.raises(
        ValueError, match="RMSNorm of this model .model.norm=rms. does not, .* set adversarial.sift.normalize=unit"
    ):
        adversarial.wrap(perturbed.Linear(), AdversarialConfig("sift"), context)
    config = AdversarialConfig("sift", sift=SiftConfig(normalize="unit"))
    assert adversarial.wrap(perturbed.Linear(), config, context).term == "sift"


def test_the_usual_steps():
    assert SmartConfig().length_of_step == 1e-3 and SmartConfig(mtdnn_compat=True).length_of_step == 1e-5
    assert SmartConfig(step_size=0.5, mtdnn_compat=True).length_of_step == 0.5


def test_a_ball_that_rounding_loses_is_refused():
    def wrapped(dtype, **settings):
        config = AdversarialConfig("smart", smart=SmartConfig(**settings))
        return adversarial.wrap(perturbed.Linear(), config, adversarial.AttackContext(tiny.config(dtype=dtype), 10))

    for dtype, settings in (("float32", {}), ("bfloat16", {"epsilon": 2e-3}), ("bfloat16", {"mtdnn_compat": True})):
        assert wrapped(dtype, **settings).term == "smart"
    with pytest.raises(
        ValueError, match="smart.epsilon=1e-05 is lost in rounding with model.dtype=bfloat16: .* at least 1e-03"
    ):
        wrapped("bfloat16")
