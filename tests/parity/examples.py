"""A random model of `transformers` for every family; a new family is one more entry of `FAMILIES`."""

import dataclasses
from collections.abc import Callable

import numpy as np
import torch
import transformers


@dataclasses.dataclass(frozen=True)
class Example:
    """classes: of config and model; draw: the settings of one random configuration, from a generator."""

    config: type
    model: type
    draw: Callable[[np.random.Generator], dict]

    def make(self, vocabulary: int, pad: int, seed: int, **fixed):
        """A model with random values everywhere, also where the initial values are all 0 or 1;
        `fixed` settings are not drawn.
        """
        rng = np.random.default_rng(seed)
        settings = {**_sizes(rng), **self.draw(rng), **fixed}
        config = self.config(
            vocab_size=vocabulary,
            pad_token_id=pad,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            attn_implementation="eager",
            **settings,
        )
        torch.manual_seed(seed)
        model = self.model(config).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                base = 1.0 if name.endswith(("LayerNorm.weight", "layer_norm.weight", "norm.weight")) else 0.0
                parameter.copy_(base + 0.3 * torch.randn(parameter.shape))
        return model


def _sizes(rng: np.random.Generator) -> dict:
    """Odd widths, 1 to 3 layers, heads that are not powers of two."""
    heads, head_width = int(rng.choice([1, 3, 5])), int(rng.choice([2, 3, 7]))
    return {
        "num_hidden_layers": int(rng.integers(1, 4)),
        "num_attention_heads": heads,
        "hidden_size": heads * head_width,
        "intermediate_size": int(rng.choice([11, 22, 37])),
        "max_position_embeddings": int(rng.integers(31, 37)),
        "layer_norm_eps": float(rng.choice([1e-5, 1e-7, 1e-12])),
    }


def _segments(rng):
    return {"type_vocab_size": int(rng.integers(2, 4))}


def _one_segment(_):
    return {"type_vocab_size": 1}


def _electra(rng):
    return _segments(rng) | {"embedding_size": int(rng.choice([4, 9]))}


def _deberta(rng, **settings):
    terms = rng.choice(["c2p|p2c", "c2p", "p2c"])
    span = {"max_relative_positions": int(rng.choice([-1, 4, 9]))}
    return {"relative_attention": True, "pos_att_type": str(terms), "position_biased_input": False} | span | settings


def _deberta_v1(rng):
    return _deberta(rng, type_vocab_size=int(rng.integers(0, 3)), position_biased_input=bool(rng.integers(2)))


def _deberta_v2(rng):
    """Clipped distances with projections of their own, and v2's convolution."""
    convolution = {"conv_kernel_size": 3, "conv_act": str(rng.choice(["tanh", "gelu"]))}
    return _deberta(rng, share_att_key=False, norm_rel_ebd="none", type_vocab_size=0, **convolution)


def _deberta_v3(rng):
    """Buckets, shared projections and a LayerNorm on the relative embeddings."""
    settings = {
        "position_buckets": 4,
        "max_relative_positions": 16,
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
    }
    return _deberta(rng, type_vocab_size=0) | settings | {"pos_att_type": "p2c|c2p"}


def _modernbert(rng):
    """Layers of both kinds, or all of one, with and without biases."""
    heads, half = int(rng.choice([1, 3, 5])), int(rng.choice([2, 3, 5]))
    return {
        "num_hidden_layers": int(rng.integers(1, 6)),
        "global_attn_every_n_layers": int(rng.choice([2, 1, 3])),
        "num_attention_heads": heads,
        "hidden_size": heads * 2 * half,
        "local_attention": int(rng.choice([4, 5, 8])),
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 50.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 8.0},
        },
        "norm_bias": bool(rng.integers(2)),
        "attention_bias": bool(rng.integers(2)),
        **dict.fromkeys(("mlp_bias", "classifier_bias"), bool(rng.integers(2))),
        "hidden_activation": str(rng.choice(["gelu", "silu"])),
        "norm_eps": 1e-6,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")),
    }


T = transformers
FAMILIES = {
    "bert": Example(T.BertConfig, T.BertForMaskedLM, _segments),
    "bert_pairs": Example(T.BertConfig, T.BertForPreTraining, _segments),
    "roberta": Example(T.RobertaConfig, T.RobertaForMaskedLM, _one_segment),
    "camembert": Example(T.CamembertConfig, T.CamembertForMaskedLM, _one_segment),
    "electra": Example(T.ElectraConfig, T.ElectraForPreTraining, _electra),
    "electra_generator": Example(T.ElectraConfig, T.ElectraForMaskedLM, _electra),
    "deberta": Example(T.DebertaConfig, T.DebertaForMaskedLM, _deberta_v1),
    "deberta_v2": Example(T.DebertaV2Config, T.DebertaV2ForMaskedLM, _deberta_v2),
    "deberta_v3": Example(T.DebertaV2Config, T.DebertaV2ForMaskedLM, _deberta_v3),
    "modernbert": Example(T.ModernBertConfig, T.ModernBertForMaskedLM, _modernbert),
}
