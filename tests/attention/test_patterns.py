"""The targets that patterns make of a batch.

One suite runs over every entry of `PATTERNS`; a new pattern inherits it.
"""

import inspect
import pathlib
import sys
import types
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ag_jax.attention import guidance, patterns, segments
from ag_jax.attention.guidance import GuidanceConfig, Guides
from ag_jax.attention.patterns import PATTERNS, Columns, PatternTokens, Shift, columns
from tests import reference

SPECIAL = PatternTokens(reference.DELIMITERS, reference.PERIODS)
LENGTHS = (11, 7, 1, 0, 2)
LENGTH = 11
TOKENS_BL, SEGMENTS_BL = reference.ragged(LENGTHS, LENGTH)


def targets(name, tokens_BL=TOKENS_BL, segments_BL=SEGMENTS_BL):
    return PATTERNS[name](jnp.asarray(tokens_BL), jnp.asarray(segments_BL), SPECIAL)


def loss(attention_NBHQK, target, segments_BL, **settings):
    """The guidance loss of attention of which every head follows the target."""
    segments_BL = jnp.asarray(segments_BL)
    guides = Guides((target,), (attention_NBHQK.shape[2],))
    found = [guidance.statistics(jnp.asarray(weights, jnp.float32), guides, segments_BL) for weights in attention_NBHQK]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *found)
    return guidance.guidance_loss(stacked, guides, segments_BL, GuidanceConfig(mode="loss", **settings))


@pytest.mark.parametrize("name", PATTERNS)
class TestEveryPattern:
    def test_rows_are_distributions_over_the_valid_columns(self, name):
        P_BQK = np.asarray(patterns.dense(targets(name), jnp.asarray(SEGMENTS_BL)))
        assert P_BQK.shape == (len(LENGTHS), LENGTH, LENGTH)
        assert (P_BQK >= 0).all()
        np.testing.assert_allclose(P_BQK.sum(-1), SEGMENTS_BL > 0, atol=1e-6)
        assert not P_BQK[np.broadcast_to(SEGMENTS_BL[:, None, :] == 0, P_BQK.shape)].any()

    def test_zero_boundary_empties_the_rows_without_a_column(self, name):
        target, segments_BL = targets(name), jnp.asarray(SEGMENTS_BL)
        P_BQK = np.asarray(patterns.dense(target, segments_BL, boundary="zero"))
        named_BQ = np.asarray(patterns.has_target(target, segments_BL))
        expected_BQ = named_BQ if isinstance(target, Shift) else SEGMENTS_BL > 0
        np.testing.assert_allclose(P_BQK.sum(-1), expected_BQ, atol=1e-6)

    @pytest.mark.parametrize("reduction", get_args(guidance.Reduction))
    def test_loss_is_zero_if_and_only_if_attention_equals_the_target(self, name, reduction):
        target = targets(name)
        P_BQK = np.asarray(patterns.dense(target, jnp.asarray(SEGMENTS_BL)), np.float64)
        perfect = np.broadcast_to(P_BQK[None, :, None], (3, len(LENGTHS), 2, LENGTH, LENGTH))
        total, _ = loss(perfect, target, SEGMENTS_BL, reduction=reduction)
        assert abs(float(total)) < 1e-6
        for layer, head, row in ((0, 0, 0), (2, 1, 3), (1, 0, LENGTH - 1)):
            moved = perfect.copy()
            moved[layer, 0, head, row, [1, 4]] += [0.3, 0.1]
            moved[layer, 0, head, row] /= 1.4
            # Row `row` of one head is now off by less than half: still far from nothing.
            assert float(loss(moved, target, SEGMENTS_BL, reduction=reduction)[0]) > 1e-5

    @pytest.mark.parametrize("boundary", get_args(guidance.Boundary))
    @pytest.mark.parametrize("absent", get_args(guidance.Absent))
    def test_padding_never_counts(self, name, boundary, absent):
        attention = reference.random_attention(SEGMENTS_BL, 3, 2)
        # What padded rows attend to must not matter either.
        attention = np.where(SEGMENTS_BL[None, :, None, :, None] > 0, attention, 0.7)
        settings = {"boundary": boundary, "absent": absent}
        together, mass = loss(attention, targets(name), SEGMENTS_BL, **settings)
        apart, apart_mass = 0.0, np.zeros((2, 3))
        for row, n in enumerate(LENGTHS):
            if n:
                tokens_BL, segments_BL = TOKENS_BL[row : row + 1, :n], np.ones((1, n), np.int32)
                cut = attention[:, row : row + 1, :, :n, :n]
                total, ((value, weight),) = loss(cut, targets(name, tokens_BL, segments_BL), segments_BL, **settings)
                apart += float(total)
                apart_mass += np.stack([value, weight])
        np.testing.assert_allclose(together, apart, rtol=1e-6)
        np.testing.assert_allclose(np.stack(mass[0]), apart_mass, rtol=1e-6, atol=1e-7)

    def test_mass_of_the_target_itself_is_one(self, name):
        target = targets(name)
        P_BQK = np.asarray(patterns.dense(target, jnp.asarray(SEGMENTS_BL)))
        _, ((total, weight),) = loss(np.stack([P_BQK, 0 * P_BQK])[:, :, None], target, SEGMENTS_BL)
        assert weight[0] > 0
        np.testing.assert_allclose(total / weight, [1.0, 0.0], atol=1e-6)
        rows = int(np.asarray(patterns.has_target(target, jnp.asarray(SEGMENTS_BL))).sum())
        np.testing.assert_array_equal(weight, [rows, rows])

    def test_works_under_jit_on_tokens_that_are_not_known_yet(self, name):
        def dense(tokens_BL, segments_BL):
            return patterns.dense(PATTERNS[name](tokens_BL, segments_BL, SPECIAL), segments_BL)

        np.testing.assert_array_equal(jax.jit(dense)(TOKENS_BL, SEGMENTS_BL), dense(TOKENS_BL, SEGMENTS_BL))

    def test_appears_by_its_name(self, name):
        assert patterns.find_pattern(name) is PATTERNS[name]


