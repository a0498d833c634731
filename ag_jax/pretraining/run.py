"""Pre-training runs: what `ag-jax train` and `ag-jax evaluate` do with a config and a run directory."""

import dataclasses
import functools
import hashlib
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax.sharding import Mesh

from ag_jax.attention.assignment import not_allowed
from ag_jax.attention.config import GuidanceConfig
from ag_jax.attention.kernels import dispatch
from ag_jax.data import pipeline
from ag_jax.data.corpus import Corpus
from ag_jax.data.order import once_count
from ag_jax.data.tokenizers import Tokenizer
from ag_jax.distributed import hosts, lock, storage
from ag_jax.grid import store
from ag_jax.grid.cells import Result
from ag_jax.models import flops
from ag_jax.objectives.adversarial.config import NAIVE, AdversarialConfig
from ag_jax.objectives.masked_lm import MLM
from ag_jax.pretraining import (
    alpha,
    branch,
    build,
    extension,
    initial_weights,
    mask_trace,
    run_directory,
    words,
    workloads,
)
from ag_jax.pretraining import config as pretraining_config
from ag_jax.pretraining import corpus as pretraining_corpus
from ag_jax.pretraining import origin as origins
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.pretraining.open_run import bias_at
from ag_jax.settings import imported, schema
from ag_jax.training import chips, sharding, summary
from ag_jax.training import train as loop
from ag_jax.training.checkpoint import Checkpoint, Checkpoints
from ag_jax.training.criterion import Criterion, Evaluation
from ag_jax.training.hyperparameters import Hyperparameters
from ag_jax.training.optimizer import learning_rate_schedule
from ag_jax.training.program import Program
from ag_jax.training.progress import ValidationProgress
from ag_jax.training.state import TrainState, with_params
from ag_jax.training.trainee import Beat, HostBatch, Metrics, Outcome, Progress, mean_metrics
from ag_jax.training.wandb_run import Labels, check_installed


def train(
    config: ExperimentConfig, workdir: epath.PathLike, labels: Labels = Labels(), until: int | None = None
) -> dict[str, Any]:
    """Train `config` in the run directory `workdir`, or resume the run there; store and return the run's summary.

    labels: group the run at Weights & Biases.
    until: step after which the training pauses; the summary, up to this step, is then returned and not stored. The
        next call goes on, and the run ends as one that never paused. A run that is past this step is not trained.

    Raises ValueError if a setting is not allowed, or if another process trains there.
    """
    workdir = storage.directory(workdir)
    check(config, workdir)
    with lock.hold(workdir / lock.FILE):
        facts = train_held(config, workdir, labels, until)
        if until is None and hosts.is_first():
            inputs = run_directory.result_inputs(words.resolve(config, workdir, run_directory.is_begun)[0])
            store.write(workdir, Result(facts, inputs=inputs))
    return facts


def check(config: ExperimentConfig, workdir: epath.Path) -> None:
    """Raise ValueError if a config cannot be trained in a run directory, as far as it can be known before."""
    schema.check(config)
    imported.allow(schema.flat(schema.to_dict(config)), even_stored=False)
    check_installed(config.training.wandb)
    # Only for their errors: a directory should not be claimed by a config that cannot be trained.
    if not run_directory.is_begun(workdir):
        if config.training.initial_weights:
            initial_weights.check(config)
        if config.training.branch_from:
            branch.check(config, run_directory.MAY_DIFFER)
        else:  # a branch has the trace in the directory of its origin
            mask_trace.read(config.adversarial, config.model.layers)
    check_tests(config, workdir)


