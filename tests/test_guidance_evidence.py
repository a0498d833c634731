"""The experiment on guidance in modern encoders, with runs that train nothing: what is run, chosen and recorded."""

import itertools
import json
import math

import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from ag_jax.data.probes.minimal_pairs import Pair
from ag_jax.pretraining import config as pretraining_config
from ag_jax.pretraining import workloads
from ag_jax.probing.minimal_pairs import scoring
from tests import scripts

cells, evidence = scripts.load("cells", "guidance_evidence")
RATES = {("post", "adamw"): 2e-3, ("post", "muon"): 1e-3, ("pre", "adamw"): 4e-3, ("pre", "muon"): 2e-3}


def loss_of(cell):
    """A loss that is lowest at the rate in `RATES`."""
    return 6 + abs(math.log(cell.learning_rate / RATES[cell.norm, cell.optimizer]))


def line_of(cell):
    return {**vars(cell), "validation_loss": loss_of(cell)}


def test_the_cells():
    """Every combination of four factors with three seeds, and each pattern alone with both positions."""
    found = evidence.planned(RATES)
    assert len(found) == len(set(found)) == 3 * (16 + 6)
    assert [cell.seed for cell in found] == sorted(cell.seed for cell in found)
    crossed = {(cell.positions, cell.norm, cell.optimizer, cell.arm) for cell in found if cell.arm in ("none", "all")}
    assert len(crossed) == 16
    alone = {cell for cell in found if cell.arm in ("next", "prev", "first")}
    assert {(cell.norm, cell.optimizer) for cell in alone} == {("post", "adamw")} and len(alone) == 3 * 6
    assert all(cell.learning_rate == RATES[cell.norm, cell.optimizer] for cell in found)


def test_the_selection_takes_the_lowest_loss():
    """One run of each rate but those that are known; a run that failed is not chosen."""
    assert len(evidence.selection()) == 9
    assert {(cell.positions, cell.arm, cell.seed) for cell in evidence.selection()} == {("learned", "none", 0)}
    lines = [line_of(cell) for cell in evidence.selection()]
    assert evidence.choose(lines[1:]) is None
    assert evidence.choose(lines) == RATES
    best = next(
        line for line in lines if (line["norm"], line["optimizer"]) == ("pre", "muon") and line["learning_rate"] == 2e-3
    )
    best["failed"] = best.pop("validation_loss") and "the loss is not finite"
    assert evidence.choose(lines)["pre", "muon"] in (1e-3, 4e-3)
    for line in lines:
        if (line["norm"], line["optimizer"]) == ("pre", "muon"):
            line.pop("validation_loss", None)
    with pytest.raises(ValueError, match="every learning rate of pre and muon failed: try lower ones"):
        evidence.choose(lines)


def test_what_waits():
    """First the selection, then all other cells; three runs of the selection are among them."""
    assert evidence.waiting([]) == evidence.selection()
    lines = [line_of(cell) for cell in evidence.selection()]
    assert len(evidence.waiting(lines)) == 66 - 3
    lines += [line_of(cell) for cell in evidence.waiting(lines)]
    assert evidence.waiting(lines) == []


def test_learning_rates_are_a_grid():
    """Both arms at four learning rates for each kind of positions and each optimizer, all at one seed."""
    found = evidence.by_rate()
    assert len(found) == len(set(found)) == 2 * 2 * 2 * 4
    assert {(cell.norm, cell.seed) for cell in found} == {("post", 0)}
    assert evidence.without_line(found, map(line_of, found[1:])) == found[:1]


def test_the_configs_differ_in_the_factors_alone():
    """All 22 settings, and the learning rate and seed of the cell."""
    cell = evidence.Cell("rotary", "pre", "muon", "next", 3e-3, 2)
    config = cell.config()
    assert (config.model.positions, config.model.norm_position, config.optimizer.kind) == ("rotary", "pre", "muon")
    assert (config.guidance.heads, config.guidance.mode, config.guidance.alpha) == ("next:1", "loss", 1.0)
    assert (config.optimizer.learning_rate, config.seed, config.training.steps) == (3e-3, 2, 1100)
    quickstart = pretraining_config.parse(evidence.config_reader.load("quickstart:arm=ag"))
    guided = evidence.Cell("learned", "post", "adamw", "all", 2e-3, 0).config()
    assert (guided.model, guided.data, guided.optimizer) == (quickstart.model, quickstart.data, quickstart.optimizer)
    assert guided.guidance == quickstart.guidance
    every = {cell.config() for cell in evidence.planned(RATES)}
    assert len(every) == 66
    assert evidence.Cell("learned", "post", "adamw", "none", 2e-3, 0).config().guidance.mode == "none"


def test_depths_are_a_grid():
    """Both arms of the quickstart at three depths, each with and without warm-up; the rest is the quickstart's."""
    found = evidence.by_depth()
    assert len(found) == len(set(found)) == len({cell.name for cell in found}) == 3 * 2 * 2 * 3
    assert [cell.seed for cell in found] == sorted(cell.seed for cell in found)
    assert evidence.without_line(found, map(vars, found[1:])) == found[:1]
    configs = {cell: cell.config() for cell in found}
    read = {(c.model.layers, c.optimizer.warmup_steps, c.guidance.mode, c.seed) for c in configs.values()}
    assert read == set(itertools.product((8, 12, 16), (0, 220), ("none", "loss"), (0, 1, 2)))
    assert {(c.optimizer.learning_rate, c.training.steps, c.model.width) for c in configs.values()} == {
        (2e-3, 1100, 96)
    }
    quickstart = pretraining_config.parse(evidence.config_reader.load("quickstart:arm=ag"))
    same = configs[evidence.DepthCell(8, 220, "ag", 0)]
    assert (same.model, same.data, same.optimizer) == (quickstart.model, quickstart.data, quickstart.optimizer)


