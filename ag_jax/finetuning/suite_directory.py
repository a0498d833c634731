"""The directory of a suite of fine-tuning trials: whose work it holds, by the settings in its `config.json`.

Files of a suite: WORKDIR/config.json, TASK/lr2e-05-bs32[-warmup_steps50]-seed0[-fold3]/, report.md, report.json,
submission/; with arms WORKDIR/ARM/...
"""

import dataclasses
import json
from collections.abc import Set
from typing import Any

from etils import epath

from ag_jax.data.json_files import check_fields, read_json, reading
from ag_jax.distributed import lock, storage
from ag_jax.finetuning import trial
from ag_jax.finetuning.config import FinetuningConfig, SweepConfig
from ag_jax.pretraining import run_directory
from ag_jax.settings import schema

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


def check(config: FinetuningConfig, workdir: epath.Path) -> None:
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

    Raises ValueError as `check` does, and OSError if the directory cannot be written.
    """
    check(config, workdir)
    current, path = schema.to_dict(config), workdir / "config.json"
    if path.exists():
        current["tasks"] = _begun_tasks(read_json(path), workdir) | current["tasks"]
    workdir.mkdir(parents=True, exist_ok=True)
    storage.write_whole(path, json.dumps(current, indent=2) + "\n")


def claim_again(config: FinetuningConfig, workdir: epath.Path, name: str) -> None:
    """Raise ValueError if another process has claimed `workdir` for other settings; otherwise claim it for task `name`.

    The task is added to `config.json` if it is missing there.

    Between the suite's claim and its first trial of a task, another process may have claimed the same directory: for
    other settings, which is an error, or for other tasks.
    """
    check(config, workdir)
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
