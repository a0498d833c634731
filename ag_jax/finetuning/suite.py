"""Suites of fine-tuning trials: one for every task, point of its sweep, seed and fold, each in its own directory.

A point of a sweep is a learning rate with a batch size, and with a value of each setting in the recipe's `sweep`.

Finished trials are not trained again. Files of a suite: WORKDIR/config.json,
TASK/lr2e-05-bs32[-warmup_steps50]-seed0[-fold3]/, report.md, report.json, submission/; with arms WORKDIR/ARM/...
"""

import dataclasses
import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

from etils import epath

from ag_jax import imported
from ag_jax.data.json_files import check_fields, read_json, reading
from ag_jax.data.tasks import catalogue
from ag_jax.distributed import hosts, lock, shared_files, storage
from ag_jax.evaluation import metrics
from ag_jax.finetuning import encoded, report, results, task_training, traces, trial
from ag_jax.finetuning import splits as task_splits
from ag_jax.finetuning.choosing import Result
from ag_jax.finetuning.config import FinetuningConfig, Recipe, SweepConfig
from ag_jax.finetuning.encoded import TaskData
from ag_jax.finetuning.results import Chosen
from ag_jax.finetuning.splits import Splits
from ag_jax.finetuning.trial import Trial
from ag_jax.grid import cells as grid_cells
from ag_jax.grid import run as grid
from ag_jax.grid import store
from ag_jax.grid.cells import Cell, Stage, Table
from ag_jax.interop import finetuned, opening
from ag_jax.interop.opening import Pretrained
from ag_jax.models.heads import head_of
from ag_jax.pretraining import mask_trace, run_directory
from ag_jax.pretraining.config import check_scores
from ag_jax.settings import schema
from ag_jax.training.journal import NonFiniteError
from ag_jax.training.wandb_run import Labels, check_installed

# Settings that change no finished trial: a suite may be resumed with others, also with more tasks and a larger sweep.
MAY_DIFFER = (
    "title",
    "arms",
    "seeds",
    "mesh.",
    "remat",
    "attention",
    "checkpoint_every",
    "step_timeout",
    "tensorboard",
    "wandb",
)
FINGERPRINT = ".custom.fingerprint"  # ending of the settings with the fingerprints of tasks' files
# Endings of the settings with the values of a sweep.
SWEPT = (".batch_sizes", ".learning_rates", *(f".sweep.{field.name}" for field in dataclasses.fields(SweepConfig)))


def trials(config: FinetuningConfig, task: str) -> Iterator[Trial]:
    """Yield every trial of a task, ordered by the points of its sweep, then by seed, then by fold."""
    return trials_of(task, config.tasks[task], config.seeds)


def trials_of(task: str, recipe: Recipe, seeds: Sequence[int]) -> Iterator[Trial]:
    """Yield every trial of a task with this recipe and these seeds, ordered by point of the sweep, seed and fold."""
    for learning_rate, batch_size, swept in recipe.points:
        at_point = dataclasses.replace(recipe, **swept)
        for seed in seeds:
            for fold in range(recipe.folds) if recipe.folds else (None,):
                yield Trial(task, at_point, learning_rate, batch_size, seed, fold)


def directory_of(workdir: epath.Path, one: Trial) -> epath.Path:
    """Return the directory of a trial in `workdir`, the directory of its suite."""
    return workdir / one.task / one.name


def is_suite(directory: epath.Path) -> bool:
    """Return whether a directory has the `config.json` that `ag-jax finetune` wrote."""
    path = directory / "config.json"
    if not path.exists():
        return False
    values = read_json(path)
    return "model_type" not in values and not _is_pretraining(values)


def read_settings(path: epath.Path) -> dict[str, Any]:
    """Read the `config.json` that `ag-jax finetune` wrote, without checking the values of the settings.

    Raises ValueError, with the file's name, if it is not the config of a suite.
    """
    settings = read_json(path)
    if _is_pretraining(settings):
        raise ValueError(
            f"{path} is the config of a pre-training run, expected one that `ag-jax finetune` wrote: give the "
            "--workdir of a fine-tuning"
        )
    _check_tasks(path, settings)
    return settings


def _is_pretraining(settings: dict[str, Any]) -> bool:
    return "training" in settings and "tasks" not in settings


