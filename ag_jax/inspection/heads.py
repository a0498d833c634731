"""Names of layers and heads that a user gives: LAYER and LAYER.HEAD, counted from 0."""

import dataclasses
import re
from collections.abc import Sequence
from typing import NamedTuple

from ag_jax.analysis.maps import Heads


@dataclasses.dataclass(frozen=True)
class Chosen:
    """The layers or heads to draw one by one, as a user names them; if both are empty, each figure has its own choice.

    layers: LAYER of each layer, or `all`.
    heads: LAYER.HEAD of each head.
    """

    layers: Sequence[str] = ()
    heads: Sequence[str] = ()


def read_layers(names: Sequence[str], layers: int) -> tuple[int, ...]:
    """Return the sorted layers that a user names by numbers or by `all`.

    names: numbers from 0, or only `all`.

    Raises ValueError for another name, and for a layer that does not exist.
    """
    if [name.strip() for name in names] == ["all"]:
        return tuple(range(layers))
    for name in names:
        if not re.fullmatch(r"[0-9]+", name.strip()) or int(name) >= layers:
            raise ValueError(
                f"--layers={','.join(names)}: expected layers from 0 to {layers - 1}, or all, got {name!r}"
            )
    return tuple(sorted({int(name) for name in names}))


def read_heads(names: Sequence[str], layers: int, heads: int, flag: str = "without") -> Heads:
    """Return the sorted heads (layer, head) that a user names by LAYER.HEAD, both counted from 0.

    names: LAYER.HEAD, as in the tables and figures of `inspect`.
    layers, heads: numbers of layers and of heads in each layer.
    flag: the flag that has the names, for errors.

    Raises ValueError for a name of another form, or of a head that does not exist.
    """
    places = set()
    for name in names:
        match = re.fullmatch(r"([0-9]+)\.([0-9]+)", name.strip())
        layer, head = map(int, match.groups()) if match else (layers, heads)
        if layer >= layers or head >= heads:
            raise ValueError(
                f"--{flag}={','.join(names)}: expected heads LAYER.HEAD from 0.0 to {layers - 1}.{heads - 1}, "
                f"got {name!r}"
            )
        places.add((layer, head))
    return tuple(sorted(places))


class Selection(NamedTuple):
    """The layers or heads to draw one by one for one kind of attention (encoder, decoder or cross-attention).

    layers: layers; None for the figure's own choice.
    heads: heads, as (layer, head); none for the figure's own choice.
    """

    layers: tuple[int, ...] | None
    heads: Heads


def restrict(chosen: Chosen, shapes: Sequence[tuple[int, int]]) -> list[Selection]:
    """Return, for each kind of attention (encoder, decoder, cross-attention), the chosen layers and heads it has.

    Where none of them exists, the figure's own choice is left to it.

    shapes: numbers of layers and of heads in each layer, of each kind.

    Raises ValueError for a layer or a head that no kind has.
    """
    layers, heads = map(max, zip(*shapes, strict=True))
    numbers, places = read_layers(chosen.layers, layers), read_heads(chosen.heads, layers, heads, "heads")
    selections = []
    for layers, heads in shapes:
        layers_there = tuple(layer for layer in numbers if layer < layers)
        heads_there = tuple((layer, head) for layer, head in places if layer < layers and head < heads)
        selections.append(Selection(layers_there or None, heads_there))
    return selections
