"""The pages of the documentation: all are reachable from the README, no link is broken, and their Python code runs."""

import dataclasses
import pathlib
import re

import jax
import jax.numpy as jnp
import pytest

from ag_jax import config_reader
from ag_jax.data import pipeline
from ag_jax.data.config import DataConfig, TokenizerConfig
from ag_jax.finetuning.config import FinetuningConfig
from ag_jax.finetuning.job import make_head
from ag_jax.interop import finetuned
from ag_jax.interop.finetuned import FineTuned
from ag_jax.models.config import DecoderConfig
from ag_jax.models.decoding_config import DecodingConfig
from ag_jax.pretraining import run, workloads
from ag_jax.pretraining.config import ExperimentConfig
from tests import tiny
from tests.finetuning import tasks

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")  # without those to other places, which have a colon


def targets(page):
    return [(page.parent / link).resolve() for link in LINK.findall(page.read_text())]


def test_every_page_is_linked_from_the_readme():
    assert {page for page in PAGES if page.parent.name == "docs"} <= set(targets(ROOT / "README.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    assert [target for target in targets(page) if not target.exists()] == []


def test_the_attack_of_ones_own_masks_what_its_page_says():
    """The custom attack masks n of the n * n units of a text of n tokens."""
    page = (ROOT / "docs" / "adversarial.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {"__name__": "page"}
    exec(code, names)
    model, batch = tiny.task_model("classification"), tiny.task_batch("classification")
    objective = names["attacked"](tiny.supervised(model), model.config.layers)
    rngs = {"dropout": jax.random.key(0)}
    outcome = tiny.evaluate(objective, tiny.params(model, batch), batch, rngs, jnp.int32(3))
    lengths = (batch["segment_ids"] > 0).sum(-1)
    total_N, weight_N = outcome.metrics["masked/layers"]
    assert total_N.tolist() == [lengths.sum()] * 2 and weight_N.tolist() == [(lengths**2).sum()] * 2
    assert outcome.totals["not_itself"] > 0


@pytest.fixture(scope="module")
def readers_place(tmp_path_factory):
    """Make the folder in which a reader runs the examples: the run of the quickstart, a run that translates, and a
    trial with saved weights, and a file of texts.
    """
    place = tmp_path_factory.mktemp("reader")
    encoder = dataclasses.replace(tasks.pretrained().config, max_length=64)
    tasks.TOKENIZER.save(place / "tokenizer")
    data = DataConfig(sequence_length=64, tokenizer=TokenizerConfig(path=str(place / "tokenizer")))
    config = ExperimentConfig(data=data, model=encoder)
    params = tiny.params(workloads.reference_model(config, tasks.TOKENIZER), tiny.batch())
    run.write(config, place / "runs" / "quickstart" / "ag-seed0", tasks.TOKENIZER, params)
    translating = dataclasses.replace(
        config,
        data=dataclasses.replace(data, source="train.en", target="train.de", format="parallel"),
        model=dataclasses.replace(encoder, positions="sinusoidal", position_offset=0, token_types=0),
        decoder=DecoderConfig(layers=1),
        decoding=DecodingConfig(max_length="1.0x+2"),
    )
    params = tiny.params(
        workloads.reference_model(translating, tasks.TOKENIZER), pipeline.empty_batch(translating.data, rows=1)
    )
    run.write(translating, place / "runs" / "mine", tasks.TOKENIZER, params)
    head = make_head(tasks.task("classification"), "roberta", 64)
    tuned = FineTuned(
        head, encoder, tasks.TOKENIZER, tiny.params(head.model(encoder), tiny.task_batch("classification"))
    )
    (place / "mine.txt").write_text("\n".join([" ".join(tasks.WORDS)] * 5))
    finetuned.save(tuned, place / "runs" / "glue" / "sst2" / "lr2e-05-bs32-seed0" / "weights")
    return place


PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
EXAMPLES = [
    pytest.param(page.name, number, id=f"{page.name}-{number}")
    for page in PAGES
    for number, _ in enumerate(PYTHON.findall(page.read_text()))
    if page.name != "adversarial.md"  # above
]


@pytest.mark.parametrize(("page", "number"), EXAMPLES)
def test_examples_run_where_a_reader_runs_them(page, number, readers_place, monkeypatch):
    monkeypatch.chdir(readers_place)
    (path,) = [path for path in PAGES if path.name == page]
    code = PYTHON.findall(path.read_text())[number]
    names = {"__name__": "page"}
    if "model.apply" in code:
        model, batch = tiny.model(), tiny.batch()
        names |= {"model": model, "batch": batch, "params": tiny.params(model, batch)}
    exec(compile(code, f"{page}, example {number}", "exec"), names)
    if "get_config" in names:
        config = names["get_config"]()
        kind = config_reader.kind_of(config, (FinetuningConfig, ExperimentConfig))
        parsed = config_reader.parse(kind, config)
        assert parsed.search.grids if kind is ExperimentConfig else parsed.ordered_tasks
    if "open_run" in code:
        assert names["attention"].weights_NHQK.shape[:2] == (2, 2)


def test_the_examples_are_found():
    assert {page.split("-")[0] for page in (param.id for param in EXAMPLES)} >= {
        "README.md",
        "guide.md",
        "pipelines.md",
        "search.md",
        "translation.md",
    }
