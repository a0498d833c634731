"""Make masked batches for pre-training from stored rows.

A batch is a dict of numpy arrays with these keys:

    tokens            int32 [B, L]    the encoder's input: corrupted token ids, padded on the right
    original          int32 [B, L]    the token ids before corruption
    segment_ids       int32 [B, L]    segment ids: 1, 2, ... for the texts that share the row, without attention between
                                      them; 0 on padding
    token_type_ids    int32 [B, L]    token types: 1 on the second segment of a pair, else 0
    masked_positions  int32 [B, M]    positions to predict, ascending; 0 in unused slots
    masked_labels     int32 [B, M]    the original token ids at `masked_positions`; 0 in unused slots
    masked_weights    float32 [B, M]  1 in used slots, 0 in unused ones
    next_labels       int32 [B]       1 if the second segment is a random one; only in the formats with pairs
    pointers          int16 [B, P, L]  for each of `data.pointers`, the offset from a token to the one that it points
                                      to, -32768 if it has none; only with `data.pointers`. Masking does not change it

Shape letters: B batch, L length, M masked positions, P names of pointers.
"""

import numpy as np

from ag_jax.data.config import PAIR_FORMATS, DataConfig
from ag_jax.data.layout import HostBatch
from ag_jax.data.store import ABSENT, Rows
from ag_jax.data.text import corruption
from ag_jax.data.text.mixture import MixedRows
from ag_jax.data.text.unigram import Unigram
from ag_jax.data.tokenizers import Tokenizer


def empty_batch(config: DataConfig, rows: int) -> HostBatch:
    """Return a masked batch's fields with their shapes and types, of empty values that take no memory.

    They are zeros, and of pointers -32768; all are broadcast scalars.
    """
    row, slots = (rows, config.sequence_length), (rows, corruption.max_masked(config.masking, config.sequence_length))
    fields: dict[str, tuple[tuple[int, ...], type]] = {
        "tokens": (row, np.int32),
        "original": (row, np.int32),
        "segment_ids": (row, np.int32),
        "token_type_ids": (row, np.int32),
        "masked_positions": (slots, np.int32),
        "masked_labels": (slots, np.int32),
        "masked_weights": (slots, np.float32),
    }
    if config.format in PAIR_FORMATS:
        fields["next_labels"] = ((rows,), np.int32)
    batch: HostBatch = {name: np.broadcast_to(np.zeros((), dtype), shape) for name, (shape, dtype) in fields.items()}
    if config.pointers:
        shape = (rows, len(config.pointers), config.sequence_length)
        batch["pointers"] = np.broadcast_to(np.int16(ABSENT), shape)
    return batch


def make_batch(
    config: DataConfig,
    rows: Rows | MixedRows,
    tokenizer: Tokenizer,
    *,
    example_B: np.ndarray,
    epoch_B: np.ndarray,
    seed: int,
    unigram: Unigram | None = None,
    step: int = 0,
) -> HostBatch:
    """Return the masked batch of the rows with the indices `example_B`.

    config: format, length and masking.
    rows: the rows of a split.
    tokenizer: the tokenizer of the rows.
    example_B: index of each row in `rows`; -1 makes an empty row (all padding, weights 0).
    epoch_B: epoch of each row; the mask of a row changes from epoch to epoch.
    seed: seed of the masks.
    unigram: token frequencies of the training text, for `data.masking.replacement="unigram"`.
    step: step of training, for `data.masking.earlier_rates`.
    """
    # An empty row is read as row 0, to keep the shapes, and then overwritten.
    present_B = example_B >= 0
    row_B = np.maximum(example_B, 0)
    tokens_BL, lengths_B = rows.gather(row_B, config.sequence_length, pad=tokenizer.specials.pad)
    tokens_BL[~present_B] = tokenizer.specials.pad
    lengths_B = np.where(present_B, lengths_B, 0)
    segments_BL = np.where(present_B[:, None], rows.segment_ids(row_B, config.sequence_length), 0)

    masked = corruption.mask(config.masking, tokens_BL, lengths_B, row_B, epoch_B, seed, tokenizer, unigram, step)
    batch = {
        "tokens": masked.tokens_BL,
        "original": tokens_BL,
        "segment_ids": segments_BL,
        "token_type_ids": np.zeros_like(tokens_BL),
        "masked_positions": masked.positions_BM,
        "masked_labels": masked.labels_BM,
        "masked_weights": masked.weights_BM,
    }
    if rows.has_pairs:
        second_B = rows.second_start[row_B]
        is_second_BL = np.arange(config.sequence_length) >= second_B[:, None]
        second = tokenizer.specials.type_of_second(2)  # formats with pairs need a model with two types
        batch["token_type_ids"] = np.where(is_second_BL & (segments_BL > 0), second, 0).astype(np.int32)
        batch["next_labels"] = np.where(present_B, rows.is_random_next[row_B], 0).astype(np.int32)
    if config.pointers:
        batch["pointers"] = rows.gather_pointers(row_B, config.sequence_length)
        batch["pointers"][~present_B] = ABSENT
    return batch
