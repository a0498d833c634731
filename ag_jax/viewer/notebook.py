"""Attention maps in the output of a notebook's cell."""

import dataclasses
import html
import logging
from collections.abc import Sequence

from etils import epath

from ag_jax.viewer import page as pages
from ag_jax.viewer import picture
from ag_jax.viewer.page import View

MOST_BYTES = 2_000_000  # of maps in the output of a cell
HEIGHT = 1120  # pixels: the eight layers of the quickstart fit


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class NotebookView:
    """Views of attention maps that a notebook displays, and that can be written as a web page.

    title: heading.
    views: the first is shown first.
    detail: `full` or `picture`, see `viewer.page.page`. With None, the output of a cell has the first of these that
        keeps it below `MOST_BYTES`; if neither does, the maps of as many heads as fit, but at least one of each view,
        and of the others the overview.
    """

    title: str
    views: Sequence[View]
    detail: str | None = None

    def save(self, path: epath.PathLike) -> epath.Path:
        """Write a web page with the maps of all heads and return its path."""
        file = epath.Path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(pages.page(self.title, self.views, self.detail), encoding="utf-8")
        return file

    def __repr__(self) -> str:
        """Return a one-line description, because a notebook stores this text beside the page."""
        return f"<attention maps of {self.title!r}: {', '.join(view.name for view in self.views)}>"

    def _repr_html_(self) -> str:
        views, detail = self.views, self.detail
        if detail is None:
            detail = "full" if pages.expected_bytes(views, "full") <= MOST_BYTES else "picture"
            size = pages.expected_bytes(views, detail)
            if size > MOST_BYTES:
                overviews = pages.expected_bytes([dataclasses.replace(view, whole=()) for view in views], detail)
                share = max(MOST_BYTES - overviews, 0) / (size - overviews) if size > overviews else 0.0
                views = [_with_fewer_heads(view, share) for view in views]
        text = pages.page(self.title, views, detail, most_bytes=MOST_BYTES)
        if len(text) > 1.5 * MOST_BYTES:
            logging.getLogger(__name__).warning(
                "this output has %.0f MB: `.save('maps.html')` writes the page beside the notebook instead",
                len(text) / 1e6,
            )
        # The frame keeps the page's styles from the notebook; a frame with a file would not be stored in the notebook.
        return (
            f'<iframe srcdoc="{html.escape(text)}" sandbox="allow-scripts allow-downloads" '
            f'style="width: 100%; height: {HEIGHT}px; border: 0" title="{html.escape(self.title)}"></iframe>'
        )

    def _repr_png_(self) -> bytes:
        """Return a PNG of all heads of the first view, which is shown where scripts are not, such as on GitHub."""
        return picture.png(self.views[0])


def _with_fewer_heads(view: View, share: float) -> View:
    """Return the view with the maps of only this share of its stored heads: the strongest ones, and at least one."""
    if not view.stored:
        return view
    layers, heads = view.weights_NHQK.shape[:2]
    stored = {*view.stored}
    most = max(1, int(share * len(stored)))
    whole = [head for head in pages.strongest_heads(view, layers * heads) if head in stored][:most]
    has_patterns = any(target.has_target_Q.any() for target in view.targets.values())
    order = "those that follow a pattern most" if has_patterns else "the first ones"
    saved = "all" if len(stored) == layers * heads else f"those of {len(stored)}"
    note = (
        f"{view.note} This output holds the maps of {most} of {layers * heads} heads, {order}, and of the others only "
        f"their overview: .save(FILE) writes a page with {saved}."
    )
    return dataclasses.replace(view, whole=whole, note=note.strip())
