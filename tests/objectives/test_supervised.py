"""Heads and losses of every kind of task, against numpy, with the embeddings as hidden states.

`test_self_attention.py` has the same heads behind an encoder.
"""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special as functions

from ag_jax.models import encoder
from ag_jax.models.heads import HEADS, NEVER, TaskModel, has_dropout, task_encoder
from tests import reference, tiny
from tests.objectives import perturbed

STEP = jnp.int32(5)


class Shallow(nn.Module):
    """Stands in for the encoder where it does not matter, and compiles at once."""

    config: Any
    attend: Any

    def setup(self):
        self.embeddings = ShallowEmbeddings(self.config)

    def __call__(self, batch, *, ports, deterministic):
        return self.embeddings(batch["tokens"])


class ShallowEmbeddings(nn.Module):
    config: Any

    def setup(self):
        self.word = nn.Embed(self.config.vocabulary_size, self.config.width)

    def __call__(self, tokens):
        return self.word(tokens)


def flat_rows(batch):
    return {name: batch[name].reshape(-1, tiny.LENGTH) for name in ("tokens", "segment_ids", "token_type_ids")}


def numpy_logits(kind, style, params, batch, hidden, pooling="first"):
    """Logits of a head, from the hidden states of the flat rows, in float64."""
    head, epsilon = params["task_head"], tiny.CONFIG.layer_norm_epsilon
    if kind == "referent":
        head = head["words"]
        decoded = reference.layer_norm(reference.gelu(reference.linear(hidden, head["dense"])), head["norm"], epsilon)
        words = decoded @ params["encoder"]["embeddings"]["word"]["embedding"].T + head["bias"]
        logs = words - functions.logsumexp(words, axis=-1, keepdims=True)
        ids, masks = (batch[name].reshape(hidden.shape[:2]) for name in ("word_ids", "word_weights"))
        of_rows = [log[np.arange(len(log)), of] for log, of in zip(logs, ids, strict=True)]
        return np.array([np.mean(of[mask > 0]) if mask.any() else 0 for of, mask in zip(of_rows, masks, strict=True)])
    vectors = hidden
    if HEADS[kind].reads_text and pooling == "first":
        vectors = hidden[:, 0]
    elif HEADS[kind].reads_text:
        lengths = (flat_rows(batch)["segment_ids"] > 0).sum(-1)
        vectors = np.array([row[:n].sum(0) / max(n, 1) for row, n in zip(hidden, lengths, strict=True)])
    if style == "modernbert":
        gelu = reference.gelu(reference.linear(vectors, head["dense"]))
        hidden = vectors = reference.layer_norm(gelu, head["norm"], epsilon)
    elif HEADS[kind].reads_text:
        activation = np.tanh if style in ("bert", "roberta") else reference.gelu
        vectors = activation(reference.linear(vectors, head["dense"]))
    logits = reference.linear(vectors, head["classifier"])
    if kind != "span_or_none":
        return logits
    none = reference.linear(hidden[:, :1], head["refusal"])  # of the first token alone
    return np.concatenate([logits, np.broadcast_to(none, (*logits.shape[:2], 1))], axis=2)


def numpy_loss(kind, logits, batch):
    """Total, weight, number of right predictions, label by label."""
    total = weight = right = 0.0
    for row in np.flatnonzero(batch["weights"]):
        if kind == "regression":
            total, weight = total + (logits[row, 0] - batch["labels"][row]) ** 2, weight + 1
        elif kind == "multilabel":
            yes, labels = functions.expit(logits[row]), batch["label_set"][row]
            total -= np.mean(np.log(np.where(labels, yes, 1 - yes)))
            weight, right = weight + 1, right + ((yes > 0.5) == labels).all()
        elif HEADS[kind].has_candidates:
            several = batch["labels"].shape[1]
            there = [c for c in range(several) if batch["choice_weights"][row, c]]
            scores = logits.reshape(-1, several)[row, there]
            total -= batch["labels"][row, there] @ (scores - functions.logsumexp(scores))
            weight, right = weight + 1, right + (batch["labels"][row, there[int(np.argmax(scores))]] > 0)
        elif kind in ("classification", "tagging"):
            places = [(row,)]
            if kind == "tagging":
                places = [(row, at) for at in np.flatnonzero(batch["label_weights"][row])]
            for place in places:
                scores, label = logits[place], batch["labels"][place]
                total, weight = total + functions.logsumexp(scores) - scores[label], weight + 1
                right += np.argmax(scores) == label
        else:
            places = np.flatnonzero(batch["span_weights"][row])
            ends = (batch["starts"][row], batch["ends"][row])
            if not set(ends) <= set(places):
                continue
            both = [(logits[row, places, side], int(np.flatnonzero(places == end)[0])) for side, end in enumerate(ends)]
            total += sum(functions.logsumexp(scores) - scores[at] for scores, at in both) / 2
            is_right = all(np.argmax(scores) == at for scores, at in both)
            if kind == "span_or_none":
                has_answer, none = batch["starts"][row] > 0, logits[row, 0, 2]
                total += np.log1p(np.exp(none if has_answer else -none))  # of a binary classifier
                is_right = is_right and (none < 0) == has_answer
            weight, right = weight + 1, right + is_right
    return total, weight, right


