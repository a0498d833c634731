"""Prepare the tokenizer and the rows of a text, in a cache, and make the batch of any training step.

Shape letters: B batch.
"""

import dataclasses
import functools
import json
import math
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ag_jax.data import order
from ag_jax.data.config import DataConfig, TokenizerConfig
from ag_jax.data.corpus import SPLITS, Corpus, Say, announcer, cached_tokenizer, hash_files, key
from ag_jax.data.entries import Claim, Entries, unclaimed
from ag_jax.data.order import BatchSizes
from ag_jax.data.records import sources
from ag_jax.data.text import batching, holdout, mixture, single_source
from ag_jax.data.text import prepare as text_parts
from ag_jax.data.text.batching import HostBatch
from ag_jax.data.text.mixture import MixedRows
from ag_jax.data.text.store import Rows
from ag_jax.data.text.unigram import Unigram
from ag_jax.data.tokenizers import SENTENCEPIECE_LINES, Tokenizer, sentencepiece_lines

TOKENIZER_TEXT = 200_000_000  # characters of the training text that a tokenizer is trained on, at most
SHARES = "shares.json"  # share of the training documents of each source that a tokenizer is trained on


def prepare(config: DataConfig, *, quiet: bool = False, claim: Claim = unclaimed) -> Corpus[Rows | MixedRows]:
    """Return the tokenizer and the rows of token ids of a config, from the cache if they were prepared before.

    config: the settings of the data.
    quiet: print no progress.
    claim: takes pieces of the work, if processes share it; see `entries.Claim`.

    Raises ValueError or FileNotFoundError for text or tokenizers that cannot be used.
    """
    say, entries = announcer(quiet), Entries.of(config, claim)
    share_K = mixture.shares(config)
    configs = mixture.components(config, functools.partial(single_source.identity, entries))
    tokenizer = prepare_tokenizer(config, quiet=quiet, claim=claim)
    texts = [single_source.of_config(source_config, tokenizer, entries) for source_config in configs]
    if entries.is_shared and (missing := _untokenised(texts, entries)):
        text_parts.tokenise(missing, entries, tokenizer, say)  # of all sources, before any is put together
    prepared = [single_source.prepare(text, entries, tokenizer, say) for text in texts]
    if entries.remote is not None:
        single_source.remember(config, entries)
    rows = {split: [source.rows[split] for source in prepared] for split in SPLITS}
    if config.validation_source:  # every source was prepared with the same text for validation
        rows["validation"] = rows["validation"][:1]
    corpus = Corpus(
        tokenizer=tokenizer,
        train=mixture.join(rows["train"], share_K),
        validation=mixture.join(rows["validation"], share_K),
        documents={split: sum(one.documents[split] for one in prepared[: len(rows[split])]) for split in SPLITS},
        checksums={
            split: _combined([one.checksums[split] for one in prepared[: len(rows[split])]]) for split in SPLITS
        },
        left_out={
            name: sum(source.left_out.get(name, 0) for source in prepared)
            for name in ("words", "documents")
            if any(config.skip_words)
        },
        sources=[source.sizes(share) for source, share in zip(prepared, share_K, strict=True)],
    )
    _report(config, corpus, entries, say)
    return corpus


def _untokenised(texts: Sequence[text_parts.Source], entries: Entries) -> list[text_parts.Source]:
    """Return the texts of which the cache has neither the rows nor the token ids."""
    return [
        text
        for text in texts
        if not entries.is_complete(single_source.rows_name(text)) and not entries.is_complete(text.text)
    ]


def _combined(checksums: list[str]) -> str:
    """Return one hash that combines the hashes of several sources; the hash of a single source is unchanged."""
    return checksums[0] if len(checksums) == 1 else key(*checksums)


def _report(config: DataConfig, corpus: Corpus, entries: Entries, say: Say) -> None:
    """Print what was left out of a corpus, the sizes of mixed sources, and its size as a share of the expected size."""
    if left_out := corpus.left_out:
        say(
            f"left out by data.skip_words: {left_out['words']:,} words at the beginning of documents, among them "
            f"{left_out['documents']:,} whole documents"
        )
    if config.max_words and (words := corpus.words):
        # Words that are held out of `data.source` count, and those of a text of their own do not.
        count = words["train"] + (0 if config.validation_source else words["validation"])
        note = "" if count >= config.max_words else "; the text has no more, so all of it is read"
        say(f"{count:,} words of the {config.max_words:,} of data.max_words{note}")
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
    if config.expected_gigabytes:
        say(_share_of_gigabytes(config, config.expected_gigabytes, entries))


