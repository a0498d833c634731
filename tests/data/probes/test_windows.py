"""Windows of documents, the split of documents into development and test, and names of files."""

import io
import itertools
import tarfile

import numpy as np
import pytest

from ag_jax.data.probes import files, splits, windows
from ag_jax.data.probes.windows import Stretch


@pytest.mark.parametrize("limit", (1, 3, 7, 11, 60))
def test_windows_are_whole_sentences_as_long_as_possible(limit):
    for seed in range(5):
        draws = np.random.default_rng(seed)
        tokens = draws.integers(0, 4, 53)
        starts = [0, *sorted(draws.choice(np.arange(1, 53), 9, replace=False).tolist())]
        found, split = windows.cut(tokens, starts, limit)
        assert found[0].begin == 0 and found[-1].end == 53
        assert all(one.end == other.begin for one, other in itertools.pairwise(found))
        ends = [*starts[1:], 53]
        too_long = {begin: end for begin, end in zip(starts, ends, strict=True) if tokens[begin:end].sum() > limit}
        assert split == len(too_long)
        for begin, end in found:
            assert tokens[begin:end].sum() <= limit or end == begin + 1
            if end in ends:
                following = next((stop for stop in ends if stop > end), None)
                split_around = any(start <= begin < stop for start, stop in too_long.items())
                # The next sentence does not fit, too; a last part of a split sentence is a window of its own.
                assert following is None or split_around or tokens[begin:following].sum() > limit
            else:
                assert any(start <= begin and end < stop for start, stop in too_long.items())
                assert tokens[begin : end + 1].sum() > limit


def test_cut_by_hand():
    assert windows.cut(np.ones(0, int), [], 5) == ([], 0)
    assert windows.cut(np.ones(7, int), [0, 3, 5], 5) == ([Stretch(0, 5), Stretch(5, 7)], 0)
    expected = [Stretch(0, 2), Stretch(2, 3), Stretch(3, 4), Stretch(4, 6)]
    assert windows.cut(np.array([1, 1, 9, 1, 2, 2]), [0, 4, 5], 4) == (expected, 1)
    assert windows.count_tokens(["a", "bc"], None).tolist() == [1, 1]
    assert windows.count_tokens(["a", "bc"], lambda words: list(map(len, words))).tolist() == [1, 2]


def test_the_part_around_what_is_needed():
    """The most text before, and then the most after."""
    tokens = np.array([2, 1, 3, 1, 1, 2, 1, 4])
    for limit in range(1, 20):
        fitting = [Stretch(begin, end) for begin in range(4) for end in range(6, 9) if tokens[begin:end].sum() <= limit]
        expected = min(fitting, key=lambda stretch: (stretch.begin, -stretch.end), default=None)
        assert windows.around(tokens, Stretch(3, 6), limit) == expected and (expected is None) == (limit < 4)


def test_parts_of_data_sets():
    expected = {
        "/gap-test.tsv": "test",
        "/development/data/english/x.v4_gold_conll": "development",
        "/en-ud-dev.conllu": "development",
        "/train/x": "train",
        "/validation.jsonl": "development",
        "/contest/a.conll": None,
        "/test/devices.conll": "test",
    }
    assert {place: splits.official(place) for place in expected} == expected


def test_division(tmp_path):
    base = tmp_path / "test" / "data"
    documents = [(str(number), f"{base}/{number}.conll") for number in range(17)]
    parts = splits.divide([*documents, *documents], base)
    assert parts[:17] == parts[17:] and parts[:17].count("development") == 3
    shuffled = splits.divide(documents[::-1], base)
    assert shuffled[::-1] == parts[:17]
    assert splits.divide(documents[:1], base) == ["test"]
    named = [("a", f"{base}/dev/a"), ("b", f"{base}/test/b"), ("c", f"train/c of {base}/more.tar")]
    assert splits.divide(named, base) == ["development", "test", "train"]
    # Only one part, or a file of no part: not official.
    assert splits.divide([("a", f"{base}/dev/a"), ("b", f"{base}/dev/b")], base).count("development") == 1
    assert "train" not in splits.divide([*named, ("d", f"{base}/d")], base)


def test_the_names_with_the_smallest_digests():
    # printf %s a | md5sum: 0cc1..., b: 92eb..., c: 4a8a..., d: 8277..., e: e167...
    assert splits.by_digest("abcde") == {"a"} and splits.by_digest("bcde") == {"c"} and splits.by_digest("a") == set()


@pytest.mark.parametrize("given", ["litbank", "./litbank", "{here}/litbank"])
def test_names_of_members_do_not_depend_on_the_path(given, tmp_path, monkeypatch):
    """Also if a member of an archive has the name of the given folder, or a file the words of a place."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "litbank"
    (folder / "deep").mkdir(parents=True)
    with tarfile.open(folder / "x.tar", "w") as archive:
        for name in ("litbank/coref/a.conll", "a of litbank.conll"):
            member = tarfile.TarInfo(name)
            member.size = 4
            archive.addfile(member, io.BytesIO(b"text"))
    (folder / "deep" / "b.conll").write_text("text")
    path = given.replace("{here}", str(tmp_path))
    places = [place for place, _ in files.lines(path, (".conll",))]
    expected = ["deep/b.conll", "x.tar/a of litbank.conll", "x.tar/litbank/coref/a.conll"]
    assert sorted(files.below(place, path) for place in places) == expected
