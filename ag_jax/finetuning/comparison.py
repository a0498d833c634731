"""`ag-jax finetune`, and `ag-jax compare` for fine-tuning: train the trials of every arm, then write the report.

The report is `report.md` and `report.json`, with the files of predictions for benchmark servers in `submission/`.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from ag_jax.analysis.report import Report
from ag_jax.distributed import hosts, lock, storage
from ag_jax.finetuning import attacked, report, submission, suite, usage
from ag_jax.finetuning.attacked import Arm
from ag_jax.finetuning.config import FinetuningConfig
from ag_jax.finetuning.plan import Suite
from ag_jax.pretraining import arms, run_directory
from ag_jax.settings import schema
from ag_jax.settings.config_files import Config

ALONE = "score"  # the arm of a suite without arms, in report.json
# Settings of a recipe that decide by which metric and on which examples a model is evaluated.
JUDGED_BY = (
    "metric",
    "scored_epoch",
    "folds",
    "ranking",
    "validation_examples",
    "subset_seed",
    "legacy_eval",
    "first_question",
    "skip_malformed",
    "custom",
)


def arm_configs(base: Config) -> tuple[dict[str, FinetuningConfig], list[str]]:
    """Return {arm: settings} of a comparison, and warnings about flags that override what the arms set.

    Raises ValueError if there are no arms, if two are the same, or if they cannot be compared seed by seed and task by
    task.
    """
    of_arms = arms.configs_of(base, base.settings.arms, "config.arms", "finetune")
    configs: dict[str, FinetuningConfig] = {arm: of_arm.settings for arm, of_arm in of_arms.items()}
    arms.check_distinct(base, of_arms, {arm: of_arm.in_effect for arm, of_arm in configs.items()})
    for what in ("seeds", "data"):
        _check_same(base.source, what, {arm: getattr(of_arm, what) for arm, of_arm in configs.items()})
    _check_same(base.source, "tasks", {arm: sorted(of_arm.tasks) for arm, of_arm in configs.items()})
    for task in next(iter(configs.values())).tasks:
        has_folds = any(of_arm.tasks[task].folds for of_arm in configs.values())
        for what in (*JUDGED_BY, *(("train_examples",) if has_folds else ())):  # of folds, all examples are tested
            values = {arm: getattr(of_arm.tasks[task], what) for arm, of_arm in configs.items()}
            _check_same(base.source, f"tasks.{task}.{what}", values)
    return configs, arms.overridden(of_arms)


def _check_same(source: str, what: str, values: Mapping[str, Any]) -> None:
    """Raise ValueError unless a setting has the same value in all arms.

    what: name of the setting.
    values: {arm: value of the setting}.
    """
    first, *others = values.values()
    if any(value != first for value in others):
        got = "; ".join(f"{value!r} in {arm}" for arm, value in values.items())
        raise ValueError(
            f"the arms of {source} must have the same {what}, to be compared in pairs, got {got}: give all arms the "
            "same value"
        )


def finetune(base: Config, workdir: epath.PathLike, retry: bool = False) -> epath.Path | None:
    """Fine-tune one checkpoint on all tasks and write the report; return as `compare` does.

    base: the config.
    retry: see `compare`.
    """
    workdir = storage.directory(workdir)
    run_directory.check_shared(workdir)
    suites = {ALONE: suite.prepare(base.settings, workdir, retry=retry)}
    return _run("finetune", base, suites, workdir, retry)


def compare(base: Config, workdir: epath.PathLike, retry: bool = False) -> epath.Path | None:
    """Fine-tune every arm in `workdir/ARM` and write the report; return its path.

    Processes with the same `workdir` share the trials. The result is None if other processes train the last of them:
    the one that ends last writes the report.

    base: the config whose arms are compared.
    retry: train trials again that failed before.
    """
    (configs, overridden), workdir = arm_configs(base), storage.directory(workdir)
    arms.announce(overridden)
    run_directory.check_shared(workdir)
    # All are prepared before the first is trained, so that an error in the second shows now and not hours later.
    suites: dict[str, Suite] = {}
    for arm, config in configs.items():
        suites[arm] = suite.prepare(config, workdir, arm, tuple(suites.values()), retry)
    return _run("compare", base, suites, workdir, retry, overridden)


def _run(
    verb: str,
    base: Config,
    suites: Mapping[str, Suite],
    workdir: epath.Path,
    retry: bool,
    overridden: Sequence[str] = (),
) -> epath.Path | None:
    """Train all trials and write the report; return its path, None if other processes train the last trials."""
    if (table := suite.train(list(suites.values()), retry)) is None:
        return None
    with lock.hold(workdir / lock.FILE, wait=True):  # processes that shared the trials may write it at the same time
        trained = {arm: Arm(of_arm, suite.choose(of_arm, table)) for arm, of_arm in suites.items()}
        write = functools.partial(_write_report, verb, base, trained, workdir, overridden)
        return epath.Path(hosts.from_first("the report", lambda: str(write())))


def _write_report(
    verb: str,
    base: Config,
    trained: dict[str, Arm],
    workdir: epath.Path,
    overridden: Sequence[str] = (),
) -> epath.Path:
    """Write report.json, report.md with figures, and predictions for benchmark servers; return the path of `report.md`.

    trained: the results of each arm, the baseline first.
    overridden: the sentences that `arms.overridden` returns.
    """
    configs = {arm: of_arm.suite.config for arm, of_arm in trained.items()}
    chosen = {arm: of_arm.chosen for arm, of_arm in trained.items()}
    baseline, first = next(iter(configs.items()))
    notes: dict[str, list[str]] = {}
    for name, of_baseline in chosen[baseline].items():
        notes[name] = list(of_baseline.notes)
        for arm, of_arm in chosen.items():
            # Arms share the notes on a task's splits, so what the baseline has noted is not repeated.
            notes[name] += [f"{arm}: {note}" for note in of_arm[name].notes if note not in of_baseline.notes]
            named, folder = ("", workdir) if len(chosen) == 1 else (f"{arm}: ", workdir / arm)
            notes[name] += [f"{named}{note}" for note in submission.write_all(folder / "submission", of_arm[name])]
    # Of files of the suite, the path from its directory says as much, and stays right if that is moved.
    notes = {name: [note.replace(f"{workdir}/", "") for note in of_task] for name, of_task in notes.items()}
    numbers = report.numbers(first.seeds, chosen, notes, workdir)
    if overridden:
        numbers["overridden"] = list(overridden)
    flat = {arm: schema.flat(schema.to_dict(config)) for arm, config in configs.items()}
    tops = {name: report.top([of_arm[name] for of_arm in chosen.values()]) for name in chosen[baseline]}
    use, of_attacks = usage.section(tops, workdir), attacked.sections(trained, numbers, workdir)
    sections = report.sections(numbers, flat, use, workdir / "figures", of_attacks)
    return Report(first.title, arms.command(verb, base), numbers, sections, overridden).write(workdir)
