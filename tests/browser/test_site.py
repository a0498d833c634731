"""The documentation site in a browser: accessibility, and pages on a narrow screen.

Skipped unless `bash launch/docs.sh` has built the site.
"""

import json
import os
import pathlib

import pytest

BUILT = pathlib.Path(__file__).resolve().parents[2] / "build" / "site"
# One page of every kind, such as prose, tables, settings, Python API, notebook, search.
PAGES = (
    "index.html",
    "guidance.html",
    "speed.html",
    "adversarial.html",
    "site/settings_pretraining.html",
    "site/python.html",
    "site/verbs.html",
    "site/notebooks/attention_maps.html",
    "search.html",
)


@pytest.fixture(params=PAGES)
def page(request, browser):
    path = BUILT / request.param
    if not path.exists():
        pytest.skip("no site in build/site: bash launch/docs.sh builds it")
    browser.driver.get(path.as_uri())
    yield request.param
    browser.run("localStorage.clear()")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_are_accessible(page, browser, theme):
    """axe-core finds nothing to complain about."""
    axe = pathlib.Path(os.environ.get("AG_JAX_AXE", ""))
    if not axe.is_file():
        pytest.skip("AG_JAX_AXE is not the path of axe-core's axe.min.js")
    browser.run("localStorage.setItem('theme', arguments[0])", theme)
    browser.driver.refresh()
    assert browser.run("return document.body.dataset.theme") == theme
    browser.run(axe.read_text())
    found = json.loads(
        browser.driver.execute_async_script(
            # Without `preload: false` axe would read style sheets by requests, which a browser forbids for files.
            "const done = arguments[0]; axe.run({preload: false}).then((r) => done(JSON.stringify(r.violations)));"
        )
    )
    assert [(each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in found] == []


def test_only_code_and_tables_scroll_sideways(page, browser):
    """On a telephone the text fits, and what is wider scrolls in its own box, by keys, too."""
    size = browser.driver.get_window_size()
    try:
        browser.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True},
        )
        browser.driver.refresh()
        wide, boxes = browser.run(
            """const boxes = [...document.querySelectorAll("pre, .table-wrapper")];
            const wide = boxes.filter((box) => box.scrollWidth > box.clientWidth);
            return [document.documentElement.scrollWidth, wide.map((box) => box.tabIndex)];"""
        )
        assert wide == 390 and set(boxes) <= {0}
    finally:
        browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.driver.set_window_size(size["width"], size["height"])
