"""Store token ids on disk: sentences in documents (`TextStore`) and the rows that are made of them (`Rows`).

Both are written as a stream, so a corpus may be larger than the memory.

Beside the tokens may be pointers (`data.pointers`): for each name a file `pointers-NAME.bin` with as many numbers as
there are tokens, int16: the offset from a token to the one that it points to, `ABSENT` if it has none.

Shape letters: B batch, L length, P names of pointers, T tokens.
"""

import itertools
import json
import os
import pathlib
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ag_jax.data.checksums import CheckedArray, CheckedFile, Entry

WRITE_BUFFER = 2**20  # bytes
COUNTED_TOGETHER = 2**22  # tokens
COPIED_TOGETHER = 2**20  # numbers
WRITTEN_TOGETHER = 1024  # rows
ABSENT = -(2**15)  # in place of the offset of a token without a pointer


def token_dtype(vocabulary_size: int) -> np.dtype:
    """Return the smallest unsigned type, uint16 or uint32, that holds every token id."""
    return np.dtype(np.uint16 if vocabulary_size <= 2**16 else np.uint32)


def joined(ids: Iterable[Sequence[int]], vocabulary_size: int) -> np.ndarray:
    """Return lists of token ids as one array, in the type of `token_dtype`."""
    return np.fromiter(itertools.chain.from_iterable(ids), token_dtype(vocabulary_size))


class ArrayWriter:
    """Writer that appends numbers of one type to a file."""

    def __init__(self, path: pathlib.Path, dtype: np.dtype | type):
        self._file, self._dtype = path.open("wb", buffering=WRITE_BUFFER), np.dtype(dtype)

    def append(self, values: np.ndarray) -> None:
        """Append numbers to the file."""
        self._file.write(np.ascontiguousarray(values, self._dtype).data)

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
        self.dtype, self._check = np.dtype(dtype), check
        self._length = path.stat().st_size // self.dtype.itemsize
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)

    def __len__(self) -> int:
        return self._length

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the elements of the file at indices `start` to `stop` - 1."""
        size = self.dtype.itemsize
        if self._check:
            self._check.check(slice(start * size, stop * size))
        offset, count = start * size, (stop - start) * size
        content = os.pread(self._file, count, offset)
        while len(content) < count and (more := os.pread(self._file, count - len(content), offset + len(content))):
            content += more  # one call reads at most 2 GiB
        return np.frombuffer(content, self.dtype)


def _map(path: pathlib.Path, dtype: np.dtype | type, check: CheckedFile | None) -> np.ndarray | CheckedArray:
    """Return a file as a memory-mapped array; `check` compares the parts that are read with their checksums."""
    if path.stat().st_size == 0:  # an empty file cannot be mapped
        return np.zeros(0, dtype)
    # A plain array over the mapping, because every slice of a np.memmap is a np.memmap, which is slow to create.
    mapped = np.memmap(path, dtype, mode="r").view(np.ndarray)
    return CheckedArray(mapped, check) if check else mapped


def _pointers_file(directory: pathlib.Path, name: str) -> pathlib.Path:
    """Return the file with the pointers of a name, in the directory of a text or of rows."""
    return directory / f"pointers-{name}.bin"


def _pointers_meta(names: Sequence[str]) -> dict[str, list[str]]:
    """Return what the JSON file of a directory has about its pointers; nothing if there are none."""
    return {"pointers": list(names)} if names else {}


class TextStoreWriter:
    """Writer of a tokenised text, perhaps with pointers, into a directory, in the files that `TextStore` opens."""

    def __init__(self, directory: pathlib.Path, vocabulary_size: int, pointers: Sequence[str] = ()):
        dtype = token_dtype(vocabulary_size)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "store.json").write_text(json.dumps({"tokens": dtype.name, **_pointers_meta(pointers)}))
        self._pointers = {name: ArrayWriter(_pointers_file(directory, name), np.int16) for name in pointers}
        self._tokens = ArrayWriter(directory / "tokens.bin", dtype)
        self._sentence_ends = ArrayWriter(directory / "sentence_ends.bin", np.int64)
        self._document_ends = ArrayWriter(directory / "document_ends.bin", np.int64)
        self.tokens = self._sentences = 0

    def append(
        self,
        tokens: np.ndarray,
        lengths: np.ndarray,
        sentences: np.ndarray,
        pointers: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Add documents.

        tokens: token ids of all their sentences, one after the other.
        lengths: number of tokens of each sentence, at least one.
        sentences: number of sentences of each document, at least one.
        pointers: offsets of all tokens, by name; names that are missing have no pointers in these documents.
        """
        for name, writer in self._pointers.items():
            writer.append((pointers or {}).get(name, np.full(len(tokens), ABSENT, np.int16)))
        self._tokens.append(tokens)
        self._sentence_ends.append(self.tokens + np.cumsum(lengths))
        self._document_ends.append(self._sentences + np.cumsum(sentences))
        self.tokens, self._sentences = self.tokens + len(tokens), self._sentences + len(lengths)

    def copy(self, store: "TextStore", first: int, last: int) -> None:
        """Add documents `first` to `last` - 1 of another store with the same type of tokens."""
        first_sentence, end_sentence = store.bounds(first)[0], store.bounds(last - 1)[1]
        first_token, end_token = store.token_index(first_sentence), store.token_index(end_sentence)
        for start, stop in ranges(first_sentence, end_sentence):
            self._sentence_ends.append(store.sentence_ends(start, stop) + (self.tokens - first_token))
        for start, stop in ranges(first, last):
            self._document_ends.append(store.document_ends(start, stop) + (self._sentences - first_sentence))
        for start, stop in ranges(first_token, end_token):
            self._tokens.append(store.tokens.read(start, stop))
            for name, writer in self._pointers.items():
                writer.append(store.pointers[name].read(start, stop))
        self.tokens += end_token - first_token
        self._sentences += end_sentence - first_sentence

    def close(self) -> None:
        """Finish and close the files."""
        for writer in (self._tokens, self._sentence_ends, self._document_ends, *self._pointers.values()):
            writer.close()


