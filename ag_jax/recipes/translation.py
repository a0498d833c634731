"""Settings of translation that several config files share, each with its source."""

import dataclasses
import functools
import pathlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ag_jax.data.parallel import layouts
from ag_jax.data.parallel import pairs as parallel_pairs
from ag_jax.data.parallel.pairs import PairFiles
from ag_jax.pretraining import config as pretraining_config
from ag_jax.pretraining import finished
from ag_jax.settings import schema

Config = Any  # an `ml_collections.ConfigDict` from `pretraining.config.default_config`
Files = tuple[str, str]  # files or globs of texts, and of their translations

DATASETS = ("multi30k", "iwslt16", "iwslt14", "wmt14")
ARMS = ("base", "hard_coded", "ag")  # table 7 of Deshpande & Narasimhan 2020
# Arms that need word alignments, with the arguments of `guided`.
ALIGNED_ARMS = {
    "alignment": {"heads": "", "cross_heads": "alignment:1"},
    "ag_alignment": {"cross_heads": "alignment:1"},
}


def transformer(config: Config, *, layers: int, heads: int, width: int, feedforward: int, dropout: float) -> None:
    """Set the model to an encoder-decoder Transformer (Vaswani et al. 2017), with `layers` layers on each side.

    LayerNorm after the residual sums, ReLU, sinusoidal positions, word embeddings times sqrt(width) and shared by
    source, target and output, no LayerNorm on embeddings, no dropout in attention. Weights are drawn with the standard
    deviation width^-0.5: that of the word embeddings in stupidNMT (You et al. 2020) and in fairseq, and of its Xavier
    initialisation for square matrices.
    """
    config.model.update(
        layers=layers,
        heads=heads,
        width=width,
        feedforward=feedforward,
        dropout=dropout,
        attention_dropout=0.0,
        positions="sinusoidal",
        position_offset=0,
        token_types=0,
        embedding_norm=False,
        embedding_scale=True,
        activation="relu",
        initializer_range=width**-0.5,
    )
    config.decoder.layers = layers


def pairs(config: Config, *, vocabulary: int, length: int) -> None:
    """Set the data to packed pairs of texts, with a joint tokenizer of `vocabulary` pieces (SentencePiece, unigram).

    length: number of tokens of each side of a row.
    """
    config.data.update(format="parallel", pack=True, sequence_length=length)
    config.data.tokenizer.update(kind="sentencepiece_unigram", vocabulary_size=vocabulary)
    config.model.max_length = max(length, 256)  # texts to translate may be longer than those of training


def corpus(config: Config, name: str, folder: str, source: str, target: str) -> None:
    """Set the files of a published corpus: pairs for training and validation, and test sets.

    name: one of `DATASETS`.
    folder: the folder into which the archives of the corpus were unpacked.
    source, target: the languages, such as en and de.

    The first text of the training pairs becomes the one whose attention maps reports show. Raises FileNotFoundError,
    with the names of the files, if some are missing.
    """
    parts = layouts.find(name, folder, source, target)
    config.data.update(source=parts.train.source, target=parts.train.target)
    _show_first(config, parts.train)
    if parts.validation is not None:
        config.data.update(validation_source=parts.validation.source, validation_target=parts.validation.target)
    config.translation.tests = tuple(f"{test}={files.source}={files.target}" for test, files in parts.tests.items())


def iwslt16(config: Config) -> None:
    """Set model and training to those of You et al. 2020 on IWSLT16, which Deshpande & Narasimhan 2020 follow.

    5 + 5 layers of width 288, batches of 6,000 tokens of source and target together, learning rate 3e-4 that falls
    linearly in 100,000 steps, no warm-up and no label smoothing; projections of attention without biases. From the code
    released with You et al. 2020, except that the learning rate ends at 0 instead of 1e-5, the tokenizer is trained on
    the training text alone, with SentencePiece, the source ends with </s>, the decoder begins with a vector of zeros
    instead of a learned one, and sinusoids have Marian's order of sines and cosines.
    """
    transformer(config, layers=5, heads=4, width=288, feedforward=507, dropout=0.1)
    config.model.attention_biases = False
    pairs(config, vocabulary=32_000, length=128)
    config.translation.update(label_smoothing=0.0, average=5)
    config.optimizer.update(learning_rate=3e-4, beta1=0.9, beta2=0.98, epsilon=1e-9, clip_norm=None)
    config.training.update(steps=100_000, batch_size=24, keep_last=5)


