"""The pipeline `fill_mask`, which predicts the words that are missing in a text."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import jax
import numpy as np

from ag_jax.api.pipelines.arguments import BATCH_SIZE, check_batch_size, check_top_k, one_or_many
from ag_jax.api.pipelines.guesses import Guess, softmax
from ag_jax.api.pipelines.pipeline import Pipeline
from ag_jax.data.tasks import buckets
from ag_jax.data.tasks.rows import FeatureRow, Features, RowSettings
from ag_jax.data.tokenizers import Tokenizer
from ag_jax.interop.opening import WordModel

TOP_K = 5


@dataclasses.dataclass(frozen=True, repr=False, eq=False, match_args=False)
class FillMask(Pipeline):
    """Function that predicts the words for the masks of a text.

        fill("The state of our <mask> is strong.")           # a text with a mask -> a list of 5 Guesses
        fill("The state of our <mask> is strong.", top_k=3)  # 3 Guesses; top_k=None: the whole vocabulary
        fill("The <mask> of our <mask> is strong.")          # several masks -> a list of such lists
        fill([text, another], batch_size=64)                 # a list of texts -> a list
        fill.logits("The state of our <mask> is strong.")    # an array [masks, vocabulary]

    A mask is written as the tokenizer writes it, such as [MASK], or as <mask> with any tokenizer.

    tokenizer: the model's tokenizer; logits are in the order of its ids.
    """

    name: ClassVar[str] = "fill_mask"

    tokenizer: Tokenizer
    _shape: RowSettings
    _apply: Callable[[dict[str, np.ndarray]], jax.Array]

    def __call__(
        self,
        texts: str | Sequence[str],
        top_k: int | None = TOP_K,
        *,
        batch_size: int = BATCH_SIZE,
    ) -> Any:
        """Return the most probable words for the mask of a text as a list of `Guess`es, the most probable first.

        Words are tokens of the vocabulary, which may be pieces of words.

        texts: a text with one mask or more, or a list of texts, for which a list is returned. For a text with several
            masks there is a list of guesses for each.
        top_k: the number of words; None returns the whole vocabulary.
        batch_size: the most texts that are computed together.

        Special tokens are no words: they are left out. Raises ValueError for other arguments, for a text without a
        mask, and for one with too many tokens.
        """
        top_k = check_top_k(top_k)
        items, single = one_or_many(texts)
        results: list[Any] = [None] * len(items)
        for number, logits_MV in self._logits(items, batch_size):
            of_masks = [self._words(logits_V, top_k) for logits_V in logits_MV]
            results[number] = of_masks[0] if len(of_masks) == 1 else of_masks
        return results[0] if single else results

    def logits(self, texts: str | Sequence[str], *, batch_size: int = BATCH_SIZE) -> Any:
        """Return all tokens' logits for each mask, float32 [masks, vocabulary]; for a list of texts, a list of arrays.

        texts, batch_size: as in a call.
        """
        items, single = one_or_many(texts)
        logits = dict(self._logits(items, batch_size))
        return logits[0] if single else [logits[number] for number in range(len(items))]

    def _words(self, logits_V: np.ndarray, top_k: int | None) -> list[Guess]:
        logits_V = logits_V.astype(np.float64)
        logits_V[list(self.tokenizer.special_ids)] = -np.inf  # because special tokens are no words
        scores = softmax(logits_V)
        words = len(logits_V) - len(set(self.tokenizer.special_ids))
        order = np.argsort(-scores, kind="stable")[: words if top_k is None else min(top_k, words)]
        return [Guess(self.tokenizer.decode([index]).strip(), float(scores[index])) for index in order]

    def _logits(self, texts: list[str], batch_size: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (index in `texts`, logits float32 [masks, vocabulary]) of each text, from the shortest to the longest.

        One batch is in memory at a time, because the scores of a large vocabulary for many texts may not fit.
        """
        size = min(check_batch_size(batch_size), max(len(texts), 1))
        rows = [self._row(text) for text in texts]
        places = [np.flatnonzero(row["tokens"] == self.tokenizer.specials.mask) for row in rows]
        features = Features(rows, np.arange(len(rows), dtype=np.int32), 0, self.tokenizer.specials.pad)
        for batch in buckets.batches(features, size, max_length=self._shape.max_length, shuffle=False):
            owners = [int(row) for row in batch.pop("rows") if row >= 0]  # filler rows come last
            # A power of two, so that few numbers of masks are compiled. The positions that fill up are ignored below.
            most = 2 ** (max(len(places[row]) for row in owners) - 1).bit_length()
            positions_BM = np.zeros((size, most), np.int32)
            for number, row in enumerate(owners):
                positions_BM[number, : len(places[row])] = places[row]
            logits_BMV = self._apply(batch | {"original": batch["tokens"], "masked_positions": positions_BM})
            # Rows that pad the vocabulary stand for no token.
            tokens_BMV = np.asarray(logits_BMV, np.float32)[..., : self.tokenizer.vocabulary_size]
            for number, row in enumerate(owners):
                yield row, tokens_BMV[number, : len(places[row])].copy()

    def _row(self, text: str) -> FeatureRow:
        """Return the token ids and other fields of a text with masks, as a row for the model.

        Raises ValueError for a text without a mask, or a too long one.
        """
        ids = encode_with_masks(text, self.tokenizer)
        if self.tokenizer.specials.mask not in ids:
            raise ValueError(f"there is no mask to fill in {text!r}: write <mask> where a word is missing")
        room = self._shape.room(pair=False)
        if len(ids) > room:
            raise ValueError(f"the text has {len(ids)} tokens, but the model has room for {room}: shorten it")
        return self._shape.row(ids)


