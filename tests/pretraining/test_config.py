"""Configs: rejected when wrong, the same when written and read back."""

import json

import pytest

from ag_jax.models.config import EncoderConfig
from ag_jax.pretraining import initial_weights, run, run_directory
from ag_jax.pretraining.config import ExperimentConfig, default_config, different_settings, parse
from ag_jax.settings import schema


def made(**flat) -> ExperimentConfig:
    """The config with these settings, such as `made(**{"model.layers": 3})`."""
    found = {}
    for key, value in flat.items():
        *sections, last = key.split(".")
        section = found
        for name in sections:
            section = section.setdefault(name, {})
        section[last] = value
    return parse(found)


def test_defaults_are_the_dataclasses():
    assert parse(default_config()) == ExperimentConfig()


def test_config_survives_json():
    guided = {"guidance.mode": "loss", "guidance.heads": "next:1,prev:2", "guidance.alpha": 3}
    parsed = made(**guided, **{"seed": 3, "training.milestones": (0.0, 0.5), "comparison.seeds": (4, 5)})
    assert parse(json.loads(json.dumps(schema.to_dict(parsed)))) == parsed != ExperimentConfig()
    assert isinstance(parsed.guidance.alpha, float)


TRANSLATES = {"decoder.layers": 2, "data.format": "parallel", "data.source": "a.en", "data.target": "a.de"}
SIZES = {
    **{"training.steps": 6, "training.batch_size": 4, "training.microbatches": 2},
    **{"training.earlier_batch_sizes": (2,), "training.earlier_batch_sizes_until": (4,)},
}
FIXED = {"model.fixed_attention.offsets": (-1, 1)}
LOSS, BIAS, ASA, ELECTRA = (
    {key: value}
    for key, value in (
        ("guidance.mode", "loss"),
        ("guidance.mode", "bias"),
        ("adversarial.method", "asa"),
        ("replaced_tokens.generator", "mlm"),
    )
)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"training.stpes": 3}, "training.stpes.*training.steps"),
        ({"trainig.steps": 1}, "trainig.*training"),
        ({"training.steps": 3.5}, "training.steps .* 3.5"),
        ({"training.steps": 99999999999}, "training.steps .* 2147483647"),
        ({"training.steps": True}, "training.steps .*True"),
        ({"model.layers": 10**9}, "model.layers .* 1000"),
        ({"training.milestones": 0.5}, "training.milestones"),
        ({"comparison.seeds": (1, 1)}, "comparison.seeds"),
        ({"optimizer.decay_steps": 100_001}, "optimizer.decay_steps=100001"),
        ({"training.earlier_batch_sizes": (16,)}, "earlier_batch_sizes_until="),
        ({"data.masking.earlier_rates": (0.3,)}, "earlier_rates_until="),
        (SIZES | {"training.earlier_batch_sizes": (3,)}, "earlier_batch_sizes has 3"),
        (SIZES | {"training.earlier_batch_sizes_until": (6,)}, "earlier_batch_sizes_until=6"),
        (SIZES | {"training.earlier_batch_sizes": (2, 2), "training.earlier_batch_sizes_until": (3, 2)}, "until=3,2"),
        (SIZES | {"mesh.data": 4, "training.batch_size": 8}, "earlier_batch_sizes has 2, .*mesh.data"),
        ({"training.batch_size": 10, "training.microbatches": 3}, "training.microbatches=3"),
        ({"training.patience": 2, "training.evaluate_every": None}, "training.patience=2 .*training.evaluate_every"),
        ({"training.milestone_words": (3, 2)}, "training.milestone_words=3,2"),
        (
            {"training.milestone_words": (100, 300), "training.words": 200},
            "milestone_words .*300, .*words=200",
        ),
        ({"model": 3}, "model"),
        ({"mesh.tensor": 5}, "mesh.tensor=5 .*model.heads=12"),
        (ASA | {"adversarial.asa.delay_steps": 100_000}, "asa.delay_steps=100000"),
        ({"adversarial.method": "freelb", "adversarial.freelb.begin_step": 100_001}, "freelb.begin_step=100001"),
        ({"data.sequence_length": 1024}, "data.sequence_length=1024 .*model.max_length=512"),
        ({"data.format": "segment_pair_nsp"}, "model.token_types=1"),
        ({"replaced_tokens.generator": "unigram"}, "data.masking.replacement=unigram"),
        ({"data.masking.replacement": "unigram"}, "data.masking.replacement=mask"),
        # The generator of replaced tokens.
        (ELECTRA | {"replaced_tokens.generator_fraction": 0.3}, "generator_fraction=0.3 .* 230 .* 4 heads"),
        (ELECTRA | {"mesh.tensor": 2, "training.batch_size": 64}, "mesh.tensor=2 .* 3 heads"),
        (ELECTRA | {"data.format": "segment_pair_nsp", "model.token_types": 2}, "next-sentence"),
        # Models that no memory holds.
        ({"model.layers": 1000, "model.width": 65_536, "model.heads": 64}, r"\d.\de\+\d\d parameters.*model.width="),
        ({"data.tokenizer.vocabulary_size": 2**24, "model.width": 6_144}, r"\d.\de\+\d\d parameters"),
        (
            TRANSLATES | {"decoder.layers": 1000, "model.layers": 1, "model.width": 16_384, "model.heads": 64},
            r"\d.\de\+\d\d parameters",
        ),
        # Guidance of layers.
        (BIAS | {"guidance.layers": "0"}, "guidance.layers=0 .*guidance.mode=loss"),
        ({"guidance.layers": "99"}, "guidance.layers .* 11"),
        # Pointers of annotated text, and alignments.
        ({"data.pointers": ("next",)}, "data.pointers .*'next'"),
        ({"data.pointers": ("head", "alignment")}, "data.pointers .*'alignment'"),
        (LOSS | {"guidance.heads": "head:1"}, "data.pointers, got 'head'"),
        (BIAS | {"data.pointers": ("head",), "guidance.heads": "next:1,head:1"}, "guidance.mode=bias .*head"),
        (
            LOSS | {"guidance.loss": "cross_entropy", "guidance.probabilities": "after_dropout"},
            "after_dropout .*guidance.loss=squared",
        ),
        (TRANSLATES | LOSS | {"guidance.cross_heads": "alignment:1"}, "data.alignments"),
        # Translation.
        ({"decoder.layers": 2}, "decoder.layers=2 .*data.format=full_sentences"),
        (TRANSLATES | {"decoder.layers": 0}, "decoder.layers=0 .*data.format=parallel"),
        ({"decoder.tie": "none"}, "section decoder"),
        ({"translation.label_smoothing": 0.2}, "section translation"),
        ({"decoding.beam_size": 2}, "section decoding"),
        (LOSS | {"guidance.decoder_heads": "prev:1"}, "guidance.decoder_heads"),
        (LOSS | {"guidance.cross_heads": "first:1"}, "guidance.cross_heads"),
        (TRANSLATES | {"model.relative.terms": "c2p"}, "model.relative"),
        (TRANSLATES | {"model.mask_decoder_passes": 1, "model.absolute_positions": "decoder"}, "mask_decoder_passes"),
        (TRANSLATES | {"model.convolution": 3}, "model.convolution"),
        (TRANSLATES | {"model.window": 8, "model.global_every": None}, "model.window"),
        (TRANSLATES | {"model.query_key_norm": True}, "model.query_key_norm"),
        (TRANSLATES | {"model.positions": "rotary"}, "rotary .*decoder.layers"),
        (
            TRANSLATES | {"data.masking.replacement": "unigram", "replaced_tokens.generator": "unigram"},
            "data.masking .*format='parallel'",
        ),
        (TRANSLATES | ELECTRA, "replaced_tokens.generator=mlm .*decoder"),
        (TRANSLATES | ASA, "adversarial.asa.sentence=head"),
        (TRANSLATES | {"adversarial.method": "bernoulli"}, "adversarial.masking.sentence=head"),
        (TRANSLATES | BIAS | {"guidance.decoder_heads": "prev:1"}, "guidance.mode=bias"),
        (TRANSLATES | {"translation.average": 3, "training.keep_last": 2}, "translation.average=3 .*keep_last=2"),
        (TRANSLATES | LOSS | {"guidance.decoder_heads": "next:1"}, "next.* prev, same or first"),
        (TRANSLATES | LOSS | {"guidance.cross_heads": "same:1"}, "same "),
        (TRANSLATES | LOSS | {"guidance.decoder_heads": "prev:1,delim:1"}, "decoder.start=zero .*delim"),
        (TRANSLATES | {"decoder.fixed_attention.offsets": (-1, 1)}, "decoder.fixed_attention.offsets has 1"),
        (FIXED | LOSS, "model.fixed_attention.offsets"),
        (FIXED | ASA, "adversarial.method=asa .*model.fixed_attention.offsets"),
        (
            TRANSLATES | LOSS | {"decoder.fixed_attention.offsets": (-1,), "guidance.decoder_heads": "prev:1"},
            "decoder.fixed_attention.offsets .*guidance.decoder_heads",
        ),
    ],
)
def test_what_is_wrong_is_named(settings, named):
    with pytest.raises(ValueError, match=named):
        made(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        FIXED | {"decoder.fixed_attention.offsets": (-1, 0)},
        LOSS | {"guidance.decoder_heads": "prev:1", "guidance.cross_heads": "diagonal:1"},
        LOSS | {"guidance.cross_heads": "alignment:1", "data.alignments": "a.links"},
        LOSS | {"guidance.cross_heads": "ag_jax.data.parallel.alignments.first_tokens:1"},
        {"translation.average": 2, "training.keep_last": 2},
        LOSS | {"decoder.start": "begin", "guidance.decoder_heads": "delim:1"},
        ASA | {"adversarial.asa.sentence": "none"},
        # Attacks on embeddings, and guidance of what is learnt, go with hard-coded attention.
        FIXED | {"adversarial.method": "freelb"},
        LOSS | {"decoder.fixed_attention.offsets": (0,)},
    ],
)
def test_a_config_that_translates(settings):
    config = made(**TRANSLATES | settings)
    assert config.translates and not parse(default_config()).translates
    assert parse(json.loads(json.dumps(schema.to_dict(config)))) == config


