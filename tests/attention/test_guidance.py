"""Guidance of encoders, of decoders and of their attention to a source, against loops over the rows of each text."""

import dataclasses
import functools
import itertools
import math
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ag_jax.attention import guidance, patterns
from ag_jax.attention.assignment import (
    Assignment,
    assign_cross_heads,
    assign_decoder_heads,
    assign_encoder_heads,
    assign_heads,
)
from ag_jax.attention.config import Absent, Boundary, GuidanceConfig, Probabilities, Reduction
from ag_jax.attention.guidance import Guides, coefficient_schedule
from ag_jax.attention.kernels.interface import MASKED_SCORE
from ag_jax.attention.patterns import PatternInputs, PatternTokens
from ag_jax.attention.visibility import band_of
from ag_jax.settings import schema
from tests import reference
from tests.cases import pairwise

SPECIAL = PatternTokens(reference.DELIMITERS, reference.PERIODS)
ASSIGNMENTS = {
    "encoder": (("next", 1), ("prev", 2), ("head", 1), ("first", 1), ("period", 2), ("delim", 1), ("same", 1)),
    "decoder": (("prev", 1), ("first", 2), ("period", 1), ("same", 1), ("head", 1), ("delim", 1)),
    "cross": (("first", 1), ("diagonal", 2), ("period", 1), ("alignment", 1), ("delim", 1)),
}
OPTIONS = {"encoder": {}, "decoder": {"band": band_of(causal=True, window=None)}}
LAYERS, HEADS = 3, 10  # of which 9, 7 and 6 are guided
IGNORED = ("head", "alignment", "diagonal")  # rows without a target of these never count
RULES = tuple(map(get_args, (Reduction, Boundary, Absent)))
# Texts and their sources, row by row: several in a row, texts of one token, and an empty row.
TARGET_TOKENS, TARGET_IDS = reference.packed([[8], [0], [4, 3], [1, 3, 2], [2, 5]], 8, seed=1)
SOURCE_TOKENS, SOURCE_IDS = reference.packed([[5], [0], [2, 6], [3, 1, 4], [9, 1]], 10, seed=2)


def with_periods(tokens_BL, ids_BL, places):
    """Tokens with full stops at these places only, so that some texts have none and some rows do not see theirs; and in
    the padding, which does not count. The padding of the last but one row is on the left.
    """
    tokens_BL = np.where(np.isin(tokens_BL, reference.PERIODS), 7, tokens_BL)
    for place in places:
        tokens_BL[place] = reference.PERIODS[1]
    tokens_BL[ids_BL == 0] = reference.PERIODS[0]
    padding = (ids_BL[-2] == 0).sum()
    for field in (tokens_BL, ids_BL):
        field[-2] = np.roll(field[-2], padding)
    return tokens_BL


TARGET_TOKENS = with_periods(TARGET_TOKENS, TARGET_IDS, [(0, 3), (0, 5), (2, 5), (4, 3)])
SOURCE_TOKENS = with_periods(SOURCE_TOKENS, SOURCE_IDS, [(0, 1), (0, 2), (2, 1), (4, 7)])


def _pointers(ids_BL, keys, seed):
    """Random columns, of which some are none, outside the query's text, not seen by a decoder, or on padding."""
    return np.random.default_rng(seed).integers(-3, keys, ids_BL.shape).astype(np.int32)


POINTERS = {
    "encoder": {"head": _pointers(TARGET_IDS, 8, 3)},
    "decoder": {"head": _pointers(TARGET_IDS, 8, 4)},
    "cross": {"alignment": _pointers(TARGET_IDS, 10, 5)},
}


def find_guides(kind, tokens, ids, sources=None, after_dropout=False, assignment=None, loss="squared"):
    """The guides of texts, and the keyword arguments of all functions of attention of this kind."""
    assignment, tokens, ids = assignment or ASSIGNMENTS[kind], jnp.asarray(tokens), jnp.asarray(ids)
    if kind == "cross":
        sources = [jnp.asarray(array) for array in sources]
        inputs = PatternInputs(sources[0], jnp.zeros(sources[0].shape, bool), sources[1], SPECIAL, POINTERS[kind])
        targets = [patterns.find_source_target(name, inputs, ids) for name, _ in assignment]
    else:
        inputs = PatternInputs(tokens, jnp.zeros(tokens.shape, bool), ids, SPECIAL, POINTERS[kind])
        targets = [patterns.find_target(name, inputs) for name, _ in assignment]
    guides = Guides(tuple(targets), tuple(count for _, count in assignment), after_dropout, loss)
    return guides, OPTIONS[kind] if kind != "cross" else {"key_segments_BK": sources[1]}


