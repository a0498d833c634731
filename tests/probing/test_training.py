"""Probing with `train`: models are trained for every arm and seed, probed, and compared over seeds; none twice."""

import csv
import json

import pytest
import scipy.stats

from ag_jax.pretraining import run
from ag_jax.probing import comparison, measuring
from tests.probing.test_comparison import documents

TRAINED = """
from ag_jax import config_reader
from ag_jax.pretraining import config as pretraining_config

def get_config(argument=""):
    chosen = config_reader.arguments(argument, arm=("plain", "guided"), width=12)
    config = pretraining_config.default_config()
    config.data.update(source="{folder}/text.txt", sequence_length=64)
    config.data.tokenizer.vocabulary_size = 300
    config.model.update(layers=1, heads=3, width=chosen.width, max_length=64, initializer_range=0.5)
    config.training.update(steps=2, batch_size=8, evaluate_every=None, milestones=(), tensorboard=False)
    config.optimizer.update(warmup_steps=0, learning_rate=0.3)
    if chosen.arm == "guided":
        config.guidance.update(mode="loss", heads="next:1")
    return config
"""
PROBED = """
from ag_jax import config_reader
from ag_jax.probing.config import ProbeConfig, ProbingConfig

def get_config(argument=""):
    chosen = config_reader.arguments(argument, arm=("plain", "guided"), width=12)
    config = config_reader.default(ProbingConfig)
    config.train = "{folder}/trained.py:arm=" + chosen.arm + ",width=" + str(chosen.width)
    config.update(arms="plain,guided", seeds=(3, 5), resamples=100)
    config.probes.stories = config_reader.default(ProbeConfig)
    config.probes.stories.update(data="{folder}/stories.conll", modes=("words",))
    return config
"""
ARMS = ("plain", "guided")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the two config files, a text and stories with coreference."""
    folder = tmp_path_factory.mktemp("training")
    (folder / "trained.py").write_text(TRAINED.replace("{folder}", str(folder)))
    (folder / "probed.py").write_text(PROBED.replace("{folder}", str(folder)))
    (folder / "stories.conll").write_text(documents(25))
    lines = [f"Mary saw the king, and she left him {number} times." for number in range(150)]
    (folder / "text.txt").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="module")
def report(place):
    return comparison.compare(f"{place / 'probed.py'}", {}, place / "compared").parent


def test_every_arm_is_trained_with_every_seed(report):
    content = json.loads((report / "report.json").read_text())
    assert list(content["models"]) == [*ARMS, "random"]
    for arm in ARMS:
        folders = [report / f"{arm}-seed{seed}" for seed in (3, 5)]
        for seed, folder, description in zip((3, 5), folders, content["models"][arm], strict=True):
            config = run.read_config(folder)
            assert config.seed == seed and (config.guidance.mode == "loss") == (arm == "guided")
            assert json.loads((folder / "summary.json").read_text())["steps"] == 2
            assert str(folder) in description and (report / "probes" / folder.name / "stories").is_dir()


def test_the_differences_over_seeds(report):
    """A paired t-test of the heads that are chosen on development, whose scores are computed again from scores.csv."""
    with (report / "scores.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] == "all" and row["arm"] in ARMS]

    def rate(row):
        return float(row["right"]) / int(row["total"])

    tests = {arm: [] for arm in ARMS}
    for arm in ARMS:
        for model in "01":
            of = [row for row in rows if (row["arm"], row["model"]) == (arm, model)]
            best = max((row for row in of if row["part"] == "development"), key=rate)
            tests[arm].append(next(rate(row) for row in of if row["part"] == "test" and row["head"] == best["head"]))
    assert len({score for scores in tests.values() for score in scores}) > 2, "models of the seeds differ"
    numbers = json.loads((report / "report.json").read_text())["probes"]["stories"]["words"]
    found = numbers["differences_over_seeds"]["guided"]["all"]
    expected = scipy.stats.ttest_rel(tests["guided"], tests["plain"])
    assert found["mean"] == pytest.approx(sum(tests["guided"]) / 2 - sum(tests["plain"]) / 2, abs=1e-6)
    assert found["p_value"] == pytest.approx(expected.pvalue, abs=1e-4)
    text = (report / "report.md").read_text()
    assert "in the score of the head chosen on development, paired by seed." in text


def test_nothing_is_done_twice(place, report, monkeypatch):
    """A second command trains only the run that was not finished, and probes only what has no result."""
    before = (report / "report.json").read_text()
    trained, measured = [], []

    def spy(original, done, describe):
        def called(first, *arguments, **settings):
            done.append(describe(first))
            return original(first, *arguments, **settings)

        return called

    monkeypatch.setattr(run, "make_job", spy(run.make_job, trained, lambda config: (config.guidance.mode, config.seed)))
    monkeypatch.setattr(measuring, "measure", spy(measuring.measure, measured, lambda model: model.description))
    comparison.compare(f"{place / 'probed.py'}", {}, report)
    assert not trained and not measured and (report / "report.json").read_text() == before
    (report / "guided-seed5" / "summary.json").unlink()  # as if killed at the end of the training
    (report / "probes" / "guided-seed5" / "stories" / "result.json").unlink()
    comparison.compare(f"{place / 'probed.py'}", {}, report)
    assert trained == [("loss", 5)] and len(measured) == 1 and "guided-seed5" in measured[0]
    assert (report / "report.json").read_text() == before


def test_another_training_in_the_same_directory(place, report):
    with pytest.raises(ValueError, match="model.width"):
        comparison.compare(f"{place / 'probed.py'}:width=15", {}, report)


def test_a_run_that_translates(place, tmp_path):
    for name in ("a.en", "a.de"):
        (tmp_path / name).write_text("a\n")
    train = f"translate:source={tmp_path}/a.en,target={tmp_path}/a.de,arm=base"
    with pytest.raises(ValueError, match="trains a model that translates: give a config that pre-trains on text"):
        comparison.evaluate(f"{place / 'probed.py'}:arm=plain", {"train": train}, place / "wrong")


def test_a_seed_that_no_run_would_have_is_refused(place, tmp_path):
    """The runs have the seeds of the probes, not that of the config file which trains them."""
    (tmp_path / "seeded.py").write_text(
        "from ag_jax.pretraining import config\n\ndef get_config(argument=''):\n"
        "    found = config.default_config()\n    found.seed = 77\n    return found\n"
    )
    with pytest.raises(ValueError, match="seed=77 would be ignored, because the runs have the seeds of seeds="):
        comparison.evaluate(f"{place / 'probed.py'}:arm=plain", {"train": f"{tmp_path / 'seeded.py'}"}, place / "wrong")


def test_step_is_for_checkpoints(place):
    with pytest.raises(ValueError, match="step=1 chooses a checkpoint of a run, but train="):
        comparison.compare(f"{place / 'probed.py'}", {"step": 1}, place / "wrong")
