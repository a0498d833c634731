"""`ag-jax export --milestones`: a directory and a revision for each number of words, all of them or none."""

import json
import shutil

import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from safetensors.numpy import load_file

from ag_jax.data import pipeline, tokenizers
from ag_jax.interop import milestones
from ag_jax.pretraining import build, initial_weights, run, words, workloads
from ag_jax.pretraining.open_run import open_run
from ag_jax.training.checkpoint import Checkpoints
from ag_jax.training.hyperparameters import Hyperparameters
from ag_jax.training.state import TrainState
from ag_jax.training.trainee import Progress
from tests import tiny
from tests.interop.test_hub import api, export  # noqa: F401
from tests.pretraining import tiny_runs as runs

WORDS = (1_000, 2_500)
NAMES = ["chck_1K", "chck_2500", "main"]


def train(folder, **changed) -> epath.Path:
    """Train a run with two milestones in words before its end."""
    text = folder / "text.txt"
    text.write_text("\n".join(f"The union is strong, and number {number} builds a road." for number in range(60)))
    of_run = {"training.words": 3_000, "training.milestone_words": WORDS, "training.milestones": ()}
    of_run |= {"training.evaluate_every": None, "training.checkpoint_every": 999}
    workdir = epath.Path(folder / "run")
    with runs.on_one_device():
        run.train(runs.settings(text, 99, **dict.fromkeys(runs.BIASES, True), **of_run | changed), workdir)
    return workdir


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """Make a run as training leaves it, with other parameters at each milestone and at its end."""
    folder = tmp_path_factory.mktemp("milestones")
    of_run = {"training.milestones": (), "training.keep_last": 3, **dict.fromkeys(runs.BIASES, True)}
    config = runs.settings(folder / "text.txt", 9, **of_run)
    tokenizer = tokenizers.train(config.data.tokenizer, ["The union is strong, and builds a road."] * 9)
    model = workloads.reference_model(config, tokenizer)
    workdir, example = epath.Path(folder / "run"), pipeline.empty_batch(config.data, rows=1)
    initial_weights.write(config, workdir, tokenizer, tiny.params(model, example))
    checkpoints = Checkpoints(workdir / "checkpoints", keep_last=3)
    for step in (3, 7, 9):
        params = tiny.params(model, example, seed=step)
        optimizer = build.optimizer_of(config, Hyperparameters()).init(params)
        checkpoints.save(TrainState(jnp.int32(step), params, optimizer), Progress().to_json())
    checkpoints.close()
    steps = words.WordSteps(3_000, 60, 9, dict(zip(WORDS, (3, 7), strict=True)))
    (workdir / words.FILE).write_text(json.dumps(steps.to_json()))
    return workdir


def test_names():
    named = {1_000_000: "chck_1M", 90_000_000: "chck_90M", 1_000_000_000: "chck_1000M", 1_500_000: "chck_1500K"}
    assert {count: milestones.name(count) for count in named} == named
    assert milestones.name(12_345) == "chck_12345"


def test_each_is_a_whole_model_and_a_revision(api, workdir, tmp_path, capsys):  # noqa: F811
    target = tmp_path / "out"
    assert export(workdir, target, "--milestones", "--push=baby") == 0
    assert sorted(path.name for path in target.iterdir()) == NAMES
    for name, step in zip(NAMES, (3, 7, 9), strict=True):
        ours, theirs = open_run(workdir, step), load_file(target / name / "model.safetensors")
        embedding = ours.params["encoder"]["embeddings"]["word"]["embedding"]
        np.testing.assert_array_equal(theirs["roberta.embeddings.word_embeddings.weight"], embedding)
        settings = json.loads((target / name / "config.json").read_text())
        assert settings["architectures"] == ["RobertaForMaskedLM"]
        assert tokenizers.load(target / name).vocabulary_size == ours.tokenizer.vocabulary_size
        revision = "" if name == "main" else f', revision="{name}"'
        assert (target / name / "README.md").read_text().count(f'.from_pretrained("me/baby"{revision})') == 2
        files = {path.name: path.read_bytes() for path in (target / name).iterdir()}
        assert api.uploaded["me/baby", name] == files
    assert len(api.uploaded) == 3 and next(iter(api.uploaded)) == ("me/baby", "main")
    branches = [call.kwargs["branch"] for call in api.create_branch.call_args_list]
    assert branches == NAMES[:2] and all(call.kwargs["exist_ok"] for call in api.create_branch.call_args_list)
    capsys.readouterr()
    api.create_branch.side_effect = PermissionError("403")
    assert export(workdir, tmp_path / "second", "--milestones", "--push=baby") == 1
    said = capsys.readouterr().err
    assert f"hf upload me/baby {tmp_path}/second/chck_1K --revision=chck_1K" in said and "chck_2500" in said


def test_what_cannot_be_exported(workdir, tmp_path, capsys):
    target = tmp_path / "out"
    lacking = epath.Path(shutil.copytree(workdir, tmp_path / "lacking"))
    step = words.read(lacking).milestones[2_500]

    def refused(directory, *flags, named):
        assert export(directory, target, "--milestones", *flags) == 1 and named in capsys.readouterr().err

    refused(workdir, "--step=3", named="--step=3")
    shutil.rmtree(lacking / "checkpoints" / str(step))
    refused(lacking, named=f"chck_2500 (step {step})")
    (lacking / "checkpoints" / str(step)).mkdir()  # damaged, which shows after others were written
    refused(lacking, named=str(step))
    (lacking / words.FILE).unlink()
    refused(lacking, named="training.milestone_words")
    assert not target.exists() and {path.name for path in tmp_path.iterdir()} == {"lacking"}
    target.mkdir()
    (target / "file").touch()
    refused(workdir, named=str(target))


@pytest.mark.exhaustive
def test_a_model_without_word_head_is_said(tmp_path, capsys):
    of_words = {"replaced_tokens.generator": "mlm", "data.masking.mask_fraction": 0.85}
    of_words |= {"data.masking.random_fraction": 0.0, "replaced_tokens.generator_fraction": 0.5}
    of_words |= {"model.token_types": 2, "model.position_offset": 0, "training.words": 2_500}
    workdir = train(tmp_path, **of_words)
    assert export(workdir, tmp_path / "model", "--milestones") == 0
    assert "ElectraForPreTraining" in capsys.readouterr().out
    assert export(workdir, tmp_path / "generator", "--milestones", "--encoder=generator") == 0
    assert "ElectraForMaskedLM" in capsys.readouterr().out
