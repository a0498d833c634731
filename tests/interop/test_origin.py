"""What of an imported model follows its weights: family, licence, citation, pooler, dropout; untrained heads do not."""

import shutil

import numpy as np
import pytest
import safetensors.numpy
from etils import epath
from safetensors.numpy import load_file

import ag_jax
from ag_jax.interop import finetuned, importing, opening
from ag_jax.interop.finetuned import Head
from ag_jax.pretraining import origin
from ag_jax.pretraining.open_run import open_run
from tests.interop.copies import continuing, exported, imported, start, tune, with_tensors

CARD = """---
language: fr
base_model:
- "almanach/camembert-base"
license: mit
---
# A model

```bibtex
@inproceedings{martin2020camembert,
  title={CamemBERT}
}
```
"""


def check_card(card):
    front = card.split("---")[1]
    assert "\nlicense: mit\n" in front and "\nbase_model: almanach/camembert-base\n" in front
    assert "`theirs` (camembert)" in card
    assert "```bibtex\n@inproceedings{martin2020camembert,\n  title={CamemBERT}\n}\n```" in card


def test_the_origin_follows_initial_weights(text, tmp_path, one_device):
    """Through two runs, the first of which is gone, into a trial and out again, and back."""
    directory = with_tensors("camembert", tmp_path / "theirs")
    (directory / "README.md").write_text(CARD)
    imported(directory, tmp_path / "imported")
    first = start(continuing(tmp_path / "imported", text), tmp_path / "first")
    second = start(continuing(first, text), tmp_path / "second")
    shutil.rmtree(tmp_path / "imported")
    shutil.rmtree(first)
    _, settings, card, _ = exported(second, tmp_path / "out")
    assert (settings["model_type"], settings["architectures"]) == ("camembert", ["CamembertForMaskedLM"])
    check_card(card)

    opened = opening.open_encoder(str(second))
    assert opened.origin.model_type == "camembert" and opened.style == "roberta"
    tune(opened, Head("", "tagging", ("O", "B-X"), opened.style, dropout=0.25), tmp_path / "trial")
    assert finetuned.load(tmp_path / "trial").origin == opened.origin
    _, settings, card, _ = exported(tmp_path / "trial", tmp_path / "tuned")
    assert (settings["architectures"], settings["classifier_dropout"]) == (["CamembertForTokenClassification"], 0.25)
    assert importing.open_finetuned(str(tmp_path / "tuned"))[0].head.dropout == 0.25
    check_card(card)

    again = opening.open_encoder(str(tmp_path / "out")).origin
    assert (again.license, again.base_model) == ("mit", "almanach/camembert-base") and "martin2020" in again.citation


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A `BertModel` with its pooler, and the run that it was imported as."""
    directory = tmp_path_factory.mktemp("bare")

    def pooled(tensors):
        rng = np.random.default_rng(0)
        pooler = {"pooler.dense.weight": (6, 6), "pooler.dense.bias": (6,)}
        encoder = {name.removeprefix("bert."): leaf for name, leaf in tensors.items() if name.startswith("bert.")}
        return encoder | {name: rng.standard_normal(shape).astype(np.float32) for name, shape in pooler.items()}

    theirs = with_tensors("bert", directory / "theirs", pooled, architectures=["BertModel"])
    said = importing.convert(str(theirs), epath.Path(directory / "run"))
    assert said.new == ("word_head",) and not said.left_out
    return theirs, epath.Path(directory / "run")


def test_what_was_never_trained_is_not_exported(bare, tmp_path):
    """A `BertModel` comes back as one, pooler and all; and nothing fills masks with random numbers."""
    theirs, workdir = bare
    found, settings, card, after = exported(workdir, tmp_path / "out")
    assert any("word_head" in item and item in card for item in found.not_carried)
    assert settings["architectures"] == ["BertModel"]
    before = load_file(theirs / "model.safetensors")
    assert {f"bert.{name}" for name in before} == set(after)
    for name, value in before.items():
        assert np.array_equal(after[f"bert.{name}"], value.astype(np.float32)), name
    for directory in (theirs, workdir):
        with pytest.raises(ValueError, match=f"{directory} .*BertModel"):
            _ = ag_jax.load(directory).fill_mask
    assert open_run(workdir).params["word_head"]["dense"]["kernel"].std() > 0


def test_heads_and_poolers_of_runs_that_go_on(bare, text, tmp_path, one_device):
    """A head is exported once training has reached it; the pooler begins the head of a task, or that for pairs."""
    theirs, workdir = bare
    pooler = load_file(theirs / "model.safetensors")["pooler.dense.weight"]
    on = start(continuing(workdir, text), tmp_path / "on", step=3)
    assert open_run(on, 0).untrained == ("word_head",) and open_run(on).untrained == ()
    _, settings, _, tensors = exported(on, tmp_path / "out")
    assert settings["architectures"] == ["BertForMaskedLM"] and "cls.predictions.bias" in tensors
    assert np.array_equal(tensors["bert.pooler.dense.weight"], pooler)
    assert opening.open_masked_lm(str(on)).run.step == 3

    pairs = start(continuing(workdir, text, **{"data.format": "segment_pair_nsp"}), tmp_path / "pairs", step=3)
    back = start(continuing(pairs, text, **{"data.format": "full_sentences"}), tmp_path / "back")
    for directory in (theirs, workdir, on, pairs, back):
        opened = opening.open_encoder(str(directory))
        assert opened.style == "bert"
        np.testing.assert_array_equal(opened.params["task_head"]["dense"]["kernel"], pooler.T, str(directory))
    assert exported(pairs, tmp_path / "of_pairs")[1]["architectures"] == ["BertForPreTraining"]
    np.testing.assert_array_equal(open_run(pairs).params["next_head"]["pooler"]["kernel"], pooler.T)


def test_the_pooler_of_a_task_head_that_is_left_out_is_kept(tmp_path):
    def with_head(tensors):
        pooler = {
            "bert.pooler.dense.weight": np.eye(6, k=1, dtype=np.float32),
            "bert.pooler.dense.bias": np.ones(6, "f"),
        }
        return tensors | pooler | {"classifier.weight": np.ones((2, 6), "f"), "classifier.bias": np.ones(2, "f")}

    classes = ["BertForSequenceClassification"]
    directory = with_tensors("bert", tmp_path / "theirs", with_head, architectures=classes)
    found = importing.convert(str(directory), epath.Path(tmp_path / "run"), expected=["classifier"])
    assert set(found.left_out) == {"classifier.weight", "classifier.bias"}
    np.testing.assert_array_equal(open_run(epath.Path(tmp_path / "run")).pooler["kernel"], np.eye(6, k=-1))
    assert not importing.open_model(str(directory), ["classifier", "bert.pooler"]).pooler


@pytest.mark.parametrize(
    ("family", "key", "said"),
    [("bert", "classifier_dropout", 0.25), ("electra", "classifier_dropout", None), ("deberta_v2", "cls_dropout", 0.0)],
)
def test_the_dropout_of_task_heads_is_kept(family, key, said, tmp_path):
    """It is read from the directory and exported with a task's head; null stands for the encoder's dropout."""
    opened = opening.open_encoder(str(with_tensors(family, tmp_path / "theirs", **{key: said})))
    assert opened.origin.head_dropout == said
    tune(opened, Head("", "tagging", ("O", "B-X"), opened.style, dropout=said), tmp_path / "trial")
    _, written, _, _ = exported(tmp_path / "trial", tmp_path / "out")
    assert (key in written) == (said is not None) and written.get(key) == said


@pytest.mark.exhaustive
def test_a_head_for_sentence_pairs_alone(tmp_path):
    """`BertForNextSentencePrediction`: its word head is new, and is left out again."""

    def without_words(tensors):
        return {name: leaf for name, leaf in tensors.items() if not name.startswith("cls.predictions.")}

    classes = ["BertForNextSentencePrediction"]
    directory = with_tensors("bert_pairs", tmp_path / "theirs", without_words, architectures=classes)
    assert importing.convert(str(directory), epath.Path(tmp_path / "run")).new == ("word_head",)
    _, settings, _, tensors = exported(tmp_path / "run", tmp_path / "out")
    assert settings["architectures"] == classes
    assert set(tensors) == set(load_file(directory / "model.safetensors"))


@pytest.mark.parametrize(("kernel", "part"), [(np.ones((6, 5)), "shapes"), (np.full((6, 6), np.inf), "kernel")])
def test_a_damaged_pooler_is_named(kernel, part, tmp_path):
    pooler = {"kernel": kernel.astype(np.float32), "bias": np.ones(6, np.float32)}
    origin.write(epath.Path(tmp_path), origin.Origin(), pooler)
    with pytest.raises(ValueError, match=f"{origin.POOLER}.*{part}"):
        origin.read(epath.Path(tmp_path), 6)
    (tmp_path / origin.POOLER).write_bytes(safetensors.numpy.save(pooler)[:-40])
    with pytest.raises(ValueError, match=origin.POOLER):
        origin.read(epath.Path(tmp_path), 6)
