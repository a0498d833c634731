"""Tokenise a text in parts, which several processes and machines may share.

A part takes consecutive files of `data.source` until they have at least `PART_SIZE` bytes, so every process finds the
same parts in the same list of files. Which documents are held out depends on all documents before, and so do rows
that continue into the next document. Therefore a part has the tokens of all its documents, and one process puts the
parts together (`assembly`), when all are there. What comes out is the same for any number of parts and processes.

Texts of fewer than 100 documents are a single part, because the sentences that are held out from a document depend on
those held out before (`holdout`). So is a text that ends after `data.max_words`, because where it ends depends on all
that comes before.

A part is a `TextStore`, with four more files: `numbers.bin`, the number of each document in its part, in which
documents without any token count, too; `held_out.bin`, whether the document is held out (-1 if its number decides); and
`words.bin`, the number of words of each document; and `part.json`, the number of documents, and of those that
`data.skip_words` left out.
"""

import dataclasses
import functools
import itertools
import json
import pathlib
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from ag_jax.data.config import DataConfig
from ag_jax.data.corpus import Say
from ag_jax.data.entries import Entries
from ag_jax.data.progress import Progress
from ag_jax.data.records import sources
from ag_jax.data.records.units import Unit
from ag_jax.data.text import assembly, holdout
from ag_jax.data.text.assembly import UNDECIDED
from ag_jax.data.text.holdout import Piece
from ag_jax.data.text.sentences import split_sentences
from ag_jax.data.text.store import ArrayWriter, TextStoreWriter
from ag_jax.data.tokenizers import Tokenizer

PART_SIZE = 2**28  # bytes of files after which a part is given no further file
ENCODED_TOGETHER = 2**21  # characters, at least, that are tokenised in one call, on all cores
MEGABYTE = 1e6


@dataclasses.dataclass(frozen=True)
class Source:
    """A text to tokenise on its own: one source of a mixture with weights, or all sources without weights.

    config: the settings of the data.
    key: hash of all that the tokens depend on.
    key_now: function that returns the key for the files as they are now.
    """

    config: DataConfig
    key: str
    key_now: Callable[[], str]

    @property
    def text(self) -> str:
        """The name of the cache entry with the token ids of the text."""
        return f"text-{self.key}"

    @functools.cached_property
    def parts(self) -> list["Part"]:
        """The parts into which the text is divided for tokenising; reads at most the first 100 documents."""
        groups = _groups(self.config)
        # Names say which units a part has, so that parts of another `PART_SIZE` are not taken for these.
        ends = list(itertools.accumulate(len(group) for group, _ in groups))
        return [
            Part(f"part-{self.key}-{end - len(group):06}-{end:06}", tuple(group), decision)
            for end, (group, decision) in zip(ends, groups, strict=True)
        ]


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a text, a group of consecutive files, that one process tokenises as a whole.

    name: name of its entry in the cache.
    units: the files that it consists of.
    held_out: 0 if all documents are for training, 1 if all are for validation, `UNDECIDED` if the numbers of the
        documents decide, None if the whole text must be read to decide: documents are cut into a piece for training and
        one for validation, or the text ends after `data.max_words`.
    """

    name: str
    units: tuple[Unit, ...]
    held_out: int | None

    @property
    def size(self) -> int:
        """The approximate number of bytes of the part's text."""
        return sum(unit.size for unit in self.units)


def _groups(config: DataConfig) -> Sequence[tuple[Sequence[Unit], int | None]]:
    """Return [(files of a part, how its documents are held out: `Part.held_out`), ...] for the text of a config."""
    units = list(sources.units(config.source, config.skip_words))
    if config.max_words is not None:
        held_out = sources.units(config.validation_source) if config.validation_source else ()
        return [([*units, *held_out], None)]
    if config.validation_source:
        held_out = sources.units(config.validation_source)
        return [(group, 0) for group in _grouped(units)] + [(group, 1) for group in _grouped(held_out)]
    if holdout.holds_out_documents(config):
        return [(group, UNDECIDED) for group in _grouped(units)]
    return [(units, None)]


def _grouped(units: Iterable[Unit]) -> list[list[Unit]]:
    """Return consecutive files or pieces of data sets in groups; a group is full when it has `PART_SIZE` bytes."""
    groups: list[list[Unit]] = [[]]
    size = 0
    for unit in units:
        if size >= PART_SIZE:
            groups.append([])
            size = 0
        groups[-1].append(unit)
        size += unit.size
    return groups


def tokenise(of: Sequence[Source], entries: Entries, tokenizer: Tokenizer, say: Say) -> None:
    """Tokenise the parts of some texts, together with other processes; return when all are complete.

    This process makes missing parts that no other is making, and waits for the others.
    """
    parts = [(source, part) for source in of for part in source.parts]
    total = sum(part.size for _, part in parts)

    def complete() -> int:
        """Return the bytes of text of all parts that are complete."""
        return sum(part.size for _, part in parts if entries.is_complete(part.name))

    if all(entries.is_complete(part.name) for _, part in parts):  # not by size, because a part may be empty
        return
    names = ", ".join(source.config.source for source in of)
    say(f"tokenising {names}: {total / MEGABYTE:,.0f} MB in {len(parts):,} part{'s' if len(parts) > 1 else ''}")
    progress = Progress("tokenising", total / MEGABYTE, "MB", say, complete() / MEGABYTE)
    tokens_here = 0  # of parts that this process has made

    def write(source: Source, part: Part, directory: pathlib.Path) -> None:
        nonlocal tokens_here
        before = complete()

        def report(size: int, tokens: int) -> None:
            progress.update((before + size) / MEGABYTE, f"{tokens_here + tokens:,} tokens in this process")

        tokens_here += write_part(part, source.config, tokenizer, directory, report)

    entries.make_all(
        {part.name: functools.partial(write, source, part) for source, part in parts},
        is_over=lambda: all(entries.is_complete(source.text) for source in of),
        report=lambda: progress.update(complete() / MEGABYTE),
    )


