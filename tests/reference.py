"""Reference implementations for tests: explicit loops in float64 numpy, written only from the papers.

Nothing here imports from `ag_jax`. Shape letters are the same: N layers, B batch, H head, Q query, K key, L length,
D width, M masked positions, V vocabulary. `segments_BL` are segment ids: they number the texts of a row from 1; padding
has 0.
"""

import math
from fractions import Fraction

import numpy as np
from scipy import special as functions

DELIMITERS, PERIODS = (0, 2), (5, 9)


def ragged(lengths, length, *, vocabulary=13, seed=0):
    """Return random tokens and segment ids, one text a row, padded on the right.

    Texts begin and end with a delimiter, and may have full stops inside.
    """
    return packed([[n] for n in lengths], length, vocabulary=vocabulary, seed=seed)


def packed(lengths, length, *, vocabulary=13, seed=0):
    """Return random tokens and segment ids with several texts a row.

    lengths: for each row, the lengths of its texts.
    """
    rng = np.random.default_rng(seed)
    tokens_BL = rng.integers(3, vocabulary, (len(lengths), length)).astype(np.int32)
    segments_BL = np.zeros_like(tokens_BL)
    for row, of_row in enumerate(lengths):
        start = 0
        for number, n in enumerate(of_row, 1):
            segments_BL[row, start : start + n] = number
            tokens_BL[row, start : start + n][-1:] = DELIMITERS[1]
            tokens_BL[row, start : start + n][:1] = DELIMITERS[0]
            start += n
    return np.where(segments_BL > 0, tokens_BL, 1).astype(np.int32), segments_BL


def texts(segments_L):
    """Return the positions of each text of a row."""
    return [np.flatnonzero(segments_L == number) for number in np.unique(segments_L) if number > 0]


def text_of(segments_L, row):
    """Return the positions of the text that contains position `row`."""
    return np.flatnonzero(segments_L == segments_L[row])


def random_attention(segments_BL, layers, heads, seed=0, stochastic=True):
    """Return random attention `NBHQK` that is 0 on padding and on other texts.

    Queries at padding attend to all tokens. With `stochastic=False` the attention of a query does not sum to 1.
    """
    rng = np.random.default_rng(seed)
    length = segments_BL.shape[1]
    scores = 2.0 * rng.standard_normal((layers, len(segments_BL), heads, length, length))
    apart_BQK = (segments_BL[:, :, None] > 0) & (segments_BL[:, :, None] != segments_BL[:, None, :])
    weights = np.exp(scores) * ((segments_BL > 0)[:, None, :] & ~apart_BQK)[None, :, None]
    weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-30)
    if not stochastic:
        weights *= (rng.random(weights.shape) > 0.3) / 0.7
    return weights


def dense_pattern(name, tokens_L, segments_L, boundary="uniform"):
    """Return the pattern P `QK` of a row of texts in float64: the pattern within each text, 0 between texts."""
    P_QK = np.zeros((len(tokens_L), len(tokens_L)))
    for places in texts(segments_L):
        P_QK[np.ix_(places, places)] = text_pattern(name, tokens_L[places], boundary)
    return P_QK


def text_pattern(name, tokens_L, boundary):
    """Return the pattern P of one text, cell by cell as in appendix A.2 of Deshpande & Narasimhan 2020.

    As there, p and q count from 1 to n.
    """
    n = len(tokens_L)
    P_QK = np.zeros((n, n))
    chosen = {"delim": DELIMITERS, "period": PERIODS}.get(name)
    count = sum(token in chosen for token in tokens_L) if chosen else 0
    for p in range(1, n + 1):
        for q in range(1, n + 1):
            if name == "next":
                value = (1.0 if q == p + 1 else 0.0) if p < n else (1.0 / n if boundary == "uniform" else 0.0)
            elif name == "prev":
                value = (1.0 if q == p - 1 else 0.0) if p > 1 else (1.0 / n if boundary == "uniform" else 0.0)
            elif name == "same":
                value = float(p == q)
            elif name == "first":
                value = float(q == 1)
            elif count == 0:
                value = 1.0 / n
            else:
                value = 1.0 / count if tokens_L[q - 1] in chosen else 0.0
            P_QK[p - 1, q - 1] = value
    return P_QK


def names_a_column(name, tokens_L, segments_L, row):
    """Whether the pattern has a target for query `row`, so that neither the boundary nor the absent rule applies."""
    places = text_of(segments_L, row)
    if name == "next":
        return row != places[-1]
    if name == "prev":
        return row != places[0]
    chosen = {"delim": DELIMITERS, "period": PERIODS}.get(name)
    return chosen is None or any(tokens_L[place] in chosen for place in places)


