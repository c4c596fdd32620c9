"""Small group objects for tests, as the API would deliver them."""

from __future__ import annotations

from typing import Any

import msgspec

from phalanx.model.objects import CompositePodGroup, Pod, PodGroup, Workload


def pod_group(name: str, *, gang: int | None = None, parent: str | None = None, **more: Any) -> PodGroup:
    return msgspec.convert(_group(name, "minCount", gang, parent, more), PodGroup)


def composite(name: str, *, gang: int | None = None, parent: str | None = None, **more: Any) -> CompositePodGroup:
    return msgspec.convert(_group(name, "minGroupCount", gang, parent, more), CompositePodGroup)


def _group(name: str, word: str, gang: int | None, parent: str | None, more: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = {"schedulingPolicy": {"basic": {}} if gang is None else {"gang": {word: gang}}}
    if parent is not None:
        spec["parentCompositePodGroupName"] = parent
    if "workload" in more:
        spec["workloadRef"] = {"workloadName": more["workload"], "templateName": more.get("template", "t")}
    if "priority" in more:
        spec["priority"] = more["priority"]
    if "key" in more:
        spec["schedulingConstraints"] = {"topology": [{"key": more["key"]}]}
    if more.get("all"):
        spec["disruptionMode"] = {"all": {}}
    if "policy" in more:
        spec["preemptionPolicy"] = more["policy"]
    meta = {
        "name": name,
        "namespace": "ns",
        "uid": f"uid-{name}",
        "creationTimestamp": more.get("created", "2026-01-01T00:00:00Z"),
        "annotations": more.get("annotations", {}),
    }
    return {"metadata": meta, "spec": spec}


def pod(name: str, group: str | None = None, **more: Any) -> Pod:
    spec: dict[str, Any] = {"schedulerName": more.get("scheduler", "phalanx")}
    if group is not None:
        spec["schedulingGroup"] = {"podGroupName": group}
    for ours, theirs in (("node", "nodeName"), ("priority", "priority"), ("policy", "preemptionPolicy")):
        if ours in more:
            spec[theirs] = more[ours]
    if "ref" in more:
        workload, pods, replica = more["ref"]
        spec["workloadRef"] = {"name": workload, "podGroup": pods, "podGroupReplicaKey": replica}
    if more.get("gated"):
        spec["schedulingGates"] = [{"name": "wait"}]
    meta: dict[str, Any] = {"name": name, "namespace": "ns", "uid": more.get("uid", f"uid-{name}")}
    meta["labels"] = more.get("labels", {})
    meta["annotations"] = more.get("annotations", {})
    if more.get("deleting"):
        meta["deletionTimestamp"] = "2026-01-02T00:00:00Z"
    return msgspec.convert({"metadata": meta, "spec": spec, "status": {"phase": more.get("phase", "Pending")}}, Pod)


def workload(
    name: str, *, flat: list[dict[str, Any]] | None = None, nested: list[dict[str, Any]] | None = None
) -> Workload:
    spec = {"podGroupTemplates": flat, "compositePodGroupTemplates": nested}
    return msgspec.convert({"metadata": {"name": name, "namespace": "ns"}, "spec": spec}, Workload)


def gang_template(name: str, count: int) -> dict[str, Any]:
    return {"name": name, "schedulingPolicy": {"gang": {"minCount": count}}}
