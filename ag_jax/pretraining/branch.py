"""Branches: runs that start from a checkpoint of another run, such as to decay its learning rate from there.

A branch begins with the parameters, the optimizer's state, the metrics and the evaluations of the other run at a step,
and goes on with the rows of text that follow. Of the settings, only the length of the run and the schedule of the
learning rate may be others. Nothing of the other run is needed any more once the branch has a checkpoint of its own.
"""

import dataclasses
import json
import sys
from collections.abc import Mapping

import jax.numpy as jnp
from etils import epath

from ag_jax.attention import guidance
from ag_jax.data import tokenizers
from ag_jax.distributed import storage
from ag_jax.pretraining import alpha, mask_trace, origin
from ag_jax.pretraining import config as pretraining_config
from ag_jax.pretraining import corpus as pretraining_corpus
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.training.checkpoint import Checkpoint, Checkpoints, saved_metrics, steps_in
from ag_jax.training.optimizer import learning_rate_schedule
from ag_jax.training.state import TrainState

# Settings in which a branch may differ from its origin, besides those in which any resumed run may differ.
MAY_DIFFER = (
    "optimizer.decay",
    "optimizer.decay_steps",
    "optimizer.final_share",
    "training.branch_from",
    "training.max_epochs",
    "training.milestone_words",
    "training.steps",
    "training.words",
)
_COPIED = (pretraining_corpus.SUMMARY, alpha.ALPHA, mask_trace.FILE, origin.FILE, origin.POOLER)


def source(config: ExperimentConfig) -> tuple[epath.Path, int]:
    """Return (run directory, step) of the checkpoint that `training.branch_from` names in the form DIRECTORY:STEP.

    Raises ValueError for another form.
    """
    text = config.training.branch_from or ""
    name, colon, step = text.rpartition(":")
    if not (name and colon and step.isdecimal()):
        raise ValueError(
            f"training.branch_from={text} must be the directory of a run and the step of one of its checkpoints, as "
            "in runs/stable:50000"
        )
    return storage.directory(name), int(step)


def check(config: ExperimentConfig, may_differ: tuple[str, ...]) -> None:
    """Raise ValueError or FileNotFoundError if the checkpoint `training.branch_from` is missing or its settings differ.

    may_differ: settings in which any resumed run may differ, as in `schema.is_among`.
    """
    directory, step = source(config)
    setting = f"training.branch_from={directory}:{step}"
    if step not in (saved := steps_in(directory / "checkpoints")):
        raise ValueError(
            f"{setting}: that run has no checkpoint of step {step}; it has {', '.join(map(str, saved)) or 'none'}. "
            "training.keep_every or training.milestones keep more"
        )
    if config.training.words is None:
        check_length(config)
    different = pretraining_config.different_settings(
        pretraining_config.read_settings(directory / "config.json"), config, (*may_differ, *MAY_DIFFER)
    )
    if different:
        raise ValueError(
            f"{setting} is a run of another config:\n" + "\n".join(different) + "\n"
            "A branch may have another training.steps, optimizer.decay, decay_steps and final_share: set the others as "
            "there"
        )


def check_length(config: ExperimentConfig, milestones: Mapping[int, int] | None = None) -> None:
    """Raise ValueError unless a branch starts before its last step and before each of its milestones in words.

    The steps and words of the run that it starts from are part of its own length.

    milestones: {words: step} of `training.milestone_words`; None while it is not known, and not checked.
    """
    (directory, step), training = source(config), config.training
    if step >= training.steps:
        length = f"training.steps={training.steps}"
        if training.words is not None:
            length += f" of training.words={training.words:,}, which also counts the words before the branch"
        raise ValueError(f"training.branch_from={directory}:{step} is not before the last step, {length}: raise it")
    if passed := [words for words, of_milestone in (milestones or {}).items() if of_milestone <= step]:
        raise ValueError(
            f"training.milestone_words has {', '.join(f'{words:,}' for words in passed)}, which the other run had seen "
            f"at training.branch_from={directory}:{step}, so that the branch cannot save it: leave it out"
        )


def begin(config: ExperimentConfig, workdir: epath.Path) -> None:
    """Copy the tokenizer, logged metrics and description files of the run that a branch starts from into `workdir`.

    Prints where the branch begins, and learning rate and coefficient of guidance of both runs there if they differ.
    """
    directory, step = source(config)
    origin_config = pretraining_config.read(directory / "config.json")
    for name in _COPIED:
        if (directory / name).exists():
            storage.write_whole(workdir / name, (directory / name).read_bytes())
    tokenizers.load(directory / "tokenizer").save(workdir / "tokenizer")
    rows = [row for row in saved_metrics(directory) if row["step"] <= step]
    storage.write_whole(workdir / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    before, after = (_scheduled(run, place, step) for run, place in ((origin_config, directory), (config, workdir)))
    jumps = "".join(
        f"; {name} jumps from {before[name]:.3g} in that run to {after[name]:.3g} in this one"
        for name in after
        if after[name] != before[name]
    )
    print(f"going on from step {step} of {directory}{jumps}", file=sys.stderr, flush=True)


def _scheduled(config: ExperimentConfig, workdir: epath.Path, step: int) -> dict[str, float]:
    """Return {name: value} of a run's learning rate and, with guidance, guidance coefficient at a step.

    Their schedules depend on the run's number of steps.

    workdir: the run's directory, with `alpha.json` if `guidance.alpha_rule` is `auto`.
    """
    steps = config.training.steps
    values = {"the learning rate": learning_rate_schedule(config.optimizer, steps)(step)}
    if config.guidance.mode != "none":
        in_effect = alpha.hyperparameters(config, workdir).in_guidance(config.guidance)
        values["the coefficient of guidance"] = guidance.coefficient_schedule(in_effect, steps)(jnp.int32(step))
    return {name: float(value) for name, value in values.items()}


def checkpoint(config: ExperimentConfig, like: TrainState) -> Checkpoint:
    """Read the checkpoint of another run that a branch, `training.branch_from`, starts from.

    Its seconds of training become 0, because `training.time_limit` counts those of the branch. Every host calls this.

    like: a state with the shapes and shardings to read.

    Raises ValueError, CorruptCheckpointError or OSError if it cannot be read.
    """
    directory, step = source(config)
    checkpoints = Checkpoints(directory / "checkpoints", read_only=True)
    restored = checkpoints.restore(step, like)
    checkpoints.close()
    history = [{**evaluation, "seconds": 0.0} for evaluation in restored.progress["history"]]
    return dataclasses.replace(restored, progress={**restored.progress, "seconds": 0.0, "history": history})
