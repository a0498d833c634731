"""Damaged files of runs, trials and suites: each reader ends in one error that names the file."""

import itertools
import json

import pytest
from etils import epath

from ag_jax.data.tasks.task import Examples, Texts
from ag_jax.finetuning import results, suite_directory, trial
from ag_jax.finetuning.config import FinetuningConfig, Recipe
from ag_jax.grid import store
from ag_jax.grid.cells import Result
from ag_jax.interop import finetuned
from ag_jax.pretraining import corpus, origin, run_directory
from ag_jax.pretraining.config import ExperimentConfig, default_config
from ag_jax.recipes import pretraining

DAMAGED = {
    "null": b"null",
    "a list": b"[]",
    "cut off": b'{"task": "sst2", "tas',
    "nested": b'{"x": ' + b"[" * 3000 + b"]" * 3000 + b"}",
    "not UTF-8": b'{"\xff": 1}',
    "wrong types": b'{"data": 1, "model": 1, "training": 1, "tasks": 1, "head": 1, "train_loss": "x", "task": 1, '
    b'"seeds": 1, "keep": 1, "new": "word_head"}',
    "wrong settings": b'{"data": {"cached": 1}, "model": {}, "training": {}, "tasks": {"sst2": 1}, "head": '
    b'{"kind": 3}, "origin": {}, "seeds": 1, "keep": 1}',
}
SUITE = FinetuningConfig(checkpoint="x", tasks={"sst2": Recipe()})
EXAMPLES = Examples((Texts("7", "a text", None, None),), "a file")
READERS = [
    ("config.json", run_directory.read_config),
    ("config.json", lambda folder: run_directory.claim(ExperimentConfig(), folder)),
    ("config.json", lambda folder: pretraining.continue_from(default_config(), str(folder))),
    ("config.json", lambda folder: suite_directory.check(SUITE, folder)),
    ("corpus.json", corpus.read_summary),
    ("result.json", run_directory.read_summary),
    ("result.json", trial.read),
    ("task.json", finetuned.load),
    ("origin.json", lambda folder: origin.read(folder, 6)),
]


@pytest.mark.parametrize(("damage", "reader"), [*itertools.product(DAMAGED, range(len(READERS)))])
def test_a_damaged_file_is_named(tmp_path, reader, damage):
    name, read = READERS[reader]
    (tmp_path / name).write_bytes(DAMAGED[damage])
    with pytest.raises(ValueError, match=str(tmp_path / name)):
        read(epath.Path(tmp_path))
    assert (tmp_path / name).read_bytes() == DAMAGED[damage]


def test_predictions_of_other_examples_are_not_taken_for_these(tmp_path):
    row = {"id": "7", "prediction": "one\u2028two\x85three", "scores": [0, 1]}

    def read(*rows):
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        artifacts = {"test": store.write_text(epath.Path(tmp_path), "predictions_test.jsonl", text)}
        return results.read_predictions(epath.Path(tmp_path), Result({}, artifacts), "test", EXAMPLES)

    assert read(row) == [row]  # line separators of Unicode are no line feeds
    for wrong in ([row | {"id": "8"}], [row, row], []):
        with pytest.raises(ValueError, match="predictions_test.jsonl .*1 examples"):
            read(*wrong)