def _share_of_gigabytes(config: DataConfig, expected: float, entries: Entries) -> str:
    """Return a message with the size of the files of `data.source`, in all and by part, and the expected size."""
    identities = {part: single_source.identity(entries, part) for part in sources.parts(config.source)}
    sizes = {part: sources.size_of_files(items) for part, items in identities.items()}
    gigabytes = {part: size / 1e9 for part, size in sizes.items() if size is not None}
    if without := [part for part in sizes if part not in gigabytes]:
        return f"data.expected_gigabytes={expected:g} is not compared: {', '.join(without)} has no files of known size"
    total, each = sum(gigabytes.values()), ", ".join(f"{part} has {size:,.1f}" for part, size in gigabytes.items())
    is_text = all(sources.is_text_file(item) for items in identities.values() for item in items)
    return (
        f"{total:,.1f} GB of files, {total / expected:.1%} of the {expected:g} of data.expected_gigabytes ({each})"
        + ("" if is_text else "; some are compressed, archives, JSON or tables, of which the text has another size")
    )


def prepare_tokenizer(config: DataConfig, *, quiet: bool = False, claim: Claim = unclaimed) -> Tokenizer:
    """Return the tokenizer at `config.tokenizer.path`; without a path, a tokenizer trained on the training text.

    A trained tokenizer is cached and not trained again.
    """
    say, entries = announcer(quiet), Entries.of(config, claim)
    configs = mixture.components(config, functools.partial(single_source.identity, entries))

    @functools.cache  # and a function, because nothing of it is needed for a tokenizer at a path
    def identity() -> list[Any]:
        return _tokenizer_identity(config, entries, len(configs))

    @functools.cache
    def shares() -> list[float]:
        return _tokenizer_shares(config.tokenizer, configs, entries, key(*identity()), say)

    def text_key() -> str:
        return key(*identity(), {"shares": shares()})

    return cached_tokenizer(config, entries, text_key, _TokenizerText(configs, shares), say)


def _tokenizer_identity(config: DataConfig, entries: Entries, count: int) -> list[Any]:
    """Return the settings and file identities that determine a tokenizer which is trained on `count` sources."""
    held_out = None if config.validation_source else config.validation_fraction
    identity: list[Any] = [single_source.identity(entries, config.source), config.text_field]
    identity += [dataclasses.asdict(config.tokenizer), held_out, *single_source.text_settings(config, entries)]
    if count > 1:
        identity.append({"mixture": single_source.files_of_parts(config, entries)})
    return identity


