"""Split a text into one part for training and one for validation.

Without a `validation_source`, the part that is held out for validation depends on the number of documents:

    1 to 99        the last sentences of each document: the share `validation_fraction` of all characters
    100 and more   whole documents, evenly spread, beginning with the second: the share `validation_fraction` of them
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from ag_jax.data.config import DataConfig
from ag_jax.data.layout import Piece
from ag_jax.data.records import sources
from ag_jax.data.records.annotated import Annotated
from ag_jax.data.text.sentences import join_sentences, split_sentences

MANY_DOCUMENTS = 100  # from this number of documents on, whole documents are held out


def split(config: DataConfig, left_out: Counter[str] | None = None, pointers: Sequence[str] = ()) -> Iterator[Piece]:
    """Yield the whole text of a config in the order of the source, each piece for training or for validation.

    left_out: if given, counts what `data.skip_words` and `data.skip_null` leave out, as in `sources.documents`.
    pointers: names of the annotations that documents have with them.
    """

    def texts(left_out: Counter[str] | None = None) -> Iterator[str]:
        return _training_texts(config, left_out, pointers)

    if config.validation_source:
        trained = ((text, False) for text in texts(left_out))
        validation = sources.documents(
            config.validation_source,
            config.text_field,
            left_out=left_out,
            skip_null=config.skip_null,
            pointers=pointers,
        )
        held_out = ((text, True) for text in validation)
        for number, (text, for_validation) in enumerate(itertools.chain(trained, held_out)):
            yield Piece((text,), int(for_validation), number)
        return
    # The source is read twice, so that no more than one document is in memory.
    count = _count(texts())
    documents = enumerate(texts(left_out))
    if count == MANY_DOCUMENTS:
        for number, text in documents:
            yield Piece((text,), int(is_held_out(number, config.validation_fraction)), number)
    else:
        yield from _cut_each(documents, count, config.validation_fraction)


def held_out(config: DataConfig, share: float, pointers: Sequence[str] = ()) -> Iterator[str]:
    """Yield the texts of a config that are held out for validation, in the order of the source.

    config: the settings, with the `validation_fraction` of which `Corpus.held_out` says that it was held out.
    share: share of the whole documents that are held out by it that were kept for validation, as said there.
    pointers: names of the annotations that documents have with them.
    """
    if config.validation_source:
        field, skip = config.text_field, config.skip_null
        yield from sources.documents(config.validation_source, field, skip_null=skip, pointers=pointers)
        return
    texts = (piece.texts[0] for piece in split(config, pointers=pointers) if piece.held_out)
    yield from (text for number, text in enumerate(texts) if share == 1 or is_held_out(number, share))


def holds_out_documents(config: DataConfig) -> bool:
    """Return whether whole documents are held out of `data.source` for validation; reads only the first documents."""
    return not config.validation_source and _count(_training_texts(config)) == MANY_DOCUMENTS


def _training_texts(
    config: DataConfig, left_out: Counter[str] | None = None, pointers: Sequence[str] = ()
) -> Iterator[str]:
    return sources.documents(
        config.source, config.text_field, config.skip_words, left_out, config.max_words, config.skip_null, pointers
    )


def _count(texts: Iterator[str]) -> int:
    """Return the number of documents, counting no further than `MANY_DOCUMENTS`."""
    return sum(1 for _ in itertools.islice(texts, MANY_DOCUMENTS))


def is_held_out(number: int | np.ndarray, fraction: float) -> np.ndarray:
    """Return whether each document, given by its number counted from 0, is held out for validation.

    Held out is the share `fraction` of all documents, evenly spread: with 0.1 every tenth, beginning with the second.
    """
    number = np.asarray(number)
    phase = 1.0 - 2.0 * fraction + 1e-9
    return np.trunc((number + 1) * fraction + phase) > np.trunc(number * fraction + phase)


def _cut_each(documents: Iterator[tuple[int, str]], count: int, fraction: float) -> Iterator[Piece]:
    """Yield each of the `count` documents as two pieces: its first sentences for training, its last for validation.

    All pieces for validation together have the share `fraction` of the characters. After each document, the characters
    held out so far are as close to `fraction` of the characters so far as whole sentences allow. A document with too
    few or too long sentences may thus give more or less than its share; the documents after it make up for the
    difference. At most half of a document is held out (or `fraction` of it, if that is more), unless it is a single
    sentence.
    """
    owed = 0.0  # characters still to be held out
    trained = held_out = 0  # sentences
    for number, text in documents:
        sentences = split_sentences(text)
        # Characters of the last 0, 1, 2, ... sentences.
        tails = np.cumsum([0, *(len(sentence) for sentence in reversed(sentences))])
        owed += fraction * tails[-1]
        allowed = tails if len(sentences) == 1 else tails[tails <= max(fraction, 0.5) * tails[-1]]
        tail = int(np.abs(allowed - owed).argmin())  # number of sentences that are held out
        if number == count - 1:  # neither training nor validation may be without text
            tail = min(max(tail, int(held_out == 0)), len(sentences) - int(trained == 0))
        owed -= tails[tail]
        trained, held_out = trained + len(sentences) - tail, held_out + tail
        yield from _cut(number, text, sentences, len(sentences) - tail)


def _cut(number: int, text: str, sentences: list[str], border: int) -> Iterator[Piece]:
    """Yield the sentences before index `border` for training, and the others for validation."""
    if border in (0, len(sentences)):
        yield Piece((text,), int(border == 0), number)
        return
    if isinstance(text, Annotated):
        place = int(text.ends_S[border - 1])
        parts = text[:place], text[place:]
    else:
        parts = join_sentences(sentences[:border]), join_sentences(sentences[border:])
    for held_out, part in enumerate(parts):
        yield Piece((part,), held_out, number)
