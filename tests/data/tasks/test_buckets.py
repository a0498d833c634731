"""Batches: every row once, few shapes, little padding, an order that is a function."""

import itertools

import hypothesis.strategies as st
import numpy as np
from hypothesis import given, settings

from ag_jax.data.tasks import buckets
from ag_jax.data.tasks.buckets import batches, bucket_lengths, plan, steps
from ag_jax.data.tasks.rows import Features

PAD = 9


def features(sizes, candidates=None) -> Features:
    """Rows whose tokens say which row and which candidate they are of."""
    rows = []
    for number, size in enumerate(sizes):
        shape = (candidates[number], size) if candidates else (size,)
        row = {"tokens": np.full(shape, 100 + number, np.int32), "segment_ids": np.ones(shape, np.int8)}
        row |= {"labels": np.full(shape[0], number, np.float32) if candidates else np.int32(number)}
        rows.append(row | {"weights": np.float32(1)})
    return Features(rows, np.arange(len(rows), dtype=np.int32), 0, PAD)


@given(st.lists(st.integers(1, 90), min_size=1, max_size=60), st.integers(1, 13), st.booleans(), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_an_epoch_holds_every_row_once_in_as_few_batches_as_can_be(sizes, batch_size, shuffle, epoch):
    given = {"max_length": 90, "seed": 1, "epoch": epoch, "shuffle": shuffle}
    made = list(batches(features(sizes), batch_size, **given))
    rows = np.concatenate([batch["rows"] for batch in made])
    assert sorted(rows[rows >= 0]) == list(range(len(sizes)))
    assert len(made) == steps(len(sizes), batch_size) == -(-len(sizes) // batch_size)
    assert len({batch["tokens"].shape for batch in made}) <= buckets.LENGTHS
    assert sum((batch["rows"] < 0).any() for batch in made) <= 1
    kinds = dict.fromkeys(("rows", "tokens", "segment_ids", "labels"), np.int32) | {"weights": np.float32}
    for batch in made:
        for number, row in enumerate(batch["rows"]):
            size = sizes[row] if row >= 0 else 0
            tokens = batch["tokens"][number]
            assert (tokens[:size] == 100 + row).all() and (tokens[size:] == PAD).all()
            assert batch["segment_ids"][number].sum() == size
            assert batch["weights"][number] == (row >= 0) and batch["labels"][number] == max(row, 0)
        assert {name: field.dtype for name, field in batch.items()} == kinds
    full = [batch["rows"].tolist() for batch in batches(features(sizes), batch_size, drop_last=True, **given)]
    assert len(full) == steps(len(sizes), batch_size, drop_last=True) == len(sizes) // batch_size
    assert all(min(rows) >= 0 for rows in full)


def test_order_is_a_function_of_seed_and_epoch():
    given_features = features([5, 40, 17, 80] * 20)

    def order(**key):
        return [batch["rows"].tolist() for batch in batches(given_features, 7, max_length=90, **key)]

    assert order(shuffle=True, seed=1, epoch=2) == order(shuffle=True, seed=1, epoch=2)
    orders = [order(shuffle=True, seed=seed, epoch=epoch) for seed, epoch in itertools.product(range(3), range(3))]
    assert all(one != other for one, other in itertools.combinations(orders, 2))
    fixed = order(shuffle=False, seed=1, epoch=2)
    assert fixed == order(shuffle=False)
    lengths = [len(given_features.rows[row]["tokens"]) for rows in fixed for row in rows if row >= 0]
    assert lengths == sorted(lengths)
    # Short batches come between long ones.
    shapes = [planned.length for planned in plan(given_features, 7, 90, seed=0, epoch=0, shuffle=True)]
    assert shapes != sorted(shapes) and shapes != sorted(shapes, reverse=True)


@given(st.lists(st.integers(1, 70), min_size=1, max_size=40), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_the_lengths_are_the_best_of_all_choices(sizes, most):
    sizes = np.asarray(sizes)
    found = bucket_lengths(sizes, 70, most)
    options = sorted({min(-(-size // buckets.MULTIPLE) * buckets.MULTIPLE, 70) for size in range(1, sizes.max() + 1)})
    chosen = [some for count in range(1, most + 1) for some in itertools.combinations(options, count)]

    def cost(lengths):
        return np.asarray(lengths)[np.searchsorted(lengths, sizes)].sum()

    assert cost(found) == min(cost(lengths) for lengths in chosen if lengths[-1] >= sizes.max())
    assert len(found) <= most and set(found) <= set(options)


def test_lengths_can_be_given():
    made = plan(features([5, 40, 17]), 1, 64, shuffle=False, allowed_lengths=(32, 64))
    assert [planned.length for planned in made] == [32, 32, 64]
    assert plan(features([]), 3, 64, shuffle=True) == []


def test_candidates_of_equal_and_of_different_number():
    equal = next(batches(features([5, 7], [3, 3]), 4, max_length=32, shuffle=False))
    assert equal["tokens"].shape == (4, 3, 8) and equal["labels"].shape == (4, 3)
    made = list(batches(features([5, 7, 30, 6, 9], [2, 3, 9, 5, 8]), 1, max_length=32, shuffle=False))
    shapes = {int(batch["rows"][0]): batch["tokens"].shape[1:] for batch in made}
    assert shapes == {0: (2, 8), 1: (4, 8), 2: (9, 32), 3: (8, 8), 4: (8, 16)}
    batch = next(batch for batch in made if batch["rows"][0] == 1)
    assert (batch["tokens"][0, :3, :7] == 101).all() and (batch["tokens"][0, 3] == PAD).all()
    assert batch["labels"][0].tolist() == [1, 1, 1, 0]
