"""Load tokenizers in the format of older models: a vocabulary file, with settings in other files beside it.

All settings in `tokenizer_config.json` and `added_tokens.json` are applied or rejected with an error, because a
tokenizer that splits text differently from the one that a model was trained with silently gives other token ids.
"""

import pathlib
from collections.abc import Callable, Collection
from typing import Any

import tokenizers as huggingface

from ag_jax.data.json_files import read_json
from ag_jax.data.tokenizer_backends import (
    BERT_SPECIALS,
    ROBERTA_SPECIALS,
    SOURCE_MODEL,
    TARGET_MODEL,
    HuggingFace,
    SentencePiecePair,
    byte_bpe,
    sentencepiece_processor,
    wordpiece,
)

SETTINGS, ADDED = "tokenizer_config.json", "added_tokens.json"
FILES = ("vocab.json", "merges.txt", "vocab.txt", SOURCE_MODEL, TARGET_MODEL, SETTINGS, ADDED)
_WORDPIECE = ("BertTokenizer", "ElectraTokenizer")
_MARIAN = ("MarianTokenizer",)
_MARIAN_SPECIALS = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
_BYTE_BPE = ("RobertaTokenizer", "GPT2Tokenizer", "DebertaTokenizer")
_TYPES = {
    "tokenizer_class": str,
    "do_lower_case": bool,
    "strip_accents": bool,
    "tokenize_chinese_chars": bool,
    "add_prefix_space": bool,
    "do_basic_tokenize": bool,
    "split_by_punct": bool,
    "separate_vocabs": bool,
    "sp_model_kwargs": dict,
    "source_lang": str,
    "target_lang": str,
    "added_tokens_decoder": dict,
}


def load_byte_bpe(directory: pathlib.Path) -> HuggingFace:
    """Load RoBERTa's byte-level BPE from the vocab.json and merges.txt of a directory.

    Raises FileNotFoundError if either is missing, and ValueError for unreadable files and unsupported settings.
    """
    vocabulary, merges = directory / "vocab.json", directory / "merges.txt"
    for file in (vocabulary, merges):
        if not file.exists():
            raise FileNotFoundError(f"a byte-level BPE needs vocab.json and merges.txt, but {file} is missing; add it.")
    settings = settings_beside(vocabulary, _BYTE_BPE)
    model = read(vocabulary, lambda file: huggingface.models.BPE.from_file(file, str(merges)), beside=merges)
    tokenizer = byte_bpe(model, space_first=settings.get("add_prefix_space", False))
    completed = _completed(tokenizer, ROBERTA_SPECIALS, directory)
    return read(vocabulary, lambda _: HuggingFace(completed))


def load_wordpiece(vocabulary: pathlib.Path) -> HuggingFace:
    """Return BERT's WordPiece tokenizer, from a vocab.txt; text is lower-cased unless tokenizer_config.json forbids it.

    The tokenizer_config.json is that of the same directory.

    Raises ValueError for unreadable files and unsupported settings.
    """
    settings = settings_beside(vocabulary, _WORDPIECE, {"do_basic_tokenize": True})
    tokenizer = wordpiece(
        read(vocabulary, lambda file: huggingface.models.WordPiece.from_file(file, unk_token="[UNK]")),
        lowercase=settings.get("do_lower_case", True),
        strip_accents=settings.get("strip_accents"),
        split_chinese=settings.get("tokenize_chinese_chars", True),
    )
    completed = _completed(tokenizer, BERT_SPECIALS, vocabulary.parent)
    return read(vocabulary, lambda _: HuggingFace(completed))


