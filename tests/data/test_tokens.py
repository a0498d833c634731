"""A text that is tokenised in parts, against a plain loop over its documents."""

import dataclasses
import json
import pathlib
import re
import tracemalloc

import numpy as np
import pytest

from ag_jax.data import checksums, layout, mapping, pipeline, progress, store, tokenizers, tokens
from ag_jax.data.cache import Cache
from ag_jax.data.config import TokenizerConfig
from ag_jax.data.records import sources
from ag_jax.data.store import TextStore
from ag_jax.data.text import documents as text_documents
from ag_jax.data.text import holdout, sequences
from ag_jax.data.text.documents import Documents
from ag_jax.data.text.sentences import split_sentences
from tests.data.conftest import json_lines, small, text, write


@pytest.fixture(scope="module")
def tokenizer() -> tokenizers.Tokenizer:
    """One that has no token for a zero-width space."""
    return tokenizers.train(TokenizerConfig(kind="wordpiece", vocabulary_size=320), [text(0, 200)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer):
    """134 documents in 11 files of several kinds, some of them blank or without any token; and three documents."""
    files = {}
    for number in range(10):
        documents = [text(70 * number + 9 * at, 70 * number + 9 * at + 2 + at % 3) for at in range(13)]
        if number % 3 == 0:
            documents[2:2] = ["", "\u200b", " \n", f"{text(70 * number, 70 * number + 1)}\n\u200b\n{text(8000, 8002)}"]
        files[f"many/{number:02}.jsonl"] = json_lines(documents)
    files |= {f"few/{number}.txt": text(9000 + 40 * number, 9040 + 40 * number) for number in range(3)}
    files["few/00.txt"] = "\u200b"
    folder = write(tmp_path_factory.mktemp("text"), files | {"many/large.txt": text(5000, 5200)})
    tokenizer.save(folder / "tokenizer")
    return folder


@pytest.fixture
def config(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    tokenizer = TokenizerConfig(path=str(folder / "tokenizer"))
    return small("many", tmp_path / "cache", validation_fraction=0.3, tokenizer=tokenizer)


def stored(config):
    """Return the tokens of the sentences of the documents of each split, from the cache."""
    [directory] = pathlib.Path(config.cache_dir).glob("text-*")
    stores = {split: TextStore(directory / split) for split in ("train", "validation")}
    return {split: [[s.tolist() for s in of.document(n)] for n in range(len(of))] for split, of in stores.items()}


def plainly_tokenised(config, tokenizer):
    """Return what `stored` returns, and the number of words of each split."""
    found, words = {"train": [], "validation": []}, {"train": 0, "validation": 0}
    for piece in holdout.split(config):
        sentences = [ids for sentence in split_sentences(piece.texts[0]) if (ids := tokenizer.encode(sentence))]
        if sentences:
            split = "validation" if piece.held_out else "train"
            found[split].append(sentences)
            words[split] += len(piece.texts[0].split())
    return found, words


def count(documents):
    return sum(len(sentence) for document in documents for sentence in document)


def listed(monkeypatch):
    """Return a list to which the first file of every part that is written from now on is added."""
    made, write = [], tokens.write_part

    def write_and_list(text, part, *rest):
        made.append(str(part.units[0].path))
        return write(text, part, *rest)

    monkeypatch.setattr(tokens, "write_part", write_and_list)
    return made


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({}, 11),
        ({"validation_fraction": 0.9}, 11),
        ({"source": "few"}, 1),
        ({"source": "many,few", "skip_words": (3, 0)}, 15),
        ({"validation_source": "few"}, 15),
    ],
)
def test_parts_together_are_the_whole_text(config, tokenizer, monkeypatch, capsys, changes, parts):
    chosen = dataclasses.replace(config, **changes)
    expected, words = plainly_tokenised(chosen, tokenizer)
    monkeypatch.setattr(progress, "EVERY", 0.0)
    for size in (1, 3000):
        monkeypatch.setattr(layout, "PART_SIZE", size)
        chosen = dataclasses.replace(chosen, cache_dir=f"{config.cache_dir}-{size}")
        with monkeypatch.context() as patch:
            made, corpus = listed(patch), pipeline.prepare(chosen)
        assert len(set(made)) == len(made) and (len(made) == parts if size == 1 else len(made) <= max(1, parts - 3))
        assert stored(chosen) == expected and corpus.words == words
        sizes = {split: count(documents) for split, documents in expected.items()}
        share = f"{sizes['validation'] / sum(sizes.values()):.1%}"
        said = f"for validation {sizes['validation']:,} tokens of {len(expected['validation'])} documents, {share}"
        printed = capsys.readouterr().err
        for line in (said, "tokenising: ", "putting the parts together: ", "making the train rows: "):
            assert line in printed
        for split, documents in expected.items():
            assert corpus.documents[split] == len(documents)
            assert corpus.sources[0][split]["tokens"] == sizes[split]


