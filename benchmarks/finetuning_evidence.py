"""Fine-tune a published model with every arm of configs/asa/real_weights.py, five seeds each, and record each trial.

    python benchmarks/finetuning_evidence.py --select --checkpoint=CHECKPOINT --data=FOLDER --workdir=DIR
    python benchmarks/finetuning_evidence.py --checkpoint=CHECKPOINT --data=FOLDER --workdir=DIR

The first command chooses the learning rate of each task (plain training, two seeds) and then FreeLB's step size (on
SST-2, two seeds) on a tenth of the training examples, at most 1,000, held out by a hash of their ids; the development
set is not predicted. The second command trains with the chosen values, one task of --tasks after another. A task begins
with two seeds of plain training, the gate: if their mean is less than three standard errors above chance, it is not
trained further. There, a trial that failed counts as chance; a selection does not take its value, and means leave it
out.

Several processes may run the same command at once, each on cores of its own (`taskset --cpu-list 1 python ...`): every
trial is trained by one of them.

Every finished trial is a result in asa_real_weights_TASK/ or asa_real_weights_selection/ in the folder --results, with
the scores of the last epoch on the whole development set, on which no epoch was chosen. Trials that have a result are
skipped, others are resumed. Results of other code, and uncommitted changes, are errors (benchmarks/evidence.py).
`seconds` is the time of training alone, with compilation in the first trial of an arm; it means
little where the load average says that other programs ran. To give XLA huge pages on a CPU, as launch/local.sh does,
set GLIBC_TUNABLES=glibc.malloc.hugetlb=1.
"""

import argparse
import collections
import dataclasses
import hashlib
import json
import math
import os
import pathlib
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import evidence
from etils import epath
from evidence import Line

from ag_jax.analysis import attacks
from ag_jax.data.tasks import catalogue, readers
from ag_jax.data.tasks.task import Examples, Task, is_held_out
from ag_jax.finetuning import plan, splits, suite
from ag_jax.finetuning.config import Recipe
from ag_jax.finetuning.plan import Suite, TrialCell
from ag_jax.finetuning.splits import Splits
from ag_jax.grid import store
from ag_jax.grid.cells import Result
from ag_jax.interop import opening
from ag_jax.settings import config_files
from ag_jax.training.metrics import read_metrics

ROOT = pathlib.Path(__file__).parent.parent
CONFIG = ROOT / "configs" / "asa" / "real_weights.py"
NAME = "asa_real_weights"
COMMON = ("plain", "asa", "r_drop", "bernoulli", "longer", "freelb")
ARMS = {"sst2": (*COMMON, "smart", "scheduled", "asa_unclipped", "magnitude"), "cola": COMMON, "wnut17": COMMON}
TEMPERATURES, TEMPERATURES_TASK = ("tau_0.1", "tau_0.5", "tau_0.8"), "sst2"  # the arm `asa` has 0.3
SEEDS, GATE_SEEDS, SELECTION_SEEDS = 5, 2, 2
LEARNING_RATES, FREELB_STEPS = (2e-5, 5e-5, 1e-4), (0.01, 0.03, 0.1)
STEP_TASK = "sst2"  # on which FreeLB's step size is chosen
HELD_OUT = 1_000  # the most held-out examples that the selection predicts


@dataclasses.dataclass(frozen=True)
class TrialPoint(evidence.Point):
    """A trial that is recorded as one line.

    freelb_step: length of FreeLB's steps of ascent; None for other arms.
    """

    task: str
    arm: str
    seed: int
    learning_rate: float
    freelb_step: float | None = None


@dataclasses.dataclass(frozen=True)
class Chosen:
    """The values that the selection chose.

    learning_rates: peak learning rate of each task.
    freelb_step: length of FreeLB's steps of ascent, for all tasks.
    """

    learning_rates: Mapping[str, float]
    freelb_step: float

    def cell(self, task: str, arm: str, seed: int) -> TrialPoint:
        """Return the cell of a task, an arm and a seed with the chosen values."""
        return TrialPoint(task, arm, seed, self.learning_rates[task], self.freelb_step if arm == "freelb" else None)


def planned(chosen: Chosen, task: str) -> list[TrialPoint]:
    """Return the cells of a task in their order: arm by arm, `plain` with the gate first, then the temperatures."""
    arms = ARMS[task] + (TEMPERATURES if task == TEMPERATURES_TASK else ())
    return [chosen.cell(task, arm, seed) for arm in arms for seed in range(SEEDS)]


def record_of(folder: pathlib.Path, task: str) -> pathlib.Path:
    """Return the folder with the results of a task: each has its own, because all of a folder are of the same code."""
    return folder / f"{NAME}_{task}"


