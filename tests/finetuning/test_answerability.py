"""SQuAD 2.0 by RoBERTa's protocol: the command, its report with tuned thresholds, the export, the pipeline."""

import json
import pathlib

import numpy as np
import pytest
import safetensors.numpy
from etils import epath

import ag_jax
from ag_jax.evaluation import answers
from ag_jax.finetuning import comparison
from ag_jax.interop import exporting, finetuned
from ag_jax.settings import config_files
from tests.finetuning import tiny_tasks

CONFIG = pathlib.Path(__file__).parent.parent.parent / "configs" / "finetune" / "squad.py"


def read(directory):
    return [json.loads(line) for line in (directory / "predictions_validation.jsonl").read_text().splitlines()]


def margin(row):
    """How far "no answer" leads."""
    return row["scores"]["none"] - row["scores"]["answers"][0][1]


def score_with(threshold, rows, score):
    """The mean score, if a question gets no answer where "no answer" leads by more than the threshold."""
    found = ["" if margin(row) > threshold else row["scores"]["answers"][0][0] for row in rows]
    return np.mean([score(text, row["label"]) for text, row in zip(found, rows, strict=True)])


def test_the_command_its_report_and_what_becomes_of_the_model(data, checkpoint, tmp_path, one_device):
    source = f"{CONFIG}:checkpoint={checkpoint},tasks=squad2,seeds=2,scale=small,data={data}"
    few = {f"tasks.squad2.{key}": value for key, value in tiny_tasks.FEW.items()}
    comparison.finetune(config_files.load(source, few | {"keep": "best"}), epath.Path(tmp_path / "w"))
    numbers = json.loads((tmp_path / "w" / "report.json").read_text())["tasks"]["squad2"]["arms"]["score"]
    trials = sorted((tmp_path / "w" / "squad2").glob("*seed*"))
    assert len(trials) == 2 and set(numbers["ensemble"]["validation"]) == set(numbers["splits"]["validation"])
    for seed, directory in enumerate(trials):
        rows, shown = read(directory), numbers["splits"]["validation"]
        assert {bool(row["label"]) for row in rows} == {True, False}
        for metric, score in (("f1", answers.f1), ("exact_match", answers.exact_match)):
            assert shown[metric]["values"][seed] == pytest.approx(score_with(0.0, rows, score))
            margins = [margin(row) for row in rows]
            best = max(score_with(other, rows, score) for other in (*margins, min(margins) - 1))
            assert shown[f"best_{metric}"]["values"][seed] == pytest.approx(best)
            threshold = numbers["thresholds"]["validation"][f"best_{metric}"][seed]
            assert score_with(threshold, rows, score) == pytest.approx(best)

    # The classifier is not exported, which is said; the span's layer is.
    kept = next(directory for directory in trials if (directory / "weights").exists())
    exported = exporting.convert(epath.Path(kept), None, str(tmp_path / "hf"))
    assert exported.architecture == "RobertaForQuestionAnswering" and "classifier" in exported.not_carried[0]
    tensors = safetensors.numpy.load_file(tmp_path / "hf" / "model.safetensors")
    ours = finetuned.load(kept).params["task_head"]
    np.testing.assert_array_equal(tensors["qa_outputs.weight"], ours["classifier"]["kernel"].T)
    assert set(ours) == {"classifier", "refusal"} and not [name for name in tensors if "refusal" in name]

    # A pipeline with a threshold predicts what the file of predictions says of it.
    rows = read(kept)
    contexts = [tiny_tasks.sentence(number)[0] for number in range(len(rows))]
    margins = sorted(map(margin, rows))
    middle = (margins[1] + margins[2]) / 2
    found = ag_jax.load(kept).answer(["What is it?"] * len(rows), contexts, threshold=middle)
    assert found == ["" if margin(row) > middle else row["scores"]["answers"][0][0] for row in rows]
