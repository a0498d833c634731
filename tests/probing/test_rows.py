"""Attention between words, against loops over the attention between tokens."""

import functools
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from ag_jax.analysis.heads import rows
from ag_jax.analysis.heads.encoding import encode, word_lengths
from ag_jax.analysis.heads.rows import Convention, attention_rows
from ag_jax.data.probes.queries import Window
from tests.probing import examples

WINDOWS = encode(examples.windows(), examples.tokenizer(), 97).windows


@functools.cache
def tokens_attention(number):
    """The attention between the tokens of a window, computed without padding and without other windows."""
    probed, ids = examples.probed(), WINDOWS[number].ids[None]
    batch = {"tokens": ids, "segment_ids": ids * 0 + 1, "token_type_ids": ids * 0}

    @jax.jit
    def compute(params):
        method = lambda model, batch: model.encoder(batch, deterministic=True)  # noqa: E731
        _, sown = probed.model.apply({"params": params}, batch, method=method, mutable=["intermediates"])
        return sown["intermediates"]["encoder"]["layers"]["attention"]["attention_weights"][0][:, 0]

    return np.asarray(compute(probed.params))


def test_encoding_keeps_words_apart():
    tokenizer, lengths = examples.tokenizer(), word_lengths(examples.tokenizer())
    for window, encoded in zip(examples.windows(), WINDOWS, strict=True):
        assert encoded.ids[0] == tokenizer.specials.begin and encoded.ids[-1] == tokenizer.specials.end
        assert encoded.starts[0] == 1 and encoded.starts[-1] == len(encoded.ids) - 1
        for word, begin, end in zip(window.words, encoded.starts, encoded.starts[1:], strict=False):
            # In running text, every word follows a space.
            assert list(encoded.ids[begin:end]) == tokenizer.encode(f" {word}")
        assert lengths(window.words) == np.diff(encoded.starts).tolist()
    longest = max(len(window.ids) for window in WINDOWS)
    for limit, left_out in ((longest, 0), (longest - 1, 1)):
        found = encode(examples.windows(), tokenizer, limit).windows
        assert sum(window is None for window in found) == left_out


def test_words_without_a_token_and_tokens_without_a_word():
    """A token for the space before the text, which belongs to no word, is left out; a word without a token is read as
    an unknown word.
    """
    specials = SimpleNamespace(begin=1, end=2, unknown=3)
    # The text is " a \x00 bc d": the tokenizer drops the words "\x00" and "d", and "bc" has two tokens.
    located = ([9, 10, 11, 12], [(0, 0), (0, 2), (4, 6), (6, 7)])
    tokenizer = SimpleNamespace(specials=specials, locate_batch=lambda texts: [located for _ in texts])
    words = ("a", "\x00", "bc", "d")
    encoded = encode([Window("one", words)], tokenizer, 97)
    assert encoded.unknown == 2
    assert encoded.windows[0].ids.tolist() == [1, 10, 3, 11, 12, 3, 2]
    assert encoded.windows[0].starts.tolist() == [1, 2, 3, 5, 6]
    assert word_lengths(tokenizer)(words) == [1, 0, 2, 0]


def words_row(weights_NHLL, window, at, convention):
    """The attention of the word `at` to each word, or to the word with `transposed`, by loops."""
    spans = [range(begin, end) for begin, end in zip(window.starts, window.starts[1:], strict=False)]
    found = np.zeros((*weights_NHLL.shape[:2], len(spans)))
    for layer, head, word in np.ndindex(*found.shape):
        sources, targets = (spans[word], spans[at]) if convention.transposed else (spans[at], spans[word])
        sources = sources[:1] if convention.from_ == "first" else sources
        total = sum(weights_NHLL[layer, head, q, k] for q in sources for k in targets) / len(sources)
        found[layer, head, word] = total / (len(targets) if convention.to == "mean" else 1)
    return found


@pytest.mark.parametrize(
    "convention",
    [
        Convention(),
        Convention(from_="first", to="mean"),
        Convention(transposed=True),
        Convention(from_="first", to="mean", transposed=True),
    ],
    ids=str,
)
def test_words(convention, monkeypatch):
    monkeypatch.setattr(rows, "BYTES", {"cpu": 200_000})  # several batches
    window_Q, at_Q = np.array([3, 1, 2, 1, 3, 2]), np.array([3, 1, 1, 11, 20, 0])
    probed, seen, batches = examples.probed(), [], 0
    for found in attention_rows(probed.model, probed.params, WINDOWS, window_Q, at_Q, convention=convention):
        batches += 1
        for query, weights_NHU in zip(found.queries, found.weights["word"], strict=True):
            number = window_Q[query]
            expected = words_row(tokens_attention(number), WINDOWS[number], at_Q[query], convention)
            count = expected.shape[-1]
            np.testing.assert_allclose(weights_NHU[..., :count], expected, atol=2e-6)
            assert not weights_NHU[..., count:].any()
            seen.append(query)
    assert sorted(seen) == list(range(6)) and batches > 1


def test_positions():
    """A unit is a token: the rows are those of the model, begin and end included, and sum to 1."""
    probed, window_Q, at_Q = examples.probed(), np.array([1, 2]), np.array([1, 1])
    for found in attention_rows(probed.model, probed.params, WINDOWS, window_Q, at_Q, ("position",)):
        np.testing.assert_allclose(found.weights["position"].sum(-1), 1, rtol=1e-5)
        for query, weights_NHU in zip(found.queries, found.weights["position"], strict=True):
            window = WINDOWS[window_Q[query]]
            begin, end = window.starts[at_Q[query]], window.starts[at_Q[query] + 1]
            expected = tokens_attention(window_Q[query])[:, :, begin:end].mean(2)
            np.testing.assert_allclose(weights_NHU[..., : len(window.ids)], expected, atol=2e-6)
