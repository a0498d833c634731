"""Heads of tasks of ModernBERT without PyTorch; tests/parity compares them with `transformers`."""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
from etils import epath
from safetensors.numpy import load_file
from scipy import special

import ag_jax
from ag_jax.interop import catalogue, finetuned, importing, opening, task_heads
from ag_jax.models import encoder
from ag_jax.models.encoder import Encoder
from ag_jax.models.heads import example
from tests import tiny
from tests.cases import some
from tests.interop.copies import GOLDENS, exported, imported, refused, with_tensors

WIDTH = 6
CLASSES = {
    "classification": ("SequenceClassification", 3),
    "regression": ("SequenceClassification", 1),
    "choice": ("MultipleChoice", 1),
    "tagging": ("TokenClassification", 3),
    "span": ("QuestionAnswering", 2),
}


def with_head(directory, kind="classification", spoil=lambda tensors: tensors, **changed):
    """A directory of transformers with a head for a kind of task: the tensors of the golden, with those of a head."""
    ending, outputs = CLASSES[kind]
    rng = np.random.default_rng(5)
    with_bias = json.loads((GOLDENS / "modernbert" / "config.json").read_text())

    def add(tensors):
        kept = {name: value for name, value in tensors.items() if not name.startswith(("decoder.", "head."))}
        shapes = {"head.dense.weight": (WIDTH, WIDTH), "head.norm.weight": WIDTH}
        shapes |= {"classifier.weight": (outputs, WIDTH), "classifier.bias": outputs}
        shapes |= {"head.norm.bias": WIDTH} if with_bias["norm_bias"] else {}
        shapes |= {"head.dense.bias": WIDTH} if with_bias["classifier_bias"] else {}
        return spoil(kept | {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()})

    labels = {"id2label": {str(index): f"label{index}" for index in range(outputs)}} if kind != "span" else {}
    settings = {"architectures": [f"ModernBertFor{ending}"]} | labels | changed
    return with_tensors("modernbert", directory, add, **settings)


def plain_logits(directory, tuned, batch, kind, pooling):
    """The logits in numpy, from the tensors of the file and the encoder's hidden states."""
    tensors = {name: value.astype(np.float64) for name, value in load_file(directory / "model.safetensors").items()}
    rows = encoder.rows(batch)
    hidden = np.asarray(tiny.apply(Encoder(tuned.config), tuned.params["encoder"], rows))
    if kind in ("classification", "regression", "choice"):
        mask = np.asarray(rows["segment_ids"] > 0)[:, :, None]
        hidden = hidden[:, 0] if pooling == "cls" else (hidden * mask).sum(1) / mask.sum(1)
    x = hidden @ tensors["head.dense.weight"].T + tensors.get("head.dense.bias", 0)
    x = x * (1 + special.erf(x / math.sqrt(2))) / 2
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + tuned.config.layer_norm_epsilon)
    x = x * tensors["head.norm.weight"] + tensors.get("head.norm.bias", 0)
    return x @ tensors["classifier.weight"].T + tensors["classifier.bias"]


@pytest.mark.parametrize(
    ("kind", "pooling"),
    some(
        itertools.product(CLASSES, ["cls", "mean"]),
        *zip(CLASSES, ("cls", "mean", "mean", "cls", "mean"), strict=True),
    ),
)
def test_there_and_back(kind, pooling, tmp_path):
    theirs = with_head(tmp_path / "theirs", kind, classifier_pooling=pooling, classifier_dropout=0.25)
    importing.convert(str(theirs), epath.Path(tmp_path / "tuned"))
    tuned = finetuned.load(tmp_path / "tuned")
    head = tuned.head
    assert (head.kind, head.style, head.dropout) == (kind, "modernbert", 0.25)
    assert head.pooling == tuned.origin.pooling == ("first" if pooling == "cls" else "mean")
    batch = {name: np.tile(field, (3, *[1] * (np.ndim(field) - 1))) for name, field in example(kind).items()}
    batch["tokens"] = np.random.default_rng(0).integers(5, 30, batch["tokens"].shape)
    batch["segment_ids"] = batch["segment_ids"] * (np.arange(batch["tokens"].shape[-1]) < 3)
    said = np.asarray(tiny.apply(tuned.model, tuned.params, batch))
    wanted = plain_logits(theirs, tuned, batch, kind, pooling)
    assert wanted.std() > 0.1
    np.testing.assert_allclose(said.reshape(wanted.shape), wanted, rtol=1e-5, atol=1e-5)

    found, written, _, after = exported(tmp_path / "tuned", tmp_path / "ours")
    assert found.architecture == f"ModernBertFor{CLASSES[kind][0]}" and not found.not_carried
    before = load_file(theirs / "model.safetensors")
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value.astype(np.float32), err_msg=name)
    assert (written["classifier_pooling"], written["classifier_dropout"]) == (pooling, 0.25)
    again, _ = importing.open_finetuned(str(tmp_path / "ours"))
    assert (again.head, again.config) == (tuned.head, tuned.config)


