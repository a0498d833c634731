"""Real data sets: each loaded whole, with the numbers of rows that its source states; skipped where missing."""

import pytest

from ag_jax.data.tasks.catalogue import TASKS
from ag_jax.data.tasks.ranking import rank
from ag_jax.data.tasks.readers import load
from ag_jax.finetuning import kinds

COUNTS = {
    "cola": {"train": 8551, "validation": 1043}, "sst2": {"validation": 872}, "qqp": {"validation": 2000},
    "mrpc": {"train": 3668, "validation": 408, "test": 1725}, "stsb": {"validation": 1500, "test": 1379},
    "mnli": {"validation": 2000}, "qnli": {"validation": 1000}, "rte": {"train": 2490, "validation": 277},
    "anli_r1": {"train": 750, "validation": 250}, "anli_r3": {"train": 899, "validation": 299},
    "hellaswag": {"validation": 2000}, "dream": {"validation": 2040, "test": 2041}, "wnut17": {"validation": 1009},
    "filipino_hatespeech": {"validation": 4232}, "oromo_news": {"train": 1128, "validation": 162, "test": 325},
}  # fmt: skip


@pytest.fixture(scope="module")
def data(shared) -> str:
    return str(shared / "data")


def gold_of(example):
    if hasattr(example, "label"):
        return example.label
    return example.tags if hasattr(example, "tags") else example.right[0]


@pytest.mark.parametrize("name", COUNTS)
def test_a_set_is_read_whole(data, name):
    task = TASKS[name]
    for split, count in COUNTS[name].items():
        examples = load(task, data, split)
        assert len(examples) == count and examples.skipped == 0
        assert len({example.id for example in examples}) == len(examples)
        gold = [gold_of(example) for example in examples]
        assert kinds.evaluate(task, examples, gold)[task.metric] == pytest.approx(1)
        if task.kind == "classification":
            assert set(gold) == set(range(len(task.labels)))  # every class occurs, none other


def test_parts_of_dream_qnli_and_xquad(data):
    assert len(load(TASKS["dream"], data, "train", legacy=True)) == 3869
    made, left_out = rank(TASKS["qnli"], load(TASKS["qnli"], data, "train"))
    assert len(made) == 909 and left_out == 1364 + 1281
    train, validation = (load(TASKS["xquad_de"], data, split) for split in ("train", "validation"))
    assert len(train) + len(validation) == 1190 and 50 < len(validation) < 200
    assert not {example.context for example in train} & {example.context for example in validation}
