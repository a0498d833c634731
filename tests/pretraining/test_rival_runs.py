"""Perturbed embeddings from the settings of a run or a trial to what it writes down."""

from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ag_jax import config_reader
from ag_jax.finetuning import encoded, job, trial
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
from ag_jax.training import sharding
from ag_jax.training.hyperparameters import Hyperparameters
from ag_jax.training.optimizer import OptimizerConfig, make_optimizer
from ag_jax.training.program import make_program
from ag_jax.training.sharding import MeshConfig, make_mesh
from tests import tiny
from tests.cases import some
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
        config_reader.check(AdversarialConfig("pgd"), "adversarial")


@pytest.mark.parametrize("method", some(["freelb", "r_drop", "sift"], "r_drop"))
def test_in_a_trial(method, tmp_path, one_device):
    recipe = Recipe(epochs=1, max_length=24, adversarial=AdversarialConfig(method, **RIVALS[method]))
    opened = tasks.pretrained()
    data = encoded.encode(tasks.splits("choice"), opened.tokenizer, opened.config, recipe)
    config = FinetuningConfig(checkpoint="nowhere", tasks={"choice": recipe})
    job.run_trial(trial.Trial("choice", recipe, 5e-3, 8, 0), config, opened, data, tmp_path, False)
    for row in (logged := rows(tmp_path, "train")):
        assert np.isfinite(row["task_loss"])
        assert method == "freelb" or (row[f"{method}_loss"] > 0 and row[f"coefficient/{method}"] == 2)
        assert method == "r_drop" or row["delta_norm"] > 0
        assert method != "freelb" or 0.05 < row["delta_norm"] < 0.1 + 2 * 0.05
    assert logged


def test_in_pretraining(text, tmp_path, one_device):
    """In two microbatches, packed."""
    smart = {"noise": 1e-3, "epsilon": 1e-2, "step_size": 1e-1}
    changed = {
        **{"data.pack": True, "training.microbatches": 2, "training.log_every": 1, "training.evaluate_every": None},
        **{"adversarial.method": "smart"},
        **{f"adversarial.smart.{name}": value for name, value in smart.items()},
    }
    run.train(tiny_runs.settings(text, 2, **changed), tmp_path / "run")
    logged = rows(tmp_path / "run", "train")
    assert len(logged) == 2
    for row in logged:
        assert row["smart_loss"] > 0 and 0 < row["delta_norm"] < 0.01 * (16 * 16) ** 0.5
        assert row["coefficient/smart"] == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize(("method", "remat"), [("smart", "dots"), ("freelb", "layer"), ("sift", "none")])
def test_spread_over_devices_and_computed_again_it_is_the_same(method, remat, eight_devices):
    """Two microbatches with dropout on a mesh of 2 x 2 x 2, against one device that keeps everything."""
    config, batch = AdversarialConfig(method, **RIVALS[method]), tiny.batch((11, 7, 5, 0, 9, 4, 11, 2))
    found = []
    for shape, again in (((1, 1, 1), "none"), ((2, 2, 2), remat)):
        model = tiny.model(heads=4, width=16, dropout=0.1, attention_dropout=0.2, remat=again)
        objective = adversarial.wrap(tiny.guided(model), config, adversarial.AttackContext(model.config, 10))
        mesh = make_mesh(MeshConfig(*shape), eight_devices[: int(np.prod(shape))])
        optimizer = make_optimizer(OptimizerConfig(), 10)

        def init(key, model=model):
            return model.init(key, batch, deterministic=True)["params"]

        rows = len(batch["tokens"]) // 2
        program = make_program(lambda _, made=objective: made, lambda _, made=optimizer: made, init, mesh, rows)
        state, placed = program.create(jax.random.key(0)), sharding.place_batch(batch, mesh)
        found.append(program.train_step(state, placed, jax.random.key(1), Hyperparameters())[1])
    alone, spread = found
    assert set(alone) == set(spread) and {"delta_norm", "gradient_norm", "ag_loss", "mlm_loss"} < set(alone)
    for name, (total, weight) in alone.items():
        np.testing.assert_allclose(spread[name][0], total, rtol=2e-4, atol=1e-7, err_msg=name)
        np.testing.assert_array_equal(spread[name][1], weight, err_msg=name)
