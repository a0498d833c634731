"""Beam search against a search with Python lists, and against all possible outputs.

The model is a table of random log-probabilities, with a row for each state; the state is a hash of the tokens so far.
"""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ag_jax.models import beam_search
from ag_jax.models.decoding_config import DecodingConfig
from tests.cases import pairwise

END, FORBIDDEN = 2, (0, 4)
FIELDS = [field.name for field in dataclasses.fields(beam_search.Hypotheses)]


@dataclasses.dataclass(frozen=True)
class Sentences:
    """A batch: the model's tables of log-probabilities `BPV` for P states, start tokens and limits of lengths."""

    tables: np.ndarray
    starts: np.ndarray
    shortest: np.ndarray
    longest: np.ndarray

    @property
    def arrays(self):
        return self.tables, self.starts, self.shortest, self.longest

    def next_state(self, state, token):
        _, states, vocabulary = self.tables.shape
        return (state * vocabulary + token + 1) % states


def random_sentences(longest, *, shortest=0, vocabulary=7, states=211, end_bias=0.5, seed=0):
    rng = np.random.default_rng(seed)
    longest = np.array(longest, np.int32)
    logits = 2 * rng.standard_normal((len(longest), states, vocabulary))
    logits[:, :, END] += end_bias
    tables = (logits - np.log(np.exp(logits).sum(-1, keepdims=True))).astype(np.float32)
    starts = rng.integers(min(vocabulary, states), size=len(longest)).astype(np.int32)
    return Sentences(tables, starts, np.broadcast_to(np.array(shortest, np.int32), longest.shape).copy(), longest)


MIXED = random_sentences(
    [7, 1, 5, 2, 7, 7, 6, 3, 7, 7, 7, 4], shortest=[0, 0, 3, 2, 1, 7, 2, 0, 4, 0, 2, 1], end_bias=1.0, seed=3
)


