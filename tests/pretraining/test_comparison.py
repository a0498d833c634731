"""`compare` from config to report: every arm and seed, resumable, with the numbers that the runs wrote."""

import dataclasses
import json
import re
import shutil

import jax
import numpy as np
import pytest
import scipy.stats
from etils import epath

from ag_jax.analysis.report import Report
from ag_jax.distributed import lock
from ag_jax.evaluation.significance import spread
from ag_jax.objectives.masked_lm import MLM
from ag_jax.pretraining import comparable, comparison, report, run, run_directory
from ag_jax.pretraining.open_run import open_run
from ag_jax.pretraining.report import ArmResults
from ag_jax.settings import config_files, schema
from ag_jax.training.journal import NonFiniteError
from tests import results as stored
from tests.pretraining.tiny_runs import SHORT, on_one_device, rows
from tests.training.trainees import wandb_runs

ROW = {"step": 1, "split": "train", "mlm_loss": 5.0, "tokens_per_second": 1.0}
SEEDS, RUNS = (3, 8), ("plain-seed3", "ag-seed3", "plain-seed8", "ag-seed8")
CONFIG = '''
from ag_jax.settings import schema
from ag_jax.settings.config_files import OneOf
from ag_jax.pretraining import config as pretraining_config
from tests.pretraining import tiny_runs

def get_config(*, arm: OneOf("plain", "ag") = "plain"):
    """arm: plain or ag."""
    ag = arm == "ag"
    config = pretraining_config.default_config()
    config.update_from_flattened_dict(tiny_runs.flat(TEXT, **(tiny_runs.GUIDED if ag else {})))
    config.guidance.alpha = 1.0 if ag else 10.0
    config.comparison.update(arms="plain,ag", seeds=SEEDS)
    return config
'''


@pytest.fixture(scope="module")
def source(text, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("configs") / "arms.py"
    path.write_text(CONFIG.replace("TEXT", repr(str(text))).replace("SEEDS", repr(SEEDS)))
    return str(path)


@pytest.fixture(scope="module")
def overrides():
    return {
        "guidance.alpha": 2.0,
        "training.evaluate_every": None,
        "training.checkpoint_every": 100,
        "training.milestones": (0.5, 1.0),
        "training.wandb": "a_project",
        "inspection.sentence": "The union is strong.",
    }


@pytest.fixture(scope="module", autouse=True)
def at_wandb():
    """A list of the runs that are started at wandb."""
    with wandb_runs() as runs, pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "check_installed", lambda project: None)
        yield runs


@pytest.fixture(scope="module")
def compared(source, overrides, at_wandb, tmp_path_factory):
    """The report of a comparison that was ended in its third run. Runs at wandb can be told apart."""
    workdir, train, calls = epath.Path(tmp_path_factory.mktemp("compared")), run.train_held, []
    at_wandb.clear()

    def dies_in_the_third_run(config, directory, labels, until):
        calls.append(directory.name)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return train(config, directory, labels, until)

    with on_one_device(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "train_held", dies_in_the_third_run)
        with pytest.raises(KeyboardInterrupt):
            comparison.compare(config_files.load(source, overrides), workdir)
        assert calls == [*RUNS[:3]] and not (workdir / "report.md").exists()
        first_run = (workdir / "ag-seed3" / "metrics.jsonl").read_bytes()
        (workdir / "figures").mkdir()
        (workdir / "figures" / "masked_share.png").write_bytes(b"")  # of an earlier report
        path = comparison.compare(config_files.load(source, overrides), workdir)
        assert (workdir / "ag-seed3" / "metrics.jsonl").read_bytes() == first_run
    for name, one in zip(RUNS, at_wandb, strict=True):
        (project, directory, settings, labels, title), (arm, seed) = one.started, name.split("-seed")
        assert (project, directory.name, title, settings["seed"]) == ("a_project", name, name, int(seed))
        assert (labels.group, labels.tags, one.ended) == (workdir.name, (arm, f"seed{seed}"), [False])
    return path


def test_every_arm_and_seed_is_there(compared):
    directories = {path.name for path in compared.parent.iterdir() if path.is_dir()}
    assert directories == {*RUNS, "figures"}
    modes = {"plain": "none", "ag": "loss"}
    for name in RUNS:
        config, (arm, seed) = run_directory.read_config(compared.parent / name), name.split("-seed")
        assert (config.guidance.mode, config.seed) == (modes[arm], int(seed))
        assert [row["step"] for row in rows(compared.parent / name)] == [2, 4, 6, 6]


