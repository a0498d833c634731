"""Model cards: metadata in the front matter, a name to open the model by, and only the settings that matter."""

import dataclasses
import json
import pathlib
import shutil

import pytest
import yaml
from etils import epath

from ag_jax.command_line import cli
from ag_jax.finetuning.task_training import make_head
from ag_jax.interop import card, exporting, finetuned, front_matter, names
from ag_jax.interop.finetuned import FineTuned
from ag_jax.interop.front_matter import Statements
from ag_jax.pretraining import run_directory
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.pretraining.open_run import open_run
from ag_jax.pretraining.origin import Origin
from ag_jax.settings import schema
from tests import results as stored
from tests import tiny
from tests.finetuning import tasks
from tests.interop.copies import exported, with_tensors
from tests.verbs import verb_of


def parts(text):
    """Return a card's front matter, read by a YAML parser, and the rest of the card."""
    _, front, rest = text.split("---\n", 2)
    return yaml.safe_load(front), rest


def test_import_and_export_as_they_are_typed(tmp_path, capsys):
    """The licence finds its way, and no directory of this machine does."""
    directory = with_tensors("bert", tmp_path / "hf")
    (directory / "README.md").write_text("---\ntags: [x]\nlicense: apache-2.0\n---\n# A model\nlicense: no\n")
    workdir = str(tmp_path / "run")
    assert cli.run_safely(verb_of("import", source=str(directory), workdir=workdir)) == 0
    assert cli.run_safely(verb_of("export", destination=str(tmp_path / "out"), workdir=workdir)) == 0
    said, notes = capsys.readouterr()
    assert (
        all(line.startswith("next: ") for line in notes.splitlines())
        and "of bert" in said
        and "BertForMaskedLM" in said
        and "pooler" in said
    )
    front, rest = parts((tmp_path / "out" / "README.md").read_text())
    assert front == {
        "license": "apache-2.0",
        "library_name": "transformers",
        "pipeline_tag": "fill-mask",
        "tags": ["ag_jax"],
    }
    assert "`hf` (bert)" in rest and str(tmp_path) not in rest
    flags = {"license": "cc-by-4.0", "language": ["no", "en"], "datasets": ["someone/texts"]}
    assert cli.run_safely(verb_of("export", destination=str(tmp_path / "mine"), workdir=workdir, **flags)) == 0
    stated, rest = parts((tmp_path / "mine" / "README.md").read_text())
    # The code is not False, which YAML reads in an unquoted no.
    assert stated == front | {"license": "cc-by-4.0", "language": ["no", "en"], "datasets": ["someone/texts"]}
    assert '\nmodel = BertForMaskedLM.from_pretrained("./mine")\n' in rest
    settings = rest.split("```\n")[-2].splitlines()
    assert "model.layers=2" in settings and "model.width=6" in settings and len(settings) < 30
    assert all(line.startswith("model.") for line in settings), "nothing was trained here"


@pytest.mark.parametrize(
    ("verb", "flags", "named"),
    [
        ("export", {"destination": "out", "workdir": "nowhere"}, "nowhere is"),
        ("export", {"destination": "out", "workdir": "y", "license": "my own"}, "--license"),
        ("export", {"destination": "out", "workdir": "y", "language": ["en", "german"]}, "--language"),
        ("export", {"destination": "out", "workdir": "y", "datasets": ["https://x/y"]}, "--datasets"),
    ],
)
def test_flags_that_lack_or_are_wrong_are_named(verb, flags, named, capsys):
    assert cli.run_safely(verb_of(verb, **flags)) == 1
    assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    ("mode", "schedule", "step", "adds"),
    [
        ("bias", "linear", 0, True),
        ("bias", "constant", 5, True),
        ("bias", "linear", 5, False),
        ("loss", "linear", 0, False),
    ],
)
def test_a_bias_that_training_still_added_is_said(mode, schedule, step, adds, run_of, tmp_path, caplog, monkeypatch):
    """When the run is opened, and in the card; at its last step the schedule has fallen to 0."""
    monkeypatch.setattr(run_directory, "check_settings", lambda *_: None)  # as if it had been trained with these
    biased = pathlib.Path(shutil.copytree(run_of("bert_pairs"), tmp_path / "biased"))
    settings = json.loads((biased / "config.json").read_text())
    settings["training"]["steps"] = 5
    settings["guidance"] |= {"mode": mode, "alpha": 3.0, "schedule": schedule}
    (biased / "config.json").write_text(json.dumps(settings))
    (biased / "checkpoints" / "0").rename(biased / "checkpoints" / str(step))
    found, _, text, _ = exported(biased, tmp_path / "out")
    assert [f"step {step}, training added 3 times" in line for line in found.not_carried].count(True) == adds
    assert ("training added 3 times" in text) == adds
    assert any(f"step {step} 3 times" in record.message for record in caplog.records) == adds


RESULT = {"task": "sst2", "seed": 5, "learning_rate": 2e-5, "batch_size": 8, "steps": 1200, "best_epoch": 2}
RESULT |= {"epochs": [{}, {}, {}], "metrics": {"accuracy": 0.875}, "others": {"test": {"accuracy": 0.5}}}
RESULT |= {"examples": {"train": 1234, "validation": 40, "test": 8}, "swept": {"head_dropout": 0.15}}


