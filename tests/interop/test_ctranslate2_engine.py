"""The search of CTranslate2: settings, limits and scores, by a stand-in for it; tests/parity has the package itself."""

import dataclasses
import importlib.util
import types

import numpy as np
import pytest

from ag_jax.interop import ctranslate2_engine
from ag_jax.models.decoding_config import DecodingConfig

POWER = DecodingConfig(normalization="power", length_penalty=1.0, stop="full", ends="first")


@pytest.mark.parametrize(
    ("changed", "instead"),
    [
        ({"normalization": "gnmt"}, "normalization=power"),
        ({"stop": "bound"}, "stop=full"),
        ({"ends": "all", "beam_size": 1}, "ends=first"),
        ({"min_length": "0.5x"}, "min_length=0"),
        ({"min_length": "2"}, "min_length=0"),
    ],
)
def test_other_searches_are_refused(changed, instead):
    config = dataclasses.replace(POWER, **changed)
    for refusing in (lambda: ctranslate2_engine.check(config), lambda: Stand().search([[7]], [5], config)):
        with pytest.raises(ValueError, match=f"--decoding={instead},"):
            refusing()


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"min_length": "1"},
        {"normalization": "none", "length_penalty": 0.6},
        {"normalization": "gnmt", "beam_size": 1},
        {"normalization": "gnmt", "length_penalty": 0.0},
    ],
)
def test_equal_searches_are_allowed(changed):
    ctranslate2_engine.check(dataclasses.replace(POWER, **changed))


def test_the_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'ag_jax\[ctranslate2\]'"):
        ctranslate2_engine.with_ctranslate2(None)


class Stand:
    """A model whose last hypothesis has as many tokens as the source's first token says, and the one before one less.

    Each token has the log-probability -1, and the end token is 1.
    """

    def __init__(self):
        self.limits = []

    def search(self, sources, longest, config):
        return ctranslate2_engine._Search(self, 1)(sources, np.array(longest), config)

    def translate_batch(self, sources, *, beam_size, num_hypotheses, length_penalty, max_decoding_length, **options):
        assert (beam_size, options["min_decoding_length"], options["max_input_length"]) == (num_hypotheses, 0, 0)
        assert options["return_scores"] and options["return_end_token"] and length_penalty > 0
        assert all(source[-1] == "1" and source.count("1") == 1 for source in sources)
        self.limits.append(max_decoding_length)
        results = []
        for source in sources:
            lengths = [max(int(source[0]) - beam, 1) for beam in reversed(range(beam_size))]
            hypotheses = [(["8"] * (length - 1) + ["1"])[:max_decoding_length] for length in lengths]
            scores = [-len(tokens) / len(tokens) ** length_penalty for tokens in hypotheses]
            results.append(types.SimpleNamespace(hypotheses=hypotheses, scores=scores))
        return results


def test_each_sentence_has_its_own_limit_and_scores():
    """The second and third sentence reach their limits, of 4 and 6 tokens; the last ends one token before its own."""
    config = dataclasses.replace(POWER, beam_size=2, length_penalty=0.5)
    stand = Stand()
    found = stand.search([[5, 9], [9], [7], [8], [3]], [9, 4, 6, 9, 4], config)
    assert stand.limits == [9, 4, 6]
    assert found.lengths_BK.tolist() == [[4, 5], [4, 4], [6, 6], [7, 8], [2, 3]]
    tokens = [found.tokens_BKT[place].tolist() for place in ((1, 0), (4, 1))]
    assert tokens == [[8] * 4 + [1] * 4, [8] * 2 + [1] * 6]
    np.testing.assert_allclose(found.log_probs_BK, -found.lengths_BK.astype(float), rtol=1e-6)
    np.testing.assert_allclose(found.scores_BK, -(found.lengths_BK.astype(float) ** 0.5), rtol=1e-6)


@pytest.mark.parametrize(
    ("changed", "score"),
    [({"normalization": "gnmt"}, -7 / 2**0.6), ({"normalization": "none"}, -7.0)],
    ids=["gnmt", "none"],
)
def test_scores_have_the_penalty_of_the_settings(changed, score):
    found = Stand().search([[7]], [20], dataclasses.replace(POWER, beam_size=1, length_penalty=0.6, **changed))
    np.testing.assert_allclose(found.scores_BK, [[score]], rtol=1e-6)
