"""Attacks from the config to the run directory and back: resumption, what is kept and
what is not, masks from a trace.
"""

import dataclasses
import json
import os
import pathlib
import signal

import jax
import numpy as np
import pytest
from etils import epath

from ag_jax import config_reader
from ag_jax.data.text import pipeline
from ag_jax.interop import opening
from ag_jax.objectives.adversarial.config import AdversarialConfig, FixedMaskConfig
from ag_jax.pretraining import build, mask_trace, run, workloads
from ag_jax.pretraining import config as pretraining_config
from ag_jax.training.checkpoint import Checkpoints
from ag_jax.training.hyperparameters import Hyperparameters
from ag_jax.training.loop import Interrupted
from ag_jax.training.metrics import CLOCK_FIELDS, read_metrics
from tests import commands

TEXT = "The state of the union is strong. We will build roads, and we will build them well. Thank you. "
STEPS = 6


def settings(text: pathlib.Path, **changed):
    values = pretraining_config.default_config()
    values.update_from_flattened_dict(
        {
            "data.source": str(text),
            "data.sequence_length": 16,
            "data.tokenizer.vocabulary_size": 300,
            "model.layers": 2,
            "model.width": 32,
            "model.heads": 4,
            "model.max_length": 16,
            "training.steps": STEPS,
            "training.batch_size": 4,
            "training.log_every": 2,
            "training.evaluate_every": None,
            "training.checkpoint_every": 2,
            "training.milestones": (0.0, 1.0),
            "training.tensorboard": False,
            "optimizer.weight_decay": 0.01,
            "adversarial.method": "asa",
            "adversarial.asa.tau": 0.1,
            **changed,
        }
    )
    return pretraining_config.parse(values)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    for number in range(12):
        (folder / f"{number}.txt").write_text(TEXT * 4 + f"It is number {number}.")
    return folder


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory):
    """A run with an adversary and guidance."""
    patch, device = pytest.MonkeyPatch(), jax.devices()[0]
    patch.setattr(jax, "devices", lambda: [device])
    workdir = epath.Path(tmp_path_factory.mktemp("runs") / "whole")
    summary = run.train(settings(text, **{"guidance.mode": "loss"}), workdir)
    patch.undo()
    return workdir, summary


def rows(directory):
    return [{k: v for k, v in row.items() if k not in CLOCK_FIELDS} for row in read_metrics(directory)]


def test_what_a_run_says_of_its_attack(whole):
    train = [row for row in rows(whole[0]) if row["split"] == "train"]
    wanted = {
        "asa_loss",
        "asa_sentence_loss",
        "masked",
        "masked/layers",
        "kept_units",
        "adversary_gradient_norm",
        "ag_loss",
    }
    assert all(wanted <= set(row) for row in train) and len(train) == 3
    for row in train:
        assert len(row["masked/layers"]) == 2 and 0.2 < row["masked"] < 0.8
        assert row["masked"] == pytest.approx(np.mean(row["masked/layers"]))
        assert row["coefficient/penalty"] == pytest.approx(0.01) and row["coefficient/asa"] == 1
    validation = next(row for row in rows(whole[0]) if row["split"] == "validation")
    assert "mlm_loss" in validation and "masked" not in validation


