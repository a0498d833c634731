"""Suites with a trial that trains nothing: what is run, resumed, chosen, kept, reported and refused."""

import dataclasses
import json
import pathlib
import re
import shutil

import numpy as np
import pytest
import scipy.stats
from etils import epath

from ag_jax import cli, config_reader
from ag_jax.attention.fixed import FixedConfig
from ag_jax.data.tasks.task import Examples, Texts
from ag_jax.distributed import lock
from ag_jax.finetuning import attacked, best, comparison, development, report, results, suite
from ag_jax.finetuning import splits as task_splits
from ag_jax.finetuning.config import FinetuningConfig, Recipe
from ag_jax.interop.opening import Pretrained
from ag_jax.models.config import EncoderConfig
from ag_jax.training.loop import NonFiniteError
from ag_jax.training.stopping import Interrupted, StopSignal
from tests.finetuning import tasks, tiny_tasks

SMALL = {"max_length": 32, "epochs": 2}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return str(tiny_tasks.write(tmp_path_factory.mktemp("data")))


@pytest.fixture
def calls(monkeypatch, tmp_path):
    """The names of the trials that were run; `calls.stop` is the number of the one that dies."""

    class Calls(list):
        stop = None

    calls = Calls()

    def run_trial(one, config, start, splits, directory, keep, labels):
        calls.append(f"{one.task}/{directory.name}")
        if len(calls) == calls.stop:
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "predictions_validation.jsonl").write_text('{"id": ')  # as a kill may leave it
            raise KeyboardInterrupt
        return tiny_tasks.run_trial(one, config, start, splits, directory, keep, labels)

    monkeypatch.setattr(suite.job, "run_trial", run_trial)
    monkeypatch.setattr(suite.encoded, "encode", lambda splits, tokenizer, encoder, recipe: splits)
    monkeypatch.setattr(suite.opening, "open_encoder", tiny_tasks.open_encoder)
    (tmp_path / "model").mkdir()
    return calls


def config(tmp_path, data, tasks=("sst2",), seeds=(0, 1, 2), **settings) -> FinetuningConfig:
    values = config_reader.default(FinetuningConfig)
    values.update(checkpoint=str(tmp_path / "model"), data=data, seeds=seeds)
    for task in tasks:
        values.tasks[task] = config_reader.default(Recipe)
        values.tasks[task].update(SMALL)
    values.update_from_flattened_dict(settings)
    return config_reader.parse(FinetuningConfig, values)


def train(config, workdir):
    return suite.run(suite.prepare(config, workdir))


FILE = """
from ag_jax import config_reader
from ag_jax.finetuning.config import FinetuningConfig, Recipe

def get_config(argument=""):
    chosen = config_reader.arguments(argument, model=str, data=str, tasks="sst2", seeds=3, arm=("ag", "mlm"))
    config = config_reader.default(FinetuningConfig)
    config.title = "A title"
    config.checkpoint = chosen.model
    config.data = chosen.data
    config.seeds = tuple(range(chosen.seeds))
    for task in config_reader.listed(chosen.tasks):
        config.tasks[task] = config_reader.default(Recipe)
        config.tasks[task].update(
            max_length=32, epochs=2, learning_rates=(1e-4, 2e-4) if chosen.arm == "ag" else (3e-4, 1e-4)
        )
        if task == "oromo_ner":
            config.tasks[task].folds = 4
    config.arms = "mlm,ag"
    return config
"""


@pytest.fixture
def source(tmp_path, data):
    path = tmp_path / "c.py"
    path.write_text(FILE)
    return f"{path}:model={tmp_path / 'model'},data={data}"


def test_every_point_seed_and_fold_is_a_trial(tmp_path, data):
    settings = {"tasks.sst2.learning_rates": (1e-5, 2e-5), "tasks.oromo_ner.folds": 3}
    made = config(tmp_path, data, ("sst2", "oromo_ner"), (0, 4), **settings)
    names = [suite.directory_of(epath.Path("w"), one).as_posix() for one in suite.trials(made, "sst2")]
    assert names == [f"w/sst2/lr{rate}-bs32-seed{seed}" for rate in ("1e-05", "2e-05") for seed in (0, 4)]
    folds = [suite.directory_of(epath.Path("w"), one).name for one in suite.trials(made, "oromo_ner")]
    assert folds == [f"lr2e-05-bs32-seed{seed}-fold{fold}" for seed in (0, 4) for fold in range(3)]


def test_further_settings_that_are_swept_are_in_the_names_and_recipes_of_trials(tmp_path, data):
    settings = {
        "tasks.sst2.sweep.warmup_steps": (0, 1_234_567),
        "tasks.sst2.sweep.head_dropout": (0.15,),
        "tasks.oromo_ner.folds": 3,
        "tasks.oromo_ner.sweep.weight_decay": (0.0,),
    }
    made = config(tmp_path, data, ("sst2", "oromo_ner"), (4,), **settings)
    found = list(suite.trials(made, "sst2"))
    start = "lr2e-05-bs32-head_dropout0.15-warmup_steps"
    assert [one.name for one in found] == [f"{start}0-seed4", f"{start}1234567-seed4"]
    assert [(one.recipe.head_dropout, one.recipe.warmup_steps) for one in found] == [(0.15, 0), (0.15, 1_234_567)]
    assert [one.point for one in found] == [
        {"learning_rate": 2e-5, "batch_size": 32, "swept": {"head_dropout": 0.15, "warmup_steps": steps}}
        for steps in (0, 1_234_567)
    ]
    folds = [one.name for one in suite.trials(made, "oromo_ner")]
    assert folds == [f"lr2e-05-bs32-weight_decay0-seed4-fold{fold}" for fold in range(3)]


def test_the_report_says_which_epoch_is_scored(source, tmp_path, calls):
    """The report names the tasks that are scored at their last epoch, if any; all arms are scored at the same epoch."""
    best = "of every trial the epoch that was best on the development set"
    told = [
        comparison.compare(f"{source},tasks=sst2,stsb", flags, epath.Path(tmp_path / str(number))).read_text()
        for number, flags in enumerate(({}, {"tasks.stsb.scored_epoch": "last"}))
    ]
    assert f"{best}.\n" in told[0]
    assert f"{best}, but of stsb the last epoch, the only one that was evaluated.\n" in told[1]
    path = tmp_path / "c.py"
    rule = '    config.tasks.sst2.scored_epoch = "last" if chosen.arm == "ag" else "best"\n    config.arms'
    path.write_text(path.read_text().replace("    config.arms", rule))
    with pytest.raises(ValueError, match=r"same tasks.sst2.scored_epoch, .* 'best' in mlm; 'last' in ag"):
        comparison.compare(source, {}, epath.Path(tmp_path / "2"))


def test_killed_anywhere_and_run_again_is_the_same_table(source, tmp_path, calls):
    comparison.compare(source, {}, epath.Path(tmp_path / "whole"))
    whole = [*calls]
    assert len(whole) == 12 and len(set(whole)) == 9, (
        "two arms, two points, three seeds; the arms have a point in common"
    )
    for stop in (1, 4, 9):
        calls.clear()
        calls.stop = stop
        workdir = epath.Path(tmp_path / f"killed{stop}")
        with pytest.raises(KeyboardInterrupt):
            comparison.compare(source, {}, workdir)
        assert not (workdir / "report.md").exists()
        calls.stop = None
        comparison.compare(source, {}, workdir)
        assert [name for number, name in enumerate(calls, 1) if number != stop] == whole
        for name in ("report.md", "report.json"):
            assert (workdir / name).read_text() == (tmp_path / "whole" / name).read_text()


def shares(source, workdir, count, **settings):
    """Run every part of a comparison, one after the other; return what each returned."""
    return [comparison.compare(source, settings, workdir, f"{number}/{count}") for number in range(1, count + 1)]


