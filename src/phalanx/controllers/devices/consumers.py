"""Which claims pods use, and in whose name a claim is reserved: of the pod, or of its PodGroup (KEP-5729)."""

from __future__ import annotations

from collections.abc import Iterator

from phalanx.controllers.runtime.controller import Json
from phalanx.controllers.runtime.pods import finished

_REFERENCE = ("name", "resourceClaimName", "resourceClaimTemplateName")


def claims_on_node(pod: Json) -> list[str]:
    """Cache index: namespace/name of the claims of a pod that has a node and has not ended."""
    spec = pod.get("spec") or {}
    if not spec.get("resourceClaims") or not spec.get("nodeName") or finished(pod):
        return []
    return [f"{pod['metadata']['namespace']}/{claim}" for _, claim in _claims(pod)]


def group_of(pod: Json) -> str:
    """Return the name of a pod's PodGroup; "" if it has none."""
    return ((pod.get("spec") or {}).get("schedulingGroup") or {}).get("podGroupName") or ""


def missing_consumer(pod: Json, group: Json | None, claim: Json, reserved: list[Json]) -> Json | None:
    """Return what reservedFor of a claim lacks for a pod on a node; None if nothing. `group`: the pod's PodGroup."""
    meta, entries = pod["metadata"], [entry for entry, name in _claims(pod) if name == claim["metadata"]["name"]]
    if any(each.get("uid") == meta["uid"] for each in reserved) or not entries or not _may_use(entries[0], pod, claim):
        return None
    mine = group_of(pod)
    if mine and any((each.get("resource"), each.get("name")) == ("podgroups", mine) for each in reserved):
        return None
    for theirs in ((group or {}).get("spec") or {}).get("resourceClaims") or ():
        if group is not None and all(theirs.get(field) == entries[0].get(field) for field in _REFERENCE):
            about = group["metadata"]
            kind = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups"}
            return {**kind, "name": about["name"], "uid": about["uid"]}
    return {"resource": "pods", "name": meta["name"], "uid": meta["uid"]}


def _claims(pod: Json) -> Iterator[tuple[Json, str]]:
    """Yield the entries of a pod with the names of their claims, as far as these are known."""
    statuses = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    made = {each["name"]: each.get("resourceClaimName") for each in statuses}
    for entry in pod["spec"].get("resourceClaims") or ():
        if name := entry.get("resourceClaimName") or made.get(entry["name"]):
            yield entry, name


def _may_use(entry: Json, pod: Json, claim: Json) -> bool:
    """Return False for a claim of this name that was not made from the pod's template."""
    if not entry.get("resourceClaimTemplateName"):
        return True
    owners = [ref for ref in claim["metadata"].get("ownerReferences") or () if ref.get("controller")]
    of_pod = any(ref.get("uid") == pod["metadata"]["uid"] for ref in owners)
    return of_pod or any((ref.get("kind"), ref.get("name")) == ("PodGroup", group_of(pod)) for ref in owners)
