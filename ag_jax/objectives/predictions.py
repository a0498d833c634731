"""What a model says of a batch, in the few forms that two passes of it can be compared in, and what each of it counts.

Shape letters: B batch, C classes, M positions of a row, D width, V vocabulary.
"""

import flax.struct
import jax

from ag_jax.attention.adversary import Units

Array = jax.Array


@flax.struct.dataclass
class Categorical:
    """Distributions over classes, candidates, tags or positions: their logits `(..., C)`."""

    logits: Array


@flax.struct.dataclass
class YesNo:
    """Logits of `yes`, one for each question."""

    logits: Array


@flax.struct.dataclass
class Numbers:
    """Numbers `(...)`, or vectors of them `(..., D)`."""

    values: Array


@flax.struct.dataclass
class Words:
    """Distributions over the words of a vocabulary: softmax(h E^T + b), of which only h differs from pass to pass.

    Three arrays and not their product, which would be `BMV`.
    """

    hidden_BMD: Array
    embedding_VD: Array
    bias_V: Array


Prediction = Categorical | YesNo | Numbers | Words


@flax.struct.dataclass
class Counts:
    """What each part of a prediction counts; depends on the batch alone.

    weights: of the task's loss, without the axis of classes, words or width; rows_B: 1 for an example, 0 for what only fills
    the batch up; given where released code counts all positions of a row.
    """

    weights: Array
    rows_B: Array | None = None


@flax.struct.dataclass
class Predictions:
    """What an objective's model says of a batch.

    said: by name; `task` is what the objective's own loss is about, `nsp` the next sentence, `sentence` the first positions.
    units: what the layers counted of an attack (`encoder.Ports.attack`), with a leading axis over them; None without one.
    """

    said: dict[str, Prediction]
    units: Units | None = None
