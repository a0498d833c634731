"""Parsers of the records of WSC and WNLI as a choice of the phrase to which a pronoun refers.

See Liu et al. 2019, section 5.1.

A masked language model scores each phrase in the place of the pronoun. The records of WSC (SuperGLUE) say where phrase
and pronoun are. Those of WNLI (GLUE) are pairs of a text, and a part of it in which a phrase stands for the pronoun:
phrase and pronoun are those for which the most words around them are the same in both. RoBERTa uses WSC's records for
both tasks.
"""

import re

from ag_jax.data.records.formats import Record
from ag_jax.data.tasks.marked import Span, wsc_spans
from ag_jax.data.tasks.phrases import DETERMINERS, PRONOUNS, candidates
from ag_jax.data.tasks.task import Referent, Task
from ag_jax.data.tasks.texts import label_of, text_of

_WORD = re.compile(r"[^\W_](?:[\w'’-]*\w)?")


def wsc(record: Record, task: Task, labelled: bool) -> list[Referent]:
    """Return a list with the one example of a WSC record: a pronoun, and the phrases to which it may refer."""
    text, phrase, pronoun = wsc_spans(record)
    return [_referent(record, text, pronoun, text[slice(*phrase)], label_of(record, task.label_index, labelled))]


def wnli(record: Record, task: Task, labelled: bool) -> list[Referent]:
    """Return a list with the one example of a WNLI record: a pronoun, and the phrases to which it may refer.

    Raises ValueError if the two texts of the record have nothing in common.
    """
    text, hypothesis = text_of(record, "first"), text_of(record, "second")
    pronoun, phrase = replaced(text, hypothesis)
    return [_referent(record, text, pronoun, phrase, label_of(record, task.label_index, labelled))]


def replaced(text: str, hypothesis: str) -> tuple[Span, str]:
    """Return the span of the pronoun in `text` that a phrase replaces in `hypothesis`, and this phrase.

    Of all pronouns and phrases, those are taken that leave the most words of the hypothesis equal to the words before
    and behind the pronoun; capitals and punctuation do not count. Raises ValueError if no word is equal.
    """
    text_spans = [Span(*match.span()) for match in _WORD.finditer(text)]
    part_spans = [Span(*match.span()) for match in _WORD.finditer(hypothesis)]
    words = [text[slice(*span)].lower() for span in text_spans]
    part = [hypothesis[slice(*span)].lower() for span in part_spans]
    best, match = 0, None
    for index, pronoun in enumerate(words):
        if pronoun not in PRONOUNS:
            continue
        # The hypothesis is some words before the pronoun, a phrase of at least one word, and some words behind it.
        most = min(index, len(part) - 1)
        before = max((count for count in range(most + 1) if part[:count] == words[index - count : index]), default=0)
        behind = max(
            count for count in range(len(part) - before) if _begins(words[index + 1 :], part[len(part) - count :])
        )
        if before + behind > best:
            best, match = before + behind, (index, before, len(part) - behind)
    if match is None:
        raise ValueError(
            f"expected a part of the text in which a phrase stands for a pronoun, got {hypothesis!r} for {text!r}"
        )
    index, first, end = match
    phrase = hypothesis[part_spans[first].begin : part_spans[end - 1].end]
    if not first and part[0] in DETERMINERS and text[text_spans[index].begin].islower():
        phrase = phrase[0].lower() + phrase[1:]  # it is not at the beginning of a sentence in the text
    return text_spans[index], phrase


def _begins(words: list[str], with_words: list[str]) -> bool:
    return words[: len(with_words)] == with_words


def _referent(record: Record, text: str, pronoun: Span, phrase: str, label: int | float | None) -> Referent:
    phrase = phrase.strip().rstrip(".,")
    phrases = (phrase, *candidates(text, pronoun, phrase))
    return Referent(record["id"], text[: pronoun.begin], text[pronoun.end :], phrases, label)
