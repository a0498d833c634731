"""Convert published vocabularies of older formats to tokenizers that are stored as `tokenizer.json`.

They are BERT's vocab.txt, RoBERTa's vocab.json with merges.txt, sentencepiece models whose pieces have other ids in the
model or to which tokens were added, and fairseq's dict.txt with the files of its tokenizer.
"""

from collections.abc import Collection
from typing import Any

import tokenizers as huggingface
from tokenizers import models, pre_tokenizers

from ag_jax.data import sentencepiece_models
from ag_jax.data.tokenizer_backends import (
    BERT_SPECIALS,
    ROBERTA_SPECIALS,
    SOURCE_MODEL,
    HuggingFace,
    byte_bpe,
    sentencepiece_processor,
    wordpiece,
)
from ag_jax.data.tokenizer_settings import (
    MODEL,
    SETTINGS,
    Files,
    added_tokens,
    check_added,
    reading_tokenizer,
    special_names,
    supported_settings,
)
from ag_jax.data.tokenizers import Tokenizer
from ag_jax.interop import fairseq
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
# Of sentencepiece models by family: tokenizer classes, and the mask that the model may lack.
_SENTENCEPIECE = {"camembert": (("CamembertTokenizer",), "<mask>"), "deberta-v2": (("DebertaV2Tokenizer",), "[MASK]")}
# Of CamemBERT's tokenizer, in place of the first piece of its sentencepiece model (`fairseq.symbols`).
_CAMEMBERT = ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED")
_ENCODER, _MERGES = "encoder.json", "vocab.bpe"  # GPT-2's tokenizer, whose ids are fairseq's symbols
# What symbols of a dict.txt look like that are no words, and the files of the tokenizer that splits texts into them.
_SUBWORDS = {
    "the ids of GPT-2's tokens": (lambda symbol: symbol == "50256", f"{_ENCODER} and {_MERGES}"),
    "pieces of sentencepiece": (lambda symbol: symbol.startswith("▁"), "the *.model of sentencepiece"),
    "pieces of subword-nmt": (lambda symbol: symbol.endswith("@@"), "a tokenizer.json, because its codes are not read"),
}


def convert(files: Files, family: Family) -> Tokenizer | None:
    """Return the tokenizer of a model whose files have neither a tokenizer.json nor Marian's two models; else None.

    Settings in tokenizer_config.json and tokens in added_tokens.json are applied, or rejected with an error if they are
    not supported.

    Raises FileNotFoundError if merges.txt is missing, and ValueError for unreadable files and unsupported settings.
    """
    kinds = {"vocab.json": _byte_bpe, "vocab.txt": _wordpiece}
    if fairseq.VOCABULARY in files and MODEL not in files:
        kinds = {fairseq.VOCABULARY: _fairseq}
    older = [*kinds, *sorted(name for name in files if name.endswith(".model"))]
    name = next((name for name in older if name in files), None)
    if name is None or {"tokenizer.json", SOURCE_MODEL} & files.keys():
        return None
    if name in kinds:
        library = kinds[name](files)
    else:
        classes, mask = _SENTENCEPIECE.get(family.model_type, ((), ""))
        supported_settings(name, files, classes, {"do_lower_case": False, "split_by_punct": False})
        with reading_tokenizer(files[name]):
            content = files[name].read_bytes()
            words = [*_CAMEMBERT, *_pieces(content)[1:]] if family.model_type == "camembert" else []
            library = sentencepiece_models.convert(content, vocabulary=words, mask=mask)
    _add_tokens(library, files)
    check_added(files, name, library.token_to_id)
    usual = _BERT_NAMES if name == "vocab.txt" else {}
    named = {key: token for key, token in usual.items() if library.token_to_id(token) is not None}
    with reading_tokenizer(files[name]):
        backend = HuggingFace(library, by_sentencepiece=True)  # only of a sentencepiece model has it rules for that
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
    """Return BERT's WordPiece; text is lower-cased unless tokenizer_config.json forbids it.

    Raises ValueError if text is lower-cased and the vocabulary has no word in lower case.
    """
    settings = supported_settings("vocab.txt", files, _WORDPIECE, _ONLY_WORDPIECE)
    unknown = special_names(files).get("unk_token", "[UNK]")
    with reading_tokenizer(files["vocab.txt"]):
        model = models.WordPiece.from_file(str(files["vocab.txt"]), unk_token=unknown)
    lowercase = settings.get("do_lower_case", True)
    library = wordpiece(
        model,
        lowercase=lowercase,
        strip_accents=settings.get("strip_accents"),
        split_chinese=settings.get("tokenize_chinese_chars", True),
    )
    if lowercase and "".join(word for word in library.get_vocab() if not word.startswith("[")).isupper():
        raise ValueError(
            f"{files['vocab.txt']} has words in capital letters alone, but text is lower-cased, so every word would be "
            f'{unknown}: set "do_lower_case": false in {SETTINGS} beside it'
        )
    return _with_specials(library, BERT_SPECIALS, files)


def _pieces(model: bytes) -> list[str]:
    """Return the pieces of a sentencepiece model in the order of their ids."""
    processor = sentencepiece_processor(model)
    return [processor.id_to_piece(id) for id in range(processor.get_piece_size())]


def _fairseq(files: Files) -> huggingface.Tokenizer:
    """Return the tokenizer of a model of fairseq: GPT-2's BPE, sentencepiece, or one that splits texts at spaces.

    The files beside dict.txt say which. Raises ValueError if these files are missing for symbols that are no words, and
    if tokens are not among the symbols.
    """
    file = files[fairseq.VOCABULARY]
    words = fairseq.symbols(file)
    if _ENCODER in files:
        merges = files[_ENCODER].with_name(_MERGES)
        merges.stat()  # raises FileNotFoundError
        with reading_tokenizer(f"{files[_ENCODER]} with {_MERGES}"):
            tokens, pairs = models.BPE.read_file(str(files[_ENCODER]), str(merges))
            of_id = {str(id): token for token, id in tokens.items()}
            if lacking := of_id.keys() - {*words}:
                raise ValueError(f"{file} lacks {len(lacking)} of the ids in {_ENCODER}, such as {min(lacking)}")
            vocabulary = {of_id.get(word, word): id for id, word in enumerate(words)}
            library = byte_bpe(models.BPE(vocabulary, pairs))
    elif name := next((name for name in sorted(files) if name.endswith(".model")), None):
        with reading_tokenizer(files[name]):
            library = sentencepiece_models.convert(files[name].read_bytes(), vocabulary=words)
    else:
        for kind, (is_one, wanted) in _SUBWORDS.items():
            if any(map(is_one, words)):
                raise ValueError(f"{file} holds {kind}, so that words of a text would be unknown: add {wanted}")
        library = huggingface.Tokenizer(models.WordLevel({word: id for id, word in enumerate(words)}, "<unk>"))
        library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _with_specials(library, ROBERTA_SPECIALS, files)


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
