"""Pre-train modern encoders with and without guidance (configs/modern/guidance.py), and record each run.

    python benchmarks/guidance_evidence.py --workdir=DIR [--blimp=FOLDER | --rates | --depths | --muon]

First, one run for each norm, optimizer and learning rate, with learned positions and without guidance, chooses the
learning rate of each norm and optimizer, by the validation loss; that of post-norm and AdamW is the quickstart's, whose
search tried the same ones. Then all combinations of positions, norm, optimizer and guidance are trained with three
seeds, and each pattern alone with both kinds of positions (post-norm, AdamW). The runs of the selection with the chosen
rates are among these.

A run is a result in guidance_modern/ in the folder --results: losses, the step at which it left the plateau, and the
attention that the best head of each layer gives to the next, the previous and the first token (`mass`). Runs that have
a result are skipped, others are resumed; several processes may share the work, each on cores of its own (`taskset
--cpu-list 1 python ...`). With --blimp, the folder `data` of BLiMP, a second pass scores pairs of each paradigm
(`--pairs`) with every recorded run, which must still be in the folder --workdir, where each version of the code has a
folder of its own; these results are in guidance_modern_blimp/. With --rates, the command trains the arms without
guidance and with all patterns at more learning rates instead (post-norm, seed 0, both kinds of positions, both
optimizers); these results are in guidance_modern_rates/. With --depths, it trains the quickstart's two arms with 8, 12
and 16 layers, each with and without warm-up, and three seeds; these results are in guidance_depth/. With --muon, it
trains with Muon and several factors of the updates of queries and keys, for both kinds of positions, with and without
guidance (post-norm): a further seed chooses the factor of each, with which three seeds follow; these results are in
guidance_muon/. Results of other code, and uncommitted changes, are errors (benchmarks/evidence.py).

Hardware and time: about four minutes a run and a minute for 50 pairs of each paradigm on 2 CPU cores that nothing else
uses; 72 runs, 32 with --rates, and 24 with --muon. With --depths, 36 runs of four to eight minutes.
"""

import dataclasses
import functools
import itertools
import os
import pathlib
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

import evidence
import numpy as np
from etils import epath
from evidence import Line

from ag_jax.analysis import maps
from ag_jax.attention.assignment import Assignment
from ag_jax.data import pipeline
from ag_jax.data.probes import minimal_pairs
from ag_jax.grid import store
from ag_jax.interop import opening
from ag_jax.models.encoder import Ports
from ag_jax.pretraining import build, report, run, workloads
from ag_jax.pretraining import corpus as pretraining_corpus
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.pretraining.open_run import open_run
from ag_jax.probing.minimal_pairs import report as pairs_report
from ag_jax.probing.minimal_pairs import scoring
from ag_jax.settings import config_files
from ag_jax.training.journal import NonFiniteError
from ag_jax.training.metrics import read_metrics

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONFIG = ROOT / "configs" / "modern" / "guidance.py"
NAME, DEPTH_NAME, MUON_NAME = "guidance_modern", "guidance_depth", "guidance_muon"
POSITIONS, NORMS, OPTIMIZERS = ("learned", "rotary"), ("post", "pre"), ("adamw", "muon")
ARMS = ("none", "all")
LEARNING_RATES, SEEDS = (1e-3, 2e-3, 4e-3), (0, 1, 2)
KNOWN = {("post", "adamw"): 2e-3}  # benchmarks/results/quickstart_search.json
RATES = {"adamw": (5e-4, 1e-3, 2e-3, 4e-3), "muon": (2e-3, 4e-3, 8e-3, 16e-3)}  # of --rates
PATTERNS = ("next", "prev", "first")  # arms of one pattern alone
SCALES, SEED_OF_SCALES = (1.0, 3.0, 8.0), 100  # of --muon: factors, and the seed that chooses among them
LAYERS, WARMUPS, DEPTH_ARMS = (8, 12, 16), (0, 220), ("plain", "ag")  # of --depths
MASS_ROWS = 64  # rows of the held-out text on which attention is measured


@dataclasses.dataclass(frozen=True)
class Run(evidence.Point):
    """A run that is recorded as one line."""

    positions: str
    norm: str
    optimizer: str
    arm: str
    learning_rate: float
    seed: int

    def config(self) -> ExperimentConfig:
        """Return the config of the run."""
        chosen = ",".join(f"{name}={getattr(self, name)}" for name in ("positions", "norm", "optimizer", "arm"))
        return parsed(
            f"{CONFIG}:{chosen},scale=small", {"optimizer.learning_rate": self.learning_rate, "seed": self.seed}
        )


@dataclasses.dataclass(frozen=True)
class DepthRun(evidence.Point):
    """A run of the quickstart with another number of layers or warm-up steps that is recorded as one line."""

    layers: int
    warmup_steps: int
    arm: str
    seed: int

    def config(self) -> ExperimentConfig:
        """Return the config of the run."""
        overrides = {"model.layers": self.layers, "optimizer.warmup_steps": self.warmup_steps, "seed": self.seed}
        return parsed(f"quickstart:arm={self.arm}", overrides)


