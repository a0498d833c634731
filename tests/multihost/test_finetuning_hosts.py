"""A suite fine-tuned by two hosts, as one host would do it."""

import json

from ag_jax.distributed.interruption import AGAIN
from tests import results as stored
from tests.finetuning import tiny_tasks
from tests.multihost.launch import Host, finish, start, unexpected_lines
from tests.test_stored_directories import nearly_equal

# RTE starts from the best weights of SST-2, which host 0 writes and both hosts read.
FILE = """
from ag_jax.settings import schema
from ag_jax.finetuning.config import FinetuningConfig, Recipe

def get_config(*, model: str, data: str):
    config = schema.default(FinetuningConfig)
    config.checkpoint, config.data, config.seeds = model, data, (0,)
    for task in ("sst2", "rte"):
        config.tasks[task] = schema.default(Recipe)
        config.tasks[task].update(max_length=24, epochs=4, batch_sizes=(8,), learning_rates=(3e-3,))
    config.tasks.rte.initial_task = "sst2"
    config.mesh.fsdp = 2
    return config
"""


def results(workdir):
    """Results and predictions of all trials, without the clock."""
    found = {}
    for path in sorted(workdir.glob("*/*/*.json*")):
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.suffix == ".jsonl" else None
        values = dict(stored.facts(path.parent)) if rows is None else {"rows": rows}
        for row in [values, *values.get("epochs", []), *values.get("rows", [])]:
            for clock in ("seconds", "tokens_per_second", "start", "start_sha256"):
                row.pop(clock, None)
        found[str(path.relative_to(workdir))] = values
    return found


def test_two_hosts_fine_tune_as_one(tmp_path, started):
    """One is killed in the second trial, and both are started again."""
    data, model = tiny_tasks.write(tmp_path / "data"), tiny_tasks.checkpoint(tmp_path)
    (tmp_path / "suite.py").write_text(FILE)
    command = ["finetune", f"--config={tmp_path / 'suite.py'}:model={model},data={data}"]
    started += (lost := start(2, [*command, f"--workdir={tmp_path / 'pair'}"], 2))
    lost[0].wait_for("rte/lr0.003-bs8-seed0: 1 of 2 are done")
    lost[1].kill()
    assert lost[0].wait(60).returncode == AGAIN, lost[0].output
    started += (alone := [Host([*command, f"--workdir={tmp_path / 'alone'}"], 4)])
    started += (pair := start(2, [*command, f"--workdir={tmp_path / 'pair'}"], 2))
    _, first, second = finish([*alone, *pair])
    expected, found = results(tmp_path / "alone"), results(tmp_path / "pair")
    assert {path.partition("/")[0] for path in found} == {"sst2", "rte"}
    nearly_equal(found, expected, "suite", 2e-3)
    assert "trials start from" in first and "sst2/" not in first and (tmp_path / "pair" / "report.md").exists()
    assert not unexpected_lines(second)
