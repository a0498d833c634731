"""The experiment on guidance in modern encoders, with runs that train nothing: what is run, chosen and recorded."""

import math

import numpy as np
import pytest
from etils import epath

from ag_jax.pretraining import config as pretraining_config
from ag_jax.pretraining import workloads
from tests import scripts

evidence = scripts.load("guidance_evidence")
RATES = {("post", "adamw"): 2e-3, ("post", "muon"): 1e-3, ("pre", "adamw"): 4e-3, ("pre", "muon"): 2e-3}


def line_of(cell):
    """A line with a loss that is lowest at the rate in `RATES`."""
    return {**vars(cell), "validation_loss": 6 + abs(math.log(cell.learning_rate / RATES[cell.norm, cell.optimizer]))}


def test_the_selection_takes_the_lowest_loss():
    """One run of each rate but those that are known; a run that failed is not chosen. Then all other cells wait."""
    assert len(evidence.selection()) == 9
    lines = [line_of(cell) for cell in evidence.selection()]
    assert evidence.ready([]) == (evidence.selection(), False) and evidence.choose(lines[1:]) is None
    assert evidence.choose(lines) == RATES
    cells, is_last = evidence.ready(lines)
    assert is_last and len(set(cells)) == 9 + 66 - 3, "three runs of the selection are among the others"
    of_muon = [line for line in lines if (line["norm"], line["optimizer"]) == ("pre", "muon")]
    best = next(line for line in of_muon if line["learning_rate"] == 2e-3)
    best["failed"] = best.pop("validation_loss") and "the loss is not finite"
    assert evidence.choose(lines)["pre", "muon"] in (1e-3, 4e-3)
    for line in of_muon:
        line.pop("validation_loss", None)
    with pytest.raises(ValueError, match="pre and muon"):
        evidence.choose(lines)


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
    monkeypatch.setattr(evidence, "open_run", lambda directory: opened)
    monkeypatch.setattr(evidence.pretraining_corpus, "with_own_tokenizer", lambda data, directory: data)
    monkeypatch.setattr(evidence.pipeline, "prepare", lambda data: None)
    monkeypatch.setattr(evidence.pipeline, "validation_batches", lambda corpus, data, rows: iter([batch]))
    monkeypatch.setattr(evidence.maps, "attention_weights", lambda *given: weights)
    found = evidence.masses(epath.Path("nowhere"))
    assert found["mass"]["next"] == [pytest.approx(1 / length, abs=1e-4), 1.0]
    assert found["mass"]["prev"] == pytest.approx([1 / length] * 2, abs=1e-4)
    assert found["chance"] == pytest.approx(dict.fromkeys(("next", "prev", "first"), 1 / length))
