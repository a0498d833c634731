"""Model cards: metadata in the front matter, a name to open the model by, and only the settings that matter."""

import dataclasses
import json
import re
import shutil

import pytest
import yaml
from etils import epath

from ag_jax import cli
from ag_jax.data.config import DataConfig, MaskingConfig
from ag_jax.finetuning.job import make_head
from ag_jax.interop import card, exporting, finetuned, front_matter, importing
from ag_jax.interop.finetuned import FineTuned
from ag_jax.interop.front_matter import Statements
from ag_jax.pretraining import run
from ag_jax.pretraining.origin import Origin
from tests import tiny
from tests.finetuning import tasks
from tests.interop.test_goldens import GOLDENS
from tests.interop.test_verb import request


def parts(text):
    """Return a card's front matter, read by a YAML parser, and the rest of the card."""
    _, front, rest = text.split("---\n", 2)
    return yaml.safe_load(front), rest


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    target = epath.Path(tmp_path_factory.mktemp("imported") / "run")
    importing.convert(str(GOLDENS / "bert"), target)
    return target


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    """Make a trial of SST-2 with its result."""
    directory = tmp_path_factory.mktemp("trial")
    head = dataclasses.replace(make_head(tasks.task("classification"), "roberta", 24), task="sst2")
    config = tasks.pretrained().config
    params = tiny.params(head.model(config), tiny.task_batch("classification"))
    origin = Origin("roberta", "theirs", "someone/base", license="mit")
    finetuned.save(FineTuned(head, config, tasks.TOKENIZER, params, origin), epath.Path(directory / "weights"))
    result = {"task": "sst2", "seed": 5, "learning_rate": 2e-5, "batch_size": 8, "steps": 1200, "best_epoch": 2}
    result |= {"epochs": [{}, {}, {}], "metrics": {"accuracy": 0.875}, "others": {"test": {"accuracy": 0.5}}}
    result |= {"examples": {"train": 1234, "validation": 40, "test": 8}}
    (directory / "result.json").write_text(json.dumps(result))
    return epath.Path(directory)


def test_a_card_of_a_run(workdir, tmp_path):
    stated = Statements("cc-by-4.0", ("no", "en"), ("someone/texts",))
    exporting.convert(workdir, None, str(tmp_path / "mine"), stated=stated)
    front, rest = parts((tmp_path / "mine" / "README.md").read_text())
    assert front == {
        "language": ["no", "en"],  # not False, which YAML reads in an unquoted no
        "license": "cc-by-4.0",
        "library_name": "transformers",
        "pipeline_tag": "fill-mask",
        "datasets": ["someone/texts"],
        "tags": ["ag_jax"],
    }
    assert '\nmodel = BertForMaskedLM.from_pretrained("./mine")\n' in rest and "PATH" not in rest
    settings = rest.split("```\n")[-2].splitlines()
    assert "model.layers=2" in settings and "model.width=6" in settings and len(settings) < 30
    assert all(line.startswith("model.") for line in settings), "nothing was trained here"


def test_a_bias_that_training_still_added_is_said(workdir, tmp_path, monkeypatch):
    """At its first step a schedule has not fallen yet. A guidance loss changes no scores."""
    monkeypatch.setattr(run, "check_settings", lambda *_: None)  # as if it had been trained with these
    biased = epath.Path(shutil.copytree(workdir, tmp_path / "biased"))
    settings = json.loads((biased / "config.json").read_text())
    for mode in ("bias", "loss"):
        settings["guidance"] |= {"mode": mode, "alpha": 3.0}
        (biased / "config.json").write_text(json.dumps(settings))
        found = exporting.convert(biased, None, str(tmp_path / mode))
        said = [line for line in found.not_carried if "at step 0, training added 3 times the pattern" in line]
        assert len(said) == (mode == "bias")
        assert ("training added 3 times" in (tmp_path / mode / "README.md").read_text()) == (mode == "bias")


def test_what_is_not_known_is_left_out(workdir, tmp_path):
    exporting.convert(workdir, None, str(tmp_path / "mine"))
    front, _ = parts((tmp_path / "mine" / "README.md").read_text())
    assert set(front) == {"library_name", "pipeline_tag", "tags"}


def test_a_card_of_a_trial(trial, tmp_path):
    exporting.convert(trial, None, str(tmp_path / "mine"), stated=Statements(repository="me/sst2"))
    front, rest = parts((tmp_path / "mine" / "README.md").read_text())
    assert front == {
        "license": "mit",
        "library_name": "transformers",
        "pipeline_tag": "text-classification",
        "base_model": "someone/base",
        "datasets": ["nyu-mll/glue"],
        "tags": ["ag_jax"],
    }
    assert 'ForSequenceClassification.from_pretrained("me/sst2")' in rest and str(tmp_path) not in rest
    assert "1,200 steps of 8 of the 1,234 training examples" in rest and "after epoch 2 of 3" in rest
    assert "| validation (40) | accuracy | 0.8750 |" in rest and "| test (8) | accuracy | 0.5000 |" in rest


def test_a_card_has_the_settings_that_a_trial_swept(trial, tmp_path):
    copied = epath.Path(shutil.copytree(trial, tmp_path / "trial"))
    swept = {"swept": {"head_dropout": 0.15, "warmup_steps": 1000}}
    (copied / "result.json").write_text(json.dumps(json.loads((copied / "result.json").read_text()) | swept))
    exporting.convert(copied, None, str(tmp_path / "mine"))
    said = "a peak learning rate of 2e-05, head dropout 0.15, warmup steps 1000 and seed 5; the weights"
    assert said in " ".join((tmp_path / "mine" / "README.md").read_text().split())


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"metrics": {"accuracy": "high"}}, "'accuracy'"),
        ({"examples": {}}, "'train'"),
        ({"swept": {"warmup_steps": "many"}}, "'warmup_steps'"),
        ({"swept": [50]}, "'swept'"),
    ],
)
def test_a_damaged_result_is_named(changed, said, trial, tmp_path):
    result = trial / "result.json"
    content = result.read_text()
    try:
        result.write_text(json.dumps(json.loads(content) | changed))
        with pytest.raises(ValueError, match=f"result.json: expected .* under the key {said}"):
            exporting.convert(trial, None, str(tmp_path / "mine"))
    finally:
        result.write_text(content)
    assert not (tmp_path / "mine").exists()


