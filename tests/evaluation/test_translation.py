"""Scores of translations against plain formulations, sacreBLEU on resampled texts, and sacreBLEU's own intervals."""

import collections
import dataclasses
import gzip
import json
import math
import subprocess
import sys

import numpy as np
import pytest
import sacrebleu
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest

from ag_jax.analysis.markdown import table
from ag_jax.evaluation import translation
from ag_jax.evaluation.translation import compare, difference_rows, score, score_rows

PLAIN = {
    "bleu": lambda: BLEU(),
    "bleu_lowercase": lambda: BLEU(lowercase=True),
    "chrf": lambda: CHRF(),
    "ter": lambda: TER(),
}
WORDS = "der Hund Mann läuft schnell über eine grüne Wiese und Frau Kind spielt Ball im Park mit Stock".split()


def sentences(rng, count, shortest=5, longest=14):
    return [" ".join(rng.choice(WORDS, rng.integers(shortest, longest + 1))) + "." for _ in range(count)]


def noisy(rng, texts, share):
    """Return texts with a share of their words replaced, some words left out and some words moved."""
    changed = []
    for text in texts:
        words = [str(rng.choice(WORDS)) if rng.random() < share else word for word in text.split()]
        words = [word for word in words if rng.random() > share / 4] or words[:1]
        if rng.random() < share:
            words.append(words.pop(0))
        changed.append(" ".join(words))
    return changed


@pytest.fixture(scope="module")
def texts():
    """References, and translations of three systems: two that differ little, and a bad one."""
    rng = np.random.default_rng(7)
    references = sentences(rng, 61)
    return references, {name: noisy(rng, references, share) for name, share in (("a", 0.2), ("b", 0.25), ("c", 0.7))}


def ngrams(items, order):
    return collections.Counter(tuple(items[first : first + order]) for first in range(len(items) - order + 1))


def papineni(hypotheses, references):
    """BLEU by section 2.3 of Papineni et al. 2002: modified precisions, geometric mean, brevity penalty."""
    pairs = [
        (hypothesis.split(), reference.split()) for hypothesis, reference in zip(hypotheses, references, strict=True)
    ]
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


@pytest.mark.parametrize("system", ["a", "b"])
def test_bleu_and_chrf_are_their_papers(texts, system):
    references, systems = texts
    spaced = [line[:-1] + " ." for line in references]
    found = score(systems[system], spaced, tokenize="none")
    assert sum(map(len, map(str.split, systems[system]))) < sum(map(len, map(str.split, spaced)))  # brevity counts
    assert found["bleu"].value == pytest.approx(papineni(systems[system], spaced), rel=1e-9)
    lowered = [[line.lower() for line in side] for side in (systems[system], spaced)]
    assert found["bleu_lowercase"].value == pytest.approx(papineni(*lowered), rel=1e-9)
    assert found["chrf"].value == pytest.approx(popovic(systems[system], spaced), rel=1e-9)
    longer = [line + " und eine Frau" for line in spaced]
    assert score(longer, spaced, ["bleu"], "none")["bleu"].value == pytest.approx(papineni(longer, spaced), rel=1e-9)


def test_ter_by_hand():
    """One substitution; one insertion; one shift of two words, which counts once: 3 edits for 4 + 4 + 6 words."""
    references = ["a b c d", "a b c d", "a b c d e f"]
    hypotheses = ["a b X d", "a b c d e", "c d e f a b"]
    assert score(hypotheses, references, ["ter"])["ter"].value == pytest.approx(100 * 3 / 14)


def test_smoothing_by_hand():
    """No 3-gram and no 4-gram fits: exp smoothing gives these precisions 1/2 and 1/4 of one n-gram (mteval-v13a)."""
    found = score(["a b c d e"], ["a b x d e"], ["bleu"])["bleu"]
    assert found.value == pytest.approx(100 * (4 / 5 * 2 / 4 * (1 / 2) / 3 * (1 / 4) / 2) ** 0.25)


