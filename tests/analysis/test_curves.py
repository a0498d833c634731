"""Curves of training go through the numbers of the rows, and through their means over the seeds."""

import math

import numpy as np

from ag_jax.analysis.figures import learning, plots
from ag_jax.analysis.figures.curves import Plateau, measures_of, same_tokens
from tests.analysis.test_plots import picture


def row(step, loss, split="train", **values):
    return {"step": step, "split": split, "tokens_seen": 100 * step + 7, "mlm_loss": loss, **values}


PLAIN = [row(10, 8.0), row(20, 6.0), row(20, 6.5, "validation"), row(30, 5.0)]
GUIDED = [
    [
        row(10, 7.0, ag_loss=0.5),
        row(20, 4.0, ag_loss=0.25),
        row(20, 5.0, "validation", ag_loss=0.2),
        row(30, 3.0, ag_loss=0.0),
    ],
    [row(10, 9.0, ag_loss=0.7), row(20, 5.0, ag_loss=0.35), row(20, 6.0, "validation", ag_loss=0.2)],
]


def lines(axes):
    """(x, y, is the thick line of an arm) of each line; dots are left out."""
    return [
        (*(np.asarray(data).tolist() for data in line.get_data()), line.get_linewidth() > 1)
        for line in axes.lines
        if line.get_linestyle() != "None"
    ]


def dots(axes):
    return [
        (*line.get_xdata(), *line.get_ydata(), line.get_color())
        for line in axes.lines
        if line.get_linestyle() == "None"
    ]


def test_seeds_and_their_mean_where_all_of_them_are():
    figure = plots.draw_losses({"plain": [PLAIN], "ag": GUIDED})
    loss, guidance = figure.axes
    assert lines(loss) == [
        ([10, 20, 30], [8.0, 6.0, 5.0], True),
        ([10, 20, 30], [7.0, 4.0, 3.0], False),
        ([10, 20], [9.0, 5.0], False),
        ([10, 20], [8.0, 4.5], True),
    ]
    thick = [line.get_color() for line in loss.lines if line.get_linewidth() > 1 and line.get_linestyle() != "None"]
    assert dots(loss) == [(20, 6.5, thick[0]), (20, 5.5, thick[1])] and thick[0] != thick[1]
    (mean,) = [(x, y) for x, y, is_thick in lines(guidance) if is_thick and x]
    assert mean[0] == [10, 20]
    np.testing.assert_allclose(mean[1], [0.6, 0.3])
    names = [text.get_text() for text in loss.get_legend().get_texts()]
    assert names == ["plain", "ag (mean of 2 seeds)", "validation"]
    assert guidance.get_ylim()[0] == 0
    # Over tokens, seeds meet at their steps; rows without a value are left out.
    other = [{**one, "tokens_seen": one["tokens_seen"] + 10} for one in PLAIN]
    rows = [PLAIN[0], row(11, None), {"step": 12, "split": "train", "tokens_seen": 1}, *PLAIN[1:]]
    (axes,) = plots.draw_losses({"plain": [rows, other]}, x="tokens_seen").axes
    assert lines(axes)[-1] == ([1012, 2012, 3012], [8.0, 6.0, 5.0], True)
    assert axes.get_xlabel() == "training tokens seen"


def masses(steps, layers, patterns=("next", "my.second")):
    return [
        row(step, 1.0, **{f"mass/{name}": [step / 100 + layer / 10 for layer in range(layers)] for name in patterns})
        for step in steps
    ]


def drawn(figure):
    """(title, mesh) of each panel but the colour bar."""
    return {axes.get_title(): axes.collections[0] for axes in figure.axes if axes.get_title()}


def test_masses_over_layers_and_steps():
    rows = masses((5, 10, 30), 3)
    rows.insert(1, {**rows[0], "split": "validation", "step": 7})
    rows[2]["mass/next"] = [None, 0.5, None]
    figure = plots.draw_masses({"plain": PLAIN, "ag": rows})
    panels = drawn(figure)
    assert " ag " in figure.get_suptitle(), "the only guided arm is named once"
    figure.draw_without_rendering()
    assert {text.get_text() for text in figure.axes[0].get_xticklabels(which="both")} <= {"", "1", "10", "100"}
    assert list(panels) == ["[Next]", "[Second]"]
    expected = np.array([[0.05, 0.15, 0.25], [math.nan, 0.5, math.nan], [0.3, 0.4, 0.5]]).T
    np.testing.assert_allclose(np.ma.filled(panels["[Next]"].get_array(), np.nan), expected)
    edges = panels["[Next]"].get_coordinates()
    np.testing.assert_allclose(edges[0, :, 0], [2.5, 5, 10, 30])
    np.testing.assert_allclose(edges[:, 0, 1], [-0.5, 0.5, 1.5, 2.5])


