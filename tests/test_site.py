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

from ag_jax.command_line.verbs import KINDS, VERBS, flags_of
from ag_jax.settings import config_files, schema
from tests.test_docs import PAGES, PYTHON

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS, BUILT = ROOT / "docs", ROOT / "build" / "site"
sys.path.insert(0, str(DOCS))

from site_builder import api, docstrings, links, pages, papers  # noqa: E402 (docs/ is not a package)

SITE = links.Site(DOCS, "")


@pytest.fixture(scope="module")
def generated():
    return dict(pages.generated(SITE))


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


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_page_of_settings_has_every_field_with_meaning_and_default(kind, generated):
    page = pages.SETTINGS[KINDS[kind][0]]
    described = rf"^```{{{pages.DIRECTIVES[page]}}} ([\w.]+)\n(.+)\\\n\*.+; default\* `(.+)`$"
    found = re.findall(described, generated[f"settings_{page}"], re.M)
    assert len(found) > 15 and sorted(name for name, _, _ in found) == sorted(leaves(kind))
    shown = {name: default for name, _, default in found}
    for name, value in schema.flat(schema.default(kind).to_dict()).items():
        if name in shown and isinstance(value, bool | int):
            assert shown[name] == str(value)


def test_the_page_of_verbs_has_every_verb_flag_and_example(generated):
    sections = dict(re.findall(r"^## ag-jax (\w+)\n(.*?)(?=^## )", generated["verbs"], re.M | re.S))
    assert sections.keys() == VERBS.keys() | pages.manual.EXPLAINING
    several = generated["verbs"].partition("## Several machines")[2]
    for name, verb in VERBS.items():
        assert all(example in sections[name] for example in verb.examples)
        for word, flag in flags_of(verb).items():
            is_there = f"`--{word}=" in several and "#several-machines" in sections[name]
            assert f"`--{word}" in sections[name] or is_there
            assert docstrings.plain(flag.meaning)[1:30] in generated["verbs"], word


def test_configs_and_records_are_on_their_pages(generated):
    of_configs = {name: text for name, text in generated.items() if name == "configs" or name.startswith("paper_")}
    for name, path in config_files.packaged().items():
        section, paper = docstrings.to_markdown(pages.manual.docstring_of(path)), name.partition("/")[0]
        found = [page for page, text in of_configs.items() if section in text]
        assert found == [f"paper_{paper}" if paper in papers.titles() else "configs"]
        after = of_configs[found[0]].partition(section)[2]
        assert all(f"\n`{argument}`\n: " in after for argument in config_files.arguments_of(name))
    for record in papers.reproductions.records():
        paper, link = record.config.partition("/")[0], f"(../../benchmarks/results/{record.path.name})"
        assert paper not in papers.titles() or link in generated[f"paper_{paper}"]
    assert "| ag | 5.097 | 4.959 | 5.855 | 300 |" in generated["paper_ag"]
    shown = {
        (0.0056, 0.0057): "0.0057 ± 0.0001",
        (0.5, 0.75): "0.625 ± 0.177",
        (10.0, 12.0): "11.00 ± 1.41",
        (1.2e-6, 3.2e-6): "2.2e-06 ± 1.4e-06",
        (0.0056,): "0.0056",
    }
    assert {values: papers._spread(values) for values in shown} == shown


def test_the_pages_of_the_python_api_have_what_the_documentation_imports():
    documented = {(module, name) for _, _, module, names in api.PUBLIC for name in names}
    modules = {module for _, _, module, _ in api.PUBLIC}
    code = "\n".join(code for page in PAGES for code in PYTHON.findall(page.read_text()))
    for module, names in re.findall(r"^from (ag_jax[\w.]*) import (.+)$", code, re.M):
        for name in names.split(", "):
            name = name.partition(" as ")[0]
            is_module = f"{module}.{name}" in modules
            assert is_module or module in modules, f"{module} is on no page of the Python API"
            is_shown = (module, name) in documented or is_module
            assert is_shown or not next(names for _, _, of, names in api.PUBLIC if of == module), (module, name)