def rows(kind):
    """For every row of every text: (batch, query, visible keys, number of pairs of its texts, wanted keys by name)."""
    for b, ids in enumerate(TARGET_IDS):
        for places in reference.texts(ids):
            others = np.flatnonzero(SOURCE_IDS[b] == ids[places[0]]) if kind == "cross" else places
            tokens = (SOURCE_TOKENS if kind == "cross" else TARGET_TOKENS)[b, others]
            for p, place in enumerate(places):
                wanted = {"next": places[p + 1 : p + 2]}
                for name, _ in ASSIGNMENTS[kind]:
                    if name not in ("next", *POINTERS[kind]):
                        seen, chosen = reference.decoder_columns(name, p, len(places), tokens, kind == "decoder")
                        wanted[name] = others[chosen]
                for name, column_BQ in POINTERS[kind].items():
                    wanted[name] = others[seen][others[seen] == column_BQ[b, place]]
                yield b, place, others[seen], len(places) * len(others), wanted


def dense(name, seen, wanted, keys, boundary):
    """P of a row."""
    P_K = np.zeros(keys)
    if len(wanted):
        P_K[wanted] = 1 / len(wanted)
    elif name not in IGNORED and (boundary == "uniform" or name in ("first", "period", "delim")):
        P_K[seen] = 1 / len(seen)
    return P_K


def attention(kind, stochastic=True):
    """Random attention that sees what it may; what queries of padding attend to must not matter."""
    rng = np.random.default_rng(5)
    weights = np.zeros((LAYERS, len(TARGET_IDS), HEADS, TARGET_IDS.shape[1], keys_of(kind)))
    for b, place, seen, *_ in rows(kind):
        drawn = np.exp(2 * rng.standard_normal((LAYERS, HEADS, len(seen))))
        drawn /= drawn.sum(-1, keepdims=True)
        weights[:, b, :, place, seen] = np.moveaxis(drawn, -1, 0)
    weights = weights if stochastic else weights * (rng.random(weights.shape) > 0.3) / 0.7
    return np.where((TARGET_IDS > 0)[None, :, None, :, None], weights, 0.7)


def keys_of(kind):
    return (SOURCE_IDS if kind == "cross" else TARGET_IDS).shape[1]


