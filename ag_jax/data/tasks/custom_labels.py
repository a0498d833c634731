"""Read from the training file of a custom task its classes or labels, its entity types or its range of numbers.

Records that cannot be read are left out here, because reading the examples reports them with their lines.
"""

import pathlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ag_jax.data.records.formats import LocatedRecord, Record
from ag_jax.data.tasks import custom_records, label_sets, lookalikes, schemes
from ag_jax.data.tasks.schemes import Scheme
from ag_jax.data.tasks.task import LabelType


def _records(located: Sequence[LocatedRecord]) -> Iterator[tuple[str, Record]]:
    """Yield (location, record) for each record that could be read; malformed ones are left out."""
    for place, record in located:
        if not isinstance(record, ValueError):
            yield place, record


def classes(located: Sequence[LocatedRecord], column: str, file: pathlib.Path, setting: str) -> tuple[str, ...]:
    """Return the distinct class labels in a column: numbers in ascending order, then names in alphabetical order.

    setting: name of the setting that names the column, for errors.

    Raises ValueError for fewer than two classes, and if no class occurs twice, as in a column of numbers or texts.
    """
    counts: Counter[str] = Counter()
    for _, record in _records(located):
        try:
            counts[custom_records.label_text(record.get(column), column)] += 1
        except ValueError:
            continue
    names = [label for label in counts if not custom_records.is_missing(label)]
    if not names and any(isinstance(record.get(column), list) for _, record in _records(located)):
        raise ValueError(
            f"{file}: expected a class in each row of the column {column!r}, got lists; set kind=multilabel if an "
            "example has several labels"
        )
    are_unique = len(names) > 2 and all(counts[label] == 1 for label in names)
    if len(names) < 2 or are_unique:
        got = f"{len(names)} classes in as many rows" if are_unique else ", ".join(names) or "none"
        raise ValueError(
            f"{file}: expected at least two classes in the column {column!r}, with several examples each, got {got}; "
            f"set {setting} to the column with the classes, or list them in labels"
        )
    lookalikes.check(names, f"{file}, column {column!r}")
    return tuple(sorted(names, key=_order))


def of_sets(located: Sequence[LocatedRecord], column: str, file: pathlib.Path, setting: str) -> tuple[str, ...]:
    """Return the distinct labels in a column of sets of labels (`label_sets`), in the order of `classes`.

    setting: name of the setting that names the column, for errors.

    Raises ValueError if there is no label, if no label occurs twice, as in a column of texts, for vectors of 0 and 1,
    and for a column of single ones of these.
    """
    counts: Counter[str] = Counter()
    sets = [*_sets(located, column)]
    for values in sets:
        counts.update({custom_records.label_text(value, column) for value in values})
    labels = [label for label in counts if not custom_records.is_missing(label)]
    are_unique = len(labels) > 2 and all(counts[label] == 1 for label in labels)
    if not labels or are_unique:
        raise ValueError(
            f"{file}: expected lists of labels in the column {column!r}, with several examples of each label, got "
            f"{f'{len(labels)} labels, none of them twice' if labels else 'none'}; set {setting} to the column with "
            "the labels, or list them in labels"
        )
    lists = [of for of in sets if of]
    # Vectors would be read as sets of the labels 0 and 1, which are the same for all examples.
    if len({*map(len, lists)}) == 1 < len(lists[0]) and all(value in (0, 1) for of in lists for value in of):
        raise ValueError(
            f"{file}: expected lists of the labels of each example in the column {column!r}, got vectors of 0 and 1, "
            f"such as {lists[0]}; give a column of 0 and 1 for each label, and name them all in {setting}"
        )
    if all(str(record.get(column)).strip().casefold() in label_sets.FLAGS for _, record in _records(located)):
        raise ValueError(
            f"{file}: expected names of labels in the column {column!r}, got only {', '.join(labels)}; name all "
            f"columns of 0 and 1 in {setting}, or set kind=classification for a single one"
        )
    lookalikes.check(labels, f"{file}, column {column!r}")
    return tuple(sorted(labels, key=_order))


def _sets(located: Sequence[LocatedRecord], column: str) -> Iterator[list[Any]]:
    """Yield the labels of each record; records whose labels cannot be read are left out."""
    for _, record in _records(located):
        try:
            if label_sets.names(record, (column,)) is not None:
                yield label_sets.values(record, (column,)) or []
        except ValueError:
            continue


