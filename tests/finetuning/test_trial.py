"""Trials: every kind of task is learnt, a killed one ends as if it had not been, and what is left of it."""

import dataclasses
import json
import types

import jax
import numpy as np
import pytest
from etils import epath

from ag_jax.attention.fixed import FixedConfig
from ag_jax.attention.guidance import GuidanceConfig
from ag_jax.data import tokenizers
from ag_jax.data.config import TokenizerConfig
from ag_jax.data.tasks import buckets
from ag_jax.distributed import storage
from ag_jax.finetuning import attack, encoded, job, predicting, program, suite
from ag_jax.finetuning.config import FinetuningConfig, Recipe, SweepConfig
from ag_jax.finetuning.job import run_trial
from ag_jax.finetuning.trial import RESULT, Trial
from ag_jax.interop import exporting, finetuned, importing, task_heads
from ag_jax.objectives.adversarial.config import AdversarialConfig
from ag_jax.pretraining.origin import Origin
from ag_jax.training.checkpoint import steps_in
from ag_jax.training.loop import NonFiniteError
from ag_jax.training.stopping import Interrupted, StopSignal
from ag_jax.training.wandb_run import Labels
from tests import tiny
from tests.cases import some
from tests.finetuning import tasks

RECIPE = Recipe(epochs=3, max_length=24)
STILL = {"dropout": 0.0, "attention_dropout": 0.0}
CLOCK = ("seconds", "tokens_per_second")


def setting(
    kind="classification",
    keep=False,
    seed=0,
    learning_rate=5e-3,
    opened=None,
    suite=types.MappingProxyType({}),
    labels=Labels(),
    **settings,
):
    recipe = dataclasses.replace(RECIPE, **settings)
    opened = opened or tasks.pretrained()
    data = encoded.encode(tasks.splits(kind), opened.tokenizer, opened.config, recipe)
    config = FinetuningConfig(checkpoint="nowhere", tasks={kind: recipe}, **suite)
    of = Trial(kind, recipe, learning_rate, 8, seed)
    return lambda directory: run_trial(of, config, opened, data, directory, keep, labels)


def without_clock(value):
    if isinstance(value, dict):
        return {key: without_clock(item) for key, item in value.items() if key not in CLOCK}
    return [without_clock(item) for item in value] if isinstance(value, list) else value


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_dropout_of_the_head_is_stored_and_left_out_of_attacks(tmp_path, one_device):
    swept = SweepConfig(head_dropout=(0.1, 0.3))
    result = setting(keep=True, epochs=1, head_dropout=0.3, sweep=swept)(tmp_path)
    assert result["swept"] == {"head_dropout": 0.3}
    tuned = finetuned.load(tmp_path)
    assert (tuned.head.dropout, tuned.model.head_dropout) == (0.3, 0.3)
    attacked = attack.attacked_model(tuned, AdversarialConfig("freelb"), GuidanceConfig())
    assert (attacked.model.config.dropout, attacked.model.head_dropout) == (0.0, None)


def modernbert(origin):
    """An encoder with the layers of ModernBERT, which was imported from a model of such an origin, or trained here."""
    opened = tasks.pretrained()
    sizes = {"vocabulary_size": opened.config.vocabulary_size, "max_length": 24, "position_offset": 0, "layers": 3}
    config = tiny.config(**tiny.MODERNBERT | sizes)
    style = task_heads.style_of(config, ("word_head",), origin.model_type)
    return dataclasses.replace(opened, config=config, params={}, style=style, origin=origin)


