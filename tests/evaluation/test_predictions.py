"""Logits to predictions, through real features: right logits give the labels back."""

import dataclasses
import json

import numpy as np
import pytest
from scipy.special import expit

from ag_jax.data import tokenizers
from ag_jax.data.config import TokenizerConfig
from ag_jax.data.tasks import buckets
from ag_jax.data.tasks.catalogue import TASKS
from ag_jax.data.tasks.task import Choices, Examples, Question, TaggedSentence, Task, Texts
from ag_jax.evaluation.predictions import to_plain
from ag_jax.finetuning import kinds
from ag_jax.finetuning.kinds import average, decide, encode, from_plain, predict, scores

CONTEXT = "Anna met Bo in the old house. It rained, and the dog ran to Cleo. " * 3


@pytest.fixture(scope="module")
def tokenizer() -> tokenizers.Tokenizer:
    return tokenizers.train(TokenizerConfig(vocabulary_size=300), [CONTEXT])


# Task: examples, and the predictions from right logits.
CASES = {
    "mnli": ([Texts("0", "Anna met Bo", "It rained", 2), Texts("1", "Anna", "Bo", 0)], [2, 0]),
    "stsb": ([Texts("0", "Anna", "Bo", 1.25), Texts("1", "Anna", "Bo", 5.0)], pytest.approx([1.25, 5.0])),
    "dream": ([Choices("0", (("x", "a"), ("x", "b"), ("x", "c")), (2,)), Choices("1", (("x", "a"), ("x", "b")), (0,))],
        [2, 0]),
    "oromo_ner": ([TaggedSentence("0", ("Anna", "met", "Bo"), ("B-PER", "O", "B-PER")),
        TaggedSentence("1", ("old", "house") * 9, ("B-LOC", "I-LOC") * 9)],
        [("B-PER", "O", "B-PER"), ("B-LOC", "I-LOC") * 9]),
    "squad1": ([Question("0", "who?", CONTEXT, (("Cleo", CONTEXT.rindex("Cleo")),)),
        Question("1", "who?", CONTEXT, (("Bo in", 9),))], ["Cleo", "Bo in"]),
    "squad2": ([Question("0", "who?", CONTEXT, (("the dog", 45),)), Question("1", "why?", CONTEXT, ())],
        ["the dog", ""]),
    "topics": ([Texts("0", "Anna met Bo", None, (0, 2)), Texts("1", "Anna", None, ())], [(0, 2), ()]),
}  # fmt: skip
TOPICS = Task("topics", "multilabel", "", "micro_f1", ("micro_f1", "exact_match"), (), labels=("a", "b", "c"))


def logits_of(batch, kind, classes, score=5.0):
    """Return predictions of a model that knows the labels, with noise."""
    rng = np.random.default_rng(0)
    if kind in ("classification", "tagging"):
        return score * np.eye(classes)[batch["labels"]]
    if kind == "multilabel":
        return score * (batch["label_set"] - 0.5)
    if kind == "regression":
        return batch["labels"]
    if kind == "choice":
        # A candidate that is not there is never the answer, however high its score.
        return np.where(batch["choice_weights"] > 0, score * batch["labels"], 99.0)
    found = rng.normal(size=(*batch["tokens"].shape, 2))
    found[..., 0] += score * 3 * np.eye(found.shape[1])[batch["starts"]]
    found[..., 1] += score * 3 * np.eye(found.shape[1])[batch["ends"]]
    return found


def run(task, features, **settings):
    """Logits of the rows of features by way of batches, in another order and of other lengths."""
    found = [None] * len(features)
    for batch in buckets.batches(features, 3, max_length=64, shuffle=True, seed=3):
        for row, logits in zip(batch["rows"], logits_of(batch, task.kind, len(task.labels), **settings), strict=True):
            if row >= 0:
                found[row] = logits
    return found


@pytest.fixture(scope="module")
def encoded(tokenizer):
    """A function from the name of a task to the task, its examples and their features."""

    def made(name, length=64):
        task, examples = TASKS.get(name, TOPICS), Examples(tuple(CASES[name][0]), "a test")
        return task, examples, encode(task, examples, tokenizer, length, 1, stride=16)

    return made