def test_numbers_are_those_of_the_runs(compared):
    content = json.loads((compared.parent / "report.json").read_text())
    losses = {
        arm: [run_directory.read_summary(compared.parent / f"{arm}-seed{seed}")["validation_loss"] for seed in SEEDS]
        for arm in ("plain", "ag")
    }
    assert losses["plain"][0] != losses["plain"][1]
    for arm in ("plain", "ag"):
        of_arm = content["arms"][arm]
        assert of_arm["values"]["validation_loss"] == losses[arm]
        assert of_arm["mean"]["validation_loss"] == pytest.approx(np.mean(losses[arm]))
        assert of_arm["deviation"]["validation_loss"] == pytest.approx(np.std(losses[arm], ddof=1))
        for name in ("collapse/all", "collapse/masked", "repetition/labels", "repetition/predicted"):
            metrics = [rows(compared.parent / f"{arm}-seed{seed}") for seed in SEEDS]
            assert of_arm[name] == [of_seed[-1][name] for of_seed in metrics] and 0 < min(of_arm[name]) < 1
            assert not any(name in row for of_seed in metrics for row in of_seed if row["split"] == "train")
    expected = scipy.stats.ttest_rel(losses["ag"], losses["plain"]).pvalue
    difference = content["differences"]["ag"]["validation_loss"]
    mean = np.mean(np.subtract(losses["ag"], losses["plain"]))
    assert difference["mean"] == pytest.approx(mean) and difference["p_value"] == pytest.approx(expected)
    assert list(content["differences"]) == ["ag"]
    assert f"| ag | Validation | {mean:+.3f} |" in compared.read_text()


def test_the_report_shows_what_it_links_to(compared, source):
    text = compared.read_text()
    links = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    # The batches of both arms are equal, so the curves over tokens would be those over steps.
    names = {"loss_over_steps.png", "plateau.png", "attention_mass.png", "attention_maps.png", "last_layer.png"}
    assert {link.removeprefix("figures/") for link in links} == names
    assert {path.name for path in (compared.parent / "figures").iterdir()} == names | {"maps.html"}
    for link in links:
        assert (compared.parent / link).read_bytes().startswith(b"\x89PNG")
    assert "`guidance.mode` | none | loss" in text and f"--config={source}" in text


def test_the_report_begins_with_the_result_and_what_was_compared(compared):
    result, facts = compared.read_text().split("\n\n")[2:4]  # behind the title and a warning
    content = json.loads((compared.parent / "report.json").read_text())
    difference = content["differences"]["ag"]["validation_loss"]
    assert content["summary"] == [result] and "2 seeds" in result and f"{abs(difference['mean']):.3f} nats" in result
    opened = open_run(compared.parent / "ag-seed3")
    parameters = sum(leaf.size for leaf in jax.tree.leaves(opened.params))
    assert f"{parameters:,} parameters" in facts and f"{SHORT} steps" in facts
    assert "* **plain**: without guidance" in facts and opened.config.data.source not in facts


def test_milestones_that_a_run_was_not_trained_with_are_left_out(compared):
    """The settings may have changed since, such as by a new default; the last milestone must be there."""
    directory = compared.parent / "ag-seed3"
    config = run_directory.read_config(directory)

    def found(*milestones):
        other = dataclasses.replace(config, training=dataclasses.replace(config.training, milestones=milestones))
        steps = run_directory.milestone_steps(other, directory)
        assert len(comparison._maps_during_training(directory, other)) == len(steps)
        return [*steps.items()]

    assert found(1.0, 0.5, 0.17) == [(0.5, 3), (1.0, SHORT)]
    assert found(0.5, 0.83) == [(0.5, 3), (0.83, SHORT)]


def test_the_last_layer_of_every_arm_and_seed(compared):
    """Shares of attention of each run, in report.json, and their means in a table beside uniform attention's."""
    text, arms = compared.read_text(), json.loads((compared.parent / "report.json").read_text())["arms"]
    for arm in ("plain", "ag"):
        found = arms[arm]["last_layer"]
        assert all(len(found[name]) == 2 and min(found[name]) > 0 for name in ("diagonal", "stripes", "first"))
        assert (np.add(found["diagonal"], found["stripes"]) < 1).all()
        assert found["uniform"] == arms["plain"]["last_layer"]["uniform"] and found["texts"] > 1
        assert f"| {arm} | {spread(found['diagonal'])} | {spread(found['stripes'])} | " in text