def _check_tasks(path: epath.Path, settings: dict[str, Any]) -> None:
    check_fields(path, settings, {"tasks": dict})
    check_fields(path, settings["tasks"], dict.fromkeys(settings["tasks"], dict))


def check_directory(config: FinetuningConfig, workdir: epath.Path) -> None:
    """Raise ValueError if `workdir` holds trials with other settings, a pre-training run, or files of other software.

    The message lists the settings that differ.
    """
    path = workdir / "config.json"
    stored = read_json(path) if path.exists() else {"tasks": {}}
    if _is_pretraining(stored):
        if not run_directory.is_begun(workdir):
            return
        raise ValueError(f"--workdir={workdir} holds a run of pre-training ({path}): choose another directory")
    current = schema.to_dict(config)
    if strange := sorted(stored.keys() - current.keys()):
        raise ValueError(
            f"{path} was written by another program, because {', '.join(strange[:3])} are no settings of `ag-jax "
            "finetune`: choose another directory"
        )
    _check_tasks(path, stored)
    tasks = _begun_tasks(stored, workdir).keys()
    if not tasks:  # nothing is lost if its settings are replaced
        return
    with reading(path, "put back the file as `ag-jax finetune` wrote it, or choose another directory"):
        before, now = (_comparable(values, tasks & current["tasks"].keys()) for values in (stored, current))
    different = [
        f"  {key}: there {before.get(key)!r}, now {now.get(key)!r}"
        for key in sorted(before | now)
        if before.get(key) != now.get(key) and not schema.is_among(key, MAY_DIFFER) and not key.endswith(SWEPT)
    ]
    if different:
        changed = [name for name in current["tasks"] if before.get(key := f"tasks.{name}{FINGERPRINT}") != now.get(key)]
        folders = ", ".join(str(workdir / name) for name in changed)
        is_read = any(config.tasks[name].custom.reader for name in changed)
        also = ", or their reader returns other records for them" if is_read else ""
        remedy = (
            f"The files of {', '.join(changed)} are not those that these trials were trained on{also}: put back the "
            f"earlier files, or delete {folders} to train again"
            if changed
            else "Use those settings, or choose another directory"
        )
        raise ValueError(
            f"--workdir={workdir} holds trials with other settings, by its config.json:\n"
            + "\n".join(different)
            + f"\n{remedy}"
        )


def claim(config: FinetuningConfig, workdir: epath.Path) -> None:
    """Claim `workdir` for a suite: check that it holds no other work, and write the settings to `config.json`.

    Settings of other tasks that have trials in `workdir` stay in the file.

    Raises ValueError as `check_directory` does, and OSError if the directory cannot be written.
    """
    check_directory(config, workdir)
    current, path = schema.to_dict(config), workdir / "config.json"
    if path.exists():
        current["tasks"] = _begun_tasks(read_json(path), workdir) | current["tasks"]
    workdir.mkdir(parents=True, exist_ok=True)
    storage.write_whole(path, json.dumps(current, indent=2) + "\n")


def _claim_again(config: FinetuningConfig, workdir: epath.Path, name: str) -> None:
    """Raise ValueError if another process has claimed `workdir` for other settings; otherwise claim it for task `name`.

    The task is added to `config.json` if it is missing there.

    Between the suite's claim and its first trial of a task, another process may have claimed the same directory: for
    other settings, which is an error, or for other tasks.
    """
    check_directory(config, workdir)
    if name not in read_settings(workdir / "config.json")["tasks"]:
        claim(config, workdir)


def _begun_tasks(settings: dict[str, Any], workdir: epath.Path) -> dict[str, Any]:
    """Return {task: settings} of the tasks with a trial that has a result, a checkpoint or a process at work."""
    return {
        name: recipe
        for name, recipe in settings.get("tasks", {}).items()  # a config of a run of pre-training has none
        if (workdir / name).exists()
        and any(trial.is_begun(path) or lock.is_held(path / lock.FILE) for path in (workdir / name).iterdir())
    }


def _comparable(values: dict[str, Any], tasks: Set[str]) -> dict[str, Any]:
    """Return {"section.key": value} of a fine-tuning config, with only the given tasks, to compare it with another.

    Of the tasks, only `tasks` are included. `epochs` is multiplied by `epochs_factor`, because only their product
    matters.
    """
    recipes = {name: values["tasks"][name] for name in tasks}
    recipes = {
        name: recipe | {"epochs": recipe["epochs"] * recipe["epochs_factor"], "epochs_factor": 1}
        for name, recipe in recipes.items()
    }
    return schema.flat(values | {"tasks": recipes})


