"""The divergence of two passes of a model, D[p(y|x), p(y|x, attack)], and objectives that add it to their loss.

With p = softmax(a) of the clean pass and q = softmax(b) of the other one,

    one_way     KL(p || q)                              (Wu et al. 2022, equation 6)
    symmetric   1/2 [KL(p || q) + KL(q || p)]           (its released code)

Shape letters: B batch, C classes, L length, M positions of a row, D width, V vocabulary.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ag_jax.models.encoder import Batch
from ag_jax.models.masked_lm import word_scores
from ag_jax.objectives.base import Outputs, Terms, WeightedSum, Wrapper
from ag_jax.objectives.config import DivergenceConfig
from ag_jax.objectives.losses import cross_entropy
from ag_jax.objectives.predictions import (
    Prediction,
    PredictionWeights,
    ScoredWords,
    Values,
    WordDistributions,
    WordLabels,
    YesNo,
)
from ag_jax.objectives.word_loss import over_chunks, over_slots

_SECOND_PASS = 0x5A  # purpose of random keys: a second pass with dropout of its own


def divergence(clean: Prediction, other: Any, weights: PredictionWeights, config: DivergenceConfig) -> Array:
    """Return the divergence between the predictions of two passes, as a weighted sum over examples or tokens.

    Divided by `total_weight`, the sum is a mean. It is at least 0, and 0 if and only if both predictions are equal.
    Squared error for numbers, averaged over the components of a vector. Words must be of one model: embeddings and bias
    are taken from `other`, and get the gradient of both passes.
    """
    if isinstance(clean, ScoredWords):
        return clean.divergence
    if isinstance(clean, WordDistributions):
        arrays = clean.hidden_BMD, other.hidden_BMD, other.embedding_VD, other.bias_V, weights.elements
        return _word_divergence(config, *arrays)
    if isinstance(clean, YesNo):
        return _categorical(config, _two_classes(clean.logits), _two_classes(other.logits), weights.elements)
    if isinstance(clean, Values):
        measure = _across_batch if config.legacy and weights.elements.ndim == 1 else _squares
        return measure(config, clean.values, other.values, weights.elements)
    elements = weights.elements
    if config.legacy and weights.rows_B is not None:
        elements = jnp.broadcast_to(weights.rows_B[:, None], elements.shape)
    return _categorical(config, clean.logits, other.logits, elements)


def total_weight(weights: PredictionWeights, config: DivergenceConfig) -> Array:
    """Return the divisor that turns the sum from `divergence` into a mean: the sum of the weights.

    With `config.legacy`, it is the number of examples if `weights` has `rows_B`.
    """
    return (weights.elements if weights.rows_B is None or not config.legacy else weights.rows_B).sum()


def independent_rngs(rngs: dict[str, Array]) -> dict[str, Array]:
    """Return random keys for a second pass, derived from the first pass's, that make its dropout independent."""
    # All keys, not only that of dropout: a second pass draws no samples, it reads those of the first one.
    return {name: jax.random.fold_in(key, _SECOND_PASS) for name, key in rngs.items()}


