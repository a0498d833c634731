"""Which heads of which layers follow which pattern, as the settings of guidance say it.

Shape letters: N layers, H heads.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from ag_jax.attention.config import GuidanceConfig
from ag_jax.settings import imported

PATTERNS = ("next", "prev", "first", "delim", "period", "same")  # those built in, which `patterns` defines
REPETITIONS = ("previous_same", "after_previous_same")  # built in, too
OF_SOURCES = ("diagonal", "alignment")  # of attention to a source


def is_usable(name: str) -> bool:
    """Return whether the pattern called `name` has targets in any text, without annotation.

    A custom pattern has some only if its code may be imported.
    """
    return name in (*PATTERNS, *REPETITIONS, "diagonal") or ("." in name and imported.is_allowed(name))


def _check_name(name: str, columns: Collection[str]) -> None:
    """Raise ValueError if there is no pattern called `name`.

    columns: names of further patterns.

    Of a custom pattern that may not be imported (`imported.is_allowed`), only the form of its name is checked. A model
    that was trained with a custom pattern can thus be used without the pattern's module.
    """
    is_unread = _is_import_path(name) and not imported.is_allowed(name)
    if name not in (*PATTERNS, *REPETITIONS, *columns) and not is_unread:
        custom(name)


def _is_import_path(name: str) -> bool:
    return "." in name and all(part.isidentifier() for part in name.split("."))


def custom(name: str) -> Callable[..., Any]:
    """Return the custom pattern of the import path `module.function`.

    Raises ValueError as `imported.function` does, and if `name` is no import path.
    """
    if not _is_import_path(name):
        raise ValueError(
            f"expected an attention pattern ({', '.join((*PATTERNS, *REPETITIONS))}), module.function or a name of "
            f"data.pointers, got {name!r}"
        )
    return imported.function(f"the attention pattern {name!r}", name)


def assign_heads(config: GuidanceConfig, heads: int, columns: Collection[str] = ()) -> tuple[tuple[str, int], ...]:
    """Return (pattern, number of heads that it guides in every layer) for each pattern, in the order of the heads.

    The remaining heads are free.

    columns: names of the columns of pointers in annotated text, `data.pointers`.

    By lambda: one Next, one Prev and lambda * h - 2 First, lambda * h rounded half up (paper, section 5.3).
    Raises ValueError if lambda * h < 2, or if the explicit counts are malformed or exceed `heads`.
    """
    if config.mode == "none":
        return ()
    if config.heads is None:
        # Not `round`, which rounds a half to the even number.
        guided = math.floor(config.fraction * heads + 0.5)
        if guided < 2:
            # The smallest fraction that rounds to two heads is 1.5 / heads, here rounded up to three decimals.
            raise ValueError(
                f"guidance.fraction={config.fraction} of {heads} heads guides {guided}: at least 2 are needed, one for "
                f"Next and one for Prev; use a fraction of at least {math.ceil(1500 / heads) / 1000}"
            )
        return tuple(item for item in (("next", 1), ("prev", 1), ("first", guided - 2)) if item[1])
    return _parse_heads("guidance.heads", config.heads, heads, columns) if config.heads else ()


@dataclasses.dataclass(frozen=True)
class Assignment:
    """The pattern towards which guidance pulls each head of each layer of a model; free heads have none.

    counts: patterns, each with the number of heads that it guides in every guided layer: the first pattern guides head
        0 and the heads after it, the next pattern the heads that follow, and so on. Empty if no head is guided.
    layers: numbers of the guided layers, from 0; None for all layers.
    """

    counts: tuple[tuple[str, int], ...] = ()
    layers: tuple[int, ...] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the patterns, in the order of the heads that they guide."""
        return tuple(name for name, _ in self.counts)

    @property
    def is_usable(self) -> bool:
        """Whether every pattern is built in, or custom and allowed to be imported (`imported`)."""
        return all(map(is_usable, self.names))

    @property
    def where(self) -> str:
        """The guided layers in words, such as `layers 0-5, 8`; empty for all layers."""
        if self.layers is None:
            return ""
        runs = self.runs(max(self.layers) + 1)
        numbers = [str(run.start) if len(run) == 1 else f"{run.start}-{run.stop - 1}" for run in runs]
        return f"layer{'s' * (len(self.layers) > 1)} {', '.join(numbers)}"

    def runs(self, layers: int) -> list[range]:
        """Return the guided layers of a model with `layers` layers, as ranges of consecutive layers."""
        runs: list[range] = []
        for layer in range(layers) if self.layers is None else self.layers:
            if runs and runs[-1].stop == layer:
                runs[-1] = range(runs[-1].start, layer + 1)
            else:
                runs.append(range(layer, layer + 1))
        return runs

    def of_layer(self, heads: int) -> tuple[str | None, ...]:
        """Return the pattern that guides each head of a guided layer, None for free heads.

        Raises ValueError if more than `heads` heads are guided.
        """
        names = [name for name, count in self.counts for _ in range(count)]
        if len(names) > heads:
            raise ValueError(f"the assignment {self.counts} guides {len(names)} heads, but a layer has only {heads}")
        return (*names, *[None] * (heads - len(names)))

    def patterns(self, layers: int, heads: int) -> np.ndarray:
        """Return the pattern that guides each head, None for free heads, as an array of objects `NH` (layer, head).

        Raises ValueError if a guided layer, or a guided head, is not among the model's.
        """
        if self.layers is not None and not set(self.layers) <= set(range(layers)):
            raise ValueError(f"the assignment guides {self.where}, but the model has only {layers} layers")
        names_NH = np.full((layers, heads), None, object)
        for run in self.runs(layers):
            names_NH[run.start : run.stop] = self.of_layer(heads)
        return names_NH

    def is_guided(self, layers: int, heads: int) -> np.ndarray:
        """Return booleans `NH` (layer, head): whether guidance pulls each head towards a pattern."""
        return np.vectorize(lambda name: name is not None, otypes=[bool])(self.patterns(layers, heads))


