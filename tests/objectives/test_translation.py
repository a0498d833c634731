"""The objective of translation, with guidance and under attack, against numpy one pair at a time."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special as functions

from ag_jax.attention import guidance
from ag_jax.attention.assignment import assign_cross_heads, assign_heads
from ag_jax.attention.config import GuidanceConfig
from ag_jax.objectives.adversarial import wrap as adversarial
from ag_jax.objectives.adversarial.config import AdversarialConfig, AsaConfig
from ag_jax.objectives.config import TranslationConfig
from ag_jax.objectives.guided import Guided
from ag_jax.objectives.translation import Translation
from tests import reference, tiny, vaswani
from tests import tiny_translation as small
from tests.objectives import perturbed

STEP = jnp.int32(5)
MODEL = small.model()
ENCODER = (("next", 1), ("period", 2))
DECODER = (("prev", 1), ("first", 1), ("period", 1))
CROSS = (("first", 1), ("diagonal", 1), ("alignment", 1))
TOKENS = sum(target for _, target in small.LENGTHS)


@pytest.fixture(scope="module")
def params():
    return tiny.params(MODEL, small.alone())


@pytest.fixture(scope="module")
def pairs(params):
    """(tokens of the source, tokens that the decoder reads, labels, numpy's logits, its attention weights)."""
    batch, exact, found = small.alone(), tiny.float64(params), []
    for row, of_source, of_target in small.texts(batch):
        tokens = batch["tokens"][row, of_source], batch["target_tokens"][row, of_target]
        found.append((*tokens, batch["target_labels"][row, of_target], *vaswani.translate(exact, *tokens)))
    return found


def check_loss(totals, metrics, pairs):
    """Loss with a smoothing of 0.1 over the other words, and metrics."""
    loss = nll = right = 0.0
    for *_, labels, logits, _ in pairs:
        logs = functions.log_softmax(logits, axis=-1)
        wanted = np.full(logs.shape, 0.1 / (small.VOCABULARY - 1))
        wanted[np.arange(len(labels)), labels] = 0.9
        loss -= (wanted * logs).sum()
        nll -= logs[np.arange(len(labels)), labels].sum()
        right += (logits.argmax(-1) == labels).sum()
    np.testing.assert_allclose(totals["translation"], loss, rtol=1e-5)
    np.testing.assert_allclose(metrics["translation_loss"], (loss, TOKENS), rtol=1e-5)
    np.testing.assert_allclose(metrics["nll"], (nll, TOKENS), rtol=1e-5)
    np.testing.assert_allclose(metrics["accuracy"], (right, TOKENS))


def aligned(p, source):
    """The source token, as a list, to which position p of a target points, with `source` tokens; [] for none."""
    return [(5 * p + 2) % source] if p % 3 else []


def with_alignment(batch):
    """A batch with the columns of `aligned`."""
    columns = np.full(batch["target_tokens"].shape, -1, np.int16)
    for row, sources, targets in small.texts(batch):
        for p, label in enumerate(targets):
            for token in aligned(p, len(sources)):
                columns[row, label] = sources[token]
    return batch | {"alignment": columns}


def guidance_of(pairs):
    """L_AG over all three kinds of attention, and the masses on targets of the decoder's two, by loops."""
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
                    if name == "alignment":
                        seen, wanted = [], aligned(p, len(source))
                    else:
                        seen, wanted = reference.decoder_columns(name, p, len(target), keys, kind == "decoder")
                    if not wanted and not seen:
                        continue  # a row without a pointer never counts
                    P_K = np.zeros(len(keys))
                    P_K[wanted or seen] = 1 / len(wanted or seen)
                    H_NHK = weights[kind][:, head : head + count, p]
                    loss += ((H_NHK - P_K) ** 2).sum() / (count * len(target) * len(keys))
                    if wanted:
                        mass, number = mass + H_NHK[:, :, wanted].sum((1, 2)), number + count
                masses[f"mass/{kind}/{name}"] = mass, number
                head += count
    return loss, masses


def test_an_attack_on_the_encoder_beside_guidance_of_all_three_kinds(params, pairs):
    """Pairs share rows; an empty batch gives no NaN.

    The clean pass is that of the model; the divergence is of every target token, and all learn from it.
    """
    config, attack = GuidanceConfig("loss", alpha=3.0, schedule="constant"), AsaConfig(sentence="none")
    heads, alpha = small.CONFIG.heads, guidance.coefficient_schedule(config, 10)
    guided = Guided(Translation(MODEL), config, ENCODER, heads, tiny.SPECIAL, alpha, DECODER, CROSS)
    objective = perturbed.attacked(guided, shape=MODEL.config, sentence="none")
    assert objective.primary_metric.metric == "nll"
    weights = {"translation": TOKENS, "ag": len(pairs), "asa": TOKENS, "penalty": len(pairs)}
    assert {term: float(value) for term, value in objective.normalizers(small.packed()).items()} == weights
    params |= nn.unbox(adversarial.init(AdversarialConfig("asa", asa=attack), MODEL.config, jax.random.key(3)))
    loss, metrics, gradient = perturbed.trained(objective, params, with_alignment(small.packed()))
    check_loss({"translation": metrics["translation_loss"][0]}, metrics, pairs)
    ag, masses = guidance_of(pairs)
    divided = {name: total / weight for name, (total, weight) in metrics.items() if name.endswith(("loss", "units"))}
    parts = divided["translation_loss"] + divided["asa_loss"] + 0.09 * divided["kept_units"]
    np.testing.assert_allclose(loss, parts + 3 * ag / len(pairs), rtol=1e-5)
    np.testing.assert_allclose(metrics["ag_loss"], (ag, len(pairs)), rtol=1e-5)
    own = {name for name in metrics if name.startswith("mass/")}
    assert own == masses.keys() | {"mass/next", "mass/period"}
    for name, (mass, number) in masses.items():
        np.testing.assert_allclose(metrics[name][0], mass, rtol=1e-5, err_msg=name)
        np.testing.assert_array_equal(metrics[name][1], [number] * 2, err_msg=name)
    assert metrics["asa_loss"][0] > 0.01 and 0.1 < metrics["masked"][0] / metrics["masked"][1] < 0.9
    assert all(np.asarray(leaf).any() for leaf in jax.tree.leaves(gradient["adversary"]))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    loss, _, gradient = perturbed.trained(
        objective, params, jax.tree.map(np.zeros_like, with_alignment(small.packed()))
    )
    assert loss == 0 and not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(gradient))


