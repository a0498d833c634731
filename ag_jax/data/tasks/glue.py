"""The tasks of GLUE, with layouts for JSON lines, the benchmark's own .tsv files, and TFDS."""

from collections.abc import Mapping
from typing import Any

from ag_jax.data.tasks.task import FileLayout, Task

SPLITS = {"train": "train", "validation": "validation", "test": "test"}
ACCURACY: dict[str, Any] = {"metric": "accuracy", "metrics": ("accuracy",)}
TABLES = {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"}
NLI = ("entailment", "neutral", "contradiction")
_TWO = ("entailment", "not_entailment")
_PAIR = {"first": "sentence1", "second": "sentence2"}
_MATCHED = {  # splits of MNLI: our names to the benchmark's
    "train": "train",
    "validation": "validation_matched",
    "validation_mismatched": "validation_mismatched",
    "test": "test_matched",
    "test_mismatched": "test_mismatched",
}


def lines(name: str, columns: Mapping[str, Any], splits: Mapping[str, str] = SPLITS) -> FileLayout:
    """Return the file layout of a GLUE task that is stored as SPLIT.jsonl, with one JSON object per line."""
    return FileLayout("jsonl", {split: f"{split}.jsonl" for split in splits}, (f"glue/{name}", name), columns)


def tables(folder: str, columns: Mapping[str, Any], files: Mapping[str, str] = TABLES, **options: Any) -> FileLayout:
    """Return the file layout of GLUE's own .tsv files for the task in the folder `folder`, such as `CoLA`.

    Quotes have no meaning in these files. Test files have an index and no label.
    """
    folders = (folder, f"glue/{folder}", f"GLUE/{folder}", f"glue_data/{folder}")
    return FileLayout("tsv", files, folders, {"id": "index", **columns}, options)


def _glue(
    name: str,
    columns: Mapping[str, Any],
    labels: tuple[str, ...],
    *official: FileLayout,
    splits: Mapping[str, str] = SPLITS,
    also_prepared: tuple[FileLayout, ...] = (),
    **settings: Any,
) -> Task:
    fields = {**columns, "label": "label", "id": "idx"}
    return Task(
        name=name,
        labels=labels,
        layouts=(lines(name, fields, splits), *official),
        prepared=(FileLayout("tfds", splits, (f"glue/{name}",), fields), *also_prepared),
        **{"kind": "classification", "form": "texts", **ACCURACY, **settings},
    )


GLUE = (
    _glue(
        "cola",
        {"first": "sentence"},
        ("unacceptable", "acceptable"),
        # source, label, the author's mark, sentence; only the test file has a header
        tables("CoLA", {"first": "3", "label": "1"}, {"train": "train.tsv", "validation": "dev.tsv"}, header=False),
        tables("CoLA", {"first": "sentence"}, {"test": "test.tsv"}),
        metric="matthews",
        metrics=("matthews", "accuracy"),
    ),
    _glue("sst2", {"first": "sentence"}, ("negative", "positive"), tables("SST-2", {"first": "sentence"})),
    _glue(
        "mrpc",
        _PAIR,
        ("not_equivalent", "equivalent"),
        tables(
            "MRPC",
            {"first": "#1 String", "second": "#2 String", "label": "Quality"},
            # The original corpus, in two files, has no validation part: GLUE takes one from train by a list of ids.
            {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv|msr_paraphrase_test.txt"},
        ),
        metrics=("accuracy", "f1"),
    ),
    _glue(
        "stsb",
        _PAIR,
        (),
        tables("STS-B", {**_PAIR, "label": "score"}),
        kind="regression",
        form="numbers",
        span=(0.0, 5.0),
        metric="pearson",
        metrics=("pearson", "spearman"),
    ),
    _glue(
        "qqp",
        {"first": "question1", "second": "question2"},
        ("not_duplicate", "duplicate"),
        tables("QQP", {"first": "question1", "second": "question2", "label": "is_duplicate", "id": "id"}),
        legacy="the released code of Adversarial Self-Attention chose epochs by a file dev_and_test.tsv that is not "
        "GLUE's, which has no labels for its test set",
        metric="f1",
        metrics=("f1", "accuracy"),
    ),
    _glue(
        "mnli",
        {"first": "premise", "second": "hypothesis"},
        NLI,
        tables(
            "MNLI",
            {**_PAIR, "label": "gold_label"},
            {
                "train": "train.tsv",
                "validation": "dev_matched.tsv",
                "validation_mismatched": "dev_mismatched.tsv",
                "test": "test_matched.tsv",
                "test_mismatched": "test_mismatched.tsv",
            },
        ),
        tables("diagnostic", _PAIR, {"diagnostic": "diagnostic.tsv"}),
        tables("AX", _PAIR, {"diagnostic": "AX.tsv"}),
        splits=_MATCHED,
        also_prepared=(
            FileLayout(
                "tfds", {"diagnostic": "test"}, ("glue/ax",), {"first": "premise", "second": "hypothesis", "id": "idx"}
            ),
        ),
    ),
    _glue(
        "qnli",
        {"first": "question", "second": "sentence"},
        _TWO,
        tables("QNLI", {"first": "question", "second": "sentence"}),
    ),
    _glue("rte", _PAIR, _TWO, tables("RTE", _PAIR)),
    _glue("wnli", _PAIR, ("not_entailment", "entailment"), tables("WNLI", _PAIR)),
)
