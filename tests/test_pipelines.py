"""The helpers for notebooks return the model's own outputs, and a clear error where a head is missing."""

import dataclasses
import functools
import json
import pydoc
import random
import re
import shutil

import jax
import numpy as np
import pytest
from etils import epath

from ag_jax import pipelines
from ag_jax.data import tokenizers
from ag_jax.data.config import DataConfig, TokenizerConfig
from ag_jax.finetuning.job import make_head
from ag_jax.interop import exporting, finetuned, importing, opening, sentence_vectors
from ag_jax.interop.finetuned import FineTuned
from ag_jax.models.encoder import Encoder
from ag_jax.pipelines import words
from ag_jax.pretraining import run, workloads
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.pretraining.origin import SentenceVectors
from ag_jax.training.config import TrainingConfig
from ag_jax.training.damage import CorruptCheckpointError
from tests import tiny
from tests.cases import some
from tests.finetuning import tasks
from tests.test_inspection import save_translation

TOKENIZER, CONFIG = tasks.TOKENIZER, tasks.pretrained().config


def random_params(model, batch):
    return tiny.params(model, batch)


@functools.cache
def opened_once(name, directory):
    """Return a pipeline that several tests share."""
    return getattr(pipelines, name)(directory)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Make a run, its Hugging Face export, and a fine-tuned model of each kind."""
    directory = tmp_path_factory.mktemp("models")
    TOKENIZER.save(directory / "tokenizer")
    config = ExperimentConfig(
        data=DataConfig(sequence_length=24, tokenizer=TokenizerConfig(path=str(directory / "tokenizer"))),
        model=CONFIG,
        training=TrainingConfig(batch_size=8),
    )
    model = workloads.reference_model(config, TOKENIZER)
    batch = {
        name: np.ones((1, 6), np.int32)
        for name in ("tokens", "original", "segment_ids", "token_type_ids", "masked_positions")
    }
    run.write(config, epath.Path(directory / "run"), TOKENIZER, random_params(model, batch))
    for kind in tasks.KINDS:
        head = make_head(tasks.task(kind), "roberta", 24)
        params = tiny.params(head.model(CONFIG), tiny.task_batch(kind))
        finetuned.save(FineTuned(head, CONFIG, TOKENIZER, params), epath.Path(directory / kind / "weights"))
    exporting.convert(epath.Path(directory / "run"), None, str(directory / "hf"))
    exporting.convert(epath.Path(directory / "classification"), None, str(directory / "hf_classification"))
    return directory


def row(*texts):
    special = TOKENIZER.specials
    ids = [special.begin]
    for text in texts:
        ids += [special.mask] if text == "<mask>" else TOKENIZER.encode(text)
    return np.array([[*ids, special.end]], np.int32)


def as_batch(tokens):
    return {"tokens": tokens, "segment_ids": np.ones_like(tokens), "token_type_ids": np.zeros_like(tokens)}


@pytest.mark.parametrize("kind", ["byte_bpe", "wordpiece", "sentencepiece_unigram", "sentencepiece_bpe"])
def test_no_space_is_put_behind_a_mask(kind):
    """The tokens behind a masked word are those behind any word; a tokenizer may put a space before every text."""
    texts = ["the roads were good.", "the roads, they were good", "the roads- good. We build the roads."] * 5
    size = {"byte_bpe": 300, "wordpiece": 40}.get(kind, 28)
    tokenizer = tokenizers.train(TokenizerConfig(kind=kind, vocabulary_size=size), texts)
    before = tokenizer.encode("the roads")
    for after in (".", ", they were good", " were good", "- good."):
        whole = tokenizer.encode("the roads" + after)
        # Not the same tokens: those of sentencepiece may span the border between word and full stop.
        assert tokenizer.decode([*before, *words._continuation(after, tokenizer)]) == tokenizer.decode(whole)


@pytest.mark.parametrize("name", ["run", "hf"])
def test_fill_mask(name, places):
    fill = pipelines.fill_mask(places / name)
    guesses = fill("we build <mask> good", top_k=4)
    opened = run.open_run(places / "run")
    tokens = row("we build", "<mask>", "good")
    place = np.flatnonzero(tokens[0] == TOKENIZER.specials.mask)[None].astype(np.int32)
    said = tiny.apply(opened.model, opened.params, as_batch(tokens) | {"masked_positions": place})
    logits = np.array(said.words_BMV[0, 0])
    words = np.delete(np.arange(len(logits)), TOKENIZER.special_ids)
    best = words[np.argsort(-logits[words])][:4]
    assert [guess.text for guess in guesses] == [TOKENIZER.decode([index]) for index in best]
    chances = np.exp(logits[best]) / np.exp(logits[words]).sum()
    np.testing.assert_allclose([guess.score for guess in guesses], chances, rtol=1e-4)
    both = fill(["good <mask>", "we build <mask> good"], top_k=4)
    assert [guess.text for guess in both[1]] == [guess.text for guess in guesses] and fill([]) == []
    np.testing.assert_allclose([guess.score for guess in both[1]], chances, rtol=1e-4)
    several = fill("we [MASK] the <mask>", top_k=2)
    assert [len(one) for one in several] == [2, 2]
    with pytest.raises(ValueError, match="no mask to fill in"):
        fill("we build")
    with pytest.raises(ValueError, match="room for 22"):
        fill("roads " * 30 + "<mask>")


def test_the_best_run_of_a_comparison_fills_masks(places, tmp_path):
    shutil.copytree(places / "run", tmp_path / "mlm-seed1")
    (tmp_path / "mlm-seed0").mkdir()  # the worse run, without a model
    for name, loss in (("mlm-seed0", 2.75), ("mlm-seed1", 2.5)):
        summary = {"steps": 9, "train_loss": 2.0, "validation_loss": loss, "average_train_loss": 2.0}
        (tmp_path / name / "summary.json").write_text(json.dumps(summary))
    (tmp_path / "report.json").write_text('{"arms": {"mlm": {}}, "seeds": [0, 1]}')
    text = "we build <mask> good"
    assert pipelines.fill_mask(str(tmp_path))(text) == pipelines.fill_mask(str(places / "run"))(text)


@pytest.mark.parametrize("name", ["classification", "hf_classification"])
def test_classify(name, places):
    classify = pipelines.classify(places / name)
    assert repr(classify).startswith(f"<pipelines.classify('{places / name}'): ")
    tuned = finetuned.load(places / "classification")
    logits = np.asarray(
        tuned.model.apply({"params": tuned.params}, as_batch(row("we build roads")), deterministic=True)
    )[0]
    guess = classify("we build roads")
    assert guess.text == ("bad", "good")[int(logits.argmax())]
    assert guess.score == pytest.approx(float(np.exp(logits.max()) / np.exp(logits).sum()), rel=1e-4)
    texts = ["we build roads", "good", ("good", "bad union")]
    assert classify(texts)[0].score == pytest.approx(guess.score, rel=1e-5)
    assert len(classify(texts)) == 3
    assert classify(texts)[2].score == pytest.approx(classify([("good", "bad union")])[0].score, rel=1e-5)
    assert classify(("good", "bad union")).text in ("bad", "good")


def test_numbers_tags_choices_and_answers(places):
    number = pipelines.classify(str(places / "regression"))("good roads")
    tuned = finetuned.load(places / "regression")
    said = tuned.model.apply({"params": tuned.params}, as_batch(row("good roads")), deterministic=True)
    assert number == pytest.approx(5 * float(said[0]), rel=1e-4)  # the scale of the task
    tagged = pipelines.tag(str(places / "tagging"))("we build good roads")
    assert [word for word, _ in tagged] == ["we", "build", "good", "roads"]
    assert {tag for _, tag in tagged} <= {"O", "B-X", "I-X"}
    assert len(pipelines.tag(str(places / "tagging"))("we " * 50)) == 50, "words that are cut have a tag, too"
    guess = pipelines.choose(str(places / "choice"))("which", ["good union", "bad state", "strong roads"])
    assert guess.text in ("good union", "bad state", "strong roads") and 1 / 3 < guess.score <= 1
    context = "we build strong roads " * 9
    found = pipelines.answer(str(places / "span"))("where", context)
    assert found and found in context
    assert pipelines.answer(str(places / "span"), refuses=True)("where", context) in ("", found)
    classified = str(places / "span_or_none")
    always = pipelines.answer(classified, refuses=False)("where", context)
    assert always in context and always
    assert pipelines.answer(classified, threshold=1e6)("where", context) == always
    assert pipelines.answer(classified, threshold=-1e6)("where", context) == ""
    with pytest.raises(ValueError, match="threshold=2 decides .* this model always gives one"):
        pipelines.answer(str(places / "span"), threshold=2.0)


def logits_of(directory, tokens):
    tuned = finetuned.load(directory)
    batch = as_batch(tokens) | {"span_weights": np.ones(tokens.shape, np.float32)}
    return np.asarray(tiny.apply(tuned.model, tuned.params, batch))


def pair_row(first, second):
    special = TOKENIZER.specials
    between = [special.end] * special.pair_separators
    return np.array(
        [[special.begin, *TOKENIZER.encode(first), *between, *TOKENIZER.encode(second), special.end]], np.int32
    )


def softmax(logits):
    return np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)


def check_guesses(found, texts, logits, top_k=None):
    """Check that guesses are the texts in the order of their logits, with their probabilities."""
    order = np.argsort(-logits)[:top_k]
    assert [guess.text for guess in found] == [texts[index] for index in order]
    np.testing.assert_allclose([guess.score for guess in found], softmax(logits)[order], rtol=1e-4)


def test_classify_a_pair_and_all_classes(places):
    classify = pipelines.classify(str(places / "classification"), batch_size=2)
    first, second = "we build roads", "bad union"
    expected = logits_of(places / "classification", pair_row(first, second))[0]
    alone = logits_of(places / "classification", row(first))[0]
    assert abs(expected - alone).max() > 0.01, "the second text must matter"
    for given in ((first, second), ((first, second),)):
        np.testing.assert_allclose(classify.logits(*given), expected, rtol=1e-4)
        check_guesses(classify(*given, top_k=None), classify.labels, expected)
        assert classify(*given) == classify(*given, top_k=2)[0]
    several = [first, (first, second), [first, second], "good"]
    found = classify.logits(several)
    assert found.dtype == np.float32 and found.shape == (4, 2) and classify.labels == ("bad", "good")
    np.testing.assert_allclose(found[:3], [alone, expected, expected], rtol=1e-4)
    np.testing.assert_allclose(classify.logits([first, "good"], [second, "bad"])[0], expected, rtol=1e-4)
    for guesses, logits in zip(classify(several, top_k=5), found, strict=True):
        check_guesses(guesses, classify.labels, logits)
    assert classify.logits([]).shape == (0, 2) and classify([], top_k=None) == []
    hf = pipelines.classify(str(places / "hf_classification"))
    np.testing.assert_allclose(hf.logits(first, second), expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("texts", "good", "bad", "said"),
    [
        (
            1,
            ("good",),
            ("good", "bad"),
            "in training was a single text, but item 1 of 1 is a pair of texts: give a sin",
        ),
        (2, ("good", "bad"), (["good", "bad"],), "was a pair of texts, but item 1 of 2 is a single text: give a pair"),
        (2, ([("a", "b")],), ([("a", "b"), "a"],), "item 2 of 2 is a single text"),
    ],
)
def test_a_model_of_pairs_takes_pairs(texts, good, bad, said, places, tmp_path):
    tuned = finetuned.load(places / "classification")
    head = dataclasses.replace(tuned.head, texts=texts)
    finetuned.save(dataclasses.replace(tuned, head=head), epath.Path(tmp_path))
    classify = pipelines.classify(str(tmp_path))
    assert classify.logits(*good).shape[-1] == 2
    for call in (classify, classify.logits):
        with pytest.raises(ValueError, match=said):
            call(*bad)


def test_guesses_of_tags_choices_and_masks(places):
    tag = pipelines.tag(str(places / "tagging"))
    logits = logits_of(places / "tagging", row("we build roads"))[0, 1:-1]  # each word is one token
    np.testing.assert_allclose(tag.logits(["good", "we build roads"])[1], logits, rtol=1e-4)
    for (word, guesses), expected, logits_C in zip(
        tag("we build roads", top_k=2), ("we", "build", "roads"), logits, strict=True
    ):
        assert word == expected
        check_guesses(guesses, ("O", "B-X", "I-X"), logits_C, 2)
    cut = tag("we " * 50, top_k=None)
    assert [len(guesses) for _, guesses in cut] == [3] * 22 + [0] * 28  # 24 tokens, of which two are special

    choose, candidates = pipelines.choose(str(places / "choice")), ["good union", "bad state", "strong roads"]
    rows = np.array([[pair_row("which", candidate)[0] for candidate in candidates]])
    tuned = finetuned.load(places / "choice")
    batch = as_batch(rows) | {"choice_weights": np.ones((1, 3), np.float32)}
    logits = np.asarray(tiny.apply(tuned.model, tuned.params, batch))[0]
    np.testing.assert_allclose(choose.logits("which", candidates), logits, rtol=1e-4)
    check_guesses(choose("which", candidates, top_k=None), candidates, logits)
    both = choose(["where", "which"], [candidates[:2], candidates], top_k=2)
    check_guesses(both[1], candidates, logits, 2)
    assert choose(["where"], [candidates[:2]])[0] == choose("where", candidates[:2]) and choose([], []) == []

    fill = pipelines.fill_mask(str(places / "run"))
    text = "we <mask> the <mask> and <mask>"
    logits = fill.logits(["good <mask>", text])
    assert [of_text.shape for of_text in logits] == [(1, TOKENIZER.vocabulary_size), (3, TOKENIZER.vocabulary_size)]
    ids = [index for index in range(logits[1].shape[1]) if index not in TOKENIZER.special_ids]
    words = [TOKENIZER.decode([index]) for index in ids]
    for guesses, logits_V in zip(fill(text, top_k=None), logits[1], strict=True):
        check_guesses(guesses, words, logits_V[ids])
    assert fill("good <mask>", 2) == fill("good <mask>", top_k=2)
    assert len(fill("good <mask>")) == 5 and len(fill("good <mask>", top_k=1)) == 1


def test_guesses_of_answers(places):
    """The best answers to a question in a short context, from the logits of its only window."""
    question, words = "where", ("build", "good", "build")
    tokens = pair_row(question, " ".join(words))
    at = tokens.shape[1] - 1 - len(words)  # of the first word of the context, each of which is one token
    start_L, end_L = logits_of(places / "span", tokens)[0, :, :2].T
    scores = {(i, j): start_L[at + i] + end_L[at + j] for i in range(3) for j in range(i, 3)}
    best: dict[str, float] = {}  # "build" is there twice
    for (i, j), score in scores.items():
        text = " ".join(words[i : j + 1])
        best[text] = max(best.get(text, -np.inf), score)
    assert len(scores) == 6 and len(best) == 5
    order, context = sorted(best, key=lambda text: -best[text]), " ".join(words)
    answer = pipelines.answer(str(places / "span"))
    found = answer(question, context, top_k=None)
    assert [guess.text for guess in found] == order and found[0].text == answer(question, context)
    total = sum(np.exp(score) for score in scores.values())
    np.testing.assert_allclose([guess.score for guess in found], [np.exp(best[text]) / total for text in order], 1e-4)
    for guesses in answer([question, question], context, top_k=2):  # the last digits depend on the batch
        assert [guess.text for guess in guesses] == order[:2]
        np.testing.assert_allclose([guess.score for guess in guesses], [guess.score for guess in found[:2]], 1e-5)
    assert answer(question=question, context=context) == order[0]

    none = start_L[0] + end_L[0]
    may_refuse = pipelines.answer(str(places / "span"), refuses=True)(question, context, top_k=None)
    np.testing.assert_allclose(
        {guess.text: guess.score for guess in may_refuse}[""], np.exp(none) / (np.exp(none) + total), 1e-4
    )
    for threshold, first in ((1e3, order[0]), (-1e3, "")):
        answer = pipelines.answer(str(places / "span"), refuses=True, threshold=threshold)
        assert answer(question, context) == answer(question, context, top_k=3)[0].text == first


@pytest.mark.parametrize("name", some(["classify", "tag", "fill_mask", "embed", "answer", "choose"], "fill_mask"))
def test_results_do_not_depend_on_the_batch_size(name, places):
    kind = {"classify": "classification", "tag": "tagging", "answer": "span", "choose": "choice"}.get(name, "run")
    texts = ["good <mask>", "we build <mask> and strong roads", "<mask>", "bad <mask> <mask> <mask>", "union <mask>"]
    more = {"answer": ("we build strong roads " * 9,), "choose": ([["good", "bad", "roads"]] * 5,)}.get(name, ())
    pipeline = getattr(pipelines, name)(str(places / kind), batch_size=3)
    numbers = pipeline.logits if hasattr(pipeline, "logits") else pipeline
    options = {"top_k": None} if name == "answer" else {}

    def values(found):
        leaves = jax.tree.leaves(
            found, is_leaf=lambda leaf: isinstance(leaf, pipelines.Guess)
        )  # arrays, or guesses of answers
        return [leaf.score if isinstance(leaf, pipelines.Guess) else leaf for leaf in leaves]

    given = [[text, *(one[0] if isinstance(one, list) else one for one in more)] for text in texts]
    wanted = values([numbers(*arguments, **options) for arguments in given])
    for size in (None, 1, 2, 64):
        found = values(list(numbers(texts, *more, batch_size=size, **options)))
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("classify", "classification", "classification, task classification; classes bad, good; 2 layers of width 16"),
        ("classify", "hf_classification", "classification; classes bad, good;"),
        ("classify", "regression", "regression, task regression; numbers from 0 to 5"),
        ("choose", "choice", "multiple choice, task choice"),
        ("tag", "tagging", "tags O, B-X, I-X; 2 layers of width 16; rows of 24 tokens"),
        ("answer", "span", "question answering, task span; 2 layers of width 16; rows of 24 tokens; always answers"),
        ("answer", "span_or_none", 'rows of 24 tokens; "" for no answer, threshold 0'),
        ("fill_mask", "run", f"step 0 of the run; a vocabulary of {TOKENIZER.vocabulary_size}; 2 layers of width 16"),
        ("fill_mask", "hf", "Hugging Face model; a vocabulary of"),
        ("embed", "run", "mean over tokens; 2 layers of width 16"),
    ],
)
def test_a_pipeline_says_what_it_is(name, kind, said, places):
    pipeline = getattr(pipelines, name)(str(places / kind), batch_size=7)
    assert repr(pipeline).startswith(f"<pipelines.{name}('{places / kind}'): ") and said in repr(pipeline)
    assert repr(pipeline).endswith("; batch_size=7>")
    text = pydoc.plain(pydoc.render_doc(pipeline))
    assert f"{name}(" in text or "fill(" in text  # examples of calls
    assert "batch_size: the most" in text and "Raises ValueError" in text


def test_a_pipeline_that_translates_says_what_it_is(translation):
    translate = pipelines.translate(str(translation))
    assert repr(translate) == (
        f"<pipelines.translate('{translation}'): 2 layers of width 16; texts of up to 23 tokens; 2 beams>"
    )
    assert "alternatives=3" in pydoc.render_doc(translate)


@pytest.mark.parametrize(
    ("name", "kind", "arguments", "options", "said"),
    [
        ("classify", "classification", (3,), {}, "expected a text (str), a pair of texts .* got 3 (int)"),
        ("classify", "classification", (None,), {}, "got None (NoneType)"),
        (
            "classify",
            "classification",
            ({"text": "a", "text_pair": "b"},),
            {},
            "got {'text': 'a', 'text_pair': 'b'} (dict)",
        ),
        ("classify", "classification", (b"good",), {}, "got b'good' (bytes)"),
        ("classify", "classification", (["good", 3],), {}, "expected a text or a pair of texts as item 2 of 2, got 3"),
        ("classify", "classification", ([("a", "b", "c")],), {}, "pair of texts as item 1 of 1, got ('a', 'b', 'c')"),
        ("classify", "classification", ("good", ["bad"] * 2), {}, "zip() argument 2 is longer than argument 1"),
        ("classify", "classification", (["good"] * 2, ["bad"] * 3), {}, "zip() argument 2 is longer than argument 1"),
        ("classify", "classification", (("a", "b"), "c"), {}, "zip() argument 2 is shorter than argument 1"),
        ("classify", "classification", ("good", 7), {}, "expected a second text (str), or a list of them, got 7 (int)"),
        ("classify", "classification", ("good",), {"top_k": 0}, "top_k must be a whole number of at least 1, or None"),
        ("classify", "classification", ("good",), {"top_k": True}, "or None for all, got True"),
        ("classify", "classification", ("good",), {"top_k": 1.5}, "or None for all, got 1.5"),
        ("classify", "classification", ("good",), {"top_k": "2"}, "or None for all, got '2'"),
        ("classify", "classification", ("good",), {"batch_size": 0}, "batch_size must be .* at least 1, got 0"),
        ("classify", "classification", ("good",), {"batch_size": 2.0}, "batch_size must be .* at least 1, got 2.0"),
        ("classify", "regression", ("good",), {"top_k": None}, "predicts a number, so there are no classes for top_k"),
        ("tag", "tagging", (["good", 3],), {}, "expected a word (str), or a list of them, got 3 (int)"),
        ("tag", "tagging", ([["good", 3]],), {}, "expected a str for word 2 of 2, got 3 (int)"),
        ("tag", "tagging", ("good",), {"top_k": -1}, "got -1"),
        (
            "choose",
            "choice",
            ("which", "good"),
            {},
            "expected a list of at least two candidates for each text, got 'good'",
        ),
        ("choose", "choice", (["which"], [["good", "bad"]] * 2), {}, "zip() argument 2 is longer than argument 1"),
        ("choose", "choice", (["which"], ["good", "bad"]), {}, "for each text, got 'good'"),
        ("choose", "choice", ("which", ["good", 1]), {}, "expected a str for candidate 2 of 2, got 1 (int)"),
        ("answer", "span", ("where", 5), {}, "expected a context (str), or a list of them, got 5 (int)"),
        ("answer", "span", ("where", "we build"), {"top_k": 0}, "got 0"),
        ("fill_mask", "run", ("we <mask>",), {"top_k": 0}, "got 0"),
        ("fill_mask", "run", (7,), {}, "expected a text (str), or a list of them, got 7 (int)"),
        ("embed", "run", ([["we"]],), {}, "expected a str for text 1 of 1, got ['we'] (list)"),
    ],
)
def test_arguments_that_a_pipeline_rejects(name, kind, arguments, options, said, places):
    pipeline = opened_once(name, str(places / kind))
    with pytest.raises(ValueError, match=".*".join(map(re.escape, said.split(".*")))):
        pipeline(*arguments, **options)


@pytest.mark.parametrize("name", ["classify", "tag", "fill_mask", "embed", "answer", "choose"])
def test_a_wrong_batch_size_is_rejected_before_a_model_is_opened(name):
    with pytest.raises(ValueError, match="batch_size must be a whole number of at least 1, got 'many'"):
        getattr(pipelines, name)("nowhere", batch_size="many")


def test_numbers_have_no_logits(places):
    with pytest.raises(ValueError, match="predicts a number and has no classes: call it to get the number"):
        pipelines.classify(str(places / "regression")).logits("good")


def test_a_list_of_texts_is_a_list_of_texts(places):
    tag = pipelines.tag(str(places / "tagging"))
    texts = ["we build good roads", "strong union"]
    assert tag(texts) == [tag(text) for text in texts] == tag([text.split() for text in texts])
    assert [word for word, _ in tag([["we build", "roads"]])[0]] == ["we build", "roads"]
    with pytest.raises(ValueError, match="no word to tag in text 2 of 2"):
        tag(["we", " "])
    answer = pipelines.answer(str(places / "span"))
    questions, contexts = ["where", "who"], ["we build strong roads " * 9, "good union"]
    assert answer(questions, contexts) == [answer(*pair) for pair in zip(questions, contexts, strict=True)]
    assert answer(questions, contexts[0]) == [answer(question, contexts[0]) for question in questions]
    for wrong in (("where", contexts), (questions, contexts[:1])):
        with pytest.raises(ValueError, match=r"zip\(\) argument 2 is (longer|shorter) than argument 1"):
            answer(*wrong)
    with pytest.raises(ValueError, match="context 2 of 2 is empty: give a text"):
        answer(questions, [contexts[0], " "])
    classify = pipelines.classify(str(places / "classification"))
    assert tag([]) == answer([], []) == classify([]) == []


def test_what_is_too_long_is_cut_as_in_training(places, tmp_path):
    tuned = finetuned.load(places / "choice")
    dream = dataclasses.replace(tuned, head=dataclasses.replace(tuned.head, task="dream"))
    finetuned.save(dream, epath.Path(tmp_path))
    text, candidates = "we build strong roads " * 6, ["bad union " * 6 + end for end in ("state", "roads")]
    special, (first, *seconds) = TOKENIZER.specials, TOKENIZER.encode_batch([text, *candidates])
    room = 24 - 2 - special.pair_separators
    assert room // 2 < len(seconds[0]) == len(seconds[1]) < room, "of two equal parts the question would lose some"
    rows = [
        [special.begin, *first[: room - len(second)], *[special.end] * special.pair_separators, *second, special.end]
        for second in seconds
    ]
    batch = as_batch(np.array([rows], np.int32)) | {"choice_weights": np.ones((1, 2), np.float32)}
    logits = np.asarray(tiny.apply(tuned.model, tuned.params, batch))[0]
    guess = pipelines.choose(str(tmp_path))(text, candidates)
    chances = np.exp(logits) / np.exp(logits).sum()
    assert guess.text == candidates[int(np.argmax(chances))] and guess.score == pytest.approx(
        float(chances.max()), rel=1e-4
    )
    assert pipelines.choose(str(places / "choice"))(text, candidates).score != pytest.approx(guess.score, rel=1e-4)


def test_rows_of_an_imported_model_are_as_long_as_its_positions(tmp_path):
    config = dataclasses.replace(CONFIG, max_length=200)
    head = make_head(tasks.task("classification"), "roberta", 200)
    params = tiny.params(head.model(config), tiny.task_batch("classification"))
    finetuned.save(FineTuned(head, config, TOKENIZER, params), epath.Path(tmp_path / "ours"))
    exporting.convert(epath.Path(tmp_path / "ours"), None, str(tmp_path / "hf"))
    text = "we build roads " * 55 + "good"
    assert 128 < len(TOKENIZER.encode(text)) < 198
    said = [pipelines.classify(str(tmp_path / name))(text) for name in ("ours", "hf")]
    assert said[0].text == said[1].text and said[0].score == pytest.approx(said[1].score, rel=1e-4)


@pytest.mark.parametrize("name", some(["run", "hf", "classification"], "run", "classification"))
def test_embed(name, places):
    first, mean = (pipelines.embed(str(places / name), pooling) for pooling in ("first", "mean"))
    source = finetuned.load(places / name) if name == "classification" else run.open_run(places / "run")
    for text in ("we build roads", "good"):
        said = tiny.apply(Encoder(CONFIG), source.params["encoder"], as_batch(row(text)))[0]
        np.testing.assert_allclose(first(text), said[0], atol=2e-5)
        np.testing.assert_allclose(mean(["strong strong union", text])[1], said.mean(0), atol=2e-5)
    assert mean([]).shape == (0, CONFIG.width)


def write_sentence_transformers(directory, pooling, modules=("Transformer", "Pooling"), texts=None, prompts=None):
    """Write the files of sentence-transformers beside a model."""
    types = [{"idx": 0, "type": f"sentence_transformers.models.{name}"} for name in modules]
    files = {
        "modules.json": types,
        "1_Pooling/config.json": pooling,
        "sentence_bert_config.json": texts or {},
        "config_sentence_transformers.json": prompts or {},
    }
    (directory / "1_Pooling").mkdir(parents=True)
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content))


CLS = {"word_embedding_dimension": 6, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}


@pytest.mark.parametrize(
    ("pooling", "modules", "expected"),
    [
        (CLS, ["Transformer", "Pooling", "Normalize"], {"pooling": "first", "normalize": True}),
        ({"pooling_mode_mean_tokens": True}, ["Transformer", "Pooling", "Dropout"], {}),
        ({}, ["Transformer", "Pooling"], {}),
        ({"embedding_dimension": 6, "pooling_mode": "cls"}, [], {"pooling": "first"}),
        ({"pooling_mode": ["mean"]}, [], {}),
        ({"pooling_mode": "max"}, [], {"unsupported": ("the pooling max",)}),
        ({"pooling_mode": ["cls", "mean"]}, [], {"pooling": "first", "unsupported": ("the pooling cls and mean",)}),
        ({"pooling_mode_max_tokens": True}, [], {"unsupported": ("the pooling max",)}),
        ({"pooling_mode_lasttoken": True}, [], {"unsupported": ("the pooling lasttoken",)}),
        (
            {"pooling_mode_mean_tokens": True, "pooling_mode_mean_sqrt_len_tokens": True},
            [],
            {"unsupported": ("the pooling mean and mean_sqrt_len",)},
        ),
        (
            CLS,
            ["Transformer", "Pooling", "Dense"],
            {"pooling": "first", "unsupported": ("the module sentence_transformers.models.Dense",)},
        ),
    ],
)
def test_poolings_and_modules_of_sentence_transformers(pooling, modules, expected, tmp_path):
    write_sentence_transformers(tmp_path, pooling, modules)
    assert sentence_vectors.read(tmp_path) == SentenceVectors(strip=True, **expected)


def test_folder_of_the_pooling_and_earlier_names(tmp_path):
    write_sentence_transformers(tmp_path, CLS)
    modules = [{"type": "sentence_transformers.models.Pooling", "path": "2_Pooling"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    missing = ("the pooling in 2_Pooling/config.json, which is missing",)
    assert sentence_vectors.read(tmp_path).unsupported == missing
    (tmp_path / "1_Pooling").rename(tmp_path / "2_Pooling")
    (tmp_path / "sentence_bert_config.json").rename(tmp_path / "sentence_xlm-roberta_config.json")
    (tmp_path / "sentence_xlm-roberta_config.json").write_text(json.dumps({"max_seq_length": 75}))
    assert sentence_vectors.read(tmp_path) == SentenceVectors(pooling="first", max_length=75, strip=True)


@pytest.mark.parametrize(
    ("pooling", "texts", "prompts", "expected"),
    [
        ({}, {"max_seq_length": 9, "do_lower_case": True}, {}, {"max_length": 9, "lower_case": True}),
        ({}, {"max_seq_length": None}, {}, {"max_length": 77}),
        ({}, {}, {"prompts": {"query": "query: "}, "default_prompt_name": None}, {"max_length": 77}),
        (
            {"include_prompt": False},
            {"max_seq_length": 9},
            {"prompts": {"query": "query: "}, "default_prompt_name": "query"},
            {
                "max_length": 9,
                "prompt": "query: ",
                "unsupported": ("a pooling without the tokens of the prompt",),
            },
        ),
    ],
)
def test_texts_and_prompts_of_sentence_transformers(pooling, texts, prompts, expected, tmp_path):
    write_sentence_transformers(tmp_path, pooling, texts=texts, prompts=prompts)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 77}))
    assert sentence_vectors.read(tmp_path) == SentenceVectors(strip=True, **expected)


def test_damaged_files_of_sentence_transformers(tmp_path):
    """Nothing but `embed` needs them."""
    assert sentence_vectors.read(tmp_path) == SentenceVectors()
    write_sentence_transformers(tmp_path, {})
    (tmp_path / "modules.json").write_text("{}")
    (reason,) = sentence_vectors.read(tmp_path).unsupported
    assert "modules.json: " in reason and "JSON array" in reason


def test_embed_with_a_model_of_sentence_transformers(places, tmp_path):
    """Its vectors are those that the files ask for, also after an import and an export; arguments say otherwise."""
    shutil.copytree(places / "hf", tmp_path / "theirs")
    prompts = {"prompts": {"all": "Union "}, "default_prompt_name": "all"}
    modules, texts = ("Transformer", "Pooling", "Normalize"), {"max_seq_length": 12, "do_lower_case": True}
    write_sentence_transformers(tmp_path / "theirs", CLS, modules, texts, prompts)
    importing.convert(str(tmp_path / "theirs"), epath.Path(tmp_path / "imported"))
    exporting.convert(epath.Path(tmp_path / "imported"), None, str(tmp_path / "exported"))
    text = "  We build ROADS. " + "We build ROADS. " * 4
    tokens = row(f"union {text.lower()}".strip())
    assert 12 < tokens.shape[1] <= 24  # so the text is cut, and would not be without the files
    tokens = np.concatenate([tokens[:, :11], tokens[:, -1:]], axis=1)
    params = run.open_run(places / "run").params["encoder"]
    said = np.asarray(tiny.apply(Encoder(CONFIG), params, as_batch(tokens)))[0]
    for name in ("theirs", "imported", "exported"):
        embed = pipelines.embed(str(tmp_path / name))
        np.testing.assert_allclose(embed(text), said[0] / np.linalg.norm(said[0]), atol=2e-5)
        embed = pipelines.embed(str(tmp_path / name), "mean", normalize=False)
        np.testing.assert_allclose(embed(text), said.mean(0), atol=2e-5)
    (tmp_path / "theirs" / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "max"}))
    with pytest.raises(ValueError, match=r"cannot compute .* need the pooling max: .*pooling='first' or pooling="):
        pipelines.embed(str(tmp_path / "theirs"))
    assert pipelines.embed(str(tmp_path / "theirs"), "mean")("good").shape == (CONFIG.width,)


@pytest.fixture(scope="module")
def translation(tmp_path_factory):
    """Make a run that translates."""
    return save_translation(tmp_path_factory.mktemp("translation") / "run")


def test_embed_with_an_encoder_that_translates(translation):
    """Its texts have no begin token, which it was not trained to read."""
    first, mean = (pipelines.embed(str(translation), pooling) for pooling in ("first", "mean"))
    opened = run.open_run(translation)
    for text, given in (("we build roads", " we build roads "), ("roads " * 23, "roads " * 40)):
        tokens = np.array([[*TOKENIZER.encode(text), TOKENIZER.specials.end]], np.int32)
        encoder = Encoder(opened.model.config)
        said = encoder.apply({"params": opened.params["encoder"]}, as_batch(tokens), deterministic=True)[0]
        np.testing.assert_allclose(first(given), said[0], atol=2e-5)
        np.testing.assert_allclose(mean([given, "good"])[0], said.mean(0), atol=2e-5)


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("good", {"beams": 0}, "decoding.beam_size must be at least 1 and at most 1024, got 0"),
        ("good", {"beams": 2000}, "decoding.beam_size must be at least 1 and at most 1024, got 2000"),
        ("good", {"beams": "4"}, "decoding.beam_size must be"),
        ("good", {"alternatives": 3}, "alternatives must be between 1 and the number of beams, 2, got 3"),
        ("good", {"alternatives": 0}, "alternatives must be between 1 and the number of beams, 2, got 0"),
        (["good", "we\nbuild"], {}, "text 2 of 2 has a line break"),
        (["good", "roads " * 24], {}, "line 2 has 24 tokens, and the model has positions for 23"),
    ],
)
def test_what_translate_rejects(text, options, said, translation):
    with pytest.raises(ValueError, match=said):
        pipelines.translate(str(translation))(text, **options)


def test_clear_words_where_a_head_is_missing(places, translation, tmp_path):
    cases = [
        (
            lambda: pipelines.classify(str(places / "run")),
            FileNotFoundError,
            "is no fine-tuned model: .*ag-jax finetune",
        ),
        (lambda: pipelines.classify(str(places / "hf")), ValueError, "has no head of a task"),
        (
            lambda: pipelines.tag(str(places / "classification")),
            ValueError,
            "has a head for classification, but tagging",
        ),
        (lambda: pipelines.answer(str(tmp_path)), FileNotFoundError, "is no fine-tuned model"),
        (lambda: pipelines.fill_mask(str(places / "span")), ValueError, "no head for masked words"),
        (lambda: pipelines.fill_mask(str(places / "hf_classification")), ValueError, "no head for masked words"),
        (lambda: pipelines.fill_mask(str(translation)), ValueError, "has no head for masked words"),
        (
            lambda: pipelines.translate(str(places / "hf")),
            ValueError,
            "of a Hugging Face model, `ag-jax import` makes one",
        ),
        (lambda: pipelines.embed(str(places / "run"), "max"), ValueError, "pooling must be one of first, mean"),
        (lambda: pipelines.embed(str(tmp_path)), FileNotFoundError, "is no model"),
        (lambda: pipelines.choose(str(places / "choice"))("which", ["one"]), ValueError, "at least two candidates"),
    ]
    for call, kind, message in cases:
        with pytest.raises(kind, match=message):
            call()


@pytest.mark.parametrize(
    ("section", "changed", "said"),
    [
        ("model", {"layers": 900}, "do not fit the model of task.json"),
        ("model", {"max_length": 10**12}, "model.max_length must be at least 1 and at most"),
        ("model", {"vocabulary_size": 0}, "model.vocabulary_size must be at least 1"),
        ("model", {"dropout": 10**400}, "model.dropout must be a finite number"),
        ("head", {"labels": "ab"}, "head.labels must be a list"),
        ("head", {"kind": "classifying"}, "the kind of a task must be one of"),
        ("origin", {"model_type": 5}, "origin.model_type must be a text, got 5"),
    ],
)
def test_a_damaged_task_file_is_named(section, changed, said, places, tmp_path):
    shutil.copytree(places / "classification" / "weights", tmp_path / "copy")
    file = tmp_path / "copy" / finetuned.TASK
    values = json.loads(file.read_text())
    fingerprint = values.pop(finetuned.FINGERPRINT)
    values[section] |= changed
    # With a fingerprint of the changed values, which otherwise would be noticed by it.
    weights = (tmp_path / "copy" / finetuned.WEIGHTS).read_bytes()
    file.write_text(json.dumps(values | {finetuned.FINGERPRINT: finetuned._fingerprint(values, weights)}))
    with pytest.raises(ValueError, match=said) as caught:
        finetuned.load(tmp_path / "copy")
    assert str(tmp_path / "copy") in str(caught.value)
    for content in (
        "[" * 3000,
        "[]",
        "{}",
        json.dumps(values),
        json.dumps(values | {finetuned.FINGERPRINT: fingerprint}),
    ):
        file.write_text(content)
        with pytest.raises(ValueError, match=str(tmp_path / "copy")):
            finetuned.load(tmp_path / "copy")


def test_weights_that_are_not_finite_are_named(places, tmp_path):
    spoilt = finetuned.load(places / "classification")
    spoilt.params["task_head"]["classifier"]["bias"][0] = np.nan
    finetuned.save(spoilt, epath.Path(tmp_path / "copy"))
    with pytest.raises(ValueError, match="task_head/classifier/bias in weights.safetensors holds values that are not"):
        finetuned.load(tmp_path / "copy")


def test_no_flipped_bit_of_a_fine_tuned_model_goes_unnoticed(places, tmp_path, capsys):
    copied = epath.Path(tmp_path / "copy")
    tuned = finetuned.load(places / "classification")
    finetuned.save(tuned, copied)
    chosen = random.Random(0)
    for name in (finetuned.WEIGHTS, finetuned.TASK) * 30:
        original = (copied / name).read_bytes()
        flipped = bytearray(original)
        flipped[chosen.randrange(len(original))] ^= 1 << chosen.randrange(8)
        (copied / name).write_bytes(flipped)
        try:
            found = finetuned.load(copied)
        except ValueError as error:
            assert str(copied) in str(error)
        else:  # the change is outside the values, or hides the fingerprint
            assert (found.head, found.config, found.origin) == (tuned.head, tuned.config, tuned.origin)
            jax.tree.map(np.testing.assert_array_equal, found.params, tuned.params)
        (copied / name).write_bytes(original)
    (copied / finetuned.WEIGHTS).write_bytes(b"x" * 20)
    with pytest.raises(ValueError, match="is damaged"):
        finetuned.load(copied)
    (copied / finetuned.WEIGHTS).unlink()
    with pytest.raises(FileNotFoundError, match=finetuned.WEIGHTS):
        finetuned.load(copied)


def test_a_tokenizer_that_is_missing_is_named(places, tmp_path):
    for name, at in (("run", "run"), ("span", "span/weights")):
        shutil.copytree(places / name, tmp_path / name)
        shutil.rmtree(tmp_path / at / "tokenizer")
        with pytest.raises(FileNotFoundError, match=f"no tokenizer at .*{at}/tokenizer"):
            opening.open_encoder(str(tmp_path / name))


def test_every_way_to_open_damaged_weights_is_refused(places, tmp_path):
    """One changed weight of a run or of a fine-tuned model is rejected, although the file can be read."""
    shutil.copytree(places / "run", tmp_path / "run")
    shutil.copytree(places / "classification", tmp_path / "tuned")
    path = tmp_path / "run" / "checkpoints" / "0" / "progress" / "metadata"
    progress = json.loads(path.read_text())
    name = next(name for name in progress["fingerprint"] if name.startswith("params/encoder/"))
    progress["fingerprint"][name] ^= 1
    path.write_text(json.dumps(progress))
    weights_file = tmp_path / "tuned" / "weights" / finetuned.WEIGHTS
    content = weights_file.read_bytes()
    weights_file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    run_reads = {
        "open_run": run.open_run,
        "fill_mask": pipelines.fill_mask,
        "embed": pipelines.embed,
        "fine-tuning": opening.open_encoder,
        "export": lambda place: exporting.convert(place, None, str(tmp_path / "out")),
    }
    for read in run_reads.values():
        with pytest.raises(
            CorruptCheckpointError, match=f"1 of .* arrays differ from those that were saved, such as {name}"
        ):
            read(str(tmp_path / "run"))
    tuned_reads = {
        "classify": pipelines.classify,
        "embed": pipelines.embed,
        "fine-tuning": opening.open_encoder,
        "export": lambda place: exporting.convert(place, None, str(tmp_path / "out")),
    }
    for read in tuned_reads.values():
        with pytest.raises(ValueError, match="is damaged.*fingerprint differs"):
            read(str(tmp_path / "tuned"))
    assert not (tmp_path / "out").exists()
