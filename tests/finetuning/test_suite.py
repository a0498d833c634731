"""Suites with a trial that trains nothing: what is run, resumed, chosen, kept, reported and refused."""

import contextlib
import dataclasses
import json
import pathlib
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.stats
from etils import epath

from ag_jax.attention.config import FixedConfig
from ag_jax.data.tasks.task import Examples, Texts
from ag_jax.distributed import lock
from ag_jax.finetuning import (
    attacked,
    best,
    comparison,
    development,
    plan,
    results,
    score_tables,
    suite,
    suite_directory,
    trial,
)
from ag_jax.finetuning import splits as task_splits
from ag_jax.finetuning.config import FinetuningConfig, Recipe
from ag_jax.grid import run as grid
from ag_jax.grid import store
from ag_jax.interop.opening import Pretrained
from ag_jax.models.config import EncoderConfig
from ag_jax.settings import config_files, schema
from ag_jax.training.journal import NonFiniteError
from tests import results as stored
from tests.finetuning import tasks, tiny_tasks

FILE = """
from ag_jax.settings import schema
from ag_jax.settings.config_files import OneOf
from ag_jax.finetuning.config import FinetuningConfig, Recipe

def get_config(
    *, model: str, data: str, tasks: tuple[str, ...] = ("sst2",), seeds: int = 3, arm: OneOf("ag", "plain") = "ag"
):
    config = schema.default(FinetuningConfig)
    config.checkpoint = model
    config.data = data
    config.seeds = tuple(range(seeds))
    for task in tasks:
        config.tasks[task] = schema.default(Recipe)
        config.tasks[task].update(
            max_length=32, epochs=2, learning_rates=(1e-4, 2e-4) if arm == "ag" else (3e-4, 1e-4)
        )
        if task == "oromo_ner":
            config.tasks[task].folds = 4
    config.arms = "plain,ag"
    return config
"""
CHAIN = FILE.replace(
    "    config.arms", "    config.tasks.rte.initial_task = 'sst2'\n    config.keep = 'best'\n    config.arms"
)
FROM_SST2 = {"tasks.rte.initial_task": "sst2"}


@pytest.fixture
def calls(monkeypatch, tmp_path):
    """The names of the trials that were run; `calls.stop` is the number of the one that dies, `calls.fails` is asked
    whether a trial diverges.
    """

    class Calls(list):
        stop = None

        def fails(self, one):
            return False

    calls = Calls()

    def run_trial(one, config, start, splits, directory, keep, labels):
        directory.mkdir(parents=True, exist_ok=True)
        if calls.fails(one):
            for folder in ("checkpoints", "weights"):  # whose predictions are no numbers
                (directory / folder).mkdir()
            raise NonFiniteError("task_loss is not finite at step 3")
        calls.append(f"{one.task}/{directory.name}")
        if len(calls) == calls.stop:
            (directory / "predictions_validation.jsonl").write_text('{"id": ')  # as a kill may leave it
            raise KeyboardInterrupt
        return tiny_tasks.run_trial(one, config, start, splits, directory, keep, labels)

    monkeypatch.setattr(plan.task_training, "run_trial", run_trial)
    monkeypatch.setattr(plan.encoded, "encode", lambda splits, tokenizer, encoder, recipe: splits)
    monkeypatch.setattr(plan.opening, "open_encoder", tiny_tasks.open_encoder)
    (tmp_path / "model").mkdir()
    return calls


def config(tmp_path, data, tasks=("sst2",), seeds=(0, 1, 2), **settings) -> FinetuningConfig:
    values = schema.default(FinetuningConfig)
    values.update(checkpoint=str(tmp_path / "model"), data=data, seeds=seeds)
    for task in tasks:
        values.tasks[task] = schema.default(Recipe)
        values.tasks[task].update(max_length=32, epochs=2)
    values.update_from_flattened_dict(settings)
    return schema.parse(FinetuningConfig, values)


@pytest.fixture
def train(tmp_path, data, calls):
    """Train a suite with the given tasks, seeds and settings in the directory `w`, or `at`; return what it chose."""

    def run(*given, at="w", data=data, **settings):
        return suite.run(suite.prepare(config(tmp_path, data, *given, **settings), epath.Path(tmp_path / at)))

    return run


@pytest.fixture
def source(tmp_path, data):
    (tmp_path / "c.py").write_text(FILE)
    return f"{tmp_path / 'c.py'}:model={tmp_path / 'model'},data={data}"


def numbers_of(workdir):
    return json.loads((workdir / "report.json").read_text())


def sst2_scores(data, *key):
    """The accuracy of the stand-in's trial with this key (learning rate, batch size, seed, ...)."""
    return tiny_tasks.accuracies(task_splits.read("sst2", Recipe(), data), "sst2", *key)


