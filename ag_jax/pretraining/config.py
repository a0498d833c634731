"""The settings of a pre-training run: a frozen dataclass with a section for each part of the program."""

import dataclasses
from typing import Annotated, Any, ClassVar

from etils import epath

from ag_jax import config_reader
from ag_jax.attention import guidance
from ag_jax.attention.guidance import GuidanceConfig
from ag_jax.data.config import PAIR_FORMATS, DataConfig
from ag_jax.data.json_files import check_fields, read_json
from ag_jax.models.config import EncoderConfig
from ag_jax.objectives.adversarial.config import AdversarialConfig
from ag_jax.objectives.replaced_tokens import ReplacedTokensConfig
from ag_jax.training.config import TrainingConfig
from ag_jax.training.optimizer import OptimizerConfig
from ag_jax.training.sharding import MeshConfig


@dataclasses.dataclass(frozen=True)
class ComparisonConfig:
    """The arms and seeds of `ag-jax compare`.

    arms: values of the config file's argument `arm` with commas, the baseline first.
    seeds: seeds that every arm is trained with.
    """

    arms: str | None = None
    seeds: tuple[Annotated[int, ">= 0"], ...] = (0,)

    EARLIER_NONE: ClassVar = {"arms": ""}

    def __post_init__(self):
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"comparison.seeds must be one or more integers without repetition, got {self.seeds}")


@dataclasses.dataclass(frozen=True)
class InspectionConfig:
    """Settings of the attention maps that reports show.

    sentence: sentence whose attention maps are drawn.
    """

    sentence: str = "The state of our union is strong. We will rebuild our roads, and we will do it together."


@dataclasses.dataclass(frozen=True)
class ExperimentConfig:
    """A pre-training run: its title, its seed, and a section of settings for each part of ag_jax.

    title: title of reports.
    seed: seed of initial parameters, batches, masks and dropout.
    """

    title: str = "Pre-training"
    seed: Annotated[int, ">= 0"] = 0
    data: DataConfig = DataConfig()
    model: EncoderConfig = EncoderConfig()
    replaced_tokens: ReplacedTokensConfig = ReplacedTokensConfig()
    guidance: GuidanceConfig = GuidanceConfig()
    adversarial: AdversarialConfig = AdversarialConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    mesh: MeshConfig = MeshConfig()
    training: TrainingConfig = TrainingConfig()
    comparison: ComparisonConfig = ComparisonConfig()
    inspection: InspectionConfig = InspectionConfig()

    def __post_init__(self):
        if self.data.sequence_length > self.model.max_length:
            raise ValueError(
                f"data.sequence_length={self.data.sequence_length} is longer than the model's "
                f"model.max_length={self.model.max_length} positions: lower "
                "data.sequence_length or raise model.max_length"
            )
        if self.next_sentence and self.model.token_types < 2:
            raise ValueError(
                f"data.format={self.data.format} marks two segments, but "
                f"model.token_types={self.model.token_types}: set it to 2"
            )
        self._check_replaced_tokens()
        if self.optimizer.warmup_steps >= self.training.steps:
            raise ValueError(
                f"optimizer.warmup_steps must be below training.steps={self.training.steps}; set it lower: got "
                f"{self.optimizer.warmup_steps}"
            )
        if self.model.heads % self.mesh.tensor:
            raise ValueError(f"mesh.tensor={self.mesh.tensor} must divide model.heads={self.model.heads}")
        rows = self.training.batch_size // self.training.microbatches
        parts = (self.mesh.data or 1) * self.mesh.fsdp
        if rows % parts:
            raise ValueError(
                f"the {rows} rows of a microbatch (training.batch_size / training.microbatches) must be a multiple of "
                f"mesh.data * mesh.fsdp = {parts}"
            )
        guidance.assign_heads(self.guidance, self.model.heads)  # only for its errors

    def _check_replaced_tokens(self) -> None:
        generator, replacement = self.replaced_tokens.generator, self.data.masking.replacement
        wanted = "unigram" if generator == "unigram" else "mask"
        if replacement != wanted:
            raise ValueError(
                f"replaced_tokens.generator={generator} needs data.masking.replacement={wanted}, got "
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
    def in_effect(self) -> "ExperimentConfig":
        """This config with all settings of guidance and attacks that have no effect reset to their defaults."""
        return dataclasses.replace(self, guidance=self.guidance.in_effect, adversarial=self.adversarial.in_effect)

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


def default_config() -> config_reader.ConfigDict:
    """Return all settings at their defaults, for a config file to change."""
    return config_reader.default(ExperimentConfig)


def parse(config: config_reader.ConfigDict | dict[str, Any]) -> ExperimentConfig:
    """Convert settings to a checked config. Raises ValueError with the setting and its allowed values."""
    return config_reader.parse(ExperimentConfig, config)


def read_settings(path: epath.PathLike) -> dict[str, Any]:
    """Read the settings in a run's `config.json` without checking their values.

    Raises ValueError, with the file's name, if it is not the config of a pre-training run.
    """
    found = read_json(path)
    for key, what in (("tasks", "a suite of fine-tuning"), ("model_type", "a Hugging Face model")):
        if key in found:
            raise ValueError(f"{path} is the config of {what}, expected that of a pre-training run")
    check_fields(path, found, {"data": dict, "model": dict, "training": dict})
    return config_reader.upgraded(ExperimentConfig, found)


def read(path: epath.PathLike) -> ExperimentConfig:
    """Read and check a run's `config.json`. Raises ValueError, with the file's name, if it is not such a config."""
    values = read_settings(path)
    try:
        return parse(values)
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged, or was written by another version of ag_jax: {error}. Put back a copy, or use the "
            "version that wrote it"
        ) from error
