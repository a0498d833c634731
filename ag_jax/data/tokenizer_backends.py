"""Adapters with the same methods for tokenizers of the libraries `tokenizers` and `sentencepiece`."""

import base64
import json
import os
import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence

import sentencepiece
import tokenizers as huggingface
from sentencepiece.sentencepiece_model_pb2 import ModelProto, NormalizerSpec
from sentencepiece.sentencepiece_pb2 import SentencePieceText

from ag_jax.data import fast_tokenizer

ROBERTA_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
BERT_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SOURCE_MODEL, TARGET_MODEL = "source.spm", "target.spm"  # the names of Marian's sentencepiece models
# The setting of tokenizer_config.json with which sentencepiece, not the library, normalises the text of tokenizer.json.
SENTENCEPIECE_NORMALIZER = "sentencepiece_normalizer"
# é and 漢: letters whose number of bytes normalisers change make the library look at every added token.
_PROBE = "Aé 漢 1."
# Byte-level tokenizers write a byte as a letter: that of a printable character as it, the others as further letters.
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = sorted({*range(256)} - {*_PRINTABLE})
_BYTE_OF_LETTER = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + at): byte for at, byte in enumerate(_OTHERS)}
# Token ids of a text, and the start and end character (end exclusive) of each token.
Located = tuple[list[int], list[tuple[int, int]]]


