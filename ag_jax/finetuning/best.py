"""Find and open the best model of a directory that holds several.

The directory is that of a comparison of runs, a suite, one task of a suite, or a comparison of suites.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from etils import epath

from ag_jax.data.json_files import check_fields, read_json, reading
from ag_jax.data.tasks import catalogue
from ag_jax.distributed import storage
from ag_jax.finetuning import attack, splits, suite_directory, trial
from ag_jax.finetuning.config import Recipe
from ag_jax.interop import finetuned, opening
from ag_jax.interop.opening import Inspected
from ag_jax.pretraining import run_directory
from ag_jax.settings import schema


@dataclasses.dataclass(frozen=True)
class Best:
    """The directory of the best run or trial, and the reason for the choice as readable text."""

    directory: epath.Path
    reason: str


def find(directory: epath.PathLike) -> Best | None:
    """Return the best run or trial of a directory that holds several; None for any other directory.

    The best run has the lowest validation loss, the best trial the best development score. With several tasks, the
    trial is one of the first task, in the order of the catalogue, whose weights were saved. Trials that the suite's
    `config.json` does not plan, because they are left from an earlier sweep or from other seeds, do not count.

    Raises FileNotFoundError if nothing in the directory can be opened, ValueError if a file is damaged.
    """
    directory = storage.directory(directory)
    if finetuned.locate(directory) is not None:
        return None
    if (directory / "config.json").exists():
        return _of_suites(directory, [directory]) if suite_directory.is_suite(directory) else None
    if _is_of_task(directory):
        return _of_suites(directory, [directory.parent], directory.name)
    if not (directory / "report.json").exists():
        return None
    report = read_json(directory / "report.json")
    if isinstance(report.get("arms"), list):
        return _of_suites(directory, [directory / str(arm) for arm in report["arms"]])
    check_fields(directory / "report.json", report, {"arms": dict, "seeds": list})
    return _of_runs(directory, [directory / f"{arm}-seed{seed}" for arm in report["arms"] for seed in report["seeds"]])


def resolve(directory: epath.PathLike) -> str:
    """Return the directory of the best run or trial of a directory that holds several; any other directory as it is.

    Raises FileNotFoundError or ValueError as `find` does.
    """
    best = find(directory)
    return str(directory if best is None else best.directory)


def _is_of_task(directory: epath.Path) -> bool:
    """Return whether a directory is the folder of one task of a fine-tuning suite."""
    if not directory.is_dir() or not suite_directory.is_suite(directory.parent):
        return False
    return directory.name in suite_directory.read_settings(directory.parent / "config.json")["tasks"]


def open_for_inspection(directory: epath.PathLike, step: int | None = None) -> Inspected:
    """Open the model of a directory, or the best of its models if it holds several, to inspect its attention.

    step: step of a run's checkpoint, the newest by default.

    Raises FileNotFoundError or ValueError with what was expected.
    """
    best = find(directory)
    opened = with_attack(opening.open_for_inspection(directory if best is None else best.directory, step))
    if best is None:
        return opened
    return dataclasses.replace(opened, description=f"{opened.description} ({best.reason})")


def with_attack(opened: Inspected) -> Inspected:
    """Return an opened model with the attack that it was trained against, if it is a trial trained under attack.

    If the attack cannot be made for a text, the model has the reason instead.
    """
    if finetuned.locate(opened.directory) is None:
        return opened
    tuned = finetuned.load(opened.directory)
    settings = attack.settings_of_trial(opened.directory)
    if settings is None or settings[0].method == "none":
        return opened
    if reason := attack.unsupported_reason(tuned, settings[0]):
        return dataclasses.replace(opened, no_attack=reason)
    if tuned.head.kind not in attack.OF_TEXTS:
        reason = f"a model for {tuned.head.kind} reads whole examples, not a text; the report of its suite shows it"
        return dataclasses.replace(opened, no_attack=reason)
    return dataclasses.replace(opened, attack=attack.text_attack(tuned, *settings))


def _of_runs(named: epath.Path, directories: Sequence[epath.Path]) -> Best:
    """Return the finished run with the lowest validation loss.

    named: the directory that the user named, for messages.
    """
    summaries = {directory: run_directory.read_summary(directory) for directory in directories}
    losses = {directory: summary["validation_loss"] for directory, summary in summaries.items() if summary}
    if not losses:
        raise FileNotFoundError(
            f"none of the runs that {named / 'report.json'} lists is there and finished: give the directory of a "
            "finished run"
        )
    best = min(losses, key=losses.__getitem__)
    return Best(best, f"the lowest validation loss of {len(losses)} runs, {losses[best]:.3f}")


def _of_suites(named: epath.Path, directories: Sequence[epath.Path], task: str | None = None) -> Best:
    """Return the trial with the best development score among the suites' trials with saved weights.

    named: the directory that the user named, for messages.
    directories: of suites.
    task: the task of the trial; None takes the first one with saved weights, in the order of the catalogue.
    """
    scores: dict[str, dict[epath.Path, float]] = {}  # scores of the trials with saved weights, by task
    metrics: dict[str, str] = {}
    unplanned: list[epath.Path] = []  # directories of trials with saved weights that a suite no longer has
    for directory in directories:
        path = directory / "config.json"
        settings = suite_directory.read_settings(path)
        check_fields(path, settings, {"seeds": list})
        for name, values in settings["tasks"].items():
            if task not in (None, name) or not (saved := _with_weights(directory / name)):
                continue
            with reading(f"{path}, task {name}", "put back the file as `ag-jax finetune` wrote it"):
                recipe = schema.parse(Recipe, values)
                metrics[name] = splits.find_task(name, recipe).metric
            # Other trials are left from an earlier sweep or from other seeds, and the suite's report is without them.
            planned = [trial.directory_of(directory, one) for one in trial.trials_of(name, recipe, settings["seeds"])]
            for place in (place for place in planned if place in saved):
                scores.setdefault(name, {})[place] = saved[place][metrics[name]]
            unplanned += [place for place in saved if place not in planned]
    if not scores:
        other = f"; {unplanned[0]} has, of earlier settings of the suite: open that directory, or" if unplanned else ":"
        raise FileNotFoundError(
            f"no finished trial of {named} has saved its weights{other} run the suite again, in another --workdir, "
            "with --config.keep=best"
        )
    first_task, *others = catalogue.ordered(scores)
    best = max(scores[first_task], key=scores[first_task].__getitem__)
    count = len(scores[first_task])
    trials = f"{count} trials" if count > 1 else "one trial"
    reason = f"the best {metrics[first_task]} of {trials} of {first_task} with weights, {scores[first_task][best]:.4f}"
    hint = f"; for {', '.join(others)} add the task to --workdir" if others and len(directories) == 1 else ""
    return Best(best, reason + hint)


def _with_weights(folder: epath.Path) -> dict[epath.Path, Mapping[str, float]]:
    """Return {directory: development metrics} of a task's successful trials whose weights were saved."""
    if not folder.is_dir():
        return {}
    saved = [place for place in sorted(folder.iterdir()) if finetuned.locate(place) is not None]
    results = {place: result for place in saved if (result := trial.read(place)) is not None}
    return {place: result.facts["metrics"] for place, result in results.items() if result.is_done}
