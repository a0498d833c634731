"""Run directories of pre-training: claim one, check its settings, and read what it says of its run.

A run directory holds `config.json`, `corpus.json`, `tokenizer/`, `metrics.jsonl`, `tensorboard/`, `checkpoints/`,
`figures/` and, when the run is done, `result.json`; `words.json` if settings are in words; `trace.json` with
`adversarial.method=scheduled`; `hosts.json` if several hosts share it, `lock.json` while it is trained, `profile/` with
`training.profile`, and `origin.json` if it did not start from randomly initialised weights.
"""

import json
import sys
import time
from typing import Any

from etils import epath

from ag_jax.data.json_files import reading
from ag_jax.data.order import once_count
from ag_jax.distributed import hosts, shared_files, storage
from ag_jax.grid import store
from ag_jax.pretraining import alpha, branch, extension, mask_trace, words, workloads
from ag_jax.pretraining import config as pretraining_config
from ag_jax.pretraining import corpus as pretraining_corpus
from ag_jax.pretraining import origin as origins
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.settings import schema
from ag_jax.training.checkpoint import ASIDE, saved_metrics, steps_in
from ag_jax.training.criterion import Criterion
from ag_jax.training.metrics import read_metrics

# Settings that change neither the trained model nor the rows of metrics.jsonl: a run may be resumed with others.
MAY_DIFFER = (
    "data.accept_changed_text",
    "data.cache_dir",
    "data.expected_gigabytes",
    "data.expected_tokens",
    "data.verify_cache",
    "decoding.",
    "mesh.",
    "model.attention",
    "model.remat",
    "model.scan_layers",
    "title",
    "training.checkpoint_every",
    "training.keep_",
    "training.milestones",
    "training.patience",
    "training.profile",
    "training.step_timeout",
    "training.tensorboard",
    "training.time_limit",
    "training.wandb",
    "translation.average",
    "translation.tests",
    "translation.tokenize",
    "comparison.",
    "search.",
    "inspection.",
)
# Those of MAY_DIFFER that may decide whether a run fails: how much memory it needs, how long it lasts.
OF_FAILURE = (
    "mesh.",
    "model.attention",
    "model.remat",
    "model.scan_layers",
    "training.patience",
    "training.time_limit",
)
# Those of MAY_DIFFER that only matter once there is a model: `config.json` has the latest, for the verbs that read it.
# `training.keep_last` is one of them because `translation.average` may not be larger.
AFTER_TRAINING = (
    "decoding.",
    "inspection.",
    "training.keep_last",
    "translation.average",
    "translation.tests",
    "translation.tokenize",
)
# Settings in which a checkpoint may differ from `config.json`, too: the length of a run that was extended, and paths of
# files whose content `corpus.json` and `tokenizer/` describe.
MAY_CHANGE = (
    "data.source",
    "data.target",
    "data.tokenizer.path",
    "data.validation_",
    "training.initial_weights",
    "training.branch_from",
    "training.steps",
)

# Files that describe a run, beside its settings, metrics and result.
DESCRIPTIONS = (pretraining_corpus.SUMMARY, alpha.ALPHA, words.FILE, mask_trace.FILE, origins.FILE, origins.POOLER)


def claim(config: ExperimentConfig, workdir: epath.Path) -> None:
    """Make a directory that of a run of this config, or check that it is: the run is then resumed or extended.

    Writes `config.json`. What an attempt without metrics and checkpoints left is deleted, and a finished run of fewer
    steps is marked as unfinished. Of a run that is resumed, other values of `AFTER_TRAINING` are written. The lock is
    the caller's.

    Raises ValueError, with the settings that differ, if another config was run there, if the hosts have different ones,
    or if they do not share the directory.
    """
    settings = schema.flat(schema.to_dict(config))
    hosts.agree("their settings", {key: value for key, value in settings.items() if key != "data.cache_dir"})
    hosts.from_first("the run directory", lambda: _claim(config, workdir))
    check_shared(workdir)


def check_shared(workdir: epath.Path) -> None:
    """Raise ValueError, on every host, if the hosts do not share a directory, which host 0 creates if it is missing."""
    if hosts.count() == 1:
        return
    mark = workdir / "hosts.json"
    hosts.from_first("a mark in the run directory", lambda: _mark(mark))
    if blind := shared_files.wait_for(mark):
        raise ValueError(
            f"--workdir={workdir} is not the same directory on all hosts: host {', '.join(map(str, blind))} does "
            "not see what host 0 writes there. Give one that they share, such as gs://BUCKET/RUN or a network file "
            "system"
        )


def _mark(mark: epath.Path) -> None:
    mark.parent.mkdir(parents=True, exist_ok=True)
    storage.write_whole(mark, json.dumps({"hosts": hosts.count(), "started": time.time()}) + "\n")


