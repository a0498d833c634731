"""Malformed rows: each named by file and line, all counted, refused unless asked to leave them out."""

import json

import pytest

from ag_jax.data.tasks import catalogue, containers
from ag_jax.data.tasks.catalogue import TASKS
from ag_jax.data.tasks.readers import load
from ag_jax.models.heads import KINDS
from tests.data.tasks.test_layouts import rows, write


def squad(is_impossible=None, answers=None, **answer):
    question = {"id": "a", "question": "Who?", "answers": [{"text": "Anna", "answer_start": 0} | answer]}
    if is_impossible is not None:
        question |= {"is_impossible": is_impossible, "answers": answers}
    good = {"id": "b", "question": "Who?", "answers": [{"text": "Bo", "answer_start": 9}]}
    return json.dumps({"data": [{"paragraphs": [{"context": "Anna met Bo.", "qas": [question, good]}]}]})


def dream(**question):
    good = {"question": "What?", "choice": ["a", "b", "c"], "answer": "c"}
    return json.dumps([[["M: Hi."], [good], "g"], [["M: Hi."], [good | question], "d"]])


def lines(first, *changes):
    """JSON lines: a good one, and one for each change of it; a text stands for itself."""
    return "\n".join([json.dumps(first), *(of if isinstance(of, str) else json.dumps(first | of) for of in changes)])


def table(*bad):
    return rows(("id", "sentence1", "sentence2", "label"), (0, "a", "b", 0), *bad)


