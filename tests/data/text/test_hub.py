"""Data sets of Hugging Face, with a stand-in for the hub and `datasets`, and with `datasets` where it is installed."""

import dataclasses
import json
import sys
import types

import huggingface_hub
import pytest

from ag_jax.data.config import DataConfig, TokenizerConfig
from ag_jax.data.text import files, hub, mixture, pipeline, sources
from ag_jax.data.text import prepare as text_parts
from tests.data.conftest import text

COMMIT = "0123456789abcdef0123456789abcdef01234567"
DOCUMENTS = [text(9 * number, 9 * number + 6) for number in range(121)]


@dataclasses.dataclass(frozen=True)
class Stream:
    """Stands in for an IterableDataset with five shards, as far as a source uses one."""

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
        return Stream(
            records if split == "train" else records[:7], 5 if split == "train" else 1, found.num_bytes, split
        )

    class Api:
        def dataset_info(self, name, revision=None):
            if found.fails or name != "some/books":
                raise OSError("Name or service not known")
            return types.SimpleNamespace(sha=found.commits[-1])

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    return found


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("hf:some/books", ("some/books", None, None, "train")),
        ("hf:books:en", ("books", None, "en", "train")),
        ("hf:some/books:en:test", ("some/books", None, "en", "test")),
        ("hf:some/books::test", ("some/books", None, None, "test")),
        ("hf:some/books@refs/convert/parquet:en", ("some/books", "refs/convert/parquet", "en", "train")),
    ],
)
def test_names(source, expected):
    found = hub.parse(source)
    assert (found.name, found.revision, found.config, found.split) == expected


@pytest.mark.parametrize("source", ["hf:", "hf::en", "hf:a:b:c:d", "hf:a@", "hf:a:b:train[:1%]"])
def test_other_forms_are_rejected(source):
    with pytest.raises(ValueError, match=r"expected hf:NAME\[@REVISION\]\[:CONFIG\]\[:SPLIT\]"):
        hub.parse(source)


def test_weights_do_not_collide_with_names():
    source = "hf:some/books:en:3,hf:some/books::test:1"
    assert sources.parts(source) == ["hf:some/books:en", "hf:some/books::test"] and sources.weights(source) == [3, 1]
    assert sources.weights("hf:some/books:en,hf:some/books::test") is None


def test_a_data_set_is_not_mixed_with_itself(at_hub):
    with pytest.raises(ValueError, match="hf:some/books is in two of the sources, 'hf:some/books' and"):
        mixture.components(DataConfig(source="hf:some/books:3,hf:some/books::train:1"))
    assert len(mixture.components(DataConfig(source="hf:some/books:3,hf:some/books::test:1"))) == 2


def test_shards_are_read_in_order_at_one_commit(at_hub, caplog, monkeypatch):
    units = list(sources.units("hf:some/books:en", [2]))
    assert [unit.size for unit in units] == [1_000] * 5 and [unit.skip_words for unit in units] == [2] * 5
    assert list(sources.documents_of([dataclasses.replace(unit, skip_words=0) for unit in units])) == DOCUMENTS
    assert list(sources.documents("hf:some/books::test")) == DOCUMENTS[:7]
    assert at_hub.calls == [("some/books", "en", "train", COMMIT), ("some/books", None, "test", COMMIT)]
    assert sources.identity("hf:some/books:en") == [["hf:some/books", "en", "train", COMMIT]]
    assert f"to read this version in later runs, too, write hf:some/books@{COMMIT}:en" in caplog.text
    assert not units[0].has_changed()
    at_hub.commits.append("f" * 40)
    assert sources.identity("hf:some/books:en")[0][-1] == COMMIT, "the hub is not asked again at once"
    monkeypatch.setattr(hub, "ASK_AGAIN", 0.0)
    assert units[0].has_changed() and sources.identity("hf:some/books:en")[0][-1] == "f" * 40
    at_hub.num_bytes = None
    assert [unit.size for unit in sources.units("hf:some/books")] == [hub.SHARD_SIZE] * 5