def rate_cells() -> list[TrialPoint]:
    """Return the cells by which the learning rates are chosen."""
    return [
        TrialPoint(task, "plain", seed, rate)
        for task in ARMS
        for rate in LEARNING_RATES
        for seed in range(SELECTION_SEEDS)
    ]


def step_cells(learning_rate: float) -> list[TrialPoint]:
    """Return the cells by which FreeLB's step size is chosen, at the learning rate chosen for their task."""
    return [
        TrialPoint(STEP_TASK, "freelb", seed, learning_rate, step)
        for step in FREELB_STEPS
        for seed in range(SELECTION_SEEDS)
    ]


def best(lines: Sequence[Line], of: Sequence[TrialPoint], value: str) -> float:
    """Return the value of the field `value` with the highest mean score among the cells `of`, the smallest of equals.

    The score is the primary metric on held-out training examples; a value with a trial that failed is not chosen.

    Raises ValueError if a cell has no line, or if all values failed.
    """
    by_cell = {TrialPoint.of(line): line for line in lines}
    if missing := [cell for cell in of if cell not in by_cell]:
        raise ValueError(
            f"the selection of {value} lacks {len(missing)} of {len(of)} trials, the first being {missing[0]}: run "
            "this command with --select first"
        )
    scores: dict[float, list[float]] = collections.defaultdict(list)
    for cell in of:
        line = by_cell[cell]
        scores[getattr(cell, value)].append(-math.inf if "failed" in line else primary(line, "held_out"))
    means = {key: statistics.fmean(values) for key, values in sorted(scores.items())}
    if max(means.values()) == -math.inf:
        raise ValueError(f"every {value} of {of[0].task} failed with some seed: try lower ones")
    return max(means, key=means.__getitem__)  # the first of equals, in ascending order


def rates(lines: Sequence[Line]) -> dict[str, float]:
    """Return the chosen learning rate of each task."""
    return {task: best(lines, [cell for cell in rate_cells() if cell.task == task], "learning_rate") for task in ARMS}


def choose(lines: Sequence[Line]) -> Chosen:
    """Return the values that the lines of the selection choose. Raises ValueError if the selection is not complete."""
    found = rates(lines)
    return Chosen(found, best(lines, step_cells(found[STEP_TASK]), "freelb_step"))


def primary(line: Line, split: str = "validation") -> float:
    """Return a line's score on a split by the primary metric of its task."""
    return line["scores"][split][catalogue.find(line["task"]).metric]


def chance(task: Task, examples: Examples) -> tuple[float, float]:
    """Return the score of a model that has learnt nothing, and a standard error of scores of such models.

    Accuracy: the share of the most frequent class, with a binomial standard error. Matthews' correlation: 0, with
    1 / sqrt(n), its standard error if predictions and labels are independent. F1 of entities: 0, of a model that finds
    none, with the largest standard error of a share of the n entities, 1 / (2 sqrt(n)).

    Raises ValueError for a task with another primary metric.
    """
    if task.metric == "accuracy":
        counts = collections.Counter(example.label for example in examples)
        share = max(counts.values()) / len(examples)
        return share, math.sqrt(share * (1 - share) / len(examples))
    if task.metric == "matthews":
        return 0.0, 1 / math.sqrt(len(examples))
    if task.metric == "entity_f1":
        entities = sum(tag.startswith("B-") for example in examples for tag in example.tags)
        return 0.0, 1 / (2 * math.sqrt(entities))
    raise ValueError(f"task {task.name}: the chance level of its metric {task.metric} is not known here")


def at_chance(task: str, lines: Sequence[Line], data: str) -> str | None:
    """Return why a task is not compared: a sentence if the gate's mean is less than three standard errors above
    chance; None if it is not, or if the gate's cells are not all among `lines`.
    """
    gate = [line for line in lines if line["task"] == task and line["arm"] == "plain" and line["seed"] < GATE_SEEDS]
    if len(gate) < GATE_SEEDS:
        return None
    level, error = chance(catalogue.find(task), readers.load(catalogue.find(task), data, "validation"))
    mean = statistics.fmean(level if "failed" in line else primary(line) for line in gate)
    if mean >= level + 3 * error:
        return None
    return f"{task} is at chance, not compared: plain training has {mean:.3f}, chance {level:.3f} ± {error:.3f}"


