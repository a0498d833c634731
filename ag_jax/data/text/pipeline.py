"""Prepare the tokenizer and rows of a config once, in a cache, and make the batch of any training step directly.

Shape letters: B batch.
"""

import dataclasses
import functools
import itertools
import json
import pathlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ag_jax.data import order
from ag_jax.data.config import PAIR_FORMATS, DataConfig
from ag_jax.data.corpus import (
    SPLITS,
    Corpus,
    Say,
    announcer,
    cached_directories,
    cached_tokenizer,
    hash_files,
    key,
    tokenizer_key,
)
from ag_jax.data.text import batching, formats, holdout, mixture, packing, sources, store
from ag_jax.data.text.batching import HostBatch
from ag_jax.data.text.mixture import MixedRows
from ag_jax.data.text.sentences import split_sentences
from ag_jax.data.text.store import Rows, TextStore, TextStoreWriter
from ag_jax.data.text.unigram import Unigram
from ag_jax.data.tokenizers import Tokenizer

TOKENIZER_TEXT = 200_000_000  # characters of the training text after which a tokenizer is given no further document
ENCODED_TOGETHER = 2**21  # characters, at least, that are tokenised in one call, on all cores
LEFT_OUT = "left_out.json"  # number of words and documents that `data.skip_words` left out; only with this setting


def prepare(config: DataConfig, *, quiet: bool = False) -> Corpus[Rows | MixedRows]:
    """Return the tokenizer and rows of a config, from the cache if they were prepared before.

    config: the settings of the data.
    quiet: print no progress.

    Raises ValueError or FileNotFoundError for text or tokenizers that cannot be used.
    """
    say = announcer(quiet)
    share_K, each = mixture.shares(config), mixture.components(config)
    tokenizer = prepare_tokenizer(config, quiet=quiet)
    found = [_prepare_source(one, tokenizer, say) for one in each]
    rows = {split: [source.rows[split] for source in found] for split in SPLITS}
    if config.validation_source:  # every source was prepared with the same text for validation
        rows["validation"] = rows["validation"][:1]
    corpus = Corpus(
        tokenizer=tokenizer,
        train=mixture.join(rows["train"], share_K),
        validation=mixture.join(rows["validation"], share_K),
        documents={split: sum(one.documents[split] for one in found[: len(rows[split])]) for split in SPLITS},
        checksums={split: _together([one.checksums[split] for one in found[: len(rows[split])]]) for split in SPLITS},
        left_out={
            name: sum(source.left_out.get(name, 0) for source in found)
            for name in ("words", "documents")
            if _skips(config)
        },
        sources=[source.sizes(share) for source, share in zip(found, share_K, strict=True)],
    )
    _report(config, corpus, say)
    return corpus


@dataclasses.dataclass(frozen=True)
class _PreparedSource:
    """What was prepared of one source.

    source: its name.
    rows: rows of each split.
    documents, tokens: number of documents of each split, and of their tokens, without special ones.
    checksums: hash of the rows of each split.
    left_out: number of `words` and `documents` that `data.skip_words` left out; empty without it.
    """

    source: str
    rows: dict[str, Rows]
    documents: dict[str, int]
    tokens: dict[str, int]
    checksums: dict[str, str]
    left_out: dict[str, int]

    def sizes(self, share: float) -> dict[str, Any]:
        """Return the sizes of the source for the summary of a run; `share` is its share in the rows of training."""
        sizes = {
            split: {"documents": self.documents[split], "tokens": self.tokens[split], "rows": len(self.rows[split])}
            for split in SPLITS
        }
        return {"source": self.source, "share of the rows of training": share, **sizes}


def _prepare_source(config: DataConfig, tokenizer: Tokenizer, say: Say) -> _PreparedSource:
    """Return the rows of a text without weights, from the cache if they were prepared before."""
    text_key = key(*_identities(config), tokenizer.fingerprint())
    text, entry = cached_directories(
        config,
        text_key,
        key(text_key, config.format, config.sequence_length, config.duplicates, config.pack),
        lambda directory: _write_text(config, tokenizer, directory, say),
        lambda text, directory: _write_rows(config, tokenizer, text, directory, say),
    )
    stores = {split: TextStore(text / split) for split in SPLITS}
    return _PreparedSource(
        source=config.source,
        rows={split: Rows(entry.path / split, entry) for split in SPLITS},
        documents={split: len(stores[split]) for split in SPLITS},
        tokens={split: len(stores[split].tokens) for split in SPLITS},
        checksums={split: entry.digest(split) for split in SPLITS},
        left_out=json.loads((text / LEFT_OUT).read_text()) if _skips(config) else {},
    )


def _together(checksums: list[str]) -> str:
    """Return one hash for those of several sources; that of a single source as it is."""
    return checksums[0] if len(checksums) == 1 else key(*checksums)


