"""GAP: a text by hand, offsets that are no words, damages, and the real files with their published counts."""

import collections

import numpy as np
import pytest

from ag_jax.data.probes import gap

HEADER = "ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\tURL"
TEXT = "Mary-Ann O'Neill's sister said that Eve Smith wouldn't think she'd won."


def row(pronoun="she", a="Mary-Ann O'Neill", b="Eve Smith", right="B", text=TEXT, name="development-1"):
    fields = [name, text, pronoun, text.index(pronoun + "'"), a, text.index(a), right == "A", b, text.index(b)]
    return "\t".join(map(str, [*fields, right == "B", "http://x"]))


def table(*rows: str) -> str:
    return "\n".join([HEADER, *rows, ""])


def test_a_text_by_hand(write):
    content = "\ufeff" + table(row(), row(right="A")).replace("\n", "\r\n")
    path = write("gap/gap-development.tsv", content.encode())
    write("gap/gap-test.tsv", table("", row(right="neither", name="test-1"), ""))
    write("gap/gap-validation.tsv", "not read")
    probe = gap.gap(path.parent)
    words = "Mary - Ann O'Neill 's sister said that Eve Smith wouldn't think she 'd won ."
    assert [window.words for window in probe.windows] == [tuple(words.split())] * 3
    assert [window.document for window in probe.windows] == ["development-1", "development-1", "test-1"]
    assert {query.at for query in probe.queries} == {12}
    assert {query.candidates for query in probe.queries} == {((0, 1, 2, 3), (8, 9))}
    assert [query.right for query in probe.queries] == [(1,), (0,), ()]
    assert [query.answers for query in probe.queries] == [(8, 9), (0, 1, 2, 3), ()]
    assert {query.kind for query in probe.queries} == {"feminine"}
    np.testing.assert_array_equal(probe.development, [True, True, False])
    np.testing.assert_array_equal(probe.baselines["nearest"], [1, 0, 0])
    assert probe.dropped == {}


def test_windows_keep_what_is_needed(write):
    for window, place in ((13, 0), (14, 0), (16, 0), (13, 12), (16, 12)):
        text = "Before that , " * (place // 4) + TEXT
        probe = gap.gap(write("one.tsv", table(row(text=text))), window=window)
        query, words = probe.queries[0], probe.windows[0].words
        assert len(words) == window and words[query.at] == "she" and (place or query.at == 12)
        assert [words[answer] for answer in query.answers] == ["Eve", "Smith"]


def test_what_does_not_fit_is_counted(write):
    path = write("one.tsv", table(row(), row(a="Ann O'Nei"), row()))
    assert gap.gap(path).dropped == {gap.INSIDE: 1}
    assert gap.gap(path, window=12).dropped == {gap.INSIDE: 1, gap.APART: 2}
    probe = gap.gap(path, lengths=lambda words: [int(word != "she") for word in words])
    assert probe.dropped == {gap.INSIDE: 1, gap.NO_TOKENS: 2} and not probe.queries


@pytest.mark.parametrize(
    "content, match",
    [
        (table(row()).replace("A-coref", "A_coref"), "line 2.*A-coref"),
        (table(row().replace("\t36\t", "\t37\t")), "line 2.*B='Eve Smith'.* 37"),
        (table(row().replace("\t36\t", "\tx\t")), "line 2.*B='Eve Smith'.* x"),
        (table(row().replace("True", "yes")), "line 2.*TRUE or FALSE"),
        (table(row().replace("she", "who")), "line 2.*'who'"),
    ],
)
def test_damaged_files(write, content, match):
    with pytest.raises(ValueError, match=match):
        gap.gap(write("one.tsv", content))


def test_the_real_files(shared):
    expected = {
        "development": (874, 925, 201, 0.469),
        "validation": (187, 205, 62, 0.489),
        "test": (918, 855, 227, 0.444),
    }
    for name, (a, b, neither, nearest) in expected.items():
        rows = list(gap.read(shared / "data" / "gap" / f"gap-{name}.tsv", dropped := collections.Counter()))
        found = collections.Counter(row.is_right for row in rows)
        assert found == {(True, False): a, (False, True): b, (False, False): neither} and not dropped
        assert round(np.mean([row.is_right[row.nearest] for row in rows]), 3) == nearest
        assert sum(row.gender == "feminine" for row in rows) * 2 == len(rows)
