"""Suites: every task, point, seed and fold of a config is a trial in a directory of its own; what is done is not done again.

    WORKDIR/config.json, TASK/lr2e-05-bs32-seed0[-fold3]/, report.md, report.json, submission/; with arms WORKDIR/ARM/...
"""

import json
import shutil
import sys
from collections.abc import Iterator, Set
from typing import Any

from etils import epath

from ag_jax import configuration, finetuned, learner
from ag_jax.data.tasks import catalogue
from ag_jax.experiment import ExperimentConfig
from ag_jax.finetuning import choosing, report, results, trial, weights
from ag_jax.finetuning import splits as task_splits
from ag_jax.finetuning.choosing import Result
from ag_jax.finetuning.config import FinetuningConfig, Recipe
from ag_jax.finetuning.results import Chosen
from ag_jax.finetuning.splits import Splits
from ag_jax.finetuning.trial import TaskData, Trial
from ag_jax.training import storage

# Settings that change no trial that is done: a suite may go on with others, more tasks and a larger sweep included.
MAY_DIFFER = ("title", "arms", "seeds", "mesh.", "remat", "attention")
SWEPT = (".batch_sizes", ".learning_rates")


def trials(config: FinetuningConfig, task: str) -> Iterator[Trial]:
    """Every trial of a task: by point of its sweep, then by seed, then by fold."""
    recipe = config.tasks[task]
    for learning_rate, batch_size in recipe.points:
        for seed in config.seeds:
            for fold in range(recipe.folds) if recipe.folds else (None,):
                yield Trial(task, recipe, learning_rate, batch_size, seed, fold)


def directory_of(workdir: epath.Path, one: Trial) -> epath.Path:
    """Where a trial lies below the directory of its suite."""
    return workdir / one.task / one.name


def check_directory(config: FinetuningConfig, workdir: epath.Path) -> None:
    """Raise ValueError, with the settings that differ, if trials are done in the directory that were made with other settings."""
    path = workdir / "config.json"
    theirs = json.loads(path.read_text()) if path.exists() else {}
    if theirs and configuration.kind_of(theirs, (FinetuningConfig, ExperimentConfig)) is ExperimentConfig:
        raise ValueError(f"--workdir={workdir} holds a run of pre-training: choose another directory")
    ours = configuration.to_dict(config)
    begun = {name for name in theirs.get("tasks", ()) if any(is_done(done) for done in _directories(workdir / name))}
    if not begun:
        return
    there, here = (_comparable(values, begun & ours["tasks"].keys()) for values in (theirs, ours))
    different = [
        f"  {key}: there {there.get(key)!r}, now {here.get(key)!r}"
        for key in sorted(there | here)
        if there.get(key) != here.get(key) and not key.startswith(MAY_DIFFER) and not key.endswith(SWEPT)
    ]
    if different:
        raise ValueError(
            f"--workdir={workdir} holds trials with other settings:\n" + "\n".join(different) + "\n"
            "Go on with those, or choose another directory"
        )


def claim(config: FinetuningConfig, workdir: epath.Path) -> None:
    """Write `config.json`, with the tasks that an earlier suite in the directory had beside ours.

    Raises ValueError as `check_directory` does, or if the directory cannot be written.
    """
    check_directory(config, workdir)
    ours, path = configuration.to_dict(config), workdir / "config.json"
    if path.exists():
        ours["tasks"] = json.loads(path.read_text())["tasks"] | ours["tasks"]
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        storage.write_whole(path, json.dumps(ours, indent=2) + "\n")
    except OSError as error:
        raise ValueError(f"cannot write to --workdir={workdir}: {error}. Choose a directory that can be written") from error


def _directories(folder: epath.Path) -> list[epath.Path]:
    return [path for path in folder.iterdir() if path.is_dir()] if folder.exists() else []


def _comparable(values: dict[str, Any], tasks: Set[str]) -> dict[str, Any]:
    """Flat settings, of those tasks alone; one that did not exist yet when they were written counts as its default."""
    recipe = configuration.flat(configuration.to_dict(Recipe()))
    of_tasks = {name: recipe | configuration.flat(values["tasks"][name]) for name in tasks}
    return configuration.flat(json.loads(configuration.default(FinetuningConfig).to_json()) | values | {"tasks": of_tasks})


