"""Custom tasks from the config file to reports, Python functions and exported models; metrics from outside."""

import json
import pathlib
import sys
import types

import numpy as np
import pytest
from etils import epath

import ag_jax
from ag_jax import main
from ag_jax.data.tasks.custom import CustomTask
from ag_jax.data.tasks.task import Question, TaggedSentence, Texts
from ag_jax.finetuning import best, comparison, development, kinds, splits, suite_directory
from ag_jax.finetuning.config import Recipe
from ag_jax.interop import exporting
from ag_jax.settings import config_files
from tests.finetuning import tiny_tasks

CONFIG = pathlib.Path(__file__).parent.parent.parent / "configs" / "finetune" / "own.py"
FEW = {"epochs": 1, "max_length": 16, "batch_sizes": (8,), "dropout": 0.0, "attention_dropout": 0.0}
TEXTS = [tiny_tasks.sentence(number) for number in range(30)]
TABLE = "review,stars\n" + "".join(f"{text},{('two', 'five')[label]}\n" for text, label in TEXTS)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text(TABLE)
    return tmp_path / "data"


@pytest.fixture(autouse=True)
def metrics(monkeypatch):
    module = types.ModuleType("my_metrics")
    module.kappa = lambda labels, found: float(np.mean(np.equal(labels, found))) / 2
    module.wrong = lambda labels, found: "high"
    module.endless = lambda labels, found: np.inf
    module.same_tags = lambda labels, found: np.mean([one == other for one, other in zip(labels, found, strict=True)])
    module.overlap = lambda labels, found: sum(one in of for of, one in zip(labels, found, strict=True)) / len(found)
    monkeypatch.setitem(sys.modules, "my_metrics", module)


def tasks_of(argument):
    return config_files.load(f"{CONFIG}:checkpoint=C,{argument}").settings.tasks


def test_a_table_becomes_a_report_a_function_and_an_exported_model(folder, checkpoint, tmp_path, one_device, capsys):
    argument = "train=a.csv,text=review,label=stars,metric=my_metrics.kappa"
    few = {f"tasks.own.{name}": value for name, value in FEW.items()}
    source = f"{CONFIG}:checkpoint={checkpoint},{argument},data={folder},scale=small"

    def train():
        return comparison.finetune(config_files.load(source, few), epath.Path(tmp_path / "w"))

    flags = [f"--config.{name}={value}" for name, value in few.items()]
    assert main.main(["ag-jax", "finetune", f"--config={source}", *flags, f"--workdir={tmp_path / 'w'}"]) == 0
    report, printed = epath.Path(tmp_path / "w" / "report.md"), capsys.readouterr().out
    assert str(report) in printed and str(report.parent / "own" / "lr0.0005-bs8-seed0") in printed
    trial, before = report.parent / "own" / "lr0.0005-bs8-seed0", report.read_text()
    numbers = json.loads((report.parent / "report.json").read_text())["tasks"]["own"]
    (found,) = numbers["arms"].values()
    values = {name: of["mean"] for name, of in found["splits"]["validation"].items()}
    assert values["my_metrics.kappa"] == pytest.approx(values["accuracy"] / 2)
    assert numbers["metric"] == "my_metrics.kappa" and set(values) == {
        *("accuracy", "macro_f1", "matthews", "f1", "my_metrics.kappa")
    }
    held = found["counts"]["validation"]
    assert 0 < held < 10 and found["counts"]["train"] == 30 - held and f"{held} of 30 examples of a.csv" in before

    stored = suite_directory.read_settings(report.parent / "config.json")["tasks"]["own"]["custom"]
    assert stored["labels"] == ["five", "two"] and stored["train"] == "a.csv"
    assert best.find(report.parent).directory == best.find(report.parent / "own").directory == trial
    task, examples = development.read(trial)
    assert task.labels == ("five", "two") and len(examples) == held

    assert train().read_text() == before  # nothing is left to train
    (folder / "a.csv").write_text(TABLE.replace("a cold and boring film", "a cold film"))
    with pytest.raises(ValueError, match="tasks.own.custom.fingerprint"):
        train()
    with pytest.raises(ValueError, match="own .*have changed"):
        development.read(trial)

    (folder / "a.csv").unlink()
    classify = ag_jax.load(report.parent).classify  # the best of the suite's models
    said = classify("truly good")
    assert said.text in ("five", "two") and said == ag_jax.load(trial).classify("truly good")
    lines = [json.loads(line) for line in (trial / "predictions_validation.jsonl").read_text().splitlines()]
    assert all(row["class"] == ("five", "two")[row["prediction"]] for row in lines)
    exporting.convert(trial, None, str(tmp_path / "hf"))
    written = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert written["id2label"] == {"0": "five", "1": "two"}
    exported = ag_jax.load(tmp_path / "hf").classify("truly good")
    assert exported.text == said.text and exported.score == pytest.approx(said.score, abs=1e-5)


