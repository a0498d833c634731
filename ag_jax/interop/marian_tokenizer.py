"""Write the tokenizer of a translation model, so that `AutoTokenizer` gives the same tokens, with the ids of an export.

A tokenizer of the library `tokenizers`, as all that are trained here, becomes a `tokenizer.json`. A sentencepiece model
that was loaded becomes the files of transformers' `MarianTokenizer`: source.spm, target.spm and their vocab.json.
"""

import json
import pathlib
from typing import Any

import numpy as np
import tokenizers as huggingface
from tokenizers import AddedToken, processors

from ag_jax.data.tokenizer_backends import SOURCE_MODEL, TARGET_MODEL, sentencepiece_processor
from ag_jax.data.tokenizers import Tokenizer

# The names that MarianTokenizer and CTranslate2 expect.
PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"
CHECKED_TOGETHER, MOST_CHECKED = 8, 4000  # tokens of a text, and tokens, by which a converted tokenizer is checked


def write(tokenizer: Tokenizer, directory: pathlib.Path, order_V: np.ndarray, max_length: int) -> None:
    """Write the tokenizer of an exported translation model for transformers, with the new token ids of the export.

    Ids without a token, which only the model's embeddings have, get tokens that no text contains, `<unusedID>`.

    order_V: the old id of each new id.
    max_length: number of positions of the model.
    """
    files = tokenizer.files()
    settings: dict[str, Any] = {"model_max_length": max_length, "clean_up_tokenization_spaces": False}
    if "tokenizer.json" in files:
        library, special = _converted(tokenizer, files["tokenizer.json"], order_V)
        (directory / "tokenizer.json").write_text(library.to_str(pretty=True), encoding="utf-8")
        settings |= {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_input_names": ["input_ids", "attention_mask"],
            **special,
            **tokenizer.settings,
        }
    else:
        models, pieces = _sentencepiece(files)
        # MarianTokenizer and CTranslate2 find these tokens by name, whatever they are called in the model.
        ids = vars(tokenizer.specials)
        pieces |= {ids["pad"]: PAD, ids["end"]: END, ids["unknown"]: UNKNOWN}
        for name, model in zip((SOURCE_MODEL, TARGET_MODEL), models, strict=True):
            (directory / name).write_bytes(model)
        vocabulary = json.dumps(_vocabulary(pieces, order_V), ensure_ascii=False, indent=0)
        (directory / "vocab.json").write_text(vocabulary + "\n", encoding="utf-8")
        languages = zip(("source_lang", "target_lang"), tokenizer.languages, strict=True)
        settings |= {
            "tokenizer_class": "MarianTokenizer",
            **{key: name for key, name in languages if name},
            "separate_vocabs": False,
            "eos_token": END,
            "unk_token": UNKNOWN,
            "pad_token": PAD,
        }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def _sentencepiece(files: dict[str, bytes]) -> tuple[list[bytes], dict[int, str]]:
    """Return ([source model, target model], {id: token}) of a sentencepiece tokenizer with one or two models."""
    if SOURCE_MODEL in files:
        vocabulary = json.loads(files["vocab.json"])
        return [files[SOURCE_MODEL], files[TARGET_MODEL]], {id: piece for piece, id in vocabulary.items()}
    model = next(content for name, content in files.items() if name.endswith(".model"))
    processor = sentencepiece_processor(model)
    return [model] * 2, {id: processor.id_to_piece(id) for id in range(processor.get_piece_size())}


def _vocabulary(pieces: dict[int, str], order_V: np.ndarray) -> dict[str, int]:
    """Return {token: new id} in the order of the ids; `pieces` is {old id: token}."""
    return {pieces.get(old, f"<unused{old}>"): new for new, old in enumerate(order_V.tolist())}


def _converted(tokenizer: Tokenizer, content: bytes, order_V: np.ndarray) -> tuple[huggingface.Tokenizer, dict]:
    """Return (tokenizer with new ids that appends the end token, {key of tokenizer_config.json: special token}).

    Raises ValueError if texts get other tokens than before.
    """
    values = json.loads(content)
    pieces = {id: piece for piece, id in huggingface.Tokenizer.from_str(content.decode()).get_vocab().items()}
    pieces[tokenizer.specials.pad] = PAD
    new_V = np.argsort(order_V)
    vocabulary, model = _vocabulary(pieces, order_V), values["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = vocabulary
    else:  # a unigram model: pieces with scores, in the order of their ids
        scores = dict(model["vocab"])
        lowest = min(scores.values()) - 10  # so that no text is cut into tokens which the model had not
        model["vocab"] = [[piece, scores.get(piece, lowest)] for piece in vocabulary]
        if model["unk_id"] is not None:
            model["unk_id"] = int(new_V[model["unk_id"]])
    for added in values["added_tokens"]:
        added["content"] = pieces[added["id"]]
        added["id"] = int(new_V[added["id"]])
    library = huggingface.Tokenizer.from_str(json.dumps(values))
    ids = vars(tokenizer.specials)
    added_tokens = {token.content for token in library.get_added_tokens_decoder().values()}
    for role in ("begin", "pad", "end", "unknown", "mask"):
        if pieces[ids[role]] not in added_tokens:
            library.add_special_tokens([AddedToken(pieces[ids[role]], special=True)])
    end = pieces[ids["end"]]
    library.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", pair=f"$A $B {end}", special_tokens=[(end, int(new_V[ids["end"]]))]
    )
    _check(tokenizer, library, new_V)
    special = {"eos_token": end, "pad_token": PAD, "unk_token": pieces[ids["unknown"]]}
    return library, special


def _check(tokenizer: Tokenizer, library: huggingface.Tokenizer, new_V: np.ndarray) -> None:
    """Raise ValueError unless the exported tokenizer `library` cuts texts into the same tokens as `tokenizer`.

    The texts are made of the tokens of the vocabulary.

    new_V: the new id of each old id.
    """
    library.encode_special_tokens = True  # as `Tokenizer` does, which knows no special tokens in texts
    special = {id for id, token in library.get_added_tokens_decoder().items() if token.special}
    ids = [
        id for id in range(tokenizer.vocabulary_size) if id not in tokenizer.special_ids and new_V[id] not in special
    ]
    plain = ids[:MOST_CHECKED]
    for start in range(0, len(plain), CHECKED_TOGETHER):
        text = tokenizer.decode(plain[start : start + CHECKED_TOGETHER])
        expected = new_V[tokenizer.encode(text)].tolist() if text else []
        tokens = library.encode(text, add_special_tokens=False).ids
        if tokens != expected:
            raise ValueError(
                f"with its new ids, the tokenizer encodes {text!r} as {tokens}, expected {expected}: train the model "
                "with another tokenizer (data.tokenizer)"
            )
    library.encode_special_tokens = False
