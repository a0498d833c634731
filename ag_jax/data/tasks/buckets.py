"""Batches of tokenised task examples in a few shapes, with rows of similar length together to save padding.

    tokens                        int32 [B, L]      token ids; choice, ranking, referent: [B, C, L], as in the next two
    segment_ids                   int32 [B, L]      1 on the text, 0 on padding
    token_type_ids                int32 [B, L]      1 on the second text of a pair, else 0
    weights                       float32 [B]       1; 0 for a filler row or a row whose label is not known
    rows                          int32 [B]         index of the row in the features, -1 for a filler row
    labels                        int32 [B]         classification
                                  float32 [B]       regression, 0 to 1
                                  float32 [B, C]    choice, ranking, referent: uniform over the right candidates
                                  int32 [B, L]      tagging
    label_set                     float32 [B, K]    multilabel: 1 for the labels of the example, of all K of the task
    choice_weights                float32 [B, C]    1 for a candidate, 0 for padding
    word_ids                      int32 [B, C, L]   referent: tokens of the phrase for which masks stand
    word_weights                  float32 [B, C, L] referent: 1 at these masks
    label_weights                 float32 [B, L]    1 at the first token of a word
    starts, ends                  int32 [B]         first and last token of the answer, 0 for none
    span_weights                  float32 [B, L]    1 where an answer may begin and end

An epoch holds every row once in ceil(rows / B) batches, the same number as without buckets, because the rows left over
in a bucket move to the next longer bucket. Order is a function of (seed, epoch).
Shape letters: B batch, C candidates, L length.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ag_jax.data import randomness
from ag_jax.data.tasks.rows import Features

HostBatch = dict[str, np.ndarray]
LENGTHS = 4  # the most bucket lengths
MULTIPLE = 8  # every bucket length is a multiple of this, except max_length
_SHUFFLE, _ORDER = 1, 2  # tags that keep the two random permutations independent


@dataclasses.dataclass(frozen=True)
class Planned:
    """The plan of a batch, before its arrays are made: the indices of its rows, and its shape.

    rows: indices into `Features.rows`.
    candidates: size of the axis C; 0: the batch has no such axis.
    length: size of the axis L.
    """

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
    drop_last: bool = False,
    allowed_lengths: Sequence[int] = (),
) -> Iterator[HostBatch]:
    """Yield the batches of one epoch as {field: array}; rows of similar length share a batch.

    The module docstring lists the fields.

    shuffle: draw the order of rows and batches from (seed, epoch); otherwise rows go from the shortest to the longest,
        and the field "rows" gives the index of each in the features.
    drop_last: leave out the last batch if it is not full.
    allowed_lengths: lengths of batches, ascending, the last one at least the longest row; empty: those that
        `bucket_lengths` returns for the features.
    """
    for planned in plan(
        features,
        batch_size,
        max_length,
        seed,
        epoch,
        shuffle=shuffle,
        drop_last=drop_last,
        allowed_lengths=allowed_lengths,
    ):
        yield make_batch(features, planned, batch_size)


def steps(rows: int, batch_size: int, drop_last: bool = False) -> int:
    """Return the number of batches in an epoch of `rows` rows.

    drop_last: leave out the last batch if it is not full.
    """
    return rows // batch_size if drop_last else -(-rows // batch_size)


def plan(
    features: Features,
    batch_size: int,
    max_length: int,
    seed: int = 0,
    epoch: int = 0,
    *,
    shuffle: bool,
    drop_last: bool = False,
    allowed_lengths: Sequence[int] = (),
) -> list[Planned]:
    """Return the row indices and the array shape of each batch of an epoch.

    The arguments are those of `batches`.
    """
    count = len(features)
    sizes = np.asarray([row["tokens"].shape[-1] for row in features.rows], np.int64)
    candidates = np.asarray(
        [row["tokens"].shape[0] if row["tokens"].ndim == 2 else 0 for row in features.rows], np.int64
    )
    allowed = np.asarray(allowed_lengths or bucket_lengths(sizes, max_length), np.int64)
    length_N = allowed[np.searchsorted(allowed, sizes)]
    candidates_N = _padded_candidates(candidates)
    if shuffle:
        order = randomness.permutation(count, _SHUFFLE, seed, epoch).astype(np.int64)
    else:
        order = np.argsort(sizes, kind="stable")
    # Sort by bucket and, because lexsort is stable, within a bucket by the order above. Cutting the result every B rows
    # moves the rows left over in a bucket to the next bucket.
    order = order[np.lexsort((length_N[order], candidates_N[order]))]
    parts = [order[start : start + batch_size] for start in range(0, count, batch_size)]
    if drop_last and parts and len(parts[-1]) < batch_size:
        parts.pop()
    planned = [Planned(rows, int(candidates_N[rows].max()), int(length_N[rows].max())) for rows in parts]
    if shuffle:
        planned = [planned[index] for index in randomness.permutation(len(planned), _ORDER, seed, epoch)]
    return planned


def bucket_lengths(sizes: np.ndarray, max_length: int, most: int = LENGTHS) -> tuple[int, ...]:
    """Return up to `most` lengths, chosen so that padding rows of `sizes` tokens to them adds the fewest tokens.

    Each length is a multiple of `MULTIPLE` or max_length itself. By dynamic programming:
    cost(k, j) = min over i < j of cost(k - 1, i) + length_j * (number of rows longer than length_i up to length_j).
    """
    longest = int(sizes.max()) if len(sizes) else 1
    options = [*range(MULTIPLE, longest, MULTIPLE)]
    options.append(min((options[-1] if options else 0) + MULTIPLE, max(max_length, longest)))
    below = np.searchsorted(np.sort(sizes), options, side="right")
    # best[j]: the least cost of the rows up to options[j], and its lengths; one more length is allowed in each pass.
    best: list[tuple[int, tuple[int, ...]]] = [
        (length * int(rows), (length,)) for length, rows in zip(options, below, strict=True)
    ]
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


def make_batch(features: Features, planned: Planned, batch_size: int) -> HostBatch:
    """Return a planned batch as {field: array}, with filler rows of weight 0 up to `batch_size` rows.

    The module docstring lists the fields.
    """
    members = [features.rows[row] for row in planned.rows]
    rows = np.full(batch_size, -1, np.int32)
    rows[: len(members)] = planned.rows
    batch: HostBatch = {"rows": rows}
    axes = {"C": planned.candidates, "L": planned.length}
    for name, example in members[0].items():
        shape = [axes[axis] for axis in _axes(np.ndim(example), bool(planned.candidates))]
        if name == "label_set":  # as long in every row
            shape = [*np.shape(example)]
        fill = features.pad if name == "tokens" else 0
        field = np.full((batch_size, *shape), fill, np.float32 if np.asarray(example).dtype == np.float32 else np.int32)
        for number, row in enumerate(members):
            value = np.asarray(row[name])
            part: Any = (number, *map(slice, value.shape))
            field[part] = value
        batch[name] = field
    return batch


def _axes(rank: int, has_candidates: bool) -> str:
    if rank == 1 and has_candidates:
        return "C"
    return ("", "L", "CL")[rank]


def _padded_candidates(candidates: np.ndarray) -> np.ndarray:
    """Return the number of candidates to which each row is padded, so that batches have few shapes.

    candidates: the number of candidates of each row.

    If the numbers differ, each is rounded up to a power of two, or to the largest number if that is less.
    """
    if not len(candidates) or candidates.min() == candidates.max():
        return candidates
    powers = 2 ** np.ceil(np.log2(candidates)).astype(np.int64)
    return np.minimum(powers, candidates.max())
