"""`ag-jax convert` as it is typed: both directions, the licence on its way, and commands that lack something."""

import pytest

from ag_jax import cli
from tests.interop.test_goldens import GOLDENS, with_tensors


def request(**flags):
    empty = dict.fromkeys(("config", "overrides", "workdir", "step", "text", "print_config"))
    return cli.Request(**empty | flags)


def test_there_and_back(tmp_path, capsys):
    directory = with_tensors("bert", tmp_path / "hf", lambda tensors: tensors)
    (directory / "README.md").write_text("---\ntags: [x]\nlicense: apache-2.0\n---\n# A model\nlicense: no\n")
    run = str(tmp_path / "run")
    assert cli.run_safely("convert", request(source="hf", path=str(directory), workdir=run)) == 0
    assert cli.run_safely("convert", request(target="hf", path=str(tmp_path / "out"), workdir=run)) == 0
    said = capsys.readouterr().out
    assert "parameters of bert" in said and "as BertForMaskedLM" in said and "not carried: There is no pooler" in said
    card = (tmp_path / "out" / "README.md").read_text()
    assert "\nlicense: apache-2.0\n" in card and "It began as `hf` (bert)" in card
    assert str(tmp_path) not in card, "a card must not name directories of this machine"
    stated = request(target="hf", path=str(tmp_path / "mine"), workdir=run, license="mit")
    assert cli.run_safely("convert", stated) == 0
    assert "\nlicense: mit\n" in (tmp_path / "mine" / "README.md").read_text()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"path": "x", "workdir": "y"}, "one of --from=hf and --to=hf"),
        ({"path": "x", "workdir": "y", "source": "hf", "target": "hf"}, "one of --from=hf and --to=hf"),
        ({"workdir": "y", "source": "hf"}, "needs --path"),
        ({"path": str(GOLDENS / "bert"), "source": "hf"}, "needs --workdir"),
        ({"path": "out", "workdir": "nowhere", "target": "hf"}, "config.json does not exist"),
    ],
)
def test_commands_that_lack_something(flags, message, capsys):
    assert cli.run_safely("convert", request(**flags)) == 1
    assert message in capsys.readouterr().err
