"""`compare` from config to report: every arm and seed, resumable, with the numbers that the runs wrote."""

import dataclasses
import json
import pathlib
import re
import shutil

import numpy as np
import pytest
import scipy.stats
from etils import epath

from ag_jax import config_reader
from ag_jax.distributed import lock
from ag_jax.objectives.masked_lm import MLM
from ag_jax.pretraining import comparable, comparison, report, run
from ag_jax.pretraining.report import ArmResults
from ag_jax.training.metrics import read_metrics

CONFIG = str(pathlib.Path(__file__).parents[2] / "configs" / "quickstart.py")
TEXT = "The state of the union is strong. We will build roads, and we will build them well. Thank you. "
ROW = {"step": 1, "split": "train", "mlm_loss": 5.0, "tokens_per_second": 1.0}


@pytest.fixture(scope="module")
def overrides(tmp_path_factory):
    text = tmp_path_factory.mktemp("text")
    for number in range(12):
        (text / f"{number}.txt").write_text(TEXT * 4 + f"It is number {number}.")
    return {
        "data.source": str(text),
        "data.sequence_length": 16,
        "data.tokenizer.vocabulary_size": 300,
        "model.layers": 2,
        "model.width": 12,
        "model.heads": 6,
        "training.steps": 6,
        "optimizer.warmup_steps": 0,
        "guidance.alpha": 2.0,
        "training.batch_size": 4,
        "training.log_every": 2,
        "training.evaluate_every": None,
        "training.milestones": (0.0, 0.5, 1.0),
        "training.tensorboard": False,
        "training.wandb": "a_project",
        "comparison.seeds": (3, 8),
        "inspection.sentence": "The union is strong.",
    }


class Recorder:
    """Stands in for a run at wandb."""

    started, ended = [], []

    def __init__(self, project, workdir, settings, labels):
        self.started.append(
            (project, workdir.name, settings["seed"], settings["guidance"]["mode"], labels.group, labels.tags)
        )

    def log(self, step, values):
        pass

    def finish(self, failed):
        self.ended.append(failed)


@pytest.fixture(scope="module")
def compared(overrides, tmp_path_factory):
    workdir = epath.Path(tmp_path_factory.mktemp("compared"))
    patch = pytest.MonkeyPatch()
    device = __import__("jax").devices()[0]
    patch.setattr("jax.devices", lambda: [device])
    calls = []
    train = run.train

    def dies_in_the_third_run(config, directory, labels):
        calls.append(directory.name)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return train(config, directory, labels)

    patch.setattr(run, "train", dies_in_the_third_run)
    patch.setattr(run, "WandbRun", Recorder)
    patch.setattr(run, "check_installed", lambda project: None)
    with pytest.raises(KeyboardInterrupt):
        comparison.compare(CONFIG, overrides, workdir)
    assert calls == ["mlm-seed3", "ag-seed3", "mlm-seed8"]
    assert not (workdir / "report.md").exists()
    first_run = (workdir / "ag-seed3" / "metrics.jsonl").read_bytes()
    (workdir / "figures").mkdir()
    (workdir / "figures" / "maps_layer9_head9.png").write_bytes(b"")  # of an earlier report
    path = comparison.compare(CONFIG, overrides, workdir)
    assert (workdir / "ag-seed3" / "metrics.jsonl").read_bytes() == first_run
    patch.undo()
    return path


def test_every_arm_and_seed_is_there(compared):
    directories = sorted(path.name for path in compared.parent.iterdir() if path.is_dir())
    assert directories == ["ag-seed3", "ag-seed8", "figures", "mlm-seed3", "mlm-seed8"]
    configs = {name: run.read_config(compared.parent / name) for name in directories if "seed" in name}
    assert {name: (config.guidance.mode, config.seed) for name, config in configs.items()} == {
        "ag-seed3": ("loss", 3),
        "ag-seed8": ("loss", 8),
        "mlm-seed3": ("none", 3),
        "mlm-seed8": ("none", 8),
    }


