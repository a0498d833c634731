"""The guidance loss on two numbers a row, against the dense targets of the paper in plain loops."""

import itertools
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from ag_jax import config_reader
from ag_jax.attention import guidance, patterns
from ag_jax.attention.guidance import (
    Assignment,
    GuidanceConfig,
    Guides,
    assign_encoder_heads,
    assign_heads,
    coefficient_schedule,
)
from ag_jax.attention.patterns import PATTERNS, PatternTokens
from tests import reference
from tests.cases import pairwise

SPECIAL = PatternTokens(reference.DELIMITERS, reference.PERIODS)
ASSIGNMENT = (("next", 1), ("prev", 2), ("first", 1), ("period", 2), ("delim", 1), ("same", 1))
HEADS = 11  # of which 8 are guided
RULES = tuple(map(get_args, (guidance.Reduction, guidance.Boundary, guidance.Absent)))


def make_guides(tokens_BL, segments_BL, assignment=ASSIGNMENT, after_dropout=False):
    tokens_BL, segments_BL = jnp.asarray(tokens_BL), jnp.asarray(segments_BL)
    targets = tuple(PATTERNS[name](tokens_BL, segments_BL, SPECIAL) for name, _ in assignment)
    return Guides(targets, tuple(count for _, count in assignment), after_dropout)


def stacked_statistics(attention_NBHQK, guides, segments_BL):
    return jax.vmap(lambda weights: guidance.statistics(weights, guides, jnp.asarray(segments_BL)))(attention_NBHQK)


@pytest.fixture(scope="module", params=["alone", "packed"])
def example(request):
    """Tokens and segment ids; sizes 3, 5, 11 and 7. One text a row, the last row empty; or several texts in some rows.

    Some texts have a full stop and some have none, also within one row.
    """
    lengths = {"alone": [[7], [4], [3], [1], [0]], "packed": [[7], [4, 3], [1, 3, 2], [0], [2, 4]]}[request.param]
    tokens_BL, segments_BL = reference.packed(lengths, 7)
    tokens_BL = np.where(np.isin(tokens_BL, reference.PERIODS), 7, tokens_BL)
    tokens_BL[0, 3] = tokens_BL[1, 2] = tokens_BL[4, 3] = reference.PERIODS[1]
    tokens_BL[4, 3] = np.where(segments_BL[4, 3] > 0, tokens_BL[4, 3], 1)
    return tokens_BL, segments_BL


def scores_between_texts(segments_BL):
    """-1e9 where a token must not be seen, `1 B 1 Q K`; rows of padding see all tokens evenly."""
    segments_BL = np.asarray(segments_BL)
    together_BQK = segments_BL[:, :, None] == segments_BL[:, None, :]
    return jnp.where(together_BQK, 0.0, -1e9)[None, :, None]


@pytest.mark.parametrize(
    ("reduction", "boundary", "absent", "probabilities"), pairwise(*RULES, get_args(guidance.Probabilities))
)
def test_closed_form_equals_loops_over_the_dense_targets(example, reduction, boundary, absent, probabilities):
    tokens_BL, segments_BL = example
    after = probabilities == "after_dropout"
    attention = reference.random_attention(segments_BL, 3, HEADS, stochastic=not after)
    guides = make_guides(tokens_BL, segments_BL, after_dropout=after)
    config = GuidanceConfig("loss", reduction=reduction, boundary=boundary, absent=absent, probabilities=probabilities)
    found = stacked_statistics(jnp.asarray(attention, jnp.float32), guides, segments_BL)
    total, masses = guidance.guidance_loss(found, guides, jnp.asarray(segments_BL), config)
    expected = reference.guidance_loss(attention, ASSIGNMENT, tokens_BL, segments_BL, reduction, boundary, absent)
    np.testing.assert_allclose(total, expected, rtol=1e-6)
    for mass, (value_N, rows) in zip(
        masses, reference.masses(attention, ASSIGNMENT, tokens_BL, segments_BL), strict=True
    ):
        np.testing.assert_allclose(mass[0], value_N, rtol=1e-5)
        np.testing.assert_array_equal(mass[1], [rows] * 3)


