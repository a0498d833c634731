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
from tests.cases import pairwise, some

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


@functools.partial(jax.jit, static_argnames=("config", "steps", "end", "forbidden", "on_log_probs", "rooms"))
def run(tables, starts, shortest, longest, *, config, steps, end, forbidden, on_log_probs, rooms):
    shape = (len(starts), config.beam_size)
    first = [*rooms, steps][0]
    cache = {"state": jnp.zeros((1, *shape), jnp.int32), "history": jnp.zeros((2, *shape, first), jnp.int32)}
    return beam_search.search(
        lambda cache, tokens, index: model(tables, on_log_probs, tokens, index, cache),
        cache,
        config=config,
        start_B=starts,
        end=end,
        forbidden=forbidden,
        min_lengths_B=shortest,
        max_lengths_B=longest,
        steps=steps,
        rooms=rooms,
        grow=grow,
    )


def unchanged(log_probs, index):
    return log_probs


def searched(sentences, config, *, steps=None, forbidden=FORBIDDEN, on_log_probs=unchanged, rooms=()):
    static = {"config": config, "end": END, "forbidden": forbidden, "on_log_probs": on_log_probs, "rooms": rooms}
    found = run(*sentences.arrays, steps=steps or int(sentences.longest.max()), **static)
    return jax.tree.map(np.asarray, found)


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


@pytest.mark.parametrize(
    ("ends", "stop", "normalization", "beams"),
    pairwise(
        ("all", "first"),
        ("bound", "full"),
        ("gnmt", "power", "none"),
        (1, 2, 4),
        always=lambda ends, stop, normalization, beams: stop == "bound" and beams == 4,
    ),
)
def test_the_search_is_that_with_lists(beams, normalization, stop, ends):
    config = DecodingConfig(beam_size=beams, normalization=normalization, stop=stop, ends=ends)
    found = searched(MIXED, config)
    for row in range(len(MIXED.longest)):
        check_sentence(found, row, listed(MIXED, row, config)[0], config)


def test_the_settings_matter_for_these_sentences():
    """Otherwise the comparisons with lists would not notice a setting that is ignored."""
    base = DecodingConfig(beam_size=4)
    others = [
        {"normalization": "power"},
        {"normalization": "none"},
        {"length_penalty": 3.0},
        {"stop": "full"},
        {"ends": "first"},
        {"beam_size": 2},
    ]
    rows = range(len(MIXED.longest))
    for changes in others:
        other = dataclasses.replace(base, **changes)
        best = [(listed(MIXED, row, base)[0][:2], listed(MIXED, row, other)[0][:2]) for row in rows]
        assert any([tokens for tokens, _ in one] != [tokens for tokens, _ in two] for one, two in best), changes
    ended = [listed(MIXED, row, base)[0] for row in rows]
    assert any(tokens[-1] != END for found in ended for tokens, _ in found)
    assert any(tokens[-1] == END and len(tokens) < 7 for found in ended for tokens, _ in found)


@pytest.mark.parametrize("normalization", ["gnmt", "power"])
@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0])
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


def test_penalties():
    lengths = jnp.array([1, 2, 7])
    gnmt = DecodingConfig(normalization="gnmt", length_penalty=0.6)
    np.testing.assert_allclose(beam_search.penalty(gnmt, lengths), [1, (7 / 6) ** 0.6, 1.5157166], rtol=1e-6)
    power = DecodingConfig(normalization="power", length_penalty=2.0)
    np.testing.assert_allclose(beam_search.penalty(power, lengths), [1, 4, 49], rtol=1e-6)
    assert (beam_search.penalty(DecodingConfig(normalization="none"), lengths) == 1).all()


def test_lengths_count_the_end_token():
    """`a </s>` has length 2, and its score the penalty of that length."""
    word = 3
    tables = np.full((1, 211, 7), -np.inf, np.float32)
    sentences = Sentences(tables, np.array([1]), np.array([0]), np.array([9]))
    tables[0, 1, word] = -0.5
    tables[0, sentences.next_state(1, word), END] = -0.25
    found = searched(sentences, DecodingConfig(beam_size=1, length_penalty=1.0))
    assert found.tokens_BKT[0, 0, :2].tolist() == [word, END] and found.lengths_BK[0, 0] == 2
    np.testing.assert_allclose(found.scores_BK[0, 0], -0.75 / (7 / 6), rtol=1e-6)


