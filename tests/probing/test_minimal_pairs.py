"""Minimal pairs: scores against a loop over tokens, models whose scores are known by hand, and the command."""

import dataclasses
import gzip
import json
import math
import types

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special as functions

from ag_jax.data.probes import minimal_pairs
from ag_jax.data.probes.minimal_pairs import Pair
from ag_jax.probing import comparison
from ag_jax.probing.minimal_pairs import report, results, scoring
from ag_jax.settings import config_files
from tests import tiny
from tests.conftest import REPOSITORY
from tests.finetuning import tasks
from tests.probing import trained_models
from tests.probing.trained_models import TOKENIZER

PROBE = REPOSITORY / "configs" / "probe.py"
TRIAL = "suite/sst2/lr1e-05-bs8-seed0"
RNG = np.random.default_rng(8)


def sentence(words):
    # The last word has several tokens.
    return " ".join([*RNG.choice(tasks.WORDS, words), "good-bad"])


PAIRS = [Pair(sentence(3), sentence(4), "long" if index % 3 else "short", "one", "syntax") for index in range(12)]
PAIRS += [Pair("good bad", "good bad", "same", "two", "semantics")]
PAIRS += [Pair("good bad bad", "good good bad", "near", "two", "semantics")]


@pytest.fixture(scope="module")
def scored():
    return scoring.score(trained_models.word_model(), PAIRS)


def plain_scores(opened, text):
    """Both scores of a sentence, one row and one token after the other."""
    words = [TOKENIZER.encode(f" {word}") for word in text.split()]
    ids = [token for word in words for token in word]
    owner = [number for number, word in enumerate(words) for _ in word]
    sums = {"token": 0.0, "word_l2r": 0.0}
    for position, token in enumerate(ids):
        for name in sums:
            hidden = [
                other == position or (name == "word_l2r" and other > position and owner[other] == owner[position])
                for other in range(len(ids))
            ]
            row = [TOKENIZER.specials.mask if gone else id for gone, id in zip(hidden, ids, strict=True)]
            row = np.array([[TOKENIZER.specials.begin, *row, TOKENIZER.specials.end]], np.int32)
            batch = {"tokens": row, "original": row, "segment_ids": np.ones_like(row), "token_type_ids": 0 * row}
            batch["masked_positions"] = np.array([[position + 1]], np.int32)
            words_V = tiny.apply(opened.model, opened.params, batch).words_BMV[0, 0]
            sums[name] += functions.log_softmax(np.asarray(words_V, np.float64))[token]
    return sums


def test_scores_equal_a_loop_over_tokens(scored):
    opened = trained_models.word_model()
    assert len(TOKENIZER.encode(" good-bad")) > 1
    for number in (0, 7, 13):
        for side, text in enumerate((PAIRS[number].good, PAIRS[number].bad)):
            for name, expected in plain_scores(opened, text).items():
                assert scored.scores[name][number, side] == pytest.approx(expected, abs=2e-4)
    assert (np.abs(scored.scores["token"] - scored.scores["word_l2r"])[:12] > 1e-3).all()  # words of several tokens
    np.testing.assert_array_equal(scored.scores["token"][12:], scored.scores["word_l2r"][12:])  # words of one token
    for name in scoring.SCORES:  # a pair with itself is not right, whatever the rounding
        assert report.right(scored.scores[name])[12] == 0


class Unigrams:
    """A model whose scores of a token do not depend on the others."""

    def __init__(self, config, logits_V):
        self.config, self.logits_V = dataclasses.replace(config, max_length=16), logits_V

    def apply(self, params, batch, deterministic):
        assert deterministic
        rows = batch["tokens"].shape[0]
        return types.SimpleNamespace(words_BMV=jnp.tile(self.logits_V, (rows, 1, 1)))


def test_a_model_of_single_words_is_scored_by_hand():
    frequency = RNG.uniform(1, 9, TOKENIZER.vocabulary_size)
    real = trained_models.word_model()
    opened = dataclasses.replace(real, model=Unigrams(real.model.config, np.log(frequency)), params={})
    found = scoring.score(opened, PAIRS)
    for number, pair in enumerate(PAIRS):
        for side, text in enumerate((pair.good, pair.bad)):
            ids = [token for word in text.split() for token in TOKENIZER.encode(f" {word}")]
            expected = sum(math.log(frequency[token] / frequency.sum()) for token in ids)
            for name in scoring.SCORES:
                assert found.scores[name][number, side] == pytest.approx(expected, abs=1e-4)


