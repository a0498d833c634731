"""The training of a run as a cell of an experiment."""

import dataclasses
import functools
from collections.abc import Mapping

import jax
from etils import epath

from ag_jax.distributed import hosts
from ag_jax.grid.cells import Cell, Result
from ag_jax.pretraining import corpus as pretraining_corpus
from ag_jax.pretraining import run, run_directory
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.training.journal import NonFiniteError
from ag_jax.training.wandb_run import Labels

SHORT_OF_MEMORY = "RESOURCE_EXHAUSTED"  # how messages of JAX begin when memory is short


@dataclasses.dataclass(frozen=True, eq=False)
class TrainingCell(Cell):
    """The training of a run, whose run directory is that of the cell. The facts of its result are the run's summary.

    If the settings are others than those of the stored result, `compute` goes on with the run: it trains on for more
    steps, and raises ValueError for settings with which the run cannot go on. Changes of the text are found by `check`.

    config: the settings of the run.
    labels: group the run at Weights & Biases.
    """

    config: ExperimentConfig
    labels: Labels = Labels()

    @functools.cached_property
    def inputs(self) -> Mapping[str, str]:
        """Digests of the settings on which the result depends, and of those on which it depends whether it fails."""
        return run_directory.result_inputs(self.config)

    def changes(self, stored: Result) -> list[str]:
        """Return the inputs of which a stored result is not; a failed run is to be trained with other resources.

        A run that a time limit or patience ended goes on if it is longer now.
        """
        changes = super().changes(stored)
        if not stored.is_done:
            return changes
        if self.until is None and not run_directory.is_complete(dict(stored.facts), self.config):
            changes.append("time limit or patience")
        return [name for name in changes if name != "resources"]

    def check(self, workdir: epath.Path) -> None:
        """Raise ValueError if the cell of an experiment cannot be trained; called before the first one is.

        workdir: directory of the experiment.
        """
        directory = workdir / self.path
        run_directory.check(self.config, directory)
        if run_directory.is_begun(directory):
            pretraining_corpus.check_files(self.config, directory)
        run.check_tests(self.config, directory)

    def compute(self, directory: epath.Path) -> Result:
        """Train or resume the run. If it diverges, or one machine has too little memory, that is the result."""
        try:
            run.check(self.config, directory)
            facts = run.train_held(self.config, directory, self.labels, self.until)
            if self.until is not None and facts["steps"] != self.until:
                raise ValueError(
                    f"{directory} is at step {facts['steps']}, and its losses at step {self.until} are not known, "
                    "because it was trained with other steps of comparison: use those, or choose another --workdir"
                )
            return Result(facts)
        except NonFiniteError as error:
            return Result(status="diverged", reason=str(error))
        except jax.errors.JaxRuntimeError as error:
            if SHORT_OF_MEMORY not in str(error) or hosts.count() > 1:  # the other hosts would wait for this one
                raise
            return Result(status="out_of_memory", reason=f"out of memory: {error}")
