"""Does guidance towards aligned words help translation, and do heads find alignments without it? Train and record.

    python benchmarks/translation_alignment.py --workdir=DIR --data=FOLDER --alignments=FOLDER

The arms base, ag, alignment and ag_alignment of ag/table7_translation are trained on Multi30k, English to German, with
scale=small and guidance.loss=cross_entropy. A further seed chooses alpha for each guided arm among three values, by the
validation loss after two fifths of the steps; then each arm is trained with three seeds. --data has the files of
Multi30k, and --alignments the files train.align and val.align; docs/translation_compare.md says how eflomal makes them.

A run is a result in translation_alignment/ in the folder --results: losses, BLEU and chrF of the test sets, and the
agreement with the alignments. This is the share of the aligned target words for which the source word with the most
attention, of the query that predicts the first token of the target word, is the aligned one. Attention to the tokens of
a source word is summed. Of the last checkpoint, agreement is measured for the mean over the heads of each layer, and
for each head. The layer and the head that agree best on the first 1,000 training pairs are those of
`agreement`, on the held-out pairs, beside that of the source word at the same place in proportion to the lengths
(`diagonal`). Guided heads are among the heads. Runs that have a result are skipped, others are resumed; several
processes may share the work.

Hardware and time: about four minutes for each of the nine runs that choose alpha, and ten minutes for each of the
twelve others, on 2 CPU cores that nothing else uses.
"""

import dataclasses
import functools
import itertools
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence

import evidence
import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from evidence import Line

from ag_jax.data.parallel import alignments, pairs
from ag_jax.data.parallel.alignments import AlignedPair
from ag_jax.grid import store
from ag_jax.pretraining import run, scores
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.pretraining.open_run import OpenRun, open_run
from ag_jax.settings import config_files
from ag_jax.training.journal import NonFiniteError

ROOT = pathlib.Path(__file__).resolve().parent.parent
NAME = "translation_alignment"
CONFIG = "ag/table7_translation:scale=small,dataset=multi30k,data={data},arm={arm},{files}"
ARMS, GUIDED = ("base", "ag", "alignment", "ag_alignment"), ("ag", "alignment", "ag_alignment")
LOSS, ALPHAS = "cross_entropy", (0.003, 0.01, 0.03)
SEEDS, SEED_OF_ALPHAS = (0, 1, 2), 100
PAIRS, TOGETHER, LENGTH = 1000, 100, 64  # training pairs that choose a head, pairs of a batch, tokens of a side


@dataclasses.dataclass(frozen=True)
class Run(evidence.Point):
    """A run that is recorded as one line.

    part: share of the steps of the recipe; below 1, the run helps to choose alpha.
    """

    arm: str
    alpha: float
    part: float
    seed: int

    def config(self, data: str, files: Mapping[str, pathlib.Path]) -> ExperimentConfig:
        """Return the config of the run.

        data: the folder of Multi30k.
        files: the alignments, as arguments of the config file.
        """
        listed = ",".join(f"{name}={path}" for name, path in files.items())
        source = CONFIG.format(data=data, arm=self.arm, files=listed)
        steps = round(self.part * config_files.load(source, {}).settings.training.steps)
        overrides = {"guidance.loss": LOSS, "guidance.alpha": self.alpha, "seed": self.seed, "training.steps": steps}
        return config_files.load(source, overrides | {"training.tensorboard": False}).settings


def ready(lines: Sequence[Line]) -> tuple[list[Run], bool]:
    """Return the cells that choose alpha for each arm, and when these are done, all others; whether none follow."""
    tried = {arm: [Run(arm, alpha, 0.4, SEED_OF_ALPHAS) for alpha in ALPHAS] for arm in GUIDED}
    cells = list(itertools.chain.from_iterable(tried.values()))
    best = evidence.chosen(tried, lines)
    if best is None:
        return cells, False
    alphas = {arm: cell.alpha for arm, cell in best.items()}
    return cells + [Run(arm, alphas.get(arm, 0.0), 1.0, seed) for seed in SEEDS for arm in ARMS], True


def trained(cell: Run, lines: Sequence[Line], root: epath.Path, data: str, files: Mapping[str, pathlib.Path]) -> Line:
    """Train the run of a cell below `root`, resume it, or read it if it is done; return the results for its line."""
    del lines
    config, directory, start = cell.config(data, files), root / cell.name, time.monotonic()
    line: Line = {"steps": config.training.steps}
    try:
        summary = run.train(config, directory)
    except NonFiniteError as error:
        return line | {"failed": str(error)}
    line |= {name: summary[name] for name in ("train_loss", "validation_loss", "average_train_loss")}
    if cell.part == 1:
        line |= {
            f"{metric}/{test}": found.scores[metric]["value"]
            for test, found in scores.score_run(directory).items()
            for metric in ("bleu", "chrf")
        }
    line |= agreement(open_run(directory), config)
    took = time.monotonic() - start
    print(f"{cell.name}: {line['validation_loss']:.3f}, agreement {line['agreement']}, {took:.0f} s", flush=True)
    return line | {"seconds": took}


