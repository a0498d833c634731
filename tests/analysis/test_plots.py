"""Pictures of maps hold the numbers that they were given, for any number of layers, heads and tokens."""

import dataclasses

import matplotlib.image
import numpy as np
import pytest

from ag_jax.analysis import maps
from ag_jax.analysis.figures import canvas, plots
from ag_jax.attention.assignment import Assignment
from ag_jax.attention.patterns import PATTERNS
from ag_jax.viewer import encode
from tests import tiny
from tests.analysis import examples
from tests.analysis.examples import SECOND

ASSIGNMENT = Assignment((("next", 1), ("period", 1)))
COLOURS = dict(zip([*PATTERNS, "diagonal"], map(matplotlib.colors.to_rgba, canvas.PALETTE), strict=False))


def shown(axes):
    """The numbers of the only image of a panel."""
    assert len(axes.images) == 1
    return np.asarray(axes.images[0].get_array())


def panels(figure):
    """Panels with an image, in the order of drawing; the colour bar is none."""
    return [axes for axes in figure.axes if axes.images]


def labels(ticks):
    return [label.get_text() for label in ticks]


def picture(path):
    """Check that a PNG is not one colour, and neither tiny nor huge."""
    assert path.suffix == ".png" and path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    pixels = matplotlib.image.imread(str(path))
    assert np.ptp(pixels[..., :3]) > 0.5
    assert 200 <= pixels.shape[0] <= 4200 and 300 <= pixels.shape[1] <= 2600, pixels.shape


def pair_of(source, target, **settings):
    """Random maps of a pair with these numbers of tokens on its two sides."""
    rng = np.random.default_rng(0)
    words = [*rng.integers(4, 10, source - 1), 2], rng.integers(4, 10, target - 1)
    return examples.made_up_pair(*words, **settings)


def test_overview_holds_every_map():
    """The maps are rectangular; a frame around each tile has its pattern's colour."""
    cross = pair_of(11, 4).cross
    (axes,) = panels(plots.draw_overview(cross, Assignment((("first", 1), ("diagonal", 1)))))
    mosaic = np.ma.filled(axes.images[0].get_array(), np.nan)
    high, wide = (mosaic.shape[0] + 2) // 3, (mosaic.shape[1] + 3) // 3
    assert high > 4 and wide > 11 and np.isnan(mosaic).sum() == mosaic.size - 9 * 44
    for layer, head in np.ndindex(3, 3):
        tile = mosaic[layer * high : layer * high + 4, head * wide : head * wide + 11]
        np.testing.assert_array_equal(tile, cross.weights_NHQK[layer, head])
    assert labels(axes.get_xticklabels()) == ["0\n[First]", "1\n[Diagonal]", "2\nfree"]
    colours = [COLOURS["first"], COLOURS["diagonal"], matplotlib.colors.to_rgba("0.75")]
    assert [patch.get_edgecolor() for patch in axes.patches] == colours * 3
    for number, patch in enumerate(axes.patches):
        left, top = number % 3 * wide - 0.5, number // 3 * high - 0.5
        assert patch.get_x() < left < left + 11 < patch.get_x() + patch.get_width() < left + wide
        assert patch.get_y() < top < top + 4 < patch.get_y() + patch.get_height() < top + high


def test_thin_lines_of_a_long_sentence_survive():
    weights_QK = np.eye(23, k=1)
    np.testing.assert_array_equal(encode.largest(weights_QK, 1, 1), weights_QK)
    for high, wide in ((5, 5), (7, 3)):
        by_hand = [
            [weights_QK[at : at + high, left : left + wide].max() for left in range(0, 23, wide)]
            for at in range(0, 23, high)
        ]
        np.testing.assert_array_equal(encode.largest(weights_QK, high, wide), by_hand)