def _tokenizer_shares(
    config: TokenizerConfig, configs: Sequence[DataConfig], entries: Entries, text_key: str, say: Say
) -> list[float]:
    """Return the share of the training documents of each source on which a tokenizer is trained, from the cache.

    text_key: hash of what the documents depend on.
    """
    limit = TOKENIZER_TEXT // len(configs)
    most = min(limit, SENTENCEPIECE_LINES // len(configs)) if _counts_lines(config) and len(configs) > 1 else limit
    if all(
        sources.is_surely_within(single_source.identity(entries, source_config.source), most)
        for source_config in configs
    ):
        return [1.0] * len(configs)

    def write(directory: pathlib.Path) -> None:
        say("counting the characters of the text, for the tokenizer")
        shares = _measured_shares(config, configs, limit)
        for source_config, share in zip(configs, shares, strict=True):
            if share < 1:
                say(
                    f"the tokenizer is trained on {share:.1%} of the documents of {source_config.source}, evenly spread"
                )
        (directory / SHARES).write_text(json.dumps(shares))

    name = f"shares-{key(text_key, TOKENIZER_TEXT, SENTENCEPIECE_LINES)}"
    return json.loads((entries.open(name, write).path / SHARES).read_text())


def _measured_shares(config: TokenizerConfig, configs: Sequence[DataConfig], limit: int) -> list[float]:
    """Return for each source the share of its training documents that has about `limit` characters, at most 1.

    The lines on which sentencepiece is trained are shared equally in the same way.
    """
    shares, lines = [], []
    for source_config in configs:
        before = characters = count = 0  # `before` lacks the last document
        for text in _training_documents(source_config):
            before, characters = characters, characters + len(text)
            count += sum(1 for _ in sentencepiece_lines(text)) if _counts_lines(config) else 0
        shares.append(limit / characters if before >= limit else 1.0)
        lines.append(count)
    total = sum(share * count for share, count in zip(shares, lines, strict=True))
    # Of a single text within the limit of characters, the first lines are read up to the limit of lines.
    if total > SENTENCEPIECE_LINES and (len(configs) > 1 or shares[0] < 1):
        most = SENTENCEPIECE_LINES // len(configs)
        shares = [min(share, most / max(count, 1)) for share, count in zip(shares, lines, strict=True)]
    return shares


def _counts_lines(config: TokenizerConfig) -> bool:
    """Return whether a tokenizer is one of sentencepiece, which is trained on a limited number of lines."""
    return config.kind.startswith("sentencepiece")


def _training_documents(config: DataConfig) -> Iterator[str]:
    """Yield the documents of a text, or the parts of them, that are not held out for validation."""
    return (piece.text for piece in holdout.split(config) if not piece.held_out)


def source_files(config: DataConfig, *, quiet: bool = False, claim: Claim = unclaimed) -> dict[str, list[list[Any]]]:
    """Return {setting: [[name, size in bytes, content hash], ...]} of the files that the settings of sources name.

    The settings are `source` and, if there is one, `validation_source`. The hashes are cached; all files are read again
    when the name, size or time of one has changed.
    """
    entries = Entries.of(config, claim)
    texts = {name: getattr(config, name) for name in ("source", "validation_source") if getattr(config, name)}
    return hash_files(
        config,
        entries,
        key(*(single_source.identity(entries, source) for source in texts.values())),
        lambda: {name: sources.files(source) for name, source in texts.items()},
        announcer(quiet),
    )


@dataclasses.dataclass(frozen=True)
class _TokenizerText:
    """Training documents, up to about `TOKENIZER_TEXT` characters, as an iterable that can be iterated repeatedly.

    configs: settings of each source; each gives the same number of characters, as far as it has them.
    shares: function that returns the share of the documents that are taken of each source, evenly spread.
    """

    configs: Sequence[DataConfig]
    shares: Callable[[], Sequence[float]]

    def __iter__(self) -> Iterator[str]:
        for config, share in zip(self.configs, self.shares(), strict=True):
            for number, text in enumerate(_training_documents(config)):
                if math.ceil((number + 1) * share) > math.ceil(number * share):
                    yield text


@dataclasses.dataclass(frozen=True)
class Batches:
    """Training batches of masked rows; row i of the batch of step s is a pure function of (seed, s, i).

    `ag_jax.data.order` describes the order, for several sources with weights `mixture`. Masks depend on (seed, epoch,
    row of the corpus).

    rows: rows of the training text.
    tokenizer: the tokenizer of the rows.
    config: length and masking.
    batch_size: number of rows of a batch, or of the batches of all steps.
    seed: seed of the order and of the masks.

    Raises ValueError if the corpus has fewer rows than a batch.
    """

    rows: Rows | MixedRows
    tokenizer: Tokenizer
    config: DataConfig
    batch_size: int | BatchSizes
    seed: int

    def __post_init__(self):
        for size in (self.sizes.last, *self.sizes.earlier):
            order.check_batch_size(len(self.rows), size)

    @property
    def sizes(self) -> BatchSizes:
        """The number of rows of the batch of every step."""
        return BatchSizes.of(self.batch_size)

    @functools.cached_property
    def unigram(self) -> Unigram | None:
        """Token frequencies of the training text with `data.masking.replacement="unigram"`, else None."""
        return Unigram.of(self.rows, self.tokenizer) if self.config.masking.replacement == "unigram" else None

    def at(self, step: int, rows: slice | np.ndarray = slice(None)) -> HostBatch:
        """Return the batch of a step; with `rows`, a slice or indices, only the rows that this host needs."""
        example_B, epoch_B = mixture.drawn(self.rows, self.sizes.numbers(step)[rows], self.seed)
        return batching.make_batch(
            self.config,
            self.rows,
            self.tokenizer,
            example_B=example_B,
            epoch_B=epoch_B,
            seed=self.seed,
            unigram=self.unigram,
            step=step,
        )

    def iterate(
        self, start: int, stop: int, rows: order.HostRows = order.all_rows, threads: int = 1
    ) -> Iterator[HostBatch]:
        """Return the batches of steps `start` to `stop` - 1, prefetched by `threads` threads (grain).

        rows: number of rows of a batch -> the rows (a slice or indices) that this host needs.
        """
        return order.prefetched(lambda step: self.at(step, rows(self.sizes.at(step))), start, stop, threads)


def validation_batches(
    corpus: Corpus[Rows | MixedRows],
    config: DataConfig,
    batch_size: int,
    rows: slice | np.ndarray = slice(None),
    most: int | None = None,
) -> Iterator[HostBatch]:
    """Yield batches with every held-out row once, always with the same masks; the last is padded with empty rows.

    corpus: tokenizer and rows.
    config: length and masking, with the rate for evaluation (`MaskingConfig.for_evaluation`); unigram draws have the
        frequencies of the training text.
    batch_size: number of rows of a batch.
    rows: the rows of each batch (a slice or indices) that this host needs.
    most: if there are more held-out rows, yield this many of them, evenly spaced.
    """
    unigram = Unigram.of(corpus.train, corpus.tokenizer) if config.masking.replacement == "unigram" else None
    config = dataclasses.replace(config, masking=config.masking.for_evaluation)
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
