"""Read and write safetensors files, whole or in shards; tensors are read one at a time."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping

import ml_dtypes
import numpy as np
import safetensors
from safetensors.numpy import save_file

from ag_jax.data.json_files import read_json, reading
from ag_jax.interop.layouts import Shape

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
# The command changes no names or values, so it works with any head; `weights_only` unpickles tensors and nothing else,
# and without `map_location` tensors of a GPU are not read where there is none.
CONVERSION = (
    "python -c \"import glob, torch, safetensors.torch as s; files = glob.glob('{directory}/pytorch_model*.bin'); "
    "o = {{'map_location': 'cpu', 'weights_only': True}}; "
    "t = {{k: v.clone().contiguous() for f in files for k, v in torch.load(f, **o).items()}}; "
    "s.save_file(t, '{directory}/model.safetensors')\""
)
_FLOATS = ("F64", "F32", "F16", "BF16")
_BUFFERS = (".position_ids", ".token_type_ids", ".version")  # of transformers and fairseq, no parameters
DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16)}


@dataclasses.dataclass(frozen=True)
class _Entry:
    """Where a tensor is stored: the file, the name of the stored tensor, and which of its rows the tensor has.

    file: for a tensor of zeros, which is not stored, the file that messages name.
    name: None for a tensor of zeros.
    shape: of the tensor, which may be a part of the stored one.
    rows: the first row and the one after the last, in the stored tensor; None for all.
    """

    file: pathlib.Path
    name: str | None
    shape: Shape
    rows: tuple[int, int] | None = None


class Tensors:
    """Tensors on disk by name: `shapes` has the shapes of all, `read` reads one."""

    def __init__(self, entries: Mapping[str, _Entry]):
        self._entries = entries
        self.shapes: dict[str, Shape] = {name: entry.shape for name, entry in entries.items()}

    def read(self, name: str) -> np.ndarray:
        """Read a tensor, in the type that it was saved in."""
        entry = self._entries[name]
        if entry.name is None:
            return np.zeros(entry.shape, np.float32)
        with _opened(entry.file) as opened:
            stored = opened.get_tensor(entry.name)
        return stored if entry.rows is None else stored[slice(*entry.rows)]

    @property
    def source(self) -> pathlib.Path:
        """File to name in error messages: the file that holds all tensors, or the index of several such files."""
        file, *others = {entry.file for entry in self._entries.values()}
        return file.parent / INDEX if others else file

    def file(self, name: str) -> pathlib.Path:
        """Return the file that holds a tensor."""
        return self._entries[name].file

    def renamed(self, rename: Callable[[str], str]) -> "Tensors":
        """Return these tensors by other names. Raises ValueError if two tensors get the same name."""
        entries: dict[str, _Entry] = {}
        for name, entry in self._entries.items():
            _add(entries, rename(name), entry)
        return Tensors(entries)

    def cut(self, name: str, parts: Mapping[str, tuple[int, int]]) -> "Tensors":
        """Return these tensors with parts of one in its place; rows of no part are left out.

        name: the tensor to be cut, which is stored and was not cut before.
        parts: {name of the part: (its first row, the row after its last)}.
        Raises ValueError if another tensor has the name of a part.
        """
        entries = dict(self._entries)
        whole = entries.pop(name)
        for part, (first, end) in parts.items():
            shape = (end - first, *whole.shape[1:])
            _add(entries, part, dataclasses.replace(whole, shape=shape, rows=(first, end)))
        return Tensors(entries)

    def with_zeros(self, name: str, shape: Shape) -> "Tensors":
        """Return these tensors with one more, which consists of zeros."""
        return Tensors({**self._entries, name: _Entry(self.source, None, shape)})


def _add(entries: dict[str, _Entry], name: str, entry: _Entry) -> None:
    """Add a tensor to others. Raises ValueError if one of them has its name."""
    if name in entries:
        raise ValueError(
            f"{entries[name].name} in {entries[name].file} and {entry.name} in {entry.file} are both names of the "
            f"tensor {name}: expected only one of them; save the model anew without the other"
        )
    entries[name] = entry


def open_directory(directory: pathlib.Path) -> Tensors:
    """Return the tensors of a checkpoint directory, to be read later, without PyTorch buffers such as `position_ids`.

    Raises FileNotFoundError if it has no file of weights, ValueError if a file is damaged, quantised or a pickle.
    """
    entries: dict[str, _Entry] = {}
    for file in _files(directory):
        with _opened(file) as opened:
            for name in opened.keys():  # noqa: SIM118 - it is no dict
                if name.endswith(_BUFFERS):
                    continue
                if name in entries:
                    raise ValueError(f"{name} is in two files: {entries[name].file} and {file}; copy them anew")
                tensor = opened.get_slice(name)
                if tensor.get_dtype() not in _FLOATS:
                    raise ValueError(
                        f"{name} in {file} is of type {tensor.get_dtype()}: expected one of {', '.join(_FLOATS)}; "
                        "take a revision of the model that is not quantised"
                    )
                entries[name] = _Entry(file, name, tuple(tensor.get_shape()))
    if not entries:
        raise ValueError(f"{', '.join(map(str, _files(directory)))} holds no tensors; copy it anew")
    return Tensors(entries)


def _files(directory: pathlib.Path) -> list[pathlib.Path]:
    """Return the safetensors files of a directory: the file of a whole model, else all shards in the index."""
    if (directory / WHOLE).exists():
        return [directory / WHOLE]
    if (directory / INDEX).exists():
        return _shards(directory)
    for pickled in PICKLES:
        if (directory / pickled).exists():
            command = CONVERSION.format(directory=directory)
            raise unread_pickle(directory / pickled, f"{command}\nor take a revision of the model that has {WHOLE}")
    raise FileNotFoundError(f"{directory} has no weights: expected {WHOLE}, or {INDEX} with its shards")


def unread_pickle(file: pathlib.Path, command: str) -> ValueError:
    """Return the error that a pickle is not read, with the command that converts it and what else can be done."""
    return ValueError(
        f"{file} is a pickle, which is not read, because reading a pickle can run any program. Convert it where torch "
        f"is installed:\n  {command}"
    )


def metadata(directory: pathlib.Path) -> dict[str, str]:
    """Return the texts that the file of a whole model has beside its tensors."""
    with _opened(directory / WHOLE) as opened:
        return opened.metadata() or {}


def _shards(directory: pathlib.Path) -> list[pathlib.Path]:
    """Return the files that the index of a directory names. Raises ValueError if the index is damaged."""
    with reading(directory / INDEX, "copy it anew"):
        files = sorted(set(read_json(directory / INDEX)["weight_map"].values()))
        if outside := [file for file in files if pathlib.PurePath(file).name != file]:
            raise ValueError(f"expected names of files beside the index, got {outside[0]!r}")
    return [directory / file for file in files]


def _opened(file: pathlib.Path):
    try:
        return safetensors.safe_open(str(file), framework="numpy")
    except safetensors.SafetensorError as error:
        raise ValueError(f"{file} is not a whole safetensors file ({error}); copy it anew") from error


def write(tensors: Mapping[str, np.ndarray], file: pathlib.Path) -> None:
    """Write one safetensors file that transformers loads with PyTorch. Raises OSError if it cannot be written."""
    try:
        file.touch()
        mode = file.stat().st_mode
        save_file(dict(tensors), str(file), metadata={"format": "pt"})
        file.chmod(mode)  # safetensors makes files that nobody else may read
    except safetensors.SafetensorError as error:
        raise OSError(f"cannot write {file}: {error}") from error
