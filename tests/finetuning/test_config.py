"""Recipes and suites: what is impossible is refused with the name of its setting, and what a sweep consists of."""

import pytest

from ag_jax.finetuning import kinds
from ag_jax.finetuning.config import FinetuningConfig, Recipe, SweepConfig
from ag_jax.interop import task_heads
from ag_jax.models import heads
from ag_jax.settings import schema

BIAS = {"guidance.mode": "bias"}
LAST = {f"tasks.{name}.scored_epoch": "last" for name in ("sst2", "rte", "mnli")}


def suite(**settings):
    values = schema.default(FinetuningConfig)
    values.checkpoint = "runs/x"
    for name in ("sst2", "rte", "mnli"):
        values.tasks[name] = schema.default(Recipe)
    values.update_from_flattened_dict(settings)
    return schema.parse(FinetuningConfig, values)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"tasks.rte.epochs": 0}, "tasks.rte.epochs"),
        ({"tasks.rte.learning_rates": (1e-5, 1.0000001e-5)}, "learning_rates must differ"),
        ({"tasks.rte.sweep.warmup_steps": (50, 9, 50)}, "sweep.warmup_steps must differ"),
        ({"tasks.rte.microbatches": 3}, "microbatches=3"),
        ({"tasks.rte.scored_epoch": "last", "tasks.rte.patience": 2}, "patience"),
        ({"tasks.rte.folds": 3, "tasks.rte.sweep.warmup_steps": (5, 6)}, "got 2 points"),
        ({"tasks.rte.folds": 3, "tasks.rte.validation_examples": 5}, "tasks.rte.validation_examples"),
        ({"tasks.rte.initial_task": "cola"}, "tasks.rte.initial_task"),
        ({"tasks.rte.initial_task": "rte"}, "tasks.rte.initial_task"),
        ({"tasks.rte.initial_task": "sst2", "tasks.sst2.initial_task": "mnli"}, "tasks.rte.initial_task"),
        ({"tasks.rte.initial_task": "sst2", "tasks.sst2.folds": 3}, "tasks.rte.initial_task"),
        ({"tasks.rte.adversarial.asa.tau": 0.0}, "tasks.rte.adversarial.asa.tau"),
        ({"seeds": (1, 1)}, "seeds"),
        ({"guidance.alpha_rule": "auto"}, "guidance.alpha_rule"),
        ({"guidance.decoder_heads": "prev:1"}, "guidance.decoder_heads"),
        (LAST | BIAS | {"guidance.layers": "0-1"}, "guidance.layers=0-1"),
        (LAST | BIAS | {"guidance.schedule": "constant"}, "guidance.schedule=constant"),
        (LAST | BIAS | {"tasks.rte.scored_epoch": "best"}, "tasks.rte.scored_epoch"),
    ],
)
def test_what_is_wrong_is_named(settings, named):
    with pytest.raises(ValueError, match=named):
        suite(**settings)


def test_what_is_possible_survives():
    for settings in (
        {"tasks.rte.folds": 3, "tasks.rte.sweep.warmup_steps": (5,), "tasks.rte.train_examples": 5},
        LAST | BIAS | {"guidance.schedule": "linear"},
    ):
        config = suite(**settings)
        assert schema.parse(FinetuningConfig, schema.to_dict(config)) == config
    assert list(kinds.KINDS) == list(heads.HEADS) == list(task_heads.HEADS)


def test_tasks_that_others_start_from_come_first_and_are_kept():
    config = suite(**{"tasks.rte.initial_task": "mnli", "tasks.sst2.initial_task": "mnli"})
    assert config.ordered_tasks == ("mnli", "rte", "sst2")
    assert config.keeps_weights("mnli") and not config.keeps_weights("rte")
    assert suite(keep="best").keeps_weights("rte")


def test_points_of_a_sweep():
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
    assert Recipe(batch_sizes=(16,), learning_rates=(1e-5,)).points == ((1e-5, 16, {}),)
    one = suite(**{"tasks.rte.warmup_steps": 9, "tasks.rte.weight_decay": 0.5, "tasks.rte.sweep.warmup_steps": (1, 2)})
    recipe = one.in_effect.tasks["rte"]  # in its place the sweep has values
    assert (recipe.warmup_steps, recipe.weight_decay, recipe.sweep.warmup_steps) == (None, 0.5, (1, 2))


def test_warmup_of_a_number_of_steps():
    assert Recipe(warmup_steps=50).warmup_of(51) == 50 and Recipe(warmup_fraction=0.1).warmup_of(101) == 11
    assert Recipe(warmup_steps=0).warmup_of(1) == 0
    assert Recipe(warmup_fraction=0.1).warmup_of(1) == 0 and Recipe(warmup_fraction=0.99).warmup_of(2) == 1
    for sweep, named in ((SweepConfig(), "^warmup_steps=50"), (SweepConfig(warmup_steps=(50,)), "^sweep.warmup_steps")):
        with pytest.raises(ValueError, match=named):
            Recipe(warmup_steps=50, sweep=sweep).warmup_of(50)
    assert Recipe(epochs=3, epochs_factor=2).total_epochs == 6