def write_part(
    part: Part, config: DataConfig, tokenizer: Tokenizer, directory: pathlib.Path, report: Callable[[int, int], None]
) -> int:
    """Write the token ids of a part into a directory, and return their number.

    report: called with the bytes of text that were read so far, about, and the number of tokens.

    Raises ValueError if a file changes meanwhile.
    """
    left_out = Counter(words=0, documents=0)
    tokens, held_out = _encode(_pieces(part, config, left_out), part, tokenizer, directory, left_out, report)
    limit = None if config.validation_source else config.validation_tokens
    if part.held_out is None and limit is not None and held_out > limit:
        # So few documents are a small text, which can be tokenised again with a smaller share held out; and a text that
        # ends after `data.max_words` is tokenised as one.
        fraction = config.validation_fraction * limit / held_out
        config = dataclasses.replace(config, validation_fraction=fraction)
        left_out.clear()
        tokens, _ = _encode(_pieces(part, config, left_out), part, tokenizer, directory, left_out, report)
    if changed := [unit.path for unit in part.units if unit.has_changed()]:
        raise changed_text(config, str(changed[0]))
    return tokens


def changed_text(config: DataConfig, what: str = "the files") -> ValueError:
    """Return the error for text that changes while it is read."""
    return ValueError(
        f"{what} of data.source={config.source!r} were changed while they were read: run the command again"
    )


def _pieces(part: Part, config: DataConfig, left_out: Counter[str]) -> Iterator[tuple[Piece, int]]:
    """Yield (document or piece of one, 0 for training, 1 for validation or `UNDECIDED`) for each document of a part."""
    if part.held_out is None:
        for piece in holdout.split(config, left_out):
            yield piece, int(piece.held_out)
        return
    for number, text in enumerate(sources.documents_of(part.units, config.text_field, left_out)):
        yield Piece(number, text, bool(part.held_out)), part.held_out


def _encode(
    pieces: Iterator[tuple[Piece, int]],
    part: Part,
    tokenizer: Tokenizer,
    directory: pathlib.Path,
    left_out: Counter[str],
    report: Callable[[int, int], None],
) -> tuple[int, int]:
    """Write the token ids of pieces of text as a part's files; return (number of tokens, number of held-out tokens).

    Texts are encoded together, about `ENCODED_TOGETHER` characters at a time.
    """
    writer = TextStoreWriter(directory, tokenizer.vocabulary_size)
    numbers = ArrayWriter(directory / "numbers.bin", np.int64)
    decisions = ArrayWriter(directory / "held_out.bin", np.int8)
    words = ArrayWriter(directory / "words.bin", np.int64)
    waiting: list[tuple[list[str], Piece, int]] = []
    count = characters = read = held_out = 0

    def flush() -> None:
        nonlocal held_out
        # One call for many texts, because the tokenizer then uses all cores.
        encoded = iter(tokenizer.encode_batch([sentence for sentences, *_ in waiting for sentence in sentences]))
        for sentences, piece, decision in waiting:
            before = writer.tokens
            # A text without tokens is no document of the store, so the lists beside the store leave it out, too.
            if writer.append(list(itertools.islice(encoded, len(sentences)))):
                numbers.append([piece.document])
                decisions.append([decision])
                words.append([len(piece.text.split())])
                held_out += (writer.tokens - before) * (decision == 1)
        waiting.clear()

    for piece, decision in pieces:
        waiting.append((split_sentences(piece.text), piece, decision))
        count, characters = piece.document + 1, characters + len(piece.text)
        if characters >= ENCODED_TOGETHER:
            flush()
            read, characters = read + characters, 0
            report(min(read, part.size), writer.tokens)
    flush()
    for file in (writer, numbers, decisions, words):
        file.close()
    (directory / "part.json").write_text(json.dumps({"documents": count, "left_out": dict(left_out)}))
    return writer.tokens, held_out


def write_text(source: Source, entries: Entries, tokenizer: Tokenizer, directory: pathlib.Path, say: Say) -> None:
    """Write the token ids of the training and the validation text as a `TextStore` each, below `directory`.

    They are put together from the parts, which are made first if they are missing.

    Raises ValueError if the text has no tokens, or its files have changed.
    """
    config = source.config
    local = directory / "parts"  # where processes do not share their parts
    parts = entries if entries.is_shared else Entries(local)
    tokenise([source], parts, tokenizer, say)
    paths = []
    for part in source.parts:

        def write(directory: pathlib.Path, part: Part = part) -> None:
            write_part(part, config, tokenizer, directory, lambda size, tokens: None)

        paths.append(parts.open(part.name, write, check_large=True).path)
    if source.key_now() != source.key:
        raise changed_text(config)
    assembly.put_together(config, paths, tokenizer.vocabulary_size, directory, say)
    shutil.rmtree(local, ignore_errors=True)


def remove_parts(source: Source, entries: Entries) -> None:
    """Delete from the cache the tokenised parts of a text that is complete, if several processes have made them."""
    if not entries.is_shared:
        return
    beginning = f"part-{source.key}-"
    roots = [root for root in (entries.local, entries.remote) if root is not None]
    for name in {path.name for root in roots for path in root.glob(f"{beginning}*")}:
        if re.fullmatch(r"[0-9-]+", name.removeprefix(beginning)):
            entries.remove(name)
    entries.remove_leftovers(beginning)
