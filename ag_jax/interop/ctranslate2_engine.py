"""Search translations with CTranslate2, which gets a model's weights directly, with its token ids as the vocabulary.

Shape letters: B batch, K beams, T target length.
"""

import dataclasses
import importlib.util
import itertools
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ag_jax.data.mapping import cores
from ag_jax.interop import marian, names
from ag_jax.models.beam_search import Hypotheses, penalty
from ag_jax.models.decoding_config import DecodingConfig, parse_length
from ag_jax.pretraining.translate import TOKENS, Engine, Translator

_ACTIVATIONS = {"gelu": "GELU", "relu": "RELU", "silu": "SWISH"}
NEVER = -1e9  # output bias of forbidden tokens
# Scores are divided by length^penalty. By a penalty of exactly 0 the search of a sentence would end when its best beam
# ends, even if fewer than K hypotheses have ended; with this one, scores are divided by 1.
NO_PENALTY = 1e-30


def with_ctranslate2(translator: Translator) -> Translator:
    """Return a translator that searches with CTranslate2, in float32 on all cores that this process may use.

    Raises ValueError if the package is missing, if it does not compute what the model does, or if it cannot search by
    the settings of decoding.
    """
    if importlib.util.find_spec("ctranslate2") is None:
        raise ValueError(
            "--engine=ctranslate2 needs the package ctranslate2: pip install 'ag_jax[ctranslate2]', or leave --engine "
            "out"
        )
    import ctranslate2

    check(translator.config)
    with tempfile.TemporaryDirectory() as folder:  # it takes a model from files only, and keeps it in memory
        _specification(translator).save(folder)
        # One thread for each batch: threads that share a batch wait for one another busily, which on cores that other
        # programs use takes many times as long.
        loaded = ctranslate2.Translator(folder, compute_type="float32", inter_threads=cores(), intra_threads=1)
    search = _Search(loaded, translator.tokenizer.specials.end)
    return dataclasses.replace(translator, engine=Engine(f"ctranslate2 {ctranslate2.__version__}", search))


def check(config: DecodingConfig) -> None:
    """Raise ValueError for settings of decoding by which CTranslate2 cannot search, with those by which it can."""
    instead = {}
    # Greedy search compares no hypotheses of different lengths, so its result does not depend on the normalization.
    if config.beam_size > 1 and config.normalization == "gnmt" and config.length_penalty:
        instead["normalization"] = "power"
    if config.stop != "full":
        instead["stop"] = "full"
    if config.ends != "first":
        instead["ends"] = "first"
    # It gives the probability of an end token that comes too early to the other tokens, which changes scores.
    shortest = parse_length(config.min_length, "decoding.min_length")
    if shortest.factor or shortest.constant > 1:
        instead["min_length"] = "0"
    if instead:
        given = ", ".join(f"{name}={getattr(config, name)}" for name in instead)
        wanted = ",".join(f"{name}={value}" for name, value in instead.items())
        raise ValueError(
            f"--engine=ctranslate2 cannot search by {given} (decoding): add --decoding={wanted}, which may give other "
            "translations, or leave --engine out"
        )


@dataclasses.dataclass(frozen=True)
class _Search:
    """The search of `Engine` by a model that CTranslate2 has loaded.

    end: id of the end token.
    """

    model: Any
    end: int

    def __call__(self, sources: Sequence[Sequence[int]], longest_B: np.ndarray, config: DecodingConfig) -> Hypotheses:
        check(config)
        exponent = 0.0 if config.normalization == "none" else config.length_penalty

        def translate(rows: Sequence[int], limit: int) -> dict[int, Any]:
            results = self.model.translate_batch(
                [[*map(str, sources[row]), str(self.end)] for row in rows],
                max_batch_size=TOKENS,
                batch_type="tokens",
                beam_size=config.beam_size,
                num_hypotheses=config.beam_size,
                length_penalty=exponent or NO_PENALTY,
                max_decoding_length=limit,
                min_decoding_length=0,
                max_input_length=0,  # no truncation
                return_scores=True,
                return_end_token=True,  # so that lengths count it
            )
            return dict(zip(rows, results, strict=True))

        # All sources of a call have one limit. A search that reached the limit of its own sentence is done again with
        # that limit. The last step of a search is the length of the longest hypothesis, as fewer than K ended before.
        found = translate(range(len(sources)), int(max(longest_B)))
        cut = [row for row in found if max(map(len, found[row].hypotheses)) >= longest_B[row] < max(longest_B)]
        for limit, rows in itertools.groupby(sorted(cut, key=lambda row: longest_B[row]), lambda row: longest_B[row]):
            found |= translate(list(rows), int(limit))

        results = [found[row] for row in range(len(sources))]
        lengths_BK: Any = np.array([[*map(len, result.hypotheses)] for result in results], np.int32)
        tokens_BKT: Any = np.full((*lengths_BK.shape, lengths_BK.max()), self.end, np.int32)
        for row, result in enumerate(results):
            for beam, tokens in enumerate(result.hypotheses):
                tokens_BKT[row, beam, : len(tokens)] = [*map(int, tokens)]
        log_probs_BK: Any = np.array([result.scores for result in results], np.float32) * lengths_BK**exponent
        ended_BK: Any = log_probs_BK > NEVER / 2  # others contain a forbidden token
        log_probs_BK = np.where(ended_BK, log_probs_BK, -np.inf)
        scores_BK = log_probs_BK / penalty(config, lengths_BK)
        return jax.device_get(Hypotheses(tokens_BKT, lengths_BK, log_probs_BK, scores_BK, ended_BK))