def test_parts_are_one_comparison(source, tmp_path, calls, capsys):
    comparison.compare(source, {}, epath.Path(tmp_path / "whole"))
    whole = [*calls]
    calls.clear()
    workdir = epath.Path(tmp_path / "shared")
    found = shares(source, workdir, 5)
    assert found == [None] * 4 + [workdir / "report.md"]
    assert calls == [name for number in range(5) for name in whole[number::5]], "every fifth trial, over both arms"
    assert "part 2/5 is done; 6 trials are left to other parts, the last of which reports" in capsys.readouterr().err
    for name in ("report.md", "report.json"):
        assert (workdir / name).read_text() == (tmp_path / "whole" / name).read_text()
    before = len(calls)
    assert shares(source, workdir, 2) == [workdir / "report.md"] * 2 and len(calls) == before
    alone = comparison.finetune(source, {}, epath.Path(tmp_path / "alone"))
    parts = [comparison.finetune(source, {}, epath.Path(tmp_path / "parts"), f"{number}/3") for number in (3, 1, 2)]
    assert parts[:2] == [None, None] and parts[2].read_text() == alone.read_text()


def test_a_part_that_was_killed_is_resumed(source, tmp_path, calls):
    workdir = epath.Path(tmp_path / "w")
    calls.stop = 2
    with pytest.raises(KeyboardInterrupt):
        comparison.compare(source, {}, workdir, "1/2")
    assert comparison.compare(source, {}, workdir, "2/2") is None
    assert comparison.compare(source, {}, workdir, "1/2") == workdir / "report.md"
    assert len(calls) == 12 + 1 and calls[1] == calls[8]


def test_two_processes_never_train_one_trial(source, tmp_path, calls):
    workdir = epath.Path(tmp_path / "w")
    with lock.hold(workdir / "mlm" / "sst2" / "lr0.0003-bs32-seed1"):
        for part in ("2/4", None):
            with pytest.raises(ValueError, match="mlm/sst2/lr0.0003-bs32-seed1 is in use by process"):
                comparison.compare(source, {}, workdir, part)
    assert calls == ["sst2/lr0.0003-bs32-seed0"]


def test_a_trial_that_failed_in_another_process_meanwhile_is_told(tmp_path, data, calls, monkeypatch, capsys):
    def failed_elsewhere(one, config, start, splits, directory, *rest):
        suite.trial.write_failure(one, directory, "mlm_loss is not finite at step 3.")
        return suite.trial.read_result(directory)

    monkeypatch.setattr(suite.job, "run_trial", failed_elsewhere)
    wanted = config(tmp_path, data, seeds=(0,))
    with pytest.raises(ValueError, match="failed"):
        train(wanted, epath.Path(tmp_path / "w"))
    assert "sst2 lr2e-05-bs32-seed0: failed: mlm_loss is not finite at step 3." in capsys.readouterr().err


def test_more_parts_than_trials(source, tmp_path, calls):
    with pytest.raises(ValueError, match="--part=1/13 is one of 13 parts, but there are only 12 trials, so that 1 of"):
        comparison.compare(source, {}, epath.Path(tmp_path / "w"), "1/13")
    with pytest.raises(ValueError, match="--part must be K/N"):
        comparison.finetune(source, {}, epath.Path(tmp_path / "w"), "3/2")
    assert not calls


CHAIN = FILE.replace(
    "    config.arms", "    config.tasks.rte.initial_task = 'sst2'\n    config.keep = 'best'\n    config.arms"
)


def test_a_part_waits_for_the_weights_that_another_part_trains(source, tmp_path, calls, capsys):
    (tmp_path / "c.py").write_text(CHAIN)
    source, settings = f"{source},tasks=sst2,rte", {"seeds": (0, 1)}
    expected = comparison.finetune(source, settings, epath.Path(tmp_path / "whole")).read_text()
    whole, workdir = [*calls], epath.Path(tmp_path / "w")
    calls.clear()
    assert comparison.finetune(source, settings, workdir, "1/3") is None
    assert calls == [whole[0], whole[3]], "the third trial needs what sst2 learns with its seed at both points"
    told = capsys.readouterr().err
    assert "part 1/3: 1 trials wait for trials of other parts; run it again when those" in told
    assert "part 1/3 is done" not in told
    assert comparison.finetune(source, settings, workdir, "2/3") is None and calls[2:] == [whole[1], whole[7]]
    assert comparison.finetune(source, settings, workdir, "3/3") is None and calls[4:] == [whole[2], whole[5]]
    assert comparison.finetune(source, settings, workdir, "1/3") is None and calls[6:] == [whole[6]]
    assert comparison.finetune(source, settings, workdir, "2/3").read_text() == expected
    assert sorted(calls) == sorted(whole)
    kept = [sorted(path.parts[-3:] for path in (tmp_path / at).glob("*/*/weights")) for at in ("w", "whole")]
    assert kept[0] == kept[1] and len(kept[0]) == 4


@pytest.mark.parametrize("killed", [None, 5])
@pytest.mark.parametrize("parts", [(None,), ("3/3", "1/3", "2/3")])
def test_weights_are_deleted_once_they_cannot_be_the_best(source, tmp_path, calls, data, monkeypatch, parts, killed):
    """Whenever a trial begins, only the best finished trial of each seed has weights; of equal ones, the first."""
    rates, folder = tuple(rate * 1e-5 for rate in range(1, 9)), tmp_path / "w" / "sst2"
    splits, honest = task_splits.read("sst2", Recipe(), data), suite.job.run_trial
    scores = {
        f"lr{rate:g}-bs32-seed{seed}": tiny_tasks.accuracies(splits, "sst2", rate, 32, seed, False)
        for rate in rates
        for seed in (0, 1)
    }
    of_seeds = [[name for name in scores if name.endswith(f"seed{seed}")] for seed in (0, 1)]
    assert any([scores[name] for name in names].count(max(scores[name] for name in names)) > 1 for names in of_seeds)

    def check():
        done = [[name for name in names if (folder / name / "result.json").exists()] for names in of_seeds]
        best = {max(names, key=scores.__getitem__) for names in done if names}
        assert {path.parent.name for path in folder.glob("*/weights")} == best

    def run_trial(*arguments):
        check()
        return honest(*arguments)

    monkeypatch.setattr(suite.job, "run_trial", run_trial)
    overrides = {"tasks.sst2.learning_rates": rates, "seeds": (0, 1), "keep": "best"}
    calls.stop = killed
    for part in parts:
        for _ in range(2 if killed and part == parts[0] else 1):
            try:
                reported = comparison.finetune(source, overrides, epath.Path(tmp_path / "w"), part)
            except KeyboardInterrupt:
                assert len(calls) == killed
    check()
    assert reported is not None and len(calls) == len(scores) + (killed is not None)


def test_with_folds_all_weights_are_kept(tmp_path, data, calls):
    folds = config(tmp_path, data, ("oromo_ner",), (0,), keep="best", **{"tasks.oromo_ner.folds": 3})
    train(folds, epath.Path(tmp_path / "w"))
    assert len([*(tmp_path / "w").glob("oromo_ner/*/weights")]) == 3


def test_a_suite_that_was_killed_before_the_last_seed_of_an_initial_task_is_resumed(source, tmp_path, calls):
    (tmp_path / "c.py").write_text(CHAIN)
    arguments = f"{source},tasks=sst2,rte", {"seeds": (0, 1)}, epath.Path(tmp_path / "w")
    calls.stop = 4
    with pytest.raises(KeyboardInterrupt):
        comparison.finetune(*arguments)
    assert comparison.finetune(*arguments).exists() and len(calls) == 8 + 1


def test_what_is_done_needs_no_checkpoint(source, tmp_path, calls):
    path = comparison.finetune(source, {}, epath.Path(tmp_path / "w"))
    before, text = len(calls), path.read_text()
    (tmp_path / "model").rmdir()
    assert comparison.finetune(source, {}, epath.Path(tmp_path / "w")).read_text() == text and len(calls) == before


def test_a_sweep_may_grow_and_other_settings_may_not(tmp_path, data, calls):
    workdir = epath.Path(tmp_path / "w")
    train(config(tmp_path, data), workdir)
    grown = {"tasks.sst2.learning_rates": (2e-5, 5e-5)}
    train(config(tmp_path, data, ("sst2", "rte"), (0, 1, 2, 3), **grown), workdir)
    assert len(calls) == 3 + 5 + 4 and len(set(calls)) == 12
    train(config(tmp_path, data), workdir)  # a part of it again
    assert len(calls) == 12
    with pytest.raises(ValueError, match="tasks.sst2.epochs: there 2, now 3\n"):
        train(config(tmp_path, data, **{"tasks.sst2.epochs": 3}), workdir)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text('{"model": {}, "training": {}, "data": {}}')
    (tmp_path / "run" / "summary.json").write_text("{}")
    with pytest.raises(ValueError, match="holds a run of pre-training"):
        train(config(tmp_path, data), epath.Path(tmp_path / "run"))
    (tmp_path / "run" / "config.json").write_text('{"model_type": "bert", "hidden_size": 12}')
    with pytest.raises(ValueError, match="by another program, because hidden_size, model_type are no settings"):
        train(config(tmp_path, data), epath.Path(tmp_path / "run"))


