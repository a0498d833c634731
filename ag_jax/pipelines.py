"""Trained models in three lines of a notebook.

    from ag_jax import pipelines

    fill = pipelines.fill_mask("runs/quickstart/ag-seed0")
    fill("The state of our <mask> is strong.")  # [Guess(text="union", score=0.83), ...]

    classify = pipelines.classify("runs/glue/sst2/lr2e-05-bs32-seed0")
    classify("A masterpiece.")                  # Guess(text="positive", score=0.99)

Each takes a directory: of a run, of a trial that kept its weights (`--config.keep=best`), or of a Hugging Face model. What it
returns takes one text, or a list of texts and then returns a list; `choose` takes one text with its candidates. Scores are
probabilities. Rows longer than those of training, or than an imported model's positions, are cut as in training; `answer` reads
all of a long context, and `fill_mask` refuses a text that is too long.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ag_jax.data.tasks import buckets, catalogue
from ag_jax.data.tasks.rows import Features, Row, Shape
from ag_jax.data.tasks.task import Choices, Example, Examples, Question, Task, Texts, Words
from ag_jax.data.tokenizers import Tokenizer
from ag_jax.finetuning import kinds, predicting
from ag_jax.interop import opening
from ag_jax.interop.finetuned import FineTuned
from ag_jax.models.encoder import Encoder

BATCH = 16  # rows that are computed together
POOLINGS = ("mean", "first")
Pair = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class Guess:
    """A word, a class, or an answer, and its probability."""

    text: str
    score: float


def fill_mask(directory: str, step: int | None = None) -> Callable[..., Any]:
    """The likeliest words for the mask token of a text, as `Guess`es; a list of these if the text has several masks.

    `fill(text, top=5)`, or `fill([text, ...], top=5)` for a list of what it says of each; the mask is written
    as the tokenizer writes it, such as <mask> or [MASK], or as <mask> anywhere.
    Raises ValueError for a model without a head for masked words.

        fill = pipelines.fill_mask("runs/quickstart/ag-seed0")
        fill("The state of our <mask> is strong.", top=3)
    """
    model, params, tokenizer = opening.open_masked_lm(directory, step)
    mask = tokenizer.specials.mask
    shape = Shape(tokenizer.specials, model.config.max_length, model.config.token_types)
    apply = jax.jit(lambda batch: model.apply({"params": params}, batch, deterministic=True).words_BMV)

    def of_one(text: str, top: int) -> Any:
        parts = _split_at_masks(text, tokenizer)
        if len(parts) == 1:
            raise ValueError(f"there is no mask to fill in {text!r}: write <mask> where a word is missing")
        ids = [*tokenizer.encode(parts[0])]
        for part in parts[1:]:
            ids += [mask, *(tokenizer.encode(part) if part else [])]
        if len(ids) > shape.room(pair=False):
            raise ValueError(
                f"the text has {len(ids)} tokens, but the model room for {shape.room(pair=False)}: shorten it"
            )
        row = shape.row(ids)
        places = np.flatnonzero(row["tokens"] == mask)
        features = _features([row], tokenizer)
        batch = next(_batches(features, model.config.max_length, rows=1))
        batch |= {"original": batch["tokens"], "masked_positions": places[None].astype(np.int32)}
        logits_MV = np.array(apply(batch)[0, :, : tokenizer.vocabulary_size], np.float64)
        logits_MV[:, list(tokenizer.special_ids)] = -np.inf
        found = []
        for scores in _softmax(logits_MV):
            best = np.argsort(-scores, kind="stable")[:top]
            found.append([Guess(tokenizer.decode([index]).strip(), float(scores[index])) for index in best])
        return found[0] if len(found) == 1 else found

    def fill(texts: str | Sequence[str], top: int = 5) -> Any:
        return of_one(texts, top) if isinstance(texts, str) else [of_one(text, top) for text in texts]

    return fill


def classify(directory: str) -> Callable[..., Any]:
    """The class of a text, of a pair `(first, second)`, or of each of a list, as a `Guess`; of a regression the number.

    classify = pipelines.classify("runs/glue/mnli/lr2e-05-bs32-seed0")
    classify([("It rains.", "The street is wet."), ("It rains.", "It is dry.")])
    """
    predict = _Predict(opening.open_finetuned(directory, ("classification", "regression")))

    def say(texts: str | Pair | Sequence[str | Pair]) -> Any:
        single = _is_single(texts)
        pairs = [(text, None) if isinstance(text, str) else tuple(text) for text in ([texts] if single else texts)]
        examples = [Texts(str(number), *pair, None) for number, pair in enumerate(pairs)]
        found, logits = predict(examples)
        if predict.task.kind == "classification":
            labels = predict.task.labels
            found = [
                Guess(labels[label], float(_softmax(row)[label])) for label, row in zip(found, logits, strict=True)
            ]
        return found[0] if single else found

    return say


def choose(directory: str) -> Callable[[str, Sequence[str]], Guess]:
    """Which candidate goes on from a text, as a `Guess`. Of RACE and DREAM a candidate is the question with an answer.

    choose = pipelines.choose("runs/choice/hellaswag/lr2e-05-bs32-seed0")
    choose("He opened the door and", ["went in.", "is a door."])
    """
    predict = _Predict(opening.open_finetuned(directory, ("choice", "ranking")))

    def say(text: str, candidates: Sequence[str]) -> Guess:
        if len(candidates) < 2:
            raise ValueError(f"expected at least two candidates to choose from, got {len(candidates)}")
        found, logits = predict([Choices("0", tuple((text, candidate) for candidate in candidates), None)])
        scores = _softmax(logits[0][: len(candidates)])
        return Guess(candidates[found[0]], float(scores[found[0]]))

    return say


def tag(directory: str) -> Callable[..., Any]:
    """(word, tag) of each word of a text, or of each of a list of texts; a text is split at spaces, or is a list of its words.

    So a list of strings is one of texts, as for the others here, and words of one's own come in a list of lists.

        tag = pipelines.tag("runs/tagging/wnut17/lr2e-05-bs32-seed0")
        tag("Ana flew from Lisbon to Oslo")
        tag([["Ana", "flew", "from", "Lisbon", "to", "Oslo", "."], "He stayed"])
    """
    predict = _Predict(opening.open_finetuned(directory, ("tagging",)))

    def say(texts: str | Sequence[str | Sequence[str]]) -> Any:
        single = isinstance(texts, str)
        sentences = [tuple(text.split() if isinstance(text, str) else text) for text in ([texts] if single else texts)]
        for number, words in enumerate(sentences, 1):
            if not words:
                raise ValueError(f"there is no word to tag in text {number} of {len(sentences)}")
        found, _ = predict([Words(str(number), words, None) for number, words in enumerate(sentences)])
        tagged = [list(zip(words, tags, strict=True)) for words, tags in zip(sentences, found, strict=True)]
        return tagged[0] if single else tagged

    return say


def answer(directory: str, refuses: bool | None = None) -> Callable[..., Any]:
    """The part of a context that answers a question, or such a part for each of a list of questions.

    A list of questions has one context for all, or a list of as many.
    refuses: say "" where the model finds that there is no answer; None: if it was trained here to do so (SQuAD 2.0).

        answer = pipelines.answer("runs/squad/squad2/lr2e-05-bs32-seed0")
        answer("Where does the king live?", context)
        answer(["Where does the king live?", "Since when?"], context)
    """
    tuned = opening.open_finetuned(directory, ("span",))
    if refuses is not None:
        tuned = dataclasses.replace(tuned, head=dataclasses.replace(tuned.head, answerable=not refuses))
    predict = _Predict(tuned)

    def say(questions: str | Sequence[str], contexts: str | Sequence[str]) -> Any:
        single = isinstance(questions, str)
        asked = [questions] if single else list(questions)
        read = [contexts] * len(asked) if isinstance(contexts, str) else list(contexts)
        if (single and not isinstance(contexts, str)) or len(read) != len(asked):
            raise ValueError(
                f"expected one context, or a list of as many contexts as questions, got {len(read)} for "
                f"{'one question' if single else f'{len(asked)} questions'}"
            )
        if not all(context.strip() for context in read):
            raise ValueError("there is no context to find an answer in")
        pairs = enumerate(zip(asked, read, strict=True))
        found, _ = predict([Question(str(number), *pair, None) for number, pair in pairs])
        return found[0] if single else found

    return say


def embed(directory: str, pooling: str = "mean", step: int | None = None) -> Callable[..., np.ndarray]:
    """Vectors of texts, float32 [texts, width], or [width] of one: the mean of a text's tokens, or the `first` token's.

    embed = pipelines.embed("runs/quickstart/ag-seed0")
    embed(["We will rebuild our roads.", "The union is strong."]).shape
    """
    if pooling not in POOLINGS:
        raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}, got {pooling!r}")
    opened = opening.open_encoder(directory, step)
    model, params = Encoder(opened.config), opened.params["encoder"]
    shape = Shape(opened.tokenizer.specials, opened.config.max_length, opened.config.token_types)

    @jax.jit
    def apply(batch: dict[str, Any]) -> jax.Array:
        hidden_BLD = model.apply({"params": params}, batch, deterministic=True).astype(jnp.float32)
        if pooling == "first":
            return hidden_BLD[:, 0]
        weights_BL1 = (batch["sequences"] > 0).astype(jnp.float32)[:, :, None]
        return (hidden_BLD * weights_BL1).sum(1) / jnp.maximum(weights_BL1.sum(1), 1.0)

    def say(texts: str | Sequence[str]) -> np.ndarray:
        single = isinstance(texts, str)
        ids = opened.tokenizer.encode_batch([texts] if single else list(texts))
        rows = [shape.row(of[: shape.room(pair=False)]) for of in ids]
        features = _features(rows, opened.tokenizer)
        if not rows:
            return np.zeros((0, opened.config.width), np.float32)
        vectors = np.stack(predicting.logits_of(apply, features, BATCH, shape.max_length))
        return vectors[0] if single else vectors

    return say


class _Predict:
    """Examples of a fine-tuned model's task to predictions and logits."""

    def __init__(self, tuned: FineTuned):
        head = tuned.head
        self.tuned, self.length = tuned, min(head.max_length, tuned.config.max_length)
        span = (head.low, head.high)
        known = catalogue.TASKS.get(head.task)
        settings = {"labels": head.labels, "span": span, "answerable": head.answerable}
        settings["pair_limit"] = known.pair_limit if known else 0
        self.task = Task(head.task, head.kind, "", "none", ("none",), (), **settings)
        self._apply = jax.jit(lambda batch: tuned.model.apply({"params": tuned.params}, batch, deterministic=True))

    def __call__(self, given: list[Example]) -> tuple[list[Any], list[np.ndarray]]:
        examples, tokenizer = Examples(tuple(given), "a pipeline"), self.tuned.tokenizer
        features = kinds.encode(self.task, examples, tokenizer, self.length, self.tuned.config.token_types)
        logits = predicting.logits_of(self._apply, features, min(BATCH, max(len(features), 1)), self.length)
        return kinds.predict(self.task, examples, features, logits), logits


def _split_at_masks(text: str, tokenizer: Tokenizer) -> list[str]:
    """The text between the masks; spaces before a mask belong to what stands in its place."""
    own = tokenizer.tokens([tokenizer.specials.mask])[0]
    parts = text.replace(own, "<mask>").split("<mask>")
    return [part.rstrip() for part in parts[:-1]] + parts[-1:]


def _features(rows: list[Row], tokenizer: Tokenizer) -> Features:
    return Features(rows, np.arange(len(rows), dtype=np.int32), 0, tokenizer.specials.pad)


def _batches(features: Features, max_length: int, rows: int) -> Iterator[dict[str, np.ndarray]]:
    for batch in buckets.batches(features, rows, max_length=max_length, shuffle=False):
        batch.pop("rows")
        yield batch


def _softmax(logits: np.ndarray) -> np.ndarray:
    raised = np.exp(np.asarray(logits, np.float64) - np.max(logits, axis=-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


def _is_single(texts: Any) -> bool:
    """One text or one pair, and not a list of them."""
    is_pair = isinstance(texts, tuple) and len(texts) == 2 and all(isinstance(text, str) for text in texts)
    return isinstance(texts, str) or is_pair
