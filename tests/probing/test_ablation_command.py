"""Head ablation under `ag-jax evaluate` and `ag-jax compare`: the report, stored results, and what is rejected."""

import csv
import dataclasses
import json
import sys
import types

import numpy as np
import pytest
from etils import epath

from ag_jax.analysis.figures import heads
from ag_jax.attention.guidance import Assignment
from ag_jax.data.probes.queries import Probe, Query, Window
from ag_jax.objectives.masked_lm import MLM
from ag_jax.objectives.supervised import TASK
from ag_jax.pretraining import config as pretraining_config
from ag_jax.pretraining import run
from ag_jax.probing import comparison
from ag_jax.probing.ablation import heads as ablation
from ag_jax.probing.ablation import report as ablation_report
from ag_jax.probing.ablation import results as ablation_results
from ag_jax.probing.ablation import summary as ablation_summary
from ag_jax.probing.ablation import trained
from ag_jax.probing.ablation.heads import HeadAblation
from ag_jax.probing.ablation.results import Ablated
from ag_jax.probing.ablation.summary import Summary
from tests.conftest import REPOSITORY
from tests.finetuning import tasks
from tests.probing import trained_models
from tests.probing.trained_models import TEXTS, TOKENIZER

PROBE = REPOSITORY / "configs" / "probe.py"
TRIAL = "suite/sst2/lr1e-05-bs8-seed0"
FLAGS = {"resamples": 100}
GUIDED = Assignment((("next", 1), ("first", 1)))


def made_up(data):
    """Ask from the third word of 14 texts of four words to the first one, the first half for development."""
    words = np.resize(tasks.WORDS, (14, 4))
    windows = tuple(Window(f"d{number}", tuple(map(str, of))) for number, of in enumerate(words))
    queries = tuple(Query(number, 2, 2, (), (), (0,), "first") for number in range(14))
    return Probe("made_up", windows, queries, development=np.arange(14) < 7, baselines={}, dropped={})


@pytest.fixture
def module(monkeypatch):
    found = types.ModuleType("my_probes")
    found.made_up = made_up
    monkeypatch.setitem(sys.modules, "my_probes", found)


@pytest.fixture
def measured(monkeypatch):
    """The digests of the models that are measured, in this order."""
    found, original = [], ablation.ablate_trained

    def spy(opened, data, **settings):
        found.append(opened.digest())
        return original(opened, data, **settings)

    monkeypatch.setattr(ablation, "ablate_trained", spy)
    return found


@pytest.fixture(scope="module")
def folder(places, tmp_path_factory):
    """A folder with texts, and two runs with the same parameters, but in `guided` head 0 of layer 1 writes nothing."""
    found = tmp_path_factory.mktemp("ablation")
    (found / "texts.txt").write_text("\n".join(TEXTS))
    (found / "plain").symlink_to(places / "run")
    params = trained_models.without(trained_models.word_model().params, 1, 0)
    run.write(
        trained_models.run_config(places, mode="loss", heads="next:1"), epath.Path(found / "guided"), TOKENIZER, params
    )
    return found


def read(workdir):
    with (workdir / "ablation.csv").open() as file:
        rows = {(row["arm"], int(row["layer"]), int(row["head"])): row for row in csv.DictReader(file)}
    return json.loads((workdir / "report.json").read_text()), rows, (workdir / "report.md").read_text()


