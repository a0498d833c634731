"""Read data sets that TensorFlow Datasets has prepared as array_record, without TensorFlow.

Data sets are found by their files, because most builders cannot even be looked up by name without TensorFlow.
"""

import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any


def directory(name: str, version: str = "") -> pathlib.Path:
    """Return the directory into which TensorFlow Datasets has prepared a data set.

    name: NAME or NAME/CONFIG of the data set.
    version: such as 1.0.0; "" for the newest.

    Raises FileNotFoundError if the data set is not prepared below $TFDS_DATA_DIR or ~/tensorflow_datasets.
    """
    root = pathlib.Path(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()
    versions = [path.parent for path in (root / name).glob(f"{version or '*.*.*'}/dataset_info.json")]
    if not versions:
        raise FileNotFoundError(
            f"no TensorFlow data set {name!r} is prepared below {root}; prepare it once, where TensorFlow is "
            f"(pip install 'ag_jax[tf]'): tfds build {name} --file_format=array_record. If it lies elsewhere, set "
            "TFDS_DATA_DIR"
        )
    return max(versions, key=lambda path: [int(number) for number in re.findall(r"\d+", path.name)])


def records(folder: pathlib.Path, split: str) -> tuple[Any, Sequence[Mapping[str, Any]]]:
    """Return the TFDS builder of the data set in `folder`, and the records of one split of this data set.

    Raises ValueError if the split does not exist or the files are not in array_record format.
    """
    import tensorflow_datasets as tfds  # imported here, because it takes long (it does not import TensorFlow)

    try:
        builder = tfds.builder_from_directory(folder)
        return builder, builder.as_data_source(split=split)
    except Exception as error:  # the library raises many types for a wrong split or file format
        raise ValueError(
            f"the TensorFlow data set in {folder} cannot be read as split {split!r}: {str(error).strip()}\n"
            "Expected array_record files; prepare it again with tfds build --file_format=array_record"
        ) from error
