"""Access to Google Cloud Storage for paths at `gs://`: gcsfs, whose failures are explained in one line.

* A failure that lasts is a `storage.StoreError`, whose line says what failed, where, and what helps. `exists` and
  `is_dir` raise it, too, in place of the answer False.
* gcsfs sends a request up to six times, with pauses of half a minute in all. If none succeeds, the error is a
  `storage.StoreUnavailableError`. Each of them has `ANSWER_WITHIN` seconds; gcsfs itself would wait without a limit.
* Listings are not cached, because other processes change the same directories.

This module needs the package gcsfs, which `pip install 'ag_jax[gcs]'` installs. fsspec imports this module when a path
at `gs://` is first used, as `storage` registers it.
"""

import json
import logging
import re
import urllib.parse
from typing import Any

import aiohttp
import gcsfs.core
import gcsfs.retry
import google.auth.exceptions

from ag_jax.distributed import storage

ANSWER_WITHIN = 20.0  # seconds for a connection, and between two parts of an answer
LARGE = 2**20  # bytes; aiohttp warns of longer ones in one piece
for _name in ("gcsfs", "fsspec"):  # they log a traceback of what they raise, too
    logging.getLogger(_name).setLevel(logging.CRITICAL)
_DONE_BY = {"GET": "read", "DELETE": "deleted"}


class Bucket(gcsfs.core.GCSFileSystem):
    """File system of Google Cloud Storage that explains failures in one line, and limits the time of a request."""

    def __init__(self, *arguments: Any, **options: Any):
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=ANSWER_WITHIN, sock_read=ANSWER_WITHIN)
        super().__init__(*arguments, **options | {"use_listings_cache": False, "requests_timeout": timeout})

    async def _request(self, method: str, path: str, *names: str, **options: Any) -> Any:
        """Send a request as gcsfs does, with its repetitions; return (status, headers, information, content).

        Raises FileNotFoundError, FileExistsError if a condition of the request does not hold, and `storage.StoreError`
        for all other failures.
        """
        sent, data = options, options.get("data")
        if isinstance(data, bytes | bytearray | memoryview) and len(data) > LARGE:
            # It is sent in pieces, between which other requests are answered, and whole again after a failure.
            sent = options | {"data": gcsfs.core.UnclosableBytesIO(data)}
        try:
            return await super()._request(method, path, *names, **sent)
        except Exception as error:
            address = _address(path, names, options)
            if isinstance(error, FileNotFoundError):
                raise FileNotFoundError(f"{address} does not exist") from None
            if isinstance(error, FileExistsError):
                raise FileExistsError(f"{address} was written by another process") from None
            raise _explained(error, method, address) from error

    async def _isdir(self, path: str) -> bool:
        return await self._is("directory", path)

    async def _isfile(self, path: str) -> bool:
        return await self._is("file", path)

    async def _is(self, kind: str, path: str) -> bool:
        try:
            return (await self._info(path))["type"] == kind
        except FileNotFoundError:
            return False

    async def _info(self, path: str, generation: Any = None, **options: Any) -> dict[str, Any]:
        """Return gcsfs's description of a path, with its name, size and type.

        Raises ValueError if its bucket does not exist.
        """
        name = self._strip_protocol(path).rstrip("/")
        if "/" not in name:  # gcsfs would need another permission, to describe the bucket
            await self._list_objects(name, max_results=1)
            return {"name": name, "size": 0, "type": "directory"}
        return await super()._info(path, generation=generation, **options)

    def check_bucket(self, path: str) -> None:
        """Raise ValueError if the bucket of a path does not exist, or if an object has the path as its name.

        Raises OSError if the bucket cannot be listed.
        """
        bucket, name, _ = self.split_path(path)
        try:
            listing = self.call("GET", "b/{}/o", bucket, prefix=name, maxResults=1, json_out=True)
        except FileNotFoundError:
            raise ValueError(
                f"{path}: there is no bucket {bucket}; check the name, or create it: gcloud storage buckets create "
                f"gs://{bucket}"
            ) from None
        if name and name in [item["name"] for item in listing.get("items", [])]:
            raise ValueError(f"{path} is an object, where a directory is expected: choose another directory")

    def remove_if(self, path: str, content: bytes) -> None:
        """Remove the object at a path if it has this content, unless another process writes it meanwhile."""
        bucket, name, _ = self.split_path(path)
        try:
            headers, text = self.call("GET", "b/{}/o/{}", bucket, name, alt="media")
            if text == content:
                generation = headers["x-goog-generation"]
                self.call("DELETE", "b/{}/o/{}", bucket, name, ifGenerationMatch=generation)
        except (FileNotFoundError, FileExistsError):
            pass


def _explained(error: Exception, method: str, address: str) -> storage.StoreError:
    """Return the exception, with advice, for a request that failed."""
    what, text = f"{address} cannot be {_DONE_BY.get(method, 'written')}", _reason(error)
    if text.startswith("Forbidden"):  # with this beginning, gcsfs tries to list an object that it may not read
        return storage.StoreError(
            f"Forbidden: {what} with these credentials: give them the role Storage Object Admin for the bucket, or use "
            "others (gcloud auth application-default login)"
        )
    is_unreachable = isinstance(error, google.auth.exceptions.TransportError)  # the server that gives credentials
    is_refused = isinstance(error, google.auth.exceptions.GoogleAuthError) or getattr(error, "code", None) == 401
    if is_unreachable or (gcsfs.retry.is_retriable(error) and not is_refused):
        return storage.StoreUnavailableError(
            f"{what}, because the store does not answer ({text}): check the network and run the same command again"
        )
    if is_refused:
        return storage.StoreError(f"{what} without credentials ({text}): gcloud auth application-default login")
    return storage.StoreError(f"{what}: {text}")


def _reason(error: Exception) -> str:
    """Return the first line of an error's message, or its type if there is no message."""
    text = str(error).strip().split("\n")[0]
    return text or {"ServerDisconnectedError": "connection lost"}.get(type(error).__name__, type(error).__name__)


def _address(path: str, names: tuple[str, ...], options: dict[str, Any]) -> str:
    """Return the address at `gs://` of the object, directory or bucket that a request is about.

    path, names: URL of the request, with `{}` for names, and these names.
    options: its parameters and its content; an upload names its object there.
    """
    if names:
        return "gs://" + "/".join([*names, options.get("prefix") or ""][:2]).rstrip("/")
    data = options.get("data")
    url = urllib.parse.urlsplit(path)
    _, _, name = url.path.partition("/b/")
    bucket, _, key = name.partition("/o")
    key = key.removeprefix("/") or dict(urllib.parse.parse_qsl(url.query)).get("name", "")
    if not key and isinstance(data, bytes | bytearray):
        described = re.search(rb"\{.*\}", bytes(data[:4096]).split(b"\n--", 2)[0])
        key = json.loads(described[0])["name"] if described else ""
    return "gs://" + "/".join(filter(None, (urllib.parse.unquote(part) for part in (bucket or path, key))))
