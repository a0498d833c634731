"""Write the goldens: small directories of every kind that the program makes, and their numbers.

    python -m tests.goldens.make

Run it if the layout of stored files changes, which after the release of 0.1.0 needs a new set beside the old one.
Figures are left out. Absolute paths are made relative: an imported run's settings have one (`data.tokenizer.path`), a
trial's `result.json` (`start`), and Orbax's `commit_success.txt`.
"""

import contextlib
import json
import os
import pathlib
import shutil
import tempfile
from unittest import mock

from etils import epath

from ag_jax.finetuning import comparison as finetuning
from ag_jax.grid import store
from ag_jax.interop import exporting, importing
from ag_jax.pretraining import comparison, config, run
from ag_jax.settings import config_files
from ag_jax.training import checkpoint
from ag_jax.training.fingerprint import of_json
from ag_jax.training.stopping import Interrupted, StopSignal
from tests.goldens import inputs, reading

GOLDENS = pathlib.Path(__file__).parent / "stored"
KINDS = (
    "interrupted",
    "finished",
    "adversarial",
    "comparison",
    "exported",
    "imported",
    "trial_interrupted",
    "trial_kept",
    "suite",
)
STORED = tuple(kind for kind in KINDS if kind not in ("adversarial", "comparison"))  # with these they would be 2 MB
STOP = 5  # the step after which the interrupted run, and the interrupted trial, are stopped


def make(here: epath.Path) -> None:
    """Make directories of all `KINDS` in the working directory `here`."""
    run.train(_experiment("ag"), here / "finished")
    run.train(_experiment("asa"), here / "adversarial")
    with _stopped():
        run.train(_experiment("ag"), here / "interrupted")
    comparison.compare(config_files.load("configs/pretraining.py", reading.COMPARED), here / "comparison")
    exporting.convert(here / "finished", None, str(here / "exported"))
    importing.convert(str(here / "exported"), here / "imported")
    with _stopped():
        finetuning.finetune(config_files.load("configs/finetuning.py"), here / "trial_interrupted")
    finetuning.finetune(config_files.load("configs/finetuning.py:keep=best"), here / "trial_kept")
    finetuning.finetune(config_files.load("configs/finetuning.py:points=2"), here / "suite")


def _experiment(arm: str) -> config.ExperimentConfig:
    return config_files.load(f"configs/pretraining.py:arm={arm}").settings


@contextlib.contextmanager
def _stopped():
    """Stop what is trained within, as a signal does, after `STOP` steps."""
    answers = iter([None] * (STOP - 1) + ["SIGTERM"])
    with mock.patch.object(StopSignal, "reached", lambda _: next(answers)), contextlib.suppress(Interrupted):
        yield
        raise RuntimeError("nothing was interrupted")


def shrink(here: pathlib.Path) -> None:
    """Remove drawings, and the directory's own name from the files that store absolute paths."""
    for figures in here.rglob("figures"):
        shutil.rmtree(figures)
    for path in sorted(path for name in KINDS for path in (here / name).rglob("*") if path.is_file()):
        if str(here).encode() in (content := path.read_bytes()):
            print(f"made relative: {path.relative_to(here)}")
            path.write_text(content.decode().replace(f"{here}/", ""))
            if path.parent.name == "progress" and path.name == "metadata":  # has a checksum of itself
                progress = json.loads(path.read_text())
                written = progress.pop(checkpoint.FINGERPRINT) | {checkpoint.PROGRESS: of_json(progress)}
                path.write_text(json.dumps(progress | {checkpoint.FINGERPRINT: written}))
            elif path.name == "result.json":  # likewise
                result = json.loads(path.read_text())
                del result["sha256"]
                store.write(epath.Path(path.parent), store.of_json(result))


def main() -> None:
    """Make the goldens in a temporary directory, then move them to their place."""
    with tempfile.TemporaryDirectory() as folder:
        here = pathlib.Path(folder).resolve()
        os.environ["AG_JAX_CACHE"] = str(here / "cache")
        os.chdir(here)
        inputs.write(here)
        make(epath.Path(here))
        shrink(here)
        shutil.rmtree(GOLDENS, ignore_errors=True)
        for name in STORED:
            shutil.copytree(here / name, GOLDENS / name)
        expected = {"stored": reading.stored(here), "trained": reading.trained(here)}
        (GOLDENS / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
