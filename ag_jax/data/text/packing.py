"""Several texts in one row, each to be attended to on its own: rows that are shorter than they may be waste less.

Best fit over the rows that are open: a text goes where it leaves the least room, or else into a new row. When more than
`OPEN_ROWS` are open, the fullest is closed. So memory does not grow with the text, and the result depends on the order of the
texts alone.
"""

import bisect
from collections.abc import Iterable, Iterator

import numpy as np

from ag_jax.data.text.formats import Row

OPEN_ROWS = 256


def pack(texts: Iterable[Row], length: int, open_rows: int = OPEN_ROWS) -> Iterator[Row]:
    """Rows of at most `length` tokens that hold every text once, in whole; `Row.text_starts` says where each begins.

    Rows come in the order in which they are closed, the texts of a row in the order of `texts`. Texts without a second
    segment, of at most `length` tokens.
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
