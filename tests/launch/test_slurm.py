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


def test_scripts_of_jobs(slurm):
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
    # Several nodes have a process for each GPU, and find each other.
    directives, words = shown(slurm, "--nodes=2", "--gpus=4", "--", *slurm.train)
    assert (directives["nodes"], directives["ntasks-per-node"], directives["gres"]) == ("2", "4", "gpu:4")
    assert words == [*slurm.train, "--hosts=auto"] and directives["time"] == "24:00:00"
    directives, words = shown(slurm, "--nodes=2", "--", *slurm.train, "--hosts=2")
    assert directives["ntasks-per-node"] == "1" and "gres" not in directives and words == [*slurm.train, "--hosts=2"]
    # The jobs of an array share the work.
    options = ("--array=6", "--at_once=2", "--signal=600", "--name=mine")
    directives, words = shown(slurm, *options, "--", "compare", "--config=x", "--workdir=runs/x")
    assert directives["array"] == "1-6%2" and directives["signal"] == "B:USR1@600"
    assert directives["output"].endswith("/%x-%A_%a.out") and directives["job-name"] == "mine"
    assert words == ["compare", "--config=x", "--workdir=runs/x"]
    # Further options of sbatch come last.
    options = ("--sbatch=--partition=gpu", "--sbatch=--mem=64G", "--sbatch=--time=5", "--logs=/x y")
    directives, _ = shown(slurm, *options, "--", *slurm.train)
    assert (directives["partition"], directives["mem"], directives["time"]) == ("gpu", "64G", "5")
    assert directives["output"] == "/x y/%x-%j.out"
    for limit in ("3", "2:01", "0:02:01", "0-1", "1-0:1", "1-00:00:01", "99:00:00"):
        assert shown(slurm, f"--time={limit}", "--", *slurm.train)[0]["time"] == limit
    for verb in verbs.VERBS:
        assert shown(slurm, "--", verb, "--workdir=x")[1] == [verb, "--workdir=x"]
    for verb in ("compare", "finetune", "search", "prepare"):
        assert shown(slurm, "--array=4", "--", verb, "--workdir=x")[1] == [verb, "--workdir=x"]
    assert slurm.done() == [] and not (slurm.folder / "sbatch").exists() and not (slurm.repository / "runs").exists()
    assert not (slurm.folder.parent / "shared disk").exists(), "--dry_run writes nothing"


def test_the_environment_is_made_once_and_then_the_job_is_submitted(slurm):
    said = slurm.submit("--gpus=1", "--array=2", "--", "compare", *slurm.train[1:])
    (made, *installed) = slurm.done()
    assert made == f"venv {slurm.repository}/.venv-slurm-cuda13" and "jax[cuda13]" in installed[0]
    assert f"job 4711; its output: {slurm.repository}/runs/slurm/ag-jax-compare-4711_K.out" in said
    arguments = (slurm.folder / "sbatch").read_text().splitlines()
    assert arguments[0] == "--parsable" and len(arguments) == 2 and (slurm.repository / "runs/slurm").is_dir()
    mark = slurm.folder.parent / "shared disk/run/slurm.txt"
    script = (slurm.folder / "script").read_text()
    assert mark.exists() and f"mark={shlex.quote(str(mark))}".replace("'", "") in script.replace("\\ ", " ")
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
        (["prepare", "--config=x", "--config.data.cache_dir=/d"], {"AG_JAX_CACHE": "/c"}, "/d/slurm.txt"),
        (["evaluate", "--workdir=runs/x"], {}, ""),
    ],
)
def test_what_every_node_must_see(slurm, command, environment, mark):
    result = slurm.run("slurm.sh", "--dry_run", "--", *command, **environment)
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("mark=")]
    expected = mark.format(repository=slurm.repository, home=slurm.folder.parent)
    assert "".join(shlex.split(line.removeprefix("mark="))) == expected