@dataclasses.dataclass(frozen=True)
class MuonRun(evidence.Point):
    """A run with Muon and a factor of the updates of queries and keys that is recorded as one line."""

    positions: str
    arm: str
    scale: float
    seed: int

    def config(self) -> ExperimentConfig:
        """Return the config of the run."""
        overrides = {"optimizer.muon_attention_scale": self.scale, "seed": self.seed}
        arguments = f"positions={self.positions},norm=post,optimizer=muon,arm={self.arm},scale=small"
        return parsed(f"{CONFIG}:{arguments}", overrides)


def parsed(source: str, overrides: dict[str, Any]) -> ExperimentConfig:
    """Return the config of a file with some settings changed, and without TensorBoard's files."""
    return config_files.load(source, overrides | {"training.tensorboard": False}).settings


def selection() -> list[Run]:
    """Return the cells by which learning rates are chosen."""
    return [
        Run("learned", norm, optimizer, "none", rate, 0)
        for norm, optimizer, rate in itertools.product(NORMS, OPTIMIZERS, LEARNING_RATES)
        if (norm, optimizer) not in KNOWN
    ]


def choose(lines: Iterable[Line]) -> dict[tuple[str, str], float] | None:
    """Return the learning rate of each norm and optimizer with the lowest validation loss; None if runs are missing.

    The rates of `KNOWN` are returned as they are. A run that failed is not chosen.

    Raises ValueError if all runs of a norm and an optimizer failed.
    """
    by_cell = {Run.of(line): line.get("validation_loss", float("inf")) for line in lines}
    if not set(selection()) <= by_cell.keys():
        return None
    best: dict[tuple[str, str], Run] = {}
    for cell in selection():
        key = cell.norm, cell.optimizer
        if key not in best or by_cell[cell] < by_cell[best[key]]:
            best[key] = cell
    if failed := [key for key, cell in best.items() if by_cell[cell] == float("inf")]:
        raise ValueError(f"every learning rate of {' and '.join(failed[0])} failed: try lower ones")
    return KNOWN | {key: cell.learning_rate for key, cell in best.items()}


def planned(rates: dict[tuple[str, str], float]) -> list[Run]:
    """Return the cells of the experiment, seed by seed, with the chosen learning rates."""
    every = [*itertools.product(POSITIONS, NORMS, OPTIMIZERS, ARMS)]
    every += [(positions, "post", "adamw", arm) for positions in POSITIONS for arm in PATTERNS]
    return [
        Run(positions, norm, optimizer, arm, rates[norm, optimizer], seed)
        for seed in SEEDS
        for positions, norm, optimizer, arm in every
    ]


def by_rate() -> list[Run]:
    """Return the cells that show how the effect of guidance depends on the learning rate."""
    return [
        Run(positions, "post", optimizer, arm, rate, 0)
        for optimizer in OPTIMIZERS
        for rate in RATES[optimizer]
        for positions in POSITIONS
        for arm in ARMS
    ]


def ready(lines: Sequence[Line]) -> tuple[list[Run], bool]:
    """Return the cells of the selection, and when these are done, all others; whether no others follow."""
    rates = choose(lines)
    return (selection(), False) if rates is None else ([*selection(), *planned(rates)], True)


def by_depth() -> list[DepthRun]:
    """Return the cells that show how guidance depends on depth and warm-up, seed by seed."""
    return [
        DepthRun(layers, warmup_steps, arm, seed)
        for seed in SEEDS
        for layers in LAYERS
        for warmup_steps in WARMUPS
        for arm in DEPTH_ARMS
    ]


def by_scale(lines: Sequence[Line]) -> tuple[list[MuonRun], bool]:
    """Return the cells that choose the factor of each kind of positions and arm, and when these are done, all others.

    The second result is whether no others follow.
    """
    groups = [*itertools.product(POSITIONS, ARMS)]
    tried = {group: [MuonRun(*group, scale, SEED_OF_SCALES) for scale in SCALES] for group in groups}
    cells = [cell for group in groups for cell in tried[group]]
    best = evidence.chosen(tried, lines)
    if best is None:
        return cells, False
    return cells + [dataclasses.replace(best[group], seed=seed) for seed in SEEDS for group in groups], True


def trained(cell: Any, lines: Sequence[Line], root: epath.Path) -> Line:
    """Return the results of the run of a cell that has a `config`, with the attention to patterns; see `result`."""
    line = result(cell, cell.config(), root)
    return line if "failed" in line else line | masses(root / cell.name)


