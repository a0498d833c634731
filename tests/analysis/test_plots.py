"""Pictures of maps hold the numbers that they were given, for any number of layers, heads and tokens."""

import dataclasses

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure

from ag_jax.analysis import maps
from ag_jax.analysis.figures import canvas, plots
from ag_jax.attention.guidance import Assignment
from ag_jax.attention.patterns import PATTERNS
from ag_jax.viewer import encode
from tests import tiny
from tests.analysis import examples
from tests.analysis.examples import SECOND
from tests.cases import some

ASSIGNMENT = Assignment((("next", 1), ("period", 1)))


def shown(axes):
    """The numbers of the only image of a panel."""
    assert len(axes.images) == 1
    return np.asarray(axes.images[0].get_array())


def panels(figure):
    """Panels with an image, in the order of drawing; the colour bar is none."""
    return [axes for axes in figure.axes if axes.images]


def picture(path, wide=(300, 2600), high=(200, 4200)):
    """The size of a PNG that is not one colour."""
    assert path.suffix == ".png" and path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    pixels = matplotlib.image.imread(str(path))
    assert np.ptp(pixels[..., :3]) > 0.5
    assert wide[0] <= pixels.shape[1] <= wide[1] and high[0] <= pixels.shape[0] <= high[1], pixels.shape
    return pixels.shape[:2]


def test_overview_holds_every_map():
    attention = examples.sentence(layers=3, heads=5)
    figure = plots.draw_overview(attention, ASSIGNMENT)
    (axes,) = panels(figure)
    mosaic = shown(axes)
    pitch = (mosaic.shape[0] + 2) // 3
    for (layer, head), _ in np.ndenumerate(np.empty((3, 5))):
        top, left = layer * pitch, head * pitch
        tile = mosaic[top : top + 9, left : left + 9]
        np.testing.assert_array_equal(tile, attention.weights_NHQK[layer, head])
    assert np.isnan(np.ma.filled(axes.images[0].get_array(), np.nan)).sum() == mosaic.size - 15 * 81
    names = [label.get_text() for label in axes.get_xticklabels()]
    assert names == ["1\n[Next]", "2\n[Period]", "3\nfree", "4\nfree", "5\nfree"]
    frames = {patch.get_edgecolor() for patch in axes.patches}
    assert len(axes.patches) == 15 and len(frames) == 3


def test_thin_lines_of_a_long_sentence_survive():
    weights_QK = np.eye(23, k=1)
    cells = encode.largest(weights_QK, 5, 5)
    assert cells.shape == (5, 5)
    np.testing.assert_array_equal(np.diag(cells), [1, 1, 1, 1, 1])
    by_hand = [[weights_QK[5 * i : 5 * i + 5, 5 * j : 5 * j + 5].max() for j in range(5)] for i in range(5)]
    np.testing.assert_array_equal(cells, by_hand)
    np.testing.assert_array_equal(encode.largest(weights_QK, 1, 1), weights_QK)
    wide = [[weights_QK[7 * i : 7 * i + 7, 3 * j : 3 * j + 3].max() for j in range(8)] for i in range(4)]
    np.testing.assert_array_equal(encode.largest(weights_QK, 7, 3), wide)


def test_heads_beside_their_targets():
    attention = examples.sentence(layers=5, heads=7)
    figure = plots.draw_heads(attention, ASSIGNMENT, tiny.SPECIAL)
    drawn = panels(figure)
    assert len(drawn) == 2 * 4 + 2 * 3
    wanted = maps.targets(attention, tiny.SPECIAL, ["next", "period"])
    masses = maps.attention_mass(attention, tiny.SPECIAL, ASSIGNMENT)
    by_chance = maps.uniform_mass(attention, tiny.SPECIAL, ASSIGNMENT)
    for row, (head, name) in enumerate(((0, "next"), (1, "period"))):
        for column, layer in enumerate((0, 2, 4)):
            panel = drawn[4 * row + column]
            np.testing.assert_array_equal(shown(panel), attention.weights_NHQK[layer, head])
            mass, chance = f"{masses[name][layer, head]:.2f}", f"{by_chance[name][layer]:.2f}"
            assert (
                panel.get_title().split() == f"layer {layer + 1} {mass} on {maps.title(name)} (chance {chance})".split()
            )
        np.testing.assert_array_equal(shown(drawn[4 * row + 3]), wanted[name])
        assert drawn[4 * row + 3].get_title() == f"target {maps.title(name)}"
        assert drawn[4 * row].get_ylabel() == f"head {head + 1}"
        assert [label.get_text() for label in drawn[4 * row].get_yticklabels()] == list(attention.tokens)
    for row, head in enumerate((2, 3)):
        for column, layer in enumerate((0, 2, 4)):
            panel = drawn[8 + 3 * row + column]
            np.testing.assert_array_equal(shown(panel), attention.weights_NHQK[layer, head])
        assert drawn[8 + 3 * row].get_ylabel() == f"head {head + 1} (free)"


