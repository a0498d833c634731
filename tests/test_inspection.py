"""`inspect` opens every kind of model at its own length, and saves its figures elsewhere in read-only directories."""

import errno
import json
import shutil

import jax
import numpy as np
import pytest
from etils import epath

from ag_jax import cli, config_reader
from ag_jax.data.config import DataConfig, TokenizerConfig
from ag_jax.distributed import storage
from ag_jax.finetuning import best
from ag_jax.finetuning.config import FinetuningConfig, Recipe
from ag_jax.finetuning.job import make_head
from ag_jax.interop import exporting, finetuned
from ag_jax.interop.finetuned import FineTuned
from ag_jax.pretraining import build, origin, run, workloads
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.training.config import TrainingConfig
from tests import tiny
from tests.finetuning import tasks

TOKENIZER, CONFIG = tasks.TOKENIZER, tasks.pretrained().config
TEXT = "we build strong roads " * 5  # 20 tokens: of the models' 24 positions 22, of the run's 16 tokens 14 are free
SUMMARY = {"train_loss": 3.0, "average_train_loss": 3.0}


def save_trial(directory, score, seed, metric="accuracy"):
    """Write a finished trial with random weights; return its directory."""
    head = make_head(tasks.task("classification"), "roberta", 16)
    params = tiny.params(head.model(CONFIG), tiny.task_batch("classification"), seed=seed)
    finetuned.save(FineTuned(head, CONFIG, TOKENIZER, params), epath.Path(directory / "weights"))
    done = {"task": "sst2", "learning_rate": 1e-5, "batch_size": 8, "seed": seed, "epochs": [], "seconds": 1}
    done["examples"] = {"train": 8, "validation": 4}
    done |= dict.fromkeys(("best_epoch", "truncated", "cut_words", "lost", "skipped"), 1)
    (directory / "result.json").write_text(json.dumps(done | {"metrics": {metric: score}}))
    return directory