def resolved(config: FinetuningConfig) -> FinetuningConfig:
    """Return a config with the fingerprints of the tasks' files, and with the labels of custom tasks.

    Raises FileNotFoundError or ValueError if the files of a custom task cannot be used.
    """
    tasks = {name: task_splits.resolved(name, recipe, config.data) for name, recipe in config.tasks.items()}
    return dataclasses.replace(config, tasks=tasks)


def read(config: FinetuningConfig) -> dict[str, Splits]:
    """Read the examples of every task in the config; return {task: examples by split}.

    This is done before anything is trained, so that missing or malformed files show at once and not hours later.
    """
    for name, recipe in config.tasks.items():
        metrics.check_imported(task_splits.find_task(name, recipe))
    return {name: task_splits.read(name, config.tasks[name], config.data) for name in config.ordered_tasks}


@dataclasses.dataclass(frozen=True)
class Suite:
    """A fine-tuning config with what its trials need: examples, planned trials and the checkpoint, all checked.

    config: the settings.
    workdir: the directory of the suite.
    material: the examples of each task.
    planned: the trials of each task.
    opened: the checkpoint that the trials start from; None if all trials are done.
    labels: labels of the trials' runs at Weights & Biases.
    """

    config: FinetuningConfig
    workdir: epath.Path
    material: dict[str, Splits]
    planned: dict[str, list[Trial]]
    opened: Pretrained | None
    labels: Labels


def prepare(
    config: FinetuningConfig, workdir: epath.Path, earlier: Sequence[Suite] = (), labels: Labels = Labels()
) -> Suite:
    """Return a config's suite, checked and ready for training: examples read, trials planned, checkpoint opened.

    Raises ValueError or FileNotFoundError.

    earlier: suites that are trained before this one, whose masked shares trials of this one may repeat.
    labels: labels of the trials' runs at Weights & Biases.
    """
    schema.check(config)
    imported.allow(schema.flat(schema.to_dict(config)), even_stored=False)
    check_installed(config.wandb)
    config = resolved(config)
    settings = schema.flat(schema.to_dict(config))
    hosts.agree("their settings", {key: value for key, value in settings.items() if not key.endswith(FINGERPRINT)})
    # On several hosts it is host 0 that looks at the directory, so that all decide alike.
    hosts.from_first("the directory of the suite", lambda: check_directory(config, workdir))
    material = read(config)
    hosts.agree(
        "their examples",
        {
            name: {**_sizes(splits), "fingerprint of the files": config.tasks[name].custom.fingerprint}
            for name, splits in material.items()
        },
    )
    planned = {name: list(trials(config, name)) for name in config.ordered_tasks}
    directories = [directory_of(workdir, one) for of_task in planned.values() for one in of_task]
    opened = None
    if not hosts.from_first("which trials are done", lambda: all(map(trial.is_done, directories))):
        opened = opening.open_encoder(config.checkpoint, config.step, fresh=config.fresh)
        _check_lengths(config, opened.config.max_length)
        _check_heads(config, material, opened)
    suite = Suite(config, workdir, material, planned, opened, labels)
    if opened is not None:
        hosts.from_first("the trials that are done", lambda: _check_trials(suite, earlier))
    return suite


def _check_heads(config: FinetuningConfig, material: Mapping[str, Splits], opened: Pretrained) -> None:
    """Raise ValueError if the model from which a task starts lacks a head, dropout or attention scores for the task.

    It may need a head for masked words, by which phrases are ranked; dropout in a head for which the recipe has a rate;
    or attention scores to guide or attack.
    """
    for name, splits in material.items():
        try:
            check_scores(opened.config, config.guidance, config.tasks[name].adversarial)
        except ValueError as error:
            raise ValueError(f"tasks.{name} cannot start from {opened.description}: {error}") from error
        task_splits.check_dropout(name, config.tasks[name], splits.task, (opened.style,))
        if not head_of(splits.task.kind).reads_words:
            continue
        if first := config.tasks[name].initial_task:
            raise ValueError(
                f"tasks.{name}.initial_task must be none with ranking=True, got {first!r}: a model fine-tuned on "
                f"{first} has no head for masked words, which ranks the phrases"
            )
        if not opened.has_words:
            raise ValueError(
                f"tasks.{name}.ranking needs a checkpoint with a trained head for masked words, but "
                f"{opened.description} has none that a task can use (DeBERTa's mask decoder is none): give a run of "
                "masked language modelling, or a Hugging Face model such as RobertaForMaskedLM"
            )


