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
from ag_jax.data.text import formats
from ag_jax.data.text.store import TextStore, TextStoreWriter
from ag_jax.data.tokenizers import SpecialTokens

ROBERTA = SpecialTokens(begin=0, pad=1, end=2, unknown=3, mask=4, pair_separators=2)
BERT = SpecialTokens(begin=0, pad=1, end=2, unknown=3, mask=4, pair_separators=1)
A, B, C, D, E = [10, 11, 12], [20, 21], [30, 31, 32], [40], [50, 51, 52, 53, 54, 55, 56]


def rows(store, name, length, special=ROBERTA, **settings):
    config = DataConfig(format=name, sequence_length=length, **settings)
    return [
        (row.tokens.tolist(), row.second_start, row.is_random_next) for row in formats.make_rows(config, store, special)
    ]


def tokens(*arguments, **settings):
    return [row for row, _, _ in rows(*arguments, **settings)]


def test_fixed_blocks_ignore_borders_and_drop_the_rest(make_store):
    store = make_store([[A, B], [C, D, E]])  # 16 tokens: two blocks of 6, and 4 that are dropped
    assert tokens(store, "fixed_blocks", 8) == [[0, *A, *B, 30, 2], [0, 31, 32, *D, 50, 51, 52, 2]]


def test_a_last_block_that_is_full_is_kept(make_store):
    assert tokens(make_store([[A, C], [E[:6]]]), "fixed_blocks", 8) == [[0, *A, *C, 2], [0, *E[:6], 2]]


def test_full_sentences_cross_documents_with_a_separator(make_store):
    assert tokens(make_store([[A, B], [C], [D]]), "full_sentences", 12) == [[0, *A, *B, 2, *C, 2], [0, *D, 2]]


def test_full_sentences_drop_a_separator_after_which_nothing_fits(make_store):
    # After A, B and the separator there is room for two more, C has three.
    assert tokens(make_store([[A, B], [C, D]]), "full_sentences", 10) == [[0, *A, *B, 2], [0, *C, *D, 2]]


def test_full_sentences_start_a_new_row_where_not_even_the_separator_fits(make_store):
    assert tokens(make_store([[A, C], [D]]), "full_sentences", 8) == [[0, *A, *C, 2], [0, *D, 2]]


def test_doc_sentences_end_with_the_document(make_store):
    assert tokens(make_store([[A, B], [C], [D]]), "doc_sentences", 12) == [[0, *A, *B, 2], [0, *C, 2], [0, *D, 2]]


@pytest.mark.parametrize("name", ["full_sentences", "doc_sentences"])
def test_a_sentence_longer_than_a_row_is_cut_and_nothing_is_lost(make_store, name):
    long = list(range(100, 115))
    assert tokens(make_store([[D, long, B]]), name, 8) == [
        [0, *D, 2], [0, *long[:6], 2], [0, *long[6:12], 2], [0, *long[12:], *B, 2],
    ]  # fmt: skip


DOCUMENTS = st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=8), min_size=2, max_size=6)
# The store is rewritten by every example; that is all that the function-scoped directory is for.
PROPERTY = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


def numbered(lengths):
    """Documents of sentences of the given lengths; token = 10000 + 1000 document + its place in the document."""
    documents = []
    for number, sentence_lengths in enumerate(lengths):
        ends = np.cumsum(sentence_lengths)
        place = 10_000 + 1000 * number + np.arange(ends[-1])
        documents.append([sentence.tolist() for sentence in np.split(place, ends[:-1])])
    return documents


def write(directory, documents) -> TextStore:
    writer = TextStoreWriter(directory, vocabulary_size=60_000)
    for document in documents:
        writer.append(document)
    writer.close()
    return TextStore(directory)


def plain_packing(documents, room, across):
    """Every row is the longest run of pieces that fits, written as a search over the whole list of pieces."""
    pieces = [
        (n, s[at : at + room])
        for n, document in enumerate(documents)
        for s in document
        for at in range(0, len(s), room)
    ]
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
    store = write(tmp_path, documents)
    assert tokens(store, "full_sentences" if across else "doc_sentences", length) == plain_packing(
        documents, length - 2, across
    )


