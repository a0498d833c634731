"""A model's attention to a text, as arrays and as a page."""

import dataclasses
import os
import tempfile
import webbrowser

import numpy as np
from etils import epath

from ag_jax.analysis.changes import AttackedText
from ag_jax.analysis.maps import AttentionMaps, Heads
from ag_jax.distributed import terminal
from ag_jax.inspection import pages
from ag_jax.inspection.looking import look
from ag_jax.interop.opening import Inspected
from ag_jax.viewer.notebook import NotebookView
from ag_jax.viewer.page import View, side_by_side


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Attention:
    """A model's attention to a text; a notebook shows it as a page with all heads.

    text: the text of the keys.
    maps: the weights with their tokens.
    decoder: of a model that translates, the decoder's attention to the translation; else None.
    cross: of a model that translates, the attention of the translation (queries) to the text (keys); else None.
    attacked: of a model that was trained against an attack, the maps without and with it, how far each layer changes,
        and the masked pairs of tokens; else None.
    """

    text: str
    maps: AttentionMaps
    _page: NotebookView
    _view: View
    decoder: "Attention | None" = None
    cross: "Attention | None" = None
    attacked: AttackedText | None = None

    @property
    def weights(self) -> np.ndarray:
        """The attention weights, float32 [layers, heads, queries, keys]; a row, over the keys, sums to 1."""
        return self.maps.weights_NHQK

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tokens that are attended to, as text: the keys."""
        return self.maps.tokens

    @property
    def query_tokens(self) -> tuple[str, ...]:
        """The tokens that attend, as text: the queries, which are other tokens than the keys in `cross` alone."""
        return self.maps.row_tokens

    @property
    def guided(self) -> np.ndarray:
        """The pattern that guides each head, such as "next", and None for free heads: [layers, heads]."""
        return np.array(self._view.guided, object)

    @property
    def masses(self) -> dict[str, np.ndarray]:
        """The share of each head's attention on the target of each pattern, {pattern: [layers, heads]}.

        It is 1 if a head follows the pattern, and NaN if the text has no target of the pattern.
        """
        return {name: target.mass_NH for name, target in self._view.targets.items()}

    @property
    def targets(self) -> dict[str, np.ndarray]:
        """The attention of a head that follows a pattern, {pattern: [queries, keys]}; rows without target are even."""
        return {name: target.matrix_QK for name, target in self._view.targets.items()}

    def view(self, *others: "Attention") -> NotebookView:
        """Return the page of all heads together with other attention to the same text, to compare side by side.

        others: of other models, or of other steps of the same run, through which the page then moves.

        Raises ValueError for attention to another text.
        """
        if strange := [other.text for other in others if other.text != self.text]:
            raise ValueError(f"expected attention to the same text, {self.text!r}, got {strange[0]!r}")
        views = [view for one in (self, *others) for view in one._page.views]
        return dataclasses.replace(self._page, views=side_by_side(views))

    @property
    def words(self) -> tuple[tuple[str, int, int], ...]:
        """The words of the keys: (word, its first token, the token after its last).

        The sum of `weights[..., first:end]` over these tokens is the attention to the word. Punctuation marks are words
        of their own. Special tokens and tokens of white space alone belong to no word. Of a text that was cut off, the
        last word is the part of it that has tokens.
        """
        return self.maps.words

    def save(self, path: str | os.PathLike) -> epath.Path:
        """Write a web page with all heads, which opens in a browser without a network, and return its path."""
        return self._page.save(path)

    def show(self) -> None:
        """Show the page of all heads: in a notebook as the output of the cell, elsewhere in a browser."""
        if terminal.is_notebook():
            from IPython.display import display

            display(self)
            return
        page = self.save(epath.Path(tempfile.mkdtemp(prefix="ag_jax-")) / "attention.html")
        webbrowser.open(f"file://{page}")

    def __repr__(self) -> str:
        layers, heads, queries, keys = self.weights.shape
        shape = f"{layers} layers of {heads} heads, {queries} queries, {keys} keys"
        return f"<ag_jax.Attention: {shape}\n {self.maps.sentence}>"

    def _repr_html_(self) -> str:
        return self._page._repr_html_()

    def _repr_png_(self) -> bytes:
        return self._page._repr_png_()


def attention(opened: Inspected, text: str, target: str | None, without: Heads) -> Attention:
    """Return a model's attention to a text or, of a model that translates, to a text and its translation.

    target: the translation; by default the model's own.
    without: heads of the encoder whose outputs are zeroed.

    Raises ValueError for a head that the model does not have.
    """
    layers, heads = opened.model.config.layers, opened.model.config.heads
    if strange := [place for place in without if not (0 <= place[0] < layers and 0 <= place[1] < heads)]:
        raise ValueError(f"expected heads (layer, head) from (0, 0) to {(layers - 1, heads - 1)}, got {strange[0]}")
    seen = look(opened, text, target, without)
    views = pages.views_of(seen, opened.place)
    page = NotebookView(f"Attention of {opened.place}", views)
    keys = {"encoder": text, "decoder": seen.target or "", "cross": text}
    by_kind = {
        maps.kind: Attention(keys[maps.kind], maps, page, view)
        for (maps, _), view in zip(seen.shown, views, strict=False)  # views under attack follow
    }
    decoder, cross = by_kind.get("decoder"), by_kind.get("cross")
    return dataclasses.replace(by_kind["encoder"], decoder=decoder, cross=cross, attacked=seen.attacked)
