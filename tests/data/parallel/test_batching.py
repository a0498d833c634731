"""Batches of pairs against rows that are shifted, numbered and padded by hand."""

import numpy as np
import pytest

from ag_jax.data.config import DataConfig
from ag_jax.data.parallel import batching
from ag_jax.data.parallel.layout import PairRows
from ag_jax.data.store import Row
from tests.data.conftest import write_rows

PAD, END, START, LENGTH = 1, 2, 77, 13
# Pairs without end tokens; rows hold one or several.
PAIRS = [([5, 6], [7, 8, 9]), ([10], [11]), ([12, 13, 14], [15, 16]), ([17], [18, 19, 20, 21])]
PLACES = [[0, 1, 3], [2]]
CONFIG = DataConfig(format="parallel", source="a.tsv", sequence_length=LENGTH)


@pytest.fixture
def make(tmp_path, tokenizer):
    """A function that stores rows, given as lists of numbers of pairs, and makes their batch."""
    assert (tokenizer.specials.pad, tokenizer.specials.end) == (PAD, END)

    def made(places, examples, start=START, name="rows"):
        for side, side_name in enumerate(("source", "target")):
            rows = [joined([PAIRS[number][side] for number in row]) for row in places]
            write_rows(tmp_path / name / side_name, rows, 300, is_packed=any(len(row) > 1 for row in places))
        read = PairRows(tmp_path / name)
        return batching.make_batch(CONFIG, read, tokenizer, example_B=np.array(examples), start=start)

    return made


def joined(texts) -> Row:
    """A row of texts, each with its end token."""
    ended = [[*text, END] for text in texts]
    starts = np.cumsum([0, *(len(text) for text in ended[:-1])])
    return Row(np.array([token for text in ended for token in text]), text_starts=starts)


def padded(rows, fill=0) -> list[list[int]]:
    return [[*row, *[fill] * (LENGTH - len(row))] for row in rows]


def test_a_batch_by_hand(make):
    """The batch has an empty row, a row of one pair, and a row of three."""
    batch, alone = make(PLACES, [-1, 1, 0]), make(PLACES, [1, 0], name="alone")
    assert batch["tokens"].tolist() == padded([[], [12, 13, 14, END], [5, 6, END, 10, END, 17, END]], PAD)
    assert batch["segment_ids"].tolist() == padded([[], [1] * 4, [1, 1, 1, 2, 2, 3, 3]])
    labels = [[], [15, 16, END], [7, 8, 9, END, 11, END, 18, 19, 20, 21, END]]
    assert batch["target_labels"].tolist() == padded(labels, PAD)
    shifted = [[], [START, 15, 16], [START, 7, 8, 9, START, 11, START, 18, 19, 20, 21]]
    assert batch["target_tokens"].tolist() == padded(shifted, PAD)
    assert batch["target_segment_ids"].tolist() == padded([[], [1] * 3, [1] * 4 + [2] * 2 + [3] * 5])
    assert batch["target_weights"].tolist() == padded([[], [1.0] * 3, [1.0] * 11], 0.0)
    assert not batch["token_type_ids"].any()
    empty = batching.empty_batch(CONFIG, 2)
    assert list(empty) == list(batch)
    for name, field in alone.items():
        np.testing.assert_array_equal(batch[name][1:], field)
        assert (empty[name].shape, empty[name].dtype) == (field.shape, field.dtype) == ((2, LENGTH), field.dtype)
        assert field.dtype == (np.float32 if name == "target_weights" else np.int32)
        assert not empty[name].any() and empty[name].strides == (0, 0)


def test_a_row_without_packing_and_a_start_that_is_the_padding(make):
    batch = make([[3], [1]], [0, 1], start=PAD)
    assert batch["target_tokens"].tolist() == padded([[PAD, 18, 19, 20, 21], [PAD, 11]], PAD)
    assert batch["target_segment_ids"].tolist() == padded([[1] * 5, [1] * 2])
    assert batch["target_weights"].sum(axis=1).tolist() == [5, 2]
