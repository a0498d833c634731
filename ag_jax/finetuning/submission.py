"""Files of predictions for the GLUE server, one for each test set.

Names, header and labels are those of the server's sample_submission.zip (gluebenchmark.com).
"""

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
IN_WORDS = ("mnli", "qnli", "rte")  # tasks whose file has names of classes; the others have their numbers
HEADER = "index\tprediction"


def table(task: Task, predictions: Sequence[Mapping[str, Any]]) -> str:
    """Return the content of a test set's submission file, with a line for each prediction (a dict with `id` and
    `prediction`), sorted by id.

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
        f"{row['id']}\t{_shown(task, row['prediction'])}" for row in sorted(predictions, key=lambda row: int(row["id"]))
    ]
    return "\n".join([HEADER, *lines]) + "\n"


def _shown(task: Task, prediction: Any) -> str:
    if task.kind == "regression":
        low, high = task.span
        return f"{min(max(prediction, low), high):.3f}"
    return task.labels[prediction] if task.name in IN_WORDS else str(prediction)


def write(directory: epath.Path, task: Task, split: str, predictions: Sequence[Mapping[str, Any]]) -> str | None:
    """Write a split's file for the GLUE server and return a sentence for the report; None if GLUE lacks the split.

    The sentence names the file. If GLUE lacks the split, or if the server would reject the ids, no file is written; in
    the latter case the sentence says why.
    """
    name = FILES.get((task.name, split))
    if name is None:
        return None
    try:
        text = table(task, predictions)
    except ValueError as error:
        return f"no {name}.tsv: {error}"
    directory.mkdir(parents=True, exist_ok=True)
    storage.write_whole(directory / f"{name}.tsv", text)
    return f"{directory.name}/{name}.tsv has the {len(predictions)} predictions of {split}"


def write_all(directory: epath.Path, chosen: Chosen) -> list[str]:
    """Write a task's files for the GLUE server; return a sentence about each file for the report.

    The predictions are those of the ensemble of all seeds' models at the chosen point.
    """
    notes = []
    for split, predicted in chosen.predicted.items():
        task, rows = catalogue.find(chosen.task.name), predicted.together()
        if task.labels and not chosen.task.labels and rows:  # classes were ranked
            rows = unranked(task, predicted, rows)
        notes.append(write(directory, task, split, rows) if rows else None)
    return [note for note in notes if note]


def unranked(task: Task, predicted: SplitPredictions, rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return a class for each pair (text, candidate) of a task that was trained as ranking, from the candidate chosen
    for each text. The classes are dicts with `id` and `prediction`.

    The chosen candidate gets the right label (entailment), the text's other candidates the other label.

    task: QNLI or WNLI as classification.
    predicted: the examples, each a text with its candidates.
    rows: for each example, a dict whose `prediction` is the number of the chosen candidate.
    """
    right = task.labels.index(ranking.RIGHT[task.name])
    return [
        {"id": name, "prediction": right if number == row["prediction"] else 1 - right}
        for example, row in zip(predicted.examples, rows, strict=True)
        for number, name in enumerate(example.names)
    ]
