"""The heads of an opened model as functions of texts return the model's own outputs, and name what they cannot use."""

import ast
import dataclasses
import functools
import json
import pathlib
import random
import re
import shutil
import sys
import types
import unittest.mock

import jax
import numpy as np
import pytest
from etils import epath

import ag_jax
from ag_jax.api.pipelines import words
from ag_jax.data import tokenizers
from ag_jax.data.config import DataConfig, TokenizerConfig
from ag_jax.data.tasks import schemes
from ag_jax.data.tasks.task import Texts
from ag_jax.finetuning.task_training import make_head
from ag_jax.interop import exporting, finetuned, importing, opening, sentence_vectors
from ag_jax.interop.finetuned import FineTuned
from ag_jax.models.encoder import Encoder
from ag_jax.pretraining import initial_weights, workloads
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.pretraining.open_run import open_run
from ag_jax.pretraining.origin import SentenceVectors
from ag_jax.training.damage import CorruptCheckpointError
from tests import results as stored
from tests import tiny
from tests.cases import some
from tests.finetuning import tasks
from tests.test_inspection import save_translation

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOKENIZER, CONFIG = tasks.TOKENIZER, tasks.pretrained().config
SPECIAL = TOKENIZER.specials


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Make a run, its Hugging Face export, a fine-tuned model of each kind, the export of one, and a translation."""
    directory = tmp_path_factory.mktemp("models")
    TOKENIZER.save(directory / "tokenizer")
    config = ExperimentConfig(
        data=DataConfig(sequence_length=24, tokenizer=TokenizerConfig(path=str(directory / "tokenizer"))), model=CONFIG
    )
    params = tiny.params(workloads.reference_model(config, TOKENIZER), tiny.batch())
    initial_weights.write(config, epath.Path(directory / "run"), TOKENIZER, params)
    for kind in tasks.KINDS:
        head = make_head(tasks.task(kind), "roberta", 24)
        params = tiny.params(head.model(CONFIG), tiny.task_batch(kind))
        finetuned.save(FineTuned(head, CONFIG, TOKENIZER, params), epath.Path(directory / kind / "weights"))
    exporting.convert(epath.Path(directory / "run"), None, str(directory / "hf"))
    exporting.convert(epath.Path(directory / "classification"), None, str(directory / "hf_classification"))
    save_translation(directory / "translation")
    return directory


@pytest.fixture(scope="module")
def opened(places):
    """A function (head, model) -> pipeline of one of these models, each of which is opened once."""

    load = functools.cache(lambda kind: ag_jax.load(places / kind))
    return lambda name, kind: getattr(load(kind), name)


def encode(text):
    return [SPECIAL.mask] if text == "<mask>" else TOKENIZER.encode(text)


def row(*texts):
    return np.array([[SPECIAL.begin, *(id for text in texts for id in encode(text)), SPECIAL.end]], np.int32)


def pair_row(first, second):
    between = [SPECIAL.end] * SPECIAL.pair_separators
    return np.array([[SPECIAL.begin, *encode(first), *between, *encode(second), SPECIAL.end]], np.int32)


def as_batch(tokens):
    return {"tokens": tokens, "segment_ids": np.ones_like(tokens), "token_type_ids": np.zeros_like(tokens)}


def logits_of(directory, tokens):
    tuned = finetuned.load(directory)
    weights = {"span_weights": np.ones(tokens.shape, np.float32)}
    weights |= {"choice_weights": np.ones(tokens.shape[:2], np.float32)} if tokens.ndim == 3 else {}
    return np.asarray(tiny.apply(tuned.model, tuned.params, as_batch(tokens) | weights))


def softmax(logits):
    return np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)


def check_guesses(found, texts, logits, top_k=None):
    """Check that guesses are the texts in the order of their logits, with their probabilities."""
    order = np.argsort(-logits)[:top_k]
    assert [guess.text for guess in found] == [texts[index] for index in order]
    np.testing.assert_allclose([guess.score for guess in found], softmax(logits)[order], rtol=1e-4)


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


def test_fill_mask(places, opened, tmp_path):
    """Opens a run, its export, and the best run of a comparison; special tokens are no words."""
    fill, source, text = (
        opened("fill_mask", "run"),
        open_run(places / "run"),
        "we <mask> the <mask> and good <mask>",
    )
    tokens = row("we", "<mask>", "the", "<mask>", "and good", "<mask>")
    at_masks = np.flatnonzero(tokens[0] == SPECIAL.mask)[None].astype(np.int32)
    expected = tiny.apply(source.model, source.params, as_batch(tokens) | {"masked_positions": at_masks}).words_BMV[0]
    several = [text, "we build <mask>", "good [MASK]"]
    logits = fill.logits(several)
    assert [of_text.shape for of_text in logits] == [(n, TOKENIZER.vocabulary_size) for n in (3, 1, 1)]
    np.testing.assert_allclose(logits[0], expected, atol=1e-5)
    hf = opened("fill_mask", "hf")
    np.testing.assert_allclose(hf.logits(text), expected, atol=1e-5)
    ids = [index for index in range(TOKENIZER.vocabulary_size) if index not in TOKENIZER.special_ids]
    shown = [TOKENIZER.decode([index]) for index in ids]
    for guesses, logits_V in zip(fill(text, top_k=None), logits[0], strict=True):
        check_guesses(guesses, shown, logits_V[ids])
    check_guesses(fill(several, 2)[1], shown, logits[1][0, ids], 2)
    assert len(fill("good <mask>")) == 5 and fill([]) == []

    shutil.copytree(places / "run", tmp_path / "plain-seed1")
    (tmp_path / "plain-seed0").mkdir()  # the worse run, without a model
    for name, loss in (("plain-seed0", 2.75), ("plain-seed1", 2.5)):
        summary = {"steps": 9, "train_loss": 2.0, "validation_loss": loss, "average_train_loss": 2.0}
        stored.write(tmp_path / name, summary)
    (tmp_path / "report.json").write_text('{"arms": {"plain": {}}, "seeds": [0, 1]}')
    assert ag_jax.load(tmp_path).directory.name == "plain-seed1"


def test_classify(places, opened):
    classify = opened("classify", "classification")
    first, second = "we build roads", "bad union"
    expected = logits_of(places / "classification", pair_row(first, second))[0]
    alone = logits_of(places / "classification", row(first))[0]
    assert abs(expected - alone).max() > 0.01, "the second text must matter"
    for given in ((first, second), ((first, second),)):
        np.testing.assert_allclose(classify.logits(*given), expected, rtol=1e-4)
        check_guesses(classify(*given, top_k=None), classify.labels, expected)
        assert classify(*given) == classify(*given, top_k=2)[0]
    several = [first, (first, second), [first, second], "", "good " * 50]
    found = classify.logits(several)
    assert found.dtype == np.float32 and found.shape == (5, 2) and classify.labels == ("bad", "good")
    probabilities = opened("predict_proba", "classification")(several)
    assert probabilities.dtype == np.float64 and abs(probabilities.sum(-1) - 1).max() < 1e-12
    np.testing.assert_allclose(probabilities, softmax(found), rtol=1e-5)
    np.testing.assert_allclose(found[:3], [alone, expected, expected], rtol=1e-4)
    np.testing.assert_allclose(classify.logits([first, "good"], [second, "bad"])[0], expected, rtol=1e-4)
    for guesses, logits in zip(classify(several, top_k=5), found, strict=True):
        check_guesses(guesses, classify.labels, logits)
    assert classify.logits([]).shape == (0, 2) and classify([], top_k=None) == []
    hf = opened("classify", "hf_classification")
    np.testing.assert_allclose(hf.logits(first, second), expected, rtol=1e-4)

    several, number = opened("classify", "multilabel"), opened("classify", "regression")
    yes = 1 / (1 + np.exp(-logits_of(places / "multilabel", row(first))[0]))
    ordered = [several.labels[place] for place in np.argsort(-yes)]
    found = several(first, top_k=None)
    assert [guess.text for guess in found] == ordered == [guess.text for guess in several(first, top_k=3)]
    np.testing.assert_allclose([guess.score for guess in found], np.sort(yes)[::-1], rtol=1e-4)
    for threshold in (None, float(yes.min() + yes.max()) / 2):
        likely = sum(yes > (threshold or 0.5))
        assert [of.text for of in several(first, threshold=threshold)] == ordered[:likely]
    model = ag_jax.load(places / "multilabel")
    predicted = [label for label, probability in zip(several.labels, yes, strict=True) if probability > 0.5]
    assert model.predict([first, first]) == [predicted] * 2 == model.predict(first) * 2
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(several._model.apply.args))  # put there once
    np.testing.assert_allclose(model.predict_proba([first])[0], yes, rtol=1e-4)
    expected = 5 * logits_of(places / "regression", row(first))[0]  # the scale of the task
    assert number(first) == pytest.approx(expected, rel=1e-4) and number(["good", first])[1] == pytest.approx(
        number(first)
    )


def test_few_numbers_of_rows_are_compiled(opened):
    """Calls with any number of texts have batches of few sizes, and none above the batch size."""
    sizes, examples = [], [Texts("", "good", None, None)] * 40
    model = dataclasses.replace(
        opened("classify", "classification")._model,
        apply=lambda batch: sizes.append(len(batch["tokens"])) or np.zeros((sizes[-1], 2)),
    )
    assert [len(model.scores(examples[:count], 16)) for count in range(20)] == [*range(20)]
    assert set(sizes) == {1, 2, 4, 8, 16}
    sizes.clear()
    assert len(model.scores(examples, 12)) == 40 and sizes == [12] * 4


def test_the_wrapper_of_textattack(opened, monkeypatch):
    """The page on robustness shows the wrapper and the attack of the benchmark; TextAttack itself is not installed."""
    page = (ROOT / "docs" / "robustness.md").read_text()
    (code,), wrappers = re.findall(r"```python\n(.*?)```", page, re.DOTALL), types.SimpleNamespace(ModelWrapper=object)
    names = [line.split()[1] for line in code.splitlines() if line.startswith("from textattack")]
    for name in {"textattack", *names}:
        monkeypatch.setitem(sys.modules, name, unittest.mock.MagicMock())
    monkeypatch.setitem(sys.modules, "textattack.models.wrappers", wrappers)
    predict_proba, directories = opened("predict_proba", "classification"), []
    model = types.SimpleNamespace(predict_proba=predict_proba)
    monkeypatch.setattr(ag_jax, "load", lambda directory: directories.append(directory) or model)
    shown = {"__name__": "page"}
    exec(code, shown)
    assert directories == ["runs/glue/sst2"]
    texts = ["good", "", "we build roads", "bad " * 50, "roads"]
    found = shown["Wrapper"]("")(texts)
    assert found.shape == (5, 2)
    np.testing.assert_allclose(found[::2], [predict_proba(text)[0] for text in texts[::2]], rtol=1e-5)

    def defined(source):
        nodes = ast.parse(source).body
        return {node.name: ast.dump(node) for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef)}

    program, of_page = defined((ROOT / "benchmarks" / "robustness.py").read_text()), defined(code)
    assert list(of_page) == ["Wrapper", "attack_on"] and of_page.items() <= program.items()


@pytest.mark.parametrize(
    ("texts", "good", "bad", "said"),
    [
        (1, ("good",), ("good", "bad"), "a single text.* item 1 of 1 is a pair"),
        (2, ([("a", "b")],), ([("a", "b"), "a"],), "a pair of texts.* item 2 of 2 is a single"),
    ],
)
def test_a_model_of_pairs_takes_pairs(texts, good, bad, said, places, tmp_path):
    tuned = finetuned.load(places / "classification")
    finetuned.save(dataclasses.replace(tuned, head=dataclasses.replace(tuned.head, texts=texts)), epath.Path(tmp_path))
    classify = ag_jax.load(tmp_path).classify
    assert classify.logits(*good).shape[-1] == 2
    for call in (classify, classify.logits):
        with pytest.raises(ValueError, match=said):
            call(*bad)


def test_tag(places, opened):
    tag, text = opened("tag", "tagging"), "we build roads"
    logits = logits_of(places / "tagging", row(text))[0, 1:-1]  # each word is one token
    np.testing.assert_allclose(tag.logits(["good", text])[1], logits, rtol=1e-4)
    for (word, guesses), expected, logits_C in zip(tag(text, top_k=2), text.split(), logits, strict=True):
        assert word == expected
        check_guesses(guesses, ("O", "B-X", "I-X"), logits_C, 2)
    best = [(word, guesses[0].text) for word, guesses in tag(text, top_k=None)]
    assert tag(text) == best == tag([text.split()])[0] == tag(["good", text])[1]
    assert [word for word, _ in tag([["we build", "roads"]])[0]] == ["we build", "roads"] and tag([]) == []
    cut = tag("we " * 50, top_k=None)
    assert [len(guesses) for _, guesses in cut] == [3] * 22 + [0] * 28  # 24 tokens, of which two are special
    assert [tag for _, tag in tag("we " * 50)][22:] == ["O"] * 28
    texts = ["we build roads", "good roads good union strong", "bad state"]
    for pairs, found in zip(tag(texts), tag(texts, entities=True), strict=True):
        expected = schemes.entities([tag for _, tag in pairs])
        assert found == [(" ".join(word for word, _ in pairs[of[1] : of[2] + 1]), *of) for of in expected]


def test_choose(places, opened, tmp_path):
    """Long texts are cut as in training, for DREAM in the question alone."""
    choose, candidates = opened("choose", "choice"), ["good union", "bad state", "strong roads"]
    rows = np.array([[pair_row("which", candidate)[0] for candidate in candidates]])
    logits = logits_of(places / "choice", rows)[0]
    np.testing.assert_allclose(choose.logits("which", candidates), logits, rtol=1e-4)
    check_guesses(choose("which", candidates, top_k=None), candidates, logits)
    both = choose(["where", "which"], [candidates[:2], candidates], top_k=2)
    check_guesses(both[1], candidates, logits, 2)
    assert choose(["where"], [candidates[:2]])[0] == choose("where", candidates[:2]) and choose([], []) == []

    tuned = finetuned.load(places / "choice")
    dream = dataclasses.replace(tuned, head=dataclasses.replace(tuned.head, task="dream"))
    finetuned.save(dream, epath.Path(tmp_path))
    text, candidates = "we build strong roads " * 6, ["bad union " * 6 + end for end in ("state", "roads")]
    first, *seconds = TOKENIZER.encode_batch([text, *candidates])
    room, between = 24 - 2 - SPECIAL.pair_separators, [SPECIAL.end] * SPECIAL.pair_separators
    assert room // 2 < len(seconds[0]) == len(seconds[1]) < room, "of two equal parts the question would lose some"
    rows = [[SPECIAL.begin, *first[: room - len(second)], *between, *second, SPECIAL.end] for second in seconds]
    logits = logits_of(tmp_path, np.array([rows], np.int32))[0]
    np.testing.assert_allclose(ag_jax.load(tmp_path).choose.logits(text, candidates), logits, rtol=1e-4)
    assert not np.allclose(choose.logits(text, candidates), logits, rtol=1e-4)


def test_answer(places, opened):
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
    answer = opened("answer", "span")
    found = answer(question, context, top_k=None)
    assert [guess.text for guess in found] == order and found[0].text == answer(question, context)
    total = sum(np.exp(score) for score in scores.values())
    np.testing.assert_allclose([guess.score for guess in found], [np.exp(best[text]) / total for text in order], 1e-4)
    long = "we build strong roads " * 9
    questions, contexts = [question, "who"], [context, long]
    for guesses, one in zip(answer(questions, contexts, top_k=2), contexts, strict=True):
        assert guesses[0].text == answer(questions[contexts.index(one)], one) and guesses[0].text in one
    assert answer(questions, long) == [answer(each, long) for each in questions] and answer([], []) == []

    none = start_L[0] + end_L[0]
    for threshold, first in ((0.0, None), (1e3, order[0]), (-1e3, "")):
        options = {"refuses": True, "threshold": threshold}
        guesses = answer(question, context, top_k=None, **options)
        assert answer(question, context, **options) == guesses[0].text and first in (None, guesses[0].text)
        if not threshold:
            refused = {guess.text: guess.score for guess in guesses}[""]
            np.testing.assert_allclose(refused, np.exp(none) / (np.exp(none) + total), 1e-4)
    may_refuse = opened("answer", "span_or_none")
    always = may_refuse(question, context, refuses=False)
    for threshold, expected in ((1e6, always), (-1e6, "")):
        assert may_refuse(question, context, threshold=threshold) == expected


@pytest.mark.parametrize("name", ["fill_mask", "embed"])
def test_results_do_not_depend_on_the_batch_size(name, opened):
    texts = ["good <mask>", "we build <mask> and strong <mask>", "<mask>"]
    pipeline = opened(name, "run")
    numbers = pipeline.logits if name == "fill_mask" else pipeline
    wanted = [numbers(text) for text in texts]
    for one, other in zip(numbers(texts, batch_size=2), wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


GOOD = ("good",)


@pytest.mark.parametrize(
    ("name", "kind", "arguments", "options", "said"),
    [
        ("classify", "classification", ({"text": "a", "text_pair": "b"},), {}, "dict"),
        ("classify", "classification", (["good", 3],), {}, "item 2 of 2.*3"),
        ("classify", "classification", ([("a", "b", "c")],), {}, "item 1 of 1"),
        ("classify", "classification", ("good", ["bad"] * 2), {}, "argument 2"),
        ("classify", "classification", ("good", 7), {}, "second text.*7"),
        *(("classify", "classification", GOOD, {"top_k": wrong}, "top_k") for wrong in (0, True, 1.5)),
        ("classify", "classification", GOOD, {"batch_size": 0}, "batch_size"),
        ("classify", "regression", GOOD, {"top_k": None}, "top_k"),
        ("classify", "classification", GOOD, {"threshold": 0.3}, "threshold"),
        ("classify", "multilabel", GOOD, {"threshold": 0.3, "top_k": 2}, "threshold or top_k"),
        ("classify", "multilabel", GOOD, {"threshold": 30}, "threshold.* 30"),
        ("tag", "tagging", ([["good", 3]],), {}, "word 2 of 2"),
        ("tag", "tagging", (["we", " "],), {}, "text 2 of 2"),
        ("tag", "tagging", GOOD, {"top_k": -1}, "top_k"),
        ("tag", "tagging", GOOD, {"top_k": 2, "entities": True}, "entities.*top_k=2"),
        ("choose", "choice", ("which", "good"), {}, "candidates"),
        ("choose", "choice", ("which", ["one"]), {}, "candidates"),
        ("choose", "choice", (["which"], [["good", "bad"]] * 2), {}, "argument 2"),
        ("choose", "choice", ("which", ["good", 1]), {}, "candidate 2 of 2"),
        ("answer", "span", ("where", 5), {}, "context"),
        ("answer", "span", (["where", "who"], ["good", " "]), {}, "context 2 of 2"),
        ("answer", "span", (["where", "who"], ["good"]), {}, "argument 2"),
        ("answer", "span", ("where", "we build"), {"top_k": 0}, "top_k"),
        ("fill_mask", "run", ("we <mask>",), {"top_k": 0}, "top_k"),
        ("fill_mask", "run", (7,), {}, "7"),
        ("fill_mask", "run", ("we build",), {}, "mask"),
        ("fill_mask", "run", ("roads " * 30 + "<mask>",), {}, "room for 22"),
        ("answer", "span", ("where", "we build"), {"threshold": 2.0}, "threshold"),
        ("embed", "run", ([["we"]],), {}, "text 1 of 1"),
        ("embed", "run", GOOD, {"pooling": "max"}, "pooling"),
        ("embed", "run", GOOD, {"batch_size": "many"}, "batch_size"),
        ("translate", "translation", GOOD, {"beams": 0}, "beam_size"),
        ("translate", "translation", GOOD, {"beams": "4"}, "beam_size"),
        ("translate", "translation", GOOD, {"alternatives": 3}, "alternatives.* 2, got 3"),
        ("translate", "translation", GOOD, {"alternatives": 0}, "alternatives"),
        ("translate", "translation", (["good", "we\nbuild"],), {}, "text 2 of 2"),
        ("translate", "translation", (["good", "roads " * 24],), {}, "line 2 has 24 .* 23"),
    ],
)
def test_arguments_that_a_pipeline_rejects(name, kind, arguments, options, said, opened):
    with pytest.raises(ValueError, match=said):
        opened(name, kind)(*arguments, **options)


def test_models_that_a_pipeline_cannot_use(places, opened, tmp_path):
    cases = [
        ("classify", "run", "ag_jax.finetune"),
        ("classify", "hf", "head of a task"),
        ("tag", "classification", "classification"),
        ("fill_mask", "span", "masked words"),
        ("fill_mask", "translation", "masked words"),
        ("translate", "hf", "does not translate"),
        ("translate", "classification", "does not translate"),
    ]
    for name, kind, said in cases:
        with pytest.raises(ValueError, match=said):
            opened(name, kind)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="empty"):
        ag_jax.load(tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        ag_jax.load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="number"):
        opened("classify", "regression").logits("good")


def test_rows_of_an_imported_model_are_as_long_as_its_positions(tmp_path):
    config = dataclasses.replace(CONFIG, max_length=200)
    head = make_head(tasks.task("classification"), "roberta", 200)
    params = tiny.params(head.model(config), tiny.task_batch("classification"))
    finetuned.save(FineTuned(head, config, TOKENIZER, params), epath.Path(tmp_path / "ours"))
    exporting.convert(epath.Path(tmp_path / "ours"), None, str(tmp_path / "hf"))
    text = "we build roads " * 55 + "good"
    assert 128 < len(TOKENIZER.encode(text)) < 198
    said = [ag_jax.load(tmp_path / name).classify.logits(text) for name in ("ours", "hf")]
    np.testing.assert_allclose(said[0], said[1], rtol=1e-4)


# Vectors of texts.


@pytest.mark.parametrize("name", some(["run", "hf", "classification"], "classification"))
def test_embed(name, places, opened):
    first, mean = (functools.partial(opened("embed", name), pooling=pooling) for pooling in ("first", "mean"))
    source = finetuned.load(places / name) if name == "classification" else open_run(places / "run")
    said = tiny.apply(Encoder(CONFIG), source.params["encoder"], as_batch(row("we build roads")))[0]
    np.testing.assert_allclose(first("we build roads"), said[0], atol=2e-5)
    np.testing.assert_allclose(mean(["strong strong union good", "we build roads"])[1], said.mean(0), atol=2e-5)
    assert mean([]).shape == (0, CONFIG.width)


def test_embed_with_an_encoder_that_translates(places, opened):
    """Its texts have no begin token, which it was not trained to read."""
    first, mean = (functools.partial(opened("embed", "translation"), pooling=pooling) for pooling in ("first", "mean"))
    source = open_run(places / "translation")
    for text, given, embed in (("we build roads", " we build roads ", first), ("roads " * 23, "roads " * 40, mean)):
        tokens = np.array([[*TOKENIZER.encode(text), SPECIAL.end]], np.int32)
        said = tiny.apply(Encoder(source.model.config), source.params["encoder"], as_batch(tokens))[0]
        np.testing.assert_allclose(embed(given), said[0] if embed is first else said.mean(0), atol=2e-5)


def write_sentence_transformers(directory, pooling, modules=("Transformer", "Pooling"), texts=None, prompts=None):
    """Write the files of sentence-transformers beside a model."""
    files = {
        "modules.json": [{"idx": 0, "type": f"sentence_transformers.models.{name}"} for name in modules],
        "1_Pooling/config.json": pooling,
        "sentence_bert_config.json": texts or {},
        "config_sentence_transformers.json": prompts or {},
    }
    (directory / "1_Pooling").mkdir(parents=True)
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content))


CLS = {"word_embedding_dimension": 6, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
BOTH = {"pooling_mode_mean_tokens": True, "pooling_mode_mean_sqrt_len_tokens": True}
QUERY = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
NONE = {"prompts": {"query": "query: "}, "default_prompt_name": None}
DENSE = "the module sentence_transformers.models.Dense"


@pytest.mark.parametrize(
    ("pooling", "more", "expected"),
    [
        (CLS, {"modules": ["Transformer", "Pooling", "Normalize"]}, {"pooling": "first", "normalize": True}),
        ({"pooling_mode_mean_tokens": True}, {"modules": ["Transformer", "Pooling", "Dropout"]}, {}),
        ({}, {}, {}),
        ({"embedding_dimension": 6, "pooling_mode": "cls"}, {"modules": []}, {"pooling": "first"}),
        ({"pooling_mode": ["cls", "mean"]}, {}, {"pooling": "first", "unsupported": ("the pooling cls and mean",)}),
        ({"pooling_mode_lasttoken": True}, {}, {"unsupported": ("the pooling lasttoken",)}),
        (BOTH, {}, {"unsupported": ("the pooling mean and mean_sqrt_len",)}),
        (CLS, {"modules": ["Transformer", "Pooling", "Dense"]}, {"pooling": "first", "unsupported": (DENSE,)}),
        ({}, {"texts": {"max_seq_length": 9, "do_lower_case": True}}, {"max_length": 9, "lower_case": True}),
        ({}, {"texts": {"max_seq_length": 9}, "prompts": NONE}, {"max_length": 9}),
        ({}, {"prompts": QUERY}, {"prompt": "query: "}),
        (
            {"include_prompt": False},
            {"prompts": QUERY},
            {"prompt": "query: ", "unsupported": ("a pooling without the tokens of the prompt",)},
        ),
    ],
)
def test_files_of_sentence_transformers(pooling, more, expected, tmp_path):
    write_sentence_transformers(tmp_path, pooling, **more)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 77}))
    assert sentence_vectors.read(tmp_path) == SentenceVectors(**{"strip": True, "max_length": 77} | expected)


def test_damaged_files_of_sentence_transformers_and_earlier_names(tmp_path):
    """Nothing but `embed` needs them."""
    assert sentence_vectors.read(tmp_path) == SentenceVectors()
    write_sentence_transformers(tmp_path, CLS)
    modules = [{"type": "sentence_transformers.models.Pooling", "path": "2_Pooling"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    assert "2_Pooling/config.json" in sentence_vectors.read(tmp_path).unsupported[0]
    (tmp_path / "1_Pooling").rename(tmp_path / "2_Pooling")
    (tmp_path / "sentence_bert_config.json").rename(tmp_path / "sentence_xlm-roberta_config.json")
    (tmp_path / "sentence_xlm-roberta_config.json").write_text(json.dumps({"max_seq_length": 75}))
    assert sentence_vectors.read(tmp_path) == SentenceVectors(pooling="first", max_length=75, strip=True)
    (tmp_path / "modules.json").write_text("{}")
    (reason,) = sentence_vectors.read(tmp_path).unsupported
    assert "modules.json: " in reason


def test_embed_with_a_model_of_sentence_transformers(places, tmp_path):
    """Its vectors are those that the files ask for, also after an import and an export; arguments say otherwise."""
    shutil.copytree(places / "hf", tmp_path / "theirs")
    prompts = {"prompts": {"all": "Union "}, "default_prompt_name": "all"}
    modules, texts = ("Transformer", "Pooling", "Normalize"), {"max_seq_length": 12, "do_lower_case": True}
    write_sentence_transformers(tmp_path / "theirs", CLS, modules, texts, prompts)
    importing.convert(str(tmp_path / "theirs"), epath.Path(tmp_path / "imported"))
    exporting.convert(epath.Path(tmp_path / "imported"), None, str(tmp_path / "exported"))
    vectors = [opening.open_encoder(str(tmp_path / name)).origin.vectors for name in ("theirs", "imported", "exported")]
    assert vectors[0] == vectors[1] == vectors[2]
    text = "  We build ROADS. " + "We build ROADS. " * 4
    tokens = row(f"union {text.lower()}".strip())
    assert 12 < tokens.shape[1] <= 24  # so the text is cut, and would not be without the files
    tokens = np.concatenate([tokens[:, :11], tokens[:, -1:]], axis=1)
    said = np.asarray(tiny.apply(Encoder(CONFIG), open_run(places / "run").params["encoder"], as_batch(tokens)))[0]
    embed = ag_jax.load(tmp_path / "exported").embed
    np.testing.assert_allclose(embed(text), said[0] / np.linalg.norm(said[0]), atol=2e-5)
    np.testing.assert_allclose(embed(text, pooling="mean", normalize=False), said.mean(0), atol=2e-5)
    (tmp_path / "theirs" / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "max"}))
    embed = ag_jax.load(tmp_path / "theirs").embed
    with pytest.raises(ValueError, match="the pooling max"):
        embed(text)
    assert embed(text, pooling="mean").shape == (CONFIG.width,)


# Damaged models.


@pytest.mark.parametrize(
    ("section", "changed", "said"),
    [
        ("model", {"layers": 900}, "do not fit"),
        ("model", {"max_length": 10**12}, r"model\.max_length"),
        ("model", {"dropout": 10**400}, r"model\.dropout"),
        ("head", {"labels": "ab"}, r"head\.labels"),
        ("head", {"kind": "classifying"}, "kind"),
        ("origin", {"model_type": 5}, r"origin\.model_type"),
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
    with pytest.raises(ValueError, match=rf"{tmp_path / 'copy'}.*{said}"):
        finetuned.load(tmp_path / "copy")
    for content in (values, values | {finetuned.FINGERPRINT: fingerprint}):
        file.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=str(tmp_path / "copy")):
            finetuned.load(tmp_path / "copy")


def test_no_flipped_bit_of_a_fine_tuned_model_goes_unnoticed(places, tmp_path):
    copied, tuned = epath.Path(tmp_path / "copy"), finetuned.load(places / "classification")
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
    (copied / finetuned.WEIGHTS).unlink()
    with pytest.raises(FileNotFoundError, match=finetuned.WEIGHTS):
        finetuned.load(copied)
    tuned.params["task_head"]["classifier"]["bias"][0] = np.nan
    finetuned.save(tuned, copied)
    with pytest.raises(ValueError, match=f"task_head/classifier/bias in {finetuned.WEIGHTS}"):
        finetuned.load(copied)


def test_every_way_to_open_damaged_models_is_refused(places, tmp_path):
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
    both = [ag_jax.load, opening.open_encoder, lambda place: exporting.convert(place, None, str(tmp_path / "out"))]
    for read in (open_run, *both):
        with pytest.raises(CorruptCheckpointError, match=f"1 of .*{name}"):
            read(str(tmp_path / "run"))
    for read in both:
        with pytest.raises(ValueError, match="fingerprint"):
            read(str(tmp_path / "tuned"))
    assert not (tmp_path / "out").exists()
    for place in ("run", "tuned/weights"):
        shutil.rmtree(tmp_path / place / "tokenizer")
        shutil.copytree(places / place.replace("tuned", "classification"), tmp_path / place, dirs_exist_ok=True)
        shutil.rmtree(tmp_path / place / "tokenizer")
        with pytest.raises(FileNotFoundError, match=f"{place}/tokenizer"):
            opening.open_encoder(str(tmp_path / place))
