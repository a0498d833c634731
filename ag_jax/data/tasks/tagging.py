"""Parsers of the records of tagging tasks: sentences of words with a tag for each."""

from ag_jax.data.records.formats import Record
from ag_jax.data.tasks import schemes
from ag_jax.data.tasks.task import TaggedSentence, Task


def words(record: Record, task: Task, labelled: bool) -> list[TaggedSentence]:
    """Return a list with the one tagged sentence of a record, whose words and tags are checked.

    Raises ValueError if the tags are unknown or not of the task's scheme.
    """
    forms, tags = record.get("words"), record.get("tags")
    if not isinstance(forms, list) or not forms or not all(isinstance(form, str) and form.strip() for form in forms):
        raise ValueError(f"expected a list of words, got {forms!r}")
    if tags is None and not labelled:
        return [TaggedSentence(record["id"], tuple(forms), None)]
    if not isinstance(tags, list) or len(tags) != len(forms):
        raise ValueError(f"expected a tag for each of {len(forms)} words, got {tags!r}")
    schemes.check(tags, task.labels, task.scheme)
    return [TaggedSentence(record["id"], tuple(forms), tuple(tags))]


def chunked_words(record: Record, task: Task, labelled: bool) -> list[TaggedSentence]:
    """Return a list with the one sentence of a CoNLL-2003 record, with IOB1 tags converted to BIO.

    CoNLL-2003's own files use IOB1: B- only between adjacent entities of one type. BIO tags are unchanged.
    """
    tags = record.get("tags")
    if isinstance(tags, list) and all(tag in task.labels for tag in tags):
        record = {**record, "tags": schemes.tags([*schemes.entities(tags)], len(tags), task.scheme)}
    return words(record, task, labelled)
