"""WNLI by ranking phrases: the command, the head for masked words that it starts from, and what lacks one."""

import dataclasses
import json
import pathlib
import shutil

import numpy as np
import pytest
from etils import epath

from ag_jax.data.tasks.rows import RowSettings
from ag_jax.data.tasks.task import Examples, Referent
from ag_jax.finetuning import comparison, kinds
from ag_jax.finetuning.task_training import make_head
from ag_jax.interop import exporting, opening
from ag_jax.interop.finetuned import Head
from ag_jax.pretraining.open_run import open_run
from ag_jax.settings import config_files
from tests import tiny
from tests.finetuning import tasks, tiny_tasks
from tests.interop.copies import tune

CONFIG = pathlib.Path(__file__).parent.parent.parent / "configs" / "roberta" / "table5_glue.py"
PAIRS = [
    ("The film saw a number because it was {}.", "The film was {}.", 1),
    ("The film saw a number because it was {}.", "A number was {}.", 0),
    ("Ann liked the film, and Bo liked her {}.", "Bo liked Ann {}.", 1),
]


FEW = {f"tasks.wnli.{key}": value for key, value in (tiny_tasks.FEW | {"max_length": 32, "epochs": 2}).items()}


@pytest.fixture(scope="module")
def wnli(data, tmp_path_factory):
    folder = pathlib.Path(shutil.copytree(data, tmp_path_factory.mktemp("wnli") / "data"))
    (folder / "WNLI").mkdir()
    for split, words in {
        "train": ("good", "bad", "warm", "cold"),
        "dev": ("funny", "boring"),
        "test": ("tired",),
    }.items():
        found = [(text.format(word), other.format(word), label) for word in words for text, other, label in PAIRS]
        lines = [["index", "sentence1", "sentence2", "label"], *([number, *row] for number, row in enumerate(found))]
        width = 4 - (split == "test")
        text = "".join("\t".join(map(str, line[:width])) + "\n" for line in lines)
        (folder / "WNLI" / f"{split}.tsv").write_text(text)
    return folder


@pytest.mark.exhaustive
def test_the_command(checkpoint, wnli, tmp_path, one_device):
    source = f"{CONFIG}:checkpoint={checkpoint},tasks=wnli,seeds=2,scale=small,data={wnli}"
    report = comparison.finetune(config_files.load(source, FEW), epath.Path(tmp_path / "w"))
    numbers = json.loads((tmp_path / "w" / "report.json").read_text())["tasks"]["wnli"]
    shown, averages = numbers["arms"]["score"]["splits"]["validation"]["accuracy"], []
    for seed in (0, 1):
        (directory,) = (tmp_path / "w" / "wnli").glob(f"*seed{seed}")
        for split, count in (("validation", 6), ("test", 3)):
            rows = [json.loads(line) for line in (directory / f"predictions_{split}.jsonl").read_text().splitlines()]
            assert len(rows) == count and all(len(row["scores"]) > 1 and max(row["scores"]) < 0 for row in rows)
            assert [row["prediction"] for row in rows] == [int(row["scores"][0] == max(row["scores"])) for row in rows]
            if split == "validation":
                assert [row["label"] for row in rows] == [1, 0, 1] * 2
                right = np.mean([row["prediction"] == row["label"] for row in rows])
                assert shown["values"][seed] == pytest.approx(right)
            else:
                shares = [np.exp(row["scores"]) / np.exp(row["scores"]).sum() for row in rows]
                averages.append(np.stack([np.pad(of_row, (0, 9 - len(of_row))) for of_row in shares]))
    together = (np.mean(averages, axis=0).argmax(1) == 0).astype(int)
    table = (tmp_path / "w" / "submission" / "WNLI.tsv").read_text().splitlines()
    assert table == ["index\tprediction", *(f"{number}\t{value}" for number, value in enumerate(together))]
    assert "- 4 of the train examples" in report.read_text()


def test_a_model_that_ranks_phrases_is_neither_exported_nor_a_start(checkpoint, wnli, tmp_path, one_device):
    """A trial is no start for another one, as it is opened without a head for masked words."""
    kept, start = tmp_path / "kept", opening.open_encoder(str(checkpoint))
    tune(start, Head("wnli", "referent", ("not_entailment", "entailment"), start.style), kept / "weights")
    with pytest.raises(ValueError, match="ranks phrases"):
        exporting.convert(epath.Path(kept), None, str(tmp_path / "hf"))
    assert start.has_words and not opening.open_encoder(str(kept)).has_words
    source = f"{CONFIG}:checkpoint=%s,tasks=%s,seeds=2,scale=small,data={wnli}"
    with pytest.raises(ValueError, match=f"tasks.wnli.ranking .*{kept}"):
        comparison.finetune(config_files.load(source % (kept, "wnli"), FEW), epath.Path(tmp_path / "x"))
    chained = {"tasks.wnli.initial_task": "sst2", "tasks.sst2.max_length": 32, "keep": "best"}
    with pytest.raises(ValueError, match="tasks.wnli.initial_task"):
        comparison.finetune(
            config_files.load(source % (checkpoint, "wnli,sst2"), FEW | chained), epath.Path(tmp_path / "y")
        )


def test_scores_are_those_of_the_model_of_pre_training(checkpoint, tmp_path):
    """The mean log-probability of the words at the masks, of the run itself; an export keeps the head for words."""
    opened, trained = opening.open_encoder(str(checkpoint)), open_run(epath.Path(checkpoint))
    assert opened.has_words and opening.open_encoder(str(checkpoint), fresh=True).has_words
    exporting.convert(epath.Path(checkpoint), None, str(tmp_path / "hf"))
    imported = opening.open_encoder(str(tmp_path / "hf")).params["task_head"]["words"]
    np.testing.assert_array_equal(imported["dense"]["kernel"], opened.params["task_head"]["words"]["dense"]["kernel"])
    task = dataclasses.replace(tasks.task("referent"), labels=("false", "true"))
    examples = Examples((Referent("0", "one of ", " is good", ("the worst film", "work", "a number"), 1),), "here")
    features = kinds.encode(task, examples, opened.tokenizer, 24, opened.config.token_types)
    head = make_head(task, "roberta", 24).model(opened.config)
    (row,) = features.rows
    batch = {name: np.asarray(field)[None] for name, field in row.items()}
    found = np.asarray(tiny.apply(head, opened.params, batch))[0]
    assert kinds.predict(task, examples, features, [found]) == [int(found[0] == found.max())]
    shape = RowSettings(opened.tokenizer.specials, 24, opened.config.token_types)
    for number, (score, phrase) in enumerate(zip(found, examples[0].phrases, strict=True)):
        whole = shape.row(opened.tokenizer.encode(f"one of {phrase} is good"))
        places = np.flatnonzero(row["word_weights"][number])
        masked = {name: np.pad(field, (0, 24 - len(field)))[None] for name, field in whole.items()}
        masked["tokens"][0, places] = opened.tokenizer.specials.mask
        masked["masked_positions"] = np.pad(places, (0, 8 - len(places)))[None].astype(np.int32)
        words = np.asarray(tiny.apply(trained.model, trained.params, masked).words_BMV[0], np.float64)
        logs = words - np.log(np.exp(words).sum(-1, keepdims=True))
        assert score == pytest.approx(logs[np.arange(len(places)), whole["tokens"][places]].mean(), rel=1e-4)
