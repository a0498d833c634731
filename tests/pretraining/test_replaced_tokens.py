"""Replaced-token detection from its config to the report: runs, resumption, evaluation, maps,
and the words about its loss.
"""

import json
import os
import pathlib
import signal

import jax
import numpy as np
import pytest
from etils import epath

from ag_jax import config_reader
from ag_jax.analysis import maps
from ag_jax.data.text import pipeline
from ag_jax.data.text.unigram import Unigram
from ag_jax.pretraining import comparison, plateau, run, workloads
from ag_jax.pretraining import config as pretraining_config
from ag_jax.training.checkpoint import Checkpoints
from ag_jax.training.loop import Interrupted
from ag_jax.training.metrics import CLOCK_FIELDS, read_metrics

CONFIG = str(pathlib.Path(__file__).parents[2] / "configs" / "ag" / "table6_electra.py")
TEXT = "The state of the union is strong. We will build roads, and we will build them well. Thank you. "
STEPS = 6


@pytest.fixture(scope="module")
def overrides(tmp_path_factory):
    text = tmp_path_factory.mktemp("text")
    for number in range(12):
        (text / f"{number}.txt").write_text(TEXT * 4 + f"It is number {number}.")
    return {
        "data.source": str(text),
        "data.sequence_length": 16,
        "data.tokenizer.vocabulary_size": 300,
        "model.layers": 2,
        "model.width": 32,
        "model.heads": 4,
        "model.dropout": 0.1,
        "training.steps": STEPS,
        "optimizer.warmup_steps": 0,
        "training.batch_size": 4,
        "training.log_every": 2,
        "training.evaluate_every": None,
        "training.checkpoint_every": 2,
        "training.milestones": (0.0, 1.0),
        "training.tensorboard": False,
        "inspection.sentence": "The union is strong.",
    }


@pytest.fixture(scope="module")
def compared(overrides, tmp_path_factory):
    patch, device = pytest.MonkeyPatch(), jax.devices()[0]
    patch.setattr("jax.devices", lambda: [device])
    patch.setattr(comparison, "_figures", lambda *given: [])  # drawn in test_comparison.py
    workdir = epath.Path(tmp_path_factory.mktemp("compared"))
    path = comparison.compare(f"{CONFIG}:generator=mlm,scale=small", overrides, workdir)
    patch.undo()
    return path


def test_the_report_is_about_the_detection(compared):
    text, content = compared.read_text(), json.loads((compared.parent / "report.json").read_text())
    assert "## Replaced-token loss" in text and "| Loss (nats per token) | electra | ag |" in text
    assert "train loss is 0.02 below that" in text and "MLM" not in text.replace("mlm", "")
    summary = json.loads((compared.parent / "ag-seed0" / "summary.json").read_text())
    rows = read_metrics(compared.parent / "ag-seed0")
    assert summary["headline"] == content["headline"] == "rtd_loss"
    assert summary["validation_loss"] == rows[-1]["rtd_loss"] == content["arms"]["ag"]["values"]["validation_loss"][0]
    assert summary["average_train_loss"] == pytest.approx(np.mean([row["rtd_loss"] for row in rows[:-1]]), rel=1e-2)
    assert rows[0]["coefficient/rtd"] == 50 and rows[0]["coefficient/mlm"] == 1
    assert {"replaced_share", "replaced_found", "mlm_loss", "ag_loss", "mass/next"} <= set(rows[0])
    assert 0.05 < rows[0]["replaced_share"] < 0.2


def test_maps_are_the_encoders(compared):
    opened = run.open_run(compared.parent / "ag-seed0")
    drawn = maps.attention_maps(opened.model, opened.params, opened.tokenizer, "The union is strong.", 16)
    assert drawn.weights_NHQK.shape[:2] == (2, 4)
    np.testing.assert_allclose(drawn.weights_NHQK.sum(-1), 1.0, rtol=1e-5)
    assert set(opened.params) == {"encoder", "discriminator_head", "generator"}


def test_an_evaluation_repeats_the_validation(compared, one_device):
    workdir = compared.parent / "electra-seed0"
    summary = json.loads((workdir / "summary.json").read_text())
    for _ in range(2):
        assert run.evaluate(workdir)["rtd_loss"] == pytest.approx(summary["validation_loss"], rel=1e-6)


@pytest.mark.exhaustive
def test_a_run_that_was_stopped_ends_as_if_nothing_had_happened(compared, overrides, tmp_path, monkeypatch, one_device):
    config = pretraining_config.parse(config_reader.load(f"{CONFIG}:generator=mlm,scale=small,arm=ag", overrides))
    iterate = pipeline.Batches.iterate

    def stopped(self, start, stop, **settings):
        for step, batch in enumerate(iterate(self, start, stop, **settings), start):
            if step == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            yield batch

    whole, workdir = compared.parent / "ag-seed0", epath.Path(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(pipeline.Batches, "iterate", stopped)
        with pytest.raises(Interrupted):
            run.train(config, workdir)
    run.train(config, workdir)

    def rows(directory):
        return [{k: v for k, v in row.items() if k not in CLOCK_FIELDS} for row in read_metrics(directory)]

    assert rows(workdir) == rows(whole)
    one, other = (Checkpoints(path / "checkpoints", read_only=True).restore_params(STEPS) for path in (workdir, whole))
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_arms_with_different_losses_are_not_compared(tmp_path):
    path = tmp_path / "c.py"
    path.write_text(
        "from ag_jax.pretraining import config\ndef get_config(argument=''):\n    c = config.default_config()\n"
        "    c.comparison.arms = 'a,b'\n"
        "    c.replaced_tokens.generator = 'mlm' if 'arm=b' in argument else 'none'\n    return c\n"
    )
    with pytest.raises(ValueError, match="different losses .MLM loss, replaced-token loss."):
        comparison.arm_configs(str(path), {})


def test_unigram_loss_by_hand():
    class Rows:
        tokens = np.array([1, 1, 1, 2])

    assert plateau.unigram_loss(Rows) == pytest.approx(-(0.75 * np.log(0.75) + 0.25 * np.log(0.25)))


def test_guessing_from_a_token_alone():
    assert plateau.binary_entropy(0.15) == pytest.approx(0.4227, abs=1e-4)
    assert plateau.binary_entropy(np.array([0.0, 1.0, 0.5])).tolist() == [0.0, 0.0, np.log(2)]
    # Two equally frequent words, 0.4 of which are replaced: half of those by themselves, so a fifth is another word.
    fifth = -0.2 * np.log(0.2) - 0.8 * np.log(0.8)
    assert plateau.replaced_tokens_loss(np.array([0.5, 0.5]), 0.4, 0.75) == pytest.approx(0.75 * fifth)


def test_the_plateau_is_what_replacing_costs_whoever_knows_the_frequencies(overrides):
    """The best constant guess for each word, over many batches, has just that loss."""
    small = f"{CONFIG}:scale=small,arm=electra"
    config = pretraining_config.parse(config_reader.load(small, overrides | {"data.sequence_length": 24}))
    corpus = pipeline.prepare(config.data)
    batches = pipeline.Batches(corpus.train, corpus.tokenizer, config.data, 8, seed=0)
    drawn = [batches.at(step) for step in range(3000)]
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