@pytest.mark.parametrize("name", CASES)
def test_right_logits_give_the_labels_back(encoded, name):
    task, examples, features = encoded(name)
    logits = run(task, features)
    predictions = predict(task, examples, features, logits)
    assert predictions == CASES[name][1]
    of_examples = scores(task, examples, features, logits)
    assert kinds.evaluate(task, examples, predictions, of_examples)[task.metric] == pytest.approx(1)
    with pytest.raises(ValueError, match="shorter"):
        predict(task, examples, features, [])
    if name == "squad2":  # where there may be no answer, the second question has one nevertheless
        first, second = of_examples
        assert first.best_or_empty() == first.text == "the dog" and second.best_or_empty() == "" != second.text


def test_words_that_were_cut_are_outside(encoded):
    task, examples, features = encoded("oromo_ner", length=12)
    predictions = predict(task, examples, features, run(task, features))
    kept = int(features.rows[1]["label_weights"].sum())
    assert 0 < kept < 18 and features.cut_words == 18 - kept
    assert predictions[1] == examples[1].tags[:kept] + ("O",) * (18 - kept)


def test_a_classifier_decides_whether_there_is_an_answer(encoded):
    """Its logit is the lowest of all windows; the spans' own scores of the first token do not matter."""
    squad2, examples, features = encoded("squad2")
    task = dataclasses.replace(squad2, kind="span_or_none")
    owned = [np.flatnonzero(features.owner == number) for number in range(2)]
    assert all(len(of) > 1 for of in owned)
    rng = np.random.default_rng(0)
    logits = [rng.normal(size=(66, 3)) for _ in features.rows]
    lowest = [-0.25, 0.5]
    for of, none in zip(owned, lowest, strict=True):
        for place, row in enumerate(of):
            logits[row][:2, 2] = [none + 3.0 + (place != 1) * 2.0, 3.0]  # their difference counts
            logits[row][0, :2] = 9.0
    found = scores(task, examples, features, logits)
    assert [one.none - one.answers[0][1] for one in found] == pytest.approx(lowest)
    of_spans = [of[:, :2] for of in logits]
    plain = scores(squad2, examples, features, of_spans)
    assert [one.answers for one in found] == [one.answers for one in plain]
    assert predict(task, examples, features, logits) == [plain[0].text, ""]
    assert predict(squad2, examples, features, of_spans) == ["", ""]
    assert predict(dataclasses.replace(task, threshold=0.6), examples, features, logits)[1] == plain[1].text
    assert predict(dataclasses.replace(task, threshold=-0.3), examples, features, logits)[0] == ""


def softmax(scores):
    return np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)


@pytest.mark.parametrize("name", CASES)
def test_an_ensemble_averages_probabilities(encoded, name):
    task, examples, features = encoded(name)
    logits, rng = run(task, features, score=1.0), np.random.default_rng(1)
    one = scores(task, examples, features, logits)
    other = scores(task, examples, features, [np.asarray(of) + rng.normal(size=np.shape(of)) for of in logits])
    for example, *both in zip(examples, one, other, strict=True):
        kept = [from_plain(task, json.loads(json.dumps(to_plain(of)))) for of in both]
        found = average(task, kept)
        if task.kind == "regression":
            assert found == pytest.approx(np.mean(both), abs=1e-5)
        elif task.kind == "multilabel":
            assert expit(found) == pytest.approx((expit(both[0]) + expit(both[1])) / 2, abs=1e-5)
        elif task.kind == "span":
            shares = [of.probabilities() for of in both]
            texts = shares[0].keys() | shares[1].keys()
            best = max(texts, key=lambda text: sum(share.get(text, 0.0) for share in shares))
            assert (found.best_or_empty() or None) == best
        else:
            assert softmax(found) == pytest.approx((softmax(both[0]) + softmax(both[1])) / 2, abs=1e-5)
        assert decide(task, example, average(task, both[:1])) == decide(task, example, both[0])
    sure, unsure = np.array([2000.0, 0.0, -2000.0]), np.array([0.0, 0.1, 0.2])
    for other in (unsure, sure) if name == "mnli" else ():  # an ensemble survives certainty
        found = average(task, [sure, other])
        assert np.isfinite(found).all() and np.argmax(found) == 0
    if name == "topics":  # as of labels
        shares = (1 + 0.5) / 2, expit(0.2) / 2
        assert expit(average(task, [sure, unsure])[[0, 2]]) == pytest.approx(shares)
