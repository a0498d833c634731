"""The command line of `ag-jax`: from words to a verb with its config and the values of its flags.

Nothing here imports JAX, which takes seconds, so errors are printed at once.
"""

import dataclasses
import difflib
import re
from collections.abc import Sequence
from typing import Any

from absl import flags

from ag_jax.command_line.verbs import KINDS, PAGE, PLACEHOLDERS, VERBS, Flag, Verb, flags_of, required
from ag_jax.settings import config_files, schema
from ag_jax.settings.config_files import Config

READ_BY = {"arms": "compare", "comparison.": "compare", "search.": "search"}  # settings that one verb reads
# Verbs whose results depend on settings; the others accept settings that they do not read.
_TRAINING = ("train", "finetune", "compare", "search", "evaluate")
_LONGEST_LINE = 2000  # characters of an error message that are printed


class _Boolean(flags.BooleanParser):
    """Parser of True or False, or of none, which is None."""

    def parse(self, argument):
        try:
            return None if argument in (None, schema.NONE) else super().parse(argument)
        except ValueError:
            raise ValueError("expected True or False") from None


def parse(arguments: Sequence[str]) -> Verb:
    """Return the verb of a command line, such as `verbs.Train`, with its checked config and the values of its flags.

    arguments: the words after `ag-jax`.

    Raises ValueError, OSError or flags.Error for a verb, flag, config file, setting or value that is not allowed, and
    for flags that are missing.
    """
    name, *words = arguments
    if name not in VERBS:
        near = difflib.get_close_matches(name, VERBS, n=1)
        hint = f"; did you mean {near[0]}?" if near else f": choose {', '.join(VERBS)} (see `ag-jax --help`)"
        raise ValueError(f"expected a verb as the first word after ag-jax, got {name or 'an empty text'}{hint}")
    verb = VERBS[name]
    source, words = _source(name, verb, words)
    config = None if source is None else config_files.load(source)
    values, flags_by_name = flags.FlagValues(), flags_of(verb)
    settings = [setting for setting in dict.fromkeys(map(_setting, words)) if setting is not None]
    if config is not None:
        schema.check_names(config.values, settings)
    annotations = {word: flag.annotation for word, flag in flags_by_name.items()}
    annotations |= {f"config.{setting}": schema.hint_of(config.kind, setting) for setting in settings if config}
    for word, annotation in annotations.items():
        if schema.type_of(annotation) is bool:
            flags.DEFINE_bool(word, None, "", flag_values=values)
            values[word].parser = _Boolean()
        else:
            flags.DEFINE_multi_string(word, [], "", flag_values=values)
    try:
        positional = values(["ag-jax", *words])[1:]
    except flags.UnrecognizedFlagError as error:
        raise ValueError(_unknown_flag(name, error.flagname, flags_by_name, config)) from error
    if positional:
        raise ValueError(f"expected flags after `ag-jax {name}`, such as --workdir=DIR, got {positional[0]}")
    fields = {}
    for word, flag in flags_by_name.items():
        if values[word].present > 1:  # of a setting, the last value counts
            raise ValueError(f"--{word} is given more than once: give it once")
        if values[word].present and (values[word].value != [""] or flag.default is not dataclasses.MISSING):
            value: Any = values[word].value
            is_switch = flag.annotation is bool
            fields[flag.field] = value if is_switch else schema.argument(f"--{word}", flag.annotation, value[0])
    if config is not None:
        fields["config"] = _with_overrides(
            name, verb, config, {path: values[f"config.{path}"].value for path in settings}
        )
    return verb(**_missing(verb, fields) | fields)


