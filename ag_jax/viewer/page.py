"""One HTML file that shows attention maps, without a network, a server or a library.

    view = View("step 1,100", model="ag-seed0", columns=tokens, weights_NHQK=weights)
    html = page("ag-seed0", [view])

The file holds a script, which is `SCRIPTS`, and these elements, which the script reads:

* `meta`: JSON with the tokens, and for each view its names, masses, entropies and targets (`_describe`);
* `overview-V`: the overview of all heads of view V, base64 of raw deflate (`encode.overview`);
* `map-V-N-H`: the map of head H of layer N, all counted from 0 (`encode.encode_map`). Behind the last head of a layer
  is the mean of its heads, here, in the overview, and in lists of `meta` with a value for each head. Large pages,
  and views that store the maps of some heads only, have no map of it (`_has_means`);
* `words-V-N-H`: its attention between words instead of tokens (`encode.between_words`), in the same form. A page that
  would be larger than `LARGEST_FULL` with these has none, and the script sums the weights of `map-V-N-H`;
* `hidden-V-N-H`: which cells an attack masked (`encode.bits`).

Numbers that may be quoted, such as masses, are computed here from the weights, not from what is stored.

Shape letters: N layers, H heads, Q query position, K key position.
"""

import dataclasses
import html
import json
import math
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ag_jax.viewer import colours, encode
from ag_jax.viewer.encode import FULL, PICTURE

FORMAT = 2
GENERATOR = '<meta name="generator" content="ag_jax">'  # in every page
PRECISIONS = {"full": FULL, "picture": PICTURE}
# Of 144 heads of a published BERT at 512 tokens; forecasts for others.
BYTES_OF_A_WEIGHT = {"full": 0.64, "picture": 0.23}
BYTES_OF_A_COARSE_CELL = 0.42  # of the overview
LARGEST_FULL = 4_000_000  # bytes of maps from which on they are stored as pictures
FOLDER = pathlib.Path(__file__).parent
SCRIPTS = ("lines.js", "saved.js", "viewer.js")  # one script; the last one begins to draw
Heads = Sequence[tuple[int, int]]  # (layer, head), counted from 0
Words = Sequence[tuple[str, int]]  # (word, its first token)


