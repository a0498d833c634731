"""A run at Weights & Biases (https://wandb.ai): the rows of metrics.jsonl, beside the settings that they belong to."""

import contextlib
import dataclasses
import importlib.util
import secrets
import sys
from typing import Any

from etils import epath

from ag_jax.distributed import storage

# Seconds to wait at the end of a run for the upload of its last rows. wandb's own default is to wait for ever; what was not uploaded
# stays on the disk, for `wandb sync`.
FINISH_TIMEOUT = 60.0


@dataclasses.dataclass(frozen=True)
class Labels:
    """What runs at wandb are grouped by. group: the comparison that the run belongs to; tags: such as its arm."""

    group: str | None = None
    tags: tuple[str, ...] = ()


def check_installed(project: str | None) -> None:
    """Raise ValueError if the setting `wandb` names a project, but the package is missing."""
    if project and importlib.util.find_spec("wandb") is None:
        raise ValueError(f"wandb={project!r} needs the package wandb: pip install 'ag_jax[wandb]', or set wandb=none")


class WandbRun:
    """A run of a wandb project, for one run directory: opened again, it continues the same run there.

    wandb sends rows from a process of its own, and tries again while the network is down. If that process fails, no more rows are
    sent, and training continues.
    """

    def __init__(
        self,
        project: str,
        workdir: epath.Path,
        settings: dict[str, Any],
        labels: Labels = Labels(),
        name: str | None = None,
    ):
        """Start or continue the run.

        settings: all of its config.
        name: at wandb; None for that of the directory.

        Raises ValueError if wandb is not installed or cannot start, for example without an API key.
        """
        check_installed(project)
        import wandb

        identity = workdir / "wandb_id"
        if not identity.exists():
            storage.write_whole(identity, secrets.token_hex(4))
        try:
            self._run = wandb.init(
                project=project,
                id=identity.read_text().strip(),
                resume="allow",
                name=name or workdir.name,
                group=labels.group,
                tags=labels.tags,
                config=settings,
                allow_val_change=True,  # a run may be resumed with another mesh, for example
                dir=None if storage.is_remote(workdir) else str(workdir),  # None: wandb's own choice
                settings=wandb.Settings(finish_timeout=FINISH_TIMEOUT),
            )
            # wandb's own count of steps cannot go back, as a run does that was killed and resumes from a checkpoint.
            self._run.define_metric("*", step_metric="step")
        except Exception as error:  # wandb has many kinds
            raise ValueError(
                f"wandb={project!r}: wandb did not start ({error}). Log in with `wandb login`, set WANDB_MODE=offline to "
                "upload later, or set wandb=none"
            ) from error

    def log(self, step: int, values: dict[str, float]) -> None:
        """Send a row."""
        if self._run:
            with self._survived():
                self._run.log({"step": step, **values})

    def finish(self, failed: bool = False) -> None:
        """End the run, and wait at most `FINISH_TIMEOUT` seconds for the upload."""
        if self._run:
            with self._survived():
                self._run.finish(exit_code=int(failed))

    @contextlib.contextmanager
    def _survived(self):
        try:
            yield
        except Exception as error:
            self._run = None
            print(
                f"warning: wandb failed ({type(error).__name__}: {error}): it gets no more rows of this run; metrics.jsonl has them all",
                file=sys.stderr,
                flush=True,
            )
            with contextlib.suppress(Exception):
                import wandb

                wandb.teardown()  # or it fails once more when the program ends
