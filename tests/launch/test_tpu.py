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
import time

import pytest

from ag_jax.command_line import verbs

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

    def train(self, *options, **environment):
        return self.run("tpu_run.sh", "one", *options, "--", *TRAIN, **environment)

    def calls(self):
        """What gcloud was asked for since the last call, without `compute tpus`."""
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

    def tpu(self, **changes):
        path = self.folder / "tpu.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    def end(self):
        if (self.folder / "tpu.json").exists():
            self.run("tpu_delete.sh", "one", "--yes", "--zone=us-west4-a", "--project=mine")


@pytest.fixture
def cloud(tmp_path):
    made = Cloud(tmp_path)
    yield made
    made.end()


def wait_until(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def words_of(command, line):
    """What `command` gets when a shell reads the line."""
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


@pytest.mark.parametrize(
    ("accelerator", "version"),
    [
        ("v2-8", "tpu-ubuntu2204-base"),
        ("v3-32", "tpu-ubuntu2204-base"),
        ("v4-8", "tpu-ubuntu2204-base"),
        ("v5litepod-256", "v2-alpha-tpuv5-lite"),
        ("v5p-8", "v2-alpha-tpuv5"),
        ("v6e-4", "v2-alpha-tpuv6e"),
    ],
)
def test_image_goes_with_the_accelerator(cloud, accelerator, version):
    result = cloud.run("tpu_create.sh", "one", "--zone=z", f"--accelerator={accelerator}", "--dry_run")
    assert f"--accelerator-type={accelerator} --runtime-version={version} " in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("one", "--zone=z"), "which accelerator?"),
        (("--accelerator=v4-8", "--zone=z"), "which TPU?"),
        (("one", "--accelerator=v4-8", "--zone=z", "--project=p", "two"), "expected one name, got one and two"),
        (("One", "--accelerator=v4-8"), "small letters"),
        (("one", "--accelerator=v9-8", "--zone=z"), "unknown accelerator v9-8: expected v2-N"),
        (("one", "--accelerator=v5e-8", "--zone=z"), "Google's name for v5e-8 is v5litepod-8"),
        (("one", "--accelerator=v4", "--zone=z"), "such as v5litepod-8, got v4"),
        (("one", "--accelerator=v4-8"), "no zone: give --zone=ZONE"),
        (("one", "--accelerator=v4-8", "--zone=z"), "no project: give --project=PROJECT"),
        (("one", "--accelerator=v4-8", "--zone", "z"), "write --zone=VALUE"),
        (("one", "--accelerator=v4-8", "--slices=0"), "--slices must be at least 1, got 0"),
        (("one", "--accelerator=v4-8", "--slices=two"), "--slices expects a whole number, got two"),
        (("one", "--accelerator=v4-8", "--sopt"), "did not expect --sopt"),
        (("one", "--accelerator=v4-8", "--colour=red"), "unknown option --colour=red"),
    ],
)
def test_create_refuses(cloud, arguments, message):
    result = cloud.run("tpu_create.sh", *arguments)
    assert result.returncode == 1 and message in result.stderr
    assert not [words for words in cloud.calls() if words[0] != "config"]


def test_create_takes_gclouds_defaults_and_remembers_them(cloud):
    cloud.plan(**{"compute/zone": "us-central2-b", "core/project": "theirs"})
    assert cloud.run("tpu_create.sh", "one", "--accelerator=v4-8").returncode == 0
    cloud.calls()
    cloud.plan(**{"compute/zone": "elsewhere", "core/project": "other"})
    assert cloud.run("tpu_logs.sh", "one").returncode == 1  # nothing started yet
    asked = [words for words in cloud.calls() if words[0] != "config"]
    assert asked and all({"--zone=us-central2-b", "--project=theirs"} <= set(words) for words in asked)


def test_an_unknown_accelerator_with_its_image(cloud):
    result = cloud.run("tpu_create.sh", "one", "--zone=z", "--accelerator=v9-8", "--runtime_version=v9", "--dry_run")
    assert result.returncode == 0 and "--accelerator-type=v9-8 --runtime-version=v9" in result.stdout