def test_runs_at_wandb_can_be_told_apart(compared):
    group = compared.parent.name
    assert sorted(Recorder.started) == sorted(
        ("a_project", f"{arm}-seed{seed}", seed, mode, group, (arm, f"seed{seed}"))
        for arm, mode in (("mlm", "none"), ("ag", "loss"))
        for seed in (3, 8)
    )
    assert Recorder.ended == [False] * 4


def test_numbers_are_those_of_the_runs(compared):
    content = json.loads((compared.parent / "report.json").read_text())
    losses = {
        arm: [
            json.loads((compared.parent / f"{arm}-seed{seed}" / "summary.json").read_text())["validation_loss"]
            for seed in (3, 8)
        ]
        for arm in ("mlm", "ag")
    }
    assert losses["mlm"][0] != losses["mlm"][1]
    for arm in ("mlm", "ag"):
        of_arm = content["arms"][arm]
        assert of_arm["values"]["validation_loss"] == losses[arm]
        assert of_arm["mean"]["validation_loss"] == pytest.approx(np.mean(losses[arm]))
        assert of_arm["deviation"]["validation_loss"] == pytest.approx(np.std(losses[arm], ddof=1))
    expected = scipy.stats.ttest_rel(losses["ag"], losses["mlm"]).pvalue
    assert content["arms"]["ag"]["p_value"]["validation_loss"] == pytest.approx(expected)
    assert content["arms"]["mlm"]["p_value"]["validation_loss"] is None
    difference = content["differences"]["ag"]["validation_loss"]
    mean = np.mean(np.subtract(losses["ag"], losses["mlm"]))
    assert difference["mean"] == pytest.approx(mean) and difference["p_value"] == pytest.approx(expected)
    assert f"| ag | Validation | {mean:+.3f} |" in compared.read_text()


def test_the_report_shows_what_it_links_to(compared):
    text = compared.read_text()
    links = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert len(links) >= 7
    assert {path.name for path in (compared.parent / "figures").iterdir()} == {
        *(link.removeprefix("figures/") for link in links),
        "maps.html",
    }
    for link in links:
        assert (compared.parent / link).read_bytes().startswith(b"\x89PNG")
    # The batches of both arms are equal, so the curves over tokens would be those over steps.
    assert "(figures/loss_over_steps.png)" in text and "loss_over_tokens" not in text
    assert "| Validation |" in text and "`guidance.mode` | none | loss" in text
    assert f"--config={CONFIG}" in text


def test_milestones_that_a_run_was_not_trained_with_are_left_out(compared):
    """The settings may have changed since, such as by a new default; the last milestone must be there."""
    directory = compared.parent / "ag-seed3"
    config = run.read_config(directory)
    steps = config.training.steps
    assert run.milestone_steps(config, directory) == {0.0: 0, 0.5: round(0.5 * steps), 1.0: steps}
    other = dataclasses.replace(config, training=dataclasses.replace(config.training, milestones=(1.0, 0.0, 0.17)))
    assert round(0.17 * steps) not in run.open_run(directory).steps
    assert list(run.milestone_steps(other, directory).items()) == [(0.0, 0), (1.0, steps)]
    labels = [label for label, _ in comparison._maps_during_training(directory, other)]
    assert labels == ["step 0, 0 % of training", f"step {steps}, 100 % of training"]
    never_saved = dataclasses.replace(config, training=dataclasses.replace(config.training, milestones=(0.0, 0.17)))
    assert list(run.milestone_steps(never_saved, directory).items()) == [(0.0, 0), (0.17, steps)]
    assert [label for label, _ in comparison._maps_during_training(directory, never_saved)][1] == "step 6, the last one"


def test_the_last_layer_of_every_arm_and_seed(compared):
    """Shares of attention of each run, in report.json, and their means in a table beside uniform attention's."""
    text, arms = compared.read_text(), json.loads((compared.parent / "report.json").read_text())["arms"]
    for arm in ("mlm", "ag"):
        found = arms[arm]["last_layer"]
        assert all(len(found[name]) == 2 and min(found[name]) > 0 for name in ("diagonal", "stripes", "first"))
        assert all(
            diagonal + stripes < 1 for diagonal, stripes in zip(found["diagonal"], found["stripes"], strict=True)
        )
        assert found["uniform"] == arms["mlm"]["last_layer"]["uniform"] and found["texts"] > 1
        assert f"| {arm} | {report.spread(found['diagonal'])} | {report.spread(found['stripes'])} | " in text
    assert "| uniform attention | " in text and "(figures/last_layer.png)" in text