def greedy(sentences, row):
    """The most probable token that is allowed, again and again."""
    state, tokens, total = int(sentences.starts[row]), [], 0.0
    while len(tokens) < sentences.longest[row] and END not in tokens:
        log_probs = sentences.tables[row, state].copy()
        log_probs[list(FORBIDDEN)] = -np.inf
        if len(tokens) + 1 < sentences.shortest[row]:
            log_probs[END] = -np.inf
        tokens.append(int(log_probs.argmax()))
        total += float(log_probs.max())
        state = sentences.next_state(state, tokens[-1])
    return tuple(tokens), total


@pytest.mark.parametrize(
    "config",
    [
        DecodingConfig(beam_size=1, stop="full", ends="first"),
        DecodingConfig(beam_size=1, stop="full", ends="first", normalization="power", length_penalty=2.0),
        DecodingConfig(beam_size=1, stop="bound", ends="first", length_penalty=0.0),
    ],
    ids=["full", "full-power", "no-penalty"],
)
def test_one_beam_is_greedy_search(config):
    found = searched(MIXED, config)
    for row in range(len(MIXED.longest)):
        check_sentence(found, row, [greedy(MIXED, row)], config)


def test_a_sentence_does_not_depend_on_its_neighbours():
    config, rows = DecodingConfig(beam_size=3, stop="bound"), np.arange(12)
    alone = searched(MIXED, config)
    # Other neighbours for the first five, of which one fails: new tables and limits, and another order.
    others = random_sentences([7] * 7, end_bias=-3.0, seed=9)
    others.tables[2] = np.nan
    arrays = [
        np.concatenate([mine[:5], theirs])[::-1] for mine, theirs in zip(MIXED.arrays, others.arrays, strict=True)
    ]
    among = searched(Sentences(*arrays), config)
    assert among.failed_B.sum() == 1 and not alone.failed_B.any()
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(among, name)[::-1][:5], getattr(alone, name)[:5], err_msg=name)
    # Fewer steps than before, and no neighbour.
    for row in rows[:3]:
        one = searched(Sentences(*(array[row : row + 1] for array in MIXED.arrays)), config, steps=7)
        for name in FIELDS:
            np.testing.assert_array_equal(getattr(one, name)[0], getattr(alone, name)[row], err_msg=name)


def nan_after_three(log_probs, index):
    return jnp.where(index < 3, log_probs, jnp.nan)


def test_a_sentence_that_is_done_does_not_change():
    """The model's output after the third step is NaN, which only the sentences that are still searched notice."""
    config = DecodingConfig(beam_size=2)
    right, wrong = searched(MIXED, config), searched(MIXED, config, on_log_probs=nan_after_three)
    steps = np.array([listed(MIXED, row, config)[1] for row in range(len(MIXED.longest))])
    done = steps <= 3
    assert 2 < done.sum() < len(done) - 2
    np.testing.assert_array_equal(wrong.failed_B, ~done)
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(wrong, name)[done], getattr(right, name)[done], err_msg=name)


@pytest.mark.parametrize("normalization", ["gnmt", "power", "none"])
def test_the_bound_changes_no_result(normalization):
    config = DecodingConfig(beam_size=2, normalization=normalization, length_penalty=0.6)
    found, stopped = searched(MIXED, config), 0
    for row, longest in enumerate(MIXED.longest):
        check_sentence(found, row, listed(MIXED, row, config, stops=False)[0], config)
        stopped += listed(MIXED, row, config)[1] < longest
    assert stopped >= 3


