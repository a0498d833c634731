"""Weights alone as safetensors files: what is read is what was written, rounded once, or an error."""

import json

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from etils import epath

from ag_jax.training import weights
from ag_jax.training.damage import CorruptCheckpointError

VALUES = np.array([[1.0, -0.1, 3e-5], [0.0, 70.0, 1 / 3]], np.float32)
PARAMS = {"encoder": {"dense": {"kernel": VALUES}}, "head": {"bias": VALUES[0]}}
PROGRESS = {"settings": {"seed": 3}, "rows": [17, 5]}


@pytest.fixture
def file(tmp_path):
    return weights.file_of(epath.Path(tmp_path), 110)


@pytest.mark.parametrize(("dtype", "error"), [(np.float32, 0), (np.float16, 2**-11), (ml_dtypes.bfloat16, 2**-8)])
def test_they_come_back_rounded_to_their_type(file, dtype, error):
    weights.write(file, PARAMS, PROGRESS, np.dtype(dtype))
    params, progress = weights.read(file)
    assert progress == PROGRESS and weights.steps_in(file.parent) == [110]
    kernel, bias = params["encoder"]["dense"]["kernel"], params["head"]["bias"]
    assert kernel.dtype == np.float32 and params.keys() == PARAMS.keys()
    np.testing.assert_allclose(kernel, VALUES, rtol=error, atol=2**-25 if error else 0)
    np.testing.assert_array_equal(bias, VALUES[0].astype(dtype).astype(np.float32))


def test_a_value_beyond_the_type_is_an_error(file):
    large = {"head": {"bias": np.array([1.0, 70_000.0], np.float32)}}
    with pytest.raises(ValueError, match="head/bias has values that float16 does not have"):
        weights.write(file, large, PROGRESS, np.dtype(np.float16))
    assert not file.exists()


def _changed(arrays, metadata):
    arrays["head/bias"] = arrays["head/bias"] + np.float16(0.5)


def _missing(arrays, metadata):
    del arrays["head/bias"]


def _added(arrays, metadata):
    arrays["head/scale"] = arrays["head/bias"]


def _reshaped(arrays, metadata):
    arrays["encoder/dense/kernel"] = arrays["encoder/dense/kernel"].reshape(3, 2)


def _other_progress(arrays, metadata):
    metadata["progress"] = json.dumps(PROGRESS | {"rows": [18, 5]})


def _no_progress(arrays, metadata):
    del metadata["progress"]


@pytest.mark.parametrize("change", [_changed, _missing, _added, _reshaped, _other_progress, _no_progress])
def test_what_was_not_written_is_damage(file, change):
    weights.write(file, PARAMS, PROGRESS, np.dtype(np.float16))
    content = file.read_bytes()
    metadata = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    arrays = safetensors.numpy.load(content)
    change(arrays, metadata)
    file.write_bytes(safetensors.numpy.save(arrays, metadata))
    with pytest.raises(CorruptCheckpointError, match="step 110"):
        weights.read(file)


@pytest.mark.parametrize("size", [0, 5, 200, -1])
def test_a_cut_file_is_damage(file, size):
    weights.write(file, PARAMS, PROGRESS, np.dtype(np.float16))
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(CorruptCheckpointError, match="step 110"):
        weights.read(file)
