"""A suite fine-tuned by two hosts: as one host would do it, and stopped and resumed without a trace."""

import json
import signal

import pytest

from tests.finetuning import tiny_tasks
from tests.multihost.launch import Host, finish, start
from tests.test_stored_directories import nearly_equal

# RTE starts from the best weights of SST-2, which host 0 writes and both hosts read.
FILE = """
from ag_jax import config_reader
from ag_jax.finetuning.config import FinetuningConfig, Recipe

def get_config(argument=""):
    chosen = config_reader.arguments(argument, model=str, data=str)
    config = config_reader.default(FinetuningConfig)
    config.checkpoint, config.data, config.seeds = chosen.model, chosen.data, (0,)
    for task in ("sst2", "rte"):
        config.tasks[task] = config_reader.default(Recipe)
        config.tasks[task].update(max_length=24, epochs=4, batch_sizes=(8,), learning_rates=(3e-3,))
    config.tasks.rte.initial_task = "sst2"
    config.mesh.fsdp = 2
    return config
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("suite")
    data, model = tiny_tasks.write(folder / "data"), tiny_tasks.checkpoint(folder)
    (folder / "suite.py").write_text(FILE)
    return f"--config={folder / 'suite.py'}:model={model},data={data}"


@pytest.fixture(scope="module")
def pair(source, tmp_path_factory):
    """The suite of two hosts with two devices each, and what they printed."""
    workdir = tmp_path_factory.mktemp("pair") / "suite"
    return workdir, finish(start(2, ["finetune", source, f"--workdir={workdir}"], 2))


def results(workdir):
    """Results and predictions of all trials, without the clock."""
    found = {}
    for path in sorted(workdir.glob("*/*/*.json*")):
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.suffix == ".jsonl" else None
        values = json.loads(path.read_text()) if rows is None else {"rows": rows}
        for row in [values, *values.get("epochs", []), *values.get("rows", [])]:
            for clock in ("seconds", "tokens_per_second", "start", "start_sha256"):
                row.pop(clock, None)
        found[str(path.relative_to(workdir))] = values
    return found


def test_two_hosts_fine_tune_as_one(source, pair, tmp_path):
    alone = Host(["finetune", source, f"--workdir={tmp_path / 'suite'}"], 4)
    assert alone.wait(240).returncode == 0, alone.output
    workdir, (first, second) = pair
    expected, found = results(tmp_path / "suite"), results(workdir)
    assert {path.partition("/")[0] for path in found} == {"sst2", "rte"}
    nearly_equal(found, expected, "suite", 2e-3)
    assert "the report is" in first and "2 of 2 trials to do" in first
    assert (workdir / "report.md").exists()
    gloo = ("[Gloo]", "peer ranks")  # start and end of its lines, which it may print in pieces
    lines = [line for line in second.splitlines() if line and not line.isdigit()]
    assert not [line for line in lines if not any(piece in line for piece in gloo)]
    assert len(list(workdir.glob("*/*/tensorboard/*"))) == 2


@pytest.mark.exhaustive
def test_a_signal_on_one_host_stops_both_within_an_epoch(source, pair, tmp_path, started):
    workdir = tmp_path / "suite"
    arguments = ["finetune", source, f"--workdir={workdir}"]
    started += start(2, arguments, 2)
    started[0].wait_for("epoch 1: accuracy")
    started[1].send_signal(signal.SIGTERM)
    outputs = finish(started)
    assert "SIGTERM on host 1: stopped at step" in outputs[0]
    stopped = int(outputs[0].split("stopped at step ")[1].split()[0])
    again = start(2, arguments, 2)
    started += again
    assert f"resumed from the checkpoint of step {stopped}" in finish(again)[0]
    assert results(workdir) == results(pair[0])
