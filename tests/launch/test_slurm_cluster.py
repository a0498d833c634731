"""launch/slurm.sh on a real SLURM of two nodes, which the tests start: jobs run the real command with tiny models."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from ag_jax.training.metrics import read_metrics
from tests import commands
from tests import results as stored
from tests.launch import slurm_cluster
from tests.launch.slurm_cluster import NODES, Cluster, wait_for
from tests.multihost.launch import SETTINGS

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
TEXT = "The state of the union is strong. We will build roads, and we will build them well. Thank you. "
STEPS = 40
LACKING = slurm_cluster.lacking()
pytestmark = [pytest.mark.exhaustive, pytest.mark.skipif(LACKING is not None, reason=str(LACKING))]

# A Python that makes an environment at once, in which `ag-jax` is that of this checkout, slowed down.
PYTHON = r"""#!/bin/bash
case "$1 $2" in
  "-m venv")
    mkdir -p "$3/bin"
    touch "$3/pyvenv.cfg"
    cp "$0" "$3/bin/python"
    printf '#!/bin/bash\nexec %q -m tests.launch.slow_steps "$@"\n' {python!r} >"$3/bin/ag-jax"
    chmod +x "$3/bin/ag-jax"
    ;;
  "-m pip") ;;
  *) exec {python!r} "$@" ;;
