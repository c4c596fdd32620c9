"""Objects as their users write them in YAML: one builder for each kind, plain JSON that a test may change.

Tests of the engine use typed objects: `phalanx.testing.builders`.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
GANG = "scheduling.phalanx.dev/gang"
RUN = "simulation.phalanx.dev/run-seconds"
EXIT = "simulation.phalanx.dev/exit-code"
GPU = "nvidia.com/gpu"
GANG_POLICY: Json = {"schedulingPolicy": {"gang": {}}}  # spec.scheduling of a Job or JobSet


def manifest(api_version: str, kind: str, name: str, spec: Json, metadata: Json | None = None) -> Json:
    """`metadata`: what it has besides its name; empty fields are left out."""
    more = {key: value for key, value in (metadata or {}).items() if value}
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, **more}, "spec": spec}


def container(cpu: str | int = "", *, gpus: int = 0, image: str = "busybox", **more: Any) -> Json:
    resources: Json = {"requests": {"cpu": str(cpu)}} if cpu else {}
    if gpus:
        resources["limits"] = {GPU: str(gpus)}
    return {"name": "main", "image": image, **({"resources": resources} if resources else {}), **more}


def template(
    cpu: str | int = "",
    *,
    app: str = "",
    image: str = "busybox",
    run: float | None = None,
    exit_code: int = 0,
    annotations: Json | None = None,
    **spec: Any,
) -> Json:
    """A pod template. run: seconds after which its containers end with `exit_code`."""
    notes = dict(annotations or {})
    if run is not None:
        notes |= {RUN: str(run), EXIT: str(exit_code)}
    meta = {**({"labels": {"app": app}} if app else {}), **({"annotations": notes} if notes else {})}
    return {**({"metadata": meta} if meta else {}), "spec": {"containers": [container(cpu, image=image)], **spec}}


def pod(
    name: str = "a",
    cpu: str | int = "",
    *,
    gpus: int = 0,
    group: str = "",
    labels: Json | None = None,
    metadata: Json | None = None,
    **spec: Any,
) -> Json:
    """A pod with the label app=<name>, unless there are others; `group`: the PodGroup it belongs to."""
    link = {"schedulingGroup": {"podGroupName": group}} if group else {}
    meta = {"labels": {"app": name} if labels is None else labels, **(metadata or {})}
    return manifest("v1", "Pod", name, {"containers": [container(cpu, gpus=gpus)], **link, **spec}, meta)


def node(name: str, cpu: str | int = 4, *, pods: int = 20) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "status": {"allocatable": {"cpu": str(cpu), "memory": "64Gi", "pods": str(pods)}},
    }


def pod_group(name: str, minimum: int, *, topology: str = "", metadata: Json | None = None, **spec: Any) -> Json:
    """A PodGroup with the gang policy."""
    made: Json = {"schedulingPolicy": {"gang": {"minCount": minimum}}, **spec}
    if topology:
        made["schedulingConstraints"] = {"topology": [{"key": topology}]}
    return manifest("scheduling.k8s.io/v1beta1", "PodGroup", name, made, metadata)


def gang(
    name: str,
    size: int,
    cpu: str | int = "",
    *,
    gpus: int = 0,
    topology: str = "",
    priority: str = "",
    mode: str = "",
    **pod_spec: Any,
) -> list[Json]:
    """A PodGroup that needs all its pods, and its pods `<name>-0` on. priority: a class; mode: of disruption."""
    spec: Json = {"priorityClassName": priority} if priority else {}
    if mode:
        spec["disruptionMode"] = {mode: {}}
    if priority:
        pod_spec["priorityClassName"] = priority
    members = [pod(f"{name}-{i}", cpu, gpus=gpus, group=name, **pod_spec) for i in range(size)]
    return [pod_group(name, size, topology=topology, **spec), *members]


def job(
    name: str,
    size: int = 1,
    cpu: str | int = "",
    *,
    gang: bool = False,
    run: float | None = None,
    exit_code: int = 0,
    pod: Json | None = None,
    annotations: Json | None = None,
    uid: str = "",
    metadata: Json | None = None,
    **spec: Any,
) -> Json:
    """A Job of `size` pods; gang: asked for by annotation; run, exit_code: as in `template`; pod: more of its spec."""
    pods = template(cpu, run=run, exit_code=exit_code, **{"restartPolicy": "Never", **(pod or {})})
    body = {"parallelism": size, "completions": size, "template": pods, **spec}
    return manifest("batch/v1", "Job", name, body, _metadata(gang, annotations, uid, metadata))


def part(
    name: str,
    replicas: int,
    size: int,
    cpu: str | int = "",
    *,
    run: float | None = None,
    exit_code: int = 0,
    pod: Json | None = None,
    job: Json | None = None,
    annotations: Json | None = None,
    **more: Any,
) -> Json:
    """A ReplicatedJob of `replicas` Jobs of `size` pods; job, pod: more of their specs."""
    pods = template(cpu, run=run, exit_code=exit_code, **(pod or {}))
    made: Json = {"spec": {"parallelism": size, "completions": size, "template": pods, **(job or {})}}
    if annotations:
        made["metadata"] = {"annotations": annotations}
    return {"name": name, "replicas": replicas, "template": made, **more}


def jobset(
    name: str, *parts: Json, gang: bool = False, annotations: Json | None = None, uid: str = "", **spec: Any
) -> Json:
    body = {"replicatedJobs": list(parts), **spec}
    return manifest("jobset.x-k8s.io/v1alpha2", "JobSet", name, body, _metadata(gang, annotations, uid))


def apps_set(kind: str, name: str, pods: Json, *, metadata: Json | None = None, **spec: Any) -> Json:
    """A Deployment, ReplicaSet, StatefulSet or DaemonSet that selects by the labels of its template."""
    selector = {"matchLabels": dict(pods["metadata"]["labels"])}
    return manifest("apps/v1", kind, name, {"selector": selector, "template": pods, **spec}, metadata)


def deployment(name: str, replicas: int, image: str = "v1", cpu: str = "100m", **spec: Any) -> Json:
    return apps_set("Deployment", name, template(cpu, app=name, image=image), replicas=replicas, **spec)


def replica_set(name: str, replicas: int, image: str = "v1", cpu: str = "100m", **spec: Any) -> Json:
    return apps_set("ReplicaSet", name, template(cpu, app=name, image=image), replicas=replicas, **spec)


def stateful_set(name: str, replicas: int, image: str = "v1", cpu: str = "100m", **spec: Any) -> Json:
    service = {"serviceName": f"{name}-svc"}
    pods = template(cpu, app=name, image=image)
    return apps_set("StatefulSet", name, pods, replicas=replicas, **(service | spec))


def leader_worker_set(
    name: str, replicas: int, size: int, workers: Json, *, leader: Json | None = None, **more: Any
) -> Json:
    """workers, leader: their pod templates. `inner`: more of leaderWorkerTemplate; the rest is of the spec."""
    metadata, inner = more.pop("metadata", None), more.pop("inner", {})
    pods = {"size": size, "workerTemplate": workers, **({"leaderTemplate": leader} if leader else {}), **inner}
    spec = {"replicas": replicas, "leaderWorkerTemplate": pods, **more}
    return manifest("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", name, spec, metadata)


def _metadata(gang: bool, annotations: Json | None, uid: str, more: Json | None = None) -> Json:
    """gang: the annotation that asks for one."""
    notes = {**({GANG: "true"} if gang else {}), **(annotations or {})}
    return {"namespace": "default", "uid": uid, "annotations": notes, **(more or {})}
