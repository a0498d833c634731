"""Attacks from the config to the run directory and back: what is kept and what is not, and masks from a trace."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from etils import epath

from ag_jax.data import pipeline
from ag_jax.interop import opening
from ag_jax.objectives.adversarial.config import AdversarialConfig, FixedMaskConfig
from ag_jax.pretraining import build, mask_trace, run, run_directory, workloads
from ag_jax.pretraining import config as pretraining_config
from ag_jax.pretraining.open_run import open_run
from ag_jax.settings import schema
from ag_jax.training.hyperparameters import Hyperparameters
from tests import results as stored
from tests.pretraining import tiny_runs
from tests.pretraining.tiny_runs import SHORT, on_one_device, params, rows

ATTACKED = {
    "model.layers": 2,
    "training.evaluate_every": None,
    "training.checkpoint_every": 100,
    "training.milestones": (0.0, 1.0),
    "optimizer.weight_decay": 0.01,
    "adversarial.method": "asa",
    "adversarial.asa.tau": 0.1,
}
LOSS = {"guidance.mode": "loss", "guidance.heads": "next:1"}


def settings(text, **changed):
    return tiny_runs.settings(text, **{**ATTACKED, **changed})


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory):
    """A run with an adversary and guidance, which was paused: (directory, summary)."""
    workdir, config = epath.Path(tmp_path_factory.mktemp("runs") / "whole"), settings(text, **LOSS)
    with on_one_device():
        run.train(config, workdir, until=3)
        return workdir, run.train(config, workdir)


def test_what_a_run_logs_of_its_attack(whole):
    train = rows(whole[0], "train")
    names = "asa_loss asa_sentence_loss masked masked/layers kept_units adversary_gradient_norm ag_loss"
    assert all({*names.split()} <= set(row) for row in train) and len(train) == 3
    for row in train:
        assert len(row["masked/layers"]) == 2 and 0.2 < row["masked"] < 0.8
        assert row["masked"] == pytest.approx(np.mean(row["masked/layers"]))
        assert row["coefficient/penalty"] == pytest.approx(0.01) and row["coefficient/asa"] == 1
    (validation,) = rows(whole[0], "validation")
    assert "mlm_loss" in validation and "masked" not in validation


def test_the_adversary_stays_behind(whole, tmp_path, one_device):
    """It moves while training, and is no part of the model that evaluation, maps, fine-tuning and other runs open."""
    workdir, summary = whole
    first, last = params(workdir, 0), params(workdir, SHORT)
    assert {"adversary", "encoder", "word_head"} == set(last)
    moved = jax.tree.map(
        lambda one, other: np.abs(np.asarray(one) - np.asarray(other)).max(), first["adversary"], last["adversary"]
    )
    assert min(jax.tree.leaves(moved)) > 1e-5
    opened = open_run(workdir)
    assert set(opened.params) == {"encoder", "word_head"} and set(opened.adversary_params) == {"adversary"}
    assert run.evaluate(workdir)["mlm_loss"] == pytest.approx(summary["validation_loss"], rel=1e-6)
    assert set(opening.open_encoder(str(workdir)).params) == {"encoder", "task_head"}
    values = schema.default(pretraining_config.ExperimentConfig)
    values.update(schema.to_dict(run_directory.read_config(workdir)))
    scheduled = {"adversarial.method": "scheduled", "adversarial.masking.trace": str(workdir), "guidance.mode": "none"}
    length = {"training.initial_weights": str(workdir), "training.steps": 1, "training.log_every": 1}
    values.update_from_flattened_dict(scheduled | length)
    config, other = pretraining_config.parse(values), epath.Path(tmp_path / "on")
    after = run.train(config, other)
    assert np.isfinite(after["train_loss"])
    begun, row = params(other, 0), rows(other)[0]
    jax.tree.map(np.testing.assert_array_equal, {name: begun[name] for name in opened.params}, opened.params)
    np.testing.assert_allclose(row["masked/layers"], rows(workdir)[0]["masked/layers"], atol=0.1)
    assert "penalty" not in str(sorted(row)) and "masking_loss" in row
    workdir.rename(workdir.parent / "gone")
    assert np.isfinite(run.evaluate(other)["mlm_loss"]), "masks are not asked for"
    assert run.train(config, other) == after
    pretraining = run.PretrainingRun(config, other, pipeline.prepare(config.data, quiet=True))
    assert pretraining.program.make_objective(Hyperparameters()), "its masks are those of trace.json"
    (workdir.parent / "gone").rename(workdir)


def test_traces(whole, tmp_path):
    def read(path, layers=2):
        return mask_trace.read(AdversarialConfig("scheduled", masking=FixedMaskConfig(trace=str(path))), layers)

    trace = read(whole[0])
    assert trace == read(whole[0] / "metrics.jsonl")
    assert trace.progress == (1 / 6, 3 / 6, 5 / 6)
    assert trace.shares == tuple(tuple(row["masked/layers"]) for row in rows(whole[0], "train"))
    part = tmp_path / "part"
    part.mkdir()
    lines = (whole[0] / "metrics.jsonl").read_text().splitlines(keepends=True)
    (part / "metrics.jsonl").write_text(lines[0])
    with pytest.raises(ValueError, match="step 2"):
        read(part)
    stored.write(part, {"planned_steps": SHORT})
    assert read(part).progress == (1 / 6,), "of a trial that patience ended"
    stored.write(part, {"steps": 1})
    (part / "config.json").write_text((whole[0] / "config.json").read_text())
    assert read(part).progress == (1 / 6,), "of a run that its time limit ended"
    row = json.loads(lines[0]) | {"masked/layers": [None, None]}
    (part / "metrics.jsonl").write_text(json.dumps(row | {"step": 1}) + "\n" + lines[0])
    assert read(part).shares == ((0.0, 0.0), trace.shares[0]), "nothing is masked before the attack begins"
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, "split": "train", "mlm_loss": 1.0}) + "\n")
    for path, layers, named in (
        (tmp_path / "nowhere", 2, "trace=.*/nowhere"),
        (whole[0], 3, "3 layers .* 2"),
        (tmp_path, 2, "method=asa"),
    ):
        with pytest.raises(ValueError, match=named):
            read(path, layers)
    assert mask_trace.read(AdversarialConfig(), 2) is None


def test_the_trace_of_a_run_stays_when_the_earlier_run_goes_on(whole, tmp_path):
    earlier, workdir = tmp_path / "asa", epath.Path(tmp_path / "run")
    earlier.mkdir()
    workdir.mkdir()
    for name in ("metrics.jsonl", "config.json", "result.json"):
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
        with pytest.raises(ValueError, match="run/trace.json"):
            mask_trace.of_run(config, 2, workdir)


def test_without_an_attack_a_run_is_what_it_was(whole, text):
    """Same parameters, and the same tree of the optimizer's state, whatever the settings of attacks that are unused."""
    unused = {"adversarial.method": "none", "adversarial.asa.sentence": "softmax"}
    configs = [settings(text, **unused, **{"adversarial.asa.tau": tau}) for tau in (0.1, 0.9)]
    corpus, mesh = pipeline.prepare(configs[0].data), jax.make_mesh((1, 1, 1), ("data", "fsdp", "tensor"))
    made = [build.make_program(config, corpus.tokenizer, mesh) for config in configs]
    one, another = (program.make_objective(Hyperparameters()) for program in made)
    assert one == another and type(one).__name__ == "Pretraining" and one.sentences.of == "none"
    trees = [str(jax.tree.structure(program.abstract.opt_state)) for program in made]
    assert trees[0] == trees[1] and "Partition" not in trees[0]
    plain, attacked = made[0].create(build.random_keys(0)[0]).params, params(whole[0], 0)
    jax.tree.map(np.testing.assert_array_equal, plain, {name: attacked[name] for name in plain})


def test_runs_that_differ_in_arguments_of_the_step_share_a_program(text):
    """Seed, learning rate, warm-up, alpha, and what only the loop or a report reads."""
    config = settings(text, **LOSS)
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
