"""Config files of tiny searches, and a stub in the place of training whose losses are a function of the settings."""

import json
import math
import pathlib
import time

from ag_jax.distributed import storage
from ag_jax.pretraining import run
from ag_jax.pretraining.search import run as search_run
from ag_jax.settings import schema
from ag_jax.training.journal import NonFiniteError

PLATEAU, STEPS = 5.4, 8  # a run leaves the plateau at a margin of 0.3 below it
DIVERGES = 0.75  # learning rate at which the stub diverges
UNLUCKY = 13  # seed with which it also diverges at learning rates below 0.05
TINY = {
    "data.sequence_length": 16,
    "data.tokenizer.vocabulary_size": 300,
    "model.layers": 2,
    "model.width": 12,
    "model.heads": 6,
    "model.max_length": 16,
    "training.steps": STEPS,
    "training.batch_size": 4,
    "training.log_every": 2,
    "training.evaluate_every": None,
    "training.checkpoint_every": 100,
    "training.milestones": (1.0,),
    "training.tensorboard": False,
}
CONFIG = '''
from ag_jax.settings import schema
from ag_jax.settings.config_files import OneOf
from ag_jax.pretraining import config as pretraining_config

def get_config(*, arm: OneOf("plain", "ag") = "plain"):
    """arm: plain or ag."""
    config = pretraining_config.default_config()
    config.update_from_flattened_dict({settings!r})
    if arm == "ag":
        config.guidance.mode = "loss"
    config.search.grids = {grids!r}
    return config
'''


def config_file(path: pathlib.Path, grids: dict, **settings) -> str:
    """Write a config file with the arms `plain` and `ag` and these grids; return its path."""
    path.write_text(CONFIG.format(grids=grids, settings=TINY | settings))
    return str(path)


def rates(*values) -> dict:
    return {"optimizer": {"learning_rate": values}}


def loss_of(config, step: int) -> float:
    """A bowl over learning rate and warm-up that falls with the steps; guidance lowers it."""
    bowl = abs(math.log10(config.optimizer.learning_rate) + 2) + 0.25 * config.optimizer.warmup_steps
    return round(
        4 + bowl + (config.training.steps - step) / 4 - (config.guidance.mode == "loss") + config.seed / 100, 6
    )


def accuracy_of(config, step: int) -> float:
    """Higher where the loss is higher, so that points have the other order."""
    return round(loss_of(config, step) / 10, 6)


def begin(config, directory) -> None:
    """Write the settings of a run, as training does at its start."""
    directory.mkdir(parents=True, exist_ok=True)
    storage.write_whole(directory / "config.json", json.dumps(schema.to_dict(config)))


def outcome(config, until=None):
    """Return the summary of a run at its end or at a rung; raise NonFiniteError if it diverges."""
    rate = config.optimizer.learning_rate
    if rate == DIVERGES or (config.seed == UNLUCKY and rate < 0.05):
        raise NonFiniteError("mlm_loss is not finite at step 3.")
    step = until or config.training.steps
    losses = {"validation_loss": loss_of(config, step), "train_loss": 7.0, "average_train_loss": 8.0}
    return {"steps": step, **losses, "validation": {"mlm_accuracy": accuracy_of(config, step), "mask_rate": [0.1, 0.2]}}


def stub(config, directory, labels, until=None):
    """Note the call in `calls.txt` of the search."""
    begin(config, directory)
    with open(directory.parent.parent / "calls.txt", "a") as calls:
        calls.write(f"{directory.parent.name}/{directory.name} {until}\n")
    return outcome(config, until)


def hangs_at_the_third(config, directory, labels, until=None):
    calls = directory.parent.parent / "calls.txt"
    if calls.exists() and len(calls.read_text().splitlines()) == 2:
        print("in the middle of the third", flush=True)
        time.sleep(600)
    return stub(config, directory, labels, until)


def _install(train) -> None:
    run.train_held, search_run.plateau_loss = train, lambda config, directory: PLATEAU


def install_hanging() -> None:
    _install(hangs_at_the_third)


def install() -> None:
    _install(stub)
