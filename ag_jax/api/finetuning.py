"""Fine-tune a model on labelled data: what `ag-jax finetune` does with the config `finetune/own`."""

import dataclasses
import functools
import html
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from etils import epath

from ag_jax.api import calls, configs, tables, texts
from ag_jax.api.configs import Settings
from ag_jax.api.model import Model, directory_of, load, step_of
from ag_jax.api.texts import Texts
from ag_jax.data.json_files import read_json
from ag_jax.data.tasks import label_sets
from ag_jax.distributed.terminal import Progress
from ag_jax.finetuning import comparison, contents, trial
from ag_jax.finetuning.config import FinetuningConfig

TASK = "own"  # name of the task in the config and in the directory


@dataclasses.dataclass(frozen=True, repr=False)
class Suite:
    """The models that were fine-tuned on a task, one for each seed.

    workdir: its directory.
    report: path of the report, in Markdown.
    """

    workdir: epath.Path
    report: epath.Path

    @functools.cached_property
    def best(self) -> Model:
        """The model with the best validation score."""
        return load(self.workdir)

    @property
    def numbers(self) -> dict[str, Any]:
        """All numbers of the report."""
        return read_json(self.workdir / "report.json")

    @property
    def scores(self) -> list[dict[str, Any]]:
        """The metrics of each model, a dict for each seed and split; `pandas.DataFrame(suite.scores)` is a table."""
        splits = self.numbers["tasks"][TASK]["arms"][comparison.ALONE]["splits"]
        return [
            {"split": split, "seed": seed} | {name: of_metric["values"][place] for name, of_metric in metrics.items()}
            for split, metrics in splits.items()
            for place, seed in enumerate(self.numbers["seeds"])
        ]

    @property
    def predictions(self) -> dict[str, list[dict[str, Any]]]:
        """The predictions of the best model, {split: rows}, for `validation` and, if there are test data, `test`.

        A row has the `id` of the example, by default its number from 0, and the `prediction`, with the labels' type; of
        a multi-label task it is a list of labels.
        """
        directory = self.best.directory
        result: Any = trial.read(directory)
        rows = {split: trial.predictions(directory, result, split) for split in result.artifacts}
        return {split: [*map(self._prediction, of_split)] for split, of_split in rows.items()}

    def _prediction(self, row: Mapping[str, Any]) -> dict[str, Any]:
        label = self.best.label(row["class"]) if "class" in row else row["prediction"]
        if "classes" in row:
            label = [self.best.label(name) for name in row["classes"]]
        return {"id": int(row["id"]) if row["id"].isdecimal() else row["id"], "prediction": label}

    def __repr__(self) -> str:
        lines = [
            f" {row['split']}, seed {row['seed']}: "
            + ", ".join(f"{name} {_shown(value)}" for name, value in row.items() if name not in ("split", "seed"))
            for row in self.scores
        ]
        notes = [f" note: {note}" for note in self.numbers["tasks"][TASK].get("notes", [])[:2]]
        summary = [f" {sentence}" for sentence in self.numbers["summary"]]
        return "\n".join([f"<ag_jax.Suite {self.workdir}", *summary, *lines, *notes]) + ">"

    def _repr_html_(self) -> str:
        summary = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in self.numbers["summary"])
        return summary + tables.to_html(self.scores, f"Report: {self.report}")