def test_cross_attention_alone_is_guided(params):
    """Nothing of the encoder is in the metrics, and no head of it collects statistics."""
    config = GuidanceConfig("loss", heads="", cross_heads="alignment:1")
    counts = assign_heads(config, 3), (), assign_cross_heads(config, 3)
    guided = Guided(Translation(MODEL), config, counts[0], 3, tiny.SPECIAL, lambda step: 1.0, *counts[1:])
    outputs, (_, metrics) = jax.eval_shape(
        lambda batch: (
            outputs := guided.forward(params, batch, perturbed.RNGS, STEP),
            guided.terms(outputs, batch),
        ),
        with_alignment(small.packed()),
    )
    assert outputs.statistics is None and [name for name in metrics if "mass" in name] == ["mass/cross/alignment"]
    for mode, heads in (("loss", {}), ("bias", {"cross_heads": "alignment:1"})):
        with pytest.raises(ValueError, match="guidance.heads is empty"):
            GuidanceConfig(mode, heads="", **heads)


def test_smoothing_over_the_other_words_or_all():
    """The share of all words: that of the others is spread over V - 1 of V."""
    for over, share in (("others", 0.1 * 7 / 6), ("all", 0.1)):
        assert TranslationConfig(label_smoothing=0.1, smooth_over=over).smoothing(7) == pytest.approx(share)
