"""Model, objective and optimizer of a pre-training run, compiled for a mesh of devices.

The devices need not exist: `ag-jax plan` compiles the same program ahead of time.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Protocol

import flax.linen as nn
import jax
import optax
from jax.sharding import Mesh

from ag_jax.attention import guidance
from ag_jax.attention.kernels import dispatch, reference
from ag_jax.attention.kernels.interface import Attend
from ag_jax.attention.patterns import SpecialTokens
from ag_jax.data.text import batching
from ag_jax.models.config import EncoderConfig
from ag_jax.models.masked_lm import PretrainingModel
from ag_jax.models.replaced_tokens import ReplacedTokensModel
from ag_jax.objectives.adversarial import wrap as adversarial
from ag_jax.objectives.adversarial.config import AdversarialConfig
from ag_jax.objectives.base import Objective, PrimaryMetric
from ag_jax.objectives.guided import Guided
from ag_jax.objectives.masked_lm import Pretraining
from ag_jax.objectives.replaced_tokens import ReplacedTokens
from ag_jax.objectives.sentences import Sentences
from ag_jax.pretraining import mask_trace
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.training import program, sharding
from ag_jax.training.optimizer import AdversaryOptimizer, OptimizerConfig, make_optimizer
from ag_jax.training.program import Program


class Vocabulary(Protocol):
    """What a model needs to know of a tokenizer."""

    vocabulary_size: int
    delimiter_ids: Sequence[int]
    period_ids: Sequence[int]


@dataclasses.dataclass(frozen=True)
class VocabularyInfo:
    """A `Vocabulary` without a tokenizer: for plans of runs whose tokenizer is not trained yet, and as a cache key.

    The defaults are the special ids of a tokenizer that a run trains.
    """

    vocabulary_size: int
    delimiter_ids: tuple[int, ...] = (0, 2)
    period_ids: tuple[int, ...] = (5, 6)


def model_config(config: ExperimentConfig, vocabulary: Vocabulary) -> EncoderConfig:
    """The encoder's config with the vocabulary filled in. Raises ValueError if it is smaller than the tokenizer's."""
    size = config.model.vocabulary_size or vocabulary.vocabulary_size
    if size < vocabulary.vocabulary_size:
        raise ValueError(
            f"model.vocabulary_size={size} is smaller than the tokenizer's {vocabulary.vocabulary_size} tokens; "
            "set it to none to take the tokenizer's"
        )
    return dataclasses.replace(config.model, vocabulary_size=size)


def generator_config(config: ExperimentConfig, vocabulary: Vocabulary) -> EncoderConfig | None:
    """The same for the generator of replaced tokens, if a run has one."""
    if config.generator is None:
        return None
    return dataclasses.replace(config.generator, vocabulary_size=model_config(config, vocabulary).vocabulary_size)


def make_model(
    config: ExperimentConfig,
    vocabulary: Vocabulary,
    attend: Attend = reference.attend,
    generator_attend: Attend = reference.attend,
) -> PretrainingModel | ReplacedTokensModel:
    """The model of a run; `attend` is the implementation of its attention, `generator_attend` that of its generator's."""
    encoder = model_config(config, vocabulary)
    if config.detects_replaced_tokens:
        return ReplacedTokensModel(encoder, generator_config(config, vocabulary), attend, generator_attend)
    return PretrainingModel(encoder, config.next_sentence, attend)


def choose_attention(config: ExperimentConfig, mesh: Mesh, encoder: EncoderConfig | None = None) -> dispatch.Choice:
    """The implementation of attention that `model.attention` stands for on the devices of `mesh`.

    encoder: the model's by default; another one, which is not guided, such as the generator's.
    """
    shape = encoder or config.model
    guided = encoder is None and config.guidance.mode != "none"
    return dispatch.choose(
        config.model.attention,
        mesh,
        head_width=shape.width // shape.heads,
        length=config.data.sequence_length,
        after_dropout=guided and config.guidance.probabilities == "after_dropout",
        rows=sharding.ROWS,
        heads=sharding.RULES["heads"],
    )


def special_tokens(vocabulary: Vocabulary) -> SpecialTokens:
    """What patterns look for, in this tokenizer's ids."""
    return SpecialTokens(tuple(vocabulary.delimiter_ids), tuple(vocabulary.period_ids))


def assignment(config: ExperimentConfig) -> tuple[tuple[str, int], ...]:
    """Patterns with their number of heads, from head 0 on; empty for a run without guidance."""
    return guidance.assign_heads(config.guidance, config.model.heads)