def test_parts_are_consecutive_files_of_a_size(config, monkeypatch, tokenizer):
    def parts():
        return Documents(config, Cache.of(config)).parts()

    monkeypatch.setattr(layout, "PART_SIZE", 7000)
    found, ends = parts(), np.cumsum([len(part.units) for part in parts()]).tolist()
    assert [unit.path for part in found for unit in part.units] == [path for _, path in sources.files(config.source)]
    names = list(tokens.Text(Documents(config, Cache.of(config)), tokenizer, "key").parts)
    assert names[:2] == [f"part-key-000000-{ends[0]:06}", f"part-key-{ends[0]:06}-{ends[1]:06}"]
    for part in found[:-1]:
        *before, last = [unit.path.stat().st_size for unit in part.units]
        assert sum(before) < 7000 <= sum(before) + last == part.size
    monkeypatch.setattr(layout, "PART_SIZE", found[0].size)
    assert len(parts()[0].units) == len(found[0].units)


def test_so_many_tokens_are_held_out_at_most(config, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(layout, "PART_SIZE", 20_000)
    config = dataclasses.replace(config, sequence_length=8)
    by_share = plainly_tokenised(config, tokenizer)[0]
    held_out = by_share["validation"]
    plain = [
        [ids for sentence in split_sentences(text) if (ids := tokenizer.encode(sentence))]
        for text in sources.documents(config.source)
    ]
    for most in (count(held_out), 500, 1, None):
        chosen = dataclasses.replace(config, validation_tokens=most, cache_dir=str(tmp_path / str(most)))
        corpus, found = pipeline.prepare(chosen), stored(chosen)
        share = 1 if most is None else max(most / count(held_out), 1 / len(held_out))
        # Whole documents, in the order of the source, evenly of those that the share holds out.
        kept = holdout.is_held_out(np.arange(len(held_out)), share) | (share >= 1)
        expected = [document for document, is_kept in zip(held_out, kept, strict=True) if is_kept]
        assert found["validation"] == expected and corpus.documents["validation"] == len(expected) > 0
        names = set(map(str, expected))
        assert found["train"] == [document for document in plain if any(document) and str(document) not in names]
    chosen = dataclasses.replace(config, source="few")
    most = count(plainly_tokenised(chosen, tokenizer)[0]["validation"]) // 4
    chosen = dataclasses.replace(chosen, validation_tokens=most)
    pipeline.prepare(chosen)  # of few documents a smaller share
    assert stored(chosen) == plainly_tokenised(dataclasses.replace(chosen, validation_fraction=0.3 / 4), tokenizer)[0]


def test_several_processes_of_this_machine_make_the_same(config, monkeypatch, tmp_path):
    records = ({"words": text(number, number + 9).split(), "link": [0, 3, *[1] * 4]} for number in range(30))
    lines = (json.dumps({**record, "link": (record["link"] * 20)[: len(record["words"])]}) for record in records)
    write(tmp_path, {"annotated.jsonl": "\n".join(lines)})
    config = dataclasses.replace(config, source=f"many,{tmp_path}/annotated.jsonl", pointers=("link",))
    facts = pipeline.prepare(dataclasses.replace(config, format="segment_pair_nsp")).facts()
    assert facts["train link pointers out of their row"]
    monkeypatch.setattr(tokens, "IN_PROCESSES", 0)
    monkeypatch.setattr(tokens, "ENCODED_TOGETHER", 500)
    monkeypatch.setattr(sequences, "DOCUMENTS_TOGETHER", 8)
    monkeypatch.setattr(mapping, "cores", lambda: 2)
    other = dataclasses.replace(config, format="segment_pair_nsp", cache_dir=f"{config.cache_dir}-other")
    assert pipeline.prepare(other).facts() == facts


@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("is_listed", [True, False])
def test_a_file_that_changes_while_or_before_it_is_read_is_an_error(config, tmp_path, monkeypatch, files, is_listed):
    write(tmp_path / "text", {f"{number}.txt": text(40 * number, 40 * number + 40) for number in range(files)})
    last = tmp_path / "text" / f"{files - 1}.txt"
    place, name = (text_documents, "split_sentences") if is_listed else (sources, "units")
    function, calls = getattr(place, name), []

    def change_once(*given):
        if not calls:
            last.write_text(text(0, 50))
        calls.append(given)
        return function(*given)

    monkeypatch.setattr(place, name, change_once)
    with pytest.raises(ValueError, match=f"{last.name} .*changed" if is_listed else "changed"):
        pipeline.prepare(dataclasses.replace(config, source=str(tmp_path / "text")))
    assert not list(pathlib.Path(config.cache_dir).glob("text-*"))


@pytest.mark.parametrize("of_tokenizer", [True, False])
def test_a_file_that_comes_and_goes_leaves_nothing_in_the_cache(config, tmp_path, monkeypatch, of_tokenizer):
    write(tmp_path / "text", {"a.txt": text(0, 90)})
    config = dataclasses.replace(config, source=str(tmp_path / "text"))
    if of_tokenizer:
        config = dataclasses.replace(config, tokenizer=TokenizerConfig(vocabulary_size=300))
    expected = pipeline.prepare(dataclasses.replace(config, cache_dir=f"{config.cache_dir}-other")).facts()
    place, name = (pipeline, "_tokenizer_shares") if of_tokenizer else (tokens, "_together")
    function, other = getattr(place, name), tmp_path / "text" / "b.txt"

    def change_before(*given):
        other.write_text(text(100, 190))
        return function(*given)

    with monkeypatch.context() as patch, pytest.raises(ValueError, match="changed"):
        patch.setattr(place, name, change_before)
        pipeline.prepare(config)
    other.unlink()
    assert pipeline.prepare(config).facts() == expected


def test_progress_has_a_rate_and_the_time_left(monkeypatch):
    clock = iter([0, 5, 10, 20, 40, 100, 110])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    lines = []
    line = progress.Progress("tokenising", 1000, "MB", lines.append, done=100)
    for done in (150, 200, 200, 300, 1000, 100):
        line.update(done, "7 tokens")
    left = ["about 1 min left", "about 3 min left", "about 2 min left", "about 0 s left", "time left unknown"]
    assert lines == [
        f"tokenising: {done:,} of 1,000 MB, {rate} MB a second, {text}; 7 tokens"
        for done, rate, text in zip((200, 200, 300, 1000, 100), (10.0, 5.0, 5.0, 9.0, 0.0), left, strict=True)
    ]
    durations = {59: "59 s", 60: "1 min", 3599: "1 h 00 min", 3660: "1 h 01 min", 90_000: "25 h 00 min", -1: "0 s"}
    assert {seconds: progress.duration(seconds) for seconds in durations} == durations


@pytest.mark.exhaustive
def test_memory_does_not_grow_with_the_text(config, tmp_path, monkeypatch):
    """Except for some kB for each file, whose name, size and time are in memory."""
    buffers = {(layout, "PART_SIZE"): 15, (tokens, "ENCODED_TOGETHER"): 13, (store, "WRITE_BUFFER"): 12}
    buffers |= {(sequences, "SENTENCES_TOGETHER"): 8}
    for (module, name), bits in (buffers | {(store, "COPIED_TOGETHER"): 10, (checksums, "BLOCK"): 12}).items():
        monkeypatch.setattr(module, name, 2**bits)
    peaks, sizes = [], []
    for files in (8, 32):
        for number in range(files):
            documents = json_lines(text(50 * at, 50 * at + 50) for at in range(16 * number, 16 * number + 16))
            write(tmp_path / str(files), {f"{number}.jsonl": documents})
        chosen = dataclasses.replace(config, source=str(tmp_path / str(files)), cache_dir=str(tmp_path / f"c{files}"))
        tracemalloc.start()
        corpus = pipeline.prepare(chosen)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        sizes.append(2 * len(corpus.train.tokens))
    assert sizes[1] > 3.5 * sizes[0]
    assert peaks[1] - peaks[0] < (sizes[1] - sizes[0]) / 4, (peaks, sizes)


@pytest.mark.parametrize("quiet", [False, True])
def test_progress_on_a_terminal_is_a_bar(monkeypatch, capsys, quiet):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    with progress.Progress("tokenising", 1000, "MB", progress.announcer(quiet)) as line:
        line.update(500)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    assert shown == "" if quiet else re.search("data: tokenising .* 500/1000 MB, ", shown)