def test_a_config_without_arms_is_refused(tmp_path):
    path = tmp_path / "c.py"
    path.write_text(
        "from ag_jax.pretraining import config\ndef get_config(argument=''):\n    return config.default_config()\n"
    )
    with pytest.raises(ValueError, match="names no arms to compare"):
        comparison.arm_configs(str(path), {})


def test_a_comparison_without_milestones_is_rejected_before_it_is_trained():
    """Its report has a map of every milestone, and is written after all runs."""
    with pytest.raises(ValueError, match="shows attention maps at training.milestones, of which there are none"):
        comparison.arm_configs(CONFIG, {"training.milestones": ()})


def test_a_seed_that_no_run_would_have_is_refused():
    with pytest.raises(ValueError, match="seed=5 would be ignored, because .*set --config.comparison.seeds=5"):
        comparison.arm_configs("quickstart", {"seed": 5})
    assert {seed for _, seed in comparison.arm_configs("quickstart", {"seed": 5, "comparison.seeds": (4, 5)})} == {4, 5}


def test_flags_that_override_the_arms_are_reported(compared):
    """The quickstart's arms differ in the settings of guidance, and share the warm-up."""
    sentence = "--config.guidance.alpha=2.0 overrides what the arms set: 10.0 (mlm), 1.0 (ag)"
    assert json.loads((compared.parent / "report.json").read_text())["overridden"] == [sentence]
    assert f"\n**{sentence}.**\n" in compared.read_text()


def test_arms_that_flags_make_the_same_are_refused():
    message = r"the arms mlm and ag of .* have the same settings, because --config.guidance.mode=none overrides "
    with pytest.raises(ValueError, match=message):
        comparison.arm_configs(CONFIG, {"guidance.mode": "none"})
    assert len(comparison.arm_configs(CONFIG, {"guidance.alpha": 3.0})) == 2, "their mode differs"


def test_a_clash_is_found_before_anything_is_trained(overrides, compared):
    with pytest.raises(ValueError, match="holds a run of another config"):
        comparison.compare(CONFIG, overrides | {"model.layers": 3}, epath.Path(compared.parent))


@pytest.fixture
def interrupted(compared, tmp_path, monkeypatch):
    """A copy of the comparison in which only the last run is finished; training a run finishes it."""
    monkeypatch.setattr(run, "check_installed", lambda project: None)
    workdir = epath.Path(tmp_path / "copy")
    shutil.copytree(compared.parent, workdir)
    for name in ("report.md", "report.json"):
        (workdir / name).unlink()
    for name in ("mlm-seed3", "ag-seed3", "mlm-seed8"):
        (workdir / name / "summary.json").rename(workdir / name / "hidden.json")

    def train(config, directory, labels):
        workdir.trained.append((directory.name, labels.tags))
        (directory / "hidden.json").rename(directory / "summary.json")

    monkeypatch.setattr(run, "train", train)
    object.__setattr__(workdir, "trained", [])
    return workdir


def test_parts_are_one_comparison(compared, interrupted, overrides, capsys):
    assert comparison.compare(CONFIG, overrides, interrupted, "1/3") is None
    assert interrupted.trained == [("mlm-seed3", ("mlm",))], "the fourth run, which is its own, too, is finished"
    assert "part 1/3 is done; 2 of 4 runs are left to other parts, the last of which" in capsys.readouterr().err
    assert comparison.compare(CONFIG, overrides, interrupted, "3/3") is None
    assert not (interrupted / "report.md").exists()
    with lock.hold(interrupted / "ag-seed8"):  # by a process that has finished its run, but not yet ended
        assert comparison.compare(CONFIG, overrides, interrupted, "2/3") == interrupted / "report.md"
    assert [name for name, _ in interrupted.trained] == ["mlm-seed3", "mlm-seed8", "ag-seed3"]
    for name in ("report.md", "report.json"):
        theirs = (compared.parent / name).read_text().replace(compared.parent.name, "copy")
        assert (interrupted / name).read_text() == theirs


