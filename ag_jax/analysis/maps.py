"""Attention maps of a sentence, and the share of attention (mass) on the targets of the patterns.

The *mass* of a head on a pattern is the share of its attention that lies on the columns at which the pattern points,
averaged over the rows that have such columns. It is in [0, 1], and 1 if the head follows the pattern.

Shape letters: N layers, H heads, L length, Q query position, K key position.
"""

import dataclasses
import functools
import io
import logging
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ag_jax.attention import patterns
from ag_jax.attention.patterns import PATTERNS, PatternTokens
from ag_jax.data.tokenizers import Tokenizer
from ag_jax.models.encoder import Ports
from ag_jax.models.heads import TaskModel
from ag_jax.models.masked_lm import PretrainingModel
from ag_jax.models.replaced_tokens import ReplacedTokensModel
from ag_jax.objectives.adversarial.self_attention import Attacker

EncoderModel = PretrainingModel | ReplacedTokensModel | TaskModel
Assignment = tuple[tuple[str, int], ...]  # (pattern, number of heads that it guides), from the first head on


@dataclasses.dataclass(frozen=True, eq=False)
class AttentionMaps:
    """Attention maps of every layer and head for one sentence, without dropout.

    tokens: readable pieces, including the tokens that begin and end a sequence, such as <s> and </s>.
    ids_L: token ids, int32.
    weights_NHQK: attention probabilities, float32; a row sums to 1.
    left_out: number of tokens of the text that were cut off because they did not fit.
    """

    tokens: tuple[str, ...]
    ids_L: np.ndarray
    weights_NHQK: np.ndarray
    left_out: int = 0


def attention_maps(
    model: EncoderModel, params: Any, tokenizer: Tokenizer, text: str, max_tokens: int, attacker: Attacker | None = None
) -> AttentionMaps:
    """Return the attention maps of `text` with the tokens that begin and end every sequence, such as <s> and </s>.

    They are computed without dropout, and without the scores that `guidance.mode=bias` adds during training. A text of
    more than `max_tokens` tokens, including those two, is cut at its end, and a warning is logged. Raises ValueError if
    there is no text, or no room for any token.

    max_tokens: maximum number of tokens; the model's `max_length` also applies.
    attacker: attack under which the maps are computed, with its parameters in `params`; None computes them without.
    """
    words = list(tokenizer.encode(text)) if text.strip() else []
    if not words:
        raise ValueError(f"attention maps need a text with at least one token, got {text!r}")
    room = min(max_tokens, model.config.max_length) - 2  # without the tokens that begin and end the row
    if room < 1:
        raise ValueError(f"attention maps need room for at least 3 tokens, got max_tokens={max_tokens}")
    left_out = max(0, len(words) - room)
    if left_out:
        logging.getLogger(__name__).warning(
            "the text has %d tokens, and %d fit between begin and end: the last %d are left out",
            len(words),
            room,
            left_out,
        )
    ids = [tokenizer.specials.begin, *words[:room], tokenizer.specials.end]
    ids_L = np.asarray(ids, np.int32)
    weights_NHQK = np.asarray(_attention_weights(model, params, ids_L, attacker))
    return AttentionMaps(tuple(tokenizer.tokens(ids)), ids_L, weights_NHQK, left_out)


@functools.partial(jax.jit, static_argnames=("model", "attacker"))
def _attention_weights(model: EncoderModel, params: Any, ids_L: jax.Array, attacker: Attacker | None) -> jax.Array:
    tokens_BL = ids_L[None]
    batch = {
        "tokens": tokens_BL,
        "segment_ids": jnp.ones(tokens_BL.shape, jnp.int32),
        "token_type_ids": jnp.zeros(tokens_BL.shape, jnp.int32),
    }
    ports = Ports() if attacker is None else Ports(attack=attacker(params, batch, jnp.int32(0)))
    _, collections = model.apply(
        {"params": params},
        batch,
        method=lambda model, batch: model.encoder(batch, ports=ports, deterministic=True),
        mutable=["intermediates"],
    )
    weights_NBHQK = collections["intermediates"]["encoder"]["layers"]["attention"]["attention_weights"][0]
    return weights_NBHQK[:, 0]