NLI = {"premise": "P", "hypothesis": "H", "label": 2, "idx": 1}
PAIR = {"sentence1": "a", "sentence2": "b", "label": 1}
RACE = {"id": "x", "article": "A", "questions": ["Q"], "options": [["a", "b"]], "answers": ["A"]}
PASSAGE = {"text": "Anna", "entities": [{"start": 0, "end": 3}]}
RECORD = {"passage": PASSAGE, "qas": [{"query": "@placeholder", "answers": [{"text": "Anna"}]}]}
ASKED = {"question": "Q", "idx": 1, "answers": [{"text": "A", "idx": 2, "label": 1}]}
MULTIRC = {"idx": 3, "passage": {"text": "P", "questions": [ASKED]}}
WIC = {"word": "a", "sentence1": "a bank", "sentence2": "banks", "start1": 2, "end1": 6, "start2": 0, "end2": 5}
WIC |= {"label": True, "idx": 0}
TARGET = {"span1_index": 0, "span1_text": "Ann", "span2_index": 2, "span2_text": "she"}
WSC = {"text": "Ann said she ran", "target": TARGET, "label": False, "idx": 0}
COPA = {"premise": "P", "choice1": "a", "choice2": "b", "question": "cause", "label": 0, "idx": 0}
BOOLQ = {"question": "q", "passage": "p", "idx": 0, "label": True}
SWAG = ",sent1,sent2,ending0,ending1,ending2,ending3,label\n0,a,b,c,d,e,f,1\n"
STSB = ("index", "sentence1", "sentence2", "score")
# Task, its training file, content with one good row, words that the error has, and the number of malformed rows.
BAD = [
    ("rte", "RTE/train.tsv", rows((*STSB[:3], "label"), (0, "a", "b", 0), (1, "a", "b")), "RTE/train.tsv, line 3|4", 1),
    ("mnli", "glue/mnli/train.jsonl", lines(NLI, *({"label": label} for label in (3, "-", None, -1))),
        "mnli/train.jsonl, line 2|3|line 3|'-'|line 4|line 5|-1", 4),
    ("mnli", "glue/mnli/train.jsonl", lines(NLI, {"premise": " ", "hypothesis": ""}, {"hypothesis": 3}),
        "line 2|line 3|'second'", 2),
    ("mnli", "glue/mnli/train.jsonl", lines(NLI, '{"premise": "P", "label": 1}', '{"premise": '),
        "line 2|'hypothesis'|line 3|JSON", 2),
    ("sst2", "glue/sst2/train.jsonl", lines({"sentence": "a", "label": 1}, {"sentence": " "}), "line 2|'first'", 1),
    ("paws_qqp", "paws_qqp/train.tsv", table((1, "a 1/2", "0/1", "x"), (2, "0/1/(7, 3)", "1/(7, 3):(8, 0)/0", 1)),
        "line 3|label 'x'|line 4|qqp_generate_data.py", 2),
    ("paws_qqp", "paws_qqp/train.tsv", table((2, "b'\\xff'", "b", 1), (3, "b'it's'", "b", 1)), "line 3|line 4", 2),
    ("stsb", "STS-B/train.tsv", rows(STSB, *((0, "a", "b", of) for of in (5, 5.2, -0.1, "nan", "?"))),
        "line 3|from 0 to 5|'5.2'|line 4|line 5|line 6", 4),
    ("stsb", "glue/stsb/train.jsonl", lines(PAIR, {"label": True}), "line 2|True", 1),
    ("wnut17", "wnut17/train.conll", "a\tO\nb\n\nc\tO\n", "wnut17/train.conll, line 1|line 2", 1),
    ("wnut17", "wnut17/train.conll", "a\tO\n\nb\tO\nc\tB-animal\n\nb\tB-group\nc\tI-person\n",
        "line 3|'B-animal' at word 2|line 6|I-person at word 2 follows B-group", 2),
    ("oromo_ner", "oromo_ner/all.conll", "a\tI-PER\n\nb\tO\n", "line 1|word 1 follows O", 1),
    ("squad1", "squad1/train-v1.1.json", squad(answer_start=1), "article 1, paragraph 1, question 1|character 0", 1),
    ("squad1", "squad1/train-v1.1.json", squad(text="Cleo"), "'Cleo'|character 0", 1),
    ("squad1", "squad1/train-v1.1.json", squad(text=".", answer_start=-1), "character -1", 1),
    ("squad2", "squad2/train-v2.0.json", squad(answer_start="0"), "question 1|TypeError", 1),
    ("squad2", "squad2/train-v2.0.json", squad(text="", answer_start=3), "question 1|blank", 1),
    ("squad2", "squad2/train-v2.0.json", squad(True, [{"text": "Bo", "answer_start": 9}]), "is_impossible|true", 1),
    ("squad2", "squad2/train-v2.0.json", squad(False, []), "is_impossible|false", 1),
    ("squad2", "squad2/train-v2.0.json", squad("false", []), "is_impossible|'false'", 1),
    ("dream", "dream/train.json", dream(answer="d"), "dialogue 2 (d): question 1|'d'", 1),
    ("dream", "dream/train.json", dream(choice=["a", "c", "c"]), "question 1|'c'", 1),
    ("dream", "dream/train.json", dream(choice=[]), "'choice'", 1),
    ("dream", "dream/train.json", json.dumps([*json.loads(dream())[:1], [["x"], ["y"], "d"], ["x"]]),
        "dialogue 2 (d)|'questions'|dialogue 3|id", 2),
    ("race_high", "RACE/train/high/1.txt", json.dumps(RACE | {"answers": ["C"]}), "1.txt|2|0 to 1", 1),
    ("race_high", "RACE/train/high/1.txt", json.dumps(RACE | {"answers": ["AB"]}), "1.txt|'AB'", 1),
    ("race_high", "RACE/train/high/1.txt", json.dumps(RACE | {"options": [["a"], ["b"]]}), "1.txt", 1),
    ("record", "record/train.jsonl", lines(RECORD, {"qas": [RECORD["qas"][0] | {"answers": [{"text": "Bo"}]}]},
        {"qas": [{"query": "who", "answers": []}]}, {"passage": {"text": "x", "entities": [{}]}},
        {"passage": {"text": "x", "entities": []}}, {"qas": [RECORD["qas"][0] | {"answers": []}]}),
        "line 2, question 1|Bo|line 3|@placeholder|line 4|'start'|line 5|line 6", 5),
    ("boolq", "BoolQ/train.jsonl", lines(BOOLQ, {"label": "yes"}, {"label": 2}), "line 2|'yes'|line 3", 2),
    ("copa", "COPA/train.jsonl", lines(COPA, {"question": "why"}, {"label": 2}, {"choice2": ""}),
        "line 2|'question'|line 3|line 4|'choice2'", 3),
    ("multirc", "MultiRC/train.jsonl", lines(MULTIRC, {"passage": {"text": "P", "questions": []}}, {"passage": "P"},
        {"passage": {"text": "P", "questions": [ASKED | {"answers": [{"text": "A", "idx": 0}]}]}}),
        "line 2|'questions'|line 3|line 4|None", 3),
    ("wic", "WiC/train.jsonl", lines(WIC, {"end1": 7}, {"start2": 5}, {"start1": 1, "end1": 2}, {"end2": None},
        {"end2": True}), "line 2|end1|2 and 7|line 3|line 4|line 5|line 6", 5),
    ("wic", "WiC/train.jsonl", lines(WIC, {"start1": -1}), "line 2|start1|-1", 1),
    ("wsc", "WSC/train.jsonl", lines(WSC, *({"target": TARGET | of} for of in ({"span1_index": 2}, {"span2_index": 4},
        {"span2_text": "."}, {"span1_index": 2, "span1_text": "she"})), {"target": "she"}),
        "line 2|word 2|line 3|0 to 3|line 4|line 5|overlap|line 6", 5),
    ("swag", "swag/train.csv", SWAG + '1,a,"b\n\nc",d,e,f,1\n', "swag/train.csv, lines 3 to 5|8|7", 1),
    ("swag", "swag/train.csv", SWAG + "1,a,b,c,d,e,f\n2,a,b,c,d,e,f,4\n", "line 3|line 4|'4'", 2),
]  # fmt: skip


