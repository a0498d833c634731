"""What is written is read back: sentences, documents and rows."""

import numpy as np
import pytest

from ag_jax.data import cache, checksums
from ag_jax.data.text import store
from ag_jax.data.text.formats import Row
from ag_jax.data.text.store import Rows, TextStore, TextStoreWriter


def test_sentences_and_documents_come_back(make_store):
    documents = [[[5, 6, 7], [8]], [[59_999]], [[1, 2], [3], [4, 5, 6]]]
    text = make_store([documents[0], [[], []], documents[1], [], [[], *documents[2]]])
    assert len(text) == 3
    assert [[sentence.tolist() for sentence in text.document(number)] for number in range(3)] == documents
    assert text.bounds(2) == (3, 6)
    assert [sentence.tolist() for sentence in text.sentences(1, 4)] == [[8], [59_999], [1, 2]]
    assert text.tokens.read(2, 6).tolist() == [7, 8, 59_999, 1]


def test_large_vocabularies_take_four_bytes(tmp_path):
    assert store.token_dtype(65_536) == np.uint16
    assert store.token_dtype(65_537) == np.uint32
    writer = TextStoreWriter(tmp_path, vocabulary_size=70_000)
    writer.append([[69_999]])
    writer.close()
    assert TextStore(tmp_path).document(0)[0].tolist() == [69_999]


def test_rows_come_back_padded(tmp_path):
    rows = [Row(np.array([0, 7, 8, 9, 2]), 3, True), Row(np.array([0, 2]), 1, False), Row(np.array([0, 7, 2]), 2, True)]
    store.write_rows(tmp_path, rows, 300, has_pairs=True)
    read = Rows(tmp_path)
    assert len(read) == 3 and read.has_pairs
    assert read.lengths.tolist() == [5, 2, 3]
    assert [read.row(number).tolist() for number in range(3)] == [row.tokens.tolist() for row in rows]
    assert read.second_start.tolist() == [3, 1, 2] and read.is_random_next.tolist() == [1, 0, 1]
    tokens_BL, lengths_B = read.gather(np.array([2, 0, 2]), 6, pad=1)
    assert tokens_BL.tolist() == [[0, 7, 2, 1, 1, 1], [0, 7, 8, 9, 2, 1], [0, 7, 2, 1, 1, 1]]
    assert tokens_BL.dtype == np.int32 and lengths_B.tolist() == [3, 5, 3]
    segments_BL = read.segment_ids(np.array([2, 0, 2]), 6)
    assert segments_BL.tolist() == [[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0]]
    assert segments_BL.dtype == np.int32
    assert read.fill_rate(5) == 10 / 15 and read.text_count == 3


def test_rows_of_several_texts_know_where_each_begins(tmp_path):
    rows = [
        Row(np.array([0, 7, 2, 0, 8, 9, 2]), text_starts=[0, 3]),
        Row(np.array([0, 7, 8, 2])),
        Row(np.array([0, 5, 2, 0, 6, 2, 0, 7, 8, 2]), text_starts=[0, 3, 6]),
    ]
    store.write_rows(tmp_path, rows, 300, is_packed=True)
    read = Rows(tmp_path)
    assert (len(read), read.text_count, read.is_packed, read.has_pairs) == (3, 6, True, False)
    assert read.text_starts.tolist() == [0, 3, 7, 11, 14, 17]
    segments_BL = read.segment_ids(np.array([2, 1, 0, 2]), 11)
    assert segments_BL.dtype == np.int32
    third = [1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 0]
    assert segments_BL.tolist() == [third, [1] * 4 + [0] * 7, [1, 1, 1, 2, 2, 2, 2] + [0] * 4, third]


def test_no_rows_at_all(tmp_path):
    store.write_rows(tmp_path, [], 300)
    assert len(Rows(tmp_path)) == 0 and not Rows(tmp_path).has_pairs and not Rows(tmp_path).is_packed


def test_rows_of_large_files_are_checked_as_they_are_read(tmp_path, monkeypatch):
    """Rows are found by `ends`, their texts by `text_starts`: damage in any of the files is
    noticed, and nothing else changes.
    """
    monkeypatch.setattr(cache, "READ_WHOLE", 0)
    monkeypatch.setattr(checksums, "BLOCK", 16)
    rows = [Row(np.full(6, number), text_starts=[0, 3]) for number in range(40)]
    entry = cache.build_once(tmp_path / "rows", lambda made: store.write_rows(made, rows, 300, is_packed=True))
    plain, row_B = Rows(tmp_path / "rows"), np.array([3, 30, 7])

    def read(opened):
        tokens_BL, lengths_B = opened.gather(row_B, 8, pad=1)
        return [tokens_BL, lengths_B, opened.segment_ids(row_B, 8), opened.lengths, opened.counts(300), opened.row(5)]

    for one, other in zip(read(Rows(tmp_path / "rows", entry)), read(plain), strict=True):
        np.testing.assert_array_equal(one, other)
    for name in ("tokens", "ends", "text_starts"):
        path = tmp_path / "rows" / f"{name}.bin"
        whole = path.read_bytes()
        at = int(len(whole) * 30.5 / 40)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        opened = Rows(tmp_path / "rows", entry)
        with pytest.raises(ValueError, match=f"{name}.bin is damaged"):
            opened.gather(row_B, 8, pad=1)
            opened.segment_ids(row_B, 8)
        if name == "tokens":
            opened.gather(np.array([3, 7]), 8, pad=1)
            with pytest.raises(ValueError, match="tokens.bin is damaged"):
                opened.counts(300)
        path.write_bytes(whole)
