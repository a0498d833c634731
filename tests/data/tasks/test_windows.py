"""Windows of contexts: every token is in one, and spans of tokens are spans of characters."""

import dataclasses

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from ag_jax.data.tasks.catalogue import TASKS
from ag_jax.data.tasks.task import Examples, Question
from ag_jax.data.tasks.windows import _begins, _widest
from ag_jax.evaluation.answers import normalized
from ag_jax.finetuning.kinds import encode
from tests.data.tasks.conftest import KINDS

CONTEXT = (
    "The cat sat on a mat, and the “old dog” ran to Grüße house. "
    "It rained all day (by the river) where 😀 red brick sat."
)
SQUAD1, SQUAD2 = TASKS["squad1"], TASKS["squad2"]


def encoded(tokenizer, *questions, task=SQUAD1, length=24, stride=5, **settings):
    return encode(task, Examples(questions, "a test"), tokenizer, length, 1, stride=stride, **settings)


def question(*answers, context=CONTEXT, text="where did the cat sit?"):
    return Question("0", text, context, tuple((answer, context.index(answer)) for answer in answers))


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_is_found_again_in_every_window_that_holds_it(family, kind):
    for answer in ("The cat", "a mat", "old dog", "Grüße", "by the river", "sat.", "😀", "It rained all day (by"):
        features = encoded(family[kind], question(answer), length=48, stride=3)
        held = 0
        assert len(features) > 3
        for row, places in zip(features.rows, features.characters, strict=True):
            if row["starts"]:
                held += 1
                found = CONTEXT[places[row["starts"], 0] : places[row["ends"], 1]]
                # A piece may hold more than the answer's end, such as a full stop.
                assert answer in found and len(found) <= len(answer) + 1 and normalized(found) == normalized(answer)
        assert held > 0 and features.lost == 0


@given(st.integers(1, 300), st.integers(1, 60), st.data())
@settings(max_examples=50, deadline=None)
def test_windows_hold_every_token_and_each_is_best_off_in_one_of_them(length, room, data):
    stride = data.draw(st.integers(1, room))
    begins = _begins(length, room, stride)
    inside = np.array([[begin <= token < min(begin + room, length) for token in range(length)] for begin in begins])
    assert inside.any(0).all() and begins[-1] < length
    assert len(begins) == 1 or begins[-2] + room < length  # no window more than it takes
    # The window with the most text on the shorter side, plus 0.01 of its length; of equals the first (run_squad.py).
    ends = [min(begin + room, length) for begin in begins]
    scores = [[min(token - begin, end - 1 - token) + 0.01 * (end - begin) if begin <= token < end else -1
               for token in range(length)] for begin, end in zip(begins, ends, strict=True)]  # fmt: skip
    assert _widest(length, begins, room).tolist() == np.argmax(scores, axis=0).tolist()


@pytest.mark.parametrize("length", [24, 48])
def test_windows_of_short_rows_overlap_by_half(bpe, length):
    """Every answer that fits into half a window is in one, however long the stride."""
    context = "the cat sat on a mat and ran to the red house by the river where it rained all day " * 4
    ids, places = bpe.locate_batch([context])[0]
    room = length - 4 - min(len(bpe.encode("where?")), length // 2)
    asked = []
    for first in range(len(ids) - room // 2):
        begin, end = places[first][0], places[first + room // 2 - 1][1]
        answer = context[begin:end].strip()
        asked.append(Question(str(first), "where?", context, ((answer, context.index(answer, begin)),)))
    features = encoded(bpe, *asked, length=length, stride=128)
    assert features.lost == 0 and len(features) > len(asked)


def test_rows_of_a_long_context(bpe):
    features = encoded(bpe, question("a mat"), question("red brick"), length=32, stride=6)
    assert features.owner.tolist() == sorted(features.owner) and set(features.owner) == {0, 1}
    ids = bpe.encode("where did the cat sit?")[:16]
    seen = []
    for row, places in zip(features.rows, features.characters, strict=True):
        tokens = row["tokens"]
        assert len(tokens) <= 32 and tokens[1 : 1 + len(ids)].tolist() == ids
        first = 3 + len(ids)
        assert row["span_weights"].tolist() == [0] * first + [1] * (len(tokens) - first - 1) + [0]
        assert (places[row["span_weights"] == 0] == (-1, -1, 0)).all()
        assert row["weights"] == (row["starts"] > 0)  # a window without the answer says nothing in SQuAD 1.1
        seen += [tuple(place[:2]) for place in places if place[2]]
    # Over both questions every token of the context is best off twice.
    ((_, located),) = bpe.locate_batch([CONTEXT])
    assert len(seen) == 2 * len(located)
    assert features.truncated == (2 if len(bpe.encode("where did the cat sit?")) > 16 else 0)


def test_training_leaves_out_what_cannot_be_learned(bpe):
    whole, training = (encoded(bpe, question("a mat"), training=flag) for flag in (False, True))
    assert 0 < len(training) < len(whole)
    assert all(row["starts"] for row in training.rows)
    # With unanswerable questions a window without the answer is one.
    two = encoded(bpe, question("a mat"), question(), task=SQUAD2, training=True)
    assert len(two) == 2 * len(whole)
    assert {int(row["starts"] > 0) for row in two.rows} == {0, 1}
    for row in two.rows:
        assert row["weights"] == 1 and row["span_weights"][0] == 1
        assert row["starts"] or row["ends"] == 0
    assert not any(row["starts"] for row in two.rows[len(whole) :])


def test_an_answer_that_fits_no_window_is_counted_and_not_learned_as_none(bpe):
    long, none = question(CONTEXT[4:90]), question()
    assert [encoded(bpe, long, training=training).lost for training in (False, True)] == [1, 1]
    assert encoded(bpe, question("a mat")).lost == encoded(bpe, none, task=SQUAD2).lost == 0
    whole = encoded(bpe, long, none, task=SQUAD2)
    assert whole.lost == 1 and len(whole) % 2 == 0
    assert [row["weights"] for row in whole.rows] == [0.0] * (len(whole) // 2) + [1.0] * (len(whole) // 2)
    training = encoded(bpe, long, none, task=SQUAD2, training=True)
    assert set(training.owner) == {1} and training.lost == 1


def test_a_question_without_known_answers_is_only_predicted(bpe):
    unknown = dataclasses.replace(question(), answers=None)
    for task in (SQUAD1, SQUAD2):
        assert all(row["weights"] == 0 and row["starts"] == 0 for row in encoded(bpe, unknown, task=task).rows)


@pytest.mark.parametrize(("length", "kept"), [(32, 16), (200, 64)])
def test_a_long_question_is_cut_and_counted(bpe, length, kept):
    features = encoded(bpe, question("a mat", text="why " * 90), length=length)
    assert features.truncated == 1
    assert all(len(row["tokens"]) <= length for row in features.rows)
    assert features.rows[0]["tokens"][kept + 1 : kept + 3].tolist() == [bpe.specials.end] * 2
