"""Prepare a parallel corpus: train its tokenizer, cache its rows of token ids, and make the batch of any step.

The functions are those of `ag_jax.data.text.pipeline`, for pairs of a text and its translation.

Shape letters: B batch.
"""

import collections
import dataclasses
import functools
import itertools
import json
import pathlib
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ag_jax.data import order
from ag_jax.data.checksums import KnownContent
from ag_jax.data.config import DataConfig
from ag_jax.data.corpus import (
    SPLITS,
    Corpus,
    Say,
    announcer,
    cached_rows,
    cached_tokenizer,
    hash_files,
    key,
)
from ag_jax.data.entries import Claim, Entries, unclaimed
from ag_jax.data.order import BatchSizes
from ag_jax.data.parallel import batching, pairs, selection
from ag_jax.data.parallel.pairs import Pair
from ag_jax.data.parallel.rows import PairRows, write_pair_rows
from ag_jax.data.parallel.selection import REASONS, TOO_LONG, WITHOUT_TEXT
from ag_jax.data.text import packing
from ag_jax.data.text.batching import HostBatch
from ag_jax.data.text.formats import Row
from ag_jax.data.text.store import TextStore, TextStoreWriter
from ag_jax.data.tokenizers import Tokenizer

TOKENIZER_TEXT = 200_000_000  # characters of both sides together that a tokenizer is trained on, at most
TOKENIZER_PAIRS = 1_000_000  # as many pairs, at most
ENCODED_TOGETHER = 2**21  # characters, at least, that are tokenised in one call, on all cores
READ_TOGETHER = 4096  # pairs whose token ids are read in one call
SORTED_TOGETHER = 1024  # pairs that are packed in the order of their lengths
COUNTS = "counts.json"  # number of pairs of each split that were left out, by reason


def prepare(config: DataConfig, *, quiet: bool = False, claim: Claim = unclaimed) -> Corpus[PairRows]:
    """Return the tokenizer and the tokenised rows of the parallel corpus in `config`, from the cache if possible.

    config: the settings of the data.
    quiet: print no progress.
    claim: takes pieces of the work, if processes share it; see `entries.Claim`.

    `Corpus.documents` has the number of pairs, and `Corpus.counts` the number of pairs that were left out for each
    reason in `selection`. Raises ValueError or FileNotFoundError for files or tokenizers that cannot be used.
    """
    say = announcer(quiet)
    tokenizer, entries = prepare_tokenizer(config, quiet=quiet, claim=claim), Entries.of(config, claim)
    text_key = key(config.format, *_identities(config), config.max_words_ratio, tokenizer.fingerprint())
    # Tokens are an entry of their own, so that rows of another length or packing are made without tokenising again.
    entry = cached_rows(
        entries,
        f"text-{text_key}",
        f"rows-{key(text_key, config.sequence_length, selection.max_tokens(config), config.pack)}",
        lambda directory: _write_text(config, tokenizer, directory, say),
        lambda text, directory: _write_rows(config, tokenizer, text, directory, say),
        config.verify_cache,
    )
    rows = {split: PairRows(entry.path / split, entry) for split in SPLITS}
    left_out = json.loads((entry.path / COUNTS).read_text())
    for split in SPLITS:
        if any(left_out[split].values()):
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in left_out[split].items() if count)
            say(f"{split}: {rows[split].pair_count:,} pairs; left out: {reasons}")
    return Corpus(
        tokenizer=tokenizer,
        train=rows["train"],
        validation=rows["validation"],
        documents={split: rows[split].pair_count for split in SPLITS},
        checksums={split: entry.digest(split) for split in SPLITS},
        counts={
            split: {"source tokens": len(rows[split].source.tokens)}
            | {f"pairs {reason}": count for reason, count in left_out[split].items()}
            for split in SPLITS
        },
    )


def prepare_tokenizer(config: DataConfig, *, quiet: bool = False, claim: Claim = unclaimed) -> Tokenizer:
    """Return the tokenizer at `config.tokenizer.path`, or one trained on the corpus if no path is given.

    It is trained on the source and target texts of the training pairs, cached, and not trained again.
    """

    def text_key() -> str:
        held_out = None if config.validation_source else config.validation_fraction
        training = pairs.training(config).identity()
        return key(config.format, training, config.max_words_ratio, dataclasses.asdict(config.tokenizer), held_out)

    return cached_tokenizer(config, Entries.of(config, claim), text_key, _TokenizerText(config), announcer(quiet))


def source_files(config: DataConfig, *, quiet: bool = False, claim: Claim = unclaimed) -> dict[str, list[list[Any]]]:
    """Return {setting: [[file name, size in bytes, content hash], ...]} for all files of the parallel corpus.

    The settings are `source`, and `target`, `validation_source` and `validation_target` as far as they are set. The
    hashes are cached; all files are read again when the name, size or time of one has changed.
    """

    def files() -> dict[str, list[tuple[str, pathlib.Path | KnownContent]]]:
        validation = pairs.validation(config)
        return pairs.training(config).files() | (validation.files() if validation else {})

    key_of_files = key(config.format, *_identities(config))
    return hash_files(config, Entries.of(config, claim), key_of_files, files, announcer(quiet))


