"""Load tokenizers in the format of older models, and read the settings in other files beside a tokenizer.

All settings in `tokenizer_config.json`, `special_tokens_map.json` and `added_tokens.json` are applied or rejected with
an error, because a tokenizer that splits text differently from the one that a model was trained with silently gives
other token ids.
"""

import codecs
import contextlib
import json
import pathlib
import tempfile
from collections.abc import Callable, Collection, Iterator
from typing import Any

import tokenizers as huggingface
from tokenizers import AddedToken

from ag_jax.data.json_files import FAULTS, read_json, reading, reason
from ag_jax.data.tokenizer_backends import (
    BERT_SPECIALS,
    ROBERTA_SPECIALS,
    SENTENCEPIECE_NORMALIZER,
    SOURCE_MODEL,
    TARGET_MODEL,
    HuggingFace,
    SentencePiecePair,
    byte_bpe,
    sentencepiece_processor,
    wordpiece,
)

_REMEDY = "copy the file anew from the original tokenizer"
SETTINGS, ADDED, SPECIALS = "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json"
MODEL = "config.json"  # of a model, which may name the class of its tokenizer, too
FILES = ("vocab.json", "merges.txt", "vocab.txt", SOURCE_MODEL, TARGET_MODEL, SETTINGS, ADDED, SPECIALS)
SPECIAL_SETTINGS = ("cls_token", "bos_token", "sep_token", "eos_token", "pad_token", "unk_token", "mask_token")
BERT_NAMES = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "mask_token": "[MASK]"}
_WORDPIECE = ("BertTokenizer", "ElectraTokenizer")
_ONLY_WORDPIECE = {
    "do_basic_tokenize": True,
    "word_tokenizer_type": "basic",
    "subword_tokenizer_type": "wordpiece",
    "never_split": [],
    "clean_text": True,
    "wordpieces_prefix": "##",
}
_MARIAN = ("MarianTokenizer",)
_MARIAN_SPECIALS = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
_BYTE_BPE = ("RobertaTokenizer", "GPT2Tokenizer", "DebertaTokenizer")
_SENTENCEPIECE = ("DebertaV2Tokenizer",)  # whose token ids are those of the sentencepiece model
# Classes that set the template of pairs themselves, whatever tokenizer.json says: with type 1 for the second text, and
# return types by default; or with type 0 for both texts.
_TYPED = ("BertTokenizer", "ElectraTokenizer", "ConvBertTokenizer", "MobileBertTokenizer", "DebertaV2Tokenizer")
_UNTYPED = ("RobertaTokenizer", "XLMRobertaTokenizer", "CamembertTokenizer", "MPNetTokenizer", "DebertaTokenizer")
# By `model_type`, the class of a tokenizer whose files name none.
_CLASSES = {
    "bert": "BertTokenizer",
    "electra": "BertTokenizer",
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
    "deberta": "DebertaTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
}
_FURTHER = ("additional_special_tokens", "extra_special_tokens")  # lists of special tokens without a role
_TYPES = {
    "tokenizer_class": str,
    "do_lower_case": bool,
    "strip_accents": bool,
    "tokenize_chinese_chars": bool,
    "add_prefix_space": bool,
    "do_basic_tokenize": bool,
    "split_by_punct": bool,
    "separate_vocabs": bool,
    SENTENCEPIECE_NORMALIZER: bool,
    "sp_model_kwargs": dict,
    "source_lang": str,
    "target_lang": str,
    "added_tokens_decoder": dict,
    "model_input_names": list,
}


def load_byte_bpe(directory: pathlib.Path) -> HuggingFace:
    """Load RoBERTa's byte-level BPE from the vocab.json and merges.txt of a directory.

    Raises FileNotFoundError if either is missing, and ValueError for unreadable files and unsupported settings.
    """
    vocabulary, merges = directory / "vocab.json", directory / "merges.txt"
    settings = settings_beside(vocabulary, _BYTE_BPE)
    model = read(vocabulary, huggingface.models.BPE.from_file, beside=merges)
    tokenizer = byte_bpe(model, space_first=settings.get("add_prefix_space", False))
    completed = _completed(tokenizer, ROBERTA_SPECIALS, directory)
    return read(vocabulary, lambda _: HuggingFace(completed))


