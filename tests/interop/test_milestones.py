"""`ag-jax export --milestones`: a directory and a revision for each number of words, all of them or none."""

import json
import pathlib
import shutil

import jax
import numpy as np
import pytest
from etils import epath
from safetensors.numpy import load_file

from ag_jax import main
from ag_jax.data import tokenizers
from ag_jax.interop import milestones
from ag_jax.pretraining import run, words
from tests.interop.test_hub import api  # noqa: F401
from tests.pretraining import test_extended_runs as runs

WORDS = (1_000, 2_500)
NAMES = ["chck_1K", "chck_2500", "main"]


def train(folder, **changed) -> epath.Path:
    """Train a run with two milestones in words before its end."""
    text = folder / "text.txt"
    text.write_text("\n".join(f"The union is strong, and number {number} builds a road." for number in range(60)))
    of_run = {"training.words": 3_000, "training.milestone_words": WORDS, "training.milestones": ()}
    of_run |= {"training.evaluate_every": None, "training.checkpoint_every": 999}
    workdir, patch, device = epath.Path(folder / "run"), pytest.MonkeyPatch(), jax.devices()[0]
    patch.setattr(jax, "devices", lambda: [device])
    run.train(runs.settings(text, 99, **of_run | changed), workdir)
    patch.undo()
    return workdir


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    return train(tmp_path_factory.mktemp("milestones"))


def export(workdir, target, *flags):
    return main.main(["ag-jax", "export", f"--workdir={workdir}", f"--to={target}", "--milestones", *flags])


def test_names():
    named = {1_000_000: "chck_1M", 90_000_000: "chck_90M", 1_000_000_000: "chck_1000M", 1_500_000: "chck_1500K"}
    assert {count: milestones.name(count) for count in named} == named
    assert milestones.name(12_345) == "chck_12345"


def test_each_directory_is_a_whole_model(workdir, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert export(workdir, "out/models") == 0
    said = capsys.readouterr().out
    assert f"as RobertaForMaskedLM, in each of {', '.join(NAMES)} in out/models" in said and "note:" not in said
    steps = [*words.read(workdir).milestones.values(), run.read_summary(workdir)["steps"]]
    assert sorted(path.name for path in pathlib.Path("out/models").iterdir()) == NAMES and len(set(steps)) == 3
    for name, step in zip(NAMES, steps, strict=True):
        place = pathlib.Path("out/models", name)
        ours, theirs = run.open_run(workdir, step), load_file(place / "model.safetensors")
        embedding = ours.params["encoder"]["embeddings"]["word"]["embedding"]
        np.testing.assert_array_equal(theirs["roberta.embeddings.word_embeddings.weight"], embedding)
        assert json.loads((place / "config.json").read_text())["architectures"] == ["RobertaForMaskedLM"]
        assert tokenizers.load(place).vocabulary_size == ours.tokenizer.vocabulary_size
        assert f'from_pretrained("./{name}")' in (place / "README.md").read_text()


def test_each_is_a_revision(api, workdir, tmp_path, capsys):  # noqa: F811
    uploaded = {}

    def upload(*, repo_id, folder_path, commit_message, delete_patterns, revision="main"):
        uploaded[revision] = (repo_id, pathlib.Path(folder_path))

    api.upload_folder.side_effect = upload
    assert export(workdir, tmp_path / "out", "--push=baby") == 0
    assert uploaded == {name: ("me/baby", tmp_path / "out" / name) for name in NAMES}
    assert next(iter(uploaded)) == "main"
    branches = [call.kwargs["branch"] for call in api.create_branch.call_args_list]
    assert branches == NAMES[:2] and all(call.kwargs["exist_ok"] for call in api.create_branch.call_args_list)
    assert "pushed chck_1K to https://huggingface.co/me/baby\n" in capsys.readouterr().out
    assert '.from_pretrained("me/baby")' in (tmp_path / "out" / "main" / "README.md").read_text()
    of_milestone = (tmp_path / "out" / "chck_1K" / "README.md").read_text()
    assert of_milestone.count('.from_pretrained("me/baby", revision="chck_1K")') == 2
    api.create_branch.side_effect = PermissionError("403")
    assert export(workdir, tmp_path / "second", "--push=baby") == 1
    said = capsys.readouterr().err
    assert f"run: hf upload me/baby {tmp_path}/second/chck_1K --revision=chck_1K --delete=" in said
    assert said.endswith("; then so for chck_2500\n")


def test_what_cannot_be_exported(workdir, tmp_path, capsys):
    target = tmp_path / "out"
    assert export(workdir, target, "--step=3") == 1
    assert "--step=3 is one checkpoint, and --milestones exports several" in capsys.readouterr().err
    lacking = epath.Path(tmp_path / "lacking")
    shutil.copytree(workdir, lacking)
    step = words.read(lacking).milestones[2_500]
    shutil.rmtree(lacking / "checkpoints" / str(step))
    assert export(lacking, target) == 1
    assert f"no checkpoint of chck_2500 (step {step}): resume the training" in capsys.readouterr().err
    # A checkpoint that turns out to be damaged after others were written.
    (lacking / "checkpoints" / str(step)).mkdir()
    assert export(lacking, target) == 1 and str(step) in capsys.readouterr().err
    (lacking / words.FILE).unlink()
    assert export(lacking, target) == 1
    assert "expected a run with milestones in words" in capsys.readouterr().err
    assert export(tmp_path / "nowhere", target) == 1 and f"{tmp_path / 'nowhere'}" in capsys.readouterr().err
    assert not target.exists() and {path.name for path in tmp_path.iterdir()} == {"lacking"}
    target.mkdir()
    (target / "file").touch()
    assert export(workdir, target) == 1 and "exists already" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_a_model_without_word_head_is_said(tmp_path, capsys):
    of_words = {"replaced_tokens.generator": "mlm", "data.masking.mask_fraction": 0.85}
    of_words |= {"data.masking.random_fraction": 0.0, "replaced_tokens.generator_fraction": 0.5}
    of_words |= {"model.token_types": 2, "model.position_offset": 0}
    workdir = train(tmp_path, **of_words, **{"training.words": 2_500})
    assert export(workdir, tmp_path / "model") == 0
    assert "note: ElectraForPreTraining has no word head" in capsys.readouterr().out
    assert export(workdir, tmp_path / "generator", "--part=generator") == 0
    said = capsys.readouterr().out
    assert "as ElectraForMaskedLM, in each of chck_1K, chck_2500, main in" in said and "note:" not in said
