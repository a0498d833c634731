"""Summary of a pre-training run: its losses, as in Table 3 of Deshpande & Narasimhan (2020)."""

import math
from typing import Any

from etils import epath

from ag_jax.distributed import hosts
from ag_jax.training import metrics as metric_sums
from ag_jax.training.job import Progress


def summarise(workdir: epath.Path, metric: str, progress: Progress) -> dict[str, Any]:
    """Return the content of `summary.json` for a run whose last evaluation is done; `metric` is the primary
    metric of the run.

    In the result, `train_loss` is the mean of `metric` over the last twentieth of the training rows in `metrics.jsonl`,
    `validation_loss` is its value in the last evaluation, and `average_train_loss` its mean over all steps.
    """
    last = progress.history[-1]
    losses = hosts.from_first("the last rows of metrics", lambda: _last_losses(workdir, metric))
    return {
        "steps": last.step,
        "tokens_seen": progress.tokens,
        "headline": metric,
        "train_loss": sum(losses) / len(losses),
        "validation_loss": last.values[metric],
        "average_train_loss": metric_sums.divide(progress.run)[metric],
        "validation": last.values,
    }


def _last_losses(workdir: epath.Path, metric: str) -> list[float]:
    losses = [row[metric] for row in metric_sums.read_metrics(workdir) if row["split"] == "train"]
    return losses[-max(1, math.ceil(len(losses) / 20)) :]
