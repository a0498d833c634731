"""Directories written by earlier versions (`tests/goldens`) are read bit for bit, and resume to the same numbers."""

import itertools
import json
import shutil

import jax
import pytest

from ag_jax.attention import dropout
from ag_jax.attention.kernels import reference
from ag_jax.pretraining import run
from ag_jax.training.damage import CorruptCheckpointError
from tests.goldens import inputs, make, reading


@pytest.fixture(scope="module", params=make.SETS)
def goldens(request):
    """Return the name of a set of goldens."""
    return request.param


@pytest.fixture(scope="module")
def expected(goldens):
    found = json.loads((make.GOLDENS / goldens / "expected.json").read_text())
    report = found["stored"]["suite"]  # the verb has another name since then
    report["command"] = report["command"].replace("ag-jax evaluate", "ag-jax finetune")
    return found


@pytest.fixture(scope="module")
def here(goldens, tmp_path_factory):
    """Make a working directory with copies of a set's goldens and of their inputs."""
    folder = tmp_path_factory.mktemp("earlier")
    inputs.write(folder)
    for name in make.SETS[goldens]:
        shutil.copytree(make.GOLDENS / goldens / name, folder / name)
    patch, device = pytest.MonkeyPatch(), jax.devices()[0]
    patch.chdir(folder)
    patch.setattr(jax, "devices", lambda: [device])
    yield folder
    patch.undo()


@pytest.fixture(scope="module")
def stored(goldens, here):
    found = json.loads(json.dumps(reading.stored(here, make.SETS[goldens])))
    for report in {"comparison", "suite"} & found.keys():
        del found[report]["differences"]  # reports of earlier versions have none
    for of_arm in found.get("comparison", {}).get("arms", {}).values():
        del of_arm["last_layer"]  # nor shares of the last layer's attention
        of_arm.pop("guidance_settled_at_step", None)  # nor the step at which the guidance loss settles
    return found


def test_what_is_stored_is_read_bit_for_bit(stored, expected):
    assert stored.keys() == expected["stored"].keys()
    for name, found in stored.items():
        assert found == expected["stored"][name], name


@pytest.mark.parametrize("name", ["finished", "adversarial"])
def test_what_is_stored_is_compared_with_its_fingerprint(name, goldens, here, tmp_path):
    """A fingerprint is a list, of the step and then the parameters; in later versions it is a number for each path."""
    if name not in make.SETS[goldens]:
        pytest.skip("this set has no such golden")
    shutil.copytree(here / name, tmp_path / name)
    opened = run.open_run(tmp_path / name)
    path = tmp_path / name / "checkpoints" / str(opened.step) / "progress" / "metadata"
    progress = json.loads(path.read_text())
    stored = progress["fingerprint"]
    if isinstance(stored, list):
        places = (1, len(jax.tree.leaves(opened.params | opened.adversary_params)))
    else:
        places = [key for key in stored if key.startswith("params/")][:: len(stored) // 2]
    for place in places:
        numbers = stored.copy()
        numbers[place] ^= 1
        path.write_text(json.dumps(progress | {"fingerprint": numbers}))
        with pytest.raises(CorruptCheckpointError, match="1 of .* arrays differ from those that were saved"):
            run.open_run(tmp_path / name)


def test_nothing_that_is_done_is_trained_again(goldens, here, stored):
    for name in (
        "comparison/mlm-seed3",
        "comparison/ag-seed3",
        f"suite/{reading.TRIAL}",
        f"trial_kept/{reading.TRIAL}",
    ):
        if name.partition("/")[0] in make.SETS[goldens]:
            path = f"{name}/metrics.jsonl"
            assert (here / path).read_bytes() == (make.GOLDENS / goldens / path).read_bytes()


@pytest.fixture(scope="module")
def trained(here):
    """What becomes of interrupted directories, with the dropout masks of attention that earlier versions drew."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(reference, "attention_dropout", dropout.dropout)
        return json.loads(json.dumps(reading.trained(here)))


@pytest.mark.parametrize("name", ["interrupted", "trial_interrupted"])
def test_what_was_interrupted_is_resumed_to_the_same_end(name, trained, expected):
    wanted, found = expected["trained"][name], trained[name]
    if name == "trial_interrupted":
        # Trials now write the rows that runs write: they count all tokens so far, and have the loss coefficients.
        tokens = list(itertools.accumulate(row.pop("tokens") for row in wanted["rows"] if row["split"] == "train"))
        seen = [row.pop("tokens_seen", None) for row in found["rows"] if row["split"] == "train"]
        new = [row.pop("tokens", None) for row in found["rows"] if row["split"] == "train"]
        resumed = new.index(None)
        assert seen[resumed:] == tokens[resumed:] and resumed
        for row in found["rows"]:
            for key in ("coefficient/task", "tokens_seen"):
                row.pop(key, None)
        for row in itertools.chain.from_iterable(found["predictions"].values()):
            assert row.pop("class") in ("negative", "positive")
    nearly_equal(found, wanted, name)


def nearly_equal(found, wanted, path, tolerance=1e-4):
    """Assert equal structure and texts, and numbers within a tolerance.

    Sums differ between processors, numbers of hosts, versions and programs.
    """
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), path
        for key, value in wanted.items():
            nearly_equal(found[key], value, f"{path}/{key}", tolerance)
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), path
        for number, value in enumerate(wanted):
            nearly_equal(found[number], value, f"{path}/{number}", tolerance)
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=tolerance, abs=tolerance), path
    else:
        assert found == wanted, path


def test_no_golden_names_a_directory_of_the_machine_that_made_it():
    for path in (path for path in make.GOLDENS.rglob("*") if path.is_file() and path.suffix != ".pyc"):
        assert not any(root in path.read_bytes() for root in (b"/tmp/", b"/home/", b"/root/", b"/work/")), path
