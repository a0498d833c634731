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
from ag_jax.attention.patterns import PATTERNS, PatternTokens, Shift, columns
from tests import reference

SPECIAL = PatternTokens(reference.DELIMITERS, reference.PERIODS)


def test_a_tokenizer_without_full_stops():
    find = jax.jit(lambda *texts: PATTERNS["period"](*texts, PatternTokens((), ())).present_BK)
    assert not find(*reference.packed([[3, 4]], 8)).any()


@functools.partial(jax.jit, static_argnums=0)
def of_shift(offset, segments_BL):
    """Return which queries have a target, and the targets P."""
    return patterns.has_target(Shift(offset), segments_BL), patterns.dense(Shift(offset), segments_BL)


def test_hits_of_any_shift():
    _, segments_BL = reference.packed([[7], [4], [1], [0], [3, 4], [2, 1, 3]], 7)
    for offset in (0, 1, -1, 3, -4, 7, -8, 20):
        expected = [
            [row[p] > 0 and 0 <= p + offset < 7 and row[p + offset] == row[p] for p in range(7)] for row in segments_BL
        ]
        found, P_BQK = of_shift(offset, segments_BL)
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_allclose(P_BQK.sum(-1), segments_BL > 0, atol=1e-6)


def test_chosen_columns_may_be_the_same_for_all_rows():
    with jax.numpy_rank_promotion("allow"):  # what users have, unless they asked for more
        made = jax.jit(columns)(np.arange(3) == 1, np.array([[1, 1, 1], [1, 1, 0], [0, 0, 0]]))
    np.testing.assert_array_equal(made.weights_BK, [[0, 1, 0], [0, 1, 0], [0, 0, 0]])


def second(tokens_BL, segments_BL, special):
    """The pattern of the docstring of `ag_jax.attention.patterns`, word for word."""
    return columns(segments.order(segments_BL) == 1, segments_BL)


def test_the_patterns_of_the_docstring_and_of_the_page_work_as_they_are_printed(tmp_path, monkeypatch):
    """The text of a single token has no second one, and so spreads over all that it has."""
    page = (pathlib.Path(__file__).parents[2] / "docs" / "guidance.md").read_text()
    printed = page.partition("```python\n# my_patterns.py")[2].partition("```")[0]
    (tmp_path / "patterns_of_the_page.py").write_text(printed)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert inspect.getsource(second).splitlines()[-1].strip() in patterns.__doc__
    for pattern in (second, patterns.find_pattern("patterns_of_the_page.second")):
        np.testing.assert_array_equal(
            jax.jit(pattern, static_argnums=2)(*reference.packed([[5, 1, 4], [2]], 11), SPECIAL).weights_BK,
            [[0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]],
        )
    assert patterns.find_pattern("prev") is PATTERNS["prev"] and tuple(PATTERNS) == assignment.PATTERNS


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


EVEN = "jnp.ones(s.shape) / jnp.maximum(segments.sizes(s), 1) * (s > 0)"  # of each text; tests change it
WRONG = {
    "raise KeyError('x')": "KeyError: 'x'",
    "raise SystemExit(0)": "SystemExit",
    "if (t == 3).any(): return Shift(1)\n    return Shift(0)": "TracerBoolConversionError",  # only if compiled
    "return [1]": "list",
    "return Shift(0.5)": "Shift of 0.5",
    "return Shift(10**12)": "Shift of 1000000000000",
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
    exec(f"def wrong(t, s, special):\n    {body}", vars(patterns) | {"jnp": jnp}, names)
    monkeypatch.setitem(sys.modules, "my_wrong", types.SimpleNamespace(**names))
    find = jax.jit(lambda tokens_BL: patterns.find_target("my_wrong.wrong", tokens_BL, tokens_BL, SPECIAL))
    with pytest.raises(ValueError, match=f"'my_wrong.wrong' .*{WRONG[body]}") as error:
        find(jnp.ones((2, 11), jnp.int32))
    assert "\n" not in str(error.value)
