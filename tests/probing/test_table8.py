"""`ag/table8_probes`: the runs that it trains, the models that it is given, and what is asked of them."""

import re

import pytest

from ag_jax import config_reader
from ag_jax.attention.guidance import Assignment
from ag_jax.data.probes import conll
from ag_jax.data.text import sources
from ag_jax.pretraining import build
from ag_jax.pretraining import config as pretraining_config
from ag_jax.probing import comparison
from tests.conftest import REPOSITORY

TABLE = str(REPOSITORY / "configs" / "ag" / "table8_probes.py")
MODELS = "mlm=a,ag=b/c,ag_all=d,data=texts"


def trained(arguments):
    """Return the config of the run that each arm trains."""
    configs = comparison.arm_configs(f"{TABLE}:{arguments}", {})
    return {arm: pretraining_config.parse(config_reader.load(config.train)) for arm, config in configs.items()}


def test_the_small_runs_differ_in_guidance_alone():
    runs = trained("scale=small,data=texts/")
    assert [build.assignment(config) for config in runs.values()] == [
        Assignment(),
        Assignment((("next", 1), ("prev", 1), ("first", 1))),
        Assignment((("next", 1), ("prev", 1), ("first", 4))),
    ]
    flat = [config_reader.flat(config_reader.to_dict(config)) for config in runs.values()]
    assert {key for key in flat[0] if len({str(of[key]) for of in flat}) > 1} == {"guidance.mode", "guidance.fraction"}
    config = runs["mlm"]
    assert (config.data.source, config.data.skip_words) == ("sotu,texts/litbank_novels", (0, 3500))
    assert (config.training.steps, config.training.batch_size * config.data.sequence_length) == (4000, 2048)
    assert (config.model.layers, config.model.width, config.data.sequence_length) == (8, 96, 128)


def test_the_runs_of_the_paper():
    runs = trained("data=texts")
    assert [config.guidance.fraction for config in list(runs.values())[1:]] == [0.5, 1.0]
    assert [config.optimizer.warmup_steps for config in runs.values()] == [10_000, 0, 0]
    for config in runs.values():
        assert (config.model.layers, config.model.width, config.training.batch_size) == (12, 768, 84)
        assert config.data.source.startswith("tfds:wikipedia")


def test_fewer_steps_and_seeds():
    assert {config.training.steps for config in trained("scale=small,data=texts,steps=3").values()} == {3}
    config = comparison.arm_configs(f"{TABLE}:scale=small,data=texts,seeds=2", {})["ag"]
    assert config.seeds == (0, 1) and comparison.arm_configs(f"{TABLE}:data=texts", {})["ag"].seeds == (0, 1, 2)


def test_models_that_exist():
    configs = comparison.arm_configs(f"{TABLE}:{MODELS},probes=coreference,reflexives", {})
    assert {arm: config.checkpoint for arm, config in configs.items()} == {"mlm": "a", "ag": "b/c", "ag_all": "d"}
    probes = configs["mlm"].probes
    assert list(probes) == ["coreference", "reflexives"]
    assert probes["coreference"].data == "texts/litbank_coref" and probes["reflexives"].data is None
    assert probes["coreference"].modes == ("mentions", "words")
    assert (probes["reflexives"].modes, probes["reflexives"].distractor) == (("positions", "words"), "before")
    several = comparison.arm_configs(f"{TABLE}:mlm=a{{seed}},ag=b{{seed}},ag_all=c,data=texts,seeds=2", {})
    assert {arm: config.seeds for arm, config in several.items()} == {"mlm": (0, 1), "ag": (0, 1), "ag_all": (0,)}
    asked = set(comparison.arm_configs(f"{TABLE}:{MODELS}", {})["ag"].probes)
    assert asked == {"coreference", "reflexives", "gap", "dependencies"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("mlm=a,ag=b,data=texts", "give all three models, .* or none, to train them first; missing: ag_all"),
        (f"{MODELS},seeds=2", "expected seeds, and {seed} in mlm, ag and ag_all, or neither; got seeds=2"),
        (f"{MODELS},scale=small", "scale and steps are for models to be trained"),
        (f"{MODELS},probes=gap,coref", "expected coreference, reflexives, gap, dependencies, got 'coref'"),
        ("scale=small", "needs the argument data"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        config_reader.load(f"{TABLE}:{arguments}")


@pytest.mark.parametrize("argument", ["scale=small", "data=texts"])
def test_the_training_needs_novels_at_the_small_scale_only(argument):
    with pytest.raises(ValueError, match="give data with scale=small, and not with scale=paper"):
        config_reader.load(f"ag/table8_training:{argument}")


@pytest.mark.exhaustive  # unpacks and reads 60 MB
def test_the_novels_lack_what_litbank_annotates(shared):
    """The last words of every LitBank document are in the novel, but not in what the runs are trained on."""

    def letters(text):
        return re.sub(r"[^a-z0-9]", "", text.lower())

    _, skipped = trained(f"scale=small,data={shared / 'data'}")["mlm"].data.skip_words
    novels = str(shared / "data" / "litbank_novels" / "litbank_novels.tar.xz")
    whole, rest = (letters(" ".join(sources.documents(novels, skip_words=words))) for words in ((), (skipped,)))
    found = conll.read(shared / "data" / "litbank_coref").documents
    ends = [letters("".join(document.words[-40:])) for document in found]
    assert len(ends) == 100 and all(end in whole for end in ends)
    assert not any(end in rest for end in ends)