def test_every_point_seed_and_fold_is_a_trial(tmp_path, data):
    settings = {"tasks.sst2.learning_rates": (1e-5, 2e-5), "tasks.sst2.sweep.warmup_steps": (0, 1_234_567)}
    settings |= {"tasks.sst2.sweep.head_dropout": (0.15,), "tasks.oromo_ner.folds": 3}
    made = config(tmp_path, data, ("sst2", "oromo_ner"), (0, 4), **settings)
    found = list(trial.trials_of("sst2", made.tasks["sst2"], made.seeds))
    expected = [(rate, steps, seed) for steps in (0, 1_234_567) for rate in (1e-5, 2e-5) for seed in (0, 4)]
    assert [one.name for one in found] == [
        f"lr{rate:g}-bs32-head_dropout0.15-warmup_steps{steps}-seed{seed}" for rate, steps, seed in expected
    ]
    assert [(one.learning_rate, one.recipe.warmup_steps, one.seed) for one in found] == expected
    swept = {"head_dropout": 0.15, "warmup_steps": 1_234_567}
    assert found[-1].point == {"learning_rate": 2e-5, "batch_size": 32, "swept": swept}
    folds = [
        trial.directory_of(epath.Path("w"), one).as_posix()
        for one in trial.trials_of("oromo_ner", made.tasks["oromo_ner"], made.seeds)
    ]
    assert folds == [f"w/oromo_ner/lr2e-05-bs32-seed{seed}-fold{n}" for seed in (0, 4) for n in (0, 1, 2)]


def test_killed_or_shared_is_the_same_table(source, tmp_path, calls):
    def check(workdir):
        for name in ("report.md", "report.json"):
            assert (workdir / name).read_text() == (tmp_path / "whole" / name).read_text()

    comparison.compare(config_files.load(source, {}), epath.Path(tmp_path / "whole"))
    whole = [*calls]
    assert len(whole) == 12 and len(set(whole)) == 9, "two arms, two points, three seeds; a point in common"
    for stop in (1, 9):
        calls.clear()
        calls.stop, workdir = stop, epath.Path(tmp_path / f"killed{stop}")
        with pytest.raises(KeyboardInterrupt):
            comparison.compare(config_files.load(source, {}), workdir)
        assert not (workdir / "report.md").exists()
        calls.stop = None
        comparison.compare(config_files.load(source, {}), workdir)
        assert [name for number, name in enumerate(calls, 1) if number != stop] == whole
        check(workdir)

    calls.clear()
    workdir = epath.Path(tmp_path / "shared")
    with lock.hold(workdir / "plain" / "sst2" / "lr0.0003-bs32-seed1" / lock.FILE):
        assert comparison.compare(config_files.load(source, {}), workdir) is None
    assert sorted(calls) == sorted(whole[:1] + whole[2:]) and not (workdir / "report.md").exists()
    assert comparison.compare(config_files.load(source, {}), workdir) == workdir / "report.md"
    assert sorted(calls) == sorted(whole)
    check(workdir)
    (tmp_path / "model").rmdir()  # what is done needs no checkpoint
    assert comparison.compare(config_files.load(source, {}), workdir) == workdir / "report.md" and len(calls) == 12


def test_a_process_waits_for_the_weights_that_another_one_trains(source, tmp_path, calls, monkeypatch):
    (tmp_path / "c.py").write_text(CHAIN)
    source, settings = f"{source},tasks=sst2,rte", {"seeds": (0, 1)}
    report_md = comparison.finetune(config_files.load(source, settings), epath.Path(tmp_path / "whole"))
    expected = report_md.read_text().replace("/whole", "/w")  # it says how to load the models
    whole, workdir, waited = [*calls], epath.Path(tmp_path / "w"), []
    calls.clear()
    theirs = whole[1]  # with seed 1, whose trials of RTE need what SST-2 learns with it at both points
    with contextlib.ExitStack() as another:
        another.enter_context(lock.hold(workdir / theirs / lock.FILE))
        monkeypatch.setattr(grid, "time", SimpleNamespace(sleep=lambda _: waited.append([*calls]) or another.close()))
        assert comparison.finetune(config_files.load(source, settings), workdir).read_text() == expected
    assert theirs.endswith("seed1") and waited == [
        [name for name in whole if name != theirs and not ("rte" in name and name.endswith("seed1"))]
    ]
    assert sorted(calls) == sorted(whole)
    kept = [sorted(path.parts[-3:] for path in (tmp_path / at).glob("*/*/weights")) for at in ("w", "whole")]
    assert kept[0] == kept[1] and len(kept[0]) == 4


def test_weights_are_deleted_once_they_cannot_be_the_best(source, tmp_path, calls, data, monkeypatch):
    """Whenever a trial begins, also after a kill, only the best finished trial of each seed has weights; of equal ones,
    the first.
    """
    rates, folder, honest = (
        tuple(rate * 1e-5 for rate in range(1, 9)),
        tmp_path / "w" / "sst2",
        plan.task_training.run_trial,
    )
    scores = {
        f"lr{rate:g}-bs32-seed{seed}": sst2_scores(data, rate, 32, seed, False) for rate in rates for seed in (0, 1)
    }
    of_seeds = [[name for name in scores if name.endswith(f"seed{seed}")] for seed in (0, 1)]
    assert any([scores[name] for name in names].count(max(scores[name] for name in names)) > 1 for names in of_seeds)

    def check():
        done = [[name for name in names if (folder / name / "result.json").exists()] for names in of_seeds]
        highest = {max(names, key=scores.__getitem__) for names in done if names}
        assert {path.parent.name for path in folder.glob("*/weights")} == highest

    monkeypatch.setattr(plan.task_training, "run_trial", lambda *given: check() or honest(*given))
    settings = {"tasks.sst2.learning_rates": rates, "seeds": (0, 1), "keep": "best"}
    calls.stop, config = 5, config_files.load(source, settings)
    with pytest.raises(KeyboardInterrupt):
        comparison.finetune(config, epath.Path(tmp_path / "w"))
    assert len(calls) == 5
    comparison.finetune(config, epath.Path(tmp_path / "w"))
    check()
    (folder / min(scores, key=scores.__getitem__) / "weights").mkdir()  # of a process that did not know a better trial
    comparison.finetune(config, epath.Path(tmp_path / "w"))
    check()
    assert len(calls) == len(scores) + 1


