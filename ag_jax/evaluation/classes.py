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


def scores(confusion_CC: np.ndarray) -> list[dict[str, float]]:
    """Return {`precision`, `recall`, `f1`, `count`: value} of each class; `count` is the number of its labels."""
    counts = zip(confusion_CC.diagonal(), confusion_CC.sum(0), confusion_CC.sum(1), strict=True)
    return [
        ratios(int(right), int(predicted), int(labelled)) | {"count": int(labelled)}
        for right, predicted, labelled in counts
    ]
