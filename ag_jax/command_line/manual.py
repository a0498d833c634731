"""Texts of `ag-jax help`, `ag-jax configs` and `ag-jax --version`.

Those about verbs and flags are made from the tables in `verbs`, those about configs and settings from docstrings. A
config file's `get_config` and the dataclasses of settings document each name in an entry `name: meaning` of their
docstring.
"""

import ast
import dataclasses
import difflib
import importlib.metadata
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ag_jax import config_reader
from ag_jax.command_line import settings
from ag_jax.command_line.settings import Setting
from ag_jax.command_line.verbs import CONFIG, FLAGS, HOSTS, SETTING, VERBS, Flag

_WIDTH = 100
_OVERVIEW = """ag-jax pre-trains, fine-tunes and inspects Transformers whose attention is guided or attacked: encoders,
and models that translate.

Usage: ag-jax VERB [--config=CONFIG] [--workdir=DIR] [more flags]

{verbs}

Start with these three:
  ag-jax compare --config=quickstart --workdir=runs/quickstart    train a small model with and without guidance
  ag-jax inspect --workdir=runs/quickstart/ag-seed0               draw the attention maps of the guided one
  ag-jax help compare                                             the flags of a verb, with examples

`ag-jax help quickstart` explains a config file, `ag-jax help guidance.mode` a setting."""


def overview() -> str:
    """Return the text of `ag-jax help`: all verbs, and three commands to start with."""
    width = max(map(len, VERBS))
    return _OVERVIEW.format(verbs="\n".join(f"  {name:{width}}  {verb.summary}" for name, verb in VERBS.items()))


def version() -> str:
    """Return the name and version of the installed package."""
    try:
        return f"ag-jax {importlib.metadata.version('ag_jax')}"
    except importlib.metadata.PackageNotFoundError:  # a checkout that is not installed
        return "ag-jax, version unknown: it runs from a checkout that is not installed"


def configs() -> str:
    """Return the text of `ag-jax configs`: the packaged config files, each with the first line of its docstring."""
    first_lines = {name: _first_line(path) for name, path in config_reader.packaged().items()}
    width = max(map(len, first_lines), default=0)
    lines = [f"{name:{width}}  {line}" for name, line in first_lines.items()]
    return "\n".join([*lines, "", "ag-jax help NAME explains a config and its arguments; --config=NAME uses it."])


def explain(names: Sequence[str], load_config_types: Callable[[], Sequence[type]]) -> str:
    """Return the help on a verb, a config file or a setting; without a name, return the overview.

    names: none, or one name.
    load_config_types: returns the dataclasses that a config may be made for; not called for a verb or a config file.

    Raises ValueError for several names and, with near matches, if there is nothing of that name.
    """
    if not names:
        return overview()
    if len(names) > 1:
        raise ValueError(f"expected one verb, config file or setting to explain, got {' '.join(names)}")
    (name,) = names
    if name in VERBS:
        return of_verb(name)
    name = name.removeprefix("--config.").removeprefix("--config=").partition("=")[0].partition(":")[0]
    if (path := config_reader.find(name)) and path.suffix == ".py":
        return of_config(name, path)
    # Last, because the dataclasses of settings are imported with JAX, for which the help on a verb does not wait.
    by_kind = {kind: tuple(settings.of(kind)) for kind in load_config_types()}
    texts = {kind: text for kind, rows in by_kind.items() if (text := _of_settings(rows, name.rstrip(".")))}
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    if texts:
        return "\n\n".join(f"In a config for {purpose(kind)}:\n\n{text}" for kind, text in texts.items())
    paths = [setting.path for rows in by_kind.values() for setting in rows]
    raise ValueError(f"there is no verb, config file or setting {name!r}; {_nearest(name, paths)}")


def of_verb(name: str) -> str:
    """Return what a verb does, its flags with their meaning, and examples."""
    verb = VERBS[name]
    flags = {}
    if verb.has_config:
        named = re.findall(r"--config=(\S+)", " ".join(verb.examples))
        example = next((name for name in named if ":" in name), named[0])  # one that shows arguments, if there is any
        flags["config"] = Flag("file", CONFIG.format(example))
        flags["config.SECTION.KEY"] = Flag("value", SETTING)
    flags |= {flag: FLAGS[flag] for flag in verb.flags if flag not in HOSTS}
    if verb.parts:
        flags["part"] = dataclasses.replace(FLAGS["part"], meaning=verb.parts)
    hosts = {flag: FLAGS[flag] for flag in verb.flags if flag in HOSTS}
    parts = [f"ag-jax {name}: {verb.summary}", f"Usage: ag-jax {name} {verb.usage}".rstrip()]
    parts += ["\n".join(map(_flag, flags.items()))] if flags else []
    parts += (
        ["On several machines, run the same command on each (a TPU pod slice needs none of these flags):"]
        if hosts
        else []
    )
    parts += ["\n".join(map(_flag, hosts.items()))] if hosts else []
    parts += ["\n".join(f"  {example}" for example in ("Examples:", *verb.examples))[2:]]
    if name in config_reader.packaged():
        parts += [f"`ag-jax help --config={name}` explains the config file of the same name."]
    return "\n\n".join(parts)


