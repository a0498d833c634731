"""Encode texts with gigatoken, the optional extra `fast`, which must give the token ids of `tokenizers`."""

import importlib.util
import json
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

    Raises ValueError at a difference. It does not go on with the other encoder, because texts before, or those of
    another process, may have wrong ids.

    fast: function that returns the token ids of texts.
    exact: function that returns the right ones.
    """

    def __init__(self, fast: Encode, exact: Encode):
        self._fast, self._exact = fast, exact
        self._characters = 0  # that were encoded

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text."""
        ids = self._fast(texts)
        compared = slice(None, None, SAMPLED if self._characters >= CHECKED_CHARACTERS else None)
        self._characters += sum(map(len, texts))
        for text, one, exact in zip(texts[compared], ids[compared], self._exact(texts[compared]), strict=True):
            if one != exact:
                raise ValueError(
                    f"expected the ids of tokenizers for {text[:80]!r}, got others from gigatoken: uninstall it, "
                    "delete what was prepared with it from the cache, and run the command again"
                )
        return ids