def ranges(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield (first, last + 1) of consecutive ranges of at most `COPIED_TOGETHER` numbers, to bound the memory."""
    return ((first, min(first + COPIED_TOGETHER, stop)) for first in range(start, stop, COPIED_TOGETHER))


def add_pointers(directory: pathlib.Path, name: str, offsets: Iterable[np.ndarray]) -> None:
    """Add pointers to a stored text: the offsets of all of its tokens, in pieces."""
    writer = ArrayWriter(_pointers_file(directory, name), np.int16)
    for piece in offsets:
        writer.append(piece)
    writer.close()
    meta = json.loads((directory / "store.json").read_text())
    (directory / "store.json").write_text(json.dumps({**meta, **_pointers_meta([*meta["pointers"], name])}))


class TextStore:
    """Token ids of a text, with the ends of its sentences and documents; opened from a directory.

    tokens: token ids.
    pointers: offsets of all tokens, by name.
    """

    def __init__(self, directory: pathlib.Path):
        meta = json.loads((directory / "store.json").read_text())
        self.tokens = ArrayFile(directory / "tokens.bin", meta["tokens"])
        names = meta.get("pointers", [])
        self.pointers = {name: ArrayFile(_pointers_file(directory, name), np.int16) for name in names}
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

    @property
    def sentence_count(self) -> int:
        """The number of sentences of the text."""
        return len(self._sentence_ends)

    def document_begins(self, first: int, last: int) -> np.ndarray:
        """Return which of the sentences `first` to `last` - 1 of the whole text begin a document."""
        begins = self._document_ends[slice(*np.searchsorted(self._document_ends, (first, last)))]
        return np.append(0, begins) if first == 0 else begins

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
        # One number more, the end of the sentence before; plain slices, because np.split is slow for short ones.
        ends = self._sentence_ends.read(max(first - 1, 0), last).tolist()
        start = ends.pop(0) if first else 0
        tokens = self.tokens.read(start, ends[-1])
        return [tokens[begin - start : end - start] for begin, end in itertools.pairwise([start, *ends])]

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
    pointers: for each name, the offset of every token, `ABSENT` without a pointer.

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
        self.pointers = {name: array(f"pointers-{name}", np.int16) for name in meta.get("pointers", [])}

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
        index_BL, inside_BL, lengths_B = self._places(row_B, length)
        return np.where(inside_BL, self.tokens[index_BL], pad).astype(np.int32), lengths_B

    def gather_pointers(self, row_B: np.ndarray, length: int) -> np.ndarray:
        """Return the pointers of rows, int16 `BPL` (batch, names, length), `ABSENT` on padding."""
        index_BL, inside_BL, _ = self._places(row_B, length)
        offsets = [np.where(inside_BL, of_name[index_BL], ABSENT) for of_name in self.pointers.values()]
        return np.stack(offsets, axis=1).astype(np.int16)

    def _places(self, row_B: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (index in `tokens` of each position, whether it is in its row; number of tokens of each row).

        The first two are `BL` for rows padded to the length L, the last is `B`.
        """
        start_B, end_B = self._bounds(row_B)
        position_L = np.arange(length)
        inside_BL = position_L < (end_B - start_B)[:, None]
        return np.minimum(start_B[:, None] + position_L, len(self.tokens) - 1), inside_BL, end_B - start_B

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


class Row(NamedTuple):
    """One training sequence as token ids: a text, a pair of segments, or several packed texts.

    tokens: token ids, special tokens included.
    second_start: index in `tokens` at which the second segment of a pair begins; 0 if there is no pair.
    is_random_next: whether the second segment of a pair is from a random place instead of the continuation.
    text_starts: index in `tokens` at which each text begins: 0, and those of further texts that `packing` adds.
    pointers: offsets from each token to the one that it points to, int16 `PT` (names of pointers, tokens).
    """

    tokens: np.ndarray
    second_start: int = 0
    is_random_next: bool = False
    text_starts: Sequence[int] | np.ndarray = (0,)
    pointers: np.ndarray | None = None


class Block(NamedTuple):
    """Consecutive rows as arrays: what `Row` has for one row.

    tokens: token ids of the rows, one after the other.
    lengths: number of tokens of each row.
    text_starts: index in the block's `tokens` at which each text begins; packed rows have several texts.
    second_start, is_random_next: of each row; ignored in formats without pairs of segments.
    pointers: offsets from each token to the one that it points to, int16 `PT` (names of pointers, tokens).
    """

    tokens: np.ndarray
    lengths: np.ndarray
    text_starts: np.ndarray
    second_start: np.ndarray | None = None
    is_random_next: np.ndarray | None = None
    pointers: np.ndarray | None = None

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "Block":
        """Return the block of some rows."""
        lengths = np.array([len(row.tokens) for row in rows], np.int64)
        begins = np.cumsum(lengths) - lengths
        return cls(
            np.concatenate([row.tokens for row in rows]),
            lengths,
            np.concatenate([begin + np.asarray(row.text_starts) for begin, row in zip(begins, rows, strict=True)]),
            np.array([row.second_start for row in rows], np.int32),
            np.array([row.is_random_next for row in rows], np.int8),
            joined_pointers([row.pointers for row in rows]),
        )

    def rows(self) -> Iterator[Row]:
        """Yield the rows of a block without pairs, each of one text."""
        ends = np.cumsum(self.lengths)[:-1]
        texts = np.split(self.tokens, ends)
        if self.pointers is None:
            return map(Row, texts)
        pointers = np.split(self.pointers, ends, axis=1)
        return (Row(text, pointers=of_text) for text, of_text in zip(texts, pointers, strict=True))


def joined_pointers(pointers: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """Return pointers of consecutive tokens, arrays `PT`, as one such array; None if there are none."""
    present = [of_row for of_row in pointers if of_row is not None]
    return np.concatenate(present, axis=1) if present else None


def blocks(rows: Iterable[Sequence[Row]]) -> Iterator[tuple[Block, ...]]:
    """Yield rows, each given by its sides, such as source and target, in blocks: one for each side of many rows."""
    rows = iter(rows)
    while together := list(itertools.islice(rows, WRITTEN_TOGETHER)):
        yield tuple(Block.of(side) for side in zip(*together, strict=True))


class RowsWriter:
    """Writer of rows into a directory, in the files that `Rows` opens.

    directory: the directory, created if missing.
    vocabulary_size: number of token ids.
    has_pairs: whether rows are pairs of segments.
    is_packed: whether several texts may share a row.
    pointers: names of the pointers of the rows.

    end: number of tokens that were written.
    """

    def __init__(
        self,
        directory: pathlib.Path,
        vocabulary_size: int,
        *,
        has_pairs: bool = False,
        is_packed: bool = False,
        pointers: Sequence[str] = (),
    ):
        dtype = token_dtype(vocabulary_size)
        directory.mkdir(parents=True, exist_ok=True)
        meta = {"tokens": dtype.name, "has_pairs": has_pairs, "is_packed": is_packed, **_pointers_meta(pointers)}
        (directory / "rows.json").write_text(json.dumps(meta))
        names: dict[str, Any] = {"tokens": dtype, "ends": np.int64}
        if has_pairs:
            names |= {"second_start": np.int32, "is_random_next": np.int8}
        if is_packed:
            names["text_starts"] = np.int64
        self._writers = {name: ArrayWriter(directory / f"{name}.bin", kind) for name, kind in names.items()}
        self._pointers = [ArrayWriter(_pointers_file(directory, name), np.int16) for name in pointers]
        self.end = 0

    def append(self, block: Block) -> None:
        """Add the rows of a block."""
        # Ends and starts count from the block, in the files from the first row.
        places = {"ends": self.end + np.cumsum(block.lengths), "text_starts": self.end + block.text_starts}
        values = {**block._asdict(), **places}
        for name, writer in self._writers.items():
            writer.append(values[name])
        for writer, offsets in zip(self._pointers, () if block.pointers is None else block.pointers, strict=True):
            writer.append(offsets)
        self.end += len(block.tokens)

    def close(self) -> None:
        """Finish and close the files."""
        for writer in (*self._writers.values(), *self._pointers):
            writer.close()
