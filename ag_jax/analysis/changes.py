"""How far attention maps change under the attack that a model was trained against (Wu et al. 2022, section 5.2).

The change of a row of attention p to q is their Jensen-Shannon divergence (Lin 1991), with logarithms of base 2:

    JSD(p, q) = 1/2 sum p log2(p / m) + 1/2 sum q log2(q / m),    m = (p + q) / 2

It is symmetric, 0 for equal rows and 1 for rows without a common column. Adversarial self-attention masks attention;
FreeLB, SMART and SiFT perturb embeddings, by which attention changes, too. Every attack is made as in a training step,
from the gradient of the trained objective, but without dropout, so that nothing else changes the maps.

Shape letters: N layers, B batch, H heads, L length, Q query position, K key position.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ag_jax.analysis import maps, words
from ag_jax.analysis.maps import AttentionMaps, EncoderModel
from ag_jax.analysis.tables import Table
from ag_jax.data.tokenizers import Tokenizer
from ag_jax.models import encoder
from ag_jax.models.config import EncoderConfig
from ag_jax.models.encoder import Batch
from ag_jax.models.one_line import one_line
from ag_jax.objectives.adversarial.config import NAIVE, AdversarialConfig
from ag_jax.objectives.base import Objective

EXPLAINED = (
    "Jensen-Shannon divergence (base 2, from 0 to 1) of attention without and with the attack, mean over heads and "
    "tokens"
)


@dataclasses.dataclass(frozen=True)
class AttackedModel:
    """A trained model and the training objective that repeats the adversarial attack of one of its training steps.

    objective: the training objective with the attack, of a model without dropout (`without_dropout`).
    model: the model whose attention is looked at.
    params: the parameters of the model, and those of an adversary.
    step: the training step whose attack is made.
    """

    objective: Objective
    model: EncoderModel
    params: Any
    step: int

    __repr__ = one_line


@dataclasses.dataclass(frozen=True)
class AttackSetup:
    """What an attack on attention to one text needs: a model, its attack, and a function that makes a batch.

    attacked: the model and its objective.
    method: name of the attack, as in `adversarial.method`.
    note: what differs from a training step or from the text, for people; empty if nothing does.
    make_batch: token ids of the text -> a batch with this text, and the labels that the objective needs.
    """

    attacked: AttackedModel
    method: str
    note: str
    make_batch: Callable[[np.ndarray], dict[str, Any]]

    __repr__ = one_line


class AttackedText(NamedTuple):
    """Attention maps of a text without and with an attack, how far each layer changed, and the masked pairs.

    plain, attacked: the maps without and with the attack.
    change_N: the change of each layer, `N`.
    masked_NHQK: which cells the attack masked, where the axis H has the length 1 if all heads share a mask; None for an
        attack that masks nothing.
    """

    plain: AttentionMaps
    attacked: AttentionMaps
    change_N: np.ndarray
    masked_NHQK: np.ndarray | None = None


def without_dropout(config: EncoderConfig) -> EncoderConfig:
    """Return the config of an encoder with dropout rates of 0."""
    return dataclasses.replace(config, dropout=0.0, attention_dropout=0.0)


def begun(config: AdversarialConfig) -> AdversarialConfig:
    """Return an attack's settings with `freelb.begin_step` = 0, so that FreeLB perturbs from the first step on."""
    return dataclasses.replace(config, freelb=dataclasses.replace(config.freelb, begin_step=0))


def unsupported_reason(config: AdversarialConfig) -> str | None:
    """Return why the change of attention under a model's attack cannot be measured; None if it can."""
    if config.method == "none":
        return "the model was trained without an attack"
    if config.method in NAIVE:
        return f"the masks of method={config.method} are drawn by a rule, without an adversary that looks for the worst"
    if config.method == "r_drop":
        return "method=r_drop has no attack: its two passes differ in their dropout"
    return None


