"""Build the objects of a LeaderWorkerSet: leaders' StatefulSet, workers' StatefulSets, Services. Pure functions.

Workers have the revision of their leader (`revision.py`), never a newer one.
"""

from __future__ import annotations

import copy

from phalanx.base import resources as r
from phalanx.base.well_known import LAST_APPLIED, PHALANX_API
from phalanx.controllers.runtime.ownership import controller_reference
from phalanx.model.kinds import Json
from phalanx.model.leaderworkerset.names import (
    EXCLUSIVE,
    GROUP_INDEX,
    GROUP_KEY,
    LEADER_NAME,
    LEADER_REQUESTS_TPUS,
    NAME,
    REPLICAS,
    REVISION,
    SIZE,
    SUBDOMAIN_POLICY,
    SUBGROUP_EXCLUSIVE,
    SUBGROUP_SIZE,
    SUBGROUP_TYPE,
    WORKER_INDEX,
    annotation,
    label,
    leader_template,
    size_of,
    worker_template,
)
from phalanx.model.leaderworkerset.tpu import requests_tpus
from phalanx.model.rules.assembly import scaled


def unique_subdomains(lws: Json) -> bool:
    return bool((lws["spec"].get("networkConfig") or {}).get("subdomainPolicy") == "UniquePerReplica")


def leader_set(lws: Json, revision: str, partition: int, replicas: int, surge: int) -> Json:
    """Build the leaders' StatefulSet. Its template has no group: enabling groups must not outdate running pods."""
    meta, template = lws["metadata"], lws["spec"]["leaderWorkerTemplate"]
    pod = _template(leader_template(lws))
    pod["metadata"]["labels"] |= {NAME: meta["name"], WORKER_INDEX: "0", REVISION: revision}
    pod["metadata"]["annotations"] |= _shared_annotations(lws)
    if unique_subdomains(lws):
        pod["metadata"]["annotations"][SUBDOMAIN_POLICY] = "UniquePerReplica"
    rolling = (lws["spec"].get("rolloutStrategy") or {}).get("rollingUpdateConfiguration") or {}
    unavailable = scaled(rolling.get("maxUnavailable", 1), int(lws["spec"].get("replicas", 1)), up=False)
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {
            "name": meta["name"],
            "namespace": meta["namespace"],
            "labels": {**(meta.get("labels") or {}), NAME: meta["name"], REVISION: revision},
            "annotations": {**_inherited(meta), REPLICAS: str(lws["spec"].get("replicas", 1))},
            "ownerReferences": [controller_reference(lws, r.LEADER_WORKER_SETS)],
        },
        "spec": {
            "replicas": replicas,
            "serviceName": meta["name"],
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {NAME: meta["name"], WORKER_INDEX: "0"}},
            "template": pod,
            "updateStrategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"partition": partition, "maxUnavailable": max(1, unavailable + surge)},
            },
            **_volumes(template),
        },
    }


def worker_set(lws: Json, leader: Json, *, node_selector: Json | None = None) -> Json:
    """Build the workers' StatefulSet of one leader pod; `lws`: the set at the leader's revision."""
    meta, name = lws["metadata"], leader["metadata"]["name"]
    mine = {NAME: meta["name"], GROUP_INDEX: label(leader, GROUP_INDEX), GROUP_KEY: label(leader, GROUP_KEY)}
    pod = _template(worker_template(lws))
    pod["metadata"]["labels"] |= {**mine, REVISION: label(leader, REVISION)}
    pod["metadata"]["annotations"] |= {**_shared_annotations(lws), LEADER_NAME: name}
    if requests_tpus(leader.get("spec") or {}):
        pod["metadata"]["annotations"][LEADER_REQUESTS_TPUS] = "true"
    if node_selector:
        pod["spec"]["nodeSelector"] = {**(pod["spec"].get("nodeSelector") or {}), **node_selector}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {
            "name": name,
            "namespace": meta["namespace"],
            "labels": {**(meta.get("labels") or {}), **mine, REVISION: label(leader, REVISION)},
            "annotations": _inherited(meta),
            "ownerReferences": [controller_reference(leader, r.PODS)],
        },
        "spec": {
            "replicas": size_of(lws) - 1,
            "ordinals": {"start": 1},
            "serviceName": name if unique_subdomains(lws) else meta["name"],
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": mine},
            "template": pod,
            **_volumes(lws["spec"]["leaderWorkerTemplate"]),
        },
    }


def service(name: str, namespace: str, selector: dict[str, str], owner: Json) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace, "ownerReferences": [owner]},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector},
    }


def _inherited(meta: Json) -> Json:
    """Return the annotations of a set that its StatefulSets get too: all but those that request groups."""
    annotations: Json = meta.get("annotations") or {}
    return {k: v for k, v in annotations.items() if k != LAST_APPLIED and not k.startswith(f"{PHALANX_API}/")}


def _template(source: Json) -> Json:
    template = copy.deepcopy(source)
    meta = template.setdefault("metadata", {})
    for field in ("labels", "annotations"):
        meta[field] = dict(meta.get(field) or {})
    return template


def _shared_annotations(lws: Json) -> Json:
    found = {SIZE: str(size_of(lws))}
    for key in (EXCLUSIVE, SUBGROUP_EXCLUSIVE):
        if value := annotation(lws, key):
            found[key] = value
    policy = lws["spec"]["leaderWorkerTemplate"].get("subGroupPolicy") or {}
    if policy.get("subGroupSize"):
        found[SUBGROUP_SIZE] = str(policy["subGroupSize"])
        found[SUBGROUP_TYPE] = policy.get("subGroupPolicyType") or "LeaderWorker"
    return found


def _volumes(template: Json) -> Json:
    fields = ("volumeClaimTemplates", "persistentVolumeClaimRetentionPolicy")
    return {field: copy.deepcopy(template[field]) for field in fields if template.get(field)}