@pytest.mark.parametrize(
    ("state", "message"),
    [("FAILED", "no quota for v5litepod-8 in us-west4-a"), ("SUSPENDED", "keeps its name and its quota")],
)
def test_create_says_what_to_do(cloud, state, message):
    cloud.plan(queue=[["WAITING_FOR_RESOURCES", state]])
    result = cloud.run("tpu_create.sh", *CREATE)
    assert result.returncode == 1 and message in result.stderr and "tpu_delete.sh one" in result.stderr


def test_create_again_goes_on_waiting_but_not_with_other_settings(cloud):
    cloud.create()
    assert cloud.run("tpu_create.sh", *CREATE).returncode == 0
    assert cloud.verbs() == []
    result = cloud.run("tpu_create.sh", *CREATE, "--spot")
    assert result.returncode == 1 and "made with other settings" in result.stderr


def test_creation_that_is_refused_is_not_remembered(cloud):
    cloud.plan(refuses=[["queued-resources create", "ERROR: quota"]])
    result = cloud.run("tpu_create.sh", *CREATE)
    assert result.returncode == 1 and "ERROR: quota" in result.stderr and "gcloud services enable" in result.stderr
    assert not (cloud.repository / "runs/tpu/one/create").exists()


def test_creation_that_is_interrupted_is_remembered(cloud):
    """The request reached Google Cloud, but gcloud was cut off before it said so."""
    cloud.plan(cuts_off=True)
    result = cloud.run("tpu_create.sh", *CREATE)
    assert result.returncode == 0 and "but one was asked for" in result.stderr and "one is ACTIVE" in result.stderr
    assert (cloud.repository / "runs/tpu/one/create").exists() and cloud.verbs() == ["queued-resources create"]
    assert cloud.run("tpu_create.sh", *CREATE).returncode == 0


def test_gcloud_that_is_not_logged_in(cloud):
    cloud.plan(
        refuses=[["describe", "WARNING: x\nERROR: you have no credentials\nPlease run: ...\nto select an account."]]
    )
    result = cloud.run("tpu_create.sh", *CREATE)
    assert result.returncode == 1 and "no credentials (log in with gcloud auth login" in result.stderr


# --- run ---


def test_run_installs_starts_follows_and_ends(cloud):
    cloud.create()
    result = cloud.train()
    assert result.returncode == 0, result.stderr
    assert cloud.ran() == [" ".join(TRAIN)]
    assert result.stdout.splitlines()[-2:] == [f"worker 0, call 1, port 8476: {' '.join(TRAIN)}", "trained"]
    assert "done, after 0 failure(s) and 0 preemption(s)" in result.stderr
    installed = (cloud.folder / "installed").read_text()
    assert "--user --disable-pip-version-check uv==" in installed  # Python 3.10 was there
    assert "-r requirements.txt jax[tpu] gcsfs" in installed
    logs = list((cloud.repository / "runs/tpu/one").glob("*.log"))
    assert len(logs) == 1 and logs[0].read_text().endswith("trained\n")


def test_workers_with_a_newer_python_use_it(cloud):
    cloud.create()
    assert cloud.train(FAKE_VERSION="3.12.3").returncode == 0
    assert "uv==" not in (cloud.folder / "installed").read_text()


def test_several_workers_get_the_same_command(cloud):
    cloud.plan(workers=3)
    assert cloud.run("tpu_create.sh", "one", "--accelerator=v4-24", "--zone=z", "--project=p").returncode == 0
    result = cloud.train()
    assert result.returncode == 0, result.stderr
    wanted = ["train --hosts=auto " + " ".join(TRAIN[1:])]
    assert cloud.ran(0) == cloud.ran(1) == cloud.ran(2) == wanted
    assert "worker 1, call" not in result.stdout  # the log is worker 0's
    ssh = [words for words in cloud.calls() if words[1] == "ssh"]
    assert [words[3] for words in ssh[:3]] == ["--worker=0", "--worker=1", "--worker=2"]  # keys, one after another
    assert all(word == "--worker=all" for words in ssh[3:] for word in words if word == "--worker=1")


SLICES = ("one", "--accelerator=v5litepod-16", "--slices=2", "--zone=us-west4-a", "--project=mine")


