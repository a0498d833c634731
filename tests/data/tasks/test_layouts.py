"""Every official layout, on the smallest file that has its quirks."""

import gzip
import json
import pathlib
import zlib

import pytest

from ag_jax.data.tasks.catalogue import TASKS
from ag_jax.data.tasks.readers import find_files, load
from ag_jax.data.tasks.task import Choices, Question, TaggedSentence, Texts


def write(root, files: dict[str, str]):
    for name, content in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
    return str(root)


def rows(*lines: tuple) -> str:
    return "".join("\t".join(map(str, line)) + "\n" for line in lines)


MNLI = ("index", "promptID", "pairID", "genre", "sentence1_binary_parse", "sentence2_binary_parse", "sentence1_parse")
MNLI += ("sentence2_parse", "sentence1", "sentence2")
PARSES = ("31193", "31193n", "government", "( a )", "( b )", "(ROOT a)", "(ROOT b)")
MRPC = ("#1 ID", "#2 ID", "#1 String", "#2 String")
STSB = ("index", "genre", "filename", "year", "old_index", "source1", "source2", "sentence1", "sentence2")
MSR = ("main", "MSRvid", "2012", "0001", "none", "none")
INDEX = ("index", "sentence1", "sentence2")
OF_MNLI = {of: (number, *PARSES, *of) for number, of in ((0, "PH"), (5, "MN"), (6, "QR"))}
FIVE = [f"label{n}" for n in range(1, 6)]
# The file, its rows, the split that it is, and its first example.
GLUE = [
    ("CoLA/train.tsv", [("gj04", 1, "", "It's \"so."), ("gj04", 0, "*", "Them so.")],
        "cola", Texts("0", "It's \"so.", None, 1)),
    ("CoLA/test.tsv", [("index", "sentence"), (0, "Bill is.")], "cola", Texts("0", "Bill is.", None, None)),
    ("SST-2/train.tsv", [("sentence", "label"), ('"a gem ', 1), ("dull ", 0)], "sst2", Texts("0", '"a gem ', None, 1)),
    ("SST-2/test.tsv", [("index", "sentence"), (7, "so so")], "sst2", Texts("7", "so so", None, None)),
    ("MRPC/train.tsv", [("\ufeffQuality", *MRPC), (1, 70, 71, 'He "said', "Said")],
        "mrpc", Texts("0", 'He "said', "Said", 1)),
    ("MRPC/dev.tsv", [("\ufeffQuality", *MRPC), (0, 1, 2, "A", "B")], "mrpc", Texts("0", "A", "B", 0)),
    ("MRPC/test.tsv", [("\ufeffindex", *MRPC), (3, 5, 6, "C", "D")], "mrpc", Texts("3", "C", "D", None)),
    ("STS-B/dev.tsv", [(*STSB, "score"), (4, *MSR, "A plane.", "B", "4.250")],
        "stsb", Texts("4", "A plane.", "B", 4.25)),
    ("STS-B/test.tsv", [STSB, (0, *MSR, "A girl.", "A boy.")], "stsb", Texts("0", "A girl.", "A boy.", None)),
    ("QQP/train.tsv", [("id", "qid1", "qid2", "question1", "question2", "is_duplicate"), (13, 1, 2, "How?", "Why?", 0)],
        "qqp", Texts("13", "How?", "Why?", 0)),
    ("QQP/dev.tsv", [("id", "question1", "question2", "is_duplicate"), (5, "", "Why?", 1)],
        "qqp", Texts("5", "", "Why?", 1)),
    ("QQP/test.tsv", [("id", "question1", "question2"), (9, "Who?", "Where?")],
        "qqp", Texts("9", "Who?", "Where?", None)),
    ("MNLI/train.tsv", [(*MNLI, "label1", "gold_label"), (*OF_MNLI["PH"], "x", "neutral")],
        "mnli", Texts("0", "P", "H", 1)),
    ("MNLI/dev_matched.tsv", [(*MNLI, *FIVE, "gold_label"), (*OF_MNLI["PH"], *"xxxxx", "contradiction")],
        "mnli", Texts("0", "P", "H", 2)),
    ("MNLI/dev_mismatched.tsv", [(*MNLI, "label1", "gold_label"), (*OF_MNLI["MN"], "x", "entailment")],
        "mnli", Texts("5", "M", "N", 0)),
    ("MNLI/test_mismatched.tsv", [MNLI, OF_MNLI["QR"]], "mnli", Texts("6", "Q", "R", None)),
    ("diagnostic/diagnostic.tsv", [INDEX, (0, "The cat.", "No cat.")], "mnli", Texts("0", "The cat.", "No cat.", None)),
    ("QNLI/train.tsv", [("index", "question", "sentence", "label"), (2, "When?", "Then.", "not_entailment")],
        "qnli", Texts("2", "When?", "Then.", 1)),
    ("RTE/dev.tsv", [(*INDEX, "label"), (0, "T", "H", "entailment")], "rte", Texts("0", "T", "H", 0)),
    ("WNLI/train.tsv", [(*INDEX, "label"), (0, "A pin.", "It had a hole.", 1)],
        "wnli", Texts("0", "A pin.", "It had a hole.", 1)),
]  # fmt: skip
SPLITS = {"dev": "validation", "dev_matched": "validation", "dev_mismatched": "validation_mismatched"}