@pytest.mark.parametrize("kind", ASSIGNMENTS)
def test_dense_targets_and_the_bias_equal_loops(kind):

    @jax.jit
    def run(tokens, ids, *sources):
        guides, options = find_guides(kind, tokens, ids, sources)
        dense = functools.partial(patterns.dense, segments_BQ=ids, **options)
        found = [[dense(target, boundary=boundary) for boundary in ("uniform", "zero")] for target in guides.targets]
        named = [patterns.has_target(target, ids, **options) for target in guides.targets]
        return found, named, guidance.bias(guides, ids, HEADS, jnp.float32(3)) if kind == "encoder" else None

    found, found_named, found_bias = run(TARGET_TOKENS, TARGET_IDS, SOURCE_TOKENS, SOURCE_IDS)
    bias, head = np.zeros((len(TARGET_IDS), HEADS, TARGET_IDS.shape[1], keys_of(kind))), 0
    for number, (name, count) in enumerate(ASSIGNMENTS[kind]):
        uniform, zero = np.zeros((2, *TARGET_IDS.shape, keys_of(kind)))
        named = np.zeros(TARGET_IDS.shape, bool)
        for b, place, seen, _, wanted in rows(kind):
            uniform[b, place] = dense(name, seen, wanted[name], keys_of(kind), "uniform")
            zero[b, place] = dense(name, seen, wanted[name], keys_of(kind), "zero")
            named[b, place] = len(wanted[name]) > 0
        bias[:, head : head + count] = 3 * (zero * named[..., None])[:, None]
        head += count
        np.testing.assert_allclose(found[number], [uniform, zero], rtol=1e-6, err_msg=name)
        np.testing.assert_array_equal(found_named[number], named, err_msg=name)
        assert named.any()
    if kind == "encoder":
        np.testing.assert_allclose(found_bias, bias, rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "reduction", "boundary", "absent", "probabilities"),
    pairwise(tuple(ASSIGNMENTS), *RULES, get_args(Probabilities)),
)
def test_losses_masses_and_gradients_equal_loops_over_dense_targets(kind, reduction, boundary, absent, probabilities):
    after = probabilities == "after_dropout"
    weights = attention(kind, stochastic=not after)
    config = GuidanceConfig("loss", reduction=reduction, boundary=boundary, absent=absent, probabilities=probabilities)
    guided = sum(count for _, count in ASSIGNMENTS[kind])

    def loss(weights, tokens, ids, *sources):
        guides, options = find_guides(kind, tokens, ids, sources, after)
        found = jax.vmap(lambda of_layer: guidance.statistics(of_layer, guides, ids, **options))(weights)
        assert found.overlap_BHQ.shape == found.distance_BHQ.shape == (LAYERS, len(ids), guided, ids.shape[1])
        return guidance.guidance_loss(found, guides, ids, config, **options)

    texts = (TARGET_TOKENS, TARGET_IDS, SOURCE_TOKENS, SOURCE_IDS)
    compiled = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (total, masses), gradient = compiled(jnp.asarray(weights, jnp.float32), *texts)
    expected, of_weights, head = 0.0, np.zeros_like(weights), 0
    for (name, count), (mass_N, number) in zip(ASSIGNMENTS[kind], masses, strict=True):
        wanted_mass, wanted_number = np.zeros(LAYERS), 0
        for b, place, seen, pairs, wanted in rows(kind):
            H = weights[:, b, head : head + count, place]
            if len(wanted[name]):
                wanted_mass += H[:, :, wanted[name]].sum((1, 2))
                wanted_number += count
            elif name in IGNORED or (absent if name in ("first", "delim", "period") else boundary) == "ignore":
                continue
            P = dense(name, seen, wanted[name], keys_of(kind), boundary)
            divisor = {"type_mean": count * pairs, "head_mean": guided * pairs, "frobenius": 1}[reduction]
            expected += ((H - P) ** 2).sum() / divisor
            of_weights[:, b, head : head + count, place] += 2 * (H - P) / divisor
        head += count
        np.testing.assert_allclose(mass_N, wanted_mass, rtol=1e-5, err_msg=name)
        np.testing.assert_array_equal(number, [wanted_number] * LAYERS, err_msg=name)
    np.testing.assert_allclose(total, expected, rtol=2e-6)
    # Behind the softmax, since rows that sum to 1 may move along (1, ..., 1); after dropout, their sum is not known.
    is_text = (TARGET_IDS > 0)[None, :, None, :, None]

    def of_scores(gradient):
        if after:
            return np.where((weights > 0) & is_text, gradient, 0)
        return is_text * weights * (gradient - (weights * gradient).sum(-1, keepdims=True))

    wanted = of_scores(of_weights)
    assert np.abs(wanted).max() > 1e-3
    np.testing.assert_allclose(of_scores(np.asarray(gradient)), wanted, atol=3e-6 * np.abs(wanted).max())
    assert not np.asarray(gradient)[:, :, guided:].any(), "heads that are not guided must be left alone"
    assert not np.where(is_text, 0, gradient).any(), "padding must be left alone"


