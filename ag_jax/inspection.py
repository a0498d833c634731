"""`ag-jax inspect`: a model's attention to a text, or to a text and its translation, as tables and as figures."""

from etils import epath

from ag_jax.analysis import maps, pairs, stripes
from ag_jax.analysis.figures import plots
from ag_jax.distributed import storage
from ag_jax.interop.opening import Inspected


def inspect(opened: Inspected, text: str | None = None, target: str | None = None) -> list[epath.Path]:
    """Print where a model's attention to a text lies, draw its attention maps and return the paths of the figures.

    The tables have the attention mass on each pattern, and of the encoder also on the diagonal and on stripes.

    For a model that translates, there are tables and figures of the encoder, of the decoder, and of the decoder's
    attention to the source.

    text: the text, by default `opened.text`.
    target: its translation, by default that of the model, which is printed.

    The figures are written to `figures/` in the directory of the model, or elsewhere if that is the directory of a
    Hugging Face model or cannot be written. Raises ValueError for a target of a model that does not translate.
    """
    text = opened.text if text is None else text
    lines = [opened.description]
    if target is not None:
        _check_target(opened, target)
    if opened.translator is None:
        options = (opened.tokenizer, text, opened.length)
        shown = [(maps.attention_maps(opened.model, opened.params, *options), opened.assignment)]
    else:
        translator, origin = opened.translator, "by this model" if target is None else "as given"
        if target is None:
            target = translator.beginning(text, opened.length - 1).text  # of as much as is shown, beside the end token
        lines += [f"text: {text}", f"translation, {origin}: {target}", ""]
        found = pairs.pair_maps(translator.model, translator.params, opened.tokenizer, text, target, opened.length)
        assignments = opened.assignment, opened.decoder_assignment, opened.cross_assignment
        shown = list(zip(found, assignments, strict=True))
    tables = [maps.mass_table(attention, opened.special, assignment) for attention, assignment in shown]
    tables.insert(1, stripes.shares_table(shown[0][0]))  # of the encoder, which is shown first
    print("\n".join(lines))
    print("\n\n\n".join(tables), flush=True)

    def draw(place: epath.Path) -> list[epath.Path]:
        folder = place / "figures"
        folder.mkdir(exist_ok=True)  # first, because it fails before minutes of drawing if nothing can be written
        figures = []
        for attention, assignment in shown:
            figures += plots.save_inspection(attention, assignment, opened.special, folder, opened.step)
        if opened.attacker is not None:
            options = (opened.tokenizer, text, opened.length, opened.attacker)
            attacked = maps.attention_maps(opened.model, opened.params, *options)
            path = folder / f"attention_attacked_step{opened.step}.png"
            figures.append(plots.attack_figure(shown[0][0], attacked, opened.assignment, path))
        return figures

    figures = storage.write_where_possible(draw, opened.directory, may_write=opened.is_ours)
    print("\n".join(f"drawn: {path}" for path in figures))
    return figures


def _check_target(opened: Inspected, target: str) -> None:
    if opened.translator is None:
        raise ValueError(
            f"--target={target!r} is a translation, but {opened.directory} does not translate: leave --target out, or "
            "give the directory of a run that translates"
        )
    if not target.strip():
        raise ValueError(f"--target={target!r} has no text: leave --target out to look at the model's own translation")
