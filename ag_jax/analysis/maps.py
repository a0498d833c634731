"""Attention maps of a sentence, and the share of attention (mass) on the targets of the patterns.

The *mass* of a head on a pattern is the share of its attention that lies on the columns at which the pattern points,
averaged over the rows that have such columns. It is in [0, 1], and 1 if the head follows the pattern.

The maps may be of an encoder, of a decoder, or of a decoder's attention to the source (`KINDS`); `analysis.pairs`
computes the maps of a text and its translation.

Shape letters: N layers, B batch, H heads, L length, Q query position, K key position, P patterns.
"""

import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ag_jax.analysis import words as word_groups
from ag_jax.analysis.tables import Table
from ag_jax.analysis.words import Words
from ag_jax.attention import patterns
from ag_jax.attention.assignment import Assignment, is_usable
from ag_jax.attention.patterns import PATTERNS, PatternTokens
from ag_jax.attention.visibility import band_of
from ag_jax.data.json_files import check_unicode
from ag_jax.data.records.files import warn_once
from ag_jax.data.tokenizers import Tokenizer
from ag_jax.models.config import EncoderConfig
from ag_jax.models.encoder import Batch, Ports
from ag_jax.models.heads import TaskModel
from ag_jax.models.masked_lm import PretrainingModel
from ag_jax.models.one_line import one_line
from ag_jax.models.replaced_tokens import ReplacedTokensModel
from ag_jax.models.seq2seq import TranslationModel
from ag_jax.objectives.adversarial.self_attention import Attacker
from ag_jax.viewer import colours
from ag_jax.viewer.notebook import NotebookView
from ag_jax.viewer.page import Target, View, side_by_side

EncoderModel = PretrainingModel | ReplacedTokensModel | TranslationModel | TaskModel
Heads = tuple[tuple[int, int], ...]  # (layer, head), counted from 0
MOST_NAMED = 12  # heads that a title names
CLEAR = 0.2  # share of the way from chance to 1 from which on a free head is said to follow a pattern
MEANINGS = {  # at what each built-in pattern points
    "next": "the following token",
    "prev": "the token before",
    "first": "the first token of the text",
    "delim": "the tokens at the borders of the text",
    "period": "the full stops",
    "same": "the token itself",
    "diagonal": "the token at the same place of the source",
}
Kind = Literal["encoder", "decoder", "cross"]


@dataclasses.dataclass(frozen=True)
class KindOfAttention:
    """Title, axes and possible patterns of a kind of attention: encoder, decoder or cross-attention.

    title: its name.
    row, column: what a row and a column of its maps are.
    patterns: the built-in patterns that its heads can follow.
    """

    title: str
    row: str
    column: str
    patterns: tuple[str, ...]


KINDS: dict[Kind, KindOfAttention] = {
    "encoder": KindOfAttention("Encoder", "token that looks", "token looked at", tuple(PATTERNS)),
    "decoder": KindOfAttention(
        "Decoder",
        "token that looks, before the next one is predicted",
        "token looked at, the same or an earlier one",
        tuple(name for name in PATTERNS if name != "next"),
    ),
    "cross": KindOfAttention(
        "Cross-attention",
        "token of the translation that looks",
        "token of the source looked at",
        ("first", "delim", "period", "diagonal"),
    ),
}