def test_flags_that_override_the_arms_are_reported(compared):
    (sentence,) = json.loads((compared.parent / "report.json").read_text())["overridden"]
    assert sentence.startswith("--config.guidance.alpha=2.0 ") and sentence.endswith(": 10.0 (plain), 1.0 (ag)")
    assert f"\n**{sentence}.**\n" in compared.read_text()


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ({"training.milestones": ()}, "training.milestones"),
        ({"seed": 5}, "--config.comparison.seeds=5"),
        ({"guidance.mode": "none"}, "plain and ag .*--config.guidance.mode=none"),
        ({"comparison.arms": None}, "arms"),
    ],
)
def test_comparisons_that_cannot_be(tmp_path, overrides, named):
    with pytest.raises(ValueError, match=named):
        comparison.arm_configs(config_files.load("quickstart", overrides))[0]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("replaced_tokens.generator = 'mlm'", "replaced_tokens.generator=none"),
        ("translation.tokenize = 'char'", "translation.tests or translation.tokenize"),
        ("translation.tests = ()", "translation.tests or translation.tokenize"),
    ],
)
def test_arms_that_are_measured_by_other_things_are_not_compared(tmp_path, line, named):
    translates = (
        "    c.data.update(format='parallel', source='a', target='b')\n"
        "    c.decoder.layers, c.translation.tests = 1, ('news=a=b',)\n"
    )
    (tmp_path / "c.py").write_text(
        "from ag_jax.pretraining import config\ndef get_config(*, arm: str = 'a'):\n    c = config.default_config()\n"
        f"    c.comparison.arms = 'a,b'\n{translates if 'translation' in line else ''}"
        f"    if arm == 'b':\n        c.seed = 1\n        c.{line}\n    return c\n"
    )
    with pytest.raises(ValueError, match=named):
        comparison.arm_configs(config_files.load(str(tmp_path / "c.py"), {}))[0]


@pytest.fixture
def interrupted(compared, tmp_path, monkeypatch):
    """A copy of the comparison in which only the last run is finished; training a run finishes it."""
    workdir = epath.Path(tmp_path / "copy")
    shutil.copytree(compared.parent, workdir)
    for name in ("report.md", "report.json"):
        (workdir / name).unlink()
    facts = {name: stored.facts(workdir / name) for name in RUNS}
    for name in RUNS[:3]:
        (workdir / name / "result.json").unlink()

    def train(config, directory, labels, until):
        workdir.trained.append((directory.name, labels.tags))
        if directory.name == workdir.fails:
            raise NonFiniteError("the loss of step 2 is nan")
        return facts[directory.name]

    monkeypatch.setattr(run, "train_held", train)
    object.__setattr__(workdir, "trained", [])
    object.__setattr__(workdir, "fails", None)
    return workdir


def test_what_is_left_is_trained(compared, interrupted, source, overrides):
    with lock.hold(interrupted / "ag-seed8" / lock.FILE):  # by a process that has finished its run, but not yet ended
        assert comparison.compare(config_files.load(source, overrides), interrupted) == interrupted / "report.md"
    assert [name for name, _ in interrupted.trained] == list(RUNS[:3])
    assert interrupted.trained[0][1] == (RUNS[0].partition("-")[0],)
    for name in ("report.md", "report.json"):
        theirs = (compared.parent / name).read_text().replace(compared.parent.name, "copy")
        assert (interrupted / name).read_text() == theirs


def test_a_run_that_another_process_trains_is_left_alone(interrupted, source, overrides, capsys):
    """Its directory holds nothing worth keeping yet, and would be cleared by a process that claims it."""
    directory = interrupted / RUNS[1]
    shutil.rmtree(directory)
    (directory / "checkpoints" / "0.orbax-checkpoint-tmp").mkdir(parents=True)
    settings = json.dumps(schema.to_dict(comparison.arm_configs(config_files.load(source, overrides))[0]["ag", 8]))
    for name, text in (("config.json", settings), ("corpus.json", "{}"), ("metrics.jsonl", "")):
        (directory / name).write_text(text)
    with lock.hold(directory / lock.FILE):
        before = {path.name: path.is_dir() or path.read_text() for path in directory.iterdir()}
        assert comparison.compare(config_files.load(source, overrides), interrupted) is None
        assert {path.name: path.is_dir() or path.read_text() for path in directory.iterdir()} == before
        assert list((directory / "checkpoints").iterdir()) and not (interrupted / "report.md").exists()
    assert f"{RUNS[1]}; the last of them writes the report" in capsys.readouterr().err
    assert [name for name, _ in interrupted.trained] == [RUNS[0], RUNS[2]]


def test_a_run_that_fails_is_named_after_the_others_and_trained_again_on_request(interrupted, source, overrides):
    object.__setattr__(interrupted, "fails", RUNS[0])
    for _ in range(2):
        with pytest.raises(ValueError, match=f"{RUNS[0]} .*step 2 is nan.*--retry"):
            comparison.compare(config_files.load(source, overrides), interrupted)
        assert [name for name, _ in interrupted.trained] == list(RUNS[:3])
    object.__setattr__(interrupted, "fails", None)
    assert comparison.compare(config_files.load(source, overrides), interrupted, retry=True).exists()
    assert [name for name, _ in interrupted.trained] == [*RUNS[:3], RUNS[0]]


