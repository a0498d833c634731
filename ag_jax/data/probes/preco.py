"""Read coreference annotation in the format of PreCo (Chen et al. 2018): a document per line, as a JSON object.

    {"id": "train_00001", "sentences": [["I", "see", "him", "."]], "mention_clusters": [[[0, 0, 1]], [[0, 2, 3]]]}

A mention is [index of the sentence, index of its first word, index after its last word], and a cluster has the mentions
of an entity. A document without an id is named by its file and line. Other keys are not read.
"""

import collections
import os
from collections.abc import Hashable
from typing import Any

from ag_jax.data.json_files import reading
from ag_jax.data.probes import files
from ag_jax.data.probes.mentions import Document, Mention, Reading, in_reading_order
from ag_jax.data.records import formats
from ag_jax.data.records.formats import Record

ENDINGS = (".jsonl",)
BLANK = "documents without a word"


def read(path: str | os.PathLike) -> Reading:
    """Read the documents of a PreCo file, or of all files in a folder whose names end in `ENDINGS`.

    Raises FileNotFoundError if there is no such file, and ValueError, with the file and the line, for what is not in
    the format, and for a document that occurs twice.
    """
    documents: list[Document] = []
    dropped: collections.Counter[str] = collections.Counter()
    places: dict[Hashable, str] = {}
    located = files.read(
        path,
        ENDINGS,
        lambda stream, _, place: ((place, where, record) for where, record in formats.json_lines(stream, place)),
    )
    for place, where, record in located:
        line = where.removeprefix(place)
        with reading(where, "mend the line, or copy the file anew"):
            document = _document(formats.require(record, where), place, f"{files.below(place, path)}{line}")
        files.check_new(document.name, f"document {document.name}", where, places)
        if document.words:
            documents.append(document)
        else:
            dropped[BLANK] += 1
    return Reading(tuple(documents), dict(dropped))


def _document(record: Record, place: str, line: str) -> Document:
    """Return the document in a record of PreCo, with the name `line` if the record has no id."""
    sentences = record["sentences"]
    if not isinstance(sentences, list) or not all(
        isinstance(sentence, list) and all(isinstance(word, str) for word in sentence) for sentence in sentences
    ):
        raise ValueError("expected `sentences` to be a list of lists of words")
    starts: list[int] = []
    words: list[str] = []
    for sentence in sentences:
        starts.append(len(words))
        words.extend(sentence)
    mentions = [
        _mention(mention, str(entity), starts, [len(sentence) for sentence in sentences])
        for entity, cluster in enumerate(record["mention_clusters"])
        for mention in cluster
    ]
    sentence_starts = [start for start, sentence in zip(starts, sentences, strict=True) if sentence]
    return Document(
        str(record.get("id", line)), tuple(words), tuple(sentence_starts), in_reading_order(mentions), place=place
    )


def _mention(mention: Any, entity: str, starts: list[int], lengths: list[int]) -> Mention:
    is_triple = isinstance(mention, list) and len(mention) == 3 and all(type(index) is int for index in mention)
    if is_triple and 0 <= mention[0] < len(starts) and 0 <= mention[1] < mention[2] <= lengths[mention[0]]:
        sentence, begin, end = mention
        return Mention(starts[sentence] + begin, starts[sentence] + end, entity)
    raise ValueError(
        f"expected each mention of cluster {entity} to be [sentence, first word, word after the last] of the document, "
        f"got {mention!r}"
    )