@pytest.mark.parametrize(("kind", "reduction"), pairwise(tuple(ASSIGNMENTS), get_args(Reduction)))
def test_cross_entropies_and_gradients_equal_loops(kind, reduction):
    """KL(P || H) of scores in float64, divided by the number of queries that have a target."""
    seen_BQK = attention(kind)[0, :, 0] > 0
    scores = 3 * np.random.default_rng(6).standard_normal((LAYERS, len(TARGET_IDS), HEADS, *seen_BQK.shape[1:]))
    H = np.exp(scores) * seen_BQK[:, None]
    H /= np.maximum(H.sum(-1, keepdims=True), 1e-30)
    config = GuidanceConfig("loss", "cross_entropy", reduction=reduction)

    def loss(scores, tokens, ids, *sources):
        guides, options = find_guides(kind, tokens, ids, sources, loss="cross_entropy")

        def of_layer(scores_BHQK):
            scores_BHQK = jnp.where(seen_BQK[:, None], scores_BHQK, MASKED_SCORE)
            weights_BHQK = jnp.where(seen_BQK.any(-1)[:, None, :, None], jax.nn.softmax(scores_BHQK), 0.0)
            return guidance.statistics(weights_BHQK, guides, ids, **options, scores_BHQK=scores_BHQK)

        return guidance.guidance_loss(jax.vmap(of_layer)(scores), guides, ids, config, **options)

    texts = (TARGET_TOKENS, TARGET_IDS, SOURCE_TOKENS, SOURCE_IDS)
    compiled = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (total, masses), gradient = compiled(jnp.asarray(scores, jnp.float32), *texts)
    expected, of_scores, head = 0.0, np.zeros_like(scores), 0
    guided = sum(count for _, count in ASSIGNMENTS[kind])
    for (name, count), (mass_N, number) in zip(ASSIGNMENTS[kind], masses, strict=True):
        of_text = [(b, TARGET_IDS[b, place]) for b, place, *_, wanted in rows(kind) if len(wanted[name])]
        mass = np.zeros(LAYERS)
        for b, place, _, _, wanted in rows(kind):
            if not len(wanted[name]):
                continue
            P = dense(name, None, wanted[name], keys_of(kind), "zero")
            queries = of_text.count((b, TARGET_IDS[b, place]))
            divisor = {"type_mean": count * queries, "head_mean": guided * queries, "frobenius": 1}[reduction]
            of_row = H[:, b, head : head + count, place]
            expected += (P[P > 0] * (np.log(P[P > 0]) - np.log(of_row[..., P > 0]))).sum() / divisor
            of_scores[:, b, head : head + count, place] = (of_row - P) / divisor
            mass += of_row[..., P > 0].sum((1, 2))
        head += count
        np.testing.assert_allclose(mass_N, mass, rtol=1e-5, err_msg=name)
        np.testing.assert_array_equal(number, [len(of_text) * count] * LAYERS, err_msg=name)
    np.testing.assert_allclose(total, expected, rtol=2e-6)
    np.testing.assert_allclose(gradient, of_scores, atol=3e-6 * np.abs(of_scores).max())


def test_settings_of_one_loss_have_no_effect_with_the_other():
    """Nor has the loss where targets are added to the scores, with their boundary."""
    squared, entropy, bias = GuidanceConfig("loss"), GuidanceConfig("loss", "cross_entropy"), GuidanceConfig("bias")
    for config, differs in ((squared, True), (entropy, False), (bias, True)):
        assert (dataclasses.replace(config, boundary="zero").in_effect != config.in_effect) == differs
        assert (dataclasses.replace(config, absent="zero").in_effect != config.in_effect) == differs
    assert dataclasses.replace(bias, loss="cross_entropy").in_effect == bias.in_effect


def test_rows_without_a_target_have_no_cross_entropy_and_no_gradient():
    scores_BHQK, P_BQK = jnp.array([[[[1.0, 2.0], [3.0, 5.0]]]]), jnp.array([[[0.0, 1.0], [0.0, 0.0]]])
    H_BHQK = jax.nn.softmax(scores_BHQK)
    found, gradient_of = jax.vjp(lambda scores: guidance.cross_entropy(scores, H_BHQK, P_BQK), scores_BHQK)
    (gradient_BHQK,) = gradient_of(jnp.ones((1, 1, 2)))
    np.testing.assert_allclose(found[0, 0], [np.log1p(np.exp(-1)), 0], rtol=1e-6)
    np.testing.assert_allclose(gradient_BHQK[0, 0], [H_BHQK[0, 0, 0] - P_BQK[0, 0], [0, 0]], rtol=1e-6)


@pytest.mark.parametrize(
    ("pattern", "boundary", "expected"),
    [("first", "uniform", 1.949310e-3), ("next", "uniform", 1.945503e-3), ("prev", "zero", 1.945511e-3)],
)
def test_loss_of_uniform_attention_over_512_tokens(pattern, boundary, expected):
    """Two texts and three layers; statistics are float32 for every dtype of the attention."""
    n, factors = 512, {"type_mean": 2 * 3, "frobenius": 2 * 3 * 2 * 512 * 512}

    @jax.jit
    def run(ids):
        guides, _ = find_guides("encoder", ids, ids, assignment=((pattern, 2),))
        found = guidance.statistics(jnp.full((2, 2, n, n), 1 / n, jnp.bfloat16), guides, ids)
        assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {jnp.dtype("float32")}
        found = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), found)
        configs = [GuidanceConfig("loss", reduction=reduction, boundary=boundary) for reduction in factors]
        return [guidance.guidance_loss(found, guides, ids, config)[0] for config in configs]

    totals = run(np.ones((2, n), np.int32))
    np.testing.assert_allclose(totals, expected * np.array(list(factors.values())), rtol=5e-7)


