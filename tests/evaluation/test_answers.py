"""SQuAD's scores by hand, and the choice of spans against trying all of them."""

import itertools
import re

import numpy as np
import pytest

from ag_jax.evaluation import answers

NORMALIZED = {
    "The  Cat, sat!": "cat sat", "an apple a day": "apple day", "theatre another": "theatre another", "$1.50": "150",
    "well-known U.S.": "wellknown us", "a": "", "the\u00a0end\n": "end",
    "–“Überall”": "–“überall”",  # only ASCII's punctuation goes, as in the scripts
}  # fmt: skip
SCORES = [  # prediction, right answers, exact match, F1
    ("the Denver Broncos", ["Denver Broncos"], 1, 1), ("Broncos", ["Denver Broncos"], 0, 2 / 3),
    ("Denver Denver", ["Denver Broncos"], 0, 1 / 2), ("Denver Denver", ["Denver Denver Broncos"], 0, 4 / 5),
    ("Broncos", ["Panthers", "Denver Broncos", "the Broncos!"], 1, 1),
    ("red cat", ["red dog", "red fat cat"], 0, 4 / 5),
    ("Panthers", ["Broncos"], 0, 0), ("", ["Broncos"], 0, 0), ("", [], 1, 1), ("Broncos", [], 0, 0),
    ("the", [], 1, 1), ("", ["the"], 1, 1), ("the", ["the", "the cat"], 0, 0),  # what is left of "the" is no answer
]  # fmt: skip


def test_normalized_answers_and_scores_by_hand():
    assert {text: answers.normalized(text) for text in NORMALIZED} == NORMALIZED
    for prediction, wanted, exact, f1 in SCORES:
        found = (answers.exact_match(prediction, wanted), answers.f1(prediction, wanted))
        assert found == pytest.approx((exact, f1)), prediction


def windows(rng, sizes, context):
    """Windows over the words of a context with random logits; each word has its most context in one of them."""
    words = [match.span() for match in re.finditer(r"\w+", context)]
    chosen = rng.integers(0, len(sizes), len(words))
    made = []
    for number, (first, last) in enumerate(sizes):
        places = np.full((3 + last - first, 3), (-1, -1, 0))
        for token, word in enumerate(range(first, last), 2):
            places[token] = (*words[word], chosen[word] == number)
        made.append((rng.normal(size=(len(places) + 4, 2)), places))  # a batch is longer
    return made


def by_trying(context, made, longest):
    """All spans with their scores, best first."""
    tried = []
    for logits, places in made:
        for first, last in itertools.product(range(len(places)), repeat=2):
            if places[first, 2] and places[last, 0] >= 0 and first <= last < first + longest:
                tried.append((context[places[first, 0] : places[last, 1]], logits[first, 0] + logits[last, 1]))
    return sorted(tried, key=lambda pair: -pair[1])


@pytest.mark.parametrize("longest", [1, 3, 30])
def test_the_best_spans_are_those_of_trying_all(longest):
    context = "eins, zwei drei vier; fünf sechs (sieben) acht neun zehn elf zwölf"
    for seed in range(20):
        made = windows(np.random.default_rng(seed), [(0, 4), (2, 7), (5, 12)], context)
        chosen, tried = answers.choose(context, made, longest), by_trying(context, made, longest)[: answers.BEST]
        assert [text for text, _ in chosen.answers] == [text for text, _ in tried]
        assert [score for _, score in chosen.answers] == pytest.approx([score for _, score in tried])
        (text, score), none = tried[0], min(logits[0].sum() for logits, _ in made)
        assert chosen.text == text and chosen.none == pytest.approx(none)
        assert chosen.best_or_empty() == ("" if none > score else text)
        assert chosen.best_or_empty(chosen.none - score + 1e-9) == text
        assert chosen.best_or_empty(chosen.none - score - 0.1) == ""
    assert answers.LONGEST == 30  # run_squad.py
    places = np.array([[-1, -1, 0], [3, 3, 1]])  # no character, and a piece that stands for none
    assert answers.choose("text", [(np.ones((2, 2)), places)]).text == ""


