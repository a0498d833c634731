"""Texts of `ag-jax help`, `ag-jax configs` and `ag-jax --version`.

Those about verbs are made from the dataclasses in `verbs`, those about configs and settings from docstrings. A config
file's `get_config` and the dataclasses of settings document each name in an entry `name: meaning` of their docstring.
"""

import ast
import dataclasses
import difflib
import importlib.metadata
import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from ag_jax.command_line.verbs import KINDS, PLACEHOLDERS, VERBS, Flag, OnHosts, Verb, flags_of, required
from ag_jax.settings import config_files, documentation, schema
from ag_jax.settings.config_files import Config
from ag_jax.settings.documentation import Setting

_WIDTH = 80  # columns
_BY_USE = ("", "finetune", "modern", "babylm")  # folders of configs; others, of papers, follow
CONFIG = "config file with its arguments, such as {}; `ag-jax configs` lists them"
SETTING = "change a setting; `ag-jax help SECTION.KEY` explains it"
_OVERVIEW = """ag-jax pre-trains, fine-tunes and inspects Transformers whose attention is
guided or attacked: encoders, and models that translate.

Usage: ag-jax VERB [--config=CONFIG] [--workdir=DIR] [more flags]

{verbs}

Train a small model with and without guidance, and draw attention maps:
  ag-jax compare --config=quickstart --workdir=runs/quickstart
  ag-jax inspect --workdir=runs/quickstart/ag-seed0

`ag-jax help compare` explains a verb, `ag-jax help quickstart` a config file,
and `ag-jax help guidance.mode` a setting."""
EXPLAINING = {  # verbs that run nothing: {name: (summary, usage, examples)}
    "configs": ("List the config files that come with ag-jax.", "", ("ag-jax configs",)),
    "help": (
        "Explain a verb, a config file, a setting or a section of settings.",
        "[VERB | CONFIG | SETTING [--config=CONFIG]]",
        (
            "ag-jax help compare",
            "ag-jax help quickstart",
            "ag-jax help optimizer.learning_rate",
            "ag-jax help guidance.alpha --config=quickstart:arm=ag     # and its value in a config",
            "ag-jax help guidance",
        ),
    ),
}


def overview() -> str:
    """Return the text of `ag-jax help`: all verbs, and three commands to start with."""
    summaries = {name: summary(verb) for name, verb in VERBS.items()} | {
        name: one[0] for name, one in EXPLAINING.items()
    }
    indent = " " * (max(map(len, summaries)) + 4)
    lines = [
        textwrap.fill(text, _WIDTH, initial_indent=f"  {name}".ljust(len(indent)), subsequent_indent=indent)
        for name, text in summaries.items()
    ]
    return _OVERVIEW.format(verbs="\n".join(lines))


def summary(verb: type[Verb]) -> str:
    """Return what a verb does, in a line."""
    return (inspect.getdoc(verb) or "").partition("\n")[0]


def version() -> str:
    """Return the name and version of the installed package."""
    try:
        return f"ag-jax {importlib.metadata.version('ag_jax')}"
    except importlib.metadata.PackageNotFoundError:  # a checkout that is not installed
        return "ag-jax, version unknown: it runs from a checkout that is not installed"


def configs() -> str:
    """Return the text of `ag-jax configs`: the packaged config files by purpose, with what each is for."""
    groups: dict[str, list[str]] = {"Pre-train": [], "Translate": [], "Fine-tune": [], "Probe": []}
    for name, path in sorted(config_files.packaged().items(), key=lambda item: _by_use(item[0])):
        groups[_purpose(path)].append(_entry(name, docstring_of(path).partition("\n")[0]))
    lines = [line for group, entries in groups.items() for line in (f"{group}:", *entries, "")]
    return "\n".join([*lines, "`ag-jax help NAME` explains a config and its arguments; --config=NAME uses it."])


def _by_use(name: str) -> tuple[int, bool, str]:
    folder = name.rpartition("/")[0]
    place = _BY_USE.index(folder) if folder in _BY_USE else len(_BY_USE)
    return place, not name.startswith("quickstart"), name


