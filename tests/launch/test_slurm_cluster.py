"""launch/slurm.sh on a real SLURM of two nodes, which the tests start: jobs run the real command with tiny models."""

import pathlib
import shlex
import subprocess
import sys

import pytest

from tests import commands
from tests import results as stored
from tests.launch import slurm_cluster
from tests.launch.slurm_cluster import NODES, Cluster, wait_for
from tests.multihost.launch import SETTINGS

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
TEXT = "The state of the union is strong. We will build roads, and we will build them well. Thank you. "
STEPS = 40
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
LACKING = slurm_cluster.lacking()
pytestmark = [pytest.mark.exhaustive, pytest.mark.skipif(LACKING is not None, reason=str(LACKING))]

# The command of the checkout's environment. Its second process starts SECONDS_APART after the first.
AG_JAX = f"""#!/bin/bash
sleep "$((SLURM_PROCID * SECONDS_APART))"
exec {shlex.quote(sys.executable)} -m tests.launch.slow_steps "$@"
"""


class Site:
    """A cluster, and a checkout on its shared disk."""

    def __init__(self, cluster: Cluster, folder: pathlib.Path):
        self.cluster, self.folder = cluster, folder
        self.repository = folder / "a clone"
        program = self.repository / ".venv" / "bin" / "ag-jax"
        program.parent.mkdir(parents=True)
        program.write_text(AG_JAX)
        program.chmod(0o755)
        self.text = folder / "text"
        self.text.mkdir()
        for number in range(12):
            (self.text / f"{number}.txt").write_text(TEXT * 4 + f"It is number {number}.")
        self.settings = {"AG_JAX_CACHE": str(folder / "cache"), "JAX_NUM_CPU_DEVICES": "1"}

    def command(self, verb: str, workdir: str, **settings) -> list[str]:
        """Return the words of a command with a tiny config; the run is in the folder `workdir` of the shared disk."""
        every = SETTINGS | {"data.source": self.text, "training.steps": STEPS, "training.log_every": 5} | settings
        flags = [f"--config.{key}={value}" for key, value in every.items()]
        config = f"--config={REPOSITORY / 'configs' / 'quickstart.py'}"
        return [verb, config, *flags, f"--workdir={self.folder / workdir}"]

    def submit(self, *options: str, command: list[str], seconds_a_step: float = 0.0, seconds_apart: int = 0) -> "Job":
        """Submit launch/slurm.sh with options of sbatch; its steps and its processes may be slowed down."""
        slowed = {"SECONDS_A_STEP": str(seconds_a_step), "SECONDS_APART": str(seconds_apart)}
        environment = self.cluster.environment | self.settings | {"PYTHONPATH": str(REPOSITORY)} | slowed
        words = ["sbatch", "--parsable", *options, str(REPOSITORY / "launch" / "slurm.sh"), *command]
        done = subprocess.run(words, env=environment, cwd=self.repository, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return Job(self, done.stdout.strip())

    def undisturbed(self, verb: str, workdir: str, **settings) -> pathlib.Path:
        """Run a command on this machine, without SLURM; return its directory."""
        done = commands.run(self.command(verb, workdir, **settings), environment=self.settings)
        assert done.returncode == 0, done.stderr
        return self.folder / workdir


class Job:
    """A submitted job, or an array of jobs."""

    def __init__(self, site: Site, number: str):
        self.cluster, self.number, self._folder = site.cluster, number, site.repository

    @property
    def outputs(self) -> list[str]:
        """What each job of the array, or the single job, has printed so far."""
        return [path.read_text() for path in sorted(self._folder.glob(f"slurm-{self.number}[._]*"))]

    def wait_for(self, text: str, seconds: float = 120) -> None:
        wait_for(lambda: text in "".join(self.outputs) or self.is_over(), seconds, f"{text!r} in {self.outputs}")
        assert text in "".join(self.outputs)

    def is_over(self) -> bool:
        return all(job["JobState"] in ENDED for job in self.cluster.jobs(self.number))

    def ends(self, state: str = "COMPLETED", restarts: int = 0, seconds: float = 300) -> str:
        """Wait until the job, or every job of the array, has ended in a state; return the output."""
        wait_for(self.is_over, seconds, f"the end of job {self.number}: {self.outputs}")
        output = "".join(self.outputs)
        for job in self.cluster.jobs(self.number):
            assert (job["JobState"], int(job["Restarts"])) == (state, restarts), output
        return output


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
    return site.undisturbed("train", "undisturbed")


def assert_same_end(found: pathlib.Path, expected: pathlib.Path, relative: float = 1e-12) -> None:
    """Assert that two runs have the same loss after the last step."""
    losses = [stored.facts(directory)["validation_loss"] for directory in (found, expected)]
    assert losses[0] == pytest.approx(losses[1], rel=relative)


def test_two_nodes_train_one_model(site, expected):
    assert "on n[1-2], start 1" in site.submit("--nodes=2", command=site.command("train", "two")).ends()
    assert (site.folder / "two" / "hosts.json").exists()
    assert_same_end(site.folder / "two", expected, relative=1e-5)


def test_a_job_saves_before_its_time_limit_and_is_requeued(site, expected):
    """Once it has trained 10 steps, it gets a time limit that is two to three minutes away."""
    job = site.submit(command=site.command("train", "limited"), seconds_a_step=3.0)
    job.wait_for("step 10/")
    minutes = int(site.cluster.jobs(job.number)[0]["RunTime"].split(":")[1])
    site.cluster.run("scontrol", "update", f"JobId={job.number}", f"TimeLimit={minutes + 3}")
    job.wait_for("start 2,")
    site.cluster.run("scontrol", "update", f"JobId={job.number}", "TimeLimit=60")
    output = job.ends(restarts=1)
    assert "SIGTERM: stopped at step" in output and "limited: resumed from the checkpoint of step" in output
    assert_same_end(site.folder / "limited", expected)


@pytest.mark.parametrize("event", ["requeued", "preempted"])
def test_a_stopped_job_saves_and_resumes(site, expected, event):
    """It resumes from the checkpoint of SIGTERM, because training saves no other before its end."""
    command = site.command("train", event, **{"training.checkpoint_every": STEPS})
    job = site.submit("--nodes=2", command=command, seconds_a_step=0.5)
    job.wait_for("step 10/")
    if event == "requeued":
        site.cluster.run("scontrol", "requeue", job.number)
    else:
        site.cluster.run(
            "sbatch", "--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=true"
        )
    assert f"{event}: resumed from the checkpoint of step" in job.ends(restarts=1, seconds=400)
    assert_same_end(site.folder / event, expected, relative=1e-5)


def test_an_array_of_four_shares_a_comparison(site):
    """Each job is told to stop once, and requeues itself alone."""
    settings = {"comparison.seeds": "0,1", "training.milestones": "1.0", "training.steps": 10}
    alone = site.undisturbed("compare", "alone", **settings)
    job = site.submit("--array=1-4", command=site.command("compare", "shared", **settings), seconds_a_step=1.0)
    wait_for(lambda: len(job.outputs) == 4 and all("step 5/" in output for output in job.outputs), 120, "all four")
    site.cluster.run("scancel", "--signal=TERM", job.number)
    output = job.ends(restarts=1)
    assert output.count("the report is ") >= 1
    assert output.count("the report is ") + output.count("the last of them writes the report") == 4
    for run in ("plain-seed0", "ag-seed0", "plain-seed1", "ag-seed1"):
        assert output.count(f"{run}: step 10/10") == 1
        assert_same_end(site.folder / "shared" / run, alone / run)


def test_a_node_that_dies(site, expected):
    """A job on one node moves to the other; one on both waits for its return."""
    job = site.submit(command=site.command("train", "moved"), seconds_a_step=1.0)
    job.wait_for("step 20/")
    first = site.cluster.jobs(job.number)[0]["NodeList"]
    site.cluster.kill_node(first)
    (second,) = set(NODES) - {first}
    assert f"on {second}, start 2," in job.ends(restarts=1, seconds=400)
    assert_same_end(site.folder / "moved", expected)
    site.cluster.start_node(first)
    site.cluster.wait_until_idle()

    job = site.submit("--nodes=2", command=site.command("train", "lost"), seconds_a_step=1.0)
    job.wait_for("step 10/")
    site.cluster.kill_node("n2")
    wait_for(lambda: site.cluster.states()["n2"].startswith("down"), 90, "the node to be noticed as down")
    site.cluster.start_node("n2")
    # SLURM may also stop the second start, to end what it thinks the node still runs of the first.
    wait_for(job.is_over, 400, f"the end of job {job.number}")
    assert "lost: resumed from the checkpoint of step" in job.outputs[0]
    assert_same_end(site.folder / "lost", expected, relative=1e-5)


def test_a_cancelled_job_stays_cancelled(site):
    job = site.submit("--nodes=2", command=site.command("train", "cancelled"), seconds_a_step=0.5)
    job.wait_for("step 10/")
    site.cluster.run("scancel", job.number)
    job.ends("CANCELLED")
    site.cluster.wait_until_idle()
    job.ends("CANCELLED")


def test_an_error_fails_without_another_start(site):
    """The second process comes to its error after the first has ended."""
    command = site.command("train", "error", **{"data.source": "/missing"})
    site.submit("--nodes=2", command=command, seconds_apart=4).ends("FAILED", seconds=100)


def test_gpus_that_jax_does_not_find(site):
    site.submit("--gpus-per-node=1", command=site.command("train", "no_gpu")).ends("FAILED")