def model(tables, on_log_probs, tokens, index, cache):
    """Log-probabilities of the next tokens; the state is kept in one array of the cache, and the tokens in another.

    NaN if the two do not agree, because one of them was gathered wrongly.
    """
    _, states, vocabulary = tables.shape
    from_before = jnp.where(index == 0, tokens, (cache["state"][0] * vocabulary + tokens + 1) % states)
    history = cache["history"].at[:, :, :, index].set(jnp.stack([tokens, -tokens]))
    from_history = history[0, :, :, 0]
    for place in range(1, history.shape[-1]):
        following = (from_history * vocabulary + (history[0, :, :, place] - history[1, :, :, place]) // 2 + 1) % states
        from_history = jnp.where(place <= index, following, from_history)
    log_probs = jax.vmap(lambda table, rows: table[rows])(tables, from_before)
    log_probs = jnp.where((from_before == from_history)[:, :, None], log_probs, jnp.nan)
    return on_log_probs(log_probs, index), {"state": from_before[None], "history": history}


def grow(cache, room):
    """The cache with room for `room` tokens."""
    more = room - cache["history"].shape[-1]
    return cache | {"history": jnp.pad(cache["history"], [(0, 0)] * 3 + [(0, more)])}


def reorder(cache, parents_BK):
    """Reorder the cache as the search does by default, with a function of its own."""
    rows = jnp.arange(len(parents_BK))[:, None]
    return jax.tree.map(lambda leaf: leaf[:, rows, parents_BK], cache)


@functools.partial(jax.jit, static_argnames=("config", "steps", "forbidden", "on_log_probs", "rooms"))
def run(tables, starts, shortest, longest, *, config, steps, forbidden, on_log_probs, rooms):
    shape, own = (len(starts), config.beam_size), {"grow": grow, "reorder": reorder} if rooms else {}
    cache = {
        "state": jnp.zeros((1, *shape), jnp.int32),
        "history": jnp.zeros((2, *shape, [*rooms, steps][0]), jnp.int32),
    }
    limits = {"min_lengths_B": shortest, "max_lengths_B": longest, "steps": steps, "rooms": rooms}
    words = {"start_B": starts, "end": END, "forbidden": forbidden}
    step = lambda cache, tokens, index: model(tables, on_log_probs, tokens, index, cache)  # noqa: E731
    return beam_search.search(step, cache, config=config, **words, **limits, **own)


def unchanged(log_probs, index):
    return log_probs


def searched(sentences, config, *, steps=None, forbidden=FORBIDDEN, on_log_probs=unchanged, rooms=()):
    steps = steps or int(sentences.longest.max())
    static = {"config": config, "steps": steps, "forbidden": forbidden, "on_log_probs": on_log_probs, "rooms": rooms}
    return jax.tree.map(np.asarray, run(*sentences.arrays, **static))


def penalty_of(config, length):
    base = {"gnmt": (5 + length) / 6, "power": length, "none": 1}[config.normalization]
    return base**config.length_penalty


def listed(sentences, row, config, *, stops=True):
    """The ended hypotheses of a sentence as (tokens, log-probability), best first, and the number of steps.

    stops: whether the search may stop before the maximum length.
    """
    table, end, beams = sentences.tables[row].astype(np.float64), END, config.beam_size
    shortest, longest = int(sentences.shortest[row]), int(sentences.longest[row])
    live, ended = [((), int(sentences.starts[row]), 0.0)], []
    for length in range(1, longest + 1):
        candidates = []
        for tokens, state, total in live:
            for token in range(table.shape[-1]):
                if token in FORBIDDEN or (token == end and length < shortest) or table[state, token] == -math.inf:
                    continue
                candidates.append((total + table[state, token], len(candidates), (*tokens, token), state))
        best = sorted(candidates, key=lambda candidate: (-candidate[0], candidate[1]))[: 2 * beams]
        live = []
        for rank, (total, _, tokens, state) in enumerate(best):
            if tokens[-1] == end or length == longest:
                if rank < beams or config.ends == "all":
                    ended.append((tokens, total))
            elif len(live) < beams:
                live.append((tokens, sentences.next_state(state, tokens[-1]), total))
        ended = sorted(ended, key=lambda found: -found[1] / penalty_of(config, len(found[0])))[:beams]
        if not live:
            break
        if stops and len(ended) == beams:
            worst = ended[-1][1] / penalty_of(config, len(ended[-1][0]))
            if config.stop == "full" or worst > live[0][2] / penalty_of(config, longest):
                break
    return ended, length


def check_sentence(found, row, wanted, config):
    """Compare all fields of a sentence with a list of (tokens, log-probability), best first."""
    for place in range(config.beam_size):
        tokens, total = wanted[place] if place < len(wanted) else ((), -math.inf)
        length = len(tokens)
        assert tuple(found.tokens_BKT[row, place, :length]) == tokens, (row, place)
        assert (found.tokens_BKT[row, place, length:] == END).all()
        assert found.lengths_BK[row, place] == length
        assert found.ended_BK[row, place] == (place < len(wanted))
        np.testing.assert_allclose(found.log_probs_BK[row, place], total, rtol=1e-5)
        np.testing.assert_allclose(found.scores_BK[row, place], total / penalty_of(config, max(length, 1)), rtol=1e-5)
    assert found.failed_B[row] == (not wanted)


def check_all(found, sentences, config, **settings):
    for row in range(len(sentences.longest)):
        check_sentence(found, row, listed(sentences, row, config, **settings)[0], config)


def check_same(found, expected, rows=np.s_[:]):
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(found, name)[rows], getattr(expected, name)[rows], err_msg=name)


@pytest.mark.parametrize(
    ("ends", "stop", "normalization", "beams"),
    pairwise(("all", "first"), ("bound", "full"), ("gnmt", "power", "none"), (1, 2, 4)),
)
def test_the_search_is_that_with_lists(beams, normalization, stop, ends):
    """The bound changes no result, and saves steps."""
    config = DecodingConfig(beam_size=beams, normalization=normalization, stop=stop, ends=ends)
    found = searched(MIXED, config)
    check_all(found, MIXED, config)
    if stop == "bound" and ends == "all":
        check_all(found, MIXED, config, stops=False)
        assert sum(listed(MIXED, row, config)[1] < longest for row, longest in enumerate(MIXED.longest)) >= 2


