"""Prepare the token ids and the rows of one source, as entries of the cache.

Several sources without weights are one text, and count as one source here.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

from ag_jax.data.config import PAIR_FORMATS, DataConfig
from ag_jax.data.corpus import SPLITS, Say, cached_rows, key
from ag_jax.data.entries import Entries
from ag_jax.data.progress import Progress
from ag_jax.data.records import babylm, sources
from ag_jax.data.records.files import warn_once
from ag_jax.data.text import formats, packing
from ag_jax.data.text import prepare as text_parts
from ag_jax.data.text.assembly import FACTS
from ag_jax.data.text.store import Rows, TextStore, write_rows
from ag_jax.data.tokenizers import Tokenizer


def of_config(config: DataConfig, tokenizer: Tokenizer, entries: Entries) -> text_parts.Source:
    """Return the text of a config whose sources have no weights as a `Source` to tokenise, with its cache key."""

    def key_now() -> str:
        return key(*_identities(config, entries), tokenizer.fingerprint())

    return text_parts.Source(config, key_now(), key_now)


def rows_name(text: text_parts.Source) -> str:
    """Return the name of the cache entry with the rows of a text."""
    config = text.config
    return f"rows-{key(text.key, config.format, config.sequence_length, config.duplicates, config.pack)}"


def identity(entries: Entries, source: str) -> list[Any]:
    """Return what identifies the content of a source, as stored in the cache if this machine lacks the source.

    That is as it was when the source was prepared elsewhere into the same object store.

    Raises ValueError if different texts were prepared there under the source's name.
    """
    try:
        return sources.identity(source)
    except FileNotFoundError:
        if entries.remote is None:
            raise
        identities = [_recalled(entries, part) for part in sources.parts(source)]
        if None in identities:
            raise
        items = [item for part in identities for item in part or ()]
        warn_once(
            f"data.source={source!r} is not on this machine: taking what was prepared of it in {entries.remote}, from "
            f"{items[0][0]}" + (f" and {len(items) - 1:,} more" if len(items) > 1 else "")
        )
        return items


def remember(config: DataConfig, entries: Entries) -> None:
    """Store what identifies the content of a config's sources, for machines that lack the text.

    They are stored under absolute paths, because a relative one names other texts in other working directories, and all
    of these may be prepared in one object store. What a relative path named is stored, too (`_recalled`).
    """
    for source in filter(None, (config.source, config.validation_source)):
        for part in sources.parts(source):
            place = _place(part)
            with contextlib.suppress(FileNotFoundError):  # of this machine, which only knows what others stored
                entries.remember(f"source-{key(place)}", sources.identity(part))
                if place != part:
                    entries.remember(f"named-{key(part)}-{key(place)}", place)


def _recalled(entries: Entries, part: str) -> list[Any] | None:
    """Return the stored identity of the content of one part of a source; None if there is none.

    It is that of the same absolute path. A machine with another working directory gets that of the only path to which
    the relative path `part` led elsewhere. Raises ValueError if it led to several.
    """
    if (items := entries.recall(f"source-{key(_place(part))}")) is not None:
        return items
    places = entries.recall_all(f"named-{key(part)}-")
    if len(places) > 1:
        raise ValueError(
            f"data.source={part!r} is not on this machine, and in {entries.remote} it is the name of several texts: "
            f"expected the absolute path of one of them, {' or '.join(places)}"
        )
    return entries.recall(f"source-{key(places[0])}") if places else None


def _place(part: str) -> str:
    """Return the absolute path of a part of a source, or its name if it is no path."""
    is_path = part != "sotu" and not part.startswith(("tfds:", "hf:")) and "://" not in part
    if babylm.is_folder(part):
        return babylm.absolute(part)
    return os.path.abspath(os.path.expanduser(part)) if is_path else part


@dataclasses.dataclass(frozen=True)
class PreparedSource:
    """A source of text with the rows of token ids, counts and checksums prepared from it.

    source: its name.
    rows: rows of each split.
    documents, tokens: number of documents of each split, and of their tokens, without special ones.
    words: number of words of each split, separated by white space.
    checksums: hash of the rows of each split.
    left_out: number of `words` and `documents` that `data.skip_words` left out; empty without it.
    """

    source: str
    rows: dict[str, Rows]
    documents: dict[str, int]
    tokens: dict[str, int]
    words: dict[str, int]
    checksums: dict[str, str]
    left_out: dict[str, int]

    def sizes(self, share: float) -> dict[str, Any]:
        """Return a source's name, its `share` in the rows of training, and its counts by split, for a run's summary."""
        sizes = {
            split: {
                "documents": self.documents[split],
                "tokens": self.tokens[split],
                "rows": len(self.rows[split]),
                "words": self.words[split],
            }
            for split in SPLITS
        }
        return {"source": self.source, "share of the rows of training": share, **sizes}


def prepare(text: text_parts.Source, entries: Entries, tokenizer: Tokenizer, say: Say) -> PreparedSource:
    """Return the rows and counts of a text without weights, from the cache if they were prepared before."""
    config = text.config

    def write_text(directory: pathlib.Path) -> None:
        text_parts.write_text(text, entries, tokenizer, directory, say)

    def write(tokens: pathlib.Path, directory: pathlib.Path) -> None:
        text_parts.remove_parts(text, entries)  # the token ids are complete, so this makes room for the rows
        _write_rows(config, tokenizer, tokens, directory, say)

    entry = cached_rows(entries, text.text, rows_name(text), write_text, write, config.verify_cache)
    text_parts.remove_parts(text, entries)  # of a process that was killed before it removed them
    return PreparedSource(
        source=config.source,
        rows={split: Rows(entry.path / split, entry) for split in SPLITS},
        checksums={split: entry.digest(split) for split in SPLITS},
        **json.loads((entry.path / FACTS).read_text()),
    )


def _identities(config: DataConfig, entries: Entries) -> list[Any]:
    """Return settings and file versions for a cache key: a list that is equal only for the same text and held-out part.

    The list is made without reading the text, and is part of the cache's keys.
    """
    source, held_out = identity(entries, config.source), config.validation_source
    validation = identity(entries, held_out) if held_out else [config.validation_fraction, config.validation_tokens]
    return [source, config.text_field, validation, *text_settings(config, entries)]


def files_of_parts(config: DataConfig, entries: Entries) -> list[int]:
    """Return the number of files, or of data sets, in each part of `data.source`."""
    return [len(identity(entries, part)) for part in sources.parts(config.source)]


def text_settings(config: DataConfig, entries: Entries) -> list[Any]:
    """Return the settings, beside the source, that decide which text is read, for the cache's keys."""
    # Each part of `data.source` may have its own number of words to skip: the same files in other parts are another
    # text then.
    files = files_of_parts(config, entries) if len(set(config.skip_words)) > 1 else None
    # The identity of a source is that of its files, which `babylm:` cuts into other documents.
    folders = [
        [number for number, part in enumerate(sources.parts(source)) if babylm.is_folder(part)] if source else []
        for source in (config.source, config.validation_source)
    ]
    return [config.skip_words, files, config.max_words, folders]


