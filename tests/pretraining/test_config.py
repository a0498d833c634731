"""Configs: refused when wrong, the same when written and read back."""

import json

import pytest

from ag_jax import config_reader
from ag_jax.models.config import EncoderConfig
from ag_jax.pretraining import run
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
        ("comparison.seeds", (1, 1), "must be one or more integers without repetition"),
        ("optimizer.learning_rate", "fast", "optimizer.learning_rate must be of type float"),
        ("optimizer.learning_rate", -1, "optimizer.learning_rate must be above 0"),
        ("optimizer.decay", "cosine", "optimizer.decay must be one of linear, constant"),
        ("model", 3, "model is a section of settings"),
        ("model.remat", "all", "model.remat must be one of none, layer, dots"),
        ("model.dropout", 1.0, "model.dropout must be at least 0 and below 1, got 1.0"),
        ("guidance.mode", "lose", "guidance.mode must be one of none, loss, bias"),
        ("guidance.alpha", -1.0, "guidance.alpha must be at least 0, got -1.0"),
        ("mesh.fsdp", 0, "mesh.fsdp must be at least 1"),
        ("mesh.tensor", 5, "mesh.tensor=5 must divide model.heads=12"),
        ("seed", -1, "seed must be at least 0, got -1"),
        ("data.sequence_length", 1024, "longer than the model's model.max_length=512"),
        ("data.format", "segment_pair_nsp", "model.token_types=1: set it to 2"),
        ("data.format", "full_sentence", "did you mean 'full_sentences'"),
        ("replaced_tokens.generator", "unigrams", "replaced_tokens.generator must be one of none, unigram, mlm"),
        ("replaced_tokens.generator", "unigram", "needs data.masking.replacement=unigram, got mask: change one"),
        ("data.masking.replacement", "unigram", "generator=none needs data.masking.replacement=mask, got unigram"),
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
    with pytest.raises(ValueError, match="generator_fraction=0.3 of .* gives a generator of width 230 with 4 heads"):
        electra(**{"replaced_tokens.generator_fraction": 0.3})
    with pytest.raises(ValueError, match="mesh.tensor=2 must divide the generator's 3 heads"):
        electra(**{"mesh.tensor": 2, "training.batch_size": 64})
    with pytest.raises(ValueError, match="is for next-sentence prediction, which"):
        electra(**{"data.format": "segment_pair_nsp", "model.token_types": 2})


def test_integers_are_numbers():
    config = default_config()
    config.guidance.alpha = 3
    assert parse(config).guidance.alpha == 3.0


# What stood for none in configs that earlier versions stored: every setting that may be none today.
OFF = {
    "data.validation_source": "",
    "data.cache_dir": "",
    "data.tokenizer.path": "",
    "data.masking.static_copies": 0,
    "model.vocabulary_size": 0,
    "model.feedforward": 0,
    "model.embedding_width": 0,
    "model.convolution": 0,
    "model.relative.buckets": 0,
    "replaced_tokens.weight": 0.0,
    "guidance.heads": "",
    "adversarial.asa.keep_init": 0.0,
    "adversarial.asa.learning_rate": 0.0,
    "adversarial.asa.weight_decay": -1.0,
    "adversarial.asa.clip_norm": 0.0,
    "adversarial.masking.trace": "",
    "adversarial.freelb.max_norm": 0.0,
    "adversarial.smart.step_size": 0.0,
    "optimizer.clip_norm": 0.0,
    "mesh.data": 0,
    "training.evaluate_every": 0,
    "training.keep_every": 0,
    "training.step_timeout": 0,
    "training.initial_weights": "",
    "training.wandb": "",
    "comparison.arms": "",
}


def test_what_stood_for_none_in_earlier_configs_is_none():
    may_be_none = set()
    for key in config_reader.flat(config_reader.to_dict(ExperimentConfig())):
        try:
            parse(nested({key: None}))
        except ValueError:
            continue
        may_be_none.add(key)
    assert may_be_none == OFF.keys()
    stored = config_reader.flat(config_reader.upgraded(ExperimentConfig, nested(OFF)))
    assert stored == dict.fromkeys(OFF)
    renamed = {"model.segments": 2, "model.decoder_passes": 3}
    stored = config_reader.flat(config_reader.upgraded(ExperimentConfig, nested(renamed)))
    assert stored == {"model.token_types": 2, "model.mask_decoder_passes": 3}


def nested(flat):
    """Settings as `{"section": {"key": value}}`."""
    found = {}
    for key, value in flat.items():
        *sections, last = key.split(".")
        section = found
        for name in sections:
            section = section.setdefault(name, {})
        section[last] = value
    return found


def test_a_config_made_in_python_is_checked_before_anything_is_written(tmp_path):
    config = ExperimentConfig(model=EncoderConfig(dtype="float16"))
    with pytest.raises(ValueError, match="model.dtype must be one of float32, bfloat16, got 'float16'"):
        run.train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
