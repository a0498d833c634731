"""The table of head ablation against a plain loop over parameters with output kernels of zeros, for words and tasks."""

import dataclasses
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from scipy import special as functions

from ag_jax.data.tasks.task import Examples
from ag_jax.data.text import pipeline
from ag_jax.finetuning import development, kinds
from ag_jax.finetuning.job import make_head
from ag_jax.interop import finetuned, opening
from ag_jax.interop.finetuned import FineTuned
from ag_jax.models.encoder import Ports
from ag_jax.objectives.masked_lm import MLM
from ag_jax.objectives.supervised import TASK
from ag_jax.pretraining import run
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


@pytest.fixture(scope="module")
def words():
    """A model that predicts masked words, in which head 1 of layer 0 writes nothing, and its table."""
    opened, done = trained_models.word_model(), []
    found = heads.ablate_words(opened, TEXTS, progress=lambda *counts: done.append(counts))
    return opened, found, done


def plain_losses(opened, data):
    """Return for given parameters the loss of each text, and how many words it has, from all scores of all words."""
    apply = jax.jit(lambda params, batch: opened.model.apply({"params": params}, batch, deterministic=True).words_BMV)

    def compute(params):
        sums, counts = np.zeros(data.texts), np.zeros(data.texts)
        for batch, text_B in data.batches:
            logs_BMV = functions.log_softmax(np.asarray(apply(params, batch), np.float64), axis=-1)
            for row, text in enumerate(text_B):
                for slot, weight in enumerate(batch["masked_weights"][row]):
                    if weight:
                        sums[text] -= logs_BMV[row, slot, batch["masked_labels"][row, slot]]
                        counts[text] += 1
        return sums, counts

    return compute


def test_words_equal_a_loop_over_edited_parameters(words):
    opened, found, done = words
    data = batches.of_texts(TEXTS, TOKENIZER, LENGTH, CONFIG.token_types)
    compute = plain_losses(opened, data)
    sums_T, counts_T = compute(opened.params)
    assert found.metric is MLM and found.weights_T.dtype == found.base_T.dtype == np.float64
    np.testing.assert_array_equal(found.weights_T, counts_T)
    np.testing.assert_allclose(found.base_T, sums_T, rtol=1e-5)
    assert found.base_loss == pytest.approx(sums_T.sum() / counts_T.sum(), rel=1e-5)
    for layer, head in np.ndindex(2, 2):
        ablated_T, _ = compute(trained_models.without(opened.params, layer, head))
        np.testing.assert_allclose(found.sums_NHT[layer, head], ablated_T, rtol=1e-5)
        assert found.loss_NH[layer, head] == pytest.approx(ablated_T.sum() / counts_T.sum(), rel=1e-5)
        change = (ablated_T - sums_T).sum() / counts_T.sum()
        assert found.change_NH[layer, head] == pytest.approx(change, abs=1e-5)
    assert found.change_NH[0, 1] == 0.0 and (found.sums_NHT[0, 1] == found.base_T).all()
    assert (np.abs(np.delete(found.change_NH.ravel(), 1)) > 1e-3).all()
    passes = 5 * len(data.batches)
    assert done == [(number, passes) for number in range(1, passes + 1)]


def test_what_was_cut_and_left_out_is_counted(words):
    _, found, _ = words
    unmasked = int((found.weights_T == 0).sum())
    assert 0 < unmasked < 21 == len(found.weights_T)
    assert found.notes == (
        "texts that were cut after 12 tokens: 1",
        "texts without a token, which were left out: 2",
        f"texts without a masked word or a label, which do not count: {unmasked}",
    )
    assert found.source == "23 given texts"


def test_masks_of_texts():
    """They do not depend on the batch, and are those of 15 % of the words."""
    long = [" ".join(RNG.choice(tasks.WORDS, 40)) for _ in range(19)]
    data = batches.of_texts([long[0], "good bad", *long[1:]], TOKENIZER, 64, 2)
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
            words = [long[0], "good bad", *long[1:]][text]
            assert original[1:-1].tolist() == TOKENIZER.encode(words)
            np.testing.assert_array_equal(batch["masked_labels"][row, used], original[places])
            assert ((places > 0) & (places < lengths_B[row] - 1)).all()
            other = np.delete(np.arange(batch["tokens"].shape[1]), places)
            np.testing.assert_array_equal(batch["tokens"][row, other], batch["original"][row, other])
            seen.append((text, places.tolist()))
    assert sorted(text for text, _ in seen) == list(range(20)) == list(range(data.texts))
    counts = [len(places) for text, places in seen if text != 1]
    assert set(counts) == {6} and len({tuple(places) for _, places in seen}) > 15
    alone = batches.of_texts(long[:1], TOKENIZER, 64, 2)
    ((batch, _),) = alone.batches
    assert len(batch["tokens"]) == 1 and dict(seen)[0] == batch["masked_positions"][0, :6].tolist()


