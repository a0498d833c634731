"""Parts shared by all figures: colours, readable labels, drawings of attention maps, and PNG files.

Figures are `matplotlib.figure.Figure`s made without pyplot, so drawing needs no display and leaves no global state.

Shape letters: N layers, H heads, Q query position, K key position.
"""

import bisect
import functools
import io
import math
import os
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from etils import epath
from matplotlib import font_manager, ft2font, rcParams
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.textpath import text_to_path

from ag_jax.analysis import report
from ag_jax.viewer import encode
from ag_jax.viewer.colours import CATEGORIES

PALETTE = CATEGORIES
SMALL, MEDIUM, LARGE = 7.0, 8.5, 10.0  # points
DPI = 150
WIDTH = 8.4  # maximum width of a figure in inches; its text is then legible at 800 pixels, as in a README
NARROWEST = 2.0  # minimum of the shorter side of a map in inches, so that its title does not touch the next one
LABELLED = 0.96  # share of a side of a map that labels of its tokens may take, so that they do not touch
LONGEST_LABEL = 14  # characters
NO_GLYPH = "□"  # drawn in place of characters that the font lacks
SCALE = "colours by its square root"  # of weight_scale, for people
WEIGHTS = "BuPu"  # colour map of weights and masses: white is 0, dark is 1


def colours(names: Iterable[str]) -> dict[str, str]:
    """Return {name: colour}, in the order of the names; colours repeat if there are more names than colours."""
    unique = list(dict.fromkeys(names))
    return {name: PALETTE[place % len(PALETTE)] for place, name in enumerate(unique)}


@functools.lru_cache(maxsize=4)
def _glyphs(families: tuple[str, ...]) -> frozenset[int]:
    """Return the code points that the fonts of these families can show."""
    files = {font_manager.findfont(font_manager.FontProperties(family=[family])) for family in families}
    return frozenset(point for file in files for point in ft2font.FT2Font(file).get_charmap())


def label(text: str, longest: int = LONGEST_LABEL) -> str:
    """Return `text` shortened to `longest` characters, with `NO_GLYPH` for characters that cannot be drawn.

    These are control characters, separators other than a space, and characters that the font lacks. For scripts that
    matplotlib's default font lacks, add an installed font to `matplotlib.rcParams["font.family"]`. The "▁" that stands
    for a space is drawn as "␣", because it reaches into the label below.
    """
    text = text.replace("▁", "␣")
    glyphs = _glyphs(tuple(rcParams["font.family"]))
    text = "".join(
        char if (ord(char) in glyphs and unicodedata.category(char)[0] not in "CZ") or char == " " else NO_GLYPH
        for char in text
    )
    return text if len(text) <= longest else text[: longest - 1] + "…"


def wrapped(text: str | Sequence[str], inches: float, points: float, most: int = 2) -> str:
    """Return `text` broken into at most `most` lines of `inches` width; what does not fit is replaced by "…".

    Lines are broken at spaces, and white space counts as one space. Characters that cannot be drawn are replaced as in
    `label`.

    text: text, or a sequence of texts between which alone a line is broken.
    points: size of the font.
    """
    properties = font_manager.FontProperties(size=points)

    def fits(line: str) -> bool:
        return text_to_path.get_text_width_height_descent(line, properties, ismath=False)[0] <= inches * 72

    lines: list[str] = []
    for word in text.split() if isinstance(text, str) else text:
        word = label(word, len(word) + 1)
        if lines and fits(f"{lines[-1]} {word}"):
            lines[-1] += f" {word}"
        else:
            lines.append(word)
        if len(lines) > most:  # the rest of a long text is not shown
            break
    if len(lines) > most:
        lines = [*lines[: most - 1], f"{lines[most - 1]}…"]
    return "\n".join(line if fits(line) else _shorten(line, fits) for line in lines)


def _shorten(line: str, fits: Callable[[str], bool]) -> str:
    """Return the longest beginning of a line that fits with "…" behind it, at least one character."""
    line = line.rstrip("…")

    def cut(length: int) -> str:
        return f"{line[:length].rstrip()}…"

    # By bisection, because a text without spaces may be one long line, and to measure it takes as long as it is.
    longest = bisect.bisect_left(range(2, len(line) + 1), True, key=lambda length: not fits(cut(length))) + 1
    return cut(longest)