@dataclasses.dataclass(frozen=True)
class SecondPass(Wrapper):
    """Base class of objectives that add to a wrapped objective's loss the divergence of a clean and a disturbed pass.

    The loss is L_inner + coefficient(step) * D, with L_inner the loss of the wrapped objective. D is
    the divergence of the predictions of a clean pass from those of a second pass in which the model is disturbed.

    A subclass runs the second pass in its `forward`, adds it with `with_second_pass`, and defines `distance`. There is
    a term for each prediction of the inner objective: `NAME` for `task`, `NAME_nsp`, `NAME_sentence`, NAME being the
    field `term`. Means are taken as in the inner objective's loss. Without a second pass, as in an evaluation, all
    terms are the inner objective's.
    """

    term: str

    def distance(self, clean: Prediction, other: Prediction, weights: PredictionWeights) -> Array:
        """Return the divergence between the predictions of two passes, as a weighted sum over examples or tokens.

        clean, other: the prediction in the clean and in the second pass.
        weights: of the examples or tokens.
        """
        raise NotImplementedError

    def total_weight(self, weights: PredictionWeights) -> Array:
        """Return the divisor that turns the sum from `distance` into a mean: the sum of the weights."""
        return total_weight(weights, DivergenceConfig())

    def coefficient_at(self, step: Array) -> Array:
        """Return the factor of the divergence in the loss at a training step."""
        raise NotImplementedError

    def term_of(self, prediction: str) -> str:
        """Return the name of the loss term that compares the named prediction between the clean and the second pass."""
        return self.term if prediction == "task" else f"{self.term}_{prediction}"

    def normalizers(self, batch: Batch) -> dict[str, Array]:
        """Return {name of a loss term: its divisor}, for the wrapped objective's terms and the divergence's terms."""
        weights = self.prediction_weights(batch)
        divisors = {self.term_of(name): self.total_weight(weights[name]) for name in self.prediction_names}
        return self.inner.normalizers(batch) | divisors

    def coefficients(self, step: Array) -> dict[str, Array]:
        """Return {name of a loss term: its factor}, for the wrapped objective's terms and the divergence's terms."""
        coefficient = self.coefficient_at(step)
        return self.inner.coefficients(step) | {self.term_of(name): coefficient for name in self.prediction_names}

    @property
    def word_divergence(self) -> DivergenceConfig | None:
        """Settings of the divergence if `distance` computes it by the function `divergence`; None if it does not."""
        return None

    def loss_of(
        self, outputs: Outputs, batch: Batch, factors: dict[str, Array]
    ) -> tuple[Array, dict[str, WeightedSum]]:
        """Return (loss, metrics), computed from the outputs of the clean and the second pass.

        Where both passes predict words, the scores of the clean pass are computed once for the loss and for D.
        """
        other, words = outputs.second_passes.get(self.term), self.word_labels(batch)
        if other is None or words is None or self.word_divergence is None:
            return super().loss_of(outputs, batch, factors)
        pair = outputs.predictions["task"], other.predictions["task"]
        joint, scored = joint_words(self.word_divergence, *pair, words, factors[words.term], factors[self.term])
        scored_outputs = dataclasses.replace(outputs, predictions=outputs.predictions | {"task": scored})
        loss, metrics = super().loss_of(scored_outputs, batch, factors)
        # The loss has the value of `joint` already, but not its gradient.
        return loss + joint - jax.lax.stop_gradient(joint), metrics

    def with_second_pass(self, outputs: Outputs, other: Outputs) -> Outputs:
        """Return the clean pass's `outputs` with `other`, the second pass's outputs, in the field `second_passes`."""
        return dataclasses.replace(outputs, second_passes=outputs.second_passes | {self.term: other})

    def terms(self, outputs: Outputs, batch: Batch) -> Terms:
        """Return {loss term: batch sum} and {metric: (sum, weight)} of the wrapped objective and of the divergence.

        For each prediction, the divergence D of both passes is a loss term and the metric `TERM_loss`. Metrics of the
        second pass are added.
        """
        losses, metrics = self.inner.terms(outputs, batch)
        other = outputs.second_passes.get(self.term)
        if other is None:
            return Terms(losses, metrics)
        weights = self.prediction_weights(batch)
        for name in self.prediction_names:
            total = self.distance(outputs.predictions[name], other.predictions[name], weights[name])
            losses[self.term_of(name)] = total
            metrics[f"{self.term_of(name)}_loss"] = (total, self.total_weight(weights[name]))
        return Terms(losses, metrics | other.metrics)


def _two_classes(logits: Array) -> Array:
    return jnp.stack([logits, jnp.zeros_like(logits)], axis=-1)


def _one_or_both_ways(config: DivergenceConfig, one_way, clean: Array, other: Array) -> Array:
    """Return the one-way divergence of `clean` and `other`, or, with `form=symmetric`, the mean of both directions.

    one_way: (target, judged) -> divergence of each element; gradients are stopped as `stop_gradient` says.
    """
    if config.stop_gradient == "clean":
        clean = jax.lax.stop_gradient(clean)
    target = jax.lax.stop_gradient if config.stop_gradient == "targets" else lambda array: array
    forth = one_way(target(clean), other)
    return forth if config.form == "one_way" else (forth + one_way(target(other), clean)) / 2


def _categorical(config: DivergenceConfig, clean: Array, other: Array, weights: Array) -> Array:
    def kl(target: Array, judged: Array) -> Array:
        log_target = jax.nn.log_softmax(target)
        return (jnp.exp(log_target) * (log_target - jax.nn.log_softmax(judged))).sum(-1)

    return (weights * _one_or_both_ways(config, kl, clean, other)).sum()


