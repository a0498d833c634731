"""The viewer in a browser: what it draws is what Python measured, by the mouse, the keys and the address."""

import dataclasses
import itertools
import json
import os
import pathlib
import re
import time

import numpy as np
import pytest

from ag_jax.viewer import page as pages
from ag_jax.viewer.notebook import NotebookView
from tests.browser.expected import save, signed_colours, weight_colours
from tests.viewer import views
from tests.viewer.views import HOSTILE

ROWS, COLUMNS = 6, 9


@pytest.fixture(scope="module")
def cells():
    random = np.random.default_rng(0)
    return [(int(random.integers(ROWS)), int(random.integers(COLUMNS))) for _ in range(100)]


@pytest.fixture(scope="module")
def plain():
    """A view that is not square, so that a transposed map would not fit."""
    rows, columns = [f"row{at}" for at in range(ROWS)], [f"column{at}" for at in range(COLUMNS)]
    weights = views.attention(2, 3, ROWS, COLUMNS)
    mass_NH = np.array([[weights[n, h, :, 2].mean() for h in range(3)] for n in range(2)])
    chance_N = np.full(2, 1 / COLUMNS)
    target = pages.Target(np.eye(COLUMNS)[[2] * ROWS], np.arange(ROWS) < 5, "[Next]", "#0072B2", mass_NH, chance_N)
    return views.view(
        "plain", tokens=columns, rows=rows, weights_NHQK=weights, targets={"next": target}, special=(0, 8)
    )


@pytest.fixture(scope="module")
def other(plain):
    """Another model's attention to the same tokens."""
    return views.view(
        "other",
        tokens=plain.columns,
        rows=plain.rows,
        weights_NHQK=views.attention(2, 3, ROWS, COLUMNS, seed=5),
        targets={},
        guided=(),
        model="another",
        special=(0, 8),
    )


@pytest.fixture(scope="module")
def path(plain, other, tmp_path_factory):
    strange = views.view(
        "strange", tokens=["other", *plain.columns[1:]], rows=plain.rows, targets={}, weights_NHQK=plain.weights_NHQK
    )
    return save(tmp_path_factory.mktemp("page") / "maps.html", [plain, other, strange])


@pytest.mark.parametrize("detail", ["full", "picture"])
@pytest.mark.parametrize(("layer", "head"), [(1, 2), (0, 1)])
def test_a_cell_has_the_colour_of_its_weight(browser, plain, cells, tmp_path, detail, layer, head):
    browser.open(save(tmp_path / "m.html", [plain], detail=detail), f"l={layer}&h={head}")
    weights = np.array([plain.weights_NHQK[layer, head, q, k] for q, k in cells])
    error = np.abs(np.array(browser.colours(cells)) - weight_colours(np.sqrt(weights)))
    # A level of the square root is 1/31 wide in a picture, and colours change by up to 400 over the scale.
    assert error.max() <= (8 if detail == "full" else 14)


def test_the_grid_has_all_heads_in_their_places(browser, plain, path):
    """Each with its name, the mass towards its target and its picture; the letter says which pattern guides it."""
    browser.open(path)
    cells = "[...document.querySelectorAll('.head')]"
    labels = browser.run(f"return {cells}.map((cell) => cell.getAttribute('aria-label'))")
    mass = plain.targets["next"].mass_NH
    for (n, h), label in zip(np.ndindex(2, 4), labels, strict=True):
        guided = f", guided towards [Next], with {mass[n, 0]:.2f} of its attention" if h == 0 else ""
        assert label == f"layer {n}, {f'head {h}' if h < 3 else 'mean of heads'}{guided}"
    letters = browser.run(f"return {cells}.map((one) => one.querySelector('.letter')?.textContent)")
    assert letters == ["N", None, None, None] * 2
    found = browser.run(
        """return [...document.querySelectorAll(".head canvas")].map((canvas) =>
        Array.from(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data));"""
    )
    weights_NHQK = np.concatenate([plain.weights_NHQK, plain.weights_NHQK.mean(1, keepdims=True)], axis=1)
    for (layer, head), pixels in zip(np.ndindex(2, 4), found, strict=True):
        drawn = np.array(pixels).reshape(ROWS, COLUMNS, 4)[..., :3]
        expected = weight_colours(np.sqrt(weights_NHQK[layer, head].ravel())).reshape(ROWS, COLUMNS, 3)
        assert np.abs(drawn - expected).max() <= 14


def test_the_other_scales(browser, plain, cells, path):
    browser.open(path, "l=1&h=1")
    weights = np.array([plain.weights_NHQK[1, 1, q, k] for q, k in cells])
    browser.act(lambda: browser.press("2"))
    expected = weight_colours(np.clip((np.log2(weights * COLUMNS) + 2) / 8, 0, 1))
    large = weights > 0.02  # of smaller ones, the stored square root has few levels on a logarithmic scale
    assert np.abs(np.array(browser.colours(cells)) - expected)[large].max() <= 8
    browser.act(lambda: browser.press("3"))
    expected = weight_colours(np.sqrt(weights / plain.weights_NHQK[1, 1].max()))
    assert np.abs(np.array(browser.colours(cells)) - expected).max() <= 6
    assert "share of this map's largest weight" in browser.run("return document.querySelector('#bar canvas').ariaLabel")


