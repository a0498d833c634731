"""Guidance of a decoder, in its own text and in its source, against loops over the rows of each text."""

from fractions import Fraction
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ag_jax.attention import guidance, patterns
from ag_jax.attention.guidance import GuidanceConfig, Guides, assign_cross_heads, assign_decoder_heads
from ag_jax.attention.kernels.dispatch import Fused
from ag_jax.attention.kernels.tpu import attention as tpu
from ag_jax.attention.patterns import Entries, PatternTokens
from ag_jax.attention.visibility import band_of
from tests import reference
from tests.cases import pairwise

SPECIAL = PatternTokens(reference.DELIMITERS, reference.PERIODS)
CAUSAL = band_of(causal=True, window=None)
ASSIGNMENTS = {
    "decoder": (("prev", 1), ("first", 2), ("period", 1), ("same", 1), ("delim", 1)),
    "cross": (("first", 1), ("diagonal", 2), ("period", 1), ("delim", 1)),
}
HEADS = 7  # of which 6 and 5 are guided
RULES = tuple(map(get_args, (guidance.Reduction, guidance.Boundary, guidance.Absent)))
# Texts and their sources, row by row: several in a row, texts of one token, and an empty row.
TARGET_TOKENS, TARGET_IDS = reference.packed([[8], [4, 3], [1, 3, 2], [0], [2, 5]], 8, seed=1)
SOURCE_TOKENS, SOURCE_IDS = reference.packed([[5], [2, 6], [3, 1, 4], [0], [9, 1]], 10, seed=2)


def with_periods(tokens_BL, places):
    """Tokens with full stops at these places only, so that some texts have none and some rows do not see theirs."""
    tokens_BL = np.where(np.isin(tokens_BL, reference.PERIODS), 7, tokens_BL)
    for place in places:
        tokens_BL[place] = reference.PERIODS[1]
    return tokens_BL


TARGET_TOKENS = with_periods(TARGET_TOKENS, [(0, 3), (0, 5), (1, 5), (4, 3)])
SOURCE_TOKENS = with_periods(SOURCE_TOKENS, [(0, 1), (0, 2), (1, 1), (4, 7)])


def found_guides(kind, after_dropout=False):
    tokens, ids = jnp.asarray(TARGET_TOKENS), jnp.asarray(TARGET_IDS)
    assignment = ASSIGNMENTS[kind]
    if kind == "decoder":
        targets = [patterns.find_target(name, tokens, ids, SPECIAL) for name, _ in assignment]
    else:
        sources = jnp.asarray(SOURCE_TOKENS), jnp.asarray(SOURCE_IDS)
        targets = [patterns.find_source_target(name, *sources, ids, SPECIAL) for name, _ in assignment]
    return Guides(tuple(targets), tuple(count for _, count in assignment), after_dropout)


def arguments(kind):
    """Segment ids of queries, and the keyword arguments of all functions."""
    if kind == "decoder":
        return jnp.asarray(TARGET_IDS), {"band": CAUSAL}
    return jnp.asarray(TARGET_IDS), {"key_segments_BK": jnp.asarray(SOURCE_IDS)}


def rows(kind):
    """For every row of every text: (batch, query, visible keys, number of pairs of its texts, wanted keys by name)."""
    for b, ids in enumerate(TARGET_IDS):
        for places in reference.texts(ids):
            others = places if kind == "decoder" else np.flatnonzero(SOURCE_IDS[b] == ids[places[0]])
            tokens = (TARGET_TOKENS if kind == "decoder" else SOURCE_TOKENS)[b, others]
            for p, place in enumerate(places):
                wanted = {}
                for name, _ in ASSIGNMENTS[kind]:
                    seen, chosen = reference.decoder_columns(name, p, len(places), tokens, kind == "decoder")
                    wanted[name] = others[chosen]
                yield b, place, others[seen], len(places) * len(others), wanted


def dense(name, seen, wanted, keys, boundary):
    """P of a row."""
    P_K = np.zeros(keys)
    if len(wanted):
        P_K[wanted] = 1 / len(wanted)
    elif boundary == "uniform" or name not in ("prev", "same", "diagonal"):
        P_K[seen] = 1 / len(seen)
    return P_K


def attention(kind, layers=3, stochastic=True):
    """Random attention that sees what it may; queries of padding see nothing."""
    rng = np.random.default_rng(5)
    weights = np.zeros((layers, *TARGET_IDS.shape[:1], HEADS, TARGET_IDS.shape[1], keys_of(kind)))
    for b, place, seen, *_ in rows(kind):
        drawn = np.exp(2 * rng.standard_normal((layers, HEADS, len(seen))))
        drawn /= drawn.sum(-1, keepdims=True)
        weights[:, b, :, place, seen] = np.moveaxis(drawn, -1, 0)
    return weights if stochastic else weights * (rng.random(weights.shape) > 0.3) / 0.7