def load_wordpiece(vocabulary: pathlib.Path) -> HuggingFace:
    """Return BERT's WordPiece tokenizer, from a vocab.txt; text is lower-cased unless tokenizer_config.json forbids it.

    The tokenizer_config.json is that of the same directory.

    Raises ValueError for unreadable files and unsupported settings.
    """
    settings = settings_beside(vocabulary, _WORDPIECE, _ONLY_WORDPIECE)
    unknown = special_names(vocabulary.parent).get("unk_token", "[UNK]")
    tokenizer = wordpiece(
        read(vocabulary, lambda file: huggingface.models.WordPiece.from_file(file, unk_token=unknown)),
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
    only = {"separate_vocabs": False, "sp_model_kwargs": {}}
    settings = settings_beside(vocabulary, _MARIAN, only, "Take a model whose languages share a vocabulary.")
    ids = read_json(vocabulary)
    if wrong := [token for token, id in ids.items() if type(id) is not int or id < 0]:
        raise ValueError(
            f"{vocabulary}: expected an id of at least 0 for each token, got {ids[wrong[0]]!r} for {wrong[0]!r}; copy "
            "the file anew from the original tokenizer"
        )
    names = special_names(directory)
    for role, expected in _MARIAN_SPECIALS.items():
        if (name := names.get(role, expected)) != expected:
            raise ValueError(
                f"{directory / SETTINGS} or {SPECIALS}: {role}={name!r} is not supported, only {expected!r}: take a "
                "model with Marian's names of the special tokens"
            )
    tokens = settings.get("added_tokens_decoder", {}).values()
    added = {str(token.get("content") if isinstance(token, dict) else token) for token in tokens}
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
    """Return the bytes of a sentencepiece model unchanged. Raises ValueError for bytes that are no such model."""
    sentencepiece_processor(model)
    return model


def settings_beside(
    vocabulary: pathlib.Path, classes: Collection[str], only: dict[str, Any] | None = None, remedy: str | None = None
) -> dict[str, Any]:
    """Return the settings in the tokenizer_config.json beside a vocabulary; ValueError if one is not supported.

    Settings that are null are left out. Returns {} if there is no such file. Without `tokenizer_class` there, the one
    in config.json counts.

    vocabulary: the file of the vocabulary.
    classes: names of tokenizer classes that split text alike, without the ending Fast.
    only: settings of which a single value is supported, with that value.
    remedy: what to do about others, the end of the error message; by default, how to make a tokenizer.json.

    Raises ValueError if `tokenizer_class` is none of the classes, or if a setting has an unsupported value or a wrong
    type.
    """
    file = vocabulary.parent / SETTINGS
    settings = _settings(file)
    of_model = _object(file.with_name(MODEL)).get("tokenizer_class")
    kind = str(settings.get("tokenizer_class", of_model or "")).removesuffix("Fast")
    wrong = [] if kind in ("", *classes) else [f"tokenizer_class={kind} is not one of {', '.join(classes)}"]
    for key, value in (only or {}).items():
        if settings.get(key, value) != value:
            wrong.append(f"{key}={settings[key]!r} is not supported, only {value!r}")
    if wrong:
        remedy = remedy or (
            "If transformers has a fast tokenizer for this model, AutoTokenizer.from_pretrained(...)"
            f".save_pretrained(...) writes a tokenizer.json, which is loaded instead of {vocabulary.name}."
        )
        raise ValueError(
            f"{vocabulary.name} cannot be loaded with the settings in {file} or {MODEL}: {'; '.join(wrong)}. {remedy}"
        )
    return settings


def _settings(file: pathlib.Path) -> dict[str, Any]:
    """Return the settings in a tokenizer_config.json that are not null; {} if there is no such file.

    Raises ValueError if a setting has a wrong type.
    """
    settings = {key: value for key, value in _object(file).items() if value is not None}
    for key, kind in _TYPES.items():  # a missing setting counts as `kind()`, which is of the right type
        if not isinstance(settings.get(key, kind()), kind):
            raise ValueError(f"{file}: {key} must be of type {kind.__name__}, got {settings[key]!r}; {_REMEDY}")
    return settings


def is_normalized_by_sentencepiece(directory: pathlib.Path) -> bool:
    """Return whether sentencepiece normalises text for the tokenizer.json of a directory, by its tokenizer_config.json.

    Raises ValueError if that says neither true nor false.
    """
    return bool(_settings(directory / SETTINGS).get(SENTENCEPIECE_NORMALIZER))


def second_type(directory: pathlib.Path) -> int:
    """Return the token type of the second text of a pair, as `AutoTokenizer` of transformers would give it to a model.

    This is 0 if the tokenizer does not return token types: `model_input_names` in tokenizer_config.json decides, else
    the tokenizer's class. If it does, the type is that of the class, else that of the template in tokenizer.json.

    directory: with the files of the tokenizer and the model's config.json.

    Raises ValueError for a template with types that no class gives.
    """
    settings, model = _settings(directory / SETTINGS), _object(directory / MODEL)
    file = directory / "tokenizer.json"
    of_files = {file.name: "", "vocab.json": "RobertaTokenizer", "vocab.txt": "BertTokenizer"}
    usual = next((kind for name, kind in of_files.items() if (directory / name).exists()), "")
    usual = usual or _CLASSES.get(str(model.get("model_type")), "")
    kind = str(settings.get("tokenizer_class") or model.get("tokenizer_class") or usual).removesuffix("Fast")
    if model.get("model_type") == "modernbert":  # transformers ignores the class that its files name
        kind = ""
    outputs = settings.get("model_input_names", ["token_type_ids"] if kind in _TYPED else [])
    if kind in _TYPED or kind in _UNTYPED or "token_type_ids" not in outputs or not file.exists():
        return int(kind in _TYPED and "token_type_ids" in outputs)
    library = read(file, huggingface.Tokenizer.from_file)
    library.no_padding()
    encoding = library.encode("a", "b")
    if 1 not in encoding.sequence_ids:
        return 0
    begin, types = encoding.sequence_ids.index(1), encoding.type_ids
    if types != [0] * begin + [types[-1]] * (len(types) - begin) or types[-1] > 1:
        raise ValueError(
            f"{file}: expected a template with token type 0 for the first text of a pair, and 0 or 1 for the second "
            f"and its end, got {types} for two words: correct its post_processor"
        )
    return types[-1]


def special_names(directory: pathlib.Path) -> dict[str, str]:
    """Return the special tokens that the files of a directory name, such as {"mask_token": "[MASK]"}.

    The files are tokenizer_config.json and special_tokens_map.json.

    Raises ValueError if a name is no text, and if the two files contradict each other.
    """
    names: dict[str, str] = {}
    for file in (directory / SETTINGS, directory / SPECIALS):
        values = _object(file)
        for key in SPECIAL_SETTINGS:
            if values.get(key) is None:
                continue
            name = _content(file, key, values[key])
            if names.setdefault(key, name) != name:
                raise ValueError(
                    f"{directory / SETTINGS} has {key}={names[key]!r}, but {file.name} has {name!r}: copy both anew "
                    "from the original tokenizer"
                )
    return names


def _content(file: pathlib.Path, key: str, token: Any) -> str:
    """Return the text of a token, which a setting gives as a text or as an object with `content`."""
    name = token.get("content") if isinstance(token, dict) else token
    if not isinstance(name, str) or not name:
        raise ValueError(
            f"{file}: {key} must name tokens, as a text or an object with content, got {token!r}; {_REMEDY}"
        )
    return name


def check_agreement(tokenizer: huggingface.Tokenizer, directory: pathlib.Path) -> None:
    """Raise ValueError if the files beside a tokenizer.json contradict it.

    Compared are how text is lower-cased, stripped of accents and split, as far as the tokenizer does so as BERT or
    RoBERTa, and the ids of added tokens.
    """
    settings = _settings(directory / SETTINGS)
    for key, value in _text_processing(tokenizer).items():
        if settings.get(key, value) != value:
            raise ValueError(
                f"{directory / SETTINGS} has {key}={settings[key]}, but tokenizer.json beside it {value}: copy both "
                "files anew from the original tokenizer"
            )
    for file, id, token in _added_beside(directory):
        if (actual := tokenizer.token_to_id(token.content)) != id:
            other = "lacks it" if actual is None else f"gives it the id {actual}"
            raise ValueError(
                f"{file} gives the token {token.content!r} the id {id}, but tokenizer.json beside it {other}: copy "
                "both files anew from the same tokenizer"
            )


def check_sentencepiece(model: pathlib.Path) -> None:
    """Raise ValueError if the files beside a sentencepiece model add tokens to it or change how text is split."""
    only: dict[str, Any] = {"do_lower_case": False, "split_by_punct": False, "sp_model_kwargs": {}}
    settings_beside(model, _SENTENCEPIECE, only)
    processor = sentencepiece_processor(model.read_bytes())
    added: list[tuple[pathlib.Path, str, int | None]] = []
    added += [(file, token.content, id) for file, id, token in _added_beside(model.parent)]
    added += [(file, name, None) for file, _, name in _further_beside(model.parent)]
    for file, name, id in added:
        actual = processor.piece_to_id(name)
        if processor.id_to_piece(actual) != name or actual != (actual if id is None else id):
            raise ValueError(
                f"{file} adds the token {name!r}{'' if id is None else f' with the id {id}'} to {model.name}, and "
                "tokens cannot be added to a sentencepiece model here: with transformers, "
                "AutoTokenizer.from_pretrained(...).save_pretrained(...) writes a tokenizer.json, which is read instead"
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


def _added_beside(directory: pathlib.Path) -> Iterator[tuple[pathlib.Path, int, AddedToken]]:
    """Yield (file, id, token) for each token that added_tokens.json or tokenizer_config.json adds with an id.

    Raises ValueError for a value that is no id or no token.
    """
    file = directory / ADDED
    for token, id in _object(file).items():
        yield file, _id(file, id), read(file, lambda _, token=token: AddedToken(token, normalized=True))
    file = directory / SETTINGS
    for id, token in _settings(file).get("added_tokens_decoder", {}).items():
        name = _content(file, "added_tokens_decoder", token)
        keys = ("single_word", "lstrip", "rstrip", "normalized", "special")
        flags = {key: bool(token[key]) for key in keys if key in token} if isinstance(token, dict) else {}
        yield file, _id(file, id), read(file, lambda _, name=name, flags=flags: AddedToken(name, **flags))


def _id(file: pathlib.Path, value: Any) -> int:
    """Return a token id that a file states, as an integer. Raises ValueError with the file if it is none."""
    with reading(file, _REMEDY):
        return int(value)


def add_tokens(tokenizer: huggingface.Tokenizer, directory: pathlib.Path) -> None:
    """Add the tokens of the files beside a vocabulary to a tokenizer: added_tokens.json and tokenizer_config.json.

    Raises ValueError if a token cannot be added or cannot have its id.
    """
    added = list(_added_beside(directory))
    for file, _, token in added:
        # The library panics at a token whose characters the normaliser removes completely.
        if token.normalized and not read(file, lambda _, token=token: _normalized(tokenizer, token.content)):
            raise ValueError(
                f"{file}: the tokenizer removes every character of {token.content!r}, so it cannot be a token; "
                "delete it there"
            )
    for file, id, token in sorted(added, key=lambda item: item[1]):
        if file.name == SETTINGS or tokenizer.token_to_id(token.content) is None:
            read(file, lambda _, token=token: tokenizer.add_tokens([token]))
        if tokenizer.token_to_id(token.content) != id:
            raise ValueError(
                f"{file} gives {token.content!r} the id {id}, but with the vocabulary beside it this token gets the id "
                f"{tokenizer.token_to_id(token.content)}: copy {', '.join(present(directory))} from the same model"
            )
    for file, key, name in _further_beside(directory):
        if tokenizer.token_to_id(name) is None:
            raise ValueError(
                f"{file}: {key} has {name!r}, which the vocabulary lacks: add it to {ADDED} with its id, or delete it "
                "there if the model does not use it"
            )
        tokenizer.add_special_tokens([name])


def _further_beside(directory: pathlib.Path) -> Iterator[tuple[pathlib.Path, str, str]]:
    """Yield (file, setting, token) for each additional special token that the files beside a vocabulary name."""
    for file in (directory / SETTINGS, directory / SPECIALS):
        for key in _FURTHER:
            tokens = _object(file).get(key) or []
            if isinstance(tokens, str):  # whose letters would become tokens
                raise ValueError(f"{file}: expected a list of tokens as {key}, got {tokens!r}; copy the file anew")
            for token in tokens.values() if isinstance(tokens, dict) else tokens:
                yield file, key, _content(file, key, token)


def present(directory: pathlib.Path) -> list[str]:
    """Return the names of a directory's files that may belong to a tokenizer."""
    names = [name for name in ("tokenizer.json", *FILES) if (directory / name).exists()]
    return names + sorted(file.name for file in directory.glob("*.model"))


def _normalized(tokenizer: huggingface.Tokenizer, token: str) -> str:
    """Return the text of a token after the tokenizer's normaliser, if it has one."""
    return tokenizer.normalizer.normalize_str(token) if tokenizer.normalizer else token


def read(file: pathlib.Path, reader: Callable[..., Any], beside: pathlib.Path | None = None) -> Any:
    """Return `reader(file)`; an error of the tokenizer library is raised as a ValueError that names the file.

    The library would take a byte order mark for a part of the first token, so the reader gets a file without it.

    file: the file that is read.
    reader: a function of the library, called with the file's path.
    beside: a second file that `reader` reads, its second argument; the error names both files.

    Raises ValueError for everything that the library cannot read.
    """
    try:
        with contextlib.ExitStack() as copies:
            return reader(*(_unmarked(one, copies) for one in (file, beside) if one))
    except OSError:
        raise
    except BaseException as error:  # the Rust library raises bare Exception, or a panic: a BaseException
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        names = f"{file} with {beside.name}" if beside else file
        files = "both files" if beside else "the file"
        fault = reason(error) if isinstance(error, FAULTS) else error
        raise ValueError(
            f"{names} could not be read as a tokenizer ({fault}); copy {files} anew from the original tokenizer"
        ) from error


def _unmarked(file: pathlib.Path, copies: contextlib.ExitStack) -> str:
    """Return the path of a file or, if it has a byte order mark, of a copy without it, which `copies` deletes."""
    with file.open("rb") as opened:
        if opened.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
            return str(file)
        copy = pathlib.Path(copies.enter_context(tempfile.TemporaryDirectory())) / file.name
        copy.write_bytes(opened.read())
    return str(copy)


def _completed(
    tokenizer: huggingface.Tokenizer, specials: Collection[str], directory: pathlib.Path
) -> huggingface.Tokenizer:
    """Register special tokens and the tokens that files beside the vocabulary add; return the completed tokenizer.

    specials: the usual special tokens; those that the files name are registered, too.
    """
    # Only special tokens that the vocabulary has: a missing one would get an id without an embedding.
    names = [*specials, *special_names(directory).values()]
    tokenizer.add_special_tokens([name for name in names if tokenizer.token_to_id(name) is not None])
    add_tokens(tokenizer, directory)
    return tokenizer


def _object(file: pathlib.Path) -> dict[str, Any]:
    """Return the JSON object in a file; {} if there is no such file."""
    return read_json(file) if file.exists() else {}