def _flag(named: tuple[str, Flag]) -> str:
    name, flag = named
    if flag.kind == "switch":
        return _entry(f"--{name}", flag.meaning)
    kind = flag.kind.upper()
    default = "" if flag.default in (None, "", ()) else f" (default {flag.default})"
    return _entry(f"--{name}={kind}", flag.meaning + default)


def _entry(head: str, text: str) -> str:
    return f"  {head}\n" + textwrap.fill(
        text, _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6, break_on_hyphens=False
    )


def of_config(name: str, path: Path) -> str:
    """Return a config file's docstring and its arguments with choices and defaults."""
    docstring, choices = docstring_of(path), config_reader.choices_of(name)
    if not choices:
        return f"{docstring}\n\nThis config takes no arguments of the form name=value."
    meanings = settings.entries(docstring_of(path, "get_config"), choices)
    required = next((f"{argument}=..." for argument, options in choices.items() if options is str), None)
    example = required or next(
        f"{argument}={options[-1] if isinstance(options, tuple) else options}" for argument, options in choices.items()
    )
    lines = [
        _entry(argument, f"{meanings.get(argument, '')} ({options_in_words(options)})".strip())
        for argument, options in choices.items()
    ]
    return "\n".join([docstring, "", f"Arguments, as in --config={name}:{example}", *lines])


def options_in_words(options: object) -> str:
    """Return the choices and the default of a config's argument, such as "one of mlm, ag; default mlm"."""
    if isinstance(options, tuple):
        return f"one of {', '.join(map(str, options))}; default {options[0]}"
    if options is str:
        return "must be given"
    return f"default {options}" if options != "" else "none by default"


def docstring_of(path: Path, function: str | None = None) -> str:
    """Return the docstring of a Python file, or of one of its functions, without executing it."""
    try:
        module = ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as a Python file: {error}") from error
    node: ast.Module | ast.FunctionDef | None = module
    if function:
        node = next((item for item in module.body if isinstance(item, ast.FunctionDef) and item.name == function), None)
    return (ast.get_docstring(node) if node else None) or ""


def _first_line(path: Path) -> str:
    return docstring_of(path).partition("\n")[0]


def purpose(kind: Any) -> str:
    """Return what a config of this dataclass is for, such as "fine-tuning"."""
    if "probes" in kind.__dataclass_fields__:
        return "probes"
    return "fine-tuning" if "tasks" in kind.__dataclass_fields__ else "pre-training or translation"


def _of_settings(settings_of_kind: Sequence[Setting], name: str) -> str:
    """Return the help on a setting, or on all settings of a section; "" if no setting or section has that name."""
    for setting in settings_of_kind:
        if setting.matches(name) and not setting.is_section:
            return "\n".join(_lines(setting))
    section = [setting for setting in settings_of_kind if setting.matches(name)]
    inside = [setting for setting in settings_of_kind if setting.is_inside(name)]
    if not inside:
        return ""
    head = f"{name}: {section[0].meaning}" if section else name
    parts = [textwrap.fill(head, _WIDTH), *("\n".join(_lines(item)) for item in inside if not item.is_section)]
    return "\n\n".join(parts)


def _lines(setting: Setting) -> Iterator[str]:
    yield setting.path
    yield from textwrap.wrap(setting.meaning, _WIDTH, initial_indent="  ", subsequent_indent="  ")
    yield from textwrap.wrap(
        f"{setting.allowed}; default {setting.default}", _WIDTH, initial_indent="  ", subsequent_indent="  "
    )


def _nearest(name: str, paths: Sequence[str]) -> str:
    """Return advice for a misspelled name: the nearest verbs, config files and settings, or the commands that list all.

    paths: paths of all settings.
    """
    last = name.rpartition(".")[2]
    near = [path for path in dict.fromkeys(paths) if path.rpartition(".")[2] == last]
    near = near or difflib.get_close_matches(name, [*VERBS, *config_reader.packaged(), *dict.fromkeys(paths)], n=4)
    return f"did you mean {', '.join(near)}?" if near else "`ag-jax --help` and `ag-jax configs` list what there is"