def decoder_columns(name, p, queries, tokens_K, causal):
    """Return the keys that row `p` of a decoder sees, and those of them that the pattern wants, as lists of places.

    queries: number of tokens of the row's text.
    tokens_K: tokens of the text with the keys: of the same text if `causal`, else of its source.
    """
    seen = list(range(p + 1 if causal else len(tokens_K)))
    along = math.floor(Fraction(p * len(tokens_K), queries) + Fraction(1, 2))
    wanted = {
        "prev": [p - 1],
        "same": [p],
        "first": [0],
        "delim": [k for k, token in enumerate(tokens_K) if token in DELIMITERS],
        "period": [k for k, token in enumerate(tokens_K) if token in PERIODS],
        "diagonal": [min(along, len(tokens_K) - 1)],
    }[name]
    return seen, [k for k in wanted if k in seen]


def guidance_loss(attention_NBHQK, assignment, tokens_BL, segments_BL, reduction, boundary, absent):
    """Return the guidance loss L_AG summed over the texts: squared errors to the dense P, one query at a time."""
    total, guided = 0.0, sum(count for _, count in assignment)
    for b, (tokens_L, segments_L) in enumerate(zip(tokens_BL, segments_BL, strict=True)):
        head = 0
        for name, count in assignment:
            P_QK = dense_pattern(name, tokens_L, segments_L, boundary)
            for _ in range(count):
                for layer in range(len(attention_NBHQK)):
                    for row in np.flatnonzero(segments_L):
                        n = len(text_of(segments_L, row))
                        rule = boundary if name in ("next", "prev", "same") else absent
                        if rule == "ignore" and not names_a_column(name, tokens_L, segments_L, row):
                            continue
                        error = ((attention_NBHQK[layer, b, head, row] - P_QK[row]) ** 2).sum()
                        total += (
                            error
                            * {
                                "type_mean": 1 / (count * n * n),
                                "head_mean": 1 / (guided * n * n),
                                "frobenius": 1.0,
                            }[reduction]
                        )
                head += 1
    return total


def masses(attention_NBHQK, assignment, tokens_BL, segments_BL):
    """Return for each pattern the attention on its targets, `N`, and the number of terms in the sum.

    The sum is over the pattern's heads and the queries that have a target.
    """
    results, head = [], 0
    for name, count in assignment:
        total_N, rows = np.zeros(len(attention_NBHQK)), 0
        for b, (tokens_L, segments_L) in enumerate(zip(tokens_BL, segments_BL, strict=True)):
            P_QK = dense_pattern(name, tokens_L, segments_L)
            for row in np.flatnonzero(segments_L):
                if names_a_column(name, tokens_L, segments_L, row):
                    total_N += attention_NBHQK[:, b, head : head + count, row][:, :, P_QK[row] > 0].sum((1, 2))
                    rows += count
        results.append((total_N, rows))
        head += count
    return results


def layer_norm(x, params, epsilon, kind="layer"):
    """Return (x - mean) / sqrt(variance + epsilon) * scale + bias, normalised over the last axis.

    kind: `rms` subtracts no mean. There is no bias if `params` have none.
    """
    centred = x - x.mean(-1, keepdims=True) if kind == "layer" else x
    normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon) * params["scale"]
    return normed + params["bias"] if "bias" in params else normed


def gelu(x):
    """Return x * Phi(x), where Phi is the standard normal distribution function."""
    return x * 0.5 * (1 + functions.erf(x / np.sqrt(2)))


def linear(x, params):
    """Return x W + b, or x W if `params` have no bias."""
    return x @ params["kernel"] + params["bias"] if "bias" in params else x @ params["kernel"]


def heads_of(x, params):
    """Project `...LD` to heads `...HLW` by a kernel of shape D x H x W, with a bias if `params` have it."""
    projected = np.einsum("...ld,dhw->...hlw", x, params["kernel"])
    return projected + params["bias"][:, None, :] if "bias" in params else projected


def distance_row(distance, span, buckets):
    """Return the row of the relative-embedding table for one distance (He et al. 2021; buckets: DeBERTa v2's code)."""
    half, middle = buckets or span, (buckets or 0) // 2
    if buckets and abs(distance) > middle:
        steps = math.ceil(math.log(abs(distance) / middle) / math.log((span - 1) / middle) * (middle - 1))
        distance = int(math.copysign(middle + steps, distance))
    return min(max(distance + half, 0), 2 * half - 1)