def _sizes(splits: Splits) -> dict[str, int]:
    return {"train": len(splits.train), "validation": len(splits.validation)} | {
        name: len(examples) for name, examples in splits.others.items()
    }


def _check_trials(suite: Suite, earlier: Sequence[Suite]) -> None:
    """Raise ValueError if a finished trial started from other weights, or an unfinished one cannot be trained.

    An unfinished trial cannot be trained if it needs weights or a trace of masks of another trial that will not be
    there, or is shorter than its warm-up or the delay of its attack.

    earlier: suites that are trained before this one.
    """
    config, workdir, opened = suite.config, suite.workdir, suite.opened
    to_be_recorded = {directory for of_arm in earlier for directory in _recording(of_arm)}
    for name, of_task in suite.planned.items():
        for one in of_task:
            if not trial.is_done(directory_of(workdir, one)):
                traces.check(one, workdir, opened.config.layers, to_be_recorded)
                _check_length(suite, one)
        first = config.tasks[name].initial_task
        if first:
            _check_initial(config, workdir, name, suite.material[first].task.metric)
        else:
            for one in of_task:
                _check_start(directory_of(workdir, one), opened)


def _check_length(suite: Suite, one: Trial) -> None:
    """Raise ValueError if a trial is not longer than its warm-up, or ends before its attack begins."""
    recipe, opened, splits = one.recipe, suite.opened, _of_trial(suite, one)

    def check(rows: int) -> None:
        if steps := task_training.steps_of(one, rows):
            recipe.adversarial.check_begins(steps, recipe.warmup_of(steps))

    try:
        check(len(splits.train))
    except ValueError:
        # Examples need not be rows: a long context has several, and a lost answer none.
        rows = len(encoded.encode(splits, opened.tokenizer, opened.config, recipe).train.features)
        try:
            check(rows)
        except ValueError as error:
            raise ValueError(f"tasks.{one.task}.{error} (the trial is {one.name})") from error


def _of_trial(suite: Suite, one: Trial) -> Splits:
    """Return the splits of a trial's task or, in cross-validation, of the trial's fold."""
    splits = suite.material[one.task]
    return splits if one.fold is None else task_splits.of_fold(splits, one.fold, one.recipe.folds)


def run(suite: Suite) -> dict[str, Chosen]:
    """Train the unfinished trials of a suite; return {task: its results at the best point of its sweep}.

    On several hosts, host 0 chooses; the result is empty on the others. Raises ValueError as `choose` does, and if
    another process trains trials of the suite.
    """
    if not train([suite], suite.workdir):
        raise ValueError(f"other processes train trials of {suite.workdir}: wait until they end")
    return choose(suite)


def train(suites: Sequence[Suite], root: epath.Path, retry: bool = False) -> bool:
    """Train the unfinished trials of suites, together with other processes; return whether all trials are done.

    They are not if other processes train the last of them. A trial that diverges is noted as failed, and training
    continues with the next.

    suites: the suites, in the order of training.
    root: directory that holds those of all suites.
    retry: train trials again that failed before.
    """
    for suite in suites:
        # Even if all trials are done: a sweep with fewer points has another report, and config.json must plan them.
        hosts.from_first("the directory of the suite", functools.partial(claim, suite.config, suite.workdir))
        if suite.opened is not None:
            hosts.tell(f"{suite.workdir}: trials start from {suite.opened.description}")
    examples = _Encoded()
    cells = [
        TrialCell(str(directory_of(suite.workdir, one)).removeprefix(f"{root}/"), suite, one, examples)
        for suite in suites
        for of_task in suite.planned.values()
        for one in of_task
    ]
    if grid.run(functools.partial(_ready, cells), root, retry=retry) is None:
        return False
    for suite in suites:
        for name in suite.planned:
            _tidy(suite, name)
    return True