@pytest.mark.parametrize("parent", ["", "glue", "GLUE", "glue_data"])
def test_the_tables_of_glue(tmp_path, parent):
    write(tmp_path / parent, {file: rows(*lines) for file, lines, *_ in GLUE})
    for file, _, name, first in GLUE:
        split = pathlib.PurePath(file).stem
        examples = load(TASKS[name], str(tmp_path), SPLITS.get(split, split))
        assert examples[0] == first
        assert len(examples) == (2 if file in ("CoLA/train.tsv", "SST-2/train.tsv") else 1)


def test_packed_files_and_lines_of_json_before_tables(tmp_path):
    table = rows((*INDEX, "label"), (0, "T", "H", "entailment"))
    line = json.dumps({"sentence1": "P", "sentence2": "H", "label": 1, "idx": 8336})
    root = write(tmp_path, {"RTE/train.tsv": table, "glue/rte/train.jsonl": f"{line}\n\n"})
    (tmp_path / "RTE" / "dev.tsv.gz").write_bytes(gzip.compress(table.encode()))
    assert load(TASKS["rte"], root, "train").items == (Texts("8336", "P", "H", 1),)
    assert load(TASKS["rte"], root, "validation").items == (Texts("0", "T", "H", 0),)


@pytest.mark.parametrize(
    "layout", ["anli_v1.0/R{}/dev.jsonl", "anli/R{}/dev.jsonl", "R{}/dev.jsonl", "anli/r{}/validation.jsonl"]
)
def test_the_rounds_of_anli_alone_and_together(tmp_path, layout):
    for number in (1, 2, 3):
        line = {"uid": f"u{number}", "context": "C", "premise": "C", "hypothesis": "H", "label": "enc"[number - 1]}
        root = write(tmp_path, {layout.format(number): json.dumps(line) + "\n"})
    together = load(TASKS["anli"], root, "validation")
    assert together.items == tuple(Texts(f"u{number}", "C", "H", number - 1) for number in (1, 2, 3))
    assert load(TASKS["anli_r3"], root, "validation").items == together.items[2:]
    (tmp_path / layout.format(2)).unlink()
    with pytest.raises(FileNotFoundError, match="anli.*'validation'"):
        load(TASKS["anli"], root, "validation")
    assert TASKS["anli_r2"].legacy_validation == "test"


PAIRS = ("id", "sentence1", "sentence2", "label")


def test_paws_holds_a_tenth_of_train_out_and_never_tests_on_it(tmp_path):
    """Malformed rows of the file that is two splits count once."""
    table = rows(PAIRS, *((number, f"a {number}", "b", number % 2) for number in range(300)), (300, "a"), (301, "a"))
    test = rows(PAIRS, (1, "x", "y", 1), (2, "x"))
    root = write(tmp_path, {"paws_qqp/train.tsv": table, "paws_qqp/dev_and_test.tsv": test})
    parts = [load(TASKS["paws_qqp"], root, split, skip_malformed=True) for split in ("train", "validation", "test")]
    assert [examples.skipped for examples in parts] == [2, 0, 1]
    held_out = {str(number) for number in range(300) if zlib.crc32(str(number).encode()) % 10 == 0}
    ids = [{example.id for example in part} for part in parts]
    assert ids == [{str(number) for number in range(300)} - held_out, held_out, {"1"}] and 15 < len(held_out) < 50
    # With splits of its own nothing is held out.
    root = write(tmp_path / "own", {"paws_qqp/train.tsv": table, "paws_qqp/dev.tsv": test})
    parts = [load(TASKS["paws_qqp"], root, split, skip_malformed=True) for split in ("train", "validation")]
    assert [len(part) for part in parts] == [300, 1]


