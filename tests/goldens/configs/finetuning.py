"""The fine-tuning suites of the goldens: SST-2 with a few examples, from the finished run."""

from ag_jax import config_reader
from ag_jax.finetuning.config import FinetuningConfig, Recipe


def get_config(argument: str = ""):
    """`points`: learning rates of the sweep, 1 or 2; `keep`: as in FinetuningConfig."""
    chosen = config_reader.arguments(argument, points=(1, 2), keep=("none", "best"))
    config = config_reader.default(FinetuningConfig)
    config.title = "Goldens"
    config.checkpoint = "finished"
    config.data = "tasks"
    config.keep = chosen.keep
    config.tasks.sst2 = config_reader.default(Recipe)
    config.tasks.sst2.update(
        epochs=4, batch_sizes=(8,), learning_rates=(2e-2, 5e-3)[: chosen.points], max_length=16, dropout=0.1
    )
    return config
