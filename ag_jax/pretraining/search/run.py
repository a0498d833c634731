"""`ag-jax search`: train the points of the grids, each an ordinary run in a directory of its own, and write the report.

The same command resumes a search. Several machines may share the work: with `--part=K/N` each trains every
N-th point, and all of them need the same --workdir.
"""

import dataclasses
import functools
import json
import time
from collections.abc import Sequence
from typing import Any

import jax
from etils import epath

from ag_jax.analysis.figures import search as figures
from ag_jax.data import pipeline
from ag_jax.distributed import hosts, storage
from ag_jax.distributed.parts import ALL, numbers_of, parse_part
from ag_jax.pretraining import arms, build, comparable, mask_trace, run, run_directory, workloads
from ag_jax.pretraining import corpus as pretraining_corpus
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.pretraining.finished import BEST
from ag_jax.pretraining.report import first_step_below, settled_step
from ag_jax.pretraining.search import choose, points, report, states
from ag_jax.pretraining.search.choose import NextRun, Result
from ag_jax.pretraining.search.points import Study
from ag_jax.pretraining.search.report import Threshold
from ag_jax.pretraining.search.states import FAILURE, LOSSES, States
from ag_jax.pretraining.workloads import VocabularyInfo
from ag_jax.settings.config_files import Config
from ag_jax.training import sharding
from ag_jax.training.checkpoint import saved_metrics, steps_in
from ag_jax.training.journal import NonFiniteError
from ag_jax.training.wandb_run import Labels

SHORT_OF_MEMORY = "RESOURCE_EXHAUSTED"  # how messages of JAX begin when memory is short


def search(base: Config, workdir: epath.PathLike, part: str | None = None, retry: bool = False) -> epath.Path:
    """Train or resume the runs of a search, and write its report; returns the path of `report.md`.

    base: the config, whose section `search` has the grids.
    workdir: the directory of `report.md`, `search.json`, `best.json`, `figures/` and the runs, `ARM/POINT-seedN`.
    part: `K/N` trains every N-th point from the K-th on; None trains all.
    retry: train the runs again that failed before.

    A run that diverges or needs too much memory is noted in its directory, and the search goes on with the next.
    Raises ValueError if every point failed, and if there are more parts than points.
    """
    share = ALL if part is None else parse_part(part)
    study, workdir = points.study(base), storage.directory(workdir)
    study = points.with_steps(study, workdir, run_directory.is_begun)
    first_configs = {f"{point.arm}/{point.name}": next(iter(point.configs.values())) for point in study.points}
    study = dataclasses.replace(study, incomparable=tuple(comparable.warnings(first_configs, "points")))
    arms.announce([*study.overridden, *study.incomparable])
    point_numbers = numbers_of(share, len(study.points), "points")
    hosts.from_first("the run directories", functools.partial(_check, study, workdir, point_numbers, retry))
    if failed := hosts.from_first("the failures", functools.partial(_failed, study, workdir, point_numbers, retry)):
        hosts.tell(f"{failed} runs failed before and are not trained again: --retry trains them")
    _train(study, workdir, point_numbers)
    # On all hosts together, because the search fails on all of them if every point failed.
    hosts.from_first("the report", functools.partial(_report, study, workdir))
    return workdir / "report.md"


def _report(study: Study, workdir: epath.Path) -> None:
    """Write the report of a search and the files beside it; then raise ValueError if every point failed."""
    results = _write(study, workdir)
    if all(result.status == "failed" for result in results):
        reasons = "\n".join(f"  {result.point.arm}/{result.point.name}: {_reason(result)}" for result in results)
        raise ValueError(
            f"every point of {workdir} failed:\n{reasons}\nChange the settings that made the runs fail, or train "
            "them again with --retry"
        )


def _reason(result: Result) -> str:
    return next(iter(result.failures.values()))


