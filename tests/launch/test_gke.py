"""launch/gke.sh, with a stand-in for kubectl; its manifests against published schemas and rules; the Dockerfile."""

import fnmatch
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
import yaml

from ag_jax import cli
from ag_jax.command_line import verbs
from ag_jax.distributed import hosts, parts
from ag_jax.distributed.rollcall import HostPosition
from ag_jax.planning import topology
from ag_jax.training.metrics import read_metrics
from tests.cases import some
from tests.launch import jobset, kubernetes_api
from tests.launch.jobset import Pod
from tests.multihost import launch

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
STAND_INS = pathlib.Path(__file__).resolve().parent / "stand_ins"
TRAIN = ("train", "--config=quickstart:arm=ag", "--workdir=gs://bucket/run")
TPU = ("--image=registry/ag_jax:tpu", "--accelerator=v5litepod-16")
GPU = ("--image=registry/ag_jax:cuda13", "--gpus=8", "--nodes=2")
SEARCH = ("search", "--config=quickstart_search", "--workdir=gs://bucket/search")
PREPARE = ("prepare", "--config=ag/table9_tpu_gpu", "--config.data.cache_dir=gs://bucket/cache")
ARRAY = ("--image=registry/ag_jax:cuda13", "--gpus=1", "--array=4")