def test_pairs_that_cannot_be_scored(scored):
    """Too long ones are left out and counted; NaN stands for them, so a model whose scores are NaN is refused."""
    opened = trained_models.word_model()
    long = Pair(" ".join(tasks.WORDS[:1] * 20), "good film", "long")
    found = scoring.score(opened, [long, PAIRS[13]])
    assert found.too_long == 1 and np.isnan(found.scores["token"][0]).all()
    np.testing.assert_allclose(found.scores["token"][1], scored.scores["token"][13], rtol=1e-5)
    assert np.isnan(report.right(found.scores["token"])[0])
    logits = np.where(np.arange(TOKENIZER.vocabulary_size) == 7, np.nan, 0.0)
    with pytest.raises(ValueError, match="NaN"):
        scoring.score(dataclasses.replace(opened, model=Unigrams(opened.model.config, logits), params={}), PAIRS)


def test_accuracies_are_means_over_paradigms_and_ties_are_wrong():
    pairs = [Pair(f"a{index}", "b", name, term, "f") for index, (name, term) in enumerate(
        [("p", "t")] * 4 + [("q", "t")] * 6 + [("r", "u")]
    )]  # fmt: skip
    scores = np.array([[2, 1], [1, 1], [1, 2], [3, 1], *[[5, 1]] * 6, [np.nan, 1]], float)
    judged = results.Judged("m", 3, 100, "token", dict.fromkeys(scoring.SCORES, scores), 0, 1)
    other = dataclasses.replace(judged, scores=dict.fromkeys(scoring.SCORES, scores[:, ::-1]))
    content = report.numbers(pairs, {"first": [[judged]], "second": [[other]]})
    of = content["models"]["first"][0][0]["token"]
    assert of["paradigm"]["p"]["accuracy"] == 0.5 and of["paradigm"]["q"]["accuracy"] == 1.0
    assert of["paradigm"]["r"] is None and of["ties"] == 1
    assert of["all"]["all"]["accuracy"] == of["term"]["t"]["accuracy"] == pytest.approx(0.75)
    # Only p varies: of the mean of two paradigms, half the deviation of a mean of 4 pairs of which 2 are right.
    assert of["all"]["all"]["half_interval"] == pytest.approx(1.96 * math.sqrt(0.25 / 4) / 2)
    assert of["paradigm"]["p"]["half_interval"] is None and of["paradigm"]["q"]["half_interval"] is None
    changes = [-1, 0, 1, -1]  # p: -1/4, q: -1
    assert content["differences"]["second"][0]["difference"] == pytest.approx((np.mean(changes[:4]) - 1) / 2)
    assert "| first | token | 75.0 ± 24.5 |" in report.section(content).markdown()


def test_intervals_need_pairs_that_differ():
    """And several in every paradigm: a deviation of zero would make few pairs look certain."""
    for right, paradigms, known in (
        *(([1, 0] * 5, "a" * 10, True), ([1, 0] * 4, "a" * 8, False), ([1] * 12, "a" * 12, False)),
        ([1, 0] * 6, "abcdefghijkl", False),
    ):
        mean, half = report.accuracy(np.array(right, float), np.array(list(paradigms)), sorted(set(paradigms)))
        assert mean == np.mean(right) and (half is not None) == known


def write(folder, name, pairs, **more):
    folder.mkdir(exist_ok=True)
    lines = [
        json.dumps(
            {"sentence_good": pair.good, "sentence_bad": pair.bad, "UID": pair.paradigm}
            | {"linguistics_term": pair.term, "field": pair.field, "pairID": str(number)}
            | more
        )
        for number, pair in enumerate(pairs)
    ]
    content = "\n".join(lines).encode()
    (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)


def test_files_of_blimp_and_custom_tables(tmp_path, capsys):
    unique = dict.fromkeys(PAIRS)
    for name in ("short", "long"):
        write(tmp_path / "blimp", f"{name}.jsonl.gz", [pair for pair in unique if pair.paradigm == name])
    write(tmp_path / "blimp", "near.jsonl", PAIRS[13:], field="syntax/semantics")
    found = minimal_pairs.read(str(tmp_path / "blimp"))
    assert {pair.paradigm for pair in found} == {"short", "long", "near"} and len(found) == 13
    assert {pair.field for pair in found} == {"syntax", "syntax_semantics"}
    assert "long (8), near (1), short (4)" in capsys.readouterr().err
    some = minimal_pairs.read(str(tmp_path / "blimp"), 2)
    assert [pair.paradigm for pair in some] == ["long", "long", "near", "short", "short"] and set(some) < set(found)
    write(tmp_path / "blimp", "short.jsonl.gz", [pair for pair in [*unique][::-1] if pair.paradigm == "short"])
    assert minimal_pairs.read(str(tmp_path / "blimp"), 2) == some  # whatever the order of the file
    (tmp_path / "mine.tsv").write_text('sentence_good\tsentence_bad\nThe "dogs" run\tThe  dogs runs\n')
    (tmp_path / "mine.csv").write_text('sentence_good,sentence_bad,UID\n"Yes, he is",Yes he are,be\n')
    assert minimal_pairs.read(str(tmp_path / "mine.tsv")) == [Pair('The "dogs" run', "The dogs runs", "mine")]
    assert minimal_pairs.read(str(tmp_path / "mine.csv")) == [Pair("Yes, he is", "Yes he are", "be")]
    write(tmp_path / "equal", "x.jsonl", [PAIRS[12]])
    minimal_pairs.read(str(tmp_path / "equal"))
    assert "1 pairs have two equal sentences" in capsys.readouterr().err


