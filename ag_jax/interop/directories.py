"""Directories that appear whole or not at all, and those that come from a hub."""

import contextlib
import errno
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

from ag_jax.interop import tensors, tokenizer_files

_WANTED = ("config.json", "README.md", "*.safetensors", tensors.INDEX, *tokenizer_files.NAMES)


def check_free(target: pathlib.Path) -> None:
    """Raise ValueError if a directory that is to be made is there and not empty."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"{target} exists already and is not empty: give a directory that is to be made")


@contextlib.contextmanager
def whole(target: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yield a temporary directory beside `target`, which is renamed to `target` when the body has filled it.

    The body only writes: an error of the disk in it becomes one OSError. After an error nothing is left. Raises
    ValueError if `target` exists and is not empty.
    """
    check_free(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = pathlib.Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
    except OSError as error:
        raise ValueError(f"cannot write to {target.parent}: {error}. Choose a directory that can be written") from error
    try:
        partial.chmod(0o755)
        yield partial
        partial.replace(target)
    except Exception as error:
        if (reason := _why_not_written(error)) is None:
            raise
        raise OSError(
            f"cannot write {target}: {reason}. Nothing of it was kept; make room there, or choose another directory"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _why_not_written(error: BaseException | None) -> str | None:
    """Return the reason of the first disk error in the chain of causes of `error`; None if there is none."""
    said = None
    while error is not None:
        if isinstance(error, OSError):
            said = error.strerror or str(error).strip().splitlines()[0]
        if "No space left on device" in str(error):  # Orbax raises no OSError for it
            return os.strerror(errno.ENOSPC)
        error = error.__cause__ or error.__context__
    return said


def find(path: str) -> pathlib.Path:
    """The directory of a model: `path` itself if it is there, else what the Hugging Face hub has by that name.

    Raises ValueError if it is neither here nor to be had.
    """
    directory = pathlib.Path(path).expanduser()
    if directory.is_dir():
        return directory.resolve()
    if directory.exists():
        raise ValueError(f"--from={path} is a file: give the directory with config.json and {tensors.WHOLE}")
    if path.startswith(("/", ".", "~")) or path.count("/") > 1:
        raise ValueError(f"--from={path} does not exist")
    try:
        import huggingface_hub
    except ImportError as error:
        raise ValueError(
            f"--from={path} is no directory here; to take it from the hub: pip install huggingface_hub ({error})"
        ) from error
    try:
        found = pathlib.Path(huggingface_hub.snapshot_download(path, allow_patterns=list(_WANTED)))
        whole_or_shards = any((found / name).exists() for name in (tensors.WHOLE, tensors.INDEX))
        pickled = not whole_or_shards and any(huggingface_hub.file_exists(path, name) for name in tensors.PICKLES)
    except Exception as error:  # its own kinds, and those of two libraries below it
        reason = str(error).strip().splitlines()[0] if str(error).strip() else ""
        raise ValueError(
            f"--from={path} is no directory here, and the Hugging Face hub did not give it ({type(error).__name__}: {reason}). "
            "Check the name and the network, or copy the model to a directory and give that"
        ) from error
    if pickled:
        raise ValueError(
            f"{path} has its weights as a pickle alone, which can run any program when it is read, so it is not fetched. If you trust "
            f"it: hf download {path} --local-dir=DIR, and then --from=DIR, which says how to convert it"
        )
    return found
