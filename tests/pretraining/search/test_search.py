"""A search from the grids to `best.json`, with a stub in the place of training: in one process, in two, and killed."""

import hashlib
import json
import math
import statistics

import jax
import pytest
from etils import epath

from ag_jax import config_reader
from ag_jax.pretraining import config as pretraining_config
from ag_jax.pretraining import corpus, run, words
from ag_jax.pretraining.search import choose, points, report, states
from ag_jax.pretraining.search import run as search_run
from ag_jax.pretraining.search.choose import NextRun
from ag_jax.pretraining.search.states import RunState
from ag_jax.training.loop import NonFiniteError
from tests import commands
from tests.pretraining.search import studies
from tests.pretraining.search.studies import config_file, rates

GRID = {"optimizer": {"learning_rate": (0.1, 0.02), "warmup_steps": (0, 1, 3)}}


@pytest.fixture
def stubbed(monkeypatch, tmp_path, one_device):
    """Returns a function that runs a search with the stub, and returns `search.json` and the calls of the stub."""
    monkeypatch.setattr(run, "train", studies.stub)
    monkeypatch.setattr(search_run, "plateau_loss", lambda config, directory: studies.PLATEAU)

    def search(source, overrides=None, **options):
        search_run.search(source, overrides or {}, epath.Path(tmp_path / "made"), **options)
        return read(tmp_path / "made")

    return search


def read(workdir):
    calls = workdir / "calls.txt"
    lines = calls.read_text().splitlines() if calls.exists() else []
    calls.unlink(missing_ok=True)
    return json.loads((workdir / "search.json").read_text()), lines


def test_every_point_once_and_the_best_is_known(stubbed, tmp_path):
    source = config_file(tmp_path / "six.py", {"mlm": GRID})
    found, calls = stubbed(source)
    names = [f"lr{rate}-warmup{warmup}" for rate in ("0.1", "0.02") for warmup in (0, 1, 3)]
    assert calls == [f"mlm/{name}-seed0 None" for name in names]
    of_arm = found["arms"]["mlm"]
    # 4 + |log10(lr) + 2| + warm-up / 4
    near, far = 4 + math.log10(2), 5
    assert of_arm["best"] == "lr0.02-warmup0"
    assert of_arm["points"]["lr0.02-warmup0"]["validation_loss"] == pytest.approx(near, abs=1e-6)
    by_rate, by_warmup = of_arm["settings"]["optimizer.learning_rate"], of_arm["settings"]["optimizer.warmup_steps"]
    assert [(row["value"], row["points"]) for row in by_rate] == [(0.1, 3), (0.02, 3)]
    assert [row["best"] for row in by_rate] == pytest.approx([far, near], abs=1e-6)
    assert [row["median"] for row in by_rate] == pytest.approx([far + 0.25, near + 0.25], abs=1e-6)
    assert [row["median"] for row in by_warmup] == pytest.approx(
        [(far + near) / 2 + added for added in (0, 0.25, 0.75)], abs=1e-6
    )
    # The plateau is at 5.4, and 0.3 below it is left: 4.30, 4.55, 5.05 and 5.00 are.
    robust = of_arm["robustness"]
    assert (robust["points"], robust["left_plateau"]) == (6, 4)
    losses = [far, far + 0.25, far + 0.75, near, near + 0.25, near + 0.75]
    assert robust["median"] == pytest.approx(statistics.median(losses), abs=1e-6)
    assert [robust["lowest"], robust["highest"]] == pytest.approx([near, far + 0.75], abs=1e-6)

    text = (tmp_path / "made" / "report.md").read_text()
    assert "The best of 6 points by `validation_loss` is **lr0.02-warmup0**" in text
    assert text.index("| 1 | 0.02 | 0 | 4.301 |") < text.index("| 6 | 0.1 | 3 | 5.750 |")
    assert "| `optimizer.learning_rate` | 0.1 | 3 | 5.000 | 5.250 |" in text
    assert "| mlm | 4 of 6 | 67% | 0 | 0 | 5.026 | 4.301 to 5.750 |" in text
    assert "figures/search_mlm.png" in text and (tmp_path / "made" / "figures" / "search_mlm.png").exists()
    chosen = choose.read_best(tmp_path / "made", "mlm", {})
    assert chosen == {"optimizer.learning_rate": 0.02, "optimizer.warmup_steps": 0}
    with pytest.raises(ValueError, match="no best point of arm ag: it has mlm"):
        choose.read_best(tmp_path / "made", "ag", {})


def test_the_best_point_states_what_only_the_grids_of_other_arms_search(stubbed, tmp_path):
    source = config_file(
        tmp_path / "two.py",
        {"mlm": rates(0.1, 0.02), "ag": {"optimizer": {"warmup_steps": (0, 1)}}},
        **{"optimizer.learning_rate": 0.3, "optimizer.warmup_steps": 2},
    )
    stubbed(source)
    found = {arm: choose.read_best(tmp_path / "made", arm, {}) for arm in ("mlm", "ag")}
    assert found["mlm"] == {"optimizer.learning_rate": 0.02, "optimizer.warmup_steps": 2}
    assert found["ag"] == {"optimizer.learning_rate": 0.3, "optimizer.warmup_steps": 0}


def test_a_larger_grid_keeps_what_is_done(stubbed, tmp_path):
    stubbed(config_file(tmp_path / "two.py", {"mlm": rates(0.1, 0.02)}))
    found, calls = stubbed(config_file(tmp_path / "three.py", {"mlm": rates(0.1, 0.01, 0.02)}))
    assert calls == ["mlm/lr0.01-seed0 None"] and found["arms"]["mlm"]["best"] == "lr0.01"
    assert stubbed(str(tmp_path / "three.py")) == (found, [])


def test_the_best_point_of_a_smaller_grid_is_not_that_of_an_unfinished_search(stubbed, tmp_path, monkeypatch):
    stubbed(config_file(tmp_path / "two.py", {"mlm": rates(0.1, 0.02)}))

    def ends(*_, **__):
        raise RuntimeError("the machine is gone")

    monkeypatch.setattr(run, "train", ends)
    with pytest.raises(RuntimeError, match="the machine is gone"):
        stubbed(config_file(tmp_path / "three.py", {"mlm": rates(0.1, 0.01, 0.02)}))
    with pytest.raises(FileNotFoundError, match="best.json"):
        choose.read_best(tmp_path / "made", "mlm", {})


