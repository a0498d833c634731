"""Heat maps of a search."""

import dataclasses

from etils import epath

from ag_jax.analysis.figures.search import HeatMap, draw_heat_map, heat_maps

MAP = HeatMap("ag", "validation_loss", "a.rate", "b.steps", ["1", "2"], ["x", "y", "z"], [[1.5, None, 3.25], [2.0] * 3])
EMPTY = HeatMap("plain", "validation_loss", "a.rate", "b.steps", ["1", "2"], ["x", "y"], [[None] * 2] * 2)


def test_each_cell_has_its_loss_and_unknown_ones_are_empty():
    (axes,) = draw_heat_map(MAP).axes
    cells = {tuple(map(round, text.get_position())): text.get_text() for text in axes.texts}
    assert cells == {(0, 0): "1.500", (2, 0): "3.250", (0, 1): "2.000", (1, 1): "2.000", (2, 1): "2.000"}
    assert [label.get_text() for label in axes.get_xticklabels()] == ["x", "y", "z"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("b.steps", "a.rate")
    colours = axes.images[0].to_rgba(axes.images[0].get_array()[:, 0]).sum(-1)
    assert colours[0] < colours[1], "a low loss is dark"
    (frame,) = axes.patches
    assert (frame.get_x(), frame.get_y()) == (-0.5, -0.5), "around the lowest"
    colours = axes.images[0].to_rgba(axes.images[0].get_array())
    assert colours[0, 2, :3].min() < 0.95, "the worst cell is not white"
    assert [(*cross.get_xdata(), *cross.get_ydata()) for cross in axes.lines] == [(1, 0)], "where there is no number"


def test_high_numbers_are_dark_if_they_are_the_best():
    (axes,) = draw_heat_map(dataclasses.replace(MAP, metric="mlm_accuracy", is_lower_better=False)).axes
    colours = axes.images[0].to_rgba(axes.images[0].get_array()[:, 0]).sum(-1)
    assert colours[0] > colours[1] and (axes.patches[0].get_x(), axes.patches[0].get_y()) == (1.5, -0.5)
    of_texts = {text.get_text(): text.get_color() for text in axes.texts}
    assert (of_texts["3.250"], of_texts["1.500"]) == ("w", "k"), "white on dark"


def test_arms_without_a_loss_have_no_figure(tmp_path):
    drawn = heat_maps([EMPTY, MAP], epath.Path(tmp_path / "figures"))
    assert drawn == [("ag", "figures/search_ag.png")] and [*(tmp_path / "figures").iterdir()] == [
        tmp_path / "figures" / "search_ag.png"
    ]
