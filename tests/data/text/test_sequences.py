"""Rows by hand, and against plainer formulations that work on whole lists.

The ids of the special tokens are 0 for <s> and 2 for </s>.
"""

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ag_jax.data.config import DataConfig
from ag_jax.data.randomness import Draws
from ag_jax.data.text import sequences
from ag_jax.data.tokenizers import SpecialTokens
from tests.data.conftest import write_store

ROBERTA = SpecialTokens(begin=0, pad=1, end=2, unknown=3, mask=4, pair_separators=2)
BERT = SpecialTokens(begin=0, pad=1, end=2, unknown=3, mask=4, pair_separators=1)
A, B, C, D, E = [10, 11, 12], [20, 21], [30, 31, 32], [40], [50, 51, 52, 53, 54, 55, 56]
LONG = list(range(100, 115))


def rows(directory, documents, name, length, special=ROBERTA, **settings):
    """The rows of documents, as (tokens, second start, whether the second segment is random)."""
    write_store(directory, documents)
    found = []
    for block in sequences.make(DataConfig(format=name, sequence_length=length, **settings), directory, special):
        pairs = (block.second_start, block.is_random_next) if name.endswith("nsp") else ([0] * len(block.lengths),) * 2
        found += zip((row.tokens.tolist() for row in block.rows()), *pairs, strict=True)
    return found


def tokens(*arguments, **settings):
    return [row for row, *_ in rows(*arguments, **settings)]


@pytest.fixture(autouse=True, params=[None, 3], ids=["", "small blocks"])
def together(request, monkeypatch):
    """All of a text at once, and few sentences, tokens and documents at a time."""
    for name in ("TOKENS_TOGETHER", "SENTENCES_TOGETHER", "DOCUMENTS_TOGETHER") if request.param else ():
        monkeypatch.setattr(sequences, name, request.param)
    monkeypatch.setattr(sequences.mapping, "mapped", lambda function, items, in_processes: map(function, items))


@pytest.mark.parametrize(
    ("name", "length", "documents", "expected"),
    [
        # 16 tokens: two blocks of 6 across all borders, and 4 that are dropped; a last block that is full is kept.
        ("fixed_blocks", 8, [[A, B], [C, D, E]], [[*A, *B, 30], [31, 32, *D, 50, 51, 52]]),
        ("fixed_blocks", 8, [[A, C], [E[:6]]], [[*A, *C], E[:6]]),
        ("full_sentences", 12, [[A, B], [C], [D]], [[*A, *B, 2, *C], D]),
        # After A, B and the separator there is room for two more, C has three: the separator is dropped.
        ("full_sentences", 10, [[A, B], [C, D]], [[*A, *B], [*C, *D]]),
        # Not even the separator fits.
        ("full_sentences", 8, [[A, C], [D]], [[*A, *C], D]),
        ("doc_sentences", 12, [[A, B], [C], [D]], [[*A, *B], C, D]),
        # A sentence longer than a row is cut, and nothing is lost.
        ("full_sentences", 8, [[D, LONG, B]], [D, LONG[:6], LONG[6:12], [*LONG[12:], *B]]),
        ("doc_sentences", 8, [[D, LONG, B]], [D, LONG[:6], LONG[6:12], [*LONG[12:], *B]]),
    ],
)
def test_rows_of_one_segment_by_hand(tmp_path, name, length, documents, expected):
    assert tokens(tmp_path, documents, name, length) == [[0, *row, 2] for row in expected]


DOCUMENTS = st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=8), min_size=2, max_size=6)
# The store is rewritten by every example; that is all that the function-scoped directory is for.
PROPERTY = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


def numbered(lengths):
    """Documents of sentences of the given lengths; token = 10000 + 1000 document + its place in the document."""
    documents = []
    for number, sentence_lengths in enumerate(lengths):
        ends = np.cumsum(sentence_lengths)
        place = 10_000 + 1000 * number + np.arange(ends[-1])
        documents.append([sentence.tolist() for sentence in np.split(place, ends[:-1])])
    return documents