def test_a_swept_setting_may_get_more_values(tmp_path, data, calls):
    """Trials with the earlier values are found again."""
    workdir = epath.Path(tmp_path / "w")

    def sweep(tasks=("sst2",), **values):
        settings = {f"tasks.sst2.sweep.{name}": of for name, of in values.items()}
        begun = len(calls)
        train(config(tmp_path, data, tasks, (0,), **settings), workdir)
        return [name.removeprefix("sst2/lr2e-05-bs32-") for name in calls[begun:]]

    assert sweep() == ["seed0"]
    assert sweep(warmup_steps=(1,)) == ["warmup_steps1-seed0"]
    assert sweep(warmup_steps=(0, 1)) == ["warmup_steps0-seed0"]
    assert sweep(warmup_steps=(1,), head_dropout=(0.1,)) == ["head_dropout0.1-warmup_steps1-seed0"]
    assert sweep(warmup_steps=(1, 0)) == sweep() == []
    with pytest.raises(ValueError, match="tasks.sst2.warmup_steps: there None, now 1\n"):
        train(config(tmp_path, data, **{"tasks.sst2.warmup_steps": 1}), workdir)


DROPOUTS, WARMUPS = (0.0, 0.1), (0, 1)
SWEPT = {"tasks.sst2.sweep.head_dropout": DROPOUTS, "tasks.sst2.sweep.warmup_steps": WARMUPS}


def test_a_point_is_chosen_among_all_settings_that_are_swept(source, tmp_path, calls, data):
    """Numbers are those of the predictions, and of several points with the same median the first is chosen."""
    overrides = SWEPT | {"tasks.sst2.learning_rates": (1e-4, 2e-4), "tasks.rte.initial_task": "sst2", "keep": "best"}
    text = comparison.finetune(f"{source},tasks=sst2,rte", overrides, epath.Path(tmp_path / "w")).read_text()
    splits = task_splits.read("sst2", Recipe(), data)
    scores = {
        (rate, dropout, steps): [
            tiny_tasks.accuracies(splits, "sst2", rate, 32, seed, False, dropout, steps) for seed in range(3)
        ]
        for dropout in DROPOUTS
        for steps in WARMUPS
        for rate in (1e-4, 2e-4)
    }
    of_arm = json.loads((tmp_path / "w" / "report.json").read_text())["tasks"]["sst2"]["arms"]["score"]
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
    header = "| Task | Arm | Learning rate | Batch | Head dropout | Warmup steps | Median |"
    assert header in text and f"| sst2 | score | **{rate:g}** | 32 | {dropout:g} | {steps} | **" in text
    assert "| rte | score | **0.0001** | 32 | – | – | **" in text or "| rte | score | 0.0001 | 32 | – | – |" in text
    for seed in range(3):  # RTE starts from the best trial of its seed
        best = max(scores, key=lambda point: scores[point][seed])
        place = f"lr{best[0]:g}-bs32-head_dropout{best[1]:g}-warmup_steps{best[2]}-seed{seed}"
        (kept,) = (tmp_path / "w" / "sst2").glob(f"*-seed{seed}/weights")
        assert kept.parent.name == place
        result = json.loads((tmp_path / "w" / "rte" / f"lr0.0001-bs32-seed{seed}" / "result.json").read_text())
        assert result["start"].endswith(f"/sst2/{place}")


def test_a_report_without_further_swept_settings_has_no_columns_for_them(source, tmp_path, calls):
    path = comparison.finetune(source, {}, epath.Path(tmp_path / "w"))
    assert "| Task | Arm | Learning rate | Batch | Median | Mean" in path.read_text()
    assert "swept" not in (path.parent / "report.json").read_text()
    assert "swept" not in (path.parent / "sst2" / "lr0.0001-bs32-seed0" / "result.json").read_text()


def test_masked_shares_are_of_the_trials_at_the_chosen_point(tmp_path, data, calls):
    made = suite.prepare(config(tmp_path, data, **SWEPT), epath.Path(tmp_path / "w"))
    chosen = suite.run(made)
    found = attacked.Arm(made, chosen).trials("sst2")
    swept = "-".join(f"{name}{value:g}" for name, value in chosen["sst2"].best.swept.items())
    assert [path.name for path in found] == [f"lr2e-05-bs32-{swept}-seed{seed}" for seed in range(3)]


def test_an_attempt_that_left_no_epoch_may_be_corrected(tmp_path, data, calls):
    workdir = epath.Path(tmp_path / "w")
    calls.stop = 1
    with pytest.raises(KeyboardInterrupt):
        train(config(tmp_path, data, ("sst2", "rte")), workdir)
    assert [*workdir.glob("*/*/predictions_validation.jsonl")], "the killed trial has a directory"
    train(config(tmp_path, data, **{"tasks.sst2.epochs": 1}), workdir)
    settings = json.loads((workdir / "config.json").read_text())
    assert settings["tasks"].keys() == {"sst2"} and settings["tasks"]["sst2"]["epochs"] == 1


def test_a_trial_that_was_begun_is_not_gone_on_with_under_other_settings(tmp_path, data, calls):
    workdir = epath.Path(tmp_path / "w")
    calls.stop = 1
    with pytest.raises(KeyboardInterrupt):
        train(config(tmp_path, data), workdir)
    (workdir / "sst2" / "lr2e-05-bs32-seed0" / "checkpoints" / "7").mkdir(parents=True)
    for change in ({"tasks.sst2.epochs": 1}, {"tasks.sst2.max_length": 16}):
        with pytest.raises(ValueError, match="holds trials with other settings"):
            train(config(tmp_path, data, **change), workdir)
    train(config(tmp_path, data), workdir)


def test_a_trial_that_another_process_has_just_begun_is_not_mixed_with_other_settings(
    tmp_path, data, calls, monkeypatch
):
    """While a trial is trained, and between the claim and the first trial, when no file shows another process."""
    workdir, ours = epath.Path(tmp_path / "w"), config(tmp_path, data, seeds=(0,))
    others = config(tmp_path, data, seeds=(0,), **{"tasks.sst2.epochs": 1})
    with lock.hold(workdir / "sst2" / "lr2e-05-bs32-seed0"):
        suite.claim(ours, workdir)
        suite.claim(config(tmp_path, data, ("rte",)), workdir)  # has its place beside it
        with pytest.raises(ValueError, match="tasks.sst2.epochs: there 2, now 1\n"):
            train(others, workdir)
    assert suite.read_settings(workdir / "config.json")["tasks"].keys() == {"sst2", "rte"}
    encode = suite.encoded.encode

    def claimed_meanwhile(by):
        def encode_late(*arguments):
            suite.claim(by, workdir)
            return encode(*arguments)

        monkeypatch.setattr(suite.encoded, "encode", encode_late)

    claimed_meanwhile(others)
    with pytest.raises(ValueError, match="tasks.sst2.epochs: there 1, now 2\n"):
        train(ours, workdir)
    assert not calls
    claimed_meanwhile(config(tmp_path, data, ("rte",)))
    train(ours, workdir)
    assert "sst2" in suite.read_settings(workdir / "config.json")["tasks"], "it is claimed again"


def copy_of(data, tmp_path) -> pathlib.Path:
    return pathlib.Path(shutil.copytree(data, tmp_path / "data"))


