"""The splits of a task: examples to train on, to choose the best epoch by, and others that are only predicted."""

import dataclasses
from collections.abc import Collection

import numpy as np

from ag_jax.data import randomness
from ag_jax.data.tasks import catalogue, custom, folds, ranking, readers
from ag_jax.data.tasks.task import Examples, Task
from ag_jax.evaluation import metrics
from ag_jax.finetuning.config import Recipe
from ag_jax.models.heads import STYLES, has_dropout, head_of

_SUBSET = 0x5B5E7  # key of the random numbers that draw a subset of a split's examples


@dataclasses.dataclass(frozen=True)
class Splits:
    """The examples of a task, or of one of the task's folds, divided into training, development and further splits.

    task: the task, with the recipe's metric.
    train: the examples to train on.
    validation: the examples by which epochs and points are chosen.
    others: examples that are predicted with the best epoch's weights and never choose anything, by split, such as
        `test` and `validation_mismatched`.
    notes: remarks on the examples, for the report.
    """

    task: Task
    train: Examples
    validation: Examples
    others: dict[str, Examples]
    notes: tuple[str, ...] = ()


def find_task(name: str, recipe: Recipe) -> Task:
    """Return the task `name` of the catalogue, or the custom task of the recipe, with the recipe's metric.

    With `recipe.ranking`, a task that classifies becomes the choice of the right candidate (`data.tasks.ranking`). With
    `recipe.answerability`, a task of questions without answers gets a classifier that finds them.

    Raises ValueError if the task is unknown, or if a setting of the recipe does not go with it.
    """
    task = custom.make_task(name, recipe.custom, folds=bool(recipe.folds))
    is_imported = metrics.is_import_path(recipe.metric or "")
    if recipe.metric and recipe.metric not in task.metrics and not is_imported:
        raise ValueError(
            f"tasks.{name}.metric must be one of {', '.join(task.metrics)}, or module.function of a custom metric, got "
            f"{recipe.metric!r}"
        )
    if recipe.legacy_eval and not task.legacy_validation:
        with_legacy = [other for other, candidate in catalogue.TASKS.items() if candidate.legacy_validation]
        reason = f"; of {name}: {task.legacy}" if task.legacy else ""
        raise ValueError(
            f"tasks.{name}.legacy_eval is only for tasks whose published code chose its epochs by the test set "
            f"({', '.join(with_legacy)}): leave it out{reason}"
        )
    if recipe.first_question and name != "dream":
        raise ValueError(
            f"tasks.{name}.first_question is for dream, whose dialogues have several questions: leave it out"
        )
    if recipe.answerability and (task.kind != "span" or task.answerable):
        with_none = [
            other
            for other, candidate in catalogue.TASKS.items()
            if candidate.kind == "span" and not candidate.answerable
        ]
        raise ValueError(
            f"tasks.{name}.answerability is for questions of which some have no answer ({', '.join(with_none)}): leave "
            "it out"
        )
    # Folds serve as validation data, so a validation split of the task would go unused.
    if recipe.folds and "validation" in task.splits:
        raise ValueError(f"tasks.{name}.folds is for tasks without a validation split: leave it out")
    if not recipe.folds and "validation" not in task.splits:
        raise ValueError(f"task {name} has no validation split: set tasks.{name}.folds, such as {task.folds or 10}")
    # The recipe's metric is set last, because `ranked` sets another one.
    if recipe.ranking:
        task = ranking.ranked(task)
    if recipe.answerability:
        task = dataclasses.replace(task, kind="span_or_none")
    check_dropout(name, recipe, task, STYLES)
    if recipe.pooling is not None and not head_of(task.kind).reads_text:
        raise ValueError(
            f"tasks.{name}.pooling must be none, got {recipe.pooling}: the head of this task reads every token, so "
            "nothing is pooled"
        )
    if not recipe.metric:
        return task
    names = (*task.metrics, recipe.metric) if recipe.metric not in task.metrics else task.metrics
    return dataclasses.replace(task, metric=recipe.metric, metrics=names)


def check_dropout(name: str, recipe: Recipe, task: Task, styles: Collection[str]) -> None:
    """Raise ValueError if a recipe sets head dropout, but the task's head has none in any of the model families.

    styles: the model families, keys of `models.heads.STYLES`.
    """
    swept = recipe.sweep.head_dropout
    if (recipe.head_dropout is None and not swept) or any(has_dropout(task.kind, style) for style in styles):
        return
    section, allowed, flag = ("sweep.", "empty", "") if swept else ("", "none", "none")
    rates = ",".join(f"{rate:g}" for rate in swept or (recipe.head_dropout,))
    raise ValueError(
        f"tasks.{name}.{section}head_dropout must be {allowed}, got {rates}: the head of this task, which finds spans "
        "of a text or ranks phrases by masked words, has no dropout. Give "
        f"--config.tasks.{name}.{section}head_dropout={flag}"
    )


def resolved(name: str, recipe: Recipe, root: str | None) -> Recipe:
    """Return a recipe with the fingerprint of the task's files and, for a custom task, also its labels.

    Raises FileNotFoundError or ValueError if the files of a custom task cannot be used.
    """
    return dataclasses.replace(recipe, custom=custom.resolved(name, recipe.custom, root))


