"""Read the files beside a tokenizer: its settings, special tokens and added tokens.

All settings in `tokenizer_config.json`, `special_tokens_map.json` and `added_tokens.json` are applied or rejected with
an error, because a tokenizer that splits text differently from the one that a model was trained with silently gives
other token ids.
"""

import contextlib
import itertools
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import tokenizers as huggingface
from etils import epath
from tokenizers import AddedToken

from ag_jax.data.json_files import FAULTS, read_json, reading, reason
from ag_jax.data.tokenizer_backends import SENTENCEPIECE_NORMALIZER

# The files that may be read, by their names.
Files = Mapping[str, epath.Path]

_REMEDY = "copy the file anew from the original tokenizer"
TO_TOKENIZER_JSON = (
    "let AutoTokenizer.from_pretrained(...).save_pretrained(...) of transformers write a tokenizer.json, which is read "
    "instead"
)
SETTINGS, ADDED, SPECIALS = "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json"
MODEL = "config.json"  # of a model, which may name the class of its tokenizer, too
# The settings of transformers that name the token of a role. A `bos_token` only counts without `cls_token`.
ROLES = {
    "begin": ("cls_token", "bos_token"),
    "pad": ("pad_token",),
    "end": ("sep_token", "eos_token"),
    "unknown": ("unk_token",),
    "mask": ("mask_token",),
}
_FURTHER = ("additional_special_tokens", "extra_special_tokens")  # lists of special tokens without a role
_TYPES = {
    "do_lower_case": bool,
    "strip_accents": bool,
    "tokenize_chinese_chars": bool,
    "add_prefix_space": bool,
    SENTENCEPIECE_NORMALIZER: bool,
    "source_lang": str,
    "target_lang": str,
    "added_tokens_decoder": dict,
    "model_input_names": list,
}


def files_of(directory: epath.PathLike) -> dict[str, epath.Path]:
    """Return the files of a directory by their names."""
    return {file.name: file for file in epath.Path(directory).iterdir()}


@contextlib.contextmanager
def reading_tokenizer(file: epath.PathLike) -> Iterator[None]:
    """Turn every error of the tokenizer library inside, which reads a file, into a ValueError that names the file."""
    try:
        yield
    except OSError:
        raise
    except BaseException as error:  # the Rust library raises bare Exception, or a panic: a BaseException
        is_fault = isinstance(error, Exception) or type(error).__name__ == "PanicException"
        if not is_fault or (isinstance(error, ValueError) and str(file) in str(error)):
            raise
        fault = reason(error) if isinstance(error, FAULTS) else error
        raise ValueError(f"{file} could not be read as a tokenizer ({fault}); {_REMEDY}") from error


def json_object(files: Files, name: str) -> dict[str, Any]:
    """Return the JSON object in a file, without keys whose value is null; {} if there is no such file."""
    values = read_json(files[name]) if name in files else {}
    return {key: value for key, value in values.items() if value is not None}


def settings_of(files: Files) -> dict[str, Any]:
    """Return the settings in tokenizer_config.json that are not null; {} if there is no such file.

    Raises ValueError if a setting has a wrong type.
    """
    settings = json_object(files, SETTINGS)
    for key, kind in _TYPES.items():  # a missing setting counts as `kind()`, which is of the right type
        if not isinstance(settings.get(key, kind()), kind):
            raise ValueError(
                f"{files[SETTINGS]}: {key} must be of type {kind.__name__}, got {settings[key]!r}; {_REMEDY}"
            )
    return settings


def supported_settings(
    vocabulary: str, files: Files, classes: Collection[str], only: dict[str, Any], remedy: str = TO_TOKENIZER_JSON
) -> dict[str, Any]:
    """Return the settings in the tokenizer_config.json beside a vocabulary, all of which are supported.

    Without `tokenizer_class` there, the one in config.json counts.

    vocabulary: name of the vocabulary's file, for error messages.
    classes: names of tokenizer classes that split text alike, without the ending Fast.
    only: settings of which a single value is supported, with that value.
    remedy: what to do about others, the end of the error message; by default, how to make a tokenizer.json.

    Raises ValueError if `tokenizer_class` is none of the classes, or if a setting has an unsupported value or a wrong
    type.
    """
    settings = settings_of(files)
    of_model = json_object(files, MODEL).get("tokenizer_class", "")
    kind = str(settings.get("tokenizer_class", of_model)).removesuffix("Fast")
    wrong = [] if kind in ("", *classes) else [f"tokenizer_class={kind}, not {' or '.join(classes) or 'none'}"]
    wrong += [
        f"{key}={settings[key]!r}, not {value!r}" for key, value in only.items() if settings.get(key, value) != value
    ]
    if wrong:
        raise ValueError(
            f"{files[vocabulary]} cannot be read with the settings beside it in {SETTINGS} or {MODEL}: "
            f"{'; '.join(wrong)}: {remedy}"
        )
    return settings


