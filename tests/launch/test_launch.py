"""The launch scripts, run with stand-ins for Python, pip and nvidia-smi: nothing is installed.

The stand-in Python answers the three ways in which the scripts call one: `-c` (who are you), `-m venv` and
`-m pip`. It appends each pip command to a log, and that log is what the tests read.
"""

import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import time

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]

PYTHON = r"""#!/bin/bash
case "$1 $2" in
  "-c "*) echo "${FAKE_VERSION:-3.11.9} /fake/base ${FAKE_VENV:-yes}" ;;
  "-m venv")
    mkdir -p "$3/bin"
    touch "$3/pyvenv.cfg"
    cp "$0" "$3/bin/python"
    printf '#!/bin/bash\necho ag-jax "$@"\necho in "$PWD"\n' > "$3/bin/ag-jax"
    chmod +x "$3/bin/ag-jax"
    echo "venv $3" >> "$LOG"
    ;;
  "-m pip")
    [ "$3" = --version ] && exit
    shift 2
    echo "pip $*" >> "$LOG"
    echo "Collecting something"
    [ -z "${FAKE_PIP_FAILS_AT_DOWNLOAD:-}" ] || { echo "ERROR: no network" >&2; exit 1; }
    echo "Installing collected packages: something"
    [ -z "${FAKE_PIP_HANGS:-}" ] || sleep 60
    ;;
  "-m pytest" | "-m sphinx") shift; echo "$@"; echo "platforms $JAX_PLATFORMS"; [ -z "${FAKE_SPHINX_FAILS:-}" ] ;;
  *) echo "the stand-in does not know: $*" >&2; exit 70 ;;
esac
"""

BROKEN = "#!/bin/bash\necho 'no such version' >&2\nexit 127\n"

NVIDIA_SMI = r"""#!/bin/bash
case "$*" in
  -L) echo "GPU 0: NVIDIA H200 (UUID: GPU-1)" ;;
  *compute_cap*) echo "${FAKE_CAPABILITY:-9.0}" ;;
  *) echo "| NVIDIA-SMI 580.65.06   Driver Version: 580.65.06   CUDA Version: ${FAKE_CUDA}     |" ;;
esac
"""