MODERNBERTS = [
    ("classification", Origin(), {}, ("first", None), "SequenceClassification"),
    ("tagging", Origin(), {"head_dropout": 0.2}, ("first", 0.2), "TokenClassification"),
    ("span", Origin("modernbert", head_dropout=0.1), {}, ("first", 0.1), "QuestionAnswering"),
    ("choice", Origin("modernbert", pooling="mean"), {}, ("mean", None), "MultipleChoice"),
    ("regression", Origin("modernbert", pooling="mean"), {"pooling": "first"}, ("first", None), None),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("kind", "origin", "recipe", "expected", "ending"),
    some(MODERNBERTS, MODERNBERTS[3]),
)
def test_a_fine_tuned_modernbert_is_exported_as_one(kind, origin, recipe, expected, ending, tmp_path, one_device):
    """Without a setting, its head is as in transformers; it reads what config.json says, or the recipe."""
    setting(kind, keep=True, opened=modernbert(origin), epochs=1, **recipe)(tmp_path / "trial")
    tuned = finetuned.load(tmp_path / "trial")
    assert (tuned.head.style, tuned.head.pooling, tuned.head.dropout) == ("modernbert", *expected)
    if ending:
        found = exporting.convert(epath.Path(tmp_path / "trial"), None, str(tmp_path / "out"))
        assert found.architecture == f"ModernBertFor{ending}" and not found.not_carried
        again, _ = importing.open_finetuned(str(tmp_path / "out"))
        dropout = tuned.config.dropout if tuned.head.dropout is None else tuned.head.dropout
        assert (again.head.kind, again.head.pooling, again.head.dropout) == (kind, expected[0], dropout)
        jax.tree.map(np.testing.assert_array_equal, again.params, without_unused(tuned.params))


def without_unused(params):
    """The parameters with 1 as the scale of the first layer's LayerNorm before attention, which has no use."""
    scale = np.array(params["encoder"]["layers"]["attention_norm"]["scale"])
    scale[0] = 1
    layers = params["encoder"]["layers"] | {"attention_norm": {"scale": scale}}
    return params | {"encoder": params["encoder"] | {"layers": layers}}


@pytest.mark.parametrize("kind", some(tasks.KINDS, "choice"))
def test_every_kind_is_learnt(kind, tmp_path, one_device):
    result = setting(kind, epochs=16, learning_rate=3e-3, **STILL)(tmp_path)
    assert result["metrics"][tasks.KINDS[kind]["metric"]] > 0.9
    assert result["epochs"][-1]["train_loss"] < 0.5 * result["epochs"][0]["train_loss"]
    assert result == json.loads((tmp_path / RESULT).read_text())
    assert result["examples"] == {"train": 24, "validation": 10, "test": 6}
    splits = tasks.splits(kind)
    for name, examples in (("validation", splits.validation), ("test", splits.others["test"])):
        found = rows(tmp_path / f"predictions_{name}.jsonl")
        assert [row["id"] for row in found] == [example.id for example in examples]
        assert all((row["label"] is None) == (name == "test") for row in found)
        if kind == "tagging":
            assert [len(row["scores"]) for row in found] == [len(example.words) for example in examples]
        if kind == "choice":
            assert [len(row["scores"]) for row in found] == [len(example.pairs) for example in examples]
        if kind == "span_or_none":
            assert {row["prediction"] for row in found} == {"good", ""}
        if kind == "span":
            assert {row["prediction"] for row in found} == {row["scores"]["answers"][0][0] for row in found} == {"good"}
    assert not (tmp_path / "checkpoints").exists() and not (tmp_path / "weights").exists()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    patch, device = pytest.MonkeyPatch(), jax.devices()[0]
    patch.setattr(jax, "devices", lambda: [device])
    directory = tmp_path_factory.mktemp("whole")
    result = setting(keep=True)(directory)
    patch.undo()
    return directory, result


