"""Mixtures of sources: shares and order against a loop over single rows, rows against those of each source alone."""

import dataclasses
import fractions
import math
import os
import re

import numpy as np
import pytest

from ag_jax.data import pipeline, randomness, tokenizers, tokens
from ag_jax.data.cache import Cache
from ag_jax.data.config import DataConfig, MaskingConfig, TokenizerConfig
from ag_jax.data.records import files, sources
from ag_jax.data.text import mixture
from tests.data.conftest import json_lines, small, text, write


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three sources of different sizes: a document, many documents, a few."""
    many = json_lines(text(1000 + 7 * number, 1007 + 7 * number) for number in range(120))
    few = {f"few/{number}.txt": text(3000 + 40 * number, 3040 + 40 * number) for number in range(3)}
    return write(tmp_path_factory.mktemp("sources"), {"one.txt": text(0, 130), "many.jsonl": many} | few)


@pytest.fixture(scope="module")
def config(folder, tmp_path_factory):
    source = f"{folder}/one.txt:1,{folder}/many.jsonl:0.5,{folder}/few:2.5"
    return small(source, tmp_path_factory.mktemp("cache"), validation_fraction=0.2)


@pytest.fixture(scope="module")
def corpus(config):
    return pipeline.prepare(config)


@pytest.fixture(scope="module")
def alone(config, corpus, folder, tmp_path_factory):
    """The corpus of each source alone, with the tokenizer of the mixture."""
    saved = tmp_path_factory.mktemp("tokenizer") / "tokenizer"
    corpus.tokenizer.save(saved)
    chosen = dataclasses.replace(config, tokenizer=TokenizerConfig(path=str(saved)))
    names = ("one.txt", "many.jsonl", "few")
    return [pipeline.prepare(dataclasses.replace(chosen, source=f"{folder}/{name}")) for name in names]


def plainly_assigned(number, weights, first=0):
    """(source, number of earlier rows of this source) of a row, by a recursive division in whole fractions."""
    if first == len(weights) - 1:
        return first, number
    share = fractions.Fraction(round(weights[first] / sum(weights[first:]) * 2**24), 2**24)
    taken = [math.floor(n * share + fractions.Fraction(1, 2)) for n in (number, number + 1)]
    return (first, taken[0]) if taken[1] > taken[0] else plainly_assigned(number - taken[0], weights, first + 1)


@pytest.mark.parametrize("weights", [(1, 1), (1, 0.5, 2.5), (0.01, 0.9, 0.09), (3, 1, 4, 1, 5, 9), (1,)])
def test_each_source_has_its_share_of_the_rows_so_far(weights):
    """Includes a place far into a long training, with numbers that exceed 32 bits."""
    shares = np.array(weights) / sum(weights)
    for first in (0, 10**11):
        number_B = first + np.arange(999)
        found = list(zip(*mixture.assign(number_B, shares), strict=True))
        assert found == [plainly_assigned(number, weights) for number in number_B.tolist()]
        seen = np.zeros(len(weights))
        for number, (source, place) in enumerate(found, 1):
            seen[source] += 1
            assert abs(seen - number * shares).max() < (1.01 if len(weights) < 4 else 2) + (first > 0)
            assert abs(place - (first + number) * shares[source]) < 2 + 2**-23 * first


def test_batches_are_the_rows_of_the_sources_in_an_order_of_the_step(corpus, config, alone):
    sizes = [len(one.train) for one in alone]
    assert len(set(sizes)) == 3
    batch_size, seed = 7, 11
    expected = []  # (row in the corpus, epoch) of the first rows
    for number in range(60 * batch_size):
        source, drawn = plainly_assigned(number, (1, 0.5, 2.5))
        epoch, place = divmod(drawn, sizes[source])
        order = randomness.permutation(sizes[source], seed, epoch, source)
        expected.append((sum(sizes[:source]) + int(order[place]), epoch))
    assert max(epoch for row, epoch in expected) > 1, "a source is meant to begin anew"
    rows = [one.train.row(number) for one in alone for number in range(len(one.train))]
    batches = pipeline.Batches(corpus.train, corpus.tokenizer, config, batch_size, seed)
    for step in (59, 0, 27):  # in no order
        batch, part = batches.at(step), batches.at(step, np.array([5, 2]))
        mine = expected[step * batch_size : (step + 1) * batch_size]
        example_B, epoch_B = mixture.drawn(corpus.train, step * batch_size + np.arange(batch_size), seed)
        assert list(zip(example_B.tolist(), epoch_B.tolist(), strict=True)) == mine
        for original, (row, _) in zip(batch["original"], mine, strict=True):
            np.testing.assert_array_equal(original[: len(rows[row])], rows[row])
            assert (original[len(rows[row]) :] == corpus.tokenizer.specials.pad).all()
        for name in batch:
            np.testing.assert_array_equal(part[name], batch[name][[5, 2]])


def test_every_source_holds_out_its_own_part_and_its_sizes_are_summarised(corpus, config, alone, capsys):
    held_out = [one.validation.row(n).tolist() for one in alone for n in range(len(one.validation))]
    assert [corpus.validation.row(n).tolist() for n in range(len(corpus.validation))] == held_out
    facts = corpus.facts()
    for name in ("documents", "rows", "tokens"):
        for split in ("train", "validation"):
            assert facts[f"{split} {name}"] == sum(one.facts()[f"{split} {name}"] for one in alone)
    for one, found, share in zip(alone, corpus.sources, (0.25, 0.125, 0.625), strict=True):
        assert found == one.sources[0] | {"share of the rows of training": share}
        tokens = sum(len(one.train.row(n)) - 2 for n in range(len(one.train)))
        assert found["train"]["rows"] == len(one.train) and 0 <= tokens - found["train"]["tokens"] < 120
    assert corpus.train_tokens == sum(one.train_tokens for one in alone)
    pipeline.prepare(dataclasses.replace(config, expected_tokens=2 * corpus.train_tokens))
    said = capsys.readouterr().err
    assert re.search(r"many.jsonl: 12.50%.* [\d,]+ tokens of 96 documents", said)
    assert f"{corpus.train_tokens:,} tokens" in said and "50.0%" in said


def test_the_size_of_the_files_is_compared_with_the_gigabytes_of_a_paper(tmp_path):
    """The files are empty but have these sizes, because no text is read."""
    for name, size in {"wiki/a.txt": 1.5, "wiki/b.txt": 2.2, "books.txt": 11.4, "a.csv": 0, "a.txt.gz": 0}.items():
        write(tmp_path, {name: ""})
        os.truncate(tmp_path / name, round(size * 1e9))

    def said(*names):
        config = DataConfig(source=",".join(name if name == "sotu" else f"{tmp_path}/{name}" for name in names))
        return pipeline._share_of_gigabytes(config, 60.4, Cache.of(config))

    found = said("books.txt:1", "wiki:2")
    assert re.findall(r"[\d.]+ GB|[\d.]+%|has [\d.]+", found) == ["15.1 GB", "25.0%", "has 11.4", "has 3.7"]
    assert "compressed" not in found and all("compressed" in said("wiki", name) for name in ("a.csv", "a.txt.gz"))
    assert "sotu" in said("wiki", "sotu") and "%" not in said("wiki", "sotu")


def test_other_weights_share_all_that_was_prepared(config, corpus, folder, monkeypatch):
    monkeypatch.setattr(tokens, "write_text", None)
    monkeypatch.setattr(pipeline, "_write_rows", None)
    other = dataclasses.replace(config, source=config.source.replace(":2.5", ":1e-3"))
    assert pipeline.prepare(other).facts() == corpus.facts()
    assert mixture.shares(other)[2] == pytest.approx(0.001 / 1.501)
    one = dataclasses.replace(config, source=f"{folder}/one.txt:7")
    assert mixture.components(one) == [dataclasses.replace(config, source=f"{folder}/one.txt")]
    assert mixture.shares(one) == mixture.shares(dataclasses.replace(config, source="sotu")) == (1.0,)


@pytest.mark.parametrize("name", ["segment_pair_nsp", "doc_sentences"])
def test_pairs_and_packed_rows_are_mixed_too(config, name):
    chosen = dataclasses.replace(config, format=name, pack=name == "doc_sentences", sequence_length=64)
    mixed = pipeline.prepare(chosen).train
    first, last = mixed.parts[0], mixed.parts[2]
    start = len(mixed) - len(last)
    rows, places = np.array([start + 3, 0, start]), [(last, 3), (first, 0), (last, 0)]
    tokens_BL, lengths_B = mixed.gather(rows, 64, pad=1)
    segments_BL = mixed.segment_ids(rows, 64)
    for number, (part, place) in enumerate(places):
        expected_1L, length_1 = part.gather(np.array([place]), 64, pad=1)
        np.testing.assert_array_equal(tokens_BL[number], expected_1L[0])
        np.testing.assert_array_equal(segments_BL[number], part.segment_ids(np.array([place]), 64)[0])
        assert lengths_B[number] == length_1[0]
        np.testing.assert_array_equal(mixed.row(int(rows[number])), part.row(place))
    if name == "segment_pair_nsp":
        assert mixed.second_start[rows].tolist() == [part.second_start[place] for part, place in places]
        assert mixed.is_random_next[rows].tolist() == [part.is_random_next[place] for part, place in places]
    else:
        assert mixed.segment_ids(np.arange(len(mixed)), 64).max() > 1, "some texts are meant to share a row"
    np.testing.assert_array_equal(mixed.counts(320), sum(part.counts(320) for part in mixed.parts))
    assert len(mixed.tokens) == sum(len(part.tokens) for part in mixed.parts)
    np.testing.assert_array_equal(mixed.tokens[np.arange(9) - 9 + len(mixed.tokens)], last.tokens[-9:])


def test_words_are_skipped_in_the_source_that_they_belong_to(config, tmp_path, corpus):
    chosen = dataclasses.replace(config, skip_words=(5, 0, 2), cache_dir=str(tmp_path))
    assert [one.skip_words for one in mixture.components(chosen)] == [(5,), (), (2,)]
    for _ in range(2):  # also when the cache has the corpus
        prepared = pipeline.prepare(chosen)
        assert prepared.left_out == {"words left out": 5 + 3 * 2} and prepared.facts()["words left out"] == 11
    assert not corpus.left_out and not any("left out" in fact for fact in corpus.facts())
    write(tmp_path, {"held_out.txt": text(5000, 5030)})
    with_text = pipeline.prepare(dataclasses.replace(config, validation_source=str(tmp_path / "held_out.txt")))
    assert with_text.documents == {"validation": 1, "train": 1 + 120 + 3}
    assert not isinstance(with_text.validation, mixture.MixedRows), "a separate validation text is read once"


def trained_on(config, monkeypatch):
    """The documents on which the tokenizer of a config is trained; none if it was trained before."""
    documents, train = [], tokenizers.train

    def record(_, texts):
        documents.extend(texts)
        return train(TokenizerConfig(vocabulary_size=270), documents)

    with monkeypatch.context() as patched:
        patched.setattr(tokenizers, "train", record)
        pipeline.prepare_tokenizer(config)
    return documents


def number_of(document):
    return int(re.search(r"(\d+)\.", document)[1])


NUMBERS = (range(0, 999), range(1000, 2999), range(3000, 4000))


def test_the_tokenizer_is_trained_on_as_much_text_of_each_source(config, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "TOKENIZER_TEXT", 6000)
    documents = trained_on(dataclasses.replace(config, cache_dir=str(tmp_path)), monkeypatch)
    by_source = [[d for d in documents if number_of(d) in r] for r in NUMBERS]
    assert sum(map(len, by_source)) == len(documents)
    for mine in by_source[1:]:  # 2,000 characters, evenly from all documents
        assert 2000 - len(mine[-1]) < sum(map(len, mine)) < 2000 + len(mine[0])
    assert number_of(by_source[1][0]) < 1020 and number_of(by_source[1][-1]) > 1750
    assert len(by_source[0]) == 1, "a document is taken whole"
    # The same files in other sources train another tokenizer.
    few = f"{folder}/few"
    for source in (f"{few}/0.txt:1,{few}/[12].txt:1", f"{few}/[01].txt:1,{few}/2.txt:1"):
        assert trained_on(small(source, tmp_path), monkeypatch)

    # The first source alone has more lines than sentencepiece reads.
    config = small(f"{folder}/many.jsonl:1,{folder}/few:1", tmp_path)
    pieces = dataclasses.replace(config, tokenizer=TokenizerConfig(kind="sentencepiece_bpe", vocabulary_size=90))
    monkeypatch.setattr(pipeline, "TOKENIZER_TEXT", 10**6)
    for lines, chosen in ((60, pieces), (60, config), (500, pieces)):
        monkeypatch.setattr(pipeline, "SENTENCEPIECE_LINES", lines)
        documents = trained_on(chosen, monkeypatch)
        found = [sum(d.count("\n") + 1 for d in documents if number_of(d) in r) for r in NUMBERS]
        assert (25 <= found[1] <= 35 and found[2] >= 25) if (lines, chosen) == (60, pieces) else len(documents) == 117


@pytest.mark.parametrize(
    ("source", "paths", "weights"),
    [
        ("a:0.5, b:.5", ["a", "b"], [0.5, 0.5]),
        ("gs://bucket/a:2,hf:name/set:3e-1", ["gs://bucket/a", "hf:name/set"], [2.0, 0.3]),
        ("tfds:wikipedia/20230601.en:1.0.0", ["tfds:wikipedia/20230601.en:1.0.0"], None),
        ("tfds:x:1.0.0:train[:1%]:4,sotu:1", ["tfds:x:1.0.0:train[:1%]", "sotu"], [4.0, 1.0]),
        ("a:1:2,b:3", ["a:1", "b"], [2.0, 3.0]),
        ("d:1", ["d:1"], None),  # a file of this name
    ],
)
def test_a_weight_is_a_number_after_the_last_colon(source, paths, weights, tmp_path, monkeypatch):
    monkeypatch.chdir(write(tmp_path, {"d:1": "text"}))
    assert (sources.parts(source), sources.weights(source)) == (paths, weights)


@pytest.mark.parametrize(
    ("source", "changes", "named"),
    [
        ("a:0.5,b", {}, "'a'.*'b'"),
        ("a:0,b:1", {}, "'a' the weight 0"),
        ("a:1,b:inf", {}, "'b' the weight inf"),
        ("a:1,a:2", {}, "'a' twice"),
        (" , ", {}, "names no source"),
        ("few:1,few/0.txt:1", {}, r"0\.txt is in two"),
        ("few,few/0.txt", {}, r"0\.txt twice"),
        ("few:1,one.txt:1e-8", {}, "1e-08"),
        ("blank.txt:1,few:1", {}, r"blank\.txt"),
        ("few:1,one.txt:1", {"skip_words": (1, 2, 3)}, "skip_words"),
        ("few", {"validation_source": "x:1,y:2"}, "data.validation_source='x:1,y:2'"),
        ("one.txt:1,few:2", {"format": "parallel", "target": "a,b"}, "weights"),
    ],
)
def test_mixtures_that_cannot_be(source, changes, named, config, folder, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(write(folder, {"blank.txt": " \n"}))
    for held_out, warned in (("one.txt", 0), ("few/0.txt", 1)):
        mixture.components(dataclasses.replace(config, source="few", validation_source=held_out))
        assert caplog.text.count("1 files in common") == warned
    files.warn_once.cache_clear()
    settings = {"source": source, "cache_dir": str(tmp_path)} | changes
    with pytest.raises(ValueError, match=named):
        pipeline.prepare(dataclasses.replace(config, **settings))


def test_a_sample_repeats_a_small_source_up_to_its_share_and_unigrams_count_each_once(corpus, config, alone):
    """Shares are 1/4, 1/8 and 5/8, of which `many` has the most tokens for its share."""
    every = [one.train.tokens[:] for one in alone]
    wanted = [len(every[1]) * 2, len(every[1]), len(every[1]) * 5]
    assert all(len(tokens) < count for tokens, count in zip(every[::2], wanted[::2], strict=True))
    repeated = [tokens[np.arange(count) % len(tokens)] for tokens, count in zip(every, wanted, strict=True)]
    np.testing.assert_array_equal(mixture.sample(corpus.train, 10_000_000), np.concatenate(repeated))
    few = mixture.sample(corpus.train, 80)
    np.testing.assert_array_equal(few, np.concatenate([every[0][:20], every[1][:10], every[2][:50]]))
    np.testing.assert_array_equal(mixture.sample(alone[0].train, 7), every[0][:7])
    chosen = dataclasses.replace(config, masking=MaskingConfig(replacement="unigram"))
    counts = sum(one.train.counts(320) for one in alone)
    counts[list(corpus.tokenizer.special_ids)] = 0
    batches = pipeline.Batches(corpus.train, corpus.tokenizer, chosen, 4, 0)
    np.testing.assert_array_equal(batches.unigram.counts_V, counts)
