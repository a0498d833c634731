"""The numbers of a report on head ablation, as plain values for JSON.

A change is the loss without a head minus the loss with all heads. Intervals are
None for fewer texts than `choosing.FEWEST_DOCUMENTS`, of which a bootstrap would give too narrow intervals.

Shape letters: N layers, H heads, R resamples, I ends of an interval.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ag_jax.analysis.heads import choosing
from ag_jax.data.probes.queries import ALL
from ag_jax.probing.ablation import heads
from ag_jax.probing.ablation.heads import Resampled
from ag_jax.probing.ablation.results import Ablated

MOST = 5  # heads that are listed for each model


@dataclasses.dataclass(frozen=True, eq=False)
class Summary:
    """The head ablation of one model, with intervals from resampled texts.

    ablated: the losses of the model.
    resamples: number of times that texts are resampled.
    """

    ablated: Ablated
    resamples: int

    @functools.cached_property
    def resampled(self) -> Resampled | None:
        """Losses and their changes on resampled texts (bootstrap); None with too few texts."""
        ablation = self.ablated.ablation
        if np.count_nonzero(ablation.weights_T) < choosing.FEWEST_DOCUMENTS:
            return None
        return ablation.resampled(self.resamples)

    @functools.cached_property
    def change_NH(self) -> np.ndarray:
        """How much the loss rises without each head of every layer."""
        return self.ablated.ablation.change_NH

    @functools.cached_property
    def intervals_INH(self) -> np.ndarray | None:
        """Lower and upper end of the interval of each head's change of the loss; None with too few texts."""
        return None if self.resampled is None else heads.interval(self.resampled.change_RNH)

    @property
    def patterns_NH(self) -> np.ndarray:
        """The name of the pattern that guides each head of every layer; None for heads without guidance."""
        return self.ablated.assignment.patterns(*self.change_NH.shape)

    def head(self, layer: int, head: int) -> dict[str, Any]:
        """Return a dict with the change of the loss without a head, its interval, and its rank (1: largest rise)."""
        change, ends = float(self.change_NH[layer, head]), self.intervals_INH
        return {
            "head": [layer, head],
            "pattern": self.patterns_NH[layer, head],
            "change": change,
            "low": None if ends is None else float(ends[0, layer, head]),
            "high": None if ends is None else float(ends[1, layer, head]),
            "rank": 1 + int((self.change_NH > change).sum()),
        }

    def heads(self) -> Iterator[dict[str, Any]]:
        """Yield the dict that `Summary.head` returns for every head, layer by layer."""
        for layer, head in np.ndindex(*self.change_NH.shape):
            yield self.head(layer, head)

    def mean(self, chosen_NH: np.ndarray) -> dict[str, float | None] | None:
        """Return the mean change of the loss over the chosen heads, with its interval; None if none is chosen."""
        if not chosen_NH.any():
            return None
        resampled = self.resampled
        values_R = None if resampled is None else resampled.change_RNH[:, chosen_NH].mean(1)
        return _with_interval(self.change_NH[chosen_NH].mean(), values_R)


def numbers(summaries: Mapping[str, Sequence[Summary]], probes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the section of report.json on head ablation: models, differences from the baseline, heads of probes.

    summaries: for each arm those of its models, in the order of the seeds; the baseline first.
    probes: the content of report.json on probes, by name and mode.
    """
    first, *others = summaries
    reasons = {arm: _incomparable(summaries[first], summaries[arm]) for arm in others}
    return {
        "models": {arm: [_of_model(summary) for summary in of_arm] for arm, of_arm in summaries.items()},
        "differences": {
            arm: _differences(summaries[first], summaries[arm]) for arm, reason in reasons.items() if reason is None
        },
        "not_compared": {arm: reason for arm, reason in reasons.items() if reason is not None},
        "heads_of_probes": list(_heads_of_probes(summaries, probes)),
    }


def _of_model(summary: Summary) -> dict[str, Any]:
    ablation, ends = summary.ablated.ablation, summary.intervals_INH
    is_guided_NH = summary.ablated.assignment.is_guided(*summary.change_NH.shape)
    rising = sorted((head for head in summary.heads() if head["change"] > 0), key=lambda head: -head["change"])
    return {
        "model": summary.ablated.description,
        "metric": ablation.metric.metric,
        "label": ablation.metric.label,
        "unit": ablation.metric.unit,
        "source": ablation.source,
        "notes": list(ablation.notes),
        "tokenizer": summary.ablated.tokenizer,
        "texts_sha256": summary.ablated.digest,
        "texts": int(np.count_nonzero(ablation.weights_T)),
        "weight": float(ablation.weights_T.sum()),
        "loss": ablation.base_loss,
        "heads": summary.change_NH.size,
        "mean": summary.mean(np.ones_like(is_guided_NH)),
        "guided": summary.mean(is_guided_NH),
        "free": summary.mean(~is_guided_NH) if is_guided_NH.any() else None,
        "without_clear_rise": None if ends is None else int((ends[0] <= 0).sum()),
        "largest": rising[:MOST],
    }


def _incomparable(baseline: Sequence[Summary], other: Sequence[Summary]) -> str | None:
    """Return the reason why the losses of two arms cannot be compared; None if they can."""
    of_all = [summary.ablated for summary in (*baseline, *other)]
    if len({model.ablation.metric.metric for model in of_all}) > 1:
        return "the losses are of different kinds"
    if len({model.tokenizer for model in of_all}) > 1:
        return "the tokenizers differ, so the loss of a token means something else"
    if len({model.digest for model in of_all}) > 1:
        return "the texts, or the words masked in them, differ"
    return None


def _differences(baseline: Sequence[Summary], other: Sequence[Summary]) -> dict[str, Any]:
    """Return how an arm's loss and its mean change over all heads differ from the baseline's, with intervals.

    They are means over seeds, with intervals over the texts, which all models share.
    """

    def means(summaries: Sequence[Summary]) -> tuple[np.ndarray, np.ndarray | None]:
        values = [[summary.ablated.ablation.base_loss, summary.change_NH.mean()] for summary in summaries]
        resampled = [summary.resampled for summary in summaries if summary.resampled is not None]
        if not resampled:
            return np.mean(values, 0), None
        return np.mean(values, 0), np.mean([[one.loss_R, one.change_RNH.mean((1, 2))] for one in resampled], 0)

    (before, before_R), (after, after_R) = means(baseline), means(other)
    differences = {}
    for index, name in enumerate(("loss", "change")):
        values_R = None if before_R is None or after_R is None else after_R[index] - before_R[index]
        differences[name] = _with_interval(after[index] - before[index], values_R)
    return differences


def _with_interval(mean: Any, values_R: np.ndarray | None) -> dict[str, float | None]:
    low, high = (None, None) if values_R is None else map(float, heads.interval(values_R))
    return {"mean": float(mean), "low": low, "high": high}


def _heads_of_probes(summaries: Mapping[str, Sequence[Summary]], probes: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a dict on the change of the loss without the head that a probe chose, by probe, mode and model.

    The head is the one chosen on development documents, for queries of all kinds.
    """
    for probe, modes in probes.items():
        for mode, of_mode in modes.items():
            for arm, of_arm in summaries.items():
                for number, (summary, chosen) in enumerate(zip(of_arm, of_mode["arms"][arm][ALL], strict=True)):
                    if chosen is not None and chosen["head"] is not None:
                        layer, head = chosen["head"]
                        place = {"probe": probe, "mode": mode, "arm": arm, "model": number}
                        yield place | {"score": chosen["test"]["mean"]} | summary.head(layer, head)