@pytest.mark.parametrize("keys", ["2", "d", "sc"])
def test_words_have_the_colours_of_the_map(browser, path, keys):
    """Whatever the scale, not those of their share of the row; and a legend names the row and the scale."""
    browser.open(path, "l=1&h=1&r=3&c=4&p=cividis")
    for key in keys:
        browser.act(lambda key=key: browser.press(key))
    cells = [(q, 4) for q in range(ROWS)] if "c" in keys else [(3, k) for k in range(COLUMNS)]
    strips = browser.run(
        """return [...document.querySelectorAll("#text p")].map((line) => [...line.querySelectorAll("span")].map(
        (span) => getComputedStyle(span).backgroundColor.match(/[0-9]+/g).map(Number)));"""
    )
    words, others = reversed(strips) if "c" in keys else strips
    assert words == browser.colours(cells) and len({*map(tuple, words)}) > 2
    assert {*map(tuple, others)} == {(0, 0, 0, 0)}  # no colour
    assert ("column “column4” (4)" if "c" in keys else "row “row3” (3)") in browser.text("text-legend")


def test_without_special_tokens_rows_are_scaled(browser, plain, path):
    browser.open(path, "l=1&h=1&r=3&c=4")
    browser.act(lambda: browser.press("s"))
    row = plain.weights_NHQK[1, 1, 3].copy()
    row[[0, 8]] = 0
    row /= row.sum()
    (said,) = re.findall(r"“column4” \(4\): ([.0-9]+) \(([.0-9]+) × even\)", browser.text("line"))
    assert [float(one) for one in said] == [pytest.approx(row[4], abs=0.008), pytest.approx(7 * row[4], abs=0.08)]
    assert "without special tokens" in browser.text("maps")
    drawn = np.array(browser.colours([(3, k) for k in range(COLUMNS)]))
    assert np.abs(drawn - weight_colours(np.sqrt(row))).max() <= 8


def test_even_attention_is_that_within_the_window_of_a_layer(browser, tmp_path):
    """Of nine tokens, those of the second layer see two on each side: 3, 4, 5, 5, 5, 5, 5, 4 and 3 in all."""
    near = np.abs(np.arange(9)[:, None] - np.arange(9)) <= 2
    weights = np.stack([np.full((9, 9), 1 / 9), near / near.sum(1, keepdims=True)])[:, None].astype(np.float32)
    shown = views.view(weights_NHQK=weights, windows=(None, 4), special=(), targets={}, guided=())
    file = save(tmp_path / "m.html", [shown])
    for layer, said, bits in ((0, 1 / 9, np.log2(9)), (1, 1 / 4, np.log2([3, 4, 5, 5, 5, 5, 5, 4, 3]).mean())):
        browser.open(file, f"l={layer}&h=0&r=1&c=2")
        (weight,) = re.findall(r"“t2” \(2\): ([.0-9]+) \(1.0 × even\)", browser.text("line"))
        assert float(weight) == pytest.approx(said, abs=0.008)
        count = f"{2**bits:.0f}" if bits >= 3 else f"{2**bits:.1f}"
        assert f"about {count} of {count} tokens (entropy {bits:.2f} bits)" in browser.text("facts")


def test_small_weights_of_a_picture_have_the_mass_of_their_row(browser, tmp_path):
    """Weights of .01 are stored as .0094; the row then sums to .94 before its weights are scaled."""
    even = views.view(tokens=[f"t{at}" for at in range(100)], weights_NHQK=np.full((1, 1, 100, 100), 0.01, np.float32))
    browser.open(save(tmp_path / "m.html", [even], detail="picture"), "l=0&h=0&r=7&c=50")
    assert "“t50” (50): below .02 (1.0 × even)" in browser.text("line")
    browser.act(lambda: browser.press("d"))
    assert "“t50” (50): about .01" in browser.text("line")  # no target in this column


def test_the_map_minus_the_target(browser, plain, cells, path):
    browser.open(path, "l=1&h=0")
    browser.act(lambda: browser.press("d"))
    target = plain.targets["next"]
    differences = [
        plain.weights_NHQK[1, 0, q, k] - target.matrix_QK[q, k] if target.has_target_Q[q] else 0.0 for q, k in cells
    ]
    assert np.abs(np.array(browser.colours(cells)) - signed_colours(np.array(differences))).max() <= 8
    assert "minus the pattern [Next]" in browser.text("maps")


def test_the_rest_of_a_row_of_differences_is_named_by_its_size(browser, tmp_path):
    """Each row looks at one token, and the pattern at all 20: 10 of the 19 differences of -.05 are not listed."""
    even = pages.Target(
        np.full((20, 20), 0.05), np.ones(20, bool), "[Even]", "#000", np.full((1, 1), 1.0), np.full(1, 1.0)
    )
    weights = np.eye(20, dtype=np.float32)[None, None]
    view = views.view(length=20, weights_NHQK=weights, targets={"even": even}, guided=(), special=())
    browser.open(save(tmp_path / "m.html", [view]), "l=0&h=0&r=3&d=1")
    assert "t3.95" in browser.text("largest") and "10 othersat most ±.05" in browser.text("largest")