def check_loss(kind, outcome, objective, logits, batch):
    """Compare loss, metrics and divisor with those of numpy's logits."""
    total, weight, right = numpy_loss(kind, logits, batch)
    assert weight == (batch["label_weights"][:-1].sum() if kind == "tagging" else 6 if kind.startswith("span") else 7)
    np.testing.assert_allclose(outcome.totals["task"], total, rtol=2e-5)
    np.testing.assert_allclose(objective.normalizers(batch)["task"], weight)
    np.testing.assert_allclose(outcome.metrics["task_loss"], (total, weight), rtol=2e-5)
    assert ("accuracy" in outcome.metrics) == (kind != "regression")
    if kind != "regression":
        np.testing.assert_allclose(outcome.metrics["accuracy"], (right, weight))
        assert np.std(logits) > 0.02, "the comparison would be weak on even logits"


@pytest.fixture
def shallow(monkeypatch):
    """Put `Shallow` in the place of the encoder, for models of another config than those of other tests."""
    monkeypatch.setattr(encoder, "Encoder", Shallow)
    return {"max_length": 14}


TEXTS, TOKENS = ("classification", "choice"), ("tagging", "span", "span_or_none")


USUAL = "ranking roberta first, span roberta first, referent roberta first, choice roberta mean, choice electra first, "
USUAL += "choice deberta first, classification bert first, multilabel modernbert mean, tagging modernbert first, "
USUAL += "span modernbert first, span_or_none modernbert first"


@pytest.mark.parametrize(("kind", "style", "pooling"), [of.split() for of in USUAL.split(", ")])
def test_equals_numpy_also_in_parts(shallow, kind, style, pooling):
    """And what may not be chosen never is; the last of the parts has little but the row that fills the batch up."""
    model, batch = tiny.task_model(kind, style, **shallow).clone(pooling=pooling), tiny.task_batch(kind)
    objective, params = tiny.supervised(model), tiny.params(model, batch)
    exact = tiny.float64(params)
    hidden = exact["encoder"]["embeddings"]["word"]["embedding"][flat_rows(batch)["tokens"]]

    def mean(params):
        outcome = tiny.evaluate(objective, params, batch, None, STEP)
        return outcome.totals["task"] / objective.normalizers(batch)["task"], outcome

    (loss, outcome), gradient = jax.jit(jax.value_and_grad(mean, has_aux=True))(params)
    check_loss(kind, outcome, objective, numpy_logits(kind, style, exact, batch, hidden, pooling), batch)
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(gradient["task_head"])) > 1e-3
    parts = perturbed.trained(objective, params, batch, 4)
    np.testing.assert_allclose(parts[0], loss, rtol=1e-6)
    perturbed.close(parts[2], gradient, rtol=1e-5, atol=1e-5)

    logits = np.asarray(outcome.outputs.predictions["task"].logits if kind != "regression" else 0)
    if HEADS[kind].has_candidates or kind.startswith("span"):
        allowed = batch["choice_weights" if HEADS[kind].has_candidates else "span_weights"] > 0
        if kind == "span_or_none":
            classes, logits = logits[:, 2], logits[:, :2]
            assert (classes[:, 0] > NEVER / 2).all() and not classes[:, 1].any() and (classes[:, 2:] == NEVER).all()
        logits = logits.swapaxes(1, -1)
        assert (logits[~allowed] == NEVER).all() and (logits[allowed] > NEVER / 2).all()