@dataclasses.dataclass(frozen=True, eq=False)
class AttentionMaps:
    """Attention maps of every layer and head for one sentence, without dropout.

    tokens: readable pieces of the tokens that are attended to, the columns of a map. They include the tokens that begin
        and end a sequence, such as <s> and </s>.
    ids_L: their token ids, int32.
    weights_NHQK: attention probabilities, float32. A row sums to 1, and to less at the borders of a text if the
        attention is hard-coded.
    left_out: number of tokens of the text, or of the text and its translation, that were cut off because they did not
        fit.
    kind: which attention the maps are of, a key of `KINDS`.
    query_tokens: readable pieces of the tokens that attend, the rows of a map; None if they are those of the columns.
    is_fixed: whether the attention is hard-coded, not learned.
    without: heads of the encoder whose outputs were zeroed. Their weights are those by which they attend.
    text: the text, or the text and its translation, for people; empty if only its tokens are known.
    model: name of the model and its training step, for people; empty if it is not known.
    windows: for each layer, the window to which its attention is limited, or None (`EncoderConfig.windows`); empty if
        no layer has one.
    words: the words of the text, with the tokens of each, which are columns; empty if they are not known.
    query_words: those of the rows; empty if they are those of the columns.
    """

    tokens: tuple[str, ...]
    ids_L: np.ndarray
    weights_NHQK: np.ndarray
    left_out: int = 0
    kind: Kind = "encoder"
    query_tokens: tuple[str, ...] | None = None
    is_fixed: bool = False
    without: Heads = ()
    text: str = ""
    model: str = ""
    windows: tuple[int | None, ...] = ()
    words: Words = ()
    query_words: Words = ()

    __repr__ = one_line

    def check_finite(self) -> None:
        """Raise ValueError if weights are not finite, because tables and figures would show them as missing values."""
        finite_N = np.isfinite(self.weights_NHQK).all((1, 2, 3))
        if not finite_N.all():
            layers = [str(layer) for layer in np.flatnonzero(~finite_N)]
            raise ValueError(
                f"{self.title} of {self.model or 'the model'}: the attention is not finite in layer "
                f"{', '.join(layers)}, because parameters are NaN or scores overflow: inspect an earlier step or "
                "another model"
            )

    @property
    def title(self) -> str:
        """The title of the maps: the kind of attention and, if outputs of heads were zeroed, these heads."""
        kind = KINDS[self.kind].title
        return f"{kind}, output of {named_heads(self.without)} zeroed" if self.without else kind

    @property
    def sentence(self) -> str:
        """The text of the maps, or its tokens if unknown; behind a note such as `(64 of 92 tokens)` if it was cut."""
        return f"({self.part}) {self.text}" if self.text and self.part else self.text or " ".join(self.row_tokens)

    @property
    def part(self) -> str:
        """How many of the tokens the maps show, such as `64 of 92 tokens`; empty if they show all."""
        count = len(self.tokens) + len(self.query_tokens or ())
        return f"{count} of {count + self.left_out} tokens" if self.left_out else ""

    @property
    def caption(self) -> tuple[str, str]:
        """Two lines for a figure of these maps: their kind and model, and the text."""
        model = f": {self.model}" if self.model else ""
        return f"{self.title}{model}", self.sentence

    @property
    def row_tokens(self) -> tuple[str, ...]:
        """Readable pieces of the tokens that attend, the rows of a map."""
        return self.tokens if self.query_tokens is None else self.query_tokens

    @property
    def labels(self) -> list[str]:
        """The tokens that are attended to, as people read them (`words.labels`)."""
        return word_groups.labels(self.tokens, self.words)

    @property
    def row_labels(self) -> list[str]:
        """The tokens that attend, as people read them."""
        return self.labels if self.query_tokens is None else word_groups.labels(self.query_tokens, self.query_words)

    def unguided(self, assignment: Assignment) -> str:
        """Return the word for the heads that `assignment` does not guide; "" if it guides no head.

        It is `free`, or `fixed` if attention is hard-coded.
        """
        return "fixed" if self.is_fixed else "free" if assignment.counts else ""

    def view(
        self,
        special: PatternTokens | None = None,
        assignment: Assignment = Assignment(),
        against: Mapping[str, "AttentionMaps"] | None = None,
        detail: str | None = None,
    ) -> NotebookView:
        """Return all heads as an interactive picture for a notebook; `.save(FILE)` writes it as a web page.

        special: tokens for which the patterns [Delim] and [Period] look (`Inspected.special`); None leaves these
            patterns out.
        assignment: the heads that patterns guide (`Inspected.assignment`).
        against: other maps to compare with these, by name, such as those of another model for the same text. Their
            heads are shown as not guided.
        detail: `full` or `picture`, see `viewer.page.page`; None stores as much as a notebook can hold.
        """
        views = [viewer_view(self, self.title, self.title, special, assignment)]
        views += [viewer_view(maps, name, name, special, Assignment()) for name, maps in (against or {}).items()]
        return NotebookView(f"Attention of {self.model}" if self.model else "Attention", side_by_side(views), detail)

    @property
    def window_of_layer(self) -> tuple[int | None, ...]:
        """Width in tokens of each layer's attention window, None for a layer without one."""
        return self.windows or (None,) * len(self.weights_NHQK)

    def visible_QK(self, window: int | None = None) -> np.ndarray:
        """Return booleans `QK`: whether a query can attend to a key, in layers with a window of this width.

        In a decoder's self-attention, a row can attend to its own position and earlier ones.
        """
        shape_QK = self.weights_NHQK.shape[-2:]
        query_Q1, key_1K = np.arange(shape_QK[0])[:, None], np.arange(shape_QK[1])[None, :]
        return np.broadcast_to(band_of(self.kind == "decoder", window).contains(query_Q1, key_1K), shape_QK)


