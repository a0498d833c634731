"""The layout of a text of documents: read from `data.source`, split into sentences, made into rows that are masked."""

import contextlib
import dataclasses
import functools
import math
import os
import pathlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from ag_jax.data import store
from ag_jax.data.cache import Cache, key
from ag_jax.data.checksums import Entry, KnownContent
from ag_jax.data.config import DataConfig
from ag_jax.data.layout import Encoded, Part, Piece, parts_of
from ag_jax.data.records import babylm, sources
from ag_jax.data.records.annotated import Annotated
from ag_jax.data.records.files import warn_once
from ag_jax.data.store import Block, Rows
from ag_jax.data.text import holdout, pointers, sequences
from ag_jax.data.text.sentences import split_sentences
from ag_jax.data.tokenizers import SpecialTokens, Tokenizer


@dataclasses.dataclass(frozen=True)
class Documents:
    """A text of documents: one source of a mixture with weights, or all sources without weights.

    config: the settings of the data.
    cache: the cache, which remembers the identity of sources that this machine lacks.
    """

    config: DataConfig
    cache: Cache

    sides: ClassVar[tuple[str, ...]] = ("",)
    without_tokens: ClassVar[str] = ""  # a text without tokens is no document

    def identity(self) -> list[Any]:
        """Return settings and versions of files that are equal only for the same pieces; made without reading text."""
        config = self.config
        source, held_out = identity(self.cache, config.source), config.validation_source
        # Each part of `data.source` may have its own number of words to skip: the same files in other parts are another
        # text then.
        parts = sources.parts(config.source) if len(set(config.skip_words)) > 1 else []
        # The identity of a source is that of its files, which `babylm:` cuts into other documents.
        folders = [
            [number for number, part in enumerate(sources.parts(source)) if babylm.is_folder(part)] if source else []
            for source in (config.source, held_out)
        ]
        return [
            source,
            config.text_field,
            identity(self.cache, held_out) if held_out else [config.validation_fraction, config.validation_tokens],
            config.skip_words,
            [len(identity(self.cache, part)) for part in parts],
            config.max_words,
            folders,
            *(["skip_null"] if config.skip_null else []),
        ]

    def files(self) -> dict[str, list[tuple[str, pathlib.Path | KnownContent]]]:
        """Return {setting: [(name, path), ...]} of the files of the text."""
        values = {name: getattr(self.config, name) for name in ("source", "validation_source")}
        return {name: sources.files(value) for name, value in values.items() if value}

    def characters(self) -> float:
        """Return a number of characters that the text surely has at most, without reading it; infinity if unknown."""
        items = identity(self.cache, self.config.source)
        sizes = [item[1] for item in items if sources.is_plain_file(item)]
        # The embedded corpus has no size, and is small.
        return sum(sizes) if len(sizes) == sum(item[0] != "sotu" for item in items) else math.inf

    def training_texts(self) -> Iterator[tuple[str, ...]]:
        """Yield the documents, or the parts of them, that are not held out for validation."""
        return (piece.texts for piece in holdout.split(self.config) if not piece.held_out)

    def parts(self) -> list[Part]:
        """Return the parts of the text in order; reads at most the first 100 documents.

        Every process finds the same parts in the same list of files. Texts of fewer than 100 documents are a single
        part, because the sentences that are held out from a document depend on those held out before (`holdout`). So is
        a text that ends after `data.max_words`, because where it ends depends on all that comes before.
        """
        config = self.config
        units = list(sources.units(config.source, config.skip_words))
        held_out = list(sources.units(config.validation_source)) if config.validation_source else []
        if config.max_words is not None or not (held_out or holdout.holds_out_documents(config)):
            return [Part((*units, *held_out), None)]
        return parts_of(units, held_out)

    def read(self, part: Part, left_out: Counter[str], fraction: float) -> Iterator[Piece]:
        """Yield the pieces of a part, and count what `data.skip_words` and `data.skip_null` leave out.

        fraction: share of the text that is held out; `data.validation_fraction`, or less if that has too many tokens.
        """
        counts, names = Counter(words=0, documents=0), pointers.of_words(self.config.pointers)
        if part.held_out is None:
            yield from holdout.split(dataclasses.replace(self.config, validation_fraction=fraction), counts, names)
        else:
            texts = sources.documents_of(part.units, self.config.text_field, counts, self.config.skip_null, names)
            for number, text in enumerate(texts):
                yield Piece((text,), part.held_out, number)
        left_out.update({f"{name} left out": count for name, count in counts.items() if count})

    @property
    def encode(self) -> Callable[[Tokenizer, Sequence[tuple[str, ...]]], Encoded]:
        """A function that returns the token ids, and the pointers, of the sentences of several documents."""
        return functools.partial(_encode, self.config.pointer_tokens == "all")

    def rows(
        self, directory: pathlib.Path, special: SpecialTokens, split: str, facts: dict[str, Any]
    ) -> Iterator[tuple[Block]]:
        """Yield the rows of a stored split; count the pointers that lead out of their piece in `facts`."""
        lost: Counter[str] = Counter()
        for block in sequences.make(self.config, directory, special, lost):
            yield (block,)
        facts["left_out"].update({f"{split} {name} pointers out of their row": n for name, n in lost.items() if n})

    @staticmethod
    def open(directory: pathlib.Path, entry: Entry | None = None) -> Rows:
        """Return the stored rows of a split."""
        return Rows(directory, entry)


