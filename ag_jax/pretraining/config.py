"""The settings of a pre-training or translation run: a frozen dataclass with a section for each part of the program."""

import dataclasses
from typing import Annotated, Any

from annotated_types import Ge
from etils import epath

from ag_jax.attention.assignment import (
    OF_SOURCES,
    PATTERNS,
    REPETITIONS,
    assign_cross_heads,
    assign_decoder_heads,
    assign_heads,
    layer_numbers,
)
from ag_jax.attention.config import GuidanceConfig
from ag_jax.data.config import PAIR_FORMATS, DataConfig
from ag_jax.data.json_files import read_json, reading
from ag_jax.data.order import BatchSizes
from ag_jax.models.config import DecoderConfig, EncoderConfig
from ag_jax.models.decoding_config import DecodingConfig
from ag_jax.objectives.adversarial.config import AdversarialConfig
from ag_jax.objectives.config import ReplacedTokensConfig, TranslationConfig
from ag_jax.pretraining.search.config import SearchConfig
from ag_jax.settings import schema
from ag_jax.training.config import MeshConfig, OptimizerConfig, TrainingConfig


@dataclasses.dataclass(frozen=True)
class ComparisonConfig:
    """The arms and seeds of `ag-jax compare`.

    arms: values of the config file's argument `arm` with commas, the baseline first.
    seeds: seeds that every arm is trained with.
    """

    arms: str | None = None
    seeds: tuple[Annotated[int, Ge(0)], ...] = (0,)

    def __post_init__(self):
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"comparison.seeds must be one or more integers without repetition, got {self.seeds}")


@dataclasses.dataclass(frozen=True)
class InspectionConfig:
    """Settings of the attention maps that reports show.

    sentence: sentence whose attention maps are drawn. The default is for State of the Union messages; a run on another
        text draws the beginning of its held-out text instead.
    """

    sentence: str = "The state of our union is strong. We will rebuild our roads, and we will do it together."


