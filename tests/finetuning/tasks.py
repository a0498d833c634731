"""Tasks that a tiny model learns in seconds: the word `good` decides everything. And something to start from."""

import numpy as np

from ag_jax.data import tokenizers
from ag_jax.data.config import TokenizerConfig
from ag_jax.data.tasks.task import Choices, Examples, Question, Referent, TaggedSentence, Task, Texts
from ag_jax.finetuning.splits import Splits
from ag_jax.interop.opening import Pretrained
from tests import tiny

WORDS = ("good", "bad", "roads", "union", "state", "strong", "we", "build")
TOKENIZER = tokenizers.train(TokenizerConfig(kind="wordpiece", vocabulary_size=80), [" ".join(WORDS)] * 3)
CLASSES = {"kind": "classification", "metric": "accuracy", "metrics": ("accuracy", "f1"), "labels": ("bad", "good")}
KINDS = {
    "classification": CLASSES,
    "multilabel": {
        "kind": "multilabel",
        "metric": "micro_f1",
        "metrics": ("micro_f1", "macro_f1", "exact_match"),
        "labels": ("other", "good", "positive"),
    },
    "regression": {"kind": "regression", "metric": "pearson", "metrics": ("pearson",), "span": (0.0, 5.0)},
    "ranking": {"kind": "ranking", "metric": "accuracy", "metrics": ("accuracy",)},
    "choice": {"kind": "choice", "metric": "accuracy", "metrics": ("accuracy",)},
    "tagging": {
        "kind": "tagging",
        "metric": "entity_f1",
        "metrics": ("entity_f1", "token_f1"),
        "labels": ("O", "B-X", "I-X"),
    },
    "span": {"kind": "span", "metric": "f1", "metrics": ("exact_match", "f1")},
    "span_or_none": {
        "kind": "span_or_none",
        "metric": "f1",
        "metrics": ("f1", "no_answer_accuracy", "best_f1", "best_exact_match"),
        "answerable": False,
    },
    "referent": CLASSES | {"kind": "referent"},
}


def task(kind):
    return Task(name=kind, form="", layouts=(), **KINDS[kind])


def text(rng, good, most=4):
    """`good` or `bad`, and two words or more, up to `most`."""
    words = [str(word) for word in rng.choice(WORDS[2:], rng.integers(2, most + 1))]
    return ["good" if good else "bad", *words]


def example(kind, number, rng, labelled=True):
    good = bool(number % 2)
    words = text(rng, good, most=3)
    joined, name = " ".join(words), str(number)
    if kind in ("classification", "multilabel", "regression"):
        label = {"classification": int(good), "multilabel": (1, 2) if good else (), "regression": 5.0 * good}[kind]
        return Texts(name, joined, None, label if labelled else None)
    if kind in ("ranking", "choice"):
        right = number % 2
        others = 2 if kind == "ranking" else 2 + number % 3 // 2
        most = 7 if kind == "choice" else 4  # rows of several lengths in one kind are enough
        pairs = tuple(("which", " ".join(text(rng, place == right, most))) for place in range(others))
        return Choices(name, pairs, (right,) if labelled else None)
    if kind == "tagging":
        tags = ("B-X" if good else "O", *["O"] * (len(words) - 1))
        return TaggedSentence(name, tuple(words), tags if labelled else None)
    if kind == "referent":
        phrases = ("good", "bad union") if good else ("bad union", "good")
        return Referent(
            name, f"{words[1]} ", f" {joined[len(words[0]) :].strip()}", phrases, int(good) if labelled else None
        )
    if kind == "span_or_none" and not good:
        return Question(name, "where", joined, () if labelled else None)
    context = " ".join([*words[1:], "good", words[1]])
    return Question(name, "where", context, (("good", context.index("good")),) if labelled else None)


def examples(kind, count, seed, labelled=True):
    rng = np.random.default_rng(seed)
    return Examples(tuple(example(kind, number, rng, labelled) for number in range(count)), "here")


def splits(kind, train=24, validation=10, test=6):
    """Training and development data, and a test split without labels."""
    return Splits(
        task(kind),
        examples(kind, train, 0),
        examples(kind, validation, 1),
        {"test": examples(kind, test, 2, labelled=False)},
    )


def pretrained(params=None):
    """A random encoder of width 16 with dropout."""
    config = tiny.config(
        vocabulary_size=TOKENIZER.vocabulary_size,
        heads=2,
        width=16,
        max_length=24,
        token_types=1,
        dropout=0.1,
        initializer_range=0.15,
    )
    return Pretrained(config, TOKENIZER, params or {}, "roberta", "nowhere")
