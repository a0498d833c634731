"""A probe from windows to scores of heads, judged one query at a time, and what is measured again."""

import dataclasses

import jax
import numpy as np
import pytest
from etils import epath

from ag_jax.analysis.heads import measuring, scores
from ag_jax.analysis.heads.encoding import encode
from ag_jax.analysis.heads.measuring import Measured, measure
from ag_jax.analysis.heads.rows import Convention, attention_rows
from ag_jax.data.probes.queries import Query
from ag_jax.grid import run as grid
from ag_jax.grid.cells import Stage
from ag_jax.probing import report, results, summary
from ag_jax.probing.config import ProbeConfig
from tests.probing import examples

SHAPE = 2, 3  # layers and heads
QUERIES = examples.probe().queries


@pytest.fixture(scope="module")
def measured():
    return measure(examples.probed(), examples.probe(), scores.MODES)


@pytest.fixture(scope="module")
def rows():
    """The attention of each query to words and to positions."""
    probed = examples.probed()
    windows = encode(examples.windows(), probed.tokenizer, 97).windows
    places = np.array([query.window for query in QUERIES]), np.array([query.at for query in QUERIES])
    found = {}
    for batch in attention_rows(probed.model, probed.params, windows, *places, ("word", "position")):
        for place, query in enumerate(batch.queries):
            found[query] = batch.weights["word"][place], batch.weights["position"][place]
    return found


def test_all_modes(measured, rows):
    windows = encode(examples.windows(), examples.tokenizer(), 97).windows
    for index, query in enumerate(QUERIES):
        to_words, to_positions = rows[index]
        starts = windows[query.window].starts
        for layer, head in np.ndindex(SHAPE):
            row = to_words[layer, head]
            mass = [row[list(words)].sum() for words in query.candidates]
            assert measured["mentions"].scores_QNH[index, layer, head] == (int(np.argmax(mass)) in query.right)
            others = [word for word in range(len(starts) - 1) if word != query.at]
            best = max(others, key=lambda word: row[word])
            assert measured["words"].chosen_QNH[index, layer, head] == best
            assert measured["words"].scores_QNH[index, layer, head] == (best in query.answers)
            position = int(np.argmax(to_positions[layer, head]))
            word = np.searchsorted(starts, position, side="right") - 1
            assert measured["positions"].scores_QNH[index, layer, head] == (word in query.answers)
            confusion = -np.log2(sum(mass[right] for right in query.right) / sum(mass))
            assert measured["mentions"].confusion_QNH[index, layer, head] == pytest.approx(confusion, abs=1e-5)
    assert measured["words"].confusion_QNH is measured["mentions"].mass_QNH is None
    assert measured["mentions"].chance_Q[0] == pytest.approx(2 / 3)
    assert len({of.scores_QNH.tobytes() for of in measured.values()}) == 3  # the modes are not all alike


def test_uniform_attention_is_chance():
    """Without queries and keys all weights are equal, and every mode gives chance exactly."""
    probed = examples.probed()
    flat = jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf * 0 if any(f"'{name}'" in str(path) for name in ("query", "key")) else leaf,
        probed.params,
    )
    # With sums, words of many tokens would get more attention.
    given = dataclasses.replace(probed, params=flat), examples.probe(), ("words", "positions")
    for mode in measure(*given, Convention(to="mean")).values():
        expected = np.broadcast_to(mode.chance_Q[:, None, None], mode.scores_QNH.shape)
        np.testing.assert_allclose(mode.scores_QNH, expected, rtol=1e-6)


def test_attention_to_the_answer_where_none_may_be_correct(rows):
    queries = [dataclasses.replace(query, right=query.right[:number]) for number, query in enumerate(QUERIES)]
    found = measure(examples.probed(), examples.probe(queries), ("mentions", "words"))
    assert found["words"].mass_QNH is None
    for index, query in enumerate(queries):
        most = np.max([rows[index][0][..., list(words)].sum(-1) for words in query.candidates], 0)
        np.testing.assert_allclose(found["mentions"].mass_QNH[index], most, rtol=1e-5)


def test_only_words_before(measured):
    found = measure(examples.probed(), examples.probe(before=True), ("words",))["words"]
    assert all((found.chosen_QNH[index] < query.begin).all() for index, query in enumerate(QUERIES))
    assert (measured["words"].chosen_QNH[0] > 6).any()


