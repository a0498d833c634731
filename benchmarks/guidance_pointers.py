"""Does guidance towards syntactic heads help, beyond a control that is learnable and has no syntax? Train and record.

    python benchmarks/guidance_pointers.py --workdir=DIR --source=FILES --gold=FILE --positions=learned
    python benchmarks/guidance_pointers.py --workdir=DIR --source=FILES --gold=FILE --positions=rotary --blimp=FOLDER

The arms of ag/pointers are trained on annotated text: with learned positions all that guide every layer or the lower
half, with rotary positions those with neighbours, with guided heads in layers 2 to 5. A further seed chooses alpha for
each guided arm among three values, by the loss after two fifths of the steps; then each arm is trained with three
seeds. --source is CoNLL-U with parsed trees, such as that of silver_trees.py, and --gold a treebank.

A run is a result in guidance_pointers_POSITIONS/ in the folder --results:

    validation_loss        the loss of held-out masked tokens; `far_loss` and `near_loss` are those of tokens whose
                           head is more than five tokens away and of the others that have one
    left_plateau_at_step   as in guidance_evidence.py
    curves                 in evaluations during training: the mean cosine of the masked positions of a text
                           (collapse), and the share of the most frequent prediction (repetition); the attention of the
                           guided heads to their targets, as a mean over layers, by pattern
    heads                  of the last checkpoint, how often heads look most at the syntactic head in --gold
                           (`ag_jax.pretraining.following`)
    blimp                  share of minimal pairs that the model judges right, by score; only with --blimp, the folder
                           `data` of BLiMP

Runs that have a result are skipped, others are resumed; several processes may share the work.

Hardware and time: a million tokens take about a minute on 2 CPU cores that nothing else uses. Learned positions: 18
runs of 1.6 million tokens and 21 of 4.1 million; rotary: 9 runs of 6.1 million and 12 of 15.4 million.
"""

import dataclasses
import functools
import hashlib
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import evidence
import guidance_evidence
import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from evidence import Line

from ag_jax.data import pipeline
from ag_jax.data.layout import HostBatch
from ag_jax.data.probes import minimal_pairs, pointers
from ag_jax.data.records import sources
from ag_jax.data.records.annotated import PUNCTUATION
from ag_jax.data.store import ABSENT
from ag_jax.grid import store
from ag_jax.pretraining import corpus as pretraining_corpus
from ag_jax.pretraining import following
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.pretraining.open_run import OpenRun, open_run
from ag_jax.probing.minimal_pairs import scoring
from ag_jax.training.metrics import read_metrics

NAME = "guidance_pointers"
ARMS = {
    "learned": ("none", "neighbours", "pointer", "offset_by_word", "other_tree", "previous_same", "lower"),
    "rotary": ("none", "neighbours", "neighbours_pointer", "neighbours_offset"),
}
STEPS = {"learned": 2_000, "rotary": 7_500}
LAYERS = {"learned": "all", "rotary": "2-5"}  # with guided heads
ALPHAS = (0.003, 0.03, 0.3)
SEEDS, SEED_OF_ALPHAS = (0, 1, 2), 100
COLUMN = "head"
EVALUATIONS, CURVE_ROWS = 50, 128  # during a run, and the held-out rows of each
ROWS, TOGETHER = 2048, 64  # held-out rows of the losses at the end, and of a batch
FAR = 5  # tokens; about four words
SENTENCES = 2000  # of --gold
PAIRS = 50  # of each paradigm of BLiMP


@dataclasses.dataclass(frozen=True)
class Run(evidence.Point):
    """A run that is recorded as one line."""

    positions: str
    arm: str
    alpha: float
    steps: int
    seed: int

    def config(self, source: str) -> ExperimentConfig:
        """Return the config of the run.

        source: the annotated text.
        """
        overrides: dict[str, Any] = {
            "training.steps": self.steps,
            "training.evaluate_every": self.steps // EVALUATIONS,
            "data.validation_rows": CURVE_ROWS,
            "seed": self.seed,
        }
        if self.arm != "none":
            overrides["guidance.alpha"] = self.alpha
            if self.arm != "lower":
                overrides["guidance.layers"] = LAYERS[self.positions]
        return guidance_evidence.parsed(
            f"ag/pointers:source={source},positions={self.positions},arm={self.arm}", overrides
        )