def choose(suite: Suite) -> dict[str, Chosen]:
    """Return {task: its results at the best point of its sweep} of a suite whose trials are done.

    The best point of a task's sweep is the one with the best median on the development set. On several hosts, host 0
    chooses; the result is empty on the others.

    Raises ValueError if every point of a task failed.
    """
    if not hosts.is_first():
        return {}
    try:
        chosen = {}
        for name in catalogue.ordered(suite.planned):  # not the order of training
            material = suite.material[name]
            finished = _results_of(suite.planned[name], suite.workdir, material.task.metric)
            chosen[name] = results.choose(material, suite.config.tasks[name], *finished)
        return chosen
    except ValueError as error:
        raise ValueError(f"{suite.workdir}: {error}") from error


def _recording(suite: Suite) -> Iterator[epath.Path]:
    """Yield the directories of the unfinished trials that will record what share of attention their adversary masks."""
    for one in (one for of_task in suite.planned.values() for one in of_task):
        directory = directory_of(suite.workdir, one)
        if one.recipe.adversarial.method == "asa" and not trial.is_done(directory):
            yield directory


def _ready(cells: Sequence["TrialCell"], table: Table) -> Stage:
    """Return the trials that can begin, because those whose weights or masked shares they need are done."""
    undone = [cell for cell in cells if cell.name not in table]
    recording = {cell.directory for cell in undone if cell.trial.recipe.adversarial.method == "asa"}
    needed = {(id(cell.suite), cell.trial.task, cell.trial.seed) for cell in undone}

    def can_begin(cell: TrialCell) -> bool:
        one = traces.resolved(cell.trial, cell.suite.workdir)
        if (id(cell.suite), one.recipe.initial_task, one.seed) in needed:
            return False
        adversarial = one.recipe.adversarial
        return adversarial.method != "scheduled" or mask_trace.directory_of(adversarial) not in recording

    waiting = {cell.name for cell in undone if not can_begin(cell)}
    return Stage([cell for cell in cells if cell.name not in waiting], is_last=not waiting)


class _Encoded:
    """The tokenised examples of one task, because those of several may be large."""

    def __init__(self):
        self._data: dict[Any, TaskData] = {}

    def of(self, suite: Suite, one: Trial) -> TaskData:
        """Return the tokenised examples of a trial."""
        key = suite.workdir, one.task, one.fold
        if key not in self._data:
            examples, opened = _of_trial(suite, one), suite.opened
            self._data = {key: encoded.encode(examples, opened.tokenizer, opened.config, one.recipe)}
        return self._data[key]


@dataclasses.dataclass(frozen=True, eq=False)
class TrialCell(Cell):
    """A trial as a cell.

    What its result depends on is checked by `claim` (settings), `_check_start` (weights) and `trial.check_result`.

    suite: its suite.
    trial: the trial.
    examples: the examples of the task that was trained last.
    """

    suite: Suite
    trial: Trial
    examples: _Encoded

    @property
    def directory(self) -> epath.Path:
        """The directory of the trial."""
        return directory_of(self.suite.workdir, self.trial)

    @property
    def inputs(self) -> Mapping[str, str]:
        """No digests, because other functions check what the result depends on."""
        return {}

    def compute(self, directory: epath.Path) -> grid_cells.Result:
        """Train or resume the trial. If it diverges, or is to mask what a failed trial masked, its result says so."""
        suite, one = self.suite, self.trial
        config, workdir, metric = suite.config, suite.workdir, suite.material[one.task].task.metric
        if one.recipe.initial_task:
            hosts.from_first("the trials that are done", lambda: _check_first_is_best(suite, one.task))
        start, data = _initial(suite, one), self.examples.of(suite, one)
        hosts.from_first("the settings of the suite", lambda: _claim_again(config, workdir, one.task))
        try:
            attacked, keep = traces.resolved(one, workdir), config.keeps_weights(one.task)
            facts = task_training.run_trial(attacked, config, start, data, directory, keep, suite.labels)
        except (NonFiniteError, mask_trace.FailedTrialError) as error:
            hosts.tell(f"{one.task} {one.name} failed: {error}")
            hosts.from_first("its files", lambda: trial.tidy(directory, keep=False))
            return trial.failure(one, str(error))
        hosts.tell(f"{one.task} {one.name}: {_outcome(facts, metric)}")
        hosts.from_first("the best trials", lambda: _keep_best(config, workdir, one.task, metric, (one.seed,)))
        # `run_trial` has stored it already, because it then deletes the checkpoints, without which it would be lost.
        return grid_cells.Result(facts)