def test_what_cannot_be_asked():
    probed = examples.probed()
    lengths = [len(window.ids) for window in encode(examples.windows(), probed.tokenizer, 97).windows]
    assert lengths.index(max(lengths)) == 1  # a window with one query
    short = dataclasses.replace(probed, longest=max(lengths) - 1)
    found = measure(short, examples.probe(), ("words",))["words"]
    assert found.queries_Q.tolist() == [0, 2, 3, 4, 5] and found.dropped == {measuring.TOO_LONG: 1}
    nan = dataclasses.replace(probed, params=jax.tree.map(lambda leaf: np.full_like(leaf, np.nan), probed.params))
    of_words = examples.probe([Query(0, 1, 1, (), (), (0,), "x")])
    for model, probe, mode, named in (
        (dataclasses.replace(probed, longest=2), examples.probe(), "words", "no query .*: 6"),
        (probed, of_words, "mentions", "mentions"),
        (nan, examples.probe(), "words", "NaN"),
    ):
        with pytest.raises(ValueError, match=named):
            measure(model, probe, (mode,))


def test_what_was_measured_is_measured_again_only_if_it_would_differ(measured, tmp_path, monkeypatch):
    """A result of another model, text or setting is not used."""
    asked, folder = [], epath.Path(tmp_path / "x")
    monkeypatch.setattr(measuring, "measure", lambda *given, **_: asked.append(given[-1]) or measured)
    config = ProbeConfig(kind="custom", function="a.b", modes=scores.MODES)
    made = {"probed": examples.probed(), "config": config, "probe": examples.probe()}

    def is_measured(**other):
        before, cell = len(asked), results.ProbeCell("x", **made | other)
        table = grid.run(lambda _: Stage([cell]), folder.parent)
        for mode, of in cell.read(folder, table["x"]).modes.items():
            np.testing.assert_equal(vars(of), vars(measured[mode]))
        return len(asked) > before

    assert is_measured() and not is_measured()
    for other in (
        {"probed": examples.probed(6)},
        {"probed": dataclasses.replace(made["probed"], longest=96)},
        {"probe": examples.probe(QUERIES[:-1])},
        {"probe": examples.probe(before=True)},
        {"probe": dataclasses.replace(made["probe"], windows=made["probe"].windows[::-1])},
        {"config": dataclasses.replace(config, from_word="first")},
    ):
        assert is_measured(**other) and is_measured()
    assert asked[-2] == Convention("first", "sum", False)


def test_models_are_compared_on_the_queries_that_all_can_be_asked():
    probe, asked = examples.probe(QUERIES * 4), (np.arange(22), np.arange(3, 24))
    scores_QNH = (np.random.default_rng(0).random((2, 24, *SHAPE)) < 0.5).astype(np.float32)
    scores_QNH[0, :, 1, 0] = scores_QNH[1, :, 0, 2] = 0.9  # a guided head of a, a free head of b
    arms = {}
    for arm, of, of_arm in zip("ab", asked, scores_QNH, strict=True):
        chosen = np.zeros((len(of), *SHAPE), np.int16)
        modes = {"words": Measured(of, of_arm[of], chosen, np.full(len(of), 0.25), None, None, {})}
        arms[arm] = [results.ProbeResult(examples.probed(), None, probe, modes)]
    numbers = summary.numbers("words", arms, ["a", "b"], 100)
    test = np.arange(3, 22, 2)  # even ones are for development
    assert numbers["queries"]["all"] == len(test) and numbers["baselines"]["chance"]["all"] == 0.25
    for arm, of_arm in zip("ab", scores_QNH, strict=True):
        found, rates_NH = numbers["arms"][arm]["all"][0], of_arm[test].mean(0)
        assert (found["mean"], found["best"]) == (pytest.approx(rates_NH.mean()), pytest.approx(rates_NH.max()))
        assert found["guided"] == pytest.approx(rates_NH[:, 0].max())
        assert found["free"] == pytest.approx(rates_NH[:, 1:].max())
        assert (found["head"], found["pattern"]) == {"a": ((1, 0), "next"), "b": ((0, 2), None)}[arm]
    free = numbers["means"]["a"]["all"]["free"]["mean"]
    first, second, _ = report._result("made up", "words", numbers).split(";")
    assert "head 1.0 (guided towards [Next]" in first and f" {free:.3f})" in first and "guided" not in second
