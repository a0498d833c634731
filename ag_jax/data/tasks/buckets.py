"""Features to batches of few shapes: rows of about the same length go together, so that little of a batch is padding.

    tokens, sequences, segments   int32 [B, L], choice and ranking [B, C, L]
    weights                       float32 [B]       1; 0 for a row that fills the batch or whose label is not known
    rows                          int32 [B]         index of the feature, -1 for a row that fills the batch
    labels                        int32 [B]         classification
                                  float32 [B]       regression, 0 to 1
                                  float32 [B, C]    choice, ranking: a distribution over the right ones
                                  int32 [B, L]      tagging
    choice_weights                float32 [B, C]    1 for a candidate that is there
    label_weights                 float32 [B, L]    1 at the first piece of a word
    starts, ends                  int32 [B]         first and last token of the answer, 0 for none
    span_weights                  float32 [B, L]    1 where an answer may begin and end

An epoch holds every row once in ceil(rows / B) batches, the same number as without buckets: what is left over in a bucket goes
to the next longer one. Order is a function of (seed, epoch). Shape letters: B batch, C candidates, L length.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from ag_jax.data import randomness
from ag_jax.data.tasks.rows import Features

Batch = dict[str, np.ndarray]
LENGTHS = 4  # shapes, at most
MULTIPLE = 8  # of which every length but max_length is one
_SHUFFLE, _ORDER = 1, 2  # what a random number is for


@dataclasses.dataclass(frozen=True)
class Planned:
    """A batch before it is made: its feature rows, and its candidates (0: an axis that it does not have) and length."""

    rows: np.ndarray
    candidates: int
    length: int


def batches(
    features: Features,
    batch_size: int,
    *,
    max_length: int,
    seed: int = 0,
    epoch: int = 0,
    shuffle: bool,
    drop: bool = False,
    lengths: Sequence[int] = (),
) -> Iterator[Batch]:
    """One epoch of batches.

    shuffle: rows and batches in an order drawn from (seed, epoch); otherwise from the shortest to the longest, and "rows"
    leads back to the order of the features. drop: leave out the last batch if it is not full. lengths: that batches may have,
    ascending; empty takes those that `bucket_lengths` finds best for the features.
    """
    for planned in plan(features, batch_size, max_length, seed, epoch, shuffle=shuffle, drop=drop, lengths=lengths):
        yield make_batch(features, planned, batch_size)


def steps(rows: int, batch_size: int, drop: bool = False) -> int:
    """Batches of an epoch."""
    return rows // batch_size if drop else -(-rows // batch_size)


def plan(
    features: Features,
    batch_size: int,
    max_length: int,
    seed: int = 0,
    epoch: int = 0,
    *,
    shuffle: bool,
    drop: bool = False,
    lengths: Sequence[int] = (),
) -> list[Planned]:
    """Which rows are in which batch of an epoch, and the shapes of the batches; see `batches`."""
    if batch_size < 1:
        raise ValueError(f"a batch needs at least one row, got batch_size={batch_size}")
    count = len(features)
    sizes = np.asarray([row["tokens"].shape[-1] for row in features.rows], np.int64)
    choices = np.asarray([row["tokens"].shape[0] if row["tokens"].ndim == 2 else 0 for row in features.rows], np.int64)
    allowed = np.asarray(lengths or bucket_lengths(sizes, max_length), np.int64)
    if count and sizes.max() > allowed[-1]:
        raise ValueError(
            f"a row has {sizes.max()} tokens, the longest batch {allowed[-1]}; encode with a lower max_length"
        )
    length_N = allowed[np.searchsorted(allowed, sizes)]
    choice_N = _candidates(choices)
    if shuffle:
        order = randomness.permutation(count, _SHUFFLE, seed, epoch).astype(np.int64)
    else:
        order = np.argsort(sizes, kind="stable")
    # By bucket, those of a bucket in the order above; cutting this every B rows hands on what is left over in a bucket.
    order = order[np.lexsort((length_N[order], choice_N[order]))]
    parts = [order[at : at + batch_size] for at in range(0, count, batch_size)]
    if drop and parts and len(parts[-1]) < batch_size:
        parts.pop()
    planned = [Planned(rows, int(choice_N[rows].max()), int(length_N[rows].max())) for rows in parts]
    if shuffle:
        planned = [planned[place] for place in randomness.permutation(len(planned), _ORDER, seed, epoch)]
    return planned


def bucket_lengths(sizes: np.ndarray, max_length: int, most: int = LENGTHS) -> tuple[int, ...]:
    """At most `most` lengths that make the sum of the padded rows smallest: multiples of `MULTIPLE`, or max_length itself.

    By dynamic programming: cost(k, j) = min over i < j of cost(k - 1, i) + length_j * (rows longer than length_i up to length_j).
    """
    longest = int(sizes.max()) if len(sizes) else 1
    options = [*range(MULTIPLE, longest, MULTIPLE)]
    options.append(min((options[-1] if options else 0) + MULTIPLE, max(max_length, longest)))
    below = np.searchsorted(np.sort(sizes), options, side="right")
    best = [(length * int(rows), (length,)) for length, rows in zip(options, below, strict=True)]
    for _ in range(most - 1):
        best = [
            min(
                [best[j]]
                + [
                    (best[i][0] + options[j] * int(below[j] - below[i]), (*best[i][1], options[j]))
                    for i in range(j)
                    if below[j] > below[i]
                ],
                key=lambda option: (option[0], len(option[1])),
            )
            for j in range(len(options))
        ]
    return best[-1][1]


def make_batch(features: Features, planned: Planned, batch_size: int) -> Batch:
    """The arrays of a batch; see the top of this module."""
    given = [features.rows[row] for row in planned.rows]
    rows = np.full(batch_size, -1, np.int32)
    rows[: len(given)] = planned.rows
    batch = {"rows": rows}
    axes = {"C": planned.candidates, "L": planned.length}
    for name, example in given[0].items():
        shape = [axes[axis] for axis in _axes(np.ndim(example), bool(planned.candidates))]
        fill = features.pad if name == "tokens" else 0
        field = np.full((batch_size, *shape), fill, np.float32 if np.asarray(example).dtype == np.float32 else np.int32)
        for number, row in enumerate(given):
            value = np.asarray(row[name])
            field[(number, *map(slice, value.shape))] = value
        batch[name] = field
    return batch


def _axes(rank: int, has_candidates: bool) -> str:
    if rank == 1 and has_candidates:
        return "C"
    return ("", "L", "CL")[rank]


def _candidates(choices: np.ndarray) -> np.ndarray:
    """The candidates of each row's batch: all as many, or, where they differ, powers of two."""
    if not len(choices) or choices.min() == choices.max():
        return choices
    powers = 2 ** np.ceil(np.log2(choices)).astype(np.int64)
    return np.minimum(powers, choices.max())
