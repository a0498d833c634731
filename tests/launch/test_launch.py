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
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def installed_jax(machine: Machine, **environment: str) -> tuple[str, str]:
    """The jax build asked of pip ("cpu" where none is named), and the line that says so."""
    result = machine.run("local.sh", "train", **environment)
    assert result.returncode == 0, result.stderr
    install = next(line for line in machine.done() if "-r requirements.txt" in line)
    build = install.partition("jax[")[2].partition("]")[0] or "cpu"
    return build, result.stderr.splitlines()[-1]


def test_first_run_installs_the_lock_and_runs_the_verb_in_the_repository(machine):
    result = machine.run("local.sh", "train", "--config=a b")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["ag-jax train --config=a b", f"in {machine.repository}"]
    making, first, second = machine.done()
    assert making == f"venv {machine.repository}/.venv"
    assert first.endswith("--no-compile -r requirements.txt")
    assert second.endswith("--no-deps -e .")
    assert "Python 3.11.9, jax for cpu (no NVIDIA GPU and no TPU found); .venv is ready" in result.stderr


def test_without_arguments_the_quickstart_runs(machine):
    result = machine.run("local.sh")
    assert result.stdout.startswith("ag-jax compare --config=configs/quickstart.py --workdir=runs/quickstart\n")


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_sets_nothing_up(machine, flag):
    result = machine.run("local.sh", flag)
    assert result.returncode == 0 and result.stdout.startswith("Usage: bash launch/local.sh")
    assert machine.done() == []


def test_a_dry_run_prints_what_it_would_do_and_does_nothing(machine):
    dry = machine.run("local.sh", "--dry_run", "train", "--workdir=a b")
    assert dry.returncode == 0 and machine.done() == [] and not (machine.repository / ".venv").exists()
    commands = [shlex.split(line) for line in dry.stdout.splitlines()]
    clone, python = str(machine.repository), f"{machine.repository}/.venv/bin/python"
    assert commands == [
        ["cd", clone],
        ["python3", "-m", "venv", f"{clone}/.venv"],
        [python, "-m", "pip", "install", "-r", "requirements.txt"],
        [python, "-m", "pip", "install", "--no-deps", "-e", "."],
        [f"{clone}/.venv/bin/ag-jax", "train", "--workdir=a b"],
    ]
    assert dry.stderr.splitlines()[-1].endswith("is not ready yet; this was a dry run")
    machine.run("local.sh", "train")
    machine.done()
    again = machine.run("local.sh", "--dry_run")
    assert machine.done() == [] and len(again.stdout.splitlines()) == 2 and "is up to date" in again.stderr
    assert shlex.split(again.stdout.splitlines()[1])[1:] == [
        "compare",
        "--config=configs/quickstart.py",
        "--workdir=runs/quickstart",
    ]
    other = machine.run("local.sh", "--dry_run", "train", AG_JAX_ACCELERATOR="cuda13")  # another jax: everything anew
    assert "rm -rf" in other.stdout and "jax" in other.stdout and "cuda13" in other.stdout and machine.done() == []
    assert (machine.repository / ".venv/bin/ag-jax").exists()


def test_flags_of_a_verb_pass_through(machine):
    assert machine.run("local.sh", "train", "--help").stdout.startswith("ag-jax train --help\n")


@pytest.mark.parametrize("script", ["local.sh", "test.sh", "docs.sh"])
def test_second_run_installs_nothing(machine, script):
    assert machine.run(script, "x").returncode == 0
    assert machine.done()
    again = machine.run(script, "x")
    assert again.returncode == 0 and "is up to date" in again.stderr
    assert machine.done() == []


def test_tests_add_their_packages_once_and_serve_local_runs_too(machine):
    machine.run("local.sh", "train")
    machine.done()
    result = machine.run("test.sh", "tests/launch", "-x")
    assert result.stdout.splitlines() == ["pytest tests/launch -x", "platforms cpu"]
    assert [line.split(" --no-compile ")[1] for line in machine.done()] == [
        "-r requirements-test.txt",
        "--no-deps -e .",
    ]
    machine.run("local.sh", "train")
    machine.run("test.sh", "tests")
    assert machine.done() == []


