"""The trials of suites as cells of the grid, and the order in which they can be trained.

A trial that starts from another task's weights waits for the best trial of that task, and one that repeats the masks of
another trial waits for that one. All others can be trained at once.
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

from etils import epath

from ag_jax.distributed import hosts, shared_files
from ag_jax.finetuning import encoded, suite_directory, task_training, traces, trial
from ag_jax.finetuning import splits as task_splits
from ag_jax.finetuning.config import FinetuningConfig
from ag_jax.finetuning.encoded import TaskData
from ag_jax.finetuning.splits import Splits
from ag_jax.finetuning.trial import Trial
from ag_jax.grid import store
from ag_jax.grid.cells import Cell, Result, Stage, Table
from ag_jax.interop import finetuned, opening
from ag_jax.interop.opening import Pretrained
from ag_jax.pretraining import mask_trace
from ag_jax.training.journal import NonFiniteError
from ag_jax.training.wandb_run import Labels


@dataclasses.dataclass(frozen=True, eq=False)
class Suite:
    """A fine-tuning config with what its trials need.

    config: the settings.
    root: directory of the experiment, to which the suites of other arms may belong, too.
    workdir: the directory of the suite, `root` or a directory in it.
    material: the examples of each task, in the order of training.
    labels: labels of the trials' runs at Weights & Biases.
    stored: results of the trials that need no training.
    opened: the checkpoint that the trials start from; None if all trials have results.
    """

    config: FinetuningConfig
    root: epath.Path
    workdir: epath.Path
    material: Mapping[str, Splits]
    labels: Labels = Labels()
    stored: Table = dataclasses.field(default_factory=dict)
    opened: Pretrained | None = None

    @functools.cached_property
    def cells(self) -> Mapping[str, Sequence["TrialCell"]]:
        """The trials of each task, ordered by point of the sweep, seed and fold."""
        above = f"{self.root}/"
        return {
            name: [
                TrialCell(str(trial.directory_of(self.workdir, one)).removeprefix(above), self, one)
                for one in trial.trials_of(name, self.config.tasks[name], self.config.seeds)
            ]
            for name in self.material
        }

    def of_seed(self, task: str, seed: int) -> list["TrialCell"]:
        """Return the trials of a task with a seed."""
        return [cell for cell in self.cells[task] if cell.trial.seed == seed]


def cells_of(suites: Iterable[Suite]) -> list["TrialCell"]:
    """Return the trials of suites, in the order of training."""
    return [cell for suite in suites for of_task in suite.cells.values() for cell in of_task]


@dataclasses.dataclass(frozen=True, eq=False)
class TrialCell(Cell):
    """A trial as a cell. Other settings than those of its result are found by `suite_directory.check`.

    suite: its suite.
    trial: the trial.
    first: the trial of the task `initial_task` whose weights it starts from, with its result; None if it starts from
        the checkpoint of the suite, or if that trial is not known yet.
    """

    suite: Suite
    trial: Trial
    first: tuple["TrialCell", Result] | None = None

    on_change: ClassVar[Literal["redo", "refuse"]] = "refuse"

    @property
    def directory(self) -> epath.Path:
        """The directory of the trial."""
        return self.suite.root / self.path

    @property
    def resolved(self) -> Trial:
        """The trial, with the directory of the trial whose masks it repeats."""
        return traces.resolved(self.trial, self.suite.workdir)

    @property
    def metric(self) -> str:
        """The metric of its task, by which trials are chosen."""
        return self.suite.material[self.trial.task].task.metric

    @property
    def splits(self) -> Splits:
        """The splits of its task or, in cross-validation, of its fold."""
        splits, one = self.suite.material[self.trial.task], self.trial
        return splits if one.recipe.folds is None else task_splits.of_fold(splits, one.fold or 0, one.recipe.folds)

    @property
    def keeps_weights(self) -> bool:
        """Whether the weights of the trial are saved; they are deleted once another trial of its seed is better."""
        return self.suite.config.keeps_weights(self.trial.task)

    @property
    def inputs(self) -> Mapping[str, str]:
        """Name of the trial, and a digest of what it starts from.

        If it starts from the weights of a trial of another task, the digest is that of this trial's predictions,
        because its weights may be deleted later.
        """
        name = {"trial": f"{self.trial.task}/{self.trial.name}"}
        if self.first is not None:
            cell, result = self.first
            digests = {split: artifact.sha256 for split, artifact in result.artifacts.items()}
            return {**name, "start": store.digest(cell.trial.name, digests)}
        return {**name, **({} if self.suite.opened is None else {"start": self.suite.opened.digest})}

    def changes(self, stored: Result) -> list[str]:
        """Return the inputs of which a stored result is not, as far as they are known without opening the checkpoint.

        A checkpoint may be deleted once all trials are done.
        """
        inputs = self.inputs
        return [name for name in super().changes(stored) if name in inputs]

    def compute(self, directory: epath.Path) -> Result:
        """Train or resume the trial. If it diverges, or is to mask what a failed trial masked, its result says so."""
        suite, one = self.suite, self.trial
        start, data = self._start(), _encoded(suite, one.task, one.fold)
        claim = functools.partial(suite_directory.claim_again, suite.config, suite.workdir, one.task)
        hosts.from_first("the settings of the suite", claim)
        try:
            result = task_training.run_trial(
                self.resolved, suite.config, start, data, directory, self.keeps_weights, suite.labels
            )
        except (NonFiniteError, mask_trace.FailedTrialError) as error:
            hosts.tell(f"{one.task} {one.name} failed: {error}")
            return trial.failure(one, str(error))
        facts = result.facts
        epochs = f"epoch {facts['best_epoch']} of {facts['epochs'][-1]['epoch']}"
        score = f"{self.metric} {100 * facts['metrics'][self.metric]:.1f}"
        hosts.say(f"{one.task} {one.name}: {score} ({epochs}), {facts['seconds']:.0f} s")
        return result

    def tidy(self, directory: epath.Path, table: Table) -> None:
        """Delete the trial's checkpoints, and the weights of its seed's trials that cannot be the best any more."""
        trial.tidy(directory, keep=self.keeps_weights and table[self.name].is_done)
        keep_best(self.suite.of_seed(self.trial.task, self.trial.seed), table)

    def _start(self) -> Pretrained:
        """Return the encoder that the trial starts from: of the suite's checkpoint, or of another task's best trial."""
        opened: Any = self.suite.opened
        if self.first is None:
            return opened
        place = self.first[0].directory
        if blind := shared_files.wait_for(place / finetuned.FOLDER / finetuned.TASK):
            raise ValueError(
                f"{place} is not the same on all hosts: host {blind[0]} does not see what host 0 wrote there. Take a "
                "--workdir on a file system that all hosts share"
            )
        # The checkpoint's config, because the other task's recipe may have changed the dropout.
        return dataclasses.replace(opening.open_encoder(str(place)), config=opened.config)


@functools.lru_cache(maxsize=1)  # of one task, because those of several may be large
def _encoded(suite: Suite, task: str, fold: int | None) -> TaskData:
    """Return the tokenised examples of a task and fold."""
    cell: TrialCell = next(cell for cell in suite.cells[task] if cell.trial.fold == fold)
    opened: Any = suite.opened
    return encoded.encode(cell.splits, opened.tokenizer, opened.config, cell.trial.recipe)


def ready(cells: Sequence[TrialCell], table: Table) -> Stage:
    """Return the trials that can begin, because those whose weights or masked shares they need are done."""
    to_be_recorded = set(recording(cells, table))
    begin = []
    for cell in cells:
        first, adversarial = cell.trial.recipe.initial_task, cell.resolved.recipe.adversarial
        if adversarial.method == "scheduled" and mask_trace.directory_of(adversarial) in to_be_recorded:
            continue
        if first:
            firsts = cell.suite.of_seed(first, cell.trial.seed)
            if any(one.name not in table for one in firsts):
                continue
            best = best_of(firsts, table)
            cell = dataclasses.replace(cell, first=(best, table[best.name]))
        begin.append(cell)
    return Stage(begin, is_last=len(begin) == len(cells))


def recording(cells: Iterable[TrialCell], table: Table) -> Iterator[epath.Path]:
    """Yield the directories of trials that are yet to record which share of attention their adversary masks."""
    for cell in cells:
        if cell.trial.recipe.adversarial.method == "asa" and cell.name not in table:
            yield cell.directory


def succeeded(cells: Sequence[TrialCell], table: Table) -> list[TrialCell]:
    """Return the trials that have a result and did not fail."""
    return [cell for cell in cells if cell.name in table and table[cell.name].is_done]


def best_of(cells: Sequence[TrialCell], table: Table) -> TrialCell:
    """Return the trial with the best development metric, of equally good ones the first; they have a task and a seed.

    Raises ValueError if none of them has succeeded.
    """
    candidates = succeeded(cells, table)
    if not candidates:
        task, seed = cells[0].trial.task, cells[0].trial.seed
        raise ValueError(
            f"no trial of {task} with seed {seed} succeeded, so there is none to choose: change the settings of {task} "
            "and choose another --workdir"
        )
    return max(candidates, key=lambda cell: table[cell.name].facts["metrics"][cell.metric])


def keep_best(cells: Sequence[TrialCell], table: Table) -> None:
    """Delete the saved weights of a task's and seed's successful trials, except the best one so far.

    The trials that are still to be trained cannot make a deleted one the best again, whatever they score. With folds,
    nothing is deleted, because the models of all folds belong together.
    """
    candidates = succeeded(cells, table)
    if not candidates or not candidates[0].keeps_weights or candidates[0].trial.fold is not None:
        return
    best = best_of(candidates, table)
    for cell in candidates:
        if cell is not best and (weights := cell.directory / finetuned.FOLDER).exists():
            weights.rmtree(missing_ok=True)  # another process may delete it, too
