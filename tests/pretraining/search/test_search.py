"""A search from the grids to `best.json`, with a stub in the place of training: in one process, in two, and killed."""

import contextlib
import functools
import json
import math
import shlex
import statistics
from types import SimpleNamespace

import jax
import pytest
from etils import epath

from ag_jax.command_line import parser
from ag_jax.distributed import lock, storage
from ag_jax.grid import run as grid
from ag_jax.grid import store
from ag_jax.pretraining import config as pretraining_config
from ag_jax.pretraining import corpus, finished, run, run_directory, words
from ag_jax.pretraining.search import choose, points, report, states
from ag_jax.pretraining.search import run as search_run
from ag_jax.pretraining.search.choose import NextRun
from ag_jax.pretraining.search.states import RunState
from ag_jax.settings import config_files, schema
from ag_jax.training.journal import NonFiniteError
from tests import commands
from tests import results as stored
from tests.pretraining.search import studies
from tests.pretraining.search.studies import STEPS, config_file, rates

GRID = {"optimizer": {"learning_rate": (0.1, 0.02), "warmup_steps": (0, 1, 3)}}
ACCURACY = {"search.metric": "mlm_accuracy"}
HALF = {"search.rungs": (0.5,)}


@pytest.fixture
def source(tmp_path):
    """Returns a function that writes a config file with grids and settings, and returns its path."""
    return functools.partial(config_file, tmp_path / "config.py")


@pytest.fixture
def stubbed(monkeypatch, tmp_path, one_device):
    """Returns a function that runs a search with the stub, and returns `search.json` and the calls of the stub."""
    monkeypatch.setattr(run, "train_held", studies.stub)
    monkeypatch.setattr(search_run, "plateau_loss", lambda config, directory: studies.PLATEAU)

    def search(source, overrides=None, **options):
        search_run.search(config_files.load(source, overrides or {}), epath.Path(tmp_path / "made"), **options)
        return read(tmp_path / "made")

    return search


@pytest.fixture
def maps(monkeypatch):
    """The heat maps of the last search."""
    drawn = []

    def heat_maps(found, directory):
        drawn[:] = found
        return []

    monkeypatch.setattr(search_run.figures, "heat_maps", heat_maps)
    return drawn


def read(workdir):
    calls = workdir / "calls.txt"
    lines = calls.read_text().splitlines() if calls.exists() else []
    calls.unlink(missing_ok=True)
    return json.loads((workdir / "search.json").read_text()), lines


def best(tmp_path, arm="plain", arguments=None):
    return finished.search(tmp_path / "made", arm, arguments or {})


def calls_of(names, step=None, seed=0):
    return [f"plain/{name}-seed{seed} {step}" for name in names]


def test_every_point_once_and_the_best_is_known(stubbed, source, tmp_path):
    found, calls = stubbed(source({"plain": GRID}))
    assert calls == calls_of(f"lr{rate}-warmup{warmup}" for rate in ("0.1", "0.02") for warmup in (0, 1, 3))
    of_arm = found["arms"]["plain"]
    # 4 + |log10(lr) + 2| + warm-up / 4
    near, far = 4 + math.log10(2), 5
    close = functools.partial(pytest.approx, abs=1e-6)
    assert found["title"] == "Pre-training" and of_arm["best"] == "lr0.02-warmup0"
    assert of_arm["points"]["lr0.02-warmup0"]["validation_loss"] == close(near)
    by_rate, by_warmup = of_arm["settings"]["optimizer.learning_rate"], of_arm["settings"]["optimizer.warmup_steps"]
    assert [(row["value"], row["points"]) for row in by_rate] == [(0.1, 3), (0.02, 3)]
    assert [row["best"] for row in by_rate] == close([far, near])
    assert [row["median"] for row in by_rate] == close([far + 0.25, near + 0.25])
    assert [row["median"] for row in by_warmup] == close([(far + near) / 2 + added for added in (0, 0.25, 0.75)])
    # The plateau is at 5.4, and 0.3 below it is left: 4.30, 4.55, 5.05 and 5.00 are.
    robust = of_arm["robustness"]
    assert (robust["points"], robust["left_plateau"]) == (6, 4)
    losses = [far, far + 0.25, far + 0.75, near, near + 0.25, near + 0.75]
    found = [robust[name] for name in ("median", "lowest", "highest")]
    assert found == close([statistics.median(losses), near, far + 0.75])

    text = (tmp_path / "made" / "report.md").read_text()
    assert text.startswith("# Search: Pre-training\n")
    assert text.index("| 1 | 0.02 | 0 | 4.301 |") < text.index("| 6 | 0.1 | 3 | 5.750 |")
    assert "| `optimizer.learning_rate` | 0.1 | 3 | 5.000 | 5.250 |" in text
    assert "| plain | 4 of 6 | 67% | 0 | 0 | 5.026 | 4.301 to 5.750 |" in text
    assert "figures/search_plain.png" in text and (tmp_path / "made" / "figures" / "search_plain.png").exists()
    assert best(tmp_path) == {"optimizer.learning_rate": 0.02, "optimizer.warmup_steps": 0}
    with pytest.raises(ValueError, match="arm ag: .* plain"):
        best(tmp_path, "ag")


