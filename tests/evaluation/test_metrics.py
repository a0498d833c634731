"""Metrics against a second formulation in numpy, and the dispatch from tasks to them."""

import functools

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics

from ag_jax.data.tasks.catalogue import TASKS
from ag_jax.data.tasks.task import Choices, Question, TaggedSentence, Task, Texts
from ag_jax.evaluation import classes, metrics
from ag_jax.evaluation.answers import Candidates
from ag_jax.finetuning import kinds

RNG = np.random.default_rng(0)
LABELS, PREDICTIONS = RNG.integers(0, 2, 53), RNG.integers(0, 2, 53)


def counts(labels, predictions, positive=1):
    true, found = labels == positive, predictions == positive
    return [float(of.sum()) for of in (true & found, ~true & found, true & ~found, ~true & ~found)]


def test_classification_by_counting():
    tp, fp, fn, tn = counts(LABELS, PREDICTIONS)
    assert metrics.accuracy(LABELS, PREDICTIONS) == pytest.approx((tp + tn) / 53)
    assert metrics.f1(LABELS, PREDICTIONS) == pytest.approx(2 * tp / (2 * tp + fp + fn))
    expected = (tp * tn - fp * fn) / np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    assert metrics.matthews(LABELS, PREDICTIONS) == pytest.approx(expected)
    three, guesses = RNG.integers(0, 3, 47), RNG.integers(0, 3, 47)
    each = [2 * tp / (2 * tp + fp + fn) for tp, fp, fn, _ in (counts(three, guesses, label) for label in range(3))]
    assert metrics.macro_f1(three, guesses) == pytest.approx(np.mean(each))


def test_label_sets_by_scikit_learn():
    """Of six labels one is neither given nor predicted, and the first example has none."""
    true, found = (np.pad(RNG.random((41, 5)) < rate, ((0, 0), (0, 1))) for rate in (0.3, 0.4))
    true[0] = found[0] = False
    labels, predictions = ([tuple(np.flatnonzero(row).tolist()) for row in of] for of in (true, found))
    measured = metrics.of_label_sets(task := topics("abcdef"), texts(labels), predictions)
    f1 = functools.partial(sklearn.metrics.f1_score, true, found, zero_division=0)
    assert measured == pytest.approx(
        {
            "micro_f1": f1(average="micro"),
            "macro_f1": f1(average="macro"),
            "exact_match": sklearn.metrics.accuracy_score(true, found),
        }
    )
    expected = sklearn.metrics.f1_score(true, found, average="samples", zero_division=1)
    rated = [metrics.rate_label_set(task, *pair) for pair in zip(texts(labels), predictions, strict=True)]
    assert np.mean(rated) == pytest.approx(expected)
    each = sklearn.metrics.precision_recall_fscore_support(true, found, zero_division=0)
    of_labels = classes.scores_of_sets(labels, predictions, 6)
    np.testing.assert_allclose([[*one.values()] for one in of_labels], np.transpose(each))
    silent = metrics.of_label_sets(task, texts([()]), [()])
    assert silent == {"micro_f1": 0, "macro_f1": 0, "exact_match": 1}


def topics(labels):
    return Task("topics", "multilabel", "", SETS[0], SETS, (), labels=tuple(labels))


def test_correlations_by_formula_and_scipy():
    numbers, other = RNG.normal(size=31).round(1), RNG.normal(size=31).round(1)  # with ties
    assert metrics.pearson(numbers, other) == pytest.approx(np.corrcoef(numbers, other)[0, 1])
    ranks = [scipy.stats.rankdata(values) for values in (numbers, other)]
    assert metrics.spearman(numbers, other) == pytest.approx(np.corrcoef(*ranks)[0, 1])
    assert metrics.spearman([1, 2], [3, 4]) == pytest.approx(1)


def test_what_is_undefined_is_zero_without_a_warning():
    same, labels = [1, 1, 1], [0, 1, 1]
    assert metrics.matthews(labels, same) == metrics.matthews(same, labels) == metrics.matthews(same, same) == 0
    assert metrics.f1([0, 0], [0, 0]) == metrics.f1([1, 0], [0, 0]) == 0
    assert metrics.pearson(labels, same) == metrics.spearman(same, labels) == metrics.pearson([1], [2]) == 0


