"""Measure the memory that guidance adds to a training step, from the compiler's memory analysis.

    python benchmarks/guidance_memory.py

Compiles the training step of RoBERTa-12 (L=512, dropout 0.1) with and without guidance on the available device,
without running it, for each `model.remat`, and saves the temporary memory of both. Writes
benchmarks/results/guidance_memory.json.
"""

import jax
import record

from ag_jax.data.text import batching
from ag_jax.pretraining import build, workloads
from ag_jax.pretraining import config as pretraining_config
from ag_jax.training import sharding
from ag_jax.training.hyperparameters import Hyperparameters

ROWS, LENGTH, LAYERS, WORDS = 4, 512, 12, 52_000


def temporary_bytes(mode: str, remat: str) -> int:
    """Return the temporary memory of a compiled training step of a RoBERTa of width 768."""
    settings = pretraining_config.default_config()
    settings.data.sequence_length = LENGTH
    settings.model.update(layers=LAYERS, heads=12, max_length=LENGTH, remat=remat)
    settings.guidance.mode = mode
    settings.training.batch_size = ROWS
    config = pretraining_config.parse(settings)
    program = build.make_program(config, workloads.VocabularyInfo(WORDS), sharding.make_mesh(config.mesh))
    batch = {
        name: jax.ShapeDtypeStruct(field.shape, field.dtype)
        for name, field in batching.empty_batch(config.data, ROWS).items()
    }
    key = jax.eval_shape(lambda: jax.random.key(0))
    step = program.train_step.lower(program.abstract, batch, key, Hyperparameters())
    return step.compile().memory_analysis().temp_size_in_bytes


def main() -> None:
    """Compile the steps with and without guidance, print their temporary memory and save it."""
    figures = {"layers": LAYERS, "length": LENGTH, "rows": ROWS}
    for remat in ("none", "dots", "layer"):
        plain, guided = (temporary_bytes(mode, remat) for mode in ("none", "loss"))
        figures[f"remat={remat}"] = {
            "plain_temporary_bytes": plain,
            "ag_temporary_bytes": guided,
            "ag_over_plain": guided / plain,
        }
    print(figures)
    record.save("guidance_memory", figures)


if __name__ == "__main__":
    main()
