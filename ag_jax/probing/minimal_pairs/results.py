"""Minimal pairs scored by the models of a comparison, and at the checkpoints of their runs; results are stored.

Stored scores are used again if model and pairs are those they were computed with.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from etils import epath

from ag_jax.data.probes import minimal_pairs
from ag_jax.data.probes.minimal_pairs import Pair
from ag_jax.distributed import storage
from ag_jax.grid import store
from ag_jax.grid.store import Result
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


def read_pairs(config: MinimalPairsConfig) -> list[Pair]:
    """Return the minimal pairs that a config names.

    Raises FileNotFoundError or ValueError for files that cannot be used.
    """
    return minimal_pairs.read(str(config.data), config.most)


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


def obtain(checkpoint: str, step: int | None, pairs: Sequence[Pair], workdir: epath.Path, name: str) -> Judged:
    """Return the scores of all pairs by a model: read from `workdir` if they are stored there, otherwise computed.

    checkpoint, step: directory of the model, and the step of a run's checkpoint, or None.
    name: name of the model, for its folder and for progress.

    Raises NoWordHeadError for a model that does not predict masked words.
    """
    opened = opening.open_masked_lm(checkpoint, step)
    of_run = opened.run
    digest = models.digest(opened.model.config, opened.params, opened.tokenizer)
    # Everything that the scores depend on, but not the model's place: a model that was moved is not scored again.
    texts_digest = store.digest([dataclasses.astuple(pair) for pair in pairs])
    inputs = {"model": digest, "text": texts_digest, "settings": store.digest(VERSION)}
    run_step = None if of_run is None else of_run.step
    folder = workdir / FOLDER / (name if run_step is None else f"{name}-step{run_step}")
    description = str(checkpoint) if run_step is None else f"{checkpoint}, step {run_step:,}"
    origin: dict[str, Any] = {
        "description": description,
        "step": run_step,
        "tokens": None if of_run is None else run_directory.tokens_seen(of_run.workdir, of_run.step),
        "default": scoring.default_score(opened.tokenizer),
    }

    def measure() -> Result:
        label = name if run_step is None else f"{name}, step {run_step:,}"
        scored = scoring.score(opened, pairs, scoring.show_progress(f"{label}, minimal pairs"))
        scores = store.write_arrays(folder, "scores.npz", scored.scores)
        facts = {"model": description, "unknown": scored.unknown, "too_long": scored.too_long}
        return Result(inputs, facts, {"scores": scores})

    def load(result: Result) -> Judged:
        scores = store.read_arrays(folder, result.artifacts["scores"])
        return Judged(**origin, scores=scores, unknown=result.facts["unknown"], too_long=result.facts["too_long"])

    return store.measured(folder, inputs, measure, load)
