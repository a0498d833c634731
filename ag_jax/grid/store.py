"""Results of cells: a file `result.json` with a checksum of its content, and files with their digests in it.

A cell is the smallest part of an experiment that is computed and stored as a whole, such as a probe of a model. Each
has a directory of its own. `result.json` is written last, so a cell that was killed has none. Whatever is changed in it
or in the files, by a flipped bit or by hand, is noticed when it is read.
"""

import dataclasses
import hashlib
import io
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from etils import epath

from ag_jax.distributed import storage

FILE = "result.json"
T = TypeVar("T")


class DamagedError(ValueError):
    """Error for a stored result, or a file of it, that is not what was written."""


@dataclasses.dataclass(frozen=True)
class Artifact:
    """A file of a result, in the directory of the cell.

    file: its name.
    sha256: digest of its content.
    """

    file: str
    sha256: str


@dataclasses.dataclass(frozen=True)
class Result:
    """The stored result of a cell.

    inputs: digests of what it was computed from, such as {"model": ..., "text": ...}.
    facts: its small parts, as JSON values.
    artifacts: its files, such as arrays.
    """

    inputs: Mapping[str, str]
    facts: Mapping[str, Any]
    artifacts: Mapping[str, Artifact]


def digest(*content: Any) -> str:
    """Return the SHA-256 of JSON values, for `Result.inputs`."""
    # Values of a user's own code may be numpy's integers.
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=int).encode()).hexdigest()


def write(directory: epath.Path, result: Result) -> None:
    """Write the result of a cell, whose files are there already."""
    content = dataclasses.asdict(result)
    storage.write_whole(directory / FILE, json.dumps({**content, "sha256": digest(content)}, indent=2) + "\n")


def read(directory: epath.Path) -> Result | None:
    """Return the result of a cell; None if there is none. Raises DamagedError if it is not what was written."""
    path = directory / FILE
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text())
        sha256 = content.pop("sha256")
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError) as error:
        raise DamagedError(f"{path} is no JSON of a result ({type(error).__name__})") from error
    if digest(content) != sha256:
        raise DamagedError(f"{path} has another content than its checksum says")
    artifacts = {name: Artifact(**artifact) for name, artifact in content.pop("artifacts").items()}
    return Result(**content, artifacts=artifacts)


def write_arrays(directory: epath.Path, file: str, arrays: Mapping[str, np.ndarray]) -> Artifact:
    """Write arrays to a file of a cell; return the artifact for its result."""
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    (directory / file).write_bytes(content.getvalue())
    return Artifact(file, hashlib.sha256(content.getvalue()).hexdigest())


def read_arrays(directory: epath.Path, artifact: Artifact) -> dict[str, np.ndarray]:
    """Return the arrays, {name: array}, of a file. Raises DamagedError if they are not those that were written."""
    path = directory / artifact.file
    if not path.exists():
        raise DamagedError(f"{path} is missing")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != artifact.sha256:
        raise DamagedError(f"{path} has another SHA-256 than {FILE} says")
    with np.load(io.BytesIO(content)) as arrays:
        return dict(arrays)


def measured(
    directory: epath.Path,
    inputs: Mapping[str, str],
    measure: Callable[[], Result],
    load: Callable[[Result], T],
) -> T:
    """Return what a cell's result holds; measure it if it has none, if it is damaged, or if its inputs have changed.

    A line says why something is measured anew.

    inputs: digests of everything that the measurement depends on.
    measure: measures the cell, writes its files, and returns its result.
    load: returns what the result and its files hold.
    """
    try:
        if (result := read(directory)) is not None:
            names = sorted({*inputs, *result.inputs})
            changes = [name for name in names if inputs.get(name) != result.inputs.get(name)]
            if not changes:
                return load(result)
            print(f"{directory}: measured for another {' and '.join(changes)}; measuring anew", file=sys.stderr)
    except DamagedError as error:
        print(f"{error}; measuring anew", file=sys.stderr)
    # Without a result while its files are written over, so that a cell that is killed has none.
    directory.mkdir(parents=True, exist_ok=True)
    (directory / FILE).unlink(missing_ok=True)
    result = measure()
    write(directory, result)
    return load(result)