def _check(study: Study, workdir: epath.Path, point_numbers: set[int], retry: bool) -> None:
    """Raise ValueError if a run of the search cannot be trained, resumed or compared with the others.

    That is so if a run directory holds another run, the text of a run has changed, a run would not measure
    `search.metric`, or this process is to train a run whose batches its devices cannot divide.

    This is done before the first run is trained, so that a conflict shows now and not hours later. Nothing is written,
    because another machine may be at work in these directories.

    point_numbers: numbers of the points that this process trains.
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
            _check_rungs(study.rung_steps(point), config, directory, retry)
            if run_directory.is_begun(directory):
                pretraining_corpus.check_files(config, directory)
            elif config.translates and (config.data, config.translation) not in checked:
                checked.add((config.data, config.translation))
                pretraining_corpus.check_tests(config)
    _check_devices(study, workdir, point_numbers, retry)


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


def _check_devices(study: Study, workdir: epath.Path, point_numbers: set[int], retry: bool) -> None:
    """Raise ValueError if the batches of a run that is left to train cannot be split evenly over the devices."""
    runs = states.read_all(study, workdir, retry)
    _, stopped = choose.halved(study, runs)
    for number in sorted(point_numbers - stopped.keys()):
        point = study.points[number]
        for seed, config in point.configs.items():
            if runs[number, seed].is_over:
                continue
            try:
                build.check_rows(config, sharding.make_mesh(config.mesh))
            except ValueError as error:
                raise ValueError(f"{point.arm}/{point.name} cannot be trained: {error}") from error


def _check_rungs(rungs: Sequence[int], config: ExperimentConfig, directory: epath.Path, retry: bool) -> None:
    """Raise ValueError if an unfinished run is past a step at which its metrics should have been stored for comparison.

    A comparison with its present numbers would not be fair to the others.
    """
    if not rungs or (state := states.read(directory, config, retry)).is_over:
        return
    newest = max(steps_in(directory / "checkpoints"), default=0)
    if missed := [step for step in rungs if step < newest and str(step) not in state.rungs]:
        raise ValueError(
            f"{directory} is at step {newest}, and its {config.search.metric} at the rung at step {missed[0]} is not "
            "known, because it was trained with other search.rungs: use those, or choose another --workdir"
        )


def _failed(study: Study, workdir: epath.Path, point_numbers: set[int], retry: bool) -> int:
    """Return how many runs of the given points have failed before; with `retry`, forget these failures and return 0."""
    failed = 0
    for number in point_numbers:
        for seed, config in study.points[number].configs.items():
            directory = study.points[number].directory(workdir, seed)
            if retry:
                (directory / FAILURE).unlink(missing_ok=True)
            else:  # a finished run whose loss is not finite has no `failure.json`, and is not trained again
                failed += (directory / FAILURE).exists() and states.read(directory, config).failure is not None
    return failed


def _train(study: Study, workdir: epath.Path, point_numbers: set[int]) -> None:
    """Train the runs of the given points until none can be trained further, or for `search.stop_after` seconds."""
    began = time.monotonic()

    def read_next() -> list[list[int | None]]:
        next_runs, _ = choose.halved(study, states.read_all(study, workdir))
        if next_runs:  # the best point is not known; the file may be of a smaller grid
            (workdir / BEST).unlink(missing_ok=True)
        return [[one.number, one.seed, one.until] for one in next_runs]

    while next_runs := [NextRun(*values) for values in hosts.from_first("the runs to train", read_next)]:
        mine = [one for one in next_runs if one.number in point_numbers]
        if not mine:
            hosts.tell(
                f"{len(next_runs)} runs of other parts are not as far; if points are left for this part, run it again"
            )
            return
        for runs_left, next_run in zip(range(len(mine), 0, -1), mine, strict=True):
            limit = study.search.stop_after
            if limit is not None and hosts.from_first("the time", lambda: time.monotonic() - began) >= limit:
                hosts.tell(
                    f"search.stop_after={limit:g}: {runs_left} runs are left; run the same command again to go on"
                )
                return
            _run(study, workdir, next_run, f"{runs_left} to go")


def _run(study: Study, workdir: epath.Path, next_run: NextRun, runs_left: str) -> None:
    """Train one run to the step in `next_run`, and store its metrics at that step, or why it failed."""
    point = study.points[next_run.number]
    config, directory = point.configs[next_run.seed], point.directory(workdir, next_run.seed)
    name, metric = f"{point.arm}/{directory.name}", study.search.metric
    hosts.tell(f"{name}: to step {next_run.until or config.training.steps} ({runs_left})")
    try:
        summary = run.train(config, directory, Labels(group=workdir.name, tags=(point.arm,)), until=next_run.until)
    except NonFiniteError as error:
        failed, diverged = str(error), True
    except jax.errors.JaxRuntimeError as error:
        if SHORT_OF_MEMORY not in str(error) or hosts.count() > 1:  # the other hosts would wait for this one
            raise
        failed, diverged = f"{states.OUT_OF_MEMORY}: {error}", False
    else:
        if next_run.until is not None and summary["steps"] != next_run.until:
            # Another process has trained it further since, and has noted what it measured at the rung, unless it is
            # one with other rungs.
            rungs = [next_run.until]
            hosts.from_first("the rung", functools.partial(_check_rungs, rungs, config, directory, retry=False))
            hosts.tell(f"{name}: another process has it at step {summary['steps']} already")
            return
        numbers = states.numbers_of(summary)
        reason = None if next_run.until is None else states.not_finite(numbers, metric)
        if reason is None:
            if next_run.until is not None and hosts.is_first():
                states.write_rung(directory, next_run.until, numbers)
            hosts.tell(f"{name}: {metric} {report.decimals(numbers[metric], report.NOT_MEASURED)}")
            return
        failed, diverged = f"{reason} at step {next_run.until}", True
    if hosts.is_first():
        states.write_failure(directory, config, failed, diverged)
    hosts.tell(f"{name} failed: {failed}")


def _write(study: Study, workdir: epath.Path) -> list[Result]:
    """Write `search.json`, the report and, once every point is decided, `best.json`; return the results of the points.

    Another part may end at the same time. So the runs are read again after writing, and written again if they changed:
    whichever part writes last, everything is in the files.
    """
    workdir.mkdir(parents=True, exist_ok=True)
    plateaus: dict[Any, float] = {}
    runs: States | None = None
    while (now := states.read_all(study, workdir)) != runs:
        runs = now
        results = choose.results_of(study, runs)
        thresholds = {
            (number, seed): _threshold(config, point.directory(workdir, seed), plateaus)
            for number, point in enumerate(study.points)
            for seed, config in point.configs.items()
            if runs[number, seed].measured is not None
        }
        numbers = report.numbers(study, results, runs, thresholds)
        storage.write_whole(workdir / "search.json", json.dumps(numbers, indent=2) + "\n")
        if numbers["complete"]:
            storage.write_whole(workdir / BEST, json.dumps(choose.best_json(study, results), indent=2) + "\n")
        images = figures.heat_maps(report.heat_maps(study, results), workdir / "figures")
        storage.write_whole(workdir / "report.md", report.markdown(study, results, numbers, images) + "\n")
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