def test_the_site_adds_its_packages_and_is_built_without_warnings(machine):
    result = machine.run("docs.sh", "-q")
    assert result.stdout.splitlines() == [
        "sphinx -n -W --keep-going -b html -d build/doctrees -q docs build/site",
        "platforms cpu",
    ]
    assert machine.done()[1].endswith("--no-compile -r requirements-docs.txt")
    assert "open build/site/index.html" in result.stderr
    failed = machine.run("docs.sh", FAKE_SPHINX_FAILS="yes")
    assert failed.returncode == 1 and "-D nb_execution_timeout=SECONDS" in failed.stderr
    machine.run("local.sh", "train")
    assert machine.done() == []
    machine.run("test.sh", "tests")
    assert machine.done()[0].endswith("-r requirements-test.txt")


def test_tests_run_on_the_platform_that_was_asked_for(machine):
    assert "platforms cuda" in machine.run("test.sh", "tests", JAX_PLATFORMS="cuda").stdout


def test_changed_requirements_are_installed_into_the_same_environment(machine):
    machine.run("local.sh", "train")
    machine.done()
    with open(machine.repository / "requirements.txt", "a") as file:
        file.write("extra==1.0\n")
    machine.run("local.sh", "train")
    assert len(machine.done()) == 2  # two pip commands, no new environment


# --- which jax ---


@pytest.mark.parametrize(
    ("cuda", "capability", "build", "reason"),
    [
        ("13.0", "9.0", "cuda13", "driver for CUDA 13"),
        ("13.0", "9.0\n12.0", "cuda13", "driver for CUDA 13"),
        ("12.4", "9.0", "cuda12", "driver for CUDA 12"),
        ("13.0", "7.0", "cuda12", "older than CUDA 13 supports"),
        ("13.0", "9.0\n7.0", "cuda12", "older than CUDA 13 supports"),
        ("13.0", "Field is not a valid field", "cuda13", "driver for CUDA 13"),
        ("11.8", "8.0", "cpu", "update it"),
        ("N/A", "8.0", "cpu", "names no CUDA version"),
    ],
)
def test_nvidia_gpu(machine, cuda, capability, build, reason):
    machine.command("nvidia-smi", NVIDIA_SMI)
    chosen, line = installed_jax(machine, FAKE_CUDA=cuda, FAKE_CAPABILITY=capability)
    assert chosen == build and reason in line


@pytest.mark.parametrize("device", ["dev/accel0", "dev/vfio/0"])
def test_tpu_vm(machine, device):
    machine.file(device)
    result = machine.run("local.sh", "train", TPU_WORKER_ID="0")
    assert result.returncode == 0 and "this is a TPU VM" in result.stderr
    assert machine.done()[1].endswith("-r requirements.txt jax[tpu] gcsfs")


def test_tpu_vm_known_by_its_pci_device(machine):
    machine.file("dev/vfio/0")
    machine.file("sys/bus/pci/devices/0000:00:05.0/vendor", "0x1ae0\n")
    machine.file("sys/bus/pci/devices/0000:00:05.0/class", "0x120000\n")
    assert installed_jax(machine)[0] == "tpu"


def test_device_files_of_other_hardware_are_no_tpu(machine):
    machine.file("dev/vfio/0")
    machine.file("sys/bus/pci/devices/0000:00:04.0/vendor", "0x1ae0\n")  # the network card of a cloud VM
    machine.file("sys/bus/pci/devices/0000:00:04.0/class", "0x020000\n")
    machine.file("sys/bus/pci/devices/0000:00:06.0/vendor", "0x8086\n")
    machine.file("sys/bus/pci/devices/0000:00:06.0/class", "0x120000\n")
    assert installed_jax(machine)[0] == "cpu"
    shutil.rmtree(machine.repository / ".venv")
    shutil.rmtree(machine.root / "dev")
    assert installed_jax(machine, TPU_NAME="a remote one")[0] == "cpu"


