"""Files for GLUE's server, compared with what its sample submission looks like."""

import json
from types import SimpleNamespace

import pytest
from etils import epath

from ag_jax.data.tasks import catalogue
from ag_jax.finetuning import submission


def rows(*predictions, first=0):
    return [{"id": str(number), "prediction": value} for number, value in enumerate(predictions, first)]


@pytest.mark.parametrize(
    ("task", "split", "predictions", "name", "expected"),
    [
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
    ],
)
def test_names_headers_and_words(task, split, predictions, name, expected, tmp_path):
    note = submission.write(epath.Path(tmp_path / "submission"), catalogue.find(task), split, rows(*predictions))
    assert (tmp_path / "submission" / f"{name}.tsv").read_text() == f"index\tprediction\n{expected}\n"
    assert note == f"submission/{name}.tsv has the {len(predictions)} predictions of {split}"


def test_rows_are_in_the_order_of_the_index():
    assert submission.table(catalogue.find("sst2"), rows(1, 0, 1)[::-1]) == "index\tprediction\n0\t1\n1\t0\n2\t1\n"


def test_ids_that_are_no_index_are_told_not_written(tmp_path):
    for wrong in (rows(1, 0, first=1), [{"id": "a1", "prediction": 0}], rows(1) * 2):
        note = submission.write(epath.Path(tmp_path / "s"), catalogue.find("sst2"), "test", wrong)
        assert note.startswith("no SST-2.tsv: task sst2: the server wants predictions for the indices 0 to")
    assert not (tmp_path / "s").exists()


def test_sets_that_the_server_does_not_have_are_left_out(tmp_path):
    assert submission.write(epath.Path(tmp_path), catalogue.find("mnli"), "validation_mismatched", rows(1)) is None
    assert submission.write(epath.Path(tmp_path), catalogue.find("dream"), "test", rows(1)) is None


def test_a_test_set_without_its_malformed_rows_is_no_submission(tmp_path):
    """The server wants all of them, and an id that is missing at the end does not show in the ids."""
    predicted = SimpleNamespace(examples=SimpleNamespace(skipped=2), together=lambda: rows(1, 0))
    for task in ("wsc", "qqp"):
        chosen = SimpleNamespace(task=catalogue.find(task), predicted={"test": predicted, "validation": predicted})
        notes = submission.write_all(epath.Path(tmp_path / "s"), chosen)
        assert notes == ["no file for the server of test: 2 malformed rows of it were left out"]
    assert not (tmp_path / "s").exists()


def test_lines_for_superglue(tmp_path):
    """As jiant, the benchmark's own program, writes them."""
    wanted = {
        ("boolq", "test", "BoolQ"): ((1, 0), [{"idx": 0, "label": "true"}, {"idx": 1, "label": "false"}]),
        ("cb", "test", "CB"): ((2, 1), [{"idx": 0, "label": "contradiction"}, {"idx": 1, "label": "neutral"}]),
        ("copa", "test", "COPA"): ((1,), [{"idx": 0, "label": 1}]),
        ("record", "test", "ReCoRD"): (("Anna Lée",), [{"idx": 0, "label": "Anna Lée"}]),
        ("superglue_rte", "test", "RTE"): ((1,), [{"idx": 0, "label": "not_entailment"}]),
        ("superglue_rte", "diagnostic_broad", "AX-b"): ((0,), [{"idx": 0, "label": "entailment"}]),
        ("superglue_rte", "diagnostic_gender", "AX-g"): ((0,), [{"idx": 0, "label": "entailment"}]),
        ("wic", "test", "WiC"): ((0,), [{"idx": 0, "label": "false"}]),
        ("wsc", "test", "WSC"): ((0, 1), [{"idx": 0, "label": "False"}, {"idx": 1, "label": "True"}]),
    }
    for (task, split, name), (predictions, expected) in wanted.items():
        note = submission.write(epath.Path(tmp_path / "s"), catalogue.find(task), split, rows(*predictions)[::-1])
        found = [json.loads(line) for line in (tmp_path / "s" / f"{name}.jsonl").read_text().splitlines()]
        assert found == expected
        assert note == f"s/{name}.jsonl has the {len(predictions)} predictions of {split}"
    answers = [
        {"id": id, "prediction": value} for id, value in (("2-9-31", 1), ("2-9-30", 0), ("10-3-1", 1), ("2-1-5", 0))
    ]
    submission.write(epath.Path(tmp_path / "s"), catalogue.find("multirc"), "test", answers)
    assert [json.loads(line) for line in (tmp_path / "s" / "MultiRC.jsonl").read_text().splitlines()] == [
        {
            "idx": 2,
            "passage": {
                "questions": [
                    {"idx": 1, "answers": [{"idx": 5, "label": 0}]},
                    {"idx": 9, "answers": [{"idx": 30, "label": 0}, {"idx": 31, "label": 1}]},
                ]
            },
        },
        {"idx": 10, "passage": {"questions": [{"idx": 3, "answers": [{"idx": 1, "label": 1}]}]}},
    ]
    for task, wrong in (("multirc", rows(1)), ("boolq", [{"id": "a", "prediction": 0}]), ("wic", rows(1) * 2)):
        note = submission.write(epath.Path(tmp_path / "t"), catalogue.find(task), "test", wrong)
        assert "the server wants predictions for the test file's own idx, each once" in note
    assert not (tmp_path / "t").exists()


def test_every_set_that_the_server_asks_for_is_a_split_of_the_catalogue():
    assert len(submission.FILES) == 11 and len(submission.SUPERGLUE) == 10
    for name, split in (*submission.FILES, *submission.SUPERGLUE):
        assert split in catalogue.find(name).splits
