"""Damaged files of runs, trials and suites: each reader ends in one error that names the file."""

import json

import pytest
from etils import epath

from ag_jax.data.tasks.task import Examples, Texts
from ag_jax.finetuning import results, suite, trial
from ag_jax.finetuning.config import FinetuningConfig, Recipe
from ag_jax.interop import finetuned
from ag_jax.pretraining import corpus, run
from ag_jax.pretraining.config import ExperimentConfig, default_config
from ag_jax.recipes import pretraining

DAMAGED = {
    "empty": b"",
    "null": b"null",
    "a list": b"[]",
    "an empty object": b"{}",
    "cut off": b'{"task": "sst2", "tas',
    "nested": b'{"x": ' + b"[" * 3000 + b"]" * 3000 + b"}",
    "not UTF-8": b'{"\xff": 1}',
    "wrong types": b'{"data": 1, "model": 1, "training": 1, "tasks": 1, "head": 1, "train_loss": "x", "task": 1, '
    b'"seeds": 1, "keep": 1}',
    "wrong settings": b'{"data": {"cached": 1}, "model": {}, "training": {}, "tasks": {"sst2": 1}, "head": '
    b'{"kind": 3}, "origin": {}, "seeds": 1, "keep": 1}',
}
SUITE = FinetuningConfig(checkpoint="x", tasks={"sst2": Recipe()})
EXAMPLES = Examples((Texts("7", "a text", None, None),), "a file")
READERS = {
    "config.json of a run": ("config.json", run.read_config),
    "config.json of a run that is resumed": (
        "config.json",
        lambda folder: run.claim_workdir(ExperimentConfig(), folder),
    ),
    "config.json of a run to continue from": (
        "config.json",
        lambda folder: pretraining.continue_from(default_config(), str(folder)),
    ),
    "config.json of a suite": ("config.json", lambda folder: suite.check_directory(SUITE, folder)),
    "corpus.json": ("corpus.json", corpus.read_summary),
    "summary.json": ("summary.json", run.read_summary),
    "result.json": ("result.json", trial.read_result),
    "task.json": ("task.json", finetuned.load),
    "predictions": ("predictions_test.jsonl", lambda folder: results.read_predictions(folder, "test", EXAMPLES)),
}


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize("reader", READERS)
def test_a_damaged_file_is_named(tmp_path, reader, damage):
    name, read = READERS[reader]
    (tmp_path / name).write_bytes(DAMAGED[damage])
    with pytest.raises(ValueError) as caught:
        read(epath.Path(tmp_path))
    assert str(tmp_path / name) in str(caught.value)
    assert (tmp_path / name).read_bytes() == DAMAGED[damage]


def test_predictions_of_other_examples_are_not_taken_for_these(tmp_path):
    path = tmp_path / "predictions_test.jsonl"
    path.write_text('{"id": "7", "prediction": 1, "scores": [0, 1]}\n')
    assert results.read_predictions(epath.Path(tmp_path), "test", EXAMPLES)[0]["prediction"] == 1
    path.write_text('{"id": "8", "prediction": 1, "scores": [0, 1]}\n')
    with pytest.raises(ValueError, match="does not hold a prediction for each of the 1 examples of a file"):
        results.read_predictions(epath.Path(tmp_path), "test", EXAMPLES)


def test_a_predicted_answer_may_contain_line_separators_of_unicode(tmp_path):
    row = {"id": "7", "prediction": "one\u2028two\x85three", "scores": []}
    (tmp_path / "predictions_test.jsonl").write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")
    assert results.read_predictions(epath.Path(tmp_path), "test", EXAMPLES) == [row]


def test_predictions_of_several_types_are_no_predictions(tmp_path):
    row = '{{"id": "7", "prediction": {}, "scores": [0, 1]}}\n'
    (tmp_path / "predictions_test.jsonl").write_text(row.format(1) + row.format("[]"))
    with pytest.raises(ValueError, match="predictions_test.jsonl holds predictions of several types \\(int, list\\)"):
        results.read_predictions(epath.Path(tmp_path), "test", EXAMPLES)