def jensen_shannon(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the Jensen-Shannon divergence (base-2 logarithms) of the distributions on two arrays' last axes.

    It is 0 if they are equal, and 1 if they have no common support.
    """
    first, second = (np.asarray(rows, np.float64) for rows in (first, second))
    middle = (first + second) / 2
    total = np.zeros(first.shape[:-1])
    for rows in (first, second):
        # 0 log 0 is 0. The middle is 0 only where both are, or where halving the smallest number gives 0.
        ratio = np.divide(rows, middle, out=np.ones_like(rows), where=(rows > 0) & (middle > 0))
        total += (rows * np.log2(ratio)).sum(-1) / 2
    return np.clip(total, 0.0, 1.0)  # rounding may leave the interval


def change(plain_NBHQK: np.ndarray, attacked_NBHQK: np.ndarray, segments_BL: np.ndarray) -> np.ndarray:
    """Return each layer's Jensen-Shannon divergence of plain and attacked attention, a mean over heads and queries.

    segments_BL: 0 on padding, whose rows are left out.
    """
    divergence_NBHQ = jensen_shannon(plain_NBHQK, attacked_NBHQK)
    return divergence_NBHQ.mean(2)[:, segments_BL > 0].mean(1)


def mean_change(attacked: AttackedModel, batches: Iterable[dict[str, Any]]) -> np.ndarray:
    """Return how far an attack changes each layer's attention (`change`), averaged over batches: an array `N`.

    batches: of the objective, each with one example, so that all examples count the same.
    """
    changes = []
    for number, batch in enumerate(batches):
        plain_NBHQK, attacked_NBHQK, _, rows = _both(attacked, batch, number)
        changes.append(change(plain_NBHQK, attacked_NBHQK, np.asarray(rows["segment_ids"])))
    return np.mean(changes, axis=0)


def attacked_text(attack: AttackSetup, tokenizer: Tokenizer, text: AttentionMaps) -> AttackedText:
    """Return a text's attention maps without and with an attack, and how far each layer changed.

    text: maps of the text.
    """
    plain_NBHQK, attacked_NBHQK, masked_NBHQK, rows = _both(attack.attacked, attack.make_batch(text.ids_L), 0)
    (ids_L,) = np.asarray(rows["tokens"])
    tokens = tuple(tokenizer.tokens(ids_L.tolist()))
    more: dict[str, Any] = {
        "model": text.model,
        "windows": attack.attacked.model.config.windows,
        "words": words.renamed(text.words, tokens, ids_L != text.ids_L),
    }
    plain, attacked = (
        AttentionMaps(tokens, ids_L, weights_NBHQK[:, 0], text.left_out, **more)
        for weights_NBHQK in (plain_NBHQK, attacked_NBHQK)
    )
    masked_NHQK = None if masked_NBHQK is None else masked_NBHQK[:, 0]
    change_N = change(plain_NBHQK, attacked_NBHQK, np.asarray(rows["segment_ids"]))
    return AttackedText(plain, attacked, change_N, masked_NHQK)


def _both(
    attacked: AttackedModel, batch: dict[str, Any], number: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, Batch]:
    """Return (attention weights without the attack, with it, masked pairs or None without a mask, encoder's batch).

    The first three are arrays `NBHQK`; for masked pairs see `maps.Attention`.

    number: of the batch; random initial perturbations are a function of it.
    """
    key = jax.random.fold_in(jax.random.key(0), number)
    step = jnp.int32(attacked.step)
    plain_NBHQK, (attacked_NBHQK, masked_NBHQK), rows = _passes(
        attacked.objective, attacked.model, attacked.params, batch, key, step
    )
    masked = None if masked_NBHQK is None else np.asarray(masked_NBHQK)
    return np.asarray(plain_NBHQK), np.asarray(attacked_NBHQK), masked, rows


@functools.partial(jax.jit, static_argnames=("objective", "model"))
def _passes(
    objective: Objective, model: EncoderModel, params: Any, batch: Batch, key: jax.Array, step: jax.Array
) -> tuple[jax.Array, maps.Attention, Batch]:
    attacked = objective.attacked_pass(params, batch, {"dropout": key}, step)
    if attacked is None:
        raise ValueError(f"{type(objective).__name__} has no attack: expected the objective of an attacked model")
    rows = encoder.rows(attacked.encoder_batch)
    plain_NBHQK = maps.attention_weights(model, params, rows, attacked.clean)
    return plain_NBHQK, maps.attention(model, params, rows, attacked.attacked), rows


def change_table(change_N: np.ndarray, method: str) -> str:
    """Return a printable table of how far the attack `method` changes attention, with a row for each layer."""
    rows = [[str(layer), two_digits(value)] for layer, value in enumerate(change_N)]
    table = Table(["layer", "change"], [*rows, ["mean", two_digits(change_N.mean())]])
    return f"Attack {method}: {EXPLAINED}\n{table.terminal(totals=1)}"


def two_digits(value: float) -> str:
    """Return a divergence with two significant digits, because some attacks change attention by less than 0.001."""
    return f"{value:.2g}"
