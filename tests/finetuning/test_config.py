"""Recipes and suites: what is impossible is refused with its name and range."""

import pytest
from etils import epath

from ag_jax import config_reader
from ag_jax.data.tasks import rows
from ag_jax.finetuning import kinds
from ag_jax.finetuning.config import FinetuningConfig, Recipe, SweepConfig
from ag_jax.finetuning.suite import prepare
from ag_jax.interop import task_heads
from ag_jax.models import heads


def suite(**settings):
    values = config_reader.default(FinetuningConfig)
    values.checkpoint = "runs/x"
    for name in ("sst2", "rte", "mnli"):
        values.tasks[name] = config_reader.default(Recipe)
    values.update_from_flattened_dict(settings)
    return config_reader.parse(FinetuningConfig, values)


def test_a_suite_survives():
    config = suite(**{"tasks.rte.learning_rates": (1e-5, 3e-5), "tasks.rte.epochs": 10})
    assert config_reader.parse(FinetuningConfig, config_reader.to_dict(config)) == config
    assert config.tasks["rte"].epochs == 10 and config.tasks["sst2"] == Recipe()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("tasks.rte.epochs", 0, "^tasks.rte.epochs must be at least 1 .*, got 0"),
        ("tasks.rte.subset_seed", -1, "^tasks.rte.subset_seed must be at least 0, got -1"),
        ("tasks.rte.epochs_factor", 0, "^tasks.rte.epochs_factor must be at least 1 .*, got 0"),
        ("tasks.rte.patience", 0, "^tasks.rte.patience must be at least 1, or none, got 0"),
        ("tasks.rte.learning_rates", (), "^tasks.rte.learning_rates must be one or more numbers without repetition"),
        ("tasks.rte.learning_rates", (1e-5, 1e-5), "must be one or more numbers without repetition"),
        ("tasks.rte.learning_rates", (1e-5, 1.0000001e-5), "learning_rates must differ in their first six digits"),
        ("tasks.rte.learning_rates", (1e-50,), "^tasks.rte.learning_rates must be at least"),
        ("tasks.rte.batch_sizes", (0,), "^tasks.rte.batch_sizes must be at least 1"),
        ("tasks.rte.microbatches", 3, "multiples of microbatches=3, got \\(32,\\)"),
        ("tasks.rte.microbatches", 0, "^tasks.rte.microbatches must be at least 1"),
        ("tasks.rte.warmup_fraction", 1.0, "^tasks.rte.warmup_fraction must be at least 0 and below 1, got 1.0"),
        (
            "tasks.rte.sweep.warmup_steps",
            (50, 9, 50),
            "^tasks.rte.sweep.warmup_steps must differ .*, got .50, 9, 50.: leave one of them out",
        ),
        ("tasks.rte.sweep.head_dropout", (0.1, 0.10000001), "^tasks.rte.sweep.head_dropout must differ in their first"),
        ("tasks.rte.sweep.head_dropout", (0.1, 1.0), "^tasks.rte.sweep.head_dropout must be at least 0 and below 1"),
        ("tasks.rte.sweep.weight_decay", (-0.1,), "^tasks.rte.sweep.weight_decay must be at least 0, got -0.1"),
        ("tasks.rte.sweep.warmup_steps", (0.5,), "^tasks.rte.sweep.warmup_steps must be a whole number, got 0.5"),
        (
            "tasks.rte.sweep.epochs",
            (1, 2),
            "^unknown setting 'tasks.rte.sweep.epochs'; expected one of tasks.rte.sweep.dropout, .*.warmup_steps$",
        ),
        ("tasks.rte.beta2", 1.0, "^tasks.rte.beta2 must be at least 0 and below 1, got 1.0"),
        ("tasks.rte.epsilon", 0.0, "^tasks.rte.epsilon must be above 0"),
        ("tasks.rte.weight_decay", -0.1, "^tasks.rte.weight_decay must be at least 0, got -0.1"),
        ("tasks.rte.dropout", -0.5, "^tasks.rte.dropout must be at least 0 and below 1, or none, got -0.5"),
        ("tasks.rte.decay", "step", "^tasks.rte.decay must be one of linear, cosine"),
        ("tasks.rte.max_length", rows.SHORTEST - 1, "^tasks.rte.max_length must be at least 12 .*, got 11"),
        ("tasks.rte.folds", 2, "^tasks.rte.folds must be at least 3"),
        (
            "tasks.rte.initial_task",
            "cola",
            "tasks.rte.initial_task must be another task of the suite .mnli, rte, sst2., got",
        ),
        ("tasks.rte.initial_task", "rte", "must be a task that starts from the checkpoint itself, got 'rte'"),
        ("tasks.rte.leraning_rates", (1.0,), "'tasks.rte.leraning_rates'; did you mean 'tasks.rte.learning_rates'"),
        ("checkpoint", "", "checkpoint must be a run directory"),
        ("seeds", (), "seeds must be one or more"),
        ("seeds", (-1,), "seeds must be at least 0, got -1"),
        ("keep", "all", "keep must be one of none, best"),
        ("dtype", "float16", "dtype must be one of float32, bfloat16, or none, got 'float16'"),
        ("step", -2, "step must be"),
        ("guidance.decoder_heads", "prev:1", "guidance.decoder_heads is for models with a decoder"),
        ("guidance.cross_heads", "first:1", "guidance.cross_heads is for models with a decoder"),
    ],
)
def test_what_is_wrong_is_named(key, value, message):
    with pytest.raises(ValueError, match=message):
        suite(**{key: value})