def test_the_best_head_of_a_layer_counts(monkeypatch):
    """Attention by hand: one head of the second layer looks at the next token, all others are uniform."""
    length, config = 6, pretraining_config.parse(pretraining_config.default_config())
    weights = np.full((2, 3, 4, length, length), 1 / length, np.float32)  # layers, rows, heads
    weights[1, :, 2] = np.eye(length, k=1)
    weights[1, :, 2, -1] = 1 / length
    batch = {"tokens": np.arange(3 * length).reshape(3, length)}
    opened = type(
        "Opened", (), {"config": config, "model": None, "params": None, "tokenizer": workloads.VocabularyInfo(64)}
    )
    monkeypatch.setattr(evidence.run, "open_run", lambda directory: opened)
    monkeypatch.setattr(evidence.pretraining_corpus, "with_own_tokenizer", lambda data, directory: data)
    monkeypatch.setattr(evidence.pipeline, "prepare", lambda data: None)
    monkeypatch.setattr(evidence.pipeline, "validation_batches", lambda corpus, data, rows: iter([batch]))
    monkeypatch.setattr(evidence.maps, "attention_weights", lambda *given: jnp.asarray(weights))
    found = evidence.masses(epath.Path("nowhere"))
    assert found["mass"]["next"] == [pytest.approx(1 / length, abs=1e-4), 1.0]
    assert found["mass"]["prev"] == pytest.approx([1 / length] * 2, abs=1e-4)
    assert found["chance"] == pytest.approx(dict.fromkeys(("next", "prev", "first"), 1 / length))


def test_accuracies_are_means_over_paradigms(monkeypatch, tmp_path):
    pairs = [Pair("a b", "b a", "order", field="syntax"), Pair("a", "b", "word"), Pair("c", "d", "word")]
    scores = np.array([[0.0, -1.0], [-2.0, -1.0], [1.0, 0.0]])
    monkeypatch.setattr(evidence.opening, "open_masked_lm", lambda directory: None)
    scored = scoring.Scored({"token": scores, "word_l2r": -scores}, 0, 0)
    monkeypatch.setattr(evidence.scoring, "score", lambda opened, given: scored)
    line = evidence.judged(evidence.selection()[0], [], epath.Path(tmp_path), pairs)
    assert line["pairs"] == 3 and line["token"]["all"]["all"][0] == pytest.approx((1 + 0.5) / 2)
    assert line["word_l2r"]["all"]["all"][0] == pytest.approx((0 + 0.5) / 2)
    assert line["token"]["field"]["syntax"][0] == 1 and set(line["token"]["paradigm"]) == {"order", "word"}
    json.dumps(line)


def test_runs_are_recorded_and_then_scored(monkeypatch, tmp_path, capsys):
    """Each once, with the commit; scores only of runs that did not fail."""
    done = []

    def trained(cell, lines, root):
        done.append(cell)
        fails = cell == evidence.planned(RATES)[-1]
        return {**vars(cell), "failed": "the loss is not finite"} if fails else line_of(cell)

    monkeypatch.setattr(evidence, "trained", trained)
    monkeypatch.setattr(evidence, "judged", lambda cell, lines, root, pairs: {**vars(cell), "pairs": len(pairs)})
    monkeypatch.setattr(cells, "commit", lambda root: "0123456789abcdef")
    monkeypatch.setattr(cells, "check", lambda path, root: None)
    monkeypatch.setattr(evidence.minimal_pairs, "read", lambda path, most: [Pair("a", "b", "x")] * most)
    options = [f"--workdir={tmp_path / 'runs'}", f"--results={tmp_path / 'results'}"]
    with pytest.raises(SystemExit, match="lacks runs of the selection: run this command without --blimp first"):
        evidence.main([*options, "--blimp=pairs"])
    for count in (72, 0):
        done.clear()
        evidence.main(options)
        assert len(done) == len(set(done)) == count
    lines = cells.read(tmp_path / "results" / "guidance_modern.jsonl")
    assert len(lines) == 72 and {line["commit"] for line in lines} == {"0123456789abcdef"}
    evidence.main([*options, "--blimp=pairs", "--pairs=7"])
    scored = cells.read(tmp_path / "results" / "guidance_modern_blimp.jsonl")
    assert len(scored) == 65 and {line["pairs"] for line in scored} == {7}
    done.clear()
    evidence.main([*options, "--rates"])
    assert done == evidence.by_rate() and len(cells.read(tmp_path / "results" / "guidance_modern_rates.jsonl")) == 32
    done.clear()
    monkeypatch.setattr(evidence, "trained", lambda cell, lines, root: done.append(cell) or dict(vars(cell)))
    for _ in range(2):  # the second time, all have a line
        evidence.main([*options, "--depths"])
        assert done == evidence.by_depth() and len(cells.read(tmp_path / "results" / "guidance_depth.jsonl")) == 36
    left_out = set(map(evidence.Cell.of, lines)) - set(map(evidence.Cell.of, scored))
    assert len(left_out) == 1 + 6 and evidence.planned(RATES)[-1] in left_out


def test_names_are_those_of_folders():
    names = {cell.name for cell in itertools.chain(evidence.selection(), evidence.planned(RATES))}
    assert len(names) == 72 and not any(set(name) - set("abcdefghijklmnopqrstuvwxyz0123456789.-") for name in names)