def fill_mask(opened: WordModel, directory: str) -> FillMask:
    """Return a model that predicts masked words as a function of texts with masks."""
    model, params, tokenizer = opened.model, opened.params, opened.tokenizer
    shape = RowSettings(tokenizer.specials, opened.length, model.config.token_types)

    @jax.jit
    def apply(batch: dict[str, Any]) -> jax.Array:
        heads: Any = model.apply({"params": params}, batch, deterministic=True)
        return heads.words_BMV

    source = f"step {opened.run.step} of the run" if opened.run is not None else "Hugging Face model"
    about = (
        f"{source}; a vocabulary of {tokenizer.vocabulary_size}; {model.config.layers} layers of width "
        f"{model.config.width}; rows of {shape.max_length} tokens"
    )
    return FillMask(directory, about, tokenizer, shape, apply)


def encode_with_masks(text: str, tokenizer: Tokenizer) -> list[int]:
    """Return the token ids of a text, in which a mask is written as the tokenizer writes it, or as <mask>."""
    first, *others = _split_at_masks(text, tokenizer)
    ids = [*tokenizer.encode(first)]
    for part in others:
        ids += [tokenizer.specials.mask, *(_continuation(part, tokenizer) if part else [])]
    return ids


def _continuation(text: str, tokenizer: Tokenizer) -> list[int]:
    """Return the token ids of a text that follows a masked word.

    Without a space between them: some tokenizers put one before every text that they are given. So the text is read
    behind a letter, unless that letter would share a token with it.
    """
    if text[0].isspace():
        return tokenizer.encode(text)
    [(ids, spans)] = tokenizer.locate_batch(["a" + text])
    if any(begin < 1 < end for begin, end in spans):
        return tokenizer.encode(text)
    return [id for id, (begin, _) in zip(ids, spans, strict=True) if begin >= 1]


def _split_at_masks(text: str, tokenizer: Tokenizer) -> list[str]:
    """Return the parts of a text between masks. Spaces before a mask belong to the missing word and are dropped."""
    mask = tokenizer.tokens([tokenizer.specials.mask])[0]
    parts = text.replace(mask, "<mask>").split("<mask>")
    return [part.rstrip() for part in parts[:-1]] + parts[-1:]
