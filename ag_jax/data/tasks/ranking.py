"""QNLI and WNLI as ranking tasks: choose the right candidate for a text, instead of classifying each pair.

QNLI (Liu et al. 2019, section 5.1): a question with a sentence that answers it and a sentence that does not; a model
scores both pairs. The paper mines the wrong sentences from the whole training set. Here, as in the released
preparation for FreeLB, the wrong sentences are those that QNLI has for the same question, so questions with only right
or only wrong sentences are left out, and counted.

WNLI (same section, with Kocijan et al. 2019): RoBERTa masks each noun phrase that a pronoun may stand for, and scores
it as masked words; a parser finds the phrases. There is no parser here, and no masked language model at fine-tuning:
the candidates for a premise are the hypotheses that WNLI has for it, each scored as a pair (premise, hypothesis). As in
the paper, premises without a right hypothesis cannot be learned from and are left out; so are premises with only right
hypotheses. RoBERTa's published WNLI numbers come from the paper's method, not from this one.
"""

import dataclasses
import zlib
from collections.abc import Sequence
from typing import cast

from ag_jax.data.tasks.task import Choices, Examples, Task, Texts

RIGHT = {"qnli": "entailment", "wnli": "entailment"}  # the label of right candidates


def ranked(task: Task) -> Task:
    """Return QNLI or WNLI as the task of choosing the right second text for a first text. Raises ValueError for another
    task.
    """
    if task.name not in RIGHT:
        raise ValueError(
            f"task {task.name} cannot be trained as a ranking: expected the task {' or '.join(RIGHT)}; set "
            f"tasks.{task.name}.ranking=False"
        )
    kind = "ranking" if task.name == "qnli" else "choice"
    return dataclasses.replace(task, kind=kind, labels=(), metric="accuracy", metrics=("accuracy",))


def rank(task: Task, examples: Examples) -> tuple[Examples, int]:
    """Return multiple-choice examples, each a choice among pairs of texts with the same first text, and the number of
    pairs that are in no example, for want of an alternative.

    task: QNLI or WNLI as classification, before `ranked`.
    examples: the pairs, labelled for classification.
    `Choices.names` are the ids of the candidates, so that a choice can be written as labels of the examples. The
    examples of a text whose labels are not known become candidates together; a single such example is left out.
    Raises ValueError for another task, or if there is nothing to rank.
    """
    ranked(task)  # rejects other tasks
    positive = task.labels.index(RIGHT[task.name])
    groups: dict[str, list[Texts]] = {}
    for example in cast(Sequence[Texts], examples):
        groups.setdefault(example.first, []).append(example)
    made: list[Choices] = []
    for group in groups.values():
        right = [example for example in group if example.label == positive]
        wrong = [example for example in group if example.label not in (positive, None)]
        unknown = [example for example in group if example.label is None]
        if len(unknown) > 1:
            made.append(_choices(unknown, None))
        if task.name == "qnli":
            made += [_of(yes, [no]) for yes, no in zip(right, wrong, strict=False)]
        elif wrong:
            made += [_of(yes, wrong) for yes in right]
    used = {name for choices in made for name in choices.names}
    left_out = sum(example.id not in used for example in examples)
    if not made:
        raise ValueError(
            f"{examples.source}: expected texts of task {task.name} with both a right and a wrong candidate to rank, "
            f"got none; give more examples, or set tasks.{task.name}.ranking=False"
        )
    return dataclasses.replace(examples, items=tuple(made)), left_out


def _of(right: Texts, wrong: list[Texts]) -> Choices:
    # The index of the right candidate is a hash of its id, so that always choosing the first candidate is no better
    # than chance.
    place = zlib.crc32(right.id.encode()) % (len(wrong) + 1)
    return _choices([*wrong[:place], right, *wrong[place:]], place)


def _choices(candidates: list[Texts], right: int | None) -> Choices:
    names = tuple(candidate.id for candidate in candidates)
    pairs = tuple((candidate.first, candidate.second) for candidate in candidates)
    return Choices("+".join(names), pairs, None if right is None else (right,), names)
