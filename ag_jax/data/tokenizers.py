"""Train, load and save tokenizers: byte-level BPE, WordPiece, and BPE and unigram models of sentencepiece.

A sentencepiece model that is trained here becomes a tokenizer.json, which normalises text by NFKC; a loaded one is used
as it is.

A literal "</s>" in a document is tokenised as these four characters, never as the special token. Special tokens of an
imported tokenizer that are none of the five of `SpecialTokens` are tokens in a text, as in transformers.
"""

import copy
import dataclasses
import functools
import hashlib
import io
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import sentencepiece
import tokenizers as huggingface
from etils import epath

from ag_jax.data import sentencepiece_models, tokenizer_settings, words
from ag_jax.data.config import TokenizerConfig
from ag_jax.data.json_files import read_json
from ag_jax.data.sentencepiece_models import SPACE
from ag_jax.data.tokenizer_backends import (
    BERT_SPECIALS,
    ROBERTA_SPECIALS,
    SENTENCEPIECE_NORMALIZER,
    SOURCE_MODEL,
    TARGET_MODEL,
    HuggingFace,
    SentencePiece,
    SentencePiecePair,
    byte_bpe,
    sentencepiece_processor,
    wordpiece,
)
from ag_jax.data.tokenizer_settings import ADDED, SETTINGS, Files, reading_tokenizer
from ag_jax.distributed import storage

Backend = HuggingFace | SentencePiece | SentencePiecePair

# Usual names of the special tokens, for tokenizers that do not state theirs. Gemma's come first: in its vocabulary <s>
# and </s> are HTML's tags of struck text.
_ROLES = {
    "begin": ("<bos>", "<s>", "[CLS]"),
    "pad": ("<pad>", "[PAD]"),
    "end": ("<eos>", "</s>", "[SEP]"),
    "unknown": ("<unk>", "[UNK]"),
    "mask": ("<mask>", "[MASK]"),
}
CHECKSUM = "checksum.json"  # saved by `Tokenizer.save` beside the file of the tokenizer
_OLDER = ("vocab.json", "merges.txt", "vocab.txt")  # files of tokenizers that become a tokenizer.json at import
_SENTENCEPIECE = ("DebertaV2Tokenizer",)  # whose token ids are those of the sentencepiece model
# sentencepiece holds its training text in memory and silently skips longer lines.
SENTENCEPIECE_LINES = 2_000_000
_SENTENCEPIECE_LINE_CHARACTERS = 1000
# A fixed number, not that of the machine's cores, because sentencepiece's result depends on it.
_SENTENCEPIECE_TRAINING_THREADS = 4


@dataclasses.dataclass(frozen=True)
class SpecialTokens:
    """Ids of the special tokens.

    A vocabulary of Marian has no `begin` and `mask` (`Tokenizer.lacks`). They are then the id of padding, from which
    Marian's decoder starts, and which is never predicted.

    begin: first token of a sequence: <s>, [CLS] or, in Gemma's vocabulary, <bos>.
    pad: padding.
    end: last token of a sequence and separator: </s>, [SEP] or <eos>.
    unknown: replacement of text that the vocabulary lacks.
    mask: the mask token.
    pair_separators: number of `end` tokens between the two segments of a pair: 2 in RoBERTa, 1 in BERT.
    second_type: token type of the second text of a pair with an imported model, as its files say; None for models that
        were not imported, where it is 1 if the model has two token types.
    """

    begin: int
    pad: int
    end: int
    unknown: int
    mask: int
    pair_separators: int
    second_type: int | None = None

    def type_of_second(self, token_types: int) -> int:
        """Return the token type of the second text of a pair for a model with `token_types` token types."""
        return int(token_types > 1) if self.second_type is None else self.second_type


