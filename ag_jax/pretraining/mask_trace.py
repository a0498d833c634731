"""The share of attention that an earlier run's adversary masked, as a schedule for non-learned masks.

This is `adversarial.method=scheduled`. The share is that of the pairs of a query and a key that are masked in a layer.
It is stored in the run directory when the run begins (`trace.json`), and a resumed run reads it from there, whatever
became of the earlier run.
"""

import dataclasses
import json

from etils import epath

from ag_jax.data.json_files import read_json, reading
from ag_jax.distributed import hosts, storage
from ag_jax.grid import store
from ag_jax.objectives.adversarial.config import AdversarialConfig
from ag_jax.objectives.adversarial.masking import Trace
from ag_jax.pretraining import config as pretraining_config
from ag_jax.training.checkpoint import saved_metrics

FILE = "trace.json"


def of_run(config: AdversarialConfig, layers: int, workdir: epath.Path) -> Trace | None:
    """Return the share of attention to mask in each layer over a run; None unless `adversarial.method` is `scheduled`.

    The shares are read from the run's directory, or if that has none, from an earlier run (`read`).

    Raises ValueError if the file is damaged.
    """
    path = workdir / FILE
    if config.method != "scheduled" or not path.exists():
        return read(config, layers)
    with reading(path, "put back a copy of the file"):
        stored = read_json(path, fields={"progress": list, "shares": list})
        progress = tuple(map(float, stored["progress"]))
        shares = tuple(tuple(map(float, row)) for row in stored["shares"])
        if {len(row) for row in shares} != {layers} or len(shares) != len(progress):
            raise ValueError(
                f"expected a share for each of {layers} layers at each of {len(progress)} points of the run, got "
                f"others in {len(shares)} rows"
            )
    return Trace(progress, shares)


def record(config: AdversarialConfig, layers: int, workdir: epath.Path) -> None:
    """Store the shares of attention that an earlier run masked (`read`) in a run directory that has none yet.

    Host 0 stores them if `adversarial.method` is `scheduled`.
    """

    def write() -> None:
        trace = None if (workdir / FILE).exists() else read(config, layers)
        if trace is not None:
            storage.write_whole(workdir / FILE, json.dumps(dataclasses.asdict(trace)) + "\n")

    if config.method == "scheduled":
        hosts.from_first("the trace", write)


class FailedTrialError(ValueError):
    """Raised if a run is to mask attention like an earlier trial, and that trial failed."""


def read(config: AdversarialConfig, layers: int) -> Trace | None:
    """Return the shares of attention that an earlier run masked in each layer; None unless the method is `scheduled`.

    The setting `adversarial.masking.trace` names this run, and `adversarial.method` the method. The share of a layer,
    logged every few steps, is the share of the pairs of a query and a key that are masked.

    layers: the number of layers of the model to be trained.

    Raises ValueError if the earlier run recorded no shares, did not end, or has a model with another number of layers.
    """
    if config.method != "scheduled":
        return None
    setting = f"adversarial.masking.trace={config.masking.trace}"
    expectation = f"{setting} must be metrics.jsonl of a run or trial with method=asa, or its directory"
    directory = directory_of(config)
    try:
        rows = saved_metrics(directory)
    except FileNotFoundError as error:
        raise ValueError(
            f"{expectation}: {directory / 'metrics.jsonl'} does not exist; train that run first"
        ) from error
    rows = [row for row in rows if row["split"] == "train" and row.get("masked/layers") is not None]
    if not rows:
        raise ValueError(f"{expectation}: that run masked no attention; choose one with method=asa")
    planned = _planned_steps(directory)
    if planned is None:
        raise ValueError(
            f"{expectation}, that was trained to its end: it stopped after step {rows[-1]['step']}; resume it first"
        )
    # Nothing is masked in the steps before the attack begins (`asa.delay_steps`), which have no share.
    shares = tuple(tuple(0.0 if share is None else share for share in row["masked/layers"]) for row in rows)
    if len(shares[0]) != layers:
        raise ValueError(
            f"{expectation}, of a model with {layers} layers like the model to be trained: the model of that run has "
            f"{len(shares[0])}; choose another run"
        )
    ends = [row["step"] for row in rows]
    # A row is the mean over the steps since the row before, so it is dated to the middle of these steps.
    middles = [(begin + end) / 2 for begin, end in zip([0, *ends], ends, strict=False)]
    return Trace(tuple(middle / planned for middle in middles), shares)


def _planned_steps(directory: epath.Path) -> int | None:
    """Return the planned number of steps of the run or trial in a directory; None if the training did not end.

    A trial that `patience` stopped early has ended, too: its result.json has the planned number. So has a run that
    `training.time_limit` ended: its schedules are those of `training.steps`, and so is the time scale of its masks.

    Raises FailedTrialError for a trial that failed.
    """
    result = store.read(directory)
    if result is None:
        return None
    if not result.is_done:
        raise FailedTrialError(
            f"adversarial.masking.trace={directory} is a trial that failed ({result.reason}), whose masks are those of "
            "a part of a training: choose another one"
        )
    if "planned_steps" in result.facts:  # of a trial
        return result.facts["planned_steps"]
    return pretraining_config.read(directory / "config.json").training.steps


def directory_of(config: AdversarialConfig) -> epath.Path:
    """Return the directory of the run that `adversarial.masking.trace` names, directly or by its `metrics.jsonl`."""
    path = epath.Path(config.masking.trace)
    return path.parent if path.name == "metrics.jsonl" else path