def test_several_slices_run_one_command(cloud):
    """Workers are counted over all slices; each node gets the checkout."""
    cloud.plan(workers=2)
    result = cloud.run("tpu_create.sh", *SLICES)
    assert "one is ACTIVE: v5litepod-16 x 2 with 4 worker(s)" in result.stderr
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
    assert logs.returncode == 0 and "worker 3, call 1" in logs.stdout and logs.stdout.count("ag_jax-worker") == 4
    assert cloud.run("tpu_delete.sh", "one", "--yes").returncode == 0
    assert not (cloud.folder / "tpu.json").exists()


@pytest.mark.exhaustive
def test_a_slice_that_is_lost_has_all_made_again(cloud):
    cloud.plan(queue=[["ACTIVE"], ["WAITING_FOR_RESOURCES", "ACTIVE"]])
    assert cloud.run("tpu_create.sh", *SLICES, "--spot").returncode == 0
    cloud.calls()
    cloud.tpu(lost=["one-1"])
    result = cloud.train()
    assert result.returncode == 0, result.stderr
    assert "making one again (1 of at most 100 times)" in result.stderr
    assert [words[2:5] for words in cloud.calls() if words[1] == "create"] == [
        ["one", "--node-count=2", "--node-prefix=one"]
    ]
    assert cloud.ran(1) == ["train --hosts=auto " + " ".join(TRAIN[1:])]


def test_hosts_are_left_as_given(cloud):
    cloud.plan(workers=2)
    cloud.run("tpu_create.sh", "one", "--accelerator=v4-16", "--zone=z", "--project=p")
    cloud.run("tpu_run.sh", "one", "--", *TRAIN, "--hosts=1")
    assert cloud.ran() == [" ".join(TRAIN) + " --hosts=1"]


def test_a_verb_of_one_machine_is_refused_on_several(cloud):
    cloud.plan(workers=2)
    cloud.run("tpu_create.sh", "one", "--accelerator=v4-16", "--zone=z", "--project=p")
    result = cloud.run("tpu_run.sh", "one", "--", "inspect", "--workdir=gs://bucket/x")
    assert result.returncode == 1 and "ag-jax inspect runs on one machine" in result.stderr


def test_preempted_tpu_is_made_again_and_the_command_goes_on(cloud):
    cloud.plan(queue=[["ACTIVE"], ["WAITING_FOR_RESOURCES", "ACTIVE"]])
    cloud.fates("preempted", "done")
    arguments = ("--spot", "--", "--network=mine")
    cloud.create(*arguments)
    made = (cloud.repository / "runs/tpu/one/create").read_text().splitlines()
    result = cloud.train()
    assert result.returncode == 0, result.stderr
    calls = cloud.calls()
    assert [words[1] for words in calls if words[1] in ("delete", "create")] == ["delete", "create"]
    assert "--force" in next(words for words in calls if words[1] == "delete")
    assert ["compute", "tpus", *next(words for words in calls if words[1] == "create")] == made
    assert "--spot" in made and "--network=mine" in made
    assert cloud.ran() == [" ".join(TRAIN)] * 2
    assert "done, after 0 failure(s) and 1 preemption(s)" in result.stderr
    assert (cloud.folder / "installed").read_text().count("-r requirements.txt") == 2  # a new machine


@pytest.mark.exhaustive
def test_a_failure_in_a_preemption_is_no_failure(cloud):
    cloud.fates("fails-in-preemption", "done")
    cloud.create("--spot")
    result = cloud.train("--retries=0")
    assert result.returncode == 0 and "0 failure(s) and 1 preemption(s)" in result.stderr


@pytest.mark.exhaustive
def test_preemptions_have_a_limit(cloud):
    cloud.fates("preempted")
    cloud.create("--spot")
    result = cloud.train("--preemptions=1")
    assert result.returncode == 1 and "--preemptions=1 is reached" in result.stderr
    assert cloud.verbs().count("queued-resources create") == 1