@pytest.mark.parametrize("step", some([2, 4, 8], 2, 4))
def test_a_killed_trial_ends_the_same(step, undisturbed, tmp_path, one_device, monkeypatch):
    """An epoch has three steps; after the signal the same command resumes at the next step, bit for bit.

    It is not resumed with other weights to start from.
    """
    asked = []

    def reached(_):
        asked.append(1)
        return "SIGTERM" if len(asked) == step else None

    monkeypatch.setattr(StopSignal, "reached", reached)
    run = setting(keep=True)
    with pytest.raises(Interrupted, match=f"SIGTERM: stopped at step {step} of 9; everything is saved"):
        run(tmp_path)
    assert not (tmp_path / RESULT).exists()
    other = tasks.pretrained({"encoder": {"weight": np.ones(1, np.float32)}})
    with pytest.raises(
        ValueError, match=f"{tmp_path} cannot be resumed: it started from other weights or settings, .* Delete"
    ):
        setting(keep=True, opened=other)(tmp_path)
    result = run(tmp_path)
    assert len(asked) == 9, "no step must be done again"
    whole, expected = undisturbed
    assert without_clock(result) == without_clock(expected)
    for name in ("metrics.jsonl", "predictions_validation.jsonl", "predictions_test.jsonl"):
        assert without_clock(rows(tmp_path / name)) == without_clock(rows(whole / name))
    assert (tmp_path / "weights" / finetuned.WEIGHTS).read_bytes() == (
        whole / "weights" / finetuned.WEIGHTS
    ).read_bytes()
    assert run(tmp_path) == result and len(asked) == 9, "a trial that is done is not done again"


def test_what_makes_another_start():
    params = {"encoder": {"scale": np.ones(2, np.float32)}, "task_head": {"dense": np.zeros(2, np.float32)}}
    start = tasks.pretrained(params)
    words = tokenizers.train(TokenizerConfig(kind="wordpiece", vocabulary_size=70), ["other words than those"] * 3)
    of_head = {"task_head": {"dense": np.full(2, 0.5, np.float32)}}
    others = [
        dataclasses.replace(start, tokenizer=words),
        dataclasses.replace(start, origin=Origin(head_dropout=0.3)),
        dataclasses.replace(start, origin=Origin(pooling="mean")),
        dataclasses.replace(start, params=params | of_head),
        dataclasses.replace(start, config=dataclasses.replace(start.config, layer_norm_epsilon=1e-3)),
        dataclasses.replace(start, config=dataclasses.replace(start.config, fixed_attention=FixedConfig(offsets=(1,)))),
    ]
    assert len({other.digest for other in (start, *others)}) == len(others) + 1
    again = dataclasses.replace(start, description="elsewhere", origin=Origin(name="somewhere"))
    again = dataclasses.replace(again, config=dataclasses.replace(start.config, dtype="bfloat16", remat="none"))
    assert again.digest == start.digest


