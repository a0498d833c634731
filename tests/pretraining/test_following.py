"""How often heads look at the words that pointers name: the choice of heads and the report, against plain loops."""

import types

import numpy as np
import pytest

from ag_jax.analysis.heads.encoding import encode
from ag_jax.analysis.heads.measuring import HeadsModel, Measured
from ag_jax.attention.assignment import Assignment
from ag_jax.data.config import DataConfig
from ag_jax.data.probes.pointers import UNDIRECTED, PointerProbe
from ag_jax.data.probes.queries import Probe, Query
from ag_jax.data.records.annotated import PUNCTUATION
from ag_jax.pretraining import following
from tests.probing import examples

LAYERS, HEADS, QUERIES = 3, 4, 90
GUIDED = Assignment((("next", 1), ("head", 2)), (1, 2))
OFFSETS = ("offset -1", "offset +1", "offset +2")


@pytest.fixture(scope="module")
def asked():
    """A probe with made-up answers, of which only kinds, halves, punctuation and offsets matter."""
    rng = np.random.default_rng(7)
    kinds = [("head", UNDIRECTED, "far")[number] for number in rng.integers(0, 3, QUERIES)]
    queries = tuple(Query(int(rng.integers(0, 5)), 0, 0, (), (), (1,), kind) for kind in kinds)
    baselines = {name: rng.integers(0, 2, QUERIES).astype(float) for name in OFFSETS}
    probe = Probe("pointers", examples.windows(), queries, rng.integers(0, 2, QUERIES) > 0, baselines, {})
    return PointerProbe(probe, rng.integers(0, 4, QUERIES) == 0, 5, True)


def measured(seed):
    """Random scores of all queries but the first three, which the model cannot read."""
    rng = np.random.default_rng(seed)
    scores_QNH = rng.integers(0, 2, (QUERIES - 3, LAYERS, HEADS)).astype(np.float32)
    return Measured(np.arange(3, QUERIES), scores_QNH, None, None, None, None, {})


def mean(asked, scores, kind, half, *, marks):
    """The mean of the queries of a kind in one half of the text; `scores` has that of each query of the probe."""
    return np.mean(
        [
            scores[index]
            for index, query in enumerate(asked.probe.queries[3:], 3)
            if query.kind == kind
            and asked.probe.development[index] == (half == "development")
            and (marks or not asked.punctuation_Q[index])
        ]
    )


def test_numbers_of_a_column(asked):
    scores = measured(4)  # by punctuation marks, too, another free head would be chosen
    found = following.of_column(asked, scores, "head", GUIDED)

    def score(layer, head, kind="head", half="test", *, marks=False):
        return mean(asked, {q: of[layer, head] for q, of in enumerate(scores.scores_QNH, 3)}, kind, half, marks=marks)

    free = [range(4), [3], [3]]
    best = [max(heads, key=lambda head: score(n, head, half="development")) for n, heads in enumerate(free)]
    assert found["free_heads"] == best
    offset = max(OFFSETS, key=lambda name: mean(asked, asked.probe.baselines[name], "head", "development", marks=False))
    assert found["offset"] == offset
    for name, kind in (("shares", "head"), ("undirected", UNDIRECTED)):
        for words, marks in (("all", True), ("without punctuation", False)):
            shares = found[name][words]
            expected = [score(layer, head, kind, marks=marks) for layer, head in enumerate(best)]
            np.testing.assert_allclose(shares["free"], expected)
            assert shares["guided"][0] is None
            expected = [np.mean([score(layer, head, kind, marks=marks) for head in (1, 2)]) for layer in (1, 2)]
            np.testing.assert_allclose(shares["guided"][1:], expected)
            expected = mean(asked, asked.probe.baselines[offset], kind, "test", marks=marks)
            assert shares["offset"] == pytest.approx(expected)
    guided = [np.mean([score(layer, head, half="development") for head in (1, 2)]) for layer in (1, 2)]
    assert found["layers"]["guided"] == 1 + int(np.argmax(guided))
    assert found["layers"]["free"] == np.argmax([score(n, head, half="development") for n, head in enumerate(best)])
    assert "undirected" not in following.of_column(asked, scores, "far", GUIDED)