@pytest.mark.parametrize("boundary", ("uniform", "zero"))
@pytest.mark.parametrize("side", ("right", "left"))
@pytest.mark.parametrize("name", ("next", "prev", "first", "delim", "period", "same"))
def test_dense_equals_the_appendix_cell_by_cell(name, side, boundary):
    """Of single texts, and of several in a row; with the padding on either side."""
    tokens_BL, segments_BL = reference.packed([[13], [5], [2], [1], [5, 1, 4], [2, 11], [3, 3, 2, 3]], 13, seed=1)
    if side == "left":
        tokens_BL, segments_BL = (
            np.stack([np.roll(row, -n) for row, n in zip(field, (segments_BL > 0).sum(-1), strict=True)])
            for field in (tokens_BL, segments_BL)
        )
    expected = [reference.dense_pattern(name, *row, boundary) for row in zip(tokens_BL, segments_BL, strict=True)]
    target = targets(name, tokens_BL, segments_BL)
    np.testing.assert_allclose(patterns.dense(target, jnp.asarray(segments_BL), boundary=boundary), expected, atol=1e-7)
    if isinstance(target, Columns):
        named = [
            [number > 0 and reference.names_a_column(name, *row, place) for place, number in enumerate(row[1])]
            for row in zip(tokens_BL, segments_BL, strict=True)
        ]
        np.testing.assert_array_equal(target.present_BK, named)


