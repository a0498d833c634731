"""Compile a training step for TPU slices of 1 to 256 chips, and for two slices: how speed and cost scale.

    python benchmarks/scaling.py [--generation=v5e] [--models roberta_12 roberta_large]

The steps are those of RoBERTa with 12 layers and guidance (`ag/table9_tpu_gpu:hardware=tpu,arm=ag`, 256 sequences of
512 tokens) and of RoBERTa-large (`roberta/table9_pretraining:size=large,arm=plain`, 8,192 sequences), with their layers
as a loop. With `strong` scaling the batch is the config's on all slices, in microbatches of at most 32 sequences a chip
with 12 layers, and 16 with 24. With `weak` scaling, of RoBERTa-12 alone, the batch grows with the slice, 32 sequences a
chip. No TPU is needed, but libtpu: `pip install '.[tpu]'`.

Writes a result for each step below benchmarks/results/scaling/, and skips those that are there.
"""

import argparse
import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any

import evidence

from ag_jax.planning import compilation, plan, topology
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.settings import config_files, schema

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "scaling"
# Config, and sequences of a microbatch on a chip.
MODELS = {
    "roberta_12": ("ag/table9_tpu_gpu:hardware=tpu,arm=ag", 32),
    "roberta_large": ("roberta/table9_pretraining:size=large,arm=plain", 16),
}
SHAPES = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
SLICES = (("8x8", 2), ("16x16", 2))  # shape and number


@dataclasses.dataclass(frozen=True)
class Step(evidence.Point):
    """A step that is compiled.

    generation: generation of TPUs, such as v5e.
    scaling: `strong` with the batch of the config, `weak` with as many sequences on each chip.
    """

    generation: str
    model: str
    scaling: str
    shape: str
    slices: int


def planned(generation: str, models: list[str]) -> Iterator[Step]:
    """Yield the cells in the order of their chips; a batch must have a sequence for each chip."""
    for shape, slices in [*((shape, 1) for shape in SHAPES), *SLICES]:
        for model in models:
            of = [Step(generation, model, scaling, shape, slices) for scaling in ("strong", "weak")]
            yield from (cell for cell in (of if model == "roberta_12" else of[:1]) if config_of(cell) is not None)


def config_of(cell: Step) -> ExperimentConfig | None:
    """Return the config of a step; None if the batch has fewer sequences than there are chips."""
    chips = topology.parse(f"{cell.generation}:{cell.shape}", cell.slices).chips
    source, rows = MODELS[cell.model]
    values = config_files.read(source)
    values.model.scan_layers = True
    if cell.scaling == "weak":
        values.training.update(batch_size=rows * chips, microbatches=1)
    if values.training.batch_size < chips:
        return None
    values.training.microbatches = max(1, values.training.batch_size // (rows * chips))
    return schema.parse(ExperimentConfig, values)


def measure(cell: Step) -> dict[str, Any]:
    """Compile one step; return its memory, and bounds and forecast of its time, in bytes and seconds."""
    of, config = topology.parse(f"{cell.generation}:{cell.shape}", cell.slices), config_of(cell)
    assert config is not None
    step = compilation.compile_step(config, of, of.compile_only_devices())
    sizes = {
        "compiler": topology.versions(),
        "chips": of.chips,
        "batch_size": config.training.batch_size,
        "microbatches": config.training.microbatches,
    }
    if isinstance(step, compilation.TooLarge):
        return sizes | {"fits": False, "needed_bytes": step.needed, "available_bytes": step.available}
    found = plan.estimates(config, of, step)
    if found.forecast is None:
        raise SystemExit(f"no forecast: {found.parts}")
    return sizes | {
        "fits": True,
        "needed_bytes": step.memory.total,
        "bounds": dataclasses.asdict(found.roofline),
        "forecast": dataclasses.asdict(found.parts),
        "seconds": found.forecast.seconds,
        "tokens_per_second": found.forecast.tokens_per_second,
        "mfu": found.forecast.mfu,
        "run_seconds": found.forecast.run_seconds,
        "chip_hours": found.forecast.chip_hours,
        "sent_bytes": step.costs.sent,
        "sent_between_slices_bytes": step.costs.sent_between_slices,
        "steps": config.training.steps,
        "compile_seconds": step.seconds,
    }


def main() -> None:
    """Compile the steps that the file of results does not have, and print each line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generation", default="v5e")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    given = parser.parse_args()
    topology.silence_libtpu()
    points = list(planned(given.generation, given.models))
    evidence.run(RESULTS, pathlib.Path(__file__), lambda lines: (points, True), lambda cell, _: measure(cell))


if __name__ == "__main__":
    main()
