"""Single patterns, and those of a user; `test_guidance.py` compares the targets of all patterns with loops."""

import functools
import inspect
import pathlib
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ag_jax.attention import assignment, patterns, segments
from ag_jax.attention.patterns import PATTERNS, PatternInputs, PatternTokens, columns
from tests import reference

SPECIAL = PatternTokens(reference.DELIMITERS, reference.PERIODS)


def test_a_tokenizer_without_full_stops():
    find = jax.jit(lambda *texts: PATTERNS["period"](inputs_of(*texts, special=PatternTokens((), ()))).present_BK)
    assert not find(*reference.packed([[3, 4]], 8)).any()


def inputs_of(tokens_BL, segments_BL, masked_BL=None, special=SPECIAL):
    masked_BL = jnp.zeros(tokens_BL.shape, bool) if masked_BL is None else masked_BL
    return PatternInputs(tokens_BL, masked_BL, segments_BL, special)


@functools.partial(jax.jit, static_argnums=0)
def of_neighbour(offset, segments_BL):
    """Return which queries have a target, and the targets P."""
    target = patterns.neighbour(segments_BL, offset)
    return patterns.has_target(target, segments_BL), patterns.dense(target, segments_BL)


def test_hits_of_any_neighbour():
    _, segments_BL = reference.packed([[7], [4], [1], [0], [3, 4], [2, 1, 3]], 7)
    for offset in (0, 1, -1, 3, -4, 7, -8, 20):
        expected = [
            [row[p] > 0 and 0 <= p + offset < 7 and row[p + offset] == row[p] for p in range(7)] for row in segments_BL
        ]
        found, P_BQK = of_neighbour(offset, segments_BL)
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_allclose(P_BQK.sum(-1), segments_BL > 0, atol=1e-6)


def test_chosen_columns_may_be_the_same_for_all_rows():
    with jax.numpy_rank_promotion("allow"):  # what users have, unless they asked for more
        made = jax.jit(columns)(np.arange(3) == 1, np.array([[1, 1, 1], [1, 1, 0], [0, 0, 0]]))
    np.testing.assert_array_equal(made.weights_BK, [[0, 1, 0], [0, 1, 0], [0, 0, 0]])


def second(inputs):
    """The pattern of the docstring of `ag_jax.attention.patterns`, word for word."""
    return columns(segments.order(inputs.segments_BL) == 1, inputs.segments_BL)


def test_repetitions_equal_a_loop_and_pass_over_masked_tokens():
    tokens_BL, segments_BL = reference.packed([[17], [4], [1], [0], [8, 9], [2, 1, 13]], 17)
    rng = np.random.default_rng(3)
    tokens_BL, masked_BL = rng.integers(0, 3, tokens_BL.shape), rng.random(tokens_BL.shape) < 0.2

    @jax.jit
    def find(*arrays):
        return [patterns.find_target(name, inputs_of(*arrays)).column_BQ for name in assignment.REPETITIONS]

    previous_BQ, after_BQ = find(tokens_BL, segments_BL, masked_BL)
    for b, q in np.ndindex(*tokens_BL.shape):
        before = [k for k in range(q) if segments_BL[b, k] == segments_BL[b, q] > 0 and not masked_BL[b, [k, q]].any()]
        expected = max((k for k in before if tokens_BL[b, k] == tokens_BL[b, q]), default=-1)
        assert previous_BQ[b, q] == expected
        assert after_BQ[b, q] == (-1 if expected < 0 or masked_BL[b, expected + 1] else expected + 1)
    assert (np.asarray(after_BQ) >= 0).sum() > 9 and (after_BQ < previous_BQ).sum() > 2


