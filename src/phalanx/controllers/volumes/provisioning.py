"""Build simulated disks: the volume of a provisioner for a claim, and the default StorageClass.

The volumes controller writes them.
"""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.base import resources as r
from phalanx.base.ids import fnv1a_32
from phalanx.controllers.runtime.controller import Json
from phalanx.controllers.runtime.pods import condition
from phalanx.model.groups.keys import HOSTNAME, ZONE

PROVISIONER = "simulation.phalanx.dev/disk"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
VOLUME_PROTECTION = "kubernetes.io/pv-protection"
DEFAULT_NAME = "standard"


def standard_class() -> Json:
    return {
        "apiVersion": r.STORAGE_CLASSES.api_version,
        "kind": r.STORAGE_CLASSES.kind,
        "metadata": {
            "name": DEFAULT_NAME,
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": PROVISIONER,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowVolumeExpansion": True,
    }


def disk_name(claim: Json) -> str:
    """Name a disk by the claim's uid, so that it is found again after a crash."""
    return f"pvc-{claim['metadata']['uid']}"


def is_local(storage_class: Json) -> bool:
    return str((storage_class.get("parameters") or {}).get("local", "")).lower() == "true"


def disk(claim: Json, storage_class: Json, node: Json | None) -> Json:
    """Return the volume for a claim. `node`: the node of its pod; None if no pod waits for the claim."""
    spec, meta = claim["spec"], claim["metadata"]
    name = disk_name(claim)
    body: Json = {
        "capacity": {"storage": spec["resources"]["requests"]["storage"]},
        "accessModes": list(spec.get("accessModes") or ()),
        "volumeMode": spec.get("volumeMode") or "Filesystem",
        "storageClassName": storage_class["metadata"]["name"],
        "persistentVolumeReclaimPolicy": storage_class.get("reclaimPolicy") or "Delete",
        "claimRef": {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": meta["namespace"],
            "name": meta["name"],
            "uid": meta["uid"],
        },
        "csi": {"driver": PROVISIONER, "volumeHandle": name},
    }
    if storage_class.get("mountOptions"):
        body["mountOptions"] = list(storage_class["mountOptions"])
    reach = _reach(storage_class, node)
    if reach:
        body["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": reach}]}}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": name,
            "annotations": {PROVISIONED_BY: PROVISIONER},
            "finalizers": [VOLUME_PROTECTION],
        },
        "spec": body,
    }


def _reach(storage_class: Json, node: Json | None) -> list[Json]:
    """Return the topology from which the disk is reachable; empty: all nodes."""
    if node is None:
        # The first of several allowed places.
        terms = storage_class.get("allowedTopologies") or ()
        expressions = (terms[0].get("matchLabelExpressions") or ()) if terms else ()
        return [_term(expression["key"], expression["values"][0]) for expression in expressions]
    labels = node["metadata"].get("labels") or {}
    if is_local(storage_class) and HOSTNAME in labels:
        return [_term(HOSTNAME, labels[HOSTNAME])]
    return [_term(ZONE, labels[ZONE])] if ZONE in labels else []


def _term(key: str, value: str) -> Json:
    return {"key": key, "operator": "In", "values": [value]}


def any_node(nodes: Iterable[Json], claim: Json) -> Json | None:
    """Return a node for a local disk without a pod: claims spread over the schedulable nodes."""
    usable = [node for node in nodes if _usable(node)]
    usable.sort(key=lambda node: str(node["metadata"]["name"]))
    return usable[fnv1a_32(claim["metadata"]["uid"].encode()) % len(usable)] if usable else None


def _usable(node: Json) -> bool:
    entry = condition(node, "Ready")
    unschedulable = (node.get("spec") or {}).get("unschedulable", False)
    return not unschedulable and (entry is None or entry.get("status") == "True")