def _report(config: DataConfig, corpus: Corpus, say: Say) -> None:
    """Print what was left out, the size of each source of a mixture, and how much of the expected text was found."""
    if left_out := corpus.left_out:
        say(
            f"left out by data.skip_words: {left_out['words']:,} words at the beginning of documents, among them "
            f"{left_out['documents']:,} whole documents"
        )
    if len(corpus.sources) > 1:
        for source in corpus.sources:
            train, held_out = (source[split] for split in SPLITS)
            say(
                f"{source['source']}: {source['share of the rows of training']:.2%} of the rows that training draws; "
                f"it has {train['tokens']:,} tokens of {train['documents']:,} documents in {train['rows']:,} rows, and "
                f"for validation {held_out['tokens']:,} tokens in {held_out['rows']:,} rows"
            )
    if config.expected_tokens:
        tokens = corpus.train_tokens
        say(
            f"{tokens:,} tokens of training text, {tokens / config.expected_tokens:.1%} of the "
            f"{config.expected_tokens:,} of data.expected_tokens"
        )


def prepare_tokenizer(config: DataConfig, *, quiet: bool = False) -> Tokenizer:
    """Return the tokenizer at `config.tokenizer.path`; without a path, a tokenizer trained on the training text.

    A trained tokenizer is cached and not trained again.
    """
    _check_format(config)
    each = mixture.components(config)

    def text_key() -> str:
        held_out = None if config.validation_source else config.validation_fraction
        source = sources.identity(config.source)
        mixed = [{"mixture": len(each)}] if len(each) > 1 else []
        return key(source, config.text_field, tokenizer_key(config.tokenizer), held_out, *_skips(config), *mixed)

    return cached_tokenizer(config, text_key, _TokenizerText(each), announcer(quiet))


def source_files(config: DataConfig, *, quiet: bool = False) -> dict[str, list[list[Any]]]:
    """Return {setting: [[name, size in bytes, content hash], ...]} of all files of the text, for the settings `source`
    and, if there is one, `validation_source`.

    The hashes are cached; all files are read again when the name, size or time of one has changed.
    """
    _check_format(config)
    given = {name: getattr(config, name) for name in ("source", "validation_source") if getattr(config, name)}
    key_of_files = key(*(sources.identity(source) for source in given.values()))
    return hash_files(
        config,
        key_of_files,
        lambda: {name: sources.files(source) for name, source in given.items()},
        announcer(quiet),
    )


def _check_format(config: DataConfig) -> None:
    """Raise ValueError for pairs of translations, which this module would read as texts of one language."""
    if config.is_parallel:
        raise ValueError(
            "data.format='parallel' needs ag_jax.data.pipeline or ag_jax.data.parallel.pipeline; the module "
            "ag_jax.data.text.pipeline prepares text without translations: choose another data.format"
        )


def _identities(config: DataConfig) -> list[Any]:
    """Return settings and versions of files; two such lists are equal only for the same text and validation part.

    The list is made without reading the text, and is part of the cache's keys.
    """
    validation = sources.identity(config.validation_source) if config.validation_source else config.validation_fraction
    return [sources.identity(config.source), config.text_field, validation, *_skips(config)]


def _skips(config: DataConfig) -> list[Any]:
    """Return what `data.skip_words` adds to the cache's keys: nothing if it skips no words, so that older caches stay
    valid.
    """
    return [{"skip_words": config.skip_words}] if any(config.skip_words) else []


@dataclasses.dataclass(frozen=True)
class _TokenizerText:
    """Training documents, up to about `TOKENIZER_TEXT` characters, as an iterable that can be iterated repeatedly.

    configs: settings of each source; each gives the same number of characters, as far as it has them.
    """

    configs: Sequence[DataConfig]

    def __iter__(self) -> Iterator[str]:
        for config in self.configs:
            characters = 0
            for piece in holdout.split(config):
                if characters >= TOKENIZER_TEXT // len(self.configs):
                    break
                if not piece.held_out:
                    characters += len(piece.text)
                    yield piece.text


def _write_text(config: DataConfig, tokenizer: Tokenizer, directory: pathlib.Path, say: Say) -> None:
    """Write the token ids of the training and the validation text as a `TextStore` each, below `directory`.

    Tokenises both in one pass over the source, about `ENCODED_TOGETHER` characters at a time.
    """
    writers = {
        held_out: TextStoreWriter(directory / name, tokenizer.vocabulary_size)
        for held_out, name in ((False, "train"), (True, "validation"))
    }
    said, characters, count, held_out_count = time.monotonic(), 0, 0, 0
    waiting: list[tuple[list[str], bool]] = []

    def flush() -> None:
        encoded = iter(tokenizer.encode_batch([sentence for sentences, _ in waiting for sentence in sentences]))
        for sentences, held_out in waiting:
            writers[held_out].append(list(itertools.islice(encoded, len(sentences))))
        waiting.clear()

    left_out = Counter(words=0, documents=0)
    identities = _identities(config)  # compared at the end, because files may change while they are read
    say(f"tokenising {config.source}")
    for piece in holdout.split(config, left_out):
        waiting.append((split_sentences(piece.text), piece.held_out))
        characters += len(piece.text)
        count, held_out_count = piece.document + 1, held_out_count + piece.held_out
        if characters >= ENCODED_TOGETHER:
            flush()
            characters = 0
            if time.monotonic() - said > 10:
                said = time.monotonic()
                say(f"{count:,} documents, {sum(writer.tokens for writer in writers.values()):,} tokens so far")
    flush()
    for writer in writers.values():
        writer.close()
    total = sum(writer.tokens for writer in writers.values())
    if not total:
        raise ValueError(f"data.source={config.source!r} holds no text: expected at least some sentences")
    if _identities(config) != identities:
        raise ValueError(
            f"the files of data.source={config.source!r} were changed while they were read: run the command again"
        )
    if _skips(config):
        (directory / LEFT_OUT).write_text(json.dumps(left_out))
    held_out = writers[True].tokens
    say(
        f"{count:,} documents, {total:,} tokens; for validation {held_out:,} tokens of {held_out_count:,} documents, "
        f"{held_out / total:.1%} of the text"
    )