def texts(labels):
    return [Texts(str(number), "a", None, label) for number, label in enumerate(labels)]


def question(*answers):
    return Question("1", "q", "a", tuple((answer, 0) for answer in answers))


TAGS, SPANS = ("entity_f1", "precision", "recall", "token_f1"), ("f1", "has_answer_f1", "no_answer_accuracy")
BOTH, CLASSES = ("pearson", "spearman"), ("accuracy", "macro_f1", "matthews", "f1")
SETS = ("micro_f1", "macro_f1", "exact_match")
UNDEFINED = [  # kind, metrics, examples, and the metrics that are 0 whatever is predicted
    ("regression", BOTH, texts([2.5, 2.5]), [*BOTH]), ("regression", BOTH, texts([2.5, 2.6]), []),
    ("classification", CLASSES, texts([0, 0]), ["matthews", "f1"]),
    ("classification", CLASSES, texts([1, 1]), ["matthews"]),
    ("multilabel", SETS, texts([(), ()]), ["micro_f1", "macro_f1"]), ("multilabel", SETS, texts([(), (1,)]), []),
    ("tagging", TAGS, [TaggedSentence("1", ("a", "b"), ("O", "O"))], [*TAGS]),
    ("tagging", TAGS, [TaggedSentence("1", ("a", "b"), ("O", "B-X"))], []),
    ("span", SPANS, [question(), question()], ["has_answer_f1"]), ("span", SPANS, [question("a"), question()], []),
    ("span", SPANS, [question("a"), question("a")], ["no_answer_accuracy"]),
]  # fmt: skip


def test_metrics_that_are_zero_whatever_is_predicted():
    for kind, names, examples, zero in UNDEFINED:
        task = Task(name="mine", kind=kind, form="", metric=names[0], metrics=names, layouts=())
        assert metrics.undefined(task, examples) == zero


def test_metrics_of_groups():
    groups = ["a", "a", "b", "c", "c", "c"]
    labels, found = [1, 0, 1, 0, 0, 1], [1, 0, 0, 0, 1, 1]
    examples = [Texts(str(number), "x", "y", *pair) for number, pair in enumerate(zip(labels, groups, strict=True))]
    measured = kinds.evaluate(TASKS["multirc"], examples, found)
    assert measured == pytest.approx({"f1": 2 * 2 / (3 + 3), "group_exact_match": 1 / 3})
    gender = TASKS["superglue_rte"].of_split("diagnostic_gender")
    # a: different, b: alone, c: different; d: equal, though one is wrong
    examples += [Texts("d", "x", "y", 0, "d"), Texts("e", "x", "y", 1, "d")]
    expected = {"accuracy": 5 / 8, "gender_parity": 1 / 3}
    assert kinds.evaluate(gender, examples, [*found, 1, 1]) == pytest.approx(expected)
    assert kinds.evaluate(gender, examples[2:3], [1]) == {"accuracy": 1, "gender_parity": 0}


def test_every_task_reports_the_metrics_that_it_names():
    chosen = [Choices("a", (("x", "y"), ("x", "z")), (1,), ("y", "z"))] * 2
    asked = [Question("a", "q", "Anna met Bo.", (("Anna", 0),)), Question("b", "q", "Anna met Bo.", ())]
    right = {
        "classification": (texts([0, 1, 1]), [0, 1, 1]),
        "regression": (texts([0.5, 2.0, 4.5]), [0.4, 2.0, 4.0]),
        "choice": (chosen, [1, 1]),
        "tagging": ([TaggedSentence("a", ("x", "y"), ("B-PER", "O"))], [("B-PER", "O")]),
        "span": (asked, ["Anna", ""]),
    }
    spans = [Candidates((("Anna", 2.0),), 1.0), Candidates((("Bo", 2.0),), 3.0)]
    for task in TASKS.values():
        found = kinds.evaluate(task, *right[task.kind], spans if task.kind == "span" else None)
        assert tuple(found) == task.metrics
        assert min(found.values()) > 0.9, (task.name, found)