def test_hosts_agree_on_the_weights_that_a_trial_starts_from(tmp_path, one_device, monkeypatch):
    def differ(what, facts):
        raise ValueError(f"the hosts differ in {what}: {facts}")

    monkeypatch.setattr(job.hosts, "agree", differ)
    digest = tasks.pretrained().digest
    with pytest.raises(ValueError, match=f"differ in what a trial starts from: {{'sha256': '{digest}'}}"):
        setting()(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_disk_that_is_full_at_the_end_costs_one_epoch(undisturbed, tmp_path, one_device, monkeypatch):
    """The best epoch is the first: its weights, for the test set, must still be there for the second try."""
    run = setting(patience=1, learning_rate=0.5)
    write = storage.write_whole

    def full(path, text):
        if path.name == RESULT:
            raise OSError("No space left on device")
        write(path, text)

    monkeypatch.setattr(job.storage, "write_whole", full)
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            run(tmp_path)
    monkeypatch.setattr(job.storage, "write_whole", write)
    result = run(tmp_path)
    assert result["best_epoch"] == 1 < len(result["epochs"])
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {RESULT, "tensorboard", "metrics.jsonl", "predictions_validation.jsonl", "predictions_test.jsonl"}
    (tmp_path / "checkpoints").mkdir()
    assert run(tmp_path) == result and not (tmp_path / "checkpoints").exists(), (
        "what a kill after the result left goes, too"
    )


@pytest.mark.parametrize(
    ("before", "rows", "expected"), [(7, 16, 16), (20, 16, 20), (None, 16, 24), (7, 99, 24), (0, 16, 16)]
)
def test_the_longest_text_of_training(before, rows, expected):
    """The longest text that a fine-tuned model has seen is the longer of those of pre-training and of the trial.

    It is at most the 24 positions of the model, and all of them if that of pre-training is unknown.
    """
    opened = dataclasses.replace(tasks.pretrained(), trained_length=before)
    assert job.trained_length(opened, Recipe(max_length=rows)) == expected


def test_kept_weights_are_the_best_epochs(undisturbed):
    directory, result = undisturbed
    tuned = finetuned.load(directory)
    assert tuned.head == finetuned.load(directory / "weights").head
    assert (tuned.head.task, tuned.head.labels, tuned.head.max_length) == ("classification", ("bad", "good"), 24)
    assert tuned.trained_length == 24 and tuned.head.texts == 1
    examples = tasks.splits("classification").validation
    opened = tasks.pretrained()
    data = encoded.encode(tasks.splits("classification"), opened.tokenizer, opened.config, RECIPE)
    for row, scores in zip(
        data.validation.features.rows, rows(directory / "predictions_validation.jsonl"), strict=True
    ):
        batch = {name: np.asarray(row[name])[None] for name in ("tokens", "segment_ids", "token_type_ids")}
        said = tiny.apply(tuned.model, tuned.params, batch)
        np.testing.assert_allclose(said[0], scores["scores"], atol=1e-5)
    assert len(examples) == result["examples"]["validation"]


def test_test_sets_are_predicted_with_the_best_epochs_weights(tmp_path, one_device, monkeypatch):
    """The first of three epochs is made the best; weights that are kept are its own."""
    measured, honest = [], job.predicting.predicted

    def worse_and_worse(task, split, logits):
        found = honest(task, split, logits)
        if found.metrics is None:
            return found
        measured.append(np.stack(logits))
        return dataclasses.replace(found, metrics={"accuracy": 1 / len(measured), "f1": 0.0})

    monkeypatch.setattr(job.predicting, "predicted", worse_and_worse)
    assert setting(keep=True)(tmp_path)["best_epoch"] == 1
    assert len(measured) == 3 and np.abs(measured[0] - measured[-1]).max() > 1e-2, "later epochs say something else"
    tuned, opened = finetuned.load(tmp_path), tasks.pretrained()
    data = encoded.encode(tasks.splits("classification"), opened.tokenizer, opened.config, RECIPE)
    for name, split in (("validation", data.validation), ("test", data.others["test"])):
        batch = {
            field: np.stack([np.pad(row[field], (0, 24 - len(row[field]))) for row in split.features.rows])
            for field in ("tokens", "segment_ids", "token_type_ids")
        }
        said = tiny.apply(tuned.model, tuned.params, batch)
        scores = [row["scores"] for row in rows(tmp_path / f"predictions_{name}.jsonl")]
        np.testing.assert_allclose(said, scores, atol=1e-5)


def test_the_last_epoch_is_scored_alone(tmp_path, one_device, monkeypatch, undisturbed):
    """The development set is predicted once, test sets by the same weights; training is as with all evaluations."""
    predicted, honest = [], job.predicting.predicted

    def noted(task, split, logits):
        predicted.append((len(split.examples), np.stack(logits)))
        return honest(task, split, logits)

    monkeypatch.setattr(job.predicting, "predicted", noted)
    result = setting(scored_epoch="last")(tmp_path)
    (epoch,) = result["epochs"]
    assert (epoch["epoch"], result["best_epoch"], result["steps"]) == (3, 3, 9)
    assert [count for count, _ in predicted] == [10, 6] and not (tmp_path / finetuned.FOLDER).exists()
    directory, each = undisturbed
    assert epoch["metrics"] == result["metrics"] == each["epochs"][-1]["metrics"]
    losses = [of["train_loss"] for of in each["epochs"]]
    np.testing.assert_allclose(epoch["train_loss"], np.mean(losses), rtol=0.05)
    trained, expected = (
        [row for row in without_clock(rows(place / "metrics.jsonl")) if row["split"] == "train"]
        for place in (tmp_path, directory)
    )
    assert trained == expected
    with pytest.raises(ValueError, match="patience must be none with scored_epoch=last, got 2"):
        dataclasses.replace(RECIPE, scored_epoch="last", patience=2)


def test_seeds_and_learning_rates_share_a_program(tmp_path, one_device):
    results = []
    longer = {"warmup_steps": 3, "sweep": SweepConfig(warmup_steps=(3, 4))}
    for number, settings in enumerate(({}, {"learning_rate": 1e-3}, {"seed": 1}, longer)):
        results.append(setting(**settings)(tmp_path / str(number)))
        if not number:
            found = program.compiled.cache_info().misses
    assert program.compiled.cache_info().misses == found
    assert len({result["epochs"][0]["train_loss"] for result in results}) == 4
    assert results[3]["swept"] == {"warmup_steps": 3} and "swept" not in results[0]
    # Three steps an epoch: one of warm-up, then two of the eight in which it falls to nothing.
    first = rows(tmp_path / "0" / "metrics.jsonl")[0]
    assert first["learning_rate"] == pytest.approx(5e-3 * (1 - 1 / 8))


def test_a_program_for_each_dropout_that_is_swept():
    """Trials with the same program follow one another."""
    swept = SweepConfig(head_dropout=(0.0, 0.1), warmup_steps=(0, 1))
    recipe = dataclasses.replace(RECIPE, sweep=swept, learning_rates=(1e-3, 2e-3), batch_sizes=(8,))
    opened, config = tasks.pretrained(), FinetuningConfig(checkpoint="nowhere", tasks={"classification": recipe})
    data = encoded.encode(tasks.splits("classification"), opened.tokenizer, opened.config, recipe)
    specs = [job.make_spec(one, config, opened, data) for one in suite.trials(config, "classification")]
    assert [spec.head.dropout for spec in specs] == [0.0] * 4 + [0.1] * 4 and len(set(specs)) == 2


def test_patience_stops_early(tmp_path, one_device):
    result = setting(epochs=9, patience=2, learning_rate=1e-12)(tmp_path)
    assert (len(result["epochs"]), result["best_epoch"]) == (3, 1)


@pytest.mark.exhaustive
def test_microbatches_change_nothing(tmp_path, one_device):
    """Without dropout, half-batches give the same loss."""
    losses = [
        setting(microbatches=parts, epochs=1, **STILL)(tmp_path / str(parts))["epochs"][0]["train_loss"]
        for parts in (1, 2)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_starts_from_what_it_is_given(tmp_path, one_device):
    """With a learning rate of next to nothing the kept encoder is the given one; the head
    is fresh and follows the seed.
    """
    result = setting(keep=True)(tmp_path / "first")
    given = {"encoder": finetuned.load(tmp_path / "first").params["encoder"]}
    kept = []
    for seed in (0, 1):
        setting(keep=True, seed=seed, learning_rate=1e-12, opened=tasks.pretrained(given))(tmp_path / str(seed))
        kept.append(finetuned.load(tmp_path / str(seed)).params)
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, atol=1e-9), kept[0]["encoder"], given["encoder"]
    )
    kernels = [params["task_head"]["classifier"]["kernel"] for params in kept]
    assert np.abs(kernels[0] - kernels[1]).max() > 1e-3 and result["best_epoch"]


