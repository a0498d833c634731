"""Parser of extractive question-answering records, in which the answer is a span of the context."""

from typing import Any

from ag_jax.data.records.formats import Record
from ag_jax.data.tasks.task import Question, Task
from ag_jax.data.tasks.texts import text_of

STRIPPED = 16  # the most leading white space of a context, in characters, that TFDS strips


def squad(record: Record, task: Task, labelled: bool) -> list[Question]:
    """Return a list with the one example of a SQuAD record: a question with its context and answers.

    Raises ValueError if an answer is not at its stated position in the context, is missing, or contradicts
    `is_impossible`.
    """
    context, question = text_of(record, "context"), text_of(record, "question").strip()
    answers = record.get("answers")
    if isinstance(answers, dict):  # TFDS: a list of texts and a list of positions
        pairs = zip(answers["text"], answers["answer_start"], strict=True)
        answers = [{"text": text, "answer_start": _moved(context, text, start)} for text, start in pairs]
    impossible = record.get("is_impossible")
    if impossible not in (None, False, True):
        raise ValueError(f"expected `is_impossible` to be true or false, got {impossible!r}")
    if impossible and answers is None:
        answers = []
    if impossible is not None and isinstance(answers, list) and impossible == bool(answers):
        raise ValueError(
            f"expected no answers if `is_impossible` is true, and answers if it is false, got {answers!r} with "
            f"{str(impossible).lower()}; plausible but wrong answers belong in `plausible_answers`"
        )
    if answers is None and not labelled:
        return [Question(record["id"], question, context, None)]
    if not isinstance(answers, list) or not (answers or not task.answerable):
        least = ", at least one" if task.answerable else ""
        raise ValueError(
            f"expected `answers` to be a list of objects with `text` and `answer_start`{least}, got {answers!r}"
        )
    spans = tuple(dict.fromkeys(_answer(context, answer) for answer in answers))
    return [Question(record["id"], question, context, spans)]


def _answer(context: str, answer: Any) -> tuple[str, int]:
    """Return (text, position) of an answer, checked to be at this character of the context.

    Raises ValueError if the context does not have it there.
    """
    text, start = answer["text"], answer["answer_start"]
    if not text.strip():
        raise ValueError(f"expected an answer that is not blank, got {answer!r}")
    if start < 0 or context[start : start + len(text)] != text:
        place = context.find(text)
        actual = f"the answer at character {place}" if place >= 0 else "no such text in the context"
        raise ValueError(
            f"expected the answer {text!r} at character {start} of the context, found {actual}: correct `answer_start` "
            "or the answer's `text`"
        )
    return text, start


def _moved(context: str, text: str, start: int) -> int:
    """Return the position of an answer in a context from which TFDS has stripped the white space at the start.

    start: the position before stripping.

    If the answer is not found at `start` or up to `STRIPPED` characters before, `start` is returned.
    """
    moves = (start - move for move in range(min(STRIPPED, start) + 1))
    return next((place for place in moves if context.startswith(text, place)), start)