@pytest.mark.exhaustive
def test_a_run_that_was_stopped_ends_as_if_nothing_had_happened(whole, text, tmp_path, monkeypatch, one_device):
    iterate = pipeline.Batches.iterate

    def stopped(self, start, stop, **options):
        for step, batch in enumerate(iterate(self, start, stop, **options), start):
            if step == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            yield batch

    config, workdir = run.read_config(whole[0]), epath.Path(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(pipeline.Batches, "iterate", stopped)
        with pytest.raises(Interrupted):
            run.train(config, workdir)
    assert run.train(config, workdir) == whole[1]
    assert rows(workdir) == rows(whole[0])
    one, other = (
        Checkpoints(path / "checkpoints", read_only=True).restore_params(STEPS) for path in (workdir, whole[0])
    )
    jax.tree.map(np.testing.assert_array_equal, one, other)
    assert {"adversary", "encoder"} <= set(one)


def test_the_adversary_stays_behind(whole, text, tmp_path, one_device):
    """It moves while training, and is no part of the model that evaluation, maps, fine-tuning and other runs open."""
    workdir, summary = whole
    first, last = (Checkpoints(workdir / "checkpoints", read_only=True).restore_params(step) for step in (0, STEPS))
    moved = jax.tree.map(
        lambda one, other: np.abs(np.asarray(one) - np.asarray(other)).max(), first["adversary"], last["adversary"]
    )
    assert min(jax.tree.leaves(moved)) > 1e-5
    opened = run.open_run(workdir)
    assert set(opened.params) == {"encoder", "word_head"} and set(opened.adversary_params) == {"adversary"}
    assert run.evaluate(workdir)["mlm_loss"] == pytest.approx(summary["validation_loss"], rel=1e-6)
    assert set(opening.open_encoder(str(workdir)).params) == {"encoder", "task_head"}
    values = config_reader.default(pretraining_config.ExperimentConfig)
    values.update(config_reader.to_dict(run.read_config(workdir)))
    values.update_from_flattened_dict(
        {"training.initial_weights": str(workdir), "training.steps": 1, "adversarial.method": "scheduled"}
    )
    values.update_from_flattened_dict({"adversarial.masking.trace": str(workdir), "training.log_every": 1})
    config = pretraining_config.parse(values)
    after = run.train(config, epath.Path(tmp_path / "on"))
    assert np.isfinite(after["train_loss"])
    row = rows(tmp_path / "on")[0]
    recorded = next(row for row in rows(workdir) if row["split"] == "train")["masked/layers"]
    np.testing.assert_allclose(row["masked/layers"], recorded, atol=0.1)
    assert "penalty" not in str(sorted(row)) and "masking_loss" in row
    workdir.rename(workdir.parent / "gone")
    assert np.isfinite(run.evaluate(epath.Path(tmp_path / "on"))["mlm_loss"]), "masks are not asked for"
    assert run.train(config, epath.Path(tmp_path / "on")) == after
    job = run.make_job(config, epath.Path(tmp_path / "on"), pipeline.prepare(config.data, quiet=True))
    assert job.program.make_objective(Hyperparameters()), "its masks are those of trace.json"
    (workdir.parent / "gone").rename(workdir)


def test_inspect_draws_what_the_adversary_leaves(whole):
    done = commands.run(["inspect", f"--workdir={whole[0]}", "--text=The union is strong."])
    assert done.returncode == 0, done.stderr
    drawn = [
        epath.Path(line.removeprefix("drawn: ")) for line in done.stdout.splitlines() if line.startswith("drawn: ")
    ]
    assert drawn[-1].name == f"attention_attacked_step{STEPS}.png" and drawn[-1].read_bytes().startswith(b"\x89PNG")


def test_traces_that_cannot_be_are_refused(whole, text, tmp_path):
    def read(path, layers=2):
        return mask_trace.read(AdversarialConfig("scheduled", masking=FixedMaskConfig(trace=str(path))), layers)

    trace = read(whole[0])
    assert trace == read(whole[0] / "metrics.jsonl")
    assert trace.progress == (1 / 6, 3 / 6, 5 / 6) and len(trace.shares[0]) == 2
    part = tmp_path / "part"
    part.mkdir()
    lines = (whole[0] / "metrics.jsonl").read_text().splitlines(keepends=True)
    first = next(at for at, line in enumerate(lines) if '"masked"' in line)
    (part / "metrics.jsonl").write_text("".join(lines[: first + 1]))
    with pytest.raises(ValueError, match="trained to its end: it stopped after step 2; resume it first"):
        read(part)
    (part / "result.json").write_text(json.dumps({"planned_steps": STEPS}))
    assert read(part).progress == (1 / 6,), "of a trial that patience ended"
    (part / "result.json").rename(part / "summary.json")
    (part / "config.json").write_text((whole[0] / "config.json").read_text())
    assert read(part).progress == (1 / 6,), "of a run that its time limit ended"
    row = json.loads(lines[first]) | {"masked/layers": [None, None]}
    (part / "metrics.jsonl").write_text(json.dumps(row | {"step": 1}) + "\n" + lines[first])
    assert read(part).shares == ((0.0, 0.0), trace.shares[0]), "nothing is masked before the attack begins"
    with pytest.raises(ValueError, match="trace=.*/nowhere must be metrics.jsonl of a run or trial .*does not exist"):
        read(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="a model with 3 layers .* of that run has 2; choose"):
        read(whole[0], layers=3)
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, "split": "train", "mlm_loss": 1.0}) + "\n")
    with pytest.raises(ValueError, match="that run masked no attention; choose one with method=asa"):
        read(tmp_path)
    assert mask_trace.read(AdversarialConfig(), 2) is None


