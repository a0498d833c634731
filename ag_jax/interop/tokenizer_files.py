"""Read the tokenizer of a Hugging Face directory, and write one for which `AutoTokenizer` gives the same token ids."""

import json
import pathlib

import tokenizers as huggingface
from tokenizers import AddedToken, processors

from ag_jax.data import sentencepiece_models, tokenizer_settings, tokenizers
from ag_jax.data.tokenizer_backends import SOURCE_MODEL, TARGET_MODEL
from ag_jax.data.tokenizer_settings import ADDED, MODEL, SETTINGS, SPECIALS, reading_tokenizer
from ag_jax.data.tokenizers import Tokenizer
from ag_jax.interop import vocabularies
from ag_jax.interop.families import Family
from ag_jax.models.config import EncoderConfig

_VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt")
NAMES = (*_VOCABULARIES, "merges.txt", SOURCE_MODEL, TARGET_MODEL, SETTINGS, ADDED, SPECIALS, "*.model")
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


def read(directory: pathlib.Path, family: Family) -> Tokenizer:
    """Read the tokenizer of a model: `tokenizer.json` if there is one, else the files of its vocabulary.

    It gives the texts of a pair the token types that `AutoTokenizer` gives them.

    Raises ValueError or FileNotFoundError if there is none that can be read.
    """
    tokenizer = vocabularies.convert(tokenizer_settings.files_of(directory), family) or tokenizers.load(directory)
    return tokenizer.with_second_type(second_type(directory))


def second_type(directory: pathlib.Path) -> int:
    """Return the token type of the second text of a pair, as `AutoTokenizer` of transformers would give it to a model.

    This is 0 if the tokenizer does not return token types: `model_input_names` in tokenizer_config.json decides, else
    the tokenizer's class. If it does, the type is that of the class, else that of the template in tokenizer.json.

    directory: with the files of the tokenizer and the model's config.json.

    Raises ValueError for a template with types that no class gives.
    """
    files = tokenizer_settings.files_of(directory)
    settings, model = tokenizer_settings.settings_of(files), tokenizer_settings.json_object(files, MODEL)
    of_files = zip(_VOCABULARIES, ("", "RobertaTokenizer", "BertTokenizer"), strict=True)
    usual = next((kind for name, kind in of_files if name in files), "")
    usual = usual or _CLASSES.get(str(model.get("model_type")), "")
    kind = str(settings.get("tokenizer_class") or model.get("tokenizer_class") or usual).removesuffix("Fast")
    if model.get("model_type") == "modernbert":  # transformers ignores the class that its files name
        kind = ""
    outputs = settings.get("model_input_names", ["token_type_ids"] if kind in _TYPED else [])
    file = directory / "tokenizer.json"
    if kind in _TYPED or kind in _UNTYPED or "token_type_ids" not in outputs or not file.exists():
        return int(kind in _TYPED and "token_type_ids" in outputs)
    with reading_tokenizer(file):
        library = huggingface.Tokenizer.from_str(file.read_text("utf-8-sig"))
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


def check_size(tokenizer: Tokenizer, rows: int, directory: pathlib.Path) -> None:
    """Raise ValueError if the tokenizer has more tokens than the model's word embedding has rows, `rows`."""
    if tokenizer.vocabulary_size > rows:
        files = ", ".join(sorted(file.name for pattern in NAMES for file in directory.glob(pattern)))
        raise ValueError(
            f"the tokenizer of {directory} ({files}) has {tokenizer.vocabulary_size} tokens, but the embedding {rows} "
            f"rows (vocab_size in config.json), so tokens from {rows} on would have no vector: take the tokenizer that "
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
