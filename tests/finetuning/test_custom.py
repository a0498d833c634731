"""Custom tasks from the config file to reports, Python functions and exported models; metrics from outside."""

import json
import pathlib
import sys
import types

import numpy as np
import pytest
from etils import epath

from ag_jax import config_reader, pipelines
from ag_jax.data.tasks.custom import CustomTask
from ag_jax.data.tasks.task import Question, TaggedSentence, Texts
from ag_jax.finetuning import best, comparison, development, kinds, splits, suite
from ag_jax.finetuning.config import FinetuningConfig, Recipe
from ag_jax.interop import exporting, finetuned
from tests.cases import some
from tests.finetuning import tiny_tasks

CONFIG = pathlib.Path(__file__).parent.parent.parent / "configs" / "finetune" / "own.py"
FEW = {"epochs": 1, "max_length": 16, "batch_sizes": (8,), "dropout": 0.0, "attention_dropout": 0.0}
TEXTS = [tiny_tasks.sentence(number) for number in range(30)]


def _lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


FILES = {
    "a.csv": "review,stars\n" + "".join(f"{text},{('two', 'five')[label]}\n" for text, label in TEXTS),
    "pairs.tsv": "one\ttwo\tlabel\n" + "".join(f"{text}\tit is\t{label}.5\n" for text, label in TEXTS),
    "choices.jsonl": _lines({"text": text, "ends": ["bad", "good"], "label": label} for text, label in TEXTS),
    "tags.jsonl": _lines(
        {"words": text.split(), "tags": ["B-X" if word in ("good", "bad") else "O" for word in text.split()]}
        for text, _ in TEXTS
    ),
    "spans.jsonl": _lines(
        {"context": text, "question": "what", "answers": [{"text": "number", "answer_start": text.index("number")}]}
        for text, _ in TEXTS
    ),
}
ARGUMENTS = {
    "classification": "train=a.csv,text=review,label=stars,metric=my_metrics.kappa",
    "regression": "kind=regression,train=pairs.tsv,text=one,second=two",
    "choice": "kind=choice,train=choices.jsonl,choices=ends",
    "tagging": "kind=tagging,train=tags.jsonl",
    "span": "kind=span,train=spans.jsonl",
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny_tasks.checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data").mkdir()
    for name, content in FILES.items():
        (tmp_path / "data" / name).write_text(content)
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


def train(checkpoint, folder, workdir, argument):
    few = {f"tasks.own.{name}": value for name, value in FEW.items()}
    source = f"{CONFIG}:checkpoint={checkpoint},{argument},data={folder},scale=small"
    return comparison.finetune(source, few, epath.Path(workdir))


def trial_of(report):
    return report.parent / "own" / "lr0.0005-bs8-seed0"


def test_a_table_becomes_a_report_a_function_and_an_exported_model(checkpoint, folder, tmp_path, one_device):
    report = train(checkpoint, folder, tmp_path / "w", ARGUMENTS["classification"])
    numbers, trial = json.loads((report.parent / "report.json").read_text())["tasks"]["own"], trial_of(report)
    (found,) = numbers["arms"].values()
    values = {name: of["mean"] for name, of in found["splits"]["validation"].items()}
    assert values["my_metrics.kappa"] == pytest.approx(values["accuracy"] / 2)
    assert numbers["metric"] == "my_metrics.kappa" and set(values) == {
        *("accuracy", "macro_f1", "matthews", "f1", "my_metrics.kappa")
    }
    held = found["counts"]["validation"]
    assert 0 < held < 10 and found["counts"]["train"] == 30 - held
    assert f"own: validation: {held} of 30 examples of a.csv, about one in 10, held out" in report.read_text()

    stored = suite.read_settings(report.parent / "config.json")["tasks"]["own"]["custom"]
    assert stored["labels"] == ["five", "two"] and stored["train"] == "a.csv"
    assert best.find(report.parent).directory == best.find(report.parent / "own").directory == trial
    task, examples = development.read(trial)
    assert task.labels == ("five", "two") and len(examples) == held

    again = train(checkpoint, folder, tmp_path / "w", ARGUMENTS["classification"])  # nothing is left to train
    assert again.read_text() == report.read_text()
    (folder / "a.csv").write_text(FILES["a.csv"].replace("a cold and boring film", "a cold film"))
    with pytest.raises(
        ValueError, match=r"\n  tasks.own.custom.fingerprint: there '\w+', now '\w+'\nThe files of own are"
    ):
        train(checkpoint, folder, tmp_path / "w", ARGUMENTS["classification"])
    with pytest.raises(ValueError, match="the files of task own .* have changed since its training"):
        development.read(trial)

    (folder / "a.csv").unlink()
    classify = pipelines.classify(str(report.parent))  # the best of the suite's models
    assert classify("truly good").text in ("five", "two")
    assert classify("truly good") == pipelines.classify(str(trial))("truly good")
    lines = [json.loads(line) for line in (trial / "predictions_validation.jsonl").read_text().splitlines()]
    assert all(row["class"] == ("five", "two")[row["prediction"]] for row in lines)
    with pytest.raises(FileNotFoundError, match="a.csv"):
        development.read(trial)
    exporting.convert(trial, None, str(tmp_path / "hf"))
    written = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert written["id2label"] == {"0": "five", "1": "two"}
    assert (tmp_path / "hf" / "model.safetensors").stat().st_mode == (tmp_path / "hf" / "config.json").stat().st_mode
    assert "model.config.id2label[logits.argmax(-1).item()]" in (tmp_path / "hf" / "README.md").read_text()
    exported = pipelines.classify(str(tmp_path / "hf"))("truly good")
    assert exported.text == classify("truly good").text
    assert exported.score == pytest.approx(classify("truly good").score, abs=1e-5)


CALLS = {
    "regression": lambda trial: isinstance(pipelines.classify(trial)(("good", "it is")), float),
    "choice": lambda trial: pipelines.choose(trial)("truly", ["bad", "good"]).text in ("bad", "good"),
    "tagging": lambda trial: {tag for _, tag in pipelines.tag(trial)("truly good work")} <= {"O", "B-X", "I-X"},
    "span": lambda trial: pipelines.answer(trial)("what", "a warm film number 1") in "a warm film number 1",
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", some(CALLS, "tagging"))
def test_every_kind_becomes_a_function(kind, checkpoint, folder, tmp_path, one_device):
    report = train(checkpoint, folder, tmp_path / "w", ARGUMENTS[kind])
    head = finetuned.load(trial_of(report)).head
    assert (head.task, head.kind) == ("own", kind) and CALLS[kind](str(trial_of(report)))
    assert (head.low, head.high) == ((0.5, 1.5) if kind == "regression" else (0, 1))


def test_labels_that_validation_alone_has(checkpoint, folder, tmp_path):
    (folder / "b.csv").write_text("review,stars\ngood,seven\n")
    with pytest.raises(ValueError, match=r"split validation: 1 malformed rows(.*\n)+.*line 2: unknown label 'seven'"):
        train(checkpoint, folder, tmp_path / "w", f"{ARGUMENTS['classification']},validation=b.csv")
    assert not (tmp_path / "w" / "own").exists()


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("kind=tagging", r"needs the argument train, a file with training examples"),
        ("labels=a,b,test=t.csv", r"the argument test needs the argument train"),
        ("train=a.csv,kind=poem", r"kind must be one of classification, regression, choice, tagging, span, got 'poem'"),
        ("train=a.csv,held_out=1", r"tasks.own.custom.held_out must be at least 2, got 1"),
        ("train=a.csv,task=sst2", r"tasks.sst2.custom.kind must be none, because sst2 is in the catalogue"),
        ("train=a.csv,kind=regression,labels=a,b", r"tasks.own.custom.labels must be empty for a task of regression"),
        ("train=a.csv,metric=bleu", r"tasks.own.metric must be one of accuracy, .*, or module.function of a custom"),
    ],
)
def test_arguments_that_do_not_go_together(argument, message):
    with pytest.raises(ValueError, match=message):
        config = config_reader.parse(FinetuningConfig, config_reader.load(f"{CONFIG}:checkpoint=C,{argument}"))
        for name, recipe in config.tasks.items():
            splits.find_task(name, recipe)


