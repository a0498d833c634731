"""Choice among the points of a search: successive halving, ranking, and the best settings in `best.json`."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from ag_jax.pretraining.search.points import Point, Study
from ag_jax.pretraining.search.states import Numbers, RunState, States
from ag_jax.settings import schema
from ag_jax.training.criterion import Criterion

Status = Literal["done", "failed", "stopped"]


@dataclasses.dataclass(frozen=True)
class NextRun:
    """A run that a search trains next, with the step at which this run pauses.

    number: number of the point.
    seed: seed of the run.
    until: step to which it is trained now; None trains to the last step.
    """

    number: int
    seed: int
    until: int | None


def _cost_at(of_seeds: Sequence[RunState], step: int, by: Criterion) -> float | None:
    """Return the cost (lower is better) of a search point at a step, from a metric's mean over seeds; None if unknown.

    It is infinite if a seed failed or did not measure the metric.

    by: the metric.
    """
    if any(state.failure is not None for state in of_seeds):
        return math.inf
    rung_numbers = [state.rungs[str(step)] for state in of_seeds if str(step) in state.rungs]
    if len(rung_numbers) < len(of_seeds):
        return None
    cost = by.cost(_means(rung_numbers)[by.metric])
    return cost if math.isfinite(cost) else math.inf


def _of_point(study: Study, states: States, number: int) -> list[RunState]:
    return [states[number, seed] for seed in study.points[number].configs]


def halved(study: Study, states: States) -> tuple[list[NextRun], dict[int, int]]:
    """Return (runs to train next, {number of a point: step at which successive halving stopped it}) of a search.

    At each rung, the points of an arm that are better by `search.metric` go on, half of them rounded up. A point that
    failed or did not measure the metric counts as the worst; a point that an earlier search without rungs trained to
    the end is not compared and not stopped. The runs of an arm whose rung is not decided, because a run has not come
    that far, are trained to this rung. So are the other seeds of a point that failed with one seed: with --retry that
    seed may still come to the rung.
    """
    by = Criterion.of_objective(study.search.metric)
    next_runs: list[NextRun] = []
    stopped: dict[int, int] = {}
    for numbers in study.arms.values():
        alive, waiting = list(numbers), None
        for rung, _ in enumerate(study.search.rungs):
            steps = {number: study.rung_steps(study.points[number])[rung] for number in alive}
            costs = {number: _cost_at(_of_point(study, states, number), steps[number], by) for number in alive}
            missing = [
                NextRun(number, seed, steps[number])
                for number in costs
                for seed in study.points[number].configs
                if not states[number, seed].is_over and str(steps[number]) not in states[number, seed].rungs
            ]
            if missing:  # half of the points cannot be chosen before all are measured
                waiting = missing
                break
            compared = sorted((cost, number) for number, cost in costs.items() if cost is not None)
            worse = {number for _, number in compared[math.ceil(len(compared) / 2) :]}
            stopped |= {number: steps[number] for number in worse}
            # Points without a cost, which an earlier search trained to the end, stay alive beside the better half.
            alive = [number for number in alive if number not in worse]
        if waiting is None:
            waiting = [
                NextRun(number, seed, None)
                for number in alive
                for seed in study.points[number].configs
                if not states[number, seed].is_over
            ]
        next_runs += waiting
    return next_runs, stopped


@dataclasses.dataclass(frozen=True)
class Result:
    """Status of a point of the search, with the means over seeds of the losses and metrics of its runs.

    point: the point.
    status: `done` (all seeds), `failed` (at least one seed), or `stopped` by halving.
    measured: mean of each loss and of `search.metric` over the seeds, after the last step or after that at which the
        point was stopped, with None for a metric that a seed did not measure; empty if it failed.
    stopped_at: step after which halving stopped the point.
    failures: why runs failed, by seed.
    diverged: whether it failed because the run of at least one seed diverged.
    """

    point: Point
    status: Status
    measured: Numbers
    stopped_at: int | None
    failures: dict[int, str]
    diverged: bool = False


def results_of(study: Study, states: States) -> list[Result]:
    """Return the result of each point of a search whose runs are all done, in the order of the points."""
    _, stopped = halved(study, states)
    of_points = []
    for number, point in enumerate(study.points):
        of_seeds, step, measured = _of_point(study, states, number), None, {}
        failures = {seed: reason for seed in point.configs if (reason := states[number, seed].failure) is not None}
        measurements = [state.measured for state in of_seeds if state.measured is not None]
        if failures:
            status = "failed"
        elif number in stopped and len(measurements) < len(of_seeds):
            step = stopped[number]
            status, measured = "stopped", _means([state.rungs[str(step)] for state in of_seeds])
        else:
            status, measured = "done", _means(measurements)
        diverged = any(state.diverged for state in of_seeds)
        of_points.append(Result(point, status, measured, step, failures, diverged))  # type: ignore[arg-type]
    return of_points


def _means(of_seeds: Sequence[Numbers]) -> Numbers:
    """Return {name: mean over the seeds of a point} of losses and metrics; None for one that a seed did not measure."""
    means: Numbers = {}
    for name in of_seeds[0]:
        values = [value for numbers in of_seeds if (value := numbers[name]) is not None]
        means[name] = sum(values) / len(values) if len(values) == len(of_seeds) else None
    return means


def ranked(results: Sequence[Result], metric: str) -> list[Result]:
    """Return the results of the points of a search from the best to the worst by a metric; ties keep their order.

    First those that are done, by the metric, and last of these those that did not measure it; then those that were
    stopped, the later the better; then those that failed.
    """

    by = Criterion.of_objective(metric)

    def key(result: Result) -> tuple[float, ...]:
        group = ("done", "stopped", "failed").index(result.status)
        return group, -(result.stopped_at or 0), by.cost(result.measured.get(metric))

    return sorted(results, key=key)


def best(results: Sequence[Result], metric: str) -> Result | None:
    """Return the result of the best point by a metric among points that are done and measured it; None without any.

    Of equal points, it is the first.
    """
    first = next(iter(ranked(results, metric)), None)
    is_known = first is not None and first.status == "done" and first.measured[metric] is not None
    return first if is_known else None


def by_arm(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Return {arm: results of its points, in their order} of a search."""
    arms: dict[str, list[Result]] = {}
    for result in results:
        arms.setdefault(result.point.arm, []).append(result)
    return arms


def best_json(study: Study, results: Sequence[Result]) -> dict[str, Any]:
    """Return the content of `best.json`: the best point of each arm, with its settings and metric.

    Its settings are all that the grid of any arm searches: those that the grid of its own arm lacks have the value with
    which the point was trained, so that another config does not put its own in their place.
    """
    searched = dict.fromkeys(setting for point in study.points for setting in point.settings)
    arms: dict[str, Any] = {}
    for arm, of_arm in by_arm(results).items():
        if (winner := best(of_arm, study.search.metric)) is not None:
            trained = schema.flat(schema.to_dict(next(iter(winner.point.configs.values()))))
            arms[arm] = {
                "point": winner.point.name,
                "settings": {setting: trained[setting] for setting in searched},
                study.search.metric: winner.measured[study.search.metric],
                "chosen_among": len(of_arm),
            }
    of_file = {"command": study.command, "arguments": dict(study.arguments)}
    return {**of_file, "metric": study.search.metric, "arms": arms}


def values_of(results: Sequence[Result]) -> Iterator[tuple[str, list[Any]]]:
    """Yield (setting, list of its values) for each setting that takes several values among the points of an arm."""
    for setting in results[0].point.settings:
        values = list(dict.fromkeys(result.point.settings[setting] for result in results))
        if len(values) > 1:
            yield setting, values