class Cluster:
    """A copy of the launch files, and a kubectl of its own."""

    def __init__(self, folder: pathlib.Path):
        self.repository, self.folder, self.bin = folder / "a clone", folder / "cluster", folder / "bin"
        for made in (self.repository, self.folder, self.bin):
            made.mkdir()
        shutil.copytree(REPOSITORY / "launch", self.repository / "launch")
        (self.bin / "kubectl").symlink_to(STAND_INS / "kubectl")
        self.path = f"{self.bin}:/usr/bin:/bin"

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            ["bash", str(self.repository / "launch/gke.sh"), *arguments],
            env={"PATH": self.path, "CLUSTER": str(self.folder), "HOME": str(self.folder)} | environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def text(self, *options: str, command=TRAIN, name="one") -> str:
        """What --dry_run prints."""
        result = self.run(name, *options, "--dry_run", "--", *command)
        assert result.returncode == 0, result.stderr
        assert self.calls() == []
        return result.stdout

    def manifest(self, *options: str, command=TRAIN, name="one") -> dict:
        """The same, parsed and checked."""
        made = yaml.safe_load(self.text(*options, command=command, name=name))
        jobset.check(made)
        return made

    def calls(self) -> list[str]:
        """The command lines of kubectl since the last call."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines

    def put(self, file: str, text: str) -> None:
        (self.folder / file).write_text(text)


@pytest.fixture
def cluster(tmp_path):
    return Cluster(tmp_path)


def job_of(manifest: dict) -> dict:
    (replicated,) = manifest["spec"]["replicatedJobs"]
    return replicated["template"]["spec"]


def pod_of(manifest: dict) -> dict:
    return job_of(manifest)["template"]["spec"]


def container_of(manifest: dict) -> dict:
    (container,) = pod_of(manifest)["containers"]
    return container


# --- TPU slices ---

LABELS = {"v4": "tpu-v4-podslice", "v5e": "tpu-v5-lite-podslice", "v5p": "tpu-v5p-slice", "v6e": "tpu-v6e-slice"}
MACHINES = {"v4": "ct4p-hightpu", "v5e": "ct5lp-hightpu", "v5p": "ct5p-hightpu", "v6e": "ct6e-standard"}


@pytest.mark.parametrize("chip", some(LABELS, "v4", "v5e"))
def test_a_slice_is_that_of_the_plan(cluster, chip):
    """`ag-jax plan` and the script know the same slices by the same names."""
    for shape in topology.SHAPES[chip]:
        planned = topology.parse(f"{chip}:{shape}")
        result = cluster.run("one", TPU[0], f"--accelerator={planned.accelerator}", "--dry_run", "--", *TRAIN)
        assert result.returncode == 0, result.stderr
        made = yaml.safe_load(result.stdout)
        assert pod_of(made)["nodeSelector"] == {
            "cloud.google.com/gke-tpu-accelerator": LABELS[chip],
            "cloud.google.com/gke-tpu-topology": shape,
        }
        limits, job = container_of(made)["resources"]["limits"], job_of(made)
        assert set(limits) == {"google.com/tpu"} and limits["google.com/tpu"] in (1, 4, 8)
        assert job["completions"] == job["parallelism"]
        assert limits["google.com/tpu"] * job["completions"] == planned.chips
        # Several hosts have four chips each; a host of v5e and v6e may have eight.
        assert limits["google.com/tpu"] == (4 if job["completions"] > 1 else planned.chips)
        assert (job["completions"] > 1) == (planned.chips > (4 if chip in ("v4", "v5p") else 8))
        assert f"nodes of type {MACHINES[chip]}-{limits['google.com/tpu']}t" in result.stderr


def test_a_slice_of_an_unusual_shape(cluster):
    made = cluster.manifest(TPU[0], "--accelerator=v5p-384", "--topology=4x4x12")
    assert pod_of(made)["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "4x4x12"
    assert job_of(made)["completions"] == 48


def test_several_slices_are_jobs_of_their_own(cluster):
    one, two = cluster.manifest(*TPU), cluster.manifest(*TPU, "--slices=2")
    assert [made["spec"]["replicatedJobs"][0]["replicas"] for made in (one, two)] == [1, 2]
    assert job_of(one)["completions"] == job_of(two)["completions"] == 4
    # A slice is a node pool; no two jobs may share one.
    placement = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}
    assert one["metadata"]["annotations"] == two["metadata"]["annotations"] == placement
    assert "annotations" not in cluster.manifest(TPU[0], "--accelerator=v5litepod-8")["metadata"]
    assert two["spec"]["failurePolicy"]["restartStrategy"] == "BlockingRecreate"
    assert pod_of(two)["hostNetwork"] is True and pod_of(two)["dnsPolicy"] == "ClusterFirstWithHostNet"


# --- Schemas ---

KINDS = {
    "slice": TPU,
    "one host": (TPU[0], "--accelerator=v6e-8", "--spot"),
    "slices": (*TPU, "--slices=3", "--spot", "--service_account=trainer", "--grace=600", "--restarts=0"),
    "slice with a volume": (*TPU, "--volume=runs:/runs"),
    "nodes": GPU,
    "one node": (GPU[0], "--gpus=1", "--service_account=trainer"),
    "array": ARRAY,
    "array of slices": (TPU[0], "--accelerator=v5litepod-8", "--array=2", "--spot", "--restarts=0"),
    "nodes with everything": (*GPU, "--gpu_type=nvidia-h100-80gb", "--spot", "--volume=runs:/runs"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_manifests_meet_the_published_schemas(cluster, kind):
    validate = pytest.importorskip(
        "kubernetes_validate",
        reason="kubernetes-validate is not installed: pip install -e '.[test]'",
    )
    command = (*TRAIN[:2], "--workdir=/runs/one") if "--volume=runs:/runs" in KINDS[kind] else TRAIN
    command = SEARCH if kind.startswith("array") else command
    (job,) = jobset.jobs(cluster.manifest(*KINDS[kind], command=command))
    for version in jobset.KUBERNETES:
        validate.validate(job, version, strict=True)
    # The check itself notices what is wrong.
    damaged = [
        lambda spec: spec.update(completions="4"),
        lambda spec: spec["podFailurePolicy"]["rules"][1].pop("action"),
        lambda spec: spec["template"]["spec"].update(gracePeriod=3),
        lambda spec: spec["template"]["spec"]["containers"][0]["env"].append({"value": "x"}),
    ]
    for damage in damaged:
        copy = json.loads(json.dumps(job))
        damage(copy["spec"])
        with pytest.raises(validate.ValidationError):
            validate.validate(copy, jobset.KUBERNETES[-1], strict=True)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("spec.failurePolicy.maxRestart", 3),
        ("spec.failurePolicy.restartStrategy", "Recreated"),
        ("spec.failurePolicy.rules.0.action", "Fail"),
        ("spec.failurePolicy.rules.0.name", "permanent-error"),
        ("spec.failurePolicy.rules.0.onJobFailureReasons", ["PodFailed"]),
        ("spec.failurePolicy.rules.0.targetReplicatedJobs", ["leader"]),
        ("spec.replicatedJobs.0.replicas", "1"),
        ("spec.replicatedJobs.0.template.spec.podFailurePolicy.rules.1.onExitCodes.values", [2, 1]),
        ("spec.replicatedJobs.0.template.spec.podFailurePolicy.rules.1.onExitCodes.containerName", "other"),
        ("spec.replicatedJobs.0.template.spec.podFailurePolicy.rules.1.action", "FailIndex"),
        ("spec.replicatedJobs.0.template.spec.template.spec.restartPolicy", "OnFailure"),
        ("spec.replicatedJobs.0.template.spec.template.spec.volumes", [{"name": "unused", "emptyDir": {}}]),
        ("metadata.name", "a" * 50),
        ("kind", "Job"),
    ],
)
def test_the_check_of_jobsets_notices_mistakes(cluster, field, value):
    made = cluster.manifest(*TPU)
    *parents, last = field.split(".")
    place = made
    for step in parents:
        place = place[int(step)] if step.isdigit() else place[step]
    place[last] = value
    with pytest.raises(ValueError):
        jobset.check(made)


def test_spot_volume_and_account(cluster):
    plain = pod_of(cluster.manifest(*GPU))
    assert "nodeSelector" not in plain and "serviceAccountName" not in plain
    command = (*TRAIN[:2], "--workdir=/runs/a b/one")
    made = pod_of(
        cluster.manifest(
            *GPU, "--gpu_type=nvidia-l4", "--spot", "--volume=runs:/runs", "--service_account=me", command=command
        )
    )
    assert made["nodeSelector"] == {
        "cloud.google.com/gke-accelerator": "nvidia-l4",
        "cloud.google.com/gke-spot": "true",
    }
    assert {toleration["key"] for toleration in made["tolerations"]} == {"nvidia.com/gpu", "cloud.google.com/gke-spot"}
    assert made["serviceAccountName"] == "me"
    assert {"name": "workdir", "persistentVolumeClaim": {"claimName": "runs"}} in made["volumes"]
    assert {"name": "workdir", "mountPath": "/runs"} in made["containers"][0]["volumeMounts"]
    assert made["securityContext"] == {"fsGroup": 1000}  # the image's user, who must be able to write there


# --- The command, and which hosts there are ---


def test_words_reach_ag_jax_as_they_are(cluster):
    command = (
        "train",
        '--config=a b.py:x="y"',
        "--config.a='#: {}'",
        r"--config.b=\n$(HOME) $$ \$x",
        "--workdir=gs://b/ü [1]",
    )
    container = container_of(cluster.manifest(*TPU, command=command))
    assert jobset.arguments_in_pod(container, {"HOME": "/root"}) == [command[0], "--hosts=auto", *command[1:]]


def test_gpu_nodes_are_told_where_host_0_is_and_which_they_are(cluster):
    made = cluster.manifest(*GPU, name="mine")
    places = []
    for host in range(2):
        words = jobset.arguments_in_pod(container_of(made), {"JOB_COMPLETION_INDEX": str(host)})
        request = cli.Request(**verbs.parse(words, cli.KINDS)[1])
        places.append(hosts.find_position(request.coordinator, request.hosts, request.host, 1))
    # The controller calls a pod NAME-JOB-SLICE-HOST, in the subdomain NAME.
    job = made["spec"]["replicatedJobs"][0]["name"]
    assert places == [HostPosition(f"mine-{job}-0-0.mine:8482", 2, host) for host in range(2)]
    assert made["spec"]["network"]["enableDNSHostnames"] is True
    assert container_of(made)["env"][0] == {"name": "JAX_PLATFORMS", "value": "cuda,cpu"}


def test_hosts_of_tpus_are_found_by_what_gke_sets(cluster, monkeypatch):
    """JAX's detection for GKE, with the variables of a pod: worker 3 of slice 1, of two slices with four hosts."""
    words = jobset.arguments_in_pod(container_of(cluster.manifest(*TPU, "--slices=2")), {})
    request = cli.Request(**verbs.parse(words, cli.KINDS)[1])
    from jax._src.clusters import cloud_tpu_cluster

    monkeypatch.setattr(cloud_tpu_cluster, "running_in_cloud_tpu_vm", True)
    variables = {
        "TPU_WORKER_ID": "3",
        "TPU_WORKER_HOSTNAMES": ",".join(f"one-workers-1-{host}.one" for host in range(4)),
        "MEGASCALE_COORDINATOR_ADDRESS": "localhost",
        "MEGASCALE_NUM_SLICES": "2",
        "MEGASCALE_SLICE_ID": "1",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = hosts.find_position(request.coordinator, request.hosts, request.host, 1)
    assert (found.coordinator, found.hosts, found.host) == ("localhost:8482", 8, 7)


@pytest.mark.parametrize("options", [(TPU[0], "--accelerator=v5litepod-8"), (GPU[0], "--gpus=4")])
def test_one_host_looks_for_no_others(cluster, options):
    assert container_of(cluster.manifest(*options))["args"] == ["train", "--hosts=1", *TRAIN[1:]]
    inspect = ("inspect", TRAIN[2])
    assert container_of(cluster.manifest(*options, command=inspect))["args"] == list(inspect)


def test_the_scripts_know_which_verbs_run_on_several_hosts():
    script = (
        f'source "{REPOSITORY}/launch/command.sh"\nfor verb; do command=("$verb"); takes_hosts && echo "$verb"; done\n'
    )
    result = subprocess.run(["bash", "-c", script, "bash", *verbs.VERBS], capture_output=True, text=True)
    assert (
        set(result.stdout.split())
        == set(cli.ON_MANY_HOSTS)
        == {name for name, verb in verbs.VERBS.items() if "hosts" in verb.flags}
    )


def test_hosts_are_left_as_given(cluster):
    words = (*TRAIN, "--hosts=1")
    assert container_of(cluster.manifest(*TPU, command=words))["args"] == list(words)


# --- Arrays ---


def test_the_pods_of_an_array_are_its_parts(cluster, tmp_path):
    """Kubernetes counts them from 0, and --part begins at 1; each point of a search is in one part."""
    made = cluster.manifest(*ARRAY, command=(*SEARCH, "--config.title=$(HOME) 'x'"))
    assert (job_of(made)["completionMode"], job_of(made)["completions"], job_of(made)["parallelism"]) == (
        "Indexed",
        4,
        4,
    )
    assert "nodeSelector" not in pod_of(made) and container_of(made)["resources"]["limits"] == {"nvidia.com/gpu": 1}
    (tmp_path / "ag-jax").write_text('#!/bin/bash\nprintf "%s\\n" "$@"\nexit 3\n')
    (tmp_path / "ag-jax").chmod(0o755)
    container, points = container_of(made), []
    for index in range(4):
        inside = {"JOB_COMPLETION_INDEX": str(index), "HOME": "/root", "PATH": f"{tmp_path}:/usr/bin:/bin"}
        words = jobset.expanded([*container["command"], *container["args"]], inside)
        words = [word.replace("/opt/ag_jax", "/the/image") for word in words]
        words[2] = words[2].replace("/the/image", f"'{REPOSITORY}'")
        result = subprocess.run(words, env=inside, capture_output=True, text=True, timeout=60)
        said = result.stdout.splitlines()
        assert said == ["search", "--hosts=1", *SEARCH[1:], "--config.title=$(HOME) 'x'", f"--part={index + 1}/4"]
        assert result.returncode == 3, result.stderr
        part = verbs.parse(said, cli.KINDS)[1]["part"]
        points += parts.numbers_of(parts.parse_part(part), 10, "points")
    assert sorted(points) == list(range(10))


def test_the_parts_of_an_array_need_no_names(cluster):
    """They do not talk to each other, and a slice of one host has nobody to talk to."""
    made = cluster.manifest(TPU[0], "--accelerator=v5litepod-8", "--array=3", command=SEARCH)
    assert made["spec"]["network"] == {"enableDNSHostnames": False, "publishNotReadyAddresses": False}
    assert "annotations" not in made["metadata"] and job_of(made)["completions"] == 3
    assert container_of(made)["resources"]["limits"] == {"google.com/tpu": 8}


@pytest.mark.parametrize("cache", ["gs://bucket/cache", "/runs/cache"])
def test_the_parts_of_a_text_share_its_cache(cluster, cache):
    """`prepare` has no --workdir and takes no --hosts."""
    command = (*PREPARE[:2], f"--config.data.cache_dir={cache}")
    made = cluster.manifest(*ARRAY, "--volume=runs:/runs", command=command)
    assert container_of(made)["args"] == list(command) and job_of(made)["completions"] == 4
    assert verbs.parse([*command, "--part=1/4"], cli.KINDS)[1]["part"] == "1/4"


def test_a_part_is_started_again_without_the_others(cluster):
    made = cluster.manifest(*ARRAY, "--restarts=2", command=SEARCH)
    assert [jobset.fate(made, pod) for pod in (OK, AGAIN, LOST, Pod(137), Pod(75, disrupted=True))] == [
        "done",
        *["again"] * 4,
    ]
    assert [jobset.fate(made, AGAIN, restarts) for restarts in (1, 2)] == ["again", "failed"]
    assert [jobset.fate(made, Pod(status)) for status in (1, 2, 127)] == ["failed"] * 3
    # The others go on, and the JobSet fails when they are done; no part is started again then.
    assert jobset.end(made, [[OK] * 4]) == "Completed"
    assert jobset.end(made, [[OK, Pod(1), OK, OK]]) == jobset.end(made, [[OK, AGAIN, OK, OK]]) == "Failed"


def test_an_array_is_created_and_its_parts_are_checked(cluster):
    ag_jax = cluster.repository / ".venv/bin/ag-jax"
    ag_jax.parent.mkdir(parents=True)
    ag_jax.write_text('#!/bin/bash\necho "ag-jax: there are only 3 points, got $*" >&2\n[ "$WRONG" = no ]\n')
    ag_jax.chmod(0o755)
    result = cluster.run("one", *ARRAY, "--", *SEARCH, WRONG="yes")
    assert result.returncode == 1 and f"got {' '.join(SEARCH)} --part=4/4 --print_config" in result.stderr
    assert cluster.calls() == []
    result = cluster.run("one", *ARRAY, "--", *SEARCH, WRONG="no")
    assert result.returncode == 0 and "one is created: 4 pod(s) with 1 of nvidia.com/gpu each" in result.stderr
    assert "the log of part 1 (that of part K has the job-completion-index K - 1): kubectl logs" in result.stderr


# --- Ends and restarts ---

OK, AGAIN, LOST = Pod(0), Pod(75), Pod(None, disrupted=True)


@pytest.mark.parametrize(
    ("pods", "outcome"),
    [
        ([OK, OK, OK, OK], "Completed"),
        ([OK, Pod(75, disrupted=True), OK, OK], "restarted"),  # one was told to end, and so all have saved
        ([AGAIN, AGAIN, AGAIN, AGAIN], "restarted"),  # the hosts lost each other
        ([Pod(134), AGAIN, LOST, AGAIN], "restarted"),  # a node is gone
        ([AGAIN, Pod(1, disrupted=True), AGAIN, AGAIN], "restarted"),
        ([Pod(137), AGAIN, AGAIN, AGAIN], "restarted"),  # killed
        ([Pod(143), Pod(143), Pod(143), Pod(143)], "restarted"),  # told to end before training
        ([Pod(1), Pod(1), Pod(1), Pod(1)], "Failed"),  # an error
        ([Pod(1), AGAIN, AGAIN, AGAIN], "Failed"),
        ([Pod(2), Pod(2), Pod(2), Pod(2)], "Failed"),  # a wrong command line
        ([Pod(127), Pod(127), Pod(127), Pod(127)], "Failed"),  # an image without ag-jax
    ],
)
def test_interrupted_runs_are_started_again_and_failed_ones_are_not(cluster, pods, outcome):
    assert jobset.end(cluster.manifest(*TPU), [pods]) == outcome


def test_slices_end_and_restart_together(cluster):
    made = cluster.manifest(*TPU, "--slices=2", "--restarts=3")
    done = [OK] * 4
    assert jobset.end(made, [done, done]) == "Completed"
    assert jobset.end(made, [done, [OK, AGAIN, OK, OK]], restarts=2) == "restarted"
    assert jobset.end(made, [done, [OK, AGAIN, OK, OK]], restarts=3) == "Failed"
    assert jobset.end(made, [[AGAIN] * 4, [Pod(1)] * 4]) == "Failed"


def test_the_container_runs_the_wrapper_and_has_time_to_save(cluster):
    made = cluster.manifest(*TPU)
    (copied,) = re.findall(r"^COPY (launch/\S+) launch/$", (REPOSITORY / "Dockerfile").read_text(), re.MULTILINE)
    assert container_of(made)["command"] == ["bash", f"/opt/ag_jax/{copied}"]
    assert pod_of(made)["terminationGracePeriodSeconds"] == 300
    assert pod_of(cluster.manifest(*TPU, "--grace=900"))["terminationGracePeriodSeconds"] == 900


class Container:
    """launch/gke_worker.sh, with a stand-in for ag-jax unless its text is given."""

    def __init__(self, folder: pathlib.Path, ag_jax: str, *arguments: str, **environment: str):
        (folder / "bin").mkdir(exist_ok=True)
        (folder / "bin/ag-jax").write_text(ag_jax)
        (folder / "bin/ag-jax").chmod(0o755)
        self.output = folder / "output"
        with open(self.output, "w") as output:
            self.process = subprocess.Popen(
                ["bash", str(REPOSITORY / "launch/gke_worker.sh"), *arguments],
                env=os.environ | {"PATH": f"{folder / 'bin'}:/usr/bin:/bin"} | environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def says(self, text: str) -> None:
        deadline = time.monotonic() + 120
        while text not in self.output.read_text():
            assert self.process.poll() is None and time.monotonic() < deadline, self.output.read_text()
            time.sleep(0.02)

    def end(self) -> tuple[int, str]:
        try:
            return self.process.wait(120), self.output.read_text()
        finally:
            self.process.kill()


@pytest.mark.parametrize("status", [0, 1, 2, 75, 134])
def test_an_exit_status_is_passed_on(tmp_path, status):
    ended = Container(tmp_path, f'#!/bin/bash\nprintf "%s|" "$@"\nexit {status}\n', "train", "--a=b c", "").end()
    assert ended == (status, "train|--a=b c||")


SAVES = "#!/bin/bash\ntrap 'sleep 0.5; echo saved; exit {}' TERM\necho ready\nfor i in {{1..600}}; do sleep 0.1; done\n"


@pytest.mark.parametrize("signals", [1, 3])
@pytest.mark.parametrize("status", [0, 1])
def test_an_interrupted_run_saves_and_is_no_success(tmp_path, signals, status):
    container = Container(tmp_path, SAVES.format(status), "train")
    container.says("ready")
    for _ in range(signals):
        container.process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
    code, output = container.end()
    assert code == 75 and "saved\nag_jax: interrupted by a signal" in output and f"ended with {status}" in output


def test_a_run_that_is_interrupted_before_it_can_notice(tmp_path):
    container = Container(tmp_path, "#!/bin/bash\necho ready\nexec sleep 60\n")
    container.says("ready")
    container.process.terminate()
    assert container.end()[0] == 75


def test_an_image_without_ag_jax(tmp_path):
    container = Container(tmp_path, "")
    container.end()
    (tmp_path / "bin/ag-jax").unlink()
    bare = subprocess.run(
        ["bash", str(REPOSITORY / "launch/gke_worker.sh"), "train"], env={"PATH": "/usr/bin:/bin"}, capture_output=True
    )
    assert bare.returncode == 127


@pytest.fixture
def real_run(tmp_path):
    """Return a function that starts `ag-jax train` itself in a container, always the same run."""
    (tmp_path / "text.txt").write_text("The house of our union is strong. We will build roads.\n" * 60)
    settings = [f"--config.training.{name}=100" for name in ("checkpoint_every", "evaluate_every")]
    words = launch.command(
        tmp_path / "text.txt", tmp_path / "run", "--config.training.steps=200", *settings, "--hosts=1"
    )
    words.append(f"--config.data.cache_dir={tmp_path / 'cache'}")
    environment = {"PYTHONPATH": str(REPOSITORY), "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    ag_jax = f'#!/bin/bash\nexec "{sys.executable}" -m ag_jax.main "$@"\n'
    return lambda: Container(tmp_path, ag_jax, *map(str, words), **environment)


def test_a_real_run_is_interrupted_at_its_start(real_run):
    container = real_run()
    container.says("\n")
    container.process.terminate()
    code, output = container.end()
    assert code == 75 and "To go on, run the same command again" in output and "exit status 75" in output


@pytest.mark.exhaustive
def test_a_real_run_is_interrupted_in_training_and_resumed(real_run, tmp_path):
    container = real_run()
    container.says("run: step 3/200")
    container.process.terminate()
    code, output = container.end()
    assert code == 75 and "To go on, run the same command again" in output and "exit status 75" in output
    stopped_at = max(row["step"] for row in read_metrics(tmp_path / "run"))
    assert stopped_at < 200
    code, output = real_run().end()
    assert code == 0, output
    assert max(row["step"] for row in read_metrics(tmp_path / "run")) == 200
    assert f"step {stopped_at + 1}/200" in output and "step 1/200" not in output


# --- kubectl ---


def test_the_manifest_of_a_dry_run_is_what_is_created(cluster):
    result = cluster.run("one", *TPU, "--namespace=team", "--", *TRAIN)
    assert result.returncode == 0, result.stderr
    look, create = cluster.calls()
    assert look.startswith("get jobsets.jobset.x-k8s.io one --ignore-not-found") and look.endswith("--namespace=team")
    assert re.fullmatch(r"create --filename=\S+/manifest --namespace=team", create)
    created = (cluster.folder / "manifest").read_text()
    assert created == cluster.text(*TPU, "--namespace=team")
    assert "one is created: 4 pod(s) with 4 of google.com/tpu each" in result.stderr
    assert "kubectl logs --follow" in result.stderr and "jobset-name=one" in result.stderr
    assert "the command is not checked before it runs in the cluster" in result.stderr  # there is no .venv here


def test_the_command_is_checked_by_the_ag_jax_of_this_machine(cluster):
    ag_jax = cluster.repository / ".venv/bin/ag-jax"
    ag_jax.parent.mkdir(parents=True)
    ag_jax.write_text('#!/bin/bash\necho "ag-jax: no flag --wrong, got $*" >&2\nexit 2\n')
    ag_jax.chmod(0o755)
    result = cluster.run("one", *GPU, "--", *TRAIN, "--wrong")
    assert result.returncode == 1 and f"got {' '.join(TRAIN)} --wrong --print_config" in result.stderr
    assert "nothing was started" in result.stderr and cluster.calls() == []


@pytest.mark.parametrize("ended", ["Completed", "Failed"])
def test_the_same_command_resumes_a_run_that_has_ended(cluster, ended):
    cluster.put("manifest", "old")
    cluster.put("ended", ended)
    result = cluster.run("one", *TPU, "--", *TRAIN)
    assert result.returncode == 0 and f"an earlier one has ended ({ended})" in result.stderr
    assert [call.split()[0] for call in cluster.calls()] == ["get", "delete", "create"]
    assert yaml.safe_load((cluster.folder / "manifest").read_text())["metadata"]["name"] == "one"


def test_a_run_is_not_started_twice(cluster):
    assert cluster.run("one", *TPU, "--", *TRAIN).returncode == 0
    cluster.calls()
    result = cluster.run("one", *TPU, "--namespace=team", "--", *TRAIN)
    assert result.returncode == 1 and "one runs already. Its log: kubectl logs" in result.stderr
    assert "bash launch/gke.sh one --stop --namespace=team" in result.stderr
    assert [call.split()[0] for call in cluster.calls()] == ["get"]


def test_stop(cluster):
    cluster.put("manifest", "")
    dry = cluster.run("one", "--stop", "--dry_run")
    assert dry.returncode == 0 and cluster.calls() == []
    assert dry.stdout == "kubectl delete jobsets.jobset.x-k8s.io one --cascade=foreground\n"
    result = cluster.run("one", "--stop")
    assert result.returncode == 0 and "deleting one (RUNNING); a run that still trains saves" in result.stderr
    assert cluster.calls()[1] == dry.stdout.partition(" ")[2].rstrip()
    assert not (cluster.folder / "manifest").exists()
    assert "there is no JobSet one" in cluster.run("one", "--stop").stderr


@pytest.mark.parametrize(
    ("says", "message"),
    [
        ('error: the server doesn\'t have a resource type "jobsets"', "the cluster has no JobSet controller"),
        (
            "x\nThe connection to the server localhost:8080 was refused",
            "kubectl does not reach the cluster: The",
        ),
    ],
)
def test_a_cluster_that_does_not_answer(cluster, says, message):
    cluster.put("says", says + "\n")
    for arguments in (("--stop",), (*TPU, "--", *TRAIN)):
        result = cluster.run("one", *arguments)
        assert result.returncode == 1 and message in result.stderr


def test_without_kubectl(cluster):
    (cluster.bin / "kubectl").unlink()
    for name in ("bash", "dirname", "mktemp", "rm", "sed", "grep", "cat"):
        (cluster.bin / name).symlink_to(shutil.which(name))
    cluster.path = str(cluster.bin)
    result = cluster.run("one", *TPU, "--", *TRAIN)
    assert result.returncode == 1 and "kubectl is not installed" in result.stderr
    cluster.manifest(*TPU)  # a dry run does not need it


@pytest.fixture
def real_kubectl(cluster):
    """Let the cluster's scripts find the kubectl of this machine."""
    found = shutil.which("kubectl")
    if found is None:
        pytest.skip("kubectl is not installed")
    (cluster.bin / "kubectl").unlink()
    (cluster.bin / "kubectl").symlink_to(found)


def test_the_real_kubectl_creates_finds_and_deletes(cluster, real_kubectl):
    command = (*TRAIN, "--config.a='#: {}'", r"--config.b=\n$(HOME) $$ ü")
    server = kubernetes_api.Server()
    with server.serving(cluster.folder) as config:
        at = {"KUBECONFIG": str(config)}
        result = cluster.run("one", *GPU, "--", *command, **at)
        assert result.returncode == 0, result.stderr
        sent = server.stored["one"]
        assert sent["metadata"].pop("namespace") == "default"
        assert sent == cluster.manifest(*GPU, command=command)  # Go and Python read the same
        assert cluster.run("one", *GPU, "--", *command, **at).returncode == 1
        server.stored["one"]["status"] = {"terminalState": "Failed"}
        again = cluster.run("one", *TPU, "--", *command, **at)
        assert again.returncode == 0 and "an earlier one has ended (Failed)" in again.stderr, again.stderr
        assert "status" not in server.stored["one"]
        assert cluster.run("one", "--stop", **at).returncode == 0
        assert "there is no JobSet one" in cluster.run("one", "--stop", **at).stderr
    place = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
    requests = [re.sub(r"\?\S*(fieldValidation=\w+)\S*", r" \1", request) for request in server.requests]
    create, delete = f"POST {place} fieldValidation=Strict", f"DELETE {place}/one Foreground"
    assert requests == [create, delete, create, delete]


def test_the_real_kubectl_without_controller_or_server(cluster, real_kubectl):
    server = kubernetes_api.Server(has_jobsets=False)
    with server.serving(cluster.folder) as config:
        result = cluster.run("one", *TPU, "--", *TRAIN, KUBECONFIG=str(config))
    assert result.returncode == 1 and "the cluster has no JobSet controller" in result.stderr and not server.requests
    result = cluster.run("one", "--stop", KUBECONFIG=str(config))
    assert result.returncode == 1 and "kubectl does not reach the cluster: The connection" in result.stderr


# --- Bad input ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("one", TPU[0], "--accelerator=v5litepod-17"), "nearest in size: v5litepod-16 (4x4) and v5litepod-32 (4x8)"),
        (("one", TPU[0], "--accelerator=v5litepod-512"), "nearest in size: v5litepod-256 (16x16)"),
        (
            ("one", TPU[0], "--accelerator=v4-2"),
            "nearest in size: v4-8 (2x2x1); for another one that GKE has, give",
        ),
        (("one", TPU[0], "--accelerator=v5e-16"), "Google's name for v5e-16 is v5litepod-16"),
        (("one", TPU[0], "--accelerator=v3-8"), "launch/tpu_create.sh also rents v2 and v3"),
        (("one", TPU[0], "--accelerator=h100-8"), "unknown accelerator h100-8: expected v4-N"),
        (("one", TPU[0], "--accelerator=v6e-x"), "--accelerator=v6e-N expects a whole number from 1 on, got x"),
        (("one", TPU[0], "--accelerator=v6e-0"), "got 0"),
        (("one", *TPU, "--topology=2x8"), "expected the chips along each axis of v5litepod-16, such as 4x4"),
        (("one", TPU[0], "--accelerator=v5p-384", "--topology=4x12"), "such as 4x4x12"),
        (("one", TPU[0], "--accelerator=v5p-384", "--topology=4x4x8"), "--topology=4x4x8 is v5p-256"),
        (("one", *TPU, "--slices=0"), "--slices expects a whole number from 1 on, got 0"),
        (("one", *TPU, "--slices=two"), "got two"),
        (("one", TPU[0], "--accelerator=v6e-8", "--slices=2"), "v6e-8 has one host; the smallest is v6e-16"),
        (("one", *TPU, "--gpus=8"), "--accelerator is for TPUs and --gpus for GPUs: give one of them"),
        (("one", TPU[0]), "on which chips? Give --accelerator=TYPE"),
        (("one", *TPU, "--nodes=2"), "--nodes and --gpu_type are for GPUs"),
        (("one", *GPU, "--slices=2"), "--slices and --topology are for TPUs"),
        (("one", *GPU, "--gpus=0"), "--gpus expects a whole number from 1 on, got 0"),
        (("one", *GPU, "--gpu_type=H 100"), "--gpu_type is a value of the node label"),
        (("one", TPU[1]), "which image? Give --image=IMAGE"),
        ((*TPU,), "which run? Give a name"),
        (("One", *TPU), "begins with a letter and does not end with -: got One"),
        (("a" * 50, *TPU), "letter(s) too long"),
        (("one", "two", *TPU), "expected one name, got one and two"),
        (("one", *TPU, "--volume=/runs"), "--volume is CLAIM:PATH, such as runs:/runs, got /runs"),
        (("one", *TPU, "--volume=My:/runs"), "My is no name of a persistent volume claim"),
        (("one", *TPU, "--volume=runs:/runs/../x"), "expected a path such as /runs after the claim"),
        (("one", *TPU, "--namespace=My"), "--namespace=My: expected small letters"),
        (("one", *TPU, "--restarts=-1"), "--restarts expects a whole number from 0 on, got -1"),
        (("one", *ARRAY, "--array=0"), "--array expects a whole number from 1 on, got 0"),
        (("one", *GPU, "--array=2"), "--array=2: each of its pods trains alone, on one node; leave out --nodes"),
        (("one", *TPU, "--array=2"), "take an --accelerator of one host, such as v5litepod-8"),
        (("one", *TPU, "--slices=2", "--array=2"), "--array=2: each of its pods trains alone"),
        (("one", *TPU, "--array", "2"), "write --array=VALUE, in one word"),
        (("one", *TPU, "--image", "x"), "write --image=VALUE, in one word"),
        (("one", *TPU, "--colour=red"), "unknown option --colour=red"),
    ],
)
def test_bad_options(cluster, options, message):
    result = cluster.run(*options, "--", *TRAIN)
    assert result.returncode == 1 and result.stdout == "" and cluster.calls() == []
    (line,) = [line for line in result.stderr.splitlines() if message in line]
    assert line == result.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "command", "message"),
    [
        (TPU, (), "what shall run?"),
        (TPU, ("--config=x",), "expected a verb such as train after --, got --config=x"),
        (TPU, TRAIN[:2], "ag-jax train needs --workdir=..., here one like gs://BUCKET/runs/first"),
        (TPU, ("train", "--workdir=runs/one"), "would be on the pod's own disk"),
        (TPU, ("train", "--workdir=gs://bucket"), "names a bucket: expected a folder in it"),
        (TPU, ("train", "--workdir=gs:///run"), "names no bucket"),
        ((*TPU, "--volume=runs:/runs"), ("train", "--workdir=/runs/../x"), "or on the volume, such as /runs/first"),
        ((*TPU, "--volume=runs:/runs"), ("train", "--workdir=/runs/"), "or on the volume, such as /runs/first"),
        (TPU, ("train", "--workdir=gs://bucket/"), "names a bucket: expected a folder in it"),
        (TPU, ("train", "--workdir", "gs://bucket/x"), "write --workdir=VALUE, in one word"),
        ((*TPU, "--volume=runs:/runs"), ("train", "--workdir=/run/one"), "on the volume, such as /runs/first"),
        (ARRAY, TRAIN, "ag-jax train does one thing, which jobs cannot share: leave --array out"),
        (ARRAY, PREPARE[:2], "ag-jax prepare needs --config.data.cache_dir=..., here one like gs://BUCKET/cache"),
        (ARRAY, (*PREPARE[:2], "--config.data.cache_dir=cache"), "--config.data.cache_dir=cache would be on the pod's"),
        (ARRAY, (*PREPARE[:2], "--config.data.cache_dir=gs://bucket"), "in it, such as gs://BUCKET/cache"),
        ((*ARRAY, "--volume=runs:/runs"), PREPARE[:2], "or on the volume, such as /runs/cache"),
        (ARRAY, (*SEARCH, "--part=1/4"), "--array=4 gives each job its --part: leave out --part=1/4"),
        (TPU, ("inspect", TRAIN[2]), "ag-jax inspect runs on one machine, and one has several hosts"),
        (TPU, (*TRAIN, "--config.a=x\ny"), "a line break or another control character"),
    ],
)
def test_bad_commands(cluster, options, command, message):
    result = cluster.run("one", *options, "--", *command)
    assert result.returncode == 1 and message in result.stderr.splitlines()[-1] and cluster.calls() == []


