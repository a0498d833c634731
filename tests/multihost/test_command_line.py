"""What the command does with the flags and the run directory of many hosts, without starting any."""

import json
import pathlib

import pytest
from etils import epath

from ag_jax import cli, config_reader
from ag_jax.distributed import shared_files
from ag_jax.finetuning import comparison
from ag_jax.pretraining import config as pretraining_config
from ag_jax.pretraining import run
from tests.distributed.fake_hosts import FakeHosts
from tests.multihost.launch import REPOSITORY, free_port

CONFIG = str(REPOSITORY / "configs" / "quickstart.py")


def request(tmp_path, **more) -> cli.Request:
    return cli.Request(CONFIG, {}, str(tmp_path / "run"), None, None, False, **more)


@pytest.mark.parametrize(
    ("verb", "flags", "message"),
    [
        ("train", {"coordinator": "x:1"}, "--coordinator and --host need --hosts=N"),
        ("train", {"coordinator": "x:1", "hosts": "2", "host": 2}, "--host must be from 0 to 1"),
        ("train", {"coordinator": "x", "hosts": "2", "host": 1}, "--coordinator must be HOST:PORT"),
        ("train", {"hosts": "auto"}, "--hosts=auto found no Cloud TPU pod slice"),
        ("train", {"join_timeout": 0}, "--join_timeout must be at least 1 second, got 0"),
        ("inspect", {"coordinator": "x:1", "hosts": "2", "host": 1}, "`ag-jax inspect` runs on one machine"),
    ],
)
def test_nonsense_is_refused_in_one_line(tmp_path, capsys, verb, flags, message):
    assert cli.run_safely(verb, request(tmp_path, **flags)) == 1
    said = capsys.readouterr().err
    assert message in said and len(said.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_wrong_config_is_refused_before_anyone_is_waited_for(tmp_path, capsys):
    flags = {"coordinator": f"localhost:{free_port()}", "hosts": "2", "host": 0, "join_timeout": 600}
    wrong = cli.Request(CONFIG, {"model.heads": 5}, str(tmp_path), None, None, False, **flags)
    assert cli.run_safely("train", wrong) == 1
    assert "model.heads must divide" in capsys.readouterr().err


def small() -> pretraining_config.ExperimentConfig:
    return pretraining_config.parse(config_reader.load(CONFIG))


def test_hosts_that_share_the_directory(tmp_path, monkeypatch):
    fakes = FakeHosts(monkeypatch, 3)
    assert fakes.run(lambda host: run.claim_workdir(small(), epath.Path(tmp_path / "run"))) == [None] * 3
    assert json.loads((tmp_path / "run" / "hosts.json").read_text())["hosts"] == 3
    assert pretraining_config.parse(json.loads((tmp_path / "run" / "config.json").read_text())) == small()


def test_hosts_that_do_not_share_the_directory_are_refused_even_if_an_old_run_lies_there(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_files, "TIMEOUT", 0.0)
    for host in range(2):
        run.claim_workdir(small(), epath.Path(tmp_path / str(host)))
        (tmp_path / str(host) / "hosts.json").write_text("{}")
    fakes = FakeHosts(monkeypatch, 2)
    errors = fakes.run(lambda host: run.claim_workdir(small(), epath.Path(tmp_path / str(host))))
    assert all("is not the same directory on all hosts: host 1 does not see" in str(error) for error in errors)


@pytest.mark.parametrize("part", [None, "1/2"])
def test_hosts_that_do_not_share_the_directory_of_a_suite_are_refused_before_anything_is_read(
    tmp_path, monkeypatch, part
):
    monkeypatch.setattr(shared_files, "TIMEOUT", 0.0)
    source = f"{REPOSITORY}/configs/finetune/glue.py:checkpoint=not_there,data=not_there,tasks=rte"
    errors = FakeHosts(monkeypatch, 2).run(
        lambda host: comparison.finetune(source, {}, epath.Path(tmp_path / str(host)), part)
    )
    assert all("is not the same directory on all hosts: host 1 does not see" in str(error) for error in errors), errors


def test_a_directory_of_another_config_is_refused_by_all(tmp_path, monkeypatch):
    workdir = epath.Path(tmp_path / "run")
    run.claim_workdir(small(), workdir)
    (workdir / "checkpoints" / "0").mkdir(parents=True)
    changed = pretraining_config.parse(config_reader.load(CONFIG, {"model.layers": 3}))
    errors = FakeHosts(monkeypatch, 2).run(lambda host: run.claim_workdir(changed, workdir))
    assert all("model.layers: there 8, now 3" in str(error) for error in errors) and "host 0: " in str(errors[1])


def test_the_cache_may_lie_elsewhere_on_each_host_and_the_program_is_known_by_its_content(tmp_path, monkeypatch):
    def task(host):
        config = pretraining_config.parse(config_reader.load(CONFIG, {"data.cache_dir": str(tmp_path / str(host))}))
        return run.claim_workdir(config, epath.Path(tmp_path / "run"))

    assert FakeHosts(monkeypatch, 2).run(task) == [None, None]
    before = run.versions()
    assert before == run.versions()
    read = pathlib.Path.read_bytes
    for changed in ("run.py", "multihead.py"):  # of this package, and of another one
        with monkeypatch.context() as patch:
            patch.setattr(
                pathlib.Path, "read_bytes", lambda self, name=changed: read(self) + b" " * (self.name == name)
            )
            assert run.versions() != before
