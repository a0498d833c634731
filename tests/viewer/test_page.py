"""A page holds its views, loads nothing, and shows hostile tokens as text."""

import base64
import dataclasses
import html
import io
import json
import math
import re
import zlib

import matplotlib
import numpy as np
import pytest
from PIL import Image

from ag_jax.viewer import colours, encode
from ag_jax.viewer import page as pages
from ag_jax.viewer.encode import FULL, PICTURE
from ag_jax.viewer.notebook import NotebookView
from tests.viewer import views
from tests.viewer.decoding import decode_map
from tests.viewer.views import HOSTILE


def described_of(view):
    """Return the description of a page's only view."""
    (found,) = json.loads(elements(pages.page("t", [view]))["meta"])["views"]
    return found


def elements(text):
    """The contents of the elements with data, by id."""
    return dict(re.findall(r'<script type="[a-z/]+" id="([^"]+)">(.*?)</script>', text, flags=re.DOTALL))


def data_of(text, name):
    return zlib.decompress(base64.b64decode(elements(text)[name]), -15)


@pytest.mark.parametrize(("detail", "precision"), [("full", FULL), ("picture", PICTURE)])
def test_every_head_is_in_the_page(detail, precision):
    one, two = views.view("one"), views.view("two", weights_NHQK=views.attention(3, 2, 9, 9, seed=1), guided=())
    text = pages.page("A title", [one, two], detail)
    meta = json.loads(elements(text)["meta"])
    assert (meta["levels"], meta["refinedFrom"]) == (precision.levels, precision.refined_from)
    assert [(view["name"], view["layers"], view["heads"], view["block"]) for view in meta["views"]] == [
        ("one", 2, 3, 1),
        ("two", 3, 2, 1),
    ]
    for number, view in enumerate((one, two)):
        # Behind the heads of a layer is their mean, whose map large pages have in the overview alone.
        mean_NHQK = view.weights_NHQK.astype(np.float64).mean(1, keepdims=True)
        every_NHQK = np.concatenate([view.weights_NHQK, mean_NHQK], axis=1)
        assert data_of(text, f"overview-{number}") == encode.overview(every_NHQK)
        assert (f"map-{number}-0-{view.weights_NHQK.shape[1]}" in elements(text)) == (detail == "full")
        for layer, head in np.ndindex((every_NHQK if detail == "full" else view.weights_NHQK).shape[:2]):
            found = decode_map(data_of(text, f"map-{number}-{layer}-{head}"), 9, 9, precision)
            assert np.abs(found - every_NHQK[layer, head]).max() < 0.01


@pytest.mark.parametrize("detail", ["full", "picture"])
def test_attention_between_words_is_stored_where_it_fits(detail):
    """Of every head that has a map, from the exact weights; and of none if the page would be too large."""
    words = [(f"w{at}", at) for at in (0, 1, 4, 5, 8)]
    view = views.view(words=words, whole=[(1, 2), (0, 0)])
    small, large = (elements(pages.page("t", [view], detail, most_bytes=most)) for most in (1e6, 0))
    assert [name for name in small if name.startswith("words-")] == ["words-0-1-2", "words-0-0-0"]
    assert not any(name.startswith("words-") for name in large)
    rows_WQ = np.zeros((5, 9))
    for word, columns in enumerate(([0], [1, 2, 3], [4], [5, 6, 7], [8])):
        rows_WQ[word, columns] = 1
    exact = rows_WQ / rows_WQ.sum(1, keepdims=True) @ view.weights_NHQK[1, 2] @ rows_WQ.T
    data = zlib.decompress(base64.b64decode(small["words-0-1-2"]), -15)
    assert np.abs(decode_map(data, 5, 5, pages.PRECISIONS[detail]) - exact).max() < 0.011
    described = described_of(view)
    assert described["words"]["columns"] == [word for word, _ in words] and described["words"]["rowStarts"] == [
        0,
        1,
        4,
        5,
        8,
    ]
    assert described_of(views.view(words=[(f"w{at}", at) for at in range(9)]))["words"] is None  # they are the tokens


def test_numbers_are_those_of_the_weights():
    view = views.view()
    described = described_of(view)
    weights = view.weights_NHQK.astype(np.float64)
    for layer, head in np.ndindex(2, 3):
        rows = [-sum(w * math.log2(w) for w in row if w > 0) for row in weights[layer, head]]
        assert described["entropy"][layer][head] == pytest.approx(sum(rows) / 9, rel=1e-3)
    of_mean = weights[1].mean(0)
    assert described["entropy"][1][3] == pytest.approx(-(of_mean * np.log2(of_mean)).sum() / 9, rel=1e-3)
    target = described["targets"]["next"]
    on_next = [[np.diag(one, k=1).mean() for one in [*layer, layer.mean(0)]] for layer in weights]
    np.testing.assert_allclose(target["mass"], on_next, rtol=1e-3)
    assert target["chance"] == pytest.approx([1 / 9] * 2, rel=1e-3)
    assert described["guided"] == [["next", None, None, None]] * 2 and described["sums"] is True