@pytest.mark.parametrize("script", ["tpu_delete.sh", None])
def test_a_tpu_that_somebody_deletes_is_not_made_again(cloud, script):
    cloud.fates("waits")
    cloud.create("--spot")
    watcher = cloud.start("tpu_run.sh", "one", "--", *TRAIN)
    wait_until(cloud.ran)
    if script:
        assert cloud.run(script, "one", "--yes").returncode == 0
    else:
        (cloud.folder / "tpu.json").rename(cloud.folder / "deleted.json")  # in the console, say
    err = watcher.communicate(timeout=30)[1]
    assert watcher.returncode == 1 and "one was deleted, not preempted" in err
    assert "queued-resources create" not in cloud.verbs()
    if not script:
        (cloud.folder / "deleted.json").rename(cloud.folder / "tpu.json")  # for the clearing up


@pytest.mark.exhaustive
def test_a_tpu_that_somebody_deletes_while_it_is_waited_for_is_not_made_again(cloud):
    """After a preemption, when there is no capacity."""
    cloud.plan(queue=[["ACTIVE"], ["WAITING_FOR_RESOURCES"] * 1000])
    cloud.fates("preempted")
    cloud.create("--spot")
    watcher = cloud.start("tpu_run.sh", "one", "--", *TRAIN)
    created = []

    def is_made_again():
        created.extend(verb for verb in cloud.verbs() if verb == "queued-resources create")
        return created

    wait_until(is_made_again)
    assert cloud.run("tpu_delete.sh", "one", "--yes").returncode == 0
    err = watcher.communicate(timeout=30)[1]
    assert watcher.returncode == 1 and "one was deleted, not preempted" in err
    assert "queued-resources create" not in cloud.verbs()


@pytest.mark.exhaustive
def test_creation_that_fails_once_after_a_preemption_is_tried_again(cloud):
    cloud.fates("preempted", "done")
    cloud.create("--spot")
    cloud.plan(refuses=[["queued-resources create", "ERROR: internal"]])
    result = cloud.train()
    assert result.returncode == 0 and "2 preemption(s)" in result.stderr


@pytest.mark.exhaustive
def test_no_capacity_twice_in_a_row_ends_it(cloud):
    cloud.plan(queue=[["ACTIVE"], ["FAILED"], ["FAILED"]])
    cloud.fates("preempted")
    cloud.create("--spot")
    result = cloud.train()
    assert result.returncode == 1 and "no quota for" in result.stderr
    assert cloud.verbs().count("queued-resources create") == 2


@pytest.mark.exhaustive
def test_an_interruption_on_a_tpu_that_stays_is_started_again(cloud):
    cloud.fates("told-to-end", "done")
    cloud.create()
    result = cloud.train("--retries=0")
    assert result.returncode == 0, result.stderr
    assert "was interrupted on one, which is still there" in result.stderr
    assert cloud.verbs() == ["tpu-vm scp"] * 2 and len(cloud.ran()) == 2


def test_a_command_that_fails_is_tried_again_and_then_given_up(cloud):
    cloud.fates("exit 3")
    cloud.create("--spot")
    result = cloud.train("--retries=2")
    assert result.returncode == 3 and len(cloud.ran()) == 3
    assert "failed 3 time(s), and --retries=2 is reached" in result.stderr
    assert "queued-resources create" not in cloud.verbs()


@pytest.mark.exhaustive
def test_a_worker_that_lost_another_is_no_failure(cloud):
    cloud.fates("exit 75", "done")
    cloud.create()
    result = cloud.train("--retries=0")
    assert result.returncode == 0 and "was interrupted on one" in result.stderr


@pytest.mark.exhaustive
def test_of_several_exit_statuses_the_failure_counts(cloud):
    cloud.plan(workers=2)
    cloud.fates("75-but-9-of-worker-1")
    cloud.run("tpu_create.sh", "one", "--accelerator=v4-16", "--zone=z", "--project=p")
    assert cloud.train("--retries=0").returncode == 9


@pytest.mark.exhaustive
def test_a_failure_that_passes(cloud):
    cloud.fates("exit 1", "done")
    cloud.create()
    result = cloud.train()
    assert result.returncode == 0 and "after 1 failure(s) and 0 preemption(s)" in result.stderr


def test_a_wrong_command_line_is_not_tried_again(cloud):
    cloud.fates("exit 2")
    cloud.create()
    result = cloud.train()
    assert result.returncode == 2 and len(cloud.ran()) == 1


