"""The train loss of a summary: the mean over the steps of the last rows of metrics."""

import json
import math

import numpy as np
import pytest
from etils import epath

from ag_jax.training import summary


def train_loss(folder, losses, steps):
    """`losses`: {last step of a row: its loss}."""
    rows = [{"step": step, "split": "train", "mlm_loss": loss} for step, loss in losses.items()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return summary._last_loss(epath.Path(folder), "mlm_loss", steps)


@pytest.mark.parametrize(("steps", "log_every"), [(1100, 10), (100, 2), (8, 2), (6, 2), (1000, 1)])
def test_of_rows_of_equally_many_steps_it_is_the_mean_of_the_last_twentieth(steps, log_every, tmp_path):
    values = np.random.default_rng(0).uniform(2, 9, steps // log_every).tolist()
    last = values[-math.ceil(len(values) / 20) :]
    losses = dict(zip(range(log_every, steps + 1, log_every), values, strict=True))
    assert train_loss(tmp_path, losses, steps) == sum(last) / len(last)


def test_a_row_counts_with_its_steps(tmp_path):
    """A time limit may end a run one step after a row: that step must not count as much as the 100 before it."""
    losses = dict.fromkeys(range(100, 1001, 100), 3.0) | {1001: 9.0}
    assert train_loss(tmp_path, losses, 1001) == pytest.approx((100 * 3.0 + 9.0) / 101)


def test_rows_without_a_masked_token_do_not_count(tmp_path):
    losses = {step: float(step) for step in range(1, 41)}
    assert train_loss(tmp_path, losses | {40: None}, 40) == 39.0
    assert train_loss(tmp_path, losses | {39: None, 40: None}, 40) == 38.0
    with pytest.raises(ValueError, match="mlm_loss"):
        train_loss(tmp_path, {1: None}, 1)