def test_guidance_of_some_layers_needs_a_loss():
    with pytest.raises(ValueError, match="guidance.layers=0-1 needs guidance.mode=loss"):
        suite(**{"guidance.mode": "bias", "guidance.layers": "0-1"})


def test_a_bias_of_attention_scores_must_be_gone_when_the_model_is_scored():
    last = {f"tasks.{name}.scored_epoch": "last" for name in ("sst2", "rte", "mnli")}
    with pytest.raises(ValueError, match="guidance.schedule=constant the model that is scored and saved would attend"):
        suite(**last, **{"guidance.mode": "bias", "guidance.schedule": "constant"})
    with pytest.raises(ValueError, match="set tasks.rte.scored_epoch=last, because in earlier epochs"):
        suite(**last | {"tasks.rte.scored_epoch": "best"}, **{"guidance.mode": "bias"})
    assert suite(**last, **{"guidance.mode": "bias", "guidance.schedule": "linear"}).guidance.mode == "bias"
    assert suite(**{"guidance.mode": "loss", "guidance.schedule": "constant"}).guidance.schedule == "constant"


def test_folds_choose_by_whole_folds():
    for name, values in (("head_dropout", (0.0, 0.1)), ("warmup_steps", (5, 6))):
        with pytest.raises(
            ValueError, match="^tasks.rte.with folds, a recipe must have a single point .*, got 2 points"
        ):
            suite(**{"tasks.rte.folds": 3, f"tasks.rte.sweep.{name}": values})
        assert suite(**{"tasks.rte.folds": 3, f"tasks.rte.sweep.{name}": values[:1]}).tasks["rte"].folds == 3
    with pytest.raises(ValueError, match="^tasks.rte.validation_examples must be none with folds, got 5 with folds=3"):
        suite(**{"tasks.rte.folds": 3, "tasks.rte.validation_examples": 5})
    assert suite(**{"tasks.rte.folds": 3, "tasks.rte.train_examples": 5}).tasks["rte"].folds == 3


def test_a_suite_without_tasks_is_refused():
    values = config_reader.default(FinetuningConfig)
    with pytest.raises(ValueError, match="tasks must name at least one task"):
        config_reader.parse(FinetuningConfig, values)


def test_tasks_that_others_start_from_come_first_and_are_kept():
    config = suite(**{"tasks.rte.initial_task": "mnli", "tasks.sst2.initial_task": "mnli"})
    assert config.ordered_tasks == ("mnli", "rte", "sst2")
    assert config.keeps_weights("mnli") and not config.keeps_weights("rte")
    with pytest.raises(
        ValueError, match="tasks.rte.initial_task must be a task that starts from the checkpoint itself"
    ):
        suite(**{"tasks.rte.initial_task": "sst2", "tasks.sst2.initial_task": "mnli"})
    assert suite(keep="best").keeps_weights("rte")