def _encode(all_tokens: bool, tokenizer: Tokenizer, texts: Sequence[tuple[str, ...]]) -> Encoded:
    """Return the token ids of the sentences of several documents, with the pointers of annotated ones.

    all_tokens: whether all tokens of a word have its pointer, not only the first.
    """
    documents = [text for (text,) in texts]
    sentences = [split_sentences(text) for text in documents]
    every = [sentence for each in sentences for sentence in each]
    offsets, left_out = dict[str, np.ndarray](), Counter[str]()
    if any(isinstance(text, Annotated) and text.pointers for text in documents):
        located = tokenizer.locate_batch(every)
        ids = [of_sentence for of_sentence, _ in located]
        offsets, too_far = pointers.offsets(documents, sentences, [spans for _, spans in located], all_tokens)
        farther = f"pointers farther than {pointers.FARTHEST:,} tokens"
        left_out.update({f"{name} {farther}": count for name, count in too_far.items()})
    else:
        ids = tokenizer.encode_batch(every)
    lengths = np.array([len(sentence) for sentence in ids], np.int64)
    document = np.repeat(np.arange(len(texts)), [len(each) for each in sentences])
    return Encoded(
        store.joined(ids, tokenizer.vocabulary_size),
        lengths[lengths > 0],
        np.bincount(document[lengths > 0], minlength=len(texts)),
        np.array([len(text.split()) for text in documents], np.int64),
        offsets,
        +left_out,
    )


def check_pointers(config: DataConfig) -> None:
    """Raise ValueError, with the annotations that there are, for a name of `data.pointers` that no text has.

    Reads as many texts as are needed to find all names.
    """
    missing, found = set(pointers.of_words(config.pointers)), dict[str, str]()
    for unit in sources.units(config.source):
        for text in sources.documents_of([unit], config.text_field, None, config.skip_null, sorted(missing)):
            if not isinstance(text, Annotated):
                continue
            missing -= text.pointers.keys()
            if not missing:
                return
            there = sorted(text.columns.named()) if text.columns else []
            found |= {name: str(unit.path) for name in there if name not in found}
    names = ", ".join(f"{name} ({path})" for name, path in found.items())
    raise ValueError(
        f"data.pointers={','.join(config.pointers)}: no text of data.source={config.source!r} has "
        f"{' and '.join(sorted(missing))}: expected one of {names or 'none, as there is no annotated text'}; mend the "
        "name, or give a CoNLL-U file (.conllu) or JSON lines with words"
    )


def identity(cache: Cache, source: str) -> list[Any]:
    """Return what identifies the content of a source, as stored in the cache if this machine lacks the source.

    That is as it was when the source was prepared elsewhere into the same object store.

    Raises ValueError if different texts were prepared there under the source's name.
    """
    try:
        return sources.identity(source)
    except FileNotFoundError:
        if cache.remote is None:
            raise
        identities = [_recalled(cache, part) for part in sources.parts(source)]
        if None in identities:
            raise
        items = [item for part in identities for item in part or ()]
        warn_once(
            f"data.source={source!r} is not on this machine: taking what was prepared of it in {cache.remote}, from "
            f"{items[0][0]}" + (f" and {len(items) - 1:,} more" if len(items) > 1 else "")
        )
        return items


def remember(config: DataConfig, cache: Cache) -> None:
    """Store what identifies the content of a config's sources, for machines that lack the text.

    They are stored under absolute paths, because a relative one names other texts in other working directories, and all
    of these may be prepared in one object store. What a relative path named is stored, too (`_recalled`).
    """
    for source in filter(None, (config.source, config.validation_source)):
        for part in sources.parts(source):
            place = _place(part)
            with contextlib.suppress(FileNotFoundError):  # of this machine, which only knows what others stored
                cache.remember(f"source-{key(place)}", sources.identity(part))
                if place != part:
                    cache.remember(f"named-{key(part)}-{key(place)}", place)


def _recalled(cache: Cache, part: str) -> list[Any] | None:
    """Return the stored identity of the content of one part of a source; None if there is none.

    It is that of the same absolute path. A machine with another working directory gets that of the only path to which
    the relative path `part` led elsewhere. Raises ValueError if it led to several.
    """
    recall = functools.partial(_only, cache)
    if (items := recall(f"source-{key(_place(part))}")) is not None:
        return items
    places = cache.recall(f"named-{key(part)}-*")
    if len(places) > 1:
        raise ValueError(
            f"data.source={part!r} is not on this machine, and in {cache.remote} it is the name of several texts: "
            f"expected the absolute path of one of them, {' or '.join(places)}"
        )
    return recall(f"source-{key(places[0])}") if places else None


def _only(cache: Cache, name: str) -> Any:
    return next(iter(cache.recall(name)), None)


def _place(part: str) -> str:
    """Return the absolute path of a part of a source, or its name if it is no path."""
    is_path = part != "sotu" and not part.startswith(("tfds:", "hf:")) and "://" not in part
    if babylm.is_folder(part):
        return babylm.absolute(part)
    return os.path.abspath(os.path.expanduser(part)) if is_path else part
