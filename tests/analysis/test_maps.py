"""Attention maps are what the model computes, and masses what a loop over rows adds up."""

import dataclasses
import logging

import numpy as np
import pytest

from ag_jax.analysis import maps
from ag_jax.attention.assignment import Assignment
from ag_jax.attention.patterns import PATTERNS
from tests import reference, tiny
from tests.analysis import examples
from tests.analysis.examples import SECOND, SENTENCE, WordTokenizer

NAMES = ("next", "prev", "first", "delim", "period", "same")


@pytest.fixture(scope="module")
def model():
    return tiny.model(dropout=0.4, attention_dropout=0.4)  # which maps are without


@pytest.fixture(scope="module")
def params(model):
    return tiny.params(model, tiny.batch())


def test_maps_are_the_weights_that_the_model_sows(model, params, caplog):
    """The text has exactly as many tokens as the model reads."""
    attention = maps.attention_maps(model, params, WordTokenizer(), SENTENCE, max_tokens=9)
    assert attention.tokens == ("<s>", "we", "build", "roads", ".", "we", "build", ".", "</s>")
    assert attention.ids_L.tolist() == [0, 7, 8, 6, 5, 7, 8, 5, 2]
    assert attention.left_out == 0 and not caplog.text and attention.caption[1] == SENTENCE
    assert attention.weights_NHQK.shape == (2, 3, 9, 9) and attention.weights_NHQK.dtype == np.float32
    np.testing.assert_allclose(attention.weights_NHQK.sum(-1), 1.0, atol=1e-6)

    # The whole model, on the sentence with padding behind it and another row below it.
    batch = tiny.batch(lengths=(9, 11))
    batch["tokens"][0, :9], batch["token_type_ids"] = attention.ids_L, np.zeros_like(batch["token_type_ids"])
    weights_NBHQK = examples.sown(model, params, batch)
    np.testing.assert_allclose(attention.weights_NHQK, weights_NBHQK[:, 0, :, :9, :9], atol=1e-6)
    assert np.ptp(attention.weights_NHQK) > 0.1


def test_a_long_text_is_cut_and_says_so(model, params, caplog):
    text, kept = "we build roads . " * 4, 11
    maps.warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        attention = maps.attention_maps(model, params, WordTokenizer(), text, 1000)
    assert attention.ids_L.tolist() == [0, *([7, 8, 6, 5] * 4)[:kept], 2]
    assert attention.left_out == 16 - kept
    assert f"the last {16 - kept} are left out" in caplog.text
    assert attention.caption[1] == f"({kept + 2} of 18 tokens) {text}"
    attention = dataclasses.replace(examples.sentence(), left_out=16 - kept)
    assert f"{16 - kept} more were cut off" in maps.mass_table(attention, tiny.SPECIAL, Assignment())
    assert maps.viewer_view(attention, "one", "model", tiny.SPECIAL, Assignment()).left_out == 16 - kept
    for text, most, named in (("  \n ", 13, "at least one token"), ("we", 2, "got 0: raise max_tokens")):
        with pytest.raises(ValueError, match=named):
            maps.attention_maps(model, params, WordTokenizer(), text, most)


def test_chance_in_a_window_by_hand():
    """<s> we build roads . we build . </s>: in the second layer, a token sees itself and one neighbour on each side."""
    attention = dataclasses.replace(examples.sentence(heads=1), windows=(None, 3))
    attention.weights_NHQK[1] *= np.abs(np.subtract.outer(np.arange(9), np.arange(9))) <= 1
    found = maps.measured(attention, tiny.SPECIAL, Assignment())
    in_window = {
        "next": (1 / 2 + 7 / 3) / 8,
        "prev": (7 / 3 + 1 / 2) / 8,
        "first": (1 / 2 + 1 / 3) / 9,
        "delim": (1 / 2 + 1 / 3 + 1 / 3 + 1 / 2) / 9,
        "period": (3 / 3 + 2 / 3 + 1 / 2) / 9,
        "same": (1 / 2 + 7 / 3 + 1 / 2) / 9,
    }
    everywhere = dict.fromkeys(in_window, 1 / 9) | {"delim": 2 / 9, "period": 2 / 9}
    chances = {name: tuple(pattern.chance_N) for name, pattern in found.items()}
    assert chances == {name: pytest.approx((everywhere[name], in_window[name])) for name in everywhere}
    on_first = attention.weights_NHQK[1, 0, :2, 0].sum()  # out of sight in the other rows
    assert found["first"].mass_NH[1, 0] == pytest.approx(on_first / 9)
    rows = {line[:18].strip(): line for line in maps.mass_table(attention, tiny.SPECIAL, Assignment()).splitlines()}
    assert "0.09" in rows["by chance (3)"] and "0.09" not in rows["by chance (all)"]
    view = maps.viewer_view(attention, "one", "model", tiny.SPECIAL, Assignment())
    assert view.windows == (None, 3)
    np.testing.assert_array_equal(view.targets["first"].chance_N, found["first"].chance_N)