def test_one_failing_worker_ends_the_others(cloud):
    cloud.plan(workers=2)
    cloud.fates("exit-1-of-worker-1")
    cloud.run("tpu_create.sh", "one", "--accelerator=v4-16", "--zone=z", "--project=p")
    result = cloud.train("--retries=0")
    assert result.returncode == 1 and "failed with exit status 1" in result.stderr
    status = cloud.run("tpu_logs.sh", "one").stdout
    assert re.search(r"worker-0 stopped .*\n.*worker-1 exited 1 ", status)


def test_set_up_that_fails_is_reported(cloud):
    cloud.create()
    result = cloud.train("--before=echo no such bucket; exit 9")
    assert result.returncode == 1 and "no such bucket" in result.stderr
    assert "before failed twice" in result.stderr and cloud.ran() == []


def test_before_runs_in_the_checkout_of_each_worker(cloud):
    cloud.create()
    assert cloud.train("--before=ls launch > 'a list'").returncode == 0
    assert "tpu_run.sh" in (cloud.folder / "workers/0/ag_jax/a list").read_text()


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
    assert second.returncode == 130 and "stopped; the same command resumes" in err
    assert len(cloud.ran()) == 1


def test_ctrl_c_leaves_the_command_alone(cloud):
    cloud.fates("waits")
    cloud.create()
    watcher = cloud.start("tpu_run.sh", "one", "--", *TRAIN)
    wait_until(lambda: [*cloud.repository.glob("runs/tpu/one/*.log")])  # it follows
    os.killpg(watcher.pid, signal.SIGINT)
    err = watcher.communicate(timeout=30)[1]
    assert watcher.returncode == 130, err
    assert "the started command continues" in err
    assert " running " in cloud.run("tpu_logs.sh", "one").stdout
    (cloud.folder / "go").touch()
    assert cloud.train().returncode == 0


@pytest.mark.parametrize(
    ("spot", "workers", "workdir", "message"),
    [
        (True, 1, "runs/first", "must be in a bucket, such as gs://BUCKET/runs/first: one is a spot TPU"),
        (False, 2, "runs/first", "has several workers"),
        (False, 1, "gs://bucket", "names a bucket: expected a folder in it"),
        (False, 1, "", "needs --workdir=..."),
        (False, 1, "outputs/first", "is in the copy of the checkout on the TPU, which is replaced"),
    ],
)
def test_workdirs_that_would_be_lost_are_refused(cloud, spot, workers, workdir, message):
    cloud.plan(workers=workers)
    accelerator = "v4-8" if workers == 1 else "v4-16"
    flags = ("--spot",) if spot else ()
    cloud.run("tpu_create.sh", "one", f"--accelerator={accelerator}", "--zone=z", "--project=p", *flags)
    given = (f"--workdir={workdir}",) if workdir else ()
    result = cloud.run("tpu_run.sh", "one", "--", "train", *given)
    assert result.returncode == 1 and message in result.stderr
    assert not [words for words in cloud.calls() if words[1] in ("ssh", "scp")]


def test_a_local_workdir_is_kept_between_runs_and_warned_of(cloud):
    cloud.create()
    run = (
        "tpu_run.sh",
        "one",
        "--before=mkdir -p runs && echo kept >> runs/mine",
        "--",
        "train",
        "--workdir=runs/first",
    )
    for _ in range(2):
        result = cloud.run(*run)
        assert result.returncode == 0 and "will be gone with it" in result.stderr
    assert (cloud.folder / "workers/0/ag_jax/runs/mine").read_text() == "kept\nkept\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("one",), "what shall run?"),
        (("one", "--", "--config=x"), "expected a verb such as train after --, got --config=x"),
        (("one", "--retries=many", "--", "train"), "--retries expects a whole number, got many"),
        (("one", "--retries", "2"), "write --retries=VALUE"),
        (("one", "train"), "expected one name, got one and train"),
        (("two", "--zone=z", "--project=p", "--", "train", "--workdir=gs://b/x"), "there is no TPU two"),
    ],
)
def test_run_refuses(cloud, arguments, message):
    (cloud.repository / "runs/tpu/one").mkdir(parents=True)
    (cloud.repository / "runs/tpu/one/create").write_text("--zone=z\n--project=p\n--accelerator-type=v4-8\n")
    result = cloud.run("tpu_run.sh", *arguments)
    assert result.returncode == 1 and message in result.stderr
    assert not [words for words in cloud.calls() if words[1] in ("ssh", "scp", "create")]


