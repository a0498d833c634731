"""Training batches of a translation model: arrays of source and target token ids, made from stored rows.

A batch is a dict of numpy arrays with these keys:

    tokens              int32 [B, S]    source: the encoder's input, each text with its end token; padding is at the
                                        end of rows
    segment_ids         int32 [B, S]    1, 2, ... for the texts that share the row, without attention between them; 0
                                        on padding
    token_type_ids      int32 [B, S]    zeros
    target_tokens       int32 [B, T]    target, shifted: the decoder's input at a position is the previous label of the
                                        same text, and the start token at a text's first position
    target_labels       int32 [B, T]    target: the tokens to predict, each text with its end token
    target_segment_ids  int32 [B, T]    number of the text as in `segment_ids`: a text and its translation have the same
                                        number; 0 on padding
    target_weights      float32 [B, T]  1 on a label, 0 on padding
    alignment           int16 [B, T]    position in `tokens` to which the query that predicts a label points: the first
                                        token of the aligned source word, if the label is the first token of a target
                                        word; -1 elsewhere; only with `data.alignments`

Shape letters: B batch, S source length, T target length, K numbers of texts; both lengths are `data.sequence_length`.
"""

import numpy as np

from ag_jax.data.config import DataConfig
from ag_jax.data.layout import HostBatch
from ag_jax.data.parallel.layout import PairRows
from ag_jax.data.store import ABSENT
from ag_jax.data.tokenizers import Tokenizer


def empty_batch(config: DataConfig, rows: int) -> HostBatch:
    """Return a zero batch with a training batch's fields, shapes and dtypes, broadcast so that it takes no memory."""
    shape = (rows, config.sequence_length)
    names = ("tokens", "segment_ids", "token_type_ids", "target_tokens", "target_labels", "target_segment_ids")
    kinds: dict[str, type] = dict.fromkeys(names, np.int32) | {"target_weights": np.float32}
    if config.alignments:
        kinds["alignment"] = np.int16
    return {name: np.broadcast_to(np.zeros((), kind), shape) for name, kind in kinds.items()}


def make_batch(
    config: DataConfig, rows: PairRows, tokenizer: Tokenizer, *, example_B: np.ndarray, start: int
) -> HostBatch:
    """Return encoder inputs, decoder inputs and labels as {field: array} for the rows at indices `example_B`.

    config: length of the sides.
    rows: the rows of a split.
    tokenizer: the tokenizer of the rows.
    example_B: index of each row in `rows`; -1 makes an empty row (all padding, weights 0).
    start: token id at the first position of every target text: the padding or the begin token; the model decides what
        it embeds there.
    """
    present_B1 = (example_B >= 0)[:, None]
    # An empty row is read as row 0, to keep the shapes, and then overwritten.
    row_B = np.maximum(example_B, 0)
    length, pad = config.sequence_length, tokenizer.specials.pad

    def read(side) -> tuple[np.ndarray, np.ndarray]:
        tokens_BL, _ = side.gather(row_B, length, pad=pad)
        segments_BL = side.segment_ids(row_B, length)
        return np.where(present_B1, tokens_BL, pad), np.where(present_B1, segments_BL, 0)

    (tokens_BS, segments_BS), (labels_BT, target_segments_BT) = read(rows.source), read(rows.target)
    # What stands before a position, in the labels and in the numbers of the texts; 0 is no text's number.
    before_BT = np.pad(labels_BT, ((0, 0), (1, 0)))[:, :-1]
    is_first_BT = target_segments_BT != np.pad(target_segments_BT, ((0, 0), (1, 0)))[:, :-1]
    is_label_BT = target_segments_BT > 0
    inputs_BT = np.where(is_first_BT, start, before_BT)
    batch = {
        "tokens": tokens_BS,
        "segment_ids": segments_BS,
        "token_type_ids": np.zeros_like(tokens_BS),
        "target_tokens": np.where(is_label_BT, inputs_BT, pad).astype(np.int32),
        "target_labels": labels_BT,
        "target_segment_ids": target_segments_BT,
        "target_weights": is_label_BT.astype(np.float32),
    }
    if config.alignments:
        pointers_BT = rows.target.gather_pointers(row_B, length)[:, 0]
        columns_BT = _starts(segments_BS, target_segments_BT) + pointers_BT
        is_aligned_BT = present_B1 & (pointers_BT != ABSENT)
        batch["alignment"] = np.where(is_aligned_BT, columns_BT, -1).astype(np.int16)
    return batch


def _starts(segments_BS: np.ndarray, target_segments_BT: np.ndarray) -> np.ndarray:
    """Return the position at which the source text of each target position begins, `BT`; 0 on padding."""
    rows, length = segments_BS.shape
    numbers_BS = segments_BS + (length + 1) * np.arange(rows)[:, None]
    lengths_BK = np.bincount(numbers_BS.ravel(), minlength=rows * (length + 1)).reshape(rows, length + 1)
    lengths_BK[:, 0] = 0  # of padding
    return np.take_along_axis(np.cumsum(lengths_BK, axis=1) - lengths_BK, target_segments_BT, axis=1)