def test_a_sweep_may_grow_and_other_settings_may_not(train, calls):
    train(seeds=(0, 1))
    train(("sst2", "rte"), (0, 1, 2), **{"tasks.sst2.learning_rates": (2e-5, 5e-5)})
    assert len(calls) == len(set(calls)) == 2 + 4 + 3
    train()  # a part of it again
    sweep = {"tasks.sst2.sweep.warmup_steps": (1,)}
    train(seeds=(0,), **sweep)
    train(seeds=(0,), **sweep | {"tasks.sst2.sweep.warmup_steps": (0, 1)})
    train(seeds=(0,), **sweep | {"tasks.sst2.sweep.head_dropout": (0.1,)})
    names = ("warmup_steps1", "warmup_steps0", "head_dropout0.1-warmup_steps1")
    assert calls[9:] == [f"sst2/lr2e-05-bs32-{name}-seed0" for name in names]
    for name, there, now in (("epochs", 2, 3), ("warmup_steps", None, 1)):
        with pytest.raises(ValueError, match=f"tasks.sst2.{name}: there {there}, now {now}\n"):
            train(**{f"tasks.sst2.{name}": now})
    train(seeds=(0,), at="subset", **{"tasks.sst2.validation_examples": 5})
    with pytest.raises(ValueError, match="tasks.sst2.subset_seed: there 0, now 1\n"):
        train(at="subset", **{"tasks.sst2.validation_examples": 5, "tasks.sst2.subset_seed": 1})
    # Of the epochs and their factor only the product matters.
    train(seeds=(0,), at="factor", **{"tasks.sst2.epochs_factor": 2})
    train(seeds=(0, 1), at="factor", **{"tasks.sst2.epochs": 4})
    with pytest.raises(ValueError, match="tasks.sst2.epochs: there 4, now 2\n"):
        train(at="factor")
    assert len(calls) == 12 + 1 + 2


DROPOUTS, WARMUPS = (0.0, 0.1), (0, 1)
SWEPT = {"tasks.sst2.sweep.head_dropout": DROPOUTS, "tasks.sst2.sweep.warmup_steps": WARMUPS}


def test_a_point_is_chosen_among_all_settings_that_are_swept(source, tmp_path, calls, data):
    """Numbers are those of the predictions, and of several points with the same median the first is chosen."""
    overrides = SWEPT | FROM_SST2 | {"tasks.sst2.learning_rates": (1e-4, 2e-4), "keep": "best"}
    comparison.finetune(config_files.load(f"{source},tasks=sst2,rte", overrides), epath.Path(tmp_path / "w"))
    scores = {
        (rate, dropout, steps): [sst2_scores(data, rate, 32, seed, False, dropout, steps) for seed in range(3)]
        for dropout in DROPOUTS
        for steps in WARMUPS
        for rate in (1e-4, 2e-4)
    }
    of_arm = numbers_of(tmp_path / "w")["tasks"]["sst2"]["arms"]["score"]
    rate, dropout, steps = max(scores, key=lambda point: np.median(scores[point]))
    chosen = {"learning_rate": rate, "batch_size": 32, "swept": {"head_dropout": dropout, "warmup_steps": steps}}
    assert of_arm["chosen"] == chosen and len({np.median(values) for values in scores.values()}) > 1
    assert of_arm["splits"]["validation"]["accuracy"]["values"] == pytest.approx(scores[rate, dropout, steps])
    of_points = [
        (point["learning_rate"], *point["swept"].values(), point["median"], point["chosen"])
        for point in of_arm["sweep"]
    ]
    assert of_points == [
        (*point, pytest.approx(np.median(values)), point == (rate, dropout, steps)) for point, values in scores.items()
    ]
    (at,) = {best.find(tmp_path / "w").directory, best.find(tmp_path / "w" / "sst2").directory}
    assert at == tmp_path / "w" / numbers_of(tmp_path / "w")["tasks"]["sst2"]["errors"]["trial"]
    assert f'load("{tmp_path}/w/sst2")' in (tmp_path / "w" / "report.md").read_text()
    for seed in range(3):  # RTE starts from the best trial of its seed
        highest = max(scores, key=lambda point: scores[point][seed])
        place = f"lr{highest[0]:g}-bs32-head_dropout{highest[1]:g}-warmup_steps{highest[2]}-seed{seed}"
        (kept,) = (tmp_path / "w" / "sst2").glob(f"*-seed{seed}/weights")
        assert kept.parent.name == place
        result = stored.facts(tmp_path / "w" / "rte" / f"lr0.0001-bs32-seed{seed}")
        assert result["start"].endswith(f"/sst2/{place}")


