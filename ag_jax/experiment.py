"""From a config to checked, frozen dataclasses: the one place that reads a `ConfigDict`.

The dataclasses of the rooms hold every default. `default_config()` lays them out as a `ConfigDict` for config files and
flags to change, `parse` takes it back, refusing what is unknown, of a wrong type or impossible before anything runs.
"""

import dataclasses
import difflib
import importlib.util
import json
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args, get_origin, get_type_hints

import ml_collections

from ag_jax.attention import guidance
from ag_jax.attention.guidance import GuidanceConfig
from ag_jax.data.config import PAIR_FORMATS, DataConfig
from ag_jax.models.config import EncoderConfig
from ag_jax.objectives.replaced_tokens import ReplacedTokensConfig
from ag_jax.training.config import TrainingConfig
from ag_jax.training.optimizer import OptimizerConfig
from ag_jax.training.sharding import MeshConfig


@dataclasses.dataclass(frozen=True)
class ComparisonConfig:
    """What `compare` runs and shows.

    arms: values of the config file's `arm` argument, comma-separated, the baseline first; seeds: one run of every arm each.
    """

    arms: str = ""
    seeds: tuple[int, ...] = (0,)

    def __post_init__(self):
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"comparison.seeds must be different integers, at least one, got {self.seeds}")


@dataclasses.dataclass(frozen=True)
class InspectionConfig:
    """The sentence whose attention maps reports show."""

    sentence: str = "The state of our union is strong. We will rebuild our roads, and we will do it together."