@pytest.mark.parametrize(("stop", "ends"), some([("bound", "all"), ("full", "first")], ("bound", "all")))
def test_the_loop_ends_when_all_sentences_are_done(stop, ends):
    """Also if one of them fails, and before the largest number of steps."""
    sentences = random_sentences([40, 30, 40], end_bias=2.0, seed=1)
    config, seen = DecodingConfig(beam_size=2, stop=stop, ends=ends), []
    steps = [listed(sentences, row, config)[1] for row in range(3)]
    slowest = int(np.argmax(steps))

    def observe(log_probs, index):
        jax.debug.callback(lambda index: seen.append(int(index)), index)
        return log_probs

    def observe_logits(log_probs, index):
        return observe(log_probs.at[slowest].add(5.0), index)

    for on_log_probs, wanted in ((observe, max(steps)), (observe_logits, sorted(steps)[1])):
        seen.clear()
        searched(sentences, config, steps=60, on_log_probs=on_log_probs)
        jax.effects_barrier()
        assert sorted(seen) == list(range(wanted)) and wanted < 30


@pytest.mark.parametrize("vocabulary", [7, 1280], ids=["small", "in-blocks"])
def test_ties(vocabulary):
    """Log-probabilities are whole numbers, so there are many equal sums; all orders must be those of the lists."""
    sentences = random_sentences([6, 5, 6, 4], vocabulary=vocabulary, states=101, end_bias=math.log(vocabulary) / 2)
    sentences = dataclasses.replace(sentences, tables=np.round(sentences.tables))
    for stop, ends in (("bound", "all"), ("full", "first")):
        config = DecodingConfig(beam_size=4, normalization="none", stop=stop, ends=ends)
        found = searched(sentences, config)
        assert max(len(row) - len(set(row.tolist())) for row in found.scores_BK) >= 1
        for row in range(len(sentences.longest)):
            check_sentence(found, row, listed(sentences, row, config)[0], config)


@pytest.mark.parametrize("vocabulary", [1280, 1200, 1201, 1202, 16 * 97], ids=str)
@pytest.mark.parametrize("beams", [1, 3])
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


def test_forbidden_tokens_are_never_generated():
    """Not even where they are the only probable ones; and the end token not before the minimum length."""
    tables = MIXED.tables.copy()
    tables[:, :, list(FORBIDDEN)] += 20.0
    tables -= np.log(np.exp(tables).sum(-1, keepdims=True))
    sentences = dataclasses.replace(MIXED, tables=tables.astype(np.float32))
    config = DecodingConfig(beam_size=4)
    found = searched(sentences, config)
    assert not np.isin(found.tokens_BKT, FORBIDDEN).any()
    assert (found.lengths_BK >= np.maximum(sentences.shortest, 1)[:, None]).all()
    for row in range(len(sentences.longest)):
        check_sentence(found, row, listed(sentences, row, config)[0], config)


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
    for name in set(FIELDS) - {"ended_BK"}:
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), err_msg=name)
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


def one_nan(log_probs, index):
    return log_probs.at[1, 0, 6].set(jnp.where(index == 1, jnp.nan, log_probs[1, 0, 6]))


def nan_of_a_forbidden_token(log_probs, index):
    return log_probs.at[1, 0, FORBIDDEN[0]].set(jnp.where(index == 1, -jnp.nan, log_probs[1, 0, FORBIDDEN[0]]))


def infinite(log_probs, index):
    return log_probs.at[1, 0, 6].set(jnp.where(index == 1, jnp.inf, log_probs[1, 0, 6]))


def nothing_possible(log_probs, index):
    return log_probs.at[1, 0].set(jnp.where(index == 1, -jnp.inf, log_probs[1, 0]))


def logits(log_probs, index):
    return log_probs.at[1].add(5.0)


@pytest.mark.parametrize("on_log_probs", [one_nan, nan_of_a_forbidden_token, infinite, nothing_possible, logits])
def test_a_wrong_output_of_the_model_gives_nan(on_log_probs):
    sentences, config = random_sentences([5, 5, 5], seed=6), DecodingConfig(beam_size=3)
    assert listed(sentences, 1, config)[1] > 2
    right, found = searched(sentences, config), searched(sentences, config, on_log_probs=on_log_probs)
    np.testing.assert_array_equal(found.failed_B, [False, True, False])
    assert np.isnan(found.scores_BK[1]).all() and np.isnan(found.log_probs_BK[1]).all()
    assert (found.tokens_BKT[1] == END).all() and not found.lengths_BK[1].any() and not found.ended_BK[1].any()
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(found, name)[::2], getattr(right, name)[::2], err_msg=name)