def test_the_best_point_of_another_search_is_refused(stubbed, tmp_path):
    """Of one whose config file had other arguments; those that the file does not take are not compared."""
    path = tmp_path / "sized.py"
    config_file(path, {"mlm": rates(0.1, 0.02)})
    path.write_text(path.read_text().replace('arm=("mlm", "ag"))', 'arm=("mlm", "ag"), layers=(2, 4), scale="paper")'))
    stubbed(f"{path}:layers=4")
    expected = {"layers": 4, "scale": "paper", "language": "oromo"}
    assert choose.read_best(tmp_path / "made", "mlm", expected)["optimizer.learning_rate"] == 0.02
    with pytest.raises(ValueError, match="best.json is of a search with layers=4, expected layers=2: give the"):
        choose.read_best(tmp_path / "made", "mlm", expected | {"layers": 2})


def test_table_3_trains_the_best_points_of_the_search_of_section_4_5(stubbed, tmp_path, monkeypatch):
    """Its own best.json, of all 48 points at scale=small: neither arm's best point has the settings of table 3."""

    def loss_of(config, step):
        optimizer, guidance = config.optimizer, config.guidance
        grid = (optimizer.learning_rate, optimizer.warmup_steps, config.model.attention_dropout)
        far = sum(value != wanted for value, wanted in zip(grid, (1e-3, 33, 0.1), strict=True))
        if guidance.mode == "none":
            return 5 + far
        return 4 + far / 10 + (guidance.fraction != 0.75) + (guidance.alpha != 10)

    monkeypatch.setattr(studies, "loss_of", loss_of)
    found, calls = stubbed("ag/section4_5_search:scale=small")
    assert len(calls) == 48 and found["arms"]["mlm"]["best"] == "attention_dropout0.1-lr0.001-warmup33"
    assert found["arms"]["ag_strength"]["best"] == "alpha10-fraction0.75-lr0.002-warmup0"

    def table_3(argument):
        source = f"ag/table3_language_modeling:scale=small,{argument},best={tmp_path / 'made'}"
        return config_reader.parse(pretraining_config.ExperimentConfig, config_reader.load(source))

    mlm, ag = table_3("layers=8,arm=mlm"), table_3("layers=8,arm=ag")
    assert (mlm.optimizer.learning_rate, mlm.optimizer.warmup_steps, mlm.model.attention_dropout) == (1e-3, 33, 0.1)
    assert mlm.guidance.mode == "none" and ag.guidance.mode == "loss"
    assert (ag.optimizer.learning_rate, ag.optimizer.warmup_steps) == (2e-3, 0)
    assert (ag.guidance.fraction, ag.guidance.alpha) == (0.75, 10.0)
    searched = points.study("ag/section4_5_search:scale=small", {}).points
    best = next(point.configs[0] for point in searched if point.name == found["arms"]["ag_strength"]["best"])
    assert ag.model.attention_dropout == best.model.attention_dropout
    with pytest.raises(ValueError, match="is of a search with layers=8, expected layers=12: give the --workdir of"):
        table_3("arm=ag")


def test_ties_go_to_the_earlier_point_and_seeds_are_averaged(stubbed, tmp_path):
    source = config_file(tmp_path / "ties.py", {"mlm": rates(0.1, 0.001)}, **{"search.seeds": (0, 4)})
    found, calls = stubbed(source)
    assert len(calls) == 4 and found["arms"]["mlm"]["best"] == "lr0.1"
    assert found["arms"]["mlm"]["points"]["lr0.1"]["validation_loss"] == pytest.approx(5.02)
    assert found["arms"]["mlm"]["points"]["lr0.1"]["seeds"]["4"]["validation_loss"] == pytest.approx(5.04)


def test_shorter_runs_and_a_limit_of_time(stubbed, tmp_path):
    """`search.steps` changes the config of every point; after `stop_after` no run is begun."""
    source = config_file(tmp_path / "short.py", {"mlm": rates(0.1, 0.02)})
    study = points.study(source, {"search.steps": 5})
    assert [config.training.steps for point in study.points for config in point.configs.values()] == [5, 5]
    found, calls = stubbed(source, {"search.stop_after": 1e-9})
    assert calls == [] and not found["complete"] and found["arms"]["mlm"]["best"] is None
    assert "2 of 2 points are not finished" in (tmp_path / "made" / "report.md").read_text()
    assert not (tmp_path / "made" / "best.json").exists()
    found, calls = stubbed(source)
    assert len(calls) == 2 and found["complete"] and (tmp_path / "made" / "best.json").exists()


def test_runs_whose_length_is_in_words(stubbed, tmp_path, monkeypatch):
    """Each point has the steps that its batch size takes for these words; the search ends, and is then complete."""
    text, words_of_run = studies.text_files(tmp_path / "text"), 400
    cache = {"data.source": text, "data.cache_dir": str(tmp_path / "cache"), "data.sequence_length": 16}
    grid = {"training": {"batch_size": (2, 5)}}
    source = config_file(tmp_path / "words.py", {"mlm": grid}, **cache, **{"training.words": words_of_run})
    trained = []

    def resolving(config, directory, labels, pause_at=None):
        trained.append(words.resolve(config, directory, run.is_begun)[0])
        if len(trained) > 2:
            raise RuntimeError("a run is trained again")
        return studies.stub(trained[-1], directory, labels, pause_at)

    monkeypatch.setattr(run, "train", resolving)
    found, calls = stubbed(source)
    assert found["complete"] and len(calls) == 2
    facts = words.of_corpus(trained[0], corpus.prepare(trained[0], epath.Path(tmp_path / "none")))
    of_row = facts.epoch_words / facts.epoch_rows
    assert [config.training.steps for config in trained] == [int(words_of_run / of_row / size) for size in (2, 5)]
    with pytest.raises(ValueError, match="is step 0, expected one from step 2"):
        stubbed(source, {"search.rungs": (0.01,)})


@pytest.mark.parametrize(
    ("grid", "overrides", "named"),
    [
        (rates(0.1), {"training.steps": 5, "search.steps": 4}, "search.steps and --config.training.steps"),
        (rates(0.1), {"training.words": 99, "search.steps": 4}, "search.steps and training.words"),
        (rates(0.1), {"training.words": 99, "training.steps": 4}, "--config.training.steps and training.words"),
        ({"training": {"steps": (5, 6)}}, {"search.steps": 4}, "search.steps and training.steps in search.grids"),
    ],
)
def test_two_settings_of_the_length_are_an_error(tmp_path, grid, overrides, named):
    source = config_file(tmp_path / "long.py", {"mlm": grid})
    with pytest.raises(ValueError, match=f"{named} give the length of the runs: set only one"):
        points.study(source, overrides)
    points.study(source, dict(list(overrides.items())[:-1]))


