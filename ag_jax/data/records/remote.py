"""List and open the files of a text in an object store, such as gs://BUCKET/TEXT.

Files are listed and read by fsspec, which needs gcsfs for gs:// and s3fs for s3://. A listing has the checksums that
the store keeps of its files, so that a change of the text is noticed without reading it.
"""

import dataclasses
import datetime
import errno
import io
import pathlib
import posixpath
from collections.abc import Mapping
from typing import IO, Any

from ag_jax.data.checksums import KnownContent
from ag_jax.distributed import storage

READ_TOGETHER = 2**20  # bytes of a buffer
# Keys of a listing that say which content a file has, by protocol or package; the first one that is there is taken.
FINGERPRINTS = ("md5Hash", "crc32c", "etag", "ETag", "content_md5", "generation", "mtime", "LastModified", "created")


@dataclasses.dataclass(frozen=True)
class RemoteFile:
    """A file in an object store, with the methods of `pathlib.Path` that readers of text use.

    url: its address, such as gs://BUCKET/books/one.txt.
    size: number of bytes.
    fingerprint: name and value of what tells its content from another.
    """

    url: str
    size: int
    fingerprint: str

    @property
    def name(self) -> str:
        """The last component of the file's address."""
        return posixpath.basename(self.url)

    def __str__(self) -> str:
        return self.url

    @property
    def content(self) -> KnownContent:
        """The file's size and fingerprint, which stand for its content."""
        return KnownContent(self.size, self.fingerprint)

    def open(self, mode: str = "rb") -> IO[bytes]:
        """Open the file for reading, with random access.

        Raises OSError, with the address, if the store cannot be read, also later, while the file is read.
        """
        del mode
        return io.BufferedReader(RemoteStream(self.url, _ask(self.url, "open", "rb")), READ_TOGETHER)

    def has_changed(self) -> bool:
        """Return whether the store has another content under this address by now."""
        return _remote_file(self.url, _ask(self.url, "info")) != self


class RemoteStream(io.RawIOBase):
    """Bytes of an open fsspec file as a raw stream, because fsspec's own `readline` takes no limit."""

    def __init__(self, url: str, opened: Any):
        self._url, self._opened = url, opened

    def readable(self) -> bool:
        """Return True, because the stream can be read."""
        return True

    def seekable(self) -> bool:
        """Return True, because object stores can be read from any position on."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position and return it."""
        return self._opened.seek(offset, whence)

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer as far as possible, and return the number of bytes."""
        try:
            content = self._opened.read(len(buffer))
        except Exception as error:  # stores raise different types
            raise _unreadable(self._url, error) from error
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        """Close the file."""
        if not self.closed:
            self._opened.close()
        super().close()


def is_remote(path: str) -> bool:
    """Return whether a part of a source is in an object store."""
    return "://" in path


def files(path: str) -> tuple[str, list[RemoteFile], set[str]]:
    """Return (base directory, files, addresses of the files named directly) of an address or glob.

    The others are below directories that it names. Files are in the order of their addresses. Raises FileNotFoundError
    if there are none, `storage.StoreUnavailableError` if the store does not answer, and ValueError if it cannot be
    used.
    """
    filesystem, protocol = _filesystem(path), path.partition("://")[0]
    named: list[RemoteFile] = []
    try:
        if any(wildcard in path for wildcard in "*?["):
            base = posixpath.dirname(path[: min(path.find(wildcard) % (len(path) + 1) for wildcard in "*?[")])
            listing = filesystem.glob(path, detail=True)
            named = _files(protocol, listing)
            folders = [name for name, info in listing.items() if info["type"] == "directory"]
            for folder in folders:
                listing |= filesystem.find(folder, detail=True)
        elif filesystem.isfile(path):
            base, listing = posixpath.dirname(path), {path: filesystem.info(path)}
            named = _files(protocol, listing)
        else:
            base, listing = path, filesystem.find(path, detail=True)
    except FileNotFoundError:
        listing = {}
    except storage.StoreUnavailableError:
        raise
    except Exception as error:  # stores raise different types
        raise ValueError(
            f"data.source={path!r} cannot be reached ({type(error).__name__}: {error}): check the name and your "
            "credentials (for gs://: gcloud auth application-default login)"
        ) from error
    every = _files(protocol, listing)
    if not every:
        raise FileNotFoundError(f"data.source={path!r} does not exist: expected a file, a directory or a glob there")
    return base, every, {file.url for file in named}


def relative(file: RemoteFile, base: str) -> str:
    """Return the address of a file relative to the directory `base`."""
    return posixpath.relpath(file.url.partition("://")[2], base.partition("://")[2] or "/")


def _files(protocol: str, listing: Mapping[str, Mapping[str, Any]]) -> list[RemoteFile]:
    """Return the files in an fsspec listing of an object store, in the order of their addresses."""
    urls = {
        name if "://" in name else f"{protocol}://{name.lstrip('/')}": info
        for name, info in listing.items()
        if info["type"] == "file" and not name.endswith("/")  # an empty file with such a name marks a directory
    }
    return [_remote_file(url, urls[url]) for url in sorted(urls, key=lambda url: pathlib.PurePosixPath(url).parts)]


def _remote_file(url: str, info: Mapping[str, Any]) -> RemoteFile:
    """Return the file that fsspec's `info` describes. Raises ValueError if it lacks a size or a fingerprint."""
    kind = next((name for name in FINGERPRINTS if info.get(name)), None)
    if kind is None:
        raise ValueError(
            f"the object store says neither a checksum nor a time of {url}, so that a change of the text would not be "
            "noticed: copy the text to gs:// or to a disk"
        )
    if info.get("size") is None:
        raise ValueError(f"the store does not say how large {url} is: copy the text to gs:// or to a disk")
    value = info[kind]
    if isinstance(value, datetime.datetime):  # some packages have the time of a file as a number in another listing
        value = value.timestamp()
    return RemoteFile(url, info["size"], f"{kind} {value}")


def _ask(url: str, method: str, *arguments: Any) -> Any:
    """Return what a method of the store's file system returns for an address. Raises OSError with the address."""
    try:
        return getattr(_filesystem(url), method)(url, *arguments)
    except FileNotFoundError:
        raise
    except Exception as error:  # stores raise different types
        raise _unreadable(url, error) from error


def _unreadable(url: str, error: Exception) -> OSError:
    """Return the exception for a file that a store does not give; it says if the store does not answer."""
    kind = storage.StoreUnavailableError if isinstance(error, storage.StoreUnavailableError) else OSError
    return kind(errno.EIO, f"cannot be read ({type(error).__name__}: {error})", url)


def _filesystem(path: str) -> Any:
    """Return fsspec's file system for an address, which keeps no listings, because they would hide changes.

    Raises ValueError with the remedy if the package for its protocol is missing.
    """
    import fsspec.core  # imported here, because it is rarely needed

    try:
        return fsspec.core.url_to_fs(path, use_listings_cache=False)[0]
    except (ImportError, ValueError) as error:  # ValueError for a protocol that fsspec does not know
        raise ValueError(
            f"data.source={path!r} cannot be opened ({error}): pip install 'ag_jax[gcs]' for gs://, s3fs for s3://"
        ) from error