def ready(positions: str, lines: Sequence[Line]) -> tuple[list[Run], bool]:
    """Return the cells that choose alpha for each arm, and when these are done, all others; whether none follow."""
    steps = STEPS[positions]
    tried = {
        arm: [Run(positions, arm, alpha, steps * 2 // 5, SEED_OF_ALPHAS) for alpha in ALPHAS]
        for arm in ARMS[positions]
        if arm != "none"
    }
    cells = [cell for of_arm in tried.values() for cell in of_arm]
    best = evidence.chosen(tried, lines)
    if best is None:
        return cells, False
    alphas = {arm: of_arm.alpha for arm, of_arm in best.items()} | {"none": 0.0}
    return cells + [Run(positions, arm, alphas[arm], steps, seed) for seed in SEEDS for arm in ARMS[positions]], True


def word_losses(opened: OpenRun, batches: Iterable[HostBatch]) -> Iterator[tuple[HostBatch, np.ndarray]]:
    """Yield each of some batches with the losses `BM` of a run's checkpoint on its masked tokens."""

    @jax.jit
    def losses_BM(params: Any, batch: Any) -> jax.Array:
        predictions: Any = opened.model.apply({"params": params}, batch, deterministic=True)
        words_BMV = predictions.words_BMV
        right_BM = jnp.take_along_axis(words_BMV, batch["masked_labels"][..., None], axis=-1)[..., 0]
        return jax.nn.logsumexp(words_BMV, axis=-1) - right_BM

    for batch in batches:
        yield batch, np.asarray(losses_BM(opened.params, batch))


def losses(opened: OpenRun, directory: epath.Path) -> Line:
    """Return the losses of a run's checkpoint on the masked tokens of the first rows for validation; see above."""
    config = opened.config
    corpus = pipeline.prepare(pretraining_corpus.with_own_tokenizer(config.data, directory), quiet=True)
    place = config.data.pointers.index(COLUMN)

    parts: list[tuple[np.ndarray, np.ndarray]] = []
    batches = pipeline.validation_batches(corpus, config.data, TOGETHER, most=ROWS)
    for batch, losses_BM in word_losses(opened, batches):
        is_masked_BM = batch["masked_weights"] > 0
        offsets_BM = np.take_along_axis(batch["pointers"][:, place], batch["masked_positions"], axis=1)
        parts.append((losses_BM[is_masked_BM], offsets_BM[is_masked_BM]))
    losses_W, offsets_W = map(np.concatenate, zip(*parts, strict=True))
    has_head_W, is_far_W = offsets_W != ABSENT, abs(offsets_W.astype(np.int32)) > FAR
    chosen = {
        "validation_loss": np.ones_like(has_head_W),
        "far_loss": has_head_W & is_far_W,
        "near_loss": has_head_W & ~is_far_W,
    }
    found = {name: float(losses_W[is_chosen_W].mean(dtype=np.float64)) for name, is_chosen_W in chosen.items()}
    return found | {"masked_tokens": {name: int(is_chosen_W.sum()) for name, is_chosen_W in chosen.items()}}


def curves(directory: epath.Path) -> Line:
    """Return the measures of the plateau and the attention of guided heads during a run."""
    rows = read_metrics(directory)
    evaluated = [row for row in rows if row["split"] == "validation"]
    logged = [row for row in rows if row["split"] == "train"]
    measures = {"loss": "mlm_loss", "collapse": "collapse/masked", "repetition": "repetition/predicted"}
    patterns = [name for name in logged[-1] if name.startswith("mass/")]
    return {
        "step": [row["step"] for row in evaluated],
        **{name: [round(row[measure], 4) for row in evaluated] for name, measure in measures.items()},
        "train_step": [row["step"] for row in logged],
        "mass": {
            name.removeprefix("mass/"): [round(float(np.nanmean(np.array(row[name], float))), 4) for row in logged]
            for name in patterns
        },
    }


def trained(
    cell: Run, lines: Sequence[Line], root: epath.Path, source: str, gold: str, pairs: Sequence[minimal_pairs.Pair]
) -> Line:
    """Train the run of a cell below `root`, resume it, or read it if it is done; return the results for its line."""
    line = guidance_evidence.result(cell, cell.config(source), root)
    if "failed" in line:
        return line
    directory = root / cell.name
    opened = open_run(directory)
    line |= losses(opened, directory) | {"curves": curves(directory)}
    texts = sources.documents(gold, pointers=[COLUMN, PUNCTUATION])
    probes = pointers.pointers(texts, [COLUMN], opened.tokenizer, opened.length, SENTENCES)
    line["heads"] = following.of_run(opened, probes)[COLUMN]
    if pairs and cell.seed != SEED_OF_ALPHAS:
        scored = guidance_evidence.judged(cell, lines, root, pairs)
        line["blimp"] = {score: scored[score]["all"]["all"][0] for score in scoring.SCORES}
    return line


def digest_of(pattern: str) -> str:
    """Return a digest of the contents of the files that a source names."""
    digest = hashlib.sha256()
    for path in sorted(epath.Path(pattern).parent.glob(epath.Path(pattern).name)):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def main(arguments: Sequence[str] | None = None) -> None:
    """Train all cells that have no line."""
    parser = evidence.options(__doc__)
    parser.add_argument("--source", required=True, help="annotated text, as data.source")
    parser.add_argument("--gold", required=True, help="a treebank on which heads are measured")
    parser.add_argument("--positions", required=True, choices=ARMS)
    parser.add_argument("--blimp", help="folder of BLiMP's pairs")
    options = parser.parse_args(arguments)
    pairs = minimal_pairs.read(options.blimp, PAIRS) if options.blimp else []
    # Below the hash of the code, so that runs of other code are never read or resumed.
    root = epath.Path(options.workdir) / evidence.package_hash(guidance_evidence.ROOT)
    train = functools.partial(trained, root=root, source=options.source, gold=options.gold, pairs=pairs)
    inputs = {
        "source": digest_of(options.source),
        "gold": digest_of(options.gold),
        "pairs": store.digest([dataclasses.astuple(pair) for pair in pairs]),
    }
    folder = options.results / f"{NAME}_{options.positions}"
    evidence.run(folder, pathlib.Path(__file__), functools.partial(ready, options.positions), train, inputs)


if __name__ == "__main__":
    evidence.start(main)