def test_macos_gets_the_cpu_build(machine):
    machine.command("nvidia-smi", NVIDIA_SMI)
    machine.command("uname", "#!/bin/bash\necho Darwin\n")
    assert installed_jax(machine, FAKE_CUDA="13.0")[0] == "cpu"


@pytest.mark.parametrize("build", ["cpu", "cuda12", "cuda13", "tpu"])
def test_the_choice_can_be_overruled(machine, build):
    machine.command("nvidia-smi", NVIDIA_SMI)
    assert installed_jax(machine, FAKE_CUDA="13.0", AG_JAX_ACCELERATOR=build)[0] == build


def test_unknown_accelerator_is_refused(machine):
    result = machine.run("local.sh", AG_JAX_ACCELERATOR="gpu")
    assert result.returncode == 1 and "expected cpu, cuda12, cuda13 or tpu" in result.stderr
    assert machine.done() == []


def test_another_accelerator_makes_the_environment_anew(machine):
    machine.run("local.sh", AG_JAX_ACCELERATOR="cuda12")
    machine.done()
    result = machine.run("local.sh", AG_JAX_ACCELERATOR="cpu")
    assert "jax for cuda12" in result.stderr and "anew" in result.stderr
    assert machine.done()[0].startswith("venv ")


# --- which Python ---


def test_a_python_that_does_not_run_is_passed_over(machine):
    machine.command("python3", BROKEN)
    machine.command("python3.12", PYTHON)
    result = machine.run("local.sh", FAKE_VERSION="3.12.4")
    assert result.returncode == 0 and "Python 3.12.4" in result.stderr


@pytest.mark.parametrize("version", ["3.10.14", "3.14.0", "3.1.0"])
def test_an_unsupported_python_is_refused(machine, version):
    result = machine.run("local.sh", FAKE_VERSION=version)
    assert result.returncode == 1
    assert f"needs Python 3.11, 3.12 or 3.13, and found none: python3 is {version};" in result.stderr
    assert machine.done() == [] and not (machine.repository / ".venv").exists()


def test_no_python_at_all(machine):
    machine.command("python3", BROKEN)
    result = machine.run("local.sh")
    assert result.returncode == 1 and "no Python runs here" in result.stderr and "python.org" in result.stderr


def test_a_broken_python_that_was_asked_for_is_refused(machine):
    path = machine.command("mine", BROKEN)
    result = machine.run("local.sh", PYTHON=str(path))
    assert result.returncode == 1 and f"PYTHON={path} cannot be used: it does not run" in result.stderr
    assert machine.done() == []


def test_missing_venv_module(machine):
    result = machine.run("local.sh", FAKE_VERSION="3.12.3", FAKE_VENV="no")
    assert result.returncode == 1
    assert "apt install python3-venv (or python3.12-venv)" in result.stderr


def test_environment_keeps_its_python_until_another_is_asked_for(machine):
    machine.run("local.sh", "x", FAKE_VERSION="3.13.1")
    machine.done()
    newer = machine.command("newer", PYTHON.replace("${FAKE_VERSION:-3.11.9}", "3.12.4"))
    environment = machine.repository / ".venv" / "bin" / "python"
    environment.write_text(PYTHON.replace("${FAKE_VERSION:-3.11.9}", "3.13.1"))
    assert "Python 3.13.1" in machine.run("local.sh", "x").stderr
    assert machine.done() == []
    result = machine.run("local.sh", "x", PYTHON=str(newer))
    assert "anew" in result.stderr and "Python 3.12.4" in result.stderr
    assert machine.done()[0].startswith("venv ")


def test_environment_whose_python_has_gone_is_made_anew(machine):
    machine.run("local.sh", "x")
    machine.done()
    (machine.repository / ".venv" / "bin" / "python").unlink()
    assert machine.run("local.sh", "x").returncode == 0
    assert machine.done()[0].startswith("venv ")


# --- interrupted, failing, elsewhere ---


