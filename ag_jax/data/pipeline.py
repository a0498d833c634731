"""Prepare the data of a run and make its batches, for every `data.format`.

With `data.format=parallel` the data are pairs of a text and its translation (`ag_jax.data.parallel`), otherwise text
(`ag_jax.data.text`). Both packages have a module `pipeline` with the same functions; here the format chooses.
"""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from ag_jax.data import order
from ag_jax.data.config import DataConfig
from ag_jax.data.corpus import Corpus
from ag_jax.data.entries import Claim, unclaimed
from ag_jax.data.order import BatchSizes
from ag_jax.data.parallel import batching as parallel_batching
from ag_jax.data.parallel import pipeline as parallel
from ag_jax.data.text import batching as text_batching
from ag_jax.data.text import pipeline as text
from ag_jax.data.text.batching import HostBatch
from ag_jax.data.tokenizers import Tokenizer


class Batches(Protocol):
    """Protocol of training batches; row i of the batch of step s is a pure function of (seed, s, i)."""

    def at(self, step: int, rows: slice | np.ndarray = slice(None)) -> HostBatch:
        """Return the batch of a step; with `rows`, a slice or indices, only the rows that this host needs."""

    def iterate(
        self, start: int, stop: int, rows: order.HostRows = order.all_rows, threads: int = 1
    ) -> Iterator[HostBatch]:
        """Return the batches of steps `start` to `stop` - 1, prefetched by `threads` threads.

        rows: number of rows of a batch -> the rows (a slice or indices) that this host needs.
        """


def prepare(config: DataConfig, *, quiet: bool = False, claim: Claim = unclaimed) -> Corpus:
    """Return the tokenizer and the rows of token ids of a config, from the cache if they were prepared before.

    config: the settings of the data.
    quiet: print no progress.
    claim: takes pieces of the work, if processes share it; see `entries.Claim`.

    Raises ValueError or FileNotFoundError for text or tokenizers that cannot be used.
    """
    return (parallel if config.is_parallel else text).prepare(config, quiet=quiet, claim=claim)


def prepare_tokenizer(config: DataConfig, *, quiet: bool = False, claim: Claim = unclaimed) -> Tokenizer:
    """Return the tokenizer at `config.tokenizer.path`; without a path, a tokenizer trained on the training text."""
    return (parallel if config.is_parallel else text).prepare_tokenizer(config, quiet=quiet, claim=claim)


def source_files(config: DataConfig, *, quiet: bool = False, claim: Claim = unclaimed) -> dict[str, list[list[Any]]]:
    """Return {setting: [[name, size in bytes, content hash], ...]} of the files that the settings of sources name."""
    return (parallel if config.is_parallel else text).source_files(config, quiet=quiet, claim=claim)


def empty_batch(config: DataConfig, rows: int) -> HostBatch:
    """Return zeros with a batch's fields, shapes and types; as broadcast scalars, they take no memory."""
    return (parallel_batching if config.is_parallel else text_batching).empty_batch(config, rows)


def batches(
    corpus: Corpus, config: DataConfig, batch_size: int | BatchSizes, seed: int, start: int | None = None
) -> Batches:
    """Return the training batches of a corpus; `start` is the first id of target texts (None: the padding token).

    corpus: tokenizer and rows.
    config: the settings of the data.
    batch_size: number of rows of a batch, or of the batches of all steps.
    seed: seed of the order and of masks.
    start: of pairs, the token id at the first position of every target text; None for the padding token.

    Raises ValueError if the corpus has fewer rows than a batch.
    """
    if config.is_parallel:
        return parallel.Batches(corpus.train, corpus.tokenizer, config, batch_size, seed, start)
    return text.Batches(corpus.train, corpus.tokenizer, config, batch_size, seed)


def validation_batches(
    corpus: Corpus,
    config: DataConfig,
    batch_size: int,
    rows: slice | np.ndarray = slice(None),
    start: int | None = None,
    most: int | None = None,
) -> Iterator[HostBatch]:
    """Yield batches of all (or `most`) validation rows, always the same; the last batch is padded with empty rows.

    rows: the rows of each batch (a slice or indices) that this host needs.
    most: if there are more rows for validation, yield this many of them, evenly spaced.

    The other arguments are those of `batches`.
    """
    if config.is_parallel:
        return parallel.validation_batches(corpus, config, batch_size, rows, start, most)
    return text.validation_batches(corpus, config, batch_size, rows, most)


def validation_batch_count(corpus: Corpus, batch_size: int, most: int | None = None) -> int:
    """Return the number of batches that `validation_batches` yields."""
    return -(-order.once_count(len(corpus.validation), most) // batch_size)
