"""A translation model that compiles in a second, and batches of pairs, alone and packed."""

import dataclasses

import numpy as np

from ag_jax.attention.config import FixedConfig
from ag_jax.models.config import DecoderConfig, EncoderConfig
from ag_jax.models.seq2seq import TranslationModel
from tests import reference

VOCABULARY, PAD, START = 31, 1, 4
# Source and target lengths of pairs, end tokens included.
LENGTHS = ((7, 5), (3, 8), (4, 1), (1, 3), (9, 6), (2, 2))
# The pairs of every packed row; the last row is empty.
SHARED = ((0, 2, 5), (1,), (3, 4), ())
SOURCE_LENGTH, TARGET_LENGTH = 14, 11  # of packed rows
CONFIG = EncoderConfig(
    vocabulary_size=VOCABULARY,
    layers=2,
    heads=3,
    width=12,
    feedforward=22,
    max_length=14,
    position_offset=0,
    positions="sinusoidal",
    token_types=0,
    embedding_norm=False,
    embedding_scale=True,
    activation="relu",
    dropout=0.0,
    attention_dropout=0.0,
    remat="none",
)
DECODER = DecoderConfig(layers=2)


def model(decoder=DECODER, **settings) -> TranslationModel:
    """Return a tiny translation model with changed settings of its encoder."""
    return TranslationModel(dataclasses.replace(CONFIG, **settings), decoder)


def fixed(offsets=(-1, 1), decoder_offsets=(-1, 0), normalized=False) -> tuple[dict, dict]:
    """Return the settings of hard-coded attention, for the encoder's config and for the decoder's."""
    return (
        {"fixed_attention": FixedConfig(offsets, normalized=normalized)},
        {"fixed_attention": FixedConfig(decoder_offsets, normalized=normalized)},
    )


def alone(seed=0, start=START) -> dict[str, np.ndarray]:
    """Return a batch with one pair a row."""
    rng = np.random.default_rng(seed)
    rows = [(rng.integers(5, VOCABULARY, source), rng.integers(5, VOCABULARY, target)) for source, target in LENGTHS]
    for source, target in rows:
        source[-1] = target[-1] = reference.DELIMITERS[1]
    rows[0][0][3] = rows[4][0][5] = rows[1][1][3] = reference.PERIODS[1]  # the other texts have no full stop
    for source, target in rows:
        for text in (source, target):
            text[np.isin(text, reference.PERIODS) & (text != reference.PERIODS[1])] = 12
    longest = [max(lengths) for lengths in zip(*LENGTHS, strict=True)]
    return _batch([[number] for number in range(len(rows))], rows, *longest, start)


def packed(seed=0, start=START, texts=None) -> dict[str, np.ndarray]:
    """Return the pairs of `alone` in the rows of `SHARED`.

    texts: another batch of the form that `alone` returns, whose pairs are taken.
    """
    texts = alone(seed, start) if texts is None else texts
    rows = []
    for number, (source, target) in enumerate(LENGTHS):
        rows.append((texts["tokens"][number, :source], texts["target_labels"][number, :target]))
    return _batch(SHARED, rows, SOURCE_LENGTH, TARGET_LENGTH, start)


def _batch(places, pairs, source_length, target_length, start) -> dict[str, np.ndarray]:
    shapes = {"": (len(places), source_length), "target_": (len(places), target_length)}
    fields = {
        "tokens": np.full(shapes[""], PAD, np.int32),
        "segment_ids": np.zeros(shapes[""], np.int32),
        "token_type_ids": np.zeros(shapes[""], np.int32),
        "target_tokens": np.full(shapes["target_"], PAD, np.int32),
        "target_labels": np.full(shapes["target_"], PAD, np.int32),
        "target_segment_ids": np.zeros(shapes["target_"], np.int32),
        "target_weights": np.zeros(shapes["target_"], np.float32),
    }
    for row, numbers in enumerate(places):
        at_source = at_target = 0
        for number, (source, target) in enumerate((pairs[index] for index in numbers), 1):
            of_source = slice(at_source, at_source + len(source))
            of_target = slice(at_target, at_target + len(target))
            fields["tokens"][row, of_source], fields["segment_ids"][row, of_source] = source, number
            fields["target_tokens"][row, of_target] = [start, *target[:-1]]
            fields["target_labels"][row, of_target] = target
            fields["target_segment_ids"][row, of_target], fields["target_weights"][row, of_target] = number, 1
            at_source, at_target = of_source.stop, of_target.stop
    return fields


def texts(batch) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """Return (row, source positions, target positions) of every pair of a batch."""
    found = []
    for row, ids in enumerate(batch["target_segment_ids"]):
        for places in reference.texts(ids):
            found.append((row, np.flatnonzero(batch["segment_ids"][row] == ids[places[0]]), places))
    return found
