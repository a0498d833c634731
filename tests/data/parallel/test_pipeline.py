"""From files of pairs to batches: rows, the text of the tokenizer, other forms of files, and changes."""

import dataclasses
import gzip
import json
import os
import shutil

import numpy as np
import pytest

from ag_jax.data import packing, pipeline, tokenizers, tokens
from ag_jax.data.config import TokenizerConfig
from ag_jax.data.parallel import layout
from ag_jax.data.parallel.layout import Pairs
from ag_jax.data.store import Row
from tests.data.parallel.conftest import LENGTH, pairs


def decoded(corpus, split) -> list[tuple[str, str]]:
    """All pairs of a split, in the order of the rows."""

    def texts(stored):
        found = []
        for number in range(len(stored)):
            ends = np.flatnonzero(stored.row(number) == corpus.tokenizer.specials.end)
            assert ends[-1] == len(stored.row(number)) - 1
            found += [corpus.tokenizer.decode(text) for text in np.split(stored.row(number), ends[:-1] + 1)]
        return found

    rows = getattr(corpus, split)
    return list(zip(texts(rows.source), texts(rows.target), strict=True))


@pytest.mark.parametrize("pack", [True, False])
def test_rows_hold_every_pair_once(config, folder, pack):
    corpus = pipeline.prepare(dataclasses.replace(config, pack=pack))
    for split in ("train", "validation"):
        expected, found, rows = pairs(folder, split), decoded(corpus, split), getattr(corpus, split)
        assert sorted(found) == sorted(expected) and corpus.documents[split] == rows.target.text_count == len(expected)
        assert len(rows) < len(expected) / 2 if pack else found == expected and len(rows) == len(expected)
        assert rows.tokens[:].tolist() == rows.target.tokens[:].tolist()
        assert max(rows.source.lengths.max(), rows.target.lengths.max()) <= LENGTH


def test_packed_rows_are_packed_from_the_longest_of_each_group(config):
    packed, plain = (pipeline.prepare(dataclasses.replace(config, pack=pack)).train for pack in (True, False))
    pairs = ([Row(side.row(number)) for side in (plain.source, plain.target)] for number in range(len(plain)))
    rows = list(packing.pack(layout._sorted(pairs), 2, LENGTH))
    assert len(rows) == len(packed)
    for number, (source, target) in enumerate(rows):
        assert packed.source.row(number).tolist() == source.tokens.tolist()
        assert packed.target.row(number).tolist() == target.tokens.tolist()


@pytest.mark.parametrize(("kind", "size"), [("sentencepiece_unigram", 60), ("wordpiece", 90)])
def test_other_kinds_of_tokenizers_give_the_text_back(config, folder, kind, size, tmp_path):
    tokenizer = TokenizerConfig(kind=kind, vocabulary_size=size)
    own = dataclasses.replace(config, tokenizer=tokenizer, cache_dir=str(tmp_path))
    corpus = pipeline.prepare(own)
    assert sorted(decoded(corpus, "train")) == sorted(pairs(folder))
    batch = pipeline.Batches(corpus.train, corpus.tokenizer, own, 4, 0).at(0)
    assert (batch["target_tokens"][:, 0] == corpus.tokenizer.specials.pad).all()


def test_the_tokenizer_reads_the_training_pairs_alone(config, folder, monkeypatch, tmp_path):
    read, tokenizers_train = [], tokenizers.train

    def train(settings, texts):
        read.append(list(texts))
        assert read[-1] == list(texts), "texts are read repeatedly"
        return tokenizers_train(settings, texts)

    monkeypatch.setattr(tokenizers, "train", train)
    fresh = dataclasses.replace(config, cache_dir=str(tmp_path))
    pipeline.prepare_tokenizer(fresh)
    assert read == [[text for pair in pairs(folder) for text in pair]]
    # Without files for validation, what is held out is not read; nor is what is left out.
    chosen = {"validation_source": None, "validation_target": None, "validation_fraction": 0.3, "max_words_ratio": 1.05}
    pipeline.prepare_tokenizer(dataclasses.replace(fresh, **chosen))
    wanted = [text for pair in Pairs(dataclasses.replace(fresh, **chosen)).training_texts() for text in pair]
    assert read[1] == wanted and 0 < len(wanted) < len(read[0])