def _identities(config: DataConfig) -> list[Any]:
    """Return a list, part of cache keys, that changes with the files' content or the choice of validation pairs."""
    validation = pairs.validation(config)
    held_out = validation.identity() if validation else config.validation_fraction
    return [pairs.training(config).identity(), held_out]


@dataclasses.dataclass(frozen=True)
class _TokenizerText:
    """The source and target texts on which a tokenizer is trained, as an iterable that can be iterated repeatedly.

    They are those of the training pairs. Of a corpus that is larger than `TOKENIZER_TEXT` or `TOKENIZER_PAIRS`, every
    n-th pair is taken, with the least n for which they fit: its files may be of different kinds, and all should have
    their share.
    """

    config: DataConfig

    def __iter__(self) -> Iterator[str]:
        for pair in itertools.islice(self._pairs(), None, None, self._stride):
            yield from pair

    def _pairs(self) -> Iterator[Pair]:
        candidates = selection.select(self.config)
        return (selected.pair for selected in candidates if selected.split == "train" and not selected.left_out)

    @functools.cached_property
    def _stride(self) -> int:
        characters = count = 0
        for pair in self._pairs():
            characters += len(pair.source) + len(pair.target)
            count += 1
        return max(1, -(-characters // TOKENIZER_TEXT), -(-count // TOKENIZER_PAIRS))


def _write_text(config: DataConfig, tokenizer: Tokenizer, directory: pathlib.Path, say: Say) -> None:
    """Write the token ids of the training pairs and of the validation pairs, each as a `TextStore` below `directory`.

    A pair is a document of two sentences. Tokenises both splits in one pass over the files, about `ENCODED_TOGETHER`
    characters at a time.
    """
    writers = {split: TextStoreWriter(directory / split, tokenizer.vocabulary_size) for split in SPLITS}
    left_out = {split: dict.fromkeys(REASONS, 0) for split in SPLITS}
    counts: collections.Counter[str] = collections.Counter()
    waiting: list[tuple[Pair, str]] = []
    last_report, characters = time.monotonic(), 0

    def flush() -> None:
        sources = tokenizer.encode_batch([pair.source for pair, _ in waiting])
        targets = tokenizer.encode_targets([pair.target for pair, _ in waiting])
        for (_, split), *sides in zip(waiting, sources, targets, strict=True):
            # A text of characters that the tokenizer drops, such as a zero-width space, has no token.
            if all(sides):
                writers[split].append(sides)
            else:
                left_out[split][WITHOUT_TEXT] += 1
        waiting.clear()

    identities = _identities(config)  # compared at the end, because files may change while they are read
    say(f"tokenising {config.source}" + (f" and {config.target}" if config.target else ""))
    for pair, split, reason in selection.select(config):
        counts[split] += 1
        if reason:
            left_out[split][reason] += 1
            continue
        waiting.append((pair, split))
        characters += len(pair.source) + len(pair.target)
        if characters >= ENCODED_TOGETHER:
            flush()
            characters = 0
            if time.monotonic() - last_report > 10:
                last_report = time.monotonic()
                say(f"{counts.total():,} pairs, {sum(writer.tokens for writer in writers.values()):,} tokens so far")
    flush()
    for writer in writers.values():
        writer.close()
    if _identities(config) != identities:
        raise ValueError(
            f"the files of data.source={config.source!r} or its translations were changed while they were read: run "
            "the command again"
        )
    (directory / COUNTS).write_text(json.dumps(left_out))
    say(", ".join(f"{counts[split]:,} pairs for {split}" for split in SPLITS))


def _write_rows(
    config: DataConfig, tokenizer: Tokenizer, text: pathlib.Path, directory: pathlib.Path, say: Say
) -> None:
    """Write the stored token ids of the training and validation pairs as rows, packed if `config.pack` is set.

    Raises ValueError if a split has no pair that can be used.
    """
    left_out = json.loads((text / COUNTS).read_text())
    for split in SPLITS:
        unpacked = _make_rows(config, TextStore(text / split), tokenizer, left_out[split])
        rows = packing.pack_sides(_sorted(unpacked), 2, config.sequence_length) if config.pack else unpacked
        write_pair_rows(directory / split, rows, tokenizer.vocabulary_size, is_packed=config.pack)
        stored = PairRows(directory / split)
        if not len(stored):
            raise ValueError(_nothing_left(config, split, left_out[split]))
        prefix = f"{stored.pair_count:,} pairs in " if config.pack else ""
        rates = stored.fill_rates(config.sequence_length)
        shares = ", ".join(f"{rate:.1%} of the {side} positions" for side, rate in rates.items())
        say(f"{split}: {prefix}{len(stored):,} rows, filled: {shares}")
    (directory / COUNTS).write_text(json.dumps(left_out))


def _nothing_left(config: DataConfig, split: str, left_out: dict[str, int]) -> str:
    """Return the error message for a training or validation split in which no usable pair is left."""
    source = config.validation_source if split == "validation" and config.validation_source else config.source
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in left_out.items() if count)
    held_out = split == "validation" and not config.validation_source
    return (
        f"no pair of {source!r} is left for {split}"
        + (f", after those left out: {reasons} (data.max_words_ratio, data.max_tokens)" if reasons else "")
        + ": give more text"
        + (", raise data.validation_fraction, or set data.validation_source" if held_out else "")
    )


def _make_rows(
    config: DataConfig, store: TextStore, tokenizer: Tokenizer, left_out: dict[str, int]
) -> Iterator[tuple[Row, Row]]:
    """Yield (source row, target row) with end tokens for each stored pair; count too long pairs in `left_out`."""
    longest, end = selection.max_tokens(config), tokenizer.specials.end
    count = 2 * len(store)
    for first in range(0, count, 2 * READ_TOGETHER):
        texts = store.sentences(first, min(first + 2 * READ_TOGETHER, count))
        for source, target in zip(texts[::2], texts[1::2], strict=True):
            if max(len(source), len(target)) + 1 > longest:
                left_out[TOO_LONG] += 1
            else:
                yield Row(np.append(source, end)), Row(np.append(target, end))


def _sorted(rows: Iterable[tuple[Row, Row]]) -> Iterator[tuple[Row, Row]]:
    """Yield the (source row, target row) pairs, sorted from longest to shortest within groups of `SORTED_TOGETHER`.

    Best fit then begins with the texts that leave the fewest choices, which fills rows better.
    """
    rows = iter(rows)
    while together := list(itertools.islice(rows, SORTED_TOGETHER)):
        yield from sorted(together, key=lambda pair: -sum(len(side.tokens) for side in pair))


@dataclasses.dataclass(frozen=True)
class Batches:
    """Training batches of pairs of texts, in which row i of step s is a pure function of (seed, s, i).

    The order of the rows is that of `ag_jax.data.order`.

    rows: rows of the training pairs.
    tokenizer: the tokenizer of the rows.
    config: length of the sides.
    batch_size: number of rows of a batch, or of the batches of all steps.
    seed: seed of the order.
    start: token id at the first position of every target text; None for the padding token, for decoders that begin
        with a vector of zeros.

    Raises ValueError if the corpus has fewer rows than a batch.
    """

    rows: PairRows
    tokenizer: Tokenizer
    config: DataConfig
    batch_size: int | BatchSizes
    seed: int
    start: int | None = None

    def __post_init__(self):
        for size in (self.sizes.last, *self.sizes.earlier):
            order.check_batch_size(len(self.rows), size)

    @property
    def sizes(self) -> BatchSizes:
        """The number of rows in the batch of each training step."""
        return BatchSizes.of(self.batch_size)

    def at(self, step: int, rows: slice | np.ndarray = slice(None)) -> HostBatch:
        """Return the batch of training step `step`, or only those of its rows that this host needs, given by `rows`."""
        example_B, _ = order.drawn(len(self.rows), self.sizes.numbers(step)[rows], self.seed)
        start = _start(self.start, self.tokenizer)
        return batching.make_batch(self.config, self.rows, self.tokenizer, example_B=example_B, start=start)

    def iterate(
        self, start: int, stop: int, rows: order.HostRows = order.all_rows, threads: int = 1
    ) -> Iterator[HostBatch]:
        """Return an iterator over the batches of steps `start` to `stop` - 1, prefetched by `threads` grain threads.

        rows: number of rows of a batch -> the rows (a slice or indices) that this host needs.
        """
        return order.prefetched(lambda step: self.at(step, rows(self.sizes.at(step))), start, stop, threads)


def validation_batches(
    corpus: Corpus[PairRows],
    config: DataConfig,
    batch_size: int,
    rows: slice | np.ndarray = slice(None),
    start: int | None = None,
    most: int | None = None,
) -> Iterator[HostBatch]:
    """Yield batches of validation rows: each row once, or `most` of them; empty rows fill up the last batch.

    corpus: tokenizer and rows.
    config: length of the sides.
    batch_size: number of rows of a batch.
    rows: the rows of each batch (a slice or indices) that this host needs.
    start: token id at the first position of every target text; None for the padding token.
    most: if there are more rows, yield this many of them, evenly spaced.
    """
    start = _start(start, corpus.tokenizer)
    for example_B in order.once(len(corpus.validation), batch_size, rows, most):
        yield batching.make_batch(config, corpus.validation, corpus.tokenizer, example_B=example_B, start=start)


def _start(start: int | None, tokenizer: Tokenizer) -> int:
    return tokenizer.specials.pad if start is None else start
