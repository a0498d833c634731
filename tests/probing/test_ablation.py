"""The table of head ablation against a plain loop over parameters with output kernels of zeros, for words and tasks."""

import dataclasses
import shutil
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from scipy import special as functions

from ag_jax.data import pipeline
from ag_jax.data.tasks.task import Examples
from ag_jax.finetuning import development, kinds
from ag_jax.finetuning.task_training import make_head
from ag_jax.interop import finetuned, opening
from ag_jax.interop.finetuned import FineTuned
from ag_jax.models.encoder import Ports
from ag_jax.objectives.masked_lm import MLM
from ag_jax.objectives.supervised import TASK
from ag_jax.pretraining import run_directory
from ag_jax.pretraining.origin import Origin
from ag_jax.probing.ablation import batches, heads, losses, trained
from ag_jax.probing.ablation.batches import TextBatches
from ag_jax.probing.ablation.heads import HeadAblation
from tests import tiny
from tests.cases import some
from tests.finetuning import tasks
from tests.probing import trained_models
from tests.probing.trained_models import CONFIG, LENGTH, TEXTS, TOKENIZER

RNG = np.random.default_rng(6)
TRIAL = "suite/sst2/lr1e-05-bs8-seed0"


@pytest.fixture(scope="module")
def words():
    """A model that predicts masked words, in which head 1 of layer 0 writes nothing, and its table."""
    opened, done = trained_models.word_model(), []
    model = trained.of_words(opened)
    found = heads.measure(model, model.texts(TEXTS), progress=lambda *counts: done.append(counts))
    return opened, found, done


def plain_losses(opened, params, data):
    """The loss of each text, and how many words it has, from all scores of all words."""
    sums, counts = np.zeros(data.texts), np.zeros(data.texts)
    for batch, text_B in data.batches:
        words_BMV = tiny.apply(opened.model, params, batch).words_BMV
        logs_BMV = functions.log_softmax(np.asarray(words_BMV, np.float64), axis=-1)
        for row, text in enumerate(text_B):
            for slot in np.flatnonzero(batch["masked_weights"][row]):
                sums[text] -= logs_BMV[row, slot, batch["masked_labels"][row, slot]]
                counts[text] += 1
    return sums, counts


def test_words_equal_a_loop_over_edited_parameters(words):
    opened, found, done = words
    data = batches.of_texts(TEXTS, TOKENIZER, LENGTH, CONFIG.token_types)
    sums_T, counts_T = plain_losses(opened, opened.params, data)
    assert found.metric is MLM and found.weights_T.dtype == found.base_T.dtype == np.float64
    np.testing.assert_array_equal(found.weights_T, counts_T)
    np.testing.assert_allclose(found.base_T, sums_T, rtol=1e-5)
    assert found.base_loss == pytest.approx(sums_T.sum() / counts_T.sum(), rel=1e-5)
    for layer, head in np.ndindex(2, 2):
        ablated_T, _ = plain_losses(opened, trained_models.without(opened.params, layer, head), data)
        np.testing.assert_allclose(found.sums_NHT[layer, head], ablated_T, rtol=1e-5)
        change = (ablated_T - sums_T).sum() / counts_T.sum()
        assert found.change_NH[layer, head] == pytest.approx(change, abs=1e-5)
    assert found.change_NH[0, 1] == 0.0 and (found.sums_NHT[0, 1] == found.base_T).all()
    assert (np.abs(np.delete(found.change_NH.ravel(), 1)) > 1e-3).all()
    passes = 5 * len(data.batches)
    assert done == [(number, passes) for number in range(1, passes + 1)]
    unmasked = int((found.weights_T == 0).sum())
    assert 0 < unmasked < 21 == len(found.weights_T) and found.source.startswith("23 ")
    # What was cut after 12 tokens and left out.
    assert [note.rpartition(": ")[2] for note in found.notes] == ["1", "2", str(unmasked)]


