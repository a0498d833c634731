"""Model, objective and optimizer of a pre-training run, compiled for a mesh of devices.

The devices need not exist: `ag-jax plan` compiles the same program ahead of time.
"""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import optax
from jax.sharding import Mesh

from ag_jax.attention import guidance
from ag_jax.attention.assignment import (
    Assignment,
    assign_cross_heads,
    assign_decoder_heads,
    assign_encoder_heads,
    assign_heads,
)
from ag_jax.attention.config import GuidanceConfig
from ag_jax.attention.kernels import dispatch
from ag_jax.attention.patterns import PatternTokens
from ag_jax.data import pipeline
from ag_jax.models.config import EncoderConfig
from ag_jax.objectives.adversarial import wrap as adversarial
from ag_jax.objectives.adversarial.config import AdversarialConfig
from ag_jax.objectives.adversarial.masking import Trace
from ag_jax.objectives.base import Objective
from ag_jax.objectives.guided import Guided
from ag_jax.pretraining import mask_trace
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.pretraining.workloads import Model, Vocabulary, VocabularyInfo, reference_model, workload_of
from ag_jax.training import fingerprint, program, sharding
from ag_jax.training.config import OptimizerConfig, TrainingConfig
from ag_jax.training.hyperparameters import Hyperparameters
from ag_jax.training.optimizer import AdversaryOptimizer, make_optimizer
from ag_jax.training.program import Program


def choose_attention(config: ExperimentConfig, mesh: Mesh, encoder: EncoderConfig | None = None) -> dispatch.Choice:
    """Choose the implementation of attention for the setting `model.attention` and the devices of `mesh`.

    encoder: the config of another encoder than the model's, such as the generator's, whose heads are not guided.
    """
    shape = encoder or config.model
    guided = encoder is None and config.guidance.mode != "none"
    return dispatch.choose(
        config.model.attention,
        mesh,
        dispatch.Sizes(shape.heads, shape.head_width, config.data.sequence_length, shape.dtype, config.guidance.loss),
        after_dropout=guided and config.guidance.probabilities == "after_dropout",
        rows=sharding.ROWS,
        heads=sharding.RULES["heads"],
    )


def special_tokens(vocabulary: Vocabulary) -> PatternTokens:
    """Return the token ids of delimiters and full stops, at which some attention patterns point."""
    return PatternTokens(tuple(vocabulary.delimiter_ids), tuple(vocabulary.period_ids))


def assignment(config: ExperimentConfig) -> Assignment:
    """Return which heads of the encoder are guided by which pattern."""
    return assign_encoder_heads(config.guidance, config.model.heads, config.model.local_layers, config.data.pointers)


def make_objective(
    config: ExperimentConfig,
    vocabulary: Vocabulary,
    model: Model,
    devices: int,
    hyperparameters: Hyperparameters,
    trace: Trace | None = None,
) -> Objective:
    """Return a run's training objective: its task's loss, with attention guidance and an attack if the config has them.

    hyperparameters: replace those of the config.
    trace: as in `guided_and_attacked`.
    """
    objective = workload_of(config).make_objective(config, vocabulary, model, devices)
    special, guided = special_tokens(vocabulary), hyperparameters.in_guidance(config.guidance)
    steps = config.training.steps
    columns = config.data.pointers
    return guided_and_attacked(objective, guided, config.adversarial, model.config, special, steps, trace, columns)