def test_help(cluster):
    result = cluster.run("--help")
    assert result.returncode == 0 and result.stdout.startswith("Usage: bash launch/gke.sh")
    options = set(re.findall(r"^ +(--\w+)", result.stdout, re.MULTILINE))
    read = set(re.findall(r"^      (--\w+)=?\*?\)", (REPOSITORY / "launch/gke.sh").read_text(), re.MULTILINE))
    assert options == read


# --- The image ---


def instructions():
    """The instructions of the Dockerfile, as (name, argument)."""
    text = (REPOSITORY / "Dockerfile").read_text().replace("\\\n", "")
    return [tuple(line.split(" ", 1)) for line in text.splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize("accelerator", ["cpu", "cuda12", "cuda13", "tpu"])
def test_the_image_has_the_pinned_packages_and_the_jax_of_its_chip(tmp_path, accelerator):
    (tmp_path / "pip").write_text('#!/bin/bash\necho "$*"\n')
    (tmp_path / "pip").chmod(0o755)
    first = next(argument for name, argument in instructions() if name == "RUN")
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "ACCELERATOR": accelerator}
    result = subprocess.run(["sh", "-c", first], env=environment, capture_output=True, text=True, check=True)
    jax = "" if accelerator == "cpu" else f"jax[{accelerator}] "
    assert result.stdout == f"install -r requirements.txt {jax}gcsfs\n"
    wrong = subprocess.run(
        ["sh", "-c", first], env=environment | {"ACCELERATOR": "gpu"}, capture_output=True, text=True
    )
    assert wrong.returncode == 1 and "expected cpu, cuda12, cuda13 or tpu" in wrong.stderr


def test_the_image_copies_what_the_build_is_sent_and_is_not_root():
    allowed = [line for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [word for name, argument in instructions() if name == "COPY" for word in argument.split()[:-1]]
    assert sorted(word[1:] for word in allowed) == sorted(copied)
    assert all((REPOSITORY / word).exists() for word in copied)
    assert not any(fnmatch.fnmatch(word, "*secret*") for word in copied)
    names = [name for name, _ in instructions()]
    assert names.index("USER") > max(at for at, name in enumerate(names) if name == "RUN")
    assert ("USER", "${RUN_AS}") in instructions() and ("ARG", "RUN_AS=1000:1000") in instructions()
    assert instructions()[-1] == ("ENTRYPOINT", '["ag-jax"]')
    python = dict(argument.split("=", 1) for name, argument in instructions() if name == "ARG")["PYTHON"]
    assert f"--python-version {python} " in (REPOSITORY / "requirements.txt").read_text()