def _purpose(path: Path) -> str:
    """Return what a packaged config is for, by what it imports."""
    text = path.read_text()
    purposes = {"finetuning": "Fine-tune", "probing": "Probe", "translation": "Translate"}
    return next(
        (purpose for word, purpose in purposes.items() if re.search(rf"^from .*\b{word}\b", text, re.M)), "Pre-train"
    )


def explain(words: Sequence[str]) -> str:
    """Return the help on a verb, a config file or a setting; without a name, return the overview.

    words: none, or one name, and for a setting the flag --config with the config whose value is shown, too.

    Raises ValueError for several names and, with near matches, if there is nothing of that name.
    """
    names = [word for word in words if not word.startswith("--config=")]
    sources = [word.removeprefix("--config=") for word in words if word.startswith("--config=")]
    if not names:  # a config of the same name as a verb
        names, sources = [f"--config={source}" for source in sources], []
    if not any(names):
        return overview()
    if len(names) > 1 or len(sources) > 1:
        raise ValueError(f"expected one verb, config file or setting to explain, got {' '.join(words)}")
    (name,) = names
    if name in VERBS or name in EXPLAINING:
        return of_verb(name)
    name = name.removeprefix("--config.").removeprefix("--config=").partition("=")[0].partition(":")[0]
    if (path := config_files.find(name)) and path.suffix == ".py":
        return of_config(name, path)
    config = config_files.load(sources[0]) if sources else None
    by_kind = {kind: tuple(documentation.of(kind)) for kind in (KINDS if config is None else [config.kind])}
    texts = {kind: text for kind, rows in by_kind.items() if (text := _of_settings(rows, name.rstrip("."), config))}
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    if texts:
        return "\n\n".join(f"In a config for {KINDS[kind][0]}:\n\n{text}" for kind, text in texts.items())
    paths = [setting.path for rows in by_kind.values() for setting in rows]
    raise ValueError(f"there is no verb, config file or setting {name!r}; {_nearest(name, paths)}")


def of_verb(name: str) -> str:
    """Return what a verb does, its flags with their meaning, and examples."""
    if name in EXPLAINING:
        text, names, examples = EXPLAINING[name]
        return "\n\n".join([f"ag-jax {name}: {text}", f"Usage: ag-jax {name} {names}".rstrip(), _examples(examples)])
    verb = VERBS[name]
    of_hosts = OnHosts.__annotations__
    entries = {word: _entry(flag_head(word, flag), flag_meaning(flag)) for word, flag in flags_of(verb).items()}
    lines = [text for word, text in entries.items() if word not in of_hosts]
    if verb.kinds:
        sources = re.findall(r"--config=(\S+)", " ".join(verb.examples))
        example = next((one for one in sources if ":" in one), sources[0])  # one that shows arguments, if there is any
        settings_head = "--config.SECTION.KEY=VALUE"
        lines = [_entry("--config=CONFIG", CONFIG.format(example)), _entry(settings_head, SETTING), *lines]
    parts = [
        textwrap.fill(f"ag-jax {name}: {summary(verb)}", _WIDTH),
        f"Usage: ag-jax {name} {usage(verb)}",
        "\n".join(lines),
    ]
    if hosts := [text for word, text in entries.items() if word in of_hosts]:
        parts += ["On several machines, run the same command on each (a TPU pod slice needs\nnone of these flags):"]
        parts += ["\n".join(hosts)]
    parts += [_examples(verb.examples)]
    if name in config_files.packaged():
        parts += [f"`ag-jax help --config={name}` explains the config file of the same name."]
    return "\n\n".join(parts)


def usage(verb: type[Verb]) -> str:
    """Return the flags that a verb needs."""
    config = ["--config=CONFIG[:ARGUMENTS]"] if "config" in required(verb) else []
    needed = [flag_head(word, flag) for word, flag in flags_of(verb).items() if flag.default is dataclasses.MISSING]
    return " ".join([*config, *needed, "[more flags]"])