def distance_scores(query_BHQW, key_BHKW, params, table_RD, relative):
    """Return the content-to-position and position-to-content scores before scaling, pair by pair of positions."""
    length = query_BHQW.shape[2]
    to_key, to_query = ("key", "query") if relative.shared else ("relative_key", "relative_query")
    scores = np.zeros((*query_BHQW.shape[:2], length, length))
    key_HRW = heads_of(table_RD, params[to_key]) if "c2p" in relative.terms else None
    query_HRW = heads_of(table_RD, params[to_query]) if "p2c" in relative.terms else None
    for i in range(length):
        for j in range(length):
            row = distance_row(i - j, relative.span, relative.buckets)
            if "c2p" in relative.terms:
                scores[:, :, i, j] += (query_BHQW[:, :, i] * key_HRW[None, :, row]).sum(-1)
            if "p2c" in relative.terms:
                if relative.index == "paper":
                    row = distance_row(j - i, relative.span, relative.buckets)
                scores[:, :, i, j] += (key_BHKW[:, :, j] * query_HRW[None, :, row]).sum(-1)
    return scores


def rotated(x_BHLW, places_BL, base):
    """Return heads whose pairs (x_i, x_{i + W/2}) are multiplied, as complex numbers, by exp(1j p base^(-2i/W))."""
    half = x_BHLW.shape[-1] // 2
    pairs = x_BHLW[..., :half] + 1j * x_BHLW[..., half:]
    turns = np.stack([np.exp(1j * places_BL * base ** (-i / half)) for i in range(half)], axis=-1)
    turned = pairs * turns[:, None]
    return np.concatenate([turned.real, turned.imag], axis=-1)


def attention(
    x_BLD,
    params,
    segments_BL,
    bias_BHQK=0.0,
    query_BLD=None,
    table_RD=None,
    relative=None,
    keep_BHQK=None,
    turn=lambda x_BHLW: x_BHLW,
    norm=None,
    window=None,
):
    """Return the output and probabilities of multi-head attention, disentangled if `table_RD` is given.

    turn: applied to queries and keys, such as a rotation.
    norm: (x, parameters) -> normalised queries or keys, if `params` have parameters of such norms.
    window: number of tokens of a window around each query; None for none.
    table_RD: the embeddings of distances.
    relative: settings of disentangled attention: an object with the attributes terms, span, buckets, shared and index.
    keep_BHQK: 0 where there is no attention; a query without any other key attends uniformly to the keys that it sees.
    """
    query = heads_of(x_BLD if query_BLD is None else query_BLD, params["query"])
    key, value = (heads_of(x_BLD, params[name]) for name in ("key", "value"))
    if "query_norm" in params:
        query, key = norm(query, params["query_norm"]), norm(key, params["key_norm"])
    query, key = turn(query), turn(key)
    scores = query @ key.swapaxes(-1, -2)
    if table_RD is not None:
        scores = (scores + distance_scores(query, key, params, table_RD, relative)) / np.sqrt(
            1 + len(relative.terms.split(","))
        )
    scores = scores / np.sqrt(query.shape[-1]) + bias_BHQK
    visible = np.broadcast_to((segments_BL[:, :, None] == segments_BL[:, None, :])[:, None], scores.shape).copy()
    if window is not None:
        for q in range(scores.shape[-2]):
            for k in range(scores.shape[-1]):
                if abs(q - k) > window // 2:
                    visible[:, :, q, k] = False
    if keep_BHQK is not None:
        kept = (keep_BHQK > 0) & visible
        scores = np.where(kept.any(-1, keepdims=True), np.where(kept, scores, -np.inf), 0.0)
    scores = np.where(visible, scores, -np.inf)
    weights = functions.softmax(scores, axis=-1)
    mixed = np.einsum("bhqw,hwd->bqd", weights @ value, params["output"]["kernel"])
    return mixed + params["output"]["bias"] if "bias" in params["output"] else mixed, weights


def convolve(x_BLD, params, segments_BL, activation):
    """Return a convolution over tokens that does not cross texts, token by token and tap by tap."""
    taps = len(params["kernel"])
    out = np.zeros_like(x_BLD) + params["bias"]
    for row, segments_L in enumerate(segments_BL):
        for place in range(len(segments_L)):
            for tap in range(taps):
                other = place + tap - taps // 2
                if 0 <= other < len(segments_L) and segments_L[other] == segments_L[place]:
                    out[row, place] += x_BLD[row, other] @ params["kernel"][tap]
    return {"tanh": np.tanh, "gelu": gelu}[activation](out)


