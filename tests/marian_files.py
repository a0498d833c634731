"""Files of Marian's tokenizers and models, written without PyTorch."""

import io
import json
import pathlib

import numpy as np
import sentencepiece
from safetensors.numpy import load_file, save_file

SOURCES = [
    "the red dog sees a cat.",
    "every small bird likes this house",
    "a happy child finds the old tree, and leaves it.",
]
TARGETS = [
    "der rote Hund sieht eine Katze.",
    "jeder kleine Vogel mag dieses Haus",
    "ein frohes Kind findet den alten Baum, und verläßt ihn.",
]


def sentencepiece_model(texts, size: int) -> bytes:
    """Train a unigram model of about `size` pieces; its special pieces are <unk>, <s> and </s>."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts * 5),
        model_writer=model,
        vocab_size=size,
        model_type="unigram",
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return model.getvalue()


def write_tokenizer(directory: pathlib.Path) -> dict[str, int]:
    """Write two different sentencepiece models and the vocabulary that they share, whose ids are those of neither.

    As in OPUS-MT, </s> is 0, <unk> is 1, <pad> is the last, and there are codes of languages. Returns the vocabulary.
    """
    models = {"source.spm": sentencepiece_model(SOURCES, 60), "target.spm": sentencepiece_model(TARGETS, 61)}
    pieces = set()
    for name, model in models.items():
        (directory / name).write_bytes(model)
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        pieces |= {processor.id_to_piece(id) for id in range(processor.get_piece_size())}
    # A few pieces are left out, so that they become <unk>.
    plain = sorted(pieces - {"<unk>", "<s>", "</s>", "ß", "!"})[::-1]
    vocabulary = {piece: id for id, piece in enumerate(["</s>", "<unk>", *plain, ">>deu<<", "<pad>"])}
    (directory / "vocab.json").write_text(json.dumps(vocabulary))
    settings = {"tokenizer_class": "MarianTokenizer", "source_lang": "eng", "target_lang": "deu"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return vocabulary


WIDTH, HEADS, FEATURES, POSITIONS = 12, 3, 17, 37
LAYERS = {"encoder": 2, "decoder": 3}


def config(words: int, **changed) -> dict:
    """The config.json of a small MarianMT whose padding is the last of its words, with changed keys."""
    sizes = {f"{side}_layers": count for side, count in LAYERS.items()}
    sizes |= {f"{side}_attention_heads": HEADS for side in LAYERS} | {f"{side}_ffn_dim": FEATURES for side in LAYERS}
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "vocab_size": words,
        "decoder_vocab_size": words,
        "d_model": WIDTH,
        **sizes,
        "max_position_embeddings": POSITIONS,
        "activation_function": "relu",
        "scale_embedding": True,
        "pad_token_id": words - 1,
        "eos_token_id": 0,
        "decoder_start_token_id": words - 1,
        "forced_eos_token_id": 0,
        "is_encoder_decoder": True,
        "static_position_embeddings": True,
        "normalize_before": False,
        "share_encoder_decoder_embeddings": True,
        **changed,
    }


def tensors(words: int, tables=("model.shared",), seed: int = 0) -> dict[str, np.ndarray]:
    """Random tensors by MarianMT's names; the embedding of padding, the last word, is zero in each of the tables."""
    rng, shapes = np.random.default_rng(seed), {"final_logits_bias": (1, words)}
    shapes |= {f"{table}.weight": (words, WIDTH) for table in tables}
    for side, count in LAYERS.items():
        for layer in range(count):
            name = f"model.{side}.layers.{layer}"
            for attention in ("self_attn", "encoder_attn")[: 1 if side == "encoder" else 2]:
                for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    shapes |= {f"{name}.{attention}.{projection}.weight": (WIDTH, WIDTH)}
                    shapes |= {f"{name}.{attention}.{projection}.bias": (WIDTH,)}
                shapes |= {f"{name}.{attention}_layer_norm.{part}": (WIDTH,) for part in ("weight", "bias")}
            shapes |= {f"{name}.fc1.weight": (FEATURES, WIDTH), f"{name}.fc1.bias": (FEATURES,)}
            shapes |= {f"{name}.fc2.weight": (WIDTH, FEATURES), f"{name}.fc2.bias": (WIDTH,)}
            shapes |= {f"{name}.final_layer_norm.{part}": (WIDTH,) for part in ("weight", "bias")}
    found = {}
    for name, shape in shapes.items():
        base = 1.0 if name.endswith("layer_norm.weight") else 0.0
        found[name] = (base + 0.3 * rng.standard_normal(shape)).astype(np.float32)
    for table in tables:
        found[f"{table}.weight"][-1] = 0
    return found


def sinusoids(divisor: int, positions: int = POSITIONS, width: int = WIDTH) -> np.ndarray:
    """Sines in the first half of each row and cosines in the second, at 10000^(-i / divisor) radians a position."""
    angles = np.outer(np.arange(positions), 10_000.0 ** (-np.arange(width // 2) / divisor))
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def write_model(directory: pathlib.Path, change=lambda tensors: tensors, tables=("model.shared",), **changed):
    """Write a small MarianMT with two sentencepiece models: `change(tensors)`, and changed keys of config.json."""
    directory.mkdir(parents=True)
    words = len(write_tokenizer(directory))
    (directory / "config.json").write_text(json.dumps(config(words, **changed)))
    generation = {"num_beams": 6, "max_length": POSITIONS, "bad_words_ids": [[words - 1]], "early_stopping": False}
    (directory / "generation_config.json").write_text(json.dumps(generation | {"decoder_start_token_id": words - 1}))
    save_file(change(tensors(words, tables)), directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def read_tensors(directory: pathlib.Path) -> dict[str, np.ndarray]:
    """The tensors of a directory, by name."""
    return load_file(directory / "model.safetensors")
