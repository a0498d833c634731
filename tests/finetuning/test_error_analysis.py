"""Error analyses and trivial scores against loops over the examples, and what reports of every kind of task show."""

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from ag_jax.analysis.report import differences_json
from ag_jax.data.tasks.task import Examples, TaggedSentence, Texts
from ag_jax.evaluation import classes
from ag_jax.evaluation.significance import over_seeds
from ag_jax.finetuning import choosing, error_analysis, kinds, report, summary, trivial, usage
from tests.finetuning import tasks

RNG = np.random.default_rng(3)


def rows(task, examples, temperature=2.0):
    """The predictions of random scores, as they are stored."""

    def scores(example):
        if task.kind.startswith("span"):
            words = example.context.split()
            drawn = RNG.normal(size=len(words)).tolist()
            return {"none": 0.0, "answers": [list(pair) for pair in zip(words, drawn, strict=True)]}
        sizes = {"choice": "pairs", "ranking": "pairs", "referent": "phrases", "tagging": "words"}
        shape = [len(getattr(example, sizes[task.kind]))] if task.kind in sizes else []
        if task.kind in ("classification", "multilabel", "tagging"):
            shape.append(len(task.labels))
        return (temperature * RNG.normal(size=shape)).tolist()

    found = []
    for example in examples:
        plain = scores(example)
        prediction = kinds.decide(task, example, kinds.from_plain(task, plain))
        found.append({"id": example.id, "prediction": prediction, "scores": plain})
    return found


def softmax(scores):
    return np.exp(scores) / np.exp(scores).sum()


def test_confusions_and_scores_by_class_are_counts():
    labels, predictions = RNG.integers(0, 4, (2, 97))  # the fifth class has no label, nor a prediction
    matrix = classes.confusion(labels, predictions, 5)
    for label in range(5):
        for prediction in range(5):
            assert matrix[label, prediction] == np.sum((labels == label) & (predictions == prediction))
    for number, of_class in enumerate(classes.scores(matrix)):
        right = np.sum((labels == number) & (predictions == number))
        precision, recall = (right / max(np.sum(side == number), 1) for side in (predictions, labels))
        f1 = 2 * precision * recall / max(precision + recall, 1e-9)
        assert list(of_class.values()) == pytest.approx([precision, recall, f1, np.sum(labels == number)])


def test_of_many_classes_the_most_frequent_confusions_are_listed():
    names, counts = [f"c{number}" for number in range(13)], np.diag([9] * 13)
    counts[2, 5], counts[7, 1] = 3, 4
    _, table = error_analysis._confusion_blocks({"labels": names, "counts": counts.tolist()}, "examples")
    assert table.rows == [["c7", "c1", "4"], ["c2", "c5", "3"]]
    _, table = error_analysis._confusion_blocks({"labels": names[:3], "counts": counts[:3, :3].tolist()}, "examples")
    assert table.rows == [["c0", "9", "0", "0"], ["c1", "0", "9", "0"], ["c2", "0", "0", "9"]]


def test_errors_of_a_classification():
    task, examples = tasks.task("classification"), tasks.examples("classification", 40, 0)
    found, predicted = error_analysis.analysis(task, examples, stored := rows(task, examples)), {}
    for example, row in zip(examples, stored, strict=True):
        probabilities = softmax(np.array(row["scores"]))
        if probabilities.argmax() != example.label:
            predicted[example.id] = probabilities[example.label], probabilities.max()
    assert found["wrong"] == len(predicted) > 10
    worst = sorted(predicted, key=lambda name: predicted[name][0])[:10]
    assert [mistake["id"] for mistake in found["most_wrong"]] == worst
    assert [mistake["probability"] for mistake in found["most_wrong"]] == pytest.approx(
        [predicted[name][1] for name in worst], abs=1e-4
    )
    for mistake in found["most_wrong"]:
        label = examples[int(mistake["id"])].label
        assert (mistake["label"], mistake["prediction"]) == (task.labels[label], task.labels[1 - label])
    counts = np.array(found["confusion"]["counts"])
    assert counts.sum(1).tolist() == [20, 20] and counts.trace() == 40 - len(predicted)


