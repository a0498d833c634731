"""Small tokenizers of the same shape as those of ModernBERT (and Ettin) and of mmBERT, which exist on the hub only."""

import json

import tokenizers as huggingface
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXTS = [
    "The state of our union is strong. We will rebuild our roads, and we will do it together.",
    "Äpfel und Öl? <s>Nein</s>, <b>ja</b>.",
    "def f(x):\n    return x + 1\n",
] * 9
PROBES = [
    *TEXTS[:3],
    "We will rebuild, and the Äpfel are strong.",
    "  two  spaces and a tab\t.",
    "Cafe\u0301 国家 😀",
    "",
    "a literal [MASK], <mask> and <bos>",
]


def modernbert(unused: int = 3) -> huggingface.Tokenizer:
    """Byte-level BPE after NFC, with runs of spaces as tokens, and special and unused tokens at the end.

    unused: the number of tokens [unused0], [unused1], ..., which fill the vocabulary up.
    """
    tokenizer = huggingface.Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["|||IP_ADDRESS|||"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_special_tokens(["<|padding|>", "<|endoftext|>"])
    tokenizer.add_tokens([AddedToken(" " * count, normalized=True) for count in (4, 3, 2)])
    special = [AddedToken(name, special=True) for name in ("[UNK]", "[CLS]", "[SEP]", "[PAD]")]
    tokenizer.add_special_tokens([*special, AddedToken("[MASK]", lstrip=True, special=True)])
    tokenizer.add_tokens([f"[unused{number}]" for number in range(unused)])
    return _with_template(tokenizer, "[CLS]", "[SEP]")


def mmbert() -> huggingface.Tokenizer:
    """Gemma's BPE of pieces that begin with ▁, with bytes for unknown characters, and its special tokens in front.

    <s> and </s> are HTML's tags of struck text in it.
    """
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    tags = ["<s>", "</s>", "<b>", "</b>"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = huggingface.Tokenizer(models.BPE())
    pieces.normalizer = normalizers.Replace(" ", "▁")
    pieces.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    pieces.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=340, special_tokens=[*special, *tags, *bytes_]))
    trained = json.loads(pieces.to_str())["model"]
    words, merges = trained["vocab"], [tuple(merge) for merge in trained["merges"]]
    tokenizer = huggingface.Tokenizer(
        models.BPE(vocab=words, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer, tokenizer.pre_tokenizer = pieces.normalizer, pieces.pre_tokenizer
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in tags])
    return _with_template(tokenizer, "<bos>", "<eos>")


def _with_template(tokenizer: huggingface.Tokenizer, begin: str, end: str) -> huggingface.Tokenizer:
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}",
        pair=f"{begin} $A {end} $B {end}",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in (begin, end)],
    )
    return tokenizer


MAKE = {"modernbert": modernbert, "mmbert": mmbert}
