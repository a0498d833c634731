"""Custom tasks: what is read from files of every form, what is held out, and which files are rejected."""

import dataclasses
import gzip
import json
import pathlib
import sys
import types
import zlib

import numpy as np
import pytest

from ag_jax.data.tasks import catalogue, custom, schemes
from ag_jax.data.tasks.custom import CustomTask
from ag_jax.data.tasks.task import Choices, Question, TaggedSentence, Texts
from tests.data.tasks.test_layouts import write

HEADER = "review,stars\n"
REVIEWS = HEADER + "".join(f"film {number},{1 + number % 3}\n" for number in range(40))
GOOD = HEADER + "a,1\nb,2\nc,1\nd,2\n"
SENTENCES = [
    {"words": ["Ana", "saw", "New", "York"], "tags": ["B-PER", "O", "B-LOC", "I-LOC"]},
    {"words": ["Bo", "left", "."], "tags": ["B-PER", "O", "O"]},
]
ANSWERED = {"context": "a b", "question": "q", "answers": [{"text": "b", "answer_start": 2}]}


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def settings(root, kind="classification", **given):
    columns = {} if kind in ("tagging", "span") else {"text": "review", "label": "stars"}
    return custom.resolved("own", CustomTask(**{"kind": kind, "train": "a.csv", **columns, **given}), str(root))


def load(root, split="train", skip=False, **given):
    return custom.load("own", settings(root, **given), str(root), split, skip_malformed=skip)


def read(root, **given):
    """All training examples."""
    return custom.load("own", settings(root, **given), str(root), "train", folds=True).items


def pack(path, content):
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if path.suffix.lower() == ".gz" else content)


@pytest.fixture
def reader(monkeypatch):
    """The module whose functions the setting `reader` names."""
    module = types.ModuleType("my_reader")
    monkeypatch.setitem(sys.modules, "my_reader", module)
    return module


def test_a_table_with_labels_from_train_and_a_part_held_out(tmp_path):
    write(tmp_path, {"a.csv": "\ufeff" + REVIEWS})  # as spreadsheets save it
    found = settings(tmp_path)
    assert found.labels == ("1", "2", "3") and found.fingerprint
    assert custom.resolved("own", found, None) is found
    for one_in in (10, 4):
        train, held = (load(tmp_path, split, held_out=one_in) for split in ("train", "validation"))
        expected = [number for number in range(40) if zlib.crc32(f"film {number}".encode()) % one_in == 0]
        assert 0 < len(expected) < 20
        assert held.items == tuple(Texts(str(number), f"film {number}", None, number % 3) for number in expected)
        assert {int(example.id) for example in train} == set(range(40)) - set(expected)
    write(tmp_path, {"t.csv": "review\nx\n", "u.csv": "review,stars\nx,\ny,2\n"})  # tests may have no labels
    assert [load(tmp_path, "test", test=name)[-1].label for name in ("t.csv", "u.csv")] == [None, 1]
    held = load(tmp_path, "validation")
    write(tmp_path, {"a.csv": "review,stars\nnew,2\n" + REVIEWS.split("\n", 1)[1]})
    assert [example.first for example in load(tmp_path, "validation")] == [example.first for example in held]
    write(tmp_path, {"a.csv": REVIEWS + REVIEWS.split("\n", 1)[1]})  # equal texts are in the same part
    train, held = ({example.first for example in load(tmp_path, split)} for split in ("train", "validation"))
    assert len(train) + len(held) == 40 and not train & held


HELD_OUT_BY = {  # the text of an example that decides whether it is held out
    Texts("0", "a", "b", 1): "a\nb",
    Texts("0", "a", None, 1): "a",
    Choices("0", (("a", "q b"), ("a", "q c")), (1,)): "a\nq b\nq c",
    TaggedSentence("0", ("a", "b"), ("B-X", "O")): "a b",
    Question("0", "q", "a", (("a", 0),)): "a",
}


def test_what_of_an_example_decides_whether_it_is_held_out():
    assert {example: custom.custom_records.content(example) for example in HELD_OUT_BY} == HELD_OUT_BY