@dataclasses.dataclass(frozen=True)
class ExperimentConfig:
    """One run: title of the experiment, seed, and a section for each room of the program."""

    title: str = "Pre-training"
    seed: int = 0
    data: DataConfig = DataConfig()
    model: EncoderConfig = EncoderConfig()
    replaced_tokens: ReplacedTokensConfig = ReplacedTokensConfig()
    guidance: GuidanceConfig = GuidanceConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    mesh: MeshConfig = MeshConfig()
    training: TrainingConfig = TrainingConfig()
    comparison: ComparisonConfig = ComparisonConfig()
    inspection: InspectionConfig = InspectionConfig()

    def __post_init__(self):
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed must be in 0..{2**31 - 1}, got {self.seed}")
        if self.data.sequence_length > self.model.max_length:
            raise ValueError(
                f"data.sequence_length={self.data.sequence_length} is longer than the model's "
                f"model.max_length={self.model.max_length} positions: raise the one or lower the other"
            )
        if self.next_sentence and self.model.segments < 2:
            raise ValueError(
                f"data.format={self.data.format} marks two segments, but model.segments={self.model.segments}: set it to 2"
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
        parts = max(self.mesh.data, 1) * self.mesh.fsdp
        if rows % parts:
            raise ValueError(
                f"the {rows} rows of a microbatch (training.batch_size / training.microbatches) must be a multiple of "
                f"mesh.data * mesh.fsdp = {parts}"
            )
        guidance.assign_heads(self.guidance, self.model.heads)

    def _check_replaced_tokens(self) -> None:
        generator, replacement = self.replaced_tokens.generator, self.data.masking.replacement
        wanted = "unigram" if generator == "unigram" else "mask"
        if replacement != wanted:
            raise ValueError(
                f"replaced_tokens.generator={generator} goes with data.masking.replacement={wanted}, got {replacement}: set both"
            )
        if self.detects_replaced_tokens and self.data.format in PAIR_FORMATS:
            raise ValueError(
                f"replaced-token detection has no next-sentence prediction, which data.format={self.data.format} is for: choose "
                "another format, or replaced_tokens.generator=none"
            )
        small = self.generator
        if small is not None and small.heads % self.mesh.tensor:
            raise ValueError(
                f"mesh.tensor={self.mesh.tensor} must divide the generator's {small.heads} heads, too: change it or "
                "replaced_tokens.generator_fraction"
            )

    @property
    def detects_replaced_tokens(self) -> bool:
        """Whether the model is trained to detect replaced tokens, and not to predict masked ones."""
        return self.replaced_tokens.generator != "none"

    @property
    def generator(self) -> EncoderConfig | None:
        """The encoder of the generator that is trained beside the model, if there is one.

        Raises ValueError if its width, heads and features do not come out as whole numbers that go together.
        """
        if self.replaced_tokens.generator != "mlm":
            return None
        model, fraction = self.model, self.replaced_tokens.generator_fraction
        width, heads = round(model.width * fraction), max(1, round(model.heads * fraction))
        if width < 1 or width % heads:
            raise ValueError(
                f"replaced_tokens.generator_fraction={fraction} of model.width={model.width} and model.heads={model.heads} is "
                f"{width} and {heads}: choose one with which the second divides the first, such as 0.25 or 0.5"
            )
        features = max(1, round((model.feedforward or 4 * model.width) * fraction))
        shared = model.embedding_width or model.width
        return dataclasses.replace(model, width=width, heads=heads, feedforward=features, embedding_width=shared)

    @property
    def next_sentence(self) -> bool:
        """Whether the data has sentence pairs, and so the model a next-sentence head."""
        return self.data.format in PAIR_FORMATS


def default_config() -> ml_collections.ConfigDict:
    """Every setting at its default, for a config file to change."""
    return ml_collections.ConfigDict(dataclasses.asdict(ExperimentConfig()))


def to_dict(config: ExperimentConfig) -> dict[str, Any]:
    """The settings as JSON holds them; `parse` takes them back."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def parse(config: ml_collections.ConfigDict | dict[str, Any]) -> ExperimentConfig:
    """The checked experiment. Raises ValueError that names the key and what it may be."""
    values = config.to_dict() if isinstance(config, ml_collections.ConfigDict) else config
    return _to_dataclass(ExperimentConfig, values, "")


def _to_dataclass(kind: type, values: dict[str, Any], path: str) -> Any:
    types = get_type_hints(kind)
    for key in values:
        if key not in types:
            raise ValueError(unknown_key(path + key, [path + name for name in types]))
    return kind(**{key: _to_type(types[key], value, path + key) for key, value in values.items()})


def _to_type(kind: Any, value: Any, path: str) -> Any:
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise ValueError(f"{path} is a section of settings, got {value!r}")
        return _to_dataclass(kind, value, path + ".")
    if get_origin(kind) is tuple:
        if not isinstance(value, (tuple, list)):
            raise ValueError(f"{path} must be a list, such as (1, 2), got {value!r}")
        return tuple(_to_type(get_args(kind)[0], item, path) for item in value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        raise ValueError(f"{path} must be of type {kind.__name__}, got {value!r}")
    return value


def unknown_key(key: str, known: list[str]) -> str:
    """A message for a misspelt key, with the nearest one that exists."""
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"
    return f"unknown setting {key!r}{hint}"


def flat(config: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Nested settings as `section.key: value`."""
    leaves = {}
    for key, value in config.items():
        leaves |= flat(value, f"{path}{key}.") if isinstance(value, dict) else {path + key: value}
    return leaves


def check_overrides(items: Iterable[str]) -> None:
    """Raise ValueError if one of `config.section.key=value` names a setting that does not exist."""
    known = [*flat(default_config().to_dict())]
    for item in items:
        key = item.partition("=")[0].removeprefix("config.")
        if key not in known:
            raise ValueError(unknown_key(key, known))


def arguments(text: str, **choices: tuple | type[str]) -> SimpleNamespace:
    """The argument of a config file, `name=value,...`, as attributes; every name has its choices, the default first.

    `arguments("arm=mlm", layers=(12, 8), arm=("ag", "mlm"))` is `layers=12, arm="mlm"`. A name with the choices `str` takes any
    text, and must be given. Raises ValueError otherwise.
    """
    values = {name: options[0] for name, options in choices.items() if options is not str}
    for item in filter(None, (text or "").split(",")):
        name, _, value = item.partition("=")
        if name not in choices:
            raise ValueError("in the argument of the config file: " + unknown_key(name, list(choices)))
        if choices[name] is str:
            values[name] = value
            continue
        matches = [option for option in choices[name] if str(option) == value]
        if not matches:
            options = ", ".join(map(str, choices[name]))
            raise ValueError(f"in the argument of the config file: {name} must be one of {options}, got {value!r}")
        values[name] = matches[0]
    if missing := [name for name in choices if name not in values]:
        raise ValueError(f"the config file needs the argument {missing[0]}, as in FILE.py:{missing[0]}=VALUE")
    return SimpleNamespace(**values)


def load(path_and_argument: str, overrides: dict[str, Any] | None = None) -> ml_collections.ConfigDict:
    """The config of `path.py:argument`, with settings of the command line on top."""
    path, _, argument = path_and_argument.partition(":")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = module.get_config(argument)
    config.update_from_flattened_dict(overrides or {})
    return config


def with_argument(path_and_argument: str, name: str, value: str) -> str:
    """`path.py:a=1,name=old` as `path.py:a=1,name=value`."""
    path, _, argument = path_and_argument.partition(":")
    kept = [item for item in filter(None, argument.split(",")) if item.partition("=")[0] != name]
    return f"{path}:{','.join([*kept, f'{name}={value}'])}"
