"""Greedy and beam search for any model that predicts the next token.

Shape letters: B batch of sentences, K beams (hypotheses of a sentence), J = 2K candidates, V vocabulary, T generated
tokens, N layers.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ag_jax.models.decoding_config import DecodingConfig

Cache = Any
Step = Callable[[Cache, Array, Array], tuple[Array, Cache]]

ROUNDING = 1e-3  # what a log-probability may be above 0
LARGEST_BLOCK, SMALLEST_BLOCK = 128, 16  # numbers of candidates in a block (`_best_candidates`)


@flax.struct.dataclass
class Hypotheses:
    """The result of a search: up to K hypotheses (generated texts) for each of B sentences, best score first.

    If fewer than K hypotheses of a sentence have a probability above 0, the last places are empty: length 0, log-prob
    and score -inf.

    tokens_BKT: tokens without the start token, with the end token, and padded with end tokens.
    lengths_BK: numbers of tokens, the end token included.
    log_probs_BK: sums of the tokens' log-probabilities.
    scores_BK: log-probabilities divided by the penalty of the length (`penalty`).
    ended_BK: whether the hypothesis has ended: by an end token or because it has its sentence's maximum length, in
        which case its last token may be another one.
    """

    tokens_BKT: Array
    lengths_BK: Array
    log_probs_BK: Array
    scores_BK: Array
    ended_BK: Array

    @property
    def failed_B(self) -> Array:
        """For each sentence, whether it has no result: the model's output was no distribution, or no text was possible.

        Its best score is then NaN or -inf.
        """
        return ~jnp.isfinite(self.scores_BK[:, 0])


@flax.struct.dataclass
class _State:
    """State of a beam search before a step: live and ended hypotheses of each sentence, and the model's cache.

    index: number of steps done.
    cache: the model's, of the K live hypotheses of each sentence.
    last_BK: their last tokens.
    tokens_BKT: all their tokens; end tokens from position `index`.
    log_probs_BK: their log-probabilities, best first; -inf means that there is no such hypothesis. If all of a
        sentence's are -inf, its search is over.
    ended: the best ended hypotheses, best first.
    failed_B: whether the model's output was no distribution.
    """

    index: Array
    cache: Cache
    last_BK: Array
    tokens_BKT: Array
    log_probs_BK: Array
    ended: Hypotheses
    failed_B: Array


def gather(cache: Cache, parents_BK: Array) -> Cache:
    """Return a decoding cache in which beam k of each sentence has the entries of beam `parents_BK[:, k]`.

    The arrays of the cache are `NBK...`, and N may be 1.
    """
    of_each_sentence = jax.vmap(lambda leaf, parents_K: leaf[:, parents_K], in_axes=(1, 0), out_axes=1)
    return jax.tree.map(lambda leaf: of_each_sentence(leaf, parents_BK), cache)


def _has_room(cache: Cache, room: int) -> Cache:
    """Return the decoding cache unchanged, the default of `search(grow=...)`, for a cache with room for all steps."""
    del room
    return cache


def penalty(config: DecodingConfig, lengths: Array) -> Array:
    """Return the divisor that turns the log-probabilities of hypotheses into scores, float32.

    With l the length and a = `config.length_penalty`: ((5 + l) / 6)^a for `gnmt` (Wu et al. 2016, equation 14), l^a for
    `power`, 1 for `none`.

    lengths: numbers of tokens, the end token included.
    """
    lengths = jnp.asarray(lengths, jnp.float32)
    if config.normalization == "none":
        return jnp.ones_like(lengths)
    return ((5.0 + lengths) / 6.0 if config.normalization == "gnmt" else lengths) ** config.length_penalty


def search(
    step: Step,
    cache: Cache,
    *,
    config: DecodingConfig,
    start_B: Array,
    end: int,
    forbidden: Sequence[int],
    min_lengths_B: Array,
    max_lengths_B: Array,
    steps: int,
    rooms: Sequence[int] = (),
    grow: Callable[[Cache, int], Cache] = _has_room,
    reorder: Callable[[Cache, Array], Cache] = gather,
) -> Hypotheses:
    """Run a beam search (or greedy search, by its settings) and return the best hypotheses of each sentence.

    Each step extends the K = `config.beam_size` live hypotheses of a sentence by one token and takes the 2K best
    extensions. Those that end compete by score with the hypotheses that have ended before, of which K are kept; the
    best K of the others live on. If `config.ends` is `first`, extensions that end but are not among the first K are
    dropped. In the step that reaches a sentence's maximum length, all extensions end. Of extensions with the same
    log-probability, those of the better hypothesis come first, then those with the smaller token id; of equal scores,
    those that ended earlier.

    A sentence is done when K of its hypotheses have ended and, with `config.stop="bound"`, the worst of their scores is
    above the best live log-probability divided by what `config.normalization` divides by at the maximum length. That is
    the best score which a live hypothesis can reach, since log-probabilities only fall and divisors do not. Sentences
    are independent, and one that is done does not change while the others are searched.

    A sentence for which no hypothesis has ended after `steps` steps gets its live ones, marked as not ended; this
    happens only if its maximum length is above `steps`. A sentence fails if
    the log-probabilities that follow a live hypothesis include NaN, or a number above 0 (logits instead of
    log-probabilities), or are all -inf. Its scores and log-probabilities are then NaN, even if hypotheses ended before,
    and its lengths 0. See also `Hypotheses.failed_B`.

    step: `(cache, tokens_BK, index) -> (log_probs_BKV, cache)`: float32 log-probabilities of the next tokens, -inf
        where a token is impossible. `tokens_BK` are the last tokens, in the first step the start tokens; `index` counts
        the steps from 0. Arrays that are the same for all beams, such as keys and values of the encoded source, belong
        in the closure of `step` and not in the cache.
    cache: what `step` keeps of the tokens before, a pytree of arrays in the form that `grow` and `reorder` expect.
    start_B: start tokens.
    end: id of the end token.
    forbidden: ids that are never generated, such as those of padding, mask and start token.
    min_lengths_B: smallest numbers of tokens of a hypothesis, its end token included, unless the maximum is smaller.
    max_lengths_B: largest numbers of tokens, at which every hypothesis ends, with an end token or without.
    steps: number of steps after which the search ends at the latest, at least the largest maximum length.
    rooms: ascending numbers of steps, below `steps`, after which the cache grows to the next of them, at last to
        `steps`. This avoids reading a cache with room for all steps in every step, although most sentences end long
        before.
    grow: `(cache, number of steps) -> cache` with room for so many steps; `cache` itself has room for the first of
        `rooms`, or for `steps` without any.
    reorder: `(cache, parents_BK) -> cache` in which hypothesis k of sentence b continues its hypothesis
        `parents_BK[b, k]`; not called for a single beam.
    """
    beams, rows = config.beam_size, start_B.shape[0]

    def advance(state: _State) -> _State:
        log_probs_BKV, cache = step(state.cache, state.last_BK, state.index)
        length = state.index + 1
        live_BK = state.log_probs_BK > -jnp.inf
        failed_B = state.failed_B | (live_BK & ~_is_distribution(log_probs_BKV)).any(-1)

        may_end_B = length >= min_lengths_B
        allowed_BV = _allowed(log_probs_BKV.shape[-1], end, forbidden, may_end_B)
        # A single `where`, which XLA fuses into one array `BKV`. Beams without a hypothesis are masked, too: their -inf
        # plus an output of +inf would be NaN, and their outputs mean nothing.
        candidates_BKV = jnp.where(
            live_BK[:, :, None] & allowed_BV[:, None, :], state.log_probs_BK[:, :, None] + log_probs_BKV, -jnp.inf
        )
        log_probs_BJ, parents_BJ, last_BJ = _best_candidates(candidates_BKV, 2 * beams)
        tokens_BJT = _pick(state.tokens_BKT, parents_BJ).at[:, :, state.index].set(last_BJ)

        at_end_BJ = (last_BJ == end) | (length >= max_lengths_B)[:, None]
        ranks_J = jnp.arange(2 * beams)
        ending_BJ = at_end_BJ & (ranks_J < (beams if config.ends == "first" else 2 * beams))[None, :]
        ending = _hypotheses(config, tokens_BJT, length, jnp.where(ending_BJ, log_probs_BJ, -jnp.inf), ended=True)
        ended = _best_of(state.ended, ending, beams)

        # With ends=first, an extension that ends behind the first K is neither ended nor live.
        log_probs_BK, ranks_BK = jax.lax.top_k(jnp.where(at_end_BJ, -jnp.inf, log_probs_BJ), beams)
        parents_BK = _pick(parents_BJ, ranks_BK)
        done_B = ended.ended_BK.all(-1)
        if config.stop == "bound":
            done_B &= ended.scores_BK[:, -1] > log_probs_BK[:, 0] / penalty(config, max_lengths_B)
        return _State(
            index=length,
            # With one beam, each hypothesis is its own parent.
            cache=reorder(cache, parents_BK) if beams > 1 else cache,
            last_BK=_pick(last_BJ, ranks_BK),
            tokens_BKT=_pick(tokens_BJT, ranks_BK),
            # Without live hypotheses there are no candidates, and `ended` cannot change any more.
            log_probs_BK=jnp.where((done_B | failed_B)[:, None], -jnp.inf, log_probs_BK),
            ended=ended,
            failed_B=failed_B,
        )

    def goes_on(state: _State, room: int) -> Array:
        return (state.index < room) & (state.log_probs_BK > -jnp.inf).any()

    nothing_BKT = jnp.full((rows, beams, steps), end, jnp.int32)
    nothing_BK = jnp.full((rows, beams), -jnp.inf, jnp.float32)
    zero = jnp.zeros((), jnp.int32)
    start = _State(
        index=zero,
        cache=cache,
        last_BK=jnp.broadcast_to(start_B.astype(jnp.int32)[:, None], (rows, beams)),
        tokens_BKT=nothing_BKT,
        log_probs_BK=nothing_BK.at[:, 0].set(0.0),  # only one, because K equal ones would stay equal
        ended=_hypotheses(config, nothing_BKT, zero + 1, nothing_BK, ended=True),
        failed_B=jnp.zeros((rows,), bool),
    )
    state = jax.lax.while_loop(functools.partial(goes_on, room=min([*rooms, steps])), advance, start)
    for room in [*rooms, steps][1:]:
        state = dataclasses.replace(state, cache=grow(state.cache, room))
        state = jax.lax.while_loop(functools.partial(goes_on, room=room), advance, state)
    return _result(config, state, end)


def _is_distribution(log_probs_BKV: Array) -> Array:
    """Return `BK`: whether the next token's log-probabilities are a distribution: no NaN, not all -inf, none above 0.

    The maximum of numbers that include NaN is NaN, which compares as false.
    """
    largest_BK = log_probs_BKV.max(-1)
    return (largest_BK > -jnp.inf) & (largest_BK <= ROUNDING)


def _allowed(vocabulary: int, end: int, forbidden: Sequence[int], may_end_B: Array) -> Array:
    """Return `BV`: which tokens may come next in each sentence, neither forbidden nor an end token too early."""
    allowed_V = np.ones(vocabulary, bool)
    allowed_V[list(forbidden)] = False
    is_end_V = np.arange(vocabulary) == end
    return allowed_V[None, :] & (may_end_B[:, None] | ~is_end_V[None, :])


def _best_candidates(log_probs_BKV: Array, count: int) -> tuple[Array, Array, Array]:
    """Return each sentence's J = `count` best next tokens, best first, as (log-probabilities, beams, tokens), all `BJ`.

    Of equal ones the one with the lower index beam * V + token is first, as in `lax.top_k` over K * V.

    Large vocabularies are cut into blocks. The J best candidates lie in the J blocks with the largest maxima, ties
    included, because a candidate in another block comes after those J maxima. So `lax.top_k` gets J blocks only; on a
    CPU it takes many times as long as the maxima of the same array.
    """
    rows, beams, vocabulary = log_probs_BKV.shape
    flat = log_probs_BKV.reshape(rows, beams * vocabulary)
    # Blocks of equal sizes, because padding the last one would copy the whole array.
    size = max(size for size in range(1, LARGEST_BLOCK + 1) if vocabulary % size == 0)
    if size < SMALLEST_BLOCK or beams * vocabulary < 4 * count * size:
        best_BJ, places_BJ = jax.lax.top_k(flat, count)
        return best_BJ, places_BJ // vocabulary, places_BJ % vocabulary
    blocks = flat.reshape(rows, -1, size)
    _, numbers_BJ = jax.lax.top_k(blocks.max(-1), count)
    numbers_BJ = jnp.sort(numbers_BJ, axis=-1)  # so that the candidates of all J blocks are in the order of the tokens
    candidates = _pick(blocks, numbers_BJ).reshape(rows, count * size)
    best_BJ, places_BJ = jax.lax.top_k(candidates, count)
    places_BJ = _pick(numbers_BJ, places_BJ // size) * size + places_BJ % size
    return best_BJ, places_BJ // vocabulary, places_BJ % vocabulary


def _pick(array: Array, indices: Array) -> Array:
    """Return the entries of `array` at the given indices of its axis 1, for each sentence (axis 0)."""
    return jax.vmap(lambda entries, places: entries[places])(array, indices)


def _hypotheses(
    config: DecodingConfig, tokens: Array, length: Array, log_probs: Array, *, ended: bool | Array
) -> Hypotheses:
    """Return `Hypotheses` whose texts all have `length` tokens; where a log-probability is -inf, there is none."""
    exists = log_probs > -jnp.inf
    return Hypotheses(
        tokens_BKT=tokens,
        lengths_BK=jnp.where(exists, length, 0),
        log_probs_BK=log_probs,
        scores_BK=log_probs / penalty(config, length),
        ended_BK=exists & ended,
    )


def _best_of(earlier: Hypotheses, later: Hypotheses, count: int) -> Hypotheses:
    """Return the `count` hypotheses with the best scores among both, best first; of equal scores, the earlier first."""
    both = jax.tree.map(lambda *arrays: jnp.concatenate(arrays, axis=1), earlier, later)
    _, places = jax.lax.top_k(both.scores_BK, count)
    return jax.tree.map(lambda array: _pick(array, places), both)


def _result(config: DecodingConfig, state: _State, end: int) -> Hypotheses:
    """Return each sentence's ended hypotheses, or its unfinished ones if none has ended; NaN where the model failed."""
    live = _hypotheses(config, state.tokens_BKT, state.index, state.log_probs_BK, ended=False)
    has_ended_B = state.ended.ended_BK.any(-1)

    def select(ended: Array, live: Array) -> Array:
        return jnp.where(has_ended_B.reshape(-1, *(1,) * (ended.ndim - 1)), ended, live)

    best = jax.tree.map(select, state.ended, live)
    failed_B1 = state.failed_B[:, None]
    exists_BK = (best.lengths_BK > 0) & ~failed_B1
    return Hypotheses(
        tokens_BKT=jnp.where(exists_BK[:, :, None], best.tokens_BKT, end),
        lengths_BK=jnp.where(exists_BK, best.lengths_BK, 0),
        log_probs_BK=jnp.where(failed_B1, jnp.nan, best.log_probs_BK),
        scores_BK=jnp.where(failed_B1, jnp.nan, best.scores_BK),
        ended_BK=exists_BK & best.ended_BK,
    )
