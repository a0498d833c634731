"""Trained models as Python functions, for notebooks: fill masks, classify, choose, tag, answer, translate, embed texts.

    from ag_jax import pipelines

    fill = pipelines.fill_mask("runs/quickstart/ag-seed0")
    fill("The state of our <mask> is strong.")  # [Guess(text="union", score=0.83), ...]

    classify = pipelines.classify("runs/glue/sst2/lr2e-05-bs32-seed0")
    classify("A masterpiece.")                  # Guess(text="positive", score=0.99)

Each pipeline takes the directory of a run, of a trial with saved weights (`--config.keep=best`), or of a Hugging Face
model, and returns a function; `translate` takes only a run. The function takes one text, or a list of texts, for which
it returns a list; that of `choose` takes one text with its candidates. Scores are probabilities. Texts longer than
those of training, or than the positions of an imported model, are cut as in training; `answer` reads all of a long
context, and `fill_mask` and `translate` reject a text that is too long.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ag_jax.data.tasks import buckets, catalogue
from ag_jax.data.tasks.rows import FeatureRow, Features, RowSettings
from ag_jax.data.tasks.task import Choices, Example, Examples, Question, TaggedSentence, Task, Texts
from ag_jax.data.tokenizers import Tokenizer
from ag_jax.finetuning import kinds, predicting
from ag_jax.interop import opening
from ag_jax.interop.finetuned import FineTuned
from ag_jax.models.encoder import Batch, Encoder
from ag_jax.pretraining.translate import open_translator

BATCH = 16  # rows that are computed together
POOLINGS = ("mean", "first")
Pair = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class Guess:
    """A predicted word, class or candidate with its probability."""

    text: str
    score: float


def fill_mask(directory: str, step: int | None = None) -> Callable[..., Any]:
    """Return a function that predicts the most probable words for the mask of a text, as a list of `Guess`es.

    `fill(text, top=5)` returns the `top` words, or a list of such lists if the text has several masks;
    `fill([text, ...], top=5)` returns a list with the result for each text. A mask is written as the tokenizer writes
    it, such as [MASK], or as <mask> with any tokenizer.

    step: step of a run's checkpoint, the newest by default.

    Raises ValueError for a model without a head for masked words. The function raises ValueError for a text without a
    mask, or with too many tokens.

        fill = pipelines.fill_mask("runs/quickstart/ag-seed0")
        fill("The state of our <mask> is strong.", top=3)
    """
    opened = opening.open_masked_lm(directory, step)
    model, params, tokenizer = opened.model, opened.params, opened.tokenizer
    mask = tokenizer.specials.mask
    shape = RowSettings(tokenizer.specials, model.config.max_length, model.config.token_types)

    @jax.jit
    def apply(batch: Batch) -> jax.Array:
        heads: Any = model.apply({"params": params}, batch, deterministic=True)
        return heads.words_BMV

    def of_one(text: str, top: int) -> Any:
        parts = _split_at_masks(text, tokenizer)
        if len(parts) == 1:
            raise ValueError(f"there is no mask to fill in {text!r}: write <mask> where a word is missing")
        ids = [*tokenizer.encode(parts[0])]
        for part in parts[1:]:
            ids += [mask, *(tokenizer.encode(part) if part else [])]
        if len(ids) > shape.room(pair=False):
            raise ValueError(
                f"the text has {len(ids)} tokens, but the model has room for {shape.room(pair=False)}: shorten it"
            )
        row = shape.row(ids)
        places = np.flatnonzero(row["tokens"] == mask)
        features = _features([row], tokenizer)
        batch = next(_batches(features, model.config.max_length, rows=1))
        batch |= {"original": batch["tokens"], "masked_positions": places[None].astype(np.int32)}
        logits_MV = np.array(apply(batch)[0, :, : tokenizer.vocabulary_size], np.float64)
        logits_MV[:, list(tokenizer.special_ids)] = -np.inf  # because special tokens are no words
        found = []
        for scores in _softmax(logits_MV):
            best = np.argsort(-scores, kind="stable")[:top]
            found.append([Guess(tokenizer.decode([index]).strip(), float(scores[index])) for index in best])
        return found[0] if len(found) == 1 else found

    def fill(texts: str | Sequence[str], top: int = 5) -> Any:
        return of_one(texts, top) if isinstance(texts, str) else [of_one(text, top) for text in texts]

    return fill


def classify(directory: str) -> Callable[..., Any]:
    """Return a function that predicts the class of a text as a `Guess` (class and probability), or, for a regression
    task, a number.

    It takes a text, a pair `(first, second)`, or a list of these, for which it returns a list.

        classify = pipelines.classify("runs/glue/mnli/lr2e-05-bs32-seed0")
        classify([("It rains.", "The street is wet."), ("It rains.", "It is dry.")])
    """
    predict = _Predict(opening.open_finetuned(directory, ("classification", "regression")))

    def classify_texts(texts: str | Pair | Sequence[str | Pair]) -> Any:
        single = _is_single(texts)
        given: Any = [texts] if single else texts
        pairs = [(text, None) if isinstance(text, str) else text for text in given]
        examples = [Texts(str(number), first, second, None) for number, (first, second) in enumerate(pairs)]
        found, logits = predict(examples)
        if predict.task.kind == "classification":
            labels = predict.task.labels
            found = [
                Guess(labels[label], float(_softmax(row)[label])) for label, row in zip(found, logits, strict=True)
            ]
        return found[0] if single else found

    return classify_texts


def choose(directory: str) -> Callable[[str, Sequence[str]], Guess]:
    """Return a function that predicts which of several candidates continues a text, as a `Guess`.

    For models of RACE and DREAM, a candidate is the question followed by an answer.

        choose = pipelines.choose("runs/choice/hellaswag/lr2e-05-bs32-seed0")
        choose("He opened the door and", ["went in.", "is a door."])
    """
    predict = _Predict(opening.open_finetuned(directory, ("choice", "ranking")))

    def choose_candidate(text: str, candidates: Sequence[str]) -> Guess:
        if len(candidates) < 2:
            raise ValueError(f"expected at least two candidates to choose from, got {len(candidates)}")
        found, logits = predict([Choices("0", tuple((text, candidate) for candidate in candidates), None)])
        scores = _softmax(logits[0][: len(candidates)])
        return Guess(candidates[found[0]], float(scores[found[0]]))

    return choose_candidate


def tag(directory: str) -> Callable[..., Any]:
    """Return a function that predicts a tag for each word of a text, as a list of (word, tag).

    It takes one string, or a list of texts, each a string or a list of words. Strings are split at white space. A text
    given as a list of words must be an item of a list, because a list of strings is a list of texts.

        tag = pipelines.tag("runs/tagging/wnut17/lr2e-05-bs32-seed0")
        tag("Ana flew from Lisbon to Oslo")
        tag([["Ana", "flew", "from", "Lisbon", "to", "Oslo", "."], "He stayed"])
    """
    predict = _Predict(opening.open_finetuned(directory, ("tagging",)))

    def tag_texts(texts: str | Sequence[str | Sequence[str]]) -> Any:
        single = isinstance(texts, str)
        sentences = [
            tuple(text.split() if isinstance(text, str) else text)
            for text in ([texts] if isinstance(texts, str) else texts)
        ]
        for number, words in enumerate(sentences, 1):
            if not words:
                raise ValueError(f"there is no word to tag in text {number} of {len(sentences)}")
        found, _ = predict([TaggedSentence(str(number), words, None) for number, words in enumerate(sentences)])
        tagged = [list(zip(words, tags, strict=True)) for words, tags in zip(sentences, found, strict=True)]
        return tagged[0] if single else tagged

    return tag_texts


def answer(directory: str, refuses: bool | None = None, threshold: float = 0.0) -> Callable[..., Any]:
    """Return a function that takes a question and a context, and returns the part of the context that is the answer.

    It also takes a list of questions, with one context for all or a list of as many contexts, and returns a list.

    refuses: whether the answer is "" where the model predicts that there is none; None: only if the model was trained
        by this program to do so (SQuAD 2.0).
    threshold: how far the score of "no answer" must be above that of the best answer for the answer to be "". The
        report of a suite with squad2 has the thresholds that are best on the development set.

    Raises ValueError for a threshold where there always is an answer.

        answer = pipelines.answer("runs/squad/squad2/lr2e-05-bs32-seed0")
        answer("Where does the king live?", context)
        answer(["Where does the king live?", "Since when?"], context)
    """
    tuned = opening.open_finetuned(directory, ("span", "span_or_none"))
    if refuses is not None:
        # The head's `answerable` decides whether <s>, which stands for "no answer", may be chosen; no logits change.
        tuned = dataclasses.replace(tuned, head=dataclasses.replace(tuned.head, answerable=not refuses))
    if threshold and tuned.head.answerable:
        raise ValueError(
            f"threshold decides when there is no answer, but this model always gives one, got threshold={threshold:g}: "
            "leave it out, or set refuses=True"
        )
    predict = _Predict(tuned, threshold)

    def answer_questions(questions: str | Sequence[str], contexts: str | Sequence[str]) -> Any:
        single = isinstance(questions, str)
        asked = [questions] if isinstance(questions, str) else list(questions)
        read = [contexts] * len(asked) if isinstance(contexts, str) else list(contexts)
        if (single and not isinstance(contexts, str)) or len(read) != len(asked):
            raise ValueError(
                f"expected one context, or a list of as many contexts as questions, got {len(read)} for "
                f"{'one question' if single else f'{len(asked)} questions'}"
            )
        for number, context in enumerate(read, 1):
            if not context.strip():
                raise ValueError(
                    f"the context of question {number} of {len(read)} is empty: give a text to find the answer in"
                )
        pairs = enumerate(zip(asked, read, strict=True))
        found, _ = predict([Question(str(number), *pair, None) for number, pair in pairs])
        return found[0] if single else found

    return answer_questions


def translate(directory: str, step: int | None = None) -> Callable[..., Any]:
    """Return a function that translates a text, or each of a list of texts.

    `translate(text, beams=4)` searches with so many beams, and `alternatives=3` returns the best three translations of
    each text as a list. The other settings of the search are the run's (`decoding`).

    step: step of a run's checkpoint; by default the newest ones are averaged as `translation.average` says.

    The function raises ValueError for a text with a line break, and for one with more tokens than the model has
    positions.

        translate = pipelines.translate("runs/translation/base-seed0")
        translate("A dog runs through the snow.", alternatives=3)
    """
    opened = open_translator(directory, step)

    def translate_texts(texts: str | Sequence[str], beams: int | None = None, alternatives: int = 1) -> Any:
        single = isinstance(texts, str)
        lines = [texts] if isinstance(texts, str) else list(texts)
        for number, line in enumerate(lines, 1):
            if "\n" in line:
                raise ValueError(f"text {number} of {len(lines)} has a line break: translate its lines one by one")
        translator = opened if beams is None else opened.with_decoding(beam_size=beams)
        size = translator.config.beam_size
        if not 1 <= alternatives <= size:
            raise ValueError(f"alternatives must be between 1 and the number of beams, {size}, got {alternatives}")
        found = [[one.text for one in of_text[:alternatives]] for of_text in translator(lines)]
        results = found if alternatives > 1 else [of_text[0] for of_text in found]
        return results[0] if single else results

    return translate_texts


def embed(directory: str, pooling: str = "mean", step: int | None = None) -> Callable[..., np.ndarray]:
    """Return a function that computes vectors of texts: float32 [width] of one text, or [texts, width] of a list.

    pooling: `mean` averages the encoder's last hidden states over a text's tokens, `first` takes the first token's.
        That is the begin token, which a translation model does not read: there it is a token of the first word.
    step: step of a run's checkpoint, the newest by default.

        embed = pipelines.embed("runs/quickstart/ag-seed0")
        embed(["We will rebuild our roads.", "The union is strong."]).shape
    """
    if pooling not in POOLINGS:
        raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}, got {pooling!r}")
    opened = opening.open_encoder(directory, step)
    model, params = Encoder(opened.config), opened.params["encoder"]
    shape = RowSettings(opened.tokenizer.specials, opened.config.max_length, opened.config.token_types)

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

    def embed_texts(texts: str | Sequence[str]) -> np.ndarray:
        single = isinstance(texts, str)
        lines = [texts] if isinstance(texts, str) else list(texts)
        if opened.translates:  # as its sources in training
            lines = [line.strip() for line in lines]
        first = int(opened.translates)  # of each row's fields; without the begin token, one more token fits
        ids = opened.tokenizer.encode_batch(lines)
        rows = [shape.row(of_text[: shape.room(pair=False) + first]) for of_text in ids]
        rows = [{name: field[first:] for name, field in row.items()} for row in rows]
        features = _features(rows, opened.tokenizer)
        if not rows:
            return np.zeros((0, opened.config.width), np.float32)
        vectors = np.stack(predicting.logits_of(apply, features, BATCH, shape.max_length))
        return vectors[0] if single else vectors

    return embed_texts


class _Predict:
    """Function from examples of a fine-tuned model's task to the predictions and logits of the examples.

    threshold: `Task.threshold`, for questions that may have no answer.
    """

    def __init__(self, tuned: FineTuned, threshold: float = 0.0):
        head = tuned.head
        self.tuned, self.length = tuned, min(head.max_length, tuned.config.max_length)
        span = (head.low, head.high)
        known = catalogue.TASKS.get(head.task)
        settings: dict[str, Any] = {"labels": head.labels, "span": span, "answerable": head.answerable}
        settings["threshold"] = threshold
        settings["pair_limit"] = known.pair_limit if known else 0  # so that texts are cut as in training
        self.task = Task(head.task, head.kind, "", "none", ("none",), (), **settings)
        self._apply = jax.jit(lambda batch: tuned.model.apply({"params": tuned.params}, batch, deterministic=True))

    def __call__(self, given: Sequence[Example]) -> tuple[list[Any], list[np.ndarray]]:
        examples, tokenizer = Examples(tuple(given), "a pipeline"), self.tuned.tokenizer
        features = kinds.encode(self.task, examples, tokenizer, self.length, self.tuned.config.token_types)
        logits = predicting.logits_of(self._apply, features, min(BATCH, max(len(features), 1)), self.length)
        return kinds.predict(self.task, examples, features, logits), logits


def _split_at_masks(text: str, tokenizer: Tokenizer) -> list[str]:
    """Return the parts of a text between masks. Spaces before a mask belong to the missing word and are dropped."""
    own = tokenizer.tokens([tokenizer.specials.mask])[0]
    parts = text.replace(own, "<mask>").split("<mask>")
    return [part.rstrip() for part in parts[:-1]] + parts[-1:]


def _features(rows: list[FeatureRow], tokenizer: Tokenizer) -> Features:
    return Features(rows, np.arange(len(rows), dtype=np.int32), 0, tokenizer.specials.pad)


def _batches(features: Features, max_length: int, rows: int) -> Iterator[dict[str, np.ndarray]]:
    for batch in buckets.batches(features, rows, max_length=max_length, shuffle=False):
        batch.pop("rows")
        yield batch


def _softmax(logits: np.ndarray) -> np.ndarray:
    raised = np.exp(np.asarray(logits, np.float64) - np.max(logits, axis=-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


def _is_single(texts: Any) -> bool:
    """Return whether `texts` is one text or one pair of texts, and not a list of them."""
    is_pair = isinstance(texts, tuple) and len(texts) == 2 and all(isinstance(text, str) for text in texts)
    return isinstance(texts, str) or is_pair
