"""Build child Jobs of a JobSet: names, labels, annotations and other fields that pods rely on."""

from __future__ import annotations

import copy
import hashlib
from typing import Any

from phalanx.base import resources as r
from phalanx.base.well_known import REQUIRED_AFFINITY
from phalanx.controllers.grouping.core import GROUP_TEMPLATE, PARENT_COMPOSITE, Link
from phalanx.controllers.runtime.ownership import controller_reference
from phalanx.controllers.workloads.jobset.shape import EXCLUSIVE, job_name
from phalanx.model.kinds import Json
from phalanx.model.rules.batch import MUTABLE_WHILE_SUSPENDED
from phalanx.model.rules.placement import places_exclusively

PREFIX = "jobset.sigs.k8s.io"
ATTEMPT = f"{PREFIX}/restart-attempt"
JOB_ATTEMPT = f"{PREFIX}/job-restart-attempt"
PART, JOB_INDEX, JOB_KEY = f"{PREFIX}/replicatedjob-name", f"{PREFIX}/job-index", f"{PREFIX}/job-key"
NAME_OF_SET = f"{PREFIX}/jobset-name"
COORDINATOR = f"{PREFIX}/coordinator"
NODE_SELECTOR = "alpha.jobset.sigs.k8s.io/node-selector"
NAMESPACED_JOB = "alpha.jobset.sigs.k8s.io/namespaced-job"
NO_SCHEDULE = "alpha.jobset.sigs.k8s.io/no-schedule"


def jobset_of(obj: Json) -> str:
    """Return the name of the JobSet of a Job or a pod."""
    return str((obj["metadata"].get("labels") or {}).get(NAME_OF_SET) or "")


def subdomain(jobset: Json) -> str:
    return (jobset["spec"].get("network") or {}).get("subdomain") or str(jobset["metadata"]["name"])


def has_host_names(jobset: Json) -> bool:
    return (jobset["spec"].get("network") or {}).get("enableDNSHostnames", True) is not False


def coordinator(jobset: Json) -> str:
    wanted = jobset["spec"].get("coordinator")
    if wanted is None:
        return ""
    job = job_name(jobset["metadata"]["name"], wanted["replicatedJob"], int(wanted.get("jobIndex") or 0))
    return f"{job}-{int(wanted.get('podIndex') or 0)}.{subdomain(jobset)}"


def items_of(jobset: Json) -> list[Json]:
    """Return the ReplicatedJobs of a JobSet, perhaps none."""
    return list(jobset["spec"].get("replicatedJobs") or ())


def replicas_of(item: Json) -> int:
    replicas = item.get("replicas")
    return 1 if replicas is None else int(replicas)


def keys_of(jobset: Json, item: Json, index: int, attempt: int, job_attempt: int | None) -> dict[str, str]:
    """Return the labels, also used as annotations, of the Job and its pods."""
    meta, items = jobset["metadata"], items_of(jobset)
    group = item.get("groupName") or "default"
    before = group_before = group_size = total = 0
    passed = False
    for other in items:
        if other["name"] == item["name"]:
            passed = True
        total += replicas_of(other)
        same = (other.get("groupName") or "default") == group
        group_size += replicas_of(other) * same
        if not passed:
            before += replicas_of(other)
            group_before += replicas_of(other) * same
    name = job_name(meta["name"], item["name"], index)
    key = hashlib.sha1(f"{meta['namespace']}/{name}".encode(), usedforsecurity=False).hexdigest()
    found = {
        NAME_OF_SET: meta["name"],
        f"{PREFIX}/jobset-uid": meta["uid"],
        PART: item["name"],
        f"{PREFIX}/replicatedjob-replicas": str(replicas_of(item)),
        f"{PREFIX}/global-replicas": str(total),
        JOB_INDEX: str(index),
        f"{PREFIX}/job-global-index": str(before + index),
        JOB_KEY: key,
        f"{PREFIX}/group-name": group,
        f"{PREFIX}/group-replicas": str(group_size),
        f"{PREFIX}/job-group-index": str(group_before + index),
        ATTEMPT: str(attempt),
    }
    if job_attempt is not None:
        found[JOB_ATTEMPT] = str(job_attempt)
    if address := coordinator(jobset):
        found[COORDINATOR] = address
    return found


