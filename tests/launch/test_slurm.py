"""launch/slurm.sh with stand-ins for SLURM's commands: what it writes, submits and rejects, and what a job does then.

`tests/launch/test_slurm_cluster.py` runs the same on a real SLURM.
"""

import os
import shlex
import signal
import subprocess
import time

import pytest

from ag_jax.command_line import verbs
from tests.launch.test_launch import Machine, wait_until

SBATCH = r"""#!/bin/bash
[ -z "${FAKE_SBATCH_FAILS:-}" ] || { echo "sbatch: error: invalid partition specified: gpu" >&2; exit 1; }
printf '%s\n' "$@" >"$CLUSTER/sbatch"
cp "${!#}" "$CLUSTER/script"
echo 4711
"""
SRUN = r"""#!/bin/bash
case $1 in
  --kill-on-bad-exit=1) echo "srun $*" >>"$CLUSTER/calls" ;;
esac
while [ "${1#--}" != "$1" ]; do shift; done
exec "$@"
"""
SCONTROL = r"""#!/bin/bash
case "$*" in
  "--oneliner show job 4712" | "--oneliner show job 4712_2") cat "$CLUSTER/job" ;;
  "requeue 4712" | "requeue 4712_2")
    echo "scontrol $*" >>"$CLUSTER/calls"
    kill -KILL $PPID
    ;;
esac
"""
SCANCEL = r"""#!/bin/bash
echo "scancel $*" >>"$CLUSTER/calls"
kill -TERM "$(cat "$CLUSTER/pid")"
"""
AG_JAX = r"""#!/bin/bash
echo "ag-jax $*" >>"$CLUSTER/calls"
case $(cat "$CLUSTER/fate") in
  waits)
    trap 'echo saved; exit 0' TERM
    echo $$ >"$CLUSTER/pid"
    while :; do sleep 0.02; done
    ;;
  stopped) echo "SIGTERM: stopped" >"$AG_JAX_STOPPED" ;;
  *) exit "$(cat "$CLUSTER/fate")" ;;
esac
"""
JOB = {"SLURM_JOB_ID": "4712", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "n1", "SLURMD_NODENAME": "n1"}
RUNNING = "JobId=4712 JobState=RUNNING Requeue=1\n"