def test_targets_are_stored_as_rows():
    """Rows without a target have the number -1; equal rows are stored once."""
    view = views.view()
    columns = views.next_target(view.weights_NHQK)
    shared = pages.Target(
        np.tile([0.5, 0.5, *[0.0] * 7], (9, 1)), np.ones(9, bool), "[X]", "#000", columns.mass_NH, np.full(2, np.nan)
    )
    given = {"next": columns, "x": shared}
    described = described_of(views.view(targets=given))
    for name, target in given.items():
        found = described["targets"][name]
        assert [number < 0 for number in found["numbers"]] == (~target.has_target_Q).tolist()
        for row_K, number in zip(target.matrix_QK, found["numbers"], strict=True):
            if number >= 0:
                again = np.zeros(9)
                for column, weight in found["distinct"][number]:
                    again[column] = weight
                np.testing.assert_allclose(again, row_K)
    assert len(described["targets"]["x"]["distinct"]) == 1 and described["targets"]["x"]["chance"] == [None] * 2


def test_masked_cells_and_what_they_held():
    hidden = np.random.default_rng(0).random((2, 1, 9, 9)) < 0.3
    view = views.view(hidden_NHQK=hidden)
    content, described = elements(pages.page("t", [view])), described_of(view)
    assert described["hiddenHeads"] == 1 and "hidden-0-0-1" not in content
    assert zlib.decompress(base64.b64decode(content["hidden-0-1-0"]), -15) == encode.bits(hidden[1, 0])
    held = [view.weights_NHQK[1, 2, q, k] for q, k in zip(*np.nonzero(hidden[1, 0]), strict=True)]
    assert described["hiddenMass"][1][2] == pytest.approx(sum(held) / 9, rel=1e-3)
    assert described["hiddenShare"][1][0] == pytest.approx(hidden[1, 0].mean(), rel=1e-3)

    # Before the attack; after it, the rows sum to less than 1.
    hidden, after = np.broadcast_to(np.arange(9) == 4, (2, 3, 9, 9)), views.attention()
    before = after.copy()
    after[..., 4] = 0
    described = described_of(views.view(weights_NHQK=after, before_NHQK=before, hidden_NHQK=hidden))
    np.testing.assert_allclose(np.array(described["hiddenMass"])[:, :3], before[..., 4].mean(-1), rtol=1e-3)
    assert described["entropy"][0][0] is None and described["sums"] is False


def test_the_share_of_masked_cells_is_of_those_that_are_seen():
    """Of 9 tokens, a row sees 9 in a layer without a window, and with a window of 2 at most three: 25 cells in all."""
    hidden = np.zeros((2, 1, 9, 9), bool)
    hidden[:, :, 4, 3:6] = True
    for is_causal, shares in ((False, [3 / 81, 3 / 25]), (True, [3 / 45, 3 / 17])):
        described = described_of(views.view(hidden_NHQK=hidden, windows=(None, 2), is_causal=is_causal))
        assert [of[0] for of in described["hiddenShare"]] == pytest.approx(shares, rel=1e-3)


