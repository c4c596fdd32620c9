"""The objects of a DisaggregatedSet: LeaderWorkerSets by slice, revision and role, their Services, scalers. Pure."""

from __future__ import annotations

import copy
import hashlib

import msgspec

from phalanx.base import resources as r
from phalanx.base.well_known import REQUIRED_AFFINITY
from phalanx.controllers.runtime.ownership import controller_reference
from phalanx.model.kinds import Json
from phalanx.model.leaderworkerset.names import WORKER_INDEX

PREFIX = "disaggregatedset.x-k8s.io/"
NAME, ROLE, SLICE = f"{PREFIX}name", f"{PREFIX}role", f"{PREFIX}slice"
REVISION = f"{PREFIX}revision"
INITIAL = f"{PREFIX}initial-replicas"  # annotation: replicas of an old LeaderWorkerSet when its rollout began
_REVISION_LENGTH = 8


def roles_of(owner: Json) -> list[Json]:
    return list((owner.get("spec") or {}).get("roles") or ())


def slices_of(owner: Json) -> int:
    return int((owner.get("spec") or {}).get("slices") or 1)


def is_external(role: Json) -> bool:
    return bool((role.get("scaling") or {}).get("mode") == "External")


def replicas_of(lws: Json) -> int:
    replicas = (lws.get("spec") or {}).get("replicas")
    return 1 if replicas is None else int(replicas)


def initial_of(lws: Json) -> int:
    text = (lws["metadata"].get("annotations") or {}).get(INITIAL) or ""
    return int(text) if text.isdecimal() and len(text) < 10 else replicas_of(lws)


def revision_of(owner: Json) -> str:
    """Return a hash that changes only with the template of a role."""
    templates = [
        {"name": role["name"], "template": (role.get("spec") or {}).get("leaderWorkerTemplate")}
        for role in roles_of(owner)
    ]
    text = msgspec.json.encode(templates, order="sorted")
    return hashlib.sha256(text).hexdigest()[:_REVISION_LENGTH]


def lws_name(owner: Json, place: int, revision: str, role: str) -> str:
    return f"{owner['metadata']['name']}-{place}-{revision}-{role}"


def labels_of(owner: Json, place: int, revision: str, role: str) -> dict[str, str]:
    name = owner["metadata"]["name"]
    return {"app": f"{name}-{place}-{role}", NAME: name, ROLE: role, SLICE: str(place), REVISION: revision}


def leader_worker_set(owner: Json, place: int, revision: str, role: Json, replicas: int) -> Json:
    """Return the LeaderWorkerSet of a role in a slice; its pods carry the labels too."""
    labels = labels_of(owner, place, revision, role["name"])
    outer = role.get("metadata") or {}
    spec = copy.deepcopy(role.get("spec") or {})
    spec["replicas"] = replicas
    template: Json = spec.setdefault("leaderWorkerTemplate", {})
    for field in ("leaderTemplate", "workerTemplate"):
        pod = template.get(field)
        if pod is None:
            continue
        meta = pod.setdefault("metadata", {})
        meta["labels"] = {**(meta.get("labels") or {}), **labels}
        _place(pod.setdefault("spec", {}), owner, place)
    return {
        "apiVersion": r.LEADER_WORKER_SETS.api_version,
        "kind": r.LEADER_WORKER_SETS.kind,
        "metadata": {
            "name": lws_name(owner, place, revision, role["name"]),
            "namespace": owner["metadata"]["namespace"],
            "labels": {**(outer.get("labels") or {}), **labels},
            "annotations": dict(outer.get("annotations") or {}),
            "ownerReferences": [controller_reference(owner, r.DISAGGREGATED_SETS)],
        },
        "spec": spec,
    }


def _place(pod_spec: Json, owner: Json, place: int) -> None:
    """Place the roles of a slice in one domain and apart from other slices, as the placementPolicy requests."""
    policy = owner["spec"].get("placementPolicy") or {}
    kind, topology, name = policy.get("type") or "None", policy.get("topology"), owner["metadata"]["name"]
    if kind == "None" or not topology:
        return
    same_set = {"key": NAME, "operator": "In", "values": [name]}
    mine = [same_set, {"key": SLICE, "operator": "In", "values": [str(place)]}]
    other_slices = [same_set, {"key": SLICE, "operator": "NotIn", "values": [str(place)]}]
    if place == 0:
        other_slices.insert(1, {"key": SLICE, "operator": "Exists"})  # pods without a slice are of slice 0
    apart = [other_slices]
    if kind == "ExclusiveTopology":
        others = {"key": NAME, "operator": "NotIn", "values": [name]}
        apart.append([{"key": NAME, "operator": "Exists"}, others, {"key": SLICE, "operator": "Exists"}])
    affinity: Json = pod_spec.setdefault("affinity", {})
    for field, terms in (("podAffinity", [mine]), ("podAntiAffinity", apart)):
        required = affinity.setdefault(field, {}).setdefault(REQUIRED_AFFINITY, [])
        required += [{"labelSelector": {"matchExpressions": term}, "topologyKey": topology} for term in terms]


def service(owner: Json, lws: Json) -> Json:
    """Return the headless Service of a role of one revision."""
    known = lws["metadata"].get("labels") or {}
    selector = {key: known[key] for key in (NAME, ROLE, SLICE, REVISION) if known.get(key)}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": f"{lws['metadata']['name']}-prv",
            "namespace": owner["metadata"]["namespace"],
            "labels": dict(selector),
            "ownerReferences": [controller_reference(owner, r.DISAGGREGATED_SETS)],
        },
        "spec": {"clusterIP": "None", "selector": selector},
    }


def scaler_name(owner: Json, role: str) -> str:
    return f"{owner['metadata']['name']}-{role}"


def scaler(owner: Json, role: str, replicas: int) -> Json:
    return {
        "apiVersion": r.ROLE_SCALERS.api_version,
        "kind": r.ROLE_SCALERS.kind,
        "metadata": {
            "name": scaler_name(owner, role),
            "namespace": owner["metadata"]["namespace"],
            "labels": {NAME: owner["metadata"]["name"], ROLE: role},
            "ownerReferences": [controller_reference(owner, r.DISAGGREGATED_SETS)],
        },
        "spec": {"replicas": replicas},
    }


def leader_selector(owner: Json, role: str) -> str:
    return f"{NAME}={owner['metadata']['name']},{ROLE}={role},{WORKER_INDEX}=0"
