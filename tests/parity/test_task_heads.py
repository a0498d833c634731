"""Heads of tasks against `transformers`: the same logits from the same files, in both directions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra: pip install 'ag_jax[parity]'")
transformers = pytest.importorskip("transformers", reason="needs the extra: pip install 'ag_jax[parity]'")

from etils import epath

from ag_jax.data import tokenizers
from ag_jax.data.config import TokenizerConfig
from ag_jax.finetuning.kinds import KINDS
from ag_jax.interop import exporting, finetuned, importing, names, opening, task_heads
from ag_jax.interop.modernbert import MODERNBERT
from ag_jax.objectives.supervised import Supervised
from tests import tiny
from tests.cases import some
from tests.parity import examples

TEXTS = [
    "The state of our union is strong. We will rebuild our roads, and we will do it together.",
    "Äpfel und Öl?",
] * 3
T = transformers
FAMILIES = {"bert": "Bert", "roberta": "Roberta", "electra": "Electra", "deberta": "Deberta", "deberta_v2": "DebertaV2"}
FAMILIES["modernbert"] = "ModernBert"
AUTO = {
    "classification": T.AutoModelForSequenceClassification,
    "multilabel": T.AutoModelForSequenceClassification,
    "regression": T.AutoModelForSequenceClassification,
    "tagging": T.AutoModelForTokenClassification,
    "span": T.AutoModelForQuestionAnswering,
    "choice": T.AutoModelForMultipleChoice,
}
ENDINGS = {kind: auto.__name__.removeprefix("AutoModel") for kind, auto in AUTO.items()}
# Every family once with each form of names that it has; tags and spans are alike in all.
CASES = [
    (family, kind)
    for family in FAMILIES
    for kind in ("classification", "choice")
    if (family, kind) != ("deberta", "choice")
]
CASES += [
    ("roberta", "regression"),
    ("roberta", "multilabel"),
    ("bert", "multilabel"),
    ("bert", "tagging"),
    ("electra", "span"),
]
CASES += [("modernbert", kind) for kind in ("regression", "tagging", "span")]
FURTHER = [("deberta_v2", "tagging"), ("deberta", "span")]
# The other ones read the first token. The rate of dropout is that of training.
SETTINGS = {("modernbert", kind): {"classifier_pooling": "mean"} for kind in ("classification", "choice")}
SETTINGS["modernbert", "span"] = {"classifier_dropout": 0.25}
WITH_LABELS = ("classification", "multilabel", "tagging")
LENGTHS = (17, 9, 5, 12)


def make(family, kind, directory, **settings):
    """A random model of theirs with its tokenizer, saved."""
    tokenizer = tokenizers.train(TokenizerConfig(kind="wordpiece", vocabulary_size=300), TEXTS)
    base = examples.FAMILIES[family]
    labels = {"id2label": {0: "no", 1: "yes", 2: "maybe"}, "label2id": {"no": 0, "yes": 1, "maybe": 2}}
    if kind == "regression":
        labels = {"num_labels": 1, "problem_type": "regression"}
    elif kind in ("classification", "multilabel"):
        labels["problem_type"] = f"{'single' if kind == 'classification' else 'multi'}_label_classification"
    elif kind in ("choice", "span"):
        labels = {}
    model = getattr(T, FAMILIES[family] + ENDINGS[kind])
    theirs = examples.Example(base.config, model, base.draw).make(
        tokenizer.vocabulary_size, tokenizer.specials.pad, 1, **labels, **settings
    )
    theirs.save_pretrained(directory)
    tokenizer.save(directory)
    return theirs, tokenizer


def make_batch(kind, tokenizer):
    rng = np.random.default_rng(0)
    length = max(LENGTHS)
    segment_ids = (np.arange(length) < np.array(LENGTHS)[:, None]).astype(np.int32)
    tokens = np.where(
        segment_ids > 0, rng.integers(5, tokenizer.vocabulary_size, segment_ids.shape), tokenizer.specials.pad
    )
    fields = {
        "tokens": tokens.astype(np.int32),
        "segment_ids": segment_ids,
        "token_type_ids": np.zeros_like(segment_ids),
    }
    if kind == "choice":
        fields = {name: field.reshape(2, 2, length) for name, field in fields.items()}
        fields["choice_weights"] = np.ones((2, 2), np.float32)
    return fields | {"span_weights": np.ones(segment_ids.shape, np.float32)}


def ask(theirs, batch):
    inputs = {"input_ids": batch["tokens"], "attention_mask": batch["segment_ids"]}
    with torch.no_grad():
        out = theirs(**{name: torch.tensor(field, dtype=torch.long) for name, field in inputs.items()})
    if "start_logits" in out:
        return np.stack([out.start_logits, out.end_logits], axis=-1)
    return out.logits.numpy()


@pytest.mark.parametrize(("family", "kind"), some(CASES + FURTHER, *CASES))
def test_there_and_back(family, kind, tmp_path):
    theirs, tokenizer = make(family, kind, tmp_path / "theirs", **SETTINGS.get((family, kind), {}))
    importing.convert(str(tmp_path / "theirs"), epath.Path(tmp_path / "tuned"))
    tuned = finetuned.load(tmp_path / "tuned")
    assert tuned.head.kind == kind
    assert tuned.head.labels == (("no", "yes", "maybe") if kind in WITH_LABELS else ())
    batch = make_batch(kind, tokenizer)
    said, wanted = (
        np.asarray(tuned.model.apply({"params": tuned.params}, batch, deterministic=True)),
        ask(theirs, batch),
    )
    assert wanted.std() > 0.01, "the comparison would be weak on even logits"
    if kind in ("tagging", "span"):
        said, wanted = said[batch["segment_ids"] > 0], wanted[batch["segment_ids"] > 0]
    tolerance = 1e-5 if family == "modernbert" else 1e-4
    np.testing.assert_allclose(said.reshape(wanted.shape), wanted, rtol=tolerance, atol=tolerance * wanted.std())

    out = exporting.convert(epath.Path(tmp_path / "tuned"), None, str(tmp_path / "ours"))
    assert out.architecture == type(theirs).__name__
    loaded, report = AUTO[kind].from_pretrained(
        tmp_path / "ours", output_loading_info=True, attn_implementation="eager"
    )
    assert type(loaded) is type(theirs) and not any(report.values()), report
    for name, value in theirs.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    if kind in WITH_LABELS:
        assert loaded.config.id2label == theirs.config.id2label
    for name in ("problem_type", "classifier_pooling", "classifier_dropout"):
        assert getattr(loaded.config, name, None) == getattr(theirs.config, name, None)
    np.testing.assert_allclose(ask(loaded.eval(), batch), ask(theirs, batch), atol=1e-5)

    importing.convert(str(tmp_path / "ours"), epath.Path(tmp_path / "again"))
    again = finetuned.load(tmp_path / "again")
    assert (again.head, again.config) == (tuned.head, tuned.config)
    first, second = names.flat(tuned.params), names.flat(again.params)
    assert first.keys() == second.keys()
    for path, leaf in first.items():
        np.testing.assert_array_equal(leaf.view(np.uint32), second[path].view(np.uint32), err_msg=path)


def labelled(kind, batch, rng):
    """The batch with labels for our loss, and the labels for theirs."""
    rows, length = batch["segment_ids"].shape[0], batch["segment_ids"].shape[-1]
    batch = batch | {"weights": np.ones(rows, np.float32)}
    if kind == "choice":
        right = rng.integers(0, 2, rows)
        return batch | {"labels": np.eye(2, dtype=np.float32)[right]}, {"labels": right}
    if kind == "tagging":
        weights, tags = (
            (batch["segment_ids"] > 0) & (rng.random((rows, length)) < 0.7),
            rng.integers(0, 3, (rows, length)),
        )
        batch |= {"labels": tags.astype(np.int32), "label_weights": weights.astype(np.float32)}
        return batch, {"labels": np.where(weights, tags, -100)}
    if kind == "span":
        starts, ends = np.arange(rows), np.full(rows, 4)
        fields = {"starts": starts.astype(np.int32), "ends": ends.astype(np.int32)}
        return batch | fields, {"start_positions": starts, "end_positions": ends}
    if kind == "multilabel":
        flags = (rng.random((rows, 3)) < 0.4).astype(np.float32)
        return batch | {"label_set": flags}, {"labels": flags}
    right = rng.integers(0, 3, rows)
    return batch | {"labels": right.astype(np.int32)}, {"labels": right}


def their_loss(theirs, batch, labels):
    inputs = {"input_ids": batch["tokens"], "attention_mask": batch["segment_ids"]}
    inputs, labels = (  # flags of labels are float32
        {
            name: torch.tensor(field, dtype=None if field.dtype == np.float32 else torch.long)
            for name, field in of.items()
        }
        for of in (inputs, labels)
    )
    if "start_positions" not in labels:
        return theirs(**inputs, **labels).loss
    out = theirs(**inputs)  # whose own loss lets padding be chosen
    scores = torch.stack([out.start_logits, out.end_logits], dim=-1)
    scores = scores.masked_fill(inputs["attention_mask"][:, :, None] == 0, -torch.inf)
    return torch.nn.functional.cross_entropy(scores, torch.stack(list(labels.values()), dim=1))


def our_loss(model, params, batch):
    objective = Supervised(model, KINDS[model.kind].loss)
    totals = tiny.evaluate(objective, params, batch, None, jnp.int32(0)).totals
    return totals["task"] / objective.normalizers(batch)["task"]


def as_theirs(params, kind):
    """Our parameters, or their gradients, by the names that ModernBERT has for them."""
    flat = {path: np.asarray(leaf) for path, leaf in names.flat(params).items()}
    table = (*MODERNBERT.names, *task_heads.names(MODERNBERT, kind))
    wanted = names.stored_tensors(table, {path: leaf.shape for path, leaf in flat.items()})
    return names.store(wanted, flat, np.dtype(np.float32))


@pytest.mark.parametrize(
    "kind", some(["classification", "multilabel", "choice", "tagging", "span"], "multilabel", "span")
)
def test_losses_and_gradients_of_modernbert(kind, tmp_path):
    """The gradient of every weight, by its name, those of the head included."""
    theirs, tokenizer = make("modernbert", kind, tmp_path, **SETTINGS.get(("modernbert", kind), {}))
    tuned, _ = importing.open_finetuned(str(tmp_path))
    batch, labels = labelled(kind, make_batch(kind, tokenizer), np.random.default_rng(3))
    batch["span_weights"] = (batch["segment_ids"] > 0).astype(np.float32)
    ours, gradient = jax.jit(jax.value_and_grad(lambda params: our_loss(tuned.model, params, batch)))(tuned.params)
    loss = their_loss(theirs, batch, labels)
    loss.backward()
    np.testing.assert_allclose(ours, loss.item(), rtol=1e-5)
    found, wanted = as_theirs(gradient, kind), dict(theirs.named_parameters())
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        grad = wanted[name].grad.numpy().copy()
        if name == "model.embeddings.tok_embeddings.weight":  # theirs gives the row of padding no gradient
            value[tokenizer.specials.pad] = grad[tokenizer.specials.pad] = 0
        scale = np.abs(grad).max()
        # Of candidates and of places, a bias that is the same for all is no part of the choice.
        assert scale > 1e-6 or (kind in ("choice", "span") and name == "classifier.bias"), f"{name} has no gradient"
        np.testing.assert_allclose(value, grad, atol=1e-4 * max(scale, 1e-3), err_msg=name)


def test_fine_tuning_starts_from_the_encoder_alone(tmp_path):
    """Another task's head is left behind; BERT's pooler is the first half of a head, as in
    transformers, where it was trained.
    """
    theirs, _ = make("roberta", "classification", tmp_path / "head")
    opened = opening.open_encoder(str(tmp_path / "head"))
    assert set(opened.params) == {"encoder"} and opened.style == "roberta" and opened.origin.model_type == "roberta"
    word = theirs.roberta.embeddings.word_embeddings.weight.detach().numpy()
    np.testing.assert_array_equal(opened.params["encoder"]["embeddings"]["word"]["embedding"], word)
    fresh = opening.open_encoder(str(tmp_path / "head"), fresh=True)
    assert fresh.params == {} and fresh.config == opened.config

    tokenizer = tokenizers.train(TokenizerConfig(kind="wordpiece", vocabulary_size=300), TEXTS)
    pairs = examples.FAMILIES["bert_pairs"].make(tokenizer.vocabulary_size, tokenizer.specials.pad, 0)
    pairs.save_pretrained(tmp_path / "pairs")
    tokenizer.save(tmp_path / "pairs")
    opened = opening.open_encoder(str(tmp_path / "pairs"))
    kernel = opened.params["task_head"]["dense"]["kernel"]
    np.testing.assert_array_equal(kernel, pairs.bert.pooler.dense.weight.detach().numpy().T)
    assert opened.style == "bert"


def test_the_pooler_of_a_bert_model(tmp_path):
    """A `BertModel` and its run start the same classifier as in transformers, and the export
    opens as a `BertModel` again.
    """
    tokenizer = tokenizers.train(TokenizerConfig(kind="wordpiece", vocabulary_size=300), TEXTS)
    base = examples.FAMILIES["bert"]
    bare = examples.Example(base.config, T.BertModel, base.draw).make(
        tokenizer.vocabulary_size, tokenizer.specials.pad, 0
    )
    bare.save_pretrained(tmp_path / "theirs")
    tokenizer.save(tmp_path / "theirs")
    importing.convert(str(tmp_path / "theirs"), epath.Path(tmp_path / "run"))
    theirs = T.BertForSequenceClassification.from_pretrained(tmp_path / "theirs", attn_implementation="eager").eval()
    classifier = {
        "kernel": theirs.classifier.weight.detach().numpy().T,
        "bias": theirs.classifier.bias.detach().numpy(),
    }
    batch = make_batch("classification", tokenizer)
    for directory in (tmp_path / "theirs", tmp_path / "run"):
        opened = opening.open_encoder(str(directory))
        head = finetuned.Head("", "classification", ("no", "yes"), opened.style)
        params = opened.params | {"task_head": opened.params["task_head"] | {"classifier": classifier}}
        said = head.model(opened.config).apply({"params": params}, batch, deterministic=True)
        np.testing.assert_allclose(np.asarray(said), ask(theirs, batch), rtol=1e-4, atol=1e-4)

    assert exporting.convert(epath.Path(tmp_path / "run"), None, str(tmp_path / "ours")).architecture == "BertModel"
    loaded, report = T.AutoModel.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert type(loaded) is T.BertModel and not any(report.values()), report
    for name, value in bare.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name


def test_another_activation_of_the_pooler_is_refused(tmp_path):
    make("deberta_v2", "classification", tmp_path / "tanh", pooler_hidden_act="tanh")
    with pytest.raises(ValueError, match="pooler_hidden_act='tanh'"):
        importing.open_finetuned(str(tmp_path / "tanh"))
