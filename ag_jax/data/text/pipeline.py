"""Prepare the tokenizer and rows of a config once, in a cache, and make the batch of any training step directly.

Shape letters: B batch.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ag_jax import interruption
from ag_jax.data import cache, checksums, randomness, tokenizers
from ag_jax.data.config import PAIR_FORMATS, DataConfig, TokenizerConfig
from ag_jax.data.text import batching, formats, holdout, packing, sources, store
from ag_jax.data.text.batching import HostBatch
from ag_jax.data.text.sentences import split_sentences
from ag_jax.data.text.store import Rows, TextStore, TextStoreWriter
from ag_jax.data.text.unigram import Unigram
from ag_jax.data.tokenizers import Tokenizer

CACHE_VERSION = 4  # increased whenever the same settings give different rows
TOKENIZER_TEXT = 200_000_000  # characters of the training text after which a tokenizer is given no further document
ENCODED_TOGETHER = 2**21  # characters, at least, that are tokenised in one call, on all cores
PREFETCH = 4  # batches that are prefetched
SPLITS = ("train", "validation")


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A tokenizer, and the rows into which it encoded the training and the validation text.

    tokenizer: the tokenizer of the rows.
    train: rows for training.
    validation: rows for validation.
    documents: number of documents of each split.
    checksums: hash of the rows of each split.
    """

    tokenizer: Tokenizer
    train: Rows
    validation: Rows
    documents: dict[str, int]
    checksums: dict[str, str]

    def facts(self) -> dict[str, int | str]:
        """Return a summary of the corpus by which two corpora can be compared: equal for the same text and settings."""
        facts: dict[str, int | str] = {"tokenizer": self.tokenizer.fingerprint()}
        for split, rows in (("train", self.train), ("validation", self.validation)):
            facts |= {f"{split} documents": self.documents[split], f"{split} rows": len(rows)}
            facts |= {f"{split} tokens": len(rows.tokens), f"{split} checksum": self.checksums[split]}
        return facts


def prepare(config: DataConfig, *, quiet: bool = False) -> Corpus:
    """Return the tokenizer and rows of a config, from the cache if they were prepared before.

    config: the settings of the data.
    quiet: print no progress.

    Raises ValueError or FileNotFoundError for text or tokenizers that cannot be used.
    """
    say = _quiet if quiet else _say
    tokenizer = prepare_tokenizer(config, quiet=quiet)
    key = _key(*_identities(config), tokenizer.fingerprint())
    text = _cache_root(config) / f"text-{key}"
    key = _key(key, config.format, config.sequence_length, config.duplicates, config.pack)
    rows = _cache_root(config) / f"rows-{key}"

    def open_text(check_large: bool) -> cache.Entry:
        return cache.build_once(
            text, lambda directory: _write_text(config, tokenizer, directory, say), check_large=check_large
        )

    def write_rows(directory: pathlib.Path) -> None:
        open_text(check_large=True)  # all of it is about to be read
        _write_rows(config, tokenizer, text, directory, say)

    open_text(config.verify_cache)
    entry = cache.build_once(rows, write_rows, check_large=config.verify_cache)
    return Corpus(
        tokenizer=tokenizer,
        train=Rows(rows / "train", entry),
        validation=Rows(rows / "validation", entry),
        documents={split: len(TextStore(text / split)) for split in SPLITS},
        checksums={split: entry.digest(split) for split in SPLITS},
    )


def prepare_tokenizer(config: DataConfig, *, quiet: bool = False) -> Tokenizer:
    """Return the tokenizer at `config.tokenizer.path`; without a path, a tokenizer trained on the training text.

    A trained tokenizer is cached and not trained again.
    """
    if config.tokenizer.path:
        return tokenizers.load(config.tokenizer.path)
    held_out = None if config.validation_source else config.validation_fraction
    key = _key(sources.identity(config.source), config.text_field, _tokenizer_key(config.tokenizer), held_out)
    directory = _cache_root(config) / f"tokenizer-{key}"

    def write(partial: pathlib.Path) -> None:
        say = _quiet if quiet else _say
        say(f"training a {config.tokenizer.kind} tokenizer of up to {config.tokenizer.vocabulary_size} pieces")
        train = functools.partial(tokenizers.train, config.tokenizer, _TokenizerText(config))
        interruption.wait_for(train).save(partial)

    cache.build_once(directory, write, check_large=config.verify_cache)
    return tokenizers.load(directory)


def source_files(config: DataConfig, *, quiet: bool = False) -> dict[str, list[list[Any]]]:
    """Return {setting: [[name, size in bytes, content hash], ...]} of all files of the text, for the settings `source`
    and, if there is one, `validation_source`.

    The hashes are cached; all files are read again when the name, size or time of one has changed.
    """
    settings = [name for name in ("source", "validation_source") if getattr(config, name)]
    identities = [sources.identity(getattr(config, name)) for name in settings]
    directory = _cache_root(config) / f"files-{_key(*identities)}"

    def write(partial: pathlib.Path) -> None:
        files = {name: sources.files(getattr(config, name)) for name in settings}
        (_quiet if quiet else _say)(f"hashing {sum(map(len, files.values())):,} files")
        hashed = {
            setting: [[name, path.stat().st_size, checksums.content_hash(path)] for name, path in found]
            for setting, found in files.items()
        }
        (partial / "files.json").write_text(json.dumps(hashed))

    cache.build_once(directory, write, check_large=config.verify_cache)
    return json.loads((directory / "files.json").read_text())


