"""All verbs with a run directory at `gs://`.

Only the checkpoints are on a disk, because Orbax accesses object stores in its own way.
"""

import json
import pathlib

import jax
import pytest
from etils import epath

from ag_jax import cli
from ag_jax.data import tokenizers
from ag_jax.data.config import TokenizerConfig
from ag_jax.distributed import lock
from ag_jax.pretraining import run
from ag_jax.training import loop
from ag_jax.training.checkpoint import Checkpoints
from ag_jax.training.metrics import read_metrics
from tests import marian_files, object_store

CONFIG = str(pathlib.Path(__file__).parent.parent / "configs" / "quickstart.py")
TEXT = "The state of the union is strong. We will build roads, and we will build them well. Thank you. "


@pytest.fixture
def overrides(tmp_path):
    (tmp_path / "text").mkdir()
    for number in range(12):
        (tmp_path / "text" / f"{number}.txt").write_text(TEXT * 4 + f"It is number {number}.")
    return {
        "data.source": str(tmp_path / "text"),
        "data.sequence_length": 16,
        "data.tokenizer.vocabulary_size": 300,
        "model.layers": 1,
        "model.width": 12,
        "model.heads": 6,
        "training.steps": 4,
        "optimizer.warmup_steps": 0,
        "training.batch_size": 4,
        "training.log_every": 1,
        "training.evaluate_every": None,
        "training.milestones": (0.0, 1.0),
        "inspection.sentence": "The union is strong.",
    }


@pytest.fixture
def store(monkeypatch, tmp_path):
    checkpoints = tmp_path / "checkpoints"

    def on_disk(directory, **options):
        return Checkpoints(epath.Path(checkpoints) / str(directory).removeprefix("gs://"), **options)

    monkeypatch.setattr(loop, "Checkpoints", on_disk)
    monkeypatch.setattr(run, "Checkpoints", on_disk)
    monkeypatch.setattr(lock, "SETTLE", 0.0)
    device = jax.devices()[0]
    monkeypatch.setattr(jax, "devices", lambda: [device])
    return object_store.install(monkeypatch)


def request(workdir, config=None, overrides=None, **more):
    return cli.Request(config, overrides or {}, workdir, None, None, False, **more)


def test_compare_evaluate_and_inspect(store, overrides, capsys):
    cli.run_verb("compare", request("gs://bucket/runs", CONFIG, overrides))
    assert capsys.readouterr().out == "the report is gs://bucket/runs/report.md\n"
    report = epath.Path("gs://bucket/runs/report.md")
    assert "| Validation |" in report.read_text() and json.loads((report.parent / "report.json").read_text())
    figures = list((report.parent / "figures").iterdir())
    pictures = [path for path in figures if path.name != "maps.html"]
    assert len(figures) - 1 == len(pictures) >= 5
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
    workdir = report.parent / "ag-seed0"
    assert [row["step"] for row in read_metrics(workdir)] == [1, 2, 3, 4, 4]
    assert list((workdir / "tensorboard").iterdir())

    cli.run_verb("evaluate", request(str(workdir)))
    found = json.loads((workdir / "evaluation.json").read_text())
    assert found["mlm_loss"] == pytest.approx(
        json.loads((workdir / "summary.json").read_text())["validation_loss"], rel=1e-6
    )
    cli.run_verb("inspect", request(str(workdir)))
    assert "drawn: gs://bucket/runs/ag-seed0/figures/attention_overview_step4.png" in capsys.readouterr().out
    with pytest.raises(ValueError, match="model.layers: there 1, now 2"):
        cli.run_verb("train", request(str(workdir), CONFIG, overrides | {"model.layers": 2}))


@pytest.mark.parametrize("kind", ["byte_bpe", "wordpiece", "sentencepiece_bpe"])
def test_tokenizers_come_back(store, kind):
    trained = tokenizers.train(TokenizerConfig(kind=kind, vocabulary_size=270 if kind == "byte_bpe" else 60), [TEXT])
    trained.save("gs://bucket/tokenizer")
    loaded = tokenizers.load("gs://bucket/tokenizer")
    assert loaded.fingerprint() == trained.fingerprint() and loaded.encode(TEXT) == trained.encode(TEXT)
    with pytest.raises(FileNotFoundError, match="no tokenizer at gs://bucket/other"):
        tokenizers.load("gs://bucket/other")


def test_tokenizers_of_several_files_come_back(store, tmp_path):
    marian_files.write_tokenizer(tmp_path)
    trained = tokenizers.load(tmp_path)
    trained.save("gs://bucket/pair")
    loaded = tokenizers.load("gs://bucket/pair")
    assert loaded.fingerprint() == trained.fingerprint() and loaded.encode_targets([TEXT]) == trained.encode_targets(
        [TEXT]
    )
