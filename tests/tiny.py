"""A model and batches that compile in a second, with a different size for each axis."""

import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from ag_jax.attention import guidance
from ag_jax.attention.config import DisentangledConfig, GuidanceConfig
from ag_jax.attention.patterns import PATTERNS, PatternInputs, PatternTokens
from ag_jax.finetuning.kinds import KINDS
from ag_jax.models.config import EncoderConfig
from ag_jax.models.encoder import Ports
from ag_jax.models.heads import TaskModel
from ag_jax.models.masked_lm import PretrainingModel
from ag_jax.objectives.base import Outputs
from ag_jax.objectives.guided import Guided
from ag_jax.objectives.masked_lm import Pretraining
from ag_jax.objectives.supervised import Supervised
from tests import reference

LENGTHS = (11, 7, 3, 0)
LENGTH, MASKED, VOCABULARY = 11, 5, 37
SPECIAL = PatternTokens(reference.DELIMITERS, reference.PERIODS)
ASSIGNMENT = (("next", 1), ("period", 1))
CONFIG = EncoderConfig(
    vocabulary_size=VOCABULARY,
    layers=2,
    heads=3,
    width=12,
    feedforward=22,
    max_length=13,
    token_types=2,
    dropout=0.0,
    attention_dropout=0.0,
    remat="none",
)

# Every encoder by its settings; `tests/models/test_encoders.py` asks the same of all. Spans are shorter than the rows.
DEBERTA_V1 = {
    "token_types": 0,
    "position_offset": 0,
    "absolute_positions": "decoder",
    "mask_decoder_passes": 2,
    "relative": DisentangledConfig(terms="c2p,p2c", span=6, shared=False, key_bias=False),
}
DEBERTA_V3 = DEBERTA_V1 | {"relative": DisentangledConfig(terms="c2p,p2c", span=9, buckets=6, normalized=True)}
WITHOUT_DECODER = {"absolute_positions": "none", "mask_decoder_passes": 0}
WITHOUT_BIASES = {"attention_biases": False, "feedforward_biases": False, "norm_biases": False}
ROTARY = WITHOUT_BIASES | {"token_types": 0, "positions": "rotary", "rotary_base": 50.0, "norm_position": "pre"}
MODERNBERT = ROTARY | {  # layers of two kinds, the second group of which is incomplete
    "layers": 5,
    "window": 4,
    "global_every": 2,
    "rotary_base_local": 8.0,
    "gated": True,
    "first_norm": False,
    "initializer": "scaled",
}
ENCODERS = {
    "bert": {"position_offset": 0},
    "roberta": {"token_types": 1},
    "electra": {"position_offset": 0, "embedding_width": 7},
    "deberta_v1": DEBERTA_V1,
    "deberta_v2": DEBERTA_V3 | {"convolution": 3},
    "deberta_v3": DEBERTA_V3,
    "modernbert": MODERNBERT,
}
ABLATIONS = {
    "no_emd": DEBERTA_V1 | WITHOUT_DECODER,
    "no_c2p": DEBERTA_V1 | {"relative": DisentangledConfig(terms="p2c", span=20, shared=False)},
    "no_p2c": DEBERTA_V1 | {"relative": DisentangledConfig(terms="c2p", span=20, shared=False)},
    "no_emd_c2p": DEBERTA_V1 | WITHOUT_DECODER | {"relative": DisentangledConfig(terms="p2c", span=4)},
    "no_emd_p2c": DEBERTA_V1 | WITHOUT_DECODER | {"relative": DisentangledConfig(terms="c2p", span=4)},
    "one_layer": DEBERTA_V3
    | {"layers": 1, "mask_decoder_passes": 1, "convolution": 5, "convolution_activation": "gelu"}
    | {"relative": DisentangledConfig(terms="p2c", span=20, shared=False, index="paper")},
    "neobert": ROTARY | {"norm": "rms", "activation": "silu", "gated": True, "query_key_norm": True},
    "windowed": {"window": 6, "global_every": None, "activation": "silu"},
    "biased_input": {"relative": DisentangledConfig(terms="c2p,p2c", span=3, normalized=True), "embedding_width": 7},
}


def config(**settings) -> EncoderConfig:
    """Return the tiny encoder's config with changed settings."""
    return EncoderConfig(**{**vars(CONFIG), **settings})


def model(**settings) -> PretrainingModel:
    """Return a tiny pre-training model with changed settings of its encoder."""
    return PretrainingModel(config(**settings), next_sentence=True)