def test_failed_points_are_listed_and_cannot_win(stubbed, tmp_path):
    source = config_file(tmp_path / "failing.py", {"mlm": rates(studies.DIVERGES, 0.1), "ag": rates(0.1, 0.75)})
    found, calls = stubbed(source)
    assert len(calls) == 4 and [found["arms"][arm]["best"] for arm in ("mlm", "ag")] == ["lr0.1", "lr0.1"]
    failed = found["arms"]["mlm"]["points"]["lr0.75"]
    assert failed["status"] == "failed" and failed["failures"] == {"0": "mlm_loss is not finite at step 3."}
    assert [*found["arms"]["mlm"]["points"]] == ["lr0.1", "lr0.75"] and found["complete"]
    # Both leave the plateau at 0.1, with losses of 4.0 and 5.0, and diverge at 0.75.
    assert found["paired"] == [{"arms": ["ag", "mlm"], "points": 2, "left_plateau_alone": [0, 0], "p_value": 1.0}]
    robust = found["arms"]["ag"]["robustness"]
    assert (robust["points"], robust["left_plateau"], robust["failed"]) == (2, 1, 1) and failed["left_plateau"] is False
    text = (tmp_path / "made" / "report.md").read_text()
    assert "* lr0.75, seed 0, failed: mlm_loss is not finite" in text
    assert "| mlm | 1 of 2 | 50% | 1 | 0 | 5.000 | 5.000 to 5.000 |" in text
    assert stubbed(source)[1] == [], "a failure is not trained again"
    assert stubbed(source, retry=True)[1] == ["ag/lr0.75-seed0 None", "mlm/lr0.75-seed0 None"]


def test_a_point_with_a_failed_seed_cannot_win(stubbed, tmp_path):
    source = config_file(tmp_path / "seeds.py", {"mlm": rates(0.1, 0.02)}, **{"search.seeds": (0, studies.UNLUCKY)})
    found, calls = stubbed(source)
    of_points = found["arms"]["mlm"]["points"]
    assert len(calls) == 4 and found["arms"]["mlm"]["best"] == "lr0.1"
    assert of_points["lr0.02"]["status"] == "failed" and [*of_points["lr0.02"]["failures"]] == ["13"]
    assert of_points["lr0.02"]["seeds"]["0"]["validation_loss"] < of_points["lr0.1"]["seeds"]["0"]["validation_loss"]


def test_a_point_leaves_the_plateau_only_with_all_of_its_seeds(stubbed, tmp_path):
    """The losses at 0.1 are 5.0 and 5.15, of which the mean is below the end of the plateau, 5.1."""
    source = config_file(tmp_path / "seeds.py", {"mlm": rates(0.1, 0.05)}, **{"search.seeds": (0, 15)})
    of_arm = stubbed(source)[0]["arms"]["mlm"]
    assert {name: one["left_plateau"] for name, one in of_arm["points"].items()} == {"lr0.05": True, "lr0.1": False}
    assert (of_arm["robustness"]["points"], of_arm["robustness"]["left_plateau"]) == (2, 1)


def test_arms_with_the_same_points_are_paired(stubbed, tmp_path):
    """mlm ends at 5.0 and 5.7, ag at 4.0 and 4.7."""
    grids = {"mlm": rates(0.1, 0.5), "ag": rates(0.5, 0.1)}
    found, _ = stubbed(config_file(tmp_path / "paired.py", grids))
    assert found["paired"] == [{"arms": ["ag", "mlm"], "points": 2, "left_plateau_alone": [1, 0], "p_value": 1.0}]
    text = (tmp_path / "made" / "report.md").read_text()
    assert "the same points, 2 of them counted in both: 1 left the plateau in ag alone, 0 in mlm alone (p = 1," in text
    assert "exact McNemar test; p < .05 takes at least 6 points that leave it in one arm alone)." in text
    assert "by more than 0.3 nats (0.02 in replaced-token detection)" in text


def test_a_point_that_diverged_did_not_leave_the_plateau(monkeypatch, tmp_path, stubbed):
    """mlm diverges at 0.1, where ag leaves the plateau; at 0.2 its memory is too small, which says nothing."""

    def fails(config, directory, labels, pause_at=None):
        if config.guidance.mode != "loss" and config.optimizer.learning_rate == 0.1:
            raise NonFiniteError("mlm_loss is not finite at step 3.")
        if config.guidance.mode != "loss" and config.optimizer.learning_rate == 0.2:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.")
        return studies.stub(config, directory, labels, pause_at)

    monkeypatch.setattr(run, "train", fails)
    grid = rates(0.1, 0.2, 0.02)
    source = config_file(tmp_path / "failing.py", {"mlm": grid, "ag": grid})
    found, _ = stubbed(source)
    lowest = pytest.approx(4.30103)
    assert found["arms"]["mlm"]["robustness"] == {
        **{"points": 2, "left_plateau": 1, "failed": 2, "diverged": 1},
        **dict.fromkeys(("median", "lowest", "highest"), lowest),
    }
    of_points = found["arms"]["mlm"]["points"]
    assert [of_points[name]["left_plateau"] for name in ("lr0.1", "lr0.2", "lr0.02")] == [False, None, True]
    assert found["paired"] == [{"arms": ["ag", "mlm"], "points": 2, "left_plateau_alone": [1, 0], "p_value": 1.0}]
    text = (tmp_path / "made" / "report.md").read_text()
    assert "| mlm | 1 of 2 | 50% | 1 | 1 | 4.301 |" in text and "| ag | 3 of 3 | 100% | 0 | 0 |" in text
    assert "| 2 | 0.1 | diverged |" in text and "| 3 | 0.2 | failed |" in text
    assert stubbed(source) == (found, [])


def test_out_of_memory_is_a_failure_and_other_errors_are_not(monkeypatch, tmp_path, stubbed):
    messages = iter(["RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.", "INTERNAL: a defect"])

    def too_large(*_, **__):
        raise jax.errors.JaxRuntimeError(next(messages))

    monkeypatch.setattr(run, "train", too_large)
    with pytest.raises(jax.errors.JaxRuntimeError, match="a defect"):
        stubbed(config_file(tmp_path / "large.py", {"mlm": rates(0.1, 0.2)}))
    noted = json.loads((tmp_path / "made" / "mlm" / "lr0.1-seed0" / "failure.json").read_text())
    assert noted["reason"].startswith("out of memory: RESOURCE_EXHAUSTED")
    assert not (tmp_path / "made" / "mlm" / "lr0.2-seed0" / "failure.json").exists()