def test_what_was_begun_with_other_settings(train, tmp_path, calls):
    """An attempt that left no epoch may be corrected; a trial with a checkpoint is not gone on with."""
    calls.stop, workdir = 1, tmp_path / "w"
    with pytest.raises(KeyboardInterrupt):
        train(("sst2", "rte"))
    (workdir / "sst2" / "lr2e-05-bs32-seed0" / "checkpoints" / "7").mkdir(parents=True)
    with pytest.raises(ValueError, match="tasks.sst2.epochs: there 2, now 1"):
        train(**{"tasks.sst2.epochs": 1})
    shutil.rmtree(workdir / "sst2" / "lr2e-05-bs32-seed0" / "checkpoints")
    assert [*workdir.glob("*/*/predictions_validation.jsonl")], "the killed trial has a directory"
    train(**{"tasks.sst2.epochs": 1})
    settings = json.loads((workdir / "config.json").read_text())
    assert settings["tasks"].keys() == {"sst2"} and settings["tasks"]["sst2"]["epochs"] == 1
    done = workdir / "sst2" / "lr2e-05-bs32-seed1"  # what a kill after the result left goes
    for folder in ("checkpoints", "weights"):
        (done / folder).mkdir()
    train(**{"tasks.sst2.epochs": 1})
    assert not [path for path in done.iterdir() if path.is_dir()] and len(calls) == 1 + 3


def test_a_trial_that_another_process_has_just_begun_is_not_mixed_with_other_settings(
    train, tmp_path, data, calls, monkeypatch
):
    """While a trial is trained, and between the claim and the first trial, when no file shows another process."""
    workdir, ours = epath.Path(tmp_path / "w"), config(tmp_path, data, seeds=(0,))
    others, of_rte = config(tmp_path, data, seeds=(0,), **{"tasks.sst2.epochs": 1}), config(tmp_path, data, ("rte",))
    with lock.hold(workdir / "sst2" / "lr2e-05-bs32-seed0" / lock.FILE):
        suite_directory.claim(ours, workdir)
        suite_directory.claim(of_rte, workdir)  # has its place beside it
        with pytest.raises(ValueError, match="tasks.sst2.epochs: there 2, now 1\n"):
            suite.prepare(others, workdir)
    assert suite_directory.read_settings(workdir / "config.json")["tasks"].keys() == {"sst2", "rte"}
    honest = grid.run
    monkeypatch.setattr(
        grid, "run", lambda *given, **more: suite_directory.claim(others, workdir) or honest(*given, **more)
    )
    with pytest.raises(ValueError, match="tasks.sst2.epochs: there 1, now 2\n"):
        train(seeds=(0,))
    assert not calls


def test_examples_that_have_changed_are_noticed(train, tmp_path, data, calls):
    """Not by their number or ids. All trials are done; those of RTE stay usable, and the others with the old files."""
    workdir, folder = epath.Path(tmp_path / "w"), pathlib.Path(shutil.copytree(data, tmp_path / "data"))
    train(("sst2", "rte"), (0,), data=str(folder))
    changes = {"train": ("number 5\t1", "number 5\t0"), "dev": ("number 3", "no. 3"), "test": ("number 2", "no. 2")}
    for split, (old, new) in changes.items():
        file = folder / "SST-2" / f"{split}.tsv"
        before = file.read_text()
        file.write_text(before.replace(old, new, 1))
        assert file.read_text() != before
        with pytest.raises(ValueError, match=rf"tasks.sst2.custom.fingerprint: (.*\n)+.*delete {workdir / 'sst2'} to"):
            train(("sst2", "rte"), (0,), data=str(folder))
        train(("rte",), (0,), data=str(folder))
        with pytest.raises(ValueError, match="sst2 .*have changed"):
            development.read(workdir / "sst2" / "lr2e-05-bs32-seed0")
        file.write_text(before)
        train(("sst2", "rte"), (0,), data=str(folder))
    assert len(calls) == 2


def test_trials_that_started_from_another_model_are_noticed(train, tmp_path, calls, monkeypatch):
    """A checkpoint was trained further, or trained again, or a first task was trained again."""
    train(seeds=(0,), at="step")
    (tmp_path / "model" / "params").write_text("1.5")
    with pytest.raises(ValueError, match="sst2/.* was computed for another start"):
        train(seeds=(0, 1), at="step")
    train(seeds=(0,), at="weights")
    (tmp_path / "model" / "params").write_text("1.25")
    with pytest.raises(ValueError, match="sst2/.* was computed for another start"):
        train(seeds=(0, 1), at="weights")
    train(("sst2", "rte"), (0,), at="chain", **FROM_SST2)
    (first,) = (tmp_path / "chain").glob("sst2/*/result.json")
    first.unlink()
    monkeypatch.setattr(tiny_tasks, "guess", lambda example, *key: (1, [0.0, 1.0]))
    with pytest.raises(ValueError, match="rte/.* was computed for another start"):
        train(("sst2", "rte"), (0,), at="chain", **FROM_SST2)
    assert len(calls) == 5