def test_errors_of_tagged_words():
    """A sentence counts with its worst word; words that were cut off have no scores."""
    task, words = tasks.task("tagging"), ("one", "two", "three")
    examples = [TaggedSentence("a", words, ("O", "B-X", "O")), TaggedSentence("b", words, ("O", "O", "B-X"))]
    right, low, high = [9.0, 0, 0], [1.0, 0, 0], [0, 3.0, 0]
    stored = [
        {"prediction": ["O", "O", "O"], "scores": [right, low, right]},
        {"prediction": ["B-X", "O", "O"], "scores": [high, right]},
    ]
    found = error_analysis.analysis(task, examples, stored)
    assert [(one["id"], one["texts"], one["label"], one["prediction"]) for one in found["most_wrong"]] == [
        ("b", ["[one] two three"], "O", "B-X"),
        ("a", ["one [two] three"], "B-X", "O"),
    ]
    expected = [softmax(np.array(high))[1], softmax(np.array(low))[0]]
    assert [one["probability"] for one in found["most_wrong"]] == pytest.approx(expected, abs=1e-4)
    assert found["confusion"] == {"labels": ["O", "X"], "counts": [[3, 1], [2, 0]]}
    assert found["classes"] == {"X": {"precision": 0.0, "recall": 0.0, "f1": 0.0, "count": 2}}


def test_errors_of_sets_of_labels():
    task, examples = tasks.task("multilabel"), tasks.examples("multilabel", 40, 0)
    found = error_analysis.analysis(task, examples, stored := rows(task, examples))
    losses = {}
    for example, row in zip(examples, stored, strict=True):
        yes = 1 / (1 + np.exp(-np.array(row["scores"])))
        given, guessed = (np.isin(range(3), one) for one in (example.label, row["prediction"]))
        if (given != guessed).any():
            losses[example.id] = np.prod(np.where(given, yes, 1 - yes)), np.prod(np.where(guessed, yes, 1 - yes))
    worst = found["most_wrong"]
    assert found["wrong"] == len(losses) and [one["id"] for one in worst] == sorted(losses, key=losses.get)[:10]
    assert [one["probability"] for one in worst] == pytest.approx([losses[one["id"]][1] for one in worst], abs=1e-4)
    assert worst[0]["label"] == (", ".join(task.labels[of] for of in examples[int(worst[0]["id"])].label) or "no label")
    assert [of["count"] for of in found["classes"].values()] == [0, 20, 20]


def test_errors_of_numbers_and_of_choices():
    task, examples = tasks.task("regression"), tasks.examples("regression", 15, 0)
    found = error_analysis.analysis(task, examples, stored := rows(task, examples))
    errors = np.array([abs(example.label - row["prediction"]) for example, row in zip(examples, stored, strict=True)])
    assert found["errors"]["root_mean_squared"] == pytest.approx(np.sqrt(np.mean(errors**2)))
    assert found["errors"]["of_the_mean"] == pytest.approx(np.std([example.label for example in examples]))
    assert [int(mistake["id"]) for mistake in found["most_wrong"]] == np.argsort(-errors)[:10].tolist()
    task, examples = tasks.task("choice"), tasks.examples("choice", 30, 0)
    found = error_analysis.analysis(task, examples, stored := rows(task, examples))
    losses = {
        example.id: softmax(np.array(row["scores"]))[example.right[0]]
        for example, row in zip(examples, stored, strict=True)
        if row["prediction"] not in example.right
    }
    assert [mistake["id"] for mistake in found["most_wrong"]] == sorted(losses, key=losses.__getitem__)[:10]