def train_held(
    config: ExperimentConfig, workdir: epath.Path, labels: Labels = Labels(), until: int | None = None
) -> dict[str, Any]:
    """Train in a run directory whose lock this process holds, after `check`; see `train`."""
    config, in_words = words.resolve(config, workdir, run_directory.is_begun)
    if config.training.branch_from and in_words is not None and not run_directory.is_begun(workdir):
        branch.check_length(config, in_words.milestones)  # its number of steps is only known now
    run_directory.claim(config, workdir)
    stored = hosts.from_first("the summary", lambda: run_directory.read_summary(workdir))
    if stored and run_directory.is_complete(stored, config):
        return stored
    begins_branch = config.training.branch_from and not hosts.from_first(
        "the checkpoints", lambda: bool(run_directory.checkpoint_steps(workdir))
    )
    if begins_branch:
        hosts.from_first("the branch", lambda: branch.begin(config, workdir))
    attention = build.choose_attention(config, mesh := sharding.make_mesh(config.mesh))
    # Every host chooses by testing the kernel on its own device. Hosts that ran different programs would wait for each
    # other forever.
    hosts.agree("their implementation of attention (reference runs everywhere)", {"model.attention": attention.name})
    hosts.say(f"{workdir.name}: {_what_runs(config, mesh, attention)}")
    corpus = pretraining_corpus.prepare(config, workdir)
    pretraining = PretrainingRun(config, workdir, corpus, tuple(in_words.milestones.values()) if in_words else ())
    pretraining_corpus.record(config, workdir, corpus)
    mask_trace.record(config.adversarial, config.model.layers, workdir)
    if in_words is not None:
        words.record(in_words, workdir)
    if stored and hosts.is_first():
        store.path_of(workdir).unlink()  # of a run that ended at a shorter time limit or with less patience
    # From host 0, so that all hosts keep the same checkpoints.
    kept_steps = tuple(hosts.from_first("the milestones", lambda: extension.kept_steps(config, workdir)))
    labels = dataclasses.replace(labels, tags=(*labels.tags, f"seed{config.seed}"))
    return loop.train(pretraining, workdir, until=until, kept_steps=kept_steps, labels=labels)


def _what_runs(config: ExperimentConfig, mesh: Mesh, attention: dispatch.Choice) -> str:
    """Return in words what is trained on which devices, and with which implementation of attention.

    The reason for the implementation is named where another could be faster: on devices that have a kernel.
    """
    devices, decoder = mesh.devices, f" + {config.decoder.layers}" if config.decoder.layers else ""
    guided = " with guidance" if config.guidance.mode != "none" else ""
    attacked = f", attacked by {config.adversarial.method}," if config.adversarial.method != "none" else ""
    kind = "CPU" if devices.flat[0].platform == "cpu" else devices.flat[0].device_kind
    reason = "" if kind == "CPU" or attention.name == devices.flat[0].platform else f" ({attention.reason})"
    return (
        f"training {config.model.layers}{decoder} layers{guided}{attacked} on the text {config.data.source}, with "
        f"{devices.size} {kind} device{'s' if devices.size > 1 else ''}; attention: {attention.name}{reason}"
    )