def test_a_result_of_another_trial_is_refused(train, tmp_path):
    train(seeds=(1,))
    (path,) = (tmp_path / "w").glob("sst2/*seed1")
    shutil.copytree(path, path.with_name(path.name.replace("seed1", "seed0")))
    with pytest.raises(ValueError, match="seed0 was computed for another trial"):
        train(seeds=(0, 1))


@pytest.mark.parametrize("file", ["result.json", "predictions_validation.jsonl"])
def test_a_changed_digit_is_named_and_the_trial_trained_again(train, tmp_path, calls, capsys, file):
    chosen = train(seeds=(0, 1))["sst2"]
    (path,) = (tmp_path / "w").glob(f"sst2/*seed1/{file}")
    text = path.read_text()
    path.write_text(re.sub(r"\d(?=\D*$)", lambda digit: str((int(digit[0]) + 1) % 10), text))
    again = train(seeds=(0, 1))["sst2"]
    assert str(path) in capsys.readouterr().err and path.read_text() == text and len(calls) == 3
    assert again.best == chosen.best


def test_a_trial_that_fails_costs_its_point_and_nothing_else(train, tmp_path, data, calls, monkeypatch):
    failing = {"head_dropout": 0.1, "warmup_steps": 0}
    failures = []

    def fails(one):
        if one.learning_rate == 9.0 or (one.swept == failing and one.seed == 1):
            failures.append(one)
            return True
        return False

    calls.fails = fails
    for _ in range(2):
        chosen = train(**SWEPT, keep="best")["sst2"]
        assert [tuple(point.swept.values()) for point in chosen.points] == [(0.0, 0), (0.0, 1), (0.1, 1)]
        assert len(chosen.notes) == 1 and "seed 1 failed: task_loss is not finite" in chosen.notes[0]
        assert len(calls) == 11
    place = tmp_path / "w" / "sst2" / "lr2e-05-bs32-head_dropout0.1-warmup_steps0-seed1"
    assert not [path for path in place.iterdir() if path.is_dir()]
    failed = stored.facts(place)
    assert failed["swept"] == failing and "metrics" not in failed
    made = suite.prepare(config(tmp_path, data, **SWEPT, keep="best"), epath.Path(tmp_path / "w"))
    point = chosen.best.swept
    assert [path.name for path in attacked.Arm(made, {"sst2": chosen}).trials("sst2")] == [
        f"lr2e-05-bs32-head_dropout{point['head_dropout']:g}-warmup_steps{point['warmup_steps']}-seed{seed}"
        for seed in range(3)
    ]
    suite.train([suite.prepare(made.config, made.root, retry=True)], retry=True)
    assert len(calls) == 11 and len(failures) == 2
    with pytest.raises(ValueError, match="every point of the sweep of sst2 failed"):
        train(at="others", **{"tasks.sst2.learning_rates": (9.0,)})


@pytest.mark.parametrize(
    "later", [{"tasks.sst2.sweep.warmup_steps": (0, 1)}, {"tasks.sst2.learning_rates": (3e-5,)}, {"seeds": (7, 10)}]
)
def test_the_best_is_one_of_the_trials_that_the_suite_still_has(train, tmp_path, data, calls, later):
    """Better ones are left from earlier settings; a trial that failed is not the best, and of equal ones the first."""
    workdir = epath.Path(tmp_path / "w")
    train(keep="best")
    left = {path.parent for path in workdir.glob("sst2/*/weights")}

    def score(directories, accuracy):
        for directory in directories:
            stored.write(directory, stored.facts(directory) | {"metrics": {"accuracy": accuracy}})

    score(left, 1.0)
    assert best.find(workdir).directory in left
    chosen = train(keep="best", **later)["sst2"]
    kept = {path.parent for path in workdir.glob("sst2/*/weights")} - left
    highest = max(value for point in chosen.points for value in point.values("accuracy"))
    found = best.find(workdir / "sst2")
    assert found.directory in kept and f"{highest:.4f}" in found.reason
    score(kept, 0.5)
    made = config(tmp_path, data, **({"keep": "best"} | later))
    planned = list(trial.trials_of("sst2", made.tasks["sst2"], made.seeds))
    first, second, *_ = (one for one in planned if trial.directory_of(workdir, one) in kept)
    assert best.find(workdir).directory == trial.directory_of(workdir, first)
    store.write(trial.directory_of(workdir, first), trial.failure(first, "not finite"))
    assert best.find(workdir).directory == trial.directory_of(workdir, second)


def test_weights_that_another_task_wants_are_missed_at_once(train, tmp_path, data, calls):
    """Not those of a trial that failed, while other trials of the seed are not done."""
    train(seeds=(0,), at="without")
    with pytest.raises(ValueError, match="does not have for seed 0: delete .*sst2 to"):
        train(("sst2", "rte"), (0,), at="without", **FROM_SST2)
    settings = FROM_SST2 | {"tasks.sst2.learning_rates": (9.0, 2e-4)}
    wanted, workdir = config(tmp_path, data, ("sst2", "rte"), (0,), **settings), epath.Path(tmp_path / "w")
    failed = next(trial.trials_of("sst2", wanted.tasks["sst2"], wanted.seeds))
    trial.directory_of(workdir, failed).mkdir(parents=True)
    result = dataclasses.replace(
        trial.failure(failed, "not finite"),
        inputs={"trial": f"sst2/{failed.name}", "start": tiny_tasks.open_encoder(tmp_path / "model").digest},
    )
    store.write(trial.directory_of(workdir, failed), result)
    train(("sst2", "rte"), (0,), **settings)
    assert [name.split("/")[0] for name in calls[1:]] == ["sst2", "rte"]


