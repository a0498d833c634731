"""Encode texts with gigatoken, the optional extra `fast`, as long as it gives the token ids of `tokenizers`."""

import importlib.util
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

Encode = Callable[[Sequence[str]], list[list[int]]]
CHECKED_CHARACTERS = 2**20  # of the first texts, whose ids are compared
SAMPLED = 256  # one of so many later texts is compared, too


def gigatoken_encoder(values: dict[str, Any]) -> Encode | None:
    """Return gigatoken's encoder of a tokenizer.json with the content `values`; None without gigatoken or its support.

    The encoder takes added tokens in a text for text.
    """
    if importlib.util.find_spec("gigatoken") is None:
        return None
    import gigatoken

    # It finds added tokens in a text, and has no setting that makes them text, so it must not know them.
    content = json.dumps({**values, "added_tokens": [], "post_processor": None})
    try:
        tokenizer = gigatoken.Tokenizer.from_json(content)
    except (RuntimeError, ValueError):  # of a part that it does not support
        return None
    return lambda texts: tokenizer.encode_batch_list(list(texts))


class CheckedEncoder:
    """A fast encoder whose ids are compared with those of another one: of the first texts, and of some later ones.

    At a difference among the first `CHECKED_CHARACTERS` characters, the other encoder is used from then on. Raises
    ValueError at a later one, because other texts before it may have wrong ids.

    fast: function that returns the token ids of texts.
    exact: function that returns the right ones.
    """

    def __init__(self, fast: Encode, exact: Encode):
        self._encode, self._exact = fast, exact
        self._unchecked = CHECKED_CHARACTERS

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text."""
        ids = self._encode(texts)
        if self._encode is self._exact:
            return ids
        if self._unchecked <= 0:
            if ids[::SAMPLED] != self._exact(texts[::SAMPLED]):
                raise ValueError(
                    "gigatoken gives other token ids than tokenizers, after equal ones at first: uninstall gigatoken, "
                    "and run the command again"
                )
            return ids
        self._unchecked -= sum(map(len, texts))
        exact = self._exact(texts)
        if ids != exact:
            text = next(text for text, one, other in zip(texts, ids, exact, strict=True) if one != other)
            message = f"expected the ids of tokenizers for {text[:80]!r}, got others: tokenizers is used from now on"
            print(f"data: gigatoken: {message}", file=sys.stderr, flush=True)
            self._encode = self._exact
        return exact