def keys_of(kind):
    return (TARGET_IDS if kind == "decoder" else SOURCE_IDS).shape[1]


@pytest.mark.parametrize("boundary", ["uniform", "zero"])
@pytest.mark.parametrize("kind", ASSIGNMENTS)
def test_dense_targets_equal_loops(kind, boundary):
    ids, options = arguments(kind)
    for (name, _), target in zip(ASSIGNMENTS[kind], found_guides(kind).targets, strict=True):
        expected = np.zeros((*TARGET_IDS.shape, keys_of(kind)))
        named = np.zeros(TARGET_IDS.shape, bool)
        for b, place, seen, _, wanted in rows(kind):
            expected[b, place] = dense(name, seen, wanted[name], keys_of(kind), boundary)
            named[b, place] = len(wanted[name]) > 0
        found = patterns.dense(target, ids, **options, boundary=boundary)
        np.testing.assert_allclose(found, expected, rtol=1e-6, err_msg=name)
        np.testing.assert_array_equal(patterns.has_target(target, ids, **options), named, err_msg=name)
        assert named.any()


@pytest.mark.parametrize(
    ("kind", "reduction", "boundary", "absent", "probabilities"),
    pairwise(tuple(ASSIGNMENTS), *RULES, get_args(guidance.Probabilities)),
)
def test_losses_and_masses_equal_loops_over_dense_targets(kind, reduction, boundary, absent, probabilities):
    after = probabilities == "after_dropout"
    (ids, options), guides = arguments(kind), found_guides(kind, after)
    weights = attention(kind, stochastic=not after)
    config = GuidanceConfig("loss", reduction=reduction, boundary=boundary, absent=absent, probabilities=probabilities)

    def loss(weights):
        found = jax.vmap(lambda of_layer: guidance.statistics(of_layer, guides, ids, **options))(weights)
        return guidance.guidance_loss(found, guides, ids, config, **options)

    (total, masses), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(jnp.asarray(weights, jnp.float32))
    expected, of_weights, head, guided = 0.0, np.zeros_like(weights), 0, sum(guides.counts)
    for (name, count), (mass_N, number) in zip(ASSIGNMENTS[kind], masses, strict=True):
        wanted_mass, wanted_number = np.zeros(len(weights)), 0
        for b, place, seen, pairs, wanted in rows(kind):
            H = weights[:, b, head : head + count, place]
            if len(wanted[name]):
                wanted_mass += H[:, :, wanted[name]].sum((1, 2))
                wanted_number += count
            elif (absent if name in ("first", "delim", "period") else boundary) == "ignore":
                continue
            P = dense(name, seen, wanted[name], keys_of(kind), boundary)
            divisor = {"type_mean": count * pairs, "head_mean": guided * pairs, "frobenius": 1}[reduction]
            expected += ((H - P) ** 2).sum() / divisor
            of_weights[:, b, head : head + count, place] += 2 * (H - P) / divisor
        head += count
        np.testing.assert_allclose(mass_N, wanted_mass, rtol=1e-5, err_msg=name)
        np.testing.assert_array_equal(number, [wanted_number] * len(weights), err_msg=name)
    np.testing.assert_allclose(total, expected, rtol=2e-6)
    # Behind the softmax, since rows that sum to 1 may move along (1, ..., 1); after dropout, their sum is not known.
    seen = weights > 0

    def of_scores(gradient):
        return (
            np.where(seen, gradient, 0) if after else weights * (gradient - (weights * gradient).sum(-1, keepdims=True))
        )

    wanted = of_scores(of_weights)
    assert np.abs(wanted).max() > 1e-3
    np.testing.assert_allclose(of_scores(np.asarray(gradient)), wanted, atol=3e-6 * np.abs(wanted).max())


def frobenius(weights_BHQK, guides, ids, **options):
    """The guidance loss of one layer, as the plain sum and as the mean over pairs of tokens."""

    @jax.jit
    def losses(weights_BHQK, guides):
        found = guidance.statistics(weights_BHQK, guides, ids, **options)
        found = jax.tree.map(lambda leaf: leaf[None], found)
        return [
            guidance.guidance_loss(found, guides, ids, GuidanceConfig("loss", reduction=reduction), **options)[0]
            for reduction in ("frobenius", "type_mean")
        ]

    return losses(jnp.asarray(weights_BHQK, jnp.float32), guides)


