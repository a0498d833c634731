"""Entries of the cache in an object store, and machines that read them there."""

import contextlib
import dataclasses
import pathlib
import shutil

import numpy as np
import pytest
from etils import epath

from ag_jax import interruption
from ag_jax.data import entries as cache_entries
from ag_jax.data.config import DataConfig, TokenizerConfig
from ag_jax.data.entries import Entries
from ag_jax.data.text import pipeline, single_source
from ag_jax.data.text import prepare as text_parts
from ag_jax.distributed import lock
from tests.data.conftest import text


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A function that moves this process to a machine with another disk, and returns the folder of its cache."""

    def move(name: str) -> pathlib.Path:
        monkeypatch.setenv("AG_JAX_CACHE", str(tmp_path / name))
        return tmp_path / name

    return move


@pytest.fixture
def config(tmp_path, monkeypatch):
    (tmp_path / "text").mkdir()
    for number in range(105):
        (tmp_path / "text" / f"{number:03}.txt").write_text(text(7 * number, 7 * number + 7))
    monkeypatch.setattr(text_parts, "PART_SIZE", 5000)
    return DataConfig(
        source=str(tmp_path / "text"),
        sequence_length=24,
        cache_dir="gs://bucket/cache",
        tokenizer=TokenizerConfig(vocabulary_size=300),
    )


def kinds(directory) -> set[str]:
    return {path.name.split("-")[0] for path in directory.iterdir()}


def test_what_one_machine_prepares_others_read_without_the_text(config, bucket, machine, monkeypatch, tmp_path, caplog):
    first = machine("first")
    on_disk = pipeline.prepare(dataclasses.replace(config, cache_dir=str(tmp_path / "disk")))
    corpus, files = pipeline.prepare(config, claim=lock.Claims()), pipeline.source_files(config)
    assert corpus.facts() == on_disk.facts()
    stored = epath.Path(config.cache_dir)
    assert kinds(stored) == {"tokenizer", "text", "rows", "files", "source"} and kinds(first) <= kinds(stored)
    [rows] = [manifest.parent for manifest in stored.glob("rows-*/manifest.json")]
    for path in (tmp_path / "disk").glob("rows-*/*/*.bin"):
        assert (rows / path.parent.name / path.name).read_bytes() == path.read_bytes()

    (tmp_path / "text").rename(tmp_path / "gone")
    second, writes = machine("second"), len(bucket.written)
    monkeypatch.setattr(text_parts, "write_text", None)
    again = pipeline.prepare(config, claim=lock.Claims())
    assert again.facts() == corpus.facts() and again.sources == corpus.sources
    assert pipeline.source_files(config) == files and len(bucket.written) == writes
    assert kinds(second) == {"tokenizer", "rows", "files"}, "the token ids, which only rows are made of, stay there"
    np.testing.assert_array_equal(again.train.tokens[:], on_disk.train.tokens[:])
    assert "is not on this machine: taking what was prepared of it in gs://bucket/cache" in caplog.text
    assert pipeline.prepare(config).facts() == corpus.facts() and len(bucket.written) == writes
    with pytest.raises(FileNotFoundError, match="text' does not exist"):
        pipeline.prepare(dataclasses.replace(config, cache_dir="gs://bucket/another"))
    changed = dataclasses.replace(config, validation_fraction=0.2)
    with pytest.raises(FileNotFoundError, match="text' does not exist"):
        pipeline.prepare(changed)


def test_texts_of_one_relative_name_are_told_apart(bucket, machine, tmp_path, monkeypatch):
    """Two folders `a` and `b` have a `text` each; other machines lack both."""
    entries = Entries(machine("disk"), epath.Path("gs://bucket/cache"))
    relative, identities = DataConfig(source="text"), {}

    def move(folder, has_text):
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        if has_text:
            (tmp_path / folder / "text").write_text(folder)
            single_source.remember(relative, entries)
            identities[folder] = single_source.identity(entries, "text")
            (tmp_path / folder / "text").unlink()

    move("a", True)
    move("worker", False)
    assert single_source.identity(entries, "text") == identities["a"]
    single_source.remember(relative, entries)  # as after every preparation: this machine has nothing to tell
    move("b", True)
    for folder in ("a", "b"):
        move(folder, False)
        assert single_source.identity(entries, "text") == identities[folder] and folder in identities[folder][0][0]
    move("worker", False)
    with pytest.raises(ValueError, match=r"several texts: expected the absolute path .*/(a|b)/text or .*/(a|b)/text$"):
        single_source.identity(entries, "text")
    assert single_source.identity(entries, f"{tmp_path}/b/text") == identities["b"]


def test_parts_of_several_machines_meet_in_the_store(config, bucket, machine, monkeypatch):
    made, write = [], text_parts.write_part

    def write_and_list(part, *rest):
        made.append(part.name)
        return write(part, *rest)

    monkeypatch.setattr(text_parts, "write_part", write_and_list)
    left = []
    for number in (1, 2, 3):
        machine(f"machine{number}")
        left.append(pipeline.prepare_part(config, (number, 3), lock.Claims()))
    assert left[0] > left[1] > left[2] == 0 and len(made) == len(set(made)) == left[0] * 3 / 2
    machine("machine4")
    corpus = pipeline.prepare(config, claim=lock.Claims())
    assert len(made) == left[0] * 3 / 2, "parts are fetched, not made again"
    assert not [path for path in epath.Path(config.cache_dir).iterdir() if path.name.startswith("part-")]
    machine("machine5")
    alone = pipeline.prepare(dataclasses.replace(config, cache_dir=None))
    assert corpus.facts() == alone.facts()


def test_damage_in_the_store_is_noticed_by_the_next_machine(config, bucket, machine):
    machine("first")
    corpus = pipeline.prepare(config)
    [path] = epath.Path(config.cache_dir).glob("rows-*/train/tokens.bin")
    content = path.read_bytes()
    for damaged in (content[:-1] + bytes([content[-1] ^ 1]), content[:-2]):
        path.write_bytes(damaged)
        shutil.rmtree(machine("second"), ignore_errors=True)
        with pytest.raises(ValueError, match=r"rows-\w+: the content of train/tokens.bin was changed; delete"):
            pipeline.prepare(config)
        assert path.read_bytes() == damaged, "other machines may be reading it"
    path.parent.parent.rmtree()
    assert pipeline.prepare(config).facts() == corpus.facts() and path.read_bytes() == content


def test_a_wrong_copy_of_an_entry_is_copied_again(config, bucket, machine, monkeypatch):
    machine("first")
    corpus, honest, wrong = pipeline.prepare(config), cache_entries._copy, []

    def copy(source, target):
        honest(source, target)
        if target.name == "tokens.bin" and not wrong:
            wrong.append(target.write_bytes(bytes(8)))

    machine("second")
    monkeypatch.setattr(cache_entries, "_copy", copy)
    assert pipeline.prepare(config).facts() == corpus.facts() and wrong


def test_an_upload_that_was_cut_off_is_repeated(config, bucket, machine):
    machine("first")
    corpus = pipeline.prepare(config)
    [manifest] = epath.Path(config.cache_dir).glob("rows-*/manifest.json")
    manifest.unlink()
    assert pipeline.prepare(config).facts() == corpus.facts() and manifest.exists()


@pytest.mark.parametrize(
    ("cache_dir", "environment", "local", "remote"),
    [
        ("/a", "/b", "/a", None),
        ("/a", "gs://b", "/a", None),
        ("gs://a", "/b", "/b", "gs://a"),
        (None, "/b", "/b", None),
        (None, "gs://b", "~/.cache/ag_jax", "gs://b"),
        ("gs://a", None, "~/.cache/ag_jax", "gs://a"),
        (None, None, "~/.cache/ag_jax", None),
    ],
)
def test_where_entries_are(cache_dir, environment, local, remote, monkeypatch, bucket):
    monkeypatch.delenv("AG_JAX_CACHE", raising=False)
    if environment:
        monkeypatch.setenv("AG_JAX_CACHE", environment)
    found = Entries.of(DataConfig(cache_dir=cache_dir))
    assert found.local == pathlib.Path(local).expanduser()
    assert found.remote == (None if remote is None else epath.Path(remote))


def test_one_process_of_a_machine_copies_an_entry(tmp_path, bucket, monkeypatch, capsys):
    """While this process waits, another one of the machine, which has the claim, copies the entry."""
    remote, claimed, copied = epath.Path("gs://bucket/cache"), [], []
    Entries(tmp_path / "first", remote).open("rows", lambda directory: (directory / "file").write_text("content"))
    fetch = cache_entries._fetch
    monkeypatch.setattr(cache_entries, "_fetch", lambda *places: [copied.append(places), fetch(*places)])
    monkeypatch.setattr(cache_entries, "LOOK_EVERY", 0.01)

    @contextlib.contextmanager
    def claim(path):
        claimed.append(path)
        yield False
        if len(claimed) == 2:
            Entries(tmp_path / "second", remote).open("rows", None)

    found = Entries(tmp_path / "second", remote, claim).open("rows", None)
    assert (found.path / "file").read_text() == "content"
    assert len(copied) == 1 and claimed == [epath.Path(tmp_path / "second" / "rows.lock")] * 2
    assert capsys.readouterr().err == "data: waiting for rows, which another process is making\n"


def test_parts_that_a_running_process_writes_are_not_removed(tmp_path):
    source = text_parts.Source(DataConfig(), "key", lambda: "key")
    done, left, running = (f"part-key-{start:06}-{start + 2:06}" for start in (0, 2, 4))
    for name in (done, f"{left}.partial-ab", f"{left}.lock", f"{running}.partial-cd", "part-keys-000000-000002"):
        (tmp_path / name).mkdir()
    with lock.Claims()(epath.Path(tmp_path / f"{running}.lock")):
        text_parts.remove_parts(source, Entries(tmp_path, claim=lock.Claims()))
        kept = {f"{running}.partial-cd", f"{running}.lock", "part-keys-000000-000002"}
        assert {path.name for path in tmp_path.iterdir()} == kept
    text_parts.remove_parts(source, Entries(tmp_path, claim=lock.Claims()))
    assert [path.name for path in tmp_path.iterdir()] == ["part-keys-000000-000002"]


@pytest.mark.parametrize("at_once", [False, True], ids=["open", "make_all"])
def test_a_process_that_claims_an_entry_deletes_what_a_killed_one_left_of_it(tmp_path, at_once):
    left, of_another = tmp_path / "text-ab.partial-01", tmp_path / "text-abc.partial-02"
    for path in (left, of_another):
        path.mkdir()
        (path / "tokens.bin").write_bytes(b"half")
    found = []

    def write(directory):
        found.append(left.exists())
        (directory / "file").write_text("content")

    entries = Entries(tmp_path, claim=lock.Claims())
    if at_once:
        entries.make_all({"text-ab": write}, lambda: False, lambda: None)
    entries.open("text-ab", write)
    assert found == [False] and of_another.exists()
    # Without claims, a process on another machine may be writing it.
    Entries(tmp_path).open("text-abc", write)
    assert of_another.exists()


def test_what_a_process_without_claims_is_writing_is_not_deleted(tmp_path):
    def write(directory):
        (directory / "file").write_text("content")

    def meanwhile(directory):
        write(directory)
        Entries(tmp_path, claim=lock.Claims()).open("text", write)
        assert (directory / "file").exists()

    assert (Entries(tmp_path).open("text", meanwhile).path / "file").read_text() == "content"
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


class Held:
    """A claim that is held until a list is no longer empty."""

    def __init__(self, lost):
        self._lost = lost

    def __bool__(self):
        return not self._lost


@pytest.mark.parametrize("at_once", [False, True], ids=["open", "make_all"])
def test_work_that_another_process_takes_over_is_left_to_it(tmp_path, at_once):
    """The claim of `part` is lost in the middle of it."""
    written = []

    @contextlib.contextmanager
    def claim(path):
        yield Held(written)
        Entries(tmp_path).open("part", lambda directory: (directory / "file").write_text("of the other"))

    def part(directory):
        written.append(directory)
        (directory / "file").write_text("half")
        interruption.check()
        written.append("to its end")

    entries = Entries(tmp_path, claim=claim)
    if at_once:
        entries.make_all({"part": part}, lambda: False, lambda: None)
    assert (entries.open("part", part).path / "file").read_text() == "of the other"
    assert len(written) == 1 and not written[0].exists()


def test_work_ends_if_the_whole_of_which_it_is_a_part_is_taken_over(tmp_path):
    lost = []

    @contextlib.contextmanager
    def claim(path):
        if path.name == "part.lock":
            yield True
            return
        yield Held(lost)
        Entries(tmp_path).open("whole", lambda directory: (directory / "file").write_text("of the other"))

    def part(directory):
        lost.append(directory)
        interruption.check()

    entries = Entries(tmp_path, claim=claim)
    made = entries.open("whole", lambda directory: entries.open("part", part))
    assert (made.path / "file").read_text() == "of the other"
    assert len(lost) == 1 and not entries.is_complete("part")


def test_what_another_process_makes_before_the_claim_is_not_made_again(tmp_path):
    entries, made, over = Entries(tmp_path), [], [False]

    def write(directory):
        made.append(directory.name.split(".")[0])
        (directory / "file").write_text("content")

    @contextlib.contextmanager
    def claim(path):
        if not made:  # another process, which ends just before this one takes the claim
            Entries(tmp_path).open("part", write)
        yield True

    def is_over():
        answer, over[0] = over[0], True  # as soon as this process has looked, the others remove the part
        entries.remove("part")
        return answer

    dataclasses.replace(entries, claim=claim).make_all({"part": write}, is_over, lambda: None)
    assert made == ["part"]
