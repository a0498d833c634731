"""Cross-validation: a set without a validation split, cut in another way each time."""

import dataclasses

from ag_jax.data.tasks.task import Examples


def fold(examples: Examples, folds: int, number: int) -> tuple[Examples, Examples]:
    """Train and validation part of fold `number`, counted from 0; every example is in the validation part of one fold.

    The parts are neighbours in the file; their sizes differ by 1 at most. Neighbours come from the same texts, so an order that
    is drawn would be the easier test: Attention Guidance's "10-fold cross-validation" of Oromo NER does not say which it is.
    Rows that were skipped count to the train part, so that the sum of both is theirs.
    Raises ValueError unless 2 <= folds <= examples and 0 <= number < folds.
    """
    if not 2 <= folds <= len(examples) or not 0 <= number < folds:
        raise ValueError(
            f"{examples.source}: expected 2 to {len(examples)} folds, one an example at most, and the number of one, got "
            f"{folds} and {number}"
        )
    begin, end = (len(examples) * at // folds for at in (number, number + 1))
    validation = dataclasses.replace(examples.take(slice(begin, end)), skipped=0)
    return examples.take([*range(begin), *range(end, len(examples))]), validation