def wmt14(config: Config) -> None:
    """Set model and training to those of You et al. 2020 on WMT14: the base model of Vaswani et al. 2017.

    6 + 6 layers of width 512, batches of 50,800 tokens of source and target together, 100,000 steps, label smoothing
    0.1. From the released code, with the deviations of `iwslt16` but for its learning rate; epsilon is spread over all
    words but the label, where that code has a distribution that sums to less than 1.
    """
    transformer(config, layers=6, heads=8, width=512, feedforward=2048, dropout=0.1)
    config.model.attention_biases = False
    pairs(config, vocabulary=32_000, length=256)
    config.translation.update(label_smoothing=0.1, average=5)
    config.optimizer.update(
        learning_rate=(512 * 4000) ** -0.5,
        warmup_steps=4_000,
        decay="inverse_sqrt",
        beta1=0.9,
        beta2=0.98,
        epsilon=1e-9,
        clip_norm=None,
    )
    config.training.update(steps=100_000, batch_size=104, keep_last=5)


def iwslt14(config: Config) -> None:
    """Set model and training to fairseq's recipe for IWSLT14.

    6 + 6 layers of width 512, dropout 0.3, batches of 4,096 target tokens, and 50,000 steps.
    """
    transformer(config, layers=6, heads=4, width=512, feedforward=1024, dropout=0.3)
    pairs(config, vocabulary=10_000, length=128)
    config.data.validation_fraction = 0.0435  # one pair in 23
    config.translation.update(label_smoothing=0.1, average=5)
    config.decoding.update(beam_size=5, normalization="power", length_penalty=1.0)
    config.optimizer.update(
        learning_rate=5e-4,
        warmup_steps=4_000,
        decay="inverse_sqrt",
        beta1=0.9,
        beta2=0.98,
        weight_decay=1e-4,
        clip_norm=None,
    )
    config.training.update(steps=50_000, batch_size=34, keep_last=5)


def multi30k(config: Config) -> None:
    """Set model and training to the tiny Transformer of Wu et al. 2021 for the 29,000 pairs of Multi30k.

    The paper is Good for Misconceived Reasons. 4 + 4 layers of width 128, dropout 0.3, at most 8,000 updates of 8,192
    target tokens, average of the last ten checkpoints, one for each epoch, beam 5. Their text is lowercased and
    tokenised, with 10,000 joint pieces; here it is raw, with 8,000. There is no early stopping, which they have with a
    patience of ten epochs.
    """
    transformer(config, layers=4, heads=4, width=128, feedforward=256, dropout=0.3)
    pairs(config, vocabulary=8_000, length=64)
    config.translation.update(label_smoothing=0.1, average=10)
    config.decoding.update(beam_size=5, normalization="power", length_penalty=1.0)
    config.optimizer.update(
        learning_rate=5e-3, warmup_steps=2_000, decay="inverse_sqrt", beta1=0.9, beta2=0.98, clip_norm=None
    )
    config.training.update(
        steps=8_000, batch_size=136, evaluate_every=400, checkpoint_every=50, keep_last=10, log_every=50
    )


def small(config: Config) -> None:
    """Set model and training to what two CPU cores train in about 10 minutes.

    3 + 3 layers of width 128, and about 6 million target tokens in 3,000 batches. Of the learning rates 2e-3, 3e-3,
    4e-3 and 6e-3, 3e-3 gave the lowest validation NLL after 1,200 steps on Multi30k,
    without guidance: 2.60, 2.50, 2.53, 2.71.
    """
    transformer(config, layers=3, heads=4, width=128, feedforward=256, dropout=0.2)
    pairs(config, vocabulary=4_000, length=64)
    config.translation.update(label_smoothing=0.1, average=5)
    config.decoding.update(beam_size=4)
    config.training.update(
        steps=3_000, batch_size=34, evaluate_every=300, checkpoint_every=100, keep_last=5, log_every=50
    )
    config.optimizer.update(learning_rate=3e-3, decay="inverse_sqrt", beta1=0.9, beta2=0.98, clip_norm=1.0)
    config.optimizer.warmup_steps = config.training.get_ref("steps") // 5


@dataclasses.dataclass(frozen=True)
class Size:
    """A model size for custom training pairs: the recipe of a published corpus, and what differs from it.

    recipe: sets model and training.
    pairs: number of training pairs of the recipe's corpus.
    below: number of training pairs below which this is the right size.
    length: number of tokens of each side of a row.
    rows: rows of a batch; with `length`, as many tokens as in the recipe.
    held_out: share of the training pairs that is for validation, unless there are files for validation.
    """

    recipe: Callable[[Config], None]
    pairs: int
    below: float
    length: int
    rows: int
    held_out: float