def _specification(translator: Translator) -> Any:
    """Return a model as CTranslate2's `TransformerSpec`, whose tokens are the token ids as texts.

    Raises ValueError for a model that it does not compute.
    """
    from ctranslate2.specs import TransformerSpec
    from ctranslate2.specs.common_spec import Activation

    config, decoder, specials = translator.model.config, translator.model.decoder_config, translator.tokenizer.specials
    if reasons := marian.misfits(config, decoder):
        listed = "\n".join(f"  {reason}" for reason in reasons)
        raise ValueError(
            "--engine=ctranslate2 computes what a MarianMT does, and this model does something else: leave --engine "
            f"out; reasons:\n{listed}"
        )
    arrays = {path: np.asarray(leaf) for path, leaf in names.flat(translator.params).items()}
    arrays = marian.with_biases(arrays, decoder.tie)
    entries = names.stored_tensors(marian.MARIAN[decoder.tie].names, {path: a.shape for path, a in arrays.items()})
    tensors = names.store(entries, arrays, np.dtype(np.float32)) | marian.MARIAN[decoder.tie].constants(config)

    model = TransformerSpec.from_config(
        (config.layers, decoder.layers),
        config.heads,
        pre_norm=False,
        activation=Activation[_ACTIVATIONS[config.activation]],
    )
    model.decoder.start_from_zero_embedding = decoder.start == "zero"
    words = arrays["encoder/embeddings/word/embedding"]
    target_words = arrays.get("target_embeddings/word/embedding", words)
    for side, table, name in (
        (model.encoder, model.encoder.embeddings[0], "encoder"),
        (model.decoder, model.decoder.embeddings, "decoder"),
    ):
        table.weight = np.asarray(words if name == "encoder" else target_words, np.float32)
        side.scale_embeddings = config.width**0.5 if config.embedding_scale else 1.0
        side.position_encodings.encodings = tensors[f"model.{name}.embed_positions.weight"]
        for number, layer in enumerate(side.layer):
            _fill(layer, tensors, f"model.{name}.layers.{number}")
    bias = np.array(arrays["output_bias"], np.float32)
    bias[list(translator.forbidden)] = NEVER
    model.decoder.projection.weight = np.asarray(arrays.get("output_words/embedding", target_words), np.float32)
    model.decoder.projection.bias = bias

    ids = [str(id) for id in range(len(words))]
    model.register_source_vocabulary(ids)
    model.register_target_vocabulary(ids)
    model.config.unk_token, model.config.eos_token = str(specials.unknown), str(specials.end)
    model.config.bos_token = model.config.decoder_start_token = str(translator.start)
    model.validate()
    model.optimize()
    return model


def _fill(layer: Any, tensors: Mapping[str, np.ndarray], name: str) -> None:
    """Set the weights of a layer of a `TransformerSpec`.

    tensors: the weights, by their names in transformers.
    name: of the layer there, with which its tensors' names begin.
    """

    def fill(part: Any, fields: tuple[str, str], *theirs: str) -> None:
        for field, kind in zip(fields, ("weight", "bias"), strict=True):
            setattr(part, field, np.concatenate([tensors[f"{name}.{one}.{kind}"] for one in theirs]))

    linear, norm = ("weight", "bias"), ("gamma", "beta")
    attention = layer.self_attention
    fill(attention.linear[0], linear, *(f"self_attn.{one}_proj" for one in "qkv"))
    fill(attention.linear[1], linear, "self_attn.out_proj")
    fill(attention.layer_norm, norm, "self_attn_layer_norm")
    if hasattr(layer, "attention"):  # of the decoder to the source
        fill(layer.attention.linear[0], linear, "encoder_attn.q_proj")
        fill(layer.attention.linear[1], linear, "encoder_attn.k_proj", "encoder_attn.v_proj")
        fill(layer.attention.linear[2], linear, "encoder_attn.out_proj")
        fill(layer.attention.layer_norm, norm, "encoder_attn_layer_norm")
    fill(layer.ffn.linear_0, linear, "fc1")
    fill(layer.ffn.linear_1, linear, "fc2")
    fill(layer.ffn.layer_norm, norm, "final_layer_norm")
