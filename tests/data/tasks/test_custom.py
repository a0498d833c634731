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

from ag_jax.data.tasks import catalogue, containers, custom
from ag_jax.data.tasks.custom import CustomTask
from ag_jax.data.tasks.task import Question, TaggedSentence, Texts
from ag_jax.data.text import fields
from tests.data.tasks.test_layouts import write

EMPTY = {"text": [], "answer_start": []}
REVIEWS = "review,stars\n" + "".join(f"film {number},{1 + number % 3}\n" for number in range(40))
SENTENCES = [
    {"words": ["Ana", "saw", "New", "York"], "tags": ["B-PER", "O", "B-LOC", "I-LOC"]},
    {"words": ["Bo", "left", "."], "tags": ["B-PER", "O", "O"]},
]


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def settings(root, **given):
    made = CustomTask(**{"kind": "classification", "train": "a.csv", "text": "review", "label": "stars", **given})
    return custom.resolved("own", made, str(root))


def load(root, split="train", skip=False, **given):
    return custom.load("own", settings(root, **given), str(root), split, skip_malformed=skip)


def test_a_table_with_labels_from_train_and_a_part_held_out(tmp_path):
    write(tmp_path, {"a.csv": "\ufeff" + REVIEWS})  # as spreadsheets save it
    found = settings(tmp_path)
    assert found.labels == ("1", "2", "3") and found.fingerprint
    assert custom.resolved("own", found, None) is found
    train, held = load(tmp_path), load(tmp_path, "validation")
    expected = [number for number in range(40) if zlib.crc32(f"film {number}".encode()) % 10 == 0]
    assert 0 < len(expected) < 10
    assert held.items == tuple(Texts(str(number), f"film {number}", None, number % 3) for number in expected)
    assert {int(example.id) for example in train} == set(range(40)) - set(expected)
    quarter = load(tmp_path, "validation", held_out=4)
    assert [int(one.id) for one in quarter] == [n for n in range(40) if zlib.crc32(f"film {n}".encode()) % 4 == 0]
    write(tmp_path, {"a.csv": "review,stars\nnew,2\n" + REVIEWS.split("\n", 1)[1]})
    assert [example.first for example in load(tmp_path, "validation")] == [example.first for example in held]


def test_equal_texts_are_in_the_same_part(tmp_path):
    write(tmp_path, {"a.csv": REVIEWS + REVIEWS.split("\n", 1)[1]})
    train, held = ({example.first for example in load(tmp_path, split)} for split in ("train", "validation"))
    assert len(train) + len(held) == 40 and not train & held


@pytest.mark.parametrize("separator", [None, "comma", "semicolon", "tab"])
@pytest.mark.parametrize("packed", [False, True])
def test_tables_read_the_same_whatever_separates_their_columns(tmp_path, separator, packed):
    sign = {"semicolon": ";", "tab": "\t"}.get(separator, ",")
    text = f'id{sign}review{sign}other{sign}stars\nx7{sign}"a {sign} ""b"""{sign}c{sign}yes\ny{sign}d{sign}e{sign}no\n'
    path = tmp_path / ("a.csv.gz" if packed else "a.csv")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    given = {"train": path.name, "test": None, "id": "id", "second": "other", "separator": separator}
    found = custom.resolved("own", CustomTask("classification", text="review", label="stars", **given), str(tmp_path))
    assert found.labels == ("no", "yes")
    read = custom.load("own", found, str(tmp_path), "train", folds=True)
    assert read.items == (Texts("x7", f'a {sign} "b"', "c", 1), Texts("y", "d", "e", 0))


def test_quotes_have_no_meaning_in_tsv(tmp_path):
    write(tmp_path, {"a.tsv": 'review\tstars\n"so" he said\t1\nb\t2\n', "b.tsv": "review\tstars\nc\t2\n"})
    assert load(tmp_path, train="a.tsv", validation="b.tsv")[0].first == '"so" he said'
    assert load(tmp_path, "validation", train="a.tsv", validation="b.tsv")[0].label == 1


def test_labels_are_known_by_name_only_and_numbers_are_in_their_order(tmp_path):
    write(tmp_path, {"a.csv": "review,stars\na,10\nb,2\nc,1\nd,10\n", "b.csv": "review,stars\na,0\n"})
    assert settings(tmp_path).labels == ("1", "2", "10")
    with pytest.raises(
        ValueError, match=r"b.csv, line 2: unknown label '0' in the column 'stars': expected .*1, 2, 10"
    ):
        load(tmp_path, "validation", validation="b.csv")
    given = ("10", "2", "1", "0")
    assert load(tmp_path, "validation", validation="b.csv", labels=given)[0].label == 3