def plain_segment_pairs(documents, number, room, draws):
    """Google's create_pretraining_data, on lists: current chunk, put back what was not
    used, truncate token by token.
    """
    split_long = [[s[at : at + room] for s in document for at in range(0, len(s), room)] for document in documents]

    target = draws.integer(2, room) if draws.unit() < 0.1 else room  # once a document
    chunk, i, found = [], 0, []
    document = split_long[number]
    while i < len(document):
        chunk.append(document[i])
        if i == len(document) - 1 or sum(map(len, chunk)) >= target:
            a_end = draws.integer(1, len(chunk) - 1) if len(chunk) >= 2 else 1
            first = [*itertools.chain(*chunk[:a_end])]
            if len(chunk) == 1 or draws.unit() < 0.5:
                is_random = True
                other = draws.integer(0, len(documents) - 2)
                other += other >= number
                start = draws.integer(0, len(documents[other]) - 1)
                second = []
                for sentence in documents[other][start:]:
                    for piece in [sentence[at : at + room] for at in range(0, len(sentence), room)]:
                        if not second or len(second) < target - len(first):
                            second += piece
                i -= len(chunk) - a_end
            else:
                is_random = False
                second = [*itertools.chain(*chunk[a_end:])]
            while len(first) + len(second) > room:
                longer = first if len(first) > len(second) else second
                longer.pop(0 if draws.unit() < 0.5 else -1)
            found.append((first, second, is_random))
            chunk = []
        i += 1
    return found


@PROPERTY
@given(lengths=DOCUMENTS, length=st.integers(10, 24), separators=st.sampled_from([1, 2]))
def test_segment_pairs_equal_the_plain_formulation(tmp_path, lengths, length, separators):
    documents = numbered(lengths)
    special = ROBERTA if separators == 2 else BERT
    expected = []
    for repetition in range(2):
        for number in range(len(documents)):
            for first, second, is_random in plain_segment_pairs(
                documents, number, length - 2 - separators, Draws(repetition, number)
            ):
                row = [0, *first, *[2] * separators, *second, 2]
                expected.append((row, 1 + len(first) + separators, is_random))
    assert rows(write(tmp_path, documents), "segment_pair_nsp", length, special, duplicates=2) == expected


@pytest.mark.parametrize("name", ["segment_pair_nsp", "sentence_pair_nsp"])
@pytest.mark.parametrize("special", [ROBERTA, BERT])
def test_pairs_are_what_their_label_says(tmp_path, name, special):
    lengths = np.random.default_rng(0).integers(1, 9, (40, 12)).tolist()
    made = rows(write(tmp_path, numbered(lengths)), name, 40, special, duplicates=3)
    for row, second_start, is_random in made:
        separators = special.pair_separators
        first, second = row[1 : second_start - separators], row[second_start:-1]
        assert len(row) <= 40 and first and second
        assert row == [0, *first, *[2] * separators, *second, 2]
        assert (first[0] // 1000 != second[0] // 1000) == is_random
        for segment in (first, second):
            assert segment == list(range(segment[0], segment[0] + len(segment)))
    share = np.mean([is_random for _, _, is_random in made])
    # Half, and a few more because the last sentence of a document has no neighbour.
    assert 0.45 < share < 0.62
    # Each duplicate is a new pairing.
    third = len(made) // 3
    assert made[:third] != made[third : 2 * third]


def test_sentence_pairs_are_two_whole_sentences(make_store):
    for row, second_start, is_random in rows(make_store([[A, B, C], [D, E]]), "sentence_pair_nsp", 20, duplicates=20):
        first, second = row[1 : second_start - 2], row[second_start:-1]
        assert first in (A, B, C, D, E) and second in (A, B, C, D, E)
        if not is_random:
            assert (first, second) in ((A, B), (B, C), (D, E))


def test_a_pair_that_is_too_long_is_cut_at_the_longer_side(make_store):
    long, longer = list(range(100, 110)), list(range(200, 216))
    for row, second_start, _ in rows(make_store([[long, longer], [B]]), "sentence_pair_nsp", 20, duplicates=20):
        first, second = row[1 : second_start - 2], row[second_start:-1]
        if {len(first), len(second)} != {len(B), len(long)} and B not in (first, second):
            assert (len(first), len(second)) == (8, 8)  # the room of 16, shared equally


@pytest.mark.parametrize("name", ["segment_pair_nsp", "sentence_pair_nsp"])
def test_random_segments_of_a_single_document_are_its_own(make_store, name):
    made = rows(make_store([[A, B, C, D, E]]), name, 20, duplicates=10)
    assert any(is_random for _, _, is_random in made)
    assert all(set(row) <= {0, 2, *A, *B, *C, *D, *E} for row, _, _ in made)


def test_the_same_text_gives_the_same_rows(make_store, tmp_path):
    lengths = [[5, 3, 8], [2, 2], [9, 1, 4]]
    first = rows(write(tmp_path / "1", numbered(lengths)), "segment_pair_nsp", 16, duplicates=2)
    assert first == rows(write(tmp_path / "2", numbered(lengths)), "segment_pair_nsp", 16, duplicates=2)
