"""Make the rows of a text, in the formats of Liu et al. 2019, section 4.2, and of the Attention Guidance code.

`fixed_blocks` is the format of the Attention Guidance code. A row is a training sequence: the token ids of one text, or
of a pair of texts, with special tokens. The formats are

    fixed_blocks        <s> L-2 tokens </s>: blocks of the whole corpus, across sentences and documents; a last, short
                        block is dropped
    full_sentences      <s> s1 s2 ... </s>: as many whole sentences as fit, continued in the next document after one
                        more </s>
    doc_sentences       <s> s1 s2 ... </s>: as many whole sentences of one document as fit
    segment_pair_nsp    <s> A </s></s> B </s>: two runs of sentences; B continues A or, half the time, is from a random
                        document
    sentence_pair_nsp   <s> A </s></s> B </s>: A and B are one sentence each

BERT-like tokenizers have [CLS] and [SEP], and a single [SEP] between A and B. In all formats but `fixed_blocks`, a
sentence that is longer than a row is cut into pieces. Ends of lines are not tokens, as in fairseq; the Attention
Guidance code has tokens for them. Between documents there is one </s>, as section 4.2 says, and none after each
sentence, whereas fairseq ends every line of its input with one. Random choices depend only on (pass over the corpus,
document).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ag_jax.data.config import DataConfig
from ag_jax.data.randomness import Draws
from ag_jax.data.text.store import TextStore
from ag_jax.data.tokenizers import SpecialTokens

SHORT_PAIRS = 0.1  # share of documents that are cut into shorter pairs (Devlin et al. 2019, appendix A.2)


class Row(NamedTuple):
    """One training sequence as token ids: a text, a pair of segments, or several packed texts.

    tokens: token ids, special tokens included.
    second_start: index in `tokens` at which the second segment of a pair begins; 0 if there is no pair.
    is_random_next: whether the second segment of a pair is from a random place instead of the continuation.
    text_starts: index in `tokens` at which each text begins: 0, and those of further texts that `packing` adds.
    """

    tokens: np.ndarray
    second_start: int = 0
    is_random_next: bool = False
    text_starts: Sequence[int] | np.ndarray = (0,)


def make_rows(config: DataConfig, store: TextStore, special: SpecialTokens) -> Iterator[Row]:
    """Yield rows of at most `config.sequence_length` tokens, made of the stored texts in the format `config.format`."""
    length = config.sequence_length
    if config.format == "fixed_blocks":
        yield from fixed_blocks(store, special, length)
    elif config.format == "full_sentences":
        yield from packed_sentences(store, special, length, across_documents=True)
    elif config.format == "doc_sentences":
        yield from packed_sentences(store, special, length, across_documents=False)
    else:
        pairs = segment_pairs if config.format == "segment_pair_nsp" else sentence_pairs
        for repetition in range(config.duplicates):
            for number in range(len(store)):
                yield from pairs(store, special, length, number, Draws(repetition, number))


def fixed_blocks(store: TextStore, special: SpecialTokens, length: int) -> Iterator[Row]:
    """Yield blocks of `length` - 2 tokens between <s> and </s>."""
    room = length - 2
    for start in range(0, len(store.tokens) - room + 1, room):
        yield Row(_wrap(special, [store.tokens.read(start, start + room)]))


def packed_sentences(store: TextStore, special: SpecialTokens, length: int, *, across_documents: bool) -> Iterator[Row]:
    """Yield rows of as many whole sentences as fit into `length` tokens, between <s> and </s>.

    across_documents: continue a row with the next document, after one more </s>.
    """
    room = length - 2
    separator = np.array([special.end])
    row, used = list[np.ndarray](), 0
    for number in range(len(store)):
        if row and (not across_documents or used >= room):
            yield Row(_wrap(special, row))
            row, used = [], 0
        elif row:
            row, used = [*row, separator], used + 1
        for piece in _pieces(store.document(number), room):
            if used + len(piece) > room:
                # Drop a separator at the end of a row, which the next document is not in.
                yield Row(_wrap(special, row[:-1] if row[-1] is separator else row))
                row, used = [], 0
            row, used = [*row, piece], used + len(piece)
    if row:
        yield Row(_wrap(special, row))


def segment_pairs(store: TextStore, special: SpecialTokens, length: int, number: int, draws: Draws) -> Iterator[Row]:
    """Yield rows with two segments, of which the first is from document `number` (Devlin et al. 2019, appendix A.2).

    Segment A is from document `number`, B from this document or another. Sentences are gathered up to a target length.
    A is a random number of them; B is the rest or, half the time, from a random document, and then the rest is used
    again for the next pair. While the pair is too long, its longer segment loses a token at a random end. The target is
    a whole row or, for one document in ten, a random length; it is the same for all pairs of a document, as in BERT's
    create_pretraining_data.py, and drawn again for each of the `duplicates`.
    """
    room = length - 2 - special.pair_separators
    sentences = list(_pieces(store.document(number), room))
    target = room if draws.unit() >= SHORT_PAIRS else draws.integer(2, room)
    next_sentence = 0
    while next_sentence < len(sentences):
        chunk, used = [], 0
        while next_sentence < len(sentences) and used < target:
            chunk.append(sentences[next_sentence])
            used += len(sentences[next_sentence])
            next_sentence += 1
        split = draws.integer(1, len(chunk) - 1) if len(chunk) > 1 else 1
        first = np.concatenate(chunk[:split])
        is_random = len(chunk) == 1 or draws.unit() < 0.5
        if is_random:  # also without a sentence that could continue A
            next_sentence -= len(chunk) - split  # the rest of the chunk is used for the next pair
            second = _random_segment(store, number, target - len(first), room, draws)
        else:
            second = np.concatenate(chunk[split:])
        yield _pair(special, *_truncate(first, second, room, draws), is_random)


def sentence_pairs(store: TextStore, special: SpecialTokens, length: int, number: int, draws: Draws) -> Iterator[Row]:
    """Yield rows with two sentences, of which the first is from document `number`.

    The second is the sentence after the first or, half the time, a random sentence of another document.
    """
    room = length - 2 - special.pair_separators
    sentences = list(_pieces(store.document(number), room))
    index = 0
    while index < len(sentences):
        first, index = sentences[index], index + 1
        is_random = index == len(sentences) or draws.unit() < 0.5
        if is_random:
            second = _random_segment(store, number, 1, room, draws)
        else:
            second, index = sentences[index], index + 1
        yield _pair(special, *_truncate(first, second, room, draws), is_random)


def _pieces(sentences: list[np.ndarray], room: int) -> Iterator[np.ndarray]:
    """Yield the sentences; a sentence of more than `room` tokens is yielded in pieces."""
    for sentence in sentences:
        for start in range(0, len(sentence), room):
            yield sentence[start : start + room]


def _random_segment(store: TextStore, other_than: int, target: int, room: int, draws: Draws) -> np.ndarray:
    """Return consecutive sentences from a random place of another document, until they have `target` tokens or more.

    other_than: number of the document that is avoided, unless it is the only one.
    """
    number = other_than
    if len(store) > 1:
        number = draws.integer(0, len(store) - 2)
        number += number >= other_than
    first, last = store.bounds(number)
    start = draws.integer(first, last - 1)
    # A sentence has at least one token, so `target` of them are enough.
    sentences = list(_pieces(store.sentences(start, min(last, start + max(target, 1))), room))
    run, used = [sentences[0]], len(sentences[0])
    for sentence in sentences[1:]:
        if used >= target:
            break
        run.append(sentence)
        used += len(sentence)
    return np.concatenate(run)


def _truncate(first: np.ndarray, second: np.ndarray, room: int, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
    """Return both segments, cut to at most `room` tokens in total: the longer segment loses tokens at random ends."""
    while len(first) + len(second) > room:
        longer = first if len(first) > len(second) else second
        cut = longer[1:] if draws.unit() < 0.5 else longer[:-1]
        first, second = (cut, second) if longer is first else (first, cut)
    return first, second


def _wrap(special: SpecialTokens, parts: list[np.ndarray]) -> np.ndarray:
    """Return one array of token ids: <s>, the parts one after the other, and </s>."""
    return np.concatenate([[special.begin], *parts, [special.end]])


def _pair(special: SpecialTokens, first: np.ndarray, second: np.ndarray, is_random: bool) -> Row:
    """Return the row that holds two segments, with special tokens around and between them."""
    separators = [special.end] * special.pair_separators
    # The second segment begins after the last separator; the separators belong to the first one.
    tokens = np.concatenate([[special.begin], first, separators, second, [special.end]])
    return Row(tokens, 1 + len(first) + len(separators), is_random)