@dataclasses.dataclass(frozen=True, eq=False)
class Target:
    """A pattern's target matrix for a text, with each head's attention mass on it and the levels of chance.

    matrix_QK: target; each row in which the pattern points at a token sums to 1.
    has_target_Q: rows in which the pattern points at a token.
    title: name for people, such as [Next].
    colour: colour of its heads, such as #0072B2.
    mass_NH: each head's attention mass on the target, NaN without a target.
    chance_N: in each layer, the mass of attention that is uniform over what a row sees, NaN without a target.
    """

    matrix_QK: np.ndarray
    has_target_Q: np.ndarray
    title: str
    colour: str
    mass_NH: np.ndarray
    chance_N: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class View:
    """A view of the page: a model's attention weights for one text, with tokens, patterns and masked pairs to show.

    name: what tells this view from the others of the page, for people.
    model: name of the model. Views of one model and kind that differ in `step` are shown with a slider.
    columns: the tokens that are attended to, as people read them.
    weights_NHQK: attention weights.
    rows: the tokens that attend; None if they are those of the columns.
    step: training step of the model; None if it has no steps.
    kind: name of the kind of attention, such as Encoder.
    texts: what the tokens are, such as Text: of the columns, and of the rows if these are other tokens.
    other_texts: (name, text) of further texts to print, such as the translation of the columns' text.
    left_out: number of tokens of the texts that were cut off.
    words: (word, its first token) of all words of the columns, each of which reaches to the next one; () if words are
        not known.
    row_words: those of the rows; None if they are those of the columns.
    guided: for each layer, the pattern that guides each of its heads, None for a free head; empty if none is guided.
    targets: the patterns whose masses are shown.
    special: positions of the columns that the tokenizer added, such as [CLS].
    is_causal: whether a row sees only the columns up to its own position.
    windows: for each layer, W if a row sees its own column and W // 2 columns on each side; None for a layer that sees
        all columns. Empty if all layers do.
    hidden_NHQK: cells that an attack masked, where H is 1 if all heads share a mask; None without masks.
    before_NHQK: the weights without the attack, to show what share of attention the masked cells held; None takes
        `weights_NHQK`.
    whole: heads whose maps are stored; of the others the page has only the overview. None stores all, () none.
    is_compared: whether the page shows this view beside the first one when it is opened.
    note: a sentence about the view.
    """

    name: str
    model: str
    columns: Sequence[str]
    weights_NHQK: np.ndarray
    rows: Sequence[str] | None = None
    step: int | None = None
    kind: str = "Encoder"
    texts: Sequence[str] = ("Text",)
    other_texts: Sequence[tuple[str, str]] = ()
    left_out: int = 0
    words: Words = ()
    row_words: Words | None = None
    guided: Sequence[Sequence[str | None]] = ()
    targets: Mapping[str, Target] = dataclasses.field(default_factory=dict)
    special: Sequence[int] = ()
    is_causal: bool = False
    windows: Sequence[int | None] = ()
    hidden_NHQK: np.ndarray | None = None
    before_NHQK: np.ndarray | None = None
    whole: Heads | None = None
    is_compared: bool = False
    note: str = ""

    def __post_init__(self):
        shape = self.weights_NHQK.shape
        tokens = len(self.columns if self.rows is None else self.rows), len(self.columns)
        if len(shape) != 4 or shape[2:] != tokens or 0 in shape:
            raise ValueError(
                f"the weights of the view {self.name!r} must be of layers x heads x {tokens[0]} x {tokens[1]} tokens, "
                f"got an array of the shape {shape}"
            )

    @property
    def starts(self) -> tuple[list[int], list[int]]:
        """The first token of each word of the rows, and of each word of the columns."""
        rows, columns = self.words if self.row_words is None else self.row_words, self.words
        return [first for _, first in rows], [first for _, first in columns]

    @property
    def has_words(self) -> bool:
        """Whether the page can show attention between words, because some word has more than one token."""
        return bool(self.words) and tuple(map(len, self.starts)) != self.weights_NHQK.shape[2:]

    @property
    def stored(self) -> Heads:
        """The heads (layer, head) whose maps are stored in the page, not only in the overview."""
        layers, heads = self.weights_NHQK.shape[:2]
        every = [(layer, head) for layer in range(layers) for head in range(heads)]
        return every if self.whole is None else self.whole


def expected_bytes(views: Iterable[View], detail: str, words: bool = False) -> float:
    """Return the expected size in bytes of the maps and overviews of views, without pairs masked by attacks.

    words: whether the attention between words is stored, too.
    """
    size = 0.0
    for view in views:
        layers, heads, *lengths = view.weights_NHQK.shape
        coarse = [math.ceil(length / encode.block(*lengths)) for length in lengths]
        stored = len(view.stored) + layers * _has_means(view, detail)
        if words and view.has_words:
            size += BYTES_OF_A_WEIGHT[detail] * stored * math.prod(map(len, view.starts))
        size += BYTES_OF_A_WEIGHT[detail] * stored * math.prod(lengths)
        size += BYTES_OF_A_COARSE_CELL * layers * (heads + 1) * math.prod(coarse)
    return size


def chosen_detail(views: Sequence[View]) -> str:
    """Return the detail with which to store maps: `full`, or `picture` if the page would be large."""
    return "full" if expected_bytes(views, "full") <= LARGEST_FULL else "picture"


def side_by_side(views: Sequence[View]) -> list[View]:
    """Return views of which the page, when it is opened, shows the first one beside the first one of another model."""
    compared = next((at for at, view in enumerate(views) if view.model != views[0].model), None)
    return [dataclasses.replace(view, is_compared=at == compared) for at, view in enumerate(views)]