def test_losses_that_are_no_numbers_are_told(tmp_path, one_device):
    with pytest.raises(
        NonFiniteError, match=r"task_loss is not finite at step \d.*lower tasks.classification.learning_rates"
    ):
        setting(learning_rate=1e30)(tmp_path)
    assert not (tmp_path / RESULT).exists()


def test_outputs_that_are_no_numbers_fail_the_trial():
    opened, splits = tasks.pretrained(), tasks.splits("classification")
    data = encoded.encode(splits, opened.tokenizer, opened.config, RECIPE)
    for value in (np.nan, np.inf):
        logits = [np.full(2, value)] * len(data.validation.features)
        with pytest.raises(NonFiniteError, match="the model of task classification outputs NaN or infinity"):
            predicting.predicted(data.task, data.validation, logits)


def test_what_cannot_be_is_refused(tmp_path, one_device):
    with pytest.raises(ValueError, match="cannot be split"):
        setting(microbatches=16)(tmp_path)
    opened = tasks.pretrained()
    splits = dataclasses.replace(tasks.splits("classification"), train=tasks.examples("classification", 0, 0))
    data = encoded.encode(splits, opened.tokenizer, opened.config, RECIPE)
    config = FinetuningConfig(checkpoint="x", tasks={"classification": RECIPE})
    with pytest.raises(ValueError, match="nothing to learn from"):
        run_trial(Trial("classification", RECIPE, 1e-3, 8, 0), config, opened, data, tmp_path)
    with pytest.raises(FileNotFoundError, match="keep=best"):
        finetuned.load(tmp_path)