def test_identical_and_shuffled_text(texts):
    references, _ = texts
    same = score(references, references)
    assert [same[name].value for name in translation.METRICS] == pytest.approx([100, 100, 100, 0])
    assert same["bleu"].interval == pytest.approx((100, 100)) and same["ter"].interval == (0, 0)
    rng = np.random.default_rng(1)
    vocabulary = [f"wort{number}" for number in range(997)]
    unlike = [" ".join(rng.choice(vocabulary, 11)) for _ in range(61)]
    assert score(unlike[1:] + unlike[:1], unlike, ["bleu"])["bleu"].value < 5


def test_shuffled_references_of_multi30k(shared):
    path = shared / "data" / "multi30k" / "test_2016_flickr.de.gz"
    if not path.exists():
        pytest.skip(f"needs {path}")
    references = gzip.decompress(path.read_bytes()).decode().splitlines()
    shuffled = [references[place] for place in np.random.default_rng(0).permutation(len(references))]
    assert score(references, references, ["bleu"])["bleu"].value == pytest.approx(100)
    found = score(shuffled, references, ["bleu", "bleu_lowercase"])
    assert found["bleu"].value < 5 and found["bleu_lowercase"].value < 5
    assert found["bleu"].note == ""  # its full stops are not separate


def test_scores_intervals_and_signatures_are_those_of_sacrebleu(texts):
    references, systems = texts
    for name, found in score(systems["a"], references).items():
        metric = PLAIN[name]()
        expected = metric.corpus_score(systems["a"], [references], n_bootstrap=1000)
        assert found.value == expected.score
        assert found.mean == pytest.approx(expected._mean, rel=1e-5)
        low, high = found.interval
        assert (high - low) / 2 == pytest.approx(expected._ci, rel=1e-4) and low < found.mean < high
        assert found.signature == str(metric.get_signature())
        assert found.signature.startswith("nrefs:1|bs:1000|seed:12345|")
        assert found.signature.endswith(f"|version:{sacrebleu.__version__}")
    bleu = {name: found.signature for name, found in score(systems["a"], references, tokenize="intl").items()}
    assert "|case:mixed|eff:no|tok:intl|smooth:exp|" in bleu["bleu"] and "|case:lc|" in bleu["bleu_lowercase"]
    assert "|nc:6|nw:0|" in bleu["chrf"] and "|tok:tercom|" in bleu["ter"]


@pytest.mark.parametrize("tokenize", translation.TOKENIZERS)
def test_signatures_are_known_without_scoring(texts, tokenize, monkeypatch):
    references, systems = texts
    for seed in ("12345", "77"):
        monkeypatch.setenv("SACREBLEU_SEED", seed)
        found = score(systems["a"], references, tokenize=tokenize)
        assert translation.signatures(tokenize=tokenize) == {name: one.signature for name, one in found.items()}
    assert list(translation.signatures(["ter"])) == ["ter"]


def test_resamples_are_those_of_scoring_the_drawn_sentences(texts, monkeypatch):
    """41 resamples, scored as texts by sacreBLEU: means, intervals without the lowest and highest, and differences."""
    references, systems = texts
    monkeypatch.setattr(translation, "RESAMPLES", 41)
    drawn = np.random.default_rng(12345).choice(61, size=(41, 61))
    values = {name: {metric: [] for metric in PLAIN} for name in ("a", "b")}
    for name, metric in ((name, metric) for name in values for metric in PLAIN):
        measure = PLAIN[metric]()
        for places in drawn:
            resample, wanted = ([side[place] for place in places] for side in (systems[name], references))
            values[name][metric].append(measure.corpus_score(resample, [wanted]).score)
    scores = score(systems["a"], references)
    differences = compare({name: systems[name] for name in values}, references, "a")["b"]
    for metric in PLAIN:
        ordered = sorted(values["a"][metric])
        assert scores[metric].mean == pytest.approx(np.mean(ordered), rel=1e-12)
        assert scores[metric].interval == pytest.approx((ordered[1], ordered[39]), rel=1e-12)
        assert "|bs:41|" in scores[metric].signature
        ordered = sorted(np.subtract(values["b"][metric], values["a"][metric]))
        assert differences[metric].interval == pytest.approx((ordered[1], ordered[39]), rel=1e-9)


