"""Rows: what is where in them, what is cut, and which pieces belong to which word."""

import dataclasses

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from ag_jax.data.tasks import rows
from ag_jax.data.tasks.catalogue import TASKS
from ag_jax.data.tasks.encoding import pieces_of_words
from ag_jax.data.tasks.task import Choices, Examples, TaggedSentence, Texts
from ag_jax.finetuning.kinds import encode
from tests.data.tasks.conftest import KINDS


def examples(*items) -> Examples:
    return Examples(items, "a test")


@pytest.mark.parametrize("kind", KINDS)
def test_places_are_the_letters_of_the_pieces(family, kind):
    text = "the cat’s “Grüße”  sat, on 😀 red brick."
    ((ids, places),) = family[kind].locate_batch([text])
    found = "".join(text[begin:end] for begin, end in dict.fromkeys(places))  # pieces of one letter share its place
    assert found.replace(" ", "") == text.replace(" ", "")
    for piece, (begin, end) in zip(family[kind].tokens(ids), places, strict=True):
        plain = piece.removeprefix("##").strip("▁")
        assert not (plain.isascii() and plain.isalpha()) or text[begin:end].strip().lower() == plain.lower()


def test_a_text_and_a_pair_have_their_separators_and_segments(family):
    """One text of a pair may be empty, as in QQP."""
    texts = [("the cat", "sat on"), ("the cat", None), ("the cat", ""), ("", "the cat")]
    given = examples(*(Texts(str(n), *pair, n if n != 1 else None) for n, pair in enumerate(texts)))
    for kind, separators, segment in (("byte_bpe", 2, 0), ("wordpiece", 1, 1)):
        tokenizer = family[kind]
        special = tokenizer.specials
        features = encode(TASKS["mnli"], given, tokenizer, 32, 2 if segment else 1)
        for row, (first, second) in zip(features.rows, texts, strict=True):
            expected = [special.begin, *tokenizer.encode(first)]
            begin = len(expected) + separators
            if second is not None:
                expected += [special.end] * separators + tokenizer.encode(second)
            expected += [special.end]
            assert row["tokens"].tolist() == expected and row["tokens"].dtype == np.int32
            assert row["segment_ids"].tolist() == [1] * len(expected)
            types = [segment if second is not None and place >= begin else 0 for place in range(len(expected))]
            assert row["token_type_ids"].tolist() == types
        assert [(row["labels"], row["weights"]) for row in features.rows] == [(0, 1), (0, 0), (2, 1), (3, 1)]
        assert features.owner.tolist() == [0, 1, 2, 3] and features.truncated == 0 and features.pad == special.pad


def test_regression_is_scaled_to_one(bpe):
    task = dataclasses.replace(TASKS["stsb"], span=(-1.0, 4.0))
    features = encode(task, examples(*[Texts("0", "a", "b", number) for number in (-1.0, 0.0, 4.0)]), bpe, 32, 1)
    np.testing.assert_allclose([row["labels"] for row in features.rows], [0, 0.2, 1], rtol=1e-6)
    assert features.rows[0]["labels"].dtype == np.float32


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 25))
@settings(max_examples=60, deadline=None)
def test_the_longer_text_is_cut_first(one, two, room):
    first, second = [("a", at) for at in range(one)], [("b", at) for at in range(two)]
    slow = [list(first), list(second)]
    while len(slow[0]) + len(slow[1]) > room:
        slow[len(slow[1]) >= len(slow[0])].pop()
    assert [list(part) for part in rows.longest_first(first, second, room)] == slow


def test_a_passage_gives_way_to_the_end_of_a_question(bpe):
    passage, question = list(range(100)), list(range(200, 220))
    assert rows.first_gives_way(passage, question, 30, 128) == (passage[:10], question)
    assert rows.first_gives_way(passage, question, 30, 5) == (passage[:25], question[15:])
    assert rows.first_gives_way(passage, question, 15, 128) == ([], question[5:])
    assert rows.first_gives_way(passage[:3], question, 30, 128) == (passage[:3], question)
    long = Choices("0", (("the cat " * 40, "a mat"), ("the cat", "a dog")), (1,))
    short = Choices("1", (("the cat", "a mat"), ("the cat", "a dog")), None)
    features = encode(TASKS["dream"], examples(long, short), bpe, 24, 1)
    assert features.truncated == 1
    row = features.rows[0]
    assert row["tokens"].shape == row["segment_ids"].shape == (2, 24)
    assert row["tokens"][0, -1 - len(bpe.encode("a mat")) : -1].tolist() == bpe.encode("a mat")
    length = int(row["segment_ids"][1].sum())
    assert length == 4 + len(bpe.encode("the cat")) + len(bpe.encode("a dog"))
    assert set(row["tokens"][1, length:]) == {bpe.specials.pad}
    assert row["labels"].tolist() == [0, 1] and row["choice_weights"].tolist() == [1, 1] and row["weights"] == 1
    assert features.rows[1]["labels"].tolist() == [0, 0] and features.rows[1]["weights"] == 0