def test_all_columns_of_a_run(asked, monkeypatch):
    model = types.SimpleNamespace(config=types.SimpleNamespace(windows=(None,) * LAYERS))
    of_model = {"model": model, "params": {"encoder": {}}, "tokenizer": None, "length": 9, "workdir": ""}
    monkeypatch.setattr(following.measuring, "measure", lambda *_: {"words": measured(1)})
    found = following.of_run(types.SimpleNamespace(**of_model, assignment=GUIDED), [asked])
    assert found == {name: following.of_column(asked, measured(1), name, GUIDED) for name in ("head", "far")}


def test_which_texts_and_columns_are_asked(monkeypatch):
    """Texts of all sources in turns, once for runs with the same text, tokenizer and length."""
    names = {"a": ("head", "offset_by_word", "far"), "b": ("far",), "plain": ()}
    data = {arm: types.SimpleNamespace(data=DataConfig(pointers=columns)) for arm, columns in names.items()}
    configs = {(arm, seed): data[arm] for arm in names for seed in (0, 1, 2)}
    lengths = dict.fromkeys(configs, 9) | {("a", 2): 10}
    made = []

    def held_out(config, corpus, columns):
        made.append(columns)
        return [iter("xyz"), iter("v")]

    def probes(texts, columns, _, length, most):
        return "".join(texts), tuple(columns), length

    def opened(place, step):
        return types.SimpleNamespace(length=lengths[place], tokenizer=types.SimpleNamespace(fingerprint=lambda: ""))

    monkeypatch.setattr(following, "open_run", opened)
    monkeypatch.setattr(following.run_directory, "milestone_step", lambda *_: 7)
    monkeypatch.setattr(following.pretraining_corpus, "with_own_tokenizer", lambda data, _: data)
    monkeypatch.setattr(following.pipeline, "prepare", lambda *_, quiet: None)
    monkeypatch.setattr(following.pipeline, "held_out_texts", held_out)
    monkeypatch.setattr(following.pointers, "pointers", probes)
    monkeypatch.setattr(following, "of_run", lambda _, asked: {"far": asked})
    of_a = ("xvyz", ("head", "far"))
    assert following.measure(configs, {place: place for place in configs}) == {
        "a": {"far": [(*of_a, 9), (*of_a, 9), (*of_a, 10)]},
        "b": {"far": [("xvyz", ("far",), 9)] * 3},
    }
    assert made == [["head", "far", PUNCTUATION]] * 2 + [["far", PUNCTUATION]]


def test_the_section_has_a_row_for_guided_and_free_heads_over_seeds(asked):
    arms = {
        "pointer": {"head": [following.of_column(asked, measured(seed), "head", GUIDED) for seed in (1, 2)]},
        "plain": {"head": [following.of_column(asked, measured(seed), "head", Assignment()) for seed in (3, 4)]},
    }
    _, _, table, _, layers = following.section(arms).blocks
    names = ["pointer, guided", "pointer, best free head", "plain, best free head"]
    assert [row[0] for row in layers.rows] == names == [row[0] for row in table.rows[:-1]]
    assert [len(row) for row in table.rows] == [6] * 4  # the last one is the best offset
    seeds = arms["pointer"]["head"]
    values = [of["undirected"]["all"]["guided"][of["layers"]["guided"]] for of in seeds]
    assert table.rows[0][5] == f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"
    values = [of["shares"]["without punctuation"]["guided"][1] for of in seeds]
    assert layers.rows[0][:3] == ["pointer, guided", "–", f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"]


def test_pointers_that_a_window_does_not_reach():
    pairs = [(window, at, other) for window, words in enumerate((11, 16)) for at, other in np.ndindex(words, words)]
    queries = tuple(Query(window, at, at, (), (), (other,), "far") for window, at, other in pairs if at != other)
    probe = Probe("pointers", examples.windows(), queries, None, {}, {})
    model = types.SimpleNamespace(config=types.SimpleNamespace(windows=(None, 4, 10)))
    probed = HeadsModel("a model", model, {}, examples.tokenizer(), 97)
    starts = [window.starts for window in encode(examples.windows(), examples.tokenizer(), 97).windows]

    def sees(query, window):
        mine, other = (range(*starts[query.window][word : word + 2]) for word in (query.at, *query.answers))
        return any(abs(q - k) <= window // 2 for q in mine for k in other)

    found = following._unseen(probed, PointerProbe(probe, None, 2, True))["far"]
    assert found == [0.0, *(pytest.approx(np.mean([not sees(query, w) for query in queries])) for w in (4, 10))]
    assert 0.2 < found[2] < found[1] < 0.9