@pytest.mark.parametrize("arm", ["plain", "longer", "r_drop", "asa", "freelb", "smart", "sift"])
def test_arms_that_can_be_compared(arm):
    (recipe,) = config_reader.parse(
        FinetuningConfig, config_reader.load(f"{CONFIG}:checkpoint=C,train=a.csv,arm={arm}")
    ).tasks.values()
    assert recipe.adversarial.method == ("none" if arm in ("plain", "longer") else arm)
    assert recipe.epochs_factor == (2 if arm == "longer" else 1)


def test_settings_that_the_arguments_make():
    argument = "train=a.csv,text=review,label=stars,labels=bad,so so,good,separator=semicolon,task=films"
    (recipe,) = config_reader.parse(
        FinetuningConfig, config_reader.load(f"{CONFIG}:checkpoint=C,{argument}")
    ).tasks.values()
    assert recipe.custom == CustomTask(
        "classification",
        train="a.csv",
        text="review",
        label="stars",
        labels=("bad", "so so", "good"),
        separator="semicolon",
    )
    loaded = config_reader.load(f"{CONFIG}:checkpoint=C,kind=span,train=a.json")
    assert loaded.tasks.own.max_length == 384 and loaded.keep == "best"
    loaded = config_reader.load(f"{CONFIG}:checkpoint=C,task=conll2003,labels=PER,DATE")
    recipe = config_reader.parse(FinetuningConfig, loaded).tasks["conll2003"]
    assert splits.find_task("conll2003", recipe).labels == ("O", "B-PER", "I-PER", "B-DATE", "I-DATE")


