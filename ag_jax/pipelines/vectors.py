"""`embed`: vectors of texts."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from ag_jax.data.json_files import read_json
from ag_jax.data.tasks.rows import Features, RowSettings
from ag_jax.finetuning import best, predicting
from ag_jax.interop import opening
from ag_jax.interop.opening import Pretrained
from ag_jax.models.encoder import Encoder
from ag_jax.pipelines.arguments import BATCH_SIZE, check_batch_size, one_or_many
from ag_jax.pipelines.pipeline import BatchedPipeline

POOLINGS = ("mean", "first")
# In the files of sentence-transformers: settings of 1_Pooling/config.json, and modules that leave vectors as they are,
# apart from their length.
_THEIR_POOLINGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "first",
    "pooling_mode=mean": "mean",
    "pooling_mode=cls": "first",
}
_THEIR_MODULES = ("Transformer", "Pooling", "Normalize", "Dropout")


@dataclasses.dataclass(frozen=True, repr=False, eq=False, match_args=False)
class Embed(BatchedPipeline):
    """Function that computes vectors of texts.

    embed("The union is strong.")                                         # an array [width]
    embed(["We will rebuild.", "The union is strong."], batch_size=64)    # an array [texts, width]
    """

    name: ClassVar[str] = "embed"

    _opened: Pretrained
    _shape: RowSettings
    _apply: Callable[[dict[str, Any]], jax.Array]

    def __call__(self, texts: str | Sequence[str], *, batch_size: int | None = None) -> np.ndarray:
        """Return the vector of a text, float32 [width], or the vectors of a list of texts, float32 [texts, width].

        texts: a text, or a list of texts.
        batch_size: the most texts that are computed together; by default the pipeline's.

        Raises ValueError for other arguments.
        """
        lines, single = one_or_many(texts)
        size = self._batch_size(batch_size)
        opened, shape = self._opened, self._shape
        if opened.translates:  # as its sources in training
            lines = [line.strip() for line in lines]
        first = int(opened.translates)  # of each row's fields; without the begin token, one more token fits
        ids = opened.tokenizer.encode_batch(lines)
        rows = [shape.row(of_text[: shape.room(pair=False) + first]) for of_text in ids]
        rows = [{name: field[first:] for name, field in row.items()} for row in rows]
        if not rows:
            return np.zeros((0, opened.config.width), np.float32)
        features = Features(rows, np.arange(len(rows), dtype=np.int32), 0, opened.tokenizer.specials.pad)
        vectors = np.stack(predicting.logits_of(self._apply, features, size, shape.max_length))
        return vectors[0] if single else vectors


def embed(directory: str, pooling: str = "mean", step: int | None = None, *, batch_size: int = BATCH_SIZE) -> Embed:
    """Open the encoder of any model, as a function from texts to vectors.

    directory: of a run, of a trial with saved weights, or of a Hugging Face model.
    pooling: `mean` averages the encoder's last hidden states over a text's tokens, with the begin and end tokens;
        `first` takes the first token's. That is the begin token, which a translation model does not read: there it is
        a token of the first word.
    step: step of a run's checkpoint, the newest by default.
    batch_size: the most texts that are computed together.

    Raises ValueError for another pooling, also if files of sentence-transformers beside the model ask for it or for
    further layers, and ValueError or FileNotFoundError if there is no model.

        embed = pipelines.embed("runs/quickstart/ag-seed0")
        embed(["We will rebuild our roads.", "The union is strong."]).shape
    """
    size = check_batch_size(batch_size)
    if pooling not in POOLINGS:
        raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}, got {pooling!r}")
    found = best.resolve(directory)
    _check_sentence_transformers(epath.Path(found).expanduser(), pooling)
    opened = opening.open_encoder(found, step)
    model, params = Encoder(opened.config), opened.params["encoder"]
    longest = opened.config.max_length if opened.translates else opened.length  # as translation reads sources
    shape = RowSettings(opened.tokenizer.specials, longest, opened.config.token_types)

    @jax.jit
    def apply(batch: dict[str, Any]) -> jax.Array:
        # In float32, because a mean over many tokens loses digits in a narrower type.
        encoded: Any = model.apply({"params": params}, batch, deterministic=True)
        hidden_BLD = encoded.astype(jnp.float32)
        if pooling == "first":
            return hidden_BLD[:, 0]
        weights_BL1 = (batch["segment_ids"] > 0).astype(jnp.float32)[:, :, None]
        # Rows that fill a batch up have no tokens: a divisor of at least 1 keeps NaN out of them.
        return (hidden_BLD * weights_BL1).sum(1) / jnp.maximum(weights_BL1.sum(1), 1.0)

    pooled = "mean over tokens" if pooling == "mean" else "vector of the first token"
    about = f"{pooled}; {opened.config.layers} layers of width {opened.config.width}; rows of {shape.max_length} tokens"
    return Embed(str(directory), about, size, opened, shape, apply)


def _check_sentence_transformers(directory: epath.Path, pooling: str) -> None:
    """Raise ValueError if files of sentence-transformers beside a model ask for another pooling or for more layers."""
    file = directory / "1_Pooling" / "config.json"
    if file.exists():
        settings = read_json(file)
        modes = [key for key, value in settings.items() if key.startswith("pooling_mode_") and value is True]
        if "pooling_mode" in settings:  # another way to write it: a name, such as cls
            modes.append(f"pooling_mode={settings['pooling_mode']}")
        modes = modes or ["pooling_mode_mean_tokens"]  # their default
        if [_THEIR_POOLINGS.get(mode) for mode in modes] != [pooling]:
            theirs = _THEIR_POOLINGS.get(modes[0]) if len(modes) == 1 else None
            remedy = f'call embed with pooling="{theirs}"' if theirs else "compute them with sentence-transformers"
            raise ValueError(
                f"{file} asks for {' and '.join(modes)}, got pooling={pooling!r}, which gives other vectors than those "
                f"that the model was trained for: {remedy}, or delete the file to pool in another way"
            )
    file = directory / "modules.json"
    modules = read_json(file, list) if file.exists() else []
    named = [str(module.get("type")) for module in modules if isinstance(module, dict)]
    if other := [name for name in named if name.rpartition(".")[2] not in _THEIR_MODULES]:
        raise ValueError(
            f"{file} names {', '.join(other)}, which embed does not apply, so its vectors would be others than those "
            "that the model was trained for: compute them with sentence-transformers, or delete the file to do without"
        )
