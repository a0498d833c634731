"""What a comparison's report says first: how large a difference is, whether it is told from chance, and of what."""

import numpy as np
import pytest

from ag_jax.attention.config import GuidanceConfig
from ag_jax.data.config import DataConfig
from ag_jax.models.config import EncoderConfig
from ag_jax.objectives.adversarial.config import AdversarialConfig
from ag_jax.objectives.masked_lm import MLM
from ag_jax.pretraining import findings
from ag_jax.pretraining.config import ExperimentConfig

INTERVALS = {"below": (-1.3, -1.2), "around": (-0.1, 0.04), "above": (0.2, 0.25)}


def content(values, seeds=(0,), **numbers):
    """Numbers of a report with these validation losses by arm; intervals and standard errors by arm."""
    baseline, *others = values
    intervals = numbers.get("intervals", {})
    return {
        "baseline": baseline,
        "arms": {
            arm: {"values": {"validation_loss": of_arm}, **numbers.get("errors", {}).get(arm, {})}
            for arm, of_arm in values.items()
        },
        "differences": {arm: {"validation_loss": intervals.get(arm)} for arm in others},
    }


@pytest.mark.parametrize("change", [-1.25, 0.03])
def test_with_one_seed_a_difference_is_measured_by_the_noise_of_the_held_out_text(change):
    for error, is_apart in ((None, None), (abs(change) / 2.1, True), (abs(change) / 1.9, False)):
        found = findings.difference([6.0], [6.0 + change], None, error)
        assert found.change == pytest.approx(change) and found.is_apart is is_apart
        assert found.size == f"{abs(change):.{2 if abs(change) >= 0.1 else 3}f}"


def test_over_seeds_an_interval_tells_arms_apart():
    found = {
        name: findings.difference([1, 2], [2, 3], {"interval": of, "p_corrected": 0.01})
        for name, of in INTERVALS.items()
    }
    assert [of.is_apart for of in found.values()] == [True, False, True]
    assert "1.20 to 1.30" in found["below"].evidence, "of the size of a difference, which is told in words"
    assert "-0.10 to +0.040" in found["around"].evidence
    assert findings.difference([1.0], [1.0004], None).size == "0.0004", "not nothing"
    overruled = findings.difference([1, 2], [2, 3], {"interval": (0.2, 0.25), "p_corrected": 0.07})
    assert not overruled.is_apart and "+0.20 to +0.25" in overruled.evidence and "0.07" in overruled.evidence
    assert [findings.difference([1, 2], values, None).is_apart for values in ([1, 2], [2, 3])] == [False, True]
    assert not findings.difference([20.0], [21.0], None, over_sentences=(-0.5, 2.5)).is_apart


def test_the_standard_error_of_a_difference_is_that_of_its_noise():
    """Rows of 100 tokens whose losses differ with a standard deviation of 0.3, so 400 tokens have half of it."""
    rng, steps = np.random.default_rng(0), 10 * np.arange(1, 2001)
    shared = rng.normal(0, 5, len(steps))  # of the batches, which both arms read
    noise = rng.normal(0, 0.3, len(steps)) - np.linspace(0, 2, len(steps))

    def rows(losses):
        return [
            {"step": int(step), "split": "train", "tokens_seen": 10 * int(step), "mlm_loss": loss}
            for step, loss in zip(steps, losses, strict=True)
        ]

    found = findings.standard_error(rows(shared), rows(shared + noise), "mlm_loss", 400)
    assert found == pytest.approx(0.15, rel=0.1)
    assert findings.standard_error(rows(shared)[:7], rows(shared), "mlm_loss", 400) is not None
    assert findings.standard_error(rows(shared)[:6], rows(shared), "mlm_loss", 400) is None, "three differences"


