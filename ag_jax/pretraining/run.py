"""Pre-training runs and their directories: train, evaluate and open a run.

A run directory holds `config.json`, `corpus.json`, `tokenizer/`, `metrics.jsonl`, `tensorboard/`, `checkpoints/`,
`figures/` and, when the run is done, `summary.json`; `words.json` if settings are in words; `trace.json` with
`adversarial.method=scheduled`; `hosts.json` if several hosts share it, `lock.json` while it is trained, `profile/` with
`training.profile`, and `origin.json` if it did not start from randomly initialised weights.
"""

import dataclasses
import functools
import hashlib
import json
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from etils import epath

from ag_jax import imported
from ag_jax.attention import guidance
from ag_jax.attention.adversary import split_params
from ag_jax.attention.assignment import Assignment, not_allowed
from ag_jax.attention.config import GuidanceConfig
from ag_jax.data import pipeline, tokenizers
from ag_jax.data.corpus import Corpus
from ag_jax.data.json_files import read_json, reading
from ag_jax.data.order import once_count
from ag_jax.data.text.files import warn_once
from ag_jax.data.tokenizers import Tokenizer
from ag_jax.distributed import hosts, lock, shared_files, storage
from ag_jax.models import flops
from ag_jax.models.one_line import one_line
from ag_jax.objectives.adversarial import wrap as adversarial
from ag_jax.objectives.adversarial.config import NAIVE, AdversarialConfig
from ag_jax.objectives.adversarial.self_attention import LearntMasks
from ag_jax.objectives.masked_lm import MLM
from ag_jax.pretraining import alpha, branch, build, extension, mask_trace, words, workloads
from ag_jax.pretraining import config as pretraining_config
from ag_jax.pretraining import corpus as pretraining_corpus
from ag_jax.pretraining import origin as origins
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.pretraining.extension import SUMMARY
from ag_jax.pretraining.origin import Origin, Pooler
from ag_jax.settings import schema
from ag_jax.training import chips, loop, sharding, summary
from ag_jax.training.checkpoint import ASIDE, Checkpoints, saved_metrics, steps_in
from ag_jax.training.criterion import Criterion, Evaluation
from ag_jax.training.hyperparameters import Hyperparameters
from ag_jax.training.job import Beat, HostBatch, Job, Progress, metrics_evaluator, no_checkpoint
from ag_jax.training.metrics import read_metrics
from ag_jax.training.optimizer import learning_rate_schedule
from ag_jax.training.program import Program
from ag_jax.training.progress import ValidationProgress
from ag_jax.training.state import TrainState, create_state, with_params
from ag_jax.training.wandb_run import Labels, WandbRun, check_installed

# Settings that change neither the trained model nor the rows of metrics.jsonl: a run may be resumed with others.
MAY_DIFFER = (
    "data.accept_changed_text",
    "data.cache_dir",
    "data.expected_gigabytes",
    "data.expected_tokens",
    "data.verify_cache",
    "decoding.",
    "mesh.",
    "model.attention",
    "model.remat",
    "model.scan_layers",
    "title",
    "training.checkpoint_every",
    "training.keep_",
    "training.milestones",
    "training.patience",
    "training.profile",
    "training.step_timeout",
    "training.tensorboard",
    "training.time_limit",
    "training.wandb",
    "translation.average",
    "translation.tests",
    "translation.tokenize",
    "comparison.",
    "search.",
    "inspection.",
)
# Those of MAY_DIFFER that only matter once there is a model: `config.json` has the latest, for the verbs that read it.
# `training.keep_last` is one of them because `translation.average` may not be larger.
AFTER_TRAINING = (
    "decoding.",
    "inspection.",
    "training.keep_last",
    "translation.average",
    "translation.tests",
    "translation.tokenize",
)
# Settings in which a checkpoint may differ from `config.json`, too: the length of a run that was extended, and paths of
# files whose content `corpus.json` and `tokenizer/` describe.
MAY_CHANGE = (
    "data.source",
    "data.target",
    "data.tokenizer.path",
    "data.validation_",
    "training.initial_weights",
    "training.branch_from",
    "training.steps",
)
# Settings of the encoder that do not change the meaning of its parameters.
MODEL_MAY_DIFFER = ("dropout", "attention_dropout", "initializer_range", "dtype", "remat", "scan_layers", "attention")
# Others may be changed on purpose when training goes on: slower rotations for longer sequences.
MODEL_MAY_CHANGE = ("rotary_base", "rotary_base_local")