def test_an_ensemble_of_answers_by_hand():
    """Half of 0.5 and of 0.2 for a, of 0.3 and of 0.6 for b, of nothing and of 0.1 for c; of 0.2 and 0.1 for none."""

    def made(none, **shares):
        return answers.Candidates(tuple((text, np.log(share) + 7) for text, share in shares.items()), np.log(none) + 7)

    together = answers.average([made(0.2, a=0.5, b=0.3), made(0.1, b=0.6, a=0.2, c=0.1)])
    assert [text for text, _ in together.answers] == ["b", "a", "c"]
    assert np.exp([score for _, score in together.answers]) == pytest.approx([0.45, 0.35, 0.05])
    assert np.exp(together.none) == pytest.approx(0.15)
    assert together.best_or_empty() == "b" == together.best_or_empty(-1.0)
    assert together.best_or_empty(np.log(0.15 / 0.45) - 0.01) == ""
    many = answers.Candidates(tuple((str(number), -float(number)) for number in range(answers.BEST + 5)), 0.0)
    assert answers.average([many]).answers[-1][0] == str(answers.BEST - 1)


def test_models_that_agree_that_there_is_an_answer_find_one_though_they_disagree_which():
    """Their classifiers' probabilities of no answer, 0.4, 0.3 and 0.1, have the mean 4/15."""

    def made(share, *found):
        return answers.Candidates(found, (found[0][1] if found else 0.0) + np.log(share / (1 - share)))

    of_models = [made(0.4, ("a", 5.0), ("b", 1.0)), made(0.3, ("b", 3.0)), made(0.1, ("c", -2.0), ("b", -2.0))]
    together = answers.average_classified(of_models)
    share = np.exp([5.0, 1.0]) / np.exp([5.0, 1.0]).sum()
    expected = {"b": (share[1] + 1 + 0.5) / 3, "a": share[0] / 3, "c": 0.5 / 3}
    assert [text for text, _ in together.answers] == list(expected)
    assert np.exp([score for _, score in together.answers]) == pytest.approx(list(expected.values()))
    logit = together.none - together.answers[0][1]
    assert 1 / (1 + np.exp(-logit)) == pytest.approx(4 / 15) and together.best_or_empty() == "b"
    doubting = answers.average_classified([*of_models, made(0.99), made(0.999)])
    assert doubting.best_or_empty() == "" and doubting.answers == together.answers
    alone = answers.average_classified([made(0.3)])
    assert alone.text == "" and alone.none == pytest.approx(np.log(0.3 / 0.7))
    one = answers.average_classified(of_models[:1])
    assert one.none - one.answers[0][1] == pytest.approx(np.log(0.4 / 0.6))


@pytest.mark.parametrize("ties", [False, True])
def test_the_best_threshold_is_that_of_trying_all(ties):
    rng = np.random.default_rng(7)
    for count in (1, 2, 9, 30):
        refused = rng.integers(0, 2, count).astype(float)
        answered = np.where(refused > 0, rng.integers(0, 2, count) * (rng.random(count) < 0.1), rng.random(count))
        scores = rng.integers(-2, 3, count) / 2 if ties else rng.normal(size=count)
        found, threshold = answers.tuned(answered, refused, scores)

        def with_threshold(value, answered=answered, refused=refused, scores=scores):
            return np.mean(np.where(scores > value, refused, answered))

        tried = {value: with_threshold(value) for value in (scores.min() - 1, *scores)}
        assert found == pytest.approx(max(tried.values())) == pytest.approx(with_threshold(threshold))
        assert all(of < found - 1e-12 for value, of in tried.items() if value < threshold and value >= scores.min())


def test_the_best_threshold_by_hand():
    """As in the official script, answering the two questions with the lowest scores is best; then, refusing all."""
    by_hand = (pytest.approx((1 + 0.5 + 1 + 0) / 4), 0.25)
    assert answers.tuned([1.0, 0.5, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0], [-2.0, 0.25, 1.0, 7.0]) == by_hand
    score, threshold = answers.tuned([0.0, 0.0], [1.0, 0.0], [0.5, -3.0])
    assert score == 0.5 and -3.001 < threshold < -3.0
