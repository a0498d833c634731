"""The pipeline `embed`, which computes vectors of texts."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ag_jax.api.pipelines.arguments import BATCH_SIZE, check_batch_size, one_or_many
from ag_jax.api.pipelines.pipeline import Pipeline
from ag_jax.data.tasks.rows import FeatureRow, Features, RowSettings, ids_of, longest_first
from ag_jax.finetuning import predicting
from ag_jax.interop.opening import Pretrained
from ag_jax.models.encoder import Encoder
from ag_jax.models.heads import POOLINGS
from ag_jax.pretraining.origin import SentenceVectors


@dataclasses.dataclass(frozen=True, repr=False, eq=False, match_args=False)
class Embed(Pipeline):
    """Function that computes vectors of texts.

    embed("The union is strong.")                                         # an array [width]
    embed(["We will rebuild.", "The union is strong."], batch_size=64)    # an array [texts, width]
    """

    name: ClassVar[str] = "embed"

    _opened: Pretrained
    _shape: RowSettings
    _apply: Callable[..., jax.Array]

    def __call__(
        self,
        texts: str | Sequence[str],
        *,
        pooling: str | None = None,
        normalize: bool | None = None,
        batch_size: int = BATCH_SIZE,
    ) -> np.ndarray:
        """Return the vector of a text, float32 [width], or the vectors of a list of texts, float32 [texts, width].

        texts: a text, or a list of texts.
        pooling: `mean` averages the encoder's last hidden states over a text's tokens, with the begin and end tokens;
            `first` takes the first token's. That is the begin token, which a translation model does not read: there it
            is a token of the first word. None stands for the pooling in the model's files, or without files for `mean`.
        normalize: divide each vector by its length. None stands for what is in the model's files, or without files for
            no.
        batch_size: the most texts that are computed together.

        Raises ValueError for other arguments, and if the model's files ask for something that is not supported, such as
        a dense layer.
        """
        lines, single = one_or_many(texts)
        size = check_batch_size(batch_size)
        opened, shape, settings = self._opened, self._shape, self._settings(pooling, normalize)
        lines = [settings.prompt + line for line in lines]
        if settings.strip or opened.translates:  # translation models were trained on stripped sources
            lines = [line.strip() for line in lines]
        if settings.lower_case:
            lines = [line.lower() for line in lines]
        every = rows(opened, [(line, None) for line in lines], shape.max_length)
        if not every:
            return np.zeros((0, opened.config.width), np.float32)
        features = Features(every, np.arange(len(every), dtype=np.int32), 0, opened.tokenizer.specials.pad)
        apply = functools.partial(self._apply, pooling=settings.pooling, normalize=settings.normalize)
        vectors = np.stack(predicting.logits_of(apply, features, size, shape.max_length))
        return vectors[0] if single else vectors

    def _settings(self, pooling: str | None, normalize: bool | None) -> SentenceVectors:
        """Return how vectors are made: as the model's files say, unless `pooling` or `normalize` say otherwise."""
        if pooling is not None and pooling not in POOLINGS:
            raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}, got {pooling!r}")
        settings = self._opened.origin.vectors
        if settings.unsupported and pooling is None:
            needed = " and ".join(settings.unsupported)
            raise ValueError(
                f"embed cannot compute the vectors that {self.directory} was trained for, which need {needed}: choose "
                f"other vectors with pooling={' or pooling='.join(map(repr, POOLINGS))}"
            )
        changes: dict[str, Any] = {"pooling": pooling, "normalize": normalize}
        return dataclasses.replace(settings, **{name: value for name, value in changes.items() if value is not None})


def rows(
    opened: Pretrained,
    pairs: Sequence[tuple[str, str | None]],
    longest: int,
    encode: Callable[[str], Sequence[int]] | None = None,
) -> list[FeatureRow]:
    """Return texts and pairs of texts as rows for an encoder, with special tokens; what is too long is cut.

    longest: the most tokens of a row.
    encode: returns the token ids of a text, without special tokens; None is that of the tokenizer.
    """
    tokenizer = opened.tokenizer
    shape = RowSettings(tokenizer.specials, longest, opened.config.token_types)
    first = int(opened.translates)  # of each row's fields; without the begin token, one more token fits
    texts = [text for pair in pairs for text in pair if text is not None]
    encoded = ids_of(tokenizer, texts) if encode is None else {text: encode(text) for text in texts}
    made = []
    for one, other in pairs:
        if other is None:
            row = shape.row(encoded[one][: shape.room(pair=False) + first])
        else:
            row = shape.row(*longest_first(encoded[one], encoded[other], shape.room(pair=True)))
        made.append({name: field[first:] for name, field in row.items()})
    return made


def embed(opened: Pretrained, directory: str) -> Embed:
    """Return the encoder of a model as a function from texts to vectors.

    A model of sentence-transformers, and a run or trial that started from one, gives the vectors that it was trained
    for: pooling, normalisation, longest text, lower case and prompt are those in the model's files.
    """
    settings = opened.origin.vectors
    model, params = Encoder(opened.config), opened.params["encoder"]
    longest = opened.config.max_length if opened.translates else opened.length  # as translation reads sources
    longest = min(longest, settings.max_length or longest)
    shape = RowSettings(opened.tokenizer.specials, longest, opened.config.token_types)

    @functools.partial(jax.jit, static_argnames=("pooling", "normalize"))
    def apply(batch: dict[str, Any], pooling: str, normalize: bool) -> jax.Array:
        # In float32, because a mean over many tokens loses digits in a narrower type.
        encoded: Any = model.apply({"params": params}, batch, deterministic=True)
        vectors_BD = _pooled(encoded.astype(jnp.float32), batch["segment_ids"] > 0, pooling)
        if not normalize:
            return vectors_BD
        return vectors_BD / jnp.maximum(jnp.linalg.norm(vectors_BD, axis=-1, keepdims=True), 1e-12)

    about = (
        f"{'mean over tokens' if settings.pooling == 'mean' else 'vector of the first token'}"
        f"{', divided by its length' if settings.normalize else ''}; {opened.config.layers} layers of width "
        f"{opened.config.width}; rows of {shape.max_length} tokens"
    )
    return Embed(directory, about, opened, shape, apply)


def _pooled(hidden_BLD: jax.Array, tokens_BL: jax.Array, pooling: str) -> jax.Array:
    """Return one vector for each text, [texts, width], from its tokens' hidden states: their mean or the first one.

    tokens_BL: whether there is a token.
    """
    if pooling == "first":
        return hidden_BLD[:, 0]
    weights_BL1 = tokens_BL.astype(jnp.float32)[:, :, None]
    # Rows that fill a batch up have no tokens: a divisor of at least 1 keeps NaN out of them.
    return (hidden_BLD * weights_BL1).sum(1) / jnp.maximum(weights_BL1.sum(1), 1.0)
