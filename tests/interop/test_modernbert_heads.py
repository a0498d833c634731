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

from ag_jax import pipelines
from ag_jax.interop import catalogue, exporting, finetuned, importing, opening, task_heads
from ag_jax.models import encoder
from ag_jax.models.encoder import Encoder
from ag_jax.models.heads import example
from tests.cases import some
from tests.interop.test_bad_input import refused, settings
from tests.interop.test_goldens import GOLDENS, with_tensors

WIDTH = 6
CLASSES = {
    "classification": ("SequenceClassification", 3),
    "regression": ("SequenceClassification", 1),
    "choice": ("MultipleChoice", 1),
    "tagging": ("TokenClassification", 3),
    "span": ("QuestionAnswering", 2),
}
KINDS = tuple(CLASSES)


def with_head(directory, kind="classification", spoil=lambda tensors: tensors, **changed):
    """A directory of transformers with a head for a kind of task: the tensors of the golden, with those of a head."""
    ending, outputs = CLASSES[kind]
    rng = np.random.default_rng(5)

    def add(tensors):
        kept = {name: value for name, value in tensors.items() if not name.startswith(("decoder.", "head."))}
        kept["head.dense.weight"] = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32)
        kept["head.norm.weight"] = 1 + 0.3 * rng.standard_normal(WIDTH).astype(np.float32)
        kept["classifier.weight"] = rng.standard_normal((outputs, WIDTH)).astype(np.float32)
        kept["classifier.bias"] = rng.standard_normal(outputs).astype(np.float32)
        with_bias = json.loads((GOLDENS / "modernbert" / "config.json").read_text())
        if with_bias["norm_bias"]:
            kept["head.norm.bias"] = rng.standard_normal(WIDTH).astype(np.float32)
        if with_bias["classifier_bias"]:
            kept["head.dense.bias"] = rng.standard_normal(WIDTH).astype(np.float32)
        return spoil(kept)

    with_tensors("modernbert", directory, add)
    labels = {"id2label": {str(index): f"label{index}" for index in range(outputs)}} if kind != "span" else {}
    settings(directory, **{"architectures": [f"ModernBertFor{ending}"]} | labels | changed)
    return directory


def plain_logits(directory, tuned, batch, kind, pooling):
    """The logits in numpy, from the tensors of the file and the encoder's hidden states."""
    tensors = {name: value.astype(np.float64) for name, value in load_file(directory / "model.safetensors").items()}
    rows = encoder.rows(batch)
    hidden = np.asarray(Encoder(tuned.config).apply({"params": tuned.params["encoder"]}, rows, deterministic=True))
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
        itertools.product(KINDS, ["cls", "mean"]),
        ("classification", "cls"),
        ("regression", "mean"),
        ("choice", "mean"),
        ("tagging", "cls"),
        ("span", "mean"),
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
    rng = np.random.default_rng(0)
    batch["tokens"] = rng.integers(5, 30, batch["tokens"].shape)
    batch["segment_ids"] = batch["segment_ids"] * (np.arange(batch["tokens"].shape[-1]) < 3)
    said = np.asarray(tuned.model.apply({"params": tuned.params}, batch, deterministic=True))
    wanted = plain_logits(theirs, tuned, batch, kind, pooling)
    assert wanted.std() > 0.1
    np.testing.assert_allclose(said.reshape(wanted.shape), wanted, rtol=1e-5, atol=1e-5)

    found = exporting.convert(epath.Path(tmp_path / "tuned"), None, str(tmp_path / "ours"))
    assert found.architecture == f"ModernBertFor{CLASSES[kind][0]}" and not found.not_carried
    before, after = (load_file(tmp_path / place / "model.safetensors") for place in ("theirs", "ours"))
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value.astype(np.float32), err_msg=name)
    written = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert (written["classifier_pooling"], written["classifier_dropout"]) == (pooling, 0.25)
    again, _ = importing.open_finetuned(str(tmp_path / "ours"))
    assert (again.head, again.config) == (tuned.head, tuned.config)


@pytest.mark.parametrize(
    ("spoil", "changed", "parts"),
    [
        (
            lambda tensors: {name: value for name, value in tensors.items() if name != "head.norm.weight"},
            {},
            ("modernbert for classification", "missing: head.norm.weight (6,), for task_head/norm/scale"),
        ),
        (
            lambda tensors: tensors | {"score.weight": np.ones((3, WIDTH), np.float32)},
            {},
            ("without a parameter here: score.weight (3, 6)",),
        ),
        (
            lambda tensors: tensors,
            {"classifier_pooling": "max"},
            ("classifier_pooling='max' is not supported, only cls",),
        ),
        (lambda tensors: tensors, {"classifier_dropout": 1.5}, ("classifier_dropout must be at least 0 and below 1",)),
        (
            lambda tensors: tensors,
            {"classifier_activation": "relu"},
            ("classifier_activation='relu' is not supported",),
        ),
        (
            lambda tensors: tensors,
            {"id2label": {"0": "no", "1": "yes"}},
            ("of another shape: classifier.weight (2, 6)", "found (3, 6)"),
        ),
        (
            lambda tensors: tensors,
            {"architectures": ["ModernBertForQuestionAnswering"]},
            ("modernbert for span", "of another shape: classifier.weight (2, 6)"),
        ),
        (lambda tensors: tensors, {"problem_type": "multi_label_classification"}, ("multi_label_classification",)),
        (lambda tensors: tensors, {"architectures": ["ModernBertForMaskedLM"]}, ("missing: decoder.bias",)),
    ],
)
def test_damaged_and_foreign_heads(spoil, changed, parts, tmp_path):
    refused(with_head(tmp_path / "hf", spoil=spoil, **changed), tmp_path, *parts)


