"""Copies of the goldens, changed in a file or in tensors, and how tests of this folder convert them."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from safetensors.numpy import load_file, save_file

from ag_jax.data import pipeline
from ag_jax.interop import exporting, finetuned, importing, names
from ag_jax.interop.finetuned import FineTuned
from ag_jax.pretraining import initial_weights, run
from ag_jax.pretraining.open_run import open_run
from ag_jax.settings import config_files
from ag_jax.training.checkpoint import Checkpoints
from ag_jax.training.state import TrainState
from ag_jax.training.trainee import Progress

CONFIGS = pathlib.Path(__file__).parent.parent.parent / "configs"
FEW = {
    "training.steps": 3,
    "training.batch_size": 4,
    "training.log_every": 1,
    "training.evaluate_every": None,
    "training.checkpoint_every": 1,
    "training.tensorboard": False,
    "optimizer.warmup_steps": 0,
    "optimizer.learning_rate": 1e-2,
    "data.sequence_length": 12,
}
GOLDENS = pathlib.Path(__file__).parent / "goldens"


def change(directory, file="config.json", **values):
    """Set keys of a JSON file, which may be new."""
    path = directory / file
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | values))


def with_tensors(golden, directory, change_tensors=lambda tensors: tensors, **settings) -> pathlib.Path:
    """A copy of a golden with `change_tensors(tensors)` for its tensors, and changed keys of config.json."""
    directory.mkdir()
    for file in (GOLDENS / golden).iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    tensors = change_tensors(load_file(GOLDENS / golden / "model.safetensors"))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    change(directory, **settings)
    return directory


def imported(directory, workdir, **options):
    """The run that a directory of transformers becomes."""
    importing.convert(str(directory), epath.Path(workdir), **options)
    return open_run(workdir)


def exported(workdir, path, *options, **more):
    """Export a run or a trial: what is said of it, its config.json, its card and its tensors."""
    found = exporting.convert(epath.Path(workdir), None, str(path), *options, **more)
    settings = json.loads((path / "config.json").read_text())
    return found, settings, (path / "README.md").read_text(), load_file(path / "model.safetensors")


def same(ours, theirs, tolerance=0.0):
    """Assert that two flat trees have the same paths, shapes and values."""
    assert ours.keys() == theirs.keys()
    for path in ours:
        assert np.shape(ours[path]) == np.shape(theirs[path]), path
        np.testing.assert_allclose(ours[path], theirs[path], rtol=tolerance, atol=tolerance, err_msg=path)


def refused(directory, tmp_path, *parts, error=ValueError, **options):
    """Assert that an import fails, names all `parts` and leaves nothing."""
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(error) as caught:
        importing.convert(str(directory), epath.Path(tmp_path / "run"), **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == before, "something was left behind"
    for part in parts:
        assert part in str(caught.value), (part, str(caught.value))


def continuing(workdir, text, arm="plain", **overrides):
    """The config of a run that goes on from another one, for a few steps."""
    source = f"{CONFIGS / 'continue_pretraining.py'}:run={workdir},arm={arm}"
    return config_files.load(source, FEW | {"data.source": text} | overrides).settings


def start(wanted, workdir, step=0, prepare=pipeline.prepare):
    """A run directory as `wanted` leaves it after `step` steps that change nothing, without training."""
    workdir = epath.Path(workdir)
    workdir.mkdir()
    pretraining = run.PretrainingRun(wanted, workdir, corpus := prepare(wanted.data, quiet=True))
    given = names.flat(initial_weights.read(wanted, workdir, corpus.tokenizer, pretraining.program))
    shapes = names.flat(pretraining.program.abstract.params)
    params = names.nested({path: given.get(path, np.zeros(leaf.shape, leaf.dtype)) for path, leaf in shapes.items()})
    initial_weights.write(wanted, workdir, corpus.tokenizer, params)
    if step:
        params = jax.tree.map(jnp.asarray, params)
        checkpoints = Checkpoints(workdir / "checkpoints", keep_last=2)
        optimizer = pretraining.program.make_optimizer(pretraining.hyperparameters)
        checkpoints.save(TrainState(jnp.int32(step), params, optimizer.init(params)), Progress().to_json())
        checkpoints.close()
    return workdir


def parameters(workdir, step=None):
    """The parameters of a run, by path."""
    return names.flat(open_run(workdir, step).params)


def tune(opened, head, directory):
    """A fine-tuned model of an opened encoder whose parameters are all 0."""
    shapes = finetuned.shapes(head, opened.config)
    params = names.nested({path: np.zeros(shape, np.float32) for path, shape in shapes.items()})
    tuned = FineTuned(head, opened.config, opened.tokenizer, params, opened.origin)
    finetuned.save(tuned, epath.Path(directory))
    return tuned
