"""Profile of some training steps: a trace by JAX's profiler in the run directory, for TensorBoard and Perfetto."""

import contextlib
import pathlib
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
from etils import epath

from ag_jax.distributed import hosts

FOLDER = "profile"


class Profile:
    """Recorder of a JAX profiler trace of the steps `first` to `last`, which is written to the run's folder `profile`.

    Each host writes the files of its own devices. A run that is resumed between the two steps traces the rest of them.

    steps: (first, last), or empty for no trace.
    workdir: the run directory.
    start: step from which the run starts or resumes.
    say: function that shows a message, such as where the trace is.
    """

    def __init__(self, steps: tuple[int, ...], workdir: epath.Path, start: int, say: Callable[[str], None]):
        self._steps, self._folder, self._say = steps, workdir / FOLDER, say
        if steps and start >= steps[1]:
            say(
                f"training.profile={steps[0]},{steps[1]}: the run is at step {start} already, so no trace is written; "
                "choose later steps"
            )
        self._local: Any = None  # the temporary directory in which the profiler writes, while it is running
        self._began = self._ended = 0

    def step(self, step: int, state: Any) -> contextlib.AbstractContextManager:
        """Return a context that names a training step in the trace; start the trace at the first step to be traced.

        state: the state before the step, which is waited for, so that the trace has no earlier step.
        """
        if not self._steps or not self._steps[0] <= step <= self._steps[1]:
            return contextlib.nullcontext()
        if self._local is None:
            jax.block_until_ready(state)
            local = tempfile.TemporaryDirectory(prefix="ag_jax-profile-")
            jax.profiler.start_trace(local.name)
            self._local, self._began = local, step
        self._ended = step
        return jax.profiler.StepTraceAnnotation("train", step_num=step)

    def is_complete(self, step: int) -> bool:
        """Return whether a trace is running and `step` is its last step."""
        return self._local is not None and step == self._steps[1]

    def finish(self, state: Any) -> float:
        """End the running trace once `state` is ready, write its files, and return the seconds that this took.

        Must be called only after `is_complete`.
        """
        jax.block_until_ready(state)
        before = time.perf_counter()
        local, self._local = self._local, None  # so that `abandon` does not end it again if a file cannot be written
        jax.profiler.stop_trace()
        # The layout that TensorBoard looks for, with a name that is the same on all hosts.
        target = self._folder / "plugins" / "profile" / f"steps_{self._began}-{self._ended}"
        target.mkdir(parents=True, exist_ok=True)
        # The profiler names files by the machine, which several hosts (processes) may share.
        host = f"host{hosts.index()}_" if hosts.count() > 1 else ""
        for file in sorted(pathlib.Path(local.name).rglob("*")):
            if file.is_file():
                (target / f"{host}{file.name}").write_bytes(file.read_bytes())
        local.cleanup()
        self._say(f"profile: {target} (tensorboard --logdir={target.parents[2]}, or ui.perfetto.dev)")
        return time.perf_counter() - before

    def abandon(self) -> None:
        """End a trace that still runs at the end of the run, without writing it."""
        if self._local is not None:
            jax.profiler.stop_trace()
            self._local.cleanup()
            self._local = None
            self._say("profile: the run ended before the last step of training.profile: no trace is written")
