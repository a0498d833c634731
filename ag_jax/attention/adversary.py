"""Adversarial self-attention: a mask that is learnt from a layer's input, against what the layer attends to.

Wu et al. 2022. Each layer has an adversary of its own, and a model is trained against it by gradient reversal.

Shape letters: B batch, Q query position, K key position, H head, N layers.
"""

import flax.struct
import jax

Array = jax.Array

# The adversary's parameters, at the top of the tree beside the model's, which know nothing of them.
ADVERSARY = "adversary"


@flax.struct.dataclass
class Units:
    """Of every example `B`: how many (row, column) units an attack kept, and how many there are, of one text each."""

    kept_B: Array
    all_B: Array
