"""Parsers of the records of tagging tasks: sentences of words with BIO tags."""

from collections.abc import Sequence

from ag_jax.data.records.formats import Record
from ag_jax.data.tasks import lookalikes
from ag_jax.data.tasks.task import TaggedSentence, Task


def words(record: Record, task: Task, labelled: bool) -> list[TaggedSentence]:
    """Return a list with the one tagged sentence of a record, whose words and tags are checked.

    Raises ValueError if the tags are unknown or not BIO.
    """
    forms, tags = record.get("words"), record.get("tags")
    if not isinstance(forms, list) or not forms or not all(isinstance(form, str) and form.strip() for form in forms):
        raise ValueError(f"expected a list of words, got {forms!r}")
    if tags is None and not labelled:
        return [TaggedSentence(record["id"], tuple(forms), None)]
    if not isinstance(tags, list) or len(tags) != len(forms):
        raise ValueError(f"expected a tag for each of {len(forms)} words, got {tags!r}")
    check_bio(tags, task.labels)
    return [TaggedSentence(record["id"], tuple(forms), tuple(tags))]


def chunked_words(record: Record, task: Task, labelled: bool) -> list[TaggedSentence]:
    """Return a list with the one sentence of a CoNLL-2003 record, with IOB1 tags converted to BIO.

    CoNLL-2003's own files use IOB1: B- only between adjacent entities of one type. BIO tags are unchanged.
    """
    tags = record.get("tags")
    return words({**record, "tags": from_iob1(tags)} if isinstance(tags, list) else record, task, labelled)


def check_bio(tags: Sequence[str], labels: Sequence[str]) -> None:
    """Raise ValueError for an unknown tag, and for an I- that does not continue an entity of its type."""
    before = "O"
    for number, tag in enumerate(tags, 1):
        if tag not in labels:
            if difference := lookalikes.find(tag, labels):
                raise ValueError(
                    f"unknown tag {tag!r} at word {number}: {difference} look alike; write both in one way"
                )
            raise ValueError(f"unknown tag {tag!r} at word {number}: expected one of {', '.join(labels)}")
        if tag.startswith("I-") and before[2:] != tag[2:]:
            raise ValueError(
                f"the tags are not BIO: {tag} at word {number} follows {before}, expected B-{tag[2:]} or {tag} before "
                "it; mend the tags"
            )
        before = tag


def from_iob1(tags: Sequence[str]) -> list[str]:
    """Convert IOB1 tags to BIO: an I- that begins an entity becomes B-."""
    before = ["O", *tags]
    return [
        f"B-{tag[2:]}" if tag.startswith("I-") and last[2:] != tag[2:] else tag
        for last, tag in zip(before, tags, strict=False)
    ]
