"""Trained models of pre-training: open the model of a run directory at a checkpoint."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from etils import epath

from ag_jax.attention import guidance
from ag_jax.attention.adversary import split_params
from ag_jax.attention.assignment import Assignment
from ag_jax.data import tokenizers
from ag_jax.data.records.files import warn_once
from ag_jax.data.tokenizers import Tokenizer
from ag_jax.distributed import storage
from ag_jax.models.one_line import one_line
from ag_jax.objectives.adversarial import wrap as adversarial
from ag_jax.objectives.adversarial.self_attention import LearntMasks
from ag_jax.pretraining import build, run_directory, workloads
from ag_jax.pretraining import origin as origins
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.pretraining.origin import Origin, Pooler
from ag_jax.training.checkpoint import Checkpoints


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
    config = run_directory.read_config(workdir)
    tokenizer = tokenizers.load(workdir / "tokenizer")
    model = workloads.reference_model(config, tokenizer)
    checkpoints = Checkpoints(workdir / "checkpoints", read_only=True)
    steps = checkpoints.steps()
    step = run_directory.existing_step(step, steps, workdir)
    run_directory.check_settings(checkpoints.restore_progress(step).get("settings"), config, workdir)
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
    if different := build.differences(build.shapes_of(params), expected):
        raise ValueError(
            f"{workdir / 'config.json'} describes another model than the checkpoints beside it hold, so one of them "
            "was changed:\n" + "\n".join(different) + "\nRestore the original config.json, or the original checkpoints"
        )