def test_the_trace_of_a_run_stays_when_the_earlier_run_goes_on(whole, tmp_path):
    earlier, workdir = tmp_path / "asa", epath.Path(tmp_path / "run")
    earlier.mkdir()
    workdir.mkdir()
    for name in ("metrics.jsonl", "config.json", "summary.json"):
        (earlier / name).write_text((whole[0] / name).read_text())
    config = AdversarialConfig("scheduled", masking=FixedMaskConfig(trace=str(earlier)))
    trace = mask_trace.of_run(config, 2, workdir)
    mask_trace.record(config, 2, workdir)
    stored = json.loads((earlier / "config.json").read_text())
    stored["training"]["steps"] *= 2  # it was extended
    (earlier / "config.json").write_text(json.dumps(stored))
    assert mask_trace.read(config, 2) != trace == mask_trace.of_run(config, 2, workdir)
    mask_trace.record(config, 2, workdir)
    assert mask_trace.of_run(config, 2, workdir) == trace
    for damaged in ('{"progress": [0.5], "shares": [[0.1]]}', '{"progress": [0.5], "shares": [[0.1, "much"]]}', "{}"):
        (workdir / "trace.json").write_text(damaged)
        with pytest.raises(ValueError, match="run/trace.json: "):
            mask_trace.of_run(config, 2, workdir)


def test_without_an_attack_a_run_is_what_it_was(text):
    """Same parameters, and the same tree of the optimizer's state, whatever the settings
    of attacks that are not used.
    """
    plain, other = (
        settings(
            text, **{"adversarial.method": "none", "adversarial.asa.tau": tau, "adversarial.asa.sentence": "softmax"}
        )
        for tau in (0.1, 0.9)
    )
    corpus = pipeline.prepare(plain.data)
    made = [
        build.make_program(config, corpus.tokenizer, jax.make_mesh((1, 1, 1), ("data", "fsdp", "tensor")))
        for config in (plain, other)
    ]
    one, another = (program.make_objective(Hyperparameters()) for program in made)
    assert one == another and type(one).__name__ == "Pretraining"
    assert one.sentences.of == "none"
    trees = [one.abstract.opt_state for one in made]
    assert jax.tree.structure(trees[0]) == jax.tree.structure(trees[1]) and "Partition" not in str(
        jax.tree.structure(trees[0])
    )
    attacked = build.make_program(settings(text), corpus.tokenizer, made[0].mesh)
    model, both = (one.create(jax.random.key(0)).params for one in (made[0], attacked))
    jax.tree.map(np.testing.assert_array_equal, model, {name: both[name] for name in model})


def test_runs_that_differ_in_arguments_of_the_step_share_a_program(text):
    """Seed, learning rate, warm-up, alpha, and what only the loop or a report reads."""
    config = settings(text, **{"guidance.mode": "loss"})
    vocabulary, mesh = workloads.VocabularyInfo(300), jax.make_mesh((1, 1, 1), ("data", "fsdp", "tensor"))
    program = build.shared_program(config, vocabulary, mesh)

    def changed(section, **values):
        return dataclasses.replace(config, **{section: dataclasses.replace(getattr(config, section), **values)})

    for other in (
        dataclasses.replace(config, seed=5, title="another"),
        changed("optimizer", learning_rate=0.5, warmup_steps=1),
        changed("guidance", alpha=7.0),
        changed("training", log_every=3, milestones=(1.0,), tensorboard=not config.training.tensorboard),
        changed("inspection", sentence="Another."),
    ):
        assert build.shared_program(other, vocabulary, mesh) is program, other
    for other in (
        changed("training", steps=config.training.steps + 1),
        changed("optimizer", weight_decay=0.5),
        changed("guidance", hold_steps=7),
        changed("model", attention_dropout=0.77),
    ):
        assert build.shared_program(other, vocabulary, mesh) is not program, other
    other_ids = dataclasses.replace(vocabulary, period_ids=(7,))
    assert build.shared_program(config, other_ids, mesh) is not program
