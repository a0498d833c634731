"""How much attention lies on the diagonal and on vertical stripes of a layer's map (He et al. 2021, figure 3).

He et al. compare DeBERTa with RoBERTa by looking at the attention of the last layer, where a line along the diagonal
is attention of tokens to themselves, and a stripe is a column to which most tokens attend. Here both are numbers. For
a text of n tokens and the map A, the mean over the heads of a layer, of which every row sums to 1,

    diagonal = 1/n sum_i A_ii
    stripes  = 1/n sum_{j in J} c_j,    c_j = sum_{i != j} A_ij,    J: the k = ceil(n / 20) columns with the largest c_j
    first    = 1/n c_1,                 the stripe on the first token, such as [CLS]

All three are shares of all attention. The columns leave the diagonal out, so that no attention is counted twice:
diagonal + stripes is at most 1, and attention to oneself makes no stripe. k grows with n, so that the level of chance
hardly depends on the length: with uniform attention the shares are 1/n, k (n - 1) / n^2 (about 1/20) and (n - 1) / n^2.
In a layer with a window, uniform attention is that to the tokens in the window, so its diagonal has a larger share.

Shape letters: N layers, B batch, H heads, L length, Q query position, K key position.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ag_jax.analysis import maps
from ag_jax.analysis.maps import AttentionMaps, EncoderModel, chance_labels
from ag_jax.analysis.tables import Table
from ag_jax.attention.visibility import band_of
from ag_jax.models import encoder
from ag_jax.models.encoder import Ports

TOKENS_OF_A_STRIPE = 20  # a text has a stripe for so many tokens, and for the rest of a division
LABELS = {"diagonal": "diagonal", "stripes": "stripes", "first": "first token"}


class Shares(NamedTuple):
    """Shares of attention on the diagonal, on stripes (heaviest columns) and on the first token, by layer.

    diagonal: share on the diagonal, `N`.
    stripes: share on the heaviest columns, without the diagonal, `N`.
    first: share on the first column, without the diagonal, `N`.
    """

    diagonal: np.ndarray
    stripes: np.ndarray
    first: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Measured:
    """A model's shares of attention (diagonal, stripes, first token) over several texts, and those by chance.

    found: the shares of a model.
    uniform: of attention to the same texts that is uniform over what a layer sees.
    texts: number of texts.
    """

    found: Shares
    uniform: Shares
    texts: int


def stripe_count(tokens: int) -> int:
    """Return k, the number of columns that count as stripes in a text with this number of tokens."""
    return -(-tokens // TOKENS_OF_A_STRIPE)


def shares(maps_NQK: np.ndarray) -> Shares:
    """Return the shares of attention on the diagonal, on stripes (heaviest columns) and on the first token, by layer.

    maps_NQK: map of each layer, a mean over heads, for one text without padding; rows and columns are the same tokens.
    """
    tokens = maps_NQK.shape[-1]
    weights_NQK = maps_NQK.astype(np.float64)
    diagonal_NK = np.diagonal(weights_NQK, axis1=1, axis2=2)
    columns_NK = weights_NQK.sum(1) - diagonal_NK
    largest_NK = np.sort(columns_NK, axis=-1)[:, tokens - stripe_count(tokens) :]
    return Shares(diagonal_NK.sum(-1) / tokens, largest_NK.sum(-1) / tokens, columns_NK[:, 0] / tokens)


def uniform_shares(tokens: int, windows: Sequence[int | None] = (None,)) -> Shares:
    """Return chance levels by layer: the shares of attention that is uniform over the tokens a layer sees.

    windows: for each layer, the window to which its attention is limited, None for a layer that sees all tokens.
    """
    query_Q1, key_1K = np.arange(tokens)[:, None], np.arange(tokens)[None, :]
    by_window = {}
    for window in {*windows}:
        visible_QK = np.broadcast_to(band_of(False, window).contains(query_Q1, key_1K), (tokens, tokens))
        by_window[window] = shares((visible_QK / visible_QK.sum(-1, keepdims=True))[None])
    return Shares(*map(np.concatenate, zip(*(by_window[window] for window in windows), strict=True)))


def shares_of_texts(model: EncoderModel, params: Any, batch: dict[str, Any]) -> Measured:
    """Return a model's attention shares on diagonal, stripes and first token, averaged over a batch's texts.

    Computed without dropout. Texts that share a row count separately, and padding does not count.

    batch: token ids without corruption in `tokens`, and the other fields that an encoder reads (`encoder.rows`).
    """
    shares_of_model, uniform = [], []
    for maps_NQK in _mean_maps(model, params, batch):
        shares_of_model.append(shares(maps_NQK))
        uniform.append(uniform_shares(maps_NQK.shape[-1], model.config.windows))
    return Measured(_mean(shares_of_model), _mean(uniform), len(shares_of_model))


def _mean_maps(model: EncoderModel, params: Any, batch: dict[str, Any]) -> Iterator[np.ndarray]:
    """Yield each text's attention maps, averaged over the heads of a layer: `NQK` (layer, query, key)."""
    rows = encoder.rows(batch)
    # Row by row, because the weights of all layers and heads take much memory.
    for row in range(len(rows["tokens"])):
        fields = {name: np.asarray(field[row : row + 1], np.int32) for name, field in rows.items()}
        (segments_L,) = fields["segment_ids"]
        weights_NBHQK = np.asarray(maps.attention_weights(model, params, fields, Ports()))
        mean_NQK = weights_NBHQK[:, 0].mean(1, dtype=np.float64)
        for segment in np.unique(segments_L[segments_L > 0]):
            inside_L = np.flatnonzero(segments_L == segment)
            yield mean_NQK[:, inside_L][:, :, inside_L]


def _mean(of_texts: Sequence[Shares]) -> Shares:
    return Shares(*(np.mean(values, axis=0) for values in zip(*of_texts, strict=True)))


def shares_table(attention: AttentionMaps) -> str:
    """Return a printable table of the shares of attention on the diagonal and on stripes, with a row for each layer.

    The share on the first token is left out: the table of patterns has one that counts the diagonal, too. The last row
    has the shares of uniform attention. If some layers see only a window, there is such a row for each width of the
    window, with the width in its name.
    """
    by_layer, tokens = shares(attention.weights_NHQK.mean(1, dtype=np.float64)), len(attention.tokens)
    labels, count = chance_labels(attention.window_of_layer), stripe_count(tokens)
    chance = uniform_shares(tokens, tuple(labels))
    shown = [name for name in LABELS if name != "first"]
    columns = [getattr(by_layer, name) for name in shown]
    rows = [[str(layer), *(f"{value:.2f}" for value in of)] for layer, of in enumerate(zip(*columns, strict=True))]
    rows += [
        [label, *(f"{getattr(chance, name)[row]:.2f}" for name in shown)] for row, label in enumerate(labels.values())
    ]
    heaviest = "column" if count == 1 else f"{count} columns"
    header = ["layer", *(LABELS[name] for name in shown)]
    return (
        f"Encoder: attention on the diagonal and on stripes (the heaviest {heaviest}), mean over heads\n"
        f"{Table(header, rows).terminal(totals=len(labels))}"
    )
