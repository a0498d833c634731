"""The stored example: files of the promised size, the weights of both models, whole, and the losses of the README."""

import json
import math
import pathlib

import pytest
import safetensors
from etils import epath

from ag_jax.pretraining import run_directory
from ag_jax.training import checkpoint, weights

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "quickstart"
STEPS = {"ag": [0, 110, 1100], "plain": [1100]}
PARAMETERS = 1_308_160  # of each model, as `ag_jax.load` prints it


def test_files_have_the_promised_size_and_no_pickle_is_among_them():
    files = [path for path in EXAMPLE.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 13_000_000
    assert {path.suffix for path in files} == {".md", ".json", ".jsonl", ".safetensors"}


@pytest.mark.parametrize("arm", STEPS)
def test_weights_are_whole_and_of_this_run(arm):
    """Reading compares the digest of the arrays; settings and metrics must be those with which they were saved."""
    workdir = epath.Path(EXAMPLE / arm)
    config, places = run_directory.read_config(workdir), workdir / "checkpoints"
    assert checkpoint.steps_in(places) == STEPS[arm]
    shapes = set()
    for step in STEPS[arm]:
        file = weights.file_of(places, step)
        _, progress = weights.read(file)
        run_directory.check_settings(progress["settings"], config, workdir)
        with safetensors.safe_open(str(file), framework="numpy") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 - it is no dict
        assert {one.get_dtype() for one in slices.values()} == {"F16"}
        shapes.add(tuple((name, tuple(one.get_shape())) for name, one in sorted(slices.items())))
    assert sum(math.prod(shape) for _, shape in next(iter(shapes))) == PARAMETERS
    assert len(shapes) == 1 and len(checkpoint.saved_metrics(workdir)) > 100


@pytest.mark.parametrize("arm", STEPS)
def test_losses_are_those_that_were_recorded(arm):
    """Of the same command, up to the hundredths by which processors differ."""
    recorded = json.loads((ROOT / "benchmarks" / "results" / "quickstart.json").read_text())["arms"][arm]["mean"]
    summary = run_directory.read_summary(EXAMPLE / arm)
    for name in ("train_loss", "validation_loss"):
        assert summary[name] == pytest.approx(recorded[name], abs=0.05)
    assert f"{summary['validation_loss']:.3f}" in (EXAMPLE / "README.md").read_text()