def load_marian(directory: pathlib.Path) -> SentencePiecePair:
    """Load the tokenizer of a Marian model: source.spm, target.spm and the vocab.json that both share.

    Raises FileNotFoundError if one is missing, and ValueError for unreadable files and unsupported settings.
    """
    source, target, vocabulary = (directory / name for name in (SOURCE_MODEL, TARGET_MODEL, "vocab.json"))
    for file in (source, target, vocabulary):
        if not file.exists():
            raise FileNotFoundError(
                f"a tokenizer of Marian needs {SOURCE_MODEL}, {TARGET_MODEL} and vocab.json, but {file} is missing; "
                "add it."
            )
    only = {"separate_vocabs": False, "sp_model_kwargs": {}}
    settings = settings_beside(vocabulary, _MARIAN, only, "Take a model whose languages share a vocabulary.")
    ids = read_json(vocabulary)
    if wrong := [token for token, id in ids.items() if type(id) is not int or id < 0]:
        raise ValueError(
            f"{vocabulary}: expected an id of at least 0 for each token, got {ids[wrong[0]]!r} for {wrong[0]!r}; copy "
            "the file anew from the original tokenizer"
        )
    for role, expected in _MARIAN_SPECIALS.items():
        named = settings.get(role, expected)
        if (named.get("content") if isinstance(named, dict) else named) != expected:
            raise ValueError(
                f"{directory / SETTINGS}: {role}={named!r} is not supported, only {expected!r}: take a model with "
                "Marian's names of the special tokens"
            )
    listed = settings.get("added_tokens_decoder", {}).values()
    added = {str(token.get("content") if isinstance(token, dict) else token) for token in listed}
    added |= _object(directory / ADDED).keys()
    if missing := sorted(added - ids.keys()):
        raise ValueError(
            f"{directory / SETTINGS} or {ADDED} adds tokens that {vocabulary.name} lacks, which is not supported: "
            f"{', '.join(missing)}; add them to {vocabulary.name}"
        )
    # transformers cuts texts at added tokens before sentencepiece sees them.
    codes = {token for token in added if token.startswith(">>") and token.endswith("<<")}
    if cut := sorted(added - codes - {*ROBERTA_SPECIALS}):
        raise ValueError(
            f"{directory / SETTINGS} or {ADDED} adds tokens that are neither special nor the code of a language, which "
            f"is not supported: {', '.join(cut)}; take a model without added tokens"
        )
    encoding, decoding = (
        read(file, lambda name: _checked_model(pathlib.Path(name).read_bytes())) for file in (source, target)
    )
    languages = (settings.get("source_lang"), settings.get("target_lang"))
    return read(vocabulary, lambda _: SentencePiecePair(encoding, decoding, ids, languages))


def _checked_model(model: bytes) -> bytes:
    """Return a sentencepiece model as it is. Raises ValueError for bytes that are no such model."""
    sentencepiece_processor(model)
    return model


def settings_beside(
    vocabulary: pathlib.Path, classes: Collection[str], only: dict[str, Any] | None = None, remedy: str | None = None
) -> dict[str, Any]:
    """Check that the settings in the tokenizer_config.json beside a vocabulary are supported, and return the settings
    that are not null.

    Returns {} if there is no such file.

    vocabulary: the file of the vocabulary.
    classes: names of tokenizer classes that split text alike, without the ending Fast.
    only: settings of which a single value is supported, with that value.
    remedy: what to do about others, the end of the error message; by default, how to make a tokenizer.json.

    Raises ValueError if `tokenizer_class` is none of the classes, or if a setting has an unsupported value or a wrong
    type.
    """
    file = vocabulary.parent / SETTINGS
    settings = {key: value for key, value in _object(file).items() if value is not None}
    for key, kind in _TYPES.items():  # a missing setting counts as `kind()`, which is of the right type
        if not isinstance(settings.get(key, kind()), kind):
            raise ValueError(
                f"{file}: {key} must be of type {kind.__name__}, got {settings[key]!r}; copy the file anew from the "
                "original tokenizer"
            )
    named = settings.get("tokenizer_class", "").removesuffix("Fast")
    wrong = [] if named in ("", *classes) else [f"tokenizer_class={named} is not one of {', '.join(classes)}"]
    for key, value in (only or {}).items():
        if settings.get(key, value) != value:
            wrong.append(f"{key}={settings[key]!r} is not supported, only {value!r}")
    if wrong:
        remedy = remedy or (
            "If transformers has a fast tokenizer for this model, AutoTokenizer.from_pretrained(...)"
            f".save_pretrained(...) writes a tokenizer.json, which is loaded instead of {vocabulary.name}."
        )
        raise ValueError(
            f"{vocabulary.name} cannot be loaded with the settings in {file}: {'; '.join(wrong)}. {remedy}"
        )
    return settings