def head_mask(config: EncoderConfig, without: Heads) -> np.ndarray | None:
    """Return a mask `NH` (layer, head) that is 0 for the heads `without`, to zero their outputs; None if none."""
    if not without:
        return None
    mask_NH = np.ones((config.layers, config.heads), np.float32)
    for layer, head in without:
        mask_NH[layer, head] = 0.0
    return mask_NH


def named_heads(without: Heads) -> str:
    """Return heads as text, such as `head 3.2 of the encoder` for head 2 of layer 3.

    Of more than `MOST_NAMED` heads, only the first ones are named.
    """
    names = [f"{layer}.{head}" for layer, head in without[:MOST_NAMED]]
    more = f" and {len(without) - MOST_NAMED} more" if len(without) > MOST_NAMED else ""
    return f"head{'s' if len(without) > 1 else ''} {', '.join(names)}{more} of the encoder"


def attention_maps(
    model: EncoderModel,
    params: Any,
    tokenizer: Tokenizer,
    text: str,
    max_tokens: int,
    attacker: Attacker | None = None,
    without: Heads = (),
) -> AttentionMaps:
    """Return the encoder's attention maps of `text`, tokenized with the tokens that begin and end a sequence.

    They are computed without dropout, and without the scores that `guidance.mode=bias` adds during training. A text of
    more than `max_tokens` tokens, including those two, is cut at its end, and a warning is logged. Raises ValueError if
    there is no text, or no room for any token.

    max_tokens: maximum number of tokens; the model's `max_length` also applies.
    attacker: attack under which the maps are computed, with its parameters in `params`; None computes them without.
    without: heads whose outputs are zeroed, which changes the attention of later layers.
    """
    check_unicode(text, "the text")
    words = list(tokenizer.encode(text)) if text.strip() else []
    if not words:
        raise ValueError(f"attention maps need a text with at least one token, got {text!r}")
    # Sources of a translation end with a token, other sequences begin with one, too.
    begin = [] if isinstance(model, TranslationModel) else [tokenizer.specials.begin]
    room = min(max_tokens, model.config.max_length) - len(begin) - 1
    ids = [*begin, *cut(words, room, "text"), tokenizer.specials.end]
    ids_L = np.asarray(ids, np.int32)
    batch = _one_text(ids_L)
    ports: dict[str, Any] = {"head_mask_NH": head_mask(model.config, without)}
    if attacker is not None:
        ports["attack"] = attacker(params, batch, jnp.int32(0))
    weights_NHQK = np.asarray(attention_weights(model, params, batch, Ports(**ports)))[:, 0]
    left_out, is_fixed = max(0, len(words) - room), bool(model.config.fixed_attention.offsets)
    return AttentionMaps(
        tuple(tokenizer.tokens(ids)),
        ids_L,
        weights_NHQK,
        left_out,
        is_fixed=is_fixed,
        without=without,
        text=text,
        windows=model.config.windows,
        words=word_groups.tokenized(tokenizer, text, ids[len(begin) : -1], len(begin)),
    )


def cut(words: Sequence[int], room: int, name: str) -> Sequence[int]:
    """Return the first `room` tokens of a text, and log a warning if there are more.

    name: of the text, for the messages.

    Raises ValueError if there is no room.
    """
    if room < 1:
        raise ValueError(
            f"expected room for a token of the {name} beside those that mark its borders, got {room}: raise max_tokens"
        )
    if len(words) > room:
        warn_once(
            f"the {name} has {len(words)} tokens, and {room} fit beside those that mark its borders: the last "
            f"{len(words) - room} are left out"
        )
    return words[:room]


def _one_text(ids_L: np.ndarray) -> Batch:
    """Return a batch with one text as an encoder reads it: its token ids, segment ids and token type ids."""
    tokens_BL = jnp.asarray(ids_L)[None]
    return {
        "tokens": tokens_BL,
        "segment_ids": jnp.ones_like(tokens_BL),
        "token_type_ids": jnp.zeros_like(tokens_BL),
    }


class Attention(NamedTuple):
    """An encoder's attention probabilities, and which query-key pairs an attack masked.

    weights_NBHQK: attention probabilities, float32.
    masked_NBHQK: which cells an attack masked, where H is 1 if all heads share a mask; None without an attack that
        masks.
    """

    weights_NBHQK: jax.Array
    masked_NBHQK: jax.Array | None