@pytest.mark.parametrize(("reduction", "boundary", "absent"), pairwise(*RULES))
def test_gradient_through_statistics_equals_that_of_the_dense_loss(example, reduction, boundary, absent):
    tokens_BL, segments_BL = (jnp.asarray(field) for field in example)
    guides = make_guides(tokens_BL, segments_BL)
    config = GuidanceConfig("loss", reduction=reduction, boundary=boundary, absent=absent)
    logits = jnp.asarray(np.random.default_rng(3).standard_normal((2, 5, HEADS, 7, 7)), jnp.float32)
    mask_BQK = scores_between_texts(segments_BL)

    def sparse(logits):
        found = stacked_statistics(jax.nn.softmax(logits + mask_BQK), guides, segments_BL)
        return guidance.guidance_loss(found, guides, segments_BL, config)[0]

    def dense(logits):
        weights_NBHQK, total, head = jax.nn.softmax(logits + mask_BQK), 0.0, 0
        n_BQ = jnp.array([[max((row == number).sum(), 1) for number in row] for row in example[1]])
        for target, (name, count) in zip(guides.targets, ASSIGNMENT, strict=True):
            P_BQK = patterns.dense(target, segments_BL, boundary=boundary)
            errors = (weights_NBHQK[:, :, head : head + count] - P_BQK[None, :, None]) ** 2
            head += count
            rule = absent if name in ("first", "delim", "period") else boundary
            rows_BQ = patterns.has_target(target, segments_BL) if rule == "ignore" else segments_BL > 0
            errors = errors * rows_BQ[None, :, None, :, None]
            scale = {"type_mean": count * n_BQ**2, "head_mean": 8 * n_BQ**2, "frobenius": jnp.ones_like(n_BQ)}[
                reduction
            ]
            total += (errors.sum((0, 2, 4)) / scale).sum()
        return total

    (value, gradient), (wanted, wanted_gradient) = (jax.value_and_grad(loss)(logits) for loss in (sparse, dense))
    np.testing.assert_allclose(value, wanted, rtol=1e-6)
    assert float(jnp.abs(wanted_gradient).max()) > 1e-4
    np.testing.assert_allclose(gradient, wanted_gradient, atol=2e-6 * float(jnp.abs(wanted_gradient).max()))
    assert not gradient[:, :, 8:].any(), "heads that are not guided must be left alone"


def test_gradient_against_finite_differences(example):
    tokens_BL, segments_BL = (jnp.asarray(field) for field in example)
    guides = make_guides(tokens_BL, segments_BL, after_dropout=True)
    config = GuidanceConfig("loss", reduction="frobenius", boundary="zero")

    def loss(weights_NBHQK):
        return guidance.guidance_loss(
            stacked_statistics(weights_NBHQK, guides, segments_BL), guides, segments_BL, config
        )[0]

    attention = jnp.asarray(reference.random_attention(example[1], 1, HEADS), jnp.float32)
    check_grads(jax.jit(loss), (attention,), order=1, modes=["fwd", "rev"], eps=1e-2, rtol=1e-3)


@pytest.mark.parametrize(
    ("pattern", "boundary", "expected"),
    [
        ("first", "uniform", 1.949310e-3),
        ("next", "uniform", 1.945503e-3),
        ("prev", "uniform", 1.945503e-3),
        ("next", "zero", 1.945511e-3),
        ("prev", "zero", 1.945511e-3),
    ],
)
def test_loss_of_uniform_attention_over_512_tokens(pattern, boundary, expected):
    n, segments_BL = 512, jnp.ones((2, 512), jnp.int32)
    guides = make_guides(jnp.zeros((2, n), jnp.int32), segments_BL, ((pattern, 3),))
    found = stacked_statistics(jnp.full((1, 2, 3, n, n), 1 / n), guides, segments_BL)
    total, _ = guidance.guidance_loss(found, guides, segments_BL, GuidanceConfig("loss", boundary=boundary))
    np.testing.assert_allclose(total / 2, expected, rtol=5e-7)
    closed = {
        "first": (1 / n) * (1 - 1 / n),
        "uniform": (n - 1) * (1 - 1 / n) / n**2,
        "zero": ((n - 1) * (1 - 1 / n) + 1 / n) / n**2,
    }[pattern if pattern == "first" else boundary]
    np.testing.assert_allclose(total / 2, closed, rtol=1e-6)


def test_frobenius_sum_of_uniform_attention():
    n, segments_BL = 512, jnp.ones((1, 512), jnp.int32)
    guides = make_guides(jnp.zeros((1, n), jnp.int32), segments_BL, (("first", 2),))
    found = stacked_statistics(jnp.full((3, 1, 2, n, n), 1 / n), guides, segments_BL)
    total, _ = guidance.guidance_loss(found, guides, segments_BL, GuidanceConfig("loss", reduction="frobenius"))
    np.testing.assert_allclose(total, 3 * 2 * 511, rtol=1e-6)