def result(cell: evidence.Point, config: ExperimentConfig, root: epath.Path) -> Line:
    """Train the run of a cell below `root`, resume it, or read it if it is done; return the results for its line."""
    directory, begun, start = root / cell.name, os.getloadavg()[0], time.monotonic()
    line = dataclasses.asdict(cell) | {"steps": config.training.steps}
    try:
        summary = run.train(config, directory)
    except NonFiniteError as error:
        return line | {"failed": str(error)}
    corpus = pipeline.prepare(pretraining_corpus.with_own_tokenizer(config.data, directory))
    workload = workloads.workload_of(config)
    headline, plateau = workload.primary_metric, workload.plateau_loss(config, corpus)
    left = report.first_step_below(read_metrics(directory), plateau - headline.margin, headline.metric)
    keys = ("train_loss", "validation_loss", "average_train_loss")
    line |= {key: summary[key] for key in keys}
    line |= {"plateau_loss": plateau, "left_plateau_at_step": left}
    took = time.monotonic() - start
    print(f"{cell.name}: {line['validation_loss']:.3f}, left at {left}, {took:.0f} s", flush=True)
    return line | {"seconds": took, "load_average": [begun, os.getloadavg()[0]]}


def masses(directory: epath.Path) -> Line:
    """Return the attention of a run's last checkpoint to the targets of `PATTERNS`, on the first rows for validation,
    with their masked tokens.

    mass: for each pattern and layer, the share of attention that the best head gives to the target, best by its mean
        over all rows.
    chance: for each pattern, that of a head which attends uniformly.
    """
    opened = open_run(directory)
    corpus = pipeline.prepare(pretraining_corpus.with_own_tokenizer(opened.config.data, directory))
    batch = next(iter(pipeline.validation_batches(corpus, opened.config.data, MASS_ROWS)))
    weights_NBHQK = np.asarray(maps.attention_weights(opened.model, opened.params, batch, Ports()))
    special = build.special_tokens(opened.tokenizer)
    found = [
        maps.measured(maps.AttentionMaps((), ids_L, weights_NBHQK[:, row]), special, Assignment())
        for row, ids_L in enumerate(np.asarray(batch["tokens"]))
    ]
    best = {name: np.mean([of[name].mass_NH for of in found], axis=0).max(-1) for name in PATTERNS}
    chance = {name: float(np.mean([of[name].chance_N for of in found])) for name in PATTERNS}
    return {"mass": {name: best_N.round(4).tolist() for name, best_N in best.items()}, "chance": chance}


def judged(cell: evidence.Point, lines: Sequence[Line], root: epath.Path, pairs: Sequence[minimal_pairs.Pair]) -> Line:
    """Score minimal pairs by the run of a cell; return the accuracies for its line."""
    start, opened = time.monotonic(), opening.open_masked_lm(str(root / cell.name))
    scored = scoring.score(opened, pairs)
    paradigm_P = np.array([pair.paradigm for pair in pairs])
    groups = pairs_report.groups_of(pairs)
    line: dict[str, Any] = dataclasses.asdict(cell) | {"pairs": len(pairs)}
    for score in scoring.SCORES:
        right_P = pairs_report.right(scored.scores[score])
        line[score] = {
            kind: {name: pairs_report.accuracy(right_P, paradigm_P, of) for name, of in groups[kind].items()}
            for kind in ("all", "field", "paradigm")
        }
    shown = ", ".join(f"{score} {line[score]['all']['all'][0]:.3f}" for score in scoring.SCORES)
    print(f"{cell.name}: {shown}, {time.monotonic() - start:.0f} s", flush=True)
    return line


def main(arguments: Sequence[str] | None = None) -> None:
    """Train or score all cells that have no line."""
    parser = evidence.options(__doc__)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--blimp", help="folder of BLiMP's pairs, to score the recorded runs")
    what.add_argument("--rates", action="store_true", help="train at more learning rates")
    what.add_argument("--muon", action="store_true", help="train with factors of Muon's updates of queries and keys")
    what.add_argument("--depths", action="store_true", help="train with more layers, with and without warm-up")
    parser.add_argument("--pairs", type=int, default=50, help="pairs of each paradigm")
    options = parser.parse_args(arguments)
    folder, program = options.results, pathlib.Path(__file__)
    # Below the hash of the code, so that runs of other code are never read or resumed.
    root = epath.Path(options.workdir) / evidence.package_hash(ROOT)
    train = functools.partial(trained, root=root)
    if options.rates or options.depths:
        name, of = (f"{NAME}_rates", by_rate()) if options.rates else (DEPTH_NAME, by_depth())
        evidence.run(folder / name, program, lambda lines: (of, True), train)
        return
    if options.muon:
        evidence.run(folder / MUON_NAME, program, by_scale, train)
        return
    if not options.blimp:
        evidence.run(folder / NAME, program, ready, train)
        return
    pairs = minimal_pairs.read(options.blimp, options.pairs)
    lines = evidence.read(folder / NAME)
    rates = choose(lines)
    if rates is None:
        sys.exit(f"{folder / NAME} lacks runs of the selection: run this command without --blimp first")
    done = {Run.of(line) for line in lines if "failed" not in line}
    scored = [cell for cell in planned(rates) if cell in done]
    judge = functools.partial(judged, root=root, pairs=pairs)
    options = {"pairs": store.digest([dataclasses.astuple(pair) for pair in pairs])}
    evidence.run(folder / f"{NAME}_blimp", program, lambda lines: (scored, True), judge, options)


if __name__ == "__main__":
    evidence.start(main)
