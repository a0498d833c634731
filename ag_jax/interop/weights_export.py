"""Export a run as a small run directory: the weights of its milestones, its settings, tokenizer and metrics."""

from typing import NamedTuple

import jax
from etils import epath

from ag_jax.data import tokenizers
from ag_jax.distributed import storage
from ag_jax.grid import store
from ag_jax.interop import directories, tensors
from ag_jax.pretraining import run_directory, words
from ag_jax.training import weights
from ag_jax.training.checkpoint import Checkpoints


class ExportedWeights(NamedTuple):
    """The steps whose weights were written, and the bytes of the directory."""

    steps: tuple[int, ...]
    size: int


def convert(workdir: epath.PathLike, step: int | None, path: epath.PathLike, dtype: str = "float32") -> ExportedWeights:
    """Write a run directory at `path` with the weights of a run's milestones, or of `step` alone.

    It can be opened like the run, but not trained further, because the state of the optimizer is left out.

    workdir: directory of the run.
    dtype: type of the weights in the files: float32, bfloat16 or float16.

    Raises FileNotFoundError or ValueError, with nothing written, if there is no such run or checkpoint.
    """
    workdir = storage.directory(workdir)
    config = run_directory.read_config(workdir)
    checkpoints = Checkpoints(workdir / "checkpoints", read_only=True)
    saved = checkpoints.steps()
    steps = {run_directory.existing_step(step, saved, workdir)}
    if step is None:
        steps |= {*run_directory.milestone_steps(config, workdir).values()}
        if (workdir / words.FILE).exists():
            steps |= {*words.read(workdir).milestones.values()} & {*saved}
    with directories.whole(directories.on_disk(path)) as partial:
        target = epath.Path(partial)
        for name in ("config.json", "metrics.jsonl", store.path_of(workdir).name, *run_directory.DESCRIPTIONS):
            if (workdir / name).exists():
                (target / name).write_bytes((workdir / name).read_bytes())
        tokenizers.load(workdir / "tokenizer").save(target / "tokenizer")
        (target / "checkpoints").mkdir()
        for number in sorted(steps):
            params, progress = checkpoints.restore_params(number), checkpoints.restore_progress(number)
            file = weights.file_of(target / "checkpoints", number)
            weights.write(file, jax.device_get(params), progress, tensors.DTYPES[dtype])
        size = sum(file.stat().st_size for file in partial.rglob("*") if file.is_file())
    checkpoints.close()
    return ExportedWeights(tuple(sorted(steps)), size)