def test_a_card_of_a_trial(tmp_path):
    head = dataclasses.replace(make_head(tasks.task("classification"), "roberta", 24), task="sst2")
    config = tasks.pretrained().config
    params = tiny.params(head.model(config), tiny.task_batch("classification"))
    trial, origin = epath.Path(tmp_path / "trial"), Origin("roberta", "theirs", "someone/base", license="mit")
    finetuned.save(FineTuned(head, config, tasks.TOKENIZER, params, origin), trial / "weights")
    stored.write(trial, RESULT)
    front, rest = parts(exported(trial, tmp_path / "mine", stated=Statements(repository="me/sst2"))[2])
    assert front == {
        "license": "mit",
        "library_name": "transformers",
        "pipeline_tag": "text-classification",
        "base_model": "someone/base",
        "datasets": ["nyu-mll/glue"],
        "tags": ["ag_jax"],
    }
    assert 'ForSequenceClassification.from_pretrained("me/sst2")' in rest and str(tmp_path) not in rest
    for number in ("1,200 steps of 8 of the 1,234", "rate of 2e-05, head dropout 0.15 and seed 5", "epoch 2 of 3"):
        assert number in " ".join(rest.split())
    assert "| validation (40) | accuracy | 0.8750 |" in rest and "| test (8) | accuracy | 0.5000 |" in rest
    path = trial / "result.json"
    path.write_text(path.read_text().replace("0.875", "0.975"))
    with pytest.raises(ValueError, match=r"result\.json has another content"):
        exporting.convert(trial, None, str(tmp_path / "no"))
    assert not (tmp_path / "no").exists()


def test_a_card_of_a_trained_run(run_of, tmp_path):
    """The metrics at its step, and what differs from the defaults, without places on this machine and without sections
    that are not in effect.
    """
    opened = dataclasses.replace(open_run(run_of("bert_pairs")), workdir=epath.Path(tmp_path))
    rows = [(40, "validation", 2.5), (50, "validation", 2.25), (50, "train", 1.0), (60, "validation", 2.0)]
    rows = [json.dumps({"step": step, "split": split, "mlm_loss": loss}) for step, split, loss in rows]
    (tmp_path / "metrics.jsonl").write_text("\n".join(rows) + "\n")

    def of(**changed):
        values = schema.flat(schema.to_dict(opened.config)) | changed
        values = names.nested({key.replace(".", "/"): value for key, value in values.items()})
        trained = dataclasses.replace(opened, config=schema.parse(ExperimentConfig, values), step=50)
        text = card.text(trained, opened.model.config, "BertForMaskedLM", "float32", Statements(), "./mine", [])
        front, rest = parts(text)
        return front["tags"], rest, rest.split("```\n")[-2].splitlines()

    changed = {"data.source": "/home/me/books/:3,tfds:wiki/en:1", "data.cache_dir": "/tmp/x", "data.masking.rate": 0.4}
    changed |= {"seed": 7, "title": "Mine", "guidance.alpha": 3.0, "adversarial.freelb.steps": 9}
    changed |= {"training.steps": 50, "training.log_every": 3}
    tags, rest, lines = of(**changed)
    assert tags == ["ag_jax"] and "40%" in rest and "/home" not in rest
    assert "step 50:" in rest and rest.count("| mlm_loss |") == 1 and "| mlm_loss | 2.2500 |" in rest
    assert {"seed=7", "data.source=books/:3,tfds:wiki/en:1", "data.masking.rate=0.4", "training.steps=50"} <= set(lines)
    for absent in ("/tmp", "log_every", "guidance", "freelb", "Mine", "decoding"):
        assert absent not in "\n".join(lines), absent
    in_effect = {"adversarial.method": "freelb", "guidance.mode": "loss", "guidance.layers": "1"}
    tags, rest, lines = of(**changed | in_effect)
    assert {"guidance.alpha=3.0", "adversarial.freelb.steps=9"} <= set(lines) and "in layer 1." in rest
    assert tags == ["ag_jax", "attention-guidance", "adversarial-training", "freelb"]


def test_sources_without_their_directories():
    shown = {
        "sotu": "sotu",
        "/a/b/": "b/",
        "gs://bucket/text/wiki.txt": "wiki.txt",
        "a/b/:3,/c/d.txt:1.5": "b/:3,d.txt:1.5",
        "tfds:wikipedia/20230601.en": "tfds:wikipedia/20230601.en",
        "hf:stanfordnlp/imdb::unsupervised": "hf:stanfordnlp/imdb::unsupervised",
        "hf:/home/me/data:en": "data:en",
    }
    assert {given: card._source_names(given) for given in shown} == shown


def test_front_matter_is_yaml_that_is_read_back():
    values = {"license": "cc-by-4.0", "empty": "", "none": (), "language": ("no", "en"), "name": "a: b #c", "n": "1.5"}
    lines = front_matter.write(values)
    expected = {"license": "cc-by-4.0", "language": ["no", "en"], "name": "a: b #c", "n": "1.5"}
    assert yaml.safe_load("\n".join(lines[1:-1])) == expected
    found = front_matter.read("\n".join([*lines, "license: other"]))
    assert found["license"] == "cc-by-4.0" and found["language"] == "no"
    assert front_matter.known_languages(("eng", "deu", "eng", "German", None)) == ("eng", "deu")
    tags = {"MarianMTModel": "translation", "CamembertForMaskedLM": "fill-mask", "BertModel": "feature-extraction"}
    tags |= {"BertForQuestionAnswering": "question-answering", "BertForTokenClassification": "token-classification"}
    tags |= {"BertForMultipleChoice": "multiple-choice", "ElectraForPreTraining": ""}
    assert {architecture: front_matter.pipeline_tag(architecture) for architecture in tags} == tags