def test_paws_as_its_script_writes_it_under_python_3(tmp_path):
    lines = (7, "b'It \\'s Gr\\xc3\\xbc\\xc3\\x9fe'", 'b"What \'s b ?"', 1), (8, "b 'x'", "b", 0)
    root = write(tmp_path, {"paws_qqp/dev_and_test.tsv": rows(PAIRS, *lines)})
    examples = load(TASKS["paws_qqp"], root, "test")
    assert examples.items == (Texts("7", "It 's Grüße", "What 's b ?", 1), Texts("8", "b 'x'", "b", 0))


def test_hellaswag_and_swag(tmp_path):
    line = {"ind": 4, "activity_label": "x", "ctx_a": "A man sits.", "ctx_b": "he", "ctx": "A man sits. he"}
    line |= {"endings": ["sings.", "falls.", "eats.", "runs."]}
    table = (
        ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"
        '0,lsmdc,18313,Students look. She,Students look.,She,gold,"pats, then saunters.",turns.,walks.,wheels.,2\n'
    )
    files = {"hellaswag/hellaswag_val.jsonl": json.dumps(line | {"label": 3}), "swag/val.csv": table}
    root = write(tmp_path, files | {"hellaswag/hellaswag_test.jsonl": json.dumps(line)})
    pairs = tuple(("A man sits. he", ending) for ending in line["endings"])
    assert load(TASKS["hellaswag"], root, "validation").items == (Choices("4", pairs, (3,)),)
    assert load(TASKS["hellaswag"], root, "test").items == (Choices("4", pairs, None),)
    seconds = ("She pats, then saunters.", "She turns.", "She walks.", "She wheels.")
    expected = Choices("0", tuple(("Students look.", second) for second in seconds), (2,))
    assert load(TASKS["swag"], root, "validation").items == (expected,)


def article(id, answers, **changes):
    asked = {"questions": ["What is _ ?", "Who?"], "options": [list("wxyz"), list("pqrs")], "answers": answers}
    return json.dumps({"id": id, "article": "Text."} | asked | changes)


def test_race_by_level(tmp_path):
    files = {"middle/9.txt": article("middle9.txt", ["A", "H"], options=[["w", "x"], [*"pqrstuvw"]])}
    files["high/1.txt"] = article("high1.txt", ["B", "D"])
    root = write(tmp_path, {f"RACE/train/{name}": content for name, content in files.items()})
    both = load(TASKS["race"], root, "train")
    assert [example.id for example in both] == ["middle9.txt-0", "middle9.txt-1", "high1.txt-0", "high1.txt-1"]
    assert both[0] == Choices("middle9.txt-0", (("Text.", "What is w ?"), ("Text.", "What is x ?")), (0,))
    assert both[1].pairs[3] == ("Text.", "Who? s")
    assert [example.right for example in both] == [(0,), (7,), (1,), (3,)]
    gaps = article("gaps", ["A", "A"], questions=["____ or _ ?", "Is ___"], options=[[r"\1", "b"], ["c", "d"]])
    filled = load(TASKS["race_high"], write(tmp_path / "gaps", {"RACE/test/high/1.txt": gaps}), "test")
    assert [second for example in filled for _, second in example.pairs] == [r"\1 or \1 ?", "b or b ?", "Is c", "Is d"]
    assert load(TASKS["race_high"], root, "train").items == both.items[2:]
    assert load(TASKS["race_middle"], root, "train").items == both.items[:2]
    names = [f"{root}/RACE/train/{name}" for name in files]
    assert {split: [*map(str, found)] for split, found in find_files(TASKS["race"], root).items()} == {"train": names}


def test_dream_and_its_legacy(tmp_path):
    question = {"question": "What?", "choice": ["a", "b", "c"], "answer": "c"}
    entry = [["M: Hi.", "W: Ho."], [question, {**question, "answer": "a"}], "5-510"]
    root = write(tmp_path, {"dream/data/dev.json": json.dumps([entry, entry])})
    examples = load(TASKS["dream"], root, "validation")
    assert examples[0] == Choices("5-510-0", tuple(("M: Hi. W: Ho.", f"What? {x}") for x in "abc"), (2,))
    assert [example.id for example in examples] == ["5-510-0", "5-510-1"] * 2
    assert [example.right for example in examples] == [(2,), (0,), (2,), (0,)]
    assert [example.right for example in load(TASKS["dream"], root, "validation", legacy=True)] == [(2,), (2,)]


