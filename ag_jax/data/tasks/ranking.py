"""QNLI and WNLI as ranking: which of the candidates for a text is right, in the place of a yes or no for each.

QNLI (Liu et al. 2019, section 5.1): a question with a sentence that answers it and one that does not; a model scores both
pairs. The paper mines the wrong sentences from the whole training set; here, as in the released preparation for FreeLB, they
are those that QNLI itself has for the same question, so questions with one kind only are left out, and counted.

WNLI (same section, with Kocijan et al. 2019): RoBERTa masks each noun phrase that a pronoun may stand for, and scores it as
masked words; a parser finds the phrases. There is no parser here, and no masked language model at fine-tuning: the candidates
for a premise are the hypotheses that WNLI itself has for it, each scored as a pair (premise, hypothesis). As in the paper,
premises without a right hypothesis cannot be learned from and are left out; so are those with right hypotheses only. This is
not the method by which RoBERTa's WNLI numbers came about.
"""

import dataclasses
import zlib

from ag_jax.data.tasks.task import Choices, Examples, Task, Texts

RIGHT = {"qnli": "entailment", "wnli": "entailment"}  # the label of a candidate that is right


def ranked(task: Task) -> Task:
    """The task as a ranking one. Raises ValueError for a task that has none."""
    if task.name not in RIGHT:
        raise ValueError(f"task {task.name} cannot be ranked: expected {' or '.join(RIGHT)}")
    kind = "ranking" if task.name == "qnli" else "choice"
    return dataclasses.replace(task, kind=kind, labels=(), metric="accuracy", metrics=("accuracy",))


def rank(task: Task, examples: Examples) -> tuple[Examples, int]:
    """The candidates of every first text of a QNLI or WNLI task (not yet `ranked`), and how many examples were left out.

    `Choices.names` are the ids of the candidates, so that a choice can be written as labels of the examples. Examples whose
    label is not known are candidates of one another; an only one is left out.
    """
    ranked(task)  # refuses other tasks
    positive = task.labels.index(RIGHT[task.name])
    groups: dict[str, list[Texts]] = {}
    for example in examples:
        groups.setdefault(example.first, []).append(example)
    made: list[Choices] = []
    for group in groups.values():
        right = [example for example in group if example.label == positive]
        wrong = [example for example in group if example.label not in (positive, None)]
        unknown = [example for example in group if example.label is None]
        if len(unknown) > 1:
            made.append(_choices(unknown, None))
        if task.name == "qnli":
            made += [_of(one, [other]) for one, other in zip(right, wrong, strict=False)]
        elif wrong:
            made += [_of(one, wrong) for one in right]
    used = {name for choices in made for name in choices.names}
    left_out = sum(example.id not in used for example in examples)
    if not made:
        raise ValueError(
            f"{examples.source}: no text of task {task.name} has both a right and a wrong candidate to rank"
        )
    return dataclasses.replace(examples, items=tuple(made)), left_out


def _of(right: Texts, wrong: list[Texts]) -> Choices:
    # Its place among the candidates follows from its id, so that always choosing the first one is no better than chance.
    place = zlib.crc32(right.id.encode()) % (len(wrong) + 1)
    return _choices([*wrong[:place], right, *wrong[place:]], place)


def _choices(candidates: list[Texts], right: int | None) -> Choices:
    names = tuple(candidate.id for candidate in candidates)
    pairs = tuple((candidate.first, candidate.second) for candidate in candidates)
    return Choices("+".join(names), pairs, None if right is None else (right,), names)
