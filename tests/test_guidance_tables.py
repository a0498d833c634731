"""The tables of guidance in modern encoders: their numbers are those of the recorded runs, and the page has them."""

import itertools

import numpy as np
import pytest
import scipy.stats

from tests import scripts

cells, pages, tables = scripts.load("cells", "pages", "guidance_tables")
LEVELS = (("learned", "rotary"), ("post", "pre"), ("adamw", "muon"), ("none", "all"))
# Losses by positions, norm, optimizer, arm and seed.
LOSSES = 6 + np.random.default_rng(0).normal(size=(2, 2, 2, 2, 3))


def line_of(positions, norm, optimizer, arm, seed, loss, **more):
    left = None if loss > 7 else round(100 * loss)
    line = {"positions": positions, "norm": norm, "optimizer": optimizer, "arm": arm, "seed": seed}
    line |= {"learning_rate": 2e-3, "validation_loss": loss, "left_plateau_at_step": left}
    line["mass"] = {name: [0.1, 0.3] if arm == "none" else [0.8, 1.0] for name in ("next", "prev", "first")}
    return line | more


def lines_of():
    return [
        line_of(*(of[place] for of, place in zip(LEVELS, index, strict=False)), index[-1], float(loss))
        for index, loss in np.ndenumerate(LOSSES)
    ]


def rows_of(lines):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]


def losses(lines):
    return tables.of_runs(lines, lambda line: line["validation_loss"])


def test_effects_are_differences_of_means():
    """Against means of an array by axis, and a t-test of the seeds' differences."""
    found = {row[0]: row[1:] for row in rows_of(tables.of_effects(losses(lines_of()), 3))[1:]}
    by_hand = {"rotary positions": 0, "pre-norm": 1, "Muon": 2, "guidance": 3}
    guidance = LOSSES[:, :, :, 1] - LOSSES[:, :, :, 0]
    of_seeds = {name: np.diff(LOSSES, axis=axis).mean((0, 1, 2, 3)) for name, axis in by_hand.items()}
    of_seeds |= {
        f"guidance with {name}, minus guidance without": np.diff(guidance, axis=axis).mean((0, 1, 2))
        for name, axis in by_hand.items()
        if name != "guidance"
    }
    assert found.keys() == of_seeds.keys() and len(found) == 7
    p_values = sorted(scipy.stats.ttest_1samp(values, 0).pvalue for values in of_seeds.values())
    for name, values in of_seeds.items():
        low, high = scipy.stats.t.interval(0.95, 2, values.mean(), scipy.stats.sem(values))
        assert found[name][0] == f"{values.mean():+.3f} ({low:+.3f} to {high:+.3f})"
        assert float(found[name][2]) == pytest.approx(3.26 * values.std(ddof=1), rel=0.02)
        if scipy.stats.ttest_1samp(values, 0).pvalue == p_values[0]:
            assert float(found[name][1]) == pytest.approx(min(1, 7 * p_values[0]), abs=6e-4)


def test_blocks_are_compared_seed_by_seed():
    found = rows_of(tables.by_block(losses(lines_of()), 3))
    assert found[0][:5] == ["positions", "norm", "optimizer", "none", "all"] and len(found) == 9
    plain, guided = LOSSES[1, 0, 1]
    (row,) = (row for row in found if row[:3] == ["rotary", "post", "muon"])
    assert row[3:5] == [f"{of.mean():.3f} ± {of.std(ddof=1):.3f}" for of in (plain, guided)]
    assert row[5].startswith(f"{(guided - plain).mean():+.3f} (")


def test_a_seed_without_all_runs_is_left_out():
    """Also one whose run failed; a block without runs has dashes."""
    lines = [line for line in lines_of() if line["positions"] == "learned"]
    failed = next(line for line in lines if line["seed"] == 1 and line["norm"] == "pre")
    del failed["validation_loss"]
    failed["failed"] = "the loss is not finite"
    numbers = losses(lines)
    assert tables.contrast(numbers, tables.guided_minus_plain([("learned", "pre", "adamw")])).keys() == {0, 2}
    assert tables.contrast(numbers, tables.effects()["guidance"]) == {}
    assert rows_of(tables.of_effects(numbers, 3))[1] == ["guidance", "–", "–", "–"]
    assert rows_of(tables.by_block(numbers, 3))[-1] == ["rotary", "pre", "muon", *["–"] * 5]


def test_other_learning_rates_of_the_selection_are_left_out():
    lines = lines_of()
    more = [line_of("learned", norm, "muon", "none", 0, 1.0, learning_rate=4e-3) for norm in ("post", "pre")]
    assert losses(more + lines) == losses(lines)


def test_plateaus_that_are_never_left():
    lines = lines_of()
    text = "\n".join(tables.plateau(lines))
    (row,) = (row for row in rows_of(text.splitlines()) if row[:3] == ["learned", "post", "adamw"])
    steps = [["never" if loss > 7 else str(round(100 * loss)) for loss in LOSSES[0, 0, 0, arm]] for arm in (0, 1)]
    assert row[3:5] == [", ".join(of) for of in steps] and row[5:] == ["20 / 20 / 20", "90 / 90 / 90"]