def test_links_of_pages_and_notebooks():
    for link, target in {
        "runs.md#buckets": "runs.md#buckets",
        "https://jax.dev/x#y": "https://jax.dev/x#y",
        "../README.md#two-commands": "site/start.md#two-commands",
        "../CHANGELOG.md": "site/changelog.md",
        "search.md#grids": "site/searching.md#grids",
        "../notebooks/attention_maps.ipynb": "site/notebooks/attention_maps.ipynb",
        "../configs/quickstart.py": "../configs/quickstart.py",
    }.items():
        rest = f"`[d]({link})`\n```\n[e]({link})\n```\n"
        assert SITE.rewritten(f"a [b\nc]({link}) {rest}", DOCS, DOCS) == f"a [b\nc]({target}) {rest}"
    named = SITE.rewritten("[docs/runs.md](docs/runs.md), `docs/runs.md`", ROOT, DOCS / "site")
    assert named == "[](../runs.md), `docs/runs.md`"
    cells = [{"cell_type": kind, "source": ["see [b](../docs/", "runs.md#buckets)"]} for kind in ("markdown", "code")]
    folder = DOCS / "site" / "notebooks"
    found = json.loads(pages.with_links(json.dumps({"cells": cells}), SITE, ROOT / "notebooks", folder))["cells"]
    assert found == [{"cell_type": "markdown", "source": "see [b](../../runs.md#buckets)"}, cells[1]]
    still, page = {"metadata": {"still": True}, "data": {"image/png": ""}}, {"data": {"text/html": ""}}
    outputs = [[still, page], [still], [page, {"name": "stdout"}]]
    cells = [{"cell_type": "code", "outputs": of_cell} for of_cell in outputs]
    found = json.loads(pages.with_links(json.dumps({"cells": cells}), SITE, ROOT / "notebooks", folder))["cells"]
    assert [cell["outputs"] for cell in found] == [[page], *outputs[1:]]
    site = dataclasses.replace(SITE, address="https://host/o/ag_jax/blob/main/")
    text, root = "[`a`](../configs/quickstart.py) [all](../benchmarks/results/)", "https://host/o/ag_jax/blob/main"
    shown = f"[`a`]({root}/configs/quickstart.py) [all]({root}/benchmarks/results)"
    assert site.rewritten(text, DOCS, DOCS) == shown
    assert SITE.rewritten(text, DOCS, DOCS / "site") == "[`a`](../../configs/quickstart.py) all"
    with pytest.raises(ValueError, match="repository"):
        SITE.rewritten("[a](../../b)", DOCS, DOCS)


def test_docstrings_as_restructured_text_and_as_markdown():
    text = "Sum of *a* * b.\n\nrate, x: one `b`\n    more.\nother: no entry\n\n    code(1)\n\nend_"
    entry_after_code = "    f(1)\n\nx: one\n    more."
    assert "\n".join(docstrings.to_rest(entry_after_code.split("\n"), {"x"})).endswith("``x``\n    one\n    more.")
    assert "\n".join(docstrings.to_rest(text.split("\n"), {"rate", "x"})) == (
        "Sum of *a* \\* b.\n\n\n``rate``, ``x``\n    one ``b``\n    more.\n\nother: no entry\n\n\n"
        ".. code-block:: python\n\n    code(1)\n\n\nend\\_"
    )
    text = "A <b> of *c* and `d_*`.\n\n    ag-jax train \\\n        --x\n\n    a  b\n"
    assert docstrings.to_markdown(text) == (
        "A \\<b> of \\*c\\* and `d_*`.\n\n```bash\nag-jax train \\\n    --x\n```\n\n```text\na  b\n```"
    )


# --- The built site ----------------------------------------------------------------------------------

LOADED = {"script": ("src",), "link": ("href",), "img": ("src", "srcset"), "iframe": ("src",), "source": ("src",)}


class Page(html.parser.HTMLParser):
    """Parser of a page: the files that it loads, the targets of its links, and its anchors."""

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


IF_BUILT = pytest.mark.skipif(not (BUILT / "index.html").exists(), reason="the site is not built: bash launch/docs.sh")


@IF_BUILT
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_search_knows_every_setting_by_its_name(kind):
    """tests/browser/test_site.py searches for some of them."""
    name = pages.SETTINGS[KINDS[kind][0]]
    directive, page = pages.DIRECTIVES[name], f"{links.GENERATED}/settings_{name}"
    index = json.loads((BUILT / "searchindex.js").read_text().removeprefix("Search.setIndex(").removesuffix(")"))
    found = {}
    for prefix, entries in index["objects"].items():
        for document, _, _, anchor, last in entries:
            if index["docnames"][document] == page:
                setting = f"{prefix}.{last}".removeprefix(".")
                found[setting] = f"{directive}-{setting}" if anchor == "-" else anchor
    assert found.keys() == set(leaves(kind))
    assert set(found.values()) <= Page((BUILT / f"{page}.html").read_text()).anchors
    assert all(anchor.startswith(directive) for anchor in found.values())


@IF_BUILT
def test_built_pages_load_nothing_from_elsewhere_and_their_links_lead_somewhere():
    built, count = {path: Page(path.read_text()) for path in BUILT.rglob("*.html")}, 0
    for path, page in built.items():
        assert [one for one in page.loaded if re.match(r"(\w+:)?//", one)] == [], path
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc or not (parts.path or parts.fragment):
                continue
            count += 1
            target = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
            assert target.exists(), (path.name, link)
            assert target.suffix not in (".md", ".ipynb"), f"{path.name}: {link} leads to the source of a page"
            if parts.fragment and target in built:
                assert urllib.parse.unquote(parts.fragment) in built[target].anchors, (path.name, link)
    assert len(built) > 30 and count > 1000
    for path in BUILT.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", path.read_text()), path
    assert not list(BUILT.rglob("*mathjax*"))
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):  # have their outputs
        text = (BUILT / links.GENERATED / "notebooks" / f"{notebook.stem}.html").read_text()
        code = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
        assert text.count('class="cell_output') >= len(code) // 2 and "Traceback (most recent" not in text