def test_pictures_of_a_model_of_which_some_layers_are_guided():
    """Heads of the other layers have no frame, and their titles name the pattern that explains them best."""
    attention, assignment = examples.sentence(layers=5, heads=4), Assignment((("next", 1), ("period", 1)), (1, 2, 4))
    plain, colour = Assignment(), dict(zip(PATTERNS, map(matplotlib.colors.to_rgba, canvas.PALETTE), strict=False))
    best_NH, _ = maps.strongest_pattern(attention, tiny.SPECIAL, plain)
    wanted = {(layer, head): name for layer in (1, 2, 4) for head, name in enumerate(("next", "period"))}

    def check(panel, layer, head):
        guide = wanted.get((layer, head))
        assert f" on {maps.title(guide or best_NH[layer, head])}" in panel.get_title()
        grey = matplotlib.colors.to_rgba("0.5")
        assert panel.spines["left"].get_edgecolor() == (colour[guide] if guide else grey)

    drawn = panels(plots.draw_heads(attention, assignment, tiny.SPECIAL, range(5)))
    for layer in range(5):
        for head in range(2):
            check(drawn[6 * head + layer], layer, head)
    places = [(0, 0), (1, 0), (3, 1), (4, 1)]
    for panel, place in zip(
        panels(plots.draw_chosen(attention, assignment, tiny.SPECIAL, places)), places, strict=True
    ):
        check(panel, *place)
        assert ("(free)" in panel.get_title()) == (place not in wanted)
    (overview,) = panels(plots.draw_overview(attention, assignment))
    frames = [patch.get_edgecolor() for patch in overview.patches]
    grey = matplotlib.colors.to_rgba("0.75")
    assert frames == [colour.get(wanted.get((layer, head)), grey) for layer in range(5) for head in range(4)]
    mass = panels(plots.draw_mass(attention, assignment, tiny.SPECIAL))[list(PATTERNS).index("period")]
    found = [(*patch.get_xy(), patch.get_width(), patch.get_height()) for patch in mass.patches]
    assert found == [(0.5, 0.5, 1, 2), (0.5, 3.5, 1, 1)]


def test_heads_of_hard_coded_attention():
    fixed = dataclasses.replace(examples.sentence(layers=1), is_fixed=True)
    drawn = panels(plots.draw_heads(fixed, Assignment((("next", 1),)), tiny.SPECIAL))
    assert [panel.get_ylabel() for panel in (drawn[0], *drawn[2:])] == ["head 1", "head 2 (fixed)", "head 3 (fixed)"]
    assert (
        "on [Next] (chance 0.11)" in drawn[0].get_title()
        and [panel.get_title() for panel in drawn[2:]] == ["layer 1"] * 2
    )
    (axes,) = panels(plots.draw_overview(fixed, Assignment()))
    assert axes.get_xticklabels()[2].get_text() == "3\nfixed"


def test_heads_of_chosen_layers():
    attention = examples.sentence(layers=5)
    drawn = panels(plots.draw_heads(attention, Assignment(), tiny.SPECIAL, layers=(3, 1)))
    assert len(drawn) == 4
    np.testing.assert_array_equal(shown(drawn[0]), attention.weights_NHQK[3, 0])
    np.testing.assert_array_equal(shown(drawn[3]), attention.weights_NHQK[1, 1])


