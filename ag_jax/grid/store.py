"""Stored results of cells: a file `result.json` with a checksum of its content, and files whose digests are in it.

`result.json` is written last, so a cell that was killed has none. Whatever is changed in it or in the files, by a
flipped bit or by hand, is noticed when it is read.
"""

import dataclasses
import hashlib
import io
import json
import operator
from collections.abc import Mapping
from typing import Any

import numpy as np
from etils import epath

from ag_jax.distributed import storage
from ag_jax.grid.cells import Artifact, Result


class DamagedError(ValueError):
    """Error for a stored result, or a file of it, that is not what was written.

    damage: the file, and what is wrong with it.
    """

    def __init__(self, damage: str):
        super().__init__(f"{damage}: delete it, and the same command makes it anew")
        self.damage = damage


def digest(*content: Any) -> str:
    """Return the SHA-256 of JSON values, for `Cell.inputs`."""
    # Values of a user's own code may be numpy's integers.
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=operator.index).encode()).hexdigest()


def path_of(directory: epath.Path, until: int | None = None) -> epath.Path:
    """Return the file with the result of a cell that pauses at a step (see `Cell.until`)."""
    return directory / ("result.json" if until is None else f"result-{until}.json")


def write(directory: epath.Path, result: Result, until: int | None = None) -> Result:
    """Write the result of a cell, whose files are there already; return it as it is read back.

    Raises DamagedError if what is read is not what was written.
    """
    content = json.loads(json.dumps(to_json(result), default=operator.index))  # with texts as keys
    text = json.dumps({**content, "sha256": digest(content)}, indent=2) + "\n"
    storage.write_whole(path_of(directory, until), text)
    if (found := read(directory, until)) is None or to_json(found) != content:
        raise DamagedError(f"{path_of(directory, until)} is not what was written there just now")
    return found


def read(directory: epath.Path, until: int | None = None) -> Result | None:
    """Return the result of a cell; None if there is none.

    Raises DamagedError if the result or one of its files is not what was written.
    """
    path = path_of(directory, until)
    try:
        content = json.loads(storage.read_whole(path))
        sha256 = content.pop("sha256")
    except FileNotFoundError:
        return None
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError) as error:
        raise DamagedError(f"{path} is no JSON of a result ({type(error).__name__})") from error
    if digest(content) != sha256:
        raise DamagedError(f"{path} has another content than its checksum says")
    result = of_json(content)
    for artifact in result.artifacts.values():
        _content(directory, artifact)
    return result


def to_json(result: Result) -> dict[str, Any]:
    """Return a result as a JSON value."""
    return dataclasses.asdict(result)


def of_json(content: Mapping[str, Any]) -> Result:
    """Return the result of a JSON value."""
    artifacts = {name: Artifact(**artifact) for name, artifact in content["artifacts"].items()}
    return Result(**{**content, "artifacts": artifacts})


def write_arrays(directory: epath.Path, file: str, arrays: Mapping[str, np.ndarray]) -> Artifact:
    """Write arrays to a file of a cell; return the artifact for its result."""
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    return _write(directory, file, content.getvalue())


def read_arrays(directory: epath.Path, artifact: Artifact) -> dict[str, np.ndarray]:
    """Return the arrays, {name: array}, of a file. Raises DamagedError if they are not those that were written."""
    with np.load(io.BytesIO(_content(directory, artifact))) as arrays:
        return dict(arrays)


def write_text(directory: epath.Path, file: str, text: str) -> Artifact:
    """Write a text to a file of a cell; return the artifact for its result."""
    return _write(directory, file, text.encode())


def read_text(directory: epath.Path, artifact: Artifact) -> str:
    """Return the text of a file. Raises DamagedError if it is not the text that was written."""
    return _content(directory, artifact).decode()


def _write(directory: epath.Path, file: str, content: bytes) -> Artifact:
    (directory / file).write_bytes(content)
    return Artifact(file, hashlib.sha256(content).hexdigest())


def _content(directory: epath.Path, artifact: Artifact) -> bytes:
    path = directory / artifact.file
    if not path.exists():
        raise DamagedError(f"{path} is missing")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != artifact.sha256:
        raise DamagedError(f"{path} has another SHA-256 than its result says")
    return content
