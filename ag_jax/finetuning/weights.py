"""What fine-tuning starts from: the encoder of a run, of a trial that kept its weights, or of a Hugging Face directory."""

import dataclasses
from typing import Any

from etils import epath

from ag_jax import finetuned, run
from ag_jax.data.json_files import read_json
from ag_jax.data.tokenizers import Tokenizer
from ag_jax.interop import importing, task_heads
from ag_jax.models.config import EncoderConfig
from ag_jax.models.tasks import task_encoder
from ag_jax.origin import Origin, Pooler
from ag_jax.run import OpenRun
from ag_jax.training import storage


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """An encoder to be fine-tuned.

    params: a part of those of a `TaskModel`: `encoder`, and the first half of a head for texts where pre-training had one
    (BERT's pooler); nothing if all is to be fresh.
    style: of the head for texts, see `models.tasks.STYLES`; description: where it comes from, for people.
    origin: the imported model that the weights began as.
    run: the run that the encoder is of, None for other models.
    """

    config: EncoderConfig
    tokenizer: Tokenizer
    params: dict[str, Any]
    style: str
    description: str
    origin: Origin = Origin()
    run: OpenRun | None = None


def is_huggingface(directory: epath.PathLike) -> bool:
    """Whether a directory's config.json is one of `transformers`. Raises ValueError if it is no JSON object."""
    path = epath.Path(directory) / "config.json"
    return path.exists() and "model_type" in read_json(path)


def open_encoder(checkpoint: str, step: int | None = None, *, fresh: bool = False) -> Pretrained:
    """The encoder of a directory: a run's (at `step`, the newest by default), a trial's, or one of Hugging Face.

    fresh: its architecture and tokenizer alone. Raises FileNotFoundError or ValueError with what was expected, also for the step
    of a model that has no steps.
    """
    directory = storage.directory(checkpoint)
    if finetuned.locate(directory) is not None:
        opened = _of_trial(directory)
    elif is_huggingface(directory):
        opened = _of_huggingface(str(directory))
    elif (directory / "config.json").exists():
        opened = _of_run(directory, step)
    else:
        raise FileNotFoundError(
            f"{checkpoint} is no model: expected the directory of a run (made by `ag-jax train`), of a trial that kept its weights "
            "(--config.keep=best), or of a Hugging Face model"
        )
    if step is not None and opened.run is None:
        raise ValueError(f"step={step} is that of a run's checkpoint, but {checkpoint} is no run: leave the step out")
    if fresh:
        description = f"fresh weights, architecture of {opened.description}"
        return dataclasses.replace(opened, params={}, description=description, run=None)
    return opened


def _of_run(directory: epath.Path, step: int | None) -> Pretrained:
    opened = run.open_run(directory, step)
    style = task_heads.style_of(opened.model.config, opened.params, opened.origin.model_type)
    description = f"step {opened.step} of {directory}"
    config, tokenizer = opened.model.config, opened.tokenizer
    pretrained = _pretrained(config, tokenizer, opened.params, opened.pooler, style, description, opened.origin)
    return dataclasses.replace(pretrained, run=opened)


def _of_huggingface(path: str) -> Pretrained:
    opened = importing.open_model(path)
    style = task_heads.style_of(opened.source.config, opened.params, opened.source.family.model_type)
    config, tokenizer = opened.source.config, opened.tokenizer
    return _pretrained(config, tokenizer, opened.params, opened.pooler, style, path, importing.origin_of(opened, path))


def _of_trial(directory: epath.Path) -> Pretrained:
    tuned = finetuned.load(directory)
    params = {"encoder": tuned.params["encoder"]}
    return Pretrained(tuned.config, tuned.tokenizer, params, tuned.head.style, str(directory), tuned.origin)


def _pretrained(
    config: EncoderConfig,
    tokenizer: Tokenizer,
    params: dict,
    pooler: Pooler,
    style: str,
    description: str,
    origin: Origin,
) -> Pretrained:
    """Without what only the prediction of masked words reads; BERT's pooler becomes the first half of the head."""
    shorn = task_encoder(config)
    encoder = dict(params["encoder"])
    if shorn.absolute_positions == "none":
        encoder["embeddings"] = {name: leaf for name, leaf in encoder["embeddings"].items() if name != "position"}
    given = {"encoder": encoder}
    if style == "bert" and pooler:
        given["task_head"] = {"dense": pooler}
    return Pretrained(shorn, tokenizer, given, style, description, origin)