def special_names(files: Files) -> dict[str, str]:
    """Return the special tokens that the files name, such as {"mask_token": "[MASK]"}.

    The files are tokenizer_config.json and special_tokens_map.json.

    Raises ValueError if a name is no text, and if the two files contradict each other.
    """
    names: dict[str, str] = {}
    for file in (SETTINGS, SPECIALS):
        values = json_object(files, file)
        for key in values.keys() & set(itertools.chain(*ROLES.values())):
            name = _content(files[file], key, values[key])
            if names.setdefault(key, name) != name:
                raise ValueError(
                    f"{files[SETTINGS]} has {key}={names[key]!r}, but {file} has {name!r}: copy both anew from the "
                    "original tokenizer"
                )
    return names


def _content(file: epath.Path, key: str, token: Any) -> str:
    """Return the text of a token, which a setting gives as a text or as an object with `content`."""
    name = token.get("content") if isinstance(token, dict) else token
    if not isinstance(name, str) or not name:
        raise ValueError(
            f"{file}: {key} must name tokens, as a text or an object with content, got {token!r}; {_REMEDY}"
        )
    return name


def added_tokens(files: Files) -> Iterator[tuple[epath.Path, AddedToken, int | None]]:
    """Yield (file, token, id) for each token that the files add to a vocabulary; the id is None if the file has none.

    Raises ValueError for a value that is no id or no token.
    """
    for name, id in json_object(files, ADDED).items():
        yield files[ADDED], AddedToken(name, normalized=True), _id(files[ADDED], id)
    for id, token in settings_of(files).get("added_tokens_decoder", {}).items():
        name = _content(files[SETTINGS], "added_tokens_decoder", token)
        keys = ("single_word", "lstrip", "rstrip", "normalized", "special")
        flags = {key: bool(token[key]) for key in keys if key in token} if isinstance(token, dict) else {}
        yield files[SETTINGS], AddedToken(name, **flags), _id(files[SETTINGS], id)
    for file, key in itertools.product((SETTINGS, SPECIALS), _FURTHER):
        tokens = json_object(files, file).get(key) or []
        if isinstance(tokens, str):  # whose letters would become tokens
            raise ValueError(f"{files[file]}: expected a list of tokens as {key}, got {tokens!r}; {_REMEDY}")
        for token in tokens.values() if isinstance(tokens, dict) else tokens:
            yield files[file], AddedToken(_content(files[file], key, token), special=True), None


def _id(file: epath.Path, value: Any) -> int:
    """Return a token id that a file states, as an integer. Raises ValueError with the file if it is none."""
    with reading(file, _REMEDY):
        return int(value)


def check_added(files: Files, vocabulary: str, id_of: Callable[[str], int | None]) -> None:
    """Raise ValueError unless a tokenizer has the tokens that the files beside it add, with the ids that they state.

    vocabulary: name of the tokenizer's file, for error messages.
    id_of: function that returns the id of a token, or None if the tokenizer lacks it.
    """
    for file, token, id in added_tokens(files):
        actual = id_of(token.content)
        if actual is None or id not in (None, actual):
            raise ValueError(
                f"{file} adds the token {token.content!r}{'' if id is None else f' with the id {id}'}, but with "
                f"{vocabulary} beside it this token has {'no id' if actual is None else f'the id {actual}'}: copy all "
                f"files anew from the same tokenizer, or {TO_TOKENIZER_JSON}"
            )


def check_processing(tokenizer: huggingface.Tokenizer, files: Files) -> None:
    """Raise ValueError if tokenizer_config.json contradicts the tokenizer.json beside it about the processing of text.

    Compared are how text is lower-cased, stripped of accents and split, as far as the tokenizer does so as BERT or
    RoBERTa.
    """
    settings = settings_of(files)
    for key, value in _text_processing(tokenizer).items():
        if settings.get(key, value) != value:
            raise ValueError(
                f"{files[SETTINGS]} has {key}={settings[key]}, but tokenizer.json beside it {value}: copy both files "
                "anew from the original tokenizer"
            )


def _text_processing(tokenizer: huggingface.Tokenizer) -> dict[str, bool]:
    """Return {setting of tokenizer_config.json: value} as implied by a tokenizer.json's text processing."""
    settings: dict[str, bool] = {}
    for part in (tokenizer.normalizer, tokenizer.pre_tokenizer):
        for state in _parts(json.loads(part.__getstate__())) if part is not None else ():
            if state["type"] == "BertNormalizer":
                lowercase, strip = state["lowercase"], state["strip_accents"]
                settings["do_lower_case"] = lowercase
                settings["strip_accents"] = lowercase if strip is None else strip
                settings["tokenize_chinese_chars"] = state["handle_chinese_chars"]
            elif state["type"] == "ByteLevel" and part is tokenizer.pre_tokenizer:
                settings["add_prefix_space"] = state["add_prefix_space"]
    return settings


def _parts(state: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the JSON state of each part of a normaliser or pre-tokenizer; parts of sequences come one by one."""
    if state["type"] != "Sequence":
        yield state
    for part in state.get("normalizers", []) + state.get("pretokenizers", []):
        yield from _parts(part)