def test_a_trial_has_a_run_at_wandb(tmp_path, one_device, monkeypatch):
    begun, rows_there = [], []

    class Recorder:
        def __init__(self, project, workdir, settings, labels, name):
            begun.append((project, workdir, settings, labels, name))

        def log(self, step, values):
            rows_there.append(step)

        def finish(self, failed):
            rows_there.append(failed)

    monkeypatch.setattr(job, "WandbRun", Recorder)
    setting(suite={"wandb": "a project"}, labels=Labels("a comparison", ("asa",)))(tmp_path)
    ((project, workdir, settings, labels, name),) = begun
    assert (project, workdir, name) == ("a project", tmp_path, "classification lr0.005-bs8-seed0")
    assert labels == Labels("a comparison", ("asa", "classification", "seed0"))
    assert settings["recipe"]["epochs"] == 3 and settings["learning_rate"] == 5e-3 and "tasks" not in settings
    assert rows_there == [3, 3, 6, 6, 9, 9, False]


def test_a_validation_split_without_labels_is_an_error_before_training(tmp_path, one_device):
    opened = tasks.pretrained()
    splits = tasks.splits("classification")
    splits = dataclasses.replace(splits, validation=splits.others["test"])
    data = encoded.encode(splits, opened.tokenizer, opened.config, RECIPE)
    config = FinetuningConfig(checkpoint="x", tasks={"classification": RECIPE})
    with pytest.raises(ValueError, match="validation split of classification has no labels to choose an epoch by"):
        run_trial(Trial("classification", RECIPE, 1e-3, 8, 0), config, opened, data, tmp_path)
    assert not [*tmp_path.iterdir()]


def test_checkpoints_within_an_epoch(tmp_path, one_device, monkeypatch):
    """A killed trial, which could save nothing, resumes from the last checkpoint of `checkpoint_every`."""
    batches = buckets.make_batch
    made = []

    def dies_at_step_8(*arguments):
        made.append(1)
        if len(made) == 3 + 2 + 3 + 2 + 2:  # three of an epoch, two of validation
            raise OSError("the power went out")
        return batches(*arguments)

    run = setting(suite={"checkpoint_every": 2})
    monkeypatch.setattr(job.buckets, "make_batch", dies_at_step_8)
    with pytest.raises(OSError, match="power"):
        run(tmp_path)
    assert steps_in(epath.Path(tmp_path / "checkpoints")) == [6]
    result = run(tmp_path)
    assert without_clock(result) == without_clock(setting()(tmp_path / "whole"))