def test_the_best_point_states_what_only_the_grids_of_other_arms_search(stubbed, source, tmp_path):
    grids = {"plain": rates(0.1, 0.02), "ag": {"optimizer": {"warmup_steps": (0, 1)}}}
    stubbed(source(grids, **{"optimizer.learning_rate": 0.3, "optimizer.warmup_steps": 2}))
    assert best(tmp_path, "plain") == {"optimizer.learning_rate": 0.02, "optimizer.warmup_steps": 2}
    assert best(tmp_path, "ag") == {"optimizer.learning_rate": 0.3, "optimizer.warmup_steps": 0}


def test_a_larger_grid_keeps_what_is_done(stubbed, source, tmp_path, monkeypatch):
    """The best point of the smaller grid is not that of an unfinished search."""

    def ends(*_, **__):
        raise RuntimeError("the machine is gone")

    stubbed(source({"plain": rates(0.1, 0.02)}))
    larger = source({"plain": rates(0.1, 0.01, 0.02)})
    with monkeypatch.context() as patch:
        patch.setattr(run, "train_held", ends)
        with pytest.raises(RuntimeError, match="the machine is gone"):
            stubbed(larger)
    with pytest.raises(FileNotFoundError, match="best.json"):
        best(tmp_path)
    found, calls = stubbed(larger)
    assert calls == calls_of(["lr0.01"]) and found["arms"]["plain"]["best"] == "lr0.01"
    assert stubbed(larger) == (found, [])


def test_the_best_point_of_another_search_is_an_error(stubbed, source, tmp_path):
    """Of one whose config file had other arguments; those that the file does not take are not compared."""
    path = tmp_path / "config.py"
    source({"plain": rates(0.1, 0.02)})
    path.write_text(path.read_text().replace("(*, arm", '(*, layers: OneOf(2, 4) = 2, scale: str = "paper", arm'))
    stubbed(f"{path}:layers=4")
    expected = {"layers": 4, "scale": "paper", "language": "oromo"}
    assert best(tmp_path, arguments=expected)["optimizer.learning_rate"] == 0.02
    with pytest.raises(ValueError, match="best.json .*layers=4, .*layers=2"):
        best(tmp_path, arguments=expected | {"layers": 2})


def test_shorter_runs(source):
    """`search.steps` changes the config of every point."""
    path = source({"plain": rates(0.1, 0.02)})
    study = points.study(config_files.load(path, {"search.steps": 5}))
    assert [config.training.steps for point in study.points for config in point.configs.values()] == [5, 5]


def test_runs_whose_length_is_in_words(stubbed, source, text, tmp_path, monkeypatch):
    """Each point has the steps that its batch size takes for these words; the search ends."""
    settings = {"data.source": str(text), "training.words": 400}
    path, trained = source({"plain": {"training": {"batch_size": (2, 5)}}}, **settings), []

    def resolving(config, directory, labels, until=None):
        trained.append(words.resolve(config, directory, run_directory.is_begun)[0])
        if len(trained) > 2:
            raise RuntimeError("a run is trained again")
        return studies.stub(trained[-1], directory, labels, until)

    monkeypatch.setattr(run, "train_held", resolving)
    _, calls = stubbed(path)
    assert len(calls) == 2
    facts = words.of_corpus(trained[0], corpus.prepare(trained[0], epath.Path(tmp_path / "none")))
    of_row = facts.epoch_words / facts.epoch_rows
    assert [config.training.steps for config in trained] == [int(400 / of_row / size) for size in (2, 5)]
    with pytest.raises(ValueError, match="is step 0, .* 2"):
        stubbed(path, {"search.rungs": (0.01,)})