def test_squad_with_and_without_answers(tmp_path):
    def articles(*questions):
        return json.dumps({"data": [{"title": "T", "paragraphs": [{"context": "Anna met Bo.", "qas": questions}]}]})

    good = {"id": "a", "question": " Who? ", "answers": [{"text": "Anna", "answer_start": 0}] * 2}
    none = {"id": "b", "question": "Why?", "is_impossible": True, "answers": []}
    none |= {"plausible_answers": [{"text": "Bo", "answer_start": 9}]}
    root = write(tmp_path, {"squad1/dev-v1.1.json": articles(good), "squad2/dev-v2.0.json": articles(good, none)})
    first = Question("a", "Who?", "Anna met Bo.", (("Anna", 0),))
    assert load(TASKS["squad1"], root, "validation").items == (first,)
    assert load(TASKS["squad2"], root, "validation").items == (first, Question("b", "Why?", "Anna met Bo.", ()))


@pytest.mark.parametrize("file", ["record/dev.json", "super_glue/record/val.jsonl"])
def test_record(tmp_path, file):
    text = "Anna met Bo.\n@highlight\nBo fell. Anna!"
    places = [(0, 3), (9, 10), (24, 25), (33, 36)]
    query = {"id": "7-0", "idx": 0, "query": "@placeholder fell", "answers": [{"start": 9, "end": 10, "text": "Bo"}]}
    passage = {"text": text, "entities": [{"start": start, "end": end} for start, end in places]}
    entry = {"id": "7", "passage": passage, "qas": [query]}
    root = write(tmp_path, {file: json.dumps(entry if file.endswith("jsonl") else {"version": "1", "data": [entry]})})
    (example,) = load(TASKS["record"], root, "validation")
    assert example.names == ("Anna", "Bo") and example.right == (1,)
    assert example.pairs == ((text, "Anna fell"), (text, "Bo fell"))


CONLL = "-DOCSTART- -X- O\n\nEU NNP {}\nrejects VBZ O\nGerman JJ {}\nJews NN {}\n\nPeter NNP {}\n"


def test_conll_2003_in_both_of_its_notations(tmp_path):
    bio, iob1 = ("B-ORG", "B-MISC", "I-MISC", "B-PER"), ("I-ORG", "I-MISC", "I-MISC", "I-PER")
    root = write(tmp_path, {"conll2003/valid.txt": CONLL.format(*bio), "conll2003/eng.train": CONLL.format(*iob1)})
    first = TaggedSentence("0", ("EU", "rejects", "German", "Jews"), ("B-ORG", "O", "B-MISC", "I-MISC"))
    for split in ("train", "validation"):
        assert load(TASKS["conll2003"], root, split).items == (first, TaggedSentence("1", ("Peter",), ("B-PER",)))


def test_wnut_and_oromo_in_two_columns(tmp_path):
    text = "Empire\tB-location\nState\tI-location\n=\tO\n\n\n\u200b\tO\na\u00a0b\tO\r\nc d\tO\n \n"
    files = {"wnut17/wnut17train.conll": text, "wnut17/test.conll": "a\tB-group\n"}
    root = write(tmp_path, files | {"oromo_ner/all.conll": "Oromiyaa B-GPE\n"})
    assert load(TASKS["wnut17"], root, "test").items == (TaggedSentence("0", ("a",), ("B-group",)),)
    sentences = load(TASKS["wnut17"], root, "train")
    assert [example.words for example in sentences] == [("Empire", "State", "="), ("\u200b", "a\u00a0b", "c d")]
    assert load(TASKS["oromo_ner"], root, "train")[0] == TaggedSentence("0", ("Oromiyaa",), ("B-GPE",))
    assert len(TASKS["oromo_ner"].labels) == 9 and TASKS["oromo_ner"].folds == 10


def test_spreadsheets(tmp_path):
    news = 'category\theadline\ttext\turl\nsports\tH "x" y\t"A\tB ""c"""\thttps\n'
    hate = 'text,label\n"Isa, ""dalawa""\ntatlo",1\nApat,0\n'
    files = {"filipino_hatespeech/valid.csv": hate, "filipino_sentiment/train.csv": "text,label\nMaganda,1\n"}
    root = write(tmp_path, files | {"oromo_news/dev.tsv": news})
    found = load(TASKS["filipino_hatespeech"], root, "validation")
    assert found.items == (Texts("0", 'Isa, "dalawa"\ntatlo', None, 1), Texts("1", "Apat", None, 0))
    assert load(TASKS["filipino_sentiment"], root, "train")[0].label == 1
    assert load(TASKS["oromo_news"], root, "validation")[0] == Texts("0", 'H "x" y A\tB "c"', None, 3)
