"""Read data sets that TensorFlow Datasets has prepared as array_record, without TensorFlow.

Data sets are found by their files, because most builders cannot even be looked up by name without TensorFlow.
"""

import functools
import os
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ag_jax.data.checksums import KnownContent
from ag_jax.data.records import formats
from ag_jax.data.records.files import stamp, watched
from ag_jax.data.records.units import Unit
from ag_jax.data.records.wikipedia import clean_wikipedia

BEGINNING = "tfds:"
UNIT_RECORDS, RECORD_SIZE = 10_000, 4_000  # records of a unit, and bytes of text that a record is taken to have
_FORM = re.compile(r"tfds:(?P<name>[\w./+-]+)(:(?P<version>\d+\.\d+\.\d+))?(:(?P<split>[a-z_]\S*))?")


class DataSet:
    """The text of "tfds:NAME[:VERSION][:SPLIT]"; a `Part` of a source.

    A missing VERSION is the newest one, and a missing SPLIT "train". NAME may have a config of TensorFlow Datasets, as
    in wikipedia/20230601.en. The data set is represented by its `dataset_info.json`, because a machine whose cache has
    the tokens need not have the text itself.
    """

    def __init__(self, part: str):
        match = _FORM.fullmatch(part)
        if not match:
            raise ValueError(
                f"expected tfds:NAME[:VERSION][:SPLIT] as in tfds:wikipedia/20230601.en:train[:1%], got {part!r}"
            )
        self.part, self.split = part, match["split"] or "train"
        self.directory = directory(match["name"], match["version"] or "")
        self.info = self.directory / "dataset_info.json"

    def identity(self) -> list[list[Any]]:
        """Return name, version and split, and size and time of the file that describes the data set."""
        return [["tfds", *self.directory.parts[-3:], self.split, *stamp(self.info)]]

    def files(self) -> list[tuple[str, pathlib.Path | KnownContent]]:
        """Return (name, path) of the file that describes the data set."""
        return [("/".join([*self.directory.parts[-3:], self.split]), self.info)]

    def units(self) -> Iterator[Unit]:
        """Yield a unit for every `UNIT_RECORDS` records."""
        builder, rows = records(self.directory, self.split)
        for start in range(0, len(rows), UNIT_RECORDS):
            numbers = range(start, min(start + UNIT_RECORDS, len(rows)))
            read = functools.partial(self._documents, builder, rows, numbers)
            yield Unit(self.info, len(numbers) * RECORD_SIZE, read, watched(self.info))

    def _documents(
        self, builder: Any, rows: Sequence[Any], numbers: range, text_field: str, pointers: Sequence[str] = ()
    ) -> Iterator[str]:
        """Yield the documents of some records. Raises ValueError if they lack the feature `text_field`."""
        formats.check_field(text_field, sorted(builder.info.features), self.part)
        for number in numbers:
            text = rows[number][text_field]
            text = text.decode() if isinstance(text, bytes) else str(text)
            yield clean_wikipedia(text) if builder.name == "wikipedia" else text


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
