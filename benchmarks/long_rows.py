"""Compile a training step for a TPU slice at several lengths of sequences: memory, bound and forecast; no TPU needed.

    python benchmarks/long_rows.py [--topology=v5e:2x4] [--lengths 512 1024 2048 4096 8192]

The step is that of RoBERTa with 12 layers and guidance (`ag/table9_tpu_gpu:hardware=tpu,arm=ag`, its layers as a loop),
with the same number of tokens a chip at all lengths: 16,384, as many sequences as these are. Each length is compiled
with the attention kernel and with `model.attention=reference`. It needs libtpu: `pip install '.[tpu]'`.

Adds a line for each step to benchmarks/results/long_rows.jsonl, and skips those that the file has.
"""

import argparse
import pathlib
from typing import Any

import cells
import jax

from ag_jax import config_reader
from ag_jax.planning import compilation, plan, topology
from ag_jax.pretraining.config import ExperimentConfig

CONFIG, TOKENS = "ag/table9_tpu_gpu:hardware=tpu,arm=ag", 16_384
ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "long_rows.jsonl"


def config_of(attention: str, length: int, chips: int) -> ExperimentConfig:
    """Return the config of a step with sequences of `length` tokens."""
    values = config_reader.load(CONFIG)
    values.model.update(attention=attention, max_length=length, scan_layers=True)
    values.data.sequence_length = length
    values.training.batch_size = chips * TOKENS // length
    return config_reader.parse(ExperimentConfig, values)


def measure(attention: str, length: int, of: topology.Topology, devices: list[jax.Device]) -> dict[str, Any]:
    """Compile one step; return its memory, its lower bound and the forecast of its time, in bytes and seconds."""
    config = config_of(attention, length, of.chips)
    step = compilation.compile_step(config, of, devices)
    if isinstance(step, compilation.TooLarge):
        return {"fits": False, "needed_bytes": step.needed, "available_bytes": step.available}
    found = plan.estimates(config, of, step)
    forecast = {"forecast": found.parts} if found.forecast is None else {"forecast_seconds": found.forecast.seconds}
    return {
        "fits": True,
        "needed_bytes": step.memory.total,
        "temporary_bytes": step.memory.temporary,
        "hbm_bytes": step.costs.hbm_bytes,
        "bound_seconds": found.bound.seconds,
        **forecast,
        "kernel_seconds": step.kernels.total / of.chip.per_device().clock,
        "compile_seconds": step.seconds,
    }


def main() -> None:
    """Compile the steps that the file of results does not have, and print each line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topology", default="v5e:2x4")
    parser.add_argument("--lengths", nargs="+", type=int, default=[512, 1024, 2048, 4096, 8192])
    given = parser.parse_args()
    if unfit := [length for length in given.lengths if TOKENS % length]:
        raise SystemExit(f"--lengths must divide {TOKENS}, got {unfit}")
    cells.check_import(ROOT)
    cells.check(RESULTS, ROOT)
    topology.silence_libtpu()
    of = topology.parse(given.topology)
    devices = of.compile_only_devices()  # before `stamp`, which would load libtpu without its flags for schedules
    done = [(line["topology"], line["attention"], line["length"]) for line in cells.read(RESULTS)]
    for attention in ("auto", "reference"):
        for length in given.lengths:
            cell = {"topology": given.topology, "attention": attention, "length": length}
            if tuple(cell.values()) in done:
                continue
            line = cells.stamp(ROOT) | {"compiler": topology.versions()} | cell
            line |= measure(attention, length, of, devices)
            cells.append(RESULTS, line, ROOT)
            print(line, flush=True)


if __name__ == "__main__":
    main()