def test_a_page_loads_nothing_and_keeps_text_as_text():
    view = views.view("</script><b>", tokens=list(HOSTILE), note="<i>&amp;")
    text = pages.page("<b>&title</b></title>", [view])
    meta = json.loads(elements(text)["meta"])
    assert meta["views"][0]["columns"] == list(HOSTILE) and meta["views"][0]["name"] == "</script><b>"
    assert text.count("</script") == 1 + len(elements(text))
    assert "<img" not in text and "<b>&title" not in text and "&lt;b&gt;&amp;title" in text
    # The one address is the name of the SVG language, which is not loaded.
    assert set(re.findall(r"[a-z]+://[^\s\"'`]*", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<link|<script[^>]* src|@import|url\(|import\(|fetch\(|\beval\(|innerHTML|new Function", text)
    assert "default-src 'none'" in text


def test_long_texts_are_stored_as_pictures():
    assert pages.chosen_detail([views.view()]) == "full"
    long = views.view(length=512, weights_NHQK=np.broadcast_to(np.float32(1 / 512), (12, 12, 512, 512)), targets={})
    assert pages.chosen_detail([long]) == "picture"


def test_bad_views_are_refused():
    with pytest.raises(ValueError, match="4 x 4"):
        views.view(tokens=list("abcd"), weights_NHQK=views.attention(), targets={})
    broken = views.attention()
    broken[0, 0, 0, 0] = np.nan
    with pytest.raises(ValueError, match="numbers from 0 to 1"):
        pages.page("t", [views.view(weights_NHQK=broken)])


def test_palettes_are_those_of_the_figures():
    for name in ("BuPu", "cividis"):
        stops = colours.WEIGHTS[name].split()
        for at, stop in enumerate(stops):
            expected = matplotlib.colormaps[name](at / (len(stops) - 1))[:3]
            np.testing.assert_allclose([int(stop[i : i + 2], 16) / 255 for i in (0, 2, 4)], expected, atol=0.003)


def test_a_notebook_shows_a_frame_and_a_picture(tmp_path):
    shown = NotebookView("A title", [views.view()])
    frame = shown._repr_html_()
    (inside,) = re.findall(r'srcdoc="([^"]*)"', frame)
    assert (
        html.unescape(inside)
        == pages.page("A title", shown.views)
        == shown.save(tmp_path / "new" / "m.html").read_text()
    )
    coarse = NotebookView("A title", shown.views, "picture").save(tmp_path / "p.html").read_text()
    assert coarse == pages.page("A title", shown.views, "picture") != html.unescape(inside)
    assert 'sandbox="allow-scripts allow-downloads"' in frame
    picture = np.asarray(Image.open(io.BytesIO(shown._repr_png_())))
    assert picture.shape == (2 * (45 + 4 + 4) + 4, 3 * (45 + 4 + 4) + 4, 3)
    assert picture[4, 4].tolist() == [0x00, 0x72, 0xB2]  # the frame of the guided head
    expected = matplotlib.colormaps["BuPu"](float(shown.views[0].weights_NHQK[0, 0, 2, 3]) ** 0.5)[:3]
    np.testing.assert_allclose(picture[6 + 5 * 2 + 2, 6 + 5 * 3 + 2] / 255, expected, atol=0.02)


def test_a_pattern_of_few_rows_makes_a_head_less_strong():
    mass_NH, other_NH = np.array([[0.9, 0.1]]), np.array([[0.1, 0.4]])
    one, most, chance_N = np.arange(9) == 3, np.arange(9) < 8, np.full(1, 0.1)
    targets = {
        "period": pages.Target(np.eye(9), one, "[Period]", "#009E73", mass_NH, chance_N),
        "next": pages.Target(np.eye(9), most, "[Next]", "#0072B2", other_NH, chance_N),
    }
    view = views.view(weights_NHQK=views.attention(1, 2), targets=targets)
    assert pages.strongest_heads(view, 1) == [(0, 1)]  # .3 in 8 rows, and not .8 in one
    target = pages.Target(
        np.eye(9), np.ones(9, bool), "[Next]", "#0072B2", np.array([[0.5], [0.6]]), np.array([0.1, 0.3])
    )
    view = views.view(weights_NHQK=views.attention(2, 1), targets={"next": target}, windows=(None, 4), guided=())
    assert pages.strongest_heads(view, 1) == [(0, 0)]  # .4 above chance, and not .3
    described = described_of(view)
    assert described["windows"] == [None, 4] and described["targets"]["next"]["chance"] == [0.1, 0.3]


def shown_in_a_notebook(monkeypatch, share, *given):
    """What the output of a cell says about each view, and the heads whose maps it has, if a share of the maps fits."""
    overviews = pages.expected_bytes([dataclasses.replace(view, whole=()) for view in given], "picture")
    most = overviews + 1.001 * share * (pages.expected_bytes(given, "picture") - overviews)
    monkeypatch.setattr("ag_jax.viewer.notebook.MOST_BYTES", most)
    (inside,) = re.findall(r'srcdoc="([^"]*)"', NotebookView("t", given)._repr_html_())
    content = elements(html.unescape(inside))
    notes = [view["note"] for view in json.loads(content["meta"])["views"]]
    places = [re.fullmatch(r"map-(\d)-(\d)-(\d)", name) for name in content]
    stored = [[(int(p[2]), int(p[3])) for p in places if p and int(p[1]) == at] for at in range(len(given))]
    kept = [dataclasses.replace(view, whole=heads) for view, heads in zip(given, stored, strict=True)]
    return notes, stored, pages.expected_bytes(kept, "picture") <= most


def test_a_large_output_holds_no_maps_that_a_view_does_not_store(monkeypatch):
    pairs = ((1, 2), (0, 1), (1, 0), (0, 0))
    given = views.view("four", whole=pairs, targets={}), views.view("none", whole=()), views.view("all")
    notes, stored, fits = shown_in_a_notebook(monkeypatch, 0.5, *given)
    assert fits and stored[:2] == [[(0, 0), (0, 1)], []] and len(stored[2]) == 3
    assert "2 of 6 heads" in notes[0] and notes[1] == ""
    (note,), (stored,), fits = shown_in_a_notebook(monkeypatch, 0.5, views.view())  # heads that follow a pattern most
    masses = views.view().targets["next"].mass_NH
    assert fits and len(stored) == 3 and "3 of 6 heads" in note
    assert min(masses[pair] for pair in stored) >= np.sort(masses.ravel())[-3]
