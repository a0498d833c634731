"""Files for GLUE's server, compared with what its sample submission looks like."""

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


def test_every_set_that_the_server_asks_for_is_a_split_of_the_catalogue():
    assert len(submission.FILES) == 11
    for name, split in submission.FILES:
        assert split in catalogue.find(name).splits
