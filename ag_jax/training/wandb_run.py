"""Runs at Weights & Biases (https://wandb.ai), with the rows of `metrics.jsonl` and the run's settings."""

import contextlib
import dataclasses
import importlib.util
import secrets
import sys
from typing import Any

from etils import epath

from ag_jax.distributed import storage

# Seconds to wait at the end of a run for the upload of its last rows. wandb's default is to wait forever; rows that
# were not uploaded stay on the disk, for `wandb sync`.
FINISH_TIMEOUT = 60.0


@dataclasses.dataclass(frozen=True)
class Labels:
    """Labels by which runs are grouped at Weights & Biases (wandb).

    group: name of the comparison to which the run belongs; None for a single run.
    tags: further labels, such as its arm.
    """

    group: str | None = None
    tags: tuple[str, ...] = ()


def check_installed(project: str | None) -> None:
    """Raise ValueError if the setting `wandb` names a project, but the package wandb is missing."""
    if project and importlib.util.find_spec("wandb") is None:
        raise ValueError(f"wandb={project!r} needs the package wandb: pip install 'ag_jax[wandb]', or set wandb=none")


class WandbRun:
    """Run of a wandb project for one run directory; opened again for that directory, it continues the same wandb run.

    wandb sends rows from a separate process, which retries while the network is down. If that process fails, no more
    rows are sent, and training continues.
    """

    def __init__(
        self,
        project: str,
        workdir: epath.Path,
        settings: dict[str, Any],
        labels: Labels,
        name: str,
    ):
        """Start a wandb run, or continue the one whose id is stored in `workdir`.

        project: name of the wandb project.
        workdir: run directory, where the run's wandb id is stored.
        settings: the whole config of the run.
        labels: group and tags of the run.
        name: name of the run at wandb.

        Raises ValueError if wandb cannot start, for example without an API key.
        """
        import wandb

        identity = workdir / "wandb_id"
        if not identity.exists():
            storage.write_whole(identity, secrets.token_hex(4))
        try:
            self._run = wandb.init(
                project=project,
                id=identity.read_text().strip(),
                resume="allow",
                name=name,
                group=labels.group,
                tags=labels.tags,
                config=settings,
                allow_val_change=True,  # a run may be resumed with another mesh, for example
                dir=None if storage.is_remote(workdir) else str(workdir),  # None: wandb's own choice
                settings=wandb.Settings(finish_timeout=FINISH_TIMEOUT),
            )
            # wandb's own step counter cannot decrease, as needed when a killed run resumes from a checkpoint.
            self._run.define_metric("*", step_metric="step")
        except Exception as error:  # wandb raises many types
            raise ValueError(
                f"wandb={project!r}: wandb did not start ({error}). Log in with `wandb login`, "
                "set WANDB_MODE=offline to upload later, or set wandb=none"
            ) from error

    def log(self, step: int, values: dict[str, float]) -> None:
        """Send the metrics of a step, {name: value}, to wandb."""
        if self._run:
            with self._survived():
                self._run.log({"step": step, **values})

    def finish(self, failed: bool = False) -> None:
        """End the wandb run, and wait at most `FINISH_TIMEOUT` seconds for the upload."""
        if self._run:
            with self._survived():
                self._run.finish(exit_code=int(failed))

    @contextlib.contextmanager
    def _survived(self):
        """Context manager that turns any error of wandb into a warning, after which no more rows are sent."""
        try:
            yield
        except Exception as error:
            self._run = None
            print(
                f"warning: wandb failed ({type(error).__name__}: {error}): "
                "it gets no more rows of this run; metrics.jsonl has them all",
                file=sys.stderr,
                flush=True,
            )
            with contextlib.suppress(Exception):
                import wandb

                wandb.teardown()  # otherwise it fails again when the program ends
