"""Optimizers: AdamW, StableAdamW, Lion and Muon, and a separate AdamW for an adversary's parameters.

Shape letters of parameters: N layers, D features, H heads, W width of a head, F features of a feed-forward layer.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from ag_jax.attention.adversary import ADVERSARY
from ag_jax.training import schedules
from ag_jax.training.config import OptimizerConfig

MUON, OTHERS = "muon", "others"
# Decay rate of the gradient's running mean in Muon, with Nesterov's correction (Jordan et al. 2024).
MUON_MOMENTUM = 0.95
# Root mean square of the entries of a Muon update (Liu et al. 2025, section 2.2): about that of AdamW's late in
# training. In the first steps those of AdamW's query and key kernels have .6, and their spectral norm is 20 times as
# large as Muon's (measured on the quickstart).
MUON_RMS = 0.2
# Modules whose kernels make queries and keys.
ATTENTION = ("query", "key", "relative_query", "relative_key")


def learning_rate_schedule(config: OptimizerConfig, total_steps: int) -> optax.Schedule:
    """Return the learning-rate schedule of a run of `total_steps` steps (`schedules.learning_rate`).

    Learning rate and warm-up may be traced arrays (`Hyperparameters`).
    """
    return schedules.learning_rate(
        config.learning_rate,
        config.warmup_steps,
        total_steps,
        decay=config.decay,
        decay_steps=config.decay_steps,
        final_share=config.final_share,
    )


def decays(params: Any) -> Any:
    """Return a tree of booleans: true for the parameters with weight decay, which are kernels and embeddings."""

    def decayed(path, _) -> bool:
        return path[-1].key in ("kernel", "embedding")

    return jax.tree_util.tree_map_with_path(decayed, params)


@dataclasses.dataclass(frozen=True)
class AdversaryOptimizer:
    """Settings of the separate optimizer for an adversary's parameters, which may start after the model's.

    config: its settings; warm-up and decay are counted from step `delay`.
    delay: number of steps before the first update of these parameters.
    """

    config: OptimizerConfig
    delay: int = 0

    def transformation(self, total_steps: int) -> optax.GradientTransformation:
        """Return the adversary's optax optimizer, whose first update and schedule start at step `delay`."""
        chain = _chain(self.config, max(total_steps - self.delay, 1))
        return optax.conditionally_mask(chain, lambda step: step >= self.delay) if self.delay else chain


def make_optimizer(
    config: OptimizerConfig, total_steps: int, adversary: AdversaryOptimizer | None = None
) -> optax.GradientTransformation:
    """Return the optax optimizer: gradient clipping, then AdamW, Lion or Muon with its schedule.

    adversary: optimizer of the parameters under `ADVERSARY`, if there are any; their gradients are clipped separately.
    """
    model = _chain(config, total_steps)
    if adversary is None:
        return model
    return optax.partition({"model": model, ADVERSARY: adversary.transformation(total_steps)}, _groups)


def _groups(params: Any) -> Any:
    """Return {top-level entry of the parameters: label for `optax.partition`}, the label "model" or `ADVERSARY`."""
    if not isinstance(params, dict):  # `tree_map_params` passes one object in place of all parameters
        return "model"
    return {name: ADVERSARY if name == ADVERSARY else "model" for name in params}


def matrix_axes(path: tuple[Any, ...], parameter: Any) -> MuonDimensionNumbers | None:
    """Return the input and output axes by which Muon treats a kernel as a matrix; None for other parameters.

    The kernels of a stack of layers are the matrices of Muon: query, key and value `NDHW` are D x (H W) in each layer,
    the output projection of attention `NHWD` is (H W) x D, and feed-forward layers are `NDF` and `NFD`.

    path: keys of the parameter in its tree.
    """
    names = [key.key for key in path]
    if "layers" not in names or names[-1] != "kernel":
        return None
    if parameter.ndim == 3:
        return MuonDimensionNumbers(1, 2)
    is_output = names[-2] == "output"
    return MuonDimensionNumbers((1, 2), 3) if is_output else MuonDimensionNumbers(1, (2, 3))


def _matrix_axes(params: Any) -> Any:
    return jax.tree_util.tree_map_with_path(matrix_axes, params)


