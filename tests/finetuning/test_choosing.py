"""What is chosen of a sweep, worked out by hand."""

import pytest

from ag_jax.finetuning import choosing


def result(rate, size, seed, accuracy, **more):
    return {"learning_rate": rate, "batch_size": size, "seed": seed, "metrics": {"accuracy": accuracy}, **more}


SWEEP = [
    *(result(1e-5, 16, seed, value) for seed, value in enumerate((0.1, 0.9, 0.2))),  # mean 0.4, median 0.2
    *(result(2e-5, 16, seed, value) for seed, value in enumerate((0.3, 0.35, 0.3))),  # mean 0.317, median 0.3
    *(result(1e-5, 32, seed, value) for seed, value in enumerate((0.3, 0.3, 0.8))),  # median 0.3, too, but later
]


def test_the_point_with_the_best_median_not_the_best_mean_or_run():
    points = choosing.points(SWEEP)
    assert [(point.learning_rate, point.batch_size) for point in points] == [(1e-5, 16), (2e-5, 16), (1e-5, 32)]
    best = choosing.best_point(points, "accuracy")
    assert best.values("accuracy") == [0.3, 0.35, 0.3]
    assert best.settings == {"learning_rate": 2e-5, "batch_size": 16}


def test_points_differ_in_every_setting_that_is_swept():
    """Of equal medians the first point is taken; results of the same point may list its settings in another order."""
    values = {(0.1, 50): (0.6, 0.1), (0.1, 500): (0.3, 0.5), (0.0, 50): (0.4, 0.4), (0.0, 500): (0.2, 0.3)}
    results = [
        result(1e-5, 16, seed, value, swept={"head_dropout": rate, "warmup_steps": steps})
        for (rate, steps), of_seeds in values.items()
        for seed, value in enumerate(of_seeds)
    ]
    results[3]["swept"] = dict(reversed(results[3]["swept"].items()))
    points = choosing.points(results)
    assert [tuple(point.values("accuracy")) for point in points] == list(values.values())
    best = choosing.best_point(points, "accuracy")
    assert best is points[1]
    swept = {"head_dropout": 0.1, "warmup_steps": 500}
    assert best.settings == {"learning_rate": 1e-5, "batch_size": 16, "swept": swept}


def test_a_summary_by_hand_and_folds_count_as_one_value_a_seed():
    summary = choosing.summary([1.0, 2.0, 6.0])
    assert (summary["median"], summary["mean"], summary["n"]) == (2.0, 3.0, 3)
    assert summary["deviation"] == pytest.approx(7**0.5)
    folds = [result(1e-5, 16, 0, value, fold=number) for number, value in enumerate((0.2, 0.4, 0.9))]
    (point,) = choosing.points([*folds, result(1e-5, 16, 1, 0.1, fold=0)])
    assert point.values("accuracy") == [pytest.approx(0.5), 0.1]
