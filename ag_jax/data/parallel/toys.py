"""Small synthetic parallel corpora, for tests and for trials in which a model learns within a minute.

copy         the target is the source
reverse      the target has the words of the source in reverse order
dictionary   every word has one translation, and the target has adjectives behind their noun, as French has:
             "the red dog sees a cat" becomes "lo hundo ruba vida una kato"
"""

import pathlib
from typing import Literal, get_args

from ag_jax.data.parallel.pairs import Pair
from ag_jax.data.randomness import Draws

Kind = Literal["copy", "reverse", "dictionary"]
WORDS = "ba ce di fo gu ha je ki lo mu na pe qui ro su ta ve wi xo zu".split()  # of `copy` and `reverse`
SHORTEST, LONGEST = 3, 10  # words of a text of `copy` and `reverse`
ARTICLES = {"the": "lo", "a": "una", "this": "esto", "every": "omna"}
ADJECTIVES = {"red": "ruba", "old": "vetra", "small": "pica", "quick": "velota", "happy": "gaja", "green": "verda"}
NOUNS = {"dog": "hundo", "cat": "kato", "bird": "avio", "house": "domo", "tree": "arbo", "child": "nino", "car": "vago"}
VERBS = {"sees": "vida", "likes": "ama", "finds": "trova", "leaves": "lasa", "wants": "vola"}


def make(kind: Kind, count: int, seed: int = 0) -> list[Pair]:
    """Return the pairs of a toy corpus; pair i is a function of (kind, seed, i).

    kind: one of `copy`, `reverse` and `dictionary`.
    count: number of pairs.
    seed: seed of the words. Corpora of different seeds may have some pairs in common.
    """
    number = get_args(Kind).index(kind)
    return [_pair(kind, Draws(number, seed, index)) for index in range(count)]


def write(folder: pathlib.Path, kind: Kind, counts: dict[str, int], seed: int = 0) -> None:
    """Write the files NAME.source and NAME.target, one text per line, for every NAME in `counts`.

    folder: the folder, created if missing.
    kind: kind of the corpus.
    counts: number of pairs of each part, such as {"train": 1000, "validation": 50}.
    seed: seed of the words; each part continues after the one before.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pairs = iter(make(kind, sum(counts.values()), seed))
    for name, count in counts.items():
        part = [next(pairs) for _ in range(count)]
        for side in Pair._fields:
            (folder / f"{name}.{side}").write_text("".join(f"{getattr(pair, side)}\n" for pair in part))


def _pair(kind: Kind, draws: Draws) -> Pair:
    if kind == "dictionary":
        subject, verb, object = _phrase(draws), _draw(VERBS, draws), _phrase(draws)
        return Pair(*(" ".join(words) for words in zip(subject, verb, object, strict=True)))
    words = [WORDS[draws.integer(0, len(WORDS) - 1)] for _ in range(draws.integer(SHORTEST, LONGEST))]
    return Pair(" ".join(words), " ".join(words if kind == "copy" else words[::-1]))


def _phrase(draws: Draws) -> Pair:
    """Return a random noun phrase, in two of three cases with an adjective, and its translation."""
    article, noun = _draw(ARTICLES, draws), _draw(NOUNS, draws)
    if draws.integer(0, 2) == 0:
        return Pair(f"{article.source} {noun.source}", f"{article.target} {noun.target}")
    adjective = _draw(ADJECTIVES, draws)
    return Pair(
        f"{article.source} {adjective.source} {noun.source}", f"{article.target} {noun.target} {adjective.target}"
    )


def _draw(words: dict[str, str], draws: Draws) -> Pair:
    return Pair(*list(words.items())[draws.integer(0, len(words) - 1)])
