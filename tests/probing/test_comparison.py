"""`ag-jax evaluate` and `ag-jax compare` with probes: reports, stored results, and what is measured anew."""

import csv
import json
import shutil
import sys
import types

import flax.linen as nn
import jax
import numpy as np
import pytest

from ag_jax.data import tokenizers
from ag_jax.data.config import TokenizerConfig
from ag_jax.data.probes.queries import Query
from ag_jax.pretraining import config as pretraining_config
from ag_jax.pretraining import run
from ag_jax.pretraining.workloads import reference_model
from ag_jax.probing import comparison, measuring
from ag_jax.probing.models import random_params
from tests.conftest import REPOSITORY
from tests.probing import examples

PROBE = REPOSITORY / "configs" / "probe.py"
# Names and pronouns; every document has two entities. A line is a word and the entities that begin or end at it.
STORY = [("Mary", "(0)"), ("saw", "-"), ("the", "(1"), ("king", "1)"), (".", "-"), None]
STORY += [("She", "(0)"), ("left", "-"), ("him", "(1)"), (".", "-"), None]
STORY += [("Then", "-"), ("the", "(1"), ("king", "1)"), ("washed", "-"), ("her", "(0)"), (".", "-"), None]


def documents(count):
    """The story so many times, each time with another number of sentences."""
    lines = []
    for number in range(count):
        name = f"story{number}"
        lines.append(f"#begin document ({name}); part 000")
        sentence = 0
        for entry in STORY * (1 + number % 3):
            if entry is None:
                lines.append("")
            else:
                word, entities = entry
                lines.append("\t".join([name, "0", str(sentence), word, *["_"] * 8, entities]))
        lines.append("#end document")
    return "\n".join(lines) + "\n"


