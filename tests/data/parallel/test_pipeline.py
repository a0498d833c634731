"""From files of pairs to batches: the cache, the tokenizer's text, the order, and what changes are noticed."""

import dataclasses
import gzip
import json
import os

import numpy as np
import pytest

from ag_jax.data import cache, randomness, tokenizers
from ag_jax.data.config import TokenizerConfig
from ag_jax.data.parallel import pipeline, selection
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
        assert sorted(found) == sorted(expected) and corpus.documents[split] == rows.pair_count == len(expected)
        assert len(rows) < len(expected) / 2 if pack else found == expected and len(rows) == len(expected)
        assert rows.tokens[:].tolist() == rows.target.tokens[:].tolist()
        assert max(rows.source.lengths.max(), rows.target.lengths.max()) <= LENGTH
        rates = {side: len(getattr(rows, side).tokens) / (len(rows) * LENGTH) for side in ("source", "target")}
        assert rows.fill_rates(LENGTH) == pytest.approx(rates)


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
    found = selection.select(dataclasses.replace(fresh, **chosen))
    wanted = [text for one in found if one.split == "train" and not one.left_out for text in one.pair]
    assert read[1] == wanted and 0 < len(wanted) < len(read[0])


@pytest.mark.parametrize(("name", "size"), [("TOKENIZER_PAIRS", 50), ("TOKENIZER_TEXT", 2000)])
def test_of_a_large_corpus_every_part_has_its_share(config, folder, monkeypatch, name, size):
    monkeypatch.setattr(pipeline, name, size)
    texts = [text for pair in pairs(folder) for text in pair]
    stride = -(-(len(texts) // 2 if name == "TOKENIZER_PAIRS" else sum(map(len, texts))) // size)
    expected = [text for pair in pairs(folder)[::stride] for text in pair]
    assert stride > 3 and list(pipeline._TokenizerText(config)) == expected


def test_the_second_time_nothing_is_made(config, corpus, monkeypatch, tmp_path):
    corpus.tokenizer.save(tmp_path)
    own = dataclasses.replace(config, tokenizer=TokenizerConfig(path=str(tmp_path)))  # as a resumed run has it

    def fail(*_, **__):
        raise AssertionError("made again")

    for module, name in ((tokenizers, "train"), (pipeline, "_write_rows"), (pipeline, "_write_text")):
        monkeypatch.setattr(module, name, fail)
    assert pipeline.prepare(config).facts() == pipeline.prepare(own).facts() == corpus.facts()
    pipeline.prepare(dataclasses.replace(config, max_tokens=LENGTH))  # the same limit
    for changes in (
        {"sequence_length": 40},
        {"pack": False, "sequence_length": 50},
        {"max_tokens": 20},
        {"max_words_ratio": 3.0},
        {"tokenizer": TokenizerConfig(vocabulary_size=280)},
        {"source": config.target, "target": config.source},
        {"validation_source": None, "validation_target": None},
    ):
        with pytest.raises(AssertionError, match="made again"):
            pipeline.prepare(dataclasses.replace(own, **changes))
    monkeypatch.undo()
    monkeypatch.setattr(pipeline, "_write_text", fail)  # tokens are shared by rows of other lengths
    longer = pipeline.prepare(dataclasses.replace(config, sequence_length=60))
    assert len(longer.train) < len(corpus.train) and longer.documents == corpus.documents
    # A tokenizer without an end token.
    (tmp_path / "checksum.json").unlink()
    content = (tmp_path / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(content.replace("</s>", "<e>"))
    with pytest.raises(ValueError, match="end token.*</s>"):
        pipeline.prepare(own)


def test_files_of_other_forms_are_the_same_corpus_also_read_in_small_parts(
    config, corpus, folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(pipeline, "ENCODED_TOGETHER", 700)
    monkeypatch.setattr(pipeline, "READ_TOGETHER", 10)
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
    select, fresh = selection.select, dataclasses.replace(ours, cache_dir=str(tmp_path / "cache"))

    def changing(config):
        yield from select(config)
        target.write_text("another text\n")

    pipeline.prepare_tokenizer(fresh)
    monkeypatch.setattr(selection, "select", changing)
    with pytest.raises(ValueError, match="data.source.*changed"):
        pipeline.prepare(fresh)
    assert not list((tmp_path / "cache").glob("text-*"))


def test_damage_in_the_cache_is_noticed(config, tmp_path, capsys, monkeypatch):
    ours = dataclasses.replace(config, cache_dir=str(tmp_path))
    expected, files = pipeline.prepare(ours).facts(), pipeline.source_files(ours)
    for pattern in ("rows-*/train/target/tokens.bin", "rows-*/counts.json", "files-*/files.json"):
        [path] = tmp_path.glob(pattern)
        content = path.read_bytes()
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 8]) + content[middle + 1 :])
        capsys.readouterr()
        assert pipeline.prepare(ours).facts() == expected and pipeline.source_files(ours) == files
        assert path.name in capsys.readouterr().err and path.read_bytes() == content
    monkeypatch.setattr(cache, "READ_WHOLE", 0)  # large files are compared as they are read
    [path] = tmp_path.glob("rows-*/train/target/tokens.bin")
    path.write_bytes(path.read_bytes()[:-2] + b"\0\0")
    corpus = pipeline.prepare(ours)
    with pytest.raises(ValueError, match="train/target/tokens.bin"):
        pipeline.Batches(corpus.train, corpus.tokenizer, ours, len(corpus.train), 0).at(0)


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def test_the_order_is_a_function_of_seed_and_step(corpus, config):
    """Row i of step s is number s * 8 + i of the permutations of the epochs; also when resumed, and on two hosts."""
    count = len(corpus.train)
    with pytest.raises(ValueError, match=f"{count} .*500.*training"):
        pipeline.Batches(corpus.train, corpus.tokenizer, config, 500, 0)
    batches = pipeline.Batches(corpus.train, corpus.tokenizer, config, 8, seed=3)
    assert count % 8, "the border of the epochs is meant to fall into a batch"
    orders = [randomness.permutation(count, 3, epoch) for epoch in range(3)]
    assert not np.array_equal(orders[0], orders[1])
    drawn = np.concatenate(orders)[: 2 * count // 8 * 8]
    for step, examples in enumerate(drawn.reshape(-1, 8)):
        batch = batches.at(step)
        for row, example in enumerate(examples):
            for name, side in (("tokens", corpus.train.source), ("target_labels", corpus.train.target)):
                stored = side.row(int(example))
                assert batch[name][row][: len(stored)].tolist() == stored.tolist()
    expected = [batches.at(step) for step in range(4, 11)]
    for threads in (1, 3):
        for one, other in zip(batches.iterate(4, 11, threads=threads), expected, strict=True):
            assert_equal(one, other)
    halves = [list(batches.iterate(4, 11, rows=lambda _, rows=rows: rows)) for rows in (slice(0, 3), np.arange(3, 8))]
    for whole, first, second in zip(expected, *halves, strict=True):
        assert_equal(whole, {name: np.concatenate([first[name], second[name]]) for name in whole})


@pytest.mark.parametrize("start", [None, 0])
def test_the_first_input_is_the_start_token(corpus, config, start):
    expected = corpus.tokenizer.specials.pad if start is None else start
    batch = pipeline.Batches(corpus.train, corpus.tokenizer, config, 4, 0, start).at(2)
    (held_out, *_) = pipeline.validation_batches(corpus, config, 4, start=start)
    for found in (batch, held_out):
        for tokens_T, numbers_T in zip(found["target_tokens"], found["target_segment_ids"], strict=True):
            firsts = np.flatnonzero(np.diff(numbers_T, prepend=0) > 0)
            assert len(firsts) == numbers_T.max() > 1 and (tokens_T[firsts] == expected).all()


def test_validation_has_every_row_once(corpus, config):
    count, size = len(corpus.validation), 7
    assert count % size, "the last batch is meant to be filled up"
    made = list(pipeline.validation_batches(corpus, config, size))
    [whole] = pipeline.validation_batches(corpus, config, count)
    assert len(made) == -(-count // size)
    for name, field in whole.items():
        np.testing.assert_array_equal(np.concatenate([batch[name] for batch in made])[:count], field)
        assert all(batch[name].shape == (size, LENGTH) for batch in made)
    assert not made[-1]["target_weights"][count % size :].any() and not made[-1]["segment_ids"][count % size :].any()
    assert whole["target_weights"].sum() == len(corpus.validation.tokens)
    for one, part in zip(made, pipeline.validation_batches(corpus, config, size, np.array([2, 0])), strict=True):
        assert_equal({name: field[[2, 0]] for name, field in one.items()}, part)
    [fewer] = pipeline.validation_batches(corpus, config, size, most=3)
    assert (fewer["target_weights"].sum(axis=1) > 0).sum() == 3