def test_a_class_that_looks_like_a_missing_label_must_be_listed(tmp_path):
    write(tmp_path, {"a.csv": "review,stars\na,NA\nb,yes\nc,no\nd,no\n"})
    with pytest.raises(ValueError, match=r"a.csv, line 2: the label in the column 'stars' is missing: add it, .*list"):
        load(tmp_path)
    assert load(tmp_path, labels=("NA", "no", "yes"), held_out=2)


@pytest.mark.parametrize(
    ("value", "name"), [(True, "true"), (False, "false"), (3, "3"), (" a ", "a"), (2.5, "2.5"), ("nan", "nan")]
)
def test_values_of_json_as_names(value, name):
    assert custom.custom_records.label_text(value, "x") == name


def test_numbers(tmp_path):
    write(tmp_path, {"a.csv": "review,stars\na,-1\nb,2.5\nc,4\n", "b.csv": "review,stars\na,4\nb,9\n"})
    given = {"kind": "regression", "validation": "b.csv"}
    found = settings(tmp_path, **given)
    assert (found.lowest, found.highest) == (-1, 4) and custom.make_task("own", found).span == (-1, 4)
    assert [example.label for example in load(tmp_path, **given)] == [-1, 2.5, 4]
    with pytest.raises(ValueError, match=r"line 3: expected a number from -1 to 4 in the column 'stars', .* got 9"):
        load(tmp_path, "validation", **given)
    assert load(tmp_path, "validation", highest=9.0, **given)[1].label == 9


def test_choices_in_columns_and_in_lists(tmp_path):
    write(tmp_path, {"a.csv": "text,q,x,y,label\nt,Why?,one,two,B\nu,How?,three,four,0\n"})
    write(
        tmp_path,
        {
            "a.jsonl": lines(
                {"text": "t", "ends": ["a", "b", "c"], "label": 2}, {"text": "u", "ends": ["a", "b"], "label": 0}
            )
        },
    )
    table = custom.resolved("own", CustomTask("choice", train="a.csv", second="q", choices=("x", "y")), str(tmp_path))
    found = custom.load("own", table, str(tmp_path), "train", folds=True)
    assert found[0].pairs == (("t", "Why? one"), ("t", "Why? two")) and found[0].right == (1,)
    assert found[1].right == (0,)
    listed = custom.resolved("own", CustomTask("choice", train="a.jsonl", choices=("ends",)), str(tmp_path))
    found = custom.load("own", listed, str(tmp_path), "train", folds=True)
    assert [len(example.pairs) for example in found] == [3, 2] and [one.right for one in found] == [(2,), (0,)]


def test_tags_in_json_and_in_columns_are_the_same(tmp_path):
    conll = "\n".join("".join(f"{w} x {t}\n" for w, t in zip(of["words"], of["tags"], strict=True)) for of in SENTENCES)
    write(tmp_path, {"a.jsonl": lines(*SENTENCES), "a.conll": conll})
    read = []
    for file in ("a.jsonl", "a.conll"):
        found = custom.resolved("own", CustomTask("tagging", train=file), str(tmp_path))
        assert found.labels == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
        read.append(custom.load("own", found, str(tmp_path), "train", folds=True).items)
    assert read[0] == read[1]
    assert read[0][1] == TaggedSentence("1", ("Bo", "left", "."), ("B-PER", "O", "O"))


def test_the_tags_of_a_task_of_the_catalogue_are_replaced(tmp_path):
    given = CustomTask(labels=("PER", "ORG", "LOC", "DATE"))
    task = custom.make_task("conll2003", given)
    assert (
        task.labels == catalogue.bio("PER", "ORG", "LOC", "DATE")
        and task.layouts == catalogue.find("conll2003").layouts
    )
    assert custom.make_task("conll2003", CustomTask()) is catalogue.find("conll2003")
    tags = ("O", "B-DATE", "I-DATE")
    assert custom.make_task("wnut17", CustomTask(labels=tags)).labels == tags
    with pytest.raises(ValueError, match="labels must be entity types, or O with B- and I- of each type.*check I-DATE"):
        custom.make_task("wnut17", CustomTask(labels=("O", "B-DATE")))
    with pytest.raises(ValueError, match="sst2 is no tagging task"):
        custom.make_task("sst2", CustomTask(labels=("good", "bad")))