class Size(NamedTuple):
    """Width and height in inches of a drawn attention map."""

    width: float
    height: float


def map_size(queries: int, keys: int, longest: float, narrowest: float = NARROWEST) -> Size:
    """Return the size in which to draw an attention map, whose longer side gets `longest` inches.

    Cells are square, unless the shorter side would then be shorter than `narrowest`.
    """
    per_token = longest / max(queries, keys)
    least = min(narrowest, longest)
    return Size(max(least, per_token * keys), max(least, per_token * queries))


def room_for_labels(tokens: int) -> float:
    """Return the inches that the side of an attention map needs so that each of `tokens` tokens can be labelled."""
    return tokens * SMALL / (LABELLED * 72)


def token_ticks(axes: Axes, size: Size, *, rows: Sequence[str] = (), columns: Sequence[str] = ()) -> None:
    """Label the rows and columns of an attention map with tokens, as many as are legible.

    size: size of the map.
    rows: tokens of the rows, for labels on the left; empty for no labels.
    columns: tokens of the columns, for labels below; empty for no labels.

    If some tokens of a side are left out, each label also has the token's position in the sentence, counted from 0.
    """

    def ticks(tokens: Sequence[str], inches: float) -> tuple[range, list[str], int]:
        share = room_for_labels(len(tokens)) / inches  # what labels of all tokens take of the side
        step = 1 if share < 1 + 1e-9 else math.ceil(1.5 * LABELLED * share)
        places = range(0, len(tokens), step)
        names = [label(tokens[place]) for place in places]
        if step > 1:
            names = [f"{name}  {place}" for name, place in zip(names, places, strict=True)]
        return places, names, step

    # Tokens are text: a dollar sign in one does not begin a formula.
    places, names, step = ticks(columns, size.width)
    axes.set_xticks(places, names, rotation=90, fontsize=SMALL, parse_math=False)
    axes.tick_params("x", length=2 if step > 1 else 0, pad=2)
    places, names, step = ticks(rows, size.height)
    axes.set_yticks(places, names, fontsize=SMALL, parse_math=False)
    axes.tick_params("y", length=2 if step > 1 else 0, pad=2)


def layer_head_ticks(axes: Axes, shape: tuple[int, ...], most: int) -> None:
    """Label the rows of a heat map with layers and its columns with heads, at most `most` of each.

    shape: numbers of layers and of heads.
    """
    rows, columns = (range(0, count, math.ceil(count / most)) for count in shape)
    axes.set_xticks(columns, [str(head) for head in columns], fontsize=SMALL)
    axes.set_yticks(rows, [str(layer) for layer in rows], fontsize=SMALL)
    axes.tick_params(length=0)


def weight_scale() -> PowerNorm:
    """Return a colour scale for attention weights by their square root, so that weak attention is visible, too."""
    return PowerNorm(0.5, 0.0, 1.0)


def block_size(length: int, inches: float, pixels: int = 3) -> int:
    """Return how many tokens a cell covers along the side of a map of `length` tokens and `inches` inches.

    This is the smallest number with which a cell is at least `pixels` pixels wide.
    """
    return math.ceil(length * pixels / (inches * DPI))


class Blocks(NamedTuple):
    """Numbers of tokens that one cell of a drawn attention map covers, from top to bottom and from left to right."""

    rows: int
    columns: int


def block_sizes(queries: int, keys: int, size: Size, pixels: int = 3) -> Blocks:
    """Return how many tokens (rows, columns) one cell of an attention map drawn in this size covers."""
    return Blocks(block_size(queries, size.height, pixels), block_size(keys, size.width, pixels))


