"""Head ablation under `ag-jax evaluate` and `ag-jax compare`: the report, stored results, and what is rejected."""

import csv
import dataclasses
import json

import numpy as np
import pytest
from etils import epath

from ag_jax.analysis.figures import heads
from ag_jax.attention.assignment import Assignment
from ag_jax.objectives.masked_lm import MLM
from ag_jax.objectives.supervised import TASK
from ag_jax.pretraining import config as pretraining_config
from ag_jax.pretraining import initial_weights
from ag_jax.probing import comparison
from ag_jax.probing.ablation import heads as ablation
from ag_jax.probing.ablation import report as ablation_report
from ag_jax.probing.ablation import results as ablation_results
from ag_jax.probing.ablation import summary as ablation_summary
from ag_jax.probing.ablation import trained
from ag_jax.probing.ablation.heads import HeadAblation
from ag_jax.probing.ablation.results import Ablated, AblationConfig
from ag_jax.probing.ablation.summary import Summary
from ag_jax.settings import config_files
from tests.conftest import REPOSITORY
from tests.probing import trained_models
from tests.probing.trained_models import TEXTS, TOKENIZER

PROBE = REPOSITORY / "configs" / "probe.py"
TRIAL = "suite/sst2/lr1e-05-bs8-seed0"
FLAGS = {"resamples": 100}
GUIDED = Assignment((("next", 1), ("first", 1)))


def read(workdir):
    with (workdir / "ablation.csv").open() as file:
        rows = {(row["arm"], int(row["layer"]), int(row["head"])): row for row in csv.DictReader(file)}
    return json.loads((workdir / "report.json").read_text()), rows, (workdir / "report.md").read_text()


def test_a_comparison(places, tmp_path):
    """The two runs have the same parameters, but in `guided` the output of head 0 of layer 1 is 0."""
    given = [text for text in TEXTS if text.strip()][-15:]
    (tmp_path / "texts.txt").write_text("\ufeff" + "\n\n".join(given))
    (tmp_path / "plain").symlink_to(places / "run")
    params = trained_models.without(trained_models.word_model().params, 1, 0)
    config = trained_models.run_config(places, mode="loss", heads="next:1")
    initial_weights.write(config, epath.Path(tmp_path / "guided"), TOKENIZER, params)
    source = f"{PROBE}:checkpoint={tmp_path / 'plain'},{tmp_path / 'guided'},reflexives=none"
    source += f",ablation={tmp_path / 'texts.txt'}"
    workdir = comparison.compare(config_files.load(source, FLAGS), tmp_path / "compared").parent
    content, rows, text = read(workdir)
    numbers = content["ablation"]
    assert list(numbers["models"]) == ["plain", "guided"] and len(rows) == 8

    def change(arm, layer, head):
        return float(rows[arm, layer, head]["change"])

    # Heads whose output kernel is zero change nothing, to the last digit.
    assert [place for place in rows if change(*place) == 0.0] == [("plain", 0, 1), ("guided", 0, 1), ("guided", 1, 0)]
    opened = dataclasses.replace(trained_models.word_model(), params=params)
    model = trained.of_words(opened)
    expected = ablation.measure(model, model.texts(given))
    np.testing.assert_allclose([change("guided", *of) for of in ((0, 0), (1, 1))], expected.change_NH[[0, 1], [0, 1]])
    (of,) = numbers["models"]["guided"]
    assert of["loss"] == pytest.approx(expected.base_loss) and of["metric"] == "mlm_loss"
    assert float(rows["guided", 0, 0]["loss"]) == pytest.approx(expected.base_loss + expected.change_NH[0, 0])
    assert of["source"].startswith("15 lines of ")
    assert [row["pattern"] for row in rows.values()] == [""] * 4 + ["next", "", "next", ""]
    assert of["guided"]["mean"] == pytest.approx((change("guided", 0, 0) + change("guided", 1, 0)) / 2)
    assert of["free"]["mean"] == pytest.approx((change("guided", 0, 1) + change("guided", 1, 1)) / 2)
    assert numbers["models"]["plain"][0]["guided"] is None is numbers["models"]["plain"][0]["free"]
    lows = [float(row["low"]) for place, row in rows.items() if place[0] == "guided"]
    assert of["without_clear_rise"] == sum(low <= 0 for low in lows) and len(lows) == of["heads"]
    assert of["largest"][0]["change"] == pytest.approx(max(change(*place) for place in rows if place[0] == "guided"))
    loss = numbers["differences"]["guided"]["loss"]
    assert loss["mean"] == pytest.approx(of["loss"] - numbers["models"]["plain"][0]["loss"])
    assert loss["low"] < loss["mean"] < loss["high"] and not numbers["not_compared"]
    assert "| guided | 0.0 | [Next] |" in text and (workdir / "figures" / "ablation.png").exists()


