"""The two libraries behind `Tokenizer`, made to look alike: the same methods on either."""

import os
from collections.abc import Sequence

import sentencepiece
import tokenizers as huggingface
from sentencepiece.sentencepiece_pb2 import SentencePieceText

ROBERTA_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
BERT_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_PROBE = "Aé 1."  # a letter that normalisers change in number of bytes makes the library look at every token
Located = tuple[list[int], list[tuple[int, int]]]


class HuggingFace:
    """A tokenizer of the library `tokenizers`."""

    file_name = "tokenizer.json"

    def __init__(self, tokenizer: huggingface.Tokenizer):
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer
        vocabulary = tokenizer.get_vocab()
        self.vocabulary_size = max(vocabulary.values(), default=-1) + 1
        self._is_byte_level = isinstance(tokenizer.decoder, huggingface.decoders.ByteLevel)
        self.encode_batch([_PROBE])  # what is wrong with its parts shows here, and not in the middle of a corpus

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many texts, on all cores."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def locate_batch(self, texts: Sequence[str]) -> list[Located]:
        """Ids of many texts, and the characters that each stands for."""
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [(encoding.ids, encoding.offsets) for encoding in encodings]

    def decode(self, ids: list[int]) -> str:
        """Text of ids, none of them special."""
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def readable(self, id: int) -> str:
        """A piece as a reader wants to see it."""
        piece = self._tokenizer.id_to_token(id)
        if piece is None:
            return f"[{id}]"
        if not self._is_byte_level or piece in ROBERTA_SPECIALS:
            return piece
        text = self._tokenizer.decoder.decode([piece])
        # A piece may be a part of one character's bytes; then its byte letters are the best that can be shown.
        text = piece if "\ufffd" in text else text
        return text.replace(" ", "▁").replace("Ġ", "▁").replace("\n", "\\n")

    def id(self, piece: str) -> int | None:
        """The id of a piece, None if the vocabulary lacks it."""
        return self._tokenizer.token_to_id(piece)

    def serialized(self) -> bytes:
        """All of it, as the bytes of a file."""
        return self._tokenizer.to_str().encode()


class SentencePiece:
    """A model of sentencepiece."""

    file_name = "spiece.model"

    def __init__(self, model: bytes):
        self._processor = sentencepiece_processor(model)
        self._model = model
        self.vocabulary_size = self._processor.get_piece_size()

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many texts, on all cores."""
        return self._processor.encode(list(texts), num_threads=os.cpu_count() or 1)

    def locate_batch(self, texts: Sequence[str]) -> list[Located]:
        """Ids of many texts, and the characters that each stands for."""
        found = self._processor.encode(list(texts), out_type="serialized_proto", num_threads=os.cpu_count() or 1)
        return [_placed(text, SentencePieceText.FromString(one)) for text, one in zip(texts, found, strict=True)]

    def decode(self, ids: list[int]) -> str:
        """Text of ids, none of them special."""
        return self._processor.decode(ids)

    def readable(self, id: int) -> str:
        """A piece as a reader wants to see it."""
        return self._processor.id_to_piece(id)

    def id(self, piece: str) -> int | None:
        """The id of a piece, None if the vocabulary lacks it."""
        id = self._processor.piece_to_id(piece)
        return id if self._processor.id_to_piece(id) == piece else None

    def serialized(self) -> bytes:
        """All of it, as the bytes of a file."""
        return self._model


def sentencepiece_processor(model: bytes) -> sentencepiece.SentencePieceProcessor:
    """The library's processor of a model. Raises ValueError if the bytes are not those of a model."""
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        if not model or not processor.get_piece_size():  # of nothing the library makes a processor that has no model
            raise RuntimeError("it is empty")
        processor.encode(_PROBE)
    except (RuntimeError, UnicodeDecodeError) as error:
        raise ValueError(f"expected a sentencepiece model, got what the library cannot read: {error}") from error
    return processor


def _placed(text: str, encoded: SentencePieceText) -> Located:
    """Ids and characters of a text that sentencepiece encoded; what it says of places is in bytes."""
    character = [0]
    for number, letter in enumerate(text, 1):
        character += [number - 1] * (len(letter.encode()) - 1) + [number]
    places = [(character[piece.begin], character[piece.end]) for piece in encoded.pieces]
    return [piece.id for piece in encoded.pieces], places


def byte_bpe(model: huggingface.models.BPE, *, space_first: bool = False) -> huggingface.Tokenizer:
    """RoBERTa's pipeline around a BPE model: bytes as letters; space_first: one is added in front of the text."""
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
    """BERT's pipeline around a WordPiece model; accents go with the capitals unless strip_accents says otherwise."""
    tokenizer = huggingface.Tokenizer(model)
    tokenizer.normalizer = huggingface.normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=strip_accents, handle_chinese_chars=split_chinese
    )
    tokenizer.pre_tokenizer = huggingface.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = huggingface.decoders.WordPiece()
    return tokenizer