@pytest.mark.parametrize(
    ("kind", "counts"),
    [
        ("encoder", (("next", 1), ("period", 1))),
        ("decoder", (("first", 1), ("period", 1))),
        ("cross", (("diagonal", 1), ("delim", 2))),
    ],
)
def test_heads_beside_their_targets(kind, counts):
    attention = getattr(pair_of(9, 5, layers=(5, 5), heads=7), kind)
    assignment = Assignment(counts)
    drawn = panels(plots.draw_heads(attention, assignment, tiny.SPECIAL))
    assert len(drawn) == 2 * 3 + 2
    names, owners = assignment.names, assignment.of_layer(7)
    wanted, found = (
        of(attention, tiny.SPECIAL, which) for of, which in ((maps.targets, names), (maps.measured, assignment))
    )
    for row, name in enumerate(names):
        head, of_row = owners.index(name), drawn[3 * row : 3 * row + 3]
        for layer, panel in zip((0, 4), of_row, strict=False):
            np.testing.assert_array_equal(shown(panel), attention.weights_NHQK[layer, head])
            title = f"layer {layer} " * (row == 0) + f"{found[name].mass_NH[layer, head]:.2f} on {maps.title(name)}"
            assert panel.get_title().split() == title.split()
        np.testing.assert_array_equal(shown(of_row[2]), wanted[name])
        assert of_row[2].get_title() == f"target (chance {found[name].chance_N[0]:.2f})"
        assert of_row[0].get_ylabel() == f"head {head}"
        assert {panel.spines["left"].get_edgecolor() for panel in of_row} == {COLOURS[name]}
    for layer, panel in zip((0, 4), drawn[6:], strict=True):
        np.testing.assert_array_equal(shown(panel), attention.weights_NHQK[layer, owners.index(None)])
    assert drawn[6].get_ylabel() == f"head {owners.index(None)} (free)\n{maps.KINDS[kind].row}"
    assert labels(drawn[0].get_yticklabels()) == list(attention.row_tokens)
    assert labels(drawn[-1].get_xticklabels()) == list(attention.tokens)
    assert drawn[0].get_xticklabels() == [] and drawn[1].get_yticklabels() == []


def test_heads_of_a_column_of_pointers_have_no_target_beside_them():
    """A text alone has no pointers."""
    attention = pair_of(9, 5, layers=(5, 5), heads=7).encoder
    drawn = panels(plots.draw_heads(attention, Assignment((("head", 1), ("next", 1))), tiny.SPECIAL))
    assert [panel.get_title().startswith("target") for panel in drawn] == [False] * 4 + [True] + [False] * 2
    np.testing.assert_array_equal(shown(drawn[0]), attention.weights_NHQK[0, 0])


def test_heads_during_training_beside_those_of_another_model():
    """The other model's maps are measured by the same patterns, and framed by its own."""
    stages = [(f"ag, step {step}", examples.sentence(layers=3, seed=step), ASSIGNMENT) for step in (0, 7)]
    stages.append(("other, step 7", examples.sentence(layers=3, seed=5), Assignment((("head", 1),))))
    colours = {name: matplotlib.colors.to_rgba(colour) for name, colour in canvas.colours([*PATTERNS, "head"]).items()}
    drawn = panels(plots.draw_training(stages, tiny.SPECIAL, 1))
    assert len(drawn) == 2 * 4 + 3
    for row, (head, name) in enumerate(((0, "next"), (1, "period"), (2, None))):
        for panel, (label, attention, assignment) in zip(drawn[4 * row :], stages, strict=False):
            np.testing.assert_array_equal(shown(panel), attention.weights_NHQK[1, head])
            guide = assignment.of_layer(3)[head]
            framed = colours[guide] if guide else matplotlib.colors.to_rgba("0.5")
            assert panel.spines["left"].get_edgecolor() == framed
            mass = name and maps.attention_mass(attention, tiny.SPECIAL, assignment)[name][1, head]
            title = [*[label] * (row == 0), *([f"{mass:.2f} on {maps.title(name)}"] if name else [])]
            assert panel.get_title() == "\n".join(title)


def test_free_heads_have_a_pattern_only_clearly_above_chance():
    attention = examples.sentence(layers=1, heads=3)
    uniform_QK, first_QK = np.full((9, 9), 1 / 9), np.eye(1, 9)
    masses = [1 / 9 + share * (1 - 1 / 9) for share in (0, 0.19, 0.21)]
    weights_HQK = [uniform_QK + (mass - 1 / 9) / (1 - 1 / 9) * (first_QK - uniform_QK) for mass in masses]
    near = dataclasses.replace(attention, weights_NHQK=np.array([weights_HQK], np.float32))
    drawn = panels(plots.draw_chosen(near, Assignment(), tiny.SPECIAL, ((0, 0), (0, 1), (0, 2))))
    assert [panel.get_title().partition("\n")[2] for panel in drawn] == [
        "",
        "",
        f"{masses[2]:.2f} on [First] (chance 0.11)",
    ]
    assert [panel.get_title().partition("\n")[0] for panel in drawn] == [f"layer 0, head {head}" for head in range(3)]


