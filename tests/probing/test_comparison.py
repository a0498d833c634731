"""`ag-jax evaluate` and `ag-jax compare` with probes: numbers of reports, what is asked of models, and refusals."""

import csv
import json
import sys
import types

import numpy as np
import pytest
import scipy.stats

from ag_jax.analysis.heads import measuring
from ag_jax.data import tokenizers
from ag_jax.data.config import TokenizerConfig
from ag_jax.data.probes.queries import Query
from ag_jax.pretraining import config as pretraining_config
from ag_jax.pretraining import initial_weights
from ag_jax.probing import comparison, probes
from ag_jax.probing import report as report_text
from ag_jax.probing.config import ProbeConfig
from ag_jax.probing.models import ProbedModel
from ag_jax.settings import config_files
from tests.conftest import REPOSITORY
from tests.probing import examples

PROBE = REPOSITORY / "configs" / "probe.py"
FLAGS = {"resamples": 100, "random_seeds": (0, 4)}
MODELS, ARMS = ("plain-seed{seed}", "guided-seed{seed}"), ("plain", "guided")
# Names and pronouns; every document has two entities. A line is a word and the entities that begin or end at it.
STORY = [("Mary", "(0)"), ("saw", "-"), ("the", "(1"), ("king", "1)"), (".", "-"), None]
STORY += [("She", "(0)"), ("left", "-"), ("him", "(1)"), (".", "-"), None]
STORY += [("Then", "-"), ("the", "(1"), ("king", "1)"), ("washed", "-"), ("her", "(0)"), (".", "-"), None]


