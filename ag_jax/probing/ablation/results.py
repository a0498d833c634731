"""Head ablation of the models of a comparison: open each model, and measure it on its texts, as a stored cell."""

import dataclasses
import functools
import pathlib
from collections.abc import Iterable, Mapping, Sequence

from etils import epath

from ag_jax.analysis.maps import Assignment
from ag_jax.data.records import files, formats
from ag_jax.distributed.terminal import tenths
from ag_jax.grid import store
from ag_jax.grid.cells import Cell, Result
from ag_jax.objectives.masked_lm import MLM
from ag_jax.objectives.supervised import TASK
from ag_jax.pretraining import workloads
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.probing.ablation import heads, trained
from ag_jax.probing.ablation.batches import TextBatches
from ag_jax.probing.ablation.heads import HeadAblation
from ag_jax.probing.ablation.trained import TrainedModel
from ag_jax.probing.config import HELD_OUT, AblationConfig

VERSION = 1  # of the computation of losses; a new one makes stored results of the earlier ones invalid
FOLDER = "ablation"
METRICS = {metric.metric: metric for metric in (MLM, TASK)}
ARRAYS = ("weights_T", "base_T", "sums_NHT")


@dataclasses.dataclass(frozen=True, eq=False)
class Ablated:
    """The result of head ablation for one model of a comparison.

    description: where the model comes from, for people.
    assignment: the heads that guidance pulled towards patterns.
    tokenizer: fingerprint of its tokenizer.
    digest: SHA-256 of the texts, with their masked words or labels.
    ablation: the losses with and without each head.
    """

    description: str
    assignment: Assignment
    tokenizer: str
    digest: str
    ablation: HeadAblation


def check(config: AblationConfig, checkpoints: Iterable[tuple[str, int | None]]) -> None:
    """Raise FileNotFoundError or ValueError if a config's texts are unreadable or a model cannot be ablated on them.

    checkpoints: directories of models, each with the step of a run's checkpoint or None.

    This is done before any model is measured. ValueError is also raised for a model without a loss.
    """
    lines = _lines(config)
    for checkpoint, step in checkpoints:
        opened = trained.open_trained(checkpoint, step)
        if lines is not None or opened.own_texts is None or not opened.predicts_words:
            # Raises if they do not go together.
            opened.texts(lines, 1 if lines is None else config.most, called=_called(config))


def check_training(experiments: Mapping[str, Sequence[ExperimentConfig]], needs: str = "head ablation needs") -> None:
    """Raise ValueError if a run that is still to be trained will have no loss of masked words.

    experiments: for each arm the configs of the runs that will be trained.
    needs: what needs the loss, and the verb, for the error message.
    """
    for arm, of_arm in experiments.items():
        for experiment in of_arm:
            metric = workloads.workload_of(experiment).primary_metric
            if metric is not MLM:
                raise ValueError(
                    f"the arm {arm} trains a model whose loss is {metric.label}, but {needs} the loss of masked words: "
                    "train a model that predicts them, or set the data to none"
                )


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
    """An opened model, and the texts on which its heads will be ablated."""

    opened: TrainedModel
    data: TextBatches


def prepare(
    config: AblationConfig, places: Mapping[str, Mapping[int, tuple[str, int | None]]]
) -> dict[str, dict[int, Prepared]]:
    """Return {arm: {seed: opened model with the texts of its head ablation}}.

    Given texts are cut to the length that all models can read, so that models with the same tokenizer have the same
    texts and masked words.

    places: for each arm and seed the directory of the model, and the step of a run's checkpoint or None.
    """
    lines = _lines(config)
    opened = {
        arm: {seed: trained.open_trained(*place) for seed, place in of_arm.items()} for arm, of_arm in places.items()
    }
    length = min(model.length for of_arm in opened.values() for model in of_arm.values())
    return {
        arm: {
            seed: Prepared(model, model.texts(lines, config.most, length=length, called=_called(config)))
            for seed, model in of_arm.items()
        }
        for arm, of_arm in opened.items()
    }


@dataclasses.dataclass(frozen=True, eq=False)
class AblationCell(Cell):
    """Head ablation of a model.

    prepared: the model and its texts.
    assignment: see `Ablated`.
    """

    prepared: Prepared
    assignment: Assignment

    @functools.cached_property
    def inputs(self) -> Mapping[str, str]:
        """Digests of the model, of the texts with their masked words or labels, and of the version."""
        opened, data = self.prepared.opened, self.prepared.data
        return {"model": opened.digest(), "text": data.digest(), "settings": store.digest(VERSION)}

    def compute(self, directory: epath.Path) -> Result:
        """Measure the losses with and without each head."""
        opened, data = self.prepared.opened, self.prepared.data
        ablation = heads.measure(opened, data, progress=tenths(self.path, "batches"))
        arrays = store.write_arrays(directory, "losses.npz", {name: getattr(ablation, name) for name in ARRAYS})
        return Result({"model": opened.description, "metric": ablation.metric.metric}, {"losses": arrays})

    def read(self, directory: epath.Path, result: Result) -> Ablated:
        """Return the losses that a result and its file hold."""
        opened, data = self.prepared.opened, self.prepared.data
        arrays = store.read_arrays(directory, result.artifacts["losses"])
        ablation = heads.of_sums(METRICS[result.facts["metric"]], data, **arrays)
        tokenizer = opened.tokenizer.fingerprint()
        return Ablated(opened.description, self.assignment, tokenizer, result.inputs["text"], ablation)


def _called(config: AblationConfig) -> str:
    """Return the name by which reports and messages call the texts of the config's file."""
    return f"lines of {config.data}"


def _lines(config: AblationConfig) -> list[str] | None:
    """Return the non-empty lines of the config's text file; None if models are measured on their own texts."""
    if config.data is None or config.data == HELD_OUT:
        return None
    with files.decompressed(pathlib.Path(config.data).expanduser()) as stream:
        lines = [line.strip() for _, line in formats.lines(stream, f"ablation.data={config.data}")]
    return [line for line in lines if line]
