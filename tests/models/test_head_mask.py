"""A mask over heads equals parameters in which the output kernel of the masked heads is zero."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ag_jax.attention.attack import MaskPolicy
from ag_jax.models.config import DecoderConfig
from ag_jax.models.encoder import Ports
from ag_jax.objectives.adversarial.masking import LargestMasks
from tests import tiny
from tests import tiny_translation as small

MASKS_NH = np.array([[[1, 0, 1], [0, 1, 1]], [[1, 1, 1], [1, 1, 0]]], np.float32)  # the second: in the last layer alone
ONES = np.ones((2, 3), np.float32)
ATTACK = LargestMasks(jnp.array([0.3, 0.5]), MaskPolicy())
# A path through attention each: fused queries with packed rows; relative positions, a convolution and a mask decoder;
# layers with and without a window, which are no single loop.
PATHS = {"plain": {}, "mask_decoder": tiny.ENCODERS["deberta_v2"], "windows": tiny.MODERNBERT | {"layers": 2}}


def model_of(path):
    """A model and a batch; the fourth path has fixed weights in an encoder that a decoder reads."""
    if path != "fixed":
        return tiny.model(**PATHS[path]), tiny.mixed_batch()
    own, of_decoder = small.fixed()
    return small.model(DecoderConfig(layers=1, **of_decoder), norm_position="pre", **own), small.packed()


@functools.partial(jax.jit, static_argnums=0)
def run(model, params, batch, mask_NH, attack=None):
    """Return the model's predictions, attention weights and masks."""
    ports, wanted = Ports(attack=attack, head_mask_NH=mask_NH), ["intermediates", "attack"]
    found, sown = model.apply({"params": params}, batch, ports=ports, deterministic=True, mutable=wanted)
    words = found.words_BTV if hasattr(found, "words_BTV") else (found.words_BMV, found.next_B2)
    layers = sown["intermediates"]["encoder"]["layers"]["attention"]
    return words, layers["attention_weights"][0], sown.get("attack")


def distance(one, other):
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)


@pytest.mark.parametrize(
    ("path", "attack"), [("plain", None), ("fixed", None), ("mask_decoder", ATTACK), ("windows", ATTACK)]
)
def test_a_masked_head_has_an_output_kernel_of_zeros(path, attack):
    """Includes an attack, which sees masked hidden states, and a mask decoder with both.

    Attention up to the masked head stays as it was, that of its own layer, too: only its output is zero.
    """
    model, batch = model_of(path)
    params = tiny.params(model, batch)
    whole = run(model, params, batch, ONES, attack)
    for mask_NH in MASKS_NH:
        edited = jax.tree.map(np.array, params)
        kernel = edited["encoder"]["layers"]["attention"]["output"]["kernel"]
        for layer, head in np.argwhere(mask_NH == 0):
            kernel[layer, head] = 0.0
        masked = run(model, params, batch, mask_NH, attack)
        assert distance(masked, run(model, edited, batch, ONES, attack)) < 2e-6
        assert distance(masked[0], whole[0]) > 0.1
        np.testing.assert_array_equal(masked[1][0], whole[1][0])
    # The last layer's heads change no layer's input, and so no mask of the attack.
    jax.tree.map(np.testing.assert_array_equal, masked[1:], whole[1:])
    if attack is None:
        jax.tree.map(np.testing.assert_array_equal, whole, run(model, params, batch, None))