def test_curves_are_written(tmp_path):
    """Figures with more arms than there are colours are written, too."""
    series = {"_plain": [PLAIN], "ag $x$": GUIDED, **{f"arm {at}": [PLAIN] for at in range(10)}}
    picture(plots.save(plots.draw_losses(series, "tokens_seen"), tmp_path / "figures" / "loss.png"))
    arms = {"ag $": masses((1,), 16), "other_": masses((2, 4), 2, ("prev",))}
    picture(plots.save(plots.draw_masses(arms), tmp_path / "mass.png"))


def test_the_plateau_and_where_arms_leave_it():
    plateau = Plateau(5.5, {"plain": [30], "ag": [20, None]})
    figure = plots.draw_losses({"plain": [PLAIN], "ag": GUIDED}, "tokens_seen", plateau=plateau, run="quick: a title")
    loss = figure.axes[0]
    assert [line.get_ydata() for line in loss.lines if line.get_linestyle() == "--"] == [[5.5, 5.5]]
    triangles = [line for line in loss.lines if line.get_marker() == "v"]
    assert [(*line.get_xdata(), *line.get_ydata()) for line in triangles] == [(3007, 5.0), (2007, 4.0)]
    curves = [line.get_color() for line in loss.lines if line.get_linewidth() in (3.2, 1.5)]
    assert [line.get_color() for line in triangles] == curves[:1] + curves[-1:]
    names = [text.get_text() for text in loss.get_legend().get_texts()][-3:]
    for name, words in zip(names, (["5.500"], ["plain", "step 30"], ["ag", "step 20"]), strict=True):
        assert all(word in name for word in words)


def test_measures_of_the_plateau_have_a_panel_if_evaluations_have_them():
    def rows(*cosines, **more):
        values = {at: {"collapse/masked": of, "collapse/all": of and -of, **more} for at, of in cosines}
        return [row(5, 1.0), *(row(at, 1.0, "validation", **of) for at, of in values.items())]

    series = {"plain": [rows((10, 1.0), (20, 0.5))], "ag": [rows((10, 0.5), (20, 0.25)), rows((10, 0.25), (20, None))]}
    (cosine,) = plots.draw_measures(series, {"plain": [None], "ag": [20, None]}).axes
    drawn = [(x, y) for x, y, is_thick in lines(cosine) if is_thick]
    assert drawn == [
        ([10, 20], [1.0, 0.5]),
        ([10, 20], [-1.0, -0.5]),
        ([10], [0.375]),
        ([10], [-0.375]),
        ([20, 20], [0, 1]),
    ]
    assert cosine.get_ylim()[0] < -1
    series["other"] = [rows((10, 0.5), **{"repetition/predicted": 0.5})]
    assert [list(metrics) for metrics in measures_of(series).values()][1:] == [["repetition/predicted"]]
    assert len(plots.draw_measures(series).axes) == 2 and not measures_of({"plain": [PLAIN]})


def test_curves_over_tokens_are_the_same_if_batches_are_equal():
    assert same_tokens({"plain": [PLAIN], "ag": [PLAIN[:2]]}) and same_tokens({"plain": [PLAIN], "ag": GUIDED})
    larger = [{**one, "tokens_seen": 2 * one["tokens_seen"]} for one in PLAIN]
    assert not same_tokens({"plain": [PLAIN], "ag": [larger]})
    # Seeds of one arm may differ, because their sequences do; the second seed is compared with the second.
    assert same_tokens({"plain": [PLAIN, larger], "ag": [PLAIN, larger]})
    assert not same_tokens({"plain": [PLAIN, larger], "ag": [PLAIN, PLAIN]})


def test_learning_curves_of_fine_tuning():
    """The mean goes through the epochs that all trials of an arm reached."""
    curves = {"$plain": [[(1, 50.0), (2, 60.0)], [(1, 70.0), (2, 70.0), (3, 90.0)]], "asa": [[(1, 40.0)]]}
    figure = learning.draw([learning.Panel("loss", curves), learning.Panel("sst2: accuracy", curves, 51.0)], "no model")
    second, first = figure.axes
    thin = [([1, 2], [50, 60], False), ([1, 2, 3], [70, 70, 90], False)]
    means = [([1, 2], [60, 65], True), ([1], [40], True)]
    assert lines(first) == [*thin, *means, ([0, 1], [51, 51], True)] and lines(second) == [*thin, *means]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["$plain", "asa", "no model"]
    alone = learning.draw([learning.Panel("loss", {"model": curves["asa"]})])
    assert not alone.legends
