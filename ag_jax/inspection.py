"""`ag-jax inspect`: a model's attention to a text, or to a text and its translation, as tables and as figures."""

import re
from collections.abc import Sequence

from etils import epath

from ag_jax.analysis import changes, maps, pairs, stripes
from ag_jax.analysis.changes import AttackedText
from ag_jax.analysis.figures import plots
from ag_jax.analysis.maps import AttentionMaps, Heads
from ag_jax.distributed import storage
from ag_jax.interop.opening import Inspected


def inspect(
    opened: Inspected, text: str | None = None, target: str | None = None, without: Sequence[str] = ()
) -> list[epath.Path]:
    """Print where a model's attention to a text lies, draw its attention maps and return the paths of the figures.

    The tables have the attention mass on each pattern, and of the encoder also on the diagonal and on stripes. For a
    model that was trained against an attack, a table and a figure show how the attack changes the encoder's attention.

    For a model that translates, there are tables and figures of the encoder, of the decoder, and of the decoder's
    attention to the source.

    text: the text, by default `opened.text`.
    target: its translation, by default that of the model with all of its heads, which is printed.
    without: heads of the encoder whose outputs are zeroed, such as `3.2`, the second head of layer 3. The tables and
        figures say so, and the figures have other file names.

    The figures are written to `figures/` in the directory of the model, or elsewhere if that is the directory of a
    Hugging Face model or cannot be written. Raises ValueError for a target of a model that does not translate, and for
    a head that the encoder does not have.
    """
    text = opened.text if text is None else text
    lines = [opened.description]
    zeroed = read_heads(without, opened.model.config.layers, opened.model.config.heads)
    if target is not None:
        _check_target(opened, target)
    if opened.translator is None:
        options = (opened.tokenizer, text, opened.length)
        shown = [(maps.attention_maps(opened.model, opened.params, *options, without=zeroed), opened.assignment)]
    else:
        own = "by this model with all of its heads" if zeroed else "by this model"
        translator, origin = opened.translator, own if target is None else "as given"
        if target is None:
            target = translator.beginning(text, opened.length - 1).text  # of as much as is shown, beside the end token
        lines += [f"text: {text}", f"translation, {origin}: {target}", ""]
        sides = (text, target)
        found = pairs.pair_maps(translator.model, translator.params, opened.tokenizer, *sides, opened.length, zeroed)
        assignments = opened.assignment, opened.decoder_assignment, opened.cross_assignment
        shown = list(zip(found, assignments, strict=True))
    tables = [maps.mass_table(attention, opened.special, assignment) for attention, assignment in shown]
    tables.insert(1, stripes.shares_table(shown[0][0]))  # of the encoder, which is shown first
    # The attack is that of the whole model, so it is not shown for a part of its heads.
    attacked, table = (None, []) if zeroed else _attacked(opened, shown[0][0])
    tables += table
    print("\n".join(lines))
    print("\n\n\n".join(tables), flush=True)

    def draw(place: epath.Path) -> list[epath.Path]:
        folder = place / "figures"
        folder.mkdir(exist_ok=True)  # first, because it fails before minutes of drawing if nothing can be written
        figures = []
        for attention, assignment in shown:
            figures += plots.save_inspection(attention, assignment, opened.special, folder, opened.step)
        if attacked is not None:
            at = "" if opened.step is None else f"_step{opened.step}"
            path = folder / f"attention_attacked{at}.png"
            figures.append(plots.attack_figure(attacked.plain, attacked.attacked, opened.assignment, path))
        return figures

    figures = storage.write_where_possible(draw, opened.directory, may_write=opened.is_ours)
    print("\n".join(f"drawn: {path}" for path in figures))
    return figures


def _attacked(opened: Inspected, encoder: AttentionMaps) -> tuple[AttackedText | None, list[str]]:
    """Return the encoder's attention under the model's attack, and the table of the change; the maps are None, and the
    table is the reason, if the attack cannot be made. Of a model that was trained without an attack, there is no table.

    encoder: the encoder's maps of the text.
    """
    attack = opened.attack
    if attack is None:
        reason = f"the change of attention under the attack is not shown: {opened.no_attack}"
        return None, [reason] if opened.no_attack else []
    attacked = changes.attacked_text(attack, opened.tokenizer, encoder.ids_L)
    lines = [changes.change_table(attacked.change_N, attack.method), attack.note]
    if attacked.plain.tokens != encoder.tokens:
        lines.append(" ".join(attacked.plain.tokens))
    return attacked, ["\n".join(line for line in lines if line)]


def read_heads(names: Sequence[str], layers: int, heads: int) -> Heads:
    """Return the heads with the given names as (layer, head), counted from 0, sorted and each once.

    names: LAYER.HEAD, both counted from 1, as in the tables and figures of `inspect`.
    layers, heads: numbers of layers and of heads in each layer.

    Raises ValueError for a name of another form, or of a head that does not exist.
    """
    found = set()
    for name in names:
        if not re.fullmatch(r"[0-9]+\.[0-9]+", name.strip()):
            raise ValueError(
                f"--without={','.join(names)}: expected heads as LAYER.HEAD, both counted from 1, such as "
                f"--without=3.2,4.1; got {name!r}"
            )
        layer, head = map(int, name.strip().split("."))
        if not (1 <= layer <= layers and 1 <= head <= heads):
            raise ValueError(
                f"--without={','.join(names)}: there is no head {name.strip()}, because the encoder has {layers} "
                f"layers of {heads} heads: give heads between 1.1 and {layers}.{heads}"
            )
        found.add((layer - 1, head - 1))
    return tuple(sorted(found))


def _check_target(opened: Inspected, target: str) -> None:
    if opened.translator is None:
        raise ValueError(
            f"--target={target!r} is a translation, but {opened.directory} does not translate: leave --target out, or "
            "give the directory of a run that translates"
        )
    if not target.strip():
        raise ValueError(f"--target={target!r} has no text: leave --target out to look at the model's own translation")