@functools.cache
def drops(kind, style, rate=None):
    """The rates of the dropouts of a head of an encoder with a rate of 0.5."""
    model, batch = TaskModel(tiny.config(dropout=0.5), kind, 3, style, head_dropout=rate), tiny.task_batch(kind)
    seen = []

    def note(next_call, args, kwargs, context):
        if type(context.module).__name__ == "Dropout" and context.module.path[0] == "task_head":
            seen.append(context.module.rate)
        return next_call(*args, **kwargs)

    params = jax.eval_shape(lambda: nn.unbox(model.init(jax.random.key(0), batch, deterministic=True))["params"])
    rngs = {"dropout": jax.random.key(0)}
    with nn.intercept_methods(note):
        jax.eval_shape(lambda params: model.apply({"params": params}, batch, deterministic=False, rngs=rngs), params)
    return seen


@pytest.mark.usefixtures("shallow")
def test_dropout_is_where_the_families_have_it():
    """RoBERTa's head drops twice, BERT's once, a tagger's once, and that of spans never; ModernBERT's all drop once."""
    of_text = [len(drops("classification", style)) for style in ("roberta", "bert", "electra", "deberta")]
    assert of_text == [2, 1, 2, 1]
    assert len(drops("tagging", "roberta")) == 1 and not drops("span", "roberta")
    for style in ("bert", "modernbert"):
        assert {kind: bool(drops(kind, style)) for kind in HEADS} == {kind: has_dropout(kind, style) for kind in HEADS}
    assert len(drops("classification", "modernbert")) == len(drops("span_or_none", "modernbert")) == 1
    rates = [drops("classification", "bert", rate) for rate in (None, 0.25, 0.0)]
    assert rates == [[0.5], [0.25], [0.0]], "the head may have a rate of its own"


def test_weights_of_labels_tags_and_spans_are_those_of_their_losses():
    weights = {
        kind: tiny.supervised(tiny.task_model(kind)).prediction_weights(tiny.task_batch(kind))["task"]
        for kind in TOKENS
    }
    batch = tiny.task_batch("multilabel")
    weights_BK = tiny.supervised(tiny.task_model("multilabel")).prediction_weights(batch)["task"].elements
    np.testing.assert_allclose(weights_BK, batch["weights"][:, None] * [[1 / 3] * 3])  # a mean over labels
    batch = tiny.task_batch("tagging")
    np.testing.assert_array_equal(weights["tagging"].elements, batch["label_weights"] * batch["weights"][:, None])
    np.testing.assert_array_equal(weights["tagging"].rows_B, batch["weights"])
    counts_B = np.array([1, 1, 0, 1, 1, 1, 1, 0])[:, None]  # one answer must not be chosen
    np.testing.assert_array_equal(weights["span"].elements, counts_B * [[0.5, 0.5]])
    np.testing.assert_array_equal(weights["span_or_none"].elements, counts_B * [[0.25, 0.25, 0.5]])


@pytest.mark.usefixtures("shallow")
def test_the_head_of_modernbert_has_the_biases_and_the_initial_weights_of_its_encoder():
    """No biases in dense layer and LayerNorm; standard deviations 0.02 / sqrt(2 layers) and width^-0.5, cut at two."""
    head = {"width": 64, "heads": 2, "layers": 2, "initializer_range": 0.02}
    model = tiny.task_model("classification", "modernbert", **tiny.MODERNBERT | head)
    batch = tiny.task_batch("classification")
    made = nn.unbox(model.init(jax.random.key(0), batch, deterministic=True)["params"]["task_head"])
    names = {name: set(layer) for name, layer in made.items()}
    assert names == {"dense": {"kernel"}, "norm": {"scale"}, "classifier": {"kernel", "bias"}}
    for name, deviation in {"dense": 0.01, "classifier": 1 / 8}.items():
        kernel = np.asarray(made[name]["kernel"])
        assert kernel.std() == pytest.approx(0.88 * deviation, rel=0.1) and np.abs(kernel).max() <= 2 * deviation


def test_the_mask_decoder_of_deberta_is_left_out():
    config = tiny.config(**tiny.ENCODERS["deberta_v1"])
    assert task_encoder(tiny.CONFIG) is tiny.CONFIG
    shorn = task_encoder(config)
    assert (shorn.mask_decoder_passes, shorn.absolute_positions, shorn.relative) == (0, "none", config.relative)