SIZES = {
    "tiny": Size(multi30k, 29_000, 50_000, length=128, rows=64, held_out=0.05),
    "small": Size(iwslt14, 160_000, 500_000, length=128, rows=32, held_out=0.01),
    "base": Size(wmt14, 4_500_000, float("inf"), length=256, rows=104, held_out=0.002),
}
FEWEST_STEPS = 1_000
PAIRS_PER_ROW = 50  # a batch has at most one row for so many pairs, so that a corpus has several batches


def size_for(pair_count: int) -> str:
    """Return the name, in `SIZES`, of the model size that suits `pair_count` training pairs, and print it."""
    name = next(name for name, size in SIZES.items() if pair_count < size.below)
    note_size(pair_count, name)
    return name


@functools.cache  # printed once, although the config of every arm is made
def note_size(pair_count: int, name: str) -> None:
    """Print which model size is used for `pair_count` training pairs, and how to choose another."""
    others = " or ".join(f"size={other}" for other in SIZES if other != name)
    print(f"{pair_count:,} training pairs: size={name} is used; {others} chooses another", file=sys.stderr)


def custom_size(config: Config, name: str, pair_count: int, steps: int | None = None) -> None:
    """Set model and training to the size `name` in `SIZES`, for `pair_count` custom pairs; None computes `steps`.

    tiny: 4 + 4 layers of width 128, as `multi30k`.
    small: 6 + 6 layers of width 512 with 1,024 feed-forward features, as `iwslt14`.
    base: 6 + 6 layers of width 512 with 2,048 feed-forward features, as `wmt14`, with biases in attention.

    A corpus that is smaller than the recipe's is passed over as often, so it has fewer steps, but at least
    `FEWEST_STEPS`. `steps` replaces their number. At most the first quarter of the steps is warm-up; where this is
    shorter than in the recipe, the peak of the learning rate is lower, by the square root. With fewer than
    `PAIRS_PER_ROW` pairs for each row of a batch, batches have fewer rows, a power of two. The tokenizer is byte-level
    BPE, which knows all characters, and which has fewer pieces if the text has too few different words.
    """
    size, training = SIZES[name], config.training
    size.recipe(config)
    config.model.attention_biases = True
    config.data.update(sequence_length=size.length, validation_fraction=size.held_out)
    config.data.tokenizer.kind = "byte_bpe"
    published = training.steps
    training.steps = steps or min(published, max(FEWEST_STEPS, published * pair_count // size.pairs))
    fitting = max(1, pair_count // PAIRS_PER_ROW)
    training.batch_size = size.rows if fitting >= size.rows else 1 << (fitting.bit_length() - 1)
    training.microbatches = 1
    # Ten evaluations and twenty checkpoints at least, so that short runs have curves and checkpoints to average, too.
    training.evaluate_every = max(1, min(training.evaluate_every, training.steps // 10))
    training.checkpoint_every = max(1, min(training.checkpoint_every, training.steps // 20))
    training.log_every = max(1, min(training.log_every, training.steps // 20))
    warmup = min(config.optimizer.warmup_steps, training.steps // 4)
    # Without this, tiny's 5e-3 throws a model with 30 steps of warm-up back beyond the loss of guessing words.
    config.optimizer.learning_rate *= (max(warmup, 1) / config.optimizer.warmup_steps) ** 0.5
    config.optimizer.warmup_steps = warmup


def custom_pairs(config: Config, train: Files, validation: Files, test: Files, fields: Mapping[str, Any]) -> int:
    """Set a config to read custom pairs of texts from files; return the number of training pairs.

    train, validation, test: the files with the texts and those with their translations, empty if there are none.
    fields: the keys or columns `source_field` and `target_field` of files that have both, and `skip_null`.

    The first text of `source` becomes the one whose attention maps reports show. Raises ValueError or FileNotFoundError
    for files that cannot be used. Also the test set is read: it is needed only after the training, when an error would
    come late.
    """
    source, target = train
    pairs = PairFiles(source, target or None, **fields, setting="source", target_setting="target")
    pair_count = pairs.line_count()
    config.data.update(source=pairs.source, target=pairs.target, **fields)
    _show_first(config, pairs)
    for part, (source, target) in {"validation": validation, "test": test}.items():
        if target and not source:
            raise ValueError(f"{part}_target={target} translates nothing: give its texts as {part}_source")
        if part == "validation" and source:
            config.data.update(validation_source=source, validation_target=target or None)
        elif source:
            if not target:
                raise ValueError(
                    f"test_source={source} has no references: give the file with its translations as test_target; the "
                    "columns of a .tsv must be files of their own"
                )
            parallel_pairs.read_test_set(PairFiles(source, target, setting="test_source", target_setting="test_target"))
            config.translation.tests = (f"test={source}={target}",)
    return pair_count


def _show_first(config: Config, pairs: PairFiles) -> None:
    """Set reports to show the attention maps of the first source text in the files `pairs`."""
    config.inspection.sentence = next((pair.source for pair in pairs if pair.source), config.inspection.sentence)


RECIPES = {"multi30k": multi30k, "iwslt16": iwslt16, "iwslt14": iwslt14, "wmt14": wmt14}


def default(title: str) -> Config:
    """Return a config for translation with all settings at their defaults, and `title` as the title of reports."""
    config = pretraining_config.default_config()
    config.title = title
    return config


def hard_coded(config: Config) -> None:
    """Set the self-attention of encoder and decoder to hard-coded Gaussians (You et al. 2020, their HC-SA).

    They are around the previous and the next token in the encoder, the previous and the present one in the decoder.
    """
    config.model.fixed_attention.offsets = (-1, 1)
    config.decoder.fixed_attention.offsets = (-1, 0)


def arms(
    config: Config, arm: str, alpha: float, alignments: str = "", validation_alignments: str = "", **heads: str
) -> None:
    """Set a config to an arm, of `ARMS` or `ALIGNED_ARMS`, and name the arms that `ag-jax compare` trains.

    alpha: coefficient of the guidance at the first step.
    alignments, validation_alignments: files with the word alignments of the pairs (`data.alignments`), empty if there
        are none. The arms to compare are then with and without guidance of the encoder (`ag`), and with and without
        guidance of a cross-attention head of every layer towards the aligned source word (`alignment`).
    heads: arguments of `guided` in which another arm differs from `ag`.
    """
    config.data.update(alignments=alignments or None, validation_alignments=validation_alignments or None)
    config.comparison.arms = ",".join(("base", "ag", *ALIGNED_ARMS) if alignments else ARMS)
    if arm == "hard_coded":
        hard_coded(config)
    elif arm != "base":
        guided(config, alpha=alpha, **ALIGNED_ARMS.get(arm, heads))


def guided(
    config: Config,
    heads: str = "next:1,prev:1",
    decoder_heads: str | None = None,
    cross_heads: str | None = None,
    alpha: float = 1.0,
) -> None:
    """Guide encoder heads to the patterns `heads`, and decoder heads to the others; None leaves them unguided.

    By default, encoder heads attend to the next and the previous token (Deshpande & Narasimhan 2020, section 5.5).

    heads, decoder_heads, cross_heads: counts of heads for each pattern, as in the settings of the section guidance.
    alpha: coefficient at the first step. The paper gives none; of 1, 10 and 100, 1 gives the lowest validation NLL on
        Multi30k with the settings of `small` (one seed, benchmarks/results/table7_multi30k_alpha.json); it is lower
        than without guidance with three seeds (table7_multi30k_alpha_1.json).
    """
    config.guidance.update(mode="loss", heads=heads, decoder_heads=decoder_heads, cross_heads=cross_heads, alpha=alpha)


def continue_from(config: Config, directory: str) -> None:
    """Set a config to continue to train the translation model of the run at `directory`.

    It gets the run's weights, model, tokenizer and settings of decoding. Rows are packed, with as many tokens on each
    side as the model has positions, 256 at most.

    Raises ValueError if `directory` is not a run directory, or its run does not translate.
    """
    path, parsed = finished.run(directory)
    if not parsed.translates:
        raise ValueError(
            f"run={directory} pre-trains an encoder, expected a run that translates; continue it with "
            "--config=continue_pretraining"
        )
    settings = schema.to_dict(parsed)
    for section in ("model", "decoder", "decoding"):
        getattr(config, section).update(settings[section])
    config.data.update(format="parallel", pack=True, sequence_length=min(256, config.model.max_length))
    config.data.tokenizer.path = str(path / "tokenizer")
    config.training.initial_weights = str(path)


def languages(text: str) -> tuple[str, str]:
    """Split a pair of languages such as `en-de`. Raises ValueError for another form."""
    parts = text.split("-")
    if len(parts) != 2 or not all(parts):
        raise ValueError(f"expected two languages with a hyphen, such as languages=en-de, got {text!r}")
    return parts[0], parts[1]


def folder_of(name: str, folder: str) -> str:
    """Return the subfolder that has the name of a corpus, if there is one in `folder`, else `folder` itself."""
    inside = pathlib.Path(folder).expanduser() / name
    return str(inside) if inside.is_dir() else folder
