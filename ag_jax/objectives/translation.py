"""Translation: predict each token of the target text from the tokens before it and from the source text.

Shape letters: B batch, T target length, V vocabulary.
"""

import dataclasses
from typing import Annotated, ClassVar, Literal

import jax.numpy as jnp
from jax import Array

from ag_jax.models.encoder import Batch, Params, Ports
from ag_jax.models.seq2seq import TranslationModel
from ag_jax.objectives.base import Objective, Outputs, PrimaryMetric, Rngs, WeightedSum, apply_model
from ag_jax.objectives.predictions import PredictionWeights, WordDistributions
from ag_jax.objectives.word_loss import word_loss

NLL = PrimaryMetric("nll", "translation", "NLL", "nats per target token", margin=0.3)


@dataclasses.dataclass(frozen=True)
class TranslationConfig:
    """Settings of training to translate, and of the scores of translations.

    label_smoothing: epsilon, the share of the probability that the model is trained to give to other tokens than the
        right one (Szegedy et al. 2016); 0 is plain cross entropy.
    smooth_over: epsilon is spread over the `others`, the V - 1 tokens but the right one (fairseq), or over `all` V
        tokens, so that the right one has 1 - epsilon + epsilon / V.
    average: number of newest checkpoints whose parameters are averaged before texts are translated (Vaswani et al.
        2017, section 6.1); 1 takes the newest one.
    tests: test sets whose translations `ag-jax evaluate` and `compare` score, each as NAME=SOURCE=TARGET with a file of
        texts to translate and a file of their translations, line by line; for several, repeat the flag.
    tokenize: how BLEU cuts texts into words, by sacreBLEU's name; `char` suits languages without spaces.
    """

    label_smoothing: Annotated[float, ">= 0", "< 1"] = 0.1
    smooth_over: Literal["others", "all"] = "others"
    average: Annotated[int, ">= 1"] = 1
    tests: tuple[str, ...] = ()
    tokenize: Literal["13a", "intl", "char", "zh", "none"] = "13a"

    def __post_init__(self):
        names = [test.partition("=")[0] for test in self.tests]
        for test in self.tests:
            parts = test.split("=")
            if len(parts) != 3 or not all(parts):
                raise ValueError(
                    "translation.tests must be a list of NAME=SOURCE=TARGET, such as "
                    f"test2016=test.en.gz=test.de.gz, got {test!r}"
                )
        if unsuitable := [name for name in names if "/" in name or name.startswith(".")]:
            raise ValueError(
                "translation.tests must have names that files can have, without a slash and not beginning with a dot, "
                f"got {unsuitable[0]!r}"
            )
        if len(set(names)) < len(names):
            raise ValueError(f"translation.tests must have different names, got {', '.join(names)}")

    @property
    def test_sets(self) -> dict[str, tuple[str, str]]:
        """The files of each test set, as {name: (file of source texts, file of their translations)}."""
        return {name: (source, target) for name, source, target in (test.split("=") for test in self.tests)}

    def smoothing(self, words: int) -> float:
        """Return the label smoothing as the probability spread over all `words` words, the right one included."""
        share = self.label_smoothing
        return share if self.smooth_over == "all" else share * words / (words - 1)


@dataclasses.dataclass(frozen=True)
class Translation(Objective):
    """The objective of translation: cross entropy with smoothed labels, averaged over the target tokens.

    The term is `translation`, weighted by the target tokens, of which the end of each text is one. The metric `nll` is
    the cross entropy without smoothing, so it can be compared between models with and without (Vaswani et al. 2017,
    section 5.4).
    """

    model: TranslationModel
    config: TranslationConfig = TranslationConfig()

    primary_metric: ClassVar[PrimaryMetric] = NLL
    prediction_names: ClassVar[tuple[str, ...]] = ("task",)

    def normalizers(self, batch: Batch) -> dict[str, Array]:
        """Return {"translation": divisor of the loss}, the number of target tokens."""
        return {"translation": batch["target_weights"].sum()}

    def coefficients(self, step: Array) -> dict[str, Array]:
        """Return {"translation": 1}, the factor of the loss term at every step."""
        return {"translation": jnp.ones_like(step, jnp.float32)}

    def prediction_weights(self, batch: Batch) -> dict[str, PredictionWeights]:
        """Return {"task": weights} by which a clean and an attacked pass are compared: 1 for each target token."""
        return {"task": PredictionWeights(batch["target_weights"])}

    def forward(self, params: Params, batch: Batch, rngs: Rngs, step: Array, ports: Ports = Ports()) -> Outputs:
        """Run the model without losses: predict every target token from the source and the tokens before it."""
        del step
        words, sown = apply_model(self.model, params, batch, rngs, ports)
        return Outputs({"task": WordDistributions(words.hidden_BTD, words.embedding_VD, words.bias_V)}, batch, **sown)

    def terms(self, outputs: Outputs, batch: Batch) -> tuple[dict[str, Array], dict[str, WeightedSum]]:
        """Return {"translation": batch sum of the loss} and {metric: (sum, weight)}.

        The metrics are the loss `translation_loss`, the cross entropy `nll`, and the share of right words `accuracy`.
        """
        words, tokens = outputs.predictions["task"], self.normalizers(batch)["translation"]
        loss, correct, nll = word_loss(
            words.hidden_BMD,
            words.embedding_VD,
            words.bias_V,
            batch["target_labels"],
            batch["target_weights"],
            1,
            self.config.smoothing(words.bias_V.shape[0]),
        )
        metrics = {"nll": (nll, tokens), "accuracy": (correct, tokens), "translation_loss": (loss, tokens)}
        return {"translation": loss}, metrics
