"""The real data sets: each loaded whole, with the numbers of rows that its source states;
skipped where they are missing.
"""

import numpy as np
import pytest

from ag_jax.data import tokenizers
from ag_jax.data.tasks import buckets
from ag_jax.data.tasks.catalogue import TASKS
from ag_jax.data.tasks.ranking import rank
from ag_jax.data.tasks.readers import load
from ag_jax.evaluation.answers import normalized
from ag_jax.finetuning import kinds
from ag_jax.finetuning.kinds import encode

COUNTS = {
    "cola": {"train": 8551, "validation": 1043},
    "sst2": {"train": 67349, "validation": 872},
    "mrpc": {"train": 3668, "validation": 408, "test": 1725},
    "stsb": {"train": 5749, "validation": 1500, "test": 1379},
    "qqp": {"train": 21496, "validation": 2000},
    "mnli": {"train": 7815, "validation": 2000},
    "qnli": {"train": 4463, "validation": 1000},
    "rte": {"train": 2490, "validation": 277},
    "anli_r1": {"train": 750, "validation": 250},
    "anli_r2": {"train": 750, "validation": 250},
    "anli_r3": {"train": 899, "validation": 299},
    "hellaswag": {"train": 8042, "validation": 2000},
    "dream": {"train": 6116, "validation": 2040, "test": 2041},
    "wnut17": {"train": 3394, "validation": 1009, "test": 1287},
    "filipino_hatespeech": {"train": 10000, "validation": 4232, "test": 4232},
    "oromo_news": {"train": 1128, "validation": 162, "test": 325},
}
TOKENIZERS = ("roberta-base", "bert-base-uncased")


@pytest.fixture(scope="module")
def data(shared) -> str:
    return str(shared / "data")


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenizer(request, shared) -> tokenizers.Tokenizer:
    return tokenizers.load(shared / "data" / "tokenizers" / request.param)


@pytest.mark.parametrize(("name", "split"), [(name, split) for name, counts in COUNTS.items() for split in counts])
def test_a_set_is_read_whole(data, name, split):
    task = TASKS[name]
    examples = load(task, data, split)
    assert len(examples) == COUNTS[name][split] and examples.skipped == 0
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


@pytest.mark.parametrize("language", ["en", "de"])
def test_xquad_in_two_parts_without_a_common_context(data, language):
    task = TASKS[f"xquad_{language}"]
    train, validation = (load(task, data, split) for split in ("train", "validation"))
    assert len(train) + len(validation) == 1190 and 50 < len(validation) < 200
    assert not {example.context for example in train} & {example.context for example in validation}
    gold = [example.answers[0][0] for example in train]
    assert kinds.evaluate(task, train, gold) == {"f1": 1, "exact_match": 1}


@pytest.mark.parametrize("language", ["en", "de"])
def test_answers_of_xquad_come_back_from_their_tokens(data, tokenizer, language):
    task = TASKS[f"xquad_{language}"]
    examples = load(task, data, "train")
    features = encode(task, examples, tokenizer, 384, 1)
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


@pytest.mark.parametrize(
    ("name", "longest"), [("sst2", 64), ("rte", 128), ("wnut17", 64), ("dream", 256), ("hellaswag", 128)]
)
def test_real_rows_make_full_batches(data, tokenizer, name, longest):
    examples = load(TASKS[name], data, "validation").take(slice(400))
    features = encode(TASKS[name], examples, tokenizer, longest, 1)
    made = list(buckets.batches(features, 16, max_length=longest, shuffle=True))
    rows = np.concatenate([batch["rows"] for batch in made])
    assert sorted(rows[rows >= 0]) == list(range(len(examples)))
    filled = sum(int(batch["segment_ids"].sum()) for batch in made) / sum(batch["tokens"].size for batch in made)
    unbucketed = sum(int(row["segment_ids"].sum()) for row in features.rows) / sum(
        row["tokens"].size // row["tokens"].shape[-1] * longest for row in features.rows
    )
    assert filled > 0.65 and filled > 1.05 * unbucketed
    assert len({batch["tokens"].shape for batch in made}) <= buckets.LENGTHS


def test_the_pairs_of_qnli(data):
    made, left_out = rank(TASKS["qnli"], load(TASKS["qnli"], data, "train"))
    assert len(made) == 909 and left_out == 1364 + 1281
