"""Suites of fine-tuning trials: what is checked before the first trial is trained, the training, and the choice.

A suite has a trial for every task, point of its sweep, seed and fold. A point of a sweep is a learning rate with a
batch size, and with a value of each setting in the recipe's `sweep`.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

from etils import epath

from ag_jax.data.tasks import catalogue
from ag_jax.distributed import hosts, lock
from ag_jax.evaluation import metrics
from ag_jax.finetuning import encoded, plan, results, suite_directory, task_training, traces, trial
from ag_jax.finetuning import splits as task_splits
from ag_jax.finetuning.config import FinetuningConfig
from ag_jax.finetuning.plan import Suite, TrialCell
from ag_jax.finetuning.results import Chosen
from ag_jax.finetuning.splits import Splits
from ag_jax.grid import run as grid
from ag_jax.grid.cells import Table
from ag_jax.interop import finetuned, opening
from ag_jax.interop.opening import Pretrained
from ag_jax.models.heads import head_of
from ag_jax.pretraining.config import check_scores
from ag_jax.settings import imported, schema
from ag_jax.training.wandb_run import Labels, check_installed


def resolved(config: FinetuningConfig) -> FinetuningConfig:
    """Return a config with the fingerprints of the tasks' files, and with the labels of custom tasks.

    Raises FileNotFoundError or ValueError if the files of a custom task cannot be used.
    """
    tasks = {name: task_splits.resolved(name, recipe, config.data) for name, recipe in config.tasks.items()}
    return dataclasses.replace(config, tasks=tasks)


def read(config: FinetuningConfig) -> dict[str, Splits]:
    """Read the examples of every task in the config; return {task: examples by split}.

    This is done before anything is trained, so that missing or malformed files show at once and not hours later.
    """
    for name, recipe in config.tasks.items():
        metrics.check_imported(task_splits.find_task(name, recipe))
    return {name: task_splits.read(name, config.tasks[name], config.data) for name in config.ordered_tasks}


def prepare(
    config: FinetuningConfig, root: epath.Path, arm: str = "", earlier: Sequence[Suite] = (), retry: bool = False
) -> Suite:
    """Return a config's suite, checked and ready for training: examples read, checkpoint opened if it is needed.

    root: directory of the experiment.
    arm: name of the suite's directory in `root`; "" if it is `root` itself.
    earlier: suites that are trained before this one, whose masked shares trials of this one may repeat.
    retry: train trials again that failed before.

    Raises ValueError or FileNotFoundError.
    """
    workdir = root / arm if arm else root
    schema.check(config)
    imported.allow(schema.flat(schema.to_dict(config)), even_stored=False)
    check_installed(config.wandb)
    config = resolved(config)
    settings = schema.flat(schema.to_dict(config))
    agreed = {key: value for key, value in settings.items() if not key.endswith(suite_directory.FINGERPRINT)}
    hosts.agree("their settings", agreed)
    # On several hosts it is host 0 that looks at the directory, so that all decide alike.
    hosts.from_first("the directory of the suite", functools.partial(suite_directory.check, config, workdir))
    material = read(config)
    hosts.agree(
        "their examples",
        {
            name: {**_sizes(splits), "fingerprint of the files": config.tasks[name].custom.fingerprint}
            for name, splits in material.items()
        },
    )
    suite = Suite(config, root, workdir, material, Labels(root.name, (arm,) if arm else ()))
    cells = plan.cells_of([suite])
    stored = grid.stored(functools.partial(plan.ready, cells), root, retry)
    if all(cell.name in stored for cell in cells):
        return dataclasses.replace(suite, stored=stored)
    opened = opening.open_encoder(config.checkpoint, config.step, fresh=config.fresh)
    _check_lengths(config, opened.config.max_length)
    _check_heads(config, material, opened)
    suite = dataclasses.replace(suite, stored=stored, opened=opened)
    hosts.from_first("the trials that are done", functools.partial(_check_trials, suite, opened, earlier))
    return suite


def _check_heads(config: FinetuningConfig, material: Mapping[str, Splits], opened: Pretrained) -> None:
    """Raise ValueError if the model from which a task starts lacks a head, dropout or attention scores for the task.

    It may need a head for masked words, by which phrases are ranked; dropout in a head for which the recipe has a rate;
    or attention scores to guide or attack.
    """
    for name, splits in material.items():
        try:
            check_scores(opened.config, config.guidance, config.tasks[name].adversarial)
        except ValueError as error:
            raise ValueError(f"tasks.{name} cannot start from {opened.description}: {error}") from error
        task_splits.check_dropout(name, config.tasks[name], splits.task, (opened.style,))
        if not head_of(splits.task.kind).reads_words:
            continue
        if first := config.tasks[name].initial_task:
            raise ValueError(
                f"tasks.{name}.initial_task must be none with ranking=True, got {first!r}: a model fine-tuned on "
                f"{first} has no head for masked words, which ranks the phrases"
            )
        if not opened.has_words:
            raise ValueError(
                f"tasks.{name}.ranking needs a checkpoint with a trained head for masked words, but "
                f"{opened.description} has none that a task can use (DeBERTa's mask decoder is none): give a run of "
                "masked language modelling, or a Hugging Face model such as RobertaForMaskedLM"
            )


def _sizes(splits: Splits) -> dict[str, int]:
    return {"train": len(splits.train), "validation": len(splits.validation)} | {
        name: len(examples) for name, examples in splits.others.items()
    }


def _check_trials(suite: Suite, opened: Pretrained, earlier: Sequence[Suite]) -> None:
    """Raise ValueError if a trial cannot be trained.

    It cannot if it needs weights or a trace of masks of another trial that will not be there, or is shorter than its
    warm-up or the delay of its attack.

    opened: the checkpoint.
    earlier: suites that are trained before this one.
    """
    to_be_recorded = {place for of_arm in earlier for place in plan.recording(plan.cells_of([of_arm]), of_arm.stored)}
    for cell in plan.cells_of([suite]):
        if cell.name not in suite.stored:
            traces.check(cell.trial, suite.workdir, opened.config.layers, to_be_recorded)
            _check_length(cell, opened)
    for name, recipe in suite.config.tasks.items():
        if recipe.initial_task:
            _check_initial(suite, name)


def _check_length(cell: TrialCell, opened: Pretrained) -> None:
    """Raise ValueError if a trial is not longer than its warm-up, or ends before its attack begins."""
    one, splits, recipe = cell.trial, cell.splits, cell.trial.recipe

    def check(rows: int) -> None:
        if steps := task_training.steps_of(one, rows):
            recipe.adversarial.check_begins(steps, recipe.warmup_of(steps))

    try:
        check(len(splits.train))
    except ValueError:
        # Examples need not be rows: a long context has several, and a lost answer none.
        rows = len(encoded.encode(splits, opened.tokenizer, opened.config, recipe).train.features)
        try:
            check(rows)
        except ValueError as error:
            raise ValueError(f"tasks.{one.task}.{error} (the trial is {one.name})") from error


def _check_lengths(config: FinetuningConfig, longest: int) -> None:
    for name, recipe in config.tasks.items():
        if recipe.max_length > longest:
            raise ValueError(
                f"tasks.{name}.max_length={recipe.max_length} is longer than the {longest} positions of "
                f"{config.checkpoint}: set --config.tasks.{name}.max_length={longest}"
            )


def _check_initial(suite: Suite, name: str) -> None:
    """Raise ValueError if the weights of another task from which task `name` starts will be missing for some seed.

    They will not if the trials that succeeded saved none. A trial that failed does not count while others are to be
    trained yet.
    """
    first, stored = suite.config.tasks[name].initial_task, suite.stored
    for seed in suite.config.seeds:
        cells = suite.of_seed(first, seed)
        candidates = plan.succeeded(cells, stored)
        if all(cell.name in stored for cell in cells):  # so the best one is known
            candidates = [plan.best_of(cells, stored)]
        if candidates and not any((cell.directory / finetuned.FOLDER).exists() for cell in candidates):
            raise ValueError(
                f"tasks.{name} starts from the best weights of {first}, which {suite.workdir / first} does not have "
                f"for seed {seed}: delete {suite.workdir / first} to train {first} again"
            )


def run(suite: Suite) -> dict[str, Chosen]:
    """Train the unfinished trials of a suite; return {task: its results at the best point of its sweep}.

    On several hosts, host 0 chooses; the result is empty on the others. Raises ValueError as `choose` does, and if
    another process trains trials of the suite.
    """
    if (table := train([suite])) is None:
        raise ValueError(f"other processes train trials of {suite.workdir}: wait until they end")
    return choose(suite, table)


def train(suites: Sequence[Suite], retry: bool = False) -> Table | None:
    """Train the unfinished trials of suites, together with other processes; return the results of all.

    The result is None if other processes train the last of them. A trial that diverges is noted as failed, and training
    continues with the next.

    suites: the suites of an experiment, in the order of training.
    retry: train trials again that failed before.
    """
    for suite in suites:
        # Even if all trials are done: a sweep with fewer points has another report, and config.json must plan them.
        claim = functools.partial(suite_directory.claim, suite.config, suite.workdir)
        hosts.from_first("the directory of the suite", claim)
        if suite.opened is not None:
            hosts.say(f"{suite.workdir}: trials start from {suite.opened.description}")
    cells = plan.cells_of(suites)
    table = grid.run(functools.partial(plan.ready, cells), suites[0].root, retry=retry)
    if table is not None:
        for cell in cells:  # what processes have left that were killed between a result and the deletions
            if hosts.from_first("the checkpoints of a trial", (cell.directory / trial.CHECKPOINTS).exists):
                with lock.hold(cell.directory / lock.FILE, wait=True):
                    hosts.from_first("its files", functools.partial(cell.tidy, cell.directory, table))
        hosts.from_first("the best trials", functools.partial(_keep_best, suites, table))
    return table


def _keep_best(suites: Sequence[Suite], table: Table) -> None:
    for suite in suites:
        for name in suite.material:
            for seed in suite.config.seeds:
                plan.keep_best(suite.of_seed(name, seed), table)


def choose(suite: Suite, table: Table) -> dict[str, Chosen]:
    """Return {task: its results at the best point of its sweep} of a suite whose trials are done.

    The best point of a task's sweep is the one with the best median on the development set. On several hosts, host 0
    chooses; the result is empty on the others.

    table: the results of the trials.

    Raises ValueError if every point of a task failed.
    """
    if not hosts.is_first():
        return {}
    try:
        return {
            name: results.choose(
                suite.material[name],
                suite.config.tasks[name],
                [(table[cell.name], cell.directory) for cell in suite.cells[name]],
            )
            for name in catalogue.ordered(suite.material)  # not the order of training
        }
    except ValueError as error:
        raise ValueError(f"{suite.workdir}: {error}") from error