def _tokenizer_key(config: TokenizerConfig) -> dict[str, Any]:
    """Return the settings of a tokenizer in the form that enters a cache key.

    A `path` of None is written as "", so that older caches stay valid.
    """
    return dataclasses.asdict(config) | {"path": config.path or ""}


def _identities(config: DataConfig) -> list[Any]:
    """Return settings and versions of files; two such lists are equal only for the same text and validation part.

    The list is made without reading the text, and is part of the cache's keys.
    """
    validation = sources.identity(config.validation_source) if config.validation_source else config.validation_fraction
    return [sources.identity(config.source), config.text_field, validation]


def _cache_root(config: DataConfig) -> pathlib.Path:
    """Return the directory of all caches."""
    named = config.cache_dir or os.environ.get("AG_JAX_CACHE") or "~/.cache/ag_jax"
    return pathlib.Path(named).expanduser()


def _key(*parts) -> str:
    """Return a hash of settings, for the name of a cached directory."""
    return hashlib.sha256(json.dumps([CACHE_VERSION, *parts], sort_keys=True).encode()).hexdigest()[:16]


def _say(message: str) -> None:
    print(f"data: {message}", file=sys.stderr, flush=True)


def _quiet(message: str) -> None:
    """Print nothing: used by hosts that leave progress messages to another host."""


@dataclasses.dataclass(frozen=True)
class _TokenizerText:
    """Training documents, up to about `TOKENIZER_TEXT` characters, as an iterable that can be iterated repeatedly."""

    config: DataConfig

    def __iter__(self) -> Iterator[str]:
        characters = 0
        for piece in holdout.split(self.config):
            if characters >= TOKENIZER_TEXT:
                return
            if not piece.held_out:
                characters += len(piece.text)
                yield piece.text


def _write_text(config: DataConfig, tokenizer: Tokenizer, directory: pathlib.Path, say: Callable[[str], None]) -> None:
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

    identities = _identities(config)  # compared at the end, because files may change while they are read
    say(f"tokenising {config.source}")
    for piece in holdout.split(config):
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
    held_out = writers[True].tokens
    say(
        f"{count:,} documents, {total:,} tokens; for validation {held_out:,} tokens of {held_out_count:,} documents, "
        f"{held_out / total:.1%} of the text"
    )


def _write_rows(
    config: DataConfig, tokenizer: Tokenizer, text: pathlib.Path, directory: pathlib.Path, say: Callable[[str], None]
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

    Row i of step s is number g = s * batch_size + i of all rows drawn in training. It belongs to epoch g // N, where N
    is the number of rows of the corpus, and the rows of an epoch come in the order permutation(seed, epoch). Masks
    depend on (seed, epoch, row of the corpus).

    rows: rows of the training text.
    tokenizer: the tokenizer of the rows.
    config: length and masking.
    batch_size: number of rows of a batch.
    seed: seed of the order and of the masks.

    Raises ValueError if the corpus has fewer rows than a batch.
    """

    rows: Rows
    tokenizer: Tokenizer
    config: DataConfig
    batch_size: int
    seed: int

    def __post_init__(self):
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")
        if len(self.rows) < self.batch_size:
            raise ValueError(
                f"the corpus has {len(self.rows)} rows of training text, fewer than one batch of {self.batch_size}: "
                "lower training.batch_size or data.sequence_length, or give more text"
            )

    @functools.cached_property
    def unigram(self) -> Unigram | None:
        """Token frequencies of the training text with `data.masking.replacement="unigram"`, else None."""
        return Unigram.of(self.rows, self.tokenizer) if self.config.masking.replacement == "unigram" else None

    def at(self, step: int, rows: slice | np.ndarray = slice(None)) -> HostBatch:
        """Return the batch of a step; with `rows`, a slice or indices, only the rows that this host needs."""
        number_B = (step * self.batch_size + np.arange(self.batch_size))[rows]
        epoch_B, place_B = np.divmod(number_B, len(self.rows))
        example_B = np.empty(len(number_B), np.int64)
        for epoch in np.unique(epoch_B):
            order = randomness.permutation(len(self.rows), self.seed, int(epoch))
            example_B[epoch_B == epoch] = order[place_B[epoch_B == epoch]]
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
        # Imported here, because it takes a second and imports JAX, which this package otherwise does without.
        import grain

        steps = grain.MapDataset.range(start, stop).map(functools.partial(self.at, rows=rows))
        return iter(steps.to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=PREFETCH)))


def validation_batches(
    corpus: Corpus, config: DataConfig, batch_size: int, rows: slice | np.ndarray = slice(None)
) -> Iterator[HostBatch]:
    """Yield every held-out row once, always with the same masks; the last batch is padded with empty rows.

    corpus: tokenizer and rows.
    config: length and masking; unigram draws have the frequencies of the training text.
    batch_size: number of rows of a batch.
    rows: the rows of each batch (a slice or indices) that this host needs.
    """
    unigram = Unigram.of(corpus.train, corpus.tokenizer) if config.masking.replacement == "unigram" else None
    for start in range(0, len(corpus.validation), batch_size):
        example_B = (start + np.arange(batch_size))[rows]
        example_B = np.where(example_B < len(corpus.validation), example_B, -1)
        yield batching.make_batch(
            config,
            corpus.validation,
            corpus.tokenizer,
            example_B=example_B,
            epoch_B=np.zeros_like(example_B),
            seed=0,
            unigram=unigram,
        )
