"""The numbers and tables of a comparison's translations, against the definitions of the tests."""

import dataclasses
import json

import numpy as np
import pytest
import scipy.stats

from ag_jax.evaluation import translation
from ag_jax.objectives.config import TranslationConfig
from ag_jax.pretraining import report
from ag_jax.pretraining.scores import TestResult

WORDS = "der Hund läuft schnell über eine grüne Wiese und Kinder spielen Ball im Park".split()
SEEDS = (3, 8, 5)


@pytest.fixture(scope="module")
def references():
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS, 9)) for _ in range(37)]


@pytest.fixture(scope="module")
def arms(references):
    """Results of three runs of each arm; those of the third arm are far worse."""
    rng = np.random.default_rng(1)

    def result(share):
        texts = (text.split() for text in references)
        found = [" ".join(str(rng.choice(WORDS)) if rng.random() < share else word for word in of) for of in texts]
        scores = {name: dataclasses.asdict(one) for name, one in translation.score(found, references).items()}
        return {"news": TestResult(found, json.loads(json.dumps(scores)))}

    shares = {"base": 0.3, "ag": 0.28, "hard_coded": 0.7}
    return {arm: [result(share) for _ in SEEDS] for arm, share in shares.items()}


@pytest.fixture(scope="module")
def config(references, tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    for side in ("source", "target"):
        (folder / side).write_text("".join(f"{line}\n" for line in references))
    return TranslationConfig(tests=(f"news={folder}/source={folder}/target",))


@pytest.fixture(scope="module")
def found(config, arms):
    return json.loads(json.dumps(report.translation_numbers(config, arms)))["news"]


def test_arms_are_compared_over_seeds_and_over_sentences(found, arms, references):
    assert found["sentences"] == 37
    for metric in translation.METRICS:
        values = {arm: [run["news"].scores[metric]["value"] for run in runs] for arm, runs in arms.items()}
        assert {arm: found["values"][arm][metric] for arm in arms} == values
        for arm, differences in found["differences_over_seeds"].items():
            expected = scipy.stats.ttest_rel(values[arm], values["base"]).pvalue
            assert differences[metric]["p_value"] == pytest.approx(expected)
        assert found["first_seed"]["ag"][metric]["value"] == values["ag"][0]
    p_values = {arm: differences["bleu"]["p_value"] for arm, differences in found["differences_over_seeds"].items()}
    assert list(p_values) == ["ag", "hard_coded"] and p_values["hard_coded"] < 0.05 < p_values["ag"]
    expected = translation.compare({arm: runs[0]["news"].lines for arm, runs in arms.items()}, references, "base")
    assert list(found["differences"]) == ["ag", "hard_coded"]
    for arm, of_arm in expected.items():
        for metric, difference in of_arm.items():
            stored = found["differences"][arm][metric]
            assert (stored["difference"], stored["p_value"]) == (difference.difference, difference.p_value)
            assert stored["interval"] == list(difference.interval)


def test_one_arm_and_one_seed_have_no_tests(config, arms):
    found = report.translation_numbers(config, {"base": arms["base"][:1]})
    assert found["news"]["differences"] == found["news"]["differences_over_seeds"] == {}
    content = {"seeds": [3], "baseline": "base"}
    assert "±" not in report._translations("news", found["news"], content).markdown()
