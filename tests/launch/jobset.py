"""What Kubernetes and its JobSet controller accept as a manifest, and what they do when its pods end.

The fields are those of the API jobset.x-k8s.io/v1alpha2, and the rules those that the controller's admission webhook
checks (github.com/kubernetes-sigs/jobset, version 0.12). The jobs inside a JobSet are of Kubernetes's own API batch/v1,
whose schemas the package kubernetes-validate has.
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

KUBERNETES = (
    "1.31",
    "1.37",
)  # versions whose schemas manifests must meet: from the first with all fields, to the newest
ACTIONS = {
    "FailJobSet",
    "RestartJobSet",
    "RestartJobSetAndIgnoreMaxRestarts",
    "RestartJob",
    "RestartJobAndIgnoreMaxRestarts",
}
STRATEGIES = {"Recreate", "BlockingRecreate", "InPlaceRestart"}
REASONS = {"BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "MaxFailedIndexesExceeded", "PodFailurePolicy"}
LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # RFC 1035
RULE_NAME = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")

# Types of the fields that manifests may have; a name with ! is required. A job's template is checked elsewhere.
_RULE = {"name!": str, "action!": ACTIONS, "onJobFailureReasons": [str], "targetReplicatedJobs": [str]}
_JOBSET = {
    "apiVersion!": {"jobset.x-k8s.io/v1alpha2"},
    "kind!": {"JobSet"},
    "metadata!": {"name!": str, "annotations": dict, "labels": dict, "namespace": str},
    "spec!": {
        "failurePolicy": {"maxRestarts": int, "restartStrategy": STRATEGIES, "rules": [_RULE]},
        "network": {"enableDNSHostnames": bool, "publishNotReadyAddresses": bool, "subdomain": str},
        "replicatedJobs!": [{"name!": str, "replicas": int, "groupName": str, "template!": dict}],
        "successPolicy": {"operator!": {"All", "Any"}, "targetReplicatedJobs": [str]},
        "suspend": bool,
        "ttlSecondsAfterFinished": int,
    },
}


def check(manifest: dict) -> None:
    """Raise ValueError if a JobSet has a field that does not exist, lacks one, or breaks a rule of the controller."""
    _check_fields(manifest, _JOBSET, "")
    name, spec = manifest["metadata"]["name"], manifest["spec"]
    policy = spec.get("failurePolicy", {})
    names = [job["name"] for job in spec["replicatedJobs"]]
    rules = [rule["name"] for rule in policy.get("rules", [])]
    _require(len(set(names)) == len(names) and len(set(rules)) == len(rules), "names are not unique")
    _require(all(RULE_NAME.fullmatch(rule) for rule in rules), f"names of rules: {rules}")
    _require(policy.get("maxRestarts", 0) >= 0, "maxRestarts")
    for rule in policy.get("rules", []):
        _require(set(rule.get("onJobFailureReasons", [])) <= REASONS, f"reasons of {rule}")
        _require(set(rule.get("targetReplicatedJobs", [])) <= set(names), f"jobs of {rule}")
    for job in spec["replicatedJobs"]:
        pods = job["template"]["spec"]["completions"]
        longest = f"{name}-{job['name']}-{job.get('replicas', 1) - 1}-{pods - 1}-abcde"
        _require(bool(LABEL.fullmatch(longest)) and len(longest) <= 63, f"the name of a pod: {longest}")
        check_job_rules(job["template"]["spec"])


def check_job_rules(job: dict) -> None:
    """Raise ValueError for what batch/v1 checks beyond its schema: the rules about `podFailurePolicy`."""
    template = job["template"]["spec"]
    names = {container["name"] for container in template["containers"]}
    volumes = {volume["name"] for volume in template.get("volumes", [])}
    for container in template["containers"]:
        mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
        _require(mounted == volumes, f"mounted are {mounted}, and there are {volumes}")
        root = container.get("securityContext", {}).get("runAsUser") == 0
        _require(not (root and container["securityContext"].get("runAsNonRoot")), "root, but not root")
    if "backoffLimitPerIndex" in job:
        _require(job.get("completionMode") == "Indexed", "backoffLimitPerIndex needs completionMode: Indexed")
        _require(template["restartPolicy"] == "Never", "backoffLimitPerIndex needs restartPolicy: Never")
    if "podFailurePolicy" not in job:
        return
    _require(template["restartPolicy"] == "Never", "podFailurePolicy needs restartPolicy: Never")
    for rule in job["podFailurePolicy"]["rules"]:
        _require(rule["action"] in {"FailJob", "FailIndex", "Ignore", "Count"}, f"action of {rule}")
        _require(rule["action"] != "FailIndex" or "backoffLimitPerIndex" in job, f"{rule} needs backoffLimitPerIndex")
        _require(len({"onExitCodes", "onPodConditions"} & set(rule)) == 1, f"{rule} needs one requirement")
        codes = rule.get("onExitCodes")
        if codes:
            _require(codes["operator"] in {"In", "NotIn"}, f"operator of {rule}")
            _require(codes["values"] == sorted(set(codes["values"])), f"{codes['values']} are not in order")
            _require(not (codes["operator"] == "In" and 0 in codes["values"]), "0 is no failure")
            _require(codes.get("containerName") in names | {None}, f"container of {rule}")


def _check_fields(value: Any, kind: Any, where: str) -> None:
    if isinstance(kind, type):
        _require(type(value) is kind, f"{where} is {value!r}")
    elif isinstance(kind, set):
        _require(value in kind, f"{where} is {value!r}")
    elif isinstance(kind, list):
        _require(type(value) is list and bool(value), f"{where} is {value!r}")
        for number, item in enumerate(value):
            _check_fields(item, kind[0], f"{where}[{number}]")
    else:
        _require(type(value) is dict, f"{where} is {value!r}")
        fields = {name.rstrip("!"): inner for name, inner in kind.items()}
        missing = {name[:-1] for name in kind if name.endswith("!")} - set(value)
        _require(not missing and set(value) <= set(fields), f"{where} lacks {missing}, has {set(value) - set(fields)}")
        for name, inner in value.items():
            _check_fields(inner, fields[name], f"{where}.{name}")


def _require(fact: bool, problem: str) -> None:
    if not fact:
        raise ValueError(problem)


def jobs(manifest: dict) -> list[dict]:
    """Return the jobs that the controller makes of a JobSet, as manifests of batch/v1 without their indices."""
    return [
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}, **job["template"]}
        for job in manifest["spec"]["replicatedJobs"]
    ]


# --- What happens when pods end -----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Pod:
    """A pod that has ended.

    status: exit status of its container; None if nobody has seen it, because the node is gone.
    disrupted: whether Kubernetes has ended it: an eviction, a preemption, a lost node.
    """

    status: int | None
    disrupted: bool = False


def end(manifest: dict, slices: Sequence[Sequence[Pod]], restarts: int = 0) -> str:
    """Return what becomes of a JobSet whose pods have all ended: `Completed`, `Failed` or `restarted`.

    slices: the pods of each job; of indices that are started again by themselves (`fate`), their last pods.
    restarts: how often the JobSet has been restarted before.
    """
    (replicated,) = manifest["spec"]["replicatedJobs"]
    assert len(slices) == replicated["replicas"]
    reasons = [_job_failure(replicated["template"]["spec"], pods) for pods in slices]
    failures = [reason for reason in reasons if reason]
    if not failures:
        return "Completed"
    policy = manifest["spec"]["failurePolicy"]
    action = next(
        (
            rule["action"]
            for rule in policy["rules"]
            if any(reason in rule.get("onJobFailureReasons", REASONS) for reason in failures)
        ),
        "RestartJobSet",
    )
    if action == "FailJobSet":
        return "Failed"
    if action == "RestartJobSet" and restarts >= policy["maxRestarts"]:
        return "Failed"
    return "restarted"


def fate(manifest: dict, pod: Pod, restarts: int = 0) -> str:
    """Return what becomes of an index when its pod ends: `done`, `again`, `failed`, or `all failed` with the others.

    The job has a limit per index.

    restarts: how often the index has been started again before.
    """
    job = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]
    if pod.status == 0:
        return "done"
    action = _action(job, pod)
    if action == "FailJob":
        return "all failed"
    return "again" if action == "Count" and restarts < job["backoffLimitPerIndex"] else "failed"


def _action(job: dict, pod: Pod) -> str:
    return next((rule["action"] for rule in job["podFailurePolicy"]["rules"] if _matches(rule, pod)), "Count")


def _job_failure(job: dict, pods: Sequence[Pod]) -> str | None:
    """Return the reason for which a job fails; None for a job whose pods have all succeeded."""
    assert len(pods) == job["completions"]
    failed = [pod for pod in pods if pod.status != 0]
    if "backoffLimitPerIndex" in job:
        return "FailedIndexes" if failed else None
    actions = [_action(job, pod) for pod in failed]
    if "FailJob" in actions:
        return "PodFailurePolicy"
    return "BackoffLimitExceeded" if actions.count("Count") > job["backoffLimit"] else None


def _matches(rule: dict, pod: Pod) -> bool:
    if "onPodConditions" in rule:
        return pod.disrupted and any(
            condition["type"] == "DisruptionTarget" and condition.get("status", "True") == "True"
            for condition in rule["onPodConditions"]
        )
    codes = rule["onExitCodes"]
    return pod.status not in (0, None) and (pod.status in codes["values"]) == (codes["operator"] == "In")


def arguments_in_pod(container: dict, environment: dict[str, str]) -> list[str]:
    """Return the arguments that a container gets, in which Kubernetes has replaced $(NAME), and $$ by $."""
    return expanded(container["args"], environment)


def expanded(words: Sequence[str], environment: dict[str, str]) -> list[str]:
    """Return words of a container's command or arguments as Kubernetes passes them on."""

    def replaced(match: re.Match) -> str:
        return "$" if match[0] == "$$" else environment.get(match[1], match[0])

    return [re.sub(r"\$\$|\$\((\w+)\)", replaced, word) for word in words]
