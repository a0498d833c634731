"""Settings as frozen dataclasses: a `ConfigDict` of their defaults to change, and checked dataclasses from values.

The dataclasses of the packages hold every default, and their annotations say which values are allowed:

    heads: Annotated[int, Ge(1)] = 12
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.1
    remat: Literal["none", "layer", "dots"] = "dots"
    feedforward: Annotated[int, Ge(1)] | None = None     # None: four times the width

`default(kind)` returns a dataclass as a `ConfigDict`, for config files to change; `parse(kind, values)` turns values
into the dataclass. pydantic checks them, strictly: a text is no number, and True is no 1. A dataclass's `__post_init__`
only checks what annotations cannot say, above all how its fields go together.
"""

import ast
import copy
import dataclasses
import difflib
import functools
import json
import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import pydantic
from ml_collections import ConfigDict, FieldReference, config_dict

Kind = TypeVar("Kind")
LARGEST = 2**31 - 1  # of whole numbers: steps, rows and ids are counted in 32 bits on the devices
MOST = 20  # names that a message lists; of more, it lists the sections
NONE = "none"  # how a flag says None
_STRICT = pydantic.ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
_TYPES = {int: "a whole number", float: "a finite number", bool: "True or False", str: "a text"}
_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}  # attributes of `annotated_types`


_kinds: dict[frozenset[str], type] = {}  # {names of the settings: dataclass} of all configs that `default` made


def default(kind: type) -> ConfigDict:
    """Return a `ConfigDict` with every setting of a dataclass at its default, for a config file to change."""
    values = {field.name: default_of(field) for field in dataclasses.fields(kind)}
    config = ConfigDict(_with_placeholders(kind, values))
    _kinds[frozenset(config)] = kind
    return config


def default_of(field: dataclasses.Field) -> Any:
    """Return the default of a dataclass's field."""
    make: Any = field.default_factory
    return make() if field.default is dataclasses.MISSING else field.default


def _with_placeholders(kind: type, values: dict[str, Any]) -> dict[str, Any]:
    """Return the settings `values` of the dataclass `kind` as a `ConfigDict` holds them: None as a typed placeholder.

    Sections become dicts. A placeholder takes values of the setting's type alone.
    """
    hints, result = get_type_hints(kind, include_extras=True), {}
    for name, value in values.items():
        if dataclasses.is_dataclass(value):
            fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
            value = _with_placeholders(type(value), fields)
        result[name] = config_dict.placeholder(type_of(hints[name])) if value is None else value
    return result


def kind_of(config: ConfigDict) -> type | None:
    """Return the dataclass all of whose settings a config has that `default` made, or its copy; None without one."""
    return next((kind for names, kind in _kinds.items() if names <= set(config)), None)


def parse(kind: type[Kind], values: ConfigDict | Mapping[str, Any], section: str = "") -> Kind:
    """Return the settings `values` as a checked instance of the dataclass `kind`.

    section: path of the dataclass in the config, such as "model", for messages; empty for a whole config.

    Raises ValueError that names the wrong setting and the values that it may have.
    """
    values = plain(values.to_dict() if isinstance(values, ConfigDict) else values)
    for path, value in flat(values).items():
        _check_size(_join(section, path), hint_of(kind, path), value)
    try:
        return _adapter(kind).validate_json(json.dumps(values))
    except pydantic.ValidationError as errors:
        raise _as_value_error(kind, errors, section) from None


def _check_size(path: str, hint: Any, value: Any) -> None:
    for item in value if isinstance(value, list) else [value]:
        if type(item) is int and abs(item) > LARGEST and type_of(hint) is int:
            raise ValueError(f"{path} must be between {-LARGEST} and {LARGEST}, got {item}")


def check(config: Any, section: str = "") -> None:
    """Raise ValueError, as `parse` does, for a config dataclass that code made and whose values are not allowed."""
    parse(type(config), dataclasses.asdict(config), section)


def plain(values: Any) -> Any:
    """Return nested settings with texts, numbers, lists and dicts alone, as JSON holds them; computes references.

    Raises ValueError for a value that is none of these.
    """

    def as_plain(value: Any) -> Any:
        if isinstance(value, FieldReference):
            return value.get()
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return dataclasses.asdict(value)
        if hasattr(value, "tolist"):  # of numpy
            return value.tolist()
        if isinstance(value, range):
            return list(value)
        raise ValueError(f"expected numbers, texts, lists and sections of settings, got {value!r}")

    return json.loads(json.dumps(values, default=as_plain))