def batch(lengths=LENGTHS, length=LENGTH, masked=MASKED, vocabulary=VOCABULARY, seed=0) -> dict[str, np.ndarray]:
    """Return a pre-training batch of rows of the given lengths, with zero, one and more masked positions."""
    rng = np.random.default_rng(seed)
    original_BL, segments_BL = reference.ragged(lengths, length, vocabulary=vocabulary, seed=seed)
    tokens_BL = original_BL.copy()
    positions_BM = np.zeros((len(lengths), masked), np.int32)
    labels_BM, weights_BM = positions_BM.copy(), positions_BM.astype(np.float32)
    for row, n in enumerate(lengths):
        number = min(row % (masked + 1), max(n - 2, 0))
        places = np.sort(rng.choice(np.arange(1, max(n - 1, 2)), number, replace=False)) if number else []
        positions_BM[row, :number], weights_BM[row, :number] = places, 1
        labels_BM[row, :number] = original_BL[row, places] if number else 0
        tokens_BL[row, places] = 3
    half_B = np.asarray(lengths)[:, None] // 2
    token_types_BL = ((np.arange(length) >= half_B) & (segments_BL > 0)).astype(np.int32)
    return {
        "tokens": tokens_BL,
        "original": original_BL,
        "segment_ids": segments_BL,
        "token_type_ids": token_types_BL,
        "masked_positions": positions_BM,
        "masked_labels": labels_BM,
        "masked_weights": weights_BM,
        "next_labels": (np.arange(len(lengths)) % 2).astype(np.int32),
    }


def task_batch(kind, rows=8, candidates=3, seed=0) -> dict[str, np.ndarray]:
    """Return a batch for a kind of task (`models.heads.KINDS`).

    Rows have different lengths, and the last row is filler.
    """
    rng = np.random.default_rng(seed)
    several = {"choice": candidates, "referent": candidates, "ranking": 2}.get(kind)
    lengths = rng.integers(4, LENGTH + 1, rows * (several or 1))
    tokens, segment_ids = reference.ragged(lengths, LENGTH, vocabulary=VOCABULARY, seed=seed)
    tokens[:, 0] = rng.integers(5, VOCABULARY, len(tokens))  # so that first vectors are far apart
    token_types = ((np.arange(LENGTH) >= 3) & (segment_ids > 0)).astype(np.int32)
    weights = np.ones(rows, np.float32)
    weights[-1] = 0
    fields = {"tokens": tokens, "segment_ids": segment_ids, "token_type_ids": token_types}
    if several:
        fields = {name: field.reshape(rows, several, LENGTH) for name, field in fields.items()}
        exists = np.ones((rows, several), np.float32)
        if kind != "ranking":
            exists[1, 2] = exists[-1, 1] = 0
            fields["segment_ids"][1, 2] = 0
        right = np.eye(several, dtype=np.float32)[np.arange(rows) % 2]
        if kind == "choice":
            right[2] = [0.5, 0, 0.5]
        if kind == "referent":
            right = np.tile(np.eye(several, dtype=np.float32)[0], (rows, 1))
            masked = (rng.random((rows, several, LENGTH)) < 0.3) & (fields["segment_ids"] > 0)
            masked[:, :, 1] = fields["segment_ids"][:, :, 1] > 0
            fields |= {"word_ids": fields["tokens"] * masked, "word_weights": masked.astype(np.float32)}
            fields["tokens"] = np.where(masked, 4, fields["tokens"])
        fields |= {"choice_weights": exists, "labels": right}
    elif kind == "classification":
        fields["labels"] = rng.integers(0, 3, rows).astype(np.int32)
    elif kind == "multilabel":
        fields["label_set"] = (rng.random((rows, 3)) < 0.4).astype(np.float32)
    elif kind == "regression":
        fields["labels"] = rng.random(rows).astype(np.float32)
    elif kind == "tagging":
        first = (rng.random((rows, LENGTH)) < 0.6) & (segment_ids > 0)
        first[0, 2:] = False  # a row with two tags at most
        fields["labels"] = rng.integers(0, 3, (rows, LENGTH)).astype(np.int32)
        fields["label_weights"] = first.astype(np.float32)
    else:
        fields["span_weights"] = ((token_types > 0) | (np.arange(LENGTH) == 0)).astype(np.float32)
        fields["starts"] = np.full(rows, 3, np.int32)
        fields["ends"] = (lengths - 1).astype(np.int32)
        fields["starts"][1] = fields["ends"][1] = 0  # no answer here
        fields["span_weights"][2, 3] = 0  # and an answer that must not be chosen
    return {**fields, "weights": weights}


