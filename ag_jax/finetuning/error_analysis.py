"""Error analysis of a model on the examples that it predicted: confusions, scores by class, and the worst mistakes.

Numbers are the JSON values that `report.json` has; the sections show them.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ag_jax.analysis.report import DASH, Block, Section, percent
from ag_jax.analysis.tables import Table, shortened, verbatim
from ag_jax.data.tasks import schemes
from ag_jax.data.tasks.task import Choices, Example, Question, Referent, TaggedSentence, Task, Texts
from ag_jax.evaluation import classes, entities
from ag_jax.evaluation.answers import Candidates
from ag_jax.finetuning import kinds

MOST_WRONG = 10  # examples
MOST_CLASSES = 12  # of a confusion matrix that a report shows; of more classes it lists the confusions
LONGEST = 200  # characters of an example's text
Row = Mapping[str, Any]  # a line of predictions_SPLIT.jsonl


def analysis(task: Task, examples: Sequence[Any], rows: Sequence[Row]) -> dict[str, Any]:
    """Return the error analysis of the predictions of labelled examples, as JSON values.

    rows: the prediction of each example.

    confusion: {`labels`: names, `counts`: matrix with a row for each label and a column for each prediction}, of
        classes, of plain tags, or of the types of entities that the tags of words have.
    classes: {name: {`precision`, `recall`, `f1`, `count`}} of classes, labels, types of entities or plain tags.
    counted: `entities` or `words`, what `count` counts for tagged sentences.
    errors: {`root_mean_squared`, `of_the_mean`}, of numbers: the error of the predictions, and that of always
        predicting the mean of the labels.
    wrong: number of examples with a wrong prediction; of numbers None.
    most_wrong: the examples with the worst mistakes, see `_mistakes`.
    """
    predicted, found = [row["prediction"] for row in rows], dict[str, Any]()
    if task.kind in ("classification", "referent"):
        names, pairs = (
            list(task.labels),
            [(example.label, one) for example, one in zip(examples, predicted, strict=True)],
        )
        found["confusion"], counts_CC = _confusion(names, pairs)
        found["classes"] = dict(zip(names, classes.scores(counts_CC), strict=True))
    elif task.kind == "multilabel":
        labels_of_examples = [example.label for example in examples]
        of_labels = classes.scores_of_sets(labels_of_examples, predicted, len(task.labels))
        found["classes"] = dict(zip(task.labels, of_labels, strict=True))
    elif task.kind == "tagging":
        gold = [example.tags for example in examples]
        sides = [[_name(tag, task) for tags in side for tag in tags] for side in (gold, predicted)]
        # Words that were cut off may have a prediction that is none of the labels.
        names = list(dict.fromkeys([*(_name(tag, task) for tag in task.labels), *sides[1]]))
        places = {name: place for place, name in enumerate(names)}
        words = [(places[tag], places[other]) for tag, other in zip(*sides, strict=True)]
        found["confusion"], counts_CC = _confusion(names, words)
        is_plain = task.scheme == "plain"
        by_name = dict(zip(names, classes.scores(counts_CC), strict=True))
        found["classes"] = by_name if is_plain else entities.scores_by_type(gold, predicted)
        found["counted"] = "words" if is_plain else "entities"
    elif task.kind == "regression":
        labels = np.array([example.label for example in examples], np.float64)
        squares = [np.square(labels - one) for one in (np.asarray(predicted, np.float64), labels.mean())]
        found["errors"] = dict(
            zip(("root_mean_squared", "of_the_mean"), (float(np.sqrt(of.mean())) for of in squares), strict=True)
        )
    mistakes = sorted(_mistakes(task, examples, rows), key=lambda pair: pair[0], reverse=True)
    found["wrong"] = None if task.kind == "regression" else len(mistakes)
    found["most_wrong"] = [mistake for _, mistake in mistakes[:MOST_WRONG]]
    return found


def _confusion(names: Sequence[str], pairs: Sequence[tuple[int, int]]) -> tuple[dict[str, Any], np.ndarray]:
    labels, predictions = zip(*pairs, strict=True)
    counts_CC = classes.confusion(labels, predictions, len(names))
    return {"labels": list(names), "counts": counts_CC.tolist()}, counts_CC


def _name(tag: str, task: Task) -> str:
    """Return the type of entity that a tag has, O for O, or a plain tag itself."""
    return schemes.type_of(tag, task.scheme) or tag


def _mistakes(
    task: Task, examples: Sequence[Any], rows: Sequence[Row]
) -> Iterator[tuple[tuple[float, ...], dict[str, Any]]]:
    """Yield (how wrong it is, mistake) for each wrong prediction.

    A mistake has `id`, `texts`, `label`, `prediction`, and the `probability` of the prediction, None if there is none.

    How wrong it is: of classes, choices and tags the loss, -log(probability of the label); of numbers the absolute
    error; of answers 1 - F1, and then the probability. A tagged sentence counts once, with its worst word. The
    probability of a set of labels is the product of those of all labels, given or not.
    """
    for example, row in zip(examples, rows, strict=True):
        found = _mistake(task, example, row["prediction"], kinds.from_plain(task, row["scores"]))
        if found is not None:
            badness, texts, label, prediction, probability = found
            # Rounded, because the last digits differ between processors.
            shown = None if probability is None else round(float(probability), 4)
            values = {"label": label, "prediction": prediction, "probability": shown}
            texts = [shortened(text, LONGEST // len(texts)) for text in texts]
            yield badness, {"id": example.id, "texts": texts, **values}


Mistake = tuple[tuple[float, ...], Sequence[str], Any, Any, float | None]


def _mistake(task: Task, example: Any, prediction: Any, scores: Any) -> Mistake | None:
    """Return (how wrong it is, texts, label, prediction, probability) of a prediction; None if it is right."""
    if prediction == getattr(example, "label", None):
        return None
    if task.kind == "multilabel":
        return _wrong_set(task, example, prediction, scores)
    if task.kind == "regression":
        return (abs(example.label - prediction),), texts_of(example), example.label, round(prediction, 4), None
    if isinstance(example, Question):
        return _wrong_answer(task, example, prediction, scores)
    if isinstance(example, TaggedSentence):
        return _wrong_word(task, example, prediction, scores)
    log_C = _log_softmax(scores)
    if isinstance(example, Choices):
        right: Any = example.right
        if prediction in right:
            return None
        candidates = [shortened(text, LONGEST // 2) for _, text in example.pairs]
        loss, names = -float(np.logaddexp.reduce(log_C[list(right)])), (candidates[right[0]], candidates[prediction])
        return (loss,), [example.pairs[0][0]], *names, np.exp(log_C[prediction])
    if isinstance(example, Referent):  # the scores are those of its phrases, of which the first is the one in question
        log_C = np.array([np.logaddexp.reduce(log_C[1:]), log_C[0]])
    names = (task.labels[example.label], task.labels[prediction])
    return (-float(log_C[example.label]),), texts_of(example), *names, np.exp(log_C[prediction])


def _wrong_set(task: Task, example: Texts, prediction: Sequence[int], scores: np.ndarray) -> Mistake | None:
    label: Any = example.label
    if {*prediction} == {*label}:
        return None

    def log_probability(labels: Sequence[int]) -> float:
        signs = np.where(np.isin(np.arange(len(scores)), labels), -1, 1)
        return -float(np.logaddexp(0, signs * scores).sum())

    names = task.names_of(label), task.names_of(prediction)
    return (-log_probability(label),), texts_of(example), *names, np.exp(log_probability(prediction))


def _log_softmax(scores: np.ndarray) -> np.ndarray:
    return scores - np.logaddexp.reduce(scores, axis=-1, keepdims=True)


def _wrong_word(task: Task, example: TaggedSentence, prediction: Sequence[str], scores: np.ndarray) -> Mistake | None:
    """Return the wrong word of a sentence that has the highest loss; None if all are right.

    Words that were cut off have no scores. They count only in sentences without another wrong word.
    """
    tags: Any = example.tags
    log_WC = _log_softmax(scores) if len(scores) else scores
    wrong = [
        (-float(log_WC[place, task.labels.index(tags[place])]) if place < len(log_WC) else 0.0, place)
        for place in range(len(tags))
        if tags[place] != prediction[place]
    ]
    if not wrong:
        return None
    loss, place = max(wrong, key=lambda pair: pair[0])
    is_read = place < len(log_WC)
    probability = np.exp(log_WC[place, task.labels.index(prediction[place])]) if is_read else None
    start = sum(len(word) + 1 for word in example.words[:place])
    text = _around(" ".join(example.words), start, start + len(example.words[place]), LONGEST)
    return (loss,), [text], tags[place], prediction[place], probability


def _wrong_answer(task: Task, example: Question, prediction: str, candidates: Candidates) -> Mistake | None:
    (score,) = kinds.per_example(task, [example], [prediction])
    if score == 1:
        return None
    probability = candidates.probabilities().get(prediction or None, 0.0)
    answers: Any = example.answers
    label, start = answers[0] if answers else ("", 0)
    context = _around(example.context, start, start + len(label), LONGEST // 2) if label else example.context
    return (1 - float(score), probability), [example.question, context], label, prediction, probability


def _around(text: str, start: int, stop: int, longest: int) -> str:
    """Return the part of a text around the characters from `start` to `stop`, which are in brackets."""
    room = max((longest - (stop - start)) // 2, 1)
    before = text[:start] if start <= room else f"…{text[start - room + 1 : start]}"
    return shortened(f"{before}[{text[start:stop]}]{text[stop:]}", longest)


def texts_of(example: Example) -> list[str]:
    """Return the texts of an example: one or a pair, a question and its context, a text and its candidates."""
    if isinstance(example, Texts):
        return [example.first, *([] if example.second is None else [example.second])]
    if isinstance(example, Question):
        return [example.question, example.context]
    if isinstance(example, TaggedSentence):
        return [" ".join(example.words)]
    if isinstance(example, Referent):
        return [f"{example.before}[{example.phrases[0]}]{example.after}"]
    return [example.pairs[0][0], *(second for _, second in example.pairs)]


def section(name: str, kind: str, metric: str, found: Mapping[str, Any], several: bool) -> Section:
    """Return the section of a report that shows an error analysis.

    name, kind, metric: of the task.
    found: the result of `analysis`, with the `trial`, the `split` and its `score` and number of `examples`.
    several: whether the report has several tasks.
    """
    wrong = "" if found["wrong"] is None else f", {found['wrong']:,} of them wrongly"
    trial = f"`{found['trial']}` ({metric} {percent(found['score'])})"
    intro = (
        f"The best trial, {trial}, predicted {found['examples']:,} development examples{wrong}."
        if found["split"] == "validation"
        else f"The models of all folds with the seed of {trial} predicted {found['examples']:,} examples{wrong}."
    )
    blocks: list[Block] = [intro]
    if errors := found.get("errors"):
        blocks.append(
            f"The root mean squared error is {errors['root_mean_squared']:.3g}; that of always predicting the mean of "
            f"the labels is {errors['of_the_mean']:.3g}."
        )
    if confusion := found.get("confusion"):
        blocks += _confusion_blocks(confusion, "words" if kind == "tagging" else "examples")
    if by_class := found.get("classes"):
        what = found.get("counted", "examples").capitalize()
        name_of = {"Entities": "Type", "Words": "Tag"}.get(what, "Label" if kind == "multilabel" else "Class")
        rows = [
            [verbatim(label), *(percent(of[key]) for key in ("precision", "recall", "f1")), f"{of['count']:,}"]
            for label, of in by_class.items()
        ]
        blocks.append(Table([name_of, "Precision", "Recall", "F1", what], rows))
    if found["most_wrong"]:
        blocks += _most_wrong_blocks(kind, found["most_wrong"])
    return Section(f"Errors: {name}" if several else "Errors", blocks)


def _confusion_blocks(confusion: Mapping[str, Any], what: str) -> list[Block]:
    """Return the confusion matrix as a table, or with many classes a table of the most frequent confusions."""
    names, counts = [verbatim(name) for name in confusion["labels"]], confusion["counts"]
    if len(names) <= MOST_CLASSES:
        rows = [[name, *(f"{count:,}" for count in of_label)] for name, of_label in zip(names, counts, strict=True)]
        return [f"Numbers of {what}: rows are labels, columns predictions.", Table(["Label", *names], rows)]
    confused = [
        (count, names[row], names[column])
        for row, of_label in enumerate(counts)
        for column, count in enumerate(of_label)
        if count and row != column
    ]
    rows = [[*pair, f"{count:,}"] for count, *pair in sorted(confused, key=lambda of: -of[0])[:MOST_WRONG]]
    return ["The most frequent confusions:", Table(["Label", "Prediction", what.capitalize()], rows)] if rows else []


def _most_wrong_blocks(kind: str, mistakes: Sequence[Mapping[str, Any]]) -> list[Block]:
    of_texts = ["Question", "Context"] if kind.startswith("span") else ["Text", "Second text"]
    rule = "the lowest probability of the label"
    if kind == "regression":
        rule = "the largest error"
    elif kind == "multilabel":
        rule = "the lowest probability of exactly the given labels"
    elif kind.startswith("span"):
        rule = "the lowest F1, and of these the highest probability"
    rows = [
        [
            verbatim(mistake["id"]),
            *(verbatim(text) for text in mistake["texts"]),
            *(_value(mistake[key]) for key in ("label", "prediction")),
            *([f"{mistake['prediction'] - mistake['label']:+.3g}"] if kind == "regression" else []),
            *([] if kind == "regression" else [DASH if (p := mistake["probability"]) is None else f"{p:.2f}"]),
        ]
        for mistake in mistakes
    ]
    last = "Error" if kind == "regression" else "Its probability"
    header = ["Example", *of_texts[: len(mistakes[0]["texts"])], "Label", "Prediction", last]
    what = "words, one of a sentence," if kind == "tagging" else "examples"
    return [f"The {what} that are most wrong, by {rule}:", Table(header, rows)]


def _value(value: Any) -> str:
    return verbatim(value) if isinstance(value, str) else f"{value:.3g}"