def strongest_heads(view: View, most: int) -> Heads:
    """Return the `most` heads that follow some pattern most strongly above chance; without patterns, the first heads.

    How far a head's mass exceeds chance is weighted by the share of rows in which the pattern points at a token.
    """
    layers, heads = view.weights_NHQK.shape[:2]
    # Rows without a target count as rows that do not exceed chance.
    excess = [
        (target.mass_NH - target.chance_N[:, None]) * target.has_target_Q.mean()
        for target in view.targets.values()
        if target.has_target_Q.any()
    ]
    best_NH = np.max(excess, axis=0) if excess else np.zeros((layers, heads))
    order = np.argsort(-best_NH, axis=None, kind="stable")[:most]
    return [(int(place) // heads, int(place) % heads) for place in order]


def page(
    title: str,
    views: Sequence[View],
    detail: str | None = None,
    most_bytes: float = LARGEST_FULL,
) -> str:
    """Return the HTML of a page with these views of attention maps, which begins with the first view.

    title: heading of the page.
    detail: `full` stores each weight with 256 levels, `picture` with 32 and more for large weights (`encode.PICTURE`);
        None chooses by the size.
    most_bytes: size of the maps up to which the page stores the attention between words.

    Raises ValueError for weights that are not numbers from 0 to 1.
    """
    detail = chosen_detail(views) if detail is None else detail
    words = expected_bytes(views, detail, words=True) <= most_bytes
    precision = PRECISIONS[detail]
    meta = {
        "format": FORMAT,
        "title": title,
        "detail": detail,
        "levels": precision.levels,
        "refinedFrom": precision.refined_from,
        "coarse": encode.COARSE.levels,
        "palettes": colours.WEIGHTS,
        "differences": colours.DIFFERENCES,
        "other": next((number for number, view in enumerate(views) if view.is_compared), None),
        "views": [_describe(view) for view in views],
    }
    names, pieces = ["meta"], []
    for number, view in enumerate(views):
        for name, data in _maps(view, detail, words):
            names.append(name.format(number))
            pieces.append(data)
    # A "<" in text could end the element that holds it.
    json_text = json.dumps(meta, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    texts = [json_text, *encode.compress_all(pieces)]
    elements = [
        f'<script type="{"application/json" if name == "meta" else "text/plain"}" id="{name}">{text}</script>'
        for name, text in zip(names, texts, strict=True)
    ]
    style, body, *scripts = (
        (FOLDER / name).read_text(encoding="utf-8") for name in ("viewer.css", "viewer.html", *SCRIPTS)
    )
    before, between, after = body.split("<!-- DATA -->")[0], *body.split("<!-- DATA -->")[1].split("<!-- SCRIPT -->")
    head = f"{GENERATOR}\n<title>{html.escape(title)}</title>\n<style>\n{style}</style>"
    return "".join(
        [
            before.replace("<!-- HEAD -->", head, 1),
            "\n".join(elements),
            between,
            "<script>\n{}</script>".format("\n".join(scripts)),
            after,
        ]
    )


def _has_means(view: View, detail: str) -> bool:
    """Return whether the page stores the mean map of each layer, besides its overview."""
    return detail == "full" and view.whole is None


def _with_mean(measure: Callable[[np.ndarray], np.ndarray], values_NH: np.ndarray) -> np.ndarray:
    """Return what `measure` returns of all heads' values `NH...`, and behind each layer's heads that of their mean."""
    return np.concatenate([measure(values_NH), measure(values_NH.mean(1, keepdims=True))], axis=1)


def _maps(view: View, detail: str, words: bool) -> Iterable[tuple[str, bytes]]:
    """Yield (element name with {} for the view's number, bytes) of a view's overview, maps and masked pairs.

    words: whether to yield the maps between words.
    """
    layers, heads = view.weights_NHQK.shape[:2]
    yield "overview-{}", encode.overview(_with_mean(encode.coarse, view.weights_NHQK))
    means = [(layer, heads) for layer in range(layers)] if _has_means(view, detail) else []
    for layer, head in [*view.stored, *means]:
        weights_QK = view.weights_NHQK[layer, head] if head < heads else view.weights_NHQK[layer].mean(0)
        yield f"map-{{}}-{layer}-{head}", encode.encode_map(weights_QK, PRECISIONS[detail])
        if words and view.has_words:
            of_words = encode.between_words(weights_QK, *view.starts)
            yield f"words-{{}}-{layer}-{head}", encode.encode_map(of_words, PRECISIONS[detail])
    if view.hidden_NHQK is not None:
        for layer, head in np.ndindex(view.hidden_NHQK.shape[:2]):
            yield f"hidden-{{}}-{layer}-{head}", encode.bits(view.hidden_NHQK[layer, head])


def _describe(view: View) -> dict[str, Any]:
    """Return the JSON data about a view that the page's script reads besides its maps."""
    layers, heads, queries, keys = view.weights_NHQK.shape
    described: dict[str, Any] = {
        "name": view.name,
        "model": view.model,
        "step": view.step,
        "kind": view.kind,
        "note": view.note,
        "layers": layers,
        "heads": heads,
        "columns": list(view.columns),
        "rows": None if view.rows is None else list(view.rows),
        "texts": list(view.texts),
        "otherTexts": list(map(list, view.other_texts)),
        "leftOut": view.left_out,
        "words": _described_words(view),
        "block": encode.block(queries, keys),
        "causal": view.is_causal,
        "windows": list(view.windows),
        "special": list(view.special),
        "sums": bool(np.allclose(view.weights_NHQK.sum(-1), 1, atol=1e-3)),
        "guided": [[*of_layer, None] for of_layer in view.guided] or [[None] * (heads + 1)] * layers,
        "entropy": _rounded(_with_mean(_entropy, view.weights_NHQK)),
        "targets": {name: _target(target) for name, target in view.targets.items()},
    }
    if view.hidden_NHQK is not None:
        hidden = np.broadcast_to(view.hidden_NHQK, view.weights_NHQK.shape)
        described["hiddenHeads"] = view.hidden_NHQK.shape[1]
        before = view.weights_NHQK if view.before_NHQK is None else view.before_NHQK
        described["hiddenMass"] = _rounded(_with_mean(np.asarray, (before * hidden).sum(-1).mean(-1)))
        described["hiddenShare"] = _rounded(
            _with_mean(np.asarray, hidden.sum((-1, -2)) / _visible_cells(view)[:, None])
        )
    return described


def _described_words(view: View) -> dict[str, Any] | None:
    """Return the words of a view and the first token of each, for the script; None if they are not shown."""
    if not view.has_words:
        return None
    row_starts, column_starts = view.starts
    return {
        "columns": [word for word, _ in view.words],
        "columnStarts": column_starts,
        "rows": None if view.row_words is None else [word for word, _ in view.row_words],
        "rowStarts": row_starts,
    }


def _visible_cells(view: View) -> np.ndarray:
    """Return how many cells (query-key pairs) of a map are visible in each layer, `N`."""
    layers, _, queries, keys = view.weights_NHQK.shape
    distance_QK = np.arange(keys)[None, :] - np.arange(queries)[:, None]
    earlier_QK = distance_QK <= 0 if view.is_causal else np.ones_like(distance_QK, bool)
    windows = view.windows or (None,) * layers
    return np.array([(earlier_QK & (window is None or np.abs(distance_QK) <= window // 2)).sum() for window in windows])


def _entropy(weights_NHQK: np.ndarray) -> np.ndarray:
    """Return each head's attention entropy in bits, a mean over queries, `NH`; NaN if rows do not sum to 1."""
    sums_NH = np.abs(weights_NHQK.sum(-1) - 1).max(-1) < 1e-3
    logs = np.log2(weights_NHQK, out=np.zeros_like(weights_NHQK), where=weights_NHQK > 0)
    return np.where(sums_NH, -(weights_NHQK * logs).sum(-1).mean(-1), np.nan)


def _target(target: Target) -> dict[str, Any]:
    """Return JSON data of a target for the script: its distinct rows, and each query's index among them or -1."""
    distinct: dict[tuple[tuple[int, float], ...], int] = {}
    numbers = []
    for row_K, has_target in zip(target.matrix_QK, target.has_target_Q, strict=True):
        places = np.nonzero(row_K)[0]
        row = tuple((int(place), float(f"{row_K[place]:.4g}")) for place in places)
        numbers.append(distinct.setdefault(row, len(distinct)) if has_target else -1)
    return {
        "title": target.title,
        "colour": target.colour,
        "mass": _rounded(_with_mean(np.asarray, target.mass_NH)),  # the mass of a mean is the mean of masses
        "chance": _rounded(np.asarray(target.chance_N)),
        "distinct": [list(map(list, row)) for row in distinct],
        "numbers": numbers,
    }


def _rounded(values: np.ndarray) -> Any:
    """Return numbers rounded to six digits as nested lists, None for those that are not finite.

    The page rounds them to two decimals: of four digits it would show 0.9950042 as 0.99, and figures show it as 1.00.
    """
    if values.ndim:
        return [_rounded(value) for value in values]
    return float(f"{values:.6g}") if np.isfinite(values) else None