def test_a_trial_on_its_development_examples(places, tmp_path):
    """Without any probe: no random models, no scores; and no intervals for 9 examples."""
    source = f"{PROBE}:checkpoint={places / TRIAL},reflexives=none,ablation=held_out"
    workdir = comparison.evaluate(config_files.load(source, FLAGS), tmp_path / "trial").parent
    content, rows, _ = read(workdir)
    assert list(content["models"]) == ["model"] and not content["probes"] and not (workdir / "scores.csv").exists()
    (of,) = content["ablation"]["models"]["model"]
    assert of["metric"] == "task_loss" and of["texts"] == 9 and of["without_clear_rise"] is None
    with np.load(workdir / "ablation" / "model-seed0" / "losses.npz") as stored:
        base_T, sums_NHT = stored["base_T"], stored["sums_NHT"]
    changes = [float(row["change"]) for row in rows.values()]
    np.testing.assert_allclose(changes, (sums_NHT.sum(-1) - base_T.sum()).ravel() / 9, rtol=1e-6)
    assert {row["low"] for row in rows.values()} == {""}


@pytest.mark.parametrize(
    ("place", "texts", "flags", "named"),
    [
        (TRIAL, "texts.txt", {}, "fine-tuned"),
        ("run", "empty.txt", {}, "empty.txt"),
        ("run", "latin.txt", {}, "latin.txt, line 1"),
        ("run", "none", {"ablation.most": 3}, "ablation.most=3"),
        ("run", "none", {}, "probes"),
    ],
)
def test_what_is_rejected_before_anything_is_measured(places, tmp_path, monkeypatch, place, texts, flags, named):
    for name, content in (("texts.txt", b"good\n"), ("empty.txt", b" \n\n"), ("latin.txt", b"caf\xe9\n")):
        (tmp_path / name).write_bytes(content)
    monkeypatch.setattr(comparison, "_open", lambda *arguments: pytest.fail("the models of probes were opened"))
    data = tmp_path / texts if texts.endswith(".txt") else texts
    with pytest.raises(ValueError, match=named):
        source = f"{PROBE}:checkpoint={places / place},reflexives=none,ablation={data}"
        comparison.evaluate(config_files.load(source, flags), tmp_path / "wrong")


def test_runs_without_a_loss_of_masked_words_are_rejected_before_they_are_trained():
    config = pretraining_config.default_config()
    config.data.source = "text.txt"
    words = pretraining_config.parse(config)
    config.data.masking.replacement = "unigram"
    config.replaced_tokens.generator = "unigram"
    with pytest.raises(ValueError, match="arm electra"):
        ablation_results.check_training({"plain": [words], "electra": [pretraining_config.parse(config)]})


def test_given_texts_are_cut_to_the_length_of_all_models(monkeypatch, tmp_path):
    """So that models with the same tokenizer have the same words masked."""
    opened = trained.of_words(trained_models.word_model())
    models = {"long": opened, "short": dataclasses.replace(opened, length=12)}
    monkeypatch.setattr(trained, "open_trained", lambda directory, step: models[directory])
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    config = AblationConfig(data=str(tmp_path / "texts.txt"))
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


