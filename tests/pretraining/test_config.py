"""Configs: refused when wrong, the same when written and read back."""

import json

import pytest
from etils import epath

from ag_jax import config_reader, imported
from ag_jax.models.config import EncoderConfig
from ag_jax.pretraining import run
from ag_jax.pretraining.config import ExperimentConfig, default_config, different_settings, parse, read


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
        ("training.steps", 3.5, "training.steps must be a whole number, got 3.5"),
        ("training.steps", 99999999999, "training.steps must be at least 1 and at most 2147483647, got 99999999999"),
        ("model.layers", 10**9, "model.layers must be at least 1 and at most 1000"),
        ("model.width", 2**30, "model.width must be at least 1 and at most 65536"),
        ("data.sequence_length", 2**20, "data.sequence_length must be at least 8 and at most 65536"),
        ("training.steps", True, "training.steps must be a whole number, got True"),
        ("training.tensorboard", 1, "training.tensorboard must be True or False, got 1"),
        ("training.milestones", 0.5, "training.milestones must be a list"),
        ("comparison.seeds", (1, "a"), "comparison.seeds must be a whole number, got 'a'"),
        ("comparison.seeds", (1, 1), "must be one or more integers without repetition"),
        ("optimizer.learning_rate", "fast", "optimizer.learning_rate must be a finite number"),
        ("optimizer.learning_rate", -1, "optimizer.learning_rate must be at least"),
        ("optimizer.decay", "step", "optimizer.decay must be one of linear, cosine"),
        ("optimizer.decay_steps", 100_001, "optimizer.warmup_steps=0 and optimizer.decay_steps=100001 are more than"),
        ("training.earlier_batch_sizes", (16,), "earlier_batch_sizes_until= must be ascending steps below"),
        ("data.masking.earlier_rates", (0.3,), "earlier_rates_until= must be ascending steps, one for each of"),
        ("model", 3, "model is a section of settings"),
        ("model.remat", "all", "model.remat must be one of none, layer, dots"),
        ("model.dropout", 1.0, "model.dropout must be at least 0 and below 1, got 1.0"),
        ("guidance.mode", "lose", "guidance.mode must be one of none, loss, bias"),
        ("guidance.alpha", -1.0, "guidance.alpha must be at least 0, got -1.0"),
        ("mesh.fsdp", 0, "mesh.fsdp must be at least 1"),
        ("mesh.tensor", 5, "mesh.tensor=5 must divide model.heads=12"),
        ("seed", -1, "seed must be at least 0, got -1"),
        (
            "adversarial",
            {"method": "asa", "asa": {"delay_steps": 100_000}},
            "asa.delay_steps=100000 must be below the 100000 steps",
        ),
        (
            "adversarial",
            {"method": "freelb", "freelb": {"begin_step": 100_001}},
            "freelb.begin_step=100001 must be below the 100000 steps",
        ),
        ("data.sequence_length", 1024, "longer than the model's model.max_length=512"),
        ("data.format", "segment_pair_nsp", "model.token_types=1: set it to 2"),
        ("data.format", "full_sentence", "got 'full_sentence'"),
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


@pytest.mark.parametrize(
    "sizes",
    [
        {"model.layers": 1000, "model.width": 65_536, "model.heads": 64},
        {"data.tokenizer.vocabulary_size": 2**24, "model.width": 6_144},
        {
            "decoder.layers": 1000,
            "model.layers": 1,
            "model.width": 16_384,
            "model.heads": 64,
            "data.format": "parallel",
            "data.source": "a.de",
            "data.target": "a.en",
        },
    ],
)
def test_a_model_that_no_memory_holds(sizes):
    with pytest.raises(ValueError, match=r"about \d.\de\+\d\d parameters.*model.width="):
        parse(nested(sizes))


def test_a_delay_that_leaves_no_steps_after_the_warm_up():
    flat = {"training.steps": 100, "optimizer.warmup_steps": 90, "adversarial.method": "asa"}
    delay = "adversarial.asa.delay_steps"
    with pytest.raises(ValueError, match="adversarial.asa.delay_steps=80 leaves 20 of 100 steps.* 90 steps of warm-up"):
        parse(nested(flat | {delay: 80}))
    parse(nested(flat | {delay: 9}))
    parse(nested(flat | {delay: 200, "adversarial.method": "r_drop"}))


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