def held_out_splits(name: str, recipe: Recipe, data: str) -> Splits:
    """Return splits of a task's training examples: a tenth, chosen by a hash of the ids, as the set to be scored on,
    and a subset of the others to train on. Of the tenth, at most `HELD_OUT` examples are used.
    """
    task, train = splits.find_task(name, recipe), readers.load(catalogue.find(name), data, "train")
    is_out = [is_held_out(example) for example in train]
    out, rest = (train.take([at for at, it in enumerate(is_out) if it == part]) for part in (True, False))
    return Splits(
        task,
        splits.subset(rest, recipe.train_examples, recipe.subset_seed),
        splits.subset(out, HELD_OUT, recipe.subset_seed),
        others={},
    )


def digest(examples: Iterable[Any]) -> str:
    """Return a hash of examples: of their ids, texts and labels, in their order."""
    hashed = hashlib.sha256()
    for example in examples:
        hashed.update(json.dumps(dataclasses.asdict(example), sort_keys=True).encode() + b"\n")
    return hashed.hexdigest()[:16]


def restore_trace(cell: TrialPoint, lines: Iterable[Line], directory: epath.Path) -> None:
    """Write the shares of attention that a trial masked, its trace, into its directory if they are not there, with a
    `result.json` that says of how many steps they are.

    They are read from the trial's line, because results are kept when a machine and its directories are lost.

    cell: the trial, of the arm `asa`.
    lines: recorded lines, with that of the cell.
    directory: the trial's directory.
    """
    if (directory / "metrics.jsonl").exists():
        return
    (line,) = (line for line in lines if TrialPoint.of(line) == cell)
    rows = [
        {"step": int(step), "split": "train", "masked/layers": share}
        for step, share in line["masked"]["layers_by_step"].items()
    ]
    directory.mkdir(parents=True, exist_ok=True)
    store.write(directory, Result({"planned_steps": line["steps"]}))
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def trained(
    cell: TrialPoint, options: argparse.Namespace, root: epath.Path, lines: Sequence[Line], *, selecting: bool
) -> Line:
    """Train the trial of a cell below `root`, resume it, or read it if it is done; return the results for its line.

    lines: the lines of other cells.
    selecting: score on held-out training examples instead of the development set.
    """
    if cell.arm == "scheduled":
        masked = dataclasses.replace(cell, arm="asa")
        restore_trace(masked, lines, _only(_prepared(masked, options, root)).directory)
    prepared = _prepared(cell, options, root)
    if selecting:
        found = held_out_splits(cell.task, prepared.config.tasks[cell.task], options.data)
        prepared = dataclasses.replace(prepared, material={cell.task: found})
    begun = os.getloadavg()[0]
    trial = _only(prepared)
    if (table := suite.train([prepared])) is None:
        raise ValueError(f"another process trains {trial.directory}: wait until it ends")
    result = table[trial.name]
    of_splits = prepared.material[cell.task]
    sets = {"train": of_splits.train, "held_out" if selecting else "validation": of_splits.validation}
    line = {
        **dataclasses.asdict(cell),
        "batch_size": result.facts["batch_size"],
        "examples": {name: len(examples) for name, examples in (sets | of_splits.others).items()},
        "digest": {name: digest(examples) for name, examples in (sets | of_splits.others).items()},
        "load_average": [begun, os.getloadavg()[0]],
    }
    if not result.is_done:
        return line | {"failed": result.reason}
    (epoch,) = result.facts["epochs"]  # the last one, because no other is evaluated
    scores = {"held_out" if selecting else "validation": epoch["metrics"], **result.facts["others"]}
    return line | {
        "scores": scores,
        "epochs": epoch["epoch"],
        "steps": result.facts["steps"],
        "train_loss": epoch["train_loss"],
        "seconds": result.facts["seconds"],
        **_masked(trial.directory),
    }


def _prepared(cell: TrialPoint, options: argparse.Namespace, root: epath.Path) -> Suite:
    """Return the suite with the only trial of a cell, in a directory below `root`."""
    arguments = {"checkpoint": options.checkpoint, "data": options.data, "tasks": cell.task, "arm": cell.arm}
    arguments["learning_rate"] = repr(cell.learning_rate)
    if cell.freelb_step is not None:
        arguments["freelb_step"] = repr(cell.freelb_step)
    source = f"{CONFIG}:" + ",".join(f"{name}={value}" for name, value in arguments.items())
    overrides = {"seeds": (cell.seed,), "tensorboard": False}
    config = config_files.load(source, overrides).settings
    workdir = root / (cell.arm if cell.freelb_step is None else f"{cell.arm}_{cell.freelb_step}")
    return suite.prepare(config, workdir)


def _only(prepared: Suite) -> TrialCell:
    """Return the only trial of a suite."""
    (cell,) = plan.cells_of([prepared])
    return cell


