"""The points of a search: one config for each combination of the values in the grids, checked before training."""

import dataclasses
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from etils import epath

from ag_jax.pretraining import arms, words, workloads
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.pretraining.search.config import SearchConfig
from ag_jax.settings import schema
from ag_jax.settings.config_files import Config

# How names of directories shorten settings; others have the last part of their name.
SHORT = {"optimizer.learning_rate": "lr", "optimizer.warmup_steps": "warmup", "training.batch_size": "bs"}
NOT_SEARCHED = ("title", "seed", "search.", "comparison.", "inspection.")


@dataclasses.dataclass(frozen=True)
class Point:
    """A point of a search: one value of each setting in the grid of an arm, with the config of each seed's run.

    arm: name of the arm.
    name: name of the point's directories, without seed.
    settings: value of each setting in the grid, {"section.key": value}.
    configs: the checked config of each seed's run.
    """

    arm: str
    name: str
    settings: Mapping[str, Any]
    configs: Mapping[int, ExperimentConfig]

    def path(self, seed: int) -> str:
        """Return the path of a seed's run directory below that of the search."""
        return f"{self.arm}/{self.name}-seed{seed}"

    def directory(self, workdir: epath.Path, seed: int) -> epath.Path:
        """Return the run directory of a seed; `workdir` is the directory of the search."""
        return workdir / self.path(seed)


@dataclasses.dataclass(frozen=True)
class Study:
    """A search of settings whose config has been checked, with all its points.

    title: title of the report.
    command: the command that runs it, without --workdir.
    arguments: value of each argument of the config file but `arm`, {name: value}.
    search: its settings.
    points: all points, in the order of the arms and of the grids.
    overridden: a sentence for each flag that overrides what the arms set.
    incomparable: a sentence for each setting in which points differ, so that their losses are of other tokens.
    """

    title: str
    command: str
    arguments: Mapping[str, Any]
    search: SearchConfig
    points: tuple[Point, ...]
    overridden: tuple[str, ...]
    incomparable: tuple[str, ...] = ()

    @property
    def arms(self) -> dict[str, list[int]]:
        """The indices of each arm's points in `points`, {arm: indices}."""
        numbers: dict[str, list[int]] = {}
        for number, point in enumerate(self.points):
            numbers.setdefault(point.arm, []).append(number)
        return numbers

    def rung_steps(self, point: Point) -> list[int]:
        """Return the steps at which a point is compared with the other points of its arm, and may be stopped."""
        return _rung_steps(self.search, next(iter(point.configs.values())))


def _rung_steps(search: SearchConfig, config: ExperimentConfig) -> list[int]:
    return [round(fraction * config.training.steps) for fraction in search.rungs]


def study(base: Config) -> Study:
    """Return the checked search that a config describes.

    Raises ValueError, before anything is trained, for a setting that does not exist, a value that is not allowed, and
    points or arms that are alike.
    """
    search = base.settings.search
    arms.check_seed(base.settings, search.seeds, "search.seeds")
    if not search.grids:
        raise ValueError(
            f"{base.source} has no grids to search: set search.grids in the config file, such as "
            'config.search.grids.ag = {"optimizer": {"learning_rate": (1e-3, 2e-3)}}'
        )
    arms.check_argument(base, "train")
    arguments = {name: value for name, value in base.arguments.items() if name != "arm"}
    of_arms = {arm: base.with_argument("arm", arm) if "arm" in base.arguments else base for arm in search.grids}
    points: list[Point] = []
    for arm, of_arm in of_arms.items():
        try:
            points += _points(arm, of_arm, search)
        except ValueError as error:
            raise ValueError(f"search.grids.{arm}: {error}") from error
    _check_arms(base.source, points)
    in_steps = [point for point in points if next(iter(point.configs.values())).training.words is None]
    _check_rungs(search, in_steps)
    command, overridden = arms.command("search", base), tuple(arms.overridden(of_arms))
    return Study(base.settings.title, command, arguments, search, tuple(points), overridden)


def _points(arm: str, base: Config, search: SearchConfig) -> list[Point]:
    grid = search.settings_of(arm)
    schema.check_names(base.values, grid)
    for setting in grid:
        if setting.startswith(NOT_SEARCHED):
            raise ValueError(f"{setting} cannot be searched: expected a setting that changes a run, and not its seed")
        if setting in base.overrides:
            raise ValueError(
                f"--config.{setting}={schema.shown(base.overrides[setting])} gives one value to a setting whose "
                f"values are searched: leave the flag out, or change search.grids.{arm}"
            )
    _check_length(base.settings.training.words, grid, base.overrides, search)
    common = {} if search.steps is None else {"training.steps": search.steps}
    labels, points_by_name = _labels(grid), {}
    for values in itertools.product(*grid.values()):
        settings = dict(zip(grid, values, strict=True))
        try:
            of_point = base.with_overrides(common | settings).settings
        except ValueError as error:
            texts = ", ".join(f"{setting}={schema.shown(value)}" for setting, value in settings.items())
            raise ValueError(f"{error} (at the point {texts})") from error
        configs = {seed: dataclasses.replace(of_point, seed=seed) for seed in search.seeds}
        # From the config, in which 1 is 1.0 where a setting is a number with a point.
        checked = schema.flat(schema.to_dict(of_point))
        settings = {setting: checked[setting] for setting in grid}
        name = "-".join(f"{labels[setting]}{_text(value)}" for setting, value in settings.items())
        if name in points_by_name:
            raise ValueError(
                f"two points would have the directory {name}: give each value once, and values that differ in letters, "
                "digits, dots or signs"
            )
        points_by_name[name] = Point(arm, name, settings, configs)
    _check_distinct(list(points_by_name.values()))
    return list(points_by_name.values())