@pytest.mark.parametrize(("normalization", "length_penalty"), [("gnmt", 0.6), ("power", 1.0)])
def test_enough_beams_find_the_best_of_all_outputs(normalization, length_penalty):
    """Four possible words, one of which is the end token; 3^4 beams keep all prefixes of outputs of up to 5 tokens."""
    beams, words = 3**4, 4
    sentences = random_sentences([5, 4], vocabulary=words, states=10007)
    tables = np.pad(sentences.tables, ((0, 0), (0, 0), (0, beams - words)), constant_values=-np.inf)
    sentences = dataclasses.replace(sentences, tables=tables)
    config = DecodingConfig(beam_size=beams, normalization=normalization, length_penalty=length_penalty)
    found = searched(sentences, config, forbidden=())
    for row, longest in enumerate(sentences.longest):
        outputs = []
        for length in range(1, longest + 1):
            for tokens in itertools.product(range(words), repeat=length):
                if END in tokens[:-1] or (length < longest and tokens[-1] != END):
                    continue
                state, total = int(sentences.starts[row]), 0.0
                for token in tokens:
                    total += float(tables[row, state, token])
                    state = sentences.next_state(state, token)
                outputs.append((tokens, total))
        outputs.sort(key=lambda output: -output[1] / penalty_of(config, len(output[0])))
        assert len(outputs) == sum(3**shorter for shorter in range(longest)) + 3**longest
        check_sentence(found, row, outputs[:beams], config)


def test_the_loop_ends_when_all_sentences_are_done():
    """Before the largest number of steps."""
    sentences = random_sentences([40, 30, 40], end_bias=2.0, seed=1)
    config, seen = DecodingConfig(beam_size=2), []
    steps = [listed(sentences, row, config)[1] for row in range(3)]

    def observe(log_probs, index):
        jax.debug.callback(lambda index: seen.append(int(index)), index)
        return log_probs

    searched(sentences, config, steps=60, on_log_probs=observe)
    jax.effects_barrier()
    assert sorted(seen) == list(range(max(steps))) and max(steps) < 30


@pytest.mark.parametrize(
    ("vocabulary", "stop", "ends"), [(7, "full", "first"), (7, "bound", "all"), (1280, "bound", "all")]
)
def test_ties(vocabulary, stop, ends):
    """Log-probabilities are whole numbers, so there are many equal sums; all orders must be those of the lists."""
    sentences = random_sentences([6, 5, 6, 4], vocabulary=vocabulary, states=101, end_bias=math.log(vocabulary) / 2)
    sentences = dataclasses.replace(sentences, tables=np.round(sentences.tables))
    config = DecodingConfig(beam_size=4, normalization="none", stop=stop, ends=ends)
    found = searched(sentences, config)
    assert max(len(row) - len(set(row.tolist())) for row in found.scores_BK) >= 1
    check_all(found, sentences, config)


@pytest.mark.parametrize(("vocabulary", "beams"), [(1280, 1), (1200, 3), (1201, 3), (1202, 1), (16 * 97, 3)])
def test_the_best_candidates_are_those_of_one_sort(vocabulary, beams):
    """Vocabularies with and without suitable blocks; many ties, also at -inf, and only a few numbers above it."""
    rng = np.random.default_rng(vocabulary)
    log_probs = np.round(rng.standard_normal((6, beams, vocabulary)).astype(np.float32), 1)
    log_probs[2] = -1.0
    log_probs[3] = -np.inf
    log_probs[4][rng.random((beams, vocabulary)) < 0.999] = -np.inf
    log_probs[5, 0, -3:] = 9.0
    count = 2 * beams
    best, parents, tokens = jax.jit(beam_search._best_candidates, static_argnums=1)(log_probs, count)
    for row, flat in enumerate(log_probs.reshape(6, -1)):
        order = np.lexsort((np.arange(flat.size), -flat))[:count]
        np.testing.assert_array_equal(np.asarray(parents[row]) * vocabulary + np.asarray(tokens[row]), order)
        np.testing.assert_array_equal(best[row], flat[order])