def _examples(examples: Sequence[str]) -> str:
    return "\n  ".join(("Examples:", *examples))


def flag_head(word: str, flag: Flag) -> str:
    """Return a flag as one types it, such as `--step=STEP`."""
    return f"--{word}" if flag.annotation is bool else f"--{word}={PLACEHOLDERS.get(word, word.upper())}"


def flag_meaning(flag: Flag) -> str:
    """Return what a flag means, with its default if it has one."""
    is_shown = isinstance(flag.default, str | int) and flag.annotation is not bool and flag.default != ""
    return flag.meaning + (f" (default {flag.default})" if is_shown else "")


def _entry(head: str, text: str) -> str:
    return f"  {head}\n" + textwrap.fill(
        text, _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6, break_on_hyphens=False
    )


def of_config(name: str, path: Path) -> str:
    """Return a config file's docstring and its arguments with choices and defaults."""
    docstring, arguments = docstring_of(path), config_files.arguments_of(name)
    if not arguments:
        return f"{docstring}\n\nThis config takes no arguments of the form name=value."
    meanings = documentation.entries(docstring_of(path, "get_config"), arguments)
    required = [f"{one}=..." for one, argument in arguments.items() if argument.default is argument.empty]
    of_names = [
        f"{one}={names[-1]}" for one, argument in arguments.items() if (names := schema.choices(argument.annotation))
    ]
    example = next(iter([*required, *of_names, f"{next(iter(arguments))}=..."]))
    lines = [
        _entry(one, f"{meanings.get(one, '')} ({in_words(argument)})".strip()) for one, argument in arguments.items()
    ]
    return "\n".join([docstring, "", f"Arguments, as in --config={name}:{example}", *lines])


def in_words(argument: inspect.Parameter) -> str:
    """Return what a config's argument takes, and its default, such as "one of plain, ag; default plain"."""
    names = schema.choices(argument.annotation)
    takes = f"{schema.in_words(argument.annotation)}; " if names else ""
    if argument.default is argument.empty:
        return f"{takes}must be given"
    return takes + (
        f"default {schema.shown(argument.default)}" if argument.default not in ("", ()) else "none by default"
    )


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


def _of_settings(rows: Sequence[Setting], name: str, config: Config | None) -> str:
    """Return the help on a setting, or on all settings of a section; "" if no setting or section has that name.

    config: the config whose values are shown, too.
    """
    for setting in rows:
        if setting.matches(name) and not setting.is_section:
            return "\n".join(_lines(setting, name, config))
    section = [setting for setting in rows if setting.matches(name)]
    inside = [setting for setting in rows if setting.is_inside(name)]
    if not inside:
        return ""
    head = f"{name}: {section[0].meaning}" if section else name
    parts = ["\n".join(_lines(item, item.path, config)) for item in inside if not item.is_section]
    return "\n\n".join([textwrap.fill(head, _WIDTH), *parts])


def _lines(setting: Setting, path: str, config: Config | None) -> Iterator[str]:
    """Yield the lines about a setting: the flag to type, what it means, what it takes, its default and its value."""
    yield f"--config.{path}=VALUE"
    texts = [setting.meaning, f"{setting.allowed}; default {setting.default}"]
    values = schema.flat(config.values) if config else {}
    if config and path in values:
        texts.append(f"{schema.shown(values[path])} in {config.source}")
    for text in texts:
        yield from textwrap.wrap(text, _WIDTH, initial_indent="  ", subsequent_indent="  ")


def _nearest(name: str, paths: Sequence[str]) -> str:
    """Return advice for a misspelled name: the nearest verbs, config files and settings, or the commands that list all.

    paths: paths of all settings.
    """
    last = name.rpartition(".")[2]
    near = [path for path in dict.fromkeys(paths) if path.rpartition(".")[2] == last]
    near = near or difflib.get_close_matches(name, [*VERBS, *config_files.packaged(), *dict.fromkeys(paths)], n=4)
    return f"did you mean {', '.join(near)}?" if near else "`ag-jax --help` and `ag-jax configs` list what there is"