def documents(count):
    """The story so many times, every other time with twice the sentences."""
    lines = []
    for number in range(count):
        name = f"story{number}"
        lines.append(f"#begin document ({name}); part 000")
        for word, entities in [entry or ("", "") for entry in STORY * (1 + number % 2)]:
            lines.append("\t".join([name, "0", "0", word, *["_"] * 8, entities]) if word else "")
        lines.append("#end document")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with four runs, of two arms and seeds, and a file of stories."""
    folder = tmp_path_factory.mktemp("probing")
    (folder / "text.txt").write_text("A text.\n")
    (folder / "stories.conll").write_text(documents(22))
    for number, name in enumerate(("plain-seed0", "plain-seed1", "guided-seed0", "guided-seed1")):
        probed = examples.probed(number)
        config = pretraining_config.default_config()
        config.data.update(source=str(folder / "text.txt"), sequence_length=96)
        config.model.update(layers=2, heads=3, width=12, max_length=97)
        if name.startswith("guided"):
            config.guidance.update(mode="loss", heads="next:1", layers="1")
        initial_weights.write(pretraining_config.parse(config), folder / name, probed.tokenizer, probed.params)
    return folder


def source(place, models=MODELS, more=",seeds=2"):
    listed = ",".join(str(place / name) for name in models)
    return f"{PROBE}:checkpoint={listed},coreference={place / 'stories.conll'},reflexives=none{more}"


@pytest.fixture(scope="module")
def report(place):
    return comparison.compare(config_files.load(source(place), FLAGS), place / "compared").parent


def test_the_numbers_are_those_of_all_heads_in_scores_csv(report):
    """The best heads of report.json and the differences over seeds, computed again from scores.csv."""
    with (report / "scores.csv").open() as file:
        rows = list(csv.DictReader(file))
    content = json.loads((report / "report.json").read_text())
    assert list(content["models"]) == [*ARMS, "random"] and content["baseline"] == "plain"
    numbers = content["probes"]["coreference"]["words"]
    assert numbers["kinds"][0] == "all" and set(numbers["kinds"]) == {"all", "pronominal", "nominal"}

    def rate(row):
        return float(row["right"]) / int(row["total"])

    tests = {arm: [] for arm in (*ARMS, "random")}
    for arm, of_arm in tests.items():
        for number, found in enumerate(numbers["arms"][arm]["all"]):
            wanted = {"arm": arm, "model": str(number), "mode": "words", "kind": "all"}
            chosen = [row for row in rows if wanted.items() <= row.items()]
            development, test = ([row for row in chosen if row["part"] == of] for of in ("development", "test"))
            assert len(development) == len(test) == 6
            assert {int(row["total"]) for row in test} == {numbers["queries"]["all"]}
            best = max(development, key=rate)
            assert [int(best["layer"]), int(best["head"])] == found["head"]
            same = next(row for row in test if (row["layer"], row["head"]) == (best["layer"], best["head"]))
            of_arm.append(rate(same))
            assert found["test"]["mean"] == pytest.approx(rate(same), abs=1e-6)
            assert max(map(rate, test)) == pytest.approx(found["best"], abs=1e-6)
            assert sum(map(rate, test)) / 6 == pytest.approx(found["mean"], abs=1e-6)
            guided = {(row["layer"], row["head"]): rate(row) for row in test if row["guided"] == "1"}
            assert guided.keys() == ({("1", "0")} if arm == "guided" else set())
            assert found["guided"] == (pytest.approx(guided["1", "0"], abs=1e-6) if guided else None)
    assert [len(of_arm) for of_arm in tests.values()] == [2, 2, 2]
    stored = [report / "probes" / f"random-seed{seed}" / "coreference" / "result.json" for seed in (0, 4)]
    first, second = (json.loads(path.read_text())["artifacts"]["words"]["sha256"] for path in stored)
    assert first != second, "random models differ by seed"
    means = numbers["means"]["guided"]["all"]["test"]
    assert means["mean"] == pytest.approx(np.mean(tests["guided"]), abs=1e-6)
    assert means["deviation"] == pytest.approx(np.std(tests["guided"], ddof=1), abs=1e-6)
    expected = scipy.stats.ttest_rel(tests["guided"], tests["plain"])
    difference = np.mean(tests["guided"]) - np.mean(tests["plain"])
    assert list(numbers["differences_over_seeds"]) == ["guided"]
    found = numbers["differences_over_seeds"]["guided"]["all"]
    assert found["mean"] == pytest.approx(difference, abs=1e-6)
    assert found["p_value"] == pytest.approx(expected.pvalue, abs=1e-4)
    assert numbers["differences"]["guided"]["all"]["mean"] == pytest.approx(difference, abs=1e-6)
    assert (report / "figures" / "heads_coreference_words.png").exists()


def test_what_was_measured_is_not_measured_again(place, report, monkeypatch):
    """Random models are the same again. Files that an earlier command with other probes left are deleted."""
    before, figures = (report / "report.json").read_text(), set((report / "figures").iterdir())
    monkeypatch.setattr(measuring, "measure", lambda *given, **more: pytest.fail("measured again"))
    for name in ("ablation.csv", "figures/ablation.png", "figures/heads_gap_words.png"):
        (report / name).write_text("of an earlier command with other probes")
    comparison.compare(config_files.load(source(place), FLAGS), report)
    assert (report / "report.json").read_text() == before
    assert set((report / "figures").iterdir()) == figures and not (report / "ablation.csv").exists()


def test_models_with_other_tokenizers_are_asked_the_same(place):
    """One tokenizer needs three times the tokens, so that windows are shorter for both."""
    coarse = tokenizers.train(TokenizerConfig(vocabulary_size=262), examples.TEXTS)
    fine, other = (ProbedModel("", None, None, of, 40) for of in (examples.tokenizer(), coarse))
    config = ProbeConfig(data=str(place / "stories.conll"))
    alone, both = (probes.make("stories", config, of) for of in ([fine], [fine, other]))
    assert len(both.queries) < len(alone.queries)
    for tokenizer in (fine.tokenizer, coarse):
        encoded = [tokenizer.encode("".join(f" {word}" for word in window.words)) for window in both.windows]
        assert 20 < max(map(len, encoded)) <= 38


@pytest.fixture
def module(monkeypatch):
    found = types.ModuleType("my_probes")
    monkeypatch.setitem(sys.modules, "my_probes", found)
    return found


def test_a_custom_probe_with_many_kinds(place, module):
    """Kinds are rows, without the one that has no correct answer; F1 is there where a query may have none."""
    kinds = ["feminine", "masculine", "a", "b", "c", "d", "root"] * 6
    development = np.arange(len(kinds)) % 4 == 0
    nearest = ~development & (np.array(kinds) != "root")

    def many(data):
        right = [() if kind == "root" else (number % 2,) for number, kind in enumerate(kinds)]
        words = [tuple((2, 7)[index] for index in of) for of in right]
        queries = [Query(3, 9, 9, ((2,), (7,)), *of) for of in zip(right, words, kinds, strict=True)]
        return examples.probe(queries, development=development, baselines={"nearest": nearest})

    module.many = many
    config = f"{PROBE}:checkpoint={place / 'plain-seed0'},reflexives=none,custom=my_probes.many"
    flags = {"probes.many.modes": ("mentions",), "random_seeds": ()}
    path = comparison.evaluate(config_files.load(config, flags), place / "many")
    numbers = json.loads((path.parent / "report.json").read_text())["probes"]["many"]["mentions"]
    assert "root" in numbers["kinds"] and numbers["unanswerable"] == ["root"]
    table = {line.split(" | ")[0][2:]: line.split(" | ") for line in path.read_text().splitlines() if line[:2] == "| "}
    assert "root" not in table
    for kind in set(kinds) - {"root"}:
        of, row = numbers["arms"]["model"][kind][0], table[kind]
        assert int(row[1]) == of["queries"] and row[2:4] == ["0.500", "1.000"]
        assert row[4].rstrip(" |") == f"{of['test']['mean']:.3f}, head {of['head'][0]}.{of['head'][1]}"
    rule, counts = numbers["f1_nearest"]["f1"], {kind: numbers["queries"][kind] for kind in numbers["kinds"]}
    assert counts["all"] == 31 and rule["feminine"] == 1 and rule["root"] == 0
    assert rule["all"] == pytest.approx(2 * (counts["all"] - counts["root"]) / (2 * counts["all"] - counts["root"]))
    assert numbers["f1"]["model"][0]["head"] == numbers["arms"]["model"]["all"][0]["head"]


def test_a_warning_where_no_head_beats_a_rule_with_the_same_choices():
    rules = {"chance": 0.5, "nearest": 0.75}
    of_words = {"chance": 0.2, "best fixed offset": 0.6, "nearest noun": 0.9}
    cases = (
        ("mentions", rules, 0.75),
        ("words", rules, 0.5),
        ("words", of_words, 0.9),
        ("words", of_words | {"nearest noun": 0.1}, 0.6),
        ("words", of_words | {"nearest noun": None}, 0.6),
    )
    for mode, of, level in cases:
        for mean, warned in ((level, True), (level + 0.01, False)):
            means = {"a": {"all": {"test": {"mean": mean}}}, "b": {"all": {"test": None}}}
            baselines = {name: {"all": score} for name, score in of.items()}
            numbers = {"baselines": baselines, "compared": ["a", "b"], "means": means}
            assert bool(report_text.no_signal(numbers, mode)) == warned


OTHER = "probes.coreference."
ONE, TWO, OF_SEEDS = ["plain-seed0"], ["plain-seed0", "guided-seed0"], ["plain-seed{seed}"]


@pytest.mark.parametrize(
    ("models", "more", "flags", "named"),
    [
        (ONE, "", {"seeds": (0, 1)}, "checkpoint"),
        (ONE, "", {"train": "quickstart"}, "either checkpoint"),
        (ONE, "", {f"{OTHER}distractor": "after"}, "distractor"),
        (ONE, "", {f"{OTHER}kind": "dependencies"}, "mentions"),
        (ONE, "", {f"{OTHER}modes": ("positions",), f"{OTHER}to_word": "mean"}, "to_word"),
        (ONE, "", {f"{OTHER}transposed": True, f"{OTHER}to_word": "mean"}, "to_word"),
        (
            ONE,
            "",
            {f"{OTHER}modes": ("positions",), f"{OTHER}transposed": True, f"{OTHER}from_word": "first"},
            "from_w",
        ),
        (ONE, "", {f"{OTHER}data": "none.conll"}, "none.conll"),
        (ONE, ",seeds=2", {}, "{seed}"),
        (OF_SEEDS, "", {}, "{seed}"),
        (TWO, "", {}, "plain-seed0,guided-seed0"),
        (ONE, ",custom=my_probes.wrong", {}, "my_probes.wrong"),
        (ONE, ",custom=my_probes.outside", {}, "query 0"),
    ],
)
def test_what_cannot_be_evaluated(place, module, models, more, flags, named):
    module.wrong = lambda data: [data]
    module.outside = lambda data: examples.probe([Query(0, 99, 0, (), (), (), "x")] * 2)
    with pytest.raises((ValueError, FileNotFoundError), match=named):
        comparison.evaluate(
            config_files.load(source(place, models, more), flags | {"random_seeds": ()}), place / "wrong"
        )