def cut(sentences, room):
    """The sentences, those that are longer than `room` in pieces."""
    return [sentence[at : at + room] for sentence in sentences for at in range(0, len(sentence), room)]


def plain_packing(documents, room, across):
    """Every row is the longest run of pieces that fits, written as a search over the whole list of pieces."""
    pieces = [(number, piece) for number, document in enumerate(documents) for piece in cut(document, room)]
    found = []
    while pieces:
        for count in range(len(pieces), 0, -1):
            chosen = pieces[:count]
            borders = sum(left[0] != right[0] for left, right in itertools.pairwise(chosen))
            if borders and not across:
                continue
            if sum(len(piece) for _, piece in chosen) + borders <= room or count == 1:
                break
        row = [0]
        for index, (number, piece) in enumerate(chosen):
            row += [2] * (index > 0 and number != chosen[index - 1][0]) + piece
        found.append([*row, 2])
        pieces = pieces[count:]
    return found


@PROPERTY
@given(lengths=DOCUMENTS, length=st.integers(8, 20), across=st.booleans())
def test_packing_equals_the_plain_formulation(tmp_path, lengths, length, across):
    documents = numbered(lengths)
    name = "full_sentences" if across else "doc_sentences"
    assert tokens(tmp_path, documents, name, length) == plain_packing(documents, length - 2, across)


def plain_random_segment(documents, number, target, room, draws):
    """Sentences from a random place of another document, or of the only one, until they have `target` tokens."""
    others = [other for other in range(len(documents)) if other != number] or [number]
    other = others[draws.integer(0, len(others) - 1) if len(documents) > 1 else 0]
    start = draws.integer(0, len(documents[other]) - 1)
    second = []
    for piece in cut(documents[other][start:], room):
        if not second or len(second) < target:
            second += piece
    return second


def plain_pairs(documents, name, number, room, draws):
    """Google's create_pretraining_data, on lists: put back what was not used, truncate token by token.

    Pairs of sentences are those of a target that any two sentences reach.
    """
    document, i, found = cut(documents[number], room), 0, []
    target = 0
    if name == "segment_pair_nsp":
        target = draws.integer(2, room) if draws.unit() < 0.1 else room  # once a document
    while i < len(document):
        if target:
            chunk = [document[i]]
            while i + len(chunk) < len(document) and sum(map(len, chunk)) < target:
                chunk.append(document[i + len(chunk)])
            a_end = draws.integer(1, len(chunk) - 1) if len(chunk) >= 2 else 1
        else:
            chunk, a_end = document[i : i + 2], 1
        first = [*itertools.chain(*chunk[:a_end])]
        is_random = len(chunk) == 1 or draws.unit() < 0.5
        if is_random:
            wanted = target - len(first) if target else 1
            second = plain_random_segment(documents, number, wanted, room, draws)
        else:
            second = [*itertools.chain(*chunk[a_end:])]
        i += a_end if is_random else len(chunk)
        while len(first) + len(second) > room:
            longer = first if len(first) > len(second) else second
            longer.pop(0 if draws.unit() < 0.5 else -1)
        found.append((first, second, is_random))
    return found


@pytest.mark.parametrize("name", ["segment_pair_nsp", "sentence_pair_nsp"])
@PROPERTY
@given(
    lengths=st.one_of(
        DOCUMENTS, st.lists(st.lists(st.integers(1, 12), min_size=2, max_size=8), min_size=1, max_size=1)
    ),
    length=st.integers(10, 24),
    separators=st.sampled_from([1, 2]),
)
def test_pairs_equal_the_plain_formulation(tmp_path, name, lengths, length, separators):
    """Includes a single document, whose random segments come from itself."""
    documents = numbered(lengths)
    room, expected = length - 2 - separators, []
    for repetition, number in itertools.product(range(2), range(len(documents))):
        for first, second, is_random in plain_pairs(documents, name, number, room, Draws(repetition, number)):
            row = [0, *first, *[2] * separators, *second, 2]
            expected.append((row, 1 + len(first) + separators, is_random))
    special = ROBERTA if separators == 2 else BERT
    assert rows(tmp_path, documents, name, length, special, duplicates=2) == expected
