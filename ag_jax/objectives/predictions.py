"""Predictions in the few forms in which two passes of a model can be compared, and the weights of their elements.

Shape letters: B batch, C classes, M positions of a row, D width, V vocabulary.
"""

import flax.struct
from jax import Array


@flax.struct.dataclass
class Categorical:
    """Distributions over classes, candidates, tags or positions: their logits `(..., C)`."""

    logits: Array


@flax.struct.dataclass
class YesNo:
    """Logits of `yes`, one for each yes-or-no question."""

    logits: Array


@flax.struct.dataclass
class Values:
    """Real-valued predictions: numbers `(...)`, as in regression, or vectors `(..., D)`, as hidden states.

    They are compared by squared error.
    """

    values: Array


@flax.struct.dataclass
class WordDistributions:
    """Distributions over the vocabulary, softmax(h E^T + b), stored as hidden states h, embeddings E and bias b.

    Two passes of a model differ only in h.

    Kept as three arrays, because their product would be `BMV`.
    """

    hidden_BMD: Array
    embedding_VD: Array
    bias_V: Array


Prediction = Categorical | YesNo | Values | WordDistributions


@flax.struct.dataclass
class PredictionWeights:
    """The weights with which the elements of a prediction (examples, tokens or positions) enter sums and means.

    Losses and comparisons of passes are sums with these weights, which depend on the batch alone.

    elements: as in the task's loss, without the axis of classes, words or width.
    rows_B: 1 for an example, 0 for a row that only fills the batch up; given where released code counts all positions
        of a row.
    """

    elements: Array
    rows_B: Array | None = None
