"""Checksums of the blocks of files, so that a large file can be checked block by block as it is read."""

import dataclasses
import hashlib
import json
import pathlib
import zlib
from collections.abc import Sequence

import numpy as np

from ag_jax.distributed import interruption

BLOCK = 2**18  # bytes


@dataclasses.dataclass(frozen=True)
class KnownContent:
    """Size and fingerprint of content that is identified without reading it, such as a file of an object store.

    size: number of bytes; 0 if it is unknown.
    fingerprint: text that only this content has, such as the checksum that an object store keeps.
    """

    size: int
    fingerprint: str


def of_file(path: pathlib.Path) -> list[int]:
    """Return the CRC-32 checksum of each block of `BLOCK` bytes of a file."""
    with path.open("rb") as file:
        return [zlib.crc32(block) for block in interruption.checked(iter(lambda: file.read(BLOCK), b""))]


def content_hash(path: pathlib.Path) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of a file."""
    content = hashlib.sha256()
    with path.open("rb") as file:
        for block in interruption.checked(iter(lambda: file.read(BLOCK), b"")):
            content.update(block)
    return content.hexdigest()[:16]


class CheckedFile:
    """A file whose blocks are compared with their checksums when they are first read.

    path: the file.
    checksums: CRC-32 of each block, as from `of_file`.
    advice: remedy for a damaged file, for the error message.
    """

    def __init__(self, path: pathlib.Path, checksums: Sequence[int], advice: str):
        self._path, self._checksums, self._advice = path, checksums, advice
        self._unread = np.ones(len(checksums), bool)

    def check(self, offsets: int | slice | np.ndarray) -> None:
        """Compare the blocks that contain the bytes at `offsets` with their checksums; skip blocks compared before.

        offsets: offset of a byte in the file, a slice of offsets, or an array of them.

        Raises ValueError, with the name of the file, if a block differs.
        """
        if not self._unread.any():
            return
        if isinstance(offsets, slice):
            block = np.arange(offsets.start // BLOCK, -(-offsets.stop // BLOCK))
        else:
            block = np.unique(np.asarray(offsets) // BLOCK)
        with self._path.open("rb") as file:
            for number in block[self._unread[block]]:
                file.seek(int(number) * BLOCK)
                if zlib.crc32(file.read(BLOCK)) != self._checksums[number]:
                    raise ValueError(
                        f"{self._path} is damaged (in block {number}; blocks have {BLOCK} bytes): {self._advice}"
                    )
                self._unread[number] = False


class CheckedArray:
    """A memory-mapped array of one axis; blocks of its file are compared with their checksums when they are first read.

    Raises ValueError for a damaged block.
    """

    def __init__(self, array: np.ndarray, file: CheckedFile):
        self._array, self._file = array, file

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, index: int | slice | np.ndarray) -> np.ndarray:
        size = self._array.itemsize
        if isinstance(index, slice):
            if places := range(len(self))[index]:
                first, last = sorted((places[0], places[-1]))
                self._file.check(slice(first * size, (last + 1) * size))
        else:
            self._file.check(np.asarray(index) % len(self) * size)  # negative indices count from the end
        return self._array[index]

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self[:], dtype=dtype, copy=copy)


@dataclasses.dataclass(frozen=True)
class Entry:
    """A complete directory of the cache, with the checksums of its files.

    path: the directory.
    checksums: CRC-32 of each block of each file, by the file's name below `path`.
    unread: names of the files that were too large to be compared with their checksums when the directory was opened.
    """

    path: pathlib.Path
    checksums: dict[str, list[int]]
    unread: frozenset[str] = frozenset()

    def checked(self, path: pathlib.Path) -> CheckedFile | None:
        """Return a checker of the blocks of a file as they are read; None if the whole file has been checked already.

        Returns None if the whole file was compared with its checksums when the directory was opened.
        """
        name = path.relative_to(self.path).as_posix()
        remedy = f"delete the folder {self.path} and run the same command again, which makes it anew"
        return CheckedFile(path, self.checksums[name], remedy) if name in self.unread else None

    def digest(self, folder: str) -> str:
        """Return a hash of the names and checksums of all files in a folder; equal files give equal hashes."""
        files = {name: values for name, values in self.checksums.items() if name.startswith(f"{folder}/")}
        return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:16]
