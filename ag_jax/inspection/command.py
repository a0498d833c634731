"""`ag-jax inspect`: a model's attention to a text, or to a text and its translation, as tables, figures and a page."""

from collections.abc import Sequence

from etils import epath

from ag_jax.analysis import changes, maps, stripes
from ag_jax.analysis.figures import plots
from ag_jax.distributed import storage
from ag_jax.inspection import pages
from ag_jax.inspection.heads import Chosen, Selection, read_heads, restrict
from ag_jax.inspection.looking import Seen, look
from ag_jax.inspection.pages import Page
from ag_jax.interop.opening import Inspected


def inspect(
    opened: Inspected,
    text: str | None = None,
    target: str | None = None,
    without: Sequence[str] = (),
    page: Page | None = None,
    chosen: Chosen = Chosen(),
) -> list[epath.Path]:
    """Print where a model's attention to a text lies, draw its attention maps and return the paths of the files.

    The tables have the attention mass on each pattern, and of the encoder also on the diagonal and on stripes. For a
    model that was trained against an attack, a table and a figure show how the attack changes the encoder's attention.

    For a model that translates, there are tables and figures of the encoder, of the decoder, and of the decoder's
    attention to the source.

    text: the text, by default `opened.text`.
    target: its translation, by default that of the model with all of its heads, which is printed.
    without: heads of the encoder whose outputs are zeroed, such as `3.2`, head 2 of layer 3. The tables and
        figures say so, and the figures have other file names, as have those of another text.
    page: an interactive page to write in place of the figures.
    chosen: layers or heads of the figure of heads; of each kind of attention those are drawn that it has.

    The figures are written to `figures/` in the directory of the model, or elsewhere if that is the directory of a
    Hugging Face model or cannot be written. Raises ValueError for a target of a model that does not translate, and for
    a layer or a head that the model does not have.
    """
    is_own = text in (None, opened.text) and target is None
    text = opened.text if text is None else text
    zeroed = read_heads(without, opened.model.config.layers, opened.model.config.heads)
    seen = look(opened, text, target, zeroed)
    selections = restrict(chosen, [attention.weights_NHQK.shape[:2] for attention, _ in seen.shown])
    print("\n".join([opened.description, *seen.lines]))
    print("\n\n\n".join(_tables(seen)), flush=True)
    if page is None:
        paths = storage.write_where_possible(
            lambda place: _draw(seen, place, selections, "" if is_own else f"{text} {target or ''}".strip()),
            opened.directory,
            may_write=opened.is_ours,
        )
    else:
        views = pages.make_views(page, seen, text, zeroed)
        paths = [pages.write(page, f"Attention of {opened.directory.name}", views)]
    for path in paths:
        print(f"{'drawn' if page is None else 'written, to open in a browser'}: {storage.link(path)}")
    return paths


def _tables(seen: Seen) -> list[str]:
    """Return the tables to print: attention mass on patterns and on stripes, and its change under the attack."""
    opened, (encoder, _) = seen.opened, seen.shown[0]
    tables = [maps.mass_table(attention, opened.special, assignment) for attention, assignment in seen.shown]
    tables.insert(1, stripes.shares_table(encoder))
    if seen.no_attack:
        tables.append(f"the change of attention under the attack is not shown: {seen.no_attack}")
    if seen.attacked is not None and opened.attack is not None:
        lines = [changes.change_table(seen.attacked.change_N, opened.attack.method), opened.attack.note]
        if seen.attacked.plain.tokens != encoder.tokens:
            lines.append(" ".join(seen.attacked.plain.tokens))
        tables.append("\n".join(line for line in lines if line))
    return tables


def _draw(seen: Seen, place: epath.Path, selections: Sequence[Selection], text: str) -> list[epath.Path]:
    """Write the figures of a model's attention to `figures/` in a directory and return their paths.

    text: text for the file names; empty for the model's own.
    """
    opened, folder = seen.opened, place / "figures"
    folder.mkdir(exist_ok=True)  # first, because it fails before minutes of drawing if nothing can be written
    figures = []
    for (attention, assignment), selection in zip(seen.shown, selections, strict=True):
        figures += plots.save_inspection(attention, assignment, opened.special, folder, opened.step, *selection, text)
    if seen.attacked is not None:
        path = folder / f"attention_attacked{plots.file_suffix(opened.step, (), text)}.png"
        figure = plots.draw_attack(seen.attacked.plain, seen.attacked.attacked, opened.assignment)
        figures.append(plots.save(figure, path))
    return figures
