"""Read the tokenizer of a Hugging Face directory, and write one for which `AutoTokenizer` gives the same token ids."""

import json
import pathlib
from typing import Any

import tokenizers as huggingface
from tokenizers import AddedToken, processors

from ag_jax.data import sentencepiece_models, tokenizers, vocabularies
from ag_jax.data.tokenizers import Tokenizer
from ag_jax.interop.families import Family
from ag_jax.models.config import EncoderConfig

NAMES = ("tokenizer.json", *vocabularies.FILES, "*.model")
_FAIRSEQ = ("camembert",)  # families whose sentencepiece ids are fairseq's
_CLASSES = {
    "camembert": ("CamembertTokenizer",),
    "deberta-v2": ("DebertaV2Tokenizer",),
}  # of their sentencepiece models
_MASKS = {"camembert": "<mask>", "deberta-v2": "[MASK]"}  # which their sentencepiece models may lack


def read(directory: pathlib.Path, family: Family) -> Tokenizer:
    """Read the tokenizer of a model: `tokenizer.json` if there is one, else the files of its vocabulary.

    It gives the texts of a pair the token types that `AutoTokenizer` gives them.

    Raises ValueError or FileNotFoundError if there is none that can be read.
    """
    return _read(directory, family).with_second_type(vocabularies.second_type(directory))


def _read(directory: pathlib.Path, family: Family) -> Tokenizer:
    model = next(iter(sorted(directory.glob("*.model"))), None)
    others = [directory / name for name in ("tokenizer.json", "vocab.json", "vocab.txt")]
    if model is None or any(file.exists() for file in others):
        return tokenizers.load(directory)
    kind = family.model_type
    vocabularies.settings_beside(model, _CLASSES.get(kind, ()), {"do_lower_case": False, "split_by_punct": False})
    options: dict[str, Any] = {"fairseq": kind in _FAIRSEQ, "mask": _MASKS.get(kind, "")}
    converted = vocabularies.read(model, lambda _: sentencepiece_models.convert(model.read_bytes(), **options))
    vocabularies.add_tokens(converted, directory)
    specials = vocabularies.special_names(directory)
    return vocabularies.read(
        model, lambda _: tokenizers.of_library(converted, str(model), specials, by_sentencepiece=True)
    )


def check_size(tokenizer: Tokenizer, rows: int, directory: pathlib.Path) -> None:
    """Raise ValueError if the tokenizer has more tokens than the model's word embedding has rows, `rows`."""
    if tokenizer.vocabulary_size > rows:
        files = ", ".join(vocabularies.present(directory))
        raise ValueError(
            f"the tokenizer of {directory} ({files}) has {tokenizer.vocabulary_size} tokens, but the embedding {rows} "
            f"rows (vocab_size in config.json): tokens from {rows} on would have no vector. Take the tokenizer that "
            "the model was trained with, or resize the embedding"
        )


def not_carried(tokenizer: Tokenizer) -> list[str]:
    """Return a list of at most one sentence: which normalisation of text a tokenizer.json loses."""
    if not tokenizer.is_normalized_by_sentencepiece:
        return []
    return [
        "The normalisation of decomposed text (Unicode NFD, such as letters with separate accents): transformers gives "
        "it other token ids than sentencepiece, with which the model was trained. Compose texts first (NFC)."
    ]


def write(tokenizer: Tokenizer, directory: pathlib.Path, family: Family, config: EncoderConfig) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json`, including special tokens and the template that adds them."""
    name, content = tokenizer.file()
    library = huggingface.Tokenizer.from_str(content.decode()) if name == "tokenizer.json" else None
    library = library or sentencepiece_models.convert(content)
    roles = vars(tokenizer.specials)
    special = {role: library.id_to_token(roles[role]) for role in ("begin", "pad", "end", "unknown", "mask")}
    added_tokens = {token.content for token in library.get_added_tokens_decoder().values()}
    has_spaces = not isinstance(library.model, huggingface.models.WordPiece)
    for role, token in special.items():
        # The mask is always added, for lstrip: where spaces are part of pieces, the mask takes the space before it.
        if token not in added_tokens or role == "mask":
            library.add_special_tokens([AddedToken(token, special=True, lstrip=has_spaces and role == "mask")])
    begin, end = special["begin"], special["end"]
    two = tokenizer.specials.type_of_second(config.token_types)
    between = " ".join([f"{end}:0"] * tokenizer.specials.pair_separators)
    template = processors.TemplateProcessing(
        single=f"{begin}:0 $A:0 {end}:0",
        pair=f"{begin}:0 $A:0 {between} $B:{two} {end}:{two}",
        special_tokens=[(begin, roles["begin"]), (end, roles["end"])],
    )
    trimming = _trimming(library)
    library.post_processor = processors.Sequence([*trimming, template]) if trimming else template
    (directory / "tokenizer.json").write_text(library.to_str(pretty=True), encoding="utf-8")
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.max_length,
        "model_input_names": inputs if two else ["input_ids", "attention_mask"],
        "bos_token": begin,
        "cls_token": begin,
        "eos_token": end,
        "sep_token": end,
        "pad_token": special["pad"],
        "unk_token": special["unknown"],
        "mask_token": {"__type": "AddedToken", "content": special["mask"], "lstrip": has_spaces, "rstrip": False}
        | {"normalized": False, "single_word": False, "special": True},
        "clean_up_tokenization_spaces": False,
        **tokenizer.settings,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def _trimming(library: huggingface.Tokenizer) -> list[processors.ByteLevel]:
    """Return a list with the post-processor that leaves spaces out of tokens' offsets; [] if they include spaces."""
    state = json.loads(library.post_processor.__getstate__()) if library.post_processor else {}
    return [
        processors.ByteLevel(add_prefix_space=part.get("add_prefix_space", True), trim_offsets=True)
        for part in state.get("processors", [state])
        if part.get("trim_offsets")
    ][:1]
