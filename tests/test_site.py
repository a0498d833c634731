"""The documentation site: generated pages leave nothing out, links lead to pages or files, and the built pages load
nothing from elsewhere.

The last part needs the site that `bash launch/docs.sh` builds, and is skipped without it.
"""

import dataclasses
import html.parser
import json
import pathlib
import re
import sys
import typing
import urllib.parse

import pytest

from ag_jax import cli, config_reader
from ag_jax.command_line.verbs import FLAGS, VERBS
from tests.test_docs import PAGES, PYTHON

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS, BUILT = ROOT / "docs", ROOT / "build" / "site"
sys.path.insert(0, str(DOCS))

from site_builder import api, docstrings, links, pages, papers  # noqa: E402 (docs/ is not a package)

SITE = links.Site(DOCS, "")


@pytest.fixture(scope="module")
def generated():
    return dict(pages.generated(SITE))


# --- Generated pages ---------------------------------------------------------------------------------


def leaves(kind, path=""):
    """Yield the path of each setting of a dataclass; NAME stands for the names of a section."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        inner, below = hints[field.name], f"{path}{field.name}."
        if typing.get_origin(inner) is dict:
            inner, below = typing.get_args(inner)[1], f"{below}NAME."
        if dataclasses.is_dataclass(inner):
            yield from leaves(inner, below)
        else:
            yield path + field.name


@pytest.mark.parametrize("kind", cli.KINDS, ids=lambda kind: kind.__name__)
def test_the_page_of_settings_has_every_field_with_meaning_and_default(kind, generated):
    text = generated[f"settings_{pages.SETTINGS[pages.manual.purpose(kind)]}"]
    found = re.findall(r"^`([\w.]+)`\n: (.+)(?:\\|\n)\n?  \*.+; default\* `(.+)`$", text, re.M)
    assert len(found) > 15 and sorted(name for name, _, _ in found) == sorted(leaves(kind))
    shown = {name: default for name, _, default in found}
    for name, value in config_reader.flat(config_reader.default(kind).to_dict()).items():
        if name in shown and isinstance(value, bool | int):
            assert shown[name] == str(value)


def test_types_choices_and_ranges_are_on_the_page_of_settings(generated):
    text = generated["settings_pretraining"]
    assert "*One of none, loss, bias; default* `none`" in text
    assert "*A number above 0 and at most 1; default* `0.5`" in text


def test_the_page_of_verbs_has_every_verb_flag_and_example(generated):
    sections = dict(re.findall(r"^## ag-jax (\w+)\n(.*?)(?=^## )", generated["verbs"], re.M | re.S))
    assert sections.keys() == VERBS.keys()
    several = generated["verbs"].partition("## Several machines")[2]
    for name, verb in VERBS.items():
        assert all(example in sections[name] for example in verb.examples)
        for flag in verb.flags:
            assert f"`--{flag}" in sections[name] or (
                f"`--{flag}=" in several and "#several-machines" in sections[name]
            )
    for flag in {flag for verb in VERBS.values() for flag in verb.flags}:
        assert docstrings.plain(FLAGS[flag].meaning)[1:30] in generated["verbs"], flag


def test_every_config_is_on_one_page_with_its_arguments(generated):
    of_configs = {name: text for name, text in generated.items() if name == "configs" or name.startswith("paper_")}
    for name in config_reader.packaged():
        section = docstrings.to_markdown(pages.manual.docstring_of(config_reader.packaged()[name]))
        assert [page for page, text in of_configs.items() if section in text] == [
            f"paper_{name.partition('/')[0]}" if name.partition("/")[0] in papers.titles() else "configs"
        ]
        (text,) = [text for text in of_configs.values() if section in text]
        after = text.partition(section)[2]
        assert all(f"\n`{argument}`\n: " in after for argument in config_reader.choices_of(name))


def test_every_record_of_a_paper_is_on_its_page_with_its_numbers(generated):
    for record in papers.reproductions.records():
        paper = record.config.partition("/")[0]
        if paper not in papers.titles():
            continue
        assert f"[{record.path.stem}](../../benchmarks/results/{record.path.name})" in generated[f"paper_{paper}"]
    assert "| ag | 5.097 | 4.959 | 5.855 | 300 |" in generated["paper_ag"]
    assert "| ag | validation loss | -0.062 | -0.084 to -0.039 | .012 (Holm) |" in generated["paper_ag"]
    assert "| sst2 | accuracy | 0.716 ± " in generated["paper_ag"]
    assert "| ag | `attention_dropout0-lr0.002-warmup33` | 18 |" in generated["paper_ag"]
    assert "| mlm | 8 of 18 | 44% |" in generated["paper_ag"]
    assert "Each line is a run or a trial." in generated["paper_asa"]


def test_a_mean_and_its_deviation_have_as_many_digits():
    shown = {
        (0.0056, 0.0057): "0.0057 ± 0.0001",
        (0.5, 0.75): "0.625 ± 0.177",
        (10.0, 12.0): "11.00 ± 1.41",
        (1.2e-6, 3.2e-6): "2.2e-06 ± 1.4e-06",
        (0.0056,): "0.0056",
    }
    assert {values: papers._spread(values) for values in shown} == shown


def test_the_python_page_has_what_the_documentation_imports():
    documented = {(module, name) for _, _, module, names in api.PUBLIC for name in names}
    modules = {module for _, _, module, _ in api.PUBLIC}
    used = set()
    for page in PAGES:
        for code in PYTHON.findall(page.read_text()):
            used |= set(re.findall(r"^from (ag_jax[\w.]*) import (.+)$", code, re.M))
    for module, names in used:
        for name in names.split(", "):
            name = name.partition(" as ")[0]
            assert f"{module}.{name}" in modules or module in modules, f"{module} is not on the page of the Python API"
            is_shown = (module, name) in documented or f"{module}.{name}" in modules
            assert is_shown or not next(names for _, _, of, names in api.PUBLIC if of == module), (module, name)


# --- Links and docstrings ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("guide.md#settings", "guide.md#settings"),
        ("#settings", "#settings"),
        ("https://jax.dev/x#y", "https://jax.dev/x#y"),
        ("../README.md", "site/start.md"),
        ("../README.md#two-commands", "site/start.md#two-commands"),
        ("../CHANGELOG.md", "site/changelog.md"),
        ("search.md#grids", "site/searching.md#grids"),
        ("../notebooks/attention_maps.ipynb", "site/notebooks/attention_maps.ipynb"),
        ("../configs/quickstart.py", "../configs/quickstart.py"),
    ],
)
def test_links_of_a_page(link, target):
    assert SITE.rewritten(f"a [b\nc]({link}) `[d]({link})`\n```\n[e]({link})\n```\n", DOCS, DOCS) == (
        f"a [b\nc]({target}) `[d]({link})`\n```\n[e]({link})\n```\n"
    )


def test_a_page_is_named_by_its_title():
    assert SITE.rewritten("[docs/guide.md](docs/guide.md), `docs/guide.md`", ROOT, DOCS / "site") == (
        "[](../guide.md), `docs/guide.md`"
    )


def test_links_of_a_notebook():
    cells = [{"cell_type": kind, "source": ["see [b](../docs/", "guide.md#settings)"]} for kind in ("markdown", "code")]
    folder = DOCS / "site" / "notebooks"
    found = json.loads(pages.with_links(json.dumps({"cells": cells}), SITE, ROOT / "notebooks", folder))["cells"]
    assert found == [{"cell_type": "markdown", "source": "see [b](../../guide.md#settings)"}, cells[1]]


def test_links_to_files_lead_to_the_address_of_the_repository():
    site = dataclasses.replace(SITE, address="https://host/o/ag_jax/blob/main/")
    text = "[`quickstart`](../configs/quickstart.py) [all](../benchmarks/results/)"
    root = "https://host/o/ag_jax/blob/main"
    assert site.rewritten(text, DOCS, DOCS) == (
        f"[`quickstart`]({root}/configs/quickstart.py) [all]({root}/benchmarks/results)"
    )
    assert SITE.rewritten(text, DOCS, DOCS / "site") == "[`quickstart`](../../configs/quickstart.py) all"
    with pytest.raises(ValueError, match="out of the repository"):
        SITE.rewritten("[a](../../b)", DOCS, DOCS)


def test_docstrings_as_restructured_text():
    text = "Sum of *a*.\n\nrate, x: one `b`\n    more.\nother: no entry\n\n    code(1)\n\nend_"
    assert "\n".join(docstrings.to_rest(text.split("\n"), {"rate", "x"})) == (
        "Sum of \\*a\\*.\n\n\n``rate``, ``x``\n    one ``b``\n    more.\n\nother: no entry\n\n\n"
        ".. code-block:: python\n\n    code(1)\n\n\nend\\_"
    )


def test_docstrings_as_markdown():
    text = "A <b> of *c* and `d_*`.\n\n    ag-jax train \\\n        --x\n\n    a  b\n"
    assert docstrings.to_markdown(text) == (
        "A \\<b> of \\*c\\* and `d_*`.\n\n```bash\nag-jax train \\\n    --x\n```\n\n```text\na  b\n```"
    )


# --- The built site ----------------------------------------------------------------------------------

needs_build = pytest.mark.skipif(
    not (BUILT / "index.html").exists(), reason="the site is not built: bash launch/docs.sh"
)
LOADED = {"script": ("src",), "link": ("href",), "img": ("src", "srcset"), "iframe": ("src",), "source": ("src",)}


class Page(html.parser.HTMLParser):
    """Parser of an HTML page that collects the files it loads, its links and anchors, and the pages in its frames."""

    def __init__(self, text):
        super().__init__()
        self.loaded, self.links, self.anchors = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.loaded += [found[name] for name in LOADED.get(tag, ()) if found.get(name)]
        self.links += [found["href"]] if tag == "a" and found.get("href") else []
        self.anchors |= {found[name] for name in ("id", "name") if found.get(name)}
        if found.get("srcdoc"):
            self.loaded += Page(found["srcdoc"]).loaded


@pytest.fixture(scope="module")
def built():
    found = {path: Page(path.read_text()) for path in BUILT.rglob("*.html")}
    assert len(found) > 30
    return found


@needs_build
def test_pages_load_nothing_from_elsewhere(built):
    for path, page in built.items():
        assert [one for one in page.loaded if re.match(r"(\w+:)?//", one)] == [], path
    for path in BUILT.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", path.read_text()), path
    assert not list(BUILT.rglob("*mathjax*"))


@needs_build
def test_links_between_pages_lead_somewhere(built):
    count = 0
    for path, page in built.items():
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc or not (parts.path or parts.fragment):
                continue
            count += 1
            target = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
            assert target.exists(), (path.name, link)
            if parts.fragment and target in built:
                assert urllib.parse.unquote(parts.fragment) in built[target].anchors, (path.name, link)
    assert count > 1000


@needs_build
def test_notebooks_were_executed(built):
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        page = BUILT / links.GENERATED / "notebooks" / f"{notebook.stem}.html"
        code = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
        text = page.read_text()
        assert text.count('class="cell_output') >= len(code) // 2 and "Traceback (most recent" not in text
