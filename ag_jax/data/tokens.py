"""Tokenise a text in parts, which several processes and machines may share, and put the parts together.

Which documents are held out depends on all documents before, and so do rows that continue into the next document.
Therefore a part has the tokens of all its documents, and one process puts the parts together when all are there. What
comes out is the same for any number of parts and processes.

A part is a `TextStore` with four more files: `numbers.bin`, the number of each document in its part, in which documents
without any token count, too; `held_out.bin`, whether the document is held out (-1 if its number decides); `words.bin`,
the number of words of each document; and `part.json`, the number of documents, and of what was left out, and the share
that is held out.
"""

import dataclasses
import functools
import itertools
import json
import pathlib
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ag_jax.data import mapping, tokenizers
from ag_jax.data.cache import Cache, key
from ag_jax.data.layout import SPLITS, UNDECIDED, Encoded, Layout, Part, Piece
from ag_jax.data.progress import Progress, Say
from ag_jax.data.store import ArrayWriter, TextStore, TextStoreWriter
from ag_jax.data.text import holdout, pointers
from ag_jax.data.tokenizers import Tokenizer

ENCODED_TOGETHER = 2**21  # characters, at least, that are tokenised in one call
IN_PROCESSES = 2**26  # bytes of a part from which on it is tokenised in several processes of this machine
MEGABYTE = 1e6
FACTS = "text.json"  # numbers of documents, tokens and words of each split, of what was left out, and what is held out


@dataclasses.dataclass(frozen=True)
class Text:
    """A text to tokenise on its own, with the tokenizer.

    layout: its settings and how it is read.
    tokenizer: the tokenizer.
    key: hash of all that the tokens depend on.
    """

    layout: Layout
    tokenizer: Tokenizer
    key: str

    @classmethod
    def of(cls, layout: Layout, tokenizer: Tokenizer) -> "Text":
        """Return the text of a layout, with the hash of its files as they are now."""
        config = layout.config
        # The tokens are the same with and without pointers, which are stored with them.
        beside = [config.pointers, config.pointer_tokens] if config.pointers else []
        return cls(layout, tokenizer, key(layout.identity(), tokenizer.fingerprint(), *beside))

    @property
    def tokens_name(self) -> str:
        """The name of the directory of the cache with the token ids."""
        return f"text-{self.key}"

    @property
    def rows_name(self) -> str:
        """The name of the directory of the cache with the rows."""
        config = self.layout.config
        settings = config.format, config.sequence_length, config.duplicates, config.pack, config.max_tokens
        return f"rows-{key(self.key, *settings)}"

    @property
    def beginning_of_parts(self) -> str:
        """The beginning of the names of all parts of the text."""
        return f"part-{self.key}-"

    @functools.cached_property
    def parts(self) -> dict[str, Part]:
        """The parts into which the text is divided for tokenising, by the names of their directories of the cache."""
        parts = self.layout.parts()
        # Names say which files a part has, so that parts of another size are not taken for these.
        ends = list(itertools.accumulate(len(part.units) for part in parts))
        names = (f"{end - len(part.units):06}-{end:06}" for end, part in zip(ends, parts, strict=True))
        return {f"{self.beginning_of_parts}{name}": part for name, part in zip(names, parts, strict=True)}


def tokenise(texts: Sequence[Text], cache: Cache, say: Say) -> None:
    """Tokenise the parts of some texts, together with other processes; return when all are complete.

    This process makes missing parts that no other is making, and waits for the others.
    """
    parts = {name: (text, part) for text in texts for name, part in text.parts.items()}
    total = sum(part.size for _, part in parts.values())

    def complete() -> int:
        """Return the bytes of text of all parts that are complete."""
        return sum(part.size for name, (_, part) in parts.items() if cache.is_complete(name))

    if all(map(cache.is_complete, parts)):  # not by size, because a part may be empty
        return
    names = ", ".join(text.layout.config.source for text in texts)
    say(f"tokenising {names}: {total / MEGABYTE:,.1f} MB in {len(parts):,} part{'s' if len(parts) > 1 else ''}")
    tokens_here = 0  # of parts that this process has made

    def write(text: Text, part: Part, directory: pathlib.Path) -> None:
        nonlocal tokens_here
        before = complete()

        def report(size: int, tokens: int) -> None:
            progress.update((before + size) / MEGABYTE, f"{tokens_here + tokens:,} tokens in this process")

        tokens_here += write_part(text, part, directory, report)

    with Progress("tokenising", total / MEGABYTE, "MB", say, complete() / MEGABYTE) as progress:
        cache.build_all(
            {name: functools.partial(write, *each) for name, each in parts.items()},
            is_needed=lambda name: not cache.is_complete(parts[name][0].tokens_name),
            report=lambda: progress.update(complete() / MEGABYTE),
        )


