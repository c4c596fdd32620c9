"""The manifests that the simulated user applies: small workloads of every kind that our own controllers run."""

from __future__ import annotations

import random
from typing import Any

from phalanx.base.client import Resource
from phalanx.model.groups import MIN_RESOURCES, TO_COME

Json = dict[str, Any]
PODS = Resource("", "v1", "pods", "Pod")
GROUPS = Resource("scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup")
COMPOSITES = Resource("scheduling.k8s.io", "v1alpha3", "compositepodgroups", "CompositePodGroup")
JOBS = Resource("batch", "v1", "jobs", "Job")
JOB_SETS = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
SETS = Resource("apps", "v1", "statefulsets", "StatefulSet")
LEADER_WORKER_SETS = Resource("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "LeaderWorkerSet")

TEMPLATES = Resource("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate")
DEVICES = "gpu.example.com:4,nvlink=2"  # of every node
LINKED = "linked"  # template: two devices of one NVLink domain

READ_ANNOTATIONS = (TO_COME, MIN_RESOURCES)
INVALID_VALUES = (
    "[" * 2000,
    '{"size":1e999,"template":{}}',
    '{"size":10000,"template":{"spec":{"containers":[{"resources":{"requests":{"cpu":"-1"}}}]}}}',
    '{"cpu":' + "9" * 5000 + "}",
    "x" * 100_000,
)

GANG: Json = {"schedulingPolicy": {"gang": {}}}
RACK = "topology.phalanx.dev/rack"


def body(resource: Resource, name: str, spec: Json, annotations: dict[str, str] | None = None) -> Json:
    version = f"{resource.group}/{resource.version}" if resource.group else resource.version
    metadata: Json = {"name": name, **({"annotations": annotations} if annotations else {})}
    return {"apiVersion": version, "kind": resource.kind, "metadata": metadata, "spec": spec}


def group(name: str, size: int, rng: random.Random, *, priority: str = "", parent: str = "") -> Json:
    spec: Json = {"schedulingPolicy": {"gang": {"minCount": size}}}
    if priority:
        spec["priorityClassName"] = priority
    if parent:
        spec["parentCompositePodGroupName"] = parent
    elif rng.random() < 0.3:
        spec["disruptionMode"] = {"all": {}}
    if rng.random() < 0.2:
        spec["schedulingConstraints"] = {"topology": [{"key": RACK}]}
    return body(GROUPS, name, spec)


def member(name: str, of: str, cpu: str, priority: str = "") -> Json:
    spec: Json = {**pod_spec(cpu), "schedulingGroup": {"podGroupName": of}}
    if priority:
        spec["priorityClassName"] = priority
    return body(PODS, name, spec)


def claim_template() -> Json:
    request = {"name": "gpus", "exactly": {"deviceClassName": "gpu", "count": 2}}
    devices = {"requests": [request], "constraints": [{"matchAttribute": "gpu.example.com/nvlink"}]}
    return body(TEMPLATES, LINKED, {"spec": {"devices": devices}})


def with_devices(pod: Json) -> Json:
    """Return the same pod with a ResourceClaim of its own."""
    claims = [{"name": "gpus", "resourceClaimTemplateName": LINKED}]
    return {**pod, "spec": {**pod["spec"], "resourceClaims": claims}}


def composite(name: str, groups: int) -> Json:
    return body(COMPOSITES, name, {"schedulingPolicy": {"gang": {"minGroupCount": groups}}})


def job(name: str, size: int, rng: random.Random) -> Json:
    spec = {"parallelism": size, "completions": size, "completionMode": "Indexed"}
    return body(JOBS, name, {**spec, "scheduling": GANG, "template": ending_template(rng)})


def job_set(name: str, rng: random.Random) -> Json:
    each = {"parallelism": 2, "completions": 2, "template": ending_template(rng)}
    replicated = [{"name": "a", "replicas": 2, "template": {"spec": each}}]
    return body(JOB_SETS, name, {"scheduling": GANG, "replicatedJobs": replicated})


def stateful_set(name: str, size: int, cpu: str) -> Json:
    labels = {"app": name}
    spec = {
        "replicas": size,
        "podManagementPolicy": "Parallel",
        "serviceName": name,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod_spec(cpu)},
    }
    return body(SETS, name, spec, {"scheduling.phalanx.dev/gang": "true"})


def leader_worker_set(name: str, replicas: int, startup: str) -> Json:
    template = {"size": 2, "workerTemplate": {"spec": pod_spec("1")}}
    spec = {"replicas": replicas, "startupPolicy": startup, "scheduling": {}, "leaderWorkerTemplate": template}
    return body(LEADER_WORKER_SETS, name, spec)


def ending_template(rng: random.Random) -> Json:
    annotations = {"simulation.phalanx.dev/run-seconds": rng.choice(("5", "20", "600"))}
    spec = {**pod_spec(rng.choice(("1", "2"))), "restartPolicy": "Never"}
    return {"metadata": {"annotations": annotations}, "spec": spec}


def pod_spec(cpu: str) -> Json:
    return {"containers": [{"name": "main", "image": "x", "resources": {"requests": {"cpu": cpu}}}]}
