"""Name tables: which tensor of transformers ("theirs") holds which parameters ("ours"), and their strict conversion."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ag_jax.interop.layouts import AS_IS, Layout, Shape
from ag_jax.interop.tensors import Tensors

LAYER = "{layer}"
LAYERS = "encoder/layers/"  # parameters below have a leading axis, one entry for each layer


@dataclasses.dataclass(frozen=True)
class Name:
    """An entry of a name table: a tensor of transformers and the parameters that it holds.

    theirs: name of the tensor, with `{layer}` in it if each layer has one.
    ours: path of the parameter, or paths of several.
    layout: how the tensor holds them.
    first: the first layer that has the tensor. The layers before do not use the parameter, which is 1 there.
    """

    theirs: str
    ours: str | tuple[str, ...]
    layout: Layout = AS_IS
    first: int = 0

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the parameters that the tensor holds, as a tuple even for a single parameter."""
        return (self.ours,) if isinstance(self.ours, str) else self.ours


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file, and the model parameters that the tensor holds: one, or several that are stored together.

    theirs, shape: name and shape of the tensor.
    paths: paths of the parameters.
    shapes: shapes of the parameters, without the axis of layers.
    layer: index on the leading axis of the parameters; None for parameters that are not of a layer.
    layout: how the tensor holds the parameters.
    """

    theirs: str
    shape: Shape
    paths: tuple[str, ...]
    shapes: tuple[Shape, ...]
    layer: int | None
    layout: Layout

    def __str__(self) -> str:
        where = "" if self.layer is None else f" of layer {self.layer}"
        ours = ", ".join(f"{path} {shape}" for path, shape in zip(self.paths, self.shapes, strict=True))
        return f"{self.theirs} {self.shape}, for {ours}{where}"


def stored_tensors(table: Sequence[Name], ours: Mapping[str, Shape]) -> list[StoredTensor]:
    """Return the tensors of a checkpoint of transformers that hold a model's parameters.

    table: the name table; its entries for other parameters are left out.
    ours: shapes of the parameters by path.

    Raises ValueError for parameters that the table has no name for.
    """
    entries: list[StoredTensor] = []
    paths: set[str] = set()
    for name in table:
        if not all(path in ours for path in name.paths):
            continue
        paths.update(name.paths)
        shapes = tuple(ours[path] for path in name.paths)
        if LAYER not in name.theirs:
            entries.append(StoredTensor(name.theirs, name.layout.shape(*shapes), name.paths, shapes, None, name.layout))
            continue
        inner = tuple(shape[1:] for shape in shapes)
        for layer in range(name.first, shapes[0][0]):
            theirs = name.theirs.replace(LAYER, str(layer))
            entries.append(StoredTensor(theirs, name.layout.shape(*inner), name.paths, inner, layer, name.layout))
    if nameless := [f"  {path} {shape}" for path, shape in ours.items() if path not in paths]:
        raise ValueError(
            "the table of tensor names has no entry for these parameters, add them to that of the family:\n"
            + "\n".join(nameless)
        )
    return entries


def check(
    entries: Iterable[StoredTensor],
    theirs: Mapping[str, Shape],
    problem: str,
    expected: Sequence[str] = (),
    remedy: str = "",
) -> list[str]:
    """Check that a file holds a model's tensors, and return the names of its other tensors.

    entries: the tensors of the model.
    theirs: shapes of the file's tensors by name.
    problem, remedy: beginning and end of the error message.
    expected: prefixes of the names that other tensors may have.
    Raises ValueError that counts the missing, extra and misshapen tensors, and lists the first ten of each.
    """
    by_name = {stored.theirs: stored for stored in entries}
    missing = [f"  missing: {stored}" for name, stored in by_name.items() if name not in theirs]
    misshapen = [
        f"  of another shape: {stored}: found {theirs[name]}"
        for name, stored in by_name.items()
        if name in theirs and theirs[name] != stored.shape
    ]
    # A tensor without a parameter is an error unless the user expects it: weights must not be dropped silently.
    others = [name for name in theirs if name not in by_name]
    extra = [
        f"  without a parameter here: {name} {theirs[name]}" for name in others if not name.startswith(tuple(expected))
    ]
    if missing or misshapen or extra:
        listed = [line for kind in (missing, misshapen, extra) for line in [*kind[:10], *["  ..."] * (len(kind) > 10)]]
        raise ValueError(
            f"{problem} (tensors: {len(missing)} missing, {len(misshapen)} of another shape, {len(extra)} without a "
            f"parameter; {len(by_name)} expected, {len(theirs)} found):\n"
            + "\n".join(listed)
            + "\nFor tensors missing or of another shape, copy config.json and the weights anew from the same model."
            + remedy
        )
    return others


def load(entries: Sequence[StoredTensor], tensors: Tensors, ours: Mapping[str, Shape]) -> dict[str, np.ndarray]:
    """Read tensors one after another, and return the parameters that they hold, {path: float32 array}.

    entries: the tensors to be read.
    ours: shapes of the parameters by path.
    Raises ValueError, with the names of the tensor and of its file, for values that are not finite.
    """
    arrays: dict[str, np.ndarray] = {}
    for stored in entries:
        # A float64 too large for float32 becomes infinite, which is reported below.
        with np.errstate(over="ignore", invalid="ignore"):
            theirs = np.asarray(tensors.read(stored.theirs), np.float32)
        if not np.isfinite(theirs).all():
            raise ValueError(
                f"{stored.theirs} in {tensors.file(stored.theirs)} holds values that are not finite (NaN or infinity): "
                "copy the model anew"
            )
        parts = stored.layout.load(theirs, *stored.shapes)
        for path, part in zip(stored.paths, parts, strict=True):
            if path not in arrays:
                arrays[path] = np.ones(ours[path], np.float32)  # 1 where no tensor is (`Name.first`)
            arrays[path][... if stored.layer is None else stored.layer] = part
    unused = {path: np.ones(ours[path], np.float32) for path in ours if path.startswith(LAYERS) and path not in arrays}
    return arrays | unused  # of a model with no layer from `Name.first` on


def store(entries: Iterable[StoredTensor], ours: Mapping[str, np.ndarray], dtype: np.dtype) -> dict[str, np.ndarray]:
    """Return the tensors that hold a model's parameters, {name: array}: the inverse of `load`.

    entries: the tensors to be made.
    ours: the parameters by path.
    dtype: the type of the tensors.

    Raises ValueError if a value is not finite, or too large for `dtype`.
    """
    tensors = {}
    for stored in entries:
        parts = [ours[path] if stored.layer is None else ours[path][stored.layer] for path in stored.paths]
        whole = np.ascontiguousarray(stored.layout.store(*parts))
        if not np.isfinite(whole).all():
            raise ValueError(
                f"{stored.theirs} ({', '.join(stored.paths)}) holds values that are not finite (NaN or infinity): "
                "training diverged, or the weights are damaged; take an earlier checkpoint with --step"
            )
        with np.errstate(over="ignore"):
            tensors[stored.theirs] = whole.astype(dtype)
        if not np.isfinite(tensors[stored.theirs]).all():
            raise ValueError(
                f"{stored.theirs} reaches {np.abs(whole).max():.3g}, which {dtype} cannot hold: use --dtype=float32 or "
                "bfloat16"
            )
    return tensors


def flat(tree: Mapping, path: str = "") -> dict:
    """Flatten a nested dict to `{"a/b/c": leaf}`, with `path` before each key."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        leaves |= flat(value, f"{path}{key}/") if isinstance(value, Mapping) else {path + key: value}
    return leaves


def nested(leaves: Mapping) -> dict:
    """Return the nested dict for the flattened dict `leaves`, whose keys are paths: the inverse of `flat`."""
    tree: dict = {}
    for path, value in leaves.items():
        *sections, last = path.split("/")
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
        node[last] = value
    return tree
