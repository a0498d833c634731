"""Types of predictions by which two passes of a model can be compared, and the weights of their elements.

Shape letters: B batch, C classes, M positions of a row, D width, V vocabulary.
"""

import flax.struct
from jax import Array


@flax.struct.dataclass
class Categorical:
    """Predicted distributions over classes, candidates, tags or positions, stored as logits `(..., C)`."""

    logits: Array


@flax.struct.dataclass
class YesNo:
    """Predicted answers to yes-or-no questions, stored as one logit of `yes` for each question.

    They are compared as distributions over yes and no. Each label of a multi-label task is such a question.
    """

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


@flax.struct.dataclass
class ScoredWords:
    """Sums over predicted words: the clean pass's loss and right predictions, and the divergence of both passes.

    None of them has a gradient: that of the loss comes from `consistency.joint_words`.

    loss, correct: of the clean pass, as `word_loss` returns them.
    divergence: of both passes, as `consistency.divergence` returns it.
    """

    loss: Array
    correct: Array
    divergence: Array


Prediction = Categorical | YesNo | Values | WordDistributions | ScoredWords


@flax.struct.dataclass
class WordLabels:
    """The labels and weights of predicted words, with the name of the loss term that is computed from them.

    term: name of the loss term.
    labels_BM, weights_BM, group_rows: see `word_loss`.
    """

    term: str = flax.struct.field(pytree_node=False)
    labels_BM: Array
    weights_BM: Array
    group_rows: int = flax.struct.field(pytree_node=False, default=1)


@flax.struct.dataclass
class PredictionWeights:
    """The weights with which the elements of a prediction (examples, tokens or positions) enter sums and means.

    The task's loss is such a sum, and so is the divergence between a clean and an attacked pass of the model. Weights
    depend on the batch alone.

    elements: the weights of the task's loss, in the shape of the prediction without its last axis (of classes, the
        vocabulary or the width); of yes-or-no questions in the shape of their logits.
    rows_B: 1 for an example, 0 for a row that only fills the batch up. None but for tags, of which released code
        compares all positions of a row.
    """

    elements: Array
    rows_B: Array | None = None
