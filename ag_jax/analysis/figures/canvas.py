"""Parts shared by all figures: colours, readable labels, drawings of attention maps, and PNG files.

Figures are `matplotlib.figure.Figure`s made without pyplot, so drawing needs no display and leaves no global state.

Shape letters: N layers, H heads, Q query position, K key position.
"""

import functools
import io
import math
import os
import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np
from etils import epath
from matplotlib import font_manager, ft2font, rcParams
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

# The palette of Okabe & Ito (2008), which readers with any kind of colour vision can tell apart.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#B8A600")
SMALL, MEDIUM, LARGE = 7.0, 8.5, 10.0  # points
DPI = 150
WIDTH = 10.6  # maximum width of a figure in inches, unless its panels would become illegible
LONGEST_LABEL = 14  # characters
NO_GLYPH = "□"  # drawn in place of characters that the font lacks
WEIGHTS = "BuPu"  # colour map of weights and masses: white is 0, dark is 1


def colours(names: Iterable[str]) -> dict[str, str]:
    """Return {name: colour}, in the order of the names; colours repeat if there are more names than colours."""
    unique = list(dict.fromkeys(names))
    return {name: PALETTE[at % len(PALETTE)] for at, name in enumerate(unique)}


@functools.lru_cache(maxsize=4)
def _glyphs(families: tuple[str, ...]) -> frozenset[int]:
    """Return the code points that the fonts of these families can show."""
    files = {font_manager.findfont(font_manager.FontProperties(family=[family])) for family in families}
    return frozenset(point for file in files for point in ft2font.FT2Font(file).get_charmap())


def label(text: str, longest: int = LONGEST_LABEL) -> str:
    """Return `text` shortened to `longest` characters, with `NO_GLYPH` for characters that cannot be drawn.

    These are control characters, separators other than a space, and characters that the font lacks. For scripts that
    matplotlib's default font lacks, add an installed font to `matplotlib.rcParams["font.family"]`.
    """
    glyphs = _glyphs(tuple(rcParams["font.family"]))
    shown = "".join(
        char if (ord(char) in glyphs and unicodedata.category(char)[0] not in "CZ") or char == " " else NO_GLYPH
        for char in text
    )
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def token_ticks(axes: Axes, tokens: Sequence[str], inches: float, *, rows: bool, columns: bool) -> None:
    """Label the rows and columns of an attention map `inches` wide with its tokens, as many as are legible.

    rows: whether to label the rows, on the left.
    columns: whether to label the columns, below.

    If some tokens are left out, each label also has the token's position in the sentence, counted from 1.
    """
    height = len(tokens) * SMALL / (inches * 72)  # total height of all labels, as a fraction of the map's side
    step = 1 if height <= 0.96 else math.ceil(1.5 * height)
    places = range(0, len(tokens), step)
    names = [label(tokens[at]) if step == 1 else f"{label(tokens[at])}  {at + 1}" for at in places]
    # Tokens are text: a dollar sign in one does not begin a formula.
    axes.set_xticks(places if columns else [], names if columns else [], rotation=90, fontsize=SMALL, parse_math=False)
    axes.set_yticks(places if rows else [], names if rows else [], fontsize=SMALL, parse_math=False)
    axes.tick_params(length=2 if step > 1 else 0, pad=2)


def weight_scale() -> PowerNorm:
    """Return a colour scale for weights from 0 to 1, by their square root, so that weak attention is visible, too."""
    return PowerNorm(0.5, 0.0, 1.0)


def block_size(length: int, inches: float, pixels: int = 3) -> int:
    """Return how many tokens each side of a drawn cell stands for, in a map of `length` tokens, `inches` wide.

    This is the smallest number with which a cell is at least `pixels` pixels wide.
    """
    return math.ceil(length * pixels / (inches * DPI))


def largest(weights_QK: np.ndarray, block: int) -> np.ndarray:
    """Reduce attention maps `...QK` to the maxima of squares of `block` by `block` tokens (the last may be smaller).

    Unlike a mean or a subsample, the maximum preserves thin lines.
    """
    starts = np.arange(0, weights_QK.shape[-1], block)
    return np.maximum.reduceat(np.maximum.reduceat(weights_QK, starts, axis=-2), starts, axis=-1)


def draw_map(axes: Axes, weights_QK: np.ndarray, inches: float) -> AxesImage:
    """Draw an attention map or target matrix, `inches` wide.

    For long sentences, each cell shows the largest weight of a square of tokens (`largest`).
    """
    length, block = len(weights_QK), block_size(len(weights_QK), inches)
    cells_QK = largest(weights_QK, block)
    end = len(cells_QK) * block - 0.5
    image = axes.imshow(cells_QK, cmap=WEIGHTS, norm=weight_scale(), extent=(-0.5, end, end, -0.5))
    axes.set(xlim=(-0.5, length - 0.5), ylim=(length - 0.5, -0.5), xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(linewidth=0.6, color="0.5")
    return image


def weight_bar(figure: Figure, image: AxesImage, axes: Sequence[Axes] | np.ndarray, block: int) -> None:
    """Add the colour bar of attention weights, with a note if a cell stands for several tokens."""
    bar = figure.colorbar(image, ax=axes, shrink=0.6, aspect=30, pad=0.015, ticks=[0, 0.05, 0.2, 0.5, 1])
    bar.ax.tick_params(labelsize=SMALL)
    bar.set_label("weight" if block == 1 else f"largest weight of {block} × {block} tokens", fontsize=MEDIUM)


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
