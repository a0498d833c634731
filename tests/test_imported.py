"""Functions that settings name: those that only a stored file names are not imported."""

import json
import sys
import types

import pytest

from ag_jax.data.json_files import read_json
from ag_jax.settings import config_files, imported

CONFIG = """
from ag_jax.data.json_files import read_json
from ag_jax.pretraining.config import default_config

def get_config():
    config = default_config()
    config.guidance.update(mode="loss", heads="mine.first:1,next:1")
    config.guidance.update(read_json({path!r}))
    return config
"""


def stored(tmp_path, content):
    (tmp_path / "stored.json").write_text(json.dumps(content))
    return read_json(tmp_path / "stored.json")


@pytest.mark.parametrize("path", ["strange.second", "strange-files.read", "strange·x.f", "ſtrange.a.b"])
def test_what_a_stored_file_names_is_not_imported(path, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, path.rpartition(".")[0], module := types.SimpleNamespace())
    setattr(module, path.rpartition(".")[2], print)
    assert imported.function("metric", path) is print
    stored(tmp_path, {"tasks": [{"heads": f"next:1, {path}:2"}]})
    with pytest.raises(ValueError, match="--trust_code"):
        imported.function("metric", path)
    imported.allow({"data.source": path})  # a text that names no function
    assert not imported.is_allowed(path)
    imported.allow({"tasks.own.custom.reader": path})
    assert imported.function("metric", path) is print


def test_a_config_file_may_name_functions_but_not_take_them_from_a_stored_file(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "strange", types.SimpleNamespace(second=print))
    (tmp_path / "taken.json").write_text('{"heads": "strange.second:1"}')
    (tmp_path / "mine.py").write_text(CONFIG.format(path=str(tmp_path / "taken.json")))
    source = str(tmp_path / "mine.py")
    assert config_files.load(source).settings.guidance.heads == "strange.second:1"
    assert not imported.is_allowed("strange.second")
    _ = config_files.load(source, {"guidance.heads": "strange.second:1"}).settings
    assert imported.is_allowed("strange.second")