def test_failed_points_are_listed_and_cannot_win(stubbed, source, tmp_path):
    path = source({"plain": rates(studies.DIVERGES, 0.1), "ag": rates(0.1, studies.DIVERGES)})
    found, calls = stubbed(path)
    assert len(calls) == 4 and [found["arms"][arm]["best"] for arm in ("plain", "ag")] == ["lr0.1", "lr0.1"]
    failed = found["arms"]["plain"]["points"]["lr0.75"]
    assert failed["status"] == "failed" and failed["failures"] == {"0": "mlm_loss is not finite at step 3."}
    assert [*found["arms"]["plain"]["points"]] == ["lr0.1", "lr0.75"]
    # Both leave the plateau at 0.1, with losses of 4.0 and 5.0, and diverge at 0.75.
    assert found["paired"] == [{"arms": ["ag", "plain"], "points": 2, "left_plateau_alone": [0, 0], "p_value": 1.0}]
    robust = found["arms"]["ag"]["robustness"]
    assert (robust["points"], robust["left_plateau"], robust["failed"]) == (2, 1, 1) and failed["left_plateau"] is False
    text = (tmp_path / "made" / "report.md").read_text()
    assert "| plain | 1 of 2 | 50% | 1 | 0 | 5.000 | 5.000 to 5.000 |" in text and "| 2 | 0.75 | diverged |" in text
    assert stubbed(path)[1] == [], "a failure is not trained again"
    assert stubbed(path, retry=True)[1] == ["ag/lr0.75-seed0 None", "plain/lr0.75-seed0 None"]


def test_a_point_wins_and_leaves_the_plateau_only_with_all_of_its_seeds(stubbed, source):
    """The losses at 0.1 are 5.0, 5.13 and 5.15, of which the mean is below the end of the plateau, 5.1."""
    path = source({"plain": rates(0.1, 0.02, 0.05)}, **{"search.seeds": (0, studies.UNLUCKY, 15)})
    of_arm = stubbed(path)[0]["arms"]["plain"]
    of_points = of_arm["points"]
    assert of_arm["best"] == "lr0.05" and [*of_points["lr0.02"]["failures"]] == ["13"]
    assert of_points["lr0.02"]["status"] == "failed"
    assert of_points["lr0.02"]["seeds"]["0"]["validation_loss"] < of_points["lr0.05"]["seeds"]["0"]["validation_loss"]
    assert of_points["lr0.1"]["validation_loss"] == pytest.approx(mean := (5 + 5.13 + 5.15) / 3) and mean < 5.1
    left = {name: one["left_plateau"] for name, one in of_points.items()}
    assert left == {"lr0.05": True, "lr0.1": False, "lr0.02": False}
    assert (of_arm["robustness"]["points"], of_arm["robustness"]["left_plateau"]) == (3, 1)


def test_a_point_that_diverged_did_not_leave_the_plateau(monkeypatch, tmp_path, source, stubbed):
    """`plain` diverges at 0.1, where ag leaves the plateau; at 0.2 its memory is too small, which says nothing."""

    def fails(config, directory, labels, until=None):
        if config.guidance.mode != "loss" and config.optimizer.learning_rate == 0.1:
            raise NonFiniteError("mlm_loss is not finite at step 3.")
        if config.guidance.mode != "loss" and config.optimizer.learning_rate == 0.2:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.")
        return studies.stub(config, directory, labels, until)

    monkeypatch.setattr(run, "train_held", fails)
    path = source({"plain": rates(0.1, 0.2, 0.02), "ag": rates(0.02, 0.1, 0.2)})
    found, _ = stubbed(path)
    lowest = pytest.approx(4.30103)
    assert found["arms"]["plain"]["robustness"] == {
        **{"points": 2, "left_plateau": 1, "failed": 2, "diverged": 1},
        **dict.fromkeys(("median", "lowest", "highest"), lowest),
    }
    of_points = found["arms"]["plain"]["points"]
    assert [of_points[name]["left_plateau"] for name in ("lr0.1", "lr0.2", "lr0.02")] == [False, None, True]
    assert found["paired"] == [{"arms": ["ag", "plain"], "points": 2, "left_plateau_alone": [1, 0], "p_value": 1.0}]
    assert stubbed(path) == (found, [])


def test_arms_with_other_settings_are_not_paired(tmp_path):
    """Names of points have the last parts of the settings' names only."""

    def result(arm, setting):
        point = points.Point(arm, "step_size0.1", {setting: 0.1}, {})
        return choose.Result(point, "done", {"validation_loss": 5.0}, None, {})

    settings = {"freelb": "freelb", "smart": "smart", "again": "freelb"}
    left = {(arm, "step_size0.1"): arm == "freelb" for arm in settings}
    found = report._paired([result(arm, f"adversarial.{of}.step_size") for arm, of in settings.items()], left)
    assert found == [{"arms": ["freelb", "again"], "points": 1, "left_plateau_alone": [1, 0], "p_value": 1.0}]


