"""The tables of attacks on real weights: their numbers are those of the recorded lines, and the page has them."""

import numpy as np
import pytest
import scipy.stats

from tests import scripts

pages, tables = scripts.load("pages", "evidence_tables")

SCORES = {  # of seeds 0 to 4
    "plain": (0.82, 0.83, 0.81, 0.84, 0.825),
    "asa": (0.84, 0.83, 0.835, 0.86, 0.845),
    "r_drop": (0.80, 0.82, 0.82, 0.83, 0.54),
    "tau_0.1": (0.70, 0.71, 0.72, 0.73, 0.71),
}


def lines_of(task="sst2", metric="accuracy", scores=None, examples=872, **more):
    return [
        {
            "task": task,
            "arm": arm,
            "seed": seed,
            "learning_rate": 5e-5,
            "examples": {"train": 3200, "validation": examples, "test": examples},
            "scores": {"validation": {metric: score}},
            **more,
        }
        for arm, of in (scores or SCORES).items()
        for seed, score in enumerate(of)
    ]


def rows_of(lines):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]


def test_the_differences_are_paired_by_seed():
    found = rows_of(tables.compared(lines_of(), "sst2", {"asa": "asa", "r_drop": "r_drop"}, "arm"))
    assert found[0] == ["arm", "seeds", "score", "difference (95 % interval)", "p", "detectable", "seeds at chance"]
    assert found[1] == ["plain", "5", "82.5 ± 1.1", "–", "–", "–", "0"]
    difference = 100 * np.subtract(SCORES["asa"], SCORES["plain"])
    low, high = scipy.stats.t.interval(0.95, 4, difference.mean(), scipy.stats.sem(difference))
    p = {arm: scipy.stats.ttest_rel(SCORES[arm], SCORES["plain"]).pvalue for arm in ("asa", "r_drop")}
    assert found[2][:4] == ["asa", "5", "84.2 ± 1.2", f"+{difference.mean():.1f} ({low:+.1f} to {high:+.1f})"]
    assert float(found[2][4]) == pytest.approx(2 * min(p.values()), abs=6e-4)  # Holm's correction for two tests
    assert float(found[2][5]) == pytest.approx(1.68 * difference.std(ddof=1), rel=0.03)  # of five pairs
    assert found[3][-1] == "1", "one seed is less than three standard errors (.051) above .509"


def test_temperatures_have_a_table_of_their_own():
    text = "\n".join(tables.tables(lines_of()))
    first, second = text.split("temperatures τ of ASA")
    assert "tau_0.1" not in text and "| r_drop | 5 |" in first and "| 0.1 | 5 | 71.4 ± 1.1 |" in second
    assert "| 0.3 | 5 | 84.2" in second and "r_drop" not in second


def test_other_attacks_are_compared_with_asa():
    scores = {name: SCORES[name] for name in ("plain", "asa")} | {"freelb": SCORES["r_drop"], "smart": SCORES["plain"]}
    lines = lines_of(scores=scores)
    found = rows_of(tables.against_asa(lines, "sst2"))
    assert [row[0] for row in found] == ["arm", "freelb", "smart"], "plain training has a table of its own"
    difference = 100 * np.subtract(scores["smart"], scores["asa"])
    low, high = scipy.stats.t.interval(0.95, 4, difference.mean(), scipy.stats.sem(difference))
    assert found[2][1] == f"{difference.mean():.1f} ({low:+.1f} to {high:+.1f})"
    p = {arm: scipy.stats.ttest_rel(scores[arm], scores["asa"]).pvalue for arm in ("freelb", "smart")}
    assert float(found[2][2]) == pytest.approx(2 * min(p.values()), abs=6e-4)  # Holm's correction for two tests
    assert "minus `asa`" in "\n".join(tables.tables(lines)) and not tables.against_asa(lines[:5], "sst2")