class Slurm(Machine):
    """A machine with stand-ins for SLURM's commands."""

    def __init__(self, folder):
        super().__init__(folder)
        self.folder = folder / "cluster"
        self.folder.mkdir()
        for name, text in (("sbatch", SBATCH), ("srun", SRUN), ("scontrol", SCONTROL), ("scancel", SCANCEL)):
            self.command(name, text)
        self.environment["CLUSTER"] = str(self.folder)
        self.train = ["train", "--config=a b.py:arm=ag", f"--workdir={folder / 'shared disk' / 'run'}"]
        self.fate("0")
        (self.folder / "job").write_text(RUNNING)

    def fate(self, text):
        (self.folder / "fate").write_text(text)

    def submit(self, *arguments, **environment):
        """Submit a job; return what slurm.sh printed to stderr."""
        result = self.run("slurm.sh", *arguments, **environment)
        assert result.returncode == 0, result.stderr
        return result.stderr

    def start_job(self, **environment):
        """Start the submitted job, as SLURM would."""
        ag_jax = self.repository / ".venv-slurm-cpu/bin/ag-jax"
        ag_jax.write_text(AG_JAX)
        return subprocess.Popen(
            ["bash", str(self.folder / "script")],
            env=self.environment | JOB | environment,
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run_job(self, **environment):
        """Run the submitted job; return its exit status and what it printed. A requeued job is killed."""
        process = self.start_job(**environment)
        output = process.communicate(timeout=30)[0]
        return process.returncode, output

    def calls(self):
        """Return what was run since the last call, without the check of the nodes."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines


@pytest.fixture
def slurm(tmp_path):
    return Slurm(tmp_path)


def shown(slurm, *arguments, **environment):
    """Return the directives, as {name: value}, and the words of the command of the script that --dry_run prints."""
    result = slurm.run("slurm.sh", "--dry_run", *arguments, **environment)
    assert result.returncode == 0, result.stderr
    script = slurm.folder / "shown"
    script.write_text(result.stdout)
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert result.stdout.startswith("#!/bin/bash\n"), "sbatch takes nothing else"
    head, _, _ = result.stdout.partition("# --- The job")
    lines = [line.removeprefix("#SBATCH --") for line in head.splitlines() if line.startswith("#SBATCH")]
    assert len(lines) == head.count("#SBATCH"), "directives after a command are not read"
    assert head.index("#SBATCH") < head.index("repository=") and head.rindex("#SBATCH") < head.index("repository=")
    directives = {name: "".join(shlex.split(value)) for name, _, value in (line.partition("=") for line in lines)}
    print_words = head + 'printf "%s\\n" "${command[@]}"'
    words = subprocess.run(
        ["bash", "-c", print_words], env=JOB | {"SLURM_ARRAY_TASK_ID": "3"}, capture_output=True, text=True, check=True
    )
    return directives, words.stdout.splitlines()


def test_a_job_on_one_node(slurm):
    directives, words = shown(slurm, "--gpus=4", "--time=2-12", "--", *slurm.train)
    assert directives == {
        "job-name": "ag-jax-train",
        "nodes": "1",
        "ntasks-per-node": "1",
        "gres": "gpu:4",
        "time": "2-12",
        "signal": "B:USR1@120",
        "requeue": "",
        "open-mode": "append",
        "output": f"{slurm.repository}/runs/slurm/%x-%j.out",
    }
    assert words == slurm.train
    assert slurm.done() == [] and not (slurm.folder / "sbatch").exists() and not (slurm.repository / "runs").exists()
    assert not (slurm.folder.parent / "shared disk").exists(), "--dry_run writes nothing"


def test_several_nodes_have_a_process_for_each_gpu_and_find_each_other(slurm):
    directives, words = shown(slurm, "--nodes=2", "--gpus=4", "--", *slurm.train)
    assert (directives["nodes"], directives["ntasks-per-node"], directives["gres"]) == ("2", "4", "gpu:4")
    assert words == [*slurm.train, "--hosts=auto"] and directives["time"] == "24:00:00"
    directives, words = shown(slurm, "--nodes=2", "--", *slurm.train, "--hosts=2")
    assert directives["ntasks-per-node"] == "1" and "gres" not in directives and words == [*slurm.train, "--hosts=2"]


@pytest.mark.parametrize("verb", ["compare", "finetune", "search", "prepare"])
def test_the_jobs_of_an_array_share_the_work(slurm, verb):
    command = [verb, "--config=x", "--workdir=runs/x"][: 2 if verb == "prepare" else 3]
    directives, words = shown(slurm, "--array=6", "--at_once=2", "--signal=600", "--name=mine", "--", *command)
    assert directives["array"] == "1-6%2" and directives["signal"] == "B:USR1@600"
    assert directives["output"].endswith("/%x-%A_%a.out") and directives["job-name"] == "mine"
    assert words == [*command, "--part=3/6"]
    assert shown(slurm, "--array=1", "--", *command)[0]["array"] == "1-1"


def test_further_options_of_sbatch_come_last(slurm):
    options = ("--sbatch=--partition=gpu", "--sbatch=--mem=64G", "--sbatch=--time=5", "--logs=/x y")
    directives, _ = shown(slurm, *options, "--", *slurm.train)
    assert (directives["partition"], directives["mem"], directives["time"]) == ("gpu", "64G", "5")
    assert directives["output"] == "/x y/%x-%j.out"


def test_the_environment_is_made_once_and_then_the_job_is_submitted(slurm):
    said = slurm.submit("--gpus=1", "--array=2", "--", "compare", *slurm.train[1:])
    (made, *installed) = slurm.done()
    assert made == f"venv {slurm.repository}/.venv-slurm-cuda13" and "jax[cuda13]" in installed[0]
    assert f"submitted job 4711; its output: {slurm.repository}/runs/slurm/ag-jax-compare-4711_K.out" in said
    arguments = (slurm.folder / "sbatch").read_text().splitlines()
    assert arguments[0] == "--parsable" and len(arguments) == 2
    assert (slurm.repository / "runs/slurm").is_dir()
    mark = slurm.folder.parent / "shared disk/run/slurm.txt"
    assert mark.read_text().startswith("submitted by launch/slurm.sh on ")
    script = (slurm.folder / "script").read_text()
    assert f"mark={shlex.quote(str(mark))}".replace("'", "") in script.replace("\\ ", " ")
    assert "export JAX_PLATFORMS=cuda\\,cpu" in script
    slurm.submit("--gpus=1", "--", *slurm.train)
    assert slurm.done() == [], "the environment is there"
    slurm.submit("--gpus=1", "--", *slurm.train, AG_JAX_ACCELERATOR="cuda12")
    assert slurm.done()[0].endswith(".venv-slurm-cuda12")


@pytest.mark.parametrize(
    ("command", "environment", "mark"),
    [
        (["train", "--workdir=gs://bucket/run"], {}, ""),
        (["train", "--workdir=runs/x"], {}, "{repository}/runs/x/slurm.txt"),
        (["train", "--workdir=~/x/"], {}, "{home}/x/slurm.txt"),
        (["prepare", "--config=x"], {}, "{home}/.cache/ag_jax/slurm.txt"),
        (["prepare", "--config=x"], {"AG_JAX_CACHE": "/c"}, "/c/slurm.txt"),
        (["prepare", "--config=x", "--config.data.cache_dir=/d"], {"AG_JAX_CACHE": "/c"}, "/d/slurm.txt"),
        (["evaluate", "--workdir=runs/x"], {}, ""),
    ],
)
def test_what_every_node_must_see(slurm, command, environment, mark):
    result = slurm.run("slurm.sh", "--dry_run", "--", *command, **environment)
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("mark=")]
    expected = mark.format(repository=slurm.repository, home=slurm.folder.parent)
    assert "".join(shlex.split(line.removeprefix("mark="))) == expected


ERRORS = {
    "no nodes": (["--nodes=0"], "--nodes expects a whole number from 1 on, got 0"),
    "gpus": (["--gpus=all"], "--gpus expects a whole number from 0 on, got 'all'"),
    "no jobs": (["--array=0"], "--array expects a whole number from 1 on, got 0"),
    "an index": (["--array=1-4"], "--array expects a whole number from 1 on, got '1-4'"),
    "empty": (["--array="], "--array expects a whole number from 1 on, got ''"),
    "at once": (["--at_once=2"], "--at_once=2 limits the jobs of an array: give --array=N, too"),
    "time": (["--time=1d"], "--time=1d is no time limit: expected minutes, HOURS:MINUTES:SECONDS or DAYS-HOURS"),
    "short": (["--time=2"], "--time=2 is 120 seconds, but the job saves its checkpoint 120 seconds before that"),
    "words": (["--nodes", "2"], "write --nodes=VALUE, in one word"),
    "unknown": (["--node=2"], "unknown option --node=2"),
    "sbatch": (["--sbatch=partition=gpu"], "expected an option of sbatch, such as --sbatch=--partition=gpu"),
    "name": (["--name=a b"], "--name=a b: expected letters, digits"),
    "no verb": (["--"], "what shall run? Give it after --"),
    "no --": (["train", "--workdir=x"], "expected -- before the verb, such as: bash launch/slurm.sh --gpus=1 -- train"),
    "verb": (["--", "trian", "--workdir=x"], "expected one verb of train, finetune, compare, search, evaluate"),
    "no workdir": (["--", "train", "--config=x"], "ag-jax train needs --workdir=DIR on a disk that all nodes share"),
    "bucket": (["--", "train", "--workdir=gs://b"], "gs://b is no directory of a bucket"),
    "array": (["--array=2", "--", "train", "--workdir=x"], "ag-jax train does one thing, which jobs cannot share"),
    "part": (
        ["--array=2", "--", "search", "--workdir=x", "--part=1/3"],
        "--array=2 gives each job its --part: leave out --part=1/3",
    ),
    "nodes": (["--nodes=2", "--", "prepare", "--config=x"], "ag-jax prepare runs on one node: leave --nodes=2 out"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors(slurm, case):
    arguments, message = ERRORS[case]
    more = [] if "--" in arguments or "train" in arguments else ["--", *slurm.train]
    result = slurm.run("slurm.sh", *arguments, *more)
    assert result.returncode == 1 and message in result.stderr
    assert len(result.stderr.splitlines()) == 1 and result.stdout == ""
    assert slurm.done() == [] and not (slurm.folder / "sbatch").exists()


@pytest.mark.parametrize("limit", ["3", "2:01", "0:02:01", "0-1", "1-0:1", "1-00:00:01", "99:00:00"])
def test_time_limits_in_every_form(slurm, limit):
    assert shown(slurm, f"--time={limit}", "--", *slurm.train)[0]["time"] == limit


def test_every_verb_is_known(slurm):
    for verb in verbs.RUNNING:
        assert shown(slurm, "--", verb, "--workdir=x")[1] == [verb, "--workdir=x"]


def test_without_sbatch(slurm):
    (slurm.bin / "sbatch").unlink()
    slurm.environment["PATH"] = f"{slurm.bin}:{without_slurm(slurm)}"
    result = slurm.run("slurm.sh", "--", *slurm.train)
    assert result.returncode == 1 and "there is no sbatch here: call this where SLURM is" in result.stderr
    assert len(result.stderr.splitlines()) == 1 and slurm.done() == []
    assert shown(slurm, "--", *slurm.train)[1] == slurm.train


def without_slurm(slurm):
    """Return a folder with the programs of this machine but those of SLURM."""
    folder = slurm.folder / "programs"
    folder.mkdir()
    for place in ("/usr/bin", "/bin"):
        for program in os.scandir(place):
            if program.name not in ("sbatch", "srun", "scontrol", "scancel") and not (folder / program.name).exists():
                (folder / program.name).symlink_to(program.path)
    return folder


def test_a_job_that_sbatch_does_not_take(slurm):
    result = slurm.run("slurm.sh", "--", *slurm.train, FAKE_SBATCH_FAILS="1")
    assert result.returncode == 1 and "invalid partition specified: gpu" in result.stderr
    assert result.stderr.splitlines()[-1] == (
        "ag_jax: sbatch does not take the job (its message is above); nothing was submitted"
    )


def test_a_command_that_ag_jax_rejects_is_not_submitted(slurm):
    slurm.submit("--", *slurm.train)
    ag_jax = slurm.repository / ".venv-slurm-cpu/bin/ag-jax"
    ag_jax.write_text('#!/bin/bash\necho "$*" >"$CLUSTER/asked"\necho "ag-jax: --part=4/4 is too much" >&2\nexit 1\n')
    (slurm.folder / "sbatch").unlink()
    result = slurm.run("slurm.sh", "--array=4", "--", "search", *slurm.train[1:])
    assert result.returncode == 1 and "ag-jax: --part=4/4 is too much\nag_jax: ag-jax rejects this" in result.stderr
    assert (slurm.folder / "asked").read_text().split()[-2:] == ["--part=4/4", "--print_config"]
    assert not (slurm.folder / "sbatch").exists()


def test_help(slurm):
    result = slurm.run("slurm.sh", "--help")
    assert result.returncode == 0 and result.stdout.startswith("Usage: bash launch/slurm.sh")


# --- what a job does ---


def test_a_job_that_ends(slurm):
    slurm.submit("--array=4", "--nodes=2", "--", "compare", *slurm.train[1:])
    status, output = slurm.run_job(SLURM_ARRAY_TASK_ID="2", SLURM_ARRAY_JOB_ID="4711", SLURM_JOB_NUM_NODES="2")
    assert status == 0 and "job 4711_2, 4712 on n1, start 1" in output and "ag_jax: done" in output
    words = " ".join(["compare", *slurm.train[1:], "--hosts=auto", "--part=2/4"])
    command = slurm.repository / ".venv-slurm-cpu/bin/ag-jax"
    assert slurm.calls() == [f"srun --kill-on-bad-exit=1 {command} {words}", f"ag-jax {words}"]


def test_a_job_near_its_time_limit_saves_and_is_requeued(slurm):
    slurm.submit("--requeues=2", "--", *slurm.train)
    slurm.fate("waits")
    for restarts, killed in (("0", True), ("1", True), ("2", False)):
        (slurm.folder / "pid").unlink(missing_ok=True)
        job = slurm.start_job(SLURM_RESTART_COUNT=restarts)
        wait_until((slurm.folder / "pid").exists)
        time.sleep(0.1)  # until the number is written
        job.send_signal(signal.SIGUSR1)
        output = job.communicate(timeout=30)[0]
        assert job.returncode == (-signal.SIGKILL if killed else 1), output
        assert "the time limit is near: telling the command to save and stop" in output and "saved" in output
        assert ("--requeues=2 is reached; submitted again" in output) == (not killed)
        expected = ["scancel --signal=TERM 4712", *(["scontrol requeue 4712"] if killed else [])]
        assert slurm.calls()[2:] == expected


def test_the_last_job_of_an_array_requeues_itself_alone(slurm):
    """Its own number is that of the array, and alone stands for all of its jobs."""
    slurm.submit("--array=4", "--", "compare", *slurm.train[1:])
    slurm.fate("waits")
    job = slurm.start_job(SLURM_ARRAY_JOB_ID="4712", SLURM_ARRAY_TASK_ID="2")
    wait_until((slurm.folder / "pid").exists)
    time.sleep(0.1)  # until the number is written
    job.send_signal(signal.SIGUSR1)
    job.communicate(timeout=30)
    assert slurm.calls()[2:] == ["scancel --signal=TERM 4712_2", "scontrol requeue 4712_2"]


def test_a_command_that_ends_by_the_signal_of_a_preemption_is_no_failure(slurm):
    """As the preparation of text does, which has nothing to save."""
    slurm.submit("--requeues=1", "--retries=0", "--", *slurm.train)
    slurm.fate("143")
    status, output = slurm.run_job()
    assert status == -signal.SIGKILL and "a signal stopped the command: requeueing the job" in output
    status, output = slurm.run_job(SLURM_RESTART_COUNT="1")
    assert status == 1 and "a signal stopped the command, and --requeues=1 is reached" in output
    assert not [*(slurm.repository / "runs/slurm").iterdir()], "no failure is noted"


@pytest.mark.parametrize("status", [1, 2])
def test_an_error_that_would_come_again_ends_the_job(slurm, status):
    slurm.submit("--", *slurm.train)
    slurm.fate(str(status))
    ended, output = slurm.run_job()
    assert ended == status and f"failed with status {status}; the same would happen again" in output
    assert not any("requeue" in call for call in slurm.calls())


def test_a_failure_of_a_node_is_tried_again_but_not_for_ever(slurm):
    slurm.submit("--retries=2", "--", *slurm.train)
    slurm.fate("75")
    for number in (1, 2):
        status, output = slurm.run_job()
        assert status == -signal.SIGKILL and f"failed with status 75, {number} of at most 2 retries" in output
        assert slurm.calls()[-1] == "scontrol requeue 4712"
    status, output = slurm.run_job()
    assert status == 1 and "--retries=2 is reached" in output and "requeue" not in slurm.calls()[-1]
    assert len((slurm.repository / "runs/slurm/4712.failures").read_text().splitlines()) == 3


def test_a_cancelled_job_is_not_requeued(slurm):
    slurm.submit("--", *slurm.train)
    slurm.fate("75")
    (slurm.folder / "job").write_text(RUNNING.replace("RUNNING", "CANCELLED"))
    status, output = slurm.run_job()
    assert status == 1 and "cancelled or requeued by somebody else" in output
    assert not any("requeue" in call for call in slurm.calls())


def test_a_job_is_requeued_if_anybody_stopped_the_command_although_its_status_is_0(slurm):
    """As in a preemption with a grace time."""
    slurm.submit("--", *slurm.train)
    slurm.fate("stopped")
    status, output = slurm.run_job()
    assert status == -signal.SIGKILL and "a signal stopped the command: requeueing the job" in output
    assert slurm.calls()[-1] == "scontrol requeue 4712"
    assert [path.name for path in (slurm.repository / "runs/slurm").iterdir()] == [], "the next start begins anew"
    slurm.fate("0")
    assert slurm.run_job()[0] == 0


def test_a_node_that_sees_other_files(slurm):
    slurm.submit("--", *slurm.train)
    script = slurm.folder / "script"
    script.write_text(script.read_text().replace("patience=90", "patience=0"))
    mark = slurm.folder.parent / "shared disk/run/slurm.txt"
    mark.unlink()
    status, output = slurm.run_job()
    assert status == 1 and slurm.calls() == []
    (line,) = [line for line in output.splitlines() if "start 1" not in line]
    assert line.startswith(f"ag_jax: node n1 does not see {mark}, which is there on ")
    mark.write_text("here")
    python = slurm.repository / ".venv-slurm-cpu/bin/python"
    python.write_text("#!/bin/bash\necho 'no such interpreter' >&2\nexit 127\n")
    status, output = slurm.run_job()
    assert status == 1 and slurm.calls() == []
    assert f"node n1 cannot run {python}, made on" in output and "(no such interpreter): set PYTHON" in output
    (slurm.repository / ".venv-slurm-cpu").rename(slurm.repository / "gone")
    environment = slurm.repository / ".venv-slurm-cpu"
    process = subprocess.run(
        ["bash", str(script)], env=slurm.environment | JOB, cwd=slurm.root, capture_output=True, text=True
    )
    assert process.returncode == 1 and f"does not see {environment}/bin/ag-jax" in process.stderr


def test_nodes_that_cannot_be_reached_are_a_failure_of_nodes(slurm):
    slurm.submit("--", *slurm.train)
    slurm.command("srun", "#!/bin/bash\necho 'srun: error: Task launch failed' >&2\nexit 1\n")
    status, output = slurm.run_job()
    assert status == -signal.SIGKILL and "the nodes could not be checked (status 1), 1 of at most 3 retries" in output