@dataclasses.dataclass(frozen=True)
class ExperimentConfig:
    """A training run: its title, its seed, and a section of settings for each part of ag_jax.

    A run pre-trains an encoder, or with `decoder.layers` and `data.format=parallel` trains an encoder and a decoder to
    translate.

    title: title of reports.
    seed: seed of initial parameters, batches, masks and dropout.
    """

    title: str = "Pre-training"
    seed: Annotated[int, Ge(0)] = 0
    data: DataConfig = DataConfig()
    model: EncoderConfig = EncoderConfig()
    decoder: DecoderConfig = DecoderConfig()
    replaced_tokens: ReplacedTokensConfig = ReplacedTokensConfig()
    translation: TranslationConfig = TranslationConfig()
    decoding: DecodingConfig = DecodingConfig()
    guidance: GuidanceConfig = GuidanceConfig()
    adversarial: AdversarialConfig = AdversarialConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    mesh: MeshConfig = MeshConfig()
    training: TrainingConfig = TrainingConfig()
    comparison: ComparisonConfig = ComparisonConfig()
    search: SearchConfig = SearchConfig()
    inspection: InspectionConfig = InspectionConfig()

    def __post_init__(self):
        vocabulary = self.model.vocabulary_size or self.data.tokenizer.vocabulary_size
        dataclasses.replace(self.model, vocabulary_size=vocabulary).check_size(self.decoder.layers)
        if self.data.sequence_length > self.model.max_length:
            raise ValueError(
                f"data.sequence_length={self.data.sequence_length} is longer than the model's "
                f"model.max_length={self.model.max_length} positions: lower "
                "data.sequence_length or raise model.max_length"
            )
        if self.next_sentence and self.model.token_types < 2:
            raise ValueError(
                f"data.format={self.data.format} marks two segments, but "
                f"model.token_types={self.model.token_types}: set it to 2 or, with an encoder that was trained with "
                "fewer types, choose data.format=full_sentences or doc_sentences"
            )
        self._check_replaced_tokens()
        self._check_translation()
        self._check_fixed_attention()
        if self.optimizer.warmup_steps >= self.training.steps:
            raise ValueError(
                f"optimizer.warmup_steps must be below training.steps={self.training.steps}; set it lower: got "
                f"{self.optimizer.warmup_steps}"
            )
        self.adversarial.check_begins(self.training.steps, self.optimizer.warmup_steps)
        falls = self.optimizer.decay_steps
        if falls is not None and self.optimizer.warmup_steps + falls > self.training.steps:
            raise ValueError(
                f"optimizer.warmup_steps={self.optimizer.warmup_steps} and optimizer.decay_steps={falls} are more than "
                f"training.steps={self.training.steps} together: lower one of them"
            )
        if self.model.heads % self.mesh.tensor:
            raise ValueError(f"mesh.tensor={self.mesh.tensor} must divide model.heads={self.model.heads}")
        self.check_rows((self.mesh.data or 1) * self.mesh.fsdp)
        if self.guidance.alpha_rule == "auto" and self.guidance.mode == "bias":
            raise ValueError(
                "guidance.alpha_rule=auto compares the guidance loss with the model's own, and mode=bias has no "
                "guidance loss: set mode=loss, or alpha_rule=value and alpha"
            )
        # Only for their errors.
        self._check_pointers()
        layer_numbers(self.guidance, self.model.local_layers)
        assign_decoder_heads(self.guidance, self.model.heads)
        assign_cross_heads(self.guidance, self.model.heads)

    def _check_pointers(self) -> None:
        """Raise ValueError for columns that are named as patterns, or read as a bias, and for a missing alignment."""
        taken = (*PATTERNS, *REPETITIONS, *OF_SOURCES)
        if named := [name for name in self.data.pointers if name in taken]:
            raise ValueError(
                f"data.pointers has {named[0]!r}, the name of a pattern that needs no annotation ({', '.join(taken)}): "
                "rename the column"
            )
        guided = dict(assign_heads(self.guidance, self.model.heads, self.data.pointers))
        if self.guidance.mode == "bias" and (named := [name for name in self.data.pointers if name in guided]):
            raise ValueError(
                f"guidance.mode=bias adds targets to the scores, and those of {named[0]} are annotations of words that "
                "the model has to predict: set guidance.mode=loss"
            )
        if "alignment" in dict(assign_cross_heads(self.guidance, self.model.heads)) and not self.data.alignments:
            raise ValueError(
                f"guidance.cross_heads={self.guidance.cross_heads} needs data.alignments, the file of aligned words"
            )

    def check_rows(self, parts: int) -> None:
        """Raise ValueError if the rows of a microbatch cannot be split into `parts` parts of equal size."""
        rows = self.training.batch_size // self.training.microbatches
        if rows % parts:
            raise ValueError(
                f"the {rows} rows of a microbatch (training.batch_size / training.microbatches) must be a multiple of "
                f"mesh.data * mesh.fsdp = {parts}"
            )
        if uneven := [size for size in self.training.earlier_batch_sizes if size % parts]:
            raise ValueError(
                f"training.earlier_batch_sizes has {uneven[0]}, which must be a multiple of mesh.data * mesh.fsdp = "
                f"{parts}"
            )

    def _check_translation(self) -> None:
        """Raise ValueError if settings for translation conflict, or are set in a run that does not translate."""
        if self.translates != self.data.is_parallel:
            raise ValueError(
                f"decoder.layers={self.decoder.layers} does not go with data.format={self.data.format}: a run that "
                "translates needs decoder.layers of at least 1 and data.format=parallel, and other runs neither"
            )
        if not self.translates:
            for section in ("decoder", "translation", "decoding"):
                if getattr(self, section) != getattr(ExperimentConfig, section):
                    raise ValueError(
                        f"settings of the section {section} have an effect only in a run that translates: set "
                        "decoder.layers and data.format=parallel, or leave them at their defaults"
                    )
            if settings := [name for name in ("decoder_heads", "cross_heads") if getattr(self.guidance, name)]:
                raise ValueError(
                    f"guidance.{settings[0]} needs a model with a decoder: set decoder.layers, or remove it"
                )
            return
        model, defaults = self.model, EncoderConfig()
        # Without the first two, `EncoderConfig` accepts positions only where a decoder has them: in the embeddings.
        for name in ("relative", "mask_decoder_passes", "convolution", "window", "first_norm", "query_key_norm"):
            if getattr(model, name) != getattr(defaults, name):
                raise ValueError(
                    f"model.{name} has no counterpart in a decoder, so it cannot be set together with decoder.layers"
                )
        if model.positions == "rotary":
            raise ValueError(
                "model.positions=rotary cannot be set together with decoder.layers: set learned or sinusoidal"
            )
        if self.detects_replaced_tokens:
            raise ValueError(
                f"replaced_tokens.generator={self.replaced_tokens.generator} does not go with decoder.layers: a run "
                "either detects replaced tokens or translates"
            )
        if self.adversarial.sentence_prediction != "none":
            section = "asa" if self.adversarial.method == "asa" else "masking"
            raise ValueError(
                f"adversarial.{section}.sentence={self.adversarial.sentence_prediction} compares predictions at the "
                f"first position of a text, which a translation does not have: set adversarial.{section}.sentence=none"
            )
        if self.guidance.mode == "bias" and (self.guidance.decoder_heads or self.guidance.cross_heads):
            raise ValueError(
                "guidance.mode=bias changes the scores of the encoder only: set mode=loss, or remove "
                "guidance.decoder_heads and guidance.cross_heads"
            )
        of_decoder = dict(assign_decoder_heads(self.guidance, model.heads))
        if "delim" in of_decoder and self.decoder.start == "zero":
            raise ValueError(
                f"guidance.decoder_heads={self.guidance.decoder_heads!r}: with decoder.start=zero a decoder reads no "
                "delimiters, so delim would have no target in any text: use first"
            )
        if self.translation.average > self.training.keep_last:
            raise ValueError(
                f"translation.average={self.translation.average} checkpoints are averaged, but only "
                f"training.keep_last={self.training.keep_last} are kept: raise keep_last"
            )

    def _check_fixed_attention(self) -> None:
        """Raise ValueError if heads with hard-coded weights are guided, attacked, or look ahead in a decoder."""
        if ahead := [offset for offset in self.decoder.fixed_attention.offsets if offset > 0]:
            raise ValueError(
                f"decoder.fixed_attention.offsets has {ahead[0]}, where the decoder has not written a token yet: use "
                "offsets of at most 0, such as -1,0"
            )
        check_scores(self.model, self.guidance, self.adversarial)
        if self.decoder.fixed_attention.offsets and self.guidance.decoder_heads and self.guidance.mode != "none":
            raise ValueError(
                "decoder.fixed_attention.offsets hard-codes the attention that guidance.decoder_heads would train: set "
                "only one of the two"
            )

    def _check_replaced_tokens(self) -> None:
        generator, replacement = self.replaced_tokens.generator, self.data.masking.replacement
        expected = "unigram" if generator == "unigram" else "mask"
        if replacement != expected:
            raise ValueError(
                f"replaced_tokens.generator={generator} needs data.masking.replacement={expected}, got "
                f"{replacement}: change one of the two"
            )
        if self.detects_replaced_tokens and self.data.format in PAIR_FORMATS:
            raise ValueError(
                f"data.format={self.data.format} is for next-sentence prediction, which replaced-token detection "
                "lacks: choose another format, or predict masked words instead with replaced_tokens.generator=none"
            )
        small = self.generator
        if small is not None and small.heads % self.mesh.tensor:
            raise ValueError(
                f"mesh.tensor={self.mesh.tensor} must divide the generator's {small.heads} heads, too: change it or "
                "replaced_tokens.generator_fraction"
            )

    @property
    def batch_sizes(self) -> BatchSizes:
        """The batch size, in rows, at every step of the run."""
        training = self.training
        return BatchSizes(training.batch_size, training.earlier_batch_sizes, training.earlier_batch_sizes_until)

    @property
    def in_effect(self) -> "ExperimentConfig":
        """This config with all settings of guidance and attacks that have no effect reset to their defaults."""
        return dataclasses.replace(self, guidance=self.guidance.in_effect, adversarial=self.adversarial.in_effect)

    @property
    def translates(self) -> bool:
        """Whether the model has a decoder and is trained to translate."""
        return self.decoder.layers > 0

    @property
    def detects_replaced_tokens(self) -> bool:
        """Whether the model is trained to detect replaced tokens, instead of predicting masked ones."""
        return self.replaced_tokens.generator != "none"

    @property
    def generator(self) -> EncoderConfig | None:
        """The config of the generator's encoder, which is trained together with the model; None without a generator.

        Its width, heads and features are `generator_fraction` of the model's, rounded. Raises ValueError if the heads
        do not divide the width.
        """
        if self.replaced_tokens.generator != "mlm":
            return None
        model, fraction = self.model, self.replaced_tokens.generator_fraction
        width, heads = round(model.width * fraction), max(1, round(model.heads * fraction))
        if width < 1 or width % heads:
            raise ValueError(
                f"replaced_tokens.generator_fraction={fraction} of model.width={model.width} and "
                f"model.heads={model.heads} gives a generator of width {width} with {heads} heads, which must divide "
                "the width: choose another fraction, such as 0.25 or 0.5"
            )
        features = max(1, round((model.feedforward or 4 * model.width) * fraction))
        shared = model.embedding_width or model.width
        return dataclasses.replace(model, width=width, heads=heads, feedforward=features, embedding_width=shared)

    @property
    def next_sentence(self) -> bool:
        """Whether the data has sentence pairs, in which case the model has a next-sentence head."""
        return self.data.format in PAIR_FORMATS