def test_a_seed_that_asa_or_another_attack_failed_is_left_out_of_their_table():
    """Of all rows, so that they are over the same seeds."""
    scores = {name: SCORES[name] for name in ("plain", "asa")} | {"freelb": SCORES["r_drop"], "smart": SCORES["plain"]}
    lines = lines_of(scores=scores)
    for line in lines:
        if (line["arm"], line["seed"]) in {("asa", 1), ("freelb", 4)}:
            del line["scores"]
    found = rows_of(tables.against_asa(lines, "sst2"))
    for row, arm in zip(found[1:], ("freelb", "smart"), strict=True):
        difference = 100 * np.subtract(scores[arm], scores["asa"])[[0, 2, 3]]
        low, high = scipy.stats.t.interval(0.95, 2, difference.mean(), scipy.stats.sem(difference))
        assert row[:2] == [arm, f"{difference.mean():.1f} ({low:+.1f} to {high:+.1f})"]


def test_failed_trials_are_counted_and_not_averaged():
    lines = lines_of("cola", "matthews", {"plain": (0.3, 0.32, 0.31), "asa": (0.35, 0.36, 0.37)}, examples=1043)
    lines[4] = {key: value for key, value in lines[4].items() if key != "scores"} | {"failed": "no number"}
    found = rows_of(tables.compared(lines, "cola", {"asa": "asa"}, "arm"))
    assert found[2][:3] == ["asa", "3", "36.0 ± 1.4"] and found[2][3].startswith("+5.5") and found[2][-1] == "1"


def test_an_arm_that_lacks_a_seed_takes_none_from_the_others():
    both = {"plain": (0.3, 0.32, 0.31), "asa": (0.35, 0.36, 0.39)}
    arms = {"asa": "asa", "longer": "longer"}
    found = rows_of(tables.compared(lines_of(scores=both | {"longer": (0.4, 0.41)}), "sst2", arms, "arm"))
    alone = rows_of(tables.compared(lines_of(scores=both), "sst2", arms, "arm"))
    assert found[:3] == alone and found[3] == ["longer", "2", "40.5 ± 0.7", "–", "–", "–", "2"]


def test_an_arm_whose_trials_all_failed_hides_no_other():
    lines = lines_of("wnut17", "entity_f1", {"plain": (0.3, 0.32), "asa": (0.35, 0.36), "smart": (0.1, 0.1)})
    for line in lines:
        line["scores"]["test"] = line["scores"]["validation"]
        if line["arm"] == "smart":
            del line["scores"]
    found = rows_of(tables.compared(lines, "wnut17", {"asa": "asa", "smart": "smart"}, "arm"))
    assert [row[0] for row in found[1:]] == ["plain", "plain (test)", "asa", "asa (test)", "smart"]
    assert found[3][3].startswith("+4.5") and found[5] == ["smart", "2", "–", "–", "–", "–", "2"]


def test_a_task_with_a_test_set_and_masks():
    scores = {"plain": (0.2, 0.25), "asa": (0.3, 0.3)}
    lines = lines_of("wnut17", "entity_f1", scores, masked={"all": 0.2, "layers": [0.3, 0.1]})
    for line in lines:
        line["scores"]["test"] = {"entity_f1": 0.1}
    found = rows_of(tables.tables(lines))
    assert [row[0] for row in found[1:5]] == ["plain", "plain (test)", "asa", "asa (test)"]
    assert found[4][2:4] == ["10.0 ± 0.0", "–"], "a difference that is the same for all seeds has no t"
    assert found[-1] == ["WNUT-17", "asa", "20.0 %", "30.0 %", "10.0 %"]


def test_the_page_has_the_tables_of_now():
    text = (pages.ROOT / tables.PAGE).read_text()
    now = list(tables.tables(tables.recorded()))
    written = pages.with_tables(text, tables.PAGE, "evidence_tables.py", now)
    assert written == text, "run `python benchmarks/evidence_tables.py`"


def test_tables_are_written_between_their_marks(tmp_path, monkeypatch):
    """Those of the program alone, with its own end."""
    marks = "<!-- tables of benchmarks/{}.py -->\n{}<!-- end of the tables -->\n"
    text = "a\n" + marks.format("x", "old\n") + "b\n" + marks.format("y", "kept\n") + "c\n"
    (tmp_path / "page.md").write_text(text)
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    pages.write("page.md", "x.py", ["new", ""])
    assert (tmp_path / "page.md").read_text() == text.replace("old", "\nnew")
    with pytest.raises(ValueError, match="page.md must have the lines '<!-- tables of benchmarks/z.py -->' and"):
        pages.write("page.md", "z.py", ["new"])