def edit(file: pathlib.Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    "split, old, new",
    [("train", "number 5\t1", "number 5\t0"), ("dev", "number 3", "no. 3"), ("test", "number 2", "no. 2")],
)
def test_examples_that_have_changed_are_noticed(tmp_path, data, calls, split, old, new):
    """Their number and their ids stay the same. All trials are done; the trials of RTE stay usable."""
    workdir, folder = epath.Path(tmp_path / "w"), copy_of(data, tmp_path)
    settings = config(tmp_path, str(folder), ("sst2", "rte"), seeds=(0,))
    train(settings, workdir)
    file = folder / "SST-2" / f"{split}.tsv"
    before = file.read_text()
    edit(file, old, new)
    changed = (
        r"tasks.sst2.custom.fingerprint: there '\w+', now '\w+'\nThe files of sst2 are not those that .*: put back the "
        rf"earlier files, or delete {workdir / 'sst2'} to train again$"
    )
    with pytest.raises(ValueError, match=changed):
        train(settings, workdir)
    train(config(tmp_path, str(folder), ("rte",), seeds=(0,)), workdir)
    with pytest.raises(ValueError, match=r"the files of task sst2 \(.*dev.tsv.*\) have changed since its training"):
        development.read(workdir / "sst2" / "lr2e-05-bs32-seed0")
    file.write_text(before)
    train(settings, workdir)
    assert len(calls) == 2
    edit(file, old, new)
    (workdir / "sst2").rmtree()
    train(settings, workdir)
    assert len(calls) == 3


def test_hosts_agree_on_the_contents_of_files(tmp_path, data, calls, monkeypatch):
    folder, found = copy_of(data, tmp_path), []
    monkeypatch.setattr(suite.hosts, "agree", lambda what, facts: found.append((what, facts)))
    for name in ("a", "b"):
        suite.prepare(config(tmp_path, str(folder)), epath.Path(tmp_path / name))
        edit(folder / "SST-2" / "train.tsv", "film", "movie")
    (settings, examples), (other_settings, other_examples) = found[:2], found[2:]
    assert settings == other_settings and examples[0] == "their examples"
    (first,), (second,) = examples[1].values(), other_examples[1].values()
    assert {name for name in first if first[name] != second[name]} == {"fingerprint of the files"}


def test_trials_on_other_subsets_are_not_mixed(tmp_path, data, calls):
    for settings in ({"tasks.sst2.train_examples": 8}, {"tasks.sst2.validation_examples": 5}):
        workdir = epath.Path(tmp_path / "-".join(settings))
        train(config(tmp_path, data, seeds=(0,), **settings), workdir)
        train(config(tmp_path, data, seeds=(0, 1), **settings), workdir)
        with pytest.raises(ValueError, match="tasks.sst2.subset_seed: there 0, now 1\n"):
            train(config(tmp_path, data, **settings, **{"tasks.sst2.subset_seed": 1}), workdir)
    assert len(calls) == 4


def test_only_the_product_of_epochs_and_their_factor_matters(tmp_path, data, calls):
    workdir = epath.Path(tmp_path / "w")
    train(config(tmp_path, data, seeds=(0,), **{"tasks.sst2.epochs_factor": 2}), workdir)
    train(config(tmp_path, data, seeds=(0, 1), **{"tasks.sst2.epochs": 4}), workdir)
    with pytest.raises(ValueError, match="tasks.sst2.epochs: there 4, now 2\n"):
        train(config(tmp_path, data), workdir)
    assert len(calls) == 2


def test_flags_that_override_the_arms_are_printed_and_reported(source, tmp_path, calls, capsys):
    path = comparison.compare(source, {"tasks.sst2.epochs": 1}, epath.Path(tmp_path / "other"))
    assert "overridden" not in (path.parent / "report.json").read_text() and "overrides" not in path.read_text()
    otherwise = "    config.tasks.sst2.patience = 1 if chosen.arm == 'ag' else None\n    config.arms ="
    (tmp_path / "c.py").write_text(FILE.replace("    config.arms =", otherwise))
    path = comparison.compare(source, {"tasks.sst2.learning_rates": (1e-4,)}, epath.Path(tmp_path / "w"))
    sentence = (
        "--config.tasks.sst2.learning_rates=0.0001 overrides what the arms set: 0.0003,0.0001 (mlm), 0.0001,0.0002 (ag)"
    )
    assert sentence in capsys.readouterr().err and f"\n**{sentence}.**\n" in path.read_text()
    assert json.loads((path.parent / "report.json").read_text())["overridden"] == [sentence]


def test_what_a_kill_after_the_result_left_goes(tmp_path, data, calls):
    workdir = epath.Path(tmp_path / "w")
    train(config(tmp_path, data), workdir)
    done = workdir / "sst2" / "lr2e-05-bs32-seed1"
    for folder in ("checkpoints", "weights"):
        (done / folder).mkdir()
    train(config(tmp_path, data), workdir)
    assert {path.name for path in done.iterdir() if path.is_dir()} == set() and len(calls) == 3


def test_a_checkpoint_that_went_on_is_told_from_what_it_was(tmp_path, data, calls):
    workdir = epath.Path(tmp_path / "w")
    train(config(tmp_path, data), workdir)
    (tmp_path / "model" / "newer").touch()
    with pytest.raises(
        ValueError, match=r"started from step 0 of .*, trials would now start from step 1 of .*: delete .*sst2 to train"
    ):
        train(config(tmp_path, data, seeds=(0, 1, 2, 3)), workdir)
    assert len(calls) == 3


def test_a_checkpoint_that_was_trained_again_is_noticed(tmp_path, data, calls):
    workdir, weights = epath.Path(tmp_path / "w"), tmp_path / "model" / "params"
    weights.write_text("1.5")
    train(config(tmp_path, data), workdir)
    weights.write_text("1.25")
    more = config(tmp_path, data, seeds=(0, 1, 2, 3))
    message = r"started from step 1 of .*, which had other weights or settings, .* delete .*sst2 to"
    with pytest.raises(ValueError, match=message):
        train(more, workdir)
    assert len(calls) == 3


def test_a_first_task_that_was_trained_again_is_noticed(tmp_path, data, calls):
    workdir, settings = epath.Path(tmp_path / "w"), {"tasks.rte.initial_task": "sst2"}
    train(config(tmp_path, data, ("sst2", "rte"), (0,), **settings), workdir)
    (first,) = (tmp_path / "w").glob("sst2/*/weights")
    (first.parent / "params").write_text("2")
    settings["tasks.rte.learning_rates"] = (1e-5, 2e-5)
    with pytest.raises(ValueError, match=r"started from trial .*, which had other weights or settings, "):
        train(config(tmp_path, data, ("sst2", "rte"), (0,), **settings), workdir)


def test_a_first_task_with_a_better_point_since_is_noticed(tmp_path, data, calls, monkeypatch):
    """Although all trials of the task that starts from it are done, and none of them would be trained again."""
    workdir, settings = epath.Path(tmp_path / "w"), {"tasks.rte.initial_task": "sst2"}
    rates = (2e-5, 1e-5, 3e-5, 4e-5, 5e-5, 6e-5)
    scores = {}
    for rate in rates:  # by the stand-in of trials, whose scores follow from their names
        train(
            config(tmp_path, data, seeds=(0,), **{"tasks.sst2.learning_rates": (rate,)}),
            epath.Path(tmp_path / f"{rate}"),
        )
        (path,) = (tmp_path / f"{rate}").glob("sst2/*/result.json")
        scores[rate] = json.loads(path.read_text())["metrics"]["accuracy"]
    worst, best_rate = min(scores, key=scores.get), max(scores, key=scores.get)
    assert scores[worst] < scores[best_rate]
    alone = {"tasks.sst2.learning_rates": (worst,)}
    train(config(tmp_path, data, ("sst2", "rte"), (0,), **settings, **alone), workdir)
    moved = epath.Path(tmp_path / "moved")
    shutil.copytree(tmp_path / "w", moved)
    train(config(tmp_path, data, ("sst2", "rte"), (0,), **settings, **alone), moved)
    grown = config(
        tmp_path, data, ("sst2", "rte"), (0,), **settings, **{"tasks.sst2.learning_rates": (worst, best_rate)}
    )
    for _ in range(2):
        with pytest.raises(ValueError, match=r"is not the best trial of sst2 with seed 0 any more, .*delete .*rte to"):
            train(grown, workdir)