_adapters: dict[Any, pydantic.TypeAdapter] = {}


def _adapter(kind: Any) -> pydantic.TypeAdapter:
    if kind not in _adapters:
        kind.__pydantic_config__ = _STRICT  # which the dataclasses of sections inherit
        _adapters[kind] = pydantic.TypeAdapter(kind)
    return _adapters[kind]


def _as_value_error(kind: type, errors: pydantic.ValidationError, section: str) -> ValueError:
    """Return the first error of pydantic as one sentence: the path, what was expected, what came, the nearest name."""
    first, *_ = sorted(errors.errors(), key=lambda error: error["type"] != "unexpected_keyword_argument")
    location = [part for part in first["loc"] if isinstance(part, str)]  # without the places in lists
    path, value, hint = _join(section, *location), first["input"], _hint(kind, location)
    if first["type"] == "unexpected_keyword_argument":
        names = [field.name for field in dataclasses.fields(_hint(kind, location[:-1]))]
        return ValueError(unknown_key(path, [_join(section, *location[:-1], name) for name in names]))
    if first["type"] == "value_error":  # of a `__post_init__`, which does not know the name of one of several sections
        error = first["ctx"]["error"]
        ends = [end for end in range(1, len(location) + 1) if get_origin(_hint(kind, location[: end - 1])) is dict]
        entry = _join(section, *location[: ends[-1]]) if ends else ""
        return error if entry in str(error) else ValueError(f"{entry}.{error}")
    if first["type"].startswith(("dataclass", "dict")):
        return ValueError(f"{path} is a section of settings, got the value {value!r}: set {path}.NAME=VALUE instead")
    if first["type"] == "missing":
        return ValueError(f"{path} is missing")
    if first["type"] == "json_invalid":
        return ValueError("a setting has bytes that are no text in UTF-8: give another path or text")
    return ValueError(_rejected(path, in_words(hint), value, choices(hint)))


def _rejected(name: str, expected: str, value: Any, names: Sequence[Any]) -> str:
    near = difflib.get_close_matches(str(value), map(str, names), n=1)
    return f"{name} must be {expected}, got {value!r}" + (f"; did you mean {near[0]!r}?" if near else "")


def _join(*parts: str) -> str:
    return ".".join(filter(None, parts))


def _hint(kind: Any, location: Sequence[str]) -> Any:
    """Return the annotation of the setting at a path of names below the annotation `kind`; Any if it has none."""
    for name in location:
        if get_origin(kind) is dict:
            kind = get_args(kind)[1]
        elif dataclasses.is_dataclass(kind):
            kind = get_type_hints(kind, include_extras=True).get(name, Any)
        else:
            return Any
    return kind


def hint_of(kind: type, path: str) -> Any:
    """Return the annotation of the setting at a path, such as "optimizer.learning_rate"; Any if there is none."""
    return _hint(kind, path.split("."))


def _required(hint: Any) -> Any:
    """Return an annotation without `| None`; of several types, the first."""
    if get_origin(hint) not in (types.UnionType, Union):
        return hint
    return next(kind for kind in get_args(hint) if kind is not types.NoneType)


def _item(hint: Any) -> Any:
    return get_args(_required(hint))[0]


def type_of(hint: Any) -> Any:
    """Return the plain type of a setting, or of a list's items: int for `Annotated[int, Ge(1)] | None`."""
    hint = _required(hint)
    if get_origin(hint) in (Annotated, tuple):
        return type_of(_item(hint))
    return str if get_origin(hint) is Literal else hint


def choices(hint: Any) -> tuple[str, ...]:
    """Return the names among which a setting, or each item of a list, is chosen; () without such names."""
    if get_origin(hint) in (types.UnionType, Union):
        return tuple(name for kind in get_args(hint) for name in choices(kind))
    if get_origin(hint) is tuple:
        return choices(_item(hint))
    return get_args(hint) if get_origin(hint) is Literal else ()


