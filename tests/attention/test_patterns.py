"""The targets that patterns make of a batch.

One suite runs over every entry of `PATTERNS`; a new pattern inherits it.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ag_jax.attention import guidance, patterns
from ag_jax.attention.guidance import GuidanceConfig, Guides
from ag_jax.attention.patterns import PATTERNS, Columns, Shift, SpecialTokens
from tests import reference

SPECIAL = SpecialTokens(reference.DELIMITERS, reference.PERIODS)
LENGTHS = (11, 7, 1, 0, 2)
LENGTH = 11
TOKENS_BL, VALID_BL = reference.ragged(LENGTHS, LENGTH)


def targets(name, tokens_BL=TOKENS_BL, valid_BL=VALID_BL):
    return PATTERNS[name](jnp.asarray(tokens_BL), jnp.asarray(valid_BL), SPECIAL)


def loss(attention_NBHQK, target, valid_BL, **settings):
    """The guidance loss of attention of which every head follows the target."""
    valid_BL = jnp.asarray(valid_BL)
    guides = Guides((target,), (attention_NBHQK.shape[2],))
    found = [guidance.statistics(jnp.asarray(weights, jnp.float32), guides, valid_BL) for weights in attention_NBHQK]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *found)
    return guidance.guidance_loss(stacked, guides, valid_BL, GuidanceConfig(mode="loss", **settings))


@pytest.mark.parametrize("name", PATTERNS)
class TestEveryPattern:
    def test_rows_are_distributions_over_the_valid_columns(self, name):
        P_BQK = np.asarray(patterns.dense(targets(name), jnp.asarray(VALID_BL)))
        assert P_BQK.shape == (len(LENGTHS), LENGTH, LENGTH)
        assert (P_BQK >= 0).all()
        np.testing.assert_allclose(P_BQK.sum(-1), VALID_BL, atol=1e-6)
        assert not P_BQK[np.broadcast_to(~VALID_BL[:, None, :], P_BQK.shape)].any()

    def test_zero_boundary_empties_the_rows_without_a_column(self, name):
        target, valid_BL = targets(name), jnp.asarray(VALID_BL)
        P_BQK = np.asarray(patterns.dense(target, valid_BL, boundary="zero"))
        named_BQ = np.asarray(patterns.hits(target, valid_BL))
        expected_BQ = named_BQ if isinstance(target, Shift) else VALID_BL
        np.testing.assert_allclose(P_BQK.sum(-1), expected_BQ, atol=1e-6)

    @pytest.mark.parametrize("reduction", guidance.REDUCTIONS)
    def test_loss_is_zero_if_and_only_if_attention_equals_the_target(self, name, reduction):
        target = targets(name)
        P_BQK = np.asarray(patterns.dense(target, jnp.asarray(VALID_BL)), np.float64)
        perfect = np.broadcast_to(P_BQK[None, :, None], (3, len(LENGTHS), 2, LENGTH, LENGTH))
        total, _ = loss(perfect, target, VALID_BL, reduction=reduction)
        assert abs(float(total)) < 1e-6
        for layer, head, row in ((0, 0, 0), (2, 1, 3), (1, 0, LENGTH - 1)):
            moved = perfect.copy()
            moved[layer, 0, head, row, [1, 4]] += [0.3, 0.1]
            moved[layer, 0, head, row] /= 1.4
            # Row `row` of one head is now off by less than half: still far from nothing.
            assert float(loss(moved, target, VALID_BL, reduction=reduction)[0]) > 1e-5

    @pytest.mark.parametrize("boundary", guidance.BOUNDARIES)
    @pytest.mark.parametrize("absent", guidance.ABSENT)
    def test_padding_never_counts(self, name, boundary, absent):
        attention = reference.random_attention(VALID_BL, 3, 2)
        # What padded rows attend to must not matter either.
        attention = np.where(VALID_BL[None, :, None, :, None], attention, 0.7)
        settings = {"boundary": boundary, "absent": absent}
        together, mass = loss(attention, targets(name), VALID_BL, **settings)
        apart, apart_mass = 0.0, np.zeros((2, 3))
        for row, n in enumerate(LENGTHS):
            if n:
                tokens_BL, valid_BL = TOKENS_BL[row : row + 1, :n], np.ones((1, n), bool)
                cut = attention[:, row : row + 1, :, :n, :n]
                total, ((value, weight),) = loss(cut, targets(name, tokens_BL, valid_BL), valid_BL, **settings)
                apart += float(total)
                apart_mass += np.stack([value, weight])
        np.testing.assert_allclose(together, apart, rtol=1e-6)
        np.testing.assert_allclose(np.stack(mass[0]), apart_mass, rtol=1e-6, atol=1e-7)

    def test_mass_of_the_target_itself_is_one(self, name):
        target = targets(name)
        P_BQK = np.asarray(patterns.dense(target, jnp.asarray(VALID_BL)))
        _, ((total, weight),) = loss(np.stack([P_BQK, 0 * P_BQK])[:, :, None], target, VALID_BL)
        assert weight[0] > 0
        np.testing.assert_allclose(total / weight, [1.0, 0.0], atol=1e-6)
        rows = int(np.asarray(patterns.hits(target, jnp.asarray(VALID_BL))).sum())
        np.testing.assert_array_equal(weight, [rows, rows])

    def test_works_under_jit_on_tokens_that_are_not_known_yet(self, name):
        def dense(tokens_BL, valid_BL):
            return patterns.dense(PATTERNS[name](tokens_BL, valid_BL, SPECIAL), valid_BL)

        np.testing.assert_array_equal(jax.jit(dense)(TOKENS_BL, VALID_BL), dense(TOKENS_BL, VALID_BL))

    def test_appears_by_its_name(self, name):
        assert patterns.find_pattern(name) is PATTERNS[name]


# [First] is column 0: the first token where rows are padded on the right, as all of ours are.
NAMES_AND_SIDES = [(name, "right") for name in ("next", "prev", "first", "delim", "period", "same")]
NAMES_AND_SIDES += [(name, "left") for name in ("next", "prev", "delim", "period", "same")]


@pytest.mark.parametrize("boundary", ("uniform", "zero"))
@pytest.mark.parametrize(("name", "side"), NAMES_AND_SIDES)
def test_dense_equals_the_appendix_cell_by_cell(name, side, boundary):
    tokens_BL, valid_BL = reference.ragged((13, 5, 2, 1), 13, seed=1)
    if side == "left":
        tokens_BL, valid_BL = (
            np.stack([np.roll(row, -n) for row, n in zip(field, valid_BL.sum(-1))]) for field in (tokens_BL, valid_BL)
        )
    expected = [reference.dense_pattern(name, *row, boundary) for row in zip(tokens_BL, valid_BL)]
    target = targets(name, tokens_BL, valid_BL)
    np.testing.assert_allclose(patterns.dense(target, jnp.asarray(valid_BL), boundary=boundary), expected, atol=1e-7)


def test_targets_of_a_sentence_by_hand():
    # <s> a . b . </s> <pad>, with 0 = <s>, 2 = </s>, 5 = '.'
    tokens = jnp.array([[0, 7, 5, 8, 5, 2, 1]])
    valid = jnp.array([[True] * 6 + [False]])
    weights = {name: np.asarray(targets(name, tokens, valid).weights_BK[0]) for name in ("first", "delim", "period")}
    np.testing.assert_array_equal(weights["first"], [1, 0, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(weights["delim"], [0.5, 0, 0, 0, 0, 0.5, 0])
    np.testing.assert_array_equal(weights["period"], [0, 0, 0.5, 0, 0.5, 0, 0])
    assert [targets(name, tokens, valid) for name in ("next", "prev", "same")] == [Shift(1), Shift(-1), Shift(0)]


def test_a_token_pattern_without_its_token_spreads_over_the_valid_columns():
    tokens, valid = jnp.array([[0, 7, 8, 1]]), jnp.array([[True, True, True, False]])
    target = targets("period", tokens, valid)
    np.testing.assert_allclose(target.weights_BK, [[1 / 3, 1 / 3, 1 / 3, 0]], rtol=1e-6)
    assert not target.present_B[0]
    assert not patterns.hits(target, valid).any()


def test_padding_that_looks_like_a_full_stop_is_not_one():
    tokens, valid = jnp.array([[0, 5, 7, 5]]), jnp.array([[True, True, True, False]])
    np.testing.assert_array_equal(targets("period", tokens, valid).weights_BK, [[0, 1, 0, 0]])


def test_a_tokenizer_without_full_stops():
    nothing = SpecialTokens((), ())
    target = PATTERNS["period"](jnp.asarray(TOKENS_BL), jnp.asarray(VALID_BL), nothing)
    assert not target.present_B.any()


@pytest.mark.parametrize("offset", (0, 1, -1, 3, -4, 7, -7, 8, -20))
def test_hits_of_any_shift(offset):
    valid_BL = np.arange(7) < np.array([[7], [4], [1], [0]])
    expected = [[row[p] and 0 <= p + offset < 7 and row[p + offset] for p in range(7)] for row in valid_BL]
    np.testing.assert_array_equal(patterns.hits(Shift(offset), jnp.asarray(valid_BL)), expected)
    np.testing.assert_allclose(patterns.dense(Shift(offset), jnp.asarray(valid_BL)).sum(-1), valid_BL, atol=1e-6)


def test_columns_of_an_empty_row_are_empty_and_finite():
    made = patterns.columns(jnp.ones((1, 3), bool), jnp.zeros((1, 3), bool))
    assert isinstance(made, Columns)
    np.testing.assert_array_equal(made.weights_BK, [[0, 0, 0]])


def test_a_pattern_of_ones_own_is_found_by_import_path(tmp_path, monkeypatch):
    (tmp_path / "patterns_of_my_own.py").write_text(
        "import jax.numpy as jnp\n"
        "from ag_jax.attention.patterns import columns\n"
        "def second(tokens_BL, valid_BL, special):\n"
        "    return columns((jnp.arange(tokens_BL.shape[1]) == 1)[None, :], valid_BL)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found = patterns.find_pattern("patterns_of_my_own.second")
    weights_BK = found(jnp.asarray(TOKENS_BL), jnp.asarray(VALID_BL), SPECIAL).weights_BK
    np.testing.assert_array_equal(weights_BK[:2, :3], [[0, 1, 0], [0, 1, 0]])


def one_dimension_short(tokens_BL, valid_BL, special):
    """The pattern of the docstring of `ag_jax.attention.patterns`, word for word."""
    return patterns.columns(jnp.arange(tokens_BL.shape[1]) == 1, valid_BL)


def test_the_pattern_of_the_docstring_works_as_it_is_printed():
    with jax.numpy_rank_promotion("allow"):  # what users have, unless they asked for more
        made = one_dimension_short(jnp.asarray(TOKENS_BL), jnp.asarray(VALID_BL), SPECIAL)
    np.testing.assert_array_equal(made.weights_BK[:2, :3], [[0, 1, 0], [0, 1, 0]])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nxt", r"unknown attention pattern 'nxt'.*did you mean 'next'.*next, prev, first"),
        ("zzzzz", r"unknown attention pattern 'zzzzz'.*Known: next, prev"),
        ("no_such_module.second", r"cannot import the attention pattern 'no_such_module.second'"),
        ("math.no_such_function", r"cannot import the attention pattern 'math.no_such_function'.*no_such_function"),
    ],
)
def test_messages_for_patterns_that_are_not_there(name, message):
    with pytest.raises(ValueError, match=message):
        patterns.find_pattern(name)
