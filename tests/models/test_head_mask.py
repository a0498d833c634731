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

# A path through attention each: fused queries with packed rows; relative positions, a convolution and a mask decoder;
# layers with and without a window, which are no single loop; fixed weights in an encoder with LayerNorm before
# attention, which a decoder reads.
PATHS = ("plain", "mask_decoder", "windows", "fixed")
MASKS_NH = np.array([[[1, 0, 1], [0, 1, 1]], [[1, 1, 1], [1, 1, 0]]], np.float32)  # the second: in the last layer alone


def model_and_batch(path):
    if path == "fixed":
        own, of_decoder = small.fixed()
        return small.model(DecoderConfig(layers=1, **of_decoder), norm_position="pre", **own), small.packed()
    windows = tiny.MODERNBERT | {"layers": 2}
    settings = {"plain": {}, "mask_decoder": tiny.ENCODERS["deberta_v2"], "windows": windows}[path]
    return tiny.model(**settings), tiny.mixed_batch()


class Case:
    """One model, with a compiled forward pass under an attack (without one in the fixed case, which has no scores)."""

    def __init__(self, path):
        self.model, self.batch = model_and_batch(path)
        self.params = tiny.params(self.model, self.batch)
        self.shape = (self.model.config.layers, self.model.config.heads)
        attack = None if path == "fixed" else LargestMasks(jnp.array([0.3, 0.5]), MaskPolicy())
        model, batch = self.model, self.batch

        @functools.partial(jax.jit, static_argnames="attacked")
        def run(params, mask_NH, attacked=False):
            ports = Ports(attack=attack if attacked else None, head_mask_NH=mask_NH)
            wanted = ["intermediates", "attack"]
            found, sown = model.apply({"params": params}, batch, ports=ports, deterministic=True, mutable=wanted)
            words = found.words_BTV if path == "fixed" else (found.words_BMV, found.next_B2)
            layers = sown["intermediates"]["encoder"]["layers"]["attention"]
            return words, layers["attention_weights"][0], sown.get("attack")

        self.run = run

    def edited(self, mask_NH):
        """Parameters whose output kernels, of the axes layer, head, width of a head, and width, are zero on the heads
        that the mask leaves out.
        """
        params = jax.tree.map(np.array, self.params)
        kernel = params["encoder"]["layers"]["attention"]["output"]["kernel"]
        for layer, head in np.argwhere(mask_NH == 0):
            kernel[layer, head] = 0.0
        return params


@functools.cache
def case(path):
    return Case(path)


def distance(one, other):
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)


@pytest.mark.parametrize("path", PATHS)
def test_a_masked_head_has_an_output_kernel_of_zeros(path):
    tested = case(path)
    ones = np.ones(tested.shape, np.float32)
    whole = tested.run(tested.params, ones)
    for mask_NH in MASKS_NH:
        masked = tested.run(tested.params, mask_NH)
        assert distance(masked, tested.run(tested.edited(mask_NH), ones)) < 2e-6
        assert distance(masked[0], whole[0]) > 0.1


@pytest.mark.parametrize("path", PATHS)
def test_a_mask_of_ones_changes_no_bit(path):
    tested = case(path)
    ones, without = (tested.run(tested.params, mask) for mask in (np.ones(tested.shape, np.float32), None))
    jax.tree.map(np.testing.assert_array_equal, ones, without)


@pytest.mark.parametrize("path", PATHS)
def test_attention_up_to_the_masked_head_stays_as_it_was(path):
    """That of its own layer, too: only its output is zero."""
    tested = case(path)
    mask_NH = np.ones(tested.shape, np.float32)
    mask_NH[0, 1] = 0
    (_, plain, _), (_, masked, _) = (tested.run(tested.params, mask) for mask in (np.ones_like(mask_NH), mask_NH))
    np.testing.assert_array_equal(plain[0], masked[0])
    if path != "fixed":  # whose weights are constants
        assert distance(plain[1], masked[1]) > 0.01


@pytest.mark.parametrize("path", ["plain", "mask_decoder", "windows"])
def test_a_mask_goes_with_an_attack(path):
    """The attack sees the hidden states that the mask leaves, and the mask decoder has both."""
    tested = case(path)
    ones = np.ones(tested.shape, np.float32)
    whole = tested.run(tested.params, ones, attacked=True)
    for mask_NH in MASKS_NH:
        masked = tested.run(tested.params, mask_NH, attacked=True)
        assert distance(masked, tested.run(tested.edited(mask_NH), ones, attacked=True)) < 2e-6
        assert distance(masked[0], whole[0]) > 0.1
    assert distance(whole[1], tested.run(tested.params, ones)[1]) > 0.1, "the attack changes nothing"
    # The last layer's heads change no layer's input, and so no mask of the attack.
    jax.tree.map(np.testing.assert_array_equal, masked[1:], whole[1:])
