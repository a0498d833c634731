"""Malformed rows: each named by file and line, all counted, refused unless asked to leave them out."""

import gzip
import json

import pytest

from ag_jax.data.tasks import catalogue, containers
from ag_jax.data.tasks.catalogue import TASKS
from ag_jax.data.tasks.readers import load
from ag_jax.models.heads import KINDS
from tests.data.tasks.test_layouts import rows, write


def squad(**answer):
    question = {"id": "a", "question": "Who?", "answers": [{"text": "Anna", "answer_start": 0} | answer]}
    good = {"id": "b", "question": "Who?", "answers": [{"text": "Bo", "answer_start": 9}]}
    return json.dumps({"data": [{"paragraphs": [{"context": "Anna met Bo.", "qas": [question, good]}]}]})


def squad_flags(impossible, has_answers):
    answers = [{"text": "Bo", "answer_start": 9}]
    question = {"id": "a", "question": "Who?", "is_impossible": impossible, "answers": answers if has_answers else []}
    good = {"id": "b", "question": "Who?", "is_impossible": False, "answers": answers}
    return json.dumps({"data": [{"paragraphs": [{"context": "Anna met Bo.", "qas": [question, good]}]}]})


def dream(**question):
    good = {"question": "What?", "choice": ["a", "b", "c"], "answer": "c"}
    return json.dumps([[["M: Hi."], [good], "g"], [["M: Hi."], [good | question], "d"]])


LINE = {"premise": "P", "hypothesis": "H", "label": 2, "idx": 1}
STS = ("index", "sentence1", "sentence2", "score")
RACE = {"id": "x", "article": "A", "questions": ["Q"], "options": [["a", "b"]], "answers": ["A"]}
RECORD = {
    "passage": {"text": "Anna", "entities": [{"start": 0, "end": 3}]},
    "qas": [{"query": "@placeholder", "answers": [{"text": "Anna"}]}],
}
MULTIRC = {
    "idx": 3,
    "passage": {
        "text": "P",
        "questions": [{"question": "Q", "idx": 1, "answers": [{"text": "A", "idx": 2, "label": 1}]}],
    },
}
WIC = {"word": "a", "sentence1": "a bank", "sentence2": "banks", "start1": 2, "end1": 6, "start2": 0, "end2": 5}
WIC |= {"label": True, "idx": 0}
WSC_TARGET = {"span1_index": 0, "span1_text": "Ann", "span2_index": 2, "span2_text": "she"}
WSC = {"text": "Ann said she ran", "target": WSC_TARGET, "label": False, "idx": 0}
COPA = {"premise": "P", "choice1": "a", "choice2": "b", "question": "cause", "label": 0, "idx": 0}


def json_lines(*records):
    return "\n".join(map(json.dumps, records))