def assign_encoder_heads(
    config: GuidanceConfig, heads: int, is_local: Sequence[bool], columns: Collection[str] = ()
) -> Assignment:
    """Return which heads of which layers of an encoder are guided by which pattern.

    In a guided layer (`guidance.guided_layers`), they are the heads of `assign_heads`.

    is_local: for each layer of the encoder, whether its attention is limited to a window.
    columns: as in `assign_heads`.

    Raises ValueError as `assign_heads` and `guided_layers` do.
    """
    if config.mode == "none":
        return Assignment()
    layers = None if config.layers == "all" else tuple(layer_numbers(config, is_local))
    return Assignment(assign_heads(config, heads, columns), layers)


def layer_numbers(config: GuidanceConfig, is_local: Sequence[bool]) -> list[int]:
    """Return the numbers, from 0, of the guided layers that `config.layers` names, in ascending order."""
    kinds = {"all": (False, True), "global": (False,), "local": (True,)}
    if config.layers not in kinds:
        return _read_layers(config.layers, len(is_local))
    numbers = [layer for layer, kind in enumerate(is_local) if kind in kinds[config.layers]]
    if not numbers:
        raise ValueError(
            f"guidance.layers={config.layers}: no layer of the model is {config.layers}, see model.window and "
            "model.global_every"
        )
    return numbers


def _read_layers(text: str, layers: int) -> list[int]:
    """Return the sorted layer numbers in a text such as `0-5,8`, for an encoder with `layers` layers."""
    numbers: set[int] = set()
    for item in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", item)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if not first <= last < layers:
            raise ValueError(
                f"guidance.layers must be all, global, local, or layers from 0 to {layers - 1} with commas, such as "
                f"0-{layers - 1}; got {item!r} in {text!r}"
            )
        numbers.update(range(first, last + 1))
    return sorted(numbers)


def assign_decoder_heads(config: GuidanceConfig, heads: int) -> tuple[tuple[str, int], ...]:
    """Return (pattern, number of heads guided by it in every layer) for each pattern of decoder self-attention.

    Raises ValueError for the pattern `next`, and for malformed counts.
    """
    if config.mode == "none" or not config.decoder_heads:
        return ()
    assignment = _parse_heads("guidance.decoder_heads", config.decoder_heads, heads)
    if "next" in dict(assignment):
        raise ValueError(
            f"guidance.decoder_heads={config.decoder_heads!r}: next looks at a token that the decoder has not written "
            "yet; use prev, same or first"
        )
    return assignment


def assign_cross_heads(config: GuidanceConfig, heads: int) -> tuple[tuple[str, int], ...]:
    """Return (pattern, number of heads guided by it in every layer) for each pattern of decoder cross-attention.

    Raises ValueError for patterns of neighbours, such as `next`, and for malformed counts.
    """
    if config.mode == "none" or not config.cross_heads:
        return ()
    assignment = _parse_heads("guidance.cross_heads", config.cross_heads, heads, OF_SOURCES)
    if within := [name for name, _ in assignment if name in ("next", "prev", "same", *REPETITIONS)]:
        raise ValueError(
            f"guidance.cross_heads={config.cross_heads!r}: {within[0]} points from a token to another of the same "
            "text, which attention to the source does not have; use first, delim, period, diagonal or alignment"
        )
    return assignment


def _parse_heads(setting: str, text: str, heads: int, columns: Collection[str] = ()) -> tuple[tuple[str, int], ...]:
    """Return ((pattern, number of heads), ...) of a setting such as `next:1,prev:1`, after a check that it is valid.

    setting: name of the setting, for messages.
    columns: as in `_check_name`.
    """
    assignment = read_heads(setting, text)
    for name, _ in assignment:
        _check_name(name, columns)
    guided = sum(count for _, count in assignment)
    if guided > heads:
        raise ValueError(f"{setting}={text!r} guides {guided} heads, but a layer has only {heads}")
    if len({name for name, _ in assignment}) < len(assignment):
        raise ValueError(f"{setting}={text!r} names a pattern twice: give each pattern one count")
    return assignment


def not_allowed(config: GuidanceConfig) -> list[str]:
    """Return the names of custom patterns in `config` whose code must not be imported without `--trust_code`.

    Nothing is imported here.
    """
    counts = (config.heads, config.decoder_heads, config.cross_heads) if config.mode != "none" else ()
    names = [name for text in counts if text for name, _ in read_heads("guidance", text)]
    return [name for name in names if _is_import_path(name) and not imported.is_allowed(name)]


def read_heads(setting: str, text: str) -> tuple[tuple[str, int], ...]:
    """Return ((pattern, count), ...) from a text such as `next:1,prev:1`, without a check that the patterns exist.

    A model that was trained with a custom pattern can thus be used where the pattern's module is not installed.

    setting: name of the setting, for messages.
    """
    assignment = []
    for item in text.split(","):
        name, _, count = item.strip().rpartition(":")
        if not name or not re.fullmatch("0*[1-9][0-9]{0,8}", count):
            raise ValueError(
                f"{setting} is a list of pattern:count with counts of at least 1, such as "
                f"'next:1,prev:1,first:4'; got {item!r} in {text!r}"
            )
        assignment.append((name, int(count)))
    return tuple(assignment)