def test_a_delay_that_leaves_no_steps_after_the_warm_up():
    flat = {"training.steps": 100, "optimizer.warmup_steps": 90, "adversarial.method": "asa"}
    delay = "adversarial.asa.delay_steps"
    with pytest.raises(ValueError, match="adversarial.asa.delay_steps=80 .* 20 of 100 .* 90 "):
        made(**flat | {delay: 80})
    made(**flat | {delay: 9})
    made(**flat | {delay: 200, "adversarial.method": "r_drop"})


def test_the_generator_is_a_quarter_of_the_encoder():
    generator = made(**ELECTRA).generator
    assert (generator.width, generator.heads, generator.feedforward, generator.layers) == (192, 3, 768, 12)
    assert generator.embedding_width == 768 and generator.is_projected
    small = {"model.width": 256, "model.heads": 4, "model.feedforward": 1024, "model.embedding_width": 128}
    generator = made(**ELECTRA, **small).generator  # ELECTRA-small's
    assert (generator.width, generator.heads, generator.feedforward) == (64, 1, 256)
    assert generator.embedding_width == 128
    assert parse(default_config()).generator is None


def test_a_config_made_in_python_is_checked_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="model.dtype .*'float16'"):
        run.train(ExperimentConfig(model=EncoderConfig(dtype="float16")), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_rotations_may_change_when_weights_are_taken_over(tmp_path, capsys):
    """Not other settings of the encoder; the change is printed."""
    config = default_config()
    config.model.update(positions="rotary", rotary_base=10_000.0, window=16, global_every=3)
    (tmp_path / "config.json").write_text(json.dumps(schema.to_dict(parse(config))))
    config.training.initial_weights = str(tmp_path)
    initial_weights.check(parse(config))
    assert not capsys.readouterr().err
    config.model.update(rotary_base=160_000.0, rotary_base_local=10_000.0)
    initial_weights.check(parse(config))
    assert "  model.rotary_base: there 10000.0, here 160000.0\n  model.rotary_base_local" in capsys.readouterr().err
    config.model.window = 32
    with pytest.raises(ValueError, match="\n  model.window: there 16, here 32\n"):
        initial_weights.check(parse(config))


@pytest.mark.parametrize(
    ("setting", "value", "may_differ"),
    [
        ("model.attention", "reference", True),
        ("model.attention_dropout", 0.25, False),  # begins with the name above, and is another setting
        ("mesh.data", 1, True),
        ("training.keep_last", 7, True),
        ("optimizer.decay_steps", 3, False),
    ],
)
def test_settings_with_which_a_run_may_be_resumed(setting, value, may_differ):
    stored = schema.to_dict(ExperimentConfig())
    found = different_settings(stored, made(**{setting: value}), run_directory.MAY_DIFFER)
    assert [line.split(":")[0].strip() for line in found] == ([] if may_differ else [setting])