def test_spans_of_squad_and_of_lines(tmp_path):
    answers = {"text": ["b"], "answer_start": [2]}
    rows = ({"context": "a b", "question": "q", "answers": answers}, {"context": "c", "question": "q", "answers": []})
    questions = [{"id": "x", "question": "q", "answers": [{"text": "b", "answer_start": 2}], "is_impossible": False}]
    squad = json.dumps({"data": [{"paragraphs": [{"context": "a b", "qas": questions}]}]})
    write(tmp_path, {"a.jsonl": lines(*rows), "a.json": squad})
    found = custom.resolved("own", CustomTask("span", train="a.jsonl"), str(tmp_path))
    task = custom.make_task("own", found)
    assert not task.answerable and {"best_f1", "no_answer_accuracy"} < set(task.metrics)
    assert custom.load("own", found, str(tmp_path), "train", folds=True).items == (
        Question("0", "q", "a b", (("b", 2),)),
        Question("1", "q", "c", ()),
    )
    found = custom.resolved("own", CustomTask("span", train="a.json"), str(tmp_path))
    assert custom.make_task("own", found).answerable
    assert custom.load("own", found, str(tmp_path), "train", folds=True).items == (
        Question("x", "q", "a b", (("b", 2),)),
    )


@pytest.mark.parametrize("listed", ["articles", "paragraphs", "questions"])
def test_a_list_of_what_squad_nests(tmp_path, listed):
    question = {"id": "x", "question": "q", "answers": [{"text": "b", "answer_start": 2}]}
    paragraphs = [{"context": "a b", "qas": [question]}]
    lists = {"articles": [{"paragraphs": paragraphs}], "paragraphs": paragraphs}
    write(tmp_path, {"a.json": json.dumps(lists.get(listed, [{**question, "context": "a b"}]))})
    found = custom.resolved("own", CustomTask("span", train="a.json"), str(tmp_path))
    expected = (Question("x", "q", "a b", (("b", 2),)),)
    assert custom.load("own", found, str(tmp_path), "train", folds=True).items == expected


def test_questions_that_only_validation_has_without_answers(tmp_path):
    row = {"context": "a b", "question": "q", "answers": [{"text": "b", "answer_start": 2}]}
    write(tmp_path, {"a.jsonl": lines(row), "b.jsonl": lines(row, row | {"answers": []})})
    found = custom.resolved("own", CustomTask("span", train="a.jsonl", validation="b.jsonl"), str(tmp_path))
    loaded = {split: custom.load("own", found, str(tmp_path), split) for split in ("train", "validation")}
    assert [len(example.answers) for example in loaded["validation"]] == [1, 0]
    assert "every training question has an answer" in str(custom.notes(found, custom.make_task("own", found), loaded))


COMMENTS = "# newdoc\nAna{0}B-PER\n# O\n# O{0}O\n\n# text = 1{0}2{0}3\n#{0}O\nto{0}O\n\n# O\n-DOCSTART-\n# ok\nBo{0}O"


@pytest.mark.parametrize(
    ("content", "sentences"),
    [
        (COMMENTS.format("\t"), ["Ana|#|# O", "#|to", "Bo"]),
        (COMMENTS.format("\tx\t"), ["Ana|#|# O", "#|to", "Bo"]),
        ("# a = 1\r\n" * 9 + "\r\n#a O\r\nAna B-PER\r\n# O\r\n\r\n# O\r\nto O\r\n", ["#a|Ana|#", "#|to"]),
    ],
)
def test_comments_of_columns_and_words_that_look_like_comments(tmp_path, content, sentences):
    write(tmp_path, {"a.conll": content})
    found = settings(tmp_path, kind="tagging", train="a.conll", text=None, label=None, labels=("PER",))
    read = custom.load("own", found, str(tmp_path), "train", folds=True)
    assert ["|".join(example.words) for example in read] == sentences


@pytest.mark.parametrize("name", ["a.csv.gz", "a.tsv", "a.jsonl.gz", "a.conll.gz", "a.json.gz"])
def test_a_long_line_is_an_error_before_it_is_in_memory(tmp_path, monkeypatch, name):
    monkeypatch.setattr(*((fields, "LARGEST_PARSED") if name == "a.json.gz" else (containers, "LARGEST_LINE")), 99)
    content = b"text\tlabel\n" + b"a" * 100
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    kind = {"a.conll.gz": "tagging", "a.json.gz": "span"}.get(name, "classification")
    with pytest.raises(ValueError, match=f"{name}.*at most 99 bytes"):
        settings(tmp_path, kind=kind, train=name, text=None, label=None)


NFC, NFD = "caf\u00e9", "cafe\u0301"


