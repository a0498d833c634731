"""A tiny run that most tests of this folder train, extend or interrupt, so that its programs are compiled once."""

import contextlib

import jax
import pytest
from etils import epath

from ag_jax.pretraining import config as pretraining_config
from ag_jax.training.checkpoint import Checkpoints
from ag_jax.training.metrics import CLOCK_FIELDS, read_metrics

SHORT, LONG = 6, 11  # steps: other numbers are other programs, as are other settings except learning rate and the like
TEXT = "\n".join(f"The union is strong, and number {number} builds a road." for number in range(60))
BIASES = ("model.attention_biases", "model.feedforward_biases", "model.norm_biases")
TINY = {
    "data.sequence_length": 16,
    "data.tokenizer.vocabulary_size": 300,
    "model.layers": 1,
    "model.width": 16,
    "model.heads": 2,
    "model.max_length": 16,
    "model.remat": "none",
    **dict.fromkeys(BIASES, False),  # checkpoints take time for each parameter
    "optimizer.decay": "constant",
    "training.batch_size": 4,
    "training.log_every": 2,
    "training.evaluate_every": 3,
    "training.checkpoint_every": 2,
    "training.milestones": (0.0, 0.5, 1.0),
    "training.keep_last": 1,
    "training.tensorboard": False,
}
# With guidance, without dropout, and with a learning rate that falls in the last two steps.
GUIDED = {
    "guidance.mode": "loss",
    "guidance.heads": "next:1",
    "guidance.schedule": "constant",
    "model.dropout": 0.0,
    "model.attention_dropout": 0.0,
    "optimizer.decay": "one_minus_sqrt",
    "optimizer.decay_steps": 2,
    "optimizer.final_share": 0.1,
}


def flat(text, steps=SHORT, **changed) -> dict:
    return {"data.source": str(text), **TINY, "training.steps": steps, **changed}


def settings(text, steps=SHORT, **changed) -> pretraining_config.ExperimentConfig:
    values = pretraining_config.default_config()
    values.update_from_flattened_dict(flat(text, steps, **changed))
    return pretraining_config.parse(values)


@contextlib.contextmanager
def on_one_device():
    """Hide all devices but one, as the fixture `one_device`, for fixtures of modules."""
    device = jax.devices()[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "devices", lambda: [device])
        yield


def params(workdir, step):
    with contextlib.closing(Checkpoints(epath.Path(workdir) / "checkpoints", read_only=True)) as checkpoints:
        return checkpoints.restore_params(step)


def rows(workdir, split=None):
    """The rows of metrics, without what depends on the clock."""
    return [
        {key: value for key, value in row.items() if key not in CLOCK_FIELDS}
        for row in read_metrics(workdir)
        if split in (None, row["split"])
    ]
