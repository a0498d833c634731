"""Stored directories of every kind (`tests/goldens`) are read bit for bit, and resume to the same numbers."""

import json
import shutil

import jax
import pytest

from ag_jax.pretraining import run
from ag_jax.training.damage import CorruptCheckpointError
from tests.goldens import inputs, make, reading


@pytest.fixture(scope="module")
def expected():
    return json.loads((make.GOLDENS / "expected.json").read_text())


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """Make a working directory with copies of the goldens and of their inputs."""
    folder = tmp_path_factory.mktemp("stored")
    inputs.write(folder)
    for name in make.STORED:
        shutil.copytree(make.GOLDENS / name, folder / name)
    patch, device = pytest.MonkeyPatch(), jax.devices()[0]
    patch.chdir(folder)
    patch.setattr(jax, "devices", lambda: [device])
    yield folder
    patch.undo()


@pytest.fixture(scope="module")
def stored(here):
    return json.loads(json.dumps(reading.stored(here)))


def test_what_is_stored_is_read_bit_for_bit(stored, expected):
    assert stored.keys() == expected["stored"].keys()
    for name, content in stored.items():
        assert content == expected["stored"][name], name


def test_what_is_stored_is_compared_with_its_fingerprint(here, tmp_path):
    shutil.copytree(here / "finished", tmp_path / "finished")
    opened = run.open_run(tmp_path / "finished")
    path = tmp_path / "finished" / "checkpoints" / str(opened.step) / "progress" / "metadata"
    progress = json.loads(path.read_text())
    fingerprint = progress["fingerprint"]
    for place in [key for key in fingerprint if key.startswith("params/")][:: len(fingerprint) // 2]:
        path.write_text(json.dumps(progress | {"fingerprint": fingerprint | {place: fingerprint[place] ^ 1}}))
        with pytest.raises(CorruptCheckpointError, match="1 of .* arrays differ from those that were saved"):
            run.open_run(tmp_path / "finished")


def test_nothing_that_is_done_is_trained_again(here, stored):
    for suite in ("suite", "trial_kept"):
        path = f"{suite}/{reading.TRIAL}/metrics.jsonl"
        assert (here / path).read_bytes() == (make.GOLDENS / path).read_bytes()


@pytest.fixture(scope="module")
def trained(here):
    """What becomes of interrupted directories."""
    return json.loads(json.dumps(reading.trained(here)))


@pytest.mark.parametrize("name", ["interrupted", "trial_interrupted"])
def test_what_was_interrupted_is_resumed_to_the_same_end(name, trained, expected):
    nearly_equal(trained[name], expected["trained"][name], name)


def nearly_equal(value, target, path, tolerance=1e-4):
    """Assert equal structure and texts, and numbers within a tolerance: sums differ between processors."""
    if isinstance(target, dict):
        assert value.keys() == target.keys(), path
        for key, item in target.items():
            nearly_equal(value[key], item, f"{path}/{key}", tolerance)
    elif isinstance(target, list):
        assert len(value) == len(target), path
        for number, item in enumerate(target):
            nearly_equal(value[number], item, f"{path}/{number}", tolerance)
    elif isinstance(target, float):
        assert value == pytest.approx(target, rel=tolerance, abs=tolerance), path
    else:
        assert value == target, path


def test_no_golden_names_a_directory_of_the_machine_that_made_it():
    for path in (path for path in make.GOLDENS.rglob("*") if path.is_file()):
        assert not any(root in path.read_bytes() for root in (b"/tmp/", b"/home/", b"/root/", b"/work/")), path
