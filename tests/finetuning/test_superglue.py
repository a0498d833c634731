"""SuperGLUE's config with real trials: metrics of the diagnostics and of questions, and files for the server."""

import json
import pathlib

import numpy as np
import pytest
from etils import epath

from ag_jax.finetuning import comparison
from tests.finetuning import tiny_tasks

CONFIG = pathlib.Path(__file__).parent.parent.parent / "configs" / "finetune" / "superglue.py"
TASKS = ("superglue_rte", "multirc", "record")


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.exhaustive
def test_metrics_of_splits_and_files_for_the_server(tmp_path, one_device):
    data, model = tiny_tasks.write_superglue(tmp_path / "data"), tiny_tasks.checkpoint(tmp_path)
    source = f"{CONFIG}:checkpoint={model},tasks={','.join(TASKS)},seeds=1,scale=small,data={data}"
    few = {f"tasks.{task}.{key}": value for task in TASKS for key, value in tiny_tasks.FEW.items()}
    report = comparison.finetune(source, few, epath.Path(tmp_path / "w"))
    numbers = json.loads((tmp_path / "w" / "report.json").read_text())["tasks"]
    means = {
        (task, split, metric): summary["mean"]
        for task in TASKS
        for split, of_split in numbers[task]["arms"]["score"]["splits"].items()
        for metric, summary in of_split.items()
    }
    found = {
        (task, path.stem.removeprefix("predictions_")): read(path)
        for task in TASKS
        for path in (tmp_path / "w" / task).glob("*/predictions_*.jsonl")
    }
    wanted = {("superglue_rte", "validation"): {"accuracy"}, ("multirc", "validation"): {"f1", "group_exact_match"}}
    wanted |= {("record", "validation"): {"f1", "exact_match"}}
    wanted |= {("superglue_rte", "diagnostic_broad"): {"matthews", "accuracy"}}
    wanted |= {("superglue_rte", "diagnostic_gender"): {"accuracy", "gender_parity"}}
    assert set(means) == {(*key, metric) for key, metrics in wanted.items() for metric in metrics}

    broad = found["superglue_rte", "diagnostic_broad"]
    predicted, labels = ([row[key] for row in broad] for key in ("prediction", "label"))
    correlation = np.corrcoef(predicted, labels)[0, 1] if len({*predicted}) > 1 else 0.0
    assert means["superglue_rte", "diagnostic_broad", "matthews"] == pytest.approx(correlation)
    gender = [row["prediction"] for row in found["superglue_rte", "diagnostic_gender"]]
    parity = np.mean([gender[at] == gender[at + 1] for at in (0, 2, 4)])
    assert means["superglue_rte", "diagnostic_gender", "gender_parity"] == pytest.approx(parity)
    answers = found["multirc", "validation"]
    right = np.reshape([row["prediction"] == row["label"] for row in answers], (-1, 2)).all(1)
    assert means["multirc", "validation", "group_exact_match"] == pytest.approx(right.mean())

    folder = tmp_path / "w" / "submission"
    assert {path.name for path in folder.iterdir()} == {
        *("RTE.jsonl", "AX-b.jsonl", "AX-g.jsonl", "MultiRC.jsonl", "ReCoRD.jsonl")
    }
    assert "- record: submission/ReCoRD.jsonl has the 4 predictions of test" in report.read_text()
    names = [("Anna", "Bob")[row["prediction"]] for row in found["record", "test"]]
    assert read(folder / "ReCoRD.jsonl") == [{"idx": 200 + number, "label": name} for number, name in enumerate(names)]
    nested = [
        (passage["idx"], question["idx"], answer["idx"], answer["label"])
        for passage in read(folder / "MultiRC.jsonl")
        for question in passage["passage"]["questions"]
        for answer in question["answers"]
    ]
    assert nested == [(*map(int, row["id"].split("-")), row["prediction"]) for row in found["multirc", "test"]]
