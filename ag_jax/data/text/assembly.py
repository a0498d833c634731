"""Put the tokenised parts of a text together as a `TextStore` for each split.

`prepare` tokenises the parts. Which documents are held out is decided here, because it depends on the documents of all
parts.
"""

import dataclasses
import itertools
import json
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np

from ag_jax.data.config import DataConfig
from ag_jax.data.corpus import SPLITS, Say
from ag_jax.data.progress import Progress
from ag_jax.data.text import holdout
from ag_jax.data.text.store import TextStore, TextStoreWriter

FACTS = "text.json"  # numbers of documents, tokens and words of each split, and what `data.skip_words` left out
UNDECIDED = -1  # in `held_out.bin`: the number of the document decides whether it is held out


@dataclasses.dataclass(frozen=True)
class _Part:
    """A part of a text that was tokenised, with its token ids in a directory.

    path: its directory.
    first: number of documents in the parts before.
    """

    path: pathlib.Path
    first: int

    @property
    def store(self) -> TextStore:
        """The token ids of the part; opened anew at each access, because an open store has an open file."""
        return TextStore(self.path)

    @property
    def words(self) -> np.ndarray:
        """The number of words of each document of the part."""
        return np.fromfile(self.path / "words.bin", np.int64)

    def held_out(self, fraction: float) -> tuple[np.ndarray, bool]:
        """Return (whether each document is held out for validation, whether the documents' numbers decided this)."""
        decisions = np.fromfile(self.path / "held_out.bin", np.int8)
        if not (decisions == UNDECIDED).any():
            return decisions == 1, False
        numbers = self.first + np.fromfile(self.path / "numbers.bin", np.int64)
        return holdout.is_held_out(numbers, fraction), True


def put_together(
    config: DataConfig, paths: Sequence[pathlib.Path], vocabulary_size: int, directory: pathlib.Path, say: Say
) -> None:
    """Write the documents of all parts, in order, as a `TextStore` for each split below `directory`."""
    facts_of_parts = [json.loads((path / "part.json").read_text()) for path in paths]
    firsts = np.cumsum([0, *(facts["documents"] for facts in facts_of_parts)]).tolist()
    parts = [_Part(path, first) for path, first in zip(paths, firsts[:-1], strict=True)]
    total = sum(len(part.store.tokens) for part in parts)
    if not total:
        raise ValueError(f"data.source={config.source!r} holds no text: expected at least some sentences")
    share = _held_out_share(config, parts)
    writers = {name: TextStoreWriter(directory / name, vocabulary_size) for name in SPLITS}
    progress = Progress("putting the parts together", total / 1e6, "million tokens", say)
    words = dict.fromkeys(SPLITS, 0)
    # Of the parts before: documents held out by `validation_fraction`, and those of them that `share` leaves held out.
    before = documents = 0
    for part in parts:
        (held_out, by_number), store = part.held_out(config.validation_fraction), part.store
        count = int(held_out.sum())
        if by_number and share < 1:
            held_out[held_out] = holdout.is_held_out(before + np.arange(count), share)
        before, documents = before + count, documents + int(held_out.sum())
        counts = part.words
        words["train"] += int(counts[~held_out].sum())
        words["validation"] += int(counts[held_out].sum())
        for first, last in _runs(held_out):
            writers[SPLITS[int(held_out[first])]].copy(store, first, last)
            progress.update(sum(writer.tokens for writer in writers.values()) / 1e6)
    for writer in writers.values():
        writer.close()
    names = ("words", "documents") if any(config.skip_words) else ()
    facts_of_text = {
        "documents": {name: len(TextStore(directory / name)) for name in SPLITS},
        "tokens": {name: writer.tokens for name, writer in writers.items()},
        "words": words,
        "left_out": {name: sum(facts["left_out"][name] for facts in facts_of_parts) for name in names},
    }
    (directory / FACTS).write_text(json.dumps(facts_of_text))
    tokens = writers["validation"].tokens
    say(
        f"{firsts[-1]:,} documents, {total:,} tokens; for validation {tokens:,} tokens of {documents:,} documents, "
        f"{tokens / total:.1%} of the text"
    )


def _held_out_share(config: DataConfig, parts: Sequence[_Part]) -> float:
    """Return the share of the documents held out by their number that is used for validation; 1 if all of them are.

    It is less than 1 if these documents have more than `data.validation_tokens` tokens; what stays has about as many.
    """
    tokens = documents = 0
    for part in parts:
        (held_out, by_number), store = part.held_out(config.validation_fraction), part.store
        if by_number:
            tokens += sum(store.token_count(first, last) for first, last in _runs(held_out) if held_out[first])
            documents += int(held_out.sum())
    if config.validation_tokens is None or tokens <= config.validation_tokens or documents < 2:
        return 1.0
    return max(config.validation_tokens / tokens, 1 / documents)


def _runs(values: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield (first, last + 1) of each longest run of equal values."""
    borders = np.concatenate([[0], np.flatnonzero(np.diff(values)) + 1, [len(values)]])
    return ((int(first), int(last)) for first, last in itertools.pairwise(borders) if first < last)
