"""A text that is tokenised in parts, against a plain loop over its documents."""

import dataclasses
import json
import os
import pathlib
import resource
import shutil
import tracemalloc

import numpy as np
import pytest

from ag_jax.data import checksums, progress
from ag_jax.data.config import DataConfig, TokenizerConfig
from ag_jax.data.entries import Entries, unclaimed
from ag_jax.data.text import holdout, pipeline, single_source, sources, store
from ag_jax.data.text import prepare as text_parts
from ag_jax.data.text.sentences import split_sentences
from ag_jax.data.text.store import TextStore
from tests.data.conftest import text


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer):
    """130 documents in 25 files of several kinds, some of them blank or without any token; and three documents."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "many").mkdir()
    for number in range(24):
        documents = [text(70 * number + 9 * at, 70 * number + 9 * at + 2 + at) for at in range(5)]
        if number % 3 == 0:
            documents[2:2] = ["", "\u200b", " \n"]
        lines = "\n".join(json.dumps({"text": document}) for document in documents)
        (folder / "many" / f"{number:02}.jsonl").write_text(lines)
    (folder / "many" / "large.txt").write_text(text(5000, 5200))
    (folder / "few").mkdir()
    for number in range(3):
        (folder / "few" / f"{number}.txt").write_text(text(9000 + 40 * number, 9040 + 40 * number))
    tokenizer.save(folder / "tokenizer")
    return folder


@pytest.fixture
def config(folder, tmp_path):
    return DataConfig(
        source=str(folder / "many"),
        sequence_length=24,
        validation_fraction=0.3,
        cache_dir=str(tmp_path / "cache"),
        tokenizer=TokenizerConfig(path=str(folder / "tokenizer")),
    )


def stored(config):
    """Return the tokens, the ends of sentences and the ends of documents of each split, from the cache."""
    [directory] = [path for path in os.scandir(config.cache_dir) if path.name.startswith("text-")]
    found = {}
    for split in ("train", "validation"):
        store = TextStore(pathlib.Path(directory.path, split))
        found[split] = [[sentence.tolist() for sentence in store.document(n)] for n in range(len(store))]
    return found


def plainly_tokenised(config, tokenizer):
    found = {"train": [], "validation": []}
    for piece in holdout.split(config):
        sentences = [tokenizer.encode(sentence) for sentence in split_sentences(piece.text)]
        if any(sentences):
            found["validation" if piece.held_out else "train"].append([s for s in sentences if s])
    return found


def listed(monkeypatch):
    """Return a list to which every part that is written from now on is added."""
    made, write = [], text_parts.write_part

    def write_and_list(part, *rest, **more):
        made.append(part.name)
        return write(part, *rest, **more)

    monkeypatch.setattr(text_parts, "write_part", write_and_list)
    return made


CHANGES = {
    "many": {},
    "most held out": {"validation_fraction": 0.9},
    "few": {"source": "few"},
    "skipped": {"skip_words": (7,)},
    "two": {"source": "many,few", "skip_words": (3, 0)},
    "validation": {"validation_source": "few"},
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("size", [1, 3000])
def test_parts_together_are_the_whole_text(config, folder, tokenizer, monkeypatch, name, size):
    def path(value):
        return ",".join(str(folder / part) for part in value.split(","))

    changes = {key: path(value) if "source" in key else value for key, value in CHANGES[name].items()}
    chosen = dataclasses.replace(config, **changes)
    whole = pipeline.prepare(dataclasses.replace(chosen, cache_dir=config.cache_dir + "-whole"))
    monkeypatch.setattr(text_parts, "PART_SIZE", size)
    made = listed(monkeypatch)
    corpus = pipeline.prepare(chosen)
    files = {"few": 3, "two": 28, "validation": 28}.get(name, 25)
    expected = 1 if name == "few" else files if size == 1 else None
    assert len(made) == expected if expected else 5 < len(made) < 20
    assert len(set(made)) == len(made)
    assert corpus.facts() == whole.facts()
    assert stored(chosen) == plainly_tokenised(chosen, tokenizer)


def test_a_share_of_an_empty_file_alone_is_done(config, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(text_parts, "PART_SIZE", 1)
    source = shutil.copytree(folder / "many", tmp_path / "text")
    (source / "zz.jsonl").touch()
    chosen = dataclasses.replace(config, source=str(source))
    assert pipeline.prepare_part(chosen, (26, 26), unclaimed, quiet=True) == 25


def test_parts_are_consecutive_files_of_a_size(config, folder, monkeypatch):
    monkeypatch.setattr(text_parts, "PART_SIZE", 4000)
    parts = text_parts.Source(config, "key", lambda: "key").parts
    end, next_end = len(parts[0].units), len(parts[0].units) + len(parts[1].units)
    assert [unit.path for part in parts for unit in part.units] == [path for _, path in sources.files(config.source)]
    assert [part.name for part in parts[:2]] == [f"part-key-000000-{end:06}", f"part-key-{end:06}-{next_end:06}"]
    for part in parts[:-1]:
        *before, last = [unit.path.stat().st_size for unit in part.units]
        assert sum(before) < 4000 <= sum(before) + last == part.size


def test_so_many_tokens_are_held_out_at_most(config, folder, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(text_parts, "PART_SIZE", 3000)
    by_share = plainly_tokenised(config, tokenizer)

    def count(documents):
        return sum(len(sentence) for document in documents for sentence in document)

    total = count(by_share["train"]) + count(by_share["validation"])
    for number, most in enumerate((count(by_share["validation"]), 500, 1, None)):
        chosen = dataclasses.replace(config, validation_tokens=most, cache_dir=str(tmp_path / str(number)))
        chosen = dataclasses.replace(chosen, sequence_length=8)
        corpus, found = pipeline.prepare(chosen), stored(chosen)
        if number in (0, 3):
            assert found == by_share
            continue
        assert all(document in by_share["validation"] for document in found["validation"])
        longest = max(count([document]) for document in by_share["validation"])
        assert 0 < count(found["validation"]) < most + longest
        assert count(found["train"]) + count(found["validation"]) == total
        assert corpus.documents["validation"] == len(found["validation"]) > (2 if most == 500 else 0)
        both = [iter(found["train"]), iter(found["validation"])]
        kept = {str(document) for document in found["validation"]}
        for document in sources.documents(config.source):  # whole, and in the order of the source
            sentences = [tokenizer.encode(sentence) for sentence in split_sentences(document)]
            assert next(both[str(sentences) in kept]) == sentences


@pytest.mark.parametrize("source", ["few", "few/1.txt"])
def test_of_few_documents_a_smaller_share_is_held_out(config, folder, tokenizer, source):
    chosen = dataclasses.replace(config, source=str(folder / source), sequence_length=8)
    held_out = plainly_tokenised(chosen, tokenizer)["validation"]
    most = sum(len(sentence) for document in held_out for sentence in document) // 4
    chosen = dataclasses.replace(chosen, validation_tokens=most)
    pipeline.prepare(chosen)
    assert stored(chosen) == plainly_tokenised(dataclasses.replace(chosen, validation_fraction=0.3 / 4), tokenizer)


def test_a_damaged_part_is_made_again(config, tokenizer, monkeypatch, capsys):
    monkeypatch.setattr(text_parts, "PART_SIZE", 3000)
    whole = pipeline.prepare(dataclasses.replace(config, cache_dir=config.cache_dir + "-whole"))
    made = listed(monkeypatch)
    entries = Entries.of(config, free)
    source = single_source.of_config(config, tokenizer, entries)
    text_parts.tokenise([source], entries, tokenizer, print)
    assert made == [part.name for part in source.parts]
    path = entries.local / made[3] / "tokens.bin"
    path.write_bytes(path.read_bytes()[:-2] + b"\0\0")
    (entries.local / made[5] / "manifest.json").unlink()
    made.clear()
    assert pipeline.prepare(config, claim=free).facts() == whole.facts()
    assert made == [source.parts[5].name, source.parts[3].name]
    assert f"{source.parts[3].name} is damaged (the content of tokens.bin was changed): making it anew" in (
        capsys.readouterr().err
    )
    assert {path.name.split("-")[0] for path in entries.local.iterdir()} == {"text", "rows"}


def free(directory):
    """Take every piece of work, as the only process."""
    return unclaimed(directory)


def test_a_part_whose_file_changes_is_an_error(config, folder, tmp_path, monkeypatch):
    (tmp_path / "text").mkdir()
    for number in range(3):
        (tmp_path / "text" / f"{number}.txt").write_text(text(40 * number, 40 * number + 40))
    split = text_parts.split_sentences

    def change(document):
        (tmp_path / "text" / "1.txt").write_text(text(0, 50))
        return split(document)

    monkeypatch.setattr(text_parts, "split_sentences", change)
    with pytest.raises(ValueError, match=r"text/1.txt of data.source=.* were changed while they were read: run the"):
        pipeline.prepare(dataclasses.replace(config, source=str(tmp_path / "text")))


def test_progress_has_a_rate_and_the_time_left(monkeypatch):
    clock = iter([0, 5, 10, 20, 40, 100])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    lines = []
    line = progress.Progress("tokenising", 1000, "MB", lines.append, done=100)
    for done in (150, 200, 200, 300, 1000):
        line.update(done, "7 tokens")
    assert lines == [
        "tokenising: 200 of 1,000 MB, 10.0 MB a second, about 1 min left; 7 tokens",
        "tokenising: 200 of 1,000 MB, 5.0 MB a second, about 3 min left; 7 tokens",
        "tokenising: 300 of 1,000 MB, 5.0 MB a second, about 2 min left; 7 tokens",
        "tokenising: 1,000 of 1,000 MB, 9.0 MB a second, about 0 s left; 7 tokens",
    ]
    assert [progress.duration(seconds) for seconds in (59, 60, 3599, 3660, 90_000)] == [
        "59 s", "1 min", "1 h 00 min", "1 h 01 min", "25 h 00 min"
    ]  # fmt: skip


def test_long_work_says_how_far_it_is(config, monkeypatch, capsys):
    monkeypatch.setattr(progress, "EVERY", 0.0)
    monkeypatch.setattr(text_parts, "PART_SIZE", 3000)
    monkeypatch.setattr(text_parts, "ENCODED_TOGETHER", 500)
    pipeline.prepare(config, claim=free)
    pipeline.source_files(config)
    said = capsys.readouterr().err
    for what in ("tokenising", "putting the parts together", "making the train rows", "hashing the files"):
        assert f"data: {what}: " in said and "a second, about" in said
    assert "tokens in this process" in said


def test_numbers_decide_as_ever():
    """The same for arrays as for single numbers."""
    for fraction in (0.01, 0.05, 0.3, 0.9):
        one = [bool(holdout.is_held_out(number, fraction)) for number in range(300)]
        np.testing.assert_array_equal(holdout.is_held_out(np.arange(300), fraction), one)
        phase = 1.0 - 2.0 * fraction + 1e-9
        assert one == [int((n + 1) * fraction + phase) > int(n * fraction + phase) for n in range(300)]


def test_memory_does_not_grow_with_the_text(config, tmp_path, monkeypatch):
    """Except for some kB for each file, whose name, size and time are in memory."""
    monkeypatch.setattr(text_parts, "PART_SIZE", 2**15)
    monkeypatch.setattr(text_parts, "ENCODED_TOGETHER", 2**13)
    monkeypatch.setattr(store, "WRITE_BUFFER", 2**12)
    monkeypatch.setattr(store, "COPIED_TOGETHER", 2**10)
    monkeypatch.setattr(checksums, "BLOCK", 2**12)
    peaks, sizes = [], []
    for files in (8, 32):
        (tmp_path / str(files)).mkdir()
        for number in range(files):
            documents = [{"text": text(50 * at, 50 * at + 50)} for at in range(16 * number, 16 * number + 16)]
            (tmp_path / str(files) / f"{number}.jsonl").write_text("\n".join(map(json.dumps, documents)))
        chosen = dataclasses.replace(config, source=str(tmp_path / str(files)), cache_dir=str(tmp_path / f"c{files}"))
        tracemalloc.start()
        corpus = pipeline.prepare(chosen, claim=free)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        sizes.append(2 * len(corpus.train.tokens))
    assert sizes[1] > 3.5 * sizes[0]
    assert peaks[1] - peaks[0] < (sizes[1] - sizes[0]) / 4, (peaks, sizes)


def test_any_number_of_parts_needs_few_open_files(config, monkeypatch):
    monkeypatch.setattr(text_parts, "PART_SIZE", 1)
    made, limits = listed(monkeypatch), resource.getrlimit(resource.RLIMIT_NOFILE)
    pipeline.prepare(dataclasses.replace(config, cache_dir=config.cache_dir + "-before"))  # starts threads, for one
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 16, limits[1]))
    try:
        pipeline.prepare(config)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert len(made) == 2 * 25