def test_of_a_large_corpus_pairs_are_taken_evenly(config, corpus, folder, monkeypatch, tmp_path):
    size = sum(len(text) for pair in pairs(folder) for text in pair)
    monkeypatch.setattr(pipeline, "TOKENIZER_TEXT", size // 4)
    read = []
    monkeypatch.setattr(tokenizers, "train", lambda _, texts: [read.extend(texts), tokenizers.load(tmp_path)][1])
    corpus.tokenizer.save(tmp_path)
    pipeline.prepare_tokenizer(dataclasses.replace(config, cache_dir=str(tmp_path / "cache")))
    taken = list(zip(read[::2], read[1::2], strict=True))
    places = [pairs(folder).index(pair) for pair in taken]
    assert abs(len(taken) - len(pairs(folder)) / 4) <= 1 and max(np.diff(places)) < 6


@pytest.mark.parametrize(
    ("changes", "is_new"),
    [
        ({"max_tokens": LENGTH}, ["rows"]),
        ({"sequence_length": 40}, ["rows"]),
        ({"pack": False, "sequence_length": 50}, ["rows"]),
        ({"max_words_ratio": 3.0}, ["rows", "text"]),
        ({"validation_source": None, "validation_target": None}, ["rows", "text"]),
        ({"tokenizer": TokenizerConfig(vocabulary_size=280)}, ["rows", "text", "tokenizer"]),
    ],
)
def test_the_cache_follows_the_settings(config, corpus, changes, is_new, tmp_path):
    shutil.copytree(config.cache_dir, tmp_path / "cache")
    before = set((tmp_path / "cache").iterdir())
    corpus.tokenizer.save(tmp_path / "tokenizer")
    own = {"tokenizer": TokenizerConfig(path=str(tmp_path / "tokenizer")), "cache_dir": str(tmp_path / "cache")}
    assert pipeline.prepare(dataclasses.replace(config, **own)).facts() == corpus.facts()
    pipeline.prepare(dataclasses.replace(config, **own | changes))
    assert sorted(path.name.split("-")[0] for path in set((tmp_path / "cache").iterdir()) - before) == is_new


def test_files_of_other_forms_are_the_same_corpus_also_read_in_small_parts(
    config, corpus, folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(tokens, "ENCODED_TOGETHER", 700)
    monkeypatch.setattr(layout, "WRITTEN_TOGETHER", 10)
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"source": source, "target": target}) + "\n" for source, target in pairs(folder))
    for number, part in enumerate((pairs(folder)[:100], pairs(folder)[100:]), 1):
        for place, side in enumerate(("source", "target")):
            (tmp_path / f"{number}.{side}").write_text("".join(f"{pair[place]}\r\n" for pair in part))
    listed = {side: f"{tmp_path}/1.{side},{tmp_path}/2.{side}" for side in ("source", "target")}
    corpus.tokenizer.save(tmp_path / "tokenizer")
    given = {"tokenizer": TokenizerConfig(path=str(tmp_path / "tokenizer")), "cache_dir": str(tmp_path / "cache")}
    for chosen in ({"source": f"{tmp_path}/a.jsonl.gz", "target": None}, listed):
        assert pipeline.prepare(dataclasses.replace(config, **given, **chosen)).facts() == corpus.facts()
    files = pipeline.source_files(dataclasses.replace(config, **given, **listed))
    assert [name for name, *_ in files["target"]] == ["1.target", "1:2.target"]
    assert [name for name, *_ in files["validation_target"]] == ["validation.target"]


def test_files_that_change_while_or_after_they_are_read(config, corpus, folder, tmp_path, monkeypatch):
    target, content = tmp_path / "target", (folder / "train.target").read_text()
    target.write_text(content)
    ours = dataclasses.replace(config, target=str(target))
    assert pipeline.prepare(ours).facts() == corpus.facts()
    before = pipeline.source_files(ours)
    target.write_text(content.replace("hundo", "hunde", 1))
    os.utime(target, ns=(0, 0))
    after = pipeline.source_files(ours)
    assert [name for name in before if before[name] != after[name]] == ["target"]
    facts = pipeline.prepare(ours).facts()
    changed = {name for name, value in corpus.facts().items() if facts[name] != value}
    assert "train checksum" in changed and "train documents" not in changed
    fresh = dataclasses.replace(ours, cache_dir=str(tmp_path / "cache"))
    pipeline.prepare_tokenizer(fresh)
    encode = Pairs.encode
    change = staticmethod(lambda *arguments: [encode(*arguments), target.write_text("other\n")][0])
    monkeypatch.setattr(Pairs, "encode", change)
    with pytest.raises(ValueError, match="data.source.*changed"):
        pipeline.prepare(fresh)
    assert not list((tmp_path / "cache").glob("text-*"))


@pytest.mark.parametrize("start", [None, 0])
def test_the_first_input_is_the_start_token(corpus, config, start):
    expected = corpus.tokenizer.specials.pad if start is None else start
    batch = pipeline.batches(corpus, config, 4, 0, start).at(2)
    empty = pipeline.empty_batch(config, 4)
    assert {name: field.shape for name, field in batch.items()} == {name: field.shape for name, field in empty.items()}
    (held_out, *_) = pipeline.validation_batches(corpus, config, 4, start=start)
    for found in (batch, held_out):
        for tokens_T, numbers_T in zip(found["target_tokens"], found["target_segment_ids"], strict=True):
            firsts = np.flatnonzero(np.diff(numbers_T, prepend=0) > 0)
            assert len(firsts) == numbers_T.max() > 1 and (tokens_T[firsts] == expected).all()