def test_maps_know_the_windows_of_their_model():
    model = tiny.model(window=4, global_every=2)
    found = maps.attention_maps(model, tiny.params(model, tiny.batch()), WordTokenizer(), SENTENCE, 13)
    assert found.windows == (None, 4)
    seen_NQK = (found.weights_NHQK > 0).all(1)
    for seen_QK, window in zip(seen_NQK, found.windows, strict=True):
        np.testing.assert_array_equal(seen_QK, found.visible_QK(window))


def test_targets_and_masses_row_by_row():
    attention = examples.sentence(layers=3, heads=5)
    tokens_L, segments_L = attention.ids_L, np.ones(len(attention.ids_L), np.int32)
    masses = maps.attention_mass(attention, tiny.SPECIAL, Assignment(((SECOND, 2), ("next", 1))))
    assert tuple(masses) == (*PATTERNS, SECOND)
    np.testing.assert_allclose(masses[SECOND], attention.weights_NHQK[:, :, :, 1].mean(-1), rtol=1e-6)
    found = maps.targets(attention, tiny.SPECIAL, [*NAMES, SECOND])
    assert tuple(found) == (*NAMES, SECOND)
    np.testing.assert_array_equal(found[SECOND], np.tile(np.eye(9)[1], (9, 1)))
    with pytest.raises(ValueError, match="'nxt'"):
        maps.targets(attention, tiny.SPECIAL, ["nxt"])
    for name in NAMES:
        P_QK = reference.dense_pattern(name, tokens_L, segments_L)
        np.testing.assert_allclose(found[name], P_QK, atol=1e-7)
        rows = [row for row in range(len(tokens_L)) if reference.names_a_column(name, tokens_L, segments_L, row)]
        on_target = [attention.weights_NHQK[:, :, row, P_QK[row] > 0].sum(-1) for row in rows]
        np.testing.assert_allclose(masses[name], np.mean(on_target, axis=0), rtol=1e-6)
        assert masses[name].shape == (3, 5)


def test_a_pattern_without_a_token_has_no_mass():
    attention = examples.sentence("we build roads we build roads we")
    found = maps.measured(attention, tiny.SPECIAL, Assignment())["period"]
    assert np.isnan(found.mass_NH).all() and np.isnan(found.chance_N).all()
    names, masses = maps.strongest_pattern(attention, tiny.SPECIAL, Assignment())
    assert "period" not in names and not np.isnan(masses).any()
    assert cells(maps.mass_table(attention, tiny.SPECIAL, Assignment()))[1]["Period", "0-2"] == ["–"] * 3


def test_the_strongest_pattern():
    """A head near a target is that pattern's, though [Delim] holds more than [First]: it holds what that points at."""
    attention = examples.sentence()
    found = maps.targets(attention, tiny.SPECIAL, [*NAMES, SECOND])
    weights_NHQK = 0.9 * np.stack([*found.values()])[None].astype(np.float32) + np.float32(0.1 / 9)
    near = dataclasses.replace(attention, weights_NHQK=weights_NHQK)
    names, masses = maps.strongest_pattern(near, tiny.SPECIAL, Assignment(((SECOND, 1),)))
    assert names.tolist() == [[*NAMES, SECOND]]
    columns = np.array([1, 1, 1, 2, 2, 1, 1])
    np.testing.assert_allclose(masses, [0.9 + 0.1 / 9 * columns], rtol=1e-5)


