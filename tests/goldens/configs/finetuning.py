"""The fine-tuning suites of the goldens: SST-2 with a few examples, from the finished run."""

from ag_jax.finetuning.config import FinetuningConfig, Recipe
from ag_jax.settings import schema
from ag_jax.settings.config_files import OneOf


def get_config(*, points: OneOf(1, 2) = 1, keep: OneOf("none", "best") = "none"):
    """`points`: learning rates of the sweep, 1 or 2; `keep`: as in FinetuningConfig."""
    config = schema.default(FinetuningConfig)
    config.title = "Goldens"
    config.checkpoint = "finished"
    config.data = "tasks"
    config.keep = keep
    config.tasks.sst2 = schema.default(Recipe)
    config.tasks.sst2.update(
        epochs=4, batch_sizes=(8,), learning_rates=(2e-2, 5e-3)[:points], max_length=16, dropout=0.1
    )
    return config