def test_targets_of_a_sentence_by_hand():
    # <s> a . b . </s> <pad>, with 0 = <s>, 2 = </s>, 5 = '.'
    tokens = jnp.array([[0, 7, 5, 8, 5, 2, 1]])
    segments_BL = jnp.array([[1] * 6 + [0]])
    weights = {
        name: np.asarray(targets(name, tokens, segments_BL).weights_BK[0]) for name in ("first", "delim", "period")
    }
    np.testing.assert_array_equal(weights["first"], [1, 0, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(weights["delim"], [0.5, 0, 0, 0, 0, 0.5, 0])
    np.testing.assert_array_equal(weights["period"], [0, 0, 0.5, 0, 0.5, 0, 0])
    assert [targets(name, tokens, segments_BL) for name in ("next", "prev", "same")] == [Shift(1), Shift(-1), Shift(0)]


def test_a_token_pattern_without_its_token_spreads_over_the_valid_columns():
    tokens, segments_BL = jnp.array([[0, 7, 8, 1]]), jnp.array([[1, 1, 1, 0]])
    target = targets("period", tokens, segments_BL)
    np.testing.assert_allclose(target.weights_BK, [[1 / 3, 1 / 3, 1 / 3, 0]], rtol=1e-6)
    assert not target.present_BK.any()
    assert not patterns.has_target(target, segments_BL).any()


def test_padding_that_looks_like_a_full_stop_is_not_one():
    tokens, segments_BL = jnp.array([[0, 5, 7, 5]]), jnp.array([[1, 1, 1, 0]])
    np.testing.assert_array_equal(targets("period", tokens, segments_BL).weights_BK, [[0, 1, 0, 0]])


def test_a_tokenizer_without_full_stops():
    nothing = PatternTokens((), ())
    target = PATTERNS["period"](jnp.asarray(TOKENS_BL), jnp.asarray(SEGMENTS_BL), nothing)
    assert not target.present_BK.any()


@pytest.mark.parametrize("offset", (0, 1, -1, 3, -4, 7, -7, 8, -20))
def test_hits_of_any_shift(offset):
    _, segments_BL = reference.packed([[7], [4], [1], [0], [3, 4], [2, 1, 3]], 7)
    expected = [
        [row[p] > 0 and 0 <= p + offset < 7 and row[p + offset] == row[p] for p in range(7)] for row in segments_BL
    ]
    np.testing.assert_array_equal(patterns.has_target(Shift(offset), jnp.asarray(segments_BL)), expected)
    P_BQK = patterns.dense(Shift(offset), jnp.asarray(segments_BL))
    np.testing.assert_allclose(P_BQK.sum(-1), segments_BL > 0, atol=1e-6)


def test_columns_of_an_empty_row_are_empty_and_finite():
    made = patterns.columns(jnp.ones((1, 3), bool), jnp.zeros((1, 3), jnp.int32))
    assert isinstance(made, Columns)
    np.testing.assert_array_equal(made.weights_BK, [[0, 0, 0]])


def test_a_pattern_of_ones_own_is_found_by_import_path(tmp_path, monkeypatch):
    (tmp_path / "patterns_of_my_own.py").write_text(
        "from ag_jax.attention import patterns, segments\n"
        "def second(tokens_BL, segments_BL, special):\n"
        "    return patterns.columns(segments.order(segments_BL) == 1, segments_BL)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found = patterns.find_pattern("patterns_of_my_own.second")
    weights_BK = found(jnp.asarray(TOKENS_BL), jnp.asarray(SEGMENTS_BL), SPECIAL).weights_BK
    np.testing.assert_array_equal(weights_BK[:2, :3], [[0, 1, 0], [0, 1, 0]])


def one_dimension_short(tokens_BL, segments_BL, special):
    """A pattern that chooses the same column of every row."""
    return patterns.columns(jnp.arange(tokens_BL.shape[1]) == 1, segments_BL)


def test_chosen_columns_may_be_the_same_for_all_rows():
    with jax.numpy_rank_promotion("allow"):  # what users have, unless they asked for more
        made = one_dimension_short(jnp.asarray(TOKENS_BL), jnp.asarray(SEGMENTS_BL), SPECIAL)
    np.testing.assert_array_equal(made.weights_BK[:2, :3], [[0, 1, 0], [0, 1, 0]])


def columns_of_the_second_token(pattern):
    """Of a row with texts of 5, 1 and 4 tokens, and one with a text of 2."""
    tokens_BL, segments_BL = reference.packed([[5, 1, 4], [2]], 11)
    return pattern(jnp.asarray(tokens_BL), jnp.asarray(segments_BL), SPECIAL).weights_BK


# The text of a single token has no second one, and so spreads over all that it has.
SECOND_BK = [[0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]]


def second(tokens_BL, segments_BL, special):
    """The pattern of the docstring of `ag_jax.attention.patterns`, word for word."""
    return columns(segments.order(segments_BL) == 1, segments_BL)


def test_the_pattern_of_the_docstring_works_as_it_is_printed():
    np.testing.assert_array_equal(columns_of_the_second_token(second), SECOND_BK)
    printed = inspect.getsource(second).splitlines()[-1].strip()
    assert printed in patterns.__doc__


def test_the_pattern_of_the_guide_works_as_it_is_printed(tmp_path, monkeypatch):
    guide = (pathlib.Path(__file__).parents[2] / "docs" / "guide.md").read_text()
    (tmp_path / "patterns_of_the_guide.py").write_text(
        guide.partition("```python\n# my_patterns.py")[2].partition("```")[0]
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found = patterns.find_pattern("patterns_of_the_guide.second")
    np.testing.assert_array_equal(columns_of_the_second_token(found), SECOND_BK)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nxt", r"expected an attention pattern \(next, prev, .*\) or module.function, got 'nxt'"),
        ("no_such_module.second", r"cannot import the attention pattern 'no_such_module.second'"),
        ("math.no_such_function", r"cannot import the attention pattern 'math.no_such_function'.*no_such_function"),
        ("..foo", r"or module.function, got '..foo'"),
        ("math.", r"or module.function, got 'math.'"),
        ("module_that_fails.second", r"cannot import the attention pattern 'module_that_fails.second': KeyError: 'x'"),
        ("module_that_exits.second", r"cannot import the attention pattern 'module_that_exits.second': SystemExit: 0"),
        ("os.path", r"'os.path' must be a function, got an object of type module"),
    ],
)
def test_messages_for_patterns_that_are_not_there(name, message, tmp_path, monkeypatch):
    (tmp_path / "module_that_fails.py").write_text("{}['x']")
    (tmp_path / "module_that_exits.py").write_text("import sys\nsys.exit(0)")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match=message):
        patterns.find_pattern(name)


EVEN = "jnp.ones(s.shape) / jnp.maximum(segments.sizes(s), 1) * (s > 0)"  # of each text; tests change it
WRONG = {
    "raise KeyError('x')": "raised KeyError: 'x'",
    "raise SystemExit(0)": "raised SystemExit",
    "if (t == 3).any(): return Shift(1)\n    return Shift(0)": "raised TracerBoolConversionError",  # only if compiled
    "return None": "returned an object of type NoneType",
    "return [1]": "returned an object of type list",
    "return Entries(t)": "returned an object of type Entries",
    "return Shift(0.5)": "returned a Shift of 0.5",
    "return Shift(t.max())": "returned a Shift of",
    "return Shift(10**12)": "returned a Shift of 1000000000000",
    "return Columns(1, s > 0)": "weights_BK of type int",
    f"return Columns(({EVEN})[0], s > 0)": r"weights_BK of shape \(11,\)",
    "return Columns(s, s > 0)": "weights_BK of shape .* and type int32",
    f"return Columns({EVEN}, s)": "present_BK of shape .* and type int32",
    f"return Columns({EVEN} * jnp.nan, s > 0)": "returned Columns with the weight nan",
    "return Columns(jnp.where(s > 0, segments.order(s) * 2.0 - segments.sizes(s) + 1 + 1 / jnp.maximum("
    "segments.sizes(s), 1), 0), s > 0)": "returned Columns with the weight -",
    f"return Columns(2 * {EVEN}, s > 0)": "sum to 2 in a text",
    "return Columns(jnp.ones(s.shape) / 11, s > 0)": "weights on padding",
    f"return Columns({EVEN} * (t == special.periods[0]), s > 0)": "sum to 0 in a text",  # where there is no full stop
    f"return Columns({EVEN}, segments.is_first(s))": "present_BK that differs within a text",
}


@pytest.mark.parametrize("body", WRONG)
def test_what_a_custom_pattern_must_not_return(body, monkeypatch):
    names = {}
    exec(f"def wrong(t, s, special):\n    {body}", vars(patterns) | {"jnp": jnp}, names)
    monkeypatch.setitem(sys.modules, "my_wrong", types.SimpleNamespace(**names))
    find = jax.jit(lambda tokens_BL: patterns.find_target("my_wrong.wrong", tokens_BL, tokens_BL, SPECIAL))
    with pytest.raises(ValueError, match=f"the attention pattern 'my_wrong.wrong' .*{WRONG[body]}") as error:
        find(jnp.ones((2, 11), jnp.int32))
    assert "\n" not in str(error.value)
