"""Data sets that TensorFlow Datasets has prepared as array_record, read without TensorFlow.

They are found by their files, since most of the builders cannot even be looked up by name without TensorFlow.
"""

import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any


def directory(name: str, version: str = "") -> pathlib.Path:
    """Where the data set NAME or NAME/CONFIG lies, in its newest version unless one is given."""
    root = pathlib.Path(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()
    versions = [path.parent for path in (root / name).glob(f"{version or '*.*.*'}/dataset_info.json")]
    if not versions:
        raise FileNotFoundError(
            f"no TensorFlow data set {name!r} is prepared below {root}; prepare it once, where TensorFlow is "
            f"(pip install 'ag_jax[tf]'): tfds build {name} --file_format=array_record. If it lies elsewhere, set TFDS_DATA_DIR"
        )
    return max(versions, key=lambda path: [int(number) for number in re.findall(r"\d+", path.name)])


def records(folder: pathlib.Path, split: str) -> tuple[Any, Sequence[Mapping[str, Any]]]:
    """The builder of a prepared data set, and the records of a split of it."""
    import tensorflow_datasets as tfds  # imports no TensorFlow, but takes long

    try:
        builder = tfds.builder_from_directory(folder)
        return builder, builder.as_data_source(split=split)
    except Exception as error:  # a wrong split and a wrong file format raise many kinds
        raise ValueError(
            f"the TensorFlow data set in {folder} cannot be read as split {split!r}: {str(error).strip()}\n"
            "Expected array_record files; prepare it again with tfds build --file_format=array_record"
        ) from error
