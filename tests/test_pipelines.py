"""The helpers for notebooks return the model's own outputs, and a clear error where a head is missing."""

import dataclasses
import json
import random
import shutil

import jax
import numpy as np
import pytest
from etils import epath

from ag_jax import pipelines
from ag_jax.data.config import DataConfig, TokenizerConfig
from ag_jax.finetuning.job import make_head
from ag_jax.interop import exporting, finetuned, opening
from ag_jax.interop.finetuned import FineTuned
from ag_jax.models.encoder import Encoder
from ag_jax.pretraining import run, workloads
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.training.config import TrainingConfig
from ag_jax.training.damage import CorruptCheckpointError
from tests import tiny
from tests.finetuning import tasks
from tests.test_inspection import save_translation

TOKENIZER, CONFIG = tasks.TOKENIZER, tasks.pretrained().config


def random_params(model, batch):
    return tiny.params(model, batch)


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


@pytest.mark.parametrize("name", ["run", "hf"])
def test_fill_mask(name, places):
    fill = pipelines.fill_mask(str(places / name))
    guesses = fill("we build <mask> good", top=4)
    opened = run.open_run(places / "run")
    tokens = row("we build", "<mask>", "good")
    place = np.flatnonzero(tokens[0] == TOKENIZER.specials.mask)[None].astype(np.int32)
    said = opened.model.apply(
        {"params": opened.params}, as_batch(tokens) | {"masked_positions": place}, deterministic=True
    )
    logits = np.array(said.words_BMV[0, 0])
    words = np.delete(np.arange(len(logits)), TOKENIZER.special_ids)
    best = words[np.argsort(-logits[words])][:4]
    assert [guess.text for guess in guesses] == [TOKENIZER.decode([index]) for index in best]
    chances = np.exp(logits[best]) / np.exp(logits[words]).sum()
    np.testing.assert_allclose([guess.score for guess in guesses], chances, rtol=1e-4)
    both = fill(["good <mask>", "we build <mask> good"], top=4)
    assert [guess.text for guess in both[1]] == [guess.text for guess in guesses] and fill([]) == []
    np.testing.assert_allclose([guess.score for guess in both[1]], chances, rtol=1e-4)
    several = fill("we [MASK] the <mask>", top=2)
    assert [len(one) for one in several] == [2, 2]
    with pytest.raises(ValueError, match="no mask to fill in"):
        fill("we build")
    with pytest.raises(ValueError, match="room for 22"):
        fill("roads " * 30 + "<mask>")


@pytest.mark.parametrize("name", ["classification", "hf_classification"])
def test_classify(name, places):
    classify = pipelines.classify(str(places / name))
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
    with pytest.raises(ValueError, match="this model always gives one, got threshold=2: leave it out"):
        pipelines.answer(str(places / "span"), threshold=2.0)


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
        with pytest.raises(ValueError, match="expected one context, or a list of as many contexts as questions, got"):
            answer(*wrong)
    with pytest.raises(ValueError, match="the context of question 2 of 2 is empty: give a text"):
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
    logits = np.asarray(tuned.model.apply({"params": tuned.params}, batch, deterministic=True))[0]
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


@pytest.mark.parametrize("name", ["run", "hf", "classification"])
def test_embed(name, places):
    first, mean = (pipelines.embed(str(places / name), pooling) for pooling in ("first", "mean"))
    source = finetuned.load(places / name) if name == "classification" else run.open_run(places / "run")
    for text in ("we build roads", "good"):
        said = Encoder(CONFIG).apply({"params": source.params["encoder"]}, as_batch(row(text)), deterministic=True)[0]
        np.testing.assert_allclose(first(text), said[0], atol=2e-5)
        np.testing.assert_allclose(mean(["strong strong union", text])[1], said.mean(0), atol=2e-5)
    assert mean([]).shape == (0, CONFIG.width)


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
        (lambda: pipelines.classify(str(places / "run")), ValueError, "is a run of pre-training.*ag-jax finetune"),
        (lambda: pipelines.classify(str(places / "hf")), ValueError, "has no head of a task"),
        (
            lambda: pipelines.tag(str(places / "classification")),
            ValueError,
            "has a head for classification, but tagging",
        ),
        (lambda: pipelines.answer(str(tmp_path)), FileNotFoundError, "is no model"),
        (lambda: pipelines.fill_mask(str(places / "span")), ValueError, "no head for masked words"),
        (lambda: pipelines.fill_mask(str(places / "hf_classification")), ValueError, "no head for masked words"),
        (lambda: pipelines.fill_mask(str(translation)), ValueError, "translates and has no head for masked words"),
        (
            lambda: pipelines.translate(str(places / "hf")),
            ValueError,
            "a Hugging Face model.*`ag-jax import` makes a run",
        ),
        (lambda: pipelines.embed(str(places / "run"), "max"), ValueError, "pooling must be one of mean, first"),
        (lambda: pipelines.embed(str(tmp_path)), FileNotFoundError, "is no model"),
        (lambda: pipelines.choose(str(places / "choice"))("which", ["one"]), ValueError, "at least two candidates"),
    ]
    for call, kind, message in cases:
        with pytest.raises(kind, match=message):
            call()


@pytest.mark.parametrize(
    ("section", "changed", "said"),
    [
        ("model", {"layers": 10**6}, "do not fit the model of task.json"),
        ("model", {"max_length": 10**12}, "model.max_length must be between"),
        ("model", {"vocabulary_size": 0}, "model.vocabulary_size must be a number of at least 1, got none"),
        ("model", {"dropout": 10**400}, "model.dropout must be between"),
        ("head", {"labels": "ab"}, "head.labels must be a list"),
        ("head", {"kind": "classifying"}, "the kind of a task must be one of"),
        ("origin", {"model_type": 5}, "origin.model_type must be of type str, got 5"),
    ],
)
def test_a_damaged_task_file_is_named(section, changed, said, places, tmp_path):
    shutil.copytree(places / "classification" / "weights", tmp_path / "copy")
    file = tmp_path / "copy" / finetuned.TASK
    values = json.loads(file.read_text())
    del values[finetuned.FINGERPRINT]  # which would notice all of these, as in a file of an earlier version
    file.write_text(json.dumps(values | {section: values[section] | changed}))
    with pytest.raises(ValueError, match=said) as caught:
        finetuned.load(tmp_path / "copy")
    assert str(tmp_path / "copy") in str(caught.value)
    for content in ("[" * 3000, "[]", "{}"):
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


def test_a_fine_tuned_model_of_an_earlier_version_is_opened_with_a_warning(places, tmp_path, capsys):
    shutil.copytree(places / "span", tmp_path / "copy")
    finetuned.load(tmp_path / "copy")
    assert capsys.readouterr().err == ""
    path = tmp_path / "copy" / "weights" / finetuned.TASK
    settings = json.loads(path.read_text())
    del settings[finetuned.FINGERPRINT]
    path.write_text(json.dumps(settings))
    older = finetuned.load(tmp_path / "copy")
    assert f"warning: {tmp_path}/copy/weights is of an earlier version" in capsys.readouterr().err
    jax.tree.map(np.testing.assert_array_equal, older.params, finetuned.load(places / "span").params)


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