def agreement(opened: OpenRun, config: ExperimentConfig) -> Line:
    """Return how often the attention of a run to the source agrees with the alignments, for its line."""
    validation = pairs.validation(config.data)
    assert validation is not None
    chosen_NH, _, _ = shares(opened, itertools.islice(pairs.training(config.data), PAIRS))
    found_NH, diagonal, words = shares(opened, validation)
    layer, head = int(chosen_NH[:, -1].argmax()), divmod(int(chosen_NH[:, :-1].argmax()), chosen_NH.shape[1] - 1)
    return {
        "agreement": {
            "layer": round(float(found_NH[layer, -1]), 4),
            "head": round(float(found_NH[head]), 4),
            "diagonal": round(diagonal, 4),
        },
        "best_layer": layer,
        "best_head": head,
        "agreement_of_heads_then_mean": found_NH.round(4).tolist(),
        "aligned_words": words,
    }


def shares(opened: OpenRun, texts: Iterator[AlignedPair] | pairs.PairFiles) -> tuple[np.ndarray, float, int]:
    """Return (shares that agree, by layer `N` and by head, then for the mean over heads; of the diagonal; words)."""
    hits, diagonal, words = 0, 0, 0
    texts = iter(texts)
    while together := list(itertools.islice(texts, TOGETHER)):
        for pair, weights_NHTS, sources, targets in attention(opened, together):
            starts, asks = (
                alignments.first_tokens(text, places)
                for text, places in ((pair.source, sources), (pair.target, targets))
            )
            wanted = alignments.source_words(pair)
            used = (wanted != alignments.UNALIGNED) & (asks != alignments.UNALIGNED)
            used &= starts[wanted] != alignments.UNALIGNED
            groups = np.unique(starts[starts != alignments.UNALIGNED])
            right = np.searchsorted(groups, starts[wanted[used]])
            of_words = np.add.reduceat(weights_NHTS[:, :, asks[used], : len(sources)], groups, axis=-1)
            of_words = np.concatenate([of_words, of_words.mean(1, keepdims=True)], axis=1)
            hits = hits + (of_words.argmax(-1) == right).sum(-1)
            at = np.flatnonzero(used) * (len(starts) - 1) / max(len(asks) - 1, 1)
            diagonal += int((np.rint(at) == wanted[used]).sum())
            words += int(used.sum())
    return np.asarray(hits) / max(words, 1), diagonal / max(words, 1), words


def attention(
    opened: OpenRun, together: Sequence[AlignedPair]
) -> Iterator[tuple[AlignedPair, np.ndarray, list[tuple[int, int]], list[tuple[int, int]]]]:
    """Yield (pair, its attention to the source `NHTS`, characters of its source tokens, of its target tokens).

    Target position t predicts target token t. Pairs with a side of more than `LENGTH` tokens are left out.
    """
    tokenizer, specials = opened.tokenizer, opened.tokenizer.specials
    start = specials.begin if opened.config.decoder.start == "begin" else specials.pad
    located = zip(
        together,
        tokenizer.locate_batch([pair.source for pair in together]),
        tokenizer.locate_targets([pair.target for pair in together]),
        strict=True,
    )
    fitting = [item for item in located if all(0 < len(ids) < LENGTH for ids, _ in item[1:])]
    fields = {name: np.zeros((TOGETHER, LENGTH), np.int32) for name in ("segment_ids", "target_segment_ids")}
    fields |= {name: np.full((TOGETHER, LENGTH), specials.pad, np.int32) for name in ("tokens", "target_tokens")}
    for row, (_, (source, _), (target, _)) in enumerate(fitting):
        for prefix, ids in (("", [*source, specials.end]), ("target_", [start, *target])):
            fields[f"{prefix}tokens"][row, : len(ids)] = ids
            fields[f"{prefix}segment_ids"][row, : len(ids)] = 1
    weights_NBHTS = np.asarray(_weights(opened.model, opened.params, fields))
    for row, (pair, (_, sources), (_, targets)) in enumerate(fitting):
        yield pair, weights_NBHTS[:, row], sources, targets


@functools.partial(jax.jit, static_argnames="model")
def _weights(model, params, fields) -> jax.Array:
    batch = fields | {"token_type_ids": jnp.zeros_like(fields["tokens"])}
    _, sown = model.apply({"params": params}, batch, deterministic=True, mutable=["intermediates"])
    return sown["intermediates"]["decoder"]["layers"]["cross_attention"]["attention_weights"][0]


def main(arguments: Sequence[str] | None = None) -> None:
    """Train all cells that have no line."""
    parser = evidence.options(__doc__)
    parser.add_argument("--data", required=True, help="folder of Multi30k")
    parser.add_argument("--alignments", required=True, type=pathlib.Path, help="folder of train.align and val.align")
    options = parser.parse_args(arguments)
    names = {"alignments": "train.align", "validation_alignments": "val.align"}
    files = {name: options.alignments.expanduser().resolve() / file for name, file in names.items()}
    # Below the hash of the code, so that runs of other code are never read or resumed.
    root = epath.Path(options.workdir) / evidence.package_hash(ROOT)
    train = functools.partial(trained, root=root, data=options.data, files=files)
    digest = {"alignments": store.digest([path.read_text() for path in files.values()])}
    evidence.run(options.results / NAME, pathlib.Path(__file__), ready, train, digest)


if __name__ == "__main__":
    evidence.start(main)