@functools.partial(jax.jit, static_argnames=("model",))
def attention_weights(model: EncoderModel, params: Any, batch: Batch, ports: Ports) -> jax.Array:
    """Return the encoder's attention probabilities without dropout, `NBHQK` (layer, batch, head, query, key).

    batch: the fields that an encoder reads (`encoder.rows`).
    ports: an attack on the encoder, if there is one.
    """
    return attention(model, params, batch, ports).weights_NBHQK


def attention(model: EncoderModel, params: Any, batch: Batch, ports: Ports) -> Attention:
    """Return the encoder's attention probabilities without dropout, and which query-key pairs an attack masked.

    batch, ports: as for `attention_weights`.
    """
    _, collections = model.apply(
        {"params": params},
        batch,
        method=lambda model, batch: model.encoder(batch, ports=ports, deterministic=True),
        mutable=["intermediates"],
    )
    sown = collections["intermediates"]["encoder"]["layers"]["attention"]
    return Attention(sown["attention_weights"][0], sown["masked"][0] if "masked" in sown else None)


def targets(maps: AttentionMaps, special: PatternTokens, names: Collection[str]) -> dict[str, np.ndarray]:
    """Return {pattern: target matrix `QK` (query, key)} for the sentence of `maps`.

    Rows without a target are uniform over the columns that they see (Deshpande & Narasimhan 2020). Raises ValueError
    for a pattern that attention of this kind cannot have.
    """
    for name in names:
        if "." not in name and not is_usable(name):
            patterns.find_pattern(name)  # raises its error
    return {name: _target(maps, special, name)[0] for name in names}