def test_a_trial_must_have_started_from_the_best_one_of_its_first_task(train, data, calls):
    """A wider sweep of the first task may have another best trial, from which finished trials did not start."""
    rates = (1e-4, 2e-4, 3e-4, 4e-4, 5e-4)
    score = {rate: sst2_scores(data, rate, 32, 0, False) for rate in rates}
    worse, better = min(rates, key=score.get), max(rates, key=score.get)
    assert score[worse] < score[better]
    train(("sst2", "rte"), (0,), **FROM_SST2, **{"tasks.sst2.learning_rates": (worse,)})
    with pytest.raises(ValueError, match="w/rte/.* was computed for another start"):
        train(("sst2", "rte"), (0,), **FROM_SST2, **{"tasks.sst2.learning_rates": (worse, better)})


def ensemble(examples, rate):
    """The class with the highest mean probability over three seeds' models, for each example."""
    keys = [("sst2", rate, 32, seed, False) for seed in range(3)]
    guesses = [[np.exp(tiny_tasks.guess(example, *key)[1]) for key in keys] for example in examples]
    return [np.mean([of / of.sum() for of in of_example], axis=0).argmax() for of_example in guesses]


def test_numbers_are_those_of_the_predictions(source, tmp_path, calls, data):
    report_md = comparison.compare(config_files.load(source, {}), epath.Path(tmp_path / "w")).read_text()
    numbers = numbers_of(tmp_path / "w")
    splits = task_splits.read("sst2", Recipe(), data)
    rates, values, chosen = {"plain": (3e-4, 1e-4), "ag": (1e-4, 2e-4)}, {}, {}
    for arm, of_arm in numbers["tasks"]["sst2"]["arms"].items():
        points = {rate: [sst2_scores(data, rate, 32, seed, False) for seed in range(3)] for rate in rates[arm]}
        rate = chosen[arm] = max(points, key=lambda rate: np.median(points[rate]))
        assert of_arm["chosen"] == {"learning_rate": rate, "batch_size": 32}
        shown, values[arm] = of_arm["splits"]["validation"]["accuracy"], points[rate]
        assert shown["values"] == pytest.approx(points[rate]) and shown["n"] == 3
        mean, deviation, median = np.mean(points[rate]), np.std(points[rate], ddof=1), np.median(points[rate])
        assert [shown[name] for name in ("mean", "deviation", "median")] == pytest.approx([mean, deviation, median])
        assert f"{100 * mean:.1f} ± {100 * deviation:.1f} ({100 * median:.1f})" in report_md
        assert set(of_arm["splits"]) == {"validation"}, "the test set has no labels, and must not be scored"
        assert [point["learning_rate"] for point in of_arm["sweep"] if point["chosen"]] == [rate]
        assert of_arm["counts"] == {
            **{"train": 24, "validation": 11, "truncated": 3, "cut_words": 2, "lost": 1, "skipped": 0},
            "trials": 6,
        }
        assert of_arm["seconds"] == 9.0
        soft = ensemble(splits.validation, rate)
        expected = np.mean([s == example.label for s, example in zip(soft, splits.validation, strict=True)])
        assert of_arm["ensemble"]["validation"]["accuracy"] == pytest.approx(expected)
        lines = (tmp_path / "w" / arm / "submission" / "SST-2.tsv").read_text().splitlines()
        soft = ensemble(splits.others["test"], rate)
        assert lines == ["index\tprediction", *(f"{number}\t{value}" for number, value in enumerate(soft))]
    p_value = numbers["tasks"]["sst2"]["arms"]["ag"]["p_value"]
    assert p_value["seeds"] == pytest.approx(scipy.stats.ttest_rel(values["ag"], values["plain"]).pvalue)
    right = {
        arm: [
            np.mean([tiny_tasks.guess(example, "sst2", rate, 32, seed, False)[0] == example.label for seed in range(3)])
            for example in splits.validation
        ]
        for arm, rate in chosen.items()
    }
    assert p_value["examples"] == pytest.approx(scipy.stats.ttest_rel(right["ag"], right["plain"]).pvalue)
    difference = numbers["differences"]["ag"]["sst2"]
    mean = np.mean(values["ag"]) - np.mean(values["plain"])
    assert difference["mean"] == pytest.approx(mean) and difference["p_value"] == pytest.approx(p_value["seeds"])
    assert f"| ag | {100 * mean:+.1f} |" in report_md
    assert numbers["tasks"]["sst2"]["arms"]["plain"]["p_value"] is None and numbers["baseline"] == "plain"
    scores = {  # of all trials, in the order of training
        f"{arm}/sst2/lr{rate:g}-bs32-seed{seed}": sst2_scores(data, rate, 32, seed, False)
        for arm, of_arm in rates.items()
        for rate in of_arm
        for seed in range(3)
    }
    errors = numbers["tasks"]["sst2"]["errors"]
    assert errors["trial"] == max(scores, key=scores.__getitem__) and errors["score"] == max(scores.values())
    assert errors["wrong"] == round(11 * (1 - errors["score"]))
    assert numbers["tasks"]["sst2"]["trivial"]["validation"]["metrics"] == {"accuracy": 6 / 11}
    (said,) = numbers["summary"]
    assert said in report_md[: report_md.index("\n## ")] and f"ag {100 * mean:+.1f}" in said and "54.5" in said
    assert all(f"{arm} {100 * np.mean(of_arm):.1f} ±" in said for arm, of_arm in values.items())
    assert "- ag: plain with `tasks.sst2.learning_rates=0.0001,0.0002`\n" in report_md
    hidden = ("Tagged words", "Answers in no", "Malformed", "| Task |", "Other metrics")
    assert not [text for text in hidden if text in report_md]


