"""The grid of all heads: the mean of each layer, a second model beside the first, and the chart of steps."""

import io

import numpy as np
import pytest
from PIL import Image

from tests.browser.expected import save, signed_colours, weight_colours
from tests.viewer import views

TOKENS = [f"t{at}" for at in range(7)]
EVERY = [(q, k) for q in range(7) for k in range(7)]


@pytest.fixture(scope="module")
def two():
    """A model of 2 layers with 3 heads, and one of 1 layer with 2 heads."""
    first = views.view("first", tokens=TOKENS)
    weights = views.attention(1, 2, 7, 7, seed=5)
    return first, views.view("second", tokens=TOKENS, weights_NHQK=weights, guided=(), model="other")


@pytest.fixture(scope="module")
def path(two, tmp_path_factory):
    return save(tmp_path_factory.mktemp("page") / "maps.html", two)


def tiles(browser):
    """The pixels of the tiles in each cell of the grid, row by row; None for a head that a model does not have."""
    script = """const read = (canvas) => canvas && Array.from(canvas.getContext("2d").getImageData(0, 0, 7, 7).data);
        return [...document.querySelectorAll("#grid .head")].map((cell) =>
          [...cell.querySelectorAll(".tile")].map((tile) => read(tile.querySelector("canvas"))));"""
    return [
        [None if tile is None else np.array(tile).reshape(7, 7, 4)[..., :3] for tile in cell]
        for cell in browser.run(script)
    ]


def head_of(view, layer, head):
    """A head's weights; that behind the last head is the mean of the layer."""
    of_layer_HQK = view.weights_NHQK[layer].astype(np.float64)
    return of_layer_HQK[head] if head < len(of_layer_HQK) else of_layer_HQK.mean(0)


def test_the_mean_of_the_heads_opens_like_a_head(browser, two, path):
    """By the keys and by the address, with the colours and the numbers of the exact mean."""
    from selenium.webdriver.common.keys import Keys

    browser.open(path)
    browser.run("document.querySelector('.head').focus()")
    browser.press(Keys.ARROW_DOWN, *[Keys.ARROW_RIGHT] * 3)
    browser.act(lambda: browser.press(Keys.ENTER))
    assert browser.state() == {"l": "1", "h": "3", "r": "1"} and browser.text("one-title") == "Layer 1, mean of heads"
    browser.open(path, "l=1&h=3")
    mean_QK = head_of(two[0], 1, 3)
    expected = weight_colours(np.sqrt(mean_QK.ravel()))
    assert np.abs(np.array(browser.colours(EVERY)) - expected).max() <= 8
    on_next = np.diag(mean_QK, k=1).mean()
    assert f"{on_next:.2f}" in browser.text("masses")
    browser.open(path, "l=1&h=4")
    assert browser.state() == {}


def test_a_cell_shows_the_same_head_of_both_models(browser, two, path):
    """Also where they have different numbers of heads and layers: a mean is beside a mean, never beside a head."""
    browser.open(path, "o=1")
    cells = tiles(browser)
    for at, (layer, head) in enumerate(np.ndindex(2, 4)):
        own = {0: 0, 1: 1, 2: None, 3: 2}[head] if layer < 1 else None
        for drawn, view, place in zip(cells[at], two, (head, own), strict=True):
            if place is None:
                assert drawn is None
                continue
            expected = weight_colours(np.sqrt(head_of(view, layer, place).ravel())).reshape(7, 7, 3)
            assert np.abs(drawn - expected).max() <= 14
    label = browser.run("return document.querySelectorAll('.head')[2].getAttribute('aria-label')")
    assert label == "first: layer 0, head 2; second has no such head"
    beside = browser.run("return [...document.querySelector('.head').children].map((tile) => tile.offsetTop)")
    assert len(set(beside)) == 1 and browser.text("pair") == "Left: first. Right: second."

    browser.open(path, "l=0&h=3&o=1")  # the means
    difference = (head_of(two[0], 0, 3) - head_of(two[1], 0, 2)).ravel()
    assert np.abs(np.array(browser.colours(EVERY, 2)) - signed_colours(difference)).max() <= 60
    browser.act(lambda: browser.choose("view", "1"))
    assert browser.state()["h"] == "2" and browser.text("one-title") == "Layer 0, mean of heads"
    browser.open(path, "l=0&h=2")  # a head that the second model does not have
    browser.act(lambda: browser.choose("view", "1"))
    assert browser.state() == {"v": "1"}


