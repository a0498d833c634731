"""The divergence of attention by a plain formulation, and the change of a tiny model's attention under each attack."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ag_jax.analysis import changes
from ag_jax.analysis.changes import AttackedModel
from ag_jax.attention.adversary import ADVERSARY
from ag_jax.models import encoder
from ag_jax.models.encoder import Ports
from ag_jax.objectives.adversarial import wrap as adversarial
from ag_jax.objectives.adversarial.config import AdversarialConfig, AsaConfig, FreeLBConfig, SmartConfig
from tests import tiny
from tests.objectives import perturbed

MODEL = tiny.task_model("classification")
BATCH = {name: field[:1] for name, field in tiny.task_batch("classification").items()}
CONTEXT = adversarial.AttackContext(MODEL.config, 10)


def entropy(row):
    return -sum(p * math.log2(p) for p in row if p > 0)


def divergence(first, second):
    """The divergence of two rows: the entropy of their mean, minus the mean of their entropies."""
    mean = [(p + q) / 2 for p, q in zip(first, second, strict=True)]
    return entropy(mean) - (entropy(first) + entropy(second)) / 2


def random_rows(*shape, seed=0):
    rows = np.random.default_rng(seed).dirichlet(0.3 * np.ones(shape[-1]), shape[:-1])
    rows[rows < 0.05] = 0
    return rows / rows.sum(-1, keepdims=True)


def test_the_divergence_against_entropies():
    first, second = random_rows(3, 5, 7), random_rows(3, 5, 7, seed=1)
    found = changes.jensen_shannon(first, second)
    assert found.shape == (3, 5)
    for place in np.ndindex(3, 5):
        assert found[place] == pytest.approx(divergence(first[place], second[place]), abs=1e-12)
    assert 0 < found.min() < found.max() <= 1
    rows = random_rows(4, 6).astype(np.float32)
    assert changes.jensen_shannon(rows, rows).tolist() == [0] * 4
    left = np.concatenate([rows, 0 * rows], -1)
    np.testing.assert_allclose(changes.jensen_shannon(left, left[:, ::-1]), 1)
    smallest = np.array([np.finfo(np.float64).smallest_subnormal, 1.0])
    assert np.isfinite(changes.jensen_shannon(smallest, smallest[::-1]))


def test_rows_of_padding_do_not_count():
    segments_BL = np.array([[1, 1, 2, 0, 0], [1, 0, 0, 0, 0]])
    plain, attacked = random_rows(2, 2, 3, 5, 5), random_rows(2, 2, 3, 5, 5, seed=1)
    found = changes.change(plain, attacked, segments_BL)
    for layer in range(2):
        rows = [
            divergence(plain[layer, row, head, token], attacked[layer, row, head, token])
            for row, tokens in ((0, 3), (1, 1))
            for head in range(3)
            for token in range(tokens)
        ]
        assert found[layer] == pytest.approx(np.mean(rows), abs=1e-12)


def attacked_model(method, params, **settings):
    """The tiny classifier with the objective of an attack; `settings` are the attack's."""
    sections = {"freelb": FreeLBConfig, "smart": SmartConfig, "asa": AsaConfig}
    config = AdversarialConfig(method, **{method: sections[method](**settings)})
    objective = adversarial.wrap(tiny.supervised(MODEL), config, CONTEXT)
    return AttackedModel(objective, MODEL, params, 3)


@pytest.fixture(scope="module")
def params():
    return tiny.params(MODEL, tiny.task_batch("classification"))


def test_embedding_attacks_of_a_model(params):
    """The maps are those of the embeddings moved by the perturbation of a training step."""
    model = attacked_model("freelb", params, steps=2, step_size=4.0, init_magnitude=0.5, max_norm=None)
    found = changes.mean_change(model, [BATCH])
    rngs = {"dropout": jax.random.fold_in(jax.random.key(0), 0)}
    read, _, ports = jax.jit(model.objective.attacked_pass)(params, BATCH, rngs, jnp.int32(3))
    delta = ports.embedding_delta
    plain, moved = (np.asarray(sown(params, read, of)) for of in (0 * delta, delta))
    np.testing.assert_allclose(found, changes.change(plain, moved, BATCH["segment_ids"]), rtol=1e-4)
    assert found.shape == (2,) and found.min() > 1e-3


