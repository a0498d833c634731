"""Family, licence, base model and citation of an imported model follow its weights; heads
that were never trained do not.
"""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from safetensors.numpy import load_file

from ag_jax import cli, pipelines
from ag_jax.data.text import pipeline
from ag_jax.interop import exporting, finetuned, importing, names, opening
from ag_jax.interop.finetuned import FineTuned, Head
from ag_jax.pretraining import origin, run
from ag_jax.training.checkpoint import Checkpoints
from ag_jax.training.job import Progress
from ag_jax.training.state import TrainState
from tests.cases import some
from tests.interop.test_bad_input import settings as change_settings
from tests.interop.test_goldens import GOLDENS, with_tensors
from tests.interop.test_initial_weights import config, text  # noqa: F401 - a fixture
from tests.interop.test_verb import request

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


def start(wanted, workdir, step=0):
    """A run directory as `wanted` leaves it after `step` steps that change nothing, without training."""
    workdir = epath.Path(workdir)
    workdir.mkdir()
    job = run.make_job(wanted, workdir, corpus := pipeline.prepare(wanted.data, quiet=True))
    given = names.flat(run._initial_params(wanted, workdir, corpus.tokenizer, job.program))
    shapes = names.flat(job.program.abstract.params)
    params = names.nested({path: given.get(path, np.zeros(leaf.shape, leaf.dtype)) for path, leaf in shapes.items()})
    run.write(wanted, workdir, corpus.tokenizer, params)
    if step:
        params = jax.tree.map(jnp.asarray, params)
        checkpoints = Checkpoints(workdir / "checkpoints", keep_last=2)
        optimizer = job.program.make_optimizer(job.hyperparameters)
        checkpoints.save(TrainState(jnp.int32(step), params, optimizer.init(params)), Progress().to_json())
        checkpoints.close()
    return workdir


def exported(workdir, path):
    """Export a run or trial; return the content of its config.json, its model card and its tensors."""
    exporting.convert(workdir, None, str(path))
    return (
        json.loads((path / "config.json").read_text()),
        (path / "README.md").read_text(),
        load_file(path / "model.safetensors"),
    )


@pytest.fixture
def camembert(tmp_path):
    """A model with a card, and the run that it was imported as."""
    directory = with_tensors("camembert", tmp_path / "theirs", lambda tensors: tensors)
    (directory / "README.md").write_text(CARD)
    importing.convert(str(directory), epath.Path(tmp_path / "imported"))
    return epath.Path(tmp_path / "imported")


def check_card(card):
    front = card.split("---")[1]
    assert "\nlicense: mit\n" in front and "\nbase_model: almanach/camembert-base\n" in front
    assert "It began as `theirs` (camembert), of the base model `almanach/camembert-base`." in card
    assert "```bibtex\n@inproceedings{martin2020camembert,\n  title={CamemBERT}\n}\n```" in card


def test_the_origin_follows_initial_weights(camembert, text, tmp_path, one_device):  # noqa: F811
    """Through two runs, the first of which is gone, into a trial and out again, and back."""
    first = start(config(camembert, text), tmp_path / "first", step=3)
    second = start(config(first, text), tmp_path / "second", step=3)
    shutil.rmtree(camembert)
    shutil.rmtree(first)
    settings, card, _ = exported(second, tmp_path / "out")
    assert (settings["model_type"], settings["architectures"]) == ("camembert", ["CamembertForMaskedLM"])
    check_card(card)

    opened = opening.open_encoder(str(second))
    assert opened.origin.model_type == "camembert" and opened.style == "roberta"
    head = Head("", "tagging", ("O", "B-X"), opened.style, dropout=0.25)
    shapes = finetuned.shapes(head, opened.config)
    params = {path: np.zeros(shape, np.float32) for path, shape in shapes.items()}
    tuned = FineTuned(head, opened.config, opened.tokenizer, names.nested(params), opened.origin)
    finetuned.save(tuned, epath.Path(tmp_path / "trial"))
    assert finetuned.load(tmp_path / "trial").origin == opened.origin
    settings, card, _ = exported(epath.Path(tmp_path / "trial"), tmp_path / "tuned")
    assert (settings["architectures"], settings["classifier_dropout"]) == (["CamembertForTokenClassification"], 0.25)
    assert importing.open_finetuned(str(tmp_path / "tuned"))[0].head.dropout == 0.25
    check_card(card)

    importing.convert(str(tmp_path / "out"), epath.Path(tmp_path / "again"))
    again = run.open_run(tmp_path / "again").origin
    assert (again.license, again.base_model) == ("mit", "almanach/camembert-base") and "martin2020" in again.citation


