"""Config files: find one, execute it with its arguments, and check its settings with changes on top.

A config file is a Python file with a function `get_config`, which returns what `schema.default` returns, changed. Its
arguments are keywords, whose annotations and defaults say what they take:

    def get_config(*, data: str, arm: OneOf("ag", "plain") = "ag", tasks: ListOf("rte", "sst2") = ("rte",)):

`--config=FILE:arm=plain,tasks=rte,sst2,data=texts/` gives them. An item without `=` belongs to the name before it, so a
list needs no quotes.

A setting that is computed from another is a field reference, so that a flag that changes the other changes it, too:

    config.optimizer.warmup_steps = config.training.get_ref("steps") // 5
    config.model.max_length = config.data.get_oneway_ref("sequence_length")    # equal; get_ref would be both settings
"""

import contextlib
import copy
import dataclasses
import difflib
import functools
import importlib.util
import inspect
import traceback
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_type_hints

from ml_collections import ConfigDict

from ag_jax.settings import imported, schema


def OneOf(*names: Any) -> Any:
    """Return the annotation of an argument that takes one of these names or numbers, which may be computed."""
    return Literal[names]


def ListOf(*names: str) -> Any:
    """Return the annotation of an argument that takes some of these names with commas; `all` stands for all of them."""
    return tuple[OneOf(*names), ...]  # type: ignore[misc]


Scale = OneOf("paper", "small")


@dataclasses.dataclass(frozen=True)
class Config:
    """A config file with its arguments, the settings that it gives, and changes of settings on top.

    source: the file with its arguments, as one types them: `quickstart:arm=ag`.
    arguments: the value of each argument of the file, with defaults.
    kind: the dataclass of the settings.
    unresolved: the settings as the file gives them, nested and not checked, with references for those that it computes
        from others (`config.training.get_ref("steps") // 5`).
    overrides: changes of settings, {"section.key": value}.
    given: arguments of the file beside those of `source`, as values of Python.
    """

    source: str
    arguments: Mapping[str, Any]
    kind: type
    unresolved: Mapping[str, Any]
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    given: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def values(self) -> dict[str, Any]:
        """The settings as the file gives them, without `overrides`, nested and not checked."""
        with self._named_errors():
            return schema.plain(self.unresolved)

    @functools.cached_property
    def settings(self) -> Any:
        """The checked settings with `overrides`, an instance of `kind`.

        The functions of other modules that they name may then be imported, because the config file is the user's.
        Raises ValueError, with the name of the file, for a setting or value that is not allowed.
        """
        imported.allow(self.overrides)
        with self._named_errors():
            values = schema.overlay(self.kind, self.unresolved, self.overrides)
            imported.allow(schema.flat(values), even_stored=False)
            return schema.parse(self.kind, values)

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except imported.CannotImport:
            raise
        except ValueError as error:
            raise ValueError(f"--config={self.source}: {error}") from error

    @property
    def texts(self) -> dict[str, str]:
        """The arguments that the user gave, as texts: {"arm": "ag"} for `quickstart:arm=ag`."""
        return dict(_items(self.source.partition(":")[2]))

    def with_overrides(self, overrides: Mapping[str, Any]) -> "Config":
        """Return this config with further changes of settings, {"section.key": value}."""
        return dataclasses.replace(self, overrides={**self.overrides, **overrides})

    def with_argument(self, name: str, value: str) -> "Config":
        """Call the file's `get_config` with another value of one argument; return its config with the same changes.

        value: as one types it.
        """
        arguments = {key: old for key, old in self.texts.items() if key != name} | {name: value}
        text = ",".join(f"{key}={old}" for key, old in arguments.items())
        return load(f"{self.source.partition(':')[0]}:{text}", self.overrides, self.given)

    @property
    def typed(self) -> str:
        """The file with all of its arguments, as one would type them."""
        if not self.given:
            return self.source
        items = (f"{name}={schema.shown(value)}" for name, value in self.given.items())
        return f"{self.source}{',' if ':' in self.source else ':'}{','.join(items)}"


def load(source: str, overrides: Mapping[str, Any] | None = None, given: Mapping[str, Any] | None = None) -> Config:
    """Return the config of `FILE:ARGUMENTS` with changes of settings, {"section.key": value}, on top.

    given: further arguments, as values of Python.

    Raises ValueError, with file and line, for any error in the file, and for arguments that it does not take.
    """
    config, arguments = _execute(source, given or {})
    return dataclasses.replace(of_dict(config, source, arguments, overrides), given=given or {})