def cells(table):
    """Columns of a printed table: (kind, pattern, heads) -> numbers; without a kind if no head is guided."""
    lines = [line for line in table.splitlines()[1:] if line.strip() and "─" not in line]
    kinds = [lines.pop(0).split()] if "guided" in lines[0] else []
    (head, *members), (layer, *names) = (line.split() for line in lines[:2])
    assert (head, layer) == ("head", "layer")
    rows = [line.replace("by chance", "chance").split() for line in lines[2:] if "–" not in line[:1]]
    keys = list(zip(*kinds, names, members, strict=True))
    return [row[0] for row in rows], {key: [row[at + 1] for row in rows] for at, key in enumerate(keys)}


def test_the_table():
    attention = examples.sentence(heads=5)
    masses = maps.attention_mass(attention, tiny.SPECIAL, Assignment())
    table = maps.mass_table(attention, tiny.SPECIAL, Assignment((("period", 2), ("next", 1))))
    layers, columns = cells(table)
    assert layers == ["0", "1", "chance"] and max(map(len, table.splitlines())) <= 80
    assert list(columns)[:3] == [("guided", "Period", "0-1"), ("guided", "Next", "2"), ("free", "Next", "3-4")]
    assert columns["guided", "Period", "0-1"] == [*(f"{x:.2f}" for x in masses["period"][:, :2].mean(-1)), "0.22"]
    assert columns["guided", "Next", "2"] == [*(f"{x:.2f}" for x in masses["next"][:, 2]), "0.11"]
    assert columns["free", "Same", "3-4"][:2] == [f"{x:.2f}" for x in masses["same"][:, 3:].mean(-1)]
    assert len(columns) == 2 + 6


def test_the_table_of_a_model_of_which_some_layers_are_guided():
    """A layer without guidance has no numbers for guided heads, and all of its heads count as free."""
    attention = examples.sentence(layers=3, heads=5)
    table = maps.mass_table(attention, tiny.SPECIAL, Assignment((("period", 2), ("next", 3)), layers=(1,)))
    masses = maps.attention_mass(attention, tiny.SPECIAL, Assignment())
    lines = [line.split() for line in table.splitlines()]
    (first,), (second,) = ([line for line in lines if line[:1] == [layer]] for layer in ("0", "1"))
    assert second[1:] == [f"{masses['period'][1, :2].mean():.2f}", f"{masses['next'][1, 2:].mean():.2f}"]
    assert first[1:] == [f"{masses[name][0].mean():.2f}" for name in NAMES]
    view = attention.view(tiny.SPECIAL, Assignment((("period", 2), ("next", 1)), layers=(0, 2))).views[0]
    guided = ["period", "period", "next", None, None]
    assert view.guided == [guided, [None] * 5, guided]


def test_a_view_for_a_notebook(model, params):
    """Heads of the maps to compare with are not those of the assignment."""
    attention = maps.attention_maps(model, params, WordTokenizer(), SENTENCE, max_tokens=13)
    other = dataclasses.replace(attention, weights_NHQK=attention.weights_NHQK[:, :1])
    shown = attention.view(tiny.SPECIAL, Assignment((("next", 1), ("period", 1))), against={"other": other})
    one, two = shown.views
    assert (one.name, one.guided) == ("Encoder", [["next", "period", None]] * len(one.guided))
    assert (two.name, two.guided) == ("other", [[None]] * len(one.guided)) and len(one.guided) > 1
    assert one.special == [0, 8] and set(one.targets) == set(NAMES)
    masses = maps.attention_mass(attention, tiny.SPECIAL, Assignment())
    np.testing.assert_array_equal(one.targets["period"].mass_NH, masses["period"])
    assert "srcdoc" in shown._repr_html_()
    assert set(attention.view().views[0].targets) == {"next", "prev", "first", "same"}  # without ids of delimiters
    # Hard-coded attention that is not normalised.
    fixed = dataclasses.replace(attention, weights_NHQK=2 * attention.weights_NHQK, is_fixed=True)
    assert fixed.view().views[0].weights_NHQK.max() == 1
