"""Suites under attack: schedules that follow another arm, and what their reports say of
masks, temperatures and maps.
"""

import dataclasses
import json

import numpy as np
import pytest
from etils import epath

from ag_jax.analysis import maps
from ag_jax.analysis.figures import plots
from ag_jax.data.tasks.task import Choices, Question, Referent, TaggedSentence, Texts
from ag_jax.finetuning import attacked, comparison, suite, traces
from ag_jax.interop import finetuned
from ag_jax.interop.finetuned import FineTuned, Head
from ag_jax.models.config import EncoderConfig
from ag_jax.objectives.adversarial import wrap as adversarial
from ag_jax.objectives.adversarial.config import AdversarialConfig
from ag_jax.pretraining import mask_trace
from ag_jax.training.loop import NonFiniteError
from tests import tiny
from tests.analysis.examples import SENTENCE, WordTokenizer
from tests.finetuning import tiny_tasks
from tests.finetuning.tasks import TOKENIZER

FILE = """
from ag_jax import config_reader
from ag_jax.recipes import finetuning
from ag_jax.finetuning.config import FinetuningConfig

def get_config(argument=""):
    arms = ("plain", "asa", "strong", "scheduled")
    chosen = config_reader.arguments(argument, model=str, data=str, arm=arms, tasks="sst2", arms="plain-asa-scheduled")
    config = config_reader.default(FinetuningConfig)
    config.update(
        title="A title", checkpoint=chosen.model, data=chosen.data, seeds=(0, 1), arms=chosen.arms.replace("-", ",")
    )
    for task in config_reader.listed(chosen.tasks):
        finetuning.add(config, task, learning_rates=(1e-4, 2e-4), max_length=32, epochs=2)
    if chosen.arm == "scheduled":
        finetuning.attack(config, "scheduled", trace="{arms}/asa/{task}/{trial}")
    elif chosen.arm != "plain":
        finetuning.attack(config, "asa", tau=0.6 if chosen.arm == "asa" else 0.3)
    return config
"""
LAYERS = EncoderConfig().layers


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return str(tiny_tasks.write(tmp_path_factory.mktemp("data")))


