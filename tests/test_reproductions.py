"""The table of the papers' experiments in the README: every table and figure has a command, and records are found."""

import json
import pathlib

import numpy as np
import pytest

from ag_jax.evaluation import significance
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
WITHOUT_ROW = {"ag/table8_training", "asa/real_weights"}


pages, reproductions = scripts.load("pages", "reproductions")


@pytest.fixture(scope="module")
def script():
    return reproductions


def test_the_readme_has_the_table_of_now(script):
    text = (ROOT / "README.md").read_text()
    written = pages.with_tables(text, "README.md", "reproductions.py", [script.table()])
    assert written == text, "run `python benchmarks/reproductions.py`"


def test_the_quickstart_over_five_seeds_says_what_was_recorded():
    record = json.loads((ROOT / "benchmarks/results/quickstart_seeds.json").read_text())
    lines = (ROOT / "docs/reproduction.md").read_text().splitlines()
    (row,) = (line for line in lines if "quickstart_seeds.json" in line and "seeds 0 to 4" in line)
    steps = {arm: {"left": record["arms"][arm]["left_plateau_at_step"]} for arm in ("mlm", "ag")}
    losses = {arm: {"loss": record["arms"][arm]["values"]["validation_loss"]} for arm in ("mlm", "ag")}
    assert record["seeds"] == [0, 1, 2, 3, 4]
    for values, digits in ((steps, 0), (losses, 3)):
        (found,) = significance.over_seeds(values)["ag"].values()
        means = [
            " ± ".join(f"{value:.{digits}f}".removeprefix("0") for value in (np.mean(one), np.std(one, ddof=1)))
            for of in values.values()
            for one in of.values()
        ]
        written = [f"{value:.{digits}f}".replace("-", "−") for value in (found.mean, *found.interval)]
        smallest = f"{found.smallest:.{digits}f}".removeprefix("0")
        assert f"{means[0]} and {means[1]}" in row or f"{means[0]}, {means[1]}" in row
        assert f"{written[0]} ({written[1]} to {written[2]}), p < .001, detectable {smallest}" in row
        assert found.p_value < 0.001


def test_the_ablation_of_deberta_says_what_was_recorded():
    arms = json.loads((ROOT / "benchmarks/results/table4_deberta_small.json").read_text())["arms"]
    text = (ROOT / "docs/reproduction.md").read_text().partition("## DeBERTa (He")[2].partition("\n## ")[0]

    def spread(values):
        return " ± ".join(f"{value:.3f}".removeprefix("0") for value in (np.mean(values), np.std(values, ddof=1)))

    losses = {arm: of["values"]["validation_loss"] for arm, of in arms.items()}
    assert all(spread(values) in text for values in losses.values()) and len(losses) == 7
    for share in ("diagonal", "stripes", "first"):
        assert all(spread(arms[arm]["last_layer"][share]) in text for arm in ("deberta", "roberta"))
    of_arms = {arm: {"loss": values} for arm, values in losses.items()}
    for found in (of["loss"] for of in significance.over_seeds(of_arms).values()):
        mean, low, high = (
            f"{value:+.3f}".replace("0.", ".", 1).replace("-", "−") for value in (found.mean, *found.interval)
        )
        assert f"{mean} ({low} to {high})" in text and f"detectable {found.smallest:.3f}".replace("0.", ".") in text


def test_every_table_and_figure_has_a_command(script):
    found = {}
    for config, names in script.rows().items():
        found.setdefault(script.paper_of(config), []).extend(names)
    for paper, listed in IN_THE_PAPERS.items():
        kinds = (part.split() for part in listed.split("; "))
        expected = {f"{kind.removesuffix('s')} {number}" for kind, *numbers in kinds for number in numbers}
        assert sorted(found[paper]) == sorted(expected), paper


def test_every_config_of_a_paper_has_a_row_and_a_command(script):
    configs = {f"{paper}/{path.stem}" for paper in IN_THE_PAPERS for path in (ROOT / "configs" / paper).glob("*.py")}
    assert set(script.rows()) == configs - WITHOUT_ROW | {"finetune/superglue"}
    for config in script.rows():
        assert f" --config={config}" in script.command(config) and "--workdir" not in script.command(config)