def targets(maps: AttentionMaps, special: PatternTokens, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Return {pattern: target matrix `QK`} for the sentence of `maps`.

    Rows without a target are uniform over the sentence (Deshpande & Narasimhan 2020).
    """
    return {name: _target(maps, special, name)[0] for name in names}


def _target(maps: AttentionMaps, special: PatternTokens, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a pattern's target matrix `QK` for the sentence of `maps`, and which of the rows `Q` have a target."""
    tokens_BL = jnp.asarray(maps.ids_L)[None]
    segments_BL = jnp.ones(tokens_BL.shape, jnp.int32)
    target = patterns.find_target(name, tokens_BL, segments_BL, special)
    return np.asarray(patterns.dense(target, segments_BL))[0], np.asarray(patterns.has_target(target, segments_BL))[0]


def head_patterns(assignment: Assignment, heads: int) -> tuple[str | None, ...]:
    """Return the pattern that guides each head of a layer, None for free heads.

    Raises ValueError if `assignment` guides more than `heads` heads.
    """
    names = [name for name, count in assignment for _ in range(count)]
    if len(names) > heads:
        raise ValueError(f"the assignment {assignment} guides {len(names)} heads, but a layer has only {heads}")
    return (*names, *[None] * (heads - len(names)))


def title(name: str) -> str:
    """Return a pattern's name as in Deshpande & Narasimhan 2020: `next` is [Next], `my_patterns.second` is [Second]."""
    return f"[{name.rpartition('.')[2].capitalize()}]"


def attention_mass(maps: AttentionMaps, special: PatternTokens, assignment: Assignment) -> dict[str, np.ndarray]:
    """Return {pattern: attention mass of each layer and head, `NH`} for built-in patterns and all in `assignment`.

    The mass is the sum of the weights where the target is not zero, averaged over the rows that have a target. It is
    NaN if the pattern has no target in this sentence, such as [Period] in a sentence without a full stop.
    """
    masses = {}
    for name in _names(assignment):
        target_QK, has_target_Q = _target(maps, special, name)
        rows, columns = np.nonzero((target_QK > 0) & has_target_Q[:, None])
        total_NH = maps.weights_NHQK[:, :, rows, columns].sum(-1, dtype=np.float64)
        masses[name] = total_NH / has_target_Q.sum() if has_target_Q.any() else np.full_like(total_NH, np.nan)
    return masses


def uniform_mass(maps: AttentionMaps, special: PatternTokens, assignment: Assignment) -> dict[str, float]:
    """Return {pattern: attention mass of a head that attends uniformly}, the level of chance."""
    length = len(maps.ids_L)
    uniform_NHQK = np.full((1, 1, length, length), 1.0 / length, np.float32)
    uniform = dataclasses.replace(maps, weights_NHQK=uniform_NHQK)
    return {name: float(mass_NH[0, 0]) for name, mass_NH in attention_mass(uniform, special, assignment).items()}


def strongest_pattern(
    maps: AttentionMaps, special: PatternTokens, assignment: Assignment
) -> tuple[np.ndarray, np.ndarray]:
    """Return, by layer and head `NH`, the pattern whose mass most exceeds that of uniform attention, and the mass.

    Not the pattern with the largest mass: the target of [Delim] contains that of [First], but a head that
    attends only to the first token is better explained by the smaller target.
    """
    masses, chance = attention_mass(maps, special, assignment), uniform_mass(maps, special, assignment)
    names = [name for name in masses if not np.isnan(chance[name])]
    mass_PNH = np.stack([masses[name] for name in names])
    best_NH = np.argmax(mass_PNH - np.array([chance[name] for name in names])[:, None, None], axis=0)
    return np.array(names, object)[best_NH], np.take_along_axis(mass_PNH, best_NH[None], axis=0)[0]


def _names(assignment: Assignment) -> list[str]:
    return list(dict.fromkeys([*PATTERNS, *(name for name, _ in assignment)]))


def mass_table(maps: AttentionMaps, special: PatternTokens, assignment: Assignment) -> str:
    """Return a printable table of the attention mass on each pattern, averaged over heads, with a row for each layer.

    The first columns are the guided heads of each pattern on their own target, the others the free heads on every
    pattern, both as means over these heads. The last row is the mass of uniform attention (`uniform_mass`).
    """
    masses, chance = attention_mass(maps, special, assignment), uniform_mass(maps, special, assignment)
    layers, heads = maps.weights_NHQK.shape[:2]
    owners = head_patterns(assignment, heads)
    columns = [(name, [head for head in range(heads) if owners[head] == name], "guided") for name, _ in assignment]
    free = [head for head in range(heads) if owners[head] is None]
    columns += [(name, free, "free") for name in masses if free]

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("\n\nlayer", justify="right", no_wrap=True)
    for name, members, kind in columns:
        table.add_column(Text(f"{kind}\n{title(name)}\n{_span(members)}"), justify="right", no_wrap=True)
    for layer in range(layers):
        cells = [_number(masses[name][layer, members].mean()) for name, members, _ in columns]
        table.add_row(str(layer + 1), *cells, end_section=layer == layers - 1)
    table.add_row("by chance", *(_number(chance[name]) for name, _, _ in columns))
    # Wide enough that rich wraps no row: the text may go to a file or a narrow terminal.
    text = io.StringIO()
    console = Console(file=text, width=1000, color_system=None, force_jupyter=False)
    console.print(table)
    cut = f" ({maps.left_out} more were cut off)" if maps.left_out else ""
    lines = [f"Attention mass on the patterns' targets, for {len(maps.tokens)} tokens{cut}"]
    lines += [line.rstrip() for line in text.getvalue().rstrip().splitlines()]
    if np.isnan(list(chance.values())).any():
        lines += ["", "– : the pattern points at nothing in this text"]
    return "\n".join(lines)


def _span(heads: list[int]) -> str:
    """Return a range of heads as text, such as `head 2` or `heads 3-6`: `heads` counts from 0, the text from 1."""
    return f"head {heads[0] + 1}" if len(heads) == 1 else f"heads {heads[0] + 1}-{heads[-1] + 1}"


def _number(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.2f}"