def check(config: ExperimentConfig, workdir: epath.Path) -> int | None:
    """Return the stored `training.steps` of the run in `workdir`, which `config` must fit; None if none has begun.

    Raises ValueError, with the settings that differ, for a run of another config, and for a run without `config.json`.
    """
    path = workdir / "config.json"
    if not path.exists():
        if is_begun(workdir):
            raise ValueError(
                f"{workdir} holds a run without its settings, because {path} does not exist: copy this file, too, or "
                "choose another directory"
            )
        return None
    settings = pretraining_config.read_settings(path)
    if is_begun(workdir) or not settings.keys() <= schema.to_dict(config).keys():  # a file of another program
        return _check_resumable(settings, config, workdir)
    return None


def _claim(config: ExperimentConfig, workdir: epath.Path) -> None:
    path = workdir / "config.json"
    workdir.mkdir(parents=True, exist_ok=True)
    steps = check(config, workdir)
    if steps == config.training.steps:
        _write_new_values(config, workdir)
        return
    if steps is not None:
        extension.begin(steps, config, workdir)
    elif path.exists():
        _remove_attempt(workdir)
    storage.write_whole(path, json.dumps(schema.to_dict(config), indent=2) + "\n")


def _write_new_values(config: ExperimentConfig, workdir: epath.Path) -> None:
    """Update the settings that matter only after training in a resumed run's `config.json`, and print their names.

    `AFTER_TRAINING` lists them.
    """
    path = workdir / "config.json"
    stored = pretraining_config.read_settings(path)
    before, after = pretraining_config.both_settings(stored, config)
    changed = [key for key in after if schema.is_among(key, AFTER_TRAINING) and before[key] != after[key]]
    if not changed:
        return
    for key in changed:
        section, _, name = key.partition(".")
        stored.setdefault(section, {})[name] = after[key]
    storage.write_whole(path, json.dumps(stored, indent=2) + "\n")
    print(f"{path} has the new values of {', '.join(changed)}", file=sys.stderr, flush=True)


def _check_resumable(stored: dict[str, Any], config: ExperimentConfig, workdir: epath.Path) -> int:
    """Check that `config` may resume or extend the run in `workdir`, and return the run's stored `training.steps`.

    stored: the stored settings of the run.

    Raises ValueError, with the settings that differ, if `config` is for another run.
    """
    path = workdir / "config.json"
    before, after = pretraining_config.both_settings(stored, config)
    steps = before["training.steps"]
    with reading(path):
        is_longer = config.training.steps > steps
    extends = is_longer and extension.is_finished(steps, workdir)
    may_differ: tuple[str, ...] = (*MAY_DIFFER, "training.steps") if extends else MAY_DIFFER
    if not extends and any(settings["translation.average"] > 1 for settings in (before, after)):
        # This setting decides which checkpoints are averaged, so it may change only when a finished run is extended.
        may_differ = tuple(name for name in may_differ if name != "training.checkpoint_every")
    limits = [settings["data.validation_rows"] for settings in (before, after)]
    text = pretraining_corpus.read_summary(workdir) if limits[0] != limits[1] else None
    if text and len({once_count(text["validation rows"], most) for most in limits}) == 1:
        may_differ = (*may_differ, "data.validation_rows")  # with both limits, all held-out rows are read
    if different := pretraining_config.different_settings(stored, config, may_differ):
        raise ValueError(
            f"--workdir={workdir} holds a run of another config, by {path}:\n" + "\n".join(different) + "\n"
            "Use these settings, or choose another directory. Only a finished run may be extended, by raising "
            "training.steps and nothing else"
        )
    return steps


def is_begun(workdir: epath.Path) -> bool:
    """Return whether a run has begun: whether its directory holds a checkpoint or logged metrics."""
    if any(steps_in(workdir / name) for name in ("checkpoints", ASIDE)):
        return True
    return (workdir / "metrics.jsonl").exists() and bool(read_metrics(workdir))


def _remove_attempt(workdir: epath.Path) -> None:
    """Delete the files of a run that failed before its first metrics or checkpoint, so that no new run reads them."""
    for path in (*(workdir / name for name in (*DESCRIPTIONS, "metrics.jsonl")), store.path_of(workdir)):
        path.unlink(missing_ok=True)
    if (workdir / "checkpoints").exists():
        (workdir / "checkpoints").rmtree()


def check_settings(stored: dict[str, Any] | None, config: ExperimentConfig, workdir: epath.Path) -> None:
    """Raise ValueError, with the settings that differ, if `config.json` was changed since a checkpoint was saved.

    Parameters alone do not tell: most settings change no shape.

    stored: the settings in the checkpoint's progress, which may be that of the run that a branch begins with; None,
        and nothing is checked, in a checkpoint that no pre-training wrote.
    config: the config of the run.
    """
    may_differ = (*MAY_DIFFER, *MAY_CHANGE, *(branch.MAY_DIFFER if config.training.branch_from else ()))
    if stored and (different := pretraining_config.different_settings(stored, config, may_differ)):
        raise ValueError(
            f"{workdir / 'config.json'} has other settings than those with which the checkpoint was trained, so it was "
            "changed:\n" + "\n".join(different) + "\nPut back the original config.json"
        )


