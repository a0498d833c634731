"""Pack several short texts into one row, without attention between them, to reduce padding.

Best fit over the open rows: a text is put into the row in which it leaves the least room, or into a new row if it fits
in none. When more than `OPEN_ROWS` are open, the fullest is closed, so that memory does not grow with the corpus. The
result depends only on the order of the texts.

Texts may have several sides, such as a text and its translation. The sides of a text go into the same row, which has
room for `length` tokens of each side; the room of a row is then the sum over its sides.

Shape letters: O open rows, Z sides of a text.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from ag_jax.data.store import Row, joined_pointers

OPEN_ROWS = 256
Sides = Sequence[Row]


def pack(texts: Iterable[Sides], sides: int, length: int, open_rows: int = OPEN_ROWS) -> Iterator[Sides]:
    """Yield rows of at most `length` tokens a side that together contain every text once, uncut.

    texts: the sides of each text, such as source and target: rows of one text each, of at most `length` tokens.
    sides: number of sides of a text.
    length: largest number of tokens of a side of a row.
    open_rows: largest number of rows that are open at a time.

    `Row.text_starts` has the start of every text. Rows come in the order in which they are closed, and the texts of a
    row in the order of `texts`.
    """
    # Open rows in the order in which they were opened: the first of several equal ones is the oldest.
    room_OZ = np.zeros((open_rows + 1, sides), np.int64)
    members: list[list[Sides]] = []

    def close() -> Sides:
        # The fullest row, which loses least: a later text would hardly have fitted into it.
        fullest = int(room_OZ[: len(members)].sum(axis=1).argmin())
        room_OZ[fullest:-1] = room_OZ[fullest + 1 :]
        texts = members.pop(fullest)
        return tuple(_joined([text[side] for text in texts]) for side in range(sides))

    for text in texts:
        size_Z = np.array([len(side.tokens) for side in text])
        open_OZ = room_OZ[: len(members)]
        fitting = np.flatnonzero((open_OZ >= size_Z).all(axis=1))
        if len(fitting):  # the row in which least room is left (best fit)
            row = int(fitting[open_OZ[fitting].sum(axis=1).argmin()])
        else:
            row = len(members)
            members.append([])
            room_OZ[row] = length
        members[row].append(text)
        room_OZ[row] -= size_Z
        if len(members) > open_rows:
            yield close()
    while members:
        yield close()


def _joined(texts: Sequence[Row]) -> Row:
    """Return one row that holds the texts one after the other."""
    lengths = [len(text.tokens) for text in texts]
    pointers = joined_pointers([text.pointers for text in texts])
    return Row(np.concatenate([text.tokens for text in texts]), 0, False, np.cumsum([0, *lengths[:-1]]), pointers)
