"""The pipeline `embed`, which computes vectors of texts."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from ag_jax.data.tasks.rows import Features, RowSettings
from ag_jax.finetuning import best, predicting
from ag_jax.interop import opening
from ag_jax.interop.opening import Pretrained
from ag_jax.models.encoder import Encoder
from ag_jax.models.heads import POOLINGS
from ag_jax.pipelines.arguments import BATCH_SIZE, check_batch_size, one_or_many
from ag_jax.pipelines.pipeline import BatchedPipeline
from ag_jax.pretraining.origin import SentenceVectors


@dataclasses.dataclass(frozen=True, repr=False, eq=False, match_args=False)
class Embed(BatchedPipeline):
    """Function that computes vectors of texts.

    embed("The union is strong.")                                         # an array [width]
    embed(["We will rebuild.", "The union is strong."], batch_size=64)    # an array [texts, width]
    """

    name: ClassVar[str] = "embed"

    _opened: Pretrained
    _shape: RowSettings
    _settings: SentenceVectors
    _apply: Callable[[dict[str, Any]], jax.Array]

    def __call__(self, texts: str | Sequence[str], *, batch_size: int | None = None) -> np.ndarray:
        """Return the vector of a text, float32 [width], or the vectors of a list of texts, float32 [texts, width].

        texts: a text, or a list of texts.
        batch_size: the most texts that are computed together; by default the pipeline's.

        Raises ValueError for other arguments.
        """
        lines, single = one_or_many(texts)
        size = self._batch_size(batch_size)
        opened, shape, settings = self._opened, self._shape, self._settings
        lines = [settings.prompt + line for line in lines]
        if settings.strip or opened.translates:  # translation models were trained on stripped sources
            lines = [line.strip() for line in lines]
        if settings.lower_case:
            lines = [line.lower() for line in lines]
        first = int(opened.translates)  # of each row's fields; without the begin token, one more token fits
        ids = opened.tokenizer.encode_batch(lines)
        rows = [shape.row(of_text[: shape.room(pair=False) + first]) for of_text in ids]
        rows = [{name: field[first:] for name, field in row.items()} for row in rows]
        if not rows:
            return np.zeros((0, opened.config.width), np.float32)
        features = Features(rows, np.arange(len(rows), dtype=np.int32), 0, opened.tokenizer.specials.pad)
        vectors = np.stack(predicting.logits_of(self._apply, features, size, shape.max_length))
        return vectors[0] if single else vectors


def embed(
    directory: epath.PathLike,
    pooling: str | None = None,
    step: int | None = None,
    *,
    normalize: bool | None = None,
    batch_size: int = BATCH_SIZE,
) -> Embed:
    """Open the encoder of a run, a trial or a Hugging Face model, as a function from texts to vectors.

    A model of sentence-transformers, and a run or trial that started from one, gives the vectors that it was trained
    for: pooling, normalisation, longest text, lower case and prompt are those in the model's files.

    directory: of a run, of a trial with saved weights, or of a Hugging Face model.
    pooling: `mean` averages the encoder's last hidden states over a text's tokens, with the begin and end tokens;
        `first` takes the first token's. That is the begin token, which a translation model does not read: there it is
        a token of the first word. None stands for the pooling in the model's files, or without files for `mean`.
    step: step of a run's checkpoint, the newest by default.
    normalize: divide each vector by its length. None stands for what is in the model's files, or without files for no.
    batch_size: the most texts that are computed together.

    Raises ValueError for another pooling and if the model's files ask for something that is not supported, such as a
    dense layer, and ValueError or FileNotFoundError if there is no model.

        embed = pipelines.embed("runs/quickstart/ag-seed0")
        embed(["We will rebuild our roads.", "The union is strong."]).shape
    """
    size = check_batch_size(batch_size)
    if pooling is not None and pooling not in POOLINGS:
        raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}, got {pooling!r}")
    opened = opening.open_encoder(best.resolve(directory), step)
    settings = opened.origin.vectors
    if settings.unsupported and pooling is None:
        needed = " and ".join(settings.unsupported)
        raise ValueError(
            f"embed cannot compute the vectors that {directory} was trained for, which need {needed}: choose other "
            f"vectors with pooling={' or pooling='.join(map(repr, POOLINGS))}"
        )
    arguments: dict[str, Any] = {"pooling": pooling, "normalize": normalize}
    settings = dataclasses.replace(settings, **{name: value for name, value in arguments.items() if value is not None})
    model, params = Encoder(opened.config), opened.params["encoder"]
    longest = opened.config.max_length if opened.translates else opened.length  # as translation reads sources
    longest = min(longest, settings.max_length or longest)
    shape = RowSettings(opened.tokenizer.specials, longest, opened.config.token_types)

    @jax.jit
    def apply(batch: dict[str, Any]) -> jax.Array:
        # In float32, because a mean over many tokens loses digits in a narrower type.
        encoded: Any = model.apply({"params": params}, batch, deterministic=True)
        vectors_BD = _pooled(encoded.astype(jnp.float32), batch["segment_ids"] > 0, settings.pooling)
        if not settings.normalize:
            return vectors_BD
        return vectors_BD / jnp.maximum(jnp.linalg.norm(vectors_BD, axis=-1, keepdims=True), 1e-12)

    about = (
        f"{'mean over tokens' if settings.pooling == 'mean' else 'vector of the first token'}"
        f"{', divided by its length' if settings.normalize else ''}; {opened.config.layers} layers of width "
        f"{opened.config.width}; rows of {shape.max_length} tokens"
    )
    return Embed(str(directory), about, size, opened, shape, settings, apply)


def _pooled(hidden_BLD: jax.Array, tokens_BL: jax.Array, pooling: str) -> jax.Array:
    """Return one vector for each text, [texts, width], from its tokens' hidden states: their mean or the first one.

    tokens_BL: whether there is a token.
    """
    if pooling == "first":
        return hidden_BLD[:, 0]
    weights_BL1 = tokens_BL.astype(jnp.float32)[:, :, None]
    # Rows that fill a batch up have no tokens: a divisor of at least 1 keeps NaN out of them.
    return (hidden_BLD * weights_BL1).sum(1) / jnp.maximum(weights_BL1.sum(1), 1.0)
