"""Run a probe on a model: the score of every head on every query.

Shape letters: Q queries of the probe or of a batch, N layers, H heads, U units (words or positions), G
candidates of a query.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ag_jax.analysis.heads import scores
from ag_jax.analysis.heads.encoding import EncodedWindow, encode
from ag_jax.analysis.heads.rows import Convention, Unit, attention_rows
from ag_jax.analysis.heads.scores import Choices
from ag_jax.data.probes.queries import Mode, Probe, Query
from ag_jax.data.tokenizers import Tokenizer
from ag_jax.models.masked_lm import PretrainingModel
from ag_jax.models.one_line import one_line

TOO_LONG = "queries in a window with more tokens than the model can read"
# The arrays of `Measured`, each with the queries as its first axis.
ARRAYS = ("queries_Q", "scores_QNH", "chosen_QNH", "chance_Q", "confusion_QNH", "mass_QNH")
NO_TOKEN = "words without a token, read as unknown words"


@dataclasses.dataclass(frozen=True)
class HeadsModel:
    """An encoder whose heads are measured.

    description: where the model comes from, for people.
    model: the encoder, in a model whose heads for predictions are not used.
    params: the parameters of the encoder, as `encoder`.
    tokenizer: its tokenizer.
    longest: number of tokens of the longest text that it is given: the longest one that it was trained on, for an
        imported model its number of positions.
    """

    description: str
    model: PretrainingModel
    params: Any
    tokenizer: Tokenizer
    longest: int

    __repr__ = one_line


@dataclasses.dataclass(frozen=True)
class Measured:
    """Scores of all heads in one mode of a probe, on the Q queries whose windows the model can read.

    queries_Q: indices of these queries in the probe.
    scores_QNH: score of each head on each query, in [0, 1].
    chosen_QNH: the unit at which the head looks most: a word, the index of a candidate, or a position.
    chance_Q: expected score of a random choice.
    confusion_QNH: see `scores.confusion`; None in modes without candidates.
    mass_QNH: attention to the candidate to which a head attends most, of which F1 is made; None in modes without
        candidates, and if every query has a correct one.
    dropped: reason to the number of queries, or words, that were left out or changed for this model.
    """

    queries_Q: np.ndarray
    scores_QNH: np.ndarray
    chosen_QNH: np.ndarray
    chance_Q: np.ndarray
    confusion_QNH: np.ndarray | None
    mass_QNH: np.ndarray | None
    dropped: Mapping[str, int]


def measure(
    probed: HeadsModel,
    probe: Probe,
    modes: Sequence[Mode],
    convention: Convention = Convention(),
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[Mode, Measured]:
    """Return {mode: scores of all heads of a model on a probe's queries}.

    convention: how attention between tokens becomes attention between words.
    progress: called with the number of queries done and that of all, several times.

    Raises ValueError if no query is left, or for the mode `mentions` if the probe's queries have no candidates.
    """
    encoded = encode(probe.windows, probed.tokenizer, probed.longest)
    indices = [index for index, query in enumerate(probe.queries) if encoded.windows[query.window] is not None]
    dropped: dict[str, int] = {}
    if left_out := len(probe.queries) - len(indices):
        dropped[TOO_LONG] = left_out
    if encoded.unknown:
        dropped[NO_TOKEN] = encoded.unknown
    if not indices:
        reasons = "; ".join(f"{reason}: {count:,}" for reason, count in [*probe.dropped.items(), *dropped.items()])
        raise ValueError(
            f"the probe {probe.name} has no query that {probed.description} can be asked ({reasons or 'no text'}): "
            "give more text, or shorter windows"
        )
    if "mentions" in modes and not all(probe.queries[index].candidates for index in indices):
        raise ValueError(
            f"the mode mentions chooses among candidates, and queries of the probe {probe.name} have none: use words"
        )
    params = jax.device_put(probed.params)  # once, and not for each batch
    windows = [window for window in encoded.windows if window is not None]
    places = np.cumsum([window is not None for window in encoded.windows]) - 1
    queries = [probe.queries[index] for index in indices]
    window_Q, word_Q = places[[query.window for query in queries]], np.array([query.at for query in queries])
    may_lack = not all(query.right for query in queries)
    collectors = {
        mode: _Collector(
            len(queries), probed, has_confusion=mode == "mentions", has_mass=mode == "mentions" and may_lack
        )
        for mode in modes
    }
    done, units = 0, sorted({_unit(mode) for mode in modes})
    for rows in attention_rows(probed.model, params, windows, window_Q, word_Q, units, convention):
        batch = [queries[index] for index in rows.queries]
        texts = [windows[index] for index in window_Q[rows.queries]]
        for mode in modes:
            weights_QNHU = rows.weights[_unit(mode)]
            collectors[mode].add(rows.queries, *_weights_and_choices(mode, probe, batch, texts, weights_QNHU))
        done += len(batch)
        progress(done, len(queries))
    indices_Q = np.array(indices)
    return {mode: collector.measured(indices_Q, dropped) for mode, collector in collectors.items()}


def _unit(mode: Mode) -> Unit:
    """Return whether a mode reads attention by word or by token position."""
    return "position" if mode == "positions" else "word"


def _weights_and_choices(
    mode: Mode, probe: Probe, queries: Sequence[Query], windows: Sequence[EncodedWindow], weights_QNHU: np.ndarray
) -> tuple[np.ndarray, Choices]:
    """Return the attention to the words, tokens or candidates among which a mode chooses, and the choices."""
    units = weights_QNHU.shape[-1]
    if mode == "mentions":
        words_QGU, choices = scores.candidate_choices(queries, units)
        return scores.candidate_mass(weights_QNHU, words_QGU), choices
    if mode == "positions":
        return weights_QNHU, scores.position_choices(queries, units, windows)
    counts = [len(window.starts) - 1 for window in windows]
    return weights_QNHU, scores.word_choices(queries, units, counts, before=probe.before)


class _Collector:
    """Collector of the scores of all heads in one mode, batch by batch."""

    def __init__(self, queries: int, probed: HeadsModel, *, has_confusion: bool, has_mass: bool):
        config = probed.model.config
        shape = (queries, config.layers, config.heads)
        self.scores, self.chosen = np.zeros(shape, np.float32), np.zeros(shape, np.int16)
        self.chance = np.zeros(queries, np.float64)
        self.confusion = np.zeros(shape, np.float32) if has_confusion else None
        self.mass = np.zeros(shape, np.float32) if has_mass else None

    def add(self, queries: np.ndarray, weights: np.ndarray, choices: Choices) -> None:
        self.scores[queries], self.chosen[queries] = scores.scores(weights, choices)
        self.chance[queries] = choices.chance_Q
        if self.confusion is not None:
            self.confusion[queries] = scores.confusion(weights, choices)
        if self.mass is not None:
            self.mass[queries] = scores.largest(weights, choices)

    def measured(self, indices: np.ndarray, dropped: Mapping[str, int]) -> Measured:
        return Measured(indices, self.scores, self.chosen, self.chance, self.confusion, self.mass, dropped)
