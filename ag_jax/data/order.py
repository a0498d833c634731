"""The order in which training draws rows of a corpus: row i of step s is a pure function of (seed, s, i).

Row i of step s is number g = b(s) + i of all rows drawn in training, where b(s) is the number of rows of the steps
before s. It belongs to epoch g // N, where N is the number of rows of the corpus, and the rows of an epoch come in the
order permutation(seed, epoch).

Shape letters: B batch.
"""

import bisect
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from ag_jax.data import randomness

Batch = TypeVar("Batch")
HostRows = Callable[[int], slice | np.ndarray]
PREFETCH = 4  # batches that are prefetched


@dataclasses.dataclass(frozen=True)
class BatchSizes:
    """Batch size at every training step: `earlier[k]` rows before step `until[k]`, and `last` after these steps.

    last: number of rows of a batch.
    earlier: numbers of rows of the batches of earlier steps.
    until: the steps, ascending and counted from 0, before which each of `earlier` is used.
    """

    last: int
    earlier: tuple[int, ...] = ()
    until: tuple[int, ...] = ()

    @classmethod
    def of(cls, size: "int | BatchSizes") -> "BatchSizes":
        """Return batch sizes that are the same for all steps if `size` is a number, else `size` itself."""
        return size if isinstance(size, BatchSizes) else cls(size)

    def at(self, step: int) -> int:
        """Return the number of rows of the batch of a training step."""
        return at_step(step, self.last, self.earlier, self.until)

    def before(self, step: int) -> int:
        """Return the number of rows that training draws in all steps before `step`."""
        rows, start = 0, 0
        for size, until in zip(self.earlier, self.until, strict=True):
            rows += size * (min(until, step) - min(start, step))
            start = until
        return rows + self.last * (step - min(start, step))

    def numbers(self, step: int) -> np.ndarray:
        """Return the numbers of the rows in the batch of a step; all rows drawn in training are counted from 0."""
        return self.before(step) + np.arange(self.at(step))


Value = TypeVar("Value", int, float)


def at_step(step: int, last: Value, earlier: Sequence[Value], until: Sequence[int]) -> Value:
    """Return a setting's value at a step: `earlier[k]` before step `until[k]`, and `last` after these steps."""
    place = bisect.bisect_right(until, step)
    return earlier[place] if place < len(earlier) else last


def all_rows(count: int) -> slice:
    """Return the slice of all `count` rows of a batch, for a host that needs all of them."""
    del count
    return slice(None)


def check_batch_size(rows: int, batch_size: int) -> None:
    """Raise ValueError if a corpus has fewer rows for training than a batch, which would hold a row twice."""
    if rows < batch_size:
        raise ValueError(
            f"the corpus has {rows} rows of training text, fewer than one batch of {batch_size}: lower "
            "training.batch_size or data.sequence_length, or give more text"
        )


def drawn(count: int, number_B: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (index in the corpus, epoch), two arrays, of the rows with numbers `number_B` among all drawn in training.

    count: N, number of rows of the corpus.
    number_B: numbers of the rows among all rows drawn in training (`BatchSizes.numbers`).
    seed: seed of the order.
    """
    epoch_B, place_B = np.divmod(number_B, count)
    example_B = np.empty(len(number_B), np.int64)
    for epoch in np.unique(epoch_B):
        order = randomness.permutation(count, seed, int(epoch))
        example_B[epoch_B == epoch] = order[place_B[epoch_B == epoch]]
    return example_B, epoch_B


def once(
    count: int, batch_size: int, rows: slice | np.ndarray = slice(None), most: int | None = None
) -> Iterator[np.ndarray]:
    """Yield an array of corpus indices per batch: all rows, or `most` of them, once and in order; -1 pads the last.

    count: number of rows of the corpus.
    batch_size: number of rows of a batch.
    rows: the rows of each batch (a slice or indices) that are wanted.
    most: if the corpus has more rows, the batches hold this many instead, evenly spaced: row i * count // most for
        i = 0, 1, ...
    """
    total = once_count(count, most)
    for start in range(0, total, batch_size):
        number_B = (start + np.arange(batch_size))[rows]
        yield np.where(number_B < total, number_B * count // max(total, 1), -1)


def once_count(count: int, most: int | None) -> int:
    """Return the number of rows in all batches that `once` yields."""
    return count if most is None else min(count, most)


def prefetched(make: Callable[[int], Batch], start: int, stop: int, threads: int = 1) -> Iterator[Batch]:
    """Return the batches `make(step)` of steps `start` to `stop` - 1, prefetched by `threads` threads (grain)."""
    # Imported here, because it takes a second and imports JAX, which this package otherwise does without.
    import grain

    steps = grain.MapDataset.range(start, stop).map(make)
    return iter(steps.to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=PREFETCH)))
