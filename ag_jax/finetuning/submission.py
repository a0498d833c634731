"""Files of predictions for the servers of GLUE and SuperGLUE, one for each test set.

Names, headers and labels are those of the servers' sample submissions (gluebenchmark.com, super.gluebenchmark.com).
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from ag_jax.data.tasks import catalogue, ranking
from ag_jax.data.tasks.task import Task
from ag_jax.distributed import storage
from ag_jax.finetuning.results import Chosen, SplitPredictions

# The file of each (task, split). AX are the diagnostics, which are predicted by MNLI's model.
FILES = {
    ("cola", "test"): "CoLA",
    ("sst2", "test"): "SST-2",
    ("mrpc", "test"): "MRPC",
    ("stsb", "test"): "STS-B",
    ("mnli", "test"): "MNLI-m",
    ("mnli", "test_mismatched"): "MNLI-mm",
    ("qnli", "test"): "QNLI",
    ("qqp", "test"): "QQP",
    ("rte", "test"): "RTE",
    ("wnli", "test"): "WNLI",
    ("mnli", "diagnostic"): "AX",
}
# The same for SuperGLUE. AX-b and AX-g are the diagnostics, which are predicted by RTE's model.
SUPERGLUE = {
    ("boolq", "test"): "BoolQ",
    ("cb", "test"): "CB",
    ("copa", "test"): "COPA",
    ("multirc", "test"): "MultiRC",
    ("record", "test"): "ReCoRD",
    ("superglue_rte", "test"): "RTE",
    ("wic", "test"): "WiC",
    ("wsc", "test"): "WSC",
    ("superglue_rte", "diagnostic_broad"): "AX-b",
    ("superglue_rte", "diagnostic_gender"): "AX-g",
}
CAPITALISED = ("wsc",)  # tasks whose labels the server writes as True and False, not as true and false
IN_WORDS = ("mnli", "qnli", "rte")  # tasks whose file has names of classes; the others have their numbers
HEADER = "index\tprediction"


def table(task: Task, predictions: Sequence[Mapping[str, Any]]) -> str:
    """Return the content of a test set's file for GLUE's server, with a line for each prediction, sorted by id.

    predictions: dicts with `id` and `prediction`.

    The ids are the server's indices. Raises ValueError unless they are the numbers from 0 on, because the server
    rejects a file with others, or scores it wrongly.
    """
    ids = [str(row["id"]) for row in predictions]
    if not all(id.isdecimal() for id in ids) or sorted(map(int, ids)) != list(range(len(ids))):
        raise ValueError(
            f"task {task.name}: the server wants predictions for the indices 0 to {len(ids) - 1}, each once, but "
            f"the ids of the test set are others (the first: {', '.join(ids[:3])}): use the benchmark's own, complete "
            "test file"
        )
    lines = [
        f"{row['id']}\t{_cell(task, row['prediction'])}" for row in sorted(predictions, key=lambda row: int(row["id"]))
    ]
    return "\n".join([HEADER, *lines]) + "\n"


def lines(task: Task, predictions: Sequence[Mapping[str, Any]]) -> str:
    """Return the content of a test set's file for SuperGLUE's server, JSON lines sorted by id.

    A line is {"idx": id, "label": prediction}; the answers of MultiRC, with ids such as 3-12-50, are nested by passage
    and question. Labels are names of classes; the number of the chosen sentence (COPA); or a text (ReCoRD), which
    `prediction` has to be.

    Raises ValueError unless the ids are whole numbers (of MultiRC three each), each once.
    """
    parts = 3 if task.form == "multirc" else 1  # of an id: MultiRC's name passage, question and answer
    keys = [str(row["id"]).split("-") for row in predictions]
    if not all(len(key) == parts and all(part.isdecimal() for part in key) for key in keys) or len(
        {*map(tuple, keys)}
    ) < len(keys):
        raise ValueError(
            f"task {task.name}: the server wants predictions for the test file's own idx, each once, but the ids are "
            f"others (the first: {', '.join(str(row['id']) for row in predictions[:3])}): use the benchmark's own, "
            "complete test file"
        )
    rows = sorted((tuple(map(int, key)), row["prediction"]) for key, row in zip(keys, predictions, strict=True))
    if parts == 1:
        records = [{"idx": id, "label": _label(task, prediction)} for (id,), prediction in rows]
    else:
        records = _nested(rows)
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in records)


def _nested(rows: Sequence[tuple[tuple[int, ...], int]]) -> list[dict[str, Any]]:
    passages: dict[int, dict[int, list[dict[str, int]]]] = {}
    for (passage, question, answer), prediction in rows:
        passages.setdefault(passage, {}).setdefault(question, []).append({"idx": answer, "label": prediction})
    return [
        {
            "idx": passage,
            "passage": {
                "questions": [{"idx": question, "answers": answers} for question, answers in questions.items()]
            },
        }
        for passage, questions in passages.items()
    ]


def _label(task: Task, prediction: Any) -> Any:
    if not task.labels:
        return prediction
    name = task.labels[prediction]
    return name.capitalize() if task.name in CAPITALISED else name


def _cell(task: Task, prediction: Any) -> str:
    if task.kind == "regression":
        low, high = task.span
        return f"{min(max(prediction, low), high):.3f}"
    return task.labels[prediction] if task.name in IN_WORDS else str(prediction)


def write(directory: epath.Path, task: Task, split: str, predictions: Sequence[Mapping[str, Any]]) -> str | None:
    """Write a split's file for the (Super)GLUE server; return a note for the report, None if no server has the split.

    If neither GLUE nor SuperGLUE has the split, no file is written. If the server would reject the ids, no file is
    written, and the sentence says why.
    """
    key = task.name, split
    if key not in FILES and key not in SUPERGLUE:
        return None
    name = f"{FILES[key]}.tsv" if key in FILES else f"{SUPERGLUE[key]}.jsonl"
    try:
        text = table(task, predictions) if key in FILES else lines(task, predictions)
    except ValueError as error:
        return f"no {name}: {error}"
    directory.mkdir(parents=True, exist_ok=True)
    storage.write_whole(directory / name, text)
    return f"{directory.name}/{name} has the {len(predictions)} predictions of {split}"


def write_all(directory: epath.Path, chosen: Chosen) -> list[str]:
    """Write a task's files for the servers of GLUE and SuperGLUE; return a sentence about each file for the report.

    The predictions are those of the ensemble of all seeds' models at the chosen point.
    """
    notes: list[str | None] = []
    if chosen.task.name not in catalogue.TASKS:  # a custom task, for which there is no server
        return []
    for split, predicted in chosen.predicted.items():
        task, rows = catalogue.find(chosen.task.name), predicted.together()
        is_asked_for = (task.name, split) in FILES or (task.name, split) in SUPERGLUE
        if rows and is_asked_for and (skipped := predicted.examples.skipped):
            # The ids that are left do not show that some are missing.
            notes.append(f"no file for the server of {split}: {skipped} malformed rows of it were left out")
            continue
        if task.labels and not chosen.task.labels and rows:  # classes were ranked
            rows = unranked(task, predicted, rows)
        elif task.form == "record":  # the server wants the text of the entity
            rows = [
                {"id": row["id"], "prediction": example.names[row["prediction"]]}
                for example, row in zip(predicted.examples, rows, strict=True)
            ]
        notes.append(write(directory, task, split, rows) if rows else None)
    return [note for note in notes if note]


def unranked(task: Task, predicted: SplitPredictions, rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Convert the candidate ranked first for each text to the predicted class of each pair of text and candidate.

    The classes are dicts with `id` and `prediction`. The chosen candidate gets the right label (entailment), the text's
    other candidates the other label.

    task: QNLI as classification.
    predicted: the examples, each a text with its candidates.
    rows: for each example, a dict whose `prediction` is the number of the chosen candidate.
    """
    right = task.labels.index(ranking.RIGHT)
    return [
        {"id": name, "prediction": right if number == row["prediction"] else 1 - right}
        for example, row in zip(predicted.examples, rows, strict=True)
        for number, name in enumerate(example.names)
    ]