def test_the_accuracies_that_blimp_publishes_stand_beside(tmp_path):
    write(tmp_path / "data", "all.jsonl", PAIRS[:12])
    records = [("short", 0.5, 0.6), ("long", 0.7, 0.9), ("overall", 0.1, 0.2)]
    models = [{"UID": uid, "ngram": one, "lstm": other, "txl": 1, "gpt2": 0.0} for uid, one, other in records]
    summary = tmp_path / "models_summary.jsonl"
    summary.write_text("\n".join(map(json.dumps, models)))
    found = minimal_pairs.published(str(tmp_path / "data"))
    assert found["n-gram"] == {"short": 0.5, "long": 0.7} and list(found) == [*report.PUBLISHED]
    scores = dict.fromkeys(scoring.SCORES, np.tile([1.0, 0.0], (12, 1)))
    judged = results.Judged("m", None, None, "token", scores, 0, 0)
    content = report.numbers(PAIRS[:12], {"first": [[judged]]}, found)
    assert content["published"]["LSTM"]["all"]["all"] == pytest.approx(0.75)
    assert "| one | 100.0 | 60.0 | 75.0 | 100.0 | 0.0 |" in report.section(content).markdown()
    assert len(minimal_pairs.read(str(tmp_path))) == 12  # it is no file of pairs
    assert minimal_pairs.published(str(tmp_path / "data" / "deep" / "er")) == {}
    summary.write_text(json.dumps(models[0] | {"gpt2": 7}))
    with pytest.raises(ValueError, match="line 1.*gpt2"):
        minimal_pairs.published(str(tmp_path / "data"))


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("a.jsonl", '{"sentence_good": "a", "sentence_bad": " "}', "line 1.*sentence_bad"),
        ("a.jsonl", '{"sentence_good": "a", "sentence_bad": "b"}\n' * 2, "line 2:.*line 1"),
        ("a.jsonl.gz", "no gzip", "a.jsonl.gz"),
    ],
)
def test_damaged_and_foreign_files(tmp_path, name, content, named):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=named):
        minimal_pairs.read(str(tmp_path / name))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs") / "blimp"
    write(folder, "all.jsonl", PAIRS)
    return folder


def test_the_command_scores_the_milestones_of_runs_once(places, data, tmp_path, monkeypatch, scored):
    source = f"{PROBE}:checkpoint={places / 'run'},reflexives=none,minimal_pairs={data}"
    flags = {"minimal_pairs.milestones": True}
    path = comparison.evaluate(config_files.load(source, flags), tmp_path / "out")
    content = json.loads((tmp_path / "out" / "report.json").read_text())["minimal_pairs"]
    (checkpoints,) = content["models"]["model"]
    assert [(of["step"], of["tokens"], of["default"]) for of in checkpoints] == [(0, 0, "word_l2r")]
    order = sorted(range(len(PAIRS)), key=lambda number: PAIRS[number].paradigm)
    right = report.right(scored.scores["word_l2r"][order])
    expected = report.accuracy(
        right, np.array([PAIRS[number].paradigm for number in order]), ["long", "short", "same", "near"]
    )
    assert checkpoints[0]["word_l2r"]["all"]["all"]["accuracy"] == pytest.approx(expected[0])
    assert "## Minimal pairs" in path.read_text() and (tmp_path / "out" / report.FIGURE).exists()
    monkeypatch.setattr(scoring, "score", lambda *arguments: pytest.fail("scored again"))
    assert comparison.evaluate(config_files.load(source, flags), tmp_path / "out").read_text() == path.read_text()
    comparison.evaluate(config_files.load(source, {}), tmp_path / "out")
    assert not (tmp_path / "out" / report.FIGURE).exists()
    stored = tmp_path / "out" / "minimal_pairs" / "model-seed0-step0" / "scores.npz"
    stored.write_bytes(stored.read_bytes()[:-1])
    with pytest.raises(pytest.fail.Exception, match="scored again"):
        comparison.evaluate(config_files.load(source, {}), tmp_path / "out")