def train_with_another_result(settings, tmp_path, text, other, message):
    """Train a trial, replace `text` in its result by `other`, and train again.

    message: what must follow the file's name in the error, a regular expression; None if there must be no error.
    """
    workdir = epath.Path(tmp_path / "w")
    train(settings, workdir)
    (path,) = (tmp_path / "w").glob("sst2/*/result.json")
    assert text in path.read_text()
    path.write_text(path.read_text().replace(text, other))
    if message is None:
        train(settings, workdir)
        return
    with pytest.raises(ValueError, match=f"{path}{message}"):
        train(settings, workdir)


@pytest.mark.parametrize(
    ("text", "other", "message"),
    [
        ('"accuracy"', '"accurate"', "'accuracy'"),
        ('"train": 24', '"train": []', "'train'"),
        ('"accuracy": ', '"accuracy": NaN, "other": ', "expected a finite accuracy, got nan; delete .*seed0"),
    ],
)
def test_a_result_that_was_changed_is_named(tmp_path, data, calls, text, other, message):
    train_with_another_result(config(tmp_path, data, seeds=(0,)), tmp_path, text, other, f": .*{message}")


@pytest.mark.parametrize(
    ("text", "other", "message"),
    [
        ('"seed": 1', '"seed": 0', "expected seed=1, got 0; delete .*lr2e-05-bs32-seed1 to"),
        ('"learning_rate": 2e-05', '"learning_rate": 3e-05', "expected learning_rate=2e-05, got 3e-05"),
        ('"batch_size": 32', '"batch_size": 16', "expected batch_size=32, got 16"),
        ('"task": "sst2"', '"task": "rte"', "expected task=sst2, got rte"),
        ('"fold": null', '"fold": 1', "expected fold=None, got 1"),
        ('"learning_rate": 2e-05', '"learning_rate": 2.000001e-05', None),
    ],
)
def test_the_result_of_another_trial_is_noticed(tmp_path, data, calls, text, other, message):
    message = None if message is None else f" is the result of another trial: {message}"
    train_with_another_result(config(tmp_path, data, seeds=(1,)), tmp_path, text, other, message)


@pytest.mark.parametrize(
    ("text", "other", "message"),
    [
        ('"head_dropout": 0.1,', '"head_dropout": 0.2,', "another trial: expected head_dropout=0.1, got 0.2; delete"),
        ('"warmup_steps": 1}', '"warmup_steps": 2}', "another trial: expected warmup_steps=1, got 2"),
        ('"warmup_steps": 1}', '"dropout": 0.5}', "another trial: expected warmup_steps=1, got None"),
        (', "warmup_steps": 1}', "}", "another trial: expected warmup_steps=1, got None"),
        ('"warmup_steps": 1}', '"warmup_steps": 1, "dropout": 0.5}', "another trial: expected dropout=None, got 0.5"),
        ('"warmup_steps": 1}', '"warmup_steps": "1"}', "expected a JSON number under the key 'warmup_steps', got '1'"),
        ('"swept": {', '"swept": 3, "x": {', "expected a JSON object under the key 'swept', got 3"),
        ('"head_dropout": 0.1,', '"head_dropout": 0.10000001,', None),
    ],
)
def test_the_result_of_another_point_is_noticed(tmp_path, data, calls, text, other, message):
    swept = {"head_dropout": (0.1,), "warmup_steps": (1,)}
    settings = config(tmp_path, data, seeds=(1,), **{f"tasks.sst2.sweep.{name}": of for name, of in swept.items()})
    train_with_another_result(settings, tmp_path, text, other, None if message is None else f".*{message}")


def test_a_trial_that_fails_costs_its_point_and_nothing_else(tmp_path, data, calls, monkeypatch):
    honest = suite.job.run_trial

    def run_trial(one, *rest):
        if one.learning_rate == 9.0 and one.seed == 1:
            rest[-3].mkdir(parents=True, exist_ok=True)
            raise NonFiniteError("task_loss of sst2 is not finite at step 3")
        return honest(one, *rest)

    monkeypatch.setattr(suite.job, "run_trial", run_trial)
    swept = config(tmp_path, data, **{"tasks.sst2.learning_rates": (9.0, 1e-4)})
    workdir = epath.Path(tmp_path / "w")
    for _ in range(2):
        chosen = train(swept, workdir)["sst2"]
        assert [point.learning_rate for point in chosen.points] == [1e-4]
        assert chosen.notes == ("not chosen, because seed 1 failed: task_loss of sst2 is not finite at step 3",)
        assert len(calls) == 5
    with pytest.raises(
        ValueError, match="/w: every point of the sweep of sst2 failed with some seed; the first .*: task_loss.*delete"
    ):
        train(config(tmp_path, data, **{"tasks.sst2.learning_rates": (9.0,)}), workdir)


def test_a_trial_that_fails_costs_its_values_of_swept_settings_and_no_others(tmp_path, data, calls, monkeypatch):
    honest, failing = suite.job.run_trial, {"head_dropout": 0.1, "warmup_steps": 0}

    def run_trial(one, *rest):
        if one.swept == failing and one.seed == 1:
            rest[-3].mkdir(parents=True, exist_ok=True)
            raise NonFiniteError("task_loss of sst2 is not finite at step 3")
        return honest(one, *rest)

    monkeypatch.setattr(suite.job, "run_trial", run_trial)
    workdir = epath.Path(tmp_path / "w")
    for _ in range(2):
        points = train(config(tmp_path, data, **SWEPT), workdir)["sst2"].points
        assert [tuple(point.swept.values()) for point in points] == [(0.0, 0), (0.0, 1), (0.1, 1)]
        assert len(calls) == 11
    failed = json.loads((workdir / "sst2" / "lr2e-05-bs32-head_dropout0.1-warmup_steps0-seed1/result.json").read_text())
    assert failed["swept"] == failing and "metrics" not in failed


def test_a_failed_trial_with_weights_is_not_the_best(tmp_path, data, calls):
    workdir = epath.Path(tmp_path / "w")
    train(config(tmp_path, data, keep="best"), workdir)
    failed = workdir / "sst2" / "lr2e-05-bs32-seed1"
    suite.trial.write_failure(next(suite.trials(config(tmp_path, data, seeds=(1,)), "sst2")), failed, "not finite")
    assert (failed / "weights").exists()
    found = best.find(workdir)
    assert found.directory != failed and "of 2 trials of sst2" in found.reason


@pytest.mark.parametrize(
    "earlier, later",
    [
        ({}, {"tasks.sst2.sweep.warmup_steps": (0, 1)}),
        ({"tasks.sst2.learning_rates": (2e-5, 5e-5)}, {"tasks.sst2.learning_rates": (3e-5,)}),
        ({}, {"seeds": (7,)}),
    ],
)
def test_the_best_is_one_of_the_trials_that_the_suite_still_has(tmp_path, data, calls, earlier, later):
    """Trials are left from before a first sweep, from other learning rates and from other seeds; all are better."""
    workdir = epath.Path(tmp_path / "w")
    train(config(tmp_path, data, keep="best", **earlier), workdir)
    left = {path.parent for path in workdir.glob("sst2/*/weights")}
    for directory in left:
        result = json.loads((directory / "result.json").read_text())
        (directory / "result.json").write_text(json.dumps(result | {"metrics": {"accuracy": 1.0}}))
    assert best.find(workdir).directory in left
    now = config(tmp_path, data, **({"keep": "best"} | later))
    chosen = train(now, workdir)["sst2"]
    kept = {path.parent for path in workdir.glob("sst2/*/weights")} - left
    assert len(kept) == len(now.seeds)
    highest = max(value for point in chosen.points for value in point.values("accuracy"))
    for directory in (workdir, workdir / "sst2"):
        found = best.find(directory)
        assert found.directory in kept and f"of sst2 with weights, {highest:.4f}" in found.reason
    for directory in kept:
        shutil.rmtree(directory)
    with pytest.raises(FileNotFoundError, match="/sst2/lr.e-05-bs32-seed. has, of earlier settings of the suite: open"):
        best.find(workdir)