def test_failures_with_other_settings_do_not_count(monkeypatch, tmp_path, stubbed, capsys):
    """Two runs need too much memory with four rows a step, and are trained with two; nothing is trained twice."""

    def too_large(config, directory, labels, pause_at=None):
        if config.training.batch_size == 4:
            studies.begin(config, directory)
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.")
        return studies.stub(config, directory, labels, pause_at)

    monkeypatch.setattr(run, "train", too_large)
    source = config_file(tmp_path / "large.py", {"mlm": rates(0.1, 0.2)})
    for told in (False, True):
        with pytest.raises(ValueError, match="(?s)every point .* failed:.*or train them again with --retry"):
            stubbed(source)
        assert ("2 runs failed before and are not trained again: --retry" in capsys.readouterr().err) == told
    smaller = {"training.batch_size": 2, "search.seeds": (0,), "title": "the same runs"}
    found, calls = stubbed(source, smaller)
    assert found["complete"] and len(calls) == 2 and stubbed(source, smaller) == (found, [])


def test_a_failure_has_the_settings_that_are_not_at_their_defaults(stubbed, tmp_path):
    """So that a setting that is added later does not make them failures of other settings."""
    source = config_file(tmp_path / "failing.py", {"mlm": rates(studies.DIVERGES, 0.1)}, **{"model.remat": "layer"})
    of_run = {
        **{"data.sequence_length": 16, "data.tokenizer.vocabulary_size": 300, "optimizer.learning_rate": 0.75},
        **{"model.layers": 2, "model.width": 12, "model.heads": 6, "model.max_length": 16, "model.remat": "layer"},
        **{"training.steps": 8, "training.batch_size": 4, "training.log_every": 2, "training.evaluate_every": None},
    }
    stubbed(source)
    failure = json.loads((tmp_path / "made" / "mlm" / "lr0.75-seed0" / "failure.json").read_text())
    assert failure["settings"] == hashlib.sha256(json.dumps(of_run, sort_keys=True).encode()).hexdigest()
    of_no_effect = {"data.verify_cache": True, "data.accept_changed_text": True, "training.checkpoint_every": 3}
    assert stubbed(source, {"data.expected_tokens": 9, **of_no_effect})[1] == []
    assert stubbed(source, {"model.remat": "none"})[1] == ["mlm/lr0.75-seed0 None"]


def test_a_seed_of_a_failed_point_comes_to_every_rung(tmp_path):
    """Otherwise its losses there would not be known when --retry trains the seed that failed."""
    source = config_file(tmp_path / "seeds.py", {"mlm": rates(0.02)})
    study = points.study(source, {"search.seeds": (studies.UNLUCKY, 0), "search.rungs": (0.5,)})
    found = {(0, studies.UNLUCKY): RunState(failure="diverged"), (0, 0): RunState()}
    assert choose.halved(study, found)[0] == [NextRun(0, 0, 4)]
    found[0, 0] = RunState(rungs={"4": dict.fromkeys(("train_loss", "validation_loss", "average_train_loss"), 5.0)})
    assert choose.halved(study, found)[0] == [NextRun(0, 0, None)]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_at_a_rung_that_is_not_finite_is_a_failure(monkeypatch, tmp_path, stubbed, bad):
    def not_finite(config, directory, labels, pause_at=None):
        losses = studies.stub(config, directory, labels, pause_at)
        return losses | ({"validation_loss": bad} if config.optimizer.learning_rate == 0.3 else {})

    monkeypatch.setattr(run, "train", not_finite)
    source = config_file(tmp_path / "rungs.py", {"mlm": rates(0.3, 0.02, 0.4, 0.8)}, **{"search.rungs": (0.5,)})
    found, _ = stubbed(source)
    failed = found["arms"]["mlm"]["points"]["lr0.3"]
    assert failed["failures"] == {"0": "validation_loss is not finite at step 4"}
    assert found["arms"]["mlm"]["robustness"]["failed"] == 1
    assert [*found["arms"]["mlm"]["points"]] == ["lr0.02", "lr0.4", "lr0.8", "lr0.3"]


def test_arms_with_other_settings_are_not_paired(tmp_path):
    """Names of points have the last parts of the settings' names only."""

    def result(arm, setting):
        point = points.Point(arm, "step_size0.1", {setting: 0.1}, {})
        return choose.Result(point, "done", {"validation_loss": 5.0}, None, {})

    left = {(arm, "step_size0.1"): arm == "freelb" for arm in ("freelb", "smart", "again")}
    settings = {arm: f"adversarial.{arm}.step_size" for arm in ("freelb", "smart")} | {
        "again": "adversarial.freelb.step_size"
    }
    found = report._paired([result(arm, setting) for arm, setting in settings.items()], left)
    assert found == [{"arms": ["freelb", "again"], "points": 1, "left_plateau_alone": [1, 0], "p_value": 1.0}]


def test_halving_stops_the_worse_half(stubbed, tmp_path):
    """Eight points whose order never changes: after a quarter of the steps four stop, after half of them two more."""
    values = (0.01, 0.8, 0.02, 0.4, 0.03, 0.2, 0.04, 0.1)
    source = config_file(tmp_path / "rungs.py", {"mlm": rates(*values)}, **{"search.rungs": (0.25, 0.5)})
    found, calls = stubbed(source)
    best = ["0.01", "0.02", "0.03", "0.04"]
    assert calls == [
        *(f"mlm/lr{value}-seed0 2" for value in values),
        *(f"mlm/lr{value}-seed0 4" for value in best),
        *(f"mlm/lr{value}-seed0 None" for value in best[:2]),
    ]
    of_points = found["arms"]["mlm"]["points"]
    assert {name: one["status"] for name, one in of_points.items()} == {
        **{f"lr{value:g}": "stopped" for value in values},
        "lr0.01": "done",
        "lr0.02": "done",
    }
    assert [of_points[f"lr{value}"]["stopped_at_step"] for value in ("0.03", "0.04", "0.1", "0.8")] == [4, 4, 2, 2]
    assert [*of_points][:4] == ["lr0.01", "lr0.02", "lr0.03", "lr0.04"] and found["complete"]
    assert of_points["lr0.03"]["validation_loss"] == pytest.approx(4 + math.log10(3) + 4 / 4, abs=1e-6)
    assert found["arms"]["mlm"]["robustness"]["points"] == 2, "what was stopped is not known to stay on the plateau"
    assert stubbed(source) == (found, [])


