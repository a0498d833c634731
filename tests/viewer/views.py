"""Views with made-up attention, for the tests of the viewer."""

import numpy as np

from ag_jax.viewer.page import Target, View

HOSTILE = ('</script><img src=x onerror="document.title=1">', "<!--", "\u2028", "]]>", "&lt;", "{{", "שלום", "a'b\"c")


def attention(layers=2, heads=3, queries=9, keys=9, sharpness=2.0, seed=0):
    """Rows of a softmax, some of them even and some with one large weight."""
    scores = np.random.default_rng(seed).standard_normal((layers, heads, queries, keys)) * sharpness
    scores[:, 0] *= 4
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


def next_target(weights_NHQK):
    """The target of [Next], of which the last row has none, with the masses of a loop."""
    layers, heads, length, _ = weights_NHQK.shape
    matrix_QK, has_target_Q = np.eye(length, k=1), np.arange(length) < length - 1
    matrix_QK[-1] = 1 / length
    mass_NH = np.array(
        [
            [np.mean([weights_NHQK[n, h, q, q + 1] for q in range(length - 1)]) for h in range(heads)]
            for n in range(layers)
        ]
    )
    return Target(matrix_QK, has_target_Q, "[Next]", "#0072B2", mass_NH, np.full(len(mass_NH), 1 / length))


def view(name="one", length=9, tokens=None, **more):
    """A view whose first head is guided towards [Next]."""
    tokens = tokens or [f"t{at}" for at in range(length)]
    weights_NHQK = more.pop("weights_NHQK", attention(queries=len(tokens), keys=len(tokens)))
    guided = [("next", *[None] * (weights_NHQK.shape[1] - 1))] * weights_NHQK.shape[0]
    settings = {"model": "model", "guided": guided, "special": (0,)}
    if "targets" not in more:
        settings["targets"] = {"next": next_target(weights_NHQK)}
    return View(name, columns=tokens, weights_NHQK=weights_NHQK, **{**settings, **more})
