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

Pointers (`data.pointers`) are cut together with the tokens. A pointer that leads out of its piece, the consecutive
tokens of one document in a row, is left out: before the next segment of a pair is a separator, or another text.

Shape letters: P names of pointers, T tokens.
"""

import dataclasses
import functools
import pathlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ag_jax.data import mapping
from ag_jax.data.config import PAIR_FORMATS, DataConfig
from ag_jax.data.randomness import Draws
from ag_jax.data.store import ABSENT, Block, Row, TextStore
from ag_jax.data.tokenizers import SpecialTokens

SHORT_PAIRS = 0.1  # share of documents that are cut into shorter pairs (Devlin et al. 2019, appendix A.2)
TOKENS_TOGETHER = 2**22  # tokens of a block of `fixed_blocks`
SENTENCES_TOGETHER = 2**18  # sentences whose lengths are in memory at a time
DOCUMENTS_TOGETHER = 256  # documents whose pairs one process makes in one call


def make(
    config: DataConfig, directory: pathlib.Path, special: SpecialTokens, lost: Counter[str] | None = None
) -> Iterator[Block]:
    """Yield the rows of a stored text, of at most `config.sequence_length` tokens, in the format `config.format`.

    directory: that of the `TextStore`.
    lost: if given, counts the pointers of each name that are left out because they lead out of their piece.
    """
    store, length = TextStore(directory), config.sequence_length
    made: Iterator[tuple[Block, Counter[str]]]
    if config.format in PAIR_FORMATS:
        together = [
            (repetition, range(first, min(first + DOCUMENTS_TOGETHER, len(store))))
            for repetition in range(config.duplicates)
            for first in range(0, len(store), DOCUMENTS_TOGETHER)
        ]
        pairs = functools.partial(_pairs_of, config, directory, special)
        made = mapping.mapped(pairs, together, in_processes=len(together) > 1)
    else:
        if config.format == "fixed_blocks":
            cuts = _equal_cuts(store, length - 2)
        else:
            cuts = _sentence_cuts(store, length - 2, across_documents=config.format == "full_sentences")
        made = (_filled(store, cut, special, config.pointers) for cut in cuts)
    for block, of_block in made:
        if lost is not None:
            lost.update(of_block)
        yield block


@dataclasses.dataclass(frozen=True)
class Cut:
    """Row boundaries in a range of a text, as indices into the tokens of the whole text.

    begins: the first token of each row.
    end: the token after the last row.
    separators: the tokens before which an </s> stands that separates two documents of a row.
    """

    begins: np.ndarray
    end: int
    separators: np.ndarray


def _filled(store: TextStore, cut: Cut, special: SpecialTokens, names: Sequence[str]) -> tuple[Block, Counter[str]]:
    """Return the rows of a cut: its tokens, with <s> and </s> around each row and </s> at the separators.

    Returns the rows with the pointers `names`, and the number of pointers that are left out.
    """
    first = int(cut.begins[0])
    ends = np.append(cut.begins[1:], cut.end)
    separators_before = np.searchsorted(cut.separators, cut.begins)  # of each row
    # Before each row there are two more tokens for each row before, and one for each separator.
    start = cut.begins - first + 2 * np.arange(len(cut.begins)) + separators_before
    lengths = np.diff(np.append(start, cut.end - first + 2 * len(cut.begins) + len(cut.separators)))
    row_of_separator = np.searchsorted(cut.begins, cut.separators, side="right")
    separators = cut.separators - first + 2 * row_of_separator - 1 + np.arange(len(cut.separators))
    text = store.tokens.read(first, int(ends[-1]))
    tokens = np.empty(int(lengths.sum()), text.dtype)
    is_text = np.ones(len(tokens), bool)
    for places, id in ((start, special.begin), (start + lengths - 1, special.end), (separators, special.end)):
        tokens[places] = id
        is_text[places] = False
    tokens[is_text] = text
    if not names:
        return Block(tokens, lengths, start), Counter()
    # In a row there is a separator only between documents, so a pointer that stays in its row needs no other offset.
    begin_T, end_T = (np.repeat(places, ends - cut.begins) for places in (cut.begins, ends))
    offsets_PT, lost = _pointers(store, names, begin_T, end_T)
    pointers_PT = np.full((len(names), len(tokens)), ABSENT, np.int16)
    pointers_PT[:, is_text] = offsets_PT
    return Block(tokens, lengths, start, pointers=pointers_PT), lost


def _pointers(
    store: TextStore, names: Sequence[str], begin_T: np.ndarray, end_T: np.ndarray
) -> tuple[np.ndarray, Counter[str]]:
    """Return (pointers `PT` of consecutive tokens of a text, number of those that are left out, by name).

    begin_T, end_T: for each of the tokens, the first token of its piece and the one after it.
    """
    first, last = int(begin_T[0]), int(end_T[-1])
    offsets_PT = np.stack([store.pointers[name].read(first, last) for name in names])
    target_PT = np.arange(first, last) + offsets_PT
    leads_out_PT = (offsets_PT != ABSENT) & ((target_PT < begin_T) | (target_PT >= end_T))
    offsets_PT[leads_out_PT] = ABSENT
    return offsets_PT, Counter(dict(zip(names, leads_out_PT.sum(axis=1).tolist(), strict=True)))


def _equal_cuts(store: TextStore, room: int) -> Iterator[Cut]:
    """Yield cuts into rows of `room` tokens; a last, shorter row is left out."""
    nothing, end = np.zeros(0, np.int64), len(store.tokens) // room * room
    step = max(TOKENS_TOGETHER // room, 1) * room
    for first in range(0, end, step):
        last = min(first + step, end)
        yield Cut(np.arange(first, last, room), last, nothing)


def _sentence_cuts(store: TextStore, room: int, *, across_documents: bool) -> Iterator[Cut]:
    """Yield cuts into rows of as many whole sentences as fit into `room` tokens.

    A sentence of more than `room` tokens is cut into pieces. Let c(e) be the number of tokens before piece e, plus one
    for each document that begins before e if rows go on across documents. A row that begins with piece s ends before
    the largest e with c(e) - c(s) <= room, in which a separator before s itself does not count. So the end of a row
    that would begin with any piece is found for all pieces at once, and the rows are those on the way from the first
    piece. A row that has not ended with the sentences in memory is continued with the next ones.

    across_documents: continue a row with the next document, after one more </s>.
    """
    begin, is_first = np.zeros(0, np.int64), np.zeros(0, bool)  # of the pieces that no row has yet
    sentences = store.sentence_count
    for first in range(0, sentences, SENTENCES_TOGETHER):
        last = min(first + SENTENCES_TOGETHER, sentences)
        pieces = _pieces_of(store, first, last, room)
        begin, is_first = np.append(begin, pieces[0]), np.append(is_first, pieces[1])
        end = pieces[2]
        sizes = np.diff(np.append(begin, end)) + (is_first if across_documents else 0)
        before = np.concatenate([[0], np.cumsum(sizes)])
        # The separator before the first piece of a row is left out.
        limit = before[:-1] + room + (is_first if across_documents else 0)
        next_row = np.searchsorted(before, limit, side="right") - 1
        if not across_documents:
            documents = np.append(np.flatnonzero(is_first), len(begin))
            next_row = np.minimum(next_row, documents[np.searchsorted(documents, np.arange(len(begin)), side="right")])
        rows, following, place = [], next_row.tolist(), 0
        # The last row of the stretch may go on in the next one.
        while place < len(following) and (following[place] < len(following) or last == sentences):
            rows.append(place)
            place = following[place]
        if rows:
            is_separator = is_first[:place].copy() if across_documents else np.zeros(place, bool)
            is_separator[rows] = False
            stop = int(begin[place]) if place < len(begin) else end
            yield from _divided(Cut(begin[rows], stop, begin[:place][is_separator]), max(TOKENS_TOGETHER // room, 1))
        begin, is_first = begin[place:], is_first[place:]


def _divided(cut: Cut, count: int) -> Iterator[Cut]:
    """Yield a cut in stretches of at most `count` rows, because sentences may be long."""
    for first in range(0, len(cut.begins), count):
        begins = cut.begins[first : first + count]
        end = int(cut.begins[first + count]) if first + count < len(cut.begins) else cut.end
        yield Cut(begins, end, cut.separators[slice(*np.searchsorted(cut.separators, (begins[0], end)))])


def _pieces_of(store: TextStore, first: int, last: int, room: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Return (first token of each piece, whether it begins a document, token after the last piece) of some sentences.

    A piece is a sentence, or a part of `room` tokens or fewer of one that is longer.
    """
    ends = store.sentence_ends(first, last)
    begins = np.append(store.token_index(first), ends[:-1])
    counts = -(-(ends - begins) // room)
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)  # of each piece in its sentence
    is_first = np.zeros(len(number), bool)
    is_first[(np.cumsum(counts) - counts)[store.document_begins(first, last) - first]] = True
    return np.repeat(begins, counts) + number * room, is_first, int(ends[-1])


