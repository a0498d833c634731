"""Suites under attack: schedules that follow another arm, and the masks, temperatures and maps of their reports."""

import contextlib
import dataclasses
import functools
import itertools
import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from etils import epath

from ag_jax.analysis.figures import plots
from ag_jax.attention.config import GuidanceConfig
from ag_jax.data.tasks.task import Choices, Question, Referent, TaggedSentence, Texts
from ag_jax.distributed import lock
from ag_jax.finetuning import attack, attacked, comparison, plan
from ag_jax.grid import run as grid
from ag_jax.interop import finetuned
from ag_jax.interop.finetuned import FineTuned, Head
from ag_jax.models.config import EncoderConfig
from ag_jax.objectives.adversarial import wrap as adversarial
from ag_jax.objectives.adversarial.config import AdversarialConfig
from ag_jax.settings import config_files
from tests import tiny
from tests.finetuning import tiny_tasks
from tests.finetuning.tasks import TOKENIZER

FILE = """
from ag_jax.settings import schema
from ag_jax.settings.config_files import OneOf
from ag_jax.recipes import finetuning
from ag_jax.finetuning.config import FinetuningConfig

ARMS = ("plain", "asa", "strong", "scheduled")

def get_config(
    *, model: str, data: str, arm: OneOf(*ARMS) = "plain", tasks: tuple[str, ...] = ("sst2",),
    arms: str = "plain-asa-scheduled",
):
    config = schema.default(FinetuningConfig)
    config.update(checkpoint=model, data=data, seeds=(0, 1), arms=arms.replace("-", ","))
    for task in tasks:
        finetuning.add(config, task, learning_rates=(1e-4, 2e-4), max_length=32, epochs=2)
    if arm == "scheduled":
        finetuning.attack(config, "scheduled", trace="{arms}/asa/{task}/{trial}")
    elif arm != "plain":
        finetuning.attack(config, "asa", tau=0.6 if arm == "asa" else 0.3)
    return config
"""
LAYERS = EncoderConfig().layers


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

    monkeypatch.setattr(plan.task_training, "run_trial", run_trial)
    monkeypatch.setattr(plan.encoded, "encode", lambda splits, tokenizer, encoder, recipe: splits)
    monkeypatch.setattr(plan.opening, "open_encoder", tiny_tasks.open_encoder)
    (tmp_path / "model").mkdir()
    (tmp_path / "c.py").write_text(FILE)
    return trained


@pytest.fixture
def source(tmp_path, data):
    return f"{tmp_path / 'c.py'}:model={tmp_path / 'model'},data={data}"


def numbers_of(workdir):
    return json.loads((workdir / "report.json").read_text())["tasks"]


def test_a_schedule_is_that_of_the_same_trial_of_another_arm(source, tmp_path, trained, monkeypatch):
    """A process waits for the schedule that another one records."""
    workdir, waited = epath.Path(tmp_path / "w"), []
    with contextlib.ExitStack() as another:
        another.enter_context(lock.hold(workdir / "asa" / "sst2" / "lr0.0002-bs32-seed1" / lock.FILE))
        monkeypatch.setattr(grid, "time", SimpleNamespace(sleep=lambda _: waited.append([*trained]) or another.close()))
        found = comparison.compare(config_files.load(source, {}), workdir)
    assert len(waited) == 1 and len(waited[0]) == 10 and len(trained) == 12 and found == workdir / "report.md"
    for name, one in trained.items():
        arm, task, trial = name.split("/")
        trace = str(workdir / "asa" / task / trial) if arm == "scheduled" else None
        assert one.recipe.adversarial.masking.trace == trace
    assert "{arms}" in (workdir / "scheduled" / "config.json").read_text()
    comparison.compare(config_files.load(source, {"seeds": (0, 1, 2)}), workdir)
    assert len(trained) == 12 + 6, "the trials of the third seed, whose traces are not there yet either"


