"""Training steps built from shapes only, for benchmarks that compile a step without running it."""

from typing import Any

import jax

from ag_jax.data.text import batching
from ag_jax.pretraining import build, workloads
from ag_jax.pretraining import config as pretraining_config
from ag_jax.training import sharding
from ag_jax.training.config import MeshConfig
from ag_jax.training.hyperparameters import Hyperparameters


def training_step(
    *, layers: int, heads: int, length: int, rows: int, mode: str, remat: str = "dots"
) -> tuple[Any, tuple]:
    """Return the jitted training step of a RoBERTa of width 768 with 52,000 words, and the shapes of its arguments."""
    settings = pretraining_config.default_config()
    settings.data.sequence_length = length
    settings.model.update(layers=layers, heads=heads, max_length=length, remat=remat)
    settings.guidance.mode = mode
    settings.training.batch_size = rows
    config, mesh = pretraining_config.parse(settings), sharding.make_mesh(MeshConfig())
    program = build.make_program(config, workloads.VocabularyInfo(52_000), mesh)
    batch = {
        name: jax.ShapeDtypeStruct(field.shape, field.dtype)
        for name, field in batching.empty_batch(config.data, rows).items()
    }
    key = jax.eval_shape(lambda: jax.random.key(0))
    return program.train_step, (program.abstract, batch, key, Hyperparameters())
