"""Trials: kinds of task are learnt, a killed one ends as if it had not been, and what is left of it."""

import dataclasses
import json
import types

import jax
import numpy as np
import pytest
from etils import epath

from ag_jax.attention.config import FixedConfig, GuidanceConfig
from ag_jax.data import tokenizers
from ag_jax.data.config import TokenizerConfig
from ag_jax.data.tasks import buckets
from ag_jax.distributed import storage
from ag_jax.finetuning import attack, encoded, predicting, program, task_training, trial
from ag_jax.finetuning.config import FinetuningConfig, Recipe, SweepConfig
from ag_jax.finetuning.task_training import run_trial
from ag_jax.finetuning.trial import Trial
from ag_jax.grid import store
from ag_jax.interop import finetuned
from ag_jax.interop.finetuned import FineTuned
from ag_jax.objectives.adversarial.config import AdversarialConfig, AsaConfig, FixedMaskConfig
from ag_jax.pretraining.origin import Origin
from ag_jax.training.checkpoint import steps_in
from ag_jax.training.hyperparameters import Hyperparameters
from ag_jax.training.journal import NonFiniteError
from ag_jax.training.optimizer import make_optimizer
from ag_jax.training.stopping import Interrupted, StopSignal
from tests import results as stored
from tests import tiny
from tests.cases import some
from tests.finetuning import tasks
from tests.pretraining.tiny_runs import on_one_device
from tests.training.trainees import wandb_runs

ASA = AdversarialConfig("asa")
RECIPE = Recipe(epochs=3, max_length=24, adversarial=ASA)
STILL = {"dropout": 0.0, "attention_dropout": 0.0}
CLOCK = ("seconds", "tokens_per_second")
FILES = ("metrics.jsonl", "predictions_validation.jsonl", "predictions_test.jsonl")


class Setting:
    """A trial on a task of `tasks.KINDS`, by default under attack; call it with a directory to train it.

    settings: those of the recipe.
    """

    def __init__(
        self, kind="classification", keep=False, seed=0, learning_rate=5e-3, opened=None, splits=None,
        suite=types.MappingProxyType({}), **settings
    ):  # fmt: skip
        recipe = dataclasses.replace(RECIPE, **settings)
        self.opened, self.keep = opened or tasks.pretrained(), keep
        self.data = encoded.encode(splits or tasks.splits(kind), self.opened.tokenizer, self.opened.config, recipe)
        self.config = FinetuningConfig(checkpoint="nowhere", tasks={kind: recipe}, **suite)
        self.one = Trial(kind, recipe, learning_rate, 8, seed)

    def __call__(self, directory):
        """Train the trial, or read its result, as its cell does in the grid."""
        directory = epath.Path(directory)
        directory.mkdir(exist_ok=True)
        result = store.read(directory)
        if result is None:
            result = run_trial(self.one, self.config, self.opened, self.data, directory, self.keep)
            store.write(directory, result)
        trial.tidy(directory, self.keep)
        return dict(result.facts)

    @property
    def spec(self):
        return task_training.make_spec(self.one, self.config, self.opened, self.data)


def without_clock(value):
    if isinstance(value, dict):
        return {key: without_clock(item) for key, item in value.items() if key not in CLOCK}
    return [without_clock(item) for item in value] if isinstance(value, list) else value


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def check_same(directory, whole):
    for name in FILES:
        assert without_clock(rows(directory / name)) == without_clock(rows(whole / name))
    weights = [(place / "weights" / finetuned.WEIGHTS).read_bytes() for place in (directory, whole)]
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    ("origin", "recipe", "pooling", "dropout"),
    [
        (Origin(), {}, "first", None),
        (Origin(), {"head_dropout": 0.2}, "first", 0.2),
        (Origin("modernbert", head_dropout=0.1, pooling="mean"), {}, "mean", 0.1),
        (
            Origin("modernbert", head_dropout=0.1, pooling="mean"),
            {"pooling": "first", "head_dropout": 0.0},
            "first",
            0.0,
        ),
    ],
)
def test_the_head_is_as_the_recipe_says_or_else_the_imported_model(origin, recipe, pooling, dropout):
    spec = Setting(opened=dataclasses.replace(tasks.pretrained(), origin=origin), **recipe).spec
    assert (spec.head.pooling, spec.head.dropout, spec.head.texts, spec.head.max_length) == (pooling, dropout, 1, 24)
    tuned = FineTuned(spec.head, spec.config, tasks.TOKENIZER, {})
    attacked = attack.attacked_model(tuned, AdversarialConfig("freelb"), GuidanceConfig())
    assert (attacked.model.config.dropout, attacked.model.head_dropout) == (0.0, None)