def _squares(config: DivergenceConfig, clean: Array, other: Array, weights: Array) -> Array:
    def error(target: Array, judged: Array) -> Array:
        squares = jnp.square(target - judged)
        return squares.mean(-1) if squares.ndim > weights.ndim else squares

    return (weights * _one_or_both_ways(config, error, clean, other)).sum()


def _across_batch(config: DivergenceConfig, clean_B: Array, other_B: Array, weights_B: Array) -> Array:
    """Return the divergence between two passes' predicted numbers, after a softmax over the batch in each pass.

    Only with `legacy`, as in the released code. Examples of weight 0 get no probability.
    """
    clean_1B, other_1B = (jnp.where(weights_B > 0, values, -1e9)[None] for values in (clean_B, other_B))
    return _categorical(config, clean_1B, other_1B, jnp.ones(1))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _word_divergence(
    config: DivergenceConfig, clean_BMD: Array, other_BMD: Array, embedding_VD: Array, bias_V: Array, weights_BM: Array
) -> Array:
    """Return the divergence between two passes' word distributions, a sum over masked positions with `weights_BM`.

    It is computed a few positions at a time: the scores of all words at all positions are never in memory at once.
    Gradients are computed in the forward pass, as in `word_loss`.
    """

    def add(total: Array, chunk: tuple) -> tuple[Array, None]:
        clean, other, weights = chunk
        clean_BMV, other_BMV = (word_scores(hidden, embedding_VD, bias_V) for hidden in (clean, other))
        return total + _categorical(config, clean_BMV, other_BMV, weights), None

    return over_chunks(add, jnp.float32(0), (clean_BMD, other_BMD, weights_BM))[0]


def _word_divergence_forward(config: DivergenceConfig, clean_BMD, other_BMD, embedding_VD, bias_V, weights_BM):
    def add(sums: tuple, chunk: tuple):
        clean, other, weights = chunk
        scores = [word_scores(hidden, embedding_VD, bias_V) for hidden in (clean, other)]
        divergence_sum, pull_back = jax.vjp(lambda p, q: _categorical(config, p, q, weights), *scores)
        d_words, d_hiddens = _gradients(pull_back(jnp.float32(1)), (clean, other), embedding_VD)
        return jax.tree.map(jnp.add, sums, (divergence_sum, *d_words)), d_hiddens

    zeros = (jnp.float32(0), jnp.zeros(embedding_VD.shape[::-1], jnp.float32), jnp.zeros_like(bias_V))
    sums, d_hiddens = over_chunks(add, zeros, (clean_BMD, other_BMD, weights_BM))
    total, d_embedding_DV, d_bias_V = sums
    # An array without elements, for its type alone.
    return total, (*d_hiddens, d_embedding_DV.T, d_bias_V, embedding_VD[:0])


def _gradients(
    d_scores_BMV: Sequence[Array], hiddens_BMD: Sequence[Array], embedding_VD: Array
) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
    """Return gradients ((of embeddings, of bias), of each pass's hidden states) from those of each pass's word scores.

    d_scores_BMV: the gradient of the word scores of each pass.
    """
    d_embedding_DV, d_bias_V, d_hiddens = jnp.float32(0), jnp.float32(0), []
    for d_scores, hidden in zip(d_scores_BMV, hiddens_BMD, strict=True):
        narrow = d_scores.astype(hidden.dtype)
        d_embedding_DV += jnp.einsum("bmd,bmv->dv", hidden, narrow, preferred_element_type=jnp.float32)
        d_bias_V += d_scores.sum((0, 1))
        d_hidden = jnp.einsum("bmv,vd->bmd", narrow, embedding_VD, preferred_element_type=jnp.float32)
        d_hiddens.append(d_hidden.astype(hidden.dtype))
    return (d_embedding_DV, d_bias_V), tuple(d_hiddens)


def _word_divergence_backward(config: DivergenceConfig, residuals: tuple, factor: Array):
    *gradients, like = residuals
    d_clean, d_other, d_embedding_VD, d_bias_V = ((factor * gradient).astype(gradient.dtype) for gradient in gradients)
    return d_clean, d_other, d_embedding_VD.astype(like.dtype), d_bias_V, None


_word_divergence.defvjp(_word_divergence_forward, _word_divergence_backward)


