"""Heads and losses of every kind of task: against numpy, in parts, guided, and through the ports."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special as functions

from ag_jax.models import encoder
from ag_jax.models.encoder import Ports
from ag_jax.models.heads import HEADS, KINDS, NEVER, STYLES, TaskModel, has_dropout, task_encoder
from ag_jax.training.step import loss_and_gradient
from tests import reference, tiny
from tests.cases import some

STEP = jnp.int32(5)


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@functools.cache
def case(kind, style="roberta", pooling="first"):
    """Model, batch, parameters."""
    model, batch = tiny.task_model(kind, style).clone(pooling=pooling), tiny.task_batch(kind)
    return model, batch, tiny.params(model, batch)


def flat_rows(batch):
    return {name: batch[name].reshape(-1, tiny.LENGTH) for name in ("tokens", "segment_ids", "token_type_ids")}


def pooled(hidden, batch, pooling):
    if pooling == "first":
        return hidden[:, 0]
    lengths = (flat_rows(batch)["segment_ids"] > 0).sum(-1)
    return np.array(
        [sum(row[:length]) / max(length, 1) + 0 * row[0] for row, length in zip(hidden, lengths, strict=True)]
    )


def numpy_logits(kind, style, params, batch, keep=None, pooling="first"):
    """Logits of a head, from the numpy encoder; `keep` is its argument of that name."""
    params = tiny.float64(params)
    hidden, _ = reference.encode(params["encoder"], flat_rows(batch), tiny.CONFIG, keep=keep)
    head = params["task_head"]
    if kind == "referent":
        head = head["words"]
        decoded = reference.layer_norm(
            reference.gelu(reference.linear(hidden, head["dense"])), head["norm"], tiny.CONFIG.layer_norm_epsilon
        )
        words = decoded @ params["encoder"]["embeddings"]["word"]["embedding"].T + head["bias"]
        logs = words - functions.logsumexp(words, axis=-1, keepdims=True)
        ids, masks = (batch[name].reshape(hidden.shape[:2]) for name in ("word_ids", "word_weights"))
        of_rows = [log[np.arange(len(log)), of] for log, of in zip(logs, ids, strict=True)]
        return np.array([np.mean(of[mask > 0]) if mask.any() else 0 for of, mask in zip(of_rows, masks, strict=True)])
    vectors = pooled(hidden, batch, pooling) if HEADS[kind].reads_text else hidden
    if style == "modernbert":
        gelu = reference.gelu(reference.linear(vectors, head["dense"]))
        hidden = vectors = reference.layer_norm(gelu, head["norm"], tiny.CONFIG.layer_norm_epsilon)
        if HEADS[kind].reads_text:
            return reference.linear(vectors, head["classifier"])
    if not HEADS[kind].reads_text:
        logits = reference.linear(hidden, head["classifier"])
        if kind != "span_or_none":
            return logits
        none = reference.linear(hidden[:, :1], head["refusal"])  # of the first token alone
        return np.concatenate([logits, np.broadcast_to(none, (*logits.shape[:2], 1))], axis=2)
    activation = np.tanh if style in ("bert", "roberta") else reference.gelu
    return reference.linear(activation(reference.linear(vectors, head["dense"])), head["classifier"])


def numpy_loss(kind, logits, batch):
    """Total, weight, number of right predictions, label by label."""
    total = weight = right = 0.0
    for row, counts in enumerate(batch["weights"]):
        if not counts:
            continue
        if kind == "classification":
            found = [(logits[row], batch["labels"][row])]
        elif kind == "regression":
            total, weight = total + (logits[row, 0] - batch["labels"][row]) ** 2, weight + 1
            continue
        elif HEADS[kind].has_candidates:
            several = batch["labels"].shape[1]
            there = [c for c in range(several) if batch["choice_weights"][row, c]]
            scores = logits.reshape(-1, several)[row, there]
            logs = scores - functions.logsumexp(scores)
            total, weight = (
                total - sum(batch["labels"][row, c] * log for c, log in zip(there, logs, strict=True)),
                weight + 1,
            )
            right += batch["labels"][row, there[int(np.argmax(scores))]] > 0
            continue
        elif kind == "tagging":
            found = [(logits[row, at], batch["labels"][row, at]) for at in np.flatnonzero(batch["label_weights"][row])]
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
            continue
        for scores, label in found:
            total, weight = total + functions.logsumexp(scores) - scores[label], weight + 1
            right += np.argmax(scores) == label
    return total, weight, right


@pytest.mark.parametrize(
    ("style", "pooling"), [*((style, "first") for style in STYLES), ("modernbert", "mean"), ("bert", "mean")]
)
def test_equals_numpy(kind, style, pooling):
    others = ("roberta", "modernbert") if kind in ("tagging", "span", "span_or_none") else ("roberta",)
    if kind not in ("classification", "choice") and (style not in others or pooling != "first"):
        pytest.skip("the other kinds have the same head, or one without a style")
    model, batch, params = case(kind, style, pooling)
    objective = tiny.supervised(model)
    outcome = jax.jit(lambda params: tiny.evaluate(objective, params, batch, None, STEP))(params)
    logits = numpy_logits(kind, style, params, batch, pooling=pooling)
    total, weight, right = numpy_loss(kind, logits, batch)
    assert weight == (batch["label_weights"][:-1].sum() if kind == "tagging" else 6 if kind.startswith("span") else 7)
    np.testing.assert_allclose(outcome.totals["task"], total, rtol=2e-5)
    np.testing.assert_allclose(objective.normalizers(batch)["task"], weight)
    np.testing.assert_allclose(outcome.metrics["task_loss"], (total, weight), rtol=2e-5)
    if kind == "regression":
        assert set(outcome.metrics) == {"task_loss"}
    else:
        np.testing.assert_allclose(outcome.metrics["accuracy"], (right, weight))
        assert np.std(logits) > 0.02, "the comparison would be weak on even logits"


def test_what_may_not_be_chosen_never_is(kind):
    if kind not in ("choice", "referent", "span", "span_or_none"):
        pytest.skip("everything may be chosen")
    model, batch, params = case(kind)
    logits = np.asarray(model.apply({"params": params}, batch, deterministic=True))
    allowed = batch["choice_weights"] > 0 if kind in ("choice", "referent") else batch["span_weights"] > 0
    if kind == "span_or_none":
        classes, logits = logits[:, :, 2], logits[:, :, :2]
        assert (classes[:, 0] > NEVER / 2).all() and not classes[:, 1].any() and (classes[:, 2:] == NEVER).all()
    assert not allowed.all()
    assert (logits[~allowed] == NEVER).all() and (logits[allowed] > NEVER / 2).all()


def distance(one, other):
    a, b = (np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tiny.float64(tree))]) for tree in (one, other))
    return np.linalg.norm(a - b) / np.linalg.norm(b)


@functools.cache
def compiled(objective, microbatches):
    def run(params, batch, key):
        return loss_and_gradient(params, batch, key, STEP, objective=objective, microbatches=microbatches)

    return jax.jit(run)


def in_parts(objective, params, batch):
    return {parts: compiled(objective, parts)(params, batch, jax.random.key(0)) for parts in (1, 2, 4)}


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
        self.word = nn.Embed(self.config.vocabulary_size, self.config.width, embedding_init=nn.initializers.normal(1.0))

    def __call__(self, tokens):
        return self.word(tokens)


@pytest.mark.parametrize("kind", some(KINDS, "regression", "tagging", "referent"), indirect=True)
def test_accumulation_is_exact(kind, monkeypatch):
    """Whatever the number of microbatches, though the last of them has little but the row that fills the batch up."""
    monkeypatch.setattr(encoder, "Encoder", Shallow)
    model, batch = tiny.task_model(kind), tiny.task_batch(kind)
    compiled.cache_clear()
    check_parts(in_parts(tiny.supervised(model), tiny.params(model, batch), batch))
    compiled.cache_clear()


def test_guidance_in_fine_tuning():
    """Its term is added for every text, candidates included, and stays exact in parts."""
    model, batch, params = case("choice")
    results = in_parts(tiny.guided(model, (("next", 1), ("first", 1)), objective=tiny.supervised), params, batch)
    check_parts(results)
    loss, metrics, gradient = results[1]
    plain, _, plain_gradient = compiled(tiny.supervised(model), 1)(params, batch, jax.random.key(0))
    texts = (flat_rows(batch)["segment_ids"] > 0).any(-1).sum()
    assert float(metrics["ag_loss"][1]) == texts
    np.testing.assert_allclose(loss, plain + 3 * 5 / 8 * metrics["ag_loss"][0] / texts, rtol=1e-5)
    assert distance(gradient, plain_gradient) > 0.01


def check_parts(results):
    loss, metrics, gradient = results[1]
    head = gradient["task_head"]
    last = head["classifier"] if "classifier" in head else head["words"]["dense"]
    assert np.abs(np.asarray(last["kernel"])).max() > 1e-4
    for microbatches in (2, 4):
        other_loss, other_metrics, other = results[microbatches]
        np.testing.assert_allclose(other_loss, loss, rtol=1e-6)
        assert distance(other, gradient) <= 1e-6
        for name, (total, weight) in metrics.items():
            np.testing.assert_allclose(other_metrics[name][0], total, rtol=2e-6, err_msg=name)
            np.testing.assert_array_equal(other_metrics[name][1], weight, err_msg=name)


@pytest.mark.parametrize("kind", some(KINDS, "choice", "tagging", "span_or_none"), indirect=True)
def test_rows_that_fill_a_batch_up_change_nothing(kind):
    model, batch, params = case(kind)
    changed = {name: field.copy() for name, field in batch.items()}
    changed["tokens"][-1] = 5
    if "labels" in changed and not HEADS[kind].has_candidates:
        changed["labels"][-1] = 2
    one, other = (compiled(tiny.supervised(model), 1)(params, these, jax.random.key(0)) for these in (batch, changed))
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize("kind", some(KINDS, "choice", "referent"), indirect=True)
def test_the_ports_reach_the_encoder(kind):
    """Both ports of adversaries, for which each candidate is a row of its own."""
    model, batch, params = case(kind)
    rows = flat_rows(batch)["tokens"].shape[0]
    call = jax.jit(lambda ports: tiny.evaluate(tiny.supervised(model), params, batch, None, STEP, ports).totals["task"])
    plain = call(Ports())
    rng = np.random.default_rng(1)
    delta = jnp.asarray(rng.standard_normal((rows, tiny.LENGTH, tiny.CONFIG.width)), jnp.float32)
    assert abs(float(call(Ports(embedding_delta=delta)) - plain)) > 1e-3
    bias = jnp.asarray(3 * rng.standard_normal((rows, 1, tiny.LENGTH, tiny.LENGTH)), jnp.float32)
    assert abs(float(call(Ports(attention_bias=bias)) - plain)) > 1e-3


def test_dropout_is_where_the_families_have_it():
    """RoBERTa's head drops twice, BERT's once, a tagger's once, and that of spans never; ModernBERT's all drop once."""

    def drops(kind, style):
        model = TaskModel(tiny.config(dropout=0.5), kind, classes=3, style=style)
        _, batch, params = case(kind, style)
        seen = []

        def note(next_call, args, kwargs, context):
            if type(context.module).__name__ == "Dropout" and context.module.path[0] == "task_head":
                seen.append(context.module.path[-1])
            return next_call(*args, **kwargs)

        with nn.intercept_methods(note):
            rngs = {"dropout": jax.random.key(0)}
            jax.eval_shape(lambda: model.apply({"params": params}, batch, deterministic=False, rngs=rngs))
        return len(seen)

    assert [drops("classification", style) for style in ("roberta", "bert", "electra", "deberta")] == [2, 1, 2, 1]
    assert drops("tagging", "roberta") == 1 and drops("span", "roberta") == 0
    for style in ("bert", "modernbert"):
        assert {kind: drops(kind, style) > 0 for kind in HEADS} == {kind: has_dropout(kind, style) for kind in HEADS}
    assert drops("classification", "modernbert") == drops("span_or_none", "modernbert") == 1


@pytest.mark.parametrize(("rate", "expected"), [(None, 0.5), (0.25, 0.25), (0.0, 0.0)])
def test_the_head_may_have_a_dropout_rate_of_its_own(rate, expected):
    model = TaskModel(tiny.config(dropout=0.5), "classification", classes=3, head_dropout=rate)
    _, batch, params = case("classification")
    rates = {"encoder": set(), "task_head": set()}

    def note(next_call, args, kwargs, context):
        if type(context.module).__name__ == "Dropout" and not context.module.path[-1].startswith("attention"):
            rates[context.module.path[0]].add(context.module.rate)
        return next_call(*args, **kwargs)

    with nn.intercept_methods(note):
        model.apply({"params": params}, batch, deterministic=False, rngs={"dropout": jax.random.key(0)})
    assert rates == {"encoder": {0.5}, "task_head": {expected}}


def test_wrong_names_are_refused():
    batch = tiny.task_batch("classification")
    for settings, message in (
        ({"kind": "haiku"}, "kind of a task must be one of"),
        ({"style": "xlnet"}, "style of a head"),
    ):
        model = TaskModel(tiny.CONFIG, **{"kind": "classification", "classes": 3, **settings})
        with pytest.raises(ValueError, match=message):
            jax.eval_shape(lambda model=model: model.init(jax.random.key(0), batch, deterministic=True))


def test_the_head_of_modernbert_has_the_biases_and_the_initial_weights_of_its_encoder():
    """No biases in dense layer and LayerNorm; standard deviations 0.02 / sqrt(2 layers) and width^-0.5, cut at two."""
    head = {"width": 64, "heads": 2, "layers": 2, "initializer_range": 0.02}
    model = tiny.task_model("classification", "modernbert", **tiny.MODERNBERT | head)
    batch = tiny.task_batch("classification")
    made = nn.unbox(model.init(jax.random.key(0), batch, deterministic=True)["params"]["task_head"])
    assert {name: set(layer) for name, layer in made.items()} == {
        "dense": {"kernel"},
        "norm": {"scale"},
        "classifier": {"kernel", "bias"},
    }
    for name, deviation in {"dense": 0.01, "classifier": 1 / 8}.items():
        kernel = np.asarray(made[name]["kernel"])
        assert kernel.std() == pytest.approx(0.88 * deviation, rel=0.1) and np.abs(kernel).max() <= 2 * deviation


def test_the_mask_decoder_of_deberta_is_left_out():
    config = tiny.config(**tiny.ENCODERS["deberta_v1"])
    assert task_encoder(tiny.CONFIG) is tiny.CONFIG
    shorn = task_encoder(config)
    assert (shorn.mask_decoder_passes, shorn.absolute_positions, shorn.relative) == (0, "none", config.relative)