def encode_and_decode(params, batch, config, *, delta=0.0, bias_BHQK=0.0, keep=None):
    """Return the hidden states, the mask decoder's output, from which words are predicted, and `attention_NBHQK`.

    params: in float64 with a leading layer axis.
    config: read only for settings that change no parameter, such as layer_norm_epsilon and the window; the rest follows
        from the parameters.
    keep: (layer, its input) -> the mask `BHQK` of its attention; the mask decoder uses the mask of the last layer.
    """
    table, epsilon = params["embeddings"], config.layer_norm_epsilon
    segments_BL = np.asarray(batch["segment_ids"])
    places_BL = np.zeros(segments_BL.shape, int)
    for row, segments_L in enumerate(segments_BL):
        for places in texts(segments_L):
            places_BL[row, places] = np.arange(len(places)) + config.position_offset
    order_BL = np.maximum(places_BL - config.position_offset, 0)
    x = table["word"]["embedding"][batch["tokens"]] + delta
    if config.absolute_positions == "input" and config.positions == "learned":
        x = x + table["position"]["embedding"][places_BL]
    if "segment" in table:  # a model with one knows no other
        token_types_BL = np.minimum(batch["token_type_ids"], len(table["segment"]["embedding"]) - 1)
        x = x + table["segment"]["embedding"][token_types_BL]
    x = layer_norm(x, table["norm"], epsilon, config.norm)
    if "projection" in table:
        x = linear(x, table["projection"])

    distances_RD = params["relative"]["embedding"] if "relative" in params else None
    if "relative_norm" in params:
        distances_RD = layer_norm(distances_RD, params["relative_norm"], epsilon)

    def norm(x, params):
        return layer_norm(x, params, epsilon, config.norm)

    def apply(index, x, query):
        layer, mask = take_layer(params["layers"], index), keep(index, x) if keep else None
        is_local = config.window is not None and (config.global_every is None or index % config.global_every > 0)
        base = (config.rotary_base_local or config.rotary_base) if is_local else config.rotary_base
        turning = {"turn": lambda x: rotated(x, order_BL, base)} if config.positions == "rotary" else {}
        local = {"window": config.window if is_local else None, "norm": norm}

        def mix(x, query):
            return attention(
                x,
                layer["attention"],
                segments_BL,
                bias_BHQK,
                query,
                distances_RD,
                config.relative,
                mask,
                **turning,
                **local,
            )

        def wide(x):
            inner = linear(x, layer["feedforward_in"])
            inner = gelu(inner) if config.activation == "gelu" else inner / (1 + np.exp(-inner))
            if "feedforward_gate" in layer:
                inner = inner * linear(x, layer["feedforward_gate"])
            return linear(inner, layer["feedforward_out"])

        if config.norm_position == "pre":
            normed = x if index == 0 and not config.first_norm else norm(x, layer["attention_norm"])
            mixed, weights = mix(normed, normed)
            y = x + mixed
            return y + wide(norm(y, layer["feedforward_norm"])), weights
        mixed, weights = mix(x, query)
        y = norm(query + mixed, layer["attention_norm"])
        return norm(y + wide(y), layer["feedforward_norm"]), weights

    all_weights = []
    for index in range(len(params["layers"]["feedforward_in"]["kernel"])):
        before = x
        x, weights = apply(index, before, before)
        if index == 0 and "convolution" in params:
            beside = convolve(before, params["convolution"], segments_BL, config.convolution_activation)
            x = norm(x + beside, params["convolution_norm"])
        all_weights.append(weights)
    if "final_norm" in params:
        x = norm(x, params["final_norm"])
    decoded = x
    if config.mask_decoder_passes:
        decoded = before + table["position"]["embedding"][places_BL]
        for _ in range(config.mask_decoder_passes):
            decoded, _ = apply(index, before, decoded)
    return x, decoded, np.stack(all_weights)


def encode(params, batch, config, **ports):
    """Return the hidden states and `attention_NBHQK` of an encoder."""
    x, _, weights = encode_and_decode(params, batch, config, **ports)
    return x, weights


def take_layer(tree, index):
    """Return one layer's parameters from parameters with a leading layer axis."""
    return {k: take_layer(v, index) if isinstance(v, dict) else v[index] for k, v in tree.items()}


def predict(params, batch, config, **ports):
    """Return the word logits `BMV`, next-sentence logits `B2` and `attention_NBHQK` of the pre-training model."""
    x, decoded, weights = encode_and_decode(params["encoder"], batch, config, **ports)
    at_masks = np.stack([row[places] for row, places in zip(decoded, batch["masked_positions"], strict=True)])
    head = params["word_head"]
    at_masks = gelu(linear(at_masks, head["dense"]))
    at_masks = layer_norm(at_masks, head["norm"], config.layer_norm_epsilon, config.norm)
    words = at_masks @ params["encoder"]["embeddings"]["word"]["embedding"].T + head["bias"]
    following = linear(np.tanh(linear(x[:, 0], params["next_head"]["pooler"])), params["next_head"]["classifier"])
    return words, following, weights
