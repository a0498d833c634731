"""How long the texts are that a probed model is given, which of its heads are guided, and its random twins."""

import dataclasses

import pytest
from etils import epath

from ag_jax.attention.assignment import Assignment
from ag_jax.attention.config import GuidanceConfig
from ag_jax.finetuning.task_training import make_head, trained_assignment
from ag_jax.interop import finetuned, opening
from ag_jax.interop.finetuned import FineTuned
from ag_jax.models.masked_lm import PretrainingModel
from ag_jax.probing import comparison, models
from ag_jax.probing.config import ProbeConfig, ProbingConfig
from ag_jax.probing.models import ProbedModel, open_model
from tests import tiny
from tests.finetuning import tasks


def test_guided_heads_of_a_trial():
    """The heads that the trial's guidance pulled, or else that of the run it started from."""
    opened, earlier = tasks.pretrained(), Assignment((("prev", 1), ("first", 2)), layers=(1,))
    before = dataclasses.replace(opened, assignment=earlier)
    assert trained_assignment(before, GuidanceConfig()) == earlier
    own = trained_assignment(before, GuidanceConfig(mode="loss", heads="next:2"))
    assert own == Assignment((("next", 2),)) and trained_assignment(opened, GuidanceConfig()) == Assignment()
    of_layer = trained_assignment(before, GuidanceConfig(mode="loss", heads="next:2", layers="0"))
    assert of_layer == Assignment((("next", 2),), layers=(0,))


@pytest.mark.parametrize(
    ("trained", "longest", "assignment"),
    [
        (14, 14, Assignment((("next", 2),), layers=(0,))),
        (None, 24, Assignment()),
        # The module of a custom pattern is needed for training, not to use the model.
        (14, 14, Assignment((("next", 1), ("no_such_module.second", 1)))),
    ],
)
def test_a_saved_trial_says_what_it_was_trained_on(trained, longest, assignment, tmp_path):
    """Texts are no longer than those of training; imported models do not say: all positions count."""
    head, config = make_head(tasks.task("classification"), "roberta", 10), tasks.pretrained().config
    params = tiny.params(head.model(config), tiny.task_batch("classification"))
    tuned = FineTuned(head, config, tasks.TOKENIZER, params, trained_length=trained, assignment=assignment)
    finetuned.save(tuned, epath.Path(tmp_path / "trial" / "weights"))
    loaded, probed = finetuned.load(tmp_path / "trial"), open_model(str(tmp_path / "trial"))
    assert loaded.trained_length == trained and loaded.assignment == probed.assignment == assignment
    assert probed.longest == opening.open_for_inspection(epath.Path(tmp_path / "trial")).length == longest
    assert opening.open_encoder(str(tmp_path / "trial"), fresh=True).trained_length == 0


def test_random_models_with_other_dropout_or_length_are_the_same(monkeypatch):
    """There is one set of random models for each architecture and tokenizer, which reads the longest texts of all."""
    config = dataclasses.replace(tasks.pretrained().config, layers=1, dropout=0.0)
    opened = {
        "a": ProbedModel("a", PretrainingModel(config), {}, tasks.TOKENIZER, 10, Assignment((("next", 1),))),
        "b": ProbedModel("b", PretrainingModel(dataclasses.replace(config, dropout=0.1)), {}, tasks.TOKENIZER, 20),
        "c": ProbedModel("c", PretrainingModel(dataclasses.replace(config, layers=2)), {}, tasks.TOKENIZER, 10),
    }
    monkeypatch.setattr(models, "open_model", lambda checkpoint, step: opened[checkpoint])
    monkeypatch.setattr(models, "random_params", lambda model, seed: ("c" if model.config.layers == 2 else "b", seed))
    probes = {"reflexives": ProbeConfig(kind="reflexives")}
    configs = {arm: ProbingConfig(checkpoint=arm, probes=probes, random_seeds=(0, 4)) for arm in "abc"}
    found = comparison._open(configs, epath.Path("nowhere"))
    assert list(found) == ["a", "b", "c", "random", "random2"]
    for arm, of in (("random", "b"), ("random2", "c")):
        assert {twin.model for twin in found[arm].values()} == {opened[of].model} and list(found[arm]) == [0, 4]
        assert {(twin.longest, twin.assignment) for twin in found[arm].values()} == {(opened[of].longest, Assignment())}
        assert {seed: twin.params for seed, twin in found[arm].items()} == {seed: (of, seed) for seed in (0, 4)}