SWAG = ",sent1,sent2,ending0,ending1,ending2,ending3,label\n0,a,b,c,d,e,f,1\n"
# task, split, file, content (with one good row at least), what the error says, malformed rows
BAD = {
    "columns": ("rte", "train", "RTE/train.tsv",
        rows(("index", "sentence1", "sentence2", "label"), (0, "a", "b", "entailment"), (1, "a", "b")),
        r"RTE/train.tsv, line 3: expected 4 columns, got 3", 1),
    "unknown label": ("mnli", "train", "glue/mnli/train.jsonl",
        "\n".join(json.dumps(LINE | {"label": label}) for label in (0, 3, "-", None)),
        r"mnli/train.jsonl, line 2: unknown label 3: expected entailment, neutral, contradiction or 0 to 2", 3),
    "no label": ("mnli", "train", "glue/mnli/train.jsonl",
        "\n".join(json.dumps(line) for line in (LINE, LINE | {"label": -1})),
        r"line 2: unknown label -1", 1),
    "no text": ("mnli", "train", "glue/mnli/train.jsonl",
        "\n".join(json.dumps(line) for line in (LINE, LINE | {"premise": " ", "hypothesis": ""},
            LINE | {"hypothesis": 3})),
        r"line 2: both texts of the pair are blank(.*\n)+.*line 3: the field 'second' must be a text, got 3", 2),
    "no single text": ("sst2", "train", "glue/sst2/train.jsonl",
        '{"sentence": "a", "label": 1}\n{"sentence": " ", "label": 1}',
        r"line 2: the field 'first' must be a text, got ' '", 1),
    "index of PAWS": ("paws_qqp", "train", "paws_qqp/train.tsv",
        rows(("id", "sentence1", "sentence2", "label"), (1, "a 1/2", "0/1", 0),
        (2, "0/1/(7, 3)", "1/(7, 3):(8, 0)/0", 1)),
        r"line 3: this is the index of PAWS-QQP.*qqp_generate_data.py", 1),
    "bytes that are none": ("paws_qqp", "train", "paws_qqp/train.tsv",
        rows(("id", "sentence1", "sentence2", "label"), (1, "a", "b", 0), (2, "b'\\xff'", "b", 1),
        (3, "b'it's'", "b", 1)),
        r"line 3: expected a sentence, got a broken Python bytes literal", 2),
    "no field": ("mnli", "train", "glue/mnli/train.jsonl",
        "\n".join(json.dumps(line) for line in (LINE, {"premise": "P", "label": 1})),
        r"line 2: expected the field 'hypothesis', got premise, label", 1),
    "not JSON": ("mnli", "train", "glue/mnli/train.jsonl", json.dumps(LINE) + '\n{"premise": \n[1]\n',
        r"line 2: expected JSON, got text that cannot be parsed: .*\n.*line 3: expected a JSON object, got list", 2),
    "number": ("stsb", "train", "STS-B/train.tsv",
        rows(STS, (0, "a", "b", 5), (1, "a", "b", 5.2), (2, "a", "b", "nan"), (3, "a", "b", "?")),
        r"line 3: expected a number from 0 to 5 as label, got '5.2'", 3),
    "truth": ("stsb", "train", "glue/stsb/train.jsonl",
        json_lines(*({"sentence1": "a", "sentence2": "b", "label": label} for label in (1, True))),
        r"line 2: expected a number from 0 to 5 as label, got True", 1),
    "too many tags": ("wnut17", "train", "wnut17/train.conll", "a\tO\nb\n\nc\tO\n",
        r"wnut17/train.conll, line 1: line 2 has no tag", 1),
    "unknown tag": ("wnut17", "train", "wnut17/train.conll", "a\tO\n\nb\tO\nc\tB-animal\n",
        r"line 3: unknown tag 'B-animal' at word 2: expected one of O, B-corp", 1),
    "not BIO": ("wnut17", "train", "wnut17/train.conll", "a\tO\n\nb\tB-group\nc\tI-person\n",
        r"line 3: the tags are not BIO: I-person at word 2 follows B-group", 1),
    "begins inside": ("oromo_ner", "train", "oromo_ner/all.conll", "a\tI-PER\n\nb\tO\n",
        r"line 1: the tags are not BIO: I-PER at word 1 follows O", 1),
    "answer elsewhere": ("squad1", "train", "squad1/train-v1.1.json", squad(answer_start=1),
        r"article 1, paragraph 1, question 1: expected the answer 'Anna' at character 1 of the context, "
        r"found the answer at character 0", 1),
    "answer nowhere": ("squad1", "train", "squad1/train-v1.1.json", squad(text="Cleo"),
        r"expected the answer 'Cleo' at character 0 of the context, found no such text", 1),
    "answer before": ("squad1", "train", "squad1/train-v1.1.json", squad(text=".", answer_start=-1),
        r"expected the answer '.' at character -1 of the context", 1),
    "no place": ("squad2", "train", "squad2/train-v2.0.json", squad(answer_start="0"),
        r"article 1, paragraph 1, question 1: expected other content \(TypeError", 1),
    "blank answer": ("squad2", "train", "squad2/train-v2.0.json", squad(text="", answer_start=3),
        r"question 1: expected an answer that is not blank", 1),
    "answers to what has none": ("squad2", "train", "squad2/train-v2.0.json", squad_flags(True, True),
        r"question 1: expected no answers if `is_impossible` is true, and answers if it is false, got "
        r"\[\{'text': 'Bo'.* with true; plausible but wrong", 1),
    "no answers to what has one": ("squad2", "train", "squad2/train-v2.0.json", squad_flags(False, False),
        r"question 1: expected no answers if `is_impossible` is true, and answers if it is false, got \[\] with false",
        1),
    "no flag": ("squad2", "train", "squad2/train-v2.0.json", squad_flags("false", True),
        r"question 1: expected `is_impossible` to be true or false, got 'false'", 1),
    "choice": ("dream", "train", "dream/train.json", dream(answer="d"),
        r"dream/train.json, dialogue 2 \(d\): question 1: the answer must be exactly one of the choices .*'d'", 1),
    "no choices": ("dream", "train", "dream/train.json", dream(choice=[]),
        r"the field 'choice' must be a list of texts", 1),
    "no question": ("dream", "train", "dream/train.json",
        json.dumps([[["M: Hi."], [{"question": "Q", "choice": ["a"], "answer": "a"}], "g"], [["x"], ["y"], "d"],
            ["x"]]),
        r"dialogue 2 \(d\): the field 'questions' .*got \['y'\]\n.*dialogue 3: expected \[turns, questions, id\],"
        r" got \['x'\]", 2),
    "option": ("race_high", "train", "RACE/train/high/1.txt", json.dumps(RACE | {"answers": ["C"]}),
        r"1.txt: unknown label 2: expected the number of a candidate, 0 to 1", 1),
    "letters": ("race_high", "train", "RACE/train/high/1.txt", json.dumps(RACE | {"answers": ["AB"]}),
        r"1.txt: expected an answer that is one of the letters A to H, got 'AB'", 1),
    "options": ("race_high", "train", "RACE/train/high/1.txt", json.dumps(RACE | {"options": [["a"], ["b"]]}),
        r"1.txt: .*argument 2 is longer", 1),
    "entity": ("record", "train", "record/train.jsonl",
        json.dumps(RECORD | {"qas": [*RECORD["qas"], RECORD["qas"][0] | {"answers": [{"text": "Bo"}]}]}),
        r"line 1, question 2: expected an answer that is an entity of the passage, got \['Bo'\]", 1),
    "placeholder": ("record", "train", "record/train.jsonl",
        json.dumps(RECORD | {"qas": [*RECORD["qas"], {"query": "who", "answers": []}]}),
        r"expected @placeholder in the query", 1),
    "form": ("record", "train", "record/train.jsonl",
        json.dumps(RECORD) + "\n" + json.dumps(RECORD | {"passage": {"text": "x", "entities": [{}]}}),
        r"line 2, question 1: expected the key 'start', got none", 1),
    "deep": ("mnli", "train", "glue/mnli/train.jsonl", json.dumps(LINE) + "\n" + '{"premise": ' * 99999,
        r"line 2: expected JSON of a few levels", 1),
    "no booleans": ("boolq", "train", "BoolQ/train.jsonl",
        json_lines(*({"question": "q", "passage": "p", "idx": 0, "label": label} for label in (True, "yes", 2))),
        r"BoolQ/train.jsonl, line 2: unknown label 'yes': expected false, true or 0 to 1", 2),
    "cause": ("copa", "train", "COPA/train.jsonl",
        json_lines(COPA, COPA | {"question": "why"}, COPA | {"label": 2}, COPA | {"choice2": ""}),
        r"line 2: the field 'question' must be cause or effect, got 'why'\n.*line 3: unknown label 2.*\n.*line 4: the"
        r" field 'choice2' must be a text", 3),
    "no answers": ("multirc", "train", "MultiRC/train.jsonl",
        json_lines(MULTIRC, MULTIRC | {"passage": {"text": "P", "questions": []}}, MULTIRC | {"passage": {"text": "P",
            "questions": [{"question": "Q", "idx": 0, "answers": [{"text": "A", "idx": 0}]}]}}, MULTIRC | {"passage":
            "P"}),
        r"line 2: the field 'questions' must be a list of at least one object, got \[\]\n.*line 3: unknown label None"
        r".*\n.*line 4: expected other content", 3),
    "no characters of a word": ("wic", "train", "WiC/train.jsonl",
        json_lines(WIC, WIC | {"end1": 7}, WIC | {"start2": 5}, WIC | {"start1": 1, "end1": 2}, WIC | {"end2": None},
            WIC | {"end2": True}),
        r"line 2: expected start1 and end1 to be the first and last \+ 1 character of the word 'a' in 'a bank', got 2 "
        r"and 7", 5),
    "no words there": ("wsc", "train", "WSC/train.jsonl",
        json_lines(WSC, WSC | {"target": WSC_TARGET | {"span1_index": 2}}, WSC | {"target": WSC_TARGET |
            {"span2_index": 4}}, WSC | {"target": WSC_TARGET | {"span2_text": "."}}, WSC | {"target": WSC_TARGET |
            {"span1_index": 2, "span1_text": "she"}}, WSC | {"target": "she"}),
        r"line 2: expected 'Ann' at word 2 of the text, found 'she ran'\n.*line 3: expected 'she' at one of the words 0"
        r" to 3 of the text, got 4\n.*\n.*line 5: the phrase and the pronoun overlap: 'she', 'she'\n.*line 6: expected"
        r" other content", 5),
    "several lines": ("swag", "train", "swag/train.csv", SWAG + '1,a,"b\n\nc",d,e,f,1\n',
        r"swag/train.csv, lines 3 to 5: expected 8 columns, got 7", 1),
    "few endings": ("swag", "train", "swag/train.csv", SWAG + "1,a,b,c,d,e,f\n2,a,b,c,d,e,f,4\n",
        r"line 3: expected 8 columns, got 7\n.*line 4: unknown label '4'", 2),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_malformed_rows_are_named_counted_and_left_out_on_demand(tmp_path, name):
    task, split, file, content, message, count = BAD[name]
    root = write(tmp_path, {file: content})
    if name in ("option", "letters", "options"):  # a file that is one row needs a neighbour that is good
        write(tmp_path, {"RACE/train/high/0.txt": json.dumps(RACE)})
    with pytest.raises(ValueError, match=message) as raised:
        load(TASKS[task], root, split)
    remedy = f"mend them, or set --config.tasks.{task}.skip_malformed=True"
    assert f"task {task}, split {split}: {count} malformed rows; {remedy}" in str(raised.value)
    examples = load(TASKS[task], root, split, skip_malformed=True)
    assert examples.skipped == count and len(examples) == 1


@pytest.mark.parametrize("row", ['1,a,b,"c"d,d,e,f,1', '1,a,b,"c,d,e,f,g,1'], ids=["closed early", "never closed"])
def test_a_table_whose_rest_cannot_be_read_is_refused_whatever_is_left_out(tmp_path, row):
    root = write(tmp_path, {"swag/train.csv": f"{SWAG}{row}\n" + "2,a,b,c,d,e,f,1\n" * 3})
    for skip in (False, True):
        with pytest.raises(
            ValueError,
            match=r"swag/train.csv, line 3: expected a row of a table .*no row after this line.*mend the quotes",
        ):
            load(TASKS["swag"], root, "train", skip_malformed=skip)


def test_a_table_whose_header_cannot_be_read_is_named(tmp_path):
    root = write(tmp_path, {"swag/train.csv": f'"id"x,{SWAG}1,a,b,c,d,e,f,1\n'})
    with pytest.raises(ValueError, match=r"swag/train.csv, line 1: expected a row of a table .*mend the quotes"):
        load(TASKS["swag"], root, "train")


def test_the_index_of_paws_is_told_by_its_columns_too(tmp_path):
    table = rows(("id", "qid1", "sentence1", "qid2", "sentence2", "label"), (1, 4, "0", 5, "0", 1))
    root = write(tmp_path, {"paws_qqp/dev_and_test.tsv": table})
    with pytest.raises(ValueError, match="this is the index of PAWS-QQP"):
        load(TASKS["paws_qqp"], root, "test")


def test_many_problems_are_counted_but_not_all_shown(tmp_path):
    lines = [json.dumps(LINE | {"label": 7})] * 9
    root = write(tmp_path, {"glue/mnli/train.jsonl": "\n".join(lines)})
    with pytest.raises(ValueError, match=r"9 malformed rows(.*\n)+.*line 5.*\n  and 4 more"):
        load(TASKS["mnli"], root, "train")
    with pytest.raises(
        ValueError, match=r"holds no example of task mnli.*all of 9 rows are malformed, the first: .*line 1: unknown"
    ):
        load(TASKS["mnli"], root, "train", skip_malformed=True)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("squad1/train-v1.1.json", "3", r'expected \{"data": \[...\]\} as in SQuAD'),
        ("squad1/train-v1.1.json", "[" * 99999, r"train-v1.1.json: expected JSON of a few levels"),
        ("squad1/train-v1.1.json", "{", r"train-v1.1.json: expected JSON, got text"),
        ("squad1/train-v1.1.json", '{"data": 3}', r'expected \{"data": \[...\]\} as in SQuAD'),
        ("squad1/train-v1.1.json", '{"data": []}', r"holds no example of task squad1, split train"),
        (
            "squad1/train-v1.1.json",
            '{"data": [{"title": "x"}, 3]}',
            r"2 malformed rows(.*\n)+.*article 2, paragraph 1, question 1: expected an object in the list",
        ),
    ],
)
def test_files_that_are_something_else(tmp_path, name, content, message):
    with pytest.raises(ValueError, match=message):
        load(TASKS["squad1"], write(tmp_path, {name: content}), "train")