def _tidy(suite: Suite, name: str) -> None:
    """Delete what is left over of a task's finished trials: checkpoints, and weights that are not the best."""
    config, workdir = suite.config, suite.workdir
    if config.tasks[name].initial_task:
        hosts.from_first("the trials that are done", lambda: _check_first_is_best(suite, name))
    for one in suite.planned[name]:
        directory = directory_of(workdir, one)
        if hosts.from_first("the checkpoints of a trial", (directory / trial.CHECKPOINTS).exists):
            with lock.hold(directory / lock.FILE, wait=True):  # the process that trained it may be deleting them
                hosts.from_first("its files", functools.partial(trial.tidy, directory, config.keeps_weights(name)))
    metric = suite.material[name].task.metric
    hosts.from_first("the best trials", lambda: _keep_best(config, workdir, name, metric, config.seeds))


def _check_first_is_best(suite: Suite, name: str) -> None:
    """Raise ValueError if a finished trial started from a trial of `initial_task` that is no longer the best one.

    Another one is the best if the first task has got more points, or was trained again. Trials are told apart by task
    and name, because a suite may have been moved.
    """
    first = suite.config.tasks[name].initial_task
    finished = [one for one in suite.planned[name] if trial.is_done(directory_of(suite.workdir, one))]
    for seed in dict.fromkeys(one.seed for one in finished):
        best = _best(suite.config, suite.workdir, first, suite.material[first].task.metric, seed)
        for directory in (directory_of(suite.workdir, one) for one in finished if one.seed == seed):
            start = _start_of(directory)
            if start is not None and not start[0].endswith("/".join(best.parts[-2:])):
                raise ValueError(
                    f"{directory} started from {start[0]}, which is not the best trial of {first} with seed {seed} any "
                    f"more, because that is {best} now: delete {directory.parent} to train all of its trials again"
                )


def _outcome(result: Result, metric: str) -> str:
    epochs = f"epoch {result['best_epoch']} of {result['epochs'][-1]['epoch']}"
    return f"{metric} {report.percent(result['metrics'][metric])} ({epochs}), {result['seconds']:.0f} s"


def _results_of(
    finished: Iterable[Trial], workdir: epath.Path, metric: str
) -> tuple[list[tuple[Result, epath.Path]], list[Result]]:
    """Return (result, directory) of each trial that succeeded, and the results of the trials that failed.

    finished: finished trials of one task.
    metric: the metric of the task.

    Raises ValueError, with the name of the file, if a result is that of another trial or lacks the metric of its task.
    """
    pairs = []
    for one in finished:
        directory = directory_of(workdir, one)
        result = trial.read_result(directory)
        trial.check_result(one, directory, result)
        pairs.append((result, directory))
        if "failed" not in result:
            check_fields(store.path_of(directory), result["metrics"], {metric: float})
    return [pair for pair in pairs if "failed" not in pair[0]], [result for result, _ in pairs if "failed" in result]


def _check_lengths(config: FinetuningConfig, longest: int) -> None:
    for name, recipe in config.tasks.items():
        if recipe.max_length > longest:
            raise ValueError(
                f"tasks.{name}.max_length={recipe.max_length} is longer than the {longest} positions of "
                f"{config.checkpoint}: set --config.tasks.{name}.max_length={longest}"
            )


def _start_of(directory: epath.Path) -> tuple[str, str] | None:
    """Return (description, digest) of the model that a finished trial started from; None if the trial failed."""
    result = trial.read_result(directory)
    if "failed" in result:
        return None
    check_fields(store.path_of(directory), result, {"start": str, "start_sha256": str})
    return result["start"], result["start_sha256"]


def _check_start(directory: epath.Path, start: Pretrained) -> None:
    """Raise ValueError if a finished, successful trial started from another model than `start`."""
    if not trial.is_done(directory) or (stored := _start_of(directory)) is None:
        return
    (description, digest), current = stored, start.description
    remedy = f"delete {directory.parent} to train all of them again"
    if description != current:
        raise ValueError(f"{directory} started from {description}, trials would now start from {current}: {remedy}")
    if digest != start.digest:
        raise ValueError(
            f"{directory} started from {description}, which had other weights or settings, another tokenizer, or "
            f"another pooling or dropout rate of the head then: {remedy}"
        )


