"""The objective of translation, with guidance and under attack, against numpy one pair at a time."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import special as functions

from ag_jax import config_reader
from ag_jax.attention import guidance
from ag_jax.attention.guidance import GuidanceConfig
from ag_jax.objectives.adversarial import wrap as adversarial
from ag_jax.objectives.adversarial.config import AdversarialConfig, AsaConfig, FixedMaskConfig, SmartConfig
from ag_jax.objectives.base import loss_factors
from ag_jax.objectives.guided import Guided
from ag_jax.objectives.translation import Translation, TranslationConfig
from ag_jax.objectives.word_loss import word_loss
from ag_jax.training import sharding
from ag_jax.training.hyperparameters import Hyperparameters
from ag_jax.training.optimizer import OptimizerConfig, make_optimizer
from ag_jax.training.program import make_program
from ag_jax.training.sharding import MeshConfig, make_mesh
from ag_jax.training.state import TrainState
from ag_jax.training.step import train_step
from tests import reference, tiny, vaswani
from tests import tiny_translation as small

STEP = jnp.int32(5)
MODEL = small.model()
ENCODER = (("next", 1), ("period", 2))
DECODER = (("prev", 1), ("first", 1), ("period", 1))
CROSS = (("first", 1), ("diagonal", 2))


@functools.cache
def guided() -> Guided:
    config = GuidanceConfig("loss", alpha=3.0, schedule="constant")
    return Guided(
        inner=Translation(MODEL),
        config=config,
        assignment=ENCODER,
        heads=small.CONFIG.heads,
        special=tiny.SPECIAL,
        alpha=guidance.coefficient_schedule(config, 10),
        decoder_assignment=DECODER,
        cross_assignment=CROSS,
    )


@pytest.fixture(scope="module")
def params():
    return tiny.params(MODEL, small.alone())


@pytest.fixture(scope="module")
def pairs(params):
    """(tokens of the source, tokens that the decoder reads, labels, numpy's logits, its attention weights)."""
    batch, found = small.alone(), []
    for row, of_source, of_target in small.texts(batch):
        tokens = batch["tokens"][row, of_source], batch["target_tokens"][row, of_target]
        found.append(
            (*tokens, batch["target_labels"][row, of_target], *vaswani.translate(tiny.float64(params), *tokens))
        )
    return found


@functools.cache
def compiled(objective):
    """Loss, totals, metrics and gradient."""

    def loss(params, batch):
        outcome = tiny.evaluate(objective, params, batch, None, STEP)
        factors = loss_factors(objective, batch, STEP)
        total = sum(factors[term] * outcome.totals[term] for term in outcome.totals)
        return total, (outcome.totals, outcome.metrics)

    return jax.jit(jax.value_and_grad(loss, has_aux=True))


@pytest.mark.parametrize(
    ("smoothing", "over", "of_label", "of_others"),
    [
        pytest.param(0.0, "others", 1.0, 0.0, marks=pytest.mark.exhaustive),
        (0.1, "others", 0.9, 0.1 / (small.VOCABULARY - 1)),
        pytest.param(0.2, "all", 0.8 + 0.2 / small.VOCABULARY, 0.2 / small.VOCABULARY, marks=pytest.mark.exhaustive),
    ],
)
def test_terms_and_metrics(params, pairs, smoothing, over, of_label, of_others):
    objective = Translation(MODEL, TranslationConfig(label_smoothing=smoothing, smooth_over=over))
    batch = small.packed()
    (mean, (totals, metrics)), _ = compiled(objective)(params, batch)
    loss = nll = right = 0.0
    for *_, labels, logits, _ in pairs:
        logs = functions.log_softmax(logits, axis=-1)
        wanted = np.full(logs.shape, of_others)
        wanted[np.arange(len(labels)), labels] = of_label
        np.testing.assert_allclose(wanted.sum(-1), 1)
        loss -= (wanted * logs).sum()
        nll -= logs[np.arange(len(labels)), labels].sum()
        right += (logits.argmax(-1) == labels).sum()
    tokens = sum(target for _, target in small.LENGTHS)
    assert set(totals) == {"translation"} and set(metrics) == {"nll", "accuracy", "translation_loss"}
    np.testing.assert_allclose(totals["translation"], loss, rtol=1e-5)
    np.testing.assert_allclose(mean, loss / tokens, rtol=1e-5)
    np.testing.assert_allclose(metrics["translation_loss"], (loss, tokens), rtol=1e-5)
    np.testing.assert_allclose(metrics["nll"], (nll, tokens), rtol=1e-5)
    np.testing.assert_allclose(metrics["accuracy"], (right, tokens))
    assert smoothing == 0 or abs(loss - nll) > 1


def test_smoothed_loss_of_seven_words_by_hand():
    """(1 - eps - eps/(V-1)) nll + eps/(V-1) sum of nll is fairseq's; the other form gives the label eps/V as well."""
    scores, label, epsilon = np.array([0.3, -1.2, 2.0, 0.1, 0.7, -0.4, 1.1]), 4, 0.1
    nll = -functions.log_softmax(scores)
    expected = {
        "others": (1 - epsilon - epsilon / 6) * nll[label] + epsilon / 6 * nll.sum(),
        "all": (1 - epsilon) * nll[label] + epsilon / 7 * nll.sum(),
    }
    assert abs(expected["others"] - expected["all"]) > 1e-3
    for over, loss in expected.items():
        smoothing = TranslationConfig(label_smoothing=epsilon, smooth_over=over).smoothing(7)
        arrays = jnp.ones((1, 1, 1)), jnp.asarray(scores, jnp.float32)[:, None], jnp.zeros(7)
        found, _, entropy = word_loss(*arrays, jnp.array([[label]]), jnp.ones((1, 1)), 1, smoothing)
        np.testing.assert_allclose(found, loss, rtol=1e-6)
        np.testing.assert_allclose(entropy, nll[label], rtol=1e-6)


@pytest.mark.exhaustive
def test_pairs_that_share_rows_are_as_each_alone(params):
    """Loss, metrics and gradient, with guidance of the encoder, of the decoder and of the attention to the source."""
    objective = guided()
    (loss, aside), gradient = compiled(objective)(params, small.packed())
    (expected, expected_aside), expected_gradient = compiled(objective)(params, small.alone())
    assert float(expected_aside[0]["ag"]) > 1
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    for (path, one), other in zip(jax.tree.leaves_with_path(aside), jax.tree.leaves(expected_aside), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, err_msg=jax.tree_util.keystr(path))
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(expected_gradient))
    found = jax.tree.leaves_with_path(gradient)
    for (path, one), other in zip(found, jax.tree.leaves(expected_gradient), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6 * largest, err_msg=jax.tree_util.keystr(path))