def write_part(
    text: Text, part: Part, directory: pathlib.Path, report: Callable[[int, int], None] = lambda size, tokens: None
) -> int:
    """Write the token ids of a part into a directory, and return their number.

    report: called with the bytes of text that were read so far, about, and the number of tokens.

    Raises ValueError if a file changes meanwhile.
    """
    config = text.layout.config
    fraction, limit = config.validation_fraction, config.validation_tokens
    tokens, held_out = _write_part(text, part, directory, fraction, report)
    if part.held_out is None and not config.validation_source and limit is not None and held_out > limit:
        # So few documents are a small text, which can be tokenised again with a smaller share held out; and a text that
        # ends after `data.max_words` is tokenised as one.
        fraction *= limit / held_out
        tokens, _ = _write_part(text, part, directory, fraction, report)
    changed = [str(unit.path) for unit in part.units if unit.has_changed()]
    # Files may also have been added, or links led elsewhere, since the key was computed.
    if changed or Text.of(text.layout, text.tokenizer).key != text.key:
        raise changed_text(config.source, *changed[:1])
    return tokens


def changed_text(source: str, what: str = "the files") -> ValueError:
    """Return the error for text that changes while it is read."""
    return ValueError(f"{what} of data.source={source!r} were changed while they were read: run the command again")


def _write_part(
    text: Text, part: Part, directory: pathlib.Path, fraction: float, report: Callable[[int, int], None]
) -> tuple[int, int]:
    """Write the files of a part, of which `fraction` is held out; return (number of tokens, of held-out tokens)."""
    names = pointers.of_words(text.layout.pointers)
    writer = TextStoreWriter(directory, text.tokenizer.vocabulary_size, names)
    numbers = ArrayWriter(directory / "numbers.bin", np.int64)
    decisions = ArrayWriter(directory / "held_out.bin", np.int8)
    words = ArrayWriter(directory / "words.bin", np.int64)
    left_out: Counter[str] = Counter()
    together: deque[list[Piece]] = deque()  # those that are being tokenised
    count = held_out = characters = 0

    def batches() -> Iterator[list[tuple[str, ...]]]:
        for pieces in _together(text.layout.read(part, left_out, fraction)):
            together.append(pieces)
            yield [piece.texts for piece in pieces]

    with tempfile.TemporaryDirectory() as folder:
        if in_processes := part.size >= IN_PROCESSES:
            text.tokenizer.save(folder)
        encode = functools.partial(_encoded, text.layout.encode, folder if in_processes else text.tokenizer)
        for encoded in mapping.mapped(encode, batches(), in_processes=in_processes):
            pieces = together.popleft()
            has_tokens = encoded.sentences > 0
            of_pieces = np.array([piece.held_out for piece in pieces], np.int8)
            if text.layout.without_tokens:
                for decision in of_pieces[~has_tokens]:
                    left_out[f"{SPLITS[decision]} pairs {text.layout.without_tokens}"] += 1
            # A text without tokens is no document of the store, so the lists beside the store leave it out, too.
            writer.append(encoded.tokens, encoded.lengths, encoded.sentences[has_tokens], encoded.pointers)
            left_out.update(encoded.left_out or {})
            numbers.append(np.array([piece.document for piece in pieces])[has_tokens])
            decisions.append(of_pieces[has_tokens])
            words.append(encoded.words[has_tokens])
            held_out += int(encoded.lengths[np.repeat(of_pieces == 1, encoded.sentences)].sum())
            count = pieces[-1].document + 1
            characters += sum(len(one) for piece in pieces for one in piece.texts)
            report(min(characters, part.size), writer.tokens)
    for file in (writer, numbers, decisions, words):
        file.close()
    facts = {"documents": count, "left_out": left_out, "fraction": fraction}
    (directory / "part.json").write_text(json.dumps(facts))
    return writer.tokens, held_out


def _together(pieces: Iterator[Piece]) -> Iterator[list[Piece]]:
    """Yield pieces in lists that have `ENCODED_TOGETHER` characters, or more by a part of the last piece."""
    group, size = list[Piece](), 0
    for piece in pieces:
        group.append(piece)
        size += sum(map(len, piece.texts))
        if size >= ENCODED_TOGETHER:
            yield group
            group, size = [], 0
    if group:
        yield group