def test_a_set_of_which_only_a_part_has_labels_is_said_to_be_unscored(train, tmp_path):
    """Not one without any labels, as test sets are distributed."""
    root = tiny_tasks.write(tmp_path / "files")
    assert train(data=str(root))["sst2"].notes == ()
    (root / "SST-2" / "test.tsv").write_text("index\tsentence\tlabel\n0\tgood\t1\n1\tbad\t-1\n2\tfunny\t\n")
    (note,) = train(at="other", data=str(root))["sst2"].notes
    assert "2 of its 3 labels" in note


def test_models_that_always_predict_the_same_are_reported():
    examples = Examples(tuple(Texts(str(number), "a", None, number % 2) for number in range(4)), "here")

    def note(task, *of_seeds):
        rows = tuple([{"id": str(at), "prediction": one, "scores": []} for at, one in enumerate(of)] for of in of_seeds)
        predicted = results.SplitPredictions(task_splits.find_task(task, Recipe()), examples, rows)
        return " ".join(results._constant_notes("test", predicted))

    assert note("sst2", [1, 0, 1, 1]) == note("conll2003", [["O", "B-PER"], ["O"], ["O"], ["O"]]) == ""
    assert "2 of 3" in note("sst2", [0, 0, 0, 0], [0, 1, 0, 1], [1, 1, 1, 1])
    assert "'O' for every word" in note("conll2003", [["O", "O"], ["O"], ["O"], ["O"]])


def test_folds_are_pooled_and_averaged(source, tmp_path, calls, data):
    settings = {"tasks.oromo_ner.learning_rates": (1e-4,), "keep": "best"}
    comparison.finetune(config_files.load(f"{source},tasks=oromo_ner,seeds=2", settings), epath.Path(tmp_path / "w"))
    assert len(calls) == 2 * 4 == len([*(tmp_path / "w").glob("oromo_ner/*/weights")])
    (of_arm,) = numbers_of(tmp_path / "w")["tasks"]["oromo_ner"]["arms"].values()
    assert of_arm["headline"] == "all folds"
    splits = task_splits.read("oromo_ner", Recipe(folds=4), data)
    parts = [task_splits.of_fold(splits, number, 4).others["test"] for number in range(4)]
    pooled, of_folds = [], []
    for seed in range(2):
        key = "oromo_ner", 1e-4, 32, seed, False
        found = {example.id: tiny_tasks.guess(example, *key)[0] for example in splits.train}
        assert sorted(example.id for part in parts for example in part) == sorted(found) and len(found) == 17
        # Every entity is one word; a wrong guess finds none, so precision is 1 and F1 = 2 r / (1 + r).
        recall = [np.mean([found[example.id][0] != "O" for example in part]) for part in parts]
        of_folds.append(np.mean([2 * r / (1 + r) for r in recall]))
        whole = np.mean([tags[0] != "O" for tags in found.values()])
        pooled.append(2 * whole / (1 + whole))
    assert of_arm["splits"]["all folds"]["entity_f1"]["values"] == pytest.approx(pooled)
    assert of_arm["splits"]["mean of folds"]["entity_f1"]["values"] == pytest.approx(of_folds)
    errors = numbers_of(tmp_path / "w")["tasks"]["oromo_ner"]["errors"]
    seed = int(errors["trial"].split("-seed")[1][0])
    assert errors["examples"] == 17 and errors["score"] == pytest.approx(pooled[seed])
    assert best.find(tmp_path / "w").directory == tmp_path / "w" / errors["trial"]
    report_md = (tmp_path / "w" / "report.md").read_text()
    assert "Tagged words cut off: 2" in report_md and "Answers in no window" not in report_md