def test_failures_with_other_settings_do_not_count(monkeypatch, source, tmp_path, stubbed, capsys):
    """Two runs need too much memory with four rows a step, and are trained with two; a defect ends the search."""
    message = "RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes."

    def too_large(config, directory, labels, until=None):
        if config.training.batch_size == 4:
            studies.begin(config, directory)
            raise jax.errors.JaxRuntimeError(message)
        return studies.stub(config, directory, labels, until)

    monkeypatch.setattr(run, "train_held", too_large)
    path = source({"plain": rates(0.1, 0.2)})
    for _ in range(2):
        with pytest.raises(ValueError, match="--retry"):
            stubbed(path)
        assert "2 runs failed and are not trained again" in capsys.readouterr().err
    noted = store.read(epath.Path(tmp_path / "made" / "plain" / "lr0.1-seed0"))
    assert noted.reason.startswith("out of memory") and noted.status == "out_of_memory"
    assert json.loads((tmp_path / "made" / "best.json").read_text())["arms"] == {}
    smaller = {"training.batch_size": 2, "search.seeds": (0,), "title": "the same runs"}
    found, calls = stubbed(path, smaller)
    assert len(calls) == 2 and stubbed(path, smaller) == (found, [])
    message = "INTERNAL: a defect"
    with pytest.raises(jax.errors.JaxRuntimeError, match="a defect"):
        search_run.search(config_files.load(path, {}), epath.Path(tmp_path / "other"))


def test_a_seed_of_a_failed_point_comes_to_every_rung(source):
    """Otherwise its losses there would not be known when --retry trains the seed that failed."""
    path = source({"plain": rates(0.02)}, **HALF, **{"search.seeds": (studies.UNLUCKY, 0)})
    study = points.study(config_files.load(path, {}))
    found = {(0, studies.UNLUCKY): RunState(failure="diverged"), (0, 0): RunState()}
    assert choose.halved(study, found)[0] == [NextRun(0, 0, 4)]
    found[0, 0] = RunState(rungs={"4": dict.fromkeys(states.LOSSES, 5.0)})
    assert choose.halved(study, found)[0] == [NextRun(0, 0, None)]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_at_a_rung_that_is_not_finite_is_a_failure(monkeypatch, source, stubbed, bad):
    def not_finite(config, directory, labels, until=None):
        losses = studies.stub(config, directory, labels, until)
        return losses | ({"validation_loss": bad} if config.optimizer.learning_rate == 0.3 else {})

    monkeypatch.setattr(run, "train_held", not_finite)
    of_arm = stubbed(source({"plain": rates(0.3, 0.02, 0.4, 0.8)}, **HALF))[0]["arms"]["plain"]
    assert of_arm["points"]["lr0.3"]["failures"] == {"0": "validation_loss is not finite at step 4"}
    assert of_arm["robustness"]["failed"] == of_arm["robustness"]["diverged"] == 1
    assert [*of_arm["points"]] == ["lr0.02", "lr0.4", "lr0.8", "lr0.3"]


def test_halving_stops_the_worse_half(stubbed, source):
    """Eight points whose order never changes: after a quarter of the steps four stop, after half of them two more."""
    values = (0.01, 0.8, 0.02, 0.4, 0.03, 0.2, 0.04, 0.1)
    path = source({"plain": rates(*values)}, **{"search.rungs": (0.25, 0.5)})
    found, calls = stubbed(path)
    names, better = [f"lr{value}" for value in values], ["lr0.01", "lr0.02", "lr0.03", "lr0.04"]
    assert calls == [*calls_of(names, 2), *calls_of(better, 4), *calls_of(better[:2])]
    of_points = found["arms"]["plain"]["points"]
    done = dict.fromkeys(better[:2], "done")
    assert {name: one["status"] for name, one in of_points.items()} == dict.fromkeys(names, "stopped") | done
    assert [of_points[name]["stopped_at_step"] for name in ("lr0.03", "lr0.04", "lr0.1", "lr0.8")] == [4, 4, 2, 2]
    assert [*of_points][:4] == better
    assert of_points["lr0.03"]["validation_loss"] == pytest.approx(4 + math.log10(3) + 4 / 4, abs=1e-6)
    assert found["arms"]["plain"]["robustness"]["points"] == 2, "what was stopped is not known to stay on the plateau"
    assert stubbed(path) == (found, [])


def test_a_failure_counts_as_the_worst_at_a_rung(stubbed, source):
    found, calls = stubbed(source({"plain": rates(studies.DIVERGES, 0.5, 0.02, 0.9)}, **HALF))
    assert calls[4:] == calls_of(["lr0.5", "lr0.02"])
    assert found["arms"]["plain"]["points"]["lr0.75"]["status"] == "failed"