def _scaled(updates: Any, params: Any, *, attention_scale: float) -> Any:
    """Scale Muon's updates by 0.2 sqrt(max(rows, columns)) (Liu et al. 2025, equation 4).

    An orthogonal matrix has entries with the root mean square 1 / sqrt(max(rows, columns)).

    attention_scale: further factor for the kernels of queries and keys.
    """
    del params

    def scaled(path, update):
        axes: Any = matrix_axes(path, update)
        rows, columns = (
            math.prod(update.shape[axis] for axis in np.atleast_1d(side))
            for side in (axes.reduction_axis, axes.output_axis)
        )
        factor = attention_scale if path[-2].key in ATTENTION else 1.0
        return factor * MUON_RMS * math.sqrt(max(rows, columns)) * update

    return jax.tree_util.tree_map_with_path(scaled, updates)


def _muon_groups(params: Any) -> Any:
    """Return a tree of labels, `MUON` or `OTHERS`: the optimizer that each parameter has with `kind=muon`."""
    if not isinstance(params, dict):  # `tree_map_params` passes one object in place of all parameters
        return OTHERS

    def group(path, parameter) -> str:
        return OTHERS if matrix_axes(path, parameter) is None else MUON

    return jax.tree_util.tree_map_with_path(group, params)


def _chain(config: OptimizerConfig, total_steps: int) -> optax.GradientTransformation:
    """Return the optimizer with its schedule, after clipping of the gradient's norm if `config.clip_norm` is set."""
    optimizer = _optimizer(config, learning_rate_schedule(config, total_steps))
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), optimizer) if config.clip_norm else optimizer


def _optimizer(config: OptimizerConfig, rate: optax.Schedule) -> optax.GradientTransformation:
    """Return the optimizer without clipping of the gradient: Lion, AdamW, StableAdamW or Muon.

    Muon updates matrices only; all other parameters are updated by AdamW, with the same learning rate.
    """
    if config.kind == "lion":
        return optax.lion(rate, config.beta1, config.beta2, weight_decay=config.weight_decay, mask=decays)
    decay = optax.add_decayed_weights(config.weight_decay, decays)
    if config.clip_updates:
        adam = optax.scale_by_adam(config.beta1, config.beta2, config.epsilon)
        others = optax.chain(_clipped(adam, decay, config), optax.scale_by_learning_rate(rate))
    else:
        others = optax.adamw(
            rate,
            b1=config.beta1,
            b2=config.beta2,
            eps=config.epsilon,
            weight_decay=config.weight_decay,
            mask=decays,
        )
    if config.kind == "adamw":
        return others
    # Orthogonal updates are scaled to about the size of AdamW's, so that both share a learning rate and a weight decay.
    muon = optax.chain(
        scale_by_muon(beta=MUON_MOMENTUM, weight_dimension_numbers=_matrix_axes),
        optax.stateless(functools.partial(_scaled, attention_scale=config.muon_attention_scale)),
        decay,
        optax.scale_by_learning_rate(rate),
    )
    return optax.partition({MUON: muon, OTHERS: others}, _muon_groups)


def _clipped(
    adam: optax.GradientTransformation, decay: optax.GradientTransformation, config: OptimizerConfig
) -> optax.GradientTransformation:
    """Return Adam with weight decay, whose updates are clipped as in StableAdamW (Wortsman et al. 2023, algorithm 2).

    The update of a tensor, decay included, is divided by max(1, sqrt(mean(g^2 / max(v, epsilon^2)))), where v is the
    second moment of the gradient g, corrected for its start at zero. The tensors are those of one layer each.
    """
    inner = optax.chain(adam, decay)

    def update(gradients: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        updates, state = inner.update(gradients, state, params)
        moments = optax.tree.bias_correction(state[0].nu, config.beta2, state[0].count)

        def divided(path, update, gradient, moment):
            # The layers of a stack are tensors of their own, along axis 0.
            axes = tuple(range("layers" in [key.key for key in path], update.ndim))
            ratio = gradient**2 / jnp.maximum(moment, config.epsilon**2)
            return update / jnp.maximum(1.0, jnp.sqrt(ratio.mean(axes, keepdims=True)))

        return jax.tree_util.tree_map_with_path(divided, updates, gradients, moments), state

    return optax.GradientTransformation(inner.init, update)
