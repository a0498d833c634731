"""Points of a search are ordinary runs: the same metrics as from `train`, also for a run that paused at a rung."""

import json
import types

import pytest
from etils import epath

from ag_jax.pretraining import build, run
from ag_jax.pretraining.search import points, states
from ag_jax.pretraining.search import run as search_run
from ag_jax.training import sharding
from ag_jax.training.checkpoint import steps_in
from ag_jax.training.metrics import CLOCK_FIELDS, read_metrics
from tests.pretraining.search.studies import config_file, text_files

GRID = {"guidance": {"alpha": (0.5, 50.0)}, "optimizer": {"learning_rate": (1e-3, 5e-2)}}


def rows(directory):
    return [{key: value for key, value in row.items() if key not in CLOCK_FIELDS} for row in read_metrics(directory)]


@pytest.fixture
def source(tmp_path):
    grids = {"ag": GRID, "mlm": {"optimizer": {"learning_rate": (1e-3, 1e30)}}}
    settings = {"data.source": text_files(tmp_path / "text"), "model.dropout": 0.0, "search.rungs": (0.375,)}
    return config_file(tmp_path / "config.py", grids, **settings)


def test_points_are_ordinary_runs(source, tmp_path, one_device, monkeypatch):
    """The points of an arm have one program; the run that survives the rung at step 3, in the middle of a logged
    interval, has the rows of a run that never paused; and the point that diverges is a failure.

    The search is stopped at the rung of its second run, after the checkpoint and before the rung is noted.
    """
    made = epath.Path(tmp_path / "made")
    programs = build._cached_program.cache_info().misses
    noted = []

    def stopped_at_the_second(directory, step, numbers):
        if len(noted) == 1:
            raise KeyboardInterrupt
        noted.append(directory)
        states.write_rung(directory, step, numbers)

    with monkeypatch.context() as patch:
        patch.setattr(
            search_run, "states", types.SimpleNamespace(**vars(states) | {"write_rung": stopped_at_the_second})
        )
        with pytest.raises(KeyboardInterrupt):
            search_run.search(source, {}, made)
    assert sum(path.name == "rungs.json" for path in made.glob("*/*/*.json")) == 1
    assert len(list(made.glob("*/*/checkpoints/3"))) == 2
    search_run.search(source, {}, made)
    assert build._cached_program.cache_info().misses == programs + 2
    study = points.study(source, {})
    found = json.loads((made / "search.json").read_text())
    assert found["complete"] and found["arms"]["mlm"]["points"]["lr1e+30"]["status"] == "failed"
    statuses = [one["status"] for one in found["arms"]["ag"]["points"].values()]
    assert statuses == ["done"] * 2 + ["stopped"] * 2
    stopped = next(name for name, one in found["arms"]["ag"]["points"].items() if one["status"] == "stopped")
    assert steps_in(made / "ag" / f"{stopped}-seed0" / "checkpoints") == [3]
    best = next(point for point in study.points if point.name == found["arms"]["ag"]["best"] and point.arm == "ag")
    alone = epath.Path(tmp_path / "alone")
    summary = run.train(best.configs[0], alone)
    assert rows(best.directory(made, 0)) == rows(alone)
    assert json.loads((best.directory(made, 0) / "summary.json").read_text()) == summary
    rung = json.loads((best.directory(made, 0) / "rungs.json").read_text())
    assert [*rung] == ["3"] and rung["3"]["validation_loss"] != summary["validation_loss"]
    # All that may be `search.metric`, which is checked before training, is measured at the rung.
    assert rung["3"].keys() == states.numbers_of(summary).keys() >= {"mlm_accuracy", "ag_loss"}
    program = build.shared_program(
        best.configs[0], run.open_run(alone).tokenizer, sharding.make_mesh(best.configs[0].mesh)
    )
    assert rung["3"].keys() == {*states.LOSSES, *run.evaluation_metrics(best.configs[0], program)}
    left = [
        seed["left_plateau_at_step"] for one in found["arms"]["ag"]["points"].values() for seed in one["seeds"].values()
    ]
    assert len(left) == 2 and all(step is None or step in (2, 4, 6, 8) for step in left)
    of_best = found["arms"]["ag"]["points"][best.name]["seeds"]["0"]
    losses = {row["step"]: row["ag_loss"] for row in rows(alone) if row["split"] == "train"}
    bound = min(losses.values()) + 0.05 * (losses[2] - min(losses.values()))
    assert of_best["guidance_settled_at_step"] == min(step for step, loss in losses.items() if loss <= bound)
    report = (made / "report.md").read_text()
    assert report.count("| Plateau | Guidance settled at step |") == 1, "of ag alone"
    assert program.train_step._cache_size() <= 1  # 0 if JAX has dropped the entry: its cache is that of all tests