def test_pictures_of_a_model_of_which_some_layers_are_guided():
    """Heads of the other layers have no frame and are free."""
    attention, assignment = examples.sentence(layers=5, heads=4), Assignment((("next", 1), ("period", 1)), (1, 2, 4))
    found = maps.measured(attention, tiny.SPECIAL, assignment)
    wanted = {(layer, head): name for layer in (1, 2, 4) for head, name in enumerate(("next", "period"))}
    places = [(0, 0), (1, 0), (3, 1), (4, 1)]
    drawn = panels(plots.draw_chosen(attention, assignment, tiny.SPECIAL, places))
    for panel, place in zip(drawn, places, strict=True):
        np.testing.assert_array_equal(shown(panel), attention.weights_NHQK[place])
        guide = wanted.get(place)
        title = [f"layer {place[0]}, head {place[1]}{'' if guide else ' (free)'}"]
        if guide:
            mass, chance = found[guide].mass_NH[place], found[guide].chance_N[place[0]]
            title.append(f"{mass:.2f} on {maps.title(guide)} (chance {chance:.2f})")
        assert panel.get_title() == "\n".join(title)
        assert panel.spines["left"].get_edgecolor() == COLOURS.get(guide, matplotlib.colors.to_rgba("0.5"))
    (overview,) = panels(plots.draw_overview(attention, assignment))
    grey = matplotlib.colors.to_rgba("0.75")
    frames = [COLOURS.get(wanted.get(place), grey) for place in np.ndindex(5, 4)]
    assert [patch.get_edgecolor() for patch in overview.patches] == frames
    drawn = panels(plots.draw_heads(attention, Assignment(), tiny.SPECIAL, layers=(3, 1)))
    assert len(drawn) == 4
    for panel, place in zip(drawn, ((3, 0), (1, 0), (3, 1), (1, 1)), strict=True):
        np.testing.assert_array_equal(shown(panel), attention.weights_NHQK[place])


def test_mass_and_the_strongest_pattern():
    attention = examples.sentence("we build roads we build roads we", layers=4, heads=3)
    assignment = Assignment((("next", 1), ("same", 1)), (0, 1, 3))
    figure = plots.draw_mass(attention, assignment, tiny.SPECIAL)
    drawn = panels(figure)
    found = maps.measured(attention, tiny.SPECIAL, assignment)
    titles = [
        f"{maps.title(name)} (chance {100 * of.chance_N[0]:.0f} %)" for name, of in found.items() if name != "period"
    ]
    assert [axes.get_title() for axes in drawn if axes.get_title() != "[Period]"] == [*titles, "strongest pattern"]
    for axes, (name, of) in zip(drawn, found.items(), strict=False):
        numbers = [text.get_text() for text in axes.texts]
        frames = [(*patch.get_xy(), patch.get_width(), patch.get_height()) for patch in axes.patches]
        if name == "period":
            assert len(numbers) == 1 and not frames, "the text has none"
            continue
        np.testing.assert_allclose(shown(axes), of.mass_NH)
        assert numbers == [f"{100 * mass:.0f}" for mass in of.mass_NH.ravel()]
        left = {"next": -0.5, "same": 0.5}.get(name)
        assert frames == ([] if left is None else [(left, -0.5, 1, 2), (left, 2.5, 1, 1)])

    names_NH, best_NH = maps.strongest_pattern(attention, tiny.SPECIAL, assignment)
    for place in np.ndindex(4, 3):
        chance = found[names_NH[place]].chance_N[0]
        above = max(0, (best_NH[place] - chance) / (1 - chance))  # white at chance
        colour = 1 - above * (1 - np.array(COLOURS[names_NH[place]][:3]))
        np.testing.assert_allclose(shown(drawn[-1])[place], colour, atol=1e-6)


def test_patterns_are_the_targets():
    attention = examples.sentence()
    wanted = maps.targets(attention, tiny.SPECIAL, ["next", "prev", "first", "delim", "period", SECOND])
    drawn = panels(plots.draw_patterns(attention.tokens, wanted))
    assert [axes.get_title() for axes in drawn] == ["[Next]", "[Prev]", "[First]", "[Delim]", "[Period]", "[Second]"]
    for axes, target_QK in zip(drawn, wanted.values(), strict=True):
        np.testing.assert_array_equal(shown(axes), target_QK)


def stages(count, **settings):
    return [(f"{stage} %", examples.sentence(seed=stage, **settings)) for stage in range(count)]