def test_mass_and_the_strongest_pattern():
    attention = examples.sentence(layers=4, heads=3)
    figure = plots.draw_mass(attention, ASSIGNMENT, tiny.SPECIAL)
    drawn = panels(figure)
    masses = maps.attention_mass(attention, tiny.SPECIAL, ASSIGNMENT)
    by_chance = maps.uniform_mass(attention, tiny.SPECIAL, ASSIGNMENT)
    titles = [f"{maps.title(name)} (chance {100 * by_chance[name][0]:.0f} %)" for name in PATTERNS]
    assert [axes.get_title() for axes in drawn] == [*titles, "strongest pattern"]
    for axes, (name, mass_NH) in zip(drawn, masses.items(), strict=False):
        np.testing.assert_allclose(shown(axes), mass_NH)
        numbers = [text.get_text() for text in axes.texts]
        assert numbers == [f"{100 * mass:.0f}" for mass in mass_NH.ravel()]
        frames = [(patch.get_x(), patch.get_width(), patch.get_height()) for patch in axes.patches]
        assert frames == {"next": [(-0.5, 1, 4)], "period": [(0.5, 1, 4)]}.get(name, [])

    names_NH, best_NH = maps.strongest_pattern(attention, tiny.SPECIAL, ASSIGNMENT)
    colour = dict(zip(PATTERNS, canvas.PALETTE, strict=False))
    full = np.array([[matplotlib.colors.to_rgb(colour[name]) for name in names] for names in names_NH])
    above_NH = np.array(
        [
            [max(0, (mass - by_chance[name][0]) / (1 - by_chance[name][0])) for mass, name in zip(*row, strict=True)]
            for row in zip(best_NH, names_NH, strict=True)
        ]
    )
    assert (above_NH == 0).any() and above_NH.max() > 0.1
    np.testing.assert_allclose(shown(drawn[-1]), 1 - above_NH[..., None] * (1 - full), atol=1e-6)
    (legend,) = [axes.get_legend() for axes in figure.axes if axes.get_legend()]
    assert "white at chance" in legend.get_title().get_text()


def test_mass_of_an_absent_pattern_says_so():
    drawn = panels(plots.draw_mass(examples.sentence("we build"), Assignment(), tiny.SPECIAL))
    (period,) = [axes for axes in drawn if axes.get_title() == "[Period]"]
    assert [text.get_text() for text in period.texts] == ["points at nothing\nin this text"]


def test_patterns_are_the_targets():
    attention = examples.sentence()
    wanted = maps.targets(attention, tiny.SPECIAL, ["next", "prev", "first", "delim", "period", SECOND])
    drawn = panels(plots.draw_patterns(attention.tokens, wanted))
    titles = ["[Next]", "[Prev]", "[First]", "[Delim]", "[Period]", "[Second]"]
    assert [axes.get_title() for axes in drawn] == titles
    for axes, target_QK in zip(drawn, wanted.values(), strict=True):
        np.testing.assert_array_equal(shown(axes), target_QK)


def stages(count, **settings):
    return [(f"{stage} %", examples.sentence(seed=stage, **settings)) for stage in range(count)]


def test_maps_of_arms_during_training():
    columns = {"mlm": stages(3), "ag": stages(2, layers=4)}
    drawn = panels(plots.draw_maps(columns, 1, 2))
    by_title = {}
    for at, axes in enumerate(drawn):
        by_title.setdefault(axes.get_subplotspec().colspan.start, []).append((at, axes))
    assert [len(by_title[column]) for column in (0, 1)] == [3, 2]
    for column, arm in enumerate(columns):
        for (_, axes), (_, of_stage) in zip(by_title[column], columns[arm], strict=True):
            np.testing.assert_array_equal(shown(axes), of_stage.weights_NHQK[1, 2])
        assert by_title[column][0][1].get_title() == f"{arm}\nlayer 2, head 3"
    assert [axes.get_ylabel() for _, axes in by_title[0]] == ["0 %", "1 %", "2 %"]


def test_maps_of_several_heads_stand_side_by_side():
    columns = {"mlm": stages(1), "ag": stages(1)}
    drawn = panels(plots.draw_maps(columns, (0, 1), (2, 0)))
    where = ["layer 1, head 3"] * 2 + ["layer 2, head 1"] * 2
    assert [axes.get_title() for axes in drawn] == [
        f"{arm}\n{place}" for arm, place in zip(("mlm", "ag", "mlm", "ag"), where, strict=True)
    ]
    np.testing.assert_array_equal(shown(drawn[3]), columns["ag"][0][1].weights_NHQK[1, 0])


def test_an_arm_without_the_head_is_left_blank_but_not_all_arms():
    columns = {"deep": stages(2, layers=7), "flat": stages(2, layers=2)}
    assert len(panels(plots.draw_maps(columns, 5, 0))) == 2
    with pytest.raises(ValueError, match=r"no arm has the heads .*: the models have 2 layers of \d+ heads or 7 layers"):
        plots.draw_maps(columns, 7, 0)


