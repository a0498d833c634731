"""A model that says the same when its attention is attacked: adversarial self-attention, in tasks and in pre-training.

Shape letters: N layers, B batch, L length.
"""

import dataclasses
from typing import Any, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp

from ag_jax.attention import sequences
from ag_jax.attention.adversary import ADVERSARY, Adversary, Attack, Rules, Units, initial_offset
from ag_jax.attention.patterns import SpecialTokens
from ag_jax.models import encoder
from ag_jax.models.config import EncoderConfig
from ag_jax.models.encoder import Batch, Ports
from ag_jax.objectives import consistency
from ag_jax.objectives.adversarial.config import AsaConfig
from ag_jax.objectives.consistency import DivergenceConfig
from ag_jax.objectives.losses import Array, Headline, LossTerm, Objective, Outcome, Params
from ag_jax.objectives.predictions import Counts, Predictions

_ATTACKED = 0x5A  # what the random numbers of the attacked pass are for


class Attacker(Protocol):
    """Makes the attack of a step, from all parameters, the batch as it is shown to the encoder, and the step."""

    def __call__(self, params: Params, shown: Batch, step: Array) -> Attack: ...


@dataclasses.dataclass(frozen=True)
class LearntMasks:
    """The attack of `params["adversary"]`."""

    config: AsaConfig
    encoder: EncoderConfig
    special: SpecialTokens

    def __call__(self, params: Params, shown: Batch, step: Array) -> Adversary:
        """That of the parameters, whatever the step."""
        del step
        config, shape, special_NBL = self.config, self.encoder, None
        if config.protect_specials:
            original_BL = encoder.rows(shown)["original"]
            special_BL = jnp.isin(original_BL, jnp.asarray(self.special.delimiters, original_BL.dtype))
            special_NBL = jnp.broadcast_to(special_BL, (shape.layers, *special_BL.shape))
        is_drawn = config.gate == "gumbel"
        return Adversary(
            **params[ADVERSARY],
            special_NBL=special_NBL,
            rules=Rules(config.strength, config.empty_rows, config.protect_diagonal),
            heads=shape.heads if config.heads == "own" else 1,
            offset=initial_offset(config.keep_init, shape.width, shape.initializer_range, drawn=is_drawn),
            temperature=config.gumbel_temperature if is_drawn else 0.0,
        )

    def init(self, key: Array) -> dict[str, Any]:
        """Fresh parameters: two linear layers for each layer of the encoder, born as the encoder's are, boxed."""
        layers, width = self.encoder.layers, self.encoder.width
        kernel_init = nn.with_logical_partitioning(
            nn.initializers.normal(self.encoder.initializer_range), ("layers", "embed", "heads")
        )
        bias_init = nn.with_logical_partitioning(nn.initializers.zeros, ("layers", "heads"))
        return {
            name: {"kernel": kernel_init(of, (layers, width, width)), "bias": bias_init(of, (layers, width))}
            for name, of in zip(("query", "key"), jax.random.split(key), strict=True)
        }


def _texts(sequences_BL: Array) -> Array:
    """How many texts there are."""
    return sequences.firsts(sequences_BL).sum().astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class Penalty:
    """tau^power * L_c, the sum over layers of the units that are kept, for each text; or of their share, for each row."""

    coefficient: float
    count: str

    def weight(self, sequences_BL: Array) -> Array:
        """What the total is divided by."""
        return _texts(sequences_BL) if self.count == "units" else (sequences_BL > 0).any(-1).sum().astype(jnp.float32)

    def total(self, units_NB: Units) -> Array:
        """L_c; its gradient comes back reversed, and only to the adversary."""
        if self.count == "units":
            return units_NB.kept_B.sum()
        return (units_NB.kept_B / jnp.maximum(units_NB.all_B, 1.0)).sum()


