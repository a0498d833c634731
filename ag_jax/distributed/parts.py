"""Division of work among processes that do not communicate with each other, by the flag `--part=K/N`."""

import re

Share = tuple[int, int]  # (K, N) for every N-th piece from the K-th on, counted from 1
ALL = (1, 1)


def parse_part(text: str) -> Share:
    """Parse the flag `--part=K/N` into (K, N), or raise ValueError for any other text."""
    match = re.fullmatch(r"([1-9][0-9]{0,5})/([1-9][0-9]{0,5})", text)
    if not match or int(match[1]) > int(match[2]):
        raise ValueError(f"--part must be K/N with K from 1 to N, such as --part=2/4, got {text!r}")
    return int(match[1]), int(match[2])


def numbers_of(share: Share, count: int, what: str) -> set[int]:
    """Return the indices, from 0, of the pieces of work in part K of N, given `share` = (K, N) and `count` pieces.

    what: what a piece is, in the plural, for the message.

    Raises ValueError if there are more shares than pieces, because some would be empty.
    """
    number, shares = share
    if shares > max(count, 1):
        raise ValueError(
            f"--part={number}/{shares} is one of {shares} parts, but there are only {count} {what}, so that "
            f"{shares - count} of the parts would have nothing to do: use at most {count} parts"
        )
    return set(range(number - 1, count, shares))
