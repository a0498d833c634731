"""Probe the attention heads of models: what `ag-jax evaluate` and `ag-jax compare` do with the config `probe`."""

import csv
import dataclasses
import io
import os
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from ag_jax.api import calls, configs, tables
from ag_jax.api.configs import Settings
from ag_jax.api.model import Model, directory_of, step_of
from ag_jax.data.json_files import read_json
from ag_jax.finetuning import contents
from ag_jax.probing import comparison
from ag_jax.probing.config import ProbingConfig


@dataclasses.dataclass(frozen=True, repr=False)
class Probes:
    """The results of probes.

    workdir: directory of the results.
    report: path of the report, in Markdown, with figures of all heads.
    """

    workdir: epath.Path
    report: epath.Path

    @property
    def numbers(self) -> dict[str, Any]:
        """All numbers of the report."""
        return read_json(self.workdir / "report.json")

    @property
    def table(self) -> list[dict[str, Any]]:
        """The head that is chosen for each probe, a dict for each model; `pandas.DataFrame(probes.table)` is a table.

        `score` is the share of test queries that the head answers correctly, with its 95 % interval from `low` to
        `high`; the head was chosen on development queries. `chance` is the score of guessing. Layers and heads are
        counted from 0.
        """
        rows = []
        for probe, modes in self.numbers["probes"].items():
            for mode, numbers in modes.items():
                for model, kinds in numbers["arms"].items():
                    first, *_ = kinds["all"]  # of several seeds, the first
                    layer, head = first["head"]
                    place = {"probe": probe, "mode": mode, "model": model, "layer": layer, "head": head}
                    test, chance = first["test"], numbers["baselines"].get("chance", {}).get("all")
                    scores = {"score": test["mean"], "low": test["low"], "high": test["high"], "chance": chance}
                    rows.append(place | scores)
        return rows

    @property
    def heads(self) -> list[dict[str, Any]]:
        """The right and the total answers of every head, a dict for each head, kind of query and part of the data.

        Layers and heads are counted from 0. `model` is the model, and `seed` its number among several seeds.
        """
        text = (self.workdir / comparison.SCORES).read_text()
        # A head that ties shares one answer among the words, so that `right` need not be whole.
        kinds = {"right": float, **dict.fromkeys(("seed", "layer", "head", "guided", "total"), int)}
        rows = csv.DictReader(io.StringIO(text))
        return [{name: kinds.get(name, str)(value) for name, value in row.items()} for row in rows]

    def __repr__(self) -> str:
        lines = [f" {row['probe']}, {row['mode']}: {row['model']} {row['score']:.3f}" for row in self.table]
        return "\n".join([f"<ag_jax.Probes {self.workdir}", *lines]) + ">"

    def _repr_html_(self) -> str:
        return tables.to_html(self.table, f"Report: {self.report}")


def probe(
    models: Model | str | os.PathLike | Sequence[Model | str | os.PathLike],
    *,
    workdir: str | os.PathLike,
    data: Mapping[str, str | os.PathLike] | None = None,
    settings: Settings | None = None,
) -> Probes:
    """Ask every attention head of one or several models for words, such as the antecedent of a pronoun.

        probes = ag_jax.probe("runs/bert", workdir="runs/probes")
        probes.table

    A model with random weights is asked, too.

    models: a model or its directory, or a list of these, which are compared with the first.
    workdir: directory of the results. What is measured already is not measured again.
    data: the arguments of the config `probe`, such as {"coreference": "litbank/", "reflexives": "none"}. None asks for
        the antecedents of reflexive pronouns in generated sentences.
    settings: settings on top of the config, such as {"resamples": 9999}.

    Raises SettingsError for wrong data or settings.
    """
    every = [models] if isinstance(models, Model | str | os.PathLike) else list(models)
    steps = {step_of(model) for model in every}  # the config has one step for all models
    if len(steps) > 1:
        raise ValueError("expected models that are all opened at the newest or at one step: probe them one by one")
    arguments = {"checkpoint": ",".join(map(directory_of, every))}
    arguments |= {name: os.fspath(value) for name, value in (data or {}).items()}
    with calls.training("probe", None):
        base = configs.load("probe", {"step": steps.pop(), **(settings or {})}, ProbingConfig, arguments)
        directory = contents.output_directory(workdir, contents.PROBES)
        run = comparison.evaluate if len(every) == 1 else comparison.compare
        return Probes(directory, calls.written(run(base, directory), directory))
