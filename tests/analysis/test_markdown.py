"""Tables of reports in Markdown."""

from ag_jax.analysis.markdown import table


def test_a_table_has_a_rule_below_its_header_and_a_blank_line_after_it():
    header, row = iter(["arm", "", "loss"]), iter(["ag", "–", "2.29"])
    assert table(header, iter([row])) == ["| arm |  | loss |", "|---|---|---|", "| ag | – | 2.29 |", ""]
    assert table(["arm"], []) == ["| arm |", "|---|", ""]