def check_scores(encoder: EncoderConfig, guided: GuidanceConfig, adversarial: AdversarialConfig) -> None:
    """Raise ValueError if guidance or an attack is set for an encoder whose attention is hard-coded, without scores."""
    if not encoder.fixed_attention.offsets:
        return
    if guided.mode != "none":
        raise ValueError(
            "model.fixed_attention.offsets hard-codes the attention that guidance would train: set only one of the two"
        )
    if adversarial.attention_attack:
        raise ValueError(
            f"adversarial.method={adversarial.method} masks attention scores, which model.fixed_attention.offsets "
            "replaces: set only one of the two"
        )


def default_config() -> schema.ConfigDict:
    """Return all settings of a run at their defaults, for a config file to change."""
    return schema.default(ExperimentConfig)


def parse(config: schema.ConfigDict | dict[str, Any]) -> ExperimentConfig:
    """Convert settings to a checked config. Raises ValueError with the setting and its allowed values."""
    return schema.parse(ExperimentConfig, config)


def both_settings(stored: dict[str, Any], config: ExperimentConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (stored settings with defaults filled in, settings of `config`), each as a flat dict {setting: value}.

    Missing settings get their defaults as in `parse`.
    """
    before = schema.flat(schema.to_dict(ExperimentConfig())) | schema.flat(stored)
    return before, schema.flat(schema.to_dict(config))


def different_settings(stored: dict[str, Any], config: ExperimentConfig, may_differ: tuple[str, ...]) -> list[str]:
    """Return a line of text for each setting whose stored value differs from its value in a config.

    may_differ: settings that are left out, as in `schema.is_among`.
    """
    before, after = both_settings(stored, config)
    return [
        f"  {key}: there {before.get(key)!r}, now {after.get(key)!r}"
        for key in sorted(before | after)
        if before.get(key) != after.get(key) and not schema.is_among(key, may_differ)
    ]


def read_settings(path: epath.PathLike) -> dict[str, Any]:
    """Read the settings in a run's `config.json` without checking their values.

    Raises ValueError, with the file's name, if it is not the config of a pre-training run.
    """
    settings = read_json(path)
    if not {"data", "model", "training"} <= settings.keys():
        raise ValueError(
            f"{path} is not the config of a pre-training run: give the directory of one; of a Hugging Face model, "
            "`ag-jax import` makes one"
        )
    return settings


def read(path: epath.PathLike) -> ExperimentConfig:
    """Read and check a run's `config.json`. Raises ValueError, with the file's name, if it is not such a config."""
    settings = read_settings(path)
    with reading(path, "put back a copy of the file, or use the version of ag_jax that wrote it"):
        return parse(settings)
