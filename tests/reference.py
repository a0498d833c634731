"""Second formulations to test against: explicit loops and float64 numpy, written from the papers alone.

Nothing here imports from `ag_jax`. Shape letters as there: N layers, B batch, H head, Q query, K key, L length,
D width, M masked positions, V vocabulary. `sequences` number the texts of a row from 1 on; padding has 0.
"""

import numpy as np
from scipy import special as functions

DELIMITERS, PERIODS = (0, 2), (5, 9)


def ragged(lengths, length, *, vocabulary=13, seed=0):
    """Random tokens (delimiter first, full stops inside) and their sequences, one text a row, padded on the right."""
    return packed([[n] for n in lengths], length, vocabulary=vocabulary, seed=seed)


def packed(lengths, length, *, vocabulary=13, seed=0):
    """The same with the texts of every row one behind the other; `lengths` are lists of their lengths."""
    rng = np.random.default_rng(seed)
    tokens_BL = rng.integers(3, vocabulary, (len(lengths), length)).astype(np.int32)
    sequences_BL = np.zeros_like(tokens_BL)
    for row, of_row in enumerate(lengths):
        start = 0
        for number, n in enumerate(of_row, 1):
            sequences_BL[row, start : start + n] = number
            tokens_BL[row, start : start + n][-1:] = DELIMITERS[1]
            tokens_BL[row, start : start + n][:1] = DELIMITERS[0]
            start += n
    return np.where(sequences_BL > 0, tokens_BL, 1).astype(np.int32), sequences_BL


def texts(sequences_L):
    """The places of each text of a row."""
    return [np.flatnonzero(sequences_L == number) for number in np.unique(sequences_L) if number > 0]


def text_of(sequences_L, row):
    """The places of the text that `row` is in."""
    return np.flatnonzero(sequences_L == sequences_L[row])


def random_attention(sequences_BL, layers, heads, seed=0, stochastic=True):
    """Attention `NBHQK` that gives padding and other texts nothing; with `stochastic=False` its rows do not sum to 1.

    Rows of padding spread over all tokens.
    """
    rng = np.random.default_rng(seed)
    length = sequences_BL.shape[1]
    scores = 2.0 * rng.standard_normal((layers, len(sequences_BL), heads, length, length))
    apart_BQK = (sequences_BL[:, :, None] > 0) & (sequences_BL[:, :, None] != sequences_BL[:, None, :])
    weights = np.exp(scores) * ((sequences_BL > 0)[:, None, :] & ~apart_BQK)[None, :, None]
    weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-30)
    if not stochastic:
        weights *= (rng.random(weights.shape) > 0.3) / 0.7
    return weights


def dense_pattern(name, tokens_L, sequences_L, boundary="uniform"):
    """P of one row, `QK` in float64: that of each of its texts on its own, and 0 elsewhere."""
    P_QK = np.zeros((len(tokens_L), len(tokens_L)))
    for places in texts(sequences_L):
        P_QK[np.ix_(places, places)] = text_pattern(name, tokens_L[places], boundary)
    return P_QK


def text_pattern(name, tokens_L, boundary):
    """P of one text, cell by cell as in appendix A.2 of Deshpande & Narasimhan 2020; p and q count from 1 to n as there."""
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


def names_a_column(name, tokens_L, sequences_L, row):
    """Whether the pattern names a column for this row of a text: then neither boundary nor absent rule applies."""
    places = text_of(sequences_L, row)
    if name == "next":
        return row != places[-1]
    if name == "prev":
        return row != places[0]
    chosen = {"delim": DELIMITERS, "period": PERIODS}.get(name)
    return chosen is None or any(tokens_L[place] in chosen for place in places)


def guidance_loss(attention_NBHQK, assignment, tokens_BL, sequences_BL, reduction, boundary, absent):
    """L_AG summed over the texts: squared errors to the dense P, one row after the other."""
    total, guided = 0.0, sum(count for _, count in assignment)
    for b, (tokens_L, sequences_L) in enumerate(zip(tokens_BL, sequences_BL)):
        head = 0
        for name, count in assignment:
            P_QK = dense_pattern(name, tokens_L, sequences_L, boundary)
            for _ in range(count):
                for layer in range(len(attention_NBHQK)):
                    for row in np.flatnonzero(sequences_L):
                        n = len(text_of(sequences_L, row))
                        rule = boundary if name in ("next", "prev", "same") else absent
                        if rule == "ignore" and not names_a_column(name, tokens_L, sequences_L, row):
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