@pytest.mark.parametrize(("queries", "keys"), [(5, 7), (7, 3), (1, 4)])
def test_off_diagonal_of_any_matrix(queries, keys):
    offsets = (0, 1, -1, 2, -3, 4, -4, 6, -6, 7, -40)
    matrix = jnp.asarray(np.random.default_rng(0).standard_normal((2, 3, queries, keys)), jnp.float32)

    @jax.jit
    def both(matrix):
        cut = [lambda matrix, offset=offset: guidance.off_diagonal(matrix, offset) for offset in offsets]
        return [(of(matrix), jax.grad(lambda matrix, of=of: of(matrix).sum())(matrix)) for of in cut]

    for offset, (found, gradient) in zip(offsets, both(matrix), strict=True):
        expected, place = np.zeros((2, 3, queries), np.float32), np.zeros((queries, keys), np.float32)
        for row in range(queries):
            if 0 <= row + offset < keys:
                expected[..., row] = matrix[..., row, row + offset]
                place[row, row + offset] = 1
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(gradient, np.broadcast_to(place, matrix.shape))


@pytest.mark.parametrize(
    ("fraction", "heads", "first"),
    [
        (0.5, 12, 4),
        (0.75, 12, 7),
        (1.0, 12, 10),
        (0.25, 10, 1),  # 2.5 rounds up
        (0.24, 10, 0),  # 2.4 rounds down
        (0.5, 3, 0),  # 1.5 rounds up
        (1.0, 2, 0),
    ],
)
def test_heads_by_the_fraction(fraction, heads, first):
    expected = (("next", 1), ("prev", 1), ("first", first))[: 3 if first else 2]
    assert assign_heads(GuidanceConfig("loss", fraction=fraction), heads) == expected


@pytest.mark.parametrize("heads", [2, 3, 7, 39])
def test_the_remedy_of_too_small_a_fraction_works(heads):
    with pytest.raises(ValueError, match="guidance.fraction") as caught:
        assign_heads(GuidanceConfig("loss", fraction=1.2 / heads), heads)
    advised = float(str(caught.value).partition("fraction of at least ")[2].partition(",")[0])
    assert advised == math.ceil(1500 / heads) / 1000
    assert sum(count for _, count in assign_heads(GuidanceConfig("loss", fraction=advised), heads)) == 2