def test_eight_layers_fit_in_a_window(browser, window, tmp_path):
    """Without a second model and with one; layers of few heads are not enlarged beyond that."""
    weights = views.attention(8, 6, 9, 9)
    given = [views.view(name, weights_NHQK=weights, targets={}, guided=()) for name in ("one", "two")]
    window(1280, 900)
    for address in ("", "o=1"):
        browser.open(save(tmp_path / "m.html", given), address)
        high, tile = browser.run(
            "return ['#grid', '.tile'].map((name) => document.querySelector(name).getBoundingClientRect().height)"
        )
        assert high <= 900 and tile >= 70


def test_special_tokens_left_out_of_the_grid_are_named(browser, two, path):
    browser.open(path, "x=1")
    row = two[0].weights_NHQK[1, 2].astype(np.float64)
    row[:, 0] = 0
    expected = weight_colours(np.sqrt((row / row.sum(1, keepdims=True)).ravel())).reshape(7, 7, 3)
    assert np.abs(tiles(browser)[6][0] - expected).max() <= 16
    assert "without special tokens" in browser.text("legend")


def test_sorted_heads_have_no_means(browser, two, path):
    """By their mass, each with its layer and head, counted from 0."""
    browser.open(path, "a=next")
    letters = browser.run("return [...document.querySelectorAll('.head')].map((one) => one.title)")
    mass_NH = two[0].targets["next"].mass_NH
    order = [divmod(place, 3) for place in np.argsort(-mass_NH, axis=None)]
    assert [title.split(",")[:2] for title in letters] == [[f"layer {n}", f" head {h}"] for n, h in order]


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    given = [views.view(f"step {at}", step=at, weights_NHQK=views.attention(seed=at)) for at in (0, 10, 30)]
    given.append(views.view("other", model="other", weights_NHQK=views.attention(seed=7)))
    return save(tmp_path_factory.mktemp("page") / "steps.html", given), given


def test_a_line_of_the_chart_is_the_mean_of_the_guided_heads_of_a_layer(browser, steps):
    path, given = steps
    browser.open(path)
    lines = browser.run(
        """return [...document.querySelectorAll("#chart polyline")].map((line) =>
        [line.nextSibling.nextSibling.textContent, line.getAttribute("points")]);"""
    )
    assert sorted(name for name, _ in lines) == ["layer 0", "layer 1"]
    masses = np.array([view.targets["next"].mass_NH[:, 0] for view in given[:3]])
    for name, points in lines:
        x, y = np.array([point.split(",") for point in points.split()], float).T
        assert np.diff(x)[1] == pytest.approx(2 * np.diff(x)[0], abs=0.3)
        expected = masses[:, int(name[-1])]
        assert np.diff(y) == pytest.approx(-140 * np.diff(expected), abs=0.2)


def test_everything_follows_the_colour_scheme_at_once(browser, scheme, steps):
    """With a head, a second model and the chart open: pixel by pixel as in a page that was opened in this scheme."""

    def picture():
        return np.asarray(Image.open(io.BytesIO(browser.driver.get_screenshot_as_png())).convert("RGB"), int)

    shown = {}
    for value, other in (("dark", "light"), ("light", "dark")):
        scheme(value)
        browser.open(steps[0], "v=2&o=3&l=1&h=1&r=1")
        browser.run("document.querySelector('#steps details').open = true; document.activeElement.blur();")
        shown[value] = picture()
        browser.act(lambda other=other: scheme(other))
        shown[value, other] = picture()
    for value, other in (("dark", "light"), ("light", "dark")):
        assert np.array_equal(shown[other, value], shown[value])
    assert np.abs(shown["dark"] - shown["light"]).max() > 200


@pytest.mark.parametrize("value", ["light", "dark"])
def test_lines_of_the_chart_stand_out(browser, scheme, steps, value):
    """A contrast of at least 3 : 1 to the page, as for all graphics that carry meaning (WCAG 1.4.11)."""
    scheme(value)
    browser.open(steps[0])
    found = browser.run(
        """const rgb = (text) => text.match(/[0-9.]+/g).slice(0, 3).map(Number);
        const lines = [...document.querySelectorAll("#chart polyline")].map((line) => getComputedStyle(line).stroke);
        return [getComputedStyle(document.body).backgroundColor, ...lines].map(rgb);"""
    )
    linear = np.array(found) / 255
    linear = np.where(linear <= 0.04045, linear / 12.92, ((linear + 0.055) / 1.055) ** 2.4)
    page, *lines = linear @ [0.2126, 0.7152, 0.0722] + 0.05
    assert min(max(line, page) / min(line, page) for line in lines) >= 3
