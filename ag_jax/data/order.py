"""The order in which rows are drawn: row i of step s is a pure function of (seed, s, i).

Row i of step s is number g = s * batch_size + i of all rows drawn in training. It belongs to epoch g // N, where N is
the number of rows of the corpus, and the rows of an epoch come in the order permutation(seed, epoch).

Shape letters: B batch.
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np

from ag_jax.data import randomness

Batch = TypeVar("Batch")
PREFETCH = 4  # batches that are prefetched


def check_batch_size(rows: int, batch_size: int) -> None:
    """Raise ValueError if a corpus has fewer rows for training than a batch, or if the batch is empty."""
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if rows < batch_size:
        raise ValueError(
            f"the corpus has {rows} rows of training text, fewer than one batch of {batch_size}: lower "
            "training.batch_size or data.sequence_length, or give more text"
        )


def drawn(
    count: int, batch_size: int, seed: int, step: int, rows: slice | np.ndarray = slice(None)
) -> tuple[np.ndarray, np.ndarray]:
    """Return the index in the corpus, and the epoch, of the rows of a step: two arrays `B`.

    count: N, number of rows of the corpus.
    batch_size: number of rows of a batch.
    seed: seed of the order.
    step: number of the step.
    rows: the rows of the batch (a slice or indices) that are wanted.
    """
    number_B = (step * batch_size + np.arange(batch_size))[rows]
    epoch_B, place_B = np.divmod(number_B, count)
    example_B = np.empty(len(number_B), np.int64)
    for epoch in np.unique(epoch_B):
        order = randomness.permutation(count, seed, int(epoch))
        example_B[epoch_B == epoch] = order[place_B[epoch_B == epoch]]
    return example_B, epoch_B


def once(
    count: int, batch_size: int, rows: slice | np.ndarray = slice(None), most: int | None = None
) -> Iterator[np.ndarray]:
    """Yield the indices `B` of batches that hold every row once, in the order of the corpus; -1 fills the last batch.

    count: number of rows of the corpus.
    batch_size: number of rows of a batch.
    rows: the rows of each batch (a slice or indices) that are wanted.
    most: if the corpus has more rows, the batches hold this many instead, evenly spaced: row i * count // most for
        i = 0, 1, ...
    """
    chosen = once_count(count, most)
    for start in range(0, chosen, batch_size):
        number_B = (start + np.arange(batch_size))[rows]
        yield np.where(number_B < chosen, number_B * count // max(chosen, 1), -1)


def once_count(count: int, most: int | None) -> int:
    """Return the number of rows that the batches of `once` hold."""
    return count if most is None else min(count, most)


def prefetched(make: Callable[[int], Batch], start: int, stop: int, threads: int = 1) -> Iterator[Batch]:
    """Return the batches `make(step)` of steps `start` to `stop` - 1, prefetched by `threads` threads (grain)."""
    # Imported here, because it takes a second and imports JAX, which this package otherwise does without.
    import grain

    steps = grain.MapDataset.range(start, stop).map(make)
    return iter(steps.to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=PREFETCH)))
