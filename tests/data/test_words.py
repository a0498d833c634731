"""Where words begin and end, by hand."""

import numpy as np
import pytest
import tokenizers as huggingface

from ag_jax.data import tokenizers, words
from ag_jax.data.config import TokenizerConfig
from ag_jax.data.tokenizer_backends import ROBERTA_SPECIALS, HuggingFace
from tests.data.conftest import text

# Token, whether a word begins at it, and whether one ends with it.
BY_SPACE = [
    ("▁the", True, False),
    ("ing", False, False),
    ("'t", False, False),  # of "don't"
    ("the▁", False, True),  # of sentencepiece models with spaces behind words
    ("▁", True, False),  # the space of the word after it
    ("\\nI", True, False),
    (".", True, True),
    ("▁--", True, True),
    ("$", True, True),
    ("▁a=", True, False),
    ("天气", True, True),
    ("▁กา", True, True),
    ("<0xE5><0xA4>", True, False),  # the first two bytes of 天
    ("天<0xE5>", True, False),
    ("<0xA9>", False, False),
    ("<0xC3>", False, False),  # of é
    ("<0xF0><0x9F>", False, False),  # of an emoji
    ("<0xE2>", False, False),  # of a quotation mark, or of many others
    ("<0xE2><0x80>", False, False),
    ("<0x0A>", True, False),
    ("", True, False),
]


def test_borders_by_space():
    tokens, begins, ends = zip(*BY_SPACE, strict=True)
    found = words.borders(tokens)
    assert (found.begins_V.tolist(), found.ends_V.tolist()) == ([*begins], [*ends])
    assert [token for token, is_space in zip(tokens, found.is_space_V, strict=True) if is_space] == ["▁", "<0x0A>"]
    with pytest.raises(ValueError, match="unit=token"):
        words.borders(["the", "ing", "."])
    assert words.whole(2).begins_V.all() and not words.whole(2).is_space_V.any()


def test_borders_by_the_mark_of_the_library():
    """WordPiece's ##, of Chinese, too, where a tokenizer has it; and </w> of another BPE."""
    found = words.borders(["the", "##ing", "天", "##天", "##."], "##")
    assert found.begins_V.tolist() == [True, False, True, False, False] and not found.ends_V.any()
    trained = tokenizers.train(TokenizerConfig(kind="wordpiece", vocabulary_size=100), [text(0, 200)])
    begins = [not token.startswith("##") for token in trained.tokens(range(trained.vocabulary_size))]
    assert trained.word_borders.begins_V.tolist() == begins and not all(begins)
    vocabulary = {piece: id for id, piece in enumerate([*ROBERTA_SPECIALS, "a", "b", "b</w>", "ab</w>"])}
    model = huggingface.models.BPE(vocabulary, [("a", "b</w>")], unk_token="<unk>", end_of_word_suffix="</w>")
    found = tokenizers.Tokenizer(HuggingFace(huggingface.Tokenizer(model)), "a test").word_borders
    np.testing.assert_array_equal(np.flatnonzero(found.ends_V), [7, 8])
    assert not found.begins_V[5:].any()