def test_differences_and_their_p(texts):
    references, systems = texts
    found = compare({"b": systems["b"], "a": systems["a"], "c": systems["c"]}, references, baseline="a")
    assert list(found) == ["b", "c"] and all(list(of_system) == list(PLAIN) for of_system in found.values())
    scores = {name: score(systems[name], references) for name in systems}
    for metric in PLAIN:
        named = [(name, systems[name]) for name in ("a", "b", "c")]
        _, columns = PairedTest(named, {metric: PLAIN[metric]()}, [references], test_type="bs")()
        results = next(column for key, column in columns.items() if key != "System")
        for name, result in zip(("b", "c"), results[1:], strict=True):
            difference = found[name][metric]
            assert difference.difference == scores[name][metric].value - scores["a"][metric].value
            assert difference.p_value == result.p_value and not difference.identical
            assert difference.signature == scores[name][metric].signature
        low, high = found["c"][metric].interval
        assert low < found["c"][metric].difference < high and low * high > 0  # a bad system, beyond doubt
        assert found["c"][metric].p_value == 1 / 1001 < found["b"][metric].p_value
        # Paired, so narrower than the interval of two systems that were drawn independently.
        independent = math.hypot(*(np.diff(scores[name][metric].interval)[0] for name in ("a", "b")))
        assert np.diff(found["b"][metric].interval)[0] < independent
    # Cased and lowercased BLEU have tests of their own.
    cased = [line.lower() if number % 2 else line for number, line in enumerate(systems["a"])]
    mixed = compare({"a": systems["a"], "lower": cased}, references, "a")["lower"]
    assert mixed["bleu"].difference < 0 and mixed["bleu"].p_value < 0.05
    assert mixed["bleu_lowercase"].difference == 0 and mixed["bleu_lowercase"].p_value == 1
    assert not mixed["bleu_lowercase"].identical


def test_identical_outputs_have_p_1(texts):
    references, systems = texts
    _, columns = PairedTest([("a", systems["a"]), ("twin", systems["a"])], {"bleu": BLEU()}, [references], "bs")()
    assert columns["BLEU"][1].p_value == pytest.approx(0.001, rel=0.01)  # why they are not given to the test
    found = compare({"a": systems["a"], "twin": list(systems["a"]), "b": systems["b"]}, references, "a")
    for metric in PLAIN:
        twin = found["twin"][metric]
        assert (twin.difference, twin.interval, twin.p_value, twin.identical) == (0, (0, 0), 1, True)
        assert found["b"][metric].p_value < 1
    shown = difference_rows(found)
    assert shown[0] == ["twin", "BLEU", "+0.00", "+0.00 to +0.00", "identical, p = 1"]


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
    rows = score_rows(scores)
    assert len(rows) == 2 and all(len(row) == len(translation.SCORE_HEADER) for row in rows)
    low, high = scores["bleu"].interval
    mean = scores["bleu"].mean
    assert rows[1][:3] == ["BLEU", f"{scores['bleu'].value:.2f}", f"{low:.2f} to {high:.2f} (mean {mean:.2f})"]
    assert rows[0][0] == "TER (lower is better)"
    assert rows[1][3] == f"`{scores['bleu'].signature}`"
    compared = compare({"a": systems["a"], "b|2": systems["b"]}, references, "a", ["chrf"])
    (row,) = difference_rows(compared)
    found = compared["b|2"]["chrf"]
    low, high = found.interval
    assert row[:2] == ["b|2", "chrF2"] and row[2] == f"{found.difference:+.2f}"
    assert row[3] == f"{low:+.2f} to {high:+.2f}" and row[4] == f"{found.p_value:.2g}"
    lines = table(translation.DIFFERENCE_HEADER, [row]) + table(translation.SCORE_HEADER, rows)
    assert r"| b\|2 |" in lines[2]
    assert {line.replace(r"\|", "").count("|") for line in filter(None, lines)} == {len(row) + 1, len(rows[0]) + 1}
    json.dumps([dataclasses.asdict(found) for found in (*scores.values(), found)])