@pytest.mark.parametrize("separator", [None, "comma", "semicolon", "tab"])
def test_tables_read_the_same_whatever_separates_their_columns(tmp_path, separator):
    sign = {"semicolon": ";", "tab": "\t"}.get(separator, ",")
    text = f'id{sign}review{sign}other{sign}stars\nx7{sign}"a {sign} ""b"""{sign}c{sign}yes\ny{sign}d{sign}e{sign}no\n'
    expected = (Texts("x7", f'a {sign} "b"', "c", 1), Texts("y", "d", "e", 0))
    for name in ("a.csv", "A.CSV.GZ"):
        pack(tmp_path / name, text)
        given = {"train": name, "id": "id", "second": "other", "separator": separator}
        assert settings(tmp_path, **given).labels == ("no", "yes") and read(tmp_path, **given) == expected
    write(tmp_path, {"a.tsv": 'review\tstars\n"so" he said\t1\nb\t2\n'})
    assert read(tmp_path, train="a.tsv")[0].first == '"so" he said', "quotes have no meaning in .tsv"


def test_labels_are_known_by_name_only_and_numbers_are_in_their_order(tmp_path):
    write(tmp_path, {"a.csv": "review,stars\na,10\nb,2\nc,1\nd,10\nx,b\ny,a\n", "b.csv": "review,stars\na,0\n"})
    assert settings(tmp_path).labels == ("1", "2", "10", "a", "b")
    with pytest.raises(ValueError, match="b.csv, line 2.*'0'.*'stars'.*1, 2, 10"):
        load(tmp_path, "validation", validation="b.csv")
    given = ("10", "2", "1", "0", "a", "b")
    assert load(tmp_path, "validation", validation="b.csv", labels=given)[0].label == 3
    values = [True, False, 3, " a ", 2.5, "nan", None, float("nan")]
    names = ["true", "false", "3", "a", "2.5", "nan", "", ""]
    assert [custom.custom_records.label_text(value, "x") for value in values] == names
    write(tmp_path, {"a.csv": "review,stars\na,NA\nb,yes\nc,no\nd,no\n"})
    with pytest.raises(ValueError, match="a.csv, line 2.*'stars'.*missing"):
        load(tmp_path)
    assert load(tmp_path, labels=("NA", "no", "yes"), held_out=2)


SETS = [["b", "a"], [], ["b"], ["c"], ["a", "c"], ["b"]]
WRITTEN = [", ".join, json.dumps, repr]  # as a text, as JSON, as pandas writes lists


def test_sets_of_labels_are_the_same_in_every_form(tmp_path):
    expected, given = [(0, 1), (), (1,), (2,), (0, 2), (1,)], {"kind": "multilabel"}
    for written in [*WRITTEN, None]:
        rows = [{"review": "x", "stars": of if written is None else written(of)} for of in SETS]
        write(tmp_path, {"a.jsonl": lines(*rows)})
        found = settings(tmp_path, **given, train="a.jsonl")
        assert (found.labels, found.label_type) == (("a", "b", "c"), "text")
        assert [one.label for one in read(tmp_path, **given, train="a.jsonl")] == expected
    quoted = [json.dumps(of).replace('"', '""') for of in SETS[:-1]]
    table = "review,stars\n" + "".join(f'x,"{of}"\n' for of in quoted) + "x,b\ny,\n"  # an empty cell is a set, too
    flags = "review,b,a,c\n" + "".join(f"x,{'b' in of:d},{'a' in of},{'c' in of:.1f}\n" for of in SETS)
    write(tmp_path, {"a.csv": table, "b.csv": flags, "c.csv": "review,stars\nx,\nx,none\nx,a\n"})
    assert [one.label for one in read(tmp_path, **given)] == [*expected, ()]
    columns = given | {"train": "b.csv", "label": "b,a,c"}
    assert settings(tmp_path, **columns).labels == ("b", "a", "c"), "in the order of the columns"
    assert [one.label for one in read(tmp_path, **columns, labels=("a", "b", "c"))] == expected
    write(tmp_path, {"d.csv": "review\nx\ny\n"})
    write(tmp_path, {"e.csv": "review,stars\nx,\ny,\n"})
    tests = [load(tmp_path, "test", test=file, **given) for file in ("c.csv", "d.csv", "e.csv")]
    assert [[one.label for one in of] for of in tests] == [[(), None, (0,)], [None, None], [None, None]]
    assert [one.label for one in load(tmp_path, "test", test="d.csv", **columns)] == [None, None]
    write(tmp_path, {"a.jsonl": lines(*({"review": "x", "stars": of} for of in ([3, 10], [], [3], [10, 2])))})
    found = settings(tmp_path, **given, train="a.jsonl")
    assert (found.labels, found.label_type) == (("2", "3", "10"), "integer")