def test_the_highest_accuracy_is_the_best(stubbed, tmp_path, monkeypatch, one_device):
    """At the rung, in the ranking, the report, the heat map and best.json; the losses have the other order."""
    maps = []
    monkeypatch.setattr(search_run.figures, "heat_maps", lambda found, directory: maps.extend(found) or [])
    grid = {"optimizer": {"learning_rate": (0.01, 0.1, 0.5, studies.DIVERGES), "warmup_steps": (0, 1)}}
    source = config_file(tmp_path / "accuracy.py", {"mlm": grid}, **{"search.metric": "mlm_accuracy"})
    found, calls = stubbed(source, {"search.rungs": (0.5,)})
    names = [f"lr{rate}-warmup{warmup}" for rate in ("0.01", "0.1", "0.5", "0.75") for warmup in (0, 1)]
    best = ["lr0.5-warmup1", "lr0.5-warmup0", "lr0.1-warmup1", "lr0.1-warmup0"]
    assert calls == [*(f"mlm/{name}-seed0 4" for name in names), *(f"mlm/{name}-seed0 None" for name in names[2:6])]
    of_arm = found["arms"]["mlm"]
    assert of_arm["best"] == best[0] and [*of_arm["points"]] == [*best, "lr0.01-warmup1", "lr0.01-warmup0", *names[6:]]
    # (4 + |log10(lr) + 2| + warm-up / 4) / 10
    high, low = (4 + math.log10(50)) / 10, 0.5
    values = [high + 0.025, high, low + 0.025, low]
    assert [of_arm["points"][name]["mlm_accuracy"] for name in best] == pytest.approx(values, abs=1e-6)
    by_rate = {row["value"]: row["best"] for row in of_arm["settings"]["optimizer.learning_rate"]}
    assert (by_rate[0.1], by_rate[0.5]) == pytest.approx((low + 0.025, high + 0.025), abs=1e-6)
    robust = of_arm["robustness"]
    assert [robust["lowest"], robust["highest"]] == pytest.approx([low, high + 0.025], abs=1e-6)
    assert robust["left_plateau"] == 1, "the plateau is one of the loss, 5.1: only 5.0 is below"
    assert not maps[-1].is_lower_better and maps[-1].metric == "mlm_accuracy"
    text = (tmp_path / "made" / "report.md").read_text()
    assert "by `mlm_accuracy` (the higher, the better) is **lr0.5-warmup1**" in text
    assert "The `mlm_accuracy` of the best point is a little too high, because" in text
    assert "| `mlm_accuracy` | Validation |" in text and "| 1 | 0.5 | 1 | 0.595 | 5.949 |" in text
    chosen = {"optimizer.learning_rate": 0.5, "optimizer.warmup_steps": 1}
    assert choose.read_best(tmp_path / "made", "mlm", {}) == chosen
    path = tmp_path / "made" / "best.json"
    content = json.loads(path.read_text())
    assert content["arms"]["mlm"]["mlm_accuracy"] == pytest.approx(high + 0.025, abs=1e-6)
    content["arms"]["mlm_longer"] = {"settings": {}, "mlm_accuracy": high}
    path.write_text(json.dumps(content))
    assert choose.read_best(tmp_path / "made", "mlm", {}) == chosen, "the highest of the arms mlm and mlm_longer"


def test_cells_of_heat_maps_have_the_best_value(stubbed, tmp_path, monkeypatch, one_device):
    """The best over a third setting."""
    maps = []
    monkeypatch.setattr(search_run.figures, "heat_maps", lambda found, directory: maps.extend(found) or [])
    optimizer = {"learning_rate": (0.1, 0.5), "warmup_steps": (0, 1)}
    source = config_file(tmp_path / "three.py", {"mlm": {"model": {"dropout": (0.0, 0.1)}, "optimizer": optimizer}})
    for metric, best in (("validation_loss", (5.0, 5.69897)), ("mlm_accuracy", (0.525, 0.594897))):
        stubbed(source, {"search.metric": metric})
        assert (maps[-1].rows, maps[-1].columns) == ("model.dropout", "optimizer.learning_rate")
        assert maps[-1].cells == [pytest.approx(best, abs=1e-6)] * 2


@pytest.fixture
def unmeasured(monkeypatch):
    """Returns a function after which the stub measures no accuracy, None, where a function of config and step says."""

    def choose_runs(is_unmeasured):
        accuracy_of = studies.accuracy_of
        monkeypatch.setattr(
            studies,
            "accuracy_of",
            lambda config, step: None if is_unmeasured(config, step) else accuracy_of(config, step),
        )

    return choose_runs


def test_a_metric_that_was_not_measured_is_the_worst(stubbed, tmp_path, unmeasured, one_device, capsys):
    """By accuracy, 0.5 would be the best, but has none at the rung, with one of its seeds; 0.1 has none at the end."""
    missing = {(0.5, 0, 4), (0.1, 1, studies.STEPS)}
    unmeasured(lambda config, step: (config.optimizer.learning_rate, config.seed, step) in missing)
    settings = {"search.metric": "mlm_accuracy", "search.rungs": (0.5,), "search.seeds": (0, 1)}
    source = config_file(tmp_path / "none.py", {"mlm": rates(0.5, 0.1, 0.02, 0.01)}, **settings)
    found, calls = stubbed(source)
    told = capsys.readouterr().err
    assert told.count("mlm_accuracy not measured\n") == 2 and "mlm/lr0.5-seed0: mlm_accuracy not measured\n" in told
    names = ("lr0.1-seed0", "lr0.1-seed1", "lr0.02-seed0", "lr0.02-seed1")
    assert calls[8:] == [f"mlm/{name} None" for name in names]
    of_arm = found["arms"]["mlm"]
    assert [*of_arm["points"]] == ["lr0.02", "lr0.1", "lr0.01", "lr0.5"] and of_arm["best"] == "lr0.02"
    values = [one["mlm_accuracy"] for one in of_arm["points"].values()]
    assert values == [pytest.approx(0.430603, abs=1e-6), None, pytest.approx(0.5005), None]
    assert of_arm["points"]["lr0.1"]["validation_loss"] == pytest.approx(5.005)
    assert of_arm["robustness"]["median"] == of_arm["robustness"]["highest"] == pytest.approx(0.430603, abs=1e-6)
    text = (tmp_path / "made" / "report.md").read_text()
    assert "| 2 | 0.1 | not measured | 5.005 |" in text and "| 4 | 0.5 | not measured | 6.704 |" in text
    assert "| `optimizer.learning_rate` | 0.1 | 0 | – | – |" in text
    assert choose.read_best(tmp_path / "made", "mlm", {}) == {"optimizer.learning_rate": 0.02}
    assert stubbed(source) == (found, []), "known at the rung: not trained again"


def test_cells_of_heat_maps_without_a_measured_value_are_empty(stubbed, tmp_path, unmeasured, monkeypatch, one_device):
    maps = []
    monkeypatch.setattr(search_run.figures, "heat_maps", lambda found, directory: maps.extend(found) or [])
    unmeasured(lambda config, step: config.optimizer.learning_rate == 0.1 and config.optimizer.warmup_steps < 3)
    stubbed(config_file(tmp_path / "none.py", {"mlm": GRID}, **{"search.metric": "mlm_accuracy"}))
    assert (maps[-1].rows, maps[-1].columns) == ("optimizer.warmup_steps", "optimizer.learning_rate")
    assert [row[0] for row in maps[-1].cells] == [None, None, pytest.approx(0.575)]
    assert all(row[1] is not None for row in maps[-1].cells)


