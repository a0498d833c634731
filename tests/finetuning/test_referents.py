"""WNLI by ranking phrases: the command, the head for masked words that it starts from, and what lacks one."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest
from etils import epath

from ag_jax import config_reader
from ag_jax.data.tasks.rows import RowSettings
from ag_jax.data.tasks.task import Examples, Referent
from ag_jax.finetuning import comparison, kinds, suite
from ag_jax.finetuning.config import FinetuningConfig, Recipe
from ag_jax.finetuning.job import make_head
from ag_jax.interop import exporting, finetuned, names, opening
from ag_jax.interop.finetuned import FineTuned
from ag_jax.pretraining import run
from tests.finetuning import tasks, tiny_tasks

CONFIG = pathlib.Path(__file__).parent.parent.parent / "configs" / "roberta" / "table5_glue.py"
PAIRS = [
    ("The film saw a number because it was {}.", "The film was {}.", 1),
    ("The film saw a number because it was {}.", "A number was {}.", 0),
    ("Ann liked the film, and Bo liked her {}.", "Bo liked Ann {}.", 1),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_tasks.checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    tiny_tasks.write(folder)
    of_split = {"train": ("good", "bad", "warm", "cold"), "dev": ("funny", "boring"), "test": ("tired",)}
    for split, words in of_split.items():
        found = [(text.format(word), other.format(word), label) for word in words for text, other, label in PAIRS]
        header, width = ["index", "sentence1", "sentence2", "label"], 4 - (split == "test")
        lines = [header, *([number, *row] for number, row in enumerate(found))]
        (folder / "WNLI").mkdir(exist_ok=True)
        (folder / "WNLI" / f"{split}.tsv").write_text(
            "".join("\t".join(map(str, line[:width])) + "\n" for line in lines)
        )
    return folder


def test_the_command(model, data, tmp_path, one_device):
    source = f"{CONFIG}:checkpoint={model},tasks=wnli,seeds=2,scale=small,data={data}"
    few = tiny_tasks.FEW | {"max_length": 32, "epochs": 2}
    overrides = {f"tasks.wnli.{key}": value for key, value in few.items()} | {"keep": "best"}
    report = comparison.finetune(source, overrides, epath.Path(tmp_path / "w"))
    numbers = json.loads((tmp_path / "w" / "report.json").read_text())["tasks"]["wnli"]
    shown = numbers["arms"]["score"]["splits"]["validation"]["accuracy"]
    averages = []
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
    assert "wnli: 4 of the train examples have a wrong phrase, or no other one, and cannot" in report.read_text()

    kept = next(path for path in (tmp_path / "w" / "wnli").iterdir() if (path / "weights").exists())
    with pytest.raises(ValueError, match="transformers has no class that ranks phrases for a pronoun"):
        exporting.convert(epath.Path(kept), None, str(tmp_path / "hf"))
    # A trial is no start for another one, as it is opened without a head for masked words.
    with pytest.raises(ValueError, match=r"tasks.wnli.ranking needs a checkpoint .*but .*seed.* has none that a task"):
        comparison.finetune(source.replace(str(model), str(kept)), overrides, epath.Path(tmp_path / "x"))
    values = config_reader.default(FinetuningConfig)
    values.update(checkpoint=str(model), data=str(data))
    for task in ("sst2", "wnli"):
        values.tasks[task] = config_reader.default(Recipe)
        values.tasks[task].update(max_length=24)
    values.tasks.wnli.update(ranking=True, initial_task="sst2")
    with pytest.raises(ValueError, match=r"tasks.wnli.initial_task must be none with ranking=True, got 'sst2'"):
        suite.prepare(config_reader.parse(FinetuningConfig, values), epath.Path(tmp_path / "y"))


def test_scores_are_those_of_the_model_of_pre_training(model):
    """The mean log-probability of the words at the masks, of the run itself."""
    opened, trained = opening.open_encoder(str(model)), run.open_run(epath.Path(model))
    task = dataclasses.replace(tasks.task("referent"), labels=("false", "true"))
    examples = Examples((Referent("0", "one of ", " is good", ("the worst film", "work", "a number"), 1),), "here")
    features = kinds.encode(task, examples, opened.tokenizer, 24, opened.config.token_types)
    head = make_head(task, "roberta", 24).model(opened.config)
    (row,) = features.rows
    batch = {name: np.asarray(field)[None] for name, field in row.items()}
    found = np.asarray(head.apply({"params": opened.params}, batch, deterministic=True))[0]
    shape = RowSettings(opened.tokenizer.specials, 24, opened.config.token_types)
    for number, (score, phrase) in enumerate(zip(found, examples[0].phrases, strict=True)):
        whole = shape.row(opened.tokenizer.encode(f"one of {phrase} is good"))
        places = np.flatnonzero(row["word_weights"][number])
        masked = {name: field[None].copy() for name, field in whole.items()}
        masked["tokens"][0, places] = opened.tokenizer.specials.mask
        said = trained.model.apply(
            {"params": trained.params}, masked | {"masked_positions": places[None]}, deterministic=True
        )
        words = np.asarray(said.words_BMV[0], np.float64)
        logs = words - np.log(np.exp(words).sum(-1, keepdims=True))
        assert score == pytest.approx(logs[np.arange(len(places)), whole["tokens"][places]].mean(), rel=1e-4)


def test_which_models_have_a_head_for_masked_words(model, tmp_path):
    opened = opening.open_encoder(str(model))
    assert opened.has_words and set(opened.params["task_head"]) == {"words"}
    assert opening.open_encoder(str(model), fresh=True).has_words, "a fresh one"
    exporting.convert(epath.Path(model), None, str(tmp_path / "hf"))
    imported = opening.open_encoder(str(tmp_path / "hf")).params["task_head"]["words"]
    np.testing.assert_array_equal(imported["dense"]["kernel"], opened.params["task_head"]["words"]["dense"]["kernel"])
    head = make_head(tasks.task("classification"), "roberta", 24)
    start = tasks.pretrained()
    params = {path: np.zeros(shape, np.float32) for path, shape in finetuned.shapes(head, start.config).items()}
    finetuned.save(
        FineTuned(head, start.config, start.tokenizer, names.nested(params)), epath.Path(tmp_path / "trial" / "weights")
    )
    assert not opening.open_encoder(str(tmp_path / "trial")).has_words
