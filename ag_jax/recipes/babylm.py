"""Settings of the BabyLM challenge: its tracks, its milestones by words seen, and encoders of a size for them.

The tracks, the limit of ten epochs and the milestones are those of the challenge (Charpentier et al. 2025, BabyLM Turns
3: Call for papers for the 2025 BabyLM workshop). Sizes and hyperparameters are our choice and were not tuned.
"""

from typing import Any

from ag_jax.data.records import babylm as files
from ag_jax.recipes import pretraining

ARMS = ("plain", "guided", "deberta", "modernbert", "electra")
COMPARED = "plain,guided,deberta,modernbert"  # electra's loss is that of another task
MILLION = 1_000_000
EPOCHS = 10

# Words of the text, layers, heads, width, vocabulary, rows of a batch, learning rate and steps of warm-up.
TRACKS: dict[str, tuple[int, int, int, int, int, int, float, int]] = {
    "strict_small": (10 * MILLION, 12, 6, 384, 8192, 64, 1e-3, 200),
    "strict": (100 * MILLION, 12, 12, 768, 16384, 128, 5e-4, 1000),
}
SMALL = (1 * MILLION, 4, 6, 96, 4096, 32, 2e-3, 300)
SMALL_WORDS = 3 * MILLION


def milestones(words: int) -> tuple[int, ...]:
    """Return the numbers of words seen, up to `words`, after which the challenge wants a checkpoint.

    Every million up to ten, every ten millions up to a hundred, then every hundred millions.
    """
    counts = [count * unit * MILLION for unit in (1, 10, 100) for count in range(1, 11 if unit == 100 else 10)]
    return tuple(count for count in counts if count <= words)


def track(config: Any, name: str, arm: str, source: str, dev: str, scale: str) -> None:
    """Set a config to pre-train the encoder `arm`, one of `ARMS`, for the track `name` of the BabyLM challenge.

    name: track, a key of `TRACKS`.
    arm: one of `ARMS`.
    source: folder with the six training files; with scale=small, any source of text.
    dev: folder with the six held-out files. If it is empty, they are looked for in `source`, and if they are not
        there, a share of the training text is held out.
    scale: `paper` or `small`.

    Raises ValueError if `dev` is given with scale=small.
    """
    is_small = scale == "small"
    words, layers, heads, width, vocabulary, rows, learning_rate, warmup_steps = SMALL if is_small else TRACKS[name]
    length, seen = (64, SMALL_WORDS) if is_small else (512, EPOCHS * words)
    if is_small and dev:
        raise ValueError(f"dev={dev} is read with the files of the challenge, not with scale=small: leave it out")
    config.title = f"BabyLM, {name.replace('_', '-')}" + (", at a small scale" if is_small else "")
    config.data.update(
        source=source if is_small else f"babylm:{source}",
        max_words=words,
        format="full_sentences",
        sequence_length=length,
        validation_fraction=0.02,
    )
    held_out = dev or (source if not is_small and files.has_split(source, "dev") else "")
    if held_out:
        config.data.validation_source = f"babylm:{held_out}:dev"
    config.data.tokenizer.update(kind="byte_bpe", vocabulary_size=vocabulary)
    config.model.update(layers=layers, heads=heads, width=width)
    config.model.dtype = "float32" if is_small else "bfloat16"
    config.optimizer.update(
        learning_rate=learning_rate, warmup_steps=warmup_steps, beta1=0.9, beta2=0.98, epsilon=1e-8, weight_decay=0.1
    )
    config.training.update(
        words=seen,  # words, not steps: the challenge limits and compares models by the words that they have seen
        max_epochs=float(EPOCHS),
        milestone_words=milestones(seen),
        batch_size=rows,
        log_every=20,
        evaluate_every=500,
        checkpoint_every=500,
    )
    _arm(config, arm, length, is_small)
    config.model.max_length = config.data.get_oneway_ref("sequence_length")
    config.comparison.arms = COMPARED


def _arm(config: Any, arm: str, length: int, is_small: bool) -> None:
    """Set architecture, objective and guidance to those of `arm`, one of the compared encoders in `ARMS`."""
    sizes: dict[str, Any] = {name: config.model[name] for name in ("layers", "heads", "width")}
    if arm == "guided":
        # Table 11 of Deshpande & Narasimhan 2020 for 12 layers and 512 tokens; at 64 tokens as in the quickstart.
        config.guidance.update(mode="loss", fraction=0.5, alpha=1.0 if is_small else 10.0)
    elif arm == "deberta":
        # Without the mask decoder, which transformers has not.
        pretraining.encoder(config, "deberta_v3")
        config.model.update(sizes | {"absolute_positions": "none", "mask_decoder_passes": 0})
        config.model.relative.update(span=length, buckets=length // 2)
    elif arm == "modernbert":
        pretraining.encoder(config, "modernbert_base")
        # Three matrices of a gated layer have the parameters of two that are half as wide again. The preset's base of
        # rotary positions is for 8,192 tokens.
        config.model.update(sizes | {"feedforward": 8 * sizes["width"] // 3, "rotary_base": 10_000.0})
        config.model.window = min(128, length // 2)
    elif arm == "electra":
        config.replaced_tokens.generator = "mlm"
        config.data.masking.update(mask_fraction=0.85, random_fraction=0.0)
        config.model.update(token_types=2, position_offset=0, layer_norm_epsilon=1e-12)