def test_without_ended_hypotheses_the_live_ones_are_returned():
    """Maximum lengths above the number of steps, and an end token that is impossible in the first sentence only."""
    sentences = random_sentences([9, 9], end_bias=1.0, seed=4)
    sentences.tables[0, :, END] = -np.inf
    config = DecodingConfig(beam_size=3)
    found = searched(sentences, config, steps=5)
    # With a maximum length of 5, the hypotheses are the same and end.
    wanted = searched(dataclasses.replace(sentences, longest=np.array([5, 9], np.int32)), config, steps=5)
    assert not found.ended_BK[0].any() and wanted.ended_BK[0].all() and found.ended_BK[1, 0]
    assert (found.lengths_BK[0] == 5).all() and not found.failed_B.any()
    check_same(dataclasses.replace(found, ended_BK=wanted.ended_BK), wanted)
    assert (np.diff(found.scores_BK[0]) <= 0).all()


def test_fewer_hypotheses_than_beams():
    """The first sentence has three possible outputs, the second none, because only forbidden tokens are probable."""
    tables = np.full((2, 211, 7), -np.inf, np.float32)
    tables[0, :, END] = np.log(0.6)
    tables[0, 1, 3] = np.log(0.3)
    sentences = Sentences(tables, np.array([1, 1]), np.array([0, 0]), np.array([9, 9]))
    following = sentences.next_state(1, 3)
    tables[0, following, 5] = np.log(0.4)
    tables[1, :, FORBIDDEN[0]] = 0.0
    config = DecodingConfig(beam_size=4)
    found = searched(sentences, config)
    logs = [np.log(0.6), np.log(0.3) + np.log(0.6), np.log(0.3) + np.log(0.4) + np.log(0.6)]
    check_sentence(found, 0, list(zip([(END,), (3, END), (3, 5, END)], logs, strict=True)), config)
    check_sentence(found, 1, [], config)
    assert (found.scores_BK[1] == -np.inf).all()


WRONG = (
    lambda row: row.at[0, 6].set(jnp.nan),
    lambda row: row.at[0, FORBIDDEN[0]].set(-jnp.nan),
    lambda row: row.at[0, 6].set(jnp.inf),
    lambda row: row.at[0].set(-jnp.inf),  # nothing is possible
    lambda row: row + 5.0,  # logits
)


def wrong_in_the_second_step(log_probs, index):
    for row, change in enumerate(WRONG, 1):
        log_probs = log_probs.at[row].set(jnp.where(index == 1, change(log_probs[row]), log_probs[row]))
    return log_probs


def test_a_wrong_output_of_the_model_gives_nan():
    sentences, config = random_sentences([5] * 7, shortest=3, seed=6), DecodingConfig(beam_size=3)
    right, found = searched(sentences, config), searched(sentences, config, on_log_probs=wrong_in_the_second_step)
    np.testing.assert_array_equal(found.failed_B, [False, *[True] * 5, False])
    assert not right.failed_B.any()
    assert np.isnan(found.scores_BK[1:6]).all() and np.isnan(found.log_probs_BK[1:6]).all()
    assert (found.tokens_BKT[1:6] == END).all() and not found.lengths_BK[1:6].any() and not found.ended_BK[1:6].any()
    check_same(found, right, np.s_[::6])


def nan_without_hypotheses(log_probs, index):
    """In the first step only the first beam is a hypothesis."""
    is_first = jnp.arange(log_probs.shape[1]) == 0
    return jnp.where((index > 0) | is_first[None, :, None], log_probs, jnp.array([jnp.nan, jnp.inf] * 3 + [jnp.nan]))


def test_outputs_for_beams_without_a_hypothesis_are_ignored_and_a_cache_may_grow():
    config = DecodingConfig(beam_size=4)
    expected = searched(MIXED, config)
    check_same(searched(MIXED, config, on_log_probs=nan_without_hypotheses, rooms=(2, 5)), expected)
    check_same(searched(MIXED, config, rooms=(1,)), expected)
