"""`ag-jax search`: train the points of the grids, each an ordinary run in a directory of its own, and write the report.

The same command resumes a search, and several processes that run it share the work.
"""

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from ag_jax.analysis.figures import search as figures
from ag_jax.analysis.report import Report
from ag_jax.data import pipeline
from ag_jax.distributed import hosts, lock, storage
from ag_jax.grid import run as grid
from ag_jax.grid import store
from ag_jax.grid.cells import Stage, Table
from ag_jax.pretraining import arms, build, comparable, mask_trace, run, run_directory, workloads
from ag_jax.pretraining import corpus as pretraining_corpus
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.pretraining.finished import BEST
from ag_jax.pretraining.report import first_step_below, settled_step
from ag_jax.pretraining.search import choose, points, report, states
from ag_jax.pretraining.search.choose import Result
from ag_jax.pretraining.search.points import Study
from ag_jax.pretraining.search.report import Threshold
from ag_jax.pretraining.search.states import LOSSES
from ag_jax.pretraining.training_cell import TrainingCell
from ag_jax.pretraining.workloads import VocabularyInfo
from ag_jax.settings.config_files import Config
from ag_jax.training import sharding
from ag_jax.training.checkpoint import saved_metrics, steps_in
from ag_jax.training.wandb_run import Labels

Cells = Mapping[tuple[int, int, int | None], TrainingCell]  # by number of the point, seed, and step of a rung


def search(base: Config, workdir: epath.PathLike, retry: bool = False) -> epath.Path | None:
    """Train or resume the runs of a search, and write its report; returns the path of `report.md`.

    The result is None if other processes train the last runs: the one that ends last writes the report.

    base: the config, whose section `search` has the grids.
    workdir: the directory of `report.md`, `search.json`, `best.json`, `figures/` and the runs, `ARM/POINT-seedN`.
        Processes that have the same one share the runs.
    retry: train the runs again that failed before.

    A run that diverges or needs too much memory is noted in its directory, and the search goes on with the next.
    Raises ValueError if every point failed.
    """
    study, workdir = points.study(base), storage.directory(workdir)
    study = points.with_steps(study, workdir, run_directory.is_begun)
    first_configs = {f"{point.arm}/{point.name}": next(iter(point.configs.values())) for point in study.points}
    study = dataclasses.replace(study, incomparable=tuple(comparable.warnings(first_configs, "points")))
    arms.announce([*study.overridden, *study.incomparable])
    cells = {
        (number, seed, until): TrainingCell(
            point.path(seed), config, Labels(group=workdir.name, tags=(point.arm,)), until=until
        )
        for number, point in enumerate(study.points)
        for seed, config in point.configs.items()
        for until in (*study.rung_steps(point), None)
    }
    hosts.from_first("the run directories", functools.partial(_check, study, workdir, retry))
    plan = functools.partial(_ready, study, cells)
    _check_rows(plan(grid.stored(plan, workdir, retry)).cells)
    # The best point is not known until the end; the file may be of a smaller grid.
    hosts.from_first("the best point", functools.partial((workdir / BEST).unlink, missing_ok=True))
    table = grid.run(plan, workdir, retry=retry)
    if table is None:
        return None
    if failed := sum(not result.is_done for result in table.values()):
        hosts.tell(f"{failed} runs failed and are not trained again: --retry trains them")
    with lock.hold(workdir / lock.FILE, wait=True):  # processes that shared the runs may write it at the same time
        # On all hosts together, because the search fails on all of them if every point failed.
        hosts.from_first("the report", functools.partial(_report, study, table, workdir))
    return workdir / "report.md"


def _ready(study: Study, cells: Cells, table: Table) -> Stage:
    """Return the runs that successive halving trains next, each to a rung or to its end."""
    next_runs, _ = choose.halved(study, states.of_results(study, table))
    ready = [cells[one.number, one.seed, one.until] for one in next_runs]
    return Stage(ready, is_last=all(one.until is None for one in next_runs), known=list(cells.values()))


def _report(study: Study, table: Table, workdir: epath.Path) -> None:
    """Write the report of a search and the files beside it; then raise ValueError if every point failed."""
    results = _write(study, table, workdir)
    if all(result.status == "failed" for result in results):
        reasons = "\n".join(
            f"  {result.point.arm}/{result.point.name}: {next(iter(result.failures.values()))}" for result in results
        )
        raise ValueError(
            f"every point of {workdir} failed:\n{reasons}\nChange the settings that made the runs fail, or train "
            "them again with --retry"
        )


