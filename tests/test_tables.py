"""The tables that benchmarks write into pages: pages have those of the records, and the papers' rows are complete."""

import pathlib

import pytest

from tests import scripts

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Typed from the papers, without sketches (ASA's figures 2 and 3) and without what the slides of the papers leave out.
IN_THE_PAPERS = {
    "ag": "tables 1 2 3 4 5 6 7 8 9 10 11; figures 1 2 3 4 5 6 7; sections 4.5 A.3",
    "roberta": "tables 1 2 3 4 5 6 7 9 10",
    "deberta": "tables 1 2 3 4 5; figures 3",  # table 5: SiFT on SuperGLUE
    "asa": "tables 1 2 3 4 5 6; figures 1 4a 4b 5 6; sections 5.2",
}
# Configs of a paper's folder that train models for another one, or are no experiment of the paper.
WITHOUT_ROW = {"ag/pointers", "ag/table8_training", "asa/real_weights"}

pages, reproductions, evidence, guidance, pointers, roberta = scripts.load(
    "pages", "reproductions", "evidence_tables", "guidance_tables", "pointers_tables", "roberta_tables"
)
GUIDANCE = (guidance.MODERN, guidance.SETTINGS)


@pytest.mark.parametrize(
    ("page", "program", "tables"),
    [
        (reproductions.PAGE, "reproductions.py", lambda: [reproductions.table()]),
        (evidence.PAGE, "evidence_tables.py", lambda: evidence.tables(evidence.recorded())),
        (
            evidence.ROBUSTNESS_PAGE,
            "evidence_tables.py",
            lambda: evidence.robustness(evidence.evidence.read(evidence.record.RESULTS / evidence.ROBUSTNESS)),
        ),
        (pointers.PAGE, "pointers_tables.py", pointers.recorded),
        (roberta.PAGE, "roberta_tables.py", roberta.recorded),
        *((page, "guidance_tables.py", lambda page=page: guidance.recorded()[page]) for page in GUIDANCE),
    ],
    ids=["reproductions", "evidence", "robustness", "pointers", "roberta", *GUIDANCE],
)
def test_pages_have_the_tables_of_the_records(page, program, tables):
    text = (ROOT / page).read_text()
    assert pages.with_tables(text, page, program, tables()) == text, f"run `python benchmarks/{program}`"


def test_claims_hold_by_sign_and_p_over_the_seeds_that_both_arms_have():
    def last_cells(numbers):
        rows = "\n".join(roberta.of_claims("text", {"loss": numbers})).splitlines()[2:4]
        return [row.strip("| ").split(" | ")[4:] for row in rows]

    novels = {"2M": {0: 4.0, 1: 4.1, 2: 4.2}, "8M": {0: 3.9, 1: 4.01, 2: 4.09}, "all": {2: 4.1}}
    more, even_more = last_cells(novels)
    assert more[:2] == ["4.100 ± 0.100, 4.000 ± 0.095", "-0.100 (-0.125 to -0.075)"] and more[-1] == "yes"
    assert even_more == ["4.000 ± 0.095, 4.100", "–", "–", "–", "not shown; contradicts (one seed)"]
    worse, unknown = last_cells({"2M": novels["8M"], "8M": novels["2M"], "all": {}})
    assert worse[-1] == "no" and unknown[-1] == "–"


def test_figures_of_attacked_models_follow_from_their_outcomes():
    lines = evidence.evidence.read(evidence.record.RESULTS / evidence.ROBUSTNESS)
    assert sorted((line["arm"], line["seed"]) for line in lines) == [
        (arm, seed) for arm in ("asa", "freelb", "plain") for seed in range(3)
    ]
    for line in lines:
        wrong, found, robust = (line["outcomes"].count(letter) for letter in "wfr")
        assert wrong + found + robust == line["examples"] == 200
        shares = ((found + robust) / 200, robust / 200, found / (found + robust))
        assert (line["accuracy"], line["accuracy_under_attack"], line["success_rate"]) == pytest.approx(shares)


def test_every_table_and_figure_of_the_papers_has_a_command():
    found = {}
    for config, names in reproductions.rows().items():
        assert f" --config={config}" in reproductions.command(config)
        found.setdefault(reproductions.paper_of(config), []).extend(names)
    for paper, listed in IN_THE_PAPERS.items():
        kinds = (part.split() for part in listed.split("; "))
        expected = {f"{kind.removesuffix('s')} {number}" for kind, *numbers in kinds for number in numbers}
        assert sorted(found[paper]) == sorted(expected), paper
    configs = {f"{paper}/{path.stem}" for paper in IN_THE_PAPERS for path in (ROOT / "configs" / paper).glob("*.py")}
    assert set(reproductions.rows()) == configs - WITHOUT_ROW | {"finetune/superglue"}
