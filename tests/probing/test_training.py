"""Probing with `train`: a model is trained for every arm and seed, then probed; nothing twice."""

import contextlib
import json
from types import SimpleNamespace

import pytest
from etils import epath

from ag_jax.analysis.heads import measuring
from ag_jax.distributed import lock
from ag_jax.grid import run as grid
from ag_jax.pretraining import run, run_directory
from ag_jax.probing import comparison
from ag_jax.settings import config_files
from ag_jax.training.journal import NonFiniteError
from tests import commands
from tests import results as stored
from tests.probing.test_comparison import documents

TRAINED = """
from ag_jax.pretraining import config as pretraining_config

def get_config(*, width: int = 12, seed: int = 0, steps: int = 1):
    config = pretraining_config.default_config()
    config.seed = seed
    config.data.update(source="{folder}/text.txt", sequence_length=64)
    config.data.tokenizer.vocabulary_size = 300
    config.model.update(layers=1, heads=3, width=width, max_length=64)
    config.training.update(steps=steps, batch_size=8, evaluate_every=None, milestones=(), tensorboard=False)
    config.optimizer.warmup_steps = 0
    config.guidance.update(mode="loss", heads="next:1")
    return config
"""
PROBED = """
from ag_jax.settings import schema
from ag_jax.probing.config import ProbeConfig, ProbingConfig

def get_config(*, width: int = 12, seed: int = 0, steps: int = 1):
    config = schema.default(ProbingConfig)
    config.train = "{folder}/trained.py:width=%d,seed=%d,steps=%d" % (width, seed, steps)
    config.update(seeds=(3,), resamples=100, random_seeds=())
    config.probes.stories = schema.default(ProbeConfig)
    config.probes.stories.data = "{folder}/stories.conll"
    return config
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the two config files, a text and stories with coreference."""
    folder = tmp_path_factory.mktemp("training")
    (folder / "trained.py").write_text(TRAINED.replace("{folder}", str(folder)))
    (folder / "probed.py").write_text(PROBED.replace("{folder}", str(folder)))
    (folder / "stories.conll").write_text(documents(12))
    lines = [f"Mary saw the king, and she left him {number} times." for number in range(150)]
    (folder / "text.txt").write_text("\n".join(lines))
    return folder


def test_a_run_is_trained_and_nothing_is_done_twice(place, one_device, monkeypatch):
    """A later command trains only the run that was not finished, and probes only what has no result."""
    trained, measured, honest, measure = [], [], run.PretrainingRun, measuring.measure
    monkeypatch.setattr(
        run, "PretrainingRun", lambda config, *more: trained.append(config.seed) or honest(config, *more)
    )
    monkeypatch.setattr(
        measuring, "measure", lambda model, *given, **more: measured.append(model) or measure(model, *given, **more)
    )
    report = comparison.evaluate(config_files.load(f"{place / 'probed.py'}", {}), place / "w").parent
    before, folder = (report / "report.json").read_text(), report / "model-seed3"
    models = json.loads(before)["models"]
    assert list(models) == ["model"] and str(folder) in models["model"][0]
    assert trained == [3] and len(measured) == 1 and measured[0].assignment.counts == (("next", 1),)
    assert run_directory.read_config(folder).seed == 3 and stored.facts(folder)["steps"] == 1
    (folder / "result.json").unlink()  # as if killed at the end of the training
    (report / "probes" / "model-seed3" / "stories" / "result.json").unlink()
    comparison.evaluate(config_files.load(f"{place / 'probed.py'}", {}), report)
    assert trained == [3, 3] and len(measured) == 2 and (report / "report.json").read_text() == before
    with pytest.raises(ValueError, match="model.width"):
        comparison.evaluate(config_files.load(f"{place / 'probed.py'}:width=15", {}), report)
    assert len(trained) == 2
    comparison.evaluate(config_files.load(f"{place / 'probed.py'}:steps=2", {}), report)
    assert len(trained) == len(measured) == 3 and run_directory.checkpoint_steps(folder)[-1] == 2, "it goes on"


def test_a_model_that_another_process_trains_is_waited_for(place, one_device, monkeypatch, tmp_path):
    looks = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(lock.hold(epath.Path(tmp_path / "w" / "model-seed3" / lock.FILE)))
        monkeypatch.setattr(grid, "time", SimpleNamespace(sleep=lambda _: looks.append(1) or stack.close()))
        report = comparison.evaluate(config_files.load(f"{place / 'probed.py'}", {}), tmp_path / "w")
    assert looks and report.exists()


def test_a_model_that_diverges_is_not_probed(place, monkeypatch, tmp_path):
    def diverges(*_):
        raise NonFiniteError("the loss of step 1 is nan")

    monkeypatch.setattr(run, "train_held", diverges)
    for _ in range(2):
        with pytest.raises(ValueError, match="w/model-seed3 cannot be probed.* step 1 is nan"):
            comparison.evaluate(config_files.load(f"{place / 'probed.py'}", {}), tmp_path / "w")


def test_what_cannot_be_trained(place, tmp_path):
    for name in ("a.en", "a.de"):
        (tmp_path / name).write_text("a\n")
    translates = f"translate:source={tmp_path}/a.en,target={tmp_path}/a.de,arm=base"
    # The runs have the seeds of the probes, not that of the config file which trains them.
    for argument, flags, named in (("", {"train": translates}, "translates"), ("seed=77", {}, "seed=77")):
        with pytest.raises(ValueError, match=named):
            comparison.evaluate(config_files.load(f"{place / 'probed.py'}:{argument}", flags), place / "wrong")


def test_two_processes_share_the_models(place, tmp_path):
    """Each model is trained and probed by one of them, and the last one says that the report is done."""
    arguments = ["evaluate", f"--config={place / 'probed.py'}", "--config.seeds=3,4,5", f"--workdir={tmp_path / 'w'}"]
    ended = [one.wait(300) for one in [commands.Running(arguments) for _ in range(2)]]
    assert [one.returncode for one in ended] == [0, 0], ended
    texts = [one.stderr for one in ended]
    for seed in (3, 4, 5):
        assert sum(text.count(f"model-seed{seed}: step 0 of 1") for text in texts) == 1
        assert sum(f"probes/model-seed{seed}/stories: 84 of 84" in text for text in texts) == 1
    assert any("the report is" in one.stdout for one in ended) and not list((tmp_path / "w").rglob("lock.json"))
