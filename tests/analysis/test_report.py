"""Reports: their blocks as Markdown, the files that they write, and tables against the numbers that they show."""

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


def test_tables_as_markdown_and_for_the_terminal():
    table = Table(["a|b", ""], [["`x|y`", r"1\|2"], ["–", "2.29"], ["[Next]", "7"]])
    lines = [r"| a\|b |  |", "|---|---|", r"| `x\|y` | 1\|2 |", "| – | 2.29 |", "| [Next] | 7 |"]
    assert table.markdown().splitlines() == lines and Table(["arm"], []).markdown() == "| arm |\n|---|"
    header, _, first, second, separate, last = table.terminal(totals=1).lstrip("\n").splitlines()
    assert header.split() == ["a|b"] and separate == ""
    assert [line.split() for line in (first, second, last)] == table.rows
    assert len({len(line) for line in (first, second, last)}) == 1, "columns are aligned at their right ends"


def test_a_report_is_written_with_its_numbers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = [
        f"A text in {tmp_path}/runs/x, and one in {tmp_path.parent}/other.",
        "",
        Table(["x"], [["1"]]),
        Figure("Loss", "figures/loss.png"),
    ]
    sections = [Section("", ["First."]), Section("Notes", [""]), Section("Loss", blocks)]
    made = Report("T", "ag-jax compare", {"values": [0.5, None], "of": {"a": 1}}, sections, ["A flag|b"])
    path = made.write(epath.Path(tmp_path), "search.json")
    assert path.read_text().split("\n\n") == [
        *(
            "# T",
            "**A flag|b.**",
            "First.",
            "## Loss",
            f"A text in runs/x, and one in {tmp_path.parent}/other.",
            "| x |\n|---|\n| 1 |",
            "![Loss](figures/loss.png)",
            "---",
        ),
        "Made by `ag-jax compare`; all numbers are in [search.json](search.json).\n",
    ]
    numbers = json.loads((tmp_path / "search.json").read_text())
    assert numbers == {"title": "T", "command": "ag-jax compare", "values": [0.5, None], "of": {"a": 1}}
    assert {one.name for one in tmp_path.iterdir()} == {"report.md", "search.json"}


def test_tables_of_metrics_and_differences_have_their_numbers():
    """A metric whose differences are all equal has no test, and so no p and no row."""
    differences = json.loads(json.dumps(report.differences_json(over_seeds(VALUES))))
    (base, ag, _), of_ag = (VALUES[arm]["loss"] for arm in VALUES), differences["ag"]["loss"]
    loss, score = report.rows_of_metrics(LABELS, VALUES, differences)
    assert loss[:2] == ["Loss", f"{np.mean(base):.3f} ± {np.std(base, ddof=1):.3f}"]
    assert loss[2] == f"{np.mean(ag):.3f} ± {np.std(ag, ddof=1):.3f} (p = {of_ag['p_value']:.2g})"
    assert score[:3] == ["Score", *["0.500 ± 0.000"] * 2] and "(p = " in score[3]
    _, table = report.differences_blocks(differences, LABELS, "base")
    assert [row[:2] for row in table.rows] == [["ag", "Loss"], ["far", "Loss"], ["far", "Score"]]
    (low, high), mean = of_ag["interval"], np.mean(np.subtract(ag, base))
    p_values = [f"{of_ag['p_value']:.2g}", f"{of_ag['p_corrected']:.2g}"]
    shown = [f"{mean:+.3f}", f"{low:+.3f} to {high:+.3f}", *p_values, f"{of_ag['smallest']:.3f}"]
    assert table.rows[0][2:] == shown and len(table.header) == 7 and of_ag["p_value"] < of_ag["p_corrected"]
    shown = [f"{100 * mean:+.1f}", f"{100 * low:+.1f} to {100 * high:+.1f}"]
    assert report.difference_cells(of_ag, scale=100, digits=1)[:2] == shown
    assert [report.interval(-0.5, 1, 1), report.interval(None, None)] == ["-0.5 to +1.0", "–"]
    assert report.differences_blocks({"ag": {"score": None}}, LABELS, "base") == []


def test_layers_that_a_model_does_not_have_are_dashes():
    table = report.table_of_layers(["Task"], [(["a"], ["0.38", "0.5", "0.25"]), (["b"], ["0.1", "0.1"])])
    assert table.header == ["Task", "All layers", "Layer 0", "Layer 1"] and table.rows[1] == ["b", "0.1", "0.1", "–"]


def test_settings_in_which_arms_differ():
    """Not those at their default in the only arms that have them, and those of all arms."""
    arms = {"plain": {"mode": "none", "width": 8}, "ag": {"mode": "loss", "width": 8, "alpha": None, "heads": (1, 2)}}
    (table,) = report.settings_section(arms, {"heads": (1, 2)}).blocks
    assert table == Table(["Setting", "plain", "ag"], [["`mode`", "none", "loss"], ["`alpha`", "–", "none"]])
    assert [len(report.settings_section(dict.fromkeys(names, arms["plain"])).blocks) for names in ("a", "ab")] == [0, 1]
