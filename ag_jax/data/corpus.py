"""Prepared corpora: a tokenizer and rows of token ids, made once in steps that are each cached in a directory.

The names of the directories have a hash of all settings and files that the step depends on:

    tokenizer-HASH   a tokenizer that was trained on the text
    shares-HASH      the share of the text that it is trained on, for texts that may be longer than its limit
    text-HASH        the token ids of both splits
    rows-HASH        the rows of both splits
    files-HASH       sizes and hashes of the files of the text
"""

import dataclasses
import functools
import hashlib
import json
import pathlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from ag_jax.data import checksums, tokenizers
from ag_jax.data.cache import Entry
from ag_jax.data.checksums import KnownContent
from ag_jax.data.config import DataConfig
from ag_jax.data.entries import Entries, Write
from ag_jax.data.progress import Progress
from ag_jax.data.tokenizers import Tokenizer
from ag_jax.distributed import interruption

CACHE_VERSION = 4  # increased whenever the same settings give different rows
SPLITS = ("train", "validation")
Say = Callable[[str], None]
WriteRows = Callable[[pathlib.Path, pathlib.Path], None]


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
    counts: further numbers of each split with their names, such as how many pairs were left out.
    left_out: number of `words` and `documents` that `data.skip_words` left out of the text; empty without it.
    sources: of text, for each of the sources that are mixed, or for the only one, its name, its share in the rows that
        training draws, and the numbers of documents, of tokens (without special ones) and of rows of each split.
    """

    tokenizer: Tokenizer
    train: RowsOfSplit
    validation: RowsOfSplit
    documents: dict[str, int]
    checksums: dict[str, str]
    counts: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)
    left_out: dict[str, int] = dataclasses.field(default_factory=dict)
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
            facts |= {f"{split} {name}": count for name, count in self.counts.get(split, {}).items()}
        return facts | {f"{name} left out": count for name, count in self.left_out.items()}


def cached_rows(
    entries: Entries, text: str, rows: str, write_text: Write, write_rows: WriteRows, verify: bool
) -> Entry:
    """Return the cache entry `rows`; if it is missing, make rows of the token ids in the cache entry `text`.

    text, rows: names of the two entries.
    write_text: (directory) -> None; writes the token ids of both splits.
    write_rows: (directory of the token ids, directory) -> None; makes rows of the token ids, and writes them.
    verify: compare large files of existing entries with their checksums, too.
    """

    def write(directory: pathlib.Path) -> None:
        write_rows(entries.open(text, write_text, check_large=True).path, directory)  # all of it is about to be read

    if (entries.local / text).exists():
        entries.open(text, write_text, check_large=verify)
    return entries.open(rows, write, check_large=verify)


def cached_tokenizer(
    config: DataConfig, entries: Entries, text_key: Callable[[], str], texts: Iterable[str], say: Say
) -> Tokenizer:
    """Return the tokenizer at `config.tokenizer.path`; without a path, a tokenizer trained on texts.

    A trained tokenizer is cached and not trained again.

    text_key: function that returns a hash of the settings and files that the texts depend on.
    texts: the texts to train on; read repeatedly.
    say: prints progress.
    """
    if config.tokenizer.path:
        tokenizer = tokenizers.load(config.tokenizer.path)
        if tokenizer.lacks and not config.is_parallel:
            raise ValueError(
                f"the tokenizer {config.tokenizer.path} has no token for {' and '.join(tokenizer.lacks)}, so only "
                f"data.format=parallel can use it, got data.format={config.format}: choose another tokenizer"
            )
        return tokenizer

    def write(partial: pathlib.Path) -> None:
        say(f"training a {config.tokenizer.kind} tokenizer of up to {config.tokenizer.vocabulary_size} pieces")
        train = functools.partial(tokenizers.train, config.tokenizer, texts)
        interruption.wait_for(train).save(partial)

    return tokenizers.load(entries.open(f"tokenizer-{text_key()}", write, config.verify_cache).path)


def hash_files(
    config: DataConfig,
    entries: Entries,
    key_of_files: str,
    files: Callable[[], Mapping[str, Sequence[tuple[str, pathlib.Path | KnownContent]]]],
    say: Say,
) -> dict[str, list[list[Any]]]:
    """Return {setting: [[name, size in bytes, content hash], ...]} of the files of each setting; the hashes are cached.

    key_of_files: hash of the names, sizes and times of the files.
    files: function that returns {setting: [(name, path), ...]}; called if the files must be read. Instead of a path, an
        item may have a content that is known already, whose fingerprint is then taken for the hash.
    say: prints progress.
    """

    def write(partial: pathlib.Path) -> None:
        files_of = files()
        paths = [path for items in files_of.values() for _, path in items]
        sizes = [path.stat().st_size for path in paths if isinstance(path, pathlib.Path)]
        if sizes:
            say(f"hashing {len(sizes):,} files")
        progress, done = Progress("hashing the files", sum(sizes) / 1e6, "MB", say), 0
        hashes: dict[str, list[list[Any]]] = {setting: [] for setting in files_of}
        for setting, items in files_of.items():
            for name, path in items:
                if isinstance(path, KnownContent):
                    hashes[setting].append([name, path.size, path.fingerprint])
                    continue
                size = path.stat().st_size
                hashes[setting].append([name, size, checksums.content_hash(path)])
                done += size
                progress.update(done / 1e6)
        (partial / "files.json").write_text(json.dumps(hashes))

    return json.loads(
        (entries.open(f"files-{key_of_files}", write, config.verify_cache).path / "files.json").read_text()
    )


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