def test_a_comparison_and_what_is_measured_again(folder, module, measured):
    """The report, from a plain reading of ablation.csv; then the same command with damaged results and other texts."""
    texts = folder / "texts.txt"
    source = f"{PROBE}:checkpoint={folder / 'plain'},{folder / 'guided'},reflexives=none,custom=my_probes.made_up"
    source += f",ablation={texts}"
    workdir = comparison.compare(source, FLAGS, folder / "compared").parent
    content, rows, text = read(workdir)
    assert len(measured) == 2 and list(content["models"]) == ["plain", "guided", "random"]
    numbers = content["ablation"]
    assert list(numbers["models"]) == ["plain", "guided"] and len(rows) == 8

    def change(arm, layer, head):
        return float(rows[arm, layer, head]["change"])

    # Heads whose output kernel is zero change nothing, to the last digit.
    assert [place for place in rows if change(*place) == 0.0] == [("plain", 1, 2), ("guided", 1, 2), ("guided", 2, 1)]
    expected = ablation.ablate(str(folder / "guided"), TEXTS)
    np.testing.assert_allclose([change("guided", *of) for of in ((1, 1), (2, 2))], expected.change_NH[[0, 1], [0, 1]])
    (of,) = numbers["models"]["guided"]
    assert of["loss"] == pytest.approx(expected.base_loss) and of["metric"] == "mlm_loss"
    assert float(rows["guided", 1, 1]["loss"]) == pytest.approx(expected.loss_NH[0, 0])
    assert of["source"] == f"21 lines of {texts}" and "texts that were cut after 12 tokens: 1" in of["notes"]
    assert [row["pattern"] for row in rows.values()] == [""] * 4 + ["next", "", "next", ""]
    assert of["guided"]["mean"] == pytest.approx((change("guided", 1, 1) + change("guided", 2, 1)) / 2)
    assert of["free"]["mean"] == pytest.approx((change("guided", 1, 2) + change("guided", 2, 2)) / 2)
    assert numbers["models"]["plain"][0]["guided"] is None is numbers["models"]["plain"][0]["free"]
    lows = [float(row["low"]) for place, row in rows.items() if place[0] == "guided"]
    assert of["without_clear_rise"] == sum(low <= 0 for low in lows) and len(lows) == of["heads"]
    assert of["largest"][0]["change"] == pytest.approx(max(change(*place) for place in rows if place[0] == "guided"))
    difference = numbers["differences"]["guided"]
    assert difference["loss"]["mean"] == pytest.approx(of["loss"] - numbers["models"]["plain"][0]["loss"])
    assert difference["loss"]["low"] < difference["loss"]["mean"] < difference["loss"]["high"]
    assert not numbers["not_compared"]

    linked = {entry["arm"]: entry for entry in numbers["heads_of_probes"]}
    assert list(linked) == ["plain", "guided"]
    for arm, entry in linked.items():
        chosen = content["probes"]["made_up"]["words"]["arms"][arm]["all"][0]
        assert entry["head"] == chosen["head"] and entry["score"] == chosen["test"]["mean"]
        assert entry["change"] == pytest.approx(change(arm, *entry["head"]))
        larger = [place for place in rows if place[0] == arm and change(*place) > change(arm, *entry["head"])]
        assert entry["rank"] == len(larger) + 1
    assert "## Head ablation" in text and "| guided | 1.1 | [Next] |" in text and "--without=LAYER.HEAD" in text
    assert (workdir / "figures" / "ablation.png").exists() and (workdir / "scores.csv").exists()

    plain, guided = measured[:2]
    measured.clear()
    comparison.compare(source, FLAGS, workdir)
    assert not measured and read(workdir) == (content, rows, text)
    # Under another name and with a byte order mark, the texts are the same, but the report has the new name.
    moved = folder / "moved.txt"
    moved.write_text("\ufeff" + texts.read_text())
    comparison.compare(source.replace(str(texts), str(moved)), FLAGS, workdir)
    assert not measured
    assert read(workdir)[0]["ablation"]["models"]["guided"][0]["source"] == f"21 lines of {moved}"
    comparison.compare(source, FLAGS, workdir)
    damaged = workdir / "ablation" / "guided-seed0" / "losses.npz"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    comparison.compare(source, FLAGS, workdir)
    assert measured == [guided] and guided != plain
    assert read(workdir) == (content, rows, text)
    comparison.compare(source, FLAGS | {"ablation.most": 10}, workdir)  # other texts
    assert measured[1:] == [plain, guided]
    assert read(workdir)[0]["ablation"]["models"]["plain"][0]["source"] == f"10 of 21 lines of {texts}"


def test_a_trial_on_its_development_examples(places, tmp_path):
    """Without any probe: no random models, no scores; and no intervals for 9 examples."""
    source = f"{PROBE}:checkpoint={places / TRIAL},reflexives=none,ablation=held_out"
    workdir = comparison.evaluate(source, FLAGS, tmp_path / "trial").parent
    content, rows, text = read(workdir)
    assert list(content["models"]) == ["model"] and not content["probes"] and not (workdir / "scores.csv").exists()
    (of,) = content["ablation"]["models"]["model"]
    expected = ablation.ablate(str(places / "suite"))
    assert of["metric"] == "task_loss" and of["source"].startswith("9 examples of ") and of["texts"] == 9
    assert of["loss"] == pytest.approx(expected.base_loss) and of["without_clear_rise"] is None
    changes = [float(row["change"]) for row in rows.values()]
    np.testing.assert_allclose(changes, expected.change_NH.ravel(), rtol=1e-6)
    assert {row["low"] for row in rows.values()} == {""} and "A number is the share" not in text


