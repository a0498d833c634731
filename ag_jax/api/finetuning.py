"""Fine-tune a model on labelled data: what `ag-jax finetune` does with the config `finetune/own`."""

import dataclasses
import functools
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from ag_jax.api import configs, tables, texts
from ag_jax.api.calls import training
from ag_jax.api.configs import Settings
from ag_jax.api.model import Model, directory_of, load
from ag_jax.api.texts import Texts
from ag_jax.data.json_files import read_json
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

        A row has the number of the example from 0 as `id`, and the `prediction`, of the type of the labels.
        """
        directory = self.best.directory
        result = trial.read(directory)
        if result is None:
            raise FileNotFoundError(f"{directory} has no result: fine-tune the model again")
        rows = {split: trial.predictions(directory, result, split) for split in result.artifacts}
        return {split: [*map(self._prediction, of_split)] for split, of_split in rows.items()}

    def _prediction(self, row: Mapping[str, Any]) -> dict[str, Any]:
        label = self.best.label(row["class"]) if "class" in row else row["prediction"]
        return {"id": row["id"], "prediction": label}

    def __repr__(self) -> str:
        lines = [" " + ", ".join(f"{name} {_shown(value)}" for name, value in row.items()) for row in self.scores]
        return "\n".join([f"<ag_jax.Suite {self.workdir}", *lines]) + ">"

    def _repr_html_(self) -> str:
        return tables.to_html(self.scores, f"Report: {self.report}")


def _shown(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def finetune(
    model: Model | str | os.PathLike,
    train: Texts,
    *,
    workdir: str | os.PathLike,
    validation: float | Texts = 0.1,
    test: Texts | None = None,
    kind: str | None = None,
    text: str = "text",
    pair: str | None = None,
    label: str = "label",
    seeds: Sequence[int] = (0,),
    config: str = "finetune/own",
    settings: Settings | None = None,
    progress: Progress = None,
) -> Suite:
    """Fine-tune a model on labelled data, once for each seed; the same call resumes an interrupted one.

        suite = ag_jax.finetune("runs/bert", train=frame, workdir="runs/reviews", text="review", label="stars")
        suite.best.predict(["A warm and funny film."])

    model: a model, its directory, or its name on the Hugging Face hub after `ag-jax import`.
    train: the examples: a file, records, a dict of lists, or a data frame. Data in memory are written to
        `workdir/data`.
    workdir: directory of the models and the report.
    validation: examples for validation, or the share of `train` that is held out for it.
    test: examples that are only predicted, and scored if they have labels.
    kind: classification, regression, choice, tagging or span. None: by the labels of data in memory, where a list is
        tagging, a float regression, and anything else classification; for files classification.
    text: name of the column with the text; of tagging with the list of words, of span with the context.
    pair: name of the column with the second text of a pair, or with the question.
    label: name of the column with the labels. Models predict labels of the type that they have there.
    seeds: seeds of the models.
    config: the config, with arguments of its own, such as "finetune/own:scale=small" for small models.
    settings: settings on top of it, such as {"tasks.own.epochs": 3}.
    progress: see `pretrain`.

    Raises SettingsError for wrong settings, ValueError or OSError for data that cannot be used, and KeyboardInterrupt,
    with everything saved, if it is interrupted.
    """
    with training("finetune", progress):
        directory = contents.output_directory(workdir, contents.SUITE)
        columns = [name for name in (text, pair, label) if name is not None]
        arguments = {"checkpoint": directory_of(model), "text": text, "second": pair, "label": label}
        arguments["train"] = texts.source(train, directory, "train", columns)
        if isinstance(validation, int | float):
            if not 0 < validation <= 0.5:
                raise ValueError(f"validation must be a share above 0 and at most 0.5, or examples, got {validation}")
            arguments["held_out"] = str(round(1 / validation))
        else:
            arguments["validation"] = texts.source(validation, directory, "validation", columns)
        if test is not None:
            arguments["test"] = texts.source(test, directory, "test", columns, optional=(label,))
        arguments["kind"] = kind or (None if isinstance(train, str | os.PathLike) else _kind(arguments["train"], label))
        items = [f"{name}={value}" for name, value in arguments.items() if value is not None]
        source = f"{config}{',' if ':' in config else ':'}{','.join(items)}"
        base = configs.load(source, {**(settings or {}), "seeds": list(seeds)}, FinetuningConfig)
        path = comparison.finetune(base, directory)
    if path is None:
        raise RuntimeError(f"other processes train the last models of {directory}: call again when they have ended")
    return Suite(directory, path)


def _kind(file: str | None, label: str) -> str:
    """Return the kind of task that the first label of a file of data in memory belongs to."""
    with epath.Path(str(file)).open() as lines:
        value = json.loads(next(lines))[label]
    if isinstance(value, list):
        return "tagging" if all(isinstance(item, str) for item in value) else "span"
    return {float: "regression", dict: "span"}.get(type(value), "classification")