def masses(attention_NBHQK, assignment, tokens_BL, sequences_BL):
    """For each pattern, attention on target per layer, summed over heads and rows that have one, and their number."""
    results, head = [], 0
    for name, count in assignment:
        total_N, rows = np.zeros(len(attention_NBHQK)), 0
        for b, (tokens_L, sequences_L) in enumerate(zip(tokens_BL, sequences_BL)):
            P_QK = dense_pattern(name, tokens_L, sequences_L)
            for row in np.flatnonzero(sequences_L):
                if names_a_column(name, tokens_L, sequences_L, row):
                    total_N += attention_NBHQK[:, b, head : head + count, row][:, :, P_QK[row] > 0].sum((1, 2))
                    rows += count
        results.append((total_N, rows))
        head += count
    return results


def layer_norm(x, params, epsilon):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the last axis."""
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon) * params["scale"] + params["bias"]


def gelu(x):
    """x * Phi(x)."""
    return x * 0.5 * (1 + functions.erf(x / np.sqrt(2)))


def linear(x, params):
    """x W + b."""
    return x @ params["kernel"] + params["bias"]


def attention(x_BLD, params, sequences_BL, bias_BHQK=0.0):
    """Output and probabilities of multi-head attention with `kernel`s of shape D x H x W."""
    query, key, value = (
        np.einsum("bld,dhw->bhlw", x_BLD, params[name]["kernel"]) + params[name]["bias"][None, :, None, :]
        for name in ("query", "key", "value")
    )
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1]) + bias_BHQK
    scores = np.where((sequences_BL[:, :, None] == sequences_BL[:, None, :])[:, None], scores, -np.inf)
    weights = functions.softmax(scores, axis=-1)
    mixed = np.einsum("bhqw,hwd->bqd", weights @ value, params["output"]["kernel"])
    return mixed + params["output"]["bias"], weights


def encode(params, batch, *, epsilon, position_offset, delta=0.0, bias_BHQK=0.0):
    """Hidden states and `attention_NBHQK` of a post-norm encoder; `params` in float64 with a leading layer axis."""
    table = params["embeddings"]
    sequences_BL = np.asarray(batch["sequences"])
    positions_BL = np.zeros(sequences_BL.shape, int)
    for row, sequences_L in enumerate(sequences_BL):
        for places in texts(sequences_L):
            positions_BL[row, places] = np.arange(len(places)) + position_offset
    x = table["word"]["embedding"][batch["tokens"]] + delta
    x = x + table["position"]["embedding"][positions_BL] + table["segment"]["embedding"][batch["segments"]]
    x = layer_norm(x, table["norm"], epsilon)
    all_weights = []
    for index in range(len(params["layers"]["feedforward_in"]["bias"])):
        layer = take_layer(params["layers"], index)
        mixed, weights = attention(x, layer["attention"], sequences_BL, bias_BHQK)
        x = layer_norm(x + mixed, layer["attention_norm"], epsilon)
        x = layer_norm(
            x + linear(gelu(linear(x, layer["feedforward_in"])), layer["feedforward_out"]),
            layer["feedforward_norm"],
            epsilon,
        )
        all_weights.append(weights)
    return x, np.stack(all_weights)


def take_layer(tree, index):
    """One layer's parameters out of the stack."""
    return {k: take_layer(v, index) if isinstance(v, dict) else v[index] for k, v in tree.items()}


def predict(params, batch, *, epsilon, position_offset, **ports):
    """Word logits `BMV`, next-sentence logits `B2` and `attention_NBHQK` of the pre-training model."""
    x, weights = encode(params["encoder"], batch, epsilon=epsilon, position_offset=position_offset, **ports)
    at_masks = np.stack([row[places] for row, places in zip(x, batch["masked_positions"])])
    head = params["word_head"]
    at_masks = layer_norm(gelu(linear(at_masks, head["dense"])), head["norm"], epsilon)
    words = at_masks @ params["encoder"]["embeddings"]["word"]["embedding"].T + head["bias"]
    following = linear(np.tanh(linear(x[:, 0], params["next_head"]["pooler"])), params["next_head"]["classifier"])
    return words, following, weights