def test_the_patterns_of_the_docstring_and_of_the_page_work_as_they_are_printed(tmp_path, monkeypatch):
    """The text of a single token has no second one, and so spreads over all that it has."""
    page = (pathlib.Path(__file__).parents[2] / "docs" / "guidance.md").read_text()
    printed = page.partition("```python\n# my_patterns.py")[2].partition("```")[0]
    (tmp_path / "patterns_of_the_page.py").write_text(printed)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert inspect.getsource(second).splitlines()[-1].strip() in patterns.__doc__
    for pattern in (second, patterns.find_pattern("patterns_of_the_page.second")):
        np.testing.assert_array_equal(
            jax.jit(lambda *texts, pattern=pattern: pattern(inputs_of(*texts)))(
                *reference.packed([[5, 1, 4], [2]], 11)
            ).weights_BK,
            [[0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]],
        )
    assert patterns.find_pattern("prev") is PATTERNS["prev"] and tuple(PATTERNS) == assignment.PATTERNS
    assert tuple(patterns.REPETITIONS) == assignment.REPETITIONS


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("nxt", "'nxt'"),
        ("math.no_such_function", "no_such_function"),
        ("module_that_fails.second", "KeyError: 'x'"),
        ("module_that_exits.second", "SystemExit: 0"),
        ("os.path", "module"),
    ],
)
def test_patterns_that_are_not_there(name, named, tmp_path, monkeypatch):
    (tmp_path / "module_that_fails.py").write_text("{}['x']")
    (tmp_path / "module_that_exits.py").write_text("import sys\nsys.exit(0)")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match=named):
        patterns.find_pattern(name)


def test_a_custom_pattern_of_pointers(monkeypatch):
    """It is tried on texts without annotation, and gets that of the batch."""
    opposite = types.SimpleNamespace(of_head=lambda inputs: patterns.Pointer(2 - inputs.pointers["head"]))
    monkeypatch.setitem(sys.modules, "my_opposite", opposite)
    inputs = inputs_of(jnp.ones((1, 3), jnp.int32), jnp.ones((1, 3), jnp.int32))
    target = patterns.find_target("my_opposite.of_head", inputs._replace(pointers={"head": jnp.array([[2, -1, 0]])}))
    assert target.column_BQ.tolist() == [[0, 3, 2]]
    with pytest.raises(ValueError, match="'my_opposite.of_head' raised KeyError: 'head'"):
        patterns.find_target("my_opposite.of_head", inputs)


EVEN = "jnp.ones(s.shape) / jnp.maximum(segments.sizes(s), 1) * (s > 0)"  # of each text; tests change it
WRONG = {
    "raise KeyError('x')": "KeyError: 'x'",
    "raise SystemExit(0)": "SystemExit",
    "if (t == 3).any(): return neighbour(s, 1)\n    return neighbour(s, 0)": "TracerBoolConversionError",  # if compiled
    "return [1]": "list",
    "return Pointer(1)": "column_BQ of type int",
    "return Pointer(t.astype(float))": "column_BQ of .* float",
    "return Pointer(t[:, :3])": r"column_BQ of shape \(2, 3\)",
    "return Pointer(t, 1)": "offset 1",
    "return Columns(1, s > 0)": "weights_BK of type int",
    f"return Columns(({EVEN})[0], s > 0)": r"weights_BK of shape \(11,\)",
    "return Columns(s, s > 0)": "weights_BK of .* int32",
    f"return Columns({EVEN}, s)": "present_BK of .* int32",
    f"return Columns({EVEN} * jnp.nan, s > 0)": "nan",
    "return Columns(jnp.where(s > 0, segments.order(s) * 2.0 - segments.sizes(s) + 1 + 1 / jnp.maximum("
    "segments.sizes(s), 1), 0), s > 0)": "weight -",
    f"return Columns(2 * {EVEN}, s > 0)": "2 in a text",
    "return Columns(jnp.ones(s.shape) / 11, s > 0)": "padding",
    f"return Columns({EVEN} * (t == special.periods[0]), s > 0)": "0 in a text",  # where there is no full stop
    f"return Columns({EVEN}, segments.is_first(s))": "present_BK .* text",
}


@pytest.mark.parametrize("body", WRONG)
def test_what_a_custom_pattern_must_not_return(body, monkeypatch):
    names = {}
    exec(f"def wrong(i):\n    t, _, s, special, _ = i\n    {body}", vars(patterns) | {"jnp": jnp}, names)
    monkeypatch.setitem(sys.modules, "my_wrong", types.SimpleNamespace(**names))
    find = jax.jit(lambda tokens_BL: patterns.find_target("my_wrong.wrong", inputs_of(tokens_BL, tokens_BL)))
    with pytest.raises(ValueError, match=f"'my_wrong.wrong' .*{WRONG[body]}") as error:
        find(jnp.ones((2, 11), jnp.int32))
    assert "\n" not in str(error.value)
