"""Workloads: the model, objective and FLOPs of each prediction task (masked words, replaced tokens, translation)."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ag_jax.attention.assignment import assign_cross_heads
from ag_jax.attention.kernels import reference
from ag_jax.attention.kernels.interface import Attend
from ag_jax.data import pipeline
from ag_jax.data.corpus import Corpus
from ag_jax.data.tokenizers import Tokenizer
from ag_jax.models import flops
from ag_jax.models.config import EncoderConfig
from ag_jax.models.flops import Flops
from ag_jax.models.masked_lm import PretrainingModel
from ag_jax.models.replaced_tokens import ReplacedTokensModel
from ag_jax.models.seq2seq import TranslationModel
from ag_jax.objectives import word_loss
from ag_jax.objectives.base import Objective, PrimaryMetric
from ag_jax.objectives.masked_lm import Pretraining
from ag_jax.objectives.replaced_tokens import ReplacedTokens
from ag_jax.objectives.sentences import Sentences
from ag_jax.objectives.translation import Translation
from ag_jax.pretraining import plateau
from ag_jax.pretraining.config import ExperimentConfig

Model = PretrainingModel | ReplacedTokensModel | TranslationModel
# encoder -> its implementation of attention; None stands for the model's own encoder, whose heads may be guided.
ChooseAttend = Callable[[EncoderConfig | None], Attend]


class Vocabulary(Protocol):
    """The properties of a tokenizer that a model depends on: the size of the vocabulary and special ids.

    The ids are those of delimiters ([CLS] and [SEP], or <s> and </s>) and of full stops, for patterns.
    """

    @property
    def vocabulary_size(self) -> int: ...
    @property
    def delimiter_ids(self) -> Sequence[int]: ...
    @property
    def period_ids(self) -> Sequence[int]: ...


@dataclasses.dataclass(frozen=True)
class VocabularyInfo:
    """The size and special ids of a vocabulary, without a tokenizer.

    It serves plans of runs whose tokenizer is not trained yet, and as a cache key.

    The defaults are the special ids of a tokenizer that a run trains.
    """

    vocabulary_size: int
    delimiter_ids: tuple[int, ...] = (0, 2)
    period_ids: tuple[int, ...] = (5, 6)


@dataclasses.dataclass(frozen=True)
class Workload:
    """The prediction task of a run, with its model, objective and FLOPs.

    changed: the participle for predicted tokens in model cards, such as `masked`; None if the input is not changed.
    primary_metric: the loss by which runs are summarised.
    make_model: (config, vocabulary, attention by encoder) -> model.
    make_objective: (config, vocabulary, model, number of devices) -> objective, without guidance and attacks.
    flops: (config, vocabulary, predicted) -> FLOPs of a step; for `predicted` see `flops.step_flops`.
    plateau_loss: (config, corpus) -> the primary metric of the best guess without context.
    """

    changed: str | None
    primary_metric: PrimaryMetric
    make_model: Callable[[ExperimentConfig, Vocabulary, ChooseAttend], Model]
    make_objective: Callable[[ExperimentConfig, Vocabulary, Any, int], Objective]
    flops: Callable[[ExperimentConfig, Vocabulary, float], Flops]
    plateau_loss: Callable[[ExperimentConfig, Corpus], float]


def workload_of(config: ExperimentConfig) -> Workload:
    """Return the workload of a run's prediction task: translation, replaced tokens or masked words."""
    if config.translates:
        return TRANSLATION
    return REPLACED_TOKENS if config.detects_replaced_tokens else MASKED_WORDS


def reference_model(config: ExperimentConfig, vocabulary: Vocabulary) -> Model:
    """Return the model of a run with the reference implementation of attention, which accepts rows of any shape."""
    return workload_of(config).make_model(config, vocabulary, lambda encoder: reference.attend)


def model_config(config: ExperimentConfig, vocabulary: Vocabulary) -> EncoderConfig:
    """Return the encoder's config with `vocabulary_size` filled in.

    Raises ValueError if `model.vocabulary_size` is smaller than the tokenizer's vocabulary.
    """
    size = config.model.vocabulary_size or vocabulary.vocabulary_size
    if size < vocabulary.vocabulary_size:
        raise ValueError(
            f"model.vocabulary_size={size} is smaller than the tokenizer's {vocabulary.vocabulary_size} tokens; "
            "set it to none to take the tokenizer's"
        )
    return dataclasses.replace(config.model, vocabulary_size=size)


def generator_config(config: ExperimentConfig, vocabulary: Vocabulary) -> EncoderConfig | None:
    """Return the config of the generator's encoder with `vocabulary_size` filled in; None without a generator."""
    if config.generator is None:
        return None
    return dataclasses.replace(config.generator, vocabulary_size=model_config(config, vocabulary).vocabulary_size)


def _size(config: ExperimentConfig) -> dict[str, int]:
    return {"rows": config.training.batch_size, "length": config.data.sequence_length}