@pytest.mark.parametrize("other", [NFD, "a\u00a0b"])
def test_labels_that_look_alike(tmp_path, other):
    label, codes = (NFC, r"U\+00E9 .*U\+0065 U\+0301") if other == NFD else ("a b", r"U\+0020 .*U\+00A0")
    rows = [f"film,{name}\n" for name in ("tea", label)] * 2
    write(tmp_path, {"a.csv": HEADER + "".join(rows), "b.csv": HEADER + f"new,{other}\n"})
    with pytest.raises(ValueError, match=rf"b.csv, line 2: .*{codes}"):
        load(tmp_path, "validation", validation="b.csv")
    with pytest.raises(ValueError, match=f"custom.labels: .*{codes}"):
        CustomTask("classification", train="a.csv", labels=(label, other))
    write(tmp_path, {"a.csv": HEADER + "".join(rows) + f"film,{other}\n"})
    with pytest.raises(ValueError, match=f"a.csv, column 'stars': .*{codes}"):
        load(tmp_path)


def test_tags_and_columns_that_look_alike(tmp_path):
    sentence = {"words": ["a"], "tags": [f"B-{NFC}"]}
    write(tmp_path, {"a.jsonl": lines(sentence), "b.jsonl": lines(sentence | {"tags": [f"B-{NFD}"]})})
    found = custom.resolved("own", CustomTask("tagging", train="a.jsonl", validation="b.jsonl"), str(tmp_path))
    with pytest.raises(ValueError, match=r"b.jsonl, line 1: .*U\+00E9 .*U\+0065 U\+0301"):
        custom.load("own", found, str(tmp_path), "validation")
    write(tmp_path, {"a.jsonl": lines(sentence, {"words": ["a"], "tags": [f"B-{NFD}"]})})
    with pytest.raises(ValueError, match=r"a.jsonl, types of entities: .*U\+0065 U\+0301 .*U\+00E9"):
        custom.resolved("own", CustomTask("tagging", train="a.jsonl"), str(tmp_path))
    write(tmp_path, {"a.csv": f"review,{NFD}\na,1\nb,2\n"})
    with pytest.raises(ValueError, match=r"no column .*U\+0065 U\+0301 .*U\+00E9"):
        load(tmp_path, label=NFC)


@pytest.mark.parametrize("absent", [{}, {"answers": None}, {"answers": []}, {"answers": EMPTY}])
def test_questions_without_answers_are_seen_in_every_form(tmp_path, absent):
    answered = {"context": "a b", "question": "q", "answers": [{"text": "b", "answer_start": 2}]}
    write(tmp_path, {"a.jsonl": lines(answered, {"context": "c", "question": "q", "is_impossible": True, **absent})})
    found = custom.resolved("own", CustomTask("span", train="a.jsonl"), str(tmp_path))
    assert found.answerable is False
    assert custom.load("own", found, str(tmp_path), "train", folds=True)[1] == Question("1", "q", "c", ())


def test_a_reader_of_other_files(tmp_path, monkeypatch):
    module = types.ModuleType("my_reader")
    module.read = lambda path: [
        {"review": line.strip(), "stars": number % 2}
        for number, line in enumerate(pathlib.Path(path).read_text().splitlines())
    ]
    module.wrong = lambda path: ["x"]
    module.broken = lambda path: 1 / 0
    module.half = lambda path: [
        {"review": "a", "stars": 1},
        {"review": "\ud83d", "stars": 2},
        {"review": "b", "stars": 2},
    ]
    module.bad_value = lambda path: [int(line) for line in pathlib.Path(path).read_text().splitlines()]
    monkeypatch.setitem(sys.modules, "my_reader", module)
    write(tmp_path, {"a.poem": "".join(f"line {number}\n" for number in range(30))})
    found = load(tmp_path, train="a.poem", reader="my_reader.read")
    assert (
        found[0].first.startswith("line ")
        and len(found) + len(load(tmp_path, "validation", train="a.poem", reader="my_reader.read")) == 30
    )
    for name, message in (
        (
            "wrong",
            "the reader my_reader.wrong must return a dict for each example, got str as number 1 of .*a.poem",
        ),
        ("half", r"record 2: .*half of a surrogate pair"),
        ("broken", "the reader my_reader.broken cannot read .*a.poem: ZeroDivisionError"),
        (
            "bad_value",
            r"the reader my_reader.bad_value cannot read tasks.own.custom.train=.*a.poem: ValueError: invalid",
        ),
        ("absent", "cannot import reader=my_reader.absent: AttributeError"),
    ):
        with pytest.raises(ValueError, match=message):
            load(tmp_path, train="a.poem", reader=f"my_reader.{name}")