def test_numbers(tmp_path):
    write(tmp_path, {"a.csv": "review,stars\na,-1\nb,2.5\nc,4\n", "b.csv": "review,stars\na,4\nb,9\nc,-2\n"})
    given = {"kind": "regression", "validation": "b.csv"}
    found = settings(tmp_path, **given)
    assert (found.lowest, found.highest) == (-1, 4) and custom.make_task("own", found).span == (-1, 4)
    assert [example.label for example in load(tmp_path, **given)] == [-1, 2.5, 4]
    with pytest.raises(ValueError, match=r"2 malformed(.|\n)*line 3.*-1 to 4.*'stars'.* got 9(.|\n)*line 4.*got -2"):
        load(tmp_path, "validation", **given)
    assert [one.label for one in load(tmp_path, "validation", highest=9.0, lowest=-2.0, **given)] == [4, 9, -2]


def test_choices_in_columns_and_in_lists(tmp_path):
    table = "review,q,x,y,stars\nt,Why?,one,two,B\nu,How?,three,four,0\nv,Who?,five,six,a\n"
    rows = ({"review": "t", "ends": ["a", "b", "c"], "stars": 2}, {"review": "u", "ends": ["a", "b"], "stars": 0})
    write(tmp_path, {"a.csv": table, "a.jsonl": lines(*rows)})
    found = read(tmp_path, kind="choice", second="q", choices=("x,y",))
    assert found[0] == Choices("0", (("t", "Why? one"), ("t", "Why? two")), (1,))
    assert [one.right for one in found[1:]] == [(0,), (0,)]
    found = read(tmp_path, kind="choice", train="a.jsonl", choices=("ends",))
    assert found[0].pairs == (("t", "a"), ("t", "b"), ("t", "c"))
    assert [len(example.pairs) for example in found] == [3, 2] and [one.right for one in found] == [(2,), (0,)]


def test_tags_in_json_and_in_columns_are_the_same(tmp_path):
    conll = "\n".join("".join(f"{w} x {t}\n" for w, t in zip(of["words"], of["tags"], strict=True)) for of in SENTENCES)
    write(tmp_path, {"a.jsonl": lines(*SENTENCES), "a.conll": conll})
    expected = tuple(TaggedSentence(str(n), tuple(of["words"]), tuple(of["tags"])) for n, of in enumerate(SENTENCES))
    for file in ("a.jsonl", "a.conll"):
        assert settings(tmp_path, "tagging", train=file).labels == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
        assert read(tmp_path, kind="tagging", train=file) == expected


def test_the_tags_of_a_task_of_the_catalogue_are_replaced():
    types, tags = ("PER", "ORG", "LOC", "DATE"), ("O", "B-DATE", "I-DATE")
    task = custom.make_task("conll2003", CustomTask(labels=types))
    assert task.labels == schemes.all_tags(types) and task.layouts == catalogue.find("conll2003").layouts
    assert custom.make_task("conll2003", CustomTask()) is catalogue.find("conll2003")
    assert custom.make_task("wnut17", CustomTask(labels=tags)).labels == tags
    for name, labels, word in (("wnut17", tags[:2], "I-DATE"), ("wnut17", tags[1:], "O"), ("sst2", ("a", "b"), "sst2")):
        with pytest.raises(ValueError, match=f"labels.*{word}"):
            custom.make_task(name, CustomTask(labels=labels))


