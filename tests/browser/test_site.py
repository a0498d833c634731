"""The documentation site in a browser: accessibility, pages on a narrow screen, the search, and copied code.

Skipped unless `bash launch/docs.sh` has built the site.
"""

import contextlib
import functools
import http.server
import json
import os
import pathlib
import re
import threading

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
    "site/python_attention.html",
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
    browser.wait(f"document.body?.dataset.theme === '{theme}'", "the colours")
    browser.run(axe.read_text())
    found = json.loads(
        browser.driver.execute_async_script(
            # Without `preload: false` axe would read style sheets by requests, which a browser forbids for files. The
            # viewer in a frame has tests of its own.
            "axe.run({preload: false, iframes: false}).then((r) => arguments[0](JSON.stringify(r.violations)));"
        )
    )
    assert [(each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in found] == []


@contextlib.contextmanager
def screen(browser, width, height):
    """Load the page again on a screen of this size, in pixels, within the context."""
    size = browser.driver.get_window_size()
    as_screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    try:
        browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", as_screen)
        browser.driver.refresh()
        yield
    finally:
        browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.driver.set_window_size(size["width"], size["height"])


def test_only_code_and_tables_scroll_sideways(page, browser):
    """On a telephone the text fits, what is wider scrolls in its own box, by keys, too, and no flag is broken."""
    with screen(browser, 390, 800):
        wide, boxes, broken = browser.run(
            """const boxes = [...document.querySelectorAll("pre, .table-wrapper")];
            const wide = boxes.filter((box) => box.scrollWidth > box.clientWidth);
            const words = [...document.querySelectorAll(".highlight-bash .nx")];
            const broken = words.filter((word) => word.textContent.length < 30 && word.offsetHeight > 30);
            return [document.documentElement.scrollWidth, wide.map((box) => box.tabIndex),
              broken.map((word) => word.textContent)];"""
        )
        assert wide == 390 and set(boxes) <= {0} and broken == []


@pytest.fixture(scope="module")
def address():
    """The address of the site on a server: what a search finds is read from other pages, which files may not do."""
    if not BUILT.exists():
        pytest.skip("no site in build/site: bash launch/docs.sh builds it")

    class Silent(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *given):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Silent, directory=BUILT)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize(
    ("asked", "found"),
    {
        "guidance.alpha": "pretraining.html#setting-guidance.alpha",
        "--config.guidance.alpha_rule": "pretraining.html#setting-guidance.alpha_rule",
        "training.steps": "pretraining.html#setting-training.steps",
        "seed": "pretraining.html#setting-seed",
        "data.source": "pretraining.html#setting-data.source",
        "model.layers": "pretraining.html#setting-model.layers",
        "optimizer.learning_rate": "pretraining.html#setting-optimizer.learning_rate",
        "adversarial.method": "pretraining.html#setting-adversarial.method",
        "comparison.seeds": "pretraining.html#setting-comparison.seeds",
        "keep": "finetuning.html#finetuning-setting-keep",
        "tasks.NAME.max_length": "finetuning.html#finetuning-setting-tasks.NAME.max_length",
    }.items(),
)
def test_the_search_finds_a_setting_first(asked, found, address, browser):
    browser.driver.get(f"{address}/search.html?q={asked}")
    browser.wait("document.querySelector('#search-results li a')", "a result")
    first = browser.run("return document.querySelector('#search-results li a').href")
    assert first == f"{address}/site/settings_{found}"
    browser.driver.get(first)
    assert browser.run("return document.querySelector(':target').innerText").startswith(asked.removeprefix("--config."))


def test_code_is_copied_as_it_is_written(address, browser):
    """Commands, in which each word is an element of its own, and Python."""
    browser.driver.get(f"{address}/index.html")
    browser.wait("document.querySelectorAll('button.copybtn').length > 2", "the buttons")
    browser.run("addEventListener('copy', (event) => { window.copied = event.target.value; })")
    index, readme = ((BUILT.parents[1] / name).read_text() for name in ("docs/index.md", "README.md"))
    install, inspect = re.findall(r"```bash\n(.*?)```", index, re.DOTALL)
    (python,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    for number, written in enumerate((install, python, inspect)):
        button = browser.driver.find_elements("css selector", "button.copybtn")[number]
        browser.run("arguments[0].scrollIntoView({behavior: 'instant', block: 'center'})", button)
        button.click()  # a script may not copy without one
        browser.wait("window.copied", "the copy")
        assert browser.run("const text = window.copied; window.copied = ''; return text") in (written, written.strip())


def test_the_first_page_fits_a_screen_and_shows_the_viewer_below(address, browser):
    browser.driver.get(f"{address}/index.html")
    with screen(browser, 1280, 900):
        assert 0 < browser.run("return document.querySelector('.cards').getBoundingClientRect().bottom") < 900
    try:
        browser.run("document.querySelector('iframe').scrollIntoView()")
        browser.driver.switch_to.frame(browser.driver.find_element("css selector", "iframe"))
        browser.wait("document.documentElement.dataset.drawn", "the viewer to be drawn")
        assert "ag, step 1,100: 8 layers of 6 heads" in browser.run("return document.body.innerText")
    finally:
        browser.driver.switch_to.default_content()