@pytest.mark.parametrize(
    ("place", "texts", "flags", "message"),
    [
        ("encoder", "held_out", {}, "encoder has no head for masked words: its classes are RobertaModel"),
        (TRIAL, "texts.txt", {}, "is fine-tuned, so its loss is that of its task .* leave texts out"),
        ("run", "no.txt", {}, "No such file or directory: '.*no.txt'"),
        ("run", "empty.txt", {}, "expected texts with tokens, got none in 0 lines of .*empty.txt"),
        ("run", "latin.txt", {}, "ablation.data=.*latin.txt, line 1: expected text in UTF-8"),
        ("run", "none", {"ablation.most": 3}, "ablation.most=3 has no effect without ablation.data"),
        ("run", "none", {}, "probes must name at least one probe, .* unless ablation.data has texts"),
        ("run", "held_out", {"ablation.most": 0}, "ablation.most must be at least 1, or none, got 0"),
    ],
)
def test_what_is_rejected_before_anything_is_measured(places, tmp_path, monkeypatch, place, texts, flags, message):
    (tmp_path / "texts.txt").write_text("good\n")
    (tmp_path / "empty.txt").write_text(" \n\n")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    monkeypatch.setattr(comparison, "_open", lambda *arguments: pytest.fail("the models of probes were opened"))
    data = tmp_path / texts if texts.endswith(".txt") else texts
    source = f"{PROBE}:checkpoint={places / place},reflexives=none,ablation={data}"
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        comparison.evaluate(source, flags, tmp_path / "wrong")


def test_runs_without_a_loss_of_masked_words_are_rejected_before_they_are_trained():
    config = pretraining_config.default_config()
    config.data.source = "text.txt"
    words = pretraining_config.parse(config)
    config.data.masking.replacement = "unigram"
    config.replaced_tokens.generator = "unigram"
    with pytest.raises(ValueError, match="the arm electra trains a model whose loss is .* masked words"):
        ablation_results.check_training({"mlm": [words], "electra": [pretraining_config.parse(config)]})


def test_given_texts_are_cut_to_the_length_of_all_models(monkeypatch, tmp_path):
    """So that models with the same tokenizer have the same words masked."""
    opened = trained.of_words(trained_models.word_model())
    models = {"long": opened, "short": dataclasses.replace(opened, length=12)}
    monkeypatch.setattr(trained, "open_trained", lambda directory, step: models[directory])
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    config = ablation_results.AblationConfig(data=str(tmp_path / "texts.txt"))
    found = ablation_results.prepare(config, {name: {0: (name, None)} for name in models})
    long, short = (found[name][0].data for name in models)
    assert long.digest() == short.digest() and max(batch["tokens"].shape[1] for batch, _ in long.batches) == 12


def summary(seed=0, metric=MLM, tokenizer="t", digest="d", assignment=GUIDED, texts=40):
    """A model of two layers of three heads with random losses; the first text has no weight."""
    random = np.random.default_rng(seed)
    weights_T = np.arange(texts, dtype=np.float64) % 7
    base_T = weights_T * random.uniform(1, 2, texts)
    effect_NH1 = np.linspace(-0.1, 0.2, 6).reshape(2, 3, 1)
    sums_NHT = base_T + weights_T * (effect_NH1 + random.normal(0, 0.2, (2, 3, texts)))
    found = HeadAblation(metric, "somewhere", (), weights_T, base_T, sums_NHT)
    return Summary(Ablated("a model", assignment, tokenizer, digest, found), 100)


def test_heads_of_a_layer_that_is_not_guided_are_free():
    of = summary(assignment=Assignment((("next", 1), ("first", 1)), layers=(1,)))
    numbers, change_NH = ablation_summary.numbers({"a": [of]}, {})["models"]["a"][0], of.change_NH
    assert numbers["guided"]["mean"] == pytest.approx(np.mean([change_NH[1, 0], change_NH[1, 1]]))
    assert numbers["free"]["mean"] == pytest.approx(np.mean([*change_NH[0], change_NH[1, 2]]))
    assert [head["pattern"] for head in of.heads()] == [None, None, None, "next", "first", None]


def test_means_of_heads_and_their_intervals():
    """Against a plain loop over heads and resamples."""
    of = summary()
    found = of.ablated.ablation
    numbers = ablation_summary.numbers({"a": [of]}, {})["models"]["a"][0]
    counted = found.weights_T > 0
    for name, chosen in (("mean", (0, 1, 2)), ("guided", (0, 1)), ("free", (2,))):
        changes = [(found.sums_NHT[layer, head] - found.base_T)[counted] for layer in range(2) for head in chosen]
        mean_T, weights_T = np.mean(changes, 0), found.weights_T[counted]
        assert numbers[name]["mean"] == pytest.approx(mean_T.sum() / weights_T.sum())
        random = np.random.default_rng(1)
        draws = random.integers(0, len(mean_T), (4000, len(mean_T)))
        ends = np.percentile(mean_T[draws].sum(1) / weights_T[draws].sum(1), [2.5, 97.5])
        width = ends[1] - ends[0]
        np.testing.assert_allclose([numbers[name]["low"], numbers[name]["high"]], ends, atol=0.2 * width)
    low_NH = found.intervals_NHI(100)[..., 0]
    assert numbers["without_clear_rise"] == (low_NH <= 0).sum() and 0 < numbers["without_clear_rise"] < 6
    rising = np.sort(found.change_NH[found.change_NH > 0])[::-1]
    assert [head["change"] for head in numbers["largest"]] == pytest.approx(rising[:5])
    assert 0 < len(rising) < 6 == numbers["heads"]