def test_masks_of_texts():
    """They do not depend on the batch, and are those of 15 % of the words."""
    long = [" ".join(RNG.choice(tasks.WORDS, 40)) for _ in range(19)]
    texts = [long[0], "good bad", *long[1:]]
    data = batches.of_texts(texts, TOKENIZER, 64, 2)
    seen = []
    for batch, text_B in data.batches:
        lengths_B = (batch["segment_ids"] > 0).sum(1)
        for row, text in enumerate(text_B):
            used = batch["masked_weights"][row] > 0
            places = batch["masked_positions"][row, used]
            if text < 0:
                assert not used.any() and not lengths_B[row]
                continue
            original = batch["original"][row, : lengths_B[row]]
            assert original[1:-1].tolist() == TOKENIZER.encode(texts[text])
            np.testing.assert_array_equal(batch["masked_labels"][row, used], original[places])
            assert ((places > 0) & (places < lengths_B[row] - 1)).all()
            other = np.delete(np.arange(batch["tokens"].shape[1]), places)
            np.testing.assert_array_equal(batch["tokens"][row, other], batch["original"][row, other])
            seen.append((text, places.tolist()))
    assert sorted(text for text, _ in seen) == list(range(20)) == list(range(data.texts))
    counts = [len(places) for text, places in seen if text != 1]
    assert set(counts) == {6} and len({tuple(places) for _, places in seen}) > 15
    ((batch, _),) = batches.of_texts(long[:1], TOKENIZER, 64, 2).batches
    assert len(batch["tokens"]) == 1 and dict(seen)[0] == batch["masked_positions"][0, :6].tolist()


def test_some_of_the_texts():
    """They are spread evenly, and the digest of their batches is the same only for the same texts and masks."""
    data = batches.of_texts(TEXTS, TOKENIZER, LENGTH, 1, 4)
    same, other = (batches.of_texts([TEXTS[at] for at in (0, 5, 11, of)], TOKENIZER, LENGTH, 1) for of in (17, 18))
    assert data.texts == 4 and data.source.startswith("4 of 23 ")
    assert data.digest() == same.digest() != other.digest()
    assert batches.of_texts(TEXTS, TOKENIZER, LENGTH - 1, 1, 4).digest() != data.digest()


@pytest.mark.parametrize("kind", some(["classification", "regression", "choice", "tagging", "span"], "tagging"))
def test_a_tasks_losses_by_row_sum_to_those_of_its_objective(kind):
    """Includes a model without a head, compared with edited parameters."""
    model, batch = tiny.task_model(kind), tiny.task_batch(kind)
    params, objective = tiny.params(model, batch), tiny.supervised(model)
    mask_NH = np.ones((2, 3), np.float32)
    mask_NH[1, 2] = 0

    @jax.jit
    def compute(params, mask_NH, batch):
        found = losses.of_task(model, kinds.KINDS[kind].loss)(params, batch, mask_NH)
        outputs = objective.forward(params, batch, {}, jnp.int32(0), Ports())
        return found, objective.terms(outputs, batch).metrics["task_loss"]

    everything, edited = np.ones_like(mask_NH), trained_models.without(params, 1, 2)
    plain, masked = compute(params, everything, batch), compute(params, mask_NH, batch)
    without = compute(edited, everything, batch)
    for (sums_B, weights_B), expected in ((plain[0], plain[1]), (masked[0], without[1])):
        sums_B, weights_B = np.asarray(sums_B), np.asarray(weights_B)
        assert sums_B.shape == weights_B.shape == (8,) and weights_B[-1] == 0 == sums_B[-1]
        np.testing.assert_allclose([sums_B.sum(), weights_B.sum()], expected, rtol=1e-5)
    sums_of_rows, of_masked = np.asarray(plain[0][0]), np.asarray(masked[0][0])
    assert np.abs(sums_of_rows - of_masked).max() > 1e-3
    alone = compute(params, everything, {**batch, "weights": np.eye(8, dtype=np.float32)[0]})
    np.testing.assert_allclose(alone[1][0], sums_of_rows[0], rtol=1e-5)


