"""Runs that start from another run's weights, and what of them comes out again."""

import json
import pathlib

import numpy as np
import pytest
from etils import epath

from ag_jax import config_reader
from ag_jax.interop import exporting, importing, names
from ag_jax.pretraining import config as pretraining_config
from ag_jax.pretraining import run
from ag_jax.training.checkpoint import Checkpoints
from tests.cases import some
from tests.interop.test_goldens import GOLDENS

CONFIGS = pathlib.Path(__file__).parent.parent.parent / "configs"
TEXT = "the state of our union is strong. we will rebuild our roads. " * 4
FEW = {
    "training.steps": 3,
    "training.batch_size": 4,
    "training.log_every": 1,
    "training.evaluate_every": None,
    "training.checkpoint_every": 1,
    "training.tensorboard": False,
    "optimizer.warmup_steps": 0,
    "optimizer.learning_rate": 1e-2,
    "data.sequence_length": 12,
}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    directory = tmp_path_factory.mktemp("text")
    for number in range(12):
        (directory / f"{number}.txt").write_text(TEXT)
    return str(directory / "*.txt")


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """Golden models as runs, by name, made when they are wanted."""
    made, directory = {}, tmp_path_factory.mktemp("imported")

    def get(name):
        if name not in made:
            made[name] = epath.Path(directory / name)
            importing.convert(str(GOLDENS / name), made[name])
        return made[name]

    return get


def config(start, text, arm="mlm", **overrides):
    source = f"{CONFIGS / 'continue_pretraining.py'}:run={start},arm={arm}"
    return pretraining_config.parse(config_reader.load(source, FEW | {"data.source": text} | overrides))


def parameters(workdir, step=None):
    return names.flat(run.open_run(workdir, step).params)


@pytest.mark.parametrize(
    ("name", "arm"),
    some([("bert_pairs", "ag"), ("electra", "mlm"), ("deberta_v3", "ag")], ("deberta_v3", "ag")),
)
def test_going_on_with_an_imported_model(name, arm, imported, text, tmp_path, one_device):
    """Step 0 is the given weights, training changes them, and they go back as what they came as."""
    start, workdir = imported(name), epath.Path(tmp_path / "run")
    run.train(config(start, text, arm), workdir)
    given, first, last = parameters(start), parameters(workdir, 0), parameters(workdir)
    assert given.keys() == first.keys()
    for path, leaf in given.items():
        assert np.array_equal(leaf, first[path]), path
    assert not np.array_equal(first["encoder/embeddings/word/embedding"], last["encoder/embeddings/word/embedding"])
    exporting.convert(workdir, None, str(tmp_path / "out"))
    theirs, ours = (json.loads((where / "config.json").read_text()) for where in (GOLDENS / name, tmp_path / "out"))
    assert ours["architectures"] == theirs["architectures"]


def test_a_resumed_run_does_not_read_them_again(imported, text, tmp_path, one_device):
    """Not even if they are gone: the second half goes on from the checkpoint, bit for bit."""
    start = epath.Path(tmp_path / "start")
    importing.convert(str(GOLDENS / "roberta"), start)
    wanted, whole, halves = config(start, text), epath.Path(tmp_path / "whole"), epath.Path(tmp_path / "halves")
    run.train(wanted, whole)
    run.train(wanted, halves)
    checkpoints = Checkpoints(halves / "checkpoints", keep_last=9)
    assert 2 in checkpoints.steps()
    checkpoints.close()
    (halves / "checkpoints" / "3").rmtree()
    (halves / "summary.json").unlink()
    (start / "checkpoints").rmtree()
    run.train(wanted, halves)
    first, second = parameters(whole), parameters(halves)
    for path, leaf in first.items():
        assert np.array_equal(leaf, second[path]), path


def test_heads_that_are_new_or_dropped_are_said(imported, text, tmp_path, one_device, capsys):
    start, workdir = imported("bert_pairs"), epath.Path(tmp_path / "run")
    run.train(config(start, text, **{"data.format": "full_sentences"}), workdir)
    assert "dropped: next_head" in capsys.readouterr().err
    assert np.array_equal(parameters(start)["word_head/bias"], parameters(workdir, 0)["word_head/bias"])
    workdir = epath.Path(tmp_path / "other")
    detect = {"replaced_tokens.generator": "unigram", "data.masking.replacement": "unigram"}
    run.train(config(imported("bert"), text, **detect), workdir)
    assert "new: discriminator_head; dropped: word_head" in capsys.readouterr().err


def test_another_encoder_is_refused_by_its_settings(imported, text, tmp_path):
    other = config(imported("bert"), text, **{"model.layers": 3, "model.max_length": 21, "model.dropout": 0.2})
    with pytest.raises(ValueError, match="another encoder") as caught:
        run.train(other, epath.Path(tmp_path / "run"))
    assert "model.layers: there 2, here 3" in str(caught.value) and "model.max_length" in str(caught.value)
    assert "dropout" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_another_tokenizer_is_refused(imported, text, tmp_path, one_device):
    content = json.loads((imported("bert") / "tokenizer" / "tokenizer.json").read_text())
    words = content["model"]["vocab"]
    words["a"], words["b"] = words["b"], words["a"]
    moved = tmp_path / "tokenizer"
    moved.mkdir()
    (moved / "tokenizer.json").write_text(json.dumps(content))
    other = config(imported("bert"), text, **{"data.tokenizer.path": str(moved)})
    with pytest.raises(ValueError, match="go with another tokenizer"):
        run.train(other, epath.Path(tmp_path / "run"))


def test_no_run_to_start_from(text, tmp_path):
    with pytest.raises(ValueError, match=f"{tmp_path}/config.json"):
        config(tmp_path, text)
    with pytest.raises(ValueError, match="needs the argument run"):
        config_reader.load(f"{CONFIGS / 'continue_pretraining.py'}:arm=mlm")
