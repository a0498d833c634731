"""Store token ids on disk: sentences in documents (`TextStore`) and the rows that are made of them (`Rows`).

Both are written as a stream, so a corpus may be larger than the memory.
"""

import json
import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ag_jax.data.cache import Entry
from ag_jax.data.checksums import CheckedArray, CheckedFile
from ag_jax.distributed import interruption

WRITE_BUFFER = 2**20  # bytes
COUNTED_TOGETHER = 2**22  # tokens
COPIED_TOGETHER = 2**20  # numbers


def token_dtype(vocabulary_size: int) -> np.dtype:
    """Return the smallest unsigned type, uint16 or uint32, that holds every token id."""
    return np.dtype(np.uint16 if vocabulary_size <= 2**16 else np.uint32)


class ArrayWriter:
    """Writer that appends numbers of one type to a file."""

    def __init__(self, path: pathlib.Path, dtype: np.dtype | type):
        self._file, self._dtype = path.open("wb", buffering=WRITE_BUFFER), np.dtype(dtype)

    def append(self, values: Iterable[int]) -> None:
        """Append numbers to the file."""
        self._file.write(np.asarray(values, self._dtype).tobytes())

    def close(self) -> None:
        """Write the remaining buffer, wait until it is on disk, and close the file."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


class ArrayFile:
    """A file of numbers of one type, read in slices.

    It is not memory-mapped, because a process that reads all of a mapped file larger than the memory appears to use all
    of the memory.
    """

    def __init__(self, path: pathlib.Path, dtype: np.dtype | type, check: CheckedFile | None = None):
        self._path, self._dtype, self._check = path, np.dtype(dtype), check
        self._length = path.stat().st_size // self._dtype.itemsize

    def __len__(self) -> int:
        return self._length

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the elements of the file at indices `start` to `stop` - 1."""
        size = self._dtype.itemsize
        if self._check:
            self._check.check(slice(start * size, stop * size))
        return np.fromfile(self._path, self._dtype, stop - start, offset=start * size)


def _map(path: pathlib.Path, dtype: np.dtype | type, check: CheckedFile | None) -> np.ndarray | CheckedArray:
    """Return a file as a memory-mapped array; `check` compares the parts that are read with their checksums."""
    if path.stat().st_size == 0:  # an empty file cannot be mapped
        return np.zeros(0, dtype)
    # A plain array over the mapping, because every slice of a np.memmap is a np.memmap, which is slow to create.
    mapped = np.memmap(path, dtype, mode="r").view(np.ndarray)
    return CheckedArray(mapped, check) if check else mapped


class TextStoreWriter:
    """Writer of a tokenised text into a directory, in the files that `TextStore` opens."""

    def __init__(self, directory: pathlib.Path, vocabulary_size: int):
        dtype = token_dtype(vocabulary_size)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "store.json").write_text(json.dumps({"tokens": dtype.name}))
        self._tokens = ArrayWriter(directory / "tokens.bin", dtype)
        self._sentence_ends = ArrayWriter(directory / "sentence_ends.bin", np.int64)
        self._document_ends = ArrayWriter(directory / "document_ends.bin", np.int64)
        self.tokens = self._sentences = 0

    def append(self, sentences: list[list[int]]) -> bool:
        """Add a document, given as the token ids of its sentences; empty sentences are skipped.

        Returns whether the document was added: one without any token is not.
        """
        sentences = [sentence for sentence in sentences if sentence]
        if not sentences:
            return False
        ends = self.tokens + np.cumsum([len(sentence) for sentence in sentences])
        self._tokens.append(np.concatenate(sentences))
        self._sentence_ends.append(ends)
        self.tokens, self._sentences = int(ends[-1]), self._sentences + len(sentences)
        self._document_ends.append([self._sentences])
        return True

    def copy(self, store: "TextStore", first: int, last: int) -> None:
        """Add documents `first` to `last` - 1 of another store with the same type of tokens."""
        first_sentence, end_sentence = store.bounds(first)[0], store.bounds(last - 1)[1]
        first_token, end_token = store.token_index(first_sentence), store.token_index(end_sentence)
        for start, stop in _ranges(first_sentence, end_sentence):
            self._sentence_ends.append(store.sentence_ends(start, stop) + (self.tokens - first_token))
        for start, stop in _ranges(first, last):
            self._document_ends.append(store.document_ends(start, stop) + (self._sentences - first_sentence))
        for start, stop in _ranges(first_token, end_token):
            self._tokens.append(store.tokens.read(start, stop))
        self.tokens += end_token - first_token
        self._sentences += end_sentence - first_sentence

    def close(self) -> None:
        """Finish and close the files."""
        for writer in (self._tokens, self._sentence_ends, self._document_ends):
            writer.close()


