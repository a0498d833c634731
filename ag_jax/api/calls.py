"""What the functions that train have in common: progress and interruption."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ag_jax.training import progress as training_progress
from ag_jax.training.stopping import Interrupted

# None shows progress as the command line does, False shows none, and a function gets each row of training metrics.
Progress = bool | Callable[[Mapping[str, Any]], None] | None


@contextlib.contextmanager
def training(function: str, progress: Progress) -> Iterator[None]:
    """Context manager of a call that trains, in which an interruption is a KeyboardInterrupt once all is saved.

    function: name of the function of `ag_jax` that is called.
    """
    with training_progress.reported(progress):
        try:
            yield
        except Interrupted as stop:
            raise KeyboardInterrupt(f"{stop}. To go on, call ag_jax.{function} with the same arguments again") from None
