"""The kinds of characters that make up words, and which tokens of a vocabulary begin a word."""

import re
import string
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ag_jax.data.sentencepiece_models import SPACE

_INSIDE = re.compile(r"['’.,:/&@‐-]")  # what joins the characters around it to one word
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
_BYTES = re.compile("(?:<0x[0-9A-F]{2}>)+")  # parts of a character, as `Tokenizer.tokens` writes them


class Borders(NamedTuple):
    """Where words begin and end, by token id: booleans `V`.

    begins_V: whether a word begins at a token, unless the token before it is white space alone.
    ends_V: whether a word ends with a token, whatever follows.
    is_space_V: whether a token is white space alone; the next token belongs to the same word, whatever it is.
    """

    begins_V: np.ndarray
    ends_V: np.ndarray
    is_space_V: np.ndarray


def kind(character: str) -> str:
    """Return `u` for scripts without spaces, `i` for what joins words, `p` for other marks, `w` for all but spaces."""
    if character.isspace():
        return " "
    if _UNSPACED.match(character):
        return "u"
    if _INSIDE.match(character):
        return "i"
    is_mark = unicodedata.category(character)[0] == "P" and character != "_"
    return "p" if is_mark else "w"


def whole(vocabulary_size: int) -> Borders:
    """Return where words begin and end if every token of a vocabulary is a word."""
    is_word_V = np.ones(vocabulary_size, bool)
    return Borders(is_word_V, is_word_V, ~is_word_V)


def borders(tokens: Sequence[str], continuation: str = "") -> Borders:
    """Return where words begin and end in rows of the tokens of a vocabulary.

    tokens: all tokens in the order of their ids, as `Tokenizer.tokens` returns them.
    continuation: what is before a token that continues a word, such as "##"; "" if spaces tell where words begin.

    With a `continuation`, a word begins at every token without it (BERT). Otherwise a word begins at a token that
    begins with white space, and ends with one that ends with it. A token that is only punctuation or ASCII symbols is a
    word, as is one of a script without spaces (Chinese, Japanese, Thai, Lao, Khmer, Burmese). Any other token continues
    the word before it, unless that has ended. The parts of a character that is split into bytes belong to the word of
    its first part.

    Raises ValueError if the tokens do not tell where words begin.
    """
    if continuation:
        begins_V = np.array([not token.startswith(continuation) for token in tokens])
        return Borders(begins_V, *np.zeros((2, len(tokens)), bool))
    found = np.array([*map(_borders, tokens)])
    if not found[:, 3].any():
        raise ValueError(
            "data.masking.unit=word needs tokens that tell where words begin, by white space or by a mark such as ##, "
            "got a tokenizer without such tokens: set data.masking.unit=token, or take another tokenizer"
        )
    return Borders(*found.T[:3])


def _borders(token: str) -> tuple[bool, bool, bool, bool]:
    """Return the three values of `Borders` for a token, and whether white space is at one of its ends."""
    text = _BYTES.sub(_completed, token).replace(SPACE, " ").replace("\\n", "\n")
    bare = text.strip()
    if not bare:
        return True, False, bool(text), bool(text)
    is_mark = all(character in string.punctuation or kind(character) in "ip" for character in bare)
    begins = text[0].isspace() or is_mark or kind(bare[0]) == "u"
    ends = text[-1].isspace() or is_mark or kind(bare[-1]) == "u"
    return begins, ends and not _BYTES.fullmatch(token[-6:]), False, text[0].isspace() or text[-1].isspace()


def _completed(part: re.Match[str]) -> str:
    """Return the first character of Unicode that begins with these bytes; no letter for bytes that begin none.

    Parts of a character are no white space, although the first character that begins like “ is a wide space.
    """
    content = bytes.fromhex(part[0].replace("<0x", "").replace(">", ""))
    length = next((length for length, least in ((4, 0xF0), (3, 0xE0), (2, 0xC0)) if content[0] >= least), 1)
    character = (content + b"\x80" * length)[:length].decode(errors="replace")
    return "\ufffd" if character.isspace() and len(content) < length else character


def first_tokens(starts_W: np.ndarray, stops_W: np.ndarray, spans_T2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (index of the token in which each word begins, whether the word has a token), both `W`.

    A word begins in the first token that ends after its first character. A word has no token if the tokenizer drops all
    of its characters: the index is then that of a later word's token, or the number of tokens.

    starts_W, stops_W: index of the first character of each word, and of the one after its last.
    spans_T2: the same of each token.
    """
    token_W = np.searchsorted(spans_T2[:, 1], starts_W, side="right")
    return token_W, np.append(spans_T2[:, 0], np.iinfo(np.int64).max)[token_W] < stops_W