def in_words(hint: Any) -> str:
    """Return in words which values an annotation allows, such as "a whole number at least 1, or none"."""
    if get_origin(hint) in (types.UnionType, Union):
        return ", or ".join(NONE if kind is types.NoneType else in_words(kind) for kind in get_args(hint))
    if get_origin(hint) is dict:
        return "a section of any names, to be set in the config file"
    if get_origin(hint) is Annotated:
        kind, *bounds = get_args(hint)
        limits = [
            (word, getattr(bound, name)) for bound in bounds for name, word in _BOUNDS.items() if hasattr(bound, name)
        ]
        return f"{in_words(kind)} {' and '.join(f'{word} {limit}' for word, limit in limits)}".rstrip()
    if get_origin(hint) is Literal:
        names = ", ".join(map(str, get_args(hint)))
        return f"one of {names}" if len(get_args(hint)) > 1 else names
    if get_origin(hint) is tuple:
        item = _item(hint)
        return (
            "a list of texts; repeat the flag for each" if item is str else f"a list with commas, each {in_words(item)}"
        )
    return _TYPES.get(hint, "a value of the right type")


def from_texts(hint: Any, texts: Sequence[str], is_cut: bool = True) -> Any:
    """Return the value of a setting, a flag or a config file's argument from what a user typed for it.

    `none` is None where the annotation allows it, and 1e3 is a whole number, too. Items of a list are separated by
    commas, may stand in brackets and quotes, and those of several texts follow one another; an empty last text is the
    empty list. Of other settings, the last text counts.

    hint: its annotation.
    is_cut: whether commas also separate the items of a list of texts, which then have none.

    A text that is no value of the right type is returned as it is, for the check to reject it.
    """
    if type(None) in get_args(hint) and texts[-1] == NONE:
        return None
    if _required(hint) is not Any and get_origin(_required(hint)) is not tuple:
        return _from_text(hint, texts[-1])
    if texts[-1] == "":
        return ()
    item, values = Any if hint is Any else _item(hint), []
    for text in texts:
        literal = _literal(text) if text[:1] in ("(", "[", "'", '"') else None
        if isinstance(literal, list | tuple):
            values += [_from_text(item, str(one)) if isinstance(one, int | float | str) else one for one in literal]
        elif isinstance(literal, str):
            values.append(literal)
        elif item is str and not is_cut:
            values.append(text)
        else:
            values += [_from_text(item, part.strip()) for part in text.split(",")]
    return tuple(values)


def _literal(text: str) -> Any:
    """Return the value of a text that Python reads as one, such as `(1, 2)`; None for another text."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def _from_text(hint: Any, text: str) -> Any:
    """Return a text as one of the choices, a number or True or False, if the annotation allows it."""
    names = {str(choice): choice for choice in choices(hint)}
    kind = type_of(hint)
    if text in names:
        return names[text]
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    for convert in {int: (int, float), float: (float,), Any: (int, float)}.get(kind, ()):
        try:
            number = convert(text)
        except ValueError:
            continue
        return int(number) if kind is int and number == number // 1 else number
    return text


def to_dict(config: Any) -> dict[str, Any]:
    """Return the settings of a config dataclass as nested dicts that JSON can hold and `parse` can read."""
    return plain(dataclasses.asdict(config))


def flat(config: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return nested settings as one dict, {"section.key": value}."""
    leaves: dict[str, Any] = {}
    for key, value in config.items():
        leaves |= flat(value, f"{path}{key}.") if isinstance(value, Mapping) else {path + key: value}
    return leaves


def unresolved(config: ConfigDict) -> dict[str, Any]:
    """Return a config as nested dicts, in which settings that are computed from others are field references."""
    items = config.items(preserve_field_references=True)
    return {name: unresolved(value) if isinstance(value, ConfigDict) else value for name, value in items}


