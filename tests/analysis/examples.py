"""Sentences with made-up attention, and a tokenizer of words, for the tests of maps and pictures."""

import functools
import re
from types import SimpleNamespace

import jax
import numpy as np

from ag_jax.analysis.maps import AttentionMaps
from ag_jax.analysis.pairs import START, PairMaps
from ag_jax.attention import patterns, segments
from tests import reference

# Ids that `reference.DELIMITERS` and `reference.PERIODS` know: 0 and 2 are delimiters, 5 is a full stop.
WORDS = ("<s>", "<pad>", "</s>", "<mask>", "<unk>", ".", "roads", "we", "build", "$5_$")
SENTENCE = "we build roads . we build ."


class WordTokenizer:
    """Ids of words that are separated by spaces."""

    specials = SimpleNamespace(begin=0, pad=1, end=2, unknown=4)

    def encode(self, text):
        return [WORDS.index(word) for word in text.split()]

    def locate_batch(self, texts):
        """As of a tokenizer that does not know the words of the other language."""
        texts = [text.replace("strassen", "<unk>") for text in texts]
        return [(self.encode(text), [match.span() for match in re.finditer(r"\S+", text)]) for text in texts]

    def encode_targets(self, texts):
        """As `encode`, but with another token for the word `strassen`, as tokenizers of two languages have it."""
        return [self.encode(text.replace("strassen", "roads")) for text in texts]

    def tokens(self, ids):
        return [WORDS[id] for id in ids]


def second(inputs):
    """A pattern from outside the package: every row wants the second token."""
    return patterns.columns(segments.order(inputs.segments_BL) == 1, inputs.segments_BL)


SECOND = f"{__name__}.second"


@functools.partial(jax.jit, static_argnums=0)
def all_sown(model, params, batch):
    """The attention weights that a model sows, by part and by name of the attention."""
    _, sown = model.apply({"params": params}, batch, deterministic=True, mutable=["intermediates"])
    return sown["intermediates"]


def sown(model, params, batch):
    """The encoder's attention weights `NBHQK` that a model sows."""
    return np.asarray(all_sown(model, params, batch)["encoder"]["layers"]["attention"]["attention_weights"][0])


def made_up(ids, layers=2, heads=3, seed=0) -> AttentionMaps:
    """Random attention to the tokens `ids`."""
    ids_L = np.asarray(ids, np.int32)
    segments_BL = np.ones((1, len(ids_L)), np.int32)
    weights_NHQK = reference.random_attention(segments_BL, layers, heads, seed)[:, 0].astype(np.float32)
    return AttentionMaps(tuple(WORDS[id % len(WORDS)] for id in ids), ids_L, weights_NHQK)


def made_up_pair(source, target, layers=(2, 3), heads=3, seed=0) -> PairMaps:
    """Random attention to the tokens `source`, and of a decoder that reads the tokens `target` after a start.

    layers: number of layers of the encoder and of the decoder.
    """
    encoder = made_up(source, layers[0], heads, seed)
    decoder = made_up([1, *target], layers[1], heads, seed + 1)
    below_QK = np.tril(np.ones(decoder.weights_NHQK.shape[-2:], np.float32))
    lower_NHQK = decoder.weights_NHQK * below_QK
    tokens = (START, *decoder.tokens[1:])
    scores = np.random.default_rng(seed).standard_normal((layers[1], heads, len(tokens), len(source)))
    cross_NHQK = (np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)).astype(np.float32)
    return PairMaps(
        encoder,
        AttentionMaps(tokens, decoder.ids_L, lower_NHQK / lower_NHQK.sum(-1, keepdims=True), kind="decoder"),
        AttentionMaps(encoder.tokens, encoder.ids_L, cross_NHQK, kind="cross", query_tokens=tokens),
    )


def sentence(text=SENTENCE, **settings) -> AttentionMaps:
    """Random attention to the words of `text`."""
    return made_up([0, *WordTokenizer().encode(text), 2], **settings)