def test_settings_of_a_trained_run(workdir):
    """What differs from the defaults, without places on this machine and without sections that are not in effect."""
    opened = run.open_run(workdir)
    config = opened.config
    data = dataclasses.replace(
        config.data, source="/home/me/books/:3,tfds:wiki/en:1", cache_dir="/tmp/x", masking=MaskingConfig(rate=0.4)
    )
    config = dataclasses.replace(
        config,
        data=data,
        seed=7,
        title="Mine",
        guidance=dataclasses.replace(config.guidance, alpha=3.0),
        adversarial=dataclasses.replace(
            config.adversarial, freelb=dataclasses.replace(config.adversarial.freelb, steps=9)
        ),
        training=dataclasses.replace(config.training, steps=50, log_every=3, batch_size=4),
    )
    lines = card._settings(dataclasses.replace(opened, config=config, step=50))
    assert {"seed=7", "data.source=books/:3,tfds:wiki/en:1", "data.masking.rate=0.4", "training.steps=50"} <= set(lines)
    for absent in ("/home", "/tmp", "log_every", "guidance", "freelb", "Mine", "decoding"):
        assert absent not in "\n".join(lines), absent
    guided = dataclasses.replace(config, guidance=dataclasses.replace(config.guidance, mode="loss"))
    attacked = dataclasses.replace(guided, adversarial=dataclasses.replace(config.adversarial, method="freelb"))
    opened = dataclasses.replace(opened, config=attacked, step=50)
    assert {"guidance.alpha=3.0", "adversarial.freelb.steps=9"} <= set(card._settings(opened))
    text = card.text(opened, opened.model.config, "BertForMaskedLM", "float32", Statements(), "./mine", [])
    assert parts(text)[0]["tags"] == ["ag_jax", "attention-guidance", "adversarial-training", "freelb"]
    assert "Of the tokens, 40% are masked." in text
    assert "in layer" not in text
    limited = dataclasses.replace(attacked, guidance=dataclasses.replace(attacked.guidance, layers="1"))
    limited = dataclasses.replace(opened, config=limited)
    text = card.text(limited, opened.model.config, "BertForMaskedLM", "float32", Statements(), "./mine", [])
    assert re.search(r"Attention guidance: loss, heads of a layer: [a-z: 0-9,]+ in layer 2\.", text)
    assert "`books/:3,tfds:wiki/en:1`, as rows" in text and "/home" not in text


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("sotu", "sotu"),
        ("/a/b/", "b/"),
        ("gs://bucket/text/wiki.txt", "wiki.txt"),
        ("a/b/:3,/c/d.txt:1.5", "b/:3,d.txt:1.5"),
        ("tfds:wikipedia/20230601.en", "tfds:wikipedia/20230601.en"),
        ("hf:stanfordnlp/imdb::unsupervised", "hf:stanfordnlp/imdb::unsupervised"),
        ("hf:/home/me/data:en", "data:en"),
    ],
)
def test_sources_without_their_directories(given, shown):
    assert card._source_names(given) == shown and DataConfig(source=given).source == given


@pytest.mark.parametrize(
    ("architecture", "tag"),
    [
        ("MarianMTModel", "translation"),
        ("CamembertForMaskedLM", "fill-mask"),
        ("BertForQuestionAnswering", "question-answering"),
        ("BertForTokenClassification", "token-classification"),
        ("BertForMultipleChoice", "multiple-choice"),
        ("BertModel", "feature-extraction"),
        ("ElectraForPreTraining", ""),
        ("BertForNextSentencePrediction", ""),
    ],
)
def test_pipeline_tags(architecture, tag):
    assert front_matter.pipeline_tag(architecture) == tag


def test_front_matter_is_yaml_that_is_read_back():
    values = {"license": "cc-by-4.0", "empty": "", "none": (), "language": ("no", "en"), "name": "a: b #c", "n": "1.5"}
    lines = front_matter.write(values)
    expected = {"license": "cc-by-4.0", "language": ["no", "en"], "name": "a: b #c", "n": "1.5"}
    assert yaml.safe_load("\n".join(lines[1:-1])) == expected
    found = front_matter.read("\n".join([*lines, "license: other"]))
    assert found["license"] == "cc-by-4.0" and found["language"] == "no"
    assert front_matter.known_languages(("eng", "deu", "eng", "German", None)) == ("eng", "deu")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"license": "my own"}, "--license must be an identifier such as apache-2.0, mit or other, got 'my own'"),
        ({"language": ["en", "german"]}, "--language must be codes of ISO 639 .* got 'german'"),
        ({"datasets": ["https://x/y"]}, "--datasets must be names of data sets on the hub .* got 'https://x/y'"),
    ],
)
def test_statements_that_are_rejected(flags, said, workdir, tmp_path, capsys):
    assert cli.run_safely("export", request(workdir=str(workdir), target=str(tmp_path / "out"), **flags)) == 1
    first, _, last = said.partition(".*")
    message = capsys.readouterr().err
    assert first in message and last in message and message.count("\n") == 1 and not list(tmp_path.iterdir())