def read_config(workdir: epath.PathLike) -> ExperimentConfig:
    """Read the config of a run directory. Raises FileNotFoundError if there is none, ValueError if it is damaged."""
    directory = storage.directory(workdir)
    try:
        return pretraining_config.read(directory / "config.json")
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{directory} is no run directory: expected a config.json in it, got none") from error


def read_summary(workdir: epath.PathLike) -> dict[str, Any] | None:
    """Read the summary of a finished run: the facts of its `result.json`; None for an unfinished or failed one.

    Raises ValueError if the file is damaged.
    """
    result = store.read(epath.Path(workdir))
    return dict(result.facts) if result is not None and result.is_done else None


def result_inputs(config: ExperimentConfig) -> dict[str, str]:
    """Return digests of the settings on which a run's result depends (see `grid.cells.Cell.inputs`).

    `settings` are those with which its numbers would be others, and `resources` those that may decide whether it fails.
    """
    flat = schema.flat(schema.to_dict(config))
    settings = {name: value for name, value in flat.items() if not schema.is_among(name, MAY_DIFFER)}
    resources = {name: value for name, value in flat.items() if schema.is_among(name, OF_FAILURE)}
    return {"settings": store.digest(settings), "resources": store.digest(resources)}


def is_complete(result: dict[str, Any], config: ExperimentConfig) -> bool:
    """Return whether a run's summary shows that it did all its steps, or that its time limit or patience ended it.

    result: the summary.
    """
    steps, limit = config.training.steps, config.training.time_limit
    if result["steps"] == steps:
        return True
    if "patience" in result:
        return config.training.patience is not None and config.training.patience <= result["patience"]
    return "time_limit" in result and limit is not None and limit <= result["time_limit"]


def checkpoint_steps(workdir: epath.Path) -> list[int]:
    """Return the steps of the checkpoints of a run, ascending, without reading them."""
    return steps_in(workdir / "checkpoints")


def milestone_step(config: ExperimentConfig, workdir: epath.PathLike, fraction: float | None = None) -> int:
    """Return the step of a finished run's checkpoint at a fraction of training, or its last step if it ended before.

    If there is no checkpoint of the last milestone, because the run was trained with others, it is the step of the last
    checkpoint.

    fraction: one of `training.milestones`; None for the last of them.
    """
    workdir, last = storage.directory(workdir), max(config.training.milestones)
    fraction = last if fraction is None else fraction
    result = read_summary(workdir)
    step = min(round(fraction * config.training.steps), result["steps"] if result else config.training.steps)
    saved = checkpoint_steps(workdir)
    is_lost = saved and step not in saved and fraction == last
    return saved[-1] if is_lost else step


def milestone_steps(config: ExperimentConfig, workdir: epath.PathLike) -> dict[float, int]:
    """Return {fraction: step} of the `training.milestones` of a finished run that have a checkpoint, in their order.

    Checkpoints are missing if the run was trained with other milestones.
    """
    saved = steps_in(storage.directory(workdir) / "checkpoints")
    every = {fraction: milestone_step(config, workdir, fraction) for fraction in sorted(config.training.milestones)}
    return {fraction: step for fraction, step in every.items() if step in saved or fraction == max(every)}


def best_step(workdir: epath.PathLike) -> int:
    """Return the step of a run's best checkpoint by `training.best_metric`, among checkpoints with an evaluation.

    Raises FileNotFoundError if no checkpoint of the run was evaluated.
    """
    workdir = storage.directory(workdir)
    config = read_config(workdir)
    metric = config.training.best_metric or workloads.workload_of(config).primary_metric.metric
    steps = steps_in(workdir / "checkpoints")
    rows = [row for row in saved_metrics(workdir) if row["split"] == "validation" and row["step"] in steps]
    index = Criterion.of_objective(metric).index(row.get(metric) for row in rows)
    if index is None:
        raise FileNotFoundError(
            f"{workdir} has no checkpoint with an evaluation: expected a row of validation in metrics.jsonl for one of "
            f"the steps {', '.join(map(str, steps)) or '(none)'}; give the number of a step, or leave it out"
        )
    return rows[index]["step"]


def existing_step(step: int | None, steps: list[int], workdir: epath.Path) -> int:
    """Return the step of a run's checkpoint: `step`, or the newest one if it is None.

    steps: the steps of all checkpoints of the run.

    Raises FileNotFoundError or ValueError if there is no such checkpoint.
    """
    if not steps:
        raise FileNotFoundError(f"{workdir} has no checkpoint yet: wait for the first, or train longer")
    result = steps[-1] if step is None else step
    if result not in steps:
        raise ValueError(f"{workdir} has no checkpoint of step {result}; it has {', '.join(map(str, steps))}")
    return result


def tokens_seen(workdir: epath.Path, step: int) -> int | None:
    """Return the number of tokens that a run had seen after a step; None if its `metrics.jsonl` does not say."""
    if step == 0:
        return 0
    if not (workdir / "metrics.jsonl").exists():
        return None
    seen = [row["tokens_seen"] for row in read_metrics(workdir) if row["step"] == step and "tokens_seen" in row]
    return seen[-1] if seen else None
