"""Revisions of a LeaderWorkerSet: their data, and the hash by which pods name them.

Data and hash equal those of the LeaderWorkerSet controller: the JSON of a Go client, hashed with FNV-1. So another
controller can take over without a rollout, and `leaderworkerset.sigs.k8s.io/template-revision-hash` has the same value
everywhere.
"""

from __future__ import annotations

import copy

import msgspec

from phalanx.base.ids import fnv1_32, safe_encode
from phalanx.model.kinds import Json

_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}  # as Go does


def revision_data(lws: Json) -> Json:
    """Return the fields that distinguish revisions of a LeaderWorkerSet, as a patch that restores them."""
    spec = lws["spec"]
    network = spec.get("networkConfig") or {"subdomainPolicy": "Shared"}
    return as_written_by_go({"spec": {"leaderWorkerTemplate": spec["leaderWorkerTemplate"], "networkConfig": network}})


def as_written_by_go(data: Json) -> Json:
    """Add the empty fields that Go writes; other data is not changed."""
    found = copy.deepcopy(data)
    spec = found["spec"]
    spec.setdefault("networkConfig", {"subdomainPolicy": "Shared"})
    for part in spec.values():
        part["$patch"] = "replace"
    template = spec["leaderWorkerTemplate"]
    for name in ("leaderTemplate", "workerTemplate"):
        if template.get(name) is not None:
            _complete_template(template[name])
    for claim in template.get("volumeClaimTemplates") or ():
        _complete_claim(claim)
        claim.setdefault("status", {})
    return found


def _complete_template(template: Json) -> None:
    template.setdefault("metadata", {})
    pod = template.setdefault("spec", {})
    pod.setdefault("containers", None)
    for container in (found for field in _CONTAINERS for found in pod.get(field) or ()):
        container.setdefault("resources", {})
        for port in container.get("ports") or ():
            port.setdefault("protocol", "TCP")
        for variable in container.get("env") or ():
            reference = (variable.get("valueFrom") or {}).get("resourceFieldRef")
            if reference is not None:
                reference.setdefault("divisor", "0")
    for volume in pod.get("volumes") or ():
        claim = (volume.get("ephemeral") or {}).get("volumeClaimTemplate")
        if claim is not None:
            _complete_claim(claim)


def _complete_claim(claim: Json) -> None:
    claim.setdefault("metadata", {})
    claim.setdefault("spec", {}).setdefault("resources", {})


def revision_hash(data: Json, collisions: int = 0) -> str:
    """Return the hash of a revision's data. collisions: the number of other revisions with this hash."""
    text = msgspec.json.encode(data, order="sorted").decode()
    for character, escape in _ESCAPES.items():
        text = text.replace(character, escape)
    return safe_encode(str(fnv1_32(text.encode() + (collisions.to_bytes(4, "little") if collisions else b""))))


def at_revision(lws: Json, revision: Json) -> Json:
    """Return the LeaderWorkerSet at a revision."""
    kept = {key: value for key, value in lws["spec"].items() if key not in ("leaderWorkerTemplate", "networkConfig")}
    then = {name: _without_directive(part) for name, part in revision["data"]["spec"].items()}
    return {**lws, "spec": {**kept, **then}}


def _without_directive(part: Json) -> Json:
    return {name: value for name, value in part.items() if name != "$patch"}
