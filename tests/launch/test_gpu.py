"""launch/gpu.sh, with a stand-in for nvidia-smi."""

import subprocess

import pytest

from tests.launch.test_launch import Machine

NVIDIA_SMI = r"""#!/bin/bash
case "$*" in
  *index,memory.used,name*) printf '%b' "$FAKE_GPUS" ;;
  -L) echo "GPU 0: NVIDIA H200 (UUID: GPU-1)" ;;
  *compute_cap*) echo 9.0 ;;
  *) echo "| NVIDIA-SMI 580.65.06   CUDA Version: ${FAKE_CUDA:-13.0}     |" ;;
esac
"""
FOUR = "".join(f"{number}, {used}, NVIDIA H200\\n" for number, used in enumerate((4, 4, 70000, 4)))


@pytest.fixture
def machine(tmp_path):
    made = Machine(tmp_path)
    made.command("nvidia-smi", NVIDIA_SMI)
    made.environment["FAKE_GPUS"] = FOUR
    return made


def shown(machine, *arguments, **environment):
    """The words of --dry_run."""
    result = machine.run("gpu.sh", "--dry_run", *arguments, **environment)
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


def test_all_gpus_by_default(machine):
    words = shown(machine, "train", "--workdir=x")
    assert words[:4] == [
        "env",
        "CUDA_VISIBLE_DEVICES=0\\,1\\,2\\,3",
        "CUDA_DEVICE_ORDER=PCI_BUS_ID",
        "JAX_PLATFORMS=cuda\\,cpu",
    ]
    assert words[4] == "AG_JAX_ACCELERATOR=cuda13"
    assert words[-3].endswith("local.sh") and words[-2:] == ["train", "--workdir=x"]
    assert machine.done() == []


def test_chosen_gpus(machine):
    assert "CUDA_VISIBLE_DEVICES=3\\,0" in shown(machine, "--gpus=3,0")
    assert "CUDA_VISIBLE_DEVICES=1" in shown(machine, CUDA_VISIBLE_DEVICES="1")
    assert "CUDA_VISIBLE_DEVICES=2" in shown(machine, "--gpus=2", CUDA_VISIBLE_DEVICES="1")


def test_it_runs_in_the_environment_that_it_names(machine):
    first = machine.run("gpu.sh", "--gpus=0", "train", "--a=b c")
    assert first.returncode == 0 and first.stdout.splitlines()[0] == "ag-jax train --a=b c"
    assert "running on 1 GPU(s)" in first.stderr and "jax[cuda13]" in machine.done()[1]
    command = machine.repository / ".venv/bin/ag-jax"
    command.write_text("#!/bin/bash\nenv | grep -e ^CUDA -e ^JAX | sort\n")
    assert machine.run("gpu.sh", "--gpus=0,3", "train").stdout.splitlines() == [
        "CUDA_DEVICE_ORDER=PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES=0,3",
        "JAX_PLATFORMS=cuda,cpu",
    ]


@pytest.mark.parametrize("nvidia_smi", [None, "#!/bin/bash\nexit 9\n"])
def test_a_dry_run_needs_no_gpu(machine, nvidia_smi):
    (machine.bin / "nvidia-smi").unlink()
    if nvidia_smi:
        machine.command("nvidia-smi", nvidia_smi)
    result = machine.run("gpu.sh", "--gpus=0,1", "--dry_run", "train", "--workdir=a b")
    assert result.returncode == 0 and "no GPU was found here" in result.stderr and machine.done() == []
    words = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {result.stdout}"], capture_output=True, text=True
    ).stdout.splitlines()
    assert words[:2] == ["env", "CUDA_VISIBLE_DEVICES=0,1"] and "AG_JAX_ACCELERATOR=cuda13" in words
    assert words[-3].endswith("launch/local.sh") and words[-2:] == ["train", "--workdir=a b"]
    assert not any(word.startswith("CUDA_VISIBLE_DEVICES") for word in shown(machine, "train"))


def test_a_busy_gpu_is_told(machine):
    result = machine.run("gpu.sh", "--dry_run", "--gpus=1,2")
    assert "another program uses 70000 MiB of GPU 2" in result.stderr and "of GPU 1" not in result.stderr


def test_the_choice_of_jax_can_be_overruled(machine):
    assert "AG_JAX_ACCELERATOR=cuda12" in shown(machine, AG_JAX_ACCELERATOR="cuda12")


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (("--gpus=0,4",), {}, "--gpus=0,4: there is no GPU 4 here; there are 0 1 2 3"),
        (("--gpus=1,1",), {}, "names GPU 1 twice"),
        (("--gpus=,",), {}, "names no GPU"),
        (("--gpus", "0"), {}, "write --gpus=0,1, in one word"),
        ((), {"FAKE_GPUS": ""}, "shows no GPU on this machine"),
        ((), {"FAKE_CUDA": "11.8"}, "jax cannot use these GPUs: the NVIDIA driver knows CUDA 11 only"),
        ((), {"AG_JAX_ACCELERATOR": "cpu"}, "AG_JAX_ACCELERATOR=cpu is no GPU build of jax"),
    ],
)
def test_refusals(machine, arguments, environment, message):
    result = machine.run("gpu.sh", *arguments, **environment)
    assert result.returncode == 1 and message in result.stderr
    assert machine.done() == []


def test_a_driver_that_does_not_run(machine):
    machine.command("nvidia-smi", "#!/bin/bash\necho 'NVIDIA-SMI has failed'\nexit 9\n")
    result = machine.run("gpu.sh")
    assert result.returncode == 1 and "nvidia-smi fails: NVIDIA-SMI has failed. Is the driver running?" in result.stderr


def test_help(machine):
    result = machine.run("gpu.sh", "--help")
    assert result.returncode == 0 and result.stdout.startswith("Usage: bash launch/gpu.sh")