def without_norm(tensors):
    return {name: value for name, value in tensors.items() if name != "head.norm.weight"}


def with_score(tensors):
    return tensors | {"score.weight": np.ones((3, WIDTH), np.float32)}


@pytest.mark.parametrize(
    ("spoil", "changed", "parts"),
    [
        (without_norm, {}, ["classification", "head.norm.weight (6,)", "task_head/norm/scale"]),
        (with_score, {}, ["score.weight (3, 6)"]),
        (None, {"classifier_pooling": "max"}, ["classifier_pooling"]),
        (None, {"classifier_dropout": 1.5}, ["classifier_dropout"]),
        (None, {"id2label": {"0": "no", "1": "yes"}}, ["classifier.weight (2, 6)", "(3, 6)"]),
        (None, {"id2label": {"0": "no", "2": "yes"}}, ["id2label"]),
        (None, {"architectures": ["ModernBertForQuestionAnswering"]}, ["span", "classifier.weight (2, 6)"]),
        (None, {"architectures": ["ModernBertForMaskedLM"]}, ["decoder.bias"]),
    ],
)
def test_damaged_and_foreign_heads(spoil, changed, parts, tmp_path):
    refused(with_head(tmp_path / "hf", spoil=spoil or (lambda tensors: tensors), **changed), tmp_path, *parts)


def test_the_pooling_of_an_imported_run_is_kept_for_its_tasks(tmp_path):
    """A head for a new task starts from the one for masked words, as in transformers, and reads what config.json says;
    the export says so, too.
    """
    stated = {"classifier_pooling": "mean", "classifier_dropout": 0.3}
    theirs = with_tensors("modernbert", tmp_path / "theirs", **stated)
    imported(theirs, tmp_path / "run")
    _, written, _, _ = exported(tmp_path / "run", tmp_path / "ours")
    assert stated.items() <= written.items()
    stored = load_file(theirs / "model.safetensors")
    for place in ("theirs", "run", "ours"):
        opened = opening.open_encoder(str(tmp_path / place))
        assert (opened.style, opened.origin.pooling, opened.origin.head_dropout) == ("modernbert", "mean", 0.3)
        given = opened.params["task_head"]
        np.testing.assert_array_equal(given["dense"]["kernel"], stored["head.dense.weight"].T.astype(np.float32))
        np.testing.assert_array_equal(given["norm"]["scale"], stored["head.norm.weight"].astype(np.float32))
    assert not opening.open_encoder(str(tmp_path / "run"), fresh=True).params


def test_a_classifier_opens_in_the_pipeline(tmp_path):
    """Opened from the directory and as imported, with the pooling that the model states."""
    theirs = with_head(tmp_path / "theirs", classifier_pooling="mean")
    importing.convert(str(theirs), epath.Path(tmp_path / "tuned"))
    texts = ["our roads", "the state of our union is strong", "we will"]
    first, second = (ag_jax.load(tmp_path / place).classify.logits(texts) for place in ("theirs", "tuned"))
    np.testing.assert_array_equal(first, second)
    tuned = finetuned.load(tmp_path / "tuned")
    other = dataclasses.replace(tuned, head=dataclasses.replace(tuned.head, pooling="first"))
    finetuned.save(other, epath.Path(tmp_path / "first"))
    assert not np.allclose(ag_jax.load(tmp_path / "first").classify.logits(texts), first)
    spoilt = dataclasses.replace(tuned, head=dataclasses.replace(tuned.head, pooling="max"))
    finetuned.save(spoilt, epath.Path(tmp_path / "spoilt"))
    with pytest.raises(ValueError, match=r"head\.pooling .*'max'"):
        finetuned.load(tmp_path / "spoilt")


@pytest.mark.exhaustive
def test_a_new_task_leaves_the_head_of_another_out(tmp_path):
    opened = opening.open_encoder(str(with_head(tmp_path / "theirs", classifier_pooling="mean")))
    assert set(opened.params) == {"encoder"} and opened.origin.pooling == "mean"


@pytest.mark.parametrize(
    ("family", "style", "pooling", "fits"),
    [
        ("roberta", "modernbert", "first", False),
        ("modernbert", "deberta", "first", False),
        ("roberta", "roberta", "mean", False),
        ("roberta", "bert", "first", True),
        ("roberta", "electra", "first", False),
        ("modernbert", "modernbert", "mean", True),
    ],
)
def test_heads_that_a_family_does_not_have(family, style, pooling, fits):
    head = finetuned.Head("", "classification", ("no", "yes"), style, pooling=pooling)
    assert len(task_heads.misfits(catalogue.named(family), head)) == (not fits)
    if family == "roberta" and pooling == "mean":  # a head for tags pools nothing
        assert not task_heads.misfits(catalogue.named(family), dataclasses.replace(head, kind="tagging"))
    referent = dataclasses.replace(head, kind="referent")
    assert task_heads.misfits(catalogue.named(family), referent)