def test_a_reader_may_return_values_of_numpy(tmp_path, monkeypatch):
    module = types.ModuleType("numpy_reader")
    module.classes = lambda path: [
        {"review": np.str_(f"film {number}"), "stars": np.int64(number % 2), "n": np.int32(number)}
        for number in range(4)
    ]
    answers = {"text": np.array(["b"], object), "answer_start": np.array([2])}
    module.spans = lambda path: [{"context": "a b", "question": "q", "answers": answers}]
    monkeypatch.setitem(sys.modules, "numpy_reader", module)
    write(tmp_path, {"a.npy": ""})
    made = {"train": "a.npy", "validation": None, "id": "n", "reader": "numpy_reader.classes"}
    for kind, labels in (("classification", [0, 1, 0, 1]), ("regression", [0.0, 1.0, 0.0, 1.0])):
        found = settings(tmp_path, kind=kind, **made)
        read = custom.load("own", found, str(tmp_path), "train", folds=True)
        assert [example.label for example in read] == labels and read[3].id == "3"
    found = custom.resolved("own", CustomTask("span", train="a.npy", reader="numpy_reader.spans"), str(tmp_path))
    assert custom.load("own", found, str(tmp_path), "train", folds=True)[0].answers == (("b", 2),)


def test_a_test_file_may_have_no_labels(tmp_path):
    write(tmp_path, {"a.csv": REVIEWS, "t.csv": "review\nx\n", "u.csv": "review,stars\nx,\ny,2\n"})
    assert load(tmp_path, "test", test="t.csv")[0].label is None
    assert [example.label for example in load(tmp_path, "test", test="u.csv")] == [None, 1]


