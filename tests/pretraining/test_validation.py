"""What a validation during training reads, and what `evaluate` reads."""

import jax
import numpy as np
import pytest
from etils import epath

from ag_jax.data.text import batching
from ag_jax.pretraining import corpus as pretraining_corpus
from ag_jax.pretraining import run
from ag_jax.training.job import metrics_evaluator
from tests.pretraining.test_extended_runs import settings


def test_a_validation_without_a_masked_token_is_rejected_before_training(tmp_path, monkeypatch):
    device = jax.devices()[0]
    monkeypatch.setattr(jax, "devices", lambda: [device])
    (tmp_path / "text.txt").write_text("\n".join(f"Number {number} builds a road." for number in range(60)))
    more = {"data.cache_dir": str(tmp_path / "cache"), "data.masking.evaluation_rate": 1e-9, "data.validation_rows": 3}
    workdir = epath.Path(tmp_path / "run")
    message = "at least one masked token in the text for validation, .* got none in [123] rows: give more text"
    with pytest.raises(ValueError, match=message):
        run.train(settings(tmp_path / "text.txt", 2, **more), workdir)
    assert not run.is_begun(workdir)


def test_training_validates_on_some_rows_and_evaluate_on_all(tmp_path, monkeypatch):
    device = jax.devices()[0]
    monkeypatch.setattr(jax, "devices", lambda: [device])
    lines = "\n".join(f"The union is strong, and number {number} builds a road." for number in range(60))
    (tmp_path / "text.txt").write_text(lines)
    more = {"data.cache_dir": str(tmp_path / "cache"), "data.validation_fraction": 0.2, "data.validation_rows": 3}
    config, workdir = settings(tmp_path / "text.txt", 2, **more), epath.Path(tmp_path / "run")
    summary = run.train(config, workdir)
    corpus = pretraining_corpus.prepare(config, workdir)
    opened, count = run.open_run(workdir), len(corpus.validation)
    assert count > 8
    job = run.make_job(config, workdir, corpus)
    assert job.evaluation_batches == 1

    def loss(numbers):
        """The loss over the rows with these numbers, in one batch; it has four rows, of which -1 is empty."""
        filled = np.array([*numbers, *[-1] * (-len(numbers) % 4)])
        batches = [
            batching.make_batch(
                config.data, corpus.validation, corpus.tokenizer, example_B=part, epoch_B=np.zeros_like(part), seed=0
            )
            for part in filled.reshape(-1, 4)
        ]
        evaluator = metrics_evaluator(job.program, job.hyperparameters, lambda: batches)
        return evaluator(opened.params, 2, lambda: None)["mlm_loss"]

    assert summary["validation_loss"] == pytest.approx(loss([0, count // 3, 2 * count // 3]), rel=1e-6)
    found = run.evaluate(workdir)
    assert found["mlm_loss"] == pytest.approx(loss(range(count)), rel=1e-6)
    assert found["mlm_loss"] != pytest.approx(summary["validation_loss"], rel=1e-4)
    assert found["evaluated_on"]["rows"] == count