def test_several_right_candidates_share_the_label(bpe):
    example = Choices("0", (("the", "cat"),) * 5, (1, 3, 4), tuple("abcde"))
    (row,) = encode(TASKS["record"], examples(example), bpe, 16, 1).rows
    np.testing.assert_allclose(row["labels"], [0, 1 / 3, 0, 1 / 3, 1 / 3], rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@given(
    words=st.lists(
        st.text("catdogGüß’😀1.,ﬁ\u00a0\u200b\u0301", min_size=1, max_size=6).filter(str.strip), min_size=1, max_size=7
    )
)
@settings(max_examples=25, deadline=None)
def test_every_word_has_pieces_and_together_they_are_the_text(family, kind, words):
    tokenizer = family[kind]
    text = " ".join(words)
    ((ids, places),) = tokenizer.locate_batch([text])
    begins = [begin for begin, _ in places]
    assert ids == tokenizer.encode(text) and begins == sorted(begins)
    assert all(0 <= begin <= end <= len(text) for begin, end in places)
    pieces = pieces_of_words(tuple(words), ids, places, tokenizer.specials.unknown)
    assert len(pieces) == len(words) and all(pieces)
    if sum(map(len, pieces)) == len(ids):
        assert [id for word in pieces for id in word] == ids


def test_words_that_a_tokenizer_drops_are_unknown(family):
    tokenizer, words = family["wordpiece"], ("cat", "\u200b", "dog")
    ((ids, places),) = tokenizer.locate_batch([" ".join(words)])
    expected = [tokenizer.encode("cat"), [tokenizer.specials.unknown], tokenizer.encode("dog")]
    assert pieces_of_words(words, ids, places, tokenizer.specials.unknown) == expected


@pytest.mark.parametrize("kind", ["byte_bpe", "sentencepiece_unigram"])
def test_tags_stand_at_the_first_piece_of_their_word(family, kind):
    tokenizer = family[kind]
    words, tags = ("the", "Qxz", "cat", "sat"), ("O", "B-PER", "I-PER", "B-LOC")
    task = TASKS["oromo_ner"]
    (row,) = (features := encode(task, examples(TaggedSentence("0", words, tags)), tokenizer, 32, 1)).rows
    at = np.flatnonzero(row["label_weights"])
    assert [task.labels[label] for label in row["labels"][at]] == list(tags)
    assert features.cut_words == features.truncated == 0
    assert row["tokens"][1:-1].tolist() == tokenizer.encode(" ".join(words))
    begins = [len(tokenizer.encode(" ".join(words[:number]))) for number in (1, 2, 3)]
    assert at.tolist() == [1, *(1 + begin for begin in begins)]
    unlabelled = encode(task, examples(TaggedSentence("0", words, None)), tokenizer, 32, 1).rows[0]
    assert unlabelled["label_weights"].tolist() == row["label_weights"].tolist() and unlabelled["weights"] == 0


def test_words_and_texts_that_are_cut_are_counted(bpe):
    long, short = TaggedSentence("0", ("cat",) * 40, ("O",) * 40), TaggedSentence("1", ("cat",), ("O",))
    features = encode(TASKS["wnut17"], examples(long, short), bpe, 12, 1)
    row = features.rows[0]
    kept = int(row["label_weights"].sum())
    assert len(row["tokens"]) == 12 and row["tokens"][-1] == bpe.specials.end and row["label_weights"][-1] == 0
    assert features.cut_words == 40 - kept > 0 and features.truncated == 1
    cut = encode(TASKS["sst2"], examples(Texts("0", "the cat " * 30, None, 0), Texts("1", "a", None, 0)), bpe, 12, 1)
    assert cut.truncated == 1 and len(cut.rows[0]["tokens"]) == 12 and cut.lost == 0
    with pytest.raises(ValueError, match="max_length.*12.*11"):
        encode(TASKS["sst2"], examples(Texts("0", "a", None, 0)), bpe, 11, 1)