CLASSES = {"kind": "classification", "text": "review", "label": "stars"}
TAGS = {"kind": "tagging", "text": None, "label": None}
SPANS = {"kind": "span", "text": None, "label": None}
CHOICES = {"kind": "choice", "text": "review", "label": "stars", "choices": ("a", "b")}
HEADER = "review,stars\n"
GOOD = HEADER + "a,1\nb,2\nc,1\nd,2\n"
BAD = {  # the settings, the training file, and the error
    "missing column": (
        {},
        "text,stars\na,1\nb,2\n",
        r"a.csv has no column 'review', which tasks.own.custom.text names: it has 'text', 'stars'; set text",
    ),
    "missing labels": ({}, "review,star\na,1\nb,2\n", r"no column 'stars', which tasks.own.custom.label names"),
    "semicolons": (
        {},
        "review;stars\na;1\nb;2\n",
        r"no column 'review', which tasks.own.custom.text names: it has 'review;stars'; set text",
    ),
    "repeated column": (
        {},
        "review,stars,review\na,1,b\n",
        r"a.csv: expected columns with different names.*'review' more than once",
    ),
    "no rows": ({}, HEADER, r"train=.*a.csv: expected at least one row"),
    "nothing at all": ({}, "", r"a.csv: expected at least one row"),
    "empty row": ({}, GOOD + ",\n", r"line 6: expected a text in the column 'review', got ''"),
    "no text": ({}, GOOD + " ,1\n", r"line 6: expected a text in the column 'review', got ' '"),
    "no label": (
        {},
        GOOD + "e,\nf,nan\n",
        r"2 malformed rows(.*\n)+.*line 6: the label in the column 'stars' is missing.*\n.*line 7: the label",
    ),
    "too few columns": ({}, GOOD + "e\n", r"line 6: expected 2 columns, got 1"),
    "an open quote": ({}, GOOD + '"e,1\nf,2\n', r"a.csv, line 6: expected a row of a table with well-formed quotes"),
    "one class": (
        {},
        HEADER + "a,1\nb,1\n",
        r"expected at least two classes in the column 'stars'.* got 1; set tasks.own.custom.label",
    ),
    "a class a row": ({}, HEADER + "a,0.5\nb,0.7\nc,0.1\n", r"got 3 classes in as many rows; set tasks.own"),
    "number": (
        {"kind": "regression"},
        GOOD + "e,good\n",
        r"line 6: expected a number in the column 'stars', got 'good'",
    ),
    "infinite": (
        {"kind": "regression"},
        GOOD + "e,inf\n",
        r"line 6: expected a number in the column 'stars', got 'inf'",
    ),
    "no number": (
        {"kind": "regression"},
        HEADER + "a,nan\nb,\n",
        r"expected different numbers in the column 'stars', got 0 numbers",
    ),
    "lowest above all numbers": (
        {"kind": "regression", "lowest": 5.0},
        GOOD,
        r"got 4 numbers, with 5 as the lowest and 2 as the highest; set tasks.own.custom.label to",
    ),
    "equal numbers": ({"kind": "regression"}, HEADER + "a,3\nb,3\n", r"with 3 as the lowest and 3 as the highest"),
    "no candidate": (CHOICES, "review,a,b,stars\nx,1,,0\n", r"line 2: expected a text in the column 'b', got ''"),
    "no such candidate": (
        CHOICES,
        "review,a,b,stars\nx,y,z,2\n",
        r"line 2: expected the number of the right candidate, from 0 to 1, or its letter",
    ),
    "no candidates": (CHOICES, "review,a,stars\nx,y,0\n", r"has no column 'b', which tasks.own.custom.choices names"),
    "tags in a table": (
        TAGS,
        "words,tags\nx,O\n",
        r"a.csv must end in .jsonl, .conll.* for a task of tagging, got .csv",
    ),
    "repeated id": (
        {"id": "review"},
        GOOD + "a,1\n",
        r"a.csv: expected a different id for each example, got 'a' more than once",
    ),
    "no id": (
        {"id": "stars", "label": "review"},
        "review,stars\na,1\na,\nb,3\n",
        r"line 3: expected an id in the column 'stars', got ''",
    ),
}
BAD_LINES = {
    "not BIO": (
        TAGS,
        lines(*SENTENCES, {"words": ["x"], "tags": ["PER"]}),
        r"a.jsonl, line 3: expected BIO tags.* got 'PER'; convert",
    ),
    "no beginning": (
        TAGS,
        lines(*SENTENCES, {"words": ["x"], "tags": ["I-PER"]}),
        r"line 3: the tags are not BIO: I-PER at word 1",
    ),
    "counts": (
        TAGS,
        lines(*SENTENCES, {"words": ["x", "y"], "tags": ["O"]}),
        r"line 3: expected a tag for each of 2 words, got \['O'\]",
    ),
    "no words": (TAGS, lines(*SENTENCES, {"words": [], "tags": []}), r"line 3: expected a list of words, got \[\]"),
    "only O": (
        TAGS,
        lines({"words": ["x"], "tags": ["O"]}),
        r"a.jsonl: expected lists of tags in the column 'tags', some of them of entities",
    ),
    "tags in a text": (
        TAGS,
        lines({"words": ["x", "y"], "tags": "B-PER O"}),
        r"a.jsonl: expected lists of tags in the column 'tags'",
    ),
    "misspelt words": (
        TAGS | {"text": "wrods"},
        lines(*SENTENCES),
        r"no column 'wrods', .*it has 'words', 'tags'; set text to one of these$",
    ),
    "number is a list": (
        CLASSES | {"kind": "regression"},
        lines({"review": "a", "stars": 1}, {"review": "b", "stars": 2}, {"review": "c", "stars": [2]}),
        r"line 3: expected a number in the column 'stars', got \[2\]",
    ),
    "candidate is a list": (
        CHOICES,
        lines({"review": "a", "a": "x", "b": "y", "stars": [1]}),
        r"line 1: expected the number of the right candidate, or its letter, in the column 'stars', got \[1\]",
    ),
    "fields": (
        TAGS,
        lines({"tokens": ["x"], "ner": ["O"]}),
        r"no column 'words', which tasks.own.custom.text names: it has 'tokens', 'ner'",
    ),
    "no JSON": (
        CLASSES,
        lines({"review": "a", "stars": 1}, {"review": "b", "stars": 2}) + "{",
        r"line 3: expected JSON",
    ),
    "a text that is none": (
        CLASSES,
        lines({"review": "a", "stars": 1}, {"review": 5, "stars": 2}),
        r"line 2: expected a text in the column 'review', got 5",
    ),
    "label is a list": (
        CLASSES,
        lines({"review": "a", "stars": 1}, {"review": "b", "stars": 2}, {"review": "c", "stars": [2]}),
        r"line 3: expected the name of a class in the column 'stars', got \[2\]",
    ),
    "NaN": (
        CLASSES,
        '{"review": "a", "stars": 1}\n{"review": "b", "stars": 2}\n{"review": "c", "stars": NaN}\n',
        r"line 3: the label in the column 'stars' is missing",
    ),
    "answer elsewhere": (
        SPANS,
        lines({"context": "a b", "question": "q", "answers": {"text": ["b"], "answer_start": [0]}}),
        r"line 1: expected the answer 'b' at character 0 .*found the answer at character 2",
    ),
    "answers of two lengths": (
        SPANS,
        lines({"context": "a", "question": "q", "answers": {"text": ["a"], "answer_start": []}}),
        r"line 1: .*argument 2 is shorter",
    ),
}