def type_of_sets(located: Sequence[LocatedRecord], column: str) -> LabelType:
    """Return the type of the labels in a column of sets of labels, as `type_of_labels` does."""
    return _type_of(value for values in _sets(located, column) for value in values)


def type_of_labels(located: Sequence[LocatedRecord], column: str) -> LabelType:
    """Return the type of the class labels in a column: that of all of them, or "text" if they differ."""
    return _type_of(record.get(column) for _, record in _records(located))


def _type_of(values: Iterable[Any]) -> LabelType:
    types = {type(value) for value in values if value is not None}
    names: dict[type, LabelType] = {int: "integer", float: "number", bool: "boolean"}
    return names.get(types.pop(), "text") if len(types) == 1 else "text"


def _order(label: str) -> tuple[int, float, str]:
    """Return the sort key of a class label: numbers come first, by value, and then names, alphabetically."""
    try:
        return 0, float(label), label
    except ValueError:
        return 1, 0.0, label


def tags(located: Sequence[LocatedRecord], column: str) -> list[list[str]]:
    """Return the tags of each sentence in a column of lists of tags; sentences with other values are left out."""
    lists = (record.get(column) for _, record in _records(located))
    return [each for each in lists if isinstance(each, list) and all(isinstance(tag, str) for tag in each)]


def entity_types(located: Sequence[LocatedRecord], column: str, file: pathlib.Path, scheme: Scheme) -> list[str]:
    """Return the types of entities, or the plain tags, in a column of lists of tags, in alphabetical order.

    Raises ValueError for a tag that the scheme has not, if there is no type, and for fewer than two plain tags.
    """
    types, others = set(), set[str]()
    for place, record in _records(located):
        of_words = record.get(column)
        if not isinstance(of_words, list):
            others.add(type(of_words).__name__)
            continue
        for tag in of_words:
            kind = schemes.type_of(tag, scheme) if isinstance(tag, str) and tag.strip() else None
            if kind is None:
                example = ", ".join(schemes.all_tags(["PER"], scheme))
                form = "a text" if scheme == "plain" else f"{scheme.upper()}, such as {example}"
                raise ValueError(
                    f"{place}: expected each tag to be {form}, got {tag!r}; mend the tags, name the column with them, "
                    "or set custom.scheme, to plain for tags that mark no entities"
                )
            types.add(kind)
    types -= set() if scheme == "plain" else {"O"}
    if len(types) < (2 if scheme == "plain" else 1):
        raise ValueError(
            f"{file}: expected lists of tags in the column {column!r}, some of them of entities, such as B-PER, or at "
            f"least two plain tags, such as NOUN, got {', '.join(types or others) or 'none'}; mend the tags"
        )
    lookalikes.check(sorted(types), f"{file}, types of entities")
    return sorted(types)


def number_range(
    located: Sequence[LocatedRecord],
    column: str,
    file: pathlib.Path,
    lowest: float | None,
    highest: float | None,
    setting: str,
) -> tuple[float, float]:
    """Return the lowest and the highest number in a column; `lowest` and `highest` replace them, if they are given.

    setting: name of the setting that names the column, for errors.

    Raises ValueError unless the first is lower than the second.
    """
    numbers = []
    for _, record in _records(located):
        try:
            number = custom_records.number(record.get(column), column)
        except ValueError:
            continue
        numbers += [] if number is None else [number]
    low = min(numbers, default=0.0) if lowest is None else lowest
    high = max(numbers, default=0.0) if highest is None else highest
    if low >= high:
        raise ValueError(
            f"{file}: expected different numbers in the column {column!r}, got {len(numbers)} numbers, with {low:g} as "
            f"the lowest and {high:g} as the highest; set {setting} to the column with the numbers, or mend lowest and "
            "highest"
        )
    return low, high


def are_answered(located: Sequence[LocatedRecord], column: str) -> bool:
    """Return whether every question among the records has an answer in the column `column`.

    An answer is absent where the list of answers is empty, or where it is missing and `is_impossible` is true.
    """
    return not any(_is_unanswered(record, column) for _, record in _records(located))


def _is_unanswered(record: Record, column: str) -> bool:
    answers = record.get(column)
    if answers is None:
        return bool(record.get("is_impossible"))
    return (answers.get("text") if isinstance(answers, Mapping) else answers) == []
