"""Saved files show what the page shows, in black on white, with the names of all that they show."""

import base64
import io
import xml.etree.ElementTree

import numpy as np
import pytest
from PIL import Image

from tests.browser.expected import save, signed_colours, weight_colours
from tests.viewer import views

ROWS, COLUMNS = [f"row{at}" for at in range(4)], [f"column{at}" for at in range(6)]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def two():
    """Two models that look from 4 tokens at 6, so that a transposed map would not fit; the first is guided."""
    given = []
    for number, model in enumerate(("first", "second")):
        weights = views.attention(2, 3, 4, 6, seed=number)
        mass_NH, matrix_QK = weights[:, :, :, 2].mean(-1), np.eye(6)[[2] * 4]
        target = views.Target(matrix_QK, np.ones(4, bool), "[Next]", "#0072B2", mass_NH, np.full(2, 1 / 6))
        more = {} if number == 0 else {"guided": ()}
        view = views.view(
            f"{model}, step {number}",
            tokens=COLUMNS,
            rows=ROWS,
            weights_NHQK=weights,
            targets={"next": target},
            model=model,
            step=number,
            **more,
        )
        given.append(view)
    return given


@pytest.fixture(scope="module")
def path(two, tmp_path_factory):
    return save(tmp_path_factory.mktemp("page") / "maps.html", two)


class Drawing:
    """An SVG that was saved: its texts, its pictures with their places in it, its outlines, and its lines."""

    def __init__(self, path):
        self.texts, self.pictures, self.outlines, self.lines = [], [], 0, []
        root = xml.etree.ElementTree.fromstring(path.read_text())
        self.size = float(root.get("width")), float(root.get("height"))
        self._read(root, 0.0, 0.0)

    def _read(self, element, left, top):
        move = element.get("transform", "")
        if move.startswith("translate") and "rotate" not in move:
            x, y = move[len("translate(") : -1].split()
            left, top = left + float(x), top + float(y)
        if element.tag == f"{SVG}text":
            assert element.get("fill") == "#000"
            self.texts.append(element.text)
        if element.tag == f"{SVG}image":
            kind, data = element.get("href").split(",")
            assert kind == "data:image/png;base64"
            pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"), float)
            x, y, wide, high = (float(element.get(name)) for name in ("x", "y", "width", "height"))
            self.pictures.append((pixels, (x + left, y + top, wide, high)))
        if element.tag == f"{SVG}line":
            self.lines.append({name: float(element.get(name)) for name in ("y1", "y2", "stroke-opacity")})
        self.outlines += element.tag == f"{SVG}rect" and element.get("stroke") == "#0072B2"
        for child in element:
            self._read(child, left, top)


def middles(pixels, box, rows, columns):
    """The colours in the middle of the cells of a map that fills a box of a picture."""
    x, y, wide, high = box
    across = (x + (np.arange(columns) + 0.5) * wide / columns).astype(int)
    down = (y + (np.arange(rows) + 0.5) * high / rows).astype(int)
    return pixels[down][:, across]


def both(browser, id, name):
    """What is saved as an SVG, and the pixels of the PNG, which look alike."""
    svg, png = (browser.save(f"{id}{suffix}", f"{name}.{suffix}") for suffix in ("svg", "png"))
    drawing, png = Drawing(svg), np.asarray(Image.open(png).convert("RGB"), float)
    wide, high = map(int, drawing.size)
    assert png.shape[:2] == (2 * high, 2 * wide)
    metrics = {"width": wide, "height": high, "deviceScaleFactor": 2, "mobile": False}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        browser.driver.get(svg.as_uri())
        shown = np.asarray(Image.open(io.BytesIO(browser.driver.get_screenshot_as_png())).convert("RGB"), float)
    finally:
        browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert (np.abs(shown - png).max(-1) > 60).mean() < 0.02  # letters and borders may be a pixel apart
    return drawing, png