def test_uniform_and_zero_boundary_have_the_same_gradient():
    segments_BL = (jnp.arange(7)[None, :] < jnp.array([[7], [4]])).astype(jnp.int32)
    logits = jnp.asarray(np.random.default_rng(0).standard_normal((1, 2, 2, 7, 7)), jnp.float32)
    guides = make_guides(jnp.zeros((2, 7), jnp.int32), segments_BL, (("next", 1), ("prev", 1)))

    def loss(logits, boundary):
        weights = jax.nn.softmax(logits + scores_between_texts(segments_BL))
        found = stacked_statistics(weights, guides, segments_BL)
        return guidance.guidance_loss(found, guides, segments_BL, GuidanceConfig("loss", boundary=boundary))[0]

    values, gradients = zip(
        *(jax.value_and_grad(loss)(logits, boundary) for boundary in get_args(guidance.Boundary)), strict=True
    )
    np.testing.assert_allclose(gradients[0], gradients[1], atol=1e-8)
    # They differ by ||1/n||^2 = 1/n in each of two rows of every example, over n^2.
    np.testing.assert_allclose(values[1] - values[0], 2 / 7**3 + 2 / 4**3, rtol=1e-5)
    assert float(jnp.abs(gradients[2] - gradients[0]).max()) > 1e-4, "ignored rows have no gradient"