def build(
    jobset: Json, item: Json, index: int, attempt: int, *, job_attempt: int | None, link: Link | None, own_domain: bool
) -> Json:
    """Build a Job. own_domain: its group requires one domain of the exclusive topology, so its pods need no
    affinity."""
    meta = jobset["metadata"]
    template = item["template"]
    outer = template.get("metadata") or {}
    keys = keys_of(jobset, item, index, attempt, job_attempt)
    spec = copy.deepcopy(template["spec"])
    spec["suspend"] = bool(jobset["spec"].get("suspend"))
    pods = spec.setdefault("template", {})
    pod_meta, pod_spec = pods.setdefault("metadata", {}), pods.setdefault("spec", {})
    annotations = {**(outer.get("annotations") or {}), **keys}
    extra = _exclusive_annotations(jobset, outer)
    pod_meta["labels"] = {**(pod_meta.get("labels") or {}), **keys}
    pod_meta["annotations"] = {**(pod_meta.get("annotations") or {}), **keys, **extra}
    if has_host_names(jobset):
        pod_spec["subdomain"] = subdomain(jobset)
    _mount_claims(jobset, pod_spec)
    if EXCLUSIVE in extra:
        _keep_alone(jobset, pod_spec, extra, keys[JOB_KEY], keys, own_domain)
    if link is not None:
        link.put_on(pod_spec)
        if link.template:
            annotations[GROUP_TEMPLATE] = link.template
        if link.parent:
            annotations[PARENT_COMPOSITE] = link.parent
    return {
        "apiVersion": r.JOBS.api_version,
        "kind": r.JOBS.kind,
        "metadata": {
            "name": job_name(meta["name"], item["name"], index),
            "namespace": meta["namespace"],
            "labels": {**(outer.get("labels") or {}), **keys},
            "annotations": {**annotations, **extra},
            "ownerReferences": [controller_reference(jobset, r.JOB_SETS)],
        },
        "spec": spec,
    }


def _exclusive_annotations(jobset: Json, outer: Json) -> dict[str, str]:
    whole = jobset["metadata"].get("annotations") or {}
    own = outer.get("annotations") or {}
    return {key: own.get(key) or whole[key] for key in (EXCLUSIVE, NODE_SELECTOR) if own.get(key) or whole.get(key)}


def _keep_alone(
    jobset: Json, pod_spec: Json, asked: dict[str, str], key: str, keys: dict[str, str], own_domain: bool
) -> None:
    """Add exclusive placement: one Job per domain, one domain per Job.

    Upstream's webhook lets the first pod choose and rejects others until then, which deadlocks a gang. Here every pod
    has the same affinity and anti-affinity; if its group requires one domain, only anti-affinity to other Jobs.
    """
    if NODE_SELECTOR in asked:
        where = f"{jobset['metadata']['namespace']}_{_job_of(keys)}"
        pod_spec["nodeSelector"] = {**(pod_spec.get("nodeSelector") or {}), NAMESPACED_JOB: where}
        toleration = {"key": NO_SCHEDULE, "operator": "Exists", "effect": "NoSchedule"}
        pod_spec["tolerations"] = [*(pod_spec.get("tolerations") or []), toleration]
        return
    affinity = pod_spec.setdefault("affinity", {})
    if places_exclusively(affinity, asked[EXCLUSIVE]):
        return
    mine: list[Json] = [{"key": JOB_KEY, "operator": "In", "values": [key]}]
    others: list[Json] = [
        {"key": JOB_KEY, "operator": "Exists"},
        {"key": JOB_KEY, "operator": "NotIn", "values": [key]},
    ]
    terms: list[tuple[str, list[Json]]] = [("podAntiAffinity", others)]
    if not own_domain:
        terms.append(("podAffinity", mine))
    for field, expressions in terms:
        holder = affinity.setdefault(field, {})
        term = {
            "labelSelector": {"matchExpressions": expressions},
            "topologyKey": asked[EXCLUSIVE],
            "namespaceSelector": {},
        }
        required = REQUIRED_AFFINITY
        holder[required] = [*(holder.get(required) or []), term]


