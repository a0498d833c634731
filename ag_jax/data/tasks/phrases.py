"""Find noun phrases of English text by rules, as candidates for what a pronoun refers to.

The program of RoBERTa takes the noun chunks of spaCy's parser. The rules here need no model, and find phrases whose
borders differ, such as those with a verb at their end:

* a determiner (`the`, `a`, `her`, ...) with the words behind it, up to a word of a closed class (prepositions,
  auxiliaries, conjunctions, pronouns, ...), punctuation, or a later word in -ed or -ing; at most `LONGEST` words;
* capitalised words in a row, without a first word of a closed class, as at the beginning of a sentence.
"""

import re

LONGEST = 3  # the most words of a phrase behind its determiner
DETERMINERS = frozenset(
    "a an the this that these those my your his her its our their some any each every no another both all many "
    "several few two three four five".split()
)
PRONOUNS = frozenset(
    "he she it they him her them his hers its their theirs himself herself itself themselves i me we us you who whom "
    "whose which what that this these those".split()
)
_CLOSED = (
    DETERMINERS
    | PRONOUNS
    | frozenset(
        "is are was were be been being am do does did done have has had having will would shall should can could may "
        "might must not never and or but nor so yet because although though since if unless while when whenever where "
        "as than then before after until till once whether even just only too very also still already however that "
        "of in on at by for with from to into onto over under above below behind beside between among through during "
        "about against without within along across around near off out up down away back there here how why now later "
        "always often soon instead except despite toward towards upon more most less such quite rather".split()
    )
)
_WORD = re.compile(r"[^\W_](?:[\w'’-]*\w)?")
_POSSESSIVE = re.compile(r"['’]s?$")
_NEGATED = re.compile(r"n['’]t$")


def noun_phrases(text: str) -> list[tuple[int, int]]:
    """Return (first character, last character + 1) of each noun phrase of a text, in reading order."""
    words = [match.span() for match in _WORD.finditer(text)]
    spans: list[tuple[int, int]] = []
    for index, (begin, end) in enumerate(words):
        if spans and begin < spans[-1][1]:
            continue  # a word of the last phrase
        run = _run(text, words[index:])
        phrase = _nouns(text, run[1:]) if text[begin:end].lower() in DETERMINERS else _names(text, run)
        if phrase:
            spans.append((begin, begin + len(_POSSESSIVE.sub("", text[begin : phrase[-1][1]]))))
    return spans


def candidates(text: str, pronoun: tuple[int, int], phrase: str) -> tuple[str, ...]:
    """Return the noun phrases to which a pronoun might refer, other than `phrase`, each once.

    Phrases that contain `phrase` or are contained in it are left out, as in the program of RoBERTa, and so are those
    that overlap the pronoun, such as `her hat`. Determiners do not count: `a carrot` and `the carrot` are the same.
    """
    bare_phrase = _without_determiner(phrase)
    others: dict[str, str] = {}
    for begin, end in noun_phrases(text):
        other = _without_determiner(text[begin:end])
        overlaps = begin < pronoun[1] and pronoun[0] < end
        if not overlaps and bare_phrase not in other and other not in bare_phrase:
            others.setdefault(other, text[begin:end])
    return tuple(others.values())


def _without_determiner(phrase: str) -> str:
    """Return a phrase in lower case, without the determiner before it."""
    first, _, remainder = phrase.lower().partition(" ")
    return remainder if first in DETERMINERS and remainder else phrase.lower()


def _run(text: str, words: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest prefix of `words` (spans of characters) in which only white space separates the words."""
    run = words[:1]
    for word in words[1:]:
        if text[run[-1][1] : word[0]].strip():
            break
        run.append(word)
    return run


def _nouns(text: str, run: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the spans of the leading words of `run` that can follow a determiner in a noun phrase, at most `LONGEST`.

    run: spans of words that only white space separates.
    """
    nouns: list[tuple[int, int]] = []
    for begin, end in run[:LONGEST]:
        word = text[begin:end].lower()
        if _is_closed(word) or (nouns and word.endswith(("ed", "ing"))):
            break
        nouns.append((begin, end))
    return nouns


def _names(text: str, run: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the spans of the leading capitalised words of `run`, up to and including one with a possessive 's.

    run: spans of words that only white space separates.
    """
    names = []
    for begin, end in run:
        if not text[begin].isupper() or _is_closed(text[begin:end]):
            break
        names.append((begin, end))
        if _POSSESSIVE.search(text[begin:end]):
            break
    return names


def _is_closed(word: str) -> bool:
    return word.lower() in _CLOSED or bool(_NEGATED.search(word.lower()))