@pytest.mark.parametrize("kind", some(tasks.KINDS, "classification"))
def test_every_kind_is_learnt(kind, tmp_path, one_device):
    result = Setting(kind, epochs=16, learning_rate=3e-3, adversarial=AdversarialConfig(), **STILL)(tmp_path)
    assert result["metrics"][tasks.KINDS[kind]["metric"]] > 0.9
    share = 0.7 if kind == "multilabel" else 0.5  # a label has one logit, a class in effect the difference of two
    assert result["epochs"][-1]["train_loss"] < share * result["epochs"][0]["train_loss"]
    assert result == stored.facts(tmp_path)
    assert result["examples"] == {"train": 24, "validation": 10, "test": 6}
    splits = tasks.splits(kind)
    for name, examples in (("validation", splits.validation), ("test", splits.others["test"])):
        found = rows(tmp_path / f"predictions_{name}.jsonl")
        assert [row["id"] for row in found] == [example.id for example in examples]
        assert all((row["label"] is None) == (name == "test") for row in found)
        if kind in ("tagging", "choice"):
            parts = [example.words if kind == "tagging" else example.pairs for example in examples]
            assert [len(row["scores"]) for row in found] == list(map(len, parts))
        if kind.startswith("span"):
            assert {row["prediction"] for row in found} == {"good", *([""] if kind == "span_or_none" else [])}
    assert not (tmp_path / "checkpoints").exists() and not (tmp_path / "weights").exists()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole")
    with on_one_device(), wandb_runs() as runs:
        result = Setting(keep=True, suite={"wandb": "a project"})(directory)
    (at_wandb,) = runs
    project, workdir, settings, labels, name = at_wandb.started
    assert (project, workdir, name) == ("a project", directory, "classification lr0.005-bs8-seed0")
    assert labels.tags == ("classification", "seed0") and at_wandb.ended == [False]
    assert settings["recipe"]["epochs"] == 3 and settings["learning_rate"] == 5e-3 and "tasks" not in settings
    return directory, result


def stop_at(monkeypatch, step):
    """Signal the end when the loop asks for the `step`-th time; return the list of its questions."""
    asked = []
    monkeypatch.setattr(StopSignal, "reached", lambda _: asked.append(1) or ("SIGTERM" if len(asked) == step else None))
    return asked


@pytest.mark.parametrize("step", [2, 4])
def test_a_killed_trial_ends_the_same(step, undisturbed, tmp_path, one_device, monkeypatch):
    """An epoch has three steps; after the signal the same command resumes at the next step, bit for bit.

    It is not resumed with other weights to start from.
    """
    run, asked = Setting(keep=True), stop_at(monkeypatch, step)
    with pytest.raises(Interrupted, match=f"step {step} of 9"):
        run(tmp_path)
    assert not (tmp_path / "result.json").exists()
    other = tasks.pretrained({"encoder": {"weight": np.ones(1, np.float32)}})
    with pytest.raises(ValueError, match=f"{tmp_path} cannot be resumed"):
        Setting(keep=True, opened=other)(tmp_path)
    result = run(tmp_path)
    assert len(asked) == 9, "no step must be done again"
    assert without_clock(result) == without_clock(undisturbed[1])
    check_same(tmp_path, undisturbed[0])
    assert run(tmp_path) == result and len(asked) == 9, "a trial that is done is not done again"