@jax.jit
def sown(params, batch, delta):
    """The attention weights that the model sows, with `delta` added to the embeddings."""
    _, collections = MODEL.apply(
        {"params": params},
        batch,
        method=lambda model, batch: model.encoder(batch, ports=Ports(embedding_delta=delta), deterministic=True),
        mutable=["intermediates"],
    )
    return collections["intermediates"]["encoder"]["layers"]["attention"]["attention_weights"][0]


def test_an_attack_on_attention(params):
    """An adversary that masks everything leaves even attention; one that masks nothing changes nothing."""
    shape = MODEL.config.layers, MODEL.config.width
    changed = []
    for score in (-1.0, 1.0):
        parts = {"query": np.ones(shape, np.float32), "key": np.full(shape, score, np.float32)}
        adversary = {
            name: {"kernel": np.zeros((*shape, shape[1]), np.float32), "bias": bias} for name, bias in parts.items()
        }
        changed.append(changes.mean_change(attacked_model("asa", params | {ADVERSARY: adversary}), [BATCH]))
    plain = np.asarray(sown(params, encoder.rows(BATCH), jnp.zeros((*BATCH["tokens"].shape, MODEL.config.width))))
    segments_BL = BATCH["segment_ids"]
    even = np.broadcast_to((segments_BL > 0) / (segments_BL > 0).sum(), plain.shape)
    np.testing.assert_allclose(changed[0], changes.change(plain, even, segments_BL), rtol=1e-4)
    np.testing.assert_allclose(changed[1], 0, atol=1e-9)


def test_masked_cells_get_no_attention(params):
    """Cells are masked exactly where the attacked rows have no weight, except in rows without any other cell."""
    shape, random = (MODEL.config.layers, MODEL.config.width), np.random.default_rng(0)
    adversary = {
        name: {
            "kernel": random.standard_normal((*shape, shape[1])).astype(np.float32),
            "bias": np.zeros(shape, np.float32),
        }
        for name in ("query", "key")
    }
    found = changes._both(attacked_model("asa", params | {ADVERSARY: adversary}), BATCH, 0)
    plain_NBHQK, attacked_NBHQK, masked_NBHQK, _ = found
    is_token = BATCH["segment_ids"][0] > 0
    masked = np.broadcast_to(masked_NBHQK, plain_NBHQK.shape)[..., is_token, :][..., is_token]
    empty = masked.all(-1)
    assert 0.1 < masked.mean() < 0.9 and (~empty).any()
    attacked = attacked_NBHQK[..., is_token, :][..., is_token]
    np.testing.assert_array_equal((attacked == 0)[~empty], masked[~empty])


@pytest.mark.parametrize("method", ["freelb", "smart"])
def test_the_perturbation_is_that_of_a_training_step(method):
    """The model can be computed by hand: the metric of the step has the length of the same perturbation."""
    settings = {"freelb": FreeLBConfig(steps=3, step_size=0.3), "smart": SmartConfig(steps=2, noise=0.1, epsilon=0.5)}
    config = AdversarialConfig(method, **{method: settings[method]})
    context = dataclasses.replace(CONTEXT, encoder=tiny.config(embedding_width=3))
    objective = adversarial.wrap(perturbed.Linear(), config, context)
    batch, rngs = perturbed.linear_batch(), {"dropout": perturbed.KEY}
    factors = dict.fromkeys(objective.normalizers(batch), np.float32(1))

    @jax.jit
    def both(rngs):
        arguments = perturbed.W, batch, rngs, perturbed.STEP
        return objective.attacked_pass(*arguments), objective.value_and_grad(*arguments, factors)[0][1]

    found, metrics = both(rngs)
    lengths = np.sqrt((np.asarray(found.attacked.embedding_delta) ** 2).sum((1, 2)))
    total, texts = metrics["delta_norm"]
    assert lengths[:3].min() > 0 and lengths[3] == 0 and texts == 3
    np.testing.assert_allclose(lengths.sum(), total, rtol=1e-5)
    assert found.clean == Ports() and perturbed.Linear().attacked_pass({}, {}, {}, 0) is None


def test_the_table_of_the_command_has_small_changes_and_their_mean():
    rows = [line.split() for line in changes.change_table(np.array([0.5, 0.00012]), "freelb").splitlines()]
    assert all(row in rows for row in (["0", "0.5"], ["1", "0.00012"], ["mean", "0.25"]))
