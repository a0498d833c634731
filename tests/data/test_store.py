"""What is written is read back: sentences, documents and rows."""

import numpy as np
import pytest

from ag_jax.data import cache, checksums, store
from ag_jax.data.cache import Cache
from ag_jax.data.store import Block, Row, Rows, TextStore, TextStoreWriter
from tests.data.conftest import write_rows


def test_sentences_and_documents_come_back(make_store, tmp_path, monkeypatch):
    documents = [[[5, 6, 7], [8]], [[59_999]], [[1, 2], [3], [4, 5, 6]]]
    text = make_store(documents)
    assert len(text) == 3
    assert [[sentence.tolist() for sentence in text.document(number)] for number in range(3)] == documents
    assert text.bounds(2) == (3, 6) and text.token_count(0, 2) == 5 and text.token_count(1, 3) == 7
    assert [sentence.tolist() for sentence in text.sentences(1, 4)] == [[8], [59_999], [1, 2]]
    pread = store.os.pread
    with monkeypatch.context() as patch:  # no more than 2 GiB in one call
        patch.setattr(store.os, "pread", lambda file, size, offset: pread(file, min(size, 3), offset))
        assert text.tokens.read(2, 6).tolist() == [7, 8, 59_999, 1]
    assert (store.token_dtype(65_536), store.token_dtype(65_537)) == (np.uint16, np.uint32)

    monkeypatch.setattr(store, "COPIED_TOGETHER", 2)
    writer = TextStoreWriter(tmp_path / "copy", vocabulary_size=70_000)
    writer.append(np.array([69_999]), np.array([1]), np.array([1]))
    for first, last in ((1, 3), (0, 1)):
        writer.copy(text, first, last)
    writer.close()
    copy = TextStore(tmp_path / "copy")
    found = [[sentence.tolist() for sentence in copy.document(number)] for number in range(len(copy))]
    assert found == [[[69_999]], *documents[1:], documents[0]] and writer.tokens == 12


def test_rows_come_back_padded(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "COUNTED_TOGETHER", 4)
    rows = [Row(np.array([0, 7, 8, 9, 2]), 3, True), Row(np.array([0, 2]), 1, False), Row(np.array([0, 7, 2]), 2, True)]
    write_rows(tmp_path, rows, 300, has_pairs=True)
    read = Rows(tmp_path)
    assert len(read) == 3 and read.has_pairs and not read.is_packed
    assert read.lengths.tolist() == [5, 2, 3]
    assert [read.row(number).tolist() for number in range(3)] == [row.tokens.tolist() for row in rows]
    assert read.second_start.tolist() == [3, 1, 2] and read.is_random_next.tolist() == [1, 0, 1]
    tokens_BL, lengths_B = read.gather(np.array([2, 0, 2]), 6, pad=1)
    assert tokens_BL.tolist() == [[0, 7, 2, 1, 1, 1], [0, 7, 8, 9, 2, 1], [0, 7, 2, 1, 1, 1]]
    assert tokens_BL.dtype == np.int32 and lengths_B.tolist() == [3, 5, 3]
    segments_BL = read.segment_ids(np.array([2, 0, 2]), 6)
    assert segments_BL.tolist() == [[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0]]
    assert segments_BL.dtype == np.int32
    assert read.text_count == 3
    counts_V = read.counts(300)
    assert len(counts_V) == 300 and {v: int(n) for v, n in enumerate(counts_V) if n} == {0: 3, 2: 3, 7: 2, 8: 1, 9: 1}
    write_rows(tmp_path / "none", [], 300)
    assert len(Rows(tmp_path / "none")) == 0


def test_rows_of_several_texts_know_where_each_begins(tmp_path):
    rows = [
        Row(np.array([0, 7, 2, 0, 8, 9, 2]), text_starts=[0, 3]),
        Row(np.array([0, 7, 8, 2])),
        Row(np.array([0, 5, 2, 0, 6, 2, 0, 7, 8, 2]), text_starts=[0, 3, 6]),
    ]
    writer = store.RowsWriter(tmp_path, 300, is_packed=True)
    for block in (Block.of(rows[:2]), Block.of(rows[2:])):
        writer.append(block)
    writer.close()
    read = Rows(tmp_path)
    assert (len(read), read.text_count, read.is_packed, read.has_pairs) == (3, 6, True, False)
    assert read.text_starts.tolist() == [0, 3, 7, 11, 14, 17]
    segments_BL = read.segment_ids(np.array([2, 1, 0, 2]), 11)
    assert segments_BL.dtype == np.int32
    third = [1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 0]
    assert segments_BL.tolist() == [third, [1] * 4 + [0] * 7, [1, 1, 1, 2, 2, 2, 2] + [0] * 4, third]


def test_rows_of_large_files_are_checked_as_they_are_read(tmp_path, monkeypatch):
    """Damage in any of the files is noticed, and nothing else changes."""
    monkeypatch.setattr(cache, "READ_WHOLE", 0)
    monkeypatch.setattr(checksums, "BLOCK", 16)
    rows = [Row(np.full(6, number), text_starts=[0, 3]) for number in range(40)]
    entry = Cache(tmp_path).build_once("rows", lambda made: write_rows(made, rows, 300, is_packed=True))
    row_B = np.array([3, 30, 7])

    def read(opened):
        tokens_BL, lengths_B = opened.gather(row_B, 8, pad=1)
        return [tokens_BL, lengths_B, opened.segment_ids(row_B, 8), opened.lengths, opened.counts(300), opened.row(5)]

    for one, other in zip(read(Rows(tmp_path / "rows", entry)), read(Rows(tmp_path / "rows")), strict=True):
        np.testing.assert_array_equal(one, other)
    for name in ("tokens", "ends", "text_starts"):
        path = tmp_path / "rows" / f"{name}.bin"
        whole = path.read_bytes()
        at = int(len(whole) * 30.5 / 40)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        opened = Rows(tmp_path / "rows", entry)
        with pytest.raises(ValueError, match=f"{name}.bin"):
            opened.gather(row_B, 8, pad=1)
            opened.segment_ids(row_B, 8)
        if name == "tokens":
            opened.gather(np.array([3, 7]), 8, pad=1)
            with pytest.raises(ValueError, match="tokens.bin"):
                opened.counts(300)
        path.write_bytes(whole)