def test_no_point_is_the_best_if_none_measured_the_metric(stubbed, tmp_path, unmeasured, one_device):
    unmeasured(lambda config, step: True)
    grid = {"mlm": rates(0.1, 0.02, studies.DIVERGES)}
    source = config_file(tmp_path / "none.py", grid, **{"search.metric": "mlm_accuracy"})
    found, _ = stubbed(source)
    assert found["complete"] and found["arms"]["mlm"]["best"] is None
    text = (tmp_path / "made" / "report.md").read_text()
    assert "There is no best point: of 3 points, 2 are done, but did not measure `mlm_accuracy`." in text
    with pytest.raises(ValueError, match="has no best point of arm mlm: it has none"):
        choose.read_best(tmp_path / "made", "mlm", {})
    assert stubbed(source) == (found, [])


def test_a_search_by_another_metric_has_its_values_at_the_rungs(stubbed, tmp_path, one_device):
    """`rungs.json` has all numbers, so the point that is the better one now goes on from its rung."""
    source = config_file(tmp_path / "rungs.py", {"mlm": rates(0.01, 0.8)}, **{"search.rungs": (0.25, 0.5)})
    stubbed(source)
    calls = stubbed(source, {"search.metric": "mlm_accuracy"})[1]
    assert calls == ["mlm/lr0.8-seed0 4", "mlm/lr0.8-seed0 None"]


TRANSLATES = {"decoder.layers": 1, "data.format": "parallel", "data.source": "a.en", "data.target": "a.de"}


@pytest.mark.parametrize(
    ("settings", "known"),
    [
        ({"search.metric": "loss"}, "train_loss, validation_loss, average_train_loss, .*mlm_accuracy, mlm_loss"),
        ({"search.metric": "mlm_accuracy", **TRANSLATES}, "average_train_loss, accuracy, nll, translation_loss"),
        ({"search.metric": "nll", "search.rungs": (0.5,)}, "mlm_accuracy"),
    ],
)
def test_a_metric_that_runs_do_not_measure_is_refused_before_anything_runs(
    stubbed, tmp_path, one_device, settings, known
):
    source = config_file(tmp_path / "one.py", {"mlm": rates(0.1)})
    with pytest.raises(
        ValueError, match=f"search.metric={settings['search.metric']} is no number .* mlm/lr0.1 .*{known}"
    ):
        stubbed(source, settings)
    assert not (tmp_path / "made" / "calls.txt").exists()


def test_a_finished_run_without_the_metric_is_named(stubbed, tmp_path, one_device):
    source = config_file(tmp_path / "one.py", {"mlm": rates(0.1)})
    stubbed(source)
    path = tmp_path / "made" / "mlm" / "lr0.1-seed0" / "summary.json"
    summary = json.loads(path.read_text())
    path.write_text(json.dumps(summary | {"validation": {"mlm_loss": 5.0}}))
    with pytest.raises(ValueError, match="summary.json: expected the key 'mlm_accuracy', got none"):
        stubbed(source, {"search.metric": "mlm_accuracy"})


def test_a_failure_counts_as_the_worst_at_a_rung(stubbed, tmp_path):
    grid = rates(studies.DIVERGES, 0.5, 0.02, 0.9)
    found, calls = stubbed(config_file(tmp_path / "bad.py", {"mlm": grid}, **{"search.rungs": (0.5,)}))
    assert calls[4:] == ["mlm/lr0.5-seed0 None", "mlm/lr0.02-seed0 None"]
    assert found["arms"]["mlm"]["points"]["lr0.75"]["status"] == "failed"


def test_a_killed_search_goes_on(stubbed, tmp_path):
    source = config_file(tmp_path / "six.py", {"mlm": GRID})
    expected, _ = stubbed(source)
    killed = tmp_path / "killed"
    arguments = ["search", f"--config={source}", f"--workdir={killed}"]
    running = commands.Running(arguments, before=studies.install_hanging)
    running.wait_for("in the middle of the third")
    running.kill()
    done = commands.run(arguments, before=studies.install)
    assert done.returncode == 0, done.stderr
    found, calls = read(killed)
    assert found == expected and len(calls) == len(set(calls)) == 6
    assert (killed / "best.json").read_text() == (tmp_path / "made" / "best.json").read_text()
    assert f"the report is {killed / 'report.md'}" in done.stdout


def test_parts_in_two_processes_are_one_search(stubbed, tmp_path):
    source = config_file(tmp_path / "parts.py", {"mlm": GRID, "ag": rates(0.1, 0.02, 0.3)})
    expected, _ = stubbed(source)
    shared = tmp_path / "shared"
    arguments = ["search", f"--config={source}", f"--workdir={shared}"]
    both = [commands.Running([*arguments, f"--part={part}/2"], before=studies.install) for part in (1, 2)]
    assert [one.wait().returncode for one in both] == [0, 0], [one.stderr for one in both]
    found, calls = read(shared)
    assert found == expected and len(calls) == len(set(calls)) == 9


def test_a_part_waits_for_the_others_at_a_rung(stubbed, tmp_path, capsys):
    source = config_file(tmp_path / "rungs.py", {"mlm": rates(0.01, 0.8, 0.02, 0.4)}, **{"search.rungs": (0.5,)})
    assert stubbed(source, part="1/2")[1] == ["mlm/lr0.01-seed0 4", "mlm/lr0.02-seed0 4"]
    assert "2 runs of other parts are not as far" in capsys.readouterr().err
    assert stubbed(source, part="2/2")[1] == ["mlm/lr0.8-seed0 4", "mlm/lr0.4-seed0 4"]
    found, calls = stubbed(source, part="1/2")
    assert calls == ["mlm/lr0.01-seed0 None", "mlm/lr0.02-seed0 None"] and found["complete"]


def test_exit_status_if_all_fail(tmp_path):
    source = config_file(tmp_path / "worse.py", {"mlm": rates(studies.DIVERGES)})
    done = commands.run(["search", f"--config={source}", f"--workdir={tmp_path / 'made'}"], before=studies.install)
    assert done.returncode == 1 and "mlm/lr0.75: mlm_loss is not finite" in done.stderr
    assert json.loads((tmp_path / "made" / "best.json").read_text())["arms"] == {}