def headline(config: ExperimentConfig) -> PrimaryMetric:
    """The loss that the runs of a config are summed up by: that of their objective, without making it."""
    return (ReplacedTokens if config.detects_replaced_tokens else Pretraining).primary_metric


def make_objective(
    config: ExperimentConfig,
    vocabulary: Vocabulary,
    attend: Attend = reference.attend,
    generator_attend: Attend = reference.attend,
) -> Objective:
    """Pre-training on masked words or replaced tokens, guided and attacked if the config says so."""
    model = make_model(config, vocabulary, attend, generator_attend)
    slots = batching.empty_batch(config.data, rows=1)["masked_positions"].shape[1]
    sentences = Sentences(config.adversarial.sentence, slots if config.data.pack else 1)
    if config.detects_replaced_tokens:
        ignored = tuple(vocabulary.delimiter_ids) if config.replaced_tokens.tokens == "words" else ()
        objective = ReplacedTokens(model, config.replaced_tokens.coefficient, ignored, sentences)
    else:
        objective = Pretraining(model, sentences)
    special, steps = special_tokens(vocabulary), config.training.steps
    if config.guidance.mode != "none":
        objective = Guided(
            inner=objective,
            config=config.guidance,
            assignment=assignment(config),
            heads=config.model.heads,
            special=special,
            alpha=guidance.coefficient_schedule(config.guidance, steps),
        )
    trace = mask_trace.read(config.adversarial, model.config.layers)
    return adversarial.wrap(objective, config.adversarial, adversarial.Setting(model.config, special, steps, trace))


def adversary_optimizer(config: AdversarialConfig, model: OptimizerConfig) -> AdversaryOptimizer | None:
    """The optimizer of an adversary: the model's, with settings of its own; None if nothing but the model learns."""
    if config.method != "asa":
        return None
    asa = config.asa
    own = dataclasses.replace(
        model,
        learning_rate=asa.learning_rate or model.learning_rate,
        weight_decay=model.weight_decay if asa.weight_decay is None else asa.weight_decay,
        clip_norm=asa.clip_norm,
    )
    return AdversaryOptimizer(own, asa.delay_steps)


def optimizer_of(config: ExperimentConfig) -> optax.GradientTransformation:
    """The optimizer of a run."""
    adversary = adversary_optimizer(config.adversarial, config.optimizer)
    return make_optimizer(config.optimizer, config.training.steps, adversary)


def make_program(config: ExperimentConfig, vocabulary: Vocabulary, mesh: Mesh) -> Program:
    """Return the program of a run on the devices of `mesh`.

    Raises ValueError if the devices do not divide the rows of a microbatch.
    """
    rows, parts = config.training.batch_size // config.training.microbatches, mesh.shape["data"] * mesh.shape["fsdp"]
    if rows % parts:
        raise ValueError(
            f"{rows} rows of a microbatch cannot be split over mesh.data * mesh.fsdp = {parts} devices: choose a multiple"
        )
    # The reference attention has the same parameters, and accepts an example of any shape.
    model = make_model(config, vocabulary)
    encoders = (None,) if config.generator is None else (None, config.generator)
    attends = [choose_attention(config, mesh, encoder).attend for encoder in encoders]
    example = batching.empty_batch(config.data, rows=1)

    def init(key: jax.Array) -> Any:
        adversary = adversarial.init(config.adversarial, model.config, jax.random.fold_in(key, 1))
        return model.init(key, example, deterministic=True)["params"] | adversary

    objective = make_objective(config, vocabulary, *attends)
    return program.make_program(objective, optimizer_of(config), init, mesh, config.training.microbatches)


def random_keys(seed: int) -> tuple[jax.Array, jax.Array]:
    """Return the random keys of a run: of its initial parameters and of dropout."""
    init_key, dropout_key = jax.random.split(jax.random.key(seed))
    return init_key, dropout_key


def shared_program(config: ExperimentConfig, vocabulary: Vocabulary, mesh: Mesh) -> Program:
    """Return `make_program`'s result, the same one for configs that differ only in their seed.

    So the seeds of a comparison are compiled once.
    """
    alike = dataclasses.replace(config, seed=0, title="")
    ids = (tuple(vocabulary.delimiter_ids), tuple(vocabulary.period_ids))
    return _cached_program(alike, VocabularyInfo(vocabulary.vocabulary_size, *ids), mesh)


_cached_program = functools.lru_cache(maxsize=4)(make_program)


def unboxed(params: Any) -> Any:
    """Parameters as a plain nested dict, without the axis names that `Program.init` gives them."""
    return nn.unbox(params)
