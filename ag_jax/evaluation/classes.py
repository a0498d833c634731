"""Confusion matrices, and the precision, recall and F1 of each class.

Shape letters: C classes, on the first axis of a confusion matrix as labels and on the second as predictions.
"""

from collections.abc import Sequence

import numpy as np


def confusion(labels: Sequence[int], predictions: Sequence[int], classes: int) -> np.ndarray:
    """Return the confusion matrix `CC`: the number of examples with each label (row) and prediction (column)."""
    counts_CC = np.zeros((classes, classes), np.int64)
    np.add.at(counts_CC, (np.asarray(labels, int), np.asarray(predictions, int)), 1)
    return counts_CC


def ratios(right: int, predicted: int, labelled: int) -> dict[str, float]:
    """Return {`precision`, `recall`, `f1`: value from 0 to 1} from counts; 0 where a denominator is 0.

    right: number of predictions of a class that are right.
    predicted: number of predictions of the class.
    labelled: number of labels of the class.
    """
    return {
        "precision": right / predicted if predicted else 0.0,
        "recall": right / labelled if labelled else 0.0,
        "f1": 2 * right / (predicted + labelled) if predicted + labelled else 0.0,
    }


def scores_of_sets(
    labels: Sequence[Sequence[int]], predictions: Sequence[Sequence[int]], count: int
) -> list[dict[str, float]]:
    """Return what `scores` does, of each label of a multi-label task; an example may have several labels or none.

    labels, predictions: the indices of the labels of each example.
    count: number of labels of the task.
    """
    true, found = (_flags(sets, count) for sets in (labels, predictions))
    counts = zip((true & found).sum(0), found.sum(0), true.sum(0), strict=True)
    return [
        ratios(int(right), int(predicted), int(labelled)) | {"count": int(labelled)}
        for right, predicted, labelled in counts
    ]


def micro_f1(labels: Sequence[Sequence[int]], predictions: Sequence[Sequence[int]]) -> float:
    """Return the F1 of all labels of all examples together; 0 if no example has a label, nor a prediction."""
    right = sum(len({*of_label} & {*found}) for of_label, found in zip(labels, predictions, strict=True))
    return ratios(right, sum(map(len, predictions)), sum(map(len, labels)))["f1"]


def _flags(sets: Sequence[Sequence[int]], count: int) -> np.ndarray:
    flags = np.zeros((len(sets), count), bool)
    for row, of_example in enumerate(sets):
        flags[row, list(of_example)] = True
    return flags


def scores(confusion_CC: np.ndarray) -> list[dict[str, float]]:
    """Return {`precision`, `recall`, `f1`, `count`: value} of each class; `count` is the number of its labels."""
    counts = zip(confusion_CC.diagonal(), confusion_CC.sum(0), confusion_CC.sum(1), strict=True)
    return [
        ratios(int(right), int(predicted), int(labelled)) | {"count": int(labelled)}
        for right, predicted, labelled in counts
    ]