class _Library:
    """What adapters have in common; an adapter overrides what its tokenizer states or does in another way."""

    may_lack: tuple[str, ...] = ()  # roles of special tokens without which it can be used
    special_tokens: Mapping[str, str] = {}  # special tokens by role, as far as the tokenizer itself states them
    pair_separators: int | None = None  # number of `end` tokens between the texts of a pair, if it states that
    languages: tuple[str | None, str | None] = (None, None)  # of source and target, if it is for certain ones
    is_normalized_by_sentencepiece = False
    has_whole_words = False  # whether every token is a word
    continuation = ""  # what is before tokens that continue a word, such as "##"; "" if nothing is
    ending = ""  # what is behind the last token of a word, such as "</w>"; "" if nothing is

    def treat_as_text(self, names: Collection[str]) -> None:
        """Let the encoder treat the special tokens `names` as plain text; here, it does so already."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, encoded on all cores."""
        raise NotImplementedError

    def encode_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each target text of a translation, which is encoded like any other text."""
        return self.encode_batch(texts)

    def locate_batch(self, texts: Sequence[str]) -> list[Located]:
        """Return for each text its token ids, and the start and end character (end exclusive) of each token."""
        raise NotImplementedError

    def locate_targets(self, texts: Sequence[str]) -> list[Located]:
        """Return what `locate_batch` does, for each target text of a translation."""
        return self.locate_batch(texts)


class HuggingFace(_Library):
    """Adapter of a tokenizer of the library `tokenizers`, which is saved as `tokenizer.json`.

    tokenizer: the library's tokenizer.
    by_sentencepiece: whether sentencepiece normalises texts, in place of the library's normaliser `Precompiled`. Set it
        for tokenizers converted from sentencepiece: `Precompiled` treats letters with combining marks differently.
    """

    def __init__(self, tokenizer: huggingface.Tokenizer, by_sentencepiece: bool = False):
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = True
        self._tokenizer = self._encoder = tokenizer
        vocabulary = tokenizer.get_vocab()
        self.vocabulary_size = max(vocabulary.values(), default=-1) + 1
        self._is_byte_level = isinstance(tokenizer.decoder, huggingface.decoders.ByteLevel)
        self._rules = _rules(tokenizer) if by_sentencepiece else b""
        self._normalize: _Normalizer | None = None
        self.is_normalized_by_sentencepiece = bool(self._rules)
        self._encode: fast_tokenizer.Encode = self._encode_exactly
        self.encode_batch([_PROBE])  # an unusable part raises its error here, not in the middle of a corpus
        self.special_tokens = self._delimiters()
        self.has_whole_words = isinstance(tokenizer.model, huggingface.models.WordLevel)
        self.continuation = getattr(tokenizer.model, "continuing_subword_prefix", None) or ""
        self.ending = getattr(tokenizer.model, "end_of_word_suffix", None) or ""
        unknown = getattr(tokenizer.model, "unk_token", None)
        if unknown and self.id(unknown) is not None:
            self.special_tokens |= {"unknown": unknown}

    def _delimiters(self) -> dict[str, str]:
        """Return {role: token} of the begin and the end token that the post-processor puts around a pair of texts.

        Sets `pair_separators`. Returns {} if the post-processor adds nothing before, between or after the texts,
        because not all of these tokens are known then.
        Raises ValueError if it adds other tokens than one begin, one end and separators that are ends.
        """
        encoding = self._tokenizer.encode(_PROBE, _PROBE)
        texts = encoding.sequence_ids  # of each token: 0 for the first text, 1 for the second, None if it was added
        if not {0, 1} <= set(texts):
            return {}
        first, second = texts.index(0), texts.index(1)
        last = len(texts) - 1 - texts[::-1].index(1)
        before, after = encoding.ids[:first], encoding.ids[last + 1 :]
        between = [id for id, text in zip(encoding.ids[first:second], texts[first:second], strict=True) if text is None]
        if not (before and between and after):
            return {}
        begin, end = (self._tokenizer.id_to_token(ids[0]) for ids in (before, after))
        if begin is None or end is None or len(before) > 1 or len(after) > 1 or set(between) != set(after):
            tokens = [" ".join(self.readable(id) for id in ids) for ids in (before, between, after)]
            raise ValueError(
                "expected a tokenizer that delimits two texts as BEGIN A END B END, with one or more END between them, "
                f"got {tokens[0]} A {tokens[1]} B {tokens[2]} from its post-processor: take another tokenizer"
            )
        self.pair_separators = len(between)
        return {"begin": begin, "end": end}

    def treat_as_text(self, names: Collection[str]) -> None:
        """Let the encoder treat the special tokens `names` as plain text, and other added tokens as tokens.

        From now on, gigatoken encodes texts if it can: byte-level BPE without other added tokens.
        """
        added = self._tokenizer.get_added_tokens_decoder().values()
        values = json.loads(self._tokenizer.to_str())
        is_byte_bpe = self._is_byte_level and isinstance(self._tokenizer.model, huggingface.models.BPE)
        has_others = any(token.content not in names for token in added)
        if is_byte_bpe and not has_others and (fast := fast_tokenizer.gigatoken_encoder(values)):
            self._encode = fast_tokenizer.CheckedEncoder(fast, self._encode_exactly)
        # These models find every token of their vocabulary in a text, so the encoder knows `names` by other names.
        finds_all = isinstance(self._tokenizer.model, (huggingface.models.Unigram, huggingface.models.WordLevel))
        is_right = all(token.special == (token.content in names) for token in added)
        if is_right and not finds_all and not self._rules:
            return
        for token in values["added_tokens"]:
            token["special"] = token["content"] in names
        if finds_all:
            hidden = {name: f"\0{name}" for name in names}
            for token in values["added_tokens"]:
                token["content"] = hidden.get(token["content"], token["content"])
            model = values["model"]
            if isinstance(model["vocab"], dict):
                model["vocab"] = {hidden.get(word, word): id for word, id in model["vocab"].items()}
                model["unk_token"] = hidden.get(model["unk_token"], model["unk_token"])
            else:
                model["vocab"] = [[hidden.get(piece, piece), score] for piece, score in model["vocab"]]
        if self._rules:
            parts = values["normalizer"]["normalizers"]
            values["normalizer"]["normalizers"] = [part for part in parts if part["type"] != "Precompiled"]
            for token in values["added_tokens"]:
                token["normalized"] = False  # they are found in the text as it is, before its normalisation
            self._normalize = _Normalizer(self._rules, {token.content for token in added} - set(names))
        self._encoder = huggingface.Tokenizer.from_str(json.dumps(values))
        self._encoder.encode_special_tokens = True

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, encoded on all cores."""
        return self._encode([self._normalize(text) for text in texts] if self._normalize else texts)

    def _encode_exactly(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each normalised text, from the library `tokenizers`."""
        encodings = self._encoder.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def locate_batch(self, texts: Sequence[str]) -> list[Located]:
        """Return for each text its token ids, and the start and end character (end exclusive) of each token."""
        if self._normalize is None:
            encodings = self._encoder.encode_batch(list(texts), add_special_tokens=False)
            return [
                (encoding.ids, encoding.offsets if text.isascii() else _with_marks(text, encoding.offsets))
                for text, encoding in zip(texts, encodings, strict=True)
            ]
        normalized, places = zip(*map(self._normalize.located, texts), strict=True) if texts else ((), ())
        encodings = self._encoder.encode_batch(list(normalized), add_special_tokens=False)
        return [
            (encoding.ids, [(starts[begin], ends[end]) for begin, end in encoding.offsets])
            for encoding, (starts, ends) in zip(encodings, places, strict=True)
        ]

    def decode(self, ids: list[int]) -> str:
        """Return the text of token ids, none of which may be a special token."""
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def readable(self, id: int) -> str:
        """Return a token as readable text, with "▁" for a space before it; `[id]` if the vocabulary lacks the id."""
        piece = self._tokenizer.id_to_token(id)
        if piece is None:
            return f"[{id}]"
        if not self._is_byte_level or piece in ROBERTA_SPECIALS:
            return piece.replace("\n", "\\n")
        text = piece
        if _BYTE_OF_LETTER.keys() >= set(piece):
            content = bytes(_BYTE_OF_LETTER[letter] for letter in piece)
            # A token may hold only some of the bytes of a character: they are written as sentencepiece does, <0xC3>.
            text = content.decode(errors="surrogateescape")
            text = re.sub("[\udc80-\udcff]", lambda byte: f"<0x{ord(byte[0]) - 0xDC00:02X}>", text)
        return text.replace(" ", "▁").replace("\n", "\\n")

    def id(self, piece: str) -> int | None:
        """Return the id of a token, or None if the vocabulary lacks it."""
        return self._tokenizer.token_to_id(piece)

    def files(self) -> dict[str, bytes]:
        """Return the tokenizer as {name of the file: content}."""
        return {"tokenizer.json": self._tokenizer.to_str().encode()}


def _rules(tokenizer: huggingface.Tokenizer) -> bytes:
    """Return the serialised rules by which sentencepiece normalises text for a converted tokenizer; b"" if none."""
    state = json.loads(tokenizer.normalizer.__getstate__()) if tokenizer.normalizer else {}
    parts = [part for part in state.get("normalizers", []) if part["type"] == "Precompiled"]
    return base64.b64decode(parts[0]["precompiled_charsmap"]) if parts else b""


class _Normalizer:
    """sentencepiece's normaliser of characters, which leaves white space as it is.

    rules: the rules, in sentencepiece's format.
    tokens: tokens that stay as they are in a text.
    """

    def __init__(self, rules: bytes, tokens: Collection[str]):
        spec = NormalizerSpec(precompiled_charsmap=rules, add_dummy_prefix=False, remove_extra_whitespaces=False)
        spec.escape_whitespaces = False
        self._normalizer = sentencepiece.SentencePieceNormalizer(normalizer_spec=spec)
        longest_first = sorted(tokens, key=len, reverse=True)
        self._tokens = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if tokens else None

    def _pieces(self, text: str) -> Iterator[tuple[str, bool]]:
        """Yield (piece, is_token) for the pieces of a text, cut before and after the tokens that are not normalised."""
        for number, piece in enumerate(self._tokens.split(text) if self._tokens else [text]):
            yield piece, bool(number % 2)  # `split` with a group returns the separators, too

    def __call__(self, text: str) -> str:
        """Return a text with its characters normalised, except in the tokens that are not normalised (`tokens`)."""
        return "".join(
            piece if is_token else self._normalizer.Normalize(piece) for piece, is_token in self._pieces(text)
        )

    def located(self, text: str) -> tuple[str, tuple[list[int], list[int]]]:
        """Return (normalised text, (starts, ends)), where starts and ends are offsets of its characters in `text`.

        `starts` says where each character begins, `ends` where the character before it ends. Both have another item
        for the end of the normalised text.
        """
        normalized, starts, origin = "", [], 0
        for piece, is_token in self._pieces(text):
            whole = (piece, range(len(piece) + 1))
            part, places = whole if is_token else self._normalizer.Normalize(piece, with_offsets=True)
            starts += [origin + place for place in places[:-1]]
            normalized += part
            origin += len(piece)
        starts.append(len(text))
        ends = [0] * len(starts)
        for place in range(len(starts) - 1, 0, -1):
            # Characters that one character became, such as "fi" of a ligature, all end where it ends.
            is_last = starts[place] > starts[place - 1] or place == len(starts) - 1
            ends[place] = starts[place] if is_last else ends[place + 1]
        return normalized, (starts, ends)


def _with_marks(text: str, offsets: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the offsets of tokens, each extended over the characters that are composed with its last character.

    The library's normalisers place a composed character where its first code point is, and those that remove accents
    leave them out.
    """
    following = [begin for begin, _ in offsets[1:]] + [len(text)]
    extended = []
    for (begin, end), limit in zip(offsets, following, strict=False):
        while begin < end < limit and unicodedata.category(text[end])[0] in "LM":
            end += 1
        extended.append((begin, end))
    return extended


class SentencePiece(_Library):
    """Adapter of a sentencepiece model, which is saved as `spiece.model`."""

    def __init__(self, model: bytes):
        self._processor = sentencepiece_processor(model)
        self._model = model
        self.vocabulary_size = self._processor.get_piece_size()
        self.is_normalized_by_sentencepiece = bool(ModelProto.FromString(model).normalizer_spec.precompiled_charsmap)

    def treat_as_text(self, names: Collection[str]) -> None:
        """Let the encoder treat the special tokens `names` as plain text, even user-defined symbols of the model.

        sentencepiece finds user-defined symbols in a text, but never control symbols.
        """
        model, kinds = ModelProto.FromString(self._model), ModelProto.SentencePiece
        symbols = [piece for piece in model.pieces if piece.piece in names and piece.type == kinds.USER_DEFINED]
        for piece in symbols:
            piece.type = kinds.CONTROL
        if symbols:
            self._processor = sentencepiece_processor(model.SerializeToString())

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, encoded on all cores."""
        return self._processor.encode(list(texts), num_threads=os.cpu_count() or 1)

    def locate_batch(self, texts: Sequence[str]) -> list[Located]:
        """Return for each text its token ids, and the start and end character (end exclusive) of each token."""
        protos = self._processor.encode(list(texts), out_type="serialized_proto", num_threads=os.cpu_count() or 1)
        return [_located(text, SentencePieceText.FromString(proto)) for text, proto in zip(texts, protos, strict=True)]

    def decode(self, ids: list[int]) -> str:
        """Return the text of token ids, none of which may be a special token."""
        return self._processor.decode(ids)

    def readable(self, id: int) -> str:
        """Return a token as readable text, with "▁" for a space before it."""
        return self._processor.id_to_piece(id)

    def id(self, piece: str) -> int | None:
        """Return the id of a token, or None if the vocabulary lacks it."""
        id = self._processor.piece_to_id(piece)
        return id if self._processor.id_to_piece(id) == piece else None

    def files(self) -> dict[str, bytes]:
        """Return the model as {name of the file: content}."""
        return {"spiece.model": self._model}


class SentencePiecePair(_Library):
    """Adapter of two sentencepiece models, one for each language of a translation, that share a vocabulary (Marian).

    Pieces get their ids by name, from the vocabulary; a piece that it lacks becomes <unk>. Texts may begin with the
    code of a language, such as `>>fra<< Good morning.`, which is a token. As in `MarianTokenizer` of transformers.

    source: the content of the model that encodes texts to be translated.
    target: the content of the model that encodes texts to be translated into, and decodes.
    vocabulary: the id of each token.
    languages: names of the source and the target language, if known.
    """

    # Marian's decoder starts from padding instead of a begin token, and no token is masked.
    may_lack: tuple[str, ...] = ("begin", "mask")
    special_tokens: Mapping[str, str] = {"unknown": "<unk>"}  # whatever the files beside the models name

    def __init__(
        self,
        source: bytes,
        target: bytes,
        vocabulary: Mapping[str, int],
        languages: tuple[str | None, str | None] = (None, None),
    ):
        self._models = {SOURCE_MODEL: source, TARGET_MODEL: target}
        self._source, self._target = (sentencepiece_processor(model) for model in (source, target))
        self._ids = dict(vocabulary)
        self._pieces = {id: piece for piece, id in self._ids.items()}
        if len(self._pieces) < len(self._ids):
            twice = next(piece for piece, id in self._ids.items() if self._pieces[id] != piece)
            other = self._pieces[self._ids[twice]]
            raise ValueError(
                f"expected a different id for each token, got {self._ids[twice]} for both {twice!r} and {other!r}"
            )
        self._unknown = self._ids["<unk>"]
        self.languages = languages
        self.vocabulary_size = max(self._pieces) + 1

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each source text of a translation, encoded on all cores."""
        return self._encode(self._source, texts)

    def encode_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each target text of a translation, encoded on all cores."""
        return self._encode(self._target, texts)

    def _encode(self, processor: sentencepiece.SentencePieceProcessor, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, which `processor` splits into pieces."""
        codes, rests = zip(*map(_without_language, texts), strict=True) if texts else ((), ())
        pieces = processor.encode(list(rests), out_type=str, num_threads=os.cpu_count() or 1)
        return [[self._id(piece) for piece in (*code, *rest)] for code, rest in zip(codes, pieces, strict=True)]

    def locate_batch(self, texts: Sequence[str]) -> list[Located]:
        """Return for each source text of a translation its token ids, and the start and end character of each token."""
        return self._locate(self._source, texts)

    def locate_targets(self, texts: Sequence[str]) -> list[Located]:
        """Return for each target text of a translation its token ids, and the start and end character of each token."""
        return self._locate(self._target, texts)

    def _locate(self, processor: sentencepiece.SentencePieceProcessor, texts: Sequence[str]) -> list[Located]:
        located: list[Located] = []
        for text in texts:
            code, rest = _without_language(text)
            encoded = SentencePieceText.FromString(processor.encode(rest, out_type="serialized_proto"))
            _, places = _located(rest, encoded)
            begin = len(text) - len(rest)
            ids = [self._id(piece) for piece in (*code, *(piece.piece for piece in encoded.pieces))]
            located.append((ids, [(0, begin)] * len(code) + [(start + begin, end + begin) for start, end in places]))
        return located

    def decode(self, ids: list[int]) -> str:
        """Return the text of token ids, none of which may be a special token; ids without a token are left out."""
        text = self._target.decode_pieces([self._pieces[id] for id in ids if id in self._pieces])
        return text.replace("▁", " ").strip()  # of pieces that only the model of the source has

    def readable(self, id: int) -> str:
        """Return a token as readable text, with "▁" for a space before it; `[id]` if the vocabulary lacks the id."""
        return self._pieces.get(id, f"[{id}]")

    def id(self, piece: str) -> int | None:
        """Return the id of a token, or None if the vocabulary lacks it."""
        return self._ids.get(piece)

    def _id(self, piece: str) -> int:
        """Return the id of a piece, or the id of <unk> if the vocabulary lacks the piece."""
        return self._ids.get(piece, self._unknown)

    def files(self) -> dict[str, bytes]:
        """Return the models, the vocabulary and the settings as {name of the file: content}, named as Marian's."""
        ordered = dict(sorted(self._ids.items(), key=lambda item: item[1]))
        languages = {"source_lang": self.languages[0], "target_lang": self.languages[1]}
        settings = {"tokenizer_class": "MarianTokenizer"} | {key: name for key, name in languages.items() if name}
        return {
            **self._models,
            "vocab.json": json.dumps(ordered, ensure_ascii=False, indent=0).encode(),
            "tokenizer_config.json": json.dumps(settings).encode(),
        }


def _without_language(text: str) -> tuple[tuple[str, ...], str]:
    """Split a text into the code of a language at its beginning, such as >>fra<<, if there is one, and the rest."""
    end = text.find("<<") if text.startswith(">>") else -1
    return ((), text) if end < 0 else ((text[: end + 2],), text[end + 2 :])


def sentencepiece_processor(model: bytes) -> sentencepiece.SentencePieceProcessor:
    """Return the library's processor of a serialised model. Raises ValueError for bytes that are no such model."""
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        # From empty bytes the library makes a processor without a model.
        if not model or not processor.get_piece_size():
            raise RuntimeError("expected at least one piece, got an empty model")
        processor.encode(_PROBE)
    except (RuntimeError, UnicodeDecodeError) as error:
        raise ValueError(f"expected a sentencepiece model, got what the library cannot read: {error}") from error
    return processor


def _located(text: str, encoded: SentencePieceText) -> Located:
    """Return the token ids of an encoded text, and the start and end character of each token."""
    # sentencepiece counts bytes of UTF-8, so this lists the number of the character at each byte.
    character = [0]
    for number, letter in enumerate(text, 1):
        character += [number - 1] * (len(letter.encode()) - 1) + [number]
    places = [(character[piece.begin], character[piece.end]) for piece in encoded.pieces]
    return [piece.id for piece in encoded.pieces], places


def byte_bpe(model: huggingface.models.BPE, *, space_first: bool = False) -> huggingface.Tokenizer:
    """Return a tokenizer with RoBERTa's pipeline around a byte-level BPE model.

    model: the BPE model, whose letters stand for bytes.
    space_first: add a space in front of each text.
    """
    tokenizer = huggingface.Tokenizer(model)
    tokenizer.pre_tokenizer = huggingface.pre_tokenizers.ByteLevel(add_prefix_space=space_first)
    tokenizer.decoder = huggingface.decoders.ByteLevel()
    return tokenizer


def wordpiece(
    model: huggingface.models.WordPiece,
    *,
    lowercase: bool,
    strip_accents: bool | None = None,
    split_chinese: bool = True,
) -> huggingface.Tokenizer:
    """Return a tokenizer with BERT's pipeline around a WordPiece model.

    model: the WordPiece model.
    lowercase: lowercase the text.
    strip_accents: remove accents; None does so if `lowercase` is set.
    split_chinese: make every Chinese character a word.
    """
    tokenizer = huggingface.Tokenizer(model)
    tokenizer.normalizer = huggingface.normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=strip_accents, handle_chinese_chars=split_chinese
    )
    tokenizer.pre_tokenizer = huggingface.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = huggingface.decoders.WordPiece()
    return tokenizer