def check_rejected(root, file, given, content, message):
    write(root, {file: content})
    with pytest.raises(ValueError, match=message):
        load(root, train=file, **given)


@pytest.mark.parametrize("name", BAD)
def test_tables_that_cannot_be_used(tmp_path, name):
    check_rejected(tmp_path, "a.csv", *BAD[name])


@pytest.mark.parametrize("name", BAD_LINES)
def test_lines_that_cannot_be_used(tmp_path, name):
    check_rejected(tmp_path, "a.jsonl", *BAD_LINES[name])


@pytest.mark.parametrize("name", ["A.CSV", "a.csv.gz", "A.CSV.GZ"])
def test_endings_in_upper_case_and_of_compressed_files(tmp_path, name):
    def put(text):
        (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.lower().endswith("gz") else text.encode())

    put(REVIEWS)
    assert len(load(tmp_path, train=name)) > 20
    put(HEADER)
    with pytest.raises(ValueError, match=f"{name}: expected at least one row"):
        load(tmp_path, train=name)


@pytest.mark.parametrize("name", ["a.csv.zip", "a.csv.bz2", "A.CSV.XZ"])
def test_compressed_files_that_are_not_read(tmp_path, name):
    (tmp_path / name).write_bytes(b"PK")
    with pytest.raises(ValueError, match=rf"{name} must end in .csv, .tsv, .jsonl, also with .gz"):
        load(tmp_path, train=name)


def test_columns_of_conll_that_cannot_be_used(tmp_path):
    check_rejected(tmp_path, "a.conll", TAGS, "Ana B-PER\n# text\n", r"a.conll, line 1: expected BIO tags.* got 'text'")
    check_rejected(tmp_path, "a.conll", TAGS, "Ana B-PER\nsaw\n", r"all of 1 rows are malformed.* line 2 has no tag")
    check_rejected(
        tmp_path, "a.conll", TAGS | {"label": "ner"}, "Ana B-PER\n", r"custom.label must be none for the CoNLL"
    )


