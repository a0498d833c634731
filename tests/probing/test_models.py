"""How long the texts are that a probed model is given, which of its heads are guided, and its random twins."""

import dataclasses

import pytest
from etils import epath

from ag_jax.attention.guidance import Assignment, GuidanceConfig
from ag_jax.finetuning.job import make_head, trained_assignment
from ag_jax.interop import finetuned, opening
from ag_jax.interop.finetuned import FineTuned
from ag_jax.models.masked_lm import PretrainingModel
from ag_jax.probing import comparison, models
from ag_jax.probing.config import ProbeConfig, ProbingConfig
from ag_jax.probing.models import ProbedModel, open_model
from tests import tiny
from tests.finetuning import tasks


def test_guided_heads_of_a_trial(tmp_path):
    """A trial says which heads its own guidance pulled, or else that of the run that it started from."""
    head, opened = make_head(tasks.task("classification"), "roberta", 10), tasks.pretrained()
    earlier = Assignment((("prev", 1), ("first", 2)), layers=(1,))
    before = dataclasses.replace(opened, assignment=earlier)
    assert trained_assignment(before, GuidanceConfig()) == earlier
    own = trained_assignment(before, GuidanceConfig(mode="loss", heads="next:2"))
    assert own == Assignment((("next", 2),)) and trained_assignment(opened, GuidanceConfig()) == Assignment()
    of_layer = trained_assignment(before, GuidanceConfig(mode="loss", heads="next:2", layers="0"))
    assert of_layer == Assignment((("next", 2),), layers=(0,))
    params = tiny.params(head.model(opened.config), tiny.task_batch("classification"))
    # The module of a custom pattern is needed for training, not to use the model.
    custom = Assignment((("next", 1), ("no_such_module.second", 1)))
    for name, assignment in (("own", own), ("layer", of_layer), ("free", Assignment()), ("custom", custom)):
        tuned = FineTuned(head, opened.config, tasks.TOKENIZER, params, assignment=assignment)
        finetuned.save(tuned, epath.Path(tmp_path / name / "weights"))
        assert finetuned.load(tmp_path / name).assignment == open_model(str(tmp_path / name)).assignment == assignment


def test_random_models_with_other_dropout_or_length_are_the_same(monkeypatch):
    """There is one set of random models for each architecture and tokenizer, which reads the longest texts of all."""
    opened = tasks.pretrained()

    def probed(checkpoint, step):
        config = dataclasses.replace(opened.config, dropout=0.1 if checkpoint == "b" else 0.0)
        if checkpoint == "c":
            config = dataclasses.replace(config, layers=config.layers + 1)
        model = PretrainingModel(config)
        return ProbedModel(checkpoint, model, {}, tasks.TOKENIZER, longest=20 if checkpoint == "b" else 10)

    monkeypatch.setattr(models, "open_model", probed)
    monkeypatch.setattr(models, "random_twin", lambda of, seed: (of.description, seed))
    probes = {"reflexives": ProbeConfig(kind="reflexives")}
    configs = {arm: ProbingConfig(checkpoint=arm, probes=probes, random_seeds=(0, 4)) for arm in "abc"}
    found = comparison._open(configs, tmp := epath.Path("nowhere"))
    assert list(found) == ["a", "b", "c", "random", "random2"] and not tmp.exists()
    assert found["random"] == {0: ("b", 0), 4: ("b", 4)} and found["random2"] == {0: ("c", 0), 4: ("c", 4)}


@pytest.mark.parametrize(("trained", "expected"), [(14, 14), (None, 24)])
def test_texts_are_no_longer_than_those_of_training(trained, expected, tmp_path):
    """A trial says how long they were; imported models do not: all positions count."""
    head, config = make_head(tasks.task("classification"), "roberta", 10), tasks.pretrained().config
    params = tiny.params(head.model(config), tiny.task_batch("classification"))
    tuned = FineTuned(head, config, tasks.TOKENIZER, params, trained_length=trained)
    finetuned.save(tuned, epath.Path(tmp_path / "trial" / "weights"))
    assert finetuned.load(tmp_path / "trial").trained_length == trained
    assert open_model(str(tmp_path / "trial")).longest == expected
    assert opening.open_for_inspection(epath.Path(tmp_path / "trial")).length == expected
    assert opening.open_encoder(str(tmp_path / "trial"), fresh=True).trained_length == 0
