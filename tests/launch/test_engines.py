"""launch/sky.yaml and launch/jobset.yaml, checked by SkyPilot's own code and by the schema of JobSet.

Both checkers depend on packages that the program must not need, so uv installs them into environments of their own.
"""

import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest
import yaml

from ag_jax.command_line import parser

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKYPILOT, JOBSET = "skypilot[gcp]==0.14.1", "kubeflow-trainer-api==2.3.0"


def run_with(package: str, home: pathlib.Path, *words: str, given: object) -> object:
    """Run a Python program with a package; it reads the file `given` of its home directory and writes `result`."""
    if not (uv := shutil.which("uv")):
        pytest.skip("uv is not installed")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PATH": f"{home}/bin:{environment['PATH']}", "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    options = {"env": environment, "cwd": ROOT, "capture_output": True, "text": True}
    prefix = [uv, "run", "--quiet", "--no-project", "--python", sys.executable, "--with", package, "--"]
    if (installation := subprocess.run([*prefix, "true"], **options)).returncode:
        pytest.skip(f"uv cannot install {package}: {installation.stderr[-200:]}")
    (home / "given").write_text(json.dumps(given))
    run = subprocess.run([*prefix, "env", f"HOME={home}", "python", *words], **options)
    assert run.returncode == 0, run.stderr[-4000:]
    return json.loads((home / "result").read_text())


def stand_in(path: pathlib.Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


# --- SkyPilot ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dry_runs(tmp_path_factory) -> dict[str, dict]:
    """The machine and the scripts that SkyPilot finds for each command of docs/launch.md, by the command's --name."""
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "docs" / "launch.md").read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", "").splitlines() if line.startswith("sky ")]
    commands = [shlex.split(line, comments=True)[1:] for line in lines]
    names = [next((word[7:] for word in words if word.startswith("--name=")), " ".join(words)) for words in commands]
    quotes = """COMMAND=train --config="a b" --workdir='$HOME *'"""
    commands.append(["jobs", "launch", "launch/sky.yaml", "--gpus=L4:1", "--env", quotes])
    home = tmp_path_factory.mktemp("home")
    stand_in(home / "bin" / "rsync", "")  # SkyPilot asks for its version; a dry run copies nothing
    program = pathlib.Path(__file__).with_name("skypilot_dry_run.py")
    found = run_with(SKYPILOT, home, str(program), given=commands)
    return dict(zip([*names, "quotes"], found, strict=True))


@pytest.mark.parametrize(
    ("name", "machine", "on_all_hosts"),
    [
        ("table9", r"TPU-VM\[Spot\], {'tpu-v5litepod-8'", False),
        ("table9-gpu", r"a3-highgpu-4g\[Spot\]", False),
        ("slice", r"TPU-VM\[Spot\], {'tpu-v5litepod-16'", True),
        ("nodes", "a3-highgpu-8g", False),
        ("search", r"g2-standard-4\[Spot\]", False),
        ("k8s", "Kubernetes.*'L4': 1", False),
        ("slurm", "Slurm.*'L4': 1", False),
    ],
)
def test_skypilot_finds_machines_for_the_commands_of_the_page(dry_runs, name, machine, on_all_hosts):
    found = dry_runs[name]
    assert re.search(machine, found["machine"]) and found["run_on_all_hosts"] == on_all_hosts
    assert found["recovery"]["recover_on_exit_codes"] == [75]


def run_script(script: str, home: pathlib.Path, *, nodes=1, rank=0, gpus=4, **variables) -> subprocess.CompletedProcess:
    """Run a script of launch/sky.yaml, as SkyPilot wraps it, with stand-ins for ag-jax and launch/setup.sh."""
    checkout = home / "sky_workdir"
    stand_in(checkout / ".venv" / "bin" / "ag-jax", 'printf "<%s>" "$@"; eval "$ENDS"')
    stand_in(checkout / "launch" / "setup.sh", 'set_up() { echo "set_up $*"; [ -z "$FAILS" ] || exit 1; }')
    addresses = "\n".join(f"10.0.0.{2 + index}" for index in range(nodes))
    of_skypilot = {"NUM_NODES": nodes, "NODE_RANK": rank, "NODE_IPS": addresses, "NUM_GPUS_PER_NODE": gpus}
    variables |= {f"SKYPILOT_{name}": str(value) for name, value in of_skypilot.items()}
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin"} | variables
    (home / "script").write_text(script)
    options = {"capture_output": True, "text": True, "start_new_session": True}
    return subprocess.run(["bash", "-i", home / "script"], env=environment, stdin=subprocess.DEVNULL, **options)