def test_killed_set_up_is_begun_again(machine):
    process = machine.start("local.sh", "x", FAKE_PIP_HANGS="yes")
    marker = machine.repository / ".venv" / ".ag_jax-installing"
    wait_until(lambda: marker.exists() and "unpacking" in marker.read_text())
    os.killpg(process.pid, signal.SIGKILL)
    machine.done()
    result = machine.run("local.sh", "x")
    process.communicate()  # only now, so that the killed process was a zombie during the second run
    assert result.returncode == 0 and "cut short" in result.stderr
    assert machine.done()[0].startswith("venv ")


def test_a_set_up_that_is_at_work_is_waited_for(machine):
    first = machine.start("local.sh", "x", FAKE_PIP_HANGS="yes")
    marker = machine.repository / ".venv" / ".ag_jax-installing"
    wait_until(lambda: marker.exists() and "unpacking" in marker.read_text())
    second = machine.start("local.sh", "x")
    assert f"process {first.pid} is setting up" in second.stderr.readline()
    assert second.poll() is None
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    assert second.communicate(timeout=30)[0].startswith("ag-jax x\n")


def test_failed_download_shows_pips_error_and_keeps_the_environment(machine):
    result = machine.run("local.sh", "x", FAKE_PIP_FAILS_AT_DOWNLOAD="yes")
    assert result.returncode == 1 and result.stdout == ""
    assert "ERROR: no network" in result.stderr and "run the same command again" in result.stderr
    assert [line.split()[0] for line in machine.done()] == ["venv", "pip"]
    assert machine.run("local.sh", "x").returncode == 0
    assert [line.split()[0] for line in machine.done()] == ["pip", "pip"]


def test_a_folder_that_is_no_environment_is_left_alone(machine):
    folder = machine.root / "thesis"
    machine.file("thesis/chapter1.tex", "text")
    result = machine.run("local.sh", "x", AG_JAX_VENV=str(folder))
    assert result.returncode == 1 and "is not a virtual environment" in result.stderr
    assert (folder / "chapter1.tex").read_text() == "text" and machine.done() == []


def test_environment_elsewhere(machine, tmp_path):
    result = machine.run("local.sh", "x", AG_JAX_VENV=str(tmp_path / "elsewhere"))
    assert result.stdout.startswith("ag-jax x\n")
    assert not (machine.repository / ".venv").exists()


def test_moved_repository_gets_a_new_environment(machine):
    machine.run("local.sh", "x")
    machine.done()
    machine.repository = machine.repository.rename(machine.repository.with_name("moved"))
    assert machine.run("local.sh", "x").stdout.splitlines()[1] == f"in {machine.repository}"
    assert machine.done()[0] == f"venv {machine.repository}/.venv"


# --- the files themselves ---


def test_scripts_pass_shellcheck():
    shellcheck = shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed")
    scripts = [*sorted(REPOSITORY.glob("launch/*.sh")), REPOSITORY / ".ci" / "run"]
    scripts += [path for path in sorted((REPOSITORY / "tests/launch/stand_ins").iterdir()) if path.name != "gcloud"]
    assert {"tpu.sh", "tpu_run.sh", "tpu_worker.sh"} <= {path.name for path in scripts}
    result = subprocess.run(
        [shellcheck, "-x", "-P", str(REPOSITORY), *map(str, scripts)], check=False, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout


def test_locks_agree_and_name_no_place():
    def pins(name):
        return [line for line in (REPOSITORY / name).read_text().splitlines() if line and not line.startswith("#")]

    def versions(name):
        return {line.partition(";")[0].strip() for line in pins(name)}

    assert set(pins("requirements.txt")) <= set(pins("requirements-test.txt"))
    assert versions("requirements-test.txt") <= versions("requirements-browser.txt")
    assert versions("requirements.txt") <= versions("requirements-docs.txt")
    shared = {pin.partition("==")[0] for pin in versions("requirements-docs.txt") & versions("requirements-test.txt")}
    assert {"ipykernel", "jax", "numpy"} <= shared
    locks = ("requirements.txt", "requirements-test.txt", "requirements-browser.txt", "requirements-docs.txt")
    for name in locks:
        assert "://" not in (REPOSITORY / name).read_text() and "/" not in "".join(pins(name))
        assert all("==" in line for line in pins(name))