MODELS = [
    (1, 1, ()),
    (4, 3, ()),
    (4, 2, (("next", 1), ("prev", 1))),
    (16, 16, (("next", 1), ("prev", 1), ("first", 6))),
    (3, 7, (("delim", 1), ("same", 2), (SECOND, 1))),
    (2, 8, tuple((name, 1) for name in (*PATTERNS, SECOND))),
]


@pytest.mark.parametrize(
    ("layers", "heads", "assignment"),
    some(MODELS, MODELS[0], MODELS[3]),
    ids=["one", "unguided", "all guided", "large", "outside", "many"],
)
def test_inspection_of_any_model(tmp_path, layers, heads, assignment):
    attention = examples.sentence(layers=layers, heads=heads)
    written = plots.save_inspection(attention, Assignment(assignment), tiny.SPECIAL, tmp_path / "new" / "figures", 120)
    names = [f"attention_{name}_step120.png" for name in ("overview", "heads", "mass")]
    assert [path.name for path in written] == names
    assert sorted(path.name for path in (tmp_path / "new" / "figures").iterdir()) == sorted(names)
    for path in written:
        picture(path)


def test_a_long_sentence_keeps_its_size_and_thins_its_labels(tmp_path):
    rng = np.random.default_rng(0)
    attention = examples.made_up([0, *rng.integers(4, 10, 509), 2], layers=2, heads=3)
    assert len(attention.tokens) == 511
    for path in plots.save_inspection(attention, ASSIGNMENT, tiny.SPECIAL, tmp_path, 1):
        picture(path)
    first = panels(plots.draw_heads(attention, ASSIGNMENT, tiny.SPECIAL))[0]
    labels = [label.get_text() for label in first.get_yticklabels()]
    assert 5 < len(labels) < 40
    assert labels[0] == "<s>  1" and all(
        int(label.split()[-1]) == 1 + at for label, at in zip(labels, first.get_yticks(), strict=True)
    )
    image = first.images[0]
    assert image.get_array().shape[0] < 300 and image.get_extent()[1] >= 510.5
    assert first.get_xlim() == (-0.5, 510.5) and first.get_ylim() == (510.5, -0.5)


def test_labels_that_are_hard_to_draw(tmp_path):
    odd = ("<s>", "$a_1$", "$", "_x_", "▁état", "中文", "🥁", "a\nb\t", "\x00", "", " ", "\\frac{", "x" * 60, "</s>")
    attention = examples.made_up(range(len(odd)))
    target = maps.targets(attention, tiny.SPECIAL, ["next"])
    figure = plots.draw_patterns(odd, target)
    labels = [label.get_text() for label in panels(figure)[0].get_yticklabels()]
    expected = ["<s>", "$a_1$", "$", "_x_", "·état", "□□", "□", "a□b□", "□", "", " ", "\\frac{", "x" * 13 + "…", "</s>"]
    assert labels == expected
    picture(plots.save(figure, tmp_path / "odd.png"))


def test_functions_write_what_they_draw(tmp_path):
    attention = examples.sentence()
    target = maps.targets(attention, tiny.SPECIAL, ["next", "prev"])
    assert plots.pattern_figure(attention.tokens, target, tmp_path / "a" / "p.png") == tmp_path / "a" / "p.png"
    picture(tmp_path / "a" / "p.png")
    path = plots.map_figure({"mlm $": stages(3), "ag_": stages(3)}, 0, 0, str(tmp_path / "m.png"))
    assert path.name == "m.png"
    picture(path)


def pair_of(source, target, **settings):
    """Random maps of a pair with these numbers of tokens on its two sides."""
    rng = np.random.default_rng(0)
    words = [*rng.integers(4, 10, source - 1), 2], rng.integers(4, 10, target - 1)
    return examples.made_up_pair(*words, **settings)


