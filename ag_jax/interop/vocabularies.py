"""Convert published vocabularies of older formats to tokenizers that are stored as `tokenizer.json`.

They are BERT's vocab.txt, RoBERTa's vocab.json with merges.txt, and sentencepiece models whose pieces have other ids in
the model or to which tokens were added.
"""

from collections.abc import Collection
from typing import Any

import tokenizers as huggingface
from tokenizers import models

from ag_jax.data import sentencepiece_models
from ag_jax.data.tokenizer_backends import (
    BERT_SPECIALS,
    ROBERTA_SPECIALS,
    SOURCE_MODEL,
    HuggingFace,
    byte_bpe,
    wordpiece,
)
from ag_jax.data.tokenizer_settings import (
    SETTINGS,
    Files,
    added_tokens,
    check_added,
    reading_tokenizer,
    special_names,
    supported_settings,
)
from ag_jax.data.tokenizers import Tokenizer
from ag_jax.interop.families import Family

_WORDPIECE = ("BertTokenizer", "ElectraTokenizer")
_ONLY_WORDPIECE = {
    "do_basic_tokenize": True,
    "word_tokenizer_type": "basic",
    "subword_tokenizer_type": "wordpiece",
    "never_split": [],
    "clean_text": True,
    "wordpieces_prefix": "##",
}
_BERT_NAMES = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "mask_token": "[MASK]"}
_BYTE_BPE = ("RobertaTokenizer", "GPT2Tokenizer", "DebertaTokenizer")
# Of sentencepiece models by family: tokenizer classes, whether ids are fairseq's, the mask that the model may lack.
_SENTENCEPIECE = {
    "camembert": (("CamembertTokenizer",), True, "<mask>"),
    "deberta-v2": (("DebertaV2Tokenizer",), False, "[MASK]"),
}


def convert(files: Files, family: Family) -> Tokenizer | None:
    """Return the tokenizer of a model whose files have neither a tokenizer.json nor Marian's two models; else None.

    Settings in tokenizer_config.json and tokens in added_tokens.json are applied, or rejected with an error if they are
    not supported.

    Raises FileNotFoundError if merges.txt is missing, and ValueError for unreadable files and unsupported settings.
    """
    kinds = {"vocab.json": _byte_bpe, "vocab.txt": _wordpiece}
    older = [*kinds, *sorted(name for name in files if name.endswith(".model"))]
    name = next((name for name in older if name in files), None)
    if name is None or {"tokenizer.json", SOURCE_MODEL} & files.keys():
        return None
    if name in kinds:
        library = kinds[name](files)
    else:
        classes, fairseq, mask = _SENTENCEPIECE.get(family.model_type, ((), False, ""))
        supported_settings(name, files, classes, {"do_lower_case": False, "split_by_punct": False})
        with reading_tokenizer(files[name]):
            library = sentencepiece_models.convert(files[name].read_bytes(), fairseq=fairseq, mask=mask)
    _add_tokens(library, files)
    check_added(files, name, library.token_to_id)
    usual = _BERT_NAMES if name == "vocab.txt" else {}
    named = {key: token for key, token in usual.items() if library.token_to_id(token) is not None}
    with reading_tokenizer(files[name]):
        backend = HuggingFace(library, by_sentencepiece=name not in kinds)
        return Tokenizer(backend, str(files[name]), named | special_names(files))


def _byte_bpe(files: Files) -> huggingface.Tokenizer:
    """Return RoBERTa's byte-level BPE, by default without a space added in front of the text."""
    settings = supported_settings("vocab.json", files, _BYTE_BPE, {})
    vocabulary, merges = files["vocab.json"], files["vocab.json"].with_name("merges.txt")
    merges.stat()  # raises FileNotFoundError
    with reading_tokenizer(f"{vocabulary} with {merges.name}"):
        model = models.BPE.from_file(str(vocabulary), str(merges))
    library = byte_bpe(model, space_first=settings.get("add_prefix_space", False))
    return _with_specials(library, ROBERTA_SPECIALS, files)


def _wordpiece(files: Files) -> huggingface.Tokenizer:
    """Return BERT's WordPiece; text is lower-cased unless tokenizer_config.json forbids it."""
    settings = supported_settings("vocab.txt", files, _WORDPIECE, _ONLY_WORDPIECE)
    unknown = special_names(files).get("unk_token", "[UNK]")
    with reading_tokenizer(files["vocab.txt"]):
        model = models.WordPiece.from_file(str(files["vocab.txt"]), unk_token=unknown)
    library = wordpiece(
        model,
        lowercase=settings.get("do_lower_case", True),
        strip_accents=settings.get("strip_accents"),
        split_chinese=settings.get("tokenize_chinese_chars", True),
    )
    return _with_specials(library, BERT_SPECIALS, files)


def _with_specials(library: huggingface.Tokenizer, usual: Collection[str], files: Files) -> huggingface.Tokenizer:
    """Return `library` after registering the special tokens that its vocabulary has: usual ones and named ones."""
    names = [*usual, *special_names(files).values()]  # one that is missing would get an id without an embedding
    library.add_special_tokens([name for name in names if library.token_to_id(name) is not None])
    return library


def _add_tokens(library: huggingface.Tokenizer, files: Files) -> None:
    """Add the tokens of the files beside a vocabulary, in the order of their ids; those without an id are in it."""
    added: list[Any] = sorted(added_tokens(files), key=lambda item: float("inf") if item[2] is None else item[2])
    for file, token, id in added:
        is_known = library.token_to_id(token.content) is not None
        if is_known if id is None else file.name == SETTINGS or not is_known:
            with reading_tokenizer(file):
                library.add_tokens([token])