def test_the_highest_accuracy_is_the_best(stubbed, source, tmp_path, maps):
    """At the rung, in the ranking, the report, the heat map and best.json; the losses have the other order."""
    grid = {"optimizer": {"learning_rate": (0.01, 0.1, 0.5, studies.DIVERGES), "warmup_steps": (0, 1)}}
    found, calls = stubbed(source({"plain": grid}, **ACCURACY), HALF)
    names = [f"lr{rate}-warmup{warmup}" for rate in ("0.01", "0.1", "0.5", "0.75") for warmup in (0, 1)]
    better = ["lr0.5-warmup1", "lr0.5-warmup0", "lr0.1-warmup1", "lr0.1-warmup0"]
    assert calls == [*calls_of(names, 4), *calls_of(names[2:6])]
    of_arm = found["arms"]["plain"]
    assert of_arm["best"] == better[0]
    assert [*of_arm["points"]] == [*better, "lr0.01-warmup1", "lr0.01-warmup0", *names[6:]]
    # (4 + |log10(lr) + 2| + warm-up / 4) / 10
    high, low = (4 + math.log10(50)) / 10, 0.5
    values = [high + 0.025, high, low + 0.025, low]
    assert [of_arm["points"][name]["mlm_accuracy"] for name in better] == pytest.approx(values, abs=1e-6)
    by_rate = {row["value"]: row["best"] for row in of_arm["settings"]["optimizer.learning_rate"]}
    assert (by_rate[0.1], by_rate[0.5]) == pytest.approx((low + 0.025, high + 0.025), abs=1e-6)
    robust = of_arm["robustness"]
    assert [robust["lowest"], robust["highest"]] == pytest.approx([low, high + 0.025], abs=1e-6)
    assert robust["left_plateau"] == 1, "the plateau is one of the loss, 5.1: only 5.0 is below"
    assert not maps[-1].is_lower_better and maps[-1].metric == "mlm_accuracy"
    assert "| 1 | 0.5 | 1 | 0.595 | 5.949 |" in (tmp_path / "made" / "report.md").read_text()
    chosen = {"optimizer.learning_rate": 0.5, "optimizer.warmup_steps": 1}
    assert best(tmp_path) == chosen
    path = tmp_path / "made" / "best.json"
    content = json.loads(path.read_text())
    assert content["arms"]["plain"]["mlm_accuracy"] == pytest.approx(high + 0.025, abs=1e-6)
    content["arms"]["plain_longer"] = {"settings": {}, "mlm_accuracy": high}
    path.write_text(json.dumps(content))
    assert best(tmp_path) == chosen, "the highest of the arms plain and plain_longer"


@pytest.fixture
def unmeasured(monkeypatch):
    """Returns a function after which the stub measures no accuracy, None, where a function of config and step says."""
    accuracy_of = studies.accuracy_of

    def choose_runs(skips):
        monkeypatch.setattr(
            studies, "accuracy_of", lambda config, step: None if skips(config, step) else accuracy_of(config, step)
        )

    return choose_runs


def test_cells_of_heat_maps_have_the_best_value(stubbed, source, maps, unmeasured):
    """The best over a third setting; a cell without a measured value is empty."""
    optimizer = {"learning_rate": (0.1, 0.5), "warmup_steps": (0, 1)}
    path = source({"plain": {"model": {"dropout": (0.0, 0.1)}, "optimizer": optimizer}})
    cells = {"validation_loss": (5.0, 5.69897), "mlm_accuracy": (0.525, 0.594897)}
    for metric, of_row in cells.items():
        stubbed(path, {"search.metric": metric})
        assert (maps[-1].rows, maps[-1].columns) == ("model.dropout", "optimizer.learning_rate")
        assert maps[-1].cells == [pytest.approx(of_row, abs=1e-6)] * 2
    unmeasured(lambda config, step: config.optimizer.learning_rate == 0.1 and config.optimizer.warmup_steps < 3)
    stubbed(source({"plain": GRID}, **ACCURACY, title="another"))
    assert (maps[-1].rows, maps[-1].columns) == ("optimizer.warmup_steps", "optimizer.learning_rate")
    assert [row[0] for row in maps[-1].cells] == [None, None, pytest.approx(0.575)]
    assert all(row[1] is not None for row in maps[-1].cells)


