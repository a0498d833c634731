"""What is counted within texts, against loops; every function under jit and on any arrangement of texts and padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ag_jax.attention import segments

LENGTH = 13
# Runs of texts (True) and of padding (False) until the row is full; two runs of padding may follow one another.
RUNS = st.lists(st.tuples(st.booleans(), st.integers(1, 7)), min_size=13, max_size=13)


def row_of(runs):
    """The numbers of a row; its texts count from 1."""
    row, number = [], 0
    for is_text, size in runs:
        number += is_text
        row += [number if is_text else 0] * size
    return row[:LENGTH]


@pytest.fixture(scope="module")
def functions():
    """Compiled, for three rows."""
    names = ("same_segment_mask", "sizes", "order", "is_first", "totals")
    return {name: jax.jit(getattr(segments, name)) for name in names}


@settings(deadline=None, max_examples=60)
@given(runs=st.lists(RUNS, min_size=3, max_size=3), seed=st.integers(0, 99))
def test_everything_equals_loops(functions, runs, seed):
    segments_BL = np.array([row_of(row) for row in runs], np.int32)
    values_BL = np.random.default_rng(seed).random(segments_BL.shape).astype(np.float32)
    found = {
        name: np.asarray(functions[name](segments_BL)) for name in ("same_segment_mask", "sizes", "order", "is_first")
    }
    totals_BL = functions["totals"](values_BL, segments_BL)
    for b, row in enumerate(segments_BL.tolist()):
        for p, number in enumerate(row):
            members = [k for k in range(LENGTH) if number and row[k] == number]
            assert found["same_segment_mask"][b, p].tolist() == [k in members for k in range(LENGTH)]
            assert found["sizes"][b, p] == len(members)
            assert found["order"][b, p] == (members.index(p) if members else 0)
            assert found["is_first"][b, p] == (p in members[:1])
            np.testing.assert_allclose(totals_BL[b, p], values_BL[b, members].sum(), rtol=1e-6)


def test_counts_are_whole_numbers_and_totals_keep_their_type():
    segments_BL = jnp.array([[1, 1, 2, 0]])
    assert segments.sizes(segments_BL).dtype == segments.order(segments_BL).dtype == jnp.int32
    assert segments.is_first(segments_BL).dtype == bool
    np.testing.assert_array_equal(segments.totals(jnp.array([[3, 4, 5, 6]]), segments_BL), [[7, 7, 5, 0]])


def test_a_small_text_beside_a_large_one_keeps_its_digits():
    values_BL = jnp.array([[1e7, 1e7, 0.1, 0.2]], jnp.float32)
    np.testing.assert_allclose(segments.totals(values_BL, jnp.array([[1, 1, 2, 2]])), [[2e7, 2e7, 0.3, 0.3]], rtol=1e-6)
