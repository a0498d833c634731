"""Replaced-token detection from its config to the report: runs, evaluation, maps, and the plateau of its loss."""

import json
import pathlib

import numpy as np
import pytest
from etils import epath

from ag_jax.analysis import maps
from ag_jax.data import pipeline
from ag_jax.data.text.unigram import Unigram
from ag_jax.pretraining import comparison, plateau, run, run_directory, workloads
from ag_jax.pretraining.open_run import open_run
from ag_jax.settings import config_files
from tests.pretraining import tiny_runs
from tests.pretraining.tiny_runs import on_one_device, rows

CONFIG = str(pathlib.Path(__file__).parents[2] / "configs" / "ag" / "table6_electra.py")
ARMS = f'''
from ag_jax.settings import config_files
from ag_jax.settings.config_files import OneOf

def get_config(*, arm: OneOf("slow", "fast") = "slow"):
    """arm: slow or fast."""
    config = config_files.read("{CONFIG}:generator=mlm,scale=small,arm=ag")
    config.optimizer.learning_rate = 1e-4 if arm == "slow" else 1e-2
    config.comparison.arms = "slow,fast"
    return config
'''


@pytest.fixture(scope="module")
def overrides(text):
    changed = {name: tiny_runs.TINY[name] for name in tiny_runs.TINY if not name.startswith("optimizer.")}
    return changed | {
        **{"data.source": str(text), "model.width": 32, "model.heads": 4},
        **{"training.steps": 6, "training.evaluate_every": None, "training.milestones": (1.0,)},
        **{"optimizer.warmup_steps": 0, "model.dropout": 0.1},
        **{"inspection.sentence": "The union is strong."},
    }


@pytest.fixture(scope="module")
def compared(overrides, tmp_path_factory):
    """Two arms with guidance that differ in their learning rates, so that they have one program."""
    workdir = epath.Path(tmp_path_factory.mktemp("compared"))
    (workdir / "arms.py").write_text(ARMS)
    with on_one_device(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "_figures", lambda *given: {})  # drawn in test_comparison.py
        return comparison.compare(config_files.load(str(workdir / "arms.py"), overrides), workdir)


def test_the_report_is_about_the_detection(compared):
    text, content = compared.read_text(), json.loads((compared.parent / "report.json").read_text())
    assert "| Replaced-token loss (nats per token) | slow | fast |" in text
    assert "0.02 below it" in text and "MLM" not in text.replace("mlm", "")
    summary, logged = run_directory.read_summary(compared.parent / "slow-seed0"), rows(compared.parent / "slow-seed0")
    assert summary["headline"] == content["headline"] == "rtd_loss"
    validation_loss = content["arms"]["slow"]["values"]["validation_loss"]
    assert [summary["validation_loss"]] == [logged[-1]["rtd_loss"]] == validation_loss
    assert validation_loss != content["arms"]["fast"]["values"]["validation_loss"]
    assert summary["average_train_loss"] == pytest.approx(np.mean([row["rtd_loss"] for row in logged[:-1]]), rel=1e-2)
    assert logged[0]["coefficient/rtd"] == 50 and logged[0]["coefficient/mlm"] == 1
    assert {"replaced_share", "replaced_found", "mlm_loss", "ag_loss", "mass/next"} <= set(logged[0])
    assert 0.05 < logged[0]["replaced_share"] < 0.2


def test_maps_are_the_encoders(compared):
    opened = open_run(compared.parent / "slow-seed0")
    drawn = maps.attention_maps(opened.model, opened.params, opened.tokenizer, "The union is strong.", 16)
    assert drawn.weights_NHQK.shape[:2] == (1, 4)
    np.testing.assert_allclose(drawn.weights_NHQK.sum(-1), 1.0, rtol=1e-5)
    assert set(opened.params) == {"encoder", "discriminator_head", "generator"}


def test_an_evaluation_repeats_the_validation(compared, one_device):
    """Replaced words are drawn again, but from the same keys."""
    workdir = compared.parent / "fast-seed0"
    assert run.evaluate(workdir)["rtd_loss"] == pytest.approx(
        run_directory.read_summary(workdir)["validation_loss"], rel=1e-6
    )


def test_guessing_from_a_token_alone():
    class Rows:
        tokens = np.array([1, 1, 1, 2])

    assert plateau.unigram_loss(Rows) == pytest.approx(-(0.75 * np.log(0.75) + 0.25 * np.log(0.25)))
    assert plateau.binary_entropy(0.15) == pytest.approx(0.4227, abs=1e-4)
    assert plateau.binary_entropy(np.array([0.0, 1.0, 0.5])).tolist() == [0.0, 0.0, np.log(2)]
    # Two equally frequent words, 0.4 of which are replaced: half of those by themselves, so a fifth is another word.
    fifth = -0.2 * np.log(0.2) - 0.8 * np.log(0.8)
    assert plateau.replaced_tokens_loss(np.array([0.5, 0.5]), 0.4, 0.75) == pytest.approx(0.75 * fifth)


def test_the_plateau_is_what_replacing_costs_whoever_knows_the_frequencies(overrides):
    """The best constant guess for each word, over many batches, has just that loss."""
    small = f"{CONFIG}:scale=small,arm=electra"
    longer = {"data.sequence_length": 24, "model.max_length": 24}
    config = config_files.load(small, overrides | longer).settings
    corpus = pipeline.prepare(config.data)
    batches = pipeline.Batches(corpus.train, corpus.tokenizer, config.data, 32, seed=0)
    drawn = [batches.at(step) for step in range(800)]
    tokens, original, segment_ids = (
        np.concatenate([batch[name] for batch in drawn]) for name in ("tokens", "original", "segment_ids")
    )
    seen, changed = tokens[segment_ids > 0], (tokens != original)[segment_ids > 0]
    number = np.bincount(seen, minlength=300)
    share = np.bincount(seen, weights=changed, minlength=300) / np.maximum(number, 1)
    empirical = (number * plateau.binary_entropy(share)).sum() / number.sum()
    assert workloads.workload_of(config).plateau_loss(config, corpus) == pytest.approx(empirical, rel=0.02)
    words = Unigram.of(corpus.train, corpus.tokenizer)
    assert np.isclose(words.frequencies_V.sum(), 1.0)
