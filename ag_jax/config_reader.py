"""Turn config files into checked, frozen dataclasses: the only module that reads a `ConfigDict`.

The dataclasses of the packages hold every default, and their annotations say which values are allowed:

    heads: Annotated[int, ">= 1"] = 12
    dropout: Annotated[float, ">= 0", "< 1"] = 0.1
    remat: Literal["none", "layer", "dots"] = "dots"
    feedforward: Annotated[int, ">= 1"] | None = None     # None: four times the width

`default(kind)` returns a dataclass as a `ConfigDict`, for config files and flags to change; `parse(kind, values)` turns
it into the dataclass. `parse` and `check` reject unknown settings and values that the annotations do not allow; a
dataclass's `__post_init__` only checks what annotations cannot say, above all how its fields go together.
"""

import contextlib
import contextvars
import copy
import dataclasses
import difflib
import functools
import importlib.util
import inspect
import json
import math
import operator
import traceback
import types
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ml_collections import ConfigDict, FrozenConfigDict, config_dict
from ml_collections.config_flags.tuple_parser import TupleParser

from ag_jax import imported

Kind = TypeVar("Kind")
LARGEST = 2**31 - 1  # of whole numbers: steps, rows and ids are counted in 32 bits on the devices
NONE = "none"  # how a flag, or a text in a config file, says None
TYPES = {int: "a whole number", float: "a finite number", bool: "True or False", str: "a text"}  # in messages
BOUNDS = {  # of an annotation: the comparison, and how a message says it
    ">=": (operator.ge, "at least"),
    ">": (operator.gt, "above"),
    "<=": (operator.le, "at most"),
    "<": (operator.lt, "below"),
}


def default(kind: type) -> ConfigDict:
    """Return a `ConfigDict` with every setting of a dataclass at its default, for a config file to change."""
    return ConfigDict(_with_placeholders(kind, {field.name: default_of(field) for field in dataclasses.fields(kind)}))


def default_of(field: dataclasses.Field) -> Any:
    """Return the default of a dataclass's field."""
    make: Any = field.default_factory
    return make() if field.default is dataclasses.MISSING else field.default


def _with_placeholders(kind: type, values: dict[str, Any]) -> dict[str, Any]:
    """Return the settings `values` of the dataclass `kind` as a `ConfigDict` holds them: None as a typed placeholder.

    Sections become dicts. A placeholder has the setting's type; a plain None could not be changed by flags.
    """
    hints, result = get_type_hints(kind), {}
    for name, value in values.items():
        if dataclasses.is_dataclass(value):
            value = _with_placeholders(type(value), _shallow(value))
        result[name] = config_dict.placeholder(_plain(hints[name])) if value is None else value
    return result


def _plain(hint: Any) -> type:
    """Return the plain type of a setting from its annotation, such as int for `Annotated[int, ">= 1"] | None`."""
    if get_origin(hint) in (types.UnionType, Union):
        return _plain(_without_none(hint))
    if get_origin(hint) is Literal:
        return str
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _without_none(hint: Any) -> Any:
    (kind,) = (kind for kind in get_args(hint) if kind is not types.NoneType)
    return kind


