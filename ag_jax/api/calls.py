"""What the functions that train have in common: progress and interruption."""

import contextlib
from collections.abc import Iterator

from etils import epath

from ag_jax.distributed import terminal
from ag_jax.distributed.terminal import Progress
from ag_jax.training.stopping import Interrupted


@contextlib.contextmanager
def training(function: str, progress: Progress) -> Iterator[None]:
    """Context manager of a call that trains, in which an interruption is a KeyboardInterrupt that says how to go on.

    function: name of the function of `ag_jax` that is called.
    """
    with terminal.progress(progress):
        try:
            yield
        except (Interrupted, KeyboardInterrupt) as stop:
            what = str(stop) or "stopped"
            raise KeyboardInterrupt(f"{what}. To go on, call ag_jax.{function} with the same arguments again") from None


def written(report: epath.Path | None, workdir: epath.Path) -> epath.Path:
    """Return the path of a report. Raises RuntimeError for None, which says that other processes are still at work."""
    if report is None:
        raise RuntimeError(f"other processes are at work in {workdir}: call again when they have ended")
    return report