def test_some_of_the_texts():
    """They are spread evenly, and the digest of their batches is the same only for the same texts and masks."""
    data = batches.of_texts(TEXTS, TOKENIZER, LENGTH, 1, 4)
    same = batches.of_texts([TEXTS[at] for at in (0, 5, 11, 17)], TOKENIZER, LENGTH, 1)
    assert data.texts == 4 and data.source == "4 of 23 given texts"
    assert data.digest() == same.digest()
    other = batches.of_texts([TEXTS[at] for at in (0, 5, 11, 18)], TOKENIZER, LENGTH, 1)
    assert other.digest() != data.digest()
    assert batches.of_texts(TEXTS, TOKENIZER, LENGTH - 1, 1, 4).digest() != data.digest()


def test_texts_that_cannot_be_measured(words):
    with pytest.raises(ValueError, match="expected texts with tokens, got none in 2 given texts"):
        batches.of_texts(["", " "], TOKENIZER, LENGTH, 1)
    with pytest.raises(ValueError, match="expected a list of texts, got one string of 4 characters"):
        batches.of_texts("good", TOKENIZER, LENGTH, 1)
    with pytest.raises(ValueError, match="has no held-out text: give texts"):
        heads.ablate_words(words[0])


def test_an_imported_run_has_no_text_of_its_own(places):
    """Its config names a source, but the model was not trained on it."""
    opened = opening.open_masked_lm(str(places / "run"), None)
    assert trained.of_words(opened).own_texts is not None
    imported = dataclasses.replace(opened.run, origin=Origin(model_type="roberta"))
    assert not (imported.workdir / "corpus.json").exists()
    assert trained.of_words(dataclasses.replace(opened, run=imported)).own_texts is None


@pytest.mark.parametrize("kind", some(["classification", "regression", "choice", "tagging", "span"], "tagging"))
def test_a_tasks_losses_by_row_sum_to_those_of_its_objective(kind):
    """Also without a head, against edited parameters."""
    model, batch = tiny.task_model(kind), tiny.task_batch(kind)
    params, objective = tiny.params(model, batch), tiny.supervised(model)
    mask_NH = np.ones((2, 3), np.float32)
    mask_NH[1, 2] = 0

    @jax.jit
    def compute(params, mask_NH):
        found = losses.of_task(model, kinds.KINDS[kind].loss)(params, batch, mask_NH)
        outputs = objective.forward(params, batch, {}, jnp.int32(0), Ports())
        return found, objective.terms(outputs, batch)[1]["task_loss"]

    edited = trained_models.without(params, 1, 2)
    for found, expected in (
        compute(params, np.ones_like(mask_NH)),
        (compute(params, mask_NH)[0], compute(edited, np.ones_like(mask_NH))[1]),
    ):
        sums_B, weights_B = found
        assert sums_B.shape == weights_B.shape == (8,) and weights_B[-1] == 0 == sums_B[-1]
        np.testing.assert_allclose([sums_B.sum(), weights_B.sum()], expected, rtol=1e-5)
    plain, masked = (compute(params, mask)[0][0] for mask in (np.ones_like(mask_NH), mask_NH))
    assert np.abs(plain - masked).max() > 1e-3
    alone = jax.tree.map(lambda field: field[:1], batch)
    np.testing.assert_allclose(objective_sum(objective, params, alone), plain[0], rtol=1e-5)


def objective_sum(objective, params, batch):
    outputs = objective.forward(params, batch, {}, jnp.int32(0), Ports())
    return objective.terms(outputs, batch)[1]["task_loss"][0]


def spans():
    """Questions: with a short context; with one of several windows; and one whose answer is in no row."""
    given = list(tasks.examples("span", 3, 0))
    context = " ".join(["good", *["roads"] * 30, "union"])
    given.insert(
        1, dataclasses.replace(given[0], id="long", context=context, answers=(("union", context.index("union")),))
    )
    wide = " ".join(["state"] * 40)
    given.append(dataclasses.replace(given[0], id="lost", context=wide, answers=((wide, 0),)))
    return Examples(tuple(given), "here")


def test_windows_of_a_context_count_for_its_example():
    head = make_head(tasks.task("span"), "roberta", 16)
    params = tiny.params(head.model(CONFIG), tiny.task_batch("span"))
    tuned = FineTuned(head, CONFIG, TOKENIZER, params)
    data = batches.of_examples(tuned, tasks.task("span"), spans())
    owners = np.concatenate([text_B for _, text_B in data.batches])
    assert data.texts == 5 and set(owners[owners >= 0]) == {0, 1, 2, 3}
    assert data.notes == ("examples whose answer is in no row, which do not count: 1",)
    found = heads.ablate_task(tuned, tasks.task("span"), spans())
    assert found.metric is TASK and found.weights_T[4] == 0 and (found.weights_T[:4] > 0).all()
    weights = [sum(owners == text) for text in range(4)]
    np.testing.assert_array_equal(found.weights_T[:4], weights)
    with pytest.raises(ValueError, match="head is for span .*but the task is classification, classification with"):
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

    config = dataclasses.replace(CONFIG, layers=1)

    def by_row(params, batch, mask_NH):
        return batch["sums"] - ((1 - mask_NH) * params[None]).sum(), batch["weights"]

    return heads.measure(by_row, jnp.array([1.0, 10.0]), config, data, MLM)


