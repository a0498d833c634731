"""Annotated texts: sentences by hand in CoNLL-U and in JSON, what is refused, and treebanks."""

import gzip
import json
import pickle
import re

import numpy as np
import pytest

from ag_jax.data.probes import trees
from ag_jax.data.records import sources
from ag_jax.data.records.annotated import NONE, Annotated, antecedents, other_tree, root
from ag_jax.data.text import holdout
from tests.data.conftest import write

NAMES = ("head", "child_first", "root", "antecedent", "other_tree", "link")
# Two documents; mentions of entity 1: "Mary", "her" and "her cat" (with the longer entity 2), and again "her".
CONLLU = """\
# newdoc id = a
# global.Entity = etype-eid-head
# text = Mary isn't here.
1 Mary 2 Entity=(person-e1-1)
2-3 isn't _ _
2 is 0 _
3 n't 2 link=1
4 here 2 SpaceAfter=No
5 . 2 _

# text = Go zum Haus!
1 Go 0 Entity=(x-e3[1/2]-1)
2-3 zum _ _
2 zu 4 _
3 dem 4 Entity=(x-e1-1)
4 Haus 1 SpaceAfter=No|Entity=(place-e2-1)(x-e3[2/2]-1)
5 ! 1 SpaceAfter=No|Entity=(x-e3-1)

# newdoc
1 her 2 Entity=(x-e2-1(x-e1-1)
2 cat 3 Entity=e2)
3 saw 0 _
4 her 3 Entity=(x-e1-1)|link=0
"""


def conllu(rows: str) -> str:
    lines = []
    for line in rows.splitlines():
        columns = line.split(" ")
        is_word = line and not line.startswith("#")
        if is_word:
            columns = [*columns[:2], *"_XX_", columns[2], "x", "_", columns[3]]
        lines.append("\t".join(columns) if is_word else line)
    return "\n".join([*lines, ""])


def read(path, names=NAMES) -> list[Annotated]:
    documents = list(sources.documents(str(path), pointers=names))
    assert all(isinstance(document, Annotated) for document in documents)
    return documents


def words(text: Annotated) -> list[str]:
    return [str(text)[start:stop] for start, stop in zip(text.starts_W, text.stops_W, strict=True)]


def links(text: Annotated) -> dict[str, list[int]]:
    return {name: targets.tolist() for name, targets in text.pointers.items()}


def test_conllu_by_hand(tmp_path):
    write(tmp_path, {"a.conllu": conllu(CONLLU)})
    first, second = read(tmp_path / "a.conllu")
    assert first == "Mary isn't here. Go zum Haus!" and second == "her cat saw her"
    assert first.sentences() == ["Mary isn't here.", " Go zum Haus!"]
    assert words(first) == ["Mary", "is", "n't", "here", ".", "Go", "zum", "zum", "Haus", "!"]
    assert links(first) == {
        "head": [1, -1, 1, 1, 1, -1, 8, 8, 5, 5],
        "child_first": [-1, 0, -1, -1, -1, 8, -1, -1, 6, -1],
        "root": [1, -1, 1, 1, 1, -1, 5, 5, 5, 5],
        "antecedent": [-1] * 7 + [0, -1, 5],
        "other_tree": [-1] * 5 + [6, -1, 6, 6, 6],
        "link": [-1, -1, 0] + [-1] * 7,
    }
    # "her cat" is new, so "her" has no antecedent before it; the last "her" goes back to the first.
    assert links(second)["antecedent"] == [-1, -1, -1, 0] and links(second)["link"] == [-1] * 4
    assert links(second)["other_tree"] == [-1] * 4, "no earlier sentence has four words"
    plain = list(sources.documents(str(tmp_path / "a.conllu")))
    assert plain == [first, second] and [text.sentences() for text in plain] == [first.sentences(), second.sentences()]
    write(tmp_path, {"b.conllu.gz": gzip.compress(re.sub("# newdoc.*\n", "", conllu(CONLLU)).encode())})
    assert read(tmp_path / "b.conllu.gz", ()) == [f"{first}{second}"], "a file without newdoc is one document"


def test_parts_of_a_mention_and_the_longest_mention():
    write_order = [(5, 6, "a"), (0, 1, "a"), (3, 4, "b"), (3, 6, "a"), (1, 2, "b"), (5, 9, "b"), (3, 5, "a")]
    # At 3, the longest mention is of a; at 5, of b.
    assert antecedents(write_order, 9).tolist() == [-1, -1, -1, 0, -1, 3, -1, -1, -1]
    assert antecedents([(0, 1, "a"), (2, 9, "b"), (2, 3, "a")], 3).tolist() == [-1, -1, 0]


def test_roots_of_deep_trees_and_the_last_tree_of_a_length():
    for count in range(1, 20):
        assert root(np.arange(-1, count - 1), np.array([count]), {}, "").tolist() == [-1] + [0] * (count - 1)
    heads, kept = np.array([-1, 0, 3, -1, -1, 4]), {}
    assert other_tree(heads, np.array([2, 4, 6]), kept, "").tolist() == [-1, -1, -1, 2, 5, -1]
    assert kept[2].tolist() == [-1, 0]


