"""Head ablation: the change of a model's loss when the output of one attention head is zeroed.

The method is that of Michel et al. 2019, "Are Sixteen Heads Really Better than One?", section 3.2.

    from ag_jax.probing.ablation import heads

    ablation = heads.ablate("runs/quickstart/ag-seed0", pathlib.Path("mine.txt").read_text().splitlines())
    ablation.base_loss     # with all heads
    ablation.change_NH     # how much the loss rises without each head, counted from 0

All heads are measured on the same texts with the same masks, by one compiled program, whose argument is the mask over
heads.

Shape letters: N layers, H heads, T texts, B rows of a batch, P passes, R resamples, I ends of an interval.
"""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import numpy as np
from etils import epath

from ag_jax.data import randomness
from ag_jax.models.one_line import one_line
from ag_jax.objectives.base import PrimaryMetric
from ag_jax.probing.ablation import trained
from ag_jax.probing.ablation.batches import TextBatches
from ag_jax.probing.ablation.trained import TrainedModel

Progress = Callable[[int, int], None]  # (passes over a batch that are done, their number)
PERCENT = 95  # of intervals
_RESAMPLE = 0xAB1A7E  # key of the random numbers of the bootstrap


@dataclasses.dataclass(frozen=True, eq=False)
class HeadAblation:
    """The loss of a model with all heads, and with the output of each head zeroed, on the same texts.

    A loss is the sum of the texts' losses divided by the sum of their weights.

    metric: what the loss is.
    source: where the texts are from, for people.
    notes: what was cut or left out, for people.
    weights_T: sum of the weights of each text, such as its number of masked words, float64.
    base_T: sum of the weighted losses of each text with all heads, float64.
    sums_NHT: the same with the output of one head zeroed.
    """

    metric: PrimaryMetric
    source: str
    notes: tuple[str, ...]
    weights_T: np.ndarray
    base_T: np.ndarray
    sums_NHT: np.ndarray

    __repr__ = one_line

    @property
    def base_loss(self) -> float:
        """The loss with all heads."""
        return float(self.base_T.sum() / self.weights_T.sum())

    @property
    def change_NH(self) -> np.ndarray:
        """How much the loss rises without each head; negative if the model is better without it."""
        return (self.sums_NHT - self.base_T[None, None]).sum(-1) / self.weights_T.sum()

    def intervals_NHI(self, resamples: int = 1000) -> np.ndarray:
        """Return the 95 % interval of each head's change, by a bootstrap over texts: lower and upper end, `NHI`.

        resamples: see `resampled`.
        """
        return np.moveaxis(interval(self.resampled(resamples).change_RNH), 0, -1)

    def resampled(self, resamples: int = 1000) -> "Resampled":
        """Return the loss with all heads, and its change without each head, on resampled texts (bootstrap).

        A resample draws as many texts as there are, with replacement, the same for all heads, and divides its sums by
        its sum of weights (Efron and Tibshirani 1993, section 13.3). Texts without weight are left out. Models that are
        measured on the same texts have the same draws.
        """
        counted = self.weights_T > 0
        weights_T, base_T = self.weights_T[counted], self.base_T[counted]
        changes_NHT = (self.sums_NHT - self.base_T[None, None])[..., counted]
        texts = len(weights_T)
        loss_R, change_RNH = np.empty(resamples), np.empty((resamples, *changes_NHT.shape[:2]))
        for number in range(resamples):
            drawn_T = randomness.below(texts, _RESAMPLE, number, np.arange(texts))
            times_T = np.bincount(drawn_T, minlength=texts)
            loss_R[number] = base_T @ times_T / (weights_T @ times_T)
            change_RNH[number] = changes_NHT @ times_T / (weights_T @ times_T)
        return Resampled(loss_R, change_RNH)


@dataclasses.dataclass(frozen=True, eq=False)
class Resampled:
    """The loss of a model with all heads, and its change without each head, on resampled texts (bootstrap).

    loss_R: the loss with all heads.
    change_RNH: how much it rises without each head.
    """

    loss_R: np.ndarray
    change_RNH: np.ndarray

    __repr__ = one_line