esac
"""


class Site:
    """A cluster, and a checkout with the launch files on its shared disk."""

    def __init__(self, cluster: Cluster, folder: pathlib.Path):
        self.cluster, self.folder = cluster, folder
        self.repository = folder / "a clone"
        self.repository.mkdir()
        shutil.copytree(REPOSITORY / "launch", self.repository / "launch")
        for path in REPOSITORY.glob("requirements*.txt"):
            shutil.copy(path, self.repository)
        shutil.copy(REPOSITORY / "pyproject.toml", self.repository)
        python = folder / "python"
        python.write_text(PYTHON.format(python=sys.executable))
        python.chmod(0o755)
        self.text = folder / "text"
        self.text.mkdir()
        for number in range(12):
            (self.text / f"{number}.txt").write_text(TEXT * 4 + f"It is number {number}.")
        self.environment = cluster.environment | {
            "PYTHON": str(python),
            "PYTHONPATH": str(REPOSITORY),
            "AG_JAX_CACHE": str(folder / "cache"),
            "JAX_NUM_CPU_DEVICES": "1",
        }

    def command(self, verb: str, workdir: str, **settings) -> list[str]:
        """Return the words of a command with a tiny config; the run is in the folder `workdir` of the shared disk."""
        every = SETTINGS | {"data.source": self.text, "training.steps": STEPS, "training.log_every": 5} | settings
        flags = [f"--config.{key}={value}" for key, value in every.items()]
        return [
            verb,
            f"--config={REPOSITORY / 'configs' / 'quickstart.py'}",
            *flags,
            f"--workdir={self.folder / workdir}",
        ]

    def submit(self, *options: str, command: list[str], seconds_a_step: float = 0.0, patience: int = 90) -> "Job":
        """Submit a command by launch/slurm.sh.

        seconds_a_step: how long each step takes at least.
        patience: seconds in which a file must show on every node.
        """
        script = self.repository / "launch" / "slurm.sh"
        text = (REPOSITORY / "launch" / "slurm.sh").read_text()
        script.write_text(text.replace("patience=90", f"patience={patience}"))
        environment = self.environment | {"SECONDS_A_STEP": str(seconds_a_step)}
        words = ["bash", str(script), *options, "--", *command]
        done = subprocess.run(words, env=environment, cwd=self.folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return Job(self, re.search(r"submitted job (\d+); its output: (.*)", done.stderr))

    def undisturbed(self, workdir: str, **settings) -> pathlib.Path:
        """Train in this machine, without SLURM; return the run directory."""
        environment = {"JAX_NUM_CPU_DEVICES": "1", "AG_JAX_CACHE": str(self.folder / "cache")}
        done = commands.run(self.command("train", workdir, **settings), environment=environment)
        assert done.returncode == 0, done.stderr
        return self.folder / workdir


class Job:
    """A submitted job; `output` is what it has printed so far."""

    def __init__(self, site: Site, said: re.Match):
        self.cluster, self.number, self._output = site.cluster, said[1], said[2]

    @property
    def output(self) -> str:
        found = sorted(pathlib.Path(self._output).parent.glob(pathlib.Path(self._output).name.replace("_K", "_*")))
        return "".join(path.read_text() for path in found)

    def wait_for(self, text: str, seconds: float = 120) -> None:
        wait_for(lambda: text in self.output or self._is_over(), seconds, f"{text!r} in:\n{self.output}")
        assert text in self.output

    def _is_over(self) -> bool:
        return all(job["JobState"] in ("COMPLETED", "FAILED", "CANCELLED") for job in self.cluster.jobs(self.number))

    def ends(self, state: str = "COMPLETED", seconds: float = 300) -> str:
        """Wait until the job, or every task of the array, has ended in a state; return its output."""
        try:
            found = self.cluster.wait(self.number, seconds, "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.cluster.run('squeue')}\n{self.output}") from error
        assert {job["JobState"] for job in found} == {state}, self.output
        return self.output


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with Cluster() as cluster:
        yield Site(cluster, tmp_path_factory.mktemp("shared disk"))


@pytest.fixture(autouse=True)
def no_jobs_left(site):
    """End the jobs of a test that fails, so that the next one finds idle nodes."""
    yield
    site.cluster.run("scancel", "--user=root")
    wait_for(lambda: not site.cluster.run("squeue", "--noheader"), 60, "the end of all jobs")


@pytest.fixture(scope="module")
def expected(site):
    return site.undisturbed("undisturbed")


def rows(directory: pathlib.Path) -> list[dict]:
    """Return the rows of metrics.jsonl without the times."""
    timed = ("seconds", "per_second", "utilisation", "wait")
    return [
        {key: value for key, value in row.items() if not any(word in key for word in timed)}
        for row in read_metrics(directory)
    ]


def assert_same_end(found: pathlib.Path, expected: pathlib.Path, relative: float = 0) -> None:
    """Assert that two runs have the same rows, and the same losses in their summaries."""
    ours, theirs = rows(found), rows(expected)
    assert [(row["split"], row["step"]) for row in ours] == [(row["split"], row["step"]) for row in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert one.keys() == other.keys()
        for key, value in one.items():
            if isinstance(value, (int, float)):
                np.testing.assert_allclose(value, other[key], rtol=relative, err_msg=f"{key} of step {one['step']}")
    summaries = [stored.facts(directory) for directory in (found, expected)]
    assert summaries[0]["validation_loss"] == pytest.approx(summaries[1]["validation_loss"], rel=max(relative, 1e-12))


def test_two_nodes_train_one_model(site, expected):
    job = site.submit("--nodes=2", "--time=10", command=site.command("train", "two"))
    output = job.ends()
    assert "2 of 2 hosts joined" in output and "on n[1-2], start 1" in output and "done" in output.splitlines()[-1]
    assert_same_end(site.folder / "two", expected, relative=1e-5)


def test_a_job_saves_before_its_time_limit_and_is_requeued(site, expected):
    """Once it has trained 10 steps, it gets a time limit that is one to two minutes away."""
    options = ("--time=60", "--signal=50")
    job = site.submit(*options, command=site.command("train", "limited"), seconds_a_step=3.0)
    job.wait_for("step 10/")
    hours, minutes, _ = site.cluster.jobs(job.number)[0]["RunTime"].split(":")
    limit = 60 * int(hours) + int(minutes) + 2
    site.cluster.run("scontrol", "update", f"JobId={job.number}", f"TimeLimit={limit}")
    output = job.ends(seconds=600)
    assert "the time limit is near" in output and "DUE TO TIME LIMIT" not in output
    assert "start 2," in output and "limited: resumed from the checkpoint of step" in output
    assert "SIGTERM: stopped at step" in output
    assert_same_end(site.folder / "limited", expected)


def test_an_array_of_four_shares_a_comparison(site):
    settings = {"comparison.seeds": "0,1", "training.milestones": "1.0", "training.steps": 10}
    alone = commands.run(
        site.command("compare", "alone", **settings),
        environment={"JAX_NUM_CPU_DEVICES": "1", "AG_JAX_CACHE": str(site.folder / "cache")},
    )
    assert alone.returncode == 0, alone.stderr
    job = site.submit("--array=4", "--time=10", command=site.command("compare", "shared", **settings))
    output = job.ends()
    assert output.count("the report is ") >= 1
    assert output.count("the report is ") + output.count("the last of them writes the report") == 4
    logs = [next(pathlib.Path(job._output).parent.glob(f"*-{job.number}_{number}.out")) for number in range(1, 5)]
    trained = [run for log in logs for run in re.findall(r"^(\S+): step 10/10", log.read_text(), re.MULTILINE)]
    for run in ("mlm-seed0", "ag-seed0", "mlm-seed1", "ag-seed1"):
        assert trained.count(run) == 1
        assert_same_end(site.folder / "shared" / run, site.folder / "alone" / run)
    reports = [json.loads((site.folder / name / "report.json").read_text()) for name in ("shared", "alone")]
    losses = [
        {arm: {key: value for key, value in of.items() if "loss" in key} for arm, of in report["arms"].items()}
        for report in reports
    ]
    assert losses[0] == losses[1]


def test_a_node_that_dies(site, expected):
    """A job on one node moves to the other; one on both waits for its return."""
    job = site.submit("--time=10", command=site.command("train", "moved"), seconds_a_step=1.0)
    job.wait_for("step 20/")
    (first,) = {one["NodeList"] for one in site.cluster.jobs(job.number)}
    site.cluster.kill_node(first)
    output = job.ends(seconds=400)
    (second,) = set(NODES) - {first}
    assert f"on {first}, start 1," in output and f"on {second}, start 2," in output
    assert_same_end(site.folder / "moved", expected)
    site.cluster.start_node(first)
    wait_for(lambda: set(site.cluster.states().values()) == {"idle"}, 60, "the node to return")

    job = site.submit("--nodes=2", "--time=10", command=site.command("train", "lost"), seconds_a_step=1.0)
    job.wait_for("step 10/")
    site.cluster.kill_node("n2")
    wait_for(lambda: site.cluster.states()["n2"].startswith("down"), 90, "the node to be noticed as down")
    site.cluster.start_node("n2")
    output = job.ends(seconds=400)
    # SLURM may also stop the second start, to end what it thinks the node still runs of the first.
    assert "lost: resumed from the checkpoint of step" in output and "on n[1-2], start 2," in output
    assert_same_end(site.folder / "lost", expected, relative=1e-5)


def test_nodes_without_a_shared_disk(site):
    (site.folder / "local").mkdir()
    site.cluster.kill_node("n2")
    site.cluster.start_node("n2", private=[site.folder / "local"])
    try:
        wait_for(lambda: set(site.cluster.states().values()) == {"idle"}, 60, "the node to return")
        command = site.command("train", "local/run")
        output = site.submit("--nodes=2", "--time=10", command=command, patience=2).ends("FAILED")
        lines = [line for line in output.splitlines() if "does not see" in line]
        assert len(lines) == 1 and "ag_jax: node n2 does not see" in lines[0], output
        assert f"{site.folder}/local/run/slurm.txt, which is there on" in lines[0]
        assert "hosts joined" not in output and os.listdir(site.folder / "local" / "run") == ["slurm.txt"]
    finally:
        site.cluster.kill_node("n2")
        site.cluster.start_node("n2")
        wait_for(lambda: set(site.cluster.states().values()) == {"idle"}, 60, "the node to return")
