"""Stored directories of every kind (`tests/goldens`) are read bit for bit, and resume to the same numbers."""

import json
import shutil

import jax
import pytest

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


def test_what_is_stored_is_read_bit_for_bit(here, expected):
    """And nothing that is done is trained again."""
    stored = json.loads(json.dumps(reading.stored(here)))
    assert stored.keys() == expected["stored"].keys()
    for name, content in stored.items():
        assert content == expected["stored"][name], name
    for suite in ("suite", "trial_kept"):
        path = f"{suite}/{reading.TRIAL}/metrics.jsonl"
        assert (here / path).read_bytes() == (make.GOLDENS / path).read_bytes()


def test_what_was_interrupted_is_resumed_to_the_same_end(here, expected):
    nearly_equal(json.loads(json.dumps(reading.trained(here))), expected["trained"], "trained")


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