def test_guidance_of_all_three_kinds_equals_loops(params, pairs):
    (_, (totals, metrics)), _ = compiled(guided())(params, small.packed())
    loss, masses = 0.0, {}
    for source, target, _, _, weights in pairs:
        head = 0
        for name, count in ENCODER:
            P_QK = reference.text_pattern(name, source, "uniform")
            H_NHQK = weights["encoder"][:, head : head + count]
            loss += ((H_NHQK - P_QK) ** 2).sum() / (count * len(source) ** 2)
            head += count
        for kind, assignment, keys in (("decoder", DECODER, target), ("cross", CROSS, source)):
            head = 0
            for name, count in assignment:
                mass, number = masses.get(f"mass/{kind}/{name}", (0.0, 0))
                for p in range(len(target)):
                    seen, wanted = reference.decoder_columns(name, p, len(target), keys, kind == "decoder")
                    P_K = np.zeros(len(keys))
                    P_K[wanted or seen] = 1 / len(wanted or seen)
                    H_NHK = weights[kind][:, head : head + count, p]
                    loss += ((H_NHK - P_K) ** 2).sum() / (count * len(target) * len(keys))
                    if wanted:
                        mass, number = mass + H_NHK[:, :, wanted].sum((1, 2)), number + count
                masses[f"mass/{kind}/{name}"] = mass, number
                head += count
    np.testing.assert_allclose(totals["ag"], loss, rtol=1e-5)
    np.testing.assert_allclose(metrics["ag_loss"], (loss, len(pairs)), rtol=1e-5)
    own = {name for name in metrics if name.startswith("mass/")}
    assert own == masses.keys() | {"mass/next", "mass/period"}
    for name, (mass, number) in masses.items():
        np.testing.assert_allclose(metrics[name][0], mass, rtol=1e-5, err_msg=name)
        np.testing.assert_array_equal(metrics[name][1], [number] * 2, err_msg=name)


def test_an_empty_batch_is_not_nan(params):
    empty = jax.tree.map(np.zeros_like, small.packed())
    (loss, (totals, _)), gradient = compiled(guided())(params, empty)
    assert loss == 0 and set(totals) == {"translation", "ag"}
    assert all(not np.asarray(leaf).any() for leaf in jax.tree.leaves(gradient))


ATTACKS = {
    "asa": AdversarialConfig("asa", asa=AsaConfig(sentence="none")),
    "freelb": AdversarialConfig("freelb"),
    # Larger than in use, so that its effect is larger than rounding errors.
    "smart": AdversarialConfig("smart", smart=SmartConfig(epsilon=0.5, step_size=0.5, noise=0.1)),
    "magnitude": AdversarialConfig("magnitude", masking=FixedMaskConfig(sentence="none", share=0.3)),
}


@functools.cache
def stepped(objective):
    """A train step without adaptive rates, so that the change of the parameters is the gradient."""
    optimizer = optax.sgd(1.0)

    def step(params):
        state = TrainState(STEP, params, optimizer.init(params))
        return train_step(state, small.packed(), jax.random.key(0), objective=objective, optimizer=optimizer)

    return jax.jit(step)