def test_a_trial_under_attack_writes_its_masks_and_keeps_its_adversary(undisturbed):
    directory, _ = undisturbed
    train = [row for row in rows(directory / "metrics.jsonl") if row["split"] == "train"]
    assert all({"asa_loss", "masked", "masked/layers", "adversary_gradient_norm"} <= set(row) for row in train)
    kept = finetuned.load(directory)
    assert set(kept.params) == {"encoder", "task_head"} and set(kept.adversary_params) == {"adversary"}
    spec = Setting().spec
    scheduled = AdversarialConfig("scheduled", masking=FixedMaskConfig(trace=str(directory)))
    found = program.make_objective(
        dataclasses.replace(spec, adversarial=scheduled), spec.head.model(spec.config), Hyperparameters()
    )
    assert found.attacker.trace.shares == tuple(tuple(row["masked/layers"]) for row in train)


@pytest.mark.parametrize("rate", [0.0, 0.7])
def test_the_adversary_has_the_trials_rate_or_its_own(rate):
    """The model's part is as without an adversary."""
    asa = AsaConfig(learning_rate=rate, weight_decay=0.3, clip_norm=2.0)
    spec = Setting("tagging", adversarial=dataclasses.replace(ASA, asa=asa)).spec
    params = {
        "encoder": {"kernel": np.ones((2, 3), np.float32)},
        "adversary": {"key": {"kernel": np.ones((2, 2), np.float32)}},
    }
    gradient = jax.tree.map(lambda leaf: 5 * leaf, params)
    optimizer = program.make_trial_optimizer(spec, Hyperparameters(np.float32(0.1), np.int32(2)))
    state = optimizer.init(params)
    config = dataclasses.replace(spec.optimizer, learning_rate=0.1, warmup_steps=2)
    own = dataclasses.replace(config, learning_rate=rate or 0.1, weight_decay=0.3, clip_norm=2.0)
    alone = {part: make_optimizer(of, spec.steps) for part, of in (("encoder", config), ("adversary", own))}
    states = {part: of.init(params[part]) for part, of in alone.items()}
    for _ in range(3):
        found, state = optimizer.update(gradient, state, params)
        for part, of in alone.items():
            updates, states[part] = of.update(gradient[part], states[part], params[part])
            for one, other in zip(jax.tree.leaves(found[part]), jax.tree.leaves(updates), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-6)
    assert np.abs(found["adversary"]["key"]["kernel"]).max() > 0


def test_what_makes_another_start():
    params = {"encoder": {"scale": np.ones(2, np.float32)}, "task_head": {"dense": np.zeros(2, np.float32)}}
    start = tasks.pretrained(params)
    words = tokenizers.train(TokenizerConfig(kind="wordpiece", vocabulary_size=70), ["other words than those"] * 3)
    changes = [{"tokenizer": words}, {"origin": Origin(head_dropout=0.3)}, {"origin": Origin(pooling="mean")}]
    changes += [{"params": params | {"task_head": {"dense": np.full(2, 0.5, np.float32)}}}]
    for other in ({"layer_norm_epsilon": 1e-3}, {"fixed_attention": FixedConfig(offsets=(1,))}):
        changes.append({"config": dataclasses.replace(start.config, **other)})
    others = [dataclasses.replace(start, **change) for change in changes]
    assert len({other.digest for other in (start, *others)}) == len(others) + 1
    again = dataclasses.replace(start, description="elsewhere", origin=Origin(name="somewhere"))
    again = dataclasses.replace(again, config=dataclasses.replace(start.config, dtype="bfloat16", remat="none"))
    assert again.digest == start.digest


