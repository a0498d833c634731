"""What reports say of attacks: means over seeds, the end of training, and pictures that go through the numbers."""

import numpy as np
import pytest

from ag_jax.analysis import attacks
from ag_jax.analysis.attacks import MaskedShare, Temperatures
from ag_jax.analysis.figures import attacks as attack_figures
from ag_jax.analysis.figures import canvas
from tests.analysis.test_plots import picture


def row(step, layers, split="train"):
    masked = None if None in layers else float(np.mean(layers))
    return {"step": step, "split": split, "masked": masked, "masked/layers": list(layers)}


PLAIN = {"step": 10, "split": "train", "mlm_loss": 3.0}
ONE = [
    row(10, (0.5, 0.3)),
    row(20, (0.4, 0.2)),
    row(20, (0.9, 0.9), "validation"),
    row(90, (0.2, 0.1)),
    row(100, (0.1, 0.0)),
]
OTHER = [row(10, (0.7, 0.1)), row(20, (0.2, 0.2)), PLAIN | {"step": 90}, row(100, (0.3, 0.2)), row(110, (0.9, 0.9))]


def test_seeds_are_averaged_where_all_of_them_are():
    share = attacks.masked_share([ONE])
    assert share.steps_S.tolist() == [10, 20, 90, 100]
    np.testing.assert_allclose(share.share_S, [0.4, 0.3, 0.15, 0.05])
    np.testing.assert_allclose(share.share_SN, [[0.5, 0.3], [0.4, 0.2], [0.2, 0.1], [0.1, 0.0]])
    assert share.numbers() == {"all": pytest.approx(0.05), "layers": pytest.approx([0.1, 0.0]), "steps": [91, 100]}
    share = attacks.masked_share([ONE, OTHER])
    assert share.steps_S.tolist() == [10, 20, 100]
    np.testing.assert_allclose(share.share_SN, [[0.6, 0.2], [0.3, 0.2], [0.2, 0.1]])
    np.testing.assert_allclose(share.share_S, [0.4, 0.25, 0.15])
    assert share.numbers()["steps"] == [91, 100], "the second has a row at 90, although nothing was masked"
    for seeds in ([], [[PLAIN]], [[PLAIN | {"masked": None, "masked/layers": [None]}]], [ONE, [PLAIN]]):
        assert attacks.masked_share(seeds) is None


@pytest.mark.parametrize(
    ("rows", "overall", "steps"),
    [
        ([row(50, (0.6, 0.6))], 0.6, [1, 50]),
        ([row(50, (0.9, 0.9)), row(100, (0.5, 0.5)), row(110, (0.3, 0.3))], 0.3, [101, 110]),
        ([row(80, (0.9, 0.9)), row(95, (0.6, 0.6)), row(100, (0.2, 0.2))], 0.5, [81, 100]),
        ([row(40, (0.9, 0.9)), row(90, (0.5, 0.5)), row(100, (None, None))], 0.5, [41, 90]),
    ],
    ids=["one row", "rows across the border", "rows of several lengths", "nothing masked at last"],
)
def test_the_end_of_training_is_of_the_steps_that_it_names(rows, overall, steps):
    found = attacks.masked_share([rows]).numbers()
    assert found == {"all": pytest.approx(overall), "layers": pytest.approx([overall] * 2), "steps": steps}


DREAM = Temperatures("accuracy", (0.3, 0.6, 1.0), (0.6, 0.62, 0.64), (0.01, 0.02, 0.03), plain=0.61)
HELLASWAG = Temperatures("accuracy", (0.3, 2.0), (0.41, 0.39), (None, None))


def test_temperatures_that_a_task_was_not_trained_at_have_a_dash():
    _, table = attacks.temperature_section({"dream": DREAM, "hellaswag": HELLASWAG}).blocks
    assert table.rows == [
        ["dream", "accuracy", "60.0 ± 1.0", "62.0 ± 2.0", "64.0 ± 3.0", "–", "61.0"],
        ["hellaswag", "accuracy", "41.0", "–", "–", "39.0", "–"],
    ]


def of(axes):
    return [
        (line.get_label(), line.get_xdata().tolist(), line.get_ydata().tolist(), line.get_color())
        for line in axes.lines
    ]


def test_the_picture_of_masks():
    short = MaskedShare(np.array([0, 5]), np.array([5, 10]), np.array([0.5, 0.25]), np.array([[0.5], [0.25]]))
    one = attacks.masked_share([ONE])
    figure = attack_figures.draw_masked({"asa": {"sst2": one, "rte": short}, "magnitude": {"rte": short}})
    first, layers, second, _ = figure.axes
    (sst2, rte), (alone,) = of(first), of(second)
    assert sst2[:2] == ("sst2", [0.1, 0.2, 0.9, 1.0]) and sst2[2] == pytest.approx([0.4, 0.3, 0.15, 0.05])
    assert rte[:3] == ("rte", [0.5, 1.0], [0.5, 0.25]) and first.get_xlabel() == "part of training"
    assert alone[:3] == ("rte", [5, 10], [0.5, 0.25]) and second.get_xlabel() == "step"
    assert rte[3] == alone[3] != sst2[3]
    assert of(layers)[0][1] == [0, 1] and of(layers)[0][2] == pytest.approx([0.1, 0.0])
    assert "last 50%" in layers.get_xlabel(), "of rte, whose last row is half of it"


def test_the_pictures_of_temperatures_and_of_step_times(tmp_path):
    left, right = attack_figures.draw_temperatures({"dream": DREAM, "hellaswag": HELLASWAG}).axes
    assert left.containers[0].lines[0].get_xydata().tolist() == [[0.3, 60.0], [0.6, 62.0], [1.0, 64.0]]
    bars = left.containers[0].lines[2][0].get_segments()
    np.testing.assert_allclose([bar[:, 1] for bar in bars], [[59, 61], [60, 64], [61, 67]])
    assert [line.get_ydata() for line in left.lines if line.get_linestyle() == "--"] == [[61.0, 61.0]]
    assert not right.containers[0].lines[2], "one seed has no deviation"
    assert not [line for line in right.lines if line.get_linestyle() == "--"]
    times = {"plain": {512: 1.0, 128: 1.0}, "asa": {128: 2.1, 512: 2.0, 256: 2.05}}
    (panel,) = attack_figures.draw_step_times(times).axes
    assert [line[:3] for line in of(panel)] == [
        ("plain", [128, 512], [1.0, 1.0]),
        ("asa", [128, 256, 512], [2.1, 2.05, 2.0]),
    ]
    figure = attack_figures.draw_masked({"": {"a $5_$ arm": attacks.masked_share([ONE])}})
    picture(canvas.save(figure, tmp_path / "new" / "m.png"))