def test_only_losses_of_the_same_texts_masks_and_tokenizer_are_compared():
    arms = {
        "base": [summary(0), summary(1)],
        "same": [summary(2), summary(3)],
        "other text": [summary(4), summary(5, digest="e")],
        "other tokenizer": [summary(6, tokenizer="u", digest="e")],
        "trial": [summary(7, metric=TASK, digest="f")],
    }
    numbers = ablation_summary.numbers(arms, {})
    losses = {arm: [of.ablated.ablation.base_loss for of in models] for arm, models in arms.items()}
    assert list(numbers["differences"]) == ["same"]
    difference = numbers["differences"]["same"]
    assert difference["loss"]["mean"] == pytest.approx(np.mean(losses["same"]) - np.mean(losses["base"]))
    # The resamples of all models draw the same texts.
    resampled = {
        arm: np.mean([of.ablated.ablation.resampled(100).loss_R for of in arms[arm]], 0) for arm in ("base", "same")
    }
    ends = np.percentile(resampled["same"] - resampled["base"], [2.5, 97.5])
    np.testing.assert_allclose([difference["loss"]["low"], difference["loss"]["high"]], ends)
    assert {arm: reason.split(",")[0] for arm, reason in numbers["not_compared"].items()} == {
        "other text": "the texts",
        "other tokenizer": "the tokenizers differ",
        "trial": "the losses are of different kinds",
    }
    text = "\n".join(ablation_report.markdown(numbers, "base"))
    assert (
        "**The losses of other text and base are not compared: the texts, or the words masked in them, differ.**"
        in text
    )
    assert "| same, model 1 |" in text and "| trial | " in text


def test_figure_of_changes():
    """Each model has its own scale, the same on both sides of zero; guided heads of all layers are framed."""
    changes = {"a": np.array([[0.5, -2.0, 0.0], [0.1, 0.0, 0.3]]), "b": np.zeros((2, 3))}
    figure = heads.draw_changes(changes, {"a": GUIDED, "b": Assignment()}, "caption")
    panels = [axes for axes in figure.axes if axes.images]
    for axes, change_NH, limit in zip(panels, changes.values(), (2.0, 1e-9), strict=True):
        np.testing.assert_array_equal(axes.images[0].get_array(), change_NH)
        assert axes.images[0].get_clim() == (-limit, limit)
    assert [box.get_xy() for box in panels[0].patches] == [(-0.5, -0.5), (0.5, -0.5)] and not panels[1].patches
    assert panels[0].texts[0].get_position() == (0, 0) and panels[0].texts[0].get_text() == "+0.5"


def test_frames_of_guided_layers():
    """A head has a frame for each range of layers in which it is guided."""
    assignment = Assignment((("next", 1),), layers=(0, 1, 3))
    figure = heads.draw_changes({"a": np.zeros((5, 3))}, {"a": assignment}, "caption")
    (panel,) = [axes for axes in figure.axes if axes.images]
    found = [(*box.get_xy(), box.get_width(), box.get_height()) for box in panel.patches]
    assert found == [(-0.5, -0.5, 1, 2), (-0.5, 2.5, 1, 1)]


def test_figure_of_scores_has_the_scale_of_each_column():
    scores = {"a": {"x": np.array([[0.4, 1.0]]), "y": np.array([[0.1, 0.2]])}}
    figure = heads.draw_scores(scores, {"a": Assignment()}, "caption")
    figure.draw_without_rendering()  # gives the axes their places
    panels = {axes.get_title(): axes for axes in figure.axes if axes.images}
    bars = [axes for axes in figure.axes if not axes.images]
    for title, bar, largest in zip("xy", bars, (1, 0.2), strict=True):
        assert panels[title].images[0].get_clim() == bar.get_xlim() == tuple(bar.get_xticks()) == (0, largest)
        place, panel = bar.get_position(), panels[title].get_position()
        assert place.y1 <= panel.y0 and panel.x0 < (place.x0 + place.x1) / 2 < panel.x1
