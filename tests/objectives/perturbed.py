"""What the tests of attacks on embeddings share: a model that can be computed by hand, and every objective there is."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from ag_jax.models.encoder import Ports
from ag_jax.models.heads import KINDS
from ag_jax.models.masked_lm import PretrainingModel
from ag_jax.models.replaced_tokens import ReplacedTokensModel
from ag_jax.objectives.base import Objective, Outputs, PrimaryMetric, Wrapper
from ag_jax.objectives.masked_lm import Pretraining
from ag_jax.objectives.predictions import Categorical, PredictionWeights, Values
from ag_jax.objectives.replaced_tokens import ReplacedTokens
from ag_jax.planning import costs
from ag_jax.planning.hlo import HloModule
from ag_jax.training.step import loss_and_gradient
from tests import tiny

STEP = jnp.int32(5)
KEY = jax.random.key(3)
SMALL = tiny.config(heads=2, width=8, feedforward=10, embedding_width=12)


@dataclasses.dataclass(frozen=True)
class Linear(Objective):
    """y = w . sum of the vectors of a text, trained on squares of y - label; or sigmoid(y), on yes or no."""

    is_yes_or_no: bool = False

    primary_metric = PrimaryMetric("task_loss", "task", "", "", 0.0)
    prediction_names = ("task",)

    def normalizers(self, batch):
        return {"task": batch["weights"].sum()}

    def coefficients(self, step):
        return {"task": jnp.ones_like(step, jnp.float32)}

    def prediction_weights(self, batch):
        return {"task": PredictionWeights(batch["weights"])}

    def forward(self, params, batch, rngs, step, ports=Ports()):
        vectors = batch["vectors"] if ports.embedding_delta is None else batch["vectors"] + ports.embedding_delta
        if ports.on_embeddings is not None:
            vectors = ports.on_embeddings(vectors)
        values = (jnp.where(batch["segment_ids"][:, :, None] > 0, vectors, 0).sum(1) * params["w"][None]).sum(-1)
        is_class = self.is_yes_or_no
        task = Categorical(jnp.stack([values, 0 * values], -1)) if is_class else Values(values)
        return Outputs({"task": task}, batch)

    def terms(self, outputs, batch):
        task = outputs.predictions["task"]
        values = task.logits[:, 0] if self.is_yes_or_no else task.values
        losses = (
            jax.nn.softplus((1 - 2 * batch["labels"]) * values)
            if self.is_yes_or_no
            else (values - batch["labels"]) ** 2
        )
        total = (batch["weights"] * losses).sum()
        return {"task": total}, {"task_loss": (total, batch["weights"].sum())}


def linear_batch():
    """Three texts of 4, 2 and 1 tokens in vectors of 3, and a row that only fills the batch up."""
    rng = np.random.default_rng(1)
    segment_ids = (np.arange(4) < np.array([4, 2, 1, 0])[:, None]).astype(np.int32)
    fields = {"tokens": segment_ids, "segment_ids": segment_ids, "token_type_ids": 0 * segment_ids}
    vectors = rng.standard_normal((4, 4, 3)).astype(np.float32)
    return fields | {
        "vectors": vectors,
        "labels": np.array([0.5, -1, 2, 0], np.float32),
        "weights": np.array([1, 1, 1, 0], np.float32),
    }


W = {"w": jnp.array([0.5, -2.0, 1.0])}


@dataclasses.dataclass(frozen=True)
class Seen(Wrapper):
    """An objective whose metrics have the perturbation of its embeddings."""

    def forward(self, params, batch, rngs, step, ports=Ports()):
        outputs = self.inner.forward(params, batch, rngs, step, ports)
        return outputs.replace(metrics={"delta": (ports.embedding_delta, jnp.float32(1))})

    def terms(self, outputs, batch):
        totals, metrics = self.inner.terms(outputs, batch)
        return totals, metrics | outputs.metrics


def objectives(**settings):
    """Each with a batch for it and the width of its embeddings."""
    config = tiny.config(**settings)
    mixed = tiny.mixed_batch()
    for kind in KINDS:
        yield kind, tiny.supervised(tiny.task_model(kind, **settings)), tiny.task_batch(kind)
    guided = tiny.guided(tiny.task_model("classification", **settings), objective=tiny.supervised)
    yield "guided", guided, tiny.task_batch("classification")
    yield "mlm", Pretraining(PretrainingModel(config)), mixed
    yield "nsp", tiny.guided(tiny.model(**settings)), mixed
    yield "bias", tiny.guided(tiny.model(**settings), mode="bias"), mixed
    yield "unigram", ReplacedTokens(ReplacedTokensModel(config), 3.0), mixed
    yield "generator", ReplacedTokens(ReplacedTokensModel(config, SMALL), 50.0), mixed


CASES = {name: (objective, batch) for name, objective, batch in objectives()}


def model_of(objective):
    while hasattr(objective, "inner"):
        objective = objective.inner
    return objective.model


def params_of(objective, batch):
    return tiny.params(model_of(objective), batch)


def trained(objective, params, batch, microbatches=1, step=STEP):
    """Loss, metrics and gradient as the train step has them."""

    def compute(params, batch):
        return loss_and_gradient(params, batch, KEY, step, objective=objective, microbatches=microbatches)

    return jax.jit(compute)(params, batch)


@functools.cache
def plain(name):
    """Parameters for a case, and what training has without an attack."""
    objective, batch = CASES[name]
    params = params_of(objective, batch)
    return params, trained(objective, params, batch)


def flops(objective, params, batch):
    """FLOPs of matrix products of the compiled gradient, with the iterations of loops counted."""
    step = jax.jit(
        lambda params, batch: loss_and_gradient(params, batch, KEY, STEP, objective=objective, microbatches=1)
    )
    return costs.costs(HloModule(step.lower(params, batch).compile().as_text()), 1).flops


def close(found, wanted, rtol=1e-4, atol=2e-5):
    """Both trees alike, up to a part of the largest number of each leaf."""
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        one, other = np.asarray(one), np.asarray(other)
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol * max(np.abs(other).max(), 1e-2))
