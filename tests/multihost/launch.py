"""The command on several hosts, which here are processes of this machine, with devices that the CPU pretends."""

import os
import pathlib
import socket
import subprocess
import sys
import threading
import time

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
STEPS = 40
SETTINGS = {
    "data.sequence_length": 16,
    "data.tokenizer.vocabulary_size": 300,
    "model.layers": 1,
    "model.width": 16,
    "model.heads": 2,
    "training.steps": STEPS,
    "training.batch_size": 4,
    "training.log_every": 1,
    "training.evaluate_every": 20,
    "training.checkpoint_every": 7,
    "training.keep_last": 3,
    "guidance.fraction": 1.0,
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


class Host:
    """One process of the command; its output is gathered while it runs."""

    def __init__(self, arguments: list[str], devices: int):
        environment = os.environ | {"JAX_NUM_CPU_DEVICES": str(devices), "JAX_PLATFORMS": "cpu", "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ag_jax.main", *arguments],
            cwd=REPOSITORY,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.output = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with self.process.stdout as lines:
            for line in lines:
                self.output += line

    def wait(self, seconds: float = 240) -> int:
        """Exit status."""
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"still running after {seconds} seconds:\n{self.output}") from None
        self._reader.join(10)
        return status

    def kill(self) -> None:
        """End the process, also one that is halted, if it is still there."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join(10)

    def wait_for(self, text: str, seconds: float = 240) -> None:
        """Return as soon as the process has printed a text."""
        deadline = time.monotonic() + seconds
        while text not in self.output:
            assert time.monotonic() < deadline and self.process.poll() is None, f"{text!r} did not come:\n{self.output}"
            time.sleep(0.01)


def command(text: pathlib.Path, workdir: pathlib.Path, *more: str, verb: str = "train") -> list[str]:
    settings = [f"--config.{key}={value}" for key, value in (SETTINGS | {"data.source": text}).items()]
    return [verb, f"--config={REPOSITORY / 'configs' / 'quickstart.py'}", *settings, f"--workdir={workdir}", *more]


def start(hosts: int, arguments: list[str], devices: int, *, but: tuple[int, ...] = (), timeout: int = 120) -> list[Host]:
    """The command on `hosts` hosts with `devices` each; those in `but` never come."""
    flags = [f"--coordinator=localhost:{free_port()}", f"--hosts={hosts}", f"--join_timeout={timeout}"]
    return [Host([*arguments, *flags, f"--host={host}"], devices) for host in range(hosts) if host not in but]


def finish(started: list[Host], status: int = 0) -> list[str]:
    """What the hosts printed, once all have ended with `status`."""
    statuses = [host.wait() for host in started]
    outputs = [host.output for host in started]
    assert statuses == [status] * len(started), "\n\n".join(map(str, zip(statuses, outputs, strict=True)))
    return outputs