def test_the_outline_of_the_target(browser, plain, path):
    browser.open(path, "l=1&h=0&r=0")
    corner = """const canvas = document.querySelector("#maps canvas"), at = canvas.dataset;
        return Array.from(canvas.getContext("2d").getImageData(Math.floor(Number(at.x) + 2 * at.cell),
          Math.floor(Number(at.y) + (arguments[0] + 0.5) * at.cell), 1, 1).data).slice(0, 3);"""
    before = [browser.run(corner, row) for row in (3, 5)]
    browser.act(lambda: browser.press("t"))
    after = [browser.run(corner, row) for row in (3, 5)]
    assert after[0] != before[0] and np.abs(np.array(after[0]) - [0x00, 0x72, 0xB2]).max() < 60
    assert after[1] == before[1]  # the last row has no target


def test_the_pattern_of_a_free_head(browser, plain, tmp_path):
    """A pattern with targets in few rows counts less, as in `maps.strongest_pattern`."""
    shape = plain.weights_NHQK.shape[:2]
    chance_N = np.full(shape[0], 1 / COLUMNS)
    columns = np.eye(COLUMNS)[[2] * ROWS]
    targets = {
        "period": pages.Target(columns, np.arange(ROWS) < 1, "[Period]", "#009E73", np.full(shape, 0.9), chance_N),
        "first": pages.Target(columns, np.arange(ROWS) < 5, "[First]", "#D55E00", np.full(shape, 0.4), chance_N),
    }
    view = views.view(tokens=plain.columns, rows=plain.rows, weights_NHQK=plain.weights_NHQK, targets=targets)
    browser.open(save(tmp_path / "m.html", [view]), "l=1&h=2")
    browser.act(lambda: browser.press("d"))
    assert "minus the pattern [First]" in browser.text("maps")


def test_two_views_side_by_side(browser, plain, other, cells, path):
    browser.open(path, "l=1&h=2&o=1&r=2&c=5")
    for panel, view in enumerate((plain, other)):
        weights = np.array([view.weights_NHQK[1, 2, q, k] for q, k in cells])
        assert np.abs(np.array(browser.colours(cells, panel)) - weight_colours(np.sqrt(weights))).max() <= 8
    differences = np.array([(plain.weights_NHQK - other.weights_NHQK)[1, 2, q, k] for q, k in cells])
    for _ in range(2):
        assert np.abs(np.array(browser.colours(cells, 2)) - signed_colours(differences)).max() <= 40
        browser.act(lambda: browser.press("d"))  # the difference of the maps, not of the maps minus targets
    said = re.findall(r"(\w+): ([.0-9]+) \(", browser.text("line").removeprefix("“row2” (2) looks at “column5” (5): "))
    assert dict(said).keys() == {"plain", "other"}
    for view in (plain, other):
        assert float(dict(said)[view.name]) == pytest.approx(view.weights_NHQK[1, 2, 2, 5], abs=0.008)