def test_overview_of_rectangular_maps():
    cross = pair_of(11, 4).cross
    (axes,) = panels(plots.draw_overview(cross, Assignment((("first", 1), ("diagonal", 1)))))
    mosaic = np.ma.filled(axes.images[0].get_array(), np.nan)
    high, wide = (mosaic.shape[0] + 2) // 3, (mosaic.shape[1] + 3) // 3
    assert high > 4 and wide > 11 and np.isnan(mosaic).sum() == mosaic.size - 9 * 44
    for (layer, head), _ in np.ndenumerate(np.empty((3, 3))):
        tile = mosaic[layer * high : layer * high + 4, head * wide : head * wide + 11]
        np.testing.assert_array_equal(tile, cross.weights_NHQK[layer, head])
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1\n[First]", "2\n[Diagonal]", "3\nfree"]
    colours = [canvas.PALETTE[2], canvas.PALETTE[6], "0.75"]
    assert [patch.get_edgecolor() for patch in axes.patches] == [*map(matplotlib.colors.to_rgba, colours)] * 3
    # Frames lie around the tiles, on both axes.
    for number, patch in enumerate(axes.patches):
        left, top = number % 3 * wide - 0.5, number // 3 * high - 0.5
        assert patch.get_x() < left < left + 11 < patch.get_x() + patch.get_width() < left + wide
        assert patch.get_y() < top < top + 4 < patch.get_y() + patch.get_height() < top + high


def test_heads_of_a_decoder_and_of_cross_attention():
    found, counts = pair_of(11, 4, heads=4), ((("first", 1), ("period", 1)), (("diagonal", 1), ("delim", 2)))
    for attention, assignment in zip(found[1:], map(Assignment, counts), strict=True):
        figure = plots.draw_heads(attention, assignment, tiny.SPECIAL)
        drawn = panels(figure)
        names, owners = assignment.names, assignment.of_layer(4)
        wanted = maps.targets(attention, tiny.SPECIAL, names)
        masses = maps.attention_mass(attention, tiny.SPECIAL, assignment)
        for row, name in enumerate(names):
            colour = dict(zip([*PATTERNS, "diagonal"], canvas.PALETTE, strict=False))[name]
            for layer, panel in enumerate(drawn[4 * row : 4 * row + 3]):
                head = owners.index(name)
                np.testing.assert_array_equal(shown(panel), attention.weights_NHQK[layer, head])
                assert f"\n{masses[name][layer, head]:.2f} on {maps.title(name)}" in panel.get_title()
            np.testing.assert_array_equal(shown(drawn[4 * row + 3]), wanted[name])
            for panel in drawn[4 * row : 4 * row + 4]:
                assert panel.spines["left"].get_edgecolor() == matplotlib.colors.to_rgba(colour)
        for panel in drawn[8:]:
            assert panel.spines["left"].get_edgecolor() == matplotlib.colors.to_rgba("0.5")
        assert [label.get_text() for label in drawn[0].get_yticklabels()] == list(attention.row_tokens)
        for panel in (drawn[-1], drawn[7]):  # the lowest map of a layer, and of the targets
            assert [label.get_text() for label in panel.get_xticklabels()] == list(attention.tokens)
        assert drawn[0].get_xticklabels() == [] and drawn[1].get_yticklabels() == []
        said = figure.get_suptitle()
        assert (
            said.startswith(maps.KINDS[attention.kind].title) and "row: the token that looks, which the decoder" in said
        )


def test_cells_are_square_unless_a_side_is_short():
    assert canvas.map_size(5, 10, 4.0) == (4.0, 2.0) and canvas.map_size(7, 7, 1.5) == (1.5, 1.5)
    assert canvas.map_size(40, 3, 4.0) == (canvas.NARROWEST, 4.0)
    for one in pair_of(6, 30):
        panel = panels(plots.draw_heads(one, Assignment(), tiny.SPECIAL))[0]
        queries, keys = one.weights_NHQK.shape[2:]
        # The height of the drawn panel by its width: that of its tokens, or more where the shorter side is widened.
        ratio = panel.get_aspect() * queries / keys
        assert ratio == pytest.approx(1.0) if one.kind != "cross" else 1 < ratio < queries / keys


@pytest.mark.exhaustive
@pytest.mark.parametrize(("source", "target"), some([(40, 36), (30, 1), (200, 7)], (30, 1)))
def test_pairs_of_any_length(tmp_path, source, target):
    """Up to 40 tokens all labels are drawn; more are thinned, each side by itself."""
    for one in pair_of(source, target, layers=(1, 2), heads=2)[1:]:
        figure = plots.draw_heads(one, Assignment(((SECOND, 1),)), tiny.SPECIAL)
        drawn = panels(figure)
        for tokens, labels in (
            (one.row_tokens, drawn[0].get_yticklabels()),
            (one.tokens, drawn[-1].get_xticklabels()),
        ):
            assert len(labels) == len(tokens) if len(tokens) <= 40 else 10 < len(labels) < 60
        picture(plots.save(figure, tmp_path / "heads.png"), high=(150, 4000))
        picture(plots.save(plots.draw_overview(one, Assignment()), tmp_path / "overview.png"), high=(150, 4000))


