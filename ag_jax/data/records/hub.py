"""Data sets of Hugging Face, read one record after another by the package `datasets`.

    hf:NAME[@REVISION][:CONFIG][:SPLIT]

NAME is a data set of the hub, such as stanfordnlp/imdb, or a local directory with files that `datasets` reads. CONFIG
may be left empty, as in hf:stanfordnlp/imdb::unsupervised; SPLIT is train by default. REVISION is a branch, a tag or a
commit; the commit that it names when the text is prepared is what the cache and `corpus.json` record.
"""

import dataclasses
import functools
import math
import os
import pathlib
import re
import time
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from ag_jax.data.checksums import KnownContent
from ag_jax.data.records import annotated, formats
from ag_jax.data.records.files import stamp, warn_once
from ag_jax.data.records.units import Unit

BEGINNING = "hf:"
ASK_AGAIN = 60.0  # seconds for which an answer of the hub holds, because each shard of a data set asks
SHARD_SIZE = 2**28  # bytes of text that a shard of unknown size is taken to have
_COMMIT = re.compile(r"[0-9a-f]{40}")
_FORM = re.compile(r"hf:(?P<name>[^:@]+)(@(?P<revision>[^:@]+))?(:(?P<config>[^:@]*))?(:(?P<split>[^:@]+))?", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class DataSet:
    """Name, revision, configuration and split of a Hugging Face data set, as given in `data.source`.

    source: the source.
    name: its name at the hub, or a local directory.
    revision: branch, tag or commit; None is the default branch.
    config: one of its configurations; None if it has only one.
    split: the split to read.
    """

    source: str
    name: str
    revision: str | None
    config: str | None
    split: str

    @property
    def is_local(self) -> bool:
        """Whether the data set is a directory on this machine."""
        return os.path.isdir(self.name)

    def commit(self) -> str:
        """Return the commit that `revision` names now; asks the hub, unless it is a commit itself.

        Raises FileNotFoundError if the hub has no such data set, or cannot be reached.
        """
        if self.revision and _COMMIT.fullmatch(self.revision):
            return self.revision
        answer_time, commit = _answers.get((self.name, self.revision), (-math.inf, ""))
        if time.monotonic() - answer_time >= ASK_AGAIN:
            commit = self._ask()
            _answers[self.name, self.revision] = time.monotonic(), commit
        source = self._with_revision(commit)
        warn_once(f"{self.source} is commit {commit}; to read this version in later runs, too, write {source}")
        return commit

    def _ask(self) -> str:
        """Ask the Hugging Face hub which commit the data set's revision names now, and return the commit."""
        import huggingface_hub  # imported here, because it takes long

        try:
            return str(huggingface_hub.HfApi().dataset_info(self.name, revision=self.revision).sha)
        except Exception as error:  # the hub's, those of its HTTP client, and those of names that cannot be right
            raise FileNotFoundError(
                f"{self.source}: the Hugging Face hub gives no data set {self.name!r} ({' '.join(str(error).split())})"
                ": check the name, or the network; hf:NAME@COMMIT with all 40 digits of a commit needs none, if the "
                "text was prepared before"
            ) from error

    def _with_revision(self, commit: str) -> str:
        """Return the data set as written in `data.source`, with a commit as its revision."""
        rest = self.source.removeprefix(BEGINNING).partition(":")
        return f"{BEGINNING}{self.name}@{commit}{rest[1]}{rest[2]}"

    def identity(self) -> list[list[Any]]:
        """Return what identifies the data set's content without reading it: the commit, or files with size and time."""
        if not self.is_local:
            return [[f"{BEGINNING}{self.name}", self.config, self.split, self.commit()]]
        files = [[str(file.relative_to(self.name)), *stamp(file)] for file in self._local_files()]
        return [[f"{BEGINNING}{os.path.realpath(self.name)}", self.config, self.split, *files]]

    def files(self) -> list[tuple[str, pathlib.Path | KnownContent]]:
        """Return (name, path) of the files of a local directory, or (name, commit) of a data set of the hub."""
        rest = ":".join(filter(None, (self.config, self.split)))
        if not self.is_local:
            commit = self.commit()
            return [(f"{BEGINNING}{self.name}:{rest}", KnownContent(0, f"commit {commit}"))]
        return [(f"{file.relative_to(self.name).as_posix()}:{rest}", file) for file in self._local_files()]

    def _local_files(self) -> list[pathlib.Path]:
        """Return the files of a local directory, sorted."""
        return sorted(path for path in pathlib.Path(self.name).rglob("*") if path.is_file())

    def open(self) -> Any:
        """Return the data set as a stream, an `IterableDataset`, of which only the description was read.

        Raises ValueError if `datasets` is missing, or cannot read it.
        """
        datasets = _load_datasets(self.source)
        revision = None if self.is_local else self.commit()
        try:
            return datasets.load_dataset(self.name, self.config, split=self.split, revision=revision, streaming=True)
        except Exception as error:  # the library raises many types
            raise ValueError(
                f"{self.source}: the package datasets cannot open it ({' '.join(str(error).split())}): expected "
                "hf:NAME[@REVISION][:CONFIG][:SPLIT], as in hf:Salesforce/wikitext:wikitext-103-raw-v1:train, or "
                "hf:stanfordnlp/imdb::unsupervised for a split without a configuration"
            ) from error

    def units(self) -> Iterator[Unit]:
        """Yield a unit for each shard of the data set, in order; sizes are approximate."""
        before, stream = self.identity(), self.open()
        count = max(1, stream.num_shards)
        total: int | None
        if self.is_local:
            total = sum(file.stat().st_size for file in self._local_files())
        else:
            splits = stream.info.splits or {}
            total = splits[self.split].num_bytes if self.split in splits else None
        size = total // count if total else SHARD_SIZE
        for number in range(count):
            shard = stream.shard(count, number) if count > 1 else stream
            read = functools.partial(self._texts, shard, number)
            yield Unit(self.source, size, read, lambda: self.identity() != before)

    def _texts(
        self, shard: Any, number: int, text_field: str, pointers: Sequence[str] = ()
    ) -> Iterator[str | formats.NullText]:
        """Yield the texts of a shard, with `pointers`, and in place of null a `NullText`.

        number: number of the shard, counted from 0, for error messages.

        Raises ValueError if the shard cannot be read, or the field holds something else.
        """
        where = f"{self.source}, shard {number + 1}"
        records = iter(shard)
        count, trees = 0, annotated.Trees()
        while True:
            try:
                record = next(records, None)
            except Exception as error:  # of the network, of a damaged file, or of a file in another format
                raise ValueError(
                    f"{where}: the record after {count:,} cannot be read ({type(error).__name__}: "
                    f"{' '.join(str(error).split())}): run the command again, or check the data set"
                ) from error
            if record is None:
                return
            count += 1
            yield formats.text_of(record, text_field, f"{where}, record {count}", pointers, trees)


_answers: dict[tuple[str, str | None], tuple[float, str]] = {}  # (name, revision): time, commit


def is_data_set(part: str) -> bool:
    """Return whether a part of a source is a data set of Hugging Face."""
    return part.startswith(BEGINNING)


def parse(part: str) -> DataSet:
    """Return the data set that hf:NAME[@REVISION][:CONFIG][:SPLIT] names. Raises ValueError for another form."""
    match = _FORM.fullmatch(part)
    if not match:
        raise ValueError(
            f"expected hf:NAME[@REVISION][:CONFIG][:SPLIT] as in hf:Salesforce/wikitext:wikitext-103-raw-v1 or "
            f"hf:stanfordnlp/imdb::unsupervised, got {part!r}"
        )
    name = os.path.expanduser(match["name"].rstrip("/"))
    if match["revision"] and os.path.isdir(name):
        raise ValueError(f"{part}: the local directory {name} has no revisions: leave out @{match['revision']}")
    return DataSet(part, name, match["revision"], match["config"] or None, match["split"] or "train")


def _load_datasets(source: str) -> ModuleType:
    """Import and return the package datasets. Raises ValueError with the remedy if it is not installed."""
    try:
        import datasets  # imported here, because it takes long and is rarely needed
    except ImportError as error:
        raise ValueError(f"{source} needs the package datasets ({error}): pip install 'ag_jax[hf]'") from error
    return datasets
