"""Prepared corpora: a tokenizer and rows of token ids, made once in steps that are each cached in a directory.

The names of the directories have a hash of all settings and files that the step depends on:

    tokenizer-HASH   a tokenizer that was trained on the text
    shares-HASH      the share of the text that it is trained on, for texts that may be longer than its limit
    text-HASH        the token ids of both splits
    rows-HASH        the rows of both splits
    files-HASH       sizes and hashes of the files of the text
"""

import dataclasses
import hashlib
import json
import sys
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from ag_jax.data.layout import SPLITS
from ag_jax.data.tokenizers import Tokenizer

CACHE_VERSION = 5  # increased whenever the same settings give different rows
Say = Callable[[str], None]


class SplitRows(Protocol):
    """Protocol of the rows of token ids of a split (training or validation), as summaries and plots need them.

    tokens: token ids of all rows, one row after the other; of pairs, those of the target side, which are predicted.
    """

    @property
    def tokens(self) -> Any: ...
    def __len__(self) -> int: ...


RowsOfSplit = TypeVar("RowsOfSplit", bound=SplitRows)


@dataclasses.dataclass(frozen=True)
class Corpus(Generic[RowsOfSplit]):
    """A tokenizer, and the rows of token ids into which it encoded the training and the validation text.

    tokenizer: the tokenizer of the rows.
    train: rows for training.
    validation: rows for validation.
    documents: number of documents of each split; of pairs, the number of pairs that rows hold.
    checksums: hash of the rows of each split.
    counts: further numbers with their names, such as how many pairs of a split were left out.
    sources: of text, for each of the sources that are mixed, or for the only one, its name, its share in the rows that
        training draws, and the numbers of documents, of tokens (without special ones) and of rows of each split.
    """

    tokenizer: Tokenizer
    train: RowsOfSplit
    validation: RowsOfSplit
    documents: dict[str, int]
    checksums: dict[str, str]
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    sources: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    @property
    def train_tokens(self) -> int:
        """The number of tokens of the training text of all `sources`, without special tokens."""
        return sum(source["train"]["tokens"] for source in self.sources)

    @property
    def words(self) -> dict[str, int]:
        """{split: number of words separated by white space}; {} for translation pairs and for mixtures of sources."""
        only = self.sources if len(self.sources) == 1 else []
        return {split: source[split]["words"] for source in only for split in SPLITS}

    def facts(self) -> dict[str, int | str]:
        """Return a summary of the corpus by which two corpora can be compared: equal for the same text and settings."""
        facts: dict[str, int | str] = {"tokenizer": self.tokenizer.fingerprint()}
        for split, rows in (("train", self.train), ("validation", self.validation)):
            facts |= {f"{split} documents": self.documents[split], f"{split} rows": len(rows)}
            facts |= {f"{split} tokens": len(rows.tokens), f"{split} checksum": self.checksums[split]}
        return facts | self.counts


def key(*parts) -> str:
    """Return a hash of settings, for the name of a cached directory."""
    return hashlib.sha256(json.dumps([CACHE_VERSION, *parts], sort_keys=True).encode()).hexdigest()[:16]


def announcer(quiet: bool) -> Say:
    """Return a function that prints progress messages; with `quiet`, one that prints nothing."""
    return _print_nothing if quiet else _print


def _print(message: str) -> None:
    print(f"data: {message}", file=sys.stderr, flush=True)


def _print_nothing(message: str) -> None:
    del message