def test_text_that_is_not_utf_8(tmp_path):
    (tmp_path / "RTE").mkdir()
    (tmp_path / "RTE" / "train.tsv").write_bytes(b"index\tsentence1\xff\n")
    with pytest.raises(ValueError, match=r"train.tsv, line 1: expected text in UTF-8"):
        load(TASKS["rte"], str(tmp_path), "train")
    (tmp_path / "squad1").mkdir()
    (tmp_path / "squad1" / "train-v1.1.json").write_bytes(b'{"data": "\xff"}')
    with pytest.raises(ValueError, match="train-v1.1.json is not UTF-8 text"):
        load(TASKS["squad1"], str(tmp_path), "train")
    packed = gzip.compress(b"index\tsentence1\n" * 99)
    for damaged in (b"no gzip", packed[:-9], packed[:14] + b"\xff\xff\xff" + packed[17:]):
        (tmp_path / "RTE" / "dev.tsv.gz").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"dev.tsv.gz is damaged"):
            load(TASKS["rte"], str(tmp_path), "validation")


def test_a_missing_split_says_what_was_looked_for(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"task squad1: no split 'test' below"):
        load(TASKS["squad1"], str(tmp_path), "test")
    with pytest.raises(
        FileNotFoundError,
        match=r"task rte: no split 'test' below .*: expected one of glue/rte/test.jsonl, .*RTE/test.tsv",
    ):
        load(TASKS["rte"], str(tmp_path), "test")
    with pytest.raises(FileNotFoundError, match="paws_qqp/train.tsv beside dev_and_test.tsv"):
        load(TASKS["paws_qqp"], str(tmp_path), "train")
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"no TensorFlow data set 'glue/rte' is prepared"):
        load(TASKS["rte"], "", "train")
    with pytest.raises(
        FileNotFoundError,
        match=r"task dream: TFDS has no split 'train' of it; set data to a directory that has the task's files "
        r"in one of the folders dream, dream/data",
    ):
        load(TASKS["dream"], "", "train")


def test_the_catalogue_itself():
    with pytest.raises(ValueError, match="unknown task 'sst3': expected one of cola, sst2"):
        catalogue.find("sst3")
    assert catalogue.find("sst2") is TASKS["sst2"]
    assert {task.kind for task in TASKS.values()} == set(KINDS) - {"ranking", "span_or_none", "referent"}
    for task in TASKS.values():
        assert task.metric in task.metrics
        assert hash(task) and "train" in task.splits
        assert bool(task.labels) == (task.kind in ("classification", "tagging"))
        assert all(layout.container in containers.CONTAINERS for layout in task.layouts)
        assert task.legacy or not task.legacy_validation