def _pairs_of(
    config: DataConfig, directory: pathlib.Path, special: SpecialTokens, place: tuple[int, range]
) -> tuple[Block, Counter[str]]:
    """Return the pairs of segments or sentences of some documents, and the number of pointers that are left out.

    place: (pass over the text, documents).
    """
    store, (repetition, numbers) = TextStore(directory), place
    pairs = segment_pairs if config.format == "segment_pair_nsp" else sentence_pairs
    draws = ((number, Draws(repetition, number)) for number in numbers)
    room = config.sequence_length - 2 - special.pair_separators
    lost: Counter[str] = Counter()
    rows = [
        _row(store, special, config.pointers, pair, lost)
        for number, draw in draws
        for pair in pairs(store, room, number, draw)
    ]
    block = Block.of(rows)
    # A quarter of the bytes between processes.
    return block._replace(tokens=block.tokens.astype(store.tokens.dtype)), lost


class Span(NamedTuple):
    """Consecutive tokens of one document.

    begin: index in the text of the first token.
    end: index of the token after the last.
    """

    begin: int
    end: int

    @property
    def size(self) -> int:
        """The number of tokens."""
        return self.end - self.begin


Pair = tuple[Span, Span, bool]  # both segments, and whether the second one is from a random place


def segment_pairs(store: TextStore, room: int, number: int, draws: Draws) -> Iterator[Pair]:
    """Yield pairs of segments, of which the first is from document `number` (Devlin et al. 2019, appendix A.2).

    room: the most tokens of both segments.

    Segment A is from document `number`, B from this document or another. Sentences are gathered up to a target length.
    A is a random number of them; B is the rest or, half the time, from a random document, and then the rest is used
    again for the next pair. While the pair is too long, its longer segment loses a token at a random end. The target is
    a whole row or, for one document in ten, a random length; it is the same for all pairs of a document, as in BERT's
    create_pretraining_data.py, and drawn again for each of the `duplicates`.
    """
    sentences = _spans(store, *store.bounds(number), room)
    target = room if draws.unit() >= SHORT_PAIRS else draws.integer(2, room)
    next_sentence = 0
    while next_sentence < len(sentences):
        chunk, used = [], 0
        while next_sentence < len(sentences) and used < target:
            chunk.append(sentences[next_sentence])
            used += sentences[next_sentence].size
            next_sentence += 1
        split = draws.integer(1, len(chunk) - 1) if len(chunk) > 1 else 1
        first = Span(chunk[0].begin, chunk[split - 1].end)
        is_random = len(chunk) == 1 or draws.unit() < 0.5
        if is_random:  # also without a sentence that could continue A
            next_sentence -= len(chunk) - split  # the rest of the chunk is used for the next pair
            second = _random_segment(store, number, target - first.size, room, draws)
        else:
            second = Span(chunk[split].begin, chunk[-1].end)
        yield *_truncate(first, second, room, draws), is_random


