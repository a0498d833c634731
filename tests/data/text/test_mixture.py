"""Mixtures of sources: shares and order against a loop over single rows, rows against those of each source alone."""

import dataclasses
import fractions
import gzip
import json
import math
import os
import re

import numpy as np
import pytest

from ag_jax.data import randomness, tokenizers
from ag_jax.data.config import DataConfig, MaskingConfig, TokenizerConfig
from ag_jax.data.parallel import pipeline as parallel
from ag_jax.data.text import mixture, pipeline, single_source, sources
from ag_jax.data.text import prepare as text_parts
from tests.data.conftest import text


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three sources of different sizes: a document, many documents, a few."""
    folder = tmp_path_factory.mktemp("sources")
    (folder / "one.txt").write_text(text(0, 130))
    lines = [json.dumps({"text": text(1000 + 7 * number, 1007 + 7 * number)}) for number in range(120)]
    (folder / "many.jsonl").write_text("\n".join(lines))
    (folder / "few").mkdir()
    for number in range(3):
        (folder / "few" / f"{number}.txt").write_text(text(3000 + 40 * number, 3040 + 40 * number))
    return folder


@pytest.fixture(scope="module")
def config(folder, tmp_path_factory):
    return DataConfig(
        source=f"{folder}/one.txt:1,{folder}/many.jsonl:0.5,{folder}/few:2.5",
        sequence_length=24,
        validation_fraction=0.2,
        cache_dir=str(tmp_path_factory.mktemp("cache")),
        tokenizer=TokenizerConfig(vocabulary_size=320),
    )


@pytest.fixture(scope="module")
def corpus(config):
    return pipeline.prepare(config)


@pytest.fixture(scope="module")
def alone(config, corpus, folder, tmp_path_factory):
    """The corpus of each source alone, with the tokenizer of the mixture."""
    saved = tmp_path_factory.mktemp("tokenizer") / "tokenizer"
    corpus.tokenizer.save(saved)
    return [
        pipeline.prepare(
            dataclasses.replace(config, source=f"{folder}/{name}", tokenizer=TokenizerConfig(path=str(saved)))
        )
        for name in ("one.txt", "many.jsonl", "few")
    ]


@pytest.mark.parametrize("weights", [(1, 1), (1, 0.5, 2.5), (0.01, 0.9, 0.09), (3, 1, 4, 1, 5, 9), (1,)])
def test_each_source_has_its_share_of_the_rows_so_far(weights):
    shares = [weight / sum(weights) for weight in weights]
    count = 3000
    source_B, place_B = mixture.assign(np.arange(count), shares)
    seen = [0] * len(weights)
    for number, (source, place) in enumerate(zip(source_B, place_B, strict=True), 1):
        assert place == seen[source], "the rows of a source are numbered without gaps"
        seen[source] += 1
        if len(weights) < 4:
            assert max(abs(s - number * share) for s, share in zip(seen, shares, strict=True)) < 1.01
    assert max(abs(s - count * share) for s, share in zip(seen, shares, strict=True)) < 2
    some = np.random.default_rng(0).permutation(count)[:50]
    for found, expected in zip(mixture.assign(some, shares), (source_B, place_B), strict=True):
        np.testing.assert_array_equal(found, expected[some])
    # Far into a long training, with numbers that 32 bits do not hold.
    far = 10**11 + np.arange(1000)
    source_B, place_B = mixture.assign(far, shares)
    np.testing.assert_allclose(np.bincount(source_B, minlength=len(shares)) / 1000, shares, atol=2e-3)
    off_B = np.abs(place_B - far * np.asarray(shares)[source_B])  # `place_B` counts the earlier rows of the source
    assert off_B.max() < 2 + 2**-23 * far[0]


def plainly_drawn(sizes, weights, seed, count):
    """(row in the corpus, epoch) of the first rows: the source that a recursive division of the rows gives, by whole
    fractions, and its rows in permuted order.
    """

    def source_of(number, first):
        """The source of the row with this number among the rows of the sources from `first` on."""
        if first == len(weights) - 1:
            return first
        share = fractions.Fraction(round(weights[first] / sum(weights[first:]) * 2**24), 2**24)
        taken = [math.floor(n * share + fractions.Fraction(1, 2)) for n in (number, number + 1)]
        return first if taken[1] > taken[0] else source_of(number - taken[0], first + 1)

    drawn, found = [0] * len(weights), []
    for number in range(count):
        source = source_of(number, 0)
        epoch, place = divmod(drawn[source], sizes[source])
        order = randomness.permutation(sizes[source], seed, epoch, source)
        found.append((sum(sizes[:source]) + int(order[place]), epoch))
        drawn[source] += 1
    return found


def test_batches_are_the_rows_of_the_sources_in_an_order_of_the_step(corpus, config, alone):
    sizes = [len(one.train) for one in alone]
    assert len(set(sizes)) == 3
    batch_size, seed = 7, 11
    expected = plainly_drawn(sizes, (1, 0.5, 2.5), seed, 60 * batch_size)
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


def test_every_source_holds_out_its_own_part(corpus, alone):
    held_out = [one.validation.row(n).tolist() for one in alone for n in range(len(one.validation))]
    assert [corpus.validation.row(n).tolist() for n in range(len(corpus.validation))] == held_out
    facts = corpus.facts()
    for split in ("train", "validation"):
        for name in ("documents", "rows", "tokens"):
            assert facts[f"{split} {name}"] == sum(one.facts()[f"{split} {name}"] for one in alone)


def test_sizes_of_the_sources_are_said_and_summarised(corpus, config, alone, capsys):
    for one, found, share in zip(alone, corpus.sources, (0.25, 0.125, 0.625), strict=True):
        assert found == one.sources[0] | {"share of the rows of training": share}
        tokens = sum(len(one.train.row(n)) - 2 for n in range(len(one.train)))
        assert found["train"]["rows"] == len(one.train) and 0 <= tokens - found["train"]["tokens"] < 120
    assert corpus.train_tokens == sum(one.train_tokens for one in alone)
    pipeline.prepare(dataclasses.replace(config, expected_tokens=2 * corpus.train_tokens))
    said = capsys.readouterr().err
    assert re.search(r"many.jsonl: 12.50% of the rows that training draws; it has [\d,]+ tokens of 96 documents", said)
    assert f"{corpus.train_tokens:,} tokens of training text, 50.0% of the {2 * corpus.train_tokens:,} of data." in said


def test_the_size_of_the_files_is_compared_with_the_gigabytes_of_a_paper(corpus, config, folder, capsys):
    sizes = [path.stat().st_size for path in folder.rglob("*.*") if path.is_file()]
    assert len(sizes) == 5
    pipeline.prepare(dataclasses.replace(config, expected_gigabytes=4 * sum(sizes) / 1e9))
    said = capsys.readouterr().err
    each = f"{folder}/one.txt has 0.0, {folder}/many.jsonl has 0.0, {folder}/few has 0.0"
    expected = f"{4 * sum(sizes) / 1e9:g}"
    assert f"0.0 GB of files, 25.0% of the {expected} of data.expected_gigabytes ({each}); some are" in said


def test_each_part_of_the_source_has_the_gigabytes_of_its_own_files(tmp_path):
    """The files are empty but have these sizes, because no text is read."""
    sizes = {"wiki/a.txt": 1.5, "wiki/b.txt": 2.2, "books.txt": 11.4, "news/1.txt": 0.04, "news/more/2.txt": 4.5}
    for name, size in sizes.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, round(size * 1e9))
    names = ("books.txt", "wiki", "news")
    config = DataConfig(source=",".join(f"{tmp_path}/{name}:{weight}" for weight, name in enumerate(names, 1)))
    said = pipeline._share_of_gigabytes(config, 39.28, pipeline.Entries.of(config, pipeline.unclaimed))
    each = f"{tmp_path}/books.txt has 11.4, {tmp_path}/wiki has 3.7, {tmp_path}/news has 4.5"
    assert said == f"19.6 GB of files, 50.0% of the 39.28 of data.expected_gigabytes ({each})"


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.tsv", "a.parquet", "a.tar", "a.txt.gz", "a.tgz"])
def test_the_size_of_files_that_are_not_their_text_is_said_with_reserve(tmp_path, name):
    """Keys, quotes and other columns are no text, and compressed files have fewer bytes than theirs."""
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / name).touch()
    config = DataConfig(source=f"{tmp_path}/a.txt,{tmp_path}/{name}")
    said = pipeline._share_of_gigabytes(config, 1.0, pipeline.Entries.of(config, pipeline.unclaimed))
    assert said.endswith("; some are compressed, archives, JSON or tables, of which the text has another size")


def test_a_size_in_gigabytes_of_other_files_is_said_with_reserve(tmp_path):
    """Compressed files have fewer bytes than their text, and data sets no files."""
    (tmp_path / "one.txt.gz").write_bytes(gzip.compress(text(0, 130).encode()))
    config = DataConfig(source=str(tmp_path / "one.txt.gz"), expected_gigabytes=2.0)

    def said(config):
        return pipeline._share_of_gigabytes(config, 2.0, pipeline.Entries.of(config, pipeline.unclaimed))

    expected = "one.txt.gz has 0.0); some are compressed, archives, JSON or tables, of which the text has another size"
    assert said(config).endswith(expected)
    with_data_set = dataclasses.replace(config, source=f"sotu,{config.source}")
    assert said(with_data_set) == "data.expected_gigabytes=2 is not compared: sotu has no files of known size"


def test_other_weights_share_all_that_was_prepared(config, corpus, folder, monkeypatch):
    monkeypatch.setattr(text_parts, "write_text", None)
    monkeypatch.setattr(single_source, "_write_rows", None)
    other = dataclasses.replace(config, source=config.source.replace(":2.5", ":1e-3"))
    assert pipeline.prepare(other).facts() == corpus.facts()
    assert mixture.shares(other)[2] == pytest.approx(0.001 / 1.501)
    one = dataclasses.replace(config, source=f"{folder}/one.txt:7")
    assert mixture.components(one) == [dataclasses.replace(config, source=f"{folder}/one.txt")]
    assert mixture.shares(one) == (1.0,)


@pytest.mark.parametrize("name", ["segment_pair_nsp", "doc_sentences"])
def test_pairs_and_packed_rows_are_mixed_too(config, name):
    chosen = dataclasses.replace(config, format=name, pack=name == "doc_sentences", sequence_length=64)
    corpus = pipeline.prepare(chosen)
    mixed, last = corpus.train, corpus.train.parts[2]
    start = len(mixed) - len(last)
    rows = np.array([start + 3, 0, start])
    for one, two in (
        (mixed.gather(rows[[0, 2]], 64, pad=1), last.gather(np.array([3, 0]), 64, pad=1)),
        ([mixed.segment_ids(rows[[0, 2]], 64)], [last.segment_ids(np.array([3, 0]), 64)]),
    ):
        for field, expected in zip(one, two, strict=True):
            np.testing.assert_array_equal(field, expected)
    if name == "segment_pair_nsp":
        expected = [last.second_start[3], mixed.parts[0].second_start[0], last.second_start[0]]
        assert mixed.second_start[rows].tolist() == expected
    else:
        assert mixed.segment_ids(np.arange(len(mixed)), 64).max() > 1, "some texts are meant to share a row"
    assert pipeline.Batches(mixed, corpus.tokenizer, chosen, 8, 0).at(1)["tokens"].shape == (8, 64)
    whole = np.concatenate([part.counts(320)[None] for part in mixed.parts]).sum(axis=0)
    np.testing.assert_array_equal(mixed.counts(320), whole)


def test_words_are_skipped_in_the_source_that_they_belong_to(config, folder, tmp_path):
    chosen = dataclasses.replace(config, skip_words=(5, 0, 2), cache_dir=str(tmp_path))
    assert [one.skip_words for one in mixture.components(chosen)] == [(5,), (), (2,)]
    assert pipeline.prepare(chosen).left_out == {"words": 5 + 3 * 2, "documents": 0}


def test_text_of_its_own_for_validation_is_read_once(config, folder, tmp_path):
    (tmp_path / "held_out.txt").write_text(text(5000, 5030))
    chosen = dataclasses.replace(config, validation_source=str(tmp_path / "held_out.txt"))
    corpus = pipeline.prepare(chosen)
    assert corpus.documents["validation"] == 1 and corpus.documents["train"] == 1 + 120 + 3
    assert not isinstance(corpus.validation, mixture.MixedRows)
    with pytest.raises(
        ValueError, match="validation_source='x:1,y:2' has weights, but validation reads every row once"
    ):
        pipeline.prepare(dataclasses.replace(config, validation_source="x:1,y:2"))


def test_the_tokenizer_is_trained_on_as_much_text_of_each_source(config, tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "TOKENIZER_TEXT", 6000)
    chosen = dataclasses.replace(config, cache_dir=str(tmp_path))
    documents = trained_on(chosen, monkeypatch)
    by_source = [[d for d in documents if number_of(d) in r] for r in NUMBERS]
    assert sum(map(len, by_source)) == len(documents)
    for mine in by_source[1:]:  # 2,000 characters, evenly from all documents
        assert 2000 - len(mine[-1]) < sum(map(len, mine)) < 2000 + len(mine[0])
    assert number_of(by_source[1][0]) < 1020 and number_of(by_source[1][-1]) > 1750
    assert len(by_source[0]) == 1, "a document is taken whole"


def test_no_source_is_left_out_where_sentencepiece_reads_only_so_many_lines(folder, tmp_path, monkeypatch):
    """The first source alone has more lines than that."""
    monkeypatch.setattr(pipeline, "SENTENCEPIECE_LINES", 60)
    config = DataConfig(
        source=f"{folder}/many.jsonl:1,{folder}/few:1",
        cache_dir=str(tmp_path),
        tokenizer=TokenizerConfig(kind="sentencepiece_bpe", vocabulary_size=90),
    )
    documents = trained_on(config, monkeypatch)
    lines = [sum(d.count("\n") + 1 for d in documents if number_of(d) in r) for r in NUMBERS]
    assert 25 <= lines[1] <= 35 and lines[2] >= 25
    for change in ({"kind": "byte_bpe", "vocabulary_size": 320}, {"kind": "wordpiece"}):
        other = dataclasses.replace(config, tokenizer=dataclasses.replace(config.tokenizer, **change))
        assert len(trained_on(other, monkeypatch)) == 114 + 3
    monkeypatch.setattr(pipeline, "SENTENCEPIECE_LINES", 500)
    assert len(trained_on(config, monkeypatch)) == 114 + 3


def test_the_same_files_in_other_sources_train_another_tokenizer(folder, tmp_path, monkeypatch):
    few = f"{folder}/few"
    config = DataConfig(
        source=f"{few}/0.txt:1,{few}/[12].txt:1",
        cache_dir=str(tmp_path),
        tokenizer=TokenizerConfig(vocabulary_size=320),
    )
    grouped = dataclasses.replace(config, source=f"{few}/[01].txt:1,{few}/2.txt:1")
    assert trained_on(config, monkeypatch) and trained_on(grouped, monkeypatch)


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


@pytest.mark.parametrize(
    ("source", "paths", "weights"),
    [
        ("a", ["a"], None),
        ("a,b", ["a", "b"], None),
        ("a:1", ["a"], [1.0]),
        ("a:0.5, b:.5", ["a", "b"], [0.5, 0.5]),
        ("gs://bucket/a", ["gs://bucket/a"], None),
        ("gs://bucket/a:2,hf:name/set:3e-1", ["gs://bucket/a", "hf:name/set"], [2.0, 0.3]),
        ("tfds:wikipedia/20230601.en:1.0.0", ["tfds:wikipedia/20230601.en:1.0.0"], None),
        ("tfds:x:1.0.0:train[:1%]:4,sotu:1", ["tfds:x:1.0.0:train[:1%]", "sotu"], [4.0, 1.0]),
        ("books/*.txt:2,c:/d:1", ["books/*.txt", "c:/d"], [2.0, 1.0]),
    ],
)
def test_a_weight_is_a_number_after_the_last_colon(source, paths, weights):
    assert (sources.parts(source), sources.weights(source)) == (paths, weights)


def test_a_file_whose_name_ends_like_a_weight(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a:1").write_text(text(0, 9))
    assert (sources.parts("a:1"), sources.weights("a:1")) == (["a:1"], None)
    assert (sources.parts("a:1:2,b:3"), sources.weights("a:1:2,b:3")) == (["a:1", "b"], [2.0, 3.0])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a:0.5,b", "gives 'a' a weight, but 'b' none: give every part a weight, as in books/:3,news/:1, or none"),
        ("b,a:0.5", "gives 'a' a weight, but 'b' none"),
        ("a:0,b:1", "gives 'a' the weight 0: expected a positive number"),
        ("a:-1,b:1", "gives 'a' the weight -1"),
        ("a:nan,b:1", "gives 'a' the weight nan"),
        ("a:1,b:inf", "gives 'b' the weight inf"),
        ("a:1,a:2", "names 'a' twice: give it once, with the sum of its weights"),
        (" , ", "names no source"),
    ],
)
def test_weights_that_cannot_be(source, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        sources.weights(source)


def test_validation_on_text_that_is_trained_on_is_warned_of(config, folder, tmp_path, caplog):
    chosen = dataclasses.replace(config, source=f"{folder}/few", cache_dir=str(tmp_path / "cache"))
    for held_out, warned in (("one.txt", 0), ("few/0.txt", 1)):
        pipeline.prepare(dataclasses.replace(chosen, validation_source=f"{folder}/{held_out}"))
        assert caplog.text.count("have 1 files in common, the first being ") == warned


def test_mixtures_that_cannot_be(config, folder, tmp_path):
    def prepare(source, **changes):
        chosen = dataclasses.replace(config, source=source, cache_dir=str(tmp_path / "cache"), **changes)
        return pipeline.prepare(chosen)

    with pytest.raises(
        ValueError, match=r"0\.txt is in two of the sources, .*few' and .*0\.txt', so that one would be"
    ):
        prepare(f"{folder}/few:1,{folder}/few/0.txt:1")
    with pytest.raises(ValueError, match=r"data.source='.*' has .*0\.txt twice, so that one copy would be trained on"):
        prepare(f"{folder}/few,{folder}/few/0.txt")
    with pytest.raises(ValueError, match=r"a share of 1e-08 of the rows, expected at least 6e-08: raise its weight"):
        prepare(f"{folder}/few:1,{folder}/one.txt:1e-8")
    with pytest.raises(FileNotFoundError, match="nowhere' does not exist"):
        prepare(f"{folder}/few:1,{folder}/nowhere:1")
    (tmp_path / "blank.txt").write_text(" \n")
    with pytest.raises(ValueError, match=r"data.source='.*blank.txt' holds no text: expected at least one document"):
        prepare(f"{folder}/few:1,{tmp_path}/blank.txt:1")
    with pytest.raises(ValueError, match="must be one number, or one for each of the parts"):
        prepare(f"{folder}/few:1,{folder}/one.txt:1", skip_words=(1, 2, 3))
    pairs = DataConfig(format="parallel", source="a.en:1,b.en:2", target="a.de,b.de")
    with pytest.raises(ValueError, match=r"data.source='a.en:1,b.en:2' has weights, which data.format=parallel does"):
        parallel.prepare(pairs)


def test_unigram_draws_have_the_frequencies_of_all_sources(config, alone):
    masking = MaskingConfig(replacement="unigram")
    corpus = pipeline.prepare(dataclasses.replace(config, masking=masking))
    batches = pipeline.Batches(corpus.train, corpus.tokenizer, dataclasses.replace(config, masking=masking), 4, 0)
    counts = sum(one.train.counts(320) for one in alone)
    counts[list(corpus.tokenizer.special_ids)] = 0
    np.testing.assert_array_equal(batches.unigram.counts_V, counts)
    assert batches.at(0)["tokens"].shape == (4, 24)
    tokens = mixture.sample(corpus.train, 80)
    np.testing.assert_array_equal(tokens[:20], alone[0].train.tokens[:20])
    np.testing.assert_array_equal(tokens[30:], alone[2].train.tokens[:50])


def test_a_sample_repeats_a_small_source_up_to_its_share(corpus, alone):
    """Shares are 1/4, 1/8 and 5/8, of which `many` has the most tokens for its share."""
    every = [one.train.tokens[:] for one in alone]
    wanted = [len(every[1]) * 2, len(every[1]), len(every[1]) * 5]
    assert all(len(tokens) < count for tokens, count in zip(every[::2], wanted[::2], strict=True))
    repeated = [tokens[np.arange(count) % len(tokens)] for tokens, count in zip(every, wanted, strict=True)]
    np.testing.assert_array_equal(mixture.sample(corpus.train, 10_000_000), np.concatenate(repeated))