class Machine:
    """A copy of the launch files, and a PATH on which stand-ins for other programs come first."""

    def __init__(self, folder: pathlib.Path):
        self.repository = folder / "a clone"  # a space, to find missing quotes
        self.bin, self.root, self.log = folder / "bin", folder / "root", folder / "log"
        self.repository.mkdir()
        self.bin.mkdir()
        self.root.mkdir()
        shutil.copytree(REPOSITORY / "launch", self.repository / "launch")
        for name in ("requirements.txt", "requirements-test.txt", "requirements-docs.txt", "pyproject.toml"):
            shutil.copy(REPOSITORY / name, self.repository)
        for name in ("python3.13", "python3.12", "python3.11", "python", "nvidia-smi"):
            self.command(name, BROKEN)
        self.command("python3", PYTHON)
        self.command("uname", "#!/bin/bash\necho Linux\n")
        self.environment = {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "HOME": str(folder),
            "LOG": str(self.log),
            "AG_JAX_ROOT": str(self.root),
        }

    def command(self, name: str, text: str) -> pathlib.Path:
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def file(self, path: str, text: str = "") -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def start(self, script: str, *arguments: str, **environment: str) -> subprocess.Popen:
        return subprocess.Popen(
            ["bash", str(self.repository / "launch" / script), *arguments],
            env=self.environment | environment,
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
        process = self.start(script, *arguments, **environment)
        out, err = process.communicate(timeout=30)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def done(self) -> list[str]:
        """Return the commands that pip and venv were called with since the last call of this method."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return lines


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def wait_until(condition) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def test_the_first_run_installs_the_lock_and_the_second_nothing(machine):
    result = machine.run("local.sh", "train", "--config=a b", "--help")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["ag-jax train --config=a b --help", f"in {machine.repository}"]
    making, first, second = machine.done()
    assert making == f"venv {machine.repository}/.venv"
    assert first.endswith("--no-compile -r requirements.txt") and second.endswith("--no-deps -e .")
    assert "Python 3.11.9, jax for cpu (no NVIDIA GPU and no TPU found); .venv is ready" in result.stderr
    result = machine.run("local.sh")
    assert result.stdout.startswith("ag-jax compare --config=configs/quickstart.py --workdir=runs/quickstart\n")
    assert machine.done() == [] and "is up to date" in result.stderr
    with open(machine.repository / "requirements.txt", "a") as file:
        file.write("extra==1.0\n")
    machine.run("local.sh", "train")
    assert len(machine.done()) == 2  # two pip commands, no new environment


def test_help_and_a_dry_run_do_nothing(machine):
    result = machine.run("local.sh", "--help")
    assert result.returncode == 0 and result.stdout.startswith("Usage: bash launch/local.sh")
    dry = machine.run("local.sh", "--dry_run", "train", "--workdir=a b")
    assert dry.returncode == 0 and machine.done() == [] and not (machine.repository / ".venv").exists()
    clone, python = str(machine.repository), f"{machine.repository}/.venv/bin/python"
    assert [shlex.split(line) for line in dry.stdout.splitlines()] == [
        ["cd", clone],
        ["python3", "-m", "venv", f"{clone}/.venv"],
        [python, "-m", "pip", "install", "-r", "requirements.txt"],
        [python, "-m", "pip", "install", "--no-deps", "-e", "."],
        [f"{clone}/.venv/bin/ag-jax", "train", "--workdir=a b"],
    ]
    machine.run("local.sh", "train")
    machine.done()
    assert len(machine.run("local.sh", "--dry_run").stdout.splitlines()) == 2
    other = machine.run("local.sh", "--dry_run", "train", AG_JAX_ACCELERATOR="cuda13")  # another jax: everything anew
    assert "rm -rf" in other.stdout and "cuda13" in other.stdout and machine.done() == []
    assert (machine.repository / ".venv/bin/ag-jax").exists()


def test_tests_and_the_site_add_their_packages_once_and_serve_local_runs_too(machine):
    machine.run("local.sh", "train")
    machine.done()
    result = machine.run("test.sh", "tests/launch", "-x")
    assert result.stdout.splitlines() == ["pytest tests/launch -x", "platforms cpu"]
    installed = [line.split(" --no-compile ")[1] for line in machine.done()]
    assert installed == ["-r requirements-test.txt", "--no-deps -e ."]
    assert "platforms cuda" in machine.run("test.sh", "tests", JAX_PLATFORMS="cuda").stdout
    result = machine.run("docs.sh", "-q")
    build = "sphinx -n -W --keep-going -b html -d build/doctrees -q docs build/site"
    assert result.stdout.splitlines() == [build, "platforms cpu"] and "build/site/index.html" in result.stderr
    assert machine.done()[0].endswith("--no-compile -r requirements-docs.txt")
    assert machine.run("docs.sh", FAKE_SPHINX_FAILS="yes").returncode == 1
    machine.run("local.sh", "train")
    machine.run("test.sh", "tests")
    assert machine.done() == []


# --- which jax ---

GOOGLE = {"sys/bus/pci/devices/5/vendor": "0x1ae0\n", "sys/bus/pci/devices/5/class": "0x120000\n"}
# The network card of a cloud VM, and another maker's accelerator.
OTHERS = {"sys/bus/pci/devices/4/vendor": "0x1ae0\n", "sys/bus/pci/devices/4/class": "0x020000\n"}
OTHERS |= {"sys/bus/pci/devices/6/vendor": "0x8086\n", "sys/bus/pci/devices/6/class": "0x120000\n"}
# Files of the machine, environment variables, and the build with a word of the reason.
MACHINES = {
    "CUDA 13": ({}, {"FAKE_CUDA": "13.0", "FAKE_CAPABILITY": "9.0\n12.0"}, "cuda13", "CUDA 13"),
    "old smi": ({}, {"FAKE_CUDA": "13.0", "FAKE_CAPABILITY": "no valid field"}, "cuda13", "CUDA 13"),
    "CUDA 12": ({}, {"FAKE_CUDA": "12.4"}, "cuda12", "CUDA 12"),
    "an old GPU": ({}, {"FAKE_CUDA": "13.0", "FAKE_CAPABILITY": "9.0\n7.0"}, "cuda12", "older"),
    "an old driver": ({}, {"FAKE_CUDA": "11.8"}, "cpu", "update"),
    "no version": ({}, {"FAKE_CUDA": "N/A"}, "cpu", "no CUDA version"),
    "macOS": ({}, {"FAKE_CUDA": "13.0", "FAKE_SYSTEM": "Darwin"}, "cpu", ""),
    "TPU": ({"dev/accel0": ""}, {"TPU_WORKER_ID": "0"}, "tpu", "TPU VM"),
    "TPU by its device": ({"dev/vfio/0": ""} | GOOGLE, {}, "tpu", "TPU VM"),
    "other hardware": ({"dev/vfio/0": ""} | OTHERS, {}, "cpu", ""),
    "another machine's TPU": ({}, {"TPU_NAME": "a remote one"}, "cpu", ""),
    "chosen": ({}, {"FAKE_CUDA": "13.0", "AG_JAX_ACCELERATOR": "cuda12"}, "cuda12", "AG_JAX_ACCELERATOR"),
    "none chosen": ({}, {"FAKE_CUDA": "13.0", "AG_JAX_ACCELERATOR": "cpu"}, "cpu", "AG_JAX_ACCELERATOR"),
}


@pytest.mark.parametrize("name", MACHINES)
def test_the_build_of_jax_fits_the_machine(machine, name):
    files, environment, build, reason = MACHINES[name]
    for path, text in files.items():
        machine.file(path, text)
    machine.command("uname", '#!/bin/bash\necho "${FAKE_SYSTEM:-Linux}"\n')
    if "FAKE_CUDA" in environment:
        machine.command("nvidia-smi", NVIDIA_SMI)
    result = machine.run("local.sh", "train", **environment)
    assert result.returncode == 0 and reason in result.stderr.splitlines()[-1], result.stderr
    packages = {"cpu": "", "tpu": " jax[tpu] gcsfs"}.get(build, f" jax[{build}]")
    assert machine.done()[1].endswith(f"-r requirements.txt{packages}")


def test_another_accelerator_makes_the_environment_anew(machine):
    machine.run("local.sh", AG_JAX_ACCELERATOR="cuda12")
    machine.done()
    result = machine.run("local.sh", AG_JAX_ACCELERATOR="cpu")
    assert "jax for cuda12" in result.stderr and machine.done()[0].startswith("venv ")


# --- which Python ---


def test_a_python_that_does_not_run_is_passed_over(machine):
    machine.command("python3", BROKEN)
    machine.command("python3.12", PYTHON)
    result = machine.run("local.sh", FAKE_VERSION="3.12.4")
    assert result.returncode == 0 and "Python 3.12.4" in result.stderr


REFUSED = {
    "too old": ({"FAKE_VERSION": "3.10.14"}, "python3 is 3.10.14;"),
    "too new": ({"FAKE_VERSION": "3.14.0"}, "python3 is 3.14.0;"),
    "old": ({"FAKE_VERSION": "3.1.0"}, "python3 is 3.1.0;"),
    "without venv": ({"FAKE_VERSION": "3.12.3", "FAKE_VENV": "no"}, "python3.12-venv"),
    "broken": ({"PYTHON": "python3.12"}, "PYTHON=python3.12"),
    "accelerator": ({"AG_JAX_ACCELERATOR": "gpu"}, "AG_JAX_ACCELERATOR=gpu"),
    "no environment": ({"AG_JAX_VENV": "launch"}, "launch is not a virtual environment"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_used_is_refused(machine, case):
    environment, named = REFUSED[case]
    result = machine.run("local.sh", "x", **environment)
    assert result.returncode == 1 and named in result.stderr and machine.done() == []
    assert (machine.repository / "launch/local.sh").exists() and not (machine.repository / ".venv").exists()


def test_the_environment_keeps_its_python_until_another_is_asked_for_or_it_is_gone(machine):
    machine.run("local.sh", "x", FAKE_VERSION="3.13.1")
    machine.done()
    newer = machine.command("newer", PYTHON.replace("${FAKE_VERSION:-3.11.9}", "3.12.4"))
    python = machine.repository / ".venv" / "bin" / "python"
    python.write_text(PYTHON.replace("${FAKE_VERSION:-3.11.9}", "3.13.1"))
    assert "Python 3.13.1" in machine.run("local.sh", "x").stderr and machine.done() == []
    assert "Python 3.12.4" in machine.run("local.sh", "x", PYTHON=str(newer)).stderr
    assert machine.done()[0].startswith("venv ")
    python.unlink()
    assert machine.run("local.sh", "x").returncode == 0 and machine.done()[0].startswith("venv ")
    machine.repository = machine.repository.rename(machine.repository.with_name("moved"))
    assert machine.run("local.sh", "x").stdout.splitlines()[1] == f"in {machine.repository}"
    assert machine.done()[0] == f"venv {machine.repository}/.venv"
    assert machine.run("local.sh", "x", AG_JAX_VENV=str(machine.root / "mine")).stdout.startswith("ag-jax x\n")
    assert machine.done()[0] == f"venv {machine.root}/mine"


# --- interrupted, failing ---


def unpacking(machine):
    """Start a set-up that hangs while it unpacks packages."""
    process = machine.start("local.sh", "x", FAKE_PIP_HANGS="yes")
    marker = machine.repository / ".venv" / ".ag_jax-installing"
    wait_until(lambda: marker.exists() and "unpacking" in marker.read_text())
    return process


def test_a_killed_set_up_is_begun_again(machine):
    process = unpacking(machine)
    os.killpg(process.pid, signal.SIGKILL)
    machine.done()
    result = machine.run("local.sh", "x")
    process.communicate()  # only now, so that the killed process was a zombie during the second run
    assert result.returncode == 0 and "cut short" in result.stderr
    assert machine.done()[0].startswith("venv ")


def test_a_set_up_that_is_at_work_is_waited_for(machine):
    first = unpacking(machine)
    second = machine.start("local.sh", "x")
    assert f"process {first.pid} is setting up" in second.stderr.readline()
    assert second.poll() is None
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    assert second.communicate(timeout=30)[0].startswith("ag-jax x\n")


def test_a_failed_download_shows_pips_error_and_keeps_the_environment(machine):
    result = machine.run("local.sh", "x", FAKE_PIP_FAILS_AT_DOWNLOAD="yes")
    assert result.returncode == 1 and result.stdout == "" and "ERROR: no network" in result.stderr
    assert [line.split()[0] for line in machine.done()] == ["venv", "pip"]
    assert machine.run("local.sh", "x").returncode == 0
    assert [line.split()[0] for line in machine.done()] == ["pip", "pip"]


# --- the files themselves ---


def test_scripts_pass_shellcheck():
    shellcheck = shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed")
    scripts = [*sorted(REPOSITORY.glob("launch/*.sh")), REPOSITORY / ".ci" / "run"]
    assert {"tpu.sh"} <= {path.name for path in scripts}
    result = subprocess.run([shellcheck, "-x", "-P", str(REPOSITORY), *scripts], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