def _encoded(encode: Callable[..., Encoded], tokenizer: Tokenizer | str, texts: Sequence[tuple[str, ...]]) -> Encoded:
    """Return `encode(tokenizer, texts)`; the tokenizer may be given as the folder with its files."""
    return encode(_loaded(tokenizer) if isinstance(tokenizer, str) else tokenizer, texts)


@functools.lru_cache(maxsize=1)
def _loaded(folder: str) -> Tokenizer:
    return tokenizers.load(folder)


def write_text(text: Text, cache: Cache, directory: pathlib.Path, say: Say) -> None:
    """Write the token ids of the training and the validation text as a `TextStore` each, below `directory`.

    They are put together from the parts, which are made first if they are missing.
    """
    tokenise([text], cache, say)
    writers = {name: functools.partial(write_part, text, part) for name, part in text.parts.items()}
    paths = [cache.build_once(name, write, check_large=True).path for name, write in writers.items()]
    put_together(text, paths, directory, say)


@dataclasses.dataclass(frozen=True)
class _StoredPart:
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


def put_together(text: Text, paths: Sequence[pathlib.Path], directory: pathlib.Path, say: Say) -> None:
    """Write the documents of all parts, in order, as a `TextStore` for each split, and facts about them.

    Of the documents that are held out by their number, so many are for validation that they have about
    `data.validation_tokens` tokens.

    Raises ValueError if no part has a token.
    """
    config, vocabulary_size = text.layout.config, text.tokenizer.vocabulary_size
    facts_of_parts = [json.loads((path / "part.json").read_text()) for path in paths]
    firsts = np.cumsum([0, *(facts["documents"] for facts in facts_of_parts)]).tolist()
    parts = [_StoredPart(path, first) for path, first in zip(paths, firsts[:-1], strict=True)]
    total = sum(len(part.store.tokens) for part in parts)
    if not total:
        raise ValueError(f"data.source={config.source!r} holds no text: expected at least some sentences")
    share = _held_out_share(config.validation_fraction, config.validation_tokens, parts)
    names = pointers.of_words(text.layout.pointers)
    writers = {name: TextStoreWriter(directory / name, vocabulary_size, names) for name in SPLITS}
    words = dict.fromkeys(SPLITS, 0)
    # Of the parts before: documents held out by `validation_fraction`, and those of them that `share` leaves held out.
    before = documents = 0
    with Progress("putting the parts together", total / 1e6, "million tokens", say) as progress:
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
    if pointers.OFFSET_BY_WORD in config.pointers:
        pointers.add_offsets_by_word(directory / "train", directory / "validation", vocabulary_size)
    left_out: Counter[str] = Counter()
    for facts in facts_of_parts:
        left_out.update(facts["left_out"])
    facts_of_text: dict[str, Any] = {
        "documents": {name: len(TextStore(directory / name)) for name in SPLITS},
        "tokens": {name: writer.tokens for name, writer in writers.items()},
        "words": words,
        "left_out": left_out,
        "held_out": [facts_of_parts[0]["fraction"], share],
    }
    (directory / FACTS).write_text(json.dumps(facts_of_text))
    tokens = writers["validation"].tokens
    say(
        f"{firsts[-1]:,} documents, {total:,} tokens; for validation {tokens:,} tokens of {documents:,} documents, "
        f"{tokens / total:.1%} of the text"
    )


def _held_out_share(fraction: float, limit: int | None, parts: Sequence[_StoredPart]) -> float:
    """Return the share of the documents held out by their number that is used for validation; 1 if all of them are.

    It is less than 1 if these documents have more than `limit` tokens; what stays has about as many.
    """
    tokens = documents = 0
    for part in parts:
        (held_out, by_number), store = part.held_out(fraction), part.store
        if by_number:
            tokens += sum(store.token_count(first, last) for first, last in _runs(held_out) if held_out[first])
            documents += int(held_out.sum())
    if limit is None or tokens <= limit or documents < 2:
        return 1.0
    return max(limit / tokens, 1 / documents)


def _runs(values: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield (first, last + 1) of each longest run of equal values."""
    borders = np.concatenate([[0], np.flatnonzero(np.diff(values)) + 1, [len(values)]])
    return ((int(first), int(last)) for first, last in itertools.pairwise(borders) if first < last)
