"""Models to be probed: the encoder of any run, trial or Hugging Face directory, or a randomly initialised twin."""

import dataclasses
import functools
import hashlib
import json
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from ag_jax.analysis.heads.measuring import HeadsModel
from ag_jax.analysis.maps import Assignment
from ag_jax.data.tokenizers import Tokenizer
from ag_jax.interop import opening
from ag_jax.models.config import EncoderConfig
from ag_jax.models.masked_lm import PretrainingModel
from ag_jax.models.one_line import one_line


@dataclasses.dataclass(frozen=True)
class ProbedModel(HeadsModel):
    """An encoder whose attention is probed.

    assignment: the heads that guidance pulled towards patterns.
    """

    assignment: Assignment = Assignment()

    __repr__ = one_line

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the architecture, the parameters and the tokenizer, computed once for all probes."""
        return digest(self.model.config, self.params, self.tokenizer)


def digest(config: EncoderConfig, params: Any, tokenizer: Tokenizer) -> str:
    """Return the SHA-256 of a model: its architecture, its parameters and its tokenizer."""
    sha256 = hashlib.sha256(json.dumps(dataclasses.asdict(config)).encode())
    sha256.update(tokenizer.fingerprint().encode())
    opening.hash_params(sha256, params)
    return sha256.hexdigest()


def open_model(checkpoint: str, step: int | None = None) -> ProbedModel:
    """Open the encoder of a run (at `step`, by default the newest), a trial or a Hugging Face directory.

    Raises FileNotFoundError or ValueError with what was expected.
    """
    opened = opening.open_encoder(checkpoint, step)
    if opened.translates:
        raise ValueError(
            f"{checkpoint} translates: its encoder was trained on texts without a begin token, which probes need. Give "
            "a model that was pre-trained on text"
        )
    model = PretrainingModel(opened.config)
    params = {"encoder": opened.params["encoder"]}
    return ProbedModel(opened.description, model, params, opened.tokenizer, opened.length, opened.assignment)


def random_twin(probed: ProbedModel, seed: int) -> ProbedModel:
    """Return a model with the architecture and tokenizer of another one, but random initial weights and no guidance."""
    description = f"random weights (seed {seed}), architecture of {probed.description}"
    params = random_params(probed.model, seed)
    return dataclasses.replace(probed, description=description, params=params, assignment=Assignment())


def random_params(model: PretrainingModel, seed: int) -> Any:
    """Return random initial parameters of the encoder of a model."""
    tokens_BL = jnp.zeros((1, 8), jnp.int32)
    batch = {"tokens": tokens_BL, "segment_ids": tokens_BL + 1, "token_type_ids": tokens_BL}

    def encode(model: PretrainingModel, batch: dict[str, jax.Array]) -> jax.Array:
        return model.encoder(batch, deterministic=True)

    return nn.unbox(model.init(jax.random.key(seed), batch, method=encode)["params"])