@pytest.fixture
def trained(monkeypatch, tmp_path):
    """Trials that were run, by directory; those under attack write what they masked."""
    trained = {}

    def run_trial(one, config, start, splits, directory, keep, labels):
        trained["/".join(directory.parts[-3:])] = one
        result = tiny_tasks.run_trial(one, config, start, splits, directory, keep, labels)
        if one.recipe.adversarial.method != "none":
            level = 0.1 * (1 + one.seed)
            rows = [
                {"step": step, "split": "train", "masked": level / step, "masked/layers": [level / step] * LAYERS}
                for step in (1, 2)
            ]
            (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return result

    monkeypatch.setattr(suite.job, "run_trial", run_trial)
    monkeypatch.setattr(suite.encoded, "encode", lambda splits, tokenizer, encoder, recipe: splits)
    monkeypatch.setattr(suite.opening, "open_encoder", tiny_tasks.open_encoder)
    (tmp_path / "model").mkdir()
    (tmp_path / "c.py").write_text(FILE)
    return trained


@pytest.fixture
def source(tmp_path, data):
    return f"{tmp_path / 'c.py'}:model={tmp_path / 'model'},data={data}"


def test_a_schedule_is_that_of_the_same_trial_of_another_arm(source, tmp_path, trained):
    comparison.compare(source, {}, epath.Path(tmp_path / "w"))
    assert len(trained) == 12
    for name, one in trained.items():
        arm, task, trial = name.split("/")
        trace = str(tmp_path / "w" / "asa" / task / trial) if arm == "scheduled" else None
        assert one.recipe.adversarial.masking.trace == trace
    assert "{arms}" in (tmp_path / "w" / "scheduled" / "config.json").read_text()
    trained.clear()
    comparison.compare(source, {"seeds": (0, 1, 2)}, epath.Path(tmp_path / "w"))
    assert len(trained) == 6, "the trials of the third seed, whose traces are not there yet either"


def test_a_trial_with_the_schedule_of_a_failed_one_fails_alone(source, tmp_path, trained, monkeypatch):
    """Its masks would be those of the beginning of a training; the other trials are trained."""
    run_trial, workdir = suite.job.run_trial, epath.Path(tmp_path / "w")
    name = "lr0.0002-bs32-seed1"

    def run_or_fail(one, config, start, splits, directory, *more):
        mask_trace.read(one.recipe.adversarial, LAYERS)  # as the objective does
        result = run_trial(one, config, start, splits, directory, *more)
        if directory.parts[-3:] == ("asa", "sst2", name):
            (directory / "result.json").unlink()
            raise NonFiniteError("loss is not finite at step 3")
        return result

    monkeypatch.setattr(suite.job, "run_trial", run_or_fail)
    comparison.compare(source, {}, workdir)
    failed = {
        path.parent.parent.parent.name: json.loads(path.read_text())["failed"]
        for path in workdir.glob("*/sst2/*/result.json")
        if "failed" in path.read_text()
    }
    assert failed.keys() == {"asa", "scheduled"} and len(trained) == 11
    assert f"{name} is a trial that failed (loss is not finite at step 3), whose masks" in failed["scheduled"]
    comparison.compare(source, {"seeds": (0, 1, 2)}, workdir)
    assert len(trained) == 17, "the trials of the third seed alone"
    one = trained["scheduled/sst2/lr0.0001-bs32-seed1"]  # names the directory of its trace
    masking = dataclasses.replace(one.recipe.adversarial.masking, trace=str(workdir / "asa" / "sst2" / name))
    adversarial = dataclasses.replace(one.recipe.adversarial, masking=masking)
    named = dataclasses.replace(one, recipe=dataclasses.replace(one.recipe, adversarial=adversarial))
    with pytest.raises(ValueError, match="is a trial that failed"):
        traces.check(named, workdir / "scheduled", LAYERS, set())


def test_a_part_waits_for_the_schedules_that_another_part_records(source, tmp_path, trained):
    workdir = epath.Path(tmp_path / "w")
    assert comparison.compare(source, {}, workdir, "2/3") is None
    assert {name.split("/")[0] for name in trained} == {"plain", "asa"} and len(trained) == 3
    for part in ("1/3", "3/3", "2/3", "1/3"):
        found = comparison.compare(source, {}, workdir, part)
    assert len(trained) == 12 and found == workdir / "report.md"
    for name, one in trained.items():
        arm, task, trial = name.split("/")
        assert one.recipe.adversarial.masking.trace == (
            str(workdir / "asa" / task / trial) if arm == "scheduled" else None
        )


@pytest.mark.parametrize("arms", ["plain-scheduled-asa", "scheduled"])
def test_a_schedule_that_nobody_makes_in_time_is_refused_before_anything_is_trained(source, tmp_path, trained, arms):
    with pytest.raises(
        ValueError, match=r"masking.trace=.*/w/asa/sst2/lr0.0001-bs32-seed0 must be .* does not exist; train that"
    ):
        comparison.compare(f"{source},arms={arms}", {}, epath.Path(tmp_path / "w"))
    assert not trained
    comparison.compare(f"{source},arms=asa", {}, epath.Path(tmp_path / "w"))
    comparison.compare(f"{source},arms={arms}", {}, epath.Path(tmp_path / "w"))
    assert {name.split("/")[0] for name in trained} == {*arms.split("-"), "asa"}


def test_a_schedule_of_another_model_is_refused(source, tmp_path, trained):
    comparison.compare(f"{source},arms=asa", {}, epath.Path(tmp_path / "w"))
    (tmp_path / "w/asa/sst2/lr0.0002-bs32-seed1/metrics.jsonl").write_text(
        '{"step": 1, "split": "train", "masked": 0.1, "masked/layers": [0.1]}\n'
    )
    with pytest.raises(
        ValueError, match=f"lr0.0002-bs32-seed1 .*a model with {LAYERS} layers .* of that run has 1; choose"
    ):
        comparison.compare(f"{source},arms=scheduled", {}, epath.Path(tmp_path / "w"))


def test_the_report_has_what_was_masked_by_the_chosen_point(source, tmp_path, trained):
    text = comparison.compare(f"{source},tasks=sst2,stsb", {}, epath.Path(tmp_path / "w")).read_text()
    numbers = json.loads((tmp_path / "w" / "report.json").read_text())["tasks"]
    assert "masked" not in numbers["sst2"]["arms"]["plain"]
    for task in ("sst2", "stsb"):
        for arm in ("asa", "scheduled"):
            # The last fifth of training is the second row; the seeds have 0.1 and 0.2 over its number.
            assert numbers[task]["arms"][arm]["masked"] == {
                **{"all": pytest.approx(0.075), "layers": pytest.approx([0.075] * LAYERS), "steps": [2, 2]}
            }
            assert f"| {task} | {arm} | 2 to 2 | 7.5 | " in text
    assert "![Masked share](figures/masked_share.png)" in text
    assert (tmp_path / "w" / "figures" / "masked_share.png").read_bytes().startswith(b"\x89PNG")
    assert "temperature" not in text and "Attention after training" not in text
    chosen = numbers["sst2"]["arms"]["asa"]["chosen"]["learning_rate"]
    (tmp_path / "w" / "asa" / "sst2" / f"lr{chosen:g}-bs32-seed1" / "metrics.jsonl").write_text(
        json.dumps({"step": 2, "split": "train", "masked": 0.55, "masked/layers": [0.55] * LAYERS})
    )
    comparison.compare(f"{source},tasks=sst2,stsb", {}, epath.Path(tmp_path / "w"))
    numbers = json.loads((tmp_path / "w" / "report.json").read_text())["tasks"]
    assert numbers["sst2"]["arms"]["asa"]["masked"]["all"] == pytest.approx((0.05 + 0.55) / 2)


def test_a_report_without_attacks_says_nothing_of_them(source, tmp_path, trained):
    text = comparison.compare(f"{source},arms=plain", {}, epath.Path(tmp_path / "w")).read_text()
    assert "masked" not in text and "figures/" not in text and not (tmp_path / "w" / "figures").exists()


def test_scores_against_tau(source, tmp_path, trained):
    text = comparison.compare(
        f"{source},arms=asa-plain-strong,tasks=sst2,stsb", {}, epath.Path(tmp_path / "w")
    ).read_text()
    numbers = json.loads((tmp_path / "w" / "report.json").read_text())["tasks"]["stsb"]["arms"]
    score = {arm: of_arm["splits"]["validation"]["pearson"] for arm, of_arm in numbers.items()}
    cells = [f"{100 * score[arm]['mean']:.1f} ± {100 * score[arm]['deviation']:.1f}" for arm in ("strong", "asa")]
    assert "| Task | Metric | tau = 0.3 | tau = 0.6 | Without an attack |" in text
    assert f"| stsb | pearson | {cells[0]} | {cells[1]} | {100 * score['plain']['mean']:.1f} |" in text
    assert (tmp_path / "w" / "figures" / "temperature.png").exists()


def test_maps_of_the_arms_that_kept_weights(source, tmp_path, trained, monkeypatch):
    """Weights are kept of each seed's best trial, which need not be of the chosen point."""
    model = Head("sst2", "classification", ("bad", "good")).model(
        tiny.config(vocabulary_size=TOKENIZER.vocabulary_size, layers=4)
    )
    params = tiny.params(model, tiny.task_batch("classification"))
    drawn, shown = [], []
    head = Head("sst2", "classification", ("bad", "good"), max_length=model.config.max_length)
    plain = FineTuned(head, model.config, TOKENIZER, params)
    against = dataclasses.replace(plain, adversary_params=_adversary(model.config, -1.0))

    def load(place):
        drawn.append(place)
        return against if place.parts[-3] == "asa" else plain

    monkeypatch.setattr(finetuned, "load", load)
    monkeypatch.setattr(
        attacked, "attention", lambda tuned, text, attacker=None: shown.append(text) or _maps(tuned, attacker)
    )
    columns = []
    honest = plots.map_figure
    monkeypatch.setattr(plots, "map_figure", lambda *given: columns.append(given) or honest(*given))
    text = comparison.compare(source, {"keep": "best"}, epath.Path(tmp_path / "w")).read_text()
    assert [place.parts[-3] for place in drawn] == ["asa", "plain", "asa", "scheduled"], "the first for the change"
    change = json.loads((tmp_path / "w" / "report.json").read_text())["tasks"]["sst2"]["arms"]["asa"]
    cells = [f"{value:.2g}" for value in (np.mean(change["attention_change"]), *change["attention_change"])]
    assert len(cells) == 5 and 1e-5 < min(change["attention_change"]) < 1
    assert f"| sst2 | asa | {' | '.join(cells)} |" in text
    assert all(place.name.endswith("seed0") and (place / "weights").exists() for place in drawn)
    assert [list(by_arm) for by_arm, *_ in columns] == [["plain", "asa", "asa, attacked", "scheduled"]] * 2
    (_, without), (_, under) = (columns[0][0][arm][0] for arm in ("asa", "asa, attacked"))
    np.testing.assert_allclose(under.weights_NHQK, 1 / len(under.tokens), rtol=1e-6, err_msg="everything is masked")
    assert np.abs(without.weights_NHQK - under.weights_NHQK).max() > 1e-3
    assert [place for _, *place, _, _ in columns] == [[0, 2], [2, 1]], "layers and heads"
    assert list(dict.fromkeys(shown)) == ["a smile on your face", "it has all the excitement of eating oatmeal."]
    for layer, head in ((1, 3), (3, 2)):
        name = f"figures/attention_sst2_layer{layer}.png"
        assert f"![Attention to a sentence of sst2, layer {layer}, head {head}]({name})" in text
        assert (tmp_path / "w" / name).exists()


def _maps(tuned, attacker=None):
    return maps.attention_maps(
        tuned.model, tuned.params | tuned.adversary_params, WordTokenizer(), SENTENCE, 11, attacker
    )


def _adversary(config, score):
    """Parameters of an adversary whose score of every unit has the sign of `score`."""
    shape = config.layers, config.width
    parts = {"query": np.ones(shape, np.float32), "key": np.full(shape, score, np.float32)}
    return {
        "adversary": {
            name: {"kernel": np.zeros((*shape, config.width), np.float32), "bias": of} for name, of in parts.items()
        }
    }


def test_attention_of_a_fine_tuned_model_is_its_encoders():
    head = Head("x", "classification", ("bad", "good"), max_length=9)
    model = head.model(tiny.config(vocabulary_size=TOKENIZER.vocabulary_size, token_types=1))
    params = tiny.params(model, tiny.task_batch("classification"))
    found = attacked.attention(
        FineTuned(head, model.config, TOKENIZER, params), "good roads we build union state strong bad good"
    )
    assert found.weights_NHQK.shape == (2, 3, 9, 9) and found.left_out == 2
    np.testing.assert_allclose(found.weights_NHQK.sum(-1), 1, rtol=1e-5)


@pytest.mark.parametrize("score", [1.0, -1.0])
def test_attention_under_attack_is_what_the_kept_adversary_leaves(tmp_path, score):
    head = Head("x", "classification", ("bad", "good"), max_length=9)
    model = head.model(tiny.config(vocabulary_size=TOKENIZER.vocabulary_size, token_types=1))
    params = tiny.params(model, tiny.task_batch("classification"))
    finetuned.save(FineTuned(head, model.config, TOKENIZER, params, {}, _adversary(model.config, score)), tmp_path)
    tuned = finetuned.load(tmp_path)
    assert set(tuned.params) == {"encoder", "task_head"} and set(tuned.adversary_params) == {"adversary"}
    attacker = adversarial.learnt(AdversarialConfig("asa"), tuned.config)
    text = "good roads we build"
    plain, under = attacked.attention(tuned, text), attacked.attention(tuned, text, attacker)
    expected = plain.weights_NHQK if score > 0 else np.full_like(plain.weights_NHQK, 1 / len(plain.tokens))
    np.testing.assert_allclose(under.weights_NHQK, expected, rtol=1e-5)


def test_a_sentence_that_is_easy_to_read():
    long, short, right = " ".join(["word"] * 30), "too short", "one two three four five six seven"
    texts = [Texts("0", text, None, 1) for text in (long, short, " ", right)]
    assert attacked.sentence(tuple(texts)) == right
    assert attacked.sentence(tuple(texts[:2])) == long
    assert attacked.sentence((TaggedSentence("0", tuple(right.split()), None),)) == right
    assert attacked.sentence((Question("0", right, long, None),)) == right
    assert attacked.sentence((Choices("0", ((long, right), (long, short)), (0,)),)) == right
    assert attacked.sentence((Referent("0", right[:5], right[9:], (right[5:9], short), None),)) == right


def test_texts_and_heads_that_are_drawn():
    long, short = " ".join(["word"] * 21), "six words can be read well"
    examples = [Texts("1", text, None, 0) for text in ("", "too short", long, short)]
    assert attacked.pictures("rte", examples, 12, 8) == {0: (short, 7), 10: (short, 7)}
    assert attacked.pictures("rte", examples[:3], 1, 1) == {0: ("too short", 0)}
    smile, oatmeal = "a smile on your face", "it has all the excitement of eating oatmeal."
    assert list(attacked.pictures("sst2", examples, 12, 12).items()) == [(0, (smile, 11)), (10, (oatmeal, 1))]
    assert attacked.pictures("sst2", examples, 2, 1) == {0: (smile, 0)}
