"""A search as one job on several hosts: all train the same runs, as host 0 decides, which alone reads and writes files.

Each host has a directory of its own here, so that one shows which does something with files.
"""

import json

import pytest
from etils import epath

from ag_jax.distributed import hosts
from ag_jax.pretraining import run
from ag_jax.pretraining.search import run as search_run
from ag_jax.settings import config_files
from tests.distributed.fake_hosts import FakeHosts
from tests.pretraining.search import studies
from tests.pretraining.search.studies import config_file, rates

HOSTS = 3


@pytest.fixture
def on_hosts(monkeypatch, tmp_path, one_device):
    """Returns a function that runs a search on several hosts, and returns the result and the runs of each."""
    calls = [[] for _ in range(HOSTS)]

    def train(config, directory, labels, until=None):
        of_host = calls[hosts.index()]
        of_host.append((directory.name, until))
        assert len(of_host) < 10, "a host that does not hear what is done trains for ever"
        stub = studies.stub if hosts.is_first() else lambda config, *_: studies.outcome(config, until)
        return stub(config, directory, labels, until)

    monkeypatch.setattr(run, "train_held", train)
    monkeypatch.setattr(search_run, "plateau_loss", lambda config, directory: studies.PLATEAU)
    fakes = FakeHosts(monkeypatch, HOSTS)

    def search(overrides, *values):
        source = config_file(tmp_path / "config.py", {"plain": rates(*values)})
        found = fakes.run(
            lambda host: search_run.search(config_files.load(source, overrides), epath.Path(tmp_path / str(host)))
        )
        return found, calls

    return search


def test_all_hosts_train_the_same_runs_and_the_first_writes_files(on_hosts, tmp_path):
    """Of two points one diverges before the rung, and the other goes on."""
    found, calls = on_hosts({"search.rungs": (0.5,)}, studies.DIVERGES, 0.1)
    assert calls == [[("lr0.75-seed0", 4), ("lr0.1-seed0", 4), ("lr0.1-seed0", None)]] * HOSTS
    assert found == [epath.Path(tmp_path / str(host) / "report.md") for host in range(HOSTS)]
    numbers = json.loads((tmp_path / "0" / "search.json").read_text())
    statuses = {name: of["status"] for name, of in numbers["arms"]["plain"]["points"].items()}
    assert statuses == {"lr0.1": "done", "lr0.75": "failed"}
    written = {str(path.relative_to(tmp_path / "0")) for path in (tmp_path / "0").rglob("*.*") if path.is_file()}
    assert written == {
        *("calls.txt", "best.json", "report.md", "search.json"),
        *(f"plain/lr0.1-seed0/{name}.json" for name in ("config", "result-4", "result")),
        *(f"plain/lr0.75-seed0/{name}.json" for name in ("config", "result-4")),
    }
    assert not [host for host in range(1, HOSTS) if (tmp_path / str(host)).exists()], "only host 0 writes"


def test_a_search_whose_points_all_failed_fails_on_all_hosts(on_hosts, tmp_path):
    found, _ = on_hosts({}, studies.DIVERGES)
    assert all(isinstance(error, ValueError) and "plain/lr0.75" in str(error) for error in found)
    assert (tmp_path / "0" / "report.md").exists()
