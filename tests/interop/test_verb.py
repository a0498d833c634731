"""`ag-jax import` and `ag-jax export` as they are typed: the licence on its way, commands that lack something."""

import pytest

from ag_jax import cli
from tests.interop.test_goldens import GOLDENS, with_tensors


def request(**flags):
    empty = dict.fromkeys(("config", "workdir", "step", "text", "print_config")) | {"overrides": {}}
    return cli.Request(**empty | flags)


def test_there_and_back(tmp_path, capsys):
    directory = with_tensors("bert", tmp_path / "hf", lambda tensors: tensors)
    (directory / "README.md").write_text("---\ntags: [x]\nlicense: apache-2.0\n---\n# A model\nlicense: no\n")
    run = str(tmp_path / "run")
    assert cli.run_safely("import", request(source=str(directory), workdir=run)) == 0
    assert cli.run_safely("export", request(target=str(tmp_path / "out"), workdir=run)) == 0
    said, notes = capsys.readouterr()
    assert not notes
    assert "parameters of bert" in said and "as BertForMaskedLM" in said and "not carried: There is no pooler" in said
    card = (tmp_path / "out" / "README.md").read_text()
    assert "\nlicense: apache-2.0\n" in card and "It began as `hf` (bert)" in card
    assert str(tmp_path) not in card, "a card must not name directories of this machine"
    assert cli.run_safely("export", request(target=str(tmp_path / "mine"), workdir=run, license="mit")) == 0
    assert "\nlicense: mit\n" in (tmp_path / "mine" / "README.md").read_text()


@pytest.mark.parametrize(
    ("verb", "flags", "message"),
    [
        ("import", {"workdir": "y"}, "needs --from=MODEL"),
        ("import", {"source": str(GOLDENS / "bert")}, "needs --workdir"),
        ("export", {"workdir": "y"}, "needs --to=DIR"),
        ("export", {"target": "out", "workdir": "nowhere"}, "nowhere/config.json"),
    ],
)
def test_commands_that_lack_something(verb, flags, message, capsys):
    assert cli.run_safely(verb, request(**flags)) == 1
    assert message in capsys.readouterr().err