def _check_length(
    in_words: int | None, grid: Mapping[str, Any], overrides: Mapping[str, Any], search: SearchConfig
) -> None:
    """Raise ValueError if more than one setting or flag of a search gives the length of its runs.

    in_words: `training.words` of the points, if it is not searched.
    """
    words.check_length(
        {
            "search.steps": search.steps is not None,
            "--config.training.steps": "training.steps" in overrides,
            "training.steps in search.grids": "training.steps" in grid,
            "training.words": in_words is not None or "training.words" in grid,
        }
    )


def with_steps(study: Study, workdir: epath.Path, is_begun: Callable[[epath.Path], bool]) -> Study:
    """Return the search with the number of steps that `training.words` allows set in the config of each run.

    workdir: the directory of the search.
    is_begun: whether a directory holds a run (`run.is_begun`).

    Raises ValueError if settings in words cannot be followed (`words.resolve`), and for a rung before the first logged
    row.
    """
    resolved = []
    for point in study.points:
        configs = {
            seed: words.resolve(config, point.directory(workdir, seed), is_begun)[0]
            for seed, config in point.configs.items()
        }
        resolved.append(dataclasses.replace(point, configs=configs))
    _check_rungs(study.search, resolved)
    return dataclasses.replace(study, points=tuple(resolved))


def _labels(settings: Sequence[str] | Mapping[str, Any]) -> dict[str, str]:
    """Return {setting: its name in directory names}: its last part, or the whole setting if that part is ambiguous."""
    last = {setting: SHORT.get(setting, setting.rpartition(".")[2]) for setting in settings}
    names = list(last.values())
    return {setting: name if names.count(name) == 1 else setting for setting, name in last.items()}


def _text(value: Any) -> str:
    """Return the value of a setting as a part of a directory name; floats are as short as possible without loss."""
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return re.sub(r"[^A-Za-z0-9.+_-]", "_", schema.shown(value))


def _in_effect(point: Point) -> str:
    """Return the effective settings of a point as JSON text, which is equal for points whose runs would be the same."""
    settings = schema.to_dict(next(iter(point.configs.values())).in_effect)
    flat = schema.flat({name: value for name, value in settings.items() if name != "search"})
    return json.dumps({key: value for key, value in flat.items() if key not in arms.NOT_COMPARED}, sort_keys=True)


def _check_distinct(points: Sequence[Point]) -> None:
    """Raise ValueError if two points of an arm would be the same run, because a setting has no effect."""
    first_points: dict[str, Point] = {}
    for point in points:
        other = first_points.setdefault(_in_effect(point), point)
        if other is not point:
            differ = [setting for setting, value in point.settings.items() if other.settings[setting] != value]
            raise ValueError(
                f"the points {other.name} and {point.name} are the same run, because {' and '.join(differ)} has no "
                "effect there: leave it out"
            )


def _check_arms(source: str, points: Sequence[Point]) -> None:
    """Raise ValueError if two arms of a search have the same points, or if arms are measured by different losses."""
    runs: dict[str, set[str]] = {}
    for point in points:
        runs.setdefault(point.arm, set()).add(_in_effect(point))
    for one, other in itertools.combinations(runs, 2):
        if runs[one] == runs[other]:
            raise ValueError(
                f"the arms {one} and {other} of {source} have the same points: change search.grids, or let the config "
                "file's argument arm change a setting"
            )
    configs = [config for point in points for config in point.configs.values()]
    measured = {workloads.workload_of(config).primary_metric.label for config in configs}
    if len(measured) > 1:
        raise ValueError(
            f"the points of {source} are measured by different losses ({', '.join(sorted(measured))}), which cannot be "
            "compared: search them one after the other"
        )


def _check_rungs(search: SearchConfig, points: Sequence[Point]) -> None:
    """Raise ValueError if the points of a search cannot be compared at a fraction of training in `search.rungs`.

    Before the first logged row, a run has no train loss, and the first step of a warm-up trains nothing.
    """
    for point in points:
        config = next(iter(point.configs.values()))
        training = config.training
        for name in ("time_limit", "patience"):
            if search.rungs and (value := getattr(training, name)):
                raise ValueError(
                    f"search.rungs compares runs after the same steps, and training.{name}={value} may end them "
                    "before: leave one of them out"
                )
        steps = _rung_steps(search, config)
        if len(set(steps)) < len(steps):
            raise ValueError(
                f"search.rungs={','.join(map(str, search.rungs))} of {training.steps} steps are the steps "
                f"{', '.join(map(str, steps))}: leave out those that come twice"
            )
        for fraction, step in zip(search.rungs, steps, strict=True):
            first = max(training.log_every, 2 if config.optimizer.warmup_steps else 1)
            if not first <= step < training.steps:
                raise ValueError(
                    f"search.rungs: {fraction} of {training.steps} steps is step {step}, expected one from step "
                    f"{first} (training.log_every={training.log_every}, "
                    f"optimizer.warmup_steps={config.optimizer.warmup_steps}) on and before the last step"
                )