def task_model(kind, style="roberta", **settings) -> TaskModel:
    """Return a tiny model with a head for a kind of task."""
    return TaskModel(config(**settings), kind, classes=3, style=style)


def supervised(model: TaskModel) -> Supervised:
    """Return the supervised objective for the model's kind of task."""
    return Supervised(model, KINDS[model.kind].loss)


def mixed_batch() -> dict[str, np.ndarray]:
    """Return a batch whose rows repeat the same texts in different positions.

    Rows of 11, 7, 3 and 0 tokens; a row with the texts of 3 and of 7 tokens; and the text of 7 tokens aligned right.
    """
    example = batch((11, 7, 3, 0, 0, 0))
    for name in ("tokens", "original", "token_type_ids"):
        example[name][4, :10] = np.concatenate([example[name][2, :3], example[name][1, :7]])
        example[name][5, 4:] = example[name][1, :7]
    example["segment_ids"][4, :10] = [1] * 3 + [2] * 7
    example["segment_ids"][5, 4:] = 1
    for row, moved in ((4, 3), (5, 4)):
        used = example["masked_weights"][1] > 0
        example["masked_positions"][row] = np.where(used, example["masked_positions"][1] + moved, 0)
        example["masked_labels"][row], example["masked_weights"][row] = example["masked_labels"][1], used
    return example


def params(of: nn.Module, example: dict, seed=0):
    """Return random parameters, also where initial values are all 0 or 1, large enough for uneven attention."""
    shapes = jax.eval_shape(lambda: nn.unbox(of.init(jax.random.key(0), example, deterministic=True))["params"])
    rng = np.random.default_rng(seed)

    def value(path, leaf):
        drawn = 0.3 * rng.standard_normal(leaf.shape)
        # `jnp.asarray` would compile a program for each shape.
        return jax.device_put(np.float32(1 + drawn if path[-1].key == "scale" else drawn))

    return jax.tree_util.tree_map_with_path(value, shapes)


@functools.partial(jax.jit, static_argnums=0)
def apply(of: nn.Module, params: dict, example: dict):
    """Return what a module computes without dropout, compiled once for all calls with examples of one shape."""
    return of.apply({"params": params}, example, deterministic=True)


def float64(tree):
    """Convert the arrays of a tree to numpy in float64."""
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


def guides(of_batch, assignment=ASSIGNMENT, after_dropout=False) -> guidance.Guides:
    """Return the attention targets of a batch for heads with the assigned patterns."""
    tokens_BL, segments_BL = jnp.asarray(of_batch["original"]), jnp.asarray(of_batch["segment_ids"])
    inputs = PatternInputs(tokens_BL, jnp.zeros(tokens_BL.shape, bool), segments_BL, SPECIAL)
    targets = tuple(PATTERNS[name](inputs) for name, _ in assignment)
    return guidance.Guides(targets, tuple(count for _, count in assignment), after_dropout)


def ports(of_batch, **settings) -> Ports:
    """Return encoder ports with the guides of a batch."""
    return Ports(guides=guides(of_batch, **settings))


def guided(of, assignment=ASSIGNMENT, total_steps=10, objective=Pretraining, **settings) -> Guided:
    """Return the guided objective of a model; `settings` are fields of `GuidanceConfig`."""
    chosen = GuidanceConfig(**{"mode": "loss", "alpha": 3.0, **settings})
    return Guided(
        inner=objective(of),
        config=chosen,
        assignment=assignment,
        heads=of.config.heads,
        special=SPECIAL,
        alpha=guidance.coefficient_schedule(chosen, total_steps),
    )


class Evaluated(NamedTuple):
    """The results of an objective for a batch.

    totals, metrics: the loss terms and metrics that `Objective.terms` returns.
    outputs: the outputs of the forward pass.
    """

    totals: dict[str, Any]
    metrics: dict[str, Any]
    outputs: Outputs


def evaluate(objective, params, batch, rngs, step, ports=Ports()) -> Evaluated:
    """Run a forward pass; return its outputs with the loss terms and metrics."""
    outputs = objective.forward(params, batch, rngs, step, ports)
    return Evaluated(*objective.terms(outputs, batch), outputs)


@functools.partial(jax.jit, static_argnums=0)
def evaluated(objective, params, batch, rngs, step, ports=Ports()) -> Evaluated:
    """Return what `evaluate` returns, compiled once for all calls with batches of one shape."""
    return evaluate(objective, params, batch, rngs, step, ports)