@pytest.mark.parametrize("part", [None, "1/2"])
def test_a_run_that_another_process_trains_is_left_alone(overrides, tmp_path, monkeypatch, part):
    """Its directory holds nothing worth keeping yet, and would be cleared by a process that claims it."""
    monkeypatch.setattr(run, "check_installed", lambda project: None)
    directory = epath.Path(tmp_path / "mlm-seed3")
    (directory / "checkpoints" / "0.orbax-checkpoint-tmp").mkdir(parents=True)
    stored = json.dumps(config_reader.to_dict(comparison.arm_configs(CONFIG, overrides)["ag", 8]))
    for name, text in (("config.json", stored), ("corpus.json", "{}"), ("metrics.jsonl", "")):
        (directory / name).write_text(text)
    with lock.hold(directory):
        before = {path.name: path.is_dir() or path.read_text() for path in directory.iterdir()}
        with pytest.raises(ValueError, match=f"--workdir={directory} is in use by process"):
            comparison.compare(CONFIG, overrides, epath.Path(tmp_path), part)
        assert {path.name: path.is_dir() or path.read_text() for path in directory.iterdir()} == before
        assert list((directory / "checkpoints").iterdir())


def test_parts_that_cannot_be(compared, interrupted, overrides):
    for part, message in {
        "1/5": "--part=1/5 is one of 5 parts, but there are only 4 runs, so that 1 of the parts would have nothing to",
        "5/4": "--part must be K/N",
    }.items():
        with pytest.raises(ValueError, match=message):
            comparison.compare(CONFIG, overrides, interrupted, part)
    before = (interrupted / "ag-seed8" / "config.json").read_bytes()
    with pytest.raises(ValueError, match="holds a run of another config"):
        comparison.compare(CONFIG, overrides | {"model.layers": 3}, interrupted, "1/4")
    assert not interrupted.trained and (interrupted / "ag-seed8" / "config.json").read_bytes() == before


@pytest.mark.parametrize("change", [lambda rows: "", lambda rows: rows.replace('"mlm_loss"', '"other"', 1)])
def test_rows_that_were_changed_are_named(compared, tmp_path, overrides, change, monkeypatch):
    monkeypatch.setattr(run, "check_installed", lambda project: None)
    shutil.copytree(compared.parent, tmp_path / "copy")
    path = tmp_path / "copy" / "ag-seed8" / "metrics.jsonl"
    path.write_text(change(path.read_text()))
    with pytest.raises(ValueError, match="ag-seed8/metrics.jsonl was changed"):
        comparison.compare(CONFIG, overrides, epath.Path(tmp_path / "copy"))


def test_leaving_the_plateau():
    rows = [ROW | {"step": step, "mlm_loss": loss} for step, loss in ((10, 6.6), (20, 6.2), (30, 6.4))]
    assert report.first_step_below(rows, 6.3) == 20
    assert report.first_step_below([ROW | {"mlm_loss": None}, *rows], 6.3) == 20, "no token was masked in step 1"
    assert report.first_step_below(rows, 5.0) is None
    assert report.first_step_below([row | {"split": "validation"} for row in rows], 6.3) is None


def test_where_the_guidance_loss_settles():
    """From 0.5 to 0.1, 95 % of the fall are done at 0.12. Afterwards the loss rises, as it does when alpha falls."""
    losses = [0.5, 0.2, 0.121, 0.119, 0.1, *[0.3] * 34, 0.45]
    rows = [ROW | {"step": 10 * number, "ag_loss": loss} for number, loss in enumerate(losses, 1)]
    assert report.settled_step([*rows, ROW | {"split": "validation", "ag_loss": 9.0}]) == 40
    assert report.settled_step([ROW | {"ag_loss": None}, *rows]) == 40
    assert report.settled_step(rows[:1]) == 10 and report.settled_step([ROW]) is None
    summary = {"train_loss": 5.0, "validation_loss": 5.0, "average_train_loss": 5.0}
    arms = [ArmResults("mlm", [summary], [[ROW]], {}), ArmResults("ag", [summary], [rows], {"guidance.mode": "loss"})]
    found = report.numbers(arms, (0,), MLM, 6.0)
    assert "guidance_settled_at_step" not in found["arms"]["mlm"]
    text = report.markdown("T", MLM, arms, found, [], "c")
    assert "| Guidance loss settled at step | – | 40 (10.0%) |" in text and "95 % of its fall, from the first" in text