def _source(name: str, verb: type[Verb], words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return (value of `--config`, the other words), in which a bare `--html` has its default value."""
    sources, others, queue = [], [], list(words)
    while queue:
        word = queue.pop(0)
        flag, equals, value = word.partition("=")
        if flag in ("--config", "-config"):
            sources.append(value if equals or not queue else queue.pop(0))
        elif word == "--html" and (not queue or queue[0].startswith("-")):  # absl has no flags with an optional value
            others.append(f"--html={PAGE}")
        else:
            others.append(word)
    if len(sources) > 1:
        raise ValueError(f"--config is given more than once, as {' and '.join(sources)}: give it once")
    if sources and not verb.kinds:
        raise ValueError(f"`ag-jax {name}` reads no --config; `ag-jax help {name}` lists the flags that it reads")
    if sources and not sources[0]:
        raise ValueError("--config needs a config file, such as --config=quickstart")
    for word in others:
        if _setting(word) is not None and not sources:
            raise ValueError(f"{word} changes a setting of a config file, but none is given: add --config=FILE")
    return (sources[0] if sources else None), others


def _setting(word: str) -> str | None:
    """Return the setting that a flag such as `--config.seed=3` or `--noconfig.fresh` changes; None for another word."""
    match = re.match(r"--?(?:no)?config\.([^=]*)", word)
    return match and match[1]


def _with_overrides(name: str, verb: type[Verb], config: Config, values: dict[str, Any]) -> Config:
    """Return the checked config with the settings that flags change.

    values: {path of a setting: its texts, or the value of a switch}.

    Raises ValueError for a config of another kind, for a setting that only another verb reads, and as
    `Config.settings` does.
    """
    if config.kind not in verb.kinds:
        kinds = " or ".join(f"{KINDS[kind][0]}, such as --config={KINDS[kind][1]}" for kind in verb.kinds)
        raise ValueError(
            f"--config={config.source} is for {KINDS[config.kind][0]}: `ag-jax {name}` needs a config for {kinds}"
        )
    for path in values:
        if name in _TRAINING and (reader := reader_of(path)) not in (None, name):
            raise ValueError(
                f"--config.{path} has no effect here, because only `ag-jax {reader}` reads it: leave it out, or use "
                "that verb"
            )
    overrides = {}
    for path, value in values.items():
        hint = schema.hint_of(config.kind, path)
        overrides[path] = schema.from_texts(hint, value, is_cut=False) if isinstance(value, list) else value
    config = config.with_overrides(overrides)
    _ = config.settings  # checks them
    return config


def reader_of(path: str) -> str | None:
    """Return the only verb that reads a setting; None for a setting that all verbs that train read."""
    return next((reader for prefix, reader in READ_BY.items() if schema.is_among(path, (prefix,))), None)


def _missing(verb: type[Verb], fields: dict[str, Any]) -> dict[str, None]:
    """Return None for each flag that must be given and is not, if the command only prints its config.

    Raises ValueError, for the first of them, if it does not.
    """
    names = required(verb)
    if "config" in names and "config" not in fields:
        raise ValueError(
            f"`ag-jax {verb.name}` needs --config=CONFIG, such as --config=quickstart; `ag-jax configs` lists them"
        )
    missing = {name: flag for name, flag in flags_of(verb).items() if flag.field in names and flag.field not in fields}
    for name, flag in missing.items():
        if not fields.get("print_config"):
            placeholder = PLACEHOLDERS.get(name, name.upper())
            raise ValueError(f"`ag-jax {verb.name}` needs --{name}={placeholder}, the {flag.meaning}")
    return dict.fromkeys(flag.field for flag in missing.values())


def _unknown_flag(name: str, flag: str, flags_by_name: dict[str, Flag], config: Config | None) -> str:
    if config is not None and (flag in config.values or flag in schema.flat(config.values)):
        return f"unknown flag --{flag}: a setting of the config file is changed by --config.{flag}"
    if readers := [other for other, verb in VERBS.items() if flag in flags_of(verb)]:
        return f"`ag-jax {name}` has no flag --{flag}, which only {', '.join(readers)} read: leave it out"
    near = difflib.get_close_matches(flag, flags_by_name, n=1)
    hint = f"did you mean --{near[0]}?" if near else f"`ag-jax help {name}` lists those that it has"
    return f"`ag-jax {name}` has no flag --{flag}; {hint}"


def shortened(message: str) -> str:
    """Return an error message without the middle of every line of more than `_LONGEST_LINE` characters.

    Messages quote the values that they reject, and a value of a damaged file may be megabytes of text.
    """
    half = _LONGEST_LINE // 2
    return "\n".join(
        f"{line[:half]} ... {len(line) - 2 * half:,} characters left out ... {line[-half:]}"
        if len(line) > _LONGEST_LINE
        else line
        for line in message.split("\n")
    )