def to_dict(config: Any) -> dict[str, Any]:
    """Return the settings of a config dataclass as nested dicts that JSON can hold and `parse` can read."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def parse(kind: type[Kind], values: ConfigDict | dict[str, Any]) -> Kind:
    """Return the settings `values` as a checked instance of the dataclass `kind`.

    Raises ValueError that names the wrong setting and the values that it may have.
    """
    return kind(**_fields(kind, values.to_dict() if isinstance(values, ConfigDict) else values, ""))


def check(config: Any, section: str = "") -> None:
    """Raise ValueError if a config dataclass that was made by code, not by `parse`, has values that are not allowed.

    section: path of the dataclass in the config, such as "model"; empty for a whole config.
    """
    _fields(type(config), _shallow(config), f"{section}." if section else "")


def _shallow(config: Any) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}


def kind_of(values: ConfigDict | dict[str, Any], config_types: Sequence[type]) -> type:
    """Return the dataclass whose fields include the most keys of a config; the first, if several include as many."""
    return max(config_types, key=lambda kind: len(set(values) & {field.name for field in dataclasses.fields(kind)}))


def _fields(kind: type, values: dict[str, Any], path: str) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    annotations = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    for key in values:
        if key not in annotations:
            raise ValueError(unknown_key(path + key, [path + name for name in annotations]))
    return {key: _to_type(annotations[key], value, path + key) for key, value in values.items()}


def _to_type(hint: Any, value: Any, path: str, message_end: str = "") -> Any:
    """Return the value of the setting `path` converted to its annotation `hint`, such as a list to a tuple.

    message_end: words that error messages add for a setting that may be none.

    Raises ValueError if the annotation does not allow the value.
    """
    # None first: the other branches then see annotations without `| None`. A flag or config file may also write "none".
    if get_origin(hint) in (types.UnionType, Union):
        return None if value is None or value == NONE else _to_type(_without_none(hint), value, path, f", or {NONE}")
    if get_origin(hint) is Annotated:
        kind, *bounds = get_args(hint)
        if kind is int and type(value) is int and abs(value) > LARGEST:
            bounds = bounds if any(bound.startswith("<") for bound in bounds) else [*bounds, f"<= {LARGEST}"]
            return _within(value, bounds, path, message_end)
        return _within(_to_type(kind, value, path, message_end), bounds, path, message_end)
    if get_origin(hint) is Literal:
        return _chosen(value, get_args(hint), path, message_end)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        section = _shallow(value) if isinstance(value, hint) else _section(value, path)
        return hint(**_fields(hint, section, path + "."))
    if hint is Any:  # its dataclass checks it
        return value
    if get_origin(hint) is dict:
        return {name: _entry(get_args(hint)[1], item, f"{path}.{name}") for name, item in _section(value, path).items()}
    if get_origin(hint) is tuple:
        if not isinstance(value, (tuple, list)):
            raise ValueError(f"{path} must be a list, such as (1, 2), got {value!r}")
        of_item = get_args(hint)[0]
        if get_origin(of_item) is Literal:  # a flag with commas comes as one text; no choice has a comma
            value = [part for item in value for part in (item.split(",") if isinstance(item, str) else [item])]
        return tuple(_to_type(of_item, item, path) for item in value)
    if hint is int and type(value) is float and value.is_integer():  # 1e3
        return _to_type(hint, int(value), path, message_end)
    if hint is int and type(value) is int and abs(value) > LARGEST:
        raise ValueError(f"{path} must be between {-LARGEST} and {LARGEST}, got {value}")
    if hint is float and type(value) is int:
        value = float(value) if abs(value) < 1e300 else math.inf  # beyond, float() raises OverflowError
    # In Python True is an int, but it is no number of steps.
    is_type = isinstance(value, hint) and not (hint is int and isinstance(value, bool))
    if not is_type or (hint is float and not math.isfinite(value)):
        raise ValueError(f"{path} must be {TYPES[hint]}{message_end}, got {value!r}")
    return value


def _within(value: Any, bounds: Sequence[str], path: str, message_end: str) -> Any:
    for bound in bounds:
        sign, _, limit = bound.partition(" ")
        if not BOUNDS[sign][0](value, float(limit)):
            raise ValueError(f"{path} must be {in_words(bounds)}{message_end}, got {value}")
    return value


def in_words(bounds: Sequence[str]) -> str:
    """Return the bounds of an annotation, such as (">= 0", "< 1"), in words: "at least 0 and below 1"."""
    parts = [bound.partition(" ") for bound in bounds]
    return " and ".join(f"{BOUNDS[sign][1]} {limit}" for sign, _, limit in parts)


def shown(value: Any) -> str:
    """Return a setting's value as one would type it in a flag; an empty list is shown as `()`."""
    if isinstance(value, tuple) and value:
        return ",".join(map(str, value))
    return NONE if value is None else str(value)


def flags(overrides: Mapping[str, Any]) -> list[str]:
    """Return the command-line flags that give settings these values, as one types them, such as `--config.seed=3`.

    Numbers of a list are written with commas, and of a list of texts each has a flag of its own. An empty list is
    written as nothing: `--config.training.milestones=`.
    """
    arguments = []
    for key, value in overrides.items():
        has_texts = isinstance(value, tuple) and any(isinstance(item, str) for item in value)
        typed = [_typed(item) for item in value] if has_texts else ["" if value == () else shown(value)]
        arguments += [f"--config.{key}={text}" for text in typed]
    return arguments


def _typed(item: Any) -> str:
    """Return an item of a list as it is typed in a flag, in quotes if it would otherwise be parsed to another value."""
    text = str(item)
    try:
        return text if text and TupleParser().parse(text) == (item,) else repr(item)
    except ValueError:
        return repr(item)