@pytest.mark.parametrize(
    "absent", [{}, {"answers": None}, {"answers": []}, {"answers": {"text": [], "answer_start": []}}]
)
def test_spans_in_lines_some_without_an_answer(tmp_path, absent):
    rows = (ANSWERED, ANSWERED | {"answers": {"text": ["b"], "answer_start": [2]}})
    write(tmp_path, {"a.jsonl": lines(*rows, {"context": "c", "question": "q", "is_impossible": True, **absent})})
    found = settings(tmp_path, "span", train="a.jsonl")
    task = custom.make_task("own", found)
    assert found.answerable is False and not task.answerable
    assert {"best_f1", "no_answer_accuracy"} < set(task.metrics)
    answered = [Question(str(number), "q", "a b", (("b", 2),)) for number in (0, 1)]
    assert read(tmp_path, kind="span", train="a.jsonl") == (*answered, Question("2", "q", "c", ()))


def test_spans_of_squad_and_lists_of_what_it_nests(tmp_path):
    question = {"id": "x", "question": "q", "answers": ANSWERED["answers"]}
    paragraphs = [{"context": "a b", "qas": [question | {"is_impossible": False}]}]
    articles = [{"paragraphs": paragraphs}]
    for content in ({"data": articles}, articles, paragraphs, [{**question, "context": "a b"}]):
        write(tmp_path, {"a.json": json.dumps(content)})
        assert custom.make_task("own", settings(tmp_path, "span", train="a.json")).answerable
        assert read(tmp_path, kind="span", train="a.json") == (Question("x", "q", "a b", (("b", 2),)),)


COMMENTS = "# newdoc\nAna{0}B-PER\n# O\n# O{0}O\n\n# text = 1{0}2{0}3\n#{0}O\nto{0}O\n\n# O\n-DOCSTART-\n# ok\nBo{0}O"


def test_comments_of_columns_and_words_that_look_like_comments(tmp_path):
    lines = "# a = 1\r\n" * 9 + "\r\n#a O\r\nAna B-PER\r\n# O\r\n\r\n# O\r\nto O\r\n"
    expected = {COMMENTS.format(sign): ["Ana|#|# O", "#|to", "Bo"] for sign in ("\t", "\tx\t")}
    for content, sentences in (expected | {lines: ["#a|Ana|#", "#|to"]}).items():
        write(tmp_path, {"a.conll": content})
        found = read(tmp_path, kind="tagging", train="a.conll", labels=("PER",))
        assert ["|".join(example.words) for example in found] == sentences


NFC, NFD = "caf\u00e9", "cafe\u0301"
CODES = r"U\+0065 U\+0301 .*U\+00E9|U\+00E9 .*U\+0065 U\+0301|U\+0020 .*U\+00A0|U\+00A0 .*U\+0020"


@pytest.mark.parametrize(("label", "other"), [(NFC, NFD), ("a b", "a\u00a0b")])
def test_names_that_look_alike(tmp_path, label, other):
    rows = HEADER + "".join(f"film,{name}\n" for name in ("tea", label) * 2)
    write(tmp_path, {"a.csv": rows, "b.csv": HEADER + f"new,{other}\n", "c.csv": rows + f"film,{other}\n"})
    one, two = ({"words": ["a"], "tags": [f"B-{name}"]} for name in (label, other))
    write(tmp_path, {"a.jsonl": lines(one), "b.jsonl": lines(two), "c.jsonl": lines(one, two)})
    write(tmp_path, {"d.csv": f"review,{other}\na,1\nb,2\n"})
    for given, place in (
        ({"validation": "b.csv"}, "b.csv, line 2"),
        ({"labels": (label, other)}, "custom.labels"),
        ({"train": "c.csv"}, "c.csv, column 'stars'"),
        ({"kind": "tagging", "train": "a.jsonl", "validation": "b.jsonl"}, "b.jsonl, line 1"),
        ({"kind": "tagging", "train": "c.jsonl"}, "c.jsonl"),
        ({"train": "d.csv", "label": label}, "d.csv"),
    ):
        with pytest.raises(ValueError, match=f"{place}.*({CODES})"):
            load(tmp_path, "validation", **given)


