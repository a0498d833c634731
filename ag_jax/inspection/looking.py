"""A model's attention to a text, or to a text and its translation, without and with the model's attack."""

import dataclasses
from typing import Any

from ag_jax.analysis import changes, maps, pairs
from ag_jax.analysis.changes import AttackedText
from ag_jax.analysis.maps import Assignment, AttentionMaps, Heads
from ag_jax.interop.opening import Inspected


@dataclasses.dataclass(frozen=True, eq=False)
class Seen:
    """A model's attention maps of a text, without and with the attack that the model was trained against.

    opened: the model.
    shown: maps of each kind of attention with the patterns that guide its heads; the encoder's are first.
    attacked: the encoder's maps without and with the attack that the model was trained against; None without one.
    no_attack: why the attack is not shown, for people; empty if it is, and if there is none.
    lines: the text and its translation, for people; empty if the model does not translate.
    target: the translation; None if the model does not translate.
    """

    opened: Inspected
    shown: tuple[tuple[AttentionMaps, Assignment], ...]
    attacked: AttackedText | None = None
    no_attack: str = ""
    lines: tuple[str, ...] = ()
    target: str | None = None


def look(opened: Inspected, text: str, target: str | None = None, without: Heads = ()) -> Seen:
    """Return a model's attention maps of a text, without and with the attack that the model was trained against.

    target: the translation, by default that of the model with all of its heads.
    without: heads of the encoder whose outputs are zeroed. The attack, which is that of the whole model, is then not
        shown.

    Raises ValueError for a target of a model that does not translate, and if the attention is not finite.
    """
    if opened.translator is not None:
        return _look_at_pair(opened, opened.translator, text, target, without)
    if target is not None:
        raise ValueError(f"--target is for models that translate, and {opened.directory} does not: leave --target out")
    options = (opened.tokenizer, text, opened.length)
    encoder = maps.attention_maps(opened.model, opened.params, *options, without=without)
    encoder = dataclasses.replace(encoder, model=opened.name)
    encoder.check_finite()
    return _with_attack(Seen(opened, ((encoder, opened.assignment),)), without)


def _look_at_pair(opened: Inspected, translator: Any, text: str, target: str | None, without: Heads) -> Seen:
    origin = "as given"
    if target is None:
        origin = "by this model with all of its heads" if without else "by this model"
        target = translator.beginning(text, opened.length - 1).text  # of as much as is shown, beside the end token
    pair = pairs.pair_maps(translator.model, translator.params, opened.tokenizer, text, target, opened.length, without)
    named = [dataclasses.replace(attention, model=opened.name) for attention in pair]
    for attention in named:
        attention.check_finite()
    assignments = opened.assignment, opened.decoder_assignment, opened.cross_assignment
    lines = (f"text: {text}", f"translation, {origin}: {target}", "")
    return _with_attack(Seen(opened, tuple(zip(named, assignments, strict=True)), lines=lines, target=target), without)


def _with_attack(seen: Seen, without: Heads) -> Seen:
    """Return `seen` with the encoder's maps under the model's attack, or with the reason why they are not shown."""
    attack = seen.opened.attack
    if without:
        return seen
    if attack is not None and not seen.opened.assignment.is_usable:
        reason = "its loss needs a custom pattern, whose code is imported only with --trust_code"
        return dataclasses.replace(seen, no_attack=reason)
    if attack is None:
        return dataclasses.replace(seen, no_attack=seen.opened.no_attack)
    encoder, _ = seen.shown[0]
    attacked = changes.attacked_text(attack, seen.opened.tokenizer, encoder)
    return dataclasses.replace(seen, attacked=attacked)
