"""Runs that start from another run's weights, and what of them comes out again."""

import json
import shutil

import numpy as np
import pytest
from etils import epath

from ag_jax.pretraining import run
from ag_jax.pretraining.open_run import open_run
from ag_jax.settings import config_files
from tests.cases import some
from tests.interop.copies import CONFIGS, GOLDENS, continuing, exported, parameters, same, start

BLOCKS = {"data.format": "full_sentences"}


def test_a_resumed_run_does_not_read_its_initial_weights_again(run_of, text, tmp_path, one_device):
    """tests/pretraining/test_adversarial_runs.py checks that step 0 of a trained run is its initial weights."""
    given = epath.Path(shutil.copytree(run_of("bert_pairs"), tmp_path / "given"))
    wanted = continuing(given, text, **BLOCKS)
    workdir, before = start(wanted, tmp_path / "run", step=2), parameters(given)
    same(parameters(workdir), {path: leaf for path, leaf in before.items() if not path.startswith("next_head/")})
    shutil.rmtree(given / "checkpoints")
    run.train(wanted, workdir)
    assert open_run(workdir).step == 3
    words = "encoder/embeddings/word/embedding"
    assert not np.array_equal(before[words], parameters(workdir)[words])


@pytest.mark.parametrize(
    ("name", "arm"), some([("bert_pairs", "ag"), ("electra", "plain"), ("deberta_v3", "ag")], ("bert_pairs", "ag"))
)
def test_every_part_is_taken_over_and_exported(name, arm, run_of, text, tmp_path, one_device):
    workdir = start(continuing(run_of(name), text, arm), tmp_path / "run")
    same(parameters(workdir), parameters(run_of(name)))
    _, settings, _, _ = exported(workdir, tmp_path / "out")
    assert settings["architectures"] == json.loads((GOLDENS / name / "config.json").read_text())["architectures"]


def test_heads_that_are_new_or_dropped_are_said(run_of, text, tmp_path, one_device, capsys):
    start(continuing(run_of("bert_pairs"), text, **BLOCKS), tmp_path / "run")
    assert "dropped: next_head" in capsys.readouterr().err
    bias = parameters(tmp_path / "run")["word_head/bias"]
    assert np.array_equal(bias, parameters(run_of("bert_pairs"))["word_head/bias"]) and bias.any()
    detect = BLOCKS | {"replaced_tokens.generator": "unigram", "data.masking.replacement": "unigram"}
    start(continuing(run_of("bert_pairs"), text, **detect), tmp_path / "other")
    assert "new: discriminator_head; dropped: next_head, word_head" in capsys.readouterr().err


def test_what_other_weights_do_not_fit_is_refused(run_of, text, tmp_path, one_device):
    other = continuing(run_of("bert_pairs"), text, **{"model.layers": 3, "model.max_length": 21, "model.dropout": 0.2})
    with pytest.raises(ValueError, match=r"model\.layers: there 2, here 3") as caught:
        run.train(other, epath.Path(tmp_path / "run"))
    assert "model.max_length" in str(caught.value) and "dropout" not in str(caught.value)
    assert not (tmp_path / "run").exists()

    content = json.loads((run_of("bert_pairs") / "tokenizer" / "tokenizer.json").read_text())
    words = content["model"]["vocab"]
    words["a"], words["b"] = words["b"], words["a"]
    (tmp_path / "moved").mkdir()
    (tmp_path / "moved" / "tokenizer.json").write_text(json.dumps(content))
    other = continuing(run_of("bert_pairs"), text, **{"data.tokenizer.path": str(tmp_path / "moved")})
    with pytest.raises(ValueError, match="tokenizer"):
        run.train(other, epath.Path(tmp_path / "run"))


@pytest.mark.parametrize("name", ["pretraining", "translation"])
def test_no_run_to_start_from(name, tmp_path):
    rest = ",source=a,target=b" if name == "translation" else ""
    with pytest.raises(ValueError, match=f"{tmp_path}/config.json"):
        config_files.load(f"{CONFIGS / f'continue_{name}.py'}:run={tmp_path}{rest}")
    with pytest.raises(ValueError, match="argument run"):
        config_files.load(f"{CONFIGS / f'continue_{name}.py'}:{rest.strip(',') or 'arm=plain'}")