def draw_map(axes: Axes, weights_QK: np.ndarray, size: Size) -> AxesImage:
    """Draw an attention map, or a pattern's target matrix, into the axes in this size.

    For long sentences, each cell shows the largest weight of a block of tokens (`encode.largest`).
    """
    queries, keys = weights_QK.shape
    blocks = block_sizes(queries, keys, size)
    cells_QK = encode.largest(weights_QK, *blocks)
    bottom, right = len(cells_QK) * blocks.rows - 0.5, cells_QK.shape[1] * blocks.columns - 0.5
    # The aspect is the ratio of a token's height to its width.
    aspect = size.height / queries / (size.width / keys)
    extent = (-0.5, right, bottom, -0.5)
    image = axes.imshow(cells_QK, cmap=WEIGHTS, norm=weight_scale(), extent=extent, aspect=aspect)
    axes.set(xlim=(-0.5, keys - 0.5), ylim=(queries - 0.5, -0.5), xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(linewidth=0.6, color="0.5")
    return image


def frame(axes: Axes, colour: str) -> None:
    """Draw the frame of an attention map in a colour."""
    for spine in axes.spines.values():
        spine.set(linewidth=1.8, color=colour)


def caption(figure: Figure, *texts: str) -> None:
    """Write texts above all panels of a figure, each in one line; empty ones are left out."""
    inches = max(5.0, 0.92 * figure.get_figwidth())
    lines = [wrapped(text, inches, MEDIUM, most=1) for text in texts if text]
    if lines:
        figure.suptitle("\n".join(lines), fontsize=MEDIUM, parse_math=False)


def map_axes(axes: Axes, row: str, column: str) -> None:
    """Write what a row and a column of an attention map are beside and below it, under its labels."""
    axes.set_ylabel("\n".join(filter(None, [axes.get_ylabel(), row])), fontsize=MEDIUM)
    axes.set_xlabel(column, fontsize=MEDIUM)


def weight_bar(
    figure: Figure,
    image: AxesImage,
    axes: Sequence[Axes] | np.ndarray,
    blocks: Blocks,
    inside: Axes | None = None,
) -> None:
    """Add the colour bar of attention weights to a figure, below the panels `axes` or in the panel `inside`.

    Its label says how colours stand for weights, and what a cell shows that stands for several tokens.

    inside: a panel without a map, in which the bar is drawn; None draws it below the panels `axes`.
    """
    ticks = [0, 0.05, 0.2, 0.5, 1]
    weight = "attention weight" if blocks == (1, 1) else f"largest weight of {blocks.rows} × {blocks.columns} tokens"
    if inside is None:
        width = min(1.0, 3.2 / figure.get_figwidth())
        bar = figure.colorbar(image, ax=axes, location="bottom", shrink=width, aspect=32, pad=0.02, ticks=ticks)
        bar.set_label(f"{weight}, {SCALE}", fontsize=MEDIUM)
    else:
        inside.set_axis_off()
        bar = figure.colorbar(
            image, cax=inside.inset_axes((0.06, 0.5, 0.88, 0.06)), ticks=ticks, orientation="horizontal"
        )
        bar.set_label(f"{weight},\n{SCALE}", fontsize=SMALL)
    bar.ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    bar.ax.tick_params(labelsize=SMALL)


def grid(panels: int, most: int) -> tuple[int, int]:
    """Return the numbers of columns and rows of a grid of panels, with at most `most` columns and few empty cells."""
    rows = math.ceil(panels / min(most, panels))
    return math.ceil(panels / rows), rows


def fill(
    figure: Figure,
    image: AxesImage,
    axes: Sequence[Axes] | np.ndarray,
    spare: Sequence[Axes] | np.ndarray,
    blocks: Blocks,
) -> None:
    """Add the colour bar of attention weights in the first panel of `spare`, or below all panels if there is none."""
    for panel in spare:
        panel.set_axis_off()
    weight_bar(figure, image, axes, blocks, spare[0] if len(spare) else None)


def tidy(axes: Axes) -> None:
    """Draw a faint grid behind the curves of a panel, and remove its frame at the top and right."""
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=SMALL)


def save(figure: Figure, path: str | os.PathLike) -> epath.Path:
    """Write a figure as a PNG, locally or to `gs://`, and return its path."""
    file = epath.Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, bbox_inches="tight", pad_inches=0.1)
    file.write_bytes(buffer.getvalue())
    return file


def save_for_report(figure: Figure, caption: str, path: epath.Path) -> report.Figure:
    """Write a figure as a PNG into a folder of a report's directory, and return it as a part of the report."""
    return report.Figure(caption, f"{path.parent.name}/{save(figure, path).name}")
