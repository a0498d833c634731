"""Data sets of Hugging Face, with a stand-in for the hub and for the package `datasets`."""

import dataclasses
import sys
import types

import huggingface_hub
import pytest

from ag_jax.data.config import DataConfig
from ag_jax.data.text import files, hub, mixture, sources
from tests.data.conftest import text, write

COMMIT = "0123456789abcdef0123456789abcdef01234567"
DOCUMENTS = [text(9 * number, 9 * number + 6) for number in range(121)]


@dataclasses.dataclass(frozen=True)
class Stream:
    """Stands in for an IterableDataset, as far as a source uses one."""

    records: list
    num_shards: int
    num_bytes: int | None
    split: str

    @property
    def info(self):
        known = {self.split: types.SimpleNamespace(num_bytes=self.num_bytes)}
        return types.SimpleNamespace(splits=known if self.num_bytes else None)

    def shard(self, num_shards, index):
        assert num_shards == self.num_shards
        size = -(-len(self.records) // num_shards)
        return Stream(self.records[index * size : (index + 1) * size], 1, None, self.split)

    def __iter__(self):
        return iter(self.records)


@pytest.fixture
def at_hub(monkeypatch):
    """A hub with one data set, whose branch main is at `commits[-1]`, and the calls of `load_dataset`."""
    files.warn_once.cache_clear()
    hub._answers.clear()
    found = types.SimpleNamespace(calls=[], commits=[COMMIT], fails=False, num_bytes=5_000)

    def load_dataset(name, config, *, split, revision, streaming):
        assert streaming
        found.calls.append((name, config, split, revision))
        if config not in (None, "en"):
            raise ValueError(f"BuilderConfig '{config}' not found. Available: ['en']")
        records = [{"id": number, "text": document} for number, document in enumerate(DOCUMENTS)]
        return Stream(*((records, 5) if split == "train" else (records[:7], 1)), found.num_bytes, split)

    class Api:
        def dataset_info(self, name, revision=None):
            if found.fails or name != "some/books":
                raise OSError("Name or service not known")
            return types.SimpleNamespace(sha=found.commits[-1])

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    return found


def test_names(at_hub):
    for source, expected in {
        "hf:books:en": ("books", None, "en", "train"),
        "hf:some/books:en:test": ("some/books", None, "en", "test"),
        "hf:some/books::test": ("some/books", None, None, "test"),
        "hf:some/books@refs/convert/parquet:en": ("some/books", "refs/convert/parquet", "en", "train"),
    }.items():
        found = hub.parse(source)
        assert (found.name, found.revision, found.config, found.split) == expected
        weighted = f"{source}:3,hf:other::test:1"
        assert sources.parts(weighted) == [source, "hf:other::test"] and sources.weights(weighted) == [3, 1]
    for source in ("hf:", "hf::en", "hf:a:b:c:d", "hf:a@"):
        with pytest.raises(ValueError, match="hf:NAME"):
            hub.parse(source)
    with pytest.raises(ValueError, match="hf:some/books is in two"):
        mixture.components(DataConfig(source="hf:some/books:3,hf:some/books::train:1"))
    assert len(mixture.components(DataConfig(source="hf:some/books:3,hf:some/books::test:1"))) == 2


def test_shards_are_read_in_order_at_one_commit(at_hub, caplog, monkeypatch):
    units = list(sources.units("hf:some/books:en", [2]))
    assert [unit.size for unit in units] == [1_000] * 5 and [unit.skip_words for unit in units] == [2] * 5
    assert list(sources.documents_of([dataclasses.replace(unit, skip_words=0) for unit in units])) == DOCUMENTS
    assert list(sources.documents("hf:some/books::test")) == DOCUMENTS[:7]
    assert at_hub.calls == [("some/books", "en", "train", COMMIT), ("some/books", None, "test", COMMIT)]
    assert sources.identity("hf:some/books:en") == [["hf:some/books", "en", "train", COMMIT]]
    assert f"hf:some/books@{COMMIT}:en" in caplog.text
    assert not units[0].has_changed()
    at_hub.commits.append("f" * 40)
    assert sources.identity("hf:some/books:en")[0][-1] == COMMIT, "the hub is not asked again at once"
    monkeypatch.setattr(hub, "ASK_AGAIN", 0.0)
    assert units[0].has_changed() and sources.identity("hf:some/books:en")[0][-1] == "f" * 40
    at_hub.num_bytes = None
    assert [unit.size for unit in sources.units("hf:some/books")] == [hub.SHARD_SIZE] * 5
    at_hub.fails = True  # a commit needs no network
    assert sources.identity(f"hf:some/books@{COMMIT}:en") == [["hf:some/books", "en", "train", COMMIT]]
    assert len(list(sources.units(f"hf:some/books@{COMMIT}:en"))) == 5
    with pytest.raises(FileNotFoundError, match="'some/books' .Name or service"):
        sources.identity("hf:some/books")


def test_what_is_wrong_is_named(at_hub, monkeypatch):
    def fails(named, source="hf:some/books", field="text"):
        with pytest.raises(ValueError, match=named):
            list(sources.documents(source, field))

    fails(r"'de' not found. Available: \['en'\]", "hf:some/books:de")
    fails('shard 1, record 1.*"body".*"id", "text"', field="body")
    fails('"id".*int', field="id")

    def broken(self):
        yield {"text": "A document."}
        raise ConnectionError("reset by peer")

    monkeypatch.setattr(Stream, "__iter__", broken)
    fails("shard 1: the record after 1 .*ConnectionError: reset by peer")
    monkeypatch.setitem(sys.modules, "datasets", None)
    fails("pip install")


def test_a_local_directory(at_hub, tmp_path, monkeypatch):
    monkeypatch.chdir(write(tmp_path, {"some/books/train.jsonl": "123", "some/books/b/more.jsonl": "4567"}))
    assert list(sources.documents("hf:some/books")) == DOCUMENTS
    assert at_hub.calls == [("some/books", None, "train", None)]
    units = list(sources.units("hf:./some/books"))
    assert [unit.size for unit in units] == [7 // 5] * 5 and not units[0].has_changed()
    assert [name for name, _ in sources.files("hf:some/books")] == ["b/more.jsonl:train", "train.jsonl:train"]
    write(tmp_path, {"some/books/train.jsonl": "1"})
    assert units[0].has_changed()
    with pytest.raises(ValueError, match="@main"):
        hub.parse("hf:some/books@main")
