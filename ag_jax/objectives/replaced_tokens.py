"""Replaced-token detection: was this token there from the start?

Shape letters: B batch, L length, M masked positions of a row.
"""

import dataclasses
from typing import Annotated, ClassVar, Literal

import jax
import jax.numpy as jnp

from ag_jax.models.encoder import Batch, Ports
from ag_jax.models.replaced_tokens import Detection, ReplacedTokensModel
from ag_jax.objectives.losses import Array, Headline, LossTerm, Outcome, Params, sown, wanted
from ag_jax.objectives.predictions import Counts, Predictions, YesNo
from ag_jax.objectives.sentences import Sentences
from ag_jax.objectives.word_loss import word_loss
from ag_jax.objectives.word_samples import sample_words

RTD = Headline("rtd_loss", "replaced-token loss", "nats per token", margin=0.02)


@dataclasses.dataclass(frozen=True)
class ReplacedTokensConfig:
    """Which tokens are replaced by what, to be detected by the encoder (Clark et al. 2020).

    generator: `none` is masked language modelling instead; `unigram` goes with `data.masking.replacement=unigram`; `mlm` is a
        small encoder that is trained beside the other one and shares its embeddings.
    weight: of the detection's loss; None takes the usual one, 1 with `unigram` and 50 with `mlm`, whose own loss counts once.
    generator_fraction: of the encoder's width, heads and feed-forward features that the `mlm` generator has; layers are as many.
    tokens: `all` that are not padding are judged, or `words` alone, without those that begin and end a text.
    """

    generator: Literal["none", "unigram", "mlm"] = "none"
    weight: Annotated[float, "> 0"] | None = None
    generator_fraction: Annotated[float, "> 0", "<= 1"] = 0.25
    tokens: Literal["all", "words"] = "all"

    EARLIER_NONE: ClassVar = {"weight": 0.0}

    @property
    def coefficient(self) -> float:
        """What the detection's loss is multiplied with."""
        return self.weight or (50.0 if self.generator == "mlm" else 1.0)


def detection_loss(logits_BL: Array, replaced_BL: Array, judged_BL: Array) -> tuple[Array, dict[str, LossTerm]]:
    """Sum over the judged tokens of -log sigmoid(+-logit), and what there is to say of the predictions.

    L = -[y log p + (1 - y) log(1 - p)] (Clark et al. 2020, section 2). Zero if and only if every judged token has the
    probability 1 of what it is. `replaced_BL` and `judged_BL` are booleans.
    """
    replaced_BL, weights_BL = replaced_BL & judged_BL, judged_BL.astype(jnp.float32)
    loss = (weights_BL * jax.nn.softplus(jnp.where(replaced_BL, -logits_BL, logits_BL))).sum()
    alarm_BL = (logits_BL > 0) & judged_BL

    def count(of_BL: Array) -> Array:
        return of_BL.sum().astype(jnp.float32)

    tokens, replaced, found = count(judged_BL), count(replaced_BL), count(alarm_BL & replaced_BL)
    return loss, {
        "rtd_loss": (loss, tokens),
        "rtd_accuracy": (count((alarm_BL == replaced_BL) & judged_BL), tokens),
        "replaced_share": (replaced, tokens),
        "replaced_found": (found, replaced),
        "alarms_right": (found, count(alarm_BL)),
    }


