"""FLOPs by hand, by published figures, and by the compiler's own count."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from ag_jax.models import flops
from ag_jax.models.config import DecoderConfig, EncoderConfig
from ag_jax.objectives import word_loss
from ag_jax.objectives.masked_lm import Pretraining
from tests import tiny
from tests import tiny_translation as small


@pytest.mark.parametrize(
    ("layers", "length", "fraction", "per_token"),
    [(12, 512, 0.15, 601.5e6), (12, 512, 1.0, 801.4e6), (12, 128, 0.15, 559.0e6), (8, 512, 0.15, 412.8e6)],
)
def test_published_figures_of_roberta(layers, length, fraction, per_token):
    config = EncoderConfig(vocabulary_size=50_265, layers=layers)
    counted = flops.step_flops(config, rows=3, length=length, predicted=fraction * length)
    assert counted.total / (3 * length) == pytest.approx(per_token, rel=2e-4)


def test_parts_by_hand():
    """2 layers, width 12, 22 features, 37 words, 4 rows of 11 with 5 slots: multiply-adds, times 2, times 3."""
    counted = flops.step_flops(tiny.CONFIG, rows=4, length=11, predicted=5, next_sentence=True)
    assert counted.body == 6 * 44 * 2 * (4 * 144 + 2 * 12 * 22)
    assert counted.attention == 6 * 2 * 4 * 2 * 11 * 11 * 12  # scores and mixing, each rows * T * T * d
    assert counted.head == 6 * 20 * (144 + 12 * 37)
    assert counted.next_sentence == 6 * 4 * (144 + 24)
    assert counted.total == counted.body + counted.attention + counted.head + counted.next_sentence


def test_gated_layers_and_windows_by_hand():
    """Five layers of 12: three see all 11 tokens, two a window of 4, which are 5; a third product of 12 x 22."""
    counted = flops.step_flops(tiny.config(**tiny.MODERNBERT), rows=4, length=11, predicted=5)
    assert counted.body == 6 * 44 * 5 * (4 * 144 + 3 * 12 * 22)
    assert counted.attention == 6 * 2 * 4 * 11 * (3 * 11 + 2 * 5) * 12
    short = flops.step_flops(tiny.config(**tiny.MODERNBERT), rows=4, length=3, predicted=2)
    assert short.attention == 6 * 2 * 4 * 3 * 5 * 3 * 12


def test_replaced_tokens_by_hand():
    """Encoder: 2 layers, width 12, 22 features. Generator: 2 layers, width 6, 10
    features, embeddings of 12, 37 words.
    """
    alone = flops.replaced_tokens_flops(tiny.CONFIG, None, rows=4, length=11, predicted=5)
    assert alone.body == 6 * 44 * 2 * (4 * 144 + 2 * 12 * 22)
    assert alone.attention == 6 * 2 * 4 * 2 * 11 * 11 * 12
    assert alone.head == 6 * 44 * (144 + 12)
    small = tiny.config(width=6, feedforward=10, embedding_width=12)
    both = flops.replaced_tokens_flops(tiny.CONFIG, small, rows=4, length=11, predicted=5)
    assert both.body - alone.body == 6 * 44 * (2 * (4 * 36 + 2 * 6 * 10) + 12 * 6)
    assert both.attention - alone.attention == 6 * 2 * 4 * 2 * 11 * 11 * 6
    assert both.head - alone.head == 6 * 20 * (6 * 12 + 12 * 37)
    projected = flops.replaced_tokens_flops(tiny.config(embedding_width=5), None, rows=4, length=11, predicted=5)
    assert projected.body - alone.body == 6 * 44 * 5 * 12


def test_parts_of_deberta_by_hand():
    """The same with one convolution, two terms, a table of 12 rows and two passes of the decoder."""
    settings = {**tiny.DEBERTA_V1, "convolution": 3}
    counted = flops.step_flops(tiny.config(**settings), rows=4, length=11, predicted=5)
    projections = 2 * 12 * 144  # two terms, 12 of 21 distances have a row
    assert counted.body == 6 * 44 * (2 * (4 * 144 + 2 * 12 * 22) + 3 * 144)
    assert counted.attention == 6 * 2 * (4 * 2 * 11 * 11 * 12 + 2 * 44 * 11 * 12 + projections)
    of_a_pass = 20 * (2 * 144 + 2 * 12 * 22 + 2 * 11 * 12 + 2 * 11 * 12)
    assert counted.decoder == 6 * (2 * of_a_pass + 44 * 2 * 144 + projections)
    assert counted.total == counted.body + counted.attention + counted.head + counted.decoder

    counted = flops.step_flops(tiny.config(embedding_width=7), rows=4, length=11, predicted=5)
    assert counted.body == 6 * 44 * (2 * (4 * 144 + 2 * 12 * 22) + 7 * 12)
    assert counted.head == 6 * 20 * (12 * 7 + 7 * 37)


def test_translation_by_hand():
    """2 + 2 layers, width 12, 22 features, 31 words, 4 rows of 11 on each side: multiply-adds, times 2, times 3."""
    counted = flops.translation_flops(small.CONFIG, small.DECODER, rows=4, length=11)
    own, features, to_source = 4 * 144, 2 * 12 * 22, 4 * 144
    assert counted.body == 6 * 44 * (2 * (own + features) + 2 * (own + to_source + features))
    assert counted.attention == 6 * 6 * 4 * 2 * 11 * 11 * 12  # six kinds, scores and mixing
    assert counted.head == 6 * 44 * 12 * 31
    assert counted.total == counted.body + counted.attention + counted.head
    # Hard-coded: no queries, no keys and no scores, but in the attention to the source.
    settings, of_decoder = small.fixed()
    fixed = flops.translation_flops(
        dataclasses.replace(small.CONFIG, **settings), DecoderConfig(layers=2, **of_decoder), rows=4, length=11
    )
    assert counted.body - fixed.body == 6 * 44 * 4 * 2 * 144
    assert fixed.attention == 6 * 2 * 4 * 2 * 11 * 11 * 12
    # Embeddings of another width are projected on both sides, and before the output.
    projected = dataclasses.replace(small.CONFIG, embedding_width=8)
    wider = flops.translation_flops(projected, small.DECODER, rows=4, length=11)
    assert wider.body - counted.body == 6 * 44 * 3 * 8 * 12 and wider.head == 6 * 44 * 8 * 31


def test_the_compiler_counts_the_same(monkeypatch):
    """Forward and backward of one layer and all masked positions at once, for the compiler counts a loop's body once.

    It adds elementwise work (softmax, GELU, LayerNorm, loss), whose share falls as 1/width: 0.7 % at RoBERTa's width.
    """
    settings = {"layers": 1, "max_length": 64, "width": 96, "heads": 3, "feedforward": 384, "vocabulary_size": 1009}
    model = tiny.model(**settings)
    monkeypatch.setattr(word_loss, "POSITIONS", 11)
    batch = tiny.batch((64,) * 4, 64, 11, 1009)
    objective = Pretraining(model)

    def loss(params):
        return sum(tiny.evaluate(objective, params, batch, None, jnp.int32(0)).totals.values())

    shapes = jax.eval_shape(lambda: tiny.params(model, batch))
    counted = jax.jit(jax.value_and_grad(loss)).lower(shapes).compile().cost_analysis()["flops"]
    expected = flops.step_flops(model.config, rows=4, length=64, predicted=11, next_sentence=True).total
    assert counted == pytest.approx(expected * 1.021, rel=0.01)


def test_mfu():
    assert flops.mfu(4e12, 2.0, 4, 1e12) == 0.5
    assert flops.mfu(4e12, 2.0, 4, None) is None