def check(drawing, png, place, expected, rows, columns, tolerance, below=0):
    """A picture of the SVG, and the same place of the PNG with two pixels for each unit, have the expected colours.

    below: rows at the top of the PNG that may be covered.
    """
    pixels, box = drawing.pictures[place]
    expected = expected.reshape(rows, columns, 3)
    whole = 0, 0, pixels.shape[1], pixels.shape[0]
    assert np.abs(middles(pixels, whole, rows, columns) - expected).max() <= tolerance
    found = middles(png, [2 * side for side in box], rows, columns)
    assert np.abs(found - expected)[below:].max() <= tolerance


def check_page(png):
    """A white background, dark text, and no outline of the chosen row."""
    assert (png[0] == 255).all() and png.min() < 40
    assert not (np.abs(png - [0xD0, 0, 0]).max(-1) < 30).any()


def test_a_comparison(browser, scheme, two, path):
    """Three panels, each with model, step, layer and head, words and axes, and its own bar of colours."""
    scheme("dark")
    browser.open(path, "l=1&h=0&o=1&r=2&c=5&t=1")
    drawing, png = both(browser, "", "first_Encoder_step0_and_second_Encoder_step1_layer1_head0")
    check_page(png)
    one, two = (view.weights_NHQK[1, 0].astype(np.float64) for view in two)
    weights = [weight_colours(np.sqrt(weights.ravel())) for weights in (one, two)]
    scale = np.linspace(0, 1, 256)
    bars = [weight_colours(scale), weight_colours(scale), signed_colours(np.sign(scale - 0.5) * (2 * scale - 1) ** 2)]
    assert len(drawing.pictures) == 6
    for panel, expected in enumerate([*weights, signed_colours((one - two).ravel())]):
        check(drawing, png, 2 * panel, expected, 4, 6, 8 if panel < 2 else 60)
        check(drawing, png, 2 * panel + 1, bars[panel], 1, 256, 12)
    titles = ["first, step 0", "second, step 1", "Difference: first, step 0 minus second, step 1"]
    for text in titles:
        assert drawing.texts.count(text) == 1
    assert drawing.texts.count("layer 1, head 0, guided towards [Next]") == 2  # of the first model, and the difference
    assert drawing.texts.count("layer 1, head 0") == 1
    assert drawing.texts.count("outlined: [Next]") == 2 and drawing.outlines == 2 * 4
    assert [text for text in drawing.texts if text in ROWS + COLUMNS] == 3 * (ROWS + COLUMNS)
    for text, times in (
        ("attending token", 3),
        ("attended token", 3),
        ("attention weight (square-root scale)", 2),
        ("0.05", 2),
        ("-0.25", 1),
    ):
        assert drawing.texts.count(text) == times


def test_the_mean_of_a_layer_and_the_page_that_is_zoomed(browser, two, path):
    """The part of the map that the page shows, and nothing beside it."""
    browser.open(path, "l=1&h=3")
    browser.run("for (let at = 0; at < 2; at++) document.getElementById('closer').click()")
    drawing, png = both(browser, "", "first_Encoder_step0_layer1_mean")
    assert "layer 1, mean of heads" in drawing.texts and len(drawing.pictures) == 2
    expected = weight_colours(np.sqrt(two[0].weights_NHQK[1].astype(np.float64).mean(0).ravel()))
    pixels, (x, y, wide, high) = drawing.pictures[0]
    whole = 0, 0, pixels.shape[1], pixels.shape[0]
    assert np.abs(middles(pixels, whole, 4, 6) - expected.reshape(4, 6, 3)).max() <= 8
    # The middle 4 / 2.25 rows and 6 / 2.25 columns are seen, around the middle of the map.
    seen = [(q, k) for q in (1, 2) for k in (2, 3)]
    for q, k in seen:
        at = int(2 * (y + (q + 0.5) * high / 4)), int(2 * (x + (k + 0.5) * wide / 6))
        assert np.abs(png[at] - expected.reshape(4, 6, 3)[q, k]).max() <= 8
    assert [text for text in drawing.texts if text in ROWS + COLUMNS] == [*ROWS[1:3], *COLUMNS[2:4]]


