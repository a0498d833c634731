"""Pointers from annotated files to batches, against plain loops over characters and tokens."""

import dataclasses
import json
import pathlib
from collections import Counter
from typing import get_args

import numpy as np
import pytest

from ag_jax.data import layout, pipeline, tokenizers
from ag_jax.data.config import DataConfig, Format, TokenizerConfig
from ag_jax.data.records import sources
from ag_jax.data.records.annotated import Annotated
from ag_jax.data.store import ABSENT, TextStore, TextStoreWriter
from ag_jax.data.text import documents, pointers, sequences
from ag_jax.data.tokenizers import SpecialTokens
from tests.data.conftest import WORDS, small, text, write

NAMES = ("far", "head", "offset_by_word")


def record(number: int) -> dict:
    """A document of sentences of one to nine words, some of which have parts without a space between them."""
    rng = np.random.default_rng(number)
    sizes = rng.integers(1, 10, 3 + number % 4).tolist()
    ends, count = np.cumsum(sizes).tolist(), sum(sizes)
    words = [
        ["\u200b", "n't", "Übermut", "."][at % 4] if at % 5 == 3 else WORDS[at % 20]
        for at in rng.integers(0, 99, count)
    ]
    heads = [
        int(end - size + rng.integers(0, size + 1)) for end, size in zip(ends, sizes, strict=True) for _ in range(size)
    ]
    heads = [0 if head in (0, at) else head for at, head in enumerate(heads, 1)]
    far = rng.integers(0, count + 1, count).tolist()
    return {
        "words": words,
        "spaces": rng.integers(0, 3, count).astype(bool).tolist(),
        "sentences": ends,
        "head": heads,
        "far": far,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    """120 annotated documents in four files and one that is not annotated, with a tokenizer that lacks U+200B."""
    files = {f"{at}.jsonl": "\n".join(json.dumps(record(n)) for n in range(at, 120, 4)) for at in range(4)}
    folder = write(tmp_path_factory.mktemp("annotated"), files | {"plain.txt": text(0, 9)})
    kind = TokenizerConfig(kind="wordpiece", vocabulary_size=120)
    tokenizers.train(kind, [text(0, 200), "n't Übermut ."]).save(folder / "tokenizer")
    return folder


@pytest.fixture
def config(folder, tmp_path) -> DataConfig:
    tokenizer = TokenizerConfig(path=str(folder / "tokenizer"))
    source = f"{folder}/*.jsonl,{folder}/plain.txt"
    return small(source, tmp_path / "cache", validation_fraction=0.2, tokenizer=tokenizer, pointers=NAMES)


def plain_offsets(document, tokenizer, name, all_tokens):
    """The offsets of the tokens of a document, by loops over characters, words and tokens."""
    first_token, spans, place = {}, [], 0  # the first token that holds a character; characters of each token
    for sentence in document.sentences():
        for begin, end in tokenizer.locate_batch([sentence])[0][1]:
            for character in range(place + begin, place + end):
                first_token.setdefault(character, len(spans))
            spans.append(range(place + begin, place + end))
        place += len(sentence)
    characters = [range(*bounds) for bounds in zip(document.starts_W, document.stops_W, strict=True)]
    token_of = [next((first_token[at] for at in word if at in first_token), None) for word in characters]
    offsets = [None] * len(spans)
    for token, span in enumerate(spans):
        owners = [word for word, of_word in enumerate(token_of) if of_word == token]
        if not owners and all_tokens:
            owners = [word for word, inside in enumerate(characters) if span.start in inside]
        if owners and (target := document.pointers[name][owners[0]]) >= 0:
            of_target, of_word = token_of[target], token_of[owners[0]]
            offsets[token] = of_target - token if of_target is not None and of_target != of_word else None
    return [ABSENT if offset is None else offset for offset in offsets]


@pytest.mark.parametrize("choice", ["first", "all"])
@pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe"])
def test_from_words_to_tokens(folder, tokenizer, choice, kind):
    tokenizer = tokenizer if kind == "byte_bpe" else tokenizers.load(folder / "tokenizer")
    texts = list(sources.documents(f"{folder}/0.jsonl,{folder}/plain.txt,{folder}/1.jsonl", pointers=("head", "far")))
    encode = documents.Documents(DataConfig(pointer_tokens=choice), None).encode
    encoded = encode(tokenizer, [(one,) for one in texts])
    without = [(one,) for one in sources.documents(f"{folder}/0.jsonl,{folder}/plain.txt,{folder}/1.jsonl")]
    for field in ("tokens", "lengths", "sentences", "words"):
        assert getattr(encoded, field).tolist() == getattr(encode(tokenizer, without), field).tolist()
    expected = {"head": [], "far": []}
    for one in texts:
        for name, values in expected.items():
            if isinstance(one, Annotated):
                values += plain_offsets(one, tokenizer, name, choice == "all")
            else:
                values += [ABSENT] * len(encode(tokenizer, [(one,)]).tokens)
    assert {name: values.tolist() for name, values in encoded.pointers.items()} == expected
    assert sum(offset != ABSENT for offset in expected["far"]) > 500 and not encoded.left_out


def test_words_that_share_a_token_and_words_of_ten_tokens(tmp_path, tokenizer, monkeypatch):
    rows = "1 do 3\n2 n't 1\n3 zzzzzzzzzzzzzzzzzzzz 0\n4-5 the 9\n4 zu 3\n5 dem 1\n6 x 2"
    columns = [line.split(" ") for line in rows.splitlines()]
    lines = [
        "\t".join([*row[:2], *"_XX_", row[2], "x", "_", "SpaceAfter=No" if row[1] == "do" else "_"]) for row in columns
    ]
    write(tmp_path, {"a.conllu": "\n".join(lines)})
    [document] = sources.documents(str(tmp_path / "a.conllu"), pointers=("head",))
    assert document == "don't zzzzzzzzzzzzzzzzzzzz the x"
    # Tokens: don | 't, then one for each z, then the, then x; only `the` and `x` are not of one character.
    spans = [[(0, 3), (3, 5), (5, 7), *((at, at + 1) for at in range(7, 26)), (26, 30), (30, 32)]]
    first = [3 - 1, ABSENT, *[ABSENT] * 20, 2 - 22, 0 - 23]
    # n't begins in the token of `do`, so it points to nothing, and nor does its other token; z is the root.
    for all_tokens in (False, True):
        found, _ = pointers.offsets([document], [document.sentences()], spans, all_tokens)
        assert found["head"].tolist() == [2, *first[1:]]
    document.pointers["head"][2] = 5
    found, _ = pointers.offsets([document], [document.sentences()], spans, True)
    assert found["head"].tolist() == [2, ABSENT, *(23 - at for at in range(2, 22)), -20, -23]
    monkeypatch.setattr(pointers, "FARTHEST", 21)
    found, too_far = pointers.offsets([document], [document.sentences()], spans, False)
    assert found["head"].tolist() == [2, ABSENT, 21, *[ABSENT] * 19, -20, ABSENT] and too_far == {"head": 1}


def stored(config):
    """The token ids and the pointers of each split, and [(first, last + 1)] of its documents, from the cache."""
    [directory] = pathlib.Path(config.cache_dir).glob("text-*")
    found = {}
    for split in ("train", "validation"):
        store = TextStore(directory / split)
        borders = np.cumsum([0, *(sum(map(len, store.document(number))) for number in range(len(store)))])
        of_name = {name: values.read(0, len(values)) for name, values in store.pointers.items()}
        found[split] = store.tokens.read(0, len(store.tokens)), of_name, borders
    return found


def test_offsets_by_word(config):
    """Each token id has one offset everywhere, where the token has a head, and they are spread as those of heads."""
    pipeline.prepare(config, quiet=True)
    table: dict[int, int] = {}
    for ids, planes, borders in stored(config).values():
        document = np.searchsorted(borders, np.arange(len(ids)), side="right")
        for at, offset in enumerate(planes["offset_by_word"].tolist()):
            if offset != ABSENT:
                assert planes["head"][at] != ABSENT and table.setdefault(int(ids[at]), offset) == offset
                assert document[at] == document[at + offset]
    ids, planes, _ = stored(config)["train"]
    heads = planes["head"][planes["head"] != ABSENT]
    assert set(table.values()) <= set(heads.tolist()) and len(set(table.values())) > 5
    has = planes["offset_by_word"] != ABSENT
    assert 0.7 * len(heads) < has.sum() <= len(heads)


FORMATS = {name: {"format": name} for name in get_args(Format) if name != "parallel"}
FORMATS["packed"] = {"format": "doc_sentences", "pack": True}


@pytest.mark.parametrize("name", FORMATS)
def test_pointers_stay_in_their_piece(tmp_path, name, monkeypatch):
    """Every token of the text is another one, so that its place, and what it points to, is known in the rows."""
    monkeypatch.setattr(sequences.mapping, "mapped", lambda function, items, in_processes: map(function, items))
    monkeypatch.setattr(sequences, "TOKENS_TOGETHER", 150)
    config = DataConfig(sequence_length=20, pointers=("one", "two"), **FORMATS[name])
    rng = np.random.default_rng(3)
    writer = TextStoreWriter(tmp_path, 60_000, ["unused", "two", "one"])
    planes, document, first = {"one": [], "two": []}, [], 10
    for number in range(30):
        lengths = rng.integers(1, 30, rng.integers(1, 9))
        count = int(lengths.sum())
        targets = rng.integers(-count, count, (2, count))  # below 0 for none
        offsets = np.where(targets < 0, ABSENT, targets - np.arange(count)).astype(np.int16)
        of_name = dict(zip(planes, offsets, strict=True))
        writer.append(np.arange(first, first + count), lengths, np.array([len(lengths)]), of_name)
        for plane, values in of_name.items():
            planes[plane] += values.tolist()
        document += [number] * count
        first += count
    writer.close()
    special = SpecialTokens(begin=0, pad=1, end=2, unknown=3, mask=4, pair_separators=2)
    lost, expected_lost, count = Counter(), Counter(), 0
    made = ((block,) for block in sequences.make(config, tmp_path, special, lost))
    for (block,) in pipeline._packed(made, 1, config) if config.pack else made:
        assert block.pointers.dtype == np.int16
        begins = np.cumsum(block.lengths) - block.lengths
        for begin, length in zip(begins, block.lengths, strict=True):
            row = block.tokens[begin : begin + length].astype(int) - 10
            for at, index in enumerate(row):
                run = set()  # places of the row that hold the same piece
                for step in (1, -1):
                    to = at
                    while (
                        0 <= to < length
                        and index >= 0
                        and row[to] - index == to - at
                        and document[row[to]] == document[index]
                    ):
                        run.add(to)
                        to += step
                for plane, values in zip(planes, block.pointers, strict=True):
                    offset = planes[plane][index] if index >= 0 else ABSENT
                    stays = at + offset in run
                    assert values[begin + at] == (offset if stays else ABSENT)
                    expected_lost[plane] += offset != ABSENT and not stays
                    count += stays
    assert lost == expected_lost and min(lost.values()) > 0 and count > 300


def test_from_files_to_batches(config, folder, monkeypatch):
    config = dataclasses.replace(config, format="doc_sentences", pack=True)
    plain = pipeline.prepare(dataclasses.replace(config, pointers=()), quiet=True)
    corpus = pipeline.prepare(config, quiet=True)
    for one, other in ((plain.train, corpus.train), (plain.validation, corpus.validation)):
        np.testing.assert_array_equal(one.tokens[:], other.tokens[:])
        np.testing.assert_array_equal(one.ends[:], other.ends[:])
    monkeypatch.setattr(layout, "PART_SIZE", 1)
    in_parts = dataclasses.replace(config, cache_dir=f"{config.cache_dir}-parts")
    assert pipeline.prepare(in_parts, quiet=True).facts() == corpus.facts()
    rows, batches = corpus.train, pipeline.batches(corpus, config, 4, seed=1)
    example_B = np.array([3, -1, 0, 7])
    batch = batches.make(rows, config, example_B, np.zeros(4, int))
    empty = pipeline.empty_batch(config, 4)
    assert {name: (field.shape, field.dtype) for name, field in batch.items()} == {
        name: (field.shape, field.dtype) for name, field in empty.items()
    }
    assert (empty["pointers"] == ABSENT).all() and (batch["pointers"] != ABSENT).any(axis=(1, 2)).tolist() == [
        1,
        0,
        1,
        1,
    ]
    for number, of_row in zip(example_B, batch["pointers"], strict=True):
        start, end = (rows.ends[number - 1] if number > 0 else 0, rows.ends[number]) if number >= 0 else (0, 0)
        for name, values in zip(NAMES, of_row, strict=True):
            assert values[: end - start].tolist() == rows.pointers[name][start:end].tolist()
            assert (values[end - start :] == ABSENT).all()
    without = pipeline.batches(plain, dataclasses.replace(config, pointers=()), 4, seed=1).at(2)
    found = batches.at(2)
    assert set(found) - set(without) == {"pointers"}
    for name, values in without.items():
        np.testing.assert_array_equal(found[name], values)
    # Of a mixture with weights, sources without annotation have no pointers.
    weighted = dataclasses.replace(
        config, source=f"{folder}/0.jsonl:1,{folder}/plain.txt:1", cache_dir=f"{config.cache_dir}-mix"
    )
    mixed = pipeline.prepare(weighted, quiet=True)
    batch = pipeline.batches(mixed, weighted, 4, seed=1).make(
        mixed.train, weighted, np.array([len(mixed.train) - 1, 0]), np.zeros(2, int)
    )
    assert (batch["pointers"] != ABSENT).any(axis=2).tolist() == [[False] * 3, [True] * 3]


def test_names_that_no_text_has_are_refused(config):
    with pytest.raises(ValueError, match=r"has heads: .*far \(.*0.jsonl\), head \(.*, root"):
        pipeline.prepare(dataclasses.replace(config, pointers=("far", "heads")), quiet=True)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"validation_tokens": 300},  # of whole documents
        {"source": "{folder}/0.jsonl", "validation_tokens": 90},  # of the last sentences of each document
        {"source": "{folder}/0.jsonl:1,{folder}/1.jsonl:2"},
        {"source": "{folder}/0.jsonl", "validation_source": "{folder}/1.jsonl"},
    ],
)
def test_held_out_texts_are_those_of_the_rows_for_validation(config, folder, settings):
    paths = {key: value.format(folder=folder) for key, value in settings.items() if isinstance(value, str)}
    config = dataclasses.replace(config, **settings | paths)
    corpus = pipeline.prepare(config, quiet=True)
    texts = [text for texts in pipeline.held_out_texts(config, corpus, ("head",)) for text in texts]
    sentences = [
        sentence for text in texts for sentence in (text.sentences() if isinstance(text, Annotated) else [text])
    ]
    ids = [token for sentence in corpus.tokenizer.encode_batch(sentences) for token in sentence]
    rows = np.concatenate([corpus.validation.row(number) for number in range(len(corpus.validation))])
    np.testing.assert_array_equal(ids, rows[~np.isin(rows, corpus.tokenizer.special_ids)])
    assert any(isinstance(text, Annotated) and (text.pointers["head"] >= 0).any() for text in texts)
