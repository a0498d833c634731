"""Search the quickstart's settings: both arms over the same learning rates and warm-ups, then deeper models.

    python benchmarks/quickstart_search.py --workdir=runs/quickstart_search

Both arms have three learning rates, each without warm-up and with one over a fifth of the run (6 runs an arm). The
learning rates are ten to forty times those of the paper (section 4.5), because the width is only 96. The setting with
the lowest validation loss of the arm without guidance is then trained with 12 and 16 layers, in both arms. Every run
has the quickstart's steps, unless `--steps` says otherwise, and its own linear decay. A search that was stopped
resumes. Writes benchmarks/results/quickstart_search.json.
"""

import argparse
import itertools
import json
import pathlib

import record
from etils import epath

from ag_jax import config_reader
from ag_jax.data.text import pipeline
from ag_jax.pretraining import config as pretraining_config
from ag_jax.pretraining import run
from ag_jax.pretraining.plateau import unigram_loss
from ag_jax.pretraining.report import first_step_below
from ag_jax.training.metrics import read_metrics

CONFIG = str(pathlib.Path(__file__).parent.parent / "configs" / "quickstart.py")
ARMS = ("mlm", "ag")
LEARNING_RATES = (1e-3, 2e-3, 4e-3)
DEPTHS = (12, 16)


def trained(arm: str, settings: dict, steps: int | None, root: epath.Path) -> dict:
    """Train one run below `root`, or read what an earlier call trained; return settings and results.

    settings: of learning rate, warm-up (as a fraction of the steps) and depth.
    steps: of the run; None for the quickstart's.
    """
    source = f"{CONFIG}:arm={arm}"
    steps = steps or pretraining_config.parse(config_reader.load(source, {})).training.steps
    overrides = {
        "training.steps": steps,
        "training.evaluate_every": None,
        "training.checkpoint_every": steps,
        "training.milestones": (),
        "training.tensorboard": False,
        "optimizer.learning_rate": settings["learning_rate"],
        "optimizer.warmup_steps": round(settings["warmup"] * steps),
        "model.layers": settings["layers"],
    }
    config = pretraining_config.parse(config_reader.load(source, overrides))
    plateau = unigram_loss(pipeline.prepare(config.data).train)
    workdir = root / "-".join([arm, *(f"{key}={value}" for key, value in settings.items())])
    summary = run.train(config, workdir)
    return {
        "arm": arm,
        **settings,
        "steps": steps,
        **{key: summary[key] for key in ("train_loss", "validation_loss", "average_train_loss")},
        "left_plateau_at_step": first_step_below(read_metrics(workdir), plateau - 0.3),
        "plateau_loss": plateau,
    }


def main() -> None:
    """Train every run of the search, save the results after each, and print them by depth, arm and validation loss."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", required=True)
    parser.add_argument("--steps", type=int, default=None)
    options = parser.parse_args()
    root, rows = epath.Path(options.workdir).resolve(), []

    def add(arm: str, settings: dict) -> None:
        rows.append(trained(arm, settings, options.steps, root))
        record.save("quickstart_search", {"runs": rows})

    for rate, warmup, arm in itertools.product(LEARNING_RATES, (0.0, 0.2), ARMS):
        add(arm, {"learning_rate": rate, "warmup": warmup, "layers": 8})
    best = min((row for row in rows if row["arm"] == ARMS[0]), key=lambda row: row["validation_loss"])
    for layers, arm in itertools.product(DEPTHS, ARMS):
        add(arm, {"learning_rate": best["learning_rate"], "warmup": best["warmup"], "layers": layers})
    for row in sorted(rows, key=lambda row: (row["layers"], row["arm"], row["validation_loss"])):
        print(json.dumps(row))


if __name__ == "__main__":
    main()