def test_a_reader_of_other_files(tmp_path, reader):
    reader.read = lambda path: [
        {"review": line, "stars": number % 2} for number, line in enumerate(pathlib.Path(path).read_text().split("\n"))
    ]
    reader.wrong = lambda path: ["x"]
    reader.broken = lambda path: 1 / 0
    reader.half = lambda path: [{"review": text, "stars": label} for text, label in (("a", 1), ("\ud83d", 2), ("b", 2))]
    write(tmp_path, {"a.poem": "\n".join(f"line {number}" for number in range(30))})
    given = {"train": "a.poem", "reader": "my_reader.read"}
    train, held = load(tmp_path, **given), load(tmp_path, "validation", **given)
    assert train[0].first.startswith("line ") and len(train) + len(held) == 30
    for name, match in {"wrong": "str.*1.*a.poem", "broken": "custom.train=.*a.poem.*ZeroDivis", "absent": ""}.items():
        with pytest.raises(ValueError, match=f"my_reader.{name}.*{match}"):
            load(tmp_path, **given | {"reader": f"my_reader.{name}"})
    with pytest.raises(ValueError, match="record 2.*surrogate"):
        load(tmp_path, **given | {"reader": "my_reader.half"})


def test_a_reader_may_return_values_of_numpy(tmp_path, reader):
    reader.read = lambda path: [
        {"review": np.str_(f"film {n}"), "stars": np.int64(n % 2), "n": np.int32(n)} for n in range(4)
    ]
    answers = {"text": np.array(["b"], object), "answer_start": np.array([2])}
    reader.spans = lambda path: [{"context": "a b", "question": "q", "answers": answers}]
    write(tmp_path, {"a.npy": ""})
    for kind in ("classification", "regression"):
        found = read(tmp_path, kind=kind, train="a.npy", id="n", reader="my_reader.read")
        assert [example.label for example in found] == [0, 1, 0, 1] and found[3].id == "3"
    assert read(tmp_path, kind="span", train="a.npy", reader="my_reader.spans")[0].answers == (("b", 2),)