@pytest.mark.parametrize("arms", ["plain-scheduled-asa", "scheduled"])
def test_a_schedule_that_is_not_there_or_of_another_model_is_refused(source, tmp_path, trained, arms):
    workdir = epath.Path(tmp_path / "w")
    with pytest.raises(ValueError, match="masking.trace=.*/w/asa/sst2/lr0.0001-bs32-seed0"):
        comparison.compare(config_files.load(f"{source},arms={arms}", {}), workdir)
    assert not trained
    comparison.compare(config_files.load(f"{source},arms=asa", {}), workdir)
    trace = workdir / "asa/sst2/lr0.0002-bs32-seed1/metrics.jsonl"
    before = trace.read_text()
    trace.write_text('{"step": 1, "split": "train", "masked": 0.1, "masked/layers": [0.1]}\n')
    with pytest.raises(ValueError, match=f"lr0.0002-bs32-seed1 .*{LAYERS} layers .*has 1"):
        comparison.compare(config_files.load(f"{source},arms={arms}", {}), workdir)
    trace.write_text(before)
    comparison.compare(config_files.load(f"{source},arms={arms}", {}), workdir)
    assert {name.split("/")[0] for name in trained} == {*arms.split("-"), "asa"}


def test_the_report_has_what_was_masked_by_the_chosen_point_and_scores_against_tau(source, tmp_path, trained):
    config, workdir = config_files.load(f"{source},arms=plain-asa-strong-scheduled,tasks=sst2,stsb"), tmp_path / "w"
    text, numbers = comparison.compare(config, workdir).read_text(), numbers_of(workdir)
    assert "masked" not in numbers["sst2"]["arms"]["plain"]
    for task, arm in itertools.product(("sst2", "stsb"), ("asa", "scheduled")):
        # The last fifth of training is the second row; the seeds have 0.1 and 0.2 over its number.
        masked = numbers[task]["arms"][arm]["masked"]
        assert (masked["all"], masked["layers"]) == (pytest.approx(0.075), pytest.approx([0.075] * LAYERS))
        assert masked["steps"] == [2, 2] and f"| {task} | {arm} | 2 to 2 | 7.5 | " in text
    score = {arm: of_arm["splits"]["validation"]["pearson"] for arm, of_arm in numbers["stsb"]["arms"].items()}
    cells = [f"{100 * score[arm]['mean']:.1f} ± {100 * score[arm]['deviation']:.1f}" for arm in ("strong", "asa")]
    assert "| tau = 0.3 | tau = 0.6 |" in text
    assert f"| stsb | pearson | {cells[0]} | {cells[1]} | {100 * score['plain']['mean']:.1f} |" in text
    for name in ("masked_share", "temperature"):
        assert (tmp_path / "w" / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    chosen = numbers["sst2"]["arms"]["asa"]["chosen"]["learning_rate"]
    (tmp_path / "w" / "asa" / "sst2" / f"lr{chosen:g}-bs32-seed1" / "metrics.jsonl").write_text(
        json.dumps({"step": 2, "split": "train", "masked": 0.55, "masked/layers": [0.55] * LAYERS})
    )
    comparison.compare(config, workdir)
    found = numbers_of(tmp_path / "w")["sst2"]["arms"]["asa"]["masked"]["all"]
    assert found == pytest.approx((0.05 + 0.55) / 2)


HEAD = Head("sst2", "classification", ("bad", "good"), max_length=12)


@functools.cache
def fine_tuned(score=None):
    """A model of SST-2, with an adversary whose score of every unit has the sign of `score`, if it is not None."""
    model = HEAD.model(tiny.config(vocabulary_size=TOKENIZER.vocabulary_size, token_types=1, layers=4))
    params = tiny.params(model, tiny.task_batch("classification"))
    if score is None:
        return FineTuned(HEAD, model.config, TOKENIZER, params)
    shape = model.config.layers, model.config.width
    parts = {"query": np.ones(shape, np.float32), "key": np.full(shape, score, np.float32)}
    kernel = np.zeros((*shape, shape[1]), np.float32)
    adversary = {name: {"kernel": kernel, "bias": of} for name, of in parts.items()}
    return FineTuned(HEAD, model.config, TOKENIZER, params, adversary_params={"adversary": adversary})


def test_maps_of_the_arms_that_kept_weights(source, tmp_path, trained, monkeypatch):
    """Weights are kept of each seed's best trial, which need not be of the chosen point."""
    drawn, columns, honest = [], [], plots.draw_maps

    def load(place):
        drawn.append(place)
        return fine_tuned(-1.0 if place.parts[-3] == "asa" else None)

    monkeypatch.setattr(finetuned, "load", load)
    monkeypatch.setattr(plots, "draw_maps", lambda *given: columns.append(given) or honest(*given))
    text = comparison.compare(config_files.load(source, {"keep": "best"}), epath.Path(tmp_path / "w")).read_text()
    assert [place.parts[-3] for place in drawn] == ["asa", "plain", "asa", "scheduled"], "the first for the change"
    assert all(place.name.endswith("seed0") and (place / "weights").exists() for place in drawn)
    change = numbers_of(tmp_path / "w")["sst2"]["arms"]["asa"]["attention_change"]
    cells = [f"{value:.2g}" for value in (np.mean(change), *change)]
    assert len(cells) == 5 and 1e-5 < min(change) < 1 and f"| sst2 | asa | {' | '.join(cells)} |" in text
    assert [list(by_arm) for by_arm, *_ in columns] == [["plain", "asa", "asa, attacked", "scheduled"]] * 2
    (_, without), (_, under) = (columns[0][0][arm][0] for arm in ("asa", "asa, attacked"))
    np.testing.assert_allclose(under.weights_NHQK, 1 / len(under.tokens), rtol=1e-6, err_msg="everything is masked")
    assert np.abs(without.weights_NHQK - under.weights_NHQK).max() > 1e-3
    assert [place for _, *place, _ in columns] == [[0, 2], [2, 1]], "layers and heads"
    for layer in (0, 2):
        assert (tmp_path / "w" / "figures" / f"attention_sst2_layer{layer}.png").exists()


@pytest.mark.parametrize("score", [1.0, -1.0])
def test_attention_under_attack_is_what_the_kept_adversary_leaves(tmp_path, score):
    finetuned.save(fine_tuned(score), tmp_path)
    tuned = finetuned.load(tmp_path)
    assert set(tuned.params) == {"encoder", "task_head"} and set(tuned.adversary_params) == {"adversary"}
    attacker = adversarial.learnt(AdversarialConfig("asa"), tuned.config)
    text = "good roads we build union state strong bad good we build roads"
    plain, under = attacked.attention(tuned, text), attacked.attention(tuned, text, attacker)
    assert plain.weights_NHQK.shape == (4, 3, 12, 12) and plain.left_out == 2
    np.testing.assert_allclose(plain.weights_NHQK.sum(-1), 1, rtol=1e-5)
    expected = plain.weights_NHQK if score > 0 else np.full_like(plain.weights_NHQK, 1 / 12)
    np.testing.assert_allclose(under.weights_NHQK, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "labels"), [("classification", HEAD.labels), ("multilabel", ("a", "b", "c")), ("regression", ())]
)
def test_a_text_is_attacked_with_the_models_own_prediction_as_its_label(kind, labels):
    head = dataclasses.replace(HEAD, kind=kind, labels=labels)
    model = head.model(tiny.config(vocabulary_size=TOKENIZER.vocabulary_size, token_types=1, layers=1))
    params = tiny.params(model, tiny.task_batch(kind))
    tuned = FineTuned(head, model.config, TOKENIZER, params)
    setup = attack.text_attack(tuned, AdversarialConfig("freelb"), GuidanceConfig())
    batch = setup.make_batch(np.array([0, 7, 8, 6, 2], np.int32))
    fields = {name: batch[name] for name in ("tokens", "segment_ids", "token_type_ids")}
    prediction = np.asarray(tiny.apply(model, params, fields))
    field = "label_set" if kind == "multilabel" else "labels"
    expected = {"classification": prediction.argmax(-1), "multilabel": prediction > 0, "regression": prediction}[kind]
    np.testing.assert_allclose(batch[field], expected, rtol=1e-5)
    assert len(batch[field]) == len(batch["weights"]) == 1 and setup.method == "freelb"
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert repr(tuned) == f"FineTuned(config=<1 layers of 3 heads, width 12>, params=<{size:,} numbers>)"


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
