"""Runs whose batch size and mask rate change over the steps."""

import json

import jax
import numpy as np
import pytest
from etils import epath

from ag_jax.data import pipeline
from ag_jax.pretraining import config as pretraining_config
from ag_jax.pretraining import corpus as pretraining_corpus
from ag_jax.pretraining import run, run_directory
from tests.pretraining.tiny_runs import SHORT, on_one_device, params, rows, settings

pytestmark = pytest.mark.usefixtures("one_device")
CHANGED = {
    "training.microbatches": 2,
    "training.earlier_batch_sizes": (2,),
    "training.earlier_batch_sizes_until": (4,),
    "training.log_every": 1,
    "training.evaluate_every": None,
    "data.masking.rate": 0.15,
    "data.masking.earlier_rates": (0.4,),
    "data.masking.earlier_rates_until": (3,),
    "data.masking.evaluation_rate": 0.3,
    "training.milestones": (1.0,),
}
SIZES = [2, 2, 2, 2, 4, 4]


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory):
    workdir = epath.Path(tmp_path_factory.mktemp("whole") / "run")
    with on_one_device():
        run.train(settings(text, **CHANGED), workdir)
    return workdir


def test_every_step_sees_the_rows_that_follow_those_before(whole):
    config = run_directory.read_config(whole)
    alone = pipeline.batches(pretraining_corpus.prepare(config, whole), config.data, 1, config.seed)
    of_row = [int((alone.at(number)["segment_ids"] > 0).sum()) for number in range(sum(SIZES))]
    expected = [sum(of_row[:number]) for number in np.cumsum(SIZES)]
    assert [row["tokens_seen"] for row in rows(whole, "train")] == expected


def test_a_resumed_run_ends_as_an_uninterrupted_one(whole, text, tmp_path):
    """Holds although the batch size was another one before it stopped."""
    config, workdir = settings(text, **CHANGED), epath.Path(tmp_path / "run")
    for step in (1, 5, None):
        run.train(config, workdir, until=step)
    assert rows(workdir) == rows(whole)
    jax.tree.map(np.testing.assert_array_equal, params(workdir, SHORT), params(whole, SHORT))


def test_evaluations_have_the_rate_for_evaluations(whole, tmp_path):
    """The same losses as of a run that masks this share in all its steps, of the same parameters."""
    (last,) = rows(whole, "validation")
    assert run.evaluate(whole)["mlm_loss"] == pytest.approx(last["mlm_loss"], rel=1e-6)
    stored = json.loads((whole / "config.json").read_text())
    other = {"rate": 0.3, "evaluation_rate": None, "earlier_rates": [], "earlier_rates_until": []}
    stored["data"]["masking"] |= other
    corpus = pretraining_corpus.prepare(run_directory.read_config(whole), whole)
    pretraining = run.PretrainingRun(pretraining_config.parse(stored), epath.Path(tmp_path), corpus)
    found = pretraining.evaluate(params(whole, SHORT), SHORT, lambda: None)
    assert found["mlm_loss"] == pytest.approx(last["mlm_loss"], rel=1e-6)
