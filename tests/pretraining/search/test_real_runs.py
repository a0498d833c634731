"""Points of a search are ordinary runs: the same metrics as from `train`, also for a run that paused at a rung."""

import json

import pytest
from etils import epath

from ag_jax.grid import store
from ag_jax.pretraining import build, run
from ag_jax.pretraining.open_run import open_run
from ag_jax.pretraining.search import points, states
from ag_jax.pretraining.search import run as search_run
from ag_jax.settings import config_files
from ag_jax.training import sharding
from ag_jax.training.checkpoint import steps_in
from tests import results as stored
from tests.pretraining import tiny_runs
from tests.pretraining.search.studies import config_file
from tests.pretraining.tiny_runs import rows


def test_points_are_ordinary_runs(text, tmp_path, one_device, monkeypatch):
    """All points have one program; the run that survives the rung at step 3, in the middle of a logged interval, has
    the rows of a run that never paused; and a point that diverges is a failure.

    The search is stopped at the rung of its second run, after the checkpoint and before the rung is noted.
    """
    grid = {"guidance": {"alpha": (0.5, 50.0)}, "optimizer": {"learning_rate": (1e-3, 5e-2, 1e30)}}
    settings = tiny_runs.flat(text, **tiny_runs.GUIDED) | {"search.rungs": (0.5,), "training.evaluate_every": None}
    settings |= {"training.checkpoint_every": 100, "training.milestones": (1.0,)}
    source, made = config_file(tmp_path / "config.py", {"ag": grid}, **settings), epath.Path(tmp_path / "made")
    programs, noted = build._cached_program.cache_info().misses, []

    write = store.write

    def stopped_at_the_second(directory, result, until):
        if len(noted) == 1:
            raise KeyboardInterrupt
        noted.append(directory)
        return write(directory, result, until)

    with monkeypatch.context() as patch:
        patch.setattr(store, "write", stopped_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            search_run.search(config_files.load(source, {}), made)
    assert sum(path.name == "result-3.json" for path in made.glob("*/*/*.json")) == 1
    assert len(list(made.glob("*/*/checkpoints/3"))) == 2
    search_run.search(config_files.load(source, {}), made)
    assert build._cached_program.cache_info().misses <= programs + 1
    study, found = points.study(config_files.load(source, {})), json.loads((made / "search.json").read_text())
    of_points = found["arms"]["ag"]["points"]
    statuses = {name: one["status"] for name, one in of_points.items()}
    assert sorted(statuses.values()) == ["done"] * 3 + ["failed"] * 2 + ["stopped"]
    assert {name for name, status in statuses.items() if status == "failed"} == {"alpha0.5-lr1e+30", "alpha50-lr1e+30"}
    worse = next(name for name, status in statuses.items() if status == "stopped")
    assert steps_in(made / "ag" / f"{worse}-seed0" / "checkpoints") == [3]
    best = next(point for point in study.points if point.name == found["arms"]["ag"]["best"])
    alone, directory = epath.Path(tmp_path / "alone"), best.directory(made, 0)
    summary = run.train(best.configs[0], alone)
    assert rows(directory) == rows(alone)
    assert stored.facts(directory) == summary
    rung = states.numbers_of(store.read(directory, until=3).facts)
    assert rung["validation_loss"] != summary["validation_loss"]
    # All that may be `search.metric`, which is checked before training, is measured at the rung.
    assert rung.keys() == states.numbers_of(summary).keys() >= {"mlm_accuracy", "ag_loss"}
    mesh = sharding.make_mesh(best.configs[0].mesh)
    program = build.shared_program(best.configs[0], open_run(alone).tokenizer, mesh)
    assert rung.keys() == {*states.LOSSES, *run.evaluation_metrics(best.configs[0], program)}
    left = [seed["left_plateau_at_step"] for one in of_points.values() for seed in one["seeds"].values()]
    assert len(left) == 3 and all(step is None or step in (2, 4, 6) for step in left)
    losses = {row["step"]: row["ag_loss"] for row in rows(alone, "train")}
    bound = min(losses.values()) + 0.05 * (losses[2] - min(losses.values()))
    settled = of_points[best.name]["seeds"]["0"]["guidance_settled_at_step"]
    assert settled == min(step for step, loss in losses.items() if loss <= bound)
    assert program.train_step._cache_size() <= 1  # 0 if JAX has dropped the entry: its cache is that of all tests
