"""Runs and their directories: from a checked config to a `Job` for the loop, and from a directory back to a model.

A run directory holds `config.json`, `tokenizer/`, `metrics.jsonl`, `tensorboard/`, `checkpoints/`, `figures/` and, when
the run is done, `summary.json`.
"""

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import optax
from etils import epath
from jax.sharding import Mesh

from ag_jax import experiment
from ag_jax.attention import guidance
from ag_jax.attention.fused import choice, reference
from ag_jax.attention.fused.contract import Attend
from ag_jax.attention.patterns import SpecialTokens
from ag_jax.data import batching, pipeline, tokenizers
from ag_jax.data.tokenizers import Tokenizer
from ag_jax.experiment import ExperimentConfig
from ag_jax.models.config import EncoderConfig
from ag_jax.models.pretraining import PretrainingModel
from ag_jax.objectives.guided import Guided
from ag_jax.objectives.losses import Objective
from ag_jax.objectives.pretraining import Pretraining
from ag_jax.training import loop, sharding
from ag_jax.training.checkpoint import Checkpoints
from ag_jax.training.optimizer import learning_rate_schedule, make_optimizer

# Settings that change neither what is learnt nor the rows of metrics.jsonl: a run may be resumed with others.
MAY_DIFFER = (
    "data.cache_dir",
    "mesh.",
    "model.attention",
    "model.remat",
    "title",
    "training.checkpoint_every",
    "training.keep_",
    "training.milestones",
    "training.tensorboard",
    "training.wandb",
    "comparison.",
    "inspection.",
)


class Vocabulary(Protocol):
    """What a model needs to know of a tokenizer."""

    vocabulary_size: int
    delimiter_ids: Sequence[int]
    period_ids: Sequence[int]


def model_config(config: ExperimentConfig, vocabulary: Vocabulary) -> EncoderConfig:
    """The encoder's config with the vocabulary filled in. Raises ValueError if it is smaller than the tokenizer's."""
    size = config.model.vocabulary_size or vocabulary.vocabulary_size
    if size < vocabulary.vocabulary_size:
        raise ValueError(
            f"model.vocabulary_size={size} is smaller than the tokenizer's {vocabulary.vocabulary_size} tokens; "
            "set it to 0 to take the tokenizer's"
        )
    return dataclasses.replace(config.model, vocabulary_size=size)


def make_model(
    config: ExperimentConfig, vocabulary: Vocabulary, attend: Attend = reference.attend
) -> PretrainingModel:
    """The model of a run; `attend` is the implementation of its attention."""
    return PretrainingModel(model_config(config, vocabulary), config.next_sentence, attend)


def choose_attention(config: ExperimentConfig, mesh: Mesh) -> choice.Choice:
    """The implementation of attention that `model.attention` stands for on the devices of `mesh`."""
    return choice.choose(
        config.model.attention,
        mesh,
        head_width=config.model.width // config.model.heads,
        length=config.data.sequence_length,
        after_dropout=config.guidance.mode != "none" and config.guidance.probabilities == "after_dropout",
        rows=sharding.ROWS,
        heads=sharding.RULES["heads"],
    )


def special_tokens(vocabulary: Vocabulary) -> SpecialTokens:
    """What patterns look for, in this tokenizer's ids."""
    return SpecialTokens(tuple(vocabulary.delimiter_ids), tuple(vocabulary.period_ids))


def assignment(config: ExperimentConfig) -> tuple[tuple[str, int], ...]:
    """Patterns with their number of heads, from head 0 on; empty for a run without guidance."""
    return guidance.assign_heads(config.guidance, config.model.heads)


def make_objective(
    config: ExperimentConfig, vocabulary: Vocabulary, attend: Attend = reference.attend
) -> Objective:
    """Pre-training, guided if the config says so."""
    objective = Pretraining(make_model(config, vocabulary, attend))
    if config.guidance.mode == "none":
        return objective
    return Guided(
        inner=objective,
        config=config.guidance,
        assignment=assignment(config),
        heads=config.model.heads,
        special=special_tokens(vocabulary),
        alpha=guidance.coefficient_schedule(config.guidance, config.training.steps),
    )


@dataclasses.dataclass(frozen=True)
class Learner:
    """What a step of training needs apart from its batch; the fields are those of `loop.Job`."""

    objective: Objective
    optimizer: optax.GradientTransformation
    learning_rate: Callable[[int], float]
    init: Callable[[], Any]
    key: jax.Array
    mesh: Mesh


def make_learner(config: ExperimentConfig, vocabulary: Vocabulary, mesh: Mesh) -> Learner:
    """Model, objective and optimizer of a run on the devices of `mesh`, which may be some to compile for alone."""
    rows, parts = config.training.batch_size // config.training.microbatches, mesh.shape["data"] * mesh.shape["fsdp"]
    if rows % parts:
        raise ValueError(
            f"{rows} rows of a microbatch cannot be split over mesh.data * mesh.fsdp = {parts} devices: choose a multiple"
        )
    model = make_model(config, vocabulary)
    example = batching.empty_batch(config.data, rows=1)
    init_key, dropout_key = jax.random.split(jax.random.key(config.seed))
    return Learner(
        objective=make_objective(config, vocabulary, choose_attention(config, mesh).attend),
        optimizer=make_optimizer(config.optimizer, config.training.steps),
        learning_rate=learning_rate_schedule(config.optimizer, config.training.steps),
        init=lambda: model.init(init_key, example, deterministic=True)["params"],
        key=dropout_key,
        mesh=mesh,
    )


