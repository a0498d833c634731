"""Stored results of cells: whatever is changed in them is noticed, and what was killed has none."""

import json

import numpy as np
import pytest
from etils import epath

from ag_jax.grid import store
from ag_jax.grid.store import DamagedError, Result

INPUTS = {"model": store.digest("m", 1), "text": store.digest(["t"])}


@pytest.fixture
def folder(tmp_path):
    return epath.Path(tmp_path / "arm-seed0" / "stories")


def measure(folder, calls, value=0.25):
    def measured():
        calls.append(value)
        scores = store.write_arrays(folder, "scores.npz", {"scores_Q": np.array([value, 1.5], np.float32)})
        facts = {"accuracy": value, "f1": None, "dropped": {"too long": 3}, "note": "ünïcode"}
        return Result(INPUTS, facts, {"scores": scores})

    return measured


def load(folder):
    def loaded(result):
        return result, store.read_arrays(folder, result.artifacts["scores"])["scores_Q"]

    return loaded


def obtain(folder, calls, inputs=INPUTS):
    return store.measured(folder, inputs, measure(folder, calls), load(folder))


def test_a_cell_is_measured_once_and_read_as_it_was_written(folder):
    calls = []
    (first, scores), (again, of_file) = obtain(folder, calls), obtain(folder, calls)
    assert calls == [0.25] and first == again == store.read(folder)
    assert (again.facts["accuracy"], again.facts["f1"], again.facts["note"]) == (0.25, None, "ünïcode")
    np.testing.assert_array_equal(scores, of_file)
    assert of_file.dtype == np.float32


@pytest.mark.parametrize("name", ["result.json", "scores.npz"])
def test_no_changed_byte_is_silent(folder, name):
    """Every byte, with one bit flipped, or a digit replaced by the next: the content is as before, or it is noticed."""
    whole, _ = obtain(folder, [])
    path = folder / name
    data = path.read_bytes()
    noticed = 0
    for place, byte in enumerate(data):
        is_digit = chr(byte).isdigit() and name == "result.json"
        other = ord(str((int(chr(byte)) + 1) % 10)) if is_digit else byte ^ (1 << place % 8)
        path.write_bytes(data[:place] + bytes([other]) + data[place + 1 :])
        try:
            result, _ = load(folder)(store.read(folder))
            assert result == whole
        except DamagedError:
            noticed += 1
    assert noticed > 0.8 * len(data), "others are spaces of the JSON"


@pytest.mark.parametrize("damage", ["cut", "gone", "empty", "list", "key"])
def test_what_is_damaged_is_measured_anew(folder, damage, capsys):
    obtain(folder, calls := [])
    path = folder / "result.json"
    content = json.loads(path.read_text())
    if damage == "gone":
        (folder / "scores.npz").unlink()
    else:
        texts = {"cut": path.read_text()[:-40], "empty": "", "list": "[1]", "key": json.dumps(content | {"more": 1})}
        path.write_text(texts[damage])
    result, _ = obtain(folder, calls)
    assert len(calls) == 2 and "measuring anew" in capsys.readouterr().err and result == store.read(folder)


def test_other_inputs_are_named_and_measured_anew(folder, capsys):
    obtain(folder, calls := [])
    obtain(folder, calls, INPUTS | {"text": store.digest(["u"])})
    assert len(calls) == 2 and "for another text;" in capsys.readouterr().err


def test_a_cell_that_is_killed_has_no_result(folder):
    """While it is measured anew, the result before is gone: its files may be written over already."""
    obtain(folder, [])

    def dies():
        store.write_arrays(folder, "scores.npz", {"scores_Q": np.zeros(2)})
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.measured(folder, {"model": "other"}, dies, load(folder))
    assert store.read(folder) is None
    obtain(folder, calls := [])
    assert len(calls) == 1
