"""Save benchmark results as JSON, with the command, the device and the versions of packages."""

import importlib.metadata
import json
import pathlib
import platform
import sys
from typing import Any

import jax

RESULTS = pathlib.Path(__file__).parent / "results"


def save(name: str, figures: dict[str, Any]) -> pathlib.Path:
    """Write `figures`, with command, device and versions, to `results/NAME.json`; return its path."""
    content = {
        "benchmark": name,
        "command": " ".join(["python", f"benchmarks/{pathlib.Path(sys.argv[0]).name}", *sys.argv[1:]]),
        **machine(),
        **figures,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path


def machine() -> dict[str, Any]:
    """Return what a result was measured on: device, processor, and the versions of Python and of packages."""
    devices = jax.devices()
    return {
        "device": f"{len(devices)} x {devices[0].device_kind}",
        "processor": _processor(),
        "versions": {
            "python": platform.python_version(),
            **{package: importlib.metadata.version(package) for package in ("jax", "jaxlib", "flax", "numpy")},
        },
    }


def _processor() -> str:
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    names = [
        line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
    ]
    return f"{len(names)} x {names[0]}" if names else platform.processor()
