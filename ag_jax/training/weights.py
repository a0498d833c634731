"""The weights of a checkpoint as one safetensors file, without the optimizer: to be opened, but not to train on.

A file `STEP.safetensors` among a run's checkpoints has the parameters by their paths, in float32, bfloat16 or float16,
and as metadata the progress of the checkpoint, in JSON, with a SHA-256 of all.
"""

import hashlib
import json
from typing import Any

import ml_dtypes
import numpy as np
import safetensors.numpy
from etils import epath
from flax import traverse_util

from ag_jax.training.damage import CorruptCheckpointError

SUFFIX = ".safetensors"
_TYPES = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
_PROGRESS, _DIGEST = "progress", "sha256"  # keys of the metadata


def file_of(directory: epath.Path, step: int) -> epath.Path:
    """Return the path of the weights of a step in a directory of checkpoints."""
    return directory / f"{step}{SUFFIX}"


def steps_in(directory: epath.Path) -> list[int]:
    """Return the steps that have a file of weights in a directory of checkpoints."""
    return sorted(int(path.stem) for path in directory.glob(f"*{SUFFIX}") if path.stem.isdigit())


def write(file: epath.Path, params: Any, progress: dict[str, Any], dtype: np.dtype) -> None:
    """Write parameters in the type `dtype`, with the progress of their checkpoint.

    Raises ValueError for values that the type does not have, which would be infinite in the file.
    """
    flat = traverse_util.flatten_dict(params, sep="/")
    with np.errstate(over="ignore"):
        arrays = {path: np.ascontiguousarray(leaf, dtype) for path, leaf in flat.items()}
    if lost := [path for path, array in arrays.items() if not np.isfinite(array.astype(np.float32)).all()]:
        raise ValueError(f"{lost[0]} has values that {dtype} does not have: choose bfloat16 or float32")
    text = json.dumps(progress)
    file.write_bytes(safetensors.numpy.save(arrays, {_PROGRESS: text, _DIGEST: _digest(arrays, text)}))


def read(file: epath.Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (parameters in float32, progress of their checkpoint).

    Raises CorruptCheckpointError if they are not what was written.
    """
    content = file.read_bytes()
    try:
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])  # `deserialize` leaves it out
        text, digest = (header["__metadata__"][key] for key in (_PROGRESS, _DIGEST))
        arrays = {
            path: np.frombuffer(stored["data"], _TYPES[stored["dtype"]]).reshape(stored["shape"])
            for path, stored in safetensors.deserialize(content)
        }
    except (ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise CorruptCheckpointError(int(file.stem), error) from error
    if _digest(arrays, text) != digest:
        raise CorruptCheckpointError(int(file.stem), "its arrays or its progress differ from what was saved")
    leaves = {path: array.astype(np.float32) for path, array in arrays.items()}
    return traverse_util.unflatten_dict(leaves, sep="/"), json.loads(text)


def _digest(arrays: dict[str, np.ndarray], progress: str) -> str:
    """Return the SHA-256 of the paths, types, shapes and values of arrays, and of the progress."""
    digest = hashlib.sha256(progress.encode())
    for path, array in sorted(arrays.items()):
        digest.update(f"{path} {array.dtype} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()
