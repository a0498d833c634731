"""Masked shares of an earlier run with an adversary, as a schedule for non-learned masks (`method=scheduled`)."""

from etils import epath

from ag_jax.data.json_files import check_fields, read_json
from ag_jax.objectives.adversarial.config import AdversarialConfig
from ag_jax.objectives.adversarial.masking import Trace
from ag_jax.training.metrics import read_metrics


def read(config: AdversarialConfig, layers: int) -> Trace | None:
    """Read the shares of masked units of the run named by `adversarial.masking.trace`; None if the method needs none.

    layers: the number of layers of the model to be trained.

    Raises ValueError if that run recorded no shares, did not end, or has a model with another number of layers.
    """
    if config.method != "scheduled":
        return None
    named = f"adversarial.masking.trace={config.masking.trace}"
    wanted = f"{named} must be metrics.jsonl of a run or trial with method=asa, or its directory"
    directory = directory_of(config)
    try:
        rows = read_metrics(directory)
    except FileNotFoundError as error:
        raise ValueError(
            f"{wanted}: there is none; train that first, in a comparison by an arm that comes before"
        ) from error
    rows = [row for row in rows if row["split"] == "train" and row.get("masked/layers") is not None]
    if not rows:
        raise ValueError(f"{wanted}: nothing was masked there")
    planned = _planned_steps(directory, rows[-1]["step"])
    if planned is None:
        raise ValueError(
            f"{wanted}, that was trained to its end: it stopped after step {rows[-1]['step']}; resume it first"
        )
    shares = tuple(tuple(row["masked/layers"]) for row in rows)
    if len(shares[0]) != layers:
        raise ValueError(f"{wanted}, of a model of as many layers: it has {len(shares[0])}, the model {layers}")
    ends = [row["step"] for row in rows]
    # A row is the mean over the steps since the row before, so it is dated to the middle of these steps.
    middles = [(begin + end) / 2 for begin, end in zip([0, *ends], ends, strict=False)]
    return Trace(tuple(middle / planned for middle in middles), shares)


def _planned_steps(directory: epath.Path, last: int) -> int | None:
    """Return the planned steps of a run or trial, which `patience` may have cut short; None if it did not end.

    last: the last logged step.
    """
    if (directory / "result.json").exists():
        found = {"planned_steps": last} | read_json(directory / "result.json")
        check_fields(directory / "result.json", found, {"planned_steps": int})
        return found["planned_steps"]
    return last if (directory / "summary.json").exists() else None


def directory_of(config: AdversarialConfig) -> epath.Path:
    """Return the directory that `adversarial.masking.trace` names, either itself or by its `metrics.jsonl`."""
    path = epath.Path(config.masking.trace)
    return path.parent if path.name == "metrics.jsonl" else path