NUMBERS = {"kind": "regression"}
TAGS, SPANS, SETS_OF = {"kind": "tagging"}, {"kind": "span"}, {"kind": "multilabel"}
FLAGS = SETS_OF | {"label": "a,b"}
KNOWN = lines(*({"review": "x", "stars": of} for of in (["a", "b"], ["b"], ["a"])))
CHOICES = {"kind": "choice", "choices": ("a", "b")}
FILMS = lines({"review": "a", "stars": 1}, {"review": "b", "stars": 2})
# The settings, the ending of the training file, its content, and words that the error has.
BAD = [
    ({}, "csv", "text,stars\na,1\nb,2\n", "a.csv|'review'|own.custom.text|'text', 'stars'"),
    ({}, "csv", "review,star\na,1\nb,2\n", "'stars'|own.custom.label"),
    ({}, "csv", "review,stars,review\na,1,b\n", "a.csv|'review'"),
    ({}, "csv", HEADER, "train=|a.csv"),
    ({}, "csv", "", "a.csv"),
    ({}, "csv", GOOD + ",\n ,1\ne,\nf,nan\ne\n", "5 malformed|line 6|'review'|line 7|line 8|'stars'|line 9|line 10"),
    ({}, "csv", HEADER + "a,1\nb,1\n", "'stars'|got 1|own.custom.label"),
    ({}, "csv", HEADER + "a,0.5\nb,0.7\nc,0.1\n", "got 3 classes|own.custom.label"),
    (NUMBERS, "csv", GOOD + "e,good\nf,inf\n", "2 malformed|line 6|'stars'|'good'|line 7|'inf'"),
    (NUMBERS, "csv", HEADER + "a,nan\nb,\n", "'stars'|got 0"),
    (NUMBERS | {"lowest": 5.0}, "csv", GOOD, "got 4|5 as the lowest|2 as the highest|own.custom.label"),
    (NUMBERS, "csv", HEADER + "a,3\nb,3\n", "3 as the lowest|3 as the highest"),
    (FLAGS, "csv", "review,a,b\nx,1,2\nx,1,\nx,,\nx,0,1\n", "3 malformed|line 2|'b'|'2'|line 3|line 4|missing"),
    (FLAGS, "csv", "review,a\nx,1\n", "'b'|own.custom.label"),
    (SETS_OF, "csv", "review,stars\nx,\nx,[]\n", "'stars'|got none|own.custom.label"),
    (SETS_OF, "csv", "review,stars\nx,e f\nx,g\nx,h\n", "'stars'|3 labels|own.custom.label"),
    (SETS_OF, "csv", "review,stars\nx,0\nx,1\nx,1\n", "'stars'|got only 0, 1|own.custom.label"),
    (SETS_OF, "csv", "review,stars\nx,a\nx,a\nx,['a' 'b']\nx,{'a'}\n", "line 4|'stars'|line 5"),
    (SETS_OF, "jsonl", lines(*({"review": "x", "stars": of} for of in ([0, 1], [1, 0], []))), "vectors|[0, 1]"),
    ({}, "jsonl", KNOWN, "'stars'|got lists|kind=multilabel"),
    (SETS_OF, "jsonl", KNOWN + lines({"review": "x", "stars": None}, {"review": "x", "stars": "NaN"}), "line 4|line 5"),
    (SETS_OF, "jsonl", KNOWN + lines(*({"review": "x", "stars": of} for of in (3, [["a"]]))), "line 4|3|line 5"),
    (SETS_OF, "jsonl", KNOWN + lines({"review": "x", "stars": ["a", "b", "a"]}), "line 4|'a'|more than once"),
    (SETS_OF | {"labels": ("a", "b")}, "jsonl", KNOWN + lines({"review": "x", "stars": ["A"]}), "line 4|'A'|a, b"),
    (CHOICES, "csv", "review,a,b,stars\nx,1,,0\n", "line 2|'b'"),
    (CHOICES, "csv", "review,a,b,stars\nx,y,z,2\nx,y,z,C\nx,y,z,\n", "3 malformed|line 2|0 to 1|line 3|line 4|missing"),
    (CHOICES, "csv", "review,a,stars\nx,y,0\n", "'b'|own.custom.choices"),
    (CHOICES | {"choices": ("a",)}, "jsonl", lines({"review": "a", "a": ["x"], "stars": 0}), "line 1|'a'|['x']"),
    (TAGS, "csv", "words,tags\nx,O\n", "a.csv|.jsonl, .conll"),
    ({"id": "review"}, "csv", GOOD + "a,1\n", "a.csv|id|'a'"),
    ({"id": "stars", "label": "review"}, "csv", "review,stars\na,1\na,\nb,3\n", "line 3|id|'stars'"),
    (TAGS, "jsonl", lines(*SENTENCES, {"words": ["x"], "tags": ["PER"]}), "a.jsonl, line 3|BIO|'PER'"),
    (TAGS, "jsonl", lines({"words": ["x"], "tags": ["O"]}, {"words": ["x", "y"], "tags": "B-PER O"}), "a.jsonl|'tags'"),
    (TAGS | {"text": "wrods"}, "jsonl", lines(*SENTENCES), "'wrods'|'words', 'tags'|own.custom.text"),
    (NUMBERS, "jsonl", FILMS + lines({"review": "c", "stars": [2]}, {"review": "d", "stars": True}), "line 3|line 4"),
    (CHOICES, "jsonl", lines({"review": "a", "a": "x", "b": "y", "stars": [1]}), "line 1|'stars'|[1]"),
    ({}, "jsonl", FILMS + '{\n{"review": "c", "stars": NaN}\n', "2 malformed|line 3|JSON|line 4|missing"),
    ({}, "jsonl", FILMS + lines({"review": 5, "stars": 2}, {"review": "c", "stars": [2]}), "line 3|line 4|[2]"),
    (SPANS, "jsonl", lines(ANSWERED | {"answers": {"text": ["a"], "answer_start": []}}), "line 1"),
    (TAGS, "conll", "Ana B-PER\n# text\n", "a.conll, line 1|BIO|'text'"),
    (TAGS, "conll", "Ana B-PER\nsaw\n", "1 rows|line 2"),
    (TAGS | {"label": "ner"}, "conll", "Ana B-PER\n", "custom.label|a.conll"),
    ({}, "csv.zip", "PK", "a.csv.zip|.csv, .tsv, .jsonl"),
    ({"separator": "tab"}, "jsonl", FILMS, "separator=tab"),
    ({"held_out": 9999}, "csv", GOOD, "9999|a.csv|0 of 4"),
    ({"train": "b.csv"}, "csv", GOOD, "b.csv"),
    ({"validation": "."}, "csv", GOOD, "own.custom.validation="),
    ({"validation": "./a.csv"}, "csv", GOOD, "custom.validation|own, got|a.csv"),
    ({"test": "./a.csv"}, "csv", GOOD, "custom.test|own, got|a.csv"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "ending", "content", "words"), BAD)