def test_means_of_arms_side_by_side(tmp_path):
    arms = {name: pair_of(7, 5, layers=(2, layers), seed=layers).cross for name, layers in (("base", 3), ("$ag", 2))}
    figure = plots.draw_means(arms)
    drawn = panels(figure)
    for panel, (name, one) in zip(drawn, arms.items(), strict=True):
        np.testing.assert_allclose(shown(panel), one.weights_NHQK[-1].mean(0))
        assert panel.get_title() == f"{name}: layer {len(one.weights_NHQK)}"
    assert [label.get_text() for label in drawn[0].get_yticklabels()] == list(arms["base"].row_tokens)
    assert [label.get_text() for label in drawn[1].get_xticklabels()] == list(arms["base"].tokens)
    picture(plots.mean_figure(arms, tmp_path / "means.png"))
    several = {str(number): arms["base"] for number in range(4)}  # in two rows
    picture(plots.mean_figure(several, tmp_path / "several.png"))


def texts_of(figure):
    """Titles of panels, labels of axes and of colour bars, and the caption."""
    bars = [text for axes in figure.axes for text in (axes.get_xlabel(), axes.get_ylabel())]
    inner = [child.get_xlabel() for axes in figure.axes for child in axes.child_axes]
    return "\n".join([figure.get_suptitle(), *bars, *inner])


def test_every_picture_of_maps_names_its_model_its_step_its_sentence_and_its_axes():
    told = {"text": "we build roads, $5_$", "model": "runs/ag-seed0, step 1,100"}
    attention = dataclasses.replace(examples.sentence(layers=3, heads=3), **told)
    target = maps.targets(attention, tiny.SPECIAL, ["next"])
    figures = {
        "overview": plots.draw_overview(attention, ASSIGNMENT),
        "heads": plots.draw_heads(attention, ASSIGNMENT, tiny.SPECIAL),
        "chosen": plots.draw_chosen(attention, ASSIGNMENT, tiny.SPECIAL, ((2, 1),)),
        "mass": plots.draw_mass(attention, ASSIGNMENT, tiny.SPECIAL),
        "attack": plots.draw_attack(attention, attention, ASSIGNMENT),
        "during": plots.draw_maps({"ag": [("step 7", attention)]}, 0, 0, told["model"]),
        "means": plots.draw_means({"ag": attention}, told["model"]),
        "patterns": plots.draw_patterns(attention.tokens, target, told["text"]),
    }
    for name, figure in figures.items():
        said = texts_of(figure)
        assert told["text"] in said, name
        assert name == "patterns" or told["model"] in said, name
        if name != "mass":
            assert "row: the token that looks, column: the token looked at" in said and "not linear" in said, name
    without = texts_of(plots.draw_overview(examples.sentence("we build"), Assignment()))
    assert without.startswith("Encoder\n<s> we build </s>\nrow: ")


def test_chosen_heads():
    attention = examples.sentence(layers=5, heads=4)
    drawn = panels(plots.draw_chosen(attention, ASSIGNMENT, tiny.SPECIAL, ((4, 0), (1, 3))))
    found = maps.measured(attention, tiny.SPECIAL, ASSIGNMENT)
    names_NH, best_NH = maps.strongest_pattern(attention, tiny.SPECIAL, ASSIGNMENT)
    for panel, (layer, head), kind, name, mass in zip(
        drawn,
        ((4, 0), (1, 3)),
        ("", " (free)"),
        ("next", names_NH[1, 3]),
        (found["next"].mass_NH[4, 0], best_NH[1, 3]),
        strict=True,
    ):
        np.testing.assert_array_equal(shown(panel), attention.weights_NHQK[layer, head])
        first, second = panel.get_title().split("\n")
        assert first == f"layer {layer + 1}, head {head + 1}{kind}"
        assert second == f"{mass:.2f} on {maps.title(name)} (chance {found[name].chance_N[0]:.2f})"
    assert drawn[0].spines["left"].get_edgecolor() == matplotlib.colors.to_rgba(canvas.PALETTE[0])


