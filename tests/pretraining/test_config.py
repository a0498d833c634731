"""Configs: refused when wrong, the same when written and read back."""

import json

import pytest

from ag_jax import config_reader
from ag_jax.pretraining.config import ExperimentConfig, default_config, parse


def test_defaults_are_the_dataclasses():
    assert parse(default_config()) == ExperimentConfig()


def test_config_survives_json():
    config = default_config()
    config.update(seed=3)
    config.guidance.update(mode="loss", heads="next:1,prev:2")
    config.training.milestones = (0.0, 0.5)
    config.comparison.seeds = (4, 5)
    parsed = parse(config)
    assert parse(json.loads(json.dumps(config_reader.to_dict(parsed)))) == parsed


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("training.stpes", 3, "unknown setting 'training.stpes'; did you mean 'training.steps'"),
        ("trainig", {"steps": 1}, "unknown setting 'trainig'; did you mean 'training'"),
        ("training.steps", 3.5, "training.steps must be of type int, got 3.5"),
        ("training.steps", True, "training.steps must be of type int, got True"),
        ("training.tensorboard", 1, "training.tensorboard must be of type bool, got 1"),
        ("training.milestones", 0.5, "training.milestones must be a list"),
        ("comparison.seeds", (1, "a"), "comparison.seeds must be of type int, got 'a'"),
        ("comparison.seeds", (1, 1), "must be different integers"),
        ("optimizer.learning_rate", "fast", "optimizer.learning_rate must be of type float"),
        ("optimizer.learning_rate", -1, "optimizer.learning_rate must be above 0"),
        ("optimizer.decay", "cosine", "optimizer.decay must be one of linear, constant"),
        ("model", 3, "model is a section of settings"),
        ("model.remat", "all", "model.remat must be one of none, layer, dots"),
        ("model.dropout", 1.0, r"model.dropout must be in \[0, 1\)"),
        ("guidance.mode", "lose", "guidance.mode must be one of none, loss, bias"),
        ("guidance.alpha", -1.0, "guidance.alpha must be a finite number of at least 0"),
        ("mesh.fsdp", 0, "mesh.fsdp must be at least 1"),
        ("mesh.tensor", 5, "mesh.tensor=5 must divide model.heads=12"),
        ("seed", -1, "seed must be in 0"),
        ("data.sequence_length", 1024, "longer than the model's model.max_length=512"),
        ("data.format", "segment_pair_nsp", "model.segments=1: set it to 2"),
        ("data.format", "full_sentence", "did you mean 'full_sentences'"),
        ("replaced_tokens.generator", "unigrams", "replaced_tokens.generator must be one of none, unigram, mlm"),
        ("replaced_tokens.generator", "unigram", "goes with data.masking.replacement=unigram, got mask: set both"),
        ("data.masking.replacement", "unigram", "generator=none goes with data.masking.replacement=mask, got unigram"),
    ],
)
def test_what_is_wrong_is_named(key, value, message):
    config = config_reader.to_dict(ExperimentConfig())
    *sections, last = key.split(".")
    section = config
    for name in sections:
        section = section[name]
    section[last] = value
    with pytest.raises(ValueError, match=message):
        parse(config)


def electra(**settings):
    config = default_config()
    config.replaced_tokens.generator = "mlm"
    config.update_from_flattened_dict(settings)
    return parse(config)


def test_the_generator_is_a_quarter_of_the_encoder():
    generator = electra().generator
    assert (generator.width, generator.heads, generator.feedforward, generator.layers) == (192, 3, 768, 12)
    assert generator.embedding_width == 768 and generator.is_projected
    small = {"model.width": 256, "model.heads": 4, "model.feedforward": 1024, "model.embedding_width": 128}
    generator = electra(**small).generator  # ELECTRA-small's
    assert (generator.width, generator.heads, generator.feedforward) == (64, 1, 256)
    assert generator.embedding_width == 128
    assert parse(default_config()).generator is None


def test_generators_that_cannot_be():
    with pytest.raises(ValueError, match="generator_fraction=0.3 of .* is 230 and 4: choose one"):
        electra(**{"replaced_tokens.generator_fraction": 0.3})
    with pytest.raises(ValueError, match="mesh.tensor=2 must divide the generator's 3 heads"):
        electra(**{"mesh.tensor": 2, "training.batch_size": 64})
    with pytest.raises(ValueError, match="has no next-sentence prediction"):
        electra(**{"data.format": "segment_pair_nsp", "model.segments": 2})


def test_integers_are_numbers():
    config = default_config()
    config.guidance.alpha = 3
    assert parse(config).guidance.alpha == 3.0
