"""Dependencies: a sentence by hand, damages, and the English Web Treebank."""

import gzip

import numpy as np
import pytest

from ag_jax.data.probes import trees, windows

ROWS = """
1 They they 2 nsubj:pass
2-3 can't _ _ _
2 ca can 0 root
3 n't not 2 advmod
3.1 so so _ _
4 see see 2 xcomp
5 red red 6 amod
6 cars car 4 obj
"""


def sentence(rows: str = ROWS, comments: str = "") -> str:
    words = (row.split() for row in rows.split("\n") if row)
    lines = ["\t".join([*word[:3], "X", "X", "_", *word[3:], "_", "_"]) for word in words]
    return "\n".join([*([comments] if comments else []), *lines, "", ""])


def test_a_sentence_by_hand(write):
    probe = trees.dependencies(write("one.conllu", sentence()))
    assert [window.words for window in probe.windows] == [("They", "ca", "n't", "see", "red", "cars")]
    assert [query.at for query in probe.queries] == [0, 1, 2, 3, 4, 5]
    assert [query.answers for query in probe.queries] == [(1,), (), (1,), (1,), (5,), (3,)]
    assert [query.kind for query in probe.queries] == ["nsubj:pass", "root", "advmod", "xcomp", "amod", "obj"]
    assert all(query.candidates == query.right == () for query in probe.queries)
    expected = {-3: [], -2: [3, 5], -1: [2], 1: [0, 4], 2: []}
    assert set(probe.baselines) == {f"offset {offset:+}" for offset in expected}
    for offset, right in expected.items():
        np.testing.assert_array_equal(np.flatnonzero(probe.baselines[f"offset {offset:+}"]), right)
    short = trees.dependencies(write("two.conllu", sentence()), subtypes=False)
    assert short.queries[0].kind == "nsubj"


def test_documents_parts_and_what_is_left_out(write):
    two = sentence(comments="# newdoc id = a") + sentence("1 Yes yes 0 root", "# text = Yes")
    write("ud/x-dev.conllu", two + sentence("1 No no 0 root", "# newdoc id = b"))
    write("ud/x-test.conllu", ("\r\n" + sentence() * 2).replace("\n", "\r\n").rstrip())
    folder = write("ud/x-train.conllu", sentence()).parent

    def lengths(words):
        return [{"Yes": 0, "cars": 9}.get(word, 1) for word in words]

    probe = trees.dependencies(folder)
    assert len(probe.queries) == 6 + 1 + 1 + 12 and probe.development.tolist() == [True] * 8 + [False] * 12
    names = [window.document for window in probe.windows]
    assert names == ["a", "a", "b", "x-test.conllu, line 2", "x-test.conllu, line 11"]
    assert probe.dropped == {trees.TRAIN: 1} and "sentences" in trees.TRAIN
    with_lengths = trees.dependencies(folder, lengths=lengths, window=13)
    assert with_lengths.dropped == {trees.TRAIN: 1, windows.NO_TOKENS: 1, trees.TOO_LONG: 18}
    assert len(with_lengths.queries) == 1


def test_names_of_documents(write):
    content = sentence() + sentence(comments="# newdoc") * 2
    content += sentence(comments="#newdoc id = a\n# newpar") + sentence()
    path = write("house of trees/x.conllu", content)
    second, third = (number for number, line in enumerate(content.split("\n"), 1) if line == "# newdoc")
    expected = ["x.conllu, line 1", f"x.conllu, line {second}", f"x.conllu, line {third}", "a", "a"]
    for given in (path, path.parent):
        assert [each.document for each in trees.read(given)] == expected
    write("house of trees/x.conllu.gz", gzip.compress(content.encode()))
    with pytest.raises(ValueError, match="x.conllu.gz.*x.conllu"):
        trees.dependencies(path.parent)


@pytest.mark.parametrize(
    "content, match",
    [
        (sentence().replace("\tX", "", 1), "line 1.*10 .* 9"),
        (sentence().replace("\n4\t", "\n5\t"), "line 6.* 4 .*'5'"),
        (sentence("1 a a 2 x\n2 b b 3 x\n3 c c 2 x"), "line 1.*word 1.*circle"),
        (sentence("1 a a 0 x\n2 b b 3 x\n3 c c 2 x"), "line 1.*word 2.*circle"),
        *((sentence(f"1 a a {head} x\n2 b b 0 x"), f"word 1 .a.*got '{head}'") for head in ("1", "3", "_")),
    ],
)
def test_damaged_files(write, content, match):
    with pytest.raises(ValueError, match=match):
        trees.dependencies(write("one.conllu", content))


def test_the_english_web_treebank(shared):
    probe = trees.dependencies(shared / "data" / "ud_english_ewt", window=1000)
    assert len(probe.windows) == len([query for query in probe.queries if query.kind == "root"]) == 2_001 + 2_077
    assert len({query.window for query in np.array(probe.queries, object)[probe.development]}) == 2_001
    documents = {window.document for window in probe.windows}
    assert 100 < len(documents) < 1000 and not any(", line " in name for name in documents)
    assert len(probe.queries) == sum(len(window.words) for window in probe.windows)
    best = max(probe.baselines, key=lambda name: probe.baselines[name].mean())
    assert best == "offset +1" and probe.dropped == {}
