"""Pack several short texts into one row, without attention between them, to reduce padding.

Best fit over the open rows: a text is put into the row in which it leaves the least room, or into a new row if it fits
in none. When more than `OPEN_ROWS` are open, the fullest is closed, so that memory does not grow with the corpus. The
result depends only on the order of the texts.
"""

import bisect
from collections.abc import Iterable, Iterator

import numpy as np

from ag_jax.data.text.formats import Row

OPEN_ROWS = 256


def pack(texts: Iterable[Row], length: int, open_rows: int = OPEN_ROWS) -> Iterator[Row]:
    """Yield rows of at most `length` tokens that together contain every text once, uncut.

    texts: rows of one text each, without a second segment, of at most `length` tokens.
    length: largest number of tokens of a row.
    open_rows: largest number of rows that are open at a time.

    `Row.text_starts` has the start of every text. Rows come in the order in which they are closed, and the texts of a
    row in the order of `texts`.
    """
    members: dict[int, list[np.ndarray]] = {}
    by_room: list[tuple[int, int]] = []  # (room left, number of the row), ascending: the fullest row is the first

    def close(place: int) -> Row:
        _, number = by_room.pop(place)
        tokens = members.pop(number)
        return Row(np.concatenate(tokens), text_starts=np.cumsum([0, *map(len, tokens[:-1])]))

    for number, text in enumerate(texts):
        size = len(text.tokens)
        place = bisect.bisect_left(by_room, (size, -1))
        room, row = by_room.pop(place) if place < len(by_room) else (length, number)
        members.setdefault(row, []).append(text.tokens)
        bisect.insort(by_room, (room - size, row))
        if len(by_room) > open_rows:
            yield close(0)
    while by_room:
        yield close(0)