def guided_and_attacked(
    objective: Objective,
    guidance_config: GuidanceConfig,
    adversarial_config: AdversarialConfig,
    encoder: EncoderConfig,
    special: PatternTokens,
    steps: int,
    trace: Trace | None = None,
    columns: tuple[str, ...] = (),
) -> Objective:
    """Return `objective` wrapped in attention guidance and an adversarial attack, each only if its config enables it.

    encoder: the config of the encoder.
    special: the token ids that patterns look for.
    steps: the number of steps of the run, for schedules.
    trace: the shares that `adversarial.method=scheduled` masks; None reads them from the run that its settings name.
    columns: names of the columns of pointers in the batches, `data.pointers`.
    """
    if guidance_config.mode != "none":
        objective = Guided(
            inner=objective,
            config=guidance_config,
            assignment=assign_heads(guidance_config, encoder.heads, columns),
            heads=encoder.heads,
            special=special,
            columns=columns,
            alpha=guidance.coefficient_schedule(guidance_config, steps),
            decoder_assignment=assign_decoder_heads(guidance_config, encoder.heads),
            cross_assignment=assign_cross_heads(guidance_config, encoder.heads),
            **_guided_layers(guidance_config, encoder),
        )
    # The attack is outermost: FreeLB must be, because it computes its gradient itself, and the second pass of the other
    # attacks then has the guidance of `mode=bias`, too.
    trace = trace or mask_trace.read(adversarial_config, encoder.layers)
    return adversarial.wrap(objective, adversarial_config, adversarial.AttackContext(encoder, steps, trace))


def _guided_layers(config: GuidanceConfig, encoder: EncoderConfig) -> dict[str, Any]:
    """Return the arguments of `Guided` that select layers; {} if all layers are guided and none has local attention."""
    groups = guidance.guided_layers(config, encoder.local_layers, encoder.window)
    if config.layers == "all" and encoder.window is None:
        return {}
    return {"layer_groups": groups, "layers": encoder.layers}


def adversary_optimizer(config: AdversarialConfig, model: OptimizerConfig) -> AdversaryOptimizer | None:
    """Return the optimizer of the adversary's parameters; None if the run has no adversary with trained parameters.

    It is AdamW with the settings of the model's optimizer, except for those that `adversarial.asa` replaces.
    """
    if config.method != "asa":
        return None
    asa = config.asa
    settings = dataclasses.replace(
        model,
        kind="adamw",
        clip_updates=False,
        learning_rate=asa.learning_rate or model.learning_rate,
        weight_decay=model.weight_decay if asa.weight_decay is None else asa.weight_decay,
        clip_norm=asa.clip_norm,
    )
    return AdversaryOptimizer(settings, asa.delay_steps)


def optimizer_of(config: ExperimentConfig, hyperparameters: Hyperparameters) -> optax.GradientTransformation:
    """Return the optimizer of a run's model, and of its adversary if there is one, as one optax transformation.

    hyperparameters: replace those of the config.
    """
    settings = hyperparameters.in_optimizer(config.optimizer)
    return make_optimizer(settings, config.training.steps, adversary_optimizer(config.adversarial, settings))


def check_rows(config: ExperimentConfig, mesh: Mesh) -> None:
    """Raise ValueError if the rows of a microbatch cannot be split evenly over the data-parallel devices of `mesh`."""
    config.check_rows(mesh.shape["data"] * mesh.shape["fsdp"])


def make_program(config: ExperimentConfig, vocabulary: Vocabulary, mesh: Mesh, trace: Trace | None = None) -> Program:
    """Return the jitted training and evaluation steps of a run, and its initialisation, for the devices of `mesh`.

    trace: as in `guided_and_attacked`.

    The `Hyperparameters` of the config are arguments of the steps, and have no effect here.

    Raises ValueError if the devices do not divide the rows of a microbatch (`check_rows`).
    """
    check_rows(config, mesh)
    workload = workload_of(config)
    # Initialised with the reference attention, which has the same parameters and accepts an example of any shape.
    example_model = reference_model(config, vocabulary)
    model = workload.make_model(config, vocabulary, lambda encoder: choose_attention(config, mesh, encoder).attend)
    example = pipeline.empty_batch(config.data, rows=1)

    def init(key: jax.Array) -> Any:
        adversary = adversarial.init(config.adversarial, model.config, jax.random.fold_in(key, 1))
        return example_model.init(key, example, deterministic=True)["params"] | adversary

    objective = functools.partial(make_objective, config, vocabulary, model, mesh.size, trace=trace)
    optimizer = functools.partial(optimizer_of, config)
    rows = config.training.batch_size // config.training.microbatches
    return program.make_program(objective, optimizer, init, mesh, rows)


