"""An encoder-decoder Transformer in numpy's float64, one pair of texts at a time, written from Vaswani et al. 2017.

There are no rows, segments, padding, caches and scans: a text is an array of token ids, and its translation another
one. Nothing here imports from `ag_jax`. Shape letters: S source length, T target length, L either, D width, E width of
the embeddings, V vocabulary.
"""

import dataclasses

import numpy as np
from scipy import special as functions

from tests.reference import gelu, layer_norm, take_layer


@dataclasses.dataclass(frozen=True)
class Design:
    """What the paper leaves open, or what follow-ups changed.

    norm: LayerNorm after the residual sum (`post`), or on the input of each part and once at the end (`pre`).
    tie: tables that are one: of source, target and output (`all`), of target and output (`target`), or `none`.
    start: what is embedded at a target's first position: the vector of zeros, or a token (`begin`).
    angles: of sinusoids, i -> frequency in units of half the width: 10000^(-i / (d/2)) (`marian`), 10000^(-i /
        (d/2 - 1)) (`tensor2tensor`); None for learned positions.
    offset: number of the first learned position.
    scale: whether word embeddings are multiplied by the root of their width.
    activation: between the two linear maps.
    epsilon: of LayerNorm.
    gauss, decoder_gauss: offsets of hard-coded attention in encoder and decoder; empty for learned attention.
    normalized: whether hard-coded weights are divided by their sum.
    """

    norm: str = "post"
    tie: str = "all"
    start: str = "zero"
    angles: str | None = "marian"
    offset: int = 0
    scale: bool = True
    activation: str = "relu"
    epsilon: float = 1e-5
    gauss: tuple[int, ...] = ()
    decoder_gauss: tuple[int, ...] = ()
    normalized: bool = False


ACTIVATIONS = {"relu": lambda x: np.maximum(x, 0), "gelu": gelu, "silu": lambda x: x / (1 + np.exp(-x))}


def linear(x, params):
    """Return x W, plus b if there is one."""
    return x @ params["kernel"] + params.get("bias", 0.0)


def positions(design, table, length, width):
    """Return the vectors of the positions 0 to `length` - 1, position by position and pair by pair."""
    if design.angles is None:
        return table["position"]["embedding"][design.offset : design.offset + length]
    found, half = np.zeros((length, width)), width // 2
    for place in range(length):
        for i in range(half):
            rate = i / half if design.angles == "marian" else i / (half - 1)
            found[place, i] = np.sin(place / 10_000**rate)
            found[place, half + i] = np.cos(place / 10_000**rate)
    return found


def embed(design, words_LE, table):
    """Return the input of the first layer."""
    x = words_LE * (np.sqrt(words_LE.shape[1]) if design.scale else 1.0)
    x = x + positions(design, table, *words_LE.shape)
    if "segment" in table:
        x = x + table["segment"]["embedding"][0]
    if "norm" in table:
        x = layer_norm(x, table["norm"], design.epsilon)
    return linear(x, table["projection"]) if "projection" in table else x


def softmax_attention(x, source, params, causal):
    """Return softmax(Q K^T / sqrt(d_k)) V of every head, head by head, through the output projection."""
    output = np.zeros_like(x)
    weights = []
    for h in range(params["value"]["kernel"].shape[1]):

        def project(name, y, h=h):
            bias = params[name]["bias"][h] if "bias" in params[name] else 0.0
            return y @ params[name]["kernel"][:, h] + bias

        query, key, value = project("query", x), project("key", source), project("value", source)
        scores = query @ key.T / np.sqrt(query.shape[1])
        if causal:
            scores = np.where(np.tril(np.ones(scores.shape)) > 0, scores, -np.inf)
        weights.append(functions.softmax(scores, axis=-1))
        output += weights[-1] @ value @ params["output"]["kernel"][h]
    return output + params["output"].get("bias", 0.0), np.stack(weights)


def gaussian_attention(x, params, offsets, causal, normalized):
    """Return the mixture by 1/sqrt(2 pi) exp(-(q - p - a_h)^2 / 2), head by head (You et al. 2020)."""
    output = np.zeros_like(x)
    weights = []
    for h in range(params["value"]["kernel"].shape[1]):
        distance = np.arange(len(x))[None, :] - np.arange(len(x))[:, None]
        H = np.exp(-((distance - offsets[h % len(offsets)]) ** 2) / 2) / np.sqrt(2 * np.pi)
        H = np.where(causal & (distance > 0), 0, H)
        weights.append(H / H.sum(-1, keepdims=True) if normalized else H)
        value = x @ params["value"]["kernel"][:, h] + (params["value"]["bias"][h] if "bias" in params["value"] else 0)
        output += weights[-1] @ value @ params["output"]["kernel"][h]
    return output + params["output"].get("bias", 0.0), np.stack(weights)


def translate(params, source_S, target_T, design=Design()):
    """Return the logits `TV` of the word after each target token, and the attention weights of all layers by kind.

    params: in float64, named as those of the model; a stack of layers has a leading axis.
    source_S: token ids of the source.
    target_T: token ids that the decoder reads; the first one stands for the start.
    """
    kept = {"encoder": [], "decoder": [], "cross": []}

    def residual(x, norm, function):
        if design.norm == "pre":
            return x + function(layer_norm(x, norm, design.epsilon))
        return layer_norm(x + function(x), norm, design.epsilon)

    def attend(kind, params, offsets=(), source=None, causal=False):
        def apply(x):
            if offsets:
                mixed, weights = gaussian_attention(x, params, offsets, causal, design.normalized)
            else:
                mixed, weights = softmax_attention(x, x if source is None else source, params, causal)
            kept[kind].append(weights)
            return mixed

        return apply

    def feedforward(layer):
        return lambda x: linear(
            ACTIVATIONS[design.activation](linear(x, layer["feedforward_in"])), layer["feedforward_out"]
        )

    def stack(x, params, parts):
        for index in range(len(params["layers"]["feedforward_in"]["kernel"])):
            layer = take_layer(params["layers"], index)
            for norm, function in parts(layer):
                x = residual(x, layer[norm], function)
        return layer_norm(x, params["final_norm"], design.epsilon) if design.norm == "pre" else x

    own, other = params["encoder"]["embeddings"], params.get("target_embeddings", {})
    memory = stack(
        embed(design, own["word"]["embedding"][source_S], own),
        params["encoder"],
        lambda layer: [
            ("attention_norm", attend("encoder", layer["attention"], design.gauss)),
            ("feedforward_norm", feedforward(layer)),
        ],
    )
    words = (own if design.tie == "all" else other)["word"]["embedding"]
    read = words[target_T].copy()
    if design.start == "zero":
        read[0] = 0
    hidden = stack(
        embed(design, read, {name: of for name, of in other.items() if name != "segment"}),
        params["decoder"],
        lambda layer: [
            ("attention_norm", attend("decoder", layer["attention"], design.decoder_gauss, causal=True)),
            ("cross_attention_norm", attend("cross", layer["cross_attention"], source=memory)),
            ("feedforward_norm", feedforward(layer)),
        ],
    )
    if "output_projection" in params:
        hidden = linear(hidden, params["output_projection"])
    table = params["output_words"]["embedding"] if design.tie == "none" else words
    return hidden @ table.T + params["output_bias"], {kind: np.stack(of) for kind, of in kept.items()}