@pytest.mark.parametrize("n", [3, 7, 25])
def test_loss_of_uniform_causal_attention(n):
    """n - H_n for each of [Prev] and [First], with the harmonic number H_n; the first row of [Prev] sees itself alone,
    and adds nothing.
    """
    tokens, ids = jnp.full((2, n), 7), jnp.ones((2, n), jnp.int32)
    uniform = np.tril(np.ones((n, n))) / np.arange(1, n + 1)[:, None]
    targets = [patterns.find_target(name, tokens, ids, SPECIAL) for name in ("prev", "first")]
    found = frobenius(np.broadcast_to(uniform, (2, 2, n, n)), Guides(tuple(targets), (1, 1)), ids, band=CAUSAL)
    of_one = n - float(sum(Fraction(1, k) for k in range(1, n + 1)))
    np.testing.assert_allclose(found, [2 * 2 * of_one, 2 * 2 * of_one / n**2], rtol=1e-6)


@pytest.mark.parametrize(("queries", "keys"), [(5, 8), (8, 3)])
def test_loss_of_uniform_attention_to_a_source(queries, keys):
    """n_t (1 - 1/n_s) for a column, and the same for a diagonal; the mean is over the n_t n_s pairs."""
    ids, sources = jnp.ones((1, queries), jnp.int32), jnp.ones((1, keys), jnp.int32)
    found = [patterns.find_source_target(name, sources, sources, ids, SPECIAL) for name in ("first", "diagonal")]
    guides = Guides(tuple(found), (1, 1))
    losses = frobenius(np.full((1, 2, queries, keys), 1 / keys), guides, ids, key_segments_BK=sources)
    of_both = 2 * queries * (1 - 1 / keys)
    np.testing.assert_allclose(losses, [of_both, of_both / (queries * keys)], rtol=1e-6)


def test_heads_of_decoders_are_assigned_in_order():
    config = GuidanceConfig("loss", decoder_heads="prev:1, first:2", cross_heads="diagonal:2,first:1")
    assert assign_decoder_heads(config, 4) == (("prev", 1), ("first", 2))
    assert assign_cross_heads(config, 4) == (("diagonal", 2), ("first", 1))
    for assign in (assign_decoder_heads, assign_cross_heads):
        assert assign(GuidanceConfig("loss"), 4) == ()
        assert assign(GuidanceConfig("none", decoder_heads="prev:9", cross_heads="first:9"), 4) == ()


@pytest.mark.parametrize(
    ("assign", "text", "message"),
    [
        (assign_decoder_heads, "next:1", "next looks at a token that the decoder has not written yet; use prev, same"),
        (assign_decoder_heads, "prev:1,next:2", "guidance.decoder_heads='prev:1,next:2': next looks at"),
        (assign_decoder_heads, "prev:5", "guidance.decoder_heads='prev:5' guides 5 heads, but a layer has only 4"),
        (assign_decoder_heads, "diagonal:1", "got 'diagonal'"),
        (assign_cross_heads, "prev:1", "guidance.cross_heads='prev:1': prev points at a neighbour in the same text"),
        (assign_cross_heads, "first:1,first:2", "guidance.cross_heads='first:1,first:2' names a pattern twice"),
        (assign_cross_heads, "diagonal", "guidance.cross_heads is a list of pattern:count"),
    ],
)
def test_heads_that_decoders_cannot_have(assign, text, message):
    setting = "decoder_heads" if assign is assign_decoder_heads else "cross_heads"
    with pytest.raises(ValueError, match=message):
        assign(GuidanceConfig("loss", **{setting: text}), 4)


def test_a_custom_pattern_of_neighbours_has_no_source(tmp_path, monkeypatch):
    (tmp_path / "patterns_of_sources.py").write_text(
        "from ag_jax.attention.patterns import Shift\n"
        "def back(tokens_BL, segments_BL, special):\n"
        "    return Shift(-2)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    ids = jnp.ones((1, 3), jnp.int32)
    with pytest.raises(ValueError, match="'patterns_of_sources.back' points at neighbours of a token"):
        patterns.find_source_target("patterns_of_sources.back", ids, ids, ids, SPECIAL)


def test_kernels_name_targets_that_they_do_not_know():
    guides = Guides((Entries(jnp.zeros((1, 4), jnp.int32)),), (1,))
    rows = [jnp.ones((1, 4, 2, 8))] * 3
    ids = jnp.ones((1, 4), jnp.int32)
    with pytest.raises(ValueError, match="kernels know no target with a column for each row .Entries.: use the refer"):
        Fused(tpu.attend)(*rows, ids, ids, guides=guides)