def _shown(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def finetune(
    model: Model | str | os.PathLike,
    train: Texts | None,
    *,
    workdir: str | os.PathLike,
    validation: float | Texts | None = None,
    test: Texts | None = None,
    kind: str | None = None,
    text: str = "text",
    pair: str | None = None,
    label: str | Sequence[str] = "label",
    seeds: Sequence[int] = (0,),
    config: str = "finetune/own",
    settings: Settings | None = None,
    progress: Progress = None,
) -> Suite:
    """Fine-tune a model on labelled data, once for each seed; the same call resumes an interrupted one.

        suite = ag_jax.finetune("runs/bert", train=frame, workdir="runs/reviews", label="stars")
        suite.best.predict(["A warm and funny film."])

    model: a model, or its directory.
    train: the examples: a file, records, a dict of lists, or a data frame. Data in memory are written to
        `workdir/data`; None stands for those that an earlier call wrote there.
    workdir: directory of the models and the report.
    validation: examples for validation, or the share of `train` that is held out for it: 1/2, 1/3, and so on. None:
        those that an earlier call wrote to `workdir/data`, or else a tenth.
    test: examples that are only predicted, and scored if they have labels.
    kind: classification, multilabel, regression, choice, tagging or span. None: by the labels of data in memory, where
        a list is tagging if the text is a list of words, and else multilabel, a float regression, and anything else
        classification; for files classification. Several columns of labels are multilabel.
    text: name of the column with the text; of tagging with the list of words, of span with the context.
    pair: name of the column with the second text of a pair, or with the question.
    label: name of the column with the labels. Models predict labels of the type that they have there; texts, if they
        have several types. Of a multi-label task also a list of columns, each named like a label, with 0 and 1.
    seeds: seeds of the models.
    config: the config file, which may have further arguments: "finetune/own:scale=small" is for small models.
    settings: settings on top of the config, such as {"tasks.own.epochs": 3}.
    progress: see `pretrain`.

    Raises SettingsError for wrong settings, ValueError or OSError for data that cannot be used, and KeyboardInterrupt,
    with everything saved, if it is interrupted.
    """
    with calls.training("finetune", progress):
        if isinstance(seeds, int):
            raise ValueError(f"seeds must be a list of seeds, got {seeds}: give seeds=({seeds},), or range({seeds})")
        directory = contents.output_directory(workdir, contents.SUITE)
        opened_at = {} if step_of(model) is None else {"step": step_of(model)}
        settings = {"seeds": list(seeds), **opened_at, **(settings or {})}
        choices = settings.get(f"tasks.{TASK}.custom.choices", ())
        label, label_columns, kind = _label_columns(label, kind)
        columns = [str(name) for name in (text, pair, *choices, *label_columns, "is_impossible") if name is not None]
        sources = {
            "train": texts.source(train, directory, "train", columns, ("is_impossible",)),
            "test": texts.source(test, directory, "test", columns, ("is_impossible", *label_columns)),
        }
        # The config holds out one example in N, by a hash of the texts: other shares cannot be had.
        share = validation if isinstance(validation, int | float) else None
        if share is None:
            examples: Any = validation
            sources["validation"] = texts.source(examples, directory, "validation", columns, ("is_impossible",))
        elif not 0 < share <= 0.5 or abs(share * round(1 / share) - 1) > 0.01:
            raise ValueError(f"validation must be examples, or a share such as 1/2, 1/3 or 1/10, got {validation}")
        if sources["train"] is None:
            raise ValueError("expected examples to train on, got None: give a file, records, or a data frame")
        if kind is None and not isinstance(train, str | os.PathLike):
            kind = _kind(sources["train"], str(text), label)
        arguments: dict[str, Any] = {"checkpoint": directory_of(model), "text": str(text), "label": label}
        arguments |= {"second": None if pair is None else str(pair), **sources}
        arguments |= {} if kind is None else {"kind": kind}
        arguments |= {} if share is None else {"held_out": round(1 / share)}
        arguments |= {"choices": tuple(choices)} if choices else {}
        # As values, because a name or a path with a comma or an equals sign cannot be typed as an argument.
        base = configs.load(config, settings, FinetuningConfig, arguments)
        path = calls.written(comparison.finetune(base, directory), directory)
    return Suite(directory, path)


def _label_columns(label: str | Sequence[str], kind: str | None) -> tuple[str, list[str], str | None]:
    """Return the setting `label`, the columns that it names, and the kind, which several columns decide."""
    if isinstance(label, str) or not isinstance(label, Iterable):
        columns = label_sets.columns_of(str(label)) if kind == "multilabel" else (str(label),)
        return str(label), [*columns], kind
    columns = tuple(map(str, label))
    if label_sets.columns_of(",".join(columns)) != columns:
        raise ValueError(f"label must be names of columns without commas, got {columns}: rename the columns")
    return ",".join(columns), [*columns], kind or "multilabel"


def _kind(file: str, text: str, label: str) -> str:
    """Return the kind of task that the labels of a file of data in memory belong to; the first list decides."""
    with epath.Path(file).open() as lines:
        records = [json.loads(line) for line in lines]
    labels = [record[label] for record in records if record[label] is not None]
    types = {*map(type, labels)}
    # An empty list says nothing about what is in others.
    value: Any = next((one for one in labels if isinstance(one, list) and one), [] if list in types else None)
    if value is None:
        numbers = float in types and types <= {int, float}
        return "regression" if numbers else "span" if dict in types else "classification"
    if not any(isinstance(item, dict) for item in value) and not isinstance(records[0][text], list):
        return "multilabel"
    if any(isinstance(item, int) for item in value):
        raise ValueError(
            f"expected tags as texts, such as B-PER, got numbers in the column {label!r}: give their names"
        )
    return "tagging" if all(isinstance(item, str) for item in value) else "span"
