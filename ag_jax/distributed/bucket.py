"""Access to Google Cloud Storage for paths at `gs://`: gcsfs with other rules for failures.

* A request that fails for a reason that may pass, such as a lost connection, is repeated for `storage.patience()`
  seconds. gcsfs itself gives up after half a minute, and waits without a limit for a store that does not answer.
* Every other failure is a `storage.StoreError`, whose one line says what failed, where, and what helps. `exists` and
  `is_dir` raise it, too, in place of the answer False.
* Listings are not cached, because other processes change the same directories.

This module needs the package gcsfs, which `pip install 'ag_jax[gcs]'` installs. fsspec imports this module when a path
at `gs://` is first used, as `storage` registers it.
"""

import asyncio
import io
import json
import random
import re
import sys
import time
import urllib.parse
from typing import Any

import aiohttp
import gcsfs.core
import gcsfs.retry
import google.auth.exceptions

from ag_jax.distributed import storage

LONGEST_PAUSE = 32.0  # seconds between two tries of a request
WARN_AFTER = 10.0  # seconds of failures after which a line says that a request is repeated
# Seconds for which requests are repeated after one was given up, until the store answers again.
PATIENCE_AFTER_FAILURE = 5.0
LARGE = 2**20  # bytes; aiohttp warns of longer ones in one piece
_ONCE = gcsfs.core.GCSFileSystem._request.__wrapped__  # without the repetitions of gcsfs
_DONE_BY = {"GET": "read", "DELETE": "deleted"}


class Bucket(gcsfs.core.GCSFileSystem):
    """File system of Google Cloud Storage that repeats failed requests, and explains other failures in one line."""

    # Until the store answers again: whether a line says that it fails, and whether a request was given up.
    _has_warned, _gave_up = False, False

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options | {"use_listings_cache": False})

    async def _request(self, method: str, path: str, *names: str, **options: Any) -> Any:
        """Send a request, repeated while its failure may pass; return (status, headers, information, content).

        Raises FileNotFoundError, FileExistsError if a condition of the request does not hold, and `storage.StoreError`
        for all other failures.
        """
        began, tries, patience = time.monotonic(), 0, storage.patience()
        if Bucket._gave_up:  # a command that ends because of it need not wait again, such as to remove its lock
            patience = min(patience, PATIENCE_AFTER_FAILURE)
        deadline = began + patience
        address, data = _address(path, names, options), options.get("data")
        while True:
            seconds_left = deadline - time.monotonic()
            # A connection can be lost without notice, so another one is tried before the time is over.
            silence = max(1.0, min(seconds_left, patience / 3))
            self.requests_timeout = aiohttp.ClientTimeout(total=None, sock_connect=silence, sock_read=silence)
            if isinstance(data, bytes | bytearray | memoryview) and len(data) > LARGE:
                options["data"] = io.BytesIO(data)  # sent in pieces, so that other requests are answered meanwhile
            try:
                answer = await _ONCE(self, method, path, *names, **options)
            except FileNotFoundError:
                raise FileNotFoundError(f"{address} does not exist") from None
            except FileExistsError:
                raise FileExistsError(f"{address} was written by another process") from None
            except Exception as error:
                if not _may_pass(error):
                    raise _lasting(error, method, address) from error
                pause = min(2.0**tries, LONGEST_PAUSE) * random.uniform(0.5, 1.0)
                if time.monotonic() + pause > deadline:
                    Bucket._gave_up = True
                    raise storage.StoreError(
                        f"{address} cannot be {_DONE_BY.get(method, 'written')}: the store failed for "
                        f"{patience:g} seconds ({_reason(error)}). Check the network and run the same "
                        "command again; --store_timeout=SECONDS sets how long to try"
                    ) from error
                if time.monotonic() - began > WARN_AFTER and not Bucket._has_warned:
                    Bucket._has_warned = True
                    print(
                        f"{address}: the store fails ({_reason(error)}); trying for {patience:g} seconds",
                        file=sys.stderr,
                        flush=True,
                    )
                tries += 1
                await asyncio.sleep(pause)
            else:
                Bucket._has_warned = Bucket._gave_up = False
                return answer

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


def _may_pass(error: Exception) -> bool:
    """Return whether a failed request may succeed when it is repeated."""
    if isinstance(error, gcsfs.retry.HttpError) and str(error.code) == "401":
        return False
    return gcsfs.retry.is_retriable(error) or isinstance(error, TimeoutError | ConnectionError)


def _lasting(error: Exception, method: str, address: str) -> storage.StoreError:
    """Return the exception, with advice, for a failed request that repetition would not help."""
    verb = _DONE_BY.get(method, "written")
    text = _reason(error)
    if text.startswith("Forbidden"):  # with this beginning, gcsfs tries to list an object that it may not read
        return storage.StoreError(
            f"Forbidden: {address} cannot be {verb} with these credentials: give them the role Storage Object Admin "
            "for the bucket, or use others (gcloud auth application-default login)"
        )
    if isinstance(error, google.auth.exceptions.GoogleAuthError) or getattr(error, "code", None) == 401:
        return storage.StoreError(
            f"{address} cannot be {verb} without credentials ({text}): gcloud auth application-default login"
        )
    return storage.StoreError(f"{address} cannot be {verb}: {text}")


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
