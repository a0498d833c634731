"""The settings of a config with their documentation: meanings from docstrings, allowed values from annotations."""

import dataclasses
import inspect
import re
from collections.abc import Iterable, Iterator
from typing import get_args, get_origin, get_type_hints

from ag_jax.settings import schema


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
            allowed, default = schema.in_words(hints[name]), schema.shown(schema.default_of(field))
            yield Setting(path + name, meanings.get(name, ""), allowed, default)


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