@pytest.mark.parametrize(
    ("task", "settings", "named"),
    [
        ("sst3", {}, "sst3"),
        ("sst2", {"tasks.sst2.max_length": 65}, "max_length=65 .*64"),
        ("sst2", {"tasks.sst2.metric": "f1"}, "tasks.sst2.metric"),
        ("sst2", {"tasks.sst2.folds": 4}, "tasks.sst2.folds"),
        ("oromo_ner", {}, "tasks.oromo_ner.folds"),
        ("oromo_ner", {"tasks.oromo_ner.folds": 18}, "2 to 17 folds"),
        ("sst2", {"tasks.sst2.first_question": True}, "first_question"),
        ("squad1", {"tasks.squad1.head_dropout": 0.1}, "squad1.head_dropout"),
        ("wnli", {"tasks.wnli.head_dropout": 0.1, "tasks.wnli.ranking": True}, "wnli.head_dropout"),
        ("squad1", {"tasks.squad1.pooling": "mean"}, "squad1.pooling"),
    ],
)
def test_what_is_wrong_is_found_before_anything_is_trained(train, tmp_path, calls, task, settings, named):
    with pytest.raises((ValueError, FileNotFoundError), match=named):
        train((task,), **settings)
    assert not calls and not (tmp_path / "w").exists()


def test_what_the_checkpoint_or_the_number_of_steps_does_not_allow(tmp_path, data, monkeypatch):
    """The warm-up is too long; nine questions of SQuAD have more windows, and so more steps; attention is fixed."""
    opened = Pretrained(EncoderConfig(max_length=64), tasks.TOKENIZER, {}, "roberta", "step 9 of runs/x")
    fixed = dataclasses.replace(opened.config, fixed_attention=FixedConfig(offsets=(-1, 1)))
    settings = {"tasks.squad2.epochs": 1, "tasks.squad2.batch_sizes": (1,), "tasks.sst2.batch_sizes": (8, 16)}
    settings |= {"tasks.squad2.max_length": 12, "tasks.sst2.max_length": 12}

    def prepare(squad2=9, sst2=3, opened=opened, **more):
        monkeypatch.setattr(plan.opening, "open_encoder", lambda *_, **__: opened)
        steps = {"tasks.squad2.warmup_steps": squad2, "tasks.sst2.warmup_steps": sst2}
        made = config(tmp_path, data, ("squad2", "sst2"), (0,), **settings | steps | more)
        return suite.prepare(made, epath.Path(tmp_path / "w"))

    swept = "tasks.sst2.sweep.warmup_steps"  # what the recipe says itself has no effect then
    assert prepare().opened is opened and len(prepare(sst2=9, **{swept: (1, 3)}).cells["sst2"]) == 4
    asa, method = "tasks.sst2.adversarial.asa.delay_steps", {"tasks.sst2.adversarial.method": "asa"}
    hard_coded = dataclasses.replace(opened, config=fixed)
    for given, named in (
        ({"sst2": 4}, "^tasks.sst2.warmup_steps=4 .* 4 steps .*lr2e-05-bs16-seed0"),
        ({"squad2": 900}, "^tasks.squad2.warmup_steps=900 "),
        ({"sst2": 9, swept: (1, 4)}, "^tasks.sst2.sweep.warmup_steps=4 .* 4 steps .*_steps4-seed0"),
        # The adversary's only step would be the first of its warm-up.
        (method | {asa: 3, swept: (0, 1)}, f"^{asa}=3 .*bs16-warmup_steps1-seed0"),
        (method | {"opened": hard_coded}, "tasks.sst2 .*adversarial.method=asa"),
        ({"guidance.mode": "loss", "opened": hard_coded}, "model.fixed_attention.offsets"),
    ):
        with pytest.raises(ValueError, match=named):
            prepare(**given)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("seeds = (0,) if arm == 'ag' else (1,)", "same seeds"),
        ("tasks.sst2.ranking = arm == 'ag'", "tasks.sst2.ranking"),
        ("tasks.sst2.scored_epoch = 'last' if arm == 'ag' else 'best'", "tasks.sst2.scored_epoch"),
        ("tasks.sst2.validation_examples = len(arm)", "tasks.sst2.validation_examples"),
        ("tasks.oromo_ner.train_examples = 9 if arm == 'ag' else None", "tasks.oromo_ner.train_examples"),
        ("checkpoint = '/not/there' if arm == 'ag' else config.checkpoint", "/not/there"),
    ],
)
def test_arms_that_cannot_be_paired_are_refused_before_the_first_is_trained(source, tmp_path, calls, change, named):
    (tmp_path / "c.py").write_text(FILE.replace("    return config", f"    config.{change}\n    return config"))
    flags = {"tasks.oromo_ner.learning_rates": (1e-4,)} if "oromo" in change else {}
    with pytest.raises((ValueError, FileNotFoundError), match=named):
        comparison.compare(
            config_files.load(f"{source},tasks=sst2{',oromo_ner' * bool(flags)}", flags), epath.Path(tmp_path / "w")
        )
    assert not calls


def test_marks_are_for_scores_that_differ():
    assert score_tables.marks({"seeds": 0.01, "examples": 0.04}, 0.1) == "+*"
    assert score_tables.marks({"seeds": 0.05, "examples": 0.04}, -0.1) == "*"
    assert score_tables.marks({"seeds": None, "examples": 0.051}, 0.1) == score_tables.marks(None, 0.1) == ""
    assert score_tables.marks({"seeds": None, "examples": 0.001}, 0.0) == "", (
        "words may be tagged otherwise, and F1 the same"
    )
