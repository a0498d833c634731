"""The pages of the documentation: each can be reached from the README, and no link leads nowhere."""

import pathlib
import re

import jax
import jax.numpy as jnp
import pytest

from ag_jax.objectives.supervised import Supervised
from tests import tiny

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
    """Of a text of n tokens n units, and n * n are there."""
    page = (ROOT / "docs" / "adversarial.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {"__name__": "page"}
    exec(code, names)
    model, batch = tiny.task_model("classification"), tiny.task_batch("classification")
    objective = names["attacked"](Supervised(model), model.config.layers)
    rngs = {"dropout": jax.random.key(0)}
    outcome = objective(tiny.params(model, batch), batch, rngs, jnp.int32(3))
    lengths = (batch["sequences"] > 0).sum(-1)
    total_N, weight_N = outcome.metrics["masked/layers"]
    assert total_N.tolist() == [lengths.sum()] * 2 and weight_N.tolist() == [(lengths**2).sum()] * 2
    assert outcome.totals["not_itself"] > 0