def overlay(kind: type, values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the nested settings of a dataclass with other values for some, {"section.key": value}.

    Settings that are field references to one of these (see `unresolved`) are computed from its new value.

    Raises ValueError for a setting that does not exist, with the nearest name, and for a value that is not allowed.
    """
    check_names(values, changes)
    result = copy.deepcopy(dict(values))  # its references refer to settings of the copy
    for path, value in changes.items():
        _check_value(path, hint_of(kind, path), plain(value))
        *sections, name = path.split(".")
        section = functools.reduce(dict.__getitem__, sections, result)
        if isinstance(section[name], FieldReference):
            section[name].set(value, type_safe=False)
        else:
            section[name] = value
    settings = plain(result)
    lost = [path for path, value in changes.items() if plain(value) != flat(settings).get(path, plain(value))]
    if lost:
        raise ValueError(f"{lost[0]} is computed from another setting that is changed, too: change one of them")
    return settings


def _check_value(path: str, hint: Any, value: Any) -> None:
    _check_size(path, hint, value)
    try:
        pydantic.TypeAdapter(hint, config=_STRICT).validate_json(json.dumps(value))
    except pydantic.ValidationError as errors:
        raise _as_value_error(hint, errors, path) from None


def check_names(values: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise ValueError, with the nearest name, if nested settings do not have one of the settings `names`."""
    settings = [*flat(values)]
    for name in names:
        if any(setting.startswith(f"{name}.") for setting in settings):
            raise ValueError(f"{name} is a section of settings: give one of them a value, as in {name}.NAME=VALUE")
        if name not in settings:
            raise ValueError(unknown_key(name, settings))


def unknown_key(key: str, names: Sequence[str], what: str = "setting") -> str:
    """Return an error message for a setting, or a `what`, that does not exist, with the nearest name that exists."""
    section, _, last = key.rpartition(".")
    prefix = f"{section}." if section else ""
    inside = {name.removeprefix(prefix): name for name in names if name.startswith(prefix)}
    namesakes = [name for name in names if name.rpartition(".")[2] == last]
    near = [] if section and inside else difflib.get_close_matches(key, namesakes, n=1, cutoff=0)
    # The section's name is left out, because it would make any two of its settings alike.
    near = near or [inside[name] for name in difflib.get_close_matches(last, inside, n=1)]
    near = near or difflib.get_close_matches(key, [] if inside else names, n=1)
    near = near or difflib.get_close_matches(key, namesakes, n=1, cutoff=0)
    options = list(inside or names)
    if len(options) > MOST:
        options = list(dict.fromkeys(name.partition(".")[0] for name in options))
    hint = f"; did you mean {near[0]!r}?" if near else f"; expected one of {', '.join(options)}"
    return f"unknown {what} {key!r}{hint}"


def is_among(setting: str, names: Collection[str]) -> bool:
    """Return whether a setting is one of `names`, or begins with one of them that ends in `.` or `_`, such as `mesh.`.

    Other names are not beginnings: `model.attention` is another setting than `model.attention_dropout`.
    """
    return setting in names or setting.startswith(tuple(name for name in names if name.endswith((".", "_"))))


def shown(value: Any) -> str:
    """Return a setting's value as one would type it in a flag; an empty list is shown as `()`."""
    if isinstance(value, list | tuple) and value:
        return ",".join(map(str, value))
    return NONE if value is None else str(value)


def flags(overrides: Mapping[str, Any]) -> list[str]:
    """Return the command-line flags that give settings these values, as one types them, such as `--config.seed=3`.

    Numbers of a list are written with commas, and of a list of texts each has a flag of its own. An empty list is
    written as nothing: `--config.training.milestones=`.
    """
    result = []
    for path, value in overrides.items():
        items = value if isinstance(value, list | tuple) else [value]
        has_texts = any(isinstance(item, str) for item in items)
        texts = [*map(shown, items)] if has_texts else ["" if not items else shown(value)]
        result += [f"--config.{path}={text}" for text in texts]
    return result


def argument(name: str, hint: Any, text: str) -> Any:
    """Return the checked value of a config file's argument or a verb's flag from its text, such as 12 of "12".

    name: of the argument, for messages.
    hint: its annotation.

    Raises ValueError if the annotation does not allow the value. Of a list of names, `all` stands for all of them.
    """
    names = [*map(str, choices(hint))]
    is_list = get_origin(_required(hint)) is tuple
    value = from_texts(hint, [",".join(names) if is_list and names and text == "all" else text])
    try:
        return pydantic.TypeAdapter(hint, config=_STRICT).validate_python(value)
    except pydantic.ValidationError:
        wrong = next((item for item in value if item not in names), text) if is_list and names else text
        raise ValueError(_rejected(name, in_words(hint), wrong, names)) from None


def checked(name: str, hint: Any, value: Any) -> Any:
    """Return a value of Python, checked by an annotation. Raises ValueError, with `name`, if that does not allow it."""
    try:
        return pydantic.TypeAdapter(hint, config=_STRICT).validate_python(value)
    except pydantic.ValidationError:
        raise ValueError(_rejected(name, in_words(hint), value, [*map(str, choices(hint))])) from None