def _sentences_and_groups(config: ExperimentConfig, devices: int) -> tuple[Sentences, int]:
    """Return (settings of the output `sentence`, number of rows whose unused slots the word loss skips together)."""
    slots = pipeline.empty_batch(config.data, rows=1)["masked_positions"].shape[1]
    sentences = Sentences(config.adversarial.sentence_prediction, slots if config.data.pack else 1)
    # With a fixed count, rows use nearly all slots.
    leaves_slots_out = devices == 1 and config.data.masking.count == "bernoulli"
    return sentences, word_loss.rows_per_group(slots) if leaves_slots_out else 1


def _masked_words_model(config: ExperimentConfig, vocabulary: Vocabulary, attend: ChooseAttend) -> PretrainingModel:
    return PretrainingModel(model_config(config, vocabulary), config.next_sentence, attend(None))


def _masked_words_objective(
    config: ExperimentConfig, vocabulary: Vocabulary, model: PretrainingModel, devices: int
) -> Pretraining:
    del vocabulary
    return Pretraining(model, *_sentences_and_groups(config, devices))


def _masked_words_flops(config: ExperimentConfig, vocabulary: Vocabulary, predicted: float) -> Flops:
    model = model_config(config, vocabulary)
    return flops.step_flops(model, predicted=predicted, next_sentence=config.next_sentence, **_size(config))


def _masked_words_plateau(config: ExperimentConfig, corpus: Corpus) -> float:
    del config
    return plateau.unigram_loss(corpus.train)


MASKED_WORDS = Workload(
    changed="masked",
    primary_metric=Pretraining.primary_metric,
    make_model=_masked_words_model,
    make_objective=_masked_words_objective,
    flops=_masked_words_flops,
    plateau_loss=_masked_words_plateau,
)


def _replaced_tokens_model(
    config: ExperimentConfig, vocabulary: Vocabulary, attend: ChooseAttend
) -> ReplacedTokensModel:
    generator = generator_config(config, vocabulary)
    generator_attend = reference.attend if generator is None else attend(generator)
    return ReplacedTokensModel(model_config(config, vocabulary), generator, attend(None), generator_attend)


def _ignored_ids(config: ExperimentConfig, vocabulary: Vocabulary) -> tuple[int, ...]:
    """Return the ids of the tokens that replaced-token detection leaves out of the loss.

    They are the begin and end tokens, such as <s> and </s>, if `replaced_tokens.tokens` is `words`, otherwise none.
    """
    return tuple(vocabulary.delimiter_ids) if config.replaced_tokens.tokens == "words" else ()


def _replaced_tokens_objective(
    config: ExperimentConfig, vocabulary: Vocabulary, model: ReplacedTokensModel, devices: int
) -> ReplacedTokens:
    ignored = _ignored_ids(config, vocabulary)
    groups = _sentences_and_groups(config, devices)
    return ReplacedTokens(model, config.replaced_tokens.coefficient, ignored, *groups)


def _replaced_tokens_flops(config: ExperimentConfig, vocabulary: Vocabulary, predicted: float) -> Flops:
    model, generator = model_config(config, vocabulary), generator_config(config, vocabulary)
    return flops.replaced_tokens_flops(model, generator, predicted=predicted, **_size(config))


def _replaced_tokens_plateau(config: ExperimentConfig, corpus: Corpus) -> float:
    ignored = list(_ignored_ids(config, corpus.tokenizer))
    return plateau.replaced_tokens_loss_of(corpus, config.data.masking.rate, ignored)


REPLACED_TOKENS = Workload(
    changed="replaced",
    primary_metric=ReplacedTokens.primary_metric,
    make_model=_replaced_tokens_model,
    make_objective=_replaced_tokens_objective,
    flops=_replaced_tokens_flops,
    plateau_loss=_replaced_tokens_plateau,
)


def start_token(config: ExperimentConfig, tokenizer: Tokenizer) -> int | None:
    """Return the id of the token that a decoder reads before the first token of a text; None for the padding token.

    Padding stands for the zero vector, which such models read there.
    """
    return tokenizer.specials.begin if config.decoder.start == "begin" else None


def _translation_model(config: ExperimentConfig, vocabulary: Vocabulary, attend: ChooseAttend) -> TranslationModel:
    attention = attend(None)
    # Of the implementations, only the reference knows targets with a column for each row.
    is_diagonal = "diagonal" in dict(assign_cross_heads(config.guidance, config.model.heads))
    cross = reference.attend if is_diagonal else attention
    return TranslationModel(model_config(config, vocabulary), config.decoder, attention, attention, cross)


def _translation_objective(
    config: ExperimentConfig, vocabulary: Vocabulary, model: TranslationModel, devices: int
) -> Translation:
    del vocabulary, devices
    return Translation(model, config.translation)


def _translation_flops(config: ExperimentConfig, vocabulary: Vocabulary, predicted: float) -> Flops:
    del predicted
    return flops.translation_flops(model_config(config, vocabulary), config.decoder, **_size(config))


TRANSLATION = Workload(
    changed=None,
    primary_metric=Translation.primary_metric,
    make_model=_translation_model,
    make_objective=_translation_objective,
    flops=_translation_flops,
    plateau_loss=_masked_words_plateau,  # the unigram loss, of the target's tokens
)
