"""What objectives say of a batch, to be compared: the same with loss and without, and what each part of it counts."""

import dataclasses
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ag_jax.models.heads import KINDS
from ag_jax.models.masked_lm import PretrainingModel
from ag_jax.models.replaced_tokens import ReplacedTokensModel
from ag_jax.objectives.consistency import DivergenceConfig, total_weight
from ag_jax.objectives.masked_lm import Pretraining
from ag_jax.objectives.replaced_tokens import ReplacedTokens
from ag_jax.objectives.sentences import Sentences, SentenceTerm
from tests import tiny
from tests.cases import some

STEP = jnp.int32(5)
SMALL = tiny.config(heads=2, width=8, feedforward=10, embedding_width=12)


def objectives():
    head = Sentences("head", texts=2)
    yield from ((kind, tiny.supervised(tiny.task_model(kind)), tiny.task_batch(kind)) for kind in KINDS)
    mixed = tiny.mixed_batch()
    yield "mlm", Pretraining(PretrainingModel(tiny.CONFIG)), mixed
    yield "nsp", Pretraining(tiny.model(), head), mixed
    yield "decoder", Pretraining(tiny.model(**tiny.DEBERTA_V1), head), mixed
    yield "bias", tiny.guided(tiny.model(), mode="bias"), mixed
    yield "unigram", ReplacedTokens(ReplacedTokensModel(tiny.CONFIG), 3.0, (0, 2), head), mixed
    yield "generator", ReplacedTokens(ReplacedTokensModel(tiny.CONFIG, SMALL), sentences=head), mixed


CASES = {name: (objective, batch) for name, objective, batch in objectives()}


@pytest.mark.parametrize("name", some(CASES, "span_or_none", "decoder", "bias", "generator"))
def test_predicted_again_it_is_the_same(name):
    """Without dropout, but with a generator's samples of another key than an evaluation's."""
    objective, batch = CASES[name]
    params = tiny.params((objective.inner if name == "bias" else objective).model, batch)
    rngs = {"dropout": jax.random.key(7)}

    @jax.jit
    def both(params, batch):
        outcome = tiny.evaluate(objective, params, batch, rngs, STEP)
        read = outcome.outputs.encoder_batch
        again = objective.predict(params, read, {"dropout": jax.random.key(8)}, STEP)
        first = {prediction: outcome.outputs.predictions[prediction] for prediction in objective.prediction_names}
        return (
            first,
            again.predictions,
            read["tokens"],
            objective.prediction_weights(batch),
            objective.normalizers(batch),
        )

    first, again, tokens, weights, normalizers = both(params, batch)
    assert set(first) == set(again) == set(weights)
    for one, other in zip(jax.tree.leaves(first), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(one, other)
    assert (name == "generator") == bool((tokens != batch["tokens"]).any())
    main = next(normalizers[term] for term in ("task", "rtd", "mlm") if term in normalizers)
    np.testing.assert_allclose(total_weight(weights["task"], DivergenceConfig()), main)
    if "nsp" in weights:
        assert total_weight(weights["nsp"], DivergenceConfig()) == normalizers["nsp"]
    if "sentence" in weights:  # rows of one text, of none, and of two
        np.testing.assert_array_equal(weights["sentence"].elements, [[1, 0], [1, 0], [1, 0], [0, 0], [1, 1], [1, 0]])


@pytest.mark.parametrize("of", get_args(SentenceTerm))
def test_first_positions(of):
    """Of every text, wherever it begins in its row: what the head, or the hidden state, is there."""
    batch, model = tiny.mixed_batch(), tiny.model()
    params = tiny.params(model, batch)
    objective = Pretraining(model, Sentences(of, texts=3))
    said = jax.jit(lambda params: objective.predict(params, batch, None, STEP))(params).predictions
    if of == "none":
        assert set(said) == {"task", "nsp"}
        return
    firsts = [(0, 0, 0), (1, 0, 0), (2, 0, 0), (4, 0, 0), (4, 1, 3), (5, 0, 4)]  # row, text, position
    asked = batch | {"masked_positions": np.tile(np.arange(tiny.LENGTH, dtype=np.int32), (6, 1))}
    everywhere = model.apply({"params": params}, asked, deterministic=True)
    wanted = everywhere.hidden_BMD if of == "head" else everywhere.encoded_BLD
    found = {"head": lambda: said["sentence"].hidden_BMD, "softmax": lambda: said["sentence"].logits}
    found = found.get(of, lambda: said["sentence"].values)()
    assert found.shape[:2] == (6, 3)
    for row, text, position in firsts:
        np.testing.assert_allclose(found[row, text], wanted[row, position], rtol=1e-5, atol=1e-5)


def test_asking_at_first_positions_changes_no_loss():
    batch, model = tiny.mixed_batch(), tiny.model(**tiny.DEBERTA_V1)
    params = tiny.params(model, batch)
    plain, asked = (
        jax.jit(lambda params, one=one: tiny.evaluate(one, params, batch, None, STEP).totals)(params)
        for one in (Pretraining(model), Pretraining(model, Sentences("head", 2)))
    )
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-6), plain, asked)


def test_tags_and_spans_count_as_in_their_losses():
    tagging, span = (tiny.supervised(tiny.task_model(kind)) for kind in ("tagging", "span"))
    of_tags = tagging.prediction_weights(tiny.task_batch("tagging"))["task"]
    assert of_tags.elements.shape == (8, tiny.LENGTH) and of_tags.rows_B.tolist() == [1] * 7 + [0]
    of_spans = span.prediction_weights(tiny.task_batch("span"))["task"].elements
    assert of_spans.shape == (8, 2) and of_spans.sum() == 6 and set(np.unique(of_spans)) == {0, 0.5}
    assert dataclasses.asdict(DivergenceConfig())["legacy"] is False
