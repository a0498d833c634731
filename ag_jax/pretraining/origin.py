"""The imported model that a run's weights came from, as stored in the run directory.

origin.json          the `Origin`: written by `ag-jax import` and by runs with initial weights
pooler.safetensors   BERT's pooler, if the weights came with one that this run's model has no place for
"""

import dataclasses
import json
from typing import Annotated

import numpy as np
import safetensors.numpy
from annotated_types import Ge, Le, Lt
from etils import epath

from ag_jax.data.json_files import read_json, reading
from ag_jax.distributed import storage
from ag_jax.models.config import Pooling
from ag_jax.settings import schema

FILE, POOLER = "origin.json", "pooler.safetensors"
Pooler = dict[str, np.ndarray]  # `kernel` and `bias`; empty if there is none


@dataclasses.dataclass(frozen=True)
class SentenceVectors:
    """Settings by which an imported model computes vectors of texts, as sentence-transformers stores them.

    The defaults are for a model that was not trained with sentence-transformers.

    pooling: what is taken of the last hidden states, the `mean` over all tokens or the `first` token.
    normalize: vectors are divided by their length.
    max_length: tokens that are read of a text, with the special ones; None for all positions of the model.
    lower_case: texts are put in lower case.
    strip: white space at both ends of texts, with the prompt, is removed.
    prompt: a text that is put before every text.
    unsupported: what else the model needs, such as a dense layer, and this program does not have.
    """

    pooling: Pooling = "mean"
    normalize: bool = False
    max_length: Annotated[int, Ge(1)] | None = None
    lower_case: bool = False
    strip: bool = False
    prompt: str = ""
    unsupported: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Origin:
    """Description of the imported model that the weights of a run or fine-tuned model started from.

    Fields about the model are empty if the weights did not start from an imported model.

    model_type: its family, such as `camembert`.
    name: its name on the Hugging Face hub, or the name of its directory if it was read from disk.
    base_model: its name on the hub or, if it was read from disk, `base_model` of its model card.
    architectures: the classes in its config.json.
    license: the licence in its model card.
    citation: the citation in its model card.
    new: names of the parts of the parameters that were randomly initialised at step 0, such as `word_head`.
    left_out: names of its tensors that have no counterpart in this program's models.
    pooling: what a head for texts reads, as its config.json says: the `first` token, or the `mean` over all tokens.
    head_dropout: dropout rate that its config.json says of the heads of tasks; None for that of the encoder.
    vectors: how vectors of texts are computed with it.
    commit: the commit on the hub that it was fetched at; empty if it was read from disk.
    second_type: token type that its tokenizer gives the second text of a pair.
    """

    model_type: str = ""
    name: str = ""
    base_model: str = ""
    architectures: tuple[str, ...] = ()
    license: str = ""
    citation: str = ""
    new: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    pooling: Pooling = "first"
    head_dropout: Annotated[float, Ge(0), Lt(1)] | None = None
    vectors: SentenceVectors = SentenceVectors()
    commit: str = ""
    second_type: Annotated[int, Ge(0), Le(1)] | None = None

    def untrained(self, step: int) -> tuple[str, ...]:
        """Return the names of the parts of the parameters, such as `word_head`, that are still random after `step`.

        These are all of `new` at step 0, and none later.
        """
        return self.new if step == 0 else ()


def write(directory: epath.Path, origin: Origin, pooler: Pooler) -> None:
    """Write the description and the pooler of the imported model that a run's weights started from to its directory.

    No pooler is written if `pooler` is empty.
    """
    if pooler:
        tensors = {name: np.ascontiguousarray(leaf) for name, leaf in pooler.items()}
        (directory / POOLER).write_bytes(safetensors.numpy.save(tensors))
    storage.write_whole(directory / FILE, json.dumps(dataclasses.asdict(origin), indent=2) + "\n")


def read(directory: epath.Path, width: int) -> tuple[Origin, Pooler]:
    """Return (description, pooler) of the imported model that a run's weights started from.

    Without such a model the `Origin` has empty fields. The pooler is {} if none is stored.

    width: the number of features that the pooler must have.

    Raises ValueError, with the file's name, if a file is damaged or the pooler has other shapes or values that are not
    finite.
    """
    path = directory / FILE
    if not path.exists():
        return Origin(), {}
    with reading(path, "copy it anew, or import the model again"):
        origin = schema.parse(Origin, read_json(path))
    return origin, _read_pooler(directory / POOLER, width)


def _read_pooler(file: epath.Path, width: int) -> Pooler:
    if not file.exists():
        return {}
    try:
        pooler = safetensors.numpy.load(file.read_bytes())
    except safetensors.SafetensorError as error:
        raise ValueError(f"{file} is damaged ({error}); copy it anew, or convert the model again") from error
    shapes = {name: leaf.shape for name, leaf in pooler.items()}
    expected = {"kernel": (width, width), "bias": (width,)}
    if shapes != expected:
        raise ValueError(f"{file}: expected arrays of the shapes {expected}, got {shapes}; convert the model anew")
    if damaged := [name for name, leaf in pooler.items() if not np.isfinite(leaf).all()]:
        raise ValueError(
            f"{file}: expected finite values, got infinity or NaN in {' and '.join(damaged)}; convert the model anew"
        )
    return pooler
