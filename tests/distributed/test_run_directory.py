"""What commands do with the flags and the run directory of several hosts, which are threads here."""

import json
import pathlib
import threading

from etils import epath

from ag_jax.command_line import cli
from ag_jax.data import cache, layout, tokens
from ag_jax.data.config import DataConfig, TokenizerConfig
from ag_jax.distributed import shared_files
from ag_jax.finetuning import comparison
from ag_jax.pretraining import config as pretraining_config
from ag_jax.pretraining import corpus as pretraining_corpus
from ag_jax.pretraining import run, run_directory
from ag_jax.settings import config_files
from tests.distributed.fake_hosts import FakeHosts
from tests.multihost.launch import REPOSITORY
from tests.test_preparing import write_documents
from tests.verbs import verb_of

CONFIG = str(REPOSITORY / "configs" / "quickstart.py")


def test_a_host_that_does_not_say_of_how_many_is_refused_in_one_line(tmp_path, capsys):
    assert cli.run_safely(verb_of("train", CONFIG, workdir=str(tmp_path / "run"), coordinator="x:1")) == 1
    said = capsys.readouterr().err
    assert "--hosts=N" in said and len(said.splitlines()) == 1 and not (tmp_path / "run").exists()


def config(**settings) -> pretraining_config.ExperimentConfig:
    return config_files.load(CONFIG, settings).settings


def claims(monkeypatch, hosts, of_host):
    """Return what `claim_workdir(*of_host(host))` returned or raised on each host."""
    return FakeHosts(monkeypatch, hosts).run(lambda host: run_directory.claim(*of_host(host)))


def test_hosts_that_share_the_directory(tmp_path, monkeypatch):
    """The cache may lie elsewhere on each host; other settings may not differ."""
    workdir = epath.Path(tmp_path / "run")
    caches = [config(**{"data.cache_dir": str(tmp_path / str(host))}) for host in range(3)]
    assert claims(monkeypatch, 3, lambda host: (caches[host], workdir)) == [None] * 3
    assert json.loads((workdir / "hosts.json").read_text())["hosts"] == 3
    assert pretraining_config.parse(json.loads((workdir / "config.json").read_text())) == caches[0]
    seeds = [config(seed=host) for host in range(2)]
    errors = claims(monkeypatch, 2, lambda host: (seeds[host], epath.Path(tmp_path / "other")))
    assert all("seed is 1, on host 0 0" in str(error) for error in errors) and not (tmp_path / "other").exists()
    (workdir / "checkpoints" / "0").mkdir(parents=True)
    errors = claims(monkeypatch, 2, lambda host: (config(**{"model.layers": 3}), workdir))
    assert all("model.layers: there 8, now 3" in str(error) for error in errors) and "host 0: " in str(errors[1])


def test_hosts_that_do_not_share_the_directory_are_refused(tmp_path, monkeypatch):
    """Even if an old run lies there; in a suite, before anything is read."""
    monkeypatch.setattr(shared_files, "TIMEOUT", 0.0)
    places = [epath.Path(tmp_path / str(host)) for host in range(2)]
    for place in places:
        run_directory.claim(config(), place)
        (place / "hosts.json").write_text("{}")
    found = [claims(monkeypatch, 2, lambda host: (config(), places[host]))]
    source = f"{REPOSITORY}/configs/finetune/glue.py:checkpoint=not_there,data=not_there,tasks=rte"
    suites = FakeHosts(monkeypatch, 2)
    found.append(suites.run(lambda host: comparison.finetune(config_files.load(source, {}), places[host] / "suite")))
    for errors in found:
        assert all("the same directory" in str(error) and "host 1 does not" in str(error) for error in errors), errors


def test_the_program_is_known_by_its_content(monkeypatch):
    before, read = run.versions(), pathlib.Path.read_bytes
    assert before == run.versions()
    for changed in ("run.py", "multihead.py"):  # of this package, and of another one

        def other(self, name=changed):
            return read(self) + b" " * (self.name == name)

        with monkeypatch.context() as patch:
            patch.setattr(pathlib.Path, "read_bytes", other)
            assert run.versions() != before


def test_no_part_of_the_text_is_made_on_two_hosts(tmp_path, monkeypatch):
    """The first part of each host waits for that of the other, so that both make some."""
    made, both, write = [], threading.Barrier(2), tokens.write_part

    def watched(text, part, *rest):
        host = threading.get_ident()
        is_first = host not in [other for _, other in made]
        made.append((part.units[0].path, host))
        if is_first:
            both.wait(60)
        return write(text, part, *rest)

    monkeypatch.setattr(tokens, "write_part", watched)
    monkeypatch.setattr(layout, "PART_SIZE", 1500)
    monkeypatch.setattr(cache, "LOOK_EVERY", 0.05)
    folder, workdir = write_documents(tmp_path / "text"), epath.Path(tmp_path / "run")
    tokenizer = TokenizerConfig(vocabulary_size=300)
    data = DataConfig(source=str(folder), cache_dir=str(tmp_path / "cache"), tokenizer=tokenizer)
    one, other = FakeHosts(monkeypatch, 2).run(
        lambda host: pretraining_corpus.prepare(pretraining_config.ExperimentConfig(data=data), workdir)
    )
    assert one.facts() == other.facts() and one.documents["train"] == 114
    names = [name for name, _ in made]
    assert len(names) == len(set(names)) > 10 and len({host for _, host in made}) == 2
    assert sorted(path.name.split("-")[0] for path in (tmp_path / "cache").iterdir()) == ["rows", "text", "tokenizer"]
