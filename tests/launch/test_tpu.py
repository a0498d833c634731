"""launch/tpu.sh, run against a stand-in for gcloud whose workers are folders of this machine. No cloud is touched.

What runs on a worker is run for real, with processes in the background, logs and exit statuses, except for
launch/local.sh and pip.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import time

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
PLACE = ("--zone=us-west4-a", "--project=mine")
TRAIN = ("train", "--config=configs/a b.py:arm=ag", "--workdir=gs://bucket/run 1")

# What launch/local.sh and other programs of a worker do here.
PROGRAMS = {
    "local.sh": 'echo "worker $WORKER, port $JAX_COORDINATOR_PORT$(printf "|%s" "$@")"; eval "${FATE:-}"',
    "hostname": 'echo "$WORKER"',
    "python3": 'echo "$WORKER: $*" >>"$CLOUD/installed"',
}
UNTIL_SIGTERM = "trap 'echo saved; exit 75' TERM; for _ in {1..3000}; do sleep 0.02; done"


def write(path: pathlib.Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


class Cloud:
    """A checkout with tpu.sh, and a gcloud of its own."""

    def __init__(self, folder: pathlib.Path):
        self.repository, self.folder = folder / "a clone", folder / "cloud"
        shutil.copytree(REPOSITORY / "launch", self.repository / "launch")
        write(folder / "bin/gcloud", (REPOSITORY / "tests/launch/stand_ins/gcloud").read_text())
        for name, line in PROGRAMS.items():
            place = self.repository / "launch" if name == "local.sh" else folder / "worker_bin"
            write(place / name, f"#!/bin/bash\n{line}\n")
        subprocess.run(["git", "init", "-q"], cwd=self.repository, check=True)
        self.environment = {
            "PATH": f"{folder}/bin:/usr/bin:/bin",
            "WORKER_PATH": f"{folder}/worker_bin:/usr/bin:/bin",
            "HOME": str(folder),
            "CLOUD": str(self.folder),
            "AG_JAX_TPU_POLL": "0.01",
        }
        self.plan()

    def plan(self, **plan) -> None:
        write(self.folder / "plan.json", json.dumps(plan))

    def run(self, verb: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
        command = ["bash", str(self.repository / "launch/tpu.sh"), verb, "one", *PLACE, *arguments]
        settings = {"env": self.environment | environment, "cwd": self.folder, "timeout": 60}
        return subprocess.run(command, **settings, capture_output=True, text=True)

    def create(self, *more: str) -> None:
        assert self.run("create", "--accelerator=v5litepod-8", *more).returncode == 0
        self.calls()

    def train(self, **environment: str) -> subprocess.CompletedProcess:
        return self.run("run", "--", *TRAIN, **environment)

    def calls(self) -> list[list[str]]:
        """Return the commands of gcloud since the last call, without `compute tpus`."""
        path = self.folder / "calls"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        path.unlink(missing_ok=True)
        return [words[2:] for words in lines]

    def states(self, *wanted: str) -> None:
        """Wait until `logs` begins with these lines."""
        deadline = time.monotonic() + 60
        while not self.run("logs").stdout.startswith("\n".join(wanted)):
            assert time.monotonic() < deadline, wanted

    def log(self, worker: str) -> list[str]:
        return (self.folder / "workers" / worker / "ag_jax.log").read_text().splitlines()


@pytest.fixture
def cloud(tmp_path):
    return Cloud(tmp_path)


def words_of(line: str) -> list[str]:
    """Return the words of a call of gcloud that a shell reads in a line."""
    shell = f"gcloud() {{ printf '%s\\0' \"$@\"; }}\n{line}"
    return subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True).stdout.split("\0")[2:-1]


def test_create_requests_a_queued_resource(cloud):
    options = ("--accelerator=v5litepod-8", "--spot", "--valid_until=6h")
    assert cloud.run("create", *options, "--", "--labels=who=me").returncode == 0
    words = cloud.calls()[0]
    assert words[:4] == ["queued-resources", "create", "one", "--accelerator-type=v5litepod-8"]
    assert words[5:] == ["--spot", "--valid-until-duration=6h", "--node-id=one", "--labels=who=me", *PLACE]


IMAGES = {"v2-8": "tpu-ubuntu2204-base", "v3-32": "tpu-ubuntu2204-base", "v4-8": "tpu-ubuntu2204-base"}
IMAGES |= {"v5litepod-256": "v2-alpha-tpuv5-lite", "v5p-8": "v2-alpha-tpuv5", "v6e-4": "v2-alpha-tpuv6e"}


def test_the_image_goes_with_the_accelerator(cloud):
    for accelerator, image in IMAGES.items():
        assert f"--runtime-version={image} " in cloud.run("create", f"--accelerator={accelerator}", "--dry_run").stdout
    assert "-version=v9 " in cloud.run("create", "--accelerator=v9-8", "--runtime_version=v9", "--dry_run").stdout


def test_gcloud_asks_before_it_deletes_unless_told_otherwise(cloud):
    for options, quiet in (((), []), (("--yes",), ["--quiet"])):  # --quiet answers gcloud's question with yes
        cloud.create()
        assert cloud.run("delete", *options).returncode == 0
        assert cloud.calls() == [["queued-resources", "delete", "one", "--force", *quiet, *PLACE]]


# The arguments, without the name, and what the message names.
REFUSED = {
    "create": "--accelerator=TYPE",
    "create --accelerator=v9-8": "v9-8",
    "create --accelerator=v4-8 --zone z": "--zone",
    "create --accelerator=v4-8 --slices=0": "--slices=0",
    "logs --spot": "--spot",
    "start": "start",
    "run -- train --workdir=runs/first": "--workdir=gs://BUCKET/FOLDER",
    "run -- train --workdir=gs://bucket --config=a/b": "--workdir=gs://BUCKET/FOLDER",
}


@pytest.mark.parametrize("line", REFUSED)
def test_wrong_arguments_are_refused(cloud, line):
    result = cloud.run(*line.split())
    assert result.returncode == 1 and REFUSED[line] in result.stderr and cloud.calls() == []


def test_run_waits_copies_and_starts(cloud):
    """Uncommitted files are copied to the TPU, ignored ones are not, and old ones go."""
    write(cloud.repository / ".gitignore", "/runs/\n/secret.txt\n")
    for name in ("my config.py", "secret.txt", "gone.py", "runs/old"):
        write(cloud.repository / name, "mine")
    subprocess.run(["git", "add", "gone.py", "launch"], cwd=cloud.repository, check=True)
    (cloud.repository / "gone.py").unlink()
    cloud.create()
    checkout = cloud.folder / "workers/one.0/ag_jax"
    for name in (".venv", "removed"):
        (checkout / name).mkdir(parents=True)
    cloud.plan(states=["WAITING_FOR_RESOURCES", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"])
    result = cloud.train()
    assert re.findall("one is ([A-Z_]+)", result.stderr) == ["WAITING_FOR_RESOURCES", "PROVISIONING"]
    cloud.states("one.0: exit status 0")
    assert cloud.log("one.0") == [f"worker one.0, port 8476|{'|'.join(TRAIN)}"]
    assert cloud.run("logs").stdout.splitlines()[1:] == cloud.log("one.0")
    assert (cloud.folder / "installed").read_text() == "one.0: -m pip install --quiet --user uv\n"
    assert {path.name for path in checkout.iterdir()} == {"launch", "my config.py", ".gitignore", ".venv"}
    assert cloud.train(FATE="exit 3").returncode == 0
    cloud.states("one.0: exit status 3")
    assert len(cloud.log("one.0")) == 2


def test_nothing_is_started_on_a_tpu_that_is_lost(cloud):
    cloud.create()
    for state, plan in (("FAILED", {"states": ["PROVISIONING", "FAILED"]}), ("PREEMPTED", {"node": "PREEMPTED"})):
        cloud.plan(**plan)
        result = cloud.train()
        assert result.returncode == 1 and f"one is {state}" in result.stderr
    assert not (cloud.folder / "workers").exists()


def test_several_slices_run_one_command(cloud):
    cloud.create("--slices=2")
    result = cloud.run("run", "--", "export", "--workdir=gs://bucket/x")
    assert result.returncode == 1 and "export runs on one machine, but one has 2 workers" in result.stderr
    cloud.plan(workers=2)
    assert cloud.train().returncode == 0
    workers = ("one-0.0", "one-0.1", "one-1.0", "one-1.1")
    cloud.states(*(f"{worker}: exit status 0" for worker in workers))
    for worker in workers:
        assert cloud.log(worker) == [f"worker {worker}, port 8476|train|--hosts=auto|{'|'.join(TRAIN[1:])}"]
    assert cloud.run("logs", "--slice=1", "--worker=1").stdout.splitlines()[4:] == cloud.log("one-1.1")
    for command in (("prepare", "--workdir=gs://b/x"), ("compare", "--workdir=gs://b/x", "--hosts=1")):
        assert cloud.run("run", "--", *command).returncode == 0
        cloud.states(*(f"{worker}: exit status 0" for worker in workers))
        assert cloud.log("one-0.0")[-1].endswith("|".join(command))


def test_a_running_command_is_kept_until_stop_lets_it_save(cloud):
    cloud.create()
    assert cloud.train(FATE=UNTIL_SIGTERM).returncode == 0
    cloud.states("one.0: running", f"worker one.0, port 8476|{'|'.join(TRAIN)}")
    (cloud.folder / "workers/one.0/ag_jax/kept").touch()
    result = cloud.train()
    assert result.returncode == 1 and "still runs" in result.stderr
    assert (cloud.folder / "workers/one.0/ag_jax/kept").exists() and len(cloud.log("one.0")) == 1
    assert cloud.run("stop").returncode == 0
    cloud.states("one.0: exit status 75")
    assert cloud.log("one.0")[-1] == "saved"
    assert cloud.run("stop").returncode == 0  # nothing to stop
    assert cloud.train(FATE=UNTIL_SIGTERM).returncode == 0
    cloud.states("one.0: running")
    os.killpg(int((cloud.folder / "workers/one.0/ag_jax.pid").read_text()), 9)
    cloud.states("one.0: no exit status")


def test_the_command_is_checked_on_this_machine_first(cloud):
    write(cloud.repository / ".venv/bin/ag-jax", '#!/bin/bash\necho "$PWD: $*" >&2\nexit 2\n')
    result = cloud.train()
    assert result.returncode == 1 and f"{cloud.repository}: {' '.join(TRAIN)} --print_config\n" in result.stderr
    assert cloud.calls() == []
    assert cloud.run("run", "--dry_run", "--unchecked", "--", *TRAIN).returncode == 0
    assert cloud.run("run", "--dry_run", "--", "evaluate", TRAIN[2]).returncode == 0  # reads a run in the bucket


LINES = {
    "create": ("--accelerator=v4-16", "--slices=2", "--spot", "--valid_until=6h", "--", "--labels=a=b"),
    "run": ("--unchecked", "--", *TRAIN),
    "logs": ("--slice=0", "--worker=0"),
    "stop": (),
    "delete": ("--yes",),
}
MORE_FLAGS = {"AG_JAX_TPU_SSH": "--internal-ip --plain"}


@pytest.mark.parametrize("verb", LINES)
def test_a_dry_run_prints_what_would_be_run(cloud, verb):
    if verb != "create":
        cloud.create()
    dry = cloud.run(verb, "--dry_run", *LINES[verb], **MORE_FLAGS)
    assert dry.returncode == 0 and cloud.calls() == [] and not (cloud.folder / "workers").exists()
    cloud.run(verb, *LINES[verb], **MORE_FLAGS)
    assert [words_of(line) for line in dry.stdout.splitlines()] == cloud.calls() != []


@pytest.mark.parametrize("verb", LINES)
def test_the_real_gcloud_accepts_the_commands(cloud, verb):
    """It reads all flags (or ends with 2) before it misses the credentials of a user (and ends with 1)."""
    if not (gcloud := shutil.which("gcloud")):
        pytest.skip("gcloud is not installed")
    settings = {"CONFIG": cloud.folder, "CORE_CHECK_GCE_METADATA": "false", "CORE_DISABLE_USAGE_REPORTING": "true"}
    environment = {"PATH": os.environ["PATH"]} | {f"CLOUDSDK_{name}": str(value) for name, value in settings.items()}
    for line in cloud.run(verb, "--dry_run", *LINES[verb], **MORE_FLAGS).stdout.splitlines():
        command = [gcloud, "compute", "tpus", *words_of(line)]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert result.returncode == 1 and "active account" in result.stderr, result.stderr
