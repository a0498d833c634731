"""Trials under attack: a killed one ends the same, the adversary leaves no weights behind, and
it may learn at its own rate.
"""

import dataclasses

import jax
import numpy as np
import pytest

from ag_jax.finetuning import encoded, job, program
from ag_jax.finetuning.config import FinetuningConfig, Recipe
from ag_jax.finetuning.job import run_trial
from ag_jax.finetuning.trial import Trial
from ag_jax.interop import finetuned
from ag_jax.objectives.adversarial.config import AdversarialConfig, AsaConfig, FixedMaskConfig
from ag_jax.training.hyperparameters import Hyperparameters
from ag_jax.training.optimizer import make_optimizer
from ag_jax.training.stopping import Interrupted, StopSignal
from tests.finetuning import tasks
from tests.finetuning.test_trial import rows, without_clock

ASA = AdversarialConfig("asa")


def setting(kind, adversarial, **settings):
    recipe = Recipe(epochs=2, max_length=24, adversarial=adversarial, **settings)
    opened = tasks.pretrained()
    data = encoded.encode(tasks.splits(kind), opened.tokenizer, opened.config, recipe)
    config = FinetuningConfig(checkpoint="nowhere", tasks={kind: recipe})
    of = Trial(kind, recipe, 5e-3, 8, 0)
    return lambda directory: run_trial(of, config, opened, data, directory, True), job.make_spec(
        of, config, opened, data
    )


def test_a_killed_trial_ends_the_same(tmp_path, one_device, monkeypatch):
    run, plan = setting("choice", ASA)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    expected = run(whole)
    train = [row for row in rows(whole / "metrics.jsonl") if row["split"] == "train"]
    assert all({"asa_loss", "masked", "masked/layers", "adversary_gradient_norm"} <= set(row) for row in train)
    kept = finetuned.load(whole)
    assert set(kept.params) == {"encoder", "task_head"} and set(kept.adversary_params) == {"adversary"}
    asked = []
    monkeypatch.setattr(StopSignal, "reached", lambda _: asked.append(1) or ("SIGTERM" if len(asked) == 5 else None))
    with pytest.raises(Interrupted):
        run(killed)
    assert without_clock(run(killed)) == without_clock(expected)
    for name in ("metrics.jsonl", "predictions_validation.jsonl", "predictions_test.jsonl"):
        assert without_clock(rows(killed / name)) == without_clock(rows(whole / name))
    weights = [(place / "weights" / finetuned.WEIGHTS).read_bytes() for place in (whole, killed)]
    assert weights[0] == weights[1]
    scheduled = AdversarialConfig("scheduled", masking=FixedMaskConfig(trace=str(whole)))
    found = program.make_objective(
        dataclasses.replace(plan, adversarial=scheduled), plan.head.model(plan.config), Hyperparameters()
    )
    assert found.attacker.trace.shares == tuple(tuple(row["masked/layers"]) for row in train)


@pytest.mark.parametrize("rate", [0.0, 0.7])
def test_the_adversary_has_the_trials_rate_or_its_own(rate):
    """The model's part is as without an adversary."""
    _, plan = setting(
        "tagging", dataclasses.replace(ASA, asa=AsaConfig(learning_rate=rate, weight_decay=0.3, clip_norm=2.0))
    )
    params = {
        "encoder": {"kernel": np.ones((2, 3), np.float32)},
        "adversary": {"key": {"kernel": np.ones((2, 2), np.float32)}},
    }
    gradient = jax.tree.map(lambda leaf: 5 * leaf, params)
    optimizer = program.make_trial_optimizer(plan, Hyperparameters(np.float32(0.1), np.int32(2)))
    state = optimizer.init(params)
    config = dataclasses.replace(plan.optimizer, learning_rate=0.1, warmup_steps=2)
    own = dataclasses.replace(config, learning_rate=rate or 0.1, weight_decay=0.3, clip_norm=2.0)
    states = {
        part: make_optimizer(of, plan.steps).init(params[part])
        for part, of in (("encoder", config), ("adversary", own))
    }
    for _ in range(3):
        found, state = optimizer.update(gradient, state, params)
        for part, of in (("encoder", config), ("adversary", own)):
            updates, states[part] = make_optimizer(of, plan.steps).update(gradient[part], states[part], params[part])
            for one, other in zip(jax.tree.leaves(found[part]), jax.tree.leaves(updates), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-6)
    assert np.abs(found["adversary"]["key"]["kernel"]).max() > 0