@pytest.mark.parametrize(
    ("nodes", "rank", "gpus", "hosts"),
    [
        (1, 0, 0, []),
        (1, 0, 4, []),
        (2, 0, 8, ["--coordinator=10.0.0.2:8482", "--hosts=2", "--host=0"]),
        (2, 1, 8, ["--coordinator=10.0.0.2:8482", "--hosts=2", "--host=1"]),
        (4, 3, 0, ["--hosts=auto"]),  # a TPU slice
    ],
)
def test_skypilot_runs_the_command_with_the_flags_for_its_hosts(dry_runs, tmp_path, nodes, rank, gpus, hosts):
    run = run_script(dry_runs["quotes"]["run"], tmp_path, nodes=nodes, rank=rank, gpus=gpus)
    words = ["train", "--config=a b", "--workdir=$HOME *", *hosts]
    assert run.stdout == "".join(f"<{word}>" for word in words), run.stderr
    parser.parse(["train", "--config=quickstart:arm=ag", *words[2:]])


@pytest.mark.parametrize(
    ("ends", "status"),
    [
        ("exit 0", 0),
        ("exit 1", 1),
        ("exit 75", 75),
        ("trap 'exit 75' TERM; kill -TERM 0; sleep 9", 75),  # a machine that shuts down signals all processes
    ],
)
def test_skypilot_gets_the_exit_status_of_the_command(dry_runs, tmp_path, ends, status):
    assert run_script(dry_runs["slurm"]["run"], tmp_path, nodes=2, ENDS=ends).returncode == status


def test_the_setup_ends_where_an_installation_fails(dry_runs, tmp_path):
    run = run_script(dry_runs["slurm"]["setup"], tmp_path)
    assert run.stdout.splitlines() == ["set_up base"] and run.returncode == 0
    run = run_script(dry_runs["slurm"]["setup"], tmp_path, FAILS="yes")
    assert run.returncode == 1


# --- JobSet ------------------------------------------------------------------------------------------


def jobset(accelerator: str) -> dict:
    """The file as it is, for TPUs, or changed for GPUs as its comments say."""
    lines = (ROOT / "launch" / "jobset.yaml").read_text().splitlines()
    if accelerator == "GPU":
        lines = [re.sub(r"^( *)# (.* # GPU)$", r"\1\2", line) for line in lines if not line.endswith("# TPU")]
    return yaml.safe_load("\n".join(lines))


@pytest.mark.parametrize("accelerator", ["TPU", "GPU"])
def test_the_jobset_has_the_fields_of_its_schema(accelerator, tmp_path):
    """The classes of the schema leave out fields that they do not know, so the comparison finds these."""
    kind = "kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet as JobSet"
    program = f"import json, pathlib; from {kind}; home = pathlib.Path.home(); given = (home / 'given').read_text()"
    program += "; (home / 'result').write_text(JobSet.from_json(given).to_json())"
    assert run_with(JOBSET, tmp_path, "-c", program, given=jobset(accelerator)) == jobset(accelerator)


@pytest.mark.parametrize("accelerator", ["TPU", "GPU"])
def test_hosts_chips_and_command_of_the_jobset_agree(accelerator):
    spec = jobset(accelerator)["spec"]
    job = spec["replicatedJobs"][0]["template"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    ((resource, chips),) = container["resources"]["limits"].items()
    flags = parser.parse([word.replace("$(JOB_COMPLETION_INDEX)", "3") for word in container["args"]])
    assert job["parallelism"] == job["completions"] and job["completionMode"] == "Indexed"
    if accelerator == "TPU":
        columns, rows = job["template"]["spec"]["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x")
        assert (resource, int(columns) * int(rows)) == ("google.com/tpu", job["parallelism"] * chips)
        assert flags.hosts == "auto"
    else:
        assert (resource, flags.hosts) == ("nvidia.com/gpu", str(job["parallelism"]))
        assert spec["coordinator"]["replicatedJob"] == spec["replicatedJobs"][0]["name"]
        variables = {variable["name"] for variable in container["env"]} | {"JOB_COMPLETION_INDEX"}  # the Job sets this
        assert set(re.findall(r"\$\((\w+)\)", " ".join(container["args"]))) == variables


@pytest.mark.parametrize(("status", "restarts"), [(1, False), (2, False), (75, True), (134, True), (137, True)])
def test_the_jobset_restarts_after_what_would_not_come_again(status, restarts):
    spec = jobset("TPU")["spec"]
    job = spec["replicatedJobs"][0]["template"]["spec"]
    (rule,) = job["podFailurePolicy"]["rules"]
    fails = rule["action"] == "FailJob" and status in rule["onExitCodes"]["values"]
    reason = "PodFailurePolicy" if fails else "BackoffLimitExceeded"  # as Kubernetes names them
    actions = [rule["action"] for rule in spec["failurePolicy"]["rules"] if reason in rule["onJobFailureReasons"]]
    assert actions == ([] if restarts else ["FailJobSet"])  # without a rule, JobSet restarts all hosts
    assert job["backoffLimit"] == 0 and spec["failurePolicy"]["maxRestarts"] > 0