def test_a_metric_that_was_not_measured_is_the_worst(stubbed, source, tmp_path, unmeasured):
    """By accuracy, 0.5 would be the best, but has none at the rung, with one of its seeds; 0.1 has none at the end."""
    missing = {(0.5, 0, 4), (0.1, 1, STEPS)}
    unmeasured(lambda config, step: (config.optimizer.learning_rate, config.seed, step) in missing)
    path = source({"plain": rates(0.5, 0.1, 0.02, 0.01)}, **ACCURACY, **HALF, **{"search.seeds": (0, 1)})
    found, calls = stubbed(path)
    assert calls[8:] == [*(f"plain/{name}-seed{seed} None" for name in ("lr0.1", "lr0.02") for seed in (0, 1))]
    of_arm = found["arms"]["plain"]
    assert [*of_arm["points"]] == ["lr0.02", "lr0.1", "lr0.01", "lr0.5"] and of_arm["best"] == "lr0.02"
    values = [one["mlm_accuracy"] for one in of_arm["points"].values()]
    assert values == [pytest.approx(0.430603, abs=1e-6), None, pytest.approx(0.5005), None]
    assert of_arm["points"]["lr0.1"]["validation_loss"] == pytest.approx(5.005)
    assert of_arm["robustness"]["median"] == of_arm["robustness"]["highest"] == pytest.approx(0.430603, abs=1e-6)
    text = (tmp_path / "made" / "report.md").read_text()
    assert "| 2 | 0.1 | not measured | 5.005 |" in text and "| 4 | 0.5 | not measured | 6.704 |" in text
    assert best(tmp_path) == {"optimizer.learning_rate": 0.02}
    assert stubbed(path) == (found, []), "known at the rung: not trained again"


def test_no_point_is_the_best_if_none_measured_the_metric(stubbed, source, tmp_path, unmeasured):
    unmeasured(lambda config, step: True)
    path = source({"plain": rates(0.1, 0.02, studies.DIVERGES)}, **ACCURACY)
    found, _ = stubbed(path)
    assert found["arms"]["plain"]["best"] is None
    with pytest.raises(ValueError, match="arm plain: .*none"):
        best(tmp_path)
    assert stubbed(path) == (found, [])


def test_a_search_by_another_metric_has_its_values_at_the_rungs(stubbed, source):
    """The results at rungs have all numbers, so the point that is the better one now goes on from its rung."""
    path = source({"plain": rates(0.01, 0.8)}, **{"search.rungs": (0.25, 0.5)})
    stubbed(path)
    assert stubbed(path, ACCURACY)[1] == ["plain/lr0.8-seed0 4", "plain/lr0.8-seed0 None"]


def test_a_killed_search_goes_on(stubbed, source, tmp_path):
    path = source({"plain": GRID})
    expected, _ = stubbed(path)
    killed = tmp_path / "killed"
    arguments = ["search", f"--config={path}", f"--workdir={killed}"]
    running = commands.Running(arguments, before=studies.install_hanging)
    running.wait_for("in the middle of the third")
    running.kill()
    done = commands.run(arguments, before=studies.install)
    assert done.returncode == 0, done.stderr
    found, calls = read(killed)
    assert found == expected and len(calls) == len(set(calls)) == 6
    assert (killed / "best.json").read_text() == (tmp_path / "made" / "best.json").read_text()
    assert f"the report is {storage.link(killed / 'report.md')}" in done.stdout
    verb = parser.parse(shlex.split(done.stderr.rpartition("next: ag-jax ")[2]))
    (winner,) = json.loads((killed / "best.json").read_text())["arms"].values()
    settings = schema.flat(schema.to_dict(verb.config.settings))
    assert verb.name == "train" and winner["settings"].items() <= settings.items()


def test_a_process_waits_for_the_others_at_a_rung(stubbed, source, tmp_path, monkeypatch):
    path, waited = source({"plain": rates(0.01, 0.8, 0.02, 0.4)}, **HALF), []
    with contextlib.ExitStack() as another:
        another.enter_context(lock.hold(epath.Path(tmp_path / "made" / "plain" / "lr0.8-seed0" / lock.FILE)))
        monkeypatch.setattr(grid, "time", SimpleNamespace(sleep=lambda _: waited.append(1) or another.close()))
        found, calls = stubbed(path)
    assert waited == [1] and calls == [
        *calls_of(["lr0.01", "lr0.02", "lr0.4", "lr0.8"], 4),
        *calls_of(["lr0.01", "lr0.02"]),
    ]
    assert {name: one["status"] for name, one in found["arms"]["plain"]["points"].items()} == {
        **{"lr0.01": "done", "lr0.02": "done"},
        **{"lr0.4": "stopped", "lr0.8": "stopped"},
    }