def test_json_by_hand(tmp_path):
    record = {"words": ["Go", ",", "Mary", "!", "Now"], "spaces": [False, True, False, True, False]}
    record |= {"sentences": [4, 5], "head": [0, 3, 1, None, 3], "link": [0, 0, 2, 0, 5], "other": "text"}
    write(tmp_path, {"a.jsonl": json.dumps(record) + "\n" + json.dumps({"words": ["a", "b"], "head": [2, 0]})})
    first, second = read(tmp_path / "a.jsonl")
    assert first == "Go, Mary! Now" and first.sentences() == ["Go, Mary!", " Now"] and second == "a b"
    assert words(first) == record["words"]
    assert links(first) == {
        "head": [-1, 2, 0, -1, 2],
        "child_first": [2, -1, 1, -1, -1],
        "root": [-1, 0, 0, -1, 0],
        "other_tree": [-1] * 5,
        "link": [-1, -1, 1, -1, 4],
    }
    assert links(second) == {"head": [1, -1], "child_first": [-1, 0], "root": [1, -1], "other_tree": [-1, -1]}
    # A text is read as it is, beside words, and words may be under another key.
    write(tmp_path, {"b.jsonl": json.dumps({"text": "a b", "words": ["a", "b"]})})
    assert [type(text) for text in sources.documents(str(tmp_path / "b.jsonl"))] == [str]
    assert isinstance(next(sources.documents(str(tmp_path / "b.jsonl"), "words")), Annotated)


def test_parts_of_annotated_texts(tmp_path):
    write(tmp_path, {"a.conllu": conllu(CONLLU)})
    text = read(tmp_path / "a.conllu", ("head", "antecedent"))[0]
    for start, stop in [(0, 29), (0, 16), (16, 29), (5, 24), (7, 21), (29, 29)]:
        part = text[start:stop]
        assert part == str(text)[start:stop] and "".join(part.sentences()) == part
        kept = [at for at, begin in enumerate(text.starts_W) if start <= begin < stop]
        assert words(part) == [str(text)[text.starts_W[at] : min(text.stops_W[at], stop)] for at in kept]
        for name, targets in text.pointers.items():
            expected = [kept.index(targets[at]) if targets[at] in kept else NONE for at in kept]
            assert part.pointers[name].tolist() == expected
    begin, end = holdout._cut(0, text, text.sentences(), 1)  # the last sentence is held out
    assert [piece.texts[0].sentences() for piece in (begin, end)] == [[sentence] for sentence in text.sentences()]
    copy = pickle.loads(pickle.dumps(text))
    assert copy == text and copy.sentences() == text.sentences() and links(copy) == links(text)
    # Words are skipped, and texts end, as in the plain text.
    for settings in ({"skip_words": (2,)}, {"max_words": 4}):
        plain = list(sources.documents(str(tmp_path / "a.conllu"), **settings))
        found = list(sources.documents(str(tmp_path / "a.conllu"), pointers=("head",), **settings))
        assert found == plain and str(found[0]) in str(text) and all(isinstance(part, Annotated) for part in found)
    skipped = next(sources.documents(str(tmp_path / "a.conllu"), skip_words=(2,), pointers=("head",)))
    assert words(skipped)[:2] == ["here", "."] and links(skipped)["head"] == [-1, -1, -1, 5, 5, 2, 2]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (("1 Mary 2", "1 Mary 1"), "line 4: word 1 .Mary.*got '1'"),
        (("2-3 isn't", "2-9 isn't"), "line 4.*2-9"),
        (("link=1", "link=6"), "line 4: word 3 .n't.*link.*'6'"),
        (("Entity=e2)", "Entity=e3)"), "line 20: word 2 .cat.*e3"),
        (("1 Mary", "1-2 Marys _ _\n\n1 Mary"), r"1-2 \(Marys\)"),
        (("(x-e1-1)\n4", "(x-e1-1\n4"), "line 4.*e1.*does not end"),
        (("4 here", "5 here"), "line 8.*4.*'5'"),
    ],
)
def test_damaged_conllu(tmp_path, change, match):
    content = CONLLU.replace(*change, 1)
    write(tmp_path, {"a.conllu": conllu(content)})
    with pytest.raises(ValueError, match=f"a.conllu.*{match}"):
        read(tmp_path / "a.conllu")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"words": ["a", 3]}, "words"),
        ({"words": ["a", ""]}, "words"),
        ({"spaces": [True]}, "spaces"),
        ({"spaces": [1, 0]}, "spaces"),
        ({"sentences": [1]}, "sentences"),
        ({"sentences": [2, 2]}, "sentences"),
        ({"head": [2]}, "head"),
        ({"head": [3, 0]}, "head"),
        ({"head": [-1, 0]}, "head"),
        ({"head": [True, 0]}, "head"),
        ({"head": [2, 1]}, "word 1.*circle"),
    ],
)
def test_damaged_json(tmp_path, change, match):
    write(tmp_path, {"a.jsonl": json.dumps({"words": ["a", "b"]} | change)})
    with pytest.raises(ValueError, match=f"a.jsonl, line 1: .*{match}"):
        read(tmp_path / "a.jsonl")


def test_treebanks(shared):
    folder = shared / "data" / "ud_english_ewt"
    lines = [
        line for path in sorted(folder.glob("*.gz")) for line in gzip.decompress(path.read_bytes()).decode().split("\n")
    ]
    texts = [line.removeprefix("# text = ") for line in lines if line.startswith("# text = ")]
    documents = read(f"{folder}/*.gz", ("head", "root"))
    sentences = [sentence for document in documents for sentence in document.sentences()]
    assert [sentence.split() for sentence in sentences] == [text.split() for text in texts] and len(documents) > 300
    forms, heads = [], []
    for document in documents:
        forms += words(document)
        firsts = np.searchsorted(document.ends_S, document.starts_W, side="right")
        firsts = np.searchsorted(document.starts_W, np.append(0, document.ends_S))[firsts]
        heads.append(np.where(document.pointers["head"] < 0, -1, document.pointers["head"] - firsts))
        assert (document.pointers["root"] < 0).sum() == len(document.sentences())
    expected = list(trees.read(folder))
    assert "".join(forms) == "".join(form for sentence in expected for form in sentence.words)
    assert np.concatenate(heads).tolist() == [head for sentence in expected for head in sentence.heads]