def test_a_batch_that_the_devices_cannot_divide_is_refused_before_anything_runs(tmp_path, eight_devices):
    source = config_file(tmp_path / "batches.py", {"mlm": {"training": {"batch_size": (8, 12)}}})
    made = epath.Path(tmp_path / "made")
    with pytest.raises(ValueError, match="mlm/bs12 cannot be trained: the 12 rows .* = 8"):
        search_run.search(source, {}, made)
    assert not made.exists()


def test_points_that_this_process_does_not_train_may_have_any_batch(stubbed, tmp_path, monkeypatch, eight_devices):
    """Another part trains them, or they are done, were stopped at a rung, or failed; with --retry these are trained."""
    grid = {"mlm": {"training": {"batch_size": (4, 12)}, "optimizer": {"learning_rate": (0.01, 0.8, studies.DIVERGES)}}}
    source = config_file(tmp_path / "rungs.py", grid, **{"search.rungs": (0.5,)})
    found, _ = stubbed(source)
    assert {one["status"] for one in found["arms"]["mlm"]["points"].values()} == {"done", "stopped", "failed"}
    monkeypatch.setattr(jax, "devices", lambda: eight_devices)
    assert stubbed(source) == (found, [])
    with pytest.raises(ValueError, match="cannot be trained: the (4|12) rows"):
        stubbed(source, retry=True)
    source = config_file(tmp_path / "two.py", {"mlm": {"training": {"batch_size": (8, 12)}}})
    search_run.search(source, {}, epath.Path(tmp_path / "parts"), part="1/2")
    with pytest.raises(ValueError, match="mlm/bs12 cannot be trained"):
        search_run.search(source, {}, epath.Path(tmp_path / "parts"), part="2/2")