def test_the_pooling_of_an_imported_run_is_kept_for_its_tasks(tmp_path):
    """A head for a new task starts from the one for masked words, as in transformers, and reads what config.json says;
    the export says so, too.
    """
    theirs = with_tensors("modernbert", tmp_path / "theirs", lambda tensors: tensors)
    settings(theirs, classifier_pooling="mean", classifier_dropout=0.3)
    importing.convert(str(theirs), epath.Path(tmp_path / "run"))
    exporting.convert(epath.Path(tmp_path / "run"), None, str(tmp_path / "ours"))
    written = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert (written["classifier_pooling"], written["classifier_dropout"]) == ("mean", 0.3)
    stored = load_file(theirs / "model.safetensors")
    for place in ("theirs", "run", "ours"):
        opened = opening.open_encoder(str(tmp_path / place))
        assert (opened.style, opened.origin.pooling, opened.origin.head_dropout) == ("modernbert", "mean", 0.3)
        given = opened.params["task_head"]
        np.testing.assert_array_equal(given["dense"]["kernel"], stored["head.dense.weight"].T.astype(np.float32))
        np.testing.assert_array_equal(given["norm"]["scale"], stored["head.norm.weight"].astype(np.float32))
    assert not opening.open_encoder(str(tmp_path / "run"), fresh=True).params


def test_the_head_of_another_task_is_left_behind(tmp_path):
    opened = opening.open_encoder(str(with_head(tmp_path / "theirs", classifier_pooling="mean")))
    assert set(opened.params) == {"encoder"} and opened.origin.pooling == "mean"


def test_a_classifier_opens_in_the_pipeline(tmp_path):
    """A Hugging Face directory and the imported model; the mean over the tokens tells other texts apart."""
    theirs = with_head(tmp_path / "theirs", classifier_pooling="mean")
    importing.convert(str(theirs), epath.Path(tmp_path / "tuned"))
    texts = ["our roads", "the state of our union is strong", "we will"]
    first, second = (pipelines.classify(str(tmp_path / place))(texts) for place in ("theirs", "tuned"))
    assert list(first) == list(second) and len(first) == 3
    tuned = finetuned.load(tmp_path / "tuned")
    finetuned.save(
        dataclasses.replace(tuned, head=dataclasses.replace(tuned.head, pooling="first")),
        epath.Path(tmp_path / "first"),
    )
    assert list(pipelines.classify(str(tmp_path / "first"))(texts)) != list(first)


@pytest.mark.parametrize(
    ("family", "style", "pooling", "reason"),
    [
        ("roberta", "modernbert", "first", "its heads of tasks have no LayerNorm, that of style modernbert has one"),
        ("modernbert", "deberta", "first", "its heads of tasks have a LayerNorm, that of style deberta has not"),
        ("roberta", "roberta", "mean", "its heads for texts read the first token, not the mean over all tokens"),
        ("modernbert", "modernbert", "mean", None),
    ],
)
def test_heads_that_a_family_does_not_have(family, style, pooling, reason):
    head = finetuned.Head("", "classification", ("no", "yes"), style, pooling=pooling)
    found = task_heads.misfits(catalogue.named(family), head)
    assert found == ([] if reason is None else [reason])
    if family == "roberta" and pooling == "mean":  # a head for tags pools nothing
        assert not task_heads.misfits(catalogue.named(family), dataclasses.replace(head, kind="tagging"))


def test_a_fine_tuned_model_with_an_unknown_pooling_is_damaged(tmp_path):
    importing.convert(str(with_head(tmp_path / "theirs")), epath.Path(tmp_path / "tuned"))
    tuned = finetuned.load(tmp_path / "tuned")
    spoilt = dataclasses.replace(tuned, head=dataclasses.replace(tuned.head, pooling="max"))
    finetuned.save(spoilt, epath.Path(tmp_path / "spoilt"))
    with pytest.raises(
        ValueError, match="head.pooling must be one of first, mean, got 'max'.*; copy the directory anew"
    ):
        finetuned.load(tmp_path / "spoilt")