def test_rows_that_a_command_alone_would_not_make_have_what_they_need(script):
    """The weights of the models, from which attention is drawn and its change computed; both arms of SuperGLUE."""
    for config in ("asa/table1_generalization", "asa/table4_adversarial_training"):
        assert script.command(config).endswith("data=FOLDER --config.keep=best")
    assert script.command("finetune/superglue").startswith("ag-jax compare ")
    of_deberta = script.table().partition("**DeBERTa")[2].partition("**Adversarial")[0]
    assert "\n| table 5 | SuperGLUE from any checkpoint" in of_deberta
    assert "\n| tables 2, 3, 10; figures 1, 2, 3, 4, 5; section A.3 | Pre-train with" in script.table()


def test_records_are_told_apart_by_size(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "ROOT", tmp_path)
    (tmp_path / script.RESULTS).mkdir(parents=True)
    for name, content in {
        "full": {"command": "ag-jax compare --config=configs/roberta/table1_masking.py"},
        "small": {"command": "ag-jax compare --config=roberta/table1_masking:data=D,scale=small --config.seed=1"},
        "started": {"command": "ag-jax train --config=ag/table7_translation:arm=base", "stopped": "after 3 steps"},
        "other": {"command": "python benchmarks/compile_time.py"},
        "forecast": {"command": "ag-jax plan --config=ag/table9_tpu_gpu:hardware=tpu --topology=v5e:2x4, twice"},
        "none": {},
        "laptop": {"command": "ag-jax compare --config=quickstart"},
        "other_data": {
            "command": "ag-jax compare --config=ag/table7_translation:data=D,dataset=multi30k",
            "arms": {"ag": {}, "base": {}},
        },
    }.items():
        (tmp_path / script.RESULTS / f"{name}.json").write_text(json.dumps(content))
    for name in ("guidance_depth", "asa_real_weights_selection"):  # the second belongs to no config
        (tmp_path / script.RESULTS / f"{name}.jsonl").write_text("{}\n")
    lines = "".join(json.dumps({"arm": arm}) + "\n" for arm in ("plain", "asa", "scheduled", "bernoulli"))
    (tmp_path / script.RESULTS / "asa_real_weights_cola.jsonl").write_text(lines)
    cola = "[asa_real_weights_cola](benchmarks/results/asa_real_weights_cola.jsonl)"
    link = "[{0}](benchmarks/results/{0}.json)".format
    (tmp_path / script.RESULTS / "guidance_novels.json").write_text('{"title": "a script that names no config"}')
    assert {(record.config, record.small, record.link) for record in script.records()} == {
        ("roberta/table1_masking", False, link("full")),
        ("roberta/table1_masking", True, link("small")),
        ("ag/table7_translation", False, link("started") + " (stopped early; without hard_coded, ag)"),
        ("ag/table7_translation", True, link("other_data") + " (without hard_coded)"),
        ("ag/table3_language_modeling", True, link("guidance_novels")),
        ("ag/table3_language_modeling", True, link("laptop")),
        ("ag/table3_language_modeling", True, "[guidance_depth](benchmarks/results/guidance_depth.jsonl)"),
        ("asa/table1_generalization", True, cola),
        ("asa/table3_naive_masking", True, f"{cola} (without magnitude)"),
        ("asa/figure5_masking", True, cola),
    }


def test_records_of_scripts_belong_to_rows(script):
    configs = {config for of in script.SCRIPTS.values() for config in of}
    assert configs | set(script.ARMS) <= set(script.rows()) and len(configs) == 8
    assert all((ROOT / script.RESULTS / name).exists() for name in script.SCRIPTS)


def test_arms_that_a_record_lacks_are_those_of_its_row(script):
    link = "[table7_multi30k_alpha](benchmarks/results/table7_multi30k_alpha.json)"
    assert f"{link} (without hard_coded)" in {record.link for record in script.records()}
