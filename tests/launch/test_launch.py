"""Installation by the launch scripts, with a stand-in for Python, pip, uv and nvidia-smi that logs its commands."""

import os
import pathlib
import shutil
import signal
import subprocess
import time

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]

# One program is python3, uv, nvidia-smi and, in the environments that it makes, python and ag-jax.
STAND_IN = r"""#!/bin/bash
case "${0##*/} $*" in
  ag-jax*) echo ag-jax "$@"; echo "in $PWD"; exit ;;
  nvidia-smi*compute_cap*) printf '%b\n' "$FAKE_CAPABILITY"; exit ;;
  nvidia-smi*) echo "| Driver Version: 580.65.06   CUDA Version: $FAKE_CUDA     |"; exit ;;
  *" --version") echo "Python ${FAKE_VERSION:-3.11.9}"; exit ;;
  *" -c import sys"*) echo "${FAKE_VERSION:-3.11.9}"; [[ ${FAKE_VERSION:-3.11.9} =~ ^3\.1[123]\. ]]; exit ;;
  *" -m pytest "* | *" -m sphinx "*) echo "${*:2}"; echo "platforms $JAX_PLATFORMS"; exit ;;
esac
echo "${0##*/} $*" >>"$LOG"
case "$*" in
  *"venv "*) cd "${*: -1}" && mkdir -p bin && touch pyvenv.cfg && cp "$0" bin/python && cp "$0" bin/ag-jax ;;
  *"pip install "*) if [ -n "${FAKE_FAILURE:-}" ]; then echo "ERROR: $FAKE_FAILURE" >&2; exit 3; fi; ${FAKE_WORK:-} ;;
esac
"""
BROKEN = "#!/bin/bash\nexit 127\n"  # as version managers leave them on PATH


