"""Perturbed embeddings from the settings of a run or a trial to what it writes down."""

from typing import get_args

import jax.numpy as jnp
import pytest

from ag_jax.finetuning import encoded, program, task_training, trial
from ag_jax.finetuning.config import FinetuningConfig, Recipe
from ag_jax.objectives.adversarial import wrap as adversarial
from ag_jax.objectives.adversarial.config import (
    AdversarialConfig,
    FreeLBConfig,
    Method,
    RDropConfig,
    SiftConfig,
    SmartConfig,
)
from ag_jax.objectives.adversarial.freelb import FreeLB
from ag_jax.objectives.adversarial.sift import SiftPerturbation
from ag_jax.objectives.adversarial.smart import MtDnnPerturbation, SmartPerturbation
from ag_jax.objectives.masked_lm import Pretraining
from ag_jax.pretraining import run
from ag_jax.settings import schema
from ag_jax.training.hyperparameters import Hyperparameters
from tests import tiny
from tests.finetuning import tasks
from tests.pretraining import tiny_runs
from tests.pretraining.tiny_runs import rows

RIVALS = {
    "freelb": {"freelb": FreeLBConfig(steps=3, step_size=0.05)},
    "smart": {"smart": SmartConfig(alpha=3.0, steps=2)},
    "sift": {"sift": SiftConfig(weight=2.0)},
    "r_drop": {"r_drop": RDropConfig(weight=2.0)},
}


def test_the_method_chooses():
    """Also the width of embeddings that have one of their own; settings of other methods are not read."""
    inner, config = Pretraining(tiny.model()), tiny.config(embedding_width=7, dropout=0.1)
    setting = adversarial.AttackContext(config, 10)
    made = {method: adversarial.wrap(inner, AdversarialConfig(method, **RIVALS[method]), setting) for method in RIVALS}
    assert made["freelb"] == FreeLB(inner, RIVALS["freelb"]["freelb"], 7)
    assert made["smart"].perturbation == SmartPerturbation(RIVALS["smart"]["smart"], 7) and made["smart"].steps == 2
    assert made["sift"].perturbation == SiftPerturbation(RIVALS["sift"]["sift"], 7) and made["sift"].steps == 1
    assert [made[method].coefficients(jnp.int32(0))[method] for method in ("smart", "sift", "r_drop")] == [3, 2, 2]
    assert (made["smart"].stop_gradient, made["sift"].stop_gradient) == ("none", "targets")
    compat = adversarial.wrap(inner, AdversarialConfig("smart", smart=SmartConfig(mtdnn_compat=True)), setting)
    assert isinstance(compat.perturbation, MtDnnPerturbation) and compat.stop_gradient == "targets"
    assert set(RIVALS) < set(get_args(Method)) and AdversarialConfig("sift").sentence_prediction == "none"
    with pytest.raises(ValueError, match="adversarial.method"):
        schema.check(AdversarialConfig("pgd"), "adversarial")


def test_in_a_trial():
    recipe = Recipe(max_length=24, adversarial=AdversarialConfig("r_drop", **RIVALS["r_drop"]))
    config = FinetuningConfig(checkpoint="nowhere", tasks={"classification": recipe})
    opened = tasks.pretrained()
    data = encoded.encode(tasks.splits("classification"), opened.tokenizer, opened.config, recipe)
    spec = task_training.make_spec(trial.Trial("classification", recipe, 5e-3, 8, 0), config, opened, data)
    objective = program.make_objective(spec, spec.head.model(spec.config), Hyperparameters())
    assert objective.term == "r_drop" and objective.coefficients(jnp.int32(0))["r_drop"] == 2


def test_in_pretraining(text, tmp_path, one_device):
    """Rows are packed."""
    smart = {"noise": 1e-3, "epsilon": 1e-2, "step_size": 1e-1}
    changed = {
        **{"data.pack": True, "training.evaluate_every": None, "training.milestones": ()},
        **{"adversarial.method": "smart", "adversarial.smart.alpha": 0.5},
        **{f"adversarial.smart.{name}": value for name, value in smart.items()},
    }
    run.train(tiny_runs.settings(text, 2, **changed), tmp_path / "run")
    (row,) = rows(tmp_path / "run", "train")
    assert row["smart_loss"] > 0 and 0 < row["delta_norm"] < 0.01 * (16 * 16) ** 0.5
    assert row["coefficient/smart"] == 0.5
