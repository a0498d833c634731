"""Minimal pairs scored by the models of a comparison, and at the checkpoints of their runs, as stored cells."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np
from etils import epath

from ag_jax.data.probes.minimal_pairs import Pair
from ag_jax.distributed import storage
from ag_jax.distributed.terminal import tenths
from ag_jax.grid import store
from ag_jax.grid.cells import Cell, Result
from ag_jax.interop import opening
from ag_jax.pretraining import run_directory
from ag_jax.probing import models
from ag_jax.probing.config import MinimalPairsConfig
from ag_jax.probing.minimal_pairs import scoring

VERSION = 1  # of the computation; a new one makes stored results of the earlier ones invalid
FOLDER = "minimal_pairs"


@dataclasses.dataclass(frozen=True, eq=False)
class Judged:
    """The scores that one model, at one checkpoint, gives to the sentences of all pairs.

    description: where the model comes from, for people.
    step: step of a run's checkpoint, None for other models.
    tokens: number of tokens that the model had seen, None if it is unknown.
    default: the kind of score by which the model is judged.
    scores: {kind of score: float64 `(P, 2)`}, of the good and the bad sentence of each pair; NaN where left out.
    unknown: number of words without a token.
    too_long: number of pairs that are too long for the model.
    """

    description: str
    step: int | None
    tokens: int | None
    default: str
    scores: dict[str, np.ndarray]
    unknown: int
    too_long: int


def steps_of(checkpoint: str, step: int | None, config: MinimalPairsConfig) -> list[int | None]:
    """Return the steps of the checkpoints to score: all of a run with `minimal_pairs.milestones`, otherwise `[step]`.

    Raises ValueError for milestones of a model that is no run.
    """
    if not config.milestones:
        return [step]
    place = storage.directory(checkpoint)
    if opening.is_huggingface(place) or not (saved := run_directory.checkpoint_steps(place)):
        raise ValueError(
            f"minimal_pairs.milestones=True needs the checkpoints of a run, but {checkpoint} is none: give a run, or "
            "set it to False"
        )
    return list(saved)


@dataclasses.dataclass(frozen=True, eq=False)
class PairsCell(Cell):
    """Minimal pairs that a model scores.

    checkpoint, run_step: directory of the model, and the step of a run's checkpoint, or None.
    pairs: the pairs.
    model: digest of the model, but not of its place: one that was moved is not scored again.
    tokens, default: see `Judged`.
    """

    checkpoint: str
    run_step: int | None
    pairs: Sequence[Pair]
    model: str
    tokens: int | None
    default: str

    @property
    def description(self) -> str:
        """Where the model comes from, for people."""
        return self.checkpoint if self.run_step is None else f"{self.checkpoint}, step {self.run_step:,}"

    @functools.cached_property
    def inputs(self) -> Mapping[str, str]:
        """Digests of the model, of the pairs and of the version."""
        pairs = [dataclasses.astuple(pair) for pair in self.pairs]
        return {"model": self.model, "text": store.digest(pairs), "settings": store.digest(VERSION)}

    def compute(self, directory: epath.Path) -> Result:
        """Score the sentences of all pairs."""
        opened = opening.open_masked_lm(self.checkpoint, self.run_step)
        if models.digest(opened.model.config, opened.params, opened.tokenizer) != self.model:
            raise ValueError(f"{self.description} was changed while this command ran: run the same command again")
        scored = scoring.score(opened, self.pairs, tenths(self.path, "pairs"))
        scores = store.write_arrays(directory, "scores.npz", scored.scores)
        facts = {"model": self.description, "unknown": scored.unknown, "too_long": scored.too_long}
        return Result(facts, {"scores": scores})

    def read(self, directory: epath.Path, result: Result) -> Judged:
        """Return the scores that a result and its file hold."""
        scores, facts = store.read_arrays(directory, result.artifacts["scores"]), result.facts
        origin = self.description, self.run_step, self.tokens, self.default
        return Judged(*origin, scores, facts["unknown"], facts["too_long"])


def cell(checkpoint: str, step: int | None, pairs: Sequence[Pair], name: str) -> PairsCell:
    """Return the cell of a model, which is opened, but not kept in memory.

    checkpoint, step: directory of the model, and the step of a run's checkpoint, or None for the newest.
    name: name of the model, for its folder.

    Raises NoWordHeadError for a model that does not predict masked words.
    """
    opened = opening.open_masked_lm(checkpoint, step)
    model = models.digest(opened.model.config, opened.params, opened.tokenizer)
    default = scoring.default_score(opened.tokenizer)
    if opened.run is None:
        return PairsCell(f"{FOLDER}/{name}", checkpoint, None, pairs, model, None, default)
    run_step, tokens = opened.run.step, run_directory.tokens_seen(opened.run.workdir, opened.run.step)
    return PairsCell(f"{FOLDER}/{name}-step{run_step}", checkpoint, run_step, pairs, model, tokens, default)