class Tokenizer:
    """A tokenizer with its special tokens; made by `train`, `load`, or from the adapter of a library's tokenizer.

    backend: the adapter of a library's tokenizer.
    origin: name of the tokenizer in error messages.
    named: special tokens that files beside the tokenizer name, such as {"mask_token": "[MASK]"}.

    Raises ValueError if the vocabulary lacks a special token that its kind of tokenizer needs, and if the tokenizer and
    `named` contradict each other.
    """

    def __init__(self, backend: Backend, origin: str, named: Mapping[str, str] | None = None):
        self._backend = backend
        self.vocabulary_size: int = backend.vocabulary_size
        names = _special_names(backend, origin, named or {})
        # Names that the tokenizer alone would not give are saved with it.
        self._named = {
            tokenizer_settings.ROLES[role][0]: name for role, name in names.items() if name != _default(backend, role)
        }
        self.specials: SpecialTokens = _find_specials(backend, origin, names)
        backend.treat_as_text(set(names.values()))
        self.lacks: tuple[str, ...] = tuple(role for role in backend.may_lack if role not in names)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, without special tokens."""
        return self._backend.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, without special tokens, encoded on all cores."""
        return self._backend.encode_batch(texts)

    def encode_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each target text of a translation, without special tokens.

        They are those of `encode_batch`, except for tokenizers with a model for each of the two languages. Those decode
        with the model of the target.
        """
        return self._backend.encode_targets(texts)

    def locate_batch(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Return for each text its token ids, without special tokens, and the (start, end) characters of each token.

        A space before a word may belong to the word's first token. Tokens that are parts of the same character all have
        the range of that character.
        """
        return self._backend.locate_batch(texts)

    def locate_targets(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Return what `locate_batch` does, for each target text of a translation (`encode_targets`)."""
        return self._backend.locate_targets(texts)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of token ids; special tokens are left out."""
        special = set(self.special_ids)
        return self._backend.decode([int(id) for id in ids if int(id) not in special])

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return each token as readable text, for plots; "▁" stands for a space before the token."""
        return [self._backend.readable(int(id)) for id in ids]

    def with_second_type(self, second_type: int | None) -> "Tokenizer":
        """Return a copy with another token type for the second text of pairs; None: 1 if the model has two, else 0."""
        tokenizer = copy.copy(self)
        tokenizer.specials = dataclasses.replace(self.specials, second_type=second_type)
        return tokenizer

    @property
    def languages(self) -> tuple[str | None, str | None]:
        """Names (source, target) of the languages of a translation model's tokenizer; None for an unknown language."""
        return self._backend.languages

    @functools.cached_property
    def special_ids(self) -> tuple[int, ...]:
        """Ids of the five special tokens, ascending."""
        specials = self.specials
        return tuple(sorted((specials.begin, specials.pad, specials.end, specials.unknown, specials.mask)))

    @functools.cached_property
    def delimiter_ids(self) -> tuple[int, ...]:
        """Ids of the tokens that delimit a sequence: begin and end."""
        return (self.specials.begin, self.specials.end)

    @functools.cached_property
    def period_ids(self) -> tuple[int, ...]:
        """Ids of the tokens that are a full stop, with or without a space before it, ascending."""
        ids = (self._backend.id(piece) for piece in (".", "Ġ.", "▁."))
        return tuple(sorted(id for id in ids if id is not None))

    @functools.cached_property
    def word_borders(self) -> words.Borders:
        """Which tokens begin and end a word. Raises ValueError if the tokens do not tell where words begin."""
        if self._backend.has_whole_words:
            return words.whole(self.vocabulary_size)
        tokens, ending = self.tokens(range(self.vocabulary_size)), self._backend.ending
        if ending:
            tokens = [token.removesuffix(ending) + SPACE if token.endswith(ending) else token for token in tokens]
        return words.borders(tokens, self._backend.continuation)

    def save(self, directory: str | os.PathLike):
        """Save the tokenizer in `directory`, for `load`.

        Each file is written whole or not at all, even in a crash. `load` compares the files with their SHA-256 in
        `checksum.json`, which is written after them.
        """
        folder = epath.Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        files = self.files()
        (folder / CHECKSUM).unlink(missing_ok=True)  # a crash must not leave it beside another tokenizer's file
        for name, content in files.items():
            storage.write_whole(folder / name, content)
        hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        storage.write_whole(folder / CHECKSUM, json.dumps({"files": hashes}) + "\n")

    def files(self) -> dict[str, bytes]:
        """Return the tokenizer's files as {name: content}.

        They are `tokenizer.json`, `spiece.model` for sentencepiece, or several for two models of sentencepiece; and
        `tokenizer_config.json` with the names of special tokens that cannot be found without it, and with
        `sentencepiece_normalizer` if that normalises the text of a tokenizer.json.
        """
        files = self._backend.files()
        settings = {**self._named, **(self.settings if "tokenizer.json" in files else {})}
        settings = json.loads(files.get(SETTINGS, b"{}")) | settings
        return files | ({SETTINGS: json.dumps(settings).encode()} if settings else {})

    @property
    def settings(self) -> Mapping[str, bool]:
        """Settings, stored beside a tokenizer.json, that this package needs and other programs ignore."""
        return {SENTENCEPIECE_NORMALIZER: True} if self.is_normalized_by_sentencepiece else {}

    @property
    def is_normalized_by_sentencepiece(self) -> bool:
        """Whether text goes through sentencepiece's normaliser.

        The library `tokenizers` follows it only for composed text: in another program, decomposed text gets other ids.
        """
        return self._backend.is_normalized_by_sentencepiece

    def file(self) -> tuple[str, bytes]:
        """Return (name, content) of the file of a tokenizer that consists of one file.

        The file has the vocabulary and the text processing. Raises ValueError if there are several files.
        """
        files = self._backend.files()
        if len(files) > 1:
            raise ValueError(f"expected a tokenizer that is one file, got one of {', '.join(files)}")
        return next(iter(files.items()))

    def fingerprint(self) -> str:
        """Return the SHA-256 of the tokenizer's files; tokenizers with equal fingerprints give equal token ids."""
        files = self.files()
        hashes = [hashlib.sha256(content).hexdigest() for _, content in sorted(files.items())]
        return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()


def train(config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
    """Train a tokenizer on texts; the same texts give the same tokenizer.

    WordPiece reads the texts twice, so it holds those of an iterator in memory. Byte-level BPE and WordPiece may end
    with fewer than `vocabulary_size` tokens when the text is small.

    Raises ValueError if sentencepiece cannot train exactly `vocabulary_size` tokens, and if WordPiece needs more for
    the letters of the text; the message has the largest or smallest possible size.
    """
    if config.kind == "byte_bpe":
        backend: Backend = _train_byte_bpe(config, texts)
    elif config.kind == "wordpiece":
        backend = _train_wordpiece(config, texts)
    else:
        backend = _train_sentencepiece(config, texts)
    return Tokenizer(backend, origin=f"the trained {config.kind}")


def load(path: str | os.PathLike) -> Tokenizer:
    """Load the tokenizer of a directory or file.

    The file is a tokenizer.json or a sentencepiece model. A directory may also have Marian's source.spm with target.spm
    and vocab.json, which come before all others. Settings in tokenizer_config.json and added tokens beside the file are
    compared with it, or rejected with an error if they are not supported. Special tokens are those that
    tokenizer_config.json and special_tokens_map.json name, or that the post-processor of a tokenizer.json adds; else
    they are found by their usual names. Of a directory that `Tokenizer.save` wrote, the files that it wrote are
    compared with their checksums, and no other file beside them is read.

    Raises FileNotFoundError if the path does not exist, and ValueError if it holds no readable tokenizer, if a special
    token is missing, if the files contradict each other, or if the checksum differs.
    """
    place = epath.Path(path)
    if not place.exists():
        raise FileNotFoundError(f"no tokenizer at {place}: expected a directory or a file")
    if not place.is_dir():
        files, names = tokenizer_settings.files_of(place.parent), [place.name]
    else:
        files = _saved_files(place) or tokenizer_settings.files_of(place)
        # A tokenizer.json beside source.spm knows only one of Marian's two models.
        order = (SOURCE_MODEL, "tokenizer.json", *_OLDER)
        names = sorted(files, key=lambda name: (order.index(name) if name in order else len(order), name))
    for name in names:
        if name in _OLDER:
            raise ValueError(
                f"expected a tokenizer.json or a sentencepiece model, got {files[name]}, a vocabulary that only "
                "`ag-jax import` reads: import its model and take tokenizer/ of the run, or "
                f"{tokenizer_settings.TO_TOKENIZER_JSON}"
            )
        if name in (SOURCE_MODEL, "tokenizer.json") or name.endswith(".model"):
            return _load(name, files)
    raise ValueError(
        f"{place} holds no tokenizer: expected tokenizer.json or a *.model file of sentencepiece, got "
        f"{', '.join(names[:8]) or 'an empty directory'}."
    )


def _saved_files(directory: epath.Path) -> dict[str, epath.Path]:
    """Check the files of a saved tokenizer and return them by their names; {} if it has no `checksum.json`.

    Raises ValueError if a file does not match its SHA-256 in `checksum.json`, and FileNotFoundError if it is missing.
    """
    path = directory / CHECKSUM
    hashes = read_json(path, fields={"files": dict})["files"] if path.exists() else {}
    for name, expected in hashes.items():
        file = directory / name
        if hashlib.sha256(file.read_bytes()).hexdigest() != expected:
            raise ValueError(
                f"{file} is not the tokenizer that was saved, its checksum differs: put back a copy, or delete {path} "
                "if you changed the tokenizer on purpose"
            )
    return {name: directory / name for name in hashes}


def _load(name: str, files: Files) -> Tokenizer:
    """Load the tokenizer in the file `name`; the other files may have settings for it."""
    file = files[name]
    content = file.read_bytes()
    if name == "tokenizer.json":
        by_sentencepiece = tokenizer_settings.settings_of(files).get(SENTENCEPIECE_NORMALIZER, False)
        with reading_tokenizer(file):
            library = huggingface.Tokenizer.from_str(content.decode("utf-8-sig"))
            backend: Backend = HuggingFace(library, by_sentencepiece)
        tokenizer_settings.check_processing(library, files)
    elif name == SOURCE_MODEL:
        backend = _load_marian(files)
    else:
        only: dict[str, Any] = {"do_lower_case": False, "split_by_punct": False, "sp_model_kwargs": {}}
        tokenizer_settings.supported_settings(name, files, _SENTENCEPIECE, only)
        with reading_tokenizer(file):
            backend = SentencePiece(content)
    tokenizer_settings.check_added(files, name, backend.id)
    return Tokenizer(backend, str(file), tokenizer_settings.special_names(files))


def _load_marian(files: Files) -> SentencePiecePair:
    """Load the tokenizer of a Marian model: source.spm, target.spm and the vocab.json that both share.

    Raises FileNotFoundError if one is missing, and ValueError for unreadable files and unsupported settings.
    """
    source, target, vocabulary = (
        files[SOURCE_MODEL].parent / name for name in (SOURCE_MODEL, TARGET_MODEL, "vocab.json")
    )
    only = {"separate_vocabs": False, "sp_model_kwargs": {}}
    remedy = "take a model whose languages share a vocabulary"
    settings = tokenizer_settings.supported_settings(SOURCE_MODEL, files, ("MarianTokenizer",), only, remedy)
    ids = read_json(vocabulary)
    if wrong := [token for token, id in ids.items() if type(id) is not int or id < 0]:
        raise ValueError(
            f"{vocabulary}: expected an id of at least 0 for each token, got {ids[wrong[0]]!r} for {wrong[0]!r}; copy "
            "the file anew from the original tokenizer"
        )
    # transformers cuts texts at added tokens before sentencepiece sees them.
    added = {token.content for _, token, _ in tokenizer_settings.added_tokens(files)} - {*ROBERTA_SPECIALS}
    if cut := sorted(token for token in added if not (token.startswith(">>") and token.endswith("<<"))):
        raise ValueError(
            f"{SETTINGS} or {ADDED} beside {vocabulary} adds tokens that are neither special nor the code of a "
            f"language, which is not supported: {', '.join(cut)}; take a model without added tokens"
        )
    contents = source.read_bytes(), target.read_bytes()
    for file, content in zip((source, target), contents, strict=True):
        with reading_tokenizer(file):
            sentencepiece_processor(content)
    with reading_tokenizer(vocabulary):
        return SentencePiecePair(*contents, ids, (settings.get("source_lang"), settings.get("target_lang")))


def _default(backend: Backend, role: str) -> str | None:
    """Return a role's special token: the tokenizer's own, else one with a usual name; None if it has neither."""
    names = [backend.special_tokens[role]] if role in backend.special_tokens else _ROLES[role]
    return next((name for name in names if backend.id(name) is not None), None)


def _special_names(backend: Backend, origin: str, named: Mapping[str, str]) -> dict[str, str]:
    """Return {role: special token}: those in `named`, those that the tokenizer states, or those with a usual name.

    Of the usual names, RoBERTa's are <s>, BERT's [CLS] and Gemma's <bos>. Roles without a token are left out.

    Raises ValueError if `named` and the tokenizer contradict each other, and if the vocabulary lacks a token.
    """
    files = f"{SETTINGS} or {tokenizer_settings.SPECIALS}"
    names: dict[str, str] = {}
    for role, settings in tokenizer_settings.ROLES.items():
        token = backend.special_tokens.get(role)
        key = next((key for key in settings if key in named and (key == settings[0] or token is None)), None)
        if key is None:
            continue
        if token not in (None, named[key]) or backend.id(named[key]) is None:
            raise ValueError(
                f"{files} of the tokenizer {origin} has {key}={named[key]!r}, but the tokenizer itself "
                f"{f'has {token!r} as its {role} token' if token else 'lacks it'}: copy all files anew from the "
                "original tokenizer"
            )
        names[role] = named[key]
    # Only with both tokens does a tokenizer have Gemma's usual names; with one, the other was lost.
    of_gemma = [name for name in ("<bos>", "<eos>") if backend.id(name) is not None]
    if len(of_gemma) == 1 and not {"begin", "end"} <= names.keys() | backend.special_tokens.keys():
        other = "<eos>" if of_gemma == ["<bos>"] else "<bos>"
        raise ValueError(
            f"the tokenizer {origin} has {of_gemma[0]} but not {other}, which go together as begin and end of a text: "
            "copy it anew"
        )
    defaults = {role: _default(backend, role) for role in _ROLES if role not in names}
    return names | {role: name for role, name in defaults.items() if name is not None}


def _find_specials(backend: Backend, origin: str, names: Mapping[str, str]) -> SpecialTokens:
    """Return the token ids of the special tokens `names`, {role: token}.

    Raises ValueError if a special token is missing without which this kind of tokenizer cannot be used, and if a token
    has two roles.
    """
    for role in _ROLES:
        if role not in names and role not in backend.may_lack:
            raise ValueError(
                f"the tokenizer {origin} lacks the {role} token: expected {' or '.join(_ROLES[role])} in its "
                "vocabulary; add it to the vocabulary (and a row to the model's embeddings)"
            )
    roles: dict[str, str] = {}
    for role in _ROLES:
        if (name := names.get(role)) is not None and (other := roles.setdefault(name, role)) != role:
            raise ValueError(
                f"the tokenizer {origin} has {name!r} as its {other} and its {role} token: expected five different "
                "tokens; add one of them to the vocabulary (and a row to the model's embeddings), and name it in "
                f"{SETTINGS}"
            )
    ids: dict[str, int] = {role: backend.id(names.get(role, names["pad"])) for role in _ROLES}  # type: ignore[misc]
    separators = backend.pair_separators or (2 if ids["begin"] == backend.id("<s>") else 1)
    return SpecialTokens(**ids, pair_separators=separators)


def _train_byte_bpe(config: TokenizerConfig, texts: Iterable[str]) -> HuggingFace:
    """Train byte-level BPE, with RoBERTa's special tokens."""
    tokenizer = byte_bpe(huggingface.models.BPE())
    trainer = huggingface.trainers.BpeTrainer(
        vocab_size=config.vocabulary_size,
        min_frequency=2,
        special_tokens=list(ROBERTA_SPECIALS),
        initial_alphabet=huggingface.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return HuggingFace(tokenizer)


def _train_wordpiece(config: TokenizerConfig, texts: Iterable[str]) -> HuggingFace:
    """Train WordPiece, with BERT's special tokens. Raises ValueError if the letters of the text need more tokens."""
    texts = list(texts) if isinstance(texts, Iterator) else texts
    learner = wordpiece(huggingface.models.WordPiece(unk_token="[UNK]"), lowercase=config.lowercase)
    # The trainer numbers the pieces "##a" as it meets them in a hash table, in another order in every process, and
    # breaks ties by number. Announced as special tokens, in a fixed order, they have fixed numbers.
    letters = sorted(set().union(*(set(learner.normalizer.normalize_str(text)) for text in texts)))
    inner = [f"##{letter}" for letter in letters if _is_inside_words(learner, letter)]
    trainer = huggingface.trainers.WordPieceTrainer(
        vocab_size=config.vocabulary_size,
        min_frequency=2,
        special_tokens=[*BERT_SPECIALS, *inner],
        show_progress=False,
    )
    learner.train_from_iterator(texts, trainer)
    if (smallest := learner.get_vocab_size()) > config.vocabulary_size:
        raise ValueError(
            f"the characters of the source text need a WordPiece vocabulary of at least {smallest} pieces, got "
            f"tokenizer.vocabulary_size={config.vocabulary_size}; raise it"
        )
    # Rebuilt from the vocabulary, so that only the five special tokens are special, not the inner pieces.
    model = huggingface.models.WordPiece(learner.get_vocab(), unk_token="[UNK]")
    tokenizer = wordpiece(model, lowercase=config.lowercase)
    tokenizer.add_special_tokens(list(BERT_SPECIALS))
    return HuggingFace(tokenizer)


def _is_inside_words(tokenizer: huggingface.Tokenizer, letter: str) -> bool:
    """Return whether the pre-tokenizer keeps a word in one piece if the character `letter` stands inside it."""
    word = tokenizer.normalizer.normalize_str(f"a{letter}a")
    return len(tokenizer.pre_tokenizer.pre_tokenize_str(word)) == 1


def sentencepiece_lines(text: str) -> Iterator[str]:
    """Yield a text as lines on which to train sentencepiece, which reads at most `SENTENCEPIECE_LINES` lines."""
    size = _SENTENCEPIECE_LINE_CHARACTERS
    return (line[start : start + size] for line in text.splitlines() for start in range(0, len(line), size))


def _train_sentencepiece(config: TokenizerConfig, texts: Iterable[str]) -> HuggingFace:
    """Train BPE or a unigram model with sentencepiece. Raises ValueError for an impossible vocabulary size."""
    normalizer = sentencepiece_models.NORMALIZER
    lines = map(normalizer.normalize_str, itertools.chain.from_iterable(map(sentencepiece_lines, texts)))
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=itertools.islice(lines, SENTENCEPIECE_LINES),
            model_writer=model,
            model_type=config.kind.removeprefix("sentencepiece_"),
            vocab_size=config.vocabulary_size,
            bos_id=0,
            pad_id=1,
            eos_id=2,
            unk_id=3,
            control_symbols=[ROBERTA_SPECIALS[4]],
            normalization_rule_name="identity",  # what the library and sentencepiece do alike
            num_threads=_SENTENCEPIECE_TRAINING_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise ValueError(
            "expected a vocabulary of a size that the source text supports, got tokenizer.vocabulary_size="
            f"{config.vocabulary_size}: {str(error).rpartition('] ')[2]}"
        ) from error
    tokenizer = sentencepiece_models.convert(model.getvalue())
    tokenizer.normalizer = normalizer
    return HuggingFace(tokenizer)
