"""Runs whose batch size and mask rate change over the steps."""

import json

import jax
import numpy as np
import pytest
from etils import epath

from ag_jax.data import pipeline
from ag_jax.pretraining import config as pretraining_config
from ag_jax.pretraining import corpus as pretraining_corpus
from ag_jax.pretraining import run
from ag_jax.training.metrics import CLOCK_FIELDS, read_metrics
from tests.pretraining.test_extended_runs import params, settings, text  # noqa: F401

CHANGED = {
    "training.batch_size": 8,
    "training.microbatches": 2,
    "training.earlier_batch_sizes": (2, 4),
    "training.earlier_batch_sizes_until": (2, 5),
    "training.log_every": 1,
    "data.masking.rate": 0.15,
    "data.masking.earlier_rates": (0.4,),
    "data.masking.earlier_rates_until": (3,),
    "data.masking.evaluation_rate": 0.3,
    "optimizer.kind": "muon",
}
SIZES, STEPS = [2, 2, 4, 4, 4, 8, 8], 7


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory):  # noqa: F811
    patch, device = pytest.MonkeyPatch(), jax.devices()[0]
    patch.setattr(jax, "devices", lambda: [device])
    workdir = epath.Path(tmp_path_factory.mktemp("whole") / "run")
    run.train(settings(text, STEPS, **CHANGED), workdir)
    patch.undo()
    return workdir


def rows(workdir):
    return [{key: value for key, value in row.items() if key not in CLOCK_FIELDS} for row in read_metrics(workdir)]


def test_every_step_sees_the_rows_that_follow_those_before(whole, text, one_device):  # noqa: F811
    config = run.read_config(whole)
    corpus = pretraining_corpus.prepare(config, whole)
    alone = pipeline.batches(corpus, config.data, 1, config.seed)
    seen, number, expected = 0, 0, []
    for size in SIZES:
        seen += sum(int((alone.at(number + row)["segment_ids"] > 0).sum()) for row in range(size))
        number += size
        expected.append(seen)
    assert [row["tokens_seen"] for row in rows(whole) if row["split"] == "train"] == expected


def test_a_resumed_run_ends_as_an_uninterrupted_one(whole, text, tmp_path, one_device):  # noqa: F811
    """Also if the batch size was another one before it stopped, and with Muon's state in the checkpoint."""
    config, workdir = settings(text, STEPS, **CHANGED), epath.Path(tmp_path / "run")
    for step in (1, 4, None):
        run.train(config, workdir, pause_at=step)
    assert rows(workdir) == rows(whole)
    for one, other in zip(jax.tree.leaves(params(workdir, STEPS)), jax.tree.leaves(params(whole, STEPS)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_evaluations_have_the_rate_for_evaluations(whole, text, tmp_path, one_device):  # noqa: F811
    """The same losses as of a run that masks this share in all its steps, of the same parameters."""
    last = [row for row in rows(whole) if row["split"] == "validation"][-1]
    assert run.evaluate(whole)["mlm_loss"] == pytest.approx(last["mlm_loss"], rel=1e-6)
    stored = json.loads((whole / "config.json").read_text())
    stored["data"]["masking"] = {**stored["data"]["masking"], "rate": 0.3, "evaluation_rate": None}
    for name in ("earlier_rates", "earlier_rates_until"):
        stored["data"]["masking"][name] = []
    corpus = pretraining_corpus.prepare(run.read_config(whole), whole)
    job = run.make_job(pretraining_config.parse(stored), epath.Path(tmp_path), corpus)
    (evaluator,) = job.evaluators
    found = evaluator(params(whole, STEPS), STEPS, lambda: None)
    assert found["mlm_loss"] == pytest.approx(last["mlm_loss"], rel=1e-6)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"training.earlier_batch_sizes": (2, 6)}, "earlier_batch_sizes has 6, which is neither a multiple of the 4"),
        ({"training.earlier_batch_sizes_until": (2, 7)}, "earlier_batch_sizes_until=2,7 must be ascending steps below"),
        ({"training.earlier_batch_sizes_until": (3, 2)}, "earlier_batch_sizes_until=3,2 must be ascending steps below"),
        ({"mesh.data": 4}, "earlier_batch_sizes has 2, which must be a multiple of mesh.data \\* mesh.fsdp = 4"),
        ({"data.masking.earlier_rates_until": ()}, "earlier_rates_until= must be ascending steps, one for each of"),
    ],
)
def test_impossible_schedules(text, changed, message):  # noqa: F811
    with pytest.raises(ValueError, match=message):
        settings(text, STEPS, **{**CHANGED, **changed})
