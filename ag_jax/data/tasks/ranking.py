"""QNLI, WNLI and WSC as ranking tasks: choose the right candidate for a text, instead of classifying each pair.

QNLI (Liu et al. 2019, section 5.1): a question with a sentence that answers it and a sentence that does not; a model
scores both pairs. The paper mines the wrong sentences from the whole training set. Here, as in the released
preparation for FreeLB, the wrong sentences are those that QNLI has for the same question, so questions with only right
or only wrong sentences are left out, and counted.

WNLI and WSC (same section, after Kocijan et al. 2019): a pronoun, a phrase, and the other noun phrases of the text. The
model for masked words scores each phrase in the place of the pronoun. As in the paper, only examples with the right
phrase can be learned from; in evaluations the pronoun refers to the phrase if no other phrase scores higher.
"""

import dataclasses
import zlib
from collections.abc import Sequence
from typing import cast

from ag_jax.data.tasks.task import Choices, Examples, Referent, Task, Texts

RIGHT = "entailment"  # the label of right candidates of QNLI
_REFERENTS = {"wnli": "wnli_referents", "wsc": "wsc_referents"}  # the parsers of tasks about pronouns


def ranked(task: Task) -> Task:
    """Return the task (QNLI, WNLI or WSC) recast from classifying each pair to choosing the right one of candidates.

    The candidates are the sentences for a question of QNLI, or the phrases to which a pronoun of WNLI or WSC may refer.

    Raises ValueError for any other task.
    """
    if task.name in _REFERENTS:
        return dataclasses.replace(task, kind="referent", form=_REFERENTS[task.name])
    if task.name != "qnli":
        raise ValueError(
            f"task {task.name} cannot be trained as a ranking: expected the task qnli, {' or '.join(_REFERENTS)}; set "
            f"tasks.{task.name}.ranking=False"
        )
    return dataclasses.replace(task, kind="ranking", labels=(), metric="accuracy", metrics=("accuracy",))


def rank(task: Task, examples: Examples) -> tuple[Examples, int]:
    """Return (choices among QNLI pairs with the same question, number of pairs left out for want of an alternative).

    A choice is between a right and a wrong pair, or among all pairs of a question whose labels are not known.

    task: QNLI as classification, before `ranked`.
    examples: the pairs, labelled for classification.
    `Choices.names` are the ids of the candidates, so that a choice can be written as labels of the examples.

    Raises ValueError if there is nothing to rank.
    """
    positive = task.labels.index(RIGHT)
    groups: dict[str, list[Texts]] = {}
    for example in cast(Sequence[Texts], examples):
        groups.setdefault(example.first, []).append(example)
    choices: list[Choices] = []
    for group in groups.values():
        right = [example for example in group if example.label == positive]
        wrong = [example for example in group if example.label not in (positive, None)]
        unknown = [example for example in group if example.label is None]
        if len(unknown) > 1:
            choices.append(_choices(unknown, None))
        # The n-th right candidate is ranked against the n-th wrong one, as far as both go.
        choices += [_choice_with(one, [other]) for one, other in zip(right, wrong, strict=False)]
    ranked_ids = {name for choice in choices for name in choice.names}
    left_out = sum(example.id not in ranked_ids for example in examples)
    if not choices:
        raise ValueError(
            f"{examples.source}: expected texts of task {task.name} with both a right and a wrong candidate to rank, "
            f"got none; give more examples, or set tasks.{task.name}.ranking=False"
        )
    return dataclasses.replace(examples, items=tuple(choices)), left_out


def learnable(examples: Examples) -> tuple[Examples, int]:
    """Return (examples with a right and a wrong phrase for the pronoun, number of others, which are left out).

    Those are left out in which the pronoun does not refer to the phrase, or the text has no other phrase.

    Raises ValueError if none is left.
    """
    items = tuple(
        example for example in cast(Sequence[Referent], examples) if example.label == 1 and example.phrases[1:]
    )
    if not items:
        raise ValueError(
            f"{examples.source}: expected texts with the phrase that a pronoun refers to, and another phrase, got "
            "none; give more examples, or set ranking=False"
        )
    return dataclasses.replace(examples, items=items), len(examples) - len(items)


def _choice_with(right: Texts, wrong: list[Texts]) -> Choices:
    """Return a choice among `right` and the `wrong` candidates, with `right` at an index given by a hash of its id."""
    # The index of the right candidate is a hash of its id, so that always choosing the first candidate is no better
    # than chance.
    place = zlib.crc32(right.id.encode()) % (len(wrong) + 1)
    return _choices([*wrong[:place], right, *wrong[place:]], place)


def _choices(candidates: list[Texts], right: int | None) -> Choices:
    names = tuple(candidate.id for candidate in candidates)
    pairs = tuple((candidate.first, candidate.second) for candidate in candidates)
    return Choices("+".join(names), pairs, None if right is None else (right,), names)
