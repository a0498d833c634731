"""Batches of the texts on which head ablation measures a model's loss, the same for every measurement.

They are texts of the caller, the held-out text of a run, or the development examples of a fine-tuning trial.

Shape letters: B rows of a batch, L length.
"""

import dataclasses
import hashlib
from collections.abc import Sequence

import numpy as np

from ag_jax.data import pipeline
from ag_jax.data.config import MaskingConfig
from ag_jax.data.json_files import check_unicode
from ag_jax.data.tasks import buckets
from ag_jax.data.tasks.rows import Features, RowSettings
from ag_jax.data.tasks.task import Examples, Task
from ag_jax.data.text import corruption
from ag_jax.data.tokenizers import Tokenizer
from ag_jax.finetuning import kinds
from ag_jax.interop.finetuned import FineTuned
from ag_jax.pretraining import corpus as pretraining_corpus
from ag_jax.pretraining.open_run import OpenRun

BATCH = 16  # rows that are computed together
GIVEN = "given texts"  # what texts are called that a caller gives
HostBatch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class TextBatches:
    """Batches of tokenised texts, with the index of the text to which each row of a batch belongs.

    batches: pairs of a batch and `text_B`, the index of each row's text; -1 for a row that fills the batch up.
    texts: number of texts.
    source: where the texts are from, for people.
    notes: what was cut or left out, for people.
    """

    batches: tuple[tuple[HostBatch, np.ndarray], ...]
    texts: int
    source: str
    notes: tuple[str, ...] = ()

    def digest(self) -> str:
        """Return the SHA-256 of the batches: of tokens, masked words or labels, and the index of each row's text."""
        digest = hashlib.sha256()
        for batch, text_B in self.batches:
            for name, array in sorted((batch | {"text": text_B}).items()):
                digest.update(f"{name} {array.dtype} {array.shape}".encode())
                digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def of_texts(
    texts: Sequence[str],
    tokenizer: Tokenizer,
    length: int,
    token_types: int,
    most: int | None = None,
    *,
    called: str = GIVEN,
) -> TextBatches:
    """Return batches of texts, one text a row, in which BERT's masking has chosen the words to predict.

    15 % of the tokens of each text are chosen, and 80 % of these are replaced by the mask token, 10 % by a random one.
    The choice depends only on the tokens of the text and its index.

    length: most tokens of a row, special tokens included; a longer text is cut at its end, and counted in the notes.
    token_types: the number of the model's token types.
    most: number of texts to take, spread evenly over them; None takes all.
    called: what the texts are, for people.

    Raises ValueError if no text has a token.
    """
    if isinstance(texts, str):
        raise ValueError(f"expected a list of texts, got one string of {len(texts):,} characters: split it into texts")
    for index, text in enumerate(texts, 1):
        check_unicode(text, f"text {index}")
    number, source = len(texts), f"{len(texts):,} {called}"
    if most is not None and most < number:
        texts = [texts[index * number // most] for index in range(most)]
        source = f"{most:,} of {source}"
    shape = RowSettings(tokenizer.specials, length, token_types)
    room = shape.room(pair=False)
    encoded = [ids for ids in tokenizer.encode_batch([text.strip() for text in texts]) if ids]
    if not encoded:
        raise ValueError(f"there is nothing to measure a loss on: expected texts with tokens, got none in {source}")
    rows = [shape.row(ids[:room]) for ids in encoded]
    features = Features(rows, np.arange(len(rows), dtype=np.int32), 0, tokenizer.specials.pad)
    batches = []
    for batch in buckets.batches(features, _batch_size(features), max_length=length, shuffle=False):
        text_B = batch.pop("rows")
        lengths_B = (batch["segment_ids"] > 0).sum(1)
        # A row that fills the batch up has no tokens, so its mask is empty whatever its index.
        index_B = np.maximum(text_B, 0)
        masked = corruption.mask(
            MaskingConfig(), batch["tokens"], lengths_B, index_B, np.zeros_like(index_B), 0, tokenizer
        )
        fields = {
            "original": batch["tokens"],
            "masked_positions": masked.positions_BM,
            "masked_labels": masked.labels_BM,
            "masked_weights": masked.weights_BM,
        }
        batches.append((batch | fields | {"tokens": masked.tokens_BL}, text_B))
    cut = sum(len(ids) > room for ids in encoded)
    notes = [f"texts that were cut after {room} tokens: {cut:,}"] if cut else []
    if empty := len(texts) - len(encoded):
        notes.append(f"texts without a token, which were left out: {empty:,}")
    return TextBatches(tuple(batches), len(encoded), source, tuple(notes))


def of_run(opened: OpenRun, most: int | None = None) -> TextBatches:
    """Return the batches of a run's held-out text, masked as in its evaluations; every row counts as a text.

    most: number of rows to take, rounded up to whole batches, which are spread evenly over the text; None takes all.
    """
    config = opened.config.data
    corpus, described = pretraining_corpus.prepare_for_evaluation(opened.config, opened.workdir)
    rows = len(corpus.validation)
    size = min(BATCH, rows)
    count = -(-rows // size)
    most_batches = count if most is None else min(count, -(-most // size))
    numbers = {number * count // most_batches for number in range(most_batches)}
    batches, texts = [], 0
    for number, batch in enumerate(pipeline.validation_batches(corpus, config, size)):
        if number in numbers:
            is_text_B = (batch["segment_ids"] > 0).any(1)
            batches.append((batch, np.where(is_text_B, texts + np.cumsum(is_text_B) - 1, -1)))
            texts += int(is_text_B.sum())
    notes = (described["warning"],) if "warning" in described else ()
    return TextBatches(tuple(batches), texts, f"{texts:,} of {rows:,} held-out rows of {described['source']}", notes)


def of_examples(tuned: FineTuned, task: Task, examples: Examples) -> TextBatches:
    """Return batches of a task's examples, tokenised as in the training of a fine-tuned model.

    An example with several windows of a long context has several rows; one without any row is counted in the notes.
    Examples without a label have no weight in the loss.

    Raises ValueError if the task is not that of the model's head.
    """
    head = tuned.head
    if (task.kind, tuple(task.labels)) != (head.kind, head.labels):
        raise ValueError(
            f"the model's head is for {head.kind} with the labels {', '.join(head.labels) or 'none'}, but the task is "
            f"{task.name}, {task.kind} with the labels {', '.join(task.labels) or 'none'}: give a task of that head"
        )
    length = min(head.max_length, tuned.config.max_length)
    features = kinds.encode(task, examples, tuned.tokenizer, length, tuned.config.token_types, training=True)
    batches = []
    for batch in buckets.batches(features, _batch_size(features), max_length=length, shuffle=False):
        row_B = batch.pop("rows")
        batches.append((batch, np.where(row_B < 0, -1, features.owner[row_B])))
    notes = [f"examples that were cut to {length} tokens: {features.truncated:,}"] if features.truncated else []
    if lost := len(examples) - len(np.unique(features.owner)):
        notes.append(f"examples whose answer is in no row, which do not count: {lost:,}")
    return TextBatches(tuple(batches), len(examples), f"{len(examples):,} examples of {examples.source}", tuple(notes))


def _batch_size(features: Features) -> int:
    return min(BATCH, max(len(features), 1))
