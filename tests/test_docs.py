"""The pages of the documentation: each can be reached from the README, and no link leads nowhere."""

import pathlib
import re

import pytest

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