def save_suite(directory, *names):
    """Write a suite without trials; return its directory."""
    directory.mkdir(parents=True)
    config = FinetuningConfig(checkpoint="x", tasks=dict.fromkeys(names, Recipe()))
    (directory / "config.json").write_text(json.dumps(config_reader.to_dict(config)))
    return directory


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Make models to inspect.

    A guided run, its Hugging Face export, an imported run, a comparison of runs and a comparison of suites.
    """
    directory = tmp_path_factory.mktemp("models")
    TOKENIZER.save(directory / "tokenizer")
    config = ExperimentConfig(
        data=DataConfig(sequence_length=16, tokenizer=TokenizerConfig(path=str(directory / "tokenizer"))),
        model=CONFIG,
        guidance=build.guidance.GuidanceConfig("loss", heads="next:1"),
        training=TrainingConfig(batch_size=8),
    )
    model = workloads.reference_model(config, TOKENIZER)
    batch = {
        name: np.ones((1, 6), np.int32)
        for name in ("tokens", "original", "segment_ids", "token_type_ids", "masked_positions")
    }
    run.write(config, epath.Path(directory / "run"), TOKENIZER, tiny.params(model, batch))
    for name, loss in (("ag-seed0", 2.5), ("mlm-seed0", 2.75), ("mlm-seed1", None)):
        copied = shutil.copytree(directory / "run", directory / "compared" / name)
        if loss:
            (copied / "summary.json").write_text(json.dumps(SUMMARY | {"validation_loss": loss}))
    (directory / "compared" / "report.json").write_text('{"arms": {"mlm": {}, "ag": {}}, "seeds": [0, 1]}')
    exporting.convert(epath.Path(directory / "run"), None, str(directory / "hf"))
    (shutil.copytree(directory / "run", directory / "imported") / origin.FILE).write_text('{"model_type": "roberta"}')

    for arm, scores in (("plain", (0.5, 0.75)), ("asa", (0.625, 0.5))):
        suite = save_suite(directory / "arms" / arm, "rte", "sst2", "stsb")
        for seed, score in enumerate(scores):
            save_trial(suite / "sst2" / f"seed{seed}", score, seed)
    save_trial(directory / "arms" / "plain" / "stsb" / "seed5", 0.9, 5, "pearson")
    (directory / "arms" / "report.json").write_text('{"arms": ["plain", "asa"], "seeds": [0, 1]}')
    return directory


def inspect(place, capsys):
    """Run `inspect`; return its output, its warnings and the paths of the figures, of which there must be three."""
    empty = dict.fromkeys(("config", "overrides", "print_config"))
    status = cli.run_safely("inspect", cli.Request(**empty, workdir=str(place), step=None, text=TEXT))
    said, warned = capsys.readouterr()
    assert status == 0, warned
    drawn = [epath.Path(line.removeprefix("drawn: ")) for line in said.splitlines() if line.startswith("drawn: ")]
    assert len(drawn) == 3 and all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)
    return said, warned, drawn


@pytest.mark.parametrize(
    ("place", "found", "said", "length"),
    [
        ("run", "run", "step 0 of {}", 16),
        ("imported", "imported", "step 0 of {}", 24),
        ("hf", "hf", "{}", 24),
        ("compared", "compared/ag-seed0", "step 0 of {} (the lowest validation loss of 2 runs, 2.500)", 16),
        ("arms/asa/sst2/seed1", "arms/asa/sst2/seed1", "{}", 24),
        (
            "arms/plain",
            "arms/plain/sst2/seed1",
            "{} (the best accuracy of 2 trials of sst2 with weights, 0.7500; for stsb add the task to --workdir)",
            24,
        ),
        (
            "arms/plain/stsb",
            "arms/plain/stsb/seed5",
            "{} (the best pearson of one trial of stsb with weights, 0.9000)",
            24,
        ),
        ("arms/asa", "arms/asa/sst2/seed0", "{} (the best accuracy of 2 trials of sst2 with weights, 0.6250)", 24),
        ("arms", "arms/plain/sst2/seed1", "{} (the best accuracy of 4 trials of sst2 with weights, 0.7500)", 24),
    ],
)
def test_every_directory_is_opened_at_its_own_length(places, place, found, said, length):
    opened = best.open_for_inspection(places / place)
    assert (opened.directory, opened.length) == (places / found, length)
    assert opened.description == said.format(places / found)
    is_run = place in ("run", "imported", "compared")
    assert (opened.step, opened.assignment) == ((0, (("next", 1),)) if is_run else (None, ()))


@pytest.mark.parametrize("place", ["run", "arms/asa/sst2/seed1", "hf"])
def test_the_parameters_are_those_of_the_encoder(places, place):
    source = finetuned.load(places / place) if place.startswith("arms") else run.open_run(places / "run")
    ours, theirs = (of.params["encoder"]["layers"] for of in (best.open_for_inspection(places / place), source))
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_a_config_that_was_changed_after_the_training_is_refused(places, tmp_path):
    changed = tmp_path / "run"
    shutil.copytree(places / "run", changed)
    settings = json.loads((changed / "config.json").read_text())
    settings["model"]["layers"] += 1
    (changed / "config.json").write_text(json.dumps(settings))
    with pytest.raises(
        ValueError,
        match=r"run/config.json describes another model.*\n.*: in the checkpoint \(2, .*, in the config \(3, ",
    ):
        run.open_run(changed)


def test_figures_of_a_hugging_face_model_are_beside_the_user(places, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    before = sorted(places.joinpath("hf").iterdir())
    said, warned, drawn = inspect(places / "hf", capsys)
    assert "for 22 tokens\n" in said and "cannot write" not in warned
    assert sorted(places.joinpath("hf").iterdir()) == before
    assert {path.parent for path in drawn} == {epath.Path("ag-jax-output/hf/figures")}


def test_a_model_without_steps_and_directories_without_a_model(places, tmp_path):
    with pytest.raises(ValueError, match="step=3 selects a checkpoint of a run"):
        best.open_for_inspection(places / "hf", 3)
    for directory in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(FileNotFoundError, match=f"{directory} is no model: expected the directory of a run"):
            best.open_for_inspection(directory)
    with pytest.raises(
        FileNotFoundError, match="no finished trial of .*suite has saved its weights.*--config.keep=best"
    ):
        best.open_for_inspection(save_suite(tmp_path / "suite", "sst2"))
    (tmp_path / "report.json").write_text("[]")
    with pytest.raises(ValueError, match="report.json: expected a JSON object"):
        best.open_for_inspection(tmp_path)


@pytest.fixture
def read_only(monkeypatch):
    """Return a list; directories added to it are read-only for all ways in which results are written."""
    closed = []

    def closing(write):
        def guarded(path, *rest, **more):
            if any(directory in (path, *path.parents) for directory in closed):
                raise OSError(errno.EROFS, "Read-only file system", str(path))
            return write(path, *rest, **more)

        return guarded

    local = type(epath.Path("."))
    for name in ("mkdir", "write_text", "write_bytes"):
        monkeypatch.setattr(local, name, closing(getattr(local, name)))
    return closed


def evaluate(place, monkeypatch, capsys):
    """Run `evaluate` with invented numbers; return its status, output and warnings."""
    monkeypatch.setattr(run, "evaluate", lambda workdir, step: {"step": 0, "mlm_loss": 2.5})
    empty = dict.fromkeys(("config", "overrides", "print_config", "step", "text"))
    return cli.run_safely("evaluate", cli.Request(**empty, workdir=str(place))), *capsys.readouterr()


def test_a_read_only_run_is_inspected_and_evaluated(places, tmp_path, monkeypatch, capsys, read_only):
    """Results of a read-only run are printed, and files are written to another directory."""
    monkeypatch.chdir(tmp_path)
    read_only.append(places / "run")
    said, warned, drawn = inspect(places / "run", capsys)
    assert (
        said.startswith(f"step 0 of {places / 'run'}\n")
        and "for 16 tokens (6 more were cut off)" in said
        and "guided" in said
    )
    assert {path.parent for path in drawn} == {epath.Path("ag-jax-output/run/figures")}
    assert f"cannot write to {places / 'run'}" in warned and "the files are in ag-jax-output/run" in warned

    status, said, warned = evaluate(places / "run", monkeypatch, capsys)
    assert status == 0 and json.loads(said) == {"step": 0, "mlm_loss": 2.5}
    assert (tmp_path / "ag-jax-output" / "run" / "evaluation.json").read_text() == said
    assert "the files are in ag-jax-output/run" in warned


def test_a_current_directory_that_is_read_only_too(places, tmp_path, monkeypatch, capsys, read_only):
    monkeypatch.chdir(tmp_path)
    read_only += [places / "run", epath.Path("ag-jax-output")]
    status, said, warned = evaluate(places / "run", monkeypatch, capsys)
    place = epath.Path(warned.strip().rpartition(" ")[2])
    assert status == 0 and (place / "evaluation.json").read_text() == said
    shutil.rmtree(place)


def test_results_are_printed_even_if_nothing_can_be_written(places, tmp_path, monkeypatch, capsys, read_only):
    monkeypatch.chdir(tmp_path)
    read_only += [places, epath.Path("ag-jax-output"), tmp_path]
    monkeypatch.setattr(storage.tempfile, "mkdtemp", lambda prefix: str(tmp_path / prefix))
    status, said, warned = evaluate(places / "run", monkeypatch, capsys)
    assert status == 1 and json.loads(said)["mlm_loss"] == 2.5 and "Read-only file system" in warned
