"""Pseudo-log-likelihoods of sentences: the sum of the log-probabilities of their tokens, each predicted while masked.

For a sentence of the tokens w_1 ... w_n, without begin and end token,

    score = sum over i of log p(w_i | the sentence with some tokens masked)

with two choices of what is masked:

    token       w_i alone (Salazar et al. 2020, section 2)
    word_l2r    w_i and the later tokens of the same word (Kauf & Ivanova 2023, section 3.2), because the rest of a
                word would give a token away

A word is what white space separates. Both are the same for words of one token.

Shape letters: B rows of a batch, L length, K targets of a row, V vocabulary.
"""

import collections
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ag_jax.analysis.heads.encoding import EncodedWindow, encode
from ag_jax.data.probes.minimal_pairs import Pair
from ag_jax.data.probes.queries import Window
from ag_jax.data.tasks import buckets
from ag_jax.data.tasks.rows import Features, RowSettings
from ag_jax.data.tokenizers import Tokenizer
from ag_jax.interop.opening import WordModel

SCORES = ("token", "word_l2r")
ROWS, TARGETS = 128, 2  # of a batch, and of a row: the two sentences of a pair may share a masked row
GROUP = 250  # pairs whose masked rows are in memory together


class Masked(NamedTuple):
    """A masked token to predict: the token ids of the masked sentence, and the token's position.

    row: ids of the row, with begin and end token, as bytes of int32.
    position: position of the token.
    """

    row: bytes
    position: int


class Scored(NamedTuple):
    """Pseudo-log-likelihoods of P pairs: sums over the tokens of a sentence, in nats, not divided by its length.

    scores: {"token" or "word_l2r": float64 `(P, 2)`}, of the good and the bad sentence; NaN for a pair left out.
    unknown: number of words without a token, for which the token for unknown words stands.
    too_long: number of pairs that are left out, because a sentence has more tokens than the model can read.
    """

    scores: dict[str, np.ndarray]
    unknown: int
    too_long: int


def maskings(window: EncodedWindow, mask: int) -> dict[str, list[tuple[Masked, int]]]:
    """Return {"token" or "word_l2r": [(masked sentence, id of the token to predict)]} for the tokens of a sentence.

    mask: id of the mask token.
    """
    rows_of_scores: dict[str, list[tuple[Masked, int]]] = {name: [] for name in SCORES}
    for first, end in zip(window.starts[:-1], window.starts[1:], strict=True):
        for position in range(first, end):
            for name, last in (("token", position + 1), ("word_l2r", end)):
                row = window.ids.copy()
                row[position:last] = mask
                rows_of_scores[name].append((Masked(row.tobytes(), position), int(window.ids[position])))
    return rows_of_scores


def score(
    opened: WordModel, pairs: Sequence[Pair], progress: Callable[[int, int], None] = lambda done, total: None
) -> Scored:
    """Return the pseudo-log-likelihoods that a model gives to both sentences of all pairs.

    A masked row that both sentences of a pair share is computed once.

    Raises ValueError for a model whose scores are not finite.

    progress: called with the number of pairs that are done, and of all.
    """
    tokenizer, longest = opened.tokenizer, opened.length
    windows = [Window("", tuple(sentence.split())) for pair in pairs for sentence in (pair.good, pair.bad)]
    encoded = encode(windows, tokenizer, longest)
    log_probabilities = _compiled(opened)
    scores = {name: np.full((len(pairs), 2), np.nan) for name in SCORES}
    too_long = 0
    for start in range(0, len(pairs), GROUP):
        maskings_of_pairs: dict[int, list[dict[str, list[tuple[Masked, int]]]]] = {}
        targets: dict[tuple[int, Masked], list[int]] = collections.defaultdict(list)
        for number in range(start, min(start + GROUP, len(pairs))):
            pair_windows = encoded.windows[2 * number : 2 * number + 2]
            if any(window is None for window in pair_windows):
                too_long += 1
                continue
            maskings_of_pairs[number] = [
                maskings(window, tokenizer.specials.mask) for window in pair_windows if window is not None
            ]
            for of_sentence in maskings_of_pairs[number]:
                for masked, target in of_sentence["token"] + of_sentence["word_l2r"]:
                    if target not in targets[number, masked]:
                        targets[number, masked].append(target)
        log_probability_of = dict(_predicted(targets, opened, log_probabilities))
        for number, sentences in maskings_of_pairs.items():
            for side, of_sentence in enumerate(sentences):
                for name in SCORES:
                    values = [log_probability_of[number, masked, target] for masked, target in of_sentence[name]]
                    scores[name][number, side] = np.sum(values, dtype=np.float64)
            if not all(np.isfinite(array[number]).all() for array in scores.values()):  # NaN stands for pairs left out
                raise ValueError(
                    "the model's scores of words are not numbers (NaN or infinite), so pairs cannot be compared: its "
                    "training diverged, or its weights are damaged"
                )
        progress(min(start + GROUP, len(pairs)), len(pairs))
    return Scored(scores, encoded.unknown, too_long)


def _predicted(
    targets: dict[tuple[int, Masked], list[int]], opened: WordModel, log_probabilities: Callable[..., jax.Array]
) -> Iterator[tuple[tuple[int, Masked, int], float]]:
    """Yield ((number of the pair, masked sentence, id of the token to predict), log-probability of the token)."""
    shape = RowSettings(opened.tokenizer.specials, opened.model.config.max_length, opened.model.config.token_types)
    keys = list(targets)
    # Without begin and end token, which `row` adds again.
    rows = [shape.row(np.frombuffer(masked.row, np.int32)[1:-1].tolist()) for _, masked in keys]
    features = Features(rows, np.arange(len(rows), dtype=np.int32), 0, opened.tokenizer.specials.pad)
    for batch in buckets.batches(features, ROWS, max_length=shape.max_length, shuffle=False):
        owner_B = batch.pop("rows")
        used_B = np.flatnonzero(owner_B >= 0)
        positions_B1, targets_BK = np.zeros((ROWS, 1), np.int32), np.zeros((ROWS, TARGETS), np.int32)
        for place in used_B:
            key = keys[owner_B[place]]
            positions_B1[place] = key[1].position
            targets_BK[place, : len(targets[key])] = targets[key]
        inputs = batch | {"original": batch["tokens"], "masked_positions": positions_B1}
        found_BK = np.asarray(log_probabilities(opened.params, inputs, targets_BK))
        for place in used_B:
            number, masked = keys[owner_B[place]]
            for target, value in zip(targets[number, masked], found_BK[place], strict=False):
                yield (number, masked, target), float(value)


def _compiled(opened: WordModel) -> Callable[..., jax.Array]:
    model: Any = opened.model

    @jax.jit
    def log_probabilities(params: Any, batch: dict[str, jax.Array], targets_BK: jax.Array) -> jax.Array:
        words_BV = model.apply({"params": params}, batch, deterministic=True).words_BMV[:, 0].astype(jnp.float32)
        return jnp.take_along_axis(jax.nn.log_softmax(words_BV), targets_BK, axis=1)

    return log_probabilities


def default_score(tokenizer: Tokenizer) -> str:
    """Return the score that judges a model: `word_l2r` with a vocabulary below 16,000 tokens, otherwise `token`."""
    return "word_l2r" if tokenizer.vocabulary_size < 16_000 else "token"
