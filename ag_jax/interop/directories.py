"""Write a directory whole or not at all, and find a model's directory on disk or on the Hugging Face hub."""

import contextlib
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
            f"{path} is in an object store, but an export needs a directory on a disk: give one, and copy it"
        )
    return pathlib.Path(path).expanduser().resolve()


def check_free(target: pathlib.Path | epath.Path) -> None:
    """Raise ValueError if `target`, a directory to be created, is a file or a directory that is not empty."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"{target} exists already and is a file or not empty: give a new or an empty directory")


@contextlib.contextmanager
def whole(target: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yield a temporary directory beside `target`, and rename it to `target` when the body ends without an error.

    After an error nothing is left. Raises ValueError if `target` exists and is not empty.
    """
    check_free(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = pathlib.Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
    try:
        partial.chmod(0o755)  # mkdtemp lets only the owner read
        yield partial
        partial.replace(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def whole_anywhere(target: epath.Path) -> Iterator[epath.Path]:
    """Yield a directory that becomes `target`, on a disk or in an object store, when the body ends without an error.

    On a disk, it is that of `whole`. An object store renames no directories, so there it is `target` itself, which is
    removed after an error.
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
    name, mark, revision = path.partition("@")
    if directory.exists() or path.startswith(("/", ".", "~")) or name.count("/") > 1 or (mark and not revision):
        raise ValueError(
            f"{path} is no directory: give one with config.json and {tensors.WHOLE}, or a name on the hub "
            "(NAME, OWNER/NAME or OWNER/NAME@REVISION)"
        )
    import huggingface_hub  # slow

    try:
        snapshot = pathlib.Path(
            huggingface_hub.snapshot_download(name, allow_patterns=list(_WANTED), revision=revision or None)
        )
        has_weights = any((snapshot / file).exists() for file in (tensors.WHOLE, tensors.INDEX))
        is_pickled = not has_weights and any(
            huggingface_hub.file_exists(name, file, revision=revision or None) for file in tensors.PICKLES
        )
    except Exception as error:  # exceptions of huggingface_hub, and of two libraries below it
        reason = str(error).strip().splitlines()[0] if str(error).strip() else ""
        raise ValueError(
            f"{path} is no directory here, and the Hugging Face hub did not give it "
            f"({type(error).__name__}: {reason}); check the name and the network"
        ) from error
    if is_pickled:
        command = f"{name} --revision={revision}" if revision else name
        raise ValueError(
            f"{path} has its weights only as a pickle, which can run any program when it is read, so it is not "
            f"fetched; if you trust it, run `hf download {command} --local-dir=DIR`, and import --from=DIR, which "
            "names a command that converts the pickle"
        )
    return snapshot