def test_settings_that_the_arguments_make():
    argument = "train=a.csv,text=review,label=stars,labels=bad,so so,good,separator=semicolon,task=films,arm=longer"
    (recipe,) = tasks_of(argument).values()
    given = {"text": "review", "label": "stars", "labels": ("bad", "so so", "good"), "separator": "semicolon"}
    assert recipe.custom == CustomTask("classification", train="a.csv", **given) and recipe.epochs_factor == 2
    assert tasks_of("train=a.csv,arm=sift")["own"].adversarial.method == "sift"
    assert tasks_of("kind=span,train=a.json")["own"].max_length == 384
    recipe = tasks_of("task=conll2003,labels=PER,DATE")["conll2003"]
    assert splits.find_task("conll2003", recipe).labels == ("O", "B-PER", "I-PER", "B-DATE", "I-DATE")
    for argument, named in (
        ("kind=tagging", "argument train"),
        ("labels=a,b,test=t.csv", "argument test"),
        ("train=a.csv,task=sst2", "tasks.sst2.custom.kind"),
        ("train=a.csv,metric=bleu", "tasks.own.metric"),
    ):
        with pytest.raises(ValueError, match=named):
            for name, recipe in tasks_of(argument).items():
                splits.find_task(name, recipe)


def test_folds_of_a_custom_task(folder):
    """Folds that lack a class or share texts are reported."""
    made = CustomTask("classification", train="a.csv", text="review", label="stars")
    read = splits.read("own", Recipe(folds=3, custom=made), str(folder))
    assert len(read.train) == 30 and not read.others and len(read.notes) == 1
    with pytest.raises(ValueError, match="tasks.own.folds"):
        splits.find_task("own", Recipe(folds=3, custom=CustomTask("span", train="a.json", validation="b.json")))
    rows = ["one,a", "two,a", "three,a", "four,b", "one,b", "six,b", "seven,c", "one,c", "nine,c"]
    (folder / "sorted.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    notes = splits.read("own", Recipe(folds=3, custom=CustomTask("classification", train="sorted.csv")), str(folder))
    lacking, shared = notes.notes[::2], notes.notes[1::2]
    assert [note[:7] + note[-4:] for note in lacking] == ["fold 0:a, b", "fold 1:b, c", "fold 2:a, c"]
    assert all(note.startswith(f"fold {number}: 1 of 3 test") for number, note in enumerate(shared))


def test_metrics_from_outside():
    task = splits.find_task("sst2", Recipe(metric="my_metrics.kappa"))
    assert task.metric == "my_metrics.kappa" and task.metrics == ("accuracy", "my_metrics.kappa")
    examples = [Texts(str(number), "x", None, label) for number, label in enumerate((0, 1, 1, 0))]
    assert kinds.evaluate(task, examples, [0, 1, 0, 0]) == {"accuracy": 0.75, "my_metrics.kappa": 0.375}
    asked = splits.find_task("squad1", Recipe(metric="my_metrics.overlap"))
    questions = [Question(str(number), "q", "a b", (("a", 0), ("a b", 0))) for number in range(4)]
    assert kinds.evaluate(asked, questions, ["a", "b", "a b", ""])["my_metrics.overlap"] == 0.5
    tagging = splits.find_task("conll2003", Recipe(metric="my_metrics.same_tags"))
    sentences = [TaggedSentence("0", ("Ana", "left"), ("B-PER", "O"))] * 2
    for found in ([("B-PER", "O")] * 2, [["B-PER", "O"]] * 2):  # of a model, and of a file of predictions
        assert kinds.evaluate(tagging, sentences, found)["my_metrics.same_tags"] == 1.0
    for name in ("my_metrics.wrong", "my_metrics.endless .*inf", "my_metrics.absent"):
        task = splits.find_task("sst2", Recipe(metric=name.split()[0]))
        with pytest.raises(ValueError, match=name):
            kinds.evaluate(task, examples, [0, 1, 0, 0])