def test_windows_of_a_context_count_for_its_example():
    """Questions: with a short context; with one of several windows; and one whose answer is in no row."""
    given = list(tasks.examples("span", 3, 0))
    context = " ".join(["good", *["roads"] * 30, "union"])
    answer = (("union", context.index("union")),)
    given.insert(1, dataclasses.replace(given[0], id="long", context=context, answers=answer))
    wide = " ".join(["state"] * 40)
    given.append(dataclasses.replace(given[0], id="lost", context=wide, answers=((wide, 0),)))
    head, examples = make_head(tasks.task("span"), "roberta", 16), Examples(tuple(given), "here")
    tuned = FineTuned(head, CONFIG, TOKENIZER, tiny.params(head.model(CONFIG), tiny.task_batch("span")))
    data = batches.of_examples(tuned, tasks.task("span"), examples)
    owners = np.concatenate([text_B for _, text_B in data.batches])
    assert data.texts == 5 and set(owners[owners >= 0]) == {0, 1, 2, 3}
    assert len(data.notes) == 1 and data.notes[0].endswith(": 1")
    found = heads.measure(trained.of_task(tuned), data)
    assert found.metric is TASK
    np.testing.assert_array_equal(found.weights_T, [*(sum(owners == text) for text in range(4)), 0])
    with pytest.raises(ValueError, match="classification"):
        batches.of_examples(tuned, tasks.task("classification"), tasks.examples("classification", 3, 0))


def fake(row_sums):
    """Measure one layer of two heads on two batches, where the loss of a row is a number of its batch less 1 for the
    first head and 10 for the second.
    """
    data = TextBatches(
        (
            ({"sums": np.array(row_sums[:2]), "weights": np.array([1.0, 2.0])}, np.array([2, 0])),
            ({"sums": np.array(row_sums[2:]), "weights": np.array([4.0, 8.0])}, np.array([2, -1])),
        ),
        3,
        "nowhere",
    )

    def by_row(params, batch, mask_NH):
        return batch["sums"] - ((1 - mask_NH) * params[None]).sum(), batch["weights"]

    config = dataclasses.replace(CONFIG, layers=1)
    opened = SimpleNamespace(row_losses=by_row, params=jnp.array([1.0, 10.0]), config=config, metric=MLM)
    return heads.measure(opened, data)


def test_rows_of_a_text_are_summed_and_filler_is_not_counted():
    found = fake([100.0, 200.0, 50.0, 1e6])
    np.testing.assert_array_equal(found.weights_T, [2, 0, 5])
    np.testing.assert_array_equal(found.base_T, [200, 0, 150])
    np.testing.assert_array_equal(found.sums_NHT[0], [[199, 0, 148], [190, 0, 130]])
    assert found.base_loss == 350 / 7
    np.testing.assert_allclose(found.change_NH, [[-3 / 7, -30 / 7]])
    with pytest.raises(ValueError, match="NaN"):
        fake([np.nan, 200.0, 50.0, 0.0])


def test_intervals_are_those_of_resampled_texts():
    weights_T = np.array([3.0, 0.0, 5.0, 2.0, 7.0])
    base_T, changes_T = np.arange(5.0), np.array([1.0, 0.0, -2.0, 4.0, 3.0])
    sums_NHT = base_T + np.stack([changes_T, np.zeros(5), 2 * weights_T])[None]
    found = HeadAblation(MLM, "", (), weights_T, base_T, sums_NHT)
    low, high = np.moveaxis(found.intervals_NHI(400), -1, 0)
    assert low.shape == (1, 3)
    np.testing.assert_array_equal(found.intervals_NHI(400)[..., 0], low)
    np.testing.assert_allclose([low[0, 1:], high[0, 1:]], [[0, 2], [0, 2]])  # the same change in every text
    # All 4^4 resamples of the texts that count, each as likely as the others.
    counted = np.flatnonzero(weights_T)
    drawn = counted[np.indices((4, 4, 4, 4)).reshape(4, -1)]
    exact = changes_T[drawn].sum(0) / weights_T[drawn].sum(0)
    tails = [(exact <= low[0, 0]).mean(), (exact >= high[0, 0]).mean()]
    assert min(tails) > 0.01 and max(tails) < 0.06
    assert low[0, 0] < found.change_NH[0, 0] < high[0, 0]