TRANSLATES = {"decoder.layers": 2, "data.format": "parallel", "data.source": "a.en", "data.target": "a.de"}
FIXED = {"model.fixed_attention.offsets": (-1, 1)}


def test_a_config_that_translates():
    """Without a new section, and with all of them."""
    config = parse(nested(TRANSLATES))
    assert config.translates and not parse(default_config()).translates
    assert parse(json.loads(json.dumps(config_reader.to_dict(config)))) == config
    parse(nested(TRANSLATES | FIXED | {"decoder.fixed_attention.offsets": (-1, 0)}))
    guided = {"guidance.mode": "loss", "guidance.decoder_heads": "prev:1", "guidance.cross_heads": "diagonal:1"}
    parse(nested(TRANSLATES | guided | {"translation.average": 2, "training.keep_last": 2}))
    delimiters = {"decoder.start": "begin", "guidance.mode": "loss", "guidance.decoder_heads": "delim:1"}
    parse(nested(TRANSLATES | delimiters))
    parse(nested(TRANSLATES | {"adversarial.method": "asa", "adversarial.asa.sentence": "none"}))
    # Attacks on embeddings, and guidance of what is learnt, go with hard-coded attention.
    parse(nested(TRANSLATES | FIXED | {"adversarial.method": "freelb"}))
    parse(nested(TRANSLATES | {"decoder.fixed_attention.offsets": (0,), "guidance.mode": "loss"}))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"decoder.layers": 2}, "decoder.layers=2 does not go with data.format=full_sentences: a run that translates"),
        (TRANSLATES | {"decoder.layers": 0}, "decoder.layers=0 does not go with data.format=parallel"),
        ({"decoder.tie": "none"}, "settings of the section decoder have an effect only in a run that translates"),
        ({"translation.label_smoothing": 0.2}, "settings of the section translation have an effect only in a run that"),
        ({"decoding.beam_size": 2}, "settings of the section decoding have an effect only in a run that translates"),
        ({"guidance.mode": "loss", "guidance.decoder_heads": "prev:1"}, "guidance.decoder_heads needs a model with a"),
        ({"guidance.mode": "loss", "guidance.cross_heads": "first:1"}, "guidance.cross_heads needs a model with a"),
        (TRANSLATES | {"model.relative.terms": "c2p"}, "model.relative has no counterpart in a decoder"),
        (
            TRANSLATES | {"model.mask_decoder_passes": 1, "model.absolute_positions": "decoder"},
            "model.mask_decoder_passes has no counterpart in a decoder",
        ),
        (TRANSLATES | {"model.convolution": 3}, "model.convolution has no counterpart in a decoder"),
        (
            TRANSLATES | {"model.window": 8, "model.global_every": None},
            "model.window has no counterpart in a decoder",
        ),
        (TRANSLATES | {"model.query_key_norm": True}, "model.query_key_norm has no counterpart in a decoder"),
        (TRANSLATES | {"model.positions": "rotary"}, "rotary cannot be set together with decoder.layers: set learned"),
        (
            {"guidance.mode": "bias", "guidance.layers": "0"},
            "guidance.layers=0 needs guidance.mode=loss: mode=bias changes the scores of all layers",
        ),
        ({"guidance.layers": "99"}, "guidance.layers must be all, global, local, or layers from 0 to 11"),
        (
            TRANSLATES | {"data.masking.replacement": "unigram", "replaced_tokens.generator": "unigram"},
            "data.masking has no effect with format='parallel'",
        ),
        (TRANSLATES | {"replaced_tokens.generator": "mlm"}, "replaced_tokens.generator=mlm does not go with decoder"),
        (
            TRANSLATES | {"adversarial.method": "asa"},
            "adversarial.asa.sentence=head compares predictions .*: set adversarial.asa.sentence=none",
        ),
        (
            TRANSLATES | {"adversarial.method": "bernoulli"},
            "adversarial.masking.sentence=head compares predictions .*: set adversarial.masking.sentence=none",
        ),
        (
            TRANSLATES | {"guidance.mode": "bias", "guidance.decoder_heads": "prev:1"},
            "guidance.mode=bias changes the scores of the encoder only: set mode=loss, or remove",
        ),
        (
            TRANSLATES | {"translation.average": 3, "training.keep_last": 2},
            "translation.average=3 checkpoints are averaged, but only training.keep_last=2 are kept: raise keep_last",
        ),
        (TRANSLATES | {"guidance.mode": "loss", "guidance.decoder_heads": "next:1"}, "use prev, same or first"),
        (TRANSLATES | {"guidance.mode": "loss", "guidance.cross_heads": "same:1"}, "same points at a neighbour in"),
        (
            TRANSLATES | {"guidance.mode": "loss", "guidance.decoder_heads": "prev:1,delim:1"},
            "with decoder.start=zero a decoder reads no delimiters, so delim would have no target .* use first",
        ),
        (
            TRANSLATES | {"decoder.fixed_attention.offsets": (-1, 1)},
            "decoder.fixed_attention.offsets has 1, where the decoder has not written a token yet: use offsets of at m",
        ),
        (FIXED | {"guidance.mode": "loss"}, "model.fixed_attention.offsets hard-codes the attention that guidance"),
        (
            FIXED | {"adversarial.method": "asa"},
            "adversarial.method=asa masks attention scores, which model.fixed_attention.offsets replaces",
        ),
        (
            TRANSLATES
            | {"decoder.fixed_attention.offsets": (-1,), "guidance.mode": "loss", "guidance.decoder_heads": "prev:1"},
            "decoder.fixed_attention.offsets hard-codes the attention that guidance.decoder_heads would train",
        ),
    ],
)
def test_translations_that_cannot_be(settings, message):
    with pytest.raises(ValueError, match=message):
        parse(nested(settings))


