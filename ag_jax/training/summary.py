"""Summary of a pre-training run: its losses, as in Table 3 of Deshpande & Narasimhan (2020)."""

import math
from typing import Any

from etils import epath

from ag_jax.distributed import hosts
from ag_jax.training import metrics as metric_sums
from ag_jax.training.trainee import Progress


def summarise(workdir: epath.Path, metric: str, progress: Progress) -> dict[str, Any]:
    """Return the content of `summary.json`: steps, tokens and losses of a run whose last evaluation is done.

    metric: the primary metric of the run.

    In the result, `train_loss` is the mean of `metric` over the last twentieth of the steps, as far back as the rows of
    `metrics.jsonl` begin, `validation_loss` is its value in the last evaluation, and `average_train_loss` its mean over
    all steps.
    """
    last = progress.history[-1]
    train_loss = hosts.from_first("the last rows of metrics", lambda: _last_loss(workdir, metric, last.step))
    return {
        "steps": last.step,
        "tokens_seen": progress.tokens,
        "headline": metric,
        "train_loss": train_loss,
        "validation_loss": last.values[metric],
        "average_train_loss": metric_sums.divide(progress.run)[metric],
        "validation": last.values,
    }


def _last_loss(workdir: epath.Path, metric: str, steps: int) -> float:
    """Return the mean of a metric over the last twentieth of the training steps, from the rows of `metrics.jsonl`.

    A row that reaches into the last twentieth counts with all its steps. Rows without the metric, in which nothing was
    counted, are left out; if no other reaches into the last twentieth, the result is the metric of the last other row.
    """
    rows = [row for row in metric_sums.read_metrics(workdir) if row["split"] == "train"]
    begins = [0, *(row["step"] for row in rows)]
    measured = [(begin, row) for begin, row in zip(begins, rows, strict=False) if row[metric] is not None]
    if not measured:
        raise ValueError(
            f"expected at least one row of training with a number as {metric} in {workdir}/metrics.jsonl, got none: "
            "no token of the training text was masked. Give more text, or raise data.masking.rate"
        )
    last = [(begin, row) for begin, row in measured if row["step"] > steps - math.ceil(steps / 20)] or measured[-1:]
    weights = [row["step"] - begin for begin, row in last]
    shares = [weight / max(weights) for weight in weights]  # 1.0 for rows of equally many steps
    return sum(share * row[metric] for share, (_, row) in zip(shares, last, strict=True)) / sum(shares)