def make_job(
    config: ExperimentConfig,
    workdir: epath.Path,
    corpus: Corpus,
    labels: Labels = Labels(),
    pause_at: int | None = None,
    saved_steps: tuple[int, ...] = (),
) -> Job:
    """Return the job that trains `config` in the run directory `workdir`; `labels` group the run at Weights & Biases.

    corpus: the tokenizer and the rows.
    pause_at: step after which the training pauses (`Job.pause_at`).
    saved_steps: further steps whose checkpoints are saved, and kept.
    """
    trace = mask_trace.of_run(config.adversarial, config.model.layers, workdir)
    program = build.shared_program(config, corpus.tokenizer, sharding.make_mesh(config.mesh), trace)
    # Every host makes only the rows of a batch that its own devices hold.
    host_rows = functools.cache(functools.partial(sharding.process_rows, program.mesh))
    rows = host_rows(config.training.batch_size)
    start = workloads.start_token(config, corpus.tokenizer)
    batches = pipeline.batches(corpus, config.data, config.batch_sizes, config.seed, start)
    init_key, dropout_key = build.random_keys(config.seed)
    most = config.data.validation_rows

    def read_progress(stored: dict[str, Any]) -> Progress:
        check_settings(stored, config, workdir)
        return dataclasses.replace(Progress.from_json(stored), settings=schema.to_dict(config))

    # Called only if there is no checkpoint, so a resumed run does not need the run that its weights came from.
    def create() -> TrainState:
        initial = _initial_params(config, workdir, corpus.tokenizer, program)
        return with_params(program.create(init_key), initial, program.shardings)

    def held_out() -> Iterator[HostBatch]:
        return pipeline.validation_batches(corpus, config.data, config.training.batch_size, rows, start, most)

    def losses_at_the_start() -> dict[str, Any]:
        if is_begun(workdir):
            raise ValueError(
                f"{workdir / alpha.ALPHA} is missing, which has the alpha that guidance.alpha_rule=auto chose for this "
                "run: copy it back"
            )
        first_batch = functools.partial(batches.iterate, 0, 1, rows=host_rows)
        return metrics_evaluator(program, Hyperparameters(), first_batch)(create().params, 0, lambda: None)

    objective = program.make_objective(Hyperparameters())
    primary = objective.primary_metric
    if primary == MLM:
        _check_validation(config, corpus)
    coefficient = float(objective.coefficients(jnp.int32(0))[primary.term])
    hyperparameters = alpha.begin(config, workdir, primary.metric, coefficient, losses_at_the_start)
    evaluator = metrics_evaluator(program, hyperparameters, held_out)

    criterion = Criterion.of_objective(config.training.best_metric or primary.metric)
    _check_best_metric(config, program)
    # The evaluations of the run that a branch goes on from do not count for the patience of the branch.
    branched_at = branch.source(config)[1] if config.training.branch_from else 0
    stop = functools.partial(criterion.is_over, patience=config.training.patience, after=branched_at)

    def best_evaluation(history: list[Evaluation]) -> Evaluation | None:
        # A branch has no checkpoints of the evaluations before it began.
        return criterion.evaluation([evaluation for evaluation in history if evaluation.step > branched_at])

    def kept_step(history: list[Evaluation]) -> int | None:
        best = best_evaluation(history) if config.training.keep_best else None
        return None if best is None else best.step

    def describe(evaluation: Evaluation) -> str:
        return f"step {evaluation.step}: validation {primary.label} {evaluation.values[primary.metric]:.3f}"

    def finish(state: TrainState, progress: Progress, beat: Beat) -> dict[str, Any]:
        """Return the summary of the run, with its best evaluation and what ended it before its last step."""
        del beat
        result = summary.summarise(workdir, primary.metric, progress)
        training, history = config.training, progress.history
        if training.keep_best:  # of which the checkpoint is there; that of the last step may still be being saved
            saved = {*steps_in(workdir / "checkpoints"), int(state.step)}
            history = [evaluation for evaluation in history if evaluation.step in saved]
        if (best := best_evaluation(history)) is not None and (training.keep_best or training.patience):
            result["best"] = {"step": best.step, criterion.metric: best.values[criterion.metric]}
        if result["steps"] == training.steps:
            return result
        # A time limit adds an evaluation, which a run without one would not have, so that patience does not count it.
        every = training.evaluate_every or training.steps
        regular = [evaluation for evaluation in progress.history if evaluation.step % every == 0]
        by = "patience" if stop(regular) else "time_limit"
        return result | {by: getattr(training, by)}

    def pause(state: TrainState, progress: Progress, beat: Beat) -> dict[str, Any]:
        """Return the summary of a run that pauses, with an evaluation of its current parameters."""
        # Not a row of metrics.jsonl, nor in the progress: the run goes on as one that never paused.
        step = int(state.step)
        if not progress.is_evaluated(step):
            evaluation = Evaluation(step, None, 0.0, evaluator(state.params, step, beat))
            progress = dataclasses.replace(progress, history=[*progress.history, evaluation])
        return summary.summarise(workdir, primary.metric, progress)

    return Job(
        name=workdir.name,
        config=config.training,
        workdir=workdir,
        program=program,
        hyperparameters=hyperparameters,
        key=dropout_key,
        create=create,
        first=functools.partial(branch.checkpoint, config) if config.training.branch_from else no_checkpoint,
        learning_rate=learning_rate_schedule(config.optimizer, config.training.steps),
        batches=functools.partial(batches.iterate, rows=host_rows),
        evaluators=(evaluator,),
        describe=describe,
        finish=finish,
        stop=stop,
        best=kept_step,
        read_progress=read_progress,
        remedy=_remedy,
        wandb=lambda: _wandb_run(config, workdir, labels),
        saved_steps=saved_steps,
        # From host 0, so that all hosts keep the same checkpoints.
        kept_steps=tuple(hosts.from_first("the milestones", lambda: extension.kept_steps(config, workdir))),
        pause_at=pause_at,
        pause=pause,
        utilisation=_utilisation(config, corpus.tokenizer, program),
        evaluation_batches=pipeline.validation_batch_count(corpus, config.training.batch_size, most),
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


def evaluation_metrics(config: ExperimentConfig, program: Program) -> list[str]:
    """Return the names of the metrics of a run's evaluations that are one number, not one for each layer."""
    rows = pipeline.empty_batch(config.data, rows=config.training.batch_size)
    metrics = jax.eval_shape(
        program.evaluation_step, program.abstract.params, rows, jnp.zeros((), jnp.int32), Hyperparameters()
    )
    return sorted(name for name, (total, _) in metrics.items() if total.shape == ())


def _utilisation(
    config: ExperimentConfig, tokenizer: Tokenizer, program: Program
) -> Callable[[int, int, float], float | None] | None:
    """Return a function of (first step, last step + 1, seconds of these steps) that gives the model FLOPs utilisation.

    It is None if the peak of the devices is unknown. The peak is that of matrix products in bfloat16. As in `plan`,
    rows count with their full length, and with the share of predicted words of the last steps.
    """
    devices = program.mesh.devices.size
    chip = chips.of_kind(program.mesh.devices.flat[0].device_kind)
    if chip is None:
        return None
    device_flops = chip.per_device().flops
    predicted = config.data.masking.rate * config.data.sequence_length
    total = workloads.workload_of(config).flops(config, tokenizer, predicted).total
    sizes, of_row = config.batch_sizes, total / config.training.batch_size

    def utilisation(start: int, stop: int, seconds: float) -> float | None:
        return flops.mfu(of_row * (sizes.before(stop) - sizes.before(start)), seconds, devices, device_flops)

    return utilisation


def check_settings(progress: dict[str, Any], config: ExperimentConfig, workdir: epath.Path) -> None:
    """Raise ValueError, with the settings that differ, if `config.json` was changed since a checkpoint was saved.

    Parameters alone do not tell: most settings change no shape.

    progress: that of the checkpoint; of a branch's start, it is of another run.
    config: the config of the run.
    """
    may_differ = (*MAY_DIFFER, *MAY_CHANGE, *(branch.MAY_DIFFER if config.training.branch_from else ()))
    stored = progress.get("settings")  # None in a checkpoint that no pre-training wrote
    if stored and (different := pretraining_config.different_settings(stored, config, may_differ)):
        raise ValueError(
            f"{workdir / 'config.json'} has other settings than those with which the checkpoint was trained, so it was "
            "changed:\n" + "\n".join(different) + "\nPut back the original config.json"
        )


def _remedy(path: str) -> str:
    return (
        f"The last good checkpoint: {path}. Lower optimizer.learning_rate, lengthen optimizer.warmup_steps or set "
        "optimizer.clip_norm, and start in another workdir"
    )


def _wandb_run(config: ExperimentConfig, workdir: epath.Path, labels: Labels) -> WandbRun | None:
    if not config.training.wandb:
        return None
    labels = dataclasses.replace(labels, tags=(*labels.tags, f"seed{config.seed}"))
    return WandbRun(config.training.wandb, workdir, schema.to_dict(config), labels)


def versions() -> dict[str, str]:
    """Return the versions of ag_jax (a hash of its source files) and of JAX, which must be the same on all hosts."""
    sources = sorted(pathlib.Path(__file__).parents[1].rglob("*.py"))
    program = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    return {"the program (a hash of ag_jax)": program, "jax": jax.__version__}


def claim_workdir(config: ExperimentConfig, workdir: epath.Path) -> None:
    """Write `config.json` to a new run directory, or check that the directory holds a run of this config.

    The config of an attempt that left nothing worth keeping is replaced. Of a run that is resumed, other values of
    `AFTER_TRAINING` are written.

    Raises ValueError, with the settings that differ, if another config was run there, if the hosts have different ones,
    or if they do not share the directory.
    """
    settings = schema.flat(schema.to_dict(config))
    hosts.agree("their settings", {key: value for key, value in settings.items() if key != "data.cache_dir"})
    hosts.from_first("the run directory", lambda: _claim(config, workdir))
    check_shared(workdir)


def check_shared(workdir: epath.Path) -> None:
    """Raise ValueError, on every host, if the hosts do not share a directory, which host 0 creates if it is missing."""
    if hosts.count() == 1:
        return
    mark = workdir / "hosts.json"
    hosts.from_first("a mark in the run directory", lambda: _mark(mark))
    if blind := shared_files.wait_for(mark):
        raise ValueError(
            f"--workdir={workdir} is not the same directory on all hosts: host {', '.join(map(str, blind))} does "
            "not see what host 0 writes there. Give one that they share, such as gs://BUCKET/RUN or a network file "
            "system"
        )


def _mark(mark: epath.Path) -> None:
    mark.parent.mkdir(parents=True, exist_ok=True)
    storage.write_whole(mark, json.dumps({"hosts": hosts.count(), "started": time.time()}) + "\n")


def check_workdir(config: ExperimentConfig, workdir: epath.Path) -> int | None:
    """Return the stored `training.steps` of the run in `workdir`, which `config` must fit; None if none has begun.

    Raises ValueError, with the settings that differ, for a run of another config, and for a run without `config.json`.
    """
    path = workdir / "config.json"
    if not path.exists():
        if is_begun(workdir):
            raise ValueError(
                f"{workdir} holds a run without its settings, because {path} does not exist: copy this file, too, or "
                "choose another directory"
            )
        return None
    settings = pretraining_config.read_settings(path)
    if is_begun(workdir) or not settings.keys() <= schema.to_dict(config).keys():  # a file of another program
        return _check_resumable(settings, config, workdir)
    return None


def _claim(config: ExperimentConfig, workdir: epath.Path) -> None:
    path = workdir / "config.json"
    workdir.mkdir(parents=True, exist_ok=True)
    steps = check_workdir(config, workdir)
    if steps == config.training.steps:
        _write_new_values(config, workdir)
        return
    if steps is not None:
        extension.begin(steps, config, workdir)
    elif path.exists():
        _remove_attempt(workdir)
    storage.write_whole(path, json.dumps(schema.to_dict(config), indent=2) + "\n")


def _write_new_values(config: ExperimentConfig, workdir: epath.Path) -> None:
    """Update the settings that matter only after training in a resumed run's `config.json`, and print their names.

    `AFTER_TRAINING` lists them.
    """
    path = workdir / "config.json"
    stored = pretraining_config.read_settings(path)
    before, after = pretraining_config.both_settings(stored, config)
    changed = [key for key in after if schema.is_among(key, AFTER_TRAINING) and before[key] != after[key]]
    if not changed:
        return
    for key in changed:
        section, _, name = key.partition(".")
        stored.setdefault(section, {})[name] = after[key]
    storage.write_whole(path, json.dumps(stored, indent=2) + "\n")
    print(f"{path} has the new values of {', '.join(changed)}", file=sys.stderr, flush=True)


def _check_resumable(stored: dict[str, Any], config: ExperimentConfig, workdir: epath.Path) -> int:
    """Check that `config` may resume or extend the run in `workdir`, and return the run's stored `training.steps`.

    stored: the stored settings of the run.

    Raises ValueError, with the settings that differ, if `config` is for another run.
    """
    path = workdir / "config.json"
    before, after = pretraining_config.both_settings(stored, config)
    steps = before["training.steps"]
    with reading(path):
        is_longer = config.training.steps > steps
    extends = is_longer and extension.is_finished(steps, workdir)
    may_differ: tuple[str, ...] = (*MAY_DIFFER, "training.steps") if extends else MAY_DIFFER
    if not extends and any(settings["translation.average"] > 1 for settings in (before, after)):
        # This setting decides which checkpoints are averaged, so it may change only when a finished run is extended.
        may_differ = tuple(name for name in may_differ if name != "training.checkpoint_every")
    limits = [settings["data.validation_rows"] for settings in (before, after)]
    text = pretraining_corpus.read_summary(workdir) if limits[0] != limits[1] else None
    if text and len({once_count(text["validation rows"], most) for most in limits}) == 1:
        may_differ = (*may_differ, "data.validation_rows")  # with both limits, all held-out rows are read
    if different := pretraining_config.different_settings(stored, config, may_differ):
        raise ValueError(
            f"--workdir={workdir} holds a run of another config, by {path}:\n" + "\n".join(different) + "\n"
            "Use that config, or choose another directory. Only a finished run may be extended, by raising "
            "training.steps"
        )
    return steps


def is_begun(workdir: epath.Path) -> bool:
    """Return whether a run has begun: whether its directory holds a checkpoint, logged metrics or a summary."""
    if (workdir / SUMMARY).exists() or any(steps_in(workdir / name) for name in ("checkpoints", ASIDE)):
        return True
    return (workdir / "metrics.jsonl").exists() and bool(read_metrics(workdir))


def checkpoint_steps(workdir: epath.Path) -> list[int]:
    """Return the steps of the checkpoints of a run, ascending, without reading them."""
    return steps_in(workdir / "checkpoints")


def _remove_attempt(workdir: epath.Path) -> None:
    """Delete the files of a run that failed before its first metrics or checkpoint, so that no new run reads them."""
    described = (pretraining_corpus.SUMMARY, alpha.ALPHA, words.FILE, mask_trace.FILE, origins.FILE, origins.POOLER)
    for name in (*described, "metrics.jsonl"):
        (workdir / name).unlink(missing_ok=True)
    if (workdir / "checkpoints").exists():
        (workdir / "checkpoints").rmtree()


def train(
    config: ExperimentConfig, workdir: epath.PathLike, labels: Labels = Labels(), pause_at: int | None = None
) -> dict[str, Any]:
    """Train `config` in the run directory `workdir`, or resume the run there; write and return the run's summary.

    labels: group the run at Weights & Biases.
    pause_at: step after which the training pauses; the summary, up to this step, is then returned and not written. The
        next call goes on, and the run ends as one that never paused. A run that is past this step is not trained.

    Raises ValueError if a setting is not allowed, or if another process trains there.
    """
    schema.check(config)
    imported.allow(schema.flat(schema.to_dict(config)), even_stored=False)
    check_installed(config.training.wandb)
    workdir = storage.directory(workdir)
    if config.training.initial_weights and not is_begun(workdir):
        check_initial_weights(config)
    if config.training.branch_from and not is_begun(workdir):
        branch.check(config, MAY_DIFFER)
    # Only for their errors: a directory should not be claimed by a config that cannot be trained.
    if not (is_begun(workdir) or config.training.branch_from):  # both may have the trace in a run directory
        mask_trace.read(config.adversarial, config.model.layers)
    check_tests(config, workdir)
    with lock.hold(workdir):
        return _train(config, workdir, labels, pause_at)


def _train(config: ExperimentConfig, workdir: epath.Path, labels: Labels, pause_at: int | None) -> dict[str, Any]:
    config, in_words = words.resolve(config, workdir, is_begun)
    if config.training.branch_from and in_words is not None and not is_begun(workdir):
        branch.check_length(config, in_words.milestones)  # its number of steps is only known now
    claim_workdir(config, workdir)
    stored = hosts.from_first("the summary", lambda: read_summary(workdir))
    if stored and is_complete(stored, config):
        return stored
    if stored and not {"time_limit", "patience"} & stored.keys():  # which alone end a run before its last step
        raise ValueError(
            f"{workdir / SUMMARY}: expected a summary of {config.training.steps} steps, as in config.json, got "
            f"{stored['steps']}; one of the two files was changed. Delete the summary, and it is written anew from "
            "the last checkpoint"
        )
    begins_branch = config.training.branch_from and not hosts.from_first(
        "the checkpoints", lambda: bool(checkpoint_steps(workdir))
    )
    if begins_branch:
        hosts.from_first("the branch", lambda: branch.begin(config, workdir))
    corpus = pretraining_corpus.prepare(config, workdir)
    saved_steps = tuple(in_words.milestones.values()) if in_words else ()
    job = make_job(config, workdir, corpus, labels, pause_at, saved_steps)
    pretraining_corpus.record(config, workdir, corpus)
    mask_trace.record(config.adversarial, config.model.layers, workdir)
    if in_words is not None:
        words.record(in_words, workdir)
    implementation = build.choose_attention(config, job.program.mesh)
    # Every host chooses by testing the kernel on its own device. Hosts that ran different programs would wait for each
    # other forever.
    hosts.agree(
        "their implementation of attention (reference runs everywhere)", {"model.attention": implementation.name}
    )
    if hosts.is_first():
        print(f"attention: {implementation.name} ({implementation.reason})", file=sys.stderr, flush=True)
    if stored and hosts.is_first():
        (workdir / SUMMARY).unlink()  # of a run that ended at a shorter time limit and goes on
    result = loop.Loop(job).run()
    if hosts.is_first() and is_complete(result, config):
        storage.write_whole(workdir / SUMMARY, json.dumps(result, indent=2) + "\n")
    return result


def is_complete(result: dict[str, Any], config: ExperimentConfig) -> bool:
    """Return whether a run's summary shows that it did all its steps, or that its time limit or patience ended it.

    result: the summary.
    """
    steps, limit = config.training.steps, config.training.time_limit
    if result["steps"] == steps:
        return True
    if "patience" in result:
        return config.training.patience is not None and config.training.patience <= result["patience"]
    return "time_limit" in result and limit is not None and limit <= result["time_limit"]


def milestone_step(config: ExperimentConfig, workdir: epath.PathLike, fraction: float) -> int:
    """Return the step of a finished run's checkpoint at a fraction of training, or its last step if it ended before.

    If there is no checkpoint of the last milestone, because the run was trained with others, it is the step of the last
    checkpoint.

    fraction: one of `training.milestones`.
    """
    workdir = storage.directory(workdir)
    result = read_summary(workdir)
    step = min(round(fraction * config.training.steps), result["steps"] if result else config.training.steps)
    saved = checkpoint_steps(workdir)
    is_lost = saved and step not in saved and fraction == max(config.training.milestones)
    return saved[-1] if is_lost else step


def milestone_steps(config: ExperimentConfig, workdir: epath.PathLike) -> dict[float, int]:
    """Return {fraction: step} of the `training.milestones` of a finished run that have a checkpoint, in their order.

    Checkpoints are missing if the run was trained with other milestones.
    """
    saved = steps_in(storage.directory(workdir) / "checkpoints")
    every = {fraction: milestone_step(config, workdir, fraction) for fraction in sorted(config.training.milestones)}
    return {fraction: step for fraction, step in every.items() if step in saved or fraction == max(every)}


def check_tests(config: ExperimentConfig, workdir: epath.Path) -> None:
    """Raise ValueError or FileNotFoundError, on every host, if the translation test sets of a config cannot be used.

    Those with which a run began are not checked again.
    """

    def check() -> None:
        data, path = config.data, workdir / "config.json"
        if is_begun(workdir):
            if not path.exists():  # an error of `check_workdir`
                return
            before, after = pretraining_config.both_settings(pretraining_config.read_settings(path), config)
            if before["translation.tests"] == after["translation.tests"]:
                return
            data = pretraining_corpus.with_own_tokenizer(data, workdir)
        pretraining_corpus.check_tests(dataclasses.replace(config, data=data))

    hosts.from_first("the test sets", check)


def check_initial_weights(config: ExperimentConfig) -> None:
    """Raise ValueError, with the settings that differ, if `training.initial_weights` names a run with another model.

    Of runs that translate, the decoders are compared, too. Prints the bases of rotary positions if they differ.
    """
    source = storage.directory(config.training.initial_weights)
    runs = read_config(source), config
    sections = ("model", "decoder") if all(one.translates for one in runs) else ("model",)
    settings = (schema.to_dict(one) for one in runs)
    before, after = (schema.flat({section: of[section] for section in sections}) for of in settings)
    if None in (before["model.vocabulary_size"], after["model.vocabulary_size"]):  # that of a tokenizer not loaded yet
        before["model.vocabulary_size"] = after["model.vocabulary_size"]
    different = {
        key: f"  {key}: there {before[key]!r}, here {after[key]!r}"
        for key in after
        if before[key] != after[key] and key.removeprefix("model.") not in MODEL_MAY_DIFFER
    }
    changed = [different.pop(key) for name in MODEL_MAY_CHANGE if (key := f"model.{name}") in different]
    if different:
        raise ValueError(
            f"training.initial_weights={source} is a run of another encoder:\n" + "\n".join(different.values()) + "\n"
            f"Set these settings as in that run (configs/continue_pretraining.py:run={source} does this)"
        )
    if changed:
        hosts.tell(f"going on from {source} with other settings of the encoder:\n" + "\n".join(changed))


def _initial_params(
    config: ExperimentConfig, workdir: epath.Path, tokenizer: Tokenizer, program: Program
) -> dict[str, Any]:
    """Return the parameters from `training.initial_weights`; print which parts (`word_head`, ...) are new or dropped.

    A part is a top-level key of the parameters; those that both runs have are taken. The origin of the weights is
    copied to this run. A new head for sentence pairs takes over the pooler of a BERT.

    Raises ValueError for another tokenizer, and if a part that both runs have differs in its parameters or shapes.
    """
    if not config.training.initial_weights:
        return {}
    opened = open_run(storage.directory(config.training.initial_weights))
    if opened.tokenizer.fingerprint() != tokenizer.fingerprint():
        raise ValueError(
            f"the weights of {opened.workdir} go with another tokenizer: set "
            f"--config.data.tokenizer.path={opened.workdir}/tokenizer"
        )
    expected = program.abstract.params
    shared = [name for name in opened.params if name in expected]  # heads of only one of the runs are no error
    stored_shapes, expected_shapes = (
        build.shapes_of({name: tree[name] for name in shared}) for tree in (opened.params, expected)
    )
    if different := _differences(stored_shapes, expected_shapes):
        raise ValueError(
            f"the weights of {opened.workdir} do not fit this run:\n" + "\n".join(different) + "\n"
            f"Set these parts of the model as in {opened.workdir / 'config.json'}, or choose other weights"
        )
    params = {name: jax.device_get(opened.params[name]) for name in shared}
    new = sorted(expected.keys() - set(shared))
    if opened.pooler and "next_head" in new:
        params["next_head"] = {"pooler": jax.device_get(opened.pooler)}
    if hosts.is_first():
        untrained = sorted({*new, *opened.untrained} & expected.keys())
        origin = dataclasses.replace(opened.origin, new=tuple(untrained))
        origins.write(workdir, origin, {} if "next_head" in shared else opened.pooler)
        dropped = sorted(opened.params.keys() - set(shared))
        notes = [f"{what}: {', '.join(which)}" for what, which in (("new", new), ("dropped", dropped)) if which]
        print("; ".join([f"starting from step {opened.step} of {opened.workdir}", *notes]), file=sys.stderr, flush=True)
    return params


def write(config: ExperimentConfig, workdir: epath.PathLike, tokenizer: Tokenizer, params: Any) -> None:
    """Write a run directory of `config` at step 0, with the given parameters and a new optimizer state.

    `train` resumes from this checkpoint.
    """
    workdir = storage.directory(workdir)
    claim_workdir(config, workdir)
    tokenizer.save(workdir / "tokenizer")
    optimizer = build.optimizer_of(config, Hyperparameters())
    params = jax.tree.map(jnp.asarray, params)
    checkpoints = Checkpoints(workdir / "checkpoints")
    checkpoints.save(create_state(params, optimizer), Progress(settings=schema.to_dict(config)).to_json())
    checkpoints.close()


def read_config(workdir: epath.PathLike) -> ExperimentConfig:
    """Read the config of a run directory. Raises FileNotFoundError if there is none, ValueError if it is damaged."""
    return pretraining_config.read(storage.directory(workdir) / "config.json")


def read_summary(workdir: epath.PathLike) -> dict[str, Any] | None:
    """Read the summary of a finished run; None for an unfinished one. Raises ValueError if the file is damaged."""
    path = epath.Path(workdir) / SUMMARY
    if not path.exists():
        return None
    losses = dict.fromkeys(("train_loss", "validation_loss", "average_train_loss"), float)
    return read_json(path, fields=losses | {"steps": int})


def evaluate(workdir: epath.PathLike, step: int | None = None, trust_code: bool = False) -> dict[str, Any]:
    """Return the metrics of a run's checkpoint on all held-out text, with a description of the text (`evaluated_on`).

    step: step of the checkpoint, the newest by default.
    trust_code: whether custom patterns that the run's `config.json` names may be imported, which executes their
        modules. Otherwise the metrics of guidance are left out, which the model's own loss does not need.

    Raises ValueError if the model is evaluated with a custom pattern that may not be imported (`guidance.mode=bias`).
    """
    workdir = storage.directory(workdir)
    config = read_config(workdir)
    checkpoints = Checkpoints(workdir / "checkpoints", read_only=True)
    step = hosts.from_first(
        "the checkpoint's step", functools.partial(_existing_step, step, checkpoints.steps(), workdir)
    )
    check_settings(checkpoints.restore_progress(step), config, workdir)
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
    job = make_job(config, workdir, corpus)
    state = checkpoints.restore(step, job.program.abstract).state
    checkpoints.close()
    untrained = origins.read(workdir, config.model.width)[0].untrained(step)
    if untrained and hosts.is_first():
        names = ", ".join(untrained)
        print(f"warning: {names} of {workdir} was never trained, so its loss says nothing", file=sys.stderr)
    (evaluator,) = job.evaluators
    validating = ValidationProgress(job.evaluation_batches, hosts.tell)
    return {"step": step, **evaluator(state.params, step, validating.count), "evaluated_on": evaluated_on}


@dataclasses.dataclass(frozen=True)
class OpenRun:
    """The model of a run at a checkpoint, to be used as `model.apply({"params": params}, batch, ...)`.

    workdir: the run directory.
    config: the config of the run.
    tokenizer: the run's tokenizer.
    model: the model, with the reference implementation of attention.
    params: the parameters of the model.
    adversary_params: the parameters of the adversary that the model was trained against, if there was one.
    step: the step of the checkpoint.
    steps: the steps of all checkpoints of the run.
    origin: the imported model that the weights started from.
    pooler: BERT's pooler, from the head for sentence pairs, or else from the imported model; empty if there is none.
    """

    workdir: epath.Path
    config: ExperimentConfig
    tokenizer: Tokenizer
    model: workloads.Model
    params: Any
    adversary_params: dict[str, Any]
    step: int
    steps: tuple[int, ...]
    origin: Origin
    pooler: Pooler

    __repr__ = one_line

    @property
    def untrained(self) -> tuple[str, ...]:
        """Names of the parts of the model that the imported checkpoint lacked and that no training has changed since.

        Their parameters still have random initial values.
        """
        return self.origin.untrained(self.step)

    @property
    def length(self) -> int:
        """The length in tokens of the longest text that the encoder was trained on.

        An imported model was trained on all of its positions, however short the run's own sequences are.
        """
        return self.model.config.max_length if self.origin.model_type else self.config.data.sequence_length

    @property
    def assignment(self) -> Assignment:
        """The heads of the encoder that guidance pulls towards patterns; none for a run without guidance."""
        return build.assignment(self.config)

    @property
    def attacker(self) -> LearntMasks | None:
        """The adversary that the model was trained against, None without one.

        It is applied to `params | adversary_params`.
        """
        return adversarial.learnt(self.config.adversarial, self.model.config)


def open_run(workdir: epath.PathLike, step: int | None = None) -> OpenRun:
    """Open the model of a run directory at a checkpoint, with its parameters and tokenizer.

    step: step of the checkpoint, the newest by default.

    Raises FileNotFoundError or ValueError if there is no such checkpoint, or if it does not fit the config.
    """
    workdir = storage.directory(workdir)
    config = read_config(workdir)
    tokenizer = tokenizers.load(workdir / "tokenizer")
    model = workloads.reference_model(config, tokenizer)
    checkpoints = Checkpoints(workdir / "checkpoints", read_only=True)
    steps = checkpoints.steps()
    step = _existing_step(step, steps, workdir)
    check_settings(checkpoints.restore_progress(step), config, workdir)
    params, adversary_params = split_params(checkpoints.restore_params(step))
    checkpoints.close()
    _check_fits(params, build.parameter_shapes(config, tokenizer), workdir)
    origin, pooler = origins.read(workdir, model.config.width)
    if "next_head" in params and "next_head" not in origin.untrained(step):
        pooler = params["next_head"]["pooler"]
    _warn_of_bias(config, workdir, step)
    tokenizer = tokenizer.with_second_type(origin.second_type)
    return OpenRun(workdir, config, tokenizer, model, params, adversary_params, step, tuple(steps), origin, pooler)


def bias_at(config: ExperimentConfig, step: int) -> float:
    """Return the factor of the patterns that guidance adds to attention scores at a step; 0 unless its mode is bias."""
    if config.guidance.mode != "bias":
        return 0.0
    return float(guidance.coefficient_schedule(config.guidance, config.training.steps)(jnp.int32(step)))


def _warn_of_bias(config: ExperimentConfig, workdir: epath.Path, step: int) -> None:
    """Warn if guidance added patterns to attention scores at `step`, because the opened model does not add them."""
    if (alpha_then := bias_at(config, step)) > 0:
        warn_once(
            f"{workdir} was trained with guidance.mode=bias, and at step {step:,} {alpha_then:g} times the pattern was "
            "added to the scores of guided heads. Here nothing is added, so these heads attend differently than in "
            "training. A schedule that ends at 0, such as guidance.schedule=linear, avoids this at the last step"
        )


def _check_fits(params: Any, expected: dict[str, tuple[int, ...]], workdir: epath.Path) -> None:
    """Raise ValueError if a checkpoint's parameters have other names or shapes than the model of `config.json`."""
    if different := _differences(build.shapes_of(params), expected):
        raise ValueError(
            f"{workdir / 'config.json'} describes another model than the checkpoints beside it hold, so one of them "
            "was changed:\n" + "\n".join(different) + "\nRestore the original config.json, or the original checkpoints"
        )


def _differences(stored: dict[str, tuple[int, ...]], expected: dict[str, tuple[int, ...]]) -> list[str]:
    """Return a message line for each parameter that only one of two models has, or whose shapes differ.

    stored: {path: shape} of a checkpoint.
    expected: {path: shape} as the config describes them.
    """
    return [
        f"  {path}: in the checkpoint {stored.get(path, 'none')}, in the config {expected.get(path, 'none')}"
        for path in sorted(stored | expected)
        if stored.get(path) != expected.get(path)
    ]


def tokens_seen(workdir: epath.Path, step: int) -> int | None:
    """Return the number of tokens that a run had seen after a step; None if its `metrics.jsonl` does not say."""
    if step == 0:
        return 0
    if not (workdir / "metrics.jsonl").exists():
        return None
    seen = [row["tokens_seen"] for row in read_metrics(workdir) if row["step"] == step and "tokens_seen" in row]
    return seen[-1] if seen else None


def best_step(workdir: epath.PathLike) -> int:
    """Return the step of a run's best checkpoint by `training.best_metric`, among checkpoints with an evaluation.

    Raises FileNotFoundError if no checkpoint of the run was evaluated.
    """
    workdir = storage.directory(workdir)
    config = read_config(workdir)
    metric = config.training.best_metric or workloads.workload_of(config).primary_metric.metric
    steps = steps_in(workdir / "checkpoints")
    rows = [row for row in saved_metrics(workdir) if row["split"] == "validation" and row["step"] in steps]
    index = Criterion.of_objective(metric).index(row.get(metric) for row in rows)
    if index is None:
        raise FileNotFoundError(
            f"{workdir} has no checkpoint with an evaluation: expected a row of validation in metrics.jsonl for one of "
            f"the steps {', '.join(map(str, steps)) or '(none)'}; give the number of a step, or leave it out"
        )
    return rows[index]["step"]


def _existing_step(step: int | None, steps: list[int], workdir: epath.Path) -> int:
    if not steps:
        raise FileNotFoundError(f"{workdir} has no checkpoint yet: wait for the first, or train longer")
    result = steps[-1] if step is None else step
    if result not in steps:
        raise ValueError(f"{workdir} has no checkpoint of step {result}; it has {', '.join(map(str, steps))}")
    return result