def test_statistics_by_hand():
    """Two tokens and padding: rows (1/4, 3/4) and (1/2, 1/2)."""
    weights = jnp.array([[0.25, 0.75, 0.0], [0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])[None, None]
    segments_BL = jnp.array([[1, 1, 0]])
    weights = jnp.tile(weights, (1, 4, 1, 1))
    guides = make_guides(jnp.array([[0, 5, 1]]), segments_BL, (("next", 1), ("first", 1), ("period", 1)))
    found = guidance.statistics(weights, guides, segments_BL)
    np.testing.assert_array_equal(found.sum_of_squares_BHQ[0, :, :2], [[0.625, 0.5]] * 3)
    np.testing.assert_array_equal(found.overlap_BHQ[0, :, :2], [[0.75, 0.5], [0.25, 0.5], [0.75, 0.5]])
    assert found.overlap_BHQ.shape == found.sum_of_squares_BHQ.shape == (1, 3, 3)
    # next: (0.25, -0.25) -> 0.125 and 0; first: 1.125 and 0.5; period: 0.125 and 0.5; over n^2 = 4.
    total, masses = guidance.guidance_loss(
        jax.tree.map(lambda leaf: leaf[None], found), guides, segments_BL, GuidanceConfig("loss")
    )
    np.testing.assert_allclose(total, (0.125 + 1.125 + 0.5 + 0.125 + 0.5) / 4, rtol=1e-6)
    np.testing.assert_array_equal([mass[0] for mass in masses], [[0.75], [0.75], [1.25]])
    np.testing.assert_array_equal([mass[1] for mass in masses], [[1], [2], [2]])


def test_statistics_are_float32_whatever_the_attention(example):
    tokens_BL, segments_BL = example
    attention = jnp.asarray(reference.random_attention(segments_BL, 1, HEADS)[0], jnp.bfloat16)
    found = guidance.statistics(attention, make_guides(tokens_BL, segments_BL), jnp.asarray(segments_BL))
    assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {jnp.dtype("float32")}


@pytest.mark.parametrize(("queries", "keys"), [(5, 7), (7, 3), (5, 5), (1, 4), (4, 1)])
@pytest.mark.parametrize("offset", [0, 1, -1, 2, -3, 4, -4, 6, -6, 7, -7, 40, -40])
def test_off_diagonal_of_any_matrix(queries, keys, offset):
    matrix = jnp.asarray(np.random.default_rng(0).standard_normal((2, 3, queries, keys)), jnp.float32)
    expected, place = np.zeros((2, 3, queries), np.float32), np.zeros((queries, keys), np.float32)
    for row in range(queries):
        if 0 <= row + offset < keys:
            expected[..., row] = matrix[..., row, row + offset]
            place[row, row + offset] = 1
    np.testing.assert_array_equal(guidance.off_diagonal(matrix, offset), expected)
    gradient = jax.grad(lambda matrix: guidance.off_diagonal(matrix, offset).sum())(matrix)
    np.testing.assert_array_equal(gradient, np.broadcast_to(place, matrix.shape))


def test_off_diagonal_builds_no_gather_and_no_mask():
    text = str(jax.make_jaxpr(lambda matrix: guidance.off_diagonal(matrix, 1))(jnp.zeros((2, 3, 5, 7))))
    assert "gather" not in text and "select" not in text


def test_bias_is_the_target_times_its_scale(example):
    tokens_BL, segments_BL = example
    found = guidance.bias(make_guides(tokens_BL, segments_BL), jnp.asarray(segments_BL), HEADS, jnp.float32(3))
    expected = np.zeros((5, HEADS, 7, 7))
    for b, (tokens_L, segments_L) in enumerate(zip(tokens_BL, segments_BL, strict=True)):
        names = [name for name, count in ASSIGNMENT for _ in range(count)]
        for head, name in enumerate(names):
            P_QK = reference.dense_pattern(name, tokens_L, segments_L, "zero")
            for row in np.flatnonzero(segments_L):
                if reference.names_a_column(name, tokens_L, segments_L, row):
                    expected[b, head, row] = 3 * P_QK[row]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


class TestAssignHeads:
    @pytest.mark.parametrize(
        ("fraction", "heads", "expected"),
        [
            (0.5, 12, (("next", 1), ("prev", 1), ("first", 4))),
            (0.5, 16, (("next", 1), ("prev", 1), ("first", 6))),
            (0.25, 12, (("next", 1), ("prev", 1), ("first", 1))),
            (0.75, 12, (("next", 1), ("prev", 1), ("first", 7))),
            (1.0, 12, (("next", 1), ("prev", 1), ("first", 10))),
            (0.25, 10, (("next", 1), ("prev", 1), ("first", 1))),  # 2.5 rounds up
            (0.24, 10, (("next", 1), ("prev", 1))),  # 2.4 rounds down
            (0.5, 3, (("next", 1), ("prev", 1))),  # 1.5 rounds up
            (1.0, 2, (("next", 1), ("prev", 1))),
            (0.5, 5, (("next", 1), ("prev", 1), ("first", 1))),
        ],
    )
    def test_by_the_fraction(self, fraction, heads, expected):
        assert assign_heads(GuidanceConfig("loss", fraction=fraction), heads) == expected

    @pytest.mark.parametrize("heads", range(2, 40))
    def test_the_remedy_of_the_error_works(self, heads):
        with pytest.raises(ValueError, match="at least 2 are needed, one for Next and one for Prev") as caught:
            assign_heads(GuidanceConfig("loss", fraction=1.2 / heads), heads)
        advised = float(str(caught.value).partition("fraction of at least ")[2].partition(",")[0])
        assert sum(count for _, count in assign_heads(GuidanceConfig("loss", fraction=advised), heads)) == 2

    def test_nothing_without_guidance(self):
        assert assign_heads(GuidanceConfig("none", heads="next:99"), 4) == ()

    def test_explicit_counts_override_the_fraction(self):
        config = GuidanceConfig("loss", fraction=0.1, heads="same:2, period:1,first:3")
        assert assign_heads(config, 6) == (("same", 2), ("period", 1), ("first", 3))
        assert assign_heads(GuidanceConfig("bias", heads="next:1"), 1) == (("next", 1),)

    def test_a_pattern_from_outside(self, tmp_path, monkeypatch):
        (tmp_path / "outside_patterns.py").write_text("def third(tokens_BL, segments_BL, special): ...\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        config = GuidanceConfig("loss", heads="next:1,outside_patterns.third:2")
        assert assign_heads(config, 4) == (("next", 1), ("outside_patterns.third", 2))

    @pytest.mark.parametrize(
        ("heads", "message"),
        [
            ("next", r"list of pattern:count .* got 'next' in 'next'"),
            ("next:0", r"counts of at least 1.*got 'next:0'"),
            ("next:-1", r"got 'next:-1'"),
            ("next:1.5", r"got 'next:1.5'"),
            ("next:²", r"counts of at least 1.*got 'next:²'"),
            ("..foo:1", r"got '..foo'"),
            ("next:1,,prev:1", r"got '' in 'next:1,,prev:1'"),
            (":2", r"got ':2'"),
            ("nex:1", r"expected an attention pattern .*, got 'nex'"),
            ("no_such_module_at_all.f:1", r"cannot import the attention pattern 'no_such_module_at_all.f'"),
            ("next:3,first:2", r"'next:3,first:2' guides 5 heads, but a layer has only 4"),
            ("next:1,first:1,next:2", r"names a pattern twice"),
        ],
    )
    def test_messages(self, heads, message):
        with pytest.raises(ValueError, match=message):
            assign_heads(GuidanceConfig("loss", heads=heads), 4)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"mode": "los"}, "guidance.mode must be one of none, loss, bias, got 'los'"),
        ({"schedule": "cosine"}, "guidance.schedule must be one of hold_then_linear, linear, constant"),
        ({"reduction": "sum"}, "guidance.reduction must be one of type_mean, head_mean, frobenius"),
        ({"boundary": "wrap"}, "guidance.boundary must be one of uniform, zero, ignore"),
        ({"absent": "zero"}, "guidance.absent must be one of uniform, ignore"),
        ({"probabilities": "both"}, "guidance.probabilities must be one of before_dropout, after_dropout"),
        ({"fraction": 0.0}, "guidance.fraction must be above 0 and at most 1, got 0.0"),
        ({"fraction": 1.01}, "got 1.01"),
        ({"alpha": -1.0}, "guidance.alpha must be at least 0, got -1.0"),
        ({"alpha": float("inf")}, "got inf"),
        ({"alpha": float("nan")}, "got nan"),
        ({"hold_steps": -1}, "guidance.hold_steps must be at least 0, got -1"),
    ],
)
def test_impossible_settings(setting, message):
    with pytest.raises(ValueError, match=message):
        config_reader.check(GuidanceConfig(**setting), "guidance")