def test_files_that_cannot_be_used(tmp_path, given, ending, content, words):
    pack(tmp_path / f"a.{ending}", content)
    with pytest.raises((ValueError, FileNotFoundError)) as raised:
        load(tmp_path, **{"train": f"a.{ending}", **given})
    assert [word for word in words.split("|") if word not in str(raised.value)] == []


def test_malformed_rows_are_left_out_on_demand_and_counted_once(tmp_path):
    write(tmp_path, {"a.csv": REVIEWS + "x,\n,2\ny\n"})
    train, held = (load(tmp_path, split, skip=True) for split in ("train", "validation"))
    assert (len(train) + len(held), train.skipped, held.skipped) == (40, 3, 0)
    write(tmp_path, {"a.csv": HEADER + "a,\n ,1\n ,1\n ,2\n"})
    for split in ("train", "validation"):
        with pytest.raises(ValueError, match="a.csv.*4 rows.*line 2"):
            load(tmp_path, split, skip=True)


def test_files_and_readers_that_have_changed_since(tmp_path, reader):
    write(tmp_path, {"a.csv": REVIEWS, "a.poem": "x\ny\n"})
    found = settings(tmp_path)
    custom.check_unchanged("own", found, str(tmp_path))
    write(tmp_path, {"a.csv": REVIEWS.replace("film 3,1", "film 3,2")})
    with pytest.raises(ValueError, match="own.*a.csv.*changed"):
        custom.check_unchanged("own", found, str(tmp_path))
    (tmp_path / "a.csv").unlink()
    with pytest.raises(FileNotFoundError, match="a.csv"):
        custom.check_unchanged("own", found, str(tmp_path))
    found = None
    for second in (2, 2, 1):
        records = [{"review": "x", "stars": 1, "at": object()}, {"review": "y", "stars": second}]
        reader.read = lambda path, records=records: records
        found = found or settings(tmp_path, train="a.poem", reader="my_reader.read")
        if second == 2:
            custom.check_unchanged("own", found, str(tmp_path))
    with pytest.raises(ValueError, match="a.poem.*my_reader.read.*changed"):
        custom.check_unchanged("own", found, str(tmp_path))