class Machine:
    """A copy of the launch files, and a PATH on which stand-ins come first."""

    def __init__(self, folder: pathlib.Path):
        self.folder, self.bin, self.log = folder, folder / "bin", folder / "log"
        self.repository = folder / "a clone"  # a space, to find missing quotes
        self.bin.mkdir()
        shutil.copytree(REPOSITORY / "launch", self.repository / "launch")
        for path in (*REPOSITORY.glob("requirements*.txt"), REPOSITORY / "pyproject.toml"):
            shutil.copy(path, self.repository)
        for name in ("python3.13", "python3.12", "python3.11", "uv", "nvidia-smi"):
            self.command(name, BROKEN)
        self.command("python3", STAND_IN)
        self.environment = {"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(folder), "LOG": str(self.log)}

    def command(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def start(self, *command: str, **environment: str) -> subprocess.Popen:
        options = {"cwd": self.repository, "env": self.environment | environment, "start_new_session": True}
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)

    def run(self, script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
        process = self.start("bash", f"launch/{script}", *arguments, **environment)
        out, err = process.communicate(timeout=30)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def done(self) -> list[str]:
        """Return the commands that made environments and installed packages since the last call of this method."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return lines


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.fixture(params=["pip", "uv"])
def installer(machine, request):
    if request.param == "uv":
        machine.command("uv", STAND_IN)
        machine.command("python3", BROKEN)  # uv finds or downloads one
    return request.param


def test_the_first_run_installs_and_the_second_does_not(machine):
    assert machine.run("local.sh", "--help").stdout.startswith("Usage: ") and machine.done() == []
    result = machine.run("local.sh", "train", "--config=a b", "--help")
    assert result.stdout.splitlines() == ["ag-jax train --config=a b --help", f"in {machine.repository}"], result.stderr
    making, installing = machine.done()
    assert making == f"python3 -m venv {machine.repository}/.venv"
    assert installing.startswith("python -m pip install ") and installing.endswith(" -r requirements.txt -e .[cpu]")
    quickstart = "ag-jax compare --config=quickstart --workdir=runs/quickstart\n"
    assert machine.run("local.sh").stdout.startswith(quickstart) and machine.done() == []
    (machine.repository / "requirements.txt").write_text("extra==1.0\n")
    assert machine.run("local.sh", "x").returncode == 0 and len(machine.done()) == 1  # into the same environment


def test_each_extra_is_installed_once(machine, installer):
    result = machine.run("test.sh", "tests/launch", "-x")
    assert result.stdout.splitlines() == ["pytest tests/launch -x", "platforms cpu"]
    venv = f"{machine.repository}/.venv"
    making, installing = machine.done()
    if installer == "uv":
        assert making == f"uv venv --quiet --seed --allow-existing --python >=3.11,<3.14 {venv}"
        assert installing == f"uv pip install -q --python {venv}/bin/python -r requirements-test.txt -e .[cpu]"
    result = machine.run("docs.sh", "-q", JAX_PLATFORMS="cuda")
    build = "sphinx -n -W --keep-going -b html -d build/doctrees -q docs build/site"
    assert result.stdout.splitlines() == [build, "platforms cuda"]
    assert machine.done()[0].endswith(" -r requirements-docs.txt -e .[cpu]")
    parity = machine.start("bash", "-c", "source launch/setup.sh; set_up parity; command -v ag-jax")
    assert parity.communicate()[0] == f"{venv}/bin/ag-jax\n"
    line = machine.done()[-1]
    assert line.startswith("python -m pip ") and "-c requirements-test.txt -e .[parity] --extra-index-url " in line
    again = [machine.run(script, "x").returncode for script in ("test.sh", "docs.sh", "local.sh")]
    assert again == [0, 0, 0] and machine.done() == []


# The version of CUDA and the capabilities of the GPUs in nvidia-smi, a device file, the machine, and the build of jax.
MACHINES = {
    "CUDA 13": ("13.0", r"9.0\n12.0", "nvidia0", "", "cuda13"),
    "an old nvidia-smi": ("13.0", "no valid field", "nvidia0", "", "cuda13"),
    "CUDA 12": ("12.4", "9.0", "nvidia0", "", "cuda12"),
    "an old GPU": ("13.0", r"9.0\n7.0", "nvidia0", "", "cuda12"),
    "an old driver": ("11.8", "6.0", "nvidia0", "", "cpu"),
    "no version": ("N/A", "9.0", "nvidia0", "", "cpu"),
    "TPU v4": ("", "", "accel0", "Google Compute Engine", "tpu"),
    "TPU v5e": ("", "", "vfio/0", "Google Compute Engine", "tpu"),
    "no TPU": ("", "", "vfio/vfio", "Google Compute Engine", "cpu"),
    "other hardware": ("", "", "vfio/0", "ProLiant", "cpu"),
}


@pytest.mark.parametrize(("cuda", "capability", "device", "product", "build"), MACHINES.values(), ids=MACHINES)
def test_the_build_of_jax_fits_the_machine(machine, cuda, capability, device, product, build):
    for path, text in ((f"dev/{device}", ""), ("sys/class/dmi/id/product_name", f"{product}\n")):
        (machine.folder / path).parent.mkdir(parents=True)
        (machine.folder / path).write_text(text)
    machine.command("nvidia-smi", STAND_IN)
    command = ["bash", "-c", 'set -euo pipefail; source launch/setup.sh; detect_accelerator "$0"', str(machine.folder)]
    process = machine.start(*command, FAKE_CUDA=cuda, FAKE_CAPABILITY=capability)
    assert process.communicate() == (f"{build}\n", "")


def test_an_environment_is_made_anew_for_another_jax_python_or_path(machine):
    def assert_made_anew(words, **environment):
        assert words in machine.run("local.sh", "x", **environment).stderr
        making, installing = machine.done()
        assert " -m venv " in making and " -m pip install " in installing
        assert words in machine.run("local.sh", "x").stderr and machine.done() == []  # and then it stays

    assert_made_anew("jax for tpu", AG_JAX_ACCELERATOR="tpu")
    assert_made_anew("jax for cpu", AG_JAX_ACCELERATOR="cpu")
    machine.command("python3.12", STAND_IN.replace("3.11.9", "3.12.4"))
    assert_made_anew("Python 3.12.4", PYTHON="python3.12")
    (machine.repository / ".venv/bin/python").unlink()
    machine.command("python3", BROKEN)
    assert_made_anew("Python 3.12.4")
    machine.repository = machine.repository.rename(machine.folder / "moved")
    assert_made_anew("Python 3.12.4")
    machine.run("local.sh", "x", AG_JAX_VENV=str(machine.folder / "mine"))
    assert machine.done()[0] == f"python3.12 -m venv {machine.folder}/mine"


@pytest.mark.parametrize(
    ("environment", "word"),
    [
        ({"FAKE_VERSION": "3.10.14"}, "3.11, 3.12 or 3.13"),
        ({"FAKE_VERSION": "3.14.0", "PYTHON": "python3"}, "3.14.0"),
        ({"PYTHON": "python3.12"}, "PYTHON=python3.12"),
        ({"AG_JAX_ACCELERATOR": "gpu"}, "AG_JAX_ACCELERATOR"),
    ],
)
def test_what_cannot_be_used_is_an_error(machine, environment, word):
    result = machine.run("local.sh", "x", **environment)
    assert result.returncode == 1 and result.stdout == "" and word in result.stderr and machine.done() == []


def test_a_failing_download_shows_its_error(machine, installer):
    result = machine.run("local.sh", "x", FAKE_FAILURE="no network")
    assert result.returncode == 1 and result.stdout == "" and "ERROR: no network" in result.stderr
    assert machine.run("local.sh", "x").returncode == 0
    assert len(machine.done()) == (5 if installer == "uv" else 4)  # after uv, pip tries it


def test_pip_takes_over_where_uv_fails(machine):
    machine.command("uv", '#!/bin/bash\n[ "$*" = --version ]\n')
    assert machine.run("local.sh", "x").returncode == 0
    making, installing = machine.done()
    assert making.startswith("python3 -m venv ") and installing.startswith("python -m pip install ")


@pytest.mark.parametrize("lock", ["flock", "perl"])
def test_a_killed_installation_is_begun_again_and_one_at_work_is_waited_for(machine, lock):
    """macOS has no flock, but perl."""
    if not shutil.which(lock):
        pytest.skip(f"there is no {lock}")
    if lock == "perl":
        machine.command("flock", BROKEN)
    assert machine.run("local.sh", "x").returncode == 0 and machine.done()
    first = machine.start("bash", "launch/test.sh", "x", FAKE_WORK="sleep 60")
    while first.poll() is None and not machine.log.exists():
        time.sleep(0.02)
    second = machine.start("bash", "launch/test.sh", "x")
    time.sleep(1)
    assert second.poll() is None and len(machine.done()) == 1
    os.killpg(first.pid, signal.SIGKILL)
    assert second.communicate(timeout=30)[0].startswith("pytest x\n")
    making, installing = machine.done()
    assert " -m venv " in making and "requirements-test.txt" in installing
    first.communicate()


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_scripts_pass_shellcheck():
    command = ["shellcheck", "-x", "-P", ".", *REPOSITORY.glob("launch/*.sh"), ".ci/run"]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
