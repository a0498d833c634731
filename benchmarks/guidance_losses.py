"""Does one alpha serve all lengths and depths? Train the quickstart's guided arm with both guidance losses, and record.

    python benchmarks/guidance_losses.py --workdir=DIR

For each loss (`guidance.loss`), a further seed chooses alpha among five values by the validation loss, with the
quickstart's 64 tokens, 8 layers and warm-up. With this alpha, three seeds are trained at 64, 128 and 256 tokens, with
2,048 tokens in a batch, and at 16 layers with and without warm-up. A run is a result in guidance_losses/ in the folder
--results: losses, the step at which it left the plateau, the first logged step at which the guided heads' mean
attention mass on Next, Prev and First over all layers is .9 (`followed_at_step`), and the mass of the best head of each
layer at the end. Runs that have a result are skipped, others are resumed; several processes may share the work.

Hardware and time: two to eight minutes a run on 2 CPU cores that nothing else uses; 40 runs.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Sequence

import evidence
import guidance_evidence
import numpy as np
from etils import epath
from evidence import Line

from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.training.metrics import read_metrics

NAME = "guidance_losses"
TOKENS = 2048  # of a batch
ALPHAS = {"squared": (0.1, 0.3, 1.0, 3.0, 10.0), "cross_entropy": (0.001, 0.003, 0.01, 0.03, 0.1)}
SEEDS, SEED_OF_ALPHAS = (0, 1, 2), 100
FOLLOWED = 0.9  # mean mass from which on heads are said to follow their patterns
# Sequence length, layers, warm-up steps; the first is that of the quickstart, by which alpha is chosen.
SETTINGS = ((64, 8, 220), (128, 8, 220), (256, 8, 220), (64, 16, 220), (64, 16, 0))


@dataclasses.dataclass(frozen=True)
class Run(evidence.Point):
    """A run of the quickstart's guided arm that is recorded as one line."""

    loss: str
    alpha: float
    length: int
    layers: int
    warmup_steps: int
    seed: int

    def config(self) -> ExperimentConfig:
        """Return the config of the run."""
        overrides = {
            "guidance.loss": self.loss,
            "guidance.alpha": self.alpha,
            "data.sequence_length": self.length,
            "training.batch_size": TOKENS // self.length,
            "model.layers": self.layers,
            "optimizer.warmup_steps": self.warmup_steps,
            "seed": self.seed,
        }
        return guidance_evidence.parsed("quickstart:arm=ag", overrides)


def ready(lines: Sequence[Line]) -> tuple[list[Run], bool]:
    """Return the cells that choose alpha for each loss, and when these are done, all others; whether none follow."""
    tried = {
        loss: [Run(loss, alpha, *SETTINGS[0], SEED_OF_ALPHAS) for alpha in alphas] for loss, alphas in ALPHAS.items()
    }
    cells = [cell for of_loss in tried.values() for cell in of_loss]
    best = evidence.chosen(tried, lines)
    if best is None:
        return cells, False
    return cells + [
        Run(loss, best[loss].alpha, *setting, seed) for seed in SEEDS for setting in SETTINGS for loss in ALPHAS
    ], True


def trained(cell: Run, lines: Sequence[Line], root: epath.Path) -> Line:
    """Train the run of a cell below `root`, resume it, or read it if it is done; return the results for its line."""
    line = guidance_evidence.trained(cell, lines, root)
    masses = [
        (row["step"], np.mean([row[f"mass/{name}"] for name in guidance_evidence.PATTERNS]))
        for row in read_metrics(root / cell.name)
        if row["split"] == "train"
    ]
    return line | {"followed_at_step": next((step for step, mass in masses if mass >= FOLLOWED), None)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Train all cells that have no line."""
    options = evidence.options(__doc__).parse_args(arguments)
    # Below the hash of the code, so that runs of other code are never read or resumed.
    root = epath.Path(options.workdir) / evidence.package_hash(guidance_evidence.ROOT)
    train = functools.partial(trained, root=root)
    evidence.run(options.results / NAME, pathlib.Path(__file__), ready, train)


if __name__ == "__main__":
    evidence.start(main)