def _job_of(keys: dict[str, str]) -> str:
    return job_name(keys[NAME_OF_SET], keys[PART], int(keys[JOB_INDEX]))


def claim_name(template: Json, jobset: Json) -> str:
    return f"{template['metadata']['name']}-{jobset['metadata']['name']}"


def claims(jobset: Json) -> list[Json]:
    """Return the PersistentVolumeClaims shared by the whole set."""
    found = []
    for policy in jobset["spec"].get("volumeClaimPolicies") or ():
        retained = (policy.get("retentionPolicy") or {}).get("whenDeleted") == "Retain"
        for template in policy.get("templates") or ():
            meta = template["metadata"]
            body: Json = {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {
                    "name": claim_name(template, jobset),
                    "namespace": jobset["metadata"]["namespace"],
                    "labels": {**(meta.get("labels") or {}), NAME_OF_SET: jobset["metadata"]["name"]},
                    "annotations": dict(meta.get("annotations") or {}),
                },
                "spec": copy.deepcopy(template.get("spec") or {}),
            }
            if not retained:
                body["metadata"]["ownerReferences"] = [controller_reference(jobset, r.JOB_SETS)]
            found.append(body)
    return found


def _mount_claims(jobset: Json, pod_spec: Json) -> None:
    """Add the volume to containers that mount a shared claim by its template's name."""
    every = [*(pod_spec.get("containers") or ()), *(pod_spec.get("initContainers") or ())]
    mounted = {mount["name"] for container in every for mount in container.get("volumeMounts") or ()}
    for policy in jobset["spec"].get("volumeClaimPolicies") or ():
        for template in policy.get("templates") or ():
            name = template["metadata"]["name"]
            volumes = pod_spec.get("volumes") or []
            if name in mounted and all(volume["name"] != name for volume in volumes):
                source = {"claimName": claim_name(template, jobset)}
                pod_spec["volumes"] = [*volumes, {"name": name, "persistentVolumeClaim": source}]


def service(jobset: Json) -> Json:
    meta = jobset["metadata"]
    publish = (jobset["spec"].get("network") or {}).get("publishNotReadyAddresses", True)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": subdomain(jobset),
            "namespace": meta["namespace"],
            "ownerReferences": [controller_reference(jobset, r.JOB_SETS)],
        },
        "spec": {
            "clusterIP": "None",
            "selector": {NAME_OF_SET: meta["name"]},
            "publishNotReadyAddresses": publish is not False,
        },
    }


def template_patch(job: Json, wanted: Json) -> Json | None:
    """Return the patch that updates a suspended Job to the JobSet's template; None if nothing changes."""
    here, there = job["spec"]["template"], wanted["spec"]["template"]
    patch: Json = {}
    for field in ("labels", "annotations"):
        old, new = (here.get("metadata") or {}).get(field) or {}, (there.get("metadata") or {}).get(field) or {}
        changed = {key: value for key, value in new.items() if old.get(key) != value}
        if changed:
            patch.setdefault("metadata", {})[field] = changed
    for field in MUTABLE_WHILE_SUSPENDED:
        old, new = (here.get("spec") or {}).get(field), (there.get("spec") or {}).get(field)
        if (old or None) != (new or None):
            patch.setdefault("spec", {})[field] = new
    return {"spec": {"template": patch}} if patch else None


def link_of(job: Json) -> tuple[Any, Any]:
    spec = job["spec"]["template"].get("spec") or {}
    return spec.get("schedulingGroup"), spec.get("workloadRef")