def test_patterns_alone():
    lines = lines_of() + [
        line_of(positions, "post", "adamw", arm, seed, 5.0 + seed + 0.1 * seed**2)
        for positions, arm, seed in itertools.product(LEVELS[0], ("next", "prev", "first"), range(3))
    ]
    found = rows_of(tables.alone(losses(lines)))
    assert [row[:2] for row in found[1:6]] == [["learned", arm] for arm in ("none", "next", "prev", "first", "all")]
    assert found[2][2] == "6.167 ± 1.201"
    difference = np.mean([5.0, 6.1, 7.4]) - LOSSES[0, 0, 0, 0].mean()
    assert found[2][3].startswith(f"{difference:+.3f} (")


def test_learning_rates_have_a_column_each():
    """A run that failed is said to have diverged, and one that is not recorded has a dash."""
    lines = [
        line_of("rotary", "post", "muon", arm, 0, loss, learning_rate=rate)
        for arm, loss, rate in (("none", 5.0, 8e-3), ("all", 4.5, 8e-3), ("all", 4.25, 0.016))
    ]
    failed = line_of("learned", "post", "muon", "all", 0, 0.0, learning_rate=8e-3, failed="the loss is not finite")
    found = tables.by_rate([*lines, failed])
    assert [line for line in found if line.endswith(":")] == ["muon:"]
    assert rows_of(found) == [
        ["positions", "guided by", "0.008", "0.016"],
        ["learned", "none", "–", "–"],
        ["learned", "all", "diverged", "–"],
        ["rotary", "none", "5.000 (20)", "–"],
        ["rotary", "all", "4.500 (90)", "4.250 (90)"],
    ]


def test_depth_and_warmup():
    """Losses by hand, and t-tests of the seeds' differences; a seed without one of the two runs is left out."""
    of = 5 + np.random.default_rng(1).random(size=(3, 2, 2, 3))  # layers, warm-up, arm, seed
    names = ((8, 12, 16), (0, 220), ("mlm", "ag"))
    lines = []
    for index, loss in np.ndenumerate(of):
        layers, warmup, arm = (each[place] for each, place in zip(names, index, strict=False))
        line = {"layers": layers, "warmup_steps": warmup, "arm": arm, "seed": index[-1], "validation_loss": loss}
        lines.append(line | {"left_plateau_at_step": None if loss > 5.8 else round(100 * loss)})
    failed = next(line for line in lines if (line["layers"], line["arm"], line["seed"]) == (16, "ag", 1))
    del failed["validation_loss"]
    failed["failed"] = "the loss is not finite"
    found = rows_of(tables.by_depth(lines[::-1]))
    assert found[0][:4] == ["layers", "warm-up", "mlm", "ag"] and len(found) == 1 + 6 + 1 + 6
    row = found[4]
    assert row[:2] == ["12", "220"]
    plain, guided = of[1, 1]
    assert row[2:4] == [f"{one.mean():.3f} ± {one.std(ddof=1):.3f}" for one in (plain, guided)]
    low, high = scipy.stats.t.interval(0.95, 2, (guided - plain).mean(), scipy.stats.sem(guided - plain))
    assert row[4] == f"{(guided - plain).mean():+.3f} ({low:+.3f} to {high:+.3f})"
    assert row[7:] == [", ".join("never" if x > 5.8 else str(round(100 * x)) for x in one) for one in (plain, guided)]
    steps = ["never" if x > 5.8 else str(round(100 * x)) for x in of[2, 0, 1]]
    assert found[5][:2] == ["16", "0"] and found[5][8].split(", ") == [steps[0], "diverged", steps[2]]
    two = (of[2, 0, 1] - of[2, 0, 0])[[0, 2]]
    assert found[5][4].startswith(f"{two.mean():+.3f} (")
    effects = {tuple(row[:2]): row[2] for row in found[8:]}
    warmup = (of[:, 1] - of[:, 0]).mean(-1)
    assert effects["8", "mlm"].startswith(f"{warmup[0, 0]:+.3f} (")
    assert effects["12", "ag"].startswith(f"{warmup[1, 1]:+.3f} (")


def test_robustness_of_a_search():
    of_arm = {
        "points": 18,
        "left_plateau": 9,
        "failed": 3,
        "diverged": 2,
        "median": 6.5,
        "lowest": 6.25,
        "highest": 6.75,
    }
    paired = [{"arms": ["mlm", "ag"], "points": 18, "left_plateau_alone": [0, 6], "p_value": 2 / 2**6}]
    search = {"metric": "validation_loss", "arms": {"mlm": {"robustness": of_arm}}, "paired": paired}
    text = list(tables.tables([], [], [], [], search))
    assert ["mlm", "9 of 18", "50%", "2", "1", "6.500", "6.250 to 6.750"] in rows_of(text)
    assert "earlier version" not in " ".join(text)
    del of_arm["diverged"]
    earlier = list(tables.tables([], [], [], [], search))
    assert ["mlm", "9 of 18", "50%", "–", "3", "6.500", "6.250 to 6.750"] in rows_of(earlier)
    assert "from an earlier version, which left out points that diverged, too" in " ".join(earlier)
    assert "0 left the plateau in mlm alone, 6 in ag alone (p = 0.031," in " ".join(text)
    assert not any("Robustness" in line for line in tables.tables([], [], [], [], None))


def test_the_page_has_the_tables_of_now():
    text = (pages.ROOT / tables.PAGE).read_text()
    written = pages.with_tables(text, tables.PAGE, "guidance_tables.py", tables.tables(*tables.recorded()))
    assert written == text, "run `python benchmarks/guidance_tables.py`"