def test_maps_of_arms_during_training():
    """Several heads stand side by side; the place of an arm that lacks one is blank."""
    columns = {"plain": stages(3), "ag": stages(2, layers=4)}
    drawn = panels(plots.draw_maps(columns, (1, 3), (2, 0)))
    expected = [("plain", 1, 2), ("ag", 1, 2), ("ag", 3, 0)]
    by_column = {}
    for axes in drawn:
        by_column.setdefault(axes.get_subplotspec().colspan.start, []).append(axes)
    assert sorted(by_column) == [0, 1, 3]
    for column, (arm, layer, head) in zip(sorted(by_column), expected, strict=True):
        for axes, (_, of_stage) in zip(by_column[column], columns[arm], strict=True):
            np.testing.assert_array_equal(shown(axes), of_stage.weights_NHQK[layer, head])
        assert by_column[column][0].get_title() == f"{arm}\nlayer {layer}, head {head}"
    assert [axes.get_ylabel() for axes in by_column[0]] == ["0 %", "1 %", "2 %\ntoken that looks"]
    with pytest.raises(ValueError, match=r"2 layers of 3 heads or 4 layers"):
        plots.draw_maps(columns, 7, 0)


def test_labels_that_are_hard_to_draw(tmp_path):
    odd = ("<s>", "$a_1$", "$", "_x_", "▁état", "中文", "🥁", "a\nb\t", "\x00", "", " ", "\\frac{", "x" * 60, "</s>")
    figure = plots.draw_patterns(odd, {"next": np.eye(len(odd), k=1)})
    expected = ["<s>", "$a_1$", "$", "_x_", "␣état", "□□", "□", "a□b□", "□", "", " ", "\\frac{", "x" * 13 + "…", "</s>"]
    assert labels(panels(figure)[0].get_yticklabels()) == expected
    picture(plots.save(figure, tmp_path / "odd.png"))


def test_means_of_arms_side_by_side():
    arms = {name: pair_of(7, 5, layers=(2, layers), seed=layers).cross for name, layers in (("base", 3), ("$ag", 2))}
    drawn = panels(plots.draw_means(arms))
    for panel, (name, one) in zip(drawn, arms.items(), strict=True):
        np.testing.assert_allclose(shown(panel), one.weights_NHQK[-1].mean(0))
        assert panel.get_title() == f"{name}: layer {len(one.weights_NHQK) - 1}"
    assert labels(drawn[0].get_yticklabels()) == list(arms["base"].row_tokens)
    assert labels(drawn[1].get_xticklabels()) == list(arms["base"].tokens)


def test_every_picture_is_written_and_names_its_model_its_sentence_and_its_axes(tmp_path):
    told = {"text": "we build roads, $5_$", "model": "runs/ag-seed0, step 1,100"}
    attention = dataclasses.replace(examples.sentence(), **told)
    target = maps.targets(attention, tiny.SPECIAL, ["next"])
    figures = [
        plots.draw_overview(attention, ASSIGNMENT),
        plots.draw_heads(attention, ASSIGNMENT, tiny.SPECIAL),
        plots.draw_chosen(attention, ASSIGNMENT, tiny.SPECIAL, ((1, 1),)),
        plots.draw_attack(attention, attention, ASSIGNMENT),
        plots.draw_maps({"ag": [("step 7", attention)]}, 0, 0, told["model"]),
        plots.draw_means({"ag": attention}, told["model"]),
        plots.draw_patterns(attention.tokens, target, told["text"]),
    ]
    for figure in figures:
        said = figure.get_suptitle()
        assert told["text"] in said and (figure is figures[-1] or told["model"] in said) and said.count("\n") == 1
        axes = [text for axes in figure.axes for text in (axes.get_ylabel(), axes.get_xlabel())]
        words = "".join([*axes, figure.get_supxlabel()])
        assert words.index("token that looks") < words.index("token looked at")
    written = plots.save_inspection(
        examples.sentence(layers=1, heads=1),
        Assignment(((SECOND, 1),)),
        tiny.SPECIAL,
        tmp_path / "new" / "figures",
        120,
    )
    assert [path.name for path in written] == [f"attention_{of}_step120.png" for of in ("overview", "heads", "mass")]
    for path in written:
        picture(path)
    picture(plots.save(plots.draw_maps({"plain $": stages(1), "ag_": stages(1)}, 0, 0), str(tmp_path / "m.png")))
