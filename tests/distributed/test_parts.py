"""Shares of a work: every piece is in one of them, and none is empty."""

import pytest

from ag_jax.distributed.parts import ALL, numbers_of, parse_part


@pytest.mark.parametrize(("count", "shares"), [(1, 1), (7, 3), (7, 7), (12, 5)])
def test_every_piece_is_in_one_share(count, shares):
    found = [numbers_of(parse_part(f"{number}/{shares}"), count, "runs") for number in range(1, shares + 1)]
    assert sorted(number for share in found for number in share) == list(range(count))
    assert found[-1] == {number for number in range(count) if number % shares == shares - 1}
    assert all(found) and numbers_of(ALL, count, "runs") == set(range(count))
    assert numbers_of(ALL, 0, "runs") == set()


def test_more_shares_than_pieces():
    with pytest.raises(ValueError, match=r"--part=1/7.*only 4 runs.*3 of the parts.*at most 4"):
        numbers_of((1, 7), 4, "runs")


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/2/3", "", "01/2", "1/ 2", "-1/2"])
def test_wrong_parts(text):
    with pytest.raises(ValueError, match="--part must be"):
        parse_part(text)
