"""Parsers that convert records of multiple-choice data sets to examples.

Questions about a text become pairs (text, question + " " + answer); where the question has a gap, the answer fills it.
A gap is one underscore or several in a row ("____", in RACE). Each of several gaps gets the whole answer, because there
is no rule for dividing it; so does the released code for RACE (XLNet's).
"""

import re
from collections.abc import Sequence
from typing import Any

from ag_jax.data.records.formats import Record
from ag_jax.data.tasks.task import Choices, Task
from ag_jax.data.tasks.texts import is_unknown, objects, text_of

PLACEHOLDER = "@placeholder"
_GAP = re.compile("_+")
_COPA = {"cause": "What was the cause of this?", "effect": "What happened as a result?"}


def hellaswag(record: Record, task: Task, labelled: bool) -> list[Choices]:
    """Return a list with the one example of a HellaSWAG record: a context and four endings."""
    endings = _texts(record, "endings")
    return [_choices(record["id"], text_of(record, "ctx"), endings, record.get("label"), labelled)]


def swag(record: Record, task: Task, labelled: bool) -> list[Choices]:
    """Return a list with the one example of a SWAG record: a sentence, the beginning of the next, and four endings."""
    start = text_of(record, "sent2")
    endings = [f"{start} {text_of(record, f'ending{number}')}" for number in range(4)]
    return [_choices(record["id"], text_of(record, "sent1"), endings, record.get("label"), labelled)]


def copa(record: Record, task: Task, labelled: bool) -> list[Choices]:
    """Return a list with the one example of a COPA record: a premise, and two candidates for its cause or effect.

    The candidates are two sentences. The question (Roemmele et al. 2011) stands before each of them.
    """
    question, names = record.get("question"), " or ".join(_COPA)
    if question not in _COPA:
        raise ValueError(f"the field 'question' must be {names}, got {question!r}")
    seconds = [f"{_COPA[question]} {text_of(record, f'choice{number}')}" for number in (1, 2)]
    label = record.get("label")
    label = {"choice1": 0, "choice2": 1}.get(label, label) if isinstance(label, str) else label  # names of TFDS
    return [_choices(record["id"], text_of(record, "premise"), seconds, label, labelled)]


def race(record: Record, task: Task, labelled: bool) -> list[Choices]:
    """Return an example for each question of a RACE record.

    A record has an article, and questions with a list of options and a letter as the answer.
    """
    article, questions = text_of(record, "article"), _texts(record, "questions")
    answers = record.get("answers") or [None] * len(questions)
    examples = []
    for number, (question, texts, answer) in enumerate(zip(questions, record["options"], answers, strict=True)):
        candidates = _filled(question, _texts({"options": texts}, "options"))
        right = None if is_unknown(answer) else _index_of_letter(answer)
        examples.append(_choices(f"{record['id']}-{number}", article, candidates, right, labelled))
    return examples


def _index_of_letter(answer: Any) -> int:
    """Return 0 for the answer A, 1 for B, and so on up to H."""
    letter = str(answer).strip()
    if letter not in tuple("ABCDEFGH"):
        raise ValueError(f"expected an answer that is one of the letters A to H, got {answer!r}")
    return ord(letter) - ord("A")


def dream(record: Record, task: Task, labelled: bool) -> list[Choices]:
    """Return an example for each question of a DREAM record: a dialogue and questions with three choices each."""
    dialogue = " ".join(_texts(record, "turns"))
    examples = []
    for number, question in enumerate(objects(record, "questions")):
        answers, answer = _texts(question, "choice"), question.get("answer")
        if answer is not None and answers.count(answer) != 1:
            raise ValueError(
                f"question {number + 1}: the answer must be exactly one of the choices {answers!r}, got {answer!r}"
            )
        right = None if answer is None else answers.index(answer)
        candidates = _filled(text_of(question, "question"), answers)
        examples.append(_choices(f"{record['id']}-{number}", dialogue, candidates, right, labelled))
    return examples


def record(record: Record, task: Task, labelled: bool) -> list[Choices]:
    """Return a list with the one example of a ReCoRD record: a query with a gap for an entity of a passage.

    All names of the right entity are right. Entities that are written alike are one candidate. Markers such as
    "@highlight" stay in the passage.
    """
    passage, query = record.get("passage"), text_of(record, "query")
    if isinstance(passage, dict):
        text = text_of(passage, "text")
        # The ends that ReCoRD stores are inclusive.
        entities = [text[place["start"] : place["end"] + 1] for place in passage.get("entities", ())]
    else:
        text, entities = text_of(record, "passage"), _texts(record, "entities")
    if PLACEHOLDER not in query:
        raise ValueError(f"expected {PLACEHOLDER} in the query, got {query!r}")
    # Entities are mentioned several times; each name is one candidate, in the order of its first mention.
    names = tuple(dict.fromkeys(name for name in entities if name.strip()))
    if not names:
        raise ValueError("expected a passage with at least one entity, got none")
    answers = [answer["text"] if isinstance(answer, dict) else answer for answer in record.get("answers") or ()]
    unknown = [answer for answer in answers if answer not in names]
    if unknown or (labelled and not answers):
        raise ValueError(f"expected an answer that is an entity of the passage, got {unknown[:1] or 'none'}")
    pairs = tuple((text, query.replace(PLACEHOLDER, name)) for name in names)
    right = tuple(sorted({names.index(answer) for answer in answers})) or None
    ids = record.get("idx")  # TFDS: of passage and query
    return [Choices(str(ids["query"]) if isinstance(ids, dict) else record["id"], pairs, right, names)]


def _filled(question: str, answers: Sequence[str]) -> list[str]:
    """Return a text for each answer: the question with the answer in its gaps, or behind it if it has none."""
    if not _GAP.search(question):
        return [f"{question} {answer}" for answer in answers]
    parts = _GAP.split(question)
    return [answer.join(parts) for answer in answers]


def _texts(record: Record, name: str) -> list[str]:
    values = record.get(name)
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
        raise ValueError(f"the field {name!r} must be a list of texts, got {values!r}")
    return values


def _choices(id: str, first: str, seconds: Sequence[str], label: Any, labelled: bool) -> Choices:
    right = None
    if labelled or not is_unknown(label):
        text = str(label).strip()
        if not text.isdecimal() or int(text) >= len(seconds):
            raise ValueError(f"unknown label {label!r}: expected the number of a candidate, 0 to {len(seconds) - 1}")
        right = (int(text),)
    return Choices(id, tuple((first, second) for second in seconds), right)