def _masked(directory: epath.Path) -> Line:
    """Return the share of attention that was masked, at the end of training and after each logged step by layer."""
    share = attacks.masked_share([read_metrics(directory)])
    if share is None:
        return {}
    by_step = dict(zip(share.steps_S.tolist(), share.share_SN.tolist(), strict=True))
    return {"masked": share.numbers() | {"layers_by_step": by_step}}


def needed(cell: TrialPoint, chosen: Chosen) -> set[TrialPoint]:
    """Return the cells that must have a line before a cell is trained: those of the gate of its task, and the one whose
    trace of masked shares the arm `scheduled` follows; none for the cells of a gate.
    """
    gate = {chosen.cell(cell.task, "plain", seed) for seed in range(GATE_SEEDS)}
    if cell in gate:
        return set()
    return gate | ({chosen.cell(cell.task, "asa", cell.seed)} if cell.arm == "scheduled" else set())


def select(folder: pathlib.Path, options: argparse.Namespace) -> list[Line] | None:
    """Train the cells of the selection; return their lines, None if other processes train the last.

    They are scored on held-out training examples.
    """

    def ready(lines: Sequence[Line]) -> tuple[list[TrialPoint], bool]:
        """Return the cells of the learning rates, and when these are done, those of FreeLB's step size, too."""
        is_last = set(rate_cells()) <= set(map(TrialPoint.of, lines))
        return [*rate_cells(), *(step_cells(rates(lines)[STEP_TASK]) if is_last else ())], is_last

    return _run(folder, options, ready, selecting=True)


def compare(task: str, folder: pathlib.Path, options: argparse.Namespace, chosen: Chosen) -> list[Line] | None:
    """Train the cells of a task with the chosen values; return their lines, None if other processes train the last.

    A cell waits for those that it needs (`needed`). If the task is at chance, only those of its gate are trained.
    """
    told: list[str] = []

    def ready(lines: Sequence[Line]) -> tuple[list[TrialPoint], bool]:
        """Return the cells that may begin; print, once, that the task is at chance."""
        done, reason = set(map(TrialPoint.of, lines)), at_chance(task, lines, options.data)
        if reason and not told:
            print(reason, flush=True)
            told.append(reason)
        of = [cell for cell in planned(chosen, task) if cell in done or not reason or not needed(cell, chosen)]
        may_begin = [cell for cell in of if needed(cell, chosen) <= done]
        return may_begin, len(may_begin) == len(of)

    return _run(folder, options, ready, selecting=False)


def _run(
    folder: pathlib.Path, options: argparse.Namespace, ready: evidence.Points[TrialPoint], *, selecting: bool
) -> list[Line] | None:
    # Below the hash of the code, so that trials of other code are never read or resumed.
    root = epath.Path(options.workdir) / evidence.package_hash(ROOT) / ("selection" if selecting else "arms")

    def measure(cell: TrialPoint, lines: Sequence[Line]) -> Line:
        line = trained(cell, options, root, lines, selecting=selecting)
        what = line.get("failed") or f"{json.dumps(line['scores'])}, {line['seconds']:.0f} s"
        print(f"{cell.task} {cell.arm} seed {cell.seed}: {what}", flush=True)
        return line

    opened = opening.open_encoder(options.checkpoint)
    return evidence.run(folder, pathlib.Path(__file__), ready, measure, {"checkpoint": opened.digest})


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the selection or the experiment, and print what was chosen or the mean of each arm."""
    parser = evidence.options(__doc__)
    parser.add_argument("--checkpoint", required=True, help="run directory or Hugging Face directory of the model")
    parser.add_argument("--data", required=True, help="folder with the tasks' files")
    parser.add_argument("--tasks", nargs="+", choices=ARMS, default=list(ARMS), help="tasks to train on")
    parser.add_argument("--select", action="store_true", help="choose learning rates and FreeLB's step size")
    options = parser.parse_args(arguments)
    for name in ("checkpoint", "data"):
        setattr(options, name, str(pathlib.Path(getattr(options, name)).expanduser().resolve()))
    folder = options.results
    selection = folder / f"{NAME}_selection"
    if options.select:
        if (lines := select(selection, options)) is not None:
            print(choose(lines))
        return
    chosen = choose(evidence.read(selection))
    for task in options.tasks:
        scores = collections.defaultdict(list)
        for line in compare(task, record_of(folder, task), options, chosen) or ():
            if "failed" not in line:
                scores[line["arm"]].append(primary(line))
        for arm, values in scores.items():
            print(f"{task} {arm}: {100 * statistics.fmean(values):.1f} of {len(values)} seeds")


if __name__ == "__main__":
    evidence.start(main)