def test_runs_that_the_time_ended_are_shown():
    summary = {"train_loss": 5.0, "validation_loss": 5.0, "average_train_loss": 5.0, "steps": 70}
    arms = [
        ArmResults("mlm", [summary], [[ROW]], {}),
        ArmResults("ag", [summary | {"steps": 50, "time_limit": 9}], [[ROW]], {"guidance.mode": "loss"}),
    ]
    found = report.numbers(arms, (0,), MLM, 6.0)
    assert found["arms"]["ag"]["ended_at_step"] == [50] and "ended_at_step" not in found["arms"]["mlm"]
    text = report.markdown("T", MLM, arms, found, [], "c")
    assert "| Ended by `training.time_limit` at step | – | 50 |" in text


def test_runs_that_another_limit_ended_are_named(overrides):
    """One that reached its last step did so within the limit, as far as anybody knows."""
    configs = comparison.arm_configs(
        CONFIG, overrides | {"training.time_limit": 50, "training.patience": 2, "training.evaluate_every": 2}
    )
    config = next(iter(configs.values()))
    summaries = {"ag-seed0": {"time_limit": 50}, "ag-seed1": {"time_limit": 100}, "mlm-seed0": {}}
    (sentence,) = comparison._other_limits({name: (config, found) for name, found in summaries.items()})
    assert sentence.startswith("ag-seed1 was ended by training.time_limit=100, which is 50 now")
    assert not comparison._other_limits({"ag-seed0": (config, {"patience": 2}), "mlm-seed0": (config, {})})


def test_arms_whose_losses_are_of_other_tokens_are_named(overrides):
    configs = comparison.arm_configs(CONFIG, overrides)

    def warnings(of_arms):
        return comparable.warnings({arm: config for (arm, _), config in of_arms.items()}, "arms")

    assert not warnings(configs)

    def with_data(**changes):
        changed = dict(configs)
        for seed in (3, 8):
            one = configs["ag", seed]
            changed["ag", seed] = dataclasses.replace(one, data=dataclasses.replace(one.data, **changes))
        return warnings(changed)

    masking = configs["ag", 3].data.masking
    (sentence,) = with_data(masking=dataclasses.replace(masking, rate=0.3, static_copies=4))
    assert "they differ in data.masking.rate: " in sentence and sentence.endswith(": 0.15 (mlm), 0.3 (ag)")
    assert not with_data(masking=dataclasses.replace(masking, rate=0.3, evaluation_rate=0.15))
    tokenizer = dataclasses.replace(configs["ag", 3].data.tokenizer, vocabulary_size=500)
    assert "differ in data.tokenizer.vocabulary_size: " in with_data(tokenizer=tokenizer)[0]
    assert "differ in data.validation_fraction: " in with_data(validation_fraction=0.2)[0]
    assert not with_data(cache_dir="elsewhere", accept_changed_text=True)


def test_the_arm_with_the_lowest_loss_is_named_whichever_it_is():
    def arm(name, loss):
        summary = {"train_loss": loss, "validation_loss": loss, "average_train_loss": loss}
        return ArmResults(name, [summary], [[ROW, ROW]], {"guidance.mode": name})

    for losses, winner in (((5.0, 4.0), "ag"), ((4.0, 5.0), "mlm")):
        arms = [arm("mlm", losses[0]), arm("ag", losses[1])]
        text = report.markdown("T", MLM, arms, report.numbers(arms, (0,), MLM, 6.0), [], "c")
        assert f"lowest validation loss is that of **{winner}**" in text
        assert "needs two seeds" in text


def test_metrics_of_a_run_can_be_read(compared):
    assert [row["step"] for row in read_metrics(compared.parent / "ag-seed3")] == [2, 4, 6, 6]
