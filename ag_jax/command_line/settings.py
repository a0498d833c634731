"""The settings of a config with their documentation: meanings from docstrings, allowed values from annotations."""

import dataclasses
import inspect
import re
import types
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from ag_jax import config_reader


@dataclasses.dataclass(frozen=True)
class Setting:
    """A setting of a config, as `ag-jax help` documents it.

    path: its name with its sections, such as `optimizer.learning_rate`; NAME stands for the name of any task or probe.
    meaning: what its dataclass's docstring says of it; of a section without an entry, the docstring's first line.
    allowed: its type, choices and range, in words.
    default: its default, as one types it in a flag.
    is_section: whether it is a section, which has settings of its own.
    """

    path: str
    meaning: str
    allowed: str = ""
    default: str = ""
    is_section: bool = False

    def matches(self, name: str) -> bool:
        """Return whether `name` is this setting's path; NAME in the path stands for the name of any task or probe."""
        return re.fullmatch(re.escape(self.path).replace("NAME", r"[^.]+"), name) is not None

    def is_inside(self, section: str) -> bool:
        """Return whether the setting belongs to the section with the path `section`."""
        parts = self.path.split(".")
        return any(dataclasses.replace(self, path=".".join(parts[:end])).matches(section) for end in range(len(parts)))


def of(kind: type, path: str = "") -> Iterator[Setting]:
    """Yield a `Setting` for every setting and section of the dataclass `kind`; `path` is put before their names."""
    hints = get_type_hints(kind, include_extras=True)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    meanings = entries(inspect.getdoc(kind) or "", fields)
    for name, field in fields.items():
        inner = get_args(hints[name])[1] if get_origin(hints[name]) is dict else hints[name]
        if isinstance(inner, type) and dataclasses.is_dataclass(inner):
            meaning = meanings.get(name) or (inspect.getdoc(inner) or "").partition("\n")[0]
            yield Setting(path + name, meaning, is_section=True)
            yield from of(inner, f"{path}{name}." if inner is hints[name] else f"{path}{name}.NAME.")
        else:
            yield Setting(
                path + name,
                meanings.get(name, ""),
                _allowed(hints[name]),
                config_reader.shown(config_reader.default_of(field)),
            )


def entries(docstring: str, names: Iterable[str]) -> dict[str, str]:
    """Return {name: meaning} for those of `names` that a docstring describes.

    Entries are `name: meaning`, or `name, name: meaning`.
    The lines of an entry that follow its first one are indented.
    """
    meanings: dict[str, str] = {}
    current: list[str] = []
    for line in docstring.split("\n"):
        match = re.fullmatch(r"(\w+(?:, \w+)*): (.*)", line)
        if match and set(match[1].split(", ")) <= set(names):
            current = match[1].split(", ")
            meanings |= dict.fromkeys(current, match[2].strip())
        elif current and line.startswith(" "):
            meanings |= {name: f"{meanings[name]} {line.strip()}" for name in current}
        else:
            current = []
    return meanings


_TYPES = {int: "a whole number", float: "a number", bool: "True or False", str: "a text"}


def _allowed(hint: Any) -> str:
    """Return in words which values an annotation allows, such as "a whole number at least 1, or none"."""
    if get_origin(hint) is dict:
        return "a section of any names, to be set in the config file"
    if get_origin(hint) in (types.UnionType, Union):
        return f"{_allowed(_not_none(hint))}, or {config_reader.NONE}"
    if get_origin(hint) is Annotated:
        kind, *bounds = get_args(hint)
        return f"{_TYPES[kind]} {config_reader.in_words(bounds)}"
    if get_origin(hint) is Literal:
        return f"one of {', '.join(get_args(hint))}"
    if get_origin(hint) is tuple:
        of_item = get_args(hint)[0]
        # A text may have commas itself, and ml_collections reads unquoted texts with commas as a broken tuple.
        if of_item is str:
            return "a list of texts; repeat the flag for each"
        return f"a list with commas, each {_allowed(of_item)}"
    return _TYPES[hint]


def _not_none(hint: Any) -> Any:
    return next(kind for kind in get_args(hint) if kind is not types.NoneType)