def joint_words(
    config: DivergenceConfig,
    clean: WordDistributions,
    other: WordDistributions,
    words: WordLabels,
    loss_factor: Array,
    divergence_factor: Array,
) -> tuple[Array, ScoredWords]:
    """Return (factor-weighted sum of word loss and divergence, the sums of loss, right predictions and divergence).

    The first value is loss_factor * `word_loss` + divergence_factor * `divergence`. It has a gradient, the sums of
    loss, right predictions and divergence have none. Scores of all words are products with the embeddings: this
    function computes them once for each pass and their gradients with two products more, six in all, where the two
    functions need nine.

    config: settings of the divergence.
    clean, other: the words that the two passes predict.
    words: labels and weights of the clean pass, whose weights are also those of the divergence.
    """
    joint, sums = _joint_words(
        config,
        words.group_rows,
        *(clean.hidden_BMD, other.hidden_BMD, clean.embedding_VD, clean.bias_V, words.labels_BM, words.weights_BM),
        jnp.stack([loss_factor, divergence_factor]),
    )
    return joint, ScoredWords(*jax.lax.stop_gradient(sums))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _joint_words(
    config: DivergenceConfig,
    group_rows: int,
    clean_BMD: Array,
    other_BMD: Array,
    embedding_VD: Array,
    bias_V: Array,
    labels_BM: Array,
    weights_BM: Array,
    factors_2: Array,
) -> tuple[Array, tuple[Array, Array, Array]]:
    """Return (factor-weighted sum of word loss and divergence, (word loss, right predictions, divergence)).

    The first is factors_2[0] * loss + factors_2[1] * divergence; the sums are loss, right predictions and divergence.

    The gradient is computed in the forward pass, as in `word_loss`, so the factors must be known there.
    """

    def add(sums: tuple, chunk: tuple) -> tuple[Any, None]:
        clean, other, labels, weights = chunk
        clean_BMV, other_BMV = (word_scores(hidden, embedding_VD, bias_V) for hidden in (clean, other))
        chunk_sums = (*cross_entropy(clean_BMV, labels, weights), _categorical(config, clean_BMV, other_BMV, weights))
        return jax.tree.map(jnp.add, sums, chunk_sums), None

    sums = over_slots(add, (jnp.float32(0),) * 3, (clean_BMD, other_BMD, labels_BM, weights_BM), group_rows)[0]
    return factors_2[0] * sums[0] + factors_2[1] * sums[2], sums


def _joint_words_forward(
    config, group_rows, clean_BMD, other_BMD, embedding_VD, bias_V, labels_BM, weights_BM, factors_2
):
    def add(sums: tuple, chunk: tuple) -> tuple[Any, Any]:
        clean, other, labels, weights = chunk
        scores = [word_scores(hidden, embedding_VD, bias_V) for hidden in (clean, other)]
        loss, correct = cross_entropy(scores[0], labels, weights)
        divergence_sum, pull_back = jax.vjp(lambda p, q: _categorical(config, p, q, weights), *scores)
        d_clean_BMV, d_other_BMV = pull_back(factors_2[1])
        # By hand, because the automatic gradient would scatter into an array of all scores.
        is_label = labels[..., None] == jnp.arange(scores[0].shape[-1])[None, None, :]
        d_clean_BMV += factors_2[0] * weights[..., None] * (jax.nn.softmax(scores[0]) - is_label)
        d_words, d_hiddens = _gradients((d_clean_BMV, d_other_BMV), (clean, other), embedding_VD)
        return jax.tree.map(jnp.add, sums, ((loss, correct, divergence_sum), *d_words)), d_hiddens

    zeros = ((jnp.float32(0),) * 3, jnp.zeros(embedding_VD.shape[::-1], jnp.float32), jnp.zeros_like(bias_V))
    sums, d_hiddens = over_slots(add, zeros, (clean_BMD, other_BMD, labels_BM, weights_BM), group_rows)
    totals, d_embedding_DV, d_bias_V = sums
    joint = factors_2[0] * totals[0] + factors_2[1] * totals[2]
    # An array without elements, for its type alone.
    return (joint, totals), (*d_hiddens, d_embedding_DV.T, d_bias_V, embedding_VD[:0])


def _joint_words_backward(config: DivergenceConfig, group_rows: int, residuals: tuple, cotangents: tuple):
    del group_rows
    gradients = _word_divergence_backward(config, residuals, cotangents[0])
    return *gradients[:4], None, None, None


_joint_words.defvjp(_joint_words_forward, _joint_words_backward)
