"""Head words, types and agreement of mentions, by examples; head words by parses."""

import dataclasses

import pytest

from ag_jax.data.probes import anaphors, conll, constituents, rules
from ag_jax.data.probes.rules import Features
from tests.data.probes.conftest import QUEEN, conll_text

HEADS = {
    "she": "she", "the old queen of France 's": "queen", "the boy 's": "boy", "the boys '": "boys", "'s": "'s",
    "the Of house": "house", "a for an of the door": "door",  # the word before is an article
    "Mr. Green and his wife": "Green", "those Who came": "those", "the man, in black": "man,",
    "of all men": "men",  # the first word of a mention is not looked at
    "Emma , the youngest": "Emma", "my dear Mr. Bennet": "Bennet", "everything -- all": "everything",
}  # fmt: skip
KINDS = {  # of a mention that begins a sentence, or does not
    ("Themselves", True): "pronominal", ("thou", False): "pronominal", ("that", False): "pronominal",
    ("that man", False): "nominal", ("London", True): "nominal", ("Kings of old", True): "nominal",
    ("everyone", False): "nominal", ("", False): "nominal", ("London", False): "proper",
    ("King George", True): "proper", ("the Queen of hearts", False): "proper",
}  # fmt: skip
FEATURES = {
    "Myself": "s?1", "ye": "??2", "yourselves": "p?2", "him": "sm3", "hers": "sf3", "itself": "sn3", "which": "??3",
    "Mr. Green": "sm3", "MRS. Green": "sf3", "the boss": "s?3", "Jones": "s?3", "a man And a dog": "pm3",
    "the houses": "p?3", "he too": "s?3", "the king 's daughter": "sm3",  # masculine words first
    "the daughters of Lear": "p?3",  # the lists have singulars
}  # fmt: skip


def test_head_words():
    words = {mention: mention.split() for mention in HEADS}
    assert {mention: words[mention][rules.head(words[mention])] for mention in HEADS} == HEADS


def test_types_by_words_and_by_parts_of_speech():
    for (mention, begins_sentence), kind in KINDS.items():
        words = mention.split(" ")
        assert rules.kind(words, rules.head(words), begins_sentence) == kind, mention
    for tag, expected in {"PRP": "pronominal", "PRP$": "pronominal", "NNPS": "proper", "NN": "nominal"}.items():
        assert rules.kind(["Who"], 0, False, [tag]) == expected
    assert rules.kind(["who"], 0, False, ["WP"]) == "nominal"
    assert rules.kind(["I", "Claudius"], 1, True, ["PRP", "NNP"]) == "proper"
    assert rules.kind(["I", "too"], 0, True, ["PRP", "RB"]) == "nominal"


def test_features():
    found = {mention: rules.features(mention.split(), rules.head(mention.split())) for mention in FEATURES}
    assert found == {mention: Features(*features) for mention, features in FEATURES.items()}
    assert len(rules.PRONOUNS) == 42 and not rules.MASCULINE & rules.FEMININE, "none is listed twice"


def test_agreement():
    def is_possible(one, other):
        assert rules.agree(Features(*one), Features(*other)) == rules.agree(Features(*other), Features(*one))
        return rules.agree(Features(*one), Features(*other))

    assert is_possible("sm3", "??3") and is_possible("sm3", "s?3") and is_possible("?f3", "pf3")
    assert not is_possible("sm3", "sf3") and not is_possible("s?3", "p?3") and not is_possible("??2", "??3")


def test_heads_by_parses(write):
    document = conll.read(write("one.conll", conll_text(QUEEN))).documents[0]

    def heads(how):
        found = zip(document.mentions, anaphors._heads(document, how), strict=True)
        return " ".join(document.words[each.begin + at] for each, at in found)

    assert heads("rule") == heads("parse") == "queen France Green herself He she king their French"
    assert heads("last") == "France France Green herself He she queen their French"


TREES = [  # pieces of the parse, parts of speech, the head
    ("(NP(NP* * *) (NP* *))", "DT JJ NN IN NN", 2),  # no noun among the children: the first noun phrase
    ("(NP* * *)", "NNP NNP POS", 1), ("(NP* * *)", "NN CC NN", 0), ("(NP* * * * *)", "NNS , NNS CC NNS", 2),
    ("(NP* * * * * *)", "NNS , NNS , CC NNS", 2), ("(NP(NP*) * (NP*))", "NNP CC NNP", 0),
    ("(NP* (QP* *))", "DT CD CD", 1), ("(NP-SBJ* (ADJP* *))", "DT RB JJ", 2), ("(NP* *)", "DT RB", 1),
    ("(VP* (VP* (NP*)))", "MD VB NN", 0), ("(S(NP*) (VP* (NP*)))", "NN VBD NN", 1), ("(PP* (NP*))", "IN NN", 0),
    ("(WHNP*)", "WP", 0), ("(FRAG* *)", "NN NN", 1), ("(XYZ* *)", "NN NN", 0), ("(NP* * *)", "-LRB- NN -RRB-", 1),
]  # fmt: skip


def test_head_rules():
    for pieces, tags, head in TREES:
        tree = constituents.parse(pieces.split(), tags.split())
        assert constituents.head(constituents.find(tree, 0, len(tags.split()))) == head, pieces


def test_damaged_parses_are_rejected_with_their_sentence(write):
    document = conll.read(write("one.conll", conll_text(QUEEN))).documents[0]
    for old, new, match in [
        ("(NP(NP*", "(NP(NP", "sentence 2: .* word 5"),
        ("(NP*)))", "(NP*))", "sentence 2: .*not closed"),
        ("*))", "*)))))", "sentence 2: .* word 10 .*not open"),
    ]:
        parses = list(document.parses)
        place = max(index for index, piece in enumerate(parses) if piece == old)
        parses[place] = new
        with pytest.raises(ValueError, match=f"one.conll: document nw/paris, {match}"):
            constituents.heads(dataclasses.replace(document, parses=tuple(parses)))
    with pytest.raises(ValueError, match="head_word=parse"):
        constituents.heads(dataclasses.replace(document, parses=None))
