"""Export the checkpoints at a run's milestones in words, each as a directory or hub revision, for the BabyLM challenge.

The directories are named as the challenge names revisions: chck_1M for the checkpoint after at most a million words,
and main for the last checkpoint.
"""

import dataclasses

from etils import epath

from ag_jax.distributed import storage
from ag_jax.interop import directories, exporting, hub
from ag_jax.interop.exporting import Exported
from ag_jax.interop.front_matter import Statements
from ag_jax.pretraining import words
from ag_jax.training.checkpoint import steps_in


def name(count: int) -> str:
    """Return the BabyLM challenge's name of a checkpoint after `count` words, such as chck_1M, chck_100K or chck_5."""
    for unit, letter in ((1_000_000, "M"), (1_000, "K")):
        if count % unit == 0:
            return f"chck_{count // unit}{letter}"
    return f"chck_{count}"


def convert(
    workdir: epath.PathLike,
    path: epath.PathLike,
    dtype: str = "float32",
    stated: Statements = Statements(),
    part: str = "model",
) -> dict[str, Exported]:
    """Export a run's last checkpoint and its milestones in words to directories below `path`; return {name: facts}.

    All directories are written, or none. The other arguments are those of `exporting.convert`. The result has the names
    of the directories as keys, the milestones in ascending order and `main` after them.

    Raises ValueError if the run has no milestones in words, or a checkpoint of one is missing.
    """
    workdir = storage.directory(workdir)
    target = directories.on_disk(path)
    directories.check_free(target)
    steps = _steps(workdir)
    exports = {}
    with directories.whole(target) as partial:
        for directory, step in steps.items():
            is_branch = stated.repository and directory != hub.MAIN
            of_step = dataclasses.replace(stated, revision=directory) if is_branch else stated
            exports[directory] = exporting.convert(workdir, step, str(partial / directory), dtype, of_step, part)
    return exports


def _steps(workdir: epath.Path) -> dict[str, int]:
    """Return {directory: step} of a run's milestones in words, ascending, and of its last checkpoint."""
    milestones = words.read(workdir).milestones if (workdir / words.FILE).exists() else {}
    if not milestones:
        raise ValueError(
            f"--milestones: expected a run with milestones in words (training.milestone_words), got {workdir}; leave "
            "--milestones out"
        )
    saved = steps_in(workdir / "checkpoints")
    if missing := [f"{name(count)} (step {step:,})" for count, step in milestones.items() if step not in saved]:
        raise ValueError(
            f"--milestones: the run in {workdir} has no checkpoint of {', '.join(missing)}: resume the training"
        )
    return {name(count): step for count, step in milestones.items()} | {hub.MAIN: max(saved)}