def test_integers_are_numbers():
    config = default_config()
    config.guidance.alpha = 3
    assert parse(config).guidance.alpha == 3.0


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


def test_a_run_with_a_custom_pattern_is_read_without_its_code(tmp_path):
    values = config_reader.to_dict(ExperimentConfig())
    values["guidance"] |= {"mode": "loss", "heads": "no_such_module.second:1"}
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert read(epath.Path(tmp_path / "config.json")).guidance.heads == "no_such_module.second:1"
    imported.allow({"guidance.heads": "no_such_module.second:1"})
    with pytest.raises(ValueError, match="cannot import .*on PYTHONPATH") as error:
        read(epath.Path(tmp_path / "config.json"))
    assert "put back a copy" not in str(error.value)
    values["guidance"]["heads"] = "nxt:1"
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match="config.json: .*put back a copy of the file, or use the version"):
        read(epath.Path(tmp_path / "config.json"))


def test_rotations_may_change_when_weights_are_taken_over(tmp_path, capsys):
    """Not other settings of the encoder; the change is printed."""
    config = default_config()
    config.model.update(positions="rotary", rotary_base=10_000.0, window=16, global_every=3)
    there = config_reader.to_dict(parse(config))
    (tmp_path / "config.json").write_text(json.dumps(there))
    config.training.initial_weights = str(tmp_path)
    run.check_initial_weights(parse(config))
    assert not capsys.readouterr().err
    config.model.update(rotary_base=160_000.0, rotary_base_local=10_000.0)
    run.check_initial_weights(parse(config))
    assert "  model.rotary_base: there 10000.0, here 160000.0\n  model.rotary_base_local" in capsys.readouterr().err
    config.model.window = 32
    with pytest.raises(ValueError, match="is a run of another encoder:\n  model.window: there 16, here 32\nSet these"):
        run.check_initial_weights(parse(config))


@pytest.mark.parametrize(
    ("setting", "value", "may_differ"),
    [
        ("model.attention", "reference", True),
        ("model.attention_dropout", 0.25, False),  # begins with the name above, and is another setting
        ("model.attention_biases", False, False),
        ("mesh.data", 1, True),
        ("training.keep_last", 7, True),
        ("optimizer.decay_steps", 3, False),
    ],
)
def test_settings_with_which_a_run_may_be_resumed(setting, value, may_differ):
    values = default_config()
    stored = config_reader.to_dict(parse(values))
    values.update_from_flattened_dict({setting: value})
    found = different_settings(stored, parse(values), run.MAY_DIFFER)
    assert [line.split(":")[0].strip() for line in found] == ([] if may_differ else [setting])