def test_what_cannot_be_trained_is_found_before_anything_is_trained(interrupted, source, overrides):
    before = (interrupted / "ag-seed8" / "config.json").read_bytes()
    with pytest.raises(ValueError, match=r"model\.layers"):
        comparison.compare(config_files.load(source, overrides | {"model.layers": 3}), interrupted)
    assert not interrupted.trained and (interrupted / "ag-seed8" / "config.json").read_bytes() == before


def test_leaving_the_plateau():
    train = [ROW | {"step": step, "mlm_loss": loss} for step, loss in ((10, 6.6), (20, 6.2), (30, 6.4))]
    assert report.first_step_below(train, 6.3) == 20 and report.first_step_below(train, 6.2) is None
    assert report.first_step_below([ROW | {"mlm_loss": None}, *train], 6.3) == 20, "no token was masked in step 1"
    assert report.first_step_below([row | {"split": "validation"} for row in train], 6.3) is None


def results(name, loss=5.0, rows=(ROW,), **summary):
    losses = dict.fromkeys(("train_loss", "validation_loss", "average_train_loss"), loss)
    return ArmResults(name, [losses | summary], [list(rows)], {"guidance.mode": name})


def reported(*arms):
    """The numbers and the Markdown of a report."""
    found = report.numbers(arms, (0,), MLM, 6.0)
    return found, Report("T", "c", found, report.sections(MLM, arms, found, [], {})).markdown()


def test_where_the_guidance_loss_settles():
    """From 0.5 to 0.1, 95 % of the fall are done at 0.12. Afterwards the loss rises, as it does when alpha falls."""
    losses = [0.5, 0.2, 0.121, 0.119, 0.1, *[0.3] * 34, 0.45]
    train = [ROW | {"step": 10 * number, "ag_loss": loss} for number, loss in enumerate(losses, 1)]
    assert report.settled_step([*train, ROW | {"split": "validation", "ag_loss": 9.0}]) == 40
    assert report.settled_step([ROW | {"ag_loss": None}, *train]) == 40
    assert report.settled_step(train[:1]) == 10 and report.settled_step([ROW]) is None
    found, text = reported(results("plain", steps=70), results("ag", 4.0, rows=train, steps=50, time_limit=9))
    assert "guidance_settled_at_step" not in found["arms"]["plain"] and "| – | 40 of 400 |" in text
    assert found["arms"]["ag"]["ended_at_step"] == [50] and "ended_at_step" not in found["arms"]["plain"]
    assert "`training.time_limit` at step | – | 50 |" in text
    falling, text = reported(results("plain"), results("ag", rows=train[:3]))
    assert falling["arms"]["ag"]["guidance_settled_at_step"] == [30] and "| – | 30" not in text, "it had not settled"


def test_speed_and_plateau_of_a_run():
    """The median of the intervals after the first; the plateau is left by a margin of 0.3."""
    speeds = [9.0, None, 3.0, 1.0, 2.0]
    train = [
        ROW | {"step": 2 + at, "mlm_loss": 5.92 - 0.1 * at, "tokens_per_second": of} for at, of in enumerate(speeds)
    ]
    found, _ = reported(results("plain", rows=train))
    assert found["arms"]["plain"]["tokens_per_second"] == [2.0] and found["plateau_loss"] == 6.0
    assert found["arms"]["plain"]["left_plateau_at_step"] == [5] and MLM.margin == 0.3


def test_arms_whose_losses_are_of_other_tokens_are_named(source):
    configs = {arm: config for (arm, _), config in comparison.arm_configs(config_files.load(source, {}))[0].items()}
    assert not comparable.warnings(configs, "arms")

    def with_data(**changes):
        other = dataclasses.replace(configs["ag"], data=dataclasses.replace(configs["ag"].data, **changes))
        return comparable.warnings(configs | {"ag": other}, "arms")

    masking = configs["ag"].data.masking
    (sentence,) = with_data(masking=dataclasses.replace(masking, rate=0.3, static_copies=4))
    assert "they differ in data.masking.rate: " in sentence and sentence.endswith(": 0.15 (plain), 0.3 (ag)")
    assert not with_data(masking=dataclasses.replace(masking, rate=0.3, evaluation_rate=0.15))
    tokenizer = dataclasses.replace(configs["ag"].data.tokenizer, vocabulary_size=500)
    assert "differ in data.tokenizer.vocabulary_size: " in with_data(tokenizer=tokenizer)[0]
    assert "differ in data.validation_fraction: " in with_data(validation_fraction=0.2)[0]
    assert not with_data(cache_dir="elsewhere", accept_changed_text=True)