def nan_without_hypotheses(log_probs, index):
    """In the first step only the first beam is a hypothesis."""
    is_first = jnp.arange(log_probs.shape[1]) == 0
    return jnp.where((index > 0) | is_first[None, :, None], log_probs, jnp.array([jnp.nan, jnp.inf] * 3 + [jnp.nan]))


def test_outputs_for_beams_without_a_hypothesis_are_ignored():
    config = DecodingConfig(beam_size=4)
    right, found = searched(MIXED, config), searched(MIXED, config, on_log_probs=nan_without_hypotheses)
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(found, name), getattr(right, name), err_msg=name)


def simple_step(cache, tokens, index):
    return jnp.full((*tokens.shape, 7), -math.log(7), jnp.float32), cache


def simple_search(step=simple_step, cache=None, **changes):
    settings = {
        "config": DecodingConfig(beam_size=3),
        "start_B": jnp.zeros(2, jnp.int32),
        "end": END,
        "forbidden": FORBIDDEN,
        "min_lengths_B": np.array([0, 0]),
        "max_lengths_B": np.array([4, 2]),
        "steps": 4,
    } | changes
    return beam_search.search(step, cache if cache is not None else {"layer": jnp.zeros((5, 2, 3, 4))}, **settings)


def test_one_sentence_and_lengths_that_are_not_traced():
    found = simple_search()
    assert found.lengths_BK[1].max() == 2
    one = {"start_B": jnp.zeros(1, jnp.int32), "min_lengths_B": np.array([0]), "max_lengths_B": np.array([2])}
    alone = jax.jit(lambda: simple_search(cache={}, steps=2, **one))()
    for name in set(FIELDS) - {"tokens_BKT"}:
        np.testing.assert_array_equal(getattr(alone, name)[0], getattr(found, name)[1], err_msg=name)
    np.testing.assert_array_equal(alone.tokens_BKT[0], found.tokens_BKT[1, :, :2])


def test_a_cache_that_grows_changes_nothing():
    config = DecodingConfig(beam_size=3)
    expected = searched(MIXED, config)
    for rooms in ((1,), (2, 5), (6,)):
        found = searched(MIXED, config, rooms=rooms)
        for field in FIELDS:
            np.testing.assert_array_equal(getattr(found, field), getattr(expected, field))


def test_a_cache_may_have_a_form_and_a_function_of_its_own():
    """Here its arrays have the axis of beams first, and the axis of sentences second."""

    def turned(cache):
        return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 2, 0), cache)

    def turned_back(cache):
        return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 2), cache)

    def step(cache, tokens, index):
        log_probs, cache = model(MIXED.tables, unchanged, tokens, index, turned_back(cache))
        return log_probs, turned(cache)

    def reorder(cache, parents_BK):
        rows = np.arange(len(MIXED.longest))[:, None]
        return jax.tree.map(lambda leaf: jnp.moveaxis(leaf[parents_BK, :, rows], 1, 0).swapaxes(1, 2), cache)

    config = DecodingConfig(beam_size=3)
    shape, steps = (len(MIXED.longest), 3), int(MIXED.longest.max())
    cache = turned({"state": jnp.zeros((1, *shape), jnp.int32), "history": jnp.zeros((2, *shape, steps), jnp.int32)})
    found = simple_search(
        step,
        cache,
        config=config,
        start_B=jnp.asarray(MIXED.starts),
        min_lengths_B=MIXED.shortest,
        max_lengths_B=MIXED.longest,
        steps=steps,
        reorder=reorder,
    )
    expected = searched(MIXED, config)
    for field in FIELDS:
        np.testing.assert_array_equal(getattr(found, field), getattr(expected, field))
