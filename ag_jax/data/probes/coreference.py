"""The coreference probe: whether an attention head attends from a mention to an antecedent of it.

See Clark et al. 2019, section 5.2.

A query is a mention, looked at from its head word. Candidates are the other mentions of its window, and those of the
same entity are its antecedents: any of them is right.
"""

import collections
import dataclasses
import os

import numpy as np

from ag_jax.data.probes import anaphors, baselines, conll, files, preco, splits, windows
from ag_jax.data.probes.anaphors import Direction
from ag_jax.data.probes.mentions import Reading
from ag_jax.data.probes.queries import Probe, Query, Window
from ag_jax.data.probes.rules import HeadWord
from ag_jax.data.probes.windows import Lengths


def coreference(
    path: str | os.PathLike,
    *,
    lengths: Lengths | None = None,
    window: int = 128,
    head_word: HeadWord = "rule",
    direction: Direction = "before",
) -> Probe:
    """Return the coreference probe: whether attention heads attend from a mention to one of the same entity.

    The files have the format of CoNLL-2012, LitBank or PreCo.

    path: a file, or a folder with files that end in `_gold_conll`, `.conll` or `.jsonl`.
    lengths: returns the number of tokens of each of some words; None counts words.
    window: the most tokens of a window, without special tokens. Windows end at the ends of sentences.
    head_word, direction: as in `anaphors.Settings`.

    Heads are chosen on the official development part, or on a fifth of the documents (`splits.divide`).

    Raises FileNotFoundError and ValueError as the readers do.
    """
    settings = anaphors.Settings(head_word, direction)
    reading = read(path)
    parts = splits.divide([(document.name, document.place) for document in reading.documents], path)
    dropped = collections.Counter(reading.dropped)
    queries: list[Query] = []
    texts: list[Window] = []
    is_development: list[bool] = []
    scores: dict[str, list[np.ndarray]] = {name: [np.zeros(0)] for name in baselines.NAMES}
    for document, part in zip(reading.documents, parts, strict=True):
        if part == "train":
            dropped[splits.TRAIN] += 1
            continue
        tokens = windows.count_tokens(document.words, lengths)
        stretches, split = windows.cut(tokens, document.starts, window)
        result = anaphors.ask(document, stretches, settings, tokens)
        # `ask` counts windows from the first one of the document.
        queries.extend(dataclasses.replace(query, window=query.window + len(texts)) for query in result.queries)
        texts.extend(Window(document.name, document.words[begin:end]) for begin, end in stretches)
        is_development.extend([part == "development"] * len(result.queries))
        dropped.update(result.dropped | {windows.SPLIT: split})
        for name, of_document in result.scores.items():
            scores[name].append(of_document)
    return Probe(
        "coreference",
        tuple(texts),
        tuple(queries),
        np.asarray(is_development, bool),
        {name: np.concatenate(parts) for name, parts in scores.items()},
        dict(+dropped),
        before=direction == "before",
    )


def read(path: str | os.PathLike) -> Reading:
    """Read documents with coreference annotation, in the format of PreCo or of CoNLL-2012.

    The format is that of PreCo if a file, or a member of an archive, ends in `.jsonl`, or if the path is a file that
    begins with a JSON object.
    """
    is_preco = files.has_any(path, preco.ENDINGS) or files.begins_with(path, "{")
    return preco.read(path) if is_preco else conll.read(path)