def test_what_the_report_notes(tmp_path):
    unanswered = ANSWERED | {"answers": []}
    files = {"a.csv": REVIEWS, "b.csv": "review,stars\nfilm 3,1\nnew,2\n", "c.csv": REVIEWS.replace(",3", ",2")}
    write(tmp_path, files | {"a.jsonl": lines(ANSWERED), "b.jsonl": lines(ANSWERED, unanswered | {"context": "c"})})

    def notes(**given):
        found = settings(tmp_path, **given)
        splits = {name: custom.load("own", found, str(tmp_path), name) for name in ("train", "validation")}
        return custom.notes(found, custom.make_task("own", found), splits), splits

    (missing, repeated), _ = notes(validation="b.csv", labels=("1", "2", "3", "4"))
    assert missing.endswith(" label 4") and repeated.startswith("validation: 1 of 2 ")
    (note,), splits = notes()
    assert note.startswith(f"validation: {len(splits['validation'])} of 40 examples of a.csv, about one in 10,")
    (of_f1, held_out), _ = notes(train="c.csv")
    assert of_f1.endswith(" class 2") and held_out.startswith("validation: ")
    write(tmp_path, {"s.csv": "review,stars\nx,a\ny,\nz,\nw,a\n"})
    (named, empty, missing), _ = notes(
        kind="multilabel", train="s.csv", validation="b.csv", labels=("a", "b", "1", "2")
    )
    assert named.endswith(" a, b, 1, 2") and empty.startswith("train: 2 of 4 ") and missing.endswith(" label b, 1, 2")
    (_, single, _), _ = notes(kind="multilabel", train="b.csv", validation="s.csv", labels=("1", "2", "a"))
    assert "kind=classification" in single
    (every, repeated), splits = notes(kind="span", train="a.jsonl", validation="b.jsonl")
    assert "every training question" in every and repeated.startswith("validation: 1 of 2 ")
    assert [len(example.answers) for example in splits["validation"]] == [1, 0]


CONFLICTS = [
    ({"kind": None}, "custom.kind.*custom.train=a.csv"), ({"train": None}, "custom.train"),
    ({"kind": "regression", "labels": ("a", "b")}, "custom.labels.*regression"), ({"labels": ("a", "a")}, "labels"),
    ({"kind": "multilabel", "label": "a,b,a"}, "custom.label.*a,b,a"),
    ({"kind": "multilabel", "label": "a,b", "labels": ("a", "c")}, "custom.labels.*a, b.*a, c"),
    ({"labels": ("a",)}, "custom.labels.*two"), ({"labels": ("a", " ")}, "custom.labels"),
    ({"choices": ("a", "b")}, "custom.choices"), ({"kind": "choice"}, "custom.choices.*none"),
    ({"validation": "b.csv", "held_out": 5}, "custom.held_out.*5.*custom.validation=b.csv"),
    ({"reader": "a.read", "separator": "tab"}, "custom.separator.*custom.reader=a.read"),
    ({"lowest": 1.0}, "custom.lowest.*classification"), ({"highest": 1.0}, "custom.highest.*classification"),
    ({"kind": "regression", "lowest": 2.0, "highest": 2.0}, "custom.lowest.*custom.highest"),
    ({"answerable": True}, "custom.answerable.*class"), ({"kind": "tagging", "second": "x"}, "custom.second.*tagging"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "match"), CONFLICTS)
def test_settings_that_do_not_go_together(given, match):
    with pytest.raises(ValueError, match=match):
        CustomTask(**{"kind": "classification", "train": "a.csv", **given})


def test_names_of_custom_tasks():
    made, relabelled = CustomTask("classification", train="a.csv"), CustomTask(labels=("a", "b"))
    for name, given, match in (
        ("sst2", made, "kind.*sst2"),
        ("a/b", made, "'a/b'"),
        ("own", relabelled, "custom.kind"),
    ):
        with pytest.raises(ValueError, match=match):
            custom.make_task(name, given)
    with pytest.raises(ValueError, match="custom.test.*folds"):
        custom.make_task("own", dataclasses.replace(made, test="b.csv"), folds=True)
    assert custom.make_task("own", made).splits == ("train", "validation")
    assert custom.make_task("own", made, folds=True).splits == ("train",)
    assert catalogue.ordered(["own", "wnut17", "sst2"]) == ["sst2", "wnut17", "own"]