def random_keys(seed: int) -> tuple[jax.Array, jax.Array]:
    """Return two random keys from the seed of a run: (for its initial parameters, for dropout)."""
    init_key, dropout_key = jax.random.split(jax.random.key(seed))
    return init_key, dropout_key


def shared_program(config: ExperimentConfig, vocabulary: Vocabulary, mesh: Mesh, trace: Trace | None = None) -> Program:
    """Return the jitted steps of a run, as `make_program` does, from a cache by the settings that change these steps.

    The settings are those of `static_settings`. So they are compiled once for all seeds of a comparison, and for all
    points of a search that differ only in `Hyperparameters`.
    """
    return _cached_program(static_settings(config), _info(vocabulary), mesh, trace)


def parameter_shapes(config: ExperimentConfig, vocabulary: Vocabulary) -> dict[str, tuple[int, ...]]:
    """Return {path: shape} of the parameters of a run's model, without allocating them.

    Those of an adversary are left out. Cached as in `shared_program`; do not change the returned dict.
    """
    return _cached_shapes(static_settings(config), _info(vocabulary))


def shapes_of(params: Any) -> dict[str, tuple[int, ...]]:
    """Return {path: shape} of parameters (arrays or `jax.ShapeDtypeStruct`), such as {"word_head/bias": (50265,)}."""
    return {path: leaf.shape for path, leaf in fingerprint.paths(params).items()}


def static_settings(config: ExperimentConfig) -> ExperimentConfig:
    """Return a config in which every setting that does not change the compiled steps of a run is at its default.

    Such are hyperparameters, seed and title, settings without effect, what only the training loop reads, and the
    sections of comparisons, searches and reports.
    """
    any_values, training, in_effect = Hyperparameters(), config.training, config.in_effect
    return dataclasses.replace(
        in_effect,
        title=ExperimentConfig.title,
        seed=ExperimentConfig.seed,
        guidance=any_values.in_guidance(in_effect.guidance),
        optimizer=any_values.in_optimizer(in_effect.optimizer),
        training=TrainingConfig(
            steps=training.steps,
            batch_size=training.batch_size,
            earlier_batch_sizes=training.earlier_batch_sizes,
            earlier_batch_sizes_until=training.earlier_batch_sizes_until,
            microbatches=training.microbatches,
            keep_last=training.keep_last,  # because it must be at least `translation.average`
        ),
        comparison=ExperimentConfig.comparison,
        search=ExperimentConfig.search,
        inspection=ExperimentConfig.inspection,
    )


# A search goes back and forth between the programs of an arm, such as with and without dropout.
_cached_program = functools.lru_cache(maxsize=8)(make_program)


@functools.lru_cache(maxsize=32)
def _cached_shapes(config: ExperimentConfig, vocabulary: VocabularyInfo) -> dict[str, tuple[int, ...]]:
    model, example = reference_model(config, vocabulary), pipeline.empty_batch(config.data, rows=1)
    params = jax.eval_shape(lambda: model.init(jax.random.key(0), example, deterministic=True)["params"])
    return shapes_of(unboxed(params))


def _info(vocabulary: Vocabulary) -> VocabularyInfo:
    ids = (tuple(vocabulary.delimiter_ids), tuple(vocabulary.period_ids))
    return VocabularyInfo(vocabulary.vocabulary_size, *ids)


def unboxed(params: Any) -> Any:
    """Return parameters as a plain nested dict, without the axis names that `Program.init` gives them."""
    return nn.unbox(params)


def differences(stored: dict[str, tuple[int, ...]], expected: dict[str, tuple[int, ...]]) -> list[str]:
    """Return a message line for each parameter that only one of two models has, or whose shapes differ.

    stored: {path: shape} of a checkpoint.
    expected: {path: shape} as the config describes them.
    """
    return [
        f"  {path}: in the checkpoint {stored.get(path, 'none')}, in the config {expected.get(path, 'none')}"
        for path in sorted(stored | expected)
        if stored.get(path) != expected.get(path)
    ]
