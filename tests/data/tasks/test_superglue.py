"""SuperGLUE's official files, on one line each with its quirks."""

import json

import pytest

from ag_jax.data.tasks.catalogue import TASKS
from ag_jax.data.tasks.readers import load
from ag_jax.data.tasks.task import Choices, Texts
from tests.data.tasks.test_layouts import write

WSC = "Mark told Pete many lies about himself, which Pete included in his book. He should have been more truthful."
ANSWERS = [{"text": "Yes", "idx": 10, "label": 1}, {"text": "No", "idx": 11, "label": 0}]
LINES = {
    "BoolQ/train": {"question": "is it so", "passage": "So - It is.", "idx": 4, "label": False},
    "CB/val": {"premise": "P", "hypothesis": "H", "label": "neutral", "idx": 5},
    "COPA/train": {"premise": "It fell.", "choice1": "It broke.", "choice2": "It flew.", "question": "effect"}
    | {"idx": 1, "label": 0},
    "COPA/test": {"premise": "It fell.", "choice1": "Ann slept.", "choice2": "Bo hit it.", "question": "cause"}
    | {"idx": 2},
    "MultiRC/train": {"idx": 3, "version": 1.1}
    | {"passage": {"text": "P", "questions": [{"question": "Q?", "idx": 7, "answers": ANSWERS}]}},
    "RTE/train": {"premise": "P", "hypothesis": "H", "label": "not_entailment", "idx": 0},
    "AX-b/AX-b": {"sentence1": "S", "sentence2": "T", "idx": 6, "label": "entailment", "logic": "Negation"},
    "AX-g/AX-g": {"premise": "P", "hypothesis": "H", "idx": 9, "label": "entailment", "pair_id": 551},
    "WiC/train": {"word": "place", "sentence1": "Do you want to come over to my place later?", "sentence2": "Places!"}
    | {"idx": 0, "label": True, "start1": 31, "start2": 0, "end1": 36, "end2": 6, "version": 1.1},
    "WSC/train": {"text": WSC, "idx": 2, "label": False}
    | {"target": {"span1_index": 0, "span1_text": "mark", "span2_index": 13, "span2_text": "He"}},
}
RESULT, CAUSE = "What happened as a result?", "What was the cause of this?"
EXAMPLES = [
    ("boolq", "train", [Texts("4", "is it so", "So - It is.", 0)]),
    ("cb", "validation", [Texts("5", "P", "H", 1)]),
    ("copa", "train", [Choices("1", tuple(("It fell.", f"{RESULT} It {did}.") for did in ("broke", "flew")), (0,))]),
    (
        "copa",
        "test",
        [Choices("2", tuple(("It fell.", f"{CAUSE} {did}.") for did in ("Ann slept", "Bo hit it")), None)],
    ),
    ("multirc", "train", [Texts("3-7-10", "P", "Q? Yes", 1, "3-7"), Texts("3-7-11", "P", "Q? No", 0, "3-7")]),
    ("superglue_rte", "train", [Texts("0", "P", "H", 1)]),
    ("superglue_rte", "diagnostic_broad", [Texts("6", "S", "T", 0)]),
    ("superglue_rte", "diagnostic_gender", [Texts("9", "P", "H", 0, "551")]),
    ("wic", "train", [Texts("0", "Do you want to come over to my * place * later?", "* Places *!", 1)]),
    ("wsc", "train", [Texts("2", WSC.replace("Mark", "* Mark *").replace("He", "# He #"), None, 0)]),
]


@pytest.mark.parametrize("parent", ["", "super_glue", "SuperGLUE"])
def test_official_files(tmp_path, parent):
    root = str(tmp_path)
    write(tmp_path / parent, {f"{name}.jsonl": json.dumps(line) + "\n" for name, line in LINES.items()})
    for task, split, expected in EXAMPLES:
        assert list(load(TASKS[task], root, split)) == expected
    line = {key: value for key, value in LINES["AX-g/AX-g"].items() if key != "pair_id"}
    write(tmp_path / parent, {"AX-g/AX-g.jsonl": json.dumps(line)})
    with pytest.raises(ValueError, match="line 1.*'pair_id'"):
        load(TASKS["superglue_rte"], root, "diagnostic_gender")


def test_labels_of_other_copies(tmp_path):
    for name, labels, expected in (
        ("CB/val", (0, 1, 2, "contradiction"), [0, 2, 1, 2]),  # the hub's order
        ("COPA/train", ("choice1", "choice2", 1), [(0,), (1,), (1,)]),  # the first two are TFDS's names
    ):
        task = name.partition("/")[0]
        lines = "\n".join(json.dumps(LINES[name] | {"label": label}) for label in labels)
        examples = load(TASKS[task.lower()], write(tmp_path, {f"{task}/train.jsonl": lines}), "train")
        assert [example.label if task == "CB" else example.right for example in examples] == expected


HES = "The he-goat Ann saw when he's with their he."


@pytest.mark.parametrize(
    ("text", "phrase", "index", "found"),
    [
        (WSC, "Pete", 2, "* Pete * many"),  # 13 words apart from the other Pete
        (WSC, "Pete", 7, "which * Pete * included"),  # one too low
        (WSC, "Pete", 9, "which * Pete * included"),  # one too high
        (WSC, "himself.", 6, "about * himself *,"),  # a full stop that is not the phrase's
        (WSC, "his  book", 11, "in * his book *."),
        (HES, "he", 0, "The * he *-goat Ann"),  # not in `The`
        (HES, "he", 1, "The * he *-goat Ann"),
        (HES, "he", 4, "when * he *'s"),  # not in `when`
        (HES, "he", 5, "when * he *'s"),
        (HES, "he", 6, "when * he *'s"),  # not in `their`, the word behind
        (HES, "he", 7, "their * he *."),
        (HES, "their", 8, "with * their * he."),  # no word behind the last one
    ],
)
def test_phrases_of_wsc_are_whole_words_at_their_index_or_beside_it(tmp_path, text, phrase, index, found):
    other = {"span2_index": 0, "span2_text": "Mark"} if text == WSC else {"span2_index": 2, "span2_text": "Ann"}
    line = {"text": text, "label": 1, "idx": 0, "target": other | {"span1_text": phrase, "span1_index": index}}
    root = write(tmp_path, {"WSC/train.jsonl": json.dumps(line)})
    assert found.replace("Ann", "# Ann #") in load(TASKS["wsc"], root, "train")[0].first
