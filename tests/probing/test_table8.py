"""`ag/table8_probes`: the runs that it trains, the models that it is given, and what is asked of them."""

import re

import pytest

from ag_jax.data.probes import conll
from ag_jax.data.records import sources
from ag_jax.pretraining import build
from ag_jax.probing import comparison
from ag_jax.settings import config_files, schema
from tests.conftest import REPOSITORY

TABLE = str(REPOSITORY / "configs" / "ag" / "table8_probes.py")


def trained(arguments):
    """Return the config of the run that each arm trains."""
    configs = comparison.arm_configs(config_files.load(f"{TABLE}:{arguments}", {}))[0]
    return {arm: config_files.load(config.train).settings for arm, config in configs.items()}


def test_the_runs_differ_in_guidance():
    """Small runs differ in nothing else, with half of six heads or all; the paper's have other warm-ups, too."""
    runs = trained("scale=small,data=texts/")
    guided = [("next", 1), ("prev", 1)]
    assert [list(build.assignment(config).counts) for config in runs.values()] == [
        [],
        [*guided, ("first", 1)],
        [*guided, ("first", 4)],
    ]
    flat = [schema.flat(schema.to_dict(config)) for config in runs.values()]
    assert {key for key in flat[0] if len({str(of[key]) for of in flat}) > 1} == {"guidance.mode", "guidance.fraction"}
    assert (runs["plain"].data.source, runs["plain"].data.skip_words) == ("sotu,texts/litbank_novels", (0, 3500))
    runs = trained("data=texts")
    assert [config.guidance.fraction for config in list(runs.values())[1:]] == [0.5, 1.0]
    assert [config.optimizer.warmup_steps for config in runs.values()] == [10_000, 0, 0]
    assert all((of.model.layers, of.model.width, of.training.batch_size) == (12, 768, 84) for of in runs.values())


def test_models_that_exist():
    configs = comparison.arm_configs(
        config_files.load(f"{TABLE}:plain=a{{seed}},ag=b{{seed}},ag_all=c,data=texts,seeds=2", {})
    )[0]
    assert [(arm, config.checkpoint, config.seeds) for arm, config in configs.items()] == [
        *(("plain", "a{seed}", (0, 1)), ("ag", "b{seed}", (0, 1)), ("ag_all", "c", (0,)))
    ]
    probes = {name: (probe.data, probe.modes) for name, probe in configs["plain"].probes.items()}
    assert set(probes) == {"coreference", "reflexives", "gap", "dependencies"}
    assert probes["coreference"] == ("texts/litbank_coref", ("mentions", "words"))
    assert probes["reflexives"] == (None, ("positions", "words"))


@pytest.mark.exhaustive  # unpacks and reads 60 MB
def test_the_novels_lack_what_litbank_annotates(shared):
    """The last words of every LitBank document are in the novel, but not in what the runs are trained on."""

    def letters(text):
        return re.sub(r"[^a-z0-9]", "", text.lower())

    _, skipped = trained(f"scale=small,data={shared / 'data'}")["plain"].data.skip_words
    novels = str(shared / "data" / "litbank_novels" / "litbank_novels.tar.xz")
    whole, rest = (letters(" ".join(sources.documents(novels, skip_words=words))) for words in ((), (skipped,)))
    found = conll.read(shared / "data" / "litbank_coref").documents
    ends = [letters("".join(document.words[-40:])) for document in found]
    assert len(ends) == 100 and all(end in whole for end in ends)
    assert not any(end in rest for end in ends)