def test_a_commit_needs_no_network(at_hub):
    at_hub.fails = True
    name = f"hf:some/books@{COMMIT}:en"
    assert sources.identity(name) == [["hf:some/books", "en", "train", COMMIT]]
    assert len(list(sources.units(name))) == 5 and at_hub.calls == [("some/books", "en", "train", COMMIT)]
    with pytest.raises(FileNotFoundError, match="gives no data set 'some/books' .Name or service.*hf:NAME@COMMIT"):
        sources.identity("hf:some/books")


def test_the_rows_are_those_of_the_same_documents_in_a_file(at_hub, tokenizer, tmp_path, monkeypatch):
    tokenizer.save(tmp_path / "tokenizer")
    lines = "".join(json.dumps({"text": document}) + "\n" for document in DOCUMENTS)
    (tmp_path / "books.jsonl").write_text(lines)
    config = DataConfig(
        source=str(tmp_path / "books.jsonl"),
        sequence_length=24,
        cache_dir=str(tmp_path / "cache"),
        tokenizer=TokenizerConfig(path=str(tmp_path / "tokenizer")),
    )
    expected = pipeline.prepare(config).facts()
    monkeypatch.setattr(text_parts, "PART_SIZE", 2_000)
    streamed = dataclasses.replace(config, source="hf:some/books:en")
    assert len(text_parts.Source(streamed, "key", lambda: "key").parts) == 3
    assert pipeline.prepare(streamed).facts() == expected
    calls = len(at_hub.calls)
    assert pipeline.prepare(streamed).facts() == expected and len(at_hub.calls) == calls  # from the cache
    assert pipeline.source_files(streamed) == {"source": [["hf:some/books:en:train", 0, f"commit {COMMIT}"]]}
    commits = iter([COMMIT] * 4)  # the branch moves while the text is read
    monkeypatch.setattr(hub.DataSet, "commit", lambda self: next(commits, "f" * 40))
    with pytest.raises(ValueError, match="were changed while they were read: run the command again"):
        pipeline.prepare(dataclasses.replace(streamed, validation_fraction=0.2))


def test_what_is_wrong_is_said(at_hub, monkeypatch):
    def read(source, field="text"):
        return list(sources.documents(source, field))

    with pytest.raises(ValueError, match=r"BuilderConfig 'de' not found. Available: \['en'\].: expected hf:NAME"):
        read("hf:some/books:de")
    with pytest.raises(ValueError, match=r'shard 1, record 1: expected the field "body", got only "id", "text"; set d'):
        read("hf:some/books", "body")
    with pytest.raises(ValueError, match='the field "id" must be a string, got int'):
        read("hf:some/books", "id")

    def broken(self):
        yield {"text": "A document."}
        raise ConnectionError("reset by peer")

    monkeypatch.setattr(Stream, "__iter__", broken)
    with pytest.raises(ValueError, match="shard 1: the record after 1 cannot be read .ConnectionError: reset by peer"):
        read("hf:some/books")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"hf:some/books needs the package datasets .*: pip install 'ag_jax\[hf\]'"):
        read("hf:some/books")
    with pytest.raises(ValueError, match="needs texts with their translations, got data.source='hf:some/books'"):
        DataConfig(source="hf:some/books", format="parallel")


@pytest.mark.filterwarnings("default")
def test_a_local_directory_with_the_package_itself(tmp_path, monkeypatch):
    pytest.importorskip("datasets", reason="needs datasets: pip install 'ag_jax[hf]'")
    for number in range(3):
        lines = "".join(json.dumps({"text": document}) + "\n" for document in DOCUMENTS[number::3])
        (tmp_path / "books").mkdir(exist_ok=True)
        (tmp_path / "books" / f"train-{number}-of-3.jsonl").write_text(lines)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    read = list(sources.documents("hf:books"))
    assert read == [document for number in range(3) for document in DOCUMENTS[number::3]]
    units = list(sources.units("hf:./books"))
    assert len(units) == 3 and not units[0].has_changed()
    names = [name for name, _ in sources.files("hf:books")]
    assert names == [f"train-{number}-of-3.jsonl:train" for number in range(3)]
    (tmp_path / "books" / "train-0-of-3.jsonl").write_text("")
    assert units[0].has_changed()
    with pytest.raises(ValueError, match="Bad split: other"):
        list(sources.documents("hf:books::other"))
    with pytest.raises(ValueError, match="the local directory books has no revisions: leave out @main"):
        hub.parse("hf:books@main")
