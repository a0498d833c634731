"""Stored results of cells: whatever is changed in them is noticed."""

import json

import numpy as np
import pytest
from etils import epath

from ag_jax.grid import store
from ag_jax.grid.cells import Result
from ag_jax.grid.store import DamagedError


@pytest.fixture
def folder(tmp_path):
    return epath.Path(tmp_path)


@pytest.fixture
def written(folder):
    scores = store.write_arrays(folder, "scores.npz", {"scores_Q": np.array([0.25, 1.5], np.float32)})
    facts = {"accuracy": 0.25, "f1": None, "dropped": {"too long": 3}, "note": "ünïcode"}
    result = Result(facts, {"scores": scores}, "diverged", "loss is not finite", {"text": store.digest(["t"])})
    store.write(folder, result)
    return result


def test_a_result_is_read_as_it_was_written(folder, written):
    assert store.read(folder) == written == store.of_json(json.loads(json.dumps(store.to_json(written))))
    scores = store.read_arrays(folder, written.artifacts["scores"])["scores_Q"]
    np.testing.assert_array_equal(scores, [0.25, 1.5])
    assert scores.dtype == np.float32
    assert store.read(folder, until=7) is None
    store.write(folder, Result({"loss": 2.5}), until=7)
    assert store.read(folder, until=7).facts == {"loss": 2.5} and store.read(folder) == written


@pytest.mark.parametrize("name", ["result.json", "scores.npz"])
def test_no_changed_byte_is_silent(folder, written, name):
    """Every byte, with one bit flipped, or a digit replaced by the next: the content is as before, or it is noticed."""
    path = folder / name
    data = path.read_bytes()
    noticed = 0
    for place, byte in enumerate(data):
        is_digit = chr(byte).isdigit() and name == "result.json"
        other = ord(str((int(chr(byte)) + 1) % 10)) if is_digit else byte ^ (1 << place % 8)
        path.write_bytes(data[:place] + bytes([other]) + data[place + 1 :])
        try:
            assert store.read(folder) == written
        except DamagedError:
            noticed += 1
    assert noticed > 0.8 * len(data), "others are spaces of the JSON"


@pytest.mark.parametrize("damage", ["cut", "gone", "empty", "list", "key"])
def test_what_is_damaged_is_no_result(folder, written, damage):
    path = folder / "result.json"
    content = json.loads(path.read_text())
    if damage == "gone":
        (folder / "scores.npz").unlink()
    else:
        texts = {"cut": path.read_text()[:-40], "empty": "", "list": "[1]", "key": json.dumps(content | {"more": 1})}
        path.write_text(texts[damage])
    with pytest.raises(DamagedError, match="scores.npz is missing" if damage == "gone" else "result.json"):
        store.read(folder)


def test_a_file_that_changes_after_its_result_was_read(folder, written):
    store.write_arrays(folder, "scores.npz", {"scores_Q": np.zeros(2)})
    with pytest.raises(DamagedError, match="scores.npz"):
        store.read_arrays(folder, written.artifacts["scores"])
