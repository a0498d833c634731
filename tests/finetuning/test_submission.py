"""Files for the servers of GLUE and SuperGLUE, compared with what their sample submissions look like."""

import json
from types import SimpleNamespace

import pytest
from etils import epath

from ag_jax.data.tasks import catalogue, ranking
from ag_jax.data.tasks.task import Choices, Examples
from ag_jax.finetuning import submission


def rows(*predictions, first=0):
    return [{"id": str(number), "prediction": value} for number, value in enumerate(predictions, first)]


OF_GLUE = [
    ("cola", "test", (1, 0), "CoLA", "0\t1\n1\t0"),
    ("sst2", "test", (1, 0), "SST-2", "0\t1\n1\t0"),
    ("mrpc", "test", (0, 1), "MRPC", "0\t0\n1\t1"),
    ("qqp", "test", (0, 1), "QQP", "0\t0\n1\t1"),
    ("wnli", "test", (0, 1), "WNLI", "0\t0\n1\t1"),
    ("stsb", "test", (-0.25, 2.34567, 5.5), "STS-B", "0\t0.000\n1\t2.346\n2\t5.000"),
    ("mnli", "test", (0, 1, 2), "MNLI-m", "0\tentailment\n1\tneutral\n2\tcontradiction"),
    ("mnli", "test_mismatched", (2,), "MNLI-mm", "0\tcontradiction"),
    ("mnli", "diagnostic", (1,), "AX", "0\tneutral"),
    ("qnli", "test", (0, 1), "QNLI", "0\tentailment\n1\tnot_entailment"),
    ("rte", "test", (1, 0), "RTE", "0\tnot_entailment\n1\tentailment"),
]
OF_SUPERGLUE = [  # as jiant, the benchmark's own program, writes them
    ("boolq", "test", (1, 0), "BoolQ", ["true", "false"]),
    ("cb", "test", (2, 1), "CB", ["contradiction", "neutral"]),
    ("copa", "test", (1,), "COPA", [1]),
    ("record", "test", ("Anna Lée",), "ReCoRD", ["Anna Lée"]),
    ("superglue_rte", "test", (1,), "RTE", ["not_entailment"]),
    ("superglue_rte", "diagnostic_broad", (0,), "AX-b", ["entailment"]),
    ("superglue_rte", "diagnostic_gender", (0,), "AX-g", ["entailment"]),
    ("wic", "test", (0,), "WiC", ["false"]),
    ("wsc", "test", (0, 1), "WSC", ["False", "True"]),
]


@pytest.mark.parametrize(("task", "split", "predictions", "name", "expected"), OF_GLUE + OF_SUPERGLUE)
def test_lines_of_files(task, split, predictions, name, expected, tmp_path):
    """Lines are in the order of the index."""
    submission.write(epath.Path(tmp_path / "s"), catalogue.find(task), split, rows(*predictions)[::-1])
    (file,) = (tmp_path / "s").iterdir()
    assert file.stem == name and split in catalogue.find(task).splits
    if isinstance(expected, str):
        assert file.read_text() == f"index\tprediction\n{expected}\n"
    else:
        found = [json.loads(line) for line in file.read_text().splitlines()]
        assert found == [{"idx": number, "label": label} for number, label in enumerate(expected)]


def test_answers_of_multirc_are_nested(tmp_path):
    answers = {"2-9-31": 1, "2-9-30": 0, "10-3-1": 1, "2-1-5": 0}
    given = [{"id": id, "prediction": value} for id, value in answers.items()]
    first = [
        {"idx": 1, "answers": [{"idx": 5, "label": 0}]},
        {"idx": 9, "answers": [{"idx": 30, "label": 0}, {"idx": 31, "label": 1}]},
    ]
    lines = submission.lines(catalogue.find("multirc"), given).splitlines()
    assert [json.loads(line) for line in lines] == [
        {"idx": 2, "passage": {"questions": first}},
        {"idx": 10, "passage": {"questions": [{"idx": 3, "answers": [{"idx": 1, "label": 1}]}]}},
    ]
    assert len(submission.FILES) == len(OF_GLUE) and len(submission.SUPERGLUE) == len(OF_SUPERGLUE) + 1


@pytest.mark.parametrize(
    ("task", "wrong"),
    [
        ("sst2", rows(1, 0, first=1)),
        ("sst2", [{"id": "a1", "prediction": 0}]),
        ("sst2", rows(1) * 2),
        ("multirc", rows(1)),
        ("boolq", [{"id": "a", "prediction": 0}]),
        ("wic", rows(1) * 2),
    ],
)
def test_ids_that_the_server_does_not_have_are_told_not_written(tmp_path, task, wrong):
    note = submission.write(epath.Path(tmp_path / "s"), catalogue.find(task), "test", wrong)
    assert note.startswith("no ") and not (tmp_path / "s").exists()


def chosen(task, predictions, items=(), skipped=0):
    """The results of a task with predictions of its test and its development set."""
    predicted = SimpleNamespace(examples=Examples(tuple(items), "here", skipped=skipped), together=lambda: predictions)
    return SimpleNamespace(task=task, predicted={"test": predicted, "validation": predicted})


def test_test_sets_of_which_files_are_written(tmp_path):
    """None of a set that the server does not have, or without its malformed rows: a missing id would not show."""
    for task in ("wsc", "qqp"):
        (note,) = submission.write_all(epath.Path(tmp_path / "s"), chosen(catalogue.find(task), rows(1, 0), skipped=2))
        assert "2 malformed rows" in note
    assert submission.write_all(epath.Path(tmp_path / "s"), chosen(catalogue.find("dream"), rows(1))) == []
    assert not (tmp_path / "s").exists()
    # Candidates that were ranked become classes of pairs; the server wants the text of an entity.
    candidates = [Choices("q0", (("a", "x"),) * 2, None, ("2", "0")), Choices("q1", (("b", "x"),), None, ("1",))]
    ranked = ranking.ranked(catalogue.find("qnli"))
    submission.write_all(epath.Path(tmp_path / "s"), chosen(ranked, rows(1, 0), candidates))
    lines = (tmp_path / "s" / "QNLI.tsv").read_text().splitlines()[1:]
    assert lines == ["0\tentailment", "1\tentailment", "2\tnot_entailment"]
    names = [Choices("0", (("q", "x"),) * 2, None, ("Anna", "Bob"))]
    submission.write_all(epath.Path(tmp_path / "s"), chosen(catalogue.find("record"), rows(1), names))
    assert json.loads((tmp_path / "s" / "ReCoRD.jsonl").read_text()) == {"idx": 0, "label": "Bob"}
