"""The real data sets: each loaded whole, with the numbers of rows that its source states;
skipped where they are missing.
"""

import pytest

from ag_jax.data import tokenizers
from ag_jax.data.tasks.catalogue import TASKS
from ag_jax.data.tasks.ranking import rank
from ag_jax.data.tasks.readers import load
from ag_jax.evaluation.answers import normalized
from ag_jax.finetuning import kinds
from ag_jax.finetuning.kinds import encode

COUNTS = {
    "cola": {"train": 8551, "validation": 1043},
    "sst2": {"validation": 872},
    "mrpc": {"train": 3668, "validation": 408, "test": 1725},
    "stsb": {"validation": 1500, "test": 1379},
    "qqp": {"validation": 2000},
    "mnli": {"validation": 2000},
    "qnli": {"validation": 1000},
    "rte": {"train": 2490, "validation": 277},
    "anli_r1": {"train": 750, "validation": 250},
    "anli_r2": {"train": 750, "validation": 250},
    "anli_r3": {"train": 899, "validation": 299},
    "hellaswag": {"validation": 2000},
    "dream": {"validation": 2040, "test": 2041},
    "wnut17": {"validation": 1009},
    "filipino_hatespeech": {"validation": 4232},
    "oromo_news": {"train": 1128, "validation": 162, "test": 325},
}


@pytest.fixture(scope="module")
def data(shared) -> str:
    return str(shared / "data")


@pytest.mark.parametrize("name", COUNTS)
def test_a_set_is_read_whole(data, name):
    task = TASKS[name]
    for split, count in COUNTS[name].items():
        examples = load(task, data, split)
        assert len(examples) == count and examples.skipped == 0
        assert len({example.id for example in examples}) == len(examples)
        gold = [metrics_gold(task, example) for example in examples]
        scores = kinds.evaluate(task, examples, gold)
        assert scores[task.metric] == pytest.approx(1)
        if task.kind == "classification":
            assert set(gold) == set(range(len(task.labels)))  # every class occurs, none other


def metrics_gold(task, example):
    if task.kind in ("classification", "regression"):
        return example.label
    return example.tags if task.kind == "tagging" else example.right[0]


def test_dreams_first_questions(data):
    assert len(load(TASKS["dream"], data, "train", legacy=True)) == 3869


@pytest.mark.parametrize(("language", "name"), [("en", "roberta-base"), ("de", "bert-base-uncased")])
def test_xquad_in_two_parts_without_a_common_context(shared, data, language, name):
    """Answers come back from the tokens of the training part."""
    task = TASKS[f"xquad_{language}"]
    examples, validation = (load(task, data, split) for split in ("train", "validation"))
    assert len(examples) + len(validation) == 1190 and 50 < len(validation) < 200
    assert not {example.context for example in examples} & {example.context for example in validation}
    assert kinds.evaluate(task, examples, [of.answers[0][0] for of in examples]) == {"f1": 1, "exact_match": 1}
    features = encode(task, examples, tokenizers.load(shared / "data" / "tokenizers" / name), 384, 1)
    assert features.lost == 0
    missed, found = 0, set()
    for row, owner, places in zip(features.rows, features.owner, features.characters, strict=True):
        if row["starts"]:
            example = examples[owner]
            text = example.context[places[row["starts"], 0] : places[row["ends"], 1]]
            assert example.answers[0][0] in text
            missed += normalized(text) != normalized(example.answers[0][0])
            found.add(int(owner))
    # An answer may begin or end inside a piece, as "19" in "1960s" does.
    assert len(found) == len(examples) and missed < 0.03 * len(examples)


def test_the_pairs_of_qnli(data):
    made, left_out = rank(TASKS["qnli"], load(TASKS["qnli"], data, "train"))
    assert len(made) == 909 and left_out == 1364 + 1281
