"""The tasks of SuperGLUE (Wang et al. 2019), with layouts for the benchmark's own .jsonl files, and TFDS.

AX-b and AX-g, the diagnostics, are splits of `superglue_rte`, because the model of RTE predicts them. RTE is a task
apart from GLUE's `rte`, because its files have other fields, and its test file may have another order.
"""

from collections.abc import Mapping
from typing import Any

from ag_jax.data.tasks.glue import ACCURACY, NLI, SPLITS
from ag_jax.data.tasks.task import QUESTION_AND_ANSWER, FileLayout, Task

FILES = {"train": "train.jsonl", "validation": "val.jsonl|validation.jsonl", "test": "test.jsonl"}
_BOOLEANS: dict[str, Any] = {"labels": ("false", "true"), "aliases": {"False": "false", "True": "true"}}
_BROAD, _GENDER = "diagnostic_broad", "diagnostic_gender"
_NLI_FIELDS = {"first": "premise", "second": "hypothesis", "label": "label", "id": "idx"}
_SENTENCES = {"first": "sentence1", "second": "sentence2", "label": "label", "id": "idx"}


def folders(official: str) -> tuple[str, ...]:
    """Return the folders in which a task's files are looked for, by the benchmark's folder name, such as `BoolQ`."""
    return (
        f"super_glue/{official.lower()}",
        official,
        *(f"{parent}/{official}" for parent in ("super_glue", "SuperGLUE", "superglue")),
    )


def _task(
    name: str,
    official: str,
    columns: Mapping[str, str],
    *others: FileLayout,
    prepared: tuple[FileLayout, ...] = (),
    tfds: str = "",
    **settings: Any,
) -> Task:
    return Task(
        name=name,
        layouts=(FileLayout("jsonl", FILES, folders(official), columns), *others),
        prepared=(FileLayout("tfds", SPLITS, (f"super_glue/{tfds or official.lower()}",), columns), *prepared),
        **{"kind": "classification", "form": "texts", **ACCURACY, **settings},
    )


def _diagnostic(split: str, official: str, columns: Mapping[str, str]) -> FileLayout:
    return FileLayout("jsonl", {split: f"{official}.jsonl"}, folders(official), columns)


SUPERGLUE = (
    _task("boolq", "BoolQ", {"first": "question", "second": "passage", "label": "label", "id": "idx"}, **_BOOLEANS),
    _task(
        "cb",
        "CB",
        _NLI_FIELDS,
        labels=NLI,
        aliases={"1": "contradiction", "2": "neutral"},  # numbers of the copy on the Hugging Face hub
        metric="macro_f1",
        metrics=("macro_f1", "accuracy"),
    ),
    _task("copa", "COPA", {"id": "idx"}, kind="choice", form="copa"),
    _task(
        "multirc",
        "MultiRC",
        {},
        form="multirc",
        pair_limit=QUESTION_AND_ANSWER,
        metric="f1",
        metrics=("f1", "group_exact_match"),
        **_BOOLEANS,
    ),
    _task(
        "superglue_rte",
        "RTE",
        _NLI_FIELDS,
        _diagnostic(_BROAD, "AX-b", _SENTENCES),
        _diagnostic(_GENDER, "AX-g", {**_NLI_FIELDS, "group": "pair_id"}),
        # TFDS has AX-g, too, but not which two examples are a pair.
        prepared=(FileLayout("tfds", {_BROAD: "test"}, ("super_glue/axb",), _SENTENCES),),
        labels=("entailment", "not_entailment"),
        split_metrics={_BROAD: ("matthews", "accuracy"), _GENDER: ("accuracy", "gender_parity")},
    ),
    _task("wic", "WiC", {"id": "idx"}, form="wic", **_BOOLEANS),
    _task("wsc", "WSC", {"id": "idx"}, form="wsc", tfds="wsc.fixed", **_BOOLEANS),
)
