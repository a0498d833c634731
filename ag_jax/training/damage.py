"""Classification of checkpoint errors: damaged content, or an obstacle to reading or writing it."""

import errno
import re
from collections.abc import Iterator
from typing import Any

from etils import epath

from ag_jax.distributed import storage

# A file that is missing, or is not a regular file, inside a checkpoint is damage. All other errors of the operating
# system, such as permissions, too many open files or a lost connection, say nothing about the content.
_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SYSTEM_ERROR = re.compile(r"\[os_error_code='(\d+)'")  # TensorStore raises its errors as ValueError
_STATUS = re.compile(
    r"^(PERMISSION_DENIED|UNAUTHENTICATED|RESOURCE_EXHAUSTED|UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|CANCELLED)\b"
)
_DETAILS = re.compile(
    r" \[(os_error_code|tensorstore_spec|source_locations|http_response_code|http_response_body|curl_code)=.*"
)
_PIECE = 1 << 24  # bytes read at once


class CorruptCheckpointError(Exception):
    """Error for a checkpoint whose content cannot be decoded, or differs from what was written."""

    def __init__(self, step: int, reason: Any):
        self.step, self.reason = step, first_line(reason)
        super().__init__(f"the checkpoint of step {step} is damaged ({self.reason})")


def judge(step: int, folder: epath.Path, error: Exception) -> CorruptCheckpointError | OSError:
    """Return the exception to raise when a checkpoint cannot be read: one for damage, or for an obstacle to reading.

    It is a CorruptCheckpointError only if no cause of `error` is an obstacle in the system, such as missing
    permissions, and every file can be read; otherwise an OSError.
    """
    obstacle = next((each for each in _chain(error) if _is_obstacle(each)), None) or _unreadable(folder)
    if obstacle is None:
        return CorruptCheckpointError(step, cause_of(error))
    if storage.is_remote(folder):
        failure = store_failure(obstacle)
        return type(failure)(f"cannot read the checkpoint of step {step}: {failure}. Nothing was changed in {folder}")
    return OSError(
        f"cannot read the checkpoint of step {step}: {first_line(obstacle)}\n"
        f"This says nothing about the content of {folder}, so nothing was changed. Run the same command again when the "
        "cause is removed"
    )


def cause_of(error: BaseException) -> str:
    """Return the message of the innermost exception in an error's chain of causes, in one line."""
    *_, first = _chain(error)
    return first_line(first)


def first_line(error: Any) -> str:
    """Return the first line of an error's message, without TensorStore's details; a long line loses its middle."""
    text = _DETAILS.sub("", str(error).strip().split("\n")[0])
    text = text if len(text) <= 300 else f"{text[:100]} ... {text[-195:]}"
    return f"{type(error).__name__}: {text}" if isinstance(error, KeyError) else text or type(error).__name__


def store_failure(error: BaseException) -> storage.StoreError:
    """Return an exception that says in one line why an object store could not be read or written, and what helps."""
    failure = next((each for each in _chain(error) if isinstance(each, storage.StoreError)), None)
    if failure is not None:
        return failure
    cause = cause_of(error)
    if "PERMISSION_DENIED" in cause:
        return storage.StoreError(f"{cause}. Give these credentials the role Storage Object Admin for the bucket")
    if "retry attempts failed" in cause:  # in the words of TensorStore
        return storage.StoreUnavailableError(f"{cause}. Check the network")
    return storage.StoreError(cause)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def is_full(error: Exception) -> bool:
    """Return whether a write failed because the disk is full, a quota is exceeded or the file is too large."""
    return any(code in _FULL for each in _chain(error) for code in _codes(each))


def _is_obstacle(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError):
        return not isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError)
    return any(code not in _MISSING for code in _codes(error)) or bool(_STATUS.match(str(error)))


def _codes(error: BaseException) -> list[int]:
    """Return the operating system's error numbers (errno) that an error holds or mentions."""
    if isinstance(error, OSError) and error.errno is not None:
        return [error.errno]
    return [int(code) for code in _SYSTEM_ERROR.findall(str(error))]


def _unreadable(folder: epath.Path) -> Exception | None:
    """Try to read all files of a folder; return the error that prevents it, which Orbax may have hidden, or None.

    A missing file is damage rather than an obstacle, and gives None.
    """
    try:
        for path in folder.iterdir():
            if path.is_dir():
                if error := _unreadable(path):
                    return error
                continue
            with path.open("rb") as file:
                while file.read(_PIECE):
                    pass
    except FileNotFoundError:
        return None
    except Exception as error:  # every store has its own kinds
        return error
    return None
