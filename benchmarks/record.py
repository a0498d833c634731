"""Save benchmark results as JSON, with the command, the device and the versions of packages."""

import importlib.metadata
import json
import pathlib
import platform
import re
import sys
from collections.abc import Sequence
from typing import Any

RESULTS = pathlib.Path(__file__).parent / "results"
PACKAGES = ("jax", "jaxlib", "flax", "numpy")
# An absolute path, or one that begins at the home directory or a parent folder, at the start of a value.
_PATH = re.compile(r"(?:(?<=[=,:])|^)(?:~|\.\.?)?(?:/[^/\s,:=]+)+/?")


def save(name: str, figures: dict[str, Any], packages: Sequence[str] = PACKAGES) -> pathlib.Path:
    """Write `figures`, with command, device and versions of `packages`, to `results/NAME.json`; return its path."""
    content = {
        "benchmark": name,
        "command": command(),
        **machine(packages),
        **figures,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path


def command() -> str:
    """Return the command by which the program was started, with only the last part of each path."""
    script, *arguments = sys.argv
    return " ".join(["python", f"benchmarks/{pathlib.Path(script).name}", *cleaned(arguments)])


def cleaned(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command with only the last part of each path, which says nothing of the machine."""
    return [_PATH.sub(lambda found: found[0].rstrip("/").rsplit("/", 1)[1], argument) for argument in arguments]


def machine(packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """Return what a result was measured on: JAX's devices, processor, and the versions of Python and of packages."""
    return {
        **(_devices() if "jax" in packages else {}),
        "processor": _processor(),
        "versions": {
            "python": platform.python_version(),
            **{package: importlib.metadata.version(package) for package in packages},
        },
    }


def _devices() -> dict[str, str]:
    import jax  # not installed where a program does without

    devices = jax.devices()
    return {"device": f"{len(devices)} x {devices[0].device_kind}"}


def _processor() -> str:
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    names = [
        line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
    ]
    return f"{len(names)} x {names[0]}" if names else platform.processor()