def test_a_flag_with_labels_is_a_list_and_stored_labels_may_have_commas():
    for given, labels in ((("PER,DATE",), ("PER", "DATE")), (["a, b", "c"], ("a, b", "c"))):
        found = config_reader.parse(CustomTask, {"kind": "tagging", "train": "a.conll", "labels": given})
        assert found.labels == labels
        assert config_reader.parse(CustomTask, config_reader.to_dict(found)) == found


def test_folds_of_a_custom_task(folder):
    made = CustomTask("classification", train="a.csv", text="review", label="stars")
    read = splits.read("own", Recipe(folds=3, custom=made), str(folder))
    assert len(read.train) == 30 and not read.others and read.notes == ("f1 is that of the class two",)
    with pytest.raises(ValueError, match="tasks.own.folds is for tasks without a validation split"):
        splits.find_task("own", Recipe(folds=3, custom=CustomTask("span", train="a.json", validation="b.json")))


def test_folds_that_lack_a_class_or_share_texts_are_said(folder):
    rows = ["one,a", "two,a", "three,a", "four,b", "one,b", "six,b", "seven,c", "one,c", "nine,c"]
    (folder / "sorted.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    made = CustomTask("classification", train="sorted.csv")
    assert splits.read("own", Recipe(folds=3, custom=made), str(folder)).notes == (
        "fold 0: no training example has the label a, b",
        "fold 0: 1 of 3 test examples have a text that is also among its training examples",
        "fold 1: no training example has the label b, c",
        "fold 1: 1 of 3 test examples have a text that is also among its training examples",
        "fold 2: no training example has the label a, c",
        "fold 2: 1 of 3 test examples have a text that is also among its training examples",
    )


def tagged():
    return TaggedSentence("0", ("Ana", "left"), ("B-PER", "O"))


def test_metrics_from_outside():
    recipe = Recipe(metric="my_metrics.kappa")
    task = splits.find_task("sst2", recipe)
    assert task.metric == "my_metrics.kappa" and task.metrics == ("accuracy", "my_metrics.kappa")
    examples = [Texts(str(number), "x", None, label) for number, label in enumerate((0, 1, 1, 0))]
    assert kinds.evaluate(task, examples, [0, 1, 0, 0]) == {"accuracy": 0.75, "my_metrics.kappa": 0.375}
    asked = splits.find_task("squad1", Recipe(metric="my_metrics.overlap"))
    questions = [Question(str(number), "q", "a b", (("a", 0), ("a b", 0))) for number in range(4)]
    assert kinds.evaluate(asked, questions, ["a", "b", "a b", ""])["my_metrics.overlap"] == 0.5
    tagging, sentences = splits.find_task("conll2003", Recipe(metric="my_metrics.same_tags")), [tagged(), tagged()]
    for found in ([("B-PER", "O")] * 2, [["B-PER", "O"]] * 2):  # of a model, and of a file of predictions
        assert kinds.evaluate(tagging, sentences, found)["my_metrics.same_tags"] == 1.0
    for name, message in (
        ("wrong", "the metric my_metrics.wrong of task sst2 failed: ValueError"),
        ("endless", "the metric my_metrics.endless of task sst2 must return a finite number, got inf"),
        ("absent", "cannot import tasks.sst2.metric=my_metrics.absent: AttributeError"),
    ):
        task = splits.find_task("sst2", Recipe(metric=f"my_metrics.{name}"))
        with pytest.raises(ValueError, match=message):
            kinds.evaluate(task, examples, [0, 1, 0, 0])


def test_a_metric_that_cannot_be_imported_ends_a_suite_before_training(tmp_path):
    data = tiny_tasks.write(tmp_path / "data")
    config = FinetuningConfig(checkpoint="C", data=str(data), tasks={"sst2": Recipe(metric="no_module.kappa")})
    with pytest.raises(ValueError, match=r"cannot import tasks.sst2.metric=no_module.kappa: ModuleNotFoundError"):
        suite.read(config)