def test_files_that_are_not_there_or_twice_or_of_another_encoding(tmp_path):
    write(tmp_path, {"a.csv": GOOD})
    with pytest.raises(FileNotFoundError, match="b.csv"):
        load(tmp_path, train="b.csv")
    with pytest.raises(ValueError, match=r"tasks.own.custom.validation=.* must end in .csv"):
        load(tmp_path, validation=".")
    for split in ("validation", "test"):
        with pytest.raises(ValueError, match=rf"custom.{split} must be a file of its own, got .*a.csv"):
            load(tmp_path, **{split: "./a.csv"})
    (tmp_path / "a.csv").write_bytes("review,stars\na,1\nna\u00efve,2\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"a.csv, line 3: expected text in UTF-8"):
        load(tmp_path)
    (tmp_path / "a.csv").write_bytes(GOOD.encode("utf-16"))
    with pytest.raises(ValueError, match=r"a.csv, line 1: expected text in UTF-8"):
        load(tmp_path)


def test_malformed_rows_are_left_out_on_demand_and_counted_once(tmp_path):
    write(tmp_path, {"a.csv": REVIEWS + "x,\n,2\ny\n"})
    train, held = (load(tmp_path, split, skip=True) for split in ("train", "validation"))
    assert (len(train) + len(held), train.skipped, held.skipped) == (40, 3, 0)


@pytest.mark.parametrize("split", ["train", "validation"])
def test_malformed_rows_only(tmp_path, split):
    write(tmp_path, {"a.csv": HEADER + "a,\n ,1\n ,1\n ,2\n"})
    with pytest.raises(ValueError, match=r"a.csv: all of 4 rows are malformed, the first: .*line 2: the label"):
        load(tmp_path, split, skip=True)


def test_too_few_examples_to_hold_any_out(tmp_path):
    write(tmp_path, {"a.csv": GOOD})
    with pytest.raises(
        ValueError, match=r"one in 9999 of the examples of .*a.csv is held out.* is 0 of 4: give a valid"
    ):
        load(tmp_path, held_out=9999)


def test_files_that_have_changed_since(tmp_path):
    write(tmp_path, {"a.csv": REVIEWS})
    found = settings(tmp_path)
    custom.check_unchanged("own", found, str(tmp_path))
    write(tmp_path, {"a.csv": REVIEWS.replace("film 3,1", "film 3,2")})
    with pytest.raises(ValueError, match=r"the files of task own \(.*a.csv\) have changed since its training"):
        custom.check_unchanged("own", found, str(tmp_path))
    (tmp_path / "a.csv").unlink()
    with pytest.raises(FileNotFoundError, match="a.csv"):
        custom.check_unchanged("own", found, str(tmp_path))


def test_a_reader_that_has_changed_since(tmp_path, monkeypatch):
    module = types.ModuleType("my_reader")
    monkeypatch.setitem(sys.modules, "my_reader", module)

    def make(second):
        module.read = lambda path: [{"review": "x", "stars": 1, "at": object()}, {"review": "y", "stars": second}]

    make(2)
    write(tmp_path, {"a.poem": "x\ny\n"})
    found = settings(tmp_path, train="a.poem", reader="my_reader.read")
    make(2)
    custom.check_unchanged("own", found, str(tmp_path))
    make(1)
    with pytest.raises(ValueError, match=r"a.poem\) or what my_reader.read returns for them have changed since"):
        custom.check_unchanged("own", found, str(tmp_path))


def test_what_the_report_notes(tmp_path):
    write(tmp_path, {"a.csv": REVIEWS, "b.csv": "review,stars\nfilm 3,1\nnew,2\n"})
    found = settings(tmp_path, validation="b.csv", labels=("1", "2", "3", "4"))
    splits = {name: custom.load("own", found, str(tmp_path), name) for name in ("train", "validation")}
    assert custom.notes(found, custom.make_task("own", found), splits) == [
        "no training example has the label 4",
        "validation: 1 of 2 examples have a text of the training examples",
    ]
    found = settings(tmp_path)
    splits = {name: custom.load("own", found, str(tmp_path), name) for name in ("train", "validation")}
    (note,) = custom.notes(found, custom.make_task("own", found), splits)
    assert note.startswith(
        f"validation: {len(splits['validation'])} of 40 examples of a.csv, about one in 10, held out"
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": None}, r"custom.kind must say what kind of task .* got none with custom.train=a.csv"),
        ({"train": None}, r"custom.train must be a file with training examples, got none"),
        ({"kind": "regression", "labels": ("a", "b")}, r"custom.labels must be empty for a task of regression"),
        ({"labels": ("a", "a")}, r"custom.labels must be different names, got 'a', 'a'"),
        ({"labels": ("a",)}, r"at least two classes, got a"),
        ({"choices": ("a", "b")}, r"custom.choices must name the columns .*only of such a task"),
        ({"kind": "choice"}, r"custom.choices must name the columns .*got none for one of choice"),
        (
            {"validation": "b.csv", "held_out": 5},
            r"custom.held_out must be left out, got 5: with custom.validation=b.csv",
        ),
        ({"reader": "a.read", "separator": "tab"}, r"custom.separator must be none, got tab: custom.reader=a.read"),
        ({"lowest": 1.0}, r"custom.lowest and custom.highest must be none for a task of classification"),
        ({"kind": "regression", "lowest": 2.0, "highest": 1.0}, r"custom.lowest must be below custom.highest"),
        ({"answerable": True}, r"custom.answerable must be none for a task of classification"),
        ({"kind": "tagging", "second": "x"}, r"custom.second must be none for a task of tagging"),
    ],
)
def test_settings_that_do_not_go_together(given, message):
    with pytest.raises(ValueError, match=message):
        CustomTask(**{"kind": "classification", "train": "a.csv", **given})


def test_names_of_custom_tasks(tmp_path):
    made = CustomTask("classification", train="a.csv")
    for name, message in (
        ("sst2", "kind must be none, because sst2 is in the catalogue: rename"),
        ("a/b", "expected a name of letters, digits and _"),
    ):
        with pytest.raises(ValueError, match=message):
            custom.make_task(name, made)
    with pytest.raises(ValueError, match=r"unknown task 'sst3'.*a task of your own files needs tasks.sst3.custom.kind"):
        custom.make_task("sst3", CustomTask())
    with pytest.raises(ValueError, match=r"unknown task 'own'.*a task of your own files needs tasks.own.custom.kind"):
        custom.make_task("own", CustomTask(labels=("a", "b")))
    with pytest.raises(ValueError, match="custom.test must be none with folds"):
        custom.make_task("own", dataclasses.replace(made, test="b.csv"), folds=True)
    assert custom.make_task("own", made).splits == ("train", "validation")
    assert custom.make_task("own", made, folds=True).splits == ("train",)
    assert catalogue.ordered(["own", "wnut17", "sst2"]) == ["sst2", "wnut17", "own"]