def test_the_held_out_text_of_a_run(words, places):
    """A run that was imported and not trained has none: its config names a source on which it was not trained."""
    opened, found = words[0], opening.open_masked_lm(str(places / "run"), None)
    own = trained.of_words(found)
    data, config = own.own_texts(None), run_directory.read_config(places / "run")
    corpus = pipeline.prepare(config.data, quiet=True)
    rows = len(corpus.validation)
    assert rows == data.texts > 17 and data.source.startswith(f"{rows} of {rows} ")
    ((whole,), of_run) = list(pipeline.validation_batches(corpus, config.data, rows)), heads.measure(own, data)
    sums_T, counts_T = plain_losses(opened, opened.params, TextBatches(((whole, np.arange(rows)),), rows, ""))
    np.testing.assert_array_equal(of_run.weights_T, counts_T)
    np.testing.assert_allclose(of_run.base_T, sums_T, rtol=1e-5)
    assert "corpus.json" in of_run.notes[0]
    part = own.own_texts(3)
    assert part.texts == 16 and part.source.startswith(f"16 of {rows} ")
    np.testing.assert_array_equal(part.batches[0][0]["tokens"], data.batches[0][0]["tokens"])
    imported = dataclasses.replace(found.run, origin=Origin(model_type="roberta"))
    assert trained.of_words(dataclasses.replace(found, run=imported)).own_texts is None


def test_a_trial_on_its_development_examples(places, tmp_path):
    place = places / TRIAL
    tuned = finetuned.load(place)
    task, examples = development.read(epath.Path(place))
    assert (task.name, len(examples), len(development.read(epath.Path(place), 4)[1])) == ("sst2", 9, 4)
    assert development.read(epath.Path(place / "weights"))[1] == examples
    found = heads.ablate(str(places / "suite"))
    assert found.source.startswith("9 examples of ") and (found.weights_T == 1).all()
    features = kinds.encode(task, examples, TOKENIZER, LENGTH, 1)
    batch = {
        name: np.stack([np.pad(row[name], (0, LENGTH - len(row[name]))) for row in features.rows])
        for name in ("tokens", "segment_ids", "token_type_ids")
    }
    for params, losses_T in ((tuned.params, found.base_T), (trained_models.without(tuned.params, 1, 0), None)):
        logits_TC = np.asarray(tiny.apply(tuned.model, params, batch), np.float64)
        logs_TC = functions.log_softmax(logits_TC, axis=-1)
        expected_T = [-log_C[example.label] for log_C, example in zip(logs_TC, examples, strict=True)]
        np.testing.assert_allclose(found.sums_NHT[1, 0] if losses_T is None else losses_T, expected_T, rtol=1e-5)
    place = shutil.copytree(places / "suite", tmp_path / "suite") / "sst2" / "lr1e-05-bs8-seed0"
    predictions = place / "predictions_validation.jsonl"
    predictions.write_text("".join(predictions.read_text().splitlines(keepends=True)[1:]))
    with pytest.raises(ValueError, match="predictions_validation.jsonl has another SHA-256"):
        heads.ablate(str(place))


@pytest.mark.parametrize(
    ("place", "given", "named"),
    [
        ("encoder", {}, "no head for masked words"),
        ("suite", {"texts": ["good"]}, "fine-tuned"),
        ("suite", {"step": 3}, "step=3"),
        ("run", {"most": 0}, "most"),
        ("run", {"texts": ["", " "]}, "2 given texts"),
        ("run", {"texts": "good"}, "one string"),
    ],
)
def test_what_cannot_be_ablated(places, place, given, named):
    with pytest.raises(ValueError, match=named):
        heads.ablate(str(places / place), **given)
