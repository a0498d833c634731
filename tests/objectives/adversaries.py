"""Objectives under attack, with parameters for them, and the same attack in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special as functions

from ag_jax.objectives.adversarial import wrap as adversarial
from ag_jax.objectives.adversarial.config import AdversarialConfig, AsaConfig, FixedMaskConfig
from tests import reference, tiny

STEP = jnp.int32(5)
RNGS = {"dropout": jax.random.key(1)}


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
        return {name: jnp.asarray(0.4 * rng.standard_normal(size), jnp.float32) for name, size in sizes.items()}

    return params | {"adversary": {"query": linear(), "key": linear()}}


def same_text(segments_BL):
    """Whether query and key are in one text, `B1QK`."""
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