def test_a_continued_bert_stays_one(text, tmp_path, one_device):  # noqa: F811
    importing.convert(str(GOLDENS / "bert"), epath.Path(tmp_path / "imported"))
    on = start(config(tmp_path / "imported", text), tmp_path / "on", step=3)
    assert opening.open_encoder(str(on)).style == "bert"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"model_type": 3}', "model_type must be a text, got 3"),
        (b'{"new": "word_head"}', "new must be a list"),
        (b'{"moodel_type": "bert"}', "unknown setting 'moodel_type'"),
        (b"[" * 100_000 + b"]" * 100_000, "nesting"),
        (b"\xff", "can't decode"),
    ],
)
def test_a_damaged_origin_is_named(content, said, camembert):
    (camembert / origin.FILE).write_bytes(content)
    with pytest.raises(ValueError, match=said) as caught:
        run.open_run(camembert)
    assert str(camembert / origin.FILE) in str(caught.value)


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A `BertModel` with its pooler, and the run that it was imported as."""
    directory = tmp_path_factory.mktemp("bare")

    def pooled(tensors):
        rng = np.random.default_rng(0)
        pooler = {"pooler.dense.weight": (6, 6), "pooler.dense.bias": (6,)}
        encoder = {name.removeprefix("bert."): leaf for name, leaf in tensors.items() if name.startswith("bert.")}
        return encoder | {name: rng.standard_normal(shape).astype(np.float32) for name, shape in pooler.items()}

    theirs = with_tensors("bert", directory / "theirs", pooled)
    change_settings(theirs, architectures=["BertModel"])
    said = importing.convert(str(theirs), epath.Path(directory / "run"))
    assert said.new == ("word_head",) and not said.left_out
    return theirs, epath.Path(directory / "run")


def test_what_was_never_trained_is_not_exported(bare, tmp_path, capsys):
    """A `BertModel` comes back as one, pooler and all; and nothing fills masks with random numbers."""
    theirs, workdir = bare
    flags = request(target=str(tmp_path / "out"), workdir=str(workdir))
    assert cli.run_safely("export", flags) == 0
    lost = "word_head: it was randomly initialised, because `theirs` has none"
    assert f"not carried: {lost}" in capsys.readouterr().out and lost in (tmp_path / "out" / "README.md").read_text()
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == ["BertModel"]
    before, after = load_file(theirs / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert {f"bert.{name}" for name in before} == set(after)
    for name, value in before.items():
        assert np.array_equal(after[f"bert.{name}"], value.astype(np.float32)), name
    for directory in (theirs, workdir):
        with pytest.raises(ValueError, match=f"{directory} has no head for masked words: its classes are BertModel"):
            pipelines.fill_mask(str(directory))


def test_a_head_that_training_reached_is_exported(bare, text, tmp_path, one_device):  # noqa: F811
    theirs, workdir = bare
    on = start(config(workdir, text), tmp_path / "on")
    assert run.open_run(on).untrained == ("word_head",)
    assert exported(on, tmp_path / "before")[0]["architectures"] == ["BertModel"]
    on = start(config(workdir, text), tmp_path / "trained", step=3)
    settings, _, tensors = exported(on, tmp_path / "out")
    assert settings["architectures"] == ["BertForMaskedLM"] and "cls.predictions.bias" in tensors
    pooler = load_file(theirs / "model.safetensors")["pooler.dense.weight"]
    assert np.array_equal(tensors["bert.pooler.dense.weight"], pooler)
    assert len(pipelines.fill_mask(str(on))("we [MASK]", top_k=2)) == 2
    assert run.open_run(on, 0).untrained == ("word_head",)


def test_the_pooler_of_a_bert_begins_a_head(bare, text, tmp_path, one_device):  # noqa: F811
    """In fine-tuning from the directory, the imported run and a continued one; and in a new head for sentence pairs."""
    theirs, workdir = bare
    pooler = load_file(theirs / "model.safetensors")["pooler.dense.weight"].T
    on = start(config(workdir, text), tmp_path / "on", step=3)
    pairs = start(config(workdir, text, **{"data.format": "segment_pair_nsp"}), tmp_path / "pairs", step=3)
    back = start(config(pairs, text, **{"data.format": "full_sentences"}), tmp_path / "back", step=3)
    for directory in (theirs, workdir, on, pairs, back):
        opened = opening.open_encoder(str(directory))
        np.testing.assert_array_equal(opened.params["task_head"]["dense"]["kernel"], pooler, str(directory))
    assert exported(pairs, tmp_path / "out")[0]["architectures"] == ["BertForPreTraining"]
    np.testing.assert_array_equal(run.open_run(pairs).params["next_head"]["pooler"]["kernel"], pooler)


def test_the_pooler_of_a_task_head_that_is_left_out_is_kept(tmp_path):
    def with_head(tensors):
        pooler = {"bert.pooler.dense.weight": np.eye(6, dtype=np.float32), "bert.pooler.dense.bias": np.ones(6, "f")}
        return tensors | pooler | {"classifier.weight": np.ones((2, 6), "f"), "classifier.bias": np.ones(2, "f")}

    directory = with_tensors("bert", tmp_path / "theirs", with_head)
    change_settings(directory, architectures=["BertForSequenceClassification"])
    found = importing.convert(str(directory), epath.Path(tmp_path / "run"), expected=["classifier"])
    assert set(found.left_out) == {"classifier.weight", "classifier.bias"}
    np.testing.assert_array_equal(run.open_run(epath.Path(tmp_path / "run")).pooler["kernel"], np.eye(6))
    assert not importing.open_model(str(directory), ["classifier", "bert.pooler"]).pooler


@pytest.mark.parametrize(
    ("family", "key"),
    some(
        [("bert", "classifier_dropout"), ("electra", "classifier_dropout"), ("deberta_v2", "cls_dropout")],
        ("bert", "classifier_dropout"),
        ("deberta_v2", "cls_dropout"),
    ),
)
def test_the_dropout_of_task_heads_is_kept(family, key, tmp_path):
    """It is read from the directory and from the imported run, and exported; null stands for that of the encoder."""
    for said in (0.25, 0.0, None):
        place = tmp_path / str(said)
        place.mkdir()
        theirs = with_tensors(family, place / "theirs", lambda tensors: tensors)
        change_settings(theirs, **{key: said})
        importing.convert(str(theirs), epath.Path(place / "run"))
        assert opening.open_encoder(str(theirs)).origin.head_dropout == said
        assert opening.open_encoder(str(place / "run")).origin.head_dropout == said
        written, _, _ = exported(epath.Path(place / "run"), place / "out")
        assert (key in written) == (said is not None) and written.get(key) == said
    change_settings(theirs, **{key: 1.0})
    with pytest.raises(ValueError, match=f"{key} must be at least 0 and below 1, got 1"):
        importing.convert(str(theirs), epath.Path(tmp_path / "bad"))


def test_a_head_for_sentence_pairs_alone(tmp_path):
    """`BertForNextSentencePrediction`: its word head is new, and is left out again."""

    def without_words(tensors):
        return {name: leaf for name, leaf in tensors.items() if not name.startswith("cls.predictions.")}

    directory = with_tensors("bert_pairs", tmp_path / "theirs", without_words)
    change_settings(directory, architectures=["BertForNextSentencePrediction"])
    assert importing.convert(str(directory), epath.Path(tmp_path / "run")).new == ("word_head",)
    settings, _, tensors = exported(epath.Path(tmp_path / "run"), tmp_path / "out")
    assert settings["architectures"] == ["BertForNextSentencePrediction"]
    assert set(tensors) == set(load_file(directory / "model.safetensors"))