AG_JAX = """#!/bin/bash
echo "$PWD: $*" >> "$HOME/checked"
echo "the config"
[ -z "${SAYS:-}" ] || echo "$SAYS" >&2
exit "${FAKE_STATUS:-0}"
"""


@pytest.fixture
def environment(cloud):
    """An environment on this machine, whose ag-jax says what the variables SAYS and FAKE_STATUS tell it."""
    command = cloud.repository / ".venv/bin/ag-jax"
    command.parent.mkdir(parents=True)
    command.write_text(AG_JAX)
    command.chmod(0o755)
    return cloud.folder.parent / "checked"


@pytest.mark.parametrize("dry", [(), ("--dry_run",)])
@pytest.mark.parametrize(
    ("status", "says"), [("1", "ag-jax train: there is no data.sorce"), ("2", "ag-jax: expected one verb")]
)
def test_a_wrong_command_is_found_before_anything_is_asked_for(cloud, environment, dry, status, says):
    result = cloud.train(*dry, "--zone=us-west4-a", "--project=mine", FAKE_STATUS=status, SAYS=says)
    assert result.returncode == 1 and result.stdout == "" and cloud.calls() == []
    assert result.stderr == f"{says}\nag_jax: ag-jax rejects this command (see above); nothing was started\n"
    assert environment.read_text() == f"{cloud.repository}: {' '.join(TRAIN)} --print_config\n"


@pytest.mark.parametrize(
    ("command", "status", "says", "warning"),
    [
        (TRAIN, "0", "", ""),
        (("evaluate", "--workdir=gs://bucket/run"), "1", "ag-jax evaluate: this verb needs --config=CONFIG", ""),
        (
            ("train", "--config=c.py:run=gs://b/run", TRAIN[2]),
            "1",
            "ag-jax: gs://b/run needs a package",
            "could not be loaded here",
        ),
        (TRAIN, "1", "ModuleNotFoundError: No module named 'jax'", "warning: the command is not checked"),
    ],
)
def test_a_command_that_may_be_right_is_run(cloud, environment, command, status, says, warning):
    result = cloud.run("tpu_run.sh", "one", "--dry_run", "--zone=a", "--", *command, FAKE_STATUS=status, SAYS=says)
    assert result.returncode == 0 and "# start, then look" in result.stdout and warning in result.stderr
    assert environment.exists() and "the config" not in result.stdout


def test_verbs_that_cannot_be_checked_are_run_with_a_warning(cloud, environment):
    """They are those without the flag --print_config."""
    for verb in (name for name in verbs.RUNNING if "print_config" not in verbs.VERBS[name].flags):
        command = (verb, "--workdir=gs://bucket/run")
        result = cloud.run("tpu_run.sh", "one", "--dry_run", "--zone=a", "--", *command, FAKE_STATUS="2")
        assert result.returncode == 0 and f"`ag-jax {verb}` can only be run" in result.stderr, result.stderr
    assert not environment.exists()


def test_without_an_environment_the_command_is_not_checked_and_that_is_told(cloud):
    result = cloud.run("tpu_run.sh", "one", "--dry_run", "--zone=a", "--", *TRAIN)
    assert result.returncode == 0 and "warning: the command is not checked before it runs on the TPU" in result.stderr


@pytest.mark.exhaustive
def test_a_tpu_that_was_made_elsewhere(cloud):
    cloud.create()
    cloud.tpu(only_node=True, spot=True)
    shutil.rmtree(cloud.repository / "runs")
    place = ("--zone=us-west4-a", "--project=mine")
    assert "is a spot TPU" in cloud.run("tpu_run.sh", "one", *place, "--", "train", "--workdir=x").stderr
    assert cloud.train(*place).returncode == 0
    cloud.fates("preempted")
    result = cloud.train(*place)
    assert result.returncode == 1 and "cannot be recreated from here" in result.stderr