def test_points_of_a_sweep():
    assert Recipe(batch_sizes=(16, 32), learning_rates=(1e-5, 2e-5)).points == (
        (1e-5, 16, {}),
        (2e-5, 16, {}),
        (1e-5, 32, {}),
        (2e-5, 32, {}),
    )


def test_points_of_a_sweep_over_further_settings():
    """Trials that share a compiled program, of which those with other dropout do not, follow one another."""
    swept = SweepConfig(head_dropout=(0.0, 0.15), warmup_steps=(50, 500))
    points = Recipe(batch_sizes=(16, 32), learning_rates=(1e-5, 2e-5), sweep=swept, warmup_steps=9).points
    assert points == tuple(
        (rate, size, {"head_dropout": dropout, "warmup_steps": steps})
        for size in (16, 32)
        for dropout in (0.0, 0.15)
        for steps in (50, 500)
        for rate in (1e-5, 2e-5)
    )
    assert len(Recipe(sweep=SweepConfig(weight_decay=(0.1,))).points) == 1


def test_settings_in_whose_place_the_sweep_has_values_have_no_effect():
    one = suite(**{"tasks.rte.warmup_steps": 9, "tasks.rte.weight_decay": 0.5, "tasks.rte.sweep.warmup_steps": (1, 2)})
    recipe = one.in_effect.tasks["rte"]
    assert (recipe.warmup_steps, recipe.weight_decay, recipe.sweep.warmup_steps) == (None, 0.5, (1, 2))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("adversarial.method", "pgd", "^tasks.rte.adversarial.method must be one of none, asa, .*, got 'pgd'"),
        (
            "adversarial.method",
            "scheduled",
            "^tasks.rte.adversarial.method=scheduled masks the same shares .* adversarial.masking.trace",
        ),
        ("adversarial.asa.tau", 0.0, "^tasks.rte.adversarial.asa.tau must be above 0, got 0.0"),
        (
            "adversarial.asa.strength",
            1e9,
            r"^tasks.rte.adversarial.asa.strength must be above 0 and at most 1e6, got 1000000000",
        ),
        (
            "adversarial.asa.divergence.form",
            "x",
            "^tasks.rte.adversarial.asa.divergence.form must be one of symmetric, one_way",
        ),
        ("adversarial.asa.tua", 0.3, "'tasks.rte.adversarial.asa.tua'; did you mean 'tasks.rte.adversarial.asa.tau'"),
        ("adversarial.masking.share", 1, "^tasks.rte.adversarial.masking.share must be above 0 and below 1, got 1"),
    ],
)
def test_impossible_attacks_are_refused_by_their_task(key, value, message):
    """Settings in a section of a section."""
    with pytest.raises(ValueError, match=message):
        values = config_reader.to_dict(suite())
        of = values["tasks"]["rte"]
        *sections, last = key.split(".")
        for section in sections:
            of = of[section]
        of[last] = value
        config_reader.parse(FinetuningConfig, values)


def test_tasks_are_attacked_apart():
    config = suite(**{"tasks.rte.adversarial.method": "asa", "tasks.rte.adversarial.asa.tau": 0.5})
    assert config.tasks["rte"].adversarial.asa.penalty == 0.25 and config.tasks["sst2"].adversarial.method == "none"
    assert config_reader.parse(FinetuningConfig, config_reader.to_dict(config)) == config


def test_a_suite_made_in_python_is_checked_before_anything_is_read(tmp_path):
    config = FinetuningConfig(checkpoint="not there", tasks={"rte": Recipe(epochs=0)})
    with pytest.raises(ValueError, match="^tasks.rte.epochs must be at least 1 .*, got 0"):
        prepare(config, epath.Path(tmp_path / "suite"))


def test_the_tables_of_kinds_have_the_same_keys():
    assert list(kinds.KINDS) == list(heads.HEADS) == list(task_heads.HEADS)