class PretrainingRun:
    """Pre-training of a config in a run directory, as `training.train.train` trains it (see `Trainee`).

    experiment: the config.
    workdir: the run directory.
    corpus: the tokenizer and the rows.
    word_milestones: steps of the milestones in words, whose checkpoints are saved and kept.
    """

    def __init__(
        self,
        experiment: ExperimentConfig,
        workdir: epath.Path,
        corpus: Corpus,
        word_milestones: tuple[int, ...] = (),
    ):
        self.experiment, self.workdir, self.corpus = experiment, workdir, corpus
        self.name, self.config, self.settings = workdir.name, experiment.training, schema.to_dict(experiment)
        self.identity = {"settings": self.settings}
        self.milestones = self.config.milestone_steps() + word_milestones
        trace = mask_trace.of_run(experiment.adversarial, experiment.model.layers, workdir)
        self.program = build.shared_program(experiment, corpus.tokenizer, sharding.make_mesh(experiment.mesh), trace)
        self._init_key, self.key = build.random_keys(experiment.seed)
        self._start_token = workloads.start_token(experiment, corpus.tokenizer)
        self._batches = pipeline.batches(
            corpus, experiment.data, experiment.batch_sizes, experiment.seed, self._start_token
        )
        self.evaluation_batches: int | None = pipeline.validation_batch_count(
            corpus, self.config.batch_size, experiment.data.validation_rows
        )
        self._schedule = learning_rate_schedule(experiment.optimizer, self.config.steps)
        objective = self.program.make_objective(Hyperparameters())
        self._primary = objective.primary_metric
        if self._primary == MLM:
            _check_validation(experiment, corpus)
        coefficient = float(objective.coefficients(jnp.int32(0))[self._primary.term])
        self.hyperparameters = alpha.begin(
            experiment, workdir, self._primary.metric, coefficient, self._losses_at_the_start
        )
        self.criterion = Criterion.of_objective(
            self.config.best_metric or self._primary.metric,
            self.config.patience,
            branch.source(experiment)[1] if self.config.branch_from else 0,
        )
        _check_best_metric(experiment, self.program)

    def init(self) -> TrainState:
        """Return the state at step 0, with random parameters or those of `training.initial_weights`."""
        initial = initial_weights.read(self.experiment, self.workdir, self.corpus.tokenizer, self.program)
        return with_params(self.program.create(self._init_key), initial, self.program.shardings)

    def start(self, like: TrainState) -> Checkpoint | None:
        """Return the checkpoint that a branch goes on from (`training.branch_from`); None for another run."""
        return branch.checkpoint(self.experiment, like) if self.config.branch_from else None

    def check(self, progress: Progress) -> None:
        """Raise ValueError, with the settings that differ, if a checkpoint was trained with other settings."""
        run_directory.check_settings(progress.settings, self.experiment, self.workdir)

    def batches(self, start: int, stop: int) -> Iterator[HostBatch]:
        """Yield the training batches after step `start` up to step `stop`."""
        return self._batches.iterate(start, stop, rows=self._host_rows)

    def _host_rows(self, batch_size: int) -> slice | np.ndarray:
        """Return the rows of a batch that this host's devices hold; it makes no others."""
        return sharding.process_rows(self.program.mesh, batch_size)

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of the update after `step` steps."""
        return float(self._schedule(step))

    def evaluate(self, params: Any, step: int, beat: Beat) -> Metrics:
        """Return the metrics of the text for validation; with the coefficients of the loss terms at a step."""
        data, batch_size = self.experiment.data, self.config.batch_size
        held_out = pipeline.validation_batches(
            self.corpus, data, batch_size, self._host_rows(batch_size), self._start_token, data.validation_rows
        )
        return mean_metrics(self.program, self.hyperparameters, held_out, params, step, beat)

    def describe(self, evaluation: Evaluation) -> str:
        """Return the progress line of an evaluation: its step and the loss by which the run is summarised."""
        value = evaluation.values[self._primary.metric]
        return f"step {evaluation.step}: validation {self._primary.label} {value:.3f}"

    def utilisation(self, start: int, stop: int, seconds: float) -> float | None:
        """Return the model FLOPs utilisation of the steps after `start` up to `stop`; None for unknown devices."""
        return utilisation(self.experiment, self.corpus.tokenizer, self.program.mesh, start, stop, seconds)

    def remedy(self, checkpoint: str) -> str:
        """Return advice for a loss that is not finite."""
        return (
            f"The last good checkpoint: {checkpoint}. Lower optimizer.learning_rate, lengthen optimizer.warmup_steps "
            "or set optimizer.clip_norm, and start in another workdir"
        )

    def finish(self, outcome: Outcome, beat: Beat) -> dict[str, Any]:
        """Return the summary of the run, with its best evaluation and what ended it before its last step."""
        del beat
        metric, best = self.criterion.metric, outcome.best
        result = summary.summarise(self.workdir, self._primary.metric, outcome.progress)
        if best is not None and (self.config.keep_best or self.config.patience):
            result["best"] = {"step": best.step, metric: best.values[metric]}
        if outcome.end in ("time_limit", "patience"):
            result[outcome.end] = getattr(self.config, outcome.end)
        return result

    def _losses_at_the_start(self) -> Metrics:
        """Return the metrics of the first batch before training, from which `guidance.alpha_rule=auto` takes alpha."""
        if run_directory.is_begun(self.workdir):
            raise ValueError(
                f"{self.workdir / alpha.ALPHA} is missing, which has the alpha that guidance.alpha_rule=auto chose for "
                "this run: copy it back"
            )
        return mean_metrics(self.program, Hyperparameters(), self.batches(0, 1), self.init().params, 0)


def evaluate(workdir: epath.PathLike, step: int | None = None, trust_code: bool = False) -> dict[str, Any]:
    """Return the metrics of a run's checkpoint on all held-out text, with a description of the text (`evaluated_on`).

    step: step of the checkpoint, the newest by default.
    trust_code: whether custom patterns that the run's `config.json` names may be imported, which executes their
        modules. Otherwise the metrics of guidance are left out, which the model's own loss does not need.

    Raises ValueError if the model is evaluated with a custom pattern that may not be imported (`guidance.mode=bias`).
    """
    workdir = storage.directory(workdir)
    config = run_directory.read_config(workdir)
    checkpoints = Checkpoints(workdir / "checkpoints", read_only=True)
    step = hosts.from_first(
        "the checkpoint's step", functools.partial(run_directory.existing_step, step, checkpoints.steps(), workdir)
    )
    run_directory.check_settings(checkpoints.restore_progress(step).get("settings"), config, workdir)
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, validation_rows=None))
    if trust_code:
        imported.allow(schema.flat(schema.to_dict(config)))
    if (unread := not_allowed(config.guidance)) and not bias_at(config, step):
        hosts.tell(
            f"the metrics of guidance are left out: {', '.join(unread)} is imported only with --trust_code "
            "(trust_code=True in Python)"
        )
        config = dataclasses.replace(config, guidance=GuidanceConfig())
    if config.adversarial.method in NAIVE:  # non-learned masks have no parameters, and an evaluation does not mask
        config = dataclasses.replace(config, adversarial=AdversarialConfig())
    corpus, evaluated_on = pretraining_corpus.prepare_for_evaluation(config, workdir)
    pretraining = PretrainingRun(config, workdir, corpus)
    abstract = pretraining.program.abstract
    if checkpoints.has_weights_alone(step):
        placed = jax.tree.map(lambda leaf: leaf.sharding, abstract.params)
        params = jax.device_put(checkpoints.restore_params(step), placed)
    else:
        params = checkpoints.restore(step, abstract).state.params
    checkpoints.close()
    untrained = origins.read(workdir, config.model.width)[0].untrained(step)
    if untrained and hosts.is_first():
        names = ", ".join(untrained)
        print(f"warning: {names} of {workdir} was never trained, so its loss says nothing", file=sys.stderr)
    validation = ValidationProgress(pretraining.evaluation_batches, hosts.tell)
    return {"step": step, **pretraining.evaluate(params, step, validation.count), "evaluated_on": evaluated_on}


def utilisation(
    config: ExperimentConfig, tokenizer: Tokenizer, mesh: Mesh, start: int, stop: int, seconds: float
) -> float | None:
    """Return the model FLOPs utilisation of the training steps after `start` up to `stop`; None for unknown devices.

    The peak is that of matrix products in bfloat16. As in `plan`, rows count with their full length, and with the share
    of predicted words of the last steps.

    seconds: duration of these steps.
    """
    chip = chips.of_kind(mesh.devices.flat[0].device_kind)
    if chip is None:
        return None
    predicted, sizes = config.data.masking.rate * config.data.sequence_length, config.batch_sizes
    row_flops = workloads.workload_of(config).flops(config, tokenizer, predicted).total / config.training.batch_size
    rows = sizes.before(stop) - sizes.before(start)
    return flops.mfu(row_flops * rows, seconds, mesh.devices.size, chip.per_device().flops)


def evaluation_metrics(config: ExperimentConfig, program: Program) -> list[str]:
    """Return the names of the metrics of a run's evaluations that are one number, not one for each layer."""
    rows = pipeline.empty_batch(config.data, rows=config.training.batch_size)
    metrics = jax.eval_shape(
        program.evaluation_step, program.abstract.params, rows, jnp.zeros((), jnp.int32), Hyperparameters()
    )
    return sorted(name for name, (_, weight) in metrics.items() if weight.shape == ())


