"""Perturbed embeddings from the settings of a run or a trial to what it writes down."""

import functools
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

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
from ag_jax.pretraining import config as pretraining_config
from ag_jax.pretraining import run
from ag_jax.training import sharding
from ag_jax.training.hyperparameters import Hyperparameters
from ag_jax.training.metrics import read_metrics
from ag_jax.training.optimizer import OptimizerConfig, make_optimizer
from ag_jax.training.program import make_program
from ag_jax.training.sharding import MeshConfig, make_mesh
from tests import tiny
from tests.cases import some
from tests.finetuning import tasks

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
    with pytest.raises(ValueError, match="adversarial.method must be one of none, asa, .*freelb, smart, sift, r_drop"):
        config_reader.check(AdversarialConfig("pgd"), "adversarial")


@pytest.mark.parametrize("method", some(["freelb", "r_drop", "sift"], "r_drop"))
def test_in_a_trial(method, tmp_path, one_device):
    recipe = Recipe(epochs=1, max_length=24, adversarial=AdversarialConfig(method, **RIVALS[method]))
    opened = tasks.pretrained()
    data = encoded.encode(tasks.splits("choice"), opened.tokenizer, opened.config, recipe)
    config = FinetuningConfig(checkpoint="nowhere", tasks={"choice": recipe})
    job.run_trial(trial.Trial("choice", recipe, 5e-3, 8, 0), config, opened, data, tmp_path, False)
    rows = [row for row in read_metrics(tmp_path) if row["split"] == "train"]
    assert rows and all(np.isfinite(row["task_loss"]) for row in rows)
    if method == "r_drop":
        assert all(row["r_drop_loss"] > 0 and row["coefficient/r_drop"] == 2 for row in rows)
        return
    assert all(row["delta_norm"] > 0 for row in rows)
    if method == "freelb":
        assert all(0.05 < row["delta_norm"] < 0.1 + 2 * 0.05 for row in rows)
    else:
        assert all(row["sift_loss"] > 0 for row in rows)


def test_in_pretraining(tmp_path, one_device):
    """Of replaced tokens, in two microbatches, packed, with a generator that is not perturbed."""
    (tmp_path / "text").mkdir()
    for number in range(8):
        text = "We will build roads. Thank you. " * 12 + f"It is number {number}."
        (tmp_path / "text" / f"{number}.txt").write_text(text)
    values = pretraining_config.default_config()
    values.update_from_flattened_dict(
        {
            "data.source": str(tmp_path / "text"),
            "data.sequence_length": 16,
            "data.pack": True,
            "data.tokenizer.vocabulary_size": 290,
            "model.layers": 1,
            "model.width": 16,
            "model.heads": 4,
            "model.max_length": 16,
            "replaced_tokens.generator": "mlm",
            "training.steps": 2,
            "training.batch_size": 4,
            "training.microbatches": 2,
            "training.log_every": 1,
            "training.evaluate_every": None,
            "training.tensorboard": False,
            "adversarial.method": "smart",
            "adversarial.smart.noise": 1e-3,
            "adversarial.smart.epsilon": 1e-2,
            "adversarial.smart.step_size": 1e-1,
        }
    )
    run.train(pretraining_config.parse(values), epath.Path(tmp_path / "run"))
    rows = [row for row in read_metrics(epath.Path(tmp_path / "run")) if row["split"] == "train"]
    assert len(rows) == 2 and all(
        row["smart_loss"] > 0 and 0 < row["delta_norm"] < 0.01 * (16 * 16) ** 0.5 for row in rows
    )
    assert all(row["coefficient/smart"] == 1 for row in rows)


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
        init = functools.partial(of_model, model, batch)
        rows = len(batch["tokens"]) // 2
        program = make_program(lambda _, made=objective: made, lambda _, made=optimizer: made, init, mesh, rows)
        state, placed = program.create(jax.random.key(0)), sharding.place_batch(batch, mesh)
        found.append(program.train_step(state, placed, jax.random.key(1), Hyperparameters())[1])
    alone, spread = found
    assert set(alone) == set(spread) and {"delta_norm", "gradient_norm", "ag_loss", "mlm_loss"} < set(alone)
    for name, (total, weight) in alone.items():
        np.testing.assert_allclose(spread[name][0], total, rtol=2e-4, atol=1e-7, err_msg=name)
        np.testing.assert_array_equal(spread[name][1], weight, err_msg=name)


def of_model(model, batch, key):
    return model.init(key, batch, deterministic=True)["params"]