def test_lines(browser, scheme, two, path):
    """The three largest weights of each row and those above .1, as opaque as their square root, in both models."""
    scheme("dark")
    browser.open(path, "l=1&h=2&o=1&i=1&r=2")
    assert browser.run("return document.querySelectorAll('#bar canvas').length") == 1  # no difference is shown
    drawing, png = both(browser, "", "first_Encoder_step0_and_second_Encoder_step1_layer1_head2_lines")
    check_page(png)
    expected = []
    for view in two:
        for q, row in enumerate(view.weights_NHQK[1, 2]):
            shown = {*np.argsort(-row)[:3], *np.nonzero(row > 0.1)[0]}
            expected += [(q, k, row[k] ** 0.5) for k in sorted(shown) if row[k] >= 0.0005]
    # The words are 22 units apart, the 4 rows in the middle of the 6 columns.
    found = [
        ((line["y1"] - 26) / 22 - 1.5, (line["y2"] - 26) / 22 - 0.5, line["stroke-opacity"]) for line in drawing.lines
    ]
    np.testing.assert_allclose(sorted(found), sorted(expected), atol=0.01)
    assert drawing.texts.count("looks") == drawing.texts.count("is looked at") == drawing.texts.count("row2") == 2


def test_all_heads(browser, scheme, two, path):
    """Each in its place, with the numbers of layers and heads, the means, both models, and a bar of colours."""
    scheme("dark")
    browser.open(path, "o=1")
    drawing, png = both(browser, "all-", "first_Encoder_step0_and_second_Encoder_step1_all-heads")
    check_page(png)
    tiles = [(layer, head, view) for layer, head in np.ndindex(2, 4) for view in two]
    assert len(drawing.pictures) == len(tiles) + 1
    for place, (layer, head, view) in enumerate(tiles):
        of_layer = view.weights_NHQK[layer].astype(np.float64)
        weights = of_layer[head] if head < 3 else of_layer.mean(0)
        # The letter of its pattern is on a guided head.
        check(drawing, png, place, weight_colours(np.sqrt(weights.ravel())), 4, 6, 14, below=int(head == 0))
    lefts, tops = ({round(box[at]) for _, box in drawing.pictures[:-1]} for at in (0, 1))
    assert (len(lefts), len(tops)) == (8, 2)
    check(drawing, png, -1, weight_colours(np.linspace(0, 1, 256)), 1, 256, 12)
    names = ["layer 0", "layer 1", "head 0", "head 1", "head 2", "mean", "N: guided towards [Next]", "0.05"]
    for text in (*names, "Left: first, step 0. Right: second, step 1."):
        assert text in drawing.texts
    assert drawing.texts.count("N") == 2 and drawing.outlines == 2  # the guided heads, all of the first model


def test_sums_of_rounded_weights_say_so_in_a_table(browser, two, tmp_path):
    view = views.view("w", tokens=COLUMNS, targets={}, words=[(f"w{at}", 2 * at) for at in range(3)])
    browser.open(save(tmp_path / "m.html", [view], most_bytes=0), "l=1&h=0&r=2&w=1")
    lines = browser.save("tsv", "model_Encoder_layer1_head0_words_row2.tsv").read_text().splitlines()
    assert [line.split("\t")[-1] for line in lines] == ["precision", *["two digits"] * 3]


def test_a_row_as_a_table(browser, two, path):
    """Of the first model alone, also beside another one."""
    browser.open(path, "l=1&h=0&r=2&o=1")
    lines = browser.save("tsv", "first_Encoder_step0_layer1_head0_row2.tsv").read_text().splitlines()
    cells = [line.split("\t") for line in lines]
    assert cells[0] == ["position", "token", "weight", "precision"]
    assert [cell[:2] for cell in cells[1:]] == [[str(at), token] for at, token in enumerate(COLUMNS)]
    np.testing.assert_allclose([float(cell[2]) for cell in cells[1:]], two[0].weights_NHQK[1, 0, 2], atol=0.004)
