"""Scores of translations against plain formulations, sacreBLEU on resampled texts, and sacreBLEU's own intervals."""

import collections
import functools
import math

import numpy as np
import pytest
import sacrebleu
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest

from ag_jax.evaluation import translation
from ag_jax.evaluation.translation import compare, difference_rows, score, score_rows

PLAIN = {"bleu": BLEU, "bleu_lowercase": functools.partial(BLEU, lowercase=True), "chrf": CHRF, "ter": TER}
WORDS = "der Hund Mann läuft schnell über eine grüne Wiese und Frau Kind spielt Ball im Park mit Stock".split()


@pytest.fixture(scope="module")
def texts():
    """References, and translations of three systems: two that differ little, and a bad one."""
    rng = np.random.default_rng(7)
    references = [" ".join(rng.choice(WORDS, rng.integers(5, 15))) + "." for _ in range(61)]

    def noisy(text, share):
        """Replace a share of the words, leave some out and move one."""
        words = [str(rng.choice(WORDS)) if rng.random() < share else word for word in text.split()]
        words = [word for word in words if rng.random() > share / 4] or words[:1]
        return " ".join(words[1:] + words[:1] if rng.random() < share else words)

    shares = {"a": 0.2, "b": 0.25, "c": 0.7}
    return references, {name: [noisy(text, share) for text in references] for name, share in shares.items()}


def ngrams(items, order):
    return collections.Counter(tuple(items[first : first + order]) for first in range(len(items) - order + 1))


def papineni(hypotheses, references):
    """BLEU by section 2.3 of Papineni et al. 2002: modified precisions, geometric mean, brevity penalty."""
    pairs = [(h.split(), r.split()) for h, r in zip(hypotheses, references, strict=True)]
    logs = []
    for order in (1, 2, 3, 4):
        clipped = sum((ngrams(c, order) & ngrams(r, order)).total() for c, r in pairs)
        logs.append(math.log(clipped / sum(ngrams(c, order).total() for c, _ in pairs)))
    c, r = (sum(map(len, texts)) for texts in zip(*pairs, strict=True))
    return 100 * min(1.0, math.exp(1 - r / c)) * math.exp(np.mean(logs))


def popovic(hypotheses, references, beta=2):
    """chrF by Popović 2015: mean precision and recall of characters' n-grams up to 6, without spaces; F-beta."""
    pairs = [("".join(h.split()), "".join(r.split())) for h, r in zip(hypotheses, references, strict=True)]
    precisions, recalls = [], []
    for order in range(1, 7):
        same = sum((ngrams(h, order) & ngrams(r, order)).total() for h, r in pairs)
        precisions.append(same / sum(ngrams(h, order).total() for h, _ in pairs))
        recalls.append(same / sum(ngrams(r, order).total() for _, r in pairs))
    precision, recall = np.mean(precisions), np.mean(recalls)
    return 100 * (1 + beta**2) * precision * recall / (beta**2 * precision + recall)


def test_bleu_and_chrf_are_their_papers(texts):
    references, systems = texts
    spaced = [line[:-1] + " ." for line in references]
    found = score(systems["a"], spaced, tokenize="none")
    assert sum(map(len, map(str.split, systems["a"]))) < sum(map(len, map(str.split, spaced)))  # brevity counts
    assert found["bleu"].value == pytest.approx(papineni(systems["a"], spaced), rel=1e-9)
    lowered = [[line.lower() for line in side] for side in (systems["a"], spaced)]
    assert found["bleu_lowercase"].value == pytest.approx(papineni(*lowered), rel=1e-9)
    assert found["chrf"].value == pytest.approx(popovic(systems["a"], spaced), rel=1e-9)
    longer = [line + " und eine Frau" for line in spaced]
    assert score(longer, spaced, ["bleu"], "none")["bleu"].value == pytest.approx(papineni(longer, spaced), rel=1e-9)
    same = score(references, references)
    assert [same[name].value for name in translation.METRICS] == pytest.approx([100, 100, 100, 0])
    assert same["bleu"].interval == pytest.approx((100, 100)) and same["ter"].interval == (0, 0)


def test_scores_by_hand():
    # TER: one substitution; one insertion; one shift of two words, which counts once: 3 edits for 4 + 4 + 6 words.
    references = ["a b c d", "a b c d", "a b c d e f"]
    hypotheses = ["a b X d", "a b c d e", "c d e f a b"]
    assert score(hypotheses, references, ["ter"])["ter"].value == pytest.approx(100 * 3 / 14)
    # No 3-gram and no 4-gram fits: exp smoothing gives these precisions 1/2 and 1/4 of one n-gram (mteval-v13a).
    found = score(["a b c d e"], ["a b x d e"], ["bleu"])["bleu"]
    assert found.value == pytest.approx(100 * (4 / 5 * 2 / 4 * (1 / 2) / 3 * (1 / 4) / 2) ** 0.25)
    # Empty translations.
    found = score(["", "a b c d"], ["e f g h", "a b c d"])
    assert found["bleu"].value == pytest.approx(100 * math.exp(1 - 8 / 4)) and found["ter"].value == 50
    nothing = score(["", ""], ["e f g h", "a b c d"])
    assert [nothing[name].value for name in PLAIN] == [0, 0, 0, 100]