def test_rows_of_a_text_are_summed_and_filler_is_not_counted():
    found = fake([100.0, 200.0, 50.0, 1e6])
    np.testing.assert_array_equal(found.weights_T, [2, 0, 5])
    np.testing.assert_array_equal(found.base_T, [200, 0, 150])
    np.testing.assert_array_equal(found.sums_NHT[0], [[199, 0, 148], [190, 0, 130]])
    assert found.base_loss == 350 / 7
    np.testing.assert_allclose(found.change_NH, [[-3 / 7, -30 / 7]])
    assert found.notes == ("texts without a masked word or a label, which do not count: 1",)
    with pytest.raises(ValueError, match="the loss of the model is NaN or infinite"):
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


def test_a_run_on_texts_and_on_its_held_out_text(words, places):
    opened, expected, _ = words
    found = heads.ablate(str(places / "run"), TEXTS)
    np.testing.assert_allclose(found.sums_NHT, expected.sums_NHT, rtol=1e-6)

    found = heads.ablate(str(places / "run"))
    config = run.read_config(places / "run")
    (rows,) = {len(array) for array in (found.weights_T, found.base_T, found.sums_NHT[0, 0])}
    corpus = pipeline.prepare(config.data, quiet=True)
    assert rows == len(corpus.validation) > 17
    whole = list(pipeline.validation_batches(corpus, config.data, rows))  # in one batch
    sums_T, counts_T = plain_losses(opened, TextBatches(((whole[0], np.arange(rows)),), rows, ""))(opened.params)
    np.testing.assert_array_equal(found.weights_T, counts_T)
    np.testing.assert_allclose(found.base_T, sums_T, rtol=1e-5)
    assert found.source == f"{rows} of {rows} held-out rows of {places / 'text.txt'}"
    assert "the run has no corpus.json" in found.notes[0]

    part = heads.ablate(str(places / "run"), most=3)
    assert len(part.weights_T) == 16 and part.source.startswith(f"16 of {rows} held-out rows")
    np.testing.assert_allclose(part.base_T, found.base_T[:16], rtol=1e-6)


def test_a_trial_on_its_development_examples(places):
    place = places / "suite" / "sst2" / "lr1e-05-bs8-seed0"
    tuned = finetuned.load(place)
    task, examples = development.read(epath.Path(place))
    assert (task.name, len(examples)) == ("sst2", 9)
    assert development.read(epath.Path(place / "weights"))[1] == examples
    found = heads.ablate(str(places / "suite"))
    expected = heads.ablate_task(tuned, task, examples)
    np.testing.assert_array_equal(found.sums_NHT, expected.sums_NHT)
    assert found.source.startswith("9 examples of ") and (found.weights_T == 1).all()
    labels = [example.label for example in examples]
    features = kinds.encode(task, examples, TOKENIZER, LENGTH, 1)
    for row, label, loss in zip(features.rows, labels, found.base_T, strict=True):
        batch = {name: np.asarray(row[name], np.int32)[None] for name in ("tokens", "segment_ids", "token_type_ids")}
        logits_1C = np.asarray(tiny.apply(tuned.model, tuned.params, batch), np.float64)
        np.testing.assert_allclose(-functions.log_softmax(logits_1C[0])[label], loss, rtol=1e-5)
    assert len(heads.ablate(str(place), most=4).weights_T) == 4


@pytest.mark.parametrize(
    ("place", "given", "message"),
    [
        ("encoder", {}, "no head for masked words: its classes are RobertaModel"),
        ("suite", {"texts": ["good"]}, "is fine-tuned, so its loss is that of its task .* leave texts out"),
        ("suite", {"step": 3}, "step=3 chooses a checkpoint of a run, but .* is fine-tuned"),
        ("run", {"most": 0}, "most must be at least 1"),
        ("suite/sst2/lr1e-05-bs8-seed0/weights/copy", {}, "is fine-tuned, but no trial of a suite"),
    ],
)
def test_what_cannot_be_ablated(places, place, given, message):
    if place.endswith("copy"):
        shutil.copytree(places / place.removesuffix("/copy"), places / place)
    with pytest.raises(ValueError, match=message):
        heads.ablate(str(places / place), **given)


def test_examples_that_have_changed_since_the_trial(places, tmp_path):
    place = shutil.copytree(places / "suite", tmp_path / "suite") / "sst2" / "lr1e-05-bs8-seed0"
    lines = (place / "predictions_validation.jsonl").read_text().splitlines(keepends=True)
    (place / "predictions_validation.jsonl").write_text("".join(lines[1:]))
    with pytest.raises(ValueError, match="does not hold a prediction for each of the 9 examples"):
        heads.ablate(str(place))
