"""Run `ag-jax ARGUMENTS` in a forked child of a process that has imported the program.

Importing JAX and the program takes seconds of CPU time, and the tests start about a hundred commands. So each pytest
worker has one server process (`multiprocessing`'s forkserver), which imports everything once and never starts a JAX
backend. Every command is a fork of the server, with its own arguments, environment, folder and output files.
`tests/test_command.py` also starts some commands in new interpreters, so that the real start is tested.
"""

import atexit
import dataclasses
import functools
import importlib
import multiprocessing
import os
import pathlib
import pkgutil
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import weakref
from collections.abc import Callable, Sequence

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent


def preload() -> None:
    """Import every module of the program, and modules that are imported inside functions. Called in the server."""
    import ag_jax

    for module in pkgutil.walk_packages(ag_jax.__path__, "ag_jax."):
        importlib.import_module(module.name)
    for name in ("grain", "tensorboardX", "matplotlib.figure"):
        importlib.import_module(name)


@functools.cache
def _server() -> multiprocessing.context.BaseContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.preloaded_commands"])
    return context


def in_a_child(work: Callable[[], None]) -> None:
    """Call `work` in a forked process, because the parent must not start JAX. Raises SystemExit if it fails."""
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        raise SystemExit("the work of a child process failed; its message is above")


def limit_file_size(size: int) -> None:
    """Limit the size of files that this process writes to `size` bytes, which simulates a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@dataclasses.dataclass(frozen=True)
class Finished:
    """The result of a command that has ended.

    returncode: the exit status; minus the signal's number if a signal killed the command.
    stdout: the standard output.
    stderr: the standard error.
    """

    returncode: int
    stdout: str
    stderr: str


class Running:
    """A command that has been started.

    Args:
      arguments: the command-line arguments after `ag-jax`.
      cwd: the working directory.
      environment: environment variables to change; None removes a variable.
      before: called in the child before the command begins; must be picklable.
    """

    def __init__(
        self,
        arguments: Sequence[object],
        *,
        cwd: pathlib.Path = REPOSITORY,
        environment: dict[str, str | None] | None = None,
        before: Callable[[], None] | None = None,
    ):
        folder = tempfile.mkdtemp(prefix="ag_jax-command-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._outputs = tuple(pathlib.Path(folder, name) for name in ("stdout", "stderr"))
        for output in self._outputs:
            output.touch()
        variables = {**os.environ, **(environment or {})}
        self._process = _server().Process(
            target=_child,
            args=(
                [str(argument) for argument in arguments],
                str(cwd),
                {name: value for name, value in variables.items() if value is not None},
                [str(output) for output in self._outputs],
                before,
            ),
        )
        self._process.start()

    @property
    def stdout(self) -> str:
        """The standard output of the command so far."""
        return self._outputs[0].read_text(errors="backslashreplace")

    @property
    def stderr(self) -> str:
        """The standard error of the command so far."""
        return self._outputs[1].read_text(errors="backslashreplace")

    @property
    def pid(self) -> int:
        """The process id of the command."""
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit status, or None while the command runs."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal to the command."""
        os.kill(self.pid, number)

    def wait(self, seconds: float = 300) -> Finished:
        """Wait for the command to end.

        A command that runs longer than `seconds` is killed, and an AssertionError shows its output.
        """
        self._process.join(seconds)
        if self._process.exitcode is None:
            self.kill()
            raise AssertionError(f"still running after {seconds} seconds:\n{self.stdout}\n{self.stderr}")
        return Finished(self._process.exitcode, self.stdout, self.stderr)

    def wait_for(self, text: str, seconds: float = 240) -> None:
        """Wait until the command has printed `text`. Raises AssertionError if it ends or times out first."""
        deadline = time.monotonic() + seconds
        while text not in self.stdout + self.stderr:
            ended = self.poll() is not None
            if (ended or time.monotonic() > deadline) and text not in self.stdout + self.stderr:
                raise AssertionError(f"{text!r} was not printed:\n{self.stdout}\n{self.stderr}")
            time.sleep(0.01)

    def kill(self) -> None:
        """Kill the command, even if it is stopped by a signal; do nothing if it has ended."""
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()


def run(arguments: Sequence[object], **options) -> Finished:
    """Run `ag-jax ARGUMENTS` to its end; `options` are the keyword arguments of `Running`."""
    return Running(arguments, **options).wait()


def _child(
    arguments: list[str], cwd: str, environment: dict[str, str], outputs: list[str], before: Callable[[], None] | None
) -> None:
    """Make this fork look like a new interpreter that was started with `arguments`, and run the command."""
    for descriptor, path in ((0, os.devnull), (1, outputs[0]), (2, outputs[1])):
        opened = os.open(path, os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_APPEND)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.stdout.reconfigure(line_buffering=True)
    os.chdir(cwd)
    _set_jax_options(environment)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["ag-jax", *arguments]
    if before:
        before()
    from ag_jax import main

    try:
        main.console()
    finally:
        atexit._run_exitfuncs()  # multiprocessing leaves with os._exit, which skips them


def _set_jax_options(environment: dict[str, str]) -> None:
    """Set JAX's options from `environment`, because JAX read its variables when the server imported it."""
    import jax

    for name in {name for name in {*environment, *os.environ} if name.startswith("JAX_")}:
        if environment.get(name) == os.environ.get(name):
            continue
        if name not in environment:
            raise ValueError(f"{name} cannot be unset: the server of commands was started with it")
        option, value = name.lower(), environment[name]
        current = getattr(jax.config, option)
        kind = type(current) if current is not None else str
        jax.config.update(option, value.lower() in ("1", "true") if kind is bool else kind(value))