@pytest.mark.parametrize(
    ("schedule", "total_steps", "expected"),
    [
        (
            "hold_then_linear",
            100_000,
            {0: 1, 19_999: 1, 20_000: 1, 60_000: 0.5, 99_999: 1 / 80_000, 100_000: 0, 100_001: 0},
        ),
        ("hold_then_linear", 1_000, {0: 1, 199: 1, 200: 1, 600: 0.5, 1_000: 0}),  # held for a fifth of a short run
        ("linear", 1_000, {0: 1, 1: 0.999, 500: 0.5, 1_000: 0, 2_000: 0}),
        ("constant", 1_000, {0: 1, 500: 1, 5_000: 1}),
        ("hold_then_linear", 1, {0: 1, 1: 0}),
    ],
)
def test_coefficient_at_the_start_in_the_middle_and_at_the_end(schedule, total_steps, expected):
    alpha = coefficient_schedule(GuidanceConfig("loss", schedule=schedule, alpha=10.0), total_steps)
    steps = jnp.array(list(expected), jnp.int32)
    np.testing.assert_allclose(jax.jit(alpha)(steps), 10 * np.array(list(expected.values())), rtol=2e-6, atol=1e-9)
    assert all(alpha(step).shape == () and alpha(step).dtype == jnp.float32 for step in steps[:2])


def test_hold_steps_of_the_config():
    alpha = coefficient_schedule(GuidanceConfig("loss", hold_steps=100, alpha=2.0), 1_100)
    np.testing.assert_allclose(alpha(jnp.array([0, 100, 600, 1_100])), [2, 2, 1, 0], rtol=1e-6)


@pytest.mark.parametrize(
    ("layers", "is_local", "guided", "where"),
    [
        ("all", [False] * 5, [0, 1, 2, 3, 4], ""),
        ("0-1,3", [False] * 5, [0, 1, 3], "layers 1-2, 4"),
        ("4", [False] * 5, [4], "layer 5"),
        ("global", [False, True, True, False, True], [0, 3], "layers 1, 4"),
        ("local", [False, True, True, False, True], [1, 2, 4], "layers 2-3, 5"),
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


def test_no_guided_heads():
    found = assign_encoder_heads(GuidanceConfig(layers="3"), 2, [False] * 2)
    assert found == Assignment() and found.names == () and found.patterns(2, 2).tolist() == [[None] * 2] * 2
    assert not found.is_guided(2, 2).any()


def test_heads_and_layers_that_a_model_does_not_have():
    with pytest.raises(ValueError, match="guides 3 heads, but a layer has only 2"):
        Assignment((("next", 1), ("first", 2))).patterns(2, 2)
    with pytest.raises(ValueError, match="guides layers 1, 3, but the model has only 2 layers"):
        Assignment((("next", 1),), layers=(0, 2)).patterns(2, 2)