@pytest.mark.parametrize("seed", ["12345", "77"])
def test_scores_intervals_and_signatures_are_those_of_sacrebleu(texts, seed, monkeypatch):
    references, systems = texts
    if seed != translation.SEED:
        monkeypatch.setenv("SACREBLEU_SEED", seed)
    scores = score(systems["a"], references)
    assert translation.signatures() == {name: found.signature for name, found in scores.items()}
    for name, found in scores.items():
        metric = PLAIN[name]()
        expected = metric.corpus_score(systems["a"], [references], n_bootstrap=1000)
        assert found.value == expected.score
        assert found.mean == pytest.approx(expected._mean, rel=1e-5)
        low, high = found.interval
        assert (high - low) / 2 == pytest.approx(expected._ci, rel=1e-4) and low < found.mean < high
        assert found.signature == str(metric.get_signature())
        assert found.signature.startswith(f"nrefs:1|bs:1000|seed:{seed}|")
        assert found.signature.endswith(f"|version:{sacrebleu.__version__}")


def test_tokenizers_are_sacrebleus():
    hypotheses, references = ["Ein Hund, 3-mal 你好"], ["Ein Hund, 3-mal 你们"]
    for tokenize in translation.TOKENIZERS:
        found = score(hypotheses, references, ["bleu"], tokenize)["bleu"]
        assert found.value == BLEU(tokenize=tokenize).corpus_score(hypotheses, [references]).score
        assert f"|tok:{tokenize}|" in found.signature.replace("|tok:zh-", "|tok:zh|")
        assert translation.signatures(["bleu"], tokenize) == {"bleu": found.signature}


def test_resamples_are_those_of_scoring_the_drawn_sentences(texts, monkeypatch):
    """41 resamples, scored as texts by sacreBLEU: means, intervals without the lowest and highest, and differences."""
    references, systems = (texts[0][:23], {name: texts[1][name][:23] for name in ("a", "b")})
    monkeypatch.setattr(translation, "RESAMPLES", 41)
    drawn = np.random.default_rng(12345).choice(23, size=(41, 23))
    scores, differences = score(systems["a"], references), compare(systems, references, "a")["b"]
    for metric in PLAIN:
        measure, values = PLAIN[metric](), {}
        for name, lines in systems.items():
            resamples = [[[side[place] for place in places] for side in (lines, references)] for places in drawn]
            values[name] = [measure.corpus_score(one, [wanted]).score for one, wanted in resamples]
        ordered = sorted(values["a"])
        assert scores[metric].mean == pytest.approx(np.mean(ordered), rel=1e-12)
        assert scores[metric].interval == pytest.approx((ordered[1], ordered[39]), rel=1e-12)
        assert "|bs:41|" in scores[metric].signature
        ordered = sorted(np.subtract(values["b"], values["a"]))
        assert differences[metric].interval == pytest.approx((ordered[1], ordered[39]), rel=1e-9)


def test_differences_and_their_p(texts, monkeypatch):
    monkeypatch.setattr(translation, "RESAMPLES", 200)
    references, systems = texts
    given = {name: list(systems[of]) for name, of in {"b": "b", "a": "a", "c": "c", "twin": "a"}.items()}
    found = compare(given, references, baseline="a")
    assert list(found) == ["b", "c", "twin"] and all(list(of_system) == list(PLAIN) for of_system in found.values())
    scores = {name: score(systems[name], references) for name in systems}
    for metric in PLAIN:
        named = [(name, systems[name]) for name in ("a", "b", "c")]
        _, columns = PairedTest(named, {metric: PLAIN[metric]()}, [references], test_type="bs", n_samples=200)()
        results = next(column for key, column in columns.items() if key != "System")
        for name, result in zip(("b", "c"), results[1:], strict=True):
            difference = found[name][metric]
            assert difference.difference == scores[name][metric].value - scores["a"][metric].value
            assert difference.p_value == result.p_value and not difference.identical
            assert difference.signature == scores[name][metric].signature
        low, high = found["c"][metric].interval
        assert low < found["c"][metric].difference < high and low * high > 0  # a bad system, beyond doubt
        assert found["c"][metric].p_value == 1 / 201 < found["b"][metric].p_value
        twin = found["twin"][metric]  # sacreBLEU's test would give it the least p
        assert (twin.difference, twin.interval, twin.p_value, twin.identical) == (0, (0, 0), 1, True)
    # Cased and lowercased BLEU have tests of their own.
    cased = [line.lower() if number % 2 else line for number, line in enumerate(systems["a"])]
    mixed = compare({"a": systems["a"], "lower": cased}, references, "a", ["bleu", "bleu_lowercase"])["lower"]
    assert mixed["bleu"].difference < 0 and mixed["bleu"].p_value < 0.05
    assert mixed["bleu_lowercase"].difference == 0 and mixed["bleu_lowercase"].p_value == 1
    assert not mixed["bleu_lowercase"].identical