def test_a_disk_that_is_full_at_the_end_costs_one_epoch(undisturbed, tmp_path, one_device, monkeypatch):
    """The best epoch is the first: its weights, for the test set, must still be there for the second try."""
    run, write = Setting(patience=1, learning_rate=0.5), storage.write_whole

    def full(path, text):
        if path.name == "result.json":
            raise OSError("No space left on device")
        write(path, text)

    monkeypatch.setattr(storage, "write_whole", full)
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            run(tmp_path)
    monkeypatch.setattr(storage, "write_whole", write)
    result = run(tmp_path)
    assert result["best_epoch"] == 1 and len(result["epochs"]) == 2, "patience ends it"
    assert {path.name for path in tmp_path.iterdir()} == {"result.json", "tensorboard", *FILES}
    (tmp_path / "checkpoints").mkdir()
    assert run(tmp_path) == result and not (tmp_path / "checkpoints").exists(), "what a kill after the result left"


def test_the_longest_text_that_a_model_has_seen():
    """The longer of those of pre-training and of the trial, at most the 24 positions; all if it is unknown."""
    for before, of_trial, expected in ((7, 16, 16), (20, 16, 20), (None, 16, 24), (7, 99, 24), (0, 16, 16)):
        opened = dataclasses.replace(tasks.pretrained(), trained_length=before)
        assert task_training.trained_length(opened, Recipe(max_length=of_trial)) == expected


def test_kept_weights_and_predictions_are_the_best_epochs(tmp_path, one_device, monkeypatch):
    """The first of three epochs is made the best."""
    measured, honest = [], task_training.predicting.predicted

    def worse_and_worse(task, split, logits):
        found = honest(task, split, logits)
        if found.metrics is None:
            return found
        measured.append(np.stack(logits))
        return dataclasses.replace(found, metrics={"accuracy": 1 / len(measured), "f1": 0.0})

    monkeypatch.setattr(task_training.predicting, "predicted", worse_and_worse)
    run = Setting(keep=True)
    assert run(tmp_path)["best_epoch"] == 1
    assert len(measured) == 4 and np.abs(measured[0] - measured[2]).max() > 1e-2, "later epochs say something else"
    np.testing.assert_array_equal(measured[3], measured[0])
    tuned = finetuned.load(tmp_path)
    assert tuned.head == run.spec.head == finetuned.load(tmp_path / "weights").head
    assert (tuned.head.task, tuned.head.labels, tuned.trained_length) == ("classification", ("bad", "good"), 24)
    for name, split in (("validation", run.data.validation), ("test", run.data.others["test"])):
        batch = {
            field: np.stack([np.pad(row[field], (0, 24 - len(row[field]))) for row in split.features.rows])
            for field in ("tokens", "segment_ids", "token_type_ids")
        }
        said = tiny.apply(tuned.model, tuned.params, batch)
        scores = [row["scores"] for row in rows(tmp_path / f"predictions_{name}.jsonl")]
        np.testing.assert_allclose(said, scores, atol=1e-5)


def test_the_last_epoch_is_scored_alone(tmp_path, one_device, monkeypatch, undisturbed):
    """The development set is evaluated once, test sets by the same weights; training is as with all evaluations."""
    predicted, honest = [], task_training.predicting.predicted
    monkeypatch.setattr(
        task_training.predicting, "predicted", lambda *given: predicted.append(len(given[1].examples)) or honest(*given)
    )
    result = Setting(scored_epoch="last")(tmp_path)
    (epoch,) = result["epochs"]
    assert (epoch["epoch"], result["best_epoch"], result["steps"]) == (3, 3, 9)
    assert predicted == [10, 10, 6] and not (tmp_path / finetuned.FOLDER).exists()
    directory, each = undisturbed
    assert epoch["metrics"] == result["metrics"] == each["epochs"][-1]["metrics"]
    np.testing.assert_allclose(epoch["train_loss"], np.mean([of["train_loss"] for of in each["epochs"]]), rtol=0.05)
    trained, expected = (
        [row for row in without_clock(rows(place / "metrics.jsonl")) if row["split"] == "train"]
        for place in (tmp_path, directory)
    )
    assert trained == expected