def read(name: str, recipe: Recipe, root: str) -> Splits:
    """Load the splits of a task from the folder `root`, or from TFDS if `root` is empty, subsampled as the recipe says.

    The files of a custom task are those that the recipe names.

    With `recipe.folds`, `validation` is a placeholder and `others` is empty: pass the result to `of_fold`.

    Raises FileNotFoundError if the train split or the split that chooses epochs is missing (other missing splits are
    skipped); ValueError for malformed rows, an unsuitable recipe, or more folds than examples.
    """
    custom.check_unchanged(name, recipe.custom, root)
    recipe = resolved(name, recipe, root)
    task, source, notes = find_task(name, recipe), custom.make_task(name, recipe.custom, bool(recipe.folds)), []
    skip = recipe.skip_malformed
    # Pronouns are read from the files with their phrases; pairs are ranked after they have been read.
    pronouns = task.kind == "referent"
    source = task if pronouns else source
    if recipe.first_question:
        notes.append("the first question about each dialogue only")

    def load(split: str) -> Examples:
        if recipe.custom.kind:
            return custom.load(name, recipe.custom, root, split, skip_malformed=skip, folds=bool(recipe.folds))
        examples = readers.load(source, root, split, skip_malformed=skip, legacy=recipe.first_question)
        if pronouns and split == "train":
            examples, left_out = ranking.learnable(examples)
            notes.append(
                f"{left_out} of the train examples have a wrong phrase, or no other one, and cannot be learned from"
            )
        elif recipe.ranking and not pronouns:
            examples, left_out = ranking.rank(source, examples)
            notes.append(
                f"{left_out} of the {split} examples have no other candidate to be ranked with, and are left out"
            )
        return examples

    def drawn(split: str, examples: Examples, count: int | None) -> Examples:
        if count is not None and count < len(examples):
            notes.append(
                f"{split}: {count:,} of {len(examples):,} examples, drawn with subset_seed={recipe.subset_seed}"
            )
            if any(getattr(example, "group", "") for example in examples):
                notes.append(f"{split}: questions or pairs are scored by the examples that were drawn of them")
        return subset(examples, count, recipe.subset_seed)

    train, chooses = load("train"), "validation"
    if recipe.legacy_eval:
        chooses = task.legacy_validation
        notes.append(
            f"epochs and points are chosen on {chooses} data ({task.legacy}): no estimate of what new data would give"
        )
    validation = train if recipe.folds else load(chooses)
    others = {}
    for split in () if recipe.folds else task.splits:
        if split not in ("train", "validation", chooses):
            try:
                others[split] = load(split)
            except FileNotFoundError:
                continue  # not every distribution has every split
    if recipe.custom.kind:
        development = {} if recipe.folds else {"validation": validation}
        notes += custom.notes(recipe.custom, task, {"train": train, **development, **others})
    train, validation = (
        drawn("train", train, recipe.train_examples),
        drawn(chooses, validation, recipe.validation_examples),
    )
    splits = Splits(task, train, validation, others)
    count = recipe.folds or 0
    for split, examples in {} if count else {chooses: validation, **others}.items():
        if metrics.are_known(examples) and (zero := metrics.undefined(task.of_split(split), examples)):
            notes.append(f"{split}: its labels leave {', '.join(zero)} undefined, so 0 is reported")
    if not count:
        _check_metric(task, validation, f"the {chooses} data, {validation.source}")
    for number in range(count):
        parts = of_fold(splits, number, count)  # which rejects more folds than examples
        _check_metric(task, parts.validation, f"fold {(number + 1) % count} of {validation.source}")
        if recipe.custom.kind:
            notes += custom.notes_of_fold(task, number, parts.train, parts.others["test"])
    return dataclasses.replace(splits, notes=tuple(notes))


def _check_metric(task: Task, examples: Examples, place: str) -> None:
    """Raise ValueError if the metric that chooses the best epoch is 0 on these examples, whatever a model predicts."""
    if task.metric in (zero := metrics.undefined(task, examples)):
        others = [name for name in task.metrics if name not in zero]
        raise ValueError(
            f"tasks.{task.name}.metric={task.metric} must be a metric by which epochs can be chosen, but the labels of "
            f"{place}, leave it undefined: give other data, or set it to "
            f"{', '.join(others) or 'module.function of a custom metric'}"
        )


def of_fold(splits: Splits, number: int, count: int) -> Splits:
    """Return the training, validation and test examples of cross-validation fold `number`, from 0, of `count` folds.

    Fold `number` is `test`; the next fold, or fold 0 after the last, is `validation`; the others are `train`. So every
    example is tested once, by a model that was neither trained nor chosen with it.
    """
    parts = [folds.fold(splits.train, count, part)[1] for part in range(count)]
    tested, development = number, (number + 1) % count
    train_items = tuple(item for part in range(count) if part not in (tested, development) for item in parts[part])
    train = dataclasses.replace(splits.train, items=train_items)
    return dataclasses.replace(splits, train=train, validation=parts[development], others={"test": parts[tested]})


def subset(examples: Examples, count: int | None, seed: int) -> Examples:
    """Return `count` examples, drawn by a hash of the seed, in the order of the file; None returns all examples.

    They are those with the smallest hashes of (seed, position in the split), so that a smaller subset is part of a
    larger one with the same seed. All examples are returned, too, if `count` is at least their number.
    """
    if count is None or count >= len(examples):
        return examples
    return examples.take(np.sort(randomness.permutation(len(examples), _SUBSET, seed)[:count]).tolist())