def _write_rows(
    config: DataConfig, tokenizer: Tokenizer, text: pathlib.Path, directory: pathlib.Path, say: Say
) -> None:
    """Write the tokens of both splits as rows. Raises ValueError if a split has less text than one row."""
    has_pairs = config.format in PAIR_FORMATS
    for split in SPLITS:
        stored = TextStore(text / split)
        if has_pairs and len(stored) == 1:
            say(f"{split}: a single document, so that random second segments come from the same one; better give more")
        rows = formats.make_rows(config, stored, tokenizer.specials)
        if config.pack:
            rows = packing.pack(rows, config.sequence_length)
        store.write_rows(directory / split, rows, tokenizer.vocabulary_size, has_pairs=has_pairs, is_packed=config.pack)
        written = Rows(directory / split)
        if not len(written):
            raise ValueError(
                f"the {split} text of data.source={config.source!r} is shorter than one row of "
                f"{config.sequence_length} tokens: give more text or lower data.sequence_length"
                + (" (or hold out more: data.validation_fraction)" if split == "validation" else "")
            )
        texts = f"{written.text_count:,} texts in " if config.pack else ""
        filled = f"{written.fill_rate(config.sequence_length):.1%} of their positions filled"
        say(f"{split}: {texts}{len(written):,} rows, {filled}")


@dataclasses.dataclass(frozen=True)
class Batches:
    """Training batches; row i of step s is a pure function of (seed, s, i).

    `ag_jax.data.order` describes the order, for several sources with weights `mixture`. Masks depend on (seed, epoch,
    row of the corpus).

    rows: rows of the training text.
    tokenizer: the tokenizer of the rows.
    config: length and masking.
    batch_size: number of rows of a batch.
    seed: seed of the order and of the masks.

    Raises ValueError if the corpus has fewer rows than a batch.
    """

    rows: Rows | MixedRows
    tokenizer: Tokenizer
    config: DataConfig
    batch_size: int
    seed: int

    def __post_init__(self):
        order.check_batch_size(len(self.rows), self.batch_size)

    @functools.cached_property
    def unigram(self) -> Unigram | None:
        """Token frequencies of the training text with `data.masking.replacement="unigram"`, else None."""
        return Unigram.of(self.rows, self.tokenizer) if self.config.masking.replacement == "unigram" else None

    def at(self, step: int, rows: slice | np.ndarray = slice(None)) -> HostBatch:
        """Return the batch of a step; with `rows`, a slice or indices, only the rows that this host needs."""
        example_B, epoch_B = mixture.drawn(self.rows, self.batch_size, self.seed, step, rows)
        return batching.make_batch(
            self.config,
            self.rows,
            self.tokenizer,
            example_B=example_B,
            epoch_B=epoch_B,
            seed=self.seed,
            unigram=self.unigram,
        )

    def iterate(
        self, start: int, stop: int, rows: slice | np.ndarray = slice(None), threads: int = 1
    ) -> Iterator[HostBatch]:
        """Return the batches of steps `start` to `stop` - 1, prefetched by `threads` threads (grain)."""
        return order.prefetched(functools.partial(self.at, rows=rows), start, stop, threads)


def validation_batches(
    corpus: Corpus[Rows | MixedRows],
    config: DataConfig,
    batch_size: int,
    rows: slice | np.ndarray = slice(None),
    most: int | None = None,
) -> Iterator[HostBatch]:
    """Yield every held-out row once, always with the same masks; the last batch is padded with empty rows.

    corpus: tokenizer and rows.
    config: length and masking; unigram draws have the frequencies of the training text.
    batch_size: number of rows of a batch.
    rows: the rows of each batch (a slice or indices) that this host needs.
    most: if there are more held-out rows, yield this many of them, evenly spaced.
    """
    unigram = Unigram.of(corpus.train, corpus.tokenizer) if config.masking.replacement == "unigram" else None
    for example_B in order.once(len(corpus.validation), batch_size, rows, most):
        yield batching.make_batch(
            config,
            corpus.validation,
            corpus.tokenizer,
            example_B=example_B,
            epoch_B=np.zeros_like(example_B),
            seed=0,
            unigram=unigram,
        )
