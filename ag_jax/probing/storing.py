"""Files of a stored measurement: `result.json`, and files of arrays whose digests are in it.

A stored measurement is used again if everything it depends on is the same and its files are undamaged; otherwise it is
measured anew.
"""

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
FINGERPRINT = "fingerprint"  # in `result.json`: a digest of everything that the measurement depends on
T = TypeVar("T")


def begin(folder: epath.Path) -> None:
    """Create the folder of a measurement and delete `result.json`, so that it counts as missing until `finish`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).unlink(missing_ok=True)


def write_arrays(path: epath.Path, arrays: Mapping[str, np.ndarray]) -> str:
    """Write arrays to a file; return the SHA-256 of the file."""
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    path.write_bytes(content.getvalue())
    return hashlib.sha256(content.getvalue()).hexdigest()


def read_arrays(path: epath.Path, digest: str) -> dict[str, np.ndarray]:
    """Read arrays, {name: array}, from a file whose SHA-256 must be `digest`.

    Raises ValueError if it is not.
    """
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        raise ValueError(f"{path.name} has another SHA-256 than {FILE} says")
    with np.load(io.BytesIO(content)) as arrays:
        return dict(arrays)


def finish(folder: epath.Path, record: Mapping[str, Any]) -> None:
    """Write `result.json`, which marks the measurement as complete, so call this last."""
    storage.write_whole(folder / FILE, json.dumps(record, indent=2) + "\n")


def read(folder: epath.Path, fingerprint: str, load: Callable[[dict[str, Any]], T]) -> T | None:
    """Return the measurement stored in a folder; None if it is missing, damaged or has another fingerprint.

    A message says so if there is one with another fingerprint, or a damaged one.

    load: returns the measurement, given the content of `result.json`.
    """
    if not (folder / FILE).exists():
        return None
    try:
        record = json.loads((folder / FILE).read_text())
        if record[FINGERPRINT] != fingerprint:
            print(f"{folder}: measured for another model, text or settings; measuring anew", file=sys.stderr)
            return None
        return load(record)
    except (ValueError, KeyError, TypeError, OSError) as error:
        print(f"{folder}: damaged ({error}); measuring anew", file=sys.stderr)
        return None