def read(config: FinetuningConfig) -> dict[str, Splits]:
    """The examples of every task, before anything is trained: what is missing or malformed should not show hours later."""
    for name, recipe in config.tasks.items():
        task_splits.find_task(name, recipe)
    return {name: task_splits.read(name, config.tasks[name], config.data) for name in config.ordered_tasks}


def run(config: FinetuningConfig, workdir: epath.Path) -> dict[str, Chosen]:
    """Train what is not trained yet, and choose; the tasks are in the order of the catalogue."""
    check_directory(config, workdir)
    material = read(config)
    planned = {name: list(trials(config, name)) for name in config.ordered_tasks}
    missing = sum(not is_done(directory_of(workdir, one)) for of_task in planned.values() for one in of_task)
    opened = None
    if missing:
        opened = weights.open_encoder(config.checkpoint, None if config.step < 0 else config.step, fresh=config.fresh)
        _check_lengths(config, opened.config.max_length)
        for recipe in config.tasks.values():
            if recipe.adversarial.method == "scheduled":  # or it would show hours later
                learner.read_trace(recipe.adversarial, opened.config.layers)
        claim(config, workdir)
        _tell(f"{missing} of {sum(map(len, planned.values()))} trials to do, from {opened.description}")
    for name, of_task in planned.items():
        metric, recipe = material[name].task.metric, config.tasks[name]
        encoded: dict[int | None, TaskData] = {}  # of each fold
        for one in of_task:
            directory = directory_of(workdir, one)
            if is_done(directory):
                continue
            if one.fold not in encoded:
                examples = material[name] if one.fold is None else task_splits.of_fold(material[name], one.fold, recipe.folds)
                encoded[one.fold] = trial.encode(examples, opened.tokenizer, opened.config, recipe)
            start = _initial(config, workdir, one, material) or opened
            result = trial.run_trial(one, config, start, encoded[one.fold], directory, config.keeps_weights(name))
            _tell(f"{name} {one.name}: {_told(result, metric)}")
        _keep_best(config, workdir, name, metric)
    order = [name for name in catalogue.TASKS if name in planned]
    return {name: results.choose(material[name], config.tasks[name], _done(config, workdir, name)) for name in order}


def is_done(directory: epath.Path) -> bool:
    """Whether a trial is done: its result is written last."""
    return (directory / trial.RESULT).exists()


def _tell(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _told(result: Result, metric: str) -> str:
    epochs = f"epoch {result['best_epoch']} of {len(result['epochs'])}"
    return f"{metric} {report.percent(result['metrics'][metric])} ({epochs}), {result['seconds']:.0f} s"


def _done(config: FinetuningConfig, workdir: epath.Path, name: str) -> list[tuple[Result, epath.Path]]:
    directories = [directory_of(workdir, one) for one in trials(config, name)]
    return [(json.loads((directory / trial.RESULT).read_text()), directory) for directory in directories]


def _check_lengths(config: FinetuningConfig, longest: int) -> None:
    for name, recipe in config.tasks.items():
        if recipe.max_length > longest:
            raise ValueError(
                f"tasks.{name}.max_length={recipe.max_length} is longer than the {longest} positions of {config.checkpoint}: set "
                f"--config.tasks.{name}.max_length={longest}"
            )


def _best(config: FinetuningConfig, workdir: epath.Path, name: str, metric: str, seed: int) -> epath.Path:
    """The directory of a seed's best trial."""
    done = _done(config, workdir, name)
    best = choosing.best_of_seed(choosing.points([result for result, _ in done]), metric, seed)
    return next(directory for result, directory in done if result is best)


def _initial(config: FinetuningConfig, workdir: epath.Path, one: Trial, material: dict[str, Splits]) -> Any:
    """The encoder that a trial starts from, if that is another task's with the same seed."""
    first = one.recipe.initial_task
    if not first:
        return None
    return weights.open_encoder(str(_best(config, workdir, first, material[first].task.metric, one.seed)))


def _keep_best(config: FinetuningConfig, workdir: epath.Path, name: str, metric: str) -> None:
    """Delete the weights of a task's trials that are not the best of their seed; with folds, of each fold."""
    if not config.keeps_weights(name) or config.tasks[name].folds:
        return
    best = {_best(config, workdir, name, metric, seed) for seed in config.seeds}
    for _, directory in _done(config, workdir, name):
        if directory not in best and (directory / finetuned.FOLDER).exists():
            shutil.rmtree(directory / finetuned.FOLDER)
