"""Entities and their F1, against seqeval and by hand."""

import hypothesis.strategies as st
import pytest
import seqeval.metrics
import sklearn.metrics
from hypothesis import given, settings
from seqeval.metrics.sequence_labeling import get_entities

from ag_jax.evaluation.entities import entities, entity_scores, scores_by_type, token_f1

TAGS = ("O", "B-per", "I-per", "B-creative-work", "I-creative-work")
BOTH = st.integers(1, 9).flatmap(
    lambda size: st.tuples(*[st.lists(st.sampled_from(TAGS), min_size=size, max_size=size)] * 2)
)


def test_by_hand():
    tags = ["B-per", "I-per", "B-per", "O", "I-per", "I-org", "O"]
    assert list(entities(tags)) == [("per", 0, 1), ("per", 2, 2), ("per", 4, 4), ("org", 5, 5)]
    assert list(entities([])) == list(entities(["O"])) == []
    # A wrong border costs the entity, but only one tag.
    assert entity_scores([["B-per", "I-per"]], [["B-per", "O"]])["f1"] == 0
    assert token_f1([["B-per", "I-per"]], [["B-per", "O"]]) == pytest.approx(2 / 3)
    nothing = [["O", "O"]]
    assert entity_scores(nothing, nothing) == {"precision": 0, "recall": 0, "f1": 0}
    assert token_f1(nothing, nothing) == 0
    with pytest.raises(ValueError, match="zip"):
        entity_scores(nothing, nothing * 2)


@given(st.lists(BOTH, min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_entities_and_scores_are_those_of_seqeval_and_scikit_learn(pairs):
    gold, predicted = ([list(one[side]) for one in pairs] for side in (0, 1))
    assert all(list(entities(tags)) == get_entities(tags) for tags in (*gold, *predicted))
    ours = entity_scores(gold, predicted)
    for name in ("precision", "recall", "f1"):
        expected = getattr(seqeval.metrics, f"{name}_score")(y_true=gold, y_pred=predicted, zero_division=0)
        assert ours[name] == pytest.approx(expected)
    by_type, kinds = (
        scores_by_type(gold, predicted),
        sorted({kind for tags in gold + predicted for kind, *_ in entities(tags)}),
    )
    expected = seqeval.metrics.sequence_labeling.precision_recall_fscore_support(gold, predicted, zero_division=0)
    assert [*by_type] == kinds
    for name, values in zip(("precision", "recall", "f1", "count"), expected, strict=True):
        assert [of_type[name] for of_type in by_type.values()] == pytest.approx([*values])
    flat = [[tag for tags in side for tag in tags] for side in (gold, predicted)]
    expected = sklearn.metrics.f1_score(*flat, labels=TAGS[1:], average="micro", zero_division=0)
    assert token_f1(gold, predicted) == pytest.approx(expected)