# The arguments as one line, and what the message names.
ERRORS = {
    "--nodes=0": "--nodes",
    "--gpus=all": "--gpus",
    "--array=0": "--array",
    "--array=1-4": "--array",
    "--at_once=2": "--at_once",
    "--time=1d": "--time=1d",
    "--time=2": "--time=2 is 120 seconds",
    "--nodes 2": "--nodes=VALUE",
    "--node=2": "--node=2",
    "--sbatch=partition=gpu": "--sbatch=--partition=gpu",
    "--name=a/b": "--name=a/b",
    "--": "what shall run",
    "train --workdir=x": "--",
    "-- trian --workdir=x": "trian",
    "-- train --config=x": "--workdir=DIR",
    "-- train --workdir=gs://b": "gs://b",
    "--array=2 -- train --workdir=x": "ag-jax train",
    "--nodes=2 -- prepare --config=x": "--nodes=2",
}


@pytest.mark.parametrize("line", ERRORS)
def test_errors(slurm, line):
    more = [] if {"--", "train"} & set(line.split()) else ["--", *slurm.train]
    result = slurm.run("slurm.sh", *line.split(), *more)
    assert result.returncode == 1 and ERRORS[line] in result.stderr
    assert len(result.stderr.splitlines()) == 1 and result.stdout == ""
    assert slurm.done() == [] and not (slurm.folder / "sbatch").exists()


def test_jobs_that_cannot_be_submitted(slurm):
    result = slurm.run("slurm.sh", "--", *slurm.train, FAKE_SBATCH_FAILS="1")
    assert result.returncode == 1 and "invalid partition specified: gpu" in result.stderr
    ag_jax = slurm.repository / ".venv-slurm-cpu/bin/ag-jax"
    ag_jax.write_text('#!/bin/bash\necho "$*" >"$CLUSTER/asked"\necho "ag-jax: --config=x is missing" >&2\nexit 1\n')
    result = slurm.run("slurm.sh", "--array=4", "--", "search", *slurm.train[1:])
    assert result.returncode == 1 and "ag-jax: --config=x is missing" in result.stderr
    assert (slurm.folder / "asked").read_text().split()[-1] == "--print_config"
    programs = slurm.folder / "programs"  # those of this machine but SLURM's
    programs.mkdir()
    for program in os.scandir("/usr/bin"):
        if program.name not in ("sbatch", "srun", "scontrol", "scancel"):
            (programs / program.name).symlink_to(program.path)
    (slurm.bin / "sbatch").unlink()
    slurm.environment["PATH"] = f"{slurm.bin}:{programs}"
    result = slurm.run("slurm.sh", "--", *slurm.train)
    assert result.returncode == 1 and "no sbatch" in result.stderr and len(result.stderr.splitlines()) == 1
    assert not (slurm.folder / "sbatch").exists()
    assert slurm.run("slurm.sh", "--help").stdout.startswith("Usage: bash launch/slurm.sh")


# --- what a job does ---


def test_a_job_that_ends(slurm):
    slurm.submit("--array=4", "--nodes=2", "--", "compare", *slurm.train[1:])
    status, output = slurm.run_job(SLURM_ARRAY_TASK_ID="2", SLURM_ARRAY_JOB_ID="4711", SLURM_JOB_NUM_NODES="2")
    assert status == 0 and "job 4711_2, 4712 on n1, start 1" in output and "ag_jax: done" in output
    words = " ".join(["compare", *slurm.train[1:], "--hosts=auto"])
    command = slurm.repository / ".venv-slurm-cpu/bin/ag-jax"
    assert slurm.calls() == [f"srun --kill-on-bad-exit=1 {command} {words}", f"ag-jax {words}"]