def _check_initial(config: FinetuningConfig, workdir: epath.Path, name: str, metric: str) -> None:
    """Raise ValueError if the weights of another task from which task `name` starts will be missing for some seed.

    They will not if the trials that succeeded saved none, or if all trials are finished and failed. A trial that
    failed does not count while others are to be trained yet.
    """
    first = config.tasks[name].initial_task
    for seed in config.seeds:
        of_seed = [one for one in trials(config, first) if one.seed == seed]
        finished = [one for one in of_seed if trial.is_done(directory_of(workdir, one))]
        succeeded, _ = _results_of(finished, workdir, metric)
        directories = [directory for _, directory in succeeded]
        if len(finished) == len(of_seed):  # all are done, so the best one is known
            directories = [_first_best(succeeded, first, metric, seed)]
        if directories and not any((directory / finetuned.FOLDER).exists() for directory in directories):
            raise ValueError(
                f"tasks.{name} starts from the best weights of {first}, which {workdir / first} does not have for "
                f"seed {seed}: delete {workdir / first} to train {first} again"
            )


def _best(config: FinetuningConfig, workdir: epath.Path, name: str, metric: str, seed: int) -> epath.Path:
    """Return the directory of the best trial of task `name` with this seed, by the development `metric`."""
    succeeded, _ = _results_of((one for one in trials(config, name) if one.seed == seed), workdir, metric)
    return _first_best(succeeded, name, metric, seed)


def _first_best(succeeded: Sequence[tuple[Result, epath.Path]], name: str, metric: str, seed: int) -> epath.Path:
    """Return the directory of the trial with the best development `metric`; of equally good trials, the first.

    succeeded: results of the successful trials of task `name` with this seed, each with its directory.

    Raises ValueError if there are none.
    """
    if not succeeded:
        raise ValueError(
            f"no trial of {name} with seed {seed} succeeded, so there is none to choose: change the settings of {name} "
            "and choose another --workdir"
        )
    _, directory = max(succeeded, key=lambda of_trial: of_trial[0]["metrics"][metric])
    return directory


def _initial(suite: Suite, one: Trial) -> Pretrained:
    """Return the encoder that a trial starts from: of the suite's checkpoint, or of another task's best trial.

    With `initial_task`, it is the encoder of the best trial of that task with the same seed.

    Raises ValueError if finished trials of the seed started from another encoder.
    """
    first, opened = one.recipe.initial_task, suite.opened
    if not first:
        return opened

    def find() -> str:
        return str(_best(suite.config, suite.workdir, first, suite.material[first].task.metric, one.seed))

    best = epath.Path(hosts.from_first(f"the best trial of {first}", find))
    if blind := shared_files.wait_for(best / finetuned.FOLDER / finetuned.TASK):
        raise ValueError(
            f"{best} is not the same on all hosts: host {blind[0]} does not see what host 0 wrote there. Take a "
            "--workdir on a file system that all hosts share"
        )
    # The checkpoint's config, because the other task's recipe may have changed the dropout.
    start = dataclasses.replace(opening.open_encoder(str(best)), config=opened.config)
    of_seed = [directory_of(suite.workdir, other) for other in suite.planned[one.task] if other.seed == one.seed]

    def check() -> None:
        for directory in of_seed:
            _check_start(directory, start)

    hosts.from_first("the trials that are done", check)
    return start


def _keep_best(config: FinetuningConfig, workdir: epath.Path, name: str, metric: str, seeds: Iterable[int]) -> None:
    """Delete the saved weights of a task's finished trials with these seeds, except the best one of each seed so far.

    Weights that are deleted cannot become the best of their seed again: that is the trial with the highest result, of
    equal ones the first in the order of `trials`, and depends on no other seed. Unfinished trials are left alone. With
    folds, nothing is deleted.
    """
    if not config.keeps_weights(name) or config.tasks[name].folds:
        return
    for seed in seeds:
        of_seed = [one for one in trials(config, name) if one.seed == seed]
        succeeded, _ = _results_of(
            (one for one in of_seed if trial.is_done(directory_of(workdir, one))), workdir, metric
        )
        best = _first_best(succeeded, name, metric, seed) if succeeded else None
        for _, directory in succeeded:
            if directory != best and (directory / finetuned.FOLDER).exists():
                (directory / finetuned.FOLDER).rmtree(missing_ok=True)  # another process may delete it, too