def test_trivial_scores():
    labels = [1, 0, 1, 1, 0]
    examples = Examples(tuple(Texts(str(number), "a", None, label) for number, label in enumerate(labels)), "here")
    found = trivial.baseline(tasks.task("classification"), examples)
    assert found == {"prediction": "good", "metrics": {"accuracy": 0.6, "f1": pytest.approx(0.75)}}
    rare = Examples(tuple(Texts(str(number), "a", None, number == 0) for number in range(5)), "here")
    by_f1 = dataclasses.replace(tasks.task("classification"), metric="f1", metrics=("f1", "accuracy"))
    assert trivial.baseline(by_f1, rare) == {
        "prediction": "good",
        "metrics": {"f1": pytest.approx(1 / 3), "accuracy": 0.2},
    }
    several = [(0, 2), (2,), (), (1, 2), (0, 2)]  # the best of all eight sets
    sets = Examples(tuple(Texts(str(number), "a", None, of) for number, of in enumerate(several)), "here")
    task = tasks.task("multilabel")
    scores = {
        of: kinds.evaluate(task, sets, [of] * 5) for size in range(4) for of in itertools.combinations(range(3), size)
    }
    best = max(scores, key=lambda of: scores[of]["micro_f1"])
    assert trivial.baseline(task, sets) == {"prediction": task.names_of(best), "metrics": scores[best]}
    choices = tasks.examples("choice", 30, 0)
    expected = np.mean([1 / len(example.pairs) for example in choices])
    assert trivial.baseline(tasks.task("choice"), choices)["metrics"]["accuracy"] == pytest.approx(expected)
    tagged = trivial.baseline(tasks.task("tagging"), tasks.examples("tagging", 9, 0))
    assert tagged == {"prediction": "O", "metrics": {"entity_f1": 0.0, "token_f1": 0.0}}
    assert trivial.baseline(tasks.task("regression"), tasks.examples("regression", 8, 0))["prediction"] == 2.5
    assert trivial.baseline(tasks.task("span"), tasks.examples("span", 8, 0)) is None


def test_the_result_says_which_arms_can_be_told_apart():
    values = {"plain": [0.5, 0.6, 0.55], "asa": [0.7, 0.81, 0.76], "r_drop": [0.4, 0.7, 0.6]}
    summaries = {arm: choosing.summary(of_arm) for arm, of_arm in values.items()}
    of_arms = {
        arm: {"headline": "validation", "splits": {"validation": {"accuracy": of_arm}}}
        for arm, of_arm in summaries.items()
    }
    task = {"metric": "accuracy", "kind": "classification", "examples": {"validation": 50}, "arms": of_arms}
    numbers = {"arms": [*values], "baseline": "plain", "seeds": [0, 1, 2]}
    numbers["differences"] = differences_json(over_seeds({arm: {"t": of_arm} for arm, of_arm in values.items()}))
    scores = {"validation": {"prediction": "bad", "metrics": {"accuracy": 0.8}}}
    said = summary.sentences(numbers | {"tasks": {"t": task | {"trivial": scores}}}, "t")
    first, apart, others, constant = said.split(". ")
    assert first.startswith("t: accuracy plain 55.0 ± 5.0, asa 75.7 ± 5.5, r_drop 56.7 ± 15.3 on 50")
    assert "asa +20.7" in apart and "r_drop" not in apart
    assert "r_drop +1.7" in others and "asa" not in others and "3 seeds" in others
    assert "(bad)" in constant and "80.0" in constant and "better" in constant
    values |= {f"r{number}": [0.61, 0.68, 0.66] for number in range(9)}  # p = .01, and of so many tests
    found = over_seeds({arm: {"t": of_arm} for arm, of_arm in values.items()})["r0"]["t"]
    assert found.p_value < 0.05 < found.p_corrected
    numbers["differences"] = differences_json({"asa": {"t": found}})
    said = summary.sentences(numbers | {"tasks": {"t": task | {"trivial": {}}}}, "t")
    assert "Cannot" in said and f"p = {found.p_corrected:.2g}" in said
    tops = [SimpleNamespace(top=SimpleNamespace(score=score)) for score in (0.4, 0.6, 0.6, 0.5)]
    assert report.top(tops) is tops[1].top


@pytest.mark.parametrize("kind", tasks.KINDS)
def test_sections_of_every_kind_of_task(kind):
    """Every text of data is shown as it is, in rows with as many cells as the header has."""
    task, examples = tasks.task(kind), tasks.examples(kind, 30, 0)
    found = {
        "trial": "t",
        "split": "validation",
        "score": 0.5,
        "examples": 30,
        **error_analysis.analysis(task, examples, rows(task, examples)),
    }
    for mistake in found["most_wrong"]:
        mistake["texts"] = ["a | b", *mistake["texts"][1:]]
    text = error_analysis.section("name", kind, task.metric, found, False).markdown()
    assert ("Precision" in text) == (kind in ("classification", "multilabel", "referent", "tagging"))
    assert ("Error |" in text) == (kind == "regression") and "a \\| b" in text
    for block in text.split("\n\n"):
        bars = [line.replace("\\|", "").count("|") for line in block.splitlines() if line.startswith("|")]
        assert len(set(bars)) <= 1
    assert bool(usage._call(kind, examples)) == (kind not in ("ranking", "referent"))