@pytest.mark.parametrize("count", range(1, 9))
def test_no_panel_is_empty(count):
    """A place without a map holds the colour bar, and there is never more than one column of such places."""
    attention = examples.sentence(layers=2, heads=9)
    names = [*PATTERNS, SECOND, "tests.analysis.examples.second"][:count]
    wanted = {f"{name}{at}": maps.targets(attention, tiny.SPECIAL, [name])[name] for at, name in enumerate(names)}
    heads = tuple((at % 2, at % 9) for at in range(count))
    figures = [
        plots.draw_patterns(attention.tokens, wanted),
        plots.draw_chosen(attention, Assignment(), tiny.SPECIAL, heads),
        plots.draw_means({str(at): attention for at in range(count)}),
    ]
    for figure in figures:
        empty = [axes for axes in figure.axes if axes.axison and not axes.images and not axes.collections]
        assert not [axes for axes in empty if axes.get_label() != "<colorbar>"]
        spare = [axes for axes in figure.axes if not axes.axison]
        assert sum(len(axes.child_axes) for axes in spare) == (1 if spare else 0) and len(spare) <= 2
        if spare:  # in an incomplete grid, all maps have labels below
            assert all(len(axes.get_xticklabels()) for axes in panels(figure))
    attention = examples.sentence(layers=2, heads=count)
    figure = plots.draw_heads(attention, Assignment((("next", 1),)), tiny.SPECIAL)
    spare = [axes for axes in figure.axes if not axes.axison]
    assert [len(axes.child_axes) for axes in spare] == [1, 0][: len(spare)] and len(spare) == min(count - 1, 2)


def overlaps(figure):
    """Pairs of titles of panels, and the caption, that touch on paper."""
    figure.draw_without_rendering()
    written = [figure._suptitle, *(axes.title for axes in panels(figure))]
    boxes = [(text.get_text(), text.get_window_extent()) for text in written]
    pairs = [(one, two) for at, one in enumerate(boxes) for two in boxes[:at]]
    return [(one[0], two[0]) for one, two in pairs if one[1].overlaps(two[1])]


def test_titles_of_twelve_layers_do_not_touch():
    attention = examples.sentence(layers=12, heads=12)
    every = Assignment((("first", 4), ("delim", 2), (SECOND, 1)))
    wide = plots.draw_heads(attention, every, tiny.SPECIAL, range(12))
    assert not overlaps(wide) and wide.get_figwidth() < 24
    heads = tuple((at, at) for at in range(5))
    assert not overlaps(plots.draw_chosen(attention, every, tiny.SPECIAL, heads))


def test_text_is_broken_to_a_width():
    assert canvas.wrapped("one two three", 9, 8.5) == "one two three"
    assert canvas.wrapped(" one\n two  three ", 0.6, 8.5, 3) == "one two\nthree"
    assert canvas.wrapped("one two three", 0.6, 8.5, 1) == "one two…"
    assert canvas.wrapped(("0.04 on [Next]", "(chance 0.03)"), 1.5, 8.5) == "0.04 on [Next]\n(chance 0.03)"
    long = canvas.wrapped("x" * 300, 1.0, 8.5)
    assert long.endswith("x…") and len(long) < 30
    assert canvas.wrapped("ab " + "x" * 300, 0.01, 8.5, 2) == "a…\nx…", "the first character always stays"
    assert canvas.wrapped("\x00 中文", 9, 8.5) == "□ □□" and canvas.wrapped("", 9, 8.5) == ""


def test_a_long_text_without_spaces_is_measured_a_few_times(monkeypatch):
    measured, measure = [], canvas.text_to_path.get_text_width_height_descent

    def counted(line, *arguments, **more):
        measured.append(len(line))
        return measure(line, *arguments, **more)

    monkeypatch.setattr(canvas.text_to_path, "get_text_width_height_descent", counted)
    line = canvas.wrapped("abc" * 200, 2.0, 8.5)
    widths = [
        measure(text, canvas.font_manager.FontProperties(size=8.5), ismath=False)[0]
        for text in (line, f"{line[:-1]}{('abc' * 200)[len(line) - 1]}…")
    ]
    assert widths[0] <= 2 * 72 < widths[1], "one character more does not fit"
    assert len(measured) < 20


def test_a_caption_has_two_lines_of_a_text_with_many():
    figure = Figure(figsize=(6, 4))
    canvas.caption(figure, "A line.\n" * 200, "", "Another text.")
    lines = figure.get_suptitle().split("\n")
    assert len(lines) == 3 and lines[1].endswith("…") and lines[2] == "Another text."
