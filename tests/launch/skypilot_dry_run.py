"""Write what SkyPilot makes of commands of `sky`, which are lists of words, to the file `result` in the home directory.

`sky jobs launch` goes as far as it does without an account: options, task, choice of a machine, dry run of creating it.
"""

import json
import pathlib

import click
import sky
from sky import check, clouds, execution
from sky.backends import task_codegen
from sky.client.cli import command
from sky.clouds.utils import gcp_utils
from sky.optimizer import Optimizer
from sky.skylet import constants, log_lib

# A small catalog in place of the one that SkyPilot would download. For a TPU it looks for a host that it does not need.
CATALOG = {
    "gcp/vms.csv": """\
InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,AvailabilityZone,Price,SpotPrice
n1-highmem-8,8,52,,,,us-west4,us-west4-a,1,1
,,,tpu-v5litepod-8,1,TPU,us-west4,us-west4-a,1,1
,,,tpu-v5litepod-16,1,TPU,us-west4,us-west4-a,1,1
a3-highgpu-4g,104,936,H100,4,H100,us-west4,us-west4-a,1,1
a3-highgpu-8g,208,1872,H100,8,H100,us-west4,us-west4-a,1,1
g2-standard-4,4,16,L4,1,L4,us-west4,us-west4-a,1,1
""",
    "gcp/images.csv": """\
Tag,Region,ImageId
skypilot:custom-cpu-ubuntu-2204,,image
skypilot:custom-gpu-ubuntu-2204-cuda13,,image
""",
    "gcp/accelerator_quota_mapping.csv": "Accelerator,SpotInstanceCode,OnDemandInstanceCode\n",
    "common/accelerators.csv": "AcceleratorName,Clouds\nH100,GCP\nL4,GCP\n",
    "common/metadata.csv": "GPU,MemoryGB,Manufacturer\n",
}


def options_of(words: list[str]) -> dict:
    group, context = command.cli, None
    while isinstance(group, click.Group):
        context = click.Context(group, info_name=group.name, parent=context)
        name, *words = words
        group = group.get_command(context, name) or context.fail(f"there is no command {name!r}")
    return group.make_context(name, words, parent=context).params


def launch(options: dict) -> dict:
    names = ("entrypoint", "name", "gpus", "num_nodes", "use_spot", "env")
    place = command._handle_infra_cloud_region_zone_options(options["infra"], None, None, None)
    places = dict(zip(("cloud", "region", "zone"), place, strict=True))
    task = command._make_task_or_dag_from_entrypoint_with_overrides(**places, **{name: options[name] for name in names})
    (best,) = task.resources
    if place[0] not in ("kubernetes", "slurm"):  # these would be asked what they have
        with sky.Dag() as dag:
            dag.add(task)
        Optimizer.optimize(dag, quiet=True)
        best = task.best_resources
        execution.launch(task, cluster_name="dry-run", dryrun=True, _quiet_optimizer=True)
    scripts = {"setup": task.setup, "run": task_codegen.TaskCodeGen.build_task_bash_script(task.run)}
    found = {"machine": str(best), "recovery": best.job_recovery, "run_on_all_hosts": gcp_utils.is_tpu_vm_pod(best)}
    return found | {name: log_lib.make_task_bash_script(script, task.envs) for name, script in scripts.items()}


home = pathlib.Path.home()
for name, table in CATALOG.items():
    path = home / ".sky" / "catalogs" / constants.CATALOG_SCHEMA_VERSION / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(table)
check.get_cached_enabled_clouds_or_refresh = lambda *_, **__: [clouds.GCP()]  # without asking for an account
commands = [(words[:2] == ["jobs", "launch"], options_of(words)) for words in json.loads((home / "given").read_text())]
results = [launch(options) if launches else {} for launches, options in commands]
(home / "result").write_text(json.dumps(results))
