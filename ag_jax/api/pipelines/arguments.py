"""Checks of the arguments that pipelines are called with."""

import operator
from collections.abc import Iterable
from typing import Any

BATCH_SIZE = 16  # rows that are computed together by default


def check_batch_size(batch_size: Any) -> int:
    """Return a batch size as an int. Raises ValueError unless it is a whole number of at least 1."""
    return _count(batch_size, "batch_size", "")


def check_top_k(top_k: Any) -> int | None:
    """Return the number of guesses as an int, or None for all. Raises ValueError unless it is at least 1."""
    return None if top_k is None else _count(top_k, "top_k", ", or None for all")


def _count(value: Any, name: str, others: str) -> int:
    """Return a whole number of at least 1. Raises ValueError for anything else, also for True and 1.0.

    name: the argument, for the message.
    others: what the argument may be instead, for the message.
    """
    try:
        count = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        count = 0
    if count < 1:
        raise ValueError(f"{name} must be a whole number of at least 1{others}, got {value!r}")
    return count


def one_or_many(argument: Any, noun: str = "text") -> tuple[list[str], bool]:
    """Return texts as a list, and whether a single text was given. Raises ValueError for what is no text.

    noun: what a text is called in messages.
    """
    if isinstance(argument, str):
        return [argument], True
    texts = items_of(argument, f"a {noun} (str), or a list of them")
    for number, text in enumerate(texts, 1):
        # Tokenizers take a pair of texts, too, and encode it as one row.
        if not isinstance(text, str):
            raise ValueError(f"expected a str for {noun} {number} of {len(texts)}, got {_shortened(text)}")
    return texts, False


def items_of(argument: Any, expected: str) -> list[Any]:
    """Return the items of a list or of another iterable. Raises ValueError for other values, dicts and texts.

    expected: what the argument should be, for the message.
    """
    if hasattr(argument, "columns"):  # iterating over a data frame gives the names of its columns
        raise ValueError(f"expected {expected}, got a data frame: give one of its columns, as in frame['text']")
    if isinstance(argument, (dict, bytes, str)) or not isinstance(argument, Iterable):
        raise ValueError(f"expected {expected}, got {_shortened(argument)}")
    return list(argument)


def pairs_of(first: Any, second: Any) -> tuple[list[tuple[str, str | None]], bool]:
    """Return (list of pairs (first text, second text or None), whether a single text or pair was given).

    first: a text; a pair as a tuple; or a list of texts and pairs.
    second: the second text of the pair; of a list of first texts, the list of the second texts; or None.

    The second text of a pair is None for a text without one. Raises ValueError for anything else.
    """
    if second is not None:
        firsts, single = one_or_many(first, "first text")
        seconds, _ = one_or_many(second, "second text")
        return [*zip(firsts, seconds, strict=True)], single
    if isinstance(first, str):
        return [(first, None)], True
    if isinstance(first, tuple) and _is_pair(first):  # a list of two texts is no pair
        return [first], True
    expected = "a text (str), a pair of texts as two arguments or a tuple, or a list of texts and pairs"
    items = items_of(first, expected)
    pairs: list[tuple[str, str | None]] = []
    for number, item in enumerate(items, 1):
        if isinstance(item, str):
            pairs.append((item, None))
        elif isinstance(item, (tuple, list)) and _is_pair(item):
            pairs.append((item[0], item[1]))
        else:
            raise ValueError(
                f"expected a text or a pair of texts as item {number} of {len(items)}, got {_shortened(item)}"
            )
    return pairs, False


def _is_pair(item: Any) -> bool:
    return len(item) == 2 and all(isinstance(text, str) for text in item)


def _shortened(value: Any) -> str:
    """Return the start of a value and its type, for a message."""
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"