def _target(maps: AttentionMaps, special: PatternTokens, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (a pattern's target matrix `QK`, booleans `Q`: which queries have a target) for the sentence of `maps`.

    A custom pattern that may not be imported has no target, nor has a column of annotated text: this is printed.
    """
    if not is_usable(name):
        reason = "its code is imported only with --trust_code (trust_code=True in Python)"
        warn_once(
            f"the target of the pattern {name} is not shown: "
            + (reason if "." in name else "the sentence has no annotation of it")
        )
        queries, keys = maps.weights_NHQK.shape[-2:]
        return np.zeros((queries, keys), np.float32), np.zeros(queries, bool)
    tokens_BK = jnp.asarray(maps.ids_L)[None]
    segments_BK = jnp.ones(tokens_BK.shape, jnp.int32)
    unmasked_BK, pointers = jnp.zeros(tokens_BK.shape, bool), patterns.no_pointers(tokens_BK)
    inputs = patterns.PatternInputs(tokens_BK, unmasked_BK, segments_BK, special, pointers)
    if maps.kind == "cross":
        segments_BQ = jnp.ones((1, len(maps.row_tokens)), jnp.int32)
        target = patterns.find_source_target(name, inputs, segments_BQ)
        target_BQK = patterns.dense(target, segments_BQ, segments_BK)
        has_target_BQ = patterns.has_target(target, segments_BQ, segments_BK)
    else:
        band = band_of(maps.kind == "decoder", None)
        target = patterns.find_target(name, inputs)
        target_BQK = patterns.dense(target, segments_BK, band=band)
        has_target_BQ = patterns.has_target(target, segments_BK, band=band)
    return np.asarray(target_BQK)[0], np.asarray(has_target_BQ)[0]


def title(name: str) -> str:
    """Return a pattern's name as in Deshpande & Narasimhan 2020: `next` is [Next], `my_patterns.second` is [Second]."""
    return f"[{name.rpartition('.')[2].capitalize()}]"


class Measured(NamedTuple):
    """A pattern's target matrix for the sentence of maps, each head's attention mass on it, and mass by chance.

    target_QK: target matrix.
    has_target_Q: which rows have a target.
    mass_NH: sum of each head's weights where the target is not zero, averaged over the rows that have a target. A row
        whose target lies outside the layer's window counts as 0. NaN if the pattern has no target in this sentence,
        such as [Period] in a sentence without a full stop.
    chance_N: in each layer, the mass of a head that attends uniformly to what it sees: to all tokens, or to those in
        the layer's window.
    """

    target_QK: np.ndarray
    has_target_Q: np.ndarray
    mass_NH: np.ndarray
    chance_N: np.ndarray


def measured(maps: AttentionMaps, special: PatternTokens, assignment: Assignment) -> dict[str, Measured]:
    """Return {pattern: its target matrix, each head's attention mass on it, and mass by chance} for a sentence."""
    uniform = {}  # by window, of which there are at most two
    for window in {*maps.window_of_layer}:
        visible_QK = maps.visible_QK(window)
        uniform[window] = visible_QK / visible_QK.sum(-1, keepdims=True, dtype=np.float32)
    by_name = {}
    for name in pattern_names(maps, assignment):
        target_QK, has_target_Q = _target(maps, special, name)
        rows, columns = np.nonzero((target_QK > 0) & has_target_Q[:, None])
        count = has_target_Q.sum() if has_target_Q.any() else np.nan
        mass_NH = maps.weights_NHQK[:, :, rows, columns].sum(-1, dtype=np.float64) / count
        chance = {window: of[rows, columns].sum(dtype=np.float64) / count for window, of in uniform.items()}
        chance_N = np.array([chance[window] for window in maps.window_of_layer])
        by_name[name] = Measured(target_QK, has_target_Q, mass_NH, chance_N)
    return by_name


def attention_mass(maps: AttentionMaps, special: PatternTokens, assignment: Assignment) -> dict[str, np.ndarray]:
    """Return {pattern: each head's attention mass on the pattern's target, `NH` (layer, head)}."""
    return {name: pattern.mass_NH for name, pattern in measured(maps, special, assignment).items()}


def viewer_view(
    maps: AttentionMaps,
    name: str,
    model: str,
    special: PatternTokens | None,
    assignment: Assignment,
    **more: Any,
) -> View:
    """Return attention maps as a view of the interactive page, with each head's attention mass on all patterns.

    name: what tells this view from the others of the page.
    model: name of the model.
    special: None leaves out the patterns that look for certain tokens.
    more: other fields of `viewer.page.View`.
    """
    names = pattern_names(maps, assignment)
    if special is None:
        names = [pattern for pattern in names if pattern not in ("delim", "period")]
        special = PatternTokens((), ())
    order, patterns_of_maps = list(dict.fromkeys([*PATTERNS, *names])), measured(maps, special, assignment)
    view_targets = {}
    for pattern in names:
        colour = colours.CATEGORIES[order.index(pattern) % len(colours.CATEGORIES)]
        target_QK, has_target_Q, mass_NH, chance_N = patterns_of_maps[pattern]
        view_targets[pattern] = Target(target_QK, has_target_Q, title(pattern), colour, mass_NH, chance_N)
    rows, row_words = maps.query_tokens, maps.query_words
    fields: dict[str, Any] = {"texts": ("Source", "Translation")} if maps.kind == "cross" else {}
    if maps.words:
        fields["words"] = word_groups.groups(maps.tokens, maps.words)
        fields["row_words"] = None if rows is None else word_groups.groups(rows, row_words)
    return View(
        name=name,
        model=model,
        columns=maps.labels,
        rows=None if rows is None else maps.row_labels,
        # Hard-coded attention that is not normalised may have weights above 1.
        weights_NHQK=np.minimum(maps.weights_NHQK, 1) if maps.is_fixed else maps.weights_NHQK,
        kind=maps.title,
        guided=assignment.patterns(*maps.weights_NHQK.shape[:2]).tolist(),
        targets=view_targets,
        special=[place for place, token in enumerate(maps.ids_L.tolist()) if token in special.delimiters],
        is_causal=maps.kind == "decoder",
        windows=maps.windows,
        left_out=maps.left_out,
        **(fields | more),
    )


def strongest_pattern(
    maps: AttentionMaps, special: PatternTokens, assignment: Assignment
) -> tuple[np.ndarray, np.ndarray]:
    """Return (pattern whose attention mass most exceeds chance, that mass) for each head, two arrays `NH`.

    Not the pattern with the largest mass: the target of [Delim] contains that of [First], but a head that
    attends only to the first token is better explained by the smaller target. Rows without a target count as rows that
    do not exceed uniform attention; in a decoder, a full stop is a target only of the tokens after it.
    """
    by_name = measured(maps, special, assignment)
    by_name = {name: pattern for name, pattern in by_name.items() if pattern.has_target_Q.any()}
    mass_PNH = np.stack([pattern.mass_NH for pattern in by_name.values()])
    excess_PNH = [
        (pattern.mass_NH - pattern.chance_N[:, None]) * pattern.has_target_Q.mean() for pattern in by_name.values()
    ]
    best_NH = np.argmax(excess_PNH, axis=0)
    return np.array(list(by_name), object)[best_NH], np.take_along_axis(mass_PNH, best_NH[None], axis=0)[0]


def is_clear(mass: float | np.ndarray, chance: float | np.ndarray) -> Any:
    """Return whether an attention mass is clearly above chance: by `CLEAR` of the way from chance to 1."""
    return mass >= chance + CLEAR * (1 - chance)


def pattern_names(maps: AttentionMaps, assignment: Assignment) -> list[str]:
    """Return the patterns to measure: built-in ones for this kind of attention, then others that guide heads."""
    return list(dict.fromkeys([*KINDS[maps.kind].patterns, *assignment.names]))


def mass_table(maps: AttentionMaps, special: PatternTokens, assignment: Assignment) -> str:
    """Return a printable table of the attention mass on each pattern, averaged over heads, with a row for each layer.

    The first columns are the guided heads of each pattern on their own target, the others the free heads on every
    pattern, both as means over these heads. In a layer that is not guided, all heads are free. The last row is the mass
    of uniform attention (`Measured.chance_N`); there are two such rows if some layers see only a window, with its width
    in the name of one. The first line says which kind of attention it is, and which heads' outputs were zeroed.
    """
    by_name = measured(maps, special, assignment)
    masses = {name: pattern.mass_NH for name, pattern in by_name.items()}
    layers, heads = maps.weights_NHQK.shape[:2]
    owners_NH, is_guided_NH = assignment.patterns(layers, heads), assignment.is_guided(layers, heads)
    columns = [(name, owners_NH == name, "guided") for name in assignment.names]
    columns += [(name, ~is_guided_NH, maps.unguided(assignment)) for name in masses if not is_guided_NH.all()]
    # A column's header names its heads in the first layer that has any; guided layers come first.
    order = sorted(range(layers), key=lambda layer: not is_guided_NH[layer].any())
    header = ["\nhead\nlayer"]
    for name, members_NH, kind in columns:
        members = next(np.flatnonzero(members_NH[layer]) for layer in order if members_NH[layer].any())
        header.append(f"{kind}\n{_span(members)}\n{title(name)[1:-1]}")
    if not any(kind for *_, kind in columns):
        header = [name.removeprefix("\n") for name in header]
    rows = []
    for layer in range(layers):
        cells = [
            _number(masses[name][layer, members_NH[layer]].mean()) if members_NH[layer].any() else ""
            for name, members_NH, _ in columns
        ]
        rows.append([str(layer), *cells])
    windows = maps.window_of_layer
    chance = [
        [label, *(_number(by_name[name].chance_N[windows.index(window)]) for name, _, _ in columns)]
        for window, label in chance_labels(windows).items()
    ]
    size = {
        "encoder": f"{len(maps.tokens)} tokens",
        "decoder": f"{len(maps.tokens)} tokens that it reads",
        "cross": f"{len(maps.row_tokens)} tokens that the decoder reads and {len(maps.tokens)} of the source",
    }[maps.kind]
    more = f" ({maps.left_out} more were cut off)" if maps.left_out else ""
    lines = [f"{maps.title}: attention mass on the patterns' targets, for {size}{more}"]
    lines.append(Table(header, [*rows, *chance]).terminal(totals=len(chance)))
    if assignment.where:
        lines += ["", f"guided: {assignment.where}; all heads of other layers are {maps.unguided(assignment)}"]
    local = [str(layer) for layer in range(layers) if windows[layer] is not None]
    if local:
        word = "layers" if len(local) > 1 else "layer"
        side = max(window or 0 for window in windows) // 2
        tokens = "token" if side == 1 else "tokens"
        lines += ["", f"{word} {', '.join(local)}: a token sees itself and {side} {tokens} on each side"]
    if not all(by_name[name].has_target_Q.any() for name, *_ in columns):
        lines += ["", "– : the pattern points at nothing in this text"]
    return "\n".join(lines)


def chance_labels(windows: Sequence[int | None]) -> dict[int | None, str]:
    """Return {window: label of a table's row with the chance level in layers with this attention window}.

    windows: the window of each layer, None for a layer that sees all tokens.
    """
    if len({*windows}) == 1:
        return dict.fromkeys(windows, "by chance")
    return {window: "by chance (all)" if window is None else f"by chance ({window})" for window in windows}


def _span(heads: Sequence[int] | np.ndarray) -> str:
    """Return a range of heads as text, such as `2` or `3-6`."""
    return str(heads[0]) if len(heads) == 1 else f"{heads[0]}-{heads[-1]}"


def _number(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.2f}"
