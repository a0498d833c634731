"""Static masks, input formats, batch sizes and more text (Liu et al. 2019, tables 1 to 4), in small models; recorded.

    python benchmarks/roberta_evidence.py --workdir=DIR --source=NOVELS --experiment=masking

NOVELS is a folder with a .txt file for each novel, such as those of LitBank. One in fifty is held out, and all models
of an experiment predict the same masked tokens of these. The model is the quickstart's, with rotary positions and
without guidance; the rest is what configs/roberta/ has at scale=small. The experiments are

    masking    4 masks of each sequence in turn, 1 mask, or a new one in each epoch; 15 epochs of 500,000 words
    formats    the input formats of table 2, with as many tokens in a step. All models are measured in two formats,
               `doc_sentences` and `segment_pair_nsp`, the latter without its label (`losses`)
    batches    16, 64 and 256 sequences in a batch. A further seed chooses the learning rate of each among four, by the
               loss after two fifths of the tokens
    text       2 million tokens of the novels, 8 million, or all, for equally many steps

Every arm is trained with three seeds. The tokenizer is trained on all novels that are not held out.

The configs are changed in what keeps them from telling the arms apart: sizes of batches and of text; fewer masks,
because no sequence comes ten times; and in formats sequences of 128 tokens, because 64 have room for hardly more than a
pair of sentences. Novels are so long that full and doc sentences would be the same but for 38 sequences; therefore the
documents of formats are passages of novels, of about 150 words and in random order. The learning rate is the
quickstart's, as is the warm-up, a fifth of the steps.

A run is a result in roberta_EXPERIMENT/ in the folder --results: losses, epochs, and the step at which it left the
plateau. Runs that have a result are skipped, others are resumed; several processes may share the work.

Hardware and time: a million tokens, padding included, take about a minute on 2 CPU cores that nothing else uses.
masking has 9 runs of 15 million, formats 12 of 6 to 13, batches 12 of 3 and 9 of 8, text 9 of 10.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import evidence
import guidance_evidence
import guidance_pointers
import numpy as np
from etils import epath
from evidence import Line

from ag_jax.data import pipeline
from ag_jax.data.config import DataConfig, Format, TokenizerConfig
from ag_jax.data.records import sources
from ag_jax.data.text import holdout
from ag_jax.data.text.sentences import join_sentences, split_sentences
from ag_jax.pretraining import corpus as pretraining_corpus
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.pretraining.open_run import OpenRun, open_run

NAME = "roberta"
FORMATS = ("segment_pair_nsp", "sentence_pair_nsp", "full_sentences", "doc_sentences")
WORDS = {"2M": 1_250_000, "8M": 5_000_000, "all": None}  # of text
STATIC, SHORT = "roberta/table1_masking:scale=small,arm=static", {"data.max_words": 500_000}
# The config of each arm, and the settings in which it differs.
ARMS: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "masking": {
        "static_4": (STATIC, SHORT | {"data.masking.static_copies": 4}),
        "static_1": (STATIC, SHORT | {"data.masking.static_copies": 1}),
        "dynamic": ("roberta/table1_masking:scale=small,arm=dynamic", SHORT),
    },
    "formats": {
        arm: (f"roberta/table2_input_formats:scale=small,arm={arm}", {"data.sequence_length": 128}) for arm in FORMATS
    },
    "batches": {
        str(rows): (
            f"roberta/table3_batch_size:scale=small,arm={arm}",
            {"training.batch_size": rows, "training.microbatches": 1},
        )
        for rows, arm in {16: "256", 64: "2k", 256: "8k"}.items()
    },
    "text": {
        arm: ("roberta/table4_data_and_steps:scale=small,arm=more_text,data=NOVELS", {"data.max_words": words})
        for arm, words in WORDS.items()
    },
}
TOKENS = {"masking": 15_300_000, "formats": 6_000_000, "batches": 8_000_000, "text": 10_000_000}
TOKENS_A_STEP = 2048  # of formats, without padding
LEARNING_RATE = 2e-3
RATES = {"16": (5e-4, 1e-3, 2e-3, 4e-3), "64": (1e-3, 2e-3, 4e-3, 8e-3), "256": (2e-3, 4e-3, 8e-3, 16e-3)}
SEEDS, SEED_OF_RATES = (0, 1, 2), 100
MODEL = {
    "model.layers": 8,
    "model.heads": 6,
    "model.width": 96,
    "model.positions": "rotary",
}  # of configs/quickstart.py
EVALUATIONS, EVALUATED = 10, 2048  # during a run, and held-out rows of each
MEASURED: tuple[Format, ...] = ("doc_sentences", "segment_pair_nsp")  # formats of the losses of `formats`
TOGETHER = 64  # rows of a batch of these
HELD_OUT = 0.02  # share of the novels
PASSAGE = 150  # words


@dataclasses.dataclass(frozen=True)
class Texts:
    """The texts of an experiment, as data sources.

    train: the novels, or passages of them, that models are trained on.
    held_out: the novels on which all are measured.
    tokenizer: the tokenizer of all, trained on `train`.
    """

    train: str
    held_out: str
    tokenizer: str


@dataclasses.dataclass(frozen=True)
class Run(evidence.Point):
    """A run that is recorded as one line.

    tokens: those of all steps; they include padding, but in formats, whose arms have differently much of it.
    """

    experiment: str
    arm: str
    learning_rate: float
    tokens: int
    seed: int

    def config(self, texts: Texts) -> ExperimentConfig:
        """Return the config of the run."""
        source, settings = ARMS[self.experiment][self.arm]
        overrides = MODEL | settings
        overrides |= {
            "data.source": texts.train,
            "data.validation_source": texts.held_out,
            "data.validation_rows": EVALUATED,
            "data.tokenizer.path": texts.tokenizer,
            "optimizer.learning_rate": self.learning_rate,
            "seed": self.seed,
        }
        config = guidance_evidence.parsed(source, overrides)
        batch_size, a_step = config.training.batch_size, config.training.batch_size * config.data.sequence_length
        if self.experiment == "formats":
            rows = pipeline.prepare(config.data, quiet=True).train
            batch_size, a_step = round(TOKENS_A_STEP * len(rows) / len(rows.tokens)), TOKENS_A_STEP
        steps = self.tokens // a_step
        overrides |= {
            "training.batch_size": batch_size,
            "training.steps": steps,
            "training.evaluate_every": max(1, steps // EVALUATIONS),
            "optimizer.warmup_steps": steps // 5,
        }
        return guidance_evidence.parsed(source, overrides)


def ready(experiment: str, lines: Sequence[Line]) -> tuple[list[Run], bool]:
    """Return the cells that choose learning rates, and when these are done, all others; whether none follow."""
    arms, tokens, cells = ARMS[experiment], TOKENS[experiment], list[Run]()
    rates = dict.fromkeys(arms, LEARNING_RATE)
    if experiment == "batches":
        tried = {
            arm: [Run(experiment, arm, rate, tokens * 2 // 5, SEED_OF_RATES) for rate in RATES[arm]] for arm in arms
        }
        cells = [cell for of_arm in tried.values() for cell in of_arm]
        best = evidence.chosen(tried, lines)
        if best is None:
            return cells, False
        rates = {arm: of_arm.learning_rate for arm, of_arm in best.items()}
    return cells + [Run(experiment, arm, rates[arm], tokens, seed) for seed in SEEDS for arm in arms], True


def passages(novel: str) -> Iterator[str]:
    """Yield the passages of a novel, of whole sentences with `PASSAGE` words or more; the last may have fewer."""
    sentences, words = list[str](), 0
    for sentence in split_sentences(novel):
        sentences.append(sentence)
        words += len(sentence.split())
        if words >= PASSAGE:
            yield join_sentences(sentences)
            sentences, words = [], 0
    if sentences:
        yield join_sentences(sentences)


def prepared(source: pathlib.Path, root: epath.Path, experiment: str) -> Texts:
    """Write the texts of an experiment below `root`, and return them.

    source: the folder of novels.

    Raises ValueError for fewer than two novels.
    """
    novels = [path.read_text(encoding="utf-8") for path in sorted(source.glob("*.txt"))]
    is_held_out = holdout.is_held_out(np.arange(len(novels)), HELD_OUT)
    train = [novel for novel, is_held in zip(novels, is_held_out, strict=True) if not is_held]
    held_out = [novel for novel, is_held in zip(novels, is_held_out, strict=True) if is_held]
    if not held_out:
        raise ValueError(f"--source={source}: expected at least two novels as .txt files, got {len(novels)}")
    if experiment == "formats":
        every = [passage for novel in train for passage in passages(novel)]
        train = [every[place] for place in np.random.default_rng(0).permutation(len(every))]
    file, file_held_out = sources.spool(train, root, "train"), sources.spool(held_out, root, "held_out")
    tokenizer = file.with_suffix(".tokenizer")
    if not tokenizer.exists():
        data = DataConfig(
            str(file), validation_source=str(file_held_out), tokenizer=TokenizerConfig(vocabulary_size=4096)
        )
        pipeline.prepare_tokenizer(data).save(tokenizer)
    return Texts(str(file), str(file_held_out), str(tokenizer))


def losses(opened: OpenRun, directory: epath.Path) -> dict[str, float]:
    """Return the loss of a run's checkpoint on the masked tokens of all held-out rows, in each format of `MEASURED`."""
    config, found = opened.config, dict[str, float]()
    for name in MEASURED:
        data = dataclasses.replace(pretraining_corpus.with_own_tokenizer(config.data, directory), format=name)
        batches = pipeline.validation_batches(pipeline.prepare(data, quiet=True), data, TOGETHER)
        if config.model.token_types < 2:  # a second segment has a type that this model lacks
            batches = (batch | {"token_type_ids": np.zeros_like(batch["tokens"])} for batch in batches)
        of_batches = guidance_pointers.word_losses(opened, batches)
        losses_W = np.concatenate([losses_BM[batch["masked_weights"] > 0] for batch, losses_BM in of_batches])
        found[name] = float(losses_W.mean(dtype=np.float64))
    return found


