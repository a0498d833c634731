"""Word alignments: files, tokens of words, and the tokens of packed batches, against plain loops."""

import dataclasses
import gzip
import zlib
from types import SimpleNamespace

import numpy as np
import pytest

from ag_jax.data import pipeline, tokens
from ag_jax.data.parallel import alignments, layout
from ag_jax.data.parallel.alignments import AlignedPair
from ag_jax.data.parallel.layout import Pairs
from ag_jax.data.parallel.pairs import PairFiles
from ag_jax.data.store import ABSENT
from tests.data.parallel.conftest import pairs

LINES = {"a.en": "a red dog\n\nb\n", "a.de": "ein Hund\nleer\nc\n", "a.links": "0-0 2-1 1-1\n\n0-0\n"}


def write(folder, **contents) -> PairFiles:
    for name, content in (LINES | {f"a.{name}": content for name, content in contents.items()}).items():
        (folder / name).write_text(content)
    return PairFiles(str(folder / "a.en"), str(folder / "a.de"), alignments=str(folder / "a.links"))


def test_files_of_lines_and_of_records(tmp_path):
    """A record with null has a line, too, and is left out together with it."""
    expected = [("a red dog", "ein Hund", "0-0 2-1 1-1\n"), ("", "leer", "\n"), ("b", "c", "0-0\n")]
    files = write(tmp_path)
    assert list(files) == expected and files.files()["alignments"] == [("a.links", tmp_path / "a.links")]
    (tmp_path / "a.tsv").write_text("source\ttarget\na red dog\tein Hund\n\tleer\nb\tc\n")
    with gzip.open(tmp_path / "b.gz", "wt") as file:
        file.write(LINES["a.links"])
    in_table = PairFiles(str(tmp_path / "a.tsv"), alignments=str(tmp_path / "b.gz"))
    assert list(in_table) == expected
    (tmp_path / "a.jsonl").write_text('{"source": "a", "target": null}\n{"source": "b", "target": "c"}\n')
    (tmp_path / "b.links").write_text("7-7\n0-0\n")
    of_records = PairFiles(str(tmp_path / "a.jsonl"), alignments=str(tmp_path / "b.links"), skip_null=True)
    assert list(of_records) == [("b", "c", "0-0\n")]
    before = files.identity()
    write(tmp_path, links="0-0\n\n\n")
    assert files.identity() != before != dataclasses.replace(files, alignments=None).identity()


@pytest.mark.parametrize(
    ("contents", "match"),
    [
        ({"links": "0-0\n\n"}, "a.links has 2 lines and .*a.en has 3 pairs"),
        ({"links": "0-0\n\n0-0\n\n\n"}, "a.links has 5 lines and .*a.en has 3 pairs"),
        ({"links": "0-0\n\n1-0\n"}, "a.links, line 3: 1-0 names source word 1.* 1 words"),
        ({"links": "0-0 2-2\n\n\n"}, "a.links, line 1: 2-2 names target word 2.* 2 words"),
        ({"links": "\n0-0\n\n"}, "a.links, line 2.* 0 words"),
        ({"links": "0-0 1p1\n\n\n"}, "line 1.*'1p1'"),
        ({"links": "0-0 -1-1\n\n\n"}, "line 1.*'-1-1'"),
    ],
)
def test_bad_alignments_are_named(tmp_path, contents, match):
    with pytest.raises(ValueError, match=match):
        list(write(tmp_path, **contents))


def test_as_many_files_as_sources(tmp_path):
    files = write(tmp_path)
    with pytest.raises(ValueError, match="data.alignments has 2 files .*data.source has 1"):
        list(dataclasses.replace(files, alignments=f"{files.alignments},{files.alignments}"))


def test_the_first_tokens_of_aligned_words():
    r"""The tokens of the source are `a`, `▁re`, `d`, `▁do|n't`; the target's `▁`, `e`, `in`, `▁H`, ` und`.

    The last two words of each side begin in one token, of which the target's first word counts, and a character that
    the tokenizer drops begins the second word.
    """
    source, of_source = "a \u200bred do n't", [(0, 1), (1, 5), (5, 6), (6, 13)]
    target, of_target = "ein H und", [(0, 0), (0, 1), (1, 3), (3, 9)]
    assert alignments.first_tokens(source, of_source).tolist() == [0, 1, 3, 3]
    assert alignments.first_tokens(target, of_target).tolist() == [1, 3, 3]
    assert alignments.first_tokens("a \u200b b", [(0, 1), (3, 5)]).tolist() == [0, alignments.UNALIGNED, 1]
    for links, expected in (
        ("3-0 1-0 2-1 0-2", [1, 3]),
        ("0-2", [ABSENT, ABSENT]),
        ("0-0\n", [0, ABSENT]),
        ("", [ABSENT, ABSENT]),
    ):
        found = alignments.source_tokens(AlignedPair(source, target, links), of_source, of_target)
        assert found.tolist() == [ABSENT] * 5 + [expected[0], ABSENT, expected[1]] and found.dtype == np.int16
    # A text that is too long for any row is left out later.
    long, places = "a " * 40_000, [(2 * at, 2 * at + 1) for at in range(40_000)]
    assert len(alignments.source_tokens(AlignedPair(long, "b", "39999-0"), places, [(0, 1)])) == 40_001