REFUSED = {
    "misspelt": ({"mlm": {"optimizer": {"learning_rat": (1.0,)}}}, {}, "did you mean 'optimizer.learning_rate'"),
    "section": ({"mlm": {"optimiser": {"learning_rate": (1.0,)}}}, {}, "did you mean 'optimizer.learning_rate'"),
    "type": ({"mlm": {"optimizer": {"warmup_steps": (1, "x")}}}, {}, "search.grids.mlm: .*warmup_steps=x"),
    "range": ({"mlm": rates(0.1, -1.0)}, {}, "optimizer.learning_rate must be at least 1e-12, got -1.0 .at the point"),
    "together": ({"mlm": {"optimizer": {"warmup_steps": (0, 8)}}}, {}, "must be below training.steps=8"),
    "empty": ({"mlm": rates()}, {}, "must be a list of at least one value"),
    "text": ({"mlm": {"optimizer": {"decay": "linear"}}}, {}, "must be a list of at least one value.*'linear'"),
    "twice": ({"mlm": rates(0.1, 0.1)}, {}, "two points would have the directory lr0.1: give each value once"),
    "no settings": ({"mlm": {}}, {}, "search.grids.mlm has no settings"),
    "no grids": ({}, {}, "has no grids to search"),
    "arm": ({"mlmm": rates(0.1)}, {}, "search.grids.mlmm: .*arm must be one of mlm, ag, got 'mlmm'"),
    "one name": ({"mlm": rates(0.1), "MLM": rates(0.1)}, {}, "two arms with the name (MLM|mlm)"),
    "folder": ({"a/b": rates(0.1)}, {}, "the name of an arm is also that of a folder"),
    "no effect": ({"mlm": {"guidance": {"alpha": (1.0, 2.0)}}}, {}, "guidance.alpha has no effect there"),
    "same arms": (
        {"mlm": rates(0.1), "ag": rates(0.1)},
        {"guidance.mode": "none"},
        "the arms ag and mlm .* have the same points",
    ),
    "flag": ({"mlm": rates(0.1)}, {"optimizer.learning_rate": 0.5}, "leave the flag out"),
    "seed": ({"mlm": {"seed": (1, 2)}}, {}, "seed cannot be searched"),
    "ignored seed": ({"mlm": rates(0.1)}, {"seed": 5}, "seed=5 would be ignored.*set --config.search.seeds=5"),
    "one rung twice": ({"mlm": rates(0.1)}, {"search.rungs": (0.5, 0.55)}, "of 8 steps are the steps 4, 4: leave out"),
    "early rung": ({"mlm": rates(0.1)}, {"search.rungs": (0.125,)}, "step 2 .training.log_every=2"),
    "rung of the first step": (
        {"mlm": rates(0.1)},
        {"search.rungs": (0.125,), "training.log_every": 1, "optimizer.warmup_steps": 1},
        "is step 1, expected one from step 2",
    ),
    "rungs": ({"mlm": rates(0.1)}, {"search.rungs": (0.5, 0.25)}, "ascending order"),
    "seeds": ({"mlm": rates(0.1)}, {"search.seeds": (1, 1)}, "search.seeds must be one or more integers"),
    "losses": (
        {"mlm": {"replaced_tokens": {"generator": ("none", "mlm")}}},
        {"replaced_tokens.generator_fraction": 0.5},
        "measured by different losses",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_anything_runs(case, tmp_path):
    grids, overrides, message = REFUSED[case]
    with pytest.raises(ValueError, match=f"(?s){message}"):
        points.study(config_file(tmp_path / "config.py", grids), overrides)


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/2/3", ""])
def test_wrong_parts_are_refused(text, tmp_path):
    with pytest.raises(ValueError, match="--part must be K/N"):
        search_run.search("never read", {}, epath.Path(tmp_path), part=text)


def test_more_parts_than_points(stubbed, tmp_path):
    source = config_file(tmp_path / "two.py", {"mlm": rates(0.1, 0.02)})
    with pytest.raises(ValueError, match="--part=2/3 is one of 3 parts, but there are only 2 points"):
        stubbed(source, part="2/3")


def test_the_directory_of_another_run_is_refused_before_anything_runs(stubbed, tmp_path):
    source = config_file(tmp_path / "two.py", {"mlm": rates(0.1, 0.02)})
    last = tmp_path / "made" / "mlm" / "lr0.02-seed0"
    last.mkdir(parents=True)
    study = points.study(source, {"model.width": 24})
    values = json.dumps(config_reader.to_dict(study.points[1].configs[0]))
    (last / "config.json").write_text(values)
    (last / "summary.json").write_text(
        json.dumps({"train_loss": 1.0, "validation_loss": 1.0, "average_train_loss": 1.0})
    )
    with pytest.raises(ValueError, match="model.width: there 24, now 12"):
        stubbed(source)
    (last / "config.json").unlink()
    with pytest.raises(ValueError, match="lr0.02-seed0 holds a run without its settings, because .*config.json does"):
        stubbed(source)
    assert not (tmp_path / "made" / "calls.txt").exists()


def test_finished_runs_are_not_extended(stubbed, tmp_path):
    """A longer run has other schedules from the start."""
    source = config_file(tmp_path / "one.py", {"mlm": rates(0.1)})
    directory = tmp_path / "made" / "mlm" / "lr0.1-seed0"
    directory.mkdir(parents=True)
    config = points.study(source, {}).points[0].configs[0]
    (directory / "config.json").write_text(json.dumps(config_reader.to_dict(config)))
    stubbed(source)
    assert stubbed(source)[1] == []
    with pytest.raises(ValueError, match="holds a run of 8 steps, expected 9"):
        stubbed(source, {"search.steps": 9})


def test_a_run_past_a_rung_is_refused_before_anything_runs(stubbed, tmp_path):
    """Its losses are those of a longer training than the others have at the rung."""
    source = config_file(tmp_path / "two.py", {"mlm": rates(0.1, 0.02)})
    directory = epath.Path(tmp_path / "made" / "mlm" / "lr0.02-seed0")
    studies.begin(points.study(source, {}).points[1].configs[0], directory)
    for step in (2, 6):
        (directory / "checkpoints" / str(step)).mkdir(parents=True)
    with pytest.raises(
        ValueError, match="lr0.02-seed0 is at step 6, and its validation_loss at the rung at step 4 is not"
    ):
        stubbed(source, {"search.rungs": (0.5,)})
    assert not (tmp_path / "made" / "calls.txt").exists()
    assert len(stubbed(source, {"search.rungs": (0.75,)})[1]) == 3, "at step 6 itself"


def test_a_failed_run_past_a_rung_is_refused_only_if_it_is_trained_again(stubbed, tmp_path):
    source = config_file(tmp_path / "two.py", {"mlm": rates(studies.DIVERGES, 0.02)})
    config = points.study(source, {}).points[0].configs[0]
    directory = epath.Path(tmp_path / "made" / "mlm" / f"lr{studies.DIVERGES}-seed0")
    studies.begin(config, directory)
    (directory / "checkpoints" / "6").mkdir(parents=True)
    states.write_failure(directory, config, "not finite", diverged=True)
    with pytest.raises(ValueError, match="is at step 6, and its validation_loss at the rung at step 4 is not"):
        stubbed(source, {"search.rungs": (0.5,)}, retry=True)
    found, calls = stubbed(source, {"search.rungs": (0.5,)})
    assert found["arms"]["mlm"]["best"] == "lr0.02" and len(calls) == 2


def test_a_rung_that_another_process_has_passed_keeps_its_numbers(stubbed, tmp_path, monkeypatch, capsys):
    """A process that works through an old list gets the numbers of the present step of a run that has gone on."""
    source = config_file(tmp_path / "one.py", {"mlm": rates(0.02, 0.1)}, **{"search.rungs": (0.5,)})
    study, workdir = points.study(source, {}), epath.Path(tmp_path / "made")
    directory = study.points[0].directory(workdir, 0)
    kept = dict.fromkeys(("train_loss", "validation_loss", "average_train_loss"), 5.0)
    directory.mkdir(parents=True)
    states.write_rung(directory, 4, kept)
    monkeypatch.setattr(run, "train", lambda config, *_, pause_at: studies.outcome(config, 6))
    search_run._run(study, workdir, NextRun(0, 0, 4), "")
    assert json.loads((directory / "rungs.json").read_text()) == {"4": kept}
    assert "another process has it at step 6 already" in capsys.readouterr().err
    (directory / "rungs.json").unlink()  # by a process with other rungs
    (directory / "checkpoints" / "6").mkdir(parents=True)
    with pytest.raises(ValueError, match="at step 6, and its validation_loss at the rung at step 4 is not known"):
        search_run._run(study, workdir, NextRun(0, 0, 4), "")


def test_points_that_predict_other_tokens_are_named(stubbed, tmp_path, capsys):
    source = config_file(tmp_path / "rates.py", {"mlm": {"data": {"masking": {"rate": (0.15, 0.3)}}}})
    found, _ = stubbed(source)
    (sentence,) = found["incomparable"]
    assert sentence.startswith("the points are measured by other predictions")
    assert sentence.endswith("they differ in data.masking.rate: 0.15, 0.3")
    assert sentence in capsys.readouterr().err
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


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rungs.json", "{", "expected JSON"),
        ("rungs.json", '{"4": {"train_loss": 1}}', "a JSON number under the key 'validation_loss', got nothing"),
        ("failure.json", '{"reason": 3}', "a JSON string under the key 'reason', got 3"),
        ("failure.json", '{"reason": "", "diverged": 1}', "a JSON boolean under the key 'diverged', got 1"),
        ("failure.json", '{"reason": "", "diverged": true}', "a JSON string under the key 'settings', got nothing"),
        (
            "summary.json",
            '{"steps": 8, "train_loss": 1, "validation_loss": 1, "average_train_loss": 1, "validation": 3}',
            "expected other content",
        ),
        ("summary.json", '{"train_loss": 1}', "a JSON number under the key 'validation_loss', got nothing"),
    ],
)
def test_damaged_files_are_named(name, content, message, stubbed, tmp_path):
    source = config_file(tmp_path / "one.py", {"mlm": rates(0.1)})
    directory = epath.Path(tmp_path / "made" / "mlm" / "lr0.1-seed0")
    studies.begin(points.study(source, {}).points[0].configs[0], directory)
    (directory / name).write_text(content)
    with pytest.raises(ValueError, match=f"{name}: .*{message}"):
        stubbed(source)


def test_names_of_points(tmp_path):
    """Of the settings in the order of the grid, with the whole path where two settings have one last part."""
    grid = {"model": {"dropout": (0.0, 0.1), "remat": ("none",)}, "optimizer": {"learning_rate": (1e-5, 1 / 3)}}
    names = [point.name for point in points.study(config_file(tmp_path / "a.py", {"mlm": grid}), {}).points]
    assert names[:2] == ["dropout0-remat" + "none-lr1e-05", "dropout0-remat" + "none-lr0.3333333333333333"]
    grid = {"optimizer": {"learning_rate": (0.5,)}, "adversarial": {"asa": {"learning_rate": (0.5, 0.25)}}}
    settings = {"adversarial.method": "asa"}
    names = [point.name for point in points.study(config_file(tmp_path / "b.py", {"mlm": grid}, **settings), {}).points]
    assert names == ["learning_rate0.5-lr0.5", "learning_rate0.25-lr0.5"]


def test_a_time_limit_does_not_go_with_rungs(stubbed, tmp_path):
    source = config_file(tmp_path / "one.py", {"mlm": rates(0.1, 0.2)})
    with pytest.raises(ValueError, match="search.rungs compares runs after the same steps, and training.time_limit=9"):
        stubbed(source, {"search.rungs": (0.5,), "training.time_limit": 9})