def made_run(folder, seed, guided, tokenizer):
    config = pretraining_config.default_config()
    config.data.source = str(folder / "text.txt")
    config.data.sequence_length = 96
    config.model.update(layers=2, heads=3, width=12, max_length=96, initializer_range=0.5)
    if guided:
        config.guidance.update(mode="loss", heads="next:1", layers="1")
    parsed = pretraining_config.parse(config)
    model = reference_model(parsed, tokenizer)
    batch = {name: np.zeros((1, 8), np.int32) for name in ("tokens", "token_type_ids")}
    batch |= {"segment_ids": np.ones((1, 8), np.int32), "masked_positions": np.zeros((1, 2), np.int32)}
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), batch, deterministic=True)["params"])
    params = jax.tree.map(lambda leaf: np.zeros(leaf.value.shape if hasattr(leaf, "value") else leaf.shape), shapes)
    return parsed, params, random_params(model, seed)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with two runs and a file of stories."""
    folder = tmp_path_factory.mktemp("probing")
    (folder / "text.txt").write_text("A text.\n")
    (folder / "stories.conll").write_text(documents(12))
    coarse = tokenizers.train(TokenizerConfig(vocabulary_size=262), examples.TEXTS)
    for name, seed, guided, tokenizer in (
        ("plain", 1, False, examples.tokenizer()),
        ("guided", 2, True, examples.tokenizer()),
        ("coarse", 3, False, coarse),
    ):
        parsed, params, trained = made_run(folder, seed, guided, tokenizer)
        params = nn.unbox(params) | {"encoder": trained["encoder"]}
        run.write(parsed, folder / name, tokenizer, jax.tree.map(np.float32, params))
    return folder


def source(place, models=("plain",), more=""):
    listed = ",".join(str(place / name) for name in models)
    return f"{PROBE}:checkpoint={listed},coreference={place / 'stories.conll'},reflexives=none{more}"


@pytest.fixture(scope="module")
def report(place):
    path = comparison.compare(source(place, ("plain", "guided")), {"resamples": 100}, place / "compared")
    return path.parent


def test_report(report):
    content = json.loads((report / "report.json").read_text())
    assert list(content["models"]) == ["plain", "guided", "random"] and content["baseline"] == "plain"
    numbers = content["probes"]["coreference"]["mentions"]
    assert numbers["kinds"][0] == "all" and set(numbers["kinds"]) == {"all", "pronominal", "nominal"}
    guided = numbers["arms"]["guided"]["all"][0]
    assert guided["guided"] is not None and numbers["arms"]["plain"]["all"][0]["guided"] is None
    difference, test = (
        numbers["differences"]["guided"]["all"],
        [numbers["arms"][arm]["all"][0]["test"]["mean"] for arm in ("plain", "guided")],
    )
    assert difference["mean"] == pytest.approx(test[1] - test[0])
    text = (report / "report.md").read_text()
    assert "## coreference, mode mentions" in text and "random weights (seed 0)" in text
    assert (report / "figures" / "heads_coreference_words.png").exists()


def test_every_head_is_in_scores_csv(report):
    """The best head of report.json, computed again from scores.csv."""
    with (report / "scores.csv").open() as file:
        rows = list(csv.DictReader(file))
    numbers = json.loads((report / "report.json").read_text())["probes"]["coreference"]["words"]

    def rate(row):
        return float(row["right"]) / int(row["total"])

    for arm in ("plain", "guided", "random"):
        chosen = [row for row in rows if (row["arm"], row["mode"], row["kind"]) == (arm, "words", "all")]
        development, test = ([row for row in chosen if row["part"] == part] for part in ("development", "test"))
        assert len(development) == len(test) == 6 and {int(row["total"]) for row in test} == {numbers["queries"]["all"]}
        best = max(development, key=rate)
        found = numbers["arms"][arm]["all"][0]
        assert [int(best["layer"]), int(best["head"])] == found["head"]
        same = next(row for row in test if (row["layer"], row["head"]) == (best["layer"], best["head"]))
        assert rate(same) == pytest.approx(found["test"]["mean"], abs=1e-6)
        assert max(map(rate, test)) == pytest.approx(found["best"], abs=1e-6)
        assert sum(map(rate, test)) / 6 == pytest.approx(found["mean"], abs=1e-6)
        guided = {(row["layer"], row["head"]): rate(row) for row in test if row["guided"] == "1"}
        assert guided.keys() == ({("2", "1")} if arm == "guided" else set())
        assert found["guided"] == (pytest.approx(guided["2", "1"], abs=1e-6) if guided else None)


def test_what_was_measured_is_not_measured_again(place, report, monkeypatch):
    """A second command reads the results; one that is damaged, or of another model, is measured again."""
    before = (report / "report.json").read_text()
    measured = []

    def spy(probed, *arguments, **settings):
        measured.append(probed.description)
        return original(probed, *arguments, **settings)

    original = measuring.measure
    monkeypatch.setattr(measuring, "measure", spy)
    again = source(place, ("plain", "guided"))
    figures = set((report / "figures").iterdir())
    for name in ("ablation.csv", "figures/ablation.png", "figures/heads_gap_words.png"):
        (report / name).write_text("of an earlier command with other probes")
    comparison.compare(again, {"resamples": 100}, report)
    assert not measured and (report / "report.json").read_text() == before
    assert set((report / "figures").iterdir()) == figures and not (report / "ablation.csv").exists()

    damaged = report / "probes" / "guided-seed0" / "coreference" / "words.npz"
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(bytes(content))
    (report / "probes" / "plain-seed0" / "coreference" / "result.json").unlink()  # as if killed before it was written
    comparison.compare(again, {"resamples": 100}, report)
    assert len(measured) == 2 and "guided" in measured[1] and (report / "report.json").read_text() == before

    (place / "stories.conll").write_text(documents(13))
    comparison.compare(again, {"resamples": 100}, report)
    assert len(measured) == 5
    (place / "stories.conll").write_text(documents(12))


def test_models_with_other_tokenizers_are_asked_the_same(place):
    """One tokenizer needs three times the tokens, so that windows are shorter for both, and each has a random twin."""
    path = comparison.compare(source(place, ("plain", "coarse")), {"resamples": 100}, place / "tokenizers")
    content = json.loads((path.parent / "report.json").read_text())
    assert list(content["models"]) == ["plain", "coarse", "random", "random2"]
    with (path.parent / "scores.csv").open() as file:
        totals = {(row["arm"], row["kind"], row["part"]): row["total"] for row in csv.DictReader(file)}
    of_arms = [{key[1:]: value for key, value in totals.items() if key[0] == arm} for arm in content["models"]]
    assert of_arms[0] and all(of_arm == of_arms[0] for of_arm in of_arms)
    alone = comparison.evaluate(source(place), {"resamples": 100}, place / "alone")
    queries = json.loads((alone.parent / "report.json").read_text())["probes"]["coreference"]["words"]["queries"]
    assert queries["all"] > content["probes"]["coreference"]["words"]["queries"]["all"]


def test_custom_probe(place, monkeypatch):
    module = types.ModuleType("my_probes")
    module.made_up = lambda data: examples.probe(before=True)
    module.wrong = lambda data: [data]
    module.outside = lambda data: examples.probe([Query(0, 99, 0, (), (), (), "x")] * 2)
    monkeypatch.setitem(sys.modules, "my_probes", module)
    config = f"{PROBE}:checkpoint={place / 'plain'},reflexives=none,custom=my_probes."
    path = comparison.evaluate(f"{config}made_up", {"probes.made_up.data": "x"}, place / "custom")
    numbers = json.loads((path.parent / "report.json").read_text())["probes"]["made_up"]["words"]
    assert numbers["queries"]["all"] == 3
    with pytest.raises(ValueError, match=r"function=my_probes.wrong returned list, expected an ag_jax"):
        comparison.evaluate(f"{config}wrong", {}, place / "wrong")
    with pytest.raises(ValueError, match=r"the probe made up, query 0 .*`at` to be the index of a word below 11"):
        comparison.evaluate(f"{config}outside", {}, place / "wrong")
    with pytest.raises(ValueError, match=r"cannot import probes.no.function=my_probes.no: AttributeError"):
        comparison.evaluate(f"{config}no", {}, place / "wrong")


def test_report_of_many_kinds(place, monkeypatch):
    """Kinds are rows, without the one that has no correct answer; F1 is there where a query may have none."""
    kinds = ["feminine", "masculine", "a", "b", "c", "d", "root"]

    def queries():
        for number, kind in enumerate(kinds * 6):
            right = () if kind == "root" else (number % 2,)
            yield Query(3, 9, 9, ((2,), (7,)), right, tuple((2, 7)[index] for index in right), kind)

    module = types.ModuleType("my_probes")
    development = np.arange(6 * len(kinds)) % 4 == 0
    nearest = ~development & (np.array(kinds * 6) != "root")
    module.many = lambda data: examples.probe(queries(), development=development, baselines={"nearest": nearest})
    monkeypatch.setitem(sys.modules, "my_probes", module)
    config = f"{PROBE}:checkpoint={place / 'plain'},reflexives=none,custom=my_probes.many"
    path = comparison.evaluate(config, {"probes.many.modes": ("mentions",)}, place / "many")
    numbers = json.loads((path.parent / "report.json").read_text())["probes"]["many"]["mentions"]
    lines = path.read_text().splitlines()
    assert "root" in numbers["kinds"] and numbers["unanswerable"] == ["root"]
    begin = lines.index("| kind | test queries | chance | nearest | **model** | **random** |")
    table = {line.split(" | ")[0][2:]: line.split(" | ") for line in lines[begin + 2 : begin + 8]}
    assert set(table) == set(kinds) - {"root"} and not lines[begin + 8]
    for kind, row in table.items():
        of = numbers["arms"]["model"][kind][0]
        assert int(row[1]) == of["queries"] and row[2:4] == ["0.500", "1.000"]
        assert row[4] == f"{of['test']['mean']:.3f}, head {of['head'][0]}.{of['head'][1]}"
    assert "| test queries | 31 |" in lines
    assert any(line.startswith("Left out of the kinds: root. ") for line in lines)

    found, rule = numbers["f1"]["model"][0], numbers["f1_nearest"]["f1"]
    counts = {kind: numbers["queries"][kind] for kind in numbers["kinds"]}
    assert rule["feminine"] == 1 and rule["root"] == 0
    assert rule["all"] == pytest.approx(2 * (counts["all"] - counts["root"]) / (2 * counts["all"] - counts["root"]))
    assert found["head"] == numbers["arms"]["model"]["all"][0]["head"]
    shown = [found["threshold"], *(found["f1"][kind] for kind in numbers["kinds"] if kind != "root"), found["ratio"]]
    cells = " | ".join("–" if value is None else f"{value:.3f}" for value in shown)
    assert f"| **model**, head {found['head'][0]}.{found['head'][1]} | {cells} |" in lines


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"seeds": (0, 1)}, "checkpoint=.* is one model: give one seed"),
        ({"train": "quickstart"}, "give either checkpoint"),
        ({"probes.coreference.distractor": "after"}, "probes.coreference.distractor=after has no effect with kind=cor"),
        (
            {"probes.coreference.modes": ("mentions,word",)},
            "modes must be one of mentions, words, positions, got .word.",
        ),
        (
            {"probes.coreference.modes": ("mentions,word",)},
            "modes must be one of mentions, words, positions, got 'word'",
        ),
        ({"probes.coreference.kind": "dependencies"}, "which these queries do not have"),
        (
            {"probes.coreference.modes": ("positions",), "probes.coreference.to_word": "mean"},
            "to_word=mean has no effect with modes=positions and transposed=False",
        ),
        (
            {"probes.coreference.modes": ("positions",), "probes.coreference.transposed": True}
            | {"probes.coreference.from_word": "first"},
            "from_word=first has no effect with modes=positions and transposed=True",
        ),
        (
            {"probes.coreference.transposed": True, "probes.coreference.to_word": "mean"},
            "to_word=mean has no effect with modes=mentions,words and transposed=True",
        ),
        ({"probes.coreference.data": "none.conll"}, "none.conll does not exist"),
        ({"checkpoint": "nowhere"}, "nowhere is no model"),
    ],
)
def test_wrong_settings(place, flags, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        comparison.evaluate(source(place), flags, place / "wrong")


@pytest.mark.exhaustive
def test_seeds_of_a_comparison(place):
    """`{seed}` stands for the seeds, and an arm without it is one model; the scores are those of each run alone."""
    folder = place / "seeds"
    for name, run_of_seed in (("a-seed0", "plain"), ("a-seed1", "guided"), ("b-seed0", "guided"), ("b-seed1", "plain")):
        shutil.copytree(place / run_of_seed, folder / name)
    models = ("seeds/a-seed{seed}", "seeds/b-seed{seed}", "guided")
    path = comparison.compare(source(place, models, ",seeds=2"), {"resamples": 100}, place / "of_seeds")
    content = json.loads((path.parent / "report.json").read_text())
    assert {arm: len(of) for arm, of in content["models"].items()} == {"a": 2, "b": 2, "guided": 1, "random": 1}
    numbers = content["probes"]["coreference"]["words"]
    of_arm = {arm: [of["mean"] for of in kinds["all"]] for arm, kinds in numbers["arms"].items()}
    assert of_arm["b"] == of_arm["a"][::-1] and of_arm["guided"] == of_arm["b"][:1] != of_arm["a"][:1]
    assert list(numbers["differences_over_seeds"]) == ["b"]
    assert numbers["differences_over_seeds"]["b"]["all"]["mean"] == pytest.approx(0)


def test_wrong_seeds(place):
    for models, more in ((("plain",), ",seeds=2"), (("plain-seed{seed}",), "")):
        with pytest.raises(ValueError, match=r"expected seeds, and \{seed\} in checkpoint .* or neither"):
            comparison.evaluate(source(place, models, more), {}, place / "wrong")
    with pytest.raises(FileNotFoundError, match="plain-seed0 is no model"):
        comparison.evaluate(source(place, ("plain-seed{seed}",), ",seeds=2"), {}, place / "wrong")


def test_wrong_arms(place):
    with pytest.raises(ValueError, match="has several models .plain,guided., but evaluate probes one"):
        comparison.evaluate(source(place, ("plain", "guided")), {}, place / "wrong")
    with pytest.raises(ValueError, match="must name different directories"):
        comparison.compare(source(place, ("plain", "plain")), {}, place / "wrong")
    with pytest.raises(ValueError, match="arm=other is no model of checkpoint: expected one of plain, guided"):
        comparison.compare(source(place, ("plain", "guided"), ",arm=other"), {}, place / "wrong")
    with pytest.raises(ValueError, match="have the same settings"):
        comparison.compare(source(place, ("plain", "guided")), {"checkpoint": str(place / "plain")}, place / "wrong")
