"""RoBERTa of transformers, to be measured beside ours: random weights, SDPA, AdamW, clipping, as in its examples."""

import importlib.metadata
from collections.abc import Mapping
from typing import Any

import numpy as np
import turns

from ag_jax.models.config import EncoderConfig


class Roberta(turns.Program):
    """A model of transformers with an encoder of the same size as one of ours.

    kind: its class, such as RobertaForMaskedLM.
    words: number of words of its vocabulary.
    settings: further settings of its config.
    """

    def __init__(self, kind: str, config: EncoderConfig, words: int, learning_rate: float, **settings: Any):
        import torch
        import transformers

        super().__init__()
        self.torch = torch
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        same_size = transformers.RobertaConfig(
            vocab_size=words,
            hidden_size=config.width,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            intermediate_size=config.feedforward or 4 * config.width,
            max_position_embeddings=config.max_length + config.position_offset,
            hidden_dropout_prob=config.dropout,
            attention_probs_dropout_prob=config.attention_dropout,
            type_vocab_size=config.token_types,
            layer_norm_eps=config.layer_norm_epsilon,
            attn_implementation="sdpa",
            **settings,
        )
        self.model = getattr(transformers, kind)(same_size).to(self.device).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=learning_rate, fused=self.device == "cuda")

    def tensors(self, fields: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Return arrays as tensors on the model's device."""
        return {
            name: self.torch.from_numpy(np.ascontiguousarray(field)).to(self.device) for name, field in fields.items()
        }

    def update(self, loss: Any) -> None:
        """Take the step of a loss, and wait for the device."""
        loss.backward()
        self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        loss.item()

    def figures(self, peak: float | None = None) -> dict[str, Any]:
        """Return the speed, the versions, the device, and the number of threads."""
        versions = {package: importlib.metadata.version(package) for package in ("torch", "transformers")}
        return self.speed() | {"versions": versions, "device": self.device, "threads": self.torch.get_num_threads()}