def _chosen(value: Any, choices: Sequence[str], path: str, message_end: str) -> str:
    if value not in choices:
        raise ValueError(f"{path} must be one of {', '.join(choices)}{message_end}, got {value!r}")
    return value


def _section(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{path} is a section of settings, got the value {value!r}: set {path}.NAME=VALUE instead")
    return value


def _entry(kind: type, value: Any, path: str) -> Any:
    """Convert one section of a config to the dataclass `kind`, and check it.

    value: the settings of the section.
    path: name of the section, such as `tasks.rte`.

    Puts `path` before messages of the dataclass's `__post_init__`: several sections have the same dataclass, so
    `__post_init__` does not know the name of the section.
    """
    try:
        return _to_type(kind, value, path)
    except ValueError as error:
        if path in str(error):  # an error of `_to_type`, not of `__post_init__`
            raise
        raise ValueError(f"{path}.{error}") from error


def unknown_key(key: str, names: Sequence[str]) -> str:
    """Return an error message for a setting that does not exist, with the nearest name that exists."""
    section = key[: key.rfind(".") + 1]
    if not all(name.startswith(section) for name in names):
        section = ""
    # Without what all names begin with, which would make any two of them alike.
    near = difflib.get_close_matches(
        key.removeprefix(section), [name.removeprefix(section) for name in names], n=1, cutoff=0.5
    )
    hint = f"; did you mean {section + near[0]!r}?" if near else f"; expected one of {', '.join(names)}"
    return f"unknown setting {key!r}{hint}"


def is_among(setting: str, names: Collection[str]) -> bool:
    """Return whether a setting is one of `names`, or begins with one of them that ends in `.` or `_`, such as `mesh.`.

    Other names are not beginnings: `model.attention` is another setting than `model.attention_dropout`.
    """
    return setting in names or setting.startswith(tuple(name for name in names if name.endswith((".", "_"))))


def flat(config: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Return nested settings as one dict, {"section.key": value}."""
    leaves: dict[str, Any] = {}
    for key, value in config.items():
        leaves |= flat(value, f"{path}{key}.") if isinstance(value, dict) else {path + key: value}
    return leaves


def check_overrides(config: ConfigDict, items: Iterable[str]) -> None:
    """Raise ValueError if one of the `items`, `section.key=value`, names a setting that the config does not have."""
    settings = [*flat(config.to_dict())]
    for item in items:
        key = item.partition("=")[0]
        if key not in settings:
            raise ValueError(unknown_key(key, settings))


def read_flags(arguments: Sequence[str]) -> tuple[str | None, ConfigDict | None, list[str]]:
    """Return (value of `--config`, config of this file, other arguments); the first two are None without `--config`.

    The flags `--config.section.key=value` have not changed the config yet.

    Raises ValueError if the file is broken, has no setting that a flag `--config.section.key=value` changes, or is not
    given although settings are.
    """
    # By hand, because the config decides which flags `--config.section.key` exist when the others are parsed.
    sources, rest, left = [], [], iter(arguments)
    for argument in left:
        flag, equals, value = argument.partition("=")
        if flag not in ("--config", "-config"):
            rest.append(argument)
        elif (value := value if equals else next(left, None)) is None:
            raise ValueError("--config needs a config file, such as --config=quickstart")
        else:
            sources.append(value)
    flags = [argument.lstrip("-") for argument in rest if argument.startswith("-")]
    items = [argument.removeprefix("config.") for argument in flags if argument.startswith("config.")]
    if items and not sources:
        raise ValueError(
            f"--config.{items[0]} changes a setting of a config file, but none is given: add --config=FILE"
        )
    if not sources:
        return None, None, rest
    if len(sources) > 1:
        raise ValueError(f"--config is given more than once, as {' and '.join(sources)}: give it once")
    config = load(sources[0])
    check_overrides(config, items)
    return sources[0], config, rest


class _Declared(BaseException):
    """Exception by which `choices_of` stops a config file's `get_config` early, to learn what arguments the file takes.

    Raised by the function `arguments`. Not derived from `Exception`, so that no handler in the config file catches it.
    """


_declaring = contextvars.ContextVar("declaring", default=False)


def arguments(text: str, /, **choices: Any) -> SimpleNamespace:
    """Read `name=value,...`, the arguments of a config file with these `choices`; return the values as attributes.

    Each keyword in `choices` names an argument, and its value says what the argument takes: a tuple holds the choices,
    the default first; `str` takes any text, and must be given; a text or a whole number is a default that any other may
    replace.

    An item without `=` belongs to the name before it, so a list needs no quotes:
    `arguments("tasks=rte,sst2,arm=mlm", tasks="all", arm=("ag", "mlm"), seeds=5)` returns
    `tasks="rte,sst2", arm="mlm", seeds=5`.
    Raises ValueError for any other name or value.
    """
    if _declaring.get():  # `choices_of` asks for the choices, for `ag-jax help`, and needs no config
        raise _Declared(choices)
    values = {
        name: options[0] if isinstance(options, tuple) else options
        for name, options in choices.items()
        if options is not str
    }
    for name, value in _items(text or ""):
        if name not in choices:
            raise ValueError("in the argument of the config file: " + unknown_key(name, list(choices)))
        values[name] = _argument(name, value, choices[name])
    if missing := [name for name in choices if name not in values]:
        raise ValueError(f"the config file needs the argument {missing[0]}, as in FILE.py:{missing[0]}=VALUE")
    return SimpleNamespace(**values)


def _items(text: str) -> list[tuple[str, str]]:
    """Return the pairs (name, value) of `name=value,...`.

    An item without `=` is added to the value before it: `tasks=rte,sst2` gives one pair.
    """
    pairs: list[tuple[str, str]] = []
    for item in filter(None, text.split(",")):
        name, equals, value = item.partition("=")
        name = name.strip()  # people write a space after a comma
        if pairs and not equals:
            name, value = pairs[-1][0], f"{pairs.pop()[1]},{item}"
        pairs.append((name, value))
    return pairs


def listed(text: str) -> tuple[str, ...]:
    """Return the names of a comma-separated list, such as `sst2,rte`."""
    return tuple(filter(None, text.split(",")))


def _argument(name: str, value: str, options: Any) -> Any:
    if options is str or isinstance(options, str):
        return value
    if isinstance(options, tuple):
        matches = [option for option in options if str(option) == value]
        expected = f"one of {', '.join(map(str, options))}"
    else:
        matches, expected = [int(value)] if value.isascii() and value.isdigit() else [], "a whole number"
    if not matches:
        raise ValueError(f"in the argument of the config file: {name} must be {expected}, got {value!r}")
    return matches[0]


def load(path_and_argument: str, overrides: Mapping[str, Any] | None = None) -> ConfigDict:
    """Return the config of `path.py:argument` with its settings replaced by `overrides`, {"section.key": value}.

    The functions of other modules that it names may then be imported, because it is the user's.
    """
    imported.allow(overrides or {})
    config = _get_config(path_and_argument)
    for key, value in (overrides or {}).items():
        try:
            config.update_from_flattened_dict({key: value})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(
                f"cannot set {key}={shown(value)} in {path_and_argument}: expected a setting that it has, with a value "
                f"of the setting's type ({error})"
            ) from error
    imported.allow(flat(config.to_dict()), even_stored=False)
    return config


def _get_config(path_and_argument: str) -> ConfigDict:
    """Return the result of a config file's `get_config`.

    Raises ValueError, with file and line, for any error in the file.
    """
    file, colon, argument = path_and_argument.partition(":")
    path, module = _open(file)
    with _errors_named(path):
        config = module.get_config(argument) if colon else module.get_config()  # as ml_collections does
    if not isinstance(config, ConfigDict) or isinstance(config, FrozenConfigDict):
        kind = type(config).__name__
        raise ValueError(
            f"{path}: get_config must return a ConfigDict, such as pretraining.config.default_config(), got {kind}"
        )
    _separate(config, set())
    return config


def _separate(config: ConfigDict, seen: set[int]) -> None:
    """Copy sections that are one object under several names, so that a flag for one of them does not change the others.

    Such as the grids of two arms: a file may write `grids = {"mlm": grid, "ag": grid}`.

    seen: ids of the sections that have a name.
    """
    seen.add(id(config))
    for name, value in config.items(preserve_field_references=True):
        if isinstance(value, ConfigDict):
            if id(value) in seen:
                value = copy.deepcopy(value)
                config[name] = value
            _separate(value, seen)


def choices_of(path_and_argument: str) -> dict[str, Any]:
    """Return the arguments that a config file takes, {name: choices or default}; {} if it takes none.

    They are the keywords with which the file's `get_config` calls the function `arguments`.
    """
    path, module = _open(path_and_argument.partition(":")[0])
    mark = _declaring.set(True)
    try:
        with _errors_named(path):
            if inspect.signature(module.get_config).parameters:
                module.get_config("")
    except _Declared as declared:
        return declared.args[0]
    finally:
        _declaring.reset(mark)
    return {}


def values_of(path_and_argument: str) -> dict[str, Any]:
    """Return the value of each argument of a config file, {name: value}; {} if it does not read them by `arguments`.

    path_and_argument: the file with some arguments, such as `FILE:name=value,...`; the others have their defaults.
    """
    choices = choices_of(path_and_argument)
    return vars(arguments(path_and_argument.partition(":")[2], **choices)) if choices else {}


def _open(name: str) -> tuple[str, types.ModuleType]:
    """Return the path and the executed module of the config file that `find(name)` returns.

    Raises ValueError if it does not exist or has no `get_config`.
    """
    file = find(name)
    if file is None:
        raise ValueError(f"--config={name} does not exist: give a config file, or one that `ag-jax configs` lists")
    if not file.is_file() or file.suffix != ".py":
        raise ValueError(f"--config={name} is no Python file: give a config file, such as --config=quickstart")
    path = str(file)
    with _errors_named(path):
        module = _module(path, file.read_bytes())
    if not callable(getattr(module, "get_config", None)):
        raise ValueError(f"{path} has no function get_config: define get_config(), which returns the config")
    return path, module


@functools.lru_cache(maxsize=16)  # a command reads its config file several times, a comparison once for every arm
def _module(path: str, content: bytes) -> types.ModuleType:
    """Execute a config file and return it as a module.

    content: the file's bytes; a part of the cache's key, so that a file that has changed is executed again.
    """
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    exec(compile(content, path, "exec", dont_inherit=True), module.__dict__)
    return module


def find(name: str) -> Path | None:
    """Return the config file of a name: a path or, if no such file exists, the name of a packaged config.

    `quickstart`, `quickstart.py` and `configs/quickstart.py` all name the packaged file. None if nothing is found.
    """
    if Path(name).is_file():
        return Path(name)
    stem = name.removeprefix("./").removeprefix("configs/").removesuffix(".py")
    return packaged().get(stem) or (Path(name) if name and Path(name).exists() else None)


@functools.cache
def packaged() -> dict[str, Path]:
    """Return the paths of the config files that come with the package, by their names, such as `finetune/glue`."""
    here = Path(__file__).resolve().parent
    # Beside the package in a checkout, inside it once it is installed (setup.py).
    folder = next((place for place in (here / "configs", here.parent / "configs") if place.is_dir()), None)
    paths = [] if folder is None else sorted(folder.rglob("*.py"), key=lambda path: (len(path.parts), path))
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in paths}


@contextlib.contextmanager
def _errors_named(path: str) -> Iterator[None]:
    """Turn any exception that the code of the config file `path` raises into a ValueError with the file and line."""
    try:
        yield
    except (Exception, SystemExit) as error:
        lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == path]
        message = _message(error)
        if isinstance(error, SyntaxError):  # of this file, or of one that it imports
            path, lines, message = error.filename or path, [error.lineno], error.msg
        place = f"{path}, line {lines[-1]}" if lines and lines[-1] else path
        # These types come with a message for the user; a FileNotFoundError of the system has a number instead.
        is_told = type(error) is ValueError or (type(error) is FileNotFoundError and error.errno is None)
        error_type = "" if is_told and message else f"{type(error).__name__}: "
        raise ValueError(f"{place}: {error_type}{message}") from error


def _message(error: BaseException) -> str:
    """Return the message of an error; for a KeyError, without the quotes that `str` adds."""
    while len(error.args) == 1 and isinstance(error.args[0], BaseException):
        error = error.args[0]  # ml_collections wraps a KeyError in an AttributeError
    return " ".join(str(error.args[0]).split()) if isinstance(error, KeyError) and error.args else str(error)


def argument_of(path_and_argument: str, name: str) -> str | None:
    """Return the value that `path.py:a=1,name=value` gives an argument of the config file; None if it gives none."""
    return dict(_items(path_and_argument.partition(":")[2])).get(name)


def with_argument(path_and_argument: str, name: str, value: str) -> str:
    """Return `path.py:argument` with the value of one argument replaced: `path.py:a=1,name=value`."""
    path, _, argument = path_and_argument.partition(":")
    others = [f"{key}={old}" for key, old in _items(argument) if key != name]
    return f"{path}:{','.join([*others, f'{name}={value}'])}"
