"""What a directory holds: a run, a suite, a search or another output of a verb."""

from etils import epath

from ag_jax.data import tokenizers
from ag_jax.data.json_files import read_json
from ag_jax.distributed import storage
from ag_jax.finetuning import trial
from ag_jax.interop import finetuned
from ag_jax.pretraining import run_directory

RUN, SUITE, SEARCH, PROBES = "a run", "a suite of fine-tuning", "a search", "a report on probes"
COMPARISON, SUITES, TOKENIZER = "a comparison of runs", "a comparison of suites", "a tokenizer"
ARMS = "the runs of a comparison"  # that is not finished
MAY_HOLD = {COMPARISON: (ARMS,), PROBES: (ARMS,)}


def of(directory: epath.Path) -> str | None:
    """Return in words what a directory holds, such as "a run"; None if no verb has written anything into it."""
    config, report = (
        read_json(path) if (path := directory / name).exists() else {} for name in ("config.json", "report.json")
    )
    # From the special to the general: a trial has a run's checkpoints, too, and a suite's arms have reports.
    if "model_type" in config:
        return "a Hugging Face model"
    if isinstance(tasks := config.get("tasks"), dict) and any((directory / name).is_dir() for name in tasks):
        return SUITE
    if finetuned.locate(directory) or trial.read(directory) is not None:
        return "a trial of fine-tuning"
    if run_directory.is_begun(directory):
        return RUN
    if (directory / "search.json").exists():
        return SEARCH
    if report:
        return PROBES if "probes" in report else SUITES if "tasks" in report else COMPARISON
    if (directory / tokenizers.CHECKSUM).exists():
        return TOKENIZER
    return ARMS if any(directory.glob("*-seed*/config.json")) else None


def output_directory(workdir: epath.PathLike, kind: str | None = None) -> epath.Path:
    """Return the directory that --workdir names; with `kind`, it must be empty or hold output of that kind.

    kind: what the verb writes there, as `of` says it; None for a verb that writes nothing of its own.

    Raises ValueError if it holds something of another kind.
    """
    directory = storage.directory(workdir)
    if kind and (there := of(directory)) not in (None, kind, *MAY_HOLD.get(kind, ())):
        raise ValueError(f"--workdir={directory} holds {there}, expected {kind} or nothing: choose another directory")
    return directory
