"""The command on several hosts, which here are processes of this machine, with devices that the CPU pretends."""

import pathlib
import socket
from collections.abc import Callable

from tests import commands
from tests.commands import REPOSITORY

STEPS = 24
SETTINGS = {
    "data.sequence_length": 16,
    "data.tokenizer.vocabulary_size": 300,
    "model.layers": 1,
    "model.width": 16,
    "model.heads": 2,
    "training.steps": STEPS,
    "optimizer.warmup_steps": 0,
    "training.batch_size": 4,
    "training.log_every": 1,
    "training.evaluate_every": 12,
    "training.checkpoint_every": 7,
    "training.keep_last": 3,
    "guidance.fraction": 1.0,
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


class Host(commands.Running):
    """One process of the command, with `devices` CPU devices."""

    def __init__(self, arguments: list[str], devices: int, before: Callable[[], None] | None = None):
        self.arguments = arguments
        environment = {"JAX_NUM_CPU_DEVICES": str(devices), "JAX_PLATFORMS": "cpu"}
        super().__init__(arguments, environment=environment, before=before)

    @property
    def output(self) -> str:
        """Return the output of the host so far."""
        return self.stdout + self.stderr


def command(text: pathlib.Path, workdir: pathlib.Path, *more: str, verb: str = "train") -> list[str]:
    settings = [f"--config.{key}={value}" for key, value in (SETTINGS | {"data.source": text}).items()]
    return [verb, f"--config={REPOSITORY / 'configs' / 'quickstart.py'}", *settings, f"--workdir={workdir}", *more]


def start(
    hosts: int,
    arguments: list[str],
    devices: int,
    *,
    but: tuple[int, ...] = (),
    timeout: int = 120,
    before: Callable[[], None] | None = None,
) -> list[Host]:
    """The command on `hosts` hosts with `devices` each; those in `but` never come. `before` is called in each."""
    flags = [f"--coordinator=localhost:{free_port()}", f"--hosts={hosts}", f"--join_timeout={timeout}"]
    return [Host([*arguments, *flags, f"--host={host}"], devices, before) for host in range(hosts) if host not in but]


def finish(started: list[Host], status: int = 0) -> list[str]:
    """Return the output of all hosts, once all have ended with `status`."""
    statuses = [host.wait(240).returncode for host in started]
    outputs = [host.output for host in started]
    assert statuses == [status] * len(started), "\n\n".join(map(str, zip(statuses, outputs, strict=True)))
    return outputs


def unexpected_lines(output: str) -> list[str]:
    """Return the lines that a host should not have printed, without the lines of gloo, which it may print in pieces."""
    gloo = ("[Gloo]", "peer ranks")
    lines = [line for line in output.splitlines() if line and not line.isdigit()]
    return [line for line in lines if not any(piece in line for piece in gloo)]