def _ranges(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield (first, last + 1) of consecutive ranges of at most `COPIED_TOGETHER` numbers, to bound the memory."""
    return ((first, min(first + COPIED_TOGETHER, stop)) for first in range(start, stop, COPIED_TOGETHER))


class TextStore:
    """Token ids of a text, with the ends of its sentences and documents; opened from a directory."""

    def __init__(self, directory: pathlib.Path):
        meta = json.loads((directory / "store.json").read_text())
        self.tokens = ArrayFile(directory / "tokens.bin", meta["tokens"])
        self._sentence_ends = ArrayFile(directory / "sentence_ends.bin", np.int64)
        self._document_ends = _map(directory / "document_ends.bin", np.int64, None)

    def __len__(self) -> int:
        return len(self._document_ends)

    def token_index(self, sentence: int) -> int:
        """Return the index of the first token of a sentence of the whole text."""
        return int(self._sentence_ends.read(sentence - 1, sentence)[0]) if sentence else 0

    def sentence_ends(self, first: int, last: int) -> np.ndarray:
        """Return the index of the token after each of the sentences `first` to `last` - 1 of the whole text."""
        return self._sentence_ends.read(first, last)

    def document_ends(self, first: int, last: int) -> np.ndarray:
        """Return the index of the sentence after each of the documents `first` to `last` - 1."""
        return self._document_ends[first:last]

    def token_count(self, first: int, last: int) -> int:
        """Return the number of tokens of the documents `first` to `last` - 1, of which there is at least one."""
        return self.token_index(self.bounds(last - 1)[1]) - self.token_index(self.bounds(first)[0])

    def bounds(self, number: int) -> tuple[int, int]:
        """Return the index of the first sentence of a document, and of the first sentence after the document."""
        return int(self._document_ends[number - 1]) if number else 0, int(self._document_ends[number])

    def sentences(self, first: int, last: int) -> list[np.ndarray]:
        """Return sentences `first` to `last` - 1 of the whole text, each as an array of token ids."""
        start, ends = self.token_index(first), self.sentence_ends(first, last)
        return np.split(self.tokens.read(start, ends[-1]), ends[:-1] - start)

    def document(self, number: int) -> list[np.ndarray]:
        """Return the sentences of a document, each as an array of token ids."""
        return self.sentences(*self.bounds(number))


class Rows:
    """Rows of token ids, special tokens included, of different lengths, in memory-mapped files.

    tokens: token ids of all rows, one row after the other.
    ends: index in `tokens` at which each row ends (exclusive).
    has_pairs: whether rows are pairs of segments.
    second_start: with pairs, index in each row at which the second segment begins.
    is_random_next: with pairs, whether the second segment is a random one.
    is_packed: whether several texts may share a row.
    text_starts: in packed rows, index in `tokens` at which each text begins.

    With the `entry` of the cache for the directory, files that were too large to be checked when the entry was opened
    are checked as they are read.
    """

    def __init__(self, directory: pathlib.Path, entry: Entry | None = None):
        def array(name: str, dtype: np.dtype | type) -> np.ndarray | CheckedArray:
            path = directory / f"{name}.bin"
            return _map(path, dtype, entry.checked(path) if entry else None)

        meta = json.loads((directory / "rows.json").read_text())
        path = directory / "tokens.bin"
        self._file = ArrayFile(path, meta["tokens"], entry.checked(path) if entry else None)
        self._counts: dict[int, np.ndarray] = {}
        self.tokens = array("tokens", meta["tokens"])
        self.ends = array("ends", np.int64)
        self.has_pairs: bool = meta["has_pairs"]
        self.is_packed: bool = meta["is_packed"]
        if self.has_pairs:
            self.second_start = array("second_start", np.int32)
            self.is_random_next = array("is_random_next", np.int8)
        if self.is_packed:
            self.text_starts = array("text_starts", np.int64)

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each row, special tokens included."""
        return np.diff(self.ends, prepend=0)

    def row(self, number: int) -> np.ndarray:
        """Return the token ids of a row."""
        return self.tokens[self.ends[number - 1] if number else 0 : self.ends[number]]

    def gather(self, row_B: np.ndarray, length: int, *, pad: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (token ids, int32 `BL`; number of tokens of each row, `B`) for B rows, padded to the length L.

        length: number L of positions; shorter rows are padded on the right.
        pad: token id of the padding.
        """
        start_B, end_B = self._bounds(row_B)
        lengths_B = end_B - start_B
        position_L = np.arange(length)
        inside_BL = position_L < lengths_B[:, None]
        index_BL = np.minimum(start_B[:, None] + position_L, len(self.tokens) - 1)
        return np.where(inside_BL, self.tokens[index_BL], pad).astype(np.int32), lengths_B

    def segment_ids(self, row_B: np.ndarray, length: int) -> np.ndarray:
        """Return the segment ids of rows, int32 `BL` (batch, length): the text number from 1 on, and 0 on padding."""
        start_B, end_B = self._bounds(row_B)
        inside_BL = np.arange(length) < (end_B - start_B)[:, None]
        if not self.is_packed:
            return inside_BL.astype(np.int32)
        begins_BL = np.zeros(inside_BL.shape, np.int32)
        first_B, last_B = np.searchsorted(self.text_starts, start_B), np.searchsorted(self.text_starts, end_B)
        for begins_L, start, first, last in zip(begins_BL, start_B, first_B, last_B, strict=True):
            begins_L[self.text_starts[first:last] - start] = 1
        return np.where(inside_BL, np.cumsum(begins_BL, axis=1, dtype=np.int32), 0)

    def _bounds(self, row_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (first index, last index + 1) in `tokens` of each of the rows `row_B`, as two arrays."""
        return np.where(row_B > 0, self.ends[np.maximum(row_B - 1, 0)], 0), self.ends[row_B]

    @property
    def text_count(self) -> int:
        """The number of texts in all rows; in packed rows several texts share a row, without attention between them."""
        return len(self.text_starts) if self.is_packed else len(self)

    def counts(self, vocabulary_size: int) -> np.ndarray:
        """Return how often each token id occurs, special tokens included: int64 `V` (vocabulary); cached."""
        if vocabulary_size not in self._counts:
            counts_V = np.zeros(vocabulary_size, np.int64)
            for start in range(0, len(self._file), COUNTED_TOGETHER):
                tokens = self._file.read(start, min(start + COUNTED_TOGETHER, len(self._file)))
                counts_V += np.bincount(tokens, minlength=vocabulary_size)
            counts_V.flags.writeable = False
            self._counts[vocabulary_size] = counts_V
        return self._counts[vocabulary_size]

    def fill_rate(self, length: int) -> float:
        """Return the share of positions that hold a token, not padding, if rows are padded to `length`."""
        return len(self.tokens) / max(len(self) * length, 1)


class RowsWriter:
    """Writer of rows (`formats.Row`) into a directory, in the files that `Rows` opens.

    directory: the directory, created if missing.
    vocabulary_size: number of token ids.
    has_pairs: whether rows are pairs of segments.
    is_packed: whether several texts may share a row.
    """

    def __init__(
        self, directory: pathlib.Path, vocabulary_size: int, *, has_pairs: bool = False, is_packed: bool = False
    ):
        dtype = token_dtype(vocabulary_size)
        directory.mkdir(parents=True, exist_ok=True)
        meta = {"tokens": dtype.name, "has_pairs": has_pairs, "is_packed": is_packed}
        (directory / "rows.json").write_text(json.dumps(meta))
        names: dict[str, Any] = {"tokens": dtype, "ends": np.int64}
        if has_pairs:
            names |= {"second_start": np.int32, "is_random_next": np.int8}
        if is_packed:
            names["text_starts"] = np.int64
        self._writers = {name: ArrayWriter(directory / f"{name}.bin", kind) for name, kind in names.items()}
        self._end = 0

    def append(self, row) -> None:
        """Add a row."""
        if "text_starts" in self._writers:  # starts count from the row in `row.text_starts`, here from the first row
            self._writers["text_starts"].append(self._end + np.asarray(row.text_starts))
        self._end += len(row.tokens)
        self._writers["tokens"].append(row.tokens)
        self._writers["ends"].append([self._end])
        if "second_start" in self._writers:
            self._writers["second_start"].append([row.second_start])
            self._writers["is_random_next"].append([row.is_random_next])

    def close(self) -> None:
        """Finish and close the files."""
        for writer in self._writers.values():
            writer.close()


def write_rows(
    directory: pathlib.Path, rows: Iterable, vocabulary_size: int, *, has_pairs: bool = False, is_packed: bool = False
) -> None:
    """Write rows (`formats.Row`) into a directory, as the files that `Rows` reads."""
    writer = RowsWriter(directory, vocabulary_size, has_pairs=has_pairs, is_packed=is_packed)
    for row in interruption.checked(rows):
        writer.append(row)
    writer.close()