def sentence_pairs(store: TextStore, room: int, number: int, draws: Draws) -> Iterator[Pair]:
    """Yield pairs of sentences, of which the first is from document `number`.

    room: the most tokens of both sentences.

    The second is the sentence after the first or, half the time, a random sentence of another document.
    """
    sentences = _spans(store, *store.bounds(number), room)
    index = 0
    while index < len(sentences):
        first, index = sentences[index], index + 1
        is_random = index == len(sentences) or draws.unit() < 0.5
        if is_random:
            second = _random_segment(store, number, 1, room, draws)
        else:
            second, index = sentences[index], index + 1
        yield *_truncate(first, second, room, draws), is_random


def _spans(store: TextStore, first: int, last: int, room: int) -> list[Span]:
    """Return sentences `first` to `last` - 1 of the text; a sentence of more than `room` tokens in pieces."""
    ends = store.sentence_ends(max(first - 1, 0), last).tolist()
    begin, spans = ends.pop(0) if first else 0, []
    for end in ends:
        while end - begin > room:
            spans.append(Span(begin, begin + room))
            begin += room
        spans.append(Span(begin, end))
        begin = end
    return spans


def _random_segment(store: TextStore, other_than: int, target: int, room: int, draws: Draws) -> Span:
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
    sentences = _spans(store, start, min(last, start + max(target, 1)), room)
    begin = sentences[0].begin
    return Span(begin, next((end for _, end in sentences if end - begin >= target), sentences[-1].end))


def _truncate(first: Span, second: Span, room: int, draws: Draws) -> tuple[Span, Span]:
    """Return both segments, cut to at most `room` tokens in total: the longer segment loses tokens at random ends."""
    while first.size + second.size > room:
        longer = first if first.size > second.size else second
        at_begin = draws.unit() < 0.5
        cut = Span(longer.begin + at_begin, longer.end - (not at_begin))
        first, second = (cut, second) if longer is first else (first, cut)
    return first, second


def _row(store: TextStore, special: SpecialTokens, names: Sequence[str], pair: Pair, lost: Counter[str]) -> Row:
    """Return the row that holds two segments, with special tokens around and between them; count `lost` pointers."""
    *segments, is_random = pair
    first, second = (store.tokens.read(*segment) for segment in segments)
    separators = [special.end] * special.pair_separators
    # The second segment begins after the last separator; the separators belong to the first one.
    tokens = np.concatenate([[special.begin], first, separators, second, [special.end]])
    begins = 1, 1 + len(first) + len(separators)
    if not names:
        return Row(tokens, begins[1], is_random)
    pointers_PT = np.full((len(names), len(tokens)), ABSENT, np.int16)
    for begin, segment in zip(begins, segments, strict=True):
        of_segment, lost_here = _pointers(store, names, *(np.full(segment.size, place) for place in segment))
        pointers_PT[:, begin : begin + segment.size] = of_segment
        lost.update(lost_here)
    return Row(tokens, begins[1], is_random, pointers=pointers_PT)