@pytest.mark.parametrize("is_array", [False, True])
def test_a_job_near_its_time_limit_saves_and_is_requeued(slurm, is_array):
    """A job of an array requeues itself alone: its own number may be that of the array."""
    verb = ["--array=4", "--", "compare", *slurm.train[1:]] if is_array else ["--", *slurm.train]
    job = "4712_2" if is_array else "4712"
    slurm.submit("--requeues=2", *verb)
    slurm.fate("waits")
    for restarts, killed in (("0", True), ("1", True), ("2", False)):
        (slurm.folder / "pid").unlink(missing_ok=True)
        array = {"SLURM_ARRAY_JOB_ID": "4712", "SLURM_ARRAY_TASK_ID": "2"} if is_array else {}
        process = slurm.start_job(SLURM_RESTART_COUNT=restarts, **array)
        wait_until((slurm.folder / "pid").exists)
        time.sleep(0.1)  # until the number is written
        process.send_signal(signal.SIGUSR1)
        output = process.communicate(timeout=30)[0]
        assert process.returncode == (-signal.SIGKILL if killed else 1) and "saved" in output
        assert ("--requeues=2 is reached" in output) == (not killed)
        expected = [f"scancel --signal=TERM {job}", *([f"scontrol requeue {job}"] if killed else [])]
        assert slurm.calls()[2:] == expected


# What happens to the command, options, whether somebody cancelled the job; the exit status (SIGKILL: requeued), and
# whether a failure is noted. A command ends by the signal of a preemption (143) if it has nothing to save.
ENDS = {
    "an error": ("1", (), False, 1, False),
    "a wrong command line": ("2", (), False, 2, False),
    "a node": ("75", (), False, -signal.SIGKILL, True),
    "a node, too often": ("75", ("--retries=0",), False, 1, True),
    "a cancelled job": ("75", (), True, 1, True),
    "a signal": ("143", ("--retries=0",), False, -signal.SIGKILL, False),
    "a signal, too often": ("143", ("--requeues=0",), False, 1, False),
    "a signal after which all was saved": ("stopped", (), False, -signal.SIGKILL, False),
    "no end of nodes": ("unreachable", (), False, -signal.SIGKILL, True),
}


@pytest.mark.parametrize("case", ENDS)
def test_how_a_job_ends(slurm, case):
    fate, options, is_cancelled, expected, is_noted = ENDS[case]
    slurm.submit(*options, "--", *slurm.train)
    slurm.fate(fate)
    if fate == "unreachable":
        slurm.command("srun", "#!/bin/bash\necho 'srun: error: Task launch failed' >&2\nexit 1\n")
    if is_cancelled:
        (slurm.folder / "job").write_text(RUNNING.replace("RUNNING", "CANCELLED"))
    status, output = slurm.run_job()
    assert status == expected, output
    assert ("scontrol requeue 4712" in slurm.calls()) == (expected == -signal.SIGKILL)
    notes = [path.name for path in (slurm.repository / "runs/slurm").iterdir()]
    assert notes == ["4712.failures"] * is_noted


def test_failures_of_nodes_are_counted(slurm):
    slurm.submit("--retries=2", "--", *slurm.train)
    slurm.fate("75")
    assert [slurm.run_job()[0] for _ in range(3)] == [-signal.SIGKILL, -signal.SIGKILL, 1]
    assert len((slurm.repository / "runs/slurm/4712.failures").read_text().splitlines()) == 3


def test_a_node_that_sees_other_files(slurm):
    slurm.submit("--", *slurm.train)
    script = slurm.folder / "script"
    script.write_text(script.read_text().replace("patience=90", "patience=0"))
    mark = slurm.folder.parent / "shared disk/run/slurm.txt"
    mark.unlink()
    status, output = slurm.run_job()
    assert status == 1 and slurm.calls() == []
    (line,) = [line for line in output.splitlines() if "start 1" not in line]
    assert "node n1 " in line and str(mark) in line
    mark.write_text("here")
    python = slurm.repository / ".venv-slurm-cpu/bin/python"
    python.write_text("#!/bin/bash\necho 'no such interpreter' >&2\nexit 127\n")
    status, output = slurm.run_job()
    assert status == 1 and slurm.calls() == [] and "node n1 " in output and "no such interpreter" in output
    (slurm.repository / ".venv-slurm-cpu/bin/ag-jax").unlink()
    process = subprocess.run(
        ["bash", script], env=slurm.environment | JOB, cwd=slurm.root, capture_output=True, text=True
    )
    assert process.returncode == 1 and f"{slurm.repository}/.venv-slurm-cpu/bin/ag-jax" in process.stderr
