"""What the program reads from the goldens, which never changes, and what it trains from them, which nearly does not."""

import hashlib
import json
import pathlib
from typing import Any

import jax
import numpy as np
from etils import epath
from flax import traverse_util

from ag_jax.finetuning import comparison as finetuning
from ag_jax.finetuning import suite, suite_directory
from ag_jax.finetuning.config import FinetuningConfig
from ag_jax.interop import finetuned, importing
from ag_jax.pretraining import run, run_directory
from ag_jax.pretraining.open_run import open_run
from ag_jax.settings import config_files, schema
from ag_jax.training.metrics import CLOCK_FIELDS, read_metrics
from tests import results as stored_results

RUNS = ("interrupted", "finished", "imported")
TRIAL = "sst2/lr0.02-bs8-seed0"
COMPARED = {
    "data.tokenizer.kind": "wordpiece",
    "data.tokenizer.vocabulary_size": 80,
}  # small, as there are two checkpoints
SPLITS = ("validation", "test")


def stored(here: pathlib.Path) -> dict[str, Any]:
    """Read the goldens in the working directory `here`. The suite's report is made again from its trials."""
    finetuning.finetune(config_files.load("configs/finetuning.py:points=2"), epath.Path(here / "suite"))
    kept = here / "trial_kept" / TRIAL
    tuned = finetuned.load(kept)
    return {
        **{name: _run(here / name) for name in RUNS},
        "exported": {"params": digest(importing.open_model(str(here / "exported")).params)},
        "trial_kept": {
            "params": digest(tuned.params),
            "tokenizer": tuned.tokenizer.fingerprint(),
            "labels": tuned.head.labels,
            "rows": read_metrics(kept),
            **_trial(kept),
        },
        "suite": _json(here / "suite" / "report.json"),
    }


def trained(here: pathlib.Path) -> dict[str, Any]:
    """What becomes of the interrupted run and of the interrupted trial when they are resumed."""
    workdir = epath.Path(here / "interrupted")
    summary = run.train(run_directory.read_config(workdir), workdir)
    suite_of_trial = epath.Path(here / "trial_interrupted")
    settings = suite_directory.read_settings(suite_of_trial / "config.json")
    config = schema.parse(FinetuningConfig, settings)
    suite.run(suite.prepare(config, suite_of_trial))
    directory = suite_of_trial / TRIAL
    return {
        "interrupted": {
            "summary": summary,
            "rows": _without_clock(read_metrics(workdir)),
            "norms": norms(open_run(workdir).params),
        },
        "trial_interrupted": {"rows": _without_clock(read_metrics(directory)), **_trial(directory)},
    }


def _run(workdir: pathlib.Path) -> dict[str, Any]:
    opened = open_run(epath.Path(workdir))
    has_metrics, is_done = (workdir / "metrics.jsonl").exists(), (workdir / "result.json").exists()
    return {
        "step": opened.step,
        "params": digest(opened.params),
        "adversary": digest(opened.adversary_params),
        "tokenizer": opened.tokenizer.fingerprint(),
        "rows": read_metrics(workdir) if has_metrics else None,
        "summary": dict(stored_results.facts(workdir)) if is_done else None,
    }


def _trial(directory: epath.Path) -> dict[str, Any]:
    files = {split: directory / f"predictions_{split}.jsonl" for split in SPLITS}
    predictions = {split: [json.loads(line) for line in path.read_text().splitlines()] for split, path in files.items()}
    result = _without_clock(dict(stored_results.facts(directory)))
    result.pop("start")  # names the directory of the checkpoint
    return {"result": result, "predictions": predictions}


def digest(params: Any) -> str:
    """A hash of the names, types, shapes and bits of all parameters."""
    content = hashlib.sha256()
    for path, leaf in sorted(traverse_util.flatten_dict(jax.device_get(params), sep="/").items()):
        content.update(f"{path} {leaf.dtype} {leaf.shape}\n".encode() + np.ascontiguousarray(leaf).tobytes())
    return content.hexdigest()


def norms(params: Any) -> dict[str, float]:
    """The norm of each parameter, except biases of keys: their gradients are rounding errors, which Adam scales up."""
    flat = traverse_util.flatten_dict(jax.device_get(params), sep="/")
    kept = {path: leaf for path, leaf in flat.items() if not path.endswith("key/bias")}
    return {path: float(np.linalg.norm(np.asarray(leaf, np.float64))) for path, leaf in kept.items()}


def _json(path: pathlib.Path) -> Any:
    return json.loads(path.read_text())


def _without_clock(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_clock(item) for key, item in value.items() if key not in CLOCK_FIELDS}
    return [_without_clock(item) for item in value] if isinstance(value, list) else value
