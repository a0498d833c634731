"""Cross-validation folds, for data sets without a validation split."""

import dataclasses

from ag_jax.data.tasks.task import Examples


def fold(examples: Examples, folds: int, number: int) -> tuple[Examples, Examples]:
    """Return the training and the validation examples of cross-validation fold `number`, counted from 0.

    Every example is in the validation part of exactly one fold. A validation part is contiguous in the file, and the
    sizes of the parts differ by 1 at most. Neighbouring examples come from the same texts, so random folds would be an
    easier test; Attention Guidance does not say which its "10-fold cross-validation" of Oromo NER is.
    Skipped rows are counted in the train part, so that they are counted once.

    Raises ValueError unless 2 <= folds <= examples.
    """
    if not 2 <= folds <= len(examples):
        raise ValueError(
            f"{examples.source}: expected 2 to {len(examples)} folds, at most as many as examples, got folds={folds}"
        )
    begin, end = (len(examples) * part // folds for part in (number, number + 1))
    validation = dataclasses.replace(examples.take(slice(begin, end)), skipped=0)
    return examples.take([*range(begin), *range(end, len(examples))]), validation
