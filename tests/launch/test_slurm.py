"""launch/slurm.sh with stand-ins for srun and scontrol; tests/launch/test_slurm_cluster.py runs it on a real SLURM."""

import pathlib
import subprocess

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
WORDS = ["train", "--config=a b.py:arm=ag", "--workdir=/shared/run"]
# The step that tries the command on every node ends with $TRIED, that of the command with $STATUS.
SRUN = r"""#!/bin/bash
while [ "${1#--}" != "$1" ]; do shift; done
if [ "$2" = --version ]; then exit "${TRIED:-0}"; fi
printf '%s\n' "${JAX_PLATFORMS-} ${SRUN_CPUS_PER_TASK-}" "$@" >called
exit "${STATUS:-0}"
"""
SCONTROL = '#!/bin/bash\necho "$*" >requeued\n'


@pytest.fixture
def checkout(tmp_path):
    for name, text in {"bin/srun": SRUN, "bin/scontrol": SCONTROL, ".venv/bin/ag-jax": ""}.items():
        (tmp_path / "a clone" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "a clone" / name).write_text(text)
        (tmp_path / "a clone" / name).chmod(0o755)
    return tmp_path / "a clone"


def run(checkout, **variables: str) -> subprocess.CompletedProcess:
    """Run the script as SLURM does on one node with one task; `variables` change what SLURM sets."""
    job = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n1", "SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS": "1"}
    environment = {"PATH": f"{checkout}/bin:/usr/bin:/bin"} | job | variables
    words = ["bash", REPOSITORY / "launch" / "slurm.sh", *WORDS]
    return subprocess.run(words, cwd=checkout, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("variables", "before", "added"),
    [
        ({}, " ", []),
        ({"SLURM_NTASKS": "2", "SLURM_CPUS_PER_TASK": "8"}, " 8", ["--hosts=auto"]),
        ({"SLURM_GPUS_ON_NODE": "4"}, "cuda ", []),
    ],
)
def test_the_command(checkout, variables, before, added):
    assert run(checkout, **variables).returncode == 0
    assert (checkout / "called").read_text().splitlines() == [before, f"{checkout}/.venv/bin/ag-jax", *WORDS, *added]


@pytest.mark.parametrize(
    ("variables", "status", "requeued"),
    [
        ({"STATUS": "1"}, 1, None),
        ({"STATUS": "2"}, 2, None),
        ({"STATUS": "130"}, 130, None),
        ({"STATUS": "75"}, 0, "requeue 12"),
        ({"STATUS": "143", "SLURM_RESTART_COUNT": "19"}, 0, "requeue 12"),
        ({"STATUS": "75", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3"}, 0, "requeue 12_3"),
        ({"STATUS": "75", "SLURM_RESTART_COUNT": "20"}, 75, None),
        ({"STATUS": "75", "SLURM_RESTART_COUNT": "20", "AG_JAX_REQUEUES": "21"}, 0, "requeue 12"),
        ({"TRIED": "2"}, 2, None),
    ],
)
def test_the_exit_status_decides_on_another_start(checkout, variables, status, requeued):
    assert run(checkout, **variables).returncode == status
    assert (checkout / "called").exists() == ("TRIED" not in variables)
    words = (checkout / "requeued").read_text().strip() if (checkout / "requeued").exists() else None
    assert words == requeued


def test_without_an_environment(checkout):
    (checkout / ".venv/bin/ag-jax").rename(checkout / "bin/ag-jax")
    failed = run(checkout)
    assert failed.returncode == 1 and f"{checkout}/.venv/bin/ag-jax" in failed.stderr
    assert not (checkout / "called").exists()
    assert run(checkout, AG_JAX_VENV=str(checkout)).returncode == 0
