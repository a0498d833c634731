"""What tests of attacks share: a model that numpy computes by hand, and objectives under attack with parameters."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special as functions

from ag_jax.models.encoder import Ports
from ag_jax.objectives.adversarial import wrap as adversarial
from ag_jax.objectives.adversarial.config import AdversarialConfig, AsaConfig, FixedMaskConfig
from ag_jax.objectives.base import Objective, Outputs, PrimaryMetric, Terms, Wrapper
from ag_jax.objectives.predictions import Categorical, PredictionWeights, Values
from ag_jax.planning import costs
from ag_jax.planning.hlo import HloModule
from ag_jax.training.step import loss_and_gradient
from tests import reference, tiny

STEP = jnp.int32(5)
KEY = jax.random.key(3)
RNGS = {"dropout": jax.random.key(1)}


@dataclasses.dataclass(frozen=True)
class Linear(Objective):
    """y = w . sum of the vectors of a text, trained on squares of y - label; or sigmoid(y), on yes or no.

    has_size: there is a second term, the squares of y by the number of tokens, with a tenth of the step as coefficient.
    """

    is_yes_or_no: bool = False
    has_size: bool = False

    primary_metric = PrimaryMetric("task_loss", "task", "", "", 0.0)
    prediction_names = ("task",)

    def normalizers(self, batch):
        size = {"size": (batch["segment_ids"] > 0).sum()} if self.has_size else {}
        return {"task": batch["weights"].sum()} | size

    def coefficients(self, step):
        return {"task": jnp.ones_like(step, jnp.float32)} | ({"size": step / 10} if self.has_size else {})

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
        classes, squares = jax.nn.softplus((1 - 2 * batch["labels"]) * values), (values - batch["labels"]) ** 2
        total = (batch["weights"] * (classes if self.is_yes_or_no else squares)).sum()
        size = {"size": (values**2).sum()} if self.has_size else {}
        return Terms({"task": total} | size, {"task_loss": (total, batch["weights"].sum())})


def linear_batch():
    """Three texts of 4, 2 and 1 tokens in vectors of 3, and a row that only fills the batch up."""
    rng = np.random.default_rng(1)
    segment_ids = (np.arange(4) < np.array([4, 2, 1, 0])[:, None]).astype(np.int32)
    return {
        "tokens": segment_ids,
        "segment_ids": segment_ids,
        "token_type_ids": 0 * segment_ids,
        "vectors": rng.standard_normal((4, 4, 3)).astype(np.float32),
        "labels": np.array([0.5, -1, 2, 0], np.float32),
        "weights": np.array([1, 1, 1, 0], np.float32),
    }


W = {"w": jnp.array([0.5, -2.0, 1.0])}


@dataclasses.dataclass(frozen=True)
class Seen(Wrapper):
    """An objective whose metrics have the perturbation of its embeddings, and random numbers of its keys."""

    def forward(self, params, batch, rngs, step, ports=Ports()):
        outputs = self.inner.forward(params, batch, rngs, step, ports)
        drawn = jnp.stack([jax.random.normal(key) for key in (rngs["dropout"], rngs.get("samples", rngs["dropout"]))])
        return outputs.replace(metrics={"delta": (ports.embedding_delta, 1.0), "drawn": (drawn, 1.0)})

    def terms(self, outputs, batch):
        losses, metrics = self.inner.terms(outputs, batch)
        return Terms(losses, metrics | outputs.metrics)


@dataclasses.dataclass(frozen=True)
class Noisy(Wrapper):
    """An objective with noise on its embeddings, drawn with the key of dropout."""

    def forward(self, params, batch, rngs, step, ports=Ports()):
        noise = jax.random.normal(rngs["dropout"], batch["vectors"].shape)
        noisy = batch | {"vectors": batch["vectors"] + noise}
        return self.inner.forward(params, noisy, rngs, step, ports).replace(encoder_batch=batch)

    def predict(self, params, encoder_batch, rngs, step, ports=Ports()):
        return self.forward(params, encoder_batch, rngs, step, ports)


def noise_of(key):
    """The noise of `Noisy` in a pass with this key, in float64."""
    return np.asarray(jax.random.normal(key, (4, 4, 3)), np.float64)


@functools.partial(jax.jit, static_argnames=("objective", "microbatches"))
def _trained(params, batch, step, *, objective, microbatches):
    return loss_and_gradient(params, batch, KEY, step, objective=objective, microbatches=microbatches)


def trained(objective, params, batch, microbatches=1, step=STEP):
    """Loss, metrics and gradient as the train step has them."""
    return _trained(params, batch, step, objective=objective, microbatches=microbatches)


def evaluated_as_without(objective, params, batch):
    """Assert that an evaluation runs the operations of the objective inside the attack; return its metrics' names."""

    def program(of):
        def results(params, batch):
            return tiny.evaluate(of, params, batch, None, STEP)[:2]

        return jax.make_jaxpr(results, return_shape=True)(params, batch)

    (operations, results), (expected, _) = program(objective), program(objective.inner)
    assert str(operations) == str(expected)
    return set(results[1])