@dataclasses.dataclass(frozen=True)
class ReplacedTokens:
    """-log P(replaced or not) averaged over the tokens of the batch, plus the generator's masked-word loss if it has one.

    A token counts as replaced if it differs from the original; one that was replaced by itself does not. Terms: `rtd`, times
    `weight`, by the judged tokens, which depend on the batch alone; `mlm`, by the masked positions. Without a generator in the
    model the tokens of the batch hold the replacements; with one they hold masks, and a sample stands at every masked
    position of what the encoder sees. Guidance and other ports are the encoder's.

    Microbatches change nothing of the unigram variant. Beside a generator, its loss and gradient stay exact, too (without
    dropout), but parts draw other samples than the whole, as they draw other dropout masks. An evaluation always draws the
    same ones, for a given batch size.

    ignored: ids that are not judged.
    sentences: what is predicted of the first positions besides, for those who compare predictions.
    """

    model: ReplacedTokensModel
    weight: float = 1.0
    ignored: tuple[int, ...] = ()
    sentences: Sentences = Sentences()

    headline: ClassVar[Headline] = RTD

    @property
    def says(self) -> tuple[str, ...]:
        """Which tokens are replaced, and what is asked of first positions."""
        return ("task", *self.sentences.says)

    def judged(self, batch: Batch) -> Array:
        """Which tokens are judged, boolean `BL`."""
        original_BL = batch["original"]
        ignored = jnp.asarray(self.ignored, original_BL.dtype)
        return (batch["sequences"] > 0) & ~jnp.isin(original_BL, ignored)

    def normalizers(self, batch: Batch) -> dict[str, Array]:
        """Judged tokens, and masked positions if a generator predicts them."""
        weights = {"rtd": self.judged(batch).sum().astype(jnp.float32)}
        if self.model.generator_config is not None:
            weights["mlm"] = batch["masked_weights"].sum()
        return weights

    def coefficients(self, step: Array) -> dict[str, Array]:
        """The weight of the detection; the generator's loss counts once."""
        coefficients = {"rtd": jnp.full_like(step, self.weight, jnp.float32)}
        if self.model.generator_config is not None:
            coefficients["mlm"] = jnp.ones_like(step, jnp.float32)
        return coefficients

    def __call__(
        self, params: Params, batch: Batch, rngs: dict[str, Array] | None, step: Array, ports: Ports = Ports()
    ) -> Outcome:
        """Totals of the terms; how many replaced tokens there are and are found, and how many alarms are right."""
        del step
        totals, metrics = {}, {}
        if self.model.generator_config is not None:
            totals["mlm"], metrics, batch = self.generate(params, batch, rngs)
        said, collections = self._apply(params, batch, rngs, ports)
        replaced_BL = batch["tokens"] != batch["original"]
        totals["rtd"], more = detection_loss(said.replaced_BL, replaced_BL, self.judged(batch))
        predictions = self._compared(said, collections, batch)
        return Outcome(totals, more | metrics, predictions, batch, sown(collections, "statistics"))

    def predict(
        self, params: Params, shown: Batch, rngs: dict[str, Array] | None, step: Array, ports: Ports = Ports()
    ) -> Predictions:
        """Which of the tokens shown are replaced; the generator is not asked again."""
        del step
        return self._compared(*self._apply(params, shown, rngs, ports), shown)

    def counts(self, batch: Batch) -> dict[str, Counts]:
        """Judged tokens and texts count once each."""
        return {"task": Counts(self.judged(batch).astype(jnp.float32))} | self.sentences.counts(batch)

    def _apply(
        self, params: Params, batch: Batch, rngs: dict[str, Array] | None, ports: Ports
    ) -> tuple[Detection, Params]:
        return self.model.apply(
            {"params": params},
            batch,
            ports=ports,
            deterministic=rngs is None,
            rngs=rngs,
            mutable=wanted(ports),
            method="detect",
        )

    def _compared(self, said: Detection, collections: Params, batch: Batch) -> Predictions:
        of = {"task": YesNo(said.replaced_BL)}
        if self.sentences.of == "head":
            places_BT, _ = self.sentences.places(batch)
            of["sentence"] = YesNo(jnp.take_along_axis(said.replaced_BL, places_BT, axis=1))
        elif self.sentences.of != "none":
            of["sentence"] = self.sentences.hidden(said.encoded_BLD, batch)
        return Predictions(of, sown(collections, "attack"))

    def generate(
        self, params: Params, batch: Batch, rngs: dict[str, Array] | None
    ) -> tuple[Array, dict[str, LossTerm], Batch]:
        """The generator's masked-word loss, what there is to say of it, and the batch with its samples in place."""
        key = jax.random.key(0) if rngs is None else rngs.get("samples", rngs["dropout"])
        own = None if rngs is None else {"dropout": jax.random.fold_in(key, 1)}
        predictions = self.model.apply(
            {"params": params}, batch, deterministic=rngs is None, rngs=own, method="generate"
        )
        weights_BM = batch["masked_weights"]
        loss, correct = word_loss(
            predictions.hidden_BMD, predictions.embedding_VD, predictions.bias_V, batch["masked_labels"], weights_BM
        )
        samples_BM = sample_words(predictions, jax.random.fold_in(key, 2))
        metrics = {"mlm_loss": (loss, weights_BM.sum()), "mlm_accuracy": (correct, weights_BM.sum())}
        return loss, metrics, batch | {"tokens": with_samples(batch, samples_BM)}


def with_samples(batch: Batch, samples_BM: Array) -> Array:
    """The original tokens `BL` with samples at the masked positions; slots of weight 0 change nothing."""
    length = batch["original"].shape[1]
    place_BM = jnp.where(batch["masked_weights"] > 0, batch["masked_positions"], length)

    def of_row(tokens_L: Array, place_M: Array, samples_M: Array) -> Array:
        return tokens_L.at[place_M].set(samples_M, mode="drop")

    return jax.vmap(of_row)(batch["original"], place_BM, samples_BM.astype(batch["original"].dtype))