@dataclasses.dataclass(frozen=True)
class AttackedAttention:
    """L_inner + D[p(y|x), p(y|x, attack)] + tau^2 L_c (Wu et al. 2022, equations 9 and 10).

    The inner objective sees the clean pass; a second pass of its model, with the attack, has to say the same. Terms, named after
    `term`: `asa` of what the task is about, `asa_nsp` of the next sentence, `asa_sentence` of first positions, `penalty`; each
    from `delay_steps` on. Means are over what the inner loss is a mean over. An evaluation is the inner objective's.

    penalty: None for attacks that learn nothing; shared_dropout: the attacked pass drops what the clean one does.
    """

    inner: Objective
    attacker: Attacker
    divergence: DivergenceConfig
    term: str
    penalty: Penalty | None = None
    shared_dropout: bool = False
    delay_steps: int = 0

    @property
    def headline(self) -> Headline:
        """That of the inner objective."""
        return self.inner.headline

    @property
    def says(self) -> tuple[str, ...]:
        """What the inner objective says."""
        return self.inner.says

    def _term(self, said: str) -> str:
        return self.term if said == "task" else f"{self.term}_{said}"

    def normalizers(self, batch: Batch) -> dict[str, Array]:
        """Those of the inner objective, and what predictions and texts count."""
        weights, counts = self.inner.normalizers(batch), self.counts(batch)
        weights |= {self._term(said): consistency.weight(counts[said], self.divergence) for said in self.says}
        if self.penalty is not None:
            weights["penalty"] = self.penalty.weight(encoder.rows(batch)["sequences"])
        return weights

    def coefficients(self, step: Array) -> dict[str, Array]:
        """Those of the inner objective; 1 for each divergence, and the penalty's, from `delay_steps` on."""
        begun = jnp.asarray(step >= self.delay_steps, jnp.float32)
        coefficients = self.inner.coefficients(step) | {self._term(said): begun for said in self.says}
        if self.penalty is not None:
            coefficients["penalty"] = begun * self.penalty.coefficient
        return coefficients

    def __call__(
        self, params: Params, batch: Batch, rngs: dict[str, Array] | None, step: Array, ports: Ports = Ports()
    ) -> Outcome:
        """The inner outcome with the terms of the attack; the share of units that is masked, overall and by layer."""
        outcome = self.inner(params, batch, rngs, step, ports)
        if rngs is None:
            return outcome
        if not self.shared_dropout:
            rngs = {name: jax.random.fold_in(key, _ATTACKED) for name, key in rngs.items()}
        attack = self.attacker(params, outcome.shown, step)
        attacked = self.predict(params, outcome.shown, rngs, step, ports.replace(attack=attack))
        if attacked.units is None:
            raise ValueError(
                f"adversarial.method attacks attention, and the model of {type(self.inner).__name__} has no port for that: its encoder "
                "must hand `ports.attack` on to every layer, and its predictions must have the `units` that these sow"
            )
        counts = self.counts(batch)
        apart = consistency.divergences(outcome.predictions, attacked, counts, self.divergence)
        totals = {self._term(said): total for said, total in apart.items()}
        metrics = masked(attacked.units, step >= self.delay_steps)
        for said, total in apart.items():
            metrics[f"{self._term(said)}_loss"] = (total, consistency.weight(counts[said], self.divergence))
        if self.penalty is not None:
            totals["penalty"] = self.penalty.total(attacked.units)
            metrics["kept_units"] = (attacked.units.kept_B.sum(), _texts(encoder.rows(batch)["sequences"]))
        return outcome.replace(totals=outcome.totals | totals, metrics=outcome.metrics | metrics)

    def predict(
        self, params: Params, shown: Batch, rngs: dict[str, Array] | None, step: Array, ports: Ports = Ports()
    ) -> Predictions:
        """What the inner objective predicts; attacked only if `ports` say so."""
        return self.inner.predict(params, shown, rngs, step, ports)

    def counts(self, batch: Batch) -> dict[str, Counts]:
        """Those of the inner objective."""
        return self.inner.counts(batch)


def masked(units_NB: Units, begun: Array) -> dict[str, LossTerm]:
    """1 - kept / all, of all layers and of each; 0 until the attack has begun."""
    all_N = units_NB.all_B.sum(1)
    masked_N = jnp.where(begun, all_N - units_NB.kept_B.sum(1), 0.0)
    return {"masked": (masked_N.sum(), all_N.sum()), "masked/layers": (masked_N, all_N)}


def adversarial_self_attention(inner: Objective, attacker: LearntMasks) -> AttackedAttention:
    """The objective against an adversary that learns."""
    config = attacker.config
    return AttackedAttention(
        inner=inner,
        attacker=attacker,
        divergence=config.divergence,
        term="asa",
        penalty=Penalty(config.penalty, config.count),
        shared_dropout=config.dropout == "shared",
        delay_steps=config.delay_steps,
    )