def _write_rows(
    config: DataConfig, tokenizer: Tokenizer, text: pathlib.Path, directory: pathlib.Path, say: Say
) -> None:
    """Write the training and the validation text as rows. Raises ValueError if either is shorter than one row."""
    has_pairs = config.format in PAIR_FORMATS
    shutil.copyfile(text / FACTS, directory / FACTS)
    for split in SPLITS:
        text_store = TextStore(text / split)
        if has_pairs and len(text_store) == 1:
            say(f"{split}: a single document, so that random second segments come from the same one; better give more")
        rows = formats.make_rows(config, text_store, tokenizer.specials)
        rows = _with_progress(rows, split, config, len(text_store.tokens), say)
        if config.pack:
            rows = packing.pack(rows, config.sequence_length)
        write_rows(directory / split, rows, tokenizer.vocabulary_size, has_pairs=has_pairs, is_packed=config.pack)
        split_rows = Rows(directory / split)
        if not len(split_rows):
            raise ValueError(
                f"the {split} text of data.source={config.source!r} is shorter than one row of "
                f"{config.sequence_length} tokens: give more text or lower data.sequence_length"
                + (" (or hold out more: data.validation_fraction)" if split == "validation" else "")
            )
        texts = f"{split_rows.text_count:,} texts in " if config.pack else ""
        filled = f"{split_rows.fill_rate(config.sequence_length):.1%} of their positions filled"
        say(f"{split}: {texts}{len(split_rows):,} rows, {filled}")


def _with_progress(
    rows: Iterator[formats.Row], split: str, config: DataConfig, tokens: int, say: Say
) -> Iterator[formats.Row]:
    """Yield the rows of a split, and print the progress; `tokens` is the number of tokens of its text."""
    progress = Progress(f"making the {split} rows", tokens * config.duplicates / 1e6, "million tokens", say)
    done = 0
    for number, row in enumerate(rows):
        yield row
        done += len(row.tokens)
        if number % 1000 == 0:
            progress.update(done / 1e6)