def test_a_smaller_sweep_whose_best_trial_has_no_weights_is_reported(source, tmp_path, calls, capsys):
    workdir = tmp_path / "w"
    finetune = cli.Request(source, {"seeds": (0,), "keep": "best"}, str(workdir), None, None)
    cli.VERBS["finetune"](finetune)
    (kept,) = workdir.glob("sst2/*/weights")
    assert f", are in {kept.parent}\n" in capsys.readouterr().out
    others = {"lr0.0001-bs32-seed0": 2e-4, "lr0.0002-bs32-seed0": 1e-4}
    smaller = finetune.overrides | {"tasks.sst2.learning_rates": (others[kept.parent.name],)}
    cli.VERBS["finetune"](dataclasses.replace(finetune, overrides=smaller))
    told = capsys.readouterr().out
    assert f"the report is {workdir / 'report.md'}\nno finished trial of {workdir} has saved" in told
    assert f"; {kept.parent} has, of earlier settings" in told and len(calls) == 2


def test_of_equal_trials_the_first_of_the_suite_is_the_best(tmp_path, data, calls):
    workdir = epath.Path(tmp_path / "w")
    train(config(tmp_path, data, seeds=(9, 10), keep="best"), workdir)
    for path in workdir.glob("sst2/*/result.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"metrics": {"accuracy": 0.5}}))
    assert best.find(workdir).directory.name == "lr2e-05-bs32-seed9"


def test_weights_that_another_task_wants_are_missed_at_once(tmp_path, data, calls):
    workdir = epath.Path(tmp_path / "w")
    train(config(tmp_path, data), workdir)
    wanting = config(tmp_path, data, ("sst2", "rte"), **{"tasks.rte.initial_task": "sst2"})
    with pytest.raises(
        ValueError,
        match="starts from the best weights of sst2, which .*sst2 does not have for seed 0: delete .*sst2 to train",
    ):
        train(wanting, workdir)
    assert len(calls) == 3


def test_a_failed_trial_of_an_initial_task_is_not_asked_for_weights(tmp_path, data, calls):
    """The suite was stopped after it: the other trials of the seed, which are not done, will have weights."""
    settings = {"tasks.rte.initial_task": "sst2", "tasks.sst2.learning_rates": (1e-4, 2e-4)}
    wanted, workdir = config(tmp_path, data, ("sst2", "rte"), (0,), **settings), epath.Path(tmp_path / "w")
    failed, finished = suite.trials(wanted, "sst2")
    suite.directory_of(workdir, failed).mkdir(parents=True)
    suite.trial.write_failure(failed, suite.directory_of(workdir, failed), "not finite")
    train(wanted, workdir)
    assert [name.split("/")[0] for name in calls] == ["sst2", "rte"]
    suite.trial.write_failure(finished, suite.directory_of(workdir, finished), "not finite")
    with pytest.raises(ValueError, match="no trial of sst2 with seed 0 succeeded"):
        train(wanted, workdir)


def test_a_second_arm_that_cannot_be_is_found_before_the_first_is_trained(source, tmp_path, calls):
    text = (tmp_path / "c.py").read_text()
    change = "config.checkpoint = '/not/there' if chosen.arm == 'ag' else config.checkpoint"
    (tmp_path / "other.py").write_text(text.replace("    return config", f"    {change}\n    return config"))
    with pytest.raises(FileNotFoundError, match="/not/there is no model"):
        comparison.compare(source.replace("c.py", "other.py"), {}, epath.Path(tmp_path / "w"))
    assert not calls


def test_numbers_are_those_of_the_predictions(source, tmp_path, calls, data):
    report_md = comparison.compare(source, {}, epath.Path(tmp_path / "w")).read_text()
    numbers = json.loads((tmp_path / "w" / "report.json").read_text())
    splits = task_splits.read("sst2", Recipe(), data)
    rates = {"mlm": (3e-4, 1e-4), "ag": (1e-4, 2e-4)}
    values = {}
    for arm, of_arm in numbers["tasks"]["sst2"]["arms"].items():
        points = {
            rate: [tiny_tasks.accuracies(splits, "sst2", rate, 32, seed, False) for seed in range(3)]
            for rate in rates[arm]
        }
        best = max(points, key=lambda rate: np.median(points[rate]))
        assert of_arm["chosen"] == {"learning_rate": best, "batch_size": 32}
        shown, values[arm] = of_arm["splits"]["validation"]["accuracy"], points[best]
        assert shown["values"] == pytest.approx(points[best]) and shown["n"] == 3
        assert shown["median"] == pytest.approx(np.median(points[best]))
        assert shown["deviation"] == pytest.approx(np.std(points[best], ddof=1))
        assert set(of_arm["splits"]) == {"validation"}, "the test set has no labels, and must not be scored"
        assert [point["learning_rate"] for point in of_arm["sweep"] if point["chosen"]] == [best]
        assert of_arm["counts"] == {
            **{"train": 24, "validation": 11, "truncated": 3, "cut_words": 2, "lost": 1, "skipped": 0},
            "trials": 6,
        }
        assert of_arm["seconds"] == 9.0
        key = [("sst2", best, 32, seed, False) for seed in range(3)]
        guesses = [[tiny_tasks.guess(example, *one)[1] for one in key] for example in splits.validation]
        soft = [
            np.mean(np.exp(g) / np.exp(g).sum(-1, keepdims=True), axis=0).argmax() for g in map(np.asarray, guesses)
        ]
        expected = np.mean([s == example.label for s, example in zip(soft, splits.validation, strict=True)])
        assert of_arm["ensemble"]["validation"]["accuracy"] == pytest.approx(expected)
    p_value = numbers["tasks"]["sst2"]["arms"]["ag"]["p_value"]
    assert p_value["seeds"] == pytest.approx(scipy.stats.ttest_rel(values["ag"], values["mlm"]).pvalue)
    best = {arm: of_arm["chosen"]["learning_rate"] for arm, of_arm in numbers["tasks"]["sst2"]["arms"].items()}
    right = {
        arm: [
            np.mean([tiny_tasks.guess(example, "sst2", rate, 32, seed, False)[0] == example.label for seed in range(3)])
            for example in splits.validation
        ]
        for arm, rate in best.items()
    }
    assert p_value["examples"] == pytest.approx(scipy.stats.ttest_rel(right["ag"], right["mlm"]).pvalue)
    difference = numbers["differences"]["ag"]["sst2"]
    mean = np.mean(values["ag"]) - np.mean(values["mlm"])
    assert difference["mean"] == pytest.approx(mean) and difference["p_value"] == pytest.approx(p_value["seeds"])
    assert f"| sst2 | ag | {100 * mean:+.1f} |" in report_md
    assert numbers["tasks"]["sst2"]["arms"]["mlm"]["p_value"] is None and numbers["baseline"] == "mlm"


def test_the_report_says_what_a_paper_prints(source, tmp_path, calls):
    text = comparison.compare(f"{source},tasks=sst2,stsb", {"seeds": (3, 7)}, epath.Path(tmp_path / "w")).read_text()
    numbers = json.loads((tmp_path / "w" / "report.json").read_text())
    assert text.startswith("# A title\n") and " --config.seeds=3,7`" in text
    assert "over 2 seeds (3, 7)" in text
    assert text.index("| sst2 | accuracy | validation |") < text.index("| stsb | pearson | validation |")
    of_ag = numbers["tasks"]["sst2"]["arms"]["ag"]["splits"]["validation"]["accuracy"]
    shown = f"{100 * of_ag['mean']:.1f} ± {100 * of_ag['deviation']:.1f} ({100 * of_ag['median']:.1f})"
    assert re.search(rf"\| sst2 \| accuracy \| validation \| [^|]+ \| {re.escape(shown)}[+*]* \|", text)
    assert "| stsb | validation | spearman |" in text and "; together" in text
    assert "| `tasks.sst2.learning_rates` | [0.0003, 0.0001] | [0.0001, 0.0002] |" in text
    assert "| sst2 | ag | 24 | 11 | 3 | 2 | 1 | 0 | 4 | 6 |" in text


def test_a_set_of_which_only_a_part_has_labels_is_said_to_be_unscored(tmp_path, calls):
    """Not one without any labels, as test sets are distributed."""
    root = tiny_tasks.write(tmp_path / "files")
    assert train(config(tmp_path, str(root)), epath.Path(tmp_path / "w"))["sst2"].notes == ()
    (root / "SST-2" / "test.tsv").write_text("index\tsentence\tlabel\n0\tgood\t1\n1\tbad\t-1\n2\tfunny\t\n")
    found = train(config(tmp_path, str(root)), epath.Path(tmp_path / "other"))["sst2"]
    assert found.notes == ("test: not scored, because 2 of its 3 labels are missing",)


def test_models_that_always_predict_the_same_are_reported():
    examples = Examples(tuple(Texts(str(number), "a", None, number % 2) for number in range(4)), "here")
    task = task_splits.find_task("sst2", Recipe())

    def note(*of_seeds):
        rows = tuple([{"id": str(at), "prediction": one, "scores": []} for at, one in enumerate(of)] for of in of_seeds)
        return results._constant_notes("test", results.SplitPredictions(task, examples, rows))

    assert note([1, 0, 1, 1]) == []
    assert note([1, 1, 1, 1]) == [
        "test: the model predicted 'positive' for every example, so nothing useful was learnt"
    ]
    assert note([0, 0, 0, 0], [0, 1, 0, 1])[0].startswith("test: 1 of 2 models predicted 'negative' for every example")
    assert note([0, 0, 0, 0], [0, 1, 0, 1], [1, 1, 1, 1])[0].startswith(
        "test: 2 of 3 models predicted one and the same ('negative' or 'positive') for every example"
    )
    task = task_splits.find_task("conll2003", Recipe())
    assert "predicted 'O' for every word" in note([["O", "O"], ["O"], ["O"], ["O"]])[0]
    assert note([["O", "B-PER"], ["O"], ["O"], ["O"]]) == []


def test_files_for_the_server_are_the_ensembles_predictions(source, tmp_path, calls):
    text = comparison.finetune(f"{source},tasks=sst2,rte", {}, epath.Path(tmp_path / "w")).read_text()
    assert "- sst2: submission/SST-2.tsv has the 7 predictions of test" in text
    lines = (tmp_path / "w" / "submission" / "RTE.tsv").read_text().splitlines()
    assert lines[0] == "index\tprediction" and len(lines) == 1 + tiny_tasks.TEST
    assert {line.partition("\t")[2] for line in lines[1:]} <= {"entailment", "not_entailment"}


def test_folds_are_pooled_and_averaged(source, tmp_path, calls, data):
    task = f"{source},tasks=oromo_ner,seeds=2"
    with pytest.raises(ValueError, match="a single point .*, got 2 points"):
        comparison.finetune(task, {}, epath.Path(tmp_path / "w"))
    comparison.finetune(task, {"tasks.oromo_ner.learning_rates": (1e-4,)}, epath.Path(tmp_path / "w"))
    assert len(calls) == 2 * 4
    (of_arm,) = json.loads((tmp_path / "w" / "report.json").read_text())["tasks"]["oromo_ner"]["arms"].values()
    assert of_arm["headline"] == "all folds"
    splits = task_splits.read("oromo_ner", Recipe(folds=4), data)
    assert len(splits.train) == 17
    rate = of_arm["chosen"]["learning_rate"]
    pooled, of_folds = [], []
    for seed in range(2):
        found = {
            example.id: tiny_tasks.guess(example, "oromo_ner", rate, 32, seed, False)[0] for example in splits.train
        }
        parts = [task_splits.of_fold(splits, number, 4).others["test"] for number in range(4)]
        assert sorted(example.id for part in parts for example in part) == sorted(found)
        # Every entity is one word; a wrong guess finds none, so precision is 1 and F1 = 2 r / (1 + r).
        recall = [np.mean([found[example.id][0] != "O" for example in part]) for part in parts]
        of_folds.append(np.mean([2 * r / (1 + r) for r in recall]))
        whole = np.mean([tags[0] != "O" for tags in found.values()])
        pooled.append(2 * whole / (1 + whole))
    assert of_arm["splits"]["all folds"]["entity_f1"]["values"] == pytest.approx(pooled)
    assert of_arm["splits"]["mean of folds"]["entity_f1"]["values"] == pytest.approx(of_folds)


def test_no_example_is_tested_by_a_model_that_saw_it(data):
    splits = task_splits.read("oromo_ner", Recipe(folds=5), data)
    for number in range(5):
        fold = task_splits.of_fold(splits, number, 5)
        parts = [{example.id for example in part} for part in (fold.train, fold.validation, fold.others["test"])]
        assert sum(map(len, parts)) == len(set.union(*parts)) == 17


def test_tasks_start_from_the_best_weights_of_the_same_seed(tmp_path, data, calls, monkeypatch):
    started = []
    monkeypatch.setattr(
        suite.opening,
        "open_encoder",
        lambda path, *rest, **more: started.append(path) or tiny_tasks.open_encoder(path, *rest, **more),
    )
    settings = {"tasks.rte.initial_task": "sst2", "tasks.sst2.learning_rates": (1e-4, 2e-4)}
    workdir = epath.Path(tmp_path / "w")
    train(config(tmp_path, data, ("sst2", "rte"), (0, 1), **settings), workdir)
    assert [name.split("/")[0] for name in calls] == ["sst2"] * 4 + ["rte"] * 2
    splits = task_splits.read("sst2", Recipe(), data)
    for seed, path in enumerate(started[1:]):
        best = max((1e-4, 2e-4), key=lambda rate: tiny_tasks.accuracies(splits, "sst2", rate, 32, seed, False))
        assert path == str(workdir / "sst2" / f"lr{best:g}-bs32-seed{seed}")
    kept = {found.parent.name for found in (tmp_path / "w").glob("*/*/weights")}
    assert kept == {epath.Path(path).name for path in started[1:]}


def test_legacy_evaluation_is_said_aloud_and_only_where_code_did_it(tmp_path, data):
    with pytest.raises(
        ValueError, match="tasks.sst2.legacy_eval is only for tasks whose published code chose its epochs .*anli_r1"
    ):
        suite.read(config(tmp_path, data, **{"tasks.sst2.legacy_eval": True}))
    folder = tmp_path / "legacy" / "anli_v1.0" / "R1"
    folder.mkdir(parents=True)
    for split, count in (("train", 5), ("dev", 3), ("test", 4)):
        rows = [
            {"uid": f"{split}{n}", "context": "a b", "hypothesis": "c", "label": "enc"[n % 3]} for n in range(count)
        ]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    root = str(tmp_path / "legacy")
    honest, legacy = (task_splits.read("anli_r1", Recipe(legacy_eval=flag), root) for flag in (False, True))
    assert (len(honest.validation), len(legacy.validation)) == (3, 4) and honest.notes == ()
    assert {example.id for example in legacy.validation} == {example.id for example in honest.others["test"]}
    assert "chosen on test data" in legacy.notes[0] and not legacy.others


@pytest.mark.parametrize(
    ("tasks", "settings", "error", "message"),
    [
        (("sst3",), {}, ValueError, "unknown task 'sst3'"),
        (("cola",), {}, FileNotFoundError, "no split 'train' below"),
        (("sst2",), {"data": "/not/there"}, FileNotFoundError, "no split 'train' below /not/there"),
        (("sst2",), {"checkpoint": "/not/there"}, FileNotFoundError, "/not/there is no model"),
        (("sst2",), {"tasks.sst2.max_length": 65}, ValueError, "max_length=65 is longer than the 64 positions"),
        (
            ("sst2",),
            {"tasks.sst2.metric": "f1"},
            ValueError,
            "tasks.sst2.metric must be one of accuracy, or module.function of a custom metric, got 'f1'",
        ),
        (("sst2",), {"tasks.sst2.folds": 4}, ValueError, "tasks.sst2.folds is for tasks without a validation split"),
        (("oromo_ner",), {}, ValueError, "oromo_ner has no validation split: set tasks.oromo_ner.folds, such as 10"),
        (("oromo_ner",), {"tasks.oromo_ner.folds": 18}, ValueError, "expected 2 to 17 folds"),
        (("sst2",), {"tasks.sst2.ranking": True}, ValueError, "sst2 cannot be trained as a ranking"),
        (("sst2",), {"tasks.sst2.first_question": True}, ValueError, "first_question is for dream"),
        (
            ("squad1",),
            {"tasks.squad1.head_dropout": 0.1},
            ValueError,
            "tasks.squad1.head_dropout must be none, got 0.1",
        ),
        (
            ("squad2",),
            {"tasks.squad2.head_dropout": 0.0, "tasks.squad2.answerability": True},
            ValueError,
            "tasks.squad2.head_dropout must be none, got 0",
        ),
        (
            ("squad1",),
            {"tasks.squad1.sweep.head_dropout": (0.0, 0.1)},
            ValueError,
            "tasks.squad1.sweep.head_dropout must be empty, got 0,0.1: the head of this task, which finds spans",
        ),
        (
            ("wnli",),
            {"tasks.wnli.head_dropout": 0.1, "tasks.wnli.ranking": True},
            ValueError,
            "tasks.wnli.head_dropout must be none, got 0.1",
        ),
        (
            ("squad1",),
            {"tasks.squad1.pooling": "mean"},
            ValueError,
            "tasks.squad1.pooling must be none, got mean: the head of this task reads every token",
        ),
    ],
)
def test_what_is_wrong_is_found_before_anything_is_trained(tmp_path, data, calls, tasks, settings, error, message):
    with pytest.raises(error, match=re.escape(message)):
        train(config(tmp_path, settings.pop("data", data), tasks, **settings), epath.Path(tmp_path / "w"))
    assert not calls and not (tmp_path / "w").exists()


def test_a_warmup_longer_than_any_trial_is_found_before_anything_is_trained(tmp_path, data, monkeypatch):
    """The nine questions of SQuAD have more windows, and so more steps, than there are questions."""
    opened = Pretrained(EncoderConfig(max_length=64), tasks.TOKENIZER, {}, "roberta", "step 9 of runs/x")
    monkeypatch.setattr(suite.opening, "open_encoder", lambda *_, **__: opened)

    def prepare(**warmup):
        settings = {"tasks.squad2.epochs": 1, "tasks.squad2.batch_sizes": (1,), "tasks.sst2.batch_sizes": (8, 16)}
        for name, steps in warmup.items():
            settings |= {f"tasks.{name}.warmup_steps": steps, f"tasks.{name}.max_length": 12}
        return suite.prepare(config(tmp_path, data, warmup, (0,), **settings), epath.Path(tmp_path / "w"))

    message = (
        r"^tasks.sst2.warmup_steps=4 must be fewer than the 4 steps of a trial.* \(the trial is lr2e-05-bs16-seed0"
    )
    with pytest.raises(ValueError, match=message):
        prepare(squad2=9, sst2=4)
    assert prepare(squad2=9, sst2=3).opened is opened
    with pytest.raises(ValueError, match="^tasks.squad2.warmup_steps=900 must be fewer than the"):
        prepare(squad2=900, sst2=3)
    swept = {"tasks.sst2.batch_sizes": (16,), "tasks.sst2.max_length": 12, "tasks.sst2.warmup_steps": 9}
    for steps in ((1, 3), (1, 4)):  # of four; what the recipe says itself has no effect
        swept["tasks.sst2.sweep.warmup_steps"] = steps
        made = config(tmp_path, data, seeds=(0,), **swept)
        if steps[1] == 3:
            assert len(suite.prepare(made, epath.Path(tmp_path / "w")).planned["sst2"]) == 2
    message = r"^tasks.sst2.sweep.warmup_steps=4 must .* the 4 steps .*out of the sweep \(the trial is .*_steps4-seed0"
    with pytest.raises(ValueError, match=message):
        suite.prepare(made, epath.Path(tmp_path / "w"))
    attack = {"method": "asa", "asa.delay_steps": 3}  # the adversary's only step would be the first of its warm-up
    late = swept | {f"tasks.sst2.adversarial.{name}": value for name, value in attack.items()}
    late["tasks.sst2.sweep.warmup_steps"] = (0, 1)
    with pytest.raises(ValueError, match=r"^tasks.sst2.adversarial.asa.delay_steps=3 .*_steps1-seed0"):
        suite.prepare(config(tmp_path, data, seeds=(0,), **late), epath.Path(tmp_path / "w"))


def test_hard_coded_attention_can_neither_be_guided_nor_attacked(tmp_path, data, calls, monkeypatch):
    fixed = EncoderConfig(max_length=64, fixed_attention=FixedConfig(offsets=(-1, 1)))
    opened = Pretrained(fixed, None, {}, "roberta", "step 9 of runs/fixed")
    monkeypatch.setattr(suite.opening, "open_encoder", lambda *arguments, **more: opened)
    for settings, message in (
        (
            {"guidance.mode": "loss"},
            "tasks.sst2 cannot start from step 9 of runs/fixed: model.fixed_attention.offsets h",
        ),
        ({"tasks.sst2.adversarial.method": "asa"}, "adversarial.method=asa masks attention scores, which"),
    ):
        with pytest.raises(ValueError, match=message):
            suite.prepare(config(tmp_path, data, **settings), epath.Path(tmp_path / "w"))
    assert suite.prepare(config(tmp_path, data), epath.Path(tmp_path / "w")).opened is opened


def test_arms_that_cannot_be_paired_are_refused(source, tmp_path):
    argument = source.partition(":")[2]
    text = (tmp_path / "c.py").read_text()
    for change, message in (
        ("config.seeds = (0,) if chosen.arm == 'ag' else (1,)", "the same seeds, to be compared in pairs"),
        ("config.tasks.sst2.ranking = chosen.arm == 'ag'", "the same tasks.sst2.ranking,.* True in ag"),
        (
            "config.tasks.sst2.validation_examples = 3 if chosen.arm == 'ag' else 2",
            "same tasks.sst2.validation_examples",
        ),
        (
            "config.tasks.oromo_ner = config_reader.default(Recipe); "
            "config.tasks.oromo_ner.update(folds=3, train_examples=9 if chosen.arm == 'ag' else None)",
            "the same tasks.oromo_ner.train_examples,",
        ),
        ("config.arms = ''", "names no arms to compare"),
    ):
        (tmp_path / "other.py").write_text(text.replace("    return config", f"    {change}\n    return config"))
        with pytest.raises(ValueError, match=message):
            comparison.arm_configs(f"{tmp_path / 'other.py'}:{argument}", {})


def test_marks_are_for_scores_that_differ():
    assert report.marks({"seeds": 0.01, "examples": 0.04}, 0.1) == "+*"
    assert report.marks({"seeds": 0.06, "examples": 0.04}, -0.1) == "*"
    assert report.marks({"seeds": None, "examples": 0.051}, 0.1) == report.marks(None, 0.1) == ""
    assert report.marks({"seeds": None, "examples": 0.001}, 0.0) == "", (
        "words may be tagged otherwise, and F1 be the same"
    )


@pytest.mark.exhaustive
def test_real_trials_killed_between_and_within(source, tmp_path, monkeypatch, one_device):
    """Six steps a trial, three an epoch, two seeds and one point; a signal in the second
    epoch of each trial in turn.
    """
    model = tiny_tasks.checkpoint(tmp_path)
    path = source.partition(":")[0]
    source = f"{path}:model={model},data={source.rpartition('data=')[2]},seeds=2"
    overrides = {"tasks.sst2.learning_rates": (1e-3,), "tasks.sst2.batch_sizes": (8,), "tasks.sst2.max_length": 16}
    asked, stops = [], {5, 11}

    def reached(_):
        asked.append(1)
        return "SIGTERM" if len(asked) in stops else None

    monkeypatch.setattr(StopSignal, "reached", reached)
    workdir = epath.Path(tmp_path / "killed")
    for done in (0, 1):
        with pytest.raises(Interrupted, match="SIGTERM: stopped at step 5 of 6"):
            comparison.finetune(source, overrides, workdir)
        assert len([*workdir.glob("sst2/*/result.json")]) == done
    comparison.finetune(source, overrides, workdir)
    assert len(asked) == 2 * 6, "no step must be done again"
    stops.clear()
    comparison.finetune(source, overrides, epath.Path(tmp_path / "whole"))
    numbers = [json.loads((tmp_path / name / "report.json").read_text()) for name in ("killed", "whole")]
    for of_run in numbers:
        of_run["tasks"]["sst2"]["arms"]["score"].pop("seconds")
    assert numbers[0] == numbers[1]
    for found in (tmp_path / "killed").glob("sst2/*/predictions_*.jsonl"):
        other = tmp_path / "whole" / found.relative_to(tmp_path / "killed")
        assert found.read_text() == other.read_text()