def test_seeds_and_learning_rates_share_a_program(tmp_path, one_device, undisturbed):
    longer = {"warmup_steps": 3, "sweep": SweepConfig(warmup_steps=(3, 4))}
    results = [Setting(learning_rate=1e-3)(tmp_path / "0")]
    found = program.compiled.cache_info().misses
    results += [Setting(**of)(tmp_path / str(number)) for number, of in enumerate(({"seed": 1}, longer), 1)]
    assert program.compiled.cache_info().misses == found
    assert len({result["epochs"][0]["train_loss"] for result in (*results, undisturbed[1])}) == 4
    assert results[2]["swept"] == {"warmup_steps": 3} and "swept" not in results[0]
    # Three steps an epoch: one of warm-up, then two of the eight in which it falls to nothing.
    first = rows(tmp_path / "1" / "metrics.jsonl")[0]
    assert first["learning_rate"] == pytest.approx(5e-3 * (1 - 1 / 8))


def test_starts_from_what_it_is_given(undisturbed, tmp_path, one_device):
    """With a tiny learning rate the stored encoder equals the given one; the seed initialises the head."""
    given, kept = {"encoder": finetuned.load(undisturbed[0]).params["encoder"]}, []
    for seed in (0, 1):
        Setting(keep=True, seed=seed, learning_rate=1e-12, opened=tasks.pretrained(given))(tmp_path / str(seed))
        kept.append(finetuned.load(tmp_path / str(seed)).params)
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, atol=1e-9), kept[0]["encoder"], given["encoder"]
    )
    kernels = [params["task_head"]["classifier"]["kernel"] for params in kept]
    assert np.abs(kernels[0] - kernels[1]).max() > 1e-3


def test_losses_and_outputs_that_are_no_numbers(tmp_path, one_device):
    run = Setting(learning_rate=1e30)
    with pytest.raises(NonFiniteError, match="asa_loss .*tasks.classification.learning_rates"):
        run(tmp_path)
    assert not (tmp_path / "result.json").exists()
    for value in (np.nan, np.inf):
        with pytest.raises(NonFiniteError, match="classification"):
            predicting.predicted(run.data.task, run.data.validation, [np.full(2, value)] * 10)


def test_a_metric_that_is_no_number(tmp_path, one_device, monkeypatch):
    """Such as that of a user's own function."""
    monkeypatch.setattr(predicting.kinds, "evaluate", lambda *_: {"accuracy": float("nan")})
    with pytest.raises(NonFiniteError, match="accuracy"):
        Setting()(tmp_path)
    assert not (tmp_path / "result.json").exists()


def test_what_cannot_be_is_refused_before_training(tmp_path, one_device):
    splits = tasks.splits("classification")
    unlabelled = dataclasses.replace(splits, validation=splits.others["test"])
    empty = dataclasses.replace(splits, train=tasks.examples("classification", 0, 0))
    for settings, named in (
        ({"splits": empty}, "classification has nothing to learn from"),
        ({"splits": unlabelled}, "classification has no labels"),
    ):
        with pytest.raises(ValueError, match=named):
            Setting(**settings)(tmp_path)
    assert not [*tmp_path.iterdir()]
    with pytest.raises(ValueError, match="microbatches=16"):
        Setting(microbatches=16)(tmp_path)
    with pytest.raises(FileNotFoundError, match="keep=best"):
        finetuned.load(tmp_path)


def test_checkpoints_within_an_epoch(tmp_path, one_device, monkeypatch, undisturbed):
    """A killed trial, which could save nothing, resumes from the last checkpoint of `checkpoint_every`."""
    batches, made = buckets.make_batch, []

    def dies_at_step_8(*arguments):
        made.append(1)
        if len(made) == 3 + 2 + 3 + 2 + 2:  # three of an epoch, two of validation
            raise OSError("the power went out")
        return batches(*arguments)

    run = Setting(suite={"checkpoint_every": 2}, keep=True)
    monkeypatch.setattr(task_training.buckets, "make_batch", dies_at_step_8)
    with pytest.raises(OSError, match="power"):
        run(tmp_path)
    assert steps_in(epath.Path(tmp_path / "checkpoints")) == [3, 6], "the best and the newest"
    assert without_clock(run(tmp_path)) == without_clock(undisturbed[1])