def test_a_pair_of_characters_that_the_tokenizer_drops_has_no_pointers():
    located = {"a": ([5], [(0, 1)]), "b": ([6], [(0, 1)]), "\u200b": ([], [])}
    locate = lambda texts: [located[text] for text in texts]  # noqa: E731
    tokenizer = SimpleNamespace(locate_batch=locate, locate_targets=locate, vocabulary_size=9)
    encoded = Pairs.encode(tokenizer, [AlignedPair("a", "\u200b", "0-0"), AlignedPair("a", "b", "0-0")])
    assert encoded.tokens.tolist() == [5, 6] and encoded.sentences.tolist() == [0, 2]
    assert encoded.pointers["alignment"].tolist() == [ABSENT, 0]


def test_batches_follow_the_pairs_through_filters_and_packing(config, corpus, folder, tmp_path, monkeypatch):
    """Which pairs are held out, left out and packed does not change, and each keeps its alignment."""
    monkeypatch.setattr(tokens, "ENCODED_TOGETHER", 700)
    monkeypatch.setattr(layout, "WRITTEN_TOGETHER", 10)
    texts, links = [("a dog", "una kato lo kato"), *pairs(folder), ("", "lo kato")], {}
    for source, target in texts:
        words, turn = (len(source.split()), len(target.split())), zlib.crc32(source.encode())
        links[source, target] = {j: (turn + 3 * j) % words[0] for j in range(words[1]) if words[0] and (turn + j) % 4}
    of_files = [*zip(*texts, strict=True), [" ".join(f"{i}-{j}" for j, i in links[pair].items()) for pair in texts]]
    for name, lines in zip(("source", "target", "links"), of_files, strict=True):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    corpus.tokenizer.save(tmp_path / "tokenizer")
    plain = dataclasses.replace(
        config,
        source=str(tmp_path / "source"),
        target=str(tmp_path / "target"),
        validation_source=None,
        validation_target=None,
        validation_fraction=0.3,
        max_words_ratio=1.2,
        max_tokens=8,
        tokenizer=dataclasses.replace(config.tokenizer, path=str(tmp_path / "tokenizer")),
        cache_dir=str(tmp_path / "cache"),
    )
    aligned = dataclasses.replace(plain, alignments=str(tmp_path / "links"))
    prepared, without = pipeline.prepare(aligned), pipeline.prepare(plain)
    reasons = {name.partition("pairs ")[2] for name in prepared.left_out}
    assert prepared.left_out == without.left_out and reasons == {"without text", "of unequal lengths", "too long"}
    tokenizer, seen = corpus.tokenizer, 0
    batch_of = {
        "train": pipeline.batches(prepared, aligned, len(prepared.train), 0).at(0),
        "validation": next(pipeline.validation_batches(prepared, aligned, len(prepared.validation) + 1)),
    }
    other = next(pipeline.validation_batches(without, plain, len(without.validation) + 1))
    for name, field in other.items():
        np.testing.assert_array_equal(batch_of["validation"][name], field)
    for batch in batch_of.values():
        assert batch["alignment"].dtype == np.int16
        for row, columns in enumerate(batch["alignment"]):
            expected = np.full(len(columns), -1)
            for text in range(1, batch["segment_ids"][row].max() + 1):
                at, to = (batch[name][row] == text for name in ("segment_ids", "target_segment_ids"))
                begin, label = np.flatnonzero(at)[0], np.flatnonzero(to)[0]
                ids = [batch["tokens"][row][at][:-1], batch["target_labels"][row][to][:-1]]
                pair = tuple(map(tokenizer.decode, ids))
                # A token of byte-level BPE begins a word if a space is before it, or nothing.
                firsts = [
                    [place for place, token in enumerate(tokenizer.tokens(side)) if place == 0 or token[0] == "▁"]
                    for side in ids
                ]
                for j, i in links[pair].items():
                    expected[label + firsts[1][j]] = begin + firsts[0][i]
                seen += 1
            assert columns.tolist() == expected.tolist()
    assert 0 < seen == sum(prepared.documents.values()) < len(texts) - 2
