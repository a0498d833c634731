"""The rows of a validation, against plain arithmetic."""

import numpy as np
import pytest

from ag_jax.data import order


@pytest.mark.parametrize(
    ("count", "batch", "most", "expected"),
    [
        (5, 2, None, [[0, 1], [2, 3], [4, -1]]),
        (5, 2, 5, [[0, 1], [2, 3], [4, -1]]),
        (5, 2, 9, [[0, 1], [2, 3], [4, -1]]),
        (10, 2, 3, [[0, 3], [6, -1]]),
        (7, 4, 4, [[0, 1, 3, 5]]),
        (7, 3, 1, [[0, -1, -1]]),
    ],
)
def test_a_bounded_validation_has_evenly_spaced_rows(count, batch, most, expected):
    assert [rows.tolist() for rows in order.once(count, batch, most=most)] == expected
    assert order.once_count(count, most) == sum(row >= 0 for rows in expected for row in rows)
    some = np.array([batch - 1, 0])
    found = [rows.tolist() for rows in order.once(count, batch, some, most)]
    assert found == [[rows[-1], rows[0]] for rows in expected]
