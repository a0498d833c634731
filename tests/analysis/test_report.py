"""Reports: their blocks as Markdown, the files that they write, and tables of differences against their numbers."""

import dataclasses
import json

import numpy as np
from etils import epath

from ag_jax.analysis import report
from ag_jax.analysis.report import Figure, Report, Section
from ag_jax.analysis.tables import Table
from ag_jax.evaluation.significance import over_seeds

VALUES = {
    "base": {"loss": [2.0, 2.5, 3.0], "score": [0.5, 0.5, 0.5]},
    "ag": {"loss": [1.5, 2.25, 2.5], "score": [0.5, 0.5, 0.5]},
    "far": {"loss": [4.0, 5.0, 4.5], "score": [0.25, 0.75, 0.25]},
}
LABELS = {"loss": "Loss", "score": "Score"}
DIFFERENCES = json.loads(json.dumps(report.differences_json(over_seeds(VALUES))))


def test_tables_as_markdown_and_for_the_terminal():
    table = Table(["a|b", ""], [["`x|y`", r"1\|2"], ["–", "2.29"], ["[Next]", "7"]])
    assert table.markdown().splitlines() == [
        r"| a\|b |  |",
        "|---|---|",
        r"| `x\|y` | 1\|2 |",
        "| – | 2.29 |",
        "| [Next] | 7 |",
    ]
    assert Table(["arm"], []).markdown() == "| arm |\n|---|"
    header, _, first, second, separate, last = table.terminal(totals=1).lstrip("\n").splitlines()
    assert header.split() == ["a|b"] and separate == ""
    assert [line.split() for line in (first, second, last)] == table.rows
    assert len({len(line) for line in (first, second, last)}) == 1, "columns are aligned at their right ends"


def test_a_report_is_written_with_its_numbers(tmp_path):
    numbers = {"title": "T", "values": [0.5, None], "of": {"a": 1}}
    blocks = ["A text.", Table(["x"], [["1"]]), Figure("Loss", "figures/loss.png"), Figure("Maps", "maps.html")]
    made = Report("T", "ag-jax compare", numbers, [Section("", ["First."]), Section("Loss", blocks)], ["A flag|b"])
    path = made.write(epath.Path(tmp_path), "search.json")
    assert path == epath.Path(tmp_path / "report.md")
    assert path.read_text().split("\n\n") == [
        *("# T", "`ag-jax compare`", "**A flag|b.**", "First.", "## Loss", "A text.", "| x |\n|---|\n| 1 |"),
        *("![Loss](figures/loss.png)", "[maps.html](maps.html)\n"),
    ]
    assert json.loads((tmp_path / "search.json").read_text()) == numbers
    assert {one.name for one in tmp_path.iterdir()} == {"report.md", "search.json"}
    assert dataclasses.replace(made, warnings=()).write(epath.Path(tmp_path)).exists()
    assert json.loads((tmp_path / "report.json").read_text()) == numbers and "flag" not in path.read_text()


def test_tables_of_metrics_and_differences_have_their_numbers():
    """A metric whose differences are all equal has no test, and so no p and no row."""
    base, ag, far = (VALUES[arm]["loss"] for arm in VALUES)
    of_ag = DIFFERENCES["ag"]["loss"]
    loss, score = report.rows_of_metrics(LABELS, VALUES, DIFFERENCES)
    assert loss[:2] == ["Loss", f"{np.mean(base):.3f} ± {np.std(base, ddof=1):.3f}"]
    assert loss[2] == f"{np.mean(ag):.3f} ± {np.std(ag, ddof=1):.3f} (p = {of_ag['p_value']:.2g})"
    assert score[:3] == ["Score", *["0.500 ± 0.000"] * 2] and "(p = " in score[3]
    _, table = report.differences_blocks(DIFFERENCES, LABELS, "base")
    assert [row[:3] for row in table.rows] == [
        ["ag", "Loss", f"{np.mean(np.subtract(ag, base)):+.3f}"],
        ["far", "Loss", f"{np.mean(np.subtract(far, base)):+.3f}"],
        ["far", "Score", "-0.083"],
    ]
    low, high = of_ag["interval"]
    p_values = [f"{of_ag['p_value']:.2g}", f"{of_ag['p_corrected']:.2g}"]
    assert table.rows[0][3:] == [f"{low:+.3f} to {high:+.3f}", *p_values, f"{of_ag['smallest']:.3f}"]
    assert len(table.header) == len(table.rows[0]) and of_ag["p_value"] < of_ag["p_corrected"]
    assert report.difference_cells(of_ag, scale=100, digits=1)[:2] == [
        "-41.7",
        f"{100 * low:+.1f} to {100 * high:+.1f}",
    ]
    assert report.differences_blocks({"ag": {"score": None}}, LABELS, "base") == []


def test_settings_in_which_arms_differ():
    """Not those at their default in the only arms that have them, and those of all arms."""
    arms = {"mlm": {"mode": "none", "width": 8}, "ag": {"mode": "loss", "width": 8, "alpha": None, "heads": (1, 2)}}
    (table,) = report.settings_section(arms, {"heads": (1, 2)}).blocks
    assert table == Table(["Setting", "mlm", "ag"], [["`mode`", "none", "loss"], ["`alpha`", "–", "none"]])
    assert report.settings_section({"a": arms["mlm"], "b": arms["mlm"]}).blocks == ["Nothing."]


def test_formats_of_numbers():
    assert [report.decimals(0.12345), report.decimals(None), report.decimals(None, "no")] == ["0.123", "–", "no"]
    assert [report.percent(0.12345), report.percent(None)] == ["12.3", "–"]
    assert [report.interval(-0.5, 1), report.interval(-0.5, 1, 1)] == ["-0.500 to +1.000", "-0.5 to +1.0"]
    assert report.interval(None, None) == "–"
