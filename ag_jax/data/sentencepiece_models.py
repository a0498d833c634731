"""Convert a sentencepiece model to a tokenizer of the library `tokenizers` that gives the same token ids.

The library's `Precompiled` normaliser follows sentencepiece only for composed text: it looks up decomposed characters
of six and more bytes one code point at a time. So the text of an imported model is normalised by sentencepiece itself
(see `tokenizer_backends.HuggingFace`), and a model that is trained here has `NORMALIZER` instead.
"""

from collections.abc import Sequence

import sentencepiece
import tokenizers as huggingface
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from ag_jax.data.tokenizer_backends import sentencepiece_processor

SPACE = "▁"
_UNIGRAM, _BPE = 1, 2  # trainer_spec.model_type
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4  # types of pieces

# The normalisation of models that are trained here: NFKC, then every run of white space, control characters and
# invisible marks becomes one space, as does a literal "▁", which stands for a space in pieces. The zero-width joiner
# stays, because emoji and some scripts need it.
NORMALIZER = normalizers.Sequence(
    [
        normalizers.NFKC(),
        normalizers.Replace(Regex(r"[\s\p{Cc}\x{200B}\x{200C}\x{200E}\x{200F}\x{061C}\x{FEFF}\x{FFFD}▁]+"), " "),
        normalizers.Strip(),
    ]
)


def convert(model: bytes, *, vocabulary: Sequence[str] = (), mask: str = "") -> huggingface.Tokenizer:
    """Convert a sentencepiece model to a tokenizer with the same ids and with its control pieces as special tokens.

    model: content of the model's file.
    vocabulary: the tokens in the order of their ids, where these are not the model's; those that the model lacks become
        special tokens.
    mask: the mask token, added at the end if the model lacks it.
    Raises ValueError for what is no model, for kinds other than unigram and BPE, for a vocabulary that lacks pieces of
    the model, and if ids of sample texts differ.
    """
    processor, proto = sentencepiece_processor(model), sentencepiece_model_pb2.ModelProto()
    try:
        proto.ParseFromString(model)
    except DecodeError as error:
        raise ValueError(f"expected a sentencepiece model, got what the library cannot read: {error}") from error
    if proto.trainer_spec.model_type not in (_UNIGRAM, _BPE):
        kind = sentencepiece_model_pb2.TrainerSpec.ModelType.Name(proto.trainer_spec.model_type)
        raise ValueError(
            f"expected a sentencepiece model of type UNIGRAM or BPE, got {kind}, which cannot be converted"
        )
    # Nine digits tell scores of 32 bits apart; of more, the library reads others than it has written.
    pieces = [(piece.piece, float(f"{piece.score:.9g}")) for piece in proto.pieces]
    special = [piece.piece for piece in proto.pieces if piece.type == _CONTROL]
    if vocabulary:
        scores = dict(pieces)
        if lacking := scores.keys() - set(vocabulary) - {*special}:
            raise ValueError(
                f"expected all pieces of the sentencepiece model in the vocabulary, got none for {len(lacking)}, such "
                f"as {min(lacking)!r}: take the model that the vocabulary belongs to"
            )
        special += [piece for piece in vocabulary if piece not in scores]
        pieces = [(piece, scores.get(piece, 0.0)) for piece in vocabulary]
    if mask and mask not in dict(pieces):
        pieces.append((mask, 0.0))
    unknown = next((piece.piece for piece in proto.pieces if piece.type == _UNKNOWN), None)
    if unknown is None or unknown not in dict(pieces):
        raise ValueError(
            "expected a sentencepiece model with a piece for unknown text, such as <unk>, got none: take a model "
            "that was trained with one"
        )
    tokenizer = huggingface.Tokenizer(_model(proto, pieces, unknown))
    _set_text_processing(tokenizer, proto)
    special += [mask] if mask else []
    tokenizer.add_special_tokens(list(dict.fromkeys(piece for piece in special if piece in dict(pieces))))
    tokenizer.add_tokens([piece.piece for piece in proto.pieces if piece.type == _USER_DEFINED])
    _check(tokenizer, processor)
    return tokenizer


def _model(proto, pieces: list[tuple[str, float]], unknown: str) -> models.Model:
    """Return the unigram or BPE model of `pieces`, which are texts with scores in the order of their ids."""
    fallback = proto.trainer_spec.byte_fallback
    if proto.trainer_spec.model_type == _UNIGRAM:
        ids = [piece for piece, _ in pieces]
        return models.Unigram(pieces, unk_id=ids.index(unknown), byte_fallback=fallback)
    vocabulary = {piece: id for id, (piece, _) in enumerate(pieces)}
    merges = []
    # A sentencepiece model stores no merges: two pieces that make up a third are one, ranked by the third's score.
    for piece, score in pieces:
        cuts = ((piece[:end], piece[end:]) for end in range(1, len(piece)))
        merges += [(-score, left, right) for left, right in cuts if left in vocabulary and right in vocabulary]
    # The highest score first; Python's sort keeps the order of the vocabulary among equals.
    ordered = [(left, right) for _, left, right in sorted(merges, key=lambda merge: merge[0])]
    return models.BPE(vocabulary, ordered, unk_token=unknown, fuse_unk=True, byte_fallback=fallback)


def _set_text_processing(tokenizer: huggingface.Tokenizer, proto) -> None:
    """Set, in place, how a tokenizer normalises, splits and decodes text, by the `normalizer_spec` of `proto`."""
    spec = proto.normalizer_spec
    steps: list[normalizers.Normalizer] = (
        [normalizers.Precompiled(spec.precompiled_charsmap)] if spec.precompiled_charsmap else []
    )
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]
    tokenizer.normalizer = normalizers.Sequence(steps)
    scheme = "always" if spec.add_dummy_prefix else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace(SPACE, prepend_scheme=scheme)


def _check(tokenizer: huggingface.Tokenizer, processor: sentencepiece.SentencePieceProcessor) -> None:
    """Raise ValueError unless the converted tokenizer and sentencepiece split texts made of its pieces alike."""
    ids = range(processor.get_piece_size())
    plain = [id for id in ids if not (processor.is_control(id) or processor.is_unknown(id) or processor.is_byte(id))]
    words = [word for id in plain if (word := processor.id_to_piece(id).replace(SPACE, " ").strip())]
    for start in range(0, min(len(words), 4000), 8):
        text = " ".join(words[start : start + 8])
        theirs = [tokenizer.token_to_id(processor.id_to_piece(id)) for id in processor.encode(text)]
        ours = tokenizer.encode(text, add_special_tokens=False).ids
        if ours != theirs:
            raise ValueError(
                f"the converted tokenizer encodes {text!r} as {ours}, sentencepiece as {theirs}, so this model cannot "
                "be converted: use a tokenizer.json that transformers saved for it"
            )