def trained(cell: Run, lines: Sequence[Line], root: epath.Path, texts: Texts) -> Line:
    """Train the run of a cell below `root`, resume it, or read it if it is done; return the results for its line."""
    config, directory = cell.config(texts), root / cell.name
    line = guidance_evidence.result(cell, config, root) | {"batch_size": config.training.batch_size}
    if "failed" in line:
        return line
    opened, rows = open_run(directory), (pretraining_corpus.read_summary(directory) or {})["train rows"]
    line["epochs"] = config.training.steps * config.training.batch_size / rows
    return line | ({"losses": losses(opened, directory)} if cell.experiment == "formats" else {})


def main(arguments: Sequence[str] | None = None) -> None:
    """Train all cells that have no line."""
    parser = evidence.options(__doc__)
    parser.add_argument("--source", required=True, type=pathlib.Path, help="folder of novels, a .txt file each")
    parser.add_argument("--experiment", required=True, choices=ARMS)
    options = parser.parse_args(arguments)
    # Below the hash of the code, so that runs of other code are never read or resumed.
    root = epath.Path(options.workdir) / evidence.package_hash(guidance_evidence.ROOT) / options.experiment
    texts = prepared(options.source.expanduser(), root, options.experiment)
    train = functools.partial(trained, root=root, texts=texts)
    inputs = {"source": guidance_pointers.digest_of(f"{options.source.expanduser()}/*.txt")}
    folder = options.results / f"{NAME}_{options.experiment}"
    evidence.run(folder, pathlib.Path(__file__), functools.partial(ready, options.experiment), train, inputs)


if __name__ == "__main__":
    evidence.start(main)