def test_the_keys(browser, path):
    from selenium.webdriver.common.keys import Keys

    browser.open(path)
    browser.run("document.querySelector('.head').focus()")
    browser.press(Keys.ARROW_RIGHT, Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    browser.act(lambda: browser.press(Keys.ENTER))
    browser.wait("document.activeElement.id === 'maps'", "the focus to move to the map")
    assert (browser.state()["l"], browser.state()["h"]) == ("1", "3")  # the mean of the heads
    browser.press(Keys.ARROW_DOWN, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert (browser.state()["r"], browser.state()["c"]) == ("2", "1")
    assert browser.text("line").startswith("“row2” (2) looks at “column1” (1): ")
    for key, short in (("t", "t"), ("d", "d"), ("s", "x"), ("m", "m")):
        browser.act(lambda key=key: browser.press(key))
        assert browser.state()[short] == "1"
        browser.act(lambda key=key: browser.press(key))
        assert short not in browser.state()
    for key, scale in (("2", "ratio"), ("3", "own")):
        browser.act(lambda key=key: browser.press(key))
        assert browser.state()["s"] == scale
    browser.act(lambda: browser.press("1"))
    assert "s" not in browser.state()
    browser.act(lambda: browser.press("c"))
    assert browser.state()["b"] == "1" and "“column1” (1)" in browser.text("largest")
    browser.press("p")
    assert browser.run("return document.getElementById('pin').ariaPressed") == "true"
    browser.press("?")
    assert browser.run("return document.getElementById('help').open")
    browser.run("document.getElementById('help').close()")
    browser.act(lambda: browser.press(Keys.ESCAPE))
    assert "l" not in browser.state() and browser.run("return document.activeElement.className") == "head"


def test_the_pointer_chooses_and_pins_a_row(browser, plain, path):
    from selenium.webdriver.common.action_chains import ActionChains

    browser.open(path, "l=1&h=1")
    canvas = browser.driver.find_element("css selector", "#maps canvas")
    at = {name: float(canvas.get_attribute(f"data-{name}")) for name in ("x", "y", "cell")}

    def to(row, column):
        box = canvas.size
        x, y = at["x"] + (column + 0.5) * at["cell"], at["y"] + (row + 0.5) * at["cell"]
        return ActionChains(browser.driver).move_to_element_with_offset(
            canvas, x - box["width"] / 2, y - box["height"] / 2
        )

    to(2, 7).perform()
    assert (browser.state()["r"], browser.state()["c"]) == ("2", "7")
    rows = "[...document.querySelectorAll('#largest tr')].map((row) => [...row.cells].map((one) => one.textContent))"
    *top, (rest, less) = [row[1:3] for row in browser.run(f"return {rows}")]
    listed = [plain.weights_NHQK[1, 1, 2, plain.columns.index(token)] for token, _ in top]
    np.testing.assert_allclose([float(number) for _, number in top], listed, atol=0.008)
    assert np.diff(listed).max() < 0.004 and min(float(number) for _, number in top) > 0
    assert (rest, less) == ("1 other", "below .001") and len(top) == COLUMNS - 1
    tip = browser.run("const box = document.getElementById('tip'); return [box.innerText, box.getBoundingClientRect()]")
    words, number = re.fullmatch(r"(“row2” .* “column7” .*)\n([.0-9]+) \(.* × even\)", tip[0]).groups()
    assert browser.text("line").startswith(f"{words}: {number} (")
    assert float(number) == pytest.approx(plain.weights_NHQK[1, 1, 2, 7], abs=0.008)
    x, y = (canvas.rect[side] + at[side] + (place + 0.5) * at["cell"] for side, place in (("x", 7), ("y", 2)))
    scrolled = browser.run("return scrollY")
    assert 0 < tip[1]["left"] - x < 30 and 0 < tip[1]["top"] + scrolled - y < 30
    to(4, 1).click().perform()
    to(0, 0).perform()
    assert browser.state()["r"] == "4" and "“row0” (0) looks at “column0” (0)" in browser.text("line")


PIECES = ("<s>", "re", "·build", "·ing", "our", "road", "·s", ".", "</s>")
WORDS = (("<s>", 0), ("rebuilding", 1), ("our", 4), ("roads", 5), (".", 7), ("</s>", 8))


def test_a_finger_chooses_and_hides_no_map(browser, path):
    """It gets in the line what a pointer gets beside itself."""
    browser.open(path, "l=1&h=1")
    at = browser.run(
        """const canvas = document.querySelector("#maps canvas"), { x, y, cell } = canvas.dataset;
        canvas.scrollIntoView();
        const box = canvas.getBoundingClientRect();
        return { x: box.x + Number(x) + 5.5 * cell, y: box.y + Number(y) + 3.5 * cell };"""
    )
    for kind, points in (("touchStart", [at]), ("touchEnd", [])):
        browser.driver.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    assert (browser.state()["r"], browser.state()["c"]) == ("3", "5")
    assert browser.text("line").startswith("“row3” (3) looks at “column5” (5): ")
    assert browser.run("return document.getElementById('tip').hidden")


def between_words(weights_QK):
    """Sums over the columns of a word, means over its rows, one pair of words at a time."""
    starts = [*(first for _, first in WORDS), len(weights_QK)]
    groups = [range(*pair) for pair in itertools.pairwise(starts)]
    return np.array(
        [[np.mean([sum(weights_QK[q, k] for k in columns) for q in rows]) for columns in groups] for rows in groups]
    )


@pytest.mark.parametrize(("is_stored", "error"), [(True, 0.008), (False, 0.02)])
def test_words_in_place_of_pieces(browser, tmp_path, is_stored, error):
    """Exact sums and means where these maps are stored, else those of rounded weights, with two digits."""
    view = views.view(tokens=list(PIECES), words=WORDS, special=(0, 8), windows=(None, 4))
    page = save(tmp_path / "m.html", [view], **({} if is_stored else {"most_bytes": 0}))
    assert ('id="words-0-1-2"' in page.read_text()) == is_stored
    expected = between_words(view.weights_NHQK[1, 2])
    browser.open(page, "l=1&h=2&r=2&c=6&o=-1")
    browser.act(lambda: browser.press("w"))
    assert (browser.state()["r"], browser.state()["c"]) == ("1", "3")  # those of the pieces
    cells = list(np.ndindex(6, 6))
    drawn, exact = np.array(browser.colours(cells)), weight_colours(np.sqrt(expected.ravel()))
    assert np.abs(drawn - exact)[expected.ravel() > 0.02].max() <= (8 if is_stored else 20)
    assert browser.text("text").split() == ["Text:", *(word for word, _ in WORDS)]
    # Of the nine tokens, the first piece sees 4, the others 5 of the window; of "roads", only the last piece sees one.
    even = np.mean([0 / 4, 0 / 5, 1 / 5])
    found = re.fullmatch(
        r"“rebuilding” \(1\) looks at “roads” \(3\): ([.0-9]+) \(([.0-9]+) × even\)", browser.text("line")
    )
    assert float(found[1]) == pytest.approx(expected[1, 3], abs=error)
    assert float(found[2]) == pytest.approx(expected[1, 3] / even, rel=0.1)
    browser.act(lambda: browser.press("w"))
    assert (browser.state()["r"], browser.state()["c"]) == ("1", "5") and "w" not in browser.state()


def test_even_attention_between_words(browser, tmp_path):
    """A head that attends evenly to what it sees is 1.0 x even, also in a window and without special tokens."""
    near = np.abs(np.arange(9)[:, None] - np.arange(9)) <= 2
    weights = (near / near.sum(1, keepdims=True))[None, None].astype(np.float32)
    view = views.view(tokens=list(PIECES), words=WORDS, special=(0, 8), windows=(4,), weights_NHQK=weights, targets={})
    page = save(tmp_path / "m.html", [view])
    for address in ("w=1&r=1&c=2", "w=1&r=1&c=2&x=1", "w=1&r=3&c=4&x=1"):
        browser.open(page, f"l=0&h=0&{address}")
        assert "(1.0 × even)" in browser.text("line")


def test_a_control_that_does_not_apply_has_no_key(browser, tmp_path):
    """Targets and their differences are about tokens, so nothing about words changes."""
    browser.open(save(tmp_path / "m.html", [views.view(tokens=list(PIECES), words=WORDS)]), "l=1&h=0&w=1&t=1")
    assert "outlined" not in browser.text("maps") and "(shown)" not in browser.text("masses")
    browser.press("d", "t")
    browser.act(lambda: browser.press("w"))
    assert {*browser.state().items()} >= {("t", "1")} and "d" not in browser.state()
    assert "outlined: [Next]" in browser.text("maps") and "(shown)" in browser.text("masses")
    browser.act(lambda: browser.press("l"))
    assert "outlined" not in browser.text("maps") and "(shown)" not in browser.text("masses")


def test_a_text_from_right_to_left(browser, tmp_path):
    """Its words are so ordered, and do not turn the numbers of a sentence that names them."""
    tokens = ["<s>", "אני", "רואה", "·ים", "בית", "</s>"]
    browser.open(save(tmp_path / "m.html", [views.view(tokens=tokens, targets={})]), "l=1&h=1&r=1&c=4")
    lefts = browser.run("return [...document.querySelectorAll('#text span')].map((one) => one.offsetLeft)")
    assert np.diff(lefts).max() < 0
    assert browser.text("line").startswith("“\u2068אני\u2069” (1) looks at “\u2068בית\u2069” (4): .")


def test_words_that_are_pieces_are_not_offered(browser, path):
    browser.open(path, "l=1&h=2&w=1")
    assert browser.run("return document.getElementById('words').hidden") and "w" not in browser.state()


def lines_of(browser):
    """The lines of an enlarged head, {(row, column): [opacity, whether it is marked]}."""
    return {
        (int(q), int(k)): [float(opacity), marked]
        for q, k, opacity, marked in browser.run(
            """return [...document.querySelectorAll("#maps line")].map((one) =>
            [one.dataset.q, one.dataset.k, one.getAttribute("stroke-opacity"), one.classList.contains("chosen")]);"""
        )
    }


def linked(row):
    """The columns of the three largest weights of a row, as they are stored, and of those above .1."""
    row = (np.rint(255 * np.sqrt(row)) / 255) ** 2
    return [
        k for rank, k in enumerate(np.argsort(-row, kind="stable")) if row[k] > 0.1 or (rank < 3 and row[k] >= 0.0005)
    ]


def test_lines_between_words(browser, plain, path):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    browser.open(path, "l=1&h=1&r=3")
    browser.act(lambda: browser.press("l"))
    weights = plain.weights_NHQK[1, 1]
    found = lines_of(browser)
    assert found.keys() == {(q, k) for q in range(ROWS) for k in linked(weights[q])}
    for (q, k), (opacity, marked) in found.items():
        assert opacity == pytest.approx(np.sqrt(weights[q, k]), abs=0.005) and marked == (q == 3)
    browser.run("document.getElementById('maps').focus()")
    browser.press(Keys.ARROW_DOWN)
    assert {q for (q, _), (_, marked) in lines_of(browser).items() if marked} == {4}
    word = browser.driver.find_element("css selector", "#maps text[data-q='1']")
    ActionChains(browser.driver).move_to_element(word).perform()
    assert {q for (q, _), (_, marked) in lines_of(browser).items() if marked} == {1}
    assert browser.text("line").startswith("“row1” (1) looks most at")
    browser.act(lambda: browser.press("2"))  # the scale of the map
    expected = {cell: min(1, max(0, (np.log2(weights[cell] * COLUMNS) + 2) / 8)) for cell in found}
    for cell, (opacity, _) in lines_of(browser).items():
        assert weights[cell] < 0.02 or opacity == pytest.approx(expected[cell], abs=0.02)


def test_lines_of_a_long_text_are_those_of_the_chosen_row(browser, tmp_path):
    weights = views.attention(1, 1, 130, 130, sharpness=3.0)
    view = views.view(tokens=[f"t{at}" for at in range(130)], weights_NHQK=weights, targets={}, guided=())
    browser.open(save(tmp_path / "m.html", [view]), "l=0&h=0&r=7&i=1")
    for row in (7, 8):
        assert {*lines_of(browser)} == {(row, k) for k in linked(weights[0, 0, row])}
        browser.run("document.querySelector('#text span:nth-of-type(9)').click()")


def test_the_texts_are_above_the_maps(browser, plain, tmp_path):
    """Before a head is open, too: those of the columns, of the rows, others, and how many tokens were cut off."""
    cross = views.view("cross", tokens=plain.columns, rows=plain.rows, weights_NHQK=plain.weights_NHQK, targets={})
    cross = dataclasses.replace(cross, texts=("Source", "Translation"), left_out=28)
    encoder = views.view(
        "encoder", tokens=plain.columns, other_texts=[("Translation", "a whole text")], texts=("Source",)
    )
    file = save(tmp_path / "m.html", [cross, encoder])
    browser.open(file)
    shown = browser.run("return [...document.querySelectorAll('#text p')].map((line) => line.innerText.split(/\\s+/))")
    assert shown[:2] == [["Source:", *plain.columns], ["Translation:", *plain.rows]] and shown[2][1:4] == [
        "28",
        "tokens",
        "cut:",
    ]
    browser.open(file, "l=0&h=0")
    assert "row: looks (Translation)" in browser.text("maps") and "is looked at (Source)" in browser.text("maps")
    browser.open(file, "v=1")
    assert "Translation: a whole text" in browser.text("text")


def test_a_model_that_cannot_be_compared_says_why(browser, plain, tmp_path):
    columns = ["other", *plain.columns[1:]]
    strange = dataclasses.replace(plain, name="strange", columns=columns, is_compared=True)
    browser.open(save(tmp_path / "m.html", [plain, strange]))
    assert "“plain” and “strange” cannot be compared" in browser.text("note")


def test_a_head_that_is_closed_leaves_no_colours(browser, path):
    from selenium.webdriver.common.keys import Keys

    browser.open(path, "l=1&h=1&r=3&c=4")
    browser.act(lambda: browser.press(Keys.ESCAPE))
    browser.act(lambda: browser.press("c"))
    assert not browser.run("return document.querySelectorAll('#text span[style*=color], #text .chosen').length")


def test_the_list_of_heads_has_the_means_whatever_the_order(browser, path):
    browser.open(path, "l=1&h=3&r=1&a=entropy")
    assert browser.run("return document.getElementById('head').value") == "1.3"


def test_the_first_model_to_compare_with_is_compared(browser, plain, other, tmp_path):
    file = save(tmp_path / "m.html", [plain, dataclasses.replace(other, is_compared=True)])
    browser.open(file)
    browser.act(lambda: browser.choose("head", "1.2"))
    assert browser.state().keys() == {"l", "h", "r"} and browser.text("one-title").startswith("Layer 1, head 2")
    assert len(browser.driver.find_elements("css selector", "#maps canvas")) == 3
    browser.act(lambda: browser.choose("other", "-1"))
    assert browser.state()["o"] == "-1"
    browser.open(file, "l=1&h=2&o=-1")
    assert len(browser.driver.find_elements("css selector", "#maps canvas")) == 1


@pytest.mark.parametrize("size", [(1280, 900), (1366, 768)])
def test_number_and_map_are_in_sight(browser, window, tmp_path, size):
    """With 64 tokens, of one model and of two."""
    steps = [views.view(f"a long name, step {at}", length=64, step=at, is_compared=at == 0) for at in (1000, 0)]
    window(*size)
    file = save(tmp_path / "m.html", steps)
    for address in ("l=1&h=1&r=5&c=7&o=-1", "l=1&h=1&r=5&c=7", "l=1&h=1&r=5&o=-1&i=1"):
        browser.open(file, address)
        script = "return document.querySelector(arguments[0]).getBoundingClientRect().bottom"
        number, drawn = (browser.run(script, one) for one in ("#line", "#maps :is(canvas, svg)"))
        assert number < drawn and number < 0.5 * size[1] and ("i=1" in address or drawn <= size[1])


@pytest.mark.parametrize(("width", "named"), [(1280, 5), (900, 5), (390, 3)])
def test_controls_are_in_a_line_and_the_rest_under_more(browser, window, path, width, named):
    window(width, 844)
    browser.open(path, "l=1&h=1&r=1")
    tops = (
        "[...document.querySelectorAll('#controls > *')].filter((one) => one.offsetParent).map((one) => one.offsetTop)"
    )
    found = browser.run(f"return {tops}")
    assert len(found) == named and (width < 900 or np.ptp(found) < 12)
    assert not browser.run("return document.getElementById('palette').checkVisibility()")
    browser.driver.find_element("css selector", "#more summary").click()
    browser.wait("['palette', 'other'].every((id) => document.getElementById(id).checkVisibility())", "the controls")


def test_hostile_tokens_are_text(browser, tmp_path):
    browser.open(save(tmp_path / "m.html", [views.view("<i>", tokens=list(HOSTILE))]), "l=0&h=0&r=0")
    browser.run("document.querySelector('#twin').open = true")
    time.sleep(0.2)
    assert browser.driver.title == "A title" and not browser.driver.find_elements("tag name", "img")
    shown = browser.run("return [...document.querySelectorAll('#text span')].map((span) => span.textContent)")
    assert shown == list(HOSTILE)
    first = browser.run(
        "return [...document.querySelectorAll('#twin tbody tr')].map((row) => row.cells[1].textContent)"
    )
    assert first == list(HOSTILE)


def test_the_address_opens_the_same_picture(browser, path):
    address = "v=1&o=0&l=1&h=2&r=4&c=3&b=1&s=ratio&p=cividis&x=1"
    browser.open(path, address)
    assert browser.state() == dict(part.split("=") for part in address.split("&"))
    browser.open(path, "v=99&l=7&h=-2&r=1000&s=nothing&p=&n=absent&o=x")
    assert browser.state() == {}


def test_steps_and_other_views(browser, plain, path, tmp_path):
    """Keys change the step of a run; a view with fewer heads can be chosen; one of other tokens is not compared."""
    steps = [views.view(f"step {step}", step=step, weights_NHQK=views.attention(seed=step)) for step in (30, 0, 10)]
    browser.open(save(tmp_path / "steps.html", steps))
    assert browser.text("step-name") == "30 of 30"
    assert browser.run("return document.querySelectorAll('polyline').length") == 2
    for key, view, name in (("[", "2", "10 of 30"), ("[", "1", "0 of 30"), ("]", "2", "10 of 30")):
        browser.act(lambda key=key: browser.press(key))
        assert browser.state()["v"] == view and browser.text("step-name") == name
    few = plain.weights_NHQK[:1, :2]
    small = views.view("s", tokens=plain.columns, rows=plain.rows, weights_NHQK=few, targets={}, guided=())
    browser.open(save(tmp_path / "m.html", [plain, small]))
    browser.run("document.querySelectorAll('.head')[6].focus()")
    browser.act(lambda: browser.choose("view", "1"))
    assert browser.run("return [...document.querySelectorAll('.head')].map((cell) => cell.tabIndex)") == [-1, -1, 0]
    browser.open(path, "l=0&h=0")
    browser.act(lambda: browser.choose("other", "2"))
    assert "position 0" in browser.text("note") and "o" not in browser.state()
    assert len(browser.driver.find_elements("css selector", "#maps canvas")) == 1


def test_a_head_of_which_only_the_overview_is_stored(browser, tmp_path):
    long = views.attention(1, 2, 130, 130, sharpness=1.0)
    view = views.view(tokens=[str(at) for at in range(130)], weights_NHQK=long, whole=[(0, 1)], targets={})
    whole = dataclasses.replace(view, name="whole", whole=None, words=[(f"w{at}", 2 * at) for at in range(65)])
    view = dataclasses.replace(view, words=whole.words)
    file = save(tmp_path / "m.html", [view, whole])
    browser.open(file, "l=0&h=0&r=2")
    assert "only the largest weights of 3 × 3 tokens are in this page" in browser.text("maps")
    blocks = [(q, k) for q in range(0, 44, 5) for k in range(0, 44, 7)]
    largest = np.array([long[0, 0, 3 * q : 3 * q + 3, 3 * k : 3 * k + 3].max() for q, k in blocks])
    assert np.abs(np.array(browser.colours(blocks)) - weight_colours(np.sqrt(largest))).max() <= 14
    assert "not in this page" in browser.text("largest")

    # Beside a head with all weights, lines are of that one alone, and what is chosen is a word.
    browser.open(file, "v=1&o=0&l=0&h=0&r=2&i=1")
    assert [len(browser.driver.find_elements("css selector", f"#maps {tag}")) for tag in ("svg", "canvas")] == [1, 1]
    assert {q for q, _ in lines_of(browser)} == {2}
    browser.open(file, "l=0&h=0&w=1")
    move = """const canvas = document.querySelector("#maps canvas"), { x, y, cell } = canvas.dataset;
        const box = canvas.getBoundingClientRect();
        const [clientX, clientY] = [box.x + Number(x) + 43.1 * cell, box.y + Number(y) + 42.1 * cell];
        canvas.dispatchEvent(new PointerEvent("pointermove", { clientX, clientY }));"""
    browser.run(move)
    assert (browser.state()["r"], browser.state()["c"]) == ("63", "64")  # of tokens 126 and 129


def test_what_an_attack_masked(browser, tmp_path):
    hidden = np.zeros((2, 1, 9, 9), bool)
    hidden[1, 0, 4, 6] = True
    browser.open(save(tmp_path / "m.html", [views.view(hidden_NHQK=hidden)]), "l=1&h=1")
    pairs = [(4, 6), (6, 4), (0, 0)]
    before = browser.colours(pairs)
    browser.act(lambda: browser.press("m"))
    after = browser.colours(pairs)
    assert [one != two for one, two in zip(before, after, strict=True)] == [True, False, False]
    assert "the attack hid 1.2 % of the pairs, which hold" in browser.text("facts")


def test_the_frame_of_a_notebook(browser, plain, tmp_path):
    """A frame with scripts alone, in a page that allows nothing else."""
    policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; frame-src 'self'"
    frame = NotebookView("A title", [plain])._repr_html_()
    file = tmp_path / "notebook.html"
    file.write_text(
        f'<!DOCTYPE html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">{frame}'
    )
    browser.driver.get(file.as_uri())
    browser.driver.switch_to.frame(0)
    browser.wait("document.documentElement.dataset.drawn", "the frame to be drawn")
    browser.act(lambda: browser.run("document.querySelectorAll('.head')[5].click()"))
    assert browser.text("one-title") == "Layer 1, head 1"
    browser.driver.switch_to.default_content()


def test_a_grid_that_shrinks_keeps_thin_lines(browser, tmp_path):
    """Beside an enlarged head, a map of 64 columns has fewer pixels, and one column that a head attends to remains."""
    weights = np.full((1, 24, 64, 64), 0.0, np.float32)
    for head in range(24):
        weights[0, head, :, 2 * head + 1] = 1
    view = views.view(tokens=[str(at) for at in range(64)], weights_NHQK=weights, targets={}, guided=())
    browser.open(save(tmp_path / "m.html", [view]))
    read = """return [...document.querySelectorAll(".head canvas")].map((canvas) => [canvas.width, canvas.clientWidth,
        ...canvas.getContext("2d").getImageData(0, 0, canvas.width, 1).data.filter((_, at) => at % 4 === 1)]);"""
    found = [browser.run(read)]
    browser.act(lambda: browser.run("document.querySelector('.head').click()"))
    found.append(browser.run(read))
    for tiles in found:
        for head, (width, on_page, *green) in enumerate(tiles[:-1]):  # the last one is their mean
            assert width <= on_page + 1
            assert np.argmin(green) == (2 * head + 1) * width // 64  # the darkest column
    assert found[1][0][0] < found[0][0][0]  # it did shrink


def test_a_narrow_window_has_one_column(browser, window, path):
    """320 pixels wide, as a page of 1280 pixels at 400 %; nothing has to be scrolled sideways but the grid."""
    window(320, 640)
    for address in ("", "l=1&h=1&r=1", "l=1&h=1&o=1&r=1", "l=1&h=1&o=1&r=1&i=1"):
        browser.open(path, address)
        assert browser.run("return innerWidth") == 320
        assert browser.run("return document.documentElement.scrollWidth") <= 320
        lefts = browser.run(
            "return [...document.querySelectorAll('#stage > section:not([hidden])')].map((one) => one.offsetLeft)"
        )
        assert len(set(lefts)) == 1


def test_patterns_of_cross_attention_have_letters_of_their_own(browser, tmp_path):
    weights = views.attention(1, 2, 5, 5)
    mass = np.zeros((1, 2))
    targets = {
        name: pages.Target(np.eye(5), np.ones(5, bool), title, "#000000", mass, np.full(len(mass), 0.2))
        for name, title in (("delim", "[Delim]"), ("diagonal", "[Diagonal]"))
    }
    view = views.view(tokens=list("abcde"), weights_NHQK=weights, targets=targets, guided=[("delim", "diagonal")])
    browser.open(save(tmp_path / "m.html", [view]))
    letters = browser.run("return [...document.querySelectorAll('.head .letter')].map((one) => one.textContent)")
    assert letters == ["D", "\\"]


@pytest.fixture(scope="module")
def steps_and_masks(tmp_path_factory):
    """A page with a slider over steps, and masks of an attack."""
    hidden = np.zeros((2, 1, 9, 9), bool)
    hidden[:, :, 4] = True
    steps = [views.view(f"step {at}", step=at, weights_NHQK=views.attention(seed=at)) for at in (30, 0)]
    return save(tmp_path_factory.mktemp("page") / "m.html", [*steps, views.view("attacked", hidden_NHQK=hidden)])


@pytest.mark.parametrize(
    "address",
    ["", "l=0&h=0&r=1", "l=1&h=1&o=1&r=1", "l=1&h=1&o=1&r=1&i=1", "steps l=0&h=0", "steps v=2&l=0&h=0&m=1&t=1"],
)
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_accessibility(browser, path, steps_and_masks, address, scheme, colours):
    axe = pathlib.Path(os.environ.get("AG_JAX_AXE", ""))
    if not axe.is_file():
        pytest.skip("AG_JAX_AXE is not the path of axe-core's axe.min.js")
    scheme(colours)
    other, _, address = address.rpartition(" ")
    browser.open(steps_and_masks if other else path, address)
    browser.run("for (const one of document.querySelectorAll('details')) one.open = true")
    browser.run(axe.read_text())
    found = browser.driver.execute_async_script(
        "const done = arguments[0]; axe.run().then((r) => done(JSON.stringify(r.violations)));"
    )
    problems = [(one["id"], [node["html"][:120] for node in one["nodes"]]) for one in json.loads(found)]
    assert not problems