def test_what_is_not_committed_travels_and_what_is_ignored_does_not(cloud):
    subprocess.run(["git", "init", "-q"], cwd=cloud.repository, check=True)
    (cloud.repository / ".gitignore").write_text("/runs/\n/secret.txt\n")
    (cloud.repository / "secret.txt").touch()
    (cloud.repository / "my config.py").write_text("mine")
    (cloud.repository / "gone.py").touch()
    subprocess.run(["git", "add", "gone.py", "launch"], cwd=cloud.repository, check=True)
    (cloud.repository / "gone.py").unlink()
    cloud.create()
    assert cloud.train().returncode == 0
    copied = {path.name for path in (cloud.folder / "workers/0/ag_jax").iterdir()}
    assert "my config.py" in copied and "launch" in copied
    assert not copied & {"secret.txt", "gone.py", "runs", ".git"}


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


# --- logs, delete, dry runs ---


def test_logs(cloud):
    cloud.create()
    cloud.train()
    result = cloud.run("tpu_logs.sh", "one", "--lines=1")
    status, line = result.stdout.splitlines()
    assert status.startswith("ag_jax-worker worker-0 exited 0 ") and line == "trained"
    assert "--lines expects a whole number, got x" in cloud.run("tpu_logs.sh", "one", "--lines=x").stderr


@pytest.mark.parametrize(("answer", "deleted"), [("y\n", True), ("n\n", False), ("", False)])
def test_delete_asks(cloud, answer, deleted):
    cloud.create()
    result = cloud.run("tpu_delete.sh", "one", answer=answer)
    assert "Delete one (v5litepod-8, ACTIVE) in us-west4-a of project mine?" in result.stderr
    assert (cloud.folder / "tpu.json").exists() != deleted
    assert (cloud.repository / "runs/tpu/one/create").exists() != deleted
    assert result.returncode == (0 if deleted else 1)


def test_delete_of_a_suspended_one_without_asking(cloud):
    cloud.create("--spot")
    cloud.tpu(queue=["SUSPENDED"])
    assert cloud.run("tpu_delete.sh", "one", "--yes").returncode == 0
    assert cloud.verbs() == ["queued-resources delete"]
    assert "there is no TPU one" in cloud.run("tpu_delete.sh", "one", "--yes", *CREATE[2:]).stderr


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
def test_dry_run_prints_and_runs_nothing(cloud, script, arguments, wanted):
    position = arguments.index("--") if "--" in arguments else len(arguments)
    result = cloud.run(script, *arguments[:position], "--dry_run", *arguments[position:])
    assert result.returncode == 0, result.stderr
    lines = result.stdout.replace("\\ ", " ").splitlines()
    at = [next(number for number, line in enumerate(lines) if part in line) for part in wanted]
    assert at == sorted(at)
    assert cloud.calls() == [] and not (cloud.repository / "runs").exists()


def test_dry_run_is_quoted_so_that_a_shell_reads_the_same_words(cloud):
    result = cloud.run("tpu_run.sh", "one", "--zone=z", "--project=p", "--dry_run", "--", *TRAIN)
    line = next(line for line in result.stdout.splitlines() if "start\\ ATTEMPT" in line)
    read = words_of("gcloud", line)
    command = next(word for word in read if word.startswith("--command=")).partition("=")[2]
    assert words_of("bash", command) == ["ag_jax/launch/tpu_worker.sh", "start", "ATTEMPT", *TRAIN]


def test_dry_run_of_a_remembered_spot_tpu_shows_what_a_preemption_does(cloud):
    cloud.create("--spot")
    lines = cloud.train("--dry_run").stdout.splitlines()
    after = lines[lines.index("# after a preemption, before all of that again:") :]
    assert "queued-resources delete one" in after[1] and "queued-resources create one" in after[2]
    assert "--spot" in after[2]
    refused = cloud.run("tpu_run.sh", "one", "--dry_run", "--", "train", "--workdir=runs/first")
    assert refused.returncode == 1 and "is a spot TPU" in refused.stderr


@pytest.mark.parametrize("script", ["tpu_create.sh", "tpu_run.sh", "tpu_logs.sh", "tpu_delete.sh"])
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help(cloud, script, flag):
    result = cloud.run(script, flag)
    assert result.returncode == 0 and result.stdout.startswith(f"Usage: bash launch/{script} NAME")
    assert "--dry_run" in result.stdout and cloud.calls() == []