@pytest.mark.parametrize(
    ("method", "terms"),
    [
        ("asa", {"translation", "asa", "penalty"}),
        pytest.param("freelb", {"translation"}, marks=pytest.mark.exhaustive),
        pytest.param("smart", {"translation", "smart"}, marks=pytest.mark.exhaustive),
        pytest.param("magnitude", {"translation", "masking"}, marks=pytest.mark.exhaustive),
    ],
)
def test_attacks_on_the_encoder_of_a_translation(params, method, terms):
    """A training step: it is finite and another one than without the attack, for the decoder, too."""
    config, plain = ATTACKS[method], Translation(MODEL)
    context = adversarial.AttackContext(MODEL.config, 10)
    objective = adversarial.wrap(plain, config, context)
    assert objective.primary_metric.metric == "nll"
    assert set(objective.coefficients(STEP)) == set(objective.normalizers(small.packed())) == terms
    adversary = nn.unbox(adversarial.init(config, MODEL.config, jax.random.key(3)))
    state, metrics = stepped(objective)(params | adversary)
    expected, expected_metrics = stepped(plain)(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))
    assert all(np.isfinite(total / weight).all() for total, weight in metrics.values())
    for stack in ("encoder", "decoder"):
        differences = jax.tree.map(
            lambda one, other: jnp.abs(one - other).max(), state.params, expected.params | adversary
        )
        assert max(map(float, jax.tree.leaves(differences[stack]))) > 1e-3, stack
    if adversary:
        assert all(float(difference) > 0 for difference in jax.tree.leaves(differences["adversary"]))
        assert 0.1 < float(metrics["masked"][0] / metrics["masked"][1]) < 0.9
    if method in ("asa", "smart", "magnitude"):  # their first pass is that of the model
        np.testing.assert_allclose(metrics["nll"], expected_metrics["nll"], rtol=1e-5)


def test_sift_needs_normalised_embeddings():
    context = adversarial.AttackContext(MODEL.config, 10)
    with pytest.raises(ValueError, match="sift perturbs normalised embeddings.*model.embedding_norm=False"):
        adversarial.wrap(Translation(MODEL), AdversarialConfig("sift"), context)


@pytest.mark.exhaustive
def test_every_mesh_trains_the_same(eight_devices):
    """Two steps of two microbatches, with dropout, guidance and shared tables."""
    model = small.model(heads=4, width=16, dropout=0.1, attention_dropout=0.1)
    objective = dataclasses.replace(guided(), inner=Translation(model), heads=4)
    optimizer = make_optimizer(OptimizerConfig(learning_rate=1e-2, epsilon=1e-3), 10)
    example = small.alone()
    batches = [jax.tree.map(lambda field: np.concatenate([field] * 4), small.packed(seed)) for seed in range(2)]

    def run(shape):
        mesh = make_mesh(MeshConfig(*shape), eight_devices[: int(np.prod(shape))])
        init, rows = functools.partial(model.init, deterministic=True), len(batches[0]["tokens"]) // 2
        program = make_program(
            lambda _: objective, lambda _: optimizer, lambda key: init(key, example)["params"], mesh, rows
        )
        state, losses = program.create(jax.random.key(0)), []
        for batch in batches:
            state, metrics = program.train_step(
                state, sharding.place_batch(batch, mesh), jax.random.key(1), Hyperparameters()
            )
            losses.append(float(metrics["loss"][0]))
        return state, losses

    (alone, losses), (spread, spread_losses) = run((1, 1, 1)), run((2, 2, 2))
    np.testing.assert_allclose(spread_losses, losses, rtol=5e-6)
    for (path, one), other in zip(jax.tree.leaves_with_path(spread.params), jax.tree.leaves(alone.params), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5, err_msg=jax.tree_util.keystr(path))
    kernel = nn.unbox(spread.params)["decoder"]["layers"]["cross_attention"]["key"]["kernel"]
    assert kernel.addressable_shards[0].data.size == kernel.size // 4


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"label_smoothing": 1.0}, "translation.label_smoothing must be at least 0 and below 1, got 1.0"),
        ({"average": 0}, "translation.average must be at least 1, got 0"),
        ({"smooth_over": "some"}, "translation.smooth_over must be one of others, all, got 'some'"),
        ({"tests": ("a=b",)}, "translation.tests must be a list of NAME=SOURCE=TARGET, such as .*, got 'a=b'"),
        ({"tests": ("a==c",)}, "translation.tests must be a list of NAME=SOURCE=TARGET"),
        ({"tests": ("a=b=c", "a=d=e")}, "translation.tests must have different names, got a, a"),
        ({"tests": ("a=b=c", "wmt14/en=d=e")}, "translation.tests must have names that files can have.*'wmt14/en'"),
        ({"tests": ("..=b=c",)}, "translation.tests must have names that files can have.*'[.][.]'"),
        ({"tokenize": "flores200"}, "translation.tokenize must be one of 13a, intl, char, zh, none"),
    ],
)
def test_impossible_settings(setting, message):
    with pytest.raises(ValueError, match=message):
        config_reader.check(TranslationConfig(**setting), "translation")


def test_test_sets_by_name():
    config = TranslationConfig(tests=("one=a.en=a.de", "two=b.en.gz=b.de.gz"))
    assert config.test_sets == {"one": ("a.en", "a.de"), "two": ("b.en.gz", "b.de.gz")}