def test_one_sentence_has_no_interval_and_no_p():
    found = score(["a b c d X"], ["a b c d e"])["bleu"]
    assert found.interval is None and found.mean == found.value
    compared = compare({"one": ["a b c d X"], "other": ["a b c Y X"], "twin": ["a b c d X"]}, ["a b c d e"], "one")
    other, twin = compared["other"]["bleu"], compared["twin"]["bleu"]
    assert other.difference < 0 and other.interval is None and other.p_value is None
    assert twin.interval is None and twin.p_value == 1
    assert score_rows({"bleu": found})[0][2] == "–"
    assert [row[3:] for row in difference_rows(compared)[:: len(PLAIN)]] == [["–", "–"], ["–", "identical, p = 1"]]


def test_tables_have_the_numbers_and_whole_signatures(texts):
    references, systems = texts
    scores = score(systems["a"], references, ["ter", "bleu"])
    rows, of_bleu = score_rows(scores), scores["bleu"]
    low, high = of_bleu.interval
    interval = f"{low:.2f} to {high:.2f} (mean {of_bleu.mean:.2f})"
    assert rows[1] == ["BLEU", f"{of_bleu.value:.2f}", interval, f"`{of_bleu.signature}`"]
    assert rows[0][0] == "TER (lower is better)" and len(rows) == 2
    compared = compare({"a": systems["a"], "b|2": systems["b"]}, references, "a", ["chrf"])
    found = compared["b|2"]["chrf"]
    low, high = found.interval
    shown = [f"{found.difference:+.2f}", f"{low:+.2f} to {high:+.2f}", f"{found.p_value:.2g}"]
    assert difference_rows(compared) == [["b|2", "chrF2", *shown]]


@pytest.mark.parametrize(
    ("change", "mark"),
    [
        (lambda line: line.replace(" ", "@@ ", 1), "'@@'"),
        (lambda line: line + " Sto@@", "'@@'"),
        (lambda line: "▁" + line.replace(" ", "▁"), "'▁'"),
        (lambda line: line[:-1] + " .", "full stop"),
    ],
)
def test_tokenised_text_has_a_note(texts, change, mark):
    """The note appears if a tenth of the lines or more are tokenised."""
    references = texts[0][:60]
    for count, has_note in ((0, False), (5, False), (6, True), (20, True)):
        marked = [change(line) if number < count else line for number, line in enumerate(references)]
        found = score(marked, references, ["bleu"])["bleu"]
        assert bool(found.note) == has_note == ("tokenised" in score_rows({"bleu": found})[0][0])
    assert " of 60 hypotheses " in found.note and mark in found.note and "references have" not in found.note
    assert " of 60 references " in score(references, marked, ["chrf"])["chrf"].note


@pytest.mark.parametrize(
    ("hypotheses", "references", "match"),
    [
        ([], [], "one sentence"),
        (["a", "b"], ["", "  "], "all 2"),
        (["a", "b\nc"], ["a", "b"], "line 2 of the hypotheses"),
        (["a", "b"], ["a\r\n", "b"], "line 1 of the references"),
        (["a", "b\rc"], ["a", "b"], "line 2 of the hypotheses"),
        ("ab", ["a", "b"], "the hypotheses.*'ab'"),
        (["a"], ["a", "b"], "the hypotheses have 1 .* 2"),
        ([], ["a", "b"], "the hypotheses have 0 .* 2"),
    ],
)
def test_texts_that_cannot_be_scored(hypotheses, references, match):
    with pytest.raises(ValueError, match=match):
        score(hypotheses, references)
    if hypotheses:
        with pytest.raises(ValueError, match=match.replace("the hypotheses", "the hypotheses of 'ag'")):
            compare({"base": ["a", "b"], "ag": hypotheses}, references, "base")


def test_other_settings_that_are_rejected(monkeypatch):
    with pytest.raises(ValueError, match="13a, intl, char, zh, none.*'spm'"):
        score(["a"], ["a"], tokenize="spm")
    for seed in ("none", "0", "-3", "1.5", ""):
        monkeypatch.setenv("SACREBLEU_SEED", seed)
        with pytest.raises(ValueError, match=f"SACREBLEU_SEED.*'{seed}'"):
            score(["a"], ["a"])