def test_means_of_heads_and_their_intervals():
    """Against a plain loop over heads and resamples. Heads of a layer that is not guided are free."""
    of = summary(assignment=dataclasses.replace(GUIDED, layers=(1,)))
    found = of.ablated.ablation
    chosen = {"head": [1, 0], "test": {"mean": 0.25}}
    content = ablation_summary.numbers({"a": [of]}, {"p": {"words": {"arms": {"a": {"all": [chosen]}}}}})
    numbers, (linked,) = content["models"]["a"][0], content["heads_of_probes"]
    assert (linked["score"], linked["change"], linked["pattern"]) == (0.25, of.change_NH[1, 0], "next")
    assert linked["rank"] == 1 + (of.change_NH > of.change_NH[1, 0]).sum() > 1
    for low, high, effect in ((0.1, 0.2, "rises"), (-0.2, -0.1, "falls"), (-0.1, 0.1, "no clear"), (None, None, "–")):
        changed = content | {"heads_of_probes": [linked | {"low": low, "high": high}]}
        assert effect in ablation_report._heads_of_probes(changed)[1].rows[0][-2]
    assert [head["pattern"] for head in of.heads()] == [None, None, None, "next", "first", None]
    counted, guided = found.weights_T > 0, [(1, 0), (1, 1)]
    places = {"mean": [*np.ndindex(2, 3)], "guided": guided, "free": [(0, 0), (0, 1), (0, 2), (1, 2)]}
    for name, chosen in places.items():
        changes = [(found.sums_NHT[layer, head] - found.base_T)[counted] for layer, head in chosen]
        mean_T, weights_T = np.mean(changes, 0), found.weights_T[counted]
        assert numbers[name]["mean"] == pytest.approx(mean_T.sum() / weights_T.sum())
        draws = np.random.default_rng(1).integers(0, len(mean_T), (4000, len(mean_T)))
        ends = np.percentile(mean_T[draws].sum(1) / weights_T[draws].sum(1), [2.5, 97.5])
        np.testing.assert_allclose([numbers[name]["low"], numbers[name]["high"]], ends, atol=0.2 * (ends[1] - ends[0]))
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
    of = {arm: [one.ablated.ablation for one in models] for arm, models in arms.items()}
    assert list(numbers["differences"]) == ["same"]
    assert list(numbers["not_compared"]) == ["other text", "other tokenizer", "trial"]
    for name, value, resampled in (
        ("loss", lambda one: one.base_loss, lambda one: one.loss_R),
        ("change", lambda one: one.change_NH.mean(), lambda one: one.change_RNH.mean((1, 2))),
    ):
        difference = numbers["differences"]["same"][name]
        base, same = (np.mean([value(one) for one in of[arm]]) for arm in ("base", "same"))
        assert difference["mean"] == pytest.approx(same - base)
        # The resamples of all models draw the same texts.
        base_R, same_R = (np.mean([resampled(one.resampled(100)) for one in of[arm]], 0) for arm in ("base", "same"))
        ends = np.percentile(same_R - base_R, [2.5, 97.5])
        np.testing.assert_allclose([difference["low"], difference["high"]], ends)
    assert "| same, model 1 |" in ablation_report.section(numbers, "base").markdown()


def test_figure_of_changes():
    """Each model has its own scale, the same on both sides of zero; a head is framed for each range of layers in which
    it is guided.
    """
    changes = {"a": np.array([[0.5, -2.0, 0.0], [0.1, 0.0, 0.3]]), "b": np.zeros((2, 3)), "c": np.zeros((5, 3))}
    assignments = {"a": GUIDED, "b": Assignment(), "c": Assignment((("next", 1),), layers=(0, 1, 3))}
    figure = heads.draw_changes(changes, assignments, "caption")
    panels = [axes for axes in figure.axes if axes.images]
    for axes, change_NH, limit in zip(panels, changes.values(), (2.0, 1e-9, 1e-9), strict=True):
        np.testing.assert_array_equal(axes.images[0].get_array(), change_NH)
        assert axes.images[0].get_clim() == (-limit, limit)
    assert panels[0].texts[0].get_position() == (0, 0) and panels[0].texts[0].get_text() == "+0.5"
    frames = [[(*box.get_xy(), box.get_width(), box.get_height()) for box in panel.patches] for panel in panels]
    whole = [(-0.5, -0.5, 1, 2), (0.5, -0.5, 1, 2)]
    assert frames == [whole, [], [(-0.5, -0.5, 1, 2), (-0.5, 2.5, 1, 1)]]
