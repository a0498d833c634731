"""Checks of the arguments that pipelines are called with."""

from collections.abc import Iterable
from typing import Any

from ag_jax.data.json_files import check_unicode

BATCH_SIZE = 16  # rows that are computed together by default


def check_batch_size(batch_size: Any) -> int:
    """Return a batch size. Raises ValueError unless it is a whole number of at least 1."""
    if not _is_count(batch_size):
        raise ValueError(
            f"batch_size must be a whole number of at least 1, got {batch_size!r}: it is the most texts that are "
            "computed together"
        )
    return int(batch_size)


def check_top_k(top_k: Any) -> int | None:
    """Return the number of best guesses, None for all. Raises ValueError for anything but None and whole numbers from
    1 on.
    """
    if top_k is not None and not _is_count(top_k):
        raise ValueError(
            f"top_k must be a whole number of at least 1, or None for all, got {top_k!r}: it is the number of best "
            "guesses to return"
        )
    return None if top_k is None else int(top_k)


def one_or_many(given: Any, what: str = "text") -> tuple[list[str], bool]:
    """Return texts as a list, and whether a single text was given. Raises ValueError for what is no text.

    what: the noun for a text in messages.
    """
    if isinstance(given, str):
        check_unicode(given, f"the {what}")
        return [given], True
    texts = items_of(given, f"a {what} (str), or a list of them")
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise ValueError(
                f"expected a str for {what} {number} of {len(texts)}, got {_shown(text)}: give a {what}, or a list of "
                "them"
            )
        check_unicode(text, f"{what} {number} of {len(texts)}")
    return texts, False


def items_of(given: Any, expected: str) -> list[Any]:
    """Return the items of a list or of another iterable. Raises ValueError for what has none, and for a dict.

    expected: what the argument should be, for the message.
    """
    if isinstance(given, (dict, bytes, str)) or not isinstance(given, Iterable):
        hint = " Give texts as arguments, not as a dict." if isinstance(given, dict) else ""
        raise ValueError(f"expected {expected}, got {_shown(given)}.{hint}")
    return list(given)


def pairs_of(first: Any, second: Any) -> tuple[list[tuple[str, str | None]], bool]:
    """Return texts and pairs of texts as a list of pairs, and whether a single one was given.

    first: a text; a pair as a tuple; or a list of texts and pairs.
    second: the second text of the pair; of a list of first texts, the list of the second texts; or None.

    The second text of a pair is None for a text without one. Raises ValueError for anything else.
    """
    if second is not None:
        firsts, single = one_or_many(first, "first text")
        seconds, single_second = one_or_many(second, "second text")
        if single != single_second or len(firsts) != len(seconds):
            raise ValueError(
                f"expected a second text for each first text, got {_counted(firsts, single)} and "
                f"{_counted(seconds, single_second)}: give two texts, or two lists of the same length"
            )
        return [*zip(firsts, seconds, strict=True)], single
    if isinstance(first, str):
        return [(text, None) for text in one_or_many(first)[0]], True
    expected = "a text (str), a pair of texts as two arguments or a tuple, or a list of texts and pairs"
    given = items_of(first, expected)
    if isinstance(first, tuple) and _is_pair(first):
        return pairs_of(*first)
    found: list[tuple[str, str | None]] = []
    for number, item in enumerate(given, 1):
        if isinstance(item, str):
            found.append((item, None))
        elif isinstance(item, (tuple, list)) and _is_pair(item):
            found.append((item[0], item[1]))
        else:
            raise ValueError(
                f"expected a text or a pair of texts as item {number} of {len(given)}, got {_shown(item)}: give "
                f"{expected}"
            )
        for text in filter(None, found[-1]):
            check_unicode(text, f"item {number} of {len(given)}")
    return found, False


def _is_pair(item: Any) -> bool:
    return len(item) == 2 and all(isinstance(text, str) for text in item)


def _is_count(value: Any) -> bool:
    try:
        return not isinstance(value, (bool, float, str)) and int(value) == value and value >= 1
    except (TypeError, ValueError):
        return False


def _counted(texts: list[str], single: bool) -> str:
    return "one text" if single else f"a list of {len(texts)}"


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"