def flops(objective, params, batch):
    """FLOPs of matrix products of the compiled gradient, with the iterations of loops counted."""
    step = _trained.lower(params, batch, STEP, objective=objective, microbatches=1)
    return costs.costs(HloModule(step.compile().as_text()), 1).flops


def close(found, wanted, rtol=1e-4, atol=2e-5):
    """Both trees alike, up to a part of the largest number of each leaf."""
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        one, other = np.asarray(one), np.asarray(other)
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol * max(np.abs(other).max(), 1e-2))


def attacked(inner, method="asa", shape=tiny.CONFIG, steps=10, recorded=None, **settings):
    """The objective under an attack with these settings of its section."""
    section = {"asa": AsaConfig(**settings)} if method == "asa" else {"masking": FixedMaskConfig(**settings)}
    config = AdversarialConfig(method, **section)
    return adversarial.wrap(inner, config, adversarial.AttackContext(shape, steps, recorded))


def model_of(objective):
    while not hasattr(objective, "model"):
        objective = objective.inner
    return objective.model


def params_of(objective, batch, seed=0):
    """Random ones of the model, and of the adversary, if it has one, with which about half of the units are kept."""
    model = model_of(objective)
    params, rng, shape = tiny.params(model, batch, seed), np.random.default_rng(seed + 1), model.config
    if getattr(objective, "penalty", None) is None:
        return params

    def linear():
        sizes = {"kernel": (shape.layers, shape.width, shape.width), "bias": (shape.layers, shape.width)}
        return {name: jnp.asarray(np.float32(0.4 * rng.standard_normal(size))) for name, size in sizes.items()}

    return params | {"adversary": {"query": linear(), "key": linear()}}


def same_text(segments_BL):
    """Return whether query and key are in one text, `(B, 1, Q, K)`."""
    segments_BL = np.asarray(segments_BL)
    same = segments_BL[:, :, None] == segments_BL[:, None, :]
    return (same & (segments_BL > 0)[:, :, None])[:, None]


class Keeper:
    """The masks of the adversary's parameters, layer by layer, as `reference.encode` asks for them; remembers them."""

    def __init__(self, adversary, segments_BL, heads=1):
        self.adversary, self.heads, self.masks = tiny.float64(adversary), heads, {}
        self.inside = same_text(segments_BL)

    def __call__(self, index, x_BLD):
        query, key = (reference.take_layer(self.adversary[name], index) for name in ("query", "key"))
        q, k = (
            reference.linear(x_BLD, of).reshape(*x_BLD.shape[:2], self.heads, -1).swapaxes(1, 2) for of in (query, key)
        )
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        assert np.abs(scores[np.broadcast_to(self.inside, scores.shape)]).min() > 1e-6, "too close to call in float32"
        self.masks.setdefault(index, (scores > 0).astype(float))
        return self.masks[index]

    @property
    def kept_NB(self):
        """Kept units of each layer and row."""
        return np.array([(mask * self.inside).sum((1, 2, 3)) / self.heads for _, mask in sorted(self.masks.items())])


def symmetric(clean, other):
    """1/2 [KL(q||p) + KL(p||q)] of logits."""
    log_p, log_q = (functions.log_softmax(logits, axis=-1) for logits in (clean, other))
    return ((np.exp(log_p) - np.exp(log_q)) * (log_p - log_q)).sum(-1) / 2
