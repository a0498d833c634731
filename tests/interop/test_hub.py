"""`ag-jax export --push` with a stand-in for the Hugging Face hub: what is uploaded, and what happens if it is not."""

import pathlib
import types
from unittest import mock

import huggingface_hub
import pytest

from ag_jax import main

# Files that a repository may have of an earlier model, and others.
STALE = ["model-00001-of-00002.safetensors", "model.safetensors.index.json", "vocab.txt", "merges.txt", "spiece.model"]
STALE += ["special_tokens_map.json", "added_tokens.json", "generation_config.json"]
EARLIER = [*STALE, "onnx/model.onnx", "checkpoint-5/model.safetensors", "figure.png", "LICENSE"]


@pytest.fixture
def api(monkeypatch):
    """A stand-in for `HfApi`, with the signatures of its methods, that notes what is uploaded."""
    stand_in = mock.create_autospec(huggingface_hub.HfApi, instance=True)
    stand_in.whoami.return_value = {"name": "me"}
    stand_in.create_repo.side_effect = lambda name, **_: f"https://huggingface.co/{name}"
    stand_in.model_info.return_value = types.SimpleNamespace(private=False)
    stand_in.uploaded, stand_in.deleted = {}, []

    def upload(*, repo_id, folder_path, commit_message, delete_patterns, revision="main"):
        stand_in.deleted += huggingface_hub.utils.filter_repo_objects(EARLIER, allow_patterns=delete_patterns)
        files = {path.name: path.read_bytes() for path in pathlib.Path(folder_path).iterdir()}
        stand_in.uploaded[repo_id, revision] = files

    stand_in.upload_folder.side_effect = upload
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: stand_in)
    return stand_in


def export(workdir, target, *flags):
    return main.main(["ag-jax", "export", f"--workdir={workdir}", f"--to={target}", *flags])


@pytest.mark.parametrize(("given", "name"), [("mine", "me/mine"), ("others/mine", "others/mine")])
def test_what_is_pushed(given, name, api, run_of, tmp_path, capsys):
    target = tmp_path / "out"
    assert export(run_of("bert_pairs"), target, f"--push={given}", "--language=en") == 0
    api.create_repo.assert_called_once_with(name, private=None, exist_ok=True)
    assert api.uploaded == {(name, "main"): {path.name: path.read_bytes() for path in target.iterdir()}}
    assert api.deleted == STALE
    assert {"config.json", "model.safetensors", "README.md"} <= set(api.uploaded[name, "main"])
    card = api.uploaded[name, "main"]["README.md"].decode()
    assert f'.from_pretrained("{name}")' in card and "language:\n- en\n" in card
    assert f"https://huggingface.co/{name}\n" in capsys.readouterr().out


def test_a_private_repository(api, run_of, tmp_path, capsys):
    """A repository that exists stays public with `exist_ok`, so nothing may be uploaded to it."""
    assert export(run_of("bert_pairs"), tmp_path / "first", "--push=mine", "--private") == 1
    assert "--private" in capsys.readouterr().err
    assert not api.uploaded and (tmp_path / "first" / "config.json").exists()
    api.model_info.return_value = types.SimpleNamespace(private=True)
    assert export(run_of("bert_pairs"), tmp_path / "second", "--push=mine", "--private") == 0
    assert api.create_repo.call_args == mock.call("me/mine", private=True, exist_ok=True) and api.uploaded


def test_a_push_that_fails_keeps_the_export(api, run_of, tmp_path, capsys):
    api.upload_folder.side_effect = PermissionError("403 Forbidden: no write access\n\nRequest ID: 1")
    target = tmp_path / "out"
    assert export(run_of("bert_pairs"), target, "--push=mine") == 1
    said = capsys.readouterr().err
    assert "403 Forbidden" in said and f"hf upload me/mine {target} --delete='model*.safetensors' --delete=" in said
    assert said.count("\n") == 1 and (target / "model.safetensors").exists() and (target / "README.md").exists()


@pytest.mark.parametrize(
    ("flags", "failure", "said"),
    [
        (["--push=mine"], ConnectionError("no network here\nmore"), "(ConnectionError: no network here)"),
        (["--push=a/b/c"], None, "--push"),
        (["--push="], None, "--push"),
        (["--private"], None, "--private"),
        (["--push=mine", "--step=7"], None, "7"),
    ],
)
def test_a_push_that_cannot_begin_writes_nothing(flags, failure, said, api, run_of, tmp_path, capsys):
    api.whoami.side_effect = failure
    assert export(run_of("bert_pairs"), tmp_path / "out", *flags) == 1
    message = capsys.readouterr().err
    assert said in message and message.count("\n") == 1
    assert not list(tmp_path.iterdir()) and not api.create_repo.called
