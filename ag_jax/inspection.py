"""`ag-jax inspect`: a model's attention to a text, as a table and as figures."""

from etils import epath

from ag_jax.analysis import maps
from ag_jax.analysis.figures import plots
from ag_jax.distributed import storage
from ag_jax.interop.opening import Inspected


def inspect(opened: Inspected, text: str | None = None) -> list[epath.Path]:
    """Print a model's attention mass on each pattern for a text, draw its attention maps and return their paths.

    text: the text, by default `opened.text`.

    The figures are written to `figures/` in the directory of the model, or elsewhere if that is the directory of a
    Hugging Face model or cannot be written.
    """
    text = opened.text if text is None else text
    attention = maps.attention_maps(opened.model, opened.params, opened.tokenizer, text, opened.length)
    print(opened.description)
    print(maps.mass_table(attention, opened.special, opened.assignment), flush=True)

    def draw(place: epath.Path) -> list[epath.Path]:
        folder = place / "figures"
        folder.mkdir(exist_ok=True)  # first, because it fails before minutes of drawing if nothing can be written
        figures = plots.save_inspection(attention, opened.assignment, opened.special, folder, opened.step)
        if opened.attacker is not None:
            options = (opened.tokenizer, text, opened.length, opened.attacker)
            attacked = maps.attention_maps(opened.model, opened.params, *options)
            path = folder / f"attention_attacked_step{opened.step}.png"
            figures.append(plots.attack_figure(attention, attacked, opened.assignment, path))
        return figures

    figures = storage.write_where_possible(draw, opened.directory, may_write=opened.is_ours)
    print("\n".join(f"drawn: {path}" for path in figures))
    return figures