@pytest.mark.parametrize(("task", "file", "content", "words", "count"), BAD)
def test_malformed_rows_are_named_counted_and_left_out_on_demand(tmp_path, task, file, content, words, count):
    root = write(tmp_path, {file: content})
    if task == "race_high":  # a file that is one row needs a neighbour that is good
        write(tmp_path, {"RACE/train/high/0.txt": json.dumps(RACE)})
    with pytest.raises(ValueError, match=f"{task}.*train.*{count} malformed.*tasks.{task}.skip_malformed") as raised:
        load(TASKS[task], root, "train")
    assert [word for word in words.split("|") if word not in str(raised.value)] == []
    examples = load(TASKS[task], root, "train", skip_malformed=True)
    assert examples.skipped == count and len(examples) == 1


def test_many_problems_are_counted_but_not_all_shown(tmp_path):
    root = write(tmp_path, {"glue/mnli/train.jsonl": "\n".join([json.dumps(NLI | {"label": 7})] * 9)})
    with pytest.raises(ValueError, match=r"9 malformed(.*\n)+.*line 5.*\n.* 4 more"):
        load(TASKS["mnli"], root, "train")
    with pytest.raises(ValueError, match="mnli.*train.*9.*line 1"):
        load(TASKS["mnli"], root, "train", skip_malformed=True)


@pytest.mark.parametrize(
    ("task", "file", "content", "match"),
    [
        ("swag", "swag/train.csv", f'{SWAG}1,a,b,"c,d,e,f,g,1\n2,a,b,c,d,e,f,1\n', "line 3.*quotes"),
        ("paws_qqp", "paws_qqp/train.tsv", rows(("id", "qid1", "sentence1", "qid2", "sentence2", "label"),
            (1, 4, "0", 5, "0", 1)), "index of PAWS-QQP"),
        ("squad1", "squad1/train-v1.1.json", "3", "data"),
        ("squad1", "squad1/train-v1.1.json", "{", "train-v1.1.json.*JSON"),
        ("squad1", "squad1/train-v1.1.json", '{"data": 3}', "data.*int"),
        ("squad1", "squad1/train-v1.1.json", '{"data": []}', "squad1.*train"),
        ("squad1", "squad1/train-v1.1.json", '{"data": [{"title": "x"}, 3]}', "article 1, paragraph 1, question 1"),
        ("rte", "RTE/train.tsv.gz", b"no gzip", "train.tsv.gz is damaged"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_read_are_refused_whatever_is_left_out(tmp_path, task, file, content, match):
    write(tmp_path, {file: ""})
    (tmp_path / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    for skip in (False, True):
        with pytest.raises(ValueError, match=match):
            load(TASKS[task], str(tmp_path), "train", skip_malformed=skip)


@pytest.mark.parametrize(
    ("task", "split", "is_local", "match"),
    [
        ("squad1", "test", True, "squad1.*'test'"),
        ("rte", "test", True, "rte.*'test'.*glue/rte/test.jsonl, .*RTE/test.tsv"),
        ("paws_qqp", "train", True, "paws_qqp/train.tsv beside dev_and_test.tsv"),
        ("rte", "train", False, "glue/rte"),
        ("dream", "train", False, "dream.*'train'.*dream, dream/data"),
    ],
)
def test_a_missing_split_says_what_was_looked_for(tmp_path, monkeypatch, task, split, is_local, match):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=match):
        load(TASKS[task], str(tmp_path) if is_local else "", split)


def test_the_catalogue_itself():
    with pytest.raises(ValueError, match="'sst3'.*cola, sst2"):
        catalogue.find("sst3")
    assert catalogue.find("sst2") is TASKS["sst2"]
    assert {TASKS[name].pair_limit for name in ("race", "dream", "record", "multirc")} == {128}  # RoBERTa, section 5.3
    assert {task.kind for task in TASKS.values()} == set(KINDS) - {"multilabel", "ranking", "span_or_none", "referent"}
    for task in TASKS.values():
        assert task.metric in task.metrics
        assert hash(task) and "train" in task.splits
        assert bool(task.labels) == (task.kind in ("classification", "tagging"))
        assert all(layout.container in containers.CONTAINERS for layout in task.layouts)
        assert task.legacy or not task.legacy_validation