def test_points_that_are_not_trained_may_have_any_batch(stubbed, source, tmp_path, monkeypatch, eight_devices):
    """They are done, were stopped at a rung, or failed; with --retry these are trained."""
    grid = {
        "plain": {"training": {"batch_size": (4, 12)}, "optimizer": {"learning_rate": (0.01, 0.8, studies.DIVERGES)}}
    }
    path = source(grid, **HALF)
    found, _ = stubbed(path)
    assert {one["status"] for one in found["arms"]["plain"]["points"].values()} == {"done", "stopped", "failed"}
    monkeypatch.setattr(jax, "devices", lambda: eight_devices)
    assert stubbed(path) == (found, [])
    with pytest.raises(ValueError, match="the (4|12) rows"):
        stubbed(path, retry=True)
    path, other = source({"plain": {"training": {"batch_size": (8, 12)}}}), epath.Path(tmp_path / "other")
    with pytest.raises(ValueError, match="plain/bs12-seed0 .* 12 rows .* 8"):
        search_run.search(config_files.load(path, {}), other)
    assert not other.exists()


RATE = {"plain": rates(0.1)}


@pytest.mark.parametrize(
    ("grids", "overrides", "named"),
    [
        ({"plain": {"optimizer": {"warmup_steps": (1, "x")}}}, {}, "search.grids.plain: .*warmup_steps=x"),
        ({"plain": rates(0.1, -1.0)}, {}, "optimizer.learning_rate .*-1.0 .at the point"),
        ({"plain": rates()}, {}, "at least one value"),
        ({"plain": rates(0.1, 0.1)}, {}, "directory lr0.1"),
        ({"plain": rates(0.1), "PLAIN": rates(0.1)}, {}, "two arms"),
        ({"a/b": rates(0.1)}, {}, "folder"),
        ({"plain": {"guidance": {"alpha": (1.0, 2.0)}}}, {}, "guidance.alpha has no effect"),
        ({"plain": rates(0.1), "ag": rates(0.1)}, {"guidance.mode": "none"}, "ag and plain .* the same points"),
        (RATE, {"optimizer.learning_rate": 0.5}, "--config.optimizer.learning_rate=0.5"),
        ({"plain": {"seed": (1, 2)}}, {}, "seed"),
        (RATE, {"seed": 5}, "--config.search.seeds=5"),
        (RATE, {"search.rungs": (0.5, 0.55)}, "of 8 steps are the steps 4, 4"),
        (RATE, {"search.rungs": (0.125,)}, "step 2 .training.log_every=2"),
        (RATE, {"search.rungs": (0.125,), "training.log_every": 1, "optimizer.warmup_steps": 1}, "is step 1, .* 2"),
        (RATE, {"search.rungs": (0.5, 0.25)}, "rungs"),
        (RATE, {"search.seeds": (1, 1)}, "search.seeds"),
        (RATE, HALF | {"training.time_limit": 9}, "search.rungs .*training.time_limit=9"),
        (
            {"plain": {"replaced_tokens": {"generator": ("none", "mlm")}}},
            {"replaced_tokens.generator_fraction": 0.5},
            "different losses",
        ),
        # Two settings of the length.
        (RATE, {"training.steps": 5, "search.steps": 4}, "search.steps and --config.training.steps"),
        (RATE, {"training.words": 99, "search.steps": 4}, "search.steps and training.words"),
        (RATE, {"training.words": 99, "training.steps": 4}, "--config.training.steps and training.words"),
        ({"plain": {"training": {"steps": (5, 6)}}}, {"search.steps": 4}, "search.steps and training.steps in search"),
    ],
)
def test_searches_that_cannot_be(source, grids, overrides, named):
    with pytest.raises(ValueError, match=f"(?s){named}"):
        points.study(config_files.load(source(grids), overrides))


TRANSLATES = {"decoder.layers": 1, "data.format": "parallel", "data.source": "a.en", "data.target": "a.de"}


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ({"search.metric": "loss"}, "search.metric=loss .*train_loss, validation_loss, .*mlm_accuracy, mlm_loss"),
        (ACCURACY | TRANSLATES, "average_train_loss, accuracy, nll, translation_loss"),
    ],
)
def test_what_is_wrong_is_found_before_anything_runs(stubbed, source, tmp_path, overrides, named):
    with pytest.raises(ValueError, match=named):
        stubbed(source({"plain": rates(0.1, 0.02)}), overrides)
    assert not (tmp_path / "made" / "calls.txt").exists()


@pytest.fixture
def second(source, tmp_path):
    """(config file, study, directory of the second run) of a search in which this run has begun."""
    path = source({"plain": rates(0.1, 0.02)})
    study = points.study(config_files.load(path, {}))
    directory = epath.Path(tmp_path / "made" / "plain" / "lr0.02-seed0")
    studies.begin(study.points[1].configs[0], directory)
    return path, study, directory