def _check(study: Study, workdir: epath.Path, retry: bool) -> None:
    """Raise ValueError if a run of the search cannot be resumed or compared with the others.

    That is so if a run directory holds another run, the text of a run has changed, or a run would not measure
    `search.metric`.

    This is done before the first run is trained, so that a conflict shows now and not hours later. Nothing is written,
    because another process may be at work in these directories.

    retry: whether runs that failed are trained again.
    """
    _check_metric(study, workdir)
    checked = set()
    for point in study.points:
        for seed, config in point.configs.items():
            directory = point.directory(workdir, seed)
            steps = run_directory.check(config, directory)
            if steps not in (None, config.training.steps):  # `train` would extend it
                raise ValueError(
                    f"{directory} holds a run of {steps} steps, expected {config.training.steps}: points are compared "
                    "after runs of one length, so use that number of steps, or choose another --workdir"
                )
            if run_directory.is_begun(directory):
                pretraining_corpus.check_files(config, directory)
            elif config.translates and (config.data, config.translation) not in checked:
                checked.add((config.data, config.translation))
                pretraining_corpus.check_tests(config)
            if retry or not store.path_of(directory).exists():
                _check_rungs(study.rung_steps(point), directory)


def _check_rows(cells: Sequence[Any]) -> None:
    """Raise ValueError if the devices cannot divide the batches of a run."""
    for cell in cells:
        try:
            build.check_rows(cell.config, sharding.make_mesh(cell.config.mesh))
        except ValueError as error:
            raise ValueError(f"{cell.path} cannot be trained: {error}") from error


def _check_metric(study: Study, workdir: epath.Path) -> None:
    """Raise ValueError, listing the available metrics, if a run of the search would not measure `search.metric`.

    What is measured after the last step is also measured at rungs.
    """
    metric = study.search.metric
    if metric in LOSSES:
        return
    checked = set()
    for point in study.points:
        seed, config = next(iter(point.configs.items()))
        if (static := build.static_settings(config)) in checked:
            continue
        checked.add(static)
        # The names of metrics do not depend on the tokenizer, which may have to be trained first.
        vocabulary = VocabularyInfo(config.model.vocabulary_size or config.data.tokenizer.vocabulary_size)
        trace = mask_trace.of_run(config.adversarial, config.model.layers, point.directory(workdir, seed))
        program = build.make_program(config, vocabulary, sharding.make_mesh(config.mesh), trace)
        names = run.evaluation_metrics(config, program)
        if metric not in names:
            raise ValueError(
                f"search.metric={metric} is no number that the runs of {point.arm}/{point.name} measure: expected one "
                f"of {', '.join((*LOSSES, *names))}"
            )


def _check_rungs(rungs: Sequence[int], directory: epath.Path) -> None:
    """Raise ValueError if an unfinished run is past a step at which its metrics should have been stored for comparison.

    A comparison with its present numbers would not be fair to the others.
    """
    newest = max(steps_in(directory / "checkpoints"), default=0)
    if missed := [step for step in rungs if step < newest and not store.path_of(directory, step).exists()]:
        raise ValueError(
            f"{directory} is at step {newest}, and its losses at the rung at step {missed[0]} are not known, because "
            "it was trained with other search.rungs: use those, or choose another --workdir"
        )


def _write(study: Study, table: Table, workdir: epath.Path) -> list[Result]:
    """Write `best.json`, `search.json` and the report; return the results of the points."""
    workdir.mkdir(parents=True, exist_ok=True)
    plateaus: dict[Any, float] = {}
    runs = states.of_results(study, table)
    results = choose.results_of(study, runs)
    thresholds = {
        (number, seed): _threshold(config, point.directory(workdir, seed), plateaus)
        for number, point in enumerate(study.points)
        for seed, config in point.configs.items()
        if runs[number, seed].measured is not None
    }
    numbers = report.numbers(study, results, runs, thresholds)
    storage.write_whole(workdir / BEST, json.dumps(choose.best_json(study, results), indent=2) + "\n")
    images = dict(figures.heat_maps(report.heat_maps(study, results), workdir / "figures"))
    sections, warnings = report.sections(study, results, numbers, images), [*study.overridden, *study.incomparable]
    Report(f"Search: {study.title}", study.command, numbers, sections, warnings).write(workdir, "search.json")
    return results


def _threshold(config: ExperimentConfig, directory: epath.Path, plateaus: dict[Any, float]) -> Threshold:
    """Return the `Threshold` of a run: the loss that ends its early plateau, and the steps at which its losses fell.

    `Threshold.loss` is the bound for the validation loss, and `Threshold.step` the first step at which the train loss
    was below the same for training. The two bounds differ in replaced-token detection if validation masks another share
    than training.

    plateaus: the plateau loss of each text, which is computed once for all runs on it.
    """
    primary = workloads.workload_of(config).primary_metric

    def end(of: ExperimentConfig) -> float:
        text = of.data, of.replaced_tokens
        if text not in plateaus:
            plateaus[text] = plateau_loss(of, directory)
        return plateaus[text] - primary.margin

    data = dataclasses.replace(config.data, masking=config.data.masking.for_evaluation)
    rows = saved_metrics(directory) if (directory / "metrics.jsonl").exists() else []
    step = first_step_below(rows, end(config), primary.metric)
    return Threshold(end(dataclasses.replace(config, data=data)), step, settled_step(rows))


def plateau_loss(config: ExperimentConfig, directory: epath.Path) -> float:
    """Return the loss of the best guess without context, on the training text of the run in `directory`."""
    corpus = pipeline.prepare(pretraining_corpus.with_own_tokenizer(config.data, directory))
    return workloads.workload_of(config).plateau_loss(config, corpus)