def make_job(config: ExperimentConfig, workdir: epath.Path, corpus: pipeline.Corpus) -> loop.Job:
    """Everything that the loop needs to train `config` in `workdir`."""
    learner = make_learner(config, corpus.tokenizer, sharding.make_mesh(config.mesh))
    batches = pipeline.Batches(corpus.train, corpus.tokenizer, config.data, config.training.batch_size, config.seed)
    return loop.Job(
        name=workdir.name,
        config=config.training,
        workdir=workdir,
        batches=batches.iterate,
        validation=lambda: pipeline.validation_batches(corpus, config.data, config.training.batch_size),
        **vars(learner),
    )


def claim_workdir(config: ExperimentConfig, workdir: epath.Path) -> None:
    """Make the directory this config's: write `config.json`, or check that it is the same run's.

    Raises ValueError, with the settings that differ, if another config was run there.
    """
    try:
        workdir.mkdir(parents=True, exist_ok=True)
    except (OSError, FileExistsError) as error:
        raise ValueError(f"cannot write to --workdir={workdir}: {error}. Choose a directory that can be written") from error
    path, ours = workdir / "config.json", experiment.to_dict(config)
    if path.exists():
        theirs, ours_flat = experiment.flat(json.loads(path.read_text())), experiment.flat(ours)
        different = [
            f"  {key}: there {theirs.get(key)!r}, now {ours_flat.get(key)!r}"
            for key in sorted(theirs | ours_flat)
            if theirs.get(key) != ours_flat.get(key) and not key.startswith(MAY_DIFFER)
        ]
        if different:
            raise ValueError(
                f"--workdir={workdir} holds a run of another config:\n" + "\n".join(different) + "\n"
                "Go on with that config, or choose another directory"
            )
        return
    try:
        partial = workdir / "config.json.partial"
        partial.write_text(json.dumps(ours, indent=2) + "\n")
        partial.replace(path)
    except OSError as error:
        raise ValueError(f"cannot write to --workdir={workdir}: {error}. Choose a directory that can be written") from error


def train(config: ExperimentConfig, workdir: epath.Path) -> dict[str, Any]:
    """Run, or go on with, the training of `config` in `workdir`; returns and writes the summary."""
    claim_workdir(config, workdir)
    summary_path = workdir / "summary.json"
    if summary_path.exists():
        return json.loads(summary_path.read_text())
    corpus = pipeline.prepare(config.data)
    corpus.tokenizer.save(workdir / "tokenizer")
    job = make_job(config, workdir, corpus)
    chosen = choose_attention(config, job.mesh)
    print(f"attention: {chosen.name} ({chosen.reason})", file=sys.stderr, flush=True)
    summary = loop.Loop(job).run()
    partial = workdir / "summary.json.partial"
    partial.write_text(json.dumps(summary, indent=2) + "\n")
    partial.replace(summary_path)
    return summary


def read_config(workdir: epath.Path) -> ExperimentConfig:
    """The config of a run directory."""
    path = workdir / "config.json"
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist: --workdir must be the directory of a run, made by `ag-jax train`")
    return experiment.parse(json.loads(path.read_text()))


def evaluate(workdir: epath.Path, step: int | None = None) -> dict[str, Any]:
    """Metrics of a run's checkpoint (the newest by default) on its held-out text."""
    config = read_config(workdir)
    corpus = pipeline.prepare(config.data)
    job = make_job(config, workdir, corpus)
    opened = open_run(workdir, step)
    shardings = loop.job_shardings(job)
    evaluation_step = loop.compile_evaluation_step(job.objective, job.mesh, shardings)
    params = jax.device_put(opened.params, shardings.params)
    return {"step": opened.step, **loop.evaluate(job, params, opened.step, evaluation_step)}


@dataclasses.dataclass(frozen=True)
class OpenRun:
    """A trained model, ready to be looked at: `model.apply({"params": params}, batch, ...)`."""

    workdir: epath.Path
    config: ExperimentConfig
    tokenizer: Tokenizer
    model: PretrainingModel
    params: Any
    step: int
    steps: tuple[int, ...]

    @property
    def assignment(self) -> tuple[tuple[str, int], ...]:
        """Patterns with their number of heads, from head 0 on; empty for a run without guidance."""
        return assignment(self.config)


def open_run(workdir: epath.Path | str, step: int | None = None) -> OpenRun:
    """The model of a run directory at a checkpoint's step, the newest by default."""
    workdir = epath.Path(workdir)
    config = read_config(workdir)
    tokenizer = tokenizers.load(workdir / "tokenizer")
    model = make_model(config, tokenizer)
    checkpoints = Checkpoints(workdir / "checkpoints", read_only=True)
    steps = checkpoints.steps()
    if not steps:
        raise FileNotFoundError(f"{workdir} has no checkpoint yet: wait for the first, or train longer")
    step = steps[-1] if step is None else step
    if step not in steps:
        raise ValueError(f"{workdir} has no checkpoint of step {step}; it has {', '.join(map(str, steps))}")
    params = checkpoints.restore_params(step)
    checkpoints.close()
    return OpenRun(workdir, config, tokenizer, model, params, step, tuple(steps))