def test_the_run_of_another_config_is_an_error_before_anything_runs(stubbed, second, tmp_path):
    path, _, last = second
    (last / "checkpoints" / str(STEPS)).mkdir(parents=True)
    stored.write(last, {"steps": STEPS, "validation": {}, **dict.fromkeys(states.LOSSES, 1.0)})
    # A longer run has other schedules from the start, so it is not extended.
    for overrides, named in (({"model.width": 24}, "model.width: there 12, now 24"), ({"search.steps": 9}, "8 .* 9")):
        with pytest.raises(ValueError, match=named):
            stubbed(path, overrides)
    (last / "config.json").unlink()
    with pytest.raises(ValueError, match="lr0.02-seed0 .*config.json"):
        stubbed(path)
    assert not (tmp_path / "made" / "calls.txt").exists()


def test_a_run_past_a_rung_is_an_error_before_anything_runs(stubbed, second, tmp_path):
    """Its losses are those of a longer training than the others have at the rung. If it failed, only with --retry."""
    path, study, directory = second
    for step in (2, 6):
        (directory / "checkpoints" / str(step)).mkdir(parents=True)
    with pytest.raises(ValueError, match="lr0.02-seed0 is at step 6, .* step 4"):
        stubbed(path, HALF)
    assert not (tmp_path / "made" / "calls.txt").exists()
    inputs = run_directory.result_inputs(study.points[1].configs[0])
    stored.write(directory, {}, status="diverged", reason="not finite", inputs=inputs)
    with pytest.raises(ValueError, match="is at step 6, .* step 4"):
        stubbed(path, HALF, retry=True)
    found, calls = stubbed(path, HALF)
    assert found["arms"]["plain"]["best"] == "lr0.1" and len(calls) == 2
    (directory / "result.json").unlink()
    assert len(stubbed(path, {"search.rungs": (0.75,)})[1]) == 2, "at step 6 itself"


def test_points_that_predict_other_tokens_are_named(stubbed, source, tmp_path):
    (sentence,) = stubbed(source({"plain": {"data": {"masking": {"rate": (0.15, 0.3)}}}}))[0]["incomparable"]
    assert sentence.endswith("data.masking.rate: 0.15, 0.3")
    assert f"**{sentence}.**" in (tmp_path / "made" / "report.md").read_text()


def test_plateaus_of_training_and_of_validation_are_those_of_their_masks(monkeypatch, tmp_path):
    """For replaced tokens, of which a smaller share is easier to guess. The margin is 0.02."""
    monkeypatch.setattr(search_run, "plateau_loss", lambda config, directory: 2 * config.data.masking.rate)
    rows = [{"step": step, "split": "train", "rtd_loss": loss} for step, loss in ((2, 0.59), (4, 0.57))]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = pretraining_config.default_config()
    config.replaced_tokens.generator = "mlm"
    config.data.masking.update(rate=0.3, evaluation_rate=0.2)
    found = search_run._threshold(pretraining_config.parse(config), epath.Path(tmp_path), {})
    assert found == (pytest.approx(0.4 - 0.02), 4, None)


@pytest.mark.parametrize("name", ["result.json", "result-4.json"])
def test_damaged_results_are_named(name, stubbed, source, tmp_path):
    path = source({"plain": rates(0.01, 0.8)}, **HALF)
    found, _ = stubbed(path)
    place = tmp_path / "made" / "plain" / "lr0.01-seed0" / name
    whole = place.read_text()
    place.write_text(whole.replace('"validation_loss": ', '"validation_loss": 1'))
    with pytest.raises(ValueError, match=f"{place} has another content"):
        stubbed(path)
    place.write_text(whole)
    assert stubbed(path) == (found, [])


def test_names_of_points(source):
    """Of the settings in the order of the grid, with the whole path where two settings have one last part."""
    grid = {"model": {"dropout": (0.0, 0.1), "remat": ("none",)}, "optimizer": {"learning_rate": (1e-5, 1 / 3)}}
    names = [point.name for point in points.study(config_files.load(source({"plain": grid}), {})).points]
    assert names[:2] == ["dropout0-remat" + "none-lr1e-05", "dropout0-remat" + "none-lr0.3333333333333333"]
    grid = {"optimizer": {"learning_rate": (0.5,)}, "adversarial": {"asa": {"learning_rate": (0.5, 0.25)}}}
    found = points.study(config_files.load(source({"plain": grid}, **{"adversarial.method": "asa"}), {})).points
    assert [point.name for point in found] == ["learning_rate0.5-lr0.5", "learning_rate0.25-lr0.5"]
