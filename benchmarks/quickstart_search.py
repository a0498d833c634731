"""Search the quickstart's settings: both arms over the paper's grids (section 4.5), scaled to the small model.

    python benchmarks/quickstart_search.py --workdir=runs/quickstart_search

The paper tunes RoBERTa-MLM over three learning rates, attention dropout in {0, 0.1} and warm-up, RoBERTa-AG over alpha.
Here both arms have the same three learning rates, ten to twenty times the paper's because the width is only 96. The MLM
arm also has a warm-up of 0 or 20 % of the run and, at the middle rate, both dropouts (7 runs); the AG arm has only the
learning rates (3 runs). Every run has its own linear decay over `--steps`. A search that was stopped resumes.
Writes benchmarks/results/quickstart_search.json.
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
LEARNING_RATES = (5e-4, 1e-3, 2e-3)


def grid(steps: int) -> list[tuple[str, dict]]:
    """Return (arm, settings) of every run of the search."""
    shared = {
        "training.steps": steps,
        "training.evaluate_every": None,
        "training.checkpoint_every": steps,
        "training.milestones": (),
        "training.tensorboard": False,
    }
    mlm = [
        {"optimizer.learning_rate": rate, "optimizer.warmup_steps": warmup, "model.attention_dropout": 0.1}
        for rate, warmup in itertools.product(LEARNING_RATES, (0, steps // 5))
    ]
    mlm.append(mlm[2] | {"model.attention_dropout": 0.0})
    ag = [{"optimizer.learning_rate": rate, "guidance.alpha": 1.0} for rate in LEARNING_RATES]
    return [("mlm", shared | settings) for settings in mlm] + [("ag", shared | settings) for settings in ag]


def main() -> None:
    """Train every run of the grid, save the results and print them by arm and validation loss."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", required=True)
    parser.add_argument("--steps", type=int, default=500)
    options = parser.parse_args()
    rows, plateau = [], None
    for number, (arm, settings) in enumerate(grid(options.steps)):
        name = f"{number:02d}-{arm}"
        config = pretraining_config.parse(config_reader.load(f"{CONFIG}:arm={arm}", settings))
        plateau = plateau or unigram_loss(pipeline.prepare(config.data).train)
        workdir = epath.Path(options.workdir).resolve() / name
        summary = run.train(config, workdir)
        chosen = {key: value for key, value in settings.items() if not key.startswith("training.")}
        rows.append(
            {
                "arm": arm,
                **chosen,
                **{key: summary[key] for key in ("train_loss", "validation_loss", "average_train_loss")},
                "left_plateau_at_step": first_step_below(read_metrics(workdir), plateau - 0.3),
            }
        )
        record.save("quickstart_search", {"steps": options.steps, "unigram_loss": plateau, "runs": rows})
    for row in sorted(rows, key=lambda row: (row["arm"], row["validation_loss"])):
        print(json.dumps(row))


if __name__ == "__main__":
    main()
