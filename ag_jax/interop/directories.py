"""Write a directory whole or not at all, and find a model's directory on disk or on the Hugging Face hub."""

import contextlib
import errno
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

from etils import epath

from ag_jax.distributed import storage
from ag_jax.interop import sentence_vectors, tensors, tokenizer_files

_WANTED = (
    "config.json",
    "generation_config.json",
    "README.md",
    "*.safetensors",
    tensors.INDEX,
    *tokenizer_files.NAMES,
    *sentence_vectors.NAMES,
)


def on_disk(path: epath.PathLike) -> pathlib.Path:
    """Return the absolute path of a directory to be written. Raises ValueError if it is in an object store."""
    if storage.is_remote(path):
        raise ValueError(
            f"{path} is in an object store, but export writes to disks only: give a local directory, and copy it to "
            "the store afterwards (gcloud storage cp -r)"
        )
    return pathlib.Path(path).expanduser().resolve()


def check_free(target: pathlib.Path | epath.Path) -> None:
    """Raise ValueError if `target`, a directory to be created, is a file or a directory that is not empty."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"{target} exists already and is a file or not empty: give a new or an empty directory")


@contextlib.contextmanager
def whole(target: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yield a temporary directory beside `target`, and rename it to `target` when the body ends without an error.

    The body must only write, because a disk error in it is raised as an OSError about `target`. After an error nothing
    is left. Raises ValueError if `target` exists and is not empty, or its parent cannot be written to.
    """
    check_free(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = pathlib.Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
    except OSError as error:
        raise ValueError(f"cannot write to {target.parent}: {error}. Choose a directory that can be written") from error
    try:
        partial.chmod(0o755)  # mkdtemp lets only the owner read
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


@contextlib.contextmanager
def whole_anywhere(target: epath.Path) -> Iterator[epath.Path]:
    """Yield a directory whose files are those of `target` when the body ends without an error: as `whole` on a disk.

    An object store renames no directories, so there it is `target` itself, which is removed after an error.
    """
    if not storage.is_remote(target):
        with whole(pathlib.Path(target)) as partial:
            yield epath.Path(partial)
        return
    check_free(target)
    try:
        yield target
    except BaseException:
        with contextlib.suppress(OSError):  # the store may be what failed
            target.rmtree(missing_ok=True)
        raise


def _why_not_written(error: BaseException | None) -> str | None:
    """Return the reason of the original disk error among `error` and its causes; None if there is none."""
    reason = None
    while error is not None:
        if isinstance(error, OSError):
            reason = error.strerror or str(error).strip().splitlines()[0]
        if "No space left on device" in str(error):  # Orbax raises no OSError for it
            return os.strerror(errno.ENOSPC)
        error = error.__cause__ or error.__context__
    return reason


def find(path: epath.PathLike) -> pathlib.Path:
    """Return the directory of a model: `path` itself if it exists, else a download from the hub.

    path: a directory, or a name on the hub with an optional branch, tag or commit, as in google/electra-small@main.

    Raises ValueError if `path` is neither a directory nor to be had from the Hugging Face hub, or if the model there
    has its weights only as a pickle.
    """
    path = os.fspath(path)
    directory = pathlib.Path(path).expanduser()
    if directory.is_dir():
        return directory.resolve()
    if directory.exists():
        raise ValueError(f"--from={path} is a file: give the directory with config.json and {tensors.WHOLE}")
    name, at, revision = path.partition("@")
    if path.startswith(("/", ".", "~")) or name.count("/") > 1 or (at and not revision):
        raise ValueError(
            f"--from={path} does not exist: give a directory, or a name on the hub (NAME or OWNER/NAME, with @REVISION "
            "for a branch, a tag or a commit)"
        )
    try:
        import huggingface_hub
    except ImportError as error:
        raise ValueError(
            f"--from={path} is no directory here; to take it from the hub: pip install huggingface_hub ({error})"
        ) from error
    try:
        found = pathlib.Path(
            huggingface_hub.snapshot_download(name, allow_patterns=list(_WANTED), revision=revision or None)
        )
        whole_or_shards = any((found / file).exists() for file in (tensors.WHOLE, tensors.INDEX))
        pickled = not whole_or_shards and any(
            huggingface_hub.file_exists(name, file, revision=revision or None) for file in tensors.PICKLES
        )
    except Exception as error:  # exceptions of huggingface_hub, and of two libraries below it
        reason = str(error).strip().splitlines()[0] if str(error).strip() else ""
        raise ValueError(
            f"--from={path} is no directory here, and the Hugging Face hub did not give it "
            f"({type(error).__name__}: {reason}). Check the name and the network, or copy the model to a directory "
            "and give that"
        ) from error
    if pickled:
        command = f"{name} --revision={revision}" if revision else name
        raise ValueError(
            f"{path} has its weights only as a pickle, which can run any program when it is read, so the model is not "
            f"fetched. If you trust the model, run `hf download {command} --local-dir=DIR`, then import --from=DIR: "
            "this stops with a command that converts the pickle"
        )
    return found
