"""Pre-train a model, or compare arms of a config: what `ag-jax train` and `ag-jax compare` do."""

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from ag_jax.api import calls, configs, tables
from ag_jax.api import texts as texts_in_memory
from ag_jax.api.configs import Config, Settings
from ag_jax.api.model import Model, directory_of, load, step_of
from ag_jax.api.texts import Texts
from ag_jax.data.config import DataConfig
from ag_jax.data.json_files import read_json
from ag_jax.distributed.terminal import Progress
from ag_jax.finetuning import contents
from ag_jax.pretraining import comparison, report, run_directory, words
from ag_jax.pretraining import run as training_run
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.settings.config_files import Config as ConfigFile
from ag_jax.training.metrics import read_metrics


@dataclasses.dataclass(frozen=True, repr=False)
class Run:
    """A trained run.

    workdir: its directory, which `load` and every verb of `ag-jax` open.
    """

    workdir: epath.Path

    @functools.cached_property
    def model(self) -> Model:
        """The model after the last step."""
        return load(self.workdir)

    @property
    def summary(self) -> dict[str, Any]:
        """The losses at the end: `train_loss`, `validation_loss`, `average_train_loss`, `steps`."""
        return run_directory.read_summary(self.workdir) or {}

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The metrics during training, a dict for each logged step; `pandas.DataFrame(run.metrics)` is a table."""
        return read_metrics(self.workdir)

    def evaluate(self, *, trust_code: bool = False) -> dict[str, Any]:
        """Return the metrics on all held-out text, as `ag-jax evaluate` prints them.

        trust_code: import the custom patterns that the run's files name; otherwise their metrics are left out.
        """
        return training_run.evaluate(self.workdir, trust_code=trust_code)

    def _repr_html_(self) -> str:
        shown = {name: self.summary[name] for name in ("steps", *report.MEASURES) if name in self.summary}
        return tables.to_html([shown] if shown else [], f"Run: {self.workdir}")

    def __repr__(self) -> str:
        return f"<ag_jax.Run {self.workdir}\n {_in_words(self.summary)}>"


def _in_words(summary: Mapping[str, Any]) -> str:
    if not summary:
        return "not finished"
    losses = f"loss {summary['train_loss']:.3f} train, {summary['validation_loss']:.3f} validation"
    return f"{summary['steps']:,} steps, {losses}"


def pretrain(
    config: Config,
    *,
    workdir: str | os.PathLike,
    texts: Texts | None = None,
    validation: Texts | None = None,
    initial: Model | str | os.PathLike | None = None,
    settings: Settings | None = None,
    progress: Progress = None,
) -> Run:
    """Pre-train an encoder, or train a model to translate; the same call resumes an interrupted run.

        run = ag_jax.pretrain("quickstart:arm=ag", workdir="runs/mine", texts=my_list_of_texts)
        run.model.fill_mask("The <mask> is strong.")

    config: a packaged config with its arguments, such as "quickstart:arm=ag", a config file, or a `ConfigDict`.
    workdir: directory of the run.
    texts: the text to train on: a file, a folder or another source (`data.source`), a list or another iterable of
        texts, or records or columns with the texts in the column `data.text_field`. Texts in memory are written to
        `workdir/data`. None: those that an earlier call wrote there, or else as the config says.
    validation: the text for validation, likewise; None holds out a part of the text.
    initial: a model, or its directory, from whose weights training starts.
    settings: settings on top of the config, such as {"training.steps": 60}.
    progress: False shows nothing, and a function gets each row of metrics, with the name of its run as "run"; None
        shows a bar.

    Raises SettingsError for a wrong config or setting, ValueError or OSError for data that cannot be used, and
    KeyboardInterrupt, with everything saved, if it is interrupted.
    """
    with calls.training("pretrain", progress):
        if initial is not None and step_of(initial) is not None:
            raise ValueError(
                f"training starts from the newest checkpoint of a run, got a model of step {step_of(initial)}: export "
                "that model, and give the directory of the export"
            )
        start = {} if initial is None else {"training.initial_weights": directory_of(initial)}
        base = configs.load(config, {**(settings or {}), **start}, ExperimentConfig)
        directory = contents.output_directory(workdir, contents.RUN)
        base = _with_texts(base, directory, texts, validation)
        words.check_flags(base.settings, base.overrides)
        training_run.train(base.settings, directory)
    return Run(directory)


def _with_texts(base: ConfigFile, workdir: epath.Path, train: Texts | None, validation: Texts | None) -> ConfigFile:
    """Return a config with the sources of the texts that Python gives, or gave in an earlier call."""
    data: DataConfig = base.settings.data
    columns = (data.source_field, data.target_field) if data.is_parallel else (data.text_field,)
    changes: dict[str, Any] = {}
    for side, name, given in (("", "train", train), ("validation_", "validation", validation)):
        source = texts_in_memory.source(given, workdir, name, columns)
        if source is not None:
            if base.overrides.get(f"data.{side}source") is not None:
                raise configs.SettingsError(
                    f"the {name} texts are {source}, and the settings name data.{side}source, too: leave out one of "
                    "them, or choose another workdir"
                )
            changes[f"data.{side}source"] = source
            if data.is_parallel and not isinstance(given, str | os.PathLike):  # records that hold both sides
                changes[f"data.{side}target"] = None
    return base.with_overrides(changes)


@dataclasses.dataclass(frozen=True, repr=False)
class Comparison:
    """A comparison of arms, each trained with every seed.

    workdir: its directory.
    runs: {(arm, seed): run}.
    report: path of the report, in Markdown, with figures.
    """

    workdir: epath.Path
    runs: Mapping[tuple[str, int], Run]
    report: epath.Path

    @property
    def table(self) -> list[dict[str, Any]]:
        """The losses of each run, a dict for each arm and seed; `pandas.DataFrame(comparison.table)` is a table."""
        return [
            {"arm": arm, "seed": seed, **{name: run.summary[name] for name in report.MEASURES}}
            for (arm, seed), run in self.runs.items()
        ]

    @property
    def numbers(self) -> dict[str, Any]:
        """All numbers of the report: means, deviations, differences with intervals and p-values."""
        return read_json(self.workdir / "report.json")

    def __repr__(self) -> str:
        lines = "\n".join(f" {arm}, seed {seed}: {_in_words(run.summary)}" for (arm, seed), run in self.runs.items())
        return f"<ag_jax.Comparison {self.workdir}\n{lines}>"

    def _repr_html_(self) -> str:
        return tables.to_html(self.table, f"Report: {self.report}")


def compare(
    config: str | os.PathLike,
    *,
    workdir: str | os.PathLike,
    arms: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    texts: Texts | None = None,
    validation: Texts | None = None,
    settings: Settings | None = None,
    progress: Progress = None,
) -> Comparison:
    """Train every arm of a config with every seed, and write a report; the same call resumes an interrupted one.

        comparison = ag_jax.compare("quickstart", workdir="runs/mine", texts="my_texts/", seeds=(0, 1, 2))
        comparison.table

    config: a packaged config or a config file, without its argument `arm`.
    workdir: directory of the report and the runs, `ARM-seedN`.
    arms: values of the config's argument `arm`, the baseline first; None: those that the config names.
    seeds: seeds with which each arm is trained; None: those of the config.
    texts, validation, settings, progress: see `pretrain`.

    Raises as `pretrain` does, and ValueError if a run failed.
    """
    with calls.training("compare", progress):
        chosen = arms if arms is None or isinstance(arms, str) else ",".join(arms)
        changes: dict[str, Any] = {} if chosen is None else {"comparison.arms": chosen}
        changes |= {} if seeds is None else {"comparison.seeds": seeds}
        base = configs.load(config, {**(settings or {}), **changes}, ExperimentConfig)
        directory = contents.output_directory(workdir, contents.COMPARISON)
        base = _with_texts(base, directory, texts, validation)
        with configs.errors():  # also of arms that contradict each other, before anything is trained
            of_arms, _ = comparison.arm_configs(base)
        path = calls.written(comparison.compare(base, directory), directory)
    return Comparison(directory, {(arm, seed): Run(directory / f"{arm}-seed{seed}") for arm, seed in of_arms}, path)