def test_heads_by_explicit_counts(tmp_path, monkeypatch):
    (tmp_path / "outside_patterns.py").write_text(
        "from ag_jax.attention.patterns import neighbour\ndef back(inputs): return neighbour(inputs.segments_BL, -2)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    config = GuidanceConfig("loss", fraction=0.1, heads="same:2, period:1,outside_patterns.back:3")
    assert assign_heads(config, 6) == (("same", 2), ("period", 1), ("outside_patterns.back", 3))
    assert assign_heads(GuidanceConfig("bias", heads="next:1"), 1) == (("next", 1),)
    config = GuidanceConfig("loss", decoder_heads="prev:1, first:2", cross_heads="diagonal:2,first:1")
    assert assign_decoder_heads(config, 4) == (("prev", 1), ("first", 2))
    assert assign_cross_heads(config, 4) == (("diagonal", 2), ("first", 1))
    assert assign_heads(GuidanceConfig("none", heads="next:99"), 4) == ()
    for assign in (assign_decoder_heads, assign_cross_heads):
        assert assign(GuidanceConfig("loss"), 4) == ()
        assert assign(GuidanceConfig("none", decoder_heads="prev:9", cross_heads="first:9"), 4) == ()
    ids = jnp.ones((1, 3), jnp.int32)
    with pytest.raises(ValueError, match=r"outside_patterns.back"):
        patterns.find_source_target("outside_patterns.back", PatternInputs(ids, ids < 0, ids, SPECIAL), ids)
    config = GuidanceConfig("loss", heads="head:1,after_previous_same:2")
    assert assign_heads(config, 3, ("head",)) == (("head", 1), ("after_previous_same", 2))
    with pytest.raises(ValueError, match=r"data.pointers, got 'head'"):
        assign_heads(config, 3)


@pytest.mark.parametrize(
    ("setting", "text", "named"),
    [
        ("heads", "next", "'next' in 'next'"),
        ("heads", "next:0", "'next:0'"),
        ("heads", "next:1.5", "'next:1.5'"),
        ("heads", "next:²", "'next:²'"),
        ("heads", "next:1,,prev:1", "'' in 'next:1,,prev:1'"),
        ("heads", ":2", "':2'"),
        ("heads", "nex:1", "'nex'"),
        ("heads", "no_such_module_at_all.f:1", "'no_such_module_at_all.f'"),
        ("heads", "next:3,first:2", "guides 5 heads, .* 4"),
        ("heads", "next:1,first:1,next:2", "twice"),
        ("decoder_heads", "prev:1,next:2", "next"),
        ("decoder_heads", "prev:5", "5 heads, .* 4"),
        ("decoder_heads", "diagonal:1", "'diagonal'"),
        ("cross_heads", "first:1,prev:1", "prev"),
        ("cross_heads", "first:1,first:2", "twice"),
    ],
)
def test_heads_that_cannot_be_guided(setting, text, named):
    assign = {"heads": assign_heads, "decoder_heads": assign_decoder_heads, "cross_heads": assign_cross_heads}[setting]
    with pytest.raises(ValueError, match=named):
        assign(GuidanceConfig("loss", **{setting: text}), 4)


@pytest.mark.parametrize(
    "setting",
    [{"fraction": 0.0}, {"fraction": 1.01}, {"alpha": -1.0}, {"alpha": float("nan")}, {"hold_steps": -1}],
)
def test_impossible_settings(setting):
    with pytest.raises(ValueError, match=f"guidance.{next(iter(setting))} "):
        schema.check(GuidanceConfig(**setting), "guidance")


@pytest.mark.parametrize(
    ("settings", "total_steps", "expected"),
    [
        (
            {"schedule": "hold_then_linear"},
            100_000,
            {0: 1, 19_999: 1, 20_000: 1, 60_000: 0.5, 99_999: 1 / 80_000, 100_000: 0, 100_001: 0},
        ),
        ({}, 1_000, {0: 1, 199: 1, 200: 1, 600: 0.5, 1_000: 0}),  # held for a fifth of a short run
        ({"hold_steps": 100}, 1_100, {0: 1, 100: 1, 600: 0.5, 1_100: 0}),
        ({"schedule": "linear"}, 1_000, {0: 1, 1: 0.999, 500: 0.5, 1_000: 0, 2_000: 0}),
        ({"schedule": "constant"}, 1_000, {0: 1, 500: 1, 5_000: 1}),
        ({}, 1, {0: 1, 1: 0}),
    ],
)
def test_coefficient_at_the_start_in_the_middle_and_at_the_end(settings, total_steps, expected):
    alpha = coefficient_schedule(GuidanceConfig("loss", alpha=10.0, **settings), total_steps)
    found = jax.jit(alpha)(jnp.array(list(expected), jnp.int32))
    np.testing.assert_allclose(found, 10 * np.array(list(expected.values())), rtol=2e-6, atol=1e-9)
    of_one = jax.eval_shape(alpha, jnp.int32(0))
    assert of_one.shape == () and of_one.dtype == jnp.float32


@pytest.mark.parametrize(
    ("layers", "is_local", "guided", "where"),
    [
        ("all", [False] * 5, [0, 1, 2, 3, 4], ""),
        ("0-1,3", [False] * 5, [0, 1, 3], "layers 0-1, 3"),
        ("4", [False] * 5, [4], "layer 4"),
        ("global", [False, True, True, False, True], [0, 3], "layers 0, 3"),
        ("local", [False, True, True, False, True], [1, 2, 4], "layers 1-2, 4"),
    ],
)
def test_guided_heads_of_every_layer(layers, is_local, guided, where):
    config = GuidanceConfig("loss", heads="next:1,first:2", layers=layers)
    found = assign_encoder_heads(config, 4, is_local)
    expected = [["next", "first", "first", None] if layer in guided else [None] * 4 for layer in range(5)]
    assert found.patterns(5, 4).tolist() == expected and found.where == where and found.names == ("next", "first")
    assert found.is_guided(5, 4).tolist() == [[name is not None for name in of_layer] for of_layer in expected]
    runs = found.runs(5)
    assert [layer for run in runs for layer in run] == guided
    assert all(one.stop < other.start for one, other in itertools.pairwise(runs))


def test_models_without_guided_heads_and_without_the_heads_that_are_guided():
    found = assign_encoder_heads(GuidanceConfig(layers="3"), 2, [False] * 2)
    assert found == Assignment() and found.names == () and found.patterns(2, 2).tolist() == [[None] * 2] * 2
    assert not found.is_guided(2, 2).any()
    with pytest.raises(ValueError, match="3 heads.* 2"):
        Assignment((("next", 1), ("first", 2))).patterns(2, 2)
    with pytest.raises(ValueError, match="layers 0, 2.* 2"):
        Assignment((("next", 1),), layers=(0, 2)).patterns(2, 2)