def add_tokens(tokenizer: huggingface.Tokenizer, directory: pathlib.Path) -> None:
    """Add the tokens in a directory's added_tokens.json, if that file exists, to a tokenizer, with the ids in the file.

    Raises ValueError if a token cannot be added or cannot have its id.
    """
    added = _object(directory / ADDED)
    for token, id in added.items():
        if type(id) is not int:
            raise ValueError(
                f"{directory / ADDED}: expected an integer id for each token, got {id!r} for {token!r}; copy the file "
                "anew from the original tokenizer"
            )
        # The library panics at a token whose characters the normaliser removes completely.
        if not read(directory / ADDED, lambda _, token=token: _normalized(tokenizer, token)):
            raise ValueError(
                f"{directory / ADDED}: the tokenizer removes every character of {token!r}, so this text cannot "
                f"be a token; copy {ADDED} anew, or delete this token there"
            )
    for token, id in sorted(added.items(), key=lambda item: item[1]):
        if tokenizer.token_to_id(token) is None:
            read(directory / ADDED, lambda _, token=token: tokenizer.add_tokens([token]))
        if tokenizer.token_to_id(token) != id:
            raise ValueError(
                f"{directory / ADDED} gives {token!r} the id {id}, but with the vocabulary in the same directory this "
                f"token gets the id {tokenizer.token_to_id(token)}, so the files are of different models; copy all of "
                f"them ({', '.join(present(directory))}) from the same model"
            )


def present(directory: pathlib.Path) -> list[str]:
    """Return the names of a directory's files that may belong to a tokenizer."""
    found = [name for name in ("tokenizer.json", *FILES) if (directory / name).exists()]
    return found + sorted(file.name for file in directory.glob("*.model"))


def _normalized(tokenizer: huggingface.Tokenizer, token: str) -> str:
    return tokenizer.normalizer.normalize_str(token) if tokenizer.normalizer else token


def read(file: pathlib.Path, reader: Callable[..., Any], beside: pathlib.Path | None = None) -> Any:
    """Return `reader(file)`; an error of the tokenizer library is raised as a ValueError that names the file.

    file: the file that is read.
    reader: a function of the library, called with the file's path.
    beside: a second file that `reader` reads; the error names both files.

    Raises ValueError for everything that the library cannot read.
    """
    try:
        return reader(str(file))
    except BaseException as error:  # the Rust library raises bare Exception, or a panic: a BaseException
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        names = f"{file} with {beside.name}" if beside else file
        files = "both files" if beside else "the file"
        raise ValueError(
            f"{names} could not be read as a tokenizer ({error}); copy {files} anew from the original tokenizer."
        ) from error


def _completed(
    tokenizer: huggingface.Tokenizer, specials: Collection[str], directory: pathlib.Path
) -> huggingface.Tokenizer:
    """Register `specials` as special tokens, add the tokens in added_tokens.json, and return the tokenizer."""
    # Only special tokens that the vocabulary has: a missing one would get an id without an embedding.
    tokenizer.add_special_tokens([name for name in specials if tokenizer.token_to_id(name) is not None])
    add_tokens(tokenizer, directory)
    return tokenizer


def _object(file: pathlib.Path) -> dict[str, Any]:
    return read_json(file) if file.exists() else {}
