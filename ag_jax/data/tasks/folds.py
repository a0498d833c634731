"""Cross-validation: a set without a validation split, cut in another way each time."""

from ag_jax.data import randomness
from ag_jax.data.tasks.task import Examples


def fold(examples: Examples, folds: int, number: int, seed: int | None = None) -> tuple[Examples, Examples]:
    """Train and validation part of fold `number`, counted from 0; every example is in the validation part of one fold.

    The parts are neighbours in the file (seed None), or in an order that is drawn from the seed; their sizes differ by 1 at
    most. Neighbours come from the same texts, so a drawn order is the easier test. Which of the two a paper means must be
    said with the numbers: Attention Guidance's "10-fold cross-validation" of Oromo NER does not say.
    Raises ValueError unless 2 <= folds <= examples and 0 <= number < folds.
    """
    if not 2 <= folds <= len(examples) or not 0 <= number < folds:
        raise ValueError(
            f"expected 2 to {len(examples)} folds, one an example at most, and the number of one, got {folds} and {number}"
        )
    order = range(len(examples)) if seed is None else [int(row) for row in randomness.permutation(len(examples), seed)]
    begin, end = (len(examples) * at // folds for at in (number, number + 1))
    return examples.take([*order[:begin], *order[end:]]), examples.take(order[begin:end])