def test_the_result_names_what_lowers_the_loss_and_the_best_of_several_arms():
    subjects = {"ag": "Guidance", "far": ""}
    known = {"errors": {"ag": {"standard_error": 0.01}}}
    text = findings.result(MLM, content({"plain": [6.21], "ag": [4.96]}, **known), subjects)
    assert text.startswith("Guidance lowers") and all(
        part in text for part in ("1.25 nats", "6.210", "4.960", "one seed")
    )
    assert "raises" in findings.result(MLM, content({"plain": [4.0], "ag": [4.5]}, **known), subjects)
    observed = findings.result(MLM, content({"plain": [4.0], "ag": [4.5]}), subjects)
    assert "Guidance" not in observed and "higher" in observed, "without a standard error, no effect is claimed"
    higher = findings.result(MLM, content({"plain": [4.0], "far": [4.5]}), subjects)
    assert "**far**" in higher and "higher" in higher
    unclear = content({"plain": [4.0], "ag": [4.01]}, errors={"ag": {"standard_error": 0.02}})
    assert "cannot be told apart" in findings.result(MLM, unclear, subjects)
    several = {"plain": [4.0], "ag": [3.5], "far": [3.75]}
    text = findings.result(MLM, content(several), subjects)
    assert "**ag**" in text and "0.50 nats" in text and "**far**" not in text
    worse = findings.result(MLM, content({"plain": [3.0], "ag": [3.5], "far": [3.75]}), subjects)
    assert worse.startswith("None of the 2") and "**ag** with 3.500" in worse
    assert findings.result(MLM, content({"plain": [3.0]}), {}) == ""


def test_translations_are_compared_by_their_scores():
    test = {
        "values": {"base": {"bleu": [20.0]}, "ag": {"bleu": [21.0]}},
        "differences_over_seeds": {"ag": {"bleu": None}},
        "differences": {"ag": {"bleu": {"interval": (0.5, 1.5)}}},
    }
    numbers = content({"base": [4.0], "ag": [3.5]}) | {"translations": {"news": test}}
    first, second = findings.result(MLM, numbers, {"ag": "Guidance"}).split(". The")
    assert first.startswith("Guidance raises BLEU on news by **1.00") and "0.50 to 1.50" in first and "lower" in second


def config(**sections):
    return ExperimentConfig(model=EncoderConfig(layers=3, heads=6, width=12), **sections)


def test_arms_in_words():
    guided = {"mode": "loss", "heads": "next:1,prev:2,first:1", "layers": "0,1"}
    configs = {
        "plain": config(),
        "ag": config(guidance=GuidanceConfig(**guided)),
        "weak": config(guidance=GuidanceConfig(**guided)),
        "asa": config(adversarial=AdversarialConfig(method="asa")),
    }
    settings = {arm: {"guidance.mode": of.guidance.mode, "model.layers": 3} for arm, of in configs.items()}
    settings["weak"]["model.layers"] = 4
    texts = findings.arms_in_words(configs, settings, {"ag": 10.0, "weak": 0.5})
    assert "without guidance" in texts["plain"] and "`model.layers=3`" in texts["plain"] and "layers=4" in texts["weak"]
    for part in (
        "head 0 of layers 0-1 towards [Next]",
        "heads 1-2 towards [Prev]",
        "head 3 towards",
        "heads 4-5 are free",
    ):
        assert part in texts["ag"] and part not in texts["weak"]
    assert "alpha 0.5) of the same heads as ag" in texts["weak"] and "`asa`" in texts["asa"]


def test_what_differs_is_the_subject_only_if_nothing_else_does():
    base = {"guidance.mode": "none", "adversarial.method": "none", "seed": 0}
    ag, asa = base | {"guidance.mode": "loss", "guidance.alpha": 1}, base | {"adversarial.method": "asa"}
    found = findings.subjects({"base": base, "ag": ag, "asa": asa, "both": ag | asa, "wide": ag | {"model.width": 2}})
    assert found == {"ag": "Guidance", "asa": "The attack asa", "both": "", "wide": ""}
    assert findings.subjects({"ag": ag, "base": base}) == {"base": ""}


def test_the_title_has_the_name_of_the_text_and_no_directories_of_the_machine():
    named = {
        source: findings.heading(ExperimentConfig(title="T", data=DataConfig(source=source)))
        for source in ("sotu", "/home/me/books", "texts/a.txt:2,/x/b.txt:1", "hf:owner/name")
    }
    assert [*named.values()] == [
        f"T, on {name}" for name in (findings.SOTU, "books", "texts/a.txt, b.txt", "hf:owner/name")
    ]