def _check_best_metric(config: ExperimentConfig, program: Program) -> None:
    """Raise ValueError, listing the available metrics, if a run's evaluations do not compute `training.best_metric`."""
    if config.training.best_metric is None:
        return
    names = evaluation_metrics(config, program)
    if config.training.best_metric not in names:
        raise ValueError(
            f"training.best_metric={config.training.best_metric} is no metric of the evaluations of this run: expected "
            f"one of {', '.join(names)}"
        )


def _check_validation(config: ExperimentConfig, corpus: Corpus) -> None:
    """Raise ValueError if no token of the held-out text is masked, because evaluations would have no loss."""
    most = config.data.validation_rows
    held_out = pipeline.validation_batches(corpus, config.data, config.training.batch_size, most=most)
    if not any(batch["masked_weights"].any() for batch in held_out):
        raise ValueError(
            "expected at least one masked token in the text for validation, whose loss would be undefined, got none in "
            f"{once_count(len(corpus.validation), most):,} rows: give more text (data.validation_source, "
            "data.validation_fraction), or raise the rate of masking (data.masking.evaluation_rate, data.masking.rate)"
        )


def check_tests(config: ExperimentConfig, workdir: epath.Path) -> None:
    """Raise ValueError or FileNotFoundError, on every host, if the translation test sets of a config cannot be used.

    Those with which a run began are not checked again.
    """

    def check() -> None:
        data, path = config.data, workdir / "config.json"
        if run_directory.is_begun(workdir):
            if not path.exists():  # an error of `check_workdir`
                return
            before, after = pretraining_config.both_settings(pretraining_config.read_settings(path), config)
            if before["translation.tests"] == after["translation.tests"]:
                return
            data = pretraining_corpus.with_own_tokenizer(data, workdir)
        pretraining_corpus.check_tests(dataclasses.replace(config, data=data))

    hosts.from_first("the test sets", check)


def versions() -> dict[str, str]:
    """Return the versions of ag_jax (a hash of its source files) and of JAX, which must be the same on all hosts."""
    sources = sorted(pathlib.Path(__file__).parents[1].rglob("*.py"))
    program = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    return {"the program (a hash of ag_jax)": program, "jax": jax.__version__}
