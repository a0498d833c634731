"""Rules that find the head word, type, number, gender and person of English mentions.

The rules need no annotation but the words. Where a document has parts of speech, the type uses them; where it has
parses, the head can be that of the constituent (`ag_jax.data.probes.constituents`).
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

HeadWord = Literal["rule", "last", "parse"]
Kind = Literal["pronominal", "nominal", "proper"]


class Features(NamedTuple):
    """The number, gender and person of a mention, in which its antecedent must agree; ? stands for unknown.

    number: s, p or ?.
    gender: m, f, n or ?.
    person: 1, 2 or 3.
    """

    number: str
    gender: str
    person: str


PRONOUNS = {
    word: Features(*features)
    for words, features in (
        ("i me my mine myself", "s?1"),
        ("we us our ours ourselves", "p?1"),
        ("you your yours yourself thou thee thy thine thyself ye", "??2"),
        ("yourselves", "p?2"),
        ("he him his himself", "sm3"),
        ("she her hers herself", "sf3"),
        ("it its itself", "sn3"),
        ("they them their theirs themselves", "p?3"),
        ("who whom whose which that", "??3"),
    )
    for word in words.split()
}
MASCULINE = frozenset(
    "mr sir lord king prince father son brother uncle husband boy man gentleman monsieur count duke master grandfather "
    "nephew baron".split()
)
FEMININE = frozenset(
    "mrs miss lady queen princess mother daughter sister aunt wife girl woman madam madame mademoiselle countess "
    "duchess mistress grandmother niece baroness".split()
)
# A head word stands before the first of these, which begin what follows a noun: "the man in the moon".
AFTER_HEADS = frozenset(
    "of in on at to for with from by about who which that , ; -- - ( : whose where when and or as".split()
)
ARTICLES = frozenset(["the", "a", "an"])
PRONOUN_TAGS = frozenset(["PRP", "PRP$"])
NAME_TAGS = frozenset(["NNP", "NNPS"])


def head(words: Sequence[str]) -> int:
    """Return the index of the head word among the words of an English mention.

    It is the word before the first preposition, conjunction, relative pronoun or punctuation mark inside of the mention
    (`AFTER_HEADS`), unless that word is an article; otherwise the last word, or the one before a final 's.
    """
    for index in range(1, len(words)):
        if words[index].lower() in AFTER_HEADS and words[index - 1].lower() not in ARTICLES:
            return index - 1
    has_possessive = len(words) > 1 and words[-1].lower() in ("'s", "'")
    return len(words) - (2 if has_possessive else 1)


def kind(words: Sequence[str], head: int, begins_sentence: bool, tags: Sequence[str] | None = None) -> Kind:
    """Return the type of a mention: `pronominal`, `nominal` or `proper`.

    words: the words of the mention.
    head: index of its head word.
    begins_sentence: whether its first word is the first of a sentence, where a capital letter has no meaning.
    tags: parts of speech of its words, which are used instead of lists and capital letters.
    """
    if tags is not None:
        if len(words) == 1 and tags[0] in PRONOUN_TAGS:
            return "pronominal"
        return "proper" if tags[head] in NAME_TAGS else "nominal"
    if len(words) == 1 and words[0].lower() in PRONOUNS:
        return "pronominal"
    is_capitalised = words[head][:1].isupper() and not (begins_sentence and head == 0)
    return "proper" if is_capitalised else "nominal"


def features(words: Sequence[str], head: int) -> Features:
    """Return the number, gender and person of a mention, by closed lists of words; no lexicon of names is used."""
    lower = [word.lower() for word in words]
    if len(words) == 1 and lower[0] in PRONOUNS:
        return PRONOUNS[lower[0]]
    titles = {word.removesuffix(".") for word in lower}  # "Mr." as "mr"
    gender = "m" if titles & MASCULINE else "f" if titles & FEMININE else "?"
    is_common = not words[head][:1].isupper()
    ends_in_s = lower[head].endswith("s") and not lower[head].endswith("ss")
    return Features("p" if "and" in lower or (is_common and ends_in_s) else "s", gender, "3")


def agree(one: Features, other: Features) -> bool:
    """Return whether two mentions agree in number, gender and person, as far as these are known."""
    return one.person == other.person and all(
        first == second or "?" in (first, second) for first, second in zip(one[:2], other[:2], strict=True)
    )