@pytest.mark.parametrize(
    ("change", "mark"),
    [
        (lambda line: line.replace("d", "d@@ "), "@@"),
        (lambda line: line + " Sto@@", "@@"),
        (lambda line: "▁" + line.replace(" ", "▁"), "▁"),
        (lambda line: line[:-1] + " .", "full stop"),
    ],
)
def test_tokenised_text_has_a_note(texts, change, mark):
    references, systems = texts
    assert score(systems["a"], references, ["bleu"])["bleu"].note == ""
    few = [change(line) if number < 5 else line for number, line in enumerate(references)]
    assert score(few, references, ["bleu"])["bleu"].note == ""
    many = [change(line) if number < 20 else line for number, line in enumerate(references)]
    found = score(many, references, ["bleu"])
    assert f" of 61 hypotheses have {'a space before' if mark == 'full stop' else repr(mark)}" in found["bleu"].note
    assert found["bleu"].note.startswith("Score of tokenised text") and "references have" not in found["bleu"].note
    assert score_rows(found)[0][0] == "BLEU (of tokenised text)"
    assert " of 61 references have " in score(references, many, ["chrf"])["chrf"].note


@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        ([], [], "at least one sentence to score, got none"),
        (["a", "b"], ["", "  "], "all 2 of them are empty lines"),
        (["a", "b\nc"], ["a", "b"], r"line 2 of the hypotheses has a line break: 'b\\nc'; replace"),
        (["a", "b"], ["a\r\n", "b"], r"line 1 of the references has a line break: 'a\\r\\n'"),
        (["a", "b\rc"], ["a", "b"], r"line 2 of the hypotheses has a line break: 'b\\rc'"),
        ("ab", ["a", "b"], "expected the hypotheses as a list of lines, got one text: 'ab'"),
        (["a"], ["a", "b"], "the hypotheses have 1 lines and the references 2"),
        ([], ["a", "b"], "the hypotheses have 0 lines and the references 2"),
    ],
)
def test_texts_that_cannot_be_scored(hypotheses, references, message):
    with pytest.raises(ValueError, match=message):
        score(hypotheses, references)
    if hypotheses:
        with pytest.raises(ValueError, match=message.replace("the hypotheses", "the hypotheses of 'ag'")):
            compare({"base": ["a", "b"], "ag": hypotheses}, references, "base")


def test_empty_translations_are_scored():
    found = score(["", "a b c d"], ["e f g h", "a b c d"])
    assert found["bleu"].value == pytest.approx(100 * math.exp(1 - 8 / 4)) and found["ter"].value == 50
    nothing = score(["", ""], ["e f g h", "a b c d"])
    assert [nothing[name].value for name in PLAIN] == [0, 0, 0, 100]


def test_tokenizers_are_sacrebleus():
    hypotheses, references = ["Ein Hund, 3-mal 你好"], ["Ein Hund, 3-mal 你们"]
    for tokenize in translation.TOKENIZERS:
        found = score(hypotheses, references, ["bleu"], tokenize)["bleu"]
        assert found.value == BLEU(tokenize=tokenize).corpus_score(hypotheses, [references]).score
        assert f"|tok:{tokenize}|" in found.signature.replace("|tok:zh-", "|tok:zh|")


def test_other_settings_that_are_rejected(monkeypatch):
    with pytest.raises(ValueError, match="expected a tokenizer of 13a, intl, char, zh, none, got 'spm'"):
        score(["a"], ["a"], tokenize="spm")
    for seed in ("none", "0", "-3", "1.5", ""):
        monkeypatch.setenv("SACREBLEU_SEED", seed)
        with pytest.raises(ValueError, match=f"SACREBLEU_SEED to be a positive whole number, got '{seed}'"):
            score(["a"], ["a"])


def test_the_seed_is_sacrebleus(texts, monkeypatch):
    references, systems = texts
    default = score(systems["a"], references, ["bleu"])["bleu"]
    monkeypatch.setenv("SACREBLEU_SEED", "77")
    found = score(systems["a"], references, ["bleu"])["bleu"]
    assert "|seed:77|" in found.signature and found.value == default.value and found.interval != default.interval
    metric = BLEU()
    expected = metric.corpus_score(systems["a"], [references], n_bootstrap=1000)
    assert found.mean == pytest.approx(expected._mean, rel=1e-5) and found.signature == str(metric.get_signature())


def test_sacrebleu_is_only_imported_to_score():
    code = """
import sys
from ag_jax.evaluation import translation
print("sacrebleu" in sys.modules)
translation.score(["a"], ["a"])
print("sacrebleu" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "True"] and done.stderr == ""