def test_metrics_of_answers_and_entities_by_hand():
    questions = [
        Question("a", "q", "c", (("Denver Broncos", 0), ("Broncos", 7))),
        Question("b", "q", "c", (("Super Bowl", 0),)),
        Question("c", "q", "c", ()),
        Question("d", "q", "c", ()),
    ]
    # "no answer" less the best answer; a threshold of 1.5 refuses the last two questions.
    margins = {"the Broncos": -1.0, "Bowl": 1.5, "y": 2.0, "x": 4.0}
    given = [Candidates(((text, 5.0),), 5.0 + margin) for text, margin in margins.items()]
    found = kinds.evaluate(TASKS["squad2"], questions, ["the Broncos", "Bowl", "", "x"], given)
    assert found == pytest.approx(
        {
            "f1": (1 + 2 / 3 + 1 + 0) / 4,
            "exact_match": (1 + 0 + 1 + 0) / 4,
            "has_answer_f1": (1 + 2 / 3) / 2,
            "has_answer_exact_match": 1 / 2,
            "no_answer_accuracy": 1 / 2,
            "best_f1": (1 + 2 / 3 + 1 + 1) / 4,
            "best_exact_match": (1 + 0 + 1 + 1) / 4,
        }
    )
    thresholds = metrics.tuned_thresholds(TASKS["squad2"], questions, given)
    assert (thresholds["best_f1"][1], thresholds["best_exact_match"][1]) == (1.5, -1.0)
    named = [Choices("a", (("x", "y"),) * 3, (1, 2), ("Anna", "Anna Lee", "Lee Ann"))]
    named += [Choices("b", (("x", "y"),) * 2, (0,), ("Bo", "Al"))]
    found = kinds.evaluate(TASKS["record"], named, [0, 0])
    assert found == pytest.approx({"f1": (2 / 3 + 1) / 2, "exact_match": 1 / 2})
    assert list(kinds.per_example(TASKS["record"], named, [0, 0])) == pytest.approx([2 / 3, 1])
    tags = [("B-PER", "I-PER", "O", "B-ORG"), ("O", "B-ORG"), ("B-PER",)]
    tagged = [TaggedSentence(str(number), ("x",) * len(of), of) for number, of in enumerate(tags)]
    found = kinds.evaluate(TASKS["conll2003"], tagged, [("B-PER", "O", "O", "B-PER"), ("O", "B-ORG"), ("O",)])
    assert found == pytest.approx(
        {"entity_f1": 2 / 7, "precision": 1 / 3, "recall": 1 / 4, "token_f1": 2 * 2 / (5 + 3)}
    )


def test_how_good_each_example_is():
    assert kinds.per_example(TASKS["stsb"], texts([1.0, 2.0]), [1.5, 2.0]) == pytest.approx([-0.25, 0])
    assert list(kinds.per_example(TASKS["sst2"], texts([1, 0]), [1, 1])) == [1, 0]
    sentences = [TaggedSentence("a", ("x", "y"), ("B-PER", "O"))] * 2
    assert list(kinds.per_example(TASKS["conll2003"], sentences, [("B-PER", "B-PER"), ("B-PER", "O")])) == [0.5, 1]
    asked = [Question("a", "q", "c", (("Super Bowl", 0),))]
    assert kinds.per_example(TASKS["squad1"], asked, ["Bowl"]) == pytest.approx([2 / 3])
    choices = [Choices("a", (("x", "y"), ("x", "z")), (1,))] * 2
    assert list(kinds.per_example(TASKS["dream"], choices, [1, 0])) == [1, 0]


def test_what_cannot_be_scored_is_refused():
    unknown = [*texts([0, 1]), *texts([None])]
    for examples, found, match in ((texts([0, 1]), [0], "1 for 2"), ([], [], "0 for 0"), (unknown, [0] * 3, "1 of 3")):
        with pytest.raises(ValueError, match=match):
            kinds.evaluate(TASKS["sst2"], examples, found)
    for example in (Choices("a", (), None), TaggedSentence("a", (), None), Question("a", "q", "c", None)):
        assert metrics.is_unknown(example) and not metrics.are_known([example])
    assert not metrics.is_unknown(Question("a", "q", "c", ())) and not metrics.is_unknown(texts([0])[0])
    assert metrics.are_known(texts([0])) and not metrics.are_known([])
    with pytest.raises(ValueError, match="zip"):
        kinds.per_example(TASKS["sst2"], texts([0]), [0, 1])
