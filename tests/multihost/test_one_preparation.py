"""Hosts with a common cache share the work on the text, and read the same rows there."""

import functools
import json
import threading

import pytest
from etils import epath

from ag_jax.data import entries
from ag_jax.data.config import DataConfig, TokenizerConfig
from ag_jax.data.text import prepare as text_parts
from ag_jax.pretraining import corpus as pretraining_corpus
from ag_jax.pretraining.config import ExperimentConfig
from tests.distributed.fake_hosts import FakeHosts
from tests.multihost.launch import command, finish, start
from tests.test_preparing import log, watch, write_documents


@pytest.fixture
def folder(tmp_path):
    return write_documents(tmp_path / "text")


def test_no_part_of_the_text_is_made_on_two_hosts(folder, tmp_path, monkeypatch):
    """Hosts are threads. The first part of each waits for that of the other, so that both make some."""
    made, both, write = [], threading.Barrier(2), text_parts.write_part

    def watched(part, *rest):
        host = threading.get_ident()
        is_first = host not in [other for _, other in made]
        made.append((part.name, host))
        if is_first:
            both.wait(60)
        return write(part, *rest)

    monkeypatch.setattr(text_parts, "write_part", watched)
    monkeypatch.setattr(text_parts, "PART_SIZE", 1500)
    monkeypatch.setattr(entries, "LOOK_EVERY", 0.05)
    data = DataConfig(
        source=str(folder), cache_dir=str(tmp_path / "cache"), tokenizer=TokenizerConfig(vocabulary_size=300)
    )
    workdir = epath.Path(tmp_path / "run")
    one, other = FakeHosts(monkeypatch, 2).run(
        lambda host: pretraining_corpus.prepare(ExperimentConfig(data=data), workdir)
    )
    assert one.facts() == other.facts() and one.documents["train"] == 114
    names = [name for name, _ in made]
    assert len(names) == len(set(names)) > 10 and len({host for _, host in made}) == 2
    assert sorted(path.name.split("-")[0] for path in (tmp_path / "cache").iterdir()) == ["rows", "text", "tokenizer"]


@pytest.mark.exhaustive  # the same in two processes, which then train
def test_no_part_of_the_text_is_made_in_two_processes(folder, tmp_path):
    more = [f"--config.data.cache_dir={tmp_path / 'cache'}", "--config.training.steps=2"]
    arguments = command(folder, tmp_path / "run", *more, "--config.training.evaluate_every=none")
    before = functools.partial(watch, str(tmp_path / "log"), 1500, False, 0.5, 2)
    outputs = finish(start(2, arguments, 1, before=before))
    assert len(log(tmp_path)) > 10 and set(log(tmp_path).values()) == {1}
    assert len({line.split()[1] for line in (tmp_path / "log").read_text().splitlines()}) == 2, outputs
    summary = json.loads((tmp_path / "run" / "corpus.json").read_text())
    [source] = summary["sources"]
    assert source["train"]["rows"] == summary["train rows"] and summary["train documents"] == 114
    kinds = sorted(path.name.split("-")[0] for path in (tmp_path / "cache").iterdir())
    assert kinds == ["files", "rows", "text", "tokenizer"]
