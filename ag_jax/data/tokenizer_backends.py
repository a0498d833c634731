"""Adapters that give the two tokenizer libraries behind `Tokenizer` the same methods."""

import os
from collections.abc import Sequence

import sentencepiece
import tokenizers as huggingface
from sentencepiece.sentencepiece_pb2 import SentencePieceText

ROBERTA_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
BERT_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_PROBE = "Aé 1."  # é: a letter whose number of bytes normalisers change makes the library look at every token
# Token ids of a text, and the start and end character (end exclusive) of each token.
Located = tuple[list[int], list[tuple[int, int]]]


class HuggingFace:
    """Adapter of a tokenizer of the library `tokenizers`; `file_name` is the name under which it is saved."""

    file_name = "tokenizer.json"

    def __init__(self, tokenizer: huggingface.Tokenizer):
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer
        vocabulary = tokenizer.get_vocab()
        self.vocabulary_size = max(vocabulary.values(), default=-1) + 1
        self._is_byte_level = isinstance(tokenizer.decoder, huggingface.decoders.ByteLevel)
        self.encode_batch([_PROBE])  # an unusable part raises its error here, not in the middle of a corpus

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, encoded on all cores."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def locate_batch(self, texts: Sequence[str]) -> list[Located]:
        """Return for each text its token ids, and the start and end character (end exclusive) of each token."""
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [(encoding.ids, encoding.offsets) for encoding in encodings]

    def decode(self, ids: list[int]) -> str:
        """Return the text of token ids, none of which may be a special token."""
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def readable(self, id: int) -> str:
        """Return a token as readable text, with "▁" for a space before it; `[id]` if the vocabulary lacks the id."""
        piece = self._tokenizer.id_to_token(id)
        if piece is None:
            return f"[{id}]"
        if not self._is_byte_level or piece in ROBERTA_SPECIALS:
            return piece
        text = self._tokenizer.decoder.decode([piece])
        # A token may hold only some of the bytes of a character; then its byte letters are the best that can be shown.
        text = piece if "\ufffd" in text else text
        return text.replace(" ", "▁").replace("Ġ", "▁").replace("\n", "\\n")

    def id(self, piece: str) -> int | None:
        """Return the id of a token, or None if the vocabulary lacks it."""
        return self._tokenizer.token_to_id(piece)

    def serialized(self) -> bytes:
        """Return the tokenizer as the content of a `tokenizer.json`."""
        return self._tokenizer.to_str().encode()


class SentencePiece:
    """Adapter of a sentencepiece model; `file_name` is the name under which it is saved."""

    file_name = "spiece.model"

    def __init__(self, model: bytes):
        self._processor = sentencepiece_processor(model)
        self._model = model
        self.vocabulary_size = self._processor.get_piece_size()

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, encoded on all cores."""
        return self._processor.encode(list(texts), num_threads=os.cpu_count() or 1)

    def locate_batch(self, texts: Sequence[str]) -> list[Located]:
        """Return for each text its token ids, and the start and end character (end exclusive) of each token."""
        found = self._processor.encode(list(texts), out_type="serialized_proto", num_threads=os.cpu_count() or 1)
        return [
            _placed(text, SentencePieceText.FromString(encoded)) for text, encoded in zip(texts, found, strict=True)
        ]

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

    def serialized(self) -> bytes:
        """Return the model as the content of a `spiece.model`."""
        return self._model


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


def _placed(text: str, encoded: SentencePieceText) -> Located:
    """Return token ids and character ranges of an encoded text; sentencepiece gives the ranges in bytes."""
    character = [0]  # the character at each byte
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
