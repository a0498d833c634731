"""The TPU scripts, run against a stand-in for gcloud whose workers are folders here. No cloud is touched.

The worker's side, launch/tpu_worker.sh, is run for real: processes in the background, logs, exit statuses.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import pytest

from ag_jax.command_line import verbs
from tests.cases import some
from tests.launch.test_launch import wait_until

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
STAND_INS = pathlib.Path(__file__).resolve().parent / "stand_ins"
CREATE = ("one", "--accelerator=v5litepod-8", "--zone=us-west4-a", "--project=mine")
TRAIN = ("train", "--config=configs/a b.py:arm=ag", "--workdir=gs://bucket/run 1")
# A shell that starts something in the background has it ignore Ctrl-C, and so all that this starts; undone in a process
# of its own, as Popen's preexec_fn would fork this one, which runs jax's threads.
_HEED = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execvp(sys.argv[1], sys.argv[1:])"


class Cloud:
    """A checkout with the launch files, and a gcloud of its own."""

    def __init__(self, folder: pathlib.Path):
        self.repository, self.folder = folder / "a clone", folder / "cloud"
        self.repository.mkdir()
        self.folder.mkdir()
        shutil.copytree(REPOSITORY / "launch", self.repository / "launch")
        for name in ("requirements.txt", "requirements-test.txt", "pyproject.toml"):
            shutil.copy(REPOSITORY / name, self.repository)
        ours, workers = folder / "bin", folder / "worker_bin"
        ours.mkdir()
        workers.mkdir()
        (ours / "gcloud").symlink_to(STAND_INS / "gcloud")
        (workers / "python3").symlink_to(STAND_INS / "python3")
        (workers / "hostname").write_text('#!/bin/bash\necho "worker-$WORKER"\n')
        (workers / "hostname").chmod(0o755)
        for name in ("python", "python3.11", "python3.12", "python3.13"):
            (workers / name).write_text("#!/bin/bash\nexit 127\n")
            (workers / name).chmod(0o755)
        self.environment = {
            "PATH": f"{ours}:/usr/bin:/bin",
            "WORKER_PATH": f"{workers}:/usr/bin:/bin",
            "HOME": str(folder),
            "CLOUD": str(self.folder),
            "STAND_INS": str(STAND_INS),
            "AG_JAX_TPU_POLL": "0.05",
            "AG_JAX_ROOT": str(folder),
        }
        self.plan()
        self.fates("done")

    def plan(self, queue=(), workers=1, refuses=(), cuts_off=False, **defaults):
        plan = {"queue": queue, "workers": workers, "refuses": refuses, "cuts_off": cuts_off, "defaults": defaults}
        (self.folder / "plan").write_text(json.dumps(plan))
        (self.folder / "plan").replace(self.folder / "plan.json")

    def fates(self, *lines):
        (self.folder / "fates").write_text("\n".join(lines) + "\n")

    def start(self, script, *arguments, **environment):
        return subprocess.Popen(
            [sys.executable, "-c", _HEED, "bash", str(self.repository / "launch" / script), *arguments],
            env=self.environment | environment,
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, script, *arguments, answer="", **environment):
        process = self.start(script, *arguments, **environment)
        out, err = process.communicate(answer, timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def create(self, *more):
        result = self.run("tpu_create.sh", *CREATE, *more)
        assert result.returncode == 0, result.stderr
        self.calls()

    def create_of(self, workers, *more):
        """Create one slice of several workers."""
        self.plan(workers=workers)
        result = self.run("tpu_create.sh", "one", f"--accelerator=v4-{8 * workers}", "--zone=z", "--project=p", *more)
        assert result.returncode == 0, result.stderr
        self.calls()

    def train(self, *options, **environment):
        return self.run("tpu_run.sh", "one", *options, "--", *TRAIN, **environment)

    def calls(self):
        """Return the commands of gcloud since the last call, without `compute tpus`."""
        path = self.folder / "calls"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        path.unlink(missing_ok=True)
        return [words[2:] if words[0] == "compute" else words for words in lines]

    def verbs(self):
        """The same in short, without looks."""
        short = [" ".join(words[:2]) for words in self.calls() if words[1] != "describe" and words[0] != "config"]
        return [verb for verb in short if verb != "tpu-vm ssh"]

    def ran(self, worker=0):
        """The command lines that ag-jax got on a worker."""
        path = self.folder / f"ag-jax-{worker}"
        return path.read_text().splitlines() if path.exists() else []

    def end(self):
        if (self.folder / "tpu.json").exists():
            self.run("tpu_delete.sh", "one", "--yes", "--zone=us-west4-a", "--project=mine")


@pytest.fixture
def cloud(tmp_path):
    made = Cloud(tmp_path)
    yield made
    made.end()


def words_of(command, line):
    """Return the arguments that `command` gets when a shell reads the line."""
    shell = f"{command}() {{ printf '%s\\n' \"$@\"; }}\n{line}"
    return subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True).stdout.splitlines()


# --- create ---


def test_create_waits_until_active(cloud):
    cloud.plan(queue=[["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]])
    result = cloud.run("tpu_create.sh", *CREATE, "--spot", "--valid_until=6h", "--", "--labels=who=me")
    assert result.returncode == 0, result.stderr
    created = next(words for words in cloud.calls() if words[1] == "create")
    assert created == [
        *("queued-resources", "create", "one", "--node-id=one", "--zone=us-west4-a", "--project=mine"),
        *("--accelerator-type=v5litepod-8", "--runtime-version=v2-alpha-tpuv5-lite", "--spot"),
        *("--valid-until-duration=6h", "--labels=who=me", "--quiet"),
    ]
    said = result.stderr
    assert said.index("WAITING_FOR_RESOURCES") < said.index("PROVISIONING") < said.index("one is ACTIVE")
    assert "v5litepod-8 with 1 worker(s)" in said
    assert cloud.run("tpu_create.sh", *CREATE).returncode == 1, "made with other settings"


IMAGES = {"v2-8": "tpu-ubuntu2204-base", "v3-32": "tpu-ubuntu2204-base", "v4-8": "tpu-ubuntu2204-base"}
IMAGES |= {"v5litepod-256": "v2-alpha-tpuv5-lite", "v5p-8": "v2-alpha-tpuv5", "v6e-4": "v2-alpha-tpuv6e"}


def test_the_image_goes_with_the_accelerator(cloud):
    for accelerator, version in IMAGES.items():
        result = cloud.run("tpu_create.sh", "one", "--zone=z", f"--accelerator={accelerator}", "--dry_run")
        assert f"--accelerator-type={accelerator} --runtime-version={version} " in result.stdout
    result = cloud.run("tpu_create.sh", "one", "--zone=z", "--accelerator=v9-8", "--runtime_version=v9", "--dry_run")
    assert result.returncode == 0 and "--accelerator-type=v9-8 --runtime-version=v9" in result.stdout


# The arguments after the script's name, and what the message names.
REFUSED = {
    "tpu_create.sh one --zone=z": "accelerator",
    "tpu_create.sh one --accelerator=v4-8 --zone=z --project=p two": "one and two",
    "tpu_create.sh one --accelerator=v9-8 --zone=z": "v9-8",
    "tpu_create.sh one --accelerator=v5e-8 --zone=z": "v5litepod-8",
    "tpu_create.sh one --accelerator=v4-8": "--zone=ZONE",
    "tpu_create.sh one --accelerator=v4-8 --zone=z": "--project=PROJECT",
    "tpu_create.sh one --accelerator=v4-8 --zone z": "--zone=VALUE",
    "tpu_create.sh one --accelerator=v4-8 --slices=0": "--slices",
    "tpu_create.sh one --accelerator=v4-8 --sopt": "--sopt",
    "tpu_run.sh one": "what shall run",
    "tpu_run.sh one --retries=many -- train": "--retries",
    "tpu_run.sh two --zone=z --project=p -- train --workdir=gs://b/x": "no TPU two",
    "tpu_run.sh one --zone=z --project=p -- train --workdir=gs://b": "gs://b",
    "tpu_run.sh one --zone=z --project=p -- train": "--workdir",
    "tpu_run.sh one --zone=z --project=p -- train --workdir=outputs/x": "outputs/x",
}


@pytest.mark.parametrize("line", REFUSED)
def test_wrong_arguments_are_refused(cloud, line):
    if not line.startswith("tpu_create"):
        (cloud.repository / "runs/tpu/one").mkdir(parents=True)
        (cloud.repository / "runs/tpu/one/create").write_text("--zone=z\n--project=p\n--accelerator-type=v4-8\n")
    if " one --zone=z --project=p" in line:
        (cloud.folder / "tpu.json").write_text('{"accelerator": "v4-8", "spot": false, "queue": ["ACTIVE"]}')
    result = cloud.run(*line.split())
    assert result.returncode == 1 and REFUSED[line] in result.stderr
    assert not [words for words in cloud.calls() if words[1] in ("ssh", "scp", "create")]


@pytest.mark.parametrize(("spot", "workers"), [(True, 1), (False, 2)])
def test_workdirs_that_would_be_lost_are_refused(cloud, spot, workers):
    cloud.create_of(workers, *(("--spot",) if spot else ()))
    for dry in ((), ("--dry_run",)):
        result = cloud.run("tpu_run.sh", "one", *dry, "--", "train", "--workdir=runs/first")
        assert result.returncode == 1 and "gs://BUCKET/runs/first" in result.stderr
    assert not [words for words in cloud.calls() if words[1] in ("ssh", "scp")]


def test_create_takes_gclouds_defaults_and_remembers_them(cloud):
    cloud.plan(**{"compute/zone": "us-central2-b", "core/project": "theirs"})
    assert cloud.run("tpu_create.sh", "one", "--accelerator=v4-8").returncode == 0
    cloud.calls()
    cloud.plan(**{"compute/zone": "elsewhere", "core/project": "other"})
    assert cloud.run("tpu_logs.sh", "one").returncode == 1  # nothing started yet
    asked = [words for words in cloud.calls() if words[0] != "config"]
    assert asked and all({"--zone=us-central2-b", "--project=theirs"} <= set(words) for words in asked)


def test_creations_that_fail(cloud):
    for plan, named, is_remembered in (
        (
            {"refuses": [["describe", "WARNING: x\nERROR: you have no credentials\nPlease run: ..."]]},
            "auth login",
            False,
        ),
        ({"refuses": [["queued-resources create", "ERROR: quota"]]}, "ERROR: quota", False),
        ({"queue": [["WAITING_FOR_RESOURCES", "FAILED"]]}, "no quota for v5litepod-8 in us-west4-a", True),
    ):
        cloud.plan(**plan)
        result = cloud.run("tpu_create.sh", *CREATE)
        assert result.returncode == 1 and named in result.stderr
        assert (cloud.repository / "runs/tpu/one/create").exists() == is_remembered


def test_a_creation_that_is_interrupted_is_remembered(cloud):
    """The request reached Google Cloud, but gcloud was cut off before it said so."""
    cloud.plan(cuts_off=True)
    result = cloud.run("tpu_create.sh", *CREATE)
    assert result.returncode == 0 and "one is ACTIVE" in result.stderr
    assert (cloud.repository / "runs/tpu/one/create").exists() and cloud.verbs() == ["queued-resources create"]
    assert cloud.run("tpu_create.sh", *CREATE).returncode == 0 and cloud.verbs() == []


# --- run ---


def test_run_installs_starts_follows_and_ends(cloud):
    """Uncommitted files are copied to the TPU, ignored ones are not."""
    subprocess.run(["git", "init", "-q"], cwd=cloud.repository, check=True)
    (cloud.repository / ".gitignore").write_text("/runs/\n/secret.txt\n")
    (cloud.repository / "my config.py").write_text("mine")
    for name in ("secret.txt", "gone.py"):
        (cloud.repository / name).touch()
    subprocess.run(["git", "add", "gone.py", "launch"], cwd=cloud.repository, check=True)
    (cloud.repository / "gone.py").unlink()
    cloud.create()
    result = cloud.train("--before=ls launch > 'a list'")
    assert result.returncode == 0, result.stderr
    assert cloud.ran() == [" ".join(TRAIN)]
    assert result.stdout.splitlines()[-2:] == [f"worker 0, call 1, port 8476: {' '.join(TRAIN)}", "trained"]
    assert "done, after 0 failure(s) and 0 preemption(s)" in result.stderr
    installed = (cloud.folder / "installed").read_text()
    assert "uv==" in installed  # Python 3.10 was there
    assert "-r requirements.txt jax[tpu] gcsfs" in installed
    (log,) = (cloud.repository / "runs/tpu/one").glob("*.log")
    assert log.read_text().endswith("trained\n")
    checkout = cloud.folder / "workers/0/ag_jax"
    copied = {path.name for path in checkout.iterdir()}
    assert copied >= {"my config.py", "launch"} and not copied & {"secret.txt", "gone.py", "runs", ".git"}
    assert "tpu_run.sh" in (checkout / "a list").read_text()
    status, line = cloud.run("tpu_logs.sh", "one", "--lines=1").stdout.splitlines()
    assert status.startswith("ag_jax-worker worker-0 exited 0 ") and line == "trained"


def test_workers_with_a_newer_python_use_it_and_keep_local_workdirs(cloud):
    cloud.create()
    before = "--before=mkdir -p runs && echo kept >> runs/mine"
    for _ in range(2):
        command = ("one", before, "--", "train", "--workdir=runs/first")
        result = cloud.run("tpu_run.sh", *command, FAKE_VERSION="3.12.3")
        assert result.returncode == 0 and "gone with it" in result.stderr
    assert "uv==" not in (cloud.folder / "installed").read_text()
    assert (cloud.folder / "workers/0/ag_jax/runs/mine").read_text() == "kept\nkept\n"


def test_several_workers_get_the_same_command(cloud):
    cloud.create_of(3)
    result = cloud.run("tpu_run.sh", "one", "--", "inspect", "--workdir=gs://bucket/x")
    assert result.returncode == 1 and "ag-jax inspect runs on one machine" in result.stderr
    cloud.calls()
    result = cloud.train()
    assert result.returncode == 0, result.stderr
    assert cloud.ran(0) == cloud.ran(1) == cloud.ran(2) == ["train --hosts=auto " + " ".join(TRAIN[1:])]
    assert "worker 1, call" not in result.stdout  # the log is worker 0's
    ssh = [words for words in cloud.calls() if words[1] == "ssh"]
    assert [words[3] for words in ssh[:3]] == ["--worker=0", "--worker=1", "--worker=2"]  # keys, one after another
    assert cloud.run("tpu_run.sh", "one", "--", *TRAIN, "--hosts=1").returncode == 0
    assert cloud.ran()[1] == " ".join(TRAIN) + " --hosts=1"


SLICES = ("one", "--accelerator=v5litepod-16", "--slices=2", "--zone=us-west4-a", "--project=mine")


def test_several_slices_run_one_command(cloud):
    """Workers are counted over all slices; each node gets the checkout."""
    cloud.plan(workers=2)
    result = cloud.run("tpu_create.sh", *SLICES)
    assert "v5litepod-16 x 2 with 4 worker(s)" in result.stderr
    created = next(words for words in cloud.calls() if words[1] == "create")
    assert created[2:5] == ["one", "--node-count=2", "--node-prefix=one"]
    result = cloud.train()
    assert result.returncode == 0, result.stderr
    wanted = ["train --hosts=auto " + " ".join(TRAIN[1:])]
    assert all(cloud.ran(worker) == wanted for worker in range(4))
    calls = cloud.calls()
    keys = [(words[2], words[3]) for words in calls if words[1] == "ssh"][:4]
    assert keys == [(f"one-{node}", f"--worker={worker}") for node in (0, 1) for worker in (0, 1)]
    assert [words[3] for words in calls if words[1] == "scp"] == ["one-0:", "one-1:"]
    logs = cloud.run("tpu_logs.sh", "one", "--worker=3")
    assert "worker 3, call 1" in logs.stdout and logs.stdout.count("ag_jax-worker") == 4


def test_a_preempted_tpu_is_made_again_and_the_command_goes_on(cloud):
    cloud.plan(queue=[["ACTIVE"], ["WAITING_FOR_RESOURCES", "ACTIVE"]])
    cloud.fates("preempted", "done")
    cloud.create("--spot", "--", "--network=mine")
    made = (cloud.repository / "runs/tpu/one/create").read_text().splitlines()
    shown = cloud.train("--dry_run").stdout.partition("# after a preemption")[2]
    assert shown.index("queued-resources delete one") < shown.index("queued-resources create one")
    cloud.calls()
    result = cloud.train()
    assert result.returncode == 0, result.stderr
    calls = cloud.calls()
    assert [words[1] for words in calls if words[1] in ("delete", "create")] == ["delete", "create"]
    assert "--force" in next(words for words in calls if words[1] == "delete")
    assert ["compute", "tpus", *next(words for words in calls if words[1] == "create")] == made
    assert "--spot" in made and "--network=mine" in made
    assert cloud.ran() == [" ".join(TRAIN)] * 2 and "0 failure(s) and 1 preemption(s)" in result.stderr
    assert (cloud.folder / "installed").read_text().count("-r requirements.txt") == 2  # a new machine


# What happens in each start, the plan of the cloud, options of `tpu_create.sh` and `tpu_run.sh`; then the exit status,
# the number of starts, and the number of creations after the first.
FATES = {
    "a failure that passes": (["exit 1", "done"], {}, (), (), 0, 2, 0),
    "a failure that stays": (["exit 3"], {}, ("--spot",), ("--retries=2",), 3, 3, 0),
    "a wrong command line": (["exit 2"], {}, (), (), 2, 1, 0),
    "a lost host": (["exit 75", "done"], {}, (), ("--retries=0",), 0, 2, 0),
    "an interruption": (["told-to-end", "done"], {}, (), ("--retries=0",), 0, 2, 0),
    "a failure in a preemption": (["fails-in-preemption", "done"], {}, ("--spot",), ("--retries=0",), 0, 2, 1),
    "too many preemptions": (["preempted"], {}, ("--spot",), ("--preemptions=1",), 1, 2, 1),
    "no capacity twice": (["preempted"], {"queue": [["ACTIVE"], ["FAILED"], ["FAILED"]]}, ("--spot",), (), 1, 1, 2),
    "a command before that fails": (["done"], {}, (), ("--before=exit 9",), 1, 0, 0),
}
ALSO = ("an interruption", "a failure in a preemption", "too many preemptions", "no capacity twice", "a lost host")


@pytest.mark.parametrize("case", some(FATES, *(FATES.keys() - set(ALSO))))
def test_how_a_command_ends(cloud, case):
    fates, plan, created, options, status, starts, creations = FATES[case]
    cloud.plan(**plan)
    cloud.fates(*fates)
    cloud.create(*created)
    result = cloud.train(*options)
    assert result.returncode == status, result.stderr
    assert len(cloud.ran()) == starts and cloud.verbs().count("queued-resources create") == creations


@pytest.mark.parametrize("by_script", [True, False])
def test_a_tpu_that_somebody_deletes_is_not_made_again(cloud, by_script):
    cloud.fates("waits")
    cloud.create("--spot")
    watcher = cloud.start("tpu_run.sh", "one", "--", *TRAIN)
    wait_until(cloud.ran)
    if by_script:
        assert cloud.run("tpu_delete.sh", "one", "--yes").returncode == 0
    else:
        (cloud.folder / "tpu.json").rename(cloud.folder / "deleted.json")  # in the console, say
    err = watcher.communicate(timeout=30)[1]
    assert watcher.returncode == 1 and "one was deleted" in err
    assert "queued-resources create" not in cloud.verbs()
    if not by_script:
        (cloud.folder / "deleted.json").rename(cloud.folder / "tpu.json")  # for the clearing up


@pytest.mark.parametrize(
    ("fate", "status"), some([("exit-1-of-worker-1", 1), ("75-but-9-of-worker-1", 9)], ("exit-1-of-worker-1", 1))
)
def test_one_failing_worker_ends_the_others(cloud, fate, status):
    cloud.fates(fate)
    cloud.create_of(2)
    assert cloud.train("--retries=0").returncode == status
    said = cloud.run("tpu_logs.sh", "one").stdout
    assert re.search(rf"worker-0 (stopped|exited 75) .*\n.*worker-1 exited {status} ", said)


def test_a_second_watcher_follows_and_stop_ends_it(cloud):
    cloud.fates("waits")
    cloud.create()
    first = cloud.start("tpu_run.sh", "one", "--", *TRAIN)
    wait_until(cloud.ran)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    other = cloud.run("tpu_run.sh", "one", "--", "evaluate", "--workdir=gs://bucket/x")
    assert other.returncode == 1 and "one runs another command" in other.stderr
    second = cloud.start("tpu_run.sh", "one", "--", *TRAIN)
    wait_until(lambda: "runs already; following it" in second.stderr.readline())
    assert cloud.run("tpu_run.sh", "one", "--stop").returncode == 0
    _, err = second.communicate(timeout=30)
    assert second.returncode == 130 and "stopped" in err and len(cloud.ran()) == 1


def test_ctrl_c_leaves_the_command_alone(cloud):
    cloud.fates("waits")
    cloud.create()
    watcher = cloud.start("tpu_run.sh", "one", "--", *TRAIN)
    wait_until(lambda: [*cloud.repository.glob("runs/tpu/one/*.log")])  # it follows
    os.killpg(watcher.pid, signal.SIGINT)
    err = watcher.communicate(timeout=30)[1]
    assert watcher.returncode == 130, err
    assert " running " in cloud.run("tpu_logs.sh", "one").stdout
    (cloud.folder / "go").touch()
    assert cloud.train().returncode == 0


# A check on this machine: options, the command, what ag-jax says there, and whether the command is run nevertheless.
CHECKS = {
    "wrong": ((), TRAIN, "1 ag-jax train: there is no data.sorce", False),
    "wrong, dry": (("--dry_run",), TRAIN, "2 ag-jax: expected one verb", False),
    "right": (("--dry_run",), TRAIN, "0 ", True),
    "another verb": (
        ("--dry_run",),
        ("evaluate", TRAIN[2]),
        "1 ag-jax evaluate: this verb needs --config=CONFIG",
        True,
    ),
    "a package": (
        ("--dry_run",),
        ("train", "--config=c.py:run=gs://b/run", TRAIN[2]),
        "1 ag-jax: needs a package",
        True,
    ),
    "no jax": (("--dry_run",), TRAIN, "1 ModuleNotFoundError: No module named 'jax'", True),
}


@pytest.mark.parametrize("case", CHECKS)
def test_a_wrong_command_is_found_before_anything_is_asked_for(cloud, case):
    options, command, says, is_run = CHECKS[case]
    status, _, said = says.partition(" ")
    ag_jax = cloud.repository / ".venv/bin/ag-jax"
    ag_jax.parent.mkdir(parents=True)
    ag_jax.write_text(f'#!/bin/bash\necho "$PWD: $*" >> "$HOME/checked"\necho "{said}" >&2\nexit {status}\n')
    ag_jax.chmod(0o755)
    result = cloud.run("tpu_run.sh", "one", *options, "--zone=us-west4-a", "--project=mine", "--", *command)
    assert (cloud.folder.parent / "checked").read_text() == f"{cloud.repository}: {' '.join(command)} --print_config\n"
    assert result.returncode == (0 if is_run else 1) and ("# start" in result.stdout) == is_run
    assert is_run or (result.stderr.startswith(said) and result.stdout == "" and cloud.calls() == [])
    for verb in (name for name, of in verbs.VERBS.items() if "print_config" not in verbs.flags_of(of)):
        result = cloud.run("tpu_run.sh", "one", "--dry_run", "--zone=a", "--", verb, "--workdir=gs://bucket/run")
        assert result.returncode == 0 and f"ag-jax {verb}" in result.stderr, result.stderr


@pytest.mark.exhaustive
def test_a_network_that_fails_for_a_moment_is_waited_for(cloud):
    cloud.fates("waits")
    cloud.create()
    process = cloud.start("tpu_run.sh", "one", "--", *TRAIN)
    wait_until(cloud.ran)
    cloud.plan(refuses=[["one --worker=all", "ERROR: timed out"], ["describe", "ERROR: timed out"]] * 25)
    wait_until(lambda: not json.loads((cloud.folder / "plan.json").read_text())["refuses"])
    cloud.calls()
    wait_until(lambda: (cloud.folder / "calls").exists() and (cloud.folder / "calls").read_text().count(" log ") > 2)
    (cloud.folder / "go").touch()
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0 and "0 failure(s) and 0 preemption(s)" in err
    log = next((cloud.repository / "runs/tpu/one").glob("*.log")).read_text()
    assert out == log and log.count("worker 0, call 1") == 1  # after many looks


# --- delete, dry runs ---


def test_delete_asks(cloud):
    for answer in ("n\n", "", "y\n"):
        if not (cloud.folder / "tpu.json").exists():
            cloud.create("--spot")
        result = cloud.run("tpu_delete.sh", "one", answer=answer)
        assert "Delete one (v5litepod-8, ACTIVE) in us-west4-a of project mine?" in result.stderr
        is_deleted = answer == "y\n"
        assert (cloud.folder / "tpu.json").exists() != is_deleted and result.returncode == (0 if is_deleted else 1)
        assert (cloud.repository / "runs/tpu/one/create").exists() != is_deleted
    assert "no TPU one" in cloud.run("tpu_delete.sh", "one", "--yes", *CREATE[2:]).stderr


@pytest.mark.parametrize(
    ("script", "arguments", "wanted"),
    [
        ("tpu_create.sh", CREATE, ["queued-resources create one", "queued-resources describe one"]),
        (
            "tpu_run.sh",
            ("one", "--zone=z", "--before=ls 'a b'", "--", *TRAIN),
            ["tpu-vm scp", "tpu_worker.sh install", "tpu_worker.sh start", "tpu_worker.sh log ATTEMPT 0"],
        ),
        ("tpu_run.sh", ("one", "--zone=z", "--stop"), ["tpu_worker.sh stop"]),
        ("tpu_logs.sh", ("one", "--zone=z"), ["tpu_worker.sh tail 100"]),
        ("tpu_delete.sh", ("one", "--zone=z"), ["queued-resources delete one --force"]),
    ],
)
def test_a_dry_run_prints_and_runs_nothing(cloud, script, arguments, wanted):
    position = arguments.index("--") if "--" in arguments else len(arguments)
    result = cloud.run(script, *arguments[:position], "--dry_run", *arguments[position:])
    assert result.returncode == 0, result.stderr
    lines = result.stdout.replace("\\ ", " ").splitlines()
    at = [next(number for number, line in enumerate(lines) if part in line) for part in wanted]
    assert at == sorted(at)
    help_text = cloud.run(script, "--help").stdout
    assert help_text.startswith(f"Usage: bash launch/{script} NAME") and "--dry_run" in help_text
    assert cloud.calls() == [] and not (cloud.repository / "runs").exists()


def test_a_dry_run_is_quoted_so_that_a_shell_reads_the_same_words(cloud):
    result = cloud.run("tpu_run.sh", "one", "--zone=z", "--project=p", "--dry_run", "--", *TRAIN)
    line = next(line for line in result.stdout.splitlines() if "start\\ ATTEMPT" in line)
    command = next(word for word in words_of("gcloud", line) if word.startswith("--command=")).partition("=")[2]
    assert words_of("bash", command) == ["ag_jax/launch/tpu_worker.sh", "start", "ATTEMPT", *TRAIN]