def interval(values_R: np.ndarray) -> np.ndarray:
    """Return the lower and the upper percentile that enclose 95 % of resampled values, along a new first axis."""
    tail = (100 - PERCENT) / 2
    return np.percentile(values_R, [tail, 100 - tail], axis=0)


def ablate(
    directory: epath.PathLike,
    texts: Sequence[str] | None = None,
    *,
    step: int | None = None,
    most: int | None = None,
    progress: Progress | None = None,
) -> HeadAblation:
    """Measure how a model's loss, on `texts` or else its own held-out data, changes when one head at a time is zeroed.

    For a fine-tuned trial it is the loss of its task on its development examples. For a run, or a Hugging Face
    directory with a trained head for masked words, it is the loss of masked words: in `texts`, or in the run's held-out
    text. Of a directory with several models, the best one is taken, as by `ag-jax inspect`.

    texts: texts to mask, such as the lines of a file, for a model that predicts masked words.
    step: of a run's checkpoint, the newest by default.
    most: number of texts, of rows of held-out text, or of development examples to take; None takes all.
    progress: called after each pass over a batch, of which there is one for each head and one with all heads.

    Raises ValueError for a model without a trained head, such as an embedder of sentences, and if the other arguments
    do not go with the model; FileNotFoundError if there is no model.
    """
    opened = trained.open_trained(directory, step)
    return measure(opened, opened.texts(texts, most), progress=progress)


def measure(opened: TrainedModel, data: TextBatches, *, progress: Progress | None = None) -> HeadAblation:
    """Compute the losses of texts with all heads, and with the output of one head zeroed at a time.

    The program is compiled once for each shape of a batch.

    data: batches that `TrainedModel.texts` returned.
    progress: as in `ablate`.

    Raises ValueError if the loss is not finite, or if no text has a weight in it.
    """
    shape = opened.config.layers, opened.config.heads
    heads_count = shape[0] * shape[1]
    # The first mask keeps all heads; each of the others zeroes one.
    masks_PNH = np.concatenate([np.ones((1, heads_count)), 1 - np.eye(heads_count)]).reshape(-1, *shape)
    sums_PT, weights_T = np.zeros((len(masks_PNH), data.texts)), np.zeros(data.texts)
    compute, on_device = jax.jit(opened.row_losses), jax.device_put(opened.params)
    done, passes = 0, len(masks_PNH) * len(data.batches)
    for batch, text_B in data.batches:
        placed, is_text_B = jax.device_put(batch), text_B >= 0
        for number, mask_NH in enumerate(masks_PNH.astype(np.float32)):
            losses_B, weights_B = (np.asarray(array, np.float64) for array in compute(on_device, placed, mask_NH))
            np.add.at(sums_PT[number], text_B[is_text_B], losses_B[is_text_B])
            if not number:  # the weights do not depend on the mask
                np.add.at(weights_T, text_B[is_text_B], weights_B[is_text_B])
            done += 1
            if progress is not None:
                progress(done, passes)
    if not np.isfinite(sums_PT).all():
        raise ValueError("the loss of the model is NaN or infinite: give a checkpoint whose training did not diverge")
    unweighted = int((weights_T == 0).sum())
    if unweighted == data.texts:
        raise ValueError(
            f"no word or label of {data.source} has a weight in the loss, so there is nothing to measure: give more, "
            "or longer texts"
        )
    return of_sums(opened.metric, data, weights_T, sums_PT[0], sums_PT[1:].reshape(*shape, -1))


def of_sums(
    metric: PrimaryMetric, data: TextBatches, weights_T: np.ndarray, base_T: np.ndarray, sums_NHT: np.ndarray
) -> HeadAblation:
    """Return the head ablation from sums of losses that are already known, such as stored ones.

    metric, weights_T, base_T, sums_NHT: see `HeadAblation`.
    """
    notes = data.notes
    if unweighted := int((weights_T == 0).sum()):
        notes += (f"texts without a masked word or a label, which do not count: {unweighted:,}",)
    return HeadAblation(metric, data.source, notes, weights_T, base_T, sums_NHT)
