"""A probe from windows to scores of heads, against attention that is computed and judged one query at a time."""

import dataclasses

import jax
import numpy as np
import pytest

from ag_jax.analysis import maps
from ag_jax.data.probes.queries import Query
from ag_jax.probing import measuring, scores
from ag_jax.probing.encoding import encode
from ag_jax.probing.measuring import measure
from ag_jax.probing.models import random_params
from ag_jax.probing.rows import Convention, attention_rows
from tests.probing import examples

SHAPE = 2, 3  # layers and heads
QUERIES = examples.probe().queries
WITH_MEANS = Convention(to="mean")


@pytest.fixture(scope="module")
def measured():
    return measure(examples.probed(), examples.probe(), scores.MODES)


def rows_of(query):
    """The attention of one query to words and to positions."""
    probed = examples.probed()
    windows = encode(examples.windows(), probed.tokenizer, 97).windows
    window_Q, at_Q = np.array([query.window]), np.array([query.at])
    (rows,) = attention_rows(probed.model, probed.params, windows, window_Q, at_Q, ("word", "position"))
    for unit in ("word", "position"):
        yield rows.weights[unit][0]


def test_all_modes(measured):
    windows = encode(examples.windows(), examples.tokenizer(), 97).windows
    for index, query in enumerate(examples.probe().queries):
        to_words, to_positions = rows_of(query)
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
    found = measure(dataclasses.replace(probed, params=flat), examples.probe(), ("words", "positions"), WITH_MEANS)
    for mode in found.values():
        expected = np.broadcast_to(mode.chance_Q[:, None, None], mode.scores_QNH.shape)
        np.testing.assert_allclose(mode.scores_QNH, expected, rtol=1e-6)


def test_attention_to_the_answer_where_none_may_be_correct():
    queries = [dataclasses.replace(query, right=query.right[:number]) for number, query in enumerate(QUERIES)]
    found = measure(examples.probed(), examples.probe(queries), ("mentions", "words"))
    assert found["words"].mass_QNH is None
    for index, query in enumerate(queries):
        to_words, _ = rows_of(query)
        most = np.max([to_words[..., list(words)].sum(-1) for words in query.candidates], 0)
        np.testing.assert_allclose(found["mentions"].mass_QNH[index], most, rtol=1e-5)


def test_weights_that_are_not_numbers():
    probed = examples.probed()
    params = jax.tree.map(lambda leaf: leaf * np.nan, probed.params)
    with pytest.raises(ValueError, match="attention is NaN or infinite"):
        measure(dataclasses.replace(probed, params=params), examples.probe(), ("words",))


def test_only_words_before(measured):
    found = measure(examples.probed(), examples.probe(before=True), ("words",))["words"]
    queries = examples.probe().queries
    assert all((found.chosen_QNH[index] < query.begin).all() for index, query in enumerate(queries))
    assert (measured["words"].chosen_QNH[0] > 6).any()


def test_what_cannot_be_asked():
    probed = examples.probed()
    lengths = [len(window.ids) for window in encode(examples.windows(), probed.tokenizer, 97).windows]
    assert lengths.index(max(lengths)) == 1  # a window with one query
    short = dataclasses.replace(probed, longest=max(lengths) - 1)
    found = measure(short, examples.probe(), ("words",))["words"]
    assert found.queries_Q.tolist() == [0, 2, 3, 4, 5] and found.dropped == {measuring.TOO_LONG: 1}
    with pytest.raises(ValueError, match=r"no query that an example can be asked \(.*model can read: 6\)"):
        measure(dataclasses.replace(probed, longest=2), examples.probe(), ("words",))
    with pytest.raises(ValueError, match="mentions chooses among candidates"):
        measure(probed, examples.probe([Query(0, 1, 1, (), (), (0,), "x")]), ("mentions",))


def test_progress_is_told_and_modes_share_the_forward_passes(monkeypatch):
    told, passes = [], []

    def counted(*arguments):
        passes.append(arguments)
        return original(*arguments)

    original = maps.attention_weights
    monkeypatch.setattr(maps, "attention_weights", counted)
    measure(examples.probed(), examples.probe(), scores.MODES, progress=lambda *numbers: told.append(numbers))
    assert told[-1] == (6, 6) and len(told) == len(passes) == 3  # a batch for each padded length


def test_random_weights_differ_by_seed():
    model = examples.probed().model
    first, second = (embeddings(model, seed) for seed in (0, 1))
    assert not np.array_equal(first, second) and np.array_equal(first, embeddings(model, 0))


def embeddings(model, seed):
    return np.asarray(random_params(model, seed)["encoder"]["embeddings"]["word"]["embedding"])