def of_dict(
    config: ConfigDict,
    source: str = "ConfigDict",
    arguments: Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Config:
    """Return the config of what a `get_config` returned; the other arguments are the fields of `Config`.

    Raises ValueError for anything else than a `ConfigDict` with the settings of one of the kinds of configs.
    """
    kind = schema.kind_of(config) if isinstance(config, ConfigDict) else None
    if kind is None:
        raise ValueError(
            f"{source}: get_config must return what pretraining.config.default_config() or schema.default(KIND) "
            f"returns, with changes, got an object of type {type(config).__name__}"
        )
    # A copy, because the references of a config that the user changes afterwards would change, too.
    return Config(source, arguments or {}, kind, copy.deepcopy(schema.unresolved(config)), overrides or {})


def read(source: str) -> ConfigDict:
    """Return what the `get_config` of `FILE:ARGUMENTS` returns, for another config file to change."""
    return _execute(source)[0]


def arguments_of(file: str) -> dict[str, inspect.Parameter]:
    """Return the arguments that the `get_config` of a config file takes, {name: parameter}; {} if it takes none.

    The annotation of a parameter says what the argument takes; one without a default must be given.
    """
    path, module = _open(file)
    return _arguments(path, module)


def _execute(source: str, given: Mapping[str, Any] | None = None) -> tuple[ConfigDict, dict[str, Any]]:
    file, _, text = source.partition(":")
    path, module = _open(file)
    parameters = _arguments(path, module)
    values = {name: argument.default for name, argument in parameters.items() if argument.default is not argument.empty}
    typed = [(name, value, schema.argument) for name, value in _items(text)]
    for name, value, check in [*typed, *((name, value, schema.checked) for name, value in (given or {}).items())]:
        if name not in parameters:
            raise ValueError(f"--config={source}: " + schema.unknown_key(name, list(parameters), "argument"))
        values[name] = check(f"--config={source}: {name}", parameters[name].annotation, value)
    if missing := [name for name in parameters if name not in values]:
        raise ValueError(
            f"--config={source}: the argument {missing[0]} is missing: give --config={file}:{missing[0]}=VALUE"
        )
    with _errors_named(path):
        return module.get_config(**values), values


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


def _arguments(path: str, module: types.ModuleType) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(module.get_config).parameters
    if any(parameter.kind is not parameter.KEYWORD_ONLY for parameter in parameters.values()):
        raise ValueError(
            f"{path}: the arguments of get_config must be keywords with annotations: write `def get_config(*, arm: "
            f'OneOf("ag", "plain") = "ag"):` in place of `def get_config({", ".join(map(str, parameters.values()))}):`'
        )
    with _errors_named(path):
        hints = get_type_hints(module.get_config, include_extras=True)
    for name in parameters:
        if schema.type_of(hints.get(name)) not in (int, float, bool, str):
            raise ValueError(
                f"{path}: the argument {name} of get_config must have the annotation int, float, bool, str, "
                f"OneOf(...), ListOf(...) or tuple[str, ...], got {hints.get(name, 'none')}"
            )
    return {name: parameter.replace(annotation=hints[name]) for name, parameter in parameters.items()}


def _open(name: str) -> tuple[str, types.ModuleType]:
    """Return the path and the executed module of the config file that `find(name)` returns.

    Raises ValueError if it does not exist or has no `get_config`.
    """
    file = find(name)
    if file is None:
        near = difflib.get_close_matches(name, packaged(), n=1)
        hint = f"; did you mean {near[0]}?" if near else ": give a config file, or one that `ag-jax configs` lists"
        raise ValueError(f"--config={name} does not exist{hint}")
    if not file.is_file() or file.suffix != ".py":
        raise ValueError(f"--config={name} is no Python file: give a config file, such as --config=quickstart")
    path = str(file)
    with _errors_named(path):
        module = _module(path, file.read_bytes())
    if not callable(getattr(module, "get_config", None)):
        raise ValueError(f"{path} has no function get_config: define get_config(), which returns the config")
    return path, module


@functools.lru_cache(maxsize=16)  # a comparison calls the `get_config` of one file for every arm
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
    package = Path(__file__).resolve().parents[1]
    # Beside the package in a checkout, inside it once it is installed (setup.py).
    folder = next((place for place in (package / "configs", package.parent / "configs") if place.is_dir()), None)
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
