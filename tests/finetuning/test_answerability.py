"""SQuAD 2.0 by RoBERTa's protocol: the command, its report with tuned thresholds, the export, the pipeline."""

import json
import pathlib

import numpy as np
import pytest
import safetensors.numpy
from etils import epath

from ag_jax import pipelines
from ag_jax.evaluation import answers
from ag_jax.finetuning import comparison
from ag_jax.interop import exporting, finetuned
from tests.finetuning import tiny_tasks

CONFIG = pathlib.Path(__file__).parent.parent.parent / "configs" / "finetune" / "squad.py"


def score_with(threshold, rows, score):
    """The mean score, if a question gets no answer where "no answer" leads by more than the threshold."""
    total = 0.0
    for row in rows:
        best, of_best = row["scores"]["answers"][0]
        total += score("" if row["scores"]["none"] - of_best > threshold else best, row["label"])
    return total / len(rows)


def test_the_command_its_report_and_what_becomes_of_the_model(tmp_path, one_device):
    data, model = tiny_tasks.write(tmp_path / "data"), tiny_tasks.checkpoint(tmp_path)
    source = f"{CONFIG}:checkpoint={model},tasks=squad2,seeds=2,scale=small,data={data}"
    few = {f"tasks.squad2.{key}": value for key, value in tiny_tasks.FEW.items()}
    report = comparison.finetune(source, few | {"keep": "best"}, epath.Path(tmp_path / "w"))
    numbers = json.loads((tmp_path / "w" / "report.json").read_text())["tasks"]["squad2"]["arms"]["score"]
    trials = sorted((tmp_path / "w" / "squad2").glob("*seed*"))
    assert len(trials) == 2
    shown, notes = numbers["splits"]["validation"], report.read_text().partition("## Notes")[2]
    for seed, directory in enumerate(trials):
        rows = [json.loads(line) for line in (directory / "predictions_validation.jsonl").read_text().splitlines()]
        assert {bool(row["label"]) for row in rows} == {True, False}
        for metric, score in (("f1", answers.f1), ("exact_match", answers.exact_match)):
            assert shown[metric]["values"][seed] == pytest.approx(score_with(0.0, rows, score))
            threshold = numbers["thresholds"]["validation"][f"best_{metric}"][seed]
            margins = [row["scores"]["none"] - row["scores"]["answers"][0][1] for row in rows]
            best = max(score_with(other, rows, score) for other in (*margins, min(margins) - 1))
            assert shown[f"best_{metric}"]["values"][seed] == pytest.approx(best)
            assert score_with(threshold, rows, score) == pytest.approx(best)
            assert f"{threshold:.3g}" in notes
    assert "- squad2: validation: the threshold of no answer is 0, and for the tuned metrics, by seed" in notes
    assert set(numbers["ensemble"]["validation"]) == set(shown)

    # The classifier is not exported, which is said; the span's layer is.
    kept = next(directory for directory in trials if (directory / "weights").exists())
    exported = exporting.convert(epath.Path(kept), None, str(tmp_path / "hf"))
    assert exported.architecture == "RobertaForQuestionAnswering" and "classifier" in exported.not_carried[0]
    assert exported.not_carried[0] in (tmp_path / "hf" / "README.md").read_text()
    tensors = safetensors.numpy.load_file(tmp_path / "hf" / "model.safetensors")
    ours = finetuned.load(kept).params["task_head"]
    np.testing.assert_array_equal(tensors["qa_outputs.weight"], ours["classifier"]["kernel"].T)
    assert set(ours) == {"classifier", "refusal"} and not [name for name in tensors if "refusal" in name]

    # A pipeline with a threshold predicts what the file of predictions says of it.
    read = [json.loads(line) for line in (kept / "predictions_validation.jsonl").read_text().splitlines()]
    contexts = [tiny_tasks.sentence(number)[0] for number in range(len(read))]
    margins = sorted(row["scores"]["none"] - row["scores"]["answers"][0][1] for row in read)
    middle = (margins[1] + margins[2]) / 2
    found = pipelines.answer(str(kept), threshold=middle)(["What is it?"] * len(read), contexts)
    assert [text == "" for text in found] == [
        row["scores"]["none"] - row["scores"]["answers"][0][1] > middle for row in read
    ]
    assert [text for text in found if text] == [
        row["scores"]["answers"][0][0] for row, text in zip(read, found, strict=True) if text
    ]
