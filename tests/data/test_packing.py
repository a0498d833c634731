"""Texts that share rows: no side overflows, and every text is there once, a pair with its translation."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ag_jax.data import packing
from ag_jax.data.parallel import layout
from ag_jax.data.store import Row

LENGTH = 19
SIZES = st.lists(st.tuples(st.integers(1, LENGTH), st.integers(1, LENGTH)), max_size=50)


def pairs_of(sizes):
    """Pairs of these lengths; pair i has the token i on the source and -i on the target side."""
    return [(Row(np.full(one, number)), Row(np.full(other, -number))) for number, (one, other) in enumerate(sizes, 1)]


def numbers(row) -> list[int]:
    """The pairs of a row, which must be the same on both sides, with whole texts."""
    source, target = ([text.tolist() for text in np.split(side.tokens, side.text_starts[1:])] for side in row)
    assert all(len(set(text)) == 1 for text in source + target)
    found = [text[0] for text in source]
    assert found == [-text[0] for text in target]
    return found


def plain_packing(sizes, open_rows):
    """Rows as lists of numbers of pairs: a search over all open rows for every pair."""
    rows, closed = [], []

    def room(row):
        return [LENGTH - sum(sizes[number - 1][side] for number in row) for side in (0, 1)]

    def total(row):
        return sum(room(row)), row[0]

    for number, size in enumerate(sizes, 1):
        fitting = [row for row in rows if room(row)[0] >= size[0] and room(row)[1] >= size[1]]
        if fitting:
            min(fitting, key=total).append(number)
        else:
            rows.append([number])
        if len(rows) > open_rows:
            closed.append(min(rows, key=total))
            rows.remove(closed[-1])
    return closed + sorted(rows, key=total)


@settings(max_examples=60, deadline=None)
@given(sizes=SIZES, open_rows=st.integers(1, 9))
def test_rows_are_those_of_the_plain_search(sizes, open_rows):
    made = list(packing.pack(pairs_of(sizes), 2, LENGTH, open_rows))
    assert [numbers(row) for row in made] == plain_packing(sizes, open_rows)
    for source, target in made:
        assert len(source.tokens) <= LENGTH and len(target.tokens) <= LENGTH
    made = [numbers(row) for row in packing.pack(layout._sorted(iter(pairs_of(sizes))), 2, LENGTH)]
    assert sorted(number for row in made for number in row) == list(range(1, len(sizes) + 1))


def test_pairs_are_sorted_in_groups_and_fill_rows_better(monkeypatch):
    """The lengths are like those in Multi30k: 16 tokens on average, and 3 more or less on the other side."""
    draws = np.random.default_rng(0)
    sources = np.clip(draws.gamma(10, 1.6, 3000), 4, 45).astype(int)
    targets = np.clip(sources + np.rint(draws.normal(0, 3, 3000)), 4, 50).astype(int)
    rows = list(packing.pack(layout._sorted(pairs_of(list(zip(sources, targets, strict=True)))), 2, 64))
    assert min(sources.sum(), targets.sum()) / (64 * len(rows)) > 0.94
    monkeypatch.setattr(layout, "SORTED_TOGETHER", 3)
    sizes = [(1, 2), (2, 2), (9, 1), (1, 2), (5, 5), (2, 1), (7, 7)]
    found = [[len(side.tokens) for side in pair] for pair in layout._sorted(pairs_of(sizes))]
    assert found == [[9, 1], [2, 2], [1, 2], [5, 5], [1, 2], [2, 1], [7, 7]]


def test_a_row_is_closed_when_too_many_are_open_and_not_sooner():
    taken = []

    def endless():
        for size in [20, 18, 19] * 9:
            taken.append(size)
            yield (Row(np.zeros(size)),)

    rows = packing.pack(endless(), 1, 24, open_rows=4)
    assert len(next(rows)[0].tokens) == 20 and len(taken) == 5
    for _ in range(9):
        next(rows)
    assert len(taken) == 14, "one text in, one row out: what is in memory does not grow"
    sizes = np.random.default_rng(0).integers(3, 513, 5000)
    packed = packing.pack(((Row(np.zeros(size)),) for size in sizes), 1, 512)
    assert sizes.sum() / (len(list(packed)) * 512) > 0.98
